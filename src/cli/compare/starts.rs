//! One run seen by two tools: their clocks are put together by what both saw, and moments are compared.
//!
//! Both saw NCCL launch its kernels: we as a KernelLaunch from its start to its stop, the other tool as the call into CUDA that lies inside
//! of it. So every launch bounds the difference of the two clocks from both sides, and all of them together bound it more tightly. This
//! assumes one difference for the whole recording; where there is none that fits all launches, the report says so.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::statistics::Distribution;
use crate::import::{Profile, Span};

/// Shifts of the order that are tried: the tools begin at different moments, so the first launch of one need not be the other's.
const SHIFTS: i64 = 100_000;
/// Launches that must fit at least, where there are so many.
const ENOUGH: usize = 3;
/// What part of the launches of the side that has fewer must fit: fewer may do so by chance.
const PART: usize = 2;

/// How the clocks of two files relate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Offset {
    /// Nanoseconds to add to the second file's times for those of the first.
    pub(crate) ns: i64,
    /// How far that may be off, ns.
    pub(crate) error_ns: i64,
    /// By how much that is more than what the wall clocks in both files say, ns; `None` where one has none.
    pub(crate) beyond_wall_clocks_ns: Option<i64>,
    /// Launches that bound it.
    pub(crate) launches: u64,
}

/// What the moments of one run say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Starts {
    /// How the clocks relate; `None` where they could not be put together.
    pub(crate) offset: Option<Offset>,
    /// Why not.
    pub(crate) reason: String,
    /// Differences of moments, ns.
    pub(crate) differences: Vec<Difference>,
}

/// One kind of moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    pub(crate) what: &'static str,
    pub(crate) ns: Distribution,
}

/// Puts the clocks together and compares moments.
pub(crate) fn compare(a: &Profile, b: &Profile) -> Starts {
    let none = |reason: &str| Starts { offset: None, reason: reason.into(), differences: Vec::new() };
    if a.launches.is_empty() {
        return none("the first file has no KernelLaunch, which NCCL reports from 2.28 on");
    }
    let calls = launching_calls(b);
    if calls.is_empty() {
        return none("the second file has no call into CUDA that launched one of NCCL's kernels");
    }
    let wall = a.clock.to_utc_ns.zip(b.clock.to_utc_ns).map(|(a, b)| b - a);
    let Some(Aligned { pairs, low, high }) = align(&brackets(a), &calls, wall) else {
        return none(
            "no single difference of the clocks puts the second file's launches into the first one's: records are missing on a side, or \
             a clock drifted or was set",
        );
    };
    let ns = low + (high - low) / 2;
    let offset = Offset {
        ns,
        error_ns: (high - low + 1) / 2,
        beyond_wall_clocks_ns: wall.map(|wall| ns - wall),
        launches: pairs.len() as u64,
    };
    Starts { offset: Some(offset), reason: String::new(), differences: differences(a, b, &pairs, ns) }
}

/// A thread, by the numbers of its process and its own.
type Thread = (i64, i64);

/// Our launches by thread.
fn brackets(a: &Profile) -> BTreeMap<Thread, Vec<Span>> {
    let mut threads: BTreeMap<Thread, Vec<Span>> = BTreeMap::new();
    for launch in &a.launches {
        threads.entry((a.processes[launch.process].pid, launch.tid)).or_default().push(launch.span);
    }
    threads
}

/// A call that launched one of NCCL's kernels, and the kernel by its place.
#[derive(Clone, Copy)]
struct Call {
    span: Span,
    kernel: usize,
}

fn launching_calls(b: &Profile) -> BTreeMap<Thread, Vec<Call>> {
    let kernels = b.kernels.iter().enumerate().filter(|(_, kernel)| kernel.is_nccl() && kernel.graph_node == 0);
    let kernels: HashMap<(usize, u32), usize> = kernels.map(|(at, it)| ((it.process, it.correlation), at)).collect();
    let mut threads: BTreeMap<Thread, Vec<Call>> = BTreeMap::new();
    for call in &b.cuda_calls {
        if let Some(&kernel) = kernels.get(&(call.process, call.correlation)) {
            let thread = (b.processes[call.process].pid, call.tid);
            threads.entry(thread).or_default().push(Call { span: call.span, kernel });
        }
    }
    threads
}

/// Launches that both saw, pair by pair, and the bounds that they set on the difference of the clocks.
struct Aligned {
    pairs: Vec<(Span, Call)>,
    low: i64,
    high: i64,
}

/// Pairs the launches that both saw; `None` where no difference of the clocks fits.
fn align(
    ours: &BTreeMap<Thread, Vec<Span>>,
    theirs: &BTreeMap<Thread, Vec<Call>>,
    wall: Option<i64>,
) -> Option<Aligned> {
    // The thread with the most launches decides on the shift; the others must agree.
    let common = theirs.iter().filter_map(|(thread, calls)| Some((calls, ours.get(thread)?)));
    let mut common: Vec<_> = common.collect();
    common.sort_by_key(|(calls, brackets)| usize::MAX - calls.len().min(brackets.len()));
    let (calls, brackets) = common.first()?;
    let mut best: Option<Aligned> = None;
    for shift in -(calls.len() as i64).min(SHIFTS)..(brackets.len() as i64).min(SHIFTS) {
        let Some(found) = fit(calls, brackets, shift) else { continue };
        // As many pairs as possible, then as near to the wall clocks as possible.
        let rank = |it: &Aligned| (it.pairs.len(), u64::MAX - wall.map_or(0, |wall| it.low.abs_diff(wall)));
        if best.as_ref().is_none_or(|best| rank(&found) > rank(best)) {
            best = Some(found);
        }
    }
    let fewer = calls.len().min(brackets.len());
    let enough = fewer.div_ceil(PART).max(ENOUGH.min(fewer));
    let Aligned { mut pairs, mut low, mut high } = best.filter(|best| best.pairs.len() >= enough)?;
    for (calls, brackets) in &common[1..] {
        // Those of the other threads by the difference that is known now.
        for call in *calls {
            let near = brackets.partition_point(|bracket| bracket.start <= call.span.start + high);
            let Some(bracket) = near.checked_sub(1).map(|at| brackets[at]) else { continue };
            let (more_low, more_high) = bounds(bracket, call.span);
            if more_low.max(low) <= more_high.min(high) {
                (low, high) = (more_low.max(low), more_high.min(high));
                pairs.push((bracket, *call));
            }
        }
    }
    Some(Aligned { pairs, low, high })
}

/// Differences of the clocks that put a call into a bracket.
fn bounds(bracket: Span, call: Span) -> (i64, i64) {
    (bracket.start - call.start, bracket.end - call.end)
}

/// Every launch that both have, if the order is shifted by so much; `None` where no difference of the clocks fits all of them.
fn fit(calls: &[Call], brackets: &[Span], shift: i64) -> Option<Aligned> {
    let first_bracket = shift.max(0) as usize;
    let first_call = (-shift).max(0) as usize;
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    let mut pairs = Vec::new();
    for (call, bracket) in calls.get(first_call..)?.iter().zip(brackets.get(first_bracket..)?) {
        let (more_low, more_high) = bounds(*bracket, call.span);
        (low, high) = (low.max(more_low), high.min(more_high));
        if low > high {
            return None;
        }
        pairs.push((*bracket, *call));
    }
    (!pairs.is_empty()).then_some(Aligned { pairs, low, high })
}

fn differences(a: &Profile, b: &Profile, pairs: &[(Span, Call)], offset: i64) -> Vec<Difference> {
    let of = |what, values: Vec<f64>| Distribution::of(&values).map(|ns| Difference { what, ns });
    let launch: Vec<f64> =
        pairs.iter().map(|(bracket, call)| (call.span.start + offset - bracket.start) as f64).collect();
    let rest: Vec<f64> = pairs.iter().map(|(bracket, call)| (bracket.end - call.span.end - offset) as f64).collect();
    let kernel: Vec<f64> = pairs
        .iter()
        .map(|(bracket, call)| (b.kernels[call.kernel].span.start + offset - bracket.start) as f64)
        .collect();
    // Where CUPTI changed hands, both may have kernels; those of one launch are one kernel.
    let ours: HashMap<(i64, u32), Span> = a
        .kernels
        .iter()
        .filter(|it| it.is_nccl())
        .map(|it| ((a.processes[it.process].pid, it.correlation), it.span))
        .collect();
    let both: Vec<f64> = (pairs.iter())
        .filter_map(|(_, call)| {
            let kernel = &b.kernels[call.kernel];
            let own = ours.get(&(b.processes[kernel.process].pid, kernel.correlation))?;
            Some((kernel.span.start + offset - own.start) as f64)
        })
        .collect();
    [
        of("their launching call begins after our KernelLaunch starts", launch),
        of("our KernelLaunch stops after their launching call ends", rest),
        of("their kernel starts after our KernelLaunch starts", kernel),
        of("their kernel starts after ours, where both recorded it", both),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSET: i64 = 7_000_000;

    /// Brackets at irregular distances, and calls inside of them on another clock.
    fn launches(count: i64) -> (Vec<Span>, Vec<Call>) {
        let mut brackets = Vec::new();
        let mut calls = Vec::new();
        for number in 0..count {
            let start = number * 1_000_000 + number * number * 137;
            brackets.push(Span { start, end: start + 9_000 });
            let begin = start + 3_000 + number % 5 * 400 - OFFSET;
            calls.push(Call { span: Span { start: begin, end: begin + 2_000 }, kernel: 0 });
        }
        (brackets, calls)
    }

    fn of(brackets: &[Span], calls: &[Call]) -> Option<(usize, i64, i64)> {
        let (ours, theirs) = ([((1, 2), brackets.to_vec())].into(), [((1, 2), calls.to_vec())].into());
        align(&ours, &theirs, Some(OFFSET + 90_000)).map(|it| (it.pairs.len(), it.low, it.high))
    }

    #[test]
    fn launches_bound_the_difference_of_the_clocks() {
        let (brackets, calls) = launches(20);
        // The earliest call is 3 µs behind the start of its bracket, the latest ends 2.4 µs before its stop.
        assert_eq!(of(&brackets, &calls), Some((20, OFFSET - 3_000, OFFSET + 2_400)));
        // Whichever tool began later or ended earlier.
        for (skip_brackets, skip_calls) in [(4, 0), (0, 6), (0, 0)] {
            let (pairs, low, high) = of(&brackets[skip_brackets..], &calls[skip_calls..]).unwrap();
            assert!(low <= OFFSET && OFFSET <= high, "{low} to {high}");
            assert_eq!(pairs, 20 - skip_brackets.max(skip_calls));
        }
    }

    #[test]
    fn what_fits_no_difference_is_not_put_together() {
        let (brackets, mut calls) = launches(20);
        // A clock that was set by a millisecond in the middle.
        for call in &mut calls[10..] {
            call.span = Span { start: call.span.start + 1_400_000, end: call.span.end + 1_400_000 };
        }
        assert_eq!(of(&brackets, &calls), None);
        assert_eq!(of(&brackets, &[]), None);
    }
}
