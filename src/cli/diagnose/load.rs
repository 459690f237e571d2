//! Reads the files of a job into a [`Job`]: what ran on each rank's GPU, by step, and which of it
//! the ranks met in. Of long recordings the first steps are kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHasher};

use super::graph::{Graph, Item};
use crate::cli::compare::ranks::{Class, Kind, Rank, Ranks};
use crate::cli::compare::steps::{self, Repeat, Source};
use crate::cli::merge::abreast;
use crate::cli::progress::Stage;
use crate::cli::reason::Reason;
use crate::cli::survey::{Looking, Survey};
use crate::import::{self, Communicator, Kernel, Operation, Profile, Span, Tool, Wanted};
use crate::model::time::FileNs;
use crate::trace::reader::{Extent, Packet};
use crate::trace::words::{remark, wait};

/// How many items are kept at most; each takes some 150 bytes.
const ITEMS: usize = 6_000_000;
/// How many steps of a rank are kept at least.
const STEPS: usize = 30;
/// Of how many things that steps may begin with it is tried whether the ranks agree on them.
const CANDIDATES: usize = 8;
/// Steps of two ranks are as long if they differ by at most this part.
const ABOUT: i64 = 4;
/// How many times longer than others a slow link, or a slow channel, takes.
pub(super) const SLOW: f64 = 1.7;

/// Which steps to look at, and what a step is.
#[derive(Clone, Debug, Default)]
pub(super) struct Wish {
    /// What each step begins with, if the user says it.
    pub(super) step: Option<String>,
    /// Only these, counted from 0.
    pub(super) steps: Option<Range<usize>>,
}

/// A rank of the job.
#[derive(Debug, Default)]
pub(super) struct RankFacts {
    /// `rank 3`.
    pub(super) label: String,
    pub(super) number: Option<i32>,
    pub(super) host: Option<String>,
    pub(super) file: PathBuf,
    /// The first time in its file.
    pub(super) begin: FileNs,
    /// It is one of our traces.
    pub(super) is_ours: bool,
    /// For each step, its first item; then the first one after the last step.
    pub(super) edges: Vec<usize>,
    /// How many steps the file has.
    pub(super) steps: usize,
}

/// The network in one direction between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    /// The rank that sends.
    pub(super) from: usize,
    /// The rank that receives, if its file is here; and its number in the communicator.
    pub(super) to: Option<usize>,
    pub(super) peer: i32,
}

/// What an item sent over a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) link: usize,
    pub(super) item: usize,
    /// For how long the network had any of it, ns.
    pub(super) busy: f64,
    /// For how long it had each transfer, in the middle, on the slowest channel, ns.
    pub(super) each: f64,
    /// That channel, if it takes much longer than the others between these ranks.
    pub(super) channel: Option<u32>,
}

/// What an item's GPU took from its buffers after it had arrived over links.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// For how long it took anything, ns.
    pub(super) busy: f64,
    /// How long each transfer took; a quarter of them took less, ns.
    pub(super) each: f64,
    /// How many transfers there were, on the channel that had most of them.
    pub(super) count: usize,
}

/// A job, as its files show it.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) graph: Graph,
    pub(super) ranks: Vec<RankFacts>,
    pub(super) kinds: Vec<Kind>,
    /// The communicators of operations, by kind.
    pub(super) communicators: FxHashMap<u32, String>,
    /// How many ranks meet in each operation of a kind; `None` if not always as many.
    pub(super) sizes: FxHashMap<u32, Option<usize>>,
    pub(super) links: Vec<Link>,
    pub(super) uses: Vec<Use>,
    /// What GPUs took of what they had received over links, by item.
    pub(super) taken: FxHashMap<usize, Taken>,
    /// How steps are known; `None` if nothing repeats.
    pub(super) source: Option<Source>,
    /// The steps of each rank that are looked at, without those that are left out as warm-up;
    /// counted from the first one that is kept.
    pub(super) steps: Range<usize>,
    /// The number of the first step that is kept.
    pub(super) first: usize,
    /// How many steps there are in all.
    pub(super) all_steps: usize,
    /// How many ranks of a communicator are missing: their files are not here, or have no kernels
    /// where those of others have.
    pub(super) missing: usize,
    pub(super) without_kernels: usize,
    /// Some of them share a GPU: if it has nothing to do for one, it may work for another.
    pub(super) shares_gpus: bool,
    /// What the settings of a recording left out, if what ran in between is missing.
    pub(super) gaps: Option<String>,
    /// Why there are no kernels, where a recording says so.
    pub(super) no_kernels: Option<String>,
    /// What could not be read, and other doubts.
    pub(super) notes: Vec<String>,
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
    /// Sends: the communicator and the peer there; the link is the rank, the item its place there.
    uses: Vec<(u64, i32, Use)>,
    /// The rank, the item's place there, and what its GPU took that it had received.
    taken: Vec<(usize, usize, Taken)>,
    /// The ranks of each communicator, by hash: how many, and which of the job's ranks they are.
    members: BTreeMap<u64, (i32, BTreeMap<i32, usize>)>,
    sources: Vec<Option<Source>>,
    gaps: Option<String>,
    no_kernels: Option<String>,
    /// Its items are kernels, not what the host handed over.
    has_kernels: bool,
    /// How many ranks of a communicator, by hash, are in files that were left out for lack of kernels.
    without_kernels: BTreeMap<u64, usize>,
}

/// An operation that an item carried: its number, and its communicator by hash.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    shared: u64,
    item: usize,
    comm: u64,
}

/// From when to when the network, or a GPU, had something of a transfer of an item.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    item: usize,
    comm: u64,
    peer: i32,
    channel: Option<u32>,
    from: i64,
    to: i64,
}

/// Reads the files of a job side by side, and hands over what a first pass over each gives, too. A
/// file that cannot be read is named in the notes; an error if none can.
pub(super) fn load(files: &[PathBuf], wish: &Wish) -> (Survey, Result<Job, Reason>) {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |facts| facts.len());
    let stage = Stage::begin(format!("reading {} files", files.len()), files.iter().map(size).sum());
    let (mut survey, mut loaded, mut faults) = (Survey::default(), Vec::new(), Vec::new());
    let budget = ITEMS / files.len().max(1);
    let read = |path: &PathBuf, threads| {
        let mut looking = Looking::default();
        let look = |packet: &Packet<'_>| _ = looking.take(packet);
        let read = import::open_as(path, threads, Wanted::Work, look);
        (looking.done(), read.map(|profile| Loading::of(path, &profile, wish, budget)))
    };
    abreast::look(files, read, |path, (looked, read)| {
        // What cannot be read is named below.
        let _ = survey.add(path, looked, Ok(Extent::default()));
        match read {
            Ok(of_file) => loaded.push((path, of_file)),
            Err(fault) => faults.push(Reason::file(path)(fault)),
        }
        stage.advance(size(path));
    });
    let mut loading = Loading::default();
    let has_kernels = loaded.iter().any(|(_, of_file)| of_file.has_kernels);
    for (path, of_file) in loaded {
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
    (survey, loading.finish(files.len(), faults, wish))
}

impl Loading {
    fn of(path: &Path, profile: &Profile, wish: &Wish, budget: usize) -> Loading {
        let ranks = Ranks::of(profile, !profile.kernels.is_empty());
        let has_kernels = !profile.kernels.is_empty();
        let reason = profile.notes.iter().filter(|_| !has_kernels).find_map(|note| note.split_once(remark::NO_KERNELS));
        // What else was said about it, such as when it was, comes after that.
        let no_kernels = reason.and_then(|(_, why)| why.split("; ").next()).map(str::to_owned);
        let mut loading = Loading { gaps: profile.gaps.clone(), no_kernels, has_kernels, ..Loading::default() };
        for rank in &ranks.all {
            loading.rank(path, profile, &ranks, rank, wish, budget / ranks.all.len());
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
        self.taken.extend(of_file.taken.into_iter().map(|(rank, item, it)| (before + rank, item, it)));
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

    fn rank(&mut self, path: &Path, profile: &Profile, ranks: &Ranks, rank: &Rank, wish: &Wish, budget: usize) {
        let found = steps::of_one(profile, ranks, rank, wish.step.as_deref());
        let (source, edges) = found.map_or((None, Vec::new()), |found| (Some(found.source), found.edges));
        let edges: Vec<usize> =
            edges.iter().map(|edge| rank.items.partition_point(|item| item.span.start < *edge)).collect();
        let count = edges.len().saturating_sub(1);
        // What is kept of it: as many of the first steps as there is room for.
        let kept = match &wish.steps {
            Some(steps) => steps.start.min(count)..steps.end.min(count),
            None => {
                let fits = |edge: &usize| edge - edges[0] <= budget;
                0..edges.iter().take_while(|edge| fits(edge)).count().saturating_sub(1).max(STEPS.min(count))
            }
        };
        let places = match count {
            0 => 0..rank.items.len().min(budget),
            // What comes before the first step may be in it when the ranks agree on what begins one. The
            // last step ends when the next one begins.
            _ => {
                let begin = if wish.steps.is_some() { edges[kept.start] } else { 0 };
                begin..rank.items.len().min(edges[kept.end] + 1)
            }
        };
        let number = self.ranks.len();
        let process = profile.processes.get(rank.process);
        let host = process.and_then(|it| it.name.split(" · ").nth(1).map(str::to_owned)).or(profile.host.clone());
        let carriers = self.items_of(profile, ranks, rank, &places);
        self.sends(profile, rank.process, number, &carriers);
        for communicator in profile.communicators.iter().filter(|it| it.process == rank.process) {
            if let (Some(ranks), Some(own)) = (communicator.ranks, communicator.rank) {
                let hash = hash_of(communicator.hash, communicator.name.as_deref());
                let members = self.members.entry(hash).or_insert((ranks, BTreeMap::new()));
                members.1.insert(own, number);
            }
        }
        let edges = edges.get(kept.start..=kept.end).unwrap_or_default();
        self.ranks.push(RankFacts {
            label: rank.label.clone(),
            number: rank.number,
            host,
            file: path.to_owned(),
            begin: profile.begin.or(profile.extent().map(|extent| extent.start)).unwrap_or_default(),
            is_ours: profile.source.tool == Tool::Ncclscope,
            edges: edges.iter().map(|edge| edge - places.start).collect(),
            steps: count,
        });
        self.sources.push(source);
    }

    /// Takes the items of a rank at these places. Returns what they carried.
    fn items_of(&mut self, profile: &Profile, ranks: &Ranks, rank: &Rank, places: &Range<usize>) -> Vec<Carrier> {
        let rank_number = self.items.len() as u32;
        let mut streams: HashMap<(u32, u32), u32> = HashMap::new();
        // How often each operation has run before: replays of a graph share its number.
        let mut turns: FxHashMap<u64, u32> = FxHashMap::default();
        let mut carriers = Vec::new();
        let mut items = Vec::with_capacity(places.len());
        for (at, item) in rank.items.iter().enumerate().take(places.end) {
            let is_kept = places.contains(&at);
            let kernel = item.kernel.map(|kernel| &profile.kernels[kernel]);
            for operation in kernel.iter().flat_map(|it| &it.carried.operations) {
                let operation = &profile.operations[*operation];
                let Some(shared) = operation.correlation.or(operation.seq) else { continue };
                let communicator = operation.communicator.map(|at| &profile.communicators[at]);
                let comm = communicator.map_or(0, |it| hash_of(it.hash, it.name.as_deref()));
                let turn = turns.entry(mixed(&(comm, shared, operation.function == "Recv"))).or_default();
                *turn += 1;
                if is_kept {
                    self.joined.push((mixed(&(comm, shared, *turn)), rank_number, items.len() as u32));
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

    /// For how long the network had something of a rank's sends, by item and peer; and its GPU
    /// something that it had received.
    fn sends(&mut self, profile: &Profile, process: usize, rank: usize, carriers: &[Carrier]) {
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        for transfer in profile.transfers.iter().filter(|it| it.process == process) {
            let (Some(number), Some(peer)) = (transfer.correlation, transfer.peer) else { continue };
            let of_it = &carriers[carriers.partition_point(|it| it.shared < number)..];
            let of_it = of_it.iter().take_while(|it| it.shared == number);
            // Replays of a graph share a number.
            let far = |it: &&Carrier| {
                let item = &self.items[rank][it.item];
                apart(Span::of(item.start, item.end), transfer.span)
            };
            let Some(Carrier { item, comm, .. }) = of_it.min_by_key(far) else { continue };
            let mut from = transfer.span.start.0;
            for (what, ns) in &transfer.waits {
                let to = from.saturating_add_unsigned(*ns);
                let stretch = Stretch { item: *item, comm: *comm, peer, channel: transfer.channel, from, to };
                if transfer.is_send && what.starts_with(wait::NETWORK) {
                    sent.push(stretch);
                } else if !transfer.is_send && what.starts_with(wait::GPU) {
                    taken.push(stretch);
                }
                from = to;
            }
        }
        sent.sort_unstable_by_key(|it| (it.item, it.comm, it.peer, it.channel));
        for of_use in sent.chunk_by(|one, other| (one.item, one.comm, one.peer) == (other.item, other.comm, other.peer))
        {
            let Stretch { item, comm, peer, .. } = of_use[0];
            let (each, channel) = slowest(of_use);
            let it = &mut self.items[rank][item];
            it.sent = it.sent.max(of_use.iter().map(|it| it.to).max().unwrap_or(0) - it.start);
            self.uses.push((comm, peer, Use { link: rank, item, busy: covered(of_use), each, channel }));
        }
        taken.sort_unstable_by_key(|it| (it.item, it.channel));
        for of_item in taken.chunk_by(|one, other| one.item == other.item) {
            let count = by_channel(of_item).map(<[Stretch]>::len).max().unwrap_or(0);
            let each = lengths(of_item)[of_item.len() / 4] as f64;
            self.taken.push((rank, of_item[0].item, Taken { busy: covered(of_item), each, count }));
        }
    }

    /// Makes the ranks mean the same by a step: what most of them begin theirs with, if that gives a
    /// rank steps about as long as theirs. Ranks with other work, such as those of another stage of a
    /// pipeline, may run it more often; their steps follow from the operations that they share with
    /// the others. A rank that shares none has no steps.
    fn agree(&mut self) {
        let mut votes: BTreeMap<&Repeat, usize> = BTreeMap::new();
        for source in &self.sources {
            match source {
                Some(Source::Repeats(repeat)) => *votes.entry(repeat).or_default() += 1,
                // The program's own steps are the same everywhere.
                Some(Source::Ranges) => return,
                None => {}
            }
        }
        let mut candidates: Vec<(usize, Repeat)> =
            votes.into_iter().map(|(repeat, votes)| (votes, repeat.clone())).collect();
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates.truncate(CANDIDATES);
        let of = |(_, repeat): &(usize, Repeat)| {
            let edges = self.edges_by(repeat);
            let lengths: Vec<Option<i64>> =
                edges.iter().zip(&self.items).map(|(of, items)| middle(items, of)).collect();
            let (agreed, usual) = usual(&lengths);
            let agrees = |length: &Option<i64>| length.is_some_and(|it| is_about(it, usual));
            (agreed, lengths.iter().map(agrees).collect::<Vec<_>>(), edges, repeat.clone())
        };
        // Of equals, the first one, which has most votes.
        let agreement = candidates.iter().map(of).rev().max_by_key(|it| it.0);
        let Some((_, mut has_steps, edges, common)) = agreement.filter(|it| it.0 > 0) else { return };
        let agreed = self.ranks.iter_mut().zip(&mut self.sources).zip(edges).zip(&has_steps).filter(|it| *it.1);
        for (((facts, source), edges), _) in agreed {
            if !matches!(source, Some(Source::Repeats(own)) if *own == common) {
                facts.steps = edges.len() - 1;
            }
            (facts.edges, *source) = (edges, Some(Source::Repeats(common.clone())));
        }
        while self.follow(&mut has_steps) {}
        for (rank, has_steps) in has_steps.into_iter().enumerate() {
            self.sources[rank] = has_steps.then(|| Source::Repeats(common.clone()));
            if !has_steps {
                (self.ranks[rank].edges, self.ranks[rank].steps) = (Vec::new(), 0);
            }
        }
    }

    /// Where the steps of each rank begin if they begin with this.
    fn edges_by(&self, repeat: &Repeat) -> Vec<Vec<usize>> {
        let is_it: Vec<bool> = self.kinds.iter().map(|kind| kind.name == repeat.name).collect();
        let of = |((items, facts), source): ((&Vec<Item>, &RankFacts), &Option<Source>)| {
            if matches!(source, Some(Source::Repeats(own)) if own == repeat) {
                return facts.edges.clone();
            }
            let places = items.iter().enumerate().filter(|(_, item)| is_it[item.kind as usize]).map(|it| it.0);
            places.step_by(repeat.times).collect()
        };
        self.items.iter().zip(&self.ranks).zip(&self.sources).map(of).collect()
    }

    /// Gives ranks without steps those of the ranks with which they share operations. A step begins
    /// with the first operation that is in it elsewhere.
    fn follow(&mut self, has_steps: &mut [bool]) -> bool {
        let mut step_of: FxHashMap<u64, usize> = FxHashMap::default();
        for (operation, rank, item) in self.joined.iter().filter(|it| has_steps[it.1 as usize]) {
            let edges = &self.ranks[*rank as usize].edges;
            if let Some(step) = edges.partition_point(|edge| *edge <= *item as usize).checked_sub(1) {
                step_of.entry(*operation).or_insert(step);
            }
        }
        let mut shared: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
        for (operation, rank, item) in self.joined.iter().filter(|it| !has_steps[it.1 as usize]) {
            if let Some(step) = step_of.get(operation) {
                shared.entry(*rank).or_default().push((*item, *step));
            }
        }
        let mut has_new = false;
        for (rank, mut steps) in shared {
            steps.sort_unstable();
            let mut edges: Vec<usize> = Vec::new();
            for (item, step) in steps {
                // A step without a shared operation is empty.
                edges.resize(edges.len().max(step + 1), item as usize);
            }
            if edges.len() > 1 {
                let facts = &mut self.ranks[rank as usize];
                (facts.steps, facts.edges) = (edges.len() - 1, edges);
                (has_steps[rank as usize], has_new) = (true, true);
            }
        }
        has_new
    }

    /// The job of so many files, some of which could not be read.
    fn finish(mut self, count: usize, mut faults: Vec<Reason>, wish: &Wish) -> Result<Job, Reason> {
        if faults.len() == count {
            return Err(if count == 1 { faults.remove(0) } else { Reason::Several(faults) });
        }
        let mut files: BTreeMap<i32, &Path> = BTreeMap::new();
        for rank in &self.ranks {
            let Some(number) = rank.number else { continue };
            if let Some(other) = files.insert(number, &rank.file) {
                return Err(Reason::Refused(format!(
                    "rank {number} is in {} and in {}: give the files of one run, and no merged file beside them",
                    other.display(),
                    rank.file.display()
                )));
            }
        }
        self.agree();
        let mut notes: Vec<String> = faults.iter().map(|fault| format!("Left out: {fault}")).collect();
        let graph = Graph::new(self.items, self.joined);
        let source = self.sources.first_mut().and_then(Option::take);
        let has_all = self.ranks.iter().all(|rank| rank.edges.len() > 1);
        let kept = self.ranks.iter().map(|rank| rank.edges.len().saturating_sub(1)).min().unwrap_or(0);
        let counts: BTreeSet<usize> = self.ranks.iter().map(|rank| rank.steps).collect();
        let (fewest, most) = (counts.first().copied().unwrap_or(0), counts.last().copied().unwrap_or(0));
        if let Some(steps) = wish.steps.as_ref().filter(|steps| most > 0 && most <= steps.start) {
            let why = format!("these files have {most} steps, so there are no steps {} to {}", steps.start, steps.end);
            return Err(Reason::Refused(why));
        }
        if has_all && fewest < most {
            notes
                .push(format!("Ranks have between {fewest} and {most} steps; they are compared from the first one on"));
        }
        // A GPU warms up, and connections are made.
        let warm = if wish.steps.is_some() { 0 } else { (kept / 10).clamp(1, 20).min(kept) };
        let mut links: BTreeMap<Link, usize> = BTreeMap::new();
        let mut all_uses = Vec::new();
        for (comm, peer, it) in self.uses {
            let rank = it.link;
            let to = self.members.get(&comm).and_then(|it| it.1.get(&peer)).copied();
            let count = links.len();
            let link = *links.entry(Link { from: rank, to, peer }).or_insert(count);
            all_uses.push(Use { link, item: graph.rank(rank).start + it.item, ..it });
        }
        let mut in_order: Vec<(Link, usize)> = links.into_iter().collect();
        in_order.sort_unstable_by_key(|it| it.1);
        let without = |hash: &u64| self.without_kernels.get(hash).copied().unwrap_or(0);
        let of = |(hash, (ranks, known)): (&u64, &(i32, BTreeMap<i32, usize>))| {
            ((*ranks as usize).saturating_sub(known.len() + without(hash)), without(hash))
        };
        let (missing, without_kernels) = self.members.iter().map(of).max_by_key(|of| of.0 + of.1).unwrap_or_default();
        Ok(Job {
            gaps: self.gaps,
            no_kernels: self.no_kernels,
            ranks: self.ranks,
            kinds: self.kinds,
            communicators: self.communicators,
            sizes: self.sizes,
            links: in_order.into_iter().map(|it| it.0).collect(),
            uses: all_uses,
            taken: self.taken.into_iter().map(|(rank, item, it)| (graph.rank(rank).start + item, it)).collect(),
            source: source.filter(|_| has_all),
            steps: if has_all { warm..kept } else { 0..0 },
            first: wish.steps.as_ref().map_or(0, |steps| steps.start),
            all_steps: most,
            missing,
            without_kernels,
            shares_gpus: false,
            notes,
            graph,
        })
    }
}

/// How long steps are in the middle, ns; `None` if there are none.
fn middle(items: &[Item], edges: &[usize]) -> Option<i64> {
    let mut lengths: Vec<i64> = edges.windows(2).map(|edge| items[edge[1]].start - items[edge[0]].start).collect();
    let middle = lengths.len() / 2;
    (!lengths.is_empty()).then(|| *lengths.select_nth_unstable(middle).1)
}

/// How many of these lengths are about the same, at most; and the one in their middle.
fn usual(lengths: &[Option<i64>]) -> (usize, i64) {
    let mut lengths: Vec<i64> = lengths.iter().copied().flatten().collect();
    lengths.sort_unstable();
    let of = |(first, length): (usize, &i64)| {
        let after = lengths.partition_point(|other| is_about(*other, *length) || other < length);
        (after - first, lengths[(first + after) / 2])
    };
    lengths.iter().enumerate().map(of).max_by_key(|it| it.0).unwrap_or_default()
}

fn is_about(one: i64, other: i64) -> bool {
    (one - other).abs() <= other / ABOUT
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

/// What a transfer takes in the middle on the slowest channel, ns; and the channel, if the others
/// are much faster.
fn slowest(stretches: &[Stretch]) -> (f64, Option<u32>) {
    let middle = |of: &[Stretch]| (lengths(of)[of.len() / 2], of[0].channel);
    let mut middles: Vec<(i64, Option<u32>)> = by_channel(stretches).map(middle).collect();
    middles.sort_unstable();
    let Some((each, channel)) = middles.pop() else { return (0.0, None) };
    let stands_out = middles.last().is_some_and(|next| each as f64 >= SLOW * next.0 as f64);
    (each as f64, channel.filter(|_| stands_out))
}

fn by_channel(stretches: &[Stretch]) -> impl Iterator<Item = &[Stretch]> {
    stretches.chunk_by(|one, other| one.channel == other.channel)
}

/// The shortest comes first, ns.
fn lengths(stretches: &[Stretch]) -> Vec<i64> {
    let mut lengths: Vec<i64> = stretches.iter().map(|it| it.to - it.from).collect();
    lengths.sort_unstable();
    lengths
}

/// How much time they cover, ns.
fn covered(stretches: &[Stretch]) -> f64 {
    let mut spans: Vec<(i64, i64)> = stretches.iter().map(|it| (it.from, it.to)).collect();
    spans.sort_unstable();
    let (mut until, mut sum) = (i64::MIN, 0);
    for (from, to) in spans {
        sum += (to - from.max(until)).max(0);
        until = until.max(to);
    }
    sum as f64
}

/// How far two spans are apart, ns; 0 if they overlap.
fn apart(one: Span, other: Span) -> i64 {
    other.start.since(one.end).max(one.start.since(other.end)).max(0)
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

impl Job {
    /// The items of a rank in one of its steps.
    pub(super) fn step(&self, rank: usize, step: usize) -> Range<usize> {
        let (base, edges) = (self.graph.rank(rank).start, &self.ranks[rank].edges);
        base + edges[step]..base + edges[step + 1]
    }

    /// From when to when to look at a step of a rank: from its begin to that of the next one; or, for
    /// what the GPU did not do, with the idle time before the one and without that before the other.
    pub(super) fn step_times(&self, rank: usize, step: usize, with_idle: bool) -> (i64, i64) {
        let (items, all) = (self.step(rank, step), self.graph.rank(rank));
        let edge = |item: usize| {
            let item = item.min(all.end - 1);
            self.graph.items[item].start - if with_idle { self.graph.idle(item) } else { 0 }
        };
        (edge(items.start), edge(items.end))
    }

    /// The items of a rank in the steps that are looked at; without steps, all of them.
    pub(super) fn looked_at(&self, rank: usize) -> Range<usize> {
        let Some(last) = self.steps.end.checked_sub(1).filter(|last| *last >= self.steps.start) else {
            return self.graph.rank(rank);
        };
        self.step(rank, self.steps.start).start..self.step(rank, last).end
    }

    /// The step that an item lies in.
    pub(super) fn step_of(&self, item: usize) -> Option<usize> {
        let rank = self.graph.rank_of(item as u32);
        let place = item - self.graph.rank(rank).start;
        let edges = &self.ranks[rank].edges;
        edges.partition_point(|edge| *edge <= place).checked_sub(1).filter(|step| step + 1 < edges.len())
    }

    /// Whether what GPUs did beside communication is known.
    pub(super) fn has_own_work(&self) -> bool {
        self.kinds.iter().any(|kind| matches!(kind.class, Class::Kernel | Class::Copy))
    }

    /// Whether there are kernels, not only calls.
    pub(super) fn has_kernels(&self) -> bool {
        self.kinds.iter().any(|kind| kind.class != Class::Call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_channel_that_takes_much_longer_is_named() {
        let each = |ns: [i64; 2]| {
            let stretch = |channel, from, to| Stretch { channel: Some(channel), from, to, ..Stretch::default() };
            let on = |(channel, ns)| {
                [stretch(channel, 0, ns), stretch(channel, 500, 500 + ns), stretch(channel, 900, 900 + 9 * ns)]
            };
            slowest(&(0..).zip(ns).flat_map(on).collect::<Vec<_>>())
        };
        assert_eq!(each([100, 300]), (300.0, Some(1)));
        assert_eq!(each([300, 100]), (300.0, Some(0)));
        assert_eq!(each([200, 300]), (300.0, None));
        assert_eq!(slowest(&[Stretch { to: 70, ..Stretch::default() }]), (70.0, None));
    }

    /// Ranks with three steps of 100 ns, by the kinds that run in each, and by what each rank's own
    /// steps begin with.
    fn loading(ranks: &[(&[u32], u32)]) -> Loading {
        let kind = |name: &str| Kind { class: Class::Kernel, name: name.to_owned() };
        let mut loading = Loading { kinds: ["forward", "matmul", "update"].map(kind).into(), ..Loading::default() };
        for (of_step, begin) in ranks {
            let start = |at: usize| (100 * at / of_step.len()) as i64;
            let kinds = of_step.repeat(3).into_iter().enumerate();
            let items: Vec<Item> = kinds.map(|(at, kind)| Item { kind, start: start(at), ..Item::default() }).collect();
            let own = items.iter().enumerate().filter(|(_, it)| it.kind == *begin);
            let edges: Vec<usize> = own.map(|it| it.0).collect();
            loading.ranks.push(RankFacts { steps: edges.len() - 1, edges, ..RankFacts::default() });
            loading.items.push(items);
            let name = loading.kinds[*begin as usize].name.clone();
            loading.sources.push(Some(Source::Repeats(Repeat::once(&name))));
        }
        loading
    }

    fn edges(loading: &Loading) -> Vec<&[usize]> {
        loading.ranks.iter().map(|rank| rank.edges.as_slice()).collect()
    }

    #[test]
    fn all_ranks_begin_their_steps_with_what_most_of_them_do() {
        // The last rank multiplies four times in each step, and each of that looked like a step.
        let mut of = loading(&[(&[0, 1], 0), (&[0, 1], 0), (&[0, 1, 1, 1, 1], 1)]);
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[0, 5, 10]]);
        assert_eq!(of.ranks[2].steps, 2);
        assert_eq!(of.sources[2], Some(Source::Repeats(Repeat::once("forward"))));

        // The program's own steps are the same everywhere.
        of.sources[0] = Some(Source::Ranges);
        of.sources[2] = Some(Source::Repeats(Repeat::once("matmul")));
        of.agree();
        assert_eq!(of.sources[2], Some(Source::Repeats(Repeat::once("matmul"))));
    }

    #[test]
    fn a_rank_with_other_work_has_the_steps_of_those_with_which_it_meets() {
        // A pipeline: the last rank, with more layers, updates four times in each step, and passes
        // its second kernel's result on.
        let mut of = loading(&[(&[2, 0], 2), (&[2, 0], 2), (&[2, 2, 2, 2, 0, 1], 1)]);
        for step in 0..3 {
            of.joined.extend([(step, 1, 2 * step as u32 + 1), (step, 2, 6 * step as u32 + 4)]);
        }
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[4, 10, 16]]);
        assert!(of.sources.iter().all(|it| *it == Some(Source::Repeats(Repeat::once("update")))));

        // What it shares with nobody cannot be told.
        let mut of = loading(&[(&[2, 0], 2), (&[2, 0], 2), (&[2, 2, 2, 2, 0, 1], 2)]);
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[]]);
        assert_eq!((of.ranks[2].steps, &of.sources[2]), (0, &None));
    }
}
