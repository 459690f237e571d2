//! Where a job hangs: the operation that the ranks wait in, who has come to it, and who has not.
//!
//! A recording shows what is overdue in its own process (`trace::not_done`, and the proxy's open
//! work). Only the traces of all ranks together show which rank the others wait for: the one that
//! never handed the operation over. If no recording could tell what is overdue, a rank that fell
//! silent while others of its communicator went on shows the same.
//!
//! `look` reads, `judge` decides.

mod idle;
mod job;
mod judge;
mod look;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub(super) use self::idle::Idle;
use self::judge::judge;
use self::look::{Look, first_look};
use super::LISTED;
use super::running::{self, Gone, How};
use super::survey::attempts::started_again;
use super::survey::{Call, Calls, Survey, Tuning, placed};
use crate::model::time::HostNs;
use crate::trace::writer::TRACK_BITS;

/// No wait counts as long before this, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// A wait for a rank that has called at most once is no hang before this, ns: it may be loading
/// something. Nor is a first operation, for which NCCL connects the ranks.
const FIRST_PATIENCE_NS: u64 = 30_000_000_000;
/// A wait for a missing rank in a replayed graph is no hang before this, ns. NCCL reports no
/// hand-over there, and that a rank has come is shown by its recording only seconds later
/// (`trace::not_done`).
const GRAPH_PATIENCE_NS: u64 = 10_000_000_000;
/// A wait is a hang if it is this many times longer than anything the job showed before.
const BEYOND: u64 = 3;
/// How many ways to run an operation are named.
const WAYS: usize = 4;
/// How many sends and receives of one communicator are named.
const PAIRS: usize = 16;

/// An operation, written as in `AllReduce 1 MiB f32, seq 5 on tp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Operation {
    /// As in `AllReduce 1 MiB f32`, and its number within its communicator.
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    /// For a replayed graph: which run, counted from 1.
    pub(super) replay: Option<u64>,
    /// The communicator's name on its tracks, and its hash.
    pub(super) comm: String,
    pub(super) hash: u64,
}

/// How many hangs are told that others explain.
const EXPLAINED: usize = 4;

/// Where a job hangs.
///
/// It has more than twenty fields because each is one thing that the answer says of the hang, or
/// that decides whether it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hang {
    pub(super) operation: Operation,
    /// How many ranks take part: all for a collective, two for a send or receive, more where
    /// several wait for the same rank.
    pub(super) of: usize,
    /// It has a number on all ranks, so it is known who has come.
    pub(super) is_numbered: bool,
    /// The hosts wait inside the call that asks for it.
    pub(super) is_call: bool,
    /// There are other ranks, all of them are known, and none is inside a call.
    pub(super) is_alone: bool,
    /// Which ranks of the job the communicator's are; empty if the numbers are the same.
    pub(super) in_job: BTreeMap<u32, u32>,
    /// Its ranks that have come, those of them that did nothing later, those that have not come,
    /// and those whose files are not here.
    pub(super) came: Vec<u32>,
    pub(super) waiting: Vec<u32>,
    pub(super) missing: Vec<Missing>,
    pub(super) unseen: Vec<u32>,
    /// When the first rank came, on the clock of its trace; how long that was before the end, ns;
    /// and how long the last rank to come has waited.
    pub(super) begin: HostNs,
    pub(super) age: u64,
    pub(super) waited: u64,
    /// Operations handed over after it.
    pub(super) behind: u64,
    /// If all have come: a rank that had come to another operation before, which is not over
    /// either.
    pub(super) after: Option<After>,
    /// It has waited longer than anything the job showed before.
    pub(super) is_certain: bool,
    /// Only kernels show that it is not over, and records of kernels were lost.
    pub(super) may_be_over: bool,
    /// A rank that had come handed over others long after it.
    pub(super) has_paused: bool,
    /// If ranks wait for each other: each of them, and the operation in which it waits for the next
    /// one; the last waits for the first. On one of the operations only.
    pub(super) circle: Vec<Wait>,
    /// How its ranks run it, if not all of them run it alike.
    pub(super) ways: Vec<(Tuning, Vec<u32>)>,
    /// A rank has not come to an operation of the circle. Perhaps it never will.
    pub(super) circle_lacks: bool,
    /// The recordings' remarks on it, with the rank.
    pub(super) notes: Vec<String>,
    /// The ranks of which these name a kernel of the application that had not ended before.
    pub(super) busy: Vec<u32>,
    /// If one of these is about a link, and no other is: what stands still on it.
    pub(super) link: Option<String>,
    /// The processes of the ranks whose files are here, by their tracks; and the ranks whose
    /// process seems to have ended.
    pub(super) processes: BTreeMap<u32, u64>,
    /// How each of these processes came to it, by its track, where its rank in the job is known.
    pub(super) came_to_it: BTreeMap<u64, Coming>,
    pub(super) gone: BTreeMap<u32, Gone>,
    /// Its communicator was finalized with this under way, as after `ncclCommAbort`.
    pub(super) finalized: Option<Finalized>,
    /// It is of an earlier attempt of the job: its ranks were started again.
    pub(super) is_again: bool,
}

/// How a process came to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    /// Its rank in the job.
    pub(super) rank: u32,
    /// What the operation is to this rank: a send to one is a receive to the other.
    pub(super) name: String,
    /// When the call began that handed it over, or the group around it: what a group has, comes at
    /// once. Graphs are launched outside of these.
    pub(super) at: Option<HostNs>,
    /// Its GPU is known to have begun with it.
    pub(super) has_begun: bool,
}

/// The end of a communicator with an operation under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Finalized {
    /// How long before the end, ns.
    pub(super) ago_ns: u64,
    /// Its ranks handed over operations of other communicators long after it.
    pub(super) went_on: bool,
}

/// A rank that has not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// In the communicator, and in the job if known.
    pub(super) rank: u32,
    pub(super) world: Option<u32>,
    /// Its process, as in `pid 4711 on node17`.
    pub(super) process: Option<String>,
    /// What it was last seen doing.
    pub(super) last: String,
    /// Another hanging operation in which it waits.
    pub(super) waits: Option<Operation>,
}

/// A rank of the job that waits in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) rank: u32,
    pub(super) operation: Operation,
}

/// What a rank had come to before, or in the same group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct After {
    pub(super) wait: Wait,
    pub(super) is_in_group: bool,
}

/// Where the job of these traces hangs, the causes of other waits first; empty if it does not hang.
/// If a trace cannot be read to its end, the part that can be read counts.
pub(super) fn find(survey: &Survey) -> Vec<Hang> {
    let (mut job, member_of) = first_look(survey);
    let silent = job.silent();
    let last = |member: &usize| {
        let member = &job.members[*member];
        (member.hash, member.collective.as_ref().map(|(last, _)| last.correlation))
    };
    let last: BTreeSet<_> = silent.iter().map(last).collect();
    if job.standing.is_empty() && last.is_empty() {
        return Vec::new();
    }
    let mut look = Look::new(&mut job, survey, &member_of, last);
    (0..survey.extents.len()).for_each(|file| look.at(file));
    job.forget_what_is_over();
    job.stand_where_others_went_on(&silent);
    job.number();
    job.count();
    let mut hangs = judge(&job);
    if !hangs.is_empty() {
        let (gone, again, calls) = (running::gone(survey), started_again(&[survey]), calls(survey));
        for hang in &mut hangs {
            let of_it = hang.processes.iter().filter_map(|(rank, track)| Some((*rank, gone.get(track)?.clone())));
            hang.gone = of_it.collect();
            hang.ways =
                calls.get(&hang.operation.hash).map_or_else(Vec::new, |calls| ways(survey, &hang.operation, calls));
            // Ranks that do not run it alike wait for each other for ever.
            let have_all_come = hang.missing.is_empty() && !hang.has_paused && hang.finalized.is_none();
            hang.is_certain |= have_all_come && !hang.ways.is_empty() && hang.waited >= PATIENCE_NS;
            hang.is_again = hang.processes.values().any(|track| again.contains_key(&(0, *track)));
        }
        hangs.sort_by_key(Hang::is_over);
    }
    hangs
}

/// The calls on each communicator, by its hash, with the rank that made them.
fn calls(survey: &Survey) -> BTreeMap<u64, Vec<(u32, &Calls)>> {
    let mut all: BTreeMap<u64, Vec<(u32, &Calls)>> = BTreeMap::new();
    for track in survey.tracks.values() {
        if let ([hash], Some((_, rank, _))) = (&track.communicators[..], placed(&track.name)) {
            all.entry(*hash).or_default().push((rank, &track.calls));
        }
    }
    all
}

/// How ranks run an operation, the fewest last; empty if they run it alike, as far as is known.
fn ways(survey: &Survey, operation: &Operation, calls: &[(u32, &Calls)]) -> Vec<(Tuning, Vec<u32>)> {
    // The runs of a graph have no number of their own.
    let Some(seq) = operation.seq.filter(|_| operation.replay.is_none()) else { return Vec::new() };
    let is_it = |call: &&Call| call.seq == seq && *survey.requests.get(call.request).name == *operation.name;
    let mut ways: BTreeMap<Tuning, BTreeSet<u32>> = BTreeMap::new();
    for (rank, calls) in calls {
        let made = calls.by_function().flat_map(|of| &of.recent).filter(is_it);
        for call in made.filter(|call| call.tuning.is_known()) {
            ways.entry(call.tuning).or_default().insert(*rank);
        }
    }
    let mut ways: Vec<(Tuning, Vec<u32>)> =
        ways.into_iter().map(|(tuning, ranks)| (tuning, ranks.into_iter().collect())).collect();
    ways.sort_by_key(|(_, ranks)| Reverse(ranks.len()));
    if ways.len() > 1 { ways } else { Vec::new() }
}

/// Whether the ranks of these traces ask nothing of NCCL at their end. For traces that show no
/// hang.
pub(super) fn idle(survey: &Survey) -> Option<Idle> {
    first_look(survey).0.idle()
}

/// Those that ended first, the first one first: of each recording once. Left out are those that
/// were started again, those of which these hangs tell, and what any job looks like while it ends.
pub(super) fn ended_first(survey: &Survey, hangs: &[Hang]) -> Vec<Gone> {
    let again = started_again(&[survey]);
    let told = hangs.iter().flat_map(|hang| hang.gone.keys().filter_map(|rank| hang.processes.get(rank)));
    let mut tags: BTreeSet<u64> = told.map(|track| track >> TRACK_BITS).collect();
    let is_told = |track: &u64, gone: &Gone| gone.how == How::Unwritten || again.contains_key(&(0, *track));
    let gone = running::gone(survey).into_iter().filter(|(track, gone)| !is_told(track, gone));
    let mut all: Vec<Gone> = gone.filter(|(track, _)| tags.insert(track >> TRACK_BITS)).map(|(_, gone)| gone).collect();
    all.sort_by_key(|gone| Reverse(gone.early_ns));
    // One of a host stands for all.
    let are_of_host = |it: &Gone| matches!(it.how, How::WithItsHost { .. });
    all.dedup_by(|one, other| are_of_host(one) && one.how == other.how && one.early_ns == other.early_ns);
    all
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.seq.map_or_else(String::new, |seq| format!(", seq {seq}"));
        let replay = self.replay.map_or_else(String::new, |run| format!(", run {run} of its graph"));
        write!(f, "{}{number}{replay} on {}", self.name, self.comm)
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = &self.circle[..] else { return self.write_operation(f) };
        let next = rest.iter().chain([first]).map(|it| it.rank);
        write!(f, "probably a deadlock, for {:.1} s: ", self.waited as f64 / 1e9)?;
        for (index, (Wait { rank, operation }, next)) in self.circle.iter().zip(next).take(LISTED).enumerate() {
            let (before, waits) = if index == 0 { ("", " waits") } else { ("; ", "") };
            write!(f, "{before}rank {rank}{waits} for rank {next} in {operation}")?;
        }
        if self.circle.len() > LISTED {
            write!(f, "; and {} more", self.circle.len() - LISTED)?;
        }
        f.write_str(". They call these in different orders")?;
        f.write_str(if self.circle_lacks { ", or one of them leaves a call out" } else { "" })
    }
}

/// Those of these hangs that are told, and what is said of the others: in a large job, thousands of
/// operations wait for the one that hangs.
pub(super) fn told<'a>(hangs: impl Iterator<Item = &'a Hang>) -> (Vec<&'a Hang>, Option<String>) {
    let (mut room, mut left_out) = ([LISTED, EXPLAINED], [0, 0]);
    let has_room = |hang: &&Hang| {
        let kind = usize::from(hang.is_explained());
        let has_room = room[kind] > 0;
        room[kind] -= usize::from(has_room);
        left_out[kind] += usize::from(!has_room);
        has_room
    };
    let told = hangs.filter(has_room).collect();
    let more = match left_out {
        [0, 0] => None,
        [0, 1] => Some("1 more operation waits for these; the JSON has all".to_owned()),
        [0, explained] => Some(format!("{explained} more operations wait for these; the JSON has all")),
        [1, 0] => Some("1 more operation; the JSON has all".to_owned()),
        [others, explained] => Some(format!("{} more operations; the JSON has all", others + explained)),
    };
    (told, more)
}

impl Hang {
    /// Whether it waits for a rank that waits in another operation.
    pub(super) fn is_explained(&self) -> bool {
        let is_behind = self.after.is_some() && self.busy.is_empty();
        self.circle.is_empty() && (is_behind || self.missing.iter().any(|it| it.waits.is_some()))
    }

    /// Whether the job went on without it.
    pub(super) fn is_over(&self) -> bool {
        self.is_again || self.finalized.as_ref().is_some_and(|it| it.went_on)
    }

    /// Whether the job hangs in it, in a word: what is over is told in the past.
    pub(super) fn verb(&self) -> &'static str {
        match (self.is_certain, self.is_over()) {
            (true, false) => "hang",
            (true, true) => "hung",
            (false, false) => "waits",
            (false, true) => "waited",
        }
    }

    /// How it ended, if it did.
    pub(super) fn fate(&self) -> Option<String> {
        if self.is_again {
            return Some("this is over: its ranks were started again".to_owned());
        }
        let Finalized { ago_ns, went_on } = self.finalized.as_ref()?;
        let ago = *ago_ns as f64 / 1e9;
        let so = if *went_on { "this is over: its ranks went on after" } else { "then" };
        Some(format!("{so} its communicator was finalized, as by ncclCommAbort, {ago:.1} s before the end"))
    }

    /// The operation, and who has come to it.
    fn write_operation(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        write!(f, "{}: ", self.operation)?;
        let waited = format!("{:.1} s", self.waited as f64 / 1e9);
        let (came, of) = (self.came.len(), self.of);
        match (&self.missing[..], &self.unseen[..]) {
            _ if !self.is_numbered => {
                let what = if self.is_call { "the call has not returned" } else { "it has not been seen to end" };
                let came = list(self.came.iter().map(|rank| named(*rank, &self.in_job)));
                // Of several ranks of a process, one may call for all.
                let tags: BTreeSet<u64> = self.processes.values().map(|process| process >> TRACK_BITS).collect();
                let on = match tags.len() {
                    some if !self.is_call || some == self.came.len() => "on",
                    1 => "in the process of",
                    _ => "in the processes of",
                };
                let others = match self.is_call && self.is_alone {
                    true => "; no other rank is inside a call",
                    false => ". NCCL does not say which others have come",
                };
                write!(f, "{what} for {waited} {on} these ranks: {came}{others}")?;
            }
            ([], []) => {
                write!(f, "all {of} ranks have come, and it has not been seen to end for {waited}")?;
                let ways: Vec<String> = (self.ways.iter().take(WAYS))
                    .map(|(tuning, ranks)| format!("{tuning} on {}", self.ranks(ranks)))
                    .collect();
                if !ways.is_empty() {
                    write!(f, "; NCCL runs it differently: {}", ways.join(", but "))?;
                }
                if self.may_be_over {
                    f.write_str("; records of kernels were lost, so it may be over, or still to run")?;
                }
                self.write_suspects(f)?;
            }
            ([], unseen) => {
                let unseen = list(unseen.iter().map(u32::to_string));
                write!(f, "not seen to end for {waited}; {came} of {of} ranks have come")?;
                write!(f, ", the files of the others are not here: {unseen}")?;
                self.write_suspects(f)?;
            }
            (missing, unseen) => {
                let names = list(missing.iter().map(|it| named(it.rank, &self.in_job)));
                match self.came[..] {
                    // A send or receive names only the peer.
                    [one] if self.operation.seq.is_none() => write!(f, "rank {} has", named(one, &self.in_job))?,
                    [one, other] if self.operation.seq.is_none() => {
                        write!(f, "ranks {} and {} have", named(one, &self.in_job), named(other, &self.in_job))?;
                    }
                    _ => write!(f, "{came} of {of} ranks have")?,
                }
                write!(f, " come and waited {waited}, missing: {names}")?;
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

    /// If no rank is known to be missing: those that hold up the others, as far as something shows
    /// it.
    fn write_suspects(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        if self.after.is_some() || !self.circle.is_empty() {
            return Ok(());
        }
        // The files of a whole host may only have been copied earlier.
        let is_gone = |rank: &u32| self.gone.get(rank).is_some_and(|it| !matches!(it.how, How::WithItsHost { .. }));
        let gone: Vec<u32> = self.came.iter().copied().filter(is_gone).collect();
        match gone.len() {
            0 => {}
            1 => write!(f, "; {} shows no sign of life at the end", self.ranks(&gone))?,
            _ => write!(f, "; {} show no sign of life at the end", self.ranks(&gone))?,
        }
        match self.busy.len() {
            0 => self.link.iter().try_for_each(|link| write!(f, "; {link}")),
            1 => write!(f, "; the GPU of {} had not finished an earlier kernel", self.ranks(&self.busy)),
            _ => write!(f, "; the GPUs of {} had not finished earlier kernels", self.ranks(&self.busy)),
        }
    }

    /// `ranks 0, 1 (rank 5 of the job)`
    fn ranks(&self, ranks: &[u32]) -> String {
        let names = list(ranks.iter().map(|rank| named(*rank, &self.in_job)));
        format!("{} {names}", if ranks.len() == 1 { "rank" } else { "ranks" })
    }

    /// Further details, one per line.
    pub(super) fn details(&self) -> Vec<String> {
        let mut lines = Vec::from_iter(self.fate());
        if !self.circle.is_empty() {
            let mut operation = String::new();
            let _ = self.write_operation(&mut operation);
            lines.push(operation);
        }
        let name = |it: &Missing| named(it.rank, &self.in_job);
        let ended = |rank: &u32| self.gone.get(rank).map_or_else(String::new, |gone| format!(": {gone}"));
        for it in self.missing.iter().take(LISTED) {
            let is_alone = self.missing.len() == 1;
            match (&it.process, is_alone) {
                (Some(process), true) => lines.push(format!("rank {} is {process}{}", name(it), ended(&it.rank))),
                (Some(process), false) => {
                    lines.push(format!("rank {}, {process}: {}{}", name(it), it.last, ended(&it.rank)));
                }
                (None, true) => {}
                (None, false) => lines.push(format!("rank {}: {}", name(it), it.last)),
            }
        }
        let gone = self.gone.iter().filter(|(rank, _)| self.came.contains(rank)).take(LISTED);
        lines.extend(gone.map(|(rank, gone)| {
            let place = gone.place.as_ref().map_or_else(String::new, |place| format!(", {place}"));
            format!("rank {}{place}: {gone}", named(*rank, &self.in_job))
        }));
        let waits =
            self.missing.iter().filter_map(|it| Some(format!("rank {} waits in {}", name(it), it.waits.as_ref()?)));
        lines.extend(waits.take(LISTED));
        lines.extend(self.after.iter().filter(|_| self.circle.is_empty()).map(|After { wait, is_in_group }| {
            let (Wait { rank, operation }, of_job) = (wait, if self.in_job.is_empty() { "" } else { " of the job" });
            let which = if *is_in_group { "is in the same group" } else { "it came to before" };
            format!("rank {rank}{of_job} waits in {operation}, which {which}")
        }));
        lines.extend(self.notes.iter().cloned());
        if self.is_call {
            lines.push("the hosts wait inside the call, as when NCCL connects ranks for the first time".to_owned());
        }
        match self.behind {
            0 => {}
            1 => lines.push("1 operation of its communicator waits behind it".to_owned()),
            many => lines.push(format!("{many} operations of its communicator wait behind it")),
        }
        lines
    }
}

/// A rank of a communicator: `1`, or `1 (rank 2 of the job)` if its number in the job is another.
pub(super) fn named(rank: u32, in_job: &BTreeMap<u32, u32>) -> String {
    match in_job.get(&rank) {
        Some(world) => format!("{rank} (rank {world} of the job)"),
        None => rank.to_string(),
    }
}

/// `1, 2, 5 and 3 more`
pub(super) fn list(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(LISTED);
    let text = words.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use super::super::survey::Reach;
    use super::*;
    use crate::capture::replay::{Replay, walk};

    /// How much of the beginning of these short files is read.
    const HEAD: u64 = 8 << 10;

    /// The traces of these captures of one job, restarted as often as possible.
    fn restarted(folder: &Path, names: &[&str]) -> Vec<PathBuf> {
        let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
        let trace = |name: &&str| {
            let (mut replay, mut trace) = (Replay::restarting(2 << 10), Vec::new());
            let capture = File::open(captures.join(format!("{name}.capture"))).unwrap();
            walk(capture, |entry| replay.take(entry, None, &mut |packets| trace.extend(packets))).unwrap();
            replay.finish(&mut |packets| trace.extend(packets));
            let path = folder.join(format!("{name}.perfetto-trace"));
            fs::write(&path, trace).unwrap();
            path
        };
        names.iter().map(trace).collect()
    }

    fn said(traces: &[PathBuf], reach: Reach) -> (usize, Vec<String>) {
        let (survey, looked) = Survey::of_what_can_be_read((false, reach), traces, |(), _, _| {});
        for (_, fault) in looked {
            assert_eq!(fault.map(|fault| fault.of(Path::new("trace")).to_string()), None);
        }
        let lines = |hang: &Hang| [vec![hang.to_string()], hang.details()].concat();
        (survey.ends.len(), find(&survey).iter().flat_map(lines).collect())
    }

    #[test]
    fn of_thousands_of_operations_that_wait_for_one_few_are_told() {
        let after = After { wait: Wait { rank: 1, operation: Operation::default() }, is_in_group: false };
        let of = |roots: usize, explained: usize| {
            let hang = |after: Option<After>| Hang { after, ..Hang::default() };
            let all: Vec<Hang> =
                (0..roots).map(|_| hang(None)).chain((0..explained).map(|_| hang(Some(after.clone())))).collect();
            let (told, more) = told(all.iter());
            (told.len(), more.unwrap_or_default())
        };
        assert_eq!(of(2, 4), (6, String::new()));
        assert_eq!(of(2, 5), (6, "1 more operation waits for these; the JSON has all".into()));
        assert_eq!(of(LISTED + 1, 0), (LISTED, "1 more operation; the JSON has all".into()));
        assert_eq!(of(2, 9), (6, "5 more operations wait for these; the JSON has all".into()));
        assert_eq!(of(LISTED + 3, 5), (LISTED + EXPLAINED, "4 more operations; the JSON has all".into()));
    }

    #[test]
    fn a_hang_is_named_from_the_ends_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let stuck = restarted(folder.path(), &["h100-nccl-2.30.7-stuck-0", "h100-nccl-2.30.7-stuck-1"]);
        let (whole, ends) = (said(&stuck, Reach::Whole), said(&stuck, Reach::Ends(HEAD)));
        assert!(whole.1.iter().any(|line| line.contains("have come")), "{whole:?}");
        assert_eq!((whole.0, ends.0), (0, 2));
        // What was handed over before the last part is not counted.
        assert_eq!(ends.1, whole.1[..2]);

        let healthy = restarted(folder.path(), &["h100-nccl-2.30.7-graphs", "h100-torch-2.11-ddp"]);
        assert_eq!(said(&healthy, Reach::Ends(HEAD)), (2, Vec::new()));
    }

    #[test]
    fn an_operation_that_not_all_ranks_run_alike_is_told_from_others() {
        let simple = |algorithm| Tuning { algorithm, protocol: 39 };
        let [ring, tree, unknown] = [31, 30, 0].map(simple);
        let mut survey = Survey::default();
        let mut request = |name: &str| {
            survey.requests.put(super::super::survey::Request { name: name.into(), count: None, root: None })
        };
        let (all_reduce, other) = (request("AllReduce 1 MiB f32"), request("AllReduce 2 MiB f32"));
        let of = |ranks: &[(u32, Tuning)], seq, replay| {
            let made = |(request, tuning): &(u32, Tuning)| {
                let mut calls = Calls::default();
                calls.take(1, Call { seq: 4, request: *request, tuning: ring });
                calls.take(1, Call { seq: 5, request: *request, tuning: *tuning });
                calls
            };
            let made: Vec<Calls> = ranks.iter().map(made).collect();
            let calls: Vec<(u32, &Calls)> = (0..).zip(&made).collect();
            let operation = Operation { name: "AllReduce 1 MiB f32".into(), seq, replay, ..Operation::default() };
            ways(&survey, &operation, &calls)
        };
        let ranks = [(all_reduce, ring), (all_reduce, tree), (all_reduce, ring)];
        assert_eq!(of(&ranks, Some(5), None), [(ring, vec![0, 2]), (tree, vec![1])]);
        // Of another call, of a graph's run, without a number, or where one rank does not say.
        for (seq, replay) in [(Some(4), None), (Some(5), Some(1)), (None, None)] {
            assert_eq!(of(&ranks, seq, replay), []);
        }
        assert_eq!(of(&[(all_reduce, ring), (all_reduce, unknown)], Some(5), None), []);
        // What was called otherwise is a mismatch.
        assert_eq!(of(&[(all_reduce, ring), (other, tree)], Some(5), None), []);
        assert_eq!(ring.to_string(), "RING SIMPLE");
    }

    #[test]
    fn of_ranks_in_one_process_it_is_not_said_which_one_calls() {
        let said = |processes: [u64; 3], is_call| {
            let processes = (0..).zip(processes.map(|process| process << TRACK_BITS)).collect();
            Hang { came: vec![0, 1, 2], is_call, processes, ..Hang::default() }.to_string()
        };
        for (processes, is_call, on) in [
            ([1, 1, 1], true, " in the process of these ranks: 0, 1, 2. "),
            ([1, 1, 2], true, " in the processes of these ranks: 0, 1, 2. "),
            ([1, 2, 3], true, " on these ranks: 0, 1, 2. "),
            ([1, 1, 1], false, " on these ranks: 0, 1, 2. "),
        ] {
            assert!(said(processes, is_call).contains(on), "{}", said(processes, is_call));
        }
    }

    #[test]
    fn a_rank_whose_process_has_ended_is_named() {
        let gone = |rank: u32| BTreeMap::from([(rank, Gone { place: Some("pid 7 on n".into()), ..Gone::default() })]);
        let hang = Hang { came: vec![0, 1, 2], gone: gone(2), ..Hang::default() };
        let ended = "nobody writes its trace any more, so its process has probably ended";
        assert_eq!(hang.details(), [format!("rank 2, pid 7 on n: {ended}")]);
        let missing =
            Missing { rank: 3, world: None, process: Some("pid 7 on n".into()), last: "".into(), waits: None };
        let hang = Hang { missing: vec![missing], gone: gone(3), ..Hang::default() };
        assert_eq!(hang.details(), [format!("rank 3 is pid 7 on n: {ended}")]);
    }
}
