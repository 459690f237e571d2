//! The command line: parse, run, explain, exit code.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use emulator::job;
use emulator::launch::{self, Ended, Launch, Report, folder_of_traces};
use emulator::library::{CacheUse, Library};
use emulator::scenario::{self, Layout, Scenario};
use emulator::wheel::{self, Release};

/// The real libnccl on emulated GPUs.
#[derive(Parser)]
#[command(name = "emulator", version, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  all right
  1  a result was wrong, or a process failed
  2  bad usage, or a scenario that makes no sense
  3  a libnccl that cannot be run here; the message says why
  4  the time limit was reached, and the processes were killed";

#[derive(Subcommand)]
enum Command {
    /// Runs a scenario: a file, or one that comes with the emulator.
    Run(Run),
    /// Becomes one process of a scenario's job, numbered by torchrun, mpirun or srun. The folder
    /// must be new.
    Member(Run),
    /// Lists the scenarios that come with the emulator.
    List,
    /// Says whether a libnccl can be run here, and what is known about it.
    Inspect {
        /// The file, or a release such as 2.30.7.
        library: OsString,
    },
    /// Fetches releases of NCCL from PyPI into the cache, and prints where they are.
    Fetch(Fetch),
    /// Prints a random scenario, which depends only on the seed.
    Random {
        /// The seed of everything in it.
        #[arg(long)]
        seed: u64,
    },
    /// One process of a job.
    #[command(hide = true)]
    Rank(job::Process),
}

#[derive(Args)]
struct Run {
    /// A file, or a name from `emulator list`.
    scenario: String,
    /// The libnccl.so.2 to run, or a release such as 2.30.7, which is fetched from PyPI into the
    /// cache.
    #[arg(long, value_name = "LIB", default_value = wheel::DEFAULT)]
    nccl: OsString,
    /// A profiler plugin for NCCL to load [default: the value of NCCL_PROFILER_PLUGIN]
    #[arg(long, value_name = "LIB")]
    plugin: Option<PathBuf>,
    /// A folder with an emulated CUPTI, which comes first on the library path.
    #[arg(long, value_name = "DIR")]
    cupti: Option<PathBuf>,
    /// The folder for the truth, the logs and the traces [default: emulator-output/NAME]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// A seed that replaces the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds after which everything is killed, instead of the scenario's limit.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: Option<u64>,
    /// An environment variable for NCCL or the plugin. Other NCCL_* variables of the shell are not
    /// passed on.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    set: Vec<(String, String)>,
    /// Logs every call into CUDA in the processes' logs.
    #[arg(long)]
    trace_cuda: bool,
}

#[derive(Args)]
struct Fetch {
    /// Releases, such as 2.30.7.
    releases: Vec<String>,
    /// Every known release.
    #[arg(long)]
    all: bool,
    /// The releases that every change is tested with.
    #[arg(long)]
    always: bool,
}

/// A failure: the exit code and the message.
struct Failure(u8, String);

const WRONG: u8 = 1;
const USAGE: u8 = 2;
const UNSUITABLE: u8 = 3;
const TIME_LIMIT: u8 = 4;

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Run(run) => run.run(),
        Command::Member(run) => run.member(),
        Command::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Inspect { library } => inspect(&library),
        Command::Fetch(fetch) => fetch.run(),
        Command::Random { seed } => {
            print!("{}", scenario::random::scenario(seed));
            Ok(ExitCode::SUCCESS)
        }
        Command::Rank(process) => return job::run(&process),
    };
    result.unwrap_or_else(|Failure(code, message)| {
        eprintln!("emulator: {message}");
        ExitCode::from(code)
    })
}

impl Run {
    fn run(self) -> Result<ExitCode, Failure> {
        let launch = self.launch()?;
        let report = launch::run(&launch).map_err(failure)?;
        print!("{}", summary(&launch, &report));
        Ok(match report.ended {
            Ended::AtTimeLimit(_) => ExitCode::from(TIME_LIMIT),
            // As a shell reports a program that was ended by a signal.
            Ended::BySignal(signal) => ExitCode::from(128 + signal as u8),
            _ if report.is_right() => ExitCode::SUCCESS,
            _ => ExitCode::from(WRONG),
        })
    }

    fn member(self) -> Result<ExitCode, Failure> {
        Err(failure(launch::become_member(&self.launch()?)))
    }

    /// The job to run.
    fn launch(self) -> Result<Launch, Failure> {
        let scenario = Scenario::load(&self.scenario, self.seed).map_err(|message| Failure(USAGE, message))?;
        let file = |path: PathBuf, what: &str, is: fn(&Path) -> bool| match path.canonicalize() {
            Ok(path) if is(&path) => Ok(path),
            Ok(path) => Err(Failure(USAGE, format!("{} is not a {what}", path.display()))),
            Err(error) => Err(Failure(USAGE, format!("failed to find {}: {error}", path.display()))),
        };
        let output = self.output.unwrap_or_else(|| Path::new("emulator-output").join(&scenario.name));
        Ok(Launch {
            program: std::env::current_exe().map_err(|error| Failure(WRONG, error.to_string()))?,
            nccl: library(&self.nccl)?,
            plugin: self.plugin.map(|path| file(path, "file", Path::is_file)).transpose()?,
            cupti: self.cupti.map(|path| file(path, "folder", Path::is_dir)).transpose()?,
            output: std::path::absolute(output).map_err(|error| Failure(USAGE, error.to_string()))?,
            set: self.set,
            time_limit: self.time_limit.map(Duration::from_secs),
            trace: self.trace_cuda,
            scenario,
        })
    }
}

fn failure(error: launch::Error) -> Failure {
    match &error {
        launch::Error::Refused(_) => Failure(USAGE, error.to_string()),
        launch::Error::Unsuitable(..) => Failure(UNSUITABLE, error.to_string()),
        launch::Error::System(_) => Failure(WRONG, error.to_string()),
    }
}

impl Fetch {
    fn run(self) -> Result<ExitCode, Failure> {
        let mut wanted = Vec::new();
        for name in &self.releases {
            wanted.push(Release::named(name).map_err(|message| Failure(USAGE, message))?);
        }
        wanted.extend(wheel::RELEASES.iter().filter(|release| self.all || (self.always && release.always)));
        if wanted.is_empty() {
            return Err(Failure(USAGE, "name a release, or say --all or --always".into()));
        }
        for release in wanted {
            if !release.is_cached() {
                let Release { package, version, megabytes, .. } = release;
                eprintln!(
                    "fetching {package} {version} from PyPI into {}: {megabytes} MB, once",
                    wheel::cache().display()
                );
            }
            let path = release.fetch().map_err(|message| Failure(UNSUITABLE, message))?;
            println!("{}", path.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The outcome of a job, in a few lines.
fn summary(launch: &Launch, report: &Report) -> String {
    let Launch { scenario, output, .. } = launch;
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let plural = |count: u32, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
    for failed in &report.failed {
        let ranks: Vec<String> = scenario.ranks_of(failed.process).map(|rank| rank.to_string()).collect();
        line(format!(
            "process {} (rank {}) {}: {}",
            failed.process,
            ranks.join(", "),
            failed.how,
            failed.log.display()
        ));
        failed.last_lines.lines().for_each(|last| line(format!("  | {last}")));
    }
    let as_what = match scenario.layout {
        Layout::Processes => "a process each".to_owned(),
        Layout::Threads => "threads of one process a host".to_owned(),
        Layout::Devices => "those of a host in one thread".to_owned(),
    };
    let release = report.release.as_deref().unwrap_or("of unknown release");
    line(format!("{}: {}", scenario.name, scenario.title));
    line(format!(
        "  ran      {} on {}, {as_what}, NCCL {release}, {:.1} s",
        plural(scenario.ranks(), "rank"),
        plural(scenario.hosts, "host"),
        report.elapsed.as_secs_f64()
    ));
    line(match (report.checked, report.wrong) {
        (0, _) => "  checked  no results".into(),
        (checked, 0) => format!("  checked  {checked} results, all right"),
        (checked, wrong) => format!("  checked  {checked} results, {wrong} of them WRONG"),
    });
    match report.ended {
        Ended::ByItself => {}
        Ended::AsItHung => line("  ended    killed while a rank hung, as the scenario says".into()),
        Ended::AfterFailure => line("  ended    KILLED: a process had failed and the others did not end".into()),
        Ended::AtTimeLimit(limit) => line(format!("  ended    KILLED at the time limit of {} s", limit as f64 / 1e9)),
        Ended::BySignal(signal) => line(format!("  ended    killed on signal {signal}")),
    }
    line(format!("  truth    {}", output.join("truth-*.jsonl").display()));
    if launch.plugin.is_some() && folder_of_traces(output).is_dir() {
        line(format!("  traces   {}", folder_of_traces(output).display()));
    }
    text
}

fn list() {
    for (name, text) in scenario::SHIPPED {
        let title = Scenario::parse(name, text, None).map_or_else(|error| error, |scenario| scenario.title);
        println!("{name:<14} {title}");
    }
}

/// The output of `inspect`.
fn inspect(wanted: &OsString) -> Result<ExitCode, Failure> {
    let path = library(wanted)?;
    let found = Library::inspect(&path, &wheel::cache());
    let found = found.map_err(|reason| Failure(UNSUITABLE, format!("failed to run {}: {reason}", path.display())))?;
    println!("{}", found.path().display());
    println!("  release   {}", found.release().unwrap_or("not stated"));
    println!("  build id  {}", found.build_id().unwrap_or("none"));
    println!("  symbols   {}", found.symbol_count());
    let layout = match found.cache() {
        CacheUse::Read(file) => format!("complete, from the cache ({})", file.display()),
        CacheUse::Written(file) => {
            format!("complete, from its debug information, now in the cache ({})", file.display())
        }
        CacheUse::NotWritten(file, error) => format!("complete, but not in the cache: {}: {error}", file.display()),
        CacheUse::NotPossible => "complete, not in the cache, because it has no build id".into(),
    };
    println!("  layout    {layout}");
    Ok(ExitCode::SUCCESS)
}

/// The libnccl to use: a file, a folder that contains it, or a release.
fn library(wanted: &OsString) -> Result<PathBuf, Failure> {
    let path = Path::new(wanted);
    if path.is_dir() {
        let places = ["libnccl.so.2", "lib/libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2"];
        let found = places.iter().map(|place| path.join(place)).find(|place| place.is_file());
        return found
            .ok_or_else(|| Failure(USAGE, format!("there is no libnccl.so.2 in {}", path.display())))
            .and_then(|path| path.canonicalize().map_err(|error| Failure(USAGE, error.to_string())));
    }
    let release = wanted.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    match release {
        Some(version) => {
            let release = Release::named(version).map_err(|message| Failure(USAGE, message))?;
            release.fetch().map_err(|message| {
                Failure(UNSUITABLE, format!("{message}; --nccl can name a libnccl.so.2 of your own"))
            })
        }
        None => {
            path.canonicalize().map_err(|error| Failure(USAGE, format!("failed to find {}: {error}", path.display())))
        }
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected KEY=VALUE".into()),
    }
}
