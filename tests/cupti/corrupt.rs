//! Buffers of CUPTI's that hold something else than records of its release.

use super::{CUDA, kernels, operation, record};
use ncclscope_tests::fault;
use std::collections::BTreeSet;

#[test]
fn corrupt_records_are_left_out_and_counted() {
    let case = fault::case(
        "CUPTI",
        "CUPTI returns buffers with a record of an unknown kind, half a record at the end, records that are shorter or \
         longer than in its release, random times, or names that are null",
        "every call answers success and is recorded; what can be read is drawn, the rest is counted, and one line says \
         if something is no record",
    );
    const KERNELS: u64 = 6;
    let operations: String = (1..=KERNELS).map(|n| operation("world", &format!("{n}Ki"))).collect();
    let script = format!("{CUDA}user init world comm=0xabc rank=0 nranks=2\n{operations}user finalize world\n");
    // What is drawn, what has no possible times, what is impossible in another way, and whether a
    // buffer cannot be read. All kernels are in one buffer.
    let words = [
        ("kind", KERNELS - 1, 0, 0, true),
        ("cut", KERNELS - 1, 0, 0, true),
        ("short", 0, 0, KERNELS, false),
        ("long", KERNELS, 0, 0, true),
        ("times", 0, KERNELS, 0, false),
        ("names", KERNELS, 0, 0, false),
    ];
    for (word, drawn, untimed, impossible, is_unreadable) in words {
        let settings = [("EMULATED_CUPTI", &*format!("seed=3,corrupt={word}")), ("NCCLSCOPE_FLUSH_PERIOD", "60000")];
        let recording = record(&script, &settings);
        assert!(recording.outcome.calls.iter().all(|call| call.status.unwrap_or(0) == 0), "{word}");
        let timeline = recording.timeline();
        let figures = timeline.figures();
        assert_eq!((figures.get("recorded"), figures.get("panics")), (recording.calls(), 0), "{word}");
        // Each is its own operation's, and no other's.
        let names: BTreeSet<_> = kernels(&timeline).into_iter().collect();
        assert_eq!((names.len() as u64, kernels(&timeline).len() as u64), (drawn, drawn), "{word}: {names:?}");
        assert!(
            names.iter().all(|(name, doubt)| name.starts_with("AllReduce ") && doubt.is_none()),
            "{word}: {names:?}"
        );
        assert_eq!(figures.get("kernels_untimed"), untimed, "{word}");
        assert!(figures.get("activities_implausible") >= untimed + impossible, "{word}");
        assert_eq!(figures.get("activity_buffers_discarded") > 0, is_unreadable, "{word}");
        let lines: Vec<_> = recording.said().into_iter().filter(|line| line.contains("is no record")).collect();
        assert_eq!(lines.len(), usize::from(is_unreadable || impossible > 0), "{word}: {:?}", recording.said());
        let notes: Vec<_> = timeline.named("kernels discarded").iter().filter_map(|note| note.str("note")).collect();
        assert_eq!(notes, lines, "{word}: in the trace as on stderr");
    }
    case.survived(words.len() as u64);
}
