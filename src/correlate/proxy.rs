//! What the network proxy does: operations, which queue behind each other, and their transfers.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::bounded::Bounded;
use super::known::{Begun, Details, Known};
use super::{Correlator, Out, Started};
use crate::model::activity::Span;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Delay, Doubt, Late, Operation, ProxyOp, ThreadId, What};
use crate::model::{event, state};

/// The newest proxy operations. Those among them that never show progress are reported at the end,
/// older ones as soon as they drop out.
pub(super) const PENDING_OPS: usize = 16 << 10;
/// Connections of the network that are remembered.
const CONNECTIONS: usize = 16 << 10;
/// Operations of one append that are remembered.
const BROUGHT: usize = 256;
/// The first interface whose ProxyOp starts when the progress thread takes the work in.
const STARTS_WHEN_TAKEN: u8 = 4;

/// What proxy operations queue for: communicator, channel, peer, and whether they send.
type Connection = (Handle, u8, i32, bool);

/// The operations of one connection that still queue.
struct Queue {
    first: Handle,
    count: u64,
    taken: u64,
}

/// What is known about the proxy.
#[derive(Debug, Default)]
pub(super) struct Proxy {
    /// The newest operations, oldest first.
    pub(super) pending: VecDeque<(Handle, Connection)>,
    /// Those of them whose connection was not known to be the network's, in order.
    pub(super) untaken: FxHashMap<Connection, VecDeque<Handle>>,
    /// Connections on which a receive showed progress. They are the network's, so their operations
    /// queue behind each other. Of sends NCCL says so itself.
    pub(super) connections: Bounded<Connection, ()>,
    /// The progress threads that report what they do.
    pub(super) threads: FxHashMap<ThreadId, ProxyThread>,
}

/// What is known about a progress thread.
#[derive(Debug, Default)]
pub(super) struct ProxyThread {
    /// Appends so far, and whether one is under way.
    batches: u32,
    brings: bool,
    /// What the append under way has brought.
    brought: Vec<(Arc<Operation>, u32)>,
    /// It sleeps since then; and when it slept last.
    sleeps: Option<HostNs>,
    slept: Option<[HostNs; 2]>,
}

impl ProxyThread {
    /// Work for an operation comes. Returns the number of the append that brings it, or 0.
    fn bring(&mut self, operation: Option<Arc<Operation>>) -> u32 {
        if !self.brings {
            return 0;
        }
        if let Some(operation) = operation {
            match self.brought.iter().position(|(known, _)| known.id == operation.id) {
                Some(place) => self.brought[place].1 += 1,
                None if self.brought.len() < BROUGHT => self.brought.push((operation, 1)),
                None => {}
            }
        }
        self.batches
    }
}

impl Correlator {
    /// A proxy operation begins. It is queued if it is known to be the network's.
    pub(super) fn start_proxy_op(&mut self, started: &Started<'_>, op: event::ProxyOp, out: &mut Out<'_>) -> Details {
        let &Started { id, parent, context, thread, doubt, .. } = started;
        let foreign = op.pid != self.pid || !context.is_from(self.tag);
        self.doubts.foreign_events += u64::from(foreign);
        let doubt = if foreign { Some(Doubt::ParentForeign) } else { doubt };
        self.work(parent, |work| work.proxy[0] += 1);
        // NCCL sets the flag for the sends of NET only (profiler.cc, up to 2.32.3).
        let connection = connection(context, &op);
        let taken = op.send.is_set() || self.proxy.connections.get(&connection).is_some();
        if taken {
            out.say(What::ProxyOpTaken { thread });
        } else {
            self.proxy.untaken.entry(connection).or_default().push_back(id);
        }
        self.proxy.pending.push_back((id, connection));
        while self.proxy.pending.len() > PENDING_OPS {
            if let Some((oldest, connection)) = self.proxy.pending.pop_front() {
                self.leaves(oldest, connection);
                // It may still show progress; then it is drawn after all.
                if self.is_pending(oldest).is_some_and(|(_, by_network)| !by_network) {
                    self.say_silent(oldest, out);
                }
            }
        }
        let of = match self.events.details(parent) {
            Some(Details::Operation(operation, ..)) => Some(Arc::clone(operation)),
            _ => None,
        };
        let state = self.proxy.threads.get_mut(&thread);
        let (batch, slept) = state.map_or((0, None), |state| (state.bring(of), state.slept.map(Box::new)));
        Details::ProxyOp { op, parent, doubt, begun: false, taken, batch, slept, steps: Vec::new() }
    }

    /// A communicator makes progress. Nobody asks about another process's, as with PXN.
    pub(super) fn moves(&mut self, context: Handle, now: HostNs) {
        if self.comms.get(&context).is_some() {
            self.moved.insert(context, now);
        }
    }

    /// What the progress thread does from here on.
    pub(super) fn control(&mut self, thread: ThreadId, context: Handle, number: u16, argument: u64, out: &mut Out<'_>) {
        let state = self.proxy.threads.entry(thread).or_default();
        match number {
            state::PROXY_CTRL_SLEEP => state.sleeps = Some(out.now),
            state::PROXY_CTRL_WAKEUP => {
                state.slept = state.sleeps.take().map(|since| [since, out.now]).or(state.slept);
            }
            state::PROXY_CTRL_APPEND => {
                state.batches += 1;
                state.brings = true;
            }
            _ => {}
        }
        let is_end = number == state::PROXY_CTRL_APPEND_END;
        let is_append = is_end || number == state::PROXY_CTRL_APPEND;
        let batch = if is_append { state.batches } else { 0 };
        let brought = if is_end { std::mem::take(&mut state.brought) } else { Vec::new() };
        state.brings &= !is_end;
        let (appended, comm) = (is_end.then_some(argument as u32), self.comms.get(&context));
        out.say(What::Control { thread, comm, state: number, appended, batch, brought: &brought });
    }

    pub(super) fn start_step(&mut self, mut known: Known, id: Handle, op: Handle, step: i32, out: &mut Out<'_>) {
        self.show_progress(op, out);
        // Steps carry the context of their operation, which is foreign with PXN: the operation
        // decides.
        known.context = self.events.get(op).map_or(known.context, |op| op.context);
        self.moves(known.context, out.now);
        // A receive that the network refused is started again: the same transfer under another
        // handle.
        let open = match self.events.details_mut(op) {
            Some(Details::ProxyOp { steps, .. }) => match steps.iter_mut().find(|(number, _)| *number == step) {
                Some((_, handle)) => Some(std::mem::replace(handle, id)),
                None => {
                    steps.push((step, id));
                    None
                }
            },
            _ => None,
        };
        known.details = match open.and_then(|open| self.events.details(open)) {
            Some(&Details::Step { first, starts, phase, .. }) => {
                Details::Step { op, step, first, starts: starts + 1, phase }
            }
            _ => {
                let proxy = self.events.get(op).and_then(|known| self.proxy_op(known));
                out.say(What::StepBegin { id, op, thread: known.thread, step, proxy });
                Details::Step { op, step, first: id, starts: 1, phase: u16::MAX }
            }
        };
        if let Some(open) = open {
            self.events.close(open);
        }
        self.events.insert(id, known);
    }

    /// Ends the steps of an operation that is done. Where NCCL 2.24 to 2.26 finds several receives
    /// done in one turn, it stops only the first (src/transport/net.cc, recvProxyProgress: the
    /// number of the step is taken before the loop).
    pub(super) fn end_steps(&mut self, open: &[(i32, Handle)], out: &mut Out<'_>) {
        for &(_, step) in open {
            if let Some(&Details::Step { first, starts, .. }) = self.events.details(step) {
                out.say(What::StepEnd { id: first, starts, stopped: false });
            }
            self.events.close(step);
        }
    }

    /// A proxy step shows that the GPU had begun its operation.
    pub(super) fn saw_work_of(&mut self, step: Handle, now: HostNs) {
        let Some(&Details::Step { op, .. }) = self.events.details(step) else { return };
        if let Some(&Details::ProxyOp { parent, .. }) = self.events.details(op) {
            self.work(parent, |work| work.seen = Some(work.seen.map_or(now, |seen| seen.min(now))));
        }
    }

    fn proxy_op(&self, known: &Known) -> Option<ProxyOp<'_>> {
        let Details::ProxyOp { op, parent, doubt, batch, .. } = known.details else { return None };
        Some(ProxyOp {
            batch,
            event: op,
            comm: self.comms.get(&known.context),
            operation: self.events.operation(parent),
            doubt,
        })
    }

    /// The first sign of progress of a proxy operation: it is drawn from here on.
    pub(super) fn show_progress(&mut self, op: Handle, out: &mut Out<'_>) {
        let Some(known) = self.events.get_mut(op) else { return };
        let start = known.start;
        let Details::ProxyOp { op: facts, begun, taken, parent, slept, .. } = &mut known.details else { return };
        // One that was reported as silent, or as queued when its communicator ended, stays so.
        if known.stops > 0 || std::mem::replace(begun, true) {
            return;
        }
        let (was_taken, connection, parent, slept) = (*taken, connection(known.context, facts), *parent, slept.take());
        let tells = self.comms.get(&connection.0).is_some_and(|comm| comm.interface >= STARTS_WHEN_TAKEN);
        let last = Begun { begun: out.now, taken: tells.then_some(start), slept };
        self.work(parent, |work| work.proxy_begun = Some(Box::new(last)));
        let (.., is_send) = connection;
        if !is_send && self.proxy.connections.get(&connection).is_none() {
            self.proxy.connections.insert(connection, (), CONNECTIONS);
            self.take_pending(connection, out);
        }
        if let Some(known) = self.events.get(op)
            && let Some(proxy) = self.proxy_op(known)
        {
            let queued_ns = out.now.since(known.start);
            out.say(What::ProxyOpBegin { id: op, thread: known.thread, proxy, queued_ns, was_taken });
        }
    }

    /// For each of a kernel's operations, the proxy's work that had not begun when the kernel did.
    /// Empty if there is none. A replay with work for the proxy has operations of its own.
    pub(super) fn late(&self, operations: &[Arc<Operation>], kernel: Span) -> Vec<Option<Late>> {
        let late = || operations.iter().map(|operation| self.late_of(operation, kernel));
        if late().any(|late| late.is_some()) { late().collect() } else { Vec::new() }
    }

    fn late_of(&self, operation: &Operation, kernel: Span) -> Option<Late> {
        let Some(Details::Operation(.., work)) = self.events.details(operation.id) else { return None };
        let Begun { begun, taken, ref slept } = *work.proxy_begun.as_deref()?;
        let error = u64::from(kernel.error_ns);
        // After its kernel's end, it was work of another run, or the kernel had not waited for it.
        if begun.0 <= kernel.start.0.saturating_add(error) || begun > kernel.end {
            return None;
        }
        let within = |[since, until]: [HostNs; 2]| {
            since.0.saturating_add(error) <= kernel.start.0 && kernel.start.0.saturating_add(error) <= until.0
        };
        let why = taken.and_then(|taken| match () {
            // What happened first is within the error.
            () if taken.0.abs_diff(kernel.start.0) <= error => None,
            () if taken < kernel.start => Some(Delay::Busy),
            () if slept.as_deref().copied().is_some_and(within) => Some(Delay::Asleep),
            () => Some(Delay::Append),
        });
        Some(Late { begun, why })
    }

    /// Reports why proxy operations (of one communicator, or of all) never showed progress: they
    /// still queue, or NCCL does not report progress for their transport.
    pub(super) fn give_up_pending(&mut self, context: Option<Handle>, out: &mut Out<'_>) {
        let mut queues: Vec<Queue> = Vec::new();
        let mut places = FxHashMap::default();
        for (op, connection) in std::mem::take(&mut self.proxy.pending) {
            let is_pending = self.is_pending(op);
            if is_pending.is_some() && context.is_some_and(|context| context != connection.0) {
                self.proxy.pending.push_back((op, connection));
                continue;
            }
            self.leaves(op, connection);
            let Some((taken, by_network)) = is_pending else { continue };
            if by_network {
                let place = *places.entry(connection).or_insert_with(|| {
                    queues.push(Queue { first: op, count: 0, taken: 0 });
                    queues.len() - 1
                });
                queues[place].count += 1;
                queues[place].taken += u64::from(taken);
            } else {
                self.say_silent(op, out);
            }
            self.events.close(op);
        }
        for Queue { first, count, taken, .. } in queues {
            if let Some(known) = self.events.get(first)
                && let Some(proxy) = self.proxy_op(known)
            {
                let (thread, queued_ns) = (known.thread, out.now.since(known.start));
                let given_up = if context.is_some() { taken } else { 0 };
                out.say(What::ProxyOpsQueued { thread, proxy, queued_ns, count, given_up });
            }
        }
    }

    /// A connection turns out to be the network's: its operations so far are queued.
    fn take_pending(&mut self, connection: Connection, out: &mut Out<'_>) {
        for op in self.proxy.untaken.remove(&connection).unwrap_or_default() {
            if self.is_pending(op).is_some()
                && let Some(Known { thread, details: Details::ProxyOp { taken, .. }, .. }) = self.events.get_mut(op)
            {
                *taken = true;
                out.say(What::ProxyOpTaken { thread: *thread });
            }
        }
    }

    /// A proxy operation is no longer pending. If it was untaken, it is the oldest of its
    /// connection.
    fn leaves(&mut self, op: Handle, connection: Connection) {
        let Some(queue) = self.proxy.untaken.get_mut(&connection) else { return };
        match queue.front() == Some(&op) {
            true => drop(queue.pop_front()),
            false => queue.retain(|known| *known != op),
        }
        if queue.is_empty() {
            self.proxy.untaken.remove(&connection);
        }
    }

    /// For a proxy operation without progress: whether it was reported as taken, and whether it is
    /// the network's.
    pub(super) fn is_pending(&self, op: Handle) -> Option<(bool, bool)> {
        let known = self.events.get(op).filter(|known| known.stops == 0)?;
        let Details::ProxyOp { op, begun: false, taken, .. } = &known.details else { return None };
        let connection = connection(known.context, op);
        Some((*taken, *taken || self.proxy.connections.get(&connection).is_some()))
    }

    /// Reports that a proxy operation never showed progress.
    pub(super) fn say_silent(&mut self, op: Handle, out: &mut Out<'_>) {
        if let Some(known) = self.events.get(op)
            && let Some(proxy) = self.proxy_op(known)
        {
            out.say_at(known.start, What::ProxyOpNever { thread: known.thread, proxy });
            self.doubts.silent_proxy_ops += 1;
        }
    }
}

/// What a proxy operation queues for.
pub(super) fn connection(context: Handle, op: &event::ProxyOp) -> Connection {
    (context, op.channel, op.peer, op.send.is_set())
}
