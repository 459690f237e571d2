//! Another tool takes CUPTI's buffers without subscribing.

use super::{CUDA, answers, kernels, operation, record, words_about_cupti};
use ncclscope_tests::fault;
use ncclscope_tests::recording::Recording;

/// What the other tool reports at its end: kernels, foreign buffers, dirty ones, missing ones, and
/// how many of these CUPTI left as it wrote them.
fn profile(recording: &Recording) -> [i64; 5] {
    let said = recording.outcome.stderr.lines().find(|line| line.starts_with("profile: ")).unwrap();
    let numbers: Vec<i64> = said.split(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect();
    numbers.try_into().unwrap()
}

/// Since August 2026 torch.profiler takes CUPTI's buffers silently.
#[test]
fn a_tool_that_takes_the_buffers_without_subscribing_is_noticed_and_gets_its_records() {
    let case = fault::case(
        "CUPTI",
        "another tool takes CUPTI's buffers without subscribing",
        "it gets its records; the gap is in the trace, with its reason",
    );
    let [first, second, third, fourth, fifth] = ["1Ki", "2Ki", "3Ki", "4Ki", "5Ki"].map(|n| operation("world", n));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user sleep 500ms\n\
         user profile kineto\n\
         {second}{third}\
         user sleep 6s\n\
         {fourth}\
         user unprofile kineto\n\
         user call ncclscope_acquire\n\
         {fifth}\
         user finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_FLUSH_PERIOD", "100")]);
    assert_eq!(profile(&recording), [3, 0, 0, 0, 0]);
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 20 KiB f32", None)]);
    assert_eq!(words_about_cupti(&timeline), ["CUPTI silent", "CUPTI taken again"]);
    // Nothing is concluded from missing kernels.
    assert!(timeline.slices.iter().all(|slice| slice.category != "not done"));
    let doubts: Vec<_> = timeline.slices.iter().filter_map(|slice| slice.str("doubt")).collect();
    assert!(doubts.iter().all(|doubt| *doubt == "no parent"), "as of any call of this script: {doubts:?}");
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_unmatched"), figures.get("launches_without_kernel")), (0, 3));
    let said: Vec<_> = recording.said().into_iter().filter(|it| it.contains("has returned no record")).collect();
    assert_eq!(said.len(), 1, "{:?}", recording.said());
    assert!(
        said[0].starts_with("CUPTI has returned no record of the last 2 launches: another profiler"),
        "{}",
        said[0]
    );
    assert_eq!(timeline.slice("CUPTI silent").str("note"), Some(said[0]));
    case.survived(1);
}

#[test]
fn acquire_takes_the_buffers_back_even_before_they_were_missed() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let acquire = "user call ncclscope_acquire\n";
    for (end, expected) in [
        // Twice: the second time it is already ours, and nothing is reported.
        (format!("user unprofile kineto\n{acquire}{acquire}"), 1),
        // In the middle of its profile: the kernels so far still belong to it.
        (format!("{acquire}user unprofile kineto\n{acquire}"), 1),
    ] {
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
             {first}\
             user sleep 500ms\n\
             user profile kineto\n\
             {second}{end}{third}\
             user finalize world\n"
        );
        let recording = record(&script, &[("NCCLSCOPE_FLUSH_PERIOD", "100")]);
        assert_eq!(profile(&recording), [expected, 0, 0, 0, 0]);
        assert!(answers(&recording)[1..].iter().all(|(_, answer)| *answer == 0), "{:?}", answers(&recording));
        let timeline = recording.timeline();
        assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 12 KiB f32", None)], "{end}");
        assert_eq!(words_about_cupti(&timeline), ["CUPTI silent", "CUPTI taken again"], "{end}");
    }
}

#[test]
fn each_side_leaves_the_other_s_buffers_alone() {
    let case = fault::case("CUPTI", "buffers of another tool come back to us, and ours to it", "neither is touched");
    // CUPTI still holds the first kernel's buffer when another tool comes, and one of that tool's
    // buffers when we return. It goes on filling that buffer until the kernel in it has ended and
    // somebody flushes: the second acquire.
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user profile kineto\n\
         user kernel early for=1ms\n\
         user sleep 6s\n\
         user kernel late for=2s wait=0\n\
         user call ncclscope_acquire\n\
         user sleep 3s\n\
         user call ncclscope_acquire\n\
         {second}\
         user unprofile kineto\n\
         user finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_FLUSH_PERIOD", "60000")]);
    let [_, foreign, dirty, gone, written] = profile(&recording);
    assert!(foreign >= 1 && dirty == 0, "{}", recording.outcome.stderr);
    assert_eq!((gone, written), (1, 1), "what CUPTI wrote into it is still there: {}", recording.outcome.stderr);
    let timeline = recording.timeline();
    let names: Vec<_> = kernels(&timeline).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["AllReduce 8 KiB f32"]);
    assert_eq!(timeline.figures().get("kernels_unmatched"), 0);
    case.survived(1);
}

#[test]
fn the_end_reports_that_another_tool_has_the_buffers() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let begin = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}user sleep 500ms\n");
    for (end, expected) in [
        (format!("user profile kineto\n{second}user finalize world\n"), &["CUPTI silent"][..]),
        (format!("user profile kineto\n{second}user call ncclscope_release\n"), &["CUPTI silent", "CUPTI released"]),
        // It has them, and nothing was launched.
        ("user profile kineto\nuser finalize world\n".into(), &[]),
        (format!("{second}user profile kineto\nuser unprofile kineto\nuser finalize world\n"), &[]),
    ] {
        let recording = record(&format!("{begin}{end}"), &[("NCCLSCOPE_FLUSH_PERIOD", "100")]);
        assert_eq!(words_about_cupti(&recording.timeline()), expected, "{end}");
    }
}
