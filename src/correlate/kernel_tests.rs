//! Kernels and the operations they carried: scenarios in the words of [`super::tests`].
//!
//! Only what is said about kernels is compared: the last line of `said` for each of them.

use std::collections::HashSet;
use std::sync::Arc;

use super::tests::{PID, Player, tag};
use super::*;
use crate::model::timeline::Owner;

/// Compares what is said about the kernels of a scenario with what is expected, one line each.
#[track_caller]
pub(super) fn check(input: &str, expected: &str) {
    let mut player = Player::new();
    let mut said = Vec::new();
    let cast = "0 0 thread 100 python3 | 0 1 thread 200 callback | 0 0 comm C hash=7 rank=0 ranks=2 interface=7 \
                | 0 0 comm D hash=8 rank=0 ranks=2 interface=7";
    player.play(&format!("{cast}\n{input}"), &mut |labels, entry| {
        if let What::Kernel { .. } | What::Unfinished { .. } | What::Untimed { .. } | What::Copy { .. } = entry.what {
            said.push(format!("{} {}", entry.time.0, super::tests::describe(labels, &mut Vec::new(), &entry.what)));
        }
    });
    let expected: Vec<_> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(said, expected, "\n-- said --\n{}\n", said.join("\n"));
}

/// An operation with a group and a kernel of its own, on communicator C, from `at` on. Its labels
/// and numbers end in `tag`.
fn eager(at: u64, tag: &str, corr: u32, count: u32) -> String {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = std::array::from_fn(|step| at + step as u64);
    format!(
        "{t0} 0 start g{tag} GroupApi | {t0} 0 start api{tag} CollApi parent=g{tag} count={count} | {t1} 0 stop api{tag}
         {t2} 0 start l{tag} KernelLaunch parent=g{tag} | {t2} 0 launch corr={corr} in=l{tag} group=g{tag} | {t3} 0 stop l{tag}
         {t4} 0 start p{tag} Group | {t4} 0 start c{tag} Coll parent=api{tag} group=p{tag} count={count} | {t5} 0 stop c{tag}
         {t6} 0 stop p{tag} | {t7} 0 stop g{tag}\n"
    )
}

#[test]
fn overlapping_launches_keep_their_own_kernels() {
    //  host  |-- A --|  |-- B --|
    //  gpu        |==== a ====|     |== b ==|
    let input = eager(0, "A", 1, 100) + &eager(13, "B", 2, 200) + "18 0 kernel 6 corr=1\n 40 0 kernel 30 corr=2";
    check(
        &input,
        "6 kernel to 18 exact (launch bracket) C by lA: AllReduce 100
         30 kernel to 40 exact (launch bracket) C by lB: AllReduce 200",
    );
}

#[test]
fn an_operation_waits_for_a_proxy_that_begins_after_its_kernel() {
    //  kernel             |10 ------------------------- 60|
    //  proxy, in time  5 6
    let with = |proxy: &str| eager(0, "A", 1, 100) + proxy + "\n 60 0 kernel 10 corr=1";
    let said = |more: &str| format!("10 kernel to 60 exact (launch bracket) C by lA: AllReduce 100{more}");
    let op = |name: &str, taken: u64, begun: u64| {
        format!("{taken} 1 start {name} ProxyOp parent=cA peer=1 | {begun} 1 state {name} PROXY_OP_IN_PROGRESS")
    };
    check(&with(&op("a", 5, 6)), &said(""));
    // It had been taken in; it had not; the last one counts.
    check(&with(&op("a", 5, 30)), &said(" with the proxy at 30 Some(Busy)"));
    check(&with(&op("a", 20, 30)), &said(" with the proxy at 30 Some(Append)"));
    let two = "5 1 start a ProxyOp parent=cA peer=1 | 6 1 start b ProxyOp parent=cA peer=1 channel=1
               7 1 state a PROXY_OP_IN_PROGRESS | 40 1 state b PROXY_OP_IN_PROGRESS";
    check(&with(two), &said(" with the proxy at 40 Some(Busy)"));
    // The thread slept when the kernel began, or had slept before.
    let sleep = |from: u64, to: u64| {
        format!(
            "{from} 1 start s ProxyCtrl | {from} 1 state s PROXY_CTRL_SLEEP | {to} 1 state s PROXY_CTRL_WAKEUP | {to} 1 stop s\n"
        )
    };
    check(&with(&(sleep(8, 20) + &op("a", 21, 30))), &said(" with the proxy at 30 Some(Asleep)"));
    check(&with(&(sleep(8, 9) + &op("a", 21, 30))), &said(" with the proxy at 30 Some(Append)"));
    // Work that begins after the kernel's end was not what the kernel waited for.
    check(&(with("") + "\n" + &op("a", 70, 71)), &said(""));
    // Another operation's proxy says nothing.
    check(&with("20 1 start a ProxyOp parent=other peer=1 | 30 1 state a PROXY_OP_IN_PROGRESS"), &said(""));
}

/// In CUPTI before 13.4 Update 1 a kernel may have another one's name after a module was unloaded
/// (`crate::releases`).
#[test]
fn a_kernel_with_a_wrong_name_still_belongs_to_its_launch() {
    let [known, clone] = [(1_u64 << 32) + 5, (2 << 32) + 5];
    let input = eager(0, "A", 1, 100)
        + &format!(
            "20 0 kernel 10 corr=1 name=triton_poi_fused
             30 0 start g GroupApi | 30 0 start a CollApi parent=g captured count=9 | 31 0 stop a
             32 0 start l KernelLaunch parent=g | 32 0 node {known} in=l | 33 0 stop l | 34 0 stop g
             35 0 start p Group | 35 0 start c Coll parent=a group=p count=9 | 36 0 stop c | 36 0 stop p
             37 0 clone {clone} of={known} | 38 0 graph 1 corr=9
             60 0 kernel 50 corr=9 node={clone} name=triton_poi_fused"
        );
    check(
        &input,
        "10 kernel to 20 exact (launch bracket) C by lA: AllReduce 100
         50 kernel to 60 exact (graph node) C by l replay 1: AllReduce 9",
    );
}

#[test]
fn an_unfinished_kernel_is_reported_with_its_operations() {
    let graph = "100 0 start g GroupApi | 100 0 start a CollApi parent=g captured count=9 | 101 0 stop a
                 102 0 start l KernelLaunch parent=g | 102 0 node 70 in=l | 103 0 stop l
                 103 0 start p Group | 103 0 start c Coll parent=a group=p count=9 | 103 0 stop c | 103 0 stop p | 103 0 stop g
                 104 0 clone 71 of=70 | 104 0 graph 9 | 110 0 graph 9 corr=3 | 120 0 graph 9 corr=4";
    let input = eager(0, "A", 1, 100) + &eager(13, "B", 2, 200) + graph;
    let input = input
        + "\n 118 0 kernel 113 corr=3 node=71 | 200 0 unfinished corr=2 | 200 0 unfinished corr=4 node=71 | 200 0 unfinished corr=99";
    check(
        &input,
        "113 kernel to 118 exact (graph node) C by l replay 1: AllReduce 9
         120 kernel 2 had not ended: [\"cB\"], run None
         120 kernel 4 had not ended: [\"c\"], run Some((2, HostNs(120)))
         120 kernel 99 had not ended: [], run None",
    );
}

#[test]
fn launches_without_a_kernel_are_known() {
    let player = &mut Player::new();
    let unseen = |player: &mut Player, input: &str| {
        player.play(input, &mut |_, _| {});
        player.correlator.unseen_launches().map(|(first, last)| (first.0, last.0))
    };
    let cast = "0 0 thread 100 python3 | 0 0 comm C hash=7 rank=0 ranks=2 interface=7";
    assert_eq!(unseen(player, &format!("{cast} | 5 0 graph 9 corr=1")), None, "nothing of NCCL's is captured");
    // Kernels are only waited for if some are expected.
    player.correlator.expect_kernels();
    let captured = "10 0 start g GroupApi | 10 0 start a CollApi parent=g captured count=9 | 11 0 stop a
                    12 0 start l KernelLaunch parent=g | 12 0 node 70 in=l | 13 0 stop l | 13 0 stop g | 14 0 clone 71 of=70 | 14 0 graph 9";
    assert_eq!(unseen(player, captured), None);
    assert_eq!(unseen(player, "20 0 graph 9 corr=2 | 30 0 graph 9 corr=3 | 40 0 graph 9 corr=4"), Some((20, 40)));
    assert_eq!(
        unseen(player, "50 0 kernel 45 corr=3 node=71"),
        Some((40, 40)),
        "a later launch runs after an earlier one"
    );
    assert_eq!(unseen(player, "60 0 unfinished corr=4 node=71"), Some((40, 40)), "it has not ended");
    player.correlator.all_seen(HostNs(40));
    assert_eq!(player.correlator.unseen_launches(), None, "nothing more will come of it");
    // A kernel of the application's does not show that NCCL's has run, too.
    assert_eq!(
        unseen(player, "62 0 graph 9 corr=5 | 64 0 kernel 63 corr=5 node=72 name=triton_poi_fused"),
        Some((62, 62))
    );
    assert_eq!(unseen(player, "66 0 kernel 65 corr=5 node=71"), None);
    // From 2.29 on a broadcast is not handed over: only its call shows it.
    assert_eq!(unseen(player, "70 0 start h GroupApi | 70 0 launch corr=8 group=h | 71 0 stop h"), Some((70, 70)));
    assert_eq!(unseen(player, "80 0 kernel 75 corr=8"), None);
}

#[test]
fn work_that_nccl_reported_as_ended_is_done() {
    let mut player = Player::new();
    player.play(&(cast_of_one() + &eager(0, "A", 1, 100)), &mut |_, _| {});
    let coll = player.labels.handle("cA");
    let mut done = |input: &str| {
        player.play(input, &mut |_, _| {});
        player.correlator.work_done(coll).map(|time| time.0)
    };
    assert_eq!(done(""), None, "nothing is known of it");
    assert_eq!(done("10 1 start x ProxyOp parent=cA | 11 1 start y ProxyOp parent=cA receive"), None);
    assert_eq!(done("20 1 stop x"), None, "a half of it");
    assert_eq!(done("30 1 stop y"), Some(30));
    assert_eq!(done("40 1 start z ProxyOp parent=cA"), None, "there was more");
}

fn cast_of_one() -> String {
    "0 0 thread 100 python3 | 0 1 thread 200 proxy | 0 0 comm C hash=7 rank=0 ranks=2 interface=7\n".to_owned()
}

#[test]
fn one_kernel_carries_many_operations() {
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         1 0 start b P2pApi parent=g count=2 | 2 0 stop b
         3 0 start l KernelLaunch parent=g | 3 0 launch corr=5 in=l group=g | 4 0 stop l
         4 0 start p Group | 4 0 start x Coll parent=a group=p count=1 | 4 0 start y P2p parent=b group=p func=Send count=2
         5 0 stop x | 5 0 stop y | 5 0 stop p | 6 0 stop g
         20 0 kernel 8 corr=5",
        "8 kernel to 20 exact (launch bracket) C by l: AllReduce 1 + Send 2",
    );
}

#[test]
fn two_communicators_of_one_group_take_turns() {
    //  host  [launch C][Group C][launch D][Group D]
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         1 0 start b CollApi in=D parent=g count=2 | 2 0 stop b
         3 0 start l KernelLaunch parent=g | 3 0 launch corr=5 in=l group=g | 4 0 stop l
         4 0 start p Group | 4 0 start x Coll parent=a group=p count=1 | 4 0 stop x | 4 0 stop p
         5 0 start m KernelLaunch in=D parent=g | 5 0 launch corr=6 in=m group=g | 6 0 stop m
         6 0 start q Group in=D | 6 0 start y Coll in=D parent=b group=q count=2 | 6 0 stop y | 6 0 stop q
         7 0 stop g
         20 0 kernel 8 corr=6 | 21 0 kernel 8 corr=5",
        "8 kernel to 20 exact (launch bracket) D by m: AllReduce 2
         8 kernel to 21 exact (launch bracket) C by l: AllReduce 1",
    );
}

#[test]
fn launches_of_different_threads_may_overtake_each_other() {
    // Of a non-blocking communicator, NCCL's threads launch. The one that took its id first entered
    // the stream last.
    let launched = |ring: u32, [at, begin]: [u64; 2], corr: u32| {
        format!(
            "{at} 0 start g{at} GroupApi | {at} 0 start a{at} CollApi parent=g{at} count={corr} | {at} 0 stop a{at} | {at} 0 stop g{at}
             {at} {ring} start l{at} KernelLaunch parent=g{at} | {at} {ring} launch corr={corr} in=l{at} group=g{at} | {at} {ring} stop l{at}
             {at} {ring} start p{at} Group | {at} {ring} start c{at} Coll parent=a{at} group=p{at} count={corr} | {at} {ring} stop c{at}
             {at} {ring} stop p{at} | {} 0 kernel {begin} corr={corr}\n",
            begin + 1_000
        )
    };
    let both = |ring| launched(1, [10, 200_000], 5) + &launched(ring, [20, 100_000], 6);
    let said = |how| {
        format!("200000 kernel to 201000 {how} by l10: AllReduce 5\n100000 kernel to 101000 {how} by l20: AllReduce 6")
    };
    check(&both(0), &said("exact (launch bracket) C"));
    check(
        &both(1),
        &said("exact (launch bracket) C").replace(
            "100000 kernel to 101000 exact (launch bracket) C by l20",
            "100000 kernel to 101000 contradicted C",
        ),
    );
}

#[test]
fn copies_belong_to_the_collective_that_queued_them() {
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         1 0 start b CollApi parent=g count=2 | 2 0 stop b
         3 0 start c CeColl parent=a count=1 | 3 0 launch corr=5 in=c group=g | 4 0 node 70 in=c | 4 0 stop c
         5 0 launch corr=6 group=g | 6 0 stop g
         7 0 clone 71 of=70
         20 0 copy 8 corr=5 | 22 0 copy 20 corr=5 | 23 0 copy 22 corr=7 | 24 0 copy 23 corr=9 node=71
         30 0 kernel 25 corr=6",
        "8 copy to 20 exact (launch bracket) C: AllReduce 1
         20 copy to 22 exact (launch bracket) C: AllReduce 1
         22 copy to 23
         23 copy to 24 exact (graph node) C: AllReduce 1
         25 kernel to 30 inferred (call bracket) C: AllReduce 2",
    );
}

/// A captured call. Its launch is node 71 of graph 9.
const CAPTURED: &str = "
    0 0 start g GroupApi | 0 0 start a CollApi parent=g captured count=1 | 1 0 stop a
    2 0 start l KernelLaunch parent=g | 2 0 node 70 in=l | 3 0 stop l | 3 0 stop g
    4 0 clone 71 of=70 | 4 0 graph 9\n";

/// A replay of that graph, by its number: the launch and what NCCL hands over.
fn replay(n: u64) -> String {
    format!(
        "{n}0 0 graph 9 corr={n}
         {n}0 1 start p{n} Group | {n}0 1 start c{n} Coll parent=a group=p{n} count={n}
         {n}0 1 stop c{n} | {n}0 1 stop p{n}\n"
    )
}

#[test]
fn replays_are_told_apart_in_any_order_of_their_kernels() {
    // Four replays of one graph. The second one's kernel is lost, and the fourth one's arrives
    // before the third's.
    let input = CAPTURED.to_owned()
        + &(1..=4).map(replay).collect::<String>()
        + "100 0 kernel 15 corr=1 node=71 | 140 0 kernel 45 corr=4 node=71 | 130 0 kernel 35 corr=3 node=71";
    check(
        &input,
        "15 kernel to 100 exact (graph node) C by l replay 1: AllReduce 1
         45 kernel to 140 exact (graph node) C by l replay 4: AllReduce 4
         35 kernel to 130 exact (graph node) C by l replay 3: AllReduce 3",
    );
}

#[test]
fn kernels_have_the_ranges_around_their_calls() {
    // Three operations: in the step, in a nested range, and after both. Their kernels run when all
    // ranges have ended.
    let calls = eager(10, "A", 1, 100) + &eager(30, "B", 2, 200) + &eager(60, "C", 3, 300);
    let ranges = "5 0 push 1 ProfilerStep#17 | 25 0 push 2 forward | 26 0 push 3 elsewhere tid=200 | 29 0 push 4 ncclAllReduce domain=NCCL
                  38 0 pop 4 domain=NCCL | 45 0 pop 2 | 50 0 pop 1 | 55 0 pop 3 tid=200";
    let kernels = "80 0 kernel 70 corr=1 | 90 0 kernel 80 corr=2 | 99 0 kernel 90 corr=3";
    check(
        &format!("{calls}{ranges}\n{kernels}"),
        "70 kernel to 80 exact (launch bracket) C by lA: AllReduce 100 in ProfilerStep#17 of step 17
         80 kernel to 90 exact (launch bracket) C by lB: AllReduce 200 in forward of step 17
         90 kernel to 99 exact (launch bracket) C by lC: AllReduce 300",
    );
}

#[test]
fn operations_of_one_kernel_have_their_own_ranges() {
    check(
        "0 0 start g GroupApi | 1 0 start a CollApi parent=g count=1 | 2 0 stop a
         3 0 start b CollApi parent=g count=2 | 4 0 stop b
         5 1 start l KernelLaunch parent=g | 5 1 launch corr=5 in=l group=g | 6 1 stop l
         7 1 start p Group | 7 1 start x Coll parent=a group=p count=1 | 7 1 start y Coll parent=b group=p count=2
         8 1 stop x | 8 1 stop y | 8 1 stop p | 9 0 stop g
         0 0 push 1 one | 2 0 pop 1 | 2 0 push 2 two | 4 0 pop 2
         20 0 kernel 10 corr=5",
        "10 kernel to 20 exact (launch bracket) C by l: AllReduce 1 in one + AllReduce 2 in two",
    );
}

#[test]
fn kernels_of_a_graph_have_the_ranges_around_its_launch() {
    let ranged = |n: u64| replay(n) + &format!("{n}0 0 push {n} step{n} | {n}1 0 pop {n}\n");
    let input = CAPTURED.to_owned()
        + "0 0 push 1 capture | 5 0 pop 1\n"
        + &(1..=2).map(ranged).collect::<String>()
        + "100 0 kernel 15 corr=1 node=71 | 130 0 kernel 35 corr=2 node=71";
    check(
        &input,
        "15 kernel to 100 exact (graph node) C by l replay 1: AllReduce 1 in step1 of step 1
         35 kernel to 130 exact (graph node) C by l replay 2: AllReduce 2 in step2 of step 2",
    );
}

#[test]
fn a_thread_without_steps_takes_the_step_of_the_others() {
    // The calls come from thread 100, which marks only its operators. Thread 200 marks the steps,
    // and later thread 300 does too.
    let calls = eager(10, "A", 1, 100) + &eager(30, "B", 2, 200) + &eager(50, "C", 3, 300) + &eager(70, "D", 4, 400);
    let ranges = "1 0 push 1 step#1 tid=200 | 9 0 push 2 allreduce_hook | 19 0 pop 2 | 20 0 pop 1 tid=200
                  21 0 push 3 step#2 tid=200 | 45 0 push 4 step#9 tid=300 | 60 0 pop 4 tid=300 | 61 0 pop 3 tid=200
                  62 0 push 5 iteration#3 tid=0 | 63 0 push 6 loading tid=0 | 64 0 pop 5 tid=0 | 65 0 push 7 iteration#4 tid=0";
    let kernels = "80 0 kernel 71 corr=1 | 90 0 kernel 80 corr=2 | 99 0 kernel 90 corr=3 | 110 0 kernel 99 corr=4";
    check(
        &format!("{calls}{ranges}\n{kernels}"),
        "71 kernel to 80 exact (launch bracket) C by lA: AllReduce 100 in allreduce_hook of step 1
         80 kernel to 90 exact (launch bracket) C by lB: AllReduce 200 of step 2
         90 kernel to 99 exact (launch bracket) C by lC: AllReduce 300
         99 kernel to 110 exact (launch bracket) C by lD: AllReduce 400 of step 4",
    );
}

#[test]
fn ranges_whose_end_was_lost_do_not_stay_open() {
    let calls = eager(10, "A", 1, 100) + &eager(30, "B", 2, 200) + &eager(50, "C", 3, 300);
    // The end of `inner` is missing, which the end of the outer range shows. After CUPTI says that
    // it lost records, nothing is known until the next begin.
    let ranges = "5 0 push 1 outer | 6 0 push 2 inner | 20 0 pop 1 | 40 0 push 3 other | 45 0 lost";
    let kernels = "80 0 kernel 70 corr=1 | 90 0 kernel 80 corr=2 | 99 0 kernel 90 corr=3";
    check(
        &format!("{calls}{ranges}\n{kernels}"),
        "70 kernel to 80 exact (launch bracket) C by lA: AllReduce 100 in inner
         80 kernel to 90 exact (launch bracket) C by lB: AllReduce 200
         90 kernel to 99 exact (launch bracket) C by lC: AllReduce 300",
    );
}

#[test]
fn a_call_bracket_gives_each_gpu_its_own_communicator_s_calls() {
    // One thread, two GPUs, one group: NCCL launches a kernel on each, and reports neither.
    check(
        "0 0 comm E hash=9 rank=0 ranks=2 interface=7 device=1 | 0 0 comm F hash=9 rank=1 ranks=2 interface=7 device=2
         1 0 start g GroupApi
         1 0 start a CollApi in=E parent=g count=1 | 1 0 stop a | 1 0 start b CollApi in=F parent=g count=2 | 2 0 stop b
         3 0 launch corr=5 group=g | 4 0 launch corr=6 group=g | 5 0 stop g
         20 0 kernel 8 corr=6 device=1 | 22 0 kernel 9 corr=5 device=0",
        "8 kernel to 20 inferred (call bracket) F: AllReduce 2
         9 kernel to 22 inferred (call bracket) E: AllReduce 1",
    );
}

#[test]
fn several_kernels_of_a_group_take_their_own_calls() {
    // For symmetric memory NCCL launches one for each function and datatype, and reports neither.
    let group = "1 0 start g GroupApi | 1 0 start a CollApi parent=g func=AllGather count=1 | 1 0 stop a
                 1 0 start b CollApi parent=g count=2 type=ncclFloat32 | 1 0 stop b
                 2 0 start c CollApi parent=g func=AllGather count=3 | 2 0 stop c
                 3 0 launch corr=5 group=g | 4 0 launch corr=6 group=g\n";
    let [gather, reduce] = ["AllGather_LL", "AllReduce_AGxLL_R_sum_f32"].map(|of| format!("ncclSymkDevKernel_{of}"));
    let kernels = format!("20 0 kernel 8 corr=5 name={gather} | 30 0 kernel 21 corr=6 name={reduce}");
    check(
        &format!("{group}5 0 stop g\n{kernels}"),
        "8 kernel to 20 inferred (call bracket) C: AllGather 1 + AllGather 3
         21 kernel to 30 inferred (call bracket) C: AllReduce 2",
    );
    // Of two datatypes, the name does not say whose kernel it is.
    let third =
        "4 0 start d CollApi parent=g count=4 type=ncclFloat16 | 4 0 stop d | 4 0 launch corr=7 group=g | 5 0 stop g";
    let unmatched = "unmatched: which of its group's calls it carried cannot be told";
    check(
        &format!("{group}{third}\n{kernels} | 40 0 kernel 31 corr=7 name={reduce}"),
        &format!(
            "8 kernel to 20 inferred (call bracket) C: AllGather 1 + AllGather 3
             21 kernel to 30 {unmatched}
             31 kernel to 40 {unmatched}"
        ),
    );
}

#[test]
fn a_kernel_may_carry_unreported_broadcasts() {
    check(
        "0 0 comm E hash=9 rank=0 ranks=2 interface=7 version=23007
         1 0 start g GroupApi | 1 0 start a CollApi in=E parent=g count=1 | 1 0 stop a
         1 0 start b CollApi in=E parent=g func=Broadcast count=2 | 2 0 stop b
         3 0 start l KernelLaunch in=E parent=g | 3 0 launch corr=5 in=l group=g | 4 0 stop l
         4 0 start p Group in=E | 4 0 start x Coll in=E parent=a group=p count=1 | 5 0 stop x | 5 0 stop p | 6 0 stop g
         20 0 kernel 8 corr=5",
        "8 kernel to 20 exact (launch bracket) E by l: AllReduce 1 and perhaps 1 untold",
    );
}

#[test]
fn a_plan_that_goes_through_the_host_stream_finds_its_launch() {
    //  user      [launch l]  [next call ...
    //  callback                   [Group p: Coll]
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         2 0 start l KernelLaunch parent=g | 2 0 launch corr=5 in=l group=g | 3 0 stop l | 3 0 stop g
         4 0 start h GroupApi | 4 0 start b CollApi parent=h count=2 | 5 0 stop b
         6 0 start m KernelLaunch parent=h | 6 0 launch corr=6 in=m group=h | 7 0 stop m | 7 0 stop h
         8 0 start other GroupApi | 8 0 stop other
         9 1 start p Group | 9 1 start x Coll parent=a group=p count=1 | 9 1 stop x | 9 1 stop p
         10 1 start q Group | 10 1 start y Coll parent=b group=q count=2 | 10 1 stop y | 10 1 stop q
         20 0 kernel 11 corr=5 | 30 0 kernel 21 corr=6",
        "11 kernel to 20 exact (launch bracket) C by l: AllReduce 1
         21 kernel to 30 exact (launch bracket) C by m: AllReduce 2",
    );
}

#[test]
fn a_plan_may_come_through_the_host_stream_before_its_launch() {
    // NCCL enqueues the host function first. On a busy machine it may run before the launching
    // thread continues.
    //  user      [calls .................] [launch l] [launch m]
    //  callback         [Group p] [Group q]
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         1 0 start h GroupApi | 1 0 start b CollApi parent=h count=2 | 2 0 stop b
         3 1 start p Group | 3 1 start x Coll parent=a group=p count=1 | 3 1 stop x | 3 1 stop p
         4 1 start q Group | 4 1 start y Coll parent=b group=q count=2 | 4 1 stop y | 4 1 stop q
         5 0 start l KernelLaunch parent=g | 5 0 launch corr=5 in=l group=g | 6 0 stop l | 6 0 stop g
         7 0 start m KernelLaunch parent=h | 7 0 launch corr=6 in=m group=h | 8 0 stop m | 8 0 stop h
         20 0 kernel 11 corr=5 | 30 0 kernel 21 corr=6",
        "11 kernel to 20 exact (launch bracket) C by l: AllReduce 1
         21 kernel to 30 exact (launch bracket) C by m: AllReduce 2",
    );
}

/// Two launches of one GroupApi. The first one's plan was lost, wherever it would have been.
#[test]
fn a_plan_lost_on_its_way_through_the_host_stream_does_not_move_the_next_one_to_its_launch() {
    let calls = "1 0 start g GroupApi | 1 0 start a CollApi parent=g count=1 | 1 0 stop a
                 1 0 start b CollApi parent=g count=2 | 2 0 stop b\n";
    let launch = |at: u64, corr: u32| {
        format!(
            "{at} 0 start l{corr} KernelLaunch parent=g | {at} 0 launch corr={corr} in=l{corr} group=g | {at} 0 stop l{corr}\n"
        )
    };
    let lost = "9 0 records-lost\n";
    let plan = "10 1 start q Group | 10 1 start y Coll parent=b group=q count=2 | 10 1 stop y | 10 1 stop q\n";
    let kernels = "11 0 stop g | 20 0 kernel 12 corr=5 | 30 0 kernel 21 corr=6";
    let behind = launch(3, 5) + &launch(4, 6) + lost + plan;
    let between = launch(3, 5) + lost + plan + &launch(10, 6);
    let before = lost.to_owned() + plan + &launch(10, 5) + &launch(10, 6);
    for launches in [behind, between, before] {
        check(
            &(calls.to_owned() + &launches + kernels),
            "12 kernel to 20 unmatched: NCCL handed over no operation for its launch
             21 kernel to 30 unmatched: NCCL handed over no operation for its launch",
        );
    }
}

/// Of a group with two calls: the launch, and its plan without what was lost.
fn lossy(lost: &str, plan: &str) -> String {
    format!(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         1 0 start b CollApi parent=g count=2 | 2 0 stop b
         3 0 start l KernelLaunch parent=g | 3 0 launch corr=5 in=l group=g | 4 0 stop l
         {lost}
         5 0 start p Group | {plan} | 6 0 stop p | 7 0 stop g
         20 0 kernel 8 corr=5\n"
    )
}

#[test]
fn a_plan_is_not_exact_where_records_were_lost() {
    let [first, second] = [
        "5 0 start x Coll parent=a group=p count=1 | 5 0 stop x",
        "5 0 start y Coll parent=b group=p count=2 | 5 0 stop y",
    ];
    // That is known before the records of that time are taken.
    let both = format!("{first} | {second}");
    for at in [3, 5, 9] {
        let lost = format!("{at} 0 records-lost");
        check(&lossy(&lost, second), "8 kernel to 20 inferred (thread order) C by l: AllReduce 2");
        check(&lossy(&lost, &both), "8 kernel to 20 inferred (thread order) C by l: AllReduce 1 + AllReduce 2");
        check(&lossy(&lost, ""), "8 kernel to 20 unmatched: NCCL handed over no operation for its launch");
    }
    check(&lossy("", &both), "8 kernel to 20 exact (launch bracket) C by l: AllReduce 1 + AllReduce 2");
    check(&lossy("2 0 records-lost", &both), "8 kernel to 20 exact (launch bracket) C by l: AllReduce 1 + AllReduce 2");
    // Through the host stream, with a loss after the first operation.
    check(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
         3 0 start l KernelLaunch parent=g | 3 0 launch corr=5 in=l group=g | 4 0 stop l | 4 0 stop g
         5 0 start other GroupApi | 6 1 start p Group | 6 1 start x Coll parent=a group=p count=1 | 6 1 stop x
         9 0 records-lost | 8 1 stop p
         20 0 kernel 10 corr=5",
        "10 kernel to 20 inferred (thread order) C by l: AllReduce 1",
    );
}

#[test]
fn a_launch_whose_plan_was_lost_does_not_take_the_next_plan_of_its_thread() {
    // Lost: the first launch's Group, the second call, and the start of its KernelLaunch.
    let input = "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
                 2 0 start l KernelLaunch parent=g | 2 0 launch corr=5 in=l group=g | 3 0 stop l
                 9 0 records-lost
                 6 0 launch corr=6 in=m group=h | 6 0 stop m
                 7 0 start q Group | 7 0 start y Coll parent=b group=q count=2 | 8 0 stop y | 8 0 stop q
                 20 0 kernel 10 corr=5 | 30 0 kernel 21 corr=6";
    check(
        input,
        "10 kernel to 20 unmatched: NCCL handed over no operation for its launch
         21 kernel to 30 unmatched: its launch was too long ago",
    );
}

#[test]
fn a_plan_that_came_before_a_loss_may_not_be_that_of_the_next_launch() {
    // Both calls' plans come first; then the first one's launch is lost.
    let input = "0 0 start g GroupApi | 0 0 start a CollApi parent=g count=1 | 1 0 stop a
                 1 0 start b CollApi parent=g count=2 | 2 0 stop b
                 3 1 start p Group | 3 1 start x Coll parent=a group=p count=1 | 3 1 stop x | 3 1 stop p
                 4 1 start q Group | 4 1 start y Coll parent=b group=q count=2 | 4 1 stop y | 4 1 stop q
                 6 0 records-lost
                 7 0 start m KernelLaunch parent=g | 7 0 launch corr=6 in=m group=g | 8 0 stop m | 8 0 stop g
                 30 0 kernel 21 corr=6";
    check(input, "21 kernel to 30 unmatched: NCCL handed over no operation for its launch");
}

#[test]
fn thousands_of_plans_through_the_host_stream_do_not_make_a_captured_launch_forgotten() {
    let mut input = CAPTURED.to_owned();
    for n in 0..9_000 {
        input += &format!(
            "5 0 start g{n} GroupApi | 5 0 start a{n} CollApi parent=g{n} | 5 0 stop a{n}
             5 0 start l{n} KernelLaunch parent=g{n} | 5 0 stop l{n} | 5 0 stop g{n} | 5 0 start n{n} GroupApi | 5 0 stop n{n}
             5 1 start p{n} Group | 5 1 start x{n} Coll parent=a{n} group=p{n} | 5 1 stop x{n} | 5 1 stop p{n}\n"
        );
    }
    let input = input + &replay(1).replace("p1", "first").replace("c1", "of_it") + "100 0 kernel 15 corr=1 node=71";
    check(&input, "15 kernel to 100 exact (graph node) C by l replay 1: AllReduce 1");
}

#[test]
fn a_broadcast_without_a_launch_event_is_found_by_its_call() {
    check(
        "0 0 start g GroupApi | 0 0 start b CollApi parent=g func=Broadcast count=9 | 1 0 stop b
         2 0 launch corr=4 group=g | 3 0 stop g
         20 0 kernel 8 corr=4",
        "8 kernel to 20 inferred (call bracket) C: Broadcast 9",
    );
}

#[test]
fn the_kernels_of_a_captured_broadcast_are_found_by_its_call() {
    let captured = |calls: &str| {
        format!(
            "100 0 start g GroupApi | {calls} | 102 0 launch corr=7 group=g | 102 0 node 70 in=g | 103 0 stop g
             104 0 clone 71 of=70 | 104 0 graph 9 | 110 0 graph 9 corr=3 | 120 0 graph 9 corr=4
             118 0 kernel 113 corr=3 node=71 | 130 0 kernel 125 corr=4 node=71"
        )
    };
    let broadcast = "100 0 start b CollApi parent=g func=Broadcast captured count=9 | 101 0 stop b";
    check(
        &captured(broadcast),
        "113 kernel to 118 inferred (call bracket) C replay 1: Broadcast 9
         125 kernel to 130 inferred (call bracket) C replay 2: Broadcast 9",
    );
    // Its group may ask for something else, too.
    let other =
        format!("{broadcast} | 101 0 start d CollApi in=D parent=g func=Broadcast captured count=8 | 102 0 stop d");
    check(
        &captured(&other),
        "113 kernel to 118 unmatched: which of its group's calls it carried cannot be told
         125 kernel to 130 unmatched: which of its group's calls it carried cannot be told",
    );
    // The captured call itself ran nothing.
    let mut player = Player::new();
    player.correlator.expect_kernels();
    player.play(&format!("0 0 thread 100 python3 | {}", captured(broadcast)), &mut |_, _| {});
    assert_eq!(player.correlator.unseen_launches(), None);
}

#[test]
fn old_interfaces_use_the_order_on_the_thread() {
    let mut player = Player::new();
    let mut said = Vec::new();
    player.play(
        "0 0 thread 100 python3 | 0 0 comm C hash=7 rank=0 ranks=2 interface=4
         1 0 launch corr=4 | 2 0 start p Group | 2 0 start x Coll parent=p group=p count=9 | 3 0 stop x | 3 0 stop p
         4 0 launch corr=5 | 5 0 launch corr=6
         6 0 start q Group | 6 0 start y Coll parent=q group=q count=8 | 7 0 stop y | 7 0 stop q
         20 0 kernel 8 corr=4 | 30 0 kernel 21 corr=5 | 40 0 kernel 31 corr=6",
        &mut |labels, entry| {
            if let What::Kernel { .. } = entry.what {
                said.push(super::tests::describe(labels, &mut Vec::new(), &entry.what));
            }
        },
    );
    assert_eq!(
        said,
        [
            "kernel to 20 inferred (thread order) C: AllReduce 9",
            // Its operations came through the host stream: it cannot be known which Group was its
            // own.
            "kernel to 30 unmatched: NCCL handed over no operation for its launch",
            "kernel to 40 inferred (thread order) C: AllReduce 8",
        ]
    );
    assert_eq!(player.correlator.matches().unmatched, 1);
}

#[test]
fn an_unmatched_kernel_states_the_reason() {
    let input = eager(0, "A", 1, 100)
        + "20 0 kernel 10 corr=77
           21 0 kernel 10 corr=78 name=my_kernel
           22 0 kernel 10 corr=79 node=5
           30 0 start l KernelLaunch | 30 0 launch corr=9 in=l | 31 0 stop l
           40 0 kernel 35 corr=9";
    check(
        &input,
        "10 kernel to 20 unmatched: its launch was not seen
         10 kernel to 21 of the application
         10 kernel to 22 unmatched: no capture is known behind its node
         35 kernel to 40 unmatched: NCCL handed over no operation for its launch",
    );
}

#[test]
fn a_node_of_a_known_graph_without_a_launch_is_one_that_nccl_did_not_report() {
    let [known, clone, untold, unseen] = [(1_u64 << 32) + 5, (2 << 32) + 5, (2 << 32) + 6, (9 << 32) + 1];
    let input = format!(
        "0 0 start g GroupApi | 0 0 start a CollApi parent=g captured count=9 | 1 0 stop a
         2 0 start l KernelLaunch parent=g | 2 0 node {known} in=l | 3 0 stop l | 4 0 stop g
         5 0 clone {clone} of={known}
         30 0 kernel 20 corr=9 node={untold}
         31 0 kernel 20 corr=9 node={unseen}"
    );
    check(
        &input,
        "20 kernel to 30 unmatched: NCCL told nothing of its launch when its graph was captured
         20 kernel to 31 unmatched: no capture is known behind its node",
    );
}

#[test]
fn a_kernel_has_at_most_one_owner_and_a_launch_one_kernel() {
    let input = eager(0, "A", 1, 100) + "20 0 kernel 10 corr=1 | 30 0 kernel 21 corr=1";
    check(
        &input,
        "10 kernel to 20 exact (launch bracket) C by lA: AllReduce 100
         21 kernel to 30 unmatched: its launch was not seen",
    );
}

/// The same for launches and kernels in any order, with numbers that repeat, lie or lead nowhere.
#[test]
fn a_kernel_has_at_most_one_owner_on_any_input() {
    for seed in 0..200 {
        let mut random = super::tests::random::Random::new(seed);
        let numbers = 3 + random.below(20);
        let mut input = "0 0 thread 100 python3 | 0 0 comm C hash=7 rank=0 ranks=2 interface=7\n".to_owned();
        for n in 0..20 {
            // Some correlation numbers occur twice.
            let number = 1 + random.below(numbers) as u32;
            input += &eager(n * 10, &format!("T{n}"), number, 100 + n as u32);
        }
        let mut kernels = 0;
        for n in 0..30 {
            let (number, begin) = (1 + random.below(numbers + 3), random.below(400));
            input += &format!("{} 0 kernel {begin} corr={number}\n", 401 + n);
            kernels += 1;
        }
        let (mut seen, mut launches, mut carried) = (0, HashSet::new(), HashSet::new());
        Player::new().play(&input, &mut |_, entry| {
            let What::Kernel { owner, .. } = &entry.what else { return };
            seen += 1;
            let Owner::Operations { operations, launch, .. } = owner else { return };
            assert!(launch.is_none_or(|launch| launches.insert(launch)), "seed {seed}: two kernels of one launch");
            for operation in *operations {
                assert!(carried.insert(Arc::as_ptr(operation)), "seed {seed}: two kernels carried one operation");
            }
        });
        assert_eq!(seen, kernels, "seed {seed}: each kernel is drawn once");
        assert!(!launches.is_empty(), "seed {seed}: nothing was matched");
    }
}

#[test]
fn an_external_id_may_arrive_before_or_after_its_kernel() {
    // CUPTI does not call back at launches.
    let unseen = |text: String| {
        let lines = text.split(['\n', '|']).map(str::trim);
        lines.filter(|line| !line.contains(" launch ")).collect::<Vec<_>>().join("\n")
    };
    let operations = unseen(eager(0, "A", 1, 100) + &eager(10, "B", 2, 200) + &eager(20, "D", 3, 300)) + "\n";
    let played = |rest: &str| {
        let mut player = Player::new();
        player.correlator.expect_external_ids();
        let mut said = Vec::new();
        let cast = "0 0 thread 100 python3 | 0 0 comm C hash=7 rank=0 ranks=2 interface=7\n".to_owned();
        player.play(&(cast + &operations + rest), &mut |labels, entry| {
            if let What::Kernel { .. } = entry.what {
                said.push(super::tests::describe(labels, &mut Vec::new(), &entry.what));
            }
        });
        (said, player.correlator.matches())
    };
    let exact = |until: u64, tag: &str, count: u64| {
        format!("kernel to {until} exact (external id) C by l{tag}: AllReduce {count}")
    };
    // The id of another process, a call that launches nothing, and the same call twice change
    // nothing.
    let (said, matches) = played(
        "30 0 id lA corr=1 | 30 0 id lA corr=9 | 30 0 id foreign corr=2 | 40 0 kernel 6 corr=1
         41 0 kernel 16 corr=2 | 42 0 kernel 26 corr=3 | 50 0 id lD corr=3 | 50 0 id lB corr=2 | 51 0 id lB corr=2",
    );
    assert_eq!(said, [exact(40, "A", 100), exact(42, "D", 300), exact(41, "B", 200)]);
    assert_eq!(
        (matches.matched, matches.foreign_ids, matches.without_kernel),
        ([0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1, 0)
    );
    // A kernel does not wait for ever, and only NCCL's kernels wait.
    let unmatched = "kernel to 40 unmatched: its launch was not seen";
    let (said, _) = played("40 0 kernel 6 corr=1 | 41 0 kernel 7 corr=1 | 50 0 id lA corr=1");
    assert_eq!(said, [unmatched.to_owned(), exact(41, "A", 100)], "one id, one kernel");
    let (said, matches) = played("40 0 kernel 6 corr=1 | 41 0 kernel 16 corr=2 name=mine | 5000000039 0 advance");
    assert_eq!((said.len(), matches.application, matches.unmatched), (1, 1, 0));
    for end in ["5000000040 0 advance | 5000000041 0 id lA corr=1", "finish"] {
        let (said, _) = played(&format!("40 0 kernel 6 corr=1\n{end}"));
        assert_eq!(said, [unmatched]);
    }
}

#[test]
fn only_a_limited_number_of_kernels_wait_for_an_external_id() {
    let mut player = Player::new();
    player.correlator.expect_external_ids();
    let kernels: String = (0..10_000).map(|n| format!("{} 0 kernel {n} corr={}\n", n + 1, n + 1)).collect();
    let mut given_up = 0;
    player.play(&kernels, &mut |_, _| given_up += 1);
    assert_eq!(given_up, 10_000 - 4096);
}

/// As they do where PyTorch's profiler had CUPTI meanwhile (seen on H100: docs/gpu-results.md).
#[test]
fn correlation_ids_may_begin_again_after_cupti_was_given_up() {
    let exact = |from: u64, tag: &str, count: u32| {
        format!("{from} kernel to {} exact (launch bracket) C by l{tag}: AllReduce {count}", from + 10)
    };
    // The ids of a stream go back. The second kernel of id 1 is another one; id 5 had no kernel.
    let input = eager(0, "A", 81, 100)
        + &eager(20, "B", 5, 200)
        + "40 0 kernel 30 corr=81 | 50 0 given-up\n"
        + &eager(100, "C", 1, 300)
        + "130 0 kernel 120 corr=1 | 150 0 kernel 140 corr=5 name=mine";
    let application = "140 kernel to 150 of the application";
    check(&input, &[&*exact(30, "A", 100), &exact(120, "C", 300), application].join("\n"));
    // The same id on both sides, and the records of the first come late.
    let input = eager(0, "A", 1, 100)
        + "50 0 given-up\n"
        + &eager(100, "C", 1, 300)
        + "40 0 kernel 30 corr=1 | 130 0 kernel 120 corr=1";
    check(&input, &format!("{}\n{}", exact(30, "A", 100), exact(120, "C", 300)));
}

#[test]
fn launches_without_a_kernel_are_counted() {
    let mut player = Player::new();
    player.play(&(eager(0, "A", 1, 100) + &eager(20, "B", 2, 100) + "50 0 kernel 10 corr=2"), &mut |_, _| {});
    let matches = player.correlator.matches();
    assert_eq!((matches.matched[0], matches.without_kernel), (1, 1));
}

#[test]
fn plans_that_no_launch_will_ask_for_are_not_kept() {
    let mut player = Player::new();
    let remembered = |player: &mut Player, input: &str| {
        player.play(input, &mut |_, _| {});
        player.correlator.plans.remembered()
    };
    // Without CUPTI, nothing says that a launch was captured.
    let capture = CAPTURED.replace("| 2 0 node 70 in=l ", "").replace("4 0 clone 71 of=70 | 4 0 graph 9", "");
    let first = remembered(&mut player, &(cast_of_one() + &capture + &replay(1)));
    assert_eq!(remembered(&mut player, &(2..500).map(replay).collect::<String>()), first);
    // Up to v4 of the interface there are no launches.
    let old = |n| format!("{n} 0 start q{n} Group | {n} 0 start y{n} Coll parent=q{n} group=q{n} | {n} 0 stop q{n}\n");
    assert_eq!(remembered(&mut player, &(9_000..9_500).map(old).collect::<String>()), first);
    // Of a launch whose record was lost, a plan is kept for a while.
    let lost = |n| {
        format!(
            "{n} 0 start h{n} GroupApi | {n} 0 start b{n} CollApi parent=h{n} | {n} 0 stop b{n}
             {n} 0 start r{n} Group | {n} 0 start z{n} Coll parent=b{n} group=r{n} | {n} 0 stop r{n}\n"
        )
    };
    assert!(remembered(&mut player, &(10_000..12_000).map(lost).collect::<String>()) <= first + 256);
}

#[test]
fn memory_is_bounded_whatever_is_missing() {
    let mut correlator = Correlator::new(tag(), PID);
    let mut push = |time: u64, body: Body<'_>| {
        let record = Record { ticks: crate::model::time::Ticks(time), body };
        correlator.push(RingId(0), HostNs(time), &record, &mut |_| {});
    };
    for n in 0..400_000_u64 {
        let launch = Handle(tag().base() + 1 + n);
        push(n, Body::Launch { correlation: n as u32, nccl: true, launch, group: Handle::NONE });
        push(n, Body::GraphNode { node: n + 1, original: 0, launch });
        push(n, Body::GraphNode { node: n + 1_000_000, original: n + 1, launch: Handle::NONE });
    }
    assert!(correlator.plans.remembered() <= 300_000, "{}", correlator.plans.remembered());
}

#[test]
fn a_kernel_without_valid_times_is_not_waited_for() {
    let first = eager(100, "1", 7, 1);
    check(&format!("{first}\n900 0 untimed corr=7 name=ncclDevKernel"), "107 a kernel has ended: [\"c1\"]");
}
