//! Starting threads in a process whose memory may be at its end.
//!
//! Not with the standard library: it keeps hooks for new threads in a thread-local with a
//! destructor, on the thread that starts one and on the new one. For each libc allocates a record
//! and, for those of a library that was loaded later, the thread-locals themselves; if it cannot,
//! it ends the process.

use std::ffi::{CStr, c_void};
use std::io;
use std::ptr;

/// Bytes of the stack of a thread that runs more than a few of our functions.
const STACK: usize = 2 << 20;
/// The same of a thread that only sends lines. The libraries' thread-local storage takes a part.
const SMALL_STACK: usize = 256 << 10;

/// What a thread runs.
type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// A thread that has not begun.
struct Start {
    name: &'static CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts a thread that nobody joins, with every signal blocked. It ends soon after the body does.
/// A panic in the body ends only the thread.
///
/// # Errors
///
/// The operating system's reason if it refuses a thread.
pub fn start(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let start = Box::into_raw(Box::new(Start { name, body: Box::new(body) }));
    start_raw(STACK, begin, start.cast()).inspect_err(|_| {
        // SAFETY: it is what was made above, and no thread has it.
        drop(unsafe { Box::from_raw(start) });
    })
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: from `start`, which hands it to this thread alone.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    set_name(name);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    ptr::null_mut()
}

/// [`start`] without memory from Rust's allocator: if there is no memory, only this call fails.
///
/// # Errors
///
/// The operating system's reason if it refuses a thread.
pub fn start_small(body: Body) -> io::Result<()> {
    start_raw(SMALL_STACK, body, ptr::null_mut())
}

fn start_raw(stack: usize, body: Body, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: the attributes are initialised before use and destroyed once; the body lives as long
    // as the process, and does with the argument what its caller agreed with it.
    let code = without_signals(|| unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let code = libc::pthread_attr_init(&raw mut attributes);
        if code != 0 {
            return code;
        }
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, stack);
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let code = libc::pthread_create(&raw mut thread, &raw const attributes, body, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        code
    });
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Runs `spawn` with every signal blocked, so that a thread it starts never runs the host's signal
/// handlers.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are plain memory that the calls fill before they are read; the old mask is
    // put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        let changed = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) == 0;
        let result = spawn();
        if changed {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        }
        result
    }
}

/// Gives the calling thread a name, of which Linux keeps 15 bytes.
pub fn set_name(name: &CStr) {
    // SAFETY: a C string, of which the kernel copies what it keeps.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// A number that no other running thread of this process has, and that is never 0. Needs no system
/// call.
#[must_use]
pub fn own_number() -> usize {
    // SAFETY: it has no conditions.
    unsafe { libc::pthread_self() as usize }
}
