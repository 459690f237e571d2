//! Messages for the user: one line each on stderr, rarely.
//!
//! Of the callbacks only `init` sends any. They do not go through NCCL's logger: it is silent by
//! default, and its WARN level overwrites the application's last error.
//!
//! A caller never waits for the reader: lines go to a queue, and a thread sends them. It exists
//! only while there are lines. If nobody reads, they are dropped and counted. The thread is a
//! fourth one of ours, because a terminal or disk that hangs would hold up any of the others, and
//! because none of those exists yet when a recording fails to start. Queueing and sending allocate
//! nothing, nor does [`formatted`], so that a lack of memory can be reported too.
//!
//! The first message says whether there is a recording. Messages from its start are [held
//! back](hold) until then.

use std::ffi::c_void;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::config::Log;
use crate::fault::planted;
use crate::sys::stderr::Stderr;
use crate::{process, sys};

/// Most bytes of a line: a pipe takes that many in one piece.
const LINE: usize = 4096;
/// Stands for the end of a line inside a message of several, while it is queued.
const BREAK: char = '\u{1e}';
/// Bytes of the queue.
const QUEUE: usize = 4 * LINE;
/// How long a line waits for room at its reader. After one has waited in vain, the next ones do not
/// wait.
const PATIENCE_MS: i32 = 1000;
/// How long the exit of the process waits for the last lines. Tests run on busy machines.
const EXIT_WAIT: Duration = Duration::from_millis(if cfg!(debug_assertions) { 5000 } else { 200 });

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
/// Signalled when the thread has nothing more to send.
static IDLE: Condvar = Condvar::new();
/// Stderr as we found it; `None` if it was closed.
static STDERR: OnceLock<Option<Stderr>> = OnceLock::new();
/// The process that uses the queue. A forked child has none of our threads, and possibly a lock
/// that is never released.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Panics while lines were sent that nobody has reported.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// The level of messages.
static LOG: AtomicU8 = AtomicU8::new(Log::Normal as u8);

struct State {
    /// Waiting lines, each with its newline.
    lines: [u8; QUEUE],
    length: usize,
    /// The lines wait for the first message about the recording.
    is_held: bool,
    /// A thread is sending them.
    is_sending: bool,
    /// The thread is writing a line that it has taken off the queue.
    is_writing: bool,
    /// The last line found a reader.
    is_heard: bool,
    /// Lines that found no reader.
    unheard: u64,
    /// How many of them no message has reported yet.
    unsaid: u64,
}

/// Remembers what stderr is now: later the program may have another file under its number. Called
/// before the first line, and before registering anything that sends a line at the exit of the
/// process.
pub(crate) fn begin() {
    if STDERR.get().is_none() {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        if STDERR.set(Stderr::now()).is_ok() {
            sys::on_exit(at_exit);
        }
    }
}

/// Sets the level of messages from here on.
pub(crate) fn set_log(log: Log) {
    LOG.store(log as u8, Ordering::Relaxed);
}

/// Sends `ncclscope[host:pid]: text`: something is wrong.
pub(crate) fn line(text: &str) {
    formatted(format_args!("{text}"));
}

/// Sends lines that stay together, at the normal level and above: they are written at once, so that
/// no other process's lines come between them. What does not fit into one message is left out.
pub(crate) fn block(lines: &[String]) {
    if LOG.load(Ordering::Relaxed) < Log::Normal as u8 {
        return;
    }
    let mut text = String::with_capacity(LINE);
    for line in lines {
        // The sender's name needs some room.
        if text.len() + line.len() + BREAK.len_utf8() + 512 > LINE {
            break;
        }
        if !text.is_empty() {
            text.push(BREAK);
        }
        text.extend(line.chars().map(|letter| if letter < ' ' { ' ' } else { letter }));
    }
    say(format_args!("{text}"), true);
}

/// Sends information, at the normal level and above.
pub(crate) fn remark(text: &str) {
    if LOG.load(Ordering::Relaxed) >= Log::Normal as u8 {
        line(text);
    }
}

/// Sends a detail for debugging, at the debug level.
pub(crate) fn detail(text: fmt::Arguments<'_>) {
    if LOG.load(Ordering::Relaxed) >= Log::Debug as u8 {
        formatted(text);
    }
}

/// [`line()`], without an allocation.
pub(crate) fn formatted(text: fmt::Arguments<'_>) {
    say(text, false);
}

/// Sends a message: one line, or a block of lines.
fn say(text: fmt::Arguments<'_>, is_block: bool) {
    begin();
    if is_forked() {
        let mut line = [0; 512];
        let length = write_line(&mut line, text, false);
        // A child has no thread to send it.
        send(&line[..length], 0);
        return;
    }
    let mut state = lock();
    // There is always room for the first message.
    let room = if state.is_held { QUEUE - LINE } else { QUEUE };
    match state.add(room, text, is_block) {
        true => have_sent(state),
        false => state.lose(),
    }
}

/// Holds back every line from here on, until the first message about the recording.
pub(crate) fn hold() -> Held {
    begin();
    lock().is_held = true;
    Held(())
}

/// While this exists, lines are held back.
pub(crate) struct Held(());

impl Held {
    /// As [`Held::say_first`], at the [normal level](remark) and above.
    pub(crate) fn remark_first(self, text: &str) {
        if LOG.load(Ordering::Relaxed) >= Log::Normal as u8 {
            self.say_first(text);
        }
    }

    /// Sends this line, and after it the lines that were held back.
    pub(crate) fn say_first(self, text: &str) {
        if is_forked() {
            return;
        }
        let mut state = lock();
        let held = state.length;
        if state.add(QUEUE, format_args!("{text}"), false) {
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

/// Starts a thread that sends the queue, if there is a line that may be sent.
fn have_sent(mut state: MutexGuard<'_, State>) {
    if state.length > 0 && !state.is_held && !state.is_sending {
        state.is_sending = true;
        if sys::thread::start_small(send_all).is_err() {
            // Send it here: that no thread can be started may be what the line reports.
            send_waiting(state, 0);
        }
    }
}

/// Lines that found no reader.
pub(crate) fn unheard() -> u64 {
    lock().unheard
}

/// Panics since the last call that lost a line while it was sent.
pub(crate) fn take_panics() -> u64 {
    PANICS.swap(0, Ordering::Relaxed)
}

/// Waits until everything is sent, for a limited time. For the exit of the process.
pub(crate) fn flush() {
    if is_forked() {
        return;
    }
    let mut state = lock();
    // There will be no first message any more.
    state.is_held = false;
    if state.length > 0 && !state.is_sending {
        state.is_sending = true;
        return send_waiting(state, 0);
    }
    let result = IDLE.wait_timeout_while(state, EXIT_WAIT, |state| state.is_sending && state.is_heard);
    let (mut state, _) = result.unwrap_or_else(PoisonError::into_inner);
    if state.is_writing {
        // Nobody reads. Waiting once is enough.
        state.is_heard = false;
    } else if state.is_sending {
        // The thread has not started yet.
        send_waiting(state, 0);
    }
}

extern "C" fn at_exit() {
    flush();
}

/// In a PID namespace of its own, a child may have its parent's number.
fn is_forked() -> bool {
    process::is_child() || PROCESS.load(Ordering::Relaxed) != std::process::id()
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn send_all(_: *mut c_void) -> *mut c_void {
    sys::thread::set_name(c"ncclscope say");
    send_waiting(lock(), PATIENCE_MS);
    std::ptr::null_mut()
}

/// Sends the lines in the queue. No panic leaves it: the caller may be C. A panic loses the line
/// that was being sent; those after it go with the next line.
fn send_waiting(state: MutexGuard<'_, State>, patience_ms: i32) {
    if catch_unwind(AssertUnwindSafe(|| send_each(state, patience_ms))).is_err() {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let mut state = lock();
        (state.is_writing, state.is_sending) = (false, false);
        drop(state);
        IDLE.notify_all();
    }
}

fn send_each(mut state: MutexGuard<'_, State>, patience_ms: i32) {
    let mut line = [0; LINE];
    loop {
        let waiting = if state.is_held { &[] } else { &state.lines[..state.length] };
        let Some(end) = waiting.iter().position(|byte| *byte == b'\n') else { break };
        let length = end + 1;
        line[..length].copy_from_slice(&waiting[..length]);
        line[..length].iter_mut().filter(|byte| **byte == BREAK as u8).for_each(|byte| *byte = b'\n');
        let rest = state.length;
        state.lines.copy_within(length..rest, 0);
        state.length -= length;
        let limit = if state.is_heard { patience_ms } else { 0 };
        state.is_writing = true;
        drop(state);
        planted::at("say");
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
    fn add(&mut self, end: usize, text: fmt::Arguments<'_>, is_block: bool) -> bool {
        let begin = self.length;
        let has_room = begin + LINE <= end;
        if has_room {
            self.length += write_line(&mut self.lines[begin..begin + LINE], text, is_block);
        }
        has_room
    }

    fn lose(&mut self) {
        self.unheard += 1;
        self.unsaid += 1;
    }

    /// Adds a line that says how many lines before it were lost.
    fn tell_of_the_unheard(&mut self) {
        let (begin, unsaid) = (self.length, std::mem::take(&mut self.unsaid));
        if unsaid > 0 {
            let text = format_args!("{unsaid} messages before this one were lost: nobody read them");
            self.length += write_line(&mut self.lines[begin..], text, false);
        }
    }
}

/// Writes a line with its newline, cut if it is too long; returns its length. A block of lines
/// keeps its [`BREAK`]s.
fn write_line(line: &mut [u8], text: fmt::Arguments<'_>, is_block: bool) -> usize {
    let room = line.len();
    let mut rest = Rest(&mut line[..room.saturating_sub(1)], is_block);
    let mut host = [0; sys::HOST_NAME];
    let host = sys::host_name_in(&mut host);
    // Fails if there is no more room: the line is cut.
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

/// The remaining room, and whether it is for a block of lines.
struct Rest<'a>(&'a mut [u8], bool);

impl fmt::Write for Rest<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let length = text.len().min(self.0.len());
        let (here, rest) = std::mem::take(&mut self.0).split_at_mut(length);
        // A message is one line, whatever a path or a setting contains, or a block of lines.
        let is_kept = |byte: u8| byte >= b' ' || self.1 && byte == BREAK as u8;
        here.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = if is_kept(byte) { byte } else { b' ' });
        self.0 = rest;
        if length < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_fits_its_buffer() {
        let mut line = [0; 80];
        let length = write_line(&mut line, format_args!("one\ntwo\tthree"), false);
        assert!(line[..length].ends_with(b"]: one two three\n") && line.starts_with(b"ncclscope["));
        let long = "long ".repeat(100);
        assert_eq!(write_line(&mut line, format_args!("{long}"), false), line.len());
        assert_eq!((line[79], line.iter().filter(|byte| **byte == b'\n').count()), (b'\n', 1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no fork")]
    fn a_child_with_the_number_of_its_parent_is_a_child() {
        process::begin();
        begin();
        let mut status = 0;
        // SAFETY: the child reads and writes memory and ends; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                // As in a PID namespace of its own.
                PROCESS.store(std::process::id(), Ordering::Relaxed);
                libc::_exit(i32::from(!is_forked()));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(status == 0 && !is_forked(), "{status}");
    }
}
