//! GPUs that stood still once, for seconds. CUPTI was flushed by force meanwhile, which shows what
//! had ended by then and what had not.

use std::cmp::Reverse;

use super::{ONCE_NS, Suspect, What};
use crate::cli::diagnose::job::Job;

/// What a rank ran between the communication that all had come to and its kernels without a record.
struct Before {
    rank: usize,
    /// The item that stands for these kernels; `None` if all of them have one.
    gap: Option<usize>,
    kinds: Vec<u32>,
}

/// The ranks whose GPUs held up the others the longest time that there are kernels without a
/// record; `step` is what a step usually takes, ns.
pub(super) fn stood_still(job: &Job, step: f64) -> Option<Suspect> {
    let gaps = (0..job.ranks.len()).flat_map(|rank| job.looked_at(rank)).filter(|item| is_gap(job, *item));
    let longest = gaps.max_by_key(|item| (length(job, *item), Reverse(*item)))?;
    let before = job.graph.rank(job.graph.rank_of(longest as u32)).start..longest;
    let last = before.rev().find(|item| job.graph.items[*item].is_communication)?;
    let meeting = job.graph.meetings_of(last).next()?;
    let all: Vec<Before> = job.graph.members_of(meeting).map(|item| Before::after(job, item)).collect();
    let (at_fault, name) = behind(&all).or_else(|| took_nothing(job, &all).map(|ranks| (ranks, None)))?;
    let gap_of = |rank: usize| all.iter().find(|it| it.rank == rank).and_then(|it| it.gap);
    let first = gap_of(at_fault[0])?;
    let shorter = |item: usize| (item, step as i64 * job.graph.length(item) / length(job, longest).max(1));
    Some(Suspect {
        what: What::StoodStill,
        amounts: [length(job, first) as f64, 0.0],
        names: name.map(|kind| job.kinds[kind as usize].name.clone()).into_iter().collect(),
        step: job.step_of(first).unwrap_or(job.steps.start),
        is_once: true,
        lengths: all.iter().filter_map(|it| it.gap).map(shorter).collect(),
        ranks: at_fault,
        ..Suspect::default()
    })
}

impl Before {
    fn after(job: &Job, communication: usize) -> Before {
        let rank = job.graph.rank_of(communication as u32);
        let rest = communication + 1..job.graph.rank(rank).end;
        let mut kinds = Vec::new();
        for item in rest {
            if is_gap(job, item) {
                return Before { rank, gap: Some(item), kinds };
            }
            if job.graph.items[item].is_communication {
                break;
            }
            kinds.push(job.graph.items[item].kind);
        }
        Before { rank, gap: None, kinds }
    }
}

/// The few ranks whose GPUs had not ended a kernel that those of all others had, and that kernel.
fn behind(all: &[Before]) -> Option<(Vec<usize>, Option<u32>)> {
    let most = all.iter().map(|it| &it.kinds).max_by_key(|kinds| kinds.len())?;
    let are_alike = all.iter().all(|it| most.starts_with(&it.kinds));
    let behind: Vec<&Before> = all.iter().filter(|it| it.kinds.len() < most.len()).collect();
    let first = behind.iter().map(|it| it.kinds.len()).min()?;
    let is_so = are_alike && 2 * behind.len() <= all.len() && behind.iter().all(|it| it.gap.is_some());
    is_so.then(|| (behind.iter().map(|it| it.rank).collect(), Some(most[first])))
}

/// The few ranks whose GPUs took nothing of what had arrived for most of the time. Perhaps a GPU
/// that gets data from them took nothing.
fn took_nothing(job: &Job, all: &[Before]) -> Option<Vec<usize>> {
    let is_held = |gap: usize, from: usize| {
        job.untaken.get(&(gap, from)).is_some_and(|untaken| 2.0 * untaken > length(job, gap) as f64)
    };
    let holds = |it: &&Before| it.gap.is_some_and(|gap| (0..job.ranks.len()).any(|from| is_held(gap, from)));
    let ranks: Vec<usize> = all.iter().filter(holds).map(|it| it.rank).collect();
    (!ranks.is_empty() && 2 * ranks.len() <= all.len()).then_some(ranks)
}

fn is_gap(job: &Job, item: usize) -> bool {
    !job.is_recorded(job.graph.items[item].kind) && length(job, item) as f64 >= ONCE_NS
}

fn length(job: &Job, item: usize) -> i64 {
    job.graph.items[item].end - job.graph.items[item].start
}
