//! Things that a job can do, although none should: fork at the wrong moment, cancel threads, run
//! out of memory. The job continues, and the trace is complete.
//!
//! Each case runs in a process of its own, `support/hostile.c`.

use crate::command::ncclscope;
use crate::cupti::library_path;
use ncclscope::config::SETTINGS;
use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::{self, Finished};
use ncclscope_tests::recording::{Traces, assert_sound, said};
use ncclscope_tests::timeline::{Figures, Timeline};
use serde_json::Value as Json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;

/// `hostile.c`, compiled with the C compiler that links Rust programs here.
static PROGRAM: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("hostile");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/support/hostile.c");
    let compiler = std::env::var_os("CC").unwrap_or("cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-O1", "-rdynamic", "-pthread", "-o"]).arg(&program).arg(source).arg("-ldl");
    let result = command.output().unwrap_or_else(|error| panic!("failed to run {compiler:?}: {error}"));
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    (folder, program)
});

/// What the program did, and what it left behind.
struct Run {
    report: Json,
    stderr: String,
    traces: Traces,
}

impl Run {
    /// Asserts that the program ended normally.
    #[track_caller]
    fn of(way: &[&str], settings: &[(&str, &str)]) -> Run {
        Run::ending(way, settings, 0)
    }

    /// The same, with another exit status of the program's own.
    #[track_caller]
    fn ending(way: &[&str], settings: &[(&str, &str)], expected: i32) -> Run {
        Run::lasting(way, settings, expected, Duration::from_secs(100))
    }

    /// The same, with another limit of time.
    #[track_caller]
    fn lasting(way: &[&str], settings: &[(&str, &str)], expected: i32, limit: Duration) -> Run {
        let traces = Traces::new();
        let mut command = Command::new(&PROGRAM.1);
        play::clean_environment(&mut command);
        command.arg(play::plugin_path().unwrap()).args(way).current_dir(traces.path());
        command.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0").envs(settings.iter().copied());
        let Finished { status, stdout, stderr } = play::run(&mut command, "", limit).unwrap();
        assert_eq!(status.code(), Some(expected), "{way:?}: {status}: {stdout} {stderr}");
        let report = serde_json::from_str(&stdout).unwrap_or(Json::Null);
        Run { report, stderr, traces }
    }

    #[track_caller]
    fn figure(&self, name: &str) -> u64 {
        self.report[name].as_u64().unwrap_or_else(|| panic!("no figure `{name}` in {}", self.report))
    }

    /// Asserts that this holds for one of the traces.
    #[track_caller]
    fn only(&self, holds: impl Fn(&Trace) -> bool) {
        let traces = self.traces.files();
        let found = traces.iter().filter(|file| holds(&Trace::open(file).unwrap())).count();
        assert_eq!(found, 1, "{traces:?}");
    }

    /// Asserts that each call is recorded, dropped or discarded, and that the trace has its final
    /// event. Slices that nobody stopped are open.
    #[track_caller]
    fn account(&self) -> (Trace, Figures) {
        let trace = self.traces.open();
        assert_readable(&trace);
        let figures = Figures::read(&trace);
        let [recorded, dropped, discarded] = ["recorded", "dropped", "discarded"].map(|name| figures.get(name));
        assert_eq!(recorded + dropped + discarded, self.figure("calls"), "{recorded} + {dropped} + {discarded}");
        (trace, figures)
    }
}

/// Asserts that Perfetto's engine reads the trace without an error.
#[track_caller]
fn assert_readable(trace: &Trace) {
    let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{bad:?}");
}

// ---- memory ----

#[test]
fn a_job_with_a_memory_limit_continues() {
    let case = fault::case(
        "memory",
        "`RLIMIT_AS` leaves 0 to 400 MiB before the first `init`, and page by page around what is just enough",
        "the process is recorded, or says that it is not; the job ends well",
    );
    // From too little memory for us to enough.
    let mut recorded = Vec::new();
    for megabytes in [0, 4, 16, 24, 40, 52, 58, 62, 66, 72, 80, 400] {
        let run = Run::of(&["limit-before", &(megabytes << 10).to_string()], &[]);
        if run.figure("recorded") == 1 {
            run.account();
        } else {
            assert!(said(&run.stderr).iter().any(|line| line.contains("not recorded")), "{}", run.stderr);
        }
        recorded.push(run.figure("recorded"));
    }
    assert!(recorded.is_sorted(), "{recorded:?}");
    assert_eq!((recorded[0], recorded.last()), (0, Some(&1)));
    // Page by page around what is just enough: wherever it runs out, the job continues.
    let at = |kilobytes: u64| Run::of(&["limit-before", &kilobytes.to_string()], &[]).figure("recorded") == 1;
    let (mut little, mut enough) = (0, 400 << 10);
    while enough - little > 4 {
        let middle = (little + enough) / 8 * 4;
        *if at(middle) { &mut enough } else { &mut little } = middle;
    }
    for pages in 0..100 {
        at(enough - 200 + 4 * pages);
    }
    case.survived(12 + 100);
}

#[test]
fn running_out_of_memory_while_recording_ends_nothing() {
    let case = fault::case(
        "memory",
        "`RLIMIT_AS` leaves 0 or 1 MiB once recording",
        "everything is recorded: ncclscope asks the system for no more memory",
    );
    for kilobytes in ["0", "1024"] {
        let (_, figures) = Run::of(&["limit-after", kilobytes], &[]).account();
        assert!(figures.get("recorded") > 0);
        assert_eq!(figures.get("discarded"), 0, "all of it was there from the start");
    }
    case.survived(2);
}

#[test]
fn a_thread_of_ours_that_finds_no_memory_at_all_stops_without_the_job() {
    let case = fault::case(
        "memory",
        "`RLIMIT_AS` leaves nothing, and the thread that draws, or the one that writes, needs more than our heap has \
         (planted)",
        "the thread stops for good, and with it the recording; the job goes on and ends, one line says so, and what was \
         written before is readable",
    );
    for place in ["pass", "write"] {
        let folder = tempfile::tempdir().unwrap();
        let limited = folder.path().join("limited");
        let planted = format!("hoard@{place}");
        let settings = [
            ("PLANTED_FAULT", &*planted),
            ("PLANTED_AFTER", limited.to_str().unwrap()),
            ("NCCLSCOPE_FLUSH_PERIOD", "20"),
        ];
        let run = Run::of(&["limit-after", "0"], &settings);
        assert!(run.figure("calls") > 100_000, "{place}: the job went on");
        let trace = run.traces.open();
        assert_readable(&trace);
        let drawn = trace.rows("SELECT name FROM slice WHERE name = 'Group' LIMIT 1").len();
        let closed = trace.rows("SELECT name FROM slice WHERE name = 'recording ended'").len();
        assert_eq!((drawn, closed), (1, 0), "{place}");
        let lines = said(&run.stderr);
        let over = lines.iter().filter(|line| line.contains("the system has none left")).count();
        assert_eq!(over, 1, "{place}: {}", run.stderr);
    }
    case.survived(2);
}

#[test]
fn nothing_is_allocated_from_the_job_while_recording() {
    let case = fault::case("memory", "`malloc` returns null on all of our threads", "everything is recorded");
    // Our threads can do without libc's allocator.
    let run = Run::of(&["no-malloc"], &[]);
    run.account();
    let reserved = run.figure("reserved_kib");
    // 32 MiB of rings, 32 of heap, two stacks of 2 MiB, and the 64 MiB that libc reserves for each
    // thread that allocates.
    assert!(reserved < 200 << 10, "{reserved} KiB of addresses");
    case.survived(1);
}

#[test]
fn an_absurd_ring_size_is_refused() {
    let case = fault::case("memory", "`NCCLSCOPE_BUFFER_SIZE=100G`", "refused with one line, and the default is used");
    let rooms = ["100G", "32M", "1M"].map(|size| {
        let run = Run::of(&["cancel"], &[("NCCLSCOPE_BUFFER_SIZE", size)]);
        let refusals = said(&run.stderr).iter().filter(|line| line.contains("NCCLSCOPE_BUFFER_SIZE")).count();
        assert_eq!(refusals, usize::from(size == "100G"), "{size}: {}", run.stderr);
        let trace = run.traces.open();
        assert_sound(&trace, 0);
        let cost = Timeline::read(&trace).slice("cost of the recording").str("note").unwrap().to_owned();
        // At most so many % of this size for records.
        let room = cost.split_once(" % of ").and_then(|(_, rest)| rest.split_once(" for records"));
        room.unwrap_or_else(|| panic!("{cost}")).0.to_owned()
    });
    let default = SETTINGS.iter().find(|setting| setting.name == "NCCLSCOPE_BUFFER_SIZE").unwrap().default;
    assert_eq!(default, "32M");
    assert!(rooms[0] == rooms[1] && rooms[1] != rooms[2], "{rooms:?}");
    case.survived(1);
}

/// The most that a recording may add to a process with one thing at its worst.
const MOST_GROWTH: u64 = 64 << 10;

#[test]
fn channels_and_unstopped_events_take_no_more_memory() {
    let case = fault::case(
        "memory",
        "no event is ever stopped; 32 and 255 channels without their kernels, with CUPTI; channels that are never stopped",
        "memory stays below 64 MiB, and the recording does not have to end for lack of it",
    );
    let path = library_path().to_str().unwrap();
    for way in [&["channels", "32"][..], &["channels", "255"], &["open-channels", "64"], &["open"]] {
        let alone = Run::of(way, &[("NCCLSCOPE_PRESET", "off"), ("LD_LIBRARY_PATH", path)]).figure("grown_kib");
        let run = Run::of(way, &[("LD_LIBRARY_PATH", path)]);
        let grown = run.figure("grown_kib").saturating_sub(alone);
        assert!(grown < MOST_GROWTH, "{way:?}: the recording added {grown} KiB");
        assert!(!run.stderr.contains("memory"), "{way:?}: it must not end for lack of memory: {}", run.stderr);
    }
    case.survived(4);
}

/// `NCCLSCOPE_SOAK` is how many seconds it takes.
#[test]
fn a_long_job_with_everything_switched_on_does_not_grow() {
    let case = fault::case(
        "memory",
        "communicators and threads that come and go, CUPTI lent and taken, steps, ranges of NVTX, proxies, channels, \
         some never stopped, beside another plugin, with every kind of event, both ways to draw kernels, a capture, a \
         summary and metrics while it runs (runs: communicators)",
        "threads and descriptors stay as many as in the first quarter of the time, memory grows by less than 8 MiB after \
         the second, and the recording does not have to end for lack of it; every call is recorded or counted",
    );
    let seconds = std::env::var("NCCLSCOPE_SOAK").ok().and_then(|it| it.parse().ok()).unwrap_or(60_u64);
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics.prom");
    let other = play::plugin_path().unwrap().with_file_name("libncclscope_empty.so");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let settings = [
        ("LD_LIBRARY_PATH", library_path().to_str().unwrap()),
        ("NCCLSCOPE_PRESET", "full"),
        ("NCCLSCOPE_CAPTURE", "1"),
        ("NCCLSCOPE_CUDA_API", "1"),
        ("NCCLSCOPE_NVTX", "1"),
        ("NCCLSCOPE_GPU_EVENTS", "both"),
        ("NCCLSCOPE_KERNEL_CH", "force"),
        ("NCCLSCOPE_CHAIN", other.to_str().unwrap()),
        ("NCCLSCOPE_SUMMARY_PERIOD", "1"),
        ("NCCLSCOPE_METRICS_FILE", metrics.to_str().unwrap()),
        ("NCCLSCOPE_METRICS_PORT", &port),
        ("NCCLSCOPE_METRICS_PERIOD", "1"),
        ("NCCLSCOPE_FLUSH_PERIOD", "100"),
    ];
    let run = Run::lasting(&["soak", &seconds.to_string()], &settings, 0, Duration::from_secs(100 + 2 * seconds));
    println!("{}", run.report);
    for part in ["second", "third", "fourth"] {
        // A thread that sends a line, and files that are replaced, may be there at that moment.
        for (what, passing) in [("threads", 1), ("descriptors", 3)] {
            let [before, now] = ["first", part].map(|part| run.figure(&format!("{part}_{what}")));
            assert!(now <= before + passing, "{what} grew in the {part} quarter: {}", run.report);
        }
    }
    let [before, now] = ["second", "fourth"].map(|part| run.figure(&format!("{part}_memory_kib")));
    assert!(now < before + (8 << 10), "{}", run.report);
    assert!(!run.stderr.contains("NCCLSCOPE_HEAP_SIZE"), "it must not end for lack of memory: {}", run.stderr);
    assert!(!run.stderr.contains("NCCLSCOPE_CHAIN"), "the other plugin is to be there: {}", run.stderr);
    if run.stderr.contains("NCCLSCOPE_MAX_SIZE") {
        println!("the file became full");
    }
    // Our own reader takes a trace of any size. Perfetto's engine has 4 GB for it.
    let file = run.traces.file();
    let told = ncclscope(&[Path::new("info"), &file, Path::new("--json"), Path::new("-")]).unwrap();
    let told: Json = serde_json::from_str(&told).unwrap();
    let recording = &told["files"][0]["recordings"][0];
    let accounted: Option<u64> =
        ["recorded", "dropped", "discarded"].iter().map(|name| recording["figures"][*name].as_u64()).sum();
    assert_eq!((accounted, &recording["state"]), (Some(run.figure("calls")), &Json::from("closed")));
    if seconds <= 60 {
        let (trace, _) = run.account();
        let ranges = &trace.rows("SELECT count(*) AS n FROM slice WHERE category = 'nvtx'")[0];
        assert!(ranges.i64("n") > 0, "no range of NVTX was recorded");
        let plugins = trace.rows("SELECT name FROM slice WHERE name = 'another profiler plugin'");
        assert_eq!(plugins.len(), 1, "the other plugin is there");
    }
    case.survived(run.figure("rounds"));
}

// ---- children ----

#[test]
fn children_forked_while_init_runs_do_not_hang() {
    let case = fault::case(
        "processes",
        "children forked while the first `init` runs; each calls `init`, an event, `finalize`",
        "every child ends",
    );
    // Each time they are forked at other moments of it.
    let mut children = 0;
    for _ in 0..5 {
        let run = Run::of(&["fork"], &[]);
        assert_eq!(run.figure("bad"), 0, "{}: {}", run.report, run.stderr);
        children += run.figure("children");
    }
    assert!(children >= 10, "{children} children");
    case.survived(children);
}

#[test]
fn a_child_made_by_a_raw_clone_is_left_alone() {
    let case = fault::case(
        "processes",
        "a child created by a bare `clone` calls everything and exits",
        "it gets mask 0 and null handles, ends at once, and is not in the trace",
    );
    let run = Run::of(&["clone"], &[]);
    assert_eq!(run.figure("bad"), 0, "{}", run.stderr);
    let trace = run.traces.open();
    assert_sound(&trace, 0);
    let timeline = Timeline::read(&trace);
    assert_eq!((timeline.named("Group").len(), timeline.named("recording ended").len()), (1, 1));
    case.survived(1);
}

// ---- threads ----

#[test]
fn when_disabled_there_are_no_threads() {
    let case = fault::case("processes", "`NCCLSCOPE_ENABLE=0`", "no thread, no file, no line");
    let off = Run::of(&["threads"], &[("NCCLSCOPE_ENABLE", "0")]);
    assert_eq!((off.figure("mask"), off.figure("threads"), &*off.stderr), (0, 1, ""));
    assert_eq!(fs::read_dir(off.traces.path()).unwrap().count(), 0);
    // Otherwise there are threads, and this check sees them.
    let on = Run::of(&["threads"], &[]);
    assert!(on.figure("mask") > 0 && on.figure("threads") >= 3, "{}", on.report);
    case.survived(1);
}

#[test]
fn a_thread_cancelled_in_init_or_finalize_ends_after_it() {
    let case = fault::case(
        "threads",
        "a thread is cancelled (`pthread_cancel`) before it calls `init` or `finalize`",
        "the call completes, then the thread ends; the trace is whole",
    );
    let run = Run::of(&["cancel"], &[]);
    let trace = run.traces.open();
    assert_sound(&trace, 0);
    let timeline = Timeline::read(&trace);
    for name in ["communicator init", "Group", "communicator finalize", "recording ended"] {
        assert_eq!(timeline.named(name).len(), 1, "{name}");
    }
    case.survived(2);
}

#[test]
fn calls_from_a_signal_handler_are_recorded_or_counted() {
    let case = fault::case(
        "threads",
        "a signal handler calls the plugin in the middle of another call, 20,000 signals 20 us apart",
        "every call is recorded or counted as dropped, and no handle is given out twice",
    );
    // Small rings, so that little is left to draw at the exit, which must not take long.
    let run = Run::of(&["signals", "20000"], &[("NCCLSCOPE_BUFFER_SIZE", "2M")]);
    let (_, figures) = run.account();
    // How many are recorded is up to how busy the machine is.
    assert!(figures.get("recorded") > 0 && run.figure("in_handlers") >= 40000, "{}", run.report);
    assert_eq!(figures.get("panics"), 0);
    // If two events shared a handle, one of them would seem to be stopped twice. On a busy machine,
    // rings have no room for some starts; the stops of those are of unknown events.
    let doubts = figures.remarkable();
    assert!(doubts.contains_key("dropped"), "{doubts:?}");
    assert!(doubts.keys().all(|doubt| ["dropped", "unknown_handles"].contains(doubt)), "{doubts:?}");
    assert!(figures.get("unknown_handles") <= figures.get("dropped"), "{doubts:?}");
    case.survived(20_000);
}

#[test]
fn a_copy_in_another_linker_namespace_leaves_the_recording_to_the_first() {
    let case = fault::case(
        "processes",
        "a second copy in a namespace of its own (`dlmopen`)",
        "it records nothing and says so",
    );
    let run = Run::of(&["namespaces"], &[]);
    let masks = run.report["masks"].as_array().unwrap();
    assert!(masks[0].as_u64() > Some(0) && masks[1].as_u64() == Some(0), "{}", run.report);
    let told = said(&run.stderr).into_iter().filter(|line| line.contains("another copy of ncclscope")).count();
    assert_eq!(told, 1, "{}", run.stderr);
    let trace = run.traces.open();
    assert_sound(&trace, 0);
    assert_eq!(Timeline::read(&trace).named("Group").len(), 1);
    case.survived(1);
}

// ---- ends ----

#[test]
fn children_forked_in_every_phase_are_left_alone() {
    let case = fault::case(
        "processes",
        "children forked before the first `init`, between the calls of four threads, during `finalize`, after it; each \
         calls `init`, an event, `finalize`",
        "every child ends; the trace has the parent's calls and no others",
    );
    let run = Run::of(&["fork-phases"], &[("NCCLSCOPE_LOG", "quiet")]);
    assert_eq!(run.figure("bad"), 0, "{}: {}", run.report, run.stderr);
    assert!(run.figure("children") >= 25, "{}", run.report);
    run.only(|trace| {
        // Each child that was forked before the first `init` has a trace without an end.
        if trace.rows("SELECT name FROM slice WHERE name = 'recording ended'").is_empty() {
            return false;
        }
        let figures = Figures::read(trace);
        let counted = ["recorded", "dropped", "discarded"].map(|name| figures.get(name)).iter().sum::<u64>();
        counted == run.figure("calls")
    });
    case.survived(run.figure("children"));
}

#[test]
fn a_program_that_replaces_itself_leaves_two_traces() {
    let case = fault::case(
        "processes",
        "`exec` while four threads send, into a program that uses the plugin too",
        "what was flushed before it is readable; the new program has a trace of its own",
    );
    let run = Run::of(&["exec"], &[("NCCLSCOPE_FLUSH_PERIOD", "20")]);
    let files = run.traces.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let mut ended = 0;
    for file in &files {
        let trace = Trace::open(file).unwrap();
        assert_readable(&trace);
        let timeline = Timeline::read(&trace);
        assert!(!timeline.named("Group").is_empty());
        ended += timeline.named("recording ended").len();
    }
    assert_eq!(ended, 1);
    case.survived(1);
}

#[test]
fn a_library_closed_while_threads_are_inside_keeps_working() {
    let case = fault::case(
        "threads",
        "`dlclose`, three times, while four threads are inside",
        "the library stays mapped; every call is recorded or counted",
    );
    Run::of(&["dlclose"], &[]).account();
    case.survived(1);
}

#[test]
fn threads_may_begin_and_end_during_finalize() {
    let case = fault::case(
        "threads",
        "eight threads begin, send and end while the last communicator is finalized, 30 times",
        "every call is recorded or counted",
    );
    Run::of(&["finalize"], &[]).account();
    case.survived(30);
}

#[test]
fn init_may_race_finalize() {
    let case = fault::case(
        "threads",
        "four threads initialise and finalize a communicator 200 times each, at once",
        "every `init` succeeds, every call is recorded or counted, each communicator begins and ends",
    );
    let run = Run::of(&["race"], &[]);
    let (trace, figures) = run.account();
    if figures.get("dropped") == 0 {
        for name in ["communicator init", "communicator finalize"] {
            let row = &trace.rows(&format!("SELECT count(*) AS n FROM slice WHERE name = '{name}'"))[0];
            assert_eq!(row.i64("n"), 800, "{name}");
        }
    }
    case.survived(800);
}

#[test]
fn static_destructors_may_call_the_plugin() {
    let case = fault::case(
        "processes",
        "a program's own exit handler and destructor call `init`, events and `finalize` after ours have run",
        "the calls succeed and are not recorded; the trace is whole",
    );
    let run = Run::of(&["destructors"], &[]);
    run.account();
    assert_eq!(run.traces.files().len(), 1);
    case.survived(1);
}

#[test]
fn a_thread_may_exit_while_others_are_inside() {
    let case = fault::case(
        "processes",
        "`exit(7)` on a thread that calls the plugin while four others are inside",
        "the exit status is the job's; the trace has its closing record",
    );
    for _ in 0..5 {
        let run = Run::ending(&["exit"], &[], 7);
        let trace = run.traces.open();
        assert_readable(&trace);
        assert_eq!(Timeline::read(&trace).named("recording ended").len(), 1);
    }
    case.survived(5);
}

// ---- clocks and processors ----

#[test]
fn setting_the_wall_clock_back_moves_no_event() {
    let case = fault::case(
        "clocks",
        "the wall clock goes back by an hour while the job is recorded, with each source of times",
        "the events stay in order and at their distance: times do not come from that clock",
    );
    for clock in ["auto", "boottime"] {
        let run = Run::of(&["clock"], &[("NCCLSCOPE_CLOCK", clock)]);
        let (trace, _) = run.account();
        assert_sound(&trace, 0);
        let timeline = Timeline::read(&trace);
        let begins: Vec<_> = timeline.named("Group").iter().map(|slice| slice.begin).collect();
        assert_eq!(begins.len(), 6, "{clock}");
        for pair in begins.windows(2) {
            let apart = pair[1] - pair[0];
            // At least what it slept, and no hour.
            assert!((150_000_000..600_000_000_000).contains(&apart), "{clock}: {begins:?}");
        }
    }
    case.survived(2);
}

#[test]
fn a_clock_that_goes_back_ends_no_recording() {
    let case = fault::case(
        "clocks",
        "`CLOCK_BOOTTIME` goes back by 20 s while the job is recorded, as when a process is restored from a copy, with each \
         source of times",
        "every call is recorded, and the trace says that the clock went back",
    );
    for clock in ["tsc", "boottime"] {
        let run = Run::of(&["restore"], &[("NCCLSCOPE_CLOCK", clock)]);
        let (trace, figures) = run.account();
        assert_eq!((figures.get("dropped"), figures.get("discarded")), (0, 0), "{clock}");
        let timeline = Timeline::read(&trace);
        assert_eq!(timeline.named("clock went back").len(), 1, "{clock}");
        assert_eq!(timeline.named("Group").len(), 6, "{clock}");
    }
    case.survived(2);
}

#[test]
fn a_clock_ahead_of_ours_is_reported_and_in_the_stated_error() {
    let case = fault::case(
        "clocks",
        "a thread's clock is ahead by 2 ms, as on a processor whose time-stamp counter differs from the others'",
        "every call is recorded; one line and the trace say by how much the clocks differ at least, and the stated error \
         includes it",
    );
    for (us, reports) in [("0", 0), ("2000", 1)] {
        let run = Run::of(&["ahead", us], &[("NCCLSCOPE_CLOCK", "boottime")]);
        let (trace, figures) = run.account();
        assert_eq!((figures.get("dropped"), figures.get("discarded")), (0, 0), "{us}");
        let timeline = Timeline::read(&trace);
        let notes = timeline.named("processor clocks differ");
        assert_eq!(notes.len(), reports, "{us}");
        let lines = said(&run.stderr);
        let lines: Vec<_> =
            lines.iter().filter(|line| line.contains("the clocks of this machine's processors")).collect();
        assert_eq!(lines.len(), reports, "{}", run.stderr);
        // Never more than it is.
        let error = timeline.slice("recording ended").int("clock_error_ns").unwrap();
        assert!(if reports == 0 { error < 500_000 } else { (500_000..2_000_000).contains(&error) }, "{error}");
        for note in &notes {
            assert!(lines[0].contains(note.str("note").unwrap()), "{lines:?} {note:?}");
        }
    }
    case.survived(1);
}

#[test]
fn starving_our_threads_loses_nothing_uncounted() {
    let case = fault::case(
        "threads",
        "our threads have the lowest priority, on one processor that another thread uses up",
        "every call is recorded or counted as dropped",
    );
    let run = Run::of(&["starve"], &[("NCCLSCOPE_BUFFER_SIZE", "1M")]);
    assert!(run.figure("starved") >= 2, "{}", run.report);
    let (_, figures) = run.account();
    assert!(figures.get("dropped") > 0, "the threads were not starved");
    case.survived(1);
}
