//! What runs on the GPUs: one process of a job each, started by the suite, which tells in a file what it did.
//!
//! What a workload asks NCCL for is different each time, by one element, so that a trace can be held against it: the operations that a
//! communicator was asked for are, in their order, those that its kernels must carry ([`Told::asked`]).

mod cost;
mod cupti;
mod exits;
mod jobs;
pub(crate) mod probes;
mod profiler;
mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cuda::{self, Gpu};
use crate::nccl::Nccl;

/// One process of a job.
#[derive(Args, Clone, Debug)]
pub struct Workload {
    /// What it does.
    #[arg(value_enum)]
    pub name: Name,
    /// Its rank.
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// How many there are.
    #[arg(long, default_value_t = 1)]
    pub ranks: u32,
    /// Its GPU.
    #[arg(long, default_value_t = 0)]
    pub device: u32,
    /// The folder in which the ranks find each other.
    #[arg(long)]
    pub meeting: PathBuf,
    /// The file for what it tells.
    #[arg(long)]
    pub result: PathBuf,
    /// The libnccl.
    #[arg(long)]
    pub nccl: Option<PathBuf>,
    /// The libcupti, where it is asked itself.
    #[arg(long)]
    pub cupti: Option<PathBuf>,
    /// The libcudart, where it is asked itself.
    #[arg(long)]
    pub cudart: Option<PathBuf>,
    /// How much is asked of CUPTI.
    #[arg(long, default_value_t = 0)]
    pub level: usize,
    /// How often.
    #[arg(long, default_value_t = 10)]
    pub repeats: u32,
    /// How long, in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// The largest operation, in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    pub bytes: usize,
}

/// What a process can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Says which driver, GPUs, NCCL and CUPTI there are.
    Probe,
    /// Every operation, over a range of sizes.
    Collectives,
    /// Several operations in a group.
    Groups,
    /// Two communicators on two streams.
    Communicators,
    /// A graph that is replayed, with eager work between.
    Graphs,
    /// Compute beside communication.
    Overlap,
    /// Some of everything, the same each time.
    Mixed,
    /// An operation now and then, for a while.
    Clocks,
    /// Many launches, timed.
    Cost,
    /// Kernels without NCCL.
    Kernels,
    /// Readings of the GPU's timer.
    Timer,
    /// Whether the callback's correlation id is the record's, with no API kind on.
    Correlation,
    /// Whether external ids come, with all calls of the driver recorded.
    External,
    /// Whether external ids come, with the launch alone recorded.
    ExternalSingle,
    /// Ids of a graph's nodes through capture, clone and update.
    GraphIds,
    /// What is told of each function that launches kernels or graphs.
    Launches,
    /// CUPTI's times of kernels against the GPU's timer.
    ClockRaw,
    /// The same, where CUPTI is given a clock when there is a context.
    ClockGiven,
    /// Asks CUPTI for kernels while one runs.
    Late,
    /// Gives CUPTI up while a kernel runs.
    Hung,
    /// Many launches, timed, with so much asked of CUPTI.
    Kinds,
    /// Very many kernels of a graph with little memory for CUPTI.
    Pool,
    /// Many launches of kernels without NCCL, timed.
    KernelCost,
    /// Joins while a kernel runs.
    AttachLate,
    /// Lends CUPTI in the middle.
    Lend,
    /// Two libnccl in one process.
    SecondNccl,
    /// Returns while a kernel runs that will not end.
    ExitHung,
    /// Returns without destroying anything.
    ExitReturn,
    /// Leaves by `_exit`.
    ExitAtOnce,
    /// Panics.
    ExitPanic,
    /// Aborts.
    ExitAbort,
    /// Gets a SIGTERM.
    ExitTerminated,
    /// Forks before `cuInit`.
    ForkBefore,
    /// Forks after `cuInit`, while NCCL works.
    ForkAfter,
    /// Never ends.
    Hang,
}

/// What a process tells of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Of each communicator, in the order of joining, what it was asked for: groups in the order of its stream. Empty where the order is
    /// not known.
    pub asked: Vec<Vec<Vec<Piece>>>,
    /// Kernels of its own that it launched.
    pub spins: u64,
    /// Figures, by their names.
    pub figures: BTreeMap<String, f64>,
    /// Lists of figures.
    pub series: BTreeMap<String, Vec<f64>>,
    /// Words.
    pub words: BTreeMap<String, String>,
    /// The GPUs it sees.
    pub gpus: Vec<cuda::Description>,
}

/// An operation, as traces tell it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// `AllReduce`, `Send`.
    pub function: String,
    /// Bytes, as the call counts them.
    pub bytes: u64,
}

impl Workload {
    /// Does it, and writes what it tells.
    ///
    /// # Errors
    ///
    /// What went wrong, in a sentence.
    pub fn run(&self) -> Result<(), String> {
        let mut told = Told::default();
        match self.name {
            Name::Probe => self.probe(&mut told)?,
            Name::Kernels => jobs::kernels(self, &mut told)?,
            Name::Timer => cupti::timer(self, &mut told)?,
            Name::Correlation => cupti::correlation(self, &mut told)?,
            Name::External => cupti::external(self, false, &mut told)?,
            Name::ExternalSingle => cupti::external(self, true, &mut told)?,
            Name::GraphIds => cupti::graph_ids(self, &mut told)?,
            Name::Launches => probes::launches(self, &mut told)?,
            Name::ClockRaw => probes::clock(self, false, &mut told)?,
            Name::ClockGiven => probes::clock(self, true, &mut told)?,
            Name::Late => probes::late(self, &mut told)?,
            Name::Hung => probes::hung(self, &mut told)?,
            Name::Kinds | Name::KernelCost => probes::kinds(self, &mut told)?,
            Name::Pool => probes::pool(self, &mut told)?,
            Name::Hang => loop {
                std::thread::park();
            },
            Name::ForkBefore => {
                let child = exits::fork()?;
                jobs::run(self, &mut told)?;
                exits::wait(child, &mut told);
            }
            _ => jobs::run(self, &mut told)?,
        }
        memory(&mut told);
        self.tell(&told)
    }

    /// Writes what it tells; all of it or nothing.
    fn tell(&self, told: &Told) -> Result<(), String> {
        let unfinished = self.result.with_extension("unfinished");
        let text = serde_json::to_string(told).map_err(|error| error.to_string())?;
        let written = std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, &self.result));
        written.map_err(|error| format!("failed to write {}: {error}", self.result.display()))
    }

    fn probe(&self, told: &mut Told) -> Result<(), String> {
        cuda::start()?;
        told.gpus = cuda::gpus()?;
        told.figures.insert("driver_cuda".into(), f64::from(cuda::version()?));
        if let Some(path) = &self.nccl {
            told.figures.insert("nccl".into(), f64::from(Nccl::load(path)?.version()?));
        }
        if let Some(path) = &self.cupti {
            match cupti::version(path) {
                Ok(version) => drop(told.figures.insert("cupti".into(), f64::from(version))),
                Err(reason) => drop(told.words.insert("cupti".into(), reason)),
            }
        }
        Ok(())
    }

    /// The GPU, current on this thread.
    fn open_gpu(&self) -> Result<Gpu, String> {
        Gpu::open(self.device)
    }
}

/// How much memory the process has had at most, and has now, in bytes.
fn memory(told: &mut Told) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (line, name) in [("VmHWM:", "memory_peak"), ("VmRSS:", "memory_now"), ("Threads:", "threads")] {
        let value = status.lines().find_map(|it| it.strip_prefix(line)?.split_whitespace().next()?.parse::<f64>().ok());
        let unit = if line == "Threads:" { 1.0 } else { 1024.0 };
        told.figures.extend(value.map(|value| (name.to_owned(), value * unit)));
    }
}
