//! Kernels that carry several operations, counted as one.

use super::traffic::Traffic;
use super::times::{Room, Times};
use super::{Facts, UNKNOWN};
use crate::model::time::HostNs;
use crate::model::word::Word;

/// How many functions of one group are counted separately.
const KINDS: usize = 3;
/// Ranks of a communicator whose all-to-alls are recognised.
const RANKS: usize = 4096;

/// What a kernel carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Group {
    comm: u32,
    kind: Kind,
    /// Kernels that carry as much are one group. An AlltoAllv carries another amount each time: where
    /// experts get tokens, every step has its own.
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
    sends: Way,
    receives: Way,
    ns: Option<u64>,
    is_contradicted: bool,
}

/// The sends or the receives of a group.
#[derive(Debug, Default)]
struct Way {
    number: usize,
    least: u64,
    most: u64,
    /// Ranks, as bits.
    peers: Vec<u64>,
    /// Each goes to a different rank of the communicator.
    is_spread: bool,
    has_itself: bool,
}

impl Way {
    fn add(&mut self, part: &Part, rank: Option<i32>, ranks: Option<u32>) {
        if self.number == 0 {
            (self.least, self.is_spread) = (u64::MAX, true);
        }
        self.number += 1;
        let bytes = part.bytes.unwrap_or_default();
        (self.least, self.most) = (self.least.min(bytes), self.most.max(bytes));
        let peer = part.peer.and_then(|peer| usize::try_from(peer).ok());
        let ranks = ranks.map_or(0, |ranks| ranks as usize).min(RANKS);
        let Some(peer) = peer.filter(|peer| *peer < ranks) else {
            self.is_spread = false;
            return;
        };
        self.has_itself |= part.peer == rank;
        self.peers.resize(ranks.div_ceil(64), 0);
        let bits = &mut self.peers[peer / 64];
        self.is_spread &= *bits >> (peer % 64) & 1 == 0;
        *bits |= 1 << (peer % 64);
    }

    /// Whether there is one for each rank. The own rank does not matter, because that moves
    /// nothing.
    fn is_whole(&self, ranks: u32) -> bool {
        self.is_spread && self.number - usize::from(self.has_itself) == ranks as usize - 1
    }
}

impl Gathering {
    pub(super) fn new(comm: u32, of: u64, start: HostNs) -> Gathering {
        Gathering {
            comm,
            of,
            start,
            number: 0,
            kinds: [(Word::ABSENT, 0); KINDS],
            traffic: Some(Traffic::default()),
            sends: Way::default(),
            receives: Way::default(),
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
            Word::SEND => self.sends.add(part, rank, ranks),
            Word::RECV => self.receives.add(part, rank, ranks),
            _ => {}
        }
    }

    /// What the kernel carried, what that moved, and how long it took, ns; `None` if that is doubtful or
    /// not known.
    pub(super) fn group(mut self, ranks: Option<u32>) -> Option<(Group, Option<Traffic>, u64)> {
        let ns = self.ns.filter(|_| !self.is_contradicted)?;
        self.kinds.sort_unstable_by_key(|(word, number)| (*number == 0, *word == Word::ABSENT, *word));
        let [sends, receives] = [&self.sends, &self.receives];
        // Between two ranks, a send and a receive may be an exchange of anything.
        let to_all = ranks.filter(|ranks| {
            (sends.number + receives.number) as u64 == self.number
                && (*ranks > 2 || *ranks == 2 && sends.has_itself && receives.has_itself)
                && sends.is_whole(*ranks)
                && receives.is_whole(*ranks)
        });
        let (least, most) = (sends.least.min(receives.least), sends.most.max(receives.most));
        let (kind, traffic) = match to_all {
            Some(ranks) if least == most => {
                let mut traffic = Traffic::default();
                let is_defined = traffic.add(Word::ALL_TO_ALL, most, ranks, false);
                (Kind::AllToAll, is_defined.then_some(traffic))
            }
            Some(_) => (Kind::AllToAllV, self.traffic),
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
            Kind::AllToAllV => return "AlltoAllv".into(),
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
