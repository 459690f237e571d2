//! Errors of our own: panics planted in every callback and every stage, and threads of ours that
//! end, stall or are slow (`PLANTED_FAULT`, `src/fault.rs`). Also all of CUPTI's errors.

use super::{CUDA, operation, record};
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Timeline;
use std::collections::BTreeSet;
use std::time::Duration;

/// Two lives that make every possible call.
fn job() -> String {
    let operations = |count: u32| -> String { (1..=count).map(|n| operation("world", &format!("{n}Ki"))).collect() };
    let more = "proxy start op world ProxyOp channelId=0 peer=1 nSteps=1 chunkSize=512Ki isSend=1\n\
                proxy state op OpInProgress\n\
                proxy start step world ProxyStep parent=op step=0\n\
                proxy state step StepSendGpuWait\n\
                proxy state step StepSendWait value=4096\n\
                proxy stop step\n\
                proxy stop op\n";
    let one = operations(3);
    let calls = "user name-comm renamed\nuser step 1\nuser step 2\n";
    format!(
        "{CUDA}{calls}user init world comm=0xabc rank=0 nranks=2\n{one}{more}{calls}\
         user sleep 50ms\n\
         user call ncclscope_release\nuser call ncclscope_acquire\n\
         {one}user finalize world\n\
         user init world comm=0xabd rank=0 nranks=2\n{one}{more}user finalize world\n"
    )
}

/// Plays it with a fault in the plugin. The job must not notice: each call succeeds.
#[track_caller]
fn with_fault(script: &str, planted: &str, settings: &[(&str, &str)]) -> Recording {
    let settings: Vec<_> = settings.iter().copied().chain([("PLANTED_FAULT", planted)]).collect();
    let recording = record(script, &settings);
    for call in recording.outcome.calls.iter().filter(|call| call.verb != "call") {
        assert_eq!(call.status.unwrap_or(0), 0, "{planted}: line {}: {:?}", call.line, call.label);
    }
    // What is printed is printed by us: no panic of Rust's own.
    assert!(!recording.outcome.stderr.contains("panicked"), "{planted}: {}", recording.outcome.stderr);
    recording
}

/// Asserts that Perfetto's engine reads whatever there is without an error.
#[track_caller]
fn assert_readable(recording: &Recording, planted: &str) -> Option<Trace> {
    let file = recording.traces.files().pop()?;
    if std::fs::metadata(&file).unwrap().len() == 0 {
        return None;
    }
    let trace = recording.traces.open();
    let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{planted}: {bad:?}");
    Some(trace)
}

/// The lines about an internal error; there must be one.
#[track_caller]
fn assert_confessed(recording: &Recording, planted: &str) {
    let lines: Vec<_> = recording.said().into_iter().filter(|line| line.contains("an internal error")).collect();
    // The thread that flushes is started again with each acquisition.
    let most = if planted.contains("flush") { 3 } else { 1 };
    assert!(
        (1..=most).contains(&lines.len()) && lines[0].contains("src/fault.rs:"),
        "{planted}: {:?}",
        recording.said()
    );
}

#[test]
fn a_panic_in_a_callback_is_caught_counted_and_reported() {
    let case = fault::case(
        "threads",
        "a panic in a callback: every start, stop, state, range of a step, and each of CUPTI's; at every visit, or at \
         each third",
        "the call answers success, the others are recorded, the panics are counted in the trace, one line names the place",
    );
    let places =
        ["startEvent", "stopEvent", "recordEventState", "step", "cupti event", "cupti request", "cupti complete"];
    let mut runs = 0;
    for place in places {
        for every in [1, 3] {
            let planted = format!("panic@{place}:{every}");
            let recording = with_fault(&job(), &planted, &[("NCCLSCOPE_PRESET", "full")]);
            // CUPTI asks for few buffers, and few steps are named.
            let is_rare = (place.starts_with("cupti ") || place == "step") && every > 1;
            assert_readable(&recording, &planted).unwrap();
            let figures = Timeline::read(&recording.traces.open()).figures();
            if !is_rare || figures.get("panics") > 0 {
                assert_confessed(&recording, &planted);
                assert!(figures.get("panics") > 0, "{planted}");
            }
            let of_nccl = if place.contains("Event") { figures.get("panics") } else { 0 };
            assert_eq!(figures.get("recorded") + of_nccl, recording.calls(), "{planted}");
            runs += 1;
        }
    }
    case.survived(runs);
}

#[test]
fn a_panic_in_a_call_that_may_wait_is_caught_and_reported() {
    let case = fault::case(
        "threads",
        "a panic in `init`, while the recording starts, in `finalize`, while CUPTI changes hands, a communicator is named, or the process exits",
        "the call answers success; the communicator, or the process, is not recorded, and one line says so",
    );
    let mut runs = 0;
    for (place, lines) in
        [("init:1", 2), ("init:2", 1), ("start", 1), ("finalize", 2), ("hand over", 2), ("name comm", 1), ("exit", 1)]
    {
        let planted = format!("panic@{place}");
        let recording = with_fault(&job(), &planted, &[]);
        assert_readable(&recording, &planted);
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("an internal error")).collect();
        // One for each call that failed, and no more.
        assert!((1..=lines + 1).contains(&said.len()), "{planted}: {:?}", recording.said());
        runs += 1;
    }
    case.survived(runs);
}

#[test]
fn a_panic_in_one_of_our_threads_ends_only_that_thread() {
    let case = fault::case(
        "threads",
        "a panic in each stage: draining, a record, decoding, writing, flushing CUPTI, the summary, the end",
        "the job goes on; the trace keeps what was written before, and one line names the place",
    );
    let mut runs = 0;
    for place in ["pass:3", "record:30", "decode:2", "write:2", "write:3", "flush", "summary", "end"] {
        let planted = format!("panic@{place}");
        let recording = with_fault(&job(), &planted, &[("NCCLSCOPE_FLUSH_PERIOD", "20")]);
        assert_readable(&recording, &planted);
        assert_confessed(&recording, &planted);
        if place == "flush" {
            let timeline = recording.timeline();
            let note = timeline.named("CUPTI released").first().and_then(|mark| mark.str("note"));
            assert!(note.unwrap().starts_with("after an internal error: what the GPU does"), "{note:?}");
        }
        runs += 1;
    }
    case.survived(runs);
}

#[test]
fn nothing_is_asked_of_nccl_once_the_recording_has_died() {
    // The first `finalize` waits until it has.
    let recording = with_fault(&job(), "panic@pass", &[]);
    let masks: Vec<_> = recording.outcome.calls.iter().filter(|call| call.verb == "init").map(|it| it.mask).collect();
    assert_eq!((masks.len(), masks.last()), (2, Some(&Some(0))), "{masks:?}");
}

#[test]
fn a_dead_or_stalled_thread_of_ours_is_waited_for_once() {
    let case = fault::case(
        "threads",
        "the thread that draws is killed, or stands still, while 40 communicators come and go",
        "one `finalize` waits 2 s for it, once, and one line says so; what was written before is readable",
    );
    let lives =
        format!("user init world comm=0xabc rank=0 nranks=2\n{}user finalize world\n", operation("world", "1Ki"));
    for kind in ["end", "stall"] {
        let planted = format!("{kind}@pass:3");
        // Without the wait at the end, which is bounded too.
        let script = format!("{CUDA}{}user _exit 0\n", lives.repeat(40));
        let began = std::time::Instant::now();
        let recording = with_fault(&script, &planted, &[]);
        // A limit for what hangs, not a measurement: without the rule it takes 80 s.
        assert!(began.elapsed() < Duration::from_secs(60), "{planted}: {:?}", began.elapsed());
        assert_readable(&recording, &planted);
        let said = recording.said().iter().filter(|line| line.contains("does not keep up")).count();
        assert_eq!(said, 1, "{planted}: {:?}", recording.said());
    }
    case.survived(2);
}

#[test]
fn a_slow_thread_of_ours_loses_nothing_uncounted() {
    let case = fault::case(
        "threads",
        "the thread that draws, or the one that writes, gets little time: 300 ms for each piece of work",
        "each call is recorded, or counted as dropped; the trace is whole",
    );
    for place in ["pass", "write", "decode"] {
        let planted = format!("slow@{place}");
        let recording = with_fault(&job(), &planted, &[("NCCLSCOPE_BUFFER_SIZE", "1M")]);
        assert_readable(&recording, &planted).unwrap();
        let figures = Timeline::read(&recording.traces.open()).figures();
        let counted = ["recorded", "dropped", "discarded"].map(|name| figures.get(name)).iter().sum::<u64>();
        assert_eq!(counted, recording.calls(), "{planted}");
    }
    case.survived(3);
}

/// The functions of CUPTI that the library calls, as its source has them.
fn functions() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/cupti");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let names = |text: String| -> Vec<_> {
        let calls = text.split("api.cupti").skip(1);
        let name = |rest: &str| rest.split(|it: char| !it.is_alphanumeric() && it != '_').next().map(str::to_owned);
        calls.filter_map(name).map(|name| format!("cupti{name}")).collect()
    };
    texts.flat_map(names).collect()
}

#[test]
fn every_error_of_every_function_of_cupti_is_survived() {
    let case = fault::case(
        "CUPTI",
        "each function of CUPTI that is called returns each of CUPTI's 48 error codes, one call after the other",
        "NCCL's calls are all recorded, every call of the job answers as before, no match is wrong, the trace is sound",
    );
    let mut runs = 0;
    let functions = functions();
    assert!(functions.len() > 15, "{functions:?}");
    for function in &functions {
        let rounds: String = (1..=50)
            .map(|n| {
                format!(
                    "user call ncclscope_acquire\n{}user call ncclscope_release\n",
                    operation("world", &format!("{n}Ki"))
                )
            })
            .collect();
        let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{rounds}user finalize world\n");
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("refuse=every@{function}"))]);
        for call in recording.outcome.calls.iter().filter(|call| call.verb != "call") {
            assert_eq!(call.status.unwrap_or(0), 0, "{function}: line {}", call.line);
        }
        let timeline = recording.timeline();
        let figures = timeline.figures();
        assert_eq!(figures.get("recorded"), recording.calls(), "{function}");
        assert_eq!((figures.get("panics"), figures.get("dropped")), (0, 0), "{function}");
        // Each operation has its own size, so a kernel of another one would be seen.
        let matched = timeline.slices.iter().filter(|it| it.category == "kernel" && it.str("doubt").is_none());
        let names: Vec<_> = matched.map(|it| &*it.name).collect();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), names.len(), "{function}: {names:?}");
        // What is missing is counted, or said.
        let is_told = !figures.remarkable().is_empty() || recording.said().len() > 1;
        assert!(names.len() == 50 || is_told, "{function}: {} kernels", names.len());
        runs += 48;
    }
    case.survived(runs);
}
