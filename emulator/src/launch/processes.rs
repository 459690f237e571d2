//! The processes of a job: started, watched, ended.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::folder::Folder;
use super::{Ended, Failed, Launch};

/// How long the others may go on once a process has failed, so that they can notice it themselves.
const GRACE: Duration = Duration::from_secs(3);

/// How often the processes are polled.
const LOOK: Duration = Duration::from_millis(10);

/// Lines of a log that are shown.
const SHOWN: usize = 15;

/// A process of the job.
pub(super) struct Process {
    pub(super) number: u32,
    pub(super) child: Child,
    pub(super) status: Option<ExitStatus>,
    pub(super) log: PathBuf,
}

/// All of them. Dropping this kills those that are left.
pub(super) struct Processes {
    pub(super) all: Vec<Process>,
    pub(super) began: SystemTime,
}

impl Processes {
    /// Waits until all have ended, or ends them.
    pub(super) fn watch(&mut self, launch: &Launch, folder: &Folder, signals: &Signals) -> Ended {
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
            // The whole group. The process has not been waited for, so its number is not reused.
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

    /// The processes that ended in an unexpected way, by themselves or because they did not end.
    pub(super) fn failed(&self, ended: Ended) -> Vec<Failed> {
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

/// How a process ended.
pub(super) fn describe(status: ExitStatus) -> String {
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

/// The most useful lines of a log: those from a panic on, or else the last.
pub(super) fn last_lines(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let panic = lines.iter().position(|line| line.contains("panicked at"));
    let first = panic.unwrap_or(lines.len().saturating_sub(SHOWN));
    lines[first..].iter().take(SHOWN).copied().collect::<Vec<_>>().join("\n")
}

/// Starts a process whose output goes to a file, and which does not outlive this one.
pub(super) fn spawn(command: &mut Command, log: &Path) -> io::Result<Child> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: plain system calls with numbers.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before this was set.
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

/// Removes shared memory that NCCL's processes left because they were killed: files of ours, made
/// since the job began, that no process has open or mapped any more. Those of other jobs are in
/// use, or older.
pub(super) fn remove_orphans(folder: &Path, since: SystemTime) {
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

/// The signals by which a user or the system ends this program. The job is ended and cleaned up
/// first.
pub(super) struct Signals;

static SIGNAL: AtomicI32 = AtomicI32::new(0);

impl Signals {
    pub(super) fn watch() -> Signals {
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
