//! The statistics of a comparison, in full: distributions, the two-sample test, and the correction
//! for multiple tests.

use rustc_hash::FxHashMap;

use serde::Serialize;

/// The distribution of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    /// Number of values.
    pub(crate) count: u64,
    /// Minimum.
    pub(crate) min: f64,
    /// The 10th percentile.
    pub(crate) p10: f64,
    /// Median.
    pub(crate) median: f64,
    /// The 90th percentile.
    pub(crate) p90: f64,
    /// Maximum.
    pub(crate) max: f64,
    /// Sum of the values.
    pub(crate) sum: f64,
}

impl Distribution {
    /// The distribution of these values; `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Distribution> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let at = |part| quantile(&sorted, part);
        Some(Distribution {
            count: sorted.len() as u64,
            min,
            p10: at(0.1),
            median: at(0.5),
            p90: at(0.9),
            max,
            sum: sorted.iter().sum(),
        })
    }
}

/// A quantile of sorted values, by linear interpolation between the two nearest (Hyndman and Fan's
/// type 7).
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = part * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

/// The probability that two samples of one distribution differ as much as these or more, by the
/// two-sided Mann-Whitney test.
///
/// It is exact, ties included: the sum of ranks is compared with that of every way to divide the
/// values, of which there may be some 60 in total. It assumes that the values are independent.
/// `None` if a side is empty.
pub(crate) fn mann_whitney(a: &[f64], b: &[f64], known: &mut Known) -> Option<f64> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|value| (*value, true)).chain(b.iter().map(|value| (*value, false))).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    // Twice the rank, so that the middle rank of ties is a whole number.
    let mut doubled = Vec::with_capacity(all.len());
    let mut at = 0;
    while at < all.len() {
        let length = all[at..].iter().take_while(|it| it.0 == all[at].0).count();
        let rank = (2 * at + length + 1) as u64;
        doubled.extend(std::iter::repeat_n(rank, length));
        at += length;
    }
    let sum: u64 = all.iter().zip(&doubled).filter(|((_, of_a), _)| *of_a).map(|(_, rank)| rank).sum();
    Some(known.exact(doubled, a.len(), sum))
}

/// How many choices of ranks have each sum, by the ranks and how many are chosen: the same for most
/// tests.
#[derive(Debug, Default)]
pub(crate) struct Known(FxHashMap<(Vec<u64>, usize), Vec<f64>>);

impl Known {
    /// The fraction of all choices of `n` ranks whose sum is at least as far from the mean as
    /// `sum`.
    fn exact(&mut self, ranks: Vec<u64>, n: usize, sum: u64) -> f64 {
        // Twice the ranks' mean is the number of ranks plus one; times the size of the choice, it
        // is the mean sum.
        let middle = (n * (ranks.len() + 1)) as u64;
        let choices = self.0.entry((ranks, n)).or_insert_with_key(|(ranks, n)| choices(ranks, *n));
        let all: f64 = choices.iter().sum();
        let is_far = |other: &usize| (*other as u64).abs_diff(middle) >= sum.abs_diff(middle);
        let far: f64 = (0..choices.len()).filter(is_far).map(|sum| choices[sum]).sum();
        (far / all).min(1.0)
    }
}

/// How many choices of `n` ranks have each sum; floating-point, because there are up to 10^17.
fn choices(ranks: &[u64], n: usize) -> Vec<f64> {
    let most = ranks.iter().sum::<u64>() as usize;
    let mut choices = vec![vec![0.0; most + 1]; n + 1];
    choices[0][0] = 1.0;
    for rank in ranks {
        for size in (1..=n).rev() {
            let (smaller, larger) = choices.split_at_mut(size);
            let with_it = larger[0][*rank as usize..].iter_mut().zip(&smaller[size - 1]);
            with_it.for_each(|(with, without)| *with += without);
        }
    }
    choices.swap_remove(n)
}

/// Corrects the probabilities of several tests by Holm's method: one below a level is significant
/// at that level among all of them.
pub(crate) fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|one, other| probabilities[*one].total_cmp(&probabilities[*other]));
    let mut corrected = vec![0.0; probabilities.len()];
    let mut greatest = 0.0_f64;
    for (place, &at) in order.iter().enumerate() {
        greatest = greatest.max((probabilities[at] * (probabilities.len() - place) as f64).min(1.0));
        corrected[at] = greatest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
        super::mann_whitney(a, b, &mut Known::default())
    }

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9 + expected.abs() * 1e-6, "{value} is not {expected}");
    }

    #[test]
    fn quantiles_are_those_of_type_7() {
        let distribution = Distribution::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        near(distribution.median, 2.5);
        near(distribution.p10, 1.3);
        near(distribution.p90, 3.7);
        assert_eq!((distribution.count, distribution.min, distribution.max, distribution.sum), (4, 1.0, 4.0, 10.0));
        assert_eq!(Distribution::of(&[7.0]).unwrap().p90, 7.0);
        assert_eq!(Distribution::of(&[]), None);
    }

    #[test]
    fn small_samples_are_tested_exactly() {
        // All values of one side exceed all of the other: 2 of all 252 ways to choose 5 of 10.
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
        near(mann_whitney(&low, &high).unwrap(), 2.0 / 252.0);
        near(mann_whitney(&high, &low).unwrap(), 2.0 / 252.0);
        // Counted by hand: the 6 choices of 2 of {1, 2, 3, 4} have the sums 3, 4, 5, 5, 6, 7 around
        // 5. Four of them are at least as far from 5 as 4 and 6 are.
        near(mann_whitney(&[1.0, 3.0], &[2.0, 4.0]).unwrap(), 4.0 / 6.0);
        near(mann_whitney(&[1.0], &[2.0]).unwrap(), 1.0);
    }

    #[test]
    fn ties_count_as_half() {
        // Ranks 1, 2.5, 2.5, 4: the sums of two are 3.5, 3.5, 5, 5, 6.5, 6.5 around 5; the choice
        // {1, 2.5} has 3.5.
        near(mann_whitney(&[1.0, 2.0], &[2.0, 3.0]).unwrap(), 4.0 / 6.0);
        near(mann_whitney(&[5.0; 8], &[5.0; 9]).unwrap(), 1.0);
    }

    #[test]
    fn equal_distributions_are_rarely_found_to_differ() {
        // With a fixed seed: of 2000 pairs of samples of one distribution, about 5 % lie below
        // 0.05, and no more.
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64
        };
        let runs = 2000;
        let found = (0..runs).filter(|_| {
            let a: Vec<f64> = (0..8).map(|_| random()).collect();
            let b: Vec<f64> = (0..9).map(|_| random()).collect();
            mann_whitney(&a, &b).unwrap() < 0.05
        });
        let part = found.count() as f64 / f64::from(runs);
        assert!(part > 0.03 && part < 0.065, "{part}");
    }

    #[test]
    fn more_tests_need_stronger_evidence() {
        let corrected = holm(&[0.01, 0.04, 0.03]);
        for (value, expected) in corrected.iter().zip([0.03, 0.06, 0.06]) {
            near(*value, expected);
        }
        assert!(holm(&[]).is_empty());
        near(holm(&[0.7, 0.6])[0], 1.0);
    }
}
