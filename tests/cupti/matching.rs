//! Which operation a kernel carried, by whatever names its launch.

use super::{CUDA, KERNEL, kernels, operation, record};

#[test]
fn a_single_way_of_matching_can_be_chosen() {
    let operations = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count)).concat();
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}user finalize world\n");
    for (way, bracket, external, unmatched) in [("all", 3, 0, 0), ("external", 0, 3, 0), ("timer", 0, 0, 3)] {
        let figures = record(&script, &[("NCCLSCOPE_MATCH", way)]).timeline().figures();
        let matched = (figures.get("kernels_launch_bracket"), figures.get("kernels_external_id"));
        // Without GPU channels the GPU's timer cannot match anything.
        assert_eq!((matched, figures.get("kernels_unmatched")), ((bracket, external), unmatched), "{way}");
    }
}

#[test]
fn without_callbacks_an_external_id_names_the_launch() {
    let operations = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count)).concat();
    // A kernel between launches, and an id that stays because a launch is never stopped.
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user kernel vector_add for=1ms\n\
         user start hangs world KernelLaunch stream=0x10\n\
         {operations}\
         user kernel {KERNEL} for=1ms\n\
         user finalize world\n"
    );
    let unseen = (KERNEL, Some("its launch was not seen"));
    for settings in ["", ",reorder,partial", ",release=12.0", ",release=13.5"] {
        let settings = format!("refuse=14@cuptiEnableCallback{settings}");
        let recording = record(&script, &[("EMULATED_CUPTI", &settings)]);
        let timeline = recording.timeline();
        let mut kernels = kernels(&timeline);
        kernels.sort_unstable();
        let named = ["AllReduce 12 KiB f32", "AllReduce 4 KiB f32", "AllReduce 8 KiB f32"].map(|name| (name, None));
        assert_eq!(kernels, [named[0], named[1], named[2], unseen, ("vector_add", None)], "{settings}");
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_external_id"), figures.get("kernels_launch_bracket")), (3, 0));
        assert_eq!((figures.get("external_ids_foreign"), figures.get("launches_lost")), (0, 0));
        let exact = timeline.slices.iter().filter(|slice| slice.category == "kernel");
        let exact = exact.filter(|slice| slice.str("match") == Some("exact_external_id"));
        assert_eq!(exact.count(), 3);
        let note = timeline.slice("recording started").str("note").unwrap();
        assert!(note.contains("launches (callback 307): NOT_COMPATIBLE (14)"), "{note}");
    }
    // The calls this needs are refused, too: nobody is harmed.
    let refused = "refuse=14@cuptiEnableCallback,refuse=14@cuptiActivityPushExternalCorrelationId";
    let recording = record(&script, &[("EMULATED_CUPTI", refused)]);
    let figures = recording.timeline().figures();
    assert_eq!((figures.get("kernels_unmatched"), figures.get("launches_lost")), (4, 4));
}

/// Correlation ids begin again after `cuptiFinalize`, which PyTorch's profiler calls.
#[test]
fn kernels_are_matched_where_correlation_ids_begin_again() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    // The application's kernel has the id of the first operation's.
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         {first}{second}user call ncclscope_release\n\
         user call ncclscope_acquire\n\
         user kernel gemm for=100us\n{third}user finalize world\n"
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "restart")]);
    let timeline = recording.timeline();
    let expected = ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "gemm", "AllReduce 12 KiB f32"];
    assert_eq!(kernels(&timeline), expected.map(|name| (name, None)));
    let ids: Vec<_> =
        timeline.slices.iter().filter_map(|it| it.int("correlation").filter(|_| it.category == "kernel")).collect();
    assert!(ids.len() == 4 && ids[2] <= ids[0] && ids[3] <= ids[1], "{ids:?}");
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_contradicted")), (3, 0));
}

#[test]
fn kernels_of_one_stream_may_overlap() {
    // As after programmatic launches: each begins while the previous one still runs, and the last
    // one ends first. They are long, so that a busy machine has time to play everything in between.
    let launch = |n: u32, time: &str| {
        format!(
            "user start launch{n} world KernelLaunch stream=0x10\n\
             user kernel {KERNEL} for={time} wait=0\n\
             user stop launch{n}\n\
             user start plan{n} world Group\n\
             user start coll{n} world Coll group=plan{n} seqNumber={n} func=AllReduce count={n}Ki datatype=ncclFloat32\n\
             user stop coll{n}\n\
             user stop plan{n}\n\
             user sleep 10ms\n\
             proxy start ch{n} world KernelCh parent=coll{n} channelId={n} pTimer=now-1us\n"
        )
    };
    let end = |n: u32| format!("proxy state ch{n} KernelChStop value=now-1us\nproxy stop ch{n}\n");
    let launches = [(1, "300ms"), (2, "250ms"), (3, "200ms")].map(|(n, time)| launch(n, time)).concat();
    let ends = [1, 2, 3].map(end).concat();
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{launches}user sleep 120ms\n{ends}user sleep 600ms\nuser finalize world\n"
    );
    let recording = record(&script, &[("NCCLSCOPE_PRESET", "full")]);
    let timeline = recording.timeline();
    let carried: Vec<_> = kernels(&timeline).into_iter().map(|(name, _)| name).collect();
    assert_eq!(carried, ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "AllReduce 12 KiB f32"]);
    let figures = timeline.figures();
    assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_unmatched")), (3, 0));
    let inside = (figures.get("channels_inside_kernel"), figures.get("kernels_confirmed"));
    assert_eq!(inside, (3, 3), "{:?}", figures.remarkable());
    let drawn: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "kernel").collect();
    let end = |n: usize| drawn[n].begin + drawn[n].duration.unwrap();
    assert!(drawn[2].begin < end(0) && drawn[1].begin < end(0), "they overlap: {drawn:?}");
    assert!(drawn.iter().all(|kernel| kernel.duration >= Some(200_000_000)), "none is cut by another: {drawn:?}");
}
