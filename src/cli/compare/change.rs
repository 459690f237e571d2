//! Whether a quantity differs between two runs beyond what it varies by within each of them.
//!
//! What follows each other in a run depends on each other: a machine is busy for a while, a GPU warms up. So a run's values are divided into
//! consecutive blocks, and their medians are what is compared. A change counts where three things hold: chance seldom makes blocks that
//! differ so (Mann and Whitney, corrected after Holm), the medians differ by more than the blocks of both runs do, and by a least effect.

use serde::Serialize;

use super::statistics::{Distribution, holm, mann_whitney};

/// Of every run the first tenth is warm-up, at least so much and at most so much.
const WARM_UP: (usize, usize) = (1, 20);
/// Blocks of a run; with fewer values each is one.
const BLOCKS: usize = 10;
/// Blocks below which nothing is concluded.
pub(crate) const ENOUGH: usize = 5;
/// Corrected probability below which a difference is taken for one.
pub(crate) const LEVEL: f64 = 0.05;
/// Change of the median from which a difference counts.
pub(crate) const EFFECT: f64 = 0.05;

/// Noise, as a part of the median, that could hide too much for saying that nothing changed.
const HIDDEN: f64 = 0.5;

/// What became of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// It is greater in the second run.
    Slower,
    /// It is less.
    Faster,
    /// The runs themselves vary so much that it cannot be told.
    CannotTell,
    /// The difference is none, or too small to count.
    Same,
    /// There are too few values to tell.
    TooFew,
}

impl Verdict {
    /// As reports say it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::CannotTell => "cannot tell",
            Verdict::Same => "same",
            Verdict::TooFew => "too few",
        }
    }

    /// It is one or the other.
    pub(crate) fn is_change(self) -> bool {
        matches!(self, Verdict::Slower | Verdict::Faster)
    }
}

/// A quantity in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// Of the first run without warm-up, ns.
    pub(crate) a: Distribution,
    /// Of the second.
    pub(crate) b: Distribution,
    /// By how much the blocks of each run differ, from the tenth to the ninetieth of a hundred, ns.
    pub(crate) noise: [f64; 2],
    /// Of Mann and Whitney's test of the blocks, corrected after Holm; `None` where there are too few.
    pub(crate) probability: Option<f64>,
    pub(crate) verdict: Verdict,
}

impl Change {
    /// By how much the median grew, ns.
    pub(crate) fn growth(&self) -> f64 {
        self.b.median - self.a.median
    }

    /// What the median has to grow or shrink by at least, ns: where each run varies by so much, the next may be off by as much.
    pub(crate) fn noise(&self) -> f64 {
        self.noise.iter().sum()
    }
}

/// Two runs' values, each in the order of time, to be compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    a: Vec<f64>,
    b: Vec<f64>,
    blocks_a: Vec<f64>,
    blocks_b: Vec<f64>,
}

impl Pair {
    pub(crate) fn new(a: &[f64], b: &[f64]) -> Pair {
        let (a, b) = (steady(a).to_vec(), steady(b).to_vec());
        Pair { blocks_a: blocks(&a), blocks_b: blocks(&b), a, b }
    }

    fn is_enough(&self) -> bool {
        self.blocks_a.len() >= ENOUGH && self.blocks_b.len() >= ENOUGH
    }
}

/// Compares all pairs, correcting each probability for how many there are. A change of less than `least` ns does not count. `None` where a
/// side has no values but warm-up.
pub(crate) fn compare(pairs: &[Pair], least: f64) -> Vec<Option<Change>> {
    let tested: Vec<usize> = (0..pairs.len()).filter(|at| pairs[*at].is_enough()).collect();
    let raw: Vec<f64> =
        tested.iter().filter_map(|at| mann_whitney(&pairs[*at].blocks_a, &pairs[*at].blocks_b)).collect();
    let mut corrected = vec![None; pairs.len()];
    tested.iter().zip(holm(&raw)).for_each(|(at, probability)| corrected[*at] = Some(probability));
    pairs.iter().zip(corrected).map(|(pair, probability)| change(pair, probability, least)).collect()
}

fn change(pair: &Pair, probability: Option<f64>, least: f64) -> Option<Change> {
    let (a, b) = (Distribution::of(&pair.a)?, Distribution::of(&pair.b)?);
    let spread = |blocks: &[f64]| Distribution::of(blocks).map_or(0.0, |it| it.p90 - it.p10);
    let mut change =
        Change { a, b, noise: [spread(&pair.blocks_a), spread(&pair.blocks_b)], probability, verdict: Verdict::TooFew };
    let Some(probability) = probability else { return Some(change) };
    let growth = change.growth();
    let (less, more) = (a.median.min(b.median), a.median.max(b.median));
    let counts = growth.abs() >= least && more >= (1.0 + EFFECT) * less;
    change.verdict = match () {
        () if counts && probability < LEVEL && growth.abs() > change.noise() => {
            if growth > 0.0 {
                Verdict::Slower
            } else {
                Verdict::Faster
            }
        }
        () if counts || change.noise() > least.max(HIDDEN * less) => Verdict::CannotTell,
        () => Verdict::Same,
    };
    Some(change)
}

/// Values without the warm-up.
fn steady(values: &[f64]) -> &[f64] {
    let warm_up = values.len().div_ceil(10).clamp(WARM_UP.0, WARM_UP.1);
    values.get(warm_up..).unwrap_or_default()
}

/// The medians of consecutive blocks of the same length, give or take one.
fn blocks(values: &[f64]) -> Vec<f64> {
    let count = values.len().min(BLOCKS);
    let edge = |block: usize| block * values.len() / count.max(1);
    (0..count).filter_map(|block| Distribution::of(&values[edge(block)..edge(block + 1)])).map(|it| it.median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values around one, off by at most a hundredth of it, in an order without a trend.
    fn around(count: usize, middle: f64) -> Vec<f64> {
        (0..count).map(|number| middle * (0.99 + (number * 7919 % 100) as f64 / 5000.0)).collect()
    }

    fn verdict(a: &[f64], b: &[f64]) -> Verdict {
        compare(&[Pair::new(a, b)], 0.0)[0].unwrap().verdict
    }

    #[test]
    fn what_changed_is_told_from_what_did_not() {
        let run = |middle| around(40, middle);
        assert_eq!(verdict(&run(1e6), &run(1.2e6)), Verdict::Slower);
        assert_eq!(verdict(&run(1.2e6), &run(1e6)), Verdict::Faster);
        assert_eq!(verdict(&run(1e6), &run(1e6)), Verdict::Same);
        // Beyond chance, and too little to count.
        assert_eq!(verdict(&run(1e6), &run(1.04e6)), Verdict::Same);
    }

    #[test]
    fn few_are_too_few() {
        // Five and one of warm-up are enough, and one less is not.
        let verdict = |count| verdict(&around(count, 1e6), &around(count, 2e6));
        assert_eq!((verdict(6), verdict(5), verdict(2)), (Verdict::Slower, Verdict::TooFew, Verdict::TooFew));
        assert!(compare(&[Pair::new(&[1.0], &[1.0, 2.0])], 0.0)[0].is_none());
    }

    #[test]
    fn warm_up_is_left_out() {
        let mut cold = around(40, 1e6);
        cold[..4].fill(9e9);
        let change = compare(&[Pair::new(&cold, &around(40, 1e6))], 0.0)[0].unwrap();
        assert_eq!((change.a.count, change.verdict), (36, Verdict::Same));
        assert!(change.a.max < 1.1e6);
    }

    /// A run whose machine is busy now and then for many steps on end: neighbours are alike, and far ones are not.
    fn in_moods(count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(u32::MAX >> 1)
        };
        let mut mood = 0.0;
        (0..count)
            .map(|_| {
                mood = 0.99 * mood + 0.02 * (random() - 0.5);
                1e6 * (1.5 + mood + 0.02 * random())
            })
            .collect()
    }

    #[test]
    fn values_that_depend_on_their_neighbours_are_not_taken_for_independent() {
        let (mut alone, mut found) = (0, 0);
        for seed in 0..400 {
            let (a, b) = (in_moods(400, 2 * seed + 1), in_moods(400, 2 * seed + 2));
            alone += usize::from(mann_whitney(&a, &b).unwrap() < LEVEL);
            found += usize::from(verdict(&a, &b).is_change());
        }
        // The same process on both sides: each value for itself, the test finds differences in most pairs.
        assert!(alone > 200, "{alone}");
        assert!(found <= 8, "{found} of 400");
        // What is greater than all moods is found.
        let slower = |seed| in_moods(400, seed).iter().map(|value| value * 1.6).collect::<Vec<_>>();
        let seen = (0..100).filter(|seed| verdict(&in_moods(400, seed + 1), &slower(seed + 1000)) == Verdict::Slower);
        assert!(seen.count() >= 95);
    }

    #[test]
    fn noise_hides_a_change_and_says_so() {
        let noisy = |middle: f64, turn: usize| -> Vec<f64> {
            (0..12).map(|number| middle * if (number / 2 + turn).is_multiple_of(2) { 0.7 } else { 1.4 }).collect()
        };
        assert_eq!(verdict(&noisy(1e6, 0), &noisy(1.2e6, 1)), Verdict::CannotTell);
    }

    #[test]
    fn many_quantities_ask_for_more() {
        // 6 and 6 values that do not overlap: 2 of all 924 ways to choose.
        let pair = || Pair::new(&around(7, 1e6), &around(7, 2e6));
        let probability = |count: usize| compare(&vec![pair(); count], 0.0)[0].unwrap().probability.unwrap();
        assert!((probability(1) - 2.0 / 924.0).abs() < 1e-9);
        assert!((probability(10) - 20.0 / 924.0).abs() < 1e-9);
    }
}
