//! `ncclscope merge` of our traces with a file of the tool that held CUPTI in the same run: that
//! tool's kernels are placed under our operations.
//!
//! The clocks are aligned by the launches that both saw (`compare::starts`). What our trace says
//! about the host becomes the correlator's records again, with the other tool's launching calls
//! where CUPTI's callback would have put them. The correlator then decides which kernel carried
//! what, as it does in the process. Neither file says how the nodes of CUDA graphs came to be. That
//! is concluded from their order where only one answer is possible (`order`), and each match says
//! so.

mod graphs;
mod order;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::graphs::Graphs;
use super::compare::case::{self, Case};
use super::compare::starts;
use super::import::{Drawing, markers};
use crate::cli::reason::Reason;
use crate::correlate::Correlator;
use crate::import::knowledge::duration;
use crate::import::{self, Clock, Handover, Launch, NcclCall, Operation, Profile, Span};
use crate::model::activity::{self, Activity};
use crate::model::event::{
    Body, Coll, CollApi, CommInit, Event, Flag, Group, GroupApi, KernelLaunch, P2p, P2pApi, Record,
};
use crate::model::ids::{Handle, ProcessTag, RingId};
use crate::model::time::{FileNs, HostNs, Ticks};
use crate::model::timeline::{Entry, Method, Owner, What};
use crate::model::word::Word;
use crate::sys;

/// How long after its kernel a plan may be handed over, in ns, with a generous margin.
const LATE_NS: u64 = 5_000_000_000;
/// The ring of calls whose thread is not known.
const NOBODY: RingId = RingId(u32::MAX);
/// Stands for calls that launched a graph unseen.
const NO_CALL: u32 = u32::MAX;

/// What became of one process's kernels.
pub(super) struct Joined {
    pub(super) pid: i64,
    /// How the clocks were aligned, in words.
    pub(super) clock: String,
    pub(super) fate: Fate,
}

/// Counts of what became of kernels.
#[derive(Default)]
pub(super) struct Fate {
    /// NCCL's kernels that were matched, exactly or by the launch's place on its thread.
    pub(super) matched: u64,
    /// NCCL's kernels that were matched by the order in which a graph was captured.
    pub(super) by_capture: u64,
    /// NCCL's kernels that are unmatched, by reason.
    pub(super) unmatched: BTreeMap<&'static str, u64>,
    /// Kernels of the application.
    pub(super) application: u64,
}

impl Fate {
    fn count(&mut self, owner: &Owner<'_>) {
        match owner {
            Owner::Application => self.application += 1,
            Owner::Operations { method: Method::CaptureOrder, .. } => self.by_capture += 1,
            Owner::Operations { .. } => self.matched += 1,
            Owner::Unmatched(reason) => *self.unmatched.entry(reason.text()).or_default() += 1,
        }
    }
}

/// The packets that put `theirs` beside `ours`, and what became of the kernels.
///
/// # Errors
///
/// Why the two cannot be joined.
pub(super) fn packets(ours: &Profile, theirs: Profile) -> Result<(Vec<u8>, Vec<Joined>), Reason> {
    let recognised = case::recognise(ours, &theirs, None)?;
    if recognised.case != Case::SameRun {
        return Err(Reason::Refused(format!(
            "they are not from the same run: {}; use ncclscope compare for two runs",
            recognised.reason
        )));
    }
    let own = own_processes(ours, &theirs)?;
    let calls = starts::launching_calls(&theirs);
    let aligned = starts::align(&starts::brackets(ours), &calls, theirs.clock.to(&ours.clock)).ok_or(
        "their clocks cannot be aligned: more than half of the launches would have to lie in a KernelLaunch of \
         ours, which NCCL reports from 2.28 on",
    )?;
    let theirs = &theirs.shifted(aligned.shift(), &ours.clock);
    let (launches, error) = (aligned.pairs.len(), duration(f64::from(error_of(&theirs.clock))));
    let clock = format!("put on the host's clock by {launches} launches, to ±{error}");
    let extent = theirs.extent().unwrap_or_default();
    let (mut bytes, mut joined) = (Vec::new(), Vec::new());
    for (process, own) in own {
        let tag = ProcessTag::from_random(sys::random());
        let error = format!("{clock}, and its own error is not known");
        let mut drawing = Drawing::beside(theirs, process, extent.start, tag, &ours.processes[own].name, &error);
        let fate = correlate(ours, own, theirs, process, tag, &mut |entry| drawing.tracks().draw(entry));
        drawing.draw(extent.end, &mut bytes).map_err(Reason::Output)?;
        joined.push(Joined { pid: theirs.processes[process].pid, clock: clock.clone(), fate });
    }
    Ok((bytes, joined))
}

/// The processes that both files have, each with its index in ours. Processes on several hosts may
/// have the same id, and those in containers often do.
fn own_processes(ours: &Profile, theirs: &Profile) -> Result<Vec<(usize, usize)>, Reason> {
    let launching: BTreeSet<usize> = ours.launches.iter().map(|launch| launch.process).collect();
    let mut own = Vec::new();
    for (process, about) in theirs.processes.iter().enumerate() {
        let same = || (0..ours.processes.len()).filter(|at| ours.processes[*at].pid == about.pid);
        // A file that was already put beside one of our traces has that process's id, and launches
        // nothing.
        match same().filter(|at| launching.contains(at)).collect::<Vec<_>>()[..] {
            [] => own.extend(same().next().map(|at| (process, at))),
            [at] => own.push((process, at)),
            [one, other, ..] => {
                return Err(Reason::Refused(format!(
                    "several processes in the traces have pid {}, {} and {}, and the file may belong to either: \
                     merge it with the trace of its own process first, then the result with the others",
                    about.pid, ours.processes[one].name, ours.processes[other].name
                )));
            }
        }
    }
    Ok(own)
}

/// What our trace has about one process, in order of time.
struct Own<'a> {
    profile: &'a Profile,
    groups: Vec<Launch>,
    launches: Vec<Launch>,
    plans: Vec<Launch>,
    calls: Vec<&'a NcclCall>,
    handovers: Vec<&'a Handover>,
    /// How many calls are missing.
    lost: u64,
}

impl Own<'_> {
    fn of(profile: &Profile, process: usize) -> Own<'_> {
        let own = |all: &[Launch]| all.iter().filter(|it| it.process == process).copied().collect();
        Own {
            profile,
            groups: own(&profile.groups),
            launches: own(&profile.launches),
            plans: own(&profile.plans),
            calls: profile.nccl_calls.iter().filter(|it| it.process == process).collect(),
            handovers: profile.handovers.iter().filter(|it| it.process == process).collect(),
            lost: profile.processes[process].lost,
        }
    }

    /// The index of the group of calls that surrounds a span.
    fn group_of(&self, tid: i64, span: Span) -> Option<usize> {
        around(&self.groups, tid, span)
    }

    /// A communicator's GPU.
    fn device(&self, communicator: Option<usize>) -> Option<u32> {
        self.profile.communicators[communicator?].device()
    }
}

/// Gives a process's kernels to the correlator, with the records that our trace stands for.
fn correlate(
    ours: &Profile,
    own: usize,
    theirs: &Profile,
    process: usize,
    tag: ProcessTag,
    draw: &mut dyn FnMut(&Entry<'_>),
) -> Fate {
    let known = Own::of(ours, own);
    let calls = launches(theirs, process);
    let graphs = Graphs::of(&known, theirs, process, &calls, i64::from(error_of(&theirs.clock)));
    let mut records = Records { tag, next: 0, list: Vec::new(), rings: Vec::new() };
    let texts = records.all(&known, &calls, &graphs);
    let mut correlator = Correlator::new(tag, i32::try_from(ours.processes[own].pid).unwrap_or(0));
    correlator.expect_kernels();
    let mut fate = Fate::default();
    let mut sink = |entry: &Entry<'_>| {
        if let What::Kernel { kernel, owner } = entry.what {
            let owner = graphs.owner(kernel, owner);
            fate.count(&owner);
            draw(&Entry { time: entry.time, what: What::Kernel { kernel, owner } });
        }
    };
    let first = records.list.first().map_or(HostNs(0), |record| record.time.in_trace());
    for (word, text) in &texts {
        let body = Body::Text { word: *word, text: text.as_bytes() };
        correlator.push(RingId(0), first, &Record { ticks: Ticks(0), body }, &mut sink);
    }
    // As in the process, a kernel arrives after the records of its time and of some time after it,
    // and the ranges around its call arrive before it.
    let markers = markers(theirs, process).into_iter().map(|marker| (marker.time, Activity::Marker(marker)));
    let kernels = theirs.kernels.iter().filter(|kernel| kernel.process == process);
    let kernels =
        kernels.map(|kernel| this_kernel(kernel, &theirs.clock)).map(|it| (it.span.end, Activity::Kernel(it)));
    let mut activities: Vec<(HostNs, Activity)> = markers.chain(kernels).collect();
    activities.sort_by_key(|(time, _)| *time);
    let mut activities = activities.into_iter().peekable();
    for Recorded { time, ring, body, times, .. } in &records.list {
        let time = time.in_trace();
        while let Some((_, activity)) = activities.next_if(|(end, _)| end.saturating_add(LATE_NS) <= time) {
            correlator.push_activity(activity, &mut sink);
        }
        for _ in 0..*times {
            correlator.push(*ring, time, &Record { ticks: Ticks(0), body: *body }, &mut sink);
        }
    }
    for (_, activity) in activities {
        correlator.push_activity(activity, &mut sink);
    }
    correlator.finish(&mut sink);
    fate
}

/// How far the kernels' times may be off on our clock, ns: the error of the clock alignment plus
/// that of CUPTI, where all tools get these times from.
fn error_of(clock: &Clock) -> u32 {
    let error = clock.error_ns.saturating_add(u64::from(activity::GPU_STAMP_ERROR_NS));
    u32::try_from(error).unwrap_or(activity::Span::UNKNOWN_ERROR)
}

/// One of the other tool's kernels, as CUPTI would have reported it.
fn this_kernel(kernel: &import::Kernel, clock: &Clock) -> activity::Kernel {
    activity::Kernel {
        span: activity::Span {
            start: kernel.span.start.in_trace(),
            end: kernel.span.end.max(kernel.span.start).in_trace(),
            error_ns: error_of(clock),
        },
        place: kernel.place,
        correlation: kernel.correlation,
        graph_node: kernel.graph_node,
        graph: graphs::of_node(kernel.graph_node) as u32,
        grid: kernel.grid,
        block: kernel.block,
        name: kernel.name.clone(),
    }
}

/// The other tool's calls that launched NCCL's kernels: thread, span on our clock, correlation id.
fn launches(theirs: &Profile, process: usize) -> Vec<(i64, Span, u32)> {
    let threads = starts::launching_calls(theirs);
    let own = threads.into_iter().filter(|((pid, _), _)| *pid == theirs.processes[process].pid);
    let of = |tid: i64, call: starts::Call| (tid, call.span, theirs.kernels[call.kernel].correlation);
    own.flat_map(|((_, tid), calls)| calls.into_iter().map(move |call| of(tid, call))).collect()
}

/// The correlator's records, made from what a trace shows.
struct Records {
    tag: ProcessTag,
    next: u64,
    list: Vec<Recorded>,
    /// Threads, by the number of their ring.
    rings: Vec<i64>,
}

/// The order of records that have the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Inner spans first, which began later.
    End(Reverse<FileNs>),
    Thread,
    Communicator,
    /// Outer spans first, which end later.
    Begin(Reverse<FileNs>),
    Launch,
    Node,
    Replay,
}

struct Recorded {
    time: FileNs,
    order: Order,
    ring: RingId,
    body: Body<'static>,
    /// How often the record repeats.
    times: u64,
}

impl Records {
    /// Makes the records, in order of time, and returns the texts that they refer to.
    fn all(&mut self, own: &Own<'_>, calls: &[(i64, Span, u32)], graphs: &Graphs) -> Vec<(Word, String)> {
        let spans = own.groups.iter().chain(&own.launches).chain(&own.plans);
        let begin = spans.clone().map(|it| it.span.start).min().unwrap_or_default();
        let replaying = graphs.replays.iter().filter_map(|replay| replay.tid);
        let tids: BTreeSet<i64> =
            spans.map(|it| it.tid).chain(own.calls.iter().map(|it| it.tid)).chain(replaying).collect();
        self.rings = tids.into_iter().collect();
        for (ring, tid) in self.rings.clone().into_iter().enumerate() {
            let body = Body::Thread { tid: i32::try_from(tid).unwrap_or(0), name: [0; 16] };
            self.push(begin, Order::Thread, RingId(ring as u32), body);
        }
        let (contexts, texts) = self.communicators(own, begin);
        let context = |at: Option<usize>| at.and_then(|at| contexts.get(&at)).copied().unwrap_or(Handle::NONE);

        let groups: Vec<Handle> = (own.groups.iter())
            .map(|it| {
                let event = Event::GroupApi(GroupApi { depth: 1, ..GroupApi::default() });
                self.event(it.tid, it.span, Handle::NONE, context(it.communicator), event)
            })
            .collect();
        let in_group = |tid, span| own.group_of(tid, span).map_or(Handle::NONE, |at| groups[at]);
        // Arrows lead from a call to what follows from it.
        let mut by_arrow: HashMap<u64, Handle> = HashMap::new();
        for call in &own.calls {
            let (parent, context) = (in_group(call.tid, call.span), context(call.operation.communicator));
            let handle = self.event(call.tid, call.span, parent, context, called(&call.operation, call.captured));
            by_arrow.extend(call.arrows.iter().map(|arrow| (*arrow, handle)));
        }
        let launches: Vec<Handle> = (own.launches.iter())
            .map(|it| {
                let event = Event::KernelLaunch(KernelLaunch { stream: it.stream });
                self.event(it.tid, it.span, in_group(it.tid, it.span), context(it.communicator), event)
            })
            .collect();
        let plans: Vec<Handle> = (own.plans.iter())
            .map(|it| {
                self.event(it.tid, it.span, Handle::NONE, context(it.communicator), Event::Group(Group::default()))
            })
            .collect();
        for handover in &own.handovers {
            let &Handover { tid, span, ref operation, ref arrows, .. } = *handover;
            let parent = arrows.iter().find_map(|arrow| by_arrow.get(arrow)).copied().unwrap_or(Handle::NONE);
            let group = around(&own.plans, tid, span).map_or(Handle::NONE, |at| plans[at]);
            self.event(tid, span, parent, context(operation.communicator), handed_over(operation, group));
        }
        for &(tid, span, correlation) in calls {
            let launch = around(&own.launches, tid, span).map_or(Handle::NONE, |at| launches[at]);
            let Some(ring) = self.ring(tid) else { continue };
            let body = Body::Launch { correlation, nccl: true, launch, group: in_group(tid, span) };
            self.push(span.start, Order::Launch, ring, body);
        }
        self.graphs(own, &launches, graphs);
        self.list.sort_by_key(|record| (record.time, record.order));
        texts
    }

    /// What CUPTI's callbacks would have reported about graphs: nodes made by a launch, cloned
    /// nodes, and launches.
    fn graphs(&mut self, own: &Own<'_>, launches: &[Handle], graphs: &Graphs) {
        // A captured node has a number that belongs to no graph.
        let original = |launch: usize| u64::MAX - launch as u64;
        for &launch in &graphs.captured {
            let body = Body::GraphNode { node: original(launch), original: 0, launch: launches[launch] };
            self.push(own.launches[launch].span.start, Order::Launch, RingId(0), body);
        }
        for &(launch, node) in &graphs.nodes {
            let body = Body::GraphNode { node, original: original(launch), launch: Handle::NONE };
            self.push(own.launches[launch].span.start, Order::Node, RingId(0), body);
        }
        for replay in &graphs.replays {
            let ring = replay.tid.and_then(|tid| self.ring(tid)).unwrap_or(NOBODY);
            let missed = Body::GraphLaunch { graph: replay.graph, correlation: NO_CALL };
            self.push(replay.time, Order::Replay, ring, missed);
            if let Some(missed) = self.list.last_mut() {
                missed.times = replay.missed;
            }
            let body = Body::GraphLaunch { graph: replay.graph, correlation: replay.correlation };
            self.push(replay.time, Order::Replay, ring, body);
        }
    }

    fn push(&mut self, time: FileNs, order: Order, ring: RingId, body: Body<'static>) {
        self.list.push(Recorded { time, order, ring, body, times: 1 });
    }

    /// The communicators, by index in the profile.
    fn communicators(&mut self, own: &Own<'_>, begin: FileNs) -> (HashMap<usize, Handle>, Vec<(Word, String)>) {
        let spans = own.groups.iter().chain(&own.launches).chain(&own.plans);
        let mut used: BTreeSet<usize> = spans.filter_map(|it| it.communicator).collect();
        used.extend(own.handovers.iter().filter_map(|it| it.operation.communicator));
        let (mut contexts, mut texts) = (HashMap::new(), Vec::new());
        for at in used {
            let communicator = &own.profile.communicators[at];
            let context = self.handle();
            let name = match &communicator.name {
                Some(name) => {
                    let word = Word(Word::FIRST_TEXT.0.saturating_add(texts.len() as u16));
                    texts.push((word, name.clone()));
                    word
                }
                None => Word::ABSENT,
            };
            let body = Body::CommInit(CommInit {
                context,
                hash: communicator.hash.unwrap_or(0),
                rank: communicator.rank.unwrap_or(-1),
                ranks: communicator.ranks.unwrap_or(-1),
                nodes: communicator.nodes.unwrap_or(-1),
                name,
                interface: communicator.interface.and_then(|it| u8::try_from(it).ok()).unwrap_or(0),
                version: communicator.version.unwrap_or(0),
                device_plus_one: communicator.device().map_or(0, |device| device + 1),
                ..CommInit::default()
            });
            self.push(begin, Order::Communicator, RingId(0), body);
            contexts.insert(at, context);
        }
        (contexts, texts)
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(self.tag.base() + self.next)
    }

    fn ring(&self, tid: i64) -> Option<RingId> {
        self.rings.binary_search(&tid).ok().map(|ring| RingId(ring as u32))
    }

    /// The start and the stop of an event.
    fn event(&mut self, tid: i64, span: Span, parent: Handle, context: Handle, event: Event) -> Handle {
        let handle = self.handle();
        if let Some(ring) = self.ring(tid) {
            // A stop at the time of its start would be sorted before it.
            let end = span.end.max(span.start.saturating_add(1));
            let start = Body::Start { handle, parent, context, rank: 0, event };
            self.push(span.start, Order::Begin(Reverse(end)), ring, start);
            self.push(end, Order::End(Reverse(span.start)), ring, Body::Stop { handle });
        }
        handle
    }
}

/// The last one on a thread that surrounds a span, of those sorted by start.
fn around(all: &[Launch], tid: i64, span: Span) -> Option<usize> {
    let next = all.partition_point(|it| it.span.start <= span.start);
    let near = all[..next].iter().enumerate().rev().filter(|(_, it)| it.tid == tid);
    // Groups nest only in programs that nest them, so looking back a few is enough.
    near.take(8).find(|(_, it)| it.span.contains(span)).map(|(at, _)| at)
}

fn word(text: Option<&str>) -> Word {
    text.and_then(|text| Word::known(text.as_bytes())).unwrap_or(Word::ABSENT)
}

/// The call that asks for an operation.
fn called(operation: &Operation, captured: bool) -> Event {
    let captured = Flag(u8::from(captured));
    let (func, datatype) = (word(Some(&operation.function)), word(operation.datatype.as_deref()));
    let count = operation.count.unwrap_or(0);
    if operation.is_point_to_point() {
        Event::P2pApi(P2pApi { count, func, datatype, captured, ..P2pApi::default() })
    } else {
        Event::CollApi(CollApi {
            count,
            func,
            datatype,
            captured,
            root: operation.root.unwrap_or(-1),
            ..CollApi::default()
        })
    }
}

/// The hand-over of an operation in a plan.
fn handed_over(operation: &Operation, group: Handle) -> Event {
    let (func, datatype) = (word(Some(&operation.function)), word(operation.datatype.as_deref()));
    let count = operation.count.unwrap_or(0);
    let channels = operation.channels.and_then(|it| u8::try_from(it).ok()).unwrap_or(0);
    if operation.is_point_to_point() {
        let peer = operation.peer.unwrap_or(-1);
        return Event::P2p(P2p { count, group, peer, func, datatype, channels, ..P2p::default() });
    }
    Event::Coll(Coll {
        seq: operation.seq.unwrap_or(0),
        count,
        group,
        root: operation.root.unwrap_or(-1),
        reduction: -1,
        func,
        datatype,
        algorithm: word(operation.algorithm.as_deref()),
        protocol: word(operation.protocol.as_deref()),
        channels,
        ..Coll::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Shift;

    #[test]
    fn imported_kernels_are_as_uncertain_as_cupti_s() {
        let on_ours = |low, high| Profile::default().shifted(Shift::between(low, high), &Clock::default()).clock;
        assert_eq!(error_of(&on_ours(5_000, 5_220)), 1_110);
        assert_eq!(error_of(&on_ours(0, i64::MAX / 4)), activity::Span::UNKNOWN_ERROR);
    }
}
