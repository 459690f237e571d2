//! JSON from PyTorch's profiler in its various forms, made up according to libkineto's writer: old
//! and new releases, AMD's GPUs, merged ranks, edited files. Everything in a file is found and
//! drawn, and nothing else.

use crate::command::ncclscope;
use ncclscope::import::{self, How, Profile, Tool};
use ncclscope::model::activity::{Api, CopyKind};
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::recording::assert_sound;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// 2026-05-26 07:58:50 UTC.
const BASE: i64 = 1_779_782_330_000_000_000;

/// A file with these events and the fields beside them.
fn file(events: &[Value], beside: Value) -> (TempDir, PathBuf) {
    let mut whole = json!({"schemaVersion": 1, "baseTimeNanoseconds": BASE});
    whole.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
    whole["traceEvents"] = events.into();
    written(whole.to_string())
}

fn written(text: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn event(cat: &str, name: &str, (pid, tid): (Value, Value), (ts, dur): (f64, f64), args: Value) -> Value {
    json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})
}

const RING: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";

/// A launch by thread 11 of process 4711, and its kernel on stream 20 of GPU 0.
fn launched(kernel: &str, number: u32, at: f64) -> [Value; 2] {
    let place = json!({"device": 0, "context": 1, "stream": 20, "correlation": number, "grid": [8, 1, 1], "block": [256, 1, 1]});
    [
        event(
            "cuda_runtime",
            "cudaLaunchKernelExC",
            (4711.into(), 11.into()),
            (at, 5.0),
            json!({"correlation": number}),
        ),
        event("kernel", kernel, (0.into(), 20.into()), (at + 20.0, 30.0), place),
    ]
}

fn range(name: &str, at: f64, dur: f64) -> Value {
    event("user_annotation", name, (4711.into(), 11.into()), (at, dur), json!({}))
}

/// The trace that the import of a file makes, and that trace read back.
fn imported(path: &Path) -> (Trace, Profile) {
    let output = path.with_extension("perfetto-trace");
    let words = ["import".as_ref(), "-o".as_ref(), output.as_os_str(), path.as_os_str()];
    ncclscope(&words).unwrap();
    let trace = Trace::open(&output).unwrap();
    assert_sound(&trace, 0);
    (trace, import::open(&output).unwrap())
}

/// How the operations of collective kernels are known in the trace: name, match and doubt of each
/// kernel.
fn matches(trace: &Trace) -> String {
    trace.text(
        "SELECT name, extract_arg(arg_set_id, 'nccl.match') AS by, extract_arg(arg_set_id, 'nccl.doubt') AS doubt FROM slice \
         WHERE category = 'kernel' AND by IS NOT NULL ORDER BY ts",
    )
}

#[test]
fn a_kernel_in_the_range_of_a_call_belongs_to_it() {
    let mut events: Vec<Value> = Vec::new();
    // Launched in the range of an all-reduce, in one that is no call, in one that its name
    // contradicts, and in none.
    events.extend(launched(RING, 1, 100.0));
    events.push(range("nccl:all_reduce", 95.0, 20.0));
    events.extend(launched(RING, 2, 200.0));
    events.push(range("ProfilerStep#4", 90.0, 500.0));
    events.extend(launched(RING, 3, 300.0));
    events.push(range("nccl:all_gather", 295.0, 20.0));
    events.extend(launched(RING, 4, 400.0));
    // Its launch is not in the file, but the range covers it on the GPU.
    events.push(launched(RING, 5, 500.0)[1].clone());
    let over = event("gpu_user_annotation", "nccl:all_reduce", (0.into(), 20.into()), (519.9, 30.2), json!({}));
    events.push(over);
    // The launch of this one is missing, too.
    events.push(launched(RING, 6, 600.0)[1].clone());
    // Not NCCL's, but still collectives.
    events.extend(launched("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", 7, 700.0));
    events.extend(launched("void ncclDevKernel_SendRecv<1>(ncclDevKernelArgsStorage<4096ul>)", 8, 800.0));
    events.push(range("nccl:all_to_all", 795.0, 20.0));
    events.extend(launched("vectorized_elementwise_kernel", 9, 900.0));
    let (_folder, path) = file(&events, json!({}));
    let profile = import::open(&path).unwrap();
    let hows: Vec<How> = profile.kernels.iter().map(|kernel| kernel.carried.how).collect();
    use How::{Launched, Named, Unknown};
    assert_eq!(hows, [Launched, Unknown, Unknown, Unknown, Launched, Unknown, Named, Launched, Unknown]);
    assert_eq!((profile.nccl_kernels().count(), profile.collective_kernels().count()), (7, 8));

    let (trace, after) = imported(&path);
    let not_said = "its launch is in the file, and the file does not say what it was asked for";
    let expected = format!(
        "name,by,doubt\n\
         AllReduce,inferred_range,NULL\n\
         {RING},unmatched,\"{not_said}\"\n\
         {RING},unmatched,\"{not_said}\"\n\
         {RING},unmatched,\"{not_said}\"\n\
         AllReduce,inferred_range,NULL\n\
         {RING},unmatched,its launch is not in the file\n\
         AllReduce,inferred_kernel_name,NULL\n\
         AlltoAll,inferred_range,NULL\n"
    );
    assert_eq!(matches(&trace).replace('"', ""), expected.replace('"', ""));
    assert_eq!(after.kernels.iter().map(|kernel| kernel.carried.how).collect::<Vec<_>>(), hows);
    let info = ncclscope(&["info".as_ref(), path.as_os_str()]).unwrap();
    assert!(info.contains("9 kernels, 7 of them NCCL's and 1 another collective's"), "{info}");
}

#[test]
fn facts_missing_from_amd_files_are_absent_rather_than_zero() {
    let kernel = |number: u32, at: f64| {
        // As roctracer reports kernels without a launch.
        let args = json!({"device": 2, "stream": 3, "correlation": number, "kind": "Dispatch Kernel"});
        event(
            "kernel",
            "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
            (2.into(), 3.into()),
            (at, 9.0),
            args,
        )
    };
    let events = [
        event(
            "cuda_runtime",
            "hipExtLaunchKernel",
            (99.into(), 99.into()),
            (10.0, 2.0),
            json!({"cid": 1, "correlation": 41}),
        ),
        event("user_annotation", "nccl:all_reduce", (99.into(), 99.into()), (9.0, 5.0), json!({})),
        kernel(41, 15.0),
        event(
            "gpu_memcpy",
            "Memcpy HtoD (Host -> Device)",
            (2.into(), 3.into()),
            (30.0, 4.0),
            json!({"device": 2, "stream": 3}),
        ),
        event(
            "gpu_memcpy",
            "Memcpy DtoD (Device -> Device)",
            (2.into(), 3.into()),
            (40.0, 4.0),
            json!({"stream": 3, "bytes": 512}),
        ),
    ];
    let (_folder, path) = file(&events, json!({"deviceProperties": [{"id": 2, "name": "AMD Instinct MI300X"}]}));
    let profile = import::open(&path).unwrap();
    assert_eq!(profile.cuda_calls[0].api, Api::Hip);
    assert_eq!(profile.copies.iter().map(|it| it.bytes).collect::<Vec<_>>(), [None, Some(512)]);
    assert_eq!(
        profile.copies.iter().map(|it| it.kind).collect::<Vec<_>>(),
        [CopyKind::HostToDevice, CopyKind::DeviceToDevice]
    );
    let (trace, after) = imported(&path);
    assert_eq!(matches(&trace), "name,by,doubt\nAllReduce,inferred_range,NULL\n");
    for (category, absent) in [("kernel", "context"), ("kernel", "grid"), ("kernel", "block"), ("cuda", "context")] {
        let sql = format!(
            "SELECT count(*) AS n FROM slice WHERE category = '{category}' AND extract_arg(arg_set_id, 'nccl.{absent}') IS NOT NULL"
        );
        assert_eq!(trace.rows(&sql)[0].i64("n"), 0, "{absent}");
    }
    let copies = "SELECT extract_arg(arg_set_id, 'nccl.bytes') AS bytes, extract_arg(arg_set_id, 'nccl.correlation') AS call \
                  FROM slice WHERE name GLOB 'copy *' ORDER BY ts";
    assert_eq!(trace.text(copies), "bytes,call\nNULL,NULL\n512,NULL\n");
    let tracks = "SELECT DISTINCT track.name AS name FROM slice JOIN track ON track.id = slice.track_id \
                  WHERE category IN ('cuda', 'pytorch', 'nvtx') ORDER BY 1";
    assert_eq!(trace.text(tracks), "name\nHIP runtime\nPyTorch · user_annotation\n");
    assert_eq!(after.cuda_calls[0].api, Api::Hip);
    assert_eq!(after.copies.iter().map(|it| it.bytes).collect::<Vec<_>>(), [None, Some(512)]);
    assert_eq!(after.devices.into_iter().collect::<Vec<_>>(), [(2, "AMD Instinct MI300X".to_owned())]);
    assert_eq!(after.ranges[0].domain.as_deref(), Some("user_annotation"));
}

#[test]
fn begin_and_end_events_are_paired_and_arrows_lead_to_kernels() {
    let half = |ph: &str, name: &str, ts: f64, args: Value| json!({"ph": ph, "cat": "cpu_op", "name": name, "pid": 4711, "tid": 11, "ts": ts, "args": args});
    let arrow = |ph: &str, id: u32, pid: u32, tid: u32, ts: f64| json!({"ph": ph, "id": id, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"});
    let mut call = half("B", "cudaLaunchKernel", 21.0, json!({}));
    call["cat"] = "cuda_runtime".into();
    let events = [
        half("B", "outer", 10.0, json!({})),
        half("B", "inner", 20.0, json!({})),
        call,
        half("E", "", 22.0, json!({})),
        half("E", "", 25.0, json!({})),
        half("E", "", 40.0, json!({})),
        half("B", "cut", 50.0, json!({})),
        event("user_annotation", "nccl:all_reduce", (4711.into(), 11.into()), (20.5, 3.0), json!({})),
        // Neither the call nor the kernel has a correlation id; the arrow has.
        event("kernel", RING, (0.into(), 20.into()), (30.0, 5.0), json!({"device": 0, "stream": 20})),
        arrow("s", 77, 4711, 11, 21.0),
        arrow("f", 77, 0, 20, 30.0),
        event("kernel", RING, (0.into(), 20.into()), (60.0, 5.0), json!({"device": 0, "stream": 20})),
    ];
    let (_folder, path) = file(&events, json!({}));
    let profile = import::open(&path).unwrap();
    let ranges: Vec<_> = profile.ranges.iter().map(|it| (&*it.name, it.span.start.0, it.span.end.0)).collect();
    let expected = [("outer", 10_000, 40_000), ("inner", 20_000, 25_000), ("nccl:all_reduce", 20_500, 23_500)];
    assert_eq!(ranges, expected);
    assert_eq!((profile.cuda_calls[0].correlation, profile.cuda_calls[0].span.duration()), (77, 1000));
    assert_eq!(profile.kernels.iter().map(|it| it.correlation).collect::<Vec<_>>(), [77, 0]);
    assert_eq!(profile.kernels[0].carried.how, How::Launched);
    let note = "left out: begin events without an end (1), end events without a begin (0)";
    assert!(profile.notes.iter().any(|it| it == note), "{:?}", profile.notes);
    let (trace, _) = imported(&path);
    assert_eq!(
        matches(&trace),
        format!("name,by,doubt\nAllReduce,inferred_range,NULL\n{RING},unmatched,its launch is not in the file\n")
    );
}

/// What rank `rank` of two recorded. `pid` gives the ids of its own process and of its GPU's.
fn of_rank(rank: u32, own: &dyn Fn(u32) -> Value) -> Vec<Value> {
    let (cpu, gpu) = (own(4000 + rank), own(rank));
    let at = 100.0 + f64::from(rank);
    let metadata = json!({
        "device": rank, "stream": 20, "correlation": 7, "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024,
        "Group size": 2, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"
    });
    let copied = json!({"device": rank, "stream": 20, "bytes": 64});
    vec![
        event("cpu_op", "aten::add", (cpu.clone(), 11.into()), (at, 9.0), json!({})),
        // Ranks of one program number their calls alike.
        event("cuda_runtime", "cudaLaunchKernel", (cpu.clone(), 11.into()), (at + 1.0, 2.0), json!({"correlation": 7})),
        event("kernel", RING, (gpu.clone(), 20.into()), (at + 10.0, 5.0), metadata),
        event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", (gpu, 20.into()), (at + 20.0, 1.0), copied),
        json!({"ph": "M", "name": "process_name", "pid": cpu, "tid": 0, "args": {"name": format!("python rank {rank}")}}),
    ]
}

#[test]
fn merged_ranks_stay_separate_processes() {
    let labelled = |rank: u32| move |pid: u32| Value::from(format!("[TP{rank:02}] {pid}"));
    let moved = |rank: u32| move |pid: u32| Value::from(pid + rank * 1_000_000);
    let mut sorted = [of_rank(0, &labelled(0)), of_rank(1, &labelled(1))].concat();
    sorted.sort_by(|one, other| one["ts"].as_f64().unwrap_or(0.0).total_cmp(&other["ts"].as_f64().unwrap_or(0.0)));
    let plain = |pid: u32| Value::from(pid);
    // Both GPUs have the same number, as where each rank sees only its own.
    let same_gpu = |pid: u32| Value::from(if pid < 2 { 0 } else { pid });
    for (how, events) in [
        ("labelled, and sorted by time", sorted),
        ("moved", [of_rank(0, &moved(0)), of_rank(1, &moved(1))].concat()),
        ("one behind the other", [of_rank(0, &plain), of_rank(1, &plain)].concat()),
        ("one behind the other, of one GPU's number", [of_rank(0, &same_gpu), of_rank(1, &same_gpu)].concat()),
    ] {
        let (_folder, path) = file(&events, json!({"distributedInfo": {"rank": 0, "world_size": 2}}));
        let profile = import::open(&path).unwrap();
        let ranks: Vec<_> = profile.processes.iter().map(|process| process.rank).collect();
        assert_eq!(ranks, [Some(0), Some(1)], "{how}");
        for (at, kernel) in profile.kernels.iter().enumerate() {
            assert_eq!((kernel.process, kernel.span.start.0), (at, 110_000 + 1000 * at as i64), "{how}");
            let operation = &profile.operations[kernel.carried.operations[0]];
            let group = &profile.communicators[operation.communicator.unwrap()];
            assert_eq!((operation.process, group.process, operation.bytes), (at, at, Some(4096)), "{how}");
        }
        assert_eq!(profile.copies.iter().map(|copy| copy.process).collect::<Vec<_>>(), [0, 1], "{how}");
        let (trace, after) = imported(&path);
        let processes = trace.rows("SELECT name FROM process WHERE pid > 0 ORDER BY name");
        let names: Vec<_> = processes.iter().map(|row| row.str("name").to_owned()).collect();
        assert_eq!(names, ["rank 0", "rank 1"], "{how}");
        assert_eq!(after.kernels.iter().map(|kernel| kernel.process).collect::<Vec<_>>(), [0, 1], "{how}");
    }
    // When sorted by time and numbered alike, nothing says whose a kernel was, and none is assigned
    // to a rank.
    let mut mixed = [of_rank(0, &same_gpu), of_rank(1, &same_gpu)].concat();
    mixed.sort_by(|one, other| one["ts"].as_f64().unwrap_or(0.0).total_cmp(&other["ts"].as_f64().unwrap_or(0.0)));
    let (_folder, path) = file(&mixed, json!({}));
    let profile = import::open(&path).unwrap();
    assert!(profile.kernels.iter().all(|kernel| kernel.process == 2), "{:?}", profile.kernels);
    assert!(profile.processes[2].name.contains("of an unknown process"), "{:?}", profile.processes[2]);
    assert!(
        profile.notes.iter().any(|note| note.contains("for 4 kernels and copies the rank cannot be determined")),
        "{:?}",
        profile.notes
    );
}

#[test]
fn groups_in_which_a_process_has_the_same_rank_stay_apart() {
    let mut events = of_rank(0, &|pid| pid.into());
    let mut other = events.clone();
    for event in &mut other {
        event["ts"] = (event["ts"].as_f64().unwrap_or(0.0) + 50.0).into();
        if event["args"].get("correlation").is_some() {
            event["args"]["correlation"] = 8.into();
        }
        if event["cat"] == "kernel" {
            event["args"]["Process Group Name"] = "1".into();
        }
    }
    events.extend(other);
    let (_folder, path) = file(&events, json!({"distributedInfo": {"rank": 0, "world_size": 2}}));
    let (trace, _) = imported(&path);
    trace.query(include_str!("../sql/ncclscope.sql")).unwrap();
    let names = trace.text("SELECT name, rank FROM nccl_communicator ORDER BY name");
    assert_eq!(names, "name,rank\nprocess group 0,NULL\nprocess group 1,NULL\n");
    assert_eq!(trace.rows("SELECT * FROM nccl_loss"), [], "another tool's file is no recording");
}

#[test]
fn what_pytorch_counts_otherwise_is_counted_as_nccl_does() {
    // Name, elements in and out, the group's ranks, the peer's argument; then count, peer, number.
    let group = "[1, 5]";
    let cases = [
        ("allreduce", (8000, 8000), group, None, (Some(8000), None, Some(7))),
        ("all_to_all", (8000, 8000), group, None, (Some(4000), None, Some(7))),
        ("all_to_all", (8001, 8001), group, None, (None, None, Some(7))),
        ("all_to_allv", (8000, 6000), group, None, (None, None, Some(7))),
        ("_allgather_base", (4000, 8000), group, None, (Some(4000), None, Some(7))),
        ("_reduce_scatter_base", (8000, 4000), group, None, (Some(4000), None, Some(7))),
        ("scatter", (8000, 4000), group, None, (Some(4000), None, Some(7))),
        ("send", (300, 0), group, Some(("Dst Rank", 1)), (Some(300), Some(0), None)),
        ("recv", (0, 300), group, Some(("Src Rank", 5)), (Some(300), Some(1), None)),
        ("recv", (0, 300), group, Some(("Src Rank", 3)), (Some(300), None, None)),
        ("send", (300, 0), "[0, 1, ..., 63]", Some(("Dst Rank", 1)), (Some(300), None, None)),
    ];
    let mut events = Vec::new();
    for (number, (name, (elements_in, elements_out), ranks, peer, _)) in (1..).zip(&cases) {
        let kernel = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)";
        let mut pair = launched(kernel, number, f64::from(number) * 100.0);
        let said = json!({
            "Collective name": name, "In msg nelems": elements_in, "Out msg nelems": elements_out, "Group size": 2,
            "dtype": "Bool", "Process Group Name": ranks, "Process Group Ranks": ranks, "Seq": 7
        });
        let args = pair[1]["args"].as_object_mut().unwrap();
        args.extend(said.as_object().unwrap().clone());
        args.extend(peer.map(|(argument, rank)| (argument.to_owned(), rank.into())));
        events.extend(pair);
    }
    let (_folder, path) = file(&events, json!({}));
    let profile = import::open(&path).unwrap();
    assert_eq!(profile.kernels.len(), cases.len());
    for (kernel, (name, .., expected)) in profile.kernels.iter().zip(cases) {
        let found = &profile.operations[kernel.carried.operations[0]];
        assert_eq!((found.count, found.peer, found.seq), expected, "{name}");
        assert_eq!((found.bytes, found.datatype.as_deref()), (found.count, Some("ncclUint8")), "{name}");
    }
}

#[test]
fn a_file_without_a_base_has_a_date_only_if_its_times_are_since_1970() {
    for (base, at, dated) in [
        (json!(BASE), 100.0, true),
        // As written by releases that had no base.
        (Value::Null, 1_779_782_330_000_100.0, true),
        (Value::Null, 100.0, false),
        (json!(0), 100.0, false),
        (json!("soon"), 100.0, false),
    ] {
        let (_folder, path) = file(&launched(RING, 1, at), json!({"baseTimeNanoseconds": base}));
        let profile = import::open(&path).unwrap();
        assert_eq!(profile.clock.to_utc.is_some(), dated, "{base}, {at}");
        let info = ncclscope(&["info".as_ref(), path.as_os_str()]).unwrap();
        assert_eq!(info.contains("from 2026-05-26 07:58:50.000 UTC"), dated, "{info}");
        assert_eq!(info.contains("at a time that the file does not relate to any other clock"), !dated, "{info}");
        let (trace, after) = imported(&path);
        assert_eq!(after.clock.to_utc.map(|to_utc| to_utc.ns), dated.then_some(0));
        let snapshot = "SELECT count(*) AS n FROM clock_snapshot WHERE clock_name = 'REALTIME'";
        assert_eq!(trace.rows(snapshot)[0].i64("n"), i64::from(dated), "{base}, {at}");
    }
}

#[test]
fn fields_beside_the_events_may_be_null_or_odd() {
    let events = launched(RING, 1, 100.0);
    for beside in [
        json!({"distributedInfo": null, "deviceProperties": null, "schemaVersion": null, "traceName": null}),
        json!({"distributedInfo": [1], "deviceProperties": [{"id": "none"}, {"id": 0, "name": null}], "schemaVersion": "one"}),
        json!({"distributedInfo": {"rank": null, "world_size": "two", "pg_config": null, "nccl_version": null}}),
        json!({"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "pg_desc": null, "pg_size": 2, "ranks": "[0, 1]"}, null]}}),
    ] {
        let (_folder, path) = file(&events, beside.clone());
        let profile = import::open(&path).unwrap_or_else(|error| panic!("{beside}: {error}"));
        assert_eq!((profile.source.tool, profile.kernels.len()), (Tool::Kineto, 1), "{beside}");
        imported(&path);
    }
    // A byte order mark, as editors leave it, plain and gzipped.
    let text = [b"\xef\xbb\xbf", json!({"traceEvents": events}).to_string().as_bytes()].concat();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &text).unwrap();
    for bytes in [text.clone(), packed.finish().unwrap()] {
        let (_folder, path) = written(bytes);
        assert_eq!(import::open(&path).unwrap().kernels.len(), 1);
    }
    let (_folder, path) = written(&text[..text.len() / 2]);
    let note = import::open(&path).unwrap().notes.into_iter().find(|note| note.starts_with("the file ends")).unwrap();
    assert!(note.contains(&format!("at byte {} ", text.len() / 2)), "{note}");
    let (_folder, path) = written(b"\xff\xfe{\0");
    assert!(import::open(&path).unwrap_err().to_string().contains("UTF-16"));
    let (_folder, path) = file(&events, json!({"schemaVersion": 9}));
    let notes = import::open(&path).unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("its schema is 9")), "{notes:?}");
}

#[test]
fn imported_files_are_merged_only_with_dated_imports_of_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let import = |name: &str, base: Value| {
        let (_folder, json) = file(&launched(RING, 1, 100.0), json!({"baseTimeNanoseconds": base}));
        let path = folder.path().join(name);
        ncclscope(&["import".as_ref(), "-o".as_ref(), path.as_os_str(), json.as_os_str()]).unwrap();
        path
    };
    let join = |files: [&Path; 2]| {
        let output = folder.path().join("joined");
        let _ = fs::remove_file(&output);
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str(), files[0].as_os_str(), files[1].as_os_str()];
        ncclscope(&words)
    };
    let (one, next) = (import("one", BASE.into()), import("next", (BASE + 30_000).into()));
    let said = join([&one, &next]).unwrap();
    let trace = Trace::open(folder.path().join("joined")).unwrap();
    assert!(said.contains("by the wall clocks of their hosts, and how far these were apart is not known"), "{said}");
    assert_sound(&trace, 0);
    let kernels = trace.rows("SELECT ts FROM slice WHERE category = 'kernel' ORDER BY ts");
    let times: Vec<_> = kernels.iter().map(|row| row.i64("ts") - BASE).collect();
    assert_eq!(times, [120_000, 150_000]);
    let days = import("days", (BASE + 2 * 86_400_000_000_000).into());
    let reason = join([&one, &days]).unwrap_err();
    let says = "two runs: they were not recorded at the same time, from 2026-05-26 07:58:50.000 UTC for 50.0 µs and from 2026-05-28 07:58:50.000 UTC";
    assert!(reason.contains(says), "{reason}");
    let undated = import("undated", Value::Null);
    let reason = join([&one, &undated]).unwrap_err();
    assert!(reason.contains("have no common clock") && reason.contains("does not say when it was"), "{reason}");
    let play = ncclscope_tests::play::Play::new("user init a comm=1 rank=0 nranks=1\nuser finalize a");
    let recording = ncclscope_tests::recording::Recording::by(play);
    let reason = join([&one, &recording.traces.file()]).unwrap_err();
    assert!(reason.contains("was imported from another tool's file"), "{reason}");
}
