//! The command line. Exit status: 0 done, 1 could not be done (with the reason on stderr), 2 wrong usage. `run`, `doctor` and `info` have
//! meanings of their own.

mod beside;
mod capture;
mod colour;
mod compare;
mod cut;
mod doctor;
mod foreign;
mod generate;
mod hang;
mod import;
mod info;
mod library;
mod merge;
mod nccl;
mod open;
mod progress;
mod reason;
mod replay;
mod run;
mod survey;

pub use self::reason::Reason;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde::Serialize;

use self::progress::{Line, Progress};
use crate::config::{SETTINGS, Setting};
use crate::import::Format;
use crate::trace::reader::{self, Extent, Packet};

/// NCCL profiler: host, proxy and GPU on one clock, as Perfetto traces.
#[derive(Parser)]
#[command(name = "ncclscope", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a job with ncclscope loaded into it, and say what was recorded
    ///
    /// Goes before a launcher (ncclscope run -- torchrun ...) or behind it, before the program (srun ncclscope run -- ...). The job's exit code
    /// and its signals are those it would have had. What is set already is kept, and named; each setting is a flag, too.
    Run(run::Wish),
    /// Say what will work on this machine, what will not, and what to do about it
    ///
    /// Looks at the library, the driver, copies of CUPTI and who has them, NCCL's releases, the environment, rights and room. Loads nothing but
    /// ncclscope's own library, and needs no GPU. The exit code is 1 where something will keep ncclscope from recording, else 0, notes included;
    /// that there is no GPU is a note.
    Doctor(doctor::Wish),
    /// Print where the library is that NCCL loads
    Lib,
    /// Cut a part out of a trace: a stretch of time, some ranks, a communicator
    ///
    /// The part is a trace like any other. A slice that reaches across an edge of the stretch keeps its true begin and
    /// end. What the recording says of itself, the communicators and the GPUs are kept in every cut.
    Cut {
        /// The trace
        trace: PathBuf,
        /// The file to write; it must not exist
        #[arg(short, long)]
        output: PathBuf,
        /// From when to when, counted from the trace's start as the viewer does: 1.5s..2s, 300ms..400ms, 10s.. or ..1min
        ///
        /// Units: ns, us, ms, s, min, h.
        #[arg(long, value_name = "A..B")]
        time: Option<cut::Window>,
        /// Ranks in the job, as a list with ranges: 0,4,8-12
        #[arg(long)]
        ranks: Option<cut::Ranks>,
        /// A communicator, by its name, what its tracks call it or its hash; may be given more than once
        ///
        /// Left out is what belongs to others. What belongs to none stays: the application's kernels, its ranges.
        #[arg(long = "comm", value_name = "NAME")]
        communicators: Vec<String>,
        /// Leave out the single transfers of the network proxy, which are most of a large trace
        #[arg(long)]
        no_steps: bool,
    },
    /// Say what files hold: processes, communicators, operations, losses and doubts
    ///
    /// Of Nsight Systems' SQLite exports and PyTorch's JSON too: what they hold, and what they know about NCCL's kernels. Of captures what is in
    /// them.
    ///
    /// Of each trace the second line is the verdict, whether it can be trusted. The exit code is that of the worst: 0 trusted, 1 with
    /// reservations (something was lost, is unmatched or contradicts itself, or a recording is not closed), 2 where a file cannot be read to its end.
    Info {
        /// Traces, captures, or files of other tools
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// Write all of it as JSON too; with -, to standard output and alone
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Say which of two runs is slower, and which rank, kernel or link made it so; or compare a trace with another tool's file of the same run
    ///
    /// Times, hosts and processes say whether the two are of one run or of two. Of two runs, steps are compared rank by rank, and the first line
    /// is the answer. Of one run, moments are compared, on clocks that are put together by the launches that both tools saw.
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
    /// Put the traces of a job's processes into one file
    ///
    /// They must be of one run: with a communicator in common, or recorded at one time. Processes of one host share a clock. Other hosts are put
    /// on that of the first file by the order of the operations that they share, and how well is said; where nothing relates them they are
    /// refused. What cannot be read, or is there twice, is named and left out. Ranks of which there is no file are named. A file that was cut
    /// off, because its process was killed while writing, loses its unfinished last packet.
    ///
    /// Another tool's file of the same run is given by --with: its kernels come under the operations of ours, on one clock.
    Merge(merge::Wish),
    /// As it was called before.
    #[command(hide = true, disable_help_flag = true)]
    Join {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Open a trace in Perfetto's viewer, without giving it to anybody else
    ///
    /// The viewer, ui.perfetto.dev, is a page that works in your browser alone. It reads the trace from this machine, below
    /// a path that nobody can guess, and once. The link shows the busiest part of the trace with its communicators
    /// pinned. Of a trace of more than 3 million slices a part is proposed: the viewer takes some 12 seconds a million.
    Open {
        /// Trace files; several that share a clock are shown as one
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// A folder with a copy of the viewer, instead of ui.perfetto.dev
        #[arg(long, value_name = "FOLDER")]
        ui: Option<PathBuf>,
        /// Another port than 9001, with --ui; ui.perfetto.dev may read from no other
        #[arg(long, requires = "ui", default_value_t = open::PORT)]
        port: u16,
        /// How long to wait for the trace to be read
        #[arg(long = "for", value_name = "TIME", default_value = "10min", value_parser = cut::nanoseconds)]
        patience: u64,
        /// Only say the link, even where there is a desktop
        #[arg(long)]
        no_browser: bool,
    },
    /// Make the trace again from what a recording read, as NCCLSCOPE_CAPTURE=1 keeps it
    ///
    /// The same version makes the same trace, byte for byte; another one reads and joins the same records in its own way. Of a capture that
    /// was cut off, all before the cut is replayed.
    Replay {
        /// The capture
        capture: PathBuf,
        /// The trace to write; it must not exist. Without, CAPTURE with the ending .replayed.perfetto-trace
        #[arg(short, long)]
        output: Option<PathBuf>,
        /// Write no trace, and print how the owner of each kernel of this launching call was decided: candidates, rule and bounds. KERNEL is
        /// the argument `correlation` of the kernel's slice
        #[arg(long, value_name = "KERNEL", conflicts_with = "output")]
        explain: Option<u32>,
    },
    /// List the environment variables of the plugin
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
    /// Say which signals came, for `ncclscope run`
    #[command(hide = true, name = run::signals::SENTINEL)]
    Sentinel,
}

impl Command {
    /// What is said while it works and reads no file; nothing of commands that take no time of their own.
    fn while_it_works(&self) -> Option<&'static str> {
        match self {
            Command::Cut { .. }
            | Command::Info { .. }
            | Command::Compare(_)
            | Command::Import { .. }
            | Command::Merge(_)
            | Command::Replay { .. } => Some("working"),
            // It asks a Python, and reads libraries that may be on a network.
            Command::Doctor(_) => Some("looking"),
            // It waits for a browser.
            Command::Open { .. } => Some(""),
            Command::Run(_) | Command::Lib | Command::Join { .. } => None,
            Command::Settings { .. } | Command::Generate { .. } | Command::Sentinel => None,
        }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Failure {
    /// It was not understood; or it asked for help, which is the answer.
    Usage(clap::Error),
    /// It could not be done: what was wrong, where, and what to do.
    Reason(Reason),
    /// The same, where status 1 says something else: `ncclscope info` could not read a file. The status is 2.
    Trouble(Reason),
    /// All is said, and this is the exit status: that of the job of `ncclscope run`, or the verdict of `ncclscope doctor` or `info`.
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

/// The standard output. Where whoever read it went away (`ncclscope info TRACE | head`), the command still does its work.
struct Screen {
    gone: bool,
    /// What is shown meanwhile.
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

/// Carries out a command: the program's name and the words behind it. What it has to say goes to `out`.
///
/// # Errors
///
/// When it is not understood, or cannot be done.
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
        Command::Cut { trace, output, time, ranks, communicators, no_steps } => {
            cut::run(&trace, &output, &cut::Wish { window: time, ranks, communicators, no_steps }, out)
        }
        Command::Compare(wish) => compare::run(&wish, out),
        Command::Import { file, output } => import::run(&file, &output, out),
        Command::Info { traces, json } => return info::run(&traces, json.as_deref(), out),
        Command::Merge(wish) => merge::run(&wish, out),
        Command::Join { .. } => {
            Err("ncclscope join is ncclscope merge now; it takes folders too, and another tool's file with --with"
                .into())
        }
        Command::Open { traces, ui, port, patience, no_browser } => {
            let patience = Duration::from_nanos(patience);
            open::run(&traces, &open::Wish { ui, port, patience, no_browser }, out)
        }
        Command::Replay { capture, explain: Some(kernel), .. } => replay::explain(&capture, kernel, out),
        Command::Replay { capture, output, explain: None } => replay::run(&capture, output, out),
        Command::Settings { json: Some(path) } => settings_json(&path, out),
        Command::Settings { json: None } => settings(out).map_err(Reason::Output),
    };
    result.map_err(Failure::Reason)
}

fn settings(out: &mut dyn Write) -> io::Result<()> {
    for setting in SETTINGS {
        writeln!(out, "{}", setting.name)?;
        writeln!(out, "    {}", setting.help)?;
        writeln!(out, "    value: {}; default: {}", setting.values, setting.default)?;
    }
    Ok(())
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

/// Whether `-` is said instead of a file: the standard output.
fn is_screen(path: &Path) -> bool {
    path == Path::new("-")
}

/// Says of a file for JSON that it is there already.
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

/// Writes a file that must not be there yet.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Reason> {
    let written = create(path, false)?.write_all(bytes);
    written.map_err(Reason::write(path))
}

/// Creates a file that must not be there yet, for this user alone where it is `private`.
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

/// Says of a file that it is there already, before there is anything to write.
fn must_be_new(path: &Path) -> Result<(), Reason> {
    if path.exists() { Err(Reason::Exists(path.to_owned())) } else { Ok(()) }
}

/// Whether a file is a trace; else what it is, and what can be done with it.
fn must_be_trace(path: &Path) -> Result<(), Reason> {
    match crate::import::format(path) {
        Ok(Format::Perfetto) => Ok(()),
        Ok(Format::Sqlite | Format::Json) => Err(Reason::file(path)(
            "this is not a trace of ncclscope but a file of another tool; ncclscope import makes a trace of it",
        )),
        Err(error) => Err(Reason::file(path)(error)),
    }
}

/// Calls `each` for every packet of a trace, until it fails. What is wrong with the trace names the file.
fn read_trace(path: &Path, mut each: impl FnMut(&Packet<'_>) -> Result<(), Reason>) -> Result<Extent, Reason> {
    reader::read_file(path, |packet| each(packet).map_err(Fault::Other)).map_err(|fault| fault.of(path))
}

/// Why a trace was not read to its end.
enum Fault {
    /// What is wrong with it.
    Trace(reader::Error),
    /// What else, in words that name the file.
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
