//! Another profiler plugin beside ours, `NCCLSCOPE_CHAIN`: it gets what it would get alone, we
//! record what we would record alone, and its failures do not affect us.
//!
//! The other plugin is `support/echo.c`, which writes down every call; in further tests the empty
//! plugin, and NCCL's own example if its source is available (`NCCLSCOPE_TEST_NCCL_SOURCE`).

use ncclscope::model::kinds::asked_by;
use ncclscope_tests::layout::{self, State};
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, assert_undisturbed, said};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// `echo.c` once with all tables, then with one table each.
static ECHOES: LazyLock<(TempDir, Vec<PathBuf>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let flags = std::iter::once(String::new()).chain(layout::VERSIONS.map(|version| format!("-DONLY={version}")));
    let build = |(number, flag): (usize, String)| {
        let library = folder.path().join(format!("libecho{number}.so"));
        let only = (!flag.is_empty()).then_some(&*flag);
        let flags: Vec<&str> = ["-shared", "-fPIC", "-w"].into_iter().chain(only).collect();
        play::compile_to(&library, "echo.c", &flags);
        library
    };
    let libraries = flags.enumerate().map(build).collect();
    (folder, libraries)
});

/// `echo.c` with the table of this version alone, or with all (0).
fn echo(version: u32) -> &'static Path {
    &ECHOES.1[version as usize]
}

/// Every kind of event and many states. The handles of `echo.c` are numbers in the order of starts.
const ALL_KINDS: &str = "u init world comm=0x77 rank=3 nranks=8 nodes=2 name=dp\n\
    u start ga world GroupApi groupDepth=1\n\
    u state ga GroupStartApiStop noargs\n\
    u start api world CollApi parent=ga func=AllReduce count=7 datatype=ncclFloat32 root=2 stream=0x10 userTag=9\n\
    u stop api\n\
    u start papi world P2pApi parent=ga func=Recv count=33 datatype=ncclInt8 stream=0x10 userTag=8\n\
    u stop papi\n\
    u start launch world KernelLaunch parent=ga stream=0x10\n\
    u stop launch\n\
    u start g world Group\n\
    u start c world Coll parent=api group=g seqNumber=5 func=AllReduce sendBuff=0x1000 recvBuff=0x2000 count=16Mi \
      root=1 datatype=ncclBfloat16 nChannels=12 nWarps=17 algo=RING proto=SIMPLE trafficBytes=99 op=2 isNvls=1 \
      kernelVariant=AGxLL_R isSymColl=true userTag=4\n\
    u start p world P2p parent=papi group=g func=Recv buff=0x3000 datatype=ncclInt8 count=33 peer=1 nChannels=2\n\
    u stop c\n\
    u stop p\n\
    u stop g\n\
    u stop ga\n\
    u start o world ProxyOp parent=c channelId=5 peer=1 nSteps=2 chunkSize=512Ki isSend=1\n\
    u state o OpInProgress\n\
    u start s world ProxyStep parent=o step=1\n\
    u state s StepSendGpuWait\n\
    u state s StepSendWait value=4096\n\
    u start n world NetPlugin parent=s net=ib device=1 wr_id=2 opcode=3 qp=4 length=5\n\
    u stop n\n\
    u stop s\n\
    u stop o\n\
    u start ctrl world ProxyCtrl\n\
    u state ctrl CtrlAppendEnd value=3\n\
    u stop ctrl\n\
    u start k world KernelCh parent=c channelId=1 pTimer=77\n\
    u state k KernelChStop value=78\n\
    u stop k\n\
    u start ce world CeColl parent=api ceSeqNum=8 syncStrategy=MC\n\
    u start cs world CeSync parent=ce nRanks=4\n\
    u stop cs\n\
    u start cb world CeBatch parent=ce numOps=4 totalBytes=1Ki\n\
    u stop cb\n\
    u stop ce\n\
    u start ph world KernelPhase parent=k channelId=1 phaseId=2 phaseName=compute pTimer=77\n\
    u stop ph\n\
    u finalize world\n";

/// What the other plugin wrote down, without what differs from process to process.
fn log_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut call: Value = serde_json::from_str(line).unwrap();
        let fields = call.as_object_mut().unwrap();
        fields.retain(|name, _| !["tid", "pid", "data"].contains(&name.as_str()));
        call
    };
    text.lines().map(line).collect()
}

/// What `other` gets when NCCL loads it itself.
fn alone(other: &Path, script: &str, version: u32) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let play = Play::new(script).plugin(other).interface(version).env("ECHO_LOG", &log).respect_mask();
    assert_eq!(play.run().unwrap().status, Some(0));
    log_of(&log)
}

/// A recording with another plugin beside it, and what that plugin wrote down.
fn beside(other: &Path, script: &str, version: u32, settings: &[(&str, &str)]) -> (Recording, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let play = Play::new(script).interface(version).env("ECHO_LOG", &log).env("NCCLSCOPE_CHAIN", other);
    let recording = Recording::by(play.respect_mask().envs(settings));
    assert_undisturbed(&recording);
    (recording, log_of(&log))
}

/// The remark with this subject.
fn remark(recording: &Recording, name: &str) -> String {
    let timeline = recording.timeline();
    timeline.slice(name).str("note").unwrap().to_owned()
}

#[test]
fn each_event_is_asked_for_by_the_kinds_in_the_table() {
    for kind in layout::kinds() {
        assert_eq!(asked_by(kind.bit) & 0xffff, kind.asked_by, "{}", kind.name);
    }
}

#[test]
fn the_other_plugin_gets_what_it_would_get_alone() {
    for version in layout::VERSIONS {
        let expected = alone(echo(0), ALL_KINDS, version);
        assert!(expected.len() > 15, "v{version}: {expected:#?}");
        // Whatever we ask for, and if we record nothing at all.
        for settings in [
            &[("NCCLSCOPE_PRESET", "full")][..],
            &[("NCCLSCOPE_PRESET", "light")],
            &[("NCCLSCOPE_ENABLE", "0")],
            &[("NCCLSCOPE_OUTPUT", "/dev/null/nowhere")],
        ] {
            let (recording, log) = beside(echo(0), ALL_KINDS, version, settings);
            assert_eq!(log, expected, "v{version}, {settings:?}");
            let is_recorded = settings[0].0 == "NCCLSCOPE_PRESET";
            assert_eq!(recording.traces.files().len(), usize::from(is_recorded));
            if is_recorded {
                let text = remark(&recording, "another profiler plugin");
                assert!(text.contains("libecho0.so") && text.contains(&format!("v{version}")), "{text}");
            }
        }
    }
}

#[test]
fn each_of_the_two_gets_what_its_mask_asks_for() {
    let figures = |settings: &[(&str, &str)]| {
        let (recording, log) = beside(echo(0), ALL_KINDS, 7, settings);
        let timeline = recording.timeline();
        let figures = timeline.figures();
        let kinds = ["recorded", "dropped", "unknown_handles", "foreign_handles", "unknown_parents"]
            .map(|name| figures.get(name));
        (kinds, log, recording.outcome.call("world").mask.unwrap())
    };
    // With nothing asked for by the other: what we record alone.
    let (light, log, mask) = figures(&[("NCCLSCOPE_PRESET", "light"), ("ECHO_MASK", "0")]);
    assert_eq!(log.len(), 2, "init and finalize: {log:#?}");
    let (with_all, log, union) = figures(&[("NCCLSCOPE_PRESET", "light"), ("ECHO_MASK", "65535")]);
    assert_eq!(with_all, light, "what only the other asked for is not recorded");
    assert_eq!((union, union & mask), (0xffff, mask));
    assert_eq!(log, alone(echo(0), ALL_KINDS, 7));
    // A collective, and what it stands on.
    let (_, log, _) = figures(&[("NCCLSCOPE_PRESET", "full"), ("ECHO_MASK", "2")]);
    let types: Vec<_> = log.iter().filter_map(|call| call["type"].as_u64()).collect();
    assert_eq!(types, [256, 512, 1, 2]);
}

#[test]
fn the_other_plugin_may_change_its_mask_at_any_time() {
    let script = "u init world comm=1 rank=0 nranks=2\nu start g world Group\nu stop g\nu mask\n\
                  u start c world ProxyCtrl\nu stop c\nu finalize world";
    let settings = [("NCCLSCOPE_PRESET", "light"), ("ECHO_MASK", "1"), ("ECHO_LATER", "33")];
    let (recording, log) = beside(echo(0), script, 7, &settings);
    let mask = recording.outcome.line(4).unwrap().mask.unwrap();
    assert_eq!(mask & 32, 32, "NCCL is asked for what the other plugin wants since");
    assert!(log.iter().any(|call| call["type"] == 32), "{log:#?}");
}

#[test]
fn calls_captured_into_graphs_leave_room_for_communicators() {
    let mut script = "u init world comm=1 rank=0 nranks=2\n".to_owned();
    (0..17_000).for_each(|n| script += &format!("u start g{n} world GroupApi graphCaptured=1\nu stop g{n}\n"));
    (0..8).for_each(|n| script += &format!("u init later{n} comm=2{n} rank=0 nranks=2\n"));
    (0..8).for_each(|n| script += &format!("u start c{n} later{n} Group\n"));
    let (recording, log) = beside(echo(0), &script, 7, &[("NCCLSCOPE_PRESET", "light")]);
    assert!(!recording.outcome.stderr.contains("too many communicators"), "{}", recording.outcome.stderr);
    assert_eq!(log.iter().filter(|call| call["type"] == 1).count(), 8);
}

#[test]
fn a_communicator_for_which_there_is_no_room_is_finalized_at_once() {
    // With names and hashes, more than there are places.
    let all = |verb: &str, more: &str| (0..6_000).map(|n| format!("u {verb} c{n}{more}\n")).collect::<String>();
    let script = all("init", " comm=7 rank=0 nranks=2") + "u mask\n" + &all("finalize", "");
    let (recording, log) = beside(echo(3), &script, 7, &[("NCCLSCOPE_ENABLE", "0")]);
    assert!(recording.outcome.stderr.contains("too many communicators"));
    let contexts = |verb: &str| {
        let calls = log.iter().filter(|call| call["call"] == verb);
        calls.map(|call| call["context"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let (begun, mut ended) = (contexts("init"), contexts("finalize"));
    assert_ne!(begun, ended, "there was room");
    ended.sort_by_key(|context| begun.iter().position(|begun| begun == context));
    assert_eq!(begun, ended);
}

/// The starts of a log by the other plugin's handle, and the number of starts of that kind before.
fn starts(log: &[Value]) -> BTreeMap<String, (u64, &Value)> {
    let starts = log.iter().filter(|call| call["call"] == "start");
    starts.map(|call| (call["handle"].as_str().unwrap().to_owned(), (call["type"].as_u64().unwrap(), call))).collect()
}

#[test]
fn its_version_may_differ_from_nccls() {
    for from in layout::VERSIONS {
        let full = alone(echo(0), ALL_KINDS, from);
        let sent = starts(&full);
        for to in layout::VERSIONS {
            let (_, log) = beside(echo(to), ALL_KINDS, from, &[("NCCLSCOPE_PRESET", "light")]);
            let got = starts(&log);
            let known = |bit: u64| layout::kinds().iter().any(|kind| kind.bit == bit && kind.since <= to);
            // Each kind occurs once in the script.
            let expected: Vec<_> = sent.values().map(|(kind, _)| *kind).filter(|kind| known(*kind)).collect();
            let mut types: Vec<_> = got.values().map(|(kind, _)| *kind).collect();
            types.sort_unstable();
            assert_eq!(
                types,
                {
                    let mut kinds = expected.clone();
                    kinds.sort_unstable();
                    kinds
                },
                "v{from} to v{to}"
            );
            for (kind, call) in got.values() {
                let (_, original) = sent.values().find(|(sent, _)| sent == kind).unwrap();
                assert_eq!(call["version"], to);
                check_fields(from, to, *kind, original, call);
                check_parents(from, to, *kind, call, &got);
            }
            check_states(from, to, &full, &log);
            // Every event that was started is stopped, and nothing else.
            let stops = log.iter().filter(|call| call["call"] == "stop").count();
            assert_eq!(stops, got.len(), "v{from} to v{to}");
            assert_eq!(log.iter().filter(|call| call["call"] == "finalize").count(), 1);
        }
    }
}

/// Fields that both versions have arrive as they were sent.
fn check_fields(from: u32, to: u32, kind: u64, sent: &Value, got: &Value) {
    const FUNCS: [&str; 8] =
        ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"];
    let text = |field: &str, value: &Value| match (value.as_u64(), field) {
        (Some(number), "func") => Value::from(FUNCS[number as usize]),
        (Some(0), "datatype") => "ncclInt8".into(),
        (Some(9), "datatype") => "ncclBfloat16".into(),
        (Some(1), "algo") => "RING".into(),
        (Some(2), "proto") => "SIMPLE".into(),
        _ => value.clone(),
    };
    let same = |field: &str| {
        let expected = text(field, &sent[field]);
        assert_eq!(text(field, &got[field]), expected, "{field} of {kind}, v{from} to v{to}: {got}");
    };
    for field in layout::fields(to) {
        let name = field.name;
        let is_new = sent.get(name).is_none() || got.get(name).is_none();
        match name {
            "parentObj" | "parentGroup" => {}
            // NCCL leaves a v1 field out of v2, and so on.
            _ if is_new => {}
            // The same field under the name of its version.
            _ => same(name),
        }
    }
    if kind == 2 {
        let channels = |version, call: &Value| call[if version <= 3 { "nMaxChannels" } else { "nChannels" }].clone();
        assert_eq!(channels(to, got), channels(from, sent), "v{from} to v{to}");
    }
    if matches!(kind, 2 | 4) && to <= 3 {
        assert_eq!((&got["name"], &got["commHash"]), (&"dp".into(), &0x77.into()), "v{from} to v{to}");
    }
}

/// A parent is passed as the other plugin's own handle of that event.
fn check_parents(from: u32, to: u32, kind: u64, got: &Value, all: &BTreeMap<String, (u64, &Value)>) {
    let parent = |field: &str| match got[field].as_str() {
        None | Some("0x0") => 0,
        Some(handle) => all.get(handle).unwrap_or_else(|| panic!("{field} of {got}: not one of its handles")).0,
    };
    let call = if kind == 2 { 512 } else { 1024 };
    let expected = match (kind, from, to) {
        (2 | 4, _, ..=4) => 1,
        // NCCL reports no calls there.
        (2 | 4, ..=4, _) => 0,
        (2 | 4, ..) => call,
        (8 | 64, ..) => 2,
        (16, ..) => 8,
        (128, ..) => 16,
        (512 | 1024 | 2048, ..) => 256,
        (4096, ..) => 512,
        (8192 | 16384, ..) => 4096,
        (32768, ..) => 64,
        _ => 0,
    };
    assert_eq!(parent("parentObj"), expected, "{kind}, v{from} to v{to}");
    if matches!(kind, 2 | 4) && to >= 5 {
        assert_eq!(parent("parentGroup"), 1, "{kind}, v{from} to v{to}");
    }
}

/// States that both versions have, with the arguments that both have.
fn check_states(from: u32, to: u32, sent: &[Value], got: &[Value]) {
    let of = |log: &[Value]| -> Vec<(i64, Value)> {
        let states = log.iter().filter(|call| call["call"] == "state");
        states.map(|call| (call["state"].as_i64().unwrap(), call["args"].clone())).collect()
    };
    let known = |number: i64| {
        let found = layout::states().iter().find(|state: &&State| i64::from(state.value) == number);
        found.is_some_and(|state| state.versions.contains(&to))
    };
    let expected: Vec<_> = of(sent).into_iter().filter(|(number, _)| known(*number)).collect();
    let got = of(got);
    let numbers = |states: &[(i64, Value)]| states.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    assert_eq!(numbers(&got), numbers(&expected), "v{from} to v{to}");
    for ((number, got), (_, sent)) in got.iter().zip(&expected) {
        // Up to v3 steps have no size.
        if (from <= 3) == (to <= 3) || (13..=18).contains(number) {
            assert_eq!(got, sent, "state {number}, v{from} to v{to}");
        }
    }
}

#[test]
fn a_plugin_that_cannot_be_loaded_is_reported_once_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    fs::write(&text, "no library").unwrap();
    let ours = play::plugin_path().unwrap();
    for (path, reason) in [
        (Path::new("/nowhere/libother.so"), "cannot be loaded"),
        (&text, "cannot be loaded"),
        (Path::new("libm.so.6"), "has no profiler table"),
        (&ours, "is ncclscope itself"),
    ] {
        for version in [1, 4, 7] {
            let (recording, _) = beside(path, ALL_KINDS, version, &[("NCCLSCOPE_PRESET", "full")]);
            let said = said(&recording.outcome.stderr);
            let lines: Vec<_> = said.iter().filter(|line| line.contains("NCCLSCOPE_CHAIN")).collect();
            assert!(lines.len() == 1 && lines[0].contains(reason), "{reason}: {said:?}");
            assert!(remark(&recording, "no other plugin").contains(reason));
            assert_eq!(recording.timeline().figures().get("recorded"), recording.calls());
        }
    }
}

#[test]
fn failures_of_the_other_plugin_do_not_affect_ours() {
    // Its init fails, for each communicator; no start gives a handle.
    for (name, value, starts) in [("ECHO_FAIL", "3", false), ("ECHO_SILENT", "1", true)] {
        let settings = [("NCCLSCOPE_PRESET", "full"), ("NCCLSCOPE_KERNEL_CH", "force"), (name, value)];
        let (recording, log) = beside(echo(0), ALL_KINDS, 7, &settings);
        assert_eq!(recording.timeline().figures().get("recorded"), recording.calls(), "{name}");
        let calls = |what: &str| log.iter().filter(|call| call["call"] == what).count();
        assert_eq!((calls("init"), calls("start") > 0, calls("stop"), calls("state")), (1, starts, 0, 0), "{name}");
        assert_eq!(calls("finalize"), usize::from(starts), "{name}");
        if name == "ECHO_FAIL" {
            assert!(remark(&recording, "no other plugin").contains("failed with 3"));
        }
    }
}

#[test]
fn a_failed_init_of_the_other_plugin_takes_nothing_from_its_other_communicators() {
    let script = "u init world comm=1 rank=0 nranks=2\nu init second comm=2 rank=0 nranks=2\nu start c world ProxyCtrl\n\
                  u stop c\nu finalize second\nu finalize world";
    for enabled in ["1", "0"] {
        let settings = [("NCCLSCOPE_PRESET", "light"), ("NCCLSCOPE_ENABLE", enabled), ("ECHO_MASK", "32")];
        let settings = [&settings[..], &[("ECHO_FAIL", "3"), ("ECHO_FAIL_AT", "2")]].concat();
        let (_, log) = beside(echo(0), script, 7, &settings);
        let calls: Vec<_> = log.iter().filter_map(|call| call["call"].as_str()).collect();
        assert_eq!(calls, ["init", "init", "start", "stop", "finalize"], "{enabled}: {log:#?}");
    }
}

#[test]
fn the_other_plugin_gets_only_handles_of_its_own() {
    // Another process's, as with PXN; a second stop; what was never made.
    let script = "u init world comm=1 rank=0 nranks=2\n\
                  u start o raw:0x123456789abcdef0 ProxyOp parent=raw:0x123456789abcd000 pid=1 isSend=1\n\
                  u start s world ProxyStep parent=o step=1\n\
                  u start g world Group\n\
                  u stop g\n\
                  u stop g\n\
                  u state g CtrlIdle\n\
                  u stop raw:0x123456789abcdef0\n\
                  u stop raw:0x7fff00001000\n\
                  u state raw:0x7fff00001000 StepSendWait value=1\n\
                  u stop s\n\
                  u stop o\n\
                  u finalize raw:0x123456789abcdef0\n\
                  u finalize world";
    let (recording, log) = beside(echo(0), script, 7, &[("NCCLSCOPE_PRESET", "full")]);
    assert_eq!(recording.outcome.calls.len(), 14);
    let of = |what: &str| log.iter().filter(|call| call["call"] == what).collect::<Vec<_>>();
    let start = of("start");
    assert_eq!((start[0]["context"].as_str(), start[0]["parentObj"].as_str()), (Some("(nil)"), Some("0x0")));
    assert_eq!(start[1]["parentObj"], "0x1", "the operation is its own, the communicator another process's");
    assert_eq!((start.len(), of("stop").len(), of("state").len(), of("finalize").len()), (3, 3, 0, 1), "{log:#?}");
}

#[test]
fn calls_captured_in_a_graph_stay_parents() {
    // More events than are remembered, between the capture and a replay.
    let capture = "u init world comm=1 rank=0 nranks=2\n\
                   u start api world CollApi func=AllReduce count=1 datatype=ncclInt8 graphCaptured=true\nu stop api\n";
    let many = "u start g world Group\nu stop g\n".repeat(3000);
    let replay = "u start c world Coll parent=api func=AllReduce count=1 datatype=ncclInt8\nu stop c\nu finalize world";
    let (_, log) = beside(echo(0), &format!("{capture}{many}{replay}"), 7, &[("NCCLSCOPE_PRESET", "light")]);
    let coll = log.iter().find(|call| call["type"] == 2).unwrap();
    assert_eq!(coll["parentObj"], "0x1");
}

#[test]
fn the_empty_plugin_beside_ours_costs_no_record_and_no_call() {
    let empty = play::plugin_path().unwrap().with_file_name("libncclscope_empty.so");
    for version in layout::VERSIONS {
        let (recording, _) = beside(&empty, ALL_KINDS, version, &[("NCCLSCOPE_PRESET", "full")]);
        assert_eq!(recording.timeline().figures().get("recorded"), recording.calls(), "v{version}");
        assert!(remark(&recording, "another profiler plugin").contains("libncclscope_empty.so"));
    }
}

/// What the example needs of CUDA, for copies, which do not occur here.
const CUDA_HEADER: &str = "
#pragma once
typedef struct event *cudaEvent_t;
typedef struct stream *cudaStream_t;
enum cudaError_t { cudaSuccess };
enum { cudaEventDisableTiming = 2 };
static inline cudaError_t cudaEventCreate(cudaEvent_t *, unsigned = 0) { return cudaSuccess; }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned) { return cudaSuccess; }
static inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
";

/// NCCL's own example, built by the test from NCCL's source.
#[test]
fn nccls_example_works_beside_ours() {
    let Some(source) = std::env::var_os("NCCLSCOPE_TEST_NCCL_SOURCE") else {
        return println!("skipped: NCCLSCOPE_TEST_NCCL_SOURCE does not name a copy of NCCL's source");
    };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libexample.so");
    let example = Path::new(&source).join("plugins/profiler/example");
    let mut command = Command::new(std::env::var_os("CXX").unwrap_or("c++".into()));
    fs::write(folder.path().join("cuda_runtime.h"), CUDA_HEADER).unwrap();
    command.arg("-I").arg(folder.path()).arg("-I").arg(example.join("nccl"));
    command.args(["-w", "-fPIC", "-shared", "-pthread", "-o"]).arg(&library);
    let files = fs::read_dir(&example).unwrap().map(|file| file.unwrap().path());
    command.args(files.filter(|file| file.extension().is_some_and(|it| it == "cc")));
    assert!(command.status().unwrap().success(), "the example cannot be built");
    // All that this interface has, without copies, which need CUDA.
    let mask = (0xffff & !(7 << 12)).to_string();
    let run = |version: u32, plugin: Option<&Path>| {
        let dump = folder.path().join("dump");
        let play = Play::new(ALL_KINDS).interface(version).respect_mask().env("NCCL_PROFILE_EVENT_MASK", &mask);
        let play = play.env("NCCL_PROFILE_DUMP_FILE", &dump).env("NCCLSCOPE_PRESET", "light");
        let recording = Recording::by(match plugin {
            Some(plugin) => play.plugin(plugin),
            None => play.env("NCCLSCOPE_CHAIN", &library),
        });
        assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let dumped = files.into_iter().find(|path| path.to_string_lossy().contains("dump_"));
        let dumped = dumped.expect("the example writes a file");
        let text = fs::read_to_string(&dumped).unwrap();
        fs::remove_file(dumped).unwrap();
        // Its numbers are times and counters; what happened is in the names.
        let names = text.split("\"name\": \"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
        (recording, names.collect::<Vec<_>>())
    };
    for nccl in layout::VERSIONS {
        let mut versions = (1..=nccl).rev().chain(nccl + 1..=7);
        let version = versions.find(|version| has_table(&library, *version)).unwrap();
        let (recording, beside) = run(nccl, None);
        if nccl == version {
            let (_, alone) = run(version, Some(&library));
            assert!(alone.iter().any(|name| name == "AllReduce"), "{alone:?}");
            assert_eq!(beside, alone, "v{version}");
        }
        assert_eq!(recording.timeline().figures().get("unknown_handles"), 0);
        assert!(remark(&recording, "another profiler plugin").contains(&format!("v{version}")));
    }
}

/// Whether a library has a table of this version.
fn has_table(library: &Path, version: u32) -> bool {
    let name = format!("ncclProfiler_v{version}\0");
    let bytes = fs::read(library).unwrap();
    bytes.windows(name.len()).any(|window| window == name.as_bytes())
}
