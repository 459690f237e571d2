//! GPUs that take what has arrived for them later than others do (pure).

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::super::job::{Job, Taken};
use super::links::{lacking, shorten, shorten_meetings, together};
use super::{HABIT, Suspect, What, median, quarter};

/// A GPU takes so many times longer than others.
const LATER: f64 = 3.0;
/// While its rank's progress thread has no less processor time than others, by this part of it: a
/// thread that waits sees late that something was taken.
const PART: f64 = 0.5;

/// What a GPU took in an operation.
#[derive(Clone, Copy)]
struct Take {
    item: usize,
    /// Each transfer, ns.
    each: f64,
    /// All of them, once all ranks had come, ns.
    busy: f64,
    /// For how long the network had any of what its rank sent in the operation, ns.
    sending: f64,
    /// For how long its peers had no room for more, ns.
    held: f64,
}

/// Ranks whose GPUs, or those that get data from there, take what has arrived late. Where links
/// are slow or stall, GPUs that pass data on to them must wait.
pub(super) fn late_takers(job: &Job, links: &[Suspect]) -> Vec<Suspect> {
    let mut late: BTreeMap<usize, Suspect> = BTreeMap::new();
    for (kind, of_ranks) in takes(job) {
        let name = &job.kinds[kind as usize].name;
        if of_ranks.len() > 1 && job.is_recorded(kind) && !links.iter().any(|it| it.names.contains(name)) {
            late_ones(job, name, &of_ranks, &mut late);
        }
    }
    let mut suspects = together(late.into_values().collect());
    suspects.iter_mut().for_each(|suspect| shorten_meetings(job, suspect));
    suspects
}

fn late_ones(job: &Job, name: &str, of_ranks: &BTreeMap<usize, Vec<Take>>, late: &mut BTreeMap<usize, Suspect>) {
    let turns = of_ranks.values().map(Vec::len).max().unwrap_or(0);
    let at = |turn: usize, of: fn(&Take) -> f64| {
        median(&of_ranks.values().filter_map(|takes| takes.get(turn).map(of)).collect::<Vec<_>>())
    };
    let usual: Vec<[f64; 3]> =
        (0..turns).map(|turn| [at(turn, |it| it.each), at(turn, |it| it.busy), at(turn, |it| it.sending)]).collect();
    let each_usual = median(&usual.iter().map(|it| it[0]).collect::<Vec<_>>());
    let part = |takes: &Vec<Take>| median(&takes.iter().map(|it| job.cpu_wait(it.item)).collect::<Vec<_>>());
    let usual_part = quarter(&of_ranks.values().map(part).collect::<Vec<_>>());
    for (rank, takes) in of_ranks {
        let each = median(&takes.iter().map(|it| it.each).collect::<Vec<_>>());
        let length = |it: &Take| job.graph.length(it.item) as f64;
        // A GPU whose rank's sends are slow, or find no room, cannot pass on what it takes.
        let delays = |it: &Take| 2.0 * it.busy >= length(it) && it.busy >= 2.0 * (it.sending + it.held);
        let is_late = |(it, usual): &(&Take, &[f64; 3])| it.each >= LATER * usual[0] && delays(it);
        let times = takes.iter().zip(&usual).filter(is_late).count() as f64;
        if each < LATER * each_usual
            || times < HABIT * takes.len() as f64
            || lacking(part(takes), usual_part) >= PART * (1.0 - each_usual / each)
        {
            continue;
        }
        let suspect = late.entry(*rank).or_insert_with(|| Suspect {
            what: What::GpuWait,
            ranks: vec![*rank],
            amounts: [each, each_usual],
            step: job.steps.start,
            ..Suspect::default()
        });
        suspect.names.push(name.to_owned());
        for (it, [_, busy, sending]) in takes.iter().zip(&usual) {
            // The network and the GPUs need their time, too.
            let saved = (it.busy - busy).min(length(it) - busy - sending);
            shorten(job, it.item, saved.max(0.0), suspect);
        }
    }
}

/// What GPUs took in the steps that are looked at, by kind of operation and rank, in order.
fn takes(job: &Job) -> BTreeMap<u32, BTreeMap<usize, Vec<Take>>> {
    let mut sending: FxHashMap<usize, f64> = FxHashMap::default();
    for it in job.uses.iter().filter(|it| !it.is_direct) {
        let most = sending.entry(it.item).or_default();
        *most = most.max(it.busy);
    }
    let mut by_kind: BTreeMap<u32, BTreeMap<usize, Vec<Take>>> = BTreeMap::new();
    for rank in 0..job.ranks.len() {
        for item in job.looked_at(rank) {
            let Some(Taken { busy, each, held, .. }) = job.taken.get(&item).copied() else { continue };
            let busy = (busy - job.graph.waited(item) as f64).max(0.0);
            let of_kind = by_kind.entry(job.graph.items[item].kind).or_default();
            let sending = sending.get(&item).copied().unwrap_or(0.0);
            of_kind.entry(rank).or_default().push(Take { item, each, busy, sending, held });
        }
    }
    by_kind
}
