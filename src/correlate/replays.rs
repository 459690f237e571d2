//! Which replay of its graph a kernel is, and which operations NCCL handed over for it.
//!
//! A captured launch is a node of a graph, and runs each time a graph with that node is launched.
//! There are two ways to tell which run a kernel is:
//!
//! ```text
//!  launches, by CUPTI's callbacks   1       2       3               4     counted: a kernel has
//!                                                                         the id of its launch
//!  NCCL's Groups, at each run        [1]         [2]     [3]            [4]
//!  kernels                            |==1==|     |==2==| |==3==|        |==4==|
//!                                                                         timed: after its own
//!                                                                         Group, before the next
//! ```
//!
//! The count fails where launches were not reported: CUPTI was lent, a callback was missed, or
//! there was no room for a record. The times fail where a clock is not known well enough. A run is
//! exact where it was counted and its time allows it. Where nothing was counted, the times alone
//! decide, if they leave a single run. Where they leave several, or contradict the count, nothing
//! is concluded.
//!
//! A plan that needs no proxy is handed over once, during capture. NCCL does not report its
//! replays, so only the count is left.

use std::collections::VecDeque;
use std::sync::Arc;

use super::bounded::Bounded;
use super::sessions::Call;
use super::trail;
use crate::model::activity::Span;
use crate::model::event::{Coll, Event};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Moment, Operation, Unmatched};

/// Launches of graphs that are remembered until their kernels arrive.
const LAUNCHES: usize = 14 << 10;
/// How many times of lending CUPTI are remembered.
const LENT: usize = 256;
/// Executable graphs that are remembered.
const GRAPHS: usize = 8 << 10;
/// How many replays late the kernel of a run may come.
const LATE: u64 = 256;
/// Runs that are named in an explanation.
const EXPLAINED: usize = 8;
/// The error of the host's times of records, in ns, with a margin.
const RECORD_ERROR_NS: u64 = 500;

/// The operations of a plan.
pub(super) type Operations = Arc<Vec<Arc<Operation>>>;

/// A plan that was handed over.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The Group that handed it over.
    pub(super) group: Handle,
    pub(super) operations: Operations,
    /// Records were lost meanwhile: some of its operations may be missing, or it may be the plan of
    /// another launch.
    pub(super) is_doubtful: bool,
}

/// When a plan was handed over, and the plan until its kernel is found.
#[derive(Debug)]
struct Told {
    /// When its Group began: the kernel of a captured launch waits for it.
    begin: HostNs,
    run: Option<Run>,
}

/// The plans that NCCL handed over for a launch. For a launch that is not captured there is one.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Oldest first. Those whose kernels were found are of use only for the times of kernels that
    /// come late.
    told: VecDeque<Told>,
    /// How many of the oldest have left `told`.
    gone: u64,
    /// The operations handed over last. They are used for kernels whose run is not known.
    last: Option<Operations>,
    /// Its runs have the same collectives by NCCL's numbers, as where NCCL does not count with
    /// KernelCh.
    are_numbers_common: bool,
    /// It was handed over during capture.
    is_silent: bool,
    /// How many nodes were cloned from its node.
    clones: u32,
    /// A time and a number of runs: no kernel that begins at or after that time belongs to one of
    /// that many first runs, because runs happen in the order of their Groups.
    floor: (HostNs, u64),
}

/// A launch of a graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replay {
    graph: u64,
    /// Which launch of the graph it was, counted from 0, as far as launches were reported.
    index: u64,
    /// Where it was made.
    pub(super) asked: Option<Moment>,
    pub(super) time: HostNs,
    /// CUPTI was not lent since the graph was made, and nothing about it was forgotten.
    is_whole: bool,
    /// The graph had been changed before, or may have been.
    is_changed: bool,
}

/// What is known about a kernel besides its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// When it ran; `None` if it had not ended, or if its times are off.
    pub(super) span: Option<Span>,
    /// The launch of its graph.
    launched: Option<Replay>,
    /// The index of that launch can be trusted.
    is_counted: bool,
    /// Its node is the one that was captured, as far as can be known.
    is_whole: bool,
    /// NCCL's records may have gaps.
    is_lossy: bool,
}

/// A run that was found.
#[derive(Debug)]
pub(super) struct Which {
    pub(super) run: Run,
    /// Which run it is, counted from 1, if that is known.
    pub(super) number: Option<u64>,
    /// It was counted, and nothing contradicts it.
    pub(super) is_exact: bool,
}

impl Seen {
    /// The same for a node that is part of its graph only after so many launches of it.
    pub(super) fn after(mut self, launches: u64) -> Seen {
        if let Some(launched) = &mut self.launched {
            launched.index = launched.index.saturating_sub(launches);
        }
        self
    }

    /// Where its graph was launched.
    pub(super) fn asked(&self) -> Option<Moment> {
        self.launched.and_then(|launched| launched.asked)
    }
}

impl Runs {
    /// NCCL handed over a plan, in a Group that began at this time. Returns its index among those
    /// of the launch.
    pub(super) fn push(&mut self, run: Run, begin: HostNs) -> u64 {
        let last = self.last.replace(Arc::clone(&run.operations));
        self.are_numbers_common = last.is_none_or(|last| {
            self.are_numbers_common && last.iter().map(seq_of).eq(run.operations.iter().map(seq_of))
        });
        // Most have one run.
        if self.told.is_empty() {
            self.told.reserve_exact(1);
        }
        self.told.push_back(Told { begin, run: Some(run) });
        self.gone + self.told.len() as u64 - 1
    }

    /// Whether nothing was handed over, or all of it has been forgotten.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// The only run of a launch that was not captured.
    pub(super) fn pop(&mut self) -> Option<Run> {
        self.told.pop_front()?.run
    }

    /// The plan is handed over during capture, and not at its replays.
    pub(super) fn fall_silent(&mut self) {
        self.is_silent = true;
    }

    /// Whether it was handed over during capture.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// A node was cloned from its node.
    pub(super) fn cloned(&mut self) {
        self.clones += 1;
    }

    /// Forgets the runs up to this index.
    pub(super) fn forget(&mut self, index: u64) {
        while self.gone <= index && self.told.pop_front().is_some() {
            self.gone += 1;
        }
    }

    /// How many plans are remembered, with their operations and without.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> [usize; 2] {
        let with = self.told.iter().filter(|told| told.run.is_some()).count();
        [with, self.told.len() - with]
    }

    /// Which run of a captured launch a kernel is.
    pub(super) fn which(&mut self, seen: &Seen) -> Result<Which, Unmatched> {
        let counted = seen.launched.filter(|_| seen.is_counted && self.clones <= 1).map(|launched| launched.index);
        if self.is_silent {
            return self.of_silent(counted, seen.is_whole);
        }
        let (low, high) = self.in_time(seen);
        let number = |place: usize| self.gone + place as u64;
        let free = |place: &usize| self.told.get(*place).is_some_and(|told| told.run.is_some());
        let place_of = |index: u64| index.checked_sub(self.gone).and_then(|place| usize::try_from(place).ok());
        let (place, is_exact) = match counted.map(place_of) {
            // Its run was too long ago, or NCCL did not report it.
            Some(None) => (None, false),
            Some(Some(place)) if (low..high).contains(&place) => (Some(place).filter(free), true),
            Some(_) => (None, false),
            // Some launches were not reported.
            None => (Some(low).filter(|place| place + 1 == high).filter(free), false),
        };
        // No run that was handed over fits: the graph may have been updated while CUPTI was lent.
        // Where everything done to graphs was reported, the times must be wrong.
        if !seen.is_whole && place.is_none() && !(low..high).any(|place| free(&place)) {
            return Err(Unmatched::GraphChanged);
        }
        let at_least = number(place.map_or(low, |place| place + 1));
        if let Some(Span { start, .. }) = seen.span
            && start >= self.floor.0
        {
            self.floor = (start, self.floor.1.max(at_least));
        }
        let number = place.filter(|_| is_exact || !seen.is_lossy).map(|place| number(place) + 1);
        let run = match place.and_then(|place| self.told[place].run.take()) {
            Some(run) => run,
            None => {
                let last = self.last.as_ref().ok_or(Unmatched::NoGroup)?;
                Run { group: Handle::NONE, operations: unnumbered(last, self.are_numbers_common), is_doubtful: false }
            }
        };
        while self.told.len() > 1
            && let Some(oldest) = self.told.front()
            && (oldest.run.is_none() || at_least > self.gone + LATE)
        {
            self.forget(self.gone);
        }
        Ok(Which { run, number, is_exact: is_exact && place.is_some() })
    }

    /// The same where NCCL reports only the capture.
    fn of_silent(&mut self, counted: Option<u64>, is_whole: bool) -> Result<Which, Unmatched> {
        let first = self.told.front().filter(|_| counted == Some(0)).and_then(|told| told.run.clone());
        let again = |operations| Run { group: Handle::NONE, operations, is_doubtful: false };
        let run = first.or_else(|| self.last.clone().map(again)).ok_or(Unmatched::NoGroup)?;
        Ok(Which { run, number: counted.map(|index| index + 1), is_exact: is_whole && counted.is_some() })
    }

    /// What was handed over for the launch, and which runs are possible by the time of a kernel.
    pub(super) fn explain(&self, seen: Option<&Seen>, kernel: Option<Span>, steps: &mut Vec<String>) {
        let (low, high) = seen.map_or((0, self.told.len()), |seen| self.in_time(seen));
        if let Some(seen) = seen {
            let launch = seen.launched.map_or("the launch of its graph was not reported".into(), |launched| {
                let asked = trail::before(launched.time, kernel);
                format!("its graph's launch {} was made {asked}", launched.index + 1)
            });
            let is_counted = seen.is_counted && self.clones <= 1;
            let count = if is_counted { "the count of launches holds" } else { "the count of launches does not hold" };
            let told = self.gone as usize + self.told.len();
            steps.push(format!("bounds: {launch}; {count}; {} of {told} reported runs fit in time", high - low));
        }
        for (place, told) in self.told.iter().enumerate().take(high).skip(low).take(EXPLAINED) {
            let number = self.gone + place as u64 + 1;
            let carried = match &told.run {
                Some(run) => trail::operations(&run.operations),
                None => "it already has a kernel".into(),
            };
            steps.push(format!(
                "candidates: run {number}, handed over {}: {carried}",
                trail::before(told.begin, kernel)
            ));
        }
    }

    /// The runs that are possible by the time of a kernel, as a half-open range of indices.
    fn in_time(&self, seen: &Seen) -> (usize, usize) {
        let floor =
            |start: HostNs| if start >= self.floor.0 { self.floor.1.saturating_sub(self.gone) as usize } else { 0 };
        let Some(span) = seen.span else { return (0, self.told.len()) };
        let error = u64::from(span.error_ns) + RECORD_ERROR_NS;
        let high = self.told.partition_point(|run| run.begin.0 <= span.start.0.saturating_add(error));
        let launched = seen.launched.map_or(0, |launched| launched.time.0.saturating_sub(RECORD_ERROR_NS));
        let mut low = floor(span.start).max(self.told.partition_point(|run| run.begin.0 < launched));
        // An executable graph does not overlap itself: no Group of a later run begins before this
        // kernel ends.
        if self.clones <= 1 {
            let begun_before = self.told.partition_point(|run| run.begin.0.saturating_add(error) < span.end.0);
            low = low.max(begun_before.saturating_sub(1));
        }
        // With several graphs, an earlier run for which no kernel was found may still be running.
        while low + 1 < high && self.told[low].run.is_none() {
            low += 1;
        }
        (low.min(high), high)
    }
}

/// The number of a collective.
fn seq_of(operation: &Arc<Operation>) -> Option<u64> {
    match &operation.event {
        Event::Coll(coll) => Some(coll.seq),
        _ => None,
    }
}

/// The same operations without what distinguishes the runs. Collectives keep their numbers if these
/// are common to all runs.
fn unnumbered(operations: &Operations, are_numbers_common: bool) -> Operations {
    let unnumbered = |operation: &Arc<Operation>| {
        let (id, since, number) = (Handle::NONE, HostNs(0), Operation::UNNUMBERED);
        let mut event = operation.event;
        if let Event::Coll(coll) = &mut event
            && !are_numbers_common
        {
            coll.seq = Coll::UNNUMBERED;
        }
        Arc::new(Operation { id, since, number, event, ..Operation::clone(operation) })
    };
    Arc::new(operations.iter().map(unnumbered).collect())
}

/// The executable graphs and their launches.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    launches: Bounded<Call, Replay>,
    graphs: Bounded<u64, Executable>,
    /// The times at which CUPTI was lent.
    lent: Vec<HostNs>,
    /// A graph launch, or a node of a graph, was not reported.
    missed: bool,
    /// The launch that a kernel names may be another kernel's.
    distrusts: bool,
    /// There was no room for some of NCCL's records, up to this time.
    lost: Option<HostNs>,
    /// A graph was changed.
    changed: bool,
    /// There was no room for a change of some graph, up to this time.
    change_lost: Option<HostNs>,
    /// There was no room for a graph.
    forgot: bool,
}

/// An executable graph.
#[derive(Debug, Clone, Copy, Default)]
struct Executable {
    /// Its launches so far.
    launched: u64,
    /// How many of its launches are done: all of NCCL's kernels were seen of them, or a kernel of a
    /// later one.
    seen: u64,
    /// The last launch of which a kernel was seen, NCCL's kernels of it, and the most of any
    /// launch.
    last: u64,
    kernels: u32,
    most: u32,
    /// When it was made, if that was reported.
    made: HostNs,
    /// It may have been launched before, and that was forgotten.
    was_forgotten: bool,
    /// It was changed since.
    is_changed: bool,
}

impl Executable {
    /// A kernel of this launch was seen. Earlier launches are done, since one runs at a time.
    fn ran(&mut self, launch: u64, is_nccl: bool) {
        if launch > self.last {
            (self.last, self.kernels) = (launch, 0);
        }
        if launch == self.last {
            self.kernels += u32::from(is_nccl);
        }
        let is_done = self.kernels >= self.most;
        self.most = self.most.max(self.kernels);
        self.seen = self.seen.max(self.last + u64::from(is_done));
    }
}

impl Graphs {
    /// An executable graph is made.
    pub(super) fn made(&mut self, graph: u64, time: HostNs) {
        self.update(graph, |known| *known = Executable { made: time, ..Executable::default() });
    }

    /// Changes what is known about a graph. What is used is not to be forgotten. Returns what it
    /// was.
    fn update(&mut self, graph: u64, change: impl FnOnce(&mut Executable)) -> Executable {
        let was_forgotten = self.forgot;
        let unknown = Executable { was_forgotten, is_changed: self.forgot && self.changed, ..Executable::default() };
        let before = self.graphs.remove(&graph).unwrap_or(unknown);
        let mut known = before;
        change(&mut known);
        self.forgot |= self.graphs.insert(graph, known, GRAPHS).is_some();
        before
    }

    /// An executable graph is changed: its nodes may no longer do what was captured.
    pub(super) fn changed(&mut self, graph: u64) {
        self.changed = true;
        // Some of its kernels may be left out from now on.
        self.update(graph, |known| (known.is_changed, known.most) = (true, 0));
    }

    /// A change of some graph was not reported, up to this time.
    pub(super) fn change_lost(&mut self, time: HostNs) {
        (self.changed, self.change_lost) = (true, Some(time));
    }

    /// A launch of a graph, or one of its nodes, was not reported.
    pub(super) fn miss(&mut self) {
        self.missed = true;
    }

    /// An executable graph is launched. Returns the index of the launch, if kernels can be told to
    /// belong to it.
    pub(super) fn launched(&mut self, graph: u64, call: Call, asked: Option<Moment>, time: HostNs) -> Option<u64> {
        let known = self.update(graph, |known| known.launched += 1);
        let Executable { launched: index, made, was_forgotten, is_changed, .. } = known;
        let is_whole = !was_forgotten && !self.lent.iter().any(|lent| (made..=time).contains(lent));
        let is_changed = is_changed || self.change_lost.is_some_and(|lost| lost >= made);
        if self.distrusts {
            return None;
        }
        self.launches.insert(call, Replay { graph, index, asked, time, is_whole, is_changed }, LAUNCHES);
        Some(index)
    }

    /// CUPTI is lent at this time: what is done to graphs is not reported from here on.
    pub(super) fn lent(&mut self, time: HostNs) {
        // When there are very many, the times between the first and the last are not kept apart.
        self.lent.truncate(LENT);
        self.lent.push(time);
    }

    /// From here on kernels may name a launch other than their own.
    pub(super) fn distrust(&mut self) {
        (self.missed, self.distrusts) = (true, true);
        self.launches = Bounded::default();
    }

    /// There was no room for a record of NCCL's, up to this time.
    pub(super) fn lost(&mut self, time: HostNs) {
        self.lost = Some(time);
    }

    /// Whether a record may have been lost since this time.
    pub(super) fn is_lossy_since(&self, time: HostNs) -> bool {
        self.lost.is_some_and(|lost| lost >= time)
    }

    /// A kernel ran from a graph that this call launched; `is_nccl` is whether it is NCCL's.
    /// `is_known` is whether its graph has a node of NCCL's: launches of other graphs need not be
    /// reported.
    pub(super) fn kernel(&mut self, call: Call, is_nccl: bool, is_known: bool) {
        match self.launches.get(&call) {
            Some(&Replay { graph, index, .. }) => {
                if let Some(known) = self.graphs.get_mut(&graph) {
                    known.ran(index, is_nccl);
                }
            }
            None => self.missed |= is_known,
        }
    }

    /// Whether fewer of NCCL's kernels were seen of this launch than of others before, and none of
    /// a later one of the same graph. Of a graph's first launch any kernel counts.
    pub(super) fn is_unseen(&self, graph: u64, index: u64) -> bool {
        self.graphs.get(&graph).is_some_and(|known| index >= known.seen)
    }

    /// How often an executable graph was launched.
    pub(super) fn launches_of(&self, graph: u64) -> u64 {
        self.graphs.get(&graph).map_or(0, |known| known.launched)
    }

    /// The launch of a graph by this call.
    pub(super) fn launch(&self, call: Call) -> Option<Replay> {
        self.launches.get(&call).copied()
    }

    /// What is known about a kernel besides its node.
    ///
    /// # Errors
    ///
    /// The reason, where its node does not tell what it carried.
    pub(super) fn seen(&self, call: Call, span: Option<Span>) -> Result<Seen, Unmatched> {
        let launched = self.launch(call);
        // Without its launch, it is not known which graph it belongs to.
        if launched.map_or(self.changed, |launched| launched.is_changed) {
            return Err(Unmatched::GraphChanged);
        }
        let is_whole = launched.map_or(self.lent.is_empty(), |launched| launched.is_whole);
        Ok(Seen {
            span,
            launched,
            is_counted: is_whole && !self.missed && self.lost.is_none(),
            is_whole,
            is_lossy: self.lost.is_some(),
        })
    }
}
