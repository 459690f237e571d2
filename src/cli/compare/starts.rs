//! One run seen by two tools: their clocks are put together by what both saw, and moments are compared.
//!
//! Both saw NCCL launch its kernels: we as a KernelLaunch from its start to its stop, the other tool as the call into CUDA that lies inside
//! of it. So every launch bounds the difference of the two clocks from both sides, and all of them together bound it more tightly. This
//! assumes one difference for the whole recording; where none fits more than half of the launches, the report says so.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::statistics::Distribution;
use crate::import::{Profile, Span};
use crate::model::time::Shift;

/// Pairs of a call and a bracket that vote on the difference of the clocks, about.
const VOTES: usize = 4_000_000;

/// How the clocks of two files relate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Offset {
    /// Nanoseconds to add to the second file's times for those of the first.
    pub(crate) ns: i64,
    /// How far that may be off, ns.
    pub(crate) error_ns: u64,
    /// By how much that is more than what the wall clocks in both files say, ns; `None` where one has none.
    pub(crate) beyond_wall_clocks_ns: Option<i64>,
    /// Launches that bound it.
    pub(crate) launches: u64,
    /// Launches of NCCL's kernels in the second file.
    pub(crate) launches_of_b: u64,
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

/// A thread, by the numbers of its process and its own.
pub(crate) type Thread = (i64, i64);

/// Our launches by thread.
pub(crate) fn brackets(a: &Profile) -> BTreeMap<Thread, Vec<Span>> {
    let mut threads: BTreeMap<Thread, Vec<Span>> = BTreeMap::new();
    for launch in &a.launches {
        threads.entry((a.processes[launch.process].pid, launch.tid)).or_default().push(launch.span);
    }
    threads
}

/// A call that launched one of NCCL's kernels, and the kernel by its place.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) span: Span,
    pub(crate) kernel: usize,
}

pub(crate) fn launching_calls(b: &Profile) -> BTreeMap<Thread, Vec<Call>> {
    let kernels = b.kernels.iter().enumerate().filter(|(_, kernel)| kernel.is_nccl() && kernel.graph_node == 0);
    let kernels: HashMap<(usize, u32), usize> = kernels.map(|(at, it)| ((it.process, it.correlation), at)).collect();
    let mut threads: BTreeMap<Thread, Vec<Call>> = BTreeMap::new();
    // The launch of a graph is none of NCCL's. Where kernels do not say their node, they would pass for launched by it.
    for call in b.cuda_calls.iter().filter(|call| !call.name.contains("GraphLaunch")) {
        if let Some(&kernel) = kernels.get(&(call.process, call.correlation)) {
            let thread = (b.processes[call.process].pid, call.tid);
            threads.entry(thread).or_default().push(Call { span: call.span, kernel });
        }
    }
    threads
}

/// Launches that both saw, pair by pair, and the bounds that they set on the difference of the clocks.
pub(crate) struct Aligned {
    pub(crate) pairs: Vec<(Span, Call)>,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

impl Aligned {
    /// From the second file's clock to the first one's.
    pub(crate) fn shift(&self) -> Shift {
        Shift::between(self.low, self.high)
    }
}

/// Finds the difference of the clocks that puts the most calls into brackets; `None` where it puts no more than half there.
///
/// Each call could lie in each bracket of its thread, which would bound the difference; the one that the most calls agree on is taken, the
/// nearest to the wall clocks of several. So neither has to see every launch, nor in step with the other.
pub(crate) fn align(
    ours: &BTreeMap<Thread, Vec<Span>>,
    theirs: &BTreeMap<Thread, Vec<Call>>,
    wall: Option<Shift>,
) -> Option<Aligned> {
    let common: Vec<(&Vec<Call>, &Vec<Span>)> =
        theirs.iter().filter_map(|(thread, calls)| Some((calls, ours.get(thread)?))).collect();
    let calls: usize = common.iter().map(|(calls, _)| calls.len()).sum();
    let brackets: usize = common.iter().map(|(_, brackets)| brackets.len()).sum();
    // The calls that vote; all are asked afterwards.
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
    // Everything that lies in a bracket there narrows it down.
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

/// Differences of the clocks that put a call into a bracket.
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
            call.span = call.span.shifted(Shift { ns: 1_400_000, error_ns: 0 });
        }
        assert_eq!(of(&brackets, &calls), None);
        assert_eq!(of(&brackets, &[]), None);
    }
}
