//! The tracks of demo scenarios as Perfetto's own user interface shows them, as text. The pictures
//! in `docs/` show the same scenarios.
//!
//! These tests need Chromium. Without it they say so and are skipped, except in continuous
//! integration.

use crate::support::Plan;
use ncclscope_tests::ui;

const NCCL: &str = "2.30.7";
const CUPTI: &str = "13.0";

/// A scenario's tree of tracks must equal the reviewed one.
#[track_caller]
fn check(scenario: &str) {
    let job = Plan::new(NCCL, scenario).with_cupti(CUPTI).quiet().run();
    let file = job.trace_file();
    let Some(tree) = ui::browse(&["--trace", file.to_str().expect("a path"), "--list"]) else { return };
    let mut processes = ui::processes(&tree, &job.trace());
    // This release of the viewer orders them by their number of slices.
    processes.sort();
    processes.iter_mut().for_each(one_gpu_thread);
    let lines: Vec<_> = processes.concat().into_iter().filter(|line| is_stable(scenario, line.trim_start())).collect();
    let golden = format!("{}/tests/tracks/{scenario}.txt", env!("CARGO_MANIFEST_DIR"));
    ui::assert_golden(&(lines.join("\n") + "\n"), &golden);
}

/// Keeps only one of the emulator's threads that run functions for streams: their number varies.
fn one_gpu_thread(process: &mut Vec<String>) {
    // A thread is a group and the track in it.
    let mut seen = 0;
    process.retain(|line| {
        seen += u32::from(line.trim_start() == "emulated gpu N");
        line.trim_start() != "emulated gpu N" || seen <= 2
    });
}

/// Whether a track is there in every run.
fn is_stable(scenario: &str, track: &str) -> bool {
    // Threads are measured ten times or once a second, and some jobs are shorter. When a job is
    // killed, it is random what CUPTI still holds.
    let is_measured =
        ["CPU", "CPU wait", "seen"].iter().any(|it| track == *it || track.starts_with(&format!("{it} · ")));
    let is_chance =
        scenario == "hang" && ["GPU", "CUPTI", "busbw", "algbw", "outstanding"].iter().any(|of| track.starts_with(of));
    // On a slow machine operations may wait for long.
    let is_late = scenario != "hang" && track.ends_with(" · not done");
    !is_measured && !is_chance && !is_late
}

#[test]
fn straggler() {
    check("straggler");
}

#[test]
fn network() {
    check("network");
}

#[test]
fn host_bound() {
    check("host_bound");
}

#[test]
fn hang() {
    check("hang");
}

#[test]
fn graphs() {
    check("graphs");
}

#[test]
fn groups() {
    check("groups");
}
