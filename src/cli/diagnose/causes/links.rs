//! Links that are slow, or that stall now and then (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::job::{Job, Link, Taken, Use};
use super::super::load::SLOW;
use super::{ALIKE, HABIT, ONCE_NS, Suspect, What, median, quarter};

/// A link at fault stalls this many times longer than any other.
const STANDS_OUT: f64 = 3.0;
/// It stalls once if that makes up so much of all its stalls.
const MOST: f64 = 0.9;

/// What a link seems to do comes of threads that wait for a processor if these waits, beyond the
/// usual ones, are such a part of the delay; or, if others wait, too, if a thread has less
/// processor time than they by such a part of it.
const PART: f64 = 0.5;
/// They show in at least this fraction of the steps; what is rarer is a stall.
const OFTEN: f64 = 0.25;
/// Threads that want a processor get it in turn, each for about so long, ns: the kernel's slice
/// (`base_slice_ns`) on machines with many processors.
const SLICE_NS: f64 = 3e6;
/// Where threads often wait for their turn, a transfer may need so many: both ends work on it, more
/// than once.
const IN_A_ROW: f64 = 10.0;

/// How each link was used by the operations of one kind, in order.
type Uses = BTreeMap<usize, Vec<Use>>;

/// Links that take longer than the others of the same operations, or now and then longer than they
/// usually do.
pub(super) fn links(job: &Job) -> Vec<Suspect> {
    let [mut slow, mut waiting, mut stalled] = [const { BTreeMap::new() }; 3];
    for ((kind, is_direct), of_links) in uses(job) {
        let name = &job.kinds[kind as usize].name;
        if job.is_recorded(kind) && of_links.len() > 1 {
            slow_ones(job, name, &of_links, &mut slow);
            waiting_ones(job, name, &of_links, &mut waiting);
        }
        // Kernels do not show whether a link stands still or a GPU.
        if !is_direct {
            stalled_ones(job, kind, &of_links, &mut stalled);
        }
    }
    let mut suspects = together(slow.into_values().collect());
    suspects.extend(together(waiting.into_values().collect()));
    suspects.extend(standing_out(stalled.into_values().collect(), job.links.len()));
    for suspect in &mut suspects {
        shorten_meetings(job, suspect);
        blame_processors(suspect);
    }
    // Its stalls are of the same time as what is slow.
    let mut lacking: BTreeSet<usize> = BTreeSet::new();
    suspects.retain(|it| it.what != What::Processor || it.ranks.iter().any(|rank| lacking.insert(*rank)));
    suspects
}

/// Whatever a link seems to do while a progress thread waits for a processor is not its fault.
fn blame_processors(suspect: &mut Suspect) {
    let most = suspect.waited.values().copied().fold(0.0, f64::max);
    if most > 0.0 && suspect.waited.values().sum::<f64>() >= PART * suspect.sum {
        suspect.what = What::Processor;
        suspect.ranks = suspect.waited.iter().filter(|it| *it.1 >= ALIKE * most).map(|it| *it.0).collect();
    }
}

/// For which part of a transfer the progress thread of one end waited for a processor: of the one
/// that did so longer, with its rank.
fn waited(job: &Job, it: &Use) -> (f64, usize) {
    let Link { from, to, .. } = job.links[it.link];
    let received = to.into_iter().flat_map(|to| job.graph.partners_on(it.item, to).map(move |item| (to, item)));
    let ends = [(from, it.item)].into_iter().chain(received).filter(|_| !it.is_direct);
    ends.map(|(rank, item)| (job.cpu_wait(item), rank))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .unwrap_or_default()
}

/// What links have in the middle, or a good link has, by turn.
struct Others {
    each: Vec<f64>,
    busy: Vec<f64>,
    /// How long an operation's transfer takes, in the middle of all turns, ns.
    transfer: f64,
    taking: Taking,
}

impl Others {
    fn of(job: &Job, of_links: &Uses, typical: fn(&[f64]) -> f64) -> Others {
        let turns = 0..of_links.values().map(Vec::len).max().unwrap_or(0);
        let all = |of: &dyn Fn(&Use) -> f64| -> Vec<f64> {
            let at = |turn| typical(&of_links.values().filter_map(|uses| uses.get(turn).map(of)).collect::<Vec<_>>());
            turns.clone().map(at).collect()
        };
        let transfer = median(&all(&|it| transfer(job, it.item)));
        Others { each: all(&|it| it.each), busy: all(&|it| it.busy), transfer, taking: Taking::of(job, of_links) }
    }

    /// How much of this time, ns, an operation would save with a link like these.
    fn saved(&self, job: &Job, turn: usize, it: &Use, ns: f64) -> f64 {
        let least = match delivered(job, it.item) {
            // Without the fault it would be like the other links' transfers.
            Some(_) => self.transfer,
            // The other links and the GPUs need their time, too.
            None => self.busy[turn] + self.taking.at(job, it.item),
        };
        ns.min(transfer(job, it.item) - least).max(0.0)
    }
}

/// By which part a thread has less processor time than is usual, from the parts of the time in
/// which it and others wait for it.
pub(super) fn lacking(part: f64, usual: f64) -> f64 {
    (part - usual) / (1.0 - usual).max(0.01)
}

fn slow_ones(job: &Job, name: &str, of_links: &Uses, slow: &mut BTreeMap<usize, Suspect>) {
    let others = Others::of(job, of_links, median);
    let middle = median(&others.each);
    let parts = |uses: &Vec<Use>| median(&uses.iter().map(|it| waited(job, it).0).collect::<Vec<_>>());
    // A rank whose thread waits is an end of two links, at least.
    let usual_part = quarter(&of_links.values().map(parts).collect::<Vec<_>>());
    for (link, uses) in of_links {
        let each = median(&uses.iter().map(|it| it.each).collect::<Vec<_>>());
        // A link that is idle for half of the time is not what the ranks wait for.
        let delays = |it: &Use| 2.0 * it.busy >= transfer(job, it.item);
        let is_longer = |(it, middle): &(&Use, &f64)| it.each >= SLOW * **middle && delays(it);
        let longer = uses.iter().zip(&others.each).filter(is_longer).count() as f64;
        let is_waiting = lacking(parts(uses), usual_part) >= PART * (1.0 - middle / each);
        if is_waiting || each < SLOW * middle || longer < HABIT * uses.len() as f64 {
            continue;
        }
        let slow = slow.entry(*link).or_insert_with(|| Suspect {
            channel: habitual(uses.iter().map(|it| it.channel)),
            ..suspected(job, What::Link, *link, [each, middle])
        });
        slow.names.push(name.to_owned());
        let usual = median(&uses.iter().map(|it| it.busy).collect::<Vec<_>>());
        let mut free_from = i64::MIN;
        for (turn, it) in uses.iter().enumerate() {
            let begin = job.graph.items[it.item].start;
            let sent = delivered(job, it.item);
            // What it sent before may still be on its way.
            let queued = sent.map_or(0.0, |_| free_from.saturating_sub(begin).max(0) as f64);
            free_from = begin + sent.unwrap_or(0);
            // Stalls are another cause.
            let longer = (it.busy.min(2.0 * usual) + queued) * (1.0 - middle / each);
            let saved = others.saved(job, turn, it, longer);
            match job.links[it.link].to.filter(|_| it.is_direct) {
                Some(to) => shorten_direct(job, it.item, to, [saved, middle], slow),
                None => shorten(job, it.item, saved, slow),
            }
        }
    }
}

/// Links that take longer than the others because a progress thread at one end waits for a
/// processor. It may have one to itself at times, so sums count, not steps.
fn waiting_ones(job: &Job, name: &str, of_links: &Uses, waiting: &mut BTreeMap<usize, Suspect>) {
    // A rank whose thread waits is an end of two links, at least.
    let others = Others::of(job, of_links, quarter);
    let longer = |turn: usize, it: &Use| it.busy * (1.0 - others.each[turn] / it.each.max(1.0));
    let sum = |uses: &[Use], of: &dyn Fn(usize, &Use) -> f64| -> f64 {
        uses.iter().enumerate().map(|(turn, it)| of(turn, it)).sum()
    };
    let busy = |uses: &[Use]| sum(uses, &|_, it| it.busy);
    let waits = |uses: &[Use]| sum(uses, &|_, it| waited(job, it).0 * it.busy);
    let usual_part = quarter(&of_links.values().map(|uses| waits(uses) / busy(uses)).collect::<Vec<_>>());
    for (link, uses) in of_links {
        let (busy, longer_ns) = (busy(uses), sum(uses, &longer));
        let is_slow = longer_ns >= (1.0 - 1.0 / SLOW) * busy;
        let delays = 2.0 * busy >= sum(uses, &|_, it| transfer(job, it.item));
        let lacks = lacking(waits(uses) / busy, usual_part) * busy >= PART * longer_ns;
        let often = sum(uses, &|turn, it| f64::from(it.each >= SLOW * others.each[turn])) >= OFTEN * uses.len() as f64;
        if !is_slow || !often || !delays || !lacks {
            continue;
        }
        let mean = |of: &dyn Fn(usize, &Use) -> f64| sum(uses, of) / uses.len() as f64;
        let amounts = [mean(&|_, it| it.each), mean(&|turn, _| others.each[turn])];
        let suspect = waiting.entry(*link).or_insert_with(|| suspected(job, What::Processor, *link, amounts));
        suspect.names.push(name.to_owned());
        for (turn, it) in uses.iter().enumerate() {
            let (part, rank) = waited(job, it);
            *suspect.waited.entry(rank).or_default() += part * it.busy;
            shorten(job, it.item, others.saved(job, turn, it, longer(turn, it)), suspect);
        }
    }
}

fn stalled_ones(job: &Job, kind: u32, of_links: &Uses, stalled: &mut BTreeMap<usize, Suspect>) {
    let name = &job.kinds[kind as usize].name;
    // Kernels without a record are no operation that others are like.
    let usual_on = |link: usize, uses: &[Use]| {
        let is_recorded = |it: &&Use| job.is_recorded(job.graph.items[it.item].kind);
        let own = uses.iter().map(|it| it.busy);
        let all = job.uses.iter().filter(|it| it.link == link).filter(is_recorded).map(|it| it.busy);
        median(&if job.is_recorded(kind) { Vec::from_iter(own) } else { Vec::from_iter(all) })
    };
    for (link, uses) in of_links {
        let usual = usual_on(*link, uses);
        let usual_part = median(&uses.iter().map(|it| waited(job, it).0).collect::<Vec<_>>());
        let at_once = SLICE_NS * usual_part / (1.0 - usual_part).max(0.01);
        let is_long = |it: &&Use| it.busy > 3.0 * usual && it.busy > usual + 1e6;
        for it in uses.iter().filter(is_long).filter(|it| !is_held_up(job, it, it.busy - usual)) {
            let stall = stalled.entry(*link).or_insert_with(|| suspected(job, What::Stall, *link, [0.0, usual]));
            if it.busy > stall.amounts[0] {
                stall.amounts = [it.busy, usual];
                stall.step = job.step_of(it.item).unwrap_or(job.steps.start);
                stall.names = vec![name.clone()];
            }
            stall.times += 1;
            let (longer, (part, rank)) = (it.busy - usual, waited(job, it));
            // While a link stands still, there is less to do, and threads wait less.
            let is_usual = longer <= IN_A_ROW * at_once && part >= 0.9 * usual_part;
            let of_it = if is_usual { longer } else { it.busy * (part - usual_part) };
            *stall.waited.entry(rank).or_default() += of_it.clamp(0.0, longer);
            stall.sum += longer;
            stall.in_steps.extend(job.step_of(it.item).map(|step| (step, it.busy - usual)));
            shorten(job, it.item, it.busy - usual, stall);
        }
    }
}

/// Whether what was sent had arrived for most of this time, ns, and the receiver's GPU did not take
/// it.
fn is_held_up(job: &Job, it: &Use, time: f64) -> bool {
    let Link { from, to: Some(to), .. } = job.links[it.link] else { return false };
    job.graph
        .partners_on(it.item, to)
        .any(|item| job.untaken.get(&(item, from)).is_some_and(|untaken| 2.0 * untaken > time))
}

/// How long GPUs need to take what they receive, in operations of one kind.
struct Taking {
    /// For one transfer: most of them take longer, because the GPU has something else to wait for,
    /// ns.
    each: f64,
}

impl Taking {
    fn of(job: &Job, of_links: &Uses) -> Taking {
        let used = || of_links.values().flatten().map(|it| it.item);
        // Each once: in an operation of all ranks, each rank uses a link.
        let meetings: BTreeSet<usize> = used().flat_map(|item| job.graph.meetings_of(item)).collect();
        let partners = meetings.into_iter().flat_map(|meeting| job.graph.members_of(meeting));
        let items: BTreeSet<usize> = partners.chain(used()).collect();
        let each = |item: &usize| job.taken.get(item).map(|taken| taken.each);
        Taking { each: quarter(&items.iter().filter_map(each).collect::<Vec<_>>()) }
    }

    /// For an operation, in the middle of its ranks, ns.
    fn at(&self, job: &Job, item: usize) -> f64 {
        let of_item = |Taken { busy, count, .. }: &Taken| busy.min(*count as f64 * self.each);
        let all: BTreeSet<usize> = job.graph.partners(item).collect();
        median(&all.iter().filter_map(|item| job.taken.get(item).map(of_item)).collect::<Vec<_>>())
    }
}

/// The value that nearly all of these have, if there is one.
fn habitual(channels: impl ExactSizeIterator<Item = Option<u32>>) -> Option<u32> {
    let all = channels.len() as f64;
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    channels.flatten().for_each(|channel| *counts.entry(channel).or_default() += 1);
    counts.into_iter().find(|(_, count)| *count as f64 >= HABIT * all).map(|it| it.0)
}

/// On a busy machine every link stalls at times: those at fault stand out. There may be several:
/// links that share a cable stall together.
fn standing_out(mut stalled: Vec<Suspect>, links: usize) -> Option<Suspect> {
    stalled.sort_by(|one, other| other.sum.total_cmp(&one.sum));
    let sum = |at: usize| stalled.get(at).map_or(0.0, |it| it.sum);
    let count = (1..=stalled.len()).find(|count| sum(count - 1) >= STANDS_OUT * sum(*count))?;
    let is_few = count == 1 || 2 * count <= links;
    let mut all = stalled.into_iter().take(count);
    let mut first = all.next().filter(|_| is_few)?;
    for other in all {
        first.times += other.times;
        first.in_steps.extend(other.in_steps.iter().copied());
        take(&mut first, other);
    }
    // What stands still in one step may do so until the next.
    let near = first.in_steps.iter().filter(|(step, _)| step.abs_diff(first.step) < 2).map(|it| it.1);
    first.is_once = near.sum::<f64>() >= MOST * first.in_steps.iter().map(|it| it.1).sum::<f64>();
    (first.times > 1 && !first.is_once || first.amounts[0] >= ONCE_NS).then_some(first)
}

/// How links were used in the steps that are looked at, by kind of operation, whether directly, and
/// link, in order.
fn uses(job: &Job) -> BTreeMap<(u32, bool), Uses> {
    let inside: Vec<Range<usize>> = (0..job.ranks.len()).map(|rank| job.looked_at(rank)).collect();
    let mut by_kind: BTreeMap<(u32, bool), Uses> = BTreeMap::new();
    for it in job.uses.iter().filter(|it| inside[job.links[it.link].from].contains(&it.item)) {
        let kind = (job.graph.items[it.item].kind, it.is_direct);
        by_kind.entry(kind).or_default().entry(it.link).or_default().push(*it);
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

/// Links that are about as slow as the slowest are one suspect: those of several ranks may share a
/// cable, and fixing all but one of them gains nothing.
pub(super) fn together(mut slow: Vec<Suspect>) -> Vec<Suspect> {
    slow.sort_by(|one, other| other.amounts[0].total_cmp(&one.amounts[0]));
    let mut all: Vec<Suspect> = Vec::new();
    for suspect in slow {
        match all.iter_mut().find(|it| it.what == suspect.what && suspect.amounts[0] >= ALIKE * it.amounts[0]) {
            Some(alike) => take(alike, suspect),
            None => all.push(suspect),
        }
    }
    all
}

/// The links of one suspect shorten the same operations: what shortens them most counts.
fn shorten_meeting(suspect: &mut Suspect, meeting: usize, by: i64) {
    let most = suspect.meetings.entry(meeting).or_default();
    *most = by.max(*most);
}

/// Makes the links of another suspect this one's.
fn take(suspect: &mut Suspect, other: Suspect) {
    suspect.ranks.extend(other.ranks);
    suspect.links.extend(other.links);
    suspect.lengths.extend(other.lengths);
    suspect.throughs.extend(other.throughs);
    suspect.sum += other.sum;
    let unknown: Vec<String> = other.names.into_iter().filter(|name| !suspect.names.contains(name)).collect();
    suspect.names.extend(unknown);
    other.waited.into_iter().for_each(|(rank, ns)| *suspect.waited.entry(rank).or_default() += ns);
    other.meetings.into_iter().for_each(|(meeting, by)| shorten_meeting(suspect, meeting, by));
}

/// Shortens the operations on all their ranks.
pub(super) fn shorten_meetings(job: &Job, suspect: &mut Suspect) {
    for (meeting, by) in std::mem::take(&mut suspect.meetings) {
        let members = job.graph.members_of(meeting);
        suspect.lengths.extend(members.map(|it| (it, (job.graph.length(it) - by).max(0))));
    }
}

/// The duration of an operation's transfer, ns: a send may end before its data has arrived.
fn transfer(job: &Job, item: usize) -> f64 {
    delivered(job, item).unwrap_or(0).max(job.graph.length(item)) as f64
}

/// Of a send that did not wait for the network: from its begin until that had delivered its data,
/// ns.
fn delivered(job: &Job, item: usize) -> Option<i64> {
    job.graph.through(item).filter(|through| *through > 0)
}

/// Shortens what an item exchanges with this rank by so much, ns. What the kernels at both ends
/// exchange with others may wait for that; without it, it would take no longer than usual.
fn shorten_direct(job: &Job, item: usize, to: usize, [by, usual]: [f64; 2], suspect: &mut Suspect) {
    let rank_of = |it: usize| job.graph.rank_of(it as u32);
    for meeting in job.graph.partners_on(item, to).chain([item]).flat_map(|end| job.graph.meetings_of(end)) {
        let members = || job.graph.members_of(meeting);
        let is_between = members().any(|it| it == item) && members().any(|it| rank_of(it) == to);
        let least = members().map(|it| job.graph.length(it)).min().unwrap_or(0) as f64;
        let of_it = if is_between { by } else { (least - usual).clamp(0.0, by.max(0.0)) };
        shorten_meeting(suspect, meeting, of_it as i64);
    }
}

/// Shortens the transfer of an operation on all its ranks.
pub(super) fn shorten(job: &Job, item: usize, by: f64, suspect: &mut Suspect) {
    let by = by as i64;
    if let Some(through) = delivered(job, item) {
        suspect.throughs.push((item, (through - by).max(0)));
        // The GPU that receives is busy with it for as long.
        let others = job.graph.partners(item).filter(|other| *other != item);
        suspect.lengths.extend(others.map(|other| (other, (job.graph.length(other) - by).max(0))));
        return;
    }
    let mut meetings = job.graph.meetings_of(item).peekable();
    if meetings.peek().is_none() {
        suspect.lengths.push((item, (job.graph.length(item) - by).max(0)));
    }
    meetings.for_each(|meeting| shorten_meeting(suspect, meeting, by));
}
