//! Under load: nothing is lost without being counted, and memory and file stay within their limits.
//!
//! No test here depends on speed; `cargo bench` measures that. `cargo xtask check load` also runs
//! them with the optimised plugin.

use ncclscope_tests::fault;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play;
use ncclscope_tests::recording::{Load, Traces, assert_sound};
use ncclscope_tests::timeline::Figures;
use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A load takes the whole machine, and so does checking its result.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Blocks the other tests until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asserts that every call that was sent is in exactly one of the recording's figures.
#[track_caller]
fn account(load: &Load, trace: &Trace) -> Figures {
    assert_eq!(load.sent("errors"), 0);
    assert_eq!(load.sent("null_handles"), 0, "a start always gets a handle");
    let figures = Figures::read(trace);
    let [recorded, dropped, discarded] = ["recorded", "dropped", "discarded"].map(|name| figures.get(name));
    let sent = load.sent("calls");
    assert_eq!(recorded + dropped + discarded, sent, "{recorded} + {dropped} + {discarded} of {sent}");
    assert_eq!(figures.get("panics"), 0);
    // The counter ends with the same number.
    let counter = trace.rows(
        "SELECT value FROM counter JOIN track ON track.id = track_id WHERE track.name = 'records dropped' \
         ORDER BY ts DESC LIMIT 1",
    );
    assert_eq!(counter[0].f64("value"), dropped as f64);
    // Whoever is told that NCCL is too fast has lost something, and is told before the end.
    let told = load.stderr.contains("records are being dropped");
    let first = |table: &str| {
        let row = &trace.rows(&format!("SELECT min(ts) AS ts FROM {table}"))[0];
        (!row.is_null("ts")).then(|| row.i64("ts"))
    };
    let lost = first("counter JOIN track ON track.id = track_id WHERE track.name = 'records dropped' AND value > 0");
    match (lost, first("slice WHERE name = 'recording stopped'")) {
        (Some(lost), Some(stopped)) if lost == stopped => {}
        (Some(lost), Some(stopped)) => assert_eq!(told, lost < stopped, "{}", load.stderr),
        (lost, _) => assert_eq!(told, lost.is_some(), "{}", load.stderr),
    }
    figures
}

#[test]
fn every_call_is_accounted_for() {
    let _alone = alone();
    for (arguments, settings) in [
        ("--interface 7 --threads 4 --events 200000 --rate 100000", &[][..]),
        ("--interface 5 --threads 2 --comms 2 --events 50000 --kind coll", &[]),
        ("--interface 3 --threads 3 --events 50000 --kind step", &[("NCCLSCOPE_CLOCK", "boottime")]),
        ("--interface 1 --threads 2 --events 50000", &[("NCCLSCOPE_COMPRESS", "0")]),
    ] {
        // With room for everything, so that nothing is dropped, however slow the machine.
        let load = Load::send(arguments, &[settings, &[("NCCLSCOPE_BUFFER_SIZE", "256M")]].concat());
        let trace = load.traces.open();
        let figures = account(&load, &trace);
        let mut remarkable = figures.remarkable();
        // A thread may lose the processor between reading the clock and handing over its record.
        remarkable.remove("late");
        assert!(remarkable.is_empty(), "{arguments}: {remarkable:?}");
        assert_sound(&trace, 0);
        // Each start is a slice; proxy steps and operations also have phases.
        let slices = trace.rows("SELECT count(*) AS n FROM slice WHERE category != 'ncclscope'")[0].i64("n") as u64;
        assert!(slices > load.sent("starts"), "{slices} slices of {} starts", load.sent("starts"));
    }
}

#[test]
fn calls_without_room_are_counted_and_reported() {
    let case = fault::case(
        "memory",
        "eight threads at full speed, with 1 MB for records",
        "every call is recorded or counted as dropped; one line says so",
    );
    let _alone = alone();
    // A megabyte for eight threads at full speed.
    let load = Load::send("--interface 7 --threads 8 --events 2000000", &[("NCCLSCOPE_BUFFER_SIZE", "1M")]);
    let trace = load.traces.open();
    let figures = account(&load, &trace);
    assert!(figures.get("dropped") > 0, "the load was too light to show anything");
    assert!(figures.get("recorded") > 0);
    let lines = load.stderr.lines().filter(|line| line.contains("records are being dropped")).count();
    assert_eq!(lines, 1, "said once: {}", load.stderr);
    let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{bad:?}");
    // The counter shows when, not only how many.
    let samples = trace.rows("SELECT count(*) AS n FROM counter")[0].i64("n");
    assert!(samples >= 3, "{samples} samples");
    case.survived(1);
}

#[test]
fn calls_with_room_are_kept_at_any_speed() {
    let _alone = alone();
    // The buffer can hold everything even if nothing is taken out meanwhile; one thread may use
    // half of it.
    let arguments = "--interface 7 --threads 2 --events 800000";
    let load = Load::send(arguments, &[("NCCLSCOPE_BUFFER_SIZE", "256M"), ("NCCLSCOPE_COMPRESS", "0")]);
    let figures = account(&load, &load.traces.open());
    assert_eq!((figures.get("dropped"), figures.get("discarded")), (0, 0));
    assert_eq!(figures.get("recorded"), load.sent("calls"));
}

/// The most that a recording may add to a process, in KiB, whatever the job does.
const MOST_GROWTH: u64 = 64 << 10;

/// The most that the process grew, in KiB.
fn growth(load: &Load) -> u64 {
    load.sent("rss_high_water_kib").saturating_sub(load.sent("rss_before_kib"))
}

/// Plays the load and asserts that the recording caused little of its growth. A thousand threads
/// alone take 20 MiB and more for their stacks, as the same load shows with the plugin disabled.
#[track_caller]
fn assert_small(arguments: &str) -> (Trace, Figures) {
    let threads = growth(&Load::send(arguments, &[("NCCLSCOPE_PRESET", "off")]));
    let load = Load::send(arguments, &[]);
    let trace = load.traces.open();
    let figures = account(&load, &trace);
    let grown = growth(&load).saturating_sub(threads);
    assert!(grown < MOST_GROWTH, "the recording added {grown} KiB to {threads}: {}", load.report);
    (trace, figures)
}

#[test]
fn a_thousand_threads_do_not_take_more_memory() {
    let case = fault::case("memory", "a thousand threads", "the recording adds less than 64 MiB");
    let _alone = alone();
    assert_small("--interface 7 --threads 1000 --events 400000");
    case.survived(1);
}

#[test]
fn the_limit_of_the_heap_is_kept_and_can_be_raised() {
    let _alone = alone();
    // A track for each thread takes memory.
    let load = Load::send("--interface 7 --threads 4 --short-threads 5000", &[("NCCLSCOPE_HEAP_SIZE", "4M")]);
    let said = "all of its memory (NCCLSCOPE_HEAP_SIZE, 4 MiB) is in use";
    assert!(load.stderr.contains(said), "{}", load.stderr);
    let trace = load.traces.open();
    assert!(account(&load, &trace).get("discarded") > 0);
    for size in [8, 64] {
        let setting = format!("{size}M");
        let load = Load::send("--interface 7 --threads 2 --events 20000", &[("NCCLSCOPE_HEAP_SIZE", &setting)]);
        let trace = load.traces.open();
        account(&load, &trace);
        let says = trace.rows(&format!(
            "SELECT count(*) AS n FROM slice JOIN args USING (arg_set_id) WHERE slice.name = 'cost of the recording' AND \
             string_value LIKE '%of {size} MiB for everything else%'"
        ));
        assert_eq!(says[0].i64("n"), 1, "{size} MiB");
    }
}

#[test]
fn threads_that_come_and_go_do_not_take_more_memory() {
    let case = fault::case("memory", "5,000 threads that come and go", "the recording adds less than 64 MiB");
    let _alone = alone();
    let (trace, figures) = assert_small("--interface 7 --threads 4 --short-threads 5000");
    if figures.get("dropped") == 0 {
        assert_sound(&trace, 0);
    }
    case.survived(1);
}

/// The texts of the recording's remarks with this name.
fn notes(trace: &Trace, name: &str) -> Vec<String> {
    let rows = trace.rows(&format!(
        "SELECT string_value AS text FROM slice JOIN args USING (arg_set_id) \
         WHERE slice.name = '{name}' AND key = 'nccl.note'"
    ));
    rows.iter().map(|row| row.str("text").to_owned()).collect()
}

#[test]
fn the_file_stays_within_its_size() {
    let case = fault::case(
        "files",
        "two threads at full speed into the smallest file",
        "the file stays within `NCCLSCOPE_MAX_SIZE`, and every call is counted",
    );
    let _alone = alone();
    // At full speed, into the smallest possible file.
    let load = Load::send("--interface 7 --threads 2 --events 3000000", &[("NCCLSCOPE_MAX_SIZE", "1M")]);
    let size = fs::metadata(load.traces.file()).unwrap().len();
    assert!(size <= 1 << 20, "{size} bytes");
    assert!(size > 1 << 17, "{size} bytes: much of the room is used");
    let trace = load.traces.open();
    let figures = account(&load, &trace);
    assert!(figures.get("discarded") > 0);
    // Everything that began has ended, unless its end was dropped.
    if figures.get("dropped") == 0 {
        assert_sound(&trace, 0);
    }
    let notes = notes(&trace, "file full");
    assert!(notes.len() == 1 && notes[0].contains("NCCLSCOPE_MAX_SIZE (1 MiB)"), "{notes:?}");
    case.survived(1);
}

#[test]
fn steps_are_left_out_before_the_file_is_full() {
    let _alone = alone();
    // With room for all records, however slow the machine, and without compression.
    let settings = [("NCCLSCOPE_MAX_SIZE", "8M"), ("NCCLSCOPE_BUFFER_SIZE", "256M"), ("NCCLSCOPE_COMPRESS", "0")];
    let load = Load::send("--interface 7 --threads 2 --events 800000 --rate 300000", &settings);
    let size = fs::metadata(load.traces.file()).unwrap().len();
    assert!((6 << 20..=8 << 20).contains(&size), "{size} bytes");
    let trace = load.traces.open();
    assert_eq!(account(&load, &trace).get("dropped"), 0);
    assert_sound(&trace, 0);
    for name in ["steps left out", "file full"] {
        let notes = notes(&trace, name);
        assert!(notes.len() == 1 && notes[0].contains("NCCLSCOPE_MAX_SIZE (8 MiB)"), "{name}: {notes:?}");
    }
    let lines = load.stderr.lines().filter(|line| line.contains("NCCLSCOPE_MAX_SIZE")).count();
    assert_eq!(lines, 2, "{}", load.stderr);
    // The rest is still there after the steps are left out.
    let last = |name: &str| trace.rows(&format!("SELECT max(ts) AS ts FROM slice WHERE name {name}"))[0].i64("ts");
    assert!(last("LIKE 'step %'") < last("= 'GroupApi'"));
}

#[test]
fn recording_stops_before_the_disk_is_full() {
    let case = fault::case(
        "files",
        "the file system has less than `NCCLSCOPE_MIN_FREE`",
        "the recording stops before it is full, with one line",
    );
    let _alone = alone();
    let load = Load::send("--interface 7 --threads 2 --events 300000", &[("NCCLSCOPE_MIN_FREE", "8000000T")]);
    let lines = load.stderr.lines().filter(|line| line.contains("NCCLSCOPE_MIN_FREE")).count();
    assert_eq!(lines, 1, "{}", load.stderr);
    assert_eq!(load.sent("errors"), 0);
    let size = fs::metadata(load.traces.file()).unwrap().len();
    assert!(size < 1 << 20, "{size} bytes");
    let trace = load.traces.open();
    assert_sound(&trace, 0);
    let notes = notes(&trace, "recording stopped");
    assert!(notes.len() == 1 && notes[0].contains("NCCLSCOPE_MIN_FREE"), "the trace says why it ends: {notes:?}");
    account(&load, &trace);
    case.survived(1);
}

#[test]
fn a_write_that_fails_ends_the_recording_and_not_the_job() {
    let case = fault::case("files", "the limit of `ulimit -f`", "the recording ends, the job goes on");
    let _alone = alone();
    // Files of at most 256 KiB, and no signal for larger ones.
    let traces = Traces::new();
    let mut command = Command::new("bash");
    play::clean_environment(&mut command);
    command.args(["-c", "ulimit -f 256; exec \"$@\"", "bash"]).arg(play::host_path().unwrap()).arg("flood");
    command.arg("--plugin").arg(play::plugin_path().unwrap());
    command.args(["--interface", "7", "--threads", "2", "--events", "300000", "--rate", "300000"]);
    command.env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
    let finished = play::run(&mut command, "", Duration::from_secs(60)).unwrap();
    assert!(finished.status.success(), "{:?} {}", finished.status, finished.stderr);
    let lines = finished.stderr.lines().filter(|line| line.contains("failed to write")).count();
    assert_eq!(lines, 1, "{}", finished.stderr);
    let size = fs::metadata(traces.file()).unwrap().len();
    assert!((1 << 17..=1 << 18).contains(&size), "{size} bytes");
    let trace = traces.open();
    let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{bad:?}");
    case.survived(1);
}
