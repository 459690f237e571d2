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
mod events;
mod external;
mod history;
mod kernels;
mod known;
mod numbers;
mod plans;
mod proxy;
mod ranges;
mod replays;
mod sessions;
mod streams;
mod times;
mod trail;

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
use self::numbers::Numbers;
use self::plans::Plans;
use self::proxy::Proxy;
use self::ranges::Ranges;
use self::sessions::{Call, Sessions};
use self::streams::Streams;
use self::trail::Trail;
use crate::clock::skew::Skew;
use crate::model::activity::Activity;
use crate::model::event::{Body, Event, Kind, Record};
use crate::model::ids::{Handle, ProcessTag, RingId};
use crate::model::time::HostNs;
use crate::model::timeline::{Channel, Doubt, Doubts, Entry, Matches, Method, Moment, Operation, ThreadId, What};
use crate::model::word::Word;

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
    /// The names that threads recorded for the communicators that they initialise next.
    names: FxHashMap<RingId, Box<str>>,
    /// The thread that owns each ring now, and the system's id of it.
    rings: FxHashMap<RingId, (ThreadId, i32)>,
    threads: u32,
    events: Table,
    proxy: Proxy,
    /// When communicators were initialised, as far as nobody has asked for it.
    inits: Vec<(HostNs, i32)>,
    numbers: Numbers,
    sessions: Sessions,
    plans: Plans,
    /// Collectives of the copy engines, with their context.
    copy_engine: Bounded<Handle, (Handle, Operation)>,
    /// The collective that queued the copies of this call.
    copying: Bounded<Call, Handle>,
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
            names: FxHashMap::default(),
            rings: FxHashMap::default(),
            threads: 0,
            events: Table::default(),
            proxy: Proxy::default(),
            inits: Vec::new(),
            numbers: Numbers::default(),
            sessions: Sessions::default(),
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
            Body::CommInit(init) => self.comm_init(ring, &init, out),
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
                let name = self.name(ring, name);
                if let Some(comm) = self.comms.identify(context, hash, name) {
                    out.say(What::CommInit(comm));
                }
            }
            Body::Thread { tid, ref name } => self.thread(ring, tid, &String::from_utf8_lossy(name), out),
            Body::ThreadEnd => {
                self.names.remove(&ring);
                if let Some((thread, _)) = self.rings.remove(&ring) {
                    self.plans.thread_end(thread);
                    self.proxy.threads.remove(&thread);
                    out.say(What::ThreadEnd(thread));
                }
            }
            // A range of the program's: it comes as an activity.
            Body::Step { .. } => {}
            Body::Text { word: Word::NAME, text } => {
                self.names.insert(ring, String::from_utf8_lossy(text).into());
            }
            Body::Text { word, text } => {
                self.texts.insert(word, String::from_utf8_lossy(text).into());
            }
            Body::Launch { correlation, launch, .. } if self.copy_engine.get(&launch).is_some() => {
                self.copying.insert(self.sessions.call(correlation, time), launch, COPY_ENGINE);
            }
            Body::Launch { correlation, launch, group, .. } => {
                let thread = self.rings.get(&ring).map(|(thread, _)| *thread);
                // KernelLaunch was introduced in v5.
                let declared = self.comms.interface >= 5;
                let call = self.sessions.call(correlation, time);
                self.plans.kernel_launched(thread, call, launch, group, declared, time);
            }
            Body::GraphLaunch { graph, correlation } => {
                // A graph that is created has no call.
                let call = Some(correlation).filter(|&id| id != 0).map(|id| self.sessions.call(id, time));
                let asked = self.rings.get(&ring).map(|&(_, tid)| Moment { tid, time });
                self.plans.graph_launched(graph, call, asked, time);
            }
            Body::GraphChange { graph } => self.plans.graphs.changed(graph),
            Body::GraphNode { node, original: 0, launch } => {
                let tid = self.rings.get(&ring).map_or(0, |&(_, tid)| tid);
                self.plans.node(node, launch, Moment { tid, time });
            }
            Body::GraphNode { node, original, .. } => self.plans.node_cloned(node, original),
            Body::GraphUpdate { node, source, graph } => self.plans.node_updated(node, source, graph, time),
        }
    }

    /// Takes something that CUPTI reported. Call it in the order in which things ended, after all
    /// records up to that time: a kernel finds its operations only if these have been pushed.
    pub fn push_activity(&mut self, activity: Activity, sink: &mut dyn FnMut(&Entry<'_>)) {
        match activity {
            Activity::Kernel(kernel) => {
                self.kernel(kernel, sink);
                self.say_decided(self.last, false, sink);
                self.say_ready(sink);
            }
            Activity::Copy(copy) => self.copy(&copy, sink),
            Activity::CudaCall(call) => sink(&Entry { time: call.span.start, what: What::CudaCall(&call) }),
            Activity::Marker(marker) => {
                self.history.follow(&marker);
                if let Some((marker, end)) = self.ranges.push(marker) {
                    let what = What::Range { marker: &marker, end, is_open: false };
                    sink(&Entry { time: marker.time, what });
                }
            }
            Activity::HostFunction(function) => {
                sink(&Entry { time: function.span.start, what: What::HostFunction(&function) });
            }
            Activity::Device(device) => sink(&Entry { time: self.last, what: What::Device(&device) }),
            Activity::Overhead(overhead) => {
                sink(&Entry { time: overhead.span.start, what: What::Overhead(&overhead) });
            }
            Activity::ExternalId { id, correlation } => self.external_id(id, correlation, sink),
            Activity::Dropped(count) => {
                self.matches.dropped += count;
                self.history.lost();
            }
            Activity::Unfinished(kernel) => self.unfinished(&kernel, sink),
            Activity::Untimed(kernel) => self.untimed(&kernel, sink),
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
    /// else, and when the last one was: launches of graphs, or of broadcasts from 2.29 on.
    pub fn unseen_launches(&mut self) -> Option<(HostNs, HostNs)> {
        self.plans.unseen_launches()
    }

    /// CUPTI is lent from this time on, for a while: launches and changes of graphs are not seen.
    /// Earlier records may still arrive.
    pub fn lent(&mut self, time: HostNs) {
        self.plans.graphs.lent(time);
    }

    /// CUPTI had been given up by this time: later calls may have the correlation ids of earlier
    /// ones.
    pub fn given_up(&mut self, time: HostNs) {
        self.sessions.end(time);
    }

    /// There was no room for a record, up to this time.
    pub fn lost(&mut self, time: HostNs) {
        self.plans.graphs.lost(time);
        self.numbers.lost();
    }

    /// There was no room for a launch, or for a node of a graph: the launches of graphs are not
    /// counted from here on.
    pub fn launch_lost(&mut self) {
        self.plans.graphs.miss();
    }

    /// There was no room for a change of a graph, up to this time. It may have been any graph.
    pub fn change_lost(&mut self, time: HostNs) {
        self.plans.graphs.change_lost(time);
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

    /// When communicators were initialised since the last call, and by which thread, by the
    /// system's id.
    pub fn take_inits(&mut self) -> Vec<(HostNs, i32)> {
        std::mem::take(&mut self.inits)
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

#[cfg(test)]
mod channel_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
pub(crate) mod tests;
