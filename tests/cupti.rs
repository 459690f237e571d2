//! Kernels through the emulated CUPTI, with the scripted host as the GPU: CUPTI is lent to other
//! tools and taken again.

mod confined;
mod copies;
mod metrics;
mod planted;
mod selecting;
mod sharing;

use emulated_cupti::release::Release;
use ncclscope_tests::fault;
use ncclscope_tests::layout;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Timeline;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The driver is loaded and initialised, as by a framework.
const CUDA: &str = "main call cuInit library=libcuda.so.1\n";
/// NCCL's kernels, and what the trace calls the operations they carry.
const KERNEL: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

/// One operation of a communicator with its kernel, as NCCL launches it. Its size distinguishes it
/// from others.
fn operation(comm: &str, count: &str) -> String {
    format!(
        "user start launch {comm} KernelLaunch stream=0x10\n\
         user kernel {KERNEL} for=1ms\n\
         user stop launch\n\
         user start plan {comm} Group\n\
         user start coll {comm} Coll group=plan func=AllReduce count={count} datatype=ncclFloat32\n\
         user stop coll\n\
         user stop plan\n"
    )
}

/// A folder with the emulated driver and CUPTI, under the names that a profiler looks for.
static LIBRARIES: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    emulated_cupti::place(&built("libemulated_cupti.so"), folder.path(), Release::V13_0).unwrap();
    std::fs::copy(built("libemulated_libcuda.so"), folder.path().join("libcuda.so.1")).unwrap();
    folder
});

/// A library that Cargo built for these tests.
fn built(name: &str) -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name(name);
    assert!(beside.is_file(), "{} was not built", beside.display());
    beside
}

fn library_path() -> &'static Path {
    LIBRARIES.path()
}

/// Plays a script with CUDA within reach; the script must end well.
#[track_caller]
fn record(script: &str, settings: &[(&str, &str)]) -> Recording {
    let play = Play::new(script).env("LD_LIBRARY_PATH", library_path());
    let play = settings.iter().fold(play, |play, (name, value)| play.env(*name, *value));
    let recording = Recording::by(play);
    let outcome = &recording.outcome;
    assert_eq!((outcome.status, outcome.signal), (Some(0), None), "{}", outcome.stderr);
    recording
}

/// The result of each `call`, `subscribe`, `share` and `unshare` of the script, with its name.
fn answers(recording: &Recording) -> Vec<(&str, i32)> {
    let is_asked = |verb: &str| matches!(verb, "call" | "subscribe" | "share" | "unshare" | "clock");
    let asked = recording.outcome.calls.iter().filter(|call| is_asked(&call.verb));
    asked.map(|call| (call.label.as_deref().unwrap(), call.status.unwrap())).collect()
}

/// The kernels of a trace: the name and the operation's size, if it has one.
fn kernels(timeline: &Timeline) -> Vec<(&str, Option<&str>)> {
    let kernels = timeline.slices.iter().filter(|slice| slice.category == "kernel");
    kernels.map(|slice| (&*slice.name, slice.str("doubt"))).collect()
}

/// Correlation ids begin again after `cuptiFinalize`, which PyTorch's profiler calls.
#[test]
fn kernels_are_matched_where_correlation_ids_begin_again() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    // The application's kernel has the id of the first operation's.
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}{second}user call ncclscope_release\n\
         user call ncclscope_acquire\n\
         user kernel gemm for=100us\n{third}user finalize world\n"
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "restart")]);
    let timeline = recording.timeline();
    let expected = ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "gemm", "AllReduce 12 KiB f32"];
    assert_eq!(kernels(&timeline), expected.map(|name| (name, None)));
    let ids: Vec<_> =
        timeline.slices.iter().filter_map(|it| it.int("correlation").filter(|_| it.category == "kernel")).collect();
    assert!(ids.len() == 4 && ids[2] <= ids[0] && ids[3] <= ids[1], "{ids:?}");
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_contradicted")), (3, 0));
}

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

/// The remarks in the trace about who has CUPTI's records, in order of time.
fn words_about_cupti(timeline: &Timeline) -> Vec<&str> {
    let words =
        timeline.slices.iter().filter(|it| it.name.starts_with("CUPTI ") && it.name != "CUPTI flushed by force");
    words.map(|word| &*word.name).collect()
}

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

/// CUPTI 13.0 was seen to return no times from some kernel on (parca-dev/parcagpu#23).
#[test]
fn kernels_without_valid_times_are_missing_and_nothing_seems_to_hang() {
    let case = fault::case(
        "CUPTI",
        "kernels without times, or that end before they begin, from some kernel on",
        "they are missing and counted; nothing seems to hang",
    );
    let operations = |count: u32| -> String { (1..=count).map(|n| operation("world", &format!("{n}Ki"))).collect() };
    for (all, good, stretches) in [(5, 2, 0), (20, 3, 1)] {
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user sleep 8s\nuser finalize world\n",
            operations(all)
        );
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("exhaust={good}"))]);
        let timeline = recording.timeline();
        assert_eq!(kernels(&timeline).len(), good as usize);
        assert!(timeline.slices.iter().all(|slice| slice.category != "not done"), "{good}");
        let figures = timeline.figures();
        assert_eq!(figures.get("kernels_untimed"), u64::from(all - good));
        assert_eq!((figures.get("launches_without_kernel"), figures.get("kernels_unmatched")), (0, 0));
        let said = recording.said().iter().filter(|line| line.contains("gives kernels no times")).count();
        assert_eq!((timeline.named("kernel times bad").len(), said), (stretches, stretches));
        if stretches > 0 {
            let note = timeline.slice("kernel times bad").str("note").unwrap();
            assert!(note.contains("A known fault of this release: after some 25 million graph kernels"), "{note}");
        }
        let info = crate::command::ncclscope(&["info".as_ref(), recording.traces.file().as_os_str()]).unwrap();
        let missing = format!("{} of NCCL, missing because their times are impossible", all - good);
        assert!(info.contains(&missing), "{info}");
    }
    case.survived(2);
}

#[test]
fn kernels_without_valid_times_do_not_show_a_hang() {
    let operations: String = (1..=20).map(|n| operation("world", &format!("{n}Ki"))).collect();
    let hangs = operation("world", "99Ki").replace("for=1ms", "for=60s wait=0");
    let script =
        format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}{hangs}user sleep 8s\nmain exit 0\n");
    for (words, expected) in [("exhaust=3", false), ("", true)] {
        let recording = record(&script, &[("EMULATED_CUPTI", words)]);
        let said = recording.traces.open().text("SELECT name FROM slice WHERE category = 'not done'");
        assert_eq!(said.contains("AllReduce 396 KiB f32"), expected, "{words}: {said}");
    }
}

/// Before CUDA 13.3.3 CUPTI may do so if a context existed before it (pytorch/pytorch#190354).
#[test]
fn kernels_whose_times_keep_the_wall_clock_are_drawn_where_they_ran() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}{second}user finalize world\n");
    for (words, is_latched) in [("latch", true), ("", false)] {
        let settings = [("NCCLSCOPE_CUPTI_CLOCK", "boottime"), ("EMULATED_CUPTI", words)];
        let recording = record(&script, &settings);
        let timeline = recording.timeline();
        assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 8 KiB f32", None)]);
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_untimed"), figures.get("kernels_unmatched")), (0, 0));
        // Each ran after its launch began, and ended before the next one began: the script waits
        // for it.
        let launches = timeline.named("KernelLaunch");
        let ran = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        for (kernel, launch) in ran.zip(&launches) {
            let [kernel, launch] = [kernel, launch].map(|it| (it.begin, it.begin + it.duration.unwrap()));
            assert!(kernel.0 >= launch.0 && kernel.1 <= launch.1, "{kernel:?} {launch:?}");
        }
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("keeps the wall clock")).collect();
        assert_eq!(said.len(), usize::from(is_latched), "{:?}", recording.said());
        let notes = timeline.named("CUPTI clock").into_iter().filter_map(|note| note.str("note"));
        let notes: Vec<_> = notes.filter(|note| note.contains("keeps the wall clock")).collect();
        assert_eq!(notes, said, "in the trace as on stderr");
        assert!(said.iter().all(|line| line.contains("A known fault of this release: if a CUDA context existed")));
    }
}

#[test]
fn a_kernel_still_running_at_release_is_not_said_to_have_ended() {
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

/// Perfetto's GPU work has the same kernels as the tracks: names, times, streams, launching calls.
#[test]
fn kernels_are_render_stages_if_enabled() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user kernel elementwise_kernel for=20us\n\
         {second}\
         user finalize world\n"
    );
    const STAGES: &str = "SELECT s.name, s.ts, s.dur, t.name AS queue, s.submission_id AS call, p.pid, \
                          extract_arg(s.arg_set_id, 'description') AS symbol \
                          FROM gpu_slice s JOIN track t ON t.id = s.track_id JOIN process p USING (upid) ORDER BY s.ts";
    const KERNELS: &str = "SELECT s.name, s.ts, s.dur, t.name AS stream, \
                           extract_arg(s.arg_set_id, 'nccl.correlation') AS call \
                           FROM slice s JOIN track t ON t.id = s.track_id WHERE s.category = 'kernel' ORDER BY s.ts";
    let both = record(&script, &[("NCCLSCOPE_GPU_EVENTS", "both"), ("NCCLSCOPE_RANK", "3")]);
    let trace = both.traces.open();
    assert_eq!(trace.check(), []);
    let (stages, kernels) = (trace.rows(STAGES), trace.rows(KERNELS));
    assert_eq!(stages.len(), 3);
    assert_eq!(stages.len(), kernels.len());
    for (stage, kernel) in stages.iter().zip(&kernels) {
        for column in ["ts", "dur", "call"] {
            assert_eq!(stage.i64(column), kernel.i64(column), "{column}");
        }
        assert_eq!(stage.str("name"), kernel.str("name"));
        assert!(stage.str("queue").starts_with("rank 3 · "), "{}", stage.str("queue"));
        assert!(stage.str("queue").ends_with(kernel.str("stream")), "{}", stage.str("queue"));
        assert_eq!(stage.i64("pid"), i64::from(both.outcome.calls[0].pid));
        let symbol = if kernel.str("name").starts_with("AllReduce") { KERNEL } else { "elementwise_kernel" };
        assert_eq!(stage.str("symbol"), symbol);
    }

    let alone = record(&script, &[("NCCLSCOPE_GPU_EVENTS", "renderstage")]);
    let trace = alone.traces.open();
    assert_eq!(trace.check(), []);
    assert_eq!(trace.rows(KERNELS).len(), 0);
    let names: Vec<_> = trace.rows(STAGES).iter().map(|row| row.str("name").to_owned()).collect();
    assert_eq!(names, ["AllReduce 4 KiB f32", "elementwise_kernel", "AllReduce 8 KiB f32"]);
    let runs = alone.timeline().slices.iter().filter(|slice| slice.category == "run").count();
    assert_eq!(runs, 2, "the communicator has its operations all the same");

    // In a file with two processes, each has its own queues, and their numbers differ.
    let bytes = [both.traces.file(), alone.traces.file()].map(|file| std::fs::read(file).unwrap()).concat();
    let joined = Trace::from_bytes(bytes).unwrap();
    assert_eq!(joined.check(), []);
    assert_eq!(
        joined.text("SELECT count(DISTINCT track_id) AS queues, count(*) AS n FROM gpu_slice"),
        "queues,n\n2,6\n"
    );
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
fn cupti_can_be_taken_again_after_it_has_failed() {
    let case = fault::case(
        "CUPTI",
        "CUPTI reports a fatal error and detaches",
        "the failure is in the trace, and it can be taken again",
    );
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user call emulated_cupti_hour library=libcupti.so.13\n\
         {second}\
         user call ncclscope_acquire\n\
         {third}\
         user finalize world\n"
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "state=fatal@1h")]);
    assert_eq!(answers(&recording)[1..], [("emulated_cupti_hour", 0), ("ncclscope_acquire", 0)]);
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline).last(), Some(&("AllReduce 12 KiB f32", None)));
    assert_eq!(timeline.named("AllReduce 8 KiB f32").len(), 1, "no kernel, only the operation");
    assert_eq!((timeline.named("CUPTI failure").len(), timeline.named("CUPTI taken again").len()), (1, 1));
    case.survived(1);
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
    let case = fault::case("CUPTI", "the process exits meanwhile", "the trace is complete");
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user storm ncclscope_release ncclscope_acquire\n\
         {first}{first}{first}{first}\
         user finalize world\n\
         user sleep 20ms\n\
         main exit 0\n"
    );
    for _ in 0..3 {
        let recording = record(&script, &[]);
        let timeline = recording.timeline();
        let figures = timeline.figures();
        assert_eq!(figures.get("recorded"), recording.calls());
        assert_eq!(figures.get("kernels_launch_bracket") + figures.get("launches_without_kernel"), 4);
        // A launch may have begun before CUPTI was taken again: its kernel is recorded, but nobody
        // saw the launch.
        let unmatched =
            timeline.slices.iter().filter(|slice| slice.category == "kernel" && slice.str("doubt").is_some());
        assert!(unmatched.into_iter().all(|slice| slice.str("doubt") == Some("its launch was not seen")));
    }
    case.survived(3);
}

#[test]
fn a_cupti_that_does_not_come_back_is_left_alone() {
    let case = fault::case(
        "CUPTI",
        "CUPTI hangs in `cuptiSubscribe`, `cuptiActivityEnable` or `cuptiGetTimestamp`",
        "`init` returns after 5 s without kernels, and says why; what arrives later is given back",
    );
    let first = operation("world", "1Ki");
    for function in ["cuptiSubscribe", "cuptiActivityEnable", "cuptiGetTimestamp"] {
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
             {first}\
             user call ncclscope_acquire\n\
             user finalize world\n"
        );
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("hang={function}"))]);
        let timeline = recording.timeline();
        let why = timeline.slice("recording started").str("note").unwrap();
        assert!(why.contains("CUPTI has not answered"), "{function}: {why}");
        assert_eq!(answers(&recording)[1..], [("ncclscope_acquire", 4)], "{function}");
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{function}");
        let told = recording.said().iter().filter(|line| line.contains("CUPTI has not answered")).count();
        assert_eq!(told, 2, "at the start, and when it was asked for again: {}", recording.outcome.stderr);
    }
    case.survived(3);
}

#[test]
fn a_cupti_that_hangs_at_the_end_does_not_keep_the_process() {
    let case = fault::case(
        "CUPTI",
        "CUPTI hangs when it is flushed or given up at exit",
        "the process ends; the trace has its closing record",
    );
    let first = operation("world", "1Ki");
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}main exit 0\n");
    for function in ["cuptiActivityFlushAll", "cuptiUnsubscribe"] {
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("hang={function}"))]);
        let timeline = recording.timeline();
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{function}");
    }
    case.survived(2);
}

#[test]
fn without_callbacks_an_external_id_names_the_launch() {
    let operations = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count)).concat();
    // A kernel between launches, and an id that stays because a launch is never stopped.
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user kernel vector_add for=1ms\n\
         user start hangs world KernelLaunch stream=0x10\n\
         {operations}\
         user kernel {KERNEL} for=1ms\n\
         user finalize world\n"
    );
    let unseen = (KERNEL, Some("its launch was not seen"));
    for settings in ["", ",reorder,partial", ",release=12.0", ",release=13.5"] {
        let settings = format!("refuse=14@cuptiEnableCallback{settings}");
        let recording = record(&script, &[("EMULATED_CUPTI", &settings)]);
        let timeline = recording.timeline();
        let mut kernels = kernels(&timeline);
        kernels.sort_unstable();
        let named = ["AllReduce 12 KiB f32", "AllReduce 4 KiB f32", "AllReduce 8 KiB f32"].map(|name| (name, None));
        assert_eq!(kernels, [named[0], named[1], named[2], unseen, ("vector_add", None)], "{settings}");
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_external_id"), figures.get("kernels_launch_bracket")), (3, 0));
        assert_eq!((figures.get("external_ids_foreign"), figures.get("launches_lost")), (0, 0));
        let exact = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        let exact = exact.filter(|slice| slice.str("match") == Some("exact_external_id"));
        assert_eq!(exact.count(), 3);
        let note = timeline.slice("recording started").str("note").unwrap();
        assert!(note.contains("launches (callback 307): NOT_COMPATIBLE (14)"), "{note}");
    }
    // The calls this needs are refused, too: nobody is harmed.
    let refused = "refuse=14@cuptiEnableCallback,refuse=14@cuptiActivityPushExternalCorrelationId";
    let recording = record(&script, &[("EMULATED_CUPTI", refused)]);
    let figures = recording.timeline().figures();
    assert_eq!((figures.get("kernels_unmatched"), figures.get("launches_lost")), (4, 4));
}

/// The setting limits how much a killed job may lose, and that includes kernels.
#[test]
fn a_killed_job_keeps_the_kernels_before_its_last_moments() {
    let operations = ["1Ki", "2Ki"].map(|count| operation("world", count)).concat();
    let script =
        format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}user sleep 3s\nuser kill SIGKILL\n");
    for (period, kept) in [("100", 2), ("60000", 0)] {
        let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_FLUSH_PERIOD", period);
        let recording = Recording::by(play);
        assert_eq!(recording.outcome.signal, Some(libc::SIGKILL), "{}", recording.outcome.stderr);
        assert_eq!(kernels(&recording.timeline()).len(), kept, "{period} ms");
    }
}

#[test]
fn a_single_way_of_matching_can_be_chosen() {
    let operations = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count)).concat();
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}user finalize world\n");
    for (way, bracket, external, unmatched) in [("all", 3, 0, 0), ("external", 0, 3, 0), ("timer", 0, 0, 3)] {
        let figures = record(&script, &[("NCCLSCOPE_MATCH", way)]).timeline().figures();
        let matched = (figures.get("kernels_launch_bracket"), figures.get("kernels_external_id"));
        // Without GPU channels the GPU's timer cannot match anything.
        assert_eq!((matched, figures.get("kernels_unmatched")), ((bracket, external), unmatched), "{way}");
    }
}

#[test]
fn kernels_of_one_stream_may_overlap() {
    // As after programmatic launches: each begins while the previous one still runs, and the last
    // one ends first. They are long, so that a busy machine has time to play everything in between.
    let launch = |n: u32, time: &str| {
        format!(
            "user start launch{n} world KernelLaunch stream=0x10\n\
             user kernel {KERNEL} for={time} wait=0\n\
             user stop launch{n}\n\
             user start plan{n} world Group\n\
             user start coll{n} world Coll group=plan{n} seqNumber={n} func=AllReduce count={n}Ki datatype=ncclFloat32\n\
             user stop coll{n}\n\
             user stop plan{n}\n\
             user sleep 10ms\n\
             proxy start ch{n} world KernelCh parent=coll{n} channelId={n} pTimer=now-1us\n"
        )
    };
    let end = |n: u32| format!("proxy state ch{n} KernelChStop value=now-1us\nproxy stop ch{n}\n");
    let launches = [(1, "300ms"), (2, "250ms"), (3, "200ms")].map(|(n, time)| launch(n, time)).concat();
    let ends = [1, 2, 3].map(end).concat();
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{launches}user sleep 120ms\n{ends}user sleep 600ms\nuser finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_PRESET", "full")]);
    let timeline = recording.timeline();
    let carried: Vec<_> = kernels(&timeline).into_iter().map(|(name, _)| name).collect();
    assert_eq!(carried, ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "AllReduce 12 KiB f32"]);
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_unmatched")), (3, 0));
    let inside = (figures.get("channels_inside_kernel"), figures.get("kernels_confirmed"));
    assert_eq!(inside, (3, 3), "{:?}", figures.remarkable());
    let drawn: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "kernel").collect();
    let end = |n: usize| drawn[n].begin + drawn[n].duration.unwrap();
    assert!(drawn[2].begin < end(0) && drawn[1].begin < end(0), "they overlap: {drawn:?}");
    assert!(drawn.iter().all(|kernel| kernel.duration >= Some(200_000_000)), "none is cut by another: {drawn:?}");
}

#[test]
fn host_functions_of_graphs_are_drawn_on_their_stream() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser host-node 0x900000002 for=1ms\nuser finalize world\n"
    );
    // Releases before 13.1 have no such records, and are not asked for them.
    for (release, expected) in [("13.0", 0), ("13.1", 1), ("13.5", 1)] {
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("release={release}"))]);
        let timeline = recording.timeline();
        assert!(!timeline.slice("recording started").str("note").unwrap().contains("refused"), "{release}");
        let functions = timeline.named("host function");
        assert_eq!(functions.len(), expected, "{release}");
        for function in functions {
            let call = recording.outcome.calls.iter().find(|call| call.verb == "host-node").unwrap();
            let (begin, end) = (function.begin, function.begin + function.duration.unwrap());
            assert!(call.before as i64 - 2_000 < begin && end < call.after as i64 + 2_000, "{begin} {end}");
            assert!(end - begin >= 1_000_000);
            assert_eq!((function.int("graph"), function.int("graph_node")), (Some(9), Some(0x9_0000_0002)));
            let place = timeline.place(function);
            assert!(function.category == "host" && place.contains("GPU 0 · stream 7"), "{place}");
        }
        assert_eq!(timeline.figures().remarkable().len(), 0);
    }
}

/// The slices of a category on tracks of threads, with the names of thread and track, sorted by
/// these.
fn on_threads(recording: &Recording, category: &str) -> Vec<String> {
    let rows = recording.traces.open().rows(&format!(
        "SELECT thread.name AS thread, coalesce(track.name, thread.name) AS track, slice.name AS slice FROM slice \
         JOIN thread_track AS track ON slice.track_id = track.id JOIN thread USING (utid) \
         WHERE category = '{category}' ORDER BY 1, 2, 3"
    ));
    rows.iter().map(|row| [row.str("thread"), row.str("track"), row.str("slice")].join(" · ")).collect()
}

#[test]
fn calls_into_cuda_are_drawn_below_their_threads() {
    // The first thread calls NCCL, too, the second only CUDA, and the third CUDA first.
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user name trainer\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         loader name loader\n\
         late name late\n\
         {first}\
         loader kernel vector_add for=1ms\n\
         loader host-node 0x900000002 for=1ms\n\
         late kernel vector_add for=1ms\n\
         user sleep 1300ms\n\
         late start plan world Group\n\
         late stop plan\n\
         user finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_CUDA_API", "1")]);
    let timeline = recording.timeline();
    let calls: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "cuda").collect();
    assert_eq!(
        on_threads(&recording, "cuda"),
        [
            "late · CUDA driver · cuLaunchKernelEx",
            "loader · CUDA driver · cuGraphLaunch",
            "loader · CUDA driver · cuLaunchKernelEx",
            "loader · CUDA runtime · cudaGraphLaunch_v10000",
            "trainer · CUDA driver · cuLaunchKernelEx",
        ]
    );
    // A thread that called NCCL later is the same thread.
    assert!(on_threads(&recording, "api").contains(&"late · late · Group".to_owned()));
    let late = recording.traces.open().rows("SELECT utid FROM thread WHERE name = 'late'");
    assert_eq!(late.len(), 1);
    // A call is tied to its GPU work, and lies inside NCCL's slice for it.
    let kernel = timeline.slices.iter().find(|slice| slice.str("match").is_some()).unwrap();
    let call = calls.iter().find(|call| call.int("correlation") == kernel.int("correlation")).unwrap();
    let launch = timeline.slice("KernelLaunch");
    let end = |slice: &ncclscope_tests::timeline::Slice| slice.begin + slice.duration.unwrap();
    assert!(launch.begin - 1000 < call.begin && end(call) < end(launch) + 1000, "{launch:?} {call:?}");
    assert_eq!(timeline.figures().remarkable().len(), 0);
    // They are not drawn unless enabled. If nothing else names launches, they are recorded but not
    // drawn.
    for settings in ["", "refuse=14@cuptiEnableCallback"] {
        let recording = record(&script, &[("EMULATED_CUPTI", settings)]);
        assert!(recording.timeline().slices.iter().all(|slice| slice.category != "cuda"));
    }
}

#[test]
fn ranges_of_nvtx_nest_on_their_threads() {
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user nvtx push step\n\
         user nvtx push \"data parallel\" domain=PyTorch\n\
         user nvtx push forward\n\
         user nvtx mark here\n\
         user nvtx start all \"across threads\"\n\
         {first}\
         user nvtx pop\n\
         loader nvtx push load\n\
         user nvtx push backward\n\
         user nvtx pop\n\
         loader nvtx end all\n\
         user nvtx pop domain=PyTorch\n\
         user nvtx pop\n\
         user nvtx start never \"no end\"\n\
         loader nvtx pop\n\
         user finalize world\n"
    );
    for settings in ["", "release=12.0", "release=13.5", "reorder"] {
        let recording = record(&script, &[("NCCLSCOPE_NVTX", "1"), ("EMULATED_CUPTI", settings)]);
        assert_eq!(
            on_threads(&recording, "nvtx"),
            [
                "loader · NVTX · load",
                "user · NVTX · backward",
                "user · NVTX · forward",
                "user · NVTX · here",
                "user · NVTX · step",
                "user · NVTX · PyTorch · data parallel",
            ]
        );
        let timeline = recording.timeline();
        let step = timeline.slice("step");
        let inside: Vec<_> = timeline.inside(step).iter().map(|slice| &*slice.name).collect();
        assert_eq!(inside, ["forward", "backward"]);
        let domain = timeline.slice("data parallel");
        assert_eq!((domain.str("nvtx_domain"), step.str("nvtx_domain"), step.depth), (Some("PyTorch"), None, 0));
        // Its times match those of the calls.
        let calls: Vec<_> = recording.outcome.calls.iter().filter(|call| call.verb == "nvtx").collect();
        let near = |time: i64, call: usize| {
            (calls[call].before as i64 - 1000..calls[call].after as i64 + 1000).contains(&time)
        };
        assert!(near(step.begin, 0) && near(step.begin + step.duration.unwrap(), calls.len() - 3), "{step:?}");
        // Ranges with a handle belong to the process.
        let across = timeline.slice("across threads");
        assert!(timeline.place(across) == "NVTX" && across.duration.unwrap() > 1_000_000, "{across:?}");
        let never = timeline.slice("no end");
        assert_eq!((never.duration, never.str("doubt").is_some()), (Some(0), true));
        let figures = timeline.figures();
        assert_eq!(figures.remarkable().into_iter().collect::<Vec<_>>(), [("markers_unpaired", 1)]);
    }
    // They were not enabled.
    let recording = record(&script, &[]);
    assert!(recording.timeline().slices.iter().all(|slice| slice.category != "nvtx"));
}

/// Calls and their operations on the GPU state the range and the step of the program in which they
/// were made.
#[test]
fn calls_and_their_operations_state_the_ranges_around_them() {
    // The kernel runs long after the range has ended, and NCCL marks each call with a range of its
    // own.
    let call = |label: &str, count: &str| {
        let facts = format!("func=AllReduce count={count} datatype=ncclFloat32");
        format!(
            "user nvtx push ncclAllReduce domain=NCCL\n\
             user start g{label} world GroupApi groupDepth=1\n\
             user start {label} world CollApi parent=g{label} {facts}\n\
             user stop {label}\n\
             user start l{label} world KernelLaunch parent=g{label} stream=0x10\n\
             user kernel {KERNEL} for=5ms wait=0\n\
             user stop l{label}\n\
             user start p{label} world Group\n\
             user start c{label} world Coll parent={label} group=p{label} {facts}\n\
             user stop c{label}\n\
             user stop p{label}\n\
             user stop g{label}\n\
             user nvtx pop domain=NCCL\n"
        )
    };
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {}\
         user nvtx push \"ProfilerStep#17\"\n\
         user nvtx push \"Optimizer.step#Adam.step, op_id = 371\"\n\
         user nvtx push \"writer 3\"\n\
         user nvtx push forward\n\
         loader nvtx push \"step 99\"\n\
         {}\
         loader nvtx pop\n\
         user nvtx pop\n\
         user nvtx pop\n\
         user nvtx pop\n\
         {}\
         user nvtx pop\n\
         loader nvtx push \"step 18\"\n\
         user nvtx push backward\n\
         {}\
         user nvtx pop\n\
         loader nvtx pop\n\
         user sleep 300ms\n\
         user finalize world\n",
        call("a", "1Ki"),
        call("b", "2Ki"),
        call("c", "3Ki"),
        call("d", "4Ki"),
    );
    let recording = record(&script, &[("NCCLSCOPE_NVTX", "1")]);
    let trace = recording.traces.open();
    trace.query(include_str!("../sql/ncclscope.sql")).unwrap();
    assert_eq!(
        trace.text("SELECT name, nvtx, step FROM nccl_call ORDER BY ts"),
        "name,nvtx,step\n\
         ncclAllReduce 4 KiB f32,NULL,NULL\n\
         ncclAllReduce 8 KiB f32,forward,17\n\
         ncclAllReduce 12 KiB f32,ProfilerStep#17,17\n\
         ncclAllReduce 16 KiB f32,backward,18\n"
    );
    assert_eq!(
        trace.text("SELECT name, nvtx, step FROM nccl_execution ORDER BY bytes"),
        "name,nvtx,step\n\
         AllReduce 4 KiB f32,NULL,NULL\n\
         AllReduce 8 KiB f32,forward,17\n\
         AllReduce 12 KiB f32,ProfilerStep#17,17\n\
         AllReduce 16 KiB f32,backward,18\n"
    );
    let timeline = recording.timeline();
    for (name, range, step) in
        [("4 KiB", None, None), ("8 KiB", Some("forward"), Some(17)), ("16 KiB", Some("backward"), Some(18))]
    {
        let name = format!("AllReduce {name} f32");
        let kernel = timeline.slices.iter().find(|slice| slice.category == "kernel" && slice.name == name).unwrap();
        assert_eq!((kernel.str("nvtx_range"), kernel.int("nvtx_step")), (range, step), "{name}");
    }
}

#[test]
fn nvtx_is_left_to_the_tool_that_has_it() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser nvtx push step\nuser nvtx pop\nuser finalize world\n"
    );
    let other = library_path().join("libcuda.so.1");
    let ours = library_path().join("libcupti.so.13");
    let recording =
        |path: &Path| record(&script, &[("NCCLSCOPE_NVTX", "1"), ("NVTX_INJECTION64_PATH", path.to_str().unwrap())]);
    let taken = recording(&other);
    let said: Vec<_> = taken.said().into_iter().filter(|line| line.contains("NVTX")).collect();
    assert!(
        matches!(said[..], [line] if line.starts_with("no NVTX ranges: NVTX_INJECTION64_PATH names another tool's")),
        "{said:?}"
    );
    let timeline = taken.timeline();
    assert!(timeline.slice("recording started").str("note").unwrap().ends_with(said[0]));
    assert_eq!(timeline.named("step").len(), 0);
    // A tool that sets it beforehand has the ranges from the start.
    let given = recording(&ours);
    assert_eq!(given.timeline().named("step").len(), 1);
    assert!(!given.said().iter().any(|line| line.contains("NVTX")), "{:?}", given.said());
}

#[test]
fn a_program_may_name_its_communicators() {
    let script = "user load\n\
                  user name-comm tp\n\
                  user init first comm=0x1 rank=0 nranks=2 name=undefined:3\n\
                  user name-comm\n\
                  user init second comm=0x2 rank=1 nranks=2 name=DATA_PARALLEL:7\n\
                  user init third comm=0x33 rank=0 nranks=4\n\
                  user init fourth comm=0x44 rank=0 nranks=4 nodes=2\n\
                  user init fifth comm=0x55 rank=3 nranks=8 nodes=2\n";
    let recording = record(script, &[("RANK", "3"), ("WORLD_SIZE", "8")]);
    let timeline = recording.timeline();
    let mut tracks: Vec<String> =
        timeline.named("communicator init").into_iter().map(|it| timeline.place(it)).collect();
    tracks.iter_mut().for_each(|place| *place = place.rsplit('/').next().unwrap().to_owned());
    let expected = [
        "tp · rank 0 of 2",
        "DATA_PARALLEL · rank 1 of 2",
        "this host 00000033 · rank 0 of 4",
        "00000044 · rank 0 of 4",
        "all · rank 3 of 8",
    ];
    assert_eq!(tracks, expected);
}

#[test]
fn python_programs_have_a_context_manager_for_lending() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    let run = |text: &str| {
        let mut command = Command::new("python3");
        play::clean_environment(&mut command);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", folder).args(["-c", text]);
        let result = command.output().unwrap_or_else(|error| panic!("failed to run python3: {error}"));
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        String::from_utf8(result.stdout).unwrap()
    };
    let used = "import ncclscope\nwith ncclscope.cupti_released(): print('in it')\nprint('after it')";
    assert_eq!(run(used), "in it\nafter it\n", "without the library");
    let library = play::plugin_path().unwrap();
    let counted = format!(
        "import ctypes, os\n\
         library = ctypes.CDLL({library:?})\n\
         found = ctypes.CDLL('libncclscope.so', mode=os.RTLD_NOLOAD | os.RTLD_LAZY)\n\
         assert found._handle == library._handle\n\
         {used}"
    );
    assert_eq!(run(&counted), "in it\nafter it\n", "with it");
    let named = counted.replace("cupti_released()", "comm_named('tp')");
    assert_eq!(run(&named), "in it\nafter it\n", "with it");
}

#[test]
fn python_programs_are_warned_if_cupti_does_not_come_back() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    // What the library returns, one value after the other and the last one for ever; how often it
    // was asked; and the warning.
    for (answers, set, asked, warned) in [
        ("[0]", None, 1, ""),
        ("[3, 5, 3, 0]", None, 4, ""),
        ("[3]", None, 20, "another profiler keeps it"),
        ("[4]", None, 1, "the line on stderr says why"),
        ("[1]", Some("0"), 1, ""),
    ] {
        let text = format!(
            "import os, time, warnings, ncclscope\n\
             class Library:\n    answers, asked = {answers}, 0\n    def ncclscope_release(self): return 0\n    \
             def ncclscope_acquire(self):\n        self.asked += 1\n        \
             return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]\n\
             library = Library()\nncclscope._library = lambda: library\nncclscope.time.sleep = lambda pause: None\n\
             with warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n    \
             with ncclscope.cupti_released(): print(os.environ['TEARDOWN_CUPTI'])\n\
             print(library.asked, *[str(it.message) for it in said])"
        );
        let mut command = Command::new("python3");
        play::clean_environment(&mut command);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", folder).args(["-c", &text]);
        command.env_remove("TEARDOWN_CUPTI").envs(set.map(|value| ("TEARDOWN_CUPTI", value)));
        let result = command.output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let said = String::from_utf8(result.stdout).unwrap();
        let (variable, rest) = said.split_once('\n').unwrap();
        assert_eq!(variable, set.unwrap_or("1"));
        let (times, warning) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        assert_eq!(times, asked.to_string(), "{answers}");
        assert!(if warned.is_empty() { warning.is_empty() } else { warning.contains(warned) }, "{answers}: {warning}");
    }
}

// ---- injection ----

/// Plays a script in a process whose CUDA has this library injected; the script must end well.
#[track_caller]
fn inject(library: &Path, interface: u32, script: &str, settings: &[(&str, &str)]) -> Recording {
    let play = Play::new(script).interface(interface).env("LD_LIBRARY_PATH", library_path());
    let play = play.env("CUDA_INJECTION64_PATH", library);
    let play = settings.iter().fold(play, |play, (name, value)| play.env(*name, *value));
    let recording = Recording::by(play);
    let outcome = &recording.outcome;
    assert_eq!((outcome.status, outcome.signal), (Some(0), None), "{}", outcome.stderr);
    assert!(outcome.calls.iter().all(|call| call.status.unwrap_or(0) == 0), "{:?}", outcome.calls);
    recording
}

/// A second copy of the plugin.
fn copy_of_plugin(folder: &TempDir) -> PathBuf {
    let copy = folder.path().join("libncclscope.so");
    std::fs::copy(play::plugin_path().unwrap(), &copy).unwrap();
    copy
}

#[test]
fn a_program_without_nccl_has_a_timeline_of_its_kernels() {
    let plugin = play::plugin_path().unwrap();
    for end in ["", "user exit 0\n", "main exit 0\n"] {
        let script = format!("{CUDA}user kernel vector_add for=1ms\nuser kernel _Z6matmulPfi\n{CUDA}{end}");
        let recording = inject(&plugin, 7, &script, &[("NCCLSCOPE_PRESTE", "full")]);
        let timeline = recording.timeline();
        let note = timeline.slice("recording started").str("note").unwrap();
        assert!(note.contains("by CUDA_INJECTION64_PATH in cuInit; CUPTI of CUDA 13.0"), "{note}");
        let names: Vec<_> = timeline.slices.iter().filter(|it| it.category == "kernel").map(|it| &*it.name).collect();
        assert_eq!(names, ["vector_add", "matmul"]);
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_application"), figures.get("kernels_unmatched")), (2, 0));
        let said = recording.said();
        assert!(
            said[0].starts_with("recording to ") && said[0].contains("; no NCCL yet (CUDA_INJECTION64_PATH "),
            "{said:?}"
        );
        assert!(said[0].contains("; GPU kernels: yes, through CUPTI of CUDA 13.0, so torch.profiler "), "{said:?}");
        assert!(said.len() == 2 && said[1].starts_with("NCCLSCOPE_PRESTE"), "{said:?}");
    }
}

#[test]
fn plugin_and_injected_library_record_as_one() {
    let plugin = play::plugin_path().unwrap();
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user kernel before for=1ms\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user finalize world\n\
         user kernel after for=1ms\n"
    );
    let recording = inject(&plugin, 7, &script, &[("NCCLSCOPE_PRESTE", "full")]);
    let timeline = recording.timeline();
    let names: Vec<_> = timeline.slices.iter().filter(|it| it.category == "kernel").map(|it| &*it.name).collect();
    assert_eq!(names, ["before", "AllReduce 4 KiB f32", "after"]);
    assert_eq!(timeline.named("bad setting").len(), 1);
    let said = recording.said();
    assert!(said.len() == 3 && said[1].starts_with("NCCLSCOPE_PRESTE"), "{said:?}");
    assert_eq!(said[2], "NCCL, which does not report its version (profiler interface v7) is recorded too");
    assert_eq!(timeline.figures().get("recorded"), recording.calls());
}

#[test]
fn only_one_of_two_copies_records() {
    let case = fault::case(
        "processes",
        "two copies of the library, one as plugin, one injected",
        "one records, through either",
    );
    let folder = tempfile::tempdir().unwrap();
    let copy = copy_of_plugin(&folder);
    let job = "user init world comm=0xabc rank=0 nranks=2\n\
               user start plan world Group\n\
               user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
               user start op world ProxyOp parent=coll channelId=0 peer=1 nSteps=1 chunkSize=512Ki isSend=1\n\
               user stop coll\n\
               user stop plan\n\
               user start step world ProxyStep parent=op step=0\n\
               user state step StepSendWait value=4096\n\
               user stop step\n\
               user stop op\n";
    let end =
        "user call ncclscope_release\nuser call ncclscope_acquire\nuser kernel last for=1ms\nuser finalize world\n";
    // Whichever comes first, and through every interface.
    for (interface, script) in [(7, format!("{job}{CUDA}{end}"))]
        .into_iter()
        .chain(layout::VERSIONS.map(|interface| (interface, format!("{CUDA}main kernel first for=1ms\n{job}{end}"))))
    {
        let mut settings = vec![("NCCLSCOPE_PRESTE", "full")];
        if interface % 2 == 0 {
            // With all of its symbols before those of the other.
            settings.push(("LD_PRELOAD", copy.to_str().unwrap()));
        }
        let recording = inject(&copy, interface, &script, &settings);
        let timeline = recording.timeline();
        timeline.slice("AllReduce 4 KiB f32");
        timeline.slice("communicator init");
        timeline.slice("communicator finalize");
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "v{interface}");
        let expected: &[_] = if script.contains("first") { &["first", "last"] } else { &["last"] };
        let kernels = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        assert_eq!(kernels.map(|slice| &*slice.name).collect::<Vec<_>>(), expected);
        assert_ne!(recording.outcome.call("coll").handle, Some(0));
        let complaints = recording.said().iter().filter(|line| line.contains("PRESTE")).count();
        assert_eq!(complaints, 1, "{:?}", recording.said());
    }
    case.survived(8);
}

#[test]
fn a_copy_of_another_version_is_not_trusted() {
    let case = fault::case(
        "processes",
        "a copy of another version is in the process",
        "this one does not record, and says so",
    );
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("other.c");
    for (name, version, said) in [
        ("newer.so", "const char *ncclscope_version(void) { return \"99.0.0\"; }", "ncclscope 99.0.0 from "),
        ("older.so", "", "ncclscope of an unknown version from "),
    ] {
        let text = format!("void *ncclProfiler_v1[6]; int InitializeInjection(void) {{ return 1; }} {version}");
        std::fs::write(&source, text).unwrap();
        let other = folder.path().join(name);
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
        compiler.args(["-shared", "-fPIC", "-Wl,-soname,libncclscope.so", "-o"]).arg(&other).arg(&source);
        assert!(compiler.status().unwrap().success());
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser start g world Group\nuser finalize world\n"
        );
        for (preset, lines) in [("standard", 1), ("off", 0)] {
            let recording = inject(&other, 7, &script, &[("NCCLSCOPE_PRESET", preset)]);
            assert_eq!(recording.outcome.call("world").mask, Some(0));
            assert_eq!(recording.outcome.call("g").handle, Some(0));
            assert!(recording.traces.files().is_empty());
            let about = recording.said().iter().filter(|line| line.starts_with(said)).count();
            assert_eq!((about, recording.said().len()), (lines, lines), "{}", recording.outcome.stderr);
        }
    }
    case.survived(4);
}

#[test]
fn an_injected_library_is_silent_when_disabled_and_in_a_forked_child() {
    let plugin = play::plugin_path().unwrap();
    let recording = inject(&plugin, 7, &format!("{CUDA}user kernel one\n"), &[("NCCLSCOPE_PRESET", "off")]);
    assert!(recording.traces.files().is_empty());
    assert_eq!(recording.outcome.stderr, "");
    // The child leaves CUPTI and the file to its parent.
    let script = format!(
        "{CUDA}main kernel one\nmain fork child\nchild call InitializeInjection library={}\n",
        plugin.display()
    );
    let recording =
        Recording::by(Play::new(script).env("LD_LIBRARY_PATH", library_path()).env("CUDA_INJECTION64_PATH", &plugin));
    let fork = recording.outcome.calls.iter().find(|call| call.verb == "fork").unwrap();
    assert_eq!(fork.json["child"]["status"], 0, "{}", recording.outcome.stderr);
    let timeline = recording.timeline();
    assert_eq!(timeline.figures().get("kernels_application"), 1);
    // A child that was forked earlier makes a recording of its own.
    let script = format!(
        "main fork child\nchild call cuInit library=libcuda.so.1\nchild kernel inner\n{CUDA}main kernel outer\n"
    );
    let recording =
        Recording::by(Play::new(script).env("LD_LIBRARY_PATH", library_path()).env("CUDA_INJECTION64_PATH", &plugin));
    assert_eq!(recording.traces.files().len(), 2, "{}", recording.outcome.stderr);
}

/// The kernel runs, and the progress thread sleeps.
#[test]
fn an_operation_says_that_it_waits_for_the_proxy() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2 name=dp\n\
         proxy start nap world ProxyCtrl\n\
         proxy state nap CtrlSleep\n\
         user sleep 1ms\n\
         user start launch world KernelLaunch stream=0x10\n\
         user kernel {KERNEL} for=150ms wait=0\n\
         user stop launch\n\
         user start plan world Group\n\
         user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop coll\n\
         user stop plan\n\
         proxy sleep 20ms\n\
         proxy state nap CtrlWakeup\n\
         proxy stop nap\n\
         proxy start take world ProxyCtrl\n\
         proxy state take CtrlAppend\n\
         proxy start op world ProxyOp parent=coll channelId=3 peer=1 nSteps=1 chunkSize=4Ki isSend=1\n\
         proxy state take CtrlAppendEnd value=1\n\
         proxy stop take\n\
         proxy state op OpInProgress\n\
         proxy stop op\n\
         user sleep 300ms\n\
         {}user finalize world\n",
        operation("world", "2Ki")
    );
    let recording = record(&script, &[("NCCLSCOPE_PRESET", "full")]);
    let timeline = recording.timeline();
    let of = |name: &str| timeline.slices.iter().find(|slice| slice.category == "run" && slice.name == name).unwrap();
    let (late, other) = (of("AllReduce 4 KiB f32"), of("AllReduce 8 KiB f32"));
    let wait = late.int("proxy_wait_ns").unwrap();
    assert!((15_000_000..late.duration.unwrap()).contains(&wait), "{wait}");
    assert_eq!(other.int("proxy_wait_ns"), None, "it has no work of the proxy's");
    let part: Vec<_> = timeline.slices.iter().filter(|slice| slice.parent == Some(late.id)).collect();
    let [part] = part[..] else { panic!("{part:?}") };
    assert_eq!(part.name, "waits for the proxy, which is asleep");
    assert_eq!((part.begin, part.duration), (late.begin, Some(wait)));
    // The append and the operation name each other.
    let append = timeline.slice("append");
    assert_eq!(append.str("note"), Some("brought AllReduce 4 KiB f32"));
    let taken = timeline.slice("AllReduce 4 KiB f32 ch 3");
    assert_eq!((append.int("append_batch"), taken.int("append_batch")), (Some(1), Some(1)));

    // The summary has it, and that of the process the same.
    let files = recording.traces.files();
    let words = [
        "summary".as_ref(),
        "--table".as_ref(),
        "operations".as_ref(),
        "--format".as_ref(),
        "csv".as_ref(),
        files[0].as_os_str(),
    ];
    let table = crate::command::ncclscope(&words).unwrap();
    let mut lines = table.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let columns = lines.next().unwrap();
    let cell = |row: &[&str], name: &str| row[columns.iter().position(|column| *column == name).unwrap()].to_owned();
    let waits: Vec<_> =
        lines.map(|row| ["bytes", "proxy_waits", "proxy_wait_total_ns"].map(|name| cell(&row, name))).collect();
    let expected = [["4096", "1", &wait.to_string()], ["8192", "0", ""]].map(|row| row.map(str::to_owned));
    assert_eq!(waits, expected, "{table}");

    let trace = recording.traces.open();
    trace.query(include_str!("../sql/ncclscope.sql")).unwrap();
    let rows = trace.text("SELECT name, proxy_wait FROM nccl_execution ORDER BY ts");
    let lines: Vec<_> = rows.lines().skip(1).map(|line| line.replace('"', "")).collect();
    assert_eq!(lines[0], format!("AllReduce 4 KiB f32,{wait}"), "{rows}");
    assert!(lines.len() == 2 && !lines[1].ends_with(char::is_numeric), "{rows}");
}
