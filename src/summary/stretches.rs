//! Kernel time of collectives, by stretch of a communicator's operations.
//!
//! All ranks of a communicator run the same collectives in the same order, and an AllReduce, for
//! example, ends on all of them at the same time. So the rank whose kernels of a stretch took the
//! least time came last, and the others waited for it by as much as theirs took longer. One rank's
//! stretches say nothing; those of all ranks together say who came late, and when.

use rustc_hash::FxHashMap;

use crate::model::time::HostNs;
use crate::model::word::Word;

/// The most stretches of a communicator. Beyond it, pairs are joined.
const STRETCHES: usize = 64;
/// The most communicators with stretches.
const COMMS: usize = 64;

/// The stretches of a process.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    by_comm: FxHashMap<u32, OfComm>,
}

/// Those of a communicator.
#[derive(Debug)]
pub(super) struct OfComm {
    /// How many collectives each has; the last one may have fewer.
    pub(super) width: u64,
    pub(super) all: Vec<Stretch>,
}

/// Successive collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// When the first kernel began.
    pub(super) begin: HostNs,
    /// How many there are; of as many, the time is known.
    places: u64,
    pub(super) number: u64,
    /// How long the kernels took in total, ns.
    pub(super) ns: u64,
}

impl Stretches {
    /// A kernel that carried one operation, and its time, if known. One without a time has its
    /// place, so that the others of all ranks stay side by side.
    pub(super) fn add(&mut self, comm: u32, function: u16, begin: HostNs, ns: Option<u64>) {
        // The others let some ranks go before the last one comes.
        if !matches!(Word(function), Word::ALL_REDUCE | Word::ALL_GATHER | Word::REDUCE_SCATTER | Word::ALL_TO_ALL) {
            return;
        }
        if self.by_comm.len() >= COMMS && !self.by_comm.contains_key(&comm) {
            return;
        }
        let of = self.by_comm.entry(comm).or_insert(OfComm { width: 1, all: Vec::new() });
        let one = Stretch { begin, places: 1, number: u64::from(ns.is_some()), ns: ns.unwrap_or(0) };
        if let Some(last) = of.all.last_mut().filter(|last| last.places < of.width) {
            return last.join(&one);
        }
        if of.all.len() >= STRETCHES {
            of.width *= 2;
            of.all = joined(&of.all, of.width);
        }
        of.all.push(one);
    }

    /// By communicator.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &OfComm)> {
        self.by_comm.iter().map(|(comm, of)| (*comm, of))
    }
}

impl Stretch {
    fn join(&mut self, next: &Stretch) {
        self.places += next.places;
        self.number += next.number;
        self.ns = self.ns.saturating_add(next.ns);
    }
}

/// The same in longer stretches of `width` collectives, a multiple of the present width.
fn joined(all: &[Stretch], width: u64) -> Vec<Stretch> {
    let mut wider: Vec<Stretch> = Vec::new();
    for stretch in all {
        match wider.last_mut().filter(|last| last.places < width) {
            Some(last) => last.join(stretch),
            None => wider.push(*stretch),
        }
    }
    wider
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_stay_few_and_keep_everything() {
        let mut stretches = Stretches::default();
        for at in 0..1000_u64 {
            stretches.add(0, Word::ALL_REDUCE.0, HostNs(10 * at), Some(at));
            stretches.add(0, Word::BROADCAST.0, HostNs(10 * at), Some(7));
        }
        let (_, of) = stretches.iter().next().unwrap();
        assert_eq!((of.width, of.all.len()), (16, 63));
        assert_eq!(of.all[1], Stretch { begin: HostNs(160), places: 16, number: 16, ns: (16..32).sum() });
        assert_eq!(of.all[62], Stretch { begin: HostNs(9920), places: 8, number: 8, ns: (992..1000).sum() });
        assert_eq!(of.all.iter().map(|it| it.number).sum::<u64>(), 1000);
    }

    #[test]
    fn a_kernel_without_a_time_keeps_its_place() {
        let mut stretches = Stretches::default();
        for at in 0..256_u64 {
            stretches.add(0, Word::ALL_REDUCE.0, HostNs(at), (at != 1).then_some(at));
        }
        let (_, of) = stretches.iter().next().unwrap();
        assert_eq!((of.all[0].number, of.all[1].number), (3, 4));
        assert_eq!((of.all[0].ns, of.all[1].ns), (2 + 3, 4 + 5 + 6 + 7));
    }

    #[test]
    fn communicators_beyond_the_limit_have_none() {
        let mut stretches = Stretches::default();
        (0..2 * COMMS as u32).for_each(|comm| stretches.add(comm, Word::ALL_GATHER.0, HostNs(0), Some(1)));
        assert_eq!(stretches.iter().count(), COMMS);
    }
}
