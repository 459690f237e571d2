//! The programs that run on the GPUs: each is one process of a job, started by the suite, and
//! writes its results to a file.
//!
//! Each of a workload's NCCL calls differs from the others by at least one element, so that a
//! trace can be compared with them: the operations called on a communicator, in order, are those
//! that its kernels must carry ([`Told::asked`]).

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
    /// The workload.
    #[arg(value_enum)]
    pub name: Name,
    /// Its rank.
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// The number of ranks.
    #[arg(long, default_value_t = 1)]
    pub ranks: u32,
    /// Its GPU.
    #[arg(long, default_value_t = 0)]
    pub device: u32,
    /// The folder in which the ranks find each other.
    #[arg(long)]
    pub meeting: PathBuf,
    /// The file for its results.
    #[arg(long)]
    pub result: PathBuf,
    /// The libnccl.
    #[arg(long)]
    pub nccl: Option<PathBuf>,
    /// The libcupti, if it is called directly.
    #[arg(long)]
    pub cupti: Option<PathBuf>,
    /// The libcudart, if it is called directly.
    #[arg(long)]
    pub cudart: Option<PathBuf>,
    /// How much CUPTI is asked for, as an index into the levels.
    #[arg(long, default_value_t = 0)]
    pub level: usize,
    /// The number of repetitions.
    #[arg(long, default_value_t = 10)]
    pub repeats: u32,
    /// The duration in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// The largest operation, in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    pub bytes: usize,
}

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Reports the versions of the driver, GPUs, NCCL and CUPTI.
    Probe,
    /// Every operation, over a range of sizes.
    Collectives,
    /// Several operations in a group.
    Groups,
    /// Two communicators on two streams.
    Communicators,
    /// A graph that is replayed, with operations outside of graphs in between.
    Graphs,
    /// Compute beside communication.
    Overlap,
    /// Some of everything, the same each time.
    Mixed,
    /// An operation every now and then, for a while.
    Clocks,
    /// Many launches, timed.
    Cost,
    /// Kernels without NCCL.
    Kernels,
    /// Readings of the GPU's timer.
    Timer,
    /// Whether the callback's correlation id is the record's, with no API kind enabled.
    Correlation,
    /// Whether external ids are recorded, with all driver calls recorded.
    External,
    /// Whether external ids are recorded, with only the launch recorded.
    ExternalSingle,
    /// Ids of a graph's nodes through capture, clone and update.
    GraphIds,
    /// What is reported about each function that launches kernels or graphs.
    Launches,
    /// CUPTI's times of kernels against the GPU's timer.
    ClockRaw,
    /// The same, when CUPTI is given a clock after there is a context.
    ClockGiven,
    /// Enables kernels in CUPTI while one runs.
    Late,
    /// Gives CUPTI up while a kernel runs.
    Hung,
    /// Many launches, timed, with a given level of requests to CUPTI.
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
    /// Returns while a kernel runs that never ends.
    ExitHung,
    /// Returns without destroying anything.
    ExitReturn,
    /// Leaves by `_exit`.
    ExitAtOnce,
    /// Panics.
    ExitPanic,
    /// Aborts.
    ExitAbort,
    /// Receives a SIGTERM.
    ExitTerminated,
    /// Forks before `cuInit`.
    ForkBefore,
    /// Forks after `cuInit`, while NCCL works.
    ForkAfter,
    /// Never ends.
    Hang,
}

/// A process's results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// The operations called on each communicator, in the order of joining; groups in the order of
    /// its stream. Empty if the order is not known.
    pub asked: Vec<Vec<Vec<Piece>>>,
    /// The number of its own kernels that it launched.
    pub spins: u64,
    /// Figures by name.
    pub figures: BTreeMap<String, f64>,
    /// Lists of figures.
    pub series: BTreeMap<String, Vec<f64>>,
    /// Texts by name.
    pub words: BTreeMap<String, String>,
    /// The GPUs it sees.
    pub gpus: Vec<cuda::Description>,
}

/// An operation, as traces name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// `AllReduce`, `Send`.
    pub function: String,
    /// Bytes, as the call counts them.
    pub bytes: u64,
}

impl Workload {
    /// Runs the workload, and writes its results.
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

    /// Writes the results, completely or not at all.
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

/// Reports the process's peak and current memory, in bytes.
fn memory(told: &mut Told) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (line, name) in [("VmHWM:", "memory_peak"), ("VmRSS:", "memory_now"), ("Threads:", "threads")] {
        let value = status.lines().find_map(|it| it.strip_prefix(line)?.split_whitespace().next()?.parse::<f64>().ok());
        let unit = if line == "Threads:" { 1.0 } else { 1024.0 };
        told.figures.extend(value.map(|value| (name.to_owned(), value * unit)));
    }
}
