//! The correlator (pure): records go in, in order of time, and entries of the timeline come out.
//!
//! NCCL's handles are numbers here. An event is looked up by its handle, and every look-up may
//! miss: the record was lost, the event is older than what is remembered, or another process made
//! the handle. Each miss is counted, and stated where it matters. What is remembered is bounded,
//! whatever the job does.

mod adopt;
mod bounded;
mod channels;
mod comms;
mod doubted;
mod external;
mod history;
mod kernels;
mod known;
mod plans;
mod proxy;
mod ranges;
mod replays;
mod streams;
mod times;
mod trail;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::bounded::Bounded;
use self::channels::{Adopted, Channels, Facts, Ready};
use self::comms::Comms;
use self::doubted::Doubted;
use self::external::Waiting;
pub(crate) use self::history::History;
#[cfg(feature = "cli")]
pub(crate) use self::history::step_of;
use self::kernels::Carried;
use self::known::{Details, Known, Table, Work};
use self::plans::Plans;
use self::proxy::Connection;
use self::ranges::Ranges;
use self::streams::Streams;
use self::trail::Trail;
use crate::clock::skew::Skew;
use crate::model::activity::Activity;
use crate::model::event::{self, Body, Event, Kind, Record};
use crate::model::ids::{Handle, ProcessTag, RingId};
use crate::model::state;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{
    Channel, Comm, Doubt, Doubts, Entry, Matches, Method, Moment, Operation, Texts, Thread, ThreadId, What,
};
use crate::model::word::Word;

/// How many combinations of communicator, peer and direction have their sends and receives counted.
const PEERS: usize = 28 << 10;
/// How many collectives of the copy engines are remembered, and how many calls that queued copies
/// for them.
const COPY_ENGINE: usize = 7 << 10;

/// Joins records to a timeline.
///
/// It has more than twenty fields because a record may touch any of them; whatever has rules of its
/// own has a type of its own.
#[derive(Debug)]
pub struct Correlator {
    tag: ProcessTag,
    pid: i32,
    comms: Comms,
    texts: FxHashMap<Word, Box<str>>,
    /// The thread that owns each ring now, and the system's id of it.
    rings: FxHashMap<RingId, (ThreadId, i32)>,
    threads: u32,
    events: Table,
    /// The newest proxy operations, oldest first.
    pending: VecDeque<Handle>,
    /// Connections on which a proxy operation showed progress. They are the network's, so their
    /// operations queue behind each other.
    connections: Bounded<Connection, ()>,
    /// Sends and receives so far, by communicator, peer and direction.
    p2p_numbers: FxHashMap<(Handle, i32, Word), u32>,
    plans: Plans,
    /// Collectives of the copy engines, with their context.
    copy_engine: Bounded<Handle, (Handle, Operation)>,
    /// The collective that queued the copies with this correlation id.
    copying: Bounded<u32, Handle>,
    /// Kernels that wait for the external id of their launch.
    waiting: Waiting,
    ranges: Ranges,
    history: History,
    channels: Channels,
    /// CUPTI's times of kernels compared with NCCL's own, by GPU.
    skews: FxHashMap<u32, Skew>,
    /// Kernels by stream; they begin in the order of their launches.
    streams: Streams,
    /// Kernels whose own times contradict their match.
    doubted: Vec<Doubted>,
    /// When a communicator last made progress: in the proxy, or on a channel.
    moved: FxHashMap<Handle, HostNs>,
    doubts: Doubts,
    matches: Matches,
    last: HostNs,
    trail: Trail,
}

/// An event that starts.
struct Started<'e> {
    id: Handle,
    parent: Handle,
    context: Handle,
    thread: ThreadId,
    /// Where it starts (which thread), and when.
    here: Moment,
    event: &'e Event,
    /// Why it may not belong to its parent.
    doubt: Option<Doubt>,
}

/// Where entries go: `now` is the time of the record at hand.
struct Out<'f> {
    now: HostNs,
    sink: &'f mut dyn FnMut(&Entry<'_>),
}

impl Out<'_> {
    fn say(&mut self, what: What<'_>) {
        self.say_at(self.now, what);
    }

    fn say_at(&mut self, time: HostNs, what: What<'_>) {
        (self.sink)(&Entry { time, what });
    }
}

impl Correlator {
    /// A correlator for the process with this tag and process id.
    #[must_use]
    pub fn new(tag: ProcessTag, pid: i32) -> Correlator {
        Correlator {
            tag,
            pid,
            comms: Comms::default(),
            texts: FxHashMap::default(),
            rings: FxHashMap::default(),
            threads: 0,
            events: Table::default(),
            pending: VecDeque::new(),
            connections: Bounded::default(),
            p2p_numbers: FxHashMap::default(),
            plans: Plans::default(),
            copy_engine: Bounded::default(),
            copying: Bounded::default(),
            waiting: Waiting::default(),
            ranges: Ranges::default(),
            history: History::default(),
            channels: Channels::default(),
            skews: FxHashMap::default(),
            streams: Streams::default(),
            doubted: Vec::new(),
            moved: FxHashMap::default(),
            doubts: Doubts::default(),
            matches: Matches::default(),
            last: HostNs(0),
            trail: Trail::default(),
        }
    }

    /// From here on less is remembered: enough for two thousand operations between the call and
    /// CUPTI's record of the kernel.
    pub fn remember_less(&mut self) {
        self.events.remember_less();
        self.plans.remember_less();
    }

    /// The doubts so far.
    #[must_use]
    pub fn doubts(&self) -> Doubts {
        Doubts { evicted_open: self.events.evicted_open(), ..self.doubts }
    }

    /// What became of the kernels so far.
    #[must_use]
    pub fn matches(&self) -> Matches {
        let (without_kernel, channels) = (self.plans.without_kernel(), self.channels.checks());
        let (cupti_off, unpaired_markers) = (self.open_errors(), self.ranges.unpaired());
        Matches { without_kernel, channels, unpaired_markers, cupti_off, ..self.matches }
    }

    /// From here on, keeps the decisions about the kernels of the call with this correlation id.
    #[cfg(feature = "cli")]
    pub fn explain(&mut self, correlation: u32) {
        self.trail.follow(correlation);
    }

    /// The decisions since the last call, one per line.
    #[cfg(feature = "cli")]
    pub fn take_explained(&mut self) -> Vec<String> {
        self.trail.take()
    }

    /// Kernels will be reported, so what depends on them waits for them.
    pub fn expect_kernels(&mut self) {
        self.channels.expect_kernels();
        self.plans.expect_kernels();
    }

    /// From here on, kernels of graphs may name a launch of their graph other than their own.
    pub fn distrust_graph_launches(&mut self) {
        self.plans.distrust_graph_launches();
    }

    /// Launches will be named by external ids, so a kernel without a launch waits for one.
    pub fn expect_external_ids(&mut self) {
        self.waiting.expect();
    }

    /// The system's id of the thread that a ring belongs to.
    #[must_use]
    pub fn thread_of(&self, ring: RingId) -> Option<i32> {
        self.rings.get(&ring).map(|&(_, tid)| tid)
    }

    /// Whether an event is remembered.
    #[must_use]
    pub fn knows(&self, id: Handle) -> bool {
        self.events.get(id).is_some()
    }

    /// Takes the next record of a ring, and hands what follows from it to `sink`.
    pub fn push(&mut self, ring: RingId, time: HostNs, record: &Record<'_>, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.doubts.late += u64::from(time < self.last);
        self.last = self.last.max(time);
        let out = &mut Out { now: time, sink };
        match record.body {
            Body::Start { handle, parent, context, event, .. } => {
                self.start(ring, handle, parent, context, &event, out);
            }
            Body::Stop { handle } => self.stop(handle, out),
            Body::State { handle, state, argument, steps } => self.state(handle, state, argument, steps, out),
            Body::NetUpdate { handle, ref net } => match find(&mut self.events, self.tag, &mut self.doubts, handle) {
                Some(known) if known.kind == Kind::NetPlugin => out.say(What::NetUpdate { id: handle, net }),
                Some(_) => self.doubts.unknown_types += 1,
                None => {}
            },
            Body::CommInit(init) => self.comm_init(&init, out),
            Body::CommFinalize { context } => {
                self.give_up_pending(Some(context), out);
                self.channels.finalized(context);
                self.say_ready(out.sink);
                match self.comms.get(&context) {
                    Some(comm) => {
                        out.say(What::CommFinalize(comm));
                        self.forget_after(context);
                    }
                    None => self.doubts.unknown_handles += 1,
                }
            }
            Body::CommIdentity { context, hash, name } => {
                let name = self.text(name);
                if let Some(comm) = self.comms.identify(context, hash, name) {
                    out.say(What::CommInit(comm));
                }
            }
            Body::Thread { tid, ref name } => self.thread(ring, tid, &String::from_utf8_lossy(name), out),
            Body::ThreadEnd => {
                if let Some((thread, _)) = self.rings.remove(&ring) {
                    self.plans.thread_end(thread);
                    out.say(What::ThreadEnd(thread));
                }
            }
            // A range of the program's: it comes as an activity.
            Body::Step { .. } => {}
            Body::Text { word, text } => {
                self.texts.insert(word, String::from_utf8_lossy(text).into());
            }
            Body::Launch { correlation, launch, .. } if self.copy_engine.get(&launch).is_some() => {
                self.copying.insert(correlation, launch, COPY_ENGINE);
            }
            Body::Launch { correlation, launch, group, .. } => {
                let thread = self.rings.get(&ring).map(|(thread, _)| *thread);
                // KernelLaunch was introduced in v5.
                let declared = self.comms.interface >= 5;
                self.plans.kernel_launched(thread, correlation, launch, group, declared, time);
            }
            Body::GraphLaunch { graph, correlation } => {
                let asked = self.rings.get(&ring).map(|&(_, tid)| Moment { tid, time });
                self.plans.graph_launched(graph, correlation, asked, time);
            }
            Body::GraphChange { graph } => self.plans.graphs.changed(graph),
            Body::GraphNode { node, original: 0, launch } => self.plans.node(node, launch),
            Body::GraphNode { node, original, .. } => self.plans.node_cloned(node, original),
        }
    }

    /// Takes something that CUPTI reported. Call it in the order in which things ended, after all
    /// records up to that time: a kernel finds its operations only if these have been pushed.
    pub fn push_activity(&mut self, activity: &Activity, sink: &mut dyn FnMut(&Entry<'_>)) {
        match activity {
            Activity::Kernel(kernel) => {
                self.kernel(kernel, sink);
                self.say_decided(self.last, false, sink);
                self.say_ready(sink);
            }
            Activity::Copy(copy) => self.copy(copy, sink),
            Activity::CudaCall(call) => sink(&Entry { time: call.span.start, what: What::CudaCall(call) }),
            Activity::Marker(marker) => {
                self.history.follow(marker);
                if let Some((marker, end)) = self.ranges.push(marker) {
                    let what = What::Range { marker: &marker, end, is_open: false };
                    sink(&Entry { time: marker.time, what });
                }
            }
            Activity::HostFunction(function) => {
                sink(&Entry { time: function.span.start, what: What::HostFunction(function) });
            }
            Activity::Device(device) => sink(&Entry { time: self.last, what: What::Device(device) }),
            Activity::Overhead(overhead) => {
                sink(&Entry { time: overhead.span.start, what: What::Overhead(overhead) });
            }
            Activity::ExternalId { id, correlation } => self.external_id(*id, *correlation, sink),
            Activity::Dropped(count) => {
                self.matches.dropped += count;
                self.history.lost();
            }
            Activity::Unfinished(kernel) => self.unfinished(kernel, sink),
            Activity::Untimed(kernel) => self.untimed(kernel, sink),
            Activity::Implausible => self.matches.implausible += 1,
            Activity::Context(_) | Activity::Stream(_) => {}
        }
    }

    /// When all of an operation's work that NCCL reported had ended; `None` if it reported none, or
    /// some continues.
    #[must_use]
    pub fn work_done(&self, operation: Handle) -> Option<HostNs> {
        match self.events.details(operation)? {
            Details::Operation(.., work) => work.done(),
            _ => None,
        }
    }

    /// When the proxy or a channel of a communicator last made progress.
    #[must_use]
    pub fn moved(&self, context: Handle) -> Option<HostNs> {
        self.moved.get(&context).copied()
    }

    /// When the first launch was made that has no kernel yet and about which NCCL reports nothing
    /// else: a launch of a graph, or of broadcasts from 2.29 on.
    pub fn unseen_launch(&mut self) -> Option<HostNs> {
        self.plans.unseen_since()
    }

    /// CUPTI is lent from this time on, for a while: launches and changes of graphs are not seen.
    /// Earlier records may still arrive.
    pub fn lent(&mut self, time: HostNs) {
        self.plans.graphs.lent(time);
    }

    /// There was no room for a record.
    pub fn lost(&mut self) {
        self.plans.graphs.lost();
    }

    /// CUPTI has returned everything up to this time, so no records will arrive for the kernels
    /// still missing.
    pub fn all_seen(&mut self, until: HostNs) {
        self.plans.all_seen(until);
    }

    /// Some of NCCL's work for an operation begins or ends.
    fn work(&mut self, operation: Handle, part: impl FnOnce(&mut Work)) {
        if let Some(Details::Operation(.., work)) = self.events.details_mut(operation) {
            part(work);
        }
    }

    /// Emits what became certain about channels, and about kernels by their channels.
    fn say_ready(&mut self, sink: &mut dyn FnMut(&Entry<'_>)) {
        while let Some(ready) = self.channels.next_ready() {
            let (time, what) = match &ready {
                Ready::Begin { time, context, facts, timing, unreliable } => {
                    let Facts { id, channel, phase, operation, doubt, start } = &**facts;
                    let phase = phase.as_ref().map(|(number, name)| (*number, &**name));
                    let what = What::ChannelBegin {
                        id: *id,
                        comm: self.comms.get(context),
                        channel: Channel { channel: *channel, start: *start, phase },
                        operation: operation.as_deref(),
                        timing: *timing,
                        unreliable: *unreliable,
                        doubt: *doubt,
                    };
                    (*time, what)
                }
                Ready::End { time, id, stop, timing, doubt } => {
                    (*time, What::ChannelEnd { id: *id, stop: *stop, timing: *timing, doubt: *doubt })
                }
                Ready::Step { device, after, before, by } => {
                    (*after, What::TimerStep { device: *device, before: *before, by: *by })
                }
                &Ready::Contradicted { time, place, key: (correlation, graph_node), method } => {
                    *self.matches.by(method) -= 1;
                    *self.matches.by(Method::Contradicted) += 1;
                    (time, What::Contradicted { place, correlation, graph_node })
                }
                Ready::Kernel(kernel, Err(reason)) => {
                    self.trail.say(kernel, || self.channels.explain(kernel));
                    self.unmatched(kernel, *reason, sink);
                    continue;
                }
                Ready::Kernel(kernel, Ok(Adopted { group, context, operations, launch })) => {
                    self.trail.say(kernel, || {
                        let carried = trail::operations(operations);
                        [format!("its channels: those of one plan alone ran in it, by the GPU's timer: {carried}")]
                    });
                    self.plans.claimed_otherwise(*launch);
                    let (context, group, launch) = (*context, *group, *launch);
                    let (replay, replayed, untold) = (None, None, 0);
                    let carried = Carried { context, group, operations, launch, replay, replayed, untold };
                    self.matched(kernel, Method::DeviceTimer, &carried, sink);
                    continue;
                }
            };
            sink(&Entry { time, what });
        }
    }

    /// Advances the time to `now`, whether or not records arrived: what waited long enough for
    /// something else is emitted.
    pub fn advance(&mut self, now: HostNs, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.give_up_waiting(now, sink);
        self.channels.advance(now);
        self.say_decided(now, false, sink);
        self.say_ready(sink);
    }

    /// Nothing more will arrive: emits what is known to be silent only now.
    pub fn finish(&mut self, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.give_up_waiting(HostNs(u64::MAX), sink);
        for marker in self.ranges.finish() {
            sink(&Entry { time: marker.time, what: What::Range { marker: &marker, end: None, is_open: true } });
        }
        self.say_decided(self.last, true, sink);
        self.channels.finish(self.last);
        self.say_ready(sink);
        let out = &mut Out { now: self.last, sink };
        self.give_up_pending(None, out);
    }

    fn thread(&mut self, ring: RingId, tid: i32, name: &str, out: &mut Out<'_>) {
        let id = ThreadId(self.threads);
        self.threads += 1;
        self.rings.insert(ring, (id, tid));
        out.say(What::Thread(Thread { id, tid, name: name.trim_end_matches('\0') }));
    }

    fn comm_init(&mut self, init: &event::CommInit, out: &mut Out<'_>) {
        let name = self.text(init.name);
        let comm = self.comms.add(init, name);
        if let Some(device) = comm.device {
            self.channels.comm_on(init.context, device);
        }
        out.say(What::CommInit(comm));
    }

    /// A communicator has ended, so the one that ended longest ago is forgotten.
    fn forget_after(&mut self, context: Handle) {
        if let Some(oldest) = self.comms.end(context) {
            self.moved.remove(&oldest);
            self.p2p_numbers.retain(|(context, ..), _| *context != oldest);
            self.channels.forget(oldest);
        }
    }

    fn start(&mut self, ring: RingId, id: Handle, parent: Handle, context: Handle, event: &Event, out: &mut Out<'_>) {
        let (thread, tid) = match self.rings.get(&ring) {
            Some(&owner) => owner,
            None => {
                // The record that names the ring's thread was lost.
                self.thread(ring, 0, "unknown", out);
                self.rings[&ring]
            }
        };
        let here = Moment { tid, time: out.now };
        let kind = event.kind();
        let mut known = Known { kind, thread, context, start: out.now, stops: 0, details: Details::None };
        let doubt = self.doubt_of_parent(parent, kind);
        match kind {
            Kind::Group => {
                let since = self.plans.group(id, thread, context, out.now);
                self.channels.run(id, context, since);
            }
            _ => self.plans.something_else(thread),
        }
        let started = &Started { id, parent, context, thread, here, event, doubt };
        match *event {
            Event::GroupApi(_) => known.details = Details::Group { marks: [None; 2] },
            Event::CollApi(event::CollApi { captured, .. }) | Event::P2pApi(event::P2pApi { captured, .. }) => {
                known.details = Details::Call { captured: captured.is_set(), replays: 0, group: parent, made: here };
            }
            Event::Coll(_) | Event::P2p(_) => known.details = self.handed_over(started, out),
            Event::ProxyOp(op) => known.details = self.start_proxy_op(started, op, out),
            Event::ProxyStep(step) => return self.start_step(known, id, parent, step.step, out),
            Event::KernelCh(channel) => {
                let (operation, group) = match self.events.details(parent) {
                    Some(Details::Operation(operation, group, _)) => (Some(Arc::clone(operation)), *group),
                    _ => (None, Handle::NONE),
                };
                let (channel, start) = (channel.channel, channel.start);
                let facts = Facts { id, channel, phase: None, operation, doubt, start };
                self.work(parent, |work| work.channels[0] += 1);
                let run = self.channels.begin(group, context, facts, out.now);
                known.details = Details::Channel { run, operation: parent };
            }
            Event::KernelPhase(phase) => {
                let run = match self.events.details(parent) {
                    Some(Details::Channel { run, .. }) => *run,
                    _ => Handle::NONE,
                };
                let name = self.text(phase.phase).unwrap_or_else(|| "phase".into());
                let (channel, start, phase) = (phase.channel, phase.start, Some((phase.phase_id, name)));
                let facts = Facts { id, channel, phase, operation: None, doubt, start };
                let run = self.channels.begin(run, context, facts, out.now);
                known.details = Details::Channel { run, operation: Handle::NONE };
            }
            Event::NetPlugin(ref net) => out.say(What::NetBegin { id, thread, net: &net.net }),
            Event::Unknown(unknown) => {
                self.doubts.unknown_types += 1;
                out.say(What::Unknown { thread, bits: unknown.bits });
            }
            Event::CeColl(_) => {
                known.details = Details::Call { captured: false, replays: 0, group: Handle::NONE, made: here };
            }
            Event::KernelLaunch(launch) => self.plans.launch(id, context, parent, launch.stream, out.now),
            Event::ProxyCtrl(_) | Event::Group(_) | Event::CeSync(_) | Event::CeBatch(_) => {}
        }
        if is_host_call(kind) {
            self.call_begins(started, out);
        }
        self.events.insert(id, known);
        // Emits samples that were displaced.
        self.say_ready(out.sink);
    }

    /// NCCL hands over an operation.
    fn handed_over(&mut self, started: &Started<'_>, out: &mut Out<'_>) -> Details {
        let &Started { id, parent, context, thread, here, event, doubt } = started;
        let asked = match self.events.details(parent) {
            Some(Details::Call { made, .. }) => *made,
            _ => here,
        };
        let operation = self.operation(id, context, *event, out.now, asked);
        let replay = self.replay(parent);
        let comm = self.comms.get(&context);
        if comm.is_some_and(|comm| miscounts(comm, &operation.event, replay)) {
            self.channels.distrust(context);
        }
        let call = if self.comms.get(&context).is_some_and(|comm| comm.interface >= 5) { parent } else { Handle::NONE };
        let operation = Arc::new(operation);
        out.say(What::OperationBegin { id, thread, call, comm, operation: &operation, replay, doubt });
        let (group, group_api) = self.groups_of(event, parent);
        self.plans.operation(group, &operation, parent, group_api);
        Details::Operation(operation, group, Work::default())
    }

    /// A call on a host thread begins.
    fn call_begins(&mut self, started: &Started<'_>, out: &mut Out<'_>) {
        let &Started { id, parent, context, thread, here, event, doubt } = started;
        let operation = matches!(event, Event::CollApi(_) | Event::P2pApi(_) | Event::CeColl(_))
            .then(|| self.operation(id, context, *event, out.now, here));
        let asked_by = match event.kind() {
            Kind::KernelLaunch => self.plans.calls.of(parent, context),
            _ => Vec::new(),
        };
        let (comm, asked_by) = (self.comms.get(&context), &asked_by[..]);
        out.say(What::CallBegin { id, thread, comm, event, operation: operation.as_ref(), asked_by, doubt });
        match operation {
            Some(operation) if event.kind() == Kind::CeColl => {
                if let Some(Details::Call { group, .. }) = self.events.details(parent) {
                    self.plans.calls.carried(*group, parent);
                }
                self.copy_engine.insert(id, (context, operation), COPY_ENGINE);
            }
            Some(operation) => self.plans.calls.add(id, context, parent, &Arc::new(operation)),
            None => {}
        }
    }

    fn stop(&mut self, id: Handle, out: &mut Out<'_>) {
        let Some(known) = find(&mut self.events, self.tag, &mut self.doubts, id) else { return };
        if known.stops > 0 {
            known.stops = known.stops.saturating_add(1);
            self.doubts.double_stops += 1;
            return;
        }
        match known.kind {
            Kind::KernelLaunch => self.plans.launched(id, known.thread),
            Kind::Group => {
                if let Some(handover) = self.plans.group_end(id) {
                    self.channels.handed_over(id, handover);
                }
            }
            _ => {}
        }
        match known.details {
            Details::Group { marks } => out.say(What::CallEnd { id, group_marks: marks }),
            Details::Operation(..) => out.say(What::OperationEnd { id }),
            Details::ProxyOp { ref mut steps, parent, .. } => {
                let (open, now, context) = (std::mem::take(steps), out.now, known.context);
                self.moved.insert(context, now);
                self.work(parent, |work| (work.proxy[1], work.last) = (work.proxy[1] + 1, now));
                self.show_progress(id, out);
                self.end_steps(&open, out);
                out.say(What::ProxyOpEnd { id });
            }
            Details::Channel { run, operation } => {
                let (now, context) = (out.now, known.context);
                self.moved.insert(context, now);
                // Some releases of NCCL mistake the reports of one operation for those of another.
                if !self.channels.distrusts(context) {
                    self.work(operation, |work| (work.channels[1], work.last) = (work.channels[1] + 1, now));
                }
                self.channels.end(run, id, out.now);
                self.say_ready(out.sink);
            }
            Details::Step { op, step, first, starts, .. } => {
                self.moved.insert(known.context, out.now);
                out.say(What::StepEnd { id: first, starts, stopped: true });
                if let Some(Details::ProxyOp { steps, .. }) = self.events.details_mut(op) {
                    steps.retain(|&(number, _)| number != step);
                }
            }
            Details::Call { .. } => out.say(What::CallEnd { id, group_marks: [None; 2] }),
            Details::None if known.kind == Kind::NetPlugin => out.say(What::NetEnd { id }),
            Details::None if is_host_call(known.kind) => out.say(What::CallEnd { id, group_marks: [None; 2] }),
            Details::None => {}
        }
        self.events.close(id);
    }

    fn state(&mut self, id: Handle, number: u16, argument: u64, steps: i32, out: &mut Out<'_>) {
        let Some(known) = find(&mut self.events, self.tag, &mut self.doubts, id) else { return };
        let (thread, context) = (known.thread, known.context);
        match (number, &mut known.details) {
            (
                state::PROXY_STEP_SEND_GPU_WAIT..=state::PROXY_STEP_RECV_GPU_WAIT | state::PROXY_STEP_SEND_PEER_WAIT,
                Details::Step { first, phase, .. },
            ) => {
                // While the network refuses, NCCL reports the same at every turn.
                if *phase != number {
                    *phase = number;
                    let told = matches!(number, state::PROXY_STEP_SEND_WAIT | state::PROXY_STEP_RECV_FLUSH_WAIT);
                    let bytes = (told && argument > 0).then_some(argument);
                    out.say(What::StepPhase { id: *first, state: number, bytes });
                    // The GPU has written what is sent.
                    if number == state::PROXY_STEP_SEND_WAIT {
                        self.saw_work_of(id, out.now);
                    }
                }
            }
            (state::PROXY_CTRL_IDLE..=state::PROXY_CTRL_APPEND_END, _) if known.kind == Kind::ProxyCtrl => {
                let appended = (number == state::PROXY_CTRL_APPEND_END).then_some(argument as u32);
                let comm = self.comms.get(&context);
                out.say(What::Control { thread, comm, state: number, appended });
            }
            (state::PROXY_OP_SEND_POSTED..=state::PROXY_OP_RECV_DONE, Details::ProxyOp { .. }) => {
                // An operation that was closed as silent stays closed.
                if known.stops == 0 {
                    self.show_progress(id, out);
                    out.say(What::ProxyOpPhase { id, state: number, bytes: argument, steps });
                }
            }
            (state::PROXY_OP_IN_PROGRESS, Details::ProxyOp { .. }) => self.show_progress(id, out),
            (state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP, &mut Details::Channel { run, .. }) => {
                self.channels.stamp(run, id, GpuNs(argument));
            }
            (state::GROUP_START_API_STOP, Details::Group { marks }) => {
                marks[0].get_or_insert(out.now);
            }
            (state::GROUP_END_API_START, Details::Group { marks }) => {
                marks[1].get_or_insert(out.now);
            }
            _ => self.doubts.unknown_types += 1,
        }
    }

    /// Why a child of `parent` may be wrong. Counts an unknown parent.
    fn doubt_of_parent(&mut self, parent: Handle, kind: Kind) -> Option<Doubt> {
        if matches!(kind, Kind::GroupApi | Kind::Group | Kind::ProxyCtrl | Kind::Unknown) {
            return None;
        }
        if parent.is_none() {
            return Some(Doubt::ParentMissing);
        }
        if !parent.is_from(self.tag) {
            return Some(Doubt::ParentForeign);
        }
        match self.events.get(parent) {
            Some(known) if known.stops > 1 => Some(Doubt::ParentStoppedTwice),
            Some(_) => None,
            None => {
                self.doubts.unknown_parents += 1;
                Some(Doubt::ParentUnknown)
            }
        }
    }

    /// The Group that an operation is part of, and the GroupApi in which its call was made.
    fn groups_of(&self, event: &Event, parent: Handle) -> (Handle, Handle) {
        let group = match event {
            Event::Coll(coll) => coll.group,
            Event::P2p(p2p) => p2p.group,
            _ => Handle::NONE,
        };
        let group_api = match self.events.details(parent) {
            Some(Details::Call { group, .. }) => *group,
            _ => Handle::NONE,
        };
        // Up to v4, the parent is the Group.
        (if group.is_none() { parent } else { group }, group_api)
    }

    /// Which run of a captured call begins with a child of `parent`, counted from 1.
    fn replay(&mut self, parent: Handle) -> Option<u32> {
        match self.events.details_mut(parent) {
            Some(Details::Call { captured: true, replays, .. }) => {
                *replays += 1;
                Some(*replays)
            }
            _ => None,
        }
    }

    /// The operation that an event starts, with the texts it refers to.
    fn operation(&mut self, id: Handle, context: Handle, event: Event, since: HostNs, asked: Moment) -> Operation {
        let mut operation = Operation { id, since, asked: Some(asked), event, texts: None, p2p_number: 0 };
        let words = match event {
            Event::Coll(coll) => [coll.func, coll.datatype, coll.algorithm, coll.protocol, coll.variant],
            Event::CeColl(coll) => [coll.func, coll.datatype, Word::ABSENT, Word::ABSENT, coll.sync_strategy],
            _ => [operation.func(), operation.datatype(), Word::ABSENT, Word::ABSENT, Word::ABSENT],
        };
        if words.iter().any(|word| word.is_text()) {
            let [func, datatype, algorithm, protocol, variant] = words.map(|word| self.text(word));
            operation.texts = Some(Box::new(Texts { func, datatype, algorithm, protocol, variant }));
        }
        if let Event::P2p(p2p) = event {
            let key = (context, p2p.peer, p2p.func);
            if self.p2p_numbers.len() < PEERS || self.p2p_numbers.contains_key(&key) {
                let number = self.p2p_numbers.entry(key).or_default();
                operation.p2p_number = *number;
                *number += 1;
            }
        }
        operation
    }

    /// The text of a word, whether NCCL's or recorded; `None` if it has none.
    fn text(&self, word: Word) -> Option<Box<str>> {
        match word {
            Word::ABSENT => None,
            Word::LOST => Some("(text lost)".into()),
            _ => word.spelling().map(Into::into).or_else(|| self.texts.get(&word).cloned()),
        }
    }
}

/// The event behind a handle that NCCL passed back. Counts why there is none.
fn find<'t>(events: &'t mut Table, tag: ProcessTag, doubts: &mut Doubts, id: Handle) -> Option<&'t mut Known> {
    if !id.is_from(tag) {
        doubts.foreign_handles += 1;
        return None;
    }
    let known = events.get_mut(id);
    doubts.unknown_handles += u64::from(known.is_none());
    known
}

/// Whether NCCL may mistake the reports of kernel channels for those of other operations from this
/// one on: up to 2.30.7, after the replay of a graph and, from 2.27.7 on, after a message to
/// oneself (docs/nccl-profiler-interface.md). An unknown release may do so.
fn miscounts(comm: &Comm, event: &Event, replay: Option<u32>) -> bool {
    let to_itself = matches!(event, Event::P2p(p2p) if p2p.peer == comm.rank);
    comm.version < 23_100 && (replay.is_some() || to_itself)
}

/// Whether an event is a call on a host thread, which nests with the others there.
fn is_host_call(kind: Kind) -> bool {
    use Kind::{CeBatch, CeColl, CeSync, CollApi, Group, GroupApi, KernelLaunch, P2pApi};
    matches!(kind, GroupApi | CollApi | P2pApi | KernelLaunch | Group | CeColl | CeSync | CeBatch)
}

#[cfg(test)]
mod channel_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
pub(crate) mod tests;
