//! Kernels to which CUPTI gives no times, or times of the wrong clock.

use super::{CUDA, kernels, library_path, operation, record};
use ncclscope_tests::fault;
use ncclscope_tests::play::{self, Play};
use ncclscope_tests::recording::{Recording, assert_undisturbed};

/// CUPTI 13.0 was seen to return no times from some kernel on (parca-dev/parcagpu#23).
#[test]
fn kernels_without_valid_times_are_missing_and_no_hang_is_reported() {
    let case = fault::case(
        "CUPTI",
        "kernels without times, or that end before they begin, from some kernel on",
        "they are missing and counted; nothing seems to hang",
    );
    let operations = |count: u32| -> String { (1..=count).map(|n| operation("world", &format!("{n}Ki"))).collect() };
    for (all, good, stretches) in [(5, 2, 0), (20, 3, 1)] {
        let script = format!(
            "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user sleep 8s\nuser finalize world\n",
            operations(all)
        );
        let recording = record(&script, &[("EMULATED_CUPTI", &format!("exhaust={good}"))]);
        let timeline = recording.timeline();
        assert_eq!(kernels(&timeline).len(), good as usize);
        assert!(timeline.slices.iter().all(|slice| slice.category != "not done"), "{good}");
        let figures = timeline.figures();
        assert_eq!(figures.get("kernels_untimed"), u64::from(all - good));
        assert_eq!((figures.get("launches_without_kernel"), figures.get("kernels_unmatched")), (0, 0));
        let said = recording.said().iter().filter(|line| line.contains("gives kernels no times")).count();
        assert_eq!((timeline.named("kernel times bad").len(), said), (stretches, stretches));
        if stretches > 0 {
            let note = timeline.slice("kernel times bad").str("note").unwrap();
            assert!(note.contains("may be a known fault of this release: after some 25 million graph"), "{note}");
        }
        let info = crate::command::ncclscope(&["info".as_ref(), recording.traces.file().as_os_str()]).unwrap();
        let missing = format!("{} of NCCL, missing because their times are impossible", all - good);
        assert!(info.contains(&missing), "{info}");
    }
    case.survived(2);
}

#[test]
fn kernels_without_valid_times_hide_a_hang() {
    let operations: String = (1..=20).map(|n| operation("world", &format!("{n}Ki"))).collect();
    let hangs = operation("world", "99Ki").replace("for=1ms", "for=60s wait=0");
    let script =
        format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}{hangs}user sleep 8s\nmain exit 0\n");
    for (words, expected) in [("exhaust=3", false), ("", true)] {
        let recording = record(&script, &[("EMULATED_CUPTI", words)]);
        let said = recording.traces.open().text("SELECT name FROM slice WHERE category = 'not done'");
        assert_eq!(said.contains("AllReduce 396 KiB f32"), expected, "{words}: {said}");
    }
}

/// Before CUDA 13.3.3 CUPTI may do so if a context existed before it (pytorch/pytorch#190354).
#[test]
fn kernels_whose_times_keep_the_wall_clock_are_drawn_where_they_ran() {
    let [first, second] = ["1Ki", "2Ki"].map(|count| operation("world", count));
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{first}{second}user finalize world\n");
    for (words, is_latched) in [("latch", true), ("", false)] {
        let settings = [("NCCLSCOPE_CUPTI_CLOCK", "boottime"), ("EMULATED_CUPTI", words)];
        let recording = record(&script, &settings);
        let timeline = recording.timeline();
        assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 8 KiB f32", None)]);
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_untimed"), figures.get("kernels_unmatched")), (0, 0));
        // Each ran after its launch began, and ended before the next one began: the script waits
        // for it.
        let launches = timeline.named("KernelLaunch");
        let ran: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "kernel").collect();
        assert_eq!((ran.len(), launches.len()), (2, 2));
        for (kernel, launch) in ran.into_iter().zip(launches) {
            let [kernel, launch] = [kernel, launch].map(|it| (it.begin, it.begin + it.duration.unwrap()));
            assert!(kernel.0 >= launch.0 && kernel.1 <= launch.1, "{kernel:?} {launch:?}");
        }
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("keeps the wall clock")).collect();
        assert_eq!(said.len(), usize::from(is_latched), "{:?}", recording.said());
        let notes = timeline.named("CUPTI clock").into_iter().filter_map(|note| note.str("note"));
        let notes: Vec<_> = notes.filter(|note| note.contains("keeps the wall clock")).collect();
        assert_eq!(notes, said, "in the trace as on stderr");
        assert!(said.iter().all(|line| line.contains("A known fault of this release: if a CUDA context existed")));
    }
}

#[test]
fn setting_the_wall_clock_back_moves_no_kernel() {
    let case = fault::case(
        "clocks",
        "the wall clock goes back by an hour, with CUPTI's times on it and on `CLOCK_BOOTTIME`",
        "each kernel lies in its launch, within its stated error; where CUPTI's times are affected, the trace \
         says so",
    );
    let (_folder, library) = play::compile("wall_clock.c");
    let operations = |numbers: std::ops::RangeInclusive<u32>| -> String {
        numbers.map(|n| operation("world", &format!("{n}Ki")) + "user sleep 600ms\n").collect()
    };
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user call set_the_wall_clock_back library={}\n{}\
         user finalize world\n",
        operations(1..=3),
        library.display(),
        operations(4..=6),
    );
    for ours in ["wall", "boottime"] {
        let play = Play::new(&script).env("LD_LIBRARY_PATH", library_path()).env("LD_PRELOAD", &library);
        let settings = [("NCCLSCOPE_FLUSH_PERIOD", "250"), ("NCCLSCOPE_CUPTI_CLOCK", ours)];
        let recording = Recording::by(play.envs(&settings));
        assert_undisturbed(&recording);
        let timeline = recording.timeline();
        let expected: Vec<_> = (1..=6).map(|n| format!("AllReduce {} KiB f32", 4 * n)).collect();
        let expected: Vec<_> = expected.iter().map(|name| (&**name, None)).collect();
        assert_eq!(kernels(&timeline), expected, "{ours}");
        let launches = timeline.named("KernelLaunch");
        let ran: Vec<_> = timeline.slices.iter().filter(|slice| slice.category == "kernel").collect();
        assert_eq!((ran.len(), launches.len()), (6, 6));
        for (kernel, launch) in ran.into_iter().zip(launches) {
            let error = kernel.int("time_error_ns").unwrap();
            let [kernel, launch] = [kernel, launch].map(|it| (it.begin, it.begin + it.duration.unwrap()));
            assert!(
                kernel.0 + error >= launch.0 && kernel.1 - error <= launch.1,
                "{ours}: {kernel:?} within {error} ns, {launch:?}"
            );
        }
        let figures = timeline.figures();
        assert_eq!((figures.get("kernels_untimed"), figures.get("kernels_unmatched")), (0, 0), "{ours}");
        let notes = timeline.named("CUPTI clock").into_iter().filter_map(|note| note.str("note"));
        let told = notes.filter(|note| note.contains("the wall clock was set back by ")).count();
        assert_eq!(told, usize::from(ours == "wall"), "{ours}");
    }
    case.survived(2);
}
