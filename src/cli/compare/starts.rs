//! One run seen by two tools: their clocks are aligned by what both saw, and moments are compared.
//!
//! Both saw NCCL launch its kernels: our trace as a KernelLaunch from its start to its stop, the
//! other tool as the call into CUDA that lies inside of it. So every launch bounds the difference
//! of the two clocks from both sides, and all of them together bound it more tightly. This assumes
//! one constant difference for the whole recording. If none fits more than half of the launches,
//! the report says so.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::statistics::Distribution;
use crate::import::{Profile, Span};
use crate::model::time::Shift;

/// About how many pairs of a call and a bracket vote on the difference of the clocks.
const VOTES: usize = 4_000_000;

/// How the clocks of two files relate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Offset {
    /// Nanoseconds to add to the second file's times to get the first file's.
    pub(crate) ns: i64,
    /// How far that may be off, ns.
    pub(crate) error_ns: u64,
    /// How much larger that is than the difference of the wall clocks in both files, ns; `None` if
    /// one has none.
    pub(crate) beyond_wall_clocks_ns: Option<i64>,
    /// Launches that bound the difference.
    pub(crate) launches: u64,
    /// Launches of NCCL's kernels in the second file.
    pub(crate) launches_of_b: u64,
}

/// What the moments of one run say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Starts {
    /// How the clocks relate; `None` if they could not be aligned.
    pub(crate) offset: Option<Offset>,
    /// Why they could not be aligned.
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

/// Aligns the clocks and compares moments.
pub(crate) fn compare(a: &Profile, b: &Profile) -> Starts {
    let none = |reason: &str| Starts { offset: None, reason: reason.into(), differences: Vec::new() };
    if a.launches.is_empty() {
        return none("the first file has no KernelLaunch, which NCCL reports from 2.28 on");
    }
    let calls = launching_calls(b);
    if calls.is_empty() {
        return none("the second file has no call into CUDA that launched one of NCCL's kernels");
    }
    let wall = b.clock.to(&a.clock);
    let Some(aligned) = align(&brackets(a), &calls, wall) else {
        return none(
            "no single difference of the clocks puts more than half of the second file's launches into the first one's: records are \
             missing on a side, or a clock drifted or was set",
        );
    };
    let shift = aligned.shift();
    let offset = Offset {
        ns: shift.ns,
        error_ns: shift.error_ns,
        beyond_wall_clocks_ns: wall.map(|wall| shift.ns - wall.ns),
        launches: aligned.pairs.len() as u64,
        launches_of_b: calls.values().map(|calls| calls.len() as u64).sum(),
    };
    let pairs = &aligned.pairs;
    Starts { offset: Some(offset), reason: String::new(), differences: differences(a, b, pairs, shift) }
}

/// A thread, as the ids of its process and of itself.
pub(crate) type Thread = (i64, i64);

/// Our launches by thread.
pub(crate) fn brackets(a: &Profile) -> BTreeMap<Thread, Vec<Span>> {
    let mut threads: BTreeMap<Thread, Vec<Span>> = BTreeMap::new();
    for launch in &a.launches {
        threads.entry((a.processes[launch.process].pid, launch.tid)).or_default().push(launch.span);
    }
    threads
}

/// A call that launched one of NCCL's kernels, and the index of the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) span: Span,
    pub(crate) kernel: usize,
}

pub(crate) fn launching_calls(b: &Profile) -> BTreeMap<Thread, Vec<Call>> {
    let kernels = b.kernels.iter().enumerate().filter(|(_, kernel)| kernel.is_nccl() && kernel.graph_node == 0);
    let kernels: HashMap<(usize, u32), usize> = kernels.map(|(at, it)| ((it.process, it.correlation), at)).collect();
    let mut threads: BTreeMap<Thread, Vec<Call>> = BTreeMap::new();
    // A graph launch is not NCCL's. Kernels that do not say their node would seem to be launched by
    // it.
    for call in b.cuda_calls.iter().filter(|call| !call.name.contains("GraphLaunch")) {
        if let Some(&kernel) = kernels.get(&(call.process, call.correlation)) {
            let thread = (b.processes[call.process].pid, call.tid);
            threads.entry(thread).or_default().push(Call { span: call.span, kernel });
        }
    }
    threads
}

/// Launches that both saw, as pairs, and the bounds they set on the difference of the clocks.
pub(crate) struct Aligned {
    pub(crate) pairs: Vec<(Span, Call)>,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

impl Aligned {
    /// From the second file's clock to the first file's.
    pub(crate) fn shift(&self) -> Shift {
        Shift::between(self.low, self.high)
    }
}

/// Finds the difference of the clocks that puts the most calls into brackets; `None` if it is no
/// more than half of them.
///
/// Each call could lie in each bracket of its thread, and each such pair bounds the difference. The
/// difference that the most calls agree on is taken; of several, the one nearest to the wall
/// clocks. So neither side has to see every launch or stay in step with the other.
pub(crate) fn align(
    ours: &BTreeMap<Thread, Vec<Span>>,
    theirs: &BTreeMap<Thread, Vec<Call>>,
    wall: Option<Shift>,
) -> Option<Aligned> {
    let common: Vec<(&Vec<Call>, &Vec<Span>)> =
        theirs.iter().filter_map(|(thread, calls)| Some((calls, ours.get(thread)?))).collect();
    let calls: usize = common.iter().map(|(calls, _)| calls.len()).sum();
    let brackets: usize = common.iter().map(|(_, brackets)| brackets.len()).sum();
    // The calls that vote; all are checked afterwards.
    let step = (calls * brackets.max(1)).div_ceil(VOTES).max(1);
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for (calls, brackets) in &common {
        for call in calls.iter().step_by(step) {
            for (low, high) in brackets.iter().map(|bracket| bounds(*bracket, call.span)) {
                if low <= high && wall.is_none_or(|wall| wall.meets(low, high)) {
                    edges.extend([(low, 1), (high.saturating_add(1), -1)]);
                }
            }
        }
    }
    edges.sort_unstable();
    let far = |at: i64| wall.map_or(0, |wall| at.abs_diff(wall.ns));
    let (mut depth, mut best): (i64, Option<(i64, i64)>) = (0, None);
    for (at, (from, change)) in edges.iter().enumerate() {
        depth += change;
        if best.is_none_or(|(most, place)| depth > most || depth == most && far(*from) < far(place))
            && edges.get(at + 1).is_none_or(|next| next.0 > *from)
        {
            best = Some((depth, *from));
        }
    }
    let (_, place) = best.filter(|(depth, _)| *depth > 0)?;
    // Every call that lies in a bracket at that difference narrows it down.
    let mut aligned = Aligned { pairs: Vec::new(), low: i64::MIN, high: i64::MAX };
    for (calls, brackets) in common {
        for call in calls {
            let next = brackets.partition_point(|bracket| bracket.start <= call.span.start.saturating_add(place));
            let Some(bracket) = next.checked_sub(1).map(|at| brackets[at]) else { continue };
            let (low, high) = bounds(bracket, call.span);
            if low <= place && place <= high {
                aligned.low = aligned.low.max(low);
                aligned.high = aligned.high.min(high);
                aligned.pairs.push((bracket, *call));
            }
        }
    }
    (aligned.pairs.len() * 2 > calls.min(brackets)).then_some(aligned)
}

/// The range of clock differences that put a call into a bracket.
fn bounds(bracket: Span, call: Span) -> (i64, i64) {
    (bracket.start.since(call.start), bracket.end.since(call.end))
}

fn differences(a: &Profile, b: &Profile, pairs: &[(Span, Call)], offset: Shift) -> Vec<Difference> {
    let starts = |theirs: Span, ours: Span| theirs.shifted(offset).start.since(ours.start) as f64;
    let of = |what, values: Vec<f64>| Distribution::of(&values).map(|ns| Difference { what, ns });
    let ends = |(ours, call): &(Span, Call)| ours.end.since(call.span.shifted(offset).end) as f64;
    let launch: Vec<f64> = pairs.iter().map(|(bracket, call)| starts(call.span, *bracket)).collect();
    let rest: Vec<f64> = pairs.iter().map(ends).collect();
    let kernel: Vec<f64> = pairs.iter().map(|(bracket, call)| starts(b.kernels[call.kernel].span, *bracket)).collect();
    // Where CUPTI changed hands, both may have kernels. Those of one launch are the same kernel.
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
            Some(starts(kernel.span, *own))
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
            brackets.push(Span::of(start, start + 9_000));
            let begin = start + 3_000 + number % 5 * 400 - OFFSET;
            calls.push(Call { span: Span::of(begin, begin + 2_000), kernel: 0 });
        }
        (brackets, calls)
    }

    fn of(brackets: &[Span], calls: &[Call]) -> Option<(usize, i64, i64)> {
        let (ours, theirs) = ([((1, 2), brackets.to_vec())].into(), [((1, 2), calls.to_vec())].into());
        align(&ours, &theirs, Some(Shift { ns: OFFSET + 90_000, error_ns: 2_000_000_000 }))
            .map(|it| (it.pairs.len(), it.low, it.high))
    }

    #[test]
    fn launches_bound_the_difference_of_the_clocks() {
        let (brackets, calls) = launches(20);
        // The earliest call starts 3 µs after its bracket does; the latest ends 2.4 µs before its
        // bracket.
        assert_eq!(of(&brackets, &calls), Some((20, OFFSET - 3_000, OFFSET + 2_400)));
        // Whichever tool began later or ended earlier.
        for (skip_brackets, skip_calls) in [(4, 0), (0, 6), (0, 0)] {
            let (pairs, low, high) = of(&brackets[skip_brackets..], &calls[skip_calls..]).unwrap();
            assert!(low <= OFFSET && OFFSET <= high, "{low} to {high}");
            assert_eq!(pairs, 20 - skip_brackets.max(skip_calls));
        }
    }

    #[test]
    fn clocks_that_no_difference_fits_are_not_aligned() {
        let (brackets, mut calls) = launches(20);
        // The clock is set by a millisecond in the middle.
        for call in &mut calls[10..] {
            call.span = call.span.shifted(Shift { ns: 1_400_000, error_ns: 0 });
        }
        assert_eq!(of(&brackets, &calls), None);
        assert_eq!(of(&brackets, &[]), None);
    }
}
