//! The library starts no program, creates no process, and uses no network.

use super::{CUDA, library_path, operation};
use ncclscope_tests::fault;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::Recording;
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::TempDir;

/// Ends a process at such a system call; see there.
static CONFINED: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| play::compile("confined.c"));
/// How that ends a process: on our threads, which block all signals, by the signal.
const ENDS: [(Option<i32>, Option<i32>); 2] = [(Some(3), None), (None, Some(libc::SIGSYS))];

/// A job with kernels. Before its end, `more`.
fn run(more: &str, settings: &[(&str, &str)]) -> Recording {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user sleep 300ms\n{more}user finalize world\n",
        operation("world", "1Ki")
    );
    let play = Play::new(script).env("LD_LIBRARY_PATH", library_path()).env("LD_PRELOAD", &CONFINED.1);
    Recording::by(play.envs(settings))
}

#[test]
fn a_recording_starts_no_program_and_uses_no_network() {
    let case = fault::case(
        "processes",
        "system calls that start a program, make a process or use the network end the job (seccomp)",
        "the library makes none, with its defaults and with all that a trace can have",
    );
    let metrics = tempfile::tempdir().unwrap();
    let metrics = metrics.path().join("metrics.prom");
    let all: &[_] = &[
        ("NCCLSCOPE_PRESET", "full"),
        ("NCCLSCOPE_CUDA_API", "1"),
        ("NCCLSCOPE_NVTX", "1"),
        ("NCCLSCOPE_CAPTURE", "1"),
        ("NCCLSCOPE_SUMMARY", "all"),
        ("NCCLSCOPE_METRICS_FILE", metrics.to_str().unwrap()),
        ("NCCLSCOPE_LOG", "debug"),
    ];
    for settings in [&[], all] {
        let recording = run("", settings);
        assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
        assert_eq!(super::kernels(&recording.timeline()).len(), 1);
    }
    case.survived(2);
}

#[test]
fn a_forbidden_system_call_is_seen_on_any_thread() {
    for (function, number) in [
        ("fork", libc::SYS_clone),
        ("execve", libc::SYS_execve),
        ("socket", libc::SYS_socket),
        ("connect", libc::SYS_connect),
    ] {
        let recording = run(&format!("user call {function} library=libc.so.6\n"), &[]);
        let outcome = &recording.outcome;
        assert_eq!((outcome.status, outcome.signal), ENDS[0], "{function}: {}", outcome.stderr);
        let said = format!("forbidden system call {number}");
        assert!(recording.outcome.stderr.contains(&said), "{function}: {}", recording.outcome.stderr);
    }
    // What the library itself does if it is asked.
    let recording = run("", &[("NCCLSCOPE_METRICS_PORT", "48123"), ("NCCLSCOPE_RANK", "0")]);
    let outcome = &recording.outcome;
    assert!(ENDS.contains(&(outcome.status, outcome.signal)), "{:?} {}", outcome.status, outcome.stderr);
}
