//! What makes the steps of a job longer than they would have to be, and by how much (pure).
//!
//! Each suspect is something that differs between ranks, links or steps, with the change to the job
//! that would remove it. Its cost is what a replay of the job with that change saves. A suspect that
//! saves nothing delayed nobody, and is no cause.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::graph::{Plan, Times};
use super::load::{Job, Use};

/// The fraction of a step that a cause costs at least.
const LEAST: f64 = 0.03;
/// The fraction of the steps in which something has to be so to be a habit.
const HABIT: f64 = 0.75;
/// The fraction of a step from which a difference counts in that step.
const COUNTS: f64 = 0.01;
/// Ranks that differ by at least this fraction of what the worst one does are named with it.
const ALIKE: f64 = 0.5;
/// What a quarter of the steps have less of than the median, as a fraction of it, if something is
/// steady.
const STEADY: f64 = 0.6;
/// How many times longer than other links a slow one is.
const SLOW: f64 = 1.7;
/// How many times longer than any other a link stands still if it is at fault.
const STANDS_OUT: f64 = 3.0;
/// By which fraction of the average work the longest work of a step exceeds it if work is unequal.
const UNEQUAL: f64 = 0.11;
/// The fraction of what steps differ anyway, and of what a replay is off, that a cause costs at
/// least: less than that could be the machine's own noise.
const NOISE: f64 = 0.25;
/// The fraction of a step that GPUs have nothing to do if a job is bound by its hosts.
const IDLE: f64 = 0.15;
/// How many suspects are tried.
const SUSPECTS: usize = 24;
/// With fewer steps, nothing is a habit.
pub(super) const ENOUGH: usize = 5;

/// What kind of cause something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// Kernels of some ranks take longer than the same kernels of the others, or the others have no
    /// such kernels.
    #[default]
    Kernels,
    /// GPUs of some ranks have nothing to do for longer than those of the others.
    Host,
    /// A link takes longer than the others.
    Link,
    /// A link takes much longer than it usually does, now and then.
    Stall,
    /// GPUs have nothing to do, for long, now and then.
    Pauses,
    /// All GPUs have nothing to do for a good part of each step.
    HostBound,
    /// In each step, kernels of another rank take longest.
    UnequalWork,
}

/// Something that may be a cause, and the change that removes it.
#[derive(Clone, Debug, Default)]
struct Suspect {
    what: What,
    ranks: Vec<usize>,
    links: Vec<usize>,
    names: Vec<String>,
    every: Option<usize>,
    /// What it amounts to in a step on its ranks or its link, and what it does on the others, ns.
    amounts: [f64; 2],
    /// The step in which it is largest.
    step: usize,
    /// For stalls: how many there are, and what they add up to, ns.
    times: usize,
    sum: f64,
    lengths: Vec<(usize, i64)>,
    lags: Vec<(usize, i64)>,
}

/// A cause.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) what: What,
    pub(super) ranks: Vec<usize>,
    /// The slowest first.
    pub(super) links: Vec<usize>,
    /// Kernels or operations, the most important first.
    pub(super) names: Vec<String>,
    /// It comes every so many steps.
    pub(super) every: Option<usize>,
    /// What it amounts to in a step (pauses: each time) on its ranks or its link, and what it does
    /// on the others, ns.
    pub(super) amounts: [f64; 2],
    /// The step in which it is largest.
    pub(super) step: usize,
    /// By how much it makes a step longer on average, ns.
    pub(super) cost: f64,
    /// The steps without it.
    pub(super) without: Measure,
}

/// The steps of a job, or of a replay of it, ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    pub(super) mean: f64,
    pub(super) median: f64,
    /// How far a step is from the median, in the middle.
    pub(super) spread: f64,
    /// The longest step.
    pub(super) longest: (f64, usize),
}

/// What is found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The largest cost comes first.
    pub(super) causes: Vec<Cause>,
    /// Those that cost less than steps differ anyway.
    pub(super) doubtful: Vec<Cause>,
    pub(super) steps: Measure,
    /// How far a replay without changes is off, ns per step.
    pub(super) error: f64,
    /// If transfers took no time; if nobody waited for communication at all.
    pub(super) without_transfers: Measure,
    pub(super) overlapped: Measure,
}

/// Finds what costs.
pub(super) fn find(job: &Job) -> Findings {
    let plan = job.graph.plan();
    let recorded = measure(job, &recorded(job));
    let before = measure(job, &job.graph.replay(&plan));
    let sums = Sums::of(job);
    let mut suspects = Vec::new();
    if job.steps.len() >= ENOUGH && job.has_kernels() {
        suspects.extend(sums.kernels(job));
        suspects.extend(sums.hosts(job, recorded.median));
        suspects.extend(links(job));
        if !suspects.iter().any(|it| it.what == What::Kernels) {
            suspects.extend(sums.unequal(job));
        }
    }
    suspects.truncate(SUSPECTS);
    let [causes, doubtful] = judge(job, &plan, [&recorded, &before], suspects);
    let mut no_transfers = plan.clone();
    let mut alone = Plan { is_alone: true, ..plan };
    for (at, _) in job.graph.items.iter().enumerate().filter(|(_, item)| item.is_communication) {
        (no_transfers.length[at], alone.length[at]) = (0, 0);
    }
    Findings {
        causes,
        doubtful,
        steps: recorded,
        error: (before.median - recorded.median).abs(),
        without_transfers: measure(job, &job.graph.replay(&no_transfers)),
        overlapped: measure(job, &job.graph.replay(&alone)),
    }
}

/// The times of the recording itself, in the form of a replay.
fn recorded(job: &Job) -> Times {
    let items = &job.graph.items;
    Times { start: items.iter().map(|it| it.start).collect(), end: items.iter().map(|it| it.end).collect() }
}

/// Of each step, what it takes on the middle rank.
fn measure(job: &Job, times: &Times) -> Measure {
    let of_step = |step: usize| {
        let mut of_ranks: Vec<f64> = (0..job.ranks.len())
            .filter_map(|rank| {
                let items = job.step(rank, step);
                let until = times.start.get(items.end).filter(|_| items.end < job.graph.rank(rank).end)?;
                Some((until - times.start[items.start]) as f64)
            })
            .collect();
        of_ranks.sort_by(f64::total_cmp);
        of_ranks.get(of_ranks.len() / 2).copied()
    };
    let steps: Vec<f64> = job.steps.clone().filter_map(of_step).collect();
    if steps.is_empty() {
        return Measure::default();
    }
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    let middle = median(&steps);
    let off: Vec<f64> = steps.iter().map(|step| (step - middle).abs()).collect();
    let longest = largest(&steps);
    Measure { mean, median: middle, spread: median(&off), longest: (steps[longest], job.steps.start + longest) }
}

/// The median; of an even number, the lower one. 0 if there is none.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// A quarter of the values are smaller.
fn quarter(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 4).copied().unwrap_or(0.0)
}

/// What each suspect costs. Of two that hide each other, such as two slow ranks, none saves anything
/// by itself: each is tried alone, and as the only one that is left. The second list has those that
/// steps differ too much to be sure of.
fn judge(job: &Job, plan: &Plan, [recorded, before]: [&Measure; 2], suspects: Vec<Suspect>) -> [Vec<Cause>; 2] {
    let noise = NOISE * (recorded.spread + (before.median - recorded.median).abs());
    let least = LEAST * before.mean;
    let replay = |plan: &Plan| measure(job, &job.graph.replay(plan));
    let mut judged: Vec<(Suspect, f64, Measure)> = Vec::new();
    for suspect in suspects {
        let without = replay(&suspect.applied(plan.clone()));
        let saved = before.mean - without.mean;
        judged.push((suspect, saved, without));
    }
    let all = judged.iter().fold(plan.clone(), |plan, (suspect, ..)| suspect.applied(plan));
    let without_any = replay(&all);
    for at in 0..judged.len() {
        let others = judged.iter().enumerate().filter(|(other, _)| *other != at);
        let rest = others.fold(plan.clone(), |plan, (_, (suspect, ..))| suspect.applied(plan));
        let costs = replay(&rest).mean - without_any.mean;
        judged[at].1 = judged[at].1.max(costs);
    }
    let mut causes: Vec<Cause> = judged
        .into_iter()
        .filter(|(_, cost, _)| *cost >= least)
        .map(|(suspect, cost, without)| {
            let Suspect { what, ranks, links, names, every, amounts, step, .. } = suspect;
            Cause { what, ranks, links, names, every, amounts, step, cost, without }
        })
        .collect();
    causes.sort_by(|one, other| other.cost.total_cmp(&one.cost));
    let (causes, doubtful) = causes.into_iter().partition(|cause| cause.cost >= noise);
    [causes, doubtful]
}

impl Suspect {
    /// The plan without it.
    fn applied(&self, mut plan: Plan) -> Plan {
        for (item, length) in &self.lengths {
            plan.length[*item] = plan.length[*item].min(*length);
        }
        for (item, lag) in &self.lags {
            plan.lag[*item] = plan.lag[*item].min(*lag);
        }
        plan
    }
}

/// What ranks do themselves, by step.
struct Sums {
    /// The application's items in these steps.
    own: Vec<Own>,
    /// By rank and step: work, and the work beyond that of the ranks in the middle, ns.
    work: Vec<Vec<f64>>,
    excess: Vec<Vec<f64>>,
    /// By rank and step: how long nothing ran, ns.
    idle: Vec<Vec<f64>>,
    /// What a step takes, ns.
    step: f64,
}

/// A kernel or a copy of the application.
#[derive(Clone, Copy)]
struct Own {
    /// Counted from the first step that is looked at.
    step: usize,
    kind: u32,
    /// Which of its kind in the step.
    nth: u32,
    rank: usize,
    item: usize,
    length: i64,
    /// Of the same item on the rank in the middle; 0 if the other ranks do without it.
    middle: i64,
    mean: i64,
}

impl Sums {
    fn of(job: &Job) -> Sums {
        let ranks = job.ranks.len();
        let steps = job.steps.len();
        let mut sums = Sums {
            own: Vec::new(),
            work: vec![vec![0.0; steps]; ranks],
            excess: vec![vec![0.0; steps]; ranks],
            idle: vec![vec![0.0; steps]; ranks],
            step: measure(job, &recorded(job)).mean,
        };
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for rank in 0..ranks {
            for (at, step) in job.steps.clone().enumerate() {
                counts.clear();
                for item in job.step(rank, step) {
                    let it = &job.graph.items[item];
                    sums.idle[rank][at] += job.graph.idle(item) as f64;
                    if it.is_communication {
                        continue;
                    }
                    let nth = counts.entry(it.kind).or_default();
                    *nth += 1;
                    let length = it.end - it.start;
                    sums.work[rank][at] += length as f64;
                    let (kind, nth) = (it.kind, *nth);
                    sums.own.push(Own { step: at, kind, nth, rank, item, length, middle: length, mean: length });
                }
            }
        }
        sums.compare(ranks);
        sums
    }

    /// Compares each item with the same one on the other ranks.
    fn compare(&mut self, ranks: usize) {
        self.own.sort_unstable_by_key(|it| (it.step, it.kind, it.nth, it.length, it.rank));
        let is_same = |one: &Own, other: &Own| (one.step, one.kind, one.nth) == (other.step, other.kind, other.nth);
        // What only a few ranks run belongs to their part of the model if they run little else;
        // otherwise the others go without it.
        let mut common = vec![[0; 2]; ranks];
        for same in self.own.chunk_by(is_same) {
            let is_common = usize::from(2 * same.len() > ranks);
            same.iter().for_each(|it| common[it.rank][is_common] += it.length);
        }
        for same in self.own.chunk_by_mut(is_same) {
            let is_common = 2 * same.len() > ranks;
            let middle = same[(same.len() - 1) / 2].length;
            let mean = same.iter().map(|it| it.length).sum::<i64>() / same.len() as i64;
            for it in same {
                let is_extra = !is_common && common[it.rank][1] > common[it.rank][0];
                it.middle = if is_extra { 0 } else { middle };
                it.mean = if is_common { mean } else { it.length };
            }
        }
        for it in &self.own {
            self.excess[it.rank][it.step] += (it.length - it.middle) as f64;
        }
    }

    /// Whether something is so in nearly every step.
    fn is_habit(&self, by_step: impl Iterator<Item = f64>) -> bool {
        let (mut count, mut all) = (0, 0);
        for excess in by_step {
            all += 1;
            count += usize::from(excess > COUNTS * self.step);
        }
        all > 0 && count as f64 >= HABIT * all as f64
    }

    /// Ranks whose own kernels always take longer than those of the others.
    fn kernels(&self, job: &Job) -> Vec<Suspect> {
        // A slow rank is slow by much the same each time. Otherwise its work differs.
        let is_steady = |excess: &[f64]| quarter(excess) >= STEADY * median(excess);
        let slow: Vec<(usize, f64)> = (0..job.ranks.len())
            .filter(|rank| self.is_habit(self.excess[*rank].iter().copied()) && is_steady(&self.excess[*rank]))
            .map(|rank| (rank, median(&self.excess[rank])))
            .collect();
        let worst = slow.iter().map(|it| it.1).fold(0.0, f64::max);
        let (alike, others): (Vec<_>, Vec<_>) = slow.into_iter().partition(|it| it.1 >= ALIKE * worst);
        [alike, others].into_iter().filter(|ranks| !ranks.is_empty()).map(|ranks| self.of_ranks(job, &ranks)).collect()
    }

    fn of_ranks(&self, job: &Job, ranks: &[(usize, f64)]) -> Suspect {
        let ranks: Vec<usize> = ranks.iter().map(|it| it.0).collect();
        let of_them: Vec<&Own> = self.own.iter().filter(|it| ranks.contains(&it.rank)).collect();
        let mut by_kind: BTreeMap<u32, f64> = BTreeMap::new();
        for it in &of_them {
            *by_kind.entry(it.kind).or_default() += (it.length - it.middle) as f64;
        }
        let mut kinds: Vec<(u32, f64)> = by_kind.into_iter().filter(|it| it.1 > 0.0).collect();
        kinds.sort_by(|one, other| other.1.total_cmp(&one.1));
        let first = kinds.first().map_or(u32::MAX, |it| it.0);
        let per_step = |sum: f64| sum / (job.steps.len() * ranks.len()).max(1) as f64;
        let sum = |of: fn(&Own) -> i64| of_them.iter().filter(|it| it.kind == first).map(|it| of(it) as f64).sum();
        let most = kinds.first().map_or(0.0, |it| it.1);
        Suspect {
            what: What::Kernels,
            names: kinds
                .iter()
                .filter(|it| it.1 >= 0.1 * most)
                .map(|it| job.kinds[it.0 as usize].name.clone())
                .collect(),
            amounts: [per_step(sum(|it| it.length)), per_step(sum(|it| it.middle))],
            step: job.steps.start + largest(&self.excess[ranks[0]]),
            lengths: of_them.iter().map(|it| (it.item, it.middle)).collect(),
            ranks,
            ..Suspect::default()
        }
    }

    /// Where in each step the work of another rank takes longest.
    fn unequal(&self, job: &Job) -> Option<Suspect> {
        let ranks = job.ranks.len();
        if ranks < 2 {
            return None;
        }
        let steps = job.steps.len();
        let work = |rank: usize, step: usize| self.work[rank][step];
        let longest = |step: usize| (0..ranks).max_by(|one, other| work(*one, step).total_cmp(&work(*other, step)));
        let mut times = vec![0; ranks];
        let (mut most, mut middle, mut worst) = (0.0, 0.0, (0.0, 0));
        for step in 0..steps {
            let rank = longest(step)?;
            times[rank] += 1;
            let of_all: Vec<f64> = (0..ranks).map(|rank| work(rank, step)).collect();
            let mean = of_all.iter().sum::<f64>() / ranks as f64;
            most += work(rank, step);
            middle += mean;
            if work(rank, step) - mean > worst.0 {
                worst = (work(rank, step) - mean, step);
            }
        }
        // What one rank does in most steps is not by turns.
        let is_by_turns = times.iter().all(|count| (*count as f64) < 0.7 * steps as f64);
        let mut kinds: BTreeMap<u32, f64> = BTreeMap::new();
        self.own.iter().for_each(|it| *kinds.entry(it.kind).or_default() += (it.length - it.mean).abs() as f64);
        let mut kinds: Vec<(u32, f64)> = kinds.into_iter().collect();
        kinds.sort_by(|one, other| other.1.total_cmp(&one.1));
        (is_by_turns && most >= (1.0 + UNEQUAL) * middle).then(|| Suspect {
            what: What::UnequalWork,
            ranks: (0..ranks).filter(|rank| times[*rank] > 0).collect(),
            names: kinds.iter().take(1).map(|it| job.kinds[it.0 as usize].name.clone()).collect(),
            amounts: [most / steps as f64, middle / steps as f64],
            step: job.steps.start + worst.1,
            // The same work, equally shared.
            lengths: self.own.iter().map(|it| (it.item, it.mean)).collect(),
            ..Suspect::default()
        })
    }

    /// GPUs that have nothing to do: on some ranks, now and then, or everywhere.
    fn hosts(&self, job: &Job, step: f64) -> Vec<Suspect> {
        let (ranks, steps) = (job.ranks.len(), job.steps.len());
        let (pauses, paused) = self.pauses(job, step);
        // What is left when pauses are taken out, and the rank in the middle.
        let idle = |rank: usize, at: usize| {
            if paused[rank].contains(&at) { median(&self.idle[rank]) } else { self.idle[rank][at] }
        };
        let middle: Vec<f64> =
            (0..steps).map(|at| median(&(0..ranks).map(|rank| idle(rank, at)).collect::<Vec<_>>())).collect();
        let mut suspects = pauses;
        let excesses: Vec<Vec<f64>> =
            (0..ranks).map(|rank| (0..steps).map(|at| idle(rank, at) - middle[at]).collect()).collect();
        let late: Vec<(usize, f64)> = (0..ranks)
            .filter(|rank| self.is_habit(excesses[*rank].iter().copied()))
            .map(|rank| (rank, median(&excesses[rank])))
            .collect();
        let worst = late.iter().map(|it| it.1).fold(0.0, f64::max);
        let (alike, others): (Vec<_>, Vec<_>) = late.into_iter().partition(|it| it.1 >= ALIKE * worst);
        for group in [alike, others].into_iter().filter(|group| !group.is_empty()) {
            let of: Vec<usize> = group.iter().map(|it| it.0).collect();
            let lags = of.iter().flat_map(|rank| self.shorter(job, *rank, |at| middle[at]));
            let own: Vec<f64> = (0..steps).map(|at| idle(of[0], at)).collect();
            suspects.push(Suspect {
                what: What::Host,
                amounts: [median(&own), median(&middle)],
                step: job.steps.start + largest(&excesses[of[0]]),
                lags: lags.collect(),
                ranks: of,
                ..Suspect::default()
            });
        }
        if self.is_habit(middle.iter().map(|idle| idle - (IDLE - COUNTS) * step)) {
            let lags =
                (0..ranks).flat_map(|rank| self.shorter(job, rank, |at| (self.idle[rank][at] - middle[at]).max(0.0)));
            suspects.push(Suspect {
                what: What::HostBound,
                ranks: (0..ranks).collect(),
                amounts: [median(&middle), 0.0],
                step: job.steps.start + largest(&middle),
                lags: lags.collect(),
                ..Suspect::default()
            });
        }
        suspects
    }

    /// The lags of a rank's items if it had nothing to do for only so long in each step.
    fn shorter(&self, job: &Job, rank: usize, wanted: impl Fn(usize) -> f64) -> Vec<(usize, i64)> {
        let mut lags = Vec::new();
        for (at, step) in job.steps.clone().enumerate() {
            let idle = self.idle[rank][at];
            if idle <= 0.0 {
                continue;
            }
            let part = (wanted(at) / idle).min(1.0);
            let items = job.step(rank, step).filter(|item| job.graph.idle(*item) > 0);
            lags.extend(items.map(|item| (item, (job.graph.idle(item) as f64 * part) as i64)));
        }
        lags
    }

    /// Steps in which GPUs had nothing to do for much longer than usual; and which they are, by
    /// rank.
    fn pauses(&self, job: &Job, step: f64) -> (Vec<Suspect>, Vec<BTreeSet<usize>>) {
        let (ranks, steps) = (job.ranks.len(), job.steps.len());
        let mut by_step: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut usual = vec![0.0; ranks];
        for rank in 0..ranks {
            usual[rank] = median(&self.idle[rank]);
            let off: Vec<f64> = self.idle[rank].iter().map(|idle| (idle - usual[rank]).abs()).collect();
            let limit = usual[rank] + (0.2 * step).max(6.0 * median(&off));
            for at in (0..steps).filter(|at| self.idle[rank][*at] > limit) {
                by_step.entry(at).or_default().insert(rank);
            }
        }
        let none = || vec![BTreeSet::new(); ranks];
        // The ranks that pause each time.
        let often = |rank: &usize| {
            let count = by_step.values().filter(|of| of.contains(rank)).count();
            count >= 2 && count as f64 >= HABIT * by_step.len() as f64
        };
        let pausing: Vec<usize> = (0..ranks).filter(often).collect();
        let at: Vec<usize> =
            by_step.iter().filter(|(_, of)| of.iter().any(|rank| pausing.contains(rank))).map(|(at, _)| *at).collect();
        if pausing.is_empty() || at.len() < 2 || 2 * at.len() > steps {
            return (Vec::new(), none());
        }
        let every = period(&at);
        // A few pauses of one host at no regular times say little about the job.
        if every.is_none() && at.len() < 3 {
            return (Vec::new(), none());
        }
        let mut paused = none();
        let mut lags = Vec::new();
        for rank in &pausing {
            paused[*rank] = at.iter().copied().collect();
            lags.extend(self.shorter(job, *rank, |now| if at.contains(&now) { usual[*rank] } else { f64::MAX }));
        }
        let first = &self.idle[pausing[0]];
        let long: Vec<f64> = at.iter().map(|at| first[*at]).collect();
        let suspect = Suspect {
            what: What::Pauses,
            every,
            amounts: [median(&long), usual[pausing[0]]],
            step: job.steps.start + largest(first),
            lags,
            ranks: pausing,
            ..Suspect::default()
        };
        (vec![suspect], paused)
    }
}

/// The index of the largest value.
fn largest(values: &[f64]) -> usize {
    (0..values.len()).max_by(|one, other| values[*one].total_cmp(&values[*other])).unwrap_or(0)
}

/// The distance of these numbers, if they are equally far apart. One may be missing.
fn period(at: &[usize]) -> Option<usize> {
    let gaps: Vec<usize> = at.windows(2).map(|two| two[1] - two[0]).collect();
    let least = *gaps.iter().min()?;
    (least > 1 && gaps.iter().all(|gap| gap % least == 0 && gap / least <= 2)).then_some(least)
}

/// Links that take longer than the others of the same operations, or now and then longer than they
/// usually do.
fn links(job: &Job) -> Vec<Suspect> {
    let mut slow: BTreeMap<usize, Suspect> = BTreeMap::new();
    let mut stalled: BTreeMap<usize, Suspect> = BTreeMap::new();
    for (kind, of_links) in uses(job) {
        let name = &job.kinds[kind as usize].name;
        let turns = of_links.values().map(Vec::len).max().unwrap_or(0);
        // What the link in the middle does with each operation, and with all of them.
        let at = |turn: usize, of: fn(&Use) -> f64| {
            median(&of_links.values().filter_map(|uses| uses.get(turn).map(of)).collect::<Vec<_>>())
        };
        let middles: Vec<[f64; 2]> = (0..turns).map(|turn| [at(turn, |it| it.each), at(turn, |it| it.busy)]).collect();
        let middle = median(&middles.iter().map(|it| it[0]).collect::<Vec<_>>());
        for (link, uses) in &of_links {
            let each = median(&uses.iter().map(|it| it.each).collect::<Vec<_>>());
            // A link that has nothing to do for half of the time is not what the ranks wait for.
            let delays = |it: &Use| 2.0 * it.busy >= job.graph.length(it.item) as f64;
            let is_longer =
                uses.iter().zip(&middles).filter(|(it, middle)| it.each >= SLOW * middle[0] && delays(it)).count();
            if of_links.len() > 1 && each >= SLOW * middle && is_longer as f64 >= HABIT * uses.len() as f64 {
                let slow = slow.entry(*link).or_insert_with(|| suspected(job, What::Link, *link, [each, middle]));
                slow.names.push(name.clone());
                let usual = median(&uses.iter().map(|it| it.busy).collect::<Vec<_>>());
                for (it, [_, others]) in uses.iter().zip(&middles) {
                    // The other links and the GPUs need their time, too. Stalls are another cause.
                    let busy = it.busy.min(2.0 * usual);
                    let least = others + taking(job, it.item);
                    let saved = (busy * (1.0 - middle / each)).min(job.graph.length(it.item) as f64 - least);
                    shorten(job, it.item, saved.max(0.0), &mut slow.lengths);
                }
            }
            let usual = median(&uses.iter().map(|it| it.busy).collect::<Vec<_>>());
            for it in uses.iter().filter(|it| it.busy > 3.0 * usual && it.busy > usual + 1e6) {
                let stall = stalled.entry(*link).or_insert_with(|| suspected(job, What::Stall, *link, [0.0, usual]));
                if it.busy > stall.amounts[0] {
                    stall.amounts = [it.busy, usual];
                    stall.step = job.step_of(it.item).unwrap_or(job.steps.start);
                    stall.names = vec![name.clone()];
                }
                stall.times += 1;
                stall.sum += it.busy - usual;
                shorten(job, it.item, it.busy - usual, &mut stall.lengths);
            }
        }
    }
    let mut suspects = together(slow.into_values().collect());
    suspects.extend(standing_out(stalled.into_values().collect(), job.links.len()));
    suspects
}

/// For how long the GPUs of an operation's ranks were taking what they had received, in the middle, ns.
fn taking(job: &Job, item: usize) -> f64 {
    let all: BTreeSet<usize> = job.graph.partners(item).collect();
    median(&all.iter().filter_map(|item| job.taking.get(item).copied()).collect::<Vec<_>>())
}

/// On a busy machine every link stands still at times: those at fault stand out. There may be
/// several: what crosses one cable stands still together.
fn standing_out(mut stalled: Vec<Suspect>, links: usize) -> Option<Suspect> {
    stalled.sort_by(|one, other| other.sum.total_cmp(&one.sum));
    let sum = |at: usize| stalled.get(at).map_or(0.0, |it| it.sum);
    let count = (1..=stalled.len()).find(|count| sum(count - 1) >= STANDS_OUT * sum(*count))?;
    let is_few = count == 1 || 2 * count <= links;
    let mut all = stalled.into_iter().take(count);
    let mut first = all.next().filter(|_| is_few)?;
    for other in all {
        first.times += other.times;
        first.ranks.extend(other.ranks);
        first.links.extend(other.links);
        first.lengths.extend(other.lengths);
    }
    (first.times > 1).then_some(first)
}

/// How links were used in the steps that are looked at, by kind of operation and link, in order.
fn uses(job: &Job) -> BTreeMap<u32, BTreeMap<usize, Vec<Use>>> {
    let inside: Vec<Range<usize>> = (0..job.ranks.len()).map(|rank| job.looked_at(rank)).collect();
    let mut by_kind: BTreeMap<u32, BTreeMap<usize, Vec<Use>>> = BTreeMap::new();
    for it in job.uses.iter().filter(|it| inside[job.links[it.link].from].contains(&it.item)) {
        by_kind.entry(job.graph.items[it.item].kind).or_default().entry(it.link).or_default().push(*it);
    }
    by_kind.values_mut().flat_map(BTreeMap::values_mut).for_each(|uses| uses.sort_by_key(|it| it.item));
    by_kind
}

fn suspected(job: &Job, what: What, link: usize, amounts: [f64; 2]) -> Suspect {
    Suspect {
        what,
        ranks: vec![job.links[link].from],
        links: vec![link],
        amounts,
        step: job.steps.start,
        ..Suspect::default()
    }
}

/// Links that are about as slow as the slowest one are one suspect: those of several ranks may lead
/// through one cable, and nothing is won while one of them is left.
fn together(mut slow: Vec<Suspect>) -> Vec<Suspect> {
    slow.sort_by(|one, other| other.amounts[0].total_cmp(&one.amounts[0]));
    let mut all: Vec<Suspect> = Vec::new();
    for suspect in slow {
        match all.iter_mut().find(|it| suspect.amounts[0] >= ALIKE * it.amounts[0]) {
            Some(alike) => {
                alike.ranks.extend(suspect.ranks);
                alike.links.extend(suspect.links);
                alike.lengths.extend(suspect.lengths);
            }
            None => all.push(suspect),
        }
    }
    all
}

/// The transfer of an operation takes so much less, on all its ranks.
fn shorten(job: &Job, item: usize, by: f64, lengths: &mut Vec<(usize, i64)>) {
    let partners: BTreeSet<usize> = job.graph.partners(item).collect();
    lengths.extend(partners.into_iter().map(|it| (it, (job.graph.length(it) - by as i64).max(0))));
}
