//! A job, as its files show it: what ran on each rank's GPU, by step, and which of it the ranks met
//! in.

use std::cmp::Reverse;
use std::ops::Range;
use std::path::PathBuf;

use rustc_hash::FxHashMap;

use super::graph::{Graph, Item};
use super::since::{Since, since};
use crate::cli::compare::ranks::{Class, Kind, UNRECORDED};
use crate::cli::compare::steps::Source;
use crate::import::CpuWait;
use crate::model::time::{FileNs, Shift, UtcNs};
use crate::trace::names;

/// How many names of what runs most often are said.
const SOME: usize = 8;

/// A rank of the job.
#[derive(Debug, Default)]
pub(super) struct RankFacts {
    /// `rank 3`; `process 4711, GPU 1` where no number tells it apart.
    pub(super) label: String,
    pub(super) number: Option<i32>,
    pub(super) pid: i64,
    /// Its GPU, as in `GPU 3`, if its process has several.
    pub(super) gpu: Option<String>,
    pub(super) host: Option<String>,
    pub(super) file: PathBuf,
    /// The first time in its file.
    pub(super) begin: FileNs,
    /// It is one of our traces.
    pub(super) is_ours: bool,
    /// For each step, its first item; then the first one after the last step.
    pub(super) edges: Vec<usize>,
    /// The number of the first of them in its file, or in what was read of it.
    pub(super) first: usize,
    /// How many steps that has.
    pub(super) steps: usize,
    /// When its last item began, if its clock can be related to the wall clock.
    pub(super) last: Option<UtcNs>,
    /// From its file's clock to the wall clock.
    pub(super) to_utc: Option<Shift>,
    /// For how long its GPU worked on kernels without a record, ns.
    pub(super) unrecorded_ns: u64,
    /// When a communicator had been created, and its name, in order.
    pub(super) created: Vec<(FileNs, String)>,
    /// When a progress thread of its process was ready to run and had no processor for some of the
    /// time.
    pub(super) cpu_waits: Vec<CpuWait>,
}

/// What carries data in one direction between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    /// The rank that sends.
    pub(super) from: usize,
    /// The rank that receives, if its file is here; and its number in the communicator.
    pub(super) to: Option<usize>,
    pub(super) peer: i32,
}

/// What an item sent over a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub(super) link: usize,
    pub(super) item: usize,
    /// It went from GPU to GPU within a host, where only kernels show how long that takes.
    pub(super) is_direct: bool,
    /// For how long the network had any of it, or how long it took, ns.
    pub(super) busy: f64,
    /// For how long the network had each transfer, in the middle, on the slowest channel, ns; or
    /// how long all took.
    pub(super) each: f64,
    /// That channel, if it takes much longer than the others between these ranks.
    pub(super) channel: Option<u32>,
}

/// What an item's GPU took from its buffers while the item ran, and after it had arrived over
/// links.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// For how long it took anything, ns.
    pub(super) busy: f64,
    /// How long each transfer took; a quarter of them took less, ns.
    pub(super) each: f64,
    /// How many transfers there were, on the channel that had most of them.
    pub(super) count: usize,
    /// For how long its rank's sends found no room at their peers, ns.
    pub(super) held: f64,
}

/// How steps are known, and which of a file's steps are the job's.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    /// `None` if nothing repeats.
    pub(super) source: Option<Source>,
    /// The number of the first step that is kept.
    pub(super) first: usize,
    /// How many steps there are in all, or at the ends of the files if only these were read.
    pub(super) all: usize,
    pub(super) is_of_ends: bool,
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
    /// For how long data from a rank had arrived and an item's GPU did not take it, ns, where that
    /// was for a millisecond or more.
    pub(super) untaken: FxHashMap<(usize, usize), f64>,
    /// The steps of each rank that are looked at, without those that are left out as warm-up;
    /// counted from the first one that is kept.
    pub(super) steps: Range<usize>,
    /// Steps have taken longer since the first of these.
    pub(super) since: Option<Since>,
    pub(super) numbering: Numbering,
    /// How many ranks of a communicator are missing: their files are not here, or have no kernels
    /// where those of others have.
    pub(super) missing: usize,
    pub(super) without_kernels: usize,
    /// The numbers of those whose files are not here, if that is known of each.
    pub(super) absent: Vec<u32>,
    /// Some of them share a GPU: if it has nothing to do for one, it may work for another.
    pub(super) shares_gpus: bool,
    /// What the settings of a recording left out, if what ran in between is missing.
    pub(super) gaps: Option<String>,
    /// Why there are no kernels, where a recording says so.
    pub(super) no_kernels: Option<String>,
    /// What could not be read, and other doubts.
    pub(super) notes: Vec<String>,
}

/// `; most often run` these, or nothing if nothing runs more than once.
pub(super) fn often<'a>(kinds: &[Kind], items: impl Iterator<Item = &'a Item>) -> String {
    let mut counts = vec![0_usize; kinds.len()];
    items.for_each(|item| counts[item.kind as usize] += 1);
    let mut often: Vec<usize> = (0..kinds.len()).filter(|kind| counts[*kind] > 1).collect();
    often.sort_by_key(|kind| Reverse(counts[*kind]));
    let often: Vec<String> =
        often.iter().take(SOME).map(|kind| format!("`{}`", names::short(&kinds[*kind].name))).collect();
    if often.is_empty() { String::new() } else { format!("; most often run {}", often.join(", ")) }
}

impl Job {
    /// Whether items of a kind are known: not only that some kernels ran.
    pub(super) fn is_recorded(&self, kind: u32) -> bool {
        self.kinds[kind as usize].name != UNRECORDED
    }

    /// The items of a rank in one of its steps.
    pub(super) fn step(&self, rank: usize, step: usize) -> Range<usize> {
        let (base, edges) = (self.graph.rank(rank).start, &self.ranks[rank].edges);
        base + edges[step]..base + edges[step + 1]
    }

    /// From when to when to look at a step of a rank: from its begin to that of the next one; or,
    /// for what the GPU did not do, with the idle time before the one and without that before the
    /// other.
    pub(super) fn step_times(&self, rank: usize, step: usize, with_idle: bool) -> (i64, i64) {
        let (items, all) = (self.step(rank, step), self.graph.rank(rank));
        let edge = |item: usize| {
            let item = item.min(all.end - 1);
            self.graph.items[item].start - if with_idle { self.graph.idle(item) } else { 0 }
        };
        (edge(items.start), edge(items.end))
    }

    /// Looks only at the last steps if they have taken longer than those before: those show what
    /// holds the job up now.
    pub(super) fn look_at_slow_steps(&mut self) {
        let length = |step: usize| {
            let of = |rank: usize| {
                let items = self.step(rank, step);
                let at = |item: usize| self.graph.items[item.min(self.graph.rank(rank).end - 1)].start;
                at(items.end) - at(items.start)
            };
            let mut lengths: Vec<i64> = (0..self.ranks.len()).map(of).collect();
            let middle = lengths.len() / 2;
            *lengths.select_nth_unstable(middle).1
        };
        let first = self.steps.start;
        let found = since(&self.steps.clone().map(length).collect::<Vec<_>>());
        self.since = found.map(|it| Since { first, step: first + it.step, ..it });
        self.steps.start = self.since.map_or(first, |it| it.step);
    }

    /// The items of a rank in the steps that are looked at; without steps, all of them.
    pub(super) fn looked_at(&self, rank: usize) -> Range<usize> {
        let Some(last) = self.steps.end.checked_sub(1).filter(|last| *last >= self.steps.start) else {
            return self.graph.rank(rank);
        };
        self.step(rank, self.steps.start).start..self.step(rank, last).end
    }

    /// For which part of an item's time a progress thread of its process was ready to run without a
    /// processor.
    pub(super) fn cpu_wait(&self, item: usize) -> f64 {
        let waits = &self.ranks[self.graph.rank_of(item as u32)].cpu_waits;
        let Item { start, end, sent, .. } = self.graph.items[item];
        let end = end.max(start + sent);
        let of_it = waits[waits.partition_point(|it| it.span.end.0 <= start)..].iter();
        let of_it = of_it.take_while(|it| it.span.start.0 < end);
        let inside = |it: &CpuWait| (end.min(it.span.end.0) - start.max(it.span.start.0)) as f64;
        let ns: f64 = of_it.map(|it| inside(it) * it.percent as f64 / 100.0).sum();
        (ns / ((end - start) as f64).max(1.0)).min(1.0)
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
