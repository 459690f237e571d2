//! The emulator's own threads. They receive no signals, so that the job's handlers run on the
//! job's threads.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Error;

/// The name of every thread of the emulator.
const NAME: &str = "emulated gpu";

/// The exit status of a process whose emulated GPU has failed: going on could only hang or show
/// something untrue.
const EXIT_CODE: i32 = 86;

/// Starts a thread. A panic in it ends the process.
pub(super) fn start(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    // A thread is born with its parent's mask, so no signal can slip in before it blocks them.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
            eprintln!("emulator: a thread of an emulated GPU has panicked; this process ends here");
            std::process::exit(EXIT_CODE);
        }
    });
    if let Some(before) = before {
        // SAFETY: the mask is one that the same function has filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    }
    thread.map(drop).map_err(|_| Error::MemoryAllocation)
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs a job on a thread that is kept for the next job. A thread is always available, because
/// jobs wait for each other.
pub(super) fn run_aside(job: Job) -> Result<(), Error> {
    static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());
    let idle = lock(&IDLE).pop();
    let job = match idle {
        Some(worker) => match worker.send(job) {
            Ok(()) => return Ok(()),
            Err(error) => error.0,
        },
        None => job,
    };
    start(move || {
        let (sender, receiver) = channel::<Job>();
        let mut job = job;
        loop {
            job();
            lock(&IDLE).push(sender.clone());
            match receiver.recv() {
                Ok(next) => job = next,
                Err(_) => return,
            }
        }
    })
}

/// The calling thread's id, as the kernel knows it.
pub(crate) fn id() -> u32 {
    thread_local! {
        static ID: Cell<u32> = const { Cell::new(0) };
    }
    ID.with(|id| {
        if id.get() == 0 {
            // SAFETY: it takes nothing and cannot fail.
            id.set(unsafe { libc::gettid() } as u32);
        }
        id.get()
    })
}

/// Locks a mutex. A panic elsewhere ends the process anyway, so poisoning means nothing here.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_signals() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are writable; sigfillset fills the first, and sigmask fills the second
    // when it returns 0.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let failed = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        (failed == 0).then(|| before.assume_init())
    }
}
