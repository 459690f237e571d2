//! The table of all environment variables, with their possible values.

use std::fmt;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// What a value may be.
    pub values: Values,
    /// The default.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

impl Setting {
    /// Whether it is an on/off switch.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        matches!(self.values, Values::Words(["0", "1"]))
    }
}

/// The possible values of a setting. Printed, with range and unit, in the list of settings and in
/// complaints.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these words.
    Words(&'static [&'static str]),
    /// A size between these two, in bytes.
    Bytes(u64, u64),
    /// A number between these two, in this unit.
    Number(u64, u64, &'static str),
    /// Text, as described here.
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

/// A size as written in a setting: `32M`.
pub(super) fn short(bytes: u64) -> String {
    let unit =
        [(40, "T"), (30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| bytes >> shift << shift == bytes);
    match unit {
        Some((shift, letter)) if bytes > 0 => format!("{}{letter}", bytes >> shift),
        _ => bytes.to_string(),
    }
}

/// More than any file system has.
const MOST_BYTES: u64 = 8_000_000 << 40;

/// All settings. The documentation, `ncclscope settings` and the check for misspelt variables use
/// this table.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "NCCLSCOPE_ENABLE",
        values: SWITCH,
        default: "1",
        help: "0 = the library does nothing in the process: NCCL is asked for nothing, and there is no thread, no \
               file, no CUPTI and no message",
    },
    Setting {
        name: "NCCLSCOPE_PRESET",
        values: Values::Words(&["metrics", "light", "standard", "full", "off"]),
        default: "standard",
        help: "what NCCL is asked to report: light = calls, launches and operations; standard = the proxy's \
               operations and steps too; full = everything; metrics = operations and launches, only for the summary \
               and the metrics, without a trace",
    },
    Setting {
        name: "NCCLSCOPE_EVENTS",
        values: Values::Text(
            "a list of +KIND and -KIND, as in +ProxyCtrl,-ProxyStep; kinds: Group, Coll, P2p, ProxyOp, ProxyStep, ProxyCtrl, KernelCh, \
             NetPlugin, GroupApi, CollApi, P2pApi, KernelLaunch, CeColl, CeSync, CeBatch, KernelPhase",
        ),
        default: "those of the preset",
        help: "kinds of events to add to the preset (+) or to leave out (-), by NCCL's names. NCCL also reports the \
               events that these depend on: no ProxyStep without its ProxyOp",
    },
    Setting {
        name: "NCCLSCOPE_KERNEL_CH",
        values: Values::Words(&["0", "1", "force"]),
        default: "1 with preset full, else 0",
        help: "the GPU's own time per channel; it costs time on NCCL's threads, and `1` is refused where \
               NCCL is known to hang or crash with it: on some releases, and with little shared memory (`force` \
               insists)",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI",
        values: Values::Text("auto | 0 | share | path of libcupti.so, with a /"),
        default: "auto",
        help: "GPU kernels, through CUPTI, which has one owner in a process: auto = take it if it is free; 0 = leave \
               it to torch.profiler and others; share = record beside tools that share CUPTI too (CUDA 13.3, driver \
               r610), else like auto; a path = like auto, and load it from there if the process has loaded none",
    },
    Setting {
        name: "NCCLSCOPE_CHAIN",
        values: Values::Text("path"),
        default: "none",
        help: "another NCCL profiler plugin, which is loaded beside ours and also gets NCCL's calls: the events that \
               its own mask asks for, in its own interface version. It works even where ncclscope records nothing",
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
        help: "the program's NVTX ranges, through CUPTI: NVTX_INJECTION64_PATH is set to libcupti's path. To \
               catch libraries that use NVTX before NCCL does, export that variable yourself",
    },
    Setting {
        name: "NCCLSCOPE_MATCH",
        values: Values::Words(&["all", "external", "timer"]),
        default: "all",
        help: "for diagnosis, how kernels may be matched: all = by the callback of their launch, or by other methods \
               where that is not available; external = without that callback, by an external id; timer = by neither, \
               only by stream and the GPU's timer, which needs NCCLSCOPE_KERNEL_CH",
    },
    Setting {
        name: "NCCLSCOPE_GPU_EVENTS",
        values: Values::Words(&["track", "renderstage", "both"]),
        default: "track",
        help: "how kernels are drawn: track = on one track per stream; renderstage = as Perfetto's GPU work, which \
               its compute page lists but ncclscope's own commands do not read; both",
    },
    Setting {
        name: "NCCLSCOPE_KERNELS",
        values: Values::Words(&["all", "nccl"]),
        default: "all",
        help: "whose kernels are drawn: nccl = only NCCL's; kernels and copies of the application are counted",
    },
    Setting {
        name: "NCCLSCOPE_RANKS",
        values: Values::Text("a list with ranges, as in 0,4,8-12; -1 = all"),
        default: "-1",
        help: "ranks in the job that record; the others do nothing. Where no launcher tells a process its rank, it records those \
               communicators in which it has one of these ranks",
    },
    Setting {
        name: "NCCLSCOPE_COMMS",
        values: Values::Text("a list of names; a * at the end of one stands for any text, as in dp,tp*"),
        default: "all",
        help: "communicators whose operations are drawn: by the name that the program gave, the name on tracks, or the hash",
    },
    Setting {
        name: "NCCLSCOPE_MIN_BYTES",
        values: Values::Bytes(0, MOST_BYTES),
        default: "0",
        help: "operations of fewer bytes are left out: counted, but not drawn",
    },
    Setting {
        name: "NCCLSCOPE_EVERY",
        values: Values::Number(1, 1_000_000_000, "operations"),
        default: "1",
        help: "N = only every Nth operation is drawn, counted by communicator and function, so that all ranks draw \
               the same collectives; of a graph, every Nth run",
    },
    Setting {
        name: "NCCLSCOPE_TIME",
        values: Values::Text(
            "two times with .. between them, counted from the start of the recording, as in 10s..2min or 1h..",
        ),
        default: "all of the time",
        help: "when operations, kernels and calls are drawn",
    },
    Setting {
        name: "NCCLSCOPE_OPERATIONS",
        values: Values::Text("two numbers with .. between them, both included, as in 1000..1999 or 5000.."),
        default: "all operations",
        help: "which operations are drawn, with the kernels and calls of that time; each process counts its own, from \
               0",
    },
    Setting {
        name: "NCCLSCOPE_STEPS",
        values: Values::Text("two numbers with .. between them, both included, as in 100..109"),
        default: "all steps",
        help: "which steps are drawn, as numbered by the program's calls of ncclscope_step (in Python, ncclscope.step)",
    },
    Setting {
        name: "NCCLSCOPE_CONFIG",
        values: Values::Text("path of a TOML file"),
        default: "none",
        help: "a file with settings by their names in lower case without NCCLSCOPE_, as in preset = \"light\" or comms = [\"dp\", \"tp*\"]; \
               variables take precedence",
    },
    Setting {
        name: "NCCLSCOPE_OUTPUT",
        values: Values::Text("folder; %h host, %p process id, %r world rank, %l rank on the host, %j job"),
        default: "./ncclscope-<job or start time>",
        help: "where the trace goes, one file per process",
    },
    Setting {
        name: "NCCLSCOPE_FILE_MODE",
        values: Values::Text("6, then a digit for the group and one for all others: 0, 2, 4 or 6; octal, as for chmod"),
        default: "600, and folders as the umask says",
        help: "who may read what is written, whatever the umask says: 640 = the group may read traces, captures, and the folders made for them",
    },
    Setting {
        name: "NCCLSCOPE_SUMMARY",
        values: Values::Words(&["all", "file", "stderr", "off"]),
        default: "all",
        help: "the summary at the end of the job: file = beside each trace, in a file that ends in .summary.txt; \
               stderr = at most 20 lines from rank 0; all = both. ncclscope summary makes it from the trace, \
               too",
    },
    Setting {
        name: "NCCLSCOPE_SUMMARY_FORMAT",
        values: Values::Words(&["table", "csv"]),
        default: "table",
        help: "the format of that file: table = text for people, in .summary.txt; csv = comma-separated values, in \
               .summary.csv, from which ncclscope summary makes the tables of all ranks. With preset metrics the \
               default is csv",
    },
    Setting {
        name: "NCCLSCOPE_SUMMARY_PERIOD",
        values: Values::Number(0, 86_400, "seconds"),
        default: "0",
        help: "0 = the summary is written at the end of the job; otherwise also while it runs, this often",
    },
    Setting {
        name: "NCCLSCOPE_METRICS_FILE",
        values: Values::Text("path; %h host, %p process id, %r world rank, %l rank on the host, %j job"),
        default: "none",
        help: "a file with metrics in Prometheus's text format, as node exporter's textfile collector reads it (its name must end in \
               .prom). It is replaced every NCCLSCOPE_METRICS_PERIOD and removed when the process ends",
    },
    Setting {
        name: "NCCLSCOPE_METRICS_PORT",
        values: Values::Number(0, 65_535, "(a port)"),
        default: "0",
        help: "the port of 127.0.0.1 at which Prometheus gets the metrics of the host's first rank, under /metrics; the other ranks of \
               the host have the ports after it; 0 = none",
    },
    Setting {
        name: "NCCLSCOPE_METRICS_PERIOD",
        values: Values::Number(1, 3_600, "seconds"),
        default: "15",
        help: "how often the metrics are updated",
    },
    Setting {
        name: "NCCLSCOPE_ENV",
        values: Values::Words(&["list", "names", "off"]),
        default: "list",
        help: "what the trace says about the environment: list = the values of NCCL_*, TORCH_NCCL_* and a fixed list \
               of variables of CUDA and of launchers; names = only which of them are set; off = nothing",
    },
    Setting {
        name: "NCCLSCOPE_LOG",
        values: Values::Words(&["quiet", "normal", "debug"]),
        default: "normal",
        help: "what is said on stderr: normal = rank 0 says where it records to and what is wrong with the settings, \
               and each rank what goes wrong with its own recording; quiet = only problems; debug = every rank \
               says everything",
    },
    Setting {
        name: "NCCLSCOPE_CUPTI_CLOCK",
        values: Values::Words(&["auto", "wall", "boottime"]),
        default: "auto",
        help: "the clock of CUPTI's records: the wall clock, which may be set while a job runs, or CLOCK_BOOTTIME, \
               which nobody can set, but an older profiler that uses CUPTI after us would misread its times; auto = boottime if the \
               recording began in cuInit",
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
        help: "names the run, the same in all of its processes: ncclscope merge refuses files of two runs",
    },
    Setting {
        name: "NCCLSCOPE_MAX_SIZE",
        values: Values::Bytes(1 << 20, MOST_BYTES),
        default: "2G",
        help: "size at which a trace file is full; from 80 % on the proxy's steps are left out, and a full file only \
               shows what hangs",
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
        help: "memory for records on their way to the trace; records that find no room are dropped and counted. With \
               preset metrics the default is 1M",
    },
    Setting {
        name: "NCCLSCOPE_HEAP_SIZE",
        values: Values::Bytes(4 << 20, 1 << 30),
        default: "32M",
        help: "memory for everything else; a recording that needs more ends early, and says so",
    },
    Setting {
        name: "NCCLSCOPE_FLUSH_PERIOD",
        values: Values::Number(10, 3_600_000, "milliseconds"),
        default: "1000",
        help: "how often the recording is flushed to its file: a killed job loses NCCL's calls of this time at most, and \
               those GPU kernels that CUPTI had not returned",
    },
    Setting { name: "NCCLSCOPE_COMPRESS", values: SWITCH, default: "1", help: "compressed packets in the trace" },
    Setting {
        name: "NCCLSCOPE_CAPTURE",
        values: SWITCH,
        default: "0",
        help: "everything that the recording reads, unprocessed, in a second file beside the trace, which ends in \
               .capture and has its own limit of NCCLSCOPE_MAX_SIZE: for ncclscope replay and for bug reports. It \
               holds more than the trace: every record and every CUPTI buffer in full, with addresses and with what a \
               limit left out of the trace; none of the program's data, and of the environment only what \
               NCCLSCOPE_ENV says",
    },
    Setting {
        name: "NCCLSCOPE_CLOCK",
        values: Values::Words(&["auto", "boottime"]),
        default: "auto",
        help: "the clock of the recorder: the TSC where it can be trusted, or always CLOCK_BOOTTIME",
    },
];

/// A setting of the table.
pub(super) fn setting(name: &str) -> &'static Setting {
    SETTINGS.iter().find(|known| known.name == name).expect("a setting of the table")
}

/// Parses a size: a number, with K, M, G or T for the binary multiples.
pub(super) fn size(value: &str) -> Option<u64> {
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
pub(super) fn closest(name: &str) -> Option<&'static str> {
    SETTINGS
        .iter()
        .map(|known| (distance(name, known.name), known.name))
        .min()
        .filter(|&(distance, _)| distance <= 3)
        .map(|(_, name)| name)
}

/// The number of edits between two texts (Levenshtein distance).
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
