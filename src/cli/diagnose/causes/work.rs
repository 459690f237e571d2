//! What ranks do themselves: kernels that take longer than those of other ranks, GPUs that are idle
//! (pure).

use std::collections::{BTreeMap, BTreeSet};

use super::super::job::Job;
use super::{ALIKE, HABIT, LONG, ONCE_NS, Suspect, What, largest, measure, median, quarter};
use crate::cli::compare::ranks::Class;

/// Work is unequal if the longest in a step exceeds the average by at least this fraction. Where it
/// is nearly always that of one rank, it may be its part of the model, such as a stage of a
/// pipeline, and those are never quite equal.
const UNEQUAL: f64 = 0.11;
const UNEQUAL_PART: f64 = 0.25;
/// The fraction of the steps in which one rank must have most of the work for that.
const OFTEN: f64 = 0.7;
/// A rank's kernels are slower, rather than more, if that explains this part of what it has beyond
/// the average.
const MOSTLY: f64 = 0.5;
/// A job is host-bound if its GPUs are idle for at least this fraction of a step.
const IDLE: f64 = 0.15;
/// Something is steady if its lower quartile over the steps is at least this fraction of the
/// median.
const STEADY: f64 = 0.6;
/// The fraction of a step from which a difference counts in that step.
const COUNTS: f64 = 0.01;
/// So many steps in a row, and this fraction of all, are a stretch of its own.
const STRETCH: usize = 10;
const STRETCHES: f64 = 0.25;

/// A step holds more work than usual if each rank runs this many times as many kernels in it as in
/// others, and they take this part of what the step takes beyond the median.
const FULLER: f64 = 1.2;
const THEIRS: f64 = 0.5;

/// What ranks do themselves, by step.
pub(super) struct Sums {
    /// The application's items in these steps.
    own: Vec<Own>,
    /// By rank and step: work, ns, how many items it is, and the work beyond that of the median
    /// rank, ns.
    work: Vec<Vec<f64>>,
    counts: Vec<Vec<f64>>,
    excess: Vec<Vec<f64>>,
    /// By rank and step: how long nothing ran, ns; and how often.
    idle: Vec<Vec<f64>>,
    gaps: Vec<Vec<usize>>,
    /// What a step takes, ns.
    step: f64,
}

/// A kernel or a copy of the application.
#[derive(Clone, Copy)]
struct Own {
    /// Counted from the first step that is looked at.
    step: usize,
    kind: u32,
    rank: usize,
    item: usize,
    length: i64,
    /// More than half of the ranks have as many of its kind in the step, up to this one.
    is_common: bool,
    /// Its length if all of its kind took as long in the step as on the median rank, and as on
    /// average. The median is 0 for what the rank has beyond the others.
    middle: i64,
    mean: i64,
}

impl Sums {
    pub(super) fn of(job: &Job) -> Sums {
        let ranks = job.ranks.len();
        let steps = job.steps.len();
        let mut sums = Sums {
            own: Vec::new(),
            work: vec![vec![0.0; steps]; ranks],
            counts: vec![vec![0.0; steps]; ranks],
            excess: vec![vec![0.0; steps]; ranks],
            idle: vec![vec![0.0; steps]; ranks],
            gaps: vec![vec![0; steps]; ranks],
            step: measure(job, &job.graph.recorded()).mean,
        };
        for rank in 0..ranks {
            for (at, step) in job.steps.clone().enumerate() {
                for item in job.step(rank, step) {
                    let it = &job.graph.items[item];
                    sums.idle[rank][at] += job.graph.idle(item) as f64;
                    sums.gaps[rank][at] += usize::from(job.graph.idle(item) > 0);
                    // What nobody knows is nobody's own work.
                    if it.is_communication || !job.is_recorded(it.kind) {
                        continue;
                    }
                    let (kind, length) = (it.kind, it.end - it.start);
                    sums.work[rank][at] += length as f64;
                    sums.counts[rank][at] += 1.0;
                    let (middle, mean, is_common) = (length, length, false);
                    sums.own.push(Own { step: at, kind, rank, item, length, is_common, middle, mean });
                }
            }
        }
        sums.compare(ranks);
        sums
    }

    /// Compares what each kind takes in a step with what it takes on the other ranks. Single
    /// kernels would not do: the longer of two is longer by chance, and all these chances add up.
    fn compare(&mut self, ranks: usize) {
        self.own.sort_unstable_by_key(|it| (it.step, it.kind, it.rank, it.item));
        let is_same = |one: &Own, other: &Own| (one.step, one.kind) == (other.step, other.kind);
        let is_of_rank = |one: &Own, other: &Own| one.rank == other.rank;
        // If a few ranks run something that the others do not, and little else, it is their part of
        // the model; otherwise it is extra work.
        let mut common = vec![[0; 2]; ranks];
        for same in self.own.chunk_by_mut(is_same) {
            let mut counts: Vec<usize> = same.chunk_by(is_of_rank).map(<[Own]>::len).collect();
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            // So many of them more than half of the ranks have.
            let usual = counts.get(ranks / 2).copied().unwrap_or(0);
            for it in same.chunk_by_mut(is_of_rank).flat_map(|of_rank| of_rank.iter_mut().take(usual)) {
                it.is_common = true;
            }
            same.iter().for_each(|it| common[it.rank][usize::from(it.is_common)] += it.length);
        }
        for same in self.own.chunk_by_mut(is_same) {
            let of_common = |of_rank: &[Own]| {
                let all = of_rank.iter().filter(|it| it.is_common);
                all.fold((0_usize, 0_i64), |(count, sum), it| (count + 1, sum + it.length))
            };
            let all: Vec<(usize, i64)> = same.chunk_by(is_of_rank).map(of_common).collect();
            let usual = all.iter().map(|it| it.0).max().unwrap_or(0);
            let mut sums: Vec<i64> = all.iter().filter(|it| it.0 == usual).map(|it| it.1).collect();
            sums.sort_unstable();
            let (middle, mean) = (sums[(sums.len() - 1) / 2], sums.iter().sum::<i64>() / sums.len() as i64);
            for of_rank in same.chunk_by_mut(is_of_rank) {
                let (count, own) = of_common(of_rank);
                let as_in = |all: i64, length: i64| (length as f64 * all as f64 / own.max(1) as f64) as i64;
                for it in of_rank.iter_mut().filter(|it| it.is_common && count == usual) {
                    (it.middle, it.mean) = (as_in(middle, it.length), as_in(mean, it.length));
                }
                for it in of_rank.iter_mut().filter(|it| !it.is_common && common[it.rank][1] > common[it.rank][0]) {
                    it.middle = 0;
                }
            }
        }
        for it in &self.own {
            self.excess[it.rank][it.step] += (it.length - it.middle) as f64;
        }
    }

    /// Of these steps, with what each takes, ns, those that take longer because they hold more work
    /// on every rank, as where a run is evaluated in between.
    pub(super) fn fuller(&self, job: &Job, steps: &[(usize, f64)]) -> Vec<usize> {
        let usual = median(&steps.iter().map(|it| it.1).collect::<Vec<_>>());
        let is_fuller = |(step, ns): &&(usize, f64)| {
            let at = step - job.steps.start;
            let explains = |(work, counts): (&Vec<f64>, &Vec<f64>)| {
                counts[at] >= FULLER * median(counts).max(1.0) && work[at] - median(work) >= THEIRS * (ns - usual)
            };
            *ns > LONG * usual && self.work.iter().zip(&self.counts).all(explains)
        };
        steps.iter().filter(is_fuller).map(|it| it.0).collect()
    }

    /// Whether something holds in nearly every step.
    fn is_habit(&self, by_step: impl Iterator<Item = f64>) -> bool {
        let (mut count, mut all) = (0, 0);
        for excess in by_step {
            all += 1;
            count += usize::from(excess > COUNTS * self.step);
        }
        all > 0 && count as f64 >= HABIT * all as f64
    }

    /// Ranks that compute longer: because the same kernels take longer there, or because they have
    /// more of them.
    pub(super) fn work(&self, job: &Job) -> Vec<Suspect> {
        let (kernels, unequal) = (self.kernels(job), self.unequal(job));
        let Some(unequal) = unequal else { return kernels };
        // What ranks always have beyond the average, unless it is mostly that their kernels take
        // longer.
        let slower = |rank: &usize| self.excess[*rank].iter().sum::<f64>() / self.excess[*rank].len() as f64;
        let mean = unequal.ranks.iter().map(slower).sum::<f64>() / unequal.ranks.len() as f64;
        let is_more = unequal.every.is_some() && mean < MOSTLY * (unequal.amounts[0] - unequal.amounts[1]);
        if kernels.is_empty() || is_more { vec![unequal] } else { kernels }
    }

    /// Ranks whose own kernels always take longer than those of the others.
    fn kernels(&self, job: &Job) -> Vec<Suspect> {
        // A slow rank is slow by about the same each time. Otherwise its work differs.
        let is_steady = |excess: &[f64]| quarter(excess) >= STEADY * median(excess);
        let excesses = self.excess.iter().map(|excess| self.stretch(excess)).enumerate();
        self.habitual(excesses.filter(|(_, excess)| is_steady(excess)))
            .into_iter()
            .map(|ranks| self.of_ranks(job, ranks))
            .collect()
    }

    /// The steps that count: if something does not hold in nearly every step, the longest stretch
    /// in which it does, as of a GPU that has become hot.
    fn stretch<'a>(&self, excess: &'a [f64]) -> &'a [f64] {
        let holds = |excess: &f64| *excess > COUNTS * self.step;
        let stretches = excess.chunk_by(|one, other| holds(one) == holds(other)).filter(|it| holds(&it[0]));
        let longest = stretches.max_by_key(|it| it.len()).filter(|it| it.len() >= STRETCH);
        let longest = longest.filter(|it| it.len() as f64 >= STRETCHES * excess.len() as f64);
        if self.is_habit(excess.iter().copied()) { excess } else { longest.unwrap_or(excess) }
    }

    /// The ranks for which something holds in nearly every step: those that deviate about as much
    /// as the worst one, and the others.
    fn habitual<'a>(&self, excesses: impl Iterator<Item = (usize, &'a [f64])>) -> Vec<Vec<usize>> {
        let habits: Vec<(usize, f64)> = excesses
            .filter(|(_, excess)| self.is_habit(excess.iter().copied()))
            .map(|(rank, excess)| (rank, median(excess)))
            .collect();
        let worst = habits.iter().map(|it| it.1).fold(0.0, f64::max);
        let (alike, others): (Vec<_>, Vec<_>) = habits.into_iter().partition(|it| it.1 >= ALIKE * worst);
        let ranks = |of: Vec<(usize, f64)>| of.into_iter().map(|it| it.0).collect::<Vec<_>>();
        // Not all can be behind the others.
        let few = |ranks: &Vec<usize>| !ranks.is_empty() && ranks.len() < self.work.len();
        [alike, others].into_iter().map(ranks).filter(few).collect()
    }

    fn of_ranks(&self, job: &Job, ranks: Vec<usize>) -> Suspect {
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

    /// Whether in each step a rank has much more work than the others: in turn, or always the same.
    fn unequal(&self, job: &Job) -> Option<Suspect> {
        // The kernels of a rank that has none, but perhaps copies, were not recorded.
        let kernels = self.own.iter().filter(|it| job.kinds[it.kind as usize].class == Class::Kernel);
        let ranks: BTreeSet<usize> = kernels.map(|it| it.rank).collect();
        if ranks.len() < 2 {
            return None;
        }
        let steps = job.steps.len();
        let work = |rank: usize, step: usize| self.work[rank][step];
        let longest =
            |step: usize| ranks.iter().copied().max_by(|one, other| work(*one, step).total_cmp(&work(*other, step)));
        let mut times = vec![0; job.ranks.len()];
        let mut means = Vec::with_capacity(steps);
        let (mut most, mut worst, mut excesses) = (0.0, (0.0, 0), Vec::with_capacity(steps));
        for step in 0..steps {
            let rank = longest(step)?;
            times[rank] += 1;
            let mean = ranks.iter().map(|rank| work(*rank, step)).sum::<f64>() / ranks.len() as f64;
            means.push(mean);
            most += work(rank, step);
            let excess = work(rank, step) - mean;
            excesses.push(excess);
            if excess > worst.0 {
                worst = (excess, step);
            }
        }
        let middle: f64 = means.iter().sum();
        let is_often = |count: usize| count as f64 >= OFTEN * steps as f64;
        let one = ranks.iter().copied().filter(|rank| is_often(times[*rank]));
        let mut always: Vec<usize> = one.collect();
        if always.is_empty() {
            // The ranks of one stage do the same, and take turns by chance.
            let is_large = |rank: usize, step: usize| work(rank, step) >= (1.0 + UNEQUAL) * means[step];
            let has_more = |rank: &usize| is_often((0..steps).filter(|step| is_large(*rank, *step)).count());
            always = ranks.iter().copied().filter(has_more).collect();
            if 2 * always.len() > ranks.len() || !is_often(always.iter().map(|rank| times[*rank]).sum()) {
                always.clear();
            }
        }
        let least = if always.is_empty() { UNEQUAL } else { UNEQUAL_PART };
        let mut kinds: BTreeMap<u32, f64> = BTreeMap::new();
        for it in &self.own {
            // What only the rank with most of the work has is a part of the difference, too.
            let off = if always.contains(&it.rank) && !it.is_common { it.length } else { it.length - it.mean };
            *kinds.entry(it.kind).or_default() += off.abs() as f64;
        }
        let mut kinds: Vec<(u32, f64)> = kinds.into_iter().collect();
        kinds.sort_by(|one, other| other.1.total_cmp(&one.1));
        // The same work, equally shared.
        let shared = |it: &Own| {
            let own = work(it.rank, it.step);
            (it.item, if own > 0.0 { (it.length as f64 * means[it.step] / own) as i64 } else { it.length })
        };
        // Where many ranks always have the most, which of them has more is chance.
        let fixed = ranks.iter().map(|rank| median(&self.work[*rank])).fold(0.0, f64::max) * steps as f64;
        let changes = !always.is_empty() || most - fixed >= least * middle;
        // A few long steps are not unequal work: a rank may evaluate something now and then.
        let is_unequal = changes && most >= (1.0 + least) * middle && self.is_habit(excesses.into_iter());
        is_unequal.then(|| Suspect {
            what: What::UnequalWork,
            every: (!always.is_empty()).then_some(1),
            ranks: match always.is_empty() {
                false => always,
                true => ranks.into_iter().filter(|rank| times[*rank] > 0).collect(),
            },
            names: kinds.iter().take(1).map(|it| job.kinds[it.0 as usize].name.clone()).collect(),
            amounts: [most / steps as f64, middle / steps as f64],
            step: job.steps.start + worst.1,
            lengths: self.own.iter().map(shared).collect(),
            ..Suspect::default()
        })
    }

    /// Idle GPUs: on some ranks, now and then, or everywhere.
    pub(super) fn hosts(&self, job: &Job, step: f64) -> Vec<Suspect> {
        let (ranks, steps) = (job.ranks.len(), job.steps.len());
        let (pauses, paused) = self.pauses(job, step);
        // Idle time without the pauses, and the median rank.
        let idle = |rank: usize, at: usize| {
            if paused[rank].contains(&at) { median(&self.idle[rank]) } else { self.idle[rank][at] }
        };
        let over_ranks = |of: &dyn Fn(usize) -> f64| median(&(0..ranks).map(of).collect::<Vec<_>>());
        let middle: Vec<f64> = (0..steps).map(|at| over_ranks(&|rank| idle(rank, at))).collect();
        // Where nothing ran once, the median rank's usual length of that. A rank that launches more
        // than the others, such as a stage in the middle of a pipeline, may be idle more often, but
        // not for longer.
        let gaps = |rank: usize, at: usize| self.gaps[rank][at] as f64;
        let once: Vec<f64> =
            (0..steps).map(|at| over_ranks(&|rank| idle(rank, at) / gaps(rank, at).max(1.0))).collect();
        let usual = |rank: usize, at: usize| middle[at].max(once[at] * gaps(rank, at));
        let mut suspects = if pauses.is_empty() { Vec::from_iter(self.pause(job)) } else { pauses };
        let excesses: Vec<Vec<f64>> =
            (0..ranks).map(|rank| (0..steps).map(|at| idle(rank, at) - usual(rank, at)).collect()).collect();
        for of in self.habitual(excesses.iter().map(|excess| self.stretch(excess)).enumerate()) {
            let lags = of.iter().flat_map(|rank| self.shorter(job, *rank, |at| usual(*rank, at)));
            let mean = |all: f64| all / steps as f64;
            suspects.push(Suspect {
                what: What::Host,
                amounts: [mean((0..steps).map(|at| idle(of[0], at)).sum()), mean(middle.iter().sum())],
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

    /// The lags of a rank's items if it were idle for only this long in each step.
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

    /// A single pause.
    fn pause(&self, job: &Job) -> Option<Suspect> {
        let longest = |rank: &usize| self.idle[*rank][largest(&self.idle[*rank])];
        let first = (0..job.ranks.len()).max_by(|one, other| longest(one).total_cmp(&longest(other)))?;
        let (own, usual) = (longest(&first), median(&self.idle[first]));
        if own - usual < ONCE_NS {
            return None;
        }
        let at = largest(&self.idle[first]);
        // On other ranks, the step after it may be the one that holds the pause.
        let near = |now: usize| now.abs_diff(at) < 2;
        let pauses =
            |rank: &usize| self.idle[*rank].iter().enumerate().any(|(now, idle)| near(now) && *idle >= ALIKE * own);
        let ranks: Vec<usize> = (0..job.ranks.len()).filter(pauses).collect();
        let lags = ranks.iter().flat_map(|rank| {
            self.shorter(job, *rank, |now| if near(now) { median(&self.idle[*rank]) } else { f64::MAX })
        });
        Some(Suspect {
            what: What::Pauses,
            is_once: true,
            amounts: [own, usual],
            step: job.steps.start + at,
            lags: lags.collect(),
            ranks,
            ..Suspect::default()
        })
    }

    /// Steps in which GPUs were idle for much longer than usual, by rank.
    fn pauses(&self, job: &Job, step: f64) -> (Vec<Suspect>, Vec<BTreeSet<usize>>) {
        let (ranks, steps) = (job.ranks.len(), job.steps.len());
        let mut by_step: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let usual: Vec<f64> = self.idle.iter().map(|idle| median(idle)).collect();
        let of_ranks = || self.idle.iter().zip(&usual);
        // Those that are much shorter than the longest one of all have another reason.
        let like_longest = ALIKE * of_ranks().map(|(idle, usual)| idle[largest(idle)] - usual).fold(0.0, f64::max);
        for (rank, (idle, usual)) in of_ranks().enumerate() {
            let off: Vec<f64> = idle.iter().map(|it| (it - usual).abs()).collect();
            let limit = usual + (0.2 * step).max(6.0 * median(&off)).max(like_longest);
            for at in (0..steps).filter(|at| idle[*at] > limit) {
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
        // A few irregular pauses of one host say little about the job.
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

/// The period of these numbers, if they are evenly spaced. One may be missing.
fn period(at: &[usize]) -> Option<usize> {
    let gaps: Vec<usize> = at.windows(2).map(|two| two[1] - two[0]).collect();
    let least = *gaps.iter().min()?;
    (least > 1 && gaps.iter().all(|gap| gap % least == 0 && gap / least <= 2)).then_some(least)
}
