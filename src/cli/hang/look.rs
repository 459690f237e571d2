//! Reads what the traces show: first everything that is open, then what all ranks did about it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::running::stopped_with_their_hosts;
use super::super::survey::{self, Collective, LAG_NS, Process, Survey, Work, ends_with_its_comm, placed};
use super::PATIENCE_NS;
use super::job::{Job, Key, Member, UNNUMBERED, function, key};
use crate::model::time::HostNs;
use crate::trace::fields::{nccl, track_event::r#type as kind};
use crate::trace::reader::Event;
use crate::trace::words::{self, Category};
use crate::trace::writer::TRACK_BITS;

/// The ranks and what each waits in; and the rank of each track.
pub(super) fn first_look(survey: &Survey) -> (Job, FxHashMap<u64, usize>) {
    let (processes, stopped) = (survey.processes.clone(), stopped_with_their_hosts(survey));
    let mut job = Job { processes, ends: ends(survey), stopped, ..Job::default() };
    let twice = survey.claimed_twice();
    let (mut members, mut member_of) = (HashMap::new(), FxHashMap::default());
    let (mut told_gaps, mut marks) = (FxHashMap::default(), HashMap::new());
    let mut tracks: Vec<_> = survey.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()).collect();
    tracks.sort_unstable_by_key(|(uuid, _)| **uuid);
    for (&uuid, track) in tracks {
        let ([hash], Some((label, rank, ranks))) = (&track.communicators[..], placed(&track.name)) else { continue };
        let Some(process) = survey.process(uuid) else { continue };
        let index = *members.entry((*hash, rank)).or_insert_with(|| {
            let known = survey.tracks.get(&process);
            let world = known.and_then(|track| survey::rank(&track.name)).filter(|rank| !twice.contains(rank));
            let place = survey.place(process);
            let label = label.to_owned();
            job.members.push(Member { hash: *hash, rank, label, process, world, place, ..Member::default() });
            job.members.len() - 1
        });
        member_of.insert(uuid, index);
        let tag = process >> TRACK_BITS;
        note(job.by_label.entry((tag, label.to_owned())).or_default(), index);
        note(job.by_hash.entry((tag, *hash)).or_default(), index);
        job.ranks.insert(*hash, ranks);
        let member = &mut job.members[index];
        member.longest_ns = member.longest_ns.max(track.longest_ns);
        member.has_runs |= track.runs > 0;
        let handed_over = &track.handed_over;
        if handed_over.last.is_some() {
            // On several lanes, each has longer gaps than all of them together.
            let gap = handed_over.gap_ns;
            member.gap_ns = if member.last.is_none() || gap > 0 && gap < member.gap_ns { gap } else { member.gap_ns };
        }
        let told_gap: &mut u64 = told_gaps.entry(index).or_default();
        *told_gap = handed_over.told_gap_ns.max(*told_gap);
        let (last, ran): &mut (Option<_>, Option<_>) = marks.entry(index).or_default();
        *last = (*last).max(handed_over.last.as_ref().map(|(_, time)| (*time, handed_over.mark)));
        *ran = (*ran).max(track.ran);
        later(&mut member.last, &handed_over.last);
        later(&mut member.collective, &handed_over.collective);
        member.newest.extend_from_slice(&handed_over.newest);
        member.finalized = member.finalized.max(track.finalized);
        member.moved = member.moved.max(track.moved.map(|(_, last)| last));
    }
    for (index, told_gap) in told_gaps {
        job.members[index].gap_ns = told_gap.max(job.members[index].gap_ns);
    }
    for (index, (last, ran)) in marks {
        let mark = last.and_then(|(_, mark)| mark);
        job.members[index].has_ended = mark.is_some() && ran.is_some_and(|(_, ran)| ran == mark);
    }
    job.number_ranks();
    let moved = moved(survey);
    for (uuid, track) in survey.tracks.iter().filter(|(_, track)| track.has_kernels) {
        if let (Some(process), Some((_, last))) = (survey.process(*uuid), track.moved) {
            let known: &mut HostNs = job.kernels.entry(process).or_default();
            *known = last.max(*known);
        }
    }
    for (uuid, track) in survey.tracks.iter().filter(|(_, track)| track.name.contains(words::track::CHANNEL)) {
        let process = survey.process(*uuid);
        if let Some(index) = process.and_then(|process| job.working(process, worked_for(&track.name))) {
            let member = &mut job.members[index];
            (member.has_channels, member.longest_ns) = (true, member.longest_ns.max(track.longest_ns));
        }
    }
    for slice in &survey.unfinished {
        let Some(track) = survey.tracks.get(&slice.track) else { continue };
        let Some(process) = survey.process(slice.track) else { continue };
        let end = job.ends.get(&process).copied().unwrap_or_default();
        let its = job.processes.get(&process);
        // What was open when its file was full may have ended; and so may what was open when a file
        // stopped, since its last second is not in it.
        let is_silent = its.is_some_and(|it| it.is_silent_at(end));
        let is_full = its.is_some_and(|it| it.is_full);
        let is_old = !is_full && end.since(slice.begin) >= PATIENCE_NS;
        let working = || {
            let label = worked_for(&track.name);
            let member = job.working(process, label)?;
            // After its communicator was finalized, nothing is reported.
            let end = job.finalized(member, slice.begin).unwrap_or(end);
            let last = moved.get(&(process, label)).map_or(slice.begin, |last| slice.begin.max(*last));
            // Work for forgotten operations says nothing about them.
            (!is_full && end.since(last) >= PATIENCE_NS && slice.correlation.is_some()).then_some(member)
        };
        let members: Vec<usize> = match slice.kind {
            Work::Overdue => member_of.get(&slice.track).copied().into_iter().collect(),
            Work::Call => slice.hash.filter(|_| is_old).map_or(&[][..], |hash| job.callers(process, hash)).to_vec(),
            Work::Proxy => working().into_iter().collect(),
            Work::Channel => working().filter(|index| job.tells_by_channels(*index, slice)).into_iter().collect(),
        };
        for member in members {
            if !is_silent || job.finalized(member, slice.begin).is_some() {
                job.stand(member, slice);
            }
        }
    }
    (job, member_of)
}

/// Notes one of those that a key stands for.
fn note(known: &mut Vec<usize>, index: usize) {
    if !known.contains(&index) {
        known.push(index);
    }
}

/// Keeps the later of the two.
fn later<T: Clone>(one: &mut Option<(T, HostNs)>, other: &Option<(T, HostNs)>) {
    if let Some((_, time)) = other
        && one.as_ref().is_none_or(|(_, before)| before < time)
    {
        one.clone_from(other);
    }
}

/// When the job ended on the clock of each process.
fn ends(survey: &Survey) -> HashMap<u64, HostNs> {
    let mut ends = HashMap::new();
    for group in survey.side_by_side() {
        let last = |process: &u64| survey.processes[process].last;
        let lag = |process: &u64| match survey.processes[process] {
            Process { ended: Some(_), .. } => 0,
            _ => LAG_NS,
        };
        let end = group.iter().map(last).max().unwrap_or_default();
        // A recording that lags a little says nothing about what came after. One that stopped long
        // before was killed, and one with an end was all there is.
        let is_over = |process: &u64| end.since(last(process)) > lag(process);
        ends.extend(group.iter().map(|process| (*process, if is_over(process) { end } else { last(process) })));
    }
    ends
}

/// When the proxy or a channel was last active for a communicator of a process.
fn moved(survey: &Survey) -> HashMap<(u64, &str), HostNs> {
    let mut moved = HashMap::new();
    for (uuid, track) in &survey.tracks {
        let label = worked_for(&track.name);
        if label.len() < track.name.len()
            && let Some(process) = survey.process(*uuid)
        {
            let last: &mut HostNs = moved.entry((process, label)).or_default();
            *last = track.moved.map_or(*last, |(_, moved)| moved.max(*last));
        }
    }
    moved
}

/// The communicator in `dp · send → 4 · steps` or `dp · channel 3`.
fn worked_for(track: &str) -> &str {
    let kinds = [words::track::SEND, words::track::RECEIVE, words::track::CHANNEL];
    kinds.iter().find_map(|kind| track.split_once(kind)).map_or(track, |(label, _)| label)
}

/// A function, and when each rank that waits in one of its operations came last.
type Unnumbered = (String, FxHashMap<usize, HostNs>);

/// The second pass, over what is open.
pub(super) struct Look<'a> {
    job: &'a mut Job,
    survey: &'a Survey,
    member_of: &'a FxHashMap<u64, usize>,
    /// What stands without a mark from NCCL, by communicator.
    unnumbered: FxHashMap<u64, Vec<Unnumbered>>,
    /// What stands because a channel of a rank does not end, as places in [`Job::standing`].
    channels: FxHashMap<(usize, Key), Vec<usize>>,
    /// Operations that are open somewhere, and the last ones of ranks that fell silent.
    wanted: BTreeSet<(u64, u64)>,
    last: BTreeSet<(u64, Option<u64>)>,
    /// What others handed over next after these: the rank and the mark.
    next: FxHashSet<(usize, u64)>,
    /// What a rank has done so far.
    on: FxHashMap<usize, OnRank>,
}

#[derive(Default)]
pub(super) struct OnRank {
    pub(super) handed_over: u64,
    pub(super) before: Option<u64>,
    /// Of what was handed over after the first open operation: which, and how many had been up to
    /// it.
    pub(super) later: FxHashMap<u64, u64>,
    /// The last kernel that began before the last operation was handed over: when, and its
    /// operation.
    pub(super) ran: Option<(HostNs, u64)>,
    /// Open operations, and how many had been handed over up to each.
    pub(super) at: Vec<(Key, u64)>,
}

impl Look<'_> {
    /// Ready to look for what stands in this job, and for what others did after the last operations
    /// of ranks that fell silent.
    pub(super) fn new<'a>(
        job: &'a mut Job,
        survey: &'a Survey,
        member_of: &'a FxHashMap<u64, usize>,
        last: BTreeSet<(u64, Option<u64>)>,
    ) -> Look<'a> {
        let wanted = job.standing.iter().map(|it| (it.key.0, it.key.1)).collect();
        let mut unnumbered: FxHashMap<u64, Vec<Unnumbered>> = FxHashMap::default();
        let mut channels: FxHashMap<_, Vec<usize>> = FxHashMap::default();
        for (at, it) in job.standing.iter().enumerate() {
            if it.key.1 == UNNUMBERED {
                let of_comm = unnumbered.entry(it.key.0).or_default();
                let place = of_comm.iter().position(|(of, _)| of == function(&it.name)).unwrap_or_else(|| {
                    of_comm.push((function(&it.name).to_owned(), FxHashMap::default()));
                    of_comm.len() - 1
                });
                let last = of_comm[place].1.entry(it.member).or_default();
                *last = it.begin.max(*last);
            }
            if it.kind == Work::Channel {
                channels.entry((it.member, it.key)).or_default().push(at);
            }
        }
        let (next, on) = Default::default();
        Look { job, survey, member_of, unnumbered, channels, wanted, last, next, on }
    }

    /// Looks at a file, by its number in the survey.
    pub(super) fn at(&mut self, file: usize) {
        // By recording and thread.
        let mut threads: FxHashMap<(u64, u64), u64> = FxHashMap::default();
        // By track: open calls into NCCL, and transfers, outermost first.
        let mut calls: FxHashMap<u64, Vec<(Arc<str>, HostNs)>> = FxHashMap::default();
        let mut transfers = calls.clone();
        // From its end alone, calls cannot be counted.
        let (survey, is_whole) = (self.survey, !self.survey.ends.contains_key(&file));
        survey.read_again(file, |packet| {
            let (Some(mut event), Some(time)) = (packet.event, packet.time) else { return };
            event.track = survey.uuid(file, event.track);
            let event = &event;
            match event.kind {
                kind::TYPE_SLICE_END => {
                    calls.get_mut(&event.track).and_then(Vec::pop);
                    let transfer = transfers.get_mut(&event.track).and_then(Vec::pop);
                    if let Some((phase, since)) = transfer.filter(|_| ends_with_its_comm(event)) {
                        self.waits(event.track, &phase, since);
                    }
                }
                kind::TYPE_SLICE_BEGIN => match event.category {
                    Some(Category::Api) => {
                        if is_whole {
                            self.called(event, time);
                        }
                        calls.entry(event.track).or_default().push((event.shared_name(), time));
                        let tid = survey.tracks.get(&event.track).and_then(|track| track.tid);
                        threads.extend(tid.map(|tid| ((event.track >> TRACK_BITS, tid), event.track)));
                    }
                    Some(Category::Proxy) if event.arg(nccl::STEPS).is_none() => {
                        transfers.entry(event.track).or_default().push((event.shared_name(), time));
                    }
                    Some(Category::Operation) => {
                        let thread = event.uint(nccl::TID).map(|tid| (event.track >> TRACK_BITS, tid));
                        let thread = thread.and_then(|thread| threads.get(&thread));
                        let open = thread.and_then(|thread| calls.get(thread)?.first());
                        self.handed_over(event, time, open.map(|(_, since)| *since));
                    }
                    Some(Category::Gpu) => self.channel(event),
                    Some(Category::Run) => self.ran(event, time),
                    _ => {}
                },
                _ => {}
            }
        });
        for (track, open) in calls {
            if let (Some(process), Some((call, since))) = (self.survey.process(track), open.into_iter().next()) {
                self.job.calls.push((process, call.to_string(), since));
            }
        }
        for (track, mut open) in transfers {
            if let Some((phase, since)) = open.pop() {
                self.waits(track, &phase, since);
            }
        }
        for (member, OnRank { handed_over, at, later, ran, .. }) in self.on.drain() {
            let ran = ran.and_then(|(_, operation)| later.get(&operation)).copied().unwrap_or(0);
            let its = &mut self.job.members[member];
            its.is_at_first = its.newest.is_empty() && at.iter().any(|(_, count)| *count == 1);
            for (key, count) in at {
                let seen = self.job.seen.entry((key, member)).or_default();
                (seen.behind, seen.is_over) = (handed_over - count, ran > count);
            }
        }
    }

    /// A transfer on this track does not end.
    fn waits(&mut self, track: u64, phase: &str, since: HostNs) {
        let Some(process) = self.survey.process(track) else { return };
        // What the thread itself does is on a track with another name.
        let name = self.survey.tracks.get(&track).map_or("", |track| &track.name);
        if let Some(member) = self.job.working(process, worked_for(name)) {
            self.job.transfers.push((member, name.to_owned(), phase.to_owned(), since));
        }
    }

    /// Counts calls for operations without a mark from NCCL.
    fn called(&mut self, event: &Event<'_>, time: HostNs) {
        let name = event.name;
        let Some(hash) = event.uint(nccl::COMM) else { return };
        let of_comm = self.unnumbered.get(&hash).map_or(&[][..], Vec::as_slice);
        let Some((_, last)) = of_comm.iter().find(|it| it.0 == function(name)) else { return };
        let process = self.survey.process(event.track);
        let callers = process.map_or(&[][..], |process| self.job.callers(process, hash));
        let [member] = *callers else { return };
        let is_its = last.get(&member).is_some_and(|last| time <= *last);
        let (all, with_it) = self.job.calls_of.entry((member, function(name).to_owned())).or_default();
        *all += 1;
        if is_its {
            *with_it = *all;
        }
    }

    fn handed_over(&mut self, event: &Event<'_>, time: HostNs, called: Option<HostNs>) {
        let (Some(&member), Some(correlation)) = (self.member_of.get(&event.track), event.correlation) else { return };
        let (hash, replay, seq) = (self.job.members[member].hash, event.uint(nccl::REPLAY), event.uint(nccl::SEQ));
        let on = self.on.entry(member).or_default();
        on.handed_over += 1;
        let key = key(hash, correlation, replay, event.name);
        if self.wanted.contains(&(hash, key.1)) {
            on.at.push((key, on.handed_over));
            let seen = self.job.seen.entry((key, member)).or_default();
            if seen.handed_over.is_none() {
                (seen.handed_over, seen.called) = (Some(time), called);
            }
            // A channel without an end does not say it.
            let untold = self.channels.get(&(member, key)).into_iter().flatten();
            untold.for_each(|at| self.job.standing[*at].seq = seq);
        }
        if !on.at.is_empty() && replay.is_none() && self.job.members[member].finalized.is_some() {
            on.later.insert(correlation, on.handed_over);
        }
        if let (Some(seq), None) = (seq, replay) {
            let last = (hash, on.before.replace(correlation));
            if self.last.contains(&last) {
                let next = Collective { correlation, name: event.name.to_owned(), seq };
                self.job.next.entry(last).or_default().push((member, next, time));
                self.next.insert((member, correlation));
            }
        }
    }

    /// A channel begins with an operation.
    fn channel(&mut self, event: &Event<'_>) {
        let (Some(correlation), Some(track)) = (event.correlation, self.survey.tracks.get(&event.track)) else {
            return;
        };
        let working = |process| self.job.working(process, worked_for(&track.name));
        let Some(member) = self.survey.process(event.track).and_then(working) else { return };
        let hash = self.job.members[member].hash;
        if self.wanted.contains(&(hash, correlation)) {
            self.job.seen.entry(((hash, correlation, None), member)).or_default().has_begun = true;
        }
    }

    fn ran(&mut self, event: &Event<'_>, time: HostNs) {
        let (Some(&member), Some(correlation)) = (self.member_of.get(&event.track), event.correlation) else { return };
        let hash = self.job.members[member].hash;
        let replay = event.uint(nccl::REPLAY);
        let key = key(hash, correlation, replay, event.name);
        let Member { finalized, ref last, .. } = self.job.members[member];
        if replay.is_none() && finalized.is_some() && last.as_ref().is_some_and(|(_, last)| *last > time) {
            let on = self.on.entry(member).or_default();
            on.ran = on.ran.max(Some((time, correlation)));
        }
        if self.wanted.contains(&(hash, key.1)) || self.next.contains(&(member, correlation)) {
            let seen = self.job.seen.entry((key, member)).or_default();
            seen.ran.get_or_insert(time);
            seen.come += 1;
        }
    }
}
