//! Which of several otherwise equal operations a kernel carried: by runs of graphs, by the order
//! of launches, and by sequence numbers.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Claim, Key, Naive, Seen, SeenKernel, SeenOperation, Truth, key};
use crate::truth::Kernel;

/// Which run of its captured launch each kernel of a graph was, counted from 1.
pub(super) fn runs(truth: &Truth<'_>) -> HashMap<Key, u64> {
    let mut kernels: Vec<_> = truth.kernels.iter().filter_map(|kernel| Some((kernel, kernel.graph?))).collect();
    kernels.sort_by_key(|(kernel, _)| kernel.start);
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let run = |(kernel, place): (&&Kernel, crate::truth::GraphPlace)| {
        let count = counts.entry(place.original_node).or_default();
        *count += 1;
        (key(kernel), *count)
    };
    kernels.into_iter().map(run).collect()
}

/// Kernels matched to operations of another launch: their sequence numbers do not rise in the
/// order of the launches.
pub(super) fn out_of_order(truth: &Truth<'_>, seen: &HashMap<Key, &SeenKernel>) -> HashMap<Key, String> {
    /// A communicator, an operation without its number, and whether the launch was captured. NCCL
    /// numbers operations when it hands them over, and may hand over different operations in
    /// another order than it launches them. The same holds for replays.
    type Series = (usize, SeenOperation, bool);
    let mut series: BTreeMap<Series, Vec<(u64, Key, u64)>> = BTreeMap::new();
    for kernel in &truth.kernels {
        let Some(SeenKernel { claim: Claim::Operations { shown, .. }, .. }) = seen.get(&key(kernel)) else { continue };
        let Some(&(_, comm)) = truth.comms.get(&key(kernel)) else { continue };
        let captured = kernel.graph.is_some();
        let when = if captured { kernel.start } else { kernel.called };
        let mut first: BTreeMap<Series, u64> = BTreeMap::new();
        for operation in shown {
            let Some(number) = operation.number else { continue };
            let alike = SeenOperation { number: None, id: None, ..operation.clone() };
            let least = first.entry((comm, alike, captured)).or_insert(number);
            *least = number.min(*least);
        }
        for (of, number) in first {
            series.entry(of).or_default().push((when, key(kernel), number));
        }
    }
    let mut wrong = HashMap::new();
    for ((_, operation, captured), mut members) in series {
        members.sort_unstable();
        let numbers: Vec<u64> = members.iter().map(|(_, _, number)| *number).collect();
        let rising = longest_rising(&numbers, captured);
        let others = (0..numbers.len()).filter(|place| !rising[*place]);
        wrong.extend(others.map(|place| {
            let around = &numbers[place.saturating_sub(2)..numbers.len().min(place + 3)];
            let text = format!("{} number {} is out of order among {around:?}", operation.function, numbers[place]);
            (members[place].1, text)
        }));
    }
    wrong
}

/// Kernels whose operations have other sequence numbers than NCCL gave them. NCCL counts from 0
/// for each communicator and function, and we do the same for sends and receives by peer and
/// direction. This works only where nothing else gives numbers: without graphs.
pub(super) fn numbers(truth: &Truth<'_>, seen: &Seen) -> HashMap<Key, String> {
    type Series<'a> = (usize, &'a str, i32);
    let by_key: HashMap<Key, &SeenKernel> = seen.kernels.iter().map(|kernel| (kernel.key, kernel)).collect();
    let comm = |kernel: &Kernel| truth.comms.get(&key(kernel)).map(|(_, comm)| *comm);
    let replayed: HashSet<usize> =
        truth.kernels.iter().filter(|kernel| kernel.graph.is_some()).filter_map(|kernel| comm(kernel)).collect();
    let mut kernels: Vec<&&Kernel> = truth.kernels.iter().collect();
    kernels.sort_by_key(|kernel| kernel.called);
    let mut next: BTreeMap<Series<'_>, u64> = BTreeMap::new();
    let mut wrong = HashMap::new();
    for kernel in kernels {
        let Some(comm) = comm(kernel).filter(|comm| !replayed.contains(comm)) else { continue };
        let mut carried: BTreeMap<Series<'_>, u64> = BTreeMap::new();
        for operation in kernel.operations.iter().filter(|operation| !truth.is_silent(operation)) {
            let is_message = matches!(operation.function.as_str(), "Send" | "Recv");
            let peer = if is_message { operation.root } else { -1 };
            *carried.entry((comm, &operation.function, peer)).or_default() += 1;
        }
        for (of, count) in carried {
            let from = next.entry(of).or_default();
            let expected = *from..*from + count;
            *from += count;
            let Some(seen) = by_key.get(&key(kernel)) else { continue };
            let Claim::Operations { shown, .. } = &seen.claim else { continue };
            let same = |it: &&SeenOperation| it.function == of.1 && (of.2 < 0 || it.root == Some(of.2));
            let told: Vec<u64> = shown.iter().filter(same).filter_map(|operation| operation.number).collect();
            if let Some(other) = told.iter().find(|number| !expected.contains(number)) {
                wrong.insert(key(kernel), format!("{} number {other} is one of {expected:?}", of.1));
            }
        }
    }
    wrong
}

/// Which members form the longest series that rises or, where `equal`, does not fall.
pub(super) fn longest_rising(numbers: &[u64], equal: bool) -> Vec<bool> {
    // For each length, the place of the smallest last member of a series; and for each place the
    // one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::new();
    for (place, number) in numbers.iter().enumerate() {
        let goes_on = |end: &usize| numbers[*end] < *number || equal && numbers[*end] == *number;
        let length = ends.partition_point(goes_on);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        ends.truncate(length.max(ends.len()));
        if length == ends.len() { ends.push(place) } else { ends[length] = place }
    }
    let mut chosen = vec![false; numbers.len()];
    let mut next = ends.last().copied();
    while let Some(place) = next {
        chosen[place] = true;
        next = before[place];
    }
    chosen
}

/// How well matching by stream and order alone does on the same kernels. A captured launch counts
/// once, just before its graph's first run, on the stream that its kernels run on: that is the
/// best case for such a matcher.
pub(super) fn naive(truth: &Truth<'_>, seen: &Seen) -> Naive {
    let launch = |kernel: &Kernel| match kernel.graph {
        None => (kernel.correlation, 0),
        Some(place) => (0, place.original_node),
    };
    let mut kernels: Vec<&&Kernel> = truth.kernels.iter().filter(|kernel| !kernel.operations.is_empty()).collect();
    kernels.sort_by_key(|kernel| (kernel.called, kernel.graph.map(|place| place.node)));
    let mut known = HashSet::new();
    let mut launches: HashMap<(u32, u32), Vec<Key>> = HashMap::new();
    for kernel in kernels {
        if known.insert(launch(kernel)) {
            launches.entry((kernel.device, kernel.stream)).or_default().push(launch(kernel));
        }
    }
    let mut ran: Vec<&SeenKernel> = seen.kernels.iter().filter(|kernel| kernel.symbol.contains("nccl")).collect();
    ran.sort_by_key(|kernel| kernel.begin);
    let mut counts: HashMap<(u32, u32), usize> = HashMap::new();
    let mut naive = Naive::default();
    for kernel in ran {
        let Some(was) = truth.by_key.get(&kernel.key) else { continue };
        let stream = (kernel.device, kernel.stream);
        let place = counts.entry(stream).or_default();
        match launches.get(&stream).and_then(|launches| launches.get(*place)) {
            Some(taken) if *taken == launch(was) => naive.right += 1,
            Some(_) => naive.wrong += 1,
            None => naive.unmatched += 1,
        }
        *place += 1;
    }
    naive
}
