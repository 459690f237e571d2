//! Where a job hangs: the operation that the ranks wait in, who has come to it, and who has not.
//!
//! A recording shows what is overdue in its own process (`trace::not_done`, and the proxy's open work). Which rank the others wait
//! for only the traces of all of them tell: it is the one that never handed the operation over. Where no recording could tell what
//! is overdue, a rank that fell silent while others of its communicator went on says the same.
//!
//! [`find`] reads, [`judge`] decides (pure).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use super::events::{Event, Sequences};
use super::packets::packets;
use super::survey::{self, Collective, Survey, Unfinished, Work};
use crate::trace::fields::{nccl, track_event::r#type as kind};

/// Nothing waits for long before this, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// So much earlier than the others of its host a recording may end on a busy machine, ns.
const LAG_NS: u64 = 5_000_000_000;
/// A wait is a hang when it is so many times longer than what the job showed before.
const BEYOND: u64 = 3;
/// Sends and receives of one communicator that are named.
const PAIRS: usize = 16;
/// Stands for the mark of operations that NCCL does not number.
const UNNUMBERED: u64 = u64::MAX;
/// Ranks that are listed.
const LISTED: usize = 16;

/// An operation on which a job stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hang {
    /// What stands: `AllReduce 1 MiB f32`, and its number among those of its communicator.
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    /// Of a replayed graph: which run, counted from 1.
    pub(super) replay: Option<u64>,
    /// The communicator, as its tracks call it, and its hash.
    pub(super) comm: String,
    pub(super) hash: u64,
    /// The ranks that it takes: of a collective all, of a send or receive two.
    pub(super) of: usize,
    /// It has a number on all ranks, so that who has come can be told.
    pub(super) is_numbered: bool,
    /// The hosts wait inside of the call that asks for it.
    pub(super) is_call: bool,
    /// Its ranks that have come, that have not, and whose files are not here.
    pub(super) came: Vec<u32>,
    pub(super) missing: Vec<Missing>,
    pub(super) unseen: Vec<u32>,
    /// When the first rank came, on the clock of its trace, and how long that was before the end, ns; and for how long the
    /// last that came has waited.
    pub(super) begin: u64,
    pub(super) age: u64,
    pub(super) waited: u64,
    /// Operations that were handed over behind it.
    pub(super) behind: u64,
    /// It waits longer than anything that the job showed before.
    pub(super) is_certain: bool,
    /// What the recordings remark of it, with the rank.
    pub(super) notes: Vec<String>,
}

/// A rank that has not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// In the communicator, and in the job where that is known.
    pub(super) rank: u32,
    pub(super) world: Option<u32>,
    /// What it was last seen to do.
    pub(super) last: String,
    /// It waits in another operation that stands.
    pub(super) waits: Option<String>,
}

/// A rank of a communicator, as the traces show it.
#[derive(Clone, Debug, Default)]
struct Member {
    hash: u64,
    rank: u32,
    label: String,
    process: u64,
    world: Option<u32>,
    last: Option<(String, u64)>,
    collective: Option<(Collective, u64)>,
    gap_ns: u64,
    longest_ns: u64,
    has_runs: bool,
}

/// What stands on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    member: usize,
    key: Key,
    begin: u64,
    kind: Work,
    name: String,
    seq: Option<u64>,
    peer: Option<u32>,
    note: String,
}

/// An operation, as all ranks know it: communicator, mark, run of its graph. What NCCL gives no mark has one here that no
/// operation has, see [`Job::number`].
type Key = (u64, u64, Option<u64>);

/// What a second look found of an operation on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    handed_over: Option<u64>,
    /// Operations handed over behind it.
    behind: u64,
    ran: bool,
}

/// All that is known of a job, for [`judge`].
#[derive(Clone, Debug, Default)]
struct Job {
    members: Vec<Member>,
    /// Ranks of each communicator.
    ranks: BTreeMap<u64, u32>,
    processes: HashMap<u64, survey::Process>,
    /// When the job ended on the clock of each process. Hosts have clocks of their own.
    ends: HashMap<u64, u64>,
    /// Calls of NCCL that did not return: process, name, since when.
    calls: Vec<(u64, String, u64)>,
    /// What transfers wait for that have no end: whose, the track's name, for what, since when.
    transfers: Vec<(usize, String, String, u64)>,
    /// The ranks of each process, by what it calls the communicator, and by its hash.
    by_label: HashMap<(u64, String), usize>,
    by_hash: HashMap<(u64, u64), usize>,
    standing: Vec<Standing>,
    seen: HashMap<(Key, usize), Seen>,
    /// Calls for collectives by rank and function, where that is asked for: how many, and how many with the one that stands.
    calls_of: HashMap<(usize, String), (u64, u64)>,
    /// Operations without a mark of NCCL's: communicator, function, and which call for it on each rank, counted from 1.
    marks: Vec<(u64, String, u64)>,
    /// What each rank handed over next behind the last operation of a rank that fell silent, and when.
    next: HashMap<(u64, u64), Vec<(usize, Collective, u64)>>,
}

/// Where the job of these traces hangs: what others wait for first, and nothing where it does not. Of a trace that cannot be
/// read to its end, as far as it can.
pub(super) fn find(survey: &Survey, paths: &[PathBuf]) -> Vec<Hang> {
    let (mut job, member_of) = first_look(survey);
    let silent = job.silent();
    let last = |member: &usize| {
        let member = &job.members[*member];
        Some((member.hash, member.collective.as_ref()?.0.correlation))
    };
    let last: BTreeSet<_> = silent.iter().filter_map(last).collect();
    if job.standing.is_empty() && last.is_empty() {
        return Vec::new();
    }
    let wanted = job.standing.iter().map(|it| (it.key.0, it.key.1)).collect();
    let mut look = Look { job: &mut job, survey, member_of: &member_of, wanted, last, on: HashMap::new() };
    for path in paths {
        look.at(path);
    }
    job.stand_where_others_went_on();
    job.number();
    judge(&job)
}

/// `world · rank 3 of 8 · handed over`: the communicator, the rank and the ranks.
fn placed(track: &str) -> Option<(&str, u32, u32)> {
    let (label, rest) = track.split_once(" · rank ")?;
    let rest = rest.split(" · ").next()?;
    let (rank, ranks) = rest.split_once(" of ")?;
    Some((label, rank.parse().ok()?, ranks.parse().ok()?))
}

/// The ranks and what stands on them; and whose each track is.
fn first_look(survey: &Survey) -> (Job, HashMap<u64, usize>) {
    let mut job = Job { processes: survey.processes.clone(), ends: ends(survey), ..Job::default() };
    let (mut members, mut member_of, mut by_label) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut tracks: Vec<_> = survey.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()).collect();
    tracks.sort_unstable_by_key(|(uuid, _)| **uuid);
    for (&uuid, track) in tracks {
        let ([hash], Some((label, rank, ranks))) = (&track.communicators[..], placed(&track.name)) else { continue };
        let Some(process) = survey.process(uuid) else { continue };
        let index = *members.entry((*hash, rank)).or_insert_with(|| {
            let world = survey.tracks.get(&process).and_then(|track| survey::rank(&track.name));
            let label = label.to_owned();
            job.members.push(Member { hash: *hash, rank, label, process, world, ..Member::default() });
            job.members.len() - 1
        });
        member_of.insert(uuid, index);
        by_label.entry((process, label.to_owned())).or_insert(index);
        job.by_hash.entry((process, *hash)).or_insert(index);
        job.ranks.insert(*hash, ranks);
        let member = &mut job.members[index];
        member.longest_ns = member.longest_ns.max(track.longest_ns);
        member.has_runs |= track.runs > 0;
        let handed_over = &track.handed_over;
        if handed_over.last.is_some() {
            // On several lanes each has longer gaps than all of them together.
            let gap = handed_over.gap_ns;
            member.gap_ns = if member.last.is_none() || gap > 0 && gap < member.gap_ns { gap } else { member.gap_ns };
        }
        later(&mut member.last, &handed_over.last);
        later(&mut member.collective, &handed_over.collective);
    }
    let moved = moved(survey);
    for slice in &survey.unfinished {
        let Some(track) = survey.tracks.get(&slice.track) else { continue };
        let Some(process) = survey.process(slice.track) else { continue };
        let end = job.ends.get(&process).copied().unwrap_or_default();
        let is_old = slice.begin + PATIENCE_NS <= end;
        let member = match slice.kind {
            Work::Overdue => member_of.get(&slice.track),
            Work::Call => slice.hash.and_then(|hash| job.by_hash.get(&(process, hash))).filter(|_| is_old),
            Work::Proxy => {
                let label = proxy_label(&track.name);
                let is_still = moved.get(&(process, label)).is_none_or(|last| last + PATIENCE_NS <= end);
                by_label.get(&(process, label.to_owned())).filter(|_| is_still && is_old)
            }
        };
        if let Some(&member) = member {
            job.stand(member, slice);
        }
    }
    job.by_label = by_label;
    (job, member_of)
}

/// Keeps the later of two.
fn later<T: Clone>(one: &mut Option<(T, u64)>, other: &Option<(T, u64)>) {
    if let Some((_, time)) = other
        && one.as_ref().is_none_or(|(_, before)| before < time)
    {
        one.clone_from(other);
    }
}

/// When the job ended on the clock of each process.
fn ends(survey: &Survey) -> HashMap<u64, u64> {
    // A process is called `rank 3 · node17`.
    let host = |process: &u64| survey.tracks.get(process).and_then(|track| track.name.split(" · ").nth(1));
    let mut by_host: HashMap<Option<&str>, u64> = HashMap::new();
    for (process, state) in &survey.processes {
        let end = by_host.entry(host(process)).or_default();
        *end = state.last.max(*end);
    }
    // A recording that lags a little says nothing of what came after; one that stopped long before was killed.
    let end =
        |process: &u64, last: u64| Some(by_host[&host(process)]).filter(|end| *end > last + LAG_NS).unwrap_or(last);
    survey.processes.iter().map(|(process, state)| (*process, end(process, state.last))).collect()
}

/// When the proxy last did something for a communicator of a process.
fn moved(survey: &Survey) -> HashMap<(u64, &str), u64> {
    let mut moved = HashMap::new();
    for (uuid, track) in &survey.tracks {
        let label = proxy_label(&track.name);
        if label.len() < track.name.len()
            && let Some(process) = survey.process(*uuid)
        {
            let last: &mut u64 = moved.entry((process, label)).or_default();
            *last = track.moved.max(*last);
        }
    }
    moved
}

/// The communicator of `dp · send → 4 · steps`.
fn proxy_label(track: &str) -> &str {
    let cut = [" · send ", " · receive "].iter().find_map(|arrow| track.split_once(arrow));
    cut.map_or(track, |(label, _)| label)
}

/// The function in `ncclSend 32 MiB f32` or `Send 32 MiB f32 → 2`.
fn function(name: &str) -> &str {
    let name = name.strip_prefix("nccl").unwrap_or(name);
    name.split(' ').next().unwrap_or(name)
}

impl Job {
    /// Numbers what NCCL gives no mark by the calls that asked for it. Of sends and receives these do not name the peer.
    fn number(&mut self) {
        for index in 0..self.standing.len() {
            let Standing { member, key, ref name, .. } = self.standing[index];
            let function = function(name).to_owned();
            if key.1 != UNNUMBERED || ["Send", "Recv"].contains(&&*function) {
                continue;
            }
            let Some((_, number)) = self.calls_of.get(&(member, function.clone())) else { continue };
            let mark = self.marks.iter().position(|mark| *mark == (key.0, function.clone(), *number));
            let mark = mark.unwrap_or_else(|| {
                self.marks.push((key.0, function, *number));
                self.marks.len() - 1
            });
            self.standing[index].key.1 = UNNUMBERED - 1 - mark as u64;
        }
    }

    /// Whether a rank made the call that an operation without a mark of NCCL's stands for.
    fn has_called(&self, key: Key, index: usize) -> bool {
        let mark =
            usize::try_from(UNNUMBERED - 1 - key.1.min(UNNUMBERED - 1)).ok().and_then(|mark| self.marks.get(mark));
        mark.is_some_and(|(_, function, number)| {
            self.calls_of.get(&(index, function.clone())).is_some_and(|(all, _)| all >= number)
        })
    }

    fn stand(&mut self, member: usize, slice: &Unfinished) {
        let key = (self.members[member].hash, slice.correlation.unwrap_or(UNNUMBERED), slice.replay);
        let Unfinished { kind, begin, ref name, seq, peer, ref note, .. } = *slice;
        // What the proxy does is a part of it, by channel.
        let name = match name.rsplit_once(" ch ") {
            Some((name, channel)) if channel.parse::<u32>().is_ok() => name,
            _ => name,
        };
        let name = name.strip_prefix("nccl").unwrap_or(name);
        let peer = peer.filter(|_| seq.is_none());
        let (name, note) = (name.to_owned(), note.clone());
        self.standing.push(Standing { member, key, begin, kind, name, seq, peer, note });
    }

    /// How long before the end of the job something was on a rank, ns.
    fn age(&self, member: usize, time: u64) -> u64 {
        self.age_in(self.members[member].process, time)
    }

    fn age_in(&self, process: u64, time: u64) -> u64 {
        self.ends.get(&process).map_or(0, |end| end.saturating_sub(time))
    }

    /// Ranks that handed nothing over for long, while others of their communicator went on.
    fn silent(&self) -> Vec<usize> {
        let is_silent = |index: &usize| {
            let member = &self.members[*index];
            let Some((last, time)) = &member.collective else { return false };
            let age = self.age(*index, *time);
            let went_on = |other: usize| {
                let it = &self.members[other];
                let last_of_it = it.collective.as_ref().filter(|_| it.hash == member.hash);
                last_of_it
                    .is_some_and(|(of_it, at)| of_it.correlation != last.correlation && self.age(other, *at) < age)
            };
            self.waits_long(*index, age) && (0..self.members.len()).any(went_on)
        };
        (0..self.members.len()).filter(is_silent).collect()
    }

    /// Where a rank fell silent, the others stand in what they handed over next.
    fn stand_where_others_went_on(&mut self) {
        for ((hash, _), next) in std::mem::take(&mut self.next) {
            let oldest = next.iter().max_by_key(|(member, _, time)| self.age(*member, *time));
            let Some((_, first, _)) = oldest.cloned() else { continue };
            let key = (hash, first.correlation, None);
            if self.standing.iter().any(|it| it.key == key) {
                continue;
            }
            for (member, _, begin) in next.into_iter().filter(|(_, other, _)| *other == first) {
                let seen = self.seen.entry((key, member)).or_default();
                seen.handed_over = Some(begin);
                if !seen.ran {
                    let Collective { name, seq, .. } = first.clone();
                    let (kind, seq, note) = (Work::Overdue, Some(seq), String::new());
                    self.standing.push(Standing { member, key, begin, kind, name, seq, peer: None, note });
                }
            }
        }
    }

    /// Whether a rank that last did something so long before the end has been silent for longer than ever.
    fn waits_long(&self, member: usize, age: u64) -> bool {
        age >= PATIENCE_NS.max(self.members[member].gap_ns.saturating_mul(BEYOND))
    }
}

/// A second look, at what stands.
struct Look<'a> {
    job: &'a mut Job,
    survey: &'a Survey,
    member_of: &'a HashMap<u64, usize>,
    /// Operations that stand somewhere, and the last ones of ranks that fell silent.
    wanted: BTreeSet<(u64, u64)>,
    last: BTreeSet<(u64, u64)>,
    /// What a rank has done so far.
    on: HashMap<usize, OnRank>,
}

#[derive(Default)]
struct OnRank {
    handed_over: u64,
    before: Option<u64>,
    /// Operations that stand, and how many had been handed over with it.
    at: Vec<(Key, u64)>,
}

impl Look<'_> {
    fn at(&mut self, path: &Path) {
        let mut sequences = Sequences::default();
        // By track: calls of NCCL, and transfers; what is open of them, outermost first.
        let mut open: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
        let _ = packets(path, |raw| {
            let packet = sequences.take(raw).map_err(|reason| format!("{}: {reason}", path.display()))?;
            let (Some(event), Some(time)) = (&packet.event, packet.time) else { return Ok(()) };
            match event.kind {
                kind::TYPE_SLICE_END => {
                    open.get_mut(&event.track).and_then(Vec::pop);
                }
                kind::TYPE_SLICE_BEGIN => {
                    let name = || sequences.name(packet.sequence, event);
                    match &*sequences.category(packet.sequence, event) {
                        "api" => {
                            let name = name();
                            self.called(event, time, &name);
                            open.entry(event.track).or_default().push((name, time));
                        }
                        "proxy" if event.arg(nccl::STEPS).is_none() => {
                            open.entry(event.track).or_default().push((name(), time));
                        }
                        "operation" => self.handed_over(event, time, name),
                        "run" => self.ran(event),
                        _ => {}
                    }
                }
                _ => {}
            }
            Ok(())
        });
        for (track, open) in open {
            let Some(process) = self.survey.process(track) else { continue };
            let name = self.survey.tracks.get(&track).map_or("", |track| &track.name);
            match (self.job.by_label.get(&(process, proxy_label(name).to_owned())), &open[..]) {
                (_, []) => {}
                (Some(&member), [.., (phase, since)]) => {
                    self.job.transfers.push((member, name.to_owned(), phase.clone(), *since));
                }
                (None, [(call, since), ..]) => self.job.calls.push((process, call.clone(), *since)),
            }
        }
        for (member, OnRank { handed_over, at, .. }) in self.on.drain() {
            for (key, count) in at {
                self.job.seen.entry((key, member)).or_default().behind = handed_over - count;
            }
        }
    }

    /// Counts calls for what NCCL gives no mark.
    fn called(&mut self, event: &Event<'_>, time: u64, name: &str) {
        let Some(hash) = event.uint(nccl::COMM) else { return };
        let wanted =
            |it: &&Standing| it.key.0 == hash && it.key.1 == UNNUMBERED && function(&it.name) == function(name);
        if !self.job.standing.iter().any(|it| wanted(&it)) {
            return;
        }
        let process = self.survey.process(event.track);
        let Some(&member) = process.and_then(|process| self.job.by_hash.get(&(process, hash))) else { return };
        let is_its = |it: &Standing| it.member == member && time <= it.begin;
        let is_its = self.job.standing.iter().filter(wanted).any(is_its);
        let (all, with_it) = self.job.calls_of.entry((member, function(name).to_owned())).or_default();
        *all += 1;
        if is_its {
            *with_it = *all;
        }
    }

    fn handed_over(&mut self, event: &Event<'_>, time: u64, name: impl FnOnce() -> String) {
        let (Some(&member), Some(correlation)) = (self.member_of.get(&event.track), event.correlation) else { return };
        let (hash, replay, seq) = (self.job.members[member].hash, event.uint(nccl::REPLAY), event.uint(nccl::SEQ));
        let on = self.on.entry(member).or_default();
        on.handed_over += 1;
        if self.wanted.contains(&(hash, correlation)) {
            let key = (hash, correlation, replay);
            on.at.push((key, on.handed_over));
            self.job.seen.entry((key, member)).or_default().handed_over.get_or_insert(time);
        }
        if let (Some(seq), None) = (seq, replay)
            && let Some(last) = on.before.replace(correlation)
            && self.last.contains(&(hash, last))
        {
            let next = Collective { correlation, name: name(), seq };
            self.job.next.entry((hash, last)).or_default().push((member, next, time));
        }
    }

    fn ran(&mut self, event: &Event<'_>) {
        let (Some(&member), Some(correlation)) = (self.member_of.get(&event.track), event.correlation) else { return };
        let hash = self.job.members[member].hash;
        let is_next =
            || self.job.next.values().flatten().any(|(of, next, _)| *of == member && next.correlation == correlation);
        if self.wanted.contains(&(hash, correlation)) || !self.last.is_empty() && is_next() {
            let key = (hash, correlation, event.uint(nccl::REPLAY));
            self.job.seen.entry((key, member)).or_default().ran = true;
        }
    }
}

/// What the job stands on: first what nothing else explains, then by time.
fn judge(job: &Job) -> Vec<Hang> {
    let mut by_key: BTreeMap<Key, Vec<&Standing>> = BTreeMap::new();
    job.standing.iter().for_each(|it| by_key.entry(it.key).or_default().push(it));
    let place = |key: &Key| job.standing.iter().position(|it| it.key == *key);
    let mut by_time: Vec<(Key, Hang)> = by_key.into_iter().map(|(key, on)| (key, job.hang(key, &on))).collect();
    by_time.sort_by_key(|(key, hang)| (std::cmp::Reverse(hang.age), place(key)));
    // Of the collectives of a communicator the first is waited for; those behind it wait for it.
    let mut hangs: Vec<(Key, Hang)> = Vec::new();
    for (key, hang) in by_time {
        let of_comm = hangs.iter().filter(|(first, _)| first.0 == key.0).count();
        let is_behind = hangs.iter().any(|(first, it)| first.0 == key.0 && (it.seq.is_some() || hang.seq.is_some()));
        if !is_behind && of_comm < PAIRS {
            hangs.push((key, hang));
        }
    }
    let mut hangs: Vec<Hang> = hangs.into_iter().map(|(_, hang)| hang).collect();
    explain(&mut hangs, job);
    // A rank that waits in another operation is not what this one waits for.
    let is_explained = |hang: &Hang| hang.missing.is_empty() || hang.missing.iter().all(|it| it.waits.is_some());
    hangs.sort_by_key(|hang| (!hang.is_certain, is_explained(hang), std::cmp::Reverse(hang.age)));
    hangs
}

/// Says of ranks that are missing in one operation in which other one they wait.
fn explain(hangs: &mut [Hang], job: &Job) {
    let mut waits: HashMap<u64, String> = HashMap::new();
    for standing in &job.standing {
        let member = &job.members[standing.member];
        let number = standing.seq.map_or_else(String::new, |seq| format!(", seq {seq}"));
        waits.entry(member.process).or_insert_with(|| format!("{}{number} on {}", standing.name, member.label));
    }
    for hang in hangs {
        for missing in &mut hang.missing {
            let member = job.members.iter().find(|member| member.hash == hang.hash && member.rank == missing.rank);
            missing.waits = member.and_then(|member| waits.get(&member.process)).cloned();
        }
    }
}

impl Job {
    fn hang(&self, key: Key, on: &[&Standing]) -> Hang {
        let (hash, _, replay) = key;
        let first = on[0];
        let waiting = &self.members[first.member];
        let ranks = self.ranks.get(&hash).copied().unwrap_or_default();
        let takes: Vec<u32> = match first.peer {
            // Nobody can say who else has come.
            _ if key.1 == UNNUMBERED => on.iter().map(|it| self.members[it.member].rank).collect(),
            Some(peer) if peer != waiting.rank => vec![waiting.rank.min(peer), waiting.rank.max(peer)],
            Some(peer) => vec![peer],
            None => (0..ranks).collect(),
        };
        let (mut came, mut missing, mut unseen) = (Vec::new(), Vec::new(), Vec::new());
        // The first to come, by its age; and how long the last has waited.
        let (mut first_came, mut waited, mut behind, mut longest) = ((0, 0), u64::MAX, 0, 0);
        for &rank in &takes {
            let found = self.members.iter().position(|member| member.hash == hash && member.rank == rank);
            let Some(index) = found else {
                unseen.push(rank);
                continue;
            };
            match self.came(key, index, on) {
                Some(time) => {
                    came.push(rank);
                    if let Some(time) = time {
                        let age = self.age(index, time);
                        (first_came, waited) = (first_came.max((age, time)), waited.min(age));
                    }
                    behind = behind.max(self.seen.get(&(key, index)).map_or(0, |seen| seen.behind));
                    longest = longest.max(self.members[index].longest_ns);
                }
                None => missing.push(index),
            }
        }
        let (age, begin) = first_came;
        let is_certain = match &missing[..] {
            // A rank of which nothing is known may have lost what it handed over.
            [] => waited >= PATIENCE_NS.max(longest.saturating_mul(BEYOND)) && !self.have_ended(hash),
            missing => missing.iter().all(|&index| self.is_missing(index, age)),
        };
        let mut notes = self.notes(on);
        if missing.is_empty() {
            notes.extend(self.links(hash));
        }
        let missing = missing.into_iter().map(|index| self.missing(index)).collect();
        Hang {
            name: first.name.clone(),
            seq: first.seq,
            replay,
            comm: waiting.label.clone(),
            hash,
            of: takes.len(),
            is_numbered: key.1 != UNNUMBERED,
            is_call: on.iter().all(|it| it.kind == Work::Call),
            came,
            missing,
            unseen,
            begin,
            age,
            waited,
            behind,
            is_certain,
            notes,
        }
    }

    /// Whether a rank came to an operation, and when, where that is told.
    fn came(&self, key: Key, index: usize, on: &[&Standing]) -> Option<Option<u64>> {
        let seen = self.seen.get(&(key, index));
        let stands = || on.iter().find(|it| it.member == index).map(|it| it.begin);
        let when = seen.and_then(|seen| seen.handed_over).or_else(stands);
        // Of a replayed graph nobody may have said that it was handed over: then its kernel has, that it ran.
        let came = when.is_some() || seen.is_some_and(|seen| seen.ran) || self.has_called(key, index);
        came.then_some(when)
    }

    /// Whether a rank has certainly not come to what others came to so long before the end, and is not only late as before.
    fn is_missing(&self, index: usize, came: u64) -> bool {
        let Member { process, ref last, .. } = self.members[index];
        let silent = last.as_ref().map_or(came, |(_, time)| self.age(index, *time).min(came));
        self.processes.get(&process).is_some_and(|process| !process.is_lossy) && self.waits_long(index, silent)
    }

    /// Whether the recordings of all ranks of a communicator ended by themselves.
    fn have_ended(&self, hash: u64) -> bool {
        let of_it = self.members.iter().filter(|member| member.hash == hash);
        of_it.into_iter().all(|member| self.processes.get(&member.process).is_some_and(|it| it.ended.is_some()))
    }

    /// What a rank that has not come was last seen to do.
    fn missing(&self, index: usize) -> Missing {
        let Member { rank, world, process, ref last, .. } = self.members[index];
        let before = |time: u64| format!("{:.1} s before the end", self.age(index, time) as f64 / 1e9);
        let mut said = match last {
            Some((name, time)) => {
                let of_it = self.members[index].collective.as_ref().filter(|(_, at)| at == time);
                let seq = of_it.map_or_else(String::new, |(collective, _)| format!(", seq {}", collective.seq));
                format!("last seen: {name}{seq}, {}", before(*time))
            }
            None => "it handed nothing over".to_owned(),
        };
        let call = self.calls.iter().filter(|(of, ..)| *of == process).min_by_key(|(.., since)| *since);
        let state = self.processes.get(&process);
        if let Some(ended) = state.and_then(|state| state.ended) {
            said.push_str(&format!(", its recording ended {}", before(ended)));
        } else if let Some((_, name, since)) = call {
            said.push_str(&format!(", in {name} since {}", before(*since)));
        }
        if state.is_some_and(|state| state.is_lossy) {
            said.push_str("; records were dropped there, so it may have come");
        }
        Missing { rank, world, last: said, waits: None }
    }

    /// What the recordings remark, each with its rank.
    fn notes(&self, on: &[&Standing]) -> Vec<String> {
        let noted = on.iter().filter(|it| !it.note.is_empty() && it.kind == Work::Overdue);
        let text = |it: &&&Standing| format!("rank {}: {}", self.members[it.member].rank, it.note);
        let notes: BTreeSet<String> = noted.map(|it| text(&it)).collect();
        notes.into_iter().take(LISTED).collect()
    }
}

impl Job {
    /// Transfers of a communicator that say where it stands: the network does not deliver, or a GPU does not take.
    fn links(&self, hash: u64) -> Vec<String> {
        let mut links: BTreeMap<(u32, &str, bool), (u64, u64)> = BTreeMap::new();
        for (member, track, phase, since) in &self.transfers {
            let Member { hash: of, rank, .. } = self.members[*member];
            let (age, is_send) = (self.age(*member, *since), track.contains(" · send "));
            let peer = track.split(' ').skip_while(|word| !["→", "←"].contains(word)).nth(1);
            let tells = matches!((is_send, phase.as_str()), (true, "network wait") | (false, "GPU wait"));
            if let Some(peer) = peer.filter(|_| of == hash && tells && age >= PATIENCE_NS) {
                let (count, oldest) = links.entry((rank, peer, is_send)).or_default();
                (*count, *oldest) = (*count + 1, age.max(*oldest));
            }
        }
        let text = |((rank, peer, is_send), (count, age)): ((u32, &str, bool), (u64, u64))| {
            let (transfers, age) = (if count == 1 { "transfer" } else { "transfers" }, age as f64 / 1e9);
            match is_send {
                true => format!("rank {rank} → {peer}: {count} {transfers} in the network's hands for {age:.1} s"),
                false => format!("rank {rank}: its GPU has not taken {count} {transfers} from {peer} for {age:.1} s"),
            }
        };
        links.into_iter().map(text).take(LISTED).collect()
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.seq.map_or_else(String::new, |seq| format!(", seq {seq}"));
        let replay = self.replay.map_or_else(String::new, |run| format!(", run {run} of its graph"));
        write!(f, "{}{number}{replay} on {}: ", self.name, self.comm)?;
        let waited = format!("{:.1} s", self.waited as f64 / 1e9);
        let (came, of) = (self.came.len(), self.of);
        match (&self.missing[..], &self.unseen[..]) {
            _ if !self.is_numbered => {
                let what = if self.is_call { "the call has not returned" } else { "it has not been seen to end" };
                let came = list(self.came.iter().map(u32::to_string));
                write!(f, "{what} for {waited} on these ranks: {came}. NCCL does not tell which others have come")?;
            }
            ([], []) => write!(f, "all {of} ranks have come, and it has not been seen to end for {waited}")?,
            ([], unseen) => write!(
                f,
                "not seen to end for {waited}; {came} of {of} ranks have come, the files of the others are not here: {}",
                list(unseen.iter().map(u32::to_string))
            )?,
            (missing, unseen) => {
                let plain = missing.iter().all(|it| it.world.is_none_or(|world| world == it.rank));
                let name = |it: &Missing| match it.world {
                    Some(world) if !plain => format!("{} (rank {world} of the job)", it.rank),
                    _ => it.rank.to_string(),
                };
                write!(
                    f,
                    "{came} of {of} ranks have come and wait for {waited}, missing: {}",
                    list(missing.iter().map(name))
                )?;
                if let [one] = missing {
                    write!(f, " ({})", one.last)?;
                }
                if !unseen.is_empty() {
                    let unseen = list(unseen.iter().map(u32::to_string));
                    write!(f, "; the files of these ranks are not here: {unseen}")?;
                }
            }
        }
        Ok(())
    }
}

impl Hang {
    /// What is worth knowing beside it, a line each.
    pub(super) fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let several = self.missing.iter().filter(|_| self.missing.len() > 1).take(LISTED);
        lines.extend(several.map(|it| format!("rank {}: {}", it.rank, it.last)));
        let waits =
            self.missing.iter().filter_map(|it| Some(format!("rank {} waits in {}", it.rank, it.waits.as_ref()?)));
        lines.extend(waits.take(LISTED));
        lines.extend(self.notes.iter().cloned());
        if self.is_call {
            lines.push("the hosts wait inside of the call, as where NCCL connects ranks for the first time".to_owned());
        }
        match self.behind {
            0 => {}
            1 => lines.push("1 operation of its communicator waits behind it".to_owned()),
            many => lines.push(format!("{many} operations of its communicator wait behind it")),
        }
        lines
    }
}

/// `1, 2, 5 and 3 more`
fn list(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(LISTED);
    let text = words.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
