//! Forwards signals to the job.
//!
//! The job is in our process group. What is sent to the whole group (by a terminal's Ctrl-C, by a
//! launcher, by `timeout`) reaches the job directly, and must not reach it twice. What is sent to
//! us alone, as `kill` and `docker stop` do, is passed on. A sentinel, a process of ours in the
//! same group that does nothing else, tells the two apart: it receives the first and not the
//! second.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::iterator::{Signals, SignalsInfo};
use signal_hook::low_level;
use signal_hook::low_level::siginfo::Cause;

use crate::cli::reason::Reason;
use crate::sys::job;

/// Signals that would end us and may be meant for the job.
const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM];

/// How long the sentinel may take to report a signal, and how far apart in time one sender's
/// signals to us and to the group may be.
const PATIENCE: Duration = Duration::from_millis(300);

/// The hidden command that runs the sentinel.
pub(in crate::cli) const SENTINEL: &str = "sentinel";

/// The job, as far as signals are concerned.
enum Job {
    NotBegun,
    Runs(u32),
    /// Its pid may be another process's now.
    EndedAt(Instant),
}

/// Passes signals on as long as the job exists. After its end they act as usual.
pub(super) struct PassingOn {
    job: Arc<Mutex<Job>>,
    sentinel: Option<Child>,
}

impl PassingOn {
    /// From now on, no signal that may be meant for the job ends this process. Ignored signals stay
    /// ignored, here and in the job.
    pub(super) fn take() -> PassingOn {
        let job = Arc::new(Mutex::new(Job::NotBegun));
        let mut sentinel = sentinel();
        let heard = sentinel.as_mut().and_then(|sentinel| sentinel.stdout.take()).map(reports);
        let wanted = PASSED_ON.into_iter().filter(|signal| !job::is_ignored(*signal));
        if let Ok(mut signals) = SignalsInfo::<WithOrigin>::new(wanted) {
            let job = Arc::clone(&job);
            let body = move || {
                let mut group = Group { reports: heard, latest: Vec::new() };
                for origin in &mut signals {
                    // The kernel's own signals come from the terminal, to the whole group.
                    let is_ours = origin.cause != Cause::Kernel && !group.got(origin.signal, Instant::now());
                    match *job.lock().unwrap_or_else(PoisonError::into_inner) {
                        Job::Runs(pid) if is_ours => job::signal(pid, origin.signal),
                        // The signal that ended the job may only now be taken.
                        Job::EndedAt(end) if end.elapsed() > PATIENCE => {
                            let _ = low_level::emulate_default_handler(origin.signal);
                        }
                        _ => {}
                    }
                }
            };
            let _ = thread::Builder::new().name("signals".into()).spawn(body);
        }
        PassingOn { job, sentinel }
    }

    /// Sets the job's process; `None` once it has ended.
    pub(super) fn lead_to(&self, pid: Option<u32>) {
        let job = pid.map_or_else(|| Job::EndedAt(Instant::now()), Job::Runs);
        *self.job.lock().unwrap_or_else(PoisonError::into_inner) = job;
    }
}

impl Drop for PassingOn {
    fn drop(&mut self) {
        if let Some(sentinel) = &mut self.sentinel {
            let _ = sentinel.kill();
            let _ = sentinel.wait();
        }
    }
}

/// What the sentinel reports.
struct Group {
    reports: Option<Receiver<i32>>,
    latest: Vec<(i32, Instant)>,
}

impl Group {
    /// Whether a signal that came at this time was sent to the whole group.
    fn got(&mut self, signal: i32, came: Instant) -> bool {
        self.latest.retain(|(_, at)| came.saturating_duration_since(*at) < PATIENCE);
        loop {
            if self.latest.iter().any(|(known, _)| *known == signal) {
                return true;
            }
            let left = PATIENCE.saturating_sub(came.elapsed());
            match self.reports.as_ref().map(|reports| reports.recv_timeout(left)) {
                Some(Ok(report)) => self.latest.push((report, Instant::now())),
                None | Some(Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) => return false,
            }
        }
    }
}

fn sentinel() -> Option<Child> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.arg(SENTINEL).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sentinel = command.spawn().ok()?;
    // The sentinel has written something, so it is ready.
    let mut ready = [0; 1];
    sentinel.stdout.as_mut()?.read_exact(&mut ready).ok()?;
    Some(sentinel)
}

fn reports(from: impl std::io::Read + Send + 'static) -> Receiver<i32> {
    let (sender, receiver) = channel();
    let body = move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Ok(signal) = line.trim().parse() {
                let _ = sender.send(signal);
            }
        }
    };
    let _ = thread::Builder::new().name("sentinel".into()).spawn(body);
    receiver
}

/// The sentinel: it reports each signal that it gets, until nobody listens.
pub(in crate::cli) fn sentinel_main() -> Result<(), Reason> {
    let mut signals = Signals::new(PASSED_ON).map_err(Reason::failed("take signals"))?;
    let handle = signals.handle();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.close();
    });
    let mut out = std::io::stdout();
    let mut say = |text: &str| out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok();
    if !say("\n") {
        return Ok(());
    }
    for signal in &mut signals {
        if !say(&format!("{signal}\n")) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_to_the_group_are_not_passed_on() {
        let (sender, reports) = channel();
        let mut group = Group { reports: Some(reports), latest: Vec::new() };
        sender.send(SIGTERM).unwrap();
        assert!(group.got(SIGTERM, Instant::now()));
        // The same sender's signal to us alone, which timeout(1) sends, too.
        assert!(group.got(SIGTERM, Instant::now()));
        assert!(!group.got(SIGUSR1, Instant::now()));
        let long_after = Instant::now() + 2 * PATIENCE;
        drop(sender);
        assert!(!group.got(SIGTERM, long_after));
    }
}
