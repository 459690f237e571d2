//! Jobs whose GPU kernels cannot be recorded: they run as without ncclscope, and the trace and one
//! line say why.
//!
//! `support/cupti.c` provides the libraries. One of its CUPTIs ends the process when any of its
//! functions is called.

use ncclscope_tests::fault;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, Traces, assert_undisturbed};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

const JOB: &str = "user init world comm=0xabc rank=0 nranks=2 nodes=1 name=dp\n\
                   user start api world GroupApi\n\
                   user stop api\n\
                   user finalize world\n";

/// The libraries, compiled with the C compiler that links Rust programs here.
static LIBRARIES: LazyLock<Libraries> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let library = |name: &str, soname: &str, defines: &[&str]| {
        let path = folder.path().join(name);
        let soname = format!("-Wl,-soname,{soname}");
        play::compile_to(&path, "cupti.c", &[defines, &["-O2", "-shared", "-fPIC", &soname]].concat());
        path
    };
    Libraries {
        driver: library("driver.so", "libcuda.so.1", &["-DDRIVER", "-DDEVICES=1"]),
        useless_driver: library("useless.so", "libcuda.so.1", &["-DDRIVER", "-DDEVICES=0"]),
        trap: library("trap.so", "libcupti.so.13", &[]),
        trap_13_2: library("trap-13.2.so", "libcupti.so.13", &["-DCUDA_13_2"]),
        trap_old: library("libcupti.so.11.0", "libcupti.so.11.0", &["-DOLD"]),
        refuses: [15, 27, 35, 39, 999]
            .map(|code| (code, library(&format!("{code}.so"), "libcupti.so.12", &[&format!("-DANSWER={code}")]))),
        _folder: folder,
    }
});

struct Libraries {
    driver: PathBuf,
    useless_driver: PathBuf,
    trap: PathBuf,
    trap_13_2: PathBuf,
    trap_old: PathBuf,
    /// By the code that each returns.
    refuses: [(u32, PathBuf); 5],
    _folder: TempDir,
}

/// Runs the job with these libraries in the process, and asserts that it ran undisturbed. Returns
/// what the trace and the line on stderr say about kernels.
#[track_caller]
fn why(libraries: &[&Path], settings: &[(&str, &str)]) -> (String, Option<String>) {
    let preload: Vec<_> = libraries.iter().map(|path| path.to_str().unwrap()).collect();
    let play = Play::new(JOB).env("LD_PRELOAD", preload.join(":"));
    // Hides any real CUDA of this machine.
    let play = play.env("CUDA_HOME", "/nowhere").env("CUDA_PATH", "/nowhere");
    let recording = Recording::by(play.envs(settings));
    assert_undisturbed(&recording);
    let timeline = recording.timeline();
    assert_eq!(timeline.named("GroupApi").len(), 1);
    let note = timeline.slice("recording started").str("note").unwrap();
    let (_, why) = note.split_once("no GPU kernels: ").unwrap_or_else(|| panic!("{note}"));
    let said = recording.said();
    let line = said[0].split_once("GPU kernels: no, ").map(|(_, why)| why.to_owned());
    assert_eq!(said.len(), 1, "one line has all of it: {said:?}");
    (why.to_owned(), line)
}

/// As [`why`], where the user is told.
#[track_caller]
fn complaint(libraries: &[&Path], settings: &[(&str, &str)]) -> String {
    let (why, line) = why(libraries, settings);
    assert_eq!(line.as_deref(), Some(&*why));
    why
}

#[test]
fn without_a_driver_cupti_is_not_touched() {
    let case = fault::case(
        "CUPTI",
        "no driver, with a libcupti that ends the process when it is called",
        "CUPTI is not touched",
    );
    let trap = &*LIBRARIES.trap;
    for (libraries, settings) in [
        (&[][..], &[][..]),
        (&[trap], &[]),
        (&[&LIBRARIES.trap_13_2], &[]),
        (&[trap], &[("NCCLSCOPE_CUPTI", trap.to_str().unwrap())]),
    ] {
        assert_eq!(complaint(libraries, settings), "this process has not loaded the CUDA driver (libcuda.so.1)");
    }
    case.survived(4);
}

#[test]
fn when_disabled_cupti_is_not_touched() {
    let why = complaint(&[&LIBRARIES.driver, &LIBRARIES.trap], &[("NCCLSCOPE_CUPTI", "0")]);
    assert_eq!(why, "NCCLSCOPE_CUPTI=0 switches it off");
    // Nor if everything is disabled.
    let preload = format!("{}:{}", LIBRARIES.driver.display(), LIBRARIES.trap.display());
    let recording = Recording::by(Play::new(JOB).env("LD_PRELOAD", preload).env("NCCLSCOPE_ENABLE", "0"));
    assert_eq!((recording.outcome.status, &*recording.outcome.stderr), (Some(0), ""));
    assert!(recording.traces.files().is_empty());
}

#[test]
fn the_trap_ends_the_process() {
    // Without this the other tests would show nothing.
    let traces = Traces::new();
    let preload = format!("{}:{}", LIBRARIES.driver.display(), LIBRARIES.trap.display());
    let play = Play::new(JOB).env("LD_PRELOAD", preload).env("NCCLSCOPE_OUTPUT", traces.path());
    let outcome = play.run().unwrap();
    assert_eq!(outcome.signal, Some(libc::SIGABRT));
    assert!(outcome.stderr.contains("CUPTI was touched"), "{}", outcome.stderr);
}

#[test]
fn a_release_that_crashes_without_a_gpu_is_not_touched_there() {
    let why = complaint(&[&LIBRARIES.useless_driver, &LIBRARIES.trap_13_2], &[]);
    assert!(why.contains("is CUPTI of CUDA 13.2, which crashes if the driver shows no GPU"), "{why}");
}

#[test]
fn a_cupti_that_is_too_old_is_not_touched() {
    let why = complaint(&[&LIBRARIES.driver, &LIBRARIES.trap_old], &[]);
    let expected = format!("{} is from before CUDA 12.0: it lacks cuptiGetGraphNodeId", LIBRARIES.trap_old.display());
    assert_eq!(why, expected);
}

#[test]
fn without_a_libcupti_the_line_says_where_to_get_one() {
    let why = complaint(&[&LIBRARIES.driver], &[("NCCLSCOPE_CUPTI", "/nowhere/libcupti.so.13")]);
    assert!(why.starts_with("no libcupti was found (/nowhere/libcupti.so.13: "), "{why}");
    assert!(why.contains("pip install nvidia-cuda-cupti"), "{why}");
}

#[test]
fn every_refusal_has_its_own_wording() {
    for (code, library) in &LIBRARIES.refuses {
        let why = complaint(&[&LIBRARIES.driver, library], &[]);
        let says = match code {
            15 => "cuptiSubscribe answered NOT_INITIALIZED (15): the driver does not accept this CUPTI",
            27 => "cuptiSubscribe answered NOT_SUPPORTED (27): layers that run CUDA on a remote machine",
            35 => "cuptiSubscribe answered INSUFFICIENT_PRIVILEGES (35): the administrator",
            39 => "CUPTI can have only one owner, and another profiler",
            _ => "cuptiSubscribe answered UNKNOWN (999): the driver does not accept this CUPTI",
        };
        assert!(why.starts_with(says), "{why}");
    }
}
