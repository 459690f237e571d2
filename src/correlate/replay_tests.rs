//! Which run of a graph a kernel is: where launches are counted, and where they are not.

use super::kernel_tests::check;

/// A captured call, with the node 50 that it recorded, cloned to 60, in the executable graph 9. NCCL hands over each run.
const TOLD: &str = "
    0 0 start g GroupApi captured | 0 0 start a CollApi parent=g count=1 captured | 1 0 stop a
    2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l | 3 0 stop l | 3 0 stop g
    4 0 clone 60 of=50 | 4 0 graph 9\n";

/// The same where NCCL hands over what is captured, and nothing later.
const SILENT: &str = "
    0 0 start g GroupApi captured | 0 0 start a CollApi parent=g count=1 captured | 1 0 stop a
    2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l | 3 0 stop l
    3 0 start p Group | 3 0 start x Coll parent=a group=p count=1 | 3 0 stop x | 3 0 stop p | 3 0 stop g
    4 0 clone 60 of=50 | 4 0 graph 9\n";

/// A launch of graph 9 at this time, in us, as CUPTI tells of it.
fn launch(at: u64, corr: u32) -> String {
    format!("{at}000 0 graph 9 corr={corr}\n")
}

/// The hand-over of a run, 1 us after it was launched at this time.
fn group(at: u64) -> String {
    let now = at + 1;
    format!(
        "{now}000 1 start p{at} Group | {now}000 1 start x{at} Coll parent=a group=p{at} count=1
         {now}000 1 stop x{at} | {now}000 1 stop p{at}\n"
    )
}

/// The kernel of a run, 2 us after it was launched at this time, for 3 us.
fn kernel(at: u64, corr: u32) -> String {
    format!("{}000 0 kernel {}000 corr={corr} node=60\n", at + 5, at + 2)
}

fn said(at: u64, how: &str) -> String {
    format!("{}000 kernel to {}000 {how}: AllReduce 1\n", at + 2, at + 5)
}

const EXACT: &str = "exact (graph node) C by l";
const INFERRED: &str = "inferred (graph replay) C by l";

#[test]
fn runs_that_nobody_launched_before_cupti_s_eyes_do_not_shift_the_others() {
    // The launches at 200 and 300 are not seen: CUPTI is lent.
    let input = TOLD.to_owned()
        + &launch(100, 7)
        + &group(100)
        + &kernel(100, 7)
        + "150000 0 lent\n"
        + &group(200)
        + &group(300)
        + &launch(400, 8)
        + &group(400)
        + &kernel(400, 8)
        + &launch(500, 9)
        + &group(500)
        + &kernel(500, 9);
    let expected = said(100, &format!("{EXACT} replay 1"))
        + &said(400, &format!("{INFERRED} replay 4"))
        + &said(500, &format!("{INFERRED} replay 5"));
    check(&input, &expected);
}

#[test]
fn launches_from_before_cupti_was_lent_may_be_told_after_it() {
    let input = "150000 0 lent\n".to_owned() + TOLD + &launch(100, 7) + &group(100) + &kernel(100, 7);
    let input = input + &launch(200, 8) + &group(200) + &kernel(200, 8);
    check(&input, &(said(100, &format!("{EXACT} replay 1")) + &said(200, &format!("{INFERRED} replay 2"))));
}

#[test]
fn where_nccl_is_silent_and_cupti_was_lent_the_run_is_left_open() {
    let input =
        SILENT.to_owned() + &launch(100, 7) + &kernel(100, 7) + "150000 0 lent\n" + &launch(400, 8) + &kernel(400, 8);
    check(&input, &(said(100, &format!("{EXACT} replay 1")) + &said(400, INFERRED)));
}

#[test]
fn a_graph_that_is_made_after_cupti_was_lent_is_counted() {
    let input = "0 0 lent\n".to_owned() + SILENT + &launch(100, 7) + &kernel(100, 7);
    check(&input, &said(100, &format!("{EXACT} replay 1")));
}

#[test]
fn a_launch_whose_callback_was_missed_is_found_by_time_and_those_after_it_are_not_counted() {
    // Nobody tells of the launch at 200, whose kernel comes.
    let input = TOLD.to_owned()
        + &launch(100, 7)
        + &group(100)
        + &kernel(100, 7)
        + &group(200)
        + &kernel(200, 8)
        + &launch(300, 9)
        + &group(300)
        + &kernel(300, 9);
    let expected = said(100, &format!("{EXACT} replay 1"))
        + &said(200, &format!("{INFERRED} replay 2"))
        + &said(300, &format!("{INFERRED} replay 3"));
    check(&input, &expected);
}

#[test]
fn a_launch_that_was_missed_and_whose_kernel_is_lost_too_is_noticed_by_the_next() {
    // Of the launch at 200 only NCCL tells. The next would be counted as the second run, which began before it was launched.
    let input = TOLD.to_owned()
        + &launch(100, 7)
        + &group(100)
        + &kernel(100, 7)
        + &group(200)
        + &launch(300, 9)
        + &group(300)
        + &kernel(300, 9);
    check(&input, &(said(100, &format!("{EXACT} replay 1")) + &said(300, INFERRED)));
}

#[test]
fn a_graph_of_the_application_s_alone_may_be_launched_untold() {
    // Node 1 of graph 7, which nothing of NCCL's is in.
    let input = TOLD.to_owned()
        + "95000 0 kernel 92000 corr=3 node=30064771073 name=sgemm\n"
        + &launch(100, 7)
        + &group(100)
        + &kernel(100, 7);
    check(
        &input,
        &("92000 kernel to 95000 of the application\n".to_owned() + &said(100, &format!("{EXACT} replay 1"))),
    );
}

#[test]
fn where_times_are_wrong_the_operation_is_known_and_the_run_is_open() {
    // By its time it ran before it was launched and handed over; nothing was missed.
    let input = TOLD.to_owned() + &launch(100, 7) + &group(100) + "95000 0 kernel 92000 corr=7 node=60\n";
    check(&input, &said(90, INFERRED));
}

#[test]
fn kernels_that_come_in_another_order_are_counted_by_their_launches() {
    let input = TOLD.to_owned()
        + &launch(100, 7)
        + &group(100)
        + &launch(200, 8)
        + &group(200)
        + &kernel(200, 8)
        + &kernel(100, 7);
    check(&input, &(said(200, &format!("{EXACT} replay 2")) + &said(100, &format!("{EXACT} replay 1"))));
}

#[test]
fn a_graph_that_was_changed_says_nothing_of_what_its_kernels_carry() {
    let input = TOLD.to_owned()
        + &launch(100, 7)
        + &group(100)
        + &kernel(100, 7)
        + "150000 0 update-graph 9\n"
        + &launch(200, 8)
        + &group(200)
        + &kernel(200, 8);
    let changed = "unmatched: its graph may have been updated, so that its nodes are not those captured";
    let unmatched = format!("202000 kernel to 205000 {changed}\n");
    check(&input, &(said(100, &format!("{EXACT} replay 1")) + &unmatched));
}

#[test]
fn the_runs_of_two_graphs_of_one_capture_are_told_apart_by_time_alone() {
    let input = TOLD.to_owned()
        + "5000 0 clone 61 of=50 | 5000 0 graph 10\n"
        + &launch(100, 7)
        + &group(100)
        + "200000 0 graph 10 corr=8\n"
        + &group(200)
        + "205000 0 kernel 202000 corr=8 node=61\n"
        + &kernel(100, 7);
    check(&input, &(said(200, &format!("{INFERRED} replay 2")) + &said(100, &format!("{INFERRED} replay 1"))));
}
