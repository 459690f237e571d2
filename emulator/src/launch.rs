//! All processes of a job: started, watched, ended.
//!
//! Each process is this program once more, in a process group of its own, and dies with the launcher. What it says goes to a
//! file. Whatever happens, no process and no shared memory of a job is left when [`run`] returns.

mod member;

pub use member::become_member;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::job::tally;
use crate::job::{self, meeting::HUNG};
use crate::library::{Library, Unsuitable};
use crate::scenario::{Layout, NetworkKind, Release, Scenario};
use crate::time::{self, HostClocks};
use crate::wheel;

/// A job to be run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// This program.
    pub program: PathBuf,
    /// What is run.
    pub scenario: Scenario,
    /// The libnccl that is run.
    pub nccl: PathBuf,
    /// The profiler plugin, if one is wanted.
    pub plugin: Option<PathBuf>,
    /// The folder with an emulated CUPTI, if one is wanted.
    pub cupti: Option<PathBuf>,
    /// The folder for everything that comes of it.
    pub output: PathBuf,
    /// Environment variables that win over all others.
    pub set: Vec<(String, String)>,
    /// When everything is killed, instead of what the scenario says.
    pub time_limit: Option<Duration>,
    /// Whether calls into CUDA are told in the processes' logs.
    pub trace: bool,
}

/// Why a job was not run.
#[derive(Debug)]
pub enum Error {
    /// What was asked for cannot be done; the text says what to do about it.
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

/// What came of a job.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it ended.
    pub ended: Ended,
    /// The processes that ended other than they should.
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
    /// All processes came to their end.
    ByItself,
    /// It was killed because a rank hung, as the scenario wants it.
    AsItHung,
    /// It was killed because a process had failed and the others did not end.
    AfterFailure,
    /// It was killed at the time limit, in ns.
    AtTimeLimit(u64),
    /// It was killed because this program got a signal.
    BySignal(i32),
}

/// A process that ended other than it should.
#[derive(Debug, Clone)]
pub struct Failed {
    /// Its number.
    pub process: u32,
    /// What became of it.
    pub how: String,
    /// Where it says why.
    pub log: PathBuf,
    /// The end of that.
    pub last_lines: String,
}

impl Report {
    /// Whether the job did what its scenario wants, with right results.
    pub fn is_right(&self) -> bool {
        let ended = matches!(self.ended, Ended::ByItself | Ended::AsItHung);
        ended && self.failed.is_empty() && self.wrong == 0
    }
}

/// How long the others may go on once a process has failed: time to find out for themselves.
const GRACE: Duration = Duration::from_secs(3);

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Lines of a log that are shown.
const SHOWN: usize = 15;

/// The file that says that a folder is one of ours.
const SCENARIO: &str = "scenario.toml";

/// Runs a job to its end, whichever it is.
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
    /// The command of one process.
    fn command(&self, number: u32, reference: u64, folder: &Folder, release: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("rank");
        command.args(["--number", &number.to_string(), "--seed", &self.scenario.seed.to_string()]);
        command.args(["--reference", &reference.to_string()]);
        command.args(["--wall", &HostClocks::wall_at(reference).to_string()]);
        command.arg("--scenario").arg(folder.path.join(SCENARIO));
        command.arg("--nccl").arg(&self.nccl);
        command.arg("--meeting").arg(&folder.meeting);
        command.arg("--truth").arg(folder.file("truth", number, "jsonl"));
        command.arg("--tally").arg(folder.meeting.join(format!("tally-{number}")));
        if self.trace {
            command.arg("--trace");
        }
        // What the user's shell has for NCCL is meant for real jobs.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("NCCL_")) {
            command.env_remove(name);
        }
        for name in RANK_VARIABLES {
            command.env_remove(name);
        }
        command.envs(self.environment(number, folder, release));
        command
    }

    /// The environment of one process.
    fn environment(&self, number: u32, folder: &Folder, release: Option<&str>) -> BTreeMap<OsString, OsString> {
        let scenario = &self.scenario;
        let mut environment: BTreeMap<OsString, OsString> = BTreeMap::new();
        let mut set = |name: &str, value: OsString| drop(environment.insert(name.into(), value));
        let host = scenario.host_of(number);
        // The processes of a host know each other by this, and hosts of different jobs never meet.
        set("NCCL_HOSTID", format!("emulated-host-{host}").into());
        set("EMULATED_GPUS", scenario.ranks_per_host.to_string().into());
        for (name, value) in BASIC {
            set(name, value.into());
        }
        if scenario.machine.peer_access {
            set("NCCL_P2P_DISABLE", "0".into());
            set("NCCL_P2P_LEVEL", "SYS".into());
        }
        if scenario.machine.virtual_memory {
            set("NCCL_CUMEM_ENABLE", "1".into());
        }
        if scenario.network.kind == NetworkKind::Plugin {
            set("NCCL_NET_PLUGIN", "STATIC_PLUGIN".into());
            set("NCCL_NET", "emulated".into());
        }
        set("NCCL_DEBUG_FILE", folder.file("nccl", number, "log").into());
        if scenario.layout == Layout::Processes {
            for (name, value) in [
                ("RANK", number),
                ("WORLD_SIZE", scenario.ranks()),
                ("LOCAL_RANK", scenario.device_of(number)),
                ("LOCAL_WORLD_SIZE", scenario.ranks_per_host),
            ] {
                set(name, value.to_string().into());
            }
        }
        let mut libraries: Vec<PathBuf> = self.cupti.iter().cloned().collect();
        if self.cupti.is_some() {
            set(job::DRIVER, "1".into());
        }
        match &self.plugin {
            // What `ncclscope run` has set is meant for this job.
            None => set("NCCL_PROFILER_PLUGIN", std::env::var_os("NCCL_PROFILER_PLUGIN").unwrap_or("none".into())),
            Some(plugin) => {
                let (value, folder) = plugin_variable(plugin, release);
                set("NCCL_PROFILER_PLUGIN", value);
                libraries.extend(folder);
                if std::env::var_os("NCCLSCOPE_OUTPUT").is_none() {
                    set("NCCLSCOPE_OUTPUT", folder_of_traces(&self.output).into());
                }
            }
        }
        if !libraries.is_empty() {
            let outer = std::env::var_os("LD_LIBRARY_PATH").filter(|paths| !paths.is_empty());
            let outer = outer.iter().flat_map(std::env::split_paths);
            if let Ok(paths) = std::env::join_paths(libraries.into_iter().chain(outer)) {
                set("LD_LIBRARY_PATH", paths);
            }
        }
        for (name, value) in &scenario.nccl {
            set(name, value.into());
        }
        for (name, value) in &self.set {
            set(name, value.into());
        }
        environment
    }

    /// Some scenarios are beyond older releases.
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

    /// A clock cannot show a time before its beginning.
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

/// Where the profiler's traces go when nobody says where.
pub fn folder_of_traces(output: &Path) -> PathBuf {
    output.join("trace")
}

/// What makes NCCL run here, unless the scenario says otherwise. It has all that a program may set on its way.
pub const BASIC: [(&str, &str); 18] = [
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_NET", "Socket"),
    ("NCCL_NET_PLUGIN", "none"),
    ("NCCL_IB_DISABLE", "1"),
    // Kernels that are played go over shared memory and the network, in rings and trees, with Simple and LL.
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "0"),
    ("NCCL_CUMEM_ENABLE", "0"),
    ("NCCL_CUMEM_HOST_ENABLE", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_COLLNET_ENABLE", "0"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_ALGO", "Ring,Tree"),
    ("NCCL_PROTO", "^LL128"),
    ("NCCL_MAX_NCHANNELS", "2"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_DEBUG", "WARN"),
    // Not the user's files of settings.
    ("NCCL_CONF_FILE", "/dev/null"),
    ("NCCL_IGNORE_CPU_AFFINITY", "1"),
];

/// Variables by which programs learn their rank; those of the shell are of another job.
const RANK_VARIABLES: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
];

/// What `NCCL_PROFILER_PLUGIN` must be for a plugin, and the folder that must be on the library path for it.
fn plugin_variable(plugin: &Path, release: Option<&str>) -> (OsString, Option<PathBuf>) {
    // 2.27.3 takes no paths: it looks for a name that begins with `lib` on the library path.
    if release.is_some_and(|release| release.split('+').next() == Some("2.27.3"))
        && let (Some(name), Some(folder)) = (plugin.file_name(), plugin.parent())
    {
        return (name.into(), Some(folder.into()));
    }
    (plugin.into(), None)
}

/// Starts a process whose output goes to a file, and which does not outlive this one.
fn spawn(command: &mut Command, log: &Path) -> io::Result<Child> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: plain system calls with numbers.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before it could be watched.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes only system calls and allocates nothing.
    unsafe { command.pre_exec(bind) };
    command.spawn()
}

/// A process of the job.
struct Process {
    number: u32,
    child: Child,
    status: Option<ExitStatus>,
    log: PathBuf,
}

/// All of them. When dropped, none is left.
struct Processes {
    all: Vec<Process>,
    began: SystemTime,
}

impl Processes {
    /// Waits until all have ended, or makes an end of it.
    fn watch(&mut self, launch: &Launch, folder: &Folder, signals: &Signals) -> Ended {
        let limit = launch.time_limit.unwrap_or(Duration::from_nanos(launch.scenario.time_limit_ns));
        let began = Instant::now();
        let mut failed = None;
        let mut hung = None;
        let ended = loop {
            for process in &mut self.all {
                if process.status.is_none() {
                    process.status = process.child.try_wait().ok().flatten();
                }
            }
            if self.all.iter().all(|process| process.status.is_some()) {
                break Ended::ByItself;
            }
            let now = Instant::now();
            if failed.is_none() && self.all.iter().any(|process| process.status.is_some_and(|it| !it.success())) {
                failed = Some(now);
            }
            if hung.is_none() && folder.someone_hangs() {
                hung = Some(now);
            }
            if let Some(signal) = signals.arrived() {
                break Ended::BySignal(signal);
            }
            if failed.is_some_and(|since| now - since >= GRACE) {
                break Ended::AfterFailure;
            }
            let patience = Duration::from_nanos(launch.scenario.hang_after_ns);
            if failed.is_none() && hung.is_some_and(|since| now - since >= patience) {
                break Ended::AsItHung;
            }
            if now - began >= limit {
                break Ended::AtTimeLimit(limit.as_nanos() as u64);
            }
            thread::sleep(LOOK);
        };
        self.kill();
        ended
    }

    fn kill(&mut self) {
        for process in self.all.iter_mut().filter(|process| process.status.is_none()) {
            // The whole group; the process has not been waited for, so its number is still its own.
            // SAFETY: it takes numbers.
            unsafe { libc::kill(-(process.child.id() as i32), libc::SIGKILL) };
        }
        for process in &mut self.all {
            if process.status.is_none() {
                process.status = process.child.wait().ok();
            }
        }
        remove_orphans(Path::new("/dev/shm"), self.began);
    }

    /// The processes that ended other than they should, by themselves or because they did not end.
    fn failed(&self, ended: Ended) -> Vec<Failed> {
        let killed = |status: ExitStatus| status.signal() == Some(libc::SIGKILL);
        let wrong = self.all.iter().filter(|process| match (process.status, ended) {
            (None, _) => true,
            (Some(status), Ended::AsItHung | Ended::BySignal(_) | Ended::AfterFailure) => {
                !status.success() && !killed(status)
            }
            (Some(status), Ended::ByItself | Ended::AtTimeLimit(_)) => !status.success(),
        });
        let describe = |process: &Process| Failed {
            process: process.number,
            how: process.status.map_or("could not be waited for".into(), describe),
            log: process.log.clone(),
            last_lines: last_lines(&process.log),
        };
        wrong.map(describe).collect()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What became of a process.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(1), _) => "failed".into(),
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(libc::SIGKILL)) => "did not end and was killed".into(),
        (None, Some(libc::SIGSEGV)) => "crashed: SIGSEGV".into(),
        (None, Some(libc::SIGABRT)) => "crashed: SIGABRT".into(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The lines of a log that say most: those from a panic on, or else the last.
fn last_lines(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    let first = panic.unwrap_or(lines.len().saturating_sub(SHOWN));
    lines[first..].iter().take(SHOWN).copied().collect::<Vec<_>>().join("\n")
}

/// The folder of a job, while it runs.
struct Folder {
    path: PathBuf,
    /// Where its processes meet; gone afterwards.
    meeting: PathBuf,
    /// Held as long as the job runs.
    _lock: File,
}

impl Folder {
    /// Makes the folder, or takes that of an earlier job and removes what that left.
    fn open(path: &Path) -> Result<Folder, Error> {
        let failed = |error: io::Error| Error::System(format!("failed to use the folder {}: {error}", path.display()));
        fs::create_dir_all(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        if !files.is_empty() && !path.join(SCENARIO).exists() {
            return Err(Error::Refused(format!(
                "{} is not empty and not the folder of an earlier job: nothing of yours shall be overwritten",
                path.display()
            )));
        }
        let lock = File::create(path.join("lock")).map_err(failed)?;
        // SAFETY: the file is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let advice = "another job is running there; --output names another folder";
            return Err(Error::Refused(format!("{}: {advice}", path.display())));
        }
        let traces = fs::read_dir(folder_of_traces(&path)).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in files.into_iter().chain(traces).filter(|file| is_left_by_a_job(file)) {
            if file.is_dir() { fs::remove_dir_all(&file) } else { fs::remove_file(&file) }.map_err(failed)?;
        }
        let meeting = path.join("meeting");
        fs::create_dir(&meeting).map_err(failed)?;
        Ok(Folder { path, meeting, _lock: lock })
    }

    fn file(&self, kind: &str, process: u32, extension: &str) -> PathBuf {
        self.path.join(format!("{kind}-{process}.{extension}"))
    }

    fn someone_hangs(&self) -> bool {
        let mut files = fs::read_dir(&self.meeting).into_iter().flatten().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with(HUNG))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.meeting);
        let _ = fs::remove_file(self.path.join("lock"));
    }
}

/// Whether an earlier job made this file.
fn is_left_by_a_job(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let numbered = |kind: &str, extension: &str| {
        let number = name.strip_prefix(kind).and_then(|rest| rest.strip_suffix(extension));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    name == "meeting"
        || numbered("truth-", ".jsonl")
        || numbered("process-", ".log")
        || numbered("nccl-", ".log")
        || name.ends_with(".perfetto-trace")
}

/// Removes shared memory that NCCL's processes left because they were killed: files of ours, made since the job began,
/// that no process has open or mapped any more. Those of other jobs are in use, or older.
fn remove_orphans(folder: &Path, since: SystemTime) {
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(metadata) = path.symlink_metadata() else { return false };
        // The file system's clock may be a tick behind.
        let since = since - Duration::from_millis(20);
        name.starts_with("nccl-")
            && metadata.is_file()
            && metadata.uid() == user
            && metadata.modified().is_ok_and(|made| made >= since)
    };
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut candidates: Vec<PathBuf> = files.filter(|path| ours(path)).collect();
    if candidates.is_empty() {
        return;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    for process in processes.filter(|path| path.join("maps").exists()) {
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let open: Vec<PathBuf> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        candidates.retain(|path| !maps.contains(&*path.to_string_lossy()) && !open.contains(path));
    }
    for path in candidates {
        let _ = fs::remove_file(path);
    }
}

/// The signals by which a user or a system ends this program: the job is ended and cleaned up first.
struct Signals;

static SIGNAL: AtomicI32 = AtomicI32::new(0);

impl Signals {
    fn watch() -> Signals {
        extern "C" fn note(signal: libc::c_int) {
            SIGNAL.store(signal, Ordering::SeqCst);
        }
        SIGNAL.store(0, Ordering::SeqCst);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler only stores a number.
            unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        }
        Signals
    }

    fn arrived(&self) -> Option<i32> {
        Some(SIGNAL.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(layout: &str, more: &str) -> Launch {
        let text = format!(
            "title = \"t\"\n[job]\nhosts = 2\nranks_per_host = 2\nranks = \"{layout}\"\n\
             program = \"environment NCCL_ALGO=Ring\"\n{more}"
        );
        let text = if layout == "threads" { text.replace("environment NCCL_ALGO=Ring", "") } else { text };
        Launch {
            program: "/bin/true".into(),
            scenario: Scenario::parse("t", &text, None).unwrap(),
            nccl: "/x/libnccl.so.2".into(),
            plugin: None,
            cupti: None,
            output: "/x/out".into(),
            set: Vec::new(),
            time_limit: None,
            trace: false,
        }
    }

    fn folder() -> (tempfile::TempDir, Folder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::open(&temporary.path().join("out")).unwrap();
        (temporary, folder)
    }

    #[test]
    fn the_scenario_wins_over_the_basics_and_the_user_over_all() {
        let (_temporary, folder) = folder();
        let mut launch = launch("processes", "[nccl]\nNCCL_PROTO = \"LL\"\nNCCL_NET = \"x\"");
        launch.set = vec![("NCCL_NET".into(), "y".into()), ("OTHER".into(), "z".into())];
        launch.plugin = Some("/p/libncclscope.so".into());
        launch.cupti = Some("/c".into());
        let environment = launch.environment(3, &folder, Some("2.27.3+cuda12.9"));
        let get = |name: &str| environment.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned());
        assert_eq!(get("NCCL_PROTO").as_deref(), Some("LL"));
        assert_eq!(get("NCCL_NET").as_deref(), Some("y"));
        assert_eq!(get("OTHER").as_deref(), Some("z"));
        assert_eq!(get("NCCL_P2P_DISABLE").as_deref(), Some("1"));
        assert_eq!(get("NCCL_HOSTID").as_deref(), Some("emulated-host-1"));
        let variables = crate::scenario::program::VARIABLES;
        assert!(variables.iter().all(|name| get(name).is_some()), "what a program may set is there from the start");
        assert_eq!((get("RANK").as_deref(), get("LOCAL_RANK").as_deref()), (Some("3"), Some("1")));
        assert_eq!(get("NCCL_PROFILER_PLUGIN").as_deref(), Some("libncclscope.so"));
        assert!(get("LD_LIBRARY_PATH").unwrap().starts_with("/c:/p"));
        let environment = launch.environment(3, &folder, Some("2.30.7+cuda13.3"));
        assert_eq!(environment[&OsString::from("NCCL_PROFILER_PLUGIN")], "/p/libncclscope.so");
    }

    #[test]
    fn threads_are_not_told_a_rank() {
        let (_temporary, folder) = folder();
        let environment = launch("threads", "").environment(1, &folder, None);
        assert!(!environment.contains_key(&OsString::from("RANK")));
        assert_eq!(environment[&OsString::from("NCCL_HOSTID")], "emulated-host-1");
        assert_eq!(environment[&OsString::from("NCCL_PROFILER_PLUGIN")], "none");
    }

    #[test]
    fn a_folder_is_used_again_but_only_one_of_ours() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("out");
        let folder = Folder::open(&path).unwrap();
        let message = Folder::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("is not empty"), "{message}");
        fs::write(path.join(SCENARIO), "").unwrap();
        let message = Folder::open(&path).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("another job is running there"), "{message}");
        drop(folder);

        fs::create_dir(path.join("trace")).unwrap();
        for file in ["truth-7.jsonl", "process-0.log", "trace/a.perfetto-trace", "trace/notes", "truth-mine.jsonl"] {
            fs::write(path.join(file), "").unwrap();
        }
        drop(Folder::open(&path).unwrap());
        let left = |file: &str| path.join(file).exists();
        assert!(!left("truth-7.jsonl") && !left("process-0.log") && !left("trace/a.perfetto-trace"));
        assert!(left("trace/notes") && left("truth-mine.jsonl") && !left("meeting") && !left("lock"));
    }

    #[test]
    fn clocks_begin_at_the_boot() {
        let late = launch("processes", "[[host]]\nindex = 1\nboot = { offset = \"-100 s\" }");
        assert!(late.clocks_are_possible(200_000_000_000).is_ok());
        let message = late.clocks_are_possible(50_000_000_000).unwrap_err().to_string();
        assert_eq!(message, "host 1's boot clock would be before its boot: this machine was booted only 50 s ago");
    }

    #[test]
    fn an_old_release_is_refused_by_what_it_cannot_run() {
        let launch = launch("processes", "[network]\nkind = \"plugin\"");
        assert!(launch.release_is_new_enough(Some("2.26.5+cuda12.9")).is_ok());
        assert!(launch.release_is_new_enough(None).is_ok());
        let message = launch.release_is_new_enough(Some("2.24.3+cuda12.2")).unwrap_err().to_string();
        assert_eq!(message, "t needs NCCL 2.26 or later, and this is 2.24.3+cuda12.2");
    }

    #[test]
    fn shared_memory_goes_when_nobody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let before = SystemTime::now();
        for name in ["nccl-orphan", "nccl-used", "other"] {
            fs::write(path(name), "x").unwrap();
        }
        let used = File::open(path("nccl-used")).unwrap();
        remove_orphans(folder.path(), before);
        let left = |name: &str| path(name).exists();
        assert_eq!((left("nccl-orphan"), left("nccl-used"), left("other")), (false, true, true));
        drop(used);
        remove_orphans(folder.path(), SystemTime::now() + Duration::from_secs(10));
        assert!(left("nccl-used"), "older than the job");
        remove_orphans(folder.path(), before);
        assert!(!left("nccl-used"));
    }

    #[test]
    fn a_process_is_described_by_its_end() {
        let temporary = tempfile::tempdir().unwrap();
        let log = temporary.path().join("log");
        let end = |script: &str| {
            let mut child = spawn(Command::new("/bin/sh").args(["-c", script]), &log).unwrap();
            (describe(child.wait().unwrap()), last_lines(&log))
        };
        assert_eq!(end("echo out; echo error >&2; exit 1"), ("failed".into(), "out\nerror".into()));
        assert_eq!(
            end("seq 100; kill -SEGV $$"),
            ("crashed: SIGSEGV".into(), (86..=100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n"))
        );
        assert_eq!(end("exit 86").0, "ended with status 86");
    }
}
