//! The checks that must pass before a change is accepted.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bindings;
use crate::deny;
use crate::e2e;
use crate::elf::Library;
use crate::imports;
use crate::instructions;
use crate::reliability;
use crate::steps::{Failure, Outcome, Place, Step, call, step, triple};

pub(crate) const STEPS: &[Step] = &[
    step("fmt", "the code is formatted", fmt),
    step("imports", "each module imports what the table of ARCHITECTURE.md lets it", imports::check),
    step("deny", deny::ABOUT, deny::check),
    step("test", "every test", test),
    step("e2e", e2e::ABOUT, e2e::some),
    step("reliability", reliability::ABOUT, reliability::check),
    step("load", "the tests under load, with the optimised library", load),
    step("plugin", "the release library is what NCCL expects", plugin).aside(),
    step("bindings", bindings::ABOUT, bindings::check).aside(),
    step("clippy", "no warnings, with the command line and without", clippy).aside(),
    step("doc", "the documentation has no broken links", doc).aside(),
    step("loom", "the recorder, in every order of its threads that has at most three preemptions", loom).aside(),
    step("calls", instructions::ABOUT, instructions::check).aside(),
];

/// How the plugin is always built: without the command line.
pub(crate) const PLUGIN: [&str; 5] = ["-p", "ncclscope", "--lib", "--no-default-features", "-q"];

/// The same for `cargo rustc`, as people get it: a library for C programs only. Cargo does not
/// optimise across crates at link time if Rust programs shall link the library, too.
pub(crate) const RELEASED: [&str; 7] =
    ["-p", "ncclscope", "--lib", "--no-default-features", "-q", "--crate-type", "cdylib"];

fn fmt(place: &Place) -> Result<Outcome, Failure> {
    call(place.cargo().args(["fmt", "--all", "--check"]))?;
    let mut long = Vec::new();
    for entry in fs::read_dir(&place.root).map_err(|error| error.to_string())? {
        long_comments(&entry.map_err(|error| error.to_string())?.path(), &mut long)?;
    }
    if long.is_empty() { Ok(Outcome::Done) } else { Err(long.join("\n").into()) }
}

/// The comments below this path that have more than a hundred columns, which rustfmt lets pass.
/// Diagrams, tables and addresses may have more, and so may what is generated.
fn long_comments(path: &Path, long: &mut Vec<String>) -> Result<(), Failure> {
    const OTHERS: [&str; 3] = ["target", "cupti-sys", ".git"];
    const COLUMNS: usize = 100;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if path.is_dir() && !OTHERS.contains(&&*name) {
        for entry in fs::read_dir(path).map_err(|error| error.to_string())? {
            long_comments(&entry.map_err(|error| error.to_string())?.path(), long)?;
        }
    } else if name.ends_with(".rs") {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > COLUMNS) {
            let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
            let is_prose = |it: &&str| !it.starts_with(" |") && !it.contains("  ") && !it.contains("://");
            if comment.filter(is_prose).is_some() {
                long.push(format!("{}:{number}: a comment of more than {COLUMNS} columns", path.display()));
            }
        }
    }
    Ok(())
}

fn clippy(place: &Place) -> Result<Outcome, Failure> {
    const DENY: [&str; 3] = ["--", "-D", "warnings"];
    let all = ["clippy", "--workspace", "--all-targets"];
    call(place.checking_cargo().args(all).args(DENY))?;
    call(place.checking_cargo().arg("clippy").args(PLUGIN).args(DENY))?;
    // Loom builds the library's tests this way. A test that needs the command line would be
    // noticed only there.
    call(place.checking_cargo().args(["clippy", "--profile", "test"]).args(PLUGIN).args(DENY))?;
    Ok(Outcome::Done)
}

fn doc(place: &Place) -> Result<Outcome, Failure> {
    let mut command = place.checking_cargo();
    command.env("RUSTDOCFLAGS", "-D warnings");
    call(command.args(["doc", "--workspace", "--no-deps", "--document-private-items"]))?;
    Ok(Outcome::Done)
}

fn plugin(place: &Place) -> Result<Outcome, Failure> {
    let path = released(place)?.plugin;
    let library = Library::read(&path)?;
    let problems = library.as_plugin();
    if problems.is_empty() {
        Ok(Outcome::Done)
    } else {
        Err(format!("{}: {}", path.display(), problems.join("; ")).into())
    }
}

fn test(place: &Place) -> Result<Outcome, Failure> {
    reliability::forget(place);
    // The tests of cupti-sys walk records with the libraries that come with the headers.
    bindings::fetch(place)?;
    // Most tests wait for other processes most of the time, and a few for a minute.
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from) + 4;
    let all = ["test", "--workspace", "--no-fail-fast"];
    call(place.cargo().args(all).env("RUST_TEST_THREADS", threads.to_string()))?;
    Ok(Outcome::Done)
}

/// The plugin as people get it, and the scripted host.
pub(crate) struct Released {
    pub(crate) plugin: PathBuf,
    pub(crate) host: PathBuf,
}

/// Builds both, optimised.
pub(crate) fn released(place: &Place) -> Result<Released, Failure> {
    call(place.cargo().args(["rustc", "--release"]).args(RELEASED))?;
    call(place.cargo().args(["build", "--release", "-q", "-p", "ncclscope-tests", "--bin", "scripted-host"]))?;
    let built = place.target.join("release");
    Ok(Released { plugin: built.join("libncclscope.so"), host: built.join("scripted-host") })
}

fn load(place: &Place) -> Result<Outcome, Failure> {
    let Released { plugin, host } = released(place)?;
    let mut command = place.cargo();
    command.env("NCCLSCOPE_TEST_PLUGIN", plugin).env("NCCLSCOPE_TEST_HOST", host).args([
        "test",
        "--workspace",
        "--test",
        "load",
    ]);
    call(&mut command)?;
    Ok(Outcome::Done)
}

fn loom(place: &Place) -> Result<Outcome, Failure> {
    let tests = || {
        let mut command = place.checking_cargo();
        command
            .env("RUSTFLAGS", "--cfg loom")
            // The most preemptions of threads in one execution; more finds little and takes hours.
            .env("LOOM_MAX_PREEMPTIONS", "3")
            // Optimising our own code, too, takes a minute and saves a second.
            .args(["--config", "profile.dev.package.loom.opt-level=1"])
            // Without the command line, which is not involved. The flags are only for what is built
            // for a target; what runs while building has been built before.
            .args(["test", "-p", "ncclscope", "--lib", "--no-default-features", "loom", "--target"])
            .arg(triple(std::env::consts::ARCH));
        command
    };
    call(&mut tests())?;
    let list = tests().args(["--quiet", "--", "--list"]).output();
    let list = list.map_err(|error| error.to_string())?;
    if !String::from_utf8_lossy(&list.stdout).contains(": test") {
        return Err("no test has loom in its name".to_owned().into());
    }
    Ok(Outcome::Done)
}
