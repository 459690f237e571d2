//! CUPTI according to its headers: `cupti-sys/src/bindings.rs` (by bindgen, from the newest
//! release) and `cupti-sys/src/table.rs` (by a C compiler, from all releases in
//! `cupti-sys/releases.txt`).
//!
//! The headers come from NVIDIA's wheels on PyPI and stay in the user's cache. Only names, numbers
//! and types from them are committed.

mod compare;
mod compiler;
mod generate;
mod headers;
mod lists;
mod releases;
mod table;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use crate::steps::{self, Failure, Outcome, Place, Step, step};
use compare::compare;
use generate::bindings;
use lists::FUNCTIONS;
use releases::{function_doc, newest, releases};
use table::table;

const USAGE: &str = "\
usage: cargo xtask bindings [--check | --fetch]

Writes cupti-sys/src/bindings.rs and cupti-sys/src/table.rs again, from the headers of the releases of CUPTI in
cupti-sys/releases.txt. They are fetched once, by pip, into ~/.cache/ncclscope/cupti-sys (about 200 MB are downloaded).

  --check   writes nothing; fails where the headers of any release say otherwise than what is committed
  --fetch   only fetches; the tests of cupti-sys use the libraries that come with the headers

Python 3 with pip and a C compiler are needed; without an option also libclang (on Debian: apt-get install libclang-dev).

A new release of CUPTI: add its row to cupti-sys/releases.txt (pip download NAME==VERSION --no-deps, then sha256sum),
run this, and read the difference. Where the library steps over a record otherwise than its header says, the tests of
cupti-sys say so, and WALKED in xtask/src/bindings/lists.rs has to. A function, constant or field more is one more name in
the lists there.
";

pub(crate) const ABOUT: &str = "the bindings of CUPTI agree with the headers of all its releases";

/// `cargo xtask bindings [--check | --fetch]`
pub(crate) fn run(words: &[String]) -> ExitCode {
    const WRITE: &[Step] = &[step("bindings", "what the headers of CUPTI say", write)];
    const CHECK: &[Step] = &[step("bindings", ABOUT, check)];
    const FETCH: &[Step] = &[step("bindings", "the headers and libraries of CUPTI", fetch)];
    match words {
        [] => steps::run(WRITE, &[]),
        [word] if word == "--check" => steps::run(CHECK, &[]),
        [word] if word == "--fetch" => steps::run(FETCH, &[]),
        [word] if ["help", "--help", "-h"].contains(&word.as_str()) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

pub(crate) fn fetch(place: &Place) -> Result<Outcome, Failure> {
    releases(place).map_err(|failure| again(failure, "--fetch"))?;
    Ok(Outcome::Done)
}

fn write(place: &Place) -> Result<Outcome, Failure> {
    write_both(place).map_err(|failure| again(failure, ""))?;
    check(place)
}

/// Compares the committed files with the headers.
pub(crate) fn check(place: &Place) -> Result<Outcome, Failure> {
    compare_both(place).map_err(|failure| again(failure, "--check"))?;
    Ok(Outcome::Done)
}

/// A failure with the command that reproduces it.
fn again(failure: Failure, option: &str) -> Failure {
    let command = || format!("cargo xtask bindings {option}").trim_end().to_owned();
    Failure { again: failure.again.or_else(|| Some(command())), ..failure }
}

fn write_both(place: &Place) -> Result<(), Failure> {
    let releases = releases(place)?;
    let source = place.root.join("cupti-sys/src");
    save(&source.join("bindings.rs"), &bindings(place, &releases)?)?;
    save(&source.join("table.rs"), &table(place, &releases)?)
}

fn compare_both(place: &Place) -> Result<(), Failure> {
    let releases = releases(place)?;
    let source = place.root.join("cupti-sys/src");
    let mut problems = Vec::new();
    let (derived, committed) = (table(place, &releases)?, load(&source.join("table.rs"))?);
    if derived != committed {
        let lines = derived.lines().zip(committed.lines()).find(|(derived, committed)| derived != committed);
        let (derived, committed) = lines.unwrap_or(("more or fewer lines", "that many"));
        problems.push("table.rs is not what the headers say:".to_owned());
        problems.push(format!("   {}  is what they say first\n   {}  is there", derived.trim(), committed.trim()));
    }
    let committed = load(&source.join("bindings.rs"))?;
    for release in &releases {
        problems.extend(compare(release, &committed)?);
    }
    for name in FUNCTIONS {
        if !committed.contains(&format!("{}\n", function_doc(name, &releases)?)) {
            problems.push(format!("bindings.rs lacks {name}, or has another release for it"));
        }
    }
    if !problems.is_empty() {
        problems.push("where the headers are right, this writes both files again: cargo xtask bindings".to_owned());
        return Err(problems.join("\n").into());
    }
    println!("   {} builds agree, CUDA {} to {}", releases.len(), releases[0].cuda, newest(&releases)?.cuda);
    Ok(())
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| format!("failed to write {}: {error}", path.display()).into())
}

fn load(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| format!("failed to read {}: {error}", path.display()).into())
}

fn rustfmt(place: &Place, text: &str) -> Result<String, Failure> {
    let mut command = place.command("rustfmt");
    command.args(["--edition", "2024", "--quiet", "--config-path"]).arg(&place.root);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start rustfmt: {error}"))?;
    let mut input = child.stdin.take().ok_or("rustfmt has no input".to_owned())?;
    // It reads everything before it writes.
    input.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    drop(input);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("rustfmt did not take what was generated".to_owned().into());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string().into())
}
