//! Perfetto's own user interface in a browser: what a user sees of a trace, as text. And the page
//! of `ncclscope report`.

use crate::perfetto::Trace;
use crate::timeline::difference;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Has the browser carry out steps. Returns its output, or `None` if there is no browser.
///
/// # Panics
///
/// If a step fails; in continuous integration, also if there is no browser.
#[track_caller]
pub fn browse(words: &[&str]) -> Option<String> {
    run(concat!(env!("CARGO_MANIFEST_DIR"), "/perfetto/browser.js"), words)
}

/// The same for a page of `ncclscope report`.
///
/// # Panics
///
/// As [`browse`]; and if the page reports an error or asks for anything but itself.
#[track_caller]
pub fn look(words: &[&str]) -> Option<String> {
    run(concat!(env!("CARGO_MANIFEST_DIR"), "/report/page.js"), words)
}

#[track_caller]
fn run(script: &str, words: &[&str]) -> Option<String> {
    let output = Command::new("node").arg(script).args(words).output().expect("node can be started");
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.code() {
        Some(0) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(3) if std::env::var_os("CI").is_none() => {
            eprintln!("left out: {said}");
            None
        }
        _ => panic!("{said}"),
    }
}

/// The processes of a tree of tracks, each with the lines below it, without the process and thread
/// ids of this run and without tracks that may be empty.
///
/// # Panics
///
/// If the first line is indented.
#[track_caller]
pub fn processes(tree: &str, trace: &Trace) -> Vec<Vec<String>> {
    let numbers = trace.rows("SELECT pid AS n FROM process WHERE pid > 0 UNION SELECT tid FROM thread WHERE tid > 0");
    let numbers: BTreeSet<i64> = numbers.iter().map(|row| row.i64("n")).collect();
    let is_number = |word: &str| word.parse().is_ok_and(|number| numbers.contains(&number));
    let mut processes: Vec<Vec<String>> = Vec::new();
    // The viewer hides a counter without a value. Operations that queue for less than 10 us leave
    // none, and that is chance.
    for line in tree.lines().filter(|line| line.trim_start() != "operations queued") {
        let words = line.split(' ').map(|word| {
            let bare = word.trim_matches(['(', ')']);
            // Threads without a track show their id in parentheses.
            let is_thread = word.starts_with('(') && bare.parse::<u32>().is_ok();
            if is_thread || is_number(bare) { word.replace(bare, "N") } else { word.to_owned() }
        });
        let line = words.collect::<Vec<_>>().join(" ");
        if !line.starts_with(' ') {
            processes.push(Vec::new());
        }
        processes.last_mut().expect("the first line is not indented").push(line);
    }
    processes
}

/// Asserts that this is the content of a file; `NCCLSCOPE_BLESS=1` renews it.
///
/// # Panics
///
/// If it is not.
#[track_caller]
pub fn assert_golden(shown: &str, golden: &str) {
    if std::env::var_os("NCCLSCOPE_BLESS").is_some_and(|value| value == "1") {
        fs::write(golden, shown).expect("the golden text can be written");
    }
    let changed = difference(&fs::read_to_string(golden).unwrap_or_default(), shown);
    assert!(
        changed.is_empty(),
        "the tracks in the viewer differ from {golden}; if that is intended, NCCLSCOPE_BLESS=1 renews it:\n{changed}"
    );
}
