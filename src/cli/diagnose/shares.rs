//! How each rank, and each kind of operation, spends its time (pure).

use std::collections::BTreeMap;

use serde::Serialize;

use super::job::Job;

/// Ranks leave an operation up to this long apart, so a shorter wait says nothing about who was
/// last, ns.
pub(in crate::cli) const APART_NS: i64 = 10_000;
/// Coming last counts only if the others wait for at least this fraction of a step.
const COUNTS: f64 = 0.01;

/// How a rank spends its time, per step on average, ns.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct OfRank {
    /// The application's kernels and copies.
    pub(super) own_ns: f64,
    /// Communication beside them, without waiting.
    pub(super) hidden_ns: f64,
    /// Communication with nothing beside it, without waiting.
    pub(super) exposed_ns: f64,
    /// Waiting for other ranks in communication, with nothing beside it.
    pub(super) waits_ns: f64,
    /// Nothing ran.
    pub(super) idle_ns: f64,
    /// The fraction of the operations that it came to last, so that others waited.
    pub(super) last: f64,
}

/// What the operations of one kind take, on all ranks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfOperation {
    pub(super) name: String,
    pub(super) communicator: Option<String>,
    /// Kernels per rank and step.
    pub(super) kernels: f64,
    /// Per kernel: waiting for other ranks, and the transfer; how much of the transfer had the
    /// application's kernels beside it, ns.
    pub(super) wait_ns: f64,
    pub(super) transfer_ns: f64,
    pub(super) hidden_ns: f64,
    /// The rank that most often comes last, and in which fraction of the operations.
    pub(super) last: Option<(usize, f64)>,
}

/// What the operations of one communicator take, per rank and step on average, ns.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfCommunicator {
    pub(super) name: String,
    pub(super) waits_ns: f64,
    /// Transfers with the application's kernels beside them, and without.
    pub(super) hidden_ns: f64,
    pub(super) exposed_ns: f64,
}

/// When the application's kernels ran on a rank.
struct Busy {
    /// Spans that do not overlap, in order; each with the total length of those before it.
    spans: Vec<(i64, i64, i64)>,
}

impl Busy {
    fn of(job: &Job, rank: usize) -> Busy {
        let mut busy = Busy { spans: Vec::new() };
        let mut sum = 0;
        for item in job.graph.items[job.looked_at(rank)].iter().filter(|item| !item.is_communication) {
            let from = busy.spans.last().map_or(item.start, |last: &(i64, i64, i64)| item.start.max(last.1));
            if from < item.end {
                busy.spans.push((from, item.end, sum));
                sum += item.end - from;
            }
        }
        busy
    }

    /// How much of the time before `until` it ran, ns.
    fn until(&self, until: i64) -> i64 {
        let Some(at) = self.spans.partition_point(|span| span.0 < until).checked_sub(1) else { return 0 };
        let (from, to, before) = self.spans[at];
        before + until.min(to) - from
    }

    fn between(&self, from: i64, to: i64) -> i64 {
        self.until(to) - self.until(from)
    }
}

/// How each rank spends its time; `step` is the duration of a step, ns.
pub(super) fn of_ranks(job: &Job, step: f64) -> Vec<OfRank> {
    let steps = job.steps.len().max(1) as f64;
    let mut all: Vec<OfRank> = (0..job.ranks.len()).map(|rank| of_rank(job, rank)).collect();
    let (lasts, count) = lasts(job, step);
    for ((_, rank), times) in lasts {
        all[rank].last += times as f64 / count.max(1) as f64;
    }
    for it in &mut all {
        for ns in [&mut it.own_ns, &mut it.hidden_ns, &mut it.exposed_ns, &mut it.waits_ns, &mut it.idle_ns] {
            *ns /= steps;
        }
    }
    all
}

fn of_rank(job: &Job, rank: usize) -> OfRank {
    let mut all = OfRank::default();
    // From when to when it does what: 0 own work, 1 transfers, 2 waits.
    let mut edges: Vec<(i64, usize, i32)> = Vec::new();
    for item in job.looked_at(rank) {
        let it = &job.graph.items[item];
        let moves = if it.is_communication { it.end - job.graph.length(item) } else { it.start };
        let what = usize::from(it.is_communication);
        for (from, to, what) in [(it.start, moves, 2), (moves, it.end, what)] {
            if from < to {
                edges.extend([(from, what, 1), (to, what, -1)]);
            }
        }
    }
    // The last step ends when the next one begins.
    let items = job.looked_at(rank);
    if items.end < job.graph.rank(rank).end {
        edges.push((job.graph.items[items.end].start, 0, 0));
    }
    edges.sort_unstable();
    let mut open = [0_i32; 3];
    for two in edges.windows(2) {
        let (time, what, change) = two[0];
        open[what] += change;
        let ns = (two[1].0 - time) as f64;
        match open {
            [own, transfers, _] if own > 0 => {
                all.own_ns += ns;
                all.hidden_ns += if transfers > 0 { ns } else { 0.0 };
            }
            [_, transfers, _] if transfers > 0 => all.exposed_ns += ns,
            [_, _, waits] if waits > 0 => all.waits_ns += ns,
            _ => all.idle_ns += ns,
        }
    }
    all
}

/// How often each rank came last to an operation of each kind, so that others waited; and how many
/// operations there were.
fn lasts(job: &Job, step: f64) -> (BTreeMap<(u32, usize), u64>, u64) {
    let (mut lasts, mut count) = (BTreeMap::new(), 0);
    for members in job.graph.meetings() {
        let is_looked_at = |item: &u32| job.looked_at(job.graph.rank_of(*item)).contains(&(*item as usize));
        let inside = members.first().is_some_and(is_looked_at);
        if !inside {
            continue;
        }
        count += 1;
        if let Some(last) = last_of(job, members, step) {
            let kind = job.graph.items[last as usize].kind;
            *lasts.entry((kind, job.graph.rank_of(last))).or_insert(0) += 1;
        }
    }
    (lasts, count)
}

/// The item of the rank that came last to an operation, if others waited for it.
pub(super) fn last_of(job: &Job, members: &[u32], step: f64) -> Option<u32> {
    let waited = |item: &u32| job.graph.waited(*item as usize);
    let longest = members.iter().map(waited).max().unwrap_or(0);
    let last = members.iter().copied().min_by_key(waited);
    last.filter(|_| longest as f64 > (COUNTS * step).max(APART_NS as f64))
}

/// The time of each kind of operation, longest first.
pub(super) fn of_operations(job: &Job, step: f64) -> Vec<OfOperation> {
    // Kernels, waits, transfers, hidden.
    let mut sums: BTreeMap<u32, [i64; 4]> = BTreeMap::new();
    for rank in 0..job.ranks.len() {
        let busy = Busy::of(job, rank);
        for item in job.looked_at(rank).filter(|item| job.graph.items[*item].is_communication) {
            let it = &job.graph.items[item];
            let length = job.graph.length(item);
            let sum = sums.entry(it.kind).or_default();
            let of_it = [1, job.graph.waited(item), length, busy.between(it.end - length, it.end)];
            sum.iter_mut().zip(of_it).for_each(|(sum, it)| *sum += it);
        }
    }
    let (lasts, _) = lasts(job, step);
    let steps = (job.steps.len().max(1) * job.ranks.len().max(1)) as f64;
    let mut all: Vec<(i64, OfOperation)> = sums
        .into_iter()
        .map(|(kind, [count, wait, transfer, hidden])| {
            let of_kind = || lasts.range((kind, 0)..(kind + 1, 0));
            let last = of_kind().max_by_key(|it| it.1).map(|it| {
                let times: u64 = of_kind().map(|it| it.1).sum();
                (it.0.1, *it.1 as f64 / times.max(1) as f64)
            });
            let each = |sum: i64| sum as f64 / count as f64;
            let it = OfOperation {
                name: job.kinds[kind as usize].name.clone(),
                communicator: job.communicators.get(&kind).cloned(),
                kernels: count as f64 / steps,
                wait_ns: each(wait),
                transfer_ns: each(transfer),
                hidden_ns: each(hidden),
                last,
            };
            (wait + transfer, it)
        })
        .collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.0));
    all.into_iter().map(|it| it.1).collect()
}

/// The same by communicator, longest first.
pub(super) fn of_communicators(operations: &[OfOperation]) -> Vec<OfCommunicator> {
    let mut all: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    for it in operations {
        let Some(communicator) = &it.communicator else { continue };
        let sums = all.entry(communicator).or_default();
        let of_it = [it.wait_ns, it.hidden_ns, it.transfer_ns - it.hidden_ns];
        sums.iter_mut().zip(of_it).for_each(|(sum, ns)| *sum += it.kernels * ns);
    }
    let mut all: Vec<OfCommunicator> = all
        .into_iter()
        .map(|(name, [waits_ns, hidden_ns, exposed_ns])| OfCommunicator {
            name: name.to_owned(),
            waits_ns,
            hidden_ns,
            exposed_ns,
        })
        .collect();
    let sum = |it: &OfCommunicator| it.waits_ns + it.hidden_ns + it.exposed_ns;
    all.sort_by(|one, other| sum(other).total_cmp(&sum(one)));
    all
}
