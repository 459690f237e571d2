//! One process's profiling, from the first `init` to the exit of the process. Wires the stages, and
//! holds the only process-wide state besides the recorder's.
//!
//! A communicator's `init` and `finalize` are rare and on no hot path: they may lock, allocate and
//! wait, each for a bounded time. The first `init` starts the recording, or `cuInit` if CUDA
//! injects us. After the last `finalize`, everything is in the file and the recording waits for the
//! next `init`, which is an ordinary one. The exit of the process ends it.

mod facts;
mod session;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use self::facts::Moment;
pub(crate) use self::session::HandOver;
use self::session::{CUPTI_WAIT, HAND_OVER_WAIT, NotStarted, Session, now};
use crate::config::{self, Config, KernelCh};
use crate::message::Held;
use crate::model::event::CommInit;
use crate::model::ids::Handle;
use crate::model::kinds::{self, Kinds};
use crate::model::time::GpuTimer;
use crate::pipeline::input::remark;
use crate::record::recorder::{self, Room};
use crate::releases::{self, Version};
use crate::sys::descriptor::Descriptor;
use crate::trace::names;
use crate::{fault, message, process, sys};

/// How long the last `finalize` may wait for the file.
const FINALIZE_WAIT: Duration = Duration::from_secs(2);
/// How long everything we do at the exit of the process may take; what is flushed by then is in the
/// file. An unoptimised build, used only by tests, is slower.
const EXIT_WAIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });

/// How long `cuInit` may wait for another thread that is starting the recording.
const CUDA_INIT_WAIT: Duration = Duration::from_secs(1);

static STATE: Mutex<State> =
    Mutex::new(State { phase: Phase::Fresh, live: 0, asked: Asked(Vec::new()), cupti_lent: false });

struct State {
    phase: Phase,
    /// Communicators between `init` and `finalize`.
    live: u32,
    asked: Asked,
    /// CUPTI was released on request, so it is not taken.
    cupti_lent: bool,
}

/// What NCCL is asked to report, for each release in the process. It is decided for a release's
/// first communicator, because NCCL has one mask for all. Later, kernel channels may be switched
/// off, but never on: NCCL would then expect samples of kernels that write none.
struct Asked(Vec<((u8, Option<Version>), Kinds)>);

impl Asked {
    /// What the caller is asked for from now on; `decide` gets what it was asked for before.
    fn renew(&mut self, caller: &Caller, decide: impl FnOnce(Option<Kinds>) -> Kinds) -> Kinds {
        let release = (caller.interface, caller.version);
        let known = self.0.iter_mut().find(|(known, _)| *known == release);
        let kinds = decide(known.as_ref().map(|(_, kinds)| *kinds));
        match known {
            Some((_, known)) => *known = kinds,
            None => self.0.push((release, kinds)),
        }
        kinds
    }
}

enum Phase {
    /// Nothing has happened yet.
    Fresh,
    Recording(Box<Session>),
    /// Switched off, failed to start, or ended; this is final.
    Over,
}

/// Who called `init`.
pub(crate) struct Caller {
    /// The interface in use.
    pub interface: u8,
    /// NCCL's version, if known.
    pub version: Option<Version>,
    /// What its GPU's timer counts, which also says whether it is RCCL.
    pub timer: GpuTimer,
    /// The most ranks of the communicator that one host has; 0 if NCCL does not say.
    pub local_ranks: u64,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.version, self.timer.is_rccl()) {
            (Some(version), false) => write!(f, "NCCL {}", names::nccl_version(version))?,
            (Some(version), true) => write!(f, "RCCL that follows NCCL {}", names::nccl_version(version))?,
            (None, false) => f.write_str("NCCL, which does not report its version")?,
            (None, true) => f.write_str("RCCL, which does not report its version")?,
        }
        write!(f, " (profiler interface v{})", self.interface)
    }
}

/// The result of `init`.
pub(crate) struct Answer {
    /// The communicator's context.
    pub context: Handle,
    /// What NCCL is asked to report.
    pub kinds: Kinds,
}

impl Answer {
    const NOTHING: Answer = Answer { context: Handle::NONE, kinds: Kinds::NONE };
}

/// A communicator's `init`. `birth` is called once the recorder is on.
pub(crate) fn comm_init(caller: &Caller, birth: impl FnOnce() -> CommInit) -> Answer {
    let mut state = lock();
    let held = state.start(Moment::CommInit);
    let State { phase: Phase::Recording(session), live, asked, .. } = &mut *state else {
        return Answer::NOTHING;
    };
    // An internal error may have ended it: what NCCL would report, nobody would record.
    if !recorder::is_on() {
        return Answer::NOTHING;
    }
    let is_first = asked.0.is_empty();
    let kinds = asked.renew(caller, |before| decide(session, caller, before, *live + 1));
    if is_first && caller.timer.is_rccl() {
        session.gpu = NO_CUPTI.into();
        session.collector.note(now(), remark::RCCL, format!("{caller}: {}", clock_of_rccl(caller.timer)));
    }
    if is_first && session.config.speaks() {
        match held {
            Some(held) => held.remark_first(&session.first_line(&caller.to_string())),
            // It began before NCCL came.
            None => message::remark(&format!("{caller} is recorded too")),
        }
    }
    *live += 1;
    drop(state);
    let (context, room) = recorder::comm_init(birth());
    if room == Room::WaitedInVain {
        message::line("no room to record a communicator's init: its events are drawn under an unknown communicator");
    }
    Answer { context, kinds }
}

/// Why there are no kernels with RCCL.
const NO_CUPTI: &str =
    "AMD's GPUs have no CUPTI; the timeline has the host, the proxy and, with KernelCh, the channels";

/// How the times of RCCL's channels are treated, in words.
fn clock_of_rccl(timer: GpuTimer) -> String {
    let skew = "the dies of one GPU may differ from each other by more than the error that is stated";
    match timer.mhz() {
        Some(mhz) => format!("the times of channels are ticks of {mhz} MHz, as HIP reports, converted to ns; {skew}"),
        None => {
            "HIP does not report the rate of the GPU's clock as a whole number of MHz, so channels are drawn when RCCL's \
                 threads saw them"
                .into()
        }
    }
}

/// Refuses an `init` in a child of the recording process.
pub(crate) fn refuse_child() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if process::is_forked() && !config::is_off() && !SAID.swap(true, Ordering::Relaxed) {
        message::line("this process was forked after ncclscope had begun in its parent; it is not recorded itself");
    }
}

/// A communicator's `finalize`; after the last one, everything is in the file.
pub(crate) fn comm_finalize(context: Handle) {
    // Up to NCCL 2.27, this also happens for a communicator whose `init` left no context.
    if !recorder::is_on() || !recorder::is_ours(context) {
        return;
    }
    if recorder::comm_finalize(context) == Room::WaitedInVain {
        message::line("no room to record a communicator's finalize: the trace does not show it");
    }
    let mut state = lock();
    state.live = state.live.saturating_sub(1);
    if state.live == 0
        && let Phase::Recording(session) = &state.phase
    {
        if let Some(cupti) = &session.cupti {
            cupti.sync(CUPTI_WAIT);
        }
        session.collector.sync(FINALIZE_WAIT);
    }
}

/// The other plugin that the settings name.
pub(crate) fn chain() -> Option<PathBuf> {
    Config::from_environment().chain
}

/// What happens to the other plugin: a remark in the trace, and a line on stderr if it is `amiss`.
pub(crate) fn note_chain(text: &str, amiss: bool) {
    let name = if amiss { remark::NOT_CHAINED } else { remark::CHAINED };
    let state = lock();
    let speaks = match &state.phase {
        Phase::Recording(session) => {
            session.collector.note(now(), name, text.to_owned());
            session.config.speaks()
        }
        Phase::Fresh | Phase::Over => Config::from_environment().speaks(),
    };
    drop(state);
    if amiss && speaks {
        message::line(text);
    }
}

/// Starts the recording when CUDA asks for it. The thread is inside `cuInit`, so nothing of CUDA's
/// is called except what CUPTI allows there.
pub(crate) fn start_in_cuda_init() {
    // It is already on if CUPTI, which we are just taking, calls `cuInit`.
    if process::is_child() || recorder::is_on() {
        return;
    }
    // The lock's holder may wait for the loader's lock, which a library that calls `cuInit` while
    // it is loaded holds.
    if let Some(mut state) = lock_within(CUDA_INIT_WAIT) {
        let held = state.start(Moment::CudaInit);
        if let (Some(held), Phase::Recording(session)) = (held, &state.phase)
            && session.config.speaks()
        {
            held.remark_first(
                &session.first_line("no NCCL yet (CUDA_INJECTION64_PATH started the recording in cuInit)"),
            );
        }
    }
}

/// Records nothing in this process and says why, unless it was to be silent anyway.
pub(crate) fn stay_out(reason: &str) {
    let Some(mut state) = lock_within(HAND_OVER_WAIT) else { return };
    if matches!(state.phase, Phase::Fresh) {
        state.phase = Phase::Over;
        let config = Config::from_environment();
        if !config.is_off() && config.speaks() {
            message::line(reason);
        }
    }
}

impl State {
    /// Starts the recording, if nothing has happened yet. If it starts, messages are held back for
    /// the caller's first line.
    fn start(&mut self, moment: Moment) -> Option<Held> {
        if !matches!(self.phase, Phase::Fresh) {
            return None;
        }
        self.phase = Phase::Over;
        if config::is_off() {
            return None;
        }
        let held = message::hold();
        let lent = self.cupti_lent;
        let started = catch_unwind(AssertUnwindSafe(|| Session::start(moment, lent))).unwrap_or_else(|_| {
            recorder::switch_off();
            fault::say(format_args!("was caught at the start"));
            Err(NotStarted::Panic)
        });
        match started {
            Ok(session) => {
                sys::on_exit(at_exit);
                self.phase = Phase::Recording(Box::new(session));
                Some(held)
            }
            Err(NotStarted::NotWanted) => None,
            Err(error) => {
                held.say_first(&format!("{error}; this process is not recorded"));
                None
            }
        }
    }
}

/// Releases CUPTI, so that another tool can have it until [`acquire_cupti`]. Must not be called on
/// a thread that is in a CUPTI callback.
pub(crate) fn release_cupti() -> HandOver {
    if process::is_child() {
        return HandOver::Done;
    }
    let Some(mut state) = lock_within(HAND_OVER_WAIT) else { return HandOver::Late };
    state.cupti_lent = true;
    match &state.phase {
        Phase::Recording(session) => session.release_cupti(),
        Phase::Fresh | Phase::Over => HandOver::Done,
    }
}

/// Takes CUPTI, for the first time or again. Must not be called on a thread that is in a CUPTI
/// callback.
pub(crate) fn acquire_cupti() -> HandOver {
    if process::is_child() {
        return HandOver::NotRecording;
    }
    let Some(mut state) = lock_within(HAND_OVER_WAIT) else { return HandOver::Late };
    state.cupti_lent = false;
    match &mut state.phase {
        Phase::Recording(session) => session.acquire_cupti(),
        Phase::Fresh | Phase::Over => HandOver::NotRecording,
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], but waits at most this long.
fn lock_within(limit: Duration) -> Option<MutexGuard<'static, State>> {
    let begin = Instant::now();
    loop {
        match STATE.try_lock() {
            Ok(state) => return Some(state),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Called at the exit of the process.
extern "C" fn at_exit() {
    // In a forked child, the lock may be held forever by a thread that does not exist there.
    if process::is_child() {
        return;
    }
    sys::without_cancellation(|| {
        if catch_unwind(end).is_err() {
            fault::say(format_args!("was caught at the exit of the process"));
        }
    });
}

fn end() {
    fault::at("exit");
    let begin = Instant::now();
    let left = || EXIT_WAIT.saturating_sub(begin.elapsed());
    // If another thread is in `init` or `finalize`, or CUPTI changes hands, and that takes too
    // long, only what is flushed is in the file.
    if let Some(mut state) = lock_within(left() / 2)
        && let Phase::Recording(session) = std::mem::replace(&mut state.phase, Phase::Over)
    {
        // First of all: what is recorded up to here is drawn, and nothing more is recorded that
        // could not be.
        recorder::switch_off();
        if let Some(cupti) = &session.cupti {
            cupti.end(left() / 2);
        }
        session.collector.close(left());
    }
    message::flush();
}

/// What NCCL is asked to report from this communicator on, which is one of `live`. Says why if that
/// is less than it was asked for `before`, or than requested.
fn decide(session: &Session, caller: &Caller, before: Option<Kinds>, live: u32) -> Kinds {
    let kinds = before.unwrap_or_else(|| session.config.kinds());
    if session.config.kernel_ch != KernelCh::On || !kinds.has(Kinds(kinds::bit::KERNEL_CH)) {
        return kinds;
    }
    let of_release = || {
        let allgatherv_off = std::env::var("NCCL_ALLGATHERV_ENABLE").is_ok_and(|value| value.trim() == "0");
        releases::against_kernel_ch(caller.version, caller.interface, allgatherv_off).map(str::to_owned)
    };
    let reason = if before.is_none() { of_release() } else { None };
    let Some(reason) = reason.or_else(|| too_little_shared_memory(caller, live)) else { return kinds };
    let text = format!("{reason}. NCCLSCOPE_KERNEL_CH=force insists");
    if session.config.speaks() {
        message::line(&format!("{}: {text}", remark::NO_CHANNELS));
    }
    session.collector.note(now(), remark::NO_CHANNELS, text);
    kinds - Kinds::CHANNELS
}

/// Why NCCL could crash when asked for kernel channels with so many communicators: each takes
/// shared memory when its first kernel is launched, whose failure NCCL does not check.
fn too_little_shared_memory(caller: &Caller, live: u32) -> Option<String> {
    let free = Descriptor::open(None, "/dev/shm", 0).and_then(|folder| folder.free_bytes()).ok()?;
    let needed = releases::kernel_ch_memory(caller.interface, caller.local_ranks.max(1), live.into());
    let whose = if live == 1 { "a communicator".to_owned() } else { format!("{live} communicators") };
    let (needs, has) = (names::size(needed), names::size(free));
    (free < needed).then(|| {
        format!(
            "NCCL up to 2.30 can crash when asked for it with too little shared memory: {whose} may need {needs}, and \
             /dev/shm has {has} free (docker run --shm-size makes it larger)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_in_a_process_is_asked_for_what_suits_it() {
        let caller = |interface, version| Caller { interface, version, timer: GpuTimer::NANOSECONDS, local_ranks: 1 };
        let (with, without) = (Kinds(kinds::bit::COLL) | Kinds::CHANNELS, Kinds(kinds::bit::COLL));
        let mut asked = Asked(Vec::new());
        let mut renew = |caller: &Caller, before, after| {
            let renewed = asked.renew(caller, |was| {
                assert_eq!(was, before);
                after
            });
            assert_eq!(renewed, after);
        };
        let (first, second) = (caller(5, Some(22_809)), caller(6, Some(23_007)));
        renew(&first, None, with);
        renew(&second, None, without);
        renew(&first, Some(with), without);
        renew(&second, Some(without), without);
        renew(&first, Some(without), without);
    }
}
