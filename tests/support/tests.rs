//! The scripted host against `echo.c`, a plugin in C that writes down every call it gets.
//!
//! Both have independent definitions of the interface, so whatever arrives intact is laid out
//! correctly.

use ncclscope_tests::host::{Arg, Comm, LoadError, POISON, Plugin, RawHandle};
use ncclscope_tests::layout::{self, CType, Field};
use ncclscope_tests::play::{Outcome, Play, compile_to, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

#[test]
fn the_c_compiler_agrees_with_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layout");
    compile_to(&program, "echo.c", &["-DPRINT_LAYOUT"]);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();

    let mut theirs = BTreeMap::<(&str, u32), Vec<String>>::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(what), Some(version), Some(rest)) = (words.next(), words.next(), words.next()) else {
            panic!("unexpected line {line}");
        };
        theirs.entry((what, version.parse().unwrap())).or_default().push(rest.to_owned());
    }
    let mut check = |what, version, ours: Vec<String>| {
        let sorted = |mut lines: Vec<String>| {
            lines.sort();
            lines
        };
        let theirs = theirs.remove(&(what, version)).unwrap_or_default();
        assert_eq!(sorted(ours), sorted(theirs), "{what} v{version}");
    };
    let describe = |fields: &[Field]| -> Vec<String> {
        let line = |f: &Field| format!("{} {} {} {} {}", f.event, f.name, c_name(f.ctype), f.offset, f.size);
        fields.iter().map(line).collect()
    };
    for version in layout::VERSIONS {
        let sizes = format!("{} {}", layout::descriptor_size(version), layout::state_argument_size(version));
        check("size", version, vec![sizes]);
        check("field", version, describe(layout::fields(version)));
        check("argument", version, describe(layout::state_arguments(version)));
    }
    check("payload", 7, describe(layout::network_payloads()));
    check("table", 7, describe(layout::function_table()));
    let others =
        [layout::IB_PAYLOAD_SIZE, layout::SOCKET_PAYLOAD_SIZE, layout::FUNCTION_TABLE_SIZE].map(|n| n.to_string());
    check("others", 7, vec![others.join(" ")]);
    assert!(theirs.is_empty(), "not compared: {theirs:?}");
}

#[test]
fn every_field_arrives_in_every_version() {
    let echo = Echo::new();
    for version in layout::VERSIONS {
        let script = "u init world comm=0x77 rank=3 nranks=8 nodes=2 name=\"data parallel\"\n\
                      u start g world Group\n\
                      u start api world CollApi func=AllReduce count=7 datatype=ncclFloat32 root=2 stream=0x10 \
                        graphCaptured=true userTag=9\n\
                      u start c world Coll parent=api group=g seqNumber=5 func=AllReduce sendBuff=0x1000 \
                        recvBuff=0x2000 count=16Mi root=1 datatype=ncclBfloat16 nChannels=12 nWarps=17 algo=RING \
                        proto=SIMPLE trafficBytes=99 op=2 isNvls=1 kernelVariant=AGxLL_R isSymColl=true userTag=4\n\
                      u start p world P2p parent=api group=g func=Recv buff=0x3000 datatype=ncclInt8 count=33 \
                        peer=-1 nChannels=2\n\
                      u start o world ProxyOp parent=c channelId=255 peer=1 nSteps=-2 chunkSize=512Ki isSend=1\n\
                      u start s world ProxyStep parent=o step=11\n\
                      u start ce world CeColl parent=api ceSeqNum=8 syncStrategy=MC batchSize=6 numBatches=5\n\
                      u start k world KernelPhase parent=c channelId=1 phaseId=2 phaseName=compute pTimer=77";
        let (outcome, log) = echo.play(version, script);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        let event = |label: &str| {
            let handle = outcome.call(label).json["handle"].clone();
            let found = log.iter().find(|call| call["call"] == "start" && call["handle"] == handle);
            found.cloned().unwrap_or(Value::Null)
        };

        let coll = event("c");
        assert_eq!(coll["type"], 2);
        assert_eq!(coll["rank"], 3);
        assert_eq!(coll["seqNumber"], 5);
        assert_eq!(coll["recvBuff"], "0x2000");
        assert_eq!(coll["count"], 16 << 20);
        assert_eq!(coll["nWarps"], 17);
        let parent = if version <= 4 { "g" } else { "api" };
        assert_eq!(coll["parentObj"], outcome.call(parent).json["handle"]);
        let channels = if version <= 3 { "nMaxChannels" } else { "nChannels" };
        assert_eq!(coll[channels], 12);
        match version {
            1 => assert_eq!([&coll["func"], &coll["datatype"], &coll["algo"], &coll["proto"]], [4, 9, 1, 2]),
            _ => assert_eq!(coll["func"], "AllReduce"),
        }
        match version {
            1..=3 => assert_eq!([&coll["name"], &coll["commHash"]], [&Value::from("data parallel"), &0x77.into()]),
            4 => assert_eq!(coll["parentGroup"], Value::Null),
            _ => assert_eq!(coll["parentGroup"], outcome.call("g").json["handle"]),
        }
        match version {
            7 => assert_eq!([&coll["kernelVariant"], &coll["userTag"]], [&Value::from("AGxLL_R"), &4.into()]),
            _ => assert_eq!(coll["userTag"], Value::Null),
        }

        let p2p = event("p");
        assert_eq!([&p2p["buff"], &p2p["peer"]], [&Value::from("0x3000"), &(-1).into()]);
        let op = event("o");
        assert_eq!([&op["channelId"], &op["nSteps"], &op["chunkSize"]], [255, -2, 512 << 10]);
        assert_eq!(op["pid"], outcome.call("o").pid);
        assert_eq!(event("s")["step"], 11);

        assert_eq!(event("api").is_null(), version < 5);
        assert_eq!(event("ce").is_null(), version < 6);
        assert_eq!(event("k").is_null(), version < 7);
        if version >= 6 {
            assert_eq!([&event("ce")["syncStrategy"], &event("ce")["ceSeqNum"]], [&Value::from("MC"), &8.into()]);
        }
        assert_eq!(outcome.call("k").skipped.is_some(), version < 7);
    }
}

#[test]
fn init_gets_its_arguments_in_the_order_of_the_version() {
    let echo = Echo::new();
    for version in layout::VERSIONS {
        let script = "u init world comm=0x77 rank=3 nranks=8 nodes=2 name=\"data \\xff parallel\"\nu finalize world";
        let (outcome, log) = echo.play(version, script);
        let call = outcome.call("world");
        assert_eq!((call.status, call.mask), (Some(0), Some(0xffff)));
        assert_eq!(log[0]["context"], call.json["handle"]);
        assert_eq!(log[1]["call"], "finalize");
        assert_eq!(log[1]["context"], call.json["handle"]);
        if version >= 4 {
            let keys = ["id", "nodes", "ranks", "rank"];
            assert_eq!(keys.map(|key| log[0][key].as_i64().unwrap()), [0x77, 2, 8, 3]);
            assert_eq!(log[0]["name"], "data ? parallel");
            assert_eq!(call.json["log"], serde_json::json!([[3, "rank %d of %d"]]));
        }
    }
}

#[test]
fn states_carry_what_their_version_has() {
    let script = "u init world comm=1 rank=0 nranks=2\n\
                  u start g world GroupApi\n\
                  u state g GroupStartApiStop\n\
                  u start o world ProxyOp\n\
                  u state o OpInProgress\n\
                  u state o OpSendPosted value=4096 steps=3\n\
                  u start s world ProxyStep parent=o\n\
                  u state s StepSendWait value=4096\n\
                  u state s StepSendWait noargs\n\
                  u start c world ProxyCtrl\n\
                  u state c CtrlAppendEnd value=7\n\
                  u state c state:77 value=5\n\
                  u state null CtrlIdle\n\
                  u stop g\n\
                  u stop null";
    let echo = Echo::new();
    for version in layout::VERSIONS {
        let (outcome, log) = echo.play(version, script);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        let states: Vec<_> = log
            .iter()
            .filter(|call| call["call"] == "state")
            .map(|call| format!("{} {}", call["state"], call["args"]))
            .collect();
        let expected: &[&str] = match version {
            1..=3 => &["0 [4096,3]", "9 null", "9 null", "18 [7]", "77 [5]", "13 [0]"],
            4 => &["19 [0]", "9 [4096]", "9 null", "18 [7]", "77 [5]", "13 [0]"],
            _ => &["23 null", "19 [0]", "9 [4096]", "9 null", "18 [7]", "77 [5]", "13 [0]"],
        };
        assert_eq!(states, expected, "v{version}");
        // An event that the version lacks is not stopped either, but the word `null` is.
        let stops = log.iter().filter(|call| call["call"] == "stop").count();
        assert_eq!(stops, if version >= 5 { 2 } else { 1 });
    }
}

#[test]
fn network_payloads_arrive() {
    let script = "u init world comm=1 rank=0 nranks=2\n\
                  u start a world NetPlugin net=ib device=1 wr_id=0x1122334455667788 opcode=3 qp=4 length=5\n\
                  u start b world NetPlugin net=socket fd=6 op=1 length=8\n\
                  u state b NetUpdate net=socket fd=6 op=1 length=3";
    let echo = Echo::new();
    for version in 3..=7 {
        let (outcome, log) = echo.play(version, script);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        assert_eq!(log[1]["id"], 0x10001);
        assert_eq!(log[1]["ib"], serde_json::json!([1, 1, 0x1122_3344_5566_7788_u64, 3, 4, 5]));
        assert_eq!(log[2]["socket"], serde_json::json!([1, 6, 1, 8]));
        if version >= 4 {
            assert_eq!(log[3]["socket"], serde_json::json!([1, 6, 1, 3]));
        }
    }
}

#[test]
fn texts_can_have_addresses_of_their_own_and_change() {
    let script = "u init world comm=1 rank=0 nranks=2\n\
                  u text t AllReduce\n\
                  u start a world Coll func=@t datatype=fresh:ncclInt8 algo=null\n\
                  u text t Broadcast\n\
                  u start b world Coll func=@t";
    let echo = Echo::new();
    let (_, log) = echo.play(7, script);
    assert_eq!([&log[1]["func"], &log[1]["datatype"], &log[2]["func"]], ["AllReduce", "ncclInt8", "Broadcast"]);
    assert_eq!(log[1]["algo"], Value::Null);
    let (_, log) = echo.play(1, script);
    assert_eq!([&log[1]["func"], &log[2]["func"]], [4, 0]);
}

#[test]
fn threads_are_real_and_named() {
    let script = "main init world comm=1 rank=0 nranks=2\n\
                  a start x world Group\n\
                  b start y world Group\n\
                  a stop x\n\
                  a end\n\
                  a stop y\n\
                  main finalize world";
    let echo = Echo::new();
    let (outcome, log) = echo.play(7, script);
    let tids: Vec<_> = log.iter().map(|call| call["tid"].as_i64().unwrap() as i32).collect();
    assert_eq!(tids[0], outcome.calls[0].pid);
    assert_eq!(tids[1], tids[3]);
    assert_ne!(tids[1], tids[2]);
    assert_ne!(tids[4], tids[3]);
    assert_eq!(tids, outcome.calls.iter().filter(|call| call.verb != "end").map(|c| c.tid).collect::<Vec<_>>());
    assert!(outcome.calls.windows(2).all(|pair| pair[0].after <= pair[1].before));
}

#[test]
fn the_ways_to_end_are_distinguished() {
    let echo = Echo::new();
    let end = |line: &str| {
        let (outcome, _) = echo.play(7, &format!("u init world comm=1 rank=0 nranks=1\n{line}\nu stop null"));
        assert_eq!(outcome.calls.last().unwrap().line, 2);
        (outcome.status, outcome.signal)
    };
    assert_eq!(end("u exit 3"), (Some(3), None));
    assert_eq!(end("main _exit 4"), (Some(4), None));
    assert_eq!(end("u abort"), (None, Some(libc::SIGABRT)));
    assert_eq!(end("main kill SIGKILL"), (None, Some(libc::SIGKILL)));
    assert_eq!(end("u kill SIGTERM"), (None, Some(libc::SIGTERM)));
}

#[test]
fn a_child_plays_its_lines_and_the_parent_the_others() {
    let script = "u init world comm=1 rank=0 nranks=1\n\
                  u fork\n\
                  child start x world Group\n\
                  u start y world Group\n\
                  child stop x\n\
                  u stop y";
    let echo = Echo::new();
    let (outcome, log) = echo.play(7, script);
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    let lines: Vec<_> = outcome.calls.iter().map(|call| call.line).collect();
    assert_eq!(lines, [1, 3, 5, 2, 4, 6]);
    let child = outcome.line(3).unwrap().pid;
    assert_ne!(child, outcome.calls[0].pid);
    assert_eq!(outcome.line(2).unwrap().json["child"], serde_json::json!({ "pid": child, "status": 0 }));
    assert_eq!(log.len(), 5);
}

#[test]
fn a_plugin_may_be_closed_and_reopened() {
    let echo = Echo::new();
    let script = "u init a comm=1 rank=0 nranks=1\nu finalize a\nu unload\n";
    let (outcome, log) = echo.play(7, &format!("{script}u init b comm=2 rank=0 nranks=1"));
    assert_eq!(outcome.line(3).unwrap().json["mapped"], false);
    assert_eq!((outcome.status, log.len()), (Some(0), 3));

    let (outcome, _) = echo.play(7, &format!("{script}u start x a Group"));
    assert_eq!(outcome.status, Some(2));
    assert_eq!(outcome.stderr, "scripted-host: line 4: the plugin is no longer in memory since it was unloaded\n");

    let undeletable = echo.folder.path().join("libundeletable.so");
    compile_to(&undeletable, "echo.c", &["-shared", "-fPIC", "-Wl,-z,nodelete"]);
    let (outcome, _) = echo.play_with(&undeletable, 7, &format!("{script}u start x a Group"), &[]);
    assert_eq!((outcome.status, outcome.line(3).unwrap().json["mapped"].as_bool()), (Some(0), Some(true)));
}

#[test]
fn a_missing_table_is_named() {
    let echo = Echo::new();
    let old = echo.folder.path().join("libold.so");
    compile_to(&old, "echo.c", &["-shared", "-fPIC", "-DWITHOUT_V7"]);
    let script = "u init world comm=1 rank=0 nranks=1";
    let (outcome, _) = echo.play_with(&old, 7, script, &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.stderr.ends_with("libold.so does not export ncclProfiler_v7\n"), "{}", outcome.stderr);
    // SAFETY: the library is the plugin of `echo.c`, which follows the interface.
    let error = unsafe { Plugin::load(&old, 7) }.unwrap_err();
    assert!(matches!(error, LoadError::Symbol { symbol, .. } if symbol == "ncclProfiler_v7"));
}

#[test]
fn an_unwritten_out_parameter_is_detected() {
    let echo = Echo::new();
    let script = "u init world comm=1 rank=0 nranks=1\nu start g world Group";
    let (outcome, _) = echo.play_with(&echo.library, 7, script, &[("ECHO_SILENT", "1")]);
    assert_eq!(outcome.call("g").handle, Some(POISON.0));
}

#[test]
fn the_mask_can_be_respected() {
    let echo = Echo::new();
    let script = "u init world comm=1 rank=0 nranks=1\n\
                  u start k world KernelLaunch\n\
                  u start g world Group\n\
                  u stop g\n\
                  u mask value=0xffff\n\
                  u start h world Group\n\
                  u mask";
    let play = Play::new(script).host(HOST).plugin(&echo.library).env("ECHO_MASK", "2048").respect_mask();
    let outcome = play.run().unwrap();
    assert_eq!(outcome.call("g").skipped.as_deref(), Some("the mask does not ask for Group"));
    assert_ne!(outcome.call("k").handle, Some(0));
    assert_ne!(outcome.call("h").handle, Some(0));
    assert_eq!(outcome.calls.last().unwrap().mask, Some(0xffff));
}

#[test]
fn scenarios_play_through_every_version() {
    let echo = Echo::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let script = fs::read_to_string(&path).unwrap();
        for version in layout::VERSIONS {
            let (outcome, _) = echo.play(version, &script);
            let aborts = script.contains("abort\n");
            let expected = if aborts { (None, Some(libc::SIGABRT)) } else { (Some(0), None) };
            let name = path.display();
            assert_eq!((outcome.status, outcome.signal), expected, "{name} v{version}: {}", outcome.stderr);
            assert_eq!(outcome.stderr, "", "{name} v{version}");
        }
    }
}

#[test]
fn a_flood_counts_what_it_sends() {
    let echo = Echo::new();
    for (version, kind) in [(1, "mixed"), (4, "step"), (7, "coll"), (7, "mixed")] {
        let log = echo.folder.path().join(format!("flood.{version}.{kind}"));
        let mut command = Command::new(HOST);
        command.args(["flood", "--threads", "3", "--events", "2000", "--comms", "2", "--latency", "--kind", kind]);
        command.args(["--interface", &version.to_string(), "--plugin"]).arg(&echo.library).env("ECHO_LOG", &log);
        let report = flood(&mut command);
        let calls = fs::read_to_string(&log).unwrap();
        let count =
            |word: &str| calls.lines().filter(|line| line.starts_with(&format!("{{\"call\":\"{word}\""))).count();
        assert_eq!(report["starts"], count("start"));
        assert_eq!(report["stops"], count("stop"));
        assert_eq!(report["states"], count("state"));
        assert_eq!((count("init"), count("finalize")), (2, 2));
        assert!((2000..2600).contains(&report["calls"].as_u64().unwrap()), "{report}");
        assert!(report["latency"]["max_ns"].as_u64() >= report["latency"]["p999_ns"].as_u64(), "{report}");
        assert!(report["rss_before_kib"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn a_flood_of_short_threads_counts_too() {
    let echo = Echo::new();
    let mut command = Command::new(HOST);
    command.args(["flood", "--interface", "7", "--threads", "2", "--short-threads", "300", "--kind", "coll"]);
    command.arg("--plugin").arg(&echo.library);
    let report = flood(&mut command);
    assert_eq!([&report["starts"], &report["stops"], &report["states"]], [1500, 1500, 600]);
}

#[test]
fn a_paced_flood_takes_its_time() {
    let echo = Echo::new();
    let mut command = Command::new(HOST);
    command.args(["flood", "--interface", "7", "--threads", "2", "--events", "2000", "--rate", "10000"]);
    command.arg("--plugin").arg(&echo.library);
    let report = flood(&mut command);
    assert!(report["wall_ns"].as_u64().unwrap() >= 180_000_000, "{report}");
}

#[test]
fn a_host_that_hangs_is_ended() {
    let echo = Echo::new();
    let play = Play::new("u sleep 60s").host(HOST).plugin(&echo.library).limit(Duration::from_millis(200));
    let error = play.run().unwrap_err();
    assert!(error.to_string().starts_with("the scripted host did not end within 200ms"), "{error}");
}

#[test]
fn the_api_works_without_a_script() {
    let echo = Echo::new();
    // SAFETY: the library is the plugin of `echo.c`, which follows the interface.
    let plugin = unsafe { Plugin::load(&echo.library, 5) }.unwrap();
    assert_eq!((plugin.name(), plugin.version()), ("echo", 5));
    let world = plugin.init(&Comm { nranks: 2, ..Comm::default() });
    assert_eq!((world.status, world.mask), (0, 0xffff));
    let group = plugin.start(&world, "Group", &[], RawHandle::NULL);
    assert!(group.sent && !group.handle.is_null());
    let fields = [("func", "AllReduce".into()), ("count", 1024.into()), ("parentGroup", group.handle.into())];
    let coll = plugin.start(&world, "Coll", &fields, RawHandle::NULL);
    assert!(coll.handle > group.handle);
    assert!(!plugin.start(&world, "KernelPhase", &[], coll.handle).sent);
    assert_eq!(plugin.state(coll.handle, "OpInProgress", Arg::Default), Some(0));
    assert_eq!(plugin.state(coll.handle, "KernelPhaseStop", Arg::Value(1)), None);
    assert_eq!(plugin.stop(coll.handle), 0);
    assert_eq!(plugin.finalize(&world), 0);
}

const HOST: &str = env!("CARGO_BIN_EXE_scripted-host");

/// The plugin of `echo.c`, built for one test.
struct Echo {
    folder: TempDir,
    library: PathBuf,
}

impl Echo {
    fn new() -> Echo {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libecho.so");
        compile_to(&library, "echo.c", &["-shared", "-fPIC"]);
        Echo { folder, library }
    }

    /// Plays a script. Returns what host and plugin wrote down.
    fn play(&self, version: u32, script: &str) -> (Outcome, Vec<Value>) {
        self.play_with(&self.library, version, script, &[])
    }

    fn play_with(
        &self,
        library: &Path,
        version: u32,
        script: &str,
        variables: &[(&str, &str)],
    ) -> (Outcome, Vec<Value>) {
        let log = self.folder.path().join("log");
        let _ = fs::remove_file(&log);
        let play = Play::new(script).host(HOST).plugin(library).interface(version).env("ECHO_LOG", &log);
        let outcome = play.envs(variables).run().unwrap();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let calls = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (outcome, calls)
    }
}

fn flood(command: &mut Command) -> Value {
    let finished = run(command, "", Duration::from_secs(60)).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

/// The name of a type in `echo.c`. A C compiler cannot distinguish `size_t` from `uint64_t` here.
fn c_name(ctype: CType) -> &'static str {
    match ctype {
        CType::Bool => "bool",
        CType::U8 => "u8",
        CType::Int => "int",
        CType::U32 => "u32",
        CType::I64 => "i64",
        CType::U64 | CType::Size => "u64",
        CType::Ptr => "ptr",
        CType::Str => "str",
    }
}
