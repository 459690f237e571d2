//! The proxy's operations and steps, and the network below them.

use super::{Player, check_with_cast};
use crate::correlate::proxy::PENDING_OPS;

#[test]
fn an_unstopped_step_ends_with_its_operation() {
    // NCCL 2.24 to 2.26 does this when it finds two receives done at once.
    check_with_cast(
        "1 1 start p ProxyOp receive peer=1
         2 1 start s ProxyStep parent=p step=0
         3 1 start t ProxyStep parent=p step=1
         4 1 stop s
         9 1 stop p",
        "2 proxy p on 1 ch 0 <- 1 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 <- 1 C [no parent]
         3 step t number 1 on 1 under p: ch 0 <- 1 C [no parent]
         4 step s ends, starts 1
         9 step t ends with its operation, starts 1
         9 proxy p ends",
    );
}

#[test]
fn a_proxy_operation_is_drawn_from_its_first_progress_on() {
    //  a  1|........state 19|====|
    //  b  2|........... step|=======|
    //  c  3|...............stop|         no step seen, and yet it is done
    //  d  4|..........               not yet
    check_with_cast(
        "1 1 start a ProxyOp parent=none
         2 1 start b ProxyOp parent=none
         3 1 start c ProxyOp parent=none
         4 1 start d ProxyOp parent=none
        10 1 state a PROXY_OP_IN_PROGRESS
        11 1 state a PROXY_OP_IN_PROGRESS
        20 1 start s ProxyStep parent=b
        30 1 stop c
        40 1 stop a",
        "10 proxy a on 1 ch 0 -> 0 C [no parent] queued 9
         20 proxy b on 1 ch 0 -> 0 C [no parent] queued 18
        20 step s number 0 on 1 under b: ch 0 -> 0 C [no parent]
         30 proxy c on 1 ch 0 -> 0 C [no parent] queued 27
        30 proxy c ends
        40 proxy a ends",
    );
}

#[test]
fn up_to_v3_the_states_of_a_proxy_operation_are_its_phases() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none receive
         5 1 state p PROXY_OP_RECV_POSTED argument=0 steps=1
         6 1 state p PROXY_OP_RECV_RECEIVED argument=512 steps=1
         7 1 stop p",
        "5 proxy p on 1 ch 0 <- 0 C [no parent] queued 4
         5 proxy p PROXY_OP_RECV_POSTED bytes 0 steps 1
         6 proxy p PROXY_OP_RECV_RECEIVED bytes 512 steps 1
         7 proxy p ends",
    );
}

#[test]
fn a_silent_proxy_operation_is_reported_when_its_communicator_ends() {
    //  C  1 a|........................finalize   nothing ever came of it
    //     2 b|..state 19|                        made progress
    //  D  3 c|................................finish
    check_with_cast(
        "0 0 comm D hash=8 rank=0 ranks=2
         1 1 start a ProxyOp parent=none receive peer=1
         2 1 start b ProxyOp parent=none receive
         3 1 start c ProxyOp parent=none receive in=D
         4 1 state b PROXY_OP_IN_PROGRESS
         9 0 finalize C
        finish
        finish",
        "0 comm D number 2 hash 8 rank 0 of 2 name -
         4 proxy b on 1 ch 0 <- 0 C [no parent] queued 2
         1 proxy never on 1 ch 0 <- 1 C [no parent]
         9 comm C finalized
         3 proxy never on 1 ch 0 <- 0 D [no parent]
         silent_proxy_ops: 2",
    );
}

#[test]
fn an_operation_that_queues_on_its_connection_is_not_silent() {
    //  C  1 a|..state 19|        3 c|.......finalize   g, c and d are behind a; g came before it
    //                                                  was known that a is the network's
    //     2 b|........................finalize         another connection, still unknown
    //     5 e|........................finalize         NCCL flags the sends of NET
    //  D  7 f|..............................finish
    check_with_cast(
        "0 0 comm D hash=8 rank=0 ranks=2
         1 1 start a ProxyOp parent=none receive
         1 1 start g ProxyOp parent=none receive
         2 1 start b ProxyOp parent=none receive peer=1
         2 1 state a PROXY_OP_IN_PROGRESS
         3 1 start c ProxyOp parent=none receive
         4 1 start d ProxyOp parent=none receive
         5 1 start e ProxyOp parent=none peer=1
         7 1 start f ProxyOp parent=none in=D
         9 0 finalize C
         10 1 state c PROXY_OP_IN_PROGRESS
         11 1 stop c
        finish
        finish",
        "0 comm D number 2 hash 8 rank 0 of 2 name -
         2 proxy a on 1 ch 0 <- 0 C [no parent] queued 1
         2 proxy never on 1 ch 0 <- 1 C [no parent]
         9 proxy queue of 3 on 1 ch 0 <- 0 C [no parent] queued 8 given up 3
         9 proxy queue of 1 on 1 ch 0 -> 1 C [no parent] queued 4 given up 1
         9 comm C finalized
         11 proxy queue of 1 on 1 ch 0 -> 0 D [no parent] queued 4 given up 0
         double_stops: 1, silent_proxy_ops: 1",
    );
}

#[test]
fn the_oldest_silent_proxy_operation_is_given_up_when_there_are_too_many() {
    let flood: String = (0..PENDING_OPS).map(|n| format!("2 1 start x{n} ProxyOp parent=none receive\n")).collect();
    check_with_cast(
        &format!(
            "0 1 start b ProxyOp parent=none
             1 1 start a ProxyOp parent=none receive
             {flood}
             3 1 state a PROXY_OP_IN_PROGRESS
             4 1 stop a
             5 1 stop b"
        ),
        "1 proxy never on 1 ch 0 <- 0 C [no parent]
         3 proxy a on 1 ch 0 <- 0 C [no parent] queued 2
         4 proxy a ends
         5 proxy b on 1 ch 0 -> 0 C [no parent] queued 5
         5 proxy b ends
         silent_proxy_ops: 1",
    );
}

#[test]
fn only_receives_are_looked_up_by_their_connection() {
    let mut player = Player::new();
    let mut input = super::CAST.to_owned() + "\n";
    for peer in 0..100 {
        input += &format!(
            "1 1 start s{peer} ProxyOp parent=none peer={peer} | 2 1 start t{peer} ProxyStep parent=s{peer}\n"
        );
        input += &format!("3 1 start r{peer} ProxyOp parent=none peer={peer} receive\n");
    }
    player.play(&input, &mut |_, _| {});
    assert_eq!([player.correlator.proxy.untaken.len(), player.correlator.proxy.connections.len()], [100, 0]);
    let progress = (0..100).map(|peer| format!("4 1 start u{peer} ProxyStep parent=r{peer}\n")).collect::<String>();
    player.play(&progress, &mut |_, _| {});
    assert_eq!([player.correlator.proxy.untaken.len(), player.correlator.proxy.connections.len()], [0, 100]);
}

#[test]
fn progress_for_communicators_of_other_processes_is_not_kept() {
    let mut player = Player::new();
    let of_others = |n: u32| {
        format!(
            "1 1 start p{n} ProxyOp pid=99 in=foreign.c{n} parent=foreign.coll | 2 1 start s{n} ProxyStep in=foreign.c{n} parent=p{n}
             3 1 stop s{n} | 4 1 stop p{n}\n"
        )
    };
    let own = "5 1 start p ProxyOp parent=none | 6 1 stop p\n";
    let input = format!("{}\n{}{own}", super::CAST, (0..100).map(of_others).collect::<String>());
    player.play(&input, &mut |_, _| {});
    assert_eq!(player.correlator.moved.len(), 1);
}

#[test]
fn with_pxn_a_proxy_works_for_another_process() {
    check_with_cast(
        "1 1 start p ProxyOp pid=99 in=foreign.comm parent=foreign.coll peer=3
         2 1 start s ProxyStep in=foreign.comm parent=p
         3 1 state s PROXY_STEP_SEND_GPU_WAIT
         4 1 stop s
         5 1 stop p
         6 1 start q ProxyOp pid=99 parent=none
         7 1 stop q",
        "2 proxy p on 1 ch 0 -> 3 [parent in another process] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 3 [parent in another process]
         3 step s PROXY_STEP_SEND_GPU_WAIT
         4 step s ends, starts 1
         5 proxy p ends
         7 proxy q on 1 ch 0 -> 0 C [parent in another process] queued 1
         7 proxy q ends
         foreign_events: 2",
    );
}

#[test]
fn a_receive_that_the_network_refuses_stays_one_step() {
    //  handle r1  10|---
    //  handle r2       20|---               the same transfer, started again
    //  handle r3            30|---wait---|  40
    //  drawn      10|====================|  40, three starts
    check_with_cast(
        "1 1 start p ProxyOp parent=none receive
        10 1 start r1 ProxyStep parent=p step=5
        11 1 state r1 PROXY_STEP_RECV_WAIT
        20 1 start r2 ProxyStep parent=p step=5
        21 1 state r2 PROXY_STEP_RECV_WAIT
        25 1 start other ProxyStep parent=p step=6
        30 1 start r3 ProxyStep parent=p step=5
        31 1 state r3 PROXY_STEP_RECV_FLUSH_WAIT argument=512
        40 1 stop r3
        41 1 stop other
        50 1 start again ProxyStep parent=p step=5
        60 1 stop again",
        "10 proxy p on 1 ch 0 <- 0 C [no parent] queued 9
        10 step r1 number 5 on 1 under p: ch 0 <- 0 C [no parent]
        11 step r1 PROXY_STEP_RECV_WAIT
        25 step other number 6 on 1 under p: ch 0 <- 0 C [no parent]
        31 step r1 PROXY_STEP_RECV_FLUSH_WAIT bytes 512
        40 step r1 ends, starts 3
        41 step other ends, starts 1
        50 step again number 5 on 1 under p: ch 0 <- 0 C [no parent]
        60 step again ends, starts 1",
    );
}

#[test]
fn a_repeated_phase_is_emitted_once_and_only_two_states_have_a_size() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none
         2 1 start s ProxyStep parent=p
         3 1 state s PROXY_STEP_SEND_GPU_WAIT argument=99
         4 1 state s PROXY_STEP_SEND_PEER_WAIT argument=99
         5 1 state s PROXY_STEP_SEND_WAIT argument=512
         6 1 state s PROXY_STEP_SEND_WAIT argument=512
         7 1 state s PROXY_STEP_RECV_WAIT argument=99
         8 1 state s PROXY_STEP_RECV_FLUSH_WAIT argument=256
         9 1 state s PROXY_STEP_RECV_GPU_WAIT argument=99
        10 1 state s PROXY_STEP_SEND_WAIT argument=0",
        "2 proxy p on 1 ch 0 -> 0 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 0 C [no parent]
         3 step s PROXY_STEP_SEND_GPU_WAIT
         4 step s PROXY_STEP_SEND_PEER_WAIT
         5 step s PROXY_STEP_SEND_WAIT bytes 512
         7 step s PROXY_STEP_RECV_WAIT
         8 step s PROXY_STEP_RECV_FLUSH_WAIT bytes 256
         9 step s PROXY_STEP_RECV_GPU_WAIT
        10 step s PROXY_STEP_SEND_WAIT",
    );
}

#[test]
fn a_step_without_a_known_operation_stands_alone() {
    check_with_cast(
        "1 1 start s ProxyStep parent=lost step=2 | 2 1 start t ProxyStep parent=lost step=2 | 3 1 stop s | 4 1 stop t",
        "1 step s number 2 on 1 under lost: of nothing known
         2 step t number 2 on 1 under lost: of nothing known
         3 step s ends, starts 1
         4 step t ends, starts 1
         unknown_parents: 2",
    );
}

#[test]
fn the_states_of_the_progress_thread_are_drawn() {
    check_with_cast(
        "1 1 start a ProxyCtrl | 1 1 state a PROXY_CTRL_IDLE | 2 1 stop a
         3 1 start b ProxyCtrl | 3 1 state b PROXY_CTRL_APPEND | 4 1 state b PROXY_CTRL_APPEND_END argument=6 | 4 1 stop b",
        "1 control on 1 C PROXY_CTRL_IDLE
         3 control on 1 C PROXY_CTRL_APPEND
         4 control on 1 C PROXY_CTRL_APPEND_END appended 6",
    );
}

#[test]
fn an_append_says_what_it_brought() {
    check_with_cast(
        "1 0 start plan Group
         1 0 start ar Coll parent=api group=plan
         2 0 stop ar
         2 0 stop plan
         3 1 start b ProxyCtrl | 3 1 state b PROXY_CTRL_APPEND
         4 1 start p ProxyOp parent=ar peer=1 channel=2 | 4 1 start q ProxyOp parent=ar peer=1 channel=3
         5 1 start r ProxyOp parent=lost peer=1 channel=3
         6 1 state b PROXY_CTRL_APPEND_END argument=3 | 6 1 stop b
         7 1 start s ProxyOp parent=ar peer=1 channel=4
         8 1 start c ProxyCtrl | 8 1 state c PROXY_CTRL_APPEND | 9 1 state c PROXY_CTRL_APPEND_END argument=0 | 9 1 stop c",
        "1 Group plan on 0 C
         1 operation ar on 0 C AllReduce mark a [parent unknown]
         2 operation ar ends
         2 call plan ends
         3 control on 1 C PROXY_CTRL_APPEND
         6 control on 1 C PROXY_CTRL_APPEND_END appended 3 2 of AllReduce 256
         8 control on 1 C PROXY_CTRL_APPEND
         9 control on 1 C PROXY_CTRL_APPEND_END appended 0
         unknown_parents: 2",
    );
}

#[test]
fn network_events_begin_are_updated_and_end() {
    check_with_cast(
        "1 1 start p ProxyOp parent=none
         2 1 start s ProxyStep parent=p
         3 1 start n NetPlugin parent=s bytes=100
         4 1 update n bytes=50
         5 1 stop n",
        "2 proxy p on 1 ch 0 -> 0 C [no parent] queued 1
         2 step s number 0 on 1 under p: ch 0 -> 0 C [no parent]
         3 net n on 1 bytes 100
         4 net n bytes 50
         5 net n ends",
    );
}
