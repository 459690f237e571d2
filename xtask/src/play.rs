//! A trace to look at, on any machine: the scripted host plays a scenario with the release
//! library.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use crate::steps::{Failure, Place, call, call_for, run_chore};

/// The scenario if none is named.
const DEFAULT: &str = "eager_allreduce";

pub(crate) fn run(words: &[String]) -> ExitCode {
    run_chore(|place| play(place, words.first().map_or(DEFAULT, String::as_str)))
}

fn play(place: &Place, scenario: &str) -> Result<(), Failure> {
    let script = place.root.join("tests/scenarios").join(scenario).with_extension("txt");
    if !script.exists() {
        return Err(format!("there is no scenario {scenario}; there are: {}", scenarios(place).join(", ")).into());
    }
    let build = ["build", "--release", "--quiet", "-p", "ncclscope", "-p", "ncclscope-tests", "--lib", "--bins"];
    call(place.cargo().args(build))?;
    let release = place.target.join("release");
    let output = place.target.join("play").join(scenario);
    let _ = std::fs::remove_dir_all(&output);
    let mut host = place.command(release.join("scripted-host"));
    host.args(["play", "--interface", "7", "--plugin"]).arg(release.join("libncclscope.so")).arg(&script);
    host.env("NCCLSCOPE_OUTPUT", &output).env("NCCLSCOPE_PRESET", "full").env("NCCLSCOPE_KERNEL_CH", "force");
    // Its output about each call is for tests.
    call(host.stdout(Stdio::null()))?;
    let traces = std::fs::read_dir(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let traces: Vec<PathBuf> = traces.flatten().map(|entry| entry.path()).collect();
    call_for(place.command(release.join("ncclscope")).arg("info").args(&traces), &[0, 1])?;
    let traces: Vec<_> =
        traces.iter().map(|path| path.strip_prefix(&place.root).unwrap_or(path).display().to_string()).collect();
    println!("\nOpen it: target/release/ncclscope open {}", traces.join(" "));
    Ok(())
}

fn scenarios(place: &Place) -> Vec<String> {
    let files = std::fs::read_dir(place.root.join("tests/scenarios")).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        files.filter_map(|it| Some(it.path().file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    names
}
