//! The network proxy: a group of tracks a progress thread, with its state, its counters, and its operations and transfers by peer.

use super::counters::{Counter, Gauge};
use super::fields::nccl;
use super::flows;
use super::lanes::{FamilyId, Lanes, Look, Placing};
use super::names::{self, Fixed, ProxyOpName, QueuedName, StepName};
use super::tracks::{FAMILIES, HostThread, LANES, Tracks};
use super::writer::{Category, Form, Place, Track, Unit};
use crate::model::ids::Handle;
use crate::model::state;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, ProxyOp, ThreadId};

/// Operations of one peer that are under way: one a channel, of collectives and of sends and receives.
const PEER_LANES: usize = 128;
/// Progress threads that get tracks of their own.
const OWN_PROGRESS_THREADS: usize = 128;
/// Stands for the progress threads that have no tracks of their own.
const OTHER_THREADS: ThreadId = ThreadId(u32::MAX);
/// Transfers that are counted as under way.
const OPEN_STEPS: usize = 14 << 10;

/// The tracks of a progress thread.
pub(super) struct ProxyThread {
    pub(super) group: Option<Track>,
    pub(super) state: FamilyId,
    pub(super) net: FamilyId,
    /// Idle or active.
    pub(super) base: Option<u16>,
    /// Asleep or taking in operations.
    pub(super) inner: Option<u16>,
    /// Transfers under way, and bytes handed to the network and not acknowledged; made with the first transfer.
    in_flight: Option<[Gauge; 2]>,
    /// Operations that were taken and have shown no progress; made with the first.
    queued: Option<Gauge>,
}

impl ProxyThread {
    fn new(lanes: &mut Lanes, parent: Option<Track>, id: ThreadId, thread: Option<&HostThread>) -> ProxyThread {
        let (name, tid) = thread.map_or(("", 0), |thread| (thread.name.as_str(), thread.tid));
        // NCCL names its threads only when NCCL_SET_THREAD_NAME=1, and then from outside, after their start: at its
        // first event a progress thread can still have the name of the service thread that made it (seen with
        // 2.30.7), which itself reports nothing.
        let named = name.starts_with("NCCL") && !name.starts_with("NCCL Service");
        let name = if named { name } else { "proxy thread" };
        let name = if id == OTHER_THREADS { "other threads".into() } else { format!("{name} ({tid})") };
        let place = Place { parent, rank: Some(id.0 & u32::MAX >> 1), orders_children: true, ..Place::default() };
        let group = lanes.writer.track(Form::Plain { name: &name }, place);
        let description = "What the thread does: idle or active, asleep, taking in operations.";
        let state = lanes.family("state".into(), Placing { parent: group, rank: 0, description }, 1);
        let description = "Events that the network plugin reported.";
        let place = Placing { parent: group, rank: u32::MAX >> 1, description };
        let net = lanes.family("network events".into(), place, LANES);
        ProxyThread { group, state, net, base: None, inner: None, in_flight: None, queued: None }
    }
}

/// What operations and transfers are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PeerKey {
    thread: ThreadId,
    context: Handle,
    peer: i32,
    send: bool,
}

impl Tracks {
    /// A proxy operation makes progress for the first time.
    pub(super) fn proxy_op(&mut self, id: Handle, thread: ThreadId, time: HostNs, proxy: &ProxyOp<'_>, queued_ns: u64) {
        let [family, _] = self.peer(thread, proxy);
        self.args.clear().proxy_op(proxy).by_network().uint(nccl::QUEUED_NS, queued_ns);
        let correlation = proxy.operation.and_then(|operation| operation.correlation(proxy.comm));
        let name = ProxyOpName { operation: proxy.operation, channel: proxy.event.channel };
        let arrow = proxy.operation.map(|operation| flows::to_proxy(operation.id, proxy.event.channel));
        let look = Look::new(Category::Proxy, &name).of(correlation).with(arrow.as_slice());
        self.lanes.begin(family, id, time, &look, &mut self.args);
    }

    /// Operations of one connection that still queue, as an instant: the first of them, and how many more.
    pub(super) fn proxy_queue(
        &mut self,
        thread: ThreadId,
        time: HostNs,
        proxy: &ProxyOp<'_>,
        queued_ns: u64,
        count: u64,
    ) {
        let [family, _] = self.peer(thread, proxy);
        self.args.clear().proxy_op(proxy).by_network();
        self.args.uint(nccl::QUEUED_NS, queued_ns).uint(nccl::OPERATIONS, count);
        let first = ProxyOpName { operation: proxy.operation, channel: proxy.event.channel };
        let name = QueuedName { first, more: count.saturating_sub(1) };
        self.lanes.instant(family, time, Category::Proxy, &name, &self.args);
    }

    /// An operation of which NCCL reports nothing more.
    pub(super) fn silent_proxy_op(&mut self, thread: ThreadId, time: HostNs, proxy: &ProxyOp<'_>) {
        let [family, _] = self.peer(thread, proxy);
        let note =
            "NCCL started this operation and reported nothing more of it, as it does for every transport but NET";
        self.args.clear().proxy_op(proxy).text(nccl::NOTE, note);
        let name = Fixed("proxy operation without progress");
        self.lanes.instant(family, time, Category::Proxy, &name, &self.args);
    }

    /// A transfer begins.
    pub(super) fn step(&mut self, id: Handle, thread: ThreadId, time: HostNs, step: i32, proxy: Option<&ProxyOp<'_>>) {
        let family = match proxy {
            Some(proxy) => self.peer(thread, proxy)[1],
            None => self.orphans(thread),
        };
        self.args.clear().int(nccl::STEP, step);
        if let Some(proxy) = proxy {
            self.args.uint(nccl::CHANNEL, u64::from(proxy.event.channel));
            if self.lanes.is_shared(family) {
                self.args.int(nccl::PEER, proxy.event.peer).of_comm(proxy.comm);
            }
        }
        let operation = proxy.and_then(|proxy| proxy.operation);
        let correlation = operation.and_then(|operation| operation.correlation(proxy?.comm));
        let name = StepName { step: i64::from(step), operation };
        let look = Look::new(Category::Proxy, &name).of(correlation);
        self.lanes.begin(family, id, time, &look, &mut self.args);
        if self.steps.len() < OPEN_STEPS {
            self.steps.insert(id, (thread, 0));
            self.in_flight(thread, time, [1, 0]);
        }
    }

    /// A transfer waits for something else from here on.
    pub(super) fn step_phase(&mut self, id: Handle, time: HostNs, state: u16, bytes: Option<u64>) {
        self.args.clear();
        if let Some(bytes) = bytes {
            self.args.uint(nccl::BYTES, bytes);
        }
        self.lanes.phase(id, time, names::step_phase(state), &self.args);
        if state == state::PROXY_STEP_SEND_WAIT
            && let Some((thread, sent)) = self.steps.get_mut(&id)
        {
            let (thread, more) = (*thread, (bytes.unwrap_or_default() as i64).wrapping_sub(*sent));
            *sent = sent.wrapping_add(more);
            self.in_flight(thread, time, [0, more]);
        }
    }

    /// A transfer is done.
    pub(super) fn step_end(&mut self, id: Handle, time: HostNs, starts: u32, stopped: bool) {
        self.args.clear();
        if !stopped {
            self.args.text(nccl::DOUBT, "no stop: ended with its operation");
        }
        if starts > 1 {
            self.args.uint(nccl::STARTS, u64::from(starts));
        }
        self.lanes.end(id, time, &self.args);
        if let Some((thread, sent)) = self.steps.remove(&id) {
            self.in_flight(thread, time, [-1, sent.wrapping_neg()]);
        }
    }

    /// Writes what the counters of progress threads held back.
    pub(super) fn flush_gauges(&mut self) {
        let gauges = self.proxies.values_mut().flat_map(|it| it.in_flight.iter_mut().flatten().chain(&mut it.queued));
        gauges.for_each(|gauge| gauge.flush(&mut self.lanes.writer));
    }

    /// Where a progress thread is drawn: as itself, or together with others.
    fn proxy_place(&self, id: ThreadId) -> ThreadId {
        let is_roomy = self.progress_threads < OWN_PROGRESS_THREADS && self.lanes.is_roomy();
        if is_roomy || self.proxies.contains_key(&id) { id } else { OTHER_THREADS }
    }

    pub(super) fn proxy_thread(&mut self, id: ThreadId) -> &mut ProxyThread {
        let id = self.proxy_place(id);
        let Tracks { proxies, threads, lanes, proxy_group, progress_threads, .. } = self;
        proxies.entry(id).or_insert_with(|| {
            *progress_threads += 1;
            ProxyThread::new(lanes, *proxy_group, id, threads.get(&id))
        })
    }

    /// A progress thread has so much more under way: transfers, and bytes in the hands of the network.
    fn in_flight(&mut self, thread: ThreadId, time: HostNs, change: [i64; 2]) {
        self.proxy_thread(thread);
        let thread = self.proxy_place(thread);
        let Tracks { lanes, proxies, .. } = self;
        let Some(proxy) = proxies.get_mut(&thread) else { return };
        let gauges = proxy.in_flight.get_or_insert_with(|| {
            let description = "Changes within 10 us are left out.";
            let mut gauge = |name, unit| {
                let place = Place { parent: proxy.group, rank: Some(0), description, ..Place::default() };
                Gauge::new(Counter::new(&mut lanes.writer, name, unit, place, time))
            };
            [gauge("steps in flight", Unit::Named("steps")), gauge("bytes in flight", Unit::Bytes)]
        });
        for (gauge, change) in gauges.iter_mut().zip(change).filter(|(_, change)| *change != 0) {
            gauge.add(&mut lanes.writer, time, change);
        }
    }

    /// A progress thread has so many more operations that were taken and have shown no progress.
    pub(super) fn queued(&mut self, thread: ThreadId, time: HostNs, change: i64) {
        self.proxy_thread(thread);
        let thread = self.proxy_place(thread);
        let Tracks { lanes, proxies, .. } = self;
        let Some(proxy) = proxies.get_mut(&thread) else { return };
        let gauge = proxy.queued.get_or_insert_with(|| {
            let description = "Operations of the network that the thread took and has not begun: those of one connection wait for each \
                               other. Changes within 10 us are left out.";
            let place = Place { parent: proxy.group, rank: Some(0), description, ..Place::default() };
            Gauge::new(Counter::new(&mut lanes.writer, "operations queued", Unit::Named("operations"), place, time))
        });
        gauge.add(&mut lanes.writer, time, change);
    }

    /// The tracks of a peer and direction: operations and steps.
    fn peer(&mut self, thread: ThreadId, proxy: &ProxyOp<'_>) -> [FamilyId; 2] {
        let thread = self.proxy_place(thread);
        let mut key = PeerKey {
            thread,
            context: proxy.comm.map_or(Handle::NONE, |comm| comm.context),
            peer: proxy.event.peer,
            send: proxy.event.send.is_set(),
        };
        if let Some(&families) = self.peers.get(&key) {
            return families;
        }
        let label = proxy.comm.map(|comm| self.comm_label(comm));
        if self.peers.len() >= FAMILIES || !self.lanes.is_roomy() || label == Some(None) {
            key = PeerKey { thread, context: Handle::NONE, peer: -1, send: key.send };
            if let Some(&families) = self.peers.get(&key) {
                return families;
            }
        }
        let parent = self.proxy_thread(thread).group;
        let (direction, arrow) = if key.send { ("send", '→') } else { ("receive", '←') };
        let name = match label.flatten() {
            _ if key.peer < 0 => format!("other peers · {direction}"),
            Some(label) => format!("{label} · {direction} {arrow} {}", key.peer),
            None => format!("for another process · {direction} {arrow} {}", key.peer),
        };
        let number = self.peers.len() as u32;
        let comm_rank = proxy.comm.map_or(0x3fff, |comm| comm.number.min(0x3ffe));
        let rank = if key.peer < 0 {
            (u32::MAX >> 2) + number
        } else {
            1 + (comm_rank << 14 | (key.peer as u32 & 0xfff) << 2 | u32::from(!key.send) << 1)
        };
        let description =
            "Operations while the progress thread works on them; how long each queued before is an argument.";
        let mut family = |name: String, place, lanes| match key.peer < 0 {
            true => self.lanes.shared_family(name, place),
            false => self.lanes.family(name, place, lanes),
        };
        let operations = family(name.clone(), Placing { parent, rank, description }, PEER_LANES);
        let description = "Transfers, each divided by what it waits for: the GPU, the peer, the network, a flush.";
        let steps = family(format!("{name} · steps"), Placing { parent, rank: rank + 1, description }, LANES);
        self.peers.insert(key, [operations, steps]);
        [operations, steps]
    }

    /// Steps whose operation is not known.
    fn orphans(&mut self, thread: ThreadId) -> FamilyId {
        let thread = self.proxy_place(thread);
        let key = PeerKey { thread, context: Handle::NONE, peer: -2, send: false };
        if let Some(&[family, _]) = self.peers.get(&key) {
            return family;
        }
        let parent = self.proxy_thread(thread).group;
        let place = Placing { parent, rank: u32::MAX >> 2, description: "Transfers of operations that are not known." };
        let family = self.lanes.family("unknown operations · steps".into(), place, LANES);
        self.peers.insert(key, [family; 2]);
        family
    }

    pub(super) fn control(
        &mut self,
        thread: ThreadId,
        time: HostNs,
        comm: Option<&Comm>,
        now: u16,
        appended: Option<u32>,
    ) {
        if self.proxy_place(thread) == OTHER_THREADS {
            // What several threads do at a time does not nest.
            self.lanes.missing += 1;
            return;
        }
        self.args.clear().of_comm(comm);
        let proxy = self.proxy_thread(thread);
        let (family, base, inner) = (proxy.state, proxy.base, proxy.inner);
        match now {
            state::PROXY_CTRL_IDLE | state::PROXY_CTRL_ACTIVE if base == Some(now) => {}
            state::PROXY_CTRL_IDLE | state::PROXY_CTRL_ACTIVE => {
                for _ in 0..usize::from(inner.is_some()) + usize::from(base.is_some()) {
                    self.lanes.pop(family, time, &[]);
                }
                let name = if now == state::PROXY_CTRL_IDLE { "idle" } else { "active" };
                self.lanes.push(family, time, name, &self.args);
                let proxy = self.proxy_thread(thread);
                (proxy.base, proxy.inner) = (Some(now), None);
            }
            state::PROXY_CTRL_SLEEP | state::PROXY_CTRL_APPEND => {
                if inner.is_some() {
                    self.lanes.pop(family, time, &[]);
                }
                let name = if now == state::PROXY_CTRL_SLEEP { "sleep" } else { "append" };
                self.lanes.push(family, time, name, &self.args);
                self.proxy_thread(thread).inner = Some(now);
            }
            // The end of what began one number before.
            _ if inner == Some(now - 1) => {
                self.args.clear();
                if let Some(appended) = appended {
                    self.args.uint(nccl::APPENDED, u64::from(appended));
                }
                self.lanes.pop(family, time, self.args.bytes());
                self.proxy_thread(thread).inner = None;
            }
            _ => {}
        }
    }
}
