//! Decides which operation a job hangs in and which ranks are missing (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::survey::Work;
use super::job::{Job, Key, Member, Standing, UNNUMBERED, function};
use super::{BEYOND, FIRST_PATIENCE_NS, Hang, Missing, Operation, PAIRS, PATIENCE_NS, Wait, named};
use crate::cli::LISTED;
use crate::model::time::HostNs;
use crate::trace::words::{track, wait};

/// The operations that a job hangs in: first those that nothing else explains, then by time.
pub(super) fn judge(job: &Job) -> Vec<Hang> {
    let mut by_key: BTreeMap<Key, (usize, Vec<&Standing>)> = BTreeMap::new();
    for (place, it) in job.standing.iter().enumerate() {
        by_key.entry(it.key).or_insert((place, Vec::new())).1.push(it);
    }
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
        if of_comm.first().is_none_or(|(_, first)| first.operation.seq.is_none() && hang.operation.seq.is_none()) {
            of_comm.push((place, hang));
        }
    }
    // Of many sends and receives, those with a missing rank tell most; what a rank sends to itself
    // tells least.
    for of_comm in of_comms.values_mut() {
        of_comm.sort_by_key(|(_, hang)| (hang.missing.is_empty(), hang.of == 1));
        of_comm.truncate(PAIRS);
    }
    let mut hangs: Vec<(usize, Hang)> = of_comms.into_values().flatten().collect();
    hangs.sort_by_key(|(place, _)| *place);
    let mut hangs: Vec<Hang> = hangs.into_iter().map(|(_, hang)| hang).collect();
    explain(&mut hangs);
    // If a missing rank waits in another operation, that other operation is the cause.
    let is_explained = |hang: &Hang| {
        hang.circle.is_empty() && (hang.missing.is_empty() || hang.missing.iter().any(|it| it.waits.is_some()))
    };
    let is_to_itself = |hang: &Hang| hang.of == 1 && hang.is_numbered;
    hangs.sort_by_key(|hang| (!hang.is_certain, is_explained(hang), is_to_itself(hang), std::cmp::Reverse(hang.age)));
    hangs
}

/// For ranks that are missing in one operation, notes the other operation in which they wait, and
/// whether that leads back to the first.
fn explain(hangs: &mut [Hang]) {
    let mut waits: HashMap<u64, Vec<(usize, Operation)>> = HashMap::new();
    for (index, hang) in hangs.iter().enumerate() {
        for process in hang.waiting.iter().filter_map(|rank| hang.processes.get(rank)) {
            waits.entry(*process).or_default().push((index, hang.operation.clone()));
        }
    }
    let is_certain: Vec<bool> = hangs.iter().map(|hang| hang.is_certain).collect();
    let mut leads = vec![Vec::new(); hangs.len()];
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
    if let Some((first, circle)) = circle(&leads) {
        hangs[first].circle = circle;
    }
    // An operation that all have come to may wait on the GPU for one that is older and not certain.
    for index in 0..hangs.len() {
        let hang = &hangs[index];
        let processes = hang.waiting.iter().filter_map(|rank| waits.get(hang.processes.get(rank)?));
        let is_behind = |&(of, _): &(usize, Operation)| {
            let it = &hangs[of];
            !it.missing.is_empty() && !it.is_certain && it.age >= hang.age
        };
        if hang.missing.is_empty() && processes.flatten().any(is_behind) {
            hangs[index].is_certain = false;
        }
    }
}

/// A circle of operations, each of which leads to the next because a rank that is missing in the one
/// waits in the other; and one of these operations.
fn circle(leads: &[Vec<(usize, Wait)>]) -> Option<(usize, Vec<Wait>)> {
    // Where an end can be reached only, there is no circle.
    let mut is_left = vec![true; leads.len()];
    let goes_on = |is_left: &[bool], from: usize| leads[from].iter().find(|(to, _)| is_left[*to]);
    while let Some(end) = (0..leads.len()).find(|at| is_left[*at] && goes_on(&is_left, *at).is_none()) {
        is_left[end] = false;
    }
    let mut at = is_left.iter().position(|is_left| *is_left)?;
    let mut path: Vec<(usize, &Wait)> = Vec::new();
    while !path.iter().any(|(from, _)| *from == at) {
        let (to, wait) = goes_on(&is_left, at)?;
        path.push((at, wait));
        at = *to;
    }
    let waits = path.into_iter().skip_while(|(from, _)| *from != at).map(|(_, wait)| wait.clone());
    Some((at, waits.collect()))
}

impl Job {
    fn hang(&self, key: Key, on: &[&Standing]) -> Hang {
        let (hash, _, replay) = key;
        let first = on[0];
        let member = &self.members[first.member];
        let ranks = self.ranks.get(&hash).copied().unwrap_or_default();
        let takes: Vec<u32> = match first.peer {
            // Nothing shows who else has come.
            _ if key.1 == UNNUMBERED => {
                on.iter().map(|it| self.members[it.member].rank).collect::<BTreeSet<_>>().into_iter().collect()
            }
            Some(peer) if peer != member.rank => vec![member.rank.min(peer), member.rank.max(peer)],
            Some(peer) => vec![peer],
            None => (0..ranks).collect(),
        };
        let (mut came, mut waiting, mut missing, mut unseen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut processes = BTreeMap::new();
        // The first rank to come, by age; and how long the last has waited.
        let (mut first_came, mut waited, mut behind) = ((0, HostNs::default()), u64::MAX, 0);
        let mut patience = PATIENCE_NS;
        let mut has_paused = false;
        for &rank in &takes {
            let found = self.members.iter().position(|member| member.hash == hash && member.rank == rank);
            let Some(index) = found else {
                unseen.push(rank);
                continue;
            };
            processes.insert(rank, self.members[index].process);
            match self.came(key, index, on) {
                Some(time) => {
                    came.push(rank);
                    // An operation after which the process went on was never closed, but is long over.
                    let went_on = time.is_some_and(|time| self.went_on(index, time));
                    if !went_on {
                        waiting.push(rank);
                    }
                    if let Some(time) = time {
                        let age = self.age(index, time);
                        has_paused |= went_on;
                        (first_came, waited) = (first_came.max((age, time)), waited.min(age));
                    }
                    behind = behind.max(self.seen.get(&(key, index)).map_or(0, |seen| seen.behind));
                    patience = patience.max(self.patience(index));
                }
                None => missing.push(index),
            }
        }
        let (age, begin) = first_came;
        let waited = waited.min(age);
        // Where records of kernels were lost, an operation may be over that was not seen to end.
        let may_be_over = on.iter().all(|it| self.may_be_over(it));
        let is_certain = match &missing[..] {
            // A rank with losses may have lost what it handed over.
            _ if has_paused => false,
            [] => waited >= patience && !self.have_ended(hash) && !may_be_over,
            _ if may_be_over && replay.is_some() => false,
            missing => missing.iter().all(|&index| self.is_missing(index, first, age)),
        };
        let in_job = self.in_job(hash);
        let mut notes = self.notes(on, &in_job);
        if missing.is_empty() {
            notes.extend(self.not_begun(key, on, &in_job));
            notes.extend(self.links(hash, &in_job));
        }
        let missing = missing.into_iter().map(|index| self.missing(index, first)).collect();
        Hang {
            operation: Operation { name: first.name.clone(), seq: first.seq, replay, comm: member.label.clone(), hash },
            of: takes.len(),
            is_numbered: key.1 != UNNUMBERED,
            is_call: on.iter().all(|it| it.kind == Work::Call),
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
            circle: Vec::new(),
            notes,
            processes,
            gone: BTreeMap::new(),
            is_over: false,
        }
    }

    /// Which ranks of the job a communicator's are; empty if the numbers are the same.
    fn in_job(&self, hash: u64) -> BTreeMap<u32, u32> {
        let of_it = self.members.iter().filter(|member| member.hash == hash);
        let known: BTreeMap<u32, u32> = of_it.filter_map(|member| Some((member.rank, member.world?))).collect();
        if known.iter().all(|(rank, world)| rank == world) { BTreeMap::new() } else { known }
    }

    /// Whether a rank came to an operation, and when, if known.
    fn came(&self, key: Key, index: usize, on: &[&Standing]) -> Option<Option<HostNs>> {
        let seen = self.seen.get(&(key, index));
        let standing = on.iter().find(|it| it.member == index);
        // The host may have been far ahead of a channel.
        let is_channel = standing.is_some_and(|it| it.kind == Work::Channel);
        let handed_over = seen.and_then(|seen| seen.handed_over).filter(|_| !is_channel);
        let when = handed_over.or(standing.map(|it| it.begin));
        // A rank that waits in a later run of a graph has come to this one.
        let is_beyond =
            |it: &&Standing| it.member == index && (it.key.0, it.key.1) == (key.0, key.1) && it.key.2 > key.2;
        let is_beyond = match key.2 {
            Some(_) => self.standing.iter().any(|it| is_beyond(&it)),
            // Of what came before the part that was read, and of what a full file does not show, only
            // the newest is named.
            None => self.newest(index, on[0]).zip(on[0].seq).is_some_and(|(newest, seq)| newest >= seq),
        };
        // NCCL may not report the hand-over in a replayed graph; then the kernel shows that it ran.
        let came = when.is_some() || is_beyond || seen.is_some_and(|seen| seen.ran) || self.has_called(key, index);
        came.then_some(when)
    }

    /// Whether a rank that came to an operation at this time handed over others long after. Then it
    /// did not wait for this one; only its end was not seen.
    fn went_on(&self, index: usize, came: HostNs) -> bool {
        let of_process = self.members.iter().filter(|member| member.process == self.members[index].process);
        let last = of_process.filter_map(|member| member.last.as_ref()).map(|(_, time)| *time).max();
        last.is_some_and(|last| last.since(came) >= PATIENCE_NS)
    }

    /// Whether a rank has certainly not come to an operation that others came to this long before
    /// the end, and is not merely late as before.
    fn is_missing(&self, index: usize, of: &Standing, came: u64) -> bool {
        let Some(known) = self.had_not_come(index, of) else { return false };
        let last = self.members[index].last.as_ref();
        let silent = last.map_or(came, |(_, time)| self.age(index, *time).min(came)).saturating_sub(known);
        self.waits_long(index, silent) && (!self.is_new(index) || silent >= FIRST_PATIENCE_NS)
    }

    /// How long before the end it was still known that a rank had not come to an operation, ns. `None`
    /// if it may have come unseen.
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

    /// Whether a rank waits in an operation only as far as its kernels show, and the record of the kernel
    /// that ended it may be lost.
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
        let of_it = self.members.iter().filter(|member| member.hash == hash);
        of_it.into_iter().all(|member| self.processes.get(&member.process).is_some_and(|it| it.ended.is_some()))
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
            None => "it handed over nothing".to_owned(),
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
    fn notes(&self, on: &[&Standing], in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        let noted = on.iter().filter(|it| !it.note.is_empty() && it.kind == Work::Overdue);
        let text = |it: &&Standing| {
            let Member { rank, place, .. } = &self.members[it.member];
            let place = place.as_ref().map_or_else(String::new, |place| format!(", {place}"));
            format!("rank {}{place}: {}", named(*rank, in_job), it.note)
        };
        let notes: BTreeSet<String> = noted.map(text).collect();
        notes.into_iter().take(LISTED).collect()
    }
}

impl Job {
    /// Ranks whose GPU has not begun with an operation that others work on, as channels show.
    fn not_begun(&self, key: Key, on: &[&Standing], in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        if !on.iter().any(|it| it.kind == Work::Channel) {
            return Vec::new();
        }
        let has_begun = |index: usize| self.seen.get(&(key, index)).is_some_and(|seen| seen.has_begun || seen.ran);
        let of_it = self.members.iter().enumerate().filter(|(_, member)| member.hash == key.0 && member.has_channels);
        let waits = of_it.filter(|(index, _)| !has_begun(*index) && !self.is_cut(*index));
        let text = |(_, Member { rank, place, .. }): (usize, &Member)| {
            let place = place.as_ref().map_or_else(String::new, |place| format!(", {place}"));
            format!("rank {}{place}: the GPU has not been seen to begin with it", named(*rank, in_job))
        };
        waits.map(text).take(LISTED).collect()
    }

    /// Transfers of a communicator that show where it hangs: the network does not deliver, or a GPU
    /// does not take the data.
    fn links(&self, hash: u64, in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        let mut links: BTreeMap<(u32, &str, bool), (u64, u64)> = BTreeMap::new();
        for (member, track, phase, since) in &self.transfers {
            let Member { hash: of, rank, .. } = self.members[*member];
            let (age, is_send) = (self.age(*member, *since), track.contains(track::SEND));
            let peer = track.split(' ').skip_while(|word| !["→", "←"].contains(word)).nth(1);
            let tells = matches!((is_send, phase.as_str()), (true, wait::NETWORK) | (false, wait::GPU));
            if let Some(peer) = peer.filter(|_| of == hash && tells && age >= PATIENCE_NS) {
                let (count, oldest) = links.entry((rank, peer, is_send)).or_default();
                (*count, *oldest) = (*count + 1, age.max(*oldest));
            }
        }
        let text = |((rank, peer, is_send), (count, age)): ((u32, &str, bool), (u64, u64))| {
            let (transfers, age) = (if count == 1 { "transfer" } else { "transfers" }, age as f64 / 1e9);
            let rank = named(rank, in_job);
            let peer = peer.parse().map_or_else(|_| peer.to_owned(), |peer| named(peer, in_job));
            match is_send {
                true => format!("rank {rank} → {peer}: {count} {transfers} in flight for {age:.1} s"),
                false => format!("rank {rank}: its GPU has not taken {count} {transfers} from {peer} for {age:.1} s"),
            }
        };
        links.into_iter().map(text).take(LISTED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::survey::{Collective, Process};
    use super::super::job::Seen;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// When each recording ends; each host has its own clock.
    const END: [HostNs; 2] = [HostNs(100 * SECOND), HostNs(5_000 * SECOND)];

    fn mark(hash: u64, seq: u64) -> u64 {
        seq << 28 | hash
    }

    /// Ranks of a communicator, one per process and every other one on another host. Those in
    /// `came` have waited in operation 5 for four seconds; all others ended with operation 4 before
    /// that.
    fn job(hash: u64, ranks: u32, first_process: u64, came: &[u32]) -> Job {
        let mut job = Job::default();
        add(&mut job, hash, &(0..ranks).map(|rank| first_process + u64::from(rank)).collect::<Vec<_>>(), came, 4);
        job
    }

    fn add(job: &mut Job, hash: u64, processes: &[u64], came: &[u32], age: u64) {
        job.ranks.insert(hash, processes.len() as u32);
        for (rank, &process) in (0..).zip(processes) {
            let end = END[(process % 2) as usize];
            job.ends.insert(process, end);
            job.processes.insert(process, Process { last: end, ..Process::default() });
            let has_come = came.contains(&rank);
            let (seq, age) = if has_come { (5, age) } else { (4, age + 1) };
            let begin = end.saturating_sub(age * SECOND);
            let last = Collective { correlation: mark(hash, seq), name: "AllReduce 1 MiB f32".into(), seq };
            job.members.push(Member {
                hash,
                rank,
                label: format!("comm {hash}"),
                process,
                world: Some(process as u32),
                place: Some(format!("pid {process} on host")),
                last: Some((last.name.clone(), begin)),
                collective: Some((last, begin)),
                gap_ns: SECOND / 10,
                longest_ns: SECOND / 10,
                has_runs: true,
                has_channels: false,
                newest: Vec::new(),
                is_at_first: false,
            });
            if has_come {
                let (member, key) = (job.members.len() - 1, (hash, mark(hash, 5), None));
                job.seen.insert((key, member), Seen { handed_over: Some(begin), behind: 3, ..Seen::default() });
                job.standing.push(Standing {
                    member,
                    key,
                    begin,
                    kind: Work::Overdue,
                    name: "AllReduce 1 MiB f32".into(),
                    seq: Some(5),
                    peer: None,
                    note: String::new(),
                    is_doubted: false,
                });
            }
        }
    }

    fn said(job: &Job) -> Vec<(bool, String)> {
        judge(job).iter().map(|hang| (hang.is_certain, hang.to_string())).collect()
    }

    #[test]
    fn the_missing_rank_is_named() {
        let expected = "AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks have come and waited 4.0 s, missing: 2 (last seen: \
                        AllReduce 1 MiB f32, seq 4, 5.0 s before the end)";
        assert_eq!(said(&job(7, 4, 0, &[0, 1, 3])), [(true, expected.to_owned())]);
    }

    #[test]
    fn a_wait_no_longer_than_earlier_ones_is_not_called_a_hang() {
        let mut late = job(7, 4, 0, &[0, 1, 3]);
        late.members[2].gap_ns = 2 * SECOND;
        assert!(!said(&late)[0].0, "the rank that is missing paused for as long before");
        let mut slow = job(7, 4, 0, &[0, 1, 2, 3]);
        assert!(said(&slow)[0].0);
        slow.members[1].longest_ns = 2 * SECOND;
        assert!(!said(&slow)[0].0, "operations took as long before");
        (slow.members[1].longest_ns, slow.members[1].gap_ns) = (0, 2 * SECOND);
        assert!(said(&slow)[0].0, "only the host paused");
        slow.members[1].has_runs = false;
        assert!(!said(&slow)[0].0, "it may have paused for the GPU");
    }

    #[test]
    fn a_first_operation_may_take_long() {
        let mut first = job(7, 2, 0, &[0, 1]);
        first.members[1].is_at_first = true;
        assert!(!said(&first)[0].0, "NCCL may be connecting the ranks");
        first.ends.values_mut().for_each(|end| *end = end.saturating_add(30 * SECOND));
        assert!(said(&first)[0].0);
        // Inside the first call, nothing has been handed over.
        let mut call = job(7, 2, 0, &[0, 1]);
        call.members.iter_mut().for_each(|member| (member.last, member.collective) = (None, None));
        assert!(!said(&call)[0].0);
    }

    #[test]
    fn channels_show_whose_gpu_has_not_begun() {
        let mut job = job(7, 3, 0, &[0, 1, 2]);
        job.standing.retain(|it| it.member != 1);
        // The hosts were far ahead: rank 0 handed it over 60 s before.
        let begun = END[0].saturating_sub(4 * SECOND);
        for it in &mut job.standing {
            it.kind = Work::Channel;
            let seen = job.seen.get_mut(&(it.key, it.member)).expect("an operation");
            (seen.has_begun, seen.handed_over) = (true, Some(begun.saturating_sub(60 * SECOND)));
        }
        job.members.iter_mut().for_each(|member| (member.has_runs, member.has_channels) = (false, true));
        let hangs = judge(&job);
        assert_eq!((hangs[0].waited, hangs[0].is_certain), (4 * SECOND, true), "{hangs:?}");
        assert_eq!(hangs[0].notes, ["rank 1, pid 1 on host: the GPU has not been seen to begin with it"]);
        job.members[2].longest_ns = 2 * SECOND;
        assert!(!judge(&job)[0].is_certain, "a channel took as long before");
        job.members[1].has_channels = false;
        assert_eq!(judge(&job)[0].notes, [""; 0], "NCCL reports no channels there");
    }

    #[test]
    fn losses_make_a_hang_uncertain() {
        let mut job = job(7, 4, 0, &[0, 1, 3]);
        job.processes.get_mut(&2).expect("the process of rank 2").is_lossy = true;
        let (is_certain, text) = &said(&job)[0];
        assert!(!is_certain && text.contains("records were dropped there, so it may have come"), "{text}");
    }

    #[test]
    fn where_kernels_were_lost_an_operation_may_be_over() {
        let certain = |job: &Job| said(job)[0].0;
        let lose = |job: &mut Job, processes: &[u64]| {
            for process in processes {
                job.processes.get_mut(process).expect("a process").lost_kernels = Some(job.ends[process]);
            }
        };
        // What a rank handed over does not depend on kernels.
        let mut job_of_missing = job(7, 3, 0, &[0, 1]);
        lose(&mut job_of_missing, &[0, 1, 2]);
        assert!(certain(&job_of_missing), "rank 2 called nothing");
        // But in which run of a graph it is does.
        let replayed = |job: &mut Job| {
            for it in &mut job.standing {
                it.key.2 = Some(30);
            }
            job.seen.clear();
        };
        for (lost, is_certain) in [(&[][..], true), (&[2], false), (&[0], true), (&[0, 1], false)] {
            let mut job = job(7, 3, 0, &[0, 1]);
            replayed(&mut job);
            lose(&mut job, lost);
            assert_eq!(certain(&job), is_certain, "{lost:?}: {:?}", said(&job));
        }
        for (lost, is_certain) in [(&[][..], true), (&[0], true), (&[0, 1, 2], false)] {
            let mut job = job(7, 3, 0, &[0, 1, 2]);
            lose(&mut job, lost);
            assert_eq!(certain(&job), is_certain, "{lost:?}: {:?}", said(&job));
            // Nothing that was lost before it was handed over can have been its kernel.
            for process in job.processes.values_mut() {
                process.lost_kernels = process.lost_kernels.map(|last| last.saturating_sub(60 * SECOND));
            }
            assert!(certain(&job), "{lost:?}: {:?}", said(&job));
            // The recordings know of losses that nothing else shows.
            for it in job.standing.iter_mut().filter(|it| lost.contains(&(it.member as u64))) {
                it.is_doubted = true;
            }
            assert_eq!(certain(&job), is_certain, "{lost:?}: {:?}", said(&job));
        }
    }

    #[test]
    fn a_rank_whose_file_was_full_or_left_something_out_did_not_fall_silent() {
        let mut full = job(7, 4, 0, &[0, 1, 3]);
        full.processes.get_mut(&2).expect("the process of rank 2").is_full = true;
        let (is_certain, text) = &said(&full)[0];
        assert!(!is_certain && text.contains("its file was full, so it may have come"), "{text}");

        let healthy = job(7, 4, 0, &[0, 1, 3]);
        assert_eq!(healthy.silent(), [2]);
        for cut in [|it: &mut Process| it.is_full = true, |it: &mut Process| it.is_partial = true] {
            let mut job = healthy.clone();
            cut(job.processes.get_mut(&2).expect("the process of rank 2"));
            assert_eq!(job.silent(), [0_usize; 0]);
        }
    }

    #[test]
    fn a_full_file_tells_how_far_its_rank_has_come() {
        let mut job = job(7, 4, 0, &[0, 1, 3]);
        job.ends.values_mut().for_each(|end| *end = end.saturating_add(60 * SECOND));
        let end = job.ends[&2];
        let process = job.processes.get_mut(&2).expect("the process of rank 2");
        (process.is_full, process.alive) = (true, Some(end.saturating_sub(8 * SECOND)));
        let newest = |job: &mut Job, name: &str, seq, age: u64| {
            let at = end.saturating_sub(age * SECOND);
            job.members[2].newest = vec![(name.to_owned(), seq, at)];
            job.members[2].last = Some((name.to_owned(), at));
        };
        newest(&mut job, "AllReduce 1 MiB f32", 4, 66);
        let expected = "AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks have come and waited 64.0 s, missing: 2 (last \
                        seen: AllReduce 1 MiB f32, seq 4, 66.0 s before the end)";
        assert_eq!(said(&job), [(true, expected.to_owned())]);
        // It came between its last words and the end, or has gone on.
        for (seq, has_come) in [(5, true), (9, true), (4, false)] {
            newest(&mut job, "AllReduce 2 MiB f32", seq, 66);
            assert_eq!(said(&job)[0].1.contains("all 4 ranks have come"), has_come, "{seq}: {:?}", said(&job));
        }
        let may_have_come = |job: &Job| {
            let (is_certain, text) = &said(job)[0];
            !is_certain && text.contains("its file was full, so it may have come")
        };
        newest(&mut job, "AllGather 1 MiB f32", 4, 66);
        assert!(may_have_come(&job), "of another function nothing follows: {:?}", said(&job));
        newest(&mut job, "AllReduce 1 MiB f32", 4, 66);
        job.processes.get_mut(&2).expect("the process of rank 2").alive = Some(end.saturating_sub(63 * SECOND));
        assert!(!said(&job)[0].0, "a second after the others had come, it was merely late");
        job.processes.get_mut(&2).expect("the process of rank 2").alive = None;
        assert!(may_have_come(&job), "nothing was said after the file was full: {:?}", said(&job));
    }

    #[test]
    fn the_end_of_a_file_tells_how_far_its_rank_had_come_before() {
        let mut job = job(7, 4, 0, &[0, 1, 3]);
        job.processes.get_mut(&2).expect("the process of rank 2").is_tail = true;
        let (is_certain, text) = said(&job).swap_remove(0);
        assert!(is_certain && text.contains("missing: 2 (last seen: AllReduce 1 MiB f32, seq 4"), "{text}");
        for (seq, has_come) in [(5, true), (9, true), (4, false)] {
            job.members[2].newest = vec![("AllReduce 2 MiB f32".to_owned(), seq, HostNs(SECOND))];
            assert_eq!(said(&job)[0].1.contains("all 4 ranks have come"), has_come, "{seq}: {:?}", said(&job));
        }
        // Sends and receives have no numbers.
        job.standing.iter_mut().for_each(|it| it.seq = None);
        let (is_certain, text) = said(&job).swap_remove(0);
        assert!(!is_certain && text.contains("only the end of its file was read, so it may have come"), "{text}");
    }

    #[test]
    fn who_came_to_a_later_operation_came_to_the_first_one_before() {
        // Rank 1 is far ahead, and only that is in the part of its file that was read.
        let mut job = job(7, 4, 0, &[0, 1, 3]);
        let (key, begin) = ((7, mark(7, 6), None), END[1].saturating_sub(5 * SECOND));
        job.standing
            .iter_mut()
            .filter(|it| it.member == 1)
            .for_each(|it| (it.key, it.begin, it.seq) = (key, begin, Some(6)));
        job.processes.get_mut(&1).expect("the process of rank 1").is_tail = true;
        job.members[1].newest = vec![("AllReduce 1 MiB f32".to_owned(), 6, begin)];
        job.seen.retain(|(_, member), _| *member != 1);
        assert!(said(&job)[0].1.starts_with("AllReduce 1 MiB f32, seq 5 on comm 7: 3 of 4 ranks"), "{:?}", said(&job));
    }

    #[test]
    fn where_others_went_on_follows_from_the_newest_that_their_files_name() {
        for (newest, name) in [(5, "AllReduce 2 MiB f32, seq 5"), (8, "AllReduce, seq 5")] {
            let mut job = job(7, 3, 0, &[0, 1]);
            job.standing.clear();
            job.seen.clear();
            for member in [0, 1] {
                let process = job.members[member].process;
                job.processes.get_mut(&process).expect("its process").is_tail = true;
                let time = job.members[member].last.as_ref().expect("an operation").1;
                job.members[member].newest = vec![("AllReduce 2 MiB f32".to_owned(), newest, time)];
            }
            assert_eq!(job.silent(), [2]);
            job.stand_where_others_went_on(&[2]);
            let text = &said(&job)[0].1;
            assert!(text.starts_with(&format!("{name} on comm 7: 2 of 3 ranks have come")), "{text}");
            assert!(text.contains("missing: 2 (last seen: AllReduce 1 MiB f32, seq 4"), "{text}");
        }
    }

    #[test]
    fn ranks_without_files_are_not_called_missing() {
        let mut job = job(7, 4, 0, &[0, 1]);
        job.members.truncate(2);
        let text = &said(&job)[0].1;
        assert!(text.contains("2 of 4 ranks have come, the files of the others are not here: 2, 3"), "{text}");
        assert!(!text.contains("missing"), "{text}");
    }

    #[test]
    fn a_rank_that_waits_elsewhere_is_not_the_cause() {
        // Ranks 0 to 2 wait in 7 for rank 3, which waits in 9 for rank 4.
        let mut job = job(7, 4, 0, &[0, 1, 2]);
        add(&mut job, 9, &[3, 4], &[0], 3);
        let hangs = judge(&job);
        let missing = |hang: &Hang| {
            hang.missing.iter().map(|it| (it.world, it.waits.as_ref().map(ToString::to_string))).collect::<Vec<_>>()
        };
        assert_eq!(
            hangs.iter().map(|hang| hang.operation.hash).collect::<Vec<_>>(),
            [9, 7],
            "though 7 waits for longer"
        );
        assert_eq!(missing(&hangs[0]), [(Some(4), None)]);
        assert_eq!(missing(&hangs[1]), [(Some(3), Some("AllReduce 1 MiB f32, seq 5 on comm 9".into()))]);
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_named() {
        // Ranks 0 and 1 share 7, 1 and 2 share 8, 2 and 0 share 9, and each has come to one of them.
        let mut job = Job::default();
        for (hash, came) in [(7, 0), (8, 1), (9, 2)] {
            add(&mut job, hash, &[came, (came + 1) % 3], &[0], 4);
        }
        // Rank 3 waits for rank 0, which is no part of the circle.
        add(&mut job, 5, &[3, 0], &[0], 6);
        let hangs = judge(&job);
        let on = |hash: u64| format!("AllReduce 1 MiB f32, seq 5 on comm {hash}");
        let (seven, eight, nine) = (on(7), on(8), on(9));
        let text = format!(
            "probably a deadlock, for 4.0 s: rank 1 waits for rank 2 in {eight}; rank 2 for rank 0 in {nine}; \
             rank 0 for rank 1 in {seven}. They call these in different orders"
        );
        assert_eq!((hangs[0].to_string(), hangs[0].operation.hash), (text, 7));
        let own = "1 of 2 ranks have come and waited 4.0 s, missing: 1 (last seen: AllReduce 1 MiB f32, seq 4";
        assert!(hangs[0].details()[0].starts_with(&format!("{seven}: {own}")), "{:?}", hangs[0].details());
        assert!(hangs[1..].iter().all(|hang| hang.circle.is_empty()), "{hangs:?}");

        // If rank 2 has lost records, it may have come.
        job.processes.get_mut(&2).expect("the process of rank 2").is_lossy = true;
        assert!(judge(&job).iter().all(|hang| hang.circle.is_empty()));
    }

    #[test]
    fn the_order_of_calls_does_not_depend_on_when_recordings_end() {
        let mut job = job(7, 2, 0, &[0]);
        // The recording of the rank that has come ends later, so it seems to have called earlier.
        *job.ends.get_mut(&0).expect("the end of rank 0") = END[0].saturating_add(2 * SECOND);
        assert_eq!(job.silent(), [1]);
    }

    #[test]
    fn a_rank_that_never_called_may_be_loading_something() {
        // Rank 2 never called; 0 and 1 have both come to an operation behind the one without it.
        let mut job = job(7, 3, 0, &[0, 1]);
        add(&mut job, 8, &[0, 1], &[0, 1], 3);
        let rank = &mut job.members[2];
        (rank.last, rank.collective, rank.gap_ns) = (None, None, 0);
        let labels =
            |job: &Job| judge(job).iter().map(|hang| (hang.operation.hash, hang.is_certain)).collect::<Vec<_>>();
        assert_eq!(labels(&job), [(7, false), (8, false)]);
        assert_eq!(job.silent(), [2]);
        job.ends.values_mut().for_each(|end| *end = end.saturating_add(30 * SECOND));
        assert_eq!(labels(&job), [(7, true), (8, true)]);
    }

    #[test]
    fn of_many_sends_those_to_a_missing_rank_are_named() {
        // An all-to-all: each rank sends to itself and to all others, the oldest first. Rank 5 never came.
        let mut job = job(7, 40, 0, &[]);
        for rank in (0..40).filter(|rank| *rank != 5) {
            for by in 0..8 {
                let peer = (rank + by) % 40;
                let key = (7, u64::from(rank) << 32 | u64::from(peer), None);
                let begin = job.ends[&u64::from(rank)].saturating_sub(4 * SECOND - u64::from(by));
                for member in [rank, peer].into_iter().filter(|member| *member != 5) {
                    job.seen.insert((key, member as usize), Seen { handed_over: Some(begin), ..Seen::default() });
                }
                let (kind, name, note) = (Work::Overdue, format!("Send 1 MiB f32 → {peer}"), String::new());
                let (member, seq, peer, is_doubted) = (rank as usize, None, Some(peer), false);
                job.standing.push(Standing { member, key, begin, kind, name, seq, peer, note, is_doubted });
            }
        }
        let hangs = judge(&job);
        assert!(hangs.len() == PAIRS && hangs[..7].iter().all(|hang| hang.missing.len() == 1), "{hangs:?}");
        assert_eq!((&*hangs[0].operation.name, hangs[0].missing[0].rank), ("Send 1 MiB f32 → 5", 5));
        let text = hangs[0].to_string();
        assert!(text.contains(" has come and waited 4.0 s, missing: 5 (last seen"), "{text}");
        assert!(hangs.iter().all(|hang| hang.of == 2), "none is to itself");
    }

    #[test]
    fn the_first_operation_of_a_communicator_is_named() {
        let mut job = job(7, 2, 0, &[0, 1]);
        for member in [0, 1] {
            let key = (7, mark(7, 6), None);
            let begin = job.members[member].last.as_ref().expect("an operation").1.saturating_add(10);
            job.standing.insert(0, Standing { key, begin, seq: Some(6), ..job.standing[member].clone() });
            job.seen.insert((key, member), Seen { handed_over: Some(begin), behind: 2, ..Seen::default() });
        }
        let hangs = judge(&job);
        assert_eq!(hangs.iter().map(|hang| (hang.operation.seq, hang.behind)).collect::<Vec<_>>(), [(Some(5), 3)]);
    }

    #[test]
    fn an_ended_process_is_reported_as_ended() {
        let mut job = job(7, 3, 0, &[0, 1]);
        let process = job.processes.get_mut(&2).expect("the process of rank 2");
        process.ended = Some(END[0].saturating_sub(3 * SECOND));
        let text = &said(&job)[0].1;
        assert!(text.contains("missing: 2 (") && text.contains("its recording ended 3.0 s before the end"), "{text}");
    }

    #[test]
    fn transfers_show_where_it_hangs_if_all_ranks_have_come() {
        let mut job = job(7, 3, 0, &[0, 1, 2]);
        let since = END[0].saturating_sub(4 * SECOND);
        for (track, phase) in
            [("send → 1", "network wait"), ("send → 1", "network wait"), ("receive ← 2", "network wait")]
        {
            job.transfers.push((0, format!("comm 7 · {track} · steps"), phase.into(), since));
        }
        job.transfers.push((2, "comm 7 · receive ← 1 · steps".into(), "GPU wait".into(), since));
        job.transfers.push((2, "comm 7 · send → 0 · steps".into(), "GPU wait".into(), since));
        assert_eq!(
            judge(&job)[0].notes,
            [
                "rank 0 → 1: 2 transfers in flight for 4.0 s",
                "rank 2: its GPU has not taken 1 transfer from 1 for 4.0 s"
            ]
        );
    }

    #[test]
    fn ranks_of_a_part_of_the_job_are_named_by_their_numbers_in_the_job_too() {
        // Ranks 0 and 1 of the communicator are 4 and 5 of the job.
        let mut missing = job(7, 2, 4, &[0]);
        let hang = &judge(&missing)[0];
        assert!(hang.to_string().contains("missing: 1 (rank 5 of the job) (last seen"), "{hang}");
        assert_eq!(hang.details()[0], "rank 1 (rank 5 of the job) is pid 5 on host");
        missing.members[1].world = None;
        missing.members[0].world = None;
        assert!(judge(&missing)[0].to_string().contains("missing: 1 (last seen"), "where that is not known");

        let mut stuck = job(7, 2, 4, &[0, 1]);
        stuck.standing[1].note = "the GPU had not finished an earlier kernel: forward".into();
        let since = END[1].saturating_sub(4 * SECOND);
        stuck.transfers.push((1, "comm 7 · receive ← 0 · steps".into(), "GPU wait".into(), since));
        assert_eq!(
            judge(&stuck)[0].notes,
            [
                "rank 1 (rank 5 of the job), pid 5 on host: the GPU had not finished an earlier kernel: forward",
                "rank 1 (rank 5 of the job): its GPU has not taken 1 transfer from 0 (rank 4 of the job) for 4.0 s"
            ]
        );
    }

    #[test]
    fn without_a_hang_nothing_is_reported() {
        assert_eq!(said(&job(7, 3, 0, &[])), []);
    }
}
