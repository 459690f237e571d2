//! The command line. Exit status: 0 done, 1 could not be done (with the reason on stderr), 2 wrong usage.

mod beside;
mod compare;
mod foreign;
mod import;
mod info;
mod join;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::SETTINGS;

/// NCCL profiler: host, proxy and GPU on one clock, as Perfetto traces.
#[derive(Parser)]
#[command(name = "ncclscope", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what files hold: processes, communicators, operations, losses and doubts
    ///
    /// Of Nsight Systems' SQLite exports and PyTorch's JSON too: what they hold, and what they know about NCCL's kernels.
    Info {
        /// Traces, or files of other tools
        #[arg(required = true)]
        traces: Vec<PathBuf>,
    },
    /// Compare a trace with a file of Nsight Systems or PyTorch's profiler, or with a trace of another run
    ///
    /// Times, hosts and processes say whether the two are of one run or of two. Of one run, moments are compared, on clocks that are put
    /// together by the launches that both saw. Of two, counts and durations are; of two traces of ncclscope also what got slower.
    Compare(compare::Wish),
    /// Turn another tool's file into a trace laid out like ours
    ///
    /// Takes an SQLite export of Nsight Systems (schema 3) or JSON of PyTorch's profiler (Kineto), plain or gzipped. What such a file does
    /// not say is not in the trace either.
    Import {
        /// The file to read
        file: PathBuf,
        /// The trace to write; it must not exist
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Join the traces of several processes of one host into one file
    ///
    /// They must share a clock: processes of one host since its boot. A file that was cut off, because its process
    /// was killed while writing, loses its unfinished last packet.
    ///
    /// One of the files may be of the tool that held CUPTI in the same run (Nsight Systems or PyTorch's profiler): its kernels come under the
    /// operations of ours, on one clock.
    Join {
        /// Trace files
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// The file to write; it must not exist
        #[arg(short, long)]
        output: PathBuf,
    },
    /// List the environment variables of the plugin
    Settings,
}

/// Parses the command line and carries it out.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.run(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("ncclscope: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Carries out a command line, the program's name first, and writes what it says to `out`.
///
/// # Errors
///
/// Why it could not be done, in one line; for wrong usage, clap's explanation.
pub fn run<T: Into<OsString> + Clone>(line: impl IntoIterator<Item = T>, out: &mut dyn Write) -> Result<(), String> {
    Arguments::try_parse_from(line).map_err(|error| error.to_string())?.run(out)
}

impl Arguments {
    fn run(self, out: &mut dyn Write) -> Result<(), String> {
        match self.command {
            Command::Info { traces } => info::run(&traces, out),
            Command::Compare(wish) => compare::run(&wish, out),
            Command::Import { file, output } => import::run(&file, &output, out),
            Command::Join { traces, output } => join::run(&traces, &output, out),
            Command::Settings => settings(out).map_err(|error| format!("failed to write: {error}")),
        }
    }
}

fn settings(out: &mut dyn Write) -> io::Result<()> {
    for setting in SETTINGS {
        writeln!(out, "{}", setting.name)?;
        writeln!(out, "    {}", setting.help)?;
        writeln!(out, "    value: {}; default: {}", setting.unit, setting.default)?;
    }
    Ok(())
}

/// Reads a file, or says which could not be read and why.
fn read(path: &std::path::Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("failed to read {}: {error}", path.display()))
}
