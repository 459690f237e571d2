//! Our own threads, and what passes between them. Neither uses what libc allocates once for each
//! thread: libc ends the process if it has no memory for that.

use std::ffi::CStr;
use std::io;

use crate::{memory, sys};

pub(crate) mod queue;

/// Runs `body` on a thread of ours. If there is no memory at all, it stops there forever.
///
/// # Errors
///
/// The operating system's reason if it refuses a thread.
pub(crate) fn start(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    sys::thread::start(name, || memory::on_our_thread(body))
}
