//! Settings: one table of all environment variables, read once.
//!
//! A bad value never stops the job: it is one line on stderr, the default, and a note in the trace.

use std::path::PathBuf;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "cli", derive(serde::Serialize))]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What a value is.
    pub unit: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
}

/// All settings. The documentation, `ncclscope settings` and the search for misspelt variables use this table.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "NCCLSCOPE_PRESET",
        unit: "light | standard | full | off",
        default: "standard",
        help: "what NCCL is asked to report: light = calls, launches and operations; standard = the proxy's \
               operations and steps too; full = everything",
    },
    Setting {
        name: "NCCLSCOPE_KERNEL_CH",
        unit: "0 | 1 | force",
        default: "1 with preset full, else 0",
        help: "the GPU's own time per channel; it costs time on NCCL's threads, and `1` is refused on releases \
               known to hang or crash with it (`force` insists)",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI",
        unit: "auto | 0 | path of libcupti.so",
        default: "auto",
        help: "the execution of GPU kernels through CUPTI, which has one owner in a process: auto = take it if it is free; \
               0 = leave it to torch.profiler and others; a path = also take it if the process has loaded none, from there",
    },
    Setting {
        name: "NCCLSCOPE_CUDA_API",
        unit: "0 | 1",
        default: "0",
        help: "calls into the CUDA driver and runtime, through CUPTI; it costs time in each of them, and much of the file",
    },
    Setting {
        name: "NCCLSCOPE_NVTX",
        unit: "0 | 1",
        default: "0",
        help: "the program's NVTX ranges, through CUPTI: NVTX_INJECTION64_PATH is set to its library, or may be so before the \
               program starts, which catches those that use NVTX before NCCL",
    },
    Setting {
        name: "NCCLSCOPE_MATCH",
        unit: "all | external | timer",
        default: "all",
        help: "for diagnosis, how kernels may be matched: all = by the callback of their launch, and by whatever there is where that \
               cannot be had; external = without that callback, by an external id; timer = by neither, only by stream and the \
               GPU's timer, which needs NCCLSCOPE_KERNEL_CH",
    },
    Setting {
        name: "NCCLSCOPE_GPU_EVENTS",
        unit: "track | renderstage | both",
        default: "track",
        help: "how kernels are drawn: track = on a track a stream; renderstage = as Perfetto's GPU work, which its compute page lists \
               but ncclscope's own commands do not read; both",
    },
    Setting {
        name: "NCCLSCOPE_OUTPUT",
        unit: "folder; %h host, %p process id, %r world rank, %j job",
        default: "./ncclscope-<job or start time>",
        help: "where the trace goes, one file a process",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI_CLOCK",
        unit: "auto | wall | boottime",
        default: "auto",
        help: "the clock of CUPTI's records: the wall clock, which may be set while a job runs, or CLOCK_BOOTTIME, which never is \
               but which an older profiler does not expect after us; auto: boottime where the recording began in cuInit",
    },
    Setting {
        name: "NCCLSCOPE_RANK",
        unit: "number",
        default: "RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID",
        help: "this process's rank in the job",
    },
    Setting {
        name: "NCCLSCOPE_RUN_ID",
        unit: "text",
        default: "the job of the launcher",
        help: "names the run, alike in all of its processes: ncclscope join refuses files of two runs",
    },
    Setting {
        name: "NCCLSCOPE_MAX_SIZE",
        unit: "bytes, with K, M, G",
        default: "2G",
        help: "size at which a trace file stops growing; from 80 % on the proxy's steps are left out",
    },
    Setting {
        name: "NCCLSCOPE_MIN_FREE",
        unit: "bytes, with K, M, G",
        default: "1G",
        help: "free space of the file system below which recording stops",
    },
    Setting {
        name: "NCCLSCOPE_BUFFER_SIZE",
        unit: "bytes, with K, M, G",
        default: "32M",
        help: "memory for records on their way to the trace; what finds no room is dropped and counted",
    },
    Setting {
        name: "NCCLSCOPE_FLUSH_PERIOD",
        unit: "milliseconds",
        default: "1000",
        help: "how much of a recording a killed job loses at most",
    },
    Setting { name: "NCCLSCOPE_COMPRESS", unit: "0 | 1", default: "1", help: "compressed packets in the trace" },
    Setting {
        name: "NCCLSCOPE_CAPTURE",
        unit: "0 | 1",
        default: "0",
        help: "all that the recording reads, as it came, in a second file beside the trace that ends in .capture and grows up to \
               NCCLSCOPE_MAX_SIZE by itself: for ncclscope replay and for bug reports. It holds more than the trace: every record and \
               buffer of CUPTI's whole, with addresses and with what a limit left out of the trace; no data of the program's, no environment",
    },
    Setting {
        name: "NCCLSCOPE_CLOCK",
        unit: "auto | boottime",
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

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What NCCL is asked to report.
    pub preset: Preset,
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

impl Config {
    /// The settings of this process.
    #[must_use]
    pub fn from_environment() -> Config {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Config::read(&variable, crate::sys::variable_names().into_iter())
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
        let preset = reader.choice(
            "NCCLSCOPE_PRESET",
            Preset::Standard,
            &[("light", Preset::Light), ("standard", Preset::Standard), ("full", Preset::Full), ("off", Preset::Off)],
        );
        let by_preset = if preset == Preset::Full { KernelCh::On } else { KernelCh::Off };
        let kernel_ch = reader.choice(
            "NCCLSCOPE_KERNEL_CH",
            by_preset,
            &[("0", KernelCh::Off), ("1", KernelCh::On), ("force", KernelCh::Force)],
        );
        let rank = reader.rank();
        let config = Config {
            preset,
            kernel_ch,
            cupti_clock: reader.choice(
                "NCCLSCOPE_CUPTI_CLOCK",
                CuptiClock::Auto,
                &[("auto", CuptiClock::Auto), ("wall", CuptiClock::Wall), ("boottime", CuptiClock::Boottime)],
            ),
            matching: reader.choice(
                "NCCLSCOPE_MATCH",
                Matching::All,
                &[("all", Matching::All), ("external", Matching::External), ("timer", Matching::Timer)],
            ),
            cuda_api: reader.needs_cupti("NCCLSCOPE_CUDA_API"),
            nvtx: reader.needs_cupti("NCCLSCOPE_NVTX"),
            gpu_events: reader.choice(
                "NCCLSCOPE_GPU_EVENTS",
                GpuEvents::Track,
                &[("track", GpuEvents::Track), ("renderstage", GpuEvents::RenderStage), ("both", GpuEvents::Both)],
            ),
            cupti: reader.cupti(),
            output: variable("NCCLSCOPE_OUTPUT").filter(|folder| !folder.is_empty()),
            max_size: reader.size("NCCLSCOPE_MAX_SIZE", 2 << 30, 1 << 20..=u64::MAX >> 1),
            min_free: reader.size("NCCLSCOPE_MIN_FREE", 1 << 30, 0..=u64::MAX >> 1),
            buffer_size: reader.size("NCCLSCOPE_BUFFER_SIZE", 32 << 20, 1 << 20..=1 << 30) as usize,
            flush_period_ms: reader.number("NCCLSCOPE_FLUSH_PERIOD", 1000, 10..=3_600_000),
            compress: reader.choice("NCCLSCOPE_COMPRESS", true, &[("1", true), ("0", false)]),
            capture: reader.choice("NCCLSCOPE_CAPTURE", false, &[("1", true), ("0", false)]),
            tsc: reader.choice("NCCLSCOPE_CLOCK", true, &[("auto", true), ("boottime", false)]),
            rank,
            world_size: reader.world_size(rank),
            complaints: Vec::new(),
        };
        complaints.append(&mut reader.complaints);
        Config { complaints, ..config }
    }

    /// Whether this process says what holds for all: with thousands of ranks, one is enough.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.rank.is_none_or(|(rank, _)| rank == 0)
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

    fn choice<T: Copy>(&mut self, name: &str, default: T, choices: &[(&str, T)]) -> T {
        let Some(value) = self.value(name) else { return default };
        match choices.iter().find(|(word, _)| value.eq_ignore_ascii_case(word)) {
            Some(&(_, choice)) => choice,
            None => {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                self.complain(name, &value, &format!("expected {}", words.join(", ")));
                default
            }
        }
    }

    fn number(&mut self, name: &str, default: u64, range: std::ops::RangeInclusive<u64>) -> u64 {
        let Some(value) = self.value(name) else { return default };
        self.in_range(name, &value, value.parse().ok(), default, range)
    }

    fn size(&mut self, name: &str, default: u64, range: std::ops::RangeInclusive<u64>) -> u64 {
        let Some(value) = self.value(name) else { return default };
        self.in_range(name, &value, size(&value), default, range)
    }

    fn in_range(
        &mut self,
        name: &str,
        value: &str,
        parsed: Option<u64>,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> u64 {
        match parsed {
            Some(number) if range.contains(&number) => number,
            Some(_) => {
                self.complain(name, value, &format!("expected {} to {}", range.start(), range.end()));
                default
            }
            None => {
                self.complain(name, value, "expected a number");
                default
            }
        }
    }

    fn cupti(&mut self) -> Cupti {
        match self.value("NCCLSCOPE_CUPTI").as_deref() {
            None | Some("auto" | "1") => Cupti::Auto,
            Some("0") => Cupti::Off,
            Some(path) if path.contains('/') => Cupti::Path(path.into()),
            Some(other) => {
                self.complain("NCCLSCOPE_CUPTI", other, "expected auto, 0 or a path");
                Cupti::Auto
            }
        }
    }

    /// A switch that is off by default, and stays off where CUPTI is not used.
    fn needs_cupti(&mut self, name: &str) -> bool {
        let on = self.choice(name, false, &[("1", true), ("0", false)]);
        let without = self.value("NCCLSCOPE_CUPTI").as_deref() == Some("0");
        if on && without {
            self.complain(name, "1", "expected CUPTI, which NCCLSCOPE_CUPTI=0 leaves alone");
        }
        on && !without
    }

    fn rank(&mut self) -> Option<(u32, &'static str)> {
        for &(name, _) in RANKS {
            let Some(value) = self.value(name) else { continue };
            match value.parse() {
                Ok(rank) => return Some((rank, name)),
                Err(_) if name == "NCCLSCOPE_RANK" => self.complain(name, &value, "expected a number"),
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

    fn complain(&mut self, name: &str, value: &str, expected: &str) {
        self.complaints.push(format!("{name}={value}: {expected}; using the default"));
    }
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

    #[test]
    fn a_bad_value_is_a_complaint_and_the_default() {
        for (name, value, complaint) in [
            ("NCCLSCOPE_PRESET", "everything", "expected light, standard, full, off"),
            ("NCCLSCOPE_MAX_SIZE", "many", "expected a number"),
            ("NCCLSCOPE_MAX_SIZE", "10", "expected 1048576 to"),
            ("NCCLSCOPE_BUFFER_SIZE", "99999999999999999999", "expected a number"),
            ("NCCLSCOPE_BUFFER_SIZE", "2G", "expected 1048576 to 1073741824"),
            ("NCCLSCOPE_FLUSH_PERIOD", "1s", "expected a number"),
            ("NCCLSCOPE_RANK", "three", "expected a number"),
            ("NCCLSCOPE_CUPTI", "libcupti.so.13", "expected auto, 0 or a path"),
            ("NCCLSCOPE_CUDA_API", "yes", "expected 1, 0"),
            ("NCCLSCOPE_NVTX", "2", "expected 1, 0"),
            ("NCCLSCOPE_GPU_EVENTS", "stages", "expected track, renderstage, both"),
            ("NCCLSCOPE_PRESTE", "light", "did you mean NCCLSCOPE_PRESET?"),
            ("NCCLSCOPE_SOMETHING_ELSE", "1", "ignored"),
        ] {
            let config = read(&[(name, value)]);
            assert_eq!(config.complaints.len(), 1, "{name}");
            assert!(config.complaints[0].contains(complaint), "{}", config.complaints[0]);
            assert_eq!(Config { complaints: Vec::new(), ..config }, read(&[]));
        }
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
