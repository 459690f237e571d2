//! Operations: what NCCL was asked for.

use super::{Comm, Moment};
use crate::model::event::{self, Event};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::word::Word;

/// A collective or a send/receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its event; for an operation that NCCL does not hand over, the call that asked for it.
    pub id: Handle,
    /// When that event began: the operation was handed over, or asked for. 0 if unknown, as in
    /// other tools' files.
    pub since: HostNs,
    /// Where the program asked for it: the begin of the call, or of the hand-over up to v4 of the
    /// interface. `None` if another tool's file does not say.
    pub asked: Option<Moment>,
    /// NCCL's facts.
    pub event: Event,
    /// Texts behind those words of the event that are not in the table: function, datatype,
    /// algorithm, protocol, variant or sync strategy. Nearly always `None`.
    pub texts: Option<Box<Texts>>,
    /// For a send or receive: its number among those with the same peer and direction on this
    /// communicator, from 0. For the call of a broadcast that NCCL does not hand over: its number
    /// among these on this communicator. Otherwise [`Operation::UNNUMBERED`]. Captured ones are
    /// counted apart, from [`Operation::CAPTURED`], and have the same number in each run of their
    /// graph.
    pub number: u32,
}

/// Texts of an operation that are not a [`Word`] of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // NCCL's own words
pub struct Texts {
    pub func: Option<Box<str>>,
    pub datatype: Option<Box<str>>,
    pub algorithm: Option<Box<str>>,
    pub protocol: Option<Box<str>>,
    pub variant: Option<Box<str>>,
}

impl Operation {
    /// The number if those before it are not known, as in other tools' files.
    pub const UNNUMBERED: u32 = u32::MAX;
    /// At which bit of its [correlation](Operation::correlation) the number of a collective begins.
    pub const SEQ_BIT: u32 = 28;
    /// The number of the first captured one.
    pub const CAPTURED: u32 = 1 << 31;

    /// The function.
    #[must_use]
    pub fn func(&self) -> Word {
        self.asked_for().0
    }

    /// A collective's number among those of its function on its communicator, from 0, if NCCL
    /// numbers it.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        match &self.event {
            Event::Coll(coll) if coll.seq != event::Coll::UNNUMBERED => Some(coll.seq),
            _ => None,
        }
    }

    /// The datatype.
    #[must_use]
    pub fn datatype(&self) -> Word {
        self.asked_for().1
    }

    /// The number of elements, as NCCL counts them for this event.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.asked_for().2
    }

    fn asked_for(&self) -> (Word, Word, u64) {
        match &self.event {
            Event::Coll(coll) => (coll.func, coll.datatype, coll.count),
            Event::P2p(p2p) => (p2p.func, p2p.datatype, p2p.count),
            Event::CollApi(call) => (call.func, call.datatype, call.count),
            Event::P2pApi(call) => (call.func, call.datatype, call.count),
            Event::CeColl(coll) => (coll.func, coll.datatype, coll.count),
            _ => (Word::ABSENT, Word::ABSENT, 0),
        }
    }

    /// Whether its number of elements is known. It always is from NCCL; other tools may know only
    /// the function, or bytes.
    #[must_use]
    pub fn has_count(&self) -> bool {
        let datatype = self.texts.as_ref().is_some_and(|texts| texts.datatype.is_some());
        self.datatype() != Word::BYTES && (self.count() > 0 || datatype || self.datatype() != Word::ABSENT)
    }

    /// Bytes: the number of elements times their size; `None` if NCCL does not state the datatype.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.count().checked_mul(self.datatype().element_bytes()?)
    }

    /// The number that marks this operation in every rank's trace: 32 bits of sequence, 5 of
    /// function, 23 of communicator. The sequence is in the upper bits, because starting with small
    /// numbers keeps it short in the file; and it starts at bit 28, where its bytes are those of
    /// the argument `seq`, which compresses well. Where NCCL has no sequence, it is our own
    /// [number](Operation::number): that of a broadcast, or 35 bits made of it and both ranks of a
    /// send or receive; of a million in one communicator, some 15 share theirs with another. `None`
    /// if the ranks have nothing in common by which to identify it.
    #[must_use]
    pub fn correlation(&self, comm: Option<&Comm>) -> Option<u64> {
        let comm = comm.filter(|comm| comm.hash != 0)?;
        let (function, sequence) = match &self.event {
            Event::Coll(coll) if coll.seq != event::Coll::UNNUMBERED => (coll.func.0 as u8, u64::from(coll.seq as u32)),
            _ if self.number == Self::UNNUMBERED => return None,
            Event::CollApi(call) => (call.func.0 as u8, u64::from(self.number)),
            Event::P2p(p2p) if comm.rank >= 0 => {
                let (from, to) = if p2p.func == Word::RECV { (p2p.peer, comm.rank) } else { (comm.rank, p2p.peer) };
                (Word::SEND_RECV.0 as u8, transfer(from, to, self.number))
            }
            _ => return None,
        };
        let communicator = (comm.hash ^ comm.hash >> 23 ^ comm.hash >> 46) & 0x7f_ffff;
        Some(sequence << Self::SEQ_BIT | u64::from(function & 0x1f) << 23 | communicator)
    }
}

/// 35 bits for a transfer between two ranks of a communicator.
fn transfer(from: i32, to: i32, number: u32) -> u64 {
    let pair = u64::from(from as u32) << 32 | u64::from(to as u32);
    // The pair is mixed by itself first: otherwise some later transfer of one has the mark of
    // another.
    mixed(mixed(pair) ^ u64::from(number)) >> 29
}

/// Makes each bit depend on all bits of the value: the last step of the random numbers of Steele,
/// Lea and Flood (SplitMix64). Different values have different results.
fn mixed(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn transfers_have_marks_of_their_own_in_long_jobs() {
        // A million of 16 ranks: by chance, 15 of them share their mark with another.
        let pairs = (0..16).flat_map(|from| (0..16).map(move |to| (from, to)));
        let marks: HashSet<u64> =
            pairs.flat_map(|(from, to)| (0..4096).map(move |number| transfer(from, to, number << 4))).collect();
        assert!(marks.len() > 16 * 16 * 4096 - 40, "{}", marks.len());
        assert!(marks.iter().all(|mark| mark >> 35 == 0));
    }
}
