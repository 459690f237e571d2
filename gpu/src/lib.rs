//! The suite for machines with GPUs: workloads, the questions that they answer, and a report.
//!
//! ```text
//!  gpu/run ─► suite ─► find      the machine: driver, libnccl, libcupti, PyTorch, a toolkit
//!               │ ├──► job ───► workload, workload, ...  one process per rank, with a time limit
//!               │ └──► trace     compares the profiler's traces with the workloads' calls
//!               ├────► report    one row per question, in Markdown and JSON
//!               └────► home      the output folder: the report, and an archive of the jobs' files
//! ```
//!
//! Nothing that a workload does ends the suite: a workload that fails, crashes or hangs is
//! reported in a row. The suite's own process never uses CUDA.

pub mod cuda;
pub mod find;
pub mod home;
pub mod job;
pub mod nccl;
pub mod report;
pub mod suite;
pub mod trace;
pub mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The suite for machines with GPUs.
#[derive(Parser)]
#[command(name = "ncclscope-gpu", version, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  every question that was asked has a good answer
  1  some answer is not good; the report says which
  2  bad usage
  3  something that every question needs is missing";

#[derive(Subcommand)]
enum Command {
    /// Asks every question that this machine can answer, and writes a report.
    Suite(suite::Suite),
    /// Prints what the machine has.
    Find(find::Wanted),
    /// One process of a job.
    #[command(hide = true)]
    Workload(workload::Workload),
}

/// The program's entry point, which reads its command line.
#[must_use]
pub fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Suite(suite) => suite.run(),
        Command::Find(wanted) => {
            print!("{}", find::Machine::look(&wanted));
            ExitCode::SUCCESS
        }
        Command::Workload(workload) => match workload.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => {
                eprintln!("ncclscope-gpu: {reason}");
                ExitCode::FAILURE
            }
        },
    }
}
