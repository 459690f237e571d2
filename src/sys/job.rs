//! System calls of `ncclscope run`: a job that ends with us, and an exit status like the job's.

use std::error::Error;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Starts a command that is killed when the calling thread ends, for any reason.
///
/// # Errors
///
/// Why it cannot be started.
pub fn spawn_bound(command: &mut Command) -> io::Result<Child> {
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: plain system calls with numbers.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before this took effect.
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

/// Sends a signal to a process, if it still exists.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Waits for the end of a child, and leaves it as a zombie that can be waited for again.
pub fn wait_for_end(pid: u32) {
    loop {
        // SAFETY: plain memory that the call fills.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if result == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Ends this process by the signal that ended its child, without a second core dump.
pub fn end_by_signal(signal: i32) -> ! {
    // SAFETY: calls with numbers, and a signal set that is filled before use. The replaced handler
    // is no longer needed.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
        // The first process of a container cannot be ended by a signal.
        libc::_exit(128 + signal)
    }
}

/// Why a library cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotLoadable {
    /// Its path has a zero byte.
    ZeroByte,
    /// The loader refuses it, with its message if there is one.
    Loader(Option<String>),
}

impl fmt::Display for NotLoadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotLoadable::ZeroByte => "its path contains a NUL byte",
            NotLoadable::Loader(Some(words)) => words,
            NotLoadable::Loader(None) => "the loader gives no reason",
        })
    }
}

impl Error for NotLoadable {}

/// Loads our own library, to check whether that works here.
///
/// # Errors
///
/// The loader's message.
pub fn try_load(library: &Path) -> Result<(), NotLoadable> {
    let name = CString::new(library.as_os_str().as_bytes()).map_err(|_| NotLoadable::ZeroByte)?;
    // SAFETY: a C string. The library runs no code of ours when it is loaded.
    if !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null() {
        return Ok(());
    }
    // SAFETY: after a failure dlerror returns a C string, which is copied before the next call.
    let error = unsafe { libc::dlerror() };
    // SAFETY: as above.
    let words = (!error.is_null()).then(|| unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned());
    Err(NotLoadable::Loader(words))
}

/// Whether a signal is ignored in this process.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// A folder that cannot be written to, and the operating system's error.
#[derive(Debug)]
pub struct NotWritable(PathBuf, io::Error);

impl fmt::Display for NotWritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.display(), self.1)
    }
}

impl Error for NotWritable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.1)
    }
}

/// Whether a folder can be written to, or can be made first, as far as the system tells without
/// trying.
///
/// # Errors
///
/// The operating system's error for the nearest existing folder.
pub fn may_write(folder: &Path) -> Result<(), NotWritable> {
    // A name with a placeholder stands for names that do not exist yet.
    let there = folder.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let refused = |error| Err(NotWritable(there.to_owned(), error));
    if !there.is_dir() {
        return refused(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let Ok(name) = CString::new(there.as_os_str().as_bytes()) else { return Ok(()) };
    // SAFETY: a C string.
    match unsafe { libc::access(name.as_ptr(), libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => refused(io::Error::last_os_error()),
    }
}
