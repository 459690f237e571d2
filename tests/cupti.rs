//! Kernels through the emulated CUPTI, with the scripted host as the GPU.

mod buffers;
mod confined;
mod copies;
mod corrupt;
mod drawing;
mod failing;
mod injection;
mod lending;
mod matching;
mod metrics;
mod nvtx;
mod planted;
mod program;
mod selecting;
mod sharing;
mod times;

use emulated_cupti::release::Release;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::Timeline;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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

pub(crate) fn library_path() -> &'static Path {
    LIBRARIES.path()
}

/// Plays a script with CUDA within reach; the script must end well.
#[track_caller]
fn record(script: &str, settings: &[(&str, &str)]) -> Recording {
    let recording = Recording::by(Play::new(script).env("LD_LIBRARY_PATH", library_path()).envs(settings));
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

/// The remarks in the trace about who has CUPTI's records, in order of time.
fn words_about_cupti(timeline: &Timeline) -> Vec<&str> {
    let words =
        timeline.slices.iter().filter(|it| it.name.starts_with("CUPTI ") && it.name != "CUPTI flushed by force");
    words.map(|word| &*word.name).collect()
}

#[test]
fn every_place_for_a_planted_fault_is_tried() {
    fn collect(folder: &Path, found: &mut BTreeSet<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = ["fault::at(\"", "planted::at(\""].into_iter().flat_map(|call| text.split(call).skip(1));
                found.extend(calls.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")), &mut found);
    assert_eq!(found, planted::tried());
}
