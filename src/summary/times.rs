//! Durations of one kind in bounded memory: a few exactly, more in a histogram.

use hdrhistogram::Histogram;

/// Up to this many durations are kept exactly.
const FEW: usize = 32;
/// Significant decimal digits of a histogram: a percentile is at most 0.8 % too large.
const DIGITS: u8 = 2;
/// Longer durations, of more than nine hours, count as this: they cannot be true.
const LONGEST: u64 = 1 << 45;

/// How many histograms may still be made.
#[derive(Debug)]
pub(super) struct Room(pub(super) usize);

/// Durations, ns.
#[derive(Clone, Debug)]
pub struct Times {
    number: u64,
    total: u64,
    least: u64,
    most: u64,
    kept: Kept,
}

#[derive(Clone, Debug)]
enum Kept {
    Each(Vec<u64>),
    Counted(Box<Histogram<u32>>),
    /// There were too many histograms.
    Nothing,
}

impl Default for Times {
    fn default() -> Times {
        Times { number: 0, total: 0, least: u64::MAX, most: 0, kept: Kept::Each(Vec::new()) }
    }
}

impl Times {
    /// How many there are.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Their sum, ns.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The shortest, ns.
    #[must_use]
    pub fn least(&self) -> Option<u64> {
        (self.number > 0).then_some(self.least)
    }

    /// The longest, ns.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        (self.number > 0).then_some(self.most)
    }

    /// A percentile, ns: the smallest duration that is not exceeded by this part of all. Exact up
    /// to 32 durations, above that at most 0.8 % too large. `None` if there are none, or if there
    /// were too many kinds to keep.
    #[must_use]
    pub fn percentile(&self, percent: u32) -> Option<u64> {
        match &self.kept {
            _ if self.number == 0 => None,
            Kept::Each(each) => {
                let mut sorted = each.clone();
                sorted.sort_unstable();
                let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
                sorted.get(rank - 1).copied()
            }
            Kept::Counted(histogram) => {
                let value = histogram.value_at_percentile(f64::from(percent));
                Some(value.clamp(self.least, self.most))
            }
            Kept::Nothing => None,
        }
    }

    /// How many are no longer than each of these bounds, ns. In a histogram, those within 0.8 % of
    /// a bound may count on either side of it. `None` if there were too many kinds to keep.
    pub(super) fn up_to<const N: usize>(&self, bounds: &[u64; N]) -> Option<[u64; N]> {
        match &self.kept {
            Kept::Each(each) => Some(bounds.map(|bound| each.iter().filter(|ns| **ns <= bound).count() as u64)),
            Kept::Counted(histogram) => Some(bounds.map(|bound| histogram.count_between(0, bound))),
            Kept::Nothing => None,
        }
    }

    /// Adds a duration.
    pub(super) fn add(&mut self, ns: u64, room: &mut Room) {
        let ns = ns.min(LONGEST);
        self.number += 1;
        self.total = self.total.saturating_add(ns);
        self.least = self.least.min(ns);
        self.most = self.most.max(ns);
        match &mut self.kept {
            Kept::Each(each) if each.len() < FEW => each.push(ns),
            Kept::Each(_) => self.count(ns, room),
            Kept::Counted(histogram) => record(histogram, ns),
            Kept::Nothing => {}
        }
    }

    /// Adds all durations of another.
    pub(super) fn add_all(&mut self, other: &Times, room: &mut Room) {
        if let Kept::Each(each) = &other.kept {
            return each.iter().for_each(|ns| self.add(*ns, room));
        }
        if matches!(self.kept, Kept::Each(_)) {
            self.make_histogram(room);
        }
        match (&mut self.kept, &other.kept) {
            (Kept::Counted(ours), Kept::Counted(theirs)) => {
                if ours.add(&**theirs).is_err() {
                    self.kept = Kept::Nothing;
                }
            }
            _ => self.kept = Kept::Nothing,
        }
        self.number += other.number;
        self.total = self.total.saturating_add(other.total);
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    #[cold]
    fn count(&mut self, ns: u64, room: &mut Room) {
        self.make_histogram(room);
        if let Kept::Counted(histogram) = &mut self.kept {
            record(histogram, ns);
        }
    }

    fn make_histogram(&mut self, room: &mut Room) {
        let Kept::Each(each) = std::mem::replace(&mut self.kept, Kept::Nothing) else { return };
        if room.0 > 0
            && let Ok(mut histogram) = Histogram::new(DIGITS)
        {
            room.0 -= 1;
            histogram.auto(true);
            each.iter().for_each(|ns| record(&mut histogram, *ns));
            self.kept = Kept::Counted(Box::new(histogram));
        }
    }
}

/// It grows as needed, so it always has room for a value.
fn record(histogram: &mut Histogram<u32>, ns: u64) {
    let _ = histogram.record(ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(each: impl Iterator<Item = u64>) -> Times {
        let (mut times, mut room) = (Times::default(), Room(8));
        each.for_each(|ns| times.add(ns, &mut room));
        times
    }

    #[test]
    fn few_durations_are_exact_and_many_are_close() {
        let few = of((1..=20).map(|it| it * 1000));
        assert_eq!([50, 95, 99, 100].map(|percent| few.percentile(percent).unwrap()), [10_000, 19_000, 20_000, 20_000]);
        let many = of((1..=100_000).map(|it| it * 37 % 100_001 * 100));
        assert_eq!((many.number(), many.least(), many.most()), (100_000, Some(100), Some(10_000_000)));
        for percent in [50, 95, 99] {
            let (truth, found) = (f64::from(percent) * 100_000.0, many.percentile(percent).unwrap() as f64);
            assert!((0.0..0.008).contains(&(found / truth - 1.0)), "{percent}: {found}, not {truth}");
        }
        assert_eq!(of([0, 0, 0].into_iter()).percentile(99), Some(0));
        assert_eq!(of([].into_iter()).percentile(50), None);
        // Nonsense neither panics nor takes memory.
        assert_eq!(of((0..100).map(|_| u64::MAX)).percentile(50), Some(LONGEST));
    }

    #[test]
    fn adding_in_parts_is_adding_all() {
        let all = |range: std::ops::Range<u64>| of(range.map(|it| it * it));
        for (middle, end) in [(5, 20), (20, 60), (50, 60), (500, 3000)] {
            let mut room = Room(8);
            let mut sum = all(0..middle);
            sum.add_all(&all(middle..end), &mut room);
            let whole = all(0..end);
            let figures =
                |it: &Times| (it.number(), it.total(), it.least(), it.most(), [50, 95, 99].map(|p| it.percentile(p)));
            assert_eq!(figures(&sum), figures(&whole), "{middle} {end}");
        }
    }

    #[test]
    fn without_room_the_sums_remain() {
        let (mut times, mut room) = (Times::default(), Room(0));
        (0..100).for_each(|ns| times.add(ns, &mut room));
        assert_eq!((times.number(), times.total(), times.percentile(50)), (100, 4950, None));
    }
}
