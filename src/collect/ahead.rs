//! Notices that the processors' clocks differ, although the kernel trusts them (pure).
//!
//! Readings of both clocks cannot show it: the kernel keeps time with the same counter, so on a
//! processor whose counter is off, both are off by as much. The order of two events can. Whoever
//! reads a record does so after it was made; if the record's time is later than the reader's, the
//! clock where it was made is ahead, by at least the difference.
//!
//! ```text
//!   NCCL's thread   12:00:07 --.            its processor's clock is ahead by 5 or more
//!   our thread                 '--> 12:00:02
//! ```
//!
//! That shows nothing about a clock that is behind ours, until our thread runs there and others
//! are ahead of it. To visit each processor would show more. But a thread that moves to a processor
//! waits behind whatever runs there, behind a thread of real-time priority for ever, and takes time
//! from it, even if it was kept free for the job on purpose.

use crate::clock::align::Pair;
use crate::model::time::{HostNs, Ticks};

/// Less than this is not a difference, ns: a processor may read its counter early, while it waits
/// for memory.
const LEAST_NS: u64 = 10_000;
/// Differences until it is said, and their distance, in ns. A clock that goes back, as when a
/// virtual machine moves, shows one difference.
const TIMES: u32 = 3;
const APART_NS: u64 = 100_000_000;
/// After a longer time without a reading nothing is concluded: the machine may have been suspended
/// or moved.
const GAP_NS: u64 = 1_000_000_000;

/// How far the clocks where records are made are ahead of the one where they are read.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The reading before, and the current one.
    before: Pair,
    pair: Pair,
    /// The latest time that was read.
    latest: Ticks,
    /// How many differences were seen, when the last one that counts was, and the largest, ns.
    times: u32,
    seen: HostNs,
    most_ns: u64,
}

impl Ahead {
    pub(super) fn new(first: Pair) -> Ahead {
        Ahead { before: first, pair: first, latest: first.ticks, times: 0, seen: HostNs(0), most_ns: 0 }
    }

    /// Takes a reading of both clocks, and returns it with the error that is known now.
    pub(super) fn reads(&mut self, pair: Pair) -> Pair {
        (self.before, self.pair) = (self.pair, pair);
        self.latest = self.latest.max(pair.ticks);
        let more = if self.times < TIMES { 0 } else { u32::try_from(self.most_ns).unwrap_or(u32::MAX) };
        Pair { error_ns: pair.error_ns.saturating_add(more), ..pair }
    }

    /// There is a record of this time; `now` reads the clock. Returns by how much the clocks differ
    /// at least, in ns, once that is certain.
    pub(super) fn sees(&mut self, record: Ticks, now: impl FnOnce() -> Ticks) -> Option<u64> {
        // The clock went back, and the record may be from before.
        let went_back = self.pair.ticks < self.latest;
        let [ticks, ns] =
            [self.pair.ticks.0.saturating_sub(self.before.ticks.0), self.pair.host.since(self.before.host)];
        if record <= self.pair.ticks || went_back || ns > GAP_NS {
            return None;
        }
        let ahead = record.0.saturating_sub(now().0);
        let ns = u128::from(ahead) * u128::from(ns) / u128::from(ticks.max(1));
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        if ns < LEAST_NS {
            return None;
        }
        self.most_ns = self.most_ns.max(ns);
        if self.times == TIMES || self.times > 0 && self.pair.host.since(self.seen) < APART_NS {
            return None;
        }
        (self.times, self.seen) = (self.times + 1, self.pair.host);
        (self.times == TIMES).then_some(self.most_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Two ticks a nanosecond.
    fn pair(ns: u64) -> Pair {
        Pair { ticks: Ticks(2 * ns), host: HostNs(1 << 40 | ns), error_ns: 20 }
    }

    /// What is said of a record each 60 ms, which is read this long before (below 0: after) its
    /// time, in ns; and the error of the last reading.
    fn said(early: &[i64]) -> (Vec<(usize, u64)>, u32) {
        let mut ahead = Ahead::new(pair(0));
        let mut said = Vec::new();
        for (number, early) in early.iter().enumerate() {
            let ns = (number as u64 + 1) * 60 * MS;
            ahead.reads(pair(ns));
            let read = ns + 5_000;
            let ns = ahead.sees(Ticks(2 * read.saturating_add_signed(*early)), || Ticks(2 * read));
            said.extend(ns.map(|ns| (number, ns)));
        }
        (said, ahead.reads(pair(10_000 * MS)).error_ns)
    }

    #[test]
    fn a_clock_that_is_ahead_is_reported_once_with_the_largest_difference() {
        let early = [30_000, 700_000, 30_000, 30_000, 30_000, 900_000, 30_000];
        // Of those less than 100 ms apart, the first counts.
        assert_eq!(said(&early), (vec![(4, 700_000)], 20 + 900_000));
    }

    #[test]
    fn records_of_the_past_and_small_differences_say_nothing() {
        assert_eq!(said(&[-1, 0, -1_000_000, 9_999, 5_000, 0, 9_999, 0, 9_999]), (vec![], 20));
    }

    #[test]
    fn a_clock_that_goes_back_now_and_then_says_nothing() {
        // Once or twice, before our own reading shows it.
        assert_eq!(said(&[0, 50_000, 0, 0, 0, 0, 9_000_000, 8_000_000, 0, 0]), (vec![], 20));
        // Our own reading shows it: all records from before are later than it.
        let mut ahead = Ahead::new(pair(0));
        ahead.reads(pair(5_000 * MS));
        for ns in (1_000..4_900).step_by(100) {
            ahead.reads(pair(ns * MS));
            assert_eq!(ahead.sees(Ticks(2 * 5_100 * MS), || Ticks(2 * ns * MS)), None, "{ns}");
        }
        assert_eq!(ahead.reads(pair(6_000 * MS)).error_ns, 20);
        // It may have gone back while nobody read it.
        let mut ahead = Ahead::new(pair(0));
        for ns in (1_001..10_000).step_by(1_001) {
            ahead.reads(pair(ns * MS));
            assert_eq!(ahead.sees(Ticks(2 * (ns + 2) * MS), || Ticks(2 * (ns + 1) * MS)), None, "{ns}");
        }
    }
}
