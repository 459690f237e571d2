//! All processes of a job: started, watched, ended.
//!
//! Each process runs this program again, in its own process group, and dies with the launcher. Its
//! output goes to a file. Whatever happens, no process and no shared memory of a job is left when
//! [`run`] returns.

mod environment;
mod folder;
mod member;
mod processes;
#[cfg(test)]
mod tests;

pub use environment::BASIC;
pub use folder::folder_of_traces;
pub use member::become_member;

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::job::tally;
use crate::library::{Library, Unsuitable};
use crate::scenario::{Release, Scenario};
use crate::{time, wheel};
use folder::{Folder, SCENARIO};
use processes::{Process, Processes, Signals, spawn};

/// A job to be run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// This program.
    pub program: PathBuf,
    /// The scenario to run.
    pub scenario: Scenario,
    /// The libnccl to run.
    pub nccl: PathBuf,
    /// The profiler plugin, if one is wanted.
    pub plugin: Option<PathBuf>,
    /// The folder with an emulated CUPTI, if one is wanted.
    pub cupti: Option<PathBuf>,
    /// The folder for everything that the job writes.
    pub output: PathBuf,
    /// Environment variables that take precedence over all others.
    pub set: Vec<(String, String)>,
    /// When everything is killed, instead of the scenario's limit.
    pub time_limit: Option<Duration>,
    /// Whether calls into CUDA are logged in the processes' logs.
    pub trace: bool,
}

/// Why a job was not run.
#[derive(Debug)]
pub enum Error {
    /// The request cannot be met; the text says what to do about it.
    Refused(String),
    /// The library cannot be run.
    Unsuitable(PathBuf, Unsuitable),
    /// The operating system failed.
    System(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(reason) | Error::System(reason) => f.write_str(reason),
            Error::Unsuitable(path, reason) => write!(f, "failed to run {}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// The outcome of a job.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it ended.
    pub ended: Ended,
    /// The processes that ended in an unexpected way.
    pub failed: Vec<Failed>,
    /// How many results were compared.
    pub checked: u64,
    /// How many of them were wrong.
    pub wrong: u64,
    /// How long the processes ran.
    pub elapsed: Duration,
    /// NCCL's release as its file states it.
    pub release: Option<String>,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All processes finished.
    ByItself,
    /// It was killed because a rank hung, as the scenario intends.
    AsItHung,
    /// It was killed because a process had failed and the others did not end.
    AfterFailure,
    /// It was killed at the time limit, in ns.
    AtTimeLimit(u64),
    /// It was killed because this program got a signal.
    BySignal(i32),
}

/// A process that ended in an unexpected way.
#[derive(Debug, Clone)]
pub struct Failed {
    /// Its number.
    pub process: u32,
    /// How it ended.
    pub how: String,
    /// Its log, which says why.
    pub log: PathBuf,
    /// The log's last lines.
    pub last_lines: String,
}

impl Report {
    /// Whether the job did what its scenario intends, with right results.
    pub fn is_right(&self) -> bool {
        let ended = matches!(self.ended, Ended::ByItself | Ended::AsItHung);
        ended && self.failed.is_empty() && self.wrong == 0
    }
}

/// Runs a job until it ends, in whatever way.
///
/// # Errors
///
/// When it could not even begin.
pub fn run(launch: &Launch) -> Result<Report, Error> {
    let inspected = Library::inspect(&launch.nccl, &wheel::cache())
        .map_err(|reason| Error::Unsuitable(launch.nccl.clone(), reason))?;
    let release = inspected.release().map(str::to_owned);
    launch.release_is_new_enough(release.as_deref())?;
    let reference = time::now();
    launch.clocks_are_possible(reference)?;
    let folder = Folder::open(&launch.output)?;
    fs::write(launch.output.join(SCENARIO), &launch.scenario.text)
        .map_err(|error| Error::System(format!("failed to write to {}: {error}", launch.output.display())))?;

    let began = Instant::now();
    let signals = Signals::watch();
    let mut processes = Processes { all: Vec::new(), began: SystemTime::now() };
    for number in 0..launch.scenario.processes() {
        let mut command = launch.command(number, reference, &folder, release.as_deref());
        let log = folder.file("process", number, "log");
        let child = spawn(&mut command, &log)
            .map_err(|error| Error::System(format!("failed to start process {number}: {error}")))?;
        processes.all.push(Process { number, child, status: None, log });
    }
    let ended = processes.watch(launch, &folder, &signals);
    let (checked, wrong) = processes.all.iter().fold((0, 0), |(checked, wrong), process| {
        let counts = tally::read(&folder.meeting.join(format!("tally-{}", process.number)));
        (checked + counts.0, wrong + counts.1)
    });
    Ok(Report { ended, failed: processes.failed(ended), checked, wrong, elapsed: began.elapsed(), release })
}

impl Launch {
    /// Some scenarios need a newer release.
    fn release_is_new_enough(&self, release: Option<&str>) -> Result<(), Error> {
        let since = self.scenario.since;
        match release.and_then(|release| Some((release, Release::parse(release)?))) {
            Some((release, numbers)) if numbers < since => {
                let name = &self.scenario.name;
                Err(Error::Refused(format!("{name} needs NCCL {since} or later, and this is {release}")))
            }
            _ => Ok(()),
        }
    }

    /// A clock cannot show a time before its epoch.
    fn clocks_are_possible(&self, reference: u64) -> Result<(), Error> {
        const LEAST: i64 = 1_000_000_000;
        for (host, clocks) in self.scenario.clocks.iter().enumerate() {
            let steps = clocks.boot.steps.iter().map(|(_, by)| (*by).min(0)).sum::<i64>();
            if (reference as i64).saturating_add(clocks.boot.offset_ns).saturating_add(steps) < LEAST {
                return Err(Error::Refused(format!(
                    "host {host}'s boot clock would be before its boot: this machine was booted only {} s ago",
                    reference / 1_000_000_000
                )));
            }
        }
        Ok(())
    }
}
