//! What the traces of a job show about its ranks, as far as it matters for a hang (pure).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher as _;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::super::survey::{self, Collective, Newest, Unfinished, Work};
use super::{BEYOND, PATIENCE_NS};
use crate::model::time::HostNs;
use crate::model::timeline::Operation;
use crate::trace::writer::TRACK_BITS;

/// Stands for the mark of operations that NCCL does not number.
pub(super) const UNNUMBERED: u64 = u64::MAX;

/// By how much the mark of a collective is greater than that of the one before it of its function.
const AFTER: u64 = 1 << Operation::SEQ_BIT;

/// A rank of a communicator, as the traces show it.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) hash: u64,
    pub(super) rank: u32,
    pub(super) label: String,
    pub(super) process: u64,
    pub(super) world: Option<u32>,
    /// Its process, as in `pid 4711 on node17`.
    pub(super) place: Option<String>,
    pub(super) last: Option<(String, HostNs)>,
    pub(super) collective: Option<(Collective, HostNs)>,
    pub(super) gap_ns: u64,
    pub(super) longest_ns: u64,
    pub(super) has_runs: bool,
    /// The last operation handed over is known to have ended.
    pub(super) has_ended: bool,
    /// NCCL reports what the GPU's channels do.
    pub(super) has_channels: bool,
    /// The newest collectives, where its file names these.
    pub(super) newest: Vec<Newest>,
    /// The first operation that it handed over is open somewhere.
    pub(super) is_at_first: bool,
    /// When something was last handed over, or ran.
    pub(super) moved: Option<HostNs>,
    /// When it finalized the communicator.
    pub(super) finalized: Option<HostNs>,
}

/// Something that a rank waits in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) member: usize,
    pub(super) key: Key,
    pub(super) begin: HostNs,
    pub(super) kind: Work,
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    pub(super) peer: Option<u32>,
    pub(super) note: String,
    /// The recording says why it need not stand still.
    pub(super) is_doubted: bool,
}

/// An operation, as all ranks know it: communicator, mark, run of its graph. Operations without a
/// mark from NCCL get one here that no operation has, see [`Job::number`].
pub(super) type Key = (u64, u64, Option<u64>);

/// The key of an operation of this name. All collectives of a function that are captured in graphs
/// share a mark, so their names belong to it. Those of one size in one run, or in runs of several
/// graphs, still share a key.
pub(super) fn key(hash: u64, mark: u64, replay: Option<u64>, name: &str) -> Key {
    let is_shared = replay.is_some() && !["Send", "Recv"].contains(&function(name));
    let mark = if is_shared { FxBuildHasher.hash_one((mark, name)) } else { mark };
    (hash, mark, replay)
}

/// What the second pass found about an operation on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) handed_over: Option<HostNs>,
    /// When the outermost call began in which it was handed over.
    pub(super) called: Option<HostNs>,
    /// Operations handed over after it.
    pub(super) behind: u64,
    /// When its kernel began, if that ended.
    pub(super) ran: Option<HostNs>,
    /// How many kernels with this key ran or wait there.
    pub(super) come: u64,
    /// A channel of the GPU has begun with it.
    pub(super) has_begun: bool,
    /// The kernel of a later one had begun when the rank still handed over others.
    pub(super) is_over: bool,
}

/// What a rank handed over next: the rank, the operation, and when.
pub(super) type Next = (usize, Collective, HostNs);

/// Everything known about a job that is needed to judge it.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) members: Vec<Member>,
    /// The number of ranks of each communicator.
    pub(super) ranks: BTreeMap<u64, u32>,
    pub(super) processes: HashMap<u64, survey::Process>,
    /// When the job ended on the clock of each process. Each host has its own clock.
    pub(super) ends: HashMap<u64, HostNs>,
    /// How long before other hosts that was, for processes of a host that had stopped, ns.
    pub(super) stopped: HashMap<u64, u64>,
    /// When the GPUs of a process last ran a kernel, NCCL's or the application's.
    pub(super) kernels: HashMap<u64, HostNs>,
    /// Calls into NCCL that did not return: process, name, since when.
    pub(super) calls: Vec<(u64, String, HostNs)>,
    /// What unfinished transfers wait for: the rank, the track's name, what for, since when.
    pub(super) transfers: Vec<(usize, String, String, HostNs)>,
    /// The ranks that a recording, by its tag, knows by a label or hash of a communicator: several
    /// if it has several GPUs.
    pub(super) by_label: HashMap<(u64, String), Vec<usize>>,
    pub(super) by_hash: HashMap<(u64, u64), Vec<usize>>,
    pub(super) standing: Vec<Standing>,
    pub(super) seen: HashMap<(Key, usize), Seen>,
    /// For what runs in graphs, how many with one key have come on the rank that waits in most.
    pub(super) most: HashMap<Key, u64>,
    /// Calls for collectives by rank and function, where needed: how many in all, and how many up
    /// to the one that waits.
    pub(super) calls_of: HashMap<(usize, String), (u64, u64)>,
    /// Operations without a mark from NCCL: communicator, function, and which call on each rank
    /// asked for it, counted from 1.
    pub(super) marks: Vec<(u64, String, u64)>,
    /// What each rank handed over next after the last operation of a rank that fell silent, if it
    /// had one, and when.
    pub(super) next: HashMap<(u64, Option<u64>), Vec<Next>>,
    /// Where members are found; made once they are known.
    pub(super) index: OnceCell<Index>,
}

/// Where members are found.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// By communicator and rank.
    by_rank: FxHashMap<(u64, u32), usize>,
    of_comm: FxHashMap<u64, Vec<usize>>,
    /// When each process last handed something over.
    last: FxHashMap<u64, HostNs>,
}

/// The function in `ncclSend 32 MiB f32` or `Send 32 MiB f32 → 2`.
pub(super) fn function(name: &str) -> &str {
    let name = name.strip_prefix("nccl").unwrap_or(name);
    name.split(' ').next().unwrap_or(name)
}

impl Job {
    fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            let mut index = Index::default();
            for (at, member) in self.members.iter().enumerate() {
                index.by_rank.insert((member.hash, member.rank), at);
                index.of_comm.entry(member.hash).or_default().push(at);
                if let Some((_, time)) = member.last {
                    let last = index.last.entry(member.process).or_default();
                    *last = time.max(*last);
                }
            }
            index
        })
    }

    /// The rank of a communicator, if its file is here.
    pub(super) fn member(&self, hash: u64, rank: u32) -> Option<usize> {
        self.index().by_rank.get(&(hash, rank)).copied()
    }

    /// The ranks of a communicator whose files are here.
    pub(super) fn of_comm(&self, hash: u64) -> impl Iterator<Item = (usize, &Member)> {
        let all = self.index().of_comm.get(&hash).map_or(&[][..], Vec::as_slice);
        all.iter().map(|index| (*index, &self.members[*index]))
    }

    /// When the process of a rank last handed something over.
    pub(super) fn last_of_process(&self, member: usize) -> Option<HostNs> {
        self.index().last.get(&self.members[member].process).copied()
    }

    /// Where no launcher numbered the ranks, the largest communicator with all of them does.
    pub(super) fn number_ranks(&mut self) {
        if self.members.iter().any(|member| member.world.is_some()) {
            return;
        }
        // Without its kernels, which GPU of a process has which rank may be unknown.
        let mut of_comms: BTreeMap<u64, (usize, BTreeMap<u64, u32>)> = BTreeMap::new();
        for Member { hash, process, rank, .. } in &self.members {
            let (count, of_comm) = of_comms.entry(*hash).or_default();
            *count += 1;
            of_comm.insert(*process, *rank);
        }
        let processes = self.members.iter().map(|member| member.process).collect::<BTreeSet<_>>().len();
        let with_all = of_comms.into_iter().filter(|(_, (count, of))| (*count, of.len()) == (processes, processes));
        let Some((_, (_, numbers))) = with_all.max_by_key(|(hash, _)| self.ranks.get(hash).copied()) else { return };
        for member in &mut self.members {
            member.world = numbers.get(&member.process).copied();
        }
    }

    /// Numbers operations without a mark from NCCL by the calls that asked for them. Sends and
    /// receives get no number, because these calls do not name the peer.
    pub(super) fn number(&mut self) {
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

    /// Whether a rank made the call for an operation without a mark from NCCL.
    pub(super) fn has_called(&self, key: Key, index: usize) -> bool {
        self.calls(key, index).is_some_and(|(_, made, number)| made >= number)
    }

    /// Of an operation without a mark from NCCL, its function, how many calls of it a rank made,
    /// and which one asked for it, counted from 1.
    pub(super) fn calls(&self, key: Key, index: usize) -> Option<(&str, u64, u64)> {
        let mark = usize::try_from(UNNUMBERED - 1 - key.1.min(UNNUMBERED - 1)).ok()?;
        let (_, function, number) = self.marks.get(mark)?;
        let (made, _) = self.calls_of.get(&(index, function.clone()))?;
        Some((function, *made, *number))
    }

    pub(super) fn stand(&mut self, member: usize, slice: &Unfinished) {
        let Unfinished { kind, begin, ref name, seq, peer, ref note, is_doubted, .. } = *slice;
        // The proxy's part of it has a channel in its name.
        let name = match name.rsplit_once(" ch ") {
            Some((name, channel)) if channel.parse::<u32>().is_ok() => name,
            _ => name,
        };
        let name = name.strip_prefix("nccl").unwrap_or(name);
        // A broadcast without a number of NCCL's was not handed over: its calls tell who has come.
        let is_told = seq.is_some() || function(name) != "Broadcast";
        let mark = slice.correlation.filter(|_| is_told).unwrap_or(UNNUMBERED);
        let key = key(self.members[member].hash, mark, slice.replay, name);
        let peer = peer.filter(|_| seq.is_none());
        let (name, note) = (name.to_owned(), note.clone());
        self.standing.push(Standing { member, key, begin, kind, name, seq, peer, note, is_doubted });
    }

    /// The ranks of a communicator, by its hash, that a process may have made a call for.
    pub(super) fn callers(&self, process: u64, hash: u64) -> &[usize] {
        self.by_hash.get(&(process >> TRACK_BITS, hash)).map_or(&[], Vec::as_slice)
    }

    /// The rank of a communicator, by its label, that a process's proxy or GPU works for, if it is
    /// one.
    pub(super) fn working(&self, process: u64, label: &str) -> Option<usize> {
        match self.by_label.get(&(process >> TRACK_BITS, label.to_owned()))?[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether what a channel does shows where a rank stands: the kernels themselves are not known,
    /// and nothing makes it doubtful which operation the channel works on, or whether it has ended.
    pub(super) fn tells_by_channels(&self, member: usize, slice: &Unfinished) -> bool {
        let Member { has_runs, process, .. } = self.members[member];
        // In replayed graphs NCCL does not say which run it is; of a send or receive, not the peer.
        let is_clear = |it: &survey::Process| !(it.is_lossy || it.is_partial || it.is_tail || it.captures);
        let is_numbered = !["Send", "Recv"].contains(&function(&slice.name));
        !has_runs && is_numbered && self.processes.get(&process).is_some_and(is_clear)
    }

    /// How long before the end of the job something happened on a rank, ns.
    pub(super) fn age(&self, member: usize, time: HostNs) -> u64 {
        self.age_in(self.members[member].process, time)
    }

    pub(super) fn age_in(&self, process: u64, time: HostNs) -> u64 {
        let stopped = self.stopped.get(&process).copied().unwrap_or(0);
        self.ends.get(&process).map_or(0, |end| end.since(time)) + stopped
    }

    /// Forgets what a rank waited in until its communicator was finalized, where it had come to the
    /// kernel of a later operation and then handed over more: only the record of its own was lost.
    /// NCCL works on the operations of a communicator in order; in one that is aborted they run to
    /// an end, too, but no more are handed over.
    pub(super) fn forget_what_is_over(&mut self) {
        let is_over = |it: &Standing| self.seen.get(&(it.key, it.member)).is_some_and(|seen| seen.is_over);
        self.standing.retain(|it| !is_over(it));
    }

    /// Counts for each run of a graph what has come on each rank, and on the one that waits in
    /// most.
    pub(super) fn count(&mut self) {
        let of_graphs = self.standing.iter().filter(|it| it.key.2.is_some() && it.kind == Work::Overdue);
        for it in of_graphs {
            let come = &mut self.seen.entry((it.key, it.member)).or_default().come;
            *come += 1;
            let most = self.most.entry(it.key).or_default();
            *most = (*most).max(*come);
        }
    }

    /// Whether an operation ran on a rank. Where several share its key, all must have come there
    /// that came to any.
    pub(super) fn has_run(&self, key: Key, member: usize) -> bool {
        let most = self.most.get(&key).copied().unwrap_or(0);
        self.seen.get(&(key, member)).is_some_and(|seen| seen.ran.is_some() && seen.come >= most)
    }

    /// When a rank finalized a communicator in which it waited since then.
    pub(super) fn finalized(&self, member: usize, since: HostNs) -> Option<HostNs> {
        self.members[member].finalized.filter(|time| *time >= since)
    }

    /// The number of the newest collective of an operation's function that the file of a rank
    /// names.
    pub(super) fn newest(&self, member: usize, of: &Standing) -> Option<u64> {
        let of_function = self.members[member].newest.iter().filter(|(name, ..)| function(name) == function(&of.name));
        of_function.map(|(_, seq, _)| *seq).max()
    }

    /// Whether only a part of a rank's trace was written: it fell silent, but need not have
    /// stopped. If its process was killed, its last second is missing.
    pub(super) fn is_cut(&self, member: usize) -> bool {
        let process = self.members[member].process;
        let end = self.ends.get(&process).copied().unwrap_or_default();
        self.processes.get(&process).is_some_and(|it| it.is_full || it.is_partial || it.is_silent_at(end))
    }

    /// Ranks that handed nothing over for a long time while others of their communicator went on.
    pub(super) fn silent(&self) -> Vec<usize> {
        // The last collective of each rank, by communicator: its function, number and mark, and its
        // age.
        let mut of_comms: FxHashMap<u64, Vec<(&str, u64, u64, u64)>> = FxHashMap::default();
        for (index, member) in self.members.iter().enumerate() {
            if let Some((it, time)) = &member.collective {
                let of_it = (function(&it.name), it.seq, it.correlation, self.age(index, *time));
                of_comms.entry(member.hash).or_default().push(of_it);
            }
        }
        let is_silent = |index: &usize| {
            let Member { ref last, ref collective, .. } = self.members[*index];
            let is_active = |(_, time): &(String, HostNs)| !self.waits_long(*index, self.age(*index, *time));
            if self.is_cut(*index) || last.as_ref().is_some_and(is_active) {
                return false;
            }
            let own = collective.as_ref().map(|(own, time)| (own, self.age(*index, *time)));
            // NCCL numbers the calls of each function. Others are told apart by time, which is
            // known less well: each recording has its own end.
            let own = own.map(|(own, since)| (function(&own.name), own, since));
            let went_on = |(of, seq, correlation, age): &(&str, u64, u64, u64)| {
                let is_beyond = own.is_none_or(|(function, own, since)| match function == *of {
                    true => *seq > own.seq,
                    false => *correlation != own.correlation && *age < since,
                });
                is_beyond.then_some(*age)
            };
            // A rank that never called has been silent since the others did.
            let all = of_comms.get(&self.members[*index].hash).map_or(&[][..], Vec::as_slice);
            let since = all.iter().filter_map(went_on).max();
            since.is_some_and(|age| own.is_some() || self.waits_long(*index, age))
        };
        (0..self.members.len()).filter(is_silent).collect()
    }

    /// If a rank fell silent, the other ranks wait in the operation that they handed over next.
    /// Where that was before the part of a file that was read, the number of a later one tells
    /// which it was.
    pub(super) fn stand_where_others_went_on(&mut self, silent: &[usize]) {
        for at in silent {
            let Member { hash, collective: Some((own, _)), .. } = &self.members[*at] else { continue };
            let is_tail = |member: &Member| self.processes.get(&member.process).is_some_and(|it| it.is_tail);
            let others: Vec<usize> =
                self.of_comm(*hash).filter(|(_, other)| is_tail(other)).map(|(other, _)| other).collect();
            let known = self.next.entry((*hash, Some(own.correlation))).or_default();
            for other in others {
                let member = &self.members[other];
                let newest = member.newest.iter().filter(|(name, ..)| function(name) == function(&own.name));
                let newest = newest.filter(|(_, seq, _)| *seq > own.seq).max_by_key(|(_, seq, _)| *seq);
                let Some((name, seq, time)) = newest.filter(|_| known.iter().all(|it| it.0 != other)) else { continue };
                let (correlation, first) = (own.correlation + AFTER, own.seq + 1);
                let name = if *seq == first { name } else { function(name) };
                known.push((other, Collective { correlation, name: name.to_owned(), seq: first }, *time));
            }
        }
        for ((hash, _), next) in std::mem::take(&mut self.next) {
            let oldest = next.iter().max_by_key(|(member, _, time)| self.age(*member, *time));
            let Some((_, first, _)) = oldest.cloned() else { continue };
            let key = (hash, first.correlation, None);
            if self.standing.iter().any(|it| it.key == key) {
                continue;
            }
            let is_first = |it: &Next| it.1.correlation == first.correlation;
            for (member, _, begin) in next.into_iter().filter(is_first) {
                let seen = self.seen.entry((key, member)).or_default();
                seen.handed_over = Some(begin);
                if seen.ran.is_none() {
                    let Collective { name, seq, .. } = first.clone();
                    let (kind, seq, note) = (Work::Overdue, Some(seq), String::new());
                    let (peer, is_doubted) = (None, false);
                    self.standing.push(Standing { member, key, begin, kind, name, seq, peer, note, is_doubted });
                }
            }
        }
    }

    /// Whether a rank whose last activity was this long before the end has been silent longer than
    /// ever before.
    pub(super) fn waits_long(&self, member: usize, age: u64) -> bool {
        age >= PATIENCE_NS.max(self.members[member].gap_ns.saturating_mul(BEYOND))
    }

    /// Whether a rank handed over so little that nothing shows how long it pauses in this job.
    pub(super) fn is_new(&self, member: usize) -> bool {
        self.members[member].gap_ns == 0
    }
}
