//! Two runs of a job: what takes longer, rank by rank and step by step.
//!
//! A step of a rank is divided into its own kernels, communication, waiting for others inside of
//! communication, and the time in which its GPU is idle. Own kernels, idle time and transfers are
//! causes; waiting is the effect of another rank's cause.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::change::{self, Change, Pair};
use super::ranks::{Class, Item, Kind, Peer, Rank, Ranks};
use super::steps::{self, Source, Steps};
use crate::import::{Operation, Profile};
use crate::model::time::FileNs;
use crate::trace::words::wait;

/// The fraction of a step from which something in it counts.
pub(crate) const LEAST: f64 = 0.02;

/// What a duration means for its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// Its own work: kernels of the application and copies, or calls into NCCL where there are no
    /// kernels.
    Works,
    /// Communication without the wait for other ranks: as long as on the rank that arrived last.
    /// Between two ranks, both have their own.
    Transfers,
    /// Communication of which an unknown part is waiting.
    Communicates,
    /// Its GPU is idle.
    Idles,
    /// Waiting for other ranks, inside of communication.
    Waits,
}

impl Part {
    /// As reports say it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Part::Works => "works",
            Part::Transfers => "transfers",
            Part::Communicates => "communicates, or waits",
            Part::Idles => "idles",
            Part::Waits => "waits",
        }
    }
}

/// Something that ranks do in both runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The ranks that do it. A transfer lists all ranks on which it was the same.
    pub(crate) ranks: Vec<String>,
    pub(crate) part: Part,
    pub(crate) class: Option<Class>,
    /// What runs; empty if the GPU is idle.
    pub(crate) what: String,
    /// The only rank with which it exchanges data, if that is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Peer<String>>,
    /// `A` or `B` if it is in one run only.
    pub(crate) only: Option<char>,
    /// How often it ran on the rank, in each run.
    pub(crate) count: [usize; 2],
    /// The change per step, or per execution if there are no steps.
    pub(crate) change: Change,
    /// What the second run lost by it in total, ns; negative if it gained.
    pub(crate) lost: f64,
}

impl Row {
    /// What runs, in words: `Send 2 MiB bf16 on pp to rank 3`.
    pub(crate) fn said(&self) -> String {
        match &self.peer {
            Some(peer) => format!("{} {peer}", self.what),
            None => self.what.clone(),
        }
    }
}

/// A rank's steps in both runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RankRow {
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) steps: Option<Change>,
    pub(crate) source: Option<Source>,
}

/// The network from one rank to another.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Link {
    pub(crate) from: String,
    /// Where its file is not here, its rank in the communicator: `rank 3 of dp`.
    pub(crate) to: String,
    /// How long a transfer waited for the network.
    pub(crate) change: Change,
    pub(crate) lost: f64,
}

/// What the times of two runs say.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Slower {
    /// The steps of all ranks together: the median rank of each step.
    pub(crate) steps: Option<Change>,
    pub(crate) ranks: Vec<RankRow>,
    pub(crate) rows: Vec<Row>,
    pub(crate) links: Vec<Link>,
    /// Ranks that others wait for may be missing from the files.
    pub(crate) is_partial: bool,
    /// So much was compared, over so few steps, that nothing could be told from chance.
    #[serde(skip)]
    pub(crate) are_too_many: bool,
}

/// The values of one thing on one rank, before the comparison.
struct Series {
    ranks: Vec<String>,
    what: What,
    values: [Vec<f64>; 2],
    count: [usize; 2],
}

/// Compares two runs.
pub(crate) fn compare([a, b]: [&Profile; 2], [ranks_a, ranks_b]: [&Ranks; 2]) -> Slower {
    let couples = couples(ranks_a, ranks_b);
    let (mut ranks, mut series, mut durations) = (Vec::new(), Vec::new(), Vec::new());
    let steps: Vec<Option<[Steps; 2]>> =
        couples.iter().map(|[of_a, of_b]| steps::of_both([a, b], [ranks_a, ranks_b], [of_a, of_b])).collect();
    // The steps of only some ranks would leave out what the others do.
    let has_steps = steps.iter().all(Option::is_some);
    for ([of_a, of_b], steps) in couples.iter().zip(steps) {
        let steps = steps.filter(|_| has_steps);
        let edges = steps.as_ref().map(|[a, b]| [&a.edges[..], &b.edges[..]]);
        let [in_a, in_b] =
            [values(ranks_a, of_a, edges.map(|edges| edges[0])), values(ranks_b, of_b, edges.map(|edges| edges[1]))];
        series.extend(both(of_a, in_a, in_b, edges.map(|[a, b]| [a.len() - 1, b.len() - 1])));
        let both = steps.as_ref().map(|[a, b]| [a.durations(), b.durations()]);
        let change = both.as_ref().and_then(|[a, b]| change::compare(&[Pair::new(a, b)], 0.0)[0]);
        durations.extend(both);
        ranks.push(RankRow {
            a: of_a.label.clone(),
            b: of_b.label.clone(),
            steps: change,
            source: steps.map(|[a, _]| a.source),
        });
    }
    let steps = middle(&durations, 0).zip(middle(&durations, 1));
    let steps = steps.and_then(|(a, b)| change::compare(&[Pair::new(&a, &b)], 0.0)[0]);
    let (rows, are_too_many) = rows(merged(series), steps.as_ref());
    Slower {
        rows,
        are_too_many,
        steps,
        ranks,
        links: links([a, b], &couples),
        is_partial: ranks_a.is_partial || ranks_b.is_partial,
    }
}

/// The ranks that are compared with each other: those with the same number; the only rank of each
/// run, whatever its number; or in order if none has a number.
fn couples<'a>(a: &'a Ranks, b: &'a Ranks) -> Vec<[&'a Rank; 2]> {
    let mut by_number: FxHashMap<i32, &Rank> = FxHashMap::default();
    for rank in b.all.iter().rev() {
        by_number.extend(rank.number.map(|number| (number, rank)));
    }
    let same = a.all.iter().filter_map(|one| Some([one, *by_number.get(&one.number?)?]));
    let same: Vec<_> = same.collect();
    let has_numbers = a.all.iter().chain(&b.all).any(|rank| rank.number.is_some());
    match (&same[..], &a.all[..], &b.all[..]) {
        ([], [one], [other]) => vec![[one, other]],
        ([], of_a, of_b) if !has_numbers && of_a.len() == of_b.len() => {
            of_a.iter().zip(of_b).map(|(one, other)| [one, other]).collect()
        }
        _ => same,
    }
}

/// The median rank of each step, for one side; `None` without steps.
fn middle(durations: &[[Vec<f64>; 2]], side: usize) -> Option<Vec<f64>> {
    let steps = durations.iter().map(|both| both[side].len()).min()?;
    let of_step = |step: usize| {
        let mut all: Vec<f64> = durations.iter().map(|both| both[side][step]).collect();
        all.sort_by(f64::total_cmp);
        (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0
    };
    Some((0..steps).map(of_step).collect())
}

/// Something that a rank does.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct What {
    part: Part,
    kind: Option<Kind>,
    peer: Option<Peer<String>>,
}

/// How long something took, in each step or each time, ns; and how often it ran.
type Ran = (Vec<f64>, usize);

/// Everything that a rank does.
type Values = BTreeMap<What, Ran>;

/// The values of each kind of thing that a rank does, per step or per execution.
fn values(ranks: &Ranks, rank: &Rank, edges: Option<&[FileNs]>) -> Values {
    let mut all = Values::new();
    let mut by_kind: BTreeMap<(Part, usize, Option<Peer<usize>>), Ran> = BTreeMap::new();
    let step = |start: FileNs| match edges {
        Some(edges) => edges.partition_point(|edge| *edge <= start).checked_sub(1).filter(|at| at + 1 < edges.len()),
        None => Some(0),
    };
    // Kernels without a record are nothing that a step has.
    for item in rank.items.iter().filter(|item| item.unrecorded.is_none()) {
        let Some(step) = step(item.span.start) else { continue };
        let mut add = |part, ns: u64| {
            let (values, count) = by_kind.entry((part, item.kind, item.peer)).or_default();
            *count += 1;
            match edges {
                Some(edges) => {
                    values.resize(edges.len() - 1, 0.0);
                    values[step] += ns as f64;
                }
                None => values.push(ns as f64),
            }
        };
        let duration = item.span.duration();
        match (ranks.kinds[item.kind].class, item.waited) {
            (Class::Communication, Some(waited)) => {
                add(Part::Transfers, duration - waited);
                add(Part::Waits, waited);
            }
            (Class::Communication, None) => add(Part::Communicates, duration),
            (Class::Kernel | Class::Copy | Class::Call, _) => add(Part::Works, duration),
        }
    }
    for ((part, kind, peer), values) in by_kind {
        let peer = peer.map(|it| Peer { way: it.way, rank: ranks.all[it.rank].label.clone() });
        all.insert(What { part, kind: Some(ranks.kinds[kind].clone()), peer }, values);
    }
    let is_gpu = rank.items.iter().any(|item| ranks.kinds[item.kind].class != Class::Call);
    if let Some(edges) = edges.filter(|_| is_gpu) {
        let what = What { part: Part::Idles, kind: None, peer: None };
        all.insert(what, (idle(&rank.items, edges), edges.len() - 1));
    }
    all
}

/// For how long nothing ran in each step, ns.
fn idle(items: &[Item], edges: &[FileNs]) -> Vec<f64> {
    let mut idle: Vec<f64> = edges.windows(2).map(|edge| edge[1].since(edge[0]) as f64).collect();
    // What began before the first step may reach into it.
    let mut until = FileNs::MIN;
    for item in items {
        let (mut from, end) = (item.span.start.max(until), item.span.end);
        while from < end {
            let step = edges.partition_point(|edge| *edge <= from);
            let Some(next) = edges.get(step) else { break };
            let to = end.min(*next);
            if let Some(step) = step.checked_sub(1) {
                idle[step] -= to.since(from) as f64;
            }
            from = to;
        }
        until = until.max(end);
    }
    idle
}

/// Takes waits for other ranks together with the transfers behind them where a run mostly cannot
/// tell them apart for this communication, as without the files of some ranks.
fn told_alike(runs: [&mut Values; 2], is_by_step: bool) {
    let mut kinds = BTreeSet::new();
    for run in &runs {
        let mut counts: BTreeMap<&Option<Kind>, [usize; 2]> = BTreeMap::new();
        for (what, (_, count)) in run.iter() {
            let [unknown, known] = counts.entry(&what.kind).or_default();
            match what.part {
                Part::Communicates => *unknown += count,
                Part::Transfers => *known += count,
                Part::Works | Part::Idles | Part::Waits => {}
            }
        }
        kinds.extend(counts.into_iter().filter(|(_, [unknown, known])| unknown > known).map(|(kind, _)| kind.clone()));
    }
    for run in runs {
        let is_told = |what: &&What| what.part == Part::Transfers && kinds.contains(&what.kind);
        let told: Vec<What> = run.keys().filter(is_told).cloned().collect();
        for what in told {
            let Some((transfers, count)) = run.remove(&what) else { continue };
            let (waits, _) = run.remove(&What { part: Part::Waits, ..what.clone() }).unwrap_or_default();
            let sums = transfers.iter().zip(waits).map(|(transfer, wait)| transfer + wait);
            let unknown = What { part: Part::Communicates, kind: what.kind, peer: None };
            let (all, known_count) = run.entry(unknown).or_default();
            *known_count += count;
            if is_by_step && !all.is_empty() {
                all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
            } else {
                all.extend(sums);
            }
        }
    }
}

/// What a rank does in both runs. What a run does not contain takes no time there.
fn both(rank: &Rank, mut a: Values, mut b: Values, steps: Option<[usize; 2]>) -> Vec<Series> {
    told_alike([&mut a, &mut b], steps.is_some());
    let all: BTreeSet<What> = a.keys().chain(b.keys()).cloned().collect();
    let none = |side: usize| (steps.map_or_else(Vec::new, |steps| vec![0.0; steps[side]]), 0);
    let series = all.into_iter().map(|what| {
        let (of_a, of_b) = (a.remove(&what).unwrap_or_else(|| none(0)), b.remove(&what).unwrap_or_else(|| none(1)));
        Series { ranks: vec![rank.label.clone()], what, values: [of_a.0, of_b.0], count: [of_a.1, of_b.1] }
    });
    series.collect()
}

/// A collective's transfer takes the same time on all ranks, so it counts once.
fn merged(all: Vec<Series>) -> Vec<Series> {
    let mut merged: Vec<Series> = Vec::new();
    let mut alike: FxHashMap<_, Vec<usize>> = FxHashMap::default();
    for series in all {
        if series.what.part != Part::Transfers || series.what.peer.is_some() {
            merged.push(series);
            continue;
        }
        let first = [0, 1].map(|side| series.values[side].first().map(|value| value.to_bits()));
        let known = alike.entry((series.what.kind.clone(), first)).or_default();
        match known.iter().find(|at| merged[**at].values == series.values) {
            Some(at) => merged[*at].ranks.extend(series.ranks),
            None => {
                known.push(merged.len());
                merged.push(series);
            }
        }
    }
    merged
}

/// Compares what takes enough of a step, or of everything its rank does; the largest loss comes
/// first. Returns also whether these are too many for their few values.
fn rows(series: Vec<Series>, steps: Option<&Change>) -> (Vec<Row>, bool) {
    let mut whole: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for one in &series {
        let sums = whole.entry(one.ranks[0].clone()).or_default();
        (0..2).for_each(|side| sums[side] += one.values[side].iter().sum::<f64>());
    }
    let counts = |one: &Series| {
        (0..2).any(|side| {
            let sum = one.values[side].iter().sum::<f64>();
            sum > 0.0 && sum >= LEAST * whole[&one.ranks[0]][side]
        })
    };
    let series: Vec<Series> = series.into_iter().filter(counts).collect();
    let least = steps.map_or(0.0, |steps| LEAST * steps.a.median);
    let pairs = |of: &dyn Fn(Part) -> bool| -> Vec<usize> {
        (0..series.len()).filter(|at| of(series[*at].what.part)).collect()
    };
    let mut changes: Vec<Option<Change>> = vec![None; series.len()];
    let mut are_too_many = false;
    // Waiting is an effect, so it is not tested together with the causes.
    for (family, are_causes) in
        [(pairs(&|part| part != Part::Waits), true), (pairs(&|part| part == Part::Waits), false)]
    {
        let pairs: Vec<Pair> =
            family.iter().map(|at| Pair::new(&series[*at].values[0], &series[*at].values[1])).collect();
        are_too_many |= are_causes && change::are_too_many(&pairs);
        family.iter().zip(change::compare(&pairs, least)).for_each(|(at, change)| changes[*at] = change);
    }
    let mut rows: Vec<Row> = (series.into_iter().zip(changes))
        .filter_map(|(series, change)| {
            let change = change?;
            let times = series.values[1].len() as f64;
            Some(Row {
                ranks: series.ranks,
                part: series.what.part,
                class: series.what.kind.as_ref().map(|kind| kind.class),
                what: series.what.kind.map(|kind| kind.name).unwrap_or_default(),
                peer: series.what.peer,
                only: match series.count {
                    [0, _] => Some('B'),
                    [_, 0] => Some('A'),
                    _ => None,
                },
                count: series.count,
                lost: change.growth() * times,
                change,
            })
        })
        .collect();
    let is_changed = |row: &Row| row.change.verdict.is_change();
    rows.sort_by(|one, other| {
        is_changed(other).cmp(&is_changed(one)).then(other.lost.abs().total_cmp(&one.lost.abs()))
    });
    (rows, are_too_many)
}

/// How long transfers waited for the network, by sender and receiver; the largest loss comes first.
fn links(profiles: [&Profile; 2], couples: &[[&Rank; 2]]) -> Vec<Link> {
    let [of_a, of_b] = [0, 1].map(|side| {
        let ranks: Vec<&Rank> = couples.iter().map(|couple| couple[side]).collect();
        network_waits(profiles[side], &ranks)
    });
    let both: Vec<_> = of_a.iter().filter_map(|(ends, a)| Some((ends, &a[..], &of_b.get(ends)?[..]))).collect();
    let pairs: Vec<Pair> = both.iter().map(|(_, a, b)| Pair::new(a, b)).collect();
    let mut links: Vec<Link> = (both.iter().zip(change::compare(&pairs, 0.0)))
        .filter_map(|(((from, to), _, b), change)| {
            let change = change?;
            let label = |rank: usize| couples[rank][0].label.clone();
            let to = match to {
                To::Rank(rank) => label(*rank),
                To::Elsewhere(peer, communicator) => format!("rank {peer} of {communicator}"),
            };
            Some(Link { from: label(*from), to, lost: change.growth() * b.len() as f64, change })
        })
        .collect();
    links.sort_by(|one, other| other.lost.total_cmp(&one.lost));
    links
}

/// Whom a transfer goes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    /// One of the ranks that are compared.
    Rank(usize),
    /// This rank of the communicator with this name.
    Elsewhere(i32, String),
}

/// How long each transfer between two ranks waited for the network, ns.
fn network_waits(profile: &Profile, ranks: &[&Rank]) -> BTreeMap<(usize, To), Vec<f64>> {
    let mut of_process: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
    for (at, rank) in ranks.iter().enumerate() {
        of_process.entry(rank.process).or_default().push(at);
    }
    let of_process = |process: usize| of_process.get(&process).map_or(&[][..], Vec::as_slice);
    let mut members = FxHashMap::default();
    for communicator in &profile.communicators {
        for &at in of_process(communicator.process) {
            members.extend(ranks[at].in_communicator(communicator).map(|own| ((communicator.hash, own), at)));
        }
    }
    let of_operation = |it: &Operation| Some(((it.process, it.correlation?), it.communicator?));
    let communicators: FxHashMap<_, _> = profile.operations.iter().filter_map(of_operation).collect();
    let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for transfer in profile.transfers.iter().filter(|transfer| transfer.is_send) {
        let network = transfer.waits.iter().filter(|(what, _)| **what == *wait::NETWORK).map(|(_, ns)| *ns);
        let (Some(peer), Some(ns)) = (transfer.peer, network.reduce(|all, ns| all + ns)) else { continue };
        let number = transfer.correlation.and_then(|number| communicators.get(&(transfer.process, number)));
        let Some(communicator) = number.map(|at| &profile.communicators[*at]) else { continue };
        let is_sender = |at: &&usize| {
            let own = ranks[**at].in_communicator(communicator);
            own.is_some_and(|own| transfer.rank.is_none_or(|rank| rank == own))
        };
        let Some(&from) = of_process(transfer.process).iter().find(is_sender) else { continue };
        let to = match members.get(&(communicator.hash, peer)) {
            Some(rank) => To::Rank(*rank),
            None => To::Elsewhere(peer, communicator.name.clone().unwrap_or_default()),
        };
        all.entry((from, to)).or_default().push(ns as f64);
    }
    all
}
