//! CUPTI is lent to other tools and taken again: `ncclscope_release` and `ncclscope_acquire`.

use super::{CUDA, KERNEL, answers, kernels, operation, record};
use ncclscope_tests::fault;

#[test]
fn cupti_is_lent_to_another_tool_and_taken_again() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2 name=dp\n\
         {first}\
         user call ncclscope_release\n\
         user subscribe kineto\n\
         user call ncclscope_acquire\n\
         user call ncclscope_acquire\n\
         {second}\
         user unsubscribe kineto\n\
         user call ncclscope_acquire\n\
         user call ncclscope_acquire\n\
         {third}\
         user finalize world\n"
    );
    let recording = record(&script, &[]);
    assert_eq!(
        answers(&recording),
        [
            ("cuInit", 0),
            ("ncclscope_release", 0),
            ("kineto", 0),
            ("ncclscope_acquire", 3),
            ("ncclscope_acquire", 3),
            ("ncclscope_acquire", 0),
            ("ncclscope_acquire", 0)
        ]
    );
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 12 KiB f32", None)]);
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_unmatched")), (2, 0));
    assert_eq!(figures.get("launches_without_kernel"), 1, "that of the time when CUPTI was lent");
    let marks = ["CUPTI released", "CUPTI not taken", "CUPTI taken again"].map(|name| timeline.slice(name));
    let call = |line: &str, number: usize| {
        let calls = recording.outcome.calls.iter().filter(|call| call.label.as_deref() == Some(line));
        calls.map(|call| call.before as i64..call.after as i64).nth(number).unwrap()
    };
    assert!(call("ncclscope_release", 0).contains(&marks[0].begin));
    assert!(call("ncclscope_acquire", 0).contains(&marks[1].begin));
    assert!(call("ncclscope_acquire", 2).contains(&marks[2].begin));
    let why = marks[1].str("note").unwrap();
    assert!(why.starts_with("no GPU kernels: CUPTI can have only one owner, and another profiler"), "{why}");
    // It was asked for twice.
    assert_eq!(timeline.named("CUPTI not taken").len(), 1);
    assert_eq!(recording.said().iter().filter(|line| **line == why).count(), 1, "{:?}", recording.said());
}

#[test]
fn a_release_that_cannot_stop_records_says_so() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user call ncclscope_release\n\
         {second}\
         user call ncclscope_acquire\n\
         {third}\
         user finalize world\n"
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "version=130000")]);
    let timeline = recording.timeline();
    let between = (KERNEL, Some("its launch was not seen"));
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), between, ("AllReduce 12 KiB f32", None)]);
    let note = timeline.slice("CUPTI released").str("note").unwrap();
    assert!(note.contains("some may still come"), "{note}");
}

#[test]
fn a_kernel_still_running_at_release_is_not_reported_as_ended() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let second = second.replace("for=1ms", "for=60s wait=0");
    for end in ["user call ncclscope_release\n", "main exit 0\n"] {
        let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}{second}user sleep 1s\n{end}");
        let figures = record(&script, &[]).timeline().figures();
        let figures =
            ["kernels_untimed", "activities_implausible", "launches_without_kernel"].map(|it| figures.get(it));
        assert_eq!(figures, [0, 1, 1], "{end}");
    }
}

#[test]
fn acquire_takes_cupti_that_was_held_by_another_tool_at_the_start() {
    let case = fault::case(
        "CUPTI",
        "another tool holds CUPTI at the start",
        "no kernels, with the reason; they can be had later",
    );
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user subscribe debugger\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user unsubscribe debugger\n\
         user sleep 50ms\n\
         user call ncclscope_acquire\n\
         {second}\
         user finalize world\n"
    );
    let recording = record(&script, &[]);
    assert_eq!(answers(&recording)[1..], [("debugger", 0), ("ncclscope_acquire", 0)]);
    let timeline = recording.timeline();
    assert!(
        timeline
            .slice("recording started")
            .str("note")
            .unwrap()
            .contains("no GPU kernels: CUPTI can have only one owner")
    );
    assert_eq!(kernels(&timeline), [("AllReduce 8 KiB f32", None)]);
    assert!(timeline.slice("CUPTI taken").str("note").unwrap().contains("CUPTI of CUDA 13.0"));
    case.survived(1);
}

#[test]
fn a_release_before_the_recording_is_respected() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}main load\n\
         user call ncclscope_acquire\n\
         user call ncclscope_release\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         user subscribe kineto\n\
         {first}\
         user call ncclscope_release\n\
         user unsubscribe kineto\n\
         user call ncclscope_acquire\n\
         {second}\
         user finalize world\n"
    );
    let recording = record(&script, &[]);
    assert_eq!(
        answers(&recording)[1..],
        [
            ("ncclscope_acquire", 1),
            ("ncclscope_release", 0),
            ("kineto", 0),
            ("ncclscope_release", 0),
            ("ncclscope_acquire", 0)
        ]
    );
    let timeline = recording.timeline();
    assert!(timeline.slice("recording started").str("note").unwrap().ends_with("ncclscope_release was called"));
    assert_eq!(timeline.named("CUPTI released").len(), 0, "it was not ours");
    assert_eq!(kernels(&timeline), [("AllReduce 8 KiB f32", None)]);
}

#[test]
fn release_and_acquire_do_nothing_while_cupti_is_not_in_use() {
    let script = |cuda: &str, end: &str| {
        format!(
            "{cuda}user init world comm=0xabc rank=0 nranks=2\nuser call ncclscope_release\nuser call ncclscope_acquire\n{end}"
        )
    };
    for (cuda, settings, expected) in [
        (CUDA, &[("NCCLSCOPE_PRESET", "off")][..], 1),
        (CUDA, &[("NCCLSCOPE_CUPTI", "0")], 2),
        // Without a driver there is no CUPTI to take.
        ("", &[], 4),
    ] {
        let recording = record(&script(cuda, ""), settings);
        let answers = answers(&recording);
        assert_eq!(answers[answers.len() - 2..], [("ncclscope_release", 0), ("ncclscope_acquire", expected)]);
    }
    // A forked child leaves its parent's CUPTI alone.
    let first = operation("world", "1Ki");
    let child = "user fork child\nchild call ncclscope_release\nchild call ncclscope_acquire\n";
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{child}{first}user finalize world\n");
    let recording = record(&script, &[]);
    assert_eq!(answers(&recording)[1..], [("ncclscope_release", 0), ("ncclscope_acquire", 1)]);
    let fork = recording.outcome.calls.iter().find(|call| call.verb == "fork").unwrap();
    assert_eq!(fork.json["child"]["status"], 0, "{}", recording.outcome.stderr);
    assert_eq!(kernels(&recording.timeline()), [("AllReduce 4 KiB f32", None)]);
}

#[test]
fn many_threads_may_release_and_acquire_at_once() {
    let case = fault::case(
        "CUPTI",
        "threads lend and take CUPTI at once, 100 times each",
        "each release comes before the next acquisition; nothing is lost",
    );
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user race ncclscope_release ncclscope_acquire ncclscope_release ncclscope_acquire\n\
         user call ncclscope_acquire\n\
         {second}\
         user finalize world\n"
    );
    let recording = record(&script, &[]);
    assert_eq!(answers(&recording)[1..], [("ncclscope_acquire", 0)]);
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 8 KiB f32", None)]);
    let [released, taken] = ["CUPTI released", "CUPTI taken again"].map(|name| timeline.named(name));
    assert!(released.len() > 10 && released.len() == taken.len(), "{} {}", released.len(), taken.len());
    // Each release came before the next acquire.
    for (released, taken) in released.iter().zip(&taken) {
        assert!(released.begin < taken.begin);
    }
    assert!(timeline.figures().remarkable().is_empty(), "{:?}", timeline.figures().remarkable());
    case.survived(400);
}

#[test]
fn an_exit_during_release_and_acquire_leaves_a_complete_trace() {
    let case = fault::case(
        "CUPTI",
        "the process exits while threads lend and take CUPTI, again and again",
        "the trace is complete",
    );
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user storm ncclscope_release ncclscope_acquire\n\
         {first}{first}{first}{first}\
         user finalize world\n\
         user sleep 20ms\n\
         main exit 0\n"
    );
    for _ in 0..10 {
        let recording = record(&script, &[]);
        let timeline = recording.timeline();
        let figures = timeline.figures();
        assert_eq!(figures.get("recorded"), recording.calls());
        let known = figures.get("kernels_launch_bracket") + figures.get("launches_without_kernel");
        assert_eq!((known, figures.get("kernels_untimed")), (4, 0), "{figures:?}");
        // A launch may have begun before CUPTI was taken again.
        let unmatched =
            timeline.slices.iter().filter(|slice| slice.category == "kernel" && slice.str("doubt").is_some());
        assert!(unmatched.into_iter().all(|slice| slice.str("doubt") == Some("its launch was not seen")));
    }
    case.survived(10);
}
