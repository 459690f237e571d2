//! One process's profiling, from the first `init` to the exit of the process. Wires the stages, and
//! holds the only process-wide state besides the recorder's.
//!
//! A communicator's `init` and `finalize` are rare and on no hot path: they may lock, allocate and
//! wait, each for a bounded time. The first `init` starts the recording, or `cuInit` if CUDA
//! injects us. After the last `finalize`, everything is in the file and the recording waits for the
//! next `init`, which is an ordinary one. The exit of the process ends it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::clock::host::{self, Source};
use crate::collect::collector::{self, Collector, Wanted};
use crate::collect::file::{Options, TraceFile};
use crate::config::{self, Config, CuptiClock, GpuEvents, KernelCh, Preset, Process};
use crate::cupti::{self, Absent, Acquired, Cupti};
use crate::message::Held;
use crate::model::event::CommInit;
use crate::model::ids::{Handle, ProcessTag};
use crate::model::kinds::{self, Kinds};
use crate::model::time::{GpuTimer, HostNs};
use crate::pipeline::input::{Begin, remark};
use crate::record::recorder;
use crate::record::ring::Rings;
use crate::releases::{self, FaultId, SharedMemory, Version};
use crate::sys::descriptor::Descriptor;
use crate::trace::names;
use crate::trace::tracks::{ProcessInfo, Stages};
use crate::trace::writer::{Clocks, attribute};
use crate::{fault, memory, message, process, sys};

/// How long the last `finalize` may wait for the file.
const FINALIZE_WAIT: Duration = Duration::from_secs(2);
/// How long either may wait for CUPTI before that.
const CUPTI_WAIT: Duration = Duration::from_secs(1);
/// How long everything we do at the exit of the process may take; what is flushed by then is in the
/// file. An unoptimised build, used only by tests, is slower.
const EXIT_WAIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });

/// How long the first `init` may wait for the file to be created.
const CREATE_WAIT: Duration = Duration::from_secs(10);
/// How long `cuInit` may wait for another thread that is starting the recording.
const CUDA_INIT_WAIT: Duration = Duration::from_secs(1);
/// How long it may take to release CUPTI for another tool.
const HAND_OVER_WAIT: Duration = Duration::from_secs(5);

static STATE: Mutex<State> = Mutex::new(State { phase: Phase::Fresh, live: 0, kinds: None, cupti_lent: false });

struct State {
    phase: Phase,
    /// Communicators between `init` and `finalize`.
    live: u32,
    /// What NCCL is asked to report. It is decided for the first communicator, because NCCL has one
    /// mask for all. Later, kernel channels may be switched off, but never on: NCCL would then
    /// expect samples of kernels that write none.
    kinds: Option<Kinds>,
    /// CUPTI was released on request, so it is not taken.
    cupti_lent: bool,
}

enum Phase {
    /// Nothing has happened yet.
    Fresh,
    Recording(Box<Session>),
    /// Switched off, failed to start, or ended; this is final.
    Over,
}

struct Session {
    config: Config,
    collector: collector::Handle,
    /// The subscription to CUPTI, if we got it.
    cupti: Option<Cupti>,
    /// Where it records to, for messages.
    place: String,
    /// Whether the GPU's kernels are recorded, or why not.
    gpu: String,
    /// Why CUPTI was not taken when it was last asked for; empty if it was.
    refused: String,
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

/// A communicator's `init`. `birth` is called once the recorder is on.
pub(crate) fn comm_init(caller: &Caller, birth: impl FnOnce() -> CommInit) -> Answer {
    let mut state = lock();
    let held = state.start(Moment::CommInit);
    let State { phase: Phase::Recording(session), live, kinds, .. } = &mut *state else {
        return Answer { context: Handle::NONE, kinds: Kinds::NONE };
    };
    let is_first = kinds.is_none();
    let kinds = *kinds.insert(decide(session, caller, *kinds, *live + 1));
    if is_first && caller.timer.is_rccl() {
        session.gpu = NO_CUPTI.into();
        session.collector.note(now(), "RCCL", format!("{caller}: {}", clock_of_rccl(caller.timer)));
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
    let (context, recorded) = recorder::comm_init(birth());
    if !recorded {
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
        Some(mhz) => format!("the times of channels are ticks of {mhz} MHz, as HIP says, converted to ns; {skew}"),
        None => {
            "HIP does not say how long a tick of the GPU's clock is (or no whole number of MHz), so channels are drawn \
                 when RCCL's threads saw them"
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
    if !recorder::comm_finalize(context) {
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
pub(crate) fn note_chain(name: &'static str, text: &str, amiss: bool) {
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

/// When a recording starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    CommInit,
    CudaInit,
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
            held.remark_first(&session.first_line("no NCCL yet (CUDA_INJECTION64_PATH has begun it in cuInit)"));
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

/// The result of a request for CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOver {
    /// Done as requested.
    Done,
    /// Nothing is recorded in this process.
    NotRecording,
    /// The settings say to leave CUPTI alone.
    SwitchedOff,
    /// Another tool holds it.
    Taken,
    /// It is unavailable for another reason.
    Unavailable,
    /// The request has not finished in time, and continues.
    Late,
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
        && let Phase::Recording(mut session) = std::mem::replace(&mut state.phase, Phase::Over)
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

/// Why a recording did not start.
#[derive(Debug)]
enum NotStarted {
    /// This many bytes of address space cannot be reserved for our heap.
    Memory(usize),
    /// The settings leave this process out.
    NotWanted,
    /// Another copy of this library records in this process.
    OtherCopy,
    /// The trace file cannot be created. The path is without its extension.
    File(PathBuf, io::Error),
    /// This many bytes cannot be allocated for records.
    Records(usize),
    /// A thread cannot be started.
    Thread(io::Error),
    /// An internal error.
    Panic,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotStarted::Memory(bytes) => write!(f, "failed to reserve {bytes} bytes of memory"),
            NotStarted::NotWanted => f.write_str("the settings leave this process out"),
            NotStarted::OtherCopy => f.write_str("another copy of ncclscope records in this process"),
            NotStarted::File(path, error) => write!(f, "failed to create {}: {error}", path.display()),
            NotStarted::Records(bytes) => write!(f, "failed to allocate {bytes} bytes for records"),
            NotStarted::Thread(error) => write!(f, "failed to start a thread: {error}"),
            NotStarted::Panic => f.write_str("the recording did not start"),
        }
    }
}

impl std::error::Error for NotStarted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotStarted::File(_, error) | NotStarted::Thread(error) => Some(error),
            _ => None,
        }
    }
}

impl Session {
    /// Starts recording. CUPTI is not taken if it is lent.
    fn start(moment: Moment, cupti_lent: bool) -> Result<Session, NotStarted> {
        if !memory::reserve() {
            return Err(NotStarted::Memory(memory::HEAP));
        }
        let config = Config::from_environment();
        message::set_log(config.log);
        if config.is_off() {
            return Err(NotStarted::NotWanted);
        }
        if has_other_copy() {
            return Err(NotStarted::OtherCopy);
        }
        if !memory::limit(config.heap_size) {
            return Err(NotStarted::Memory(config.heap_size));
        }
        if config.speaks() {
            config.complaints.iter().for_each(|complaint| message::line(complaint));
        }
        let (source, objection) =
            if config.tsc { Source::best() } else { (Source::Boottime, Some("NCCLSCOPE_CLOCK says so")) };
        source.select();
        let process = this_process(&config);
        let folder = config.folder(&process);
        // Before the program changes its directory.
        let metrics = config.metrics_path(&process).and_then(|path| std::path::absolute(path).ok());
        let local_rank = config.local_rank.and_then(|rank| u16::try_from(rank).ok()).unwrap_or(0);
        let clocks = read_clocks();
        let file = create_file(&config, &process, &clocks, &folder, moment)?;
        let path = file.path().to_owned();

        let tag = ProcessTag::from_random(sys::random());
        let buffer_size = config.buffer_size;
        let Some(rings) = recorder::switch_on(|| Rings::new(buffer_size), tag) else {
            drop(file);
            let _ = std::fs::remove_file(&path);
            return Err(NotStarted::Records(buffer_size));
        };
        let (cupti, kernels, gpu) = match cupti_lent {
            true => (None, None, "ncclscope_release was called".into()),
            false => start_cupti(&config, moment),
        };
        let first_words = first_words(&config, source, objection);
        message::detail(format_args!("{first_words}; {gpu}"));
        let by = if moment == Moment::CudaInit { "by CUDA_INJECTION64_PATH in cuInit; " } else { "" };
        fault::at("start");
        let capture = file.capture().map(file_name);
        let begin = Begin {
            tag,
            clocks,
            process: process_info(&config, &process, moment),
            stages: match config.gpu_events {
                GpuEvents::Track => None,
                GpuEvents::RenderStage => Some(Stages::Alone),
                GpuEvents::Both => Some(Stages::Beside),
            },
            complaints: config.complaints.clone(),
            attributes: attributes(&config, &process, cupti.as_ref(), moment),
            first_words: format!("{first_words}; {by}{}{gpu}", if cupti.is_some() { "" } else { "no GPU kernels: " }),
            capture: capture.clone(),
            first: host::pair(),
            selection: config.selection.clone(),
        };
        let collector = Collector {
            begin,
            rings,
            kernels,
            file,
            max_size: config.max_size,
            flush_period: Duration::from_millis(config.flush_period_ms),
            speaks: config.speaks(),
            // The first rank may be the one for which the others wait.
            says_standstill: config.speaks() || config.rank.is_some_and(|(rank, _)| rank == 1),
            summary: Wanted {
                file: matches!(config.summary, config::Summary::File | config::Summary::All),
                // One process for the whole job.
                stderr: matches!(config.summary, config::Summary::Stderr | config::Summary::All)
                    && config.rank.is_some_and(|(rank, _)| rank == 0),
                csv: config.summary_csv,
                period: (config.summary_period_s > 0).then(|| Duration::from_secs(config.summary_period_s)),
                metrics,
                port: config.metrics_port.and_then(|port| port.checked_add(local_rank)),
                metrics_period: Duration::from_secs(config.metrics_period_s),
            },
        }
        .start()
        .map_err(|error| {
            recorder::switch_off();
            if let Some(cupti) = &cupti {
                cupti.release(CUPTI_WAIT);
            }
            NotStarted::Thread(error)
        })?;
        sys::on_exit(at_exit);
        let capture = capture.map(|name| format!(" and {name}")).unwrap_or_default();
        let place = match config.preset {
            Preset::Metrics => format!("{} (a summary, no trace{capture})", folder.display()),
            _ => format!("{} (this process: {}{capture})", folder.display(), file_name(&path)),
        };
        Ok(Session { config, collector, cupti, place, gpu, refused: String::new() })
    }

    /// The first line that the recording prints.
    fn first_line(&self, nccl: &str) -> String {
        let gpu = match &self.cupti {
            Some(cupti) => format!("GPU kernels: yes, through {}", cupti.facts().announcement()),
            None => format!("GPU kernels: no, {}", self.gpu),
        };
        let ranks = self.config.selection.ranks.as_ref().map_or_else(String::new, |ranks| {
            format!("; ranks {ranks} of each communicator (no launcher tells this process its rank in the job)")
        });
        format!("recording to {}; {nccl}; preset {}{ranks}; {gpu}", self.place, self.config.wish())
    }

    fn release_cupti(&self) -> HandOver {
        let Some(cupti) = &self.cupti else { return HandOver::Done };
        let was_held = cupti.is_held();
        let begin = now();
        if !cupti.release(HAND_OVER_WAIT) {
            let text = "asked for, but CUPTI does not return its records in time; kernels from here on may be missing";
            self.collector.note(begin, "CUPTI not released", text.into());
            return HandOver::Late;
        }
        if was_held {
            let text = match cupti.facts().stops() {
                true if cupti.facts().shares => {
                    "as asked for: what the GPU does from here on is not recorded, and launches have no kernel. Kernels \
                     that had not ended are lost, with those before them that CUPTI had not returned"
                }
                true => {
                    "as asked for: what the GPU does from here on is not recorded, and launches have no kernel. Kernels \
                     that had not ended are lost, and count as impossible records"
                }
                false => {
                    "as asked for: launches from here on are not recorded. CUPTI of CUDA 13.0 deadlocks when it is told to \
                     stop recording kernels, so some may still come, without operations. Update 1 does not"
                }
            };
            self.collector.note(begin, remark::RELEASED, text.into());
            self.collector.note(now(), remark::GIVEN_UP, String::new());
        }
        // The next owner may finalize CUPTI, and with it the names in what came back.
        if self.collector.take_kernels(CUPTI_WAIT) { HandOver::Done } else { HandOver::Late }
    }

    fn acquire_cupti(&mut self) -> HandOver {
        let result = match &mut self.cupti {
            Some(cupti) => match cupti.acquire(HAND_OVER_WAIT) {
                Ok(Acquired::Held) => return HandOver::Done,
                Ok(Acquired::Again(silence)) => {
                    if let Some(silence) = silence {
                        self.collector.note(silence.since, remark::SILENT, silence.to_string());
                    }
                    let fault = releases::cupti_fault(cupti.facts().version, FaultId::GraphLaunches);
                    let known = fault.map_or(String::new(), |fault| format!("; known of it: {}", fault.what));
                    Ok((remark::TAKEN_AGAIN, format!("{}{known}", cupti.facts())))
                }
                Err(absent) => Err(absent),
            },
            None => cupti::start(&cupti_options(&self.config)).map(|(cupti, reader)| {
                self.collector.add_kernels(reader);
                (remark::TAKEN, self.cupti.insert(cupti).facts().to_string())
            }),
        };
        match result {
            Ok((name, facts)) => {
                self.refused.clear();
                self.collector.note(now(), name, format!("GPU kernels are recorded from here on; {facts}"));
                HandOver::Done
            }
            Err(absent) => {
                // Whoever waits for another tool to give it up asks many times a second.
                let text = format!("no GPU kernels: {absent}");
                if self.refused != text {
                    if self.config.speaks() && absent != Absent::SwitchedOff {
                        message::line(&text);
                    }
                    self.collector.note(now(), "CUPTI not taken", text.clone());
                    self.refused = text;
                }
                match absent {
                    Absent::SwitchedOff => HandOver::SwitchedOff,
                    Absent::Taken { .. } => HandOver::Taken,
                    Absent::Leaving | Absent::Late => HandOver::Late,
                    _ => HandOver::Unavailable,
                }
            }
        }
    }
}

/// Whether a thread of another copy is running in this process. The loader does not show us such a
/// copy if it is in a namespace of its own (`dlmopen`).
fn has_other_copy() -> bool {
    let main = sys::process_id();
    sys::threads().iter().any(|(tid, name)| *tid != main && name == collector::THREAD)
}

fn now() -> HostNs {
    HostNs(sys::boottime_ns())
}

fn cupti_options(config: &Config) -> cupti::Options {
    let copies = config.kinds().has(Kinds(kinds::bit::CE_COLL));
    cupti::Options {
        matching: config.matching,
        copies,
        calls: config.cuda_api,
        nvtx: config.nvtx,
        // A shorter period costs the program time; with a longer one, much piles up.
        flush_period: Duration::from_millis(config.flush_period_ms.clamp(100, 1000)),
        ..cupti::Options::new(config.cupti.clone())
    }
}

/// Takes CUPTI if possible. Returns which copy it is, or why it is unavailable.
fn start_cupti(config: &Config, moment: Moment) -> (Option<Cupti>, Option<cupti::Reader>, String) {
    let driver_starts = moment == Moment::CudaInit;
    // If somebody may have used CUPTI before, its clock stays as it is.
    let boottime = match config.cupti_clock {
        CuptiClock::Auto => driver_starts,
        CuptiClock::Wall => false,
        CuptiClock::Boottime => true,
    };
    match cupti::start(&cupti::Options { driver_starts, boottime, ..cupti_options(config) }) {
        Ok((cupti, reader)) => {
            if config.speaks() {
                cupti.facts().objections.iter().for_each(|objection| message::line(objection));
            }
            let facts = cupti.facts().to_string();
            (Some(cupti), Some(reader), facts)
        }
        Err(absent) => (None, None, absent.to_string()),
    }
}

/// Creates the file of the recording.
fn create_file(
    config: &Config,
    process: &Process,
    clocks: &Clocks,
    folder: &Path,
    moment: Moment,
) -> Result<TraceFile, NotStarted> {
    let name = format!("{}.{}.{}", process.host, process.pid, clocks.realtime / 1_000_000_000);
    let capture = config.capture.then_some(config.max_size);
    let options = Options {
        trace: config.preset != Preset::Metrics,
        compress: config.compress,
        min_free: config.min_free,
        capture,
        mode: config.file_mode,
    };
    // Within `cuInit`, no thread is waited for.
    let limit = (moment == Moment::CommInit).then_some(CREATE_WAIT);
    TraceFile::create(folder, &name, options, limit).map_err(|error| NotStarted::File(folder.join(&name), error))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What the trace says about the recording, for programs.
fn attributes(config: &Config, process: &Process, cupti: Option<&Cupti>, moment: Moment) -> Vec<(String, String)> {
    let events = Some(config.events.to_string()).filter(|events| !events.is_empty());
    let cupti_release = cupti.map_or("none", |cupti| cupti.facts().release());
    let attributes = [
        ("ncclscope.version", Some(env!("CARGO_PKG_VERSION").into())),
        ("ncclscope.preset", Some(config.preset.name().into())),
        ("ncclscope.events", events),
        ("ncclscope.job", Some(process.job.clone())),
        (attribute::BOOT, sys::boot_id()),
        (attribute::RUN, config.run.clone()),
        ("cupti.release", Some(cupti_release.into())),
        (attribute::DRIVER, driver(moment)),
    ];
    let environment = config::environment(config.env, std::env::vars_os());
    let environment = environment.into_iter().map(|(name, value)| (format!("{}{name}", attribute::ENVIRONMENT), value));
    let attributes = attributes.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
    attributes.chain(environment).collect()
}

/// The driver, as its kernel module and its library tell.
fn driver(moment: Moment) -> Option<String> {
    let module = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned());
    // Within `cuInit`, nothing is asked of the driver.
    let cuda = if moment == Moment::CudaInit { None } else { cupti::driver_cuda() };
    let parts: Vec<_> = module.into_iter().chain(cuda.map(|cuda| format!("CUDA {cuda}"))).collect();
    Some(parts.join(", ")).filter(|text| !text.is_empty())
}

fn read_clocks() -> Clocks {
    Clocks { boottime: now(), monotonic: sys::monotonic_ns(), realtime: sys::realtime_ns() }
}

fn this_process(config: &Config) -> Process {
    let job = config::job(&|name| std::env::var(name).ok()).unwrap_or_else(|| {
        // The ranks that one launcher started on this host share their parent, and so a folder.
        let parent = config.rank.and_then(|_| sys::parent_start());
        sys::utc(parent.unwrap_or_else(|| sys::realtime_ns() / 1_000_000_000))
    });
    Process { host: sys::host_name(), pid: sys::process_id(), job }
}

fn process_info(config: &Config, process: &Process, moment: Moment) -> ProcessInfo {
    let who = match config.rank {
        Some((rank, _)) => format!("rank {rank}"),
        None => std::env::current_exe().map_or_else(|_| "process".into(), |program| file_name(&program)),
    };
    let labels = match config.rank {
        Some((_, source)) => vec![format!("rank from {source}")],
        None => vec!["rank unknown".into()],
    };
    let rank = config.rank.map(|(rank, _)| rank);
    let name = format!("{who} · {}", process.host);
    // Within `cuInit`, nothing is asked of the driver.
    let gpu = if moment == Moment::CudaInit { None } else { cupti::current_gpu() };
    ProcessInfo {
        pid: process.pid,
        name: gpu.map_or(name.clone(), |(device, model)| names::on_gpu(&name, device, model.as_deref())),
        labels,
        rank,
        world_size: config.world_size,
    }
}

fn first_words(config: &Config, source: Source, objection: Option<&str>) -> String {
    let clock = match objection {
        Some(objection) => format!("{} (not the processor's counter: {objection})", source.name()),
        None => source.name().to_owned(),
    };
    format!("ncclscope {}; preset {}; clock {clock}", env!("CARGO_PKG_VERSION"), config.wish())
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
        message::line(&format!("no GPU time per channel: {text}"));
    }
    session.collector.note(now(), "no GPU time per channel", text);
    kinds - Kinds::CHANNELS
}

/// Why NCCL could crash when asked for kernel channels with so many communicators: it takes memory
/// for each when its first kernel is launched, and does not bear to get none.
fn too_little_shared_memory(caller: &Caller, live: u32) -> Option<String> {
    let free = Descriptor::open(None, "/dev/shm", 0).and_then(|folder| folder.free_bytes()).ok()?;
    let SharedMemory { needed, free } =
        SharedMemory::too_little(caller.interface, caller.local_ranks.max(1), live.into(), free)?;
    let (needed, free) = (names::size(needed), names::size(free));
    let whose = if live == 1 { "a communicator".to_owned() } else { format!("{live} communicators") };
    Some(format!(
        "NCCL up to 2.30 can crash when asked for it with too little shared memory: {whose} may need {needed}, and \
         /dev/shm has {free} free (docker run --shm-size makes it larger)"
    ))
}
