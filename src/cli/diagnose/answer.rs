//! The answer in words and as data: what the causes are, what each of them costs, and where to look.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::causes::{Cause, ENOUGH, Findings, Measure, What};
use super::load::Job;
use super::shares::{self, OfCommunicator, OfOperation, OfRank};
use crate::cli::colour;
use crate::cli::compare::steps::Source;
use crate::cli::hang::Hang;
use crate::cli::info::json as info_json;
use crate::trace::names::{duration, quoted, short};

/// The version of the JSON.
const FORMAT_VERSION: u32 = 1;
/// How many ranks are listed for people; the JSON has all of them.
const ROWS: usize = 16;
/// How many ranks are named.
const NAMED: usize = 8;
/// The fraction of a step that one rank's wait for others must take if it is to be mentioned.
const MUCH: f64 = 0.1;

/// The fraction of the critical path that is listed for people.
const LITTLE: f64 = 0.005;

/// By which fraction two runs of the same job differ.
const PLAYS: f64 = 0.02;
/// How much of what a job is said to save without a slow link is in doubt.
const HIDDEN: f64 = 0.25;
/// How much longer than in the middle steps are on average if long ones are to be explained.
const LONG: f64 = 0.15;

/// The verdict on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// Nothing holds it up.
    Healthy,
    /// It would be faster without these.
    Causes,
    /// It stands still.
    Hang,
    /// The files do not show it.
    CannotTell,
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    format_version: u32,
    verdict: Verdict,
    /// The first line, without its full stop.
    pub(super) text: String,
    hangs: Vec<Value>,
    #[serde(skip)]
    hang_lines: Vec<String>,
    steps: Steps,
    causes: Vec<Told>,
    what_if: Vec<WhatIf>,
    /// What to type to see the first cause on all ranks.
    look_at_all: Option<String>,
    critical_path: Vec<OnPath>,
    ranks: Vec<Rank>,
    operations: Vec<OfOperation>,
    communicators: Vec<OfCommunicator>,
    /// What the files do not show, and doubts.
    notes: Vec<String>,
    /// It is known which kernels of different ranks belong together.
    has_waits: bool,
}

/// What a step is, and how long steps take.
#[derive(Debug, Serialize)]
struct Steps {
    by: &'static str,
    from: Option<String>,
    /// How many are looked at, from which one on, and of how many.
    count: usize,
    first: usize,
    of: usize,
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
    /// What shows it as numbers, in docs/queries.md.
    query: &'static str,
}

/// What a step would take.
#[derive(Debug, Serialize)]
struct WhatIf {
    without: String,
    /// Which of the causes.
    cause: Option<usize>,
    /// In the middle, and on average.
    step_ns: u64,
    mean_ns: u64,
    doubt_ns: u64,
}

/// A part of what steps wait for.
#[derive(Debug, Serialize)]
struct OnPath {
    /// A kernel, or an operation whose transfer it is; `null` if a GPU had nothing to do.
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
    pub(super) fn of(job: &Job, found: &Findings, hangs: Vec<Hang>) -> Report {
        let names = Names { job };
        let step = found.steps.mean;
        // Two plays of one job differ, even on a quiet machine.
        let doubt = |without: &Measure| found.error + 2.0 * without.spread + PLAYS * without.median;
        // What a slow link hides does not show: GPUs and the other links had time to spare.
        let hidden = |cause: &Cause| match cause.what {
            What::Link => HIDDEN * (found.steps.median - cause.without.median).max(0.0),
            _ => 0.0,
        };
        let causes: Vec<Told> = found.causes.iter().map(|cause| names.told(cause, found)).collect();
        let mut what_if: Vec<WhatIf> = (found.causes.iter().enumerate())
            .map(|(at, cause)| WhatIf {
                without: names.without(cause),
                cause: Some(at),
                step_ns: cause.without.median as u64,
                mean_ns: cause.without.mean as u64,
                doubt_ns: (doubt(&cause.without) + hidden(cause)) as u64,
            })
            .collect();
        if job.steps.len() >= ENOUGH && job.graph.meetings().len() > 0 && job.gaps.is_none() {
            for (without, steps) in [
                ("if transfers took no time", &found.without_transfers),
                ("if all communication were overlapped", &found.overlapped),
            ] {
                what_if.push(WhatIf {
                    without: without.to_owned(),
                    cause: None,
                    step_ns: steps.median as u64,
                    mean_ns: steps.mean as u64,
                    doubt_ns: doubt(steps) as u64,
                });
            }
        }
        let notes = names.notes(found);
        let shares = shares::of_ranks(job, step);
        let (verdict, text) = match (hangs.iter().find(|it| it.is_certain), causes.first()) {
            (Some(hang), _) => (Verdict::Hang, format!("The job hangs: {hang}")),
            (None, Some(first)) => {
                let percent = 100.0 * first.share;
                let cost = duration(first.cost_ns as f64);
                let text = &first.text;
                (
                    Verdict::Causes,
                    format!(
                        "{text}. Without it each step would be {cost} shorter ({percent:.0} % of {})",
                        duration(step)
                    ),
                )
            }
            (None, None) if !hangs.is_empty() => {
                (Verdict::CannotTell, format!("Cannot tell whether the job hangs or is slow: {}", hangs[0]))
            }
            (None, None) => match names.cannot_tell(found, &shares) {
                Some(why) => (Verdict::CannotTell, why),
                None => (
                    Verdict::Healthy,
                    format!(
                        "Healthy: no rank, host or link holds up the others in {} steps of {}",
                        job.steps.len(),
                        duration(found.steps.median)
                    ),
                ),
            },
        };
        let on_path: f64 = found.path.iter().map(|part| part.ns).sum();
        let critical_path = found.path.iter().map(|part| OnPath {
            what: part.kind.map(|kind| job.kinds[kind as usize].name.clone()),
            ns: part.ns as u64,
            share: part.ns / on_path.max(1.0),
            rank: part.rank.map(|(rank, _)| job.ranks[rank].label.clone()),
            of_rank: part.rank.map(|it| it.1),
        });
        let operations = shares::of_operations(job, step);
        let (by, from) = match &job.source {
            Some(Source::Ranges) => ("ranges", None),
            Some(Source::Repeats(from)) => ("repeats", Some(from.clone())),
            None => ("none", None),
        };
        Report {
            format_version: FORMAT_VERSION,
            verdict,
            text,
            hang_lines: hangs
                .iter()
                .flat_map(|hang| {
                    let of_it = hang.details().into_iter().map(|line| format!("  {line}"));
                    std::iter::once(hang.to_string()).chain(of_it)
                })
                .collect(),
            hangs: hangs.iter().map(info_json::hang).collect(),
            steps: Steps {
                by,
                from,
                count: job.steps.len(),
                first: job.first + job.steps.start,
                of: job.all_steps,
                median_ns: found.steps.median as u64,
                mean_ns: found.steps.mean as u64,
            },
            causes,
            what_if,
            look_at_all: None,
            critical_path: critical_path.collect(),
            ranks: (job.ranks.iter().zip(&shares))
                .map(|(rank, shares)| Rank { rank: rank.label.clone(), host: rank.host.clone(), shares: *shares })
                .collect(),
            communicators: shares::of_communicators(&operations),
            operations,
            notes,
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
            Verdict::Hang => colour::BAD,
            Verdict::CannotTell => colour::NOTE,
        };
        writeln!(out, "{}", colour::paint(style, format!("{}.", self.text)))?;
        // Without causes, the first one is the answer itself.
        let is_answer = self.verdict == Verdict::Hang || self.causes.is_empty();
        for line in self.hang_lines.iter().skip(usize::from(is_answer)) {
            writeln!(out, "  {line}")?;
        }
        for (at, cause) in self.causes.iter().enumerate() {
            if at > 0 {
                writeln!(out, "{}.", cause.line())?;
            }
            let LookAt { file, step, command, query, .. } = &cause.look_at;
            writeln!(out, "  look at step {step} of {file} (in numbers: \"{query}\" in docs/queries.md):")?;
            writeln!(out, "    {command}")?;
            if let Some(all) = self.look_at_all.as_ref().filter(|_| at == 0) {
                writeln!(out, "  on all ranks:")?;
                writeln!(out, "    {all}")?;
            }
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
        let Steps { by, from, count, first, of, median_ns, mean_ns } = &self.steps;
        let what = match (*by, from) {
            (_, Some(from)) => format!("inferred, from one `{}` to the next", short(from)),
            _ => "ranges that the program marked".to_owned(),
        };
        let [median, mean] = [*median_ns, *mean_ns].map(|ns| duration(ns as f64));
        writeln!(out, "\nA STEP TAKES {median} ({mean} ON AVERAGE)")?;
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
        let whole = if self.steps.count > 0 { "A STEP" } else { "THE TIME" };
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
        let heads = ["operation", "a step", "waits", "transfer", "hidden", "exposed", "most often last"];
        let row = |it: &OfOperation| {
            let last = it.last.map(|(rank, part)| format!("{}, {}", self.ranks[rank].rank, percent(part)));
            let mut row = vec![short(&it.name).into_owned(), format!("{:.1}", it.kernels)];
            row.extend([it.wait_ns, it.transfer_ns, it.hidden_ns, it.transfer_ns - it.hidden_ns].map(duration));
            row.push(last.unwrap_or_default());
            row
        };
        table(&heads, self.operations.iter().take(ROWS).map(row), 1, out)?;
        if self.communicators.len() > 1 {
            writeln!(out, "\nWHAT COMMUNICATION GOES INTO, BY COMMUNICATOR AND STEP")?;
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

/// How many files there should be.
fn missing(ranks: usize) -> String {
    match ranks {
        1 => "The file of 1 rank is not here".to_owned(),
        ranks => format!("The files of {ranks} ranks are not here"),
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// Says things about a job.
struct Names<'a> {
    job: &'a Job,
}

impl Names<'_> {
    fn number(&self, rank: usize) -> i64 {
        self.job.ranks[rank].number.map_or(rank as i64, i64::from)
    }

    /// `rank 2`, `ranks 0 and 1`, `every rank`.
    fn who(&self, ranks: &[usize]) -> String {
        let label = |rank: &usize| self.job.ranks[*rank].label.as_str();
        match ranks {
            [one] => label(one).to_owned(),
            all if all.len() == self.job.ranks.len() => "every rank".to_owned(),
            many if many.len() > NAMED => format!("{} ranks", many.len()),
            [first @ .., last] => {
                let first: Vec<String> = first.iter().map(|rank| self.number(*rank).to_string()).collect();
                format!("ranks {} and {}", first.join(", "), self.number(*last))
            }
            [] => "no rank".to_owned(),
        }
    }

    /// ` on node1`, if these are ranks of one host.
    fn on(&self, ranks: &[usize]) -> String {
        let hosts = self.hosts(ranks);
        let [host] = &hosts[..] else { return String::new() };
        if ranks.len() == self.job.ranks.len() { String::new() } else { format!(" on {host}") }
    }

    fn hosts(&self, ranks: &[usize]) -> Vec<String> {
        let mut hosts: Vec<String> = ranks.iter().filter_map(|rank| self.job.ranks[*rank].host.clone()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    }

    /// A cause, in a sentence without its end.
    fn text(&self, cause: &Cause) -> String {
        let Cause { what, ranks, amounts, names, .. } = cause;
        let (who, on) = (self.who(ranks), self.on(ranks));
        let [own, others] = amounts.map(duration);
        let is_one = ranks.len() == 1 || ranks.len() == self.job.ranks.len();
        let s = if is_one { "s" } else { "" };
        let its = if is_one { "its" } else { "their" };
        let names: Vec<_> = names.iter().map(|name| short(name)).collect();
        let name = names.first().map_or("", |name| name.as_ref());
        let more = match names.len() {
            0 | 1 => String::new(),
            2 => format!(", and `{}` takes longer, too", names[1]),
            more => format!(", and {} other kernels take longer, too", more - 1),
        };
        match what {
            What::Kernels if amounts[1] == 0.0 => {
                format!("{who}{on} run{s} `{name}` for {own} a step, which the other ranks do not{more}")
            }
            What::Kernels => {
                format!(
                    "{who}{on} compute{s} longer than the others: {its} `{name}` takes {own} a step instead of {others}{more}"
                )
            }
            What::Host => format!(
                "{who}{on} get{s} work from {its} host too late: {its} GPU has nothing to do for {own} a step, those of the others for {others}"
            ),
            What::Link => {
                let (link, are) = match cause.links.len() {
                    1 => (format!("the link from {}", self.link(cause)), "is"),
                    more => (format!("the link from {} and {} more", self.link(cause), more - 1), "are"),
                };
                format!("{link} {are} slow: a transfer of {name} takes {own} there, on the other links {others}")
            }
            What::Stall => {
                let link = match cause.links.len() {
                    1 => format!("the link from {} stands", self.link(cause)),
                    more => format!("the link from {} and {} more stand", self.link(cause), more - 1),
                };
                format!("{link} still now and then: {name} kept it busy for {own}, usually for {others}")
            }
            What::Pauses => {
                let when = match cause.every {
                    Some(every) => format!("every {every} steps"),
                    None => "now and then".to_owned(),
                };
                format!("{when} {who}{on} pause{s}: {its} GPU has nothing to do for {own}, in other steps for {others}")
            }
            What::HostBound => format!("the hosts are too slow: the GPUs have nothing to do for {own} of each step"),
            What::UnequalWork => format!(
                "the work is unequal, and in each step another rank has most: {own} a step, where the ranks have {others} on average; most of the difference is `{name}`"
            ),
        }
    }

    /// `rank 2 to rank 4`, `rank 2 to rank 4 on channel 1`.
    fn link(&self, cause: &Cause) -> String {
        let Some(link) = cause.links.first().map(|link| &self.job.links[*link]) else { return String::new() };
        let to = link.to.map_or_else(|| format!("peer {}", link.peer), |to| self.job.ranks[to].label.clone());
        let on = cause.channel.map_or_else(String::new, |channel| format!(" on channel {channel}"));
        format!("{} to {to}{on}", self.job.ranks[link.from].label)
    }

    fn without(&self, cause: &Cause) -> String {
        match cause.what {
            What::Kernels if cause.amounts[1] == 0.0 => {
                let name = cause.names.first().map_or("", String::as_str);
                format!("without `{}` on {}", short(name), self.who(&cause.ranks))
            }
            What::Kernels => format!("if the kernels of {} took as long as the others'", self.who(&cause.ranks)),
            What::Host => format!("if the host of {} were as fast as the others'", self.who(&cause.ranks)),
            What::Link if cause.links.len() > 1 => "if these links were as fast as the others".to_owned(),
            What::Link => format!("if the link from {} were as fast as the others", self.link(cause)),
            What::Stall => format!("if the link from {} did not stand still", self.link(cause)),
            What::Pauses => "without the pauses".to_owned(),
            What::HostBound => "if the GPUs always had work".to_owned(),
            What::UnequalWork => "if the work were shared equally".to_owned(),
        }
    }

    fn told(&self, cause: &Cause, found: &Findings) -> Told {
        let links: Vec<OfLink> = (cause.links.iter().map(|link| &self.job.links[*link]))
            .map(|link| OfLink {
                from: self.number(link.from),
                to: link.to.map_or(i64::from(link.peer), |to| self.number(to)),
            })
            .collect();
        let text = self.text(cause);
        let mut first = text.chars();
        let text = first.next().map_or_else(String::new, |letter| letter.to_uppercase().chain(first).collect());
        Told {
            kind: cause.what,
            ranks: cause.ranks.iter().map(|rank| self.number(*rank)).collect(),
            hosts: self.hosts(&cause.ranks),
            link: links.first().copied(),
            links,
            channel: cause.channel,
            what: cause.names.clone(),
            every: cause.every,
            cost_ns: cause.cost.max(0.0) as u64,
            doubt_ns: (found.error + found.steps.spread) as u64,
            share: cause.cost / found.steps.mean.max(1.0),
            text,
            look_at: self.look_at(cause),
        }
    }

    fn look_at(&self, cause: &Cause) -> LookAt {
        let rank = cause.ranks.first().copied().unwrap_or(0);
        let facts = &self.job.ranks[rank];
        let (from, to) = self.job.step_times(rank, cause.step, cause.what.is_idleness());
        let (from_ns, to_ns) = (from - facts.begin.0, to - facts.begin.0);
        let file = quoted(&facts.file);
        LookAt {
            command: match facts.is_ours {
                true => look_at(&facts.file, from_ns, to_ns),
                false => format!("ncclscope import {file} -o it.perfetto-trace && ncclscope open it.perfetto-trace"),
            },
            file: facts.file.display().to_string(),
            step: self.job.first + cause.step,
            from_ns,
            to_ns,
            query: match cause.what {
                What::Kernels | What::UnequalWork => "1. Who comes late?",
                What::Link | What::Stall => "2. Which link is slow?",
                What::Host | What::Pauses | What::HostBound => "4. Is the GPU waiting for the host?",
            },
        }
    }

    /// Why nothing can be said.
    fn cannot_tell(&self, found: &Findings, shares: &[OfRank]) -> Option<String> {
        let job = self.job;
        let step = found.steps.mean;
        let steps = job.steps.len();
        if let Some(parts) = &job.gaps {
            return Some(format!(
                "Cannot tell: the settings left out a part of what ran ({parts}); windows of time, operations or steps \
                 leave out nothing within them"
            ));
        }
        if !job.has_kernels() {
            return Some("Cannot tell: there are no kernels in these files; `ncclscope info` says why".to_owned());
        }
        if !job.has_own_work() {
            let last = (0..job.ranks.len()).max_by(|one, other| shares[*one].last.total_cmp(&shares[*other].last));
            let last = last.filter(|rank| shares[*rank].last > 0.0).map_or_else(String::new, |rank| {
                format!("; {} comes last most often, in {}", job.ranks[rank].label, percent(shares[rank].last))
            });
            return Some(format!(
                "Cannot tell what GPUs do between operations: the application's kernels are not in these files{last}"
            ));
        }
        if job.source.is_none() {
            let idle =
                shares.iter().map(|it| it.idle_ns / (it.own_ns + it.exposed_ns + it.waits_ns + it.idle_ns).max(1.0));
            let idle = idle.fold(1.0, f64::min);
            let idle = if idle > MUCH {
                format!(". The GPUs have nothing to do for {} of the time", percent(idle))
            } else {
                String::new()
            };
            return Some(format!(
                "Cannot tell: no steps repeat in these files; name what each step begins with, with --step{idle}"
            ));
        }
        if steps < ENOUGH {
            return Some(format!("Cannot tell: it takes {ENOUGH} steps after warm-up; these files have {steps}"));
        }
        if found.error > 2.0 * MUCH * found.steps.median {
            return Some(format!(
                "Cannot tell, because a replay of the job is off by {} a step",
                duration(found.error)
            ));
        }
        if let Some(cause) = found.doubtful.first() {
            return Some(format!(
                "Cannot tell, because steps differ by {}, more than any cause explains; the most likely one is that {}",
                duration(found.steps.spread),
                self.text(cause)
            ));
        }
        if found.steps.mean > (1.0 + LONG) * found.steps.median && found.steps.long > 1 {
            let (longest, at) = found.steps.longest;
            return Some(format!(
                "Cannot tell: now and then a step takes much longer, and no rank or link is at fault in all of them. In the middle \
                 a step takes {}, on average {}, and number {at} takes {}",
                duration(found.steps.median),
                duration(step),
                duration(longest),
                at = job.first + at
            ));
        }
        let communicates = (0..job.ranks.len()).any(|rank| shares[rank].exposed_ns > MUCH * step);
        if job.ranks.len() > 1 && job.graph.meetings().len() == 0 && communicates {
            return Some(
                "Cannot tell: these files do not say which kernels of different ranks belong together".to_owned(),
            );
        }
        let waiting = (0..job.ranks.len()).find(|rank| {
            let OfRank { exposed_ns, waits_ns, .. } = shares[*rank];
            exposed_ns + waits_ns > MUCH * step
        });
        let rank = waiting.filter(|_| job.missing > 0)?;
        let OfRank { exposed_ns, waits_ns, .. } = shares[rank];
        Some(format!(
            "Cannot tell for whom the ranks wait. {}: {} spends {} of each step of {} in communication alone",
            missing(job.missing),
            job.ranks[rank].label,
            duration(exposed_ns + waits_ns),
            duration(step)
        ))
    }

    fn notes(&self, found: &Findings) -> Vec<String> {
        let job = self.job;
        let mut notes = job.notes.clone();
        if job.ranks.len() > 1 && job.has_kernels() && job.graph.meetings().len() == 0 {
            notes.push(
                "Which kernels of different ranks belong together is not in these files, so waits are not known"
                    .to_owned(),
            );
        }
        if job.missing > 0 {
            notes.push(format!("{}, and one of them may be the cause", missing(job.missing)));
        }
        if job.links.is_empty() && job.ranks.len() > 1 && found.steps.mean > 0.0 {
            notes.push(
                "There are no network transfers in these files, so links cannot be compared (NCCLSCOPE_PRESET=standard records them)"
                    .to_owned(),
            );
        }
        if found.error > MUCH * found.steps.median.max(1.0) {
            notes.push(format!(
                "A replay of the job is off by {} a step: what things would take without a cause is a rough guess",
                duration(found.error)
            ));
        }
        notes
    }
}
