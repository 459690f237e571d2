//! What the correlator makes of scenarios, line by line, and of arbitrary input.

mod any_input;
mod proxy;
pub(crate) mod random;
mod script;

use super::*;
use crate::model::event::CommInit;
use crate::model::time::Ticks;
use script::check;
pub(super) use script::describe;
pub(crate) use script::{PID, Player, tag};

/// What most scenarios begin with, and the entries for it.
const CAST: &str = "0 0 thread 100 python3 | 0 1 thread 200 NCCL | 0 0 comm C hash=7 rank=0 ranks=2";
const CAST_SAID: &str = "
    0 thread 0 = 100 python3
    0 thread 1 = 200 NCCL
    0 comm C number 1 hash 7 rank 0 of 2 name -";

/// A scenario with the usual cast.
#[track_caller]
fn check_with_cast(input: &str, expected: &str) {
    check(&format!("{CAST}\n{input}"), &format!("{CAST_SAID}\n{expected}"));
}

// ---- operations ----

#[test]
fn an_operation_is_followed_from_the_call_to_the_network() {
    check_with_cast(
        "1 0 start g GroupApi
         2 0 start api CollApi parent=g
         3 0 stop api
         4 0 start launch KernelLaunch parent=g
         5 0 stop launch
         6 0 start plan Group
         7 0 start ar Coll parent=api seq=3
         8 0 stop ar
         9 0 stop plan
        10 0 stop g
        20 1 start p ProxyOp parent=ar peer=1 channel=2
        21 1 start s ProxyStep parent=p step=4
        22 1 stop s
        23 1 stop p
        30 0 finalize C",
        "1 GroupApi g on 0 C
         2 CollApi api on 0 C AllReduce
         3 call api ends
         4 KernelLaunch launch on 0 C for api
         5 call launch ends
         6 Group plan on 0 C
         7 operation ar on 0 C AllReduce mark a
         8 operation ar ends
         9 call plan ends
        10 call g ends
        21 proxy p on 1 ch 2 -> 1 C of AllReduce queued 1
        21 step s number 4 on 1 under p: ch 2 -> 1 C of AllReduce
        22 step s ends, starts 1
        23 proxy p ends
        30 comm C finalized",
    );
}

#[test]
fn a_group_knows_when_its_start_returned_and_its_end_was_called() {
    //  |-- ncclGroupStart --|   the user's calls   |-- ncclGroupEnd --|
    //  1                    3                      8                  9
    //                         a state that comes again changes nothing
    check_with_cast(
        "1 0 start g GroupApi
         3 0 state g GROUP_START_API_STOP
         4 0 state g GROUP_START_API_STOP
         8 0 state g GROUP_END_API_START
         9 0 stop g",
        "1 GroupApi g on 0 C
         9 call g ends mark 3 mark 8",
    );
}

#[test]
fn copy_engine_collectives_belong_to_their_call() {
    check_with_cast(
        "1 0 start ce CeColl func=AllGather
         2 0 start sync CeSync parent=ce
         3 0 stop sync
         4 0 start batch CeBatch parent=ce
         5 0 stop batch
         6 0 stop ce",
        "1 CeColl ce on 0 C AllGather [no parent]
         2 CeSync sync on 0 C
         3 call sync ends
         4 CeBatch batch on 0 C
         5 call batch ends
         6 call ce ends",
    );
}

#[test]
fn a_second_stop_casts_doubt_on_later_children_only() {
    check_with_cast(
        "1 0 start api CollApi parent=none
         2 0 stop api
         3 0 start before Coll parent=api
         4 0 stop api
         5 0 start after Coll parent=api
         6 0 stop before
         7 0 stop after
         8 0 stop after",
        "1 CollApi api on 0 C AllReduce [no parent]
         2 call api ends
         3 operation before on 0 C AllReduce mark a
         5 operation after on 0 C AllReduce mark a [parent was stopped twice]
         6 operation before ends
         7 operation after ends
         double_stops: 2",
    );
}

#[test]
fn a_parent_may_be_missing_unknown_or_foreign() {
    check_with_cast(
        "1 0 start a Coll
         2 0 start b Coll parent=lost
         3 0 start c Coll parent=foreign.api
         4 0 start g GroupApi parent=lost
         5 0 start plan Group parent=lost
         6 1 start control ProxyCtrl parent=lost
         7 0 start launch KernelLaunch parent=lost",
        "1 operation a on 0 C AllReduce mark a [no parent]
         2 operation b on 0 C AllReduce mark a [parent unknown]
         3 operation c on 0 C AllReduce mark a [parent in another process]
         4 GroupApi g on 0 C
         5 Group plan on 0 C
         7 KernelLaunch launch on 0 C [parent unknown]
         unknown_parents: 2",
    );
}

#[test]
fn stops_and_states_of_unknown_events_are_counted() {
    check_with_cast(
        "1 0 stop never
         2 0 state never GROUP_START_API_STOP
         3 0 stop foreign.call
         4 0 state foreign.call GROUP_START_API_STOP
         5 0 update foreign.net
         6 0 stop late
         7 0 start late GroupApi",
        "7 GroupApi late on 0 C
         unknown_handles: 3, foreign_handles: 3",
    );
}

#[test]
fn each_run_of_a_captured_call_has_a_number() {
    check_with_cast(
        "1 0 start api CollApi captured parent=none
         2 0 stop api
         3 0 start first Coll parent=api seq=1
         4 0 stop first
         5 0 start plain CollApi
         6 0 start once Coll parent=plain seq=2
         7 0 start second Coll parent=api seq=1",
        "1 CollApi api on 0 C AllReduce [no parent]
         2 call api ends
         3 operation first on 0 C AllReduce mark a replay 1
         4 operation first ends
         5 CollApi plain on 0 C AllReduce [no parent]
         6 operation once on 0 C AllReduce mark b
         7 operation second on 0 C AllReduce mark a replay 2",
    );
}

#[test]
fn captured_calls_are_remembered_longer_but_not_for_ever() {
    let calls = |count: u32, captured: &str| -> String {
        (0..count)
            .map(|n| format!("1 0 start x{n}{captured} CollApi parent=g {captured} | 1 0 stop x{n}{captured}\n"))
            .collect()
    };
    let mut player = Player::new();
    let mut replays = Vec::new();
    let mut play = |input: &str| {
        player.play(input, &mut |_, entry| {
            if let What::OperationBegin { replay, doubt, .. } = entry.what {
                replays.push((replay, doubt));
            }
        });
    };
    play("0 0 start g GroupApi | 0 0 start api CollApi parent=g captured | 0 0 stop api");
    play(&calls(2_000, ""));
    play("1 0 start a Coll parent=api");
    play(&calls(17_000, "captured"));
    play("1 0 start b Coll parent=api | 1 0 start c Coll parent=x16999captured");
    assert_eq!(replays, [(Some(1), None), (None, Some(Doubt::ParentUnknown)), (Some(1), None)]);
}

// ---- correlation numbers, equal on all ranks ----

#[test]
fn a_message_has_the_same_unique_mark_on_both_sides() {
    check(
        "0 0 comm C hash=7 rank=0 ranks=3
         1 0 start a P2p func=Send peer=1
         2 0 start b P2p func=Send peer=1
         3 0 start c P2p func=Send peer=2
         4 0 start d P2p func=Recv peer=1
         process
         0 0 comm C hash=7 rank=1 ranks=3
         1 0 start e P2p func=Send peer=0
         2 0 start f P2p func=Recv peer=0
         3 0 start g P2p func=Recv peer=0
         process
         0 0 comm C hash=7 rank=2 ranks=3
         1 0 start h P2p func=Recv peer=0",
        "0 comm C number 1 hash 7 rank 0 of 3 name -
         1 thread 0 = 0 unknown
         1 operation a on 0 C Send number 0 mark a [no parent]
         2 operation b on 0 C Send number 1 mark b [no parent]
         3 operation c on 0 C Send number 0 mark c [no parent]
         4 operation d on 0 C Recv number 0 mark d [no parent]
         0 comm C number 1 hash 7 rank 1 of 3 name -
         1 thread 0 = 0 unknown
         1 operation e on 0 C Send number 0 mark d [no parent]
         2 operation f on 0 C Recv number 0 mark a [no parent]
         3 operation g on 0 C Recv number 1 mark b [no parent]
         0 comm C number 1 hash 7 rank 2 of 3 name -
         1 thread 0 = 0 unknown
         1 operation h on 0 C Recv number 0 mark c [no parent]",
    );
}

/// A send that is captured, and handed over `runs` times, or once during capture; then one that is
/// not. On the other rank it is the receive of the same.
fn sent(rank: u32, func: &str, runs: u32) -> String {
    let peer = 1 - rank;
    let hand_over = |run: u32| {
        let at = 10 + run;
        format!("{at} 1 start x{rank}{run} P2p parent=a func={func} peer={peer} | {at} 1 stop x{rank}{run}\n")
    };
    format!("0 0 thread 100 python3 | 0 1 thread 200 callback | 0 0 comm C hash=7 rank={rank} ranks=2\n")
        + "1 0 start g GroupApi captured | 2 0 start a P2pApi parent=g captured | 3 0 stop a | 4 0 stop g\n"
        + &(1..=runs).map(hand_over).collect::<String>()
        + &format!(
            "30 0 start h GroupApi | 31 0 start b P2pApi parent=h | 32 0 start y{rank} P2p parent=b func={func} peer={peer}\n"
        )
}

/// The marks of what is handed over on each rank, in order.
fn marks(input: &str) -> Vec<Option<u64>> {
    let mut marks = Vec::new();
    Player::new().play(input, &mut |_, entry| {
        if let What::OperationBegin { operation, comm, .. } = entry.what {
            marks.push(operation.correlation(comm));
        }
    });
    marks
}

#[test]
fn both_ends_count_alike_if_only_one_hands_over_the_replays_of_a_graph() {
    let [sends, receives] = [marks(&sent(0, "Send", 3)), marks(&sent(1, "Recv", 1))];
    let [captured, eager] = receives[..] else { panic!("{receives:?}") };
    assert_eq!(sends, [captured, captured, captured, eager], "a run is told by its number");
    assert!(captured.is_some() && eager.is_some() && captured != eager);
}

#[test]
fn sends_after_a_lost_record_have_no_number() {
    let input = sent(0, "Send", 2)
        + "40 0 records-lost | 41 0 start z P2p parent=b func=Send peer=1 | 42 1 start w P2p parent=a func=Send peer=1";
    let said = marks(&input);
    assert!(said[..3].iter().all(Option::is_some));
    assert_eq!(said[3..], [None, None]);
}

#[test]
fn a_send_whose_call_is_not_known_ends_the_count_of_its_pair() {
    let more = "40 0 start u P2p parent=lost func=Send peer=1 | 41 0 start v P2p parent=b func=Send peer=1
                42 0 start w P2p parent=b func=Recv peer=1";
    let said = marks(&(sent(0, "Send", 0) + more));
    assert!(said[0].is_some() && said[3].is_some());
    assert_eq!(said[1..3], [None, None]);
}

/// The second call needs no proxy, so NCCL hands it over first and numbers it so. A callback of
/// CUDA hands over the others.
#[test]
fn what_nccl_hands_over_before_an_earlier_launch_has_no_other_s_mark() {
    let call = |n: u32, kind: &str| {
        format!(
            "{n}0 0 start g{n} GroupApi | {n}1 0 start a{n} {kind}Api parent=g{n} | {n}2 0 stop a{n}
             {n}3 0 start l{n} KernelLaunch parent=g{n} | {n}4 0 stop l{n} | {n}9 0 stop g{n}\n"
        )
    };
    let hand_over = |kind: &str, ring: u32, n: u32, seq: u32| {
        let at = 70 + seq;
        let what = if kind == "Coll" { format!("seq={seq}") } else { "func=Send peer=1".to_owned() };
        format!("{at} {ring} start o{n} {kind} parent=a{n} {what} | {at} {ring} stop o{n}\n")
    };
    let comm = "0 0 thread 100 python3 | 0 1 thread 200 callback | 0 0 comm C hash=7 rank=0 ranks=4 nodes=2\n";
    let captured = "1 0 start z GroupApi captured | 2 0 start y CollApi parent=z captured | 3 0 stop y | 4 0 stop z\n";
    for kind in ["Coll", "P2p"] {
        let calls: String = (1..=3).map(|n| call(n, kind)).collect();
        let play = |before: &str, order: [(u32, u32); 3]| {
            let all = (0..).zip(order).map(|(seq, (ring, n))| hand_over(kind, ring, n, seq));
            marks(&format!("{comm}{before}{calls}{}", all.collect::<String>()))
        };
        let [first, second, third] = play("", [(0, 1), (0, 2), (0, 3)])[..] else { panic!() };
        // It is not known to whom the earlier one sends.
        let early = if kind == "Coll" { second } else { None };
        assert_eq!(play(captured, [(0, 2), (1, 1), (1, 3)]), [early, first, third], "{kind}");
        // Without a graph, what was launched and is not handed over never will be.
        assert!(play("", [(0, 2), (0, 1), (0, 3)])[0].is_some(), "{kind}");
    }
}

#[test]
fn a_broadcast_that_is_not_handed_over_has_the_same_mark_on_all_ranks() {
    let marks = |rank: u32, version: u32, input: &str| {
        let cast = |name: char, hash: u32| {
            format!("0 0 comm {name} hash={hash} rank={rank} ranks=2 interface=7 version={version}")
        };
        let mut marks = Vec::new();
        Player::new().play(&format!("{} | {}\n{input}", cast('C', 7), cast('D', 8)), &mut |_, entry| {
            if let What::CallBegin { operation: Some(operation), comm, .. } = entry.what {
                marks.push(operation.correlation(comm));
            }
        });
        marks
    };
    let two = "1 0 start a CollApi func=Broadcast | 2 0 start b CollApi func=Broadcast in=D
               3 0 start c CollApi func=AllReduce | 4 0 start d CollApi func=Broadcast";
    let [a, b, c, d] = marks(0, 22_907, two)[..] else { panic!() };
    assert!(a.is_some() && b.is_some() && d.is_some());
    assert!(a != b && a != d && b != d);
    assert_eq!(c, None, "it is handed over, with a number of NCCL's");
    assert_eq!(marks(1, 22_907, two), [a, b, c, d]);
    assert_eq!(marks(1, 22_809, two), [None; 4], "up to 2.28 broadcasts are handed over");

    // What is captured is counted apart.
    let captured = "1 0 start a CollApi func=Broadcast captured | 2 0 start b CollApi func=Broadcast";
    let [of_graph, eager] = marks(0, 22_907, captured)[..] else { panic!() };
    assert_eq!(eager, a);
    assert!(of_graph.is_some() && of_graph != a && of_graph != d);
    let lost = marks(0, 22_907, &format!("{two} | 5 0 records-lost | 6 0 start e CollApi func=Broadcast"));
    assert_eq!(lost[4], None);
}

#[test]
fn a_collective_has_the_same_mark_on_all_ranks() {
    let rank = |rank: u32| {
        format!(
            "0 0 comm C hash=7 rank={rank} ranks=2 | 0 0 comm D hash=8 rank={rank} ranks=2
             1 0 start a Coll seq=1 | 2 0 start b Coll seq=2
             3 0 start c Coll seq=1 func=AllGather | 4 0 start d Coll seq=1 in=D"
        )
    };
    let said = |rank: u32| {
        format!(
            "0 comm C number 1 hash 7 rank {rank} of 2 name -
             0 comm D number 2 hash 8 rank {rank} of 2 name -
             1 thread 0 = 0 unknown
             1 operation a on 0 C AllReduce mark a [no parent]
             2 operation b on 0 C AllReduce mark b [no parent]
             3 operation c on 0 C AllGather mark c [no parent]
             4 operation d on 0 D AllReduce mark d [no parent]"
        )
    };
    check(&format!("{}\nprocess\n{}", rank(0), rank(1)), &format!("{}\n{}", said(0), said(1)));
}

#[test]
fn without_a_common_number_there_is_no_mark() {
    check(
        "0 0 thread 100 python3 | 0 0 comm C interface=2
         1 0 start a Coll parent=none | 2 0 start b Coll parent=none in=other | 3 0 start c P2p func=Send peer=1",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 0 rank -1 of -1 name -
         1 operation a on 0 C AllReduce [no parent]
         2 operation b on 0 AllReduce [no parent]
         3 operation c on 0 C Send number 0 [no parent]",
    );
}

// ---- communicators and texts ----

#[test]
fn up_to_v3_a_communicator_s_identity_comes_later() {
    check(
        "0 0 thread 100 python3 | 0 0 comm C interface=3
         1 0 text $1 dp
         2 0 identity C hash=7 name=$1
         3 0 start a Coll parent=none
         4 0 identity C hash=7 name=$1
         5 0 identity other hash=8 name=$1",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 0 rank -1 of -1 name -
         2 comm C number 1 hash 7 rank -1 of -1 name dp
         3 operation a on 0 C AllReduce mark a [no parent]",
    );
}

#[test]
fn recorded_texts_are_spelled_out() {
    check(
        "0 0 thread 100 python3 | 0 0 text $1 dp | 0 0 comm C hash=7 rank=0 ranks=1 name=$1
         1 0 text $2 AllShuffle | 1 0 text $3 ncclInt4
         2 0 start a Coll func=$2 type=$3 algorithm=$lost variant=$9
         3 0 start b CeColl sync=$2
         4 0 start c CollApi func=$2
         5 0 start k KernelPhase name=$3 phase=2
         6 0 start l KernelPhase
         7 0 comm D name=$lost
         8 0 start m Coll variant=$lost
         finish",
        "0 thread 0 = 100 python3
         0 comm C number 1 hash 7 rank 0 of 1 name dp
         2 operation a on 0 C AllShuffle,ncclInt4,(text lost),SIMPLE,- mark a [no parent]
         3 CeColl b on 0 C AllReduce,ncclFloat32,-,-,AllShuffle [no parent]
         4 CollApi c on 0 C AllShuffle,ncclFloat32,-,-,- [no parent]
         7 comm D number 2 hash 0 rank -1 of -1 name (text lost)
         8 operation m on 0 C AllReduce,ncclFloat32,RING,SIMPLE,(text lost) mark a [no parent]
         5 channel k C ch 0 phase 2 ncclInt4 gpu 0 no stamp [no parent]
         6 channel l C ch 0 phase 0 phase gpu 0 no stamp [no parent]",
    );
}

#[test]
fn the_end_of_a_communicator_that_never_began_is_counted() {
    check("1 0 finalize C | 2 0 finalize foreign.comm", "unknown_handles: 2");
}

#[test]
fn an_update_of_another_kind_of_event_is_counted() {
    check_with_cast(
        "1 0 start g GroupApi | 2 0 update g bytes=50 | 3 0 stop g",
        "1 GroupApi g on 0 C
         3 call g ends
         unknown_types: 1",
    );
}

#[test]
fn communicators_that_threads_make_side_by_side_have_their_own_names() {
    let mut correlator = Correlator::new(tag(), PID);
    let init = |n| {
        let context = Handle(tag().base() + n);
        Body::CommInit(CommInit { context, hash: n, name: Word::NAME, ..CommInit::default() })
    };
    let mut named = Vec::new();
    for (ring, body) in [
        (1, Body::Text { word: Word::NAME, text: b"lost, and its communicator too" }),
        (1, Body::Text { word: Word::NAME, text: b"dp" }),
        (2, Body::Text { word: Word::NAME, text: b"tp" }),
        (1, init(1)),
        (2, init(2)),
        // Without a text before it.
        (1, init(3)),
    ] {
        let record = Record { ticks: Ticks(1), body };
        correlator.push(RingId(ring), HostNs(1), &record, &mut |entry| {
            if let What::CommInit(comm) = entry.what {
                named.push((comm.hash, comm.name.as_deref().unwrap_or_default().to_owned()));
            }
        });
    }
    assert_eq!(named, [(1, "dp".to_owned()), (2, "tp".to_owned()), (3, String::new())]);
}

// ---- the GPU's channels ----

#[test]
fn kernel_channels_belong_to_an_operation_and_phases_do_not() {
    // Here nothing relates the GPU's timer to the host's clock.
    check_with_cast(
        "1 0 start ar Coll
         2 0 stop ar
         5 1 start k KernelCh parent=ar channel=3 gpu=1000
         6 1 start f KernelPhase parent=k channel=3 phase=1 gpu=1000
         7 1 state f KERNEL_PHASE_STOP argument=1100
         8 1 stop f
         9 1 state k KERNEL_CH_STOP argument=1200
        10 1 stop k
        11 1 start l KernelCh parent=lost channel=4
        12 1 stop l
        finish",
        "1 operation ar on 0 C AllReduce mark a [no parent]
         2 operation ar ends
         6 channel f C ch 3 phase 1 phase gpu 1000 no clock
         8 channel f ends gpu 1100
         5 channel k C ch 3 gpu 1000 no clock of AllReduce
        10 channel k ends gpu 1200
        11 channel l C ch 4 gpu 0 no stamp [parent unknown]
        12 channel l ends gpu 0
         unknown_parents: 1",
    );
}

// ---- threads and time ----

#[test]
fn a_ring_passes_from_one_thread_to_the_next() {
    //  ring 0   |--- thread 100 ---|   |--- thread 101 ---|
    //            1 a               5    6 b
    check(
        "0 0 thread 100 first | 1 0 start a GroupApi | 5 0 ends | 6 0 thread 101 second | 7 0 start b GroupApi
         8 0 stop a",
        "0 thread 0 = 100 first
         1 GroupApi a on 0
         5 thread 0 ends
         6 thread 1 = 101 second
         7 GroupApi b on 1
         8 call a ends",
    );
}

#[test]
fn a_thread_with_a_lost_record_is_unknown_rather_than_its_predecessor() {
    check(
        "1 3 start a GroupApi | 2 3 start b GroupApi | 5 3 ends | 6 3 start c GroupApi",
        "1 thread 0 = 0 unknown
         1 GroupApi a on 0
         2 GroupApi b on 0
         5 thread 0 ends
         6 thread 1 = 0 unknown
         6 GroupApi c on 1",
    );
}

#[test]
fn a_late_record_is_counted_and_keeps_its_time() {
    check_with_cast(
        "10 0 start a GroupApi | 5 1 start b GroupApi | 10 0 stop a",
        "10 GroupApi a on 0 C
         5 GroupApi b on 1 C
         10 call a ends
         late: 1",
    );
}

// ---- what a newer NCCL may send ----

#[test]
fn unknown_types_and_states_are_counted_and_change_nothing() {
    check_with_cast(
        "1 0 start u Unknown bits=65536
         2 0 state u 40
         3 0 stop u
         4 0 start g GroupApi
         5 0 state g 40
         6 0 state g PROXY_STEP_SEND_WAIT argument=1
         7 0 state g PROXY_CTRL_IDLE
         8 0 state g KERNEL_CH_STOP argument=1
         9 0 stop g",
        "1 unknown 0x10000 on 0
         4 GroupApi g on 0 C
         9 call g ends
         unknown_types: 6",
    );
}
