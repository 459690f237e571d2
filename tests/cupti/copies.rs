//! What other tools do to CUPTI in our process: a second copy of it, and a clock of their own.

use super::{CUDA, built, kernels, operation, record};
use emulated_cupti::release::Release;
use ncclscope_tests::fault;

/// PyTorch's wheel and the toolkit have a copy each.
#[test]
fn of_two_copies_of_libcupti_one_is_used_and_both_are_named() {
    let case = fault::case(
        "CUPTI",
        "two copies of libcupti in the process, of one CUDA or of two",
        "the one loaded first, or of the newer CUDA, is used; the trace names both, and why",
    );
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (releases, chosen, reason) in [
        ([Release::V13_0, Release::V13_0], 0, "it was loaded first"),
        ([Release::V12_9, Release::V13_0], 1, "it is of the newest CUDA"),
    ] {
        let place = |at: usize| {
            let copy = emulated_cupti::place(&built("libemulated_cupti.so"), folders[at].path(), releases[at]);
            copy.unwrap().to_str().unwrap().to_owned()
        };
        let copies = [place(0), place(1)];
        // A function that does nothing here, to have them opened.
        let open = copies.each_ref().map(|copy| format!("main call emulated_cupti_hour library={copy}\n")).concat();
        let script = format!(
            "{CUDA}{open}user init world comm=0xabc rank=0 nranks=2\n{}user finalize world\n",
            operation("world", "1Ki")
        );
        let timeline = record(&script, &[]).timeline();
        assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None)]);
        let note = timeline.slice("recording started").str("note").unwrap();
        let [used, other] = [&copies[chosen], &copies[1 - chosen]];
        assert!(note.contains(&format!("from {used}; chosen because {reason}")), "{note}");
        assert!(note.contains(&format!("also loaded: {other}")), "{note}");
    }
    case.survived(2);
}

/// PyTorch's profiler gives CUPTI the processor's ticks as its clock, for the whole process.
#[test]
fn a_clock_that_another_tool_gives_cupti_is_seen_and_measured() {
    let case = fault::case(
        "CUPTI",
        "another tool registers its clock (ticks) with CUPTI, before us, after us, or instead of ours",
        "the trace says so; kernels lie where they ran, within their stated error",
    );
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let init = "user init world comm=0xabc rank=0 nranks=2\n";
    // A clock of ours would replace one that came before.
    let clock = "user clock kineto\nuser sleep 800ms\n";
    for (begin, ours) in [
        (format!("{clock}{init}{first}"), "wall"),
        (format!("{init}{first}user sleep 600ms\n{clock}"), "wall"),
        (format!("{init}{first}user sleep 600ms\n{clock}"), "boottime"),
    ] {
        let script = format!("{CUDA}{begin}{second}user sleep 600ms\n{third}user sleep 600ms\nuser finalize world\n");
        let settings = [("NCCLSCOPE_FLUSH_PERIOD", "250"), ("NCCLSCOPE_CUPTI_CLOCK", ours)];
        let recording = record(&script, &settings);
        let timeline = recording.timeline();
        let sizes = ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "AllReduce 12 KiB f32"];
        assert_eq!(kernels(&timeline), sizes.map(|size| (size, None)), "{begin}{ours}");
        let launches = timeline.named("KernelLaunch");
        let ran = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        for (kernel, launch) in ran.zip(&launches) {
            let error = kernel.int("time_error_ns").unwrap();
            let [kernel, launch] = [kernel, launch].map(|it| (it.begin, it.begin + it.duration.unwrap()));
            assert!(
                kernel.0 + error >= launch.0 && kernel.1 - error <= launch.1,
                "{kernel:?} within {error} ns, {launch:?}"
            );
        }
        let notes = timeline.named("CUPTI clock").into_iter().filter_map(|note| note.str("note"));
        let foreign = notes.filter(|note| note.contains("another tool in the process gave it another clock")).count();
        assert_eq!(foreign, 1, "{begin}{ours}");
        let said = recording.said();
        assert_eq!(said.iter().filter(|line| line.contains("gave it another clock")).count(), 1, "{said:?}");
    }
    case.survived(3);
}
