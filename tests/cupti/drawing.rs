//! How the GPU's work is drawn: as render stages, host functions of graphs, calls into CUDA, and
//! waits for the proxy.

use super::{CUDA, KERNEL, operation, record};
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::pypi;
use ncclscope_tests::recording::Recording;

/// Perfetto's GPU work has the same kernels as the tracks: names, times, streams, launching calls.
#[test]
fn kernels_are_render_stages_if_enabled() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user kernel elementwise_kernel for=20us\n\
         {second}\
         user finalize world\n"
    );
    const STAGES: &str = "SELECT s.name, s.ts, s.dur, t.name AS queue, s.submission_id AS call, p.pid, \
                          extract_arg(s.arg_set_id, 'description') AS symbol \
                          FROM gpu_slice s JOIN track t ON t.id = s.track_id JOIN process p USING (upid) ORDER BY s.ts";
    const KERNELS: &str = "SELECT s.name, s.ts, s.dur, t.name AS stream, \
                           extract_arg(s.arg_set_id, 'nccl.correlation') AS call \
                           FROM slice s JOIN track t ON t.id = s.track_id WHERE s.category = 'kernel' ORDER BY s.ts";
    let both = record(&script, &[("NCCLSCOPE_GPU_EVENTS", "both"), ("NCCLSCOPE_RANK", "3")]);
    let trace = both.traces.open();
    assert_eq!(trace.check(), []);
    let (stages, kernels) = (trace.rows(STAGES), trace.rows(KERNELS));
    assert_eq!(stages.len(), 3);
    assert_eq!(stages.len(), kernels.len());
    for (stage, kernel) in stages.iter().zip(&kernels) {
        for column in ["ts", "dur", "call"] {
            assert_eq!(stage.i64(column), kernel.i64(column), "{column}");
        }
        assert_eq!(stage.str("name"), kernel.str("name"));
        assert!(stage.str("queue").starts_with("rank 3 · "), "{}", stage.str("queue"));
        assert!(stage.str("queue").ends_with(kernel.str("stream")), "{}", stage.str("queue"));
        assert_eq!(stage.i64("pid"), i64::from(both.outcome.calls[0].pid));
        let symbol = if kernel.str("name").starts_with("AllReduce") { KERNEL } else { "elementwise_kernel" };
        assert_eq!(stage.str("symbol"), symbol);
    }

    let alone = record(&script, &[("NCCLSCOPE_GPU_EVENTS", "renderstage")]);
    let trace = alone.traces.open();
    assert_eq!(trace.check(), []);
    assert_eq!(trace.rows(KERNELS).len(), 0);
    let names: Vec<_> = trace.rows(STAGES).iter().map(|row| row.str("name").to_owned()).collect();
    assert_eq!(names, ["AllReduce 4 KiB f32", "elementwise_kernel", "AllReduce 8 KiB f32"]);
    let runs = alone.timeline().slices.iter().filter(|slice| slice.category == "run").count();
    assert_eq!(runs, 2, "the communicator has its operations all the same");

    // In a file with two processes, each has its own queues, and their numbers differ.
    let bytes = [both.traces.file(), alone.traces.file()].map(|file| std::fs::read(file).unwrap()).concat();
    let joined = Trace::from_bytes(bytes).unwrap();
    assert_eq!(joined.check(), []);
    assert_eq!(
        joined.text("SELECT count(DISTINCT track_id) AS queues, count(*) AS n FROM gpu_slice"),
        "queues,n\n2,6\n"
    );
}

#[test]
fn host_functions_of_graphs_are_drawn_on_their_stream() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser host-node 0x900000002 for=1ms\nuser finalize world\n"
    );
    // Releases before 13.1 have no such records, and are not asked for them.
    for (release, expected) in [("13.0", 0), ("13.1", 1), ("13.5", 1)] {
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("release={release}"))]);
        let timeline = recording.timeline();
        assert!(!timeline.slice("recording started").str("note").unwrap().contains("refused"), "{release}");
        let functions = timeline.named("host function");
        assert_eq!(functions.len(), expected, "{release}");
        for function in functions {
            let call = recording.outcome.calls.iter().find(|call| call.verb == "host-node").unwrap();
            let (begin, end) = (function.begin, function.begin + function.duration.unwrap());
            assert!(call.before as i64 - 2_000 < begin && end < call.after as i64 + 2_000, "{begin} {end}");
            assert!(end - begin >= 1_000_000);
            assert_eq!((function.int("graph"), function.int("graph_node")), (Some(9), Some(0x9_0000_0002)));
            let place = timeline.place(function);
            assert!(function.category == "host" && place.contains("GPU 0 · stream 7"), "{place}");
        }
        assert_eq!(timeline.figures().remarkable().len(), 0);
    }
}

/// The slices of a category on tracks of threads, with the names of thread and track, sorted by
/// these.
pub(super) fn on_threads(recording: &Recording, category: &str) -> Vec<String> {
    let rows = recording.traces.open().rows(&format!(
        "SELECT thread.name AS thread, coalesce(track.name, thread.name) AS track, slice.name AS slice FROM slice \
         JOIN thread_track AS track ON slice.track_id = track.id JOIN thread USING (utid) \
         WHERE category = '{category}' ORDER BY 1, 2, 3"
    ));
    rows.iter().map(|row| [row.str("thread"), row.str("track"), row.str("slice")].join(" · ")).collect()
}

#[test]
fn calls_into_cuda_are_drawn_below_their_threads() {
    // The first thread calls NCCL, too, the second only CUDA, and the third CUDA first.
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user name trainer\n\
         user init world comm=0xabc rank=0 nranks=2\n\
         loader name loader\n\
         late name late\n\
         {first}\
         loader kernel vector_add for=1ms\n\
         loader host-node 0x900000002 for=1ms\n\
         late kernel vector_add for=1ms\n\
         user sleep 1300ms\n\
         late start plan world Group\n\
         late stop plan\n\
         user finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_CUDA_API", "1")]);
    let timeline = recording.timeline();
    let calls: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "cuda").collect();
    assert_eq!(
        on_threads(&recording, "cuda"),
        [
            "late · CUDA driver · cuLaunchKernelEx",
            "loader · CUDA driver · cuGraphLaunch",
            "loader · CUDA driver · cuLaunchKernelEx",
            "loader · CUDA runtime · cudaGraphLaunch_v10000",
            "trainer · CUDA driver · cuLaunchKernelEx",
        ]
    );
    // A thread that called NCCL later is the same thread.
    assert!(on_threads(&recording, "api").contains(&"late · late · Group".to_owned()));
    let late = recording.traces.open().rows("SELECT utid FROM thread WHERE name = 'late'");
    assert_eq!(late.len(), 1);
    // A call is tied to its GPU work, and lies inside NCCL's slice for it.
    let kernel = timeline.slices.iter().find(|slice| slice.str("match").is_some()).unwrap();
    let call = calls.iter().find(|call| call.int("correlation") == kernel.int("correlation")).unwrap();
    let launch = timeline.slice("KernelLaunch");
    let end = |slice: &ncclscope_tests::timeline::Slice| slice.begin + slice.duration.unwrap();
    assert!(launch.begin - 1000 < call.begin && end(call) < end(launch) + 1000, "{launch:?} {call:?}");
    assert_eq!(timeline.figures().remarkable().len(), 0);
    // They are not drawn unless enabled. If nothing else names launches, they are recorded but not
    // drawn.
    for settings in ["", "refuse=14@cuptiEnableCallback"] {
        let recording = record(&script, &[("EMULATED_CUPTI", settings)]);
        assert!(recording.timeline().slices.iter().all(|slice| slice.category != "cuda"));
    }
}

/// Prints what tables say about waits for the proxy, and peers.
const WAITS: &str = r#"
import sys, ncclscope
tables = ncclscope.tables(sys.argv[1])
columns = ["bytes", "proxy_wait_ns", "proxy_wait_reason"]
for row in sorted(tables["operations"].to_table(columns=columns).to_pylist(), key=lambda row: row["bytes"]):
    print(*row.values())
for row in tables["peers"].to_table().to_pylist():
    print("peer", row["peer"], row["transport"])
"#;

/// The kernel runs, and the progress thread sleeps.
#[test]
fn an_operation_says_that_it_waits_for_the_proxy() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2 name=dp\n\
         proxy start nap world ProxyCtrl\n\
         proxy state nap CtrlSleep\n\
         user sleep 1ms\n\
         user start launch world KernelLaunch stream=0x10\n\
         user kernel {KERNEL} for=150ms wait=0\n\
         user stop launch\n\
         user start plan world Group\n\
         user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32\n\
         user stop coll\n\
         user stop plan\n\
         proxy sleep 20ms\n\
         proxy state nap CtrlWakeup\n\
         proxy stop nap\n\
         proxy start take world ProxyCtrl\n\
         proxy state take CtrlAppend\n\
         proxy start op world ProxyOp parent=coll channelId=3 peer=1 nSteps=1 chunkSize=4Ki isSend=1\n\
         proxy state take CtrlAppendEnd value=1\n\
         proxy stop take\n\
         proxy state op OpInProgress\n\
         proxy stop op\n\
         user sleep 300ms\n\
         {}user finalize world\n",
        operation("world", "2Ki")
    );
    let recording = record(&script, &[("NCCLSCOPE_PRESET", "full")]);
    let timeline = recording.timeline();
    let of = |name: &str| timeline.slices.iter().find(|slice| slice.category == "run" && slice.name == name).unwrap();
    let (late, other) = (of("AllReduce 4 KiB f32"), of("AllReduce 8 KiB f32"));
    let wait = late.int("proxy_wait_ns").unwrap();
    assert!((15_000_000..late.duration.unwrap()).contains(&wait), "{wait}");
    assert_eq!(other.int("proxy_wait_ns"), None, "it has no work of the proxy's");
    let part: Vec<_> = timeline.slices.iter().filter(|slice| slice.parent == Some(late.id)).collect();
    let [part] = part[..] else { panic!("{part:?}") };
    assert_eq!(part.name, "waits for the proxy, which is asleep");
    assert_eq!((part.begin, part.duration), (late.begin, Some(wait)));
    // The append and the operation name each other.
    let append = timeline.slice("append");
    assert_eq!(append.str("note"), Some("brought AllReduce 4 KiB f32"));
    let taken = timeline.slice("AllReduce 4 KiB f32 ch 3");
    assert_eq!((append.int("append_batch"), taken.int("append_batch")), (Some(1), Some(1)));

    // The summary has it, and that of the process the same.
    let files = recording.traces.files();
    let words = [
        "summary".as_ref(),
        "--table".as_ref(),
        "operations".as_ref(),
        "--format".as_ref(),
        "csv".as_ref(),
        files[0].as_os_str(),
    ];
    let table = crate::command::ncclscope(&words).unwrap();
    let mut lines = table.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let columns = lines.next().unwrap();
    let cell = |row: &[&str], name: &str| row[columns.iter().position(|column| *column == name).unwrap()].to_owned();
    let waits: Vec<_> =
        lines.map(|row| ["bytes", "proxy_waits", "proxy_wait_total_ns"].map(|name| cell(&row, name))).collect();
    let expected = [["4096", "1", &wait.to_string()], ["8192", "0", ""]].map(|row| row.map(str::to_owned));
    assert_eq!(waits, expected, "{table}");

    // So have the tables, with the reason, and the peer's transport.
    let tables = recording.traces.path().join("tables");
    let words = [files[0].as_os_str(), "--parquet".as_ref(), tables.as_os_str(), "--job".as_ref(), "j".as_ref()];
    crate::command::ncclscope(&[&["export".as_ref()], &words[..]].concat()).unwrap();
    if let Some(said) = pypi::tables(&["-c", WAITS, &tables.to_string_lossy()]) {
        assert_eq!(said, format!("4096 {wait} asleep\n8192 None None\npeer 1 net\n"));
    }

    let trace = recording.traces.open();
    trace.query(include_str!("../../sql/ncclscope.sql")).unwrap();
    let rows = trace.text("SELECT name, proxy_wait FROM nccl_execution ORDER BY ts");
    let lines: Vec<_> = rows.lines().skip(1).map(|line| line.replace('"', "")).collect();
    assert_eq!(lines[0], format!("AllReduce 4 KiB f32,{wait}"), "{rows}");
    assert!(lines.len() == 2 && !lines[1].ends_with(char::is_numeric), "{rows}");
}
