//! Converts the recorder's clock to `CLOCK_BOOTTIME`, with an error bound (pure).
//!
//! The kernel steers its clocks, so a single slope for a whole run would drift away. Between two
//! readings of both clocks a straight line is good to nanoseconds. So a time is converted only once
//! the reading that ends its piece exists, and converted times never run backwards.

use std::collections::VecDeque;

use crate::model::time::{HostNs, Ticks};

/// Both clocks, read at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The recorder's clock.
    pub ticks: Ticks,
    /// The host's clock.
    pub host: HostNs,
    /// How far apart the two readings may be, in ns.
    pub error_ns: u32,
}

/// Which records are taken, by their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// All up to this one,
    pub until: Ticks,
    /// and all from this one on, which are from before the recorder's clock went back.
    pub from: Option<Ticks>,
}

impl Due {
    /// Whether this one is taken.
    #[inline]
    #[must_use]
    pub fn has(self, ticks: Ticks) -> bool {
        ticks <= self.until || self.is_earlier(ticks)
    }

    /// Whether it is from before the clock went back.
    #[inline]
    #[must_use]
    pub fn is_earlier(self, ticks: Ticks) -> bool {
        ticks > self.until && self.from.is_some_and(|from| ticks >= from)
    }
}

/// Pieces kept: late records are late by a few pieces at most.
const HISTORY: usize = 64;

/// Maps the recorder's clock onto the host's.
#[derive(Debug)]
pub struct HostClock {
    pairs: VecDeque<Pair>,
}

impl HostClock {
    /// Starts the conversion with a first reading.
    #[must_use]
    pub fn new(first: Pair) -> HostClock {
        HostClock { pairs: VecDeque::from([first]) }
    }

    /// Ends the current piece with this reading. False if the reading does not lie after the
    /// previous one on both clocks: it would make time run backwards, and is ignored.
    pub fn add(&mut self, pair: Pair) -> bool {
        let last = self.last();
        if pair.ticks <= last.ticks || pair.host <= last.host {
            return false;
        }
        if self.pairs.len() == HISTORY {
            self.pairs.pop_front();
        }
        self.pairs.push_back(pair);
        true
    }

    /// The newest reading.
    #[must_use]
    pub fn last(&self) -> Pair {
        self.pairs[self.pairs.len() - 1]
    }

    /// The host instant for `ticks`, and its error in ns. Times before the oldest piece or after
    /// the newest one use the line of the nearest piece.
    #[must_use]
    pub fn to_host(&self, ticks: Ticks) -> (HostNs, u32) {
        let count = self.pairs.len();
        if count < 2 {
            let only = self.pairs[0];
            return (only.host, only.error_ns);
        }
        // Nearly always the newest piece.
        let mut end = count - 1;
        while end > 1 && ticks < self.pairs[end - 1].ticks {
            end -= 1;
        }
        let (from, to) = (self.pairs[end - 1], self.pairs[end]);
        let slope = (to.host.0 - from.host.0) as f64 / (to.ticks.0 - from.ticks.0) as f64;
        let host = if ticks >= from.ticks {
            from.host.0.saturating_add(((ticks.0 - from.ticks.0) as f64 * slope) as u64)
        } else {
            from.host.0.saturating_sub(((from.ticks.0 - ticks.0) as f64 * slope) as u64)
        };
        (HostNs(host), from.error_ns.max(to.error_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ticks: u64, host: u64) -> Pair {
        Pair { ticks: Ticks(ticks), host: HostNs(host), error_ns: 20 }
    }

    #[test]
    fn each_piece_has_its_own_slope() {
        //  ticks   0 -------- 1000 -------- 2000
        //  host   50 -------- 1050 -------- 2100        5 % faster in the second piece
        let mut clock = HostClock::new(pair(0, 50));
        assert!(clock.add(pair(1000, 1050)));
        assert!(clock.add(pair(2000, 2100)));
        for (ticks, host) in [(0, 50), (500, 550), (1000, 1050), (1500, 1575), (2000, 2100), (2100, 2205)] {
            assert_eq!(clock.to_host(Ticks(ticks)), (HostNs(host), 20), "{ticks}");
        }
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut clock = HostClock::new(pair(1 << 50, 1 << 40));
        let mut state = 1_u64;
        for _ in 0..200 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let last = clock.last();
            let before = last.ticks.0;
            clock.add(pair(before + 1 + state % 1_000_000_007, last.host.0 + state % 500_000_003));
            // What was read together is converted into each other.
            for pair in [last, clock.last()] {
                let (host, _) = clock.to_host(pair.ticks);
                assert!(host.0.abs_diff(pair.host.0) <= 1, "{host:?} for {pair:?}");
            }
            let after = clock.last().ticks.0;
            let mut previous = HostNs(0);
            for step in 0..=100 {
                let ticks = before.saturating_sub(1000) + (after - before + 1000) * step / 100;
                let (host, _) = clock.to_host(Ticks(ticks));
                assert!(host >= previous);
                previous = host;
            }
        }
    }

    #[test]
    fn a_reading_that_goes_back_is_refused() {
        let mut clock = HostClock::new(pair(100, 100));
        assert!(!clock.add(pair(200, 100)));
        assert!(!clock.add(pair(100, 200)));
        assert!(clock.add(pair(101, 101)));
    }
}
