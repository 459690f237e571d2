//! The suite: the questions, their order, and the results.
//!
//! | topic | rows |
//! | --- | --- |
//! | `workloads` | each workload with the profiler: every kernel must be matched, none wrongly |
//! | `matching` | the ways of matching, compared with each other kernel by kernel |
//! | `questions` | what CUPTI and the GPU's timer do |
//! | `clocks` | how large the clocks' error bounds are, and how clocks drift |
//! | `costs` | what the profiler costs, in time and in memory |
//! | `exits` | processes that end abnormally |
//! | `python` | PyTorch |

mod bench;
mod clocks;
mod costs;
mod exits;
mod first;
mod matching;
mod python;
mod questions;
mod workloads;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;

use crate::find::{Machine, Wanted};
use crate::report::{FORMAT, Report, State};
use bench::Bench;

/// Asks every question that this machine can answer, and writes a report.
#[derive(Args, Clone, Debug)]
pub struct Suite {
    /// The short form, which takes less than five minutes.
    #[arg(long)]
    pub quick: bool,
    /// The first part of the first ten minutes on a GPU: the most important rows, in 280 seconds
    /// at most.
    #[arg(long, conflicts_with_all = ["second", "quick", "only"])]
    pub first: bool,
    /// The second part: the remaining important rows, in 420 seconds at most.
    #[arg(long, conflicts_with_all = ["quick", "only"])]
    pub second: bool,
    /// The folder for the report and an archive of the jobs' files: a few files, none above 16
    /// MiB, each complete at every moment.
    #[arg(long, value_name = "FOLDER", default_value = "gpu-report")]
    pub output: PathBuf,
    /// The folder in which jobs leave traces and logs [default: that of the report, with -jobs
    /// appended]
    #[arg(long, value_name = "FOLDER")]
    pub jobs: Option<PathBuf>,
    /// Only these topics, or rows of them: workloads, matching, questions, clocks, costs, exits,
    /// python.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Minutes after which everything has ended; remaining rows are reported as not run [default:
    /// none; with --quick 4.5 if no row is named]
    #[arg(long, value_name = "MINUTES")]
    pub minutes: Option<f64>,
    /// How long clocks are watched, in seconds, less than a job may take [default: 1,10,40; with
    /// --quick 1,10]
    #[arg(long, value_name = "SECONDS", value_delimiter = ',')]
    pub clock_seconds: Vec<f64>,
    /// How often cost is measured in each order A, B, B, A [default: 5; with --quick 1]
    #[arg(long)]
    pub cost_cycles: Option<u32>,
    /// Seconds that one job may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub job_limit: u64,
    /// The paths given on the command line.
    #[command(flatten)]
    pub wanted: Wanted,
    /// Adds a job that never ends, to test what happens to it.
    #[arg(long, hide = true)]
    pub hang: bool,
}

/// The topics in their order.
const TOPICS: [fn(&mut Bench); 7] =
    [workloads::run, matching::run, questions::run, clocks::run, costs::run, exits::run, python::run];

/// Exit code: something required for every question is missing.
const MISSING: u8 = 3;
/// Exit code: wrong usage.
const USAGE: u8 = 2;

impl Suite {
    /// The topics and rows of each pass, in the suite's own order; an empty pass means everything.
    fn passes(&self) -> Vec<Vec<String>> {
        let passes = match (self.first, self.second) {
            (true, _) => &first::FIRST[..],
            (_, true) => &first::SECOND[..],
            _ => return vec![self.only.clone()],
        };
        passes.iter().map(|pass| pass.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Seconds after which everything has ended.
    fn seconds(&self) -> Option<f64> {
        // The short form must end in time, unless rows are named, because those must not be
        // dropped.
        const QUICK_MINUTES: f64 = 4.5;
        let quick = (self.quick && self.only.is_empty()).then_some(QUICK_MINUTES * 60.0);
        let first = self.first.then_some(first::FIRST_SECONDS).or(self.second.then_some(first::SECOND_SECONDS));
        let minutes = self.minutes.map(|minutes| minutes * 60.0);
        match (first, minutes) {
            (Some(first), Some(minutes)) => Some(first.min(minutes)),
            _ => minutes.or(first).or(quick),
        }
    }

    /// Runs the suite; returns the program's exit code.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let machine = Machine::look(&self.wanted);
        let missing = machine.missing();
        if !missing.is_empty() {
            eprintln!("ncclscope-gpu: nothing can be asked here; missing: {}", missing.join("; "));
            return ExitCode::from(MISSING);
        }
        let mut bench = match Bench::new(self, machine) {
            Ok(bench) => bench,
            Err(reason) => {
                eprintln!("ncclscope-gpu: nothing can be asked here: {reason}");
                return ExitCode::from(MISSING);
            }
        };
        say(&format!("{}{:<13} {}\n", bench.machine, "ranks", bench.layout()));
        if bench.suite.first {
            python::warm_up(&bench);
        }
        for wanted in bench.suite.passes() {
            bench.wanted = wanted;
            TOPICS.iter().for_each(|topic| topic(&mut bench));
        }
        bench.lost();
        let named = |name: &String| bench.rows.iter().any(|row| row.topic == name || row.name == *name);
        if let Some(unknown) = bench.suite.only.iter().find(|name| !named(name)) {
            eprintln!("ncclscope-gpu: there is no topic or row {unknown}");
            return ExitCode::from(USAGE);
        }
        let report = bench.report();
        if let Err(reason) = bench.home.report(report.clone()).and_then(|()| bench.home.finish()) {
            eprintln!("ncclscope-gpu: {reason}");
            return ExitCode::FAILURE;
        }
        let (ok, not_ok) = (report.count(State::Ok), report.count(State::NotOk));
        say(&format!(
            "\n{ok} ok, {not_ok} not ok, {} not run; {:.0} s\nThe report: {}",
            report.count(State::NotRun),
            report.seconds,
            bench.suite.output.join("report.md").display()
        ));
        if not_ok == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints a line. A closed output is not an error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

impl Bench {
    /// The report so far.
    fn report(&self) -> Report {
        let seconds = self.began.elapsed();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Report {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            began: now.saturating_sub(seconds).as_secs(),
            seconds: seconds.as_secs_f64(),
            quick: self.suite.quick,
            emulated: self.is_emulated(),
            versions: self.versions(),
            layout: self.layout(),
            machine: self.machine.clone(),
            gpus: self.gpus.clone(),
            rows: self.rows.clone(),
            jobs: self.jobs.clone(),
            running: None,
            left_out: Vec::new(),
        }
    }
}
