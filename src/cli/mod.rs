//! The command line. Exit status: 0 done, 1 could not be done (with the reason on stderr), 2 wrong usage.

mod foreign;
mod info;
mod join;

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
    /// Say what traces hold: processes, communicators, operations, losses and doubts
    Info {
        /// Trace files
        #[arg(required = true)]
        traces: Vec<PathBuf>,
    },
    /// Join the traces of several processes of one host into one file
    ///
    /// They must share a clock: processes of one host since its boot. A file that was cut off, because its process
    /// was killed while writing, loses its unfinished last packet.
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
    let mut out = io::stdout().lock();
    let result = match arguments.command {
        Command::Info { traces } => info::run(&traces, &mut out),
        Command::Join { traces, output } => join::run(&traces, &output, &mut out),
        Command::Settings => settings(&mut out).map_err(|error| format!("failed to write: {error}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("ncclscope: {reason}");
            ExitCode::FAILURE
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
