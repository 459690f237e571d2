//! The threads that blocks run on.
//!
//! Blocks wait for each other, across kernels and across ranks of this process. So a task never
//! waits for a thread: when none is idle, a new one is started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The idle threads.
#[derive(Default)]
pub(super) struct Workers {
    idle: Arc<Mutex<Vec<Arc<Worker>>>>,
}

/// A thread, waiting for something to do.
struct Worker {
    errand: Mutex<Option<Errand>>,
    called: Condvar,
}

/// A task for a worker; the thread that gave it waits until it is done.
struct Errand {
    /// Runs the task of this index.
    run: unsafe fn(*const (), usize),
    /// The argument of `run`; lives until `done` has counted this task.
    task: *const (),
    index: usize,
    done: Arc<Done>,
}

// SAFETY: `task` points to something `Sync`, which `Workers::each` demands, and that outlives the
// errand.
unsafe impl Send for Errand {}

/// How many tasks are left.
struct Done {
    left: Mutex<usize>,
    none: Condvar,
}

impl Workers {
    /// Runs a task for each index below `count`, all at the same time, and returns what they
    /// return, in order. The first runs on the calling thread.
    pub(super) fn each<T: Send>(&self, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
        let store = |index: usize| {
            let result = task(index);
            *locked(&results[index]) = Some(result);
        };
        self.all(count, &store);
        results
            .into_iter()
            .map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner).expect("every task has run"))
            .collect()
    }

    fn all<F: Fn(usize) + Sync>(&self, count: usize, task: &F) {
        /// # Safety
        ///
        /// `task` points to an `F`.
        unsafe fn run<F: Fn(usize)>(task: *const (), index: usize) {
            // SAFETY: the caller's promise.
            let task = unsafe { &*task.cast::<F>() };
            or_abort(|| task(index));
        }
        if count == 0 {
            return;
        }
        let done = Arc::new(Done { left: Mutex::new(count - 1), none: Condvar::new() });
        for index in 1..count {
            self.start(Errand { run: run::<F>, task: std::ptr::from_ref(task).cast(), index, done: Arc::clone(&done) });
        }
        // A panic ends the process, here as on the other threads, so this function returns only
        // after all tasks are done.
        or_abort(|| task(0));
        let mut left = locked(&done.left);
        while *left > 0 {
            left = done.none.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives an errand to an idle thread or to a new one.
    fn start(&self, errand: Errand) {
        if let Some(worker) = locked(&self.idle).pop() {
            *locked(&worker.errand) = Some(errand);
            worker.called.notify_one();
            return;
        }
        let worker = Arc::new(Worker { errand: Mutex::new(Some(errand)), called: Condvar::new() });
        let idle = Arc::clone(&self.idle);
        quiet_thread(move || {
            loop {
                let mut errand = locked(&worker.errand);
                let Errand { run, task, index, done } = loop {
                    match errand.take() {
                        Some(errand) => break errand,
                        None => errand = worker.called.wait(errand).unwrap_or_else(PoisonError::into_inner),
                    }
                };
                drop(errand);
                // SAFETY: the thread that gave the errand waits for it, so the task lives long
                // enough; `run` matches its type.
                unsafe { run(task, index) };
                // Mark the worker as idle first, so that the thread that waits for this task finds
                // it again.
                locked(&idle).push(Arc::clone(&worker));
                let mut left = locked(&done.left);
                *left -= 1;
                if *left == 0 {
                    done.none.notify_one();
                }
            }
        });
    }
}

/// Starts a thread of the emulated hardware, which blocks signals: they are for the application's
/// threads.
fn quiet_thread(body: impl FnOnce() + Send + 'static) {
    /// A block needs little stack, and there may be hundreds of blocks.
    const STACK_BYTES: usize = 256 << 10;

    // SAFETY: both sets are this function's own; a thread inherits the mask of the one that starts
    // it.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = std::thread::Builder::new().name("emulated gpu".into()).stack_size(STACK_BYTES).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if let Err(error) = started {
            eprintln!("emulator: failed to start a thread for a block: {error}; does a limit (ulimit -u) forbid more?");
            std::process::abort();
        }
    }
}

/// A block that panics would leave others waiting forever, so the process ends with it.
fn or_abort(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        eprintln!("emulator: a block of a kernel panicked, as said above: this is an error of the emulator");
        std::process::abort();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn tasks_run_at_the_same_time() {
        let workers = Workers::default();
        let all_there = Barrier::new(20);
        let results = workers.each(20, |index| {
            all_there.wait();
            index * index
        });
        assert_eq!(results, (0..20).map(|index| index * index).collect::<Vec<_>>());
    }

    #[test]
    fn tasks_may_have_tasks_that_wait_for_each_other() {
        let workers = Workers::default();
        let all_there = Barrier::new(12);
        let count = AtomicUsize::new(0);
        workers.each(4, |_| {
            workers.each(3, |_| {
                all_there.wait();
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 12);
    }

    #[test]
    fn threads_are_reused() {
        let workers = Workers::default();
        for _ in 0..50 {
            workers.each(5, |index| index);
        }
        // A thread becomes idle before its task counts as done.
        assert_eq!(locked(&workers.idle).len(), 4);
    }

    #[test]
    fn zero_tasks_return_at_once() {
        assert!(Workers::default().each(0, |index| index).is_empty());
    }

    #[test]
    fn signals_are_blocked() {
        let workers = Workers::default();
        let blocked = workers.each(2, |_| {
            // SAFETY: the set is our own; a null set asks for the mask.
            unsafe {
                let mut mask = std::mem::zeroed::<libc::sigset_t>();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
                libc::sigismember(&raw const mask, libc::SIGTERM) == 1
            }
        });
        assert!(blocked[1], "the second task runs on a thread of the emulator");
    }
}
