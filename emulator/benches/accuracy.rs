//! A table of how many kernels the profiler matches correctly and wrongly, and how far their times
//! are off.
//!
//! ```text
//! cargo xtask accuracy [--runs N] [--seed S] [--scenario NAME] [--nccl VERSION]
//! ```
//!
//! The real libnccl runs every case with several releases on emulated GPUs, and then as many
//! random jobs as asked for. The traces are compared with the emulator's truth. For comparison the
//! table also shows a matcher that uses only stream and order. Nothing here is a measurement of a
//! GPU.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest of it")]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use emulator::accuracy::{Demand, Verdict};
use support::accuracy::{self, Case};

const USAGE: &str = "\
usage: cargo xtask accuracy [--runs N] [--seed S] [--scenario NAME] [--nccl VERSION]

  --runs      so many random jobs, after the cases that are always the same and the seeds that went wrong once [default: 1000]
  --seed      of the first random job; the others follow it [default: from the time]
  --scenario  only this one; `none` goes to the random jobs at once
  --nccl      only with this release
";

/// The command line.
struct Wish {
    runs: u64,
    seed: u64,
    scenario: Option<String>,
    nccl: Option<String>,
}

/// The results so far.
#[derive(Default)]
struct Sum {
    all: Verdict,
    failed: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.iter().any(|word| word == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(wish) = Wish::parse(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let cases = accuracy::fixed();
    if let Some(name) = wish.scenario.as_deref().filter(|name| *name != "none")
        && !cases.iter().any(|case| case.name == name)
    {
        let names: Vec<&str> = cases.iter().map(|case| &*case.name).collect();
        eprintln!("there is no case `{name}`; there are: {}", names.join("; "));
        return ExitCode::from(2);
    }
    println!("emulated: the real NCCL on emulated GPUs, with an emulated CUPTI, on {}", machine());
    println!("{HEAD}");
    // A case that cannot be played says so in its row.
    std::panic::set_hook(Box::new(|_| ()));
    let start = Instant::now();
    let mut sum = Sum::default();
    for case in cases.iter().filter(|case| wish.wants(&case.name)) {
        for nccl in accuracy::RELEASES.into_iter().filter(|nccl| wish.is_for(nccl)) {
            sum.play(case, nccl);
        }
    }
    let runs = if wish.scenario.as_deref().is_none_or(|name| name == "none") { wish.runs } else { 0 };
    let folder = tempfile::tempdir().expect("a folder for scenarios");
    let known = accuracy::RIGHT_AGAIN.iter().map(|(seed, _)| *seed);
    let known = known.filter(|_| wish.scenario.is_none());
    for seed in known.chain(wish.seed..wish.seed.saturating_add(runs)) {
        let (case, nccl) = accuracy::random(seed, folder.path());
        if wish.is_for(nccl) {
            sum.play(&case, nccl);
        }
    }
    sum.print(start.elapsed().as_secs_f64())
}

impl Wish {
    fn parse(words: &[String]) -> Option<Wish> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs());
        let mut wish = Wish { runs: 1_000, seed: now, scenario: None, nccl: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next()?;
            match word.as_str() {
                "--runs" => wish.runs = value.parse().ok()?,
                "--seed" => wish.seed = value.parse().ok()?,
                "--scenario" => wish.scenario = Some(value.clone()),
                "--nccl" => wish.nccl = Some(value.clone()),
                _ => return None,
            }
        }
        Some(wish)
    }

    fn wants(&self, name: &str) -> bool {
        self.scenario.as_deref().is_none_or(|wanted| wanted == name)
    }

    fn is_for(&self, nccl: &str) -> bool {
        self.nccl.as_deref().is_none_or(|wanted| wanted == nccl)
    }
}

impl Sum {
    fn play(&mut self, case: &Case, nccl: &str) {
        let demand = case.demand(nccl);
        let (verdict, faults) = match catch_unwind(AssertUnwindSafe(|| case.judge(nccl))) {
            Ok(verdict) => {
                let faults = case.faults(nccl, &verdict);
                (verdict, faults)
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                let examples = text.unwrap_or("it panicked").lines().take(12).map(str::to_owned).collect();
                (Verdict { examples, ..Verdict::default() }, vec!["not judged".to_owned()])
            }
        };
        println!("{}", line(&case.name, nccl, &verdict, &faults));
        if !faults.is_empty() {
            for example in &verdict.examples {
                println!("    {example}");
            }
            for (reason, number) in &verdict.unmatched {
                println!("    {number} unmatched: {reason}");
            }
            self.failed.push(format!("{} with NCCL {nccl}, CUPTI {} {}", case.name, case.cupti, case.misbehaviour));
        }
        if demand != Demand::Nothing {
            self.all.add(&verdict);
        }
    }

    fn print(&self, seconds: f64) -> ExitCode {
        println!("{}", line("all", "", &self.all, &[]));
        let (kernels, matched) = (self.all.kernels, self.all.all_right());
        let (wrong, run) = (self.all.all_wrong(), self.all.other_run);
        println!(
            "\nof {kernels} kernels {matched} matched rightly, {wrong} wrongly, {run} to another run; {seconds:.0} s"
        );
        for (method, number) in &self.all.right {
            println!("  {number:>7} {method}");
        }
        for (reason, number) in &self.all.unmatched {
            println!("  {number:>7} unmatched: {reason}");
        }
        if self.failed.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("\nnot as demanded:");
        for name in &self.failed {
            println!("  {name}");
        }
        println!("\na random job again: cargo xtask accuracy --scenario none --runs 1 --seed SEED");
        ExitCode::FAILURE
    }
}

/// The processor and its number of cores.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", name.unwrap_or("a processor without a name"))
}

/// The table's first lines.
const HEAD: &str = "\
\x20                           |        matched rightly, by                 |                              | untold    |      | by order alone    | kernels, us        | channels, us: after 1 s
scenario             NCCL   |kernels  launch   node   call  order  other | part wrong  run unmatched torn |  yes   no | lost | right wrong  none |    worst   stated  | worst  stated stated  result";

/// A row of the table.
fn line(name: &str, nccl: &str, verdict: &Verdict, faults: &[String]) -> String {
    const METHODS: [&str; 4] =
        ["exact_launch_bracket", "exact_graph_node", "inferred_call_bracket", "inferred_thread_order"];
    let by = METHODS.map(|method| verdict.right.get(method).copied().unwrap_or_default());
    let other = verdict.all_right() - by.iter().sum::<u64>();
    let in_us = |ns: i64| ns as f64 / 1e3;
    let timer = match verdict.channels {
        0 => format!("{:>6}{:>8}", "-", "-"),
        _ => format!("{:>6.1}{:>8.1}", in_us(verdict.timer.worst), in_us(verdict.timer.bound)),
    };
    let later = match verdict.later.bound {
        0 => format!("{:>7}", "-"),
        bound => format!("{:>7.1}", in_us(bound)),
    };
    let result = if faults.is_empty() { "ok".to_owned() } else { faults.join("; ") };
    format!(
        "{name:<20} {nccl:<7}|{:>6} |{:>8}{:>7}{:>7}{:>7}{other:>7} |{:>5}{:>6}{:>5}{:>10}{:>5} |{:>5}{:>5} |{:>5} |{:>6}{:>6}{:>6} |\
         {:>9.1}{:>9.1}  |{timer}{later}  {result}",
        verdict.kernels,
        by[0],
        by[1],
        by[2],
        by[3],
        verdict.part,
        verdict.all_wrong(),
        verdict.other_run,
        verdict.all_unmatched(),
        verdict.torn,
        verdict.untold.0,
        verdict.untold.1,
        verdict.missing,
        verdict.naive.right,
        verdict.naive.wrong,
        verdict.naive.unmatched,
        in_us(verdict.clock.worst),
        in_us(verdict.clock.bound),
    )
}
