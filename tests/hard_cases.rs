//! Situations in NCCL that a profiler must survive, with a short script for each, and what the
//! trace then shows.

mod arguments;
mod communicators;
mod events;
mod kernels;

use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use ncclscope_tests::timeline::{Slice, Timeline};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The start of every script.
const INIT: &str = "user init world comm=0xabc rank=0 nranks=4 nodes=2 name=dp\n";

/// A collective `coll`, enclosed in the group `plan`.
const COLL: &str = "user start plan world Group\n\
                    user start coll world Coll group=plan func=AllReduce count=1Ki datatype=ncclFloat32 algo=RING\n\
                    user stop coll\n\
                    user stop plan\n";

/// Plays a script between `init` and `finalize`, through the newest interface. Nothing may be wrong
/// or left open.
#[track_caller]
fn shown(script: &str) -> Timeline {
    Recording::of(&format!("{INIT}{script}user finalize world")).timeline()
}

/// The same through this version.
#[track_caller]
fn shown_by(version: u32, script: &str) -> Timeline {
    let play = Play::new(format!("{INIT}{script}user finalize world"));
    let recording = Recording::by(play.interface(version).env("NCCLSCOPE_PRESET", "full"));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    recording.timeline()
}

/// Asserts that these are all the figures that show something doubtful or lost.
#[track_caller]
fn assert_remarkable(timeline: &Timeline, expected: &[(&str, u64)]) {
    assert_eq!(timeline.figures().remarkable(), expected.iter().copied().collect::<BTreeMap<_, _>>());
}

fn names<'a>(slices: &[&'a Slice]) -> Vec<&'a str> {
    slices.iter().map(|slice| slice.name.as_str()).collect()
}

/// The tests that the table in docs/nccl-profiler-interface.md names.
#[test]
fn the_page_of_nccls_defects_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/nccl-profiler-interface.md")).unwrap();
    let (_, table) = page.split_once("played by a test |\n| --- | --- | --- | --- |\n").expect("a table with tests");
    let mut found = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        if cell.starts_with("none: ") {
            continue;
        }
        // `FILE`: `TEST`, `TEST`
        let (file, tests) = cell.split_once(": ").unwrap_or_else(|| panic!("no test: {row}"));
        let source =
            fs::read_to_string(root.join(file.trim_matches('`'))).unwrap_or_else(|why| panic!("{file}: {why}"));
        for test in tests.split(", ").map(|test| test.trim_matches('`')) {
            // A scenario's function is made by a macro.
            let is_there = source.contains(&format!("fn {test}(")) || source.contains(&format!("\n    {test}: "));
            assert!(is_there, "{file} has no test {test}: {row}");
            found += 1;
        }
    }
    assert!(found > 10, "{found} tests");
}
