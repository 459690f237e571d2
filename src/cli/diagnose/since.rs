//! Since when steps have taken longer (pure).

use std::ops::Range;

/// How many steps show how long they take, at least.
const ENOUGH: usize = 12;
/// How many times as long they take, in the middle, if that is another pace and not noise.
const LONGER: f64 = 1.1;
/// So many steps in a row show at which pace they are.
const ROW: usize = 6;

/// Since when steps have taken longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since {
    /// The first of all steps.
    pub(super) first: usize,
    /// The first of the longer steps.
    pub(super) step: usize,
    /// How long steps took before, in the middle, ns.
    pub(super) before: i64,
}

/// Since when steps of these lengths, in ns, have taken longer, up to the last one. That is a
/// change of pace only if three quarters of them are longer than three quarters of those before.
pub(super) fn since(lengths: &[i64]) -> Option<Since> {
    let count = lengths.len();
    let halves = (1..).map(|half| count >> half).take_while(|newest| *newest >= ENOUGH);
    let mut slow = halves.filter_map(|newest| {
        let (before, now) = (quarters(&lengths[..count - newest]), quarters(&lengths[count - newest..]));
        let is_slower = now[0] > before[2] && now[1] as f64 >= LONGER * before[1] as f64;
        is_slower.then(|| (before[1] + now[1]) / 2)
    });
    let middle = slow.next()?;
    let is_fast = |row: &Range<usize>| quarters(&lengths[row.clone()])[1] <= middle;
    let mut rows = (0..count / ROW).map(|row| count - (row + 1) * ROW..count - row * ROW);
    let fast = rows.find(is_fast)?;
    // Of the row after it, less than half is fast.
    let both = fast.start..count.min(fast.end + ROW);
    let step = fast.start + lengths[both].iter().rposition(|length| *length <= middle)? + 1;
    let before = quarters(&lengths[..step])[1];
    (count - step >= ENOUGH).then_some(Since { first: 0, step, before })
}

/// A quarter of the lengths is at most the first of these; half of them, the second; and three
/// quarters, the third.
fn quarters(lengths: &[i64]) -> [i64; 3] {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    [1, 2, 3].map(|quarter| lengths[lengths.len() * quarter / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of these lengths, so many of each, that differ by some percent.
    fn steps(of: &[(usize, i64)], noise: u64) -> Vec<i64> {
        let lengths = of.iter().flat_map(|(count, length)| std::iter::repeat_n(*length, *count));
        let noisy = |(at, length): (usize, i64)| {
            let random = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            length + length * (random % (2 * noise + 1)) as i64 / 100
        };
        lengths.enumerate().map(noisy).collect()
    }

    #[test]
    fn a_change_of_pace_is_found_where_it_is() {
        for (before, slow) in [(1_000, 1_000), (5_000, 100), (700, 300), (60, 40), (20, 20), (14, 12)] {
            let found = since(&steps(&[(before, 1_000), (slow, 1_300)], 5)).unwrap();
            assert!(found.step.abs_diff(before) <= 1, "{found:?} for {before}");
            assert!((1_000..1_100).contains(&found.before), "{found:?}");
        }
        // Of two changes, the last one.
        let found = since(&steps(&[(400, 1_000), (400, 1_300), (400, 1_800)], 5)).unwrap();
        assert!(found.step.abs_diff(800) <= 1 && (1_000..1_400).contains(&found.before), "{found:?}");
    }

    #[test]
    fn noise_single_long_steps_and_pauses_are_no_change_of_pace() {
        assert_eq!(since(&steps(&[(100, 1_000), (900, 1_300)], 5)), None, "most are slow and show why anyway");
        for count in (20..200).chain([2_000]) {
            assert_eq!(since(&steps(&[(count, 1_000)], 40)), None, "{count}");
        }
        assert_eq!(since(&steps(&[(1_000, 1_000), (1_000, 1_060)], 5)), None, "too little");
        assert_eq!(since(&steps(&[(1_000, 1_300), (1_000, 1_000)], 5)), None, "it became faster");
        assert_eq!(since(&steps(&[(900, 1_000), (40, 3_000), (500, 1_000)], 5)), None, "it is over");
        assert_eq!(since(&steps(&[(1_990, 1_000), (10, 3_000)], 5)), None, "too few to say so");
        assert_eq!(since(&steps(&[(20, 1_000), (10, 2_000)], 0)), None);
        assert_eq!(since(&[]), None);
        // Every tenth step saves a checkpoint.
        let lengths: Vec<i64> = (0..2_000).map(|step| if step % 10 == 0 { 9_000 } else { 1_000 }).collect();
        assert_eq!(since(&lengths), None);
    }
}
