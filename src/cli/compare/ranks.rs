//! A profile by rank: what each rank's GPU did, in order, and how much of each collective it spent
//! only waiting for the others.
//!
//! A collective's kernel runs until the last rank has arrived and the data has been transferred.
//! The rank that arrives last waits for nobody, so its kernel is the shortest. What another rank's
//! kernel takes beyond that is waiting. Durations need no common clock. The same holds for a kernel
//! that exchanges data with one other kernel only, as of a send and its receive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::import::{self, Communicator, Kernel, Operation, Place, Profile, Request, Span, kernel_name};
use crate::model::all_to_all::{AllToAll, Exchange};
use crate::model::time::FileNs;
use crate::trace::names;

/// What kind of thing a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    /// A kernel of the application.
    Kernel,
    /// A copy or a memset.
    Copy,
    /// A kernel of NCCL.
    Communication,
    /// A call into NCCL, where there are no kernels.
    Call,
}

/// What identifies the same thing in every run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kind {
    pub(crate) class: Class,
    pub(crate) name: String,
}

/// One thing that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    /// Index into [`Ranks::kinds`].
    pub(crate) kind: usize,
    pub(crate) span: Span,
    /// How much of it was waiting for other ranks, ns; `None` if that is unknown.
    pub(crate) waited: Option<u64>,
    /// If it exchanges data with one kernel only: that kernel's rank, as an index into
    /// [`Ranks::all`].
    pub(crate) peer: Option<Peer<usize>>,
    /// When the host launched it, if known.
    pub(crate) launched: Option<FileNs>,
    /// Where it ran, and the correlation id of its launch; zeros for calls.
    pub(crate) place: Place,
    pub(crate) correlation: u32,
    /// For kernels, the index in the profile.
    pub(crate) kernel: Option<usize>,
    /// For kernels without a record, the index in [`Ranks::unrecorded`].
    pub(crate) unrecorded: Option<usize>,
}

/// Which way data goes, seen from one of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    To,
    From,
    /// Both ways.
    With,
}

/// The rank with which another one exchanges data, and the way that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct Peer<R> {
    pub(crate) way: Way,
    pub(crate) rank: R,
}

impl fmt::Display for Peer<String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::To => "to",
            Way::From => "from",
            Way::With => "with",
        };
        write!(f, "{way} {}", self.rank)
    }
}

/// What one rank's GPU did.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// `rank 3`, or `process 3` if the job's ranks are not known; plus the GPU if the rank has
    /// several.
    pub(crate) label: String,
    pub(crate) number: Option<i32>,
    /// Index in the profile.
    pub(crate) process: usize,
    /// Its GPU; `None` where only calls are known.
    pub(crate) device: Option<u32>,
    /// In order of start.
    pub(crate) items: Vec<Item>,
}

impl Rank {
    /// Its rank in a communicator, if it is a member.
    pub(crate) fn in_communicator(&self, communicator: &Communicator) -> Option<i32> {
        let own = match self.device {
            Some(device) => communicator.rank_on(device),
            None => communicator.rank,
        };
        own.filter(|_| communicator.process == self.process)
    }
}

/// A profile by rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks {
    pub(crate) kinds: Vec<Kind>,
    pub(crate) all: Vec<Rank>,
    /// Where kernels have no record: the operations that these carried, as indices into
    /// [`Profile::operations`].
    pub(crate) unrecorded: Vec<Vec<usize>>,
    /// Some members of collectives have no file here, so the rank that all wait for may be missing.
    pub(crate) is_partial: bool,
}

impl Ranks {
    /// The ranks of a profile, with kernels or, if the two profiles do not both have them, with
    /// calls into NCCL. How much of it was waiting is not looked for.
    pub(crate) fn of(profile: &Profile, with_kernels: bool) -> Ranks {
        let mut ranks = Ranks::default();
        let mut kinds = HashMap::new();
        let mut lists: BTreeMap<(usize, u32), Vec<Item>> = BTreeMap::new();
        if with_kernels {
            ranks.take_kernels(profile, &mut kinds, &mut lists);
        } else {
            for call in &profile.nccl_calls {
                let kind = ranks.kind(&mut kinds, Class::Call, operation(profile, &call.operation));
                let item = Item { kind, span: call.span, launched: Some(call.span.start), ..Item::default() };
                lists.entry((call.process, 0)).or_default().push(item);
            }
        }
        // If the job's rank is unknown, the rank in the largest communicator is the same in the
        // next run. A process id is not.
        let mut largest: HashMap<usize, (i32, i32)> = HashMap::new();
        for communicator in &profile.communicators {
            if let Some((size, own)) = communicator.ranks.zip(communicator.rank) {
                let known = largest.entry(communicator.process).or_insert((size, own));
                if size > known.0 {
                    *known = (size, own);
                }
            }
        }
        let order = |process: usize| {
            let number = profile.processes.get(process).and_then(|it| it.rank);
            (number.is_none(), number, largest.get(&process).map(|it| it.1), process)
        };
        let mut processes: Vec<usize> = lists.keys().map(|(process, _)| *process).collect();
        processes.sort_by_key(|process| order(*process));
        let is_alone = |process: usize| processes.iter().filter(|other| **other == process).count() == 1;
        let mut places = processes.clone();
        places.dedup();
        let untold = untold(profile);
        for ((process, device), mut items) in lists {
            items.sort_by_key(|item| item.span);
            if let Some(untold) = untold.get(&process) {
                let of_gpu = (process, device, is_alone(process));
                ranks.take_unrecorded(profile, untold, of_gpu, &mut kinds, &mut items);
            }
            let number = profile.processes.get(process).and_then(|it| it.rank);
            let place = places.iter().position(|it| *it == process).unwrap_or(0);
            let who = number.map_or_else(|| format!("process {place}"), |number| format!("rank {number}"));
            let label = if is_alone(process) { who } else { format!("{who}, GPU {device}") };
            let number = number.filter(|_| is_alone(process));
            let device = with_kernels.then_some(device);
            ranks.all.push(Rank { label, number, process, device, items });
        }
        // A stable sort keeps the GPUs of a process in order.
        ranks.all.sort_by_key(|rank| order(rank.process));
        ranks
    }

    /// Whether all have the launcher's numbers.
    pub(crate) fn are_numbered(&self) -> bool {
        self.all.iter().all(|rank| rank.number.is_some())
    }

    /// The number of each rank, by its index, where the launcher did not number them all: that in
    /// the largest communicator with all of them.
    pub(crate) fn numbers(&self, profile: &Profile) -> Option<BTreeMap<i32, usize>> {
        if self.are_numbered() {
            return None;
        }
        let (mut places, mut members) = (FxHashMap::default(), Vec::new());
        for communicator in &profile.communicators {
            let Some(size) = communicator.ranks else { continue };
            let place = *places.entry(communicator.hash).or_insert(members.len());
            if place == members.len() {
                members.push((size, BTreeMap::new()));
            }
            for (at, rank) in self.all.iter().enumerate().filter(|(_, rank)| rank.process == communicator.process) {
                members[place].1.extend(rank.in_communicator(communicator).map(|own| (own, at)));
            }
        }
        largest_with_all(members.iter(), self.all.len()).cloned()
    }

    /// Gives the ranks these numbers, by index.
    pub(crate) fn number(&mut self, numbers: &BTreeMap<i32, usize>) {
        for (&own, &at) in numbers {
            (self.all[at].label, self.all[at].number) = (format!("rank {own}"), Some(own));
        }
        self.all.sort_by_key(|rank| rank.number);
    }

    /// Adds how much of what was communicated was waiting for other ranks.
    pub(crate) fn add_waits(&mut self, profile: &Profile) {
        let Waiting { waited, partners, is_partial } = waiting(profile);
        self.is_partial = is_partial;
        let number = |(at, rank): (usize, &Rank)| ((rank.process, rank.device), at);
        let numbers: FxHashMap<_, usize> = self.all.iter().enumerate().map(number).collect();
        for item in self.all.iter_mut().flat_map(|rank| &mut rank.items) {
            let Some(kernel) = item.kernel else { continue };
            item.waited = waited.get(&kernel).copied();
            item.peer = partners.get(&kernel).and_then(|partner| {
                let partner = &profile.kernels[*partner];
                let &rank = numbers.get(&(partner.process, Some(partner.place.device)))?;
                Some(Peer { way: way(profile, &profile.kernels[kernel]), rank })
            });
        }
    }

    fn kind(&mut self, known: &mut HashMap<Kind, usize>, class: Class, name: String) -> usize {
        let kind = Kind { class, name };
        *known.entry(kind).or_insert_with_key(|kind| {
            self.kinds.push(kind.clone());
            self.kinds.len() - 1
        })
    }

    fn take_kernels(
        &mut self,
        profile: &Profile,
        kinds: &mut HashMap<Kind, usize>,
        lists: &mut BTreeMap<(usize, u32), Vec<Item>>,
    ) {
        let calls: FxHashMap<(usize, u32), FileNs> =
            profile.cuda_calls.iter().map(|it| ((it.process, it.correlation), it.span.start)).collect();
        // Kernels have few names, which take a while to find, and carry few kinds of operations.
        type Carried = (*const Request, Option<usize>);
        let mut known: FxHashMap<(&str, Option<Carried>), usize> = FxHashMap::default();
        for (at, kernel) in profile.kernels.iter().enumerate() {
            let key = match kernel.carried.operations[..] {
                [] => Some((&*kernel.name, None)),
                [one] if kernel.carried.count <= 1 => {
                    let one = &profile.operations[one];
                    Some((&*kernel.name, Some((Arc::as_ptr(&one.request), one.communicator))))
                }
                _ => None,
            };
            let kind = key.and_then(|key| known.get(&key)).copied().unwrap_or_else(|| {
                let kind = if kernel.is_nccl() {
                    let name = carried(profile, kernel).unwrap_or_else(|| kernel_name::base(&kernel.name));
                    self.kind(kinds, Class::Communication, name)
                } else {
                    self.kind(kinds, Class::Kernel, kernel_name::common(&kernel.name))
                };
                known.extend(key.map(|key| (key, kind)));
                kind
            });
            let &Kernel { process, span, place, correlation, .. } = kernel;
            let launched = calls.get(&(process, correlation)).copied();
            let kernel = Some(at);
            let item = Item { kind, span, launched, place, correlation, kernel, ..Item::default() };
            lists.entry((process, place.device)).or_default().push(item);
        }
        for copy in &profile.copies {
            let kind = self.kind(kinds, Class::Copy, names::copy(copy.kind).to_owned());
            let &import::Copy { process, span, place, correlation, .. } = copy;
            let launched = calls.get(&(process, correlation)).copied();
            let item = Item { kind, span, launched, place, correlation, ..Item::default() };
            lists.entry((process, place.device)).or_default().push(item);
        }
    }

    /// Adds to what a GPU did, in order of start, where it worked on kernels without a record:
    /// between what ended before CUPTI was flushed by force and what began after it. `untold` is
    /// what [`untold`] gives for its process.
    fn take_unrecorded(
        &mut self,
        profile: &Profile,
        untold: &[usize],
        (process, device, is_alone): (usize, u32, bool),
        kinds: &mut HashMap<Kind, usize>,
        items: &mut Vec<Item>,
    ) {
        let flushes = profile.flushes.iter().filter(|it| it.0 == process).map(|it| it.1);
        let transfers = profile.transfers.iter().filter(|it| it.process == process);
        let last = transfers.map(|it| it.span.end).max();
        let mut spans = BTreeMap::new();
        for flush in flushes {
            let next = items.partition_point(|item| item.span.start <= flush);
            let until = items[..next].iter().map(|item| item.span.end).max();
            // All that was still to run may have been lost.
            let end = items.get(next).map_or(last, |item| Some(item.span.start)).filter(|end| Some(*end) > until);
            if let Some(span) = until.zip(end) {
                spans.insert(span, flush);
            }
        }
        let called = |at: usize| profile.operations[at].call.map(|call| call.start);
        let is_its = |at: usize| {
            profile.operations[at].communicator.is_some_and(|at| profile.communicators[at].rank_on(device).is_some())
        };
        for ((start, end), flush) in spans {
            // What was handed over after the last one that had begun before.
            let before = items.iter().filter(|item| item.span.start < start);
            let before = before.filter_map(|item| Some(&profile.kernels[item.kernel?].carried.operations)).flatten();
            let last = before.filter_map(|at| called(*at)).max();
            let is_lost = |at: &usize| is_its(*at) && called(*at).is_some_and(|it| Some(it) > last && it <= flush);
            let lost: Vec<usize> = untold.iter().copied().filter(is_lost).collect();
            // Which of several GPUs lost kernels is known by these alone.
            if lost.is_empty() && !is_alone {
                continue;
            }
            let class = if lost.is_empty() { Class::Kernel } else { Class::Communication };
            let kind = self.kind(kinds, class, UNRECORDED.to_owned());
            let (span, place) = (Span { start, end }, Place { device, ..Place::default() });
            items.push(Item { kind, span, place, unrecorded: Some(self.unrecorded.len()), ..Item::default() });
            self.unrecorded.push(lost);
        }
        items.sort_by_key(|item| item.span);
    }
}

/// The operations of each process whose CUPTI was flushed by force while kernels had not ended, of
/// which no kernel is known to have carried them.
fn untold(profile: &Profile) -> HashMap<usize, Vec<usize>> {
    let mut untold: HashMap<usize, Vec<usize>> = profile.flushes.iter().map(|it| (it.0, Vec::new())).collect();
    if untold.is_empty() {
        return untold;
    }
    let mut is_told = vec![false; profile.operations.len()];
    profile.kernels.iter().flat_map(|it| &it.carried.operations).for_each(|at| is_told[*at] = true);
    for (at, operation) in profile.operations.iter().enumerate().filter(|(at, _)| !is_told[*at]) {
        if let Some(of_process) = untold.get_mut(&operation.process) {
            of_process.push(at);
        }
    }
    untold
}

/// What stands for kernels without a record.
pub(crate) const UNRECORDED: &str = "kernels without a record";

/// Of communicators, by their sizes and whose each of their ranks is, the largest that has all of
/// so many members: whose its ranks are.
pub(crate) fn largest_with_all<'a>(
    communicators: impl DoubleEndedIterator<Item = &'a (i32, BTreeMap<i32, usize>)>,
    count: usize,
) -> Option<&'a BTreeMap<i32, usize>> {
    let has_all = |of: &BTreeMap<i32, usize>| of.values().collect::<BTreeSet<_>>().len() == count;
    // Of several, the last is found.
    Some(&communicators.rev().filter(|(_, of)| has_all(of)).max_by_key(|(size, _)| *size)?.1)
}

/// What an operation has in common on all ranks: its communicator's hash and name, its number, and
/// how many operations with that number the rank had before.
type Shared<'a> = (Option<u64>, &'a str, u64, usize);

/// What kernels waited for, by their indices.
struct Waiting {
    /// How long each waited for other ranks, ns, where that is known.
    waited: FxHashMap<usize, u64>,
    /// The kernel with which one exchanges data, if it is one only.
    partners: FxHashMap<usize, usize>,
    /// Members of communicators are missing.
    is_partial: bool,
}

fn waiting(profile: &Profile) -> Waiting {
    let mut turns: FxHashMap<_, usize> = FxHashMap::default();
    let mut collectives: FxHashMap<Shared<'_>, Vec<usize>> = FxHashMap::default();
    let mut sends: FxHashMap<Shared<'_>, Vec<usize>> = FxHashMap::default();
    for (at, kernel) in profile.kernels.iter().enumerate().filter(|(_, kernel)| kernel.is_nccl()) {
        let has_one_peer = has_one_peer(profile, kernel);
        for (place, operation) in kernel.carried.operations.iter().map(|it| &profile.operations[*it]).enumerate() {
            // An operation has the same number on every rank. A replay of a graph has the number of
            // its capture, so replays are counted. Sends are counted by their two ranks, of which
            // only our own number knows; of several collectives, the first tells.
            let (of, number) = match operation.is_point_to_point() {
                true => (&mut sends, operation.correlation.filter(|_| has_one_peer)),
                false => (&mut collectives, operation.correlation.or(operation.seq).filter(|_| place == 0)),
            };
            let Some(number) = number else { continue };
            let communicator = operation.communicator.map(|at| &profile.communicators[at]);
            let hash = communicator.and_then(|it| it.hash);
            let name = communicator.and_then(|it| it.name.as_deref()).unwrap_or_default();
            let receives = operation.function == "Recv";
            let turn = turns.entry((kernel.process, kernel.place.device, hash, number, receives)).or_default();
            of.entry((hash, name, number, *turn)).or_default().push(at);
            *turn += 1;
        }
    }
    let mut waited = FxHashMap::default();
    // The ranks of each communicator that take part in anything, and how many it has.
    let mut seen: FxHashMap<_, (BTreeSet<(usize, u32)>, i64)> = FxHashMap::default();
    for ((hash, name, ..), kernels) in collectives {
        let kernel = |at: &usize| &profile.kernels[*at];
        let ranks: BTreeSet<(usize, u32)> =
            kernels.iter().map(|at| (kernel(at).process, kernel(at).place.device)).collect();
        let members = profile.operations[kernel(&kernels[0]).carried.operations[0]].communicator;
        let members = members.and_then(|at| profile.communicators[at].ranks);
        let (all, of) = seen.entry((hash, name)).or_default();
        all.extend(&ranks);
        *of = members.map_or(*of, i64::from);
        if ranks.len() < 2 {
            continue;
        }
        let shortest = kernels.iter().map(|at| kernel(at).span.duration()).min().unwrap_or(0);
        waited.extend(kernels.iter().map(|at| (*at, kernel(at).span.duration() - shortest)));
    }
    let partners = partners(profile, sends.values());
    let duration = |at: usize| profile.kernels[at].span.duration();
    waited.extend(partners.iter().map(|(&at, &other)| (at, duration(at).saturating_sub(duration(other)))));
    Waiting { waited, partners, is_partial: seen.into_values().any(|(all, of)| (all.len() as i64) < of) }
}

/// Whether all sends and receives of a kernel are with one other rank, or with its own. In large
/// jobs, most of them are an all-to-all's.
fn has_one_peer(profile: &Profile, kernel: &Kernel) -> bool {
    let mut peers = kernel.carried.operations.iter().filter_map(|at| {
        let operation = &profile.operations[*at];
        let own = operation.communicator.and_then(|at| profile.communicators[at].rank_on(kernel.place.device));
        Some((operation.communicator, operation.peer.filter(|peer| Some(*peer) != own)?))
    });
    let first = peers.next();
    peers.all(|peer| Some(peer) == first)
}

/// Of kernels that exchange data with one other kernel only, which has no other either: that one.
/// `sends` are the kernels of each send and its receive.
fn partners<'a>(profile: &Profile, sends: impl Iterator<Item = &'a Vec<usize>>) -> FxHashMap<usize, usize> {
    // How many sends and receives of a kernel have the other end, and in which kernel, if in one.
    let mut met: FxHashMap<usize, (u32, Option<usize>)> = FxHashMap::default();
    for kernels in sends {
        let [one, other] = kernels[..] else { continue };
        for (at, partner) in [(one, other), (other, one)] {
            let (count, known) = met.entry(at).or_insert((0, Some(partner)));
            *count += 1;
            // A rank may send to itself.
            if *known == Some(at) {
                *known = Some(partner);
            } else if partner != at && *known != Some(partner) {
                *known = None;
            }
        }
    }
    let all = |at: usize| {
        let carried = &profile.kernels[at].carried;
        carried.count.max(carried.operations.len() as u32)
    };
    let partner = |at: usize| met.get(&at).filter(|it| it.0 == all(at)).and_then(|it| it.1).filter(|it| *it != at);
    let pair = |at: usize| partner(at).filter(|other| partner(*other) == Some(at)).map(|other| (at, other));
    met.keys().filter_map(|at| pair(*at)).collect()
}

/// Which way the data of a kernel goes.
fn way(profile: &Profile, kernel: &Kernel) -> Way {
    let has = |function: &str| kernel.carried.operations.iter().any(|it| profile.operations[*it].function == function);
    match (has("Send"), has("Recv")) {
        (true, false) => Way::To,
        (false, _) => Way::From,
        (true, true) => Way::With,
    }
}

/// What a kernel carries, in terms that are the same in every run; `None` if that is not known.
fn carried(profile: &Profile, kernel: &Kernel) -> Option<String> {
    let operations: Vec<&Operation> = kernel.carried.operations.iter().map(|at| &profile.operations[*at]).collect();
    match operations[..] {
        [] => None,
        [one] if kernel.carried.count <= 1 => Some(operation(profile, one)),
        _ => all_to_all(profile, kernel, &operations)
            .or_else(|| Some(counted(kernel, operations.iter().map(|it| operation(profile, it)).collect()))),
    }
}

/// How many of each of these operations a kernel carries, and how many others.
pub(super) fn counted(kernel: &Kernel, operations: Vec<String>) -> String {
    let untold = u64::from(kernel.carried.count).saturating_sub(operations.len() as u64);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    operations.into_iter().for_each(|it| *kinds.entry(it).or_default() += 1);
    let mut parts: Vec<String> =
        kinds.iter().map(|(kind, count)| if *count > 1 { format!("{count} {kind}") } else { kind.clone() }).collect();
    if untold > 0 {
        parts.push(format!("{untold} more"));
    }
    parts.join(" + ")
}

/// A send to each rank and a receive from each, as in a summary: `AlltoAll 400 B f32 on world`,
/// with what a rank sends in all. If the sizes differ, they are left out: they are other ones on
/// each rank and, where experts get tokens, in each step.
fn all_to_all(profile: &Profile, kernel: &Kernel, operations: &[&Operation]) -> Option<String> {
    let first = operations.first().filter(|_| kernel.carried.count as usize <= operations.len())?;
    let communicator = &profile.communicators[first.communicator?];
    let ranks = u32::try_from(communicator.ranks?).ok()?;
    let mut exchange = Exchange::of(communicator.rank, Some(ranks));
    for operation in operations {
        let is_send = operation.function == "Send";
        let is_alike = (operation.communicator, &operation.datatype) == (first.communicator, &first.datatype);
        if !is_alike || !operation.is_point_to_point() {
            return None;
        }
        exchange.add(is_send, operation.peer, operation.bytes);
    }
    let (function, bytes) = match exchange.all_to_all()? {
        AllToAll::Equal(each) => ("AlltoAll", each.checked_mul(u64::from(ranks))),
        AllToAll::Unequal => ("AlltoAllv", None),
    };
    let request = Request { function: function.to_owned(), bytes, ..(*first.request).clone() };
    Some(operation(profile, &Operation { request: request.into(), ..(*first).clone() }))
}

/// An operation in terms that are the same in every run: function, size, datatype, communicator.
/// Hashes, numbers and what NCCL chose differ between runs.
pub(crate) fn operation(profile: &Profile, operation: &Operation) -> String {
    let mut words = vec![operation.function.clone()];
    words.extend(operation.bytes.map(names::size));
    words.extend(operation.datatype.as_ref().map(|name| datatype(name)));
    let communicator = operation.communicator.map(|at| &profile.communicators[at]);
    if let Some(communicator) = communicator {
        match (&communicator.name, communicator.ranks) {
            (Some(name), _) => words.push(format!("on {name}")),
            (None, Some(ranks)) => words.push(format!("on {ranks} ranks")),
            (None, None) => {}
        }
    }
    words.join(" ")
}

/// `ncclFloat32` is `f32`, `ncclUint8` is `u8`; other words stay as the tool has them.
fn datatype(name: &str) -> String {
    let plain = name.trim_start_matches("nccl").to_ascii_lowercase();
    let short = [("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")];
    let found = short.iter().find_map(|(long, short)| {
        let rest = plain.strip_prefix(long)?;
        rest.bytes().next().is_some_and(|first| first.is_ascii_digit()).then(|| format!("{short}{rest}"))
    });
    found.unwrap_or(plain)
}
