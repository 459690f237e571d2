//! Beside another tool that shares CUPTI, or does not.

use super::{CUDA, answers, kernels, operation, record, words_about_cupti};
use ncclscope_tests::fault;
use ncclscope_tests::recording::Recording;

const SHARE: (&str, &str) = ("NCCLSCOPE_CUPTI", "share");

/// What the recording says about CUPTI at its start.
fn start(recording: &Recording) -> String {
    recording.timeline().slice("recording started").str("note").unwrap().to_owned()
}

#[test]
fn all_that_share_cupti_see_all_kernels() {
    let case = fault::case(
        "CUPTI",
        "another tool shares CUPTI with us (13.3, 13.5), comes first or second, and leaves before us",
        "each gets all kernels of its time; the trace names the other if it came first",
    );
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let init = "user init world comm=0xabc rank=0 nranks=2\n";
    let share = "user share sharer\n";
    for release in ["13.3", "13.5"] {
        for (begin, beside, counted) in [
            (format!("{share}{init}{first}"), "shared with CUPTI for sharer, which came first", 2),
            (format!("{init}{first}{share}"), "shared, and we came first", 1),
        ] {
            let script = format!("{CUDA}{begin}{second}user unshare sharer\n{third}user finalize world\n");
            let words = format!("release={release},share");
            let recording = record(&script, &[SHARE, ("EMULATED_CUPTI", &words)]);
            assert_eq!(answers(&recording)[1..], [("sharer", 0), ("sharer", counted)], "{begin}");
            let timeline = recording.timeline();
            let sizes = ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32", "AllReduce 12 KiB f32"];
            assert_eq!(kernels(&timeline), sizes.map(|size| (size, None)));
            let figures = timeline.figures();
            assert_eq!((figures.get("kernels_launch_bracket"), figures.get("kernels_unmatched")), (3, 0));
            assert_eq!(words_about_cupti(&timeline), [""; 0]);
            let note = start(&recording);
            assert!(note.contains(beside), "{note}");
            assert!(!note.contains("refused") && !note.contains("does not answer"), "{note}");
            assert!(
                recording.said().iter().any(|line| line.contains("shared with other tools that share it")),
                "{:?}",
                recording.said()
            );
        }
    }
    case.survived(4);
}

#[test]
fn cupti_that_is_shared_can_be_lent_and_taken_again() {
    let [first, second, third] = ["1Ki", "2Ki", "3Ki"].map(|count| operation("world", count));
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user share sharer\n\
         {first}\
         user call ncclscope_release\n\
         {second}\
         user call ncclscope_acquire\n\
         {third}\
         user unshare sharer\n\
         user finalize world\n"
    );
    let recording = record(&script, &[SHARE, ("EMULATED_CUPTI", "release=13.5,share")]);
    let expected = [("sharer", 0), ("ncclscope_release", 0), ("ncclscope_acquire", 0), ("sharer", 3)];
    assert_eq!(answers(&recording)[1..], expected);
    let timeline = recording.timeline();
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None), ("AllReduce 12 KiB f32", None)]);
    assert_eq!(words_about_cupti(&timeline), ["CUPTI released", "CUPTI taken again"]);
    assert_eq!(timeline.figures().get("launches_without_kernel"), 1, "that of the time when CUPTI was lent");
}

/// A forced flush would return it, without its end, and never again.
#[test]
fn kernels_that_run_while_cupti_is_given_up_are_left_to_the_others() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n\
         user share sharer\n\
         user kernel late for=1s wait=0\n\
         user sleep 100ms\n\
         user call ncclscope_release\n\
         user sleep 1500ms\n\
         user unshare sharer\n\
         user finalize world\n"
    );
    let recording = record(&script, &[SHARE, ("EMULATED_CUPTI", "release=13.5,share")]);
    assert_eq!(answers(&recording)[1..], [("sharer", 0), ("ncclscope_release", 0), ("sharer", 1)]);
}

/// A forced flush shows which operation hangs, and takes the records of running kernels from
/// everybody.
#[test]
fn a_hang_flushes_cupti_by_force_only_where_nobody_shares_it() {
    let hanging = operation("world", "2Ki").replace("for=1ms", "for=9s wait=0");
    let init = "user init world comm=0xabc rank=0 nranks=2\n";
    let job = format!("{}{hanging}user sleep 10s\n", operation("world", "1Ki"));
    let shared = format!("{CUDA}{init}user share sharer\n{job}user unshare sharer\nuser finalize world\n");
    let alone = format!("{CUDA}{init}{job}user finalize world\n");
    let words = ("EMULATED_CUPTI", "release=13.5,share");
    let (alone, shared) = std::thread::scope(|both| {
        let shared = both.spawn(|| record(&shared, &[SHARE, words]));
        (record(&alone, &[words]), shared.join().unwrap())
    });
    let forced = |recording: &Recording| recording.timeline().named("CUPTI flushed by force").len();
    assert_eq!((forced(&shared), forced(&alone)), (0, 1));
    assert_eq!(answers(&shared)[1..], [("sharer", 0), ("sharer", 2)], "it has both kernels");
    let sizes = ["AllReduce 4 KiB f32", "AllReduce 8 KiB f32"];
    assert_eq!(kernels(&shared.timeline()), sizes.map(|name| (name, None)));
    // It is shown all the same, and with it what CUPTI holds back.
    for (recording, expected) in [(&shared, &sizes[..]), (&alone, &sizes[1..])] {
        let timeline = recording.timeline();
        let shown = timeline.slices.iter().filter(|slice| slice.category == "not done");
        assert_eq!(shown.map(|slice| slice.name.as_str()).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn external_ids_match_where_cupti_is_shared() {
    let script = format!(
        "{CUDA}user share sharer\nuser init world comm=0xabc rank=0 nranks=2\n{}user unshare sharer\nuser finalize world\n",
        operation("world", "1Ki")
    );
    let settings = [SHARE, ("NCCLSCOPE_MATCH", "external"), ("EMULATED_CUPTI", "release=13.5,share")];
    let timeline = record(&script, &settings).timeline();
    assert_eq!(kernels(&timeline), [("AllReduce 4 KiB f32", None)]);
    assert_eq!(timeline.figures().get("kernels_external_id"), 1);
}

#[test]
fn cupti_that_cannot_be_shared_is_taken_exclusively() {
    let case = fault::case(
        "CUPTI",
        "CUPTI is to be shared, and cannot be: too old, or the driver is",
        "it is taken alone, with one line that says why",
    );
    let script =
        format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user finalize world\n", operation("world", "1Ki"));
    for (words, why) in [
        ("release=13.1", "CUPTI of CUDA 13.1 cannot be shared: it takes CUPTI of CUDA 13.3 or later"),
        ("release=13.3", "CUPTI refuses to be shared, though no other tool has it"),
        ("release=13.5,share,refuse=7@cuptiSubscribe_v2", "cuptiSubscribe_v2 answered INVALID_OPERATION (7)"),
    ] {
        let recording = record(&script, &[SHARE, ("EMULATED_CUPTI", words)]);
        assert_eq!(kernels(&recording.timeline()), [("AllReduce 4 KiB f32", None)], "{words}");
        let said: Vec<_> = recording.said().into_iter().filter(|line| line.contains("=share: ")).collect();
        assert!(said.len() == 1 && said[0].contains(why), "{words}: {said:?}");
        assert!(start(&recording).contains(why), "{words}: {}", start(&recording));
    }
    case.survived(3);
}

#[test]
fn a_tool_that_does_not_share_is_named() {
    let case = fault::case(
        "CUPTI",
        "CUPTI is to be shared, and another tool has it for itself",
        "no kernels, with its name; CUPTI is left as it was",
    );
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\n{}user call ncclscope_acquire\nuser finalize world\n",
        operation("world", "1Ki")
    );
    let recording = record(&script, &[SHARE, ("EMULATED_CUPTI", "release=13.5,share,taken=Kineto")]);
    assert_eq!(answers(&recording)[1..], [("ncclscope_acquire", 3)]);
    assert_eq!(kernels(&recording.timeline()), []);
    let why = "CUPTI for Kineto has CUPTI, and it cannot be shared";
    assert!(start(&recording).contains(why), "{}", start(&recording));
    assert!(recording.said().iter().any(|line| line.contains(why)), "{:?}", recording.said());
    case.survived(1);
}

#[test]
fn the_first_tool_keeps_cupti_if_it_does_not_share() {
    let script = format!(
        "{CUDA}user init world comm=0xabc rank=0 nranks=2\nuser share sharer\n{}user finalize world\n",
        operation("world", "1Ki")
    );
    let recording = record(&script, &[("EMULATED_CUPTI", "release=13.5,share")]);
    assert_eq!(answers(&recording)[1..], [("sharer", 39)]);
    assert_eq!(kernels(&recording.timeline()), [("AllReduce 4 KiB f32", None)]);
}
