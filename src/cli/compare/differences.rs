//! The differences between two runs that make their times differ: first what makes them different
//! jobs, then what was recorded and run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::case::Case;
use super::ranks::{self, Class, Kind, Ranks};
use crate::import::{Profile, Tool};
use crate::trace::names;

/// How many kinds of operations are named one by one.
const KINDS: usize = 5;
/// How many ranks are named one by one.
const NAMED: usize = 8;

/// The differences between two files, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Differences {
    /// What makes them different jobs: ranks, sizes, GPUs, NCCL. A difference in times may be due
    /// to that alone.
    pub(crate) of_jobs: Vec<String>,
    /// What NCCL, CUDA and the driver were set to, where two runs or the ranks of one run differ.
    pub(crate) settings: Vec<String>,
    /// The rest: hosts, communicators, what was recorded, what only one of them has.
    pub(crate) others: Vec<String>,
}

/// Finds the differences.
pub(crate) fn find(a: &Profile, b: &Profile, [ranks_a, ranks_b]: [&Ranks; 2], case: Case) -> Differences {
    let is_other_run = case == Case::TwoRuns;
    let mut of_jobs = List::default();
    if is_other_run {
        if present(a).is_empty() || present(b).is_empty() {
            of_jobs.differ("processes in the files", a.processes.len().to_string(), b.processes.len().to_string());
        }
        of_jobs.differ("ranks in the files", present(a), present(b));
        of_jobs.differ("ranks of the job", world(a), world(b));
    }
    of_jobs.differ("GPUs", devices(a), devices(b));
    of_jobs.differ("NCCL", a.nccl_versions.join(", "), b.nccl_versions.join(", "));
    let mut others = List::default();
    if is_other_run {
        others.differ("hosts", a.host.clone().unwrap_or_default(), b.host.clone().unwrap_or_default());
        // Files of Nsight Systems do not say the names of NCCL's communicators.
        let is_named = a.source.tool != Tool::Nsight && b.source.tool != Tool::Nsight;
        others.differ("communicators", communicators(a, is_named), communicators(b, is_named));
        others.differ("tools", a.source.tool.to_string(), b.source.tool.to_string());
        if a.source.tool == b.source.tool {
            others.differ("versions of the tool", a.source.version.clone(), b.source.version.clone());
        }
        others.differ("preset", presets(a), presets(b));
        others.0.extend(tunings(a, b));
        for (side, one, other) in [("A", ranks_a, ranks_b), ("B", ranks_b, ranks_a)] {
            let only = only_in(one, other);
            if !only.is_empty() {
                let more = if only.len() > KINDS { format!(" and {} more", only.len() - KINDS) } else { String::new() };
                others.0.push(format!("only {side} has {}{more}", only[..only.len().min(KINDS)].join(", ")));
            }
        }
    }
    Differences { of_jobs: of_jobs.0, settings: Vec::new(), others: others.0 }
}

#[derive(Default)]
struct List(Vec<String>);

impl List {
    /// If only one of them knows it, it is not a difference.
    fn differ(&mut self, what: &str, a: String, b: String) {
        if a != b && !a.is_empty() && !b.is_empty() {
            self.0.push(format!("{what}: {a} and {b}"));
        }
    }
}

/// What ran on one side only, in words; what NCCL did first.
fn only_in(one: &Ranks, other: &Ranks) -> Vec<String> {
    let theirs: BTreeSet<&Kind> = other.kinds.iter().collect();
    let mut missing: Vec<&Kind> = one.kinds.iter().filter(|kind| !theirs.contains(kind)).collect();
    missing.sort_by_key(|kind| kind.class != Class::Communication);
    missing.into_iter().map(|kind| names::short(&kind.name).into_owned()).collect()
}

/// The ranks in a file.
fn present(profile: &Profile) -> String {
    let ranks: BTreeSet<i32> = profile.processes.iter().filter_map(|it| it.rank).collect();
    match (ranks.len(), ranks.first(), ranks.last()) {
        (0, ..) => String::new(),
        (1..=NAMED, ..) => ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        (count, Some(first), Some(last)) => format!("{count} of {first} to {last}"),
        _ => String::new(),
    }
}

/// How many ranks the job has: as the file says, or else the size of its largest communicator.
fn world(profile: &Profile) -> String {
    let largest = profile.communicators.iter().filter_map(|it| it.ranks).max();
    profile.world.or(largest).map(|ranks| ranks.to_string()).unwrap_or_default()
}

fn devices(profile: &Profile) -> String {
    let names: BTreeSet<&str> = profile.devices.values().map(String::as_str).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Names and sizes of the communicators, or sizes alone, without repeats.
fn communicators(profile: &Profile, is_named: bool) -> String {
    let all = profile.communicators.iter().filter_map(|it| {
        let name = is_named.then(|| it.name.clone().unwrap_or_else(|| "unnamed".into()));
        let words: Vec<String> = name.into_iter().chain(it.ranks.map(|ranks| format!("of {ranks} ranks"))).collect();
        (!words.is_empty()).then(|| words.join(" "))
    });
    all.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// The presets of the recordings: their first words.
fn presets(profile: &Profile) -> String {
    let words = profile.notes.iter().filter_map(|note| note.split("; ").find_map(|part| part.strip_prefix("preset ")));
    words.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// What NCCL chose for the same operation on both sides: algorithm, protocol, channels.
fn tunings(a: &Profile, b: &Profile) -> Vec<String> {
    let of = |profile: &Profile| {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for operation in profile.kernels.iter().flat_map(|kernel| &kernel.carried.operations) {
            let operation = &profile.operations[*operation];
            let channels = operation.channels.map(|channels| format!("{channels} channels"));
            let words: Vec<String> =
                [&operation.algorithm, &operation.protocol, &channels].into_iter().flatten().cloned().collect();
            if !words.is_empty() {
                all.entry(ranks::operation(profile, operation)).or_default().insert(words.join(" "));
            }
        }
        all
    };
    let (a, b) = (of(a), of(b));
    let words = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(" or ");
    let both = a.iter().filter_map(|(what, of_a)| Some((what, of_a, b.get(what)?)));
    both.filter(|(_, of_a, of_b)| of_a != of_b)
        .map(|(what, of_a, of_b)| format!("{what}: {} and {}", words(of_a), words(of_b)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Communicator, Source};

    #[test]
    fn communicators_without_names_differ_in_their_sizes_only() {
        let profile = |tool, name: Option<&str>, ranks| Profile {
            source: Source { tool, ..Source::default() },
            communicators: vec![Communicator { name: name.map(Into::into), ranks, ..Communicator::default() }],
            ..Profile::default()
        };
        let ours = profile(Tool::Ncclscope, Some("dp"), Some(4));
        for (tool, name, ranks, expected) in [
            (Tool::Nsight, None, Some(4), None),
            (Tool::Nsight, None, None, None),
            (Tool::Nsight, None, Some(2), Some("communicators: of 4 ranks and of 2 ranks")),
            (Tool::Kineto, Some("tp"), Some(4), Some("communicators: dp of 4 ranks and tp of 4 ranks")),
            (Tool::Ncclscope, None, Some(4), Some("communicators: dp of 4 ranks and unnamed of 4 ranks")),
        ] {
            let all =
                find(&ours, &profile(tool, name, ranks), [&Ranks::default(), &Ranks::default()], Case::TwoRuns).others;
            let found = all.iter().find(|difference| difference.starts_with("communicators"));
            assert_eq!(found.map(String::as_str), expected, "{tool}");
        }
    }
}
