//! What is recorded when CUPTI fails or hangs, or the job is killed.

use super::{CUDA, answers, kernels, library_path, operation, record, words_about_cupti};
use ncclscope_tests::fault;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;

#[test]
fn cupti_can_be_taken_again_after_it_has_failed() {
    let case = fault::case(
        "CUPTI",
        "CUPTI reports a fatal error and detaches",
        "the failure is in the trace, and it can be taken again",
    );
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}\
         user call emulated_cupti_hour library=libcupti.so.13\n\
         {second}\
         user call ncclscope_acquire\n\
         {third}\
         user finalize world\n"
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "state=fatal@1h")]);
    assert_eq!(answers(&recording)[1..], [("emulated_cupti_hour", 0), ("ncclscope_acquire", 0)]);
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline).last(), Some(&("AllReduce 12 KiB f32", None)));
    assert_eq!(timeline.named("AllReduce 8 KiB f32").len(), 1, "no kernel, only the operation");
    assert_eq!(words_about_cupti(&timeline), ["CUPTI failure", "CUPTI released", "CUPTI taken again"]);
    case.survived(1);
}

/// The kernel under way when CUPTI failed has no record, and its id is given again.
#[test]
fn ids_of_before_a_failure_name_no_kernels_after_it() {
    let others: String = (1..=8).map(|n| format!("user kernel gemm{n} for=100us wait=0\n")).collect();
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {}{}\
         user call emulated_cupti_hour library=libcupti.so.13\n\
         user call ncclscope_acquire\n\
         {others}\
         user sleep 100ms\n\
         user finalize world\n",
        operation("world", "1Ki"),
        operation("world", "2Ki").replace("for=1ms", "for=5s wait=0"),
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "state=fatal@1h,restart")]);
    let timeline = recording.timeline();
    let named = |name: &str| kernels(&timeline).into_iter().filter(|(kernel, _)| *kernel == name).count();
    assert!((1..=8).all(|n| named(&format!("gemm{n}")) == 1), "{:?}", kernels(&timeline));
    assert_eq!(named("AllReduce 8 KiB f32"), 0);
}

#[test]
fn a_cupti_that_never_returns_is_left_alone() {
    let case = fault::case(
        "CUPTI",
        "CUPTI hangs in `cuptiSubscribe`, `cuptiActivityEnable` or `cuptiGetTimestamp`",
        "`init` returns after 5 s without kernels, and says why; if CUPTI answers later, another tool can have it",
    );
    let first = operation("world", "1Ki");
    for function in ["cuptiSubscribe", "cuptiActivityEnable", "cuptiGetTimestamp"] {
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
             {first}\
             user call ncclscope_acquire\n\
             user call emulated_cupti_answers library=libcupti.so.13\n\
             user subscribe other\n\
             user unsubscribe other\n\
             user finalize world\n"
        );
        // When CUPTI answers after all, the script waits until it was given back.
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("hang={function}"))]);
        let timeline = recording.timeline();
        let why = timeline.slice("recording started").str("note").unwrap();
        assert!(why.contains("CUPTI has not answered"), "{function}: {why}");
        let expected = [("ncclscope_acquire", 4), ("emulated_cupti_answers", 0), ("other", 0)];
        assert_eq!(answers(&recording)[1..], expected, "{function}");
        assert!(kernels(&timeline).is_empty(), "{function}");
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{function}");
        let told = recording.said().iter().filter(|line| line.contains("CUPTI has not answered")).count();
        assert_eq!(told, 2, "at the start, and when it was asked for again: {}", recording.outcome.stderr);
    }
    case.survived(3);
}

#[test]
fn a_cupti_that_hangs_at_exit_does_not_block_it() {
    let case = fault::case(
        "CUPTI",
        "CUPTI hangs when it is flushed or given up at exit",
        "the process ends; the trace has its closing record",
    );
    let first = operation("world", "1Ki");
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}main exit 0\n");
    for function in ["cuptiActivityFlushAll", "cuptiUnsubscribe"] {
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("hang={function}"))]);
        let timeline = recording.timeline();
        assert_eq!(timeline.figures().get("recorded"), recording.calls(), "{function}");
    }
    case.survived(2);
}

/// The setting limits how much a killed job may lose, and that includes kernels.
#[test]
fn a_killed_job_loses_only_the_kernels_since_the_last_flush() {
    let operations = ["1Ki", "2Ki"].map(|count| operation("world", count)).concat();
    let script =
        format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}user sleep 3s\nuser kill SIGKILL\n");
    for (period, kept) in [("100", 2), ("60000", 0)] {
        let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("NCCLSCOPE_FLUSH_PERIOD", period);
        let recording = Recording::by(play);
        assert_eq!(recording.outcome.signal, Some(libc::SIGKILL), "{}", recording.outcome.stderr);
        assert_eq!(kernels(&recording.timeline()).len(), kept, "{period} ms");
    }
}
