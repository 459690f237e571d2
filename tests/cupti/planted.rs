//! Errors of our own: panics planted in every callback and every stage, and threads of ours that
//! end, stall or are slow (`PLANTED_FAULT`, `src/fault.rs`). Also all of CUPTI's errors.

use super::{CUDA, answers, kernels, library_path, operation, record};
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, Traces};
use ncclscope_tests::timeline::Timeline;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
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
    let [calls, again] = ["renamed", "again"].map(|name| format!("user name-comm {name}\nuser step 1\nuser step 2\n"));
    format!(
        "{CUDA}{calls}user init world comm=0xabc rank=0 nranks=2\n{one}{more}{again}\
         user sleep 50ms\n\
         user call ncclscope_release\nuser call ncclscope_acquire\n\
         {one}user finalize world\n\
         user init world comm=0xabd rank=0 nranks=2\n{one}{more}user finalize world\n"
    )
}

/// Where a callback may panic.
const CALLBACKS: [&str; 7] =
    ["startEvent", "stopEvent", "recordEventState", "step", "cupti event", "cupti request", "cupti complete"];

/// Where a call that may wait may panic; then the lines, the communicators that have a context, and
/// what is missing in the trace. Without a first communicator there is no trace.
type Waiting = (&'static str, u64, [bool; 2], &'static [&'static str]);
const WAITING: [Waiting; 7] = [
    ("init:1", 2, [false, false], &[]),
    ("init:2", 1, [true, false], &["communicator init", "communicator finalize"]),
    ("start", 1, [false, false], &[]),
    ("finalize", 2, [true, true], &["communicator finalize", "communicator finalize"]),
    ("hand over", 2, [true, true], &["CUPTI released", "CUPTI taken again"]),
    ("name comm", 1, [true, true], &[]),
    ("exit", 1, [true, true], &["recording ended"]),
];

/// Where one of our threads may panic, with which it ends.
const STAGES: [&str; 9] = ["pass", "record", "decode", "capture", "write", "flush", "metrics", "summary", "end"];

/// Where a call that also goes to another plugin may panic, after it was recorded.
const FORWARDED: [&str; 5] = ["forward init", "forward start", "forward stop", "forward state", "forward finalize"];

/// Where a panic ends one thing, and has a test of its own.
const ALONE: [&str; 4] = ["cuInit", "take", "say", "answer"];

/// All of these.
pub(super) fn tried() -> BTreeSet<String> {
    let waiting = WAITING.iter().map(|(place, ..)| place.split(':').next().unwrap());
    waiting.chain(CALLBACKS).chain(STAGES).chain(FORWARDED).chain(ALONE).map(str::to_owned).collect()
}

/// Plays it with a fault in the plugin. The job must not notice: each call succeeds.
#[track_caller]
fn with_fault(script: &str, planted: &str, settings: &[(&str, &str)]) -> Recording {
    let settings: Vec<_> = settings.iter().copied().chain([("PLANTED_FAULT", planted)]).collect();
    let recording = record(script, &settings);
    assert_unnoticed(&recording, planted);
    recording
}

/// The operation before everything else in [`with_fault_when_written`].
const FIRST: &str = "AllReduce 36 KiB f32";

/// The same with a fault that is planted only when an operation before the script is in the file.
#[track_caller]
fn with_fault_when_written(script: &str, planted: &str) -> Recording {
    let traces = Traces::new();
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("written");
    let script = format!(
        "{CUDA}user init first comm=0xabb rank=0 nranks=2\n{}user finalize first\nuser wait-for {}\n{script}",
        operation("first", "9Ki"),
        written.display()
    );
    let play = Play::new(script).env("LD_LIBRARY_PATH", library_path()).folder(traces.path());
    let play = play.env("NCCLSCOPE_OUTPUT", traces.path()).env("PLANTED_FAULT", planted).env("PLANTED_AFTER", &written);
    let metrics = folder.path().join("metrics");
    let settings = [
        ("NCCLSCOPE_MIN_FREE", "0"),
        ("NCCLSCOPE_FLUSH_PERIOD", "20"),
        ("NCCLSCOPE_COMPRESS", "0"),
        ("NCCLSCOPE_CAPTURE", "1"),
        ("NCCLSCOPE_METRICS_FILE", metrics.to_str().unwrap()),
        ("NCCLSCOPE_METRICS_PERIOD", "1"),
    ];
    let play = play.envs(&settings);
    let has_first = |file| std::fs::read(file).unwrap().windows(FIRST.len()).any(|text| text == FIRST.as_bytes());
    let outcome = std::thread::scope(|both| {
        let host = both.spawn(|| play.run().unwrap());
        while !host.is_finished() && !traces.files().into_iter().any(has_first) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::write(&written, "").unwrap();
        host.join().unwrap()
    });
    let recording = Recording { outcome, traces };
    assert_unnoticed(&recording, planted);
    recording
}

/// Asserts that the trace still has what was in it when the fault was planted, and that Perfetto's
/// engine reads all of it without an error.
#[track_caller]
fn assert_first_is_there(recording: &Recording, planted: &str) -> Timeline {
    let trace = assert_readable(recording, planted).unwrap();
    let timeline = Timeline::read(&trace);
    assert!(!timeline.named(FIRST).is_empty(), "{planted}: what was written before is not there");
    timeline
}

/// Asserts that the job has not noticed a fault in the plugin.
#[track_caller]
fn assert_unnoticed(recording: &Recording, planted: &str) {
    assert_eq!(recording.outcome.status, Some(0), "{planted}: {}", recording.outcome.stderr);
    for call in recording.outcome.calls.iter().filter(|call| call.verb != "call") {
        assert_eq!(call.status.unwrap_or(0), 0, "{planted}: line {}: {:?}", call.line, call.label);
    }
    // What is printed is printed by us: no panic of Rust's own.
    assert!(!recording.outcome.stderr.contains("panicked"), "{planted}: {}", recording.outcome.stderr);
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
        (1..=most).contains(&lines.len()) && lines[0].contains("src/fault/planted.rs:"),
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
    let mut runs = 0;
    for place in CALLBACKS {
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
        "NCCL's calls answer success; only what the call was to do is missing (the communicator, the recording, its \
         end, CUPTI's hand-over, the name), and one line for each says so",
    );
    const DONE: [(&str, usize); 5] = [
        ("communicator init", 2),
        ("communicator finalize", 2),
        ("CUPTI released", 1),
        ("CUPTI taken again", 1),
        ("recording ended", 1),
    ];
    for (place, lines, recorded, missing) in WAITING {
        let planted = format!("panic@{place}");
        let recording = with_fault(&job(), &planted, &[]);
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("an internal error")).collect();
        assert_eq!(said.len() as u64, lines, "{planted}: {:?}", recording.said());
        let inits = recording.outcome.calls.iter().filter(|call| call.verb == "init");
        assert_eq!(inits.map(|call| call.handle != Some(0)).collect::<Vec<_>>(), recorded, "{planted}");
        if !recorded[0] {
            assert!(recording.traces.files().is_empty(), "{planted}: {:?}", recording.traces.files());
            continue;
        }
        let trace = assert_readable(&recording, &planted).unwrap();
        let timeline = Timeline::read(&trace);
        for (what, times) in DONE {
            let left = times - missing.iter().filter(|it| **it == what).count();
            assert_eq!(timeline.named(what).len(), left, "{planted}: {what}");
        }
        assert_eq!(kernels(&timeline).len(), 9, "{planted}: {:?}", kernels(&timeline));
        let last = timeline.named("communicator init").last().map(|init| timeline.place(init)).unwrap();
        assert_eq!(last.contains("/again · "), recorded[1] && place != "name comm", "{planted}: {last}");
        if !missing.contains(&"recording ended") {
            let figures = timeline.figures();
            assert_eq!((figures.get("panics"), figures.get("recorded")), (lines, recording.calls()), "{planted}");
        }
    }
    case.survived(WAITING.len() as u64);
}

#[test]
fn a_panic_in_one_of_our_threads_ends_only_that_thread() {
    let case = fault::case(
        "threads",
        "a panic in each stage: draining, a record, decoding, a capture, writing, flushing CUPTI, metrics, the \
         summary, the end",
        "the job goes on; the trace keeps what was written before, and one line for each thread names the place",
    );
    let mut runs = 0;
    for place in ["pass:3", "record:30", "decode:2", "write:2", "write:3", "capture:50", "flush", "summary", "end"] {
        let planted = format!("panic@{place}");
        let recording = with_fault(&job(), &planted, &[("NCCLSCOPE_FLUSH_PERIOD", "20"), ("NCCLSCOPE_CAPTURE", "1")]);
        assert_readable(&recording, &planted);
        assert_confessed(&recording, &planted);
        runs += 1;
    }
    let more = job().replacen(CUDA, "", 1);
    for place in STAGES {
        let planted = format!("panic@{place}");
        // Metrics are made once a second.
        let more = if place == "metrics" { format!("user sleep 1500ms\n{more}") } else { more.clone() };
        let recording = with_fault_when_written(&more, &planted);
        assert_confessed(&recording, &planted);
        let timeline = assert_first_is_there(&recording, &planted);
        if place == "flush" {
            let note = timeline.named("CUPTI released").first().and_then(|mark| mark.str("note"));
            assert!(note.unwrap().starts_with("after an internal error: what the GPU does"), "{note:?}");
        }
        runs += 1;
    }
    case.survived(runs);
}

#[test]
fn a_panic_while_a_call_is_passed_on_leaves_our_record() {
    let case = fault::case(
        "threads",
        "a panic while a call is passed on to another plugin (`NCCLSCOPE_CHAIN`): `init`, a start, a stop, a state, \
         `finalize`",
        "the call answers success and is recorded, and its event has its end; only a communicator whose `init` was to \
         be passed on is missing",
    );
    let other = play::plugin_path().unwrap().with_file_name("libncclscope_empty.so");
    let mut runs = 0;
    for place in FORWARDED {
        for every in [1, 3] {
            let planted = format!("panic@{place}:{every}");
            // Interface v7: the empty plugin asks for everything when there is nothing else.
            let settings = [("NCCLSCOPE_CHAIN", other.to_str().unwrap()), ("NCCLSCOPE_PRESET", "full")];
            let recording = with_fault(&job(), &planted, &settings);
            assert_readable(&recording, &planted).unwrap();
            let timeline = Timeline::read(&recording.traces.open());
            let figures = timeline.figures();
            // There are two communicators.
            let is_visited = every == 1 || !matches!(place, "forward init" | "forward finalize");
            assert_eq!(figures.get("panics") > 0, is_visited, "{planted}");
            let named =
                recording.said().into_iter().filter(|line| line.contains("an internal error at src/fault/planted.rs:"));
            // A call that may wait says so each time.
            let lines = if is_visited && place == "forward init" { 2 } else { usize::from(is_visited) };
            assert_eq!(named.count(), lines, "{planted}: {:?}", recording.said());
            let inits = recording.outcome.calls.iter().filter(|call| call.verb == "init");
            let has_context = inits.map(|call| call.handle != Some(0)).collect::<Vec<_>>();
            assert_eq!(has_context, [place != "forward init" || every > 1; 2], "{planted}");
            if has_context[0] {
                assert_eq!(figures.get("recorded"), recording.calls(), "{planted}");
                assert_eq!(kernels(&timeline).len(), 9, "{planted}: {:?}", kernels(&timeline));
                let open = timeline.slices.iter().filter(|slice| slice.duration.is_none()).count();
                assert_eq!(open, 0, "{planted}");
            }
            runs += 1;
        }
    }
    case.survived(runs);
}

/// Where CUPTI's taking may panic, the script, the settings; then the lines, what
/// `ncclscope_release` and `ncclscope_acquire` answer, and the kernels.
type Attempt<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u64, &'a [i32], &'a [&'a str]);

#[test]
fn a_panic_in_cu_init_or_while_cupti_is_taken_is_reported() {
    let case = fault::case(
        "threads",
        "a panic in `cuInit`, when injection starts us, or on the thread that takes CUPTI, at the start and when it is \
         taken again",
        "`cuInit`, `init` and `ncclscope_acquire` return at once; the recording starts later, or has no kernels for a \
         while; one line names the place, and CUPTI can be taken afterwards",
    );
    let take = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user call ncclscope_acquire\n{}user finalize world\n",
        operation("world", "1Ki"),
        operation("world", "2Ki"),
    );
    let plugin = play::plugin_path().unwrap();
    let injected = [("CUDA_INJECTION64_PATH", plugin.to_str().unwrap())];
    let taken_again =
        take.replacen("user call", "user call ncclscope_release\nuser call ncclscope_acquire\nuser call", 1);
    let ways: [Attempt<'_>; 3] = [
        ("cuInit", &take, &injected, 1, &[0], &["AllReduce 4 KiB f32", "AllReduce 8 KiB f32"]),
        // At the first visit and the third.
        ("take", &take, &[], 2, &[4], &[]),
        ("take:2", &taken_again, &[], 1, &[0, 4, 0], &["AllReduce 4 KiB f32", "AllReduce 8 KiB f32"]),
    ];
    for (place, script, settings, lines, acquired, expected) in ways {
        let planted = format!("panic@{place}");
        let recording = with_fault(script, &planted, settings);
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("an internal error at ")).collect();
        assert_eq!(said.len() as u64, lines, "{planted}: {:?}", recording.said());
        let answers: Vec<_> = answers(&recording)[1..].iter().map(|(_, answer)| *answer).collect();
        assert_eq!(answers, acquired, "{planted}: {:?}", recording.said());
        assert_readable(&recording, &planted).unwrap();
        let timeline = Timeline::read(&recording.traces.open());
        assert_eq!(timeline.figures().get("panics"), lines, "{planted}");
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{planted}");
        assert_eq!(kernels(&timeline).iter().map(|(name, _)| *name).collect::<Vec<_>>(), expected, "{planted}");
    }
    case.survived(ways.len() as u64);
}

#[test]
fn a_panic_while_a_line_is_sent_loses_only_that_line() {
    let case = fault::case(
        "threads",
        "a panic on the thread that sends lines: with each line, or with every second one",
        "the other lines are sent, the panics are counted in the trace, and the trace is whole",
    );
    for every in [1, 2] {
        let planted = format!("panic@say:{every}");
        let recording = with_fault(&job(), &planted, &[("NCCLSCOPE_LOG", "debug")]);
        assert_readable(&recording, &planted).unwrap();
        let timeline = Timeline::read(&recording.traces.open());
        let figures = timeline.figures();
        assert!(figures.get("panics") > 0, "{planted}");
        assert_eq!(figures.get("recorded"), recording.calls(), "{planted}");
        let said = recording.said();
        assert_eq!(said.is_empty(), every == 1, "{planted}: {said:?}");
        let named = said.iter().filter(|line| line.contains("while a line was sent")).count();
        assert!(named <= usize::from(every > 1), "{planted}: {said:?}");
    }
    case.survived(2);
}

#[test]
fn a_panic_while_metrics_are_served_ends_only_the_port() {
    let case = fault::case(
        "threads",
        "a panic while a request for metrics is answered",
        "that request and later ones get no answer, one line names the place, and the recording goes on",
    );
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let go_on = folder.path().join("go-on");
    let script = job().replacen("user sleep 50ms", &format!("user wait-for {}", go_on.display()), 1);
    let number = port.to_string();
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let recording = std::thread::scope(|both| {
        let played = both.spawn(|| with_fault(&script, "panic@answer", &[("NCCLSCOPE_METRICS_PORT", &number)]));
        // Whoever connects before the panic may be cut off.
        let mut cut_off = 0;
        while !played.is_finished() && cut_off == 0 {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(_) => {
                    assert!(ask().unwrap_or_default().is_empty());
                    cut_off += 1;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        std::fs::write(&go_on, "").unwrap();
        played.join().unwrap()
    });
    assert_readable(&recording, "panic@answer").unwrap();
    let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("an internal error at ")).collect();
    assert!(said.len() == 1 && said[0].contains("ended the metrics at the port"), "{said:?}");
    let timeline = Timeline::read(&recording.traces.open());
    assert_eq!(timeline.figures().get("recorded"), recording.calls());
    assert_eq!(kernels(&timeline).len(), 9);
    case.survived(1);
}

#[test]
fn nothing_is_asked_of_nccl_once_the_recording_has_died() {
    let case = fault::case(
        "threads",
        "a communicator is created after an internal error has ended the recording",
        "NCCL is asked for no events of it",
    );
    // The first `finalize` waits until it has.
    let recording = with_fault(&job(), "panic@pass", &[]);
    let masks: Vec<_> = recording.outcome.calls.iter().filter(|call| call.verb == "init").map(|it| it.mask).collect();
    assert_eq!((masks.len(), masks.last()), (2, Some(&Some(0))), "{masks:?}");
    case.survived(1);
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
        let planted = format!("{kind}@pass");
        // Without the wait at the end, which is bounded too.
        let script = format!("{}user _exit 0\n", lives.repeat(40));
        let began = std::time::Instant::now();
        let recording = with_fault_when_written(&script, &planted);
        // A limit for what hangs, not a measurement: without the rule it takes 80 s.
        assert!(began.elapsed() < Duration::from_secs(60), "{planted}: {:?}", began.elapsed());
        assert_first_is_there(&recording, &planted);
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

/// How CUPTI is used, so that it is called in every way there is.
struct Way {
    settings: &'static [(&'static str, &'static str)],
    /// The words of `EMULATED_CUPTI`.
    words: &'static str,
    /// Further lines of each round.
    more: &'static str,
    /// The functions that are refused then.
    functions: &'static [&'static str],
}

const WAYS: [Way; 7] = [
    Way {
        settings: &[],
        words: "",
        more: "",
        functions: &[
            "cuptiActivityDisable",
            "cuptiActivityEnable",
            "cuptiActivityEnableAndDump",
            "cuptiActivityFlushAll",
            "cuptiActivityGetNextRecord",
            "cuptiActivityGetNumDroppedRecords",
            "cuptiActivityRegisterCallbacks",
            "cuptiEnableCallback",
            "cuptiGetThreadIdType",
            "cuptiGetTimestamp",
            "cuptiGetVersion",
            "cuptiSetThreadIdType",
            "cuptiSubscribe",
            "cuptiUnsubscribe",
        ],
    },
    Way {
        settings: &[("NCCLSCOPE_CUPTI", "share")],
        words: "release=13.5,share,",
        more: "",
        functions: &[
            "cuptiActivityDisable_v2",
            "cuptiActivityEnableAndDump_v2",
            "cuptiActivityEnable_v2",
            "cuptiActivityGetNextRecord_v2",
            "cuptiActivityGetNumDroppedRecords_v2",
            "cuptiActivityRegisterCallbacks_v2",
            "cuptiActivitySetAttribute_v2",
            "cuptiGetTimestamp_v2",
            "cuptiSubscribe_v2",
        ],
    },
    Way {
        settings: &[("NCCLSCOPE_CUPTI_CLOCK", "boottime")],
        words: "",
        more: "",
        functions: &["cuptiActivityRegisterTimestampCallback"],
    },
    Way { settings: &[("NCCLSCOPE_CUDA_API", "1")], words: "", more: "", functions: &["cuptiGetCallbackName"] },
    Way {
        settings: &[("NCCLSCOPE_MATCH", "external")],
        words: "",
        more: "",
        functions: &["cuptiActivityPopExternalCorrelationId", "cuptiActivityPushExternalCorrelationId"],
    },
    Way {
        settings: &[("NCCLSCOPE_CUPTI", "share"), ("NCCLSCOPE_MATCH", "external")],
        words: "release=13.5,share,",
        more: "",
        functions: &["cuptiActivityPopExternalCorrelationId_v2", "cuptiActivityPushExternalCorrelationId_v2"],
    },
    Way {
        settings: &[],
        words: "",
        more: "user start captured world KernelLaunch stream=0x10\nuser capture 0x900000002\nuser stop captured\n",
        functions: &["cuptiGetGraphNodeId"],
    },
];

/// Only looked for, never called.
const NEVER_CALLED: &str = "cuptiActivityGetStructSize";

/// How many error codes CUPTI has: 1 to 47, and 999.
const ERRORS: u32 = 48;

/// Plays this many rounds in which CUPTI is taken, used and given up, while one of its functions
/// returns these errors. Returns how many calls were refused.
fn refused(way: &Way, function: &str, errors: &str, rounds: u32) -> u32 {
    let what = format!("{function}, {errors}");
    let round = |n: u32| {
        let operation = operation("world", &format!("{n}Ki"));
        format!("user call ncclscope_acquire\n{operation}{}user call ncclscope_release\n", way.more)
    };
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user call emulated_cupti_refused library=libcupti.so.13\n\
         user finalize world\n",
        (1..=rounds).map(round).collect::<String>()
    );
    let words = format!("{}refuse={errors}@{function}", way.words);
    let recording = record(&script, &[way.settings, &[("EMULATED_CUPTI", &words)]].concat());
    for call in recording.outcome.calls.iter().filter(|call| call.verb != "call") {
        assert_eq!(call.status.unwrap_or(0), 0, "{what}: line {}", call.line);
    }
    let timeline = recording.timeline();
    let figures = timeline.figures();
    assert_eq!(figures.get("recorded"), recording.calls(), "{what}");
    assert_eq!((figures.get("panics"), figures.get("dropped")), (0, 0), "{what}");
    // Each operation has its own size, so a kernel of another one would be seen.
    let matched = timeline.slices.iter().filter(|it| it.category == "kernel" && it.str("doubt").is_none());
    let names: Vec<_> = matched.map(|it| &*it.name).collect();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "{what}: {names:?}");
    // What is missing is counted, or said.
    let is_told = !figures.remarkable().is_empty() || recording.said().len() > 1;
    assert!(names.len() == rounds as usize || is_told, "{what}: {} kernels", names.len());
    let (_, refused) = *answers(&recording).last().unwrap();
    refused.cast_unsigned()
}

/// Has a function return each error: one call after the other, as long as it is called.
fn return_every_error(way: &Way, function: &str) {
    let returned = refused(way, function, "every", 50);
    assert!((1..=ERRORS).contains(&returned), "{function}: {returned} errors");
    println!("{function}: {returned} errors in one job");
    // It was called too rarely for the others: each has a job of its own.
    let codes: Vec<_> = (returned + 1..=ERRORS).map(|code| if code == ERRORS { 999 } else { code }).collect();
    std::thread::scope(|scope| {
        for codes in codes.chunks(12) {
            scope.spawn(|| {
                let called = |code: &u32| refused(way, function, &code.to_string(), 1) > 0;
                assert!(codes.iter().all(called), "{function} was not called");
            });
        }
    });
}

#[test]
fn every_error_of_every_function_of_cupti_is_survived() {
    let case = fault::case(
        "CUPTI",
        "each of the 30 functions of CUPTI that are called returns each of CUPTI's 48 error codes, alone and shared, \
         with callbacks and external ids, with a clock of ours, calls into CUDA, and a graph",
        "NCCL's calls are all recorded, every call of the job answers as before, no match is wrong, the trace is sound",
    );
    let of_ways = WAYS.iter().flat_map(|way| way.functions).copied().chain([NEVER_CALLED]);
    assert_eq!(functions(), of_ways.map(str::to_owned).collect(), "each is refused in one of the ways");
    let all: Vec<_> = WAYS.iter().flat_map(|way| way.functions.iter().map(move |function| (way, *function))).collect();
    assert_eq!(all.len(), 30);
    // Most of it is waiting.
    std::thread::scope(|scope| {
        for some in all.chunks(8) {
            scope.spawn(|| some.iter().for_each(|(way, function)| return_every_error(way, function)));
        }
    });
    case.survived(all.len() as u64 * u64::from(ERRORS));
}
