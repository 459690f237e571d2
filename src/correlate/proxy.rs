//! What the network proxy does: operations, which queue behind each other, and their transfers.

use rustc_hash::FxHashMap;

use super::known::{Details, Known};
use super::{Correlator, Out, Started};
use crate::model::event;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Doubt, ProxyOp, What};

/// The newest proxy operations. Those among them that never show progress are reported at the end,
/// older ones as soon as they drop out.
pub(super) const PENDING_OPS: usize = 16 << 10;
/// Connections of the network that are remembered.
const CONNECTIONS: usize = 16 << 10;

/// What proxy operations queue for: communicator, channel, peer, and whether they send.
pub(super) type Connection = (Handle, u8, i32, bool);

/// The operations of one connection that still queue.
struct Queue {
    first: Handle,
    count: u64,
    taken: u64,
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
        let taken = op.send.is_set() || self.connections.get(&connection(context, &op)).is_some();
        if taken {
            out.say(What::ProxyOpTaken { thread });
        }
        self.pending.push_back(id);
        while self.pending.len() > PENDING_OPS {
            if let Some(oldest) = self.pending.pop_front() {
                // It may still show progress; then it is drawn after all.
                if self.is_pending(oldest).is_some_and(|(_, _, by_network)| !by_network) {
                    self.say_silent(oldest, out);
                }
            }
        }
        Details::ProxyOp { op, parent, doubt, begun: false, taken, steps: Vec::new() }
    }

    pub(super) fn start_step(&mut self, mut known: Known, id: Handle, op: Handle, step: i32, out: &mut Out<'_>) {
        self.show_progress(op, out);
        // Steps carry the context of their operation, which is foreign with PXN: the operation
        // decides.
        known.context = self.events.get(op).map_or(known.context, |op| op.context);
        self.moved.insert(known.context, out.now);
        // A receive that the network refused is started again: the same transfer under another
        // handle.
        let open = match self.events.get_mut(op).map(|known| &mut known.details) {
            Some(Details::ProxyOp { steps, .. }) => match steps.iter_mut().find(|(number, _)| *number == step) {
                Some((_, handle)) => Some(std::mem::replace(handle, id)),
                None => {
                    steps.push((step, id));
                    None
                }
            },
            _ => None,
        };
        known.details = match open.and_then(|open| self.events.get(open)).map(|known| &known.details) {
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
            if let Some(&Details::Step { first, starts, .. }) = self.events.get(step).map(|known| &known.details) {
                out.say(What::StepEnd { id: first, starts, stopped: false });
            }
            self.events.close(step);
        }
    }

    /// A proxy step shows that the GPU had begun its operation.
    pub(super) fn saw_work_of(&mut self, step: Handle, now: HostNs) {
        let Some(&Details::Step { op, .. }) = self.events.get(step).map(|known| &known.details) else { return };
        if let Some(&Details::ProxyOp { parent, .. }) = self.events.get(op).map(|known| &known.details) {
            self.work(parent, |work| work.seen = Some(work.seen.map_or(now, |seen| seen.min(now))));
        }
    }

    fn proxy_op(&self, known: &Known) -> Option<ProxyOp<'_>> {
        let Details::ProxyOp { op, parent, doubt, .. } = known.details else { return None };
        Some(ProxyOp {
            event: op,
            comm: self.comms.get(&known.context),
            operation: self.events.operation(parent),
            doubt,
        })
    }

    /// The first sign of progress of a proxy operation: it is drawn from here on.
    pub(super) fn show_progress(&mut self, op: Handle, out: &mut Out<'_>) {
        let Some(known) = self.events.get_mut(op) else { return };
        let Details::ProxyOp { op: facts, begun, taken, .. } = &mut known.details else { return };
        // One that was reported as silent, or as queued when its communicator ended, stays so.
        if known.stops > 0 || std::mem::replace(begun, true) {
            return;
        }
        let (was_taken, connection) = (*taken, connection(known.context, facts));
        if self.connections.get(&connection).is_none() {
            self.connections.insert(connection, (), CONNECTIONS);
            self.take_pending(connection, out);
        }
        if let Some(known) = self.events.get(op)
            && let Some(proxy) = self.proxy_op(known)
        {
            let queued_ns = out.now.since(known.start);
            out.say(What::ProxyOpBegin { id: op, thread: known.thread, proxy, queued_ns, was_taken });
        }
    }

    /// Reports why proxy operations (of one communicator, or of all) never showed progress: they
    /// still queue, or NCCL does not report progress for their transport.
    pub(super) fn give_up_pending(&mut self, context: Option<Handle>, out: &mut Out<'_>) {
        let mut queues: Vec<Queue> = Vec::new();
        let mut places = FxHashMap::default();
        for op in std::mem::take(&mut self.pending) {
            let Some((connection, taken, by_network)) = self.is_pending(op) else { continue };
            if context.is_some_and(|context| context != connection.0) {
                self.pending.push_back(op);
                continue;
            }
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
        let queues = |op: &Handle| self.is_pending(*op).is_some_and(|(of, taken, _)| of == connection && !taken);
        let queued: Vec<Handle> = self.pending.iter().copied().filter(queues).collect();
        for op in queued {
            if let Some(Known { thread, details: Details::ProxyOp { taken, .. }, .. }) = self.events.get_mut(op) {
                *taken = true;
                out.say(What::ProxyOpTaken { thread: *thread });
            }
        }
    }

    /// For a proxy operation without progress: its connection, whether it was reported as taken,
    /// and whether it is the network's.
    pub(super) fn is_pending(&self, op: Handle) -> Option<(Connection, bool, bool)> {
        let known = self.events.get(op).filter(|known| known.stops == 0)?;
        let Details::ProxyOp { op, begun: false, taken, .. } = &known.details else { return None };
        let connection = connection(known.context, op);
        Some((connection, *taken, *taken || self.connections.get(&connection).is_some()))
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
