//! Standard error, which belongs to the program, and what we may do with it.

use std::ffi::c_int;
use std::io;
use std::ptr;

use super::descriptor::{Identity, duplicate};
use super::thread::without_signals;

/// The file that descriptor 2 referred to when this was made. A program may close it and open a
/// file of its own, which then has that number: we must not write to it.
#[derive(Clone, Copy, Debug)]
pub struct Stderr(Identity);

impl Stderr {
    /// The file that descriptor 2 refers to now; `None` if it is closed.
    #[must_use]
    pub fn now() -> Option<Stderr> {
        Identity::of_number(libc::STDERR_FILENO).map(Stderr)
    }

    /// Writes a line of at most `PIPE_BUF` bytes, waits for room at most this long, and returns
    /// whether the line was taken. It raises no signal.
    ///
    /// The program's flags of descriptor 2 stay unchanged, because everybody who has the file
    /// shares them. So a pipe or terminal is asked for room, which may be gone a moment later: then
    /// the write blocks until somebody reads. For this reason a separate thread sends the lines.
    #[must_use]
    pub fn write(&self, line: &[u8], limit_ms: c_int) -> bool {
        // Our own number for what is behind 2 now: the file checked here is the file written to,
        // whatever the program does meanwhile.
        let Ok(number) = duplicate(libc::STDERR_FILENO) else { return false };
        let behind = Identity::of_number(number);
        let written = behind == Some(self.0) && has_room(number, limit_ms) && {
            without_its_signals(|| send(number, line).is_ok())
        };
        // The program may have closed it, and opened a file of its own under its number.
        if behind.is_some() && Identity::of_number(number) == behind {
            // SAFETY: ours, made above.
            unsafe { libc::close(number) };
        }
        written
    }
}

/// Whether the descriptor can be written to within this time.
fn has_room(number: c_int, limit_ms: c_int) -> bool {
    let mut poll = libc::pollfd { fd: number, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, as stated.
    unsafe { libc::poll(&raw mut poll, 1, limit_ms) == 1 && poll.revents & (libc::POLLERR | libc::POLLNVAL) == 0 }
}

fn send(number: c_int, line: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `line`, in both.
    let sent = unsafe {
        match libc::send(number, line.as_ptr().cast(), line.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ENOTSOCK) => {
                libc::write(number, line.as_ptr().cast(), line.len())
            }
            sent => sent,
        }
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs `write` with signals blocked, and consumes those that it raised in this thread: that nobody
/// reads, or that a file is too large. By default either one ends the process.
fn without_its_signals<T>(write: impl FnOnce() -> T) -> T {
    without_signals(|| {
        // SAFETY: the sets are plain memory that the calls fill before they are read.
        unsafe {
            let mut ours: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut ours);
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&raw mut before);
            for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
                if libc::sigismember(&raw const before, signal) == 0 {
                    libc::sigaddset(&raw mut ours, signal);
                }
            }
            let result = write();
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            while libc::sigtimedwait(&raw const ours, ptr::null_mut(), &raw const at_once) > 0 {}
            result
        }
    })
}
