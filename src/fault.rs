//! Internal errors: the place of the last one, and errors that tests plant.
//!
//! No panic leaves the library, and none of its threads. The standard hook would print several
//! lines on the thread that panics, which may be NCCL's, and wait for whoever reads stderr. Ours
//! notes the place, and one of our threads says it.
//!
//! `PLANTED_FAULT=panic@startEvent` plants a panic at the place of that name, `panic@startEvent:10`
//! at every tenth visit of it. Instead of a `panic`, a thread can `end` there, stand still
//! (`stall`) or become `slow`. With `PLANTED_AFTER=FILE` nothing happens before there is such a
//! file. Builds without debug assertions have no such places.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError, TryLockError};

use crate::message;
use crate::record::recorder;

/// Most bytes of a place that are kept.
const PLACE: usize = 120;

/// The place of the last panic: its text and the text's length.
static LAST: Mutex<([u8; PLACE], usize)> = Mutex::new(([0; PLACE], 0));

/// The last panic's file and line, for a message.
struct Last;

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, length) = *LAST.lock().unwrap_or_else(PoisonError::into_inner);
        f.write_str(std::str::from_utf8(&text[..length]).unwrap_or("an unknown place"))
    }
}

/// How many panics a message has reported.
static SAID: AtomicU64 = AtomicU64::new(0);

/// Counts a panic that was caught where waiting does no harm, and says what it ended.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    recorder::count_panic();
    SAID.fetch_add(1, Ordering::Relaxed);
    message::formatted(format_args!("an internal error at {Last} {text}: please report it"));
}

/// Reports once that there were panics in callbacks, which print nothing themselves.
pub(crate) fn confess() {
    static HAS_CONFESSED: AtomicBool = AtomicBool::new(false);
    if recorder::panics() > SAID.load(Ordering::Relaxed) && !HAS_CONFESSED.swap(true, Ordering::Relaxed) {
        let text = "was caught in a call, which is not recorded";
        message::formatted(format_args!("an internal error at {Last} {text}: please report it"));
    }
}

/// Has panics noted instead of printed, from now on. Called before anything that may panic in the
/// process of a job: in a library, the hook is that of its own copy of Rust's runtime. Not in a
/// child, which may have been forked while another thread was in here.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    // The panics of our own tests are for their reader.
    if cfg!(not(test)) {
        ONCE.call_once(|| {
            note_panics();
            plant();
        });
    }
}

fn note_panics() {
    std::panic::set_hook(Box::new(|panic| {
        // Nobody waits for another panic's note.
        let mut last = match LAST.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut rest = &mut last.0[..];
        if let Some(place) = panic.location() {
            // A place that does not fit is cut.
            let _ = std::io::Write::write_fmt(&mut rest, format_args!("{}:{}", place.file(), place.line()));
        }
        last.1 = PLACE - rest.len();
    }));
}

#[cfg(debug_assertions)]
pub(crate) use planted::at;
#[cfg(debug_assertions)]
use planted::plant;

#[cfg(debug_assertions)]
mod planted {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    struct Fault {
        kind: String,
        place: String,
        every: u64,
        after: Option<PathBuf>,
        visits: AtomicU64,
    }

    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

    /// Reads which fault is planted, if any.
    pub(super) fn plant() {
        FAULT.get_or_init(|| {
            let text = std::env::var("PLANTED_FAULT").ok()?;
            let (kind, place) = text.split_once('@')?;
            let (place, every) = place.split_once(':').unwrap_or((place, "1"));
            let every = every.parse().ok()?;
            let after = std::env::var_os("PLANTED_AFTER").map(PathBuf::from);
            let (kind, place) = (kind.to_owned(), place.to_owned());
            Some(Fault { kind, place, every, after, visits: AtomicU64::new(0) })
        });
    }

    /// A place where a fault may be planted.
    pub(crate) fn at(place: &str) {
        let Some(Some(fault)) = FAULT.get() else { return };
        if fault.place != place || fault.after.as_ref().is_some_and(|file| !file.exists()) {
            return;
        }
        if !(fault.visits.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(fault.every) {
            return;
        }
        match &*fault.kind {
            "panic" => panic!("a planted fault"),
            // SAFETY: a thread of ours; what it had locked stays so, which is the fault.
            "end" => drop(unsafe { libc::syscall(libc::SYS_exit, 0) }),
            "slow" => std::thread::sleep(Duration::from_millis(300)),
            "stall" => loop {
                std::thread::park();
            },
            _ => {}
        }
    }
}

/// Nothing is planted in this build.
#[cfg(not(debug_assertions))]
fn plant() {}

/// Nothing is planted in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn at(_: &str) {}
