//! Plays a script in a process of its own, from a test.
//!
//! ```no_run
//! use ncclscope_tests::play::Play;
//!
//! let script = "user init world comm=1 rank=0 nranks=2\n\
//!               user start g world Group\n\
//!               user stop g\n\
//!               user finalize world";
//! let outcome = Play::new(script).interface(4).env("NCCLSCOPE_OUTPUT", "/tmp/out").run().unwrap();
//! assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
//! assert_ne!(outcome.call("g").handle, Some(0));
//! ```

use serde_json::Value;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A script and how to play it.
#[derive(Clone, Debug)]
pub struct Play {
    script: String,
    interface: u32,
    host: Option<PathBuf>,
    plugin: Option<PathBuf>,
    folder: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    limit: Duration,
    respect_mask: bool,
}

impl Play {
    /// Plays this script through the newest interface, with the plugin of [`plugin_path`]. A host
    /// that has not ended after five minutes is killed; even a busy machine does not take that
    /// long.
    pub fn new(script: impl Into<String>) -> Play {
        Play {
            script: script.into(),
            interface: 7,
            host: None,
            plugin: None,
            folder: None,
            variables: Vec::new(),
            limit: Duration::from_secs(300),
            respect_mask: false,
        }
    }

    /// Calls the plugin through this version of the interface.
    pub fn interface(mut self, version: u32) -> Play {
        self.interface = version;
        self
    }

    /// The program `scripted-host`, for a test that knows it from Cargo. By default that of
    /// [`host_path`].
    pub fn host(mut self, path: impl Into<PathBuf>) -> Play {
        self.host = Some(path.into());
        self
    }

    /// Loads this plugin.
    pub fn plugin(mut self, path: impl Into<PathBuf>) -> Play {
        self.plugin = Some(path.into());
        self
    }

    /// Runs in this folder.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Play {
        self.folder = Some(path.into());
        self
    }

    /// Sets an environment variable. See [`clean_environment`] for those that are not inherited.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Play {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The same, unless [`env`](Play::env) sets it, before or after.
    pub fn env_default(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Play {
        self.variables.insert(0, (name.into(), value.into()));
        self
    }

    /// Sets several environment variables.
    pub fn envs(mut self, variables: &[(&str, &str)]) -> Play {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        self.variables.extend(variables);
        self
    }

    /// Gives up after this time.
    pub fn limit(mut self, limit: Duration) -> Play {
        self.limit = limit;
        self
    }

    /// Starts only events that the activation mask requests, as NCCL does, instead of everything in
    /// the script.
    pub fn respect_mask(mut self) -> Play {
        self.respect_mask = true;
        self
    }

    /// Plays it.
    ///
    /// # Errors
    ///
    /// If the host or the plugin is missing, or the time is up. A failing host is no error but an
    /// outcome.
    pub fn run(self) -> Result<Outcome, PlayError> {
        let host = self.host.map_or_else(host_path, Ok)?;
        let plugin = self.plugin.map_or_else(plugin_path, Ok)?;
        let mut command = Command::new(host);
        clean_environment(&mut command);
        command.arg("play").arg("--plugin").arg(plugin);
        command.arg("--interface").arg(self.interface.to_string());
        if self.respect_mask {
            command.arg("--respect-mask");
        }
        command.arg("-").envs(self.variables);
        if let Some(folder) = self.folder {
            command.current_dir(folder);
        }
        let finished = run(&mut command, &self.script, self.limit)?;
        Ok(Outcome {
            status: finished.status.code(),
            signal: finished.status.signal(),
            calls: finished.stdout.lines().map(Call::parse).collect::<Result<_, _>>()?,
            stderr: finished.stderr,
        })
    }
}

/// The outcome of a play.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The host's exit status, if it exited: 0, the script's own, or 2 if the script could not be
    /// played.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// The result of each line, in order.
    pub calls: Vec<Call>,
    /// What the plugin and the host wrote to standard error.
    pub stderr: String,
}

impl Outcome {
    /// The last `init` or `start` with this label.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn call(&self, label: &str) -> &Call {
        let made = |call: &&Call| matches!(call.verb.as_str(), "init" | "start");
        let found = self.calls.iter().filter(made).rfind(|call| call.label.as_deref() == Some(label));
        found.unwrap_or_else(|| panic!("no line made `{label}`; standard error:\n{}", self.stderr))
    }

    /// The result of this line of the script, if it was played.
    pub fn line(&self, number: usize) -> Option<&Call> {
        self.calls.iter().find(|call| call.line == number)
    }
}

/// The result of one line.
#[derive(Clone, Debug)]
pub struct Call {
    /// The line's number.
    pub line: usize,
    /// Its thread.
    pub thread: String,
    /// The process id, which differs in a child.
    pub pid: i32,
    /// The system's thread id.
    pub tid: i32,
    /// Its verb.
    pub verb: String,
    /// The label that it created or named.
    pub label: Option<String>,
    /// The handle or context that it created or named.
    pub handle: Option<u64>,
    /// What the plugin returned.
    pub status: Option<i32>,
    /// The activation mask, after `init` and `mask`.
    pub mask: Option<i32>,
    /// Why no call was made.
    pub skipped: Option<String>,
    /// Nanoseconds of `CLOCK_BOOTTIME` when the line began. Times in its arguments are from between
    /// then and `before`.
    pub began: u64,
    /// The same, before the call.
    pub before: u64,
    /// The same, after it.
    pub after: u64,
    /// The whole line that the host wrote: with `mapped` after `unload`, `child` after `fork`, and
    /// `log` if the plugin logged something.
    pub json: Value,
}

impl Call {
    fn parse(line: &str) -> Result<Call, PlayError> {
        let bad = || PlayError::Output(line.to_owned());
        let json: Value = serde_json::from_str(line).map_err(|_| bad())?;
        let text = |key: &str| json[key].as_str().map(str::to_owned);
        let int = |key: &str| json[key].as_i64().and_then(|number| i32::try_from(number).ok());
        let handle = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        Ok(Call {
            line: json["line"].as_u64().ok_or_else(bad)? as usize,
            thread: text("thread").ok_or_else(bad)?,
            pid: int("pid").ok_or_else(bad)?,
            tid: int("tid").ok_or_else(bad)?,
            verb: text("verb").ok_or_else(bad)?,
            label: text("label"),
            handle: json["handle"].as_str().and_then(handle),
            status: int("status"),
            mask: int("mask"),
            skipped: text("skipped"),
            began: json["began"].as_u64().ok_or_else(bad)?,
            before: json["before"].as_u64().ok_or_else(bad)?,
            after: json["after"].as_u64().ok_or_else(bad)?,
            json,
        })
    }
}

/// Why there is no outcome.
#[derive(Debug)]
pub enum PlayError {
    /// A file that should have been built is not there.
    Missing {
        /// Which file.
        what: &'static str,
        /// Where it was expected.
        tried: Vec<PathBuf>,
        /// What to do.
        advice: &'static str,
    },
    /// The process could not be started or talked to.
    Process(io::Error),
    /// It did not end in time and was killed.
    Timeout {
        /// The time it had.
        limit: Duration,
        /// What it had written to standard output.
        stdout: String,
        /// What it had written to standard error.
        stderr: String,
    },
    /// A line on its standard output is not the host's.
    Output(String),
}

impl fmt::Display for PlayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlayError::Missing { what, tried, advice } => {
                write!(f, "failed to find {what}; {advice}; looked for")?;
                tried.iter().try_for_each(|path| write!(f, " {}", path.display()))
            }
            PlayError::Process(error) => write!(f, "failed to run the scripted host: {error}"),
            PlayError::Timeout { limit, stdout, stderr } => {
                let last = stdout.lines().last().unwrap_or("nothing");
                write!(f, "the scripted host did not end within {limit:?}; last line: {last}; stderr: {stderr}")
            }
            PlayError::Output(line) => write!(f, "expected a line of JSON from the scripted host, found {line:?}"),
        }
    }
}

impl std::error::Error for PlayError {}

impl From<io::Error> for PlayError {
    fn from(error: io::Error) -> Self {
        PlayError::Process(error)
    }
}

/// The plugin that Cargo built for this test: `$NCCLSCOPE_TEST_PLUGIN`, or the library beside the
/// test's program.
///
/// # Errors
///
/// If it is not there.
pub fn plugin_path() -> Result<PathBuf, PlayError> {
    built("NCCLSCOPE_TEST_PLUGIN", "libncclscope.so", "the plugin", "build it, or set NCCLSCOPE_TEST_PLUGIN")
}

/// The program that plays scripts: `$NCCLSCOPE_TEST_HOST`, or `scripted-host` beside the test's
/// program.
///
/// # Errors
///
/// If it is not there.
pub fn host_path() -> Result<PathBuf, PlayError> {
    built("NCCLSCOPE_TEST_HOST", "scripted-host", "the scripted host", "build the package ncclscope-tests")
}

/// The program `ncclscope`: `$NCCLSCOPE_TEST_PROGRAM`, or the one beside the test's program.
///
/// # Errors
///
/// If it is not there.
pub fn program_path() -> Result<PathBuf, PlayError> {
    built("NCCLSCOPE_TEST_PROGRAM", "ncclscope", "the program", "build the package ncclscope")
}

/// Copies a program to where it can be run immediately. Another process does the copying: as long
/// as this one has the file open for writing, so may a child that another test forks, and a file
/// open for writing cannot be run.
///
/// # Panics
///
/// If it cannot be copied.
pub fn copy_program(program: &Path, to: &Path) {
    let done = Command::new("cp").args([program, to]).status().expect("cp is everywhere");
    assert!(done.success(), "{} cannot be copied to {}", program.display(), to.display());
}

/// A library for a test, built from a file beside this one with the C compiler that links Rust
/// programs here. Dropping the folder removes it.
///
/// # Panics
///
/// If it cannot be built.
pub fn compile(source: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for a library");
    let library = folder.path().join(source).with_extension("so");
    compile_to(&library, source, &["-O2", "-shared", "-fPIC"]);
    (folder, library)
}

/// Builds a library or a program from a file, which is beside this one unless its path is absolute,
/// with these flags.
///
/// # Panics
///
/// If it cannot be built.
pub fn compile_to(output: &Path, source: impl AsRef<Path>, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("support").join(source);
    let compiler = env::var_os("CC").unwrap_or("cc".into());
    let result = Command::new(&compiler).args(flags).arg("-o").arg(output).arg(source).output();
    let result = result.unwrap_or_else(|error| panic!("failed to run {}: {error}", compiler.display()));
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

/// The file that an environment variable names, or the one that Cargo built beside the test's
/// program.
fn built(variable: &str, name: &str, what: &'static str, advice: &'static str) -> Result<PathBuf, PlayError> {
    match env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.exists() => Ok(path),
        Some(path) => Err(PlayError::Missing { what, tried: vec![path], advice }),
        None => beside(name, what, advice),
    }
}

/// Removes from a command's environment everything that could change what a profiler does: the
/// variables of the profiler, of NCCL, of launchers and job managers.
pub fn clean_environment(command: &mut Command) {
    const PREFIXES: [&str; 9] =
        ["NCCLSCOPE_", "NCCL_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "TORCHELASTIC_", "CUPTI_"];
    const NAMES: [&str; 10] = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_INJECTION64_PATH",
        "LD_PRELOAD",
    ];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if NAMES.contains(&&*text) || PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}

/// The end of a process.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// Runs a command to its end, with this text as its standard input. It gets a process group of its
/// own. Whatever is left in that group when the command ends, or when its time is up, is killed.
///
/// # Errors
///
/// If it cannot be started, or does not end in time.
pub fn run(command: &mut Command, input: &str, limit: Duration) -> Result<Finished, PlayError> {
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdin = child.stdin.take().map(|mut pipe| {
        let input = input.to_owned();
        // A process may end without reading everything.
        thread::spawn(move || drop(pipe.write_all(input.as_bytes())))
    });
    let stdout = child.stdout.take().map(read);
    let stderr = child.stderr.take().map(read);
    let in_time = wait(&child, Instant::now() + limit);
    // SAFETY: the child is not reaped yet, so the number of its group is still its own.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let status = child.wait()?;
    let text = |reader: Option<JoinHandle<Vec<u8>>>| {
        let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    drop(stdin.map(JoinHandle::join));
    let (stdout, stderr) = (text(stdout), text(stderr));
    match in_time {
        true => Ok(Finished { status, stdout, stderr }),
        false => Err(PlayError::Timeout { limit, stdout, stderr }),
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // On a failure, what was read so far is kept.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Waits until the child has ended, but keeps its process id in use.
fn wait(child: &Child, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        // SAFETY: an all-zero value is a valid one, and is what shows that nothing has happened
        // yet.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        // SAFETY: writes to `info` only, and takes nothing away.
        let done = unsafe { libc::waitid(libc::P_PID, child.id(), &mut info, flags) };
        // SAFETY: `waitid` has filled in this member, or left it zero.
        if done == 0 && unsafe { info.si_pid() } != 0 {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A file that Cargo puts beside a test's program, which may itself be in the folder `deps`.
fn beside(name: &str, what: &'static str, advice: &'static str) -> Result<PathBuf, PlayError> {
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let inside = folder.file_name().is_some_and(|folder| folder == OsStr::new("deps"));
    let profile = if inside { folder.parent().unwrap_or(folder) } else { folder };
    let tried = vec![profile.join("deps").join(name), profile.join(name)];
    match tried.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => Err(PlayError::Missing { what, tried, advice }),
    }
}
