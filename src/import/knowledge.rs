//! What a profile knows about NCCL's kernels, fact by fact, and for how many of them.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::{How, Kernel, Operation, Profile, Tool, kernel_name};
use crate::model::time::UtcNs;
use crate::sys::date;
use crate::trace::names;
pub use crate::trace::names::duration;

/// One kind of fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is about.
    pub what: &'static str,
    /// For how many kernels it is known; for `peers` it is sends and receives, for
    /// `transfers and waits` transfers.
    pub known: u64,
    /// The total number of these.
    pub of: u64,
    /// What is known, or why nothing is.
    pub remark: String,
}

/// Everything a profile knows about the kernels of collectives, NCCL's and others. If it has no
/// such kernels, the facts are about the operations seen on the host. Every profile gives the same
/// facts in the same order.
#[must_use]
pub fn facts(profile: &Profile) -> Vec<Fact> {
    let kernels: Vec<&Kernel> = profile.collective_kernels().collect();
    let units = Units::of(profile, &kernels);
    let fact = |what, known, remark: String| Fact { what, known, of: units.all.len() as u64, remark };
    let launches: HashSet<(usize, u32)> = profile.launching().collect();
    let is_launched = |it: &&&Kernel| it.carried.how == How::Exact || launches.contains(&(it.process, it.correlation));
    let launched = match kernels.is_empty() {
        true => units.count(&|it| it.call.is_some()),
        false => kernels.iter().filter(is_launched).count() as u64,
    };
    let collectives = units.all.iter().filter(|unit| !unit.is_point_to_point).count() as u64;
    vec![
        Fact { what: "kernel", known: kernels.len() as u64, of: kernels.len() as u64, remark: kinds(&kernels) },
        fact(
            "operations",
            units.all.iter().filter(|unit| unit.count > 0).count() as u64,
            operations(profile, &kernels),
        ),
        fact("size", units.count(&|it| it.bytes.is_some()), sizes(profile, &units)),
        fact("datatype", units.count(&|it| it.datatype.is_some()), units.words(|it| it.datatype.clone())),
        fact("communicator", units.count(&|it| it.communicator.is_some()), communicators(profile)),
        Fact {
            of: collectives,
            ..fact(
                "algorithm and protocol",
                units.count(&|it| it.algorithm.is_some()),
                algorithm(&units, &kernels, collectives),
            )
        },
        fact("channels", units.count(&|it| it.channels.is_some()), String::new()),
        peers(profile, &units),
        fact("launching call", launched, String::new()),
        waits(profile),
    ]
}

/// What facts are counted over: kernels with their operations, or single operations.
struct Units<'a> {
    all: Vec<Unit<'a>>,
}

struct Unit<'a> {
    /// How many there are; some may be missing from the list.
    count: u32,
    operations: Vec<&'a Operation>,
    is_point_to_point: bool,
}

impl<'a> Units<'a> {
    fn of(profile: &'a Profile, kernels: &[&Kernel]) -> Units<'a> {
        let of_kernel = |kernel: &&Kernel| Unit {
            count: kernel.carried.count,
            operations: kernel.carried.operations.iter().map(|at| &profile.operations[*at]).collect(),
            is_point_to_point: is_send_recv(profile, kernel),
        };
        let alone = |operation: &'a Operation| Unit {
            count: 1,
            operations: vec![operation],
            is_point_to_point: operation.is_point_to_point(),
        };
        let all = match kernels {
            [] => profile.operations.iter().map(alone).collect(),
            kernels => kernels.iter().map(of_kernel).collect(),
        };
        Units { all }
    }

    /// The number of units of which something is known for all operations.
    fn count(&self, knows: &dyn Fn(&Operation) -> bool) -> u64 {
        // Our traces draw sixteen operations of a kernel and only count the rest.
        let complete = |unit: &&Unit<'_>| {
            !unit.operations.is_empty()
                && unit.operations.len() >= unit.count.min(16) as usize
                && unit.operations.iter().all(|it| knows(it))
        };
        self.all.iter().filter(complete).count() as u64
    }

    fn operations(&self) -> impl Iterator<Item = &'a Operation> {
        self.all.iter().flat_map(|unit| unit.operations.iter().copied())
    }

    fn words(&self, word: impl Fn(&Operation) -> Option<String>) -> String {
        counted(self.operations().filter_map(word))
    }
}

/// The number of point-to-point operations that kernels carry, and of kernels that carry any.
#[must_use]
pub fn point_to_point(profile: &Profile) -> (u64, u64) {
    let carrying: Vec<_> = profile.collective_kernels().filter(|kernel| is_send_recv(profile, kernel)).collect();
    (carrying.iter().map(|kernel| u64::from(kernel.carried.count)).sum(), carrying.len() as u64)
}

/// Whether a kernel carries sends and receives.
fn is_send_recv(profile: &Profile, kernel: &Kernel) -> bool {
    kernel.carried.count > 0
        && match kernel.carried.operations.first() {
            Some(first) => profile.operations[*first].is_point_to_point(),
            None => kernel_name::function(&kernel.name).as_deref() == Some("SendRecv"),
        }
}

fn counted<T: Ord + std::fmt::Display>(all: impl Iterator<Item = T>) -> String {
    let mut counts: BTreeMap<T, u64> = BTreeMap::new();
    all.for_each(|it| *counts.entry(it).or_default() += 1);
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

fn kinds(kernels: &[&Kernel]) -> String {
    counted(kernels.iter().map(|kernel| kernel_name::base(&kernel.name)))
}

fn operations(profile: &Profile, nccl: &[&Kernel]) -> String {
    let mut parts = Vec::new();
    let (operations, kernels) = point_to_point(profile);
    if kernels > 0 {
        parts.push(format!("{kernels} kernels carry {operations} point-to-point operations between them"));
    }
    let carried: Vec<usize> =
        profile.collective_kernels().flat_map(|kernel| kernel.carried.operations.iter().copied()).collect();
    if !carried.is_empty() {
        parts.push(counted(carried.iter().map(|at| profile.operations[*at].function.as_str())));
    }
    let reductions = counted(carried.iter().filter_map(|at| profile.operations[*at].reduction.as_deref()));
    if !reductions.is_empty() {
        parts.push(format!("reductions: {reductions}"));
    }
    let mut hows: BTreeMap<How, (u64, u64)> = BTreeMap::new();
    for kernel in profile.collective_kernels() {
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
    if nccl.is_empty() && without > 0 {
        let functions = counted(profile.operations.iter().map(|operation| operation.function.as_str()));
        parts.push(format!("no kernels; seen on the host: {functions}"));
    } else if without > 0 {
        parts.push(format!("{without} more were called, but their kernels are not in the file"));
    }
    parts.join("; ")
}

fn sizes(profile: &Profile, units: &Units<'_>) -> String {
    let bytes: Vec<u64> = units.operations().filter_map(|operation| operation.bytes).collect();
    match (bytes.iter().min(), bytes.iter().max()) {
        (Some(least), Some(most)) => {
            let all = names::size(bytes.iter().fold(0, |all, size| all.saturating_add(*size)));
            format!("{} to {}, {all} in all", names::size(*least), names::size(*most))
        }
        _ => missing(profile, "NCCL attached to its ranges").unwrap_or_default(),
    }
}

/// The reader's remark about something missing from the file.
fn missing(profile: &Profile, begins: &str) -> Option<String> {
    let note = profile.notes.iter().find(|note| note.starts_with(begins))?;
    note.split_once("; ").map(|(_, why)| why.to_owned())
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

fn algorithm(units: &Units<'_>, kernels: &[&Kernel], collectives: u64) -> String {
    if collectives == 0 && !units.all.is_empty() {
        return "sends and receives have none".into();
    }
    let said = units.words(|it| Some(format!("{} {}", it.algorithm.as_ref()?, it.protocol.as_ref()?)));
    let names_one = kernels.iter().any(|kernel| kernel.name.contains("_RING_") || kernel.name.contains("_TREE_"));
    // NCCL builds kernels only for a few combinations, and runs the others inside those.
    if said.is_empty() && names_one {
        "the kernel's name has those it was built for, not those it ran".into()
    } else {
        said
    }
}

fn peers(profile: &Profile, units: &Units<'_>) -> Fact {
    let of = units.operations().filter(|it| it.is_point_to_point()).count() as u64;
    let known = units.operations().filter(|it| it.is_point_to_point() && it.peer.is_some()).count() as u64;
    // Concluded operations, and those beyond the drawn ones, are in no list.
    let unlisted = point_to_point(profile).0.saturating_sub(of);
    let remark = if known == 0 && of > 0 {
        missing(profile, "NCCL attached to its ranges").unwrap_or_default()
    } else {
        String::new()
    };
    Fact { what: "peers", known, of: of + unlisted, remark }
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

/// A time since 1970 as a date: `2026-05-26 07:59:22.034 UTC`.
pub(crate) fn utc(UtcNs(ns): UtcNs) -> String {
    let [year, month, day, hour, minute, second] = date(ns.div_euclid(1_000_000_000));
    let millis = ns.rem_euclid(1_000_000_000) / 1_000_000;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03} UTC")
}

#[cfg(test)]
mod tests {
    use super::{UtcNs, utc};

    #[test]
    fn dates_are_right() {
        for (ns, text) in [
            (0, "1970-01-01 00:00:00.000 UTC"),
            (1_779_782_330_176_752_435, "2026-05-26 07:58:50.176 UTC"),
            (951_782_399_999_000_000, "2000-02-28 23:59:59.999 UTC"),
            (951_868_800_000_000_000, "2000-03-01 00:00:00.000 UTC"),
        ] {
            assert_eq!(utc(UtcNs(ns)), text);
        }
    }
}
