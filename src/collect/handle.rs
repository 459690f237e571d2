//! The running collector, as the rest of the process sees it, and what it is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::file::Disk;
use crate::model::time::HostNs;
use crate::{cupti, memory, message};

/// How long to wait for the thread to start.
const START_WAIT: Duration = Duration::from_secs(1);

/// The running collector, as the rest of the process sees it.
pub struct Handle {
    requests: Arc<Requests>,
    disk: Disk,
}

/// What the collector's thread is asked for.
#[derive(Default)]
pub(super) struct Requests {
    state: Mutex<RequestState>,
    pub(super) wake: Condvar,
    pub(super) done: Condvar,
}

#[derive(Default)]
pub(super) struct RequestState {
    /// Calls of [`Handle::sync`], and how many of them were carried out. A caller that waited in
    /// vain has said so, and until its call is carried out nobody waits.
    pub(super) asked: u64,
    pub(super) carried_out: u64,
    in_vain: u64,
    /// The same for [`Handle::take_kernels`].
    pub(super) take_asked: u64,
    pub(super) taken: u64,
    pub(super) close: bool,
    pub(super) started: bool,
    pub(super) ended: bool,
    /// Remarks to draw, each at its own time.
    pub(super) notes: Vec<(HostNs, &'static str, String)>,
    /// CUPTI's records, if CUPTI was taken after the recording had started.
    pub(super) kernels: Option<cupti::Reader>,
}

impl Handle {
    /// Waits until the thread has begun: by then it has the name by which another copy of this
    /// library knows it.
    pub(super) fn new(requests: Arc<Requests>, disk: Disk) -> Handle {
        let handle = Handle { requests, disk };
        handle.wait(handle.requests.lock(), START_WAIT, |state| state.started);
        handle
    }

    /// Writes everything recorded so far to the file, and waits at most this long.
    pub fn sync(&self, limit: Duration) {
        let mut state = self.requests.lock();
        state.asked += 1;
        let asked = state.asked;
        self.requests.wake.notify_all();
        let limit = if state.is_late() { Duration::ZERO } else { self.disk.patience(limit) };
        if !self.wait(state, limit, |state| state.carried_out >= asked) && !self.disk.accuse() {
            self.accuse(asked, limit);
        }
    }

    /// Says that the thread does not answer, unless that is known.
    fn accuse(&self, asked: u64, waited: Duration) {
        if memory::is_over() {
            return say_that_memory_is_over();
        }
        let mut state = self.requests.lock();
        if state.carried_out < asked && !state.is_late() {
            state.in_vain = asked;
            drop(state);
            message::formatted(format_args!(
                "the recording does not keep up: it has not answered for {} s. The job does not wait for it; records \
                 that find no room are dropped and counted",
                waited.as_secs(),
            ));
        }
    }

    /// Decodes what CUPTI has returned so far, and waits at most this long. True if that was
    /// enough. The kernels are drawn when their time comes.
    pub fn take_kernels(&self, limit: Duration) -> bool {
        let mut state = self.requests.lock();
        state.take_asked += 1;
        let asked = state.take_asked;
        self.requests.wake.notify_all();
        self.wait(state, limit, |state| state.taken >= asked)
    }

    /// Ends the recording and closes the file, and waits at most this long.
    pub fn close(&self, limit: Duration) {
        let mut state = self.requests.lock();
        state.close = true;
        self.requests.wake.notify_all();
        let ended = self.wait(state, self.disk.patience(limit), |_| false);
        if memory::is_over() {
            say_that_memory_is_over();
        } else if !ended {
            self.disk.accuse();
        }
    }

    /// Draws a remark at this time.
    pub fn note(&self, time: HostNs, name: &'static str, text: String) {
        let mut state = self.requests.lock();
        if !state.ended {
            state.notes.push((time, name, text));
        }
    }

    /// Draws the kernels of this reader from now on. For a recording that started without CUPTI.
    pub fn add_kernels(&self, kernels: cupti::Reader) {
        self.requests.lock().kernels = Some(kernels);
    }

    /// True if `done` came true in time, or the recording has ended.
    fn wait(&self, state: MutexGuard<'_, RequestState>, limit: Duration, done: impl Fn(&RequestState) -> bool) -> bool {
        if memory::is_over() {
            return state.ended;
        }
        let (state, _) = self
            .requests
            .done
            .wait_timeout_while(state, limit, |state| !state.ended && !done(state))
            .unwrap_or_else(PoisonError::into_inner);
        state.ended || done(&state)
    }
}

/// Says once why the recording has ended.
fn say_that_memory_is_over() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        message::formatted(format_args!(
            "the recording has ended: its memory (NCCLSCOPE_HEAP_SIZE) is in use, and the system has none left for it; the \
             trace file keeps what was written before"
        ));
    }
}

impl RequestState {
    /// Whether the thread is known not to answer.
    fn is_late(&self) -> bool {
        self.carried_out < self.in_vain
    }
}

impl Requests {
    pub(super) fn lock(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
