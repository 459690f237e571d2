//! One job: its processes, which are watched and killed at a time limit, and the files they leave.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ncclscope::sys::job::spawn_bound;

use crate::workload::Told;

/// A job to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its folder's name.
    pub name: String,
    /// One program per process, with its arguments and variables.
    pub processes: Vec<Process>,
    /// The time that it may take. Shortly before that, everything is killed.
    pub limit: Duration,
}

/// One process of it.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables that are set; an empty value removes one.
    pub variables: Vec<(String, OsString)>,
}

/// The result of a job.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Its folder.
    pub folder: PathBuf,
    /// How each process ended.
    pub how: Vec<How>,
    /// The results that each process reported, if any.
    pub told: Vec<Option<Told>>,
    /// The traces of all processes.
    pub traces: Vec<PathBuf>,
    /// Captures of the profiler's input, if it wrote any.
    pub captures: Vec<PathBuf>,
    /// How long it took.
    pub took: Duration,
}

/// The median; sorts the values. 0 for none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It was killed at the limit, or because another process had failed.
    Killed,
    /// It could not be started.
    NotStarted,
}

/// How long the others may go on once a process has failed.
const GRACE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(10);
/// How long a killed process may take to end. It is killed this much before the limit, or a share
/// of the limit if that is less.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
const SHARE: u32 = 4;

/// Where the traces of a job are, in its folder.
pub const TRACES: &str = "trace";

impl Job {
    /// Runs it until it ends.
    ///
    /// # Errors
    ///
    /// When there is no space for its files.
    pub fn run(&self, output: &Path) -> Result<Ended, String> {
        let folder = output.join(&self.name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("failed to make {}: {error}", folder.display()))?;
        let began = Instant::now();
        let mut running: Vec<Running> = Vec::new();
        for (number, process) in self.processes.iter().enumerate() {
            running.push(Running::start(process, &folder, number)?);
        }
        let mut failed: Option<Instant> = None;
        while running.iter().any(|process| process.how.is_none()) {
            running.iter_mut().for_each(Running::look);
            if running.iter().any(|it| !matches!(it.how, None | Some(How::Status(0)))) {
                failed.get_or_insert_with(Instant::now);
            }
            let patience = LAST_PATIENCE.min(self.limit / SHARE);
            if began.elapsed() > self.limit - patience || failed.is_some_and(|at| at.elapsed() > GRACE) {
                running.iter_mut().for_each(Running::kill);
            }
            if began.elapsed() > self.limit {
                // Even that did not end it: it is stuck inside the driver.
                break;
            }
            std::thread::sleep(LOOK);
        }
        // Processes that it started and left behind are killed too.
        running.iter_mut().for_each(Running::sweep);
        let took = began.elapsed();
        let told = (0..running.len()).map(|number| {
            let text = fs::read_to_string(folder.join(format!("told-{number}.json"))).ok()?;
            serde_json::from_str(&text).ok()
        });
        let told = told.collect();
        let files = |extension: &str| files(&folder.join(TRACES), extension);
        let how = running.iter().map(|process| process.how.unwrap_or(How::Killed)).collect();
        Ok(Ended { how, told, traces: files("perfetto-trace"), captures: files("capture"), took, folder })
    }
}

impl Ended {
    /// Whether a process was killed because it took too long, and not because another one failed.
    #[must_use]
    pub fn took_too_long(&self) -> bool {
        let is_end = |how: &How| matches!(how, How::Killed | How::Status(0));
        self.how.contains(&How::Killed) && self.how.iter().all(is_end)
    }

    /// Whether every process ended with status 0.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.how.iter().all(|how| *how == How::Status(0))
    }

    /// Why not, with the last log lines of the first process that failed.
    #[must_use]
    pub fn why(&self) -> String {
        let bad = self.how.iter().position(|how| *how != How::Status(0));
        let Some(number) = bad else { return String::new() };
        let log = fs::read_to_string(self.folder.join(format!("log-{number}"))).unwrap_or_default();
        // A panic message of Rust ends with advice.
        let says = |line: &&str| !line.trim().is_empty() && !line.starts_with("note: run with `RUST_BACKTRACE");
        let last = log.lines().rev().find(says).unwrap_or("it said nothing");
        let last: String = last.chars().take(200).collect();
        format!("process {number} {}: {last}", self.how[number])
    }

    /// The median of a series reported by rank 0.
    #[must_use]
    pub fn median(&self, name: &str) -> Option<f64> {
        let series = self.told.first()?.as_ref()?.series.get(name).filter(|series| !series.is_empty())?;
        Some(median(&mut series.clone()))
    }

    /// A figure reported by rank 0.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.told.first()?.as_ref()?.figures.get(name).copied()
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            How::Status(status) => write!(f, "ended with status {status}"),
            How::Signal(signal) => write!(f, "was ended by signal {signal}"),
            How::Killed => write!(f, "was killed: it did not end"),
            How::NotStarted => write!(f, "could not be started"),
        }
    }
}

struct Running {
    child: Option<Child>,
    how: Option<How>,
    group: i32,
    is_killed: bool,
}

impl Running {
    fn start(process: &Process, folder: &Path, number: usize) -> Result<Running, String> {
        let Some((program, arguments)) = process.command.split_first() else { return Err("no program".into()) };
        let log = File::create(folder.join(format!("log-{number}"))).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        // SAFETY: between fork and exec the function makes only system calls.
        unsafe { command.pre_exec(no_core) };
        for (name, value) in &process.variables {
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
        Ok(match spawn_bound(&mut command) {
            Ok(child) => {
                let group = child.id() as i32;
                Running { child: Some(child), how: None, group, is_killed: false }
            }
            Err(_) => Running { child: None, how: Some(How::NotStarted), group: 0, is_killed: false },
        })
    }

    fn look(&mut self) {
        if self.how.is_some() {
            return;
        }
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let how = |status: ExitStatus| match (status.code(), status.signal()) {
            _ if self.is_killed => How::Killed,
            (Some(code), _) => How::Status(code),
            (None, signal) => How::Signal(signal.unwrap_or(0)),
        };
        self.how = status.map(how);
    }

    fn kill(&mut self) {
        if self.how.is_none() && self.group > 0 {
            self.is_killed = true;
            self.signal_group();
        }
    }

    /// Kills the processes that this process started and left behind.
    fn sweep(&mut self) {
        if self.group > 0 {
            self.signal_group();
        }
    }

    fn signal_group(&self) {
        // SAFETY: a signal to a process group that was made for this process.
        unsafe { libc::kill(-self.group, libc::SIGKILL) };
    }
}

/// Makes a process leave no core file: some abort on purpose.
fn no_core() -> std::io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain system call; the limits live for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    Ok(())
}

/// Files in a folder with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, scripts: &[&str], limit: Duration) -> Job {
        let process = |script: &&str| Process {
            command: ["/bin/sh", "-c", script].map(OsString::from).to_vec(),
            ..Process::default()
        };
        Job { name: name.into(), processes: scripts.iter().map(process).collect(), limit }
    }

    #[test]
    fn statuses_are_reported_and_a_hung_process_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let long = Duration::from_secs(60);
        let ended = job("well", &["exit 0", "true"], long).run(folder.path()).unwrap();
        assert!(ended.is_well() && ended.why().is_empty());
        let ended = job("badly", &["exit 0", "echo no room; exit 7"], long).run(folder.path()).unwrap();
        assert_eq!(ended.why(), "process 1 ended with status 7: no room");
        let ended = job("signal", &["kill -11 $$"], long).run(folder.path()).unwrap();
        assert_eq!(ended.how, [How::Signal(11)]);
        // The shell's child outlives it unless its process group is killed.
        let script = "sleep 1000 & echo $! > child; wait";
        let script = format!("cd {}; {script}", folder.path().display());
        let ended = job("hangs", &[&script], Duration::from_millis(300)).run(folder.path()).unwrap();
        assert!(ended.how == [How::Killed] && ended.took_too_long());
        let child = fs::read_to_string(folder.path().join("child")).unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        let gone = || state().is_empty() || state().contains(") Z ");
        let began = Instant::now();
        while !gone() && began.elapsed() < long {
            std::thread::sleep(LOOK);
        }
        assert!(gone(), "{}", state());
    }

    #[test]
    fn when_one_fails_the_others_do_not_wait_for_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let ended = job("one", &["exit 3", "sleep 1000"], Duration::from_secs(600)).run(folder.path()).unwrap();
        assert_eq!(ended.how, [How::Status(3), How::Killed]);
        assert!(!ended.took_too_long());
    }
}
