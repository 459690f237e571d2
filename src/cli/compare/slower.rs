//! Two runs of ours: what got slower, by communicator and arguments, with significance.
//!
//! A collective's kernel waits for the last rank inside, so where a trace holds several ranks, each operation counts once, by its shortest
//! rank, which is nearest to the transfer alone, and by its longest, which has the waiting. Successive operations are taken for independent. Transfers of one operation are not: of these
//! the report has the distributions, and no verdict.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::statistics::{Distribution, holm, mann_whitney};
use crate::import::{Operation, Profile, Span};
use crate::trace::names;

/// Of every kind the first tenth is warm-up, at least so many and at most so many.
const WARM_UP: (usize, usize) = (1, 20);
/// Values of a side below which nothing is concluded.
pub(crate) const ENOUGH: usize = 8;
/// Corrected probability below which a difference is taken for one.
pub(crate) const LEVEL: f64 = 0.01;
/// Change of the median from which a difference counts.
pub(crate) const EFFECT: f64 = 0.05;

/// What a duration is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Metric {
    /// The kernel on the only rank of the trace.
    Kernel,
    /// The kernel on the rank where it was shortest.
    KernelShortestRank,
    /// The kernel on the rank where it was longest.
    KernelLongestRank,
    /// The call into NCCL, on the host.
    Call,
    /// One network transfer.
    Transfer,
    /// What network transfers waited for.
    Wait,
}

impl Metric {
    /// Whether its durations can be taken for independent. Transfers of one operation follow from each other.
    fn is_independent(self) -> bool {
        !matches!(self, Metric::Transfer | Metric::Wait)
    }

    /// As reports say it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Metric::Kernel => "kernel",
            Metric::KernelShortestRank => "kernel, shortest rank",
            Metric::KernelLongestRank => "kernel, longest rank",
            Metric::Call => "call on the host",
            Metric::Transfer => "network transfer",
            Metric::Wait => "wait of a transfer",
        }
    }
}

/// What is compared with itself in the other run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct Kind {
    pub(crate) metric: Metric,
    /// The communicator's name and ranks.
    pub(crate) communicator: String,
    /// Function, size, datatype, algorithm, protocol, channels.
    pub(crate) arguments: String,
}

/// What became of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The second run's durations are greater.
    Slower,
    /// They are less.
    Faster,
    /// They differ, and by less than counts.
    Little,
    /// Chance explains the difference.
    NoneShown,
    /// There are too few of them to tell.
    TooFew,
    /// They depend on each other, which the test does not allow for.
    NotTested,
}

impl Verdict {
    /// As reports say it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Little => "differs by less than 5 %",
            Verdict::NoneShown => "no difference shown",
            Verdict::TooFew => "too few to tell",
            Verdict::NotTested => "not tested",
        }
    }
}

/// One kind in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) kind: Kind,
    /// Durations of the first run without warm-up, ns.
    pub(crate) a: Option<Distribution>,
    /// Those of the second.
    pub(crate) b: Option<Distribution>,
    /// The second median by the first.
    pub(crate) ratio: Option<f64>,
    /// Of Mann and Whitney's test, corrected after Holm for all tests of the report.
    pub(crate) probability: Option<f64>,
    pub(crate) verdict: Verdict,
}

/// Compares all kinds; those that got slower first.
pub(crate) fn compare(a: &Profile, b: &Profile) -> Vec<Row> {
    let (samples_a, samples_b) = (samples(a), samples(b));
    // A kind that only one side has is named under the differences.
    let kinds: Vec<&Kind> = samples_a.keys().filter(|kind| samples_b.contains_key(kind)).collect();
    let values: Vec<(Vec<f64>, Vec<f64>)> =
        kinds.iter().map(|kind| (steady(&samples_a[kind]), steady(&samples_b[kind]))).collect();
    let enough = |(a, b): &(Vec<f64>, Vec<f64>)| a.len() >= ENOUGH && b.len() >= ENOUGH;
    let tested: Vec<usize> =
        (0..kinds.len()).filter(|at| kinds[*at].metric.is_independent() && enough(&values[*at])).collect();
    let raw: Vec<f64> = tested.iter().map(|at| mann_whitney(&values[*at].0, &values[*at].1).unwrap_or(1.0)).collect();
    let corrected: HashMap<usize, f64> = tested.iter().copied().zip(holm(&raw)).collect();
    let mut rows: Vec<Row> = (kinds.into_iter().zip(&values).enumerate())
        .map(|(at, (kind, (a, b)))| {
            let (a, b) = (Distribution::of(a), Distribution::of(b));
            let ratio = a.zip(b).filter(|(a, _)| a.median > 0.0).map(|(a, b)| b.median / a.median);
            let probability = corrected.get(&at).copied();
            let verdict = if kind.metric.is_independent() { verdict(probability, ratio) } else { Verdict::NotTested };
            Row { kind: kind.clone(), a, b, ratio, probability, verdict }
        })
        .collect();
    let change = |row: &Row| row.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    rows.sort_by(|one, other| one.verdict.cmp(&other.verdict).then(change(other).total_cmp(&change(one))));
    rows
}

fn verdict(probability: Option<f64>, ratio: Option<f64>) -> Verdict {
    match (probability, ratio) {
        (None, _) => Verdict::TooFew,
        (Some(probability), Some(ratio)) if probability < LEVEL => match ratio {
            ratio if ratio >= 1.0 + EFFECT => Verdict::Slower,
            ratio if ratio <= 1.0 / (1.0 + EFFECT) => Verdict::Faster,
            _ => Verdict::Little,
        },
        _ => Verdict::NoneShown,
    }
}

/// Durations without the warm-up, from those in the order of their start.
fn steady(samples: &[(i64, f64)]) -> Vec<f64> {
    let warm_up = samples.len().div_ceil(10).clamp(WARM_UP.0, WARM_UP.1);
    samples.iter().skip(warm_up).map(|(_, duration)| *duration).collect()
}

/// Kinds that only one of two runs has, in words.
pub(crate) fn only_in(one: &Profile, other: &Profile) -> Vec<String> {
    let (ours, theirs) = (samples(one), samples(other));
    let missing =
        ours.keys().filter(|kind| matches!(kind.metric, Metric::Kernel | Metric::KernelShortestRank | Metric::Call));
    let missing = missing.filter(|kind| !theirs.contains_key(kind));
    let mut words: Vec<String> = missing.map(|kind| format!("{} on {}", kind.arguments, kind.communicator)).collect();
    words.sort();
    words.dedup();
    words
}

/// All durations, in the order of their start, by what they are of.
fn samples(profile: &Profile) -> BTreeMap<Kind, Vec<(i64, f64)>> {
    let mut all: BTreeMap<Kind, Vec<(i64, f64)>> = BTreeMap::new();
    let mut add = |metric, communicator: String, arguments: String, start: i64, duration: u64| {
        let kind = Kind { metric, communicator, arguments };
        all.entry(kind).or_default().push((start, duration as f64));
    };
    let ranks = profile.processes.len();
    let mut on_ranks: HashMap<(String, String, u64), Vec<Span>> = HashMap::new();
    for kernel in profile.nccl_kernels() {
        let operations: Vec<&Operation> = kernel.carried.operations.iter().map(|at| &profile.operations[*at]).collect();
        let Some(first) = operations.first() else { continue };
        let Some(arguments) = arguments(&operations, kernel.carried.count) else { continue };
        let communicator = communicator(profile, first);
        match first.correlation.filter(|_| ranks > 1 && !first.is_point_to_point()) {
            // The same operation on another rank has the same number. A replay of a graph has the number of its capture: in its turn.
            Some(number) => on_ranks.entry((communicator, arguments, number)).or_default().push(kernel.span),
            None => add(Metric::Kernel, communicator, arguments, kernel.span.start, kernel.span.duration()),
        }
    }
    for ((communicator, arguments, _), spans) in on_ranks {
        let start = spans.iter().map(|span| span.start).min().unwrap_or(0);
        let durations = || spans.iter().map(|span| span.duration());
        let (shortest, longest) = (durations().min().unwrap_or(0), durations().max().unwrap_or(0));
        add(Metric::KernelShortestRank, communicator.clone(), arguments.clone(), start, shortest);
        add(Metric::KernelLongestRank, communicator, arguments, start, longest);
    }
    for call in &profile.nccl_calls {
        if let Some(arguments) = arguments(&[&call.operation], 1) {
            add(Metric::Call, communicator(profile, &call.operation), arguments, call.span.start, call.span.duration());
        }
    }
    for transfer in &profile.transfers {
        let size = transfer
            .bytes
            .map_or_else(|| "transfers".to_owned(), |bytes| format!("transfers of {}", names::size(bytes)));
        add(Metric::Transfer, "all".into(), size, transfer.span.start, transfer.span.duration());
        for (what, ns) in &transfer.waits {
            add(Metric::Wait, "all".into(), what.clone(), transfer.span.start, *ns);
        }
    }
    for samples in all.values_mut() {
        samples.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    }
    all
}

/// A communicator as it is in every run: its hash is another in each.
pub(crate) fn communicator(profile: &Profile, operation: &Operation) -> String {
    let Some(communicator) = operation.communicator.map(|at| &profile.communicators[at]) else {
        return "unknown".into();
    };
    let name = communicator.name.as_deref().unwrap_or("unnamed");
    match communicator.ranks {
        Some(ranks) => format!("{name} ({ranks} ranks)"),
        None => name.to_owned(),
    }
}

/// What operations are, as they are in every run.
fn arguments(operations: &[&Operation], count: u32) -> Option<String> {
    let one = |operation: &Operation| {
        let mut words = vec![operation.function.clone()];
        words.extend(operation.bytes.map(names::size));
        words.extend(operation.datatype.as_ref().map(|name| name.trim_start_matches("nccl").to_ascii_lowercase()));
        words.extend([&operation.algorithm, &operation.protocol].into_iter().flatten().cloned());
        words.extend(operation.channels.map(|channels| format!("{channels} ch")));
        words.join(" ")
    };
    match operations {
        [] => None,
        [operation] if count <= 1 => Some(one(operation)),
        several => {
            let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
            several.iter().for_each(|operation| *kinds.entry(one(operation)).or_default() += 1);
            let mut parts: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            let untold = u64::from(count).saturating_sub(several.len() as u64);
            if untold > 0 {
                parts.push(format!("{untold} more"));
            }
            Some(parts.join(" + "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Carried, Communicator, How, Kernel, Place, Process};

    /// A run of one rank for each list of durations, which are of one AllReduce after the other.
    fn run(ranks: &[Vec<i64>]) -> Profile {
        let mut profile = Profile {
            communicators: vec![Communicator { name: Some("dp".into()), ranks: Some(2), ..Communicator::default() }],
            ..Profile::default()
        };
        for (process, durations) in ranks.iter().enumerate() {
            profile.processes.push(Process {
                pid: 1,
                name: String::new(),
                rank: None,
                threads: BTreeMap::new(),
                lost: 0,
            });
            for (number, duration) in durations.iter().enumerate() {
                let start = number as i64 * 1_000_000;
                profile.kernels.push(Kernel {
                    process,
                    span: Span { start, end: start + duration },
                    place: Place::default(),
                    correlation: 0,
                    name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL".into(),
                    grid: [1; 3],
                    block: [1; 3],
                    graph_node: 0,
                    carried: Carried { count: 1, operations: vec![profile.operations.len()], how: How::Exact },
                });
                profile.operations.push(Operation {
                    function: "AllReduce".into(),
                    communicator: Some(0),
                    bytes: Some(1 << 20),
                    correlation: Some(number as u64),
                    ..Operation::default()
                });
            }
        }
        profile
    }

    fn durations(count: i64, around: i64) -> Vec<i64> {
        (0..count).map(|number| around + number * 7919 % 100).collect()
    }

    fn verdicts(a: &[Vec<i64>], b: &[Vec<i64>]) -> Vec<(Metric, Verdict)> {
        compare(&run(a), &run(b)).iter().map(|row| (row.kind.metric, row.verdict)).collect()
    }

    #[test]
    fn what_got_slower_is_found() {
        let verdict = |a, b| verdicts(&[durations(40, a)], &[durations(40, b)]);
        assert_eq!(verdict(10_000, 12_000), [(Metric::Kernel, Verdict::Slower)]);
        assert_eq!(verdict(12_000, 10_000), [(Metric::Kernel, Verdict::Faster)]);
        assert_eq!(verdict(10_000, 10_000), [(Metric::Kernel, Verdict::NoneShown)]);
        assert_eq!(verdict(10_000, 10_110), [(Metric::Kernel, Verdict::Little)]);
    }

    #[test]
    fn few_are_too_few() {
        // Eight and one of warm-up are enough, and one less is not.
        for (count, verdict) in [(9, Verdict::Slower), (8, Verdict::TooFew), (1, Verdict::TooFew)] {
            assert_eq!(
                verdicts(&[durations(count, 10_000)], &[durations(count, 20_000)]),
                [(Metric::Kernel, verdict)],
                "{count}"
            );
        }
    }

    #[test]
    fn warm_up_is_left_out() {
        let mut cold = durations(40, 10_000);
        cold[..4].fill(90_000_000);
        let rows = compare(&run(&[cold]), &run(&[durations(40, 10_000)]));
        assert_eq!(rows[0].a.unwrap().count, 36);
        assert!(rows[0].a.unwrap().max < 11_000.0);
        assert_eq!(rows[0].verdict, Verdict::NoneShown);
    }

    #[test]
    fn one_slow_rank_shows_as_waiting() {
        // In both runs the last rank's kernel takes as long; in the second the other waits for it.
        let (rank, waiting) = (durations(40, 10_000), durations(40, 15_000));
        let found = verdicts(&[rank.clone(), rank.clone()], &[rank, waiting]);
        assert_eq!(
            found,
            [(Metric::KernelLongestRank, Verdict::Slower), (Metric::KernelShortestRank, Verdict::NoneShown)]
        );
    }

    #[test]
    fn what_only_one_run_has_is_named() {
        let (one, mut other) = (run(&[durations(10, 10_000)]), run(&[durations(10, 10_000)]));
        other.operations.iter_mut().for_each(|operation| operation.bytes = Some(1 << 21));
        assert!(compare(&one, &other).is_empty());
        assert_eq!(only_in(&one, &other), ["AllReduce 1 MiB on dp (2 ranks)"]);
    }
}
