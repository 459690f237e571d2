//! In which steps a GPU's timer goes on, by its stamps (pure).
//!
//! A timer counts in multiples of its step, so the step divides what any two stamps are apart. The greatest common divisor of
//! a few of these is the step, or, as long as they are too few, a multiple of it: more is stated then, never less. Steps may
//! change while a job runs (before Hopper a profiler makes them finer), so only the newest stamps count.

use crate::model::time::GpuNs;

/// What is stated at least, in ns: a timer that goes on every 1024 ns may show values that are odd in that.
const LEAST: u64 = 1_024;
/// What is stated where all stamps are the same, in ns: kernels are shorter than the step.
const UNKNOWN: u64 = 1 << 20;
/// Stamps that tell the step; then the next ones begin.
const ENOUGH: u32 = 32;
/// Stamps from which on those of now count more than those before: of 8 numbers by chance one set in 250 has a divisor that is too large.
const SOME: u32 = 8;

/// The step of one timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// A stamp, and by what the others are apart from it: their common divisor, and how many there are.
    base: Option<u64>,
    divisor: u64,
    count: u32,
    /// What those before these said, or 0.
    before: u64,
}

impl Step {
    /// Takes a stamp.
    pub(super) fn see(&mut self, stamp: GpuNs) {
        let apart = stamp.0.abs_diff(*self.base.get_or_insert(stamp.0));
        if apart == 0 {
            return;
        }
        self.divisor = common_divisor(self.divisor, apart);
        self.count += 1;
        if self.count == ENOUGH {
            *self = Step { base: Some(stamp.0), before: self.divisor, ..Step::default() };
        }
    }

    /// The most by which a stamp may be older than its instant, in ns.
    pub(super) fn ns(&self) -> u64 {
        let step = match (self.before, self.divisor) {
            (0, 0) => UNKNOWN,
            (0, now) => now,
            (before, 0) => before,
            (_, now) if self.count >= SOME => now,
            (before, now) => before.min(now),
        };
        step.max(LEAST)
    }
}

fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stamps of a timer with this step, a few microseconds to some milliseconds apart.
    fn stamps(step: u64, from: u64) -> impl Iterator<Item = GpuNs> {
        let mut state = from;
        let mut time = 59_000_000_000_000 + from * 1_000_000_000;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            time += 3_000 + (state >> 33) % 3_000_000;
            GpuNs(time / step * step)
        })
    }

    #[test]
    fn never_less_than_the_step_is_stated_and_soon_no_more() {
        for step in [1, 32, 1_000, 1_024, 10_000, 100_000, 1_000_000] {
            for seed in 1..20 {
                let mut known = Step::default();
                assert_eq!(known.ns(), UNKNOWN);
                for (count, stamp) in stamps(step, seed).take(100).enumerate() {
                    known.see(stamp);
                    assert!(known.ns() >= step, "{step}: {known:?}");
                    assert!(count < 32 || known.ns() <= step.max(LEAST), "{step} after {count}: {known:?}");
                }
            }
        }
    }

    #[test]
    fn another_step_is_noticed() {
        for (first, then) in [(32, 100_000), (100_000, 32)] {
            let mut known = Step::default();
            stamps(first, 1).take(150).for_each(|stamp| known.see(stamp));
            assert_eq!(known.ns(), first.max(LEAST));
            stamps(then, 2).take(2 * ENOUGH as usize).for_each(|stamp| known.see(stamp));
            assert_eq!(known.ns(), then.max(LEAST));
        }
    }
}
