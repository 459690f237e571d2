//! The command line. Exit status: 0 done, 1 could not be done (the reason is on stderr), 2 wrong
//! usage. `run`, `doctor` and `info` have exit codes of their own.

mod beside;
mod capture;
mod colour;
mod compare;
mod cut;
mod diagnose;
mod differing;
mod doctor;
mod export;
mod foreign;
mod generate;
mod hang;
mod import;
mod info;
mod library;
mod merge;
mod mismatch;
mod nccl;
mod open;
mod progress;
mod reason;
mod replay;
mod report;
mod run;
mod running;
mod said;
mod scrub;
mod shared_gpus;
mod summary;
mod survey;
mod troubles;

pub use self::reason::Reason;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;

use self::progress::{Line, Progress};
use crate::config::{SETTINGS, Setting};
use crate::import::Format;
use crate::trace::reader::{self, Extent, Packet};

/// How many things of a kind are listed one by one. Further ones are counted, or described
/// together.
const LISTED: usize = 16;

/// NCCL profiler: host, proxy and GPU on one clock, as Perfetto traces.
#[derive(Parser)]
#[command(
    name = "ncclscope",
    version,
    after_help = "A job hangs: ncclscope info FOLDER. A job is slow: ncclscope diagnose FOLDER."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a job with ncclscope loaded into it, and report what was recorded
    ///
    /// Goes before a launcher (ncclscope run -- torchrun ...) or after it, before the program (srun
    /// ncclscope run -- ...). The job's exit code and signals are the same as without it. Variables
    /// that are already set are kept and reported; each setting is a flag, too.
    #[command(verbatim_doc_comment)]
    Run(run::Wish),
    /// Check what will work on this machine, what will not, and what to do about it
    ///
    /// Looks at the library, the driver, copies of CUPTI and the processes that use them, NCCL's
    /// releases, the environment, permissions and free space. Loads nothing but ncclscope's own
    /// library, and needs no GPU. The exit code is 1 if something will keep ncclscope from
    /// recording, otherwise 0. Notes do not change it; a missing GPU is a note.
    Doctor(doctor::Wish),
    /// Print where the library that NCCL loads is
    Lib,
    /// Cut a part out of a trace: a range of time, some ranks, a communicator
    ///
    /// The part is a trace like any other. A slice that crosses an edge of the range keeps its true
    /// begin and end. What the recording says about itself, the communicators and the GPUs are kept
    /// in every cut.
    Cut(cut::Wish),
    /// Say where a job hangs and who is missing; and what files contain, lost and doubt
    ///
    /// It works while the job runs, too, and does not touch it. Give it the files of all ranks.
    ///
    /// For Nsight Systems' SQLite exports and PyTorch's JSON, too: what they contain, and what they
    /// know about NCCL's kernels. For captures: what is in them.
    ///
    /// For each trace, the second line is the verdict on whether it can be trusted. The exit code
    /// is that of the worst file: 0 trusted, 1 with reservations (something was lost, is unmatched
    /// or contradicts itself, or a recording is not closed), 2 if a file cannot be read to its end.
    Info {
        /// Traces, captures, files of other tools, or folders with traces
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// Write all of it as JSON, too; with -, to standard output, without the text
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Read more than 1 GB to its end, even if the end alone shows a hang
        #[arg(long)]
        whole: bool,
    },
    /// Find what makes a job slow or hang, and what its steps would take without it
    ///
    /// The first line is the answer: the rank, host or link that the others wait for, and what it
    /// costs. What a step would take without each cause is found by replaying the job with that
    /// cause removed. Give it the files of all ranks; those of several hosts need no merging.
    Diagnose(diagnose::Wish),
    /// Add up what traces contain: operations, bandwidths, waits, environment, losses
    ///
    /// The same figures as in the file that a job leaves beside each trace. For each kind of
    /// operation (communicator, function, datatype, count, root or peer): how many, the times of
    /// their kernels with percentiles, algorithm and bus bandwidth as nccl-tests defines them,
    /// delays. Further tables: communicators, kernels that carry several operations, calls,
    /// buffers, the proxy's waits, losses and doubts. Several ranks also have rows for all of them
    /// together.
    Summary(summary::Wish),
    /// Write a page for a browser: bandwidths, who came late, links, exposed communication, the
    /// slowest operations
    ///
    /// One file that needs no network: to look at, to print and to send. Its figures are those of
    /// summary and diagnose; each picture also is a table.
    Report(report::Wish),
    /// Find which of two runs is slower, and which rank, kernel or link made it so; or compare a
    /// trace with another tool's file of the same run
    ///
    /// Times, hosts and processes show whether the two come from the same run. Two runs are
    /// compared step by step and rank by rank, and the first line is the answer. For one run,
    /// moments are compared, on clocks that are aligned by the launches that both tools saw.
    Compare(compare::Wish),
    /// Turn another tool's file into a trace laid out like ours
    ///
    /// Takes an SQLite export of Nsight Systems (schema 3) or JSON of PyTorch's profiler (Kineto),
    /// plain or gzipped. What such a file does not say is not in the trace either.
    Import {
        /// The file to read
        file: PathBuf,
        /// The trace to write; it must not exist
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Write traces as tables that any engine reads, or send them to OpenTelemetry
    ///
    /// With --parquet, as Parquet files by job and rank: operations, kernels, channels, the proxy's
    /// transfers, communicators, environment, losses and clocks. Each rank is written by itself, so
    /// that ranks can be exported where they ran, side by side, and added later. What is there
    /// already is not written again. An interrupted export leaves whole ranks; start it again for
    /// the others. docs/tables.md describes the tables.
    ///
    /// With --otlp, as spans and metrics for a collector of OpenTelemetry. Nothing else in this
    /// program sends anything. docs/otlp.md says what each becomes.
    Export(export::Wish),
    /// Put the traces of a job's processes into one file
    ///
    /// They must come from the same run: they have a communicator in common or were recorded at the
    /// same time. Processes of one host share a clock. Other hosts are put on the clock of the
    /// first file by the order of the operations that they share, and the report says how exact
    /// that is; if nothing relates them, they are refused. Files that cannot be read, and
    /// duplicates, are named and left out. Ranks without a file are named. A file that was cut off
    /// because its process was killed while writing loses its unfinished last packet.
    ///
    /// Use --with to give another tool's file of the same run: its kernels are placed under our
    /// operations, on one clock.
    Merge(merge::Wish),
    /// Open a trace in Perfetto's viewer, without uploading it
    ///
    /// The viewer, ui.perfetto.dev, is a page that runs in your browser only. It reads the trace
    /// from this machine, below a path that nobody can guess, and once. The link shows what
    /// diagnose finds, or else the busiest part of the trace, with its communicators pinned. For a
    /// trace of more than 3 million slices, a part is proposed: the viewer took 34 s to load 5.3
    /// million.
    Open(open::Wish),
    /// Make the trace again from what a recording read, as kept by NCCLSCOPE_CAPTURE=1
    ///
    /// The same version makes the same trace, byte for byte; another version reads and matches the
    /// same records in its own way. If a capture was cut off, everything before the cut is
    /// replayed.
    Replay {
        /// The capture
        capture: PathBuf,
        /// The trace to write; it must not exist. By default, CAPTURE with the ending
        /// .replayed.perfetto-trace
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Write no trace; instead print how the owner of each kernel of this launching call was
        /// decided: candidates, rule and bounds. KERNEL is the argument `correlation` of the
        /// kernel's slice
        #[arg(long, value_name = "KERNEL", conflicts_with = "output")]
        explain: Option<u32>,
    },
    /// Make copies of traces that can be shared: without names, addresses and paths
    ///
    /// Replaces host names, names of communicators, programs and threads, the application's kernels
    /// and ranges, values of variables, paths, network addresses, UUIDs of GPUs, jobs and runs,
    /// pointers, and every other word that ncclscope, NCCL and CUDA do not say themselves. The same
    /// name has the same stand-in in all files of one call, so that they can be merged and
    /// diagnosed. Times, sizes, ranks, process ids and the versions of software stay.
    Scrub(scrub::Wish),
    /// List the environment variables of the plugin
    #[command(after_long_help = settings())]
    Settings {
        /// Write the list as JSON instead; with -, to standard output
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Write completions for shells and manual pages into a folder
    #[command(hide = true)]
    Generate {
        /// The folder
        folder: PathBuf,
    },
    /// Report received signals, for `ncclscope run`
    #[command(hide = true, name = run::signals::SENTINEL)]
    Sentinel,
}

impl Command {
    /// What to show while it works and reads no file; `None` for commands that take no time of
    /// their own.
    fn while_it_works(&self) -> Option<&'static str> {
        match self {
            Command::Cut(_)
            | Command::Info { .. }
            | Command::Compare(_)
            | Command::Diagnose(_)
            | Command::Summary(_)
            | Command::Report(_)
            | Command::Scrub(_)
            | Command::Export(_)
            | Command::Import { .. }
            | Command::Merge(_)
            | Command::Replay { .. } => Some("working"),
            // It runs a Python, and reads libraries that may be on a network.
            Command::Doctor(_) => Some("looking"),
            // It waits for a browser.
            Command::Open(_) => Some(""),
            Command::Run(_) | Command::Lib => None,
            Command::Settings { .. } | Command::Generate { .. } | Command::Sentinel => None,
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Failure {
    /// The command line was not understood; or it asked for help, and this is the help.
    Usage(clap::Error),
    /// It could not be done: what was wrong, where, and what to do.
    Reason(Reason),
    /// The same with status 2, for commands whose status 1 has another meaning: `ncclscope info`
    /// could not read a file.
    Trouble(Reason),
    /// Everything has been said, and this is the exit status: that of the job of `ncclscope run`,
    /// or the verdict of `ncclscope doctor` or `info`.
    Exit(u8),
}

impl<R: Into<Reason>> From<R> for Failure {
    fn from(reason: R) -> Failure {
        Failure::Reason(reason.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(error) => error.fmt(f),
            Failure::Reason(reason) | Failure::Trouble(reason) => reason.fmt(f),
            Failure::Exit(status) => write!(f, "status {status}"),
        }
    }
}

/// Parses the command line and carries it out.
#[must_use]
pub fn main() -> ExitCode {
    colour::decide();
    let arguments = Arguments::parse();
    let progress = arguments.command.while_it_works().and_then(Progress::start);
    let mut screen = Screen { gone: false, below: progress.as_ref().map(Progress::line) };
    let result = carry_out(arguments.command, &mut screen);
    drop(progress);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => error.exit(),
        Err(Failure::Reason(reason)) => {
            eprintln!("ncclscope: {reason}");
            ExitCode::FAILURE
        }
        Err(Failure::Trouble(reason)) => {
            eprintln!("ncclscope: {reason}");
            ExitCode::from(2)
        }
        Err(Failure::Exit(status)) => ExitCode::from(status),
    }
}

/// The standard output. If its reader went away (`ncclscope info TRACE | head`), the command still
/// does its work.
struct Screen {
    gone: bool,
    /// The progress line below the output.
    below: Option<Line>,
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || io::stdout().write(bytes);
        let written = match &self.below {
            _ if self.gone => Ok(bytes.len()),
            Some(line) => line.aside(write),
            None => write(),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.gone = true;
                Ok(bytes.len())
            }
            done => done,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gone { Ok(()) } else { io::stdout().flush() }
    }
}

/// Carries out a command, given the program's name and the arguments. Its output goes to `out`.
///
/// # Errors
///
/// If the command line is not understood or the command cannot be done.
pub fn run<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>, out: &mut dyn Write) -> Result<(), Failure> {
    carry_out(Arguments::try_parse_from(words).map_err(Failure::Usage)?.command, out)
}

fn carry_out(command: Command, out: &mut dyn Write) -> Result<(), Failure> {
    let result = match command {
        Command::Run(wish) => return run::run(wish, out),
        Command::Doctor(wish) => {
            return if doctor::run(&wish, out)? { Ok(()) } else { Err(Failure::Exit(1)) };
        }
        Command::Lib => library::print(out),
        Command::Generate { folder } => generate::run(&folder),
        Command::Sentinel => run::signals::sentinel_main(),
        Command::Cut(wish) => cut::run(&wish, out),
        Command::Compare(wish) => compare::run(&wish, out),
        Command::Diagnose(wish) => diagnose::run(&wish, out),
        Command::Summary(wish) => summary::run(&wish, out),
        Command::Report(wish) => report::run(&wish, out),
        Command::Scrub(wish) => scrub::run(&wish, out),
        Command::Export(wish) => export::run(&wish, out),
        Command::Import { file, output } => import::run(&file, &output, out),
        Command::Info { traces, json, whole } => return info::run(&traces, json.as_deref(), whole, out),
        Command::Merge(wish) => merge::run(&wish, out),
        Command::Open(wish) => open::run(&wish, out),
        Command::Replay { capture, explain: Some(kernel), .. } => replay::explain(&capture, kernel, out),
        Command::Replay { capture, output, explain: None } => replay::run(&capture, output, out),
        Command::Settings { json: Some(path) } => settings_json(&path, out),
        Command::Settings { json: None } => out.write_all(settings().as_bytes()).map_err(Reason::Output),
    };
    result.map_err(Failure::Reason)
}

/// All settings, for people.
fn settings() -> String {
    let of =
        |it: &Setting| format!("{}\n    {}\n    value: {}; default: {}\n", it.name, it.help, it.values, it.default);
    SETTINGS.iter().map(of).collect()
}

fn settings_json(path: &Path, out: &mut dyn Write) -> Result<(), Reason> {
    must_be_new_json(path)?;
    let setting = |it: &Setting| {
        let values = it.values.to_string();
        serde_json::json!({ "name": it.name, "values": values, "default": it.default, "help": it.help })
    };
    let settings: Vec<_> = SETTINGS.iter().map(setting).collect();
    write_json(path, &serde_json::json!({ "format_version": 1, "settings": settings }), out)
}

/// Whether `-`, standard output, is given instead of a file.
fn is_screen(path: &Path) -> bool {
    path == Path::new("-")
}

/// Refuses a file for JSON that exists already.
fn must_be_new_json(path: &Path) -> Result<(), Reason> {
    if is_screen(path) { Ok(()) } else { must_be_new(path) }
}

/// Writes JSON to a new file, or to the standard output.
fn write_json(path: &Path, value: &impl Serialize, out: &mut dyn Write) -> Result<(), Reason> {
    let mut text = serde_json::to_string_pretty(value).map_err(Reason::failed("write JSON"))?;
    text.push('\n');
    match is_screen(path) {
        true => out.write_all(text.as_bytes()).map_err(Reason::Output),
        false => write_new(path, text.as_bytes()),
    }
}

/// Writes a file that must not exist yet.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Reason> {
    let written = create(path, false)?.write_all(bytes);
    written.map_err(Reason::write(path))
}

/// Creates a file that must not exist yet; if `private`, only this user may read it.
fn create(path: &Path, private: bool) -> Result<File, Reason> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if private {
        options.mode(0o600);
    }
    options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Reason::Exists(path.to_owned()),
        _ => Reason::Write(path.to_owned(), error),
    })
}

/// Refuses an existing file before there is anything to write.
fn must_be_new(path: &Path) -> Result<(), Reason> {
    if path.exists() { Err(Reason::Exists(path.to_owned())) } else { Ok(()) }
}

/// Checks that a file is a trace; the error says what it is and what can be done with it.
fn must_be_trace(path: &Path) -> Result<(), Reason> {
    match crate::import::format(path) {
        Ok(Format::Perfetto) => Ok(()),
        Ok(Format::Sqlite | Format::Json) => Err(Reason::file(path)(
            "this is not a trace of ncclscope but a file of another tool; ncclscope import makes a trace of it",
        )),
        // Of what else is supported, nothing helps here.
        Err(crate::import::Error::Foreign(what)) => Err(Reason::file(path)(what)),
        Err(error) => Err(Reason::file(path)(error)),
    }
}

/// Calls `each` for every packet of a trace, until it fails. Errors in the trace name the file.
fn read_trace(path: &Path, mut each: impl FnMut(&Packet<'_>) -> Result<(), Reason>) -> Result<Extent, Reason> {
    reader::read_file(path, |packet| each(packet).map_err(Fault::Other)).map_err(|fault| fault.of(path))
}

/// The same without the compressed packets that are skipped.
fn read_parts(
    path: &Path,
    passed: &reader::Passed<'_>,
    mut each: impl FnMut(&Packet<'_>) -> Result<(), Reason>,
) -> Result<Extent, Reason> {
    let file = File::open(path).map_err(Reason::read(path))?;
    reader::read_parts(file, passed, |packet| each(packet).map_err(Fault::Other)).map_err(|fault| fault.of(path))
}

/// Why a trace was not read to its end.
enum Fault {
    /// What is wrong with the trace.
    Trace(reader::Error),
    /// Something else; the text names the file.
    Other(Reason),
}

impl From<reader::Error> for Fault {
    fn from(error: reader::Error) -> Fault {
        Fault::Trace(error)
    }
}

impl Fault {
    fn of(self, path: &Path) -> Reason {
        match self {
            Fault::Trace(error) => Reason::file(path)(error),
            Fault::Other(reason) => reason,
        }
    }
}
