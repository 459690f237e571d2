//! Decides which operation a job hangs in and which ranks are missing (pure).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rustc_hash::FxHashMap;

use super::super::survey::{LAG_NS, Work};
use super::job::{Job, Key, Member, Seen, Standing, UNNUMBERED, function};
use super::{
    After, BEYOND, Coming, FIRST_PATIENCE_NS, Finalized, GRAPH_PATIENCE_NS, Hang, Missing, Operation, PAIRS,
    PATIENCE_NS, Wait, named,
};
use crate::cli::LISTED;
use crate::model::selection::Ranks;
use crate::model::time::HostNs;
use crate::trace::words::{track, wait};

/// The operations that a job hangs in: first those that nothing else explains, then by time.
pub(super) fn judge(job: &Job) -> Vec<Hang> {
    let mut by_key: BTreeMap<Key, (usize, Vec<&Standing>)> = BTreeMap::new();
    for (place, it) in job.standing.iter().enumerate() {
        by_key.entry(it.key).or_insert((place, Vec::new())).1.push(it);
    }
    by_key.retain(|key, (_, on)| !job.was_over(*key, on));
    let by_time: Vec<(usize, Hang)> =
        by_key.into_iter().map(|(key, (place, on))| (place, job.hang(key, &on))).collect();
    // Whoever came to a collective had come to those before it, even if only the newest is known.
    let mut numbered: Vec<usize> = (0..by_time.len()).filter(|at| by_time[*at].1.operation.seq.is_some()).collect();
    numbered.sort_by_key(|at| std::cmp::Reverse(by_time[*at].1.operation.seq));
    let mut ages: HashMap<(u64, String), u64> = HashMap::new();
    let mut order: Vec<u64> = by_time.iter().map(|(_, hang)| hang.age).collect();
    for at in numbered {
        let Operation { hash, name, .. } = &by_time[at].1.operation;
        let oldest = ages.entry((*hash, function(name).to_owned())).or_default();
        *oldest = order[at].max(*oldest);
        order[at] = *oldest;
    }
    let mut by_time: Vec<_> = order.into_iter().zip(by_time).collect();
    by_time.sort_by_key(|(age, (place, hang))| (hang.has_paused, std::cmp::Reverse(*age), hang.operation.seq, *place));
    // A communicator's first open collective is the one waited for; later ones wait for it.
    let mut of_comms: BTreeMap<u64, Vec<(usize, Hang)>> = BTreeMap::new();
    for (place, (_, (_, hang))) in by_time.into_iter().enumerate() {
        let of_comm = of_comms.entry(hang.operation.hash).or_default();
        // Of the sends from one rank to another, too, the first is waited for.
        let is_told = |(_, first): &(usize, Hang)| hang.is_told_by(first);
        let is_first = of_comm.first().is_none_or(|(_, first)| first.operation.seq.is_none());
        // Those who wait for the ranks in a call that does not return show whom these keep waiting.
        let is_kept_by = |(_, call): &(usize, Hang)| hang.missing.iter().any(|it| call.came.contains(&it.rank));
        let is_next = match hang.operation.seq {
            None => is_first && !of_comm.iter().any(is_told),
            Some(_) => of_comm.iter().all(|(_, it)| it.is_call) && of_comm.iter().any(is_kept_by),
        };
        if of_comm.is_empty() || is_next {
            of_comm.push((place, hang));
        }
    }
    // Of many sends and receives, those with a missing rank tell most; what a rank sends to itself
    // tells least.
    for of_comm in of_comms.values_mut() {
        *of_comm = exchanges(std::mem::take(of_comm));
        of_comm.sort_by_key(|(_, hang)| (hang.missing.is_empty(), hang.of == 1));
        of_comm.truncate(PAIRS);
    }
    let mut hangs: Vec<(usize, Hang)> = of_comms.into_values().flatten().collect();
    hangs.sort_by_key(|(place, _)| *place);
    let mut hangs: Vec<Hang> = hangs.into_iter().map(|(_, hang)| hang).collect();
    explain(&mut hangs);
    // If a rank waits in another operation, that other operation is the cause.
    let is_less = |hang: &Hang| hang.circle.is_empty() && hang.missing.is_empty();
    let is_to_itself = |hang: &Hang| hang.of == 1 && hang.is_numbered;
    hangs.sort_by_key(|hang| {
        let is_in_group = hang.after.as_ref().is_some_and(|after| after.is_in_group);
        let is_explained = (hang.is_explained(), hang.is_explained() && is_in_group);
        (!hang.is_certain, is_explained, is_less(hang), is_to_itself(hang), std::cmp::Reverse(hang.age))
    });
    hangs
}

/// The hangs of a communicator, with its sends and receives as one where they wait for the same
/// rank, or the same ranks wait, or a group has them: an exchange among all waits in very many.
fn exchanges(of_comm: Vec<(usize, Hang)>) -> Vec<(usize, Hang)> {
    let (sent, mut told): (Vec<_>, Vec<_>) =
        of_comm.into_iter().partition(|(_, hang)| hang.is_sent() && hang.unseen.is_empty());
    let (complete, partial): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(_, hang)| hang.missing.is_empty());
    let kind = |it: &Hang| (it.operation.replay, it.is_certain, it.has_paused, it.finalized.is_some());
    let mut for_same: BTreeMap<_, Vec<(usize, Hang)>> = BTreeMap::new();
    for (place, hang) in partial {
        let missing: Vec<u32> = hang.missing.iter().map(|it| it.rank).collect();
        for_same.entry((missing, kind(&hang))).or_default().push((place, hang));
    }
    let mut by_same: BTreeMap<_, Vec<(usize, Hang)>> = BTreeMap::new();
    for ((_, kind), sent) in for_same {
        let came: BTreeSet<u32> = sent.iter().flat_map(|(_, hang)| hang.came.iter().copied()).collect();
        by_same.entry((came, kind)).or_default().extend(sent);
    }
    let mut in_one: Vec<Vec<(usize, Hang)>> = by_same.into_values().collect();
    // Which of `in_one` has what a process called at one time.
    let mut called: BTreeMap<_, usize> = BTreeMap::new();
    for (place, hang) in complete {
        let calls: Vec<_> =
            hang.came_to_it.iter().filter_map(|(process, it)| Some((*process, it.at?, kind(&hang)))).collect();
        let known: BTreeSet<usize> = calls.iter().filter_map(|call| called.get(call).copied()).collect();
        let mut all = vec![(place, hang)];
        known.iter().for_each(|at| all.append(&mut in_one[*at]));
        called.values_mut().filter(|at| known.contains(at)).for_each(|at| *at = in_one.len());
        called.extend(calls.into_iter().map(|call| (call, in_one.len())));
        in_one.push(all);
    }
    told.extend(in_one.into_iter().filter_map(|mut sent| {
        sent.sort_by_key(|(place, _)| *place);
        let names: BTreeSet<String> = sent.iter().map(|(_, hang)| hang.operation.name.clone()).collect();
        let (place, mut all) = sent.into_iter().reduce(|(place, all), (_, next)| (place, all.with(next)))?;
        all.operation.name = shared_name(&names, &all);
        Some((place, all))
    }));
    told.sort_by_key(|(place, _)| *place);
    told
}

/// A name for all that these sends and receives are: `Send and Recv 1 MiB f32 with 2`.
fn shared_name(names: &BTreeSet<String>, all: &Hang) -> String {
    if let (1, Some(name)) = (names.len(), names.first()) {
        return name.clone();
    }
    let data = names.iter().filter_map(|name| Some(name.split_once(' ')?.1.split(['→', '←']).next()?.trim_end()));
    let data: BTreeSet<&str> = data.collect();
    let data = data.first().filter(|_| data.len() == 1).map_or_else(String::new, |data| format!(" {data}"));
    if all.missing.is_empty() {
        return format!("Send and Recv{data} among {}", Ranks::of(all.came.clone()));
    }
    let functions: BTreeSet<&str> = names.iter().map(|name| function(name)).collect();
    let functions = Vec::from_iter(functions.into_iter().rev()).join(" and ");
    format!("{functions}{data} with {}", Ranks::of(all.missing.iter().map(|it| it.rank).collect::<Vec<_>>()))
}

/// For ranks that are missing in one operation, or whose GPU works on another one first, notes the
/// operation in which they wait, and whether that leads back to the first.
fn explain(hangs: &mut [Hang]) {
    let mut waits: HashMap<u64, Vec<(usize, Operation)>> = HashMap::new();
    for (index, hang) in hangs.iter().enumerate() {
        for process in hang.waiting.iter().filter_map(|rank| hang.processes.get(rank)) {
            waits.entry(*process).or_default().push((index, hang.as_called_by(*process)));
        }
    }
    let is_certain: Vec<bool> = hangs.iter().map(|hang| hang.is_certain).collect();
    let (mut leads, sides) = by_order(hangs);
    for ((hang, leads), is_from_certain) in hangs.iter_mut().zip(&mut leads).zip(&is_certain) {
        for missing in &mut hang.missing {
            let waits = hang.processes.get(&missing.rank).and_then(|process| waits.get(process));
            let Some(waits) = waits else { continue };
            missing.waits = waits.first().map(|(_, operation)| operation.clone());
            let to = waits.iter().find(|(to, _)| *is_from_certain && is_certain[*to]);
            if let (Some((to, operation)), Some(rank)) = (to, missing.world) {
                leads.push((*to, Wait { rank, operation: operation.clone() }));
            }
        }
    }
    if let Some((first, mut circle)) = circle(&leads) {
        // Those that do what only few do come first.
        let fewest = (0..circle.len()).min_by_key(|at| sides.get(&circle[*at].0).map(Vec::len));
        circle.rotate_left(fewest.unwrap_or(0));
        for (to, Wait { operation, .. }) in &circle {
            let Some(ranks) = sides.get(to) else { continue };
            let word = if ranks.len() == 1 { "rank" } else { "ranks" };
            hangs[first].notes.push(format!("{word} {} came to {operation} first", Ranks::of(ranks.clone())));
        }
        hangs[first].circle_lacks = circle.iter().any(|(at, _)| !hangs[*at].missing.is_empty());
        hangs[first].circle = circle.into_iter().map(|(_, wait)| wait).collect();
    }
    // An operation that all have come to may wait on the GPU for one that is older, or in the same
    // group, and not certain.
    for index in 0..hangs.len() {
        let hang = &hangs[index];
        let is_behind = |process: &u64| {
            let came = |it: &Hang| it.came_to_it.get(process).and_then(|it| it.at);
            waits.get(process).into_iter().flatten().map(|(of, _)| &hangs[*of]).any(|it| {
                let is_older = it.age >= hang.age || came(it).is_some_and(|at| Some(at) <= came(hang));
                !it.missing.is_empty() && !it.is_certain && is_older
            })
        };
        let mut processes = hang.waiting.iter().filter_map(|rank| hang.processes.get(rank));
        if hang.missing.is_empty() && processes.any(is_behind) {
            hangs[index].is_certain = false;
        }
    }
}

impl Hang {
    /// Whether it is a send or a receive.
    fn is_sent(&self) -> bool {
        matches!(function(&self.operation.name), "Send" | "Recv")
    }

    /// Whether both are one operation asked for again: by name, or sent from the same rank to the
    /// same; and the same ranks have come to both.
    fn is_told_by(&self, first: &Hang) -> bool {
        let ranks = |it: &Hang| it.missing.iter().map(|it| it.rank).collect::<Vec<_>>();
        let is_same = match (self.receiver(), first.receiver()) {
            (None, None) => self.operation.name == first.operation.name,
            (own, other) => own == other,
        };
        is_same && (&self.came, &self.unseen, ranks(self)) == (&first.came, &first.unseen, ranks(first))
    }

    /// Of a send or receive, the rank that receives.
    fn receiver(&self) -> Option<u32> {
        let name = &self.operation.name;
        let peer = name.rsplit(' ').next().filter(|_| self.is_sent())?.parse().ok()?;
        let missing = self.missing.iter().map(|it| it.rank);
        let mut all = self.came.iter().copied().chain(missing).chain(self.unseen.iter().copied());
        if function(name) == "Recv" { all.find(|rank| *rank != peer) } else { Some(peer) }
    }

    /// This and another send or receive, which wait for the same.
    fn with(mut self, other: Hang) -> Hang {
        for (ranks, more) in [(&mut self.came, other.came), (&mut self.waiting, other.waiting)] {
            ranks.extend(more);
            ranks.sort_unstable();
            ranks.dedup();
        }
        let is_new = |it: &Missing| !self.missing.iter().any(|known| known.rank == it.rank);
        let more: Vec<Missing> = other.missing.into_iter().filter(is_new).collect();
        self.missing.extend(more);
        self.missing.sort_by_key(|it| it.rank);
        self.of = self.came.len() + self.missing.len();
        if other.age > self.age {
            (self.age, self.begin) = (other.age, other.begin);
        }
        self.waited = self.waited.min(other.waited);
        self.behind = self.behind.max(other.behind);
        self.is_call &= other.is_call;
        self.may_be_over |= other.may_be_over;
        self.busy.extend(other.busy);
        self.busy.sort_unstable();
        self.busy.dedup();
        self.link.take_if(|link| other.link.as_ref() != Some(link));
        let more: Vec<String> = other.notes.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(more);
        self.processes.extend(other.processes);
        for (process, coming) in other.came_to_it {
            let known = self.came_to_it.entry(process).or_insert_with(|| coming.clone());
            let has_begun = known.has_begun || coming.has_begun;
            if coming.at.is_some_and(|at| known.at.is_none_or(|known| at < known)) {
                *known = coming;
            }
            known.has_begun = has_begun;
        }
        self
    }

    /// The operation, by the name that it has for this process.
    fn as_called_by(&self, process: u64) -> Operation {
        let own = self.came_to_it.get(&process).map(|it| it.name.clone());
        Operation { name: own.unwrap_or_else(|| self.operation.name.clone()), ..self.operation.clone() }
    }
}

/// For each operation, those that it leads to because a rank waits in them.
type Leads = Vec<Vec<(usize, Wait)>>;

/// Notes what ranks came to before an operation that all have come to, as a GPU works on one after
/// the other. Returns to what each leads by that, where both are certain; and the ranks that came
/// to each first.
fn by_order(hangs: &mut [Hang]) -> (Leads, BTreeMap<usize, Vec<u32>>) {
    // What a group has, a process comes to at once.
    let mut firsts: BTreeMap<u64, (HostNs, Vec<usize>)> = BTreeMap::new();
    for (index, hang) in hangs.iter().enumerate() {
        for (process, it) in &hang.came_to_it {
            let Some(at) = it.at else { continue };
            let (known, first) = firsts.entry(*process).or_insert((at, Vec::new()));
            match at.cmp(known) {
                Ordering::Less => (*known, *first) = (at, vec![index]),
                Ordering::Equal => first.push(index),
                Ordering::Greater => {}
            }
        }
    }
    // Those with a missing rank tell most.
    for (_, first) in firsts.values_mut() {
        first.sort_by_key(|at| hangs[*at].missing.is_empty());
    }
    let (mut leads, mut sides) = (vec![Vec::new(); hangs.len()], BTreeMap::<_, Vec<_>>::new());
    let may_be_deadlock = |hang: &Hang| hang.is_certain && hang.busy.is_empty();
    let mut after: Vec<Option<After>> = vec![None; hangs.len()];
    for (index, hang) in hangs.iter().enumerate() {
        let have_all_come = hang.missing.is_empty() && hang.unseen.is_empty();
        for (process, Coming { rank, has_begun, .. }) in hang.came_to_it.iter().filter(|(_, it)| it.at.is_some()) {
            let Some((_, first)) = firsts.get(process) else { continue };
            let wait = |first: usize| Wait { rank: *rank, operation: hangs[first].as_called_by(*process) };
            if first.contains(&index) {
                sides.entry(index).or_default().push(*rank);
                // A GPU ends all operations of a group at once.
                let cause = first.iter().find(|at| have_all_come && !hangs[**at].missing.is_empty());
                after[index] =
                    after[index].take().or(cause.map(|cause| After { wait: wait(*cause), is_in_group: true }));
            } else if have_all_come && !has_begun {
                after[index].get_or_insert_with(|| After { wait: wait(first[0]), is_in_group: false });
                let may_lead = first.iter().filter(|at| may_be_deadlock(hang) && may_be_deadlock(&hangs[**at]));
                leads[index].extend(may_lead.map(|at| (*at, wait(*at))));
            }
        }
    }
    for (hang, after) in hangs.iter_mut().zip(after) {
        hang.after = after;
    }
    (leads, sides)
}

/// A circle of operations, each of which leads to the next: for each, its index and the rank that
/// waits in it; and the index of the one that leads to the first of these.
fn circle(leads: &[Vec<(usize, Wait)>]) -> Option<(usize, Vec<(usize, Wait)>)> {
    // Where an end can be reached only, there is no circle.
    let mut is_left = vec![true; leads.len()];
    let goes_on = |is_left: &[bool], from: usize| leads[from].iter().find(|(to, _)| is_left[*to]);
    while let Some(end) = (0..leads.len()).find(|at| is_left[*at] && goes_on(&is_left, *at).is_none()) {
        is_left[end] = false;
    }
    let mut at = is_left.iter().position(|is_left| *is_left)?;
    let mut path: Vec<(usize, &(usize, Wait))> = Vec::new();
    while !path.iter().any(|(from, _)| *from == at) {
        let lead = goes_on(&is_left, at)?;
        path.push((at, lead));
        at = lead.0;
    }
    let waits = path.into_iter().skip_while(|(from, _)| *from != at).map(|(_, lead)| lead.clone());
    Some((at, waits.collect()))
}

/// Who has come to an operation.
#[derive(Default)]
struct Arrivals {
    /// The ranks that came, those of them that did nothing later, those that have not come, as
    /// members of the job, and those whose files are not here.
    came: Vec<u32>,
    waiting: Vec<u32>,
    missing: Vec<usize>,
    unseen: Vec<u32>,
    /// The processes of the ranks whose files are here, by their tracks.
    processes: BTreeMap<u32, u64>,
    /// How they came.
    came_to_it: BTreeMap<u64, Coming>,
    /// How long before the end the first rank came, ns, with that time on its clock; and the last.
    first: (u64, HostNs),
    last: u64,
    /// Operations handed over after it.
    behind: u64,
    /// A rank that had come handed over others long after it.
    has_paused: bool,
}

impl Job {
    fn hang(&self, key: Key, on: &[&Standing]) -> Hang {
        let (hash, _, replay) = key;
        let first = on[0];
        let finalized = self.first_finalized(on);
        let over = finalized.as_ref().map_or(0, |it| it.ago_ns);
        let takes = self.takes(key, on);
        let arrivals = self.arrivals(key, on, &takes);
        let Arrivals { came, waiting, missing, unseen, processes, came_to_it, .. } = arrivals;
        let Arrivals { first: (age, begin), last, behind, has_paused, .. } = arrivals;
        let waited = last.saturating_sub(over);
        // Where records of kernels were lost, an operation may be over that was not seen to end.
        let may_be_over = on.iter().all(|it| self.may_be_over(it));
        // In a communicator that was finalized, nobody waits any more.
        let least = if finalized.is_some() { FIRST_PATIENCE_NS } else { PATIENCE_NS };
        let of_came = self.of_comm(hash).filter(|(_, it)| came.binary_search(&it.rank).is_ok());
        let patience = of_came.map(|(index, _)| self.patience(index)).fold(least, u64::max);
        let is_certain = match &missing[..] {
            // A rank with losses may have lost what it handed over.
            _ if has_paused => false,
            [] if finalized.is_some() => {
                waited >= patience && unseen.is_empty() && !on.iter().any(|it| self.may_be_over(it))
            }
            [] => waited >= patience && !self.have_ended(hash) && !may_be_over,
            _ if may_be_over && replay.is_some() => false,
            // Only what its GPU does not end shows that a rank has come, and that takes a while.
            _ if replay.is_some() && waited < GRAPH_PATIENCE_NS => false,
            missing => missing.iter().all(|&index| self.is_missing(index, first, (age, over))),
        };
        let in_job = self.in_job(hash);
        let noted = on.iter().filter(|it| !it.note.is_empty() && it.kind == Work::Overdue);
        let busy: BTreeMap<u32, &Standing> = noted.map(|it| (self.members[it.member].rank, *it)).collect();
        let mut notes = self.notes(&busy, &in_job);
        let mut link = None;
        if missing.is_empty() {
            notes.extend(self.not_begun(key, on, &in_job));
            let (links, only) = self.links(hash, &in_job);
            notes.extend(links);
            link = only;
        }
        let missing = missing.into_iter().map(|index| self.missing(index, first)).collect();
        // A process with several of its ranks numbers their tracks: `world #2`.
        let labels = self.of_comm(hash).map(|(_, it)| &it.label);
        let comm = labels.min_by_key(|label| label.len()).cloned().unwrap_or_default();
        Hang {
            operation: Operation { name: first.name.clone(), seq: first.seq, replay, comm, hash },
            of: takes.len(),
            is_numbered: key.1 != UNNUMBERED,
            is_call: on.iter().all(|it| it.kind == Work::Call),
            is_alone: self.is_alone(hash, on),
            in_job,
            came,
            waiting,
            missing,
            unseen,
            begin,
            age,
            waited,
            behind,
            is_certain,
            may_be_over,
            has_paused,
            after: None,
            finalized,
            circle: Vec::new(),
            ways: Vec::new(),
            circle_lacks: false,
            notes,
            busy: busy.into_keys().collect(),
            link,
            processes,
            came_to_it,
            gone: BTreeMap::new(),
            is_again: false,
        }
    }

    /// Whether a communicator has other ranks than these, all of them are known and alive, and none
    /// is in a call.
    fn is_alone(&self, hash: u64, on: &[&Standing]) -> bool {
        let is_elsewhere = |index: usize, process: u64| {
            let is_known = self.processes.get(&process).is_some_and(|it| it.ended.is_none() && !it.is_lossy);
            is_known && !self.is_cut(index) && !self.calls.iter().any(|(of, ..)| *of == process)
        };
        let is_on = |index: usize| on.iter().any(|it| it.member == index);
        let has_all = Some(&(self.of_comm(hash).count() as u32)) == self.ranks.get(&hash);
        let mut others = self.of_comm(hash).filter(|(index, _)| !is_on(*index)).peekable();
        has_all && others.peek().is_some() && others.all(|(index, it)| is_elsewhere(index, it.process))
    }

    /// The ranks that take part in an operation, as far as is known.
    fn takes(&self, key: Key, on: &[&Standing]) -> Vec<u32> {
        let rank = |it: &Standing| self.members[it.member].rank;
        match on[0].peer {
            // Nothing shows who else has come.
            _ if key.1 == UNNUMBERED => on.iter().map(|it| rank(it)).collect::<BTreeSet<_>>().into_iter().collect(),
            Some(peer) if peer != rank(on[0]) => vec![peer.min(rank(on[0])), peer.max(rank(on[0]))],
            Some(peer) => vec![peer],
            None => (0..self.ranks.get(&key.0).copied().unwrap_or_default()).collect(),
        }
    }

    /// Which of these ranks have come to an operation, and when.
    fn arrivals(&self, key: Key, on: &[&Standing], takes: &[u32]) -> Arrivals {
        let mut all = Arrivals { last: u64::MAX, ..Arrivals::default() };
        let mut of_member: FxHashMap<usize, &Standing> = FxHashMap::default();
        on.iter().rev().for_each(|it| _ = of_member.insert(it.member, it));
        for &rank in takes {
            let Some(index) = self.member(key.0, rank) else {
                all.unseen.push(rank);
                continue;
            };
            all.processes.insert(rank, self.members[index].process);
            let own = of_member.get(&index).copied();
            let Some(time) = self.came(key, index, on[0], own) else {
                all.missing.push(index);
                continue;
            };
            all.came.push(rank);
            // An operation after which the process went on was never closed, but is long over.
            let went_on = time.is_some_and(|time| self.went_on(index, time));
            if !went_on {
                all.waiting.push(rank);
            }
            // A collective has the same name on all ranks.
            let own = own.or(on.first().copied().filter(|it| it.peer.is_none()));
            if let (Some(own), Member { world: Some(rank), process, .. }) = (own, &self.members[index]) {
                let Seen { called: at, has_begun, .. } = self.seen.get(&(key, index)).copied().unwrap_or_default();
                all.came_to_it.insert(*process, Coming { rank: *rank, name: own.name.clone(), at, has_begun });
            }
            if let Some(time) = time {
                let age = self.age(index, time);
                all.has_paused |= went_on;
                (all.first, all.last) = (all.first.max((age, time)), all.last.min(age));
            }
            all.behind = all.behind.max(self.seen.get(&(key, index)).map_or(0, |seen| seen.behind));
        }
        all.last = all.last.min(all.first.0);
        all
    }

    /// The first rank that waits in this to have finalized its communicator.
    fn first_finalized(&self, on: &[&Standing]) -> Option<Finalized> {
        let of = |it: &&Standing| {
            let time = self.finalized(it.member, it.begin)?;
            let last = self.last_of_process(it.member);
            let went_on = last.is_some_and(|last| last.since(time) >= PATIENCE_NS);
            Some(Finalized { ago_ns: self.age(it.member, time), went_on })
        };
        let mut all = on.iter().filter_map(of);
        let first = all.next()?;
        let later =
            |a: Finalized, b: Finalized| Finalized { ago_ns: a.ago_ns.max(b.ago_ns), went_on: a.went_on || b.went_on };
        Some(all.fold(first, later))
    }

    /// Whether an operation without a known end had ended, because its kernel had run on another
    /// rank before the communicator was finalized.
    fn was_over(&self, key: Key, on: &[&Standing]) -> bool {
        let Some(Finalized { ago_ns, .. }) = self.first_finalized(on) else { return false };
        let has_run = self.of_comm(key.0).map(|(index, _)| index).filter(|index| self.has_run(key, *index));
        let mut ran = has_run.filter_map(|index| Some((index, self.seen.get(&(key, index))?.ran?)));
        // Each recording has its own end.
        ran.any(|(index, ran)| self.age(index, ran).saturating_add(LAG_NS) > ago_ns)
    }

    /// Which ranks of the job a communicator's are; empty if the numbers are the same.
    fn in_job(&self, hash: u64) -> BTreeMap<u32, u32> {
        let of_it = self.of_comm(hash).map(|(_, member)| member);
        let known: BTreeMap<u32, u32> = of_it.filter_map(|member| Some((member.rank, member.world?))).collect();
        if known.iter().all(|(rank, world)| rank == world) { BTreeMap::new() } else { known }
    }

    /// Whether a rank came to an operation, and when, if known. `first` waits in it, and so does
    /// the rank in `standing`.
    fn came(&self, key: Key, index: usize, first: &Standing, standing: Option<&Standing>) -> Option<Option<HostNs>> {
        let seen = self.seen.get(&(key, index));
        // The host may have been far ahead of a channel.
        let is_channel = standing.is_some_and(|it| it.kind == Work::Channel);
        let handed_over = seen.and_then(|seen| seen.handed_over).filter(|_| !is_channel);
        let when = handed_over.or(standing.map(|it| it.begin));
        // A rank that waits in a later run of a graph has come to this one.
        let is_beyond =
            |it: &&Standing| it.member == index && (it.key.0, it.key.1) == (key.0, key.1) && it.key.2 > key.2;
        let is_beyond = match key.2 {
            Some(_) => self.standing.iter().any(|it| is_beyond(&it)),
            // Of what came before the part that was read, and of what a full file does not show,
            // only the newest is named.
            None => self.newest(index, first).zip(first.seq).is_some_and(|(newest, seq)| newest >= seq),
        };
        // NCCL may not report the hand-over in a replayed graph; then the kernel shows that it ran.
        let came = when.is_some() || is_beyond || self.has_run(key, index) || self.has_called(key, index);
        came.then_some(when)
    }

    /// Whether a rank that came to an operation at this time handed over others long after. Then it
    /// did not wait for this one; only its end was not seen.
    fn went_on(&self, index: usize, came: HostNs) -> bool {
        let until = self.finalized(index, came).unwrap_or(HostNs(u64::MAX));
        self.last_of_process(index).is_some_and(|last| last.since(came) >= PATIENCE_NS && last <= until)
    }

    /// Whether a rank has certainly not come to an operation that others came to this long before
    /// the end, and waited in until then, and is not merely late as before.
    fn is_missing(&self, index: usize, of: &Standing, (came, until): (u64, u64)) -> bool {
        let Some(known) = self.had_not_come(index, of).map(|known| known.max(until)) else { return false };
        let last = self.members[index].last.as_ref();
        let silent = last.map_or(came, |(_, time)| self.age(index, *time).min(came)).saturating_sub(known);
        self.waits_long(index, silent) && (!self.is_new(index) || silent >= FIRST_PATIENCE_NS)
    }

    /// How long before the end it was still known that a rank had not come to an operation, ns.
    /// `None` if it may have come unseen.
    fn had_not_come(&self, index: usize, of: &Standing) -> Option<u64> {
        let process = self.processes.get(&self.members[index].process).filter(|it| !it.is_lossy)?;
        let is_known = || of.key.2.is_none() && of.seq.is_some();
        if process.is_full {
            let newest = self.newest(index, of).filter(|_| is_known())?;
            return (newest < of.seq?).then_some(self.age_in(self.members[index].process, process.alive?));
        }
        // Of a graph, only kernels may show how far it has come.
        if process.lost_kernels.is_some() && of.key.2.is_some() {
            return None;
        }
        // A file that was read from a restart on names all that came before.
        (!process.is_tail || is_known()).then_some(0)
    }

    /// Whether a rank waits in an operation only as far as its kernels show, and the record of the
    /// kernel that ended it may be lost.
    fn may_be_over(&self, it: &Standing) -> bool {
        let process = self.processes.get(&self.members[it.member].process);
        let has_lost = process.and_then(|process| process.lost_kernels).is_some_and(|last| last >= it.begin);
        it.kind == Work::Overdue && (it.is_doubted || has_lost)
    }

    /// How long an operation that a rank has come to may take, ns.
    fn patience(&self, index: usize) -> u64 {
        let Member { is_at_first, ref last, longest_ns, gap_ns, has_runs, .. } = self.members[index];
        // Without kernels, a host that waited for its GPU shows how long operations took.
        let longest_ns = if has_runs { longest_ns } else { longest_ns.max(gap_ns) };
        // NCCL connects ranks, and CUDA loads kernels.
        let first = if is_at_first || last.is_none() { FIRST_PATIENCE_NS } else { 0 };
        first.max(longest_ns.saturating_mul(BEYOND))
    }

    /// Whether the recordings of all ranks of a communicator ended in an orderly way.
    fn have_ended(&self, hash: u64) -> bool {
        self.of_comm(hash).all(|(_, member)| self.processes.get(&member.process).is_some_and(|it| it.ended.is_some()))
    }

    /// What a missing rank was last seen doing.
    fn missing(&self, index: usize, of: &Standing) -> Missing {
        let Member { rank, world, process, ref last, ref place, .. } = self.members[index];
        let before = |time: HostNs| format!("{:.1} s before the end", self.age(index, time) as f64 / 1e9);
        let mut said = match last {
            Some((name, time)) => {
                let Member { collective, newest, .. } = &self.members[index];
                let collective = collective.iter().map(|(it, at)| (it.seq, at));
                let mut numbered = collective.chain(newest.iter().map(|(_, seq, at)| (*seq, at)));
                let seq = numbered.find(|(_, at)| *at == time);
                let seq = seq.map_or_else(String::new, |(seq, _)| format!(", seq {seq}"));
                format!("last seen: {name}{seq}, {}", before(*time))
            }
            None => match self.calls(of.key, index) {
                Some((function, made, number)) => {
                    let [made, number] = [made, number].map(|count| match count {
                        1 => "once".to_owned(),
                        _ => format!("{count} times"),
                    });
                    format!("it called {function} {made}, the others {number}")
                }
                None => "it handed over nothing".to_owned(),
            },
        };
        let call = self.calls.iter().filter(|(of, ..)| *of == process).min_by_key(|(.., since)| *since);
        let state = self.processes.get(&process);
        if let Some(ended) = state.and_then(|state| state.ended) {
            said.push_str(&format!(", its recording ended {}", before(ended)));
        } else if let Some((_, name, since)) = call {
            said.push_str(&format!(", in {name} since {}", before(*since)));
        }
        let is_unclear = self.had_not_come(index, of).is_none();
        if state.is_some_and(|state| state.is_lossy || state.lost_kernels.is_some() && is_unclear) {
            said.push_str("; records were dropped there, so it may have come");
        } else if state.is_some_and(|state| state.is_full) && is_unclear {
            said.push_str("; its file was full, so it may have come");
        } else if is_unclear {
            said.push_str("; only the end of its file was read, so it may have come");
        }
        Missing { rank, world, process: place.clone(), last: said, waits: None }
    }

    /// The recordings' remarks, each with its rank and process.
    fn notes(&self, noted: &BTreeMap<u32, &Standing>, in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        let text = |(rank, it): (&u32, &&Standing)| {
            let place = self.members[it.member].place.as_ref();
            let place = place.map_or_else(String::new, |place| format!(", {place}"));
            format!("rank {}{place}: {}", named(*rank, in_job), it.note)
        };
        noted.iter().take(LISTED).map(text).collect()
    }
}

impl Job {
    /// Ranks whose GPU has not begun with an operation that others work on, as channels show.
    fn not_begun(&self, key: Key, on: &[&Standing], in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        if !on.iter().any(|it| it.kind == Work::Channel) {
            return Vec::new();
        }
        let has_begun =
            |index: usize| self.seen.get(&(key, index)).is_some_and(|seen| seen.has_begun || seen.ran.is_some());
        let of_it = self.of_comm(key.0).filter(|(_, member)| member.has_channels);
        let waits = of_it.filter(|(index, _)| !has_begun(*index) && !self.is_cut(*index));
        let text = |(_, Member { rank, place, .. }): (usize, &Member)| {
            let place = place.as_ref().map_or_else(String::new, |place| format!(", {place}"));
            format!("rank {}{place}: the GPU has not been seen to begin with it", named(*rank, in_job))
        };
        waits.map(text).take(LISTED).collect()
    }

    /// Transfers of a communicator that show where it hangs: the network does not deliver, or a GPU
    /// does not take the data.
    fn links(&self, hash: u64, in_job: &BTreeMap<u32, u32>) -> (Vec<String>, Option<String>) {
        let mut links: BTreeMap<(u32, &str, bool), (u64, u64)> = BTreeMap::new();
        for (member, track, phase, since) in &self.transfers {
            let Member { hash: of, rank, .. } = self.members[*member];
            let over = self.finalized(*member, *since).map_or(0, |time| self.age(*member, time));
            let (age, is_send) = (self.age(*member, *since).saturating_sub(over), track.contains(track::SEND));
            let peer = track.split(' ').skip_while(|word| !["→", "←"].contains(word)).nth(1);
            let tells = matches!((is_send, phase.as_str()), (true, wait::NETWORK) | (false, wait::GPU));
            if let Some(peer) = peer.filter(|_| of == hash && tells && age >= PATIENCE_NS) {
                let (count, oldest) = links.entry((rank, peer, is_send)).or_default();
                (*count, *oldest) = (*count + 1, age.max(*oldest));
            }
        }
        // What a GPU does not take fills its buffers, so that more stays in flight.
        let untaken: BTreeSet<(u32, u32)> = (links.keys().filter(|(.., is_send)| !is_send))
            .filter_map(|(rank, peer, _)| Some((peer.parse().ok()?, *rank)))
            .collect();
        let is_held_up = |rank: u32, peer: &str| peer.parse().is_ok_and(|peer| untaken.contains(&(rank, peer)));
        links.retain(|(rank, peer, is_send), _| !*is_send || !is_held_up(*rank, peer));
        let place = |rank: u32| self.of_comm(hash).find(|(_, it)| it.rank == rank)?.1.place.clone();
        let peer_named = |peer: &str| peer.parse().map_or_else(|_| peer.to_owned(), |peer| named(peer, in_job));
        let text = |(&(rank, peer, is_send), &(count, age)): (&(u32, &str, bool), &(u64, u64))| {
            let (transfers, age) = (if count == 1 { "transfer" } else { "transfers" }, age as f64 / 1e9);
            let (from, to) = (place(rank), peer.parse().ok().and_then(place));
            let (rank, peer) = (named(rank, in_job), peer_named(peer));
            match (is_send, from, to) {
                (true, Some(from), Some(to)) => {
                    format!("rank {rank} → {peer}: {count} {transfers} in flight for {age:.1} s, from {from} to {to}")
                }
                (true, ..) => format!("rank {rank} → {peer}: {count} {transfers} in flight for {age:.1} s"),
                (false, place, _) => {
                    let place = place.map_or_else(String::new, |place| format!(", {place}"));
                    format!("rank {rank}{place}: its GPU has not taken {count} {transfers} from {peer} for {age:.1} s")
                }
            }
        };
        let only = links.keys().next().filter(|_| links.len() == 1).map(|&(rank, peer, is_send)| {
            let (rank, peer) = (named(rank, in_job), peer_named(peer));
            match is_send {
                true => format!("what rank {rank} sent to {peer} was still in flight"),
                false => format!("the GPU of rank {rank} had not taken what {peer} sent"),
            }
        });
        (links.iter().map(text).take(LISTED).collect(), only)
    }
}

#[cfg(test)]
mod tests;
