//! Overrides `recv`, `accept` and `sched_yield` for the whole process, libnccl included: a
//! program's own symbols take precedence over libc's.
//!
//! While NCCL's ranks find each other, and while its network waits, each polls its sockets without
//! a pause; and a proxy that waits for its GPU or its peer only yields. On a machine with fewer
//! processors than ranks that takes processor time from the ranks they wait for. So a thread whose
//! polls all fail yields to others in between, and one that long does nothing but yield sleeps.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// After this many failed polls in a row, a thread yields.
const EAGER: u32 = 16;

/// After this many, it sleeps.
const AWAKE: u32 = 1_000;

const NAP: Duration = Duration::from_micros(20);

/// A thread that takes no longer than this between two yields had nothing to do.
const IDLE: Duration = Duration::from_micros(50);

thread_local! {
    /// The number of failed polls in a row.
    static IN_VAIN: Cell<u32> = const { Cell::new(0) };

    /// The number of yields in a row with nothing to do in between, and when the last one ended.
    static IDLE_YIELDS: Cell<(u32, Option<Instant>)> = const { Cell::new((0, None)) };
}

/// `sched_yield`.
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    let (before, last) = IDLE_YIELDS.get();
    let is_idle = last.is_some_and(|last| last.elapsed() <= IDLE);
    let yields = if is_idle { before.saturating_add(1) } else { 0 };
    if yields < AWAKE {
        // SAFETY: this system call has no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
    } else {
        thread::sleep(NAP);
    }
    IDLE_YIELDS.set((yields, Some(Instant::now())));
    0
}

/// `recv`.
///
/// # Safety
///
/// As libc's: `buffer` has `length` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(socket: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize {
    type Recv = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
    static REAL: OnceLock<Recv> = OnceLock::new();
    // SAFETY: libc's function has this type.
    let real = REAL.get_or_init(|| unsafe { std::mem::transmute::<*mut c_void, Recv>(next(c"recv")) });
    // SAFETY: the caller's promise is passed on.
    let received = unsafe { real(socket, buffer, length, flags) };
    pause(received >= 0);
    received
}

/// `accept`. Each call makes a socket, also in vain.
///
/// # Safety
///
/// As libc's: `address` and `length` are null, or have room for an address and for its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(socket: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
    type Accept = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;
    static REAL: OnceLock<Accept> = OnceLock::new();
    // SAFETY: libc's function has this type.
    let real = REAL.get_or_init(|| unsafe { std::mem::transmute::<*mut c_void, Accept>(next(c"accept")) });
    // SAFETY: the caller's promise is passed on.
    let accepted = unsafe { real(socket, address, length) };
    pause(accepted >= 0);
    accepted
}

/// Pauses after a poll that failed, the longer the more of them failed in a row.
fn pause(has_succeeded: bool) {
    if has_succeeded {
        IN_VAIN.set(0);
        return;
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        let in_vain = IN_VAIN.get().saturating_add(1);
        IN_VAIN.set(in_vain);
        match in_vain {
            ..EAGER => {}
            EAGER..AWAKE => thread::yield_now(),
            _ => thread::sleep(NAP),
        }
    }
    // The pause may have left another error number behind.
    // SAFETY: the address is that of the calling thread's error number.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or_default() };
}

/// libc's own function.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; RTLD_NEXT finds the definition after this program's, which is
    // libc's.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!address.is_null(), "libc has no {name:?}");
    address
}
