//! One process's profiling, from the first `init` to the exit of the process. Wires the stages; the only
//! process-wide state besides the recorder's.
//!
//! A communicator's `init` and `finalize` are rare and on no hot path: they may lock, allocate and wait, each for a
//! bounded time. The first `init` starts the recording; after the last `finalize` everything is in the file and
//! the recording waits for the next `init`, which is an ordinary one; the exit of the process ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::clock::align::HostClock;
use crate::clock::host::{self, Source};
use crate::collect::collector::{self, Collector};
use crate::collect::file::{Options, TraceFile};
use crate::config::{self, Config, KernelCh, Preset, Process};
use crate::correlate::Correlator;
use crate::cupti::{self, Absent, Cupti};
use crate::model::event::CommInit;
use crate::model::ids::{Handle, ProcessTag};
use crate::model::time::HostNs;
use crate::record::recorder;
use crate::record::ring::Rings;
use crate::releases::{self, Version};
use crate::trace::tracks::{ProcessInfo, Tracks};
use crate::trace::writer::Clocks;
use crate::{message, sys};

/// How long the last `finalize` may wait for the file.
const FINALIZE_WAIT: Duration = Duration::from_secs(2);
/// How long either may wait for CUPTI before that.
const CUPTI_WAIT: Duration = Duration::from_secs(1);
/// How long the exit of the process may wait for the file.
const EXIT_WAIT: Duration = Duration::from_secs(5);

static STATE: Mutex<State> = Mutex::new(State { phase: Phase::Fresh, live: 0, reports: None });

struct State {
    phase: Phase,
    /// Communicators between `init` and `finalize`.
    live: u32,
    reports: Option<Reports>,
}

enum Phase {
    /// Nothing happened yet.
    Fresh,
    Recording(Box<Session>),
    /// Switched off, failed to start, or ended. For good.
    Over,
}

struct Session {
    config: Config,
    collector: collector::Handle,
    /// The subscription to CUPTI, where it could be had.
    cupti: Option<Cupti>,
}

/// Who called `init`.
pub(crate) struct Caller {
    /// The interface in use.
    pub interface: u8,
    /// NCCL's version, if it tells.
    pub version: Option<Version>,
}

/// What `init` answers.
pub(crate) struct Answer {
    /// The communicator's context.
    pub context: Handle,
    /// What NCCL is asked to report.
    pub reports: Reports,
}

/// What NCCL is asked to report: decided once, because its mask cannot differ by communicator, and kernel channels
/// may not be switched while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reports {
    /// How much.
    pub preset: Preset,
    /// Whether the GPU's time per channel is part of it.
    pub kernel_ch: bool,
}

impl Reports {
    const NOTHING: Reports = Reports { preset: Preset::Off, kernel_ch: false };
}

/// A communicator's `init`. `birth` is called once the recorder is on.
pub(crate) fn comm_init(caller: &Caller, birth: impl FnOnce() -> CommInit) -> Answer {
    if recorder::is_forked() {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            message::line("this process was forked from one that records; it is not recorded itself");
        }
        return Answer { context: Handle::NONE, reports: Reports::NOTHING };
    }
    let mut state = lock();
    if matches!(state.phase, Phase::Fresh) {
        state.phase = match Session::start() {
            Ok(Some(session)) => Phase::Recording(Box::new(session)),
            Ok(None) => Phase::Over,
            Err(reason) => {
                message::line(&format!("{reason}; this process is not recorded"));
                Phase::Over
            }
        };
    }
    let State { phase: Phase::Recording(session), live, reports } = &mut *state else {
        return Answer { context: Handle::NONE, reports: Reports::NOTHING };
    };
    let reports = *reports.get_or_insert_with(|| decide(&session.config, caller));
    *live += 1;
    drop(state);
    let (context, recorded) = recorder::comm_init(birth());
    if !recorded {
        message::line("no room to record a communicator's init: its events are drawn under an unknown communicator");
    }
    Answer { context, reports }
}

/// A communicator's `finalize`; after the last one everything is in the file.
pub(crate) fn comm_finalize(context: Handle) {
    // Up to NCCL 2.27 also for a communicator whose `init` left no context.
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

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exit of the process.
extern "C" fn at_exit() {
    // In a forked child the lock may be held for ever by a thread that is not there.
    if recorder::is_forked() {
        return;
    }
    let state = match STATE.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        // Another thread is in `init` or `finalize` while the process exits: what is flushed is in the file.
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some(mut state) = state
        && let Phase::Recording(mut session) = std::mem::replace(&mut state.phase, Phase::Over)
    {
        // First: what is recorded up to here is drawn, and nothing is recorded that could not be.
        recorder::switch_off();
        if let Some(cupti) = &session.cupti {
            cupti.release(CUPTI_WAIT);
        }
        session.collector.close(EXIT_WAIT);
    }
}

impl Session {
    /// Starts recording; `None` when the settings say not to.
    fn start() -> Result<Option<Session>, String> {
        let config = Config::from_environment();
        if config.preset == Preset::Off {
            return Ok(None);
        }
        // With thousands of ranks, one is enough to say what holds for all.
        let speaks = config.rank.is_none_or(|(rank, _)| rank == 0);
        if speaks {
            config.complaints.iter().for_each(|complaint| message::line(complaint));
        }
        let (source, objection) =
            if config.tsc { Source::best() } else { (Source::Boottime, Some("NCCLSCOPE_CLOCK says so")) };
        source.select();
        let process = process(&config);
        let folder = config.folder(&process);
        let clocks = read_clocks();
        let name = format!("{}.{}.{}", process.host, process.pid, clocks.realtime / 1_000_000_000);
        let options = Options { compress: config.compress, min_free: config.min_free };
        let file = TraceFile::create(&folder, &name, options)
            .map_err(|error| format!("failed to create {}: {error}", folder.join(&name).display()))?;
        let path = file.path().to_owned();

        let tag = ProcessTag::from_random(sys::random());
        let mut tracks = Tracks::new(tag, clocks, &process_info(&config, &process));
        for complaint in &config.complaints {
            tracks.note(clocks.boottime, "bad setting", complaint);
        }
        let buffer_size = config.buffer_size;
        let rings = recorder::switch_on(|| Rings::new(buffer_size), tag)
            .ok_or_else(|| format!("failed to allocate {buffer_size} bytes for records"))?;
        let (cupti, kernels, gpu) = start_cupti(&config, speaks);
        let first_words = first_words(&config, source, objection);
        tracks.note(clocks.boottime, "recording started", &format!("{first_words}; {gpu}"));
        let collector = Collector {
            rings,
            clock: HostClock::new(host::pair()),
            correlator: Correlator::new(tag, process.pid),
            tracks,
            kernels,
            file,
            max_size: config.max_size,
            flush_period: Duration::from_millis(config.flush_period_ms),
        }
        .start()
        .map_err(|error| {
            recorder::switch_off();
            if let Some(cupti) = &cupti {
                cupti.release(CUPTI_WAIT);
            }
            format!("failed to start a thread: {error}")
        })?;
        sys::on_fork_and_exit(recorder::forked, at_exit);
        if speaks {
            message::line(&format!("recording to {}", path.display()));
        }
        Ok(Some(Session { config, collector, cupti }))
    }
}

/// Takes CUPTI if it can be had; what the trace says about that.
fn start_cupti(config: &Config, speaks: bool) -> (Option<Cupti>, Option<cupti::Reader>, String) {
    let copies = config.preset == Preset::Full;
    match cupti::start(&cupti::Options { copies, ..cupti::Options::new(config.cupti.clone()) }) {
        Ok((cupti, reader)) => {
            if speaks {
                message::line(&cupti.facts().announcement());
            }
            let facts = cupti.facts().to_string();
            (Some(cupti), Some(reader), facts)
        }
        Err(absent) => {
            // Without a driver there is no GPU to speak of, and what was switched off needs no word.
            let expected = matches!(absent, Absent::SwitchedOff | Absent::NoDriver);
            let text = format!("no GPU kernels: {absent}");
            if speaks && !expected {
                message::line(&text);
            }
            (None, None, text)
        }
    }
}

fn read_clocks() -> Clocks {
    Clocks { boottime: HostNs(sys::boottime_ns()), monotonic: sys::monotonic_ns(), realtime: sys::realtime_ns() }
}

fn process(config: &Config) -> Process {
    let job = config::job(&|name| std::env::var(name).ok()).unwrap_or_else(|| {
        // The ranks that one launcher started on this host share their parent, and so a folder.
        let parent = config.rank.and_then(|_| sys::parent_start());
        sys::utc(parent.unwrap_or_else(|| sys::realtime_ns() / 1_000_000_000))
    });
    Process { host: sys::host_name(), pid: sys::process_id(), job }
}

fn process_info(config: &Config, process: &Process) -> ProcessInfo {
    let program = || {
        let path = std::env::current_exe().ok()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    };
    let who = match config.rank {
        Some((rank, _)) => format!("rank {rank}"),
        None => program().unwrap_or_else(|| "process".into()),
    };
    let labels = match config.rank {
        Some((_, source)) => vec![format!("rank from {source}")],
        None => vec!["rank unknown".into()],
    };
    ProcessInfo { pid: process.pid, name: format!("{who} · {}", process.host), labels }
}

fn first_words(config: &Config, source: Source, objection: Option<&str>) -> String {
    let clock = match objection {
        Some(objection) => format!("{} (not the TSC: {objection})", source.name()),
        None => source.name().to_owned(),
    };
    let preset = match config.preset {
        Preset::Off => "off",
        Preset::Light => "light",
        Preset::Standard => "standard",
        Preset::Full => "full",
    };
    format!("ncclscope {}; preset {preset}; clock {clock}", env!("CARGO_PKG_VERSION"))
}

/// What NCCL is asked to report; says why if that is less than was wished.
fn decide(config: &Config, caller: &Caller) -> Reports {
    let kernel_ch = match config.kernel_ch {
        KernelCh::Off => false,
        KernelCh::Force => true,
        KernelCh::On => {
            let allgatherv_off = std::env::var("NCCL_ALLGATHERV_ENABLE").is_ok_and(|value| value.trim() == "0");
            match releases::kernel_ch(caller.version, caller.interface, allgatherv_off) {
                Ok(()) => true,
                Err(reason) => {
                    message::line(&format!("no GPU time per channel: {reason}. NCCLSCOPE_KERNEL_CH=force insists"));
                    false
                }
            }
        }
    };
    Reports { preset: config.preset, kernel_ch }
}
