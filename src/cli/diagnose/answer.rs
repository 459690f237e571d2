//! The answer in words and as data: the causes, the cost of each, and where to look.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::causes::{Cause, ENOUGH, Findings, Measure, What};
use super::job::Job;
use super::shares::{self, OfCommunicator, OfOperation, OfRank};
use crate::cli::LISTED;
use crate::cli::colour;
use crate::cli::compare::steps::Source;
use crate::cli::hang;
use crate::cli::info::json as info_json;
use crate::cli::running::ended_first;
use crate::cli::troubles::{Stuck, Troubles};
use crate::trace::names::{duration, quoted, short};

mod words;

use words::Names;

/// The version of the JSON.
const FORMAT_VERSION: u32 = 1;
/// How many ranks are listed for people; the JSON has all of them.
const ROWS: usize = 16;
/// The fraction of the critical path that is listed for people.
const LITTLE: f64 = 0.005;

/// The fraction of a step in which transfers have nothing beside them, from which on a healthy
/// job's answer says so.
const EXPOSED: f64 = 0.2;

/// The fraction by which two runs of the same job differ.
const PLAYS: f64 = 0.02;
/// The uncertainty of what a job would save without a slow link, as a fraction.
const HIDDEN: f64 = 0.25;

/// The verdict on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// Nothing holds it up.
    Healthy,
    /// It would be faster without these.
    Causes,
    /// Its ranks do not call the same collectives.
    Mismatch,
    /// It stands still.
    Hang,
    /// Several ranks share a GPU.
    SharedGpu,
    /// The files do not show it.
    CannotTell,
}

impl Verdict {
    fn is_about_steps(self) -> bool {
        matches!(self, Verdict::Healthy | Verdict::Causes | Verdict::CannotTell)
    }
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    format_version: u32,
    verdict: Verdict,
    /// The first line, without its full stop.
    pub(super) text: String,
    mismatches: Vec<Value>,
    hangs: Vec<Value>,
    ended_first: Vec<Value>,
    shared_gpus: Vec<Value>,
    differing: Vec<Value>,
    #[serde(skip)]
    trouble_lines: Vec<String>,
    steps: Steps,
    causes: Vec<Told>,
    what_if: Vec<WhatIf>,
    /// The longest step, if no cause explains it.
    look_at_longest: Option<LookAt>,
    /// What to type to see the first cause on all ranks.
    look_at_all: Option<String>,
    critical_path: Vec<OnPath>,
    ranks: Vec<Rank>,
    operations: Vec<OfOperation>,
    communicators: Vec<OfCommunicator>,
    /// What the files do not show, and doubts.
    notes: Vec<String>,
    /// The files say which kernels of different ranks belong together.
    has_waits: bool,
}

impl Troubles {
    /// Each in words, with its details. The one that is the answer comes first.
    fn lines(&self, verdict: Verdict) -> Vec<String> {
        let mismatches =
            self.mismatches.iter().take(LISTED).map(|it| (Verdict::Mismatch, it.to_string(), it.details.clone()));
        let (hangs, more) = hang::told(self.standing());
        let hangs = hangs.into_iter().map(|it| (Verdict::Hang, it.to_string(), it.details()));
        let hangs = hangs.chain(more.map(|more| (Verdict::Hang, more, Vec::new())));
        let shared = self.shared_gpus.iter().take(LISTED).map(|it| (Verdict::SharedGpu, it.to_string(), it.details()));
        let mut all: Vec<_> = mismatches.chain(hangs).chain(shared).collect();
        all.sort_by_key(|it| it.0 != verdict);
        let lines = |(_, text, details): (Verdict, String, Vec<String>)| {
            std::iter::once(text).chain(details.into_iter().map(|line| format!("  {line}")))
        };
        all.into_iter().flat_map(lines).collect()
    }
}

/// What a step is, and how long steps take.
#[derive(Debug, Serialize)]
struct Steps {
    by: &'static str,
    /// What each begins with, and how often that runs in it.
    from: Option<String>,
    times: Option<usize>,
    /// How many are looked at, the first of them, and how many there are.
    count: usize,
    first: usize,
    of: usize,
    /// Only the ends of the files were read, and the steps there are counted from 0.
    only_ends_read: bool,
    /// How long steps took before the first of those that are looked at, if these take longer.
    before_ns: Option<u64>,
    median_ns: u64,
    mean_ns: u64,
}

/// A cause.
#[derive(Debug, Serialize)]
struct Told {
    kind: What,
    ranks: Vec<i64>,
    hosts: Vec<String>,
    /// The slowest one, and all that are about as slow.
    link: Option<OfLink>,
    links: Vec<OfLink>,
    channel: Option<u32>,
    what: Vec<String>,
    every: Option<usize>,
    cost_ns: u64,
    doubt_ns: u64,
    share: f64,
    text: String,
    /// The settings that set its ranks apart, in words.
    differing: Vec<String>,
    look_at: LookAt,
}

impl Told {
    fn line(&self) -> String {
        format!("{}: {} per step ({})", self.text, duration(self.cost_ns as f64), percent(self.share))
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct OfLink {
    from: i64,
    to: i64,
}

/// Where a cause can be seen.
#[derive(Debug, Serialize)]
struct LookAt {
    file: String,
    step: usize,
    /// In the file, ns after its begin.
    from_ns: i64,
    to_ns: i64,
    /// What to type.
    command: String,
    /// The question in docs/queries.md that shows it in numbers.
    query: &'static str,
}

impl LookAt {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let LookAt { file, step, command, query, .. } = self;
        writeln!(out, "  look at step {step} of {file} (in numbers: \"{query}\" in docs/queries.md):")?;
        writeln!(out, "    {command}")
    }
}

/// What a step would take.
#[derive(Debug, Serialize)]
struct WhatIf {
    without: String,
    /// Which of the causes.
    cause: Option<usize>,
    /// The median, and the mean.
    step_ns: u64,
    mean_ns: u64,
    doubt_ns: u64,
}

/// A part of what steps wait for.
#[derive(Debug, Serialize)]
struct OnPath {
    /// A kernel, or the operation of a transfer; `null` if a GPU was idle.
    what: Option<String>,
    /// Per step.
    ns: u64,
    share: f64,
    /// The rank that has most of it, and how much of it.
    rank: Option<String>,
    of_rank: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Rank {
    rank: String,
    host: Option<String>,
    #[serde(flatten)]
    shares: OfRank,
}

impl Report {
    pub(super) fn of(job: &Job, found: &Findings, troubles: &Troubles) -> Report {
        let names = Names { job };
        let step = found.steps.mean;
        let mut causes: Vec<Told> = found.causes.iter().map(|cause| names.told(cause, found)).collect();
        for (told, cause) in causes.iter_mut().zip(&found.causes) {
            let processes = cause.ranks.iter().map(|rank| &job.ranks[*rank]).map(|it| (it.file.as_path(), it.pid));
            let apart = troubles.differing.iter().filter(|it| it.sets_apart(processes.clone()));
            told.differing = apart.map(ToString::to_string).collect();
        }
        let is_said = |text: &String| causes.iter().any(|cause| cause.differing.contains(text));
        let differing = troubles.differing.iter().map(ToString::to_string).filter(|text| !is_said(text));
        let mut differing: Vec<String> = differing.map(|text| format!("Settings differ: {text}")).collect();
        let shares = shares::of_ranks(job, step);
        let (verdict, mut text) = verdict(&names, found, troubles, causes.first(), &shares);
        let mut trouble_lines = troubles.lines(verdict);
        // They may be why it hangs.
        if troubles.stuck().is_some() || troubles.standing().next().is_some() {
            trouble_lines.append(&mut differing);
        }
        if let Some(since) = job.since.filter(|_| verdict.is_about_steps()) {
            let [now, before] = [found.steps.median, since.before as f64].map(duration);
            let _ = write!(
                text,
                ". Since step {}, a step takes {now} instead of {before}",
                job.numbering.first + since.step
            );
        }
        let on_path: f64 = found.path.iter().map(|part| part.ns).sum();
        let critical_path = found.path.iter().map(|part| OnPath {
            what: part.kind.map(|kind| job.kinds[kind as usize].name.clone()),
            ns: part.ns as u64,
            share: part.ns / on_path.max(1.0),
            rank: part.rank.map(|(rank, _)| job.ranks[rank].label.clone()),
            of_rank: part.rank.map(|it| it.1),
        });
        // Calls do not show what GPUs did.
        let is_of_gpus = job.has_kernels();
        let operations = if is_of_gpus { shares::of_operations(job, step) } else { Vec::new() };
        if verdict == Verdict::Healthy {
            text.push_str(&exposed(&shares, &operations, step));
        }
        let (by, from) = match &job.numbering.source {
            Some(Source::Ranges) => ("ranges", None),
            Some(Source::Repeats(from)) => ("repeats", Some(from)),
            None => ("none", None),
        };
        let ended = ended_first(&troubles.ended_first).map(|(text, _)| format!("Ended first: {text}"));
        let idle = troubles.idle.as_ref().map(|idle| format!("At the end, {idle}"));
        let over = troubles.hangs.iter().filter(|hang| hang.is_over()).take(LISTED);
        let over = over.filter_map(|hang| Some(format!("It {} in {hang}; {}", hang.verb(), hang.fate()?)));
        Report {
            format_version: FORMAT_VERSION,
            verdict,
            text,
            trouble_lines,
            mismatches: troubles.mismatches.iter().map(info_json::mismatch).collect(),
            hangs: troubles.hangs.iter().map(info_json::hang).collect(),
            ended_first: troubles.ended_first.iter().map(info_json::gone).collect(),
            shared_gpus: troubles.shared_gpus.iter().map(info_json::shared_gpu).collect(),
            differing: troubles.differing.iter().map(info_json::differing).collect(),
            steps: Steps {
                by,
                from: from.map(|it| it.name.clone()),
                times: from.map(|it| it.times),
                count: job.steps.len(),
                first: job.numbering.first + job.steps.start,
                of: job.numbering.all,
                only_ends_read: job.numbering.is_of_ends,
                before_ns: job.since.map(|it| it.before as u64),
                median_ns: found.steps.median as u64,
                mean_ns: found.steps.mean as u64,
            },
            causes,
            what_if: what_if(&names, found),
            look_at_longest: names.look_at_longest(found),
            look_at_all: None,
            critical_path: critical_path.filter(|_| is_of_gpus).collect(),
            ranks: (job.ranks.iter().zip(&shares).filter(|_| is_of_gpus))
                .map(|(rank, shares)| Rank { rank: rank.label.clone(), host: rank.host.clone(), shares: *shares })
                .collect(),
            communicators: shares::of_communicators(&operations),
            operations,
            notes: ended.into_iter().chain(idle).chain(over).chain(differing).chain(names.notes(found)).collect(),
            has_waits: job.graph.meetings().len() > 0,
        }
    }

    /// Adds the command that shows the first cause on the ranks of all these traces, as they were
    /// named.
    pub(super) fn with_all_ranks(mut self, traces: &[PathBuf]) -> Report {
        if self.ranks.len() > 1 && !self.causes.is_empty() {
            let named: Vec<String> = traces.iter().map(|path| quoted(path)).collect();
            self.look_at_all = Some(format!(
                "ncclscope merge -o job.perfetto-trace {} && ncclscope open job.perfetto-trace",
                named.join(" ")
            ));
        }
        self
    }

    /// The first line, without its full stop, unless it is that nothing can be told.
    pub(super) fn told(&self) -> Option<String> {
        (self.verdict != Verdict::CannotTell).then(|| self.text.clone())
    }

    /// Each cause with its cost; the first one as in the first line.
    pub(super) fn cause_lines(&self) -> Vec<String> {
        let of = |(at, cause): (usize, &Told)| if at == 0 { self.text.clone() } else { cause.line() };
        self.causes.iter().enumerate().map(of).collect()
    }

    /// Writes it for people.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let style = match self.verdict {
            Verdict::Healthy => colour::GOOD,
            Verdict::Causes => colour::ANSWER,
            Verdict::Mismatch | Verdict::Hang => colour::BAD,
            Verdict::SharedGpu | Verdict::CannotTell => colour::NOTE,
        };
        writeln!(out, "{}", colour::paint(style, format!("{}.", self.text)))?;
        // Unless the answer is a cause, the first one is the answer itself.
        let is_answer = self.verdict != Verdict::Causes;
        for line in self.trouble_lines.iter().skip(usize::from(is_answer)) {
            writeln!(out, "  {line}")?;
        }
        for (at, cause) in self.causes.iter().enumerate() {
            if at > 0 || is_answer {
                writeln!(out, "{}.", cause.line())?;
            }
            for differing in &cause.differing {
                writeln!(out, "  settings differ there: {differing}")?;
            }
            cause.look_at.write(out)?;
            if let Some(all) = self.look_at_all.as_ref().filter(|_| at == 0) {
                writeln!(out, "  on all ranks:")?;
                writeln!(out, "    {all}")?;
            }
        }
        if let Some(longest) = &self.look_at_longest {
            longest.write(out)?;
        }
        if self.steps.count > 0 {
            self.steps(out)?;
        }
        if !self.ranks.is_empty() {
            self.tables(out)?;
        }
        for note in &self.notes {
            writeln!(out, "{note}.")?;
        }
        Ok(())
    }

    /// What steps are, and what they would take.
    fn steps(&self, out: &mut dyn Write) -> io::Result<()> {
        let Steps { from, times, count, first, of, only_ends_read, median_ns, mean_ns, .. } = &self.steps;
        let what = match (from, times) {
            (Some(from), Some(times @ 2..)) => format!("inferred, each with `{}` {times} times", short(from)),
            (Some(from), _) => format!("inferred, from one `{}` to the next", short(from)),
            (None, _) => "ranges that the program marked".to_owned(),
        };
        let [median, mean] = [*median_ns, *mean_ns].map(|ns| duration(ns as f64));
        writeln!(out, "\nA STEP TAKES {median} ({mean} ON AVERAGE)")?;
        let of = if *only_ends_read { format!("the last {of}") } else { of.to_string() };
        writeln!(out, "  Steps {first} to {} of {of}; {what}.", first + count - 1)?;
        for it in &self.what_if {
            let (step, doubt) = (duration(it.step_ns as f64), duration(it.doubt_ns as f64));
            let mean = match (it.mean_ns as f64 / it.step_ns.max(1) as f64 - 1.0).abs() > 0.1 {
                true => format!(" ({} on average)", duration(it.mean_ns as f64)),
                false => String::new(),
            };
            writeln!(out, "  {}: {step} ± {doubt}{mean}", it.without)?;
        }
        Ok(())
    }

    fn tables(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.critical_path.is_empty() {
            writeln!(out, "\nWHAT A STEP WAITS FOR, ONE AFTER THE OTHER (THE CRITICAL PATH)")?;
            let row = |it: &OnPath| {
                let what = it.what.as_deref().map_or("a GPU that has nothing to do".into(), short).into_owned();
                let most = it.rank.as_ref().zip(it.of_rank).map(|(rank, part)| format!("{rank}, {}", percent(part)));
                vec![what, duration(it.ns as f64), percent(it.share), most.unwrap_or_default()]
            };
            let rows = self.critical_path.iter().filter(|it| it.share >= LITTLE).take(ROWS).map(row);
            table(&["what", "a step", "share", "mostly on"], rows, 1, out)?;
        }
        let has_steps = self.steps.count > 0;
        let whole = if has_steps { "A STEP" } else { "THE TIME" };
        writeln!(out, "\nWHAT {whole} GOES INTO, BY RANK")?;
        let heads = ["rank", "host", "own kernels", "hidden comm.", "exposed comm.", "waits", "idle", "comes last"];
        // The ranks that wait least are the ones the others wait for.
        let mut ranks: Vec<&Rank> = self.ranks.iter().collect();
        if ranks.len() > ROWS {
            ranks.sort_by(|one, other| one.shares.waits_ns.total_cmp(&other.shares.waits_ns));
        }
        let row = |it: &&Rank| {
            let OfRank { own_ns, hidden_ns, exposed_ns, waits_ns, idle_ns, last } = it.shares;
            let mut row = vec![it.rank.clone(), it.host.clone().unwrap_or_default()];
            let waits = if self.has_waits { duration(waits_ns) } else { String::new() };
            row.extend([duration(own_ns), duration(hidden_ns), duration(exposed_ns), waits, duration(idle_ns)]);
            row.push(if self.has_waits { percent(last) } else { String::new() });
            row
        };
        table(&heads, ranks.iter().take(ROWS).map(row), 2, out)?;
        if ranks.len() > ROWS {
            writeln!(out, "and {} more, which wait longer", ranks.len() - ROWS)?;
        }
        if self.operations.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nWHAT COMMUNICATION GOES INTO, KERNEL BY KERNEL")?;
        let often = if has_steps { "a step" } else { "times" };
        let heads = ["operation", often, "waits", "transfer", "hidden", "exposed", "most often last"];
        let row = |it: &OfOperation| {
            let last = it.last.map(|(rank, part)| format!("{}, {}", self.ranks[rank].rank, percent(part)));
            let often = if has_steps { format!("{:.1}", it.kernels) } else { format!("{:.0}", it.kernels) };
            let mut row = vec![short(&it.name).into_owned(), often];
            row.extend([it.wait_ns, it.transfer_ns, it.hidden_ns, it.transfer_ns - it.hidden_ns].map(duration));
            row.push(last.unwrap_or_default());
            row
        };
        table(&heads, self.operations.iter().take(ROWS).map(row), 1, out)?;
        if self.communicators.len() > 1 {
            let each = if has_steps { " AND STEP" } else { "" };
            writeln!(out, "\nWHAT COMMUNICATION GOES INTO, BY COMMUNICATOR{each}")?;
            let row = |it: &OfCommunicator| {
                let mut row = vec![it.name.clone()];
                row.extend([it.waits_ns, it.hidden_ns, it.exposed_ns].map(duration));
                row
            };
            table(
                &["communicator", "waits", "hidden", "exposed"],
                self.communicators.iter().take(ROWS).map(row),
                1,
                out,
            )?;
        }
        Ok(())
    }
}

/// What to type to look at a part of a trace, in ns after its begin.
pub(in crate::cli) fn look_at(file: &Path, from_ns: i64, to_ns: i64) -> String {
    let (file, from, to) = (quoted(file), from_ns / 1000, (to_ns + 1000) / 1000);
    format!("ncclscope cut {file} --time {from}us..{to}us -o part.perfetto-trace && ncclscope open part.perfetto-trace")
}

/// A sentence's beginning, as a sentence begins.
pub(super) fn capitalized(text: &str) -> String {
    let mut all = text.chars();
    all.next().map_or_else(String::new, |first| first.to_uppercase().chain(all).collect())
}

/// The first line, without its full stop, and what it says in one word.
/// `. 19.9 ms of each …` if much of a healthy job's steps is communication that nothing hides.
fn exposed(shares: &[OfRank], operations: &[OfOperation], step: f64) -> String {
    let ns = shares.iter().map(|it| it.exposed_ns).sum::<f64>() / shares.len().max(1) as f64;
    let of = |it: &OfOperation| it.kernels * (it.transfer_ns - it.hidden_ns);
    let most = operations.iter().max_by(|one, other| of(one).total_cmp(&of(other)));
    let Some(most) = most.filter(|_| ns > EXPOSED * step) else { return String::new() };
    let (each, name) = (duration(ns), short(&most.name));
    format!(". {each} of each ({}) is communication with no kernel beside it, mostly {name}", percent(ns / step))
}

fn verdict(
    names: &Names<'_>,
    found: &Findings,
    troubles: &Troubles,
    first: Option<&Told>,
    shares: &[OfRank],
) -> (Verdict, String) {
    if let Some(stuck) = troubles.stuck() {
        let verdict = if let Stuck::Mismatch(_) = stuck { Verdict::Mismatch } else { Verdict::Hang };
        return (verdict, capitalized(&stuck.to_string()));
    }
    let standing = troubles.standing().next();
    let of_shared = || Some((Verdict::SharedGpu, capitalized(&troubles.shared_gpus.first()?.to_string())));
    let step = found.steps.mean;
    if let Some(shared) = of_shared().filter(|_| first.is_some() || standing.is_none()) {
        return shared;
    }
    if let Some(Told { text, cost_ns, share, .. }) = first {
        let (cost, percent) = (duration(*cost_ns as f64), 100.0 * share);
        let text =
            format!("{text}. Without it each step would be {cost} shorter ({percent:.0} % of {})", duration(step));
        return (Verdict::Causes, text);
    }
    if let Some(hang) = standing {
        return (Verdict::CannotTell, format!("Cannot tell whether the job hangs or is slow: {hang}"));
    }
    match names.cannot_tell(found, shares) {
        Some(why) => (Verdict::CannotTell, why),
        None => {
            let (count, step) = (names.job.steps.len(), duration(found.steps.median));
            let nothing = match &names.job.ranks[..] {
                [only] => format!("nothing holds up {}", only.label),
                _ => "no rank, host or link holds up the others".to_owned(),
            };
            let long_step = names.long_step(found);
            (Verdict::Healthy, format!("Healthy: {nothing} in {count} steps of {step}{long_step}"))
        }
    }
}

/// What a step would take without each of the causes, and otherwise.
fn what_if(names: &Names<'_>, found: &Findings) -> Vec<WhatIf> {
    // Two plays of one job differ, even on a quiet machine.
    let doubt = |without: &Measure| found.error + 2.0 * without.spread + PLAYS * without.median;
    // The files do not show what a slow link hides: GPUs and the other links had time to spare.
    let hidden = |cause: &Cause| match cause.what {
        What::Link => HIDDEN * (found.steps.median - cause.without.median).max(0.0),
        _ => 0.0,
    };
    let one = |without: String, cause: Option<usize>, steps: &Measure, hidden: f64| WhatIf {
        without,
        cause,
        step_ns: steps.median as u64,
        mean_ns: steps.mean as u64,
        doubt_ns: (doubt(steps) + hidden) as u64,
    };
    let causes = found.causes.iter().enumerate();
    let mut all: Vec<WhatIf> =
        causes.map(|(at, it)| one(names.without(it), Some(at), &it.without, hidden(it))).collect();
    let job = names.job;
    if job.steps.len() >= ENOUGH && job.graph.meetings().len() > 0 && job.gaps.is_none() {
        all.push(one("if transfers took no time".to_owned(), None, &found.without_transfers, 0.0));
        all.push(one("if all communication were overlapped".to_owned(), None, &found.overlapped, 0.0));
    }
    all
}

/// Writes a table, with this many columns of words before those of figures.
fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>, words: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heads);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string().lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}
