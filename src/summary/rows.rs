//! Rows of totals: operations with the same arguments are added up in one row, and there is a limit
//! to how many rows there are.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::facts::Facts;
use super::times::{Room, Times};
use crate::model::word::{Table as Words, Word};

/// How many sets of arguments, groups, calls and peers have rows of their own, each. Later ones
/// share one row.
pub(super) const ROWS: usize = 1024;
/// How many pairs of buffers are counted separately for the same arguments.
pub(super) const BUFFERS: usize = 16;

/// Stands for the communicator of events that name none, and of a shared row.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Rows by their keys, in order of appearance. Past the limit, everything is added to the last one.
#[derive(Debug)]
pub(super) struct Rows<K, V> {
    places: FxHashMap<K, u32>,
    pub(super) rows: Vec<(K, V)>,
    /// Additions to the last row under other keys.
    pub(super) shared: u64,
}

impl<K: Copy + Eq + Hash, V: Default> Rows<K, V> {
    pub(super) fn new() -> Rows<K, V> {
        Rows { places: FxHashMap::default(), rows: Vec::new(), shared: 0 }
    }

    /// The place of a key's row. `rest` is the key for everything past the limit.
    pub(super) fn place(&mut self, key: K, rest: K) -> u32 {
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let key = if self.rows.len() + 1 < ROWS {
            key
        } else {
            self.shared += 1;
            rest
        };
        *self.places.entry(key).or_insert_with(|| {
            self.rows.push((key, V::default()));
            self.rows.len() as u32 - 1
        })
    }

    pub(super) fn at(&mut self, place: u32) -> Option<&mut V> {
        self.rows.get_mut(place as usize).map(|(_, row)| row)
    }
}

/// The arguments by which operations are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Arguments {
    pub(super) comm: u32,
    pub(super) function: u16,
    pub(super) datatype: u16,
    pub(super) count: Option<u64>,
    pub(super) root: Option<i32>,
    pub(super) peer: Option<i32>,
}

impl Arguments {
    /// Those of everything that has no row of its own.
    pub(super) const REST: Arguments =
        Arguments { comm: UNKNOWN, function: u16::MAX, datatype: 0, count: None, root: None, peer: None };
}

/// Operations with the same arguments.
#[derive(Debug, Default)]
pub(super) struct Operations {
    bytes: Option<u64>,
    /// As NCCL handed them over; and with a known kernel. NCCL does not hand over some replays of
    /// graphs, and some operations have no known kernel.
    pub(super) handed_over: Seen,
    pub(super) ran: Seen,
    /// Kernel times of those whose kernel carried nothing else.
    pub(super) kernel: Times,
    /// From the hand-over to the start of the kernel.
    pub(super) queued: Times,
    /// How many shared a kernel, and how many have a kernel that NCCL's times contradict.
    pub(super) grouped: u64,
    pub(super) contradicted: u64,
    /// How many waited for the proxy, and for how long in total, ns.
    pub(super) proxy_waits: u64,
    pub(super) proxy_wait: u64,
    /// The numbers of the words, as bits.
    pub(super) algorithms: u64,
    pub(super) protocols: u64,
    /// The least and the most channels.
    pub(super) channels: Option<(u64, u64)>,
    pub(super) buffers: Vec<[u64; 2]>,
    pub(super) more_buffers: bool,
}

/// How often something was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) eager: u64,
    pub(super) graph: u64,
    /// Buffers at multiples of 128 bytes, of 16 but not 128, and others.
    pub(super) aligned_128: u64,
    pub(super) aligned_16: u64,
    pub(super) unaligned: u64,
}

impl Seen {
    pub(super) fn number(&self) -> u64 {
        self.eager + self.graph
    }

    pub(super) fn add(&mut self, facts: &Facts<'_>) {
        *(if facts.replay.is_some() { &mut self.graph } else { &mut self.eager }) += 1;
        match facts.alignment {
            0 => {}
            it if it % 128 == 0 => self.aligned_128 += 1,
            it if it % 16 == 0 => self.aligned_16 += 1,
            _ => self.unaligned += 1,
        }
    }

    pub(super) fn add_all(&mut self, other: &Seen) {
        self.eager += other.eager;
        self.graph += other.graph;
        self.aligned_128 += other.aligned_128;
        self.aligned_16 += other.aligned_16;
        self.unaligned += other.unaligned;
    }
}

impl Operations {
    pub(super) fn describe(&mut self, facts: &Facts<'_>) {
        self.bytes = self.bytes.or(facts.bytes);
        for (bits, word, table) in [
            (&mut self.algorithms, facts.algorithm, Words::Algorithm),
            (&mut self.protocols, facts.protocol, Words::Protocol),
        ] {
            let is_known = Word(word.number).table() == Some(table);
            // The other words share the first bit.
            *bits |= match (is_known, word.text.is_empty()) {
                (true, _) => 1 << word.number,
                (false, true) => 0,
                (false, false) => 1,
            };
        }
        if let Some(channels) = facts.channels {
            let (least, most) = self.channels.unwrap_or((channels, channels));
            self.channels = Some((least.min(channels), most.max(channels)));
        }
        if facts.buffers != [0, 0] && !self.more_buffers && !self.buffers.contains(&facts.buffers) {
            match self.buffers.len() < BUFFERS {
                true => self.buffers.push(facts.buffers),
                false => self.more_buffers = true,
            }
        }
    }

    pub(super) fn add_all(&mut self, other: &Operations, room: &mut Room) {
        self.bytes = self.bytes.or(other.bytes);
        self.handed_over.add_all(&other.handed_over);
        self.ran.add_all(&other.ran);
        self.kernel.add_all(&other.kernel, room);
        self.queued.add_all(&other.queued, room);
        self.grouped += other.grouped;
        self.contradicted += other.contradicted;
        self.proxy_waits += other.proxy_waits;
        self.proxy_wait = self.proxy_wait.saturating_add(other.proxy_wait);
        self.algorithms |= other.algorithms;
        self.protocols |= other.protocols;
        self.channels = match (self.channels, other.channels) {
            (Some(ours), Some(theirs)) => Some((ours.0.min(theirs.0), ours.1.max(theirs.1))),
            (ours, theirs) => ours.or(theirs),
        };
    }

    /// The bytes of each; none for those that have no row of their own, because they differ.
    pub(super) fn bytes(&self, key: &Arguments) -> Option<u64> {
        self.bytes.filter(|_| *key != Arguments::REST)
    }

    /// The sort key: larger ones come first in the table.
    pub(super) fn rank(&self) -> (u64, u64) {
        (self.kernel.total(), self.seen().number())
    }

    /// The larger of the two: what NCCL handed over, and what ran.
    pub(super) fn seen(&self) -> &Seen {
        if self.ran.number() > self.handed_over.number() { &self.ran } else { &self.handed_over }
    }

    /// How many ran eagerly and from graphs, or were handed over.
    pub(super) fn numbers(&self) -> [u64; 2] {
        let all = self.seen().number();
        let graph = self.handed_over.graph.max(self.ran.graph).min(all);
        [all - graph, graph]
    }
}
