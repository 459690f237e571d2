//! A chore is a list of steps. Each says its name, shows the commands it runs, and is timed.

use std::env;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Output};
use std::thread;
use std::time::Instant;

/// A part of a chore that can be run by itself.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it does, as a phrase.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Place) -> Result<Outcome, Failure>,
}

/// The result of a step that did not fail.
pub(crate) enum Outcome {
    /// It did everything.
    Done,
    /// It skipped a part; what, and why.
    Partly(String),
}

/// Why a step failed.
pub(crate) struct Failure {
    /// What went wrong, in one or more lines.
    pub(crate) reason: String,
    /// The command that reproduces it, if that is not the step itself.
    pub(crate) again: Option<String>,
}

/// Runs a chore, and reports failures.
pub(crate) fn run_chore(body: impl FnOnce(&Place) -> Result<(), Failure>) -> ExitCode {
    match Place::find().map_err(Failure::from).and_then(|place| body(&place)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {}", failure.reason);
            if let Some(again) = failure.again {
                eprintln!("       to see it again: {again}");
            }
            ExitCode::FAILURE
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure { reason, again: None }
    }
}

/// Where the steps work.
pub(crate) struct Place {
    /// The root of the repository; commands run there.
    pub(crate) root: PathBuf,
    /// The folder for build output.
    pub(crate) target: PathBuf,
}

impl Place {
    pub(crate) fn find() -> Result<Place, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let root = root.ok_or("xtask has no workspace around it")?;
        let program = env::current_exe().map_err(|error| error.to_string())?;
        // TARGET/debug/xtask
        let target = program.ancestors().nth(2);
        let target = target.ok_or("xtask was not run by cargo")?;
        Ok(Place { root: root.to_owned(), target: target.to_owned() })
    }

    pub(crate) fn cargo(&self) -> Command {
        self.command("cargo")
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }
}

/// Runs the steps named in `wanted`, or all; reports the results at the end.
pub(crate) fn run(steps: &[Step], wanted: &[String]) -> ExitCode {
    let place = match Place::find() {
        Ok(place) => place,
        Err(reason) => {
            eprintln!("xtask: failed to find its way: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let all = wanted.is_empty();
    let mut summary = String::new();
    let mut failed = false;
    for step in steps {
        if !all && !wanted.iter().any(|name| name == step.name) {
            continue;
        }
        println!("== {}: {}", step.name, step.about);
        let start = Instant::now();
        let outcome = (step.run)(&place);
        let seconds = start.elapsed().as_secs_f64();
        let word = match &outcome {
            Ok(Outcome::Done) => "ok",
            Ok(Outcome::Partly(_)) => "partly",
            Err(_) => "FAILED",
        };
        let _ = writeln!(summary, "{:<9} {word:<7} {seconds:7.1} s", step.name);
        match outcome {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Partly(what)) => {
                println!("{what}");
                let _ = writeln!(summary, "          {what}");
            }
            Err(Failure { reason, again }) => {
                failed = true;
                println!("{reason}");
                let itself = || format!("cargo xtask {} {}", chore(), step.name);
                let again = again.unwrap_or_else(itself);
                let _ = writeln!(summary, "          to see it again: {again}");
            }
        }
    }
    println!("\n{summary}");
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The name of the running chore.
fn chore() -> String {
    env::args().nth(1).unwrap_or_default()
}

/// Shows a command, runs it, and fails if it fails.
pub(crate) fn call(command: &mut Command) -> Result<(), Failure> {
    call_for(command, &[0])
}

/// Runs a command that may end with one of these codes.
pub(crate) fn call_for(command: &mut Command, codes: &[i32]) -> Result<(), Failure> {
    let shown = show(command);
    println!("   {shown}");
    ended(command.status(), codes, shown)
}

/// Runs two commands at a time, and fails if one fails. What the second prints follows at the end.
pub(crate) fn call_both(command: &mut Command, beside: &mut Command) -> Result<(), Failure> {
    let shown = show(beside);
    println!("   {shown} (its output comes last)");
    thread::scope(|scope| {
        let beside = scope.spawn(|| beside.output());
        let first = call(command);
        let second = beside.join().map_err(|_| "a thread panicked".to_owned())?;
        let second = second.map(|Output { status, stdout, stderr }| {
            println!("   {shown}\n{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            status
        });
        first.and(ended(second, &[0], shown))
    })
}

/// Whether a command ended with one of these codes.
fn ended(status: io::Result<ExitStatus>, codes: &[i32], shown: String) -> Result<(), Failure> {
    match status {
        Ok(status) if status.code().is_some_and(|code| codes.contains(&code)) => Ok(()),
        Ok(status) => Err(Failure { reason: format!("{status}"), again: Some(shown) }),
        Err(error) => Err(Failure { reason: format!("failed to start it: {error}"), again: Some(shown) }),
    }
}

/// The target triple, where one must be named.
pub(crate) fn triple(arch: &str) -> String {
    format!("{arch}-unknown-linux-gnu")
}

/// A command as one would type it at the root of the repository.
pub(crate) fn show(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}={}", name.display(), quoted(&value)))
    });
    let program = command.get_program().to_string_lossy();
    let arguments = command.get_args().map(|word| quoted(&word.to_string_lossy()));
    variables.chain([quoted(&program)]).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("cargo");
        command.env("RUSTFLAGS", "--cfg loom").args(["test", "it's"]);
        assert_eq!(show(&command), r"RUSTFLAGS='--cfg loom' cargo test 'it'\''s'");
    }
}
