//! Algorithm and bus bandwidth by the definitions of nccl-tests.
//!
//! nccl-tests divides the bytes of an operation by its time (algorithm bandwidth), and multiplies
//! that by how often each byte has to pass a link (bus bandwidth), so that operations can be
//! compared with each other and with the hardware. `bytes` is what NCCL reports: elements times
//! their size, which for some functions is one rank's part of the whole:
//!
//! | function | algorithm bytes | bus factor |
//! | --- | --- | --- |
//! | AllReduce | bytes | 2(n-1)/n |
//! | AllGather, ReduceScatter, AlltoAll, Gather, Scatter | bytes times n | (n-1)/n |
//! | Broadcast, Reduce | bytes | 1 |
//! | Send, Recv | the larger of the sums of both | 1 |

use crate::model::word::Word;

/// The data that the operations of one kernel move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Traffic {
    /// Bytes by algorithm, and bytes on the bus times the number of ranks.
    moved: u128,
    bus: u128,
    sent: u128,
    received: u128,
}

impl Traffic {
    /// Adds an operation with this many bytes, on a communicator of this many ranks. A send or
    /// receive `to_itself` moves nothing over a link. False if it is undefined what it moves.
    pub fn add(&mut self, function: Word, bytes: u64, ranks: u32, to_itself: bool) -> bool {
        let (bytes, ranks) = (u128::from(bytes), u128::from(ranks));
        if ranks == 0 {
            return false;
        }
        match function {
            Word::SEND | Word::RECV if to_itself => {}
            Word::SEND => self.sent = self.sent.saturating_add(bytes),
            Word::RECV => self.received = self.received.saturating_add(bytes),
            Word::ALL_REDUCE => self.add_moved(bytes, bytes.saturating_mul(2 * (ranks - 1))),
            Word::ALL_GATHER | Word::REDUCE_SCATTER | Word::ALL_TO_ALL | Word::GATHER | Word::SCATTER => {
                self.add_moved(bytes * ranks, bytes * ranks * (ranks - 1));
            }
            Word::BROADCAST | Word::REDUCE => self.add_moved(bytes, bytes * ranks),
            _ => return false,
        }
        true
    }

    fn add_moved(&mut self, moved: u128, bus: u128) {
        (self.moved, self.bus) = (self.moved.saturating_add(moved), self.bus.saturating_add(bus));
    }

    /// The same, with what was sent and received as one amount, so that kernels add up.
    #[must_use]
    pub(super) fn settled(self, ranks: u32) -> Traffic {
        let passed = self.sent.max(self.received);
        let mut traffic = Traffic { sent: 0, received: 0, ..self };
        traffic.add_moved(passed, passed.saturating_mul(u128::from(ranks)));
        traffic
    }

    /// Adds that of another kernel.
    pub(super) fn add_all(&mut self, other: &Traffic) {
        self.add_moved(other.moved, other.bus);
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
    }

    /// Algorithm and bus bandwidth in bytes per second if it was moved `times` times in `ns` in
    /// total. `None` if that does not fit into 64 bits.
    #[must_use]
    pub fn bandwidth(&self, ranks: u32, times: u64, ns: u64) -> Option<[u64; 2]> {
        let (passed, ranks) = (self.sent.max(self.received), u128::from(ranks.max(1)));
        let rate = |bytes: u128, parts: u128| {
            let bytes = bytes.checked_mul(u128::from(times))?.checked_mul(1_000_000_000)?;
            u64::try_from(bytes / parts.checked_mul(u128::from(ns.max(1)))?).ok()
        };
        let bus = self.bus.checked_add(passed.checked_mul(ranks)?)?;
        Some([rate(self.moved.checked_add(passed)?, 1)?, rate(bus, ranks)?])
    }

    /// Bytes by algorithm and on the bus, if it was moved `times` times.
    #[must_use]
    pub fn moved(&self, ranks: u32, times: u64) -> [u64; 2] {
        // Per second, if all of it took one second.
        self.bandwidth(ranks, times, 1_000_000_000).unwrap_or([u64::MAX; 2])
    }

    /// The bytes by algorithm.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.moved.saturating_add(self.sent.max(self.received))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nccl-tests' `GetBw` of each test, version 2.19.6: bytes are `count * typesize`, and the
    /// results are in bytes per second.
    fn nccl_tests(function: Word, bytes: f64, n: f64, seconds: f64) -> Option<[f64; 2]> {
        let (base, factor) = match function {
            Word::ALL_REDUCE => (bytes, 2.0 * (n - 1.0) / n),
            Word::ALL_GATHER | Word::REDUCE_SCATTER => (bytes * n, (n - 1.0) / n),
            Word::ALL_TO_ALL | Word::GATHER | Word::SCATTER => (bytes * n, (n - 1.0) / n),
            Word::BROADCAST | Word::REDUCE => (bytes, 1.0),
            Word::SEND | Word::RECV => (bytes, 1.0),
            _ => return None,
        };
        Some([base / seconds, base / seconds * factor])
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests_for_every_function() {
        for number in Word::ALL_GATHER.0..=Word::INVALID.0 {
            let function = Word(number);
            for (bytes, ranks, ns) in
                [(1_u64 << 20, 8_u32, 125_000_u64), (1000, 3, 777), (4, 2, 1), (1 << 34, 1024, 5_000_000_000)]
            {
                let mut traffic = Traffic::default();
                let found =
                    traffic.add(function, bytes, ranks, false).then(|| traffic.bandwidth(ranks, 1, ns)).flatten();
                let truth = nccl_tests(function, bytes as f64, ranks.into(), ns as f64 / 1e9);
                match (found, truth) {
                    (Some(found), Some(truth)) => {
                        for (found, truth) in found.into_iter().zip(truth) {
                            assert!(
                                (found as f64 - truth).abs() <= 1.0 + truth * 1e-6,
                                "{function:?}: {found} {truth}"
                            );
                        }
                    }
                    (found, truth) => assert_eq!(found.is_some(), truth.is_some(), "{function:?}"),
                }
            }
        }
    }

    #[test]
    fn sends_and_receives_count_once_and_those_to_itself_not_at_all() {
        let mut traffic = Traffic::default();
        for (function, bytes, to_itself) in
            [(Word::SEND, 100, false), (Word::RECV, 300, false), (Word::SEND, 100, false), (Word::SEND, 900, true)]
        {
            assert!(traffic.add(function, bytes, 4, to_itself));
        }
        assert_eq!(traffic.bandwidth(4, 1, 1_000_000_000), Some([300, 300]));
    }

    #[test]
    fn nonsense_has_no_bandwidth() {
        let mut traffic = Traffic::default();
        assert!(!traffic.add(Word::ALL_REDUCE, 1, 0, false), "no ranks");
        assert!(traffic.add(Word::ALL_GATHER, u64::MAX, u32::MAX, false));
        assert_eq!(traffic.bandwidth(u32::MAX, u64::MAX, 1), None);
    }
}
