//! The network proxy: a group of tracks per progress thread, with its state, its counters, and its
//! operations and transfers by peer.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::canvas::{Canvas, FAMILIES, LANES};
use super::comms::Comms;
use super::counters::{Counter, Gauge};
use super::fields::{nccl, transport};
use super::flows;
use super::lanes::{Ended, FamilyId, Look, Placing};
use super::names::{Fixed, OperationName, ProxyOpName, QueuedName, StepName};
use super::processes;
use super::threads::Threads;
use super::words::{Category, instant, track, wait};
use super::writer::{Name as _, Place, Track, Unit};
use crate::model::event::Net;
use crate::model::ids::Handle;
use crate::model::state;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation, ProxyOp, ThreadId, What};
use crate::summary::{Summary, Wait};

/// Lanes for the operations of one peer that are under way: one per channel, for collectives and
/// for sends and receives.
const PEER_LANES: usize = 128;
/// Progress threads that get tracks of their own.
const OWN_PROGRESS_THREADS: usize = 128;
/// Stands for the progress threads that have no tracks of their own.
const OTHER_THREADS: ThreadId = ThreadId(u32::MAX);
/// Transfers that are counted as under way.
const OPEN_STEPS: usize = 14 << 10;
/// Operations of an append that are named.
const BROUGHT: usize = 8;

/// The proxy's tracks.
pub(super) struct Proxy {
    group: Option<Track>,
    threads: FxHashMap<ThreadId, ProxyThread>,
    /// Progress threads that got tracks of their own so far.
    own: usize,
    /// Operations and transfers.
    peers: FxHashMap<PeerKey, [FamilyId; 2]>,
    /// The numbers of peers in the summary, by the number of the tracks of their transfers.
    sums: Vec<Option<u32>>,
    /// Transfers under way: their thread, and their bytes in flight.
    steps: FxHashMap<Handle, (ThreadId, i64)>,
}

/// The current time, and what to draw with: names come from the threads and the communicators.
pub(super) struct At<'a> {
    pub(super) time: HostNs,
    pub(super) canvas: &'a mut Canvas,
    pub(super) threads: &'a Threads,
    pub(super) comms: &'a mut Comms,
}

/// What an append took in.
struct Append<'a> {
    count: Option<u32>,
    batch: u32,
    brought: &'a [(Arc<Operation>, u32)],
}

impl Append<'_> {
    /// Its operations, the first ones by name.
    fn text(&self) -> String {
        let names = self.brought.iter().take(BROUGHT).map(|(operation, count)| {
            let mut name = String::new();
            OperationName { operation, prefix: "" }.write(&mut name);
            if *count == 1 { name } else { format!("{name} ({count})") }
        });
        let names = names.collect::<Vec<_>>().join(", ");
        match self.brought.len().saturating_sub(BROUGHT) {
            0 => format!("brought {names}"),
            more => format!("brought {names}, and {more} more"),
        }
    }
}

/// The tracks of a progress thread.
struct ProxyThread {
    group: Option<Track>,
    state: FamilyId,
    net: FamilyId,
    /// Idle or active.
    base: Option<u16>,
    /// Asleep or taking in operations.
    inner: Option<u16>,
    /// Transfers under way, and bytes handed to the network but not yet acknowledged; made with the
    /// first transfer.
    in_flight: Option<[Gauge; 2]>,
    /// Operations that were taken but have shown no progress; made with the first one.
    queued: Option<Gauge>,
}

impl ProxyThread {
    fn new(canvas: &mut Canvas, parent: Option<Track>, id: ThreadId, thread: Option<(i32, &str)>) -> ProxyThread {
        let (tid, name) = thread.unwrap_or((0, ""));
        // NCCL names its threads only if NCCL_SET_THREAD_NAME=1, and does so from outside, after
        // their start. So at its first event a progress thread may still have the name of the
        // service thread that created it (seen with 2.30.7), which itself reports nothing.
        let named = name.starts_with("NCCL") && !name.starts_with("NCCL Service");
        let name = if named { name } else { "proxy thread" };
        let name = if id == OTHER_THREADS { "other threads".into() } else { format!("{name} ({tid})") };
        let group = processes::group(canvas.writer(), parent, &name, id.0 & u32::MAX >> 1, "");
        let description = "What the thread is doing: idle or active, asleep, taking in operations.";
        let state = canvas.lanes.family("state".into(), Placing { parent: group, rank: 0, description }, 1);
        let description = "Events that the network plugin reported.";
        let place = Placing { parent: group, rank: u32::MAX >> 1, description };
        let net = canvas.lanes.family("network events".into(), place, LANES);
        ProxyThread { group, state, net, base: None, inner: None, in_flight: None, queued: None }
    }
}

/// The key by which operations and transfers are grouped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PeerKey {
    thread: ThreadId,
    context: Handle,
    peer: i32,
    send: bool,
}

impl Proxy {
    pub(super) fn new(canvas: &mut Canvas) -> Proxy {
        Proxy {
            group: canvas.group("Proxy", 3, "What NCCL's network proxy does, one group per progress thread."),
            threads: FxHashMap::default(),
            own: 0,
            peers: FxHashMap::default(),
            sums: Vec::new(),
            steps: FxHashMap::default(),
        }
    }

    /// Draws an entry of the proxy.
    pub(super) fn draw(&mut self, at: &mut At<'_>, what: &What<'_>) {
        match *what {
            What::ProxyOpTaken { thread } => self.queued(at, thread, 1),
            What::ProxyOpBegin { id, thread, proxy: ref op, queued_ns, was_taken } => {
                if was_taken {
                    self.queued(at, thread, -1);
                }
                self.begin(at, thread, id, op, queued_ns);
            }
            What::ProxyOpsQueued { thread, proxy: ref op, queued_ns, count, given_up } => {
                self.queue(at, thread, op, queued_ns, count);
                if given_up > 0 {
                    self.queued(at, thread, -given_up.cast_signed());
                }
            }
            What::ProxyOpNever { thread, proxy: ref op } => self.silent(at, thread, op),
            What::StepBegin { id, op: _, thread, step, proxy: ref op } => self.step(at, thread, id, step, op.as_ref()),
            What::StepPhase { id, state, bytes } => self.step_phase(at, id, state, bytes),
            What::StepEnd { id, starts, stopped } => self.step_end(at, id, starts, stopped),
            What::Control { thread, comm, state, appended, batch, brought } => {
                self.control(at, thread, comm, state, &Append { count: appended, batch, brought });
            }
            What::NetBegin { id, thread, net } => self.net(at, thread, id, net),
            _ => {}
        }
    }

    /// Counts an entry that is not drawn.
    pub(super) fn watch(&mut self, at: &mut At<'_>, what: &What<'_>) {
        match *what {
            What::ProxyOpBegin { thread, was_taken: true, .. } => self.queued(at, thread, -1),
            What::ProxyOpsQueued { thread, given_up, .. } if given_up > 0 => {
                self.queued(at, thread, -given_up.cast_signed());
            }
            _ => {}
        }
    }

    /// The group of all progress threads.
    pub(super) fn group(&self) -> Option<Track> {
        self.group
    }

    /// The group of a progress thread.
    pub(super) fn group_of(&self, thread: ThreadId) -> Option<Track> {
        self.threads.get(&thread)?.group
    }

    /// The progress threads that did anything.
    pub(super) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.threads.keys().copied()
    }

    /// A thread has ended; what was open on it ends with it.
    pub(super) fn ended(&mut self, canvas: &mut Canvas, thread: ThreadId, time: HostNs) {
        if let Some(proxy) = self.threads.get_mut(&thread) {
            let open = usize::from(proxy.base.take().is_some()) + usize::from(proxy.inner.take().is_some());
            for _ in 0..open {
                canvas.lanes.pop(proxy.state, time, &[]);
            }
        }
    }

    /// A thread that ended long ago is forgotten.
    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.threads.remove(&thread);
    }

    /// A proxy operation makes progress for the first time.
    fn begin(&mut self, at: &mut At<'_>, thread: ThreadId, id: Handle, op: &ProxyOp<'_>, queued_ns: u64) {
        let [family, steps] = self.peer(at, thread, op);
        at.canvas.args.clear().proxy_op(op).by_network().uint(nccl::QUEUED_NS, queued_ns);
        let sum = at.canvas.add_up(|sum, facts| (sum.peer(facts, op.event.send.is_set()), facts.queued_ns));
        let correlation = op.operation.and_then(|operation| operation.correlation(op.comm));
        let name = ProxyOpName { operation: op.operation, channel: op.event.channel };
        let arrow = op.operation.map(|operation| flows::to_proxy(operation.id, op.event.channel));
        let look = Look::new(Category::Proxy, &name).of(correlation).with(arrow.as_slice());
        let is_drawn = at.canvas.begin(family, id, at.time, &look);
        if let Some((peer, queued_ns)) = sum
            && is_drawn
        {
            at.canvas.summary.proxy_operation(peer, queued_ns);
            self.sums.resize(self.sums.len().max(steps.number() + 1), None);
            self.sums[steps.number()] = Some(peer);
        }
    }

    /// Draws operations of one connection that still queue as an instant: the first of them, and
    /// how many others there are.
    fn queue(&mut self, at: &mut At<'_>, thread: ThreadId, op: &ProxyOp<'_>, queued_ns: u64, count: u64) {
        let [family, _] = self.peer(at, thread, op);
        at.canvas.args.clear().proxy_op(op).by_network();
        at.canvas.args.uint(nccl::QUEUED_NS, queued_ns).uint(nccl::OPERATIONS, count);
        let first = ProxyOpName { operation: op.operation, channel: op.event.channel };
        let name = QueuedName { first, more: count.saturating_sub(1) };
        at.canvas.instant(family, at.time, Category::Proxy, &name);
    }

    /// An operation that NCCL reports nothing more about.
    fn silent(&mut self, at: &mut At<'_>, thread: ThreadId, op: &ProxyOp<'_>) {
        let [family, _] = self.peer(at, thread, op);
        let note = "NCCL started this operation and reported nothing more about it, as for every transport except NET";
        at.canvas.args.clear().proxy_op(op).uint(nccl::TRANSPORT, transport::not_visible).text(nccl::NOTE, note);
        let name = Fixed(instant::SILENT_PROXY_OP);
        at.canvas.instant(family, at.time, Category::Proxy, &name);
    }

    /// A transfer begins.
    fn step(&mut self, at: &mut At<'_>, thread: ThreadId, id: Handle, step: i32, op: Option<&ProxyOp<'_>>) {
        let family = match op {
            Some(op) => self.peer(at, thread, op)[1],
            None => self.orphans(at, thread),
        };
        at.canvas.args.clear().int(nccl::STEP, step);
        let mut sum = self.sums.get(family.number()).copied().flatten();
        if let Some(op) = op {
            at.canvas.args.uint(nccl::CHANNEL, u64::from(op.event.channel));
            if at.canvas.lanes.is_shared(family) {
                at.canvas.args.int(nccl::PEER, op.event.peer).of_comm(op.comm);
                let is_send = op.event.send.is_set();
                sum = at.canvas.add_up(|summary, facts| summary.peer(facts, is_send));
            }
        }
        let operation = op.and_then(|op| op.operation);
        let correlation = operation.and_then(|operation| operation.correlation(op?.comm));
        let name = StepName { step: i64::from(step), operation };
        let look = Look { transfers_to: sum, ..Look::new(Category::Proxy, &name).of(correlation) };
        at.canvas.begin(family, id, at.time, &look);
        if self.steps.len() < OPEN_STEPS {
            self.steps.insert(id, (thread, 0));
            self.in_flight(at, thread, [1, 0]);
        }
    }

    /// From here on a transfer waits for something else.
    fn step_phase(&mut self, at: &mut At<'_>, id: Handle, state: u16, bytes: Option<u64>) {
        at.canvas.args.clear().known(nccl::BYTES, bytes);
        let wait = Wait::of(state);
        let name = wait.map_or(wait::UNKNOWN, Wait::name);
        at.canvas.lanes.phase(id, at.time, name, (wait, bytes), &at.canvas.args);
        if state == state::PROXY_STEP_SEND_WAIT
            && let Some((thread, sent)) = self.steps.get_mut(&id)
        {
            let (thread, more) = (*thread, (bytes.unwrap_or_default() as i64).wrapping_sub(*sent));
            *sent = sent.wrapping_add(more);
            self.in_flight(at, thread, [0, more]);
        }
    }

    /// A transfer is done.
    fn step_end(&mut self, at: &mut At<'_>, id: Handle, starts: u32, stopped: bool) {
        at.canvas.args.clear();
        if !stopped {
            at.canvas.args.text(nccl::DOUBT, "no stop: ended with its operation");
        }
        if starts > 1 {
            at.canvas.args.uint(nccl::STARTS, u64::from(starts));
        }
        if let Some(Ended { time, transfer: Some(transfer) }) = at.canvas.end(id, at.time) {
            at.canvas.summary.transferred(transfer, time);
        }
        if let Some((thread, sent)) = self.steps.remove(&id) {
            self.in_flight(at, thread, [-1, sent.wrapping_neg()]);
        }
    }

    /// The tracks of a communicator's operations and transfers.
    pub(super) fn of_comm(&self, context: Handle) -> impl Iterator<Item = FamilyId> {
        self.peers.iter().filter(move |(key, _)| key.context == context).flat_map(|(_, families)| *families)
    }

    /// The slices of these transfers have ended, if they were under way.
    pub(super) fn given_up(&mut self, at: &mut At<'_>, transfers: &[Handle]) {
        for id in transfers {
            if let Some((thread, sent)) = self.steps.remove(id) {
                self.in_flight(at, thread, [-1, sent.wrapping_neg()]);
            }
        }
    }

    /// Writes what the counters of progress threads held back.
    pub(super) fn flush(&mut self, canvas: &mut Canvas) {
        let gauges = self.threads.values_mut().flat_map(|it| it.in_flight.iter_mut().flatten().chain(&mut it.queued));
        gauges.for_each(|gauge| gauge.flush(canvas.writer()));
    }

    /// Where a progress thread is drawn: on tracks of its own, or together with others.
    fn place(&self, at: &At<'_>, id: ThreadId) -> ThreadId {
        let is_roomy = self.own < OWN_PROGRESS_THREADS && at.canvas.lanes.is_roomy();
        if is_roomy || self.threads.contains_key(&id) { id } else { OTHER_THREADS }
    }

    fn thread(&mut self, at: &mut At<'_>, id: ThreadId) -> &mut ProxyThread {
        let id = self.place(at, id);
        self.threads.entry(id).or_insert_with(|| {
            self.own += 1;
            ProxyThread::new(at.canvas, self.group, id, at.threads.get(id))
        })
    }

    /// Changes the counts of a progress thread: transfers under way, and bytes handed to the
    /// network.
    fn in_flight(&mut self, at: &mut At<'_>, thread: ThreadId, change: [i64; 2]) {
        let proxy = self.thread(at, thread);
        let gauges = proxy.in_flight.get_or_insert_with(|| {
            let description = "Changes within 10 us are left out.";
            let mut gauge = |name, unit| {
                let place = Place { parent: proxy.group, rank: Some(0), description, ..Place::default() };
                Gauge::new(Counter::new(at.canvas.writer(), name, unit, place, at.time))
            };
            [gauge("steps in flight", Unit::Named("steps")), gauge("bytes in flight", Unit::Bytes)]
        });
        for (gauge, change) in gauges.iter_mut().zip(change).filter(|(_, change)| *change != 0) {
            gauge.add(at.canvas.writer(), at.time, change);
        }
    }

    /// Changes the count of a progress thread's operations that were taken but have shown no
    /// progress.
    fn queued(&mut self, at: &mut At<'_>, thread: ThreadId, change: i64) {
        let proxy = self.thread(at, thread);
        let gauge = proxy.queued.get_or_insert_with(|| {
            let description = "Network operations that the thread took but has not begun: those of one connection \
                               wait for each other. Changes within 10 us are left out.";
            let place = Place { parent: proxy.group, rank: Some(0), description, ..Place::default() };
            let unit = Unit::Named("operations");
            Gauge::new(Counter::new(at.canvas.writer(), "operations queued", unit, place, at.time))
        });
        gauge.add(at.canvas.writer(), at.time, change);
    }

    /// The tracks of a peer and direction: operations and steps.
    fn peer(&mut self, at: &mut At<'_>, thread: ThreadId, op: &ProxyOp<'_>) -> [FamilyId; 2] {
        let thread = self.place(at, thread);
        let mut key = PeerKey {
            thread,
            context: op.comm.map_or(Handle::NONE, |comm| comm.context),
            peer: op.event.peer,
            send: op.event.send.is_set(),
        };
        if let Some(&families) = self.peers.get(&key) {
            return families;
        }
        let label = op.comm.map(|comm| at.comms.label(at.canvas, comm));
        if self.peers.len() >= FAMILIES || !at.canvas.lanes.is_roomy() || label == Some(None) {
            key = PeerKey { thread, context: Handle::NONE, peer: -1, send: key.send };
            if let Some(&families) = self.peers.get(&key) {
                return families;
            }
        }
        let parent = self.thread(at, thread).group;
        let (direction, arrow) = if key.send { (track::SEND, '→') } else { (track::RECEIVE, '←') };
        let name = match label.flatten() {
            _ if key.peer < 0 => format!("other peers{}", direction.trim_end()),
            Some(label) => format!("{label}{direction}{arrow} {}", key.peer),
            None => format!("for another process{direction}{arrow} {}", key.peer),
        };
        let number = self.peers.len() as u32;
        let comm_rank = op.comm.map_or(0x3fff, |comm| comm.number.min(0x3ffe));
        let rank = if key.peer < 0 {
            (u32::MAX >> 2) + number
        } else {
            1 + (comm_rank << 14 | (key.peer as u32 & 0xfff) << 2 | u32::from(!key.send) << 1)
        };
        let description =
            "Operations while the progress thread works on them; how long each queued before is an argument.";
        let mut family = |name, place, lanes| at.canvas.family(name, place, Some(lanes).filter(|_| key.peer >= 0));
        let operations = family(name.clone(), Placing { parent, rank, description }, PEER_LANES);
        let description = "Transfers, each divided by what it waits for: the GPU, the peer, the network, a flush.";
        let steps = family(name + track::STEPS, Placing { parent, rank: rank + 1, description }, LANES);
        self.peers.insert(key, [operations, steps]);
        [operations, steps]
    }

    /// The track of steps whose operation is not known.
    fn orphans(&mut self, at: &mut At<'_>, thread: ThreadId) -> FamilyId {
        let thread = self.place(at, thread);
        let key = PeerKey { thread, context: Handle::NONE, peer: -2, send: false };
        if let Some(&[family, _]) = self.peers.get(&key) {
            return family;
        }
        let parent = self.thread(at, thread).group;
        let place = Placing { parent, rank: u32::MAX >> 2, description: "Transfers whose operation is not known." };
        let family = at.canvas.lanes.family("unknown operations".to_owned() + track::STEPS, place, LANES);
        self.peers.insert(key, [family; 2]);
        family
    }

    /// What the progress thread does from here on.
    fn control(&mut self, at: &mut At<'_>, thread: ThreadId, comm: Option<&Comm>, now: u16, append: &Append<'_>) {
        if self.place(at, thread) == OTHER_THREADS {
            // The states of several threads do not nest.
            at.canvas.lanes.missing += 1;
            return;
        }
        at.canvas.args.clear().of_comm(comm);
        let proxy = self.thread(at, thread);
        let (family, time) = (proxy.state, at.time);
        match now {
            state::PROXY_CTRL_IDLE | state::PROXY_CTRL_ACTIVE if proxy.base == Some(now) => {}
            state::PROXY_CTRL_IDLE | state::PROXY_CTRL_ACTIVE => {
                for _ in 0..usize::from(proxy.inner.is_some()) + usize::from(proxy.base.is_some()) {
                    at.canvas.lanes.pop(family, time, &[]);
                }
                let name = if now == state::PROXY_CTRL_IDLE { "idle" } else { "active" };
                at.canvas.lanes.push(family, time, name, &at.canvas.args);
                (proxy.base, proxy.inner) = (Some(now), None);
            }
            state::PROXY_CTRL_SLEEP | state::PROXY_CTRL_APPEND => {
                if proxy.inner.is_some() {
                    at.canvas.lanes.pop(family, time, &[]);
                }
                let name = if now == state::PROXY_CTRL_SLEEP { "sleep" } else { "append" };
                at.canvas.lanes.push(family, time, name, &at.canvas.args);
                proxy.inner = Some(now);
            }
            // It ends the state with the number before it.
            _ if proxy.inner == Some(now - 1) => {
                at.canvas.args.clear().known(nccl::APPENDED, append.count.map(u64::from));
                at.canvas.args.nonzero(nccl::APPEND_BATCH, u64::from(append.batch));
                if !append.brought.is_empty() {
                    at.canvas.args.text(nccl::NOTE, &append.text());
                }
                at.canvas.lanes.pop(family, time, at.canvas.args.bytes());
                proxy.inner = None;
            }
            _ => {}
        }
    }

    /// The network reports something on a progress thread.
    fn net(&mut self, at: &mut At<'_>, thread: ThreadId, id: Handle, net: &Net) {
        let family = self.thread(at, thread).net;
        at.canvas.args.clear().net(net);
        at.canvas.add_up(Summary::network);
        at.canvas.begin(family, id, at.time, &Look::new(Category::Net, &Fixed(instant::NETWORK)));
    }
}
