//! NVTX ranges: on their threads, and around calls.

use super::drawing::on_threads;
use super::{CUDA, KERNEL, library_path, operation, record};
use std::path::Path;

#[test]
fn ranges_of_nvtx_nest_on_their_threads() {
    let first = operation("world", "1Ki");
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user nvtx push step\n\
         user nvtx push \"data parallel\" domain=PyTorch\n\
         user nvtx push forward\n\
         user nvtx mark here\n\
         user nvtx start all \"across threads\"\n\
         {first}\
         user nvtx pop\n\
         loader nvtx push load\n\
         user nvtx push backward\n\
         user nvtx pop\n\
         loader nvtx end all\n\
         user nvtx pop domain=PyTorch\n\
         user nvtx pop\n\
         user nvtx start never \"no end\"\n\
         loader nvtx pop\n\
         user finalize world\n"
    );
    for settings in ["", "release=12.0", "release=13.5", "reorder"] {
        let recording = record(&script, &[("NCCLSCOPE_NVTX", "1"), ("EMULATED_CUPTI", settings)]);
        assert_eq!(
            on_threads(&recording, "nvtx"),
            [
                "loader · NVTX · load",
                "user · NVTX · backward",
                "user · NVTX · forward",
                "user · NVTX · here",
                "user · NVTX · step",
                "user · NVTX · PyTorch · data parallel",
            ]
        );
        let timeline = recording.timeline();
        let step = timeline.slice("step");
        let inside: Vec<_> = timeline.inside(step).iter().map(|slice| &*slice.name).collect();
        assert_eq!(inside, ["forward", "backward"]);
        let domain = timeline.slice("data parallel");
        assert_eq!((domain.str("nvtx_domain"), step.str("nvtx_domain"), step.depth), (Some("PyTorch"), None, 0));
        // Its times match those of the calls.
        let calls: Vec<_> = recording.outcome.calls.iter().filter(|call| call.verb == "nvtx").collect();
        let near = |time: i64, call: usize| {
            (calls[call].before as i64 - 1000..calls[call].after as i64 + 1000).contains(&time)
        };
        assert!(near(step.begin, 0) && near(step.begin + step.duration.unwrap(), calls.len() - 3), "{step:?}");
        // Ranges with a handle belong to the process.
        let across = timeline.slice("across threads");
        assert!(timeline.place(across) == "NVTX" && across.duration.unwrap() > 1_000_000, "{across:?}");
        let never = timeline.slice("no end");
        assert_eq!((never.duration, never.str("doubt").is_some()), (Some(0), true));
        let figures = timeline.figures();
        assert_eq!(figures.remarkable().into_iter().collect::<Vec<_>>(), [("markers_unpaired", 1)]);
    }
    // They were not enabled.
    let recording = record(&script, &[]);
    assert!(recording.timeline().slices.iter().all(|slice| slice.category != "nvtx"));
}

/// Calls and their operations on the GPU state the range and the step of the program in which they
/// were made.
#[test]
fn calls_and_their_operations_state_the_ranges_around_them() {
    // The kernel runs long after the range has ended, and NCCL marks each call with a range of its
    // own.
    let call = |label: &str, count: &str| {
        let facts = format!("func=AllReduce count={count} datatype=ncclFloat32");
        format!(
            "user nvtx push ncclAllReduce domain=NCCL\n\
             user start g{label} world GroupApi groupDepth=1\n\
             user start {label} world CollApi parent=g{label} {facts}\n\
             user stop {label}\n\
             user start l{label} world KernelLaunch parent=g{label} stream=0x10\n\
             user kernel {KERNEL} for=5ms wait=0\n\
             user stop l{label}\n\
             user start p{label} world Group\n\
             user start c{label} world Coll parent={label} group=p{label} {facts}\n\
             user stop c{label}\n\
             user stop p{label}\n\
             user stop g{label}\n\
             user nvtx pop domain=NCCL\n"
        )
    };
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {}\
         user nvtx push \"ProfilerStep#17\"\n\
         user nvtx push \"Optimizer.step#Adam.step, op_id = 371\"\n\
         user nvtx push \"writer 3\"\n\
         user nvtx push forward\n\
         loader nvtx push \"step 99\"\n\
         {}\
         loader nvtx pop\n\
         user nvtx pop\n\
         user nvtx pop\n\
         user nvtx pop\n\
         {}\
         user nvtx pop\n\
         loader nvtx push \"step 18\"\n\
         user nvtx push backward\n\
         {}\
         user nvtx pop\n\
         loader nvtx pop\n\
         user sleep 300ms\n\
         user finalize world\n",
        call("a", "1Ki"),
        call("b", "2Ki"),
        call("c", "3Ki"),
        call("d", "4Ki"),
    );
    let recording = record(&script, &[("NCCLSCOPE_NVTX", "1")]);
    let trace = recording.traces.open();
    trace.query(include_str!("../../sql/ncclscope.sql")).unwrap();
    assert_eq!(
        trace.text("SELECT name, nvtx, step FROM nccl_call ORDER BY ts"),
        "name,nvtx,step\n\
         ncclAllReduce 4 KiB f32,NULL,NULL\n\
         ncclAllReduce 8 KiB f32,forward,17\n\
         ncclAllReduce 12 KiB f32,ProfilerStep#17,17\n\
         ncclAllReduce 16 KiB f32,backward,18\n"
    );
    assert_eq!(
        trace.text("SELECT name, nvtx, step FROM nccl_execution ORDER BY bytes"),
        "name,nvtx,step\n\
         AllReduce 4 KiB f32,NULL,NULL\n\
         AllReduce 8 KiB f32,forward,17\n\
         AllReduce 12 KiB f32,ProfilerStep#17,17\n\
         AllReduce 16 KiB f32,backward,18\n"
    );
    let timeline = recording.timeline();
    for (name, range, step) in
        [("4 KiB", None, None), ("8 KiB", Some("forward"), Some(17)), ("16 KiB", Some("backward"), Some(18))]
    {
        let name = format!("AllReduce {name} f32");
        let kernel = timeline.slices.iter().find(|slice| slice.category == "kernel" && slice.name == name).unwrap();
        assert_eq!((kernel.str("nvtx_range"), kernel.int("nvtx_step")), (range, step), "{name}");
    }
}

#[test]
fn nvtx_is_left_to_the_tool_that_has_it() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser nvtx push step\nuser nvtx pop\nuser finalize world\n"
    );
    let other = library_path().join("libcuda.so.1");
    let ours = library_path().join("libcupti.so.13");
    let recording =
        |path: &Path| record(&script, &[("NCCLSCOPE_NVTX", "1"), ("NVTX_INJECTION64_PATH", path.to_str().unwrap())]);
    let taken = recording(&other);
    let said: Vec<_> = taken.said().into_iter().filter(|line| line.contains("NVTX")).collect();
    assert!(
        matches!(said[..], [line] if line.starts_with("no NVTX ranges: NVTX_INJECTION64_PATH names another tool's")),
        "{said:?}"
    );
    let timeline = taken.timeline();
    assert!(timeline.slice("recording started").str("note").unwrap().ends_with(said[0]));
    assert_eq!(timeline.named("step").len(), 0);
    // A tool that sets it beforehand has the ranges from the start.
    let given = recording(&ours);
    assert_eq!(given.timeline().named("step").len(), 1);
    assert!(!given.said().iter().any(|line| line.contains("NVTX")), "{:?}", given.said());
}
