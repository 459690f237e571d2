//! The suite for machines with GPUs: workloads, the questions that they answer, and a report.
//!
//! ```text
//!  gpu/run ─► suite ─► find        what the machine has: driver, libnccl, libcupti, PyTorch, a toolkit
//!               │ ├──► job ─────► workload, workload, ...   one process a rank, watched, killed at a limit
//!               │ └──► trace       what the profiler's traces say, held against what the workloads asked for
//!               ├────► report      one row a question, in Markdown and JSON
//!               └────► home        the folder that is brought home: the report, and an archive of what jobs left
//! ```
//!
//! Nothing that a workload does ends the suite: one that fails, crashes or hangs is a row. The process of the suite itself never touches
//! CUDA.

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
  3  something is missing without which there is nothing to ask";

#[derive(Subcommand)]
enum Command {
    /// Asks every question that this machine can answer, and writes a report.
    Suite(suite::Suite),
    /// Says what the machine has.
    Find(find::Wanted),
    /// One process of a job.
    #[command(hide = true)]
    Workload(workload::Workload),
}

/// The program, by its command line.
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
