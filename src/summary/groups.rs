//! Kernels that carry several operations, counted as one.

use super::times::{Room, Times};
use super::traffic::Traffic;
use super::{Facts, UNKNOWN};
use crate::model::all_to_all::{AllToAll, Exchange};
use crate::model::time::HostNs;
use crate::model::word::Word;

/// What a kernel is called that carries an exchange of unequal sizes.
pub const ALL_TO_ALL_V: &str = "AlltoAllv";
/// How many functions of one group are counted separately.
const KINDS: usize = 3;

/// What a kernel carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    comm: u32,
    kind: Kind,
    /// Kernels that carry as much are one group. An AlltoAllv carries another amount each time:
    /// where experts get tokens, every step has its own.
    traffic: Option<Traffic>,
}

/// The kernels of a group.
#[derive(Debug, Default)]
pub(super) struct OfGroup {
    pub(super) times: Times,
    /// What those moved of which it is known, and their number and time, ns.
    moved: Traffic,
    known: (u64, u64),
}

impl OfGroup {
    pub(super) fn add(&mut self, ns: u64, moved: Option<Traffic>, room: &mut Room) {
        self.times.add(ns, room);
        if let Some(moved) = moved {
            self.moved.add_all(&moved);
            self.known = (self.known.0 + 1, self.known.1.saturating_add(ns));
        }
    }

    pub(super) fn add_all(&mut self, other: &OfGroup, room: &mut Room) {
        self.times.add_all(&other.times, room);
        self.moved.add_all(&other.moved);
        self.known = (self.known.0 + other.known.0, self.known.1.saturating_add(other.known.1));
    }

    /// The bytes of a kernel, on average, by algorithm.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.moved.bytes().checked_div(self.known.0)
    }

    /// Algorithm and bus bandwidth, in bytes per second.
    pub(super) fn bandwidth(&self, ranks: u32) -> Option<[u64; 2]> {
        (self.known.0 > 0).then(|| self.moved.bandwidth(ranks, 1, self.known.1))?
    }

    /// Bytes by algorithm and on the bus.
    pub(super) fn moved(&self, ranks: u32) -> Option<[u64; 2]> {
        (self.known.0 > 0).then(|| self.moved.moved(ranks, 1))
    }
}

/// What the operations of a group form together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A send to each rank and a receive from each, all of the same size; or of different sizes.
    AllToAll,
    AllToAllV,
    /// This many of each function; an absent function in the last place stands for all further
    /// ones.
    Several([(Word, u32); KINDS]),
    /// Everything that has no row of its own.
    Rest,
}

/// The facts about an operation that matter in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    function: Word,
    bytes: Option<u64>,
    peer: Option<i32>,
}

impl Part {
    pub(super) fn of(facts: &Facts<'_>) -> Part {
        Part { function: Word(facts.function.number), bytes: facts.bytes, peer: facts.peer }
    }
}

/// The operations of one kernel, as they come.
#[derive(Debug)]
pub(super) struct Gathering {
    comm: u32,
    of: u64,
    start: HostNs,
    number: u64,
    kinds: [(Word, u32); KINDS],
    traffic: Option<Traffic>,
    exchange: Exchange,
    ns: Option<u64>,
    is_contradicted: bool,
}

impl Gathering {
    /// None so far, for this process's rank among so many.
    pub(super) fn new(comm: u32, of: u64, start: HostNs, rank: Option<i32>, ranks: Option<u32>) -> Gathering {
        Gathering {
            comm,
            of,
            start,
            number: 0,
            kinds: [(Word::ABSENT, 0); KINDS],
            traffic: Some(Traffic::default()),
            exchange: Exchange::of(rank, ranks),
            ns: None,
            is_contradicted: false,
        }
    }

    /// Whether it is that of this kernel.
    pub(super) fn is(&self, comm: u32, of: u64, start: HostNs) -> bool {
        (self.comm, self.of, self.start) == (comm, of, start)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.number >= self.of
    }

    /// Adds an operation, for this process's rank among this many.
    pub(super) fn add(
        &mut self,
        part: &Part,
        rank: Option<i32>,
        ranks: Option<u32>,
        ns: Option<u64>,
        is_contradicted: bool,
    ) {
        self.number += 1;
        self.ns = self.ns.max(ns);
        self.is_contradicted |= is_contradicted;
        let known = self.kinds.iter().position(|(word, number)| *word == part.function && *number > 0);
        let place = known.or_else(|| self.kinds.iter().position(|(_, number)| *number == 0));
        match place {
            Some(place) => self.kinds[place] = (part.function, self.kinds[place].1.saturating_add(1)),
            None => self.kinds[KINDS - 1] = (Word::ABSENT, self.kinds[KINDS - 1].1.saturating_add(1)),
        }
        let is_itself = part.peer.is_some() && part.peer == rank;
        self.traffic = self
            .traffic
            .and_then(|mut traffic| traffic.add(part.function, part.bytes?, ranks?, is_itself).then_some(traffic));
        match part.function {
            Word::SEND | Word::RECV => self.exchange.add(part.function == Word::SEND, part.peer, part.bytes),
            _ => {}
        }
    }

    /// What the kernel carried, what that moved, and how long it took, ns; `None` if that is
    /// doubtful or not known.
    pub(super) fn group(mut self, ranks: Option<u32>) -> Option<(Group, Option<Traffic>, u64)> {
        let ns = self.ns.filter(|_| !self.is_contradicted)?;
        self.kinds.sort_unstable_by_key(|(word, number)| (*number == 0, *word == Word::ABSENT, *word));
        let all_to_all = self.exchange.all_to_all().filter(|_| self.exchange.number() as u64 == self.number);
        let (kind, traffic) = match all_to_all.zip(ranks) {
            Some((AllToAll::Equal(bytes), ranks)) => {
                let mut traffic = Traffic::default();
                let is_defined = traffic.add(Word::ALL_TO_ALL, bytes, ranks, false);
                (Kind::AllToAll, is_defined.then_some(traffic))
            }
            Some((AllToAll::Unequal, _)) => (Kind::AllToAllV, self.traffic),
            None => (Kind::Several(self.kinds), self.traffic),
        };
        let moved = traffic.zip(ranks).map(|(traffic, ranks)| traffic.settled(ranks));
        let traffic = traffic.filter(|_| kind != Kind::AllToAllV);
        Some((Group { comm: self.comm, kind, traffic }, moved, ns))
    }
}

impl Group {
    pub(super) const REST: Group = Group { comm: UNKNOWN, kind: Kind::Rest, traffic: None };

    pub(super) fn comm(&self) -> u32 {
        self.comm
    }

    /// Whether it stands for everything that has no row of its own.
    pub(super) fn is_rest(&self) -> bool {
        self.kind == Kind::Rest
    }

    /// The same with another numbering of communicator and words.
    pub(super) fn with(&self, comm: u32, word: impl Fn(u16) -> u16) -> Group {
        let kind = match self.kind {
            Kind::Several(kinds) => Kind::Several(kinds.map(|(of, number)| (Word(word(of.0)), number))),
            kind => kind,
        };
        Group { comm, kind, ..*self }
    }

    /// `AlltoAll`, or `2 AllReduce + 1 Broadcast`; and how many operations it has, if they are
    /// counted.
    pub(super) fn name(&self, spelling: impl Fn(u16) -> String) -> String {
        let kinds = match self.kind {
            Kind::AllToAll => return "AlltoAll".into(),
            Kind::AllToAllV => return ALL_TO_ALL_V.into(),
            Kind::Rest => return "others".into(),
            Kind::Several(kinds) => kinds,
        };
        let of = |(word, number): (Word, u32)| match word {
            Word::ABSENT => format!("{number} others"),
            word => format!("{number} {}", spelling(word.0)),
        };
        kinds.into_iter().filter(|(_, number)| *number > 0).map(of).collect::<Vec<_>>().join(" + ")
    }
}
