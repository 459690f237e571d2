//! No callback of NCCL's or CUPTI's makes a system call or allocates memory, apart from the first
//! callback of each kind on a thread.
//!
//! The scripted host makes the calls, in a process of its own; see `support/quiet.rs`. The plugin
//! has no heap of its own there, so that its allocations are libc's, which are counted. Each of the
//! two detectors is shown to find something before it is trusted to find nothing.

use crate::cupti::library_path;
use ncclscope_tests::fault;
use ncclscope_tests::layout;
use ncclscope_tests::play::{self, Finished};
use ncclscope_tests::quiet::BROKEN;
use ncclscope_tests::recording::Traces;
use ncclscope_tests::timeline::Figures;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;

static COUNTER: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| play::compile("allocations.c"));

fn counter() -> &'static Path {
    &COUNTER.1
}

/// Makes all calls through this version, each `rounds` times.
fn make_calls(version: u32, rounds: u32, more: &[&str], settings: &[(&str, &str)], traces: &Traces) -> Finished {
    let mut command = Command::new(play::host_path().unwrap());
    play::clean_environment(&mut command);
    command.arg("quiet").arg("--plugin").arg(play::plugin_path().unwrap());
    command.args(["--interface", &version.to_string(), "--rounds", &rounds.to_string()]).args(more);
    command.env("LD_PRELOAD", counter()).env("NCCLSCOPE_OUTPUT", traces.path()).env("NCCLSCOPE_MIN_FREE", "0");
    command.env("PLANTED_FAULT", "libc@heap").envs(settings.iter().copied());
    play::run(&mut command, "", Duration::from_secs(60)).unwrap()
}

/// Asserts that nothing was detected, and that all calls were recorded or counted. Returns the
/// trace's figures.
#[track_caller]
fn assert_quiet(finished: &Finished, traces: &Traces) -> Figures {
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["allocations"], 0, "{report}");
    assert_eq!(report["errors"], 0, "{report}");
    let figures = Figures::read(&traces.open());
    let [recorded, dropped] = ["recorded", "dropped"].map(|name| figures.get(name));
    assert_eq!(Some(recorded + dropped), report["calls"].as_u64(), "{recorded} + {dropped}: {report}");
    figures
}

#[test]
fn callbacks_are_quiet_in_every_version() {
    let case = fault::case(
        "threads",
        "each system call ends the thread that makes it in a callback (seccomp), and allocations are counted",
        "no callback makes a system call or allocates, in any version of the interface",
    );
    for version in layout::VERSIONS {
        let traces = Traces::new();
        let rounds = if version == 7 { 10_000 } else { 500 };
        let finished = make_calls(version, rounds, &[], &[], &traces);
        let figures = assert_quiet(&finished, &traces);
        assert!(figures.get("recorded") > 10_000, "v{version}");
    }
    case.survived(7);
}

#[test]
fn callbacks_are_quiet_with_the_kernels_clock_too() {
    let traces = Traces::new();
    assert_quiet(&make_calls(7, 100, &[], &[("NCCLSCOPE_CLOCK", "boottime")], &traces), &traces);
}

#[test]
fn callbacks_are_quiet_when_there_is_no_room() {
    let case = fault::case(
        "threads",
        "there is no room for records, while a system call in a callback ends the thread, and allocations are counted",
        "no callback makes a system call or allocates",
    );
    let traces = Traces::new();
    let finished = make_calls(7, 500, &[], &[("NCCLSCOPE_BUFFER_SIZE", "1M")], &traces);
    assert!(assert_quiet(&finished, &traces).get("dropped") > 0, "there was room");
    case.survived(1);
}

#[test]
fn callbacks_are_quiet_beside_another_plugin() {
    // It asks for less than we do, so some calls are ours alone.
    let empty = play::plugin_path().unwrap().with_file_name("libncclscope_empty.so");
    for version in layout::VERSIONS {
        let traces = Traces::new();
        let settings = [
            ("NCCLSCOPE_PRESET", "full"),
            ("NCCLSCOPE_KERNEL_CH", "force"),
            ("NCCLSCOPE_CHAIN", empty.to_str().unwrap()),
        ];
        assert_quiet(&make_calls(version, 500, &[], &settings, &traces), &traces);
    }
}

#[test]
fn callbacks_of_cupti_are_quiet_too() {
    let case = fault::case(
        "threads",
        "each system call ends the thread that makes it in one of CUPTI's callbacks (calls, graphs, failures, buffers, \
         the clock), inside and outside of NCCL's events, with too few buffers; or in one of NCCL's that pushes an \
         external id; allocations are counted",
        "no callback makes a system call or allocates; CUPTI itself is emulated",
    );
    let library_path = library_path().to_str().unwrap();
    let all = [("NCCLSCOPE_PRESET", "full"), ("NCCLSCOPE_KERNEL_CH", "force"), ("LD_LIBRARY_PATH", library_path)];
    let shared = [("NCCLSCOPE_CUPTI", "share"), ("EMULATED_CUPTI", "release=13.5,share")];
    let ways: [&[(&str, &str)]; 6] = [
        &[],
        &[("NCCLSCOPE_CUPTI_CLOCK", "boottime")],
        &[("NCCLSCOPE_BUFFER_SIZE", "1M")],
        &shared,
        &[("NCCLSCOPE_MATCH", "external")],
        &[("NCCLSCOPE_MATCH", "external"), shared[0], shared[1]],
    ];
    for way in ways {
        let traces = Traces::new();
        let finished = make_calls(7, 5, &["--cupti"], &[&all[..], way].concat(), &traces);
        println!("{way:?}: {}", finished.stdout);
        assert_quiet(&finished, &traces);
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        // In each round, for each of more than twenty events.
        assert!(report["callbacks"].as_u64().unwrap() > 5 * 20 * 200, "{report}");
    }
    case.survived(ways.len() as u64);
}

#[test]
fn callbacks_are_quiet_when_nothing_is_recorded() {
    let traces = Traces::new();
    let finished = make_calls(7, 100, &[], &[("NCCLSCOPE_PRESET", "off")], &traces);
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["allocations"], 0, "{report}");
    assert!(report["errors"].as_u64() > Some(0), "a start that gives no handle counts as one");
}

#[test]
fn a_system_call_is_detected() {
    let traces = Traces::new();
    let finished = make_calls(7, 1, &["--noise", "system-call"], &[], &traces);
    assert_eq!(finished.status.code(), Some(BROKEN), "{}", finished.stderr);
    let numbers: Vec<_> = finished.stderr.lines().filter_map(|line| line.strip_prefix("system call")).collect();
    assert_eq!(numbers.iter().map(|number| number.trim()).collect::<Vec<_>>(), [libc::SYS_getppid.to_string()]);
}

#[test]
fn a_system_call_of_the_plugin_is_detected() {
    // A thread's first call asks for the thread's name and id.
    let finished = make_calls(7, 1, &["--cold"], &[], &Traces::new());
    assert_eq!(finished.status.code(), Some(BROKEN), "{}", finished.stderr);
    assert!(finished.stderr.contains("system call"), "{}", finished.stderr);
}

#[test]
fn an_allocation_is_detected() {
    let finished = make_calls(7, 1, &["--noise", "allocation"], &[], &Traces::new());
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["allocations"], 2, "one allocated, one released: {report}");
}

#[test]
fn an_allocation_of_the_plugin_is_detected() {
    // A thread's first call registers what to do when the thread ends.
    let finished = make_calls(7, 1, &["--cold", "--loud"], &[], &Traces::new());
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(report["allocations"].as_u64() > Some(0), "{report}");
}

#[test]
fn what_callbacks_would_do_is_detected() {
    let library_path = library_path().to_str().unwrap();
    let places = ["startEvent", "stopEvent", "recordEventState", "cupti event", "cupti request", "cupti complete"];
    for place in places {
        let play = |kind: &str, more: &[&str]| {
            let planted = format!("libc@heap,{kind}@{place}");
            let settings = [("LD_LIBRARY_PATH", library_path), ("PLANTED_FAULT", &planted)];
            make_calls(7, 1, &[&["--cupti"], more].concat(), &settings, &Traces::new())
        };
        let finished = play("call", &[]);
        assert_eq!(finished.status.code(), Some(BROKEN), "{place}: {}", finished.stderr);
        let finished = play("allocate", &["--loud"]);
        assert!(finished.status.success(), "{place}: {}: {}", finished.status, finished.stderr);
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert!(report["allocations"].as_u64() > Some(0), "{place}: {report}");
    }
}
