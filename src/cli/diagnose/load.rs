//! Reads the files of a job into a [`Job`]: what ran on each rank's GPU, by step, and which of it
//! the ranks met in. Of long recordings the last steps are kept, and of large ones only the ends
//! are read.

mod agree;
mod links;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::hash::Hasher as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHasher};

pub(super) use self::links::SLOW;
use super::graph::{Graph, Item};
use super::job::{Job, Numbering, RankFacts, Taken, Use, often};
use crate::cli::LISTED;
use crate::cli::compare::ranks::{Class, Kind, Rank, Ranks, largest_with_all};
use crate::cli::compare::steps::{self, Source};
use crate::cli::merge::abreast;
use crate::cli::progress::Stage;
use crate::cli::reason::Reason;
use crate::cli::survey::{self, LARGE, Looking, Survey, attempts, size_of};
use crate::import::{self, Communicator, CpuWait, Kernel, Operation, Profile, Span, Tool, Wanted};
use crate::model::time::{FileNs, UtcNs};
use crate::trace::names;
use crate::trace::reader::{Ends, Extent, HEAD};
use crate::trace::words::remark;

/// How many items are kept; each takes some 150 bytes.
const ITEMS: usize = 6_000_000;
/// How many steps of a rank are kept at least, unless they have more than so many times its share
/// of the items; and how many in any case.
const STEPS: usize = 30;
const TIMES: usize = 10;
const FEWEST: usize = 8;
/// Files of one host are on one clock if their offsets from the wall clock differ by less than
/// this, ns: the wall clock may be set, and hosts with one name were not booted at the same time.
const SAME_BOOT_NS: u64 = 1_000_000;
/// How much of the end of a file is read at most, bytes: in memory it takes six times as much.
const END: u64 = 32 << 20;

/// Which steps to look at, and what a step is.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    /// What each step begins with, if the user says it.
    pub(super) step: Option<String>,
    /// Only these, counted from 0.
    pub(super) steps: Option<Range<usize>>,
    /// Everything is read, however much it is.
    pub(super) whole: bool,
}

/// What is read of each file, and kept of each rank.
#[derive(Clone, Copy)]
struct Amount {
    /// The ends, with so many bytes of the last part at least.
    end: Option<u64>,
    /// How many items.
    items: usize,
    /// What began before.
    until: Option<UtcNs>,
}

/// What the files give so far.
#[derive(Default)]
struct Loading {
    ranks: Vec<RankFacts>,
    items: Vec<Vec<Item>>,
    /// The operations that items share: the operation, the rank, the item.
    joined: Vec<(u64, u32, u32)>,
    kinds: Vec<Kind>,
    known: FxHashMap<Kind, u32>,
    communicators: FxHashMap<u32, String>,
    sizes: FxHashMap<u32, Option<usize>>,
    /// What the network carried: the communicator and the peer there; the link is the rank, the
    /// item its place there.
    uses: Vec<(u64, i32, Use)>,
    sends: Vec<Send>,
    /// The rank, the item's place there, and what its GPU took that it had received.
    taken: Vec<(usize, usize, Taken)>,
    /// The rank, the item's place there, the sender by communicator and rank there, and for how
    /// long the GPU did not take what had arrived, ns.
    untaken: Vec<(usize, usize, (u64, i32), f64)>,
    /// The ranks of each communicator, by hash: how many, and which of the job's ranks they are.
    members: BTreeMap<u64, (i32, BTreeMap<i32, usize>)>,
    sources: Vec<Option<Source>>,
    gaps: Option<String>,
    no_kernels: Option<String>,
    /// Its items are kernels, not what the host handed over.
    has_kernels: bool,
    /// How many ranks of a communicator, by hash, are in files that were left out for lack of
    /// kernels.
    without_kernels: BTreeMap<u64, usize>,
    /// Only the ends of files were read.
    is_of_ends: bool,
}

/// A send: the communicator and the peer there, the rank, and the item's place there.
#[derive(Clone, Copy, Debug)]
struct Send {
    comm: u64,
    peer: i32,
    rank: usize,
    item: usize,
    /// All that the item sent and received is of one size.
    is_even: bool,
}

/// An operation that an item carried: its number, and its communicator by hash.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    shared: u64,
    item: usize,
    comm: u64,
}

/// Reads the files of a job side by side, and hands over what a first pass over each gives, too. A
/// file that cannot be read is named in the notes; an error if none can. Of a job whose ranks were
/// restarted, only the last attempt counts.
pub(super) fn load(files: &[PathBuf], wish: &Wish) -> (Survey, Result<Job, Reason>) {
    let (all, count) = (size_of(files), files.len().max(1));
    let is_whole = all <= LARGE || wish.whole || wish.steps.is_some();
    let end = (!is_whole).then(|| (LARGE / count as u64).min(END));
    let mut amount = Amount { end, items: ITEMS / count, until: None };
    loop {
        let (survey, job) = read(files, wish, amount);
        // Some recordings went on for longer, such as those whose files are not full.
        amount = match (&job, amount) {
            (Ok((_, until @ Some(_))), Amount { until: None, .. }) => Amount { until: *until, ..amount },
            (Ok((_, Some(_))), Amount { end: Some(_), .. }) => Amount { end: None, ..amount },
            _ => return (survey, job.map(|it| it.0)),
        };
    }
}

/// Reads so much of the files. If the ranks have too few of these steps in common, returns also
/// until when all of them were recorded.
fn read(files: &[PathBuf], wish: &Wish, amount: Amount) -> (Survey, Result<(Job, Option<UtcNs>), Reason>) {
    let stage = match amount.end {
        None => Stage::begin(format!("reading {} files", files.len()), size_of(files)),
        Some(_) => Stage::of_ends("reading", files.len()),
    };
    let (mut survey, mut all, mut loaded, mut faults) = (Survey::default(), Vec::new(), Vec::new(), Vec::new());
    let read = |path: &PathBuf, threads| {
        let mut looking = Looking::default();
        let ends = amount.end.and_then(|least| Ends::of(&mut File::open(path).ok()?, HEAD, least).ok()?);
        let read = import::open_as(path, threads, (Wanted::Work, ends), looking.beside());
        looking.only_ends(ends);
        (looking.done(), read.map(|profile| Loading::of(path, &profile, wish, amount)))
    };
    abreast::look(files, read, |path, (looked, read)| {
        all.push((path, looked, read));
        stage.advance(size_of(std::slice::from_ref(path)));
    });
    let earlier = attempts::earlier(&all.iter().map(|(_, looked, _)| looked).collect::<Vec<_>>());
    for (at, (path, looked, read)) in all.into_iter().enumerate() {
        if earlier.contains(&at) {
            continue;
        }
        // What cannot be read is named below.
        let _ = survey.add(path, looked, Ok(Extent::default()));
        match read {
            Ok(of_file) => loaded.push((path, of_file)),
            Err(fault) => faults.push(Reason::file(path)(fault)),
        }
    }
    survey.sort_unfinished();
    let mut loading = Loading { is_of_ends: !survey.ends.is_empty(), ..Loading::default() };
    let has_kernels = loaded.iter().any(|(_, of_file)| of_file.has_kernels);
    // A few that do something else, such as evaluate, need not keep the others from being compared.
    let has_steps = |of_file: &Loading| of_file.ranks.iter().any(|rank| rank.steps > 0);
    let without_steps = loaded.iter().filter(|(_, of_file)| of_file.has_kernels && !has_steps(of_file)).count();
    let are_few = 4 * without_steps <= loaded.len();
    for (path, of_file) in loaded {
        if of_file.has_kernels && are_few && !has_steps(&of_file) {
            faults.push(Reason::file(path)("it has no steps, but the files of other ranks have"));
            continue;
        }
        if of_file.has_kernels || !has_kernels {
            loading.add(of_file);
            continue;
        }
        // As when a process was killed before CUPTI returned its records.
        faults.push(Reason::file(path)("it has no kernels, but the files of other ranks have"));
        for (hash, (_, members)) in of_file.members {
            *loading.without_kernels.entry(hash).or_default() += members.len();
        }
    }
    let mut job = loading.finish(files.len() - earlier.len(), faults, wish);
    if let (Ok((job, _)), false) = (&mut job, survey.ends.is_empty()) {
        job.notes.push(format!(
            "Only the ends of the files were read, {} of {}; with --whole everything is",
            names::size(survey.bytes_read()),
            names::size(size_of(files))
        ));
    }
    if let (Ok((job, _)), Some(left_out)) = (&mut job, attempts::left_out(files, &earlier)) {
        job.notes.insert(0, left_out);
    }
    (survey, job)
}

impl Loading {
    fn of(path: &Path, profile: &Profile, wish: &Wish, amount: Amount) -> Loading {
        let ranks = Ranks::of(profile, !profile.kernels.is_empty());
        let has_kernels = !profile.kernels.is_empty();
        let reason = profile.notes.iter().filter(|_| !has_kernels).find_map(|note| note.split_once(remark::NO_KERNELS));
        // What else was said about it, such as when it was, comes after that.
        let no_kernels = reason.and_then(|(_, why)| why.split("; ").next()).map(str::to_owned);
        let mut loading = Loading { gaps: profile.gaps.clone(), no_kernels, has_kernels, ..Loading::default() };
        for rank in &ranks.all {
            loading.rank(path, profile, &ranks, rank, wish, Amount { items: amount.items / ranks.all.len(), ..amount });
        }
        // In a merged trace, ranks without kernels are beside others.
        let is_drawn = |process: usize| !has_kernels || ranks.all.iter().any(|rank| rank.process == process);
        for communicator in profile.communicators.iter().filter(|it| it.rank.is_some() && !is_drawn(it.process)) {
            let hash = hash_of(communicator.hash, communicator.name.as_deref());
            *loading.without_kernels.entry(hash).or_default() += 1;
        }
        loading
    }

    /// Adds what a further file gives.
    fn add(&mut self, mut of_file: Loading) {
        let before = self.ranks.len();
        let kinds: Vec<u32> = of_file.kinds.iter().map(|kind| self.kind(kind)).collect();
        let kind = |own: u32| kinds[own as usize];
        of_file.items.iter_mut().flatten().for_each(|item| item.kind = kind(item.kind));
        self.ranks.append(&mut of_file.ranks);
        self.items.append(&mut of_file.items);
        self.sources.append(&mut of_file.sources);
        self.joined.extend(of_file.joined.into_iter().map(|(what, rank, item)| (what, before as u32 + rank, item)));
        let sends = of_file.sends.into_iter();
        self.sends.extend(sends.map(|it| Send { rank: before + it.rank, ..it }));
        self.taken.extend(of_file.taken.into_iter().map(|(rank, item, it)| (before + rank, item, it)));
        self.untaken.extend(of_file.untaken.into_iter().map(|(rank, item, by, ns)| (before + rank, item, by, ns)));
        let uses = of_file.uses.into_iter();
        self.uses.extend(uses.map(|(comm, peer, it)| (comm, peer, Use { link: before + it.link, ..it })));
        for (own, name) in of_file.communicators {
            self.communicators.entry(kind(own)).or_insert(name);
        }
        for (own, size) in of_file.sizes {
            self.size(kind(own), size);
        }
        for (hash, (ranks, members)) in of_file.members {
            let known = self.members.entry(hash).or_insert((ranks, BTreeMap::new()));
            known.1.extend(members.into_iter().map(|(own, rank)| (own, before + rank)));
        }
        for (hash, count) in of_file.without_kernels {
            *self.without_kernels.entry(hash).or_default() += count;
        }
        self.gaps = self.gaps.take().or(of_file.gaps);
        self.no_kernels = self.no_kernels.take().or(of_file.no_kernels);
    }

    /// How many ranks meet in an operation of a kind.
    fn size(&mut self, kind: u32, size: Option<usize>) {
        let known = self.sizes.entry(kind).or_insert(size);
        *known = known.filter(|known| size == Some(*known));
    }

    fn rank(&mut self, path: &Path, profile: &Profile, ranks: &Ranks, rank: &Rank, wish: &Wish, amount: Amount) {
        let found = steps::of_one(profile, ranks, rank, wish.step.as_deref());
        let (source, edges) = found.map_or((None, Vec::new()), |found| (Some(found.source), found.edges));
        let edges: Vec<usize> =
            edges.iter().map(|edge| rank.items.partition_point(|item| item.span.start < *edge)).collect();
        let count = edges.len().saturating_sub(1);
        let until = amount.until.zip(profile.clock.to_utc).map(|(until, to_utc)| until.in_file(to_utc));
        // Kernels are written later than their transfers: at the begin of a part they have none.
        let transfers = profile.transfers.iter().filter(|it| amount.end.is_some() && it.process == rank.process);
        let from = transfers.map(|it| it.span.start).min();
        let start = |edge: &usize| rank.items[*edge].span.start;
        let is_before = |edge: &usize| from.is_some_and(|from| start(edge) < from);
        let is_early = |edge: &usize| is_before(edge) || until.is_none_or(|until| start(edge) <= until);
        // What is kept of it: as many of the last steps as there is room for.
        let kept = match &wish.steps {
            Some(steps) => steps.start.min(count)..steps.end.min(count),
            None => {
                let known = edges.partition_point(is_before);
                let kept = newest(&edges[known..edges.partition_point(is_early)], amount.items);
                known.min(count) + kept.start..known.min(count) + kept.end
            }
        };
        let places = match count {
            0 => rank.items.len() - rank.items.len().min(amount.items)..rank.items.len(),
            // What comes before the first step may be in it when the ranks agree on what begins
            // one. The last step ends when the next one begins.
            _ => {
                let begin = if wish.steps.is_some() || kept.start > 0 { edges[kept.start] } else { 0 };
                begin..rank.items.len().min(edges[kept.end] + 1)
            }
        };
        let number = self.ranks.len();
        let process = profile.processes.get(rank.process);
        let host = process.and_then(|it| survey::host(&it.name).map(str::to_owned)).or(profile.host.clone());
        let gpu = rank.label.split_once(", ").map(|(_, gpu)| gpu.to_owned());
        let label = match (process, &gpu) {
            (Some(it), Some(gpu)) if it.rank.is_none() => format!("process {}, {gpu}", it.pid),
            (Some(it), None) if it.rank.is_none() => format!("process {}", it.pid),
            _ => rank.label.clone(),
        };
        let carriers = self.items_of(profile, ranks, rank, &places);
        let mut own_ranks = FxHashMap::default();
        for communicator in &profile.communicators {
            if let (Some(ranks), Some(own)) = (communicator.ranks, rank.in_communicator(communicator)) {
                let hash = hash_of(communicator.hash, communicator.name.as_deref());
                let members = self.members.entry(hash).or_insert((ranks, BTreeMap::new()));
                members.1.insert(own, number);
                own_ranks.insert(hash, own);
            }
        }
        self.transfers(profile, rank.process, number, &own_ranks, &carriers);
        let edges = edges.get(kept.start..=kept.end).unwrap_or_default();
        let last = rank.items[places.clone()].last().zip(profile.clock.to_utc);
        self.ranks.push(RankFacts {
            label,
            number: rank.number,
            pid: process.map_or(0, |it| it.pid),
            gpu,
            host,
            file: path.to_owned(),
            begin: profile.begin.or(profile.extent().map(|extent| extent.start)).unwrap_or_default(),
            is_ours: profile.source.tool == Tool::Ncclscope,
            edges: edges.iter().map(|edge| edge - places.start).collect(),
            first: kept.start,
            steps: count,
            last: last.map(|(item, to_utc)| item.span.start.to_utc(to_utc)),
            to_utc: profile.clock.to_utc,
            created: created(profile, rank.process),
            cpu_waits: longest(profile.cpu_waits.iter().filter(|it| it.process == rank.process)),
            unrecorded_ns: rank.items.iter().filter(|it| it.unrecorded.is_some()).map(|it| it.span.duration()).sum(),
        });
        self.sources.push(source);
    }

    /// Takes the items of a rank at these places. Returns what they carried.
    fn items_of(&mut self, profile: &Profile, ranks: &Ranks, rank: &Rank, places: &Range<usize>) -> Vec<Carrier> {
        let rank_number = self.items.len() as u32;
        let mut streams: HashMap<(u32, u32), u32> = HashMap::new();
        // How often each operation has run before, where that is not known: replays of a graph
        // share its number.
        let mut turns: FxHashMap<u64, u32> = FxHashMap::default();
        let mut carriers = Vec::new();
        let mut items = Vec::with_capacity(places.len());
        for (at, item) in rank.items.iter().enumerate().take(places.end) {
            let is_kept = places.contains(&at);
            let kernel = item.kernel.map(|kernel| &profile.kernels[kernel]);
            let recorded = kernel.map_or(&[][..], |it| &it.carried.operations);
            let is_even = recorded.windows(2).all(|two| {
                let [one, other] = [two[0], two[1]].map(|at| profile.operations[at].bytes);
                one == other && one.is_some()
            });
            for operation in item.unrecorded.map_or(recorded, |at| &ranks.unrecorded[at]) {
                let operation = &profile.operations[*operation];
                let Some(shared) = operation.correlation.or(operation.seq) else { continue };
                let communicator = operation.communicator.map(|at| &profile.communicators[at]);
                let comm = communicator.map_or(0, |it| hash_of(it.hash, it.name.as_deref()));
                let turn = turns.entry(mixed(&(comm, shared, operation.function == "Recv"))).or_default();
                *turn += 1;
                let turn = kernel.and_then(|it| it.carried.replay).unwrap_or(*turn);
                let is_send = operation.function == "Send" && item.unrecorded.is_none();
                if let Some(peer) = operation.peer.filter(|_| is_kept && is_send) {
                    self.sends.push(Send { comm, peer, rank: rank_number as usize, item: items.len(), is_even });
                }
                if is_kept {
                    self.joined.push((mixed(&(comm, shared, turn)), rank_number, items.len() as u32));
                    carriers.push(Carrier { shared, item: items.len(), comm });
                }
            }
            if !is_kept {
                continue;
            }
            let known = streams.len() as u32;
            let stream = *streams.entry((item.place.context, item.place.stream)).or_insert(known);
            let kind = &ranks.kinds[item.kind];
            let number = self.kind(kind);
            let first = kernel.and_then(|it| profile.operations[*it.carried.operations.first()?].communicator);
            if let Some(communicator) = first.map(|at| &profile.communicators[at]) {
                self.communicators.entry(number).or_insert_with(|| name_of(communicator));
            }
            let is_all_to_all = kind.name.starts_with("AlltoAll");
            for operation in kernel.iter().flat_map(|it| &it.carried.operations) {
                let operation = &profile.operations[*operation];
                let size = match operation.function.as_str() {
                    "Send" | "Recv" if !is_all_to_all => Some(2),
                    _ => operation.communicator.and_then(|at| usize::try_from(profile.communicators[at].ranks?).ok()),
                };
                self.size(number, size);
            }
            items.push(Item {
                stream,
                start: item.span.start.0,
                end: item.span.end.0.max(item.span.start.0),
                launch: item.correlation,
                kind: number,
                is_communication: kind.class == Class::Communication,
                only_gives: kernel.is_some_and(|kernel| only_gives(profile, kernel)),
                sent: 0,
            });
        }
        self.items.push(items);
        carriers.sort_unstable_by_key(|it| (it.shared, it.item));
        carriers
    }

    fn kind(&mut self, kind: &Kind) -> u32 {
        if let Some(known) = self.known.get(kind) {
            return *known;
        }
        self.kinds.push(kind.clone());
        self.known.insert(kind.clone(), self.kinds.len() as u32 - 1);
        self.kinds.len() as u32 - 1
    }

    /// Gives the ranks the numbers of a communicator that has them all, if launchers gave none, or
    /// one to several: that of the process from which these inherited it.
    ///
    /// # Errors
    ///
    /// If the files are of two runs.
    fn number(&mut self) -> Result<(), Reason> {
        let mut by_number: BTreeMap<i32, usize> = BTreeMap::new();
        let mut twice = BTreeSet::new();
        for (at, rank) in self.ranks.iter().enumerate() {
            let Some(number) = rank.number else { continue };
            let Some(other) = by_number.insert(number, at) else { continue };
            let has_both = |of: &BTreeMap<i32, usize>| [at, other].iter().all(|rank| of.values().any(|it| it == rank));
            if !self.members.values().any(|(_, of)| has_both(of)) {
                return Err(Reason::Refused(format!(
                    "rank {number} is in {} and in {}: give the files of one run, or of one attempt if ranks were \
                     restarted, and no merged file beside them",
                    self.ranks[other].file.display(),
                    rank.file.display()
                )));
            }
            twice.insert(number);
        }
        if twice.is_empty() && self.ranks.iter().all(|rank| rank.number.is_some()) {
            return Ok(());
        }
        let all = largest_with_all(self.members.values(), self.ranks.len());
        for (own, at) in all.into_iter().flatten() {
            (self.ranks[*at].label, self.ranks[*at].number) = (format!("rank {own}"), Some(*own));
        }
        if all.is_none() {
            let inherited = |rank: &RankFacts| rank.number.is_some_and(|number| twice.contains(&number));
            for rank in self.ranks.iter_mut().filter(|rank| inherited(rank)) {
                (rank.label, rank.number) = (format!("process {}", rank.pid), None);
            }
        }
        Ok(())
    }

    /// The job of so many files, some of which could not be read; and what [`read`] returns with
    /// it.
    fn finish(mut self, count: usize, mut faults: Vec<Reason>, wish: &Wish) -> Result<(Job, Option<UtcNs>), Reason> {
        if faults.len() == count {
            return Err(if count == 1 { faults.remove(0) } else { Reason::Several(faults) });
        }
        self.number()?;
        if let Some(name) = wish.step.as_ref().filter(|_| self.ranks.iter().any(|rank| rank.steps == 0)) {
            let often = often(&self.kinds, self.items.iter().flatten());
            let what = format!("--step: there is no `{name}` that runs more than once on each rank{often}");
            return Err(Reason::Refused(what));
        }
        let until = self.agree();
        let mut notes: Vec<String> = faults.iter().take(LISTED).map(|fault| format!("Left out: {fault}")).collect();
        let more = faults.len().saturating_sub(LISTED);
        notes.extend((more > 0).then(|| format!("Left out: {more} more files")));
        let (steps, numbering) = self.steps(wish, &mut notes)?;
        let clocks = clocks(&self.ranks);
        let graph = Graph::new(self.items, self.joined, clocks);
        let rank_of = |comm: &u64, peer: &i32| self.members.get(comm)?.1.get(peer).copied();
        let (links, uses) = links::all(&graph, &self.ranks, rank_of, &self.uses, &self.sends);
        let mut untaken: FxHashMap<(usize, usize), f64> = FxHashMap::default();
        for (rank, item, by, ns) in &self.untaken {
            if let Some(from) = rank_of(&by.0, &by.1) {
                *untaken.entry((graph.rank(*rank).start + item, from)).or_default() += ns;
            }
        }
        let without = |hash: &u64| self.without_kernels.get(hash).copied().unwrap_or(0);
        // The numbers in a communicator are those in the job where that is so of all that are here.
        let absent = |ranks: i32, known: &BTreeMap<i32, usize>| {
            let is_of_job = known.iter().all(|(own, rank)| self.ranks[*rank].number == Some(*own));
            let absent = (0..ranks).filter(|own| is_of_job && !known.contains_key(own));
            absent.filter_map(|own| u32::try_from(own).ok()).collect::<Vec<_>>()
        };
        let of = |(hash, (ranks, known)): (&u64, &(i32, BTreeMap<i32, usize>))| {
            let without = without(hash);
            let missing = (*ranks as usize).saturating_sub(known.len() + without);
            (missing, without, if without == 0 { absent(*ranks, known) } else { Vec::new() })
        };
        let (missing, without_kernels, absent) =
            self.members.iter().map(of).max_by_key(|of| of.0 + of.1).unwrap_or_default();
        let mut job = Job {
            gaps: self.gaps,
            no_kernels: self.no_kernels,
            ranks: self.ranks,
            kinds: self.kinds,
            communicators: self.communicators,
            sizes: self.sizes,
            links,
            uses,
            taken: self.taken.into_iter().map(|(rank, item, it)| (graph.rank(rank).start + item, it)).collect(),
            untaken,
            steps,
            numbering,
            since: None,
            missing,
            without_kernels,
            absent,
            shares_gpus: false,
            notes,
            graph,
        };
        if wish.steps.is_some() {
            return Ok((job, None));
        }
        job.look_at_slow_steps();
        Ok((job, until))
    }

    /// The steps that are looked at, and how they are numbered.
    fn steps(&mut self, wish: &Wish, notes: &mut Vec<String>) -> Result<(Range<usize>, Numbering), Reason> {
        let has_all = self.ranks.iter().all(|rank| rank.edges.len() > 1);
        let kept = self.ranks.iter().map(|rank| rank.edges.len().saturating_sub(1)).min().unwrap_or(0);
        let counts: BTreeSet<usize> = self.ranks.iter().map(|rank| rank.steps).collect();
        let (fewest, most) = (counts.first().copied().unwrap_or(0), counts.last().copied().unwrap_or(0));
        if let Some(steps) = wish.steps.as_ref().filter(|steps| most > 0 && most <= steps.start) {
            let why = format!("these files have {most} steps, so there are no steps {} to {}", steps.start, steps.end);
            return Err(Reason::Refused(why));
        }
        if has_all && fewest < most {
            notes.push(format!("Ranks have between {fewest} and {most} steps; those that all have are compared"));
        }
        let firsts: BTreeSet<usize> = self.ranks.iter().map(|rank| rank.first).collect();
        let first = firsts.last().copied().unwrap_or(0);
        if has_all && firsts.len() > 1 {
            notes
                .push("No step is known to be in the files of all ranks, so the last ones of each are compared".into());
        }
        // A GPU warms up, and connections are made.
        let warm = match wish.steps.is_some() || first > 0 {
            true => 0,
            // The first one may have begun before what was read.
            false if self.is_of_ends => 1.min(kept),
            false => (kept / 10).clamp(1, 20).min(kept),
        };
        let source = self.sources.first_mut().and_then(Option::take).filter(|_| has_all);
        let numbering = Numbering { source, first, all: most, is_of_ends: self.is_of_ends };
        Ok((if has_all { warm..kept } else { 0..0 }, numbering))
    }
}

/// The clock of each rank, as the first rank that has it: that of a host, as long as that runs.
fn clocks(ranks: &[RankFacts]) -> Vec<usize> {
    let mut known: HashMap<&str, Vec<(usize, i64)>> = HashMap::new();
    let mut clocks: Vec<usize> = (0..ranks.len()).collect();
    for (clock, facts) in clocks.iter_mut().zip(ranks) {
        let (Some(host), Some(to_utc)) = (&facts.host, facts.to_utc) else { continue };
        let of_host = known.entry(host).or_default();
        match of_host.iter().find(|(_, ns)| ns.abs_diff(to_utc.ns) < SAME_BOOT_NS) {
            Some((same, _)) => *clock = *same,
            None => of_host.push((*clock, to_utc.ns)),
        }
    }
    clocks
}

/// Of steps with these edges, as many of the last ones as there is room for.
fn newest(edges: &[usize], room: usize) -> Range<usize> {
    let count = edges.len().saturating_sub(1);
    let fit = |room: usize| edges.iter().rev().take_while(|edge| edges[count] - **edge <= room).count().max(1) - 1;
    let kept = fit(room).max(fit(TIMES * room).min(STEPS)).max(FEWEST.min(count));
    count - kept..count
}

/// When communicators of a process had been created, and their names.
fn created(profile: &Profile, process: usize) -> Vec<(FileNs, String)> {
    let of = |it: &Communicator| {
        let hash = || it.hash.map(|hash| format!("{hash:x}"));
        Some((it.created?, it.name.clone().or_else(hash)?))
    };
    profile.communicators.iter().filter(|it| it.process == process).filter_map(of).collect()
}

/// At each moment, of the threads of a process the one that waits most.
fn longest<'a>(waits: impl Iterator<Item = &'a CpuWait>) -> Vec<CpuWait> {
    let waits: Vec<&CpuWait> = waits.collect();
    let mut edges: Vec<FileNs> = waits.iter().flat_map(|it| [it.span.start, it.span.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let (mut begin, mut now, mut all) = (0, Vec::<&CpuWait>::new(), Vec::new());
    for edge in edges.windows(2) {
        let span = Span { start: edge[0], end: edge[1] };
        let begun = waits[begin..].iter().take_while(|it| it.span.start <= span.start);
        begin += begun.inspect(|it| now.push(it)).count();
        now.retain(|it| it.span.end >= span.end);
        all.extend(now.iter().max_by_key(|it| it.percent).map(|it| CpuWait { span, ..**it }));
    }
    all
}

/// A communicator, as it is called in the names of its operations.
fn name_of(communicator: &Communicator) -> String {
    match (&communicator.name, communicator.ranks) {
        (Some(name), _) => name.to_string(),
        (None, Some(ranks)) => format!("{ranks} ranks"),
        (None, None) => "unknown".to_owned(),
    }
}

/// Whether everything that a kernel carries goes out from its rank.
fn only_gives(profile: &Profile, kernel: &Kernel) -> bool {
    let operations = &kernel.carried.operations;
    let gives = |operation: &Operation| {
        let rank = operation.communicator.and_then(|at| profile.communicators[at].rank);
        let is_root = operation.root.is_some() && operation.root == rank;
        match operation.function.as_str() {
            "Send" => true,
            "Broadcast" | "Scatter" => is_root,
            "Reduce" | "Gather" => operation.root.is_some() && !is_root,
            _ => false,
        }
    };
    !operations.is_empty() && operations.iter().all(|operation| gives(&profile.operations[*operation]))
}

/// A communicator, in terms that are the same on all ranks.
fn hash_of(hash: Option<u64>, name: Option<&str>) -> u64 {
    hash.unwrap_or_else(|| mixed(&name))
}

fn mixed(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes with these numbers from a launcher, of which these are in one communicator, in
    /// order.
    fn labels(numbers: &[Option<i32>], members: &[usize]) -> Result<Vec<String>, String> {
        let rank = |(at, number): (usize, &Option<i32>)| RankFacts {
            label: number.map_or_else(|| format!("process {}", 70 + at), |number| format!("rank {number}")),
            number: *number,
            pid: 70 + at as i64,
            file: format!("file {at}").into(),
            ..RankFacts::default()
        };
        let members = (0..).zip(members.iter().copied()).collect();
        let mut loading = Loading {
            ranks: numbers.iter().enumerate().map(rank).collect(),
            members: [(7, (numbers.len() as i32, members))].into(),
            ..Loading::default()
        };
        loading.number().map_err(|reason| reason.to_string())?;
        Ok(loading.ranks.into_iter().map(|rank| rank.label).collect())
    }

    #[test]
    fn of_long_recordings_the_last_steps_are_kept() {
        let of =
            |steps: usize, items: usize, room| newest(&(0..=steps).map(|it| 5 + it * items).collect::<Vec<_>>(), room);
        assert_eq!(of(1_000, 10, 10_000), 0..1_000);
        assert_eq!(of(1_000, 10, 2_000), 800..1_000);
        assert_eq!(of(1_000, 10, 100), 970..1_000, "some more than there is room for");
        assert_eq!(of(1_000, 100, 100), 990..1_000, "but not many times as much");
        assert_eq!(of(1_000, 1_000, 100), 992..1_000, "unless nothing could be said");
        assert_eq!(of(3, 1_000, 100), 0..3);
        assert_eq!((newest(&[], 100), newest(&[7], 100)), (0..0, 0..0));
    }

    #[test]
    fn of_several_threads_the_one_counts_that_waits_most() {
        let wait = |start, end, percent| CpuWait { process: 0, span: Span::of(start, end), percent };
        let all = [wait(0, 100, 30), wait(20, 40, 70), wait(30, 60, 10), wait(90, 120, 50), wait(150, 160, 5)];
        let expected = [
            wait(0, 20, 30),
            wait(20, 30, 70),
            wait(30, 40, 70),
            wait(40, 60, 30),
            wait(60, 90, 30),
            wait(90, 100, 50),
            wait(100, 120, 50),
            wait(150, 160, 5),
        ];
        assert_eq!(longest(all.iter()), expected);
        assert_eq!(longest([].iter()), []);
    }

    #[test]
    fn the_largest_communicator_numbers_the_ranks() {
        let number = |sizes: [i32; 2]| {
            let of_two = |own: [i32; 2]| own.into_iter().zip(0..).collect::<BTreeMap<i32, usize>>();
            let [first, second] = sizes;
            let mut loading = Loading {
                ranks: vec![RankFacts::default(), RankFacts::default()],
                members: [(1, (first, of_two([1, 0]))), (2, (second, of_two([4, 5])))].into(),
                ..Loading::default()
            };
            loading.number().unwrap();
            loading.ranks.into_iter().map(|rank| rank.label).collect::<Vec<_>>()
        };
        assert_eq!(number([2, 8]), ["rank 4", "rank 5"]);
        assert_eq!(number([8, 2]), ["rank 1", "rank 0"]);
        assert_eq!(number([8, 8]), ["rank 1", "rank 0"], "the first of several");
    }

    #[test]
    fn ranks_are_told_apart_whatever_the_launcher_says() {
        let of = |numbers: &[Option<i32>], members: &[usize]| labels(numbers, members).unwrap();
        assert_eq!(of(&[Some(4), Some(6)], &[0, 1]), ["rank 4", "rank 6"]);
        assert_eq!(of(&[None, None], &[1, 0]), ["rank 1", "rank 0"]);
        assert_eq!(of(&[None, None], &[0]), ["process 70", "process 71"]);
        assert_eq!(of(&[Some(0), Some(0)], &[1, 0]), ["rank 1", "rank 0"], "one inherited the other's");
        assert_eq!(of(&[Some(0), Some(0), Some(1)], &[0, 1]), ["process 70", "process 71", "rank 1"]);
        let refused = labels(&[Some(0), Some(0)], &[0]).unwrap_err();
        assert!(refused.starts_with("rank 0 is in file 0 and in file 1: give the files of one run"), "{refused}");
    }
}
