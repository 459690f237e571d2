//! Kernels of two files, paired by name and order: counts and durations.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ranks::counted;
use super::statistics::Distribution;
use crate::import::{Kernel, Profile, kernel_name};
use crate::trace::names;

/// The kernels of one name on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The name, without parameters.
    pub(crate) name: String,
    /// Whether it is one of NCCL's.
    pub(crate) nccl: bool,
    /// Durations in the first file, ns.
    pub(crate) a: Option<Distribution>,
    /// Durations in the second file, ns.
    pub(crate) b: Option<Distribution>,
    /// The second duration divided by the first, kernel by kernel, rank by rank in order of start;
    /// only if both files have equally many.
    pub(crate) ratio: Option<Distribution>,
    /// The median of these ratios. If one side has more kernels, the second median divided by the
    /// first.
    pub(crate) by: Option<f64>,
}

/// All kernels by name: NCCL's first, then by the time they took.
pub(crate) fn by_name(a: &Profile, b: &Profile) -> Vec<Row> {
    rows(a, b, |_, kernel| Some(kernel_name::common(&kernel.name)))
}

/// NCCL's kernels by what they carry, where both sides know sizes.
pub(crate) fn by_operation(a: &Profile, b: &Profile) -> Vec<Row> {
    let rows = rows(a, b, |profile, kernel| carried(profile, kernel).filter(|_| kernel.is_nccl()));
    let on = |side: fn(&Row) -> bool| rows.iter().any(side);
    if on(|row| row.a.is_some()) && on(|row| row.b.is_some()) { rows } else { Vec::new() }
}

/// What a kernel carries, in words that do not depend on the tool; `None` if its sizes are not
/// known.
fn carried(profile: &Profile, kernel: &Kernel) -> Option<String> {
    let operations = kernel.carried.operations.iter().map(|at| &profile.operations[*at]);
    let told = operations.map(|it| Some(format!("{} {}", it.function, names::size(it.bytes?))));
    let told: Vec<String> = told.collect::<Option<_>>()?;
    (!told.is_empty()).then(|| counted(kernel, told))
}

fn rows(a: &Profile, b: &Profile, key: impl Fn(&Profile, &Kernel) -> Option<String>) -> Vec<Row> {
    // By name: the durations of both sides, rank by rank in order of start.
    let mut names: BTreeMap<String, (bool, [Vec<f64>; 2])> = BTreeMap::new();
    // Kernels have few names, and the common form of a name takes a while to find.
    for (side, profile) in [a, b].into_iter().enumerate() {
        let mut known: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for kernel in by_rank(profile) {
            let name = match kernel.is_nccl() {
                true => key(profile, kernel),
                false => known.entry(&kernel.name).or_insert_with(|| key(profile, kernel)).clone(),
            };
            let Some(name) = name else { continue };
            let entry = names.entry(name).or_insert_with(|| (kernel.is_nccl(), Default::default()));
            entry.1[side].push(kernel.span.duration() as f64);
        }
    }
    let mut rows: Vec<Row> = (names.into_iter())
        .map(|(name, (nccl, [a, b]))| {
            let paired = if a.len() == b.len() { &a[..] } else { &[] };
            let ratios: Vec<f64> = paired.iter().zip(&b).filter(|(a, _)| **a > 0.0).map(|(a, b)| b / a).collect();
            let (a, b, ratio) = (Distribution::of(&a), Distribution::of(&b), Distribution::of(&ratios));
            let of_medians = || a.zip(b).filter(|(a, _)| a.median > 0.0).map(|(a, b)| b.median / a.median);
            Row { name, nccl, a, b, ratio, by: ratio.map(|ratio| ratio.median).or_else(of_medians) }
        })
        .collect();
    let weight = |row: &Row| row.a.iter().chain(&row.b).map(|it| it.sum).fold(0.0, f64::max);
    rows.sort_by(|one, other| other.nccl.cmp(&one.nccl).then(weight(other).total_cmp(&weight(one))));
    rows
}

/// The kernels rank by rank, each rank's in order of start, so that kernels of the same rank pair
/// up.
fn by_rank(profile: &Profile) -> Vec<&Kernel> {
    let about = |kernel: &Kernel| profile.processes.get(kernel.process).map(|it| (it.rank.unwrap_or(i32::MAX), it.pid));
    let mut kernels: Vec<&Kernel> = profile.kernels.iter().collect();
    // A stable sort keeps them in order of start.
    kernels.sort_by_cached_key(|kernel| about(kernel));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Process, Span};

    fn profile(kernels: &[(&str, i64, i64)]) -> Profile {
        let kernel = |(name, start, end): &(&str, i64, i64)| Kernel {
            span: Span::of(*start, *end),
            name: (*name).into(),
            ..Kernel::default()
        };
        Profile { kernels: kernels.iter().map(kernel).collect(), ..Profile::default() }
    }

    #[test]
    fn kernels_pair_by_name_and_order() {
        let a = profile(&[("_Z4stepPf", 0, 10), ("_Z4stepPf", 20, 40), ("ncclDevKernel_SendRecv", 50, 55)]);
        let b = profile(&[("void step(float*)", 0, 20), ("void step(float*)", 30, 70), ("only()", 80, 90)]);
        let rows = by_name(&a, &b);
        assert_eq!(
            rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
            ["ncclDevKernel_SendRecv", "step", "only"]
        );
        assert!(rows[0].nccl && rows[0].b.is_none() && rows[0].ratio.is_none());
        let step = &rows[1];
        assert_eq!((step.a.unwrap().median, step.b.unwrap().median), (15.0, 30.0));
        assert_eq!((step.ratio.unwrap().count, step.ratio.unwrap().min, step.ratio.unwrap().max), (2, 2.0, 2.0));
        // Rank by rank, whichever rank began first.
        let ranks = |first: i32| {
            let process =
                |rank| Process { pid: 1, name: String::new(), rank: Some(rank), threads: BTreeMap::new(), lost: 0 };
            let mut profile = profile(&[("k", 0, 10), ("k", 5, 25)]);
            profile.processes = vec![process(first), process(1 - first)];
            profile.kernels[1].process = 1;
            profile
        };
        let ratio = |a: i32, b: i32| by_name(&ranks(a), &ranks(b))[0].ratio.unwrap();
        assert_eq!((ratio(0, 0).min, ratio(0, 0).max), (1.0, 1.0));
        assert_eq!((ratio(0, 1).min, ratio(0, 1).max), (0.5, 2.0));
        // With one more kernel on a side, only their medians are compared.
        let more = profile(&[("_Z4stepPf", 0, 10), ("_Z4stepPf", 20, 40), ("_Z4stepPf", 50, 70)]);
        let step = &by_name(&a, &more)[1];
        assert_eq!((step.name.as_str(), step.ratio, step.by), ("step", None, Some(20.0 / 15.0)));
        // No sizes are known, so there is nothing to show by size.
        assert!(by_operation(&a, &b).is_empty());
    }
}
