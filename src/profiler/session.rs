//! A recording while it goes on: how it starts, and how CUPTI is lent and taken again.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use super::facts::{self, Moment};
use crate::clock::host::{self, Source};
use crate::collect::collector::{self, Collector, Wanted};
use crate::collect::file::{Options, TraceFile};
use crate::collect::handle::Handle;
use crate::config::{self, Config, CuptiClock, GpuEvents, Preset, Process};
use crate::cupti::{self, Absent, Acquired, Cupti};
use crate::model::ids::ProcessTag;
use crate::model::kinds::{self, Kinds};
use crate::model::time::HostNs;
use crate::pipeline::input::{Begin, remark};
use crate::record::recorder;
use crate::record::ring::Rings;
use crate::releases::{self, FaultId};
use crate::trace::tracks::Stages;
use crate::trace::writer::Clocks;
use crate::{fault, memory, message, sys};

/// How long the last `finalize`, or a start that failed, may wait for CUPTI.
pub(super) const CUPTI_WAIT: Duration = Duration::from_secs(1);
/// How long it may take to release CUPTI for another tool.
pub(super) const HAND_OVER_WAIT: Duration = Duration::from_secs(5);
/// How long the first `init` may wait for the file to be created.
const CREATE_WAIT: Duration = Duration::from_secs(10);

/// A recording that has started.
pub(super) struct Session {
    pub(super) config: Config,
    pub(super) collector: Handle,
    /// The subscription to CUPTI, if we got it.
    pub(super) cupti: Option<Cupti>,
    /// Where it records to, for messages.
    place: String,
    /// Whether the GPU's kernels are recorded, or why not.
    pub(super) gpu: String,
    /// Why CUPTI was not taken when it was last asked for; empty if it was.
    refused: String,
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

/// Why a recording did not start.
#[derive(Debug)]
pub(super) enum NotStarted {
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
    pub(super) fn start(moment: Moment, cupti_lent: bool) -> Result<Session, NotStarted> {
        let config = settings()?;
        let (source, objection) =
            if config.tsc { Source::best() } else { (Source::Boottime, Some("NCCLSCOPE_CLOCK says so")) };
        source.select();
        let process = facts::this_process(&config);
        let folder = config.folder(&process);
        let summary = wanted(&config, &process);
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
        let first_words = facts::first_words(&config, source, objection);
        message::detail(format_args!("{first_words}; {gpu}"));
        let by = if moment == Moment::CudaInit { "by CUDA_INJECTION64_PATH in cuInit; " } else { "" };
        fault::at("start");
        let capture = file.capture().map(facts::file_name);
        let begin = Begin {
            tag,
            clocks,
            process: facts::process_info(&config, &process, moment),
            stages: match config.gpu_events {
                GpuEvents::Track => None,
                GpuEvents::RenderStage => Some(Stages::Alone),
                GpuEvents::Both => Some(Stages::Beside),
            },
            complaints: config.complaints.clone(),
            attributes: facts::attributes(&config, &process, cupti.as_ref(), moment),
            first_words: format!("{first_words}; {by}{}{gpu}", if cupti.is_some() { "" } else { remark::NO_KERNELS }),
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
            summary,
        }
        .start()
        .map_err(|error| {
            recorder::switch_off();
            if let Some(cupti) = &cupti {
                cupti.release(CUPTI_WAIT);
            }
            NotStarted::Thread(error)
        })?;
        let capture = capture.map(|name| format!(" and {name}")).unwrap_or_default();
        let place = match config.preset {
            Preset::Metrics => format!("{} (a summary, no trace{capture})", folder.display()),
            _ => format!("{} (this process: {}{capture})", folder.display(), facts::file_name(&path)),
        };
        Ok(Session { config, collector, cupti, place, gpu, refused: String::new() })
    }

    /// The first line that the recording prints.
    pub(super) fn first_line(&self, nccl: &str) -> String {
        let gpu = match &self.cupti {
            Some(cupti) => format!("GPU kernels: yes, through {}", cupti.facts().announcement()),
            None => format!("GPU kernels: no, {}", self.gpu),
        };
        let ranks = self.config.selection.ranks.as_ref().map_or_else(String::new, |ranks| {
            format!("; ranks {ranks} of each communicator (no launcher tells this process its rank in the job)")
        });
        format!("recording to {}; {nccl}; preset {}{ranks}; {gpu}", self.place, self.config.wish())
    }

    pub(super) fn release_cupti(&self) -> HandOver {
        let Some(cupti) = &self.cupti else { return HandOver::Done };
        let begin = now();
        if !cupti.release(HAND_OVER_WAIT) {
            let text = "requested, but CUPTI has not returned its records in time; kernels from here on may be missing";
            self.collector.note(begin, remark::NOT_RELEASED, text.into());
            return HandOver::Late;
        }
        // The next owner may finalize CUPTI, and with it the names in what came back. The remarks
        // about the end come with them.
        if self.collector.take_kernels(CUPTI_WAIT) { HandOver::Done } else { HandOver::Late }
    }

    pub(super) fn acquire_cupti(&mut self) -> HandOver {
        let result = match &mut self.cupti {
            Some(cupti) => match cupti.acquire(HAND_OVER_WAIT) {
                Ok(Acquired::Held) => return HandOver::Done,
                Ok(Acquired::Again(silence)) => {
                    if let Some(silence) = silence {
                        self.collector.note(silence.since, remark::SILENT, silence.to_string());
                    }
                    let fault = releases::cupti_fault(cupti.facts().version, FaultId::GraphLaunches);
                    let known = fault.map_or(String::new(), |fault| format!("; known fault: {}", fault.what));
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
                let text = format!("{}{absent}", remark::NO_KERNELS);
                if self.refused != text {
                    if self.config.speaks() && absent != Absent::SwitchedOff {
                        message::line(&text);
                    }
                    self.collector.note(now(), remark::NOT_TAKEN, text.clone());
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

/// The settings, if they want this process recorded and there is memory for it.
fn settings() -> Result<Config, NotStarted> {
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
    Ok(config)
}

/// Where the summary goes, and the metrics.
fn wanted(config: &Config, process: &Process) -> Wanted {
    let local_rank = config.local_rank.and_then(|rank| u16::try_from(rank).ok()).unwrap_or(0);
    Wanted {
        file: matches!(config.summary, config::Summary::File | config::Summary::All),
        // One process for the whole job.
        stderr: matches!(config.summary, config::Summary::Stderr | config::Summary::All)
            && config.rank.is_some_and(|(rank, _)| rank == 0),
        csv: config.summary_csv,
        period: (config.summary_period_s > 0).then(|| Duration::from_secs(config.summary_period_s)),
        // Before the program changes its directory.
        metrics: config.metrics_path(process).and_then(|path| std::path::absolute(path).ok()),
        port: config.metrics_port.and_then(|port| port.checked_add(local_rank)),
        metrics_period: Duration::from_secs(config.metrics_period_s),
    }
}

/// Whether a thread of another copy is running in this process. The loader does not show us such a
/// copy if it is in a namespace of its own (`dlmopen`).
fn has_other_copy() -> bool {
    let main = std::process::id() as i32;
    sys::threads().iter().any(|(tid, name)| *tid != main && name.as_bytes() == collector::THREAD.to_bytes())
}

pub(super) fn now() -> HostNs {
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

fn read_clocks() -> Clocks {
    Clocks { boottime: now(), monotonic: sys::monotonic_ns(), realtime: sys::realtime_ns() }
}
