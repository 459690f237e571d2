//! Whether a quantity differs between two runs by more than it varies within each of them.
//!
//! Successive values of a run depend on each other: a machine is busy for a while, a GPU warms up.
//! So a run's values are divided into consecutive blocks, and the medians of the blocks are
//! compared. A change counts if three things hold: blocks seldom differ this much by chance
//! (Mann-Whitney test, with Holm's correction), the medians differ by more than the blocks within
//! each run do, and the difference reaches a minimum.

use serde::Serialize;

use super::statistics::{Distribution, Known, holm, mann_whitney};

/// The first tenth of every run is warm-up, between this minimum and this maximum of values.
const WARM_UP: (usize, usize) = (1, 20);
/// Blocks per run; with fewer values, each value is a block. Many quantities need more of them, or
/// Holm's correction leaves nothing.
const BLOCKS: usize = 10;
const MOST_BLOCKS: usize = 30;
/// With fewer blocks, nothing is concluded.
pub(crate) const ENOUGH: usize = 5;
/// A corrected probability below this counts as a difference.
pub(crate) const LEVEL: f64 = 0.05;
/// The relative change of the median from which a difference counts.
pub(crate) const EFFECT: f64 = 0.05;

/// Noise, as a fraction of the median, above which one cannot say that nothing changed.
const HIDDEN: f64 = 0.5;

/// The verdict on a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// It is greater in the second run.
    Slower,
    /// It is less in the second run.
    Faster,
    /// The runs themselves vary too much to tell.
    CannotTell,
    /// There is no difference, or one too small to count.
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

    /// Whether the quantity changed, in either direction.
    pub(crate) fn is_change(self) -> bool {
        matches!(self, Verdict::Slower | Verdict::Faster)
    }
}

/// A quantity in two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// The first run's values without warm-up, ns.
    pub(crate) a: Distribution,
    /// The second run's values without warm-up, ns.
    pub(crate) b: Distribution,
    /// How much the blocks of each run differ: from their 10th to their 90th percentile, ns.
    pub(crate) noise: [f64; 2],
    /// The probability by the Mann-Whitney test of the blocks, with Holm's correction; `None` where
    /// there are too few blocks.
    pub(crate) probability: Option<f64>,
    pub(crate) verdict: Verdict,
}

impl Change {
    /// By how much the median grew, ns.
    pub(crate) fn growth(&self) -> f64 {
        self.b.median - self.a.median
    }

    /// The least change of the median that counts, ns: if each run varies by this much, the next
    /// may be off by as much.
    pub(crate) fn noise(&self) -> f64 {
        self.noise.iter().sum()
    }
}

/// The values of two runs, each in order of time, that are to be compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Pair {
    pub(crate) fn new(a: &[f64], b: &[f64]) -> Pair {
        Pair { a: steady(a).to_vec(), b: steady(b).to_vec() }
    }

    fn is_enough(&self) -> bool {
        self.a.len() >= ENOUGH && self.b.len() >= ENOUGH
    }

    /// The blocks of each side, of which there are at most so many.
    fn blocks(&self, most: usize) -> [Vec<f64>; 2] {
        [blocks(&self.a, most), blocks(&self.b, most)]
    }
}

/// How many blocks show a change that chance does not explain, among so many quantities.
fn blocks_for(quantities: usize) -> usize {
    let is_enough = |count: &usize| least_probability([*count; 2]) * quantities as f64 <= LEVEL / 10.0;
    (BLOCKS..MOST_BLOCKS).find(is_enough).unwrap_or(MOST_BLOCKS)
}

/// The probability that so many values of two sides do not overlap by chance.
fn least_probability([a, b]: [usize; 2]) -> f64 {
    let choices = (1..=a).fold(1.0, |choices, at| choices * (b + at) as f64 / at as f64);
    2.0 / choices
}

/// Whether there are so many of these pairs, and so few values in each, that no change could be
/// told from chance.
pub(crate) fn are_too_many(pairs: &[Pair]) -> bool {
    let (count, most) = (pairs.iter().filter(|pair| pair.is_enough()).count(), blocks_for(pairs.len()));
    let can_tell = |pair: &Pair| {
        let least = least_probability([&pair.a, &pair.b].map(|values| values.len().min(most)));
        pair.is_enough() && least * (count as f64) < LEVEL
    };
    count > 0 && !pairs.iter().any(can_tell)
}

/// Compares all pairs, and corrects each probability for the number of pairs. A change of less than
/// `least` ns does not count. `None` where a side has only warm-up values.
pub(crate) fn compare(pairs: &[Pair], least: f64) -> Vec<Option<Change>> {
    let tested: Vec<usize> = (0..pairs.len()).filter(|at| pairs[*at].is_enough()).collect();
    let most = blocks_for(pairs.len());
    let blocks: Vec<[Vec<f64>; 2]> = pairs.iter().map(|pair| pair.blocks(most)).collect();
    let mut known = Known::default();
    let raw: Vec<f64> =
        tested.iter().filter_map(|at| mann_whitney(&blocks[*at][0], &blocks[*at][1], &mut known)).collect();
    let mut corrected = vec![None; pairs.len()];
    tested.iter().zip(holm(&raw)).for_each(|(at, probability)| corrected[*at] = Some(probability));
    let all = pairs.iter().zip(&blocks).zip(corrected);
    all.map(|((pair, blocks), probability)| change(pair, blocks, probability, least)).collect()
}

fn change(pair: &Pair, blocks: &[Vec<f64>; 2], probability: Option<f64>, least: f64) -> Option<Change> {
    let (a, b) = (Distribution::of(&pair.a)?, Distribution::of(&pair.b)?);
    let spread = |blocks: &Vec<f64>| Distribution::of(blocks).map_or(0.0, |it| it.p90 - it.p10);
    let [of_a, of_b] = blocks;
    let mut change = Change { a, b, noise: [spread(of_a), spread(of_b)], probability, verdict: Verdict::TooFew };
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

/// The values without the warm-up.
fn steady(values: &[f64]) -> &[f64] {
    let warm_up = values.len().div_ceil(10).clamp(WARM_UP.0, WARM_UP.1);
    values.get(warm_up..).unwrap_or_default()
}

/// The medians of consecutive blocks, of which there are at most so many; their lengths differ by
/// one at most.
fn blocks(values: &[f64], most: usize) -> Vec<f64> {
    let count = values.len().min(most);
    let edge = |block: usize| block * values.len() / count.max(1);
    (0..count).filter_map(|block| Distribution::of(&values[edge(block)..edge(block + 1)])).map(|it| it.median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values within 1 % of `middle`, in an order without a trend.
    fn around(count: usize, middle: f64) -> Vec<f64> {
        (0..count).map(|number| middle * (0.99 + (number * 7919 % 100) as f64 / 5000.0)).collect()
    }

    fn verdict(a: &[f64], b: &[f64]) -> Verdict {
        compare(&[Pair::new(a, b)], 0.0)[0].unwrap().verdict
    }

    #[test]
    fn changed_and_unchanged_values_are_told_apart() {
        let run = |middle| around(40, middle);
        assert_eq!(verdict(&run(1e6), &run(1.2e6)), Verdict::Slower);
        assert_eq!(verdict(&run(1.2e6), &run(1e6)), Verdict::Faster);
        assert_eq!(verdict(&run(1e6), &run(1e6)), Verdict::Same);
        // Beyond chance, but too small to count.
        assert_eq!(verdict(&run(1e6), &run(1.04e6)), Verdict::Same);
    }

    #[test]
    fn too_few_values_give_no_verdict() {
        // Five values plus one of warm-up are enough; one fewer is not.
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

    /// A run whose machine is busy from time to time, for many steps in a row: neighbouring values
    /// are alike, distant ones are not.
    fn with_busy_phases(count: usize, seed: u64) -> Vec<f64> {
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
    fn correlated_values_are_not_treated_as_independent() {
        let mut found = 0;
        for seed in 0..400 {
            let (a, b) = (with_busy_phases(400, 2 * seed + 1), with_busy_phases(400, 2 * seed + 2));
            found += usize::from(verdict(&a, &b).is_change());
        }
        // Both sides come from the same process.
        assert!(found <= 8, "{found} of 400");
        // A change larger than the variation is found.
        let slower = |seed| with_busy_phases(400, seed).iter().map(|value| value * 1.6).collect::<Vec<_>>();
        let seen =
            (0..100).filter(|seed| verdict(&with_busy_phases(400, seed + 1), &slower(seed + 1000)) == Verdict::Slower);
        assert!(seen.count() >= 95);
    }

    #[test]
    fn a_change_hidden_by_noise_is_reported_as_such() {
        let noisy = |middle: f64, turn: usize| -> Vec<f64> {
            (0..12).map(|number| middle * if (number / 2 + turn).is_multiple_of(2) { 0.7 } else { 1.4 }).collect()
        };
        assert_eq!(verdict(&noisy(1e6, 0), &noisy(1.2e6, 1)), Verdict::CannotTell);
    }

    #[test]
    fn a_change_on_one_of_thousands_of_ranks_is_found_if_there_are_enough_steps() {
        let of = |steps: usize| {
            let mut pairs = vec![Pair::new(&around(steps, 1e6), &around(steps, 1e6)); 6_000];
            pairs[7] = Pair::new(&around(steps, 1e6), &around(steps, 1.5e6));
            let changed: Vec<usize> = (compare(&pairs, 0.0).iter().enumerate())
                .filter(|(_, change)| change.unwrap().verdict.is_change())
                .map(|(at, _)| at)
                .collect();
            (changed, are_too_many(&pairs))
        };
        assert_eq!(of(60), (vec![7], false));
        assert_eq!(of(9), (vec![], true), "no change could be told from chance");
    }

    #[test]
    fn more_quantities_need_stronger_evidence() {
        // 6 against 6 values that do not overlap: 2 of the 924 possible choices.
        let pair = || Pair::new(&around(7, 1e6), &around(7, 2e6));
        let probability = |count: usize| compare(&vec![pair(); count], 0.0)[0].unwrap().probability.unwrap();
        assert!((probability(1) - 2.0 / 924.0).abs() < 1e-9);
        assert!((probability(10) - 20.0 / 924.0).abs() < 1e-9);
    }
}
