//! When hosts took part in the operations that they share: what relates their clocks.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use crate::clock::hosts::Orders;
use crate::model::time::{Bounded, HostNs};
use crate::trace::fields::{nccl, track_event::r#type as kind};
use crate::trace::reader::Event;
use crate::trace::reader::proto::ncclscope::{Function, MatchedBy};
use crate::trace::words::{Category, instant};
use crate::trace::writer::TRACK_BITS;

/// Operations of all files that are kept.
const OPERATIONS: usize = 4 << 20;
/// Those of one file, at least and at most.
const OF_FILE: [usize; 2] = [4 << 10, 64 << 10];

/// An operation as all its ranks know it: NCCL's hash of the communicator, what marks the operation there, and the run of its graph.
type Key = (u64, u64, u64);

/// A run that has begun.
struct Begun {
    key: Key,
    role: Role,
    /// How far its times may be off, ns.
    error: u64,
    /// What is known so far.
    part: Part,
}

/// When the ranks of one host took part in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The last of them whom others wait for was there then, or later.
    entered: Option<HostNs>,
    /// The first of them that waits for others was done then, or before.
    left: Option<HostNs>,
    /// The process that took part last, and how often.
    process: u64,
    times: u32,
    /// A process took part more often than it has ranks: these are several operations. NCCL counts none while a graph is captured.
    is_several: bool,
}

/// The operations that files of one clock know.
pub(super) struct Parts {
    parts: FxHashMap<Key, Part>,
    /// What is open on the tracks that have runs.
    open: FxHashMap<u64, Vec<Option<Begun>>>,
    /// The ranks that a process has in a communicator, by its mark and the hash.
    ranks: FxHashMap<(u64, u64), Vec<u64>>,
    /// Where there are too many, those are kept that have none of these bits in their mark: the same ones in all files.
    left_out: u64,
    most: usize,
    /// Operations that are known by inference only.
    pub(super) inferred: u64,
}

/// Who waits for whom in a collective.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Others wait for this rank, and it waits for nobody.
    Gives,
    /// It waits for others, and nobody for it.
    Takes,
    Both,
}

impl Parts {
    /// Of one of so many files.
    pub(super) fn of_one_in(files: usize) -> Parts {
        let most = (OPERATIONS / files.max(1)).clamp(OF_FILE[0], OF_FILE[1]);
        Parts {
            parts: FxHashMap::default(),
            open: FxHashMap::default(),
            ranks: FxHashMap::default(),
            left_out: 0,
            most,
            inferred: 0,
        }
    }

    /// Takes the next event of the file.
    pub(super) fn look(&mut self, event: &Event<'_>, time: HostNs) {
        match event.kind {
            kind::TYPE_SLICE_BEGIN if event.category == Category::Run.name() => {
                let run = self.operation(event).map(|(key, role, error)| {
                    let begin = Bounded { time, error_ns: error };
                    let entered = (role != Role::Takes).then(|| begin.earliest());
                    let process = event.track >> TRACK_BITS;
                    Begun { key, role, error, part: Part { entered, left: None, process, times: 1, is_several: false } }
                });
                self.open.entry(event.track).or_default().push(run);
            }
            kind::TYPE_SLICE_BEGIN => {
                if let Some(open) = self.open.get_mut(&event.track) {
                    open.push(None);
                }
            }
            kind::TYPE_SLICE_END => {
                let ended = self.open.get_mut(&event.track).and_then(Vec::pop).flatten();
                if let Some(Begun { key, role, error, mut part }) = ended {
                    let end = Bounded { time, error_ns: error };
                    part.left = (role != Role::Gives).then(|| end.latest());
                    self.add(key, part);
                }
            }
            _ if event.name == instant::COMM_INIT => {
                if let Some(hash) = event.uint(nccl::COMM) {
                    let ranks = self.ranks.entry((event.track >> TRACK_BITS, hash)).or_default();
                    ranks.push(event.uint(nccl::RANK).unwrap_or(0));
                }
            }
            _ => {}
        }
    }

    /// What a run is of, who waits for whom in it, and how far its times may be off; nothing where that is not certain.
    fn operation(&mut self, event: &Event<'_>) -> Option<(Key, Role, u64)> {
        let (comm, mark) = (event.uint(nccl::COMM)?, event.correlation?);
        let error = event.uint(nccl::TIME_ERROR_NS)?;
        let run = event.uint(nccl::REPLAY).unwrap_or(0);
        let matched = event.uint(nccl::MATCH).and_then(|it| MatchedBy::try_from(it as i32).ok())?;
        match matched {
            MatchedBy::ExactGraphNode if run > 0 => {}
            MatchedBy::ExactLaunchBracket | MatchedBy::ExactExternalId => {}
            _ => {
                self.inferred += 1;
                return None;
            }
        }
        let is_root = || {
            let [rank] = self.ranks.get(&(event.track >> TRACK_BITS, comm))?[..] else { return None };
            Some(event.uint(nccl::ROOT).unwrap_or(0) == rank)
        };
        let role = match Function::try_from(event.uint(nccl::FUNCTION)? as i32).ok()? {
            Function::AllReduce | Function::AllGather | Function::ReduceScatter | Function::AlltoAll => Role::Both,
            Function::Send => Role::Gives,
            Function::Recv => Role::Takes,
            Function::Broadcast | Function::Scatter => {
                if is_root()? {
                    Role::Gives
                } else {
                    Role::Takes
                }
            }
            Function::Reduce | Function::Gather => {
                if is_root()? {
                    Role::Takes
                } else {
                    Role::Gives
                }
            }
            _ => return None,
        };
        Some(((comm, mark, run), role, error))
    }

    fn add(&mut self, key: Key, part: Part) {
        if mixed(key) & self.left_out != 0 {
            return;
        }
        let most = self.ranks.get(&(part.process, key.0)).map_or(1, Vec::len);
        let known = self.parts.entry(key).and_modify(|known| *known = known.and(part)).or_insert(part);
        known.is_several |= known.times as usize > most;
        if self.parts.len() > self.most {
            self.leave_out(self.left_out << 1 | 1);
        }
    }

    fn leave_out(&mut self, bits: u64) {
        self.left_out |= bits;
        self.parts.retain(|key, _| mixed(*key) & bits == 0);
    }

    /// There may be as many of these as hosts: no memory is kept for more than is known.
    pub(super) fn shrink(&mut self) {
        self.open = FxHashMap::default();
        self.parts.shrink_to_fit();
    }

    /// Whether those of another clock know one of these operations.
    pub(super) fn share(&self, other: &Parts) -> bool {
        other.parts.keys().any(|key| self.parts.contains_key(key))
    }

    /// Takes what another file of the same clock knows.
    pub(super) fn merge(&mut self, other: Parts) {
        self.leave_out(other.left_out);
        self.inferred += other.inferred;
        for (key, part) in other.parts {
            if mixed(key) & self.left_out == 0 {
                self.parts.entry(key).and_modify(|known| *known = known.and(part)).or_insert(part);
            }
        }
    }
}

impl Part {
    /// Of several ranks.
    fn and(self, other: Part) -> Part {
        let times = if self.process == other.process { self.times + other.times } else { other.times };
        Part {
            entered: self.entered.max(other.entered),
            left: self.left.into_iter().chain(other.left).min(),
            process: other.process,
            times,
            is_several: self.is_several || other.is_several,
        }
    }
}

/// Bits that say nothing of what an operation is.
fn mixed((comm, mark, run): Key) -> u64 {
    (comm ^ mark.rotate_left(32) ^ run.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// What operations say of clocks, by the numbers of two of them: each operation is held against the first clock that knows it.
pub(super) fn orders(clocks: &[Parts]) -> HashMap<(usize, usize), Orders> {
    let left_out = clocks.iter().fold(0, |bits, parts| bits | parts.left_out);
    let mut first: FxHashMap<Key, usize> = FxHashMap::default();
    let mut orders: HashMap<(usize, usize), Orders> = HashMap::new();
    for (number, parts) in clocks.iter().enumerate() {
        for (key, there) in &parts.parts {
            if mixed(*key) & left_out != 0 {
                continue;
            }
            let reference = *first.entry(*key).or_insert(number);
            let here = &clocks[reference].parts[key];
            if reference == number || here.is_several || there.is_several {
                continue;
            }
            let between = orders.entry((reference, number)).or_default();
            if let (Some(entered), Some(left)) = (here.entered, there.left) {
                between.here_first(entered, left);
            }
            if let (Some(left), Some(entered)) = (here.left, there.entered) {
                between.there_first(left, entered);
            }
        }
    }
    orders
}
