//! Determines the step of a GPU's timer from its stamps (pure).
//!
//! A timer counts in multiples of its step, so the step divides the difference of any two stamps.
//! The greatest common divisor of a few differences is the step or, while there are too few, a
//! multiple of it: the result may be too large, but never too small. The step may change while a
//! job runs (before Hopper a profiler makes it finer), so only the newest stamps count.

use crate::model::time::GpuNs;

/// The smallest result, in ns: a timer with a step of 1024 ns may show values that are not
/// multiples of it.
const LEAST: u64 = 1_024;
/// The result if all stamps are the same, in ns: the kernels are shorter than the step.
const UNKNOWN: u64 = 1 << 20;
/// Stamps from which a step is determined; then the next set begins.
const ENOUGH: u32 = 32;
/// Stamps from which on the current set outweighs the previous one: of 8 random numbers, one set in
/// 250 has a divisor that is too large.
const SOME: u32 = 8;

/// The step of one timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// A stamp, the common divisor of the other stamps' differences from it, and how many there
    /// are.
    base: Option<u64>,
    divisor: u64,
    count: u32,
    /// The divisor of the previous set, or 0.
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
    fn the_result_is_never_below_the_step_and_soon_exact() {
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
    fn a_change_of_the_step_is_noticed() {
        for (first, then) in [(32, 100_000), (100_000, 32)] {
            let mut known = Step::default();
            stamps(first, 1).take(150).for_each(|stamp| known.see(stamp));
            assert_eq!(known.ns(), first.max(LEAST));
            stamps(then, 2).take(2 * ENOUGH as usize).for_each(|stamp| known.see(stamp));
            assert_eq!(known.ns(), then.max(LEAST));
        }
    }
}
