//! The real NCCL, on emulated GPUs, with the plugin loaded.

use std::env;
use std::process::{Command, ExitCode};

use crate::steps::{self, Failure, Outcome, Place, Step, call, call_beside, step};

/// `cargo xtask e2e [--all]`
pub(crate) fn run(words: &[String]) -> ExitCode {
    const SOME: &[Step] = &[step("e2e", ABOUT, some)];
    const ALL: &[Step] = &[step("e2e", "the real NCCL on emulated GPUs, all releases", all)];
    match words {
        [] => steps::run(SOME, &[]),
        [word] if word == "--all" => steps::run(ALL, &[]),
        _ => {
            eprintln!("usage: cargo xtask e2e [--all]");
            ExitCode::from(2)
        }
    }
}

pub(crate) const ABOUT: &str = "the real NCCL on emulated GPUs, newest releases";

/// With the releases that every change is tested with.
pub(crate) fn some(place: &Place) -> Result<Outcome, Failure> {
    e2e(place, false)
}

/// With every known release.
fn all(place: &Place) -> Result<Outcome, Failure> {
    e2e(place, true)
}

fn e2e(place: &Place, all: bool) -> Result<Outcome, Failure> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return skip("the emulator runs on x86-64 Linux only");
    }
    // Named together with the tests, the programs get the same features, so nothing is built twice.
    const PROGRAMS: [&str; 4] = ["--bin", "emulator", "--bin", "ncclscope"];
    const TESTS: [&str; 4] = ["--test", "jobs", "--test", "suite"];
    call(place.cargo().args(["build", "--quiet", "--workspace"]).args(PROGRAMS).args(TESTS))?;
    let emulator = || place.command(place.target.join("debug/emulator"));
    let mut fetch = emulator();
    fetch.arg("fetch").arg(if all { "--all" } else { "--always" });
    let libraries = match lines_of(&mut fetch) {
        Ok(libraries) => libraries,
        Err(reason) => return skip(&format!("no libnccl: {reason}")),
    };
    for library in &libraries {
        if let Err(reason) = lines_of(emulator().arg("inspect").arg(library)) {
            return skip(&format!("{library} does not run here: {reason}"));
        }
    }
    let tests = |words: &[&str]| {
        let mut tests = place.cargo();
        tests.args(["test", "--workspace"]).args(words);
        if all {
            tests.arg("--include-ignored");
        }
        tests
    };
    // What judges how fast a job is, or how well clocks agree, runs by itself, and last: the steps
    // aside may be done by then. Otherwise two jobs at a time: they wait most of the time, but each
    // has more threads than most machines have cores. With more, they make each other late. Beside
    // them there is `suite`, the suite for machines with GPUs, run on emulated ones; and then what
    // waits most: jobs that hang, launchers, and those that are asked about in SQL.
    const JUDGED: [&str; 10] = [
        "clocks::",
        "diagnosing::",
        "pairs::",
        "queries::a_gpu_that_waits",
        "queries::a_link_slow",
        "queries::a_scrubbed_job",
        "queries::a_slow_link",
        "queries::a_straggler",
        "queries::diagnose",
        "tables::two_engines",
    ];
    let others = JUDGED.map(|name| ["--skip", name]);
    const PATIENT: [&str; 3] = ["hangs::", "launchers::", "queries::"];
    let jobs = |at_a_time: &str, words: &[&str]| tests(&[&["--test", "jobs", "--", at_a_time], words].concat());
    let patient = PATIENT.map(|name| ["--skip", name]);
    let mut by_two = jobs("--test-threads=2", &[patient.as_flattened(), others.as_flattened()].concat());
    let patient = jobs("--test-threads=2", &[&PATIENT[..], others.as_flattened()].concat());
    call_beside(&mut by_two, &mut [tests(&["--test", "suite", "--"]), patient])?;
    call(&mut jobs("--test-threads=1", &JUDGED))?;
    Ok(Outcome::Done)
}

/// Runs a command that prints one item per line; its standard error goes to the terminal.
pub(crate) fn lines_of(command: &mut Command) -> Result<Vec<String>, String> {
    println!("   {}", steps::show(command));
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Skips the step and says why; continuous integration must not skip it.
fn skip(reason: &str) -> Result<Outcome, Failure> {
    if env::var_os("CI").is_some() {
        return Err(format!("{reason}; in CI nothing is left out").into());
    }
    Ok(Outcome::Partly(format!("the real NCCL was left out: {reason}")))
}
