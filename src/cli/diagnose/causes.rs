//! What makes the steps of a job longer than necessary, and by how much (pure).
//!
//! Each suspect is something that differs between ranks, links or steps, with the change to the job
//! that would remove it. Its cost is what a replay of the job with that change saves. A suspect
//! that saves nothing delayed nobody, and is no cause.

mod groups;
mod links;
mod stood;
mod taking;
mod work;

use std::collections::BTreeMap;
use std::ops::Range;

use self::groups::slow_groups;
use self::links::links;
use self::stood::stood_still;
use self::taking::late_takers;
use self::work::Sums;
use super::graph::{Graph, Plan, Times};
use super::job::Job;

/// The least fraction of a step that a cause costs.
const LEAST: f64 = 0.03;
/// The fraction of the steps in which something must hold to count as a habit.
const HABIT: f64 = 0.75;
/// Ranks that deviate by at least this fraction of the worst rank's deviation are named with it.
const ALIKE: f64 = 0.5;
/// A cause costs at least this fraction of the normal spread of steps, and of a replay's error:
/// less could be the machine's own noise.
const NOISE: f64 = 0.25;
/// What happened once is a cause if it took as long, ns: on a busy machine many things take long,
/// but less.
const ONCE_NS: f64 = 1e9;
/// A step that takes this many times the median is long.
const LONG: f64 = 1.5;
/// The fraction of what makes a step long that is most of it.
const MOST: f64 = 0.5;
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
    /// GPUs of some ranks are idle for longer than those of the others.
    Host,
    /// A link takes longer than the others.
    Link,
    /// A link takes much longer than it usually does, now and then.
    Stall,
    /// Links seem to do either because progress threads of some ranks wait for a processor.
    Processor,
    /// GPUs of some ranks take what has arrived for them later than others do.
    GpuWait,
    /// Collectives of some ranks take longer than the same ones of others, once all have come.
    Group,
    /// GPUs of some ranks did nothing for seconds, once, with work to do.
    StoodStill,
    /// Now and then GPUs are idle for a long time.
    Pauses,
    /// All GPUs are idle for a good part of each step.
    HostBound,
    /// One rank has more work than the others: in each step a different one, or always the same.
    UnequalWork,
}

impl What {
    /// Whether the cause is idle time of GPUs.
    pub(super) fn is_idleness(self) -> bool {
        matches!(self, What::Host | What::Pauses | What::HostBound)
    }
}

/// Something that may be a cause, and the change that removes it.
#[derive(Clone, Debug, Default)]
struct Suspect {
    what: What,
    ranks: Vec<usize>,
    links: Vec<usize>,
    channel: Option<u32>,
    names: Vec<String>,
    every: Option<usize>,
    /// What it amounts to in a step on its ranks or its link, and what it does on the others, ns.
    amounts: [f64; 2],
    /// The step in which it is largest.
    step: usize,
    /// For stalls: how many there are.
    times: usize,
    /// For stalls: what they add up to, ns.
    sum: f64,
    /// For links: how much of that comes of progress threads without a processor, by rank, ns.
    waited: BTreeMap<usize, f64>,
    /// These are of one moment.
    is_once: bool,
    /// The steps with stalls, and how long each is, ns.
    in_steps: Vec<(usize, f64)>,
    lengths: Vec<(usize, i64)>,
    /// How much shorter the items of operations are that ranks share, by the operation, ns: becomes
    /// `lengths`.
    meetings: BTreeMap<usize, i64>,
    throughs: Vec<(usize, i64)>,
    lags: Vec<(usize, i64)>,
}

/// A cause.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) what: What,
    pub(super) ranks: Vec<usize>,
    /// The slowest first.
    pub(super) links: Vec<usize>,
    /// The channel of these links that is slow, if the others are not.
    pub(super) channel: Option<u32>,
    /// Kernels or operations, the most important first.
    pub(super) names: Vec<String>,
    /// Its period in steps, if it recurs regularly.
    pub(super) every: Option<usize>,
    /// It happened once.
    pub(super) is_once: bool,
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
    /// The median distance of a step from the median.
    pub(super) spread: f64,
    /// The longest step, and its number.
    pub(super) longest: (f64, usize),
    /// How many are long.
    pub(super) long: usize,
}

/// What is found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The largest cost comes first.
    pub(super) causes: Vec<Cause>,
    /// Those that cost less than the normal spread of steps.
    pub(super) doubtful: Vec<Cause>,
    pub(super) steps: Measure,
    /// The same without those that are long because all ranks have more work in them; and these.
    pub(super) usual: Measure,
    pub(super) fuller: Vec<usize>,
    /// How far a replay without changes is off, ns per step.
    pub(super) error: f64,
    /// What steps waited for; the largest part comes first.
    pub(super) path: Vec<Part>,
    /// What the longest of the usual steps waited for longer than others do, if one thing is most
    /// of it; with the rank, if it is not so on most of them.
    pub(super) of_longest: Option<Part>,
    /// If transfers took no time; if nobody waited for communication at all.
    pub(super) without_transfers: Measure,
    pub(super) overlapped: Measure,
}

/// A part of the critical path.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The kind of what ran; `None` if nothing did.
    pub(super) kind: Option<u32>,
    /// Per step, ns.
    pub(super) ns: f64,
    /// The rank that has most of it, and how much of it. A transfer has none.
    pub(super) rank: Option<(usize, f64)>,
}

/// Finds what costs.
pub(super) fn find(job: &Job) -> Findings {
    let plan = job.graph.plan();
    let times = job.graph.recorded();
    let recorded = measure(job, &times);
    let replayed = job.graph.replay(&plan);
    let before = measure(job, &replayed);
    let sums = Sums::of(job);
    let mut steps = durations(job, &times);
    let fuller = sums.fuller(job, &steps);
    steps.retain(|it| !fuller.contains(&it.0));
    let mut suspects = Vec::new();
    if job.steps.len() >= ENOUGH && job.has_kernels() && job.gaps.is_none() {
        if job.has_own_work() {
            suspects.extend(sums.work(job));
            if !job.shares_gpus {
                suspects.extend(sums.hosts(job, recorded.median));
            }
        }
        let links = links(job);
        let stood = if links.iter().any(|it| it.is_once) { None } else { stood_still(job, recorded.median) };
        let late = late_takers(job, &links);
        let of_transfers: Vec<Suspect> = links.into_iter().chain(late).collect();
        let groups = if job.shares_gpus { Vec::new() } else { slow_groups(job, &of_transfers) };
        suspects.extend(of_transfers.into_iter().chain(groups).chain(stood));
    }
    suspects.truncate(SUSPECTS);
    let [causes, doubtful] = judge(job, &plan, &times, &before, suspects);
    let mut no_transfers = plan.clone();
    let mut alone = Plan { is_alone: true, ..plan };
    for (at, _) in job.graph.items.iter().enumerate().filter(|(_, item)| item.is_communication) {
        (no_transfers.length[at], no_transfers.through[at], alone.length[at]) = (0, 0, 0);
    }
    let usual = Measure::of(&steps);
    let first = begins(job, &replayed, job.steps.start).max();
    let path = path(job, &replayed, first.unwrap_or(0), job.steps.start..job.steps.end.saturating_sub(1));
    Findings {
        causes,
        doubtful,
        steps: recorded,
        usual,
        fuller,
        error: (before.median - recorded.median).abs(),
        of_longest: of_longest(job, &replayed, &usual, &path),
        path,
        without_transfers: measure(job, &job.graph.replay(&no_transfers)),
        overlapped: measure(job, &job.graph.replay(&alone)),
    }
}

/// What the longest step waited for, if that is most of what makes it longer than the others, whose
/// path this is.
fn of_longest(job: &Job, times: &Times, steps: &Measure, path: &[Part]) -> Option<Part> {
    let (longest, step) = steps.longest;
    let usually = |part: &Part| path.iter().find(|it| it.kind == part.kind).map_or(0.0, |it| it.ns);
    let longer = |part: &Part| part.ns - usually(part);
    if !job.steps.contains(&step) {
        return None;
    }
    // Where one rank is late, others have begun the step before.
    let parts = self::path(job, times, begins(job, times, step).min()?, step..step + 1);
    let most = parts.into_iter().max_by(|one, other| longer(one).total_cmp(&longer(other)))?;
    let of_rank = |rank: usize| -> i64 {
        let items = job.step(rank, step);
        let until = job.graph.rank(rank).end;
        match most.kind {
            Some(kind) => items.filter(|at| job.graph.items[*at].kind == kind).map(|at| job.graph.length(at)).sum(),
            None => (items.start + 1..until.min(items.end + 1)).map(|at| job.graph.idle(at)).sum(),
        }
    };
    let alike = (0..job.ranks.len()).filter(|rank| of_rank(*rank) as f64 >= ALIKE * most.ns).count();
    let is_of_many = 2 * alike > job.ranks.len();
    let of = |part: Part| Part { rank: part.rank.filter(|_| !is_of_many), ..part };
    (longer(&most) >= MOST * (longest - steps.median)).then(|| of(most))
}

/// When the ranks begin a step, ns.
fn begins(job: &Job, times: &Times, step: usize) -> impl Iterator<Item = i64> {
    firsts(job, step).map(|item| times.start[item])
}

/// The first items of a step on all ranks that begin it.
fn firsts(job: &Job, step: usize) -> impl Iterator<Item = usize> {
    (0..job.ranks.len()).filter_map(move |rank| {
        let items = job.graph.rank(rank);
        Some(items.start + job.ranks[rank].edges.get(step)?).filter(|item| *item < items.end)
    })
}

/// The critical path of these steps from this time, in ns, to the begin of the next one.
fn path(job: &Job, times: &Times, since: i64, steps: Range<usize>) -> Vec<Part> {
    let count = steps.len();
    let last = firsts(job, steps.end).max_by_key(|item| times.start[*item]);
    let Some(last) = last.filter(|_| count > 0) else { return Vec::new() };
    let stretches = job.graph.path(times, last as u32, since);
    let mut parts: BTreeMap<Option<u32>, BTreeMap<Option<usize>, i64>> = BTreeMap::new();
    for stretch in stretches {
        let item = &job.graph.items[stretch.item as usize];
        let is_transfer = item.is_communication && !stretch.is_idle;
        let rank = (!is_transfer).then(|| job.graph.rank_of(stretch.item));
        let kind = (!stretch.is_idle).then_some(item.kind);
        *parts.entry(kind).or_default().entry(rank).or_default() += stretch.ns;
    }
    let part = |(kind, ranks): (Option<u32>, BTreeMap<Option<usize>, i64>)| {
        let sum = ranks.values().sum::<i64>() as f64;
        let most = ranks.into_iter().max_by_key(|it| it.1);
        let rank = most.and_then(|(rank, ns)| Some((rank?, ns as f64 / sum)));
        Part { kind, ns: sum / count as f64, rank }
    };
    let mut parts: Vec<Part> = parts.into_iter().map(part).collect();
    parts.sort_by(|one, other| other.ns.total_cmp(&one.ns));
    parts
}

/// For each step, its number and its duration on the median rank, ns.
fn durations(job: &Job, times: &Times) -> Vec<(usize, f64)> {
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
    job.steps.clone().filter_map(|step| Some((step, of_step(step)?))).collect()
}

fn measure(job: &Job, times: &Times) -> Measure {
    Measure::of(&durations(job, times))
}

impl Measure {
    fn of(steps: &[(usize, f64)]) -> Measure {
        let ns: Vec<f64> = steps.iter().map(|it| it.1).collect();
        let Some(longest) = steps.get(largest(&ns)) else { return Measure::default() };
        let middle = median(&ns);
        let off: Vec<f64> = ns.iter().map(|step| (step - middle).abs()).collect();
        Measure {
            mean: ns.iter().sum::<f64>() / ns.len() as f64,
            median: middle,
            spread: median(&off),
            longest: (longest.1, longest.0),
            long: ns.iter().filter(|step| **step > LONG * middle).count(),
        }
    }
}

/// The median; of an even number, the lower one. 0 if there is none.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The lower quartile.
fn quarter(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 4).copied().unwrap_or(0.0)
}

/// The cost of each suspect. Of two that hide each other, such as two slow ranks, neither saves
/// anything by itself, so each is tried alone, and as the only one left. The second list has those
/// that are within the normal spread of steps.
fn judge(job: &Job, plan: &Plan, times: &Times, before: &Measure, suspects: Vec<Suspect>) -> [Vec<Cause>; 2] {
    let recorded = &measure(job, times);
    let noise = NOISE * (recorded.spread + (before.median - recorded.median).abs());
    let least = LEAST * before.mean;
    let replay = |plan: &Plan| measure(job, &job.graph.replay(plan));
    let mut judged: Vec<(Suspect, f64, Measure)> = Vec::new();
    for mut suspect in suspects {
        // If several links delay an operation, what the slowest one alone would leave counts.
        suspect.lengths.sort_unstable();
        suspect.lengths.dedup_by_key(|it| it.0);
        let mut without = replay(&suspect.applied(&job.graph, plan.clone()));
        let mut saved = before.mean - without.mean;
        if !suspect.in_steps.is_empty() {
            // A rank that has sent goes on, and only the next ones stand still. A replay does not
            // see that, so the steps of the recording count.
            let as_usual = |(step, ns): (usize, f64)| {
                let stalls = suspect.in_steps.iter().filter(|it| it.0 == step).map(|it| it.1);
                (step, ns - stalls.fold(0.0, f64::max).min((ns - recorded.median).max(0.0)))
            };
            let steps: Vec<(usize, f64)> = durations(job, times).into_iter().map(as_usual).collect();
            let shown = Measure::of(&steps);
            if recorded.mean - shown.mean > saved {
                (saved, without) = (recorded.mean - shown.mean, shown);
            }
        }
        judged.push((suspect, saved, without));
    }
    let all = judged.iter().fold(plan.clone(), |plan, (suspect, ..)| suspect.applied(&job.graph, plan));
    let without_any = replay(&all);
    for at in 0..judged.len() {
        let others = judged.iter().enumerate().filter(|(other, _)| *other != at);
        let rest = others.fold(plan.clone(), |plan, (_, (suspect, ..))| suspect.applied(&job.graph, plan));
        let costs = replay(&rest).mean - without_any.mean;
        judged[at].1 = judged[at].1.max(costs);
    }
    let mut causes: Vec<Cause> = judged
        .into_iter()
        .filter(|(_, cost, _)| *cost >= least)
        .map(|(suspect, cost, without)| {
            let Suspect { what, ranks, links, channel, names, every, is_once, amounts, step, .. } = suspect;
            Cause { what, ranks, links, channel, names, every, is_once, amounts, step, cost, without }
        })
        .collect();
    causes.sort_by(|one, other| other.cost.total_cmp(&one.cost));
    let (causes, doubtful) = causes.into_iter().partition(|cause| cause.cost >= noise);
    [causes, doubtful]
}

impl Suspect {
    /// The plan without it.
    fn applied(&self, graph: &Graph, mut plan: Plan) -> Plan {
        for (item, length) in &self.lengths {
            let changed = plan.length[*item] + length - graph.length(*item);
            plan.length[*item] = changed.max(0);
        }
        for (item, through) in &self.throughs {
            plan.through[*item] = plan.through[*item].min(*through);
            // A send ends before its data is through.
            plan.length[*item] = plan.length[*item].min(*through);
        }
        for (item, lag) in &self.lags {
            plan.lag[*item] = plan.lag[*item].min(*lag);
        }
        plan
    }
}

/// The index of the largest value.
fn largest(values: &[f64]) -> usize {
    (0..values.len()).max_by(|one, other| values[*one].total_cmp(&values[*other])).unwrap_or(0)
}
