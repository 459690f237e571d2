//! What we tell the person at the terminal: one line each on stderr, rarely.
//!
//! Never from a callback other than `init`. Not through NCCL's logger: it is silent by default, and
//! its WARN level overwrites the application's last error.
//!
//! Whoever says something never waits for who reads it: lines go to a queue, and a thread sends
//! them that is there only as long as there are any. Where nobody reads, they are dropped and
//! counted. The thread is a fourth one of ours: each of the others would be held up by a terminal
//! or a disk that hangs, and there are none yet when a recording fails to start. None of this takes
//! memory, so that it can be said that there is no more.
//!
//! The first word on a recording is whether there is one. What is said while it starts is [held back](hold) until then.

use std::ffi::c_void;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::config::Log;
use crate::sys;
use crate::sys::stderr::Stderr;

/// Most bytes of a line: as many as a pipe takes whole.
const LINE: usize = 4096;
/// Bytes of lines that wait.
const QUEUE: usize = 4 * LINE;
/// How long a line waits for room at its reader's. Once one has waited in vain, the next do not.
const PATIENCE_MS: i32 = 1000;
/// How long the exit of the process waits for the last lines.
const EXIT_WAIT: Duration = Duration::from_millis(200);

static STATE: Mutex<State> = Mutex::new(State {
    lines: [0; QUEUE],
    length: 0,
    is_held: false,
    is_sending: false,
    is_writing: false,
    is_heard: true,
    unheard: 0,
    unsaid: 0,
});
/// The thread has nothing more to send.
static IDLE: Condvar = Condvar::new();
/// Stderr as it was when we came; nothing where it was closed.
static STDERR: OnceLock<Option<Stderr>> = OnceLock::new();
/// The process that this is about. A forked child has no thread of ours, and maybe a lock that is
/// never released.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// How much is said.
static LOG: AtomicU8 = AtomicU8::new(Log::Normal as u8);

struct State {
    /// Lines, each with its end.
    lines: [u8; QUEUE],
    length: usize,
    /// They wait for the first word on the recording.
    is_held: bool,
    /// There is a thread that sends them.
    is_sending: bool,
    /// It is at a line that is no longer among them.
    is_writing: bool,
    /// The last one found its reader.
    is_heard: bool,
    /// Lines that found none.
    unheard: u64,
    /// Of these, those of which nobody was told.
    unsaid: u64,
}

/// Looks at what stderr is now: what has its number later on may be a file of the program's. Before
/// the first line, and before whatever says one at the exit of the process.
pub(crate) fn begin() {
    if STDERR.get().is_none() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        if STDERR.set(Stderr::now()).is_ok() {
            sys::on_exit(at_exit);
        }
    }
}

/// Says this much from here on.
pub(crate) fn set_log(log: Log) {
    LOG.store(log as u8, Ordering::Relaxed);
}

/// Says `ncclscope[host:pid]: text`: that something is not as it should be.
pub(crate) fn line(text: &str) {
    formatted(format_args!("{text}"));
}

/// Says how things are, where that is wanted.
pub(crate) fn remark(text: &str) {
    if LOG.load(Ordering::Relaxed) >= Log::Normal as u8 {
        line(text);
    }
}

/// Says what only who looks for a fault wants to know.
pub(crate) fn detail(text: fmt::Arguments<'_>) {
    if LOG.load(Ordering::Relaxed) >= Log::Debug as u8 {
        formatted(text);
    }
}

/// [`line()`], without an allocation.
pub(crate) fn formatted(text: fmt::Arguments<'_>) {
    begin();
    if is_forked() {
        let mut line = [0; 512];
        let length = write_line(&mut line, text);
        // Here there is nobody to send it.
        send(&line[..length], 0);
        return;
    }
    let mut state = lock();
    // The first word has room in any case.
    let room = if state.is_held { QUEUE - LINE } else { QUEUE };
    match state.add(room, text) {
        true => have_sent(state),
        false => state.lose(),
    }
}

/// Holds every line back from here on, until the first word on the recording.
pub(crate) fn hold() -> Held {
    begin();
    lock().is_held = true;
    Held(())
}

/// Lines are held back as long as there is this.
pub(crate) struct Held(());

impl Held {
    /// As [`Held::say_first`], where such a line is [wanted](remark).
    pub(crate) fn remark_first(self, text: &str) {
        if LOG.load(Ordering::Relaxed) >= Log::Normal as u8 {
            self.say_first(text);
        }
    }

    /// Says this, and then what was held back.
    pub(crate) fn say_first(self, text: &str) {
        if is_forked() {
            return;
        }
        let mut state = lock();
        let held = state.length;
        if state.add(QUEUE, format_args!("{text}")) {
            let end = state.length;
            state.lines[..end].rotate_left(held);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !is_forked() {
            let mut state = lock();
            state.is_held = false;
            have_sent(state);
        }
    }
}

/// Has a thread send what is in the queue, if there is something and it may leave.
fn have_sent(mut state: MutexGuard<'_, State>) {
    if state.length > 0 && !state.is_held && !state.is_sending {
        state.is_sending = true;
        if !sys::start_thread(send_all) {
            // Not without a word: that there are no threads may be the very reason.
            send_waiting(state, 0);
        }
    }
}

/// How many lines found no reader.
pub(crate) fn unheard() -> u64 {
    lock().unheard
}

/// Waits until everything is said, for a limited time. At the exit of the process.
pub(crate) fn flush() {
    if is_forked() {
        return;
    }
    let mut state = lock();
    // The recording has no first word any more.
    state.is_held = false;
    if state.length > 0 && !state.is_sending {
        state.is_sending = true;
        return send_waiting(state, 0);
    }
    let result = IDLE.wait_timeout_while(state, EXIT_WAIT, |state| state.is_sending && state.is_heard);
    let (mut state, _) = result.unwrap_or_else(PoisonError::into_inner);
    if state.is_writing {
        // Nobody reads. Once is enough.
        state.is_heard = false;
    } else if state.is_sending {
        // The thread had no time to begin.
        send_waiting(state, 0);
    }
}

extern "C" fn at_exit() {
    flush();
}

fn is_forked() -> bool {
    PROCESS.load(Ordering::Relaxed) != std::process::id()
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn send_all(_: *mut c_void) -> *mut c_void {
    sys::name_thread(c"ncclscope say");
    send_waiting(lock(), PATIENCE_MS);
    std::ptr::null_mut()
}

/// Sends what is in the queue.
fn send_waiting(mut state: MutexGuard<'_, State>, patience_ms: i32) {
    let mut line = [0; LINE];
    loop {
        let waiting = if state.is_held { &[] } else { &state.lines[..state.length] };
        let Some(end) = waiting.iter().position(|byte| *byte == b'\n') else { break };
        let length = end + 1;
        line[..length].copy_from_slice(&waiting[..length]);
        let rest = state.length;
        state.lines.copy_within(length..rest, 0);
        state.length -= length;
        let limit = if state.is_heard { patience_ms } else { 0 };
        state.is_writing = true;
        drop(state);
        let is_heard = send(&line[..length], limit);
        state = lock();
        state.is_writing = false;
        state.is_heard = is_heard;
        match is_heard {
            true => state.tell_of_the_unheard(),
            false => state.lose(),
        }
    }
    state.is_sending = false;
    drop(state);
    IDLE.notify_all();
}

fn send(line: &[u8], limit_ms: i32) -> bool {
    STDERR.get().copied().flatten().is_some_and(|stderr| stderr.write(line, limit_ms))
}

impl State {
    /// Adds a line, if there is room below `end`.
    fn add(&mut self, end: usize, text: fmt::Arguments<'_>) -> bool {
        let begin = self.length;
        let has_room = begin + LINE <= end;
        if has_room {
            self.length += write_line(&mut self.lines[begin..begin + LINE], text);
        }
        has_room
    }

    fn lose(&mut self) {
        self.unheard += 1;
        self.unsaid += 1;
    }

    /// Has the next line say how many before it were lost.
    fn tell_of_the_unheard(&mut self) {
        let (begin, unsaid) = (self.length, std::mem::take(&mut self.unsaid));
        if unsaid > 0 {
            let text = format_args!("{unsaid} messages before this one found no reader");
            self.length += write_line(&mut self.lines[begin..], text);
        }
    }
}

/// Writes a line with its end, cut where it is too long; how many bytes.
fn write_line(line: &mut [u8], text: fmt::Arguments<'_>) -> usize {
    let room = line.len();
    let mut rest = Rest(&mut line[..room.saturating_sub(1)]);
    let mut host = [0; sys::HOST_NAME];
    let host = sys::host_name_in(&mut host);
    // Fails where there is no more room.
    let _ = write!(rest, "ncclscope[{host}:{}]: {text}", std::process::id());
    let length = room.saturating_sub(1) - rest.0.len();
    match line.get_mut(length) {
        Some(end) => {
            *end = b'\n';
            length + 1
        }
        None => 0,
    }
}

/// The room that is left.
struct Rest<'a>(&'a mut [u8]);

impl fmt::Write for Rest<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let length = text.len().min(self.0.len());
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(length);
        // What is said is one line, whatever a path or a setting holds.
        here.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = if byte < b' ' { b' ' } else { byte });
        self.0 = rest;
        if length < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_no_longer_than_its_place() {
        let mut line = [0; 80];
        let length = write_line(&mut line, format_args!("one\ntwo\tthree"));
        assert!(line[..length].ends_with(b"]: one two three\n") && line.starts_with(b"ncclscope["));
        let long = "long ".repeat(100);
        assert_eq!(write_line(&mut line, format_args!("{long}")), line.len());
        assert_eq!((line[79], line.iter().filter(|byte| **byte == b'\n').count()), (b'\n', 1));
    }
}
