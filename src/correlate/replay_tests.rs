//! Which run of a graph a kernel belongs to, with and without counted launches.

use super::kernel_tests::check;
use super::tests::Player;
use crate::model::time::HostNs;

/// A captured call. Its node 50 was cloned to 60, in the executable graph 9. NCCL hands over each
/// run.
const TOLD: &str = "
    0 0 start g GroupApi captured | 0 0 start a CollApi parent=g count=1 captured | 1 0 stop a
    2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l | 3 0 stop l | 3 0 stop g
    4 0 clone 60 of=50 | 4 0 graph 9\n";

/// The same, but NCCL hands over only the capture.
const SILENT: &str = "
    0 0 start g GroupApi captured | 0 0 start a CollApi parent=g count=1 captured | 1 0 stop a
    2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l | 3 0 stop l
    3 0 start p Group | 3 0 start x Coll parent=a group=p count=1 | 3 0 stop x | 3 0 stop p | 3 0 stop g
    4 0 clone 60 of=50 | 4 0 graph 9\n";

/// A launch of graph 9 at this time (in us), as CUPTI reports it.
fn launch(at: u64, corr: u32) -> String {
    format!("{at}000 0 graph 9 corr={corr}\n")
}

/// The hand-over of a run that was launched at this time, 1 us later.
fn group(at: u64) -> String {
    let now = at + 1;
    format!(
        "{now}000 1 start p{at} Group | {now}000 1 start x{at} Coll parent=a group=p{at} count=1
         {now}000 1 stop x{at} | {now}000 1 stop p{at}\n"
    )
}

/// The kernel of a run that was launched at this time: it begins 2 us later and takes 3 us.
fn kernel(at: u64, corr: u32) -> String {
    format!("{}000 0 kernel {}000 corr={corr} node=60\n", at + 5, at + 2)
}

/// A run that is launched at this time: its launch, its hand-over and its kernel.
fn run(at: u64, corr: u32) -> String {
    launch(at, corr) + &group(at) + &kernel(at, corr)
}

fn said(at: u64, how: &str) -> String {
    format!("{}000 kernel to {}000 {how}: AllReduce 1\n", at + 2, at + 5)
}

const EXACT: &str = "exact (graph node) C by l";
const INFERRED: &str = "inferred (graph replay) C by l";

const UPDATED: &str = "its graph may have been updated, so that its nodes are not those captured";

/// The run of a kernel is known, and how.
fn exact(at: u64, replay: u64) -> String {
    said(at, &format!("{EXACT} replay {replay}"))
}

fn inferred(at: u64, replay: u64) -> String {
    said(at, &format!("{INFERRED} replay {replay}"))
}

#[test]
fn each_replay_of_a_graph_has_its_own_operations() {
    let input = TOLD.to_owned() + &run(100, 7) + &run(200, 8);
    check(&input, &(exact(100, 1) + &exact(200, 2)));
}

#[test]
fn a_replay_waits_for_the_proxy_s_work_of_its_own_run() {
    // The kernels run from 102 to 105 and from 202 to 205; each run's work begins a little later.
    let work = |at: u64, begun: u64| {
        let taken = at + 1;
        format!(
            "{taken}500 2 start op{at} ProxyOp parent=x{at} peer=1 | {begun}000 2 state op{at} PROXY_OP_IN_PROGRESS\n"
        )
    };
    let run = |at: u64, corr, begun| launch(at, corr) + &group(at) + &work(at, begun) + &kernel(at, corr);
    let said = |at: u64, number: u64, more: &str| format!("{}{more}\n", exact(at, number).trim_end());
    let input = TOLD.to_owned() + &run(100, 7, 104) + &run(200, 8, 203) + &run(300, 9, 302);
    let expected = said(100, 1, " with the proxy at 104000 Some(Busy)")
        + &said(200, 2, " with the proxy at 203000 Some(Busy)")
        + &said(300, 3, "");
    check(&input, &expected);
}

#[test]
fn replays_whose_kernels_came_are_not_kept() {
    let mut player = Player::new();
    let kept = |player: &mut Player, input: &str| {
        player.play(input, &mut |_, _| {});
        player.correlator.plans.remembered_runs()
    };
    player.correlator.expect_kernels();
    let run_at = |n: u64| run(100 + 10 * n, 100 + n as u32);
    let first = TOLD.to_owned() + &(0..500).map(run_at).collect::<String>();
    assert_eq!(kept(&mut player, &first), [0, 1]);
    // After a run whose kernel is lost, the times of some are of use, but not what they carried.
    let at = |n: u64| 100 + 10 * n;
    let lost = launch(at(500), 600) + &group(at(500));
    assert_eq!(kept(&mut player, &(lost + &(501..600).map(run_at).collect::<String>())), [1, 99]);
    assert_eq!(kept(&mut player, &(600..1_000).map(run_at).collect::<String>()), [0, 1]);
    // Where no kernels come, the newest are kept.
    let without = (1_000..42_000).map(|n| launch(at(n), n as u32) + &group(at(n))).collect::<String>();
    assert_eq!(kept(&mut player, &without), [40 << 10, 0]);
}

#[test]
fn a_graph_about_whose_replays_nccl_is_silent_carries_what_was_captured() {
    // Without proxy operations there is one Group, at the capture.
    let input = SILENT.to_owned() + &launch(100, 7) + &kernel(100, 7) + &launch(200, 8) + &kernel(200, 8);
    check(&input, &(exact(100, 1) + &exact(200, 2)));
}

#[test]
fn where_nccl_is_silent_about_replays_the_last_one_s_kernel_may_come_first() {
    let input = SILENT.to_owned() + &launch(100, 7) + &launch(200, 8) + &kernel(200, 8) + &kernel(100, 7);
    check(&input, &(exact(200, 2) + &exact(100, 1)));
}

#[test]
fn launches_that_cupti_did_not_see_do_not_shift_the_count() {
    // The launches at 200 and 300 are not seen: CUPTI is lent.
    let input =
        TOLD.to_owned() + &run(100, 7) + "150000 0 lent\n" + &group(200) + &group(300) + &run(400, 8) + &run(500, 9);
    check(&input, &(exact(100, 1) + &inferred(400, 4) + &inferred(500, 5)));
}

#[test]
fn launches_from_before_cupti_was_lent_may_be_reported_later() {
    let input = "150000 0 lent\n".to_owned() + TOLD + &run(100, 7) + &run(200, 8);
    check(&input, &(exact(100, 1) + &inferred(200, 2)));
}

#[test]
fn after_lending_the_run_of_an_unreported_replay_stays_open() {
    let input =
        SILENT.to_owned() + &launch(100, 7) + &kernel(100, 7) + "150000 0 lent\n" + &launch(400, 8) + &kernel(400, 8);
    check(&input, &(exact(100, 1) + &said(400, INFERRED)));
}

#[test]
fn kernels_that_may_name_a_wrong_launch_are_placed_by_time_alone() {
    // Each kernel names the launch of the other.
    let input = TOLD.to_owned()
        + &run(100, 7)
        + "150000 0 distrust\n"
        + &launch(200, 8)
        + &group(200)
        + &launch(300, 9)
        + &group(300)
        + &kernel(200, 9)
        + &kernel(300, 8);
    check(&input, &(exact(100, 1) + &inferred(200, 2) + &inferred(300, 3)));
    // Where NCCL does not report replays, there are no times to go by.
    let input = SILENT.to_owned() + "50000 0 distrust\n" + &launch(100, 7) + &launch(200, 8) + &kernel(100, 8);
    check(&input, &said(100, INFERRED));
}

#[test]
fn kernels_that_may_name_a_wrong_launch_are_not_waited_for() {
    let mut player = Player::new();
    player.correlator.expect_kernels();
    let mut unseen = |input: &str| {
        player.play(input, &mut |_, _| {});
        player.correlator.unseen_launches().map(|(first, _)| first)
    };
    assert_eq!(unseen(&(SILENT.to_owned() + &launch(100, 7))), Some(HostNs(100_000)));
    assert_eq!(unseen("150000 0 distrust"), None);
    assert_eq!(unseen(&launch(200, 8)), None);
    assert_eq!(unseen(&(kernel(100, 8) + &kernel(200, 7))), None);
}

#[test]
fn a_graph_in_use_is_remembered_and_one_that_was_forgotten_is_not_counted_again() {
    let others =
        |from: u64| (from..from + 5_000).map(|n| format!("150000 0 graph {}\n", 1_000 + n)).collect::<String>();
    let replay = |at, corr| launch(at, corr) + &kernel(at, corr);
    let input = SILENT.to_owned() + &replay(100, 7) + &others(0) + &replay(200, 8) + &others(5_000) + &replay(300, 9);
    check(&input, &(exact(100, 1) + &exact(200, 2) + &exact(300, 3)));
    let input = SILENT.to_owned() + &replay(100, 7) + &others(0) + &others(5_000) + &replay(200, 8) + &replay(300, 9);
    check(&input, &(exact(100, 1) + &said(200, INFERRED) + &said(300, INFERRED)));
    // It may be one that was changed.
    let changed = SILENT.to_owned() + "50000 0 change-graph 9\n" + &others(0) + &others(5_000) + &replay(100, 7);
    check(&changed, &format!("102000 kernel to 105000 unmatched: {UPDATED}\n"));
}

#[test]
fn launches_of_a_graph_made_after_cupti_was_lent_are_counted() {
    let input = "0 0 lent\n".to_owned() + SILENT + &launch(100, 7) + &kernel(100, 7);
    check(&input, &exact(100, 1));
}

#[test]
fn after_a_missed_callback_runs_are_found_by_time_alone() {
    // The launch at 200 is not reported, but its kernel is.
    let input = TOLD.to_owned() + &run(100, 7) + &group(200) + &kernel(200, 8) + &run(300, 9);
    check(&input, &(exact(100, 1) + &inferred(200, 2) + &inferred(300, 3)));
}

#[test]
fn a_missed_launch_with_a_lost_kernel_is_noticed_at_the_next_launch() {
    // Only NCCL reports the launch at 200. The next would be counted as the second run, which began
    // before it was launched.
    let input = TOLD.to_owned() + &run(100, 7) + &group(200) + &run(300, 9);
    check(&input, &(exact(100, 1) + &said(300, INFERRED)));
}

#[test]
fn unreported_launches_of_the_application_s_own_graphs_do_no_harm() {
    // Node 1 of graph 7, which contains nothing of NCCL's.
    let input = TOLD.to_owned() + "95000 0 kernel 92000 corr=3 node=30064771073 name=sgemm\n" + &run(100, 7);
    check(&input, &("92000 kernel to 95000 of the application\n".to_owned() + &exact(100, 1)));
}

#[test]
fn wrong_times_leave_the_operation_known_and_the_run_open() {
    // By its time it ran before it was launched and handed over, yet nothing was missed.
    let input = TOLD.to_owned() + &launch(100, 7) + &group(100) + "95000 0 kernel 92000 corr=7 node=60\n";
    check(&input, &said(90, INFERRED));
}

#[test]
fn kernels_out_of_order_are_counted_by_their_launches() {
    let input = TOLD.to_owned() + &launch(100, 7) + &group(100) + &run(200, 8) + &kernel(100, 7);
    check(&input, &(exact(200, 2) + &exact(100, 1)));
}

#[test]
fn kernels_of_a_changed_graph_stay_unmatched() {
    let input = TOLD.to_owned() + &run(100, 7) + "150000 0 change-graph 9\n" + &run(200, 8);
    let changed = "unmatched: its graph may have been updated, so that its nodes are not those captured";
    let unmatched = format!("202000 kernel to 205000 {changed}\n");
    check(&input, &(exact(100, 1) + &unmatched));
}

#[test]
fn after_a_lost_launch_runs_are_not_counted() {
    // A launch at 200 and its kernel are lost; where NCCL is silent, nothing else shows that.
    let replay = |at, corr| launch(at, corr) + &kernel(at, corr);
    let input = SILENT.to_owned() + &replay(100, 7) + "250000 0 launch-lost\n" + &replay(300, 9);
    check(&input, &(exact(100, 1) + &said(300, INFERRED)));
    let input = TOLD.to_owned() + &run(100, 7) + "150000 0 launch-lost\n" + &run(200, 8);
    check(&input, &(exact(100, 1) + &inferred(200, 2)));
}

#[test]
fn after_a_lost_change_kernels_of_graphs_made_before_stay_unmatched() {
    let input = TOLD.to_owned() + &run(100, 7) + "150000 0 change-lost\n" + &run(200, 8);
    let unmatched = format!("202000 kernel to 205000 unmatched: {UPDATED}\n");
    check(&input, &(exact(100, 1) + &unmatched));
    // The kernel of an earlier launch comes late.
    let input = TOLD.to_owned() + &launch(100, 7) + &group(100) + "150000 0 change-lost\n" + &kernel(100, 7);
    check(&input, &exact(100, 1));
    // The graph is made anew.
    let input = SILENT.to_owned() + "150000 0 change-lost\n160000 0 graph 9\n" + &launch(200, 7) + &kernel(200, 7);
    check(&input, &exact(200, 1));
}

/// CUPTI's number of a node.
fn node(graph: u64, index: u64) -> u64 {
    graph << 32 | index
}

/// The call that is captured at this time, in us, as node 4 of a graph.
fn captured(at: u64, graph: u64) -> String {
    let node = node(graph, 4);
    format!(
        "{at}000 0 start g{at} GroupApi captured | {at}000 0 start a{at} CollApi parent=g{at} count=1 captured
         {at}000 0 stop a{at} | {at}001 0 start l{at} KernelLaunch parent=g{at} | {at}001 0 launch corr=3 in=l{at} group=g{at}
         {at}001 0 node {node} in=l{at} | {at}002 0 stop l{at} | {at}002 0 stop g{at}\n"
    )
}

/// Graph 2, captured at 10 us, in a child graph of an executable graph, which took its nodes in
/// with numbers that are 32 higher.
fn taken_in() -> String {
    let [origin, child, clone, taken] = [node(2, 4), node(3, 4), node(5, 4), node(4, 36)];
    captured(10, 2)
        + &format!("11000 0 clone {child} of={origin} | 11000 0 clone {clone} of={child}\n")
        + &format!("11000 0 clone {taken} of={clone} | 11000 0 graph 9\n")
}

/// An update of that graph's node with such a number, to that of another graph.
fn updated(at: u64, index: u64, (graph, source): (u64, u64)) -> String {
    format!("{at}000 0 update-node {} to={} graph=9\n", node(4, index), node(graph, source))
}

/// A run of that graph, launched at this time, which was captured at another.
fn run_of(captured: u64, at: u64, corr: u32) -> String {
    run(at, corr)
        .replace("parent=a ", &format!("parent=a{captured} "))
        .replace("node=60", &format!("node={}", node(4, 36)))
}

fn said_of(captured: u64, at: u64, how: &str) -> String {
    format!("{}000 kernel to {}000 {how} C by l{captured} replay 1: AllReduce 1\n", at + 2, at + 5)
}

#[test]
fn a_node_is_followed_into_the_graph_that_takes_its_child_graph_in_and_through_updates() {
    let told = "exact (graph node)";
    let input = taken_in()
        + &run_of(10, 100, 7)
        + &captured(200, 6)
        + &updated(201, 32, (6, 0))
        + &updated(201, 36, (6, 4))
        + &run_of(200, 210, 8);
    check(&input, &(said_of(10, 100, told) + &said_of(200, 210, told)));
    // The kernels may come late.
    let late = |at, corr| kernel(at, corr).replace("node=60", &format!("node={}", node(4, 36)));
    let [first, second] = [late(100, 7), late(210, 8)];
    let input = input.replace(&first, "").replace(&second, "") + &first + &second;
    check(&input, &(said_of(10, 100, told) + &said_of(200, 210, told)));
}

#[test]
fn a_node_with_the_same_parameters_as_before_an_update_is_inferred_to_do_what_the_new_node_does() {
    let inferred = "inferred (graph replay)";
    // Only another node is told, which is no kernel of NCCL's.
    let input = taken_in() + &run_of(10, 100, 7) + &captured(200, 6) + &updated(201, 32, (6, 0)) + &run_of(200, 210, 8);
    check(&input, &(said_of(10, 100, "exact (graph node)") + &said_of(200, 210, inferred)));
}

/// A run of node 4:36 stays unmatched.
fn unmatched(at: u64) -> String {
    let changed = "unmatched: its graph may have been updated, so that its nodes are not those captured";
    format!("{}000 kernel to {}000 {changed}\n", at + 2, at + 5)
}

#[test]
fn nothing_is_inferred_of_an_update_whose_numbers_do_not_go_together() {
    let first = taken_in() + &captured(200, 6) + &updated(201, 32, (6, 0));
    let input = first.clone() + &updated(201, 35, (6, 2)) + &run_of(200, 210, 8);
    check(&input, &unmatched(210));
    // What was told holds all the same.
    let input = first + &updated(201, 36, (6, 4)) + &updated(201, 35, (6, 2)) + &run_of(200, 210, 8);
    check(&input, &said_of(200, 210, "exact (graph node)"));
}

#[test]
fn a_node_whose_parameters_were_set_by_hand_stays_unmatched_until_an_update() {
    let by_hand = format!("150000 0 update-node {} graph=9\n", node(4, 36));
    let input = taken_in() + &run_of(10, 100, 7) + &by_hand + &run_of(10, 160, 8);
    check(&input, &(said_of(10, 100, "exact (graph node)") + &unmatched(160)));
    let input = input + &captured(200, 6) + &updated(201, 36, (6, 4)) + &run_of(200, 210, 9);
    let expected = said_of(10, 100, "exact (graph node)") + &unmatched(160) + &said_of(200, 210, "exact (graph node)");
    check(&input, &expected);
}

#[test]
fn an_application_s_kernel_that_is_updated_does_not_become_nccl_s() {
    let input = taken_in() + &captured(200, 6) + &updated(201, 12, (6, 0));
    let kernel = format!("215000 0 kernel 212000 corr=8 node={} name=sgemm\n", node(4, 16));
    check(&(input + &launch(210, 8) + &kernel), "212000 kernel to 215000 of the application\n");
}

#[test]
fn kernels_of_an_update_long_ago_stay_unmatched() {
    let mut input = taken_in();
    for (step, graph) in (0..4).zip(6..) {
        let at = 200 + 100 * step;
        input += &(captured(at, graph) + &updated(at + 1, 36, (graph, 4)) + &run_of(at, at + 10, 8 + step as u32));
    }
    let first = kernel(210, 8).replace("node=60", &format!("node={}", node(4, 36)));
    let input = input.replace(&first, "") + &first;
    let mut expected: String =
        (1..4).map(|step| 200 + 100 * step).map(|at| said_of(at, at + 10, "exact (graph node)")).collect();
    expected += &unmatched(210);
    check(&input, &expected);
}

#[test]
fn runs_of_two_graphs_from_one_capture_are_told_apart_by_time_alone() {
    let input = two_graphs()
        + &launch(100, 7)
        + &group(100)
        + "200000 0 graph 10 corr=8\n"
        + &group(200)
        + "205000 0 kernel 202000 corr=8 node=61\n"
        + &kernel(100, 7);
    check(&input, &(inferred(200, 2) + &inferred(100, 1)));
}

#[test]
fn child_graphs_and_clones_do_not_count_as_executable_graphs() {
    // The captured graph is cloned into a child graph, and that graph becomes executable.
    let nested = TOLD.replace("clone 60 of=50", "clone 55 of=50 | 4 0 clone 60 of=55");
    let played = run(100, 7) + &run(200, 8);
    let said_as = |how| said(100, &format!("{how} replay 1")) + &said(200, &format!("{how} replay 2"));
    check(&(nested.clone() + &played), &said_as(EXACT));
    // With two executable graphs, the launches of one do not count the runs.
    check(&(nested + "5 0 clone 70 of=55\n" + &played), &said_as(INFERRED));
    let beside = TOLD.replace("clone 60 of=50", "clone 60 of=50 | 4 0 clone 55 of=50 | 4 0 clone 70 of=55");
    check(&(beside + &played), &said_as(INFERRED));
}

/// Two executable graphs of one capture, which may run at the same time. Node 61 is in graph 10.
fn two_graphs() -> String {
    TOLD.to_owned() + "5000 0 clone 61 of=50 | 5000 0 graph 10\n"
}

#[test]
fn a_kernel_that_fits_several_runs_gets_none() {
    // Both runs had been handed over when the kernels began.
    let input = two_graphs()
        + &launch(100, 7)
        + &group(100)
        + "101000 0 graph 10 corr=8\n"
        + &group(101)
        + "109000 0 kernel 104000 corr=8 node=61 | 110000 0 kernel 105000 corr=7 node=60\n";
    let expected = format!("104000 kernel to 109000 {INFERRED}: AllReduce 1\n")
        + &format!("105000 kernel to 110000 {INFERRED}: AllReduce 1\n");
    check(&input, &expected);
}

#[test]
fn a_kernel_that_begins_after_another_belongs_to_a_later_run() {
    // The kernel of the first run is lost, and the third launch is not reported.
    let input = two_graphs()
        + &launch(100, 7)
        + &group(100)
        + "120000 0 graph 10 corr=8\n"
        + &group(120)
        + "124000 0 kernel 122000 corr=8 node=61\n"
        + &group(130)
        + "143000 0 kernel 140000 corr=9 node=60\n";
    let expected = format!("122000 kernel to 124000 {INFERRED} replay 2: AllReduce 1\n")
        + &format!("140000 kernel to 143000 {INFERRED} replay 3: AllReduce 1\n");
    check(&input, &expected);
}

#[test]
fn a_run_has_one_kernel() {
    let input = two_graphs() + &run(100, 7) + "100000 0 graph 10 corr=8\n" + "110000 0 kernel 101500 corr=8 node=61\n";
    let expected = inferred(100, 1) + &format!("101500 kernel to 110000 {INFERRED}: AllReduce 1\n");
    check(&input, &expected);
}

#[test]
fn after_lending_a_kernel_without_a_hand_over_stays_unmatched() {
    let input = TOLD.to_owned() + &run(100, 7) + "150000 0 lent\n";
    let input = input + &launch(200, 8) + &kernel(200, 8);
    check(&input, &(exact(100, 1) + &format!("202000 kernel to 205000 unmatched: {UPDATED}\n")));
}

#[test]
fn lost_records_leave_the_number_of_a_run_open() {
    let input = TOLD.to_owned() + "50000 0 records-lost\n" + &run(100, 7);
    check(&input, &said(100, INFERRED));
}

/// A kernel outside of graphs that, according to CUPTI, ran 100 us before its launch at this time.
fn early(at: u64) -> String {
    format!(
        "{at}000 0 start e{at} KernelLaunch | {at}000 0 launch corr={at} in=e{at} | {at}000 0 stop e{at}
         {at}000 0 start q{at} Group | {at}000 0 start y{at} Coll group=q{at} count=5 | {at}000 0 stop y{at}
         {at}000 0 stop q{at} | {}000 0 kernel {}000 corr={at}\n",
        at - 90,
        at - 100
    )
}

#[test]
fn wrong_kernel_times_do_not_decide_the_run_of_a_graph() {
    // The times of the kernel of the run at 500 are 100 us early.
    let run = "350000 0 lent\n".to_owned() + &group(400) + &group(500) + "405000 0 kernel 402000 corr=8 node=60\n";
    check(&(TOLD.to_owned() + &run), &inferred(400, 1));
    let eager =
        |at: u64| format!("{at}000 kernel to {}000 exact (launch bracket) C by e{}: AllReduce 5\n", at + 10, at + 100);
    let input = TOLD.to_owned() + &early(200) + &early(300) + &run;
    check(&input, &(eager(200) + &eager(100) + &said(400, INFERRED)));
}

#[test]
fn runs_of_one_graph_do_not_overlap() {
    // The run at 104 was handed over while this kernel ran. So the kernel is neither the earlier
    // run nor that one.
    let input =
        TOLD.to_owned() + "50000 0 lent\n" + &group(100) + &group(104) + "108000 0 kernel 102000 corr=8 node=60\n";
    check(&input, &format!("102000 kernel to 108000 unmatched: {UPDATED}"));
}

/// The capture of one group of calls with two launches.
fn captured_pair() -> String {
    TOLD.replace("| 1 0 stop a", "| 1 0 stop a | 1 0 start b CollApi parent=g count=2 captured | 1 0 stop b")
        .replace("| 3 0 stop g", "| 3 0 start k KernelLaunch parent=g | 3 0 node 51 in=k | 3 0 stop k | 3 0 stop g")
        .replace("clone 60 of=50", "clone 60 of=50 | 4 0 clone 61 of=51")
}

/// The hand-over of the second one.
fn second_group(at: u64) -> String {
    let group = group(at).replace(&format!("p{at}"), &format!("q{at}")).replace(&format!("x{at}"), &format!("y{at}"));
    group.replace("parent=a", "parent=b").replace("count=1", "count=2")
}

/// The kernels of both.
fn both_kernels(at: u64, corr: u32) -> String {
    kernel(at, corr) + &format!("{}000 0 kernel {}000 corr={corr} node=61\n", at + 9, at + 6)
}

fn both(at: u64, corr: u32) -> String {
    launch(at, corr) + &group(at) + &second_group(at) + &both_kernels(at, corr)
}

fn said_second(at: u64, how: &str) -> String {
    format!("{}000 kernel to {}000 {how}\n", at + 6, at + 9)
}

#[test]
fn replays_hand_over_the_launches_of_a_group_in_order() {
    let second = |replay| format!("exact (graph node) C by k replay {replay}: AllReduce 2");
    let expected = exact(100, 1) + &said_second(100, &second(1)) + &exact(200, 2) + &said_second(200, &second(2));
    check(&(captured_pair() + &both(100, 7) + &both(200, 8)), &expected);
}

#[test]
fn a_lost_hand_over_does_not_move_the_later_ones_to_other_launches() {
    let second = "inferred (graph replay) C by k: AllReduce 2";
    let lost = "195000 0 records-lost\n".to_owned() + &launch(200, 8) + &second_group(200) + &both_kernels(200, 8);
    let expected = exact(100, 1)
        + &said_second(100, "exact (graph node) C by k replay 1: AllReduce 2")
        + &said(200, INFERRED)
        + &said_second(200, second)
        + &said(300, INFERRED)
        + &said_second(300, second);
    check(&(captured_pair() + &both(100, 7) + &lost + &both(300, 9)), &expected);
}

#[test]
fn a_hand_over_lost_in_the_first_replay_leaves_the_launches_unmatched() {
    let nothing = "unmatched: NCCL handed over no operation for its launch";
    let lost = "95000 0 records-lost\n".to_owned() + &launch(100, 8) + &second_group(100) + &both_kernels(100, 8);
    let expected: String = [100, 200]
        .map(|at| format!("{}000 kernel to {}000 {nothing}\n", at + 2, at + 5) + &said_second(at, nothing))
        .concat();
    check(&(captured_pair() + &lost + &both(200, 9)), &expected);
    // What was lost before the capture is none of it.
    let expected = said(100, INFERRED) + &said_second(100, "inferred (graph replay) C by k: AllReduce 2");
    check(&("0 0 records-lost\n".to_owned() + &captured_pair() + &both(100, 7)), &expected);
}

#[test]
fn a_group_of_another_communicator_does_not_match_a_launch() {
    let input = "0 0 start l KernelLaunch in=C | 0 0 launch corr=5 in=l | 1 0 stop l
        2 0 start p Group in=D | 2 0 start x Coll in=D group=p count=9 | 3 0 stop x | 3 0 stop p
        9000 0 kernel 4000 corr=5\n";
    check(input, "4000 kernel to 9000 unmatched: NCCL handed over no operation for its launch");
}
