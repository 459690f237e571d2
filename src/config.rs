//! Settings: one table of all environment variables, read once.
//!
//! A bad value never stops the job: it is one line on stderr, the default, and a note in the trace.

mod environment;
mod file;
mod launcher;
mod reader;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub use environment::environment;
pub use launcher::{RUN_ID, job};
use reader::Reader;
pub use settings::{SETTINGS, Setting, Values};

use crate::model::kinds::{self, Kinds};
use crate::model::selection::{Ranks, Selection};
use crate::sys;

/// What is reported, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Nothing.
    Off,
    /// No trace: only totals of operations and their kernels.
    Metrics,
    /// Calls, launches and operations.
    Light,
    /// Also the proxy's operations and steps.
    Standard,
    /// Everything.
    Full,
}

impl Preset {
    /// As written in the settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Off => "off",
            Preset::Metrics => "metrics",
            Preset::Light => "light",
            Preset::Standard => "standard",
            Preset::Full => "full",
        }
    }

    /// What NCCL is asked for at this preset.
    #[must_use]
    pub fn kinds(self) -> Kinds {
        match self {
            Preset::Off => Kinds::NONE,
            Preset::Metrics => Kinds::METRICS,
            Preset::Light => Kinds::LIGHT,
            Preset::Standard => Kinds::STANDARD,
            Preset::Full => Kinds::FULL,
        }
    }
}

/// What is printed on stderr, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Log {
    /// Problems.
    Quiet,
    /// Problems, and where it records to.
    Normal,
    /// Everything, from every rank.
    Debug,
}

/// The value of `NCCLSCOPE_EVENTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Added.
    pub more: Kinds,
    /// Left out.
    pub less: Kinds,
}

impl Events {
    fn read(text: &str) -> Option<Events> {
        let mut events = Events::default();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            let (is_less, name) = match word.strip_prefix('-') {
                Some(name) => (true, name),
                None => (false, word.strip_prefix('+').unwrap_or(word)),
            };
            let kind = Kinds::named(name)?;
            // The last word wins.
            let Events { more, less } = events;
            events = match is_less {
                true => Events { more: more - kind, less: less | kind },
                false => Events { more: more | kind, less: less - kind },
            };
        }
        Some(events)
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signed = |sign: &'static str, set: Kinds| {
            kinds::NAMES.iter().filter(move |(_, kind)| set.has(*kind)).map(move |(name, _)| format!("{sign}{name}"))
        };
        let words: Vec<_> = signed("+", self.more).chain(signed("-", self.less)).collect();
        f.write_str(&words.join(","))
    }
}

/// Whether NCCL is asked for kernel channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCh {
    /// No.
    Off,
    /// Yes, unless this NCCL is known to fail with it.
    On,
    /// Yes.
    Force,
}

/// Whether kernels are recorded through CUPTI, and which copy of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cupti {
    /// No.
    Off,
    /// Yes, through the copy that the process has, or the one that fits.
    Auto,
    /// Like `Auto`, and beside other tools that share it.
    Share,
    /// Yes, through the copy that the process has, or otherwise this one.
    Path(PathBuf),
}

/// How kernels may be matched. All but `All` are for diagnosis, to check one method against
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// By every method.
    All,
    /// Without callbacks at launches, by the external ids that replace them.
    External,
    /// Without both, and without graph callbacks: by stream and the GPU's timer.
    Timer,
}

/// How kernels are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuEvents {
    /// On one track per stream.
    Track,
    /// As Perfetto's render stages.
    RenderStage,
    /// In both ways.
    Both,
}

/// The clock that CUPTI's records should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuptiClock {
    /// `CLOCK_BOOTTIME` if the recording began in `cuInit`, otherwise CUPTI's own.
    Auto,
    /// CUPTI's own clock, the wall clock.
    Wall,
    /// `CLOCK_BOOTTIME`.
    Boottime,
}

/// Where the summary goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// Nowhere.
    Off,
    /// Into a file beside the trace.
    File,
    /// A few lines to stderr.
    Stderr,
    /// Both.
    All,
}

/// What the trace says about the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Env {
    /// Nothing.
    Off,
    /// Which of the known variables are set.
    Names,
    /// Also their values.
    List,
}

/// The settings of a run, with a field for each entry of [`SETTINGS`]; hence more than twenty
/// fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether anything happens at all.
    pub enabled: bool,
    /// What is printed on stderr.
    pub log: Log,
    /// What NCCL is asked to report.
    pub preset: Preset,
    /// What NCCL is asked for in addition, or not asked for.
    pub events: Events,
    /// Whether NCCL is asked for kernel channels.
    pub kernel_ch: KernelCh,
    /// Another profiler plugin to be loaded beside ours.
    pub chain: Option<PathBuf>,
    /// Whether kernels are recorded.
    pub cupti: Cupti,
    /// The clock that its records should have.
    pub cupti_clock: CuptiClock,
    /// How kernels may be matched.
    pub matching: Matching,
    /// Whether calls into CUDA are recorded.
    pub cuda_api: bool,
    /// Whether NVTX ranges are recorded.
    pub nvtx: bool,
    /// How kernels are drawn.
    pub gpu_events: GpuEvents,
    /// The folder of the trace; `None` is the default.
    pub output: Option<String>,
    /// Permissions of files, if set.
    pub file_mode: Option<u32>,
    /// Size limit of the file in bytes.
    pub max_size: u64,
    /// Free space to leave in bytes.
    pub min_free: u64,
    /// Memory of the rings in bytes.
    pub buffer_size: usize,
    /// Memory for everything else, in bytes.
    pub heap_size: usize,
    /// Time between flushes in milliseconds.
    pub flush_period_ms: u64,
    /// Whether packets are compressed.
    pub compress: bool,
    /// Where the summary goes.
    pub summary: Summary,
    /// Whether its file has comma-separated values instead of text.
    pub summary_csv: bool,
    /// How often the summary is made while the job runs, in seconds; 0: only at its end.
    pub summary_period_s: u64,
    /// The file for metrics, with its placeholders.
    pub metrics_file: Option<String>,
    /// The first port for metrics.
    pub metrics_port: Option<u16>,
    /// How often metrics are made, in seconds.
    pub metrics_period_s: u64,
    /// What the trace says about the environment.
    pub env: Env,
    /// Whether a capture is made.
    pub capture: bool,
    /// Whether the TSC may be used.
    pub tsc: bool,
    /// The rank in the job, and the variable it came from.
    pub rank: Option<(u32, &'static str)>,
    /// The rank among those of the host.
    pub local_rank: Option<u32>,
    /// The number of ranks in the job.
    pub world_size: Option<u32>,
    /// What names the run, with the variable that says so.
    pub run: Option<String>,
    /// The ranks in the job that record; `None`: all.
    pub ranks: Option<Ranks>,
    /// Which part of the job is drawn.
    pub selection: Selection,
    /// What was wrong with the settings, one sentence each.
    pub complaints: Vec<String>,
}

/// Memory for records with [`Preset::Metrics`], in bytes.
const METRICS_BUFFER: u64 = 1 << 20;

/// The names of the presets.
const PRESETS: &[(&str, Preset)] = &[
    ("metrics", Preset::Metrics),
    ("light", Preset::Light),
    ("standard", Preset::Standard),
    ("full", Preset::Full),
    ("off", Preset::Off),
];

/// Whether the settings switch everything off in this process. Allocates nothing.
#[must_use]
pub fn is_off() -> bool {
    sys::variable_is(c"NCCLSCOPE_ENABLE", "0") || sys::variable_is(c"NCCLSCOPE_PRESET", "off")
}

impl Config {
    /// The settings of this process.
    #[must_use]
    pub fn from_environment() -> Config {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Config::read(&variable, sys::variable_names().into_iter())
    }

    /// The settings that `variable` gives; `names` are all variables that are set.
    #[must_use]
    pub fn read(variable: &dyn Fn(&str) -> Option<String>, names: impl Iterator<Item = String>) -> Config {
        let file = variable(file::CONFIG).filter(|path| !path.trim().is_empty());
        let mut file = file.map(|path| file::Settings::read(path.trim())).unwrap_or_default();
        let complaints: Vec<_> = names
            .filter(|name| name.starts_with("NCCLSCOPE_") && !SETTINGS.iter().any(|known| known.name == name))
            .map(|name| match settings::closest(&name) {
                Some(known) => format!("{name} is not a setting; did you mean {known}?"),
                None => format!("{name} is not a setting; it is ignored"),
            })
            .chain(std::mem::take(&mut file.complaints))
            .collect();
        let variable = &|name: &str| {
            variable(name).filter(|value| !value.trim().is_empty()).or_else(|| file.get(name).map(str::to_owned))
        };
        let mut reader = Reader { variable, complaints };
        let preset = reader.choice("NCCLSCOPE_PRESET", PRESETS);
        let (events, kernel_ch) = reader.events(preset);
        let rank = reader.rank();
        let mut selection = reader.selection(rank.is_none());
        // Nobody sees them, and their times count all the same.
        selection.only_nccl |= preset == Preset::Metrics;
        let summary = reader.choice(
            "NCCLSCOPE_SUMMARY",
            &[("all", Summary::All), ("file", Summary::File), ("stderr", Summary::Stderr), ("off", Summary::Off)],
        );
        let metrics_file = variable("NCCLSCOPE_METRICS_FILE").filter(|path| !path.is_empty());
        let metrics_port = u16::try_from(reader.number("NCCLSCOPE_METRICS_PORT")).ok().filter(|port| *port > 0);
        let capture = reader.switch("NCCLSCOPE_CAPTURE");
        let keeps_nothing = summary == Summary::Off && metrics_file.is_none() && metrics_port.is_none() && !capture;
        let summary = match preset == Preset::Metrics && keeps_nothing {
            true => {
                let text = "NCCLSCOPE_PRESET=metrics writes no trace, so with NCCLSCOPE_SUMMARY=off and without a file or \
                            port for metrics nothing would be kept; it leaves a summary in a file";
                reader.complaints.push(text.into());
                Summary::File
            }
            false => summary,
        };
        let buffer_size = match reader.is_set("NCCLSCOPE_BUFFER_SIZE") || preset != Preset::Metrics {
            true => reader.number("NCCLSCOPE_BUFFER_SIZE"),
            false => METRICS_BUFFER,
        };
        Config {
            enabled: reader.switch("NCCLSCOPE_ENABLE"),
            log: reader
                .choice("NCCLSCOPE_LOG", &[("quiet", Log::Quiet), ("normal", Log::Normal), ("debug", Log::Debug)]),
            preset,
            events,
            kernel_ch,
            cupti_clock: reader.choice(
                "NCCLSCOPE_CUPTI_CLOCK",
                &[("auto", CuptiClock::Auto), ("wall", CuptiClock::Wall), ("boottime", CuptiClock::Boottime)],
            ),
            matching: reader.choice(
                "NCCLSCOPE_MATCH",
                &[("all", Matching::All), ("external", Matching::External), ("timer", Matching::Timer)],
            ),
            cuda_api: reader.needs_cupti("NCCLSCOPE_CUDA_API"),
            nvtx: reader.needs_cupti("NCCLSCOPE_NVTX"),
            gpu_events: reader.choice(
                "NCCLSCOPE_GPU_EVENTS",
                &[("track", GpuEvents::Track), ("renderstage", GpuEvents::RenderStage), ("both", GpuEvents::Both)],
            ),
            chain: variable("NCCLSCOPE_CHAIN").map(|path| path.trim().into()),
            cupti: reader.cupti(),
            output: variable("NCCLSCOPE_OUTPUT").filter(|folder| !folder.is_empty()),
            file_mode: reader.file_mode(),
            max_size: reader.number("NCCLSCOPE_MAX_SIZE"),
            min_free: reader.number("NCCLSCOPE_MIN_FREE"),
            buffer_size: buffer_size as usize,
            heap_size: reader.number("NCCLSCOPE_HEAP_SIZE") as usize,
            flush_period_ms: reader.number("NCCLSCOPE_FLUSH_PERIOD"),
            compress: reader.switch("NCCLSCOPE_COMPRESS"),
            summary,
            summary_csv: match reader.is_set("NCCLSCOPE_SUMMARY_FORMAT") || preset != Preset::Metrics {
                true => reader.choice("NCCLSCOPE_SUMMARY_FORMAT", &[("table", false), ("csv", true)]),
                // There is no trace to make it of.
                false => true,
            },
            summary_period_s: reader.number("NCCLSCOPE_SUMMARY_PERIOD"),
            metrics_file,
            metrics_port,
            metrics_period_s: reader.number("NCCLSCOPE_METRICS_PERIOD"),
            env: reader.choice("NCCLSCOPE_ENV", &[("list", Env::List), ("names", Env::Names), ("off", Env::Off)]),
            capture,
            tsc: reader.choice("NCCLSCOPE_CLOCK", &[("auto", true), ("boottime", false)]),
            rank,
            local_rank: launcher::local_rank(variable),
            run: launcher::run(variable),
            ranks: reader.ranks(),
            selection,
            world_size: reader.world_size(rank),
            complaints: reader.complaints,
        }
    }

    /// Whether nothing happens in this process.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let is_other_rank = |ranks: &Ranks| self.rank.is_some_and(|(rank, _)| !ranks.contains(rank));
        !self.enabled || self.preset == Preset::Off || self.ranks.as_ref().is_some_and(is_other_rank)
    }

    /// The kinds of events that NCCL is asked for, provided that it supports them all.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let Events { more, less } = self.events;
        let wished = (self.preset.kinds() | more) - less;
        match self.kernel_ch {
            KernelCh::Off => wished - Kinds::CHANNELS,
            KernelCh::On | KernelCh::Force => wished | Kinds(kinds::bit::KERNEL_CH),
        }
    }

    /// The preset, and what was added or left out.
    #[must_use]
    pub fn wish(&self) -> String {
        let comma = if self.events == Events::default() { "" } else { "," };
        format!("{}{comma}{}", self.preset.name(), self.events)
    }

    /// Whether this process prints what holds for all processes: with thousands of ranks, one is
    /// enough.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.log == Log::Debug || self.rank.is_none_or(|(rank, _)| rank == 0)
    }

    /// The folder for the trace, with its placeholders filled in.
    #[must_use]
    pub fn folder(&self, process: &Process) -> PathBuf {
        match &self.output {
            Some(template) => self.filled_in(template, process),
            None => PathBuf::from(format!("ncclscope-{}", process.job)),
        }
    }

    /// The file for metrics, with its placeholders filled in.
    #[must_use]
    pub fn metrics_path(&self, process: &Process) -> Option<PathBuf> {
        self.metrics_file.as_ref().map(|template| self.filled_in(template, process))
    }

    fn filled_in(&self, template: &str, process: &Process) -> PathBuf {
        let number = |number: Option<u32>| number.map_or("unknown".into(), |number| number.to_string());
        let mut folder = String::new();
        let mut letters = template.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                folder.push(letter);
                continue;
            }
            match letters.next() {
                Some('h') => folder.push_str(&process.host),
                Some('p') => folder.push_str(&process.pid.to_string()),
                Some('r') => folder.push_str(&number(self.rank.map(|(rank, _)| rank))),
                Some('l') => folder.push_str(&number(self.local_rank)),
                Some('j') => folder.push_str(&process.job),
                Some('%') | None => folder.push('%'),
                Some(other) => folder.extend(['%', other]),
            }
        }
        PathBuf::from(folder)
    }
}

/// How a process is named in files and folders.
#[derive(Clone, Debug)]
pub struct Process {
    /// The host.
    pub host: String,
    /// The process id.
    pub pid: i32,
    /// The job, or the time of its start.
    pub job: String,
}
