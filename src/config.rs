//! Settings: one table of all environment variables, read once.
//!
//! A bad value never stops the job: it is one line on stderr, the default, and a note in the trace.

use std::fmt;
use std::path::PathBuf;

use crate::model::kinds::{self, Kinds};
use crate::sys;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What a value may be.
    pub values: Values,
    /// What holds without it.
    pub default: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
}

impl Setting {
    /// Whether it is off or on.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        matches!(self.values, Values::Words(["0", "1"]))
    }
}

/// What the value of a setting may be. As text, for the list of settings and for complaints: with range and unit.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these words.
    Words(&'static [&'static str]),
    /// From here to there, in bytes.
    Bytes(u64, u64),
    /// From here to there, in this unit.
    Number(u64, u64, &'static str),
    /// What is said here.
    Text(&'static str),
}

/// Off or on.
const SWITCH: Values = Values::Words(&["0", "1"]);

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Values::Words(words) => f.write_str(&words.join(" | ")),
            Values::Bytes(from, to) => write!(f, "{} to {} bytes, also in K, M, G or T", short(from), short(to)),
            Values::Number(from, to, unit) => write!(f, "{from} to {to} {unit}"),
            Values::Text(text) => f.write_str(text),
        }
    }
}

/// A size as a setting would have it: `32M`.
fn short(bytes: u64) -> String {
    let unit =
        [(40, "T"), (30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| bytes >> shift << shift == bytes);
    match unit {
        Some((shift, letter)) if bytes > 0 => format!("{}{letter}", bytes >> shift),
        _ => bytes.to_string(),
    }
}

/// More than any file system has.
const MOST_BYTES: u64 = 8_000_000 << 40;

/// All settings. The documentation, `ncclscope settings` and the search for misspelt variables use this table.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "NCCLSCOPE_ENABLE",
        values: SWITCH,
        default: "1",
        help: "0 = nothing of this library happens in the process: NCCL is asked for nothing, and there is no thread, no file, no CUPTI and \
               no message",
    },
    Setting {
        name: "NCCLSCOPE_PRESET",
        values: Values::Words(&["light", "standard", "full", "off"]),
        default: "standard",
        help: "what NCCL is asked to report: light = calls, launches and operations; standard = the proxy's \
               operations and steps too; full = everything",
    },
    Setting {
        name: "NCCLSCOPE_EVENTS",
        values: Values::Text(
            "a list of +KIND and -KIND, as in +ProxyCtrl,-ProxyStep; kinds: Group, Coll, P2p, ProxyOp, ProxyStep, ProxyCtrl, KernelCh, \
             NetPlugin, GroupApi, CollApi, P2pApi, KernelLaunch, CeColl, CeSync, CeBatch, KernelPhase",
        ),
        default: "those of the preset",
        help: "kinds of events that NCCL is asked for beside those of the preset (+), or not (-), by NCCL's names. What others stand on \
               NCCL reports unasked: no ProxyStep without its ProxyOp",
    },
    Setting {
        name: "NCCLSCOPE_KERNEL_CH",
        values: Values::Words(&["0", "1", "force"]),
        default: "1 with preset full, else 0",
        help: "the GPU's own time per channel; it costs time on NCCL's threads, and `1` is refused on releases \
               known to hang or crash with it (`force` insists)",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI",
        values: Values::Text("auto | 0 | path of libcupti.so, with a /"),
        default: "auto",
        help: "the execution of GPU kernels through CUPTI, which has one owner in a process: auto = take it if it is free; \
               0 = leave it to torch.profiler and others; a path = also take it if the process has loaded none, from there",
    },
    Setting {
        name: "NCCLSCOPE_CUDA_API",
        values: SWITCH,
        default: "0",
        help: "calls into the CUDA driver and runtime, through CUPTI; it costs time in each of them, and much of the file",
    },
    Setting {
        name: "NCCLSCOPE_NVTX",
        values: SWITCH,
        default: "0",
        help: "the program's NVTX ranges, through CUPTI: NVTX_INJECTION64_PATH is set to its library, or may be so before the \
               program starts, which catches those that use NVTX before NCCL",
    },
    Setting {
        name: "NCCLSCOPE_MATCH",
        values: Values::Words(&["all", "external", "timer"]),
        default: "all",
        help: "for diagnosis, how kernels may be matched: all = by the callback of their launch, and by whatever there is where that \
               cannot be had; external = without that callback, by an external id; timer = by neither, only by stream and the \
               GPU's timer, which needs NCCLSCOPE_KERNEL_CH",
    },
    Setting {
        name: "NCCLSCOPE_GPU_EVENTS",
        values: Values::Words(&["track", "renderstage", "both"]),
        default: "track",
        help: "how kernels are drawn: track = on a track a stream; renderstage = as Perfetto's GPU work, which its compute page lists \
               but ncclscope's own commands do not read; both",
    },
    Setting {
        name: "NCCLSCOPE_OUTPUT",
        values: Values::Text("folder; %h host, %p process id, %r world rank, %j job"),
        default: "./ncclscope-<job or start time>",
        help: "where the trace goes, one file a process",
    },
    Setting {
        name: "NCCLSCOPE_FILE_MODE",
        values: Values::Text(
            "6, then a digit for the group and one for all others: 0, 2, 4 or 6; octal, as chmod has it",
        ),
        default: "600, and folders as the umask says",
        help: "who may read what is written, whatever the umask says: 640 = the group may read traces, captures, and the folders made for them",
    },
    Setting {
        name: "NCCLSCOPE_LOG",
        values: Values::Words(&["quiet", "normal", "debug"]),
        default: "normal",
        help: "what is said on stderr: normal = rank 0 says where it records to and what is wrong with the settings, and each rank what \
               spoils its own recording; quiet = only the latter two; debug = every rank says everything",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI_CLOCK",
        values: Values::Words(&["auto", "wall", "boottime"]),
        default: "auto",
        help: "the clock of CUPTI's records: the wall clock, which may be set while a job runs, or CLOCK_BOOTTIME, which never is \
               but which an older profiler does not expect after us; auto: boottime where the recording began in cuInit",
    },
    Setting {
        name: "NCCLSCOPE_RANK",
        values: Values::Number(0, u32::MAX as u64, "(a rank)"),
        default: "RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID",
        help: "this process's rank in the job",
    },
    Setting {
        name: "NCCLSCOPE_RUN_ID",
        values: Values::Text("text"),
        default: "the job of the launcher",
        help: "names the run, alike in all of its processes: ncclscope merge refuses files of two runs",
    },
    Setting {
        name: "NCCLSCOPE_MAX_SIZE",
        values: Values::Bytes(1 << 20, MOST_BYTES),
        default: "2G",
        help: "size at which a trace file stops growing; from 80 % on the proxy's steps are left out",
    },
    Setting {
        name: "NCCLSCOPE_MIN_FREE",
        values: Values::Bytes(0, MOST_BYTES),
        default: "1G",
        help: "free space of the file system below which recording stops",
    },
    Setting {
        name: "NCCLSCOPE_BUFFER_SIZE",
        values: Values::Bytes(1 << 20, 1 << 30),
        default: "32M",
        help: "memory for records on their way to the trace; what finds no room is dropped and counted",
    },
    Setting {
        name: "NCCLSCOPE_FLUSH_PERIOD",
        values: Values::Number(10, 3_600_000, "milliseconds"),
        default: "1000",
        help: "how much of a recording a killed job loses at most",
    },
    Setting { name: "NCCLSCOPE_COMPRESS", values: SWITCH, default: "1", help: "compressed packets in the trace" },
    Setting {
        name: "NCCLSCOPE_CAPTURE",
        values: SWITCH,
        default: "0",
        help: "all that the recording reads, as it came, in a second file beside the trace that ends in .capture and grows up to \
               NCCLSCOPE_MAX_SIZE by itself: for ncclscope replay and for bug reports. It holds more than the trace: every record and \
               buffer of CUPTI's whole, with addresses and with what a limit left out of the trace; no data of the program's, no environment",
    },
    Setting {
        name: "NCCLSCOPE_CLOCK",
        values: Values::Words(&["auto", "boottime"]),
        default: "auto",
        help: "the clock of the recorder: the TSC where it can be trusted, or always CLOCK_BOOTTIME",
    },
];

/// What is reported, from less to more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Nothing.
    Off,
    /// Calls, launches and operations.
    Light,
    /// The proxy's operations and steps too.
    Standard,
    /// Everything.
    Full,
}

impl Preset {
    /// As the settings have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Preset::Off => "off",
            Preset::Light => "light",
            Preset::Standard => "standard",
            Preset::Full => "full",
        }
    }

    /// What NCCL is asked for with it.
    #[must_use]
    pub fn kinds(self) -> Kinds {
        match self {
            Preset::Off => Kinds::NONE,
            Preset::Light => Kinds::LIGHT,
            Preset::Standard => Kinds::STANDARD,
            Preset::Full => Kinds::FULL,
        }
    }
}

/// What is said on stderr, from less to more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Log {
    /// What is wrong.
    Quiet,
    /// Where it records to, besides.
    Normal,
    /// Everything, of every rank.
    Debug,
}

/// What `NCCLSCOPE_EVENTS` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Wished for.
    pub more: Kinds,
    /// Not wished for.
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
            // The last word holds.
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
    /// Yes, through the copy that the process has, or else this one.
    Path(PathBuf),
}

/// How kernels may be matched: less than everything is for diagnosis, where one way is to be held against another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// By whatever there is.
    All,
    /// Without callbacks at launches: by the external ids that take their place.
    External,
    /// Without both, and without those of graphs: by stream and the GPU's timer.
    Timer,
}

/// How kernels are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuEvents {
    /// On a track a stream.
    Track,
    /// As what Perfetto calls render stages.
    RenderStage,
    /// Both ways.
    Both,
}

/// Which clock CUPTI's records are to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuptiClock {
    /// `CLOCK_BOOTTIME` where nobody used CUPTI before us, else CUPTI's own.
    Auto,
    /// CUPTI's own, the wall clock.
    Wall,
    /// `CLOCK_BOOTTIME`.
    Boottime,
}

/// The settings of a run: a field for each entry of [`SETTINGS`], which is why they are more than twenty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Something happens at all.
    pub enabled: bool,
    /// What is said on stderr.
    pub log: Log,
    /// What NCCL is asked to report.
    pub preset: Preset,
    /// What it is asked for besides, or not.
    pub events: Events,
    /// Whether it is asked for kernel channels.
    pub kernel_ch: KernelCh,
    /// Whether kernels are recorded.
    pub cupti: Cupti,
    /// Which clock its records are to have.
    pub cupti_clock: CuptiClock,
    /// How they may be matched.
    pub matching: Matching,
    /// Whether calls into CUDA are recorded.
    pub cuda_api: bool,
    /// Whether ranges of NVTX are recorded.
    pub nvtx: bool,
    /// How kernels are drawn.
    pub gpu_events: GpuEvents,
    /// The folder of the trace; `None` is the default.
    pub output: Option<String>,
    /// Permissions of files, where somebody says so.
    pub file_mode: Option<u32>,
    /// Size limit of the file in bytes.
    pub max_size: u64,
    /// Free space to leave in bytes.
    pub min_free: u64,
    /// Memory of the rings in bytes.
    pub buffer_size: usize,
    /// Time between flushes in milliseconds.
    pub flush_period_ms: u64,
    /// Compressed packets.
    pub compress: bool,
    /// A capture is made.
    pub capture: bool,
    /// The TSC may be used.
    pub tsc: bool,
    /// Rank in the job, and the variable it came from.
    pub rank: Option<(u32, &'static str)>,
    /// Ranks of the job.
    pub world_size: Option<u32>,
    /// What was wrong with the settings, one sentence each.
    pub complaints: Vec<String>,
}

/// The presets' names.
const PRESETS: &[(&str, Preset)] =
    &[("light", Preset::Light), ("standard", Preset::Standard), ("full", Preset::Full), ("off", Preset::Off)];

/// Where a world rank may be found, best first. `SLURM_PROCID` comes last: under torchrun it is the node's.
/// Beside each, where the same launcher says how many there are.
const RANKS: &[(&str, Option<&str>)] = &[
    ("NCCLSCOPE_RANK", Some("WORLD_SIZE")),
    ("RANK", Some("WORLD_SIZE")),
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("PMIX_RANK", None),
    ("PMI_RANK", Some("PMI_SIZE")),
    ("SLURM_PROCID", Some("SLURM_NTASKS")),
];
/// Names the run where somebody says so.
pub const RUN_ID: &str = "NCCLSCOPE_RUN_ID";
/// Where a job's name may be found.
const JOBS: &[&str] =
    &["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"];

/// Whether the settings say that nothing is to happen in this process. Allocates nothing.
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

    /// The settings that `variable` gives; `names` are all variables there are.
    #[must_use]
    pub fn read(variable: &dyn Fn(&str) -> Option<String>, names: impl Iterator<Item = String>) -> Config {
        let mut complaints: Vec<String> = names
            .filter(|name| name.starts_with("NCCLSCOPE_") && !SETTINGS.iter().any(|known| known.name == name))
            .map(|name| match closest(&name) {
                Some(known) => format!("{name} is not a setting; did you mean {known}?"),
                None => format!("{name} is not a setting; it is ignored"),
            })
            .collect();
        let mut reader = Reader { variable, complaints: Vec::new() };
        let preset = reader.choice("NCCLSCOPE_PRESET", PRESETS);
        let (events, kernel_ch) = reader.events(preset);
        let rank = reader.rank();
        let config = Config {
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
            cupti: reader.cupti(),
            output: variable("NCCLSCOPE_OUTPUT").filter(|folder| !folder.is_empty()),
            file_mode: reader.file_mode(),
            max_size: reader.number("NCCLSCOPE_MAX_SIZE"),
            min_free: reader.number("NCCLSCOPE_MIN_FREE"),
            buffer_size: reader.number("NCCLSCOPE_BUFFER_SIZE") as usize,
            flush_period_ms: reader.number("NCCLSCOPE_FLUSH_PERIOD"),
            compress: reader.switch("NCCLSCOPE_COMPRESS"),
            capture: reader.switch("NCCLSCOPE_CAPTURE"),
            tsc: reader.choice("NCCLSCOPE_CLOCK", &[("auto", true), ("boottime", false)]),
            rank,
            world_size: reader.world_size(rank),
            complaints: Vec::new(),
        };
        complaints.append(&mut reader.complaints);
        Config { complaints, ..config }
    }

    /// Whether nothing is to happen in this process.
    #[must_use]
    pub fn is_off(&self) -> bool {
        !self.enabled || self.preset == Preset::Off
    }

    /// The kinds of events that NCCL is asked for, if it may be asked for all of them.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let Events { more, less } = self.events;
        let wished = (self.preset.kinds() | more) - less;
        match self.kernel_ch {
            KernelCh::Off => wished - Kinds::CHANNELS,
            KernelCh::On | KernelCh::Force => wished | Kinds(kinds::bit::KERNEL_CH),
        }
    }

    /// The preset, and what was wished for beside it.
    #[must_use]
    pub fn wish(&self) -> String {
        let comma = if self.events == Events::default() { "" } else { "," };
        format!("{}{comma}{}", self.preset.name(), self.events)
    }

    /// Whether this process says what holds for all: with thousands of ranks, one is enough.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.log == Log::Debug || self.rank.is_none_or(|(rank, _)| rank == 0)
    }

    /// The folder for the trace, with its placeholders filled in.
    #[must_use]
    pub fn folder(&self, process: &Process) -> PathBuf {
        let Some(template) = &self.output else { return PathBuf::from(format!("ncclscope-{}", process.job)) };
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
                Some('r') => match self.rank {
                    Some((rank, _)) => folder.push_str(&rank.to_string()),
                    None => folder.push_str("unknown"),
                },
                Some('j') => folder.push_str(&process.job),
                Some('%') | None => folder.push('%'),
                Some(other) => folder.extend(['%', other]),
            }
        }
        PathBuf::from(folder)
    }
}

/// What a process is called in files and folders.
#[derive(Clone, Debug)]
pub struct Process {
    /// The host.
    pub host: String,
    /// The process id.
    pub pid: i32,
    /// The job, or the time of its start.
    pub job: String,
}

/// The variable by which a launcher names the job, and what it says.
fn launcher_job(variable: &dyn Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let mut jobs = JOBS.iter().filter_map(|name| Some((*name, variable(name)?)));
    jobs.find(|(_, job)| !job.is_empty() && job != "none")
}

/// What names the run, with the variable that does: `NCCLSCOPE_RUN_ID=tuesday`, else the launcher's job.
#[must_use]
pub fn run(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let said = variable(RUN_ID).filter(|run| !run.trim().is_empty()).map(|run| (RUN_ID, run));
    let (name, run) = said.or_else(|| launcher_job(variable))?;
    Some(format!("{name}={}", run.trim()))
}

/// The job's name as its launcher gave it, made fit for a file name.
#[must_use]
pub fn job(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let (_, job) = launcher_job(variable)?;
    Some(
        job.chars()
            .map(|letter| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' })
            .collect(),
    )
}

struct Reader<'v> {
    variable: &'v dyn Fn(&str) -> Option<String>,
    complaints: Vec<String>,
}

impl Reader<'_> {
    fn value(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// What one of the words stands for; the default's where it is none of them.
    fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> T {
        let meant = |value: &str| choices.iter().find(|(word, _)| value.eq_ignore_ascii_case(word)).map(|it| it.1);
        let said = self.value(name).and_then(|value| {
            let meant = meant(&value);
            if meant.is_none() {
                self.refuse(name, &value);
            }
            meant
        });
        said.or_else(|| meant(setting(name).default)).unwrap_or(choices[0].1)
    }

    fn switch(&mut self, name: &str) -> bool {
        self.choice(name, &[("0", false), ("1", true)])
    }

    /// A number in its range.
    fn number(&mut self, name: &str) -> u64 {
        let setting = setting(name);
        let parsed = |value: &str| match setting.values {
            Values::Bytes(from, to) => size(value).filter(|size| (from..=to).contains(size)),
            Values::Number(from, to, _) => value.parse().ok().filter(|number| (from..=to).contains(number)),
            Values::Words(_) | Values::Text(_) => None,
        };
        let said = self.value(name).and_then(|value| {
            let number = parsed(&value);
            if number.is_none() {
                self.refuse(name, &value);
            }
            number
        });
        said.or_else(|| parsed(setting.default)).unwrap_or_default()
    }

    fn file_mode(&mut self) -> Option<u32> {
        const NAME: &str = "NCCLSCOPE_FILE_MODE";
        let value = self.value(NAME)?;
        let digits = value.strip_prefix("0o").unwrap_or(&value).trim_start_matches('0');
        // Not executable, and the owner is who writes it.
        let is_fit =
            matches!(digits.as_bytes(), [b'6', group, others] if [group, others].iter().all(|it| b"0246".contains(it)));
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if is_fit => Some(mode),
            _ => {
                self.refuse(NAME, &value);
                None
            }
        }
    }

    /// What NCCL is asked for beside the preset, and whether kernel channels are: two settings that may contradict each other.
    fn events(&mut self, preset: Preset) -> (Events, KernelCh) {
        const EVENTS: &str = "NCCLSCOPE_EVENTS";
        const CHANNELS: &str = "NCCLSCOPE_KERNEL_CH";
        const CHANNEL: Kinds = Kinds(kinds::bit::KERNEL_CH);
        const PHASE: Kinds = Kinds(kinds::bit::KERNEL_PHASE);
        let value = self.value(EVENTS).unwrap_or_default();
        let mut events = Events::read(&value).unwrap_or_else(|| {
            self.refuse(EVENTS, &value);
            Events::default()
        });
        if events.more.has(PHASE) && events.less.has(CHANNEL) {
            self.object(EVENTS, &value, "NCCL measures no KernelPhase without KernelCh; leaving out both");
            events.more = events.more - PHASE;
        }
        let by_events = if events.less.has(CHANNEL) {
            Some(KernelCh::Off)
        } else if events.more.has(CHANNEL) || events.more.has(PHASE) {
            Some(KernelCh::On)
        } else {
            None
        };
        let by_preset = if preset.kinds().has(CHANNEL) { KernelCh::On } else { KernelCh::Off };
        let choices = [("0", KernelCh::Off), ("1", KernelCh::On), ("force", KernelCh::Force)];
        let said = self.value(CHANNELS).and_then(|said| {
            let choice = choices.iter().find(|(word, _)| said.eq_ignore_ascii_case(word)).map(|it| it.1);
            if choice.is_none() {
                self.refuse(CHANNELS, &said);
            }
            choice
        });
        if let (Some(said), Some(wished)) = (said, by_events)
            && (said == KernelCh::Off) != (wished == KernelCh::Off)
        {
            self.object(EVENTS, &value, "NCCLSCOPE_KERNEL_CH says otherwise of KernelCh, and holds");
            let Events { more, less } = events;
            events = Events { more: more - Kinds::CHANNELS, less: less - CHANNEL };
        }
        (events, said.or(by_events).unwrap_or(by_preset))
    }

    fn cupti(&mut self) -> Cupti {
        match self.value("NCCLSCOPE_CUPTI").as_deref() {
            None | Some("auto" | "1") => Cupti::Auto,
            Some("0") => Cupti::Off,
            Some(path) if path.contains('/') => Cupti::Path(path.into()),
            Some(other) => {
                self.refuse("NCCLSCOPE_CUPTI", other);
                Cupti::Auto
            }
        }
    }

    /// A switch that is off by default, and stays off where CUPTI is not used.
    fn needs_cupti(&mut self, name: &str) -> bool {
        let on = self.switch(name);
        let without = self.value("NCCLSCOPE_CUPTI").as_deref() == Some("0");
        if on && without {
            self.object(name, "1", "it needs CUPTI, which NCCLSCOPE_CUPTI=0 leaves alone; using the default, 0");
        }
        on && !without
    }

    fn rank(&mut self) -> Option<(u32, &'static str)> {
        for &(name, _) in RANKS {
            let Some(value) = self.value(name) else { continue };
            match value.parse() {
                Ok(rank) => return Some((rank, name)),
                Err(_) if name == "NCCLSCOPE_RANK" => self.refuse(name, &value),
                Err(_) => {}
            }
        }
        None
    }

    /// How many ranks the job has, by the launcher that gave this one its number.
    fn world_size(&self, rank: Option<(u32, &str)>) -> Option<u32> {
        let (rank, source) = rank?;
        let size = RANKS.iter().find(|(name, _)| *name == source)?.1?;
        self.value(size)?.parse().ok().filter(|size| *size > rank)
    }

    /// Complains about a value that is none of those that it may be.
    fn refuse(&mut self, name: &str, value: &str) {
        let Setting { values, default, .. } = setting(name);
        self.object(name, value, &format!("expected {values}; using the default, {default}"));
    }

    fn object(&mut self, name: &str, value: &str, why: &str) {
        self.complaints.push(format!("{name}={value}: {why}"));
    }
}

/// A setting of the table.
fn setting(name: &str) -> &'static Setting {
    SETTINGS.iter().find(|known| known.name == name).expect("a setting of the table")
}

/// A size: a number, with K, M, G or T for the binary multiples.
fn size(value: &str) -> Option<u64> {
    let digits = value.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match value[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The setting that a misspelt variable most likely means.
fn closest(name: &str) -> Option<&'static str> {
    SETTINGS
        .iter()
        .map(|known| (distance(name, known.name), known.name))
        .min()
        .filter(|&(distance, _)| distance <= 3)
        .map(|(_, name)| name)
}

/// Edits between two texts (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Config {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Config::read(&find, variables.iter().map(|(name, _)| (*name).to_owned()))
    }

    #[test]
    fn without_variables_the_defaults_hold() {
        let config = read(&[]);
        assert_eq!(config.preset, Preset::Standard);
        assert_eq!(config.kernel_ch, KernelCh::Off);
        assert_eq!(config.max_size, 2 << 30);
        assert!(config.compress && config.tsc && config.rank.is_none() && config.complaints.is_empty());
    }

    /// What a value comes to.
    #[track_caller]
    fn refused(name: &str, value: &str) -> bool {
        let config = read(&[(name, value)]);
        assert!(config.complaints.len() <= 1, "{:?}", config.complaints);
        let refused = !config.complaints.is_empty();
        if refused {
            let Setting { values, default, .. } = setting(name);
            assert_eq!(
                config.complaints[0],
                format!("{name}={value}: expected {values}; using the default, {default}")
            );
            assert_eq!(Config { complaints: Vec::new(), ..config }, read(&[]), "the default holds");
        }
        refused
    }

    #[test]
    fn a_bad_value_of_each_setting_is_answered_with_range_and_unit_and_the_default() {
        for Setting { name, values, .. } in SETTINGS {
            let said = values.to_string();
            match *values {
                Values::Words(words) => {
                    assert!(refused(name, "sun") && refused(name, "2"), "{name}");
                    for word in words {
                        assert!(said.contains(word) && !refused(name, word), "{name}={word}");
                        assert!(!refused(name, &word.to_uppercase()), "{name}={word} in capitals");
                    }
                }
                Values::Bytes(from, to) => {
                    assert!(
                        said.starts_with(&short(from)) && said.contains(&format!(" to {} bytes", short(to))),
                        "{said}"
                    );
                    for good in [short(from), short(to), from.to_string(), to.to_string()] {
                        assert!(!refused(name, &good), "{name}={good}");
                    }
                    let below = from.checked_sub(1).map_or("-1".into(), |less| less.to_string());
                    for bad in [&below, &(to + 1).to_string(), "many", "1X", "99999999999999999999", "1.5G"] {
                        assert!(refused(name, bad), "{name}={bad}");
                    }
                }
                Values::Number(from, to, unit) => {
                    assert!(said == format!("{from} to {to} {unit}") && !unit.is_empty(), "{said}");
                    for good in [from, to] {
                        assert!(!refused(name, &good.to_string()), "{name}={good}");
                    }
                    let below = from.checked_sub(1).map_or("-1".into(), |less| less.to_string());
                    for bad in [&below, &(to + 1).to_string(), "three", "1s"] {
                        assert!(refused(name, bad), "{name}={bad}");
                    }
                }
                Values::Text(_) => {
                    let bad: &[&str] = match *name {
                        "NCCLSCOPE_EVENTS" => &["everything", "+Coll,-Colls", "+", "+KernelCh;-Coll"],
                        "NCCLSCOPE_CUPTI" => &["libcupti.so.13", "2"],
                        "NCCLSCOPE_FILE_MODE" => &["400", "755", "1644", "6440", "64", "u+r", "677", "648", "0"],
                        // Whatever somebody may call a folder, or a run.
                        "NCCLSCOPE_OUTPUT" | "NCCLSCOPE_RUN_ID" => &[],
                        other => panic!("no bad value of {other} is tried"),
                    };
                    bad.iter().for_each(|bad| assert!(refused(name, bad), "{name}={bad}"));
                }
            }
        }
    }

    #[test]
    fn what_is_no_setting_is_said() {
        for (name, complaint) in
            [("NCCLSCOPE_PRESTE", "did you mean NCCLSCOPE_PRESET?"), ("NCCLSCOPE_SOMETHING_ELSE", "ignored")]
        {
            let config = read(&[(name, "light")]);
            assert_eq!(config.complaints.len(), 1, "{name}");
            assert!(config.complaints[0].contains(complaint), "{}", config.complaints[0]);
            assert_eq!(Config { complaints: Vec::new(), ..config }, read(&[]));
        }
    }

    #[test]
    fn kinds_of_events_are_added_and_left_out() {
        let bits = |names: &str| Events::read(names).unwrap().more;
        for (settings, kinds, complaint) in [
            (&[][..], Kinds::STANDARD, ""),
            (
                &[("NCCLSCOPE_EVENTS", " +ProxyCtrl, -proxystep ")],
                (Kinds::STANDARD | bits("ProxyCtrl")) - bits("ProxyStep"),
                "",
            ),
            (&[("NCCLSCOPE_EVENTS", "ncclProfileNetPlugin")], Kinds::STANDARD | bits("NetPlugin"), ""),
            (&[("NCCLSCOPE_EVENTS", "+Group,-Group")], Kinds::STANDARD - bits("Group"), ""),
            (&[("NCCLSCOPE_EVENTS", "+kernelch"), ("NCCLSCOPE_PRESET", "light")], Kinds::LIGHT | bits("KernelCh"), ""),
            (&[("NCCLSCOPE_EVENTS", "+KernelPhase")], Kinds::STANDARD | Kinds::CHANNELS, ""),
            (
                &[("NCCLSCOPE_EVENTS", "-KernelPhase"), ("NCCLSCOPE_PRESET", "full")],
                Kinds::FULL - bits("KernelPhase"),
                "",
            ),
            (&[("NCCLSCOPE_EVENTS", "-KernelCh"), ("NCCLSCOPE_PRESET", "full")], Kinds::FULL - Kinds::CHANNELS, ""),
            (&[("NCCLSCOPE_EVENTS", "+KernelPhase,-KernelCh")], Kinds::STANDARD, "no KernelPhase without KernelCh"),
            (&[("NCCLSCOPE_EVENTS", "+KernelCh"), ("NCCLSCOPE_KERNEL_CH", "0")], Kinds::STANDARD, "says otherwise"),
            (
                &[("NCCLSCOPE_EVENTS", "-KernelCh,-Coll"), ("NCCLSCOPE_KERNEL_CH", "force")],
                (Kinds::STANDARD | bits("KernelCh")) - bits("Coll"),
                "says otherwise",
            ),
        ] {
            let config = read(settings);
            assert_eq!(config.kinds(), kinds, "{settings:?}: {}", config.kinds());
            assert_eq!(config.complaints.len(), usize::from(!complaint.is_empty()), "{:?}", config.complaints);
            assert!(config.complaints.iter().all(|said| said.contains(complaint)), "{:?}", config.complaints);
        }
        // The list of names that the table gives is NCCL's.
        let known = setting("NCCLSCOPE_EVENTS").values.to_string();
        let (_, known) = known.split_once("kinds: ").unwrap();
        assert_eq!(known, Kinds(u64::MAX).to_string());
        assert_eq!(read(&[("NCCLSCOPE_EVENTS", "-coll proxyctrl")]).wish(), "standard,+ProxyCtrl,-Coll");
    }

    #[test]
    fn permissions_are_octal() {
        for (text, mode) in [("640", 0o640), ("0644", 0o644), ("0o660", 0o660), ("600", 0o600), ("604", 0o604)] {
            assert_eq!(read(&[("NCCLSCOPE_FILE_MODE", text)]).file_mode, Some(mode), "{text}");
        }
        assert_eq!(read(&[]).file_mode, None);
    }

    #[test]
    fn cupti_is_taken_left_alone_or_said_where() {
        for (value, expected) in [
            ("auto", Cupti::Auto),
            ("0", Cupti::Off),
            ("/opt/libcupti.so.13", Cupti::Path("/opt/libcupti.so.13".into())),
        ] {
            let config = read(&[("NCCLSCOPE_CUPTI", value)]);
            assert!(config.complaints.is_empty());
            assert_eq!(config.cupti, expected);
        }
        assert_eq!(read(&[]).cupti, Cupti::Auto);
    }

    #[test]
    fn what_needs_cupti_is_off_without_it() {
        assert!(!read(&[]).cuda_api);
        assert!(read(&[("NCCLSCOPE_CUDA_API", "1")]).cuda_api);
        let config = read(&[("NCCLSCOPE_CUDA_API", "1"), ("NCCLSCOPE_CUPTI", "0")]);
        assert!(!config.cuda_api);
        assert!(config.complaints[0].contains("NCCLSCOPE_CUPTI=0"), "{:?}", config.complaints);
        assert!(read(&[("NCCLSCOPE_CUDA_API", "0"), ("NCCLSCOPE_CUPTI", "0")]).complaints.is_empty());
    }

    #[test]
    fn a_run_is_named_by_its_launcher_unless_somebody_says_otherwise() {
        let named = |variables: &[(&str, &str)]| {
            run(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let slurm = ("SLURM_JOB_ID", "4711");
        assert_eq!(named(&[slurm]).as_deref(), Some("SLURM_JOB_ID=4711"));
        assert_eq!(named(&[slurm, (RUN_ID, " tuesday ")]).as_deref(), Some("NCCLSCOPE_RUN_ID=tuesday"));
        assert_eq!(named(&[slurm, (RUN_ID, " ")]).as_deref(), Some("SLURM_JOB_ID=4711"));
        assert_eq!(named(&[("TORCHELASTIC_RUN_ID", "none")]), None);
    }

    #[test]
    fn ranks_come_from_the_best_source() {
        assert_eq!(read(&[("SLURM_PROCID", "1"), ("RANK", "9")]).rank, Some((9, "RANK")));
        assert_eq!(read(&[("SLURM_PROCID", "1")]).rank, Some((1, "SLURM_PROCID")));
        assert_eq!(read(&[("NCCLSCOPE_RANK", "4"), ("RANK", "9")]).rank, Some((4, "NCCLSCOPE_RANK")));
    }

    #[test]
    fn the_size_of_the_job_comes_from_who_gave_the_rank() {
        assert_eq!(read(&[("RANK", "9"), ("WORLD_SIZE", "16"), ("SLURM_NTASKS", "2")]).world_size, Some(16));
        // Under torchrun Slurm counts nodes.
        assert_eq!(read(&[("RANK", "9"), ("SLURM_NTASKS", "2")]).world_size, None);
        assert_eq!(read(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")]).world_size, Some(2));
        assert_eq!(read(&[("RANK", "9"), ("WORLD_SIZE", "9")]).world_size, None, "no job has a rank 9 of 9");
        assert_eq!(read(&[("WORLD_SIZE", "9")]).world_size, None);
    }

    #[test]
    fn placeholders_of_the_folder_are_filled_in() {
        let process = Process { host: "node17".into(), pid: 42, job: "4711".into() };
        let folder = |template: &str| {
            read(&[("NCCLSCOPE_OUTPUT", template), ("RANK", "3")]).folder(&process).display().to_string()
        };
        assert_eq!(folder("/data/%j/%h.%p.%r"), "/data/4711/node17.42.3");
        assert_eq!(folder("100%%x%q%"), "100%x%q%");
        assert_eq!(read(&[]).folder(&process).display().to_string(), "ncclscope-4711");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("512", 512), ("4k", 4096), ("3MiB", 3 << 20), ("2G", 2 << 30), ("1 T", 1 << 40)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        assert_eq!(size("1X"), None);
        assert_eq!(size("99999999T"), None);
    }
}
