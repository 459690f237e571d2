//! What a profile knows about NCCL's kernels, fact by fact, with how many of them it knows it of.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::{How, Kernel, Operation, Profile, Tool, kernel_name};
use crate::trace::names;

/// One kind of fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is about.
    pub what: &'static str,
    /// Of how many kernels it is known (for `peers` and `waits`: operations and transfers).
    pub known: u64,
    /// Of how many there are.
    pub of: u64,
    /// What is known, or why nothing is.
    pub remark: String,
}

/// Everything a profile knows about NCCL's kernels. The same facts in the same order for every profile.
#[must_use]
pub fn facts(profile: &Profile) -> Vec<Fact> {
    let kernels: Vec<&Kernel> = profile.nccl_kernels().collect();
    let all = kernels.len() as u64;
    // Of a kernel something is known when it is of all its operations.
    let of_all = |knows: &dyn Fn(&Operation) -> bool| {
        let complete = |kernel: &&&Kernel| {
            let operations = &kernel.carried.operations;
            !operations.is_empty()
                && operations.len() >= kernel.carried.count.min(16) as usize
                && operations.iter().all(|at| knows(&profile.operations[*at]))
        };
        kernels.iter().filter(complete).count() as u64
    };
    let fact = |what, known, remark: String| Fact { what, known, of: all, remark };
    let launches: HashSet<(usize, u32)> = profile.cuda_calls.iter().map(|it| (it.process, it.correlation)).collect();
    let launched =
        kernels.iter().filter(|it| it.carried.how == How::Exact || launches.contains(&(it.process, it.correlation)));
    let algorithms = of_all(&|it| it.algorithm.is_some());
    let collectives = all - point_to_point(profile).1;
    vec![
        fact("kernel", all, kinds(&kernels)),
        fact("operations", kernels.iter().filter(|it| it.carried.count > 0).count() as u64, operations(profile)),
        fact("size", of_all(&|it| it.bytes.is_some()), sizes(profile, &kernels)),
        fact("datatype", of_all(&|it| it.datatype.is_some()), words(profile, &kernels, |it| it.datatype.clone())),
        fact("communicator", of_all(&|it| it.communicator.is_some()), communicators(profile)),
        Fact {
            of: collectives,
            ..fact("algorithm and protocol", algorithms, algorithm(profile, &kernels, algorithms))
        },
        fact("channels", of_all(&|it| it.channels.is_some()), String::new()),
        peers(profile, &kernels),
        fact("launching call", launched.count() as u64, String::new()),
        waits(profile),
    ]
}

/// Point-to-point operations that the kernels carry between them, and kernels that carry some.
#[must_use]
pub fn point_to_point(profile: &Profile) -> (u64, u64) {
    let is_send_recv = |kernel: &&Kernel| {
        kernel.carried.count > 0
            && match kernel.carried.operations.first() {
                Some(first) => profile.operations[*first].is_point_to_point(),
                None => kernel_name::function(&kernel.name).as_deref() == Some("SendRecv"),
            }
    };
    let carrying: Vec<_> = profile.nccl_kernels().filter(is_send_recv).collect();
    (carrying.iter().map(|kernel| u64::from(kernel.carried.count)).sum(), carrying.len() as u64)
}

fn counted<T: Ord + std::fmt::Display>(all: impl Iterator<Item = T>) -> String {
    let mut counts: BTreeMap<T, u64> = BTreeMap::new();
    all.for_each(|it| *counts.entry(it).or_default() += 1);
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn kinds(kernels: &[&Kernel]) -> String {
    counted(kernels.iter().map(|kernel| kernel_name::base(&kernel.name)))
}

fn operations(profile: &Profile) -> String {
    let mut parts = Vec::new();
    let (operations, kernels) = point_to_point(profile);
    if kernels > 0 {
        parts.push(format!("{kernels} kernels carry {operations} point-to-point operations between them"));
    }
    let carried: Vec<usize> =
        profile.nccl_kernels().flat_map(|kernel| kernel.carried.operations.iter().copied()).collect();
    if !carried.is_empty() {
        parts.push(counted(carried.iter().map(|at| profile.operations[*at].function.as_str())));
    }
    let mut hows: BTreeMap<How, (u64, u64)> = BTreeMap::new();
    for kernel in profile.nccl_kernels() {
        let entry = hows.entry(kernel.carried.how).or_default();
        entry.0 += 1;
        entry.1 += u64::from(kernel.carried.count);
    }
    for (how, (kernels, operations)) in &hows {
        parts.push(match how {
            How::Unknown => format!("of {kernels} kernels not known"),
            how => format!("{operations} of {kernels} kernels {}", how.text()),
        });
    }
    let with_kernel: HashSet<usize> = carried.into_iter().collect();
    let without = profile.operations.len() - with_kernel.len();
    if without > 0 {
        parts.push(format!("{without} more were asked for whose kernel is not in the file"));
    }
    parts.join("; ")
}

fn sizes(profile: &Profile, kernels: &[&Kernel]) -> String {
    let bytes: Vec<u64> = (kernels.iter())
        .flat_map(|kernel| &kernel.carried.operations)
        .filter_map(|at| profile.operations[*at].bytes)
        .collect();
    match (bytes.iter().min(), bytes.iter().max()) {
        (Some(least), Some(most)) => {
            let all = names::size(bytes.iter().sum());
            format!("{} to {}, {all} in all", names::size(*least), names::size(*most))
        }
        _ => missing(profile, "NCCL attached to its ranges").unwrap_or_default(),
    }
}

/// What the reader noted about something that is not in the file.
fn missing(profile: &Profile, begins: &str) -> Option<String> {
    let note = profile.notes.iter().find(|note| note.starts_with(begins))?;
    note.split_once("; ").map(|(_, why)| why.to_owned())
}

fn words(profile: &Profile, kernels: &[&Kernel], word: impl Fn(&Operation) -> Option<String>) -> String {
    let operations = kernels.iter().flat_map(|kernel| &kernel.carried.operations);
    counted(operations.filter_map(|at| word(&profile.operations[*at])))
}

fn communicators(profile: &Profile) -> String {
    let mut all: Vec<String> = Vec::new();
    for communicator in &profile.communicators {
        let name = match (&communicator.name, communicator.hash) {
            (Some(name), _) => name.clone(),
            (None, Some(hash)) => format!("{hash:016x}"),
            (None, None) => "unnamed".into(),
        };
        let ranks = communicator.ranks.map(|ranks| format!(", {ranks} ranks")).unwrap_or_default();
        let members = communicator.members.as_ref().map(|ranks| format!(" {ranks}")).unwrap_or_default();
        let text = format!("{name}{ranks}{members}");
        if !all.contains(&text) {
            all.push(text);
        }
    }
    match all.len() {
        0 => missing(profile, "NCCL attached to its ranges").unwrap_or_default(),
        1..=8 => all.join("; "),
        more => format!("{more} communicators"),
    }
}

fn algorithm(profile: &Profile, kernels: &[&Kernel], known: u64) -> String {
    if !kernels.is_empty() && point_to_point(profile).1 == kernels.len() as u64 {
        return "sends and receives have none".into();
    }
    if known > 0 {
        let word = |it: &Operation| Some(format!("{} {}", it.algorithm.as_ref()?, it.protocol.as_ref()?));
        return words(profile, kernels, word);
    }
    let names_one = kernels.iter().any(|kernel| kernel.name.contains("_RING_") || kernel.name.contains("_TREE_"));
    // NCCL builds kernels for a few combinations only and runs the others inside of these.
    if names_one {
        "the kernel's name has those it was built for, not those that ran in it".into()
    } else {
        String::new()
    }
}

fn peers(profile: &Profile, kernels: &[&Kernel]) -> Fact {
    let operations = kernels.iter().flat_map(|kernel| &kernel.carried.operations).map(|at| &profile.operations[*at]);
    let of = operations.clone().filter(|it| it.is_point_to_point()).count() as u64;
    let known = operations.filter(|it| it.is_point_to_point() && it.peer.is_some()).count() as u64;
    let concluded = point_to_point(profile).0.saturating_sub(of);
    let remark = if known == 0 && of > 0 {
        missing(profile, "NCCL attached to its ranges").unwrap_or_default()
    } else {
        String::new()
    };
    Fact { what: "peers", known, of: of + concluded, remark }
}

fn waits(profile: &Profile) -> Fact {
    let of = profile.transfers.len() as u64;
    let known = profile.transfers.iter().filter(|transfer| !transfer.waits.is_empty()).count() as u64;
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, ns) in profile.transfers.iter().flat_map(|transfer| &transfer.waits) {
        *sums.entry(what).or_default() += ns;
    }
    let sums: Vec<String> = sums.iter().map(|(what, ns)| format!("{what} {}", duration(*ns as f64))).collect();
    let remark = match profile.source.tool {
        Tool::Ncclscope if of > 0 => sums.join(", "),
        Tool::Ncclscope => "no network transfers in the trace".into(),
        Tool::Nsight | Tool::Kineto => "transfers over the network are not recorded by this tool".into(),
    };
    Fact { what: "transfers and waits", known, of, remark }
}

/// A duration for people: `812 ns`, `15.2 µs`, `3.41 ms`, `2.05 s`.
#[must_use]
pub fn duration(ns: f64) -> String {
    let digits = |value: f64| if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = |value: f64, unit: &str| format!("{value:.*} {unit}", digits(value));
    match ns.abs() {
        small if small < 1e3 => format!("{ns:.0} ns"),
        small if small < 1e6 => text(ns / 1e3, "µs"),
        small if small < 1e9 => text(ns / 1e6, "ms"),
        _ => text(ns / 1e9, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_read_well() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (812.4, "812 ns"),
            (1520.0, "1.52 µs"),
            (15_240.0, "15.2 µs"),
            (3.41e6, "3.41 ms"),
            (2e9, "2.00 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(duration(-1520.0), "-1.52 µs");
    }
}
