//! How many kernels are matched to the right operations: a table over many jobs.

use std::process::ExitCode;

use crate::e2e;
use crate::steps::{self, Failure, Place, call};

/// The releases that are judged, as in `emulator/tests/support/accuracy.rs`.
const RELEASES: [&str; 6] = ["2.23.4", "2.26.5", "2.27.7", "2.28.9", "2.30.7", "2.32.3"];

/// `cargo xtask accuracy [--runs N] [--seed S] [--scenario NAME] [--nccl VERSION]`
pub(crate) fn run(words: &[String]) -> ExitCode {
    steps::run_chore(|place| accuracy(place, words))
}

fn accuracy(place: &Place, words: &[String]) -> Result<(), Failure> {
    const PACKAGE: [&str; 2] = ["-p", "ncclscope-emulator"];
    call(place.cargo().args(["build", "--quiet", "--bins"]).args(PACKAGE))?;
    let mut fetch = place.command(place.target.join("debug/emulator"));
    e2e::lines_of(fetch.arg("fetch").args(RELEASES)).map_err(|reason| format!("no libnccl: {reason}"))?;
    // As a test, so that it is built like the end-to-end tests.
    call(place.cargo().args(["test", "--quiet", "--bench", "accuracy"]).args(PACKAGE).arg("--").args(words))
}
