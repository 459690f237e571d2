//! `ncclscope diagnose`: what makes a job slow, and what it would take without it.
//!
//! ```text
//!   files -> load -> Job, with its graph -> causes -> answer -> report
//! ```
//!
//! [`graph`] is the job as items that depend on each other, and replays it with changes.
//! [`causes`](mod@causes) tries out what differs between ranks, links and steps, and keeps what
//! costs something.

mod answer;
mod causes;
mod graph;
mod job;
mod lateness;
mod load;
mod shares;
mod since;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::Value;

pub(super) use self::answer::look_at;
use self::answer::{Report, capitalized};
use self::causes::Findings;
use self::job::Job;
pub(super) use self::lateness::{Cell as Late, Lateness};
pub(super) use self::shares::APART_NS;
use super::compare::runs;
use super::shared_gpus;
use super::survey::Survey;
use super::troubles::Troubles;
use crate::cli::reason::Reason;
use crate::import::{self, Format};
use crate::model::time::HostNs;

/// What to look at.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// The traces of a job's ranks, or a folder with them; also files of Nsight Systems or
    /// PyTorch's profiler
    #[arg(required = true, value_name = "FOLDER|FILE")]
    traces: Vec<PathBuf>,
    /// Each step begins with one of these: the name of a kernel or of an operation, as it is in
    /// the report. By default, steps are the program's own ranges, or what repeats
    #[arg(long, value_name = "NAME")]
    step: Option<String>,
    /// Only these steps, counted from 0: 100..200
    #[arg(long, value_name = "A..B", value_parser = range)]
    steps: Option<Range<usize>>,
    /// Of more than 1 GB, read everything, not only how the recordings ended
    #[arg(long)]
    whole: bool,
    /// Write the answer as JSON, too; with -, to standard output alone
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    wish.json.as_deref().map_or(Ok(()), super::must_be_new_json)?;
    let files = runs::named(&wish.traces)?;
    let Wish { traces, step, steps, whole, .. } = wish;
    let wished = load::Wish { step: step.clone(), steps: steps.clone(), whole: *whole };
    let (report, _) = diagnosed(&files, traces, &wished)?;
    if let Some(path) = &wish.json {
        super::write_json(path, &report, out)?;
    }
    if wish.json.as_deref().is_some_and(super::is_screen) {
        return Ok(());
    }
    report.write(out).map_err(Reason::Output)
}

/// The answer of `ncclscope diagnose` about these files, which `named` stands for; and how late
/// ranks came.
fn diagnosed(files: &[PathBuf], named: &[PathBuf], wish: &load::Wish) -> Result<(Report, Lateness), Reason> {
    let (survey, loaded) = load::load(files, wish);
    let troubles = Troubles::of(&survey);
    let (report, lateness) = match loaded {
        Ok(mut job) => {
            job.shares_gpus = !troubles.shared_gpus.is_empty();
            let found = found(&mut job);
            (Report::of(&job, &found, &troubles), Lateness::of(&job, found.steps.mean))
        }
        // A job that hung in its first operation has no kernels.
        Err(_) if troubles.stuck().is_some() || troubles.standing().next().is_some() => {
            (Report::of(&Job::default(), &Findings::default(), &troubles), Lateness::default())
        }
        Err(reason) => return Err(reason),
    };
    let is_ours = |path: &PathBuf| matches!(import::format(path), Ok(Format::Perfetto));
    let report = if files.iter().all(is_ours) { report.with_all_ranks(named) } else { report };
    Ok((report, lateness))
}

/// What costs in the steps that are looked at. If steps have become longer and nothing in these
/// shows why, all steps may show something that costs more: then these are looked at.
fn found(job: &mut Job) -> Findings {
    let found = causes::find(job);
    let Some(since) = job.since.filter(|_| found.causes.is_empty()) else { return found };
    let longer = found.steps.median - since.before as f64;
    let slow_steps = job.steps.clone();
    job.steps.start = since.first;
    let of_all = causes::find(job);
    if of_all.causes.first().is_some_and(|cause| cause.cost > longer) {
        job.since = None;
        return of_all;
    }
    job.steps = slow_steps;
    found
}

/// The same for a report: the JSON of `--json`.
pub(super) fn for_report(files: &[PathBuf], named: &[PathBuf]) -> Result<(Value, Lateness), Reason> {
    let (report, lateness) = diagnosed(files, named, &load::Wish::default())?;
    let report = serde_json::to_value(&report).map_err(Reason::failed("write JSON"))?;
    Ok((report, lateness))
}

/// A cause or an answer in a sentence, for a look at it.
pub(super) struct Seen {
    pub(super) text: String,
    /// Where it shows best, on the clock of its file.
    pub(super) time: (HostNs, HostNs),
    pub(super) file: PathBuf,
}

/// What makes the job of these traces slow, the most expensive first; empty if that cannot be told.
/// The traces must be ours.
pub(super) fn causes(traces: &[PathBuf]) -> Vec<Seen> {
    let (survey, loaded) = load::load(traces, &load::Wish::default());
    let Ok(mut job) = loaded else { return Vec::new() };
    job.shares_gpus = !shared_gpus::find(&survey).is_empty();
    let found = found(&mut job);
    causes_of(&job, &found)
}

/// The answer about these traces, unless it cannot be told; and the causes, if the job does not
/// hang. The traces must be ours.
pub(super) fn answer(traces: &[PathBuf]) -> (Option<Seen>, Vec<Seen>) {
    let (survey, loaded) = load::load(traces, &load::Wish::default());
    let troubles = Troubles::of(&survey);
    if let Some(it) = troubles.stuck() {
        return (stuck(capitalized(&it.to_string()), &troubles, &survey), Vec::new());
    }
    let Ok(mut job) = loaded else { return (None, Vec::new()) };
    job.shares_gpus = !troubles.shared_gpus.is_empty();
    let found = found(&mut job);
    let text = Report::of(&job, &found, &troubles).told();
    let rank = found.causes.first().and_then(|cause| cause.ranks.first()).copied().unwrap_or(0);
    let answer = text.and_then(|text| seen(&job, text, rank, job.steps.clone(), false));
    (answer, causes_of(&job, &found))
}

/// Why the job hangs: from when the first rank came, on the clock of one of those that wait.
fn stuck(text: String, troubles: &Troubles, survey: &Survey) -> Option<Seen> {
    let hang = troubles.standing().find(|it| it.is_certain).or(troubles.hangs.first())?;
    let process = hang.came.iter().find_map(|rank| survey.processes.get(hang.processes.get(rank)?))?;
    let time = (process.last.saturating_sub(hang.age), process.last);
    Some(Seen { text, time, file: survey.extents.get(process.file)?.0.clone() })
}

/// Each cause in the step in which it shows best.
fn causes_of(job: &Job, found: &Findings) -> Vec<Seen> {
    let texts = Report::of(job, found, &Troubles::default()).cause_lines();
    let seen = found.causes.iter().zip(texts).filter_map(|(cause, text)| {
        let rank = cause.ranks.first().copied().unwrap_or(0);
        seen(job, text, rank, cause.step..cause.step + 1, cause.what.is_idleness())
    });
    seen.collect()
}

/// Something in these steps of a rank, if there are any; see [`Job::step_times`].
fn seen(job: &Job, text: String, rank: usize, steps: Range<usize>, with_idle: bool) -> Option<Seen> {
    let last = steps.clone().last()?;
    let [first, last] = [steps.start, last].map(|step| job.step_times(rank, step, with_idle));
    let host = |time: i64| u64::try_from(time).ok().map(HostNs);
    Some(Seen { text, time: (host(first.0)?, host(last.1)?), file: job.ranks[rank].file.clone() })
}

/// A range of steps.
fn range(text: &str) -> Result<Range<usize>, String> {
    let numbers = text.split_once("..").map(|(from, to)| (from.trim().parse(), to.trim().parse()));
    match numbers {
        Some((Ok(from), Ok(to))) if from < to => Ok(from..to),
        _ => Err(format!("{text} is no range of steps, such as 100..200")),
    }
}
