//! A chore is a list of steps. Each says its name, shows the commands it runs, and is timed.

use std::env;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Instant;

/// A part of a chore that can be run by itself.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it does, as a phrase.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Place) -> Result<Outcome, Failure>,
    /// It needs nothing of the other steps, and only computes: it uses what they leave idle.
    pub(crate) is_aside: bool,
}

/// A step that has the machine for itself, apart from the steps aside.
pub(crate) const fn step(name: &'static str, about: &'static str, run: fn(&Place) -> Result<Outcome, Failure>) -> Step {
    Step { name, about, run, is_aside: false }
}

impl Step {
    /// The step, aside.
    pub(crate) const fn aside(self) -> Step {
        Step { is_aside: true, ..self }
    }
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
    /// Commands yield to those of the other steps, and are shown when they end.
    is_aside: bool,
}

/// Runs a program with what others leave idle.
const NICE: &str = "nice";

impl Place {
    pub(crate) fn find() -> Result<Place, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let root = root.ok_or("xtask has no workspace around it")?;
        let program = env::current_exe().map_err(|error| error.to_string())?;
        // TARGET/debug/xtask
        let target = program.ancestors().nth(2);
        let target = target.ok_or("xtask was not run by cargo")?;
        Ok(Place { root: root.to_owned(), target: target.to_owned(), is_aside: false })
    }

    /// Cargo for what builds nothing that others use. Aside, it has a folder of its own, so that
    /// nobody waits for its lock.
    pub(crate) fn checking_cargo(&self) -> Command {
        let mut cargo = self.cargo();
        if self.is_aside {
            cargo.env("CARGO_TARGET_DIR", self.target.join("aside"));
        }
        cargo
    }

    pub(crate) fn cargo(&self) -> Command {
        self.command("cargo")
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(if self.is_aside { NICE.as_ref() } else { program.as_ref() });
        command.current_dir(&self.root);
        if self.is_aside {
            command.args(["-n", "19"]).arg(program);
        }
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
    let wanted = |step: &&Step| wanted.is_empty() || wanted.iter().any(|name| name == step.name);
    let (aside, others): (Vec<&Step>, Vec<&Step>) = steps.iter().filter(wanted).partition(|step| step.is_aside);
    let all_of = |place: Place, steps: &[&Step]| steps.iter().map(|step| one(&place, step)).collect::<Vec<_>>();
    let reports = if others.is_empty() || aside.is_empty() {
        all_of(place, &[aside, others].concat())
    } else {
        thread::scope(|scope| {
            let aside_place = Place { root: place.root.clone(), target: place.target.clone(), is_aside: true };
            let aside = scope.spawn(move || all_of(aside_place, &aside));
            let others = all_of(place, &others);
            let panicked = || vec![("a thread panicked\n".to_owned(), true)];
            [others, aside.join().unwrap_or_else(|_| panicked())].concat()
        })
    };
    let summary: String = reports.iter().map(|(text, _)| text.as_str()).collect();
    println!("\n{summary}");
    if reports.iter().any(|(_, failed)| *failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a step. Returns its part of the summary, and whether it failed.
fn one(place: &Place, step: &Step) -> (String, bool) {
    println!("== {}: {}", step.name, step.about);
    let start = Instant::now();
    let outcome = (step.run)(place);
    let seconds = start.elapsed().as_secs_f64();
    let word = match &outcome {
        Ok(Outcome::Done) => "ok",
        Ok(Outcome::Partly(_)) => "partly",
        Err(_) => "FAILED",
    };
    let mut summary = format!("{:<9} {word:<7} {seconds:7.1} s\n", step.name);
    match &outcome {
        Ok(Outcome::Done) => {}
        Ok(Outcome::Partly(what)) => {
            println!("{what}");
            let _ = writeln!(summary, "          {what}");
        }
        Err(Failure { reason, again }) => {
            println!("{reason}");
            let itself = || format!("cargo xtask {} {}", chore(), step.name);
            let again = again.clone().unwrap_or_else(itself);
            let _ = writeln!(summary, "          to see it again: {again}");
        }
    }
    (summary, outcome.is_err())
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
    let status = if command.get_program() == NICE {
        shown_at_its_end(command)
    } else {
        println!("   {shown}");
        command.status()
    };
    ended(status, codes, shown)
}

/// Runs a command, and beside it others, one after the other; fails if one fails. What these print
/// comes when they end.
pub(crate) fn call_beside(command: &mut Command, others: &mut [Command]) -> Result<(), Failure> {
    thread::scope(|scope| {
        let each = |other: &mut Command| ended(shown_at_its_end(other), &[0], show(other));
        let others = scope.spawn(move || others.iter_mut().try_for_each(each));
        let first = call(command);
        first.and(others.join().unwrap_or_else(|_| Err("a thread panicked".to_owned().into())))
    })
}

/// Runs a command beside others, whose output its own must not be mixed with.
fn shown_at_its_end(command: &mut Command) -> io::Result<ExitStatus> {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output()?;
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("   {}\n{stdout}{stderr}", show(command));
    Ok(status)
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
