//! Internal errors: the place of the last one, and errors that tests plant ([`planted`]).
//!
//! No panic leaves the library, and none of its threads. The standard hook would print several
//! lines on the thread that panics, which may be NCCL's, and wait for whoever reads stderr. Ours
//! notes the place, and one of our threads says it.
//!
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError, TryLockError};

use crate::message;
use crate::record::recorder;

pub(crate) mod planted;

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

/// Reports once that there were panics in callbacks, which print nothing themselves, and once that
/// there were some while lines were sent.
pub(crate) fn confess() {
    static HAS_CONFESSED: AtomicBool = AtomicBool::new(false);
    static HAS_CONFESSED_LINES: AtomicBool = AtomicBool::new(false);
    let of_lines = message::take_panics();
    for _ in 0..of_lines {
        recorder::count_panic();
    }
    SAID.fetch_add(of_lines, Ordering::Relaxed);
    if of_lines > 0 && !HAS_CONFESSED_LINES.swap(true, Ordering::Relaxed) {
        let text = "was caught while a line was sent, which is lost";
        message::formatted(format_args!("an internal error at {Last} {text}: please report it"));
    }
    if recorder::panics() > SAID.load(Ordering::Relaxed) && !HAS_CONFESSED.swap(true, Ordering::Relaxed) {
        let text = "was caught in a call, which may not be recorded";
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
            planted::plant();
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

pub(crate) use planted::at;
