//! What is remembered of events, in bounded memory.

use std::collections::VecDeque;
use std::sync::Arc;

use super::bounded::Store;
use crate::model::event::{self, Kind};
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Doubt, Moment, Operation, ThreadId};

/// An event that was started.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) kind: Kind,
    /// The thread it was started on.
    pub(super) thread: ThreadId,
    /// The context it belongs to; its parent's, where NCCL passes a foreign one.
    pub(super) context: Handle,
    pub(super) start: HostNs,
    /// How often it was stopped.
    pub(super) stops: u8,
    pub(super) details: Details,
}

/// What else matters about an event, by its kind.
#[derive(Debug)]
pub(super) enum Details {
    None,
    /// `GroupApi`: the times of its two states.
    Group {
        marks: [Option<HostNs>; 2],
    },
    /// A call by the user. A captured one stays the parent of every replay.
    Call {
        captured: bool,
        replays: u32,
        /// For a captured send or receive: its number, once it was handed over.
        number: Option<u32>,
        /// The GroupApi it was made in.
        group: Handle,
        made: Moment,
    },
    /// `Coll` or `P2p`: the operation, the Group that handed it over, and the work NCCL did for it.
    Operation(Arc<Operation>, Handle, Work),
    ProxyOp {
        op: event::ProxyOp,
        parent: Handle,
        doubt: Option<Doubt>,
        /// It showed progress and was drawn.
        begun: bool,
        /// It was known from the start to use the network, for which progress is reported.
        taken: bool,
        /// The append that brought it, or 0; and when the thread last slept before that.
        batch: u32,
        slept: Option<Box<[HostNs; 2]>>,
        /// Its open steps: number and newest handle.
        steps: Vec<(i32, Handle)>,
    },
    Step {
        op: Handle,
        step: i32,
        /// The handle under which the step is drawn: that of its first start.
        first: Handle,
        starts: u32,
        phase: u16,
    },
    /// `KernelCh` or `KernelPhase`: the plan it belongs to.
    Channel {
        run: Handle,
        operation: Handle,
    },
}

/// What NCCL began for an operation, and what of it has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Proxy operations: begun and ended.
    pub(super) proxy: [u32; 2],
    /// Kernel channels: begun and ended.
    pub(super) channels: [u32; 2],
    /// When the last of them ended.
    pub(super) last: HostNs,
    /// When NCCL's thread first saw that the GPU had begun.
    pub(super) seen: Option<HostNs>,
    /// The proxy's work that began last.
    pub(super) proxy_begun: Option<Box<Begun>>,
}

/// When the proxy took some work, and when it began it.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    pub(super) begun: HostNs,
    /// When it took it in; `None` up to NCCL 2.26, which reports that later.
    pub(super) taken: Option<HostNs>,
    /// When the thread had last slept before that.
    pub(super) slept: Option<Box<[HostNs; 2]>>,
}

impl Work {
    /// When all of it had ended, as far as that shows that the operation is done. More may be about
    /// to begin, so ask this only about operations that have been under way for long.
    pub(super) fn done(&self) -> Option<HostNs> {
        let all = |[begun, ended]: [u32; 2]| begun == ended;
        let any = self.proxy[0] + self.channels[0] > 0;
        (any && all(self.proxy) && all(self.channels)).then_some(self.last)
    }
}

/// Stopped calls and operations that may still become parents.
const CLOSED_PARENTS: usize = 16 << 10;
/// Stopped events of other kinds, remembered so that a second stop is recognised.
const CLOSED_OTHERS: usize = 2 << 10;
/// Stopped parents and others where less is remembered.
const CLOSED_LESS: [usize; 2] = [2 << 10, 256];
/// Captured calls, whose graph may be replayed at any time.
const CAPTURED: usize = 8 << 10;
/// Open events.
const OPEN: usize = 28 << 10;

/// Events by their handle.
#[derive(Debug, Default)]
pub(super) struct Table {
    events: Store<Handle, Known>,
    /// Stopped events, oldest first: one queue for each bound above.
    parents: VecDeque<Handle>,
    others: VecDeque<Handle>,
    captured: VecDeque<Handle>,
    /// Events in order of their start. Those that have since been stopped or forgotten are skipped.
    started: VecDeque<Handle>,
    evicted_open: u64,
    /// Less is remembered.
    is_small: bool,
}

impl Table {
    /// From here on less is remembered.
    pub(super) fn remember_less(&mut self) {
        self.is_small = true;
    }

    pub(super) fn get(&self, id: Handle) -> Option<&Known> {
        self.events.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: Handle) -> Option<&mut Known> {
        self.events.get_mut(&id)
    }

    pub(super) fn details(&self, id: Handle) -> Option<&Details> {
        self.get(id).map(|known| &known.details)
    }

    pub(super) fn details_mut(&mut self, id: Handle) -> Option<&mut Details> {
        self.get_mut(id).map(|known| &mut known.details)
    }

    /// The operation behind the handle of a `Coll` or `P2p`.
    pub(super) fn operation(&self, id: Handle) -> Option<&Operation> {
        match &self.get(id)?.details {
            Details::Operation(operation, ..) => Some(operation),
            _ => None,
        }
    }

    /// How many open events had to be forgotten so far.
    pub(super) fn evicted_open(&self) -> u64 {
        self.evicted_open
    }

    pub(super) fn insert(&mut self, id: Handle, known: Known) {
        self.events.insert(id, known);
        self.started.push_back(id);
        let closed = self.parents.len() + self.others.len() + self.captured.len();
        if self.started.len() > 2 * OPEN {
            let events = &self.events;
            self.started.retain(|id| events.get(id).is_some_and(|known| known.stops == 0));
        }
        while self.events.len() > closed + OPEN {
            let Some(oldest) = self.started.pop_front() else { break };
            if self.events.get(&oldest).is_some_and(|known| known.stops == 0) {
                self.events.remove(&oldest);
                self.evicted_open += 1;
            }
        }
    }

    /// Notes the first stop of an event, and forgets the events that were stopped longest ago.
    pub(super) fn close(&mut self, id: Handle) {
        let Some(known) = self.events.get_mut(&id) else { return };
        if known.stops > 0 {
            return;
        }
        known.stops = 1;
        let [parents, others] = if self.is_small { CLOSED_LESS } else { [CLOSED_PARENTS, CLOSED_OTHERS] };
        let (queue, bound) = match known.details {
            Details::Call { captured: true, .. } => (&mut self.captured, CAPTURED),
            Details::Call { .. } | Details::Operation(..) | Details::Group { .. } => (&mut self.parents, parents),
            _ => (&mut self.others, others),
        };
        queue.push_back(id);
        if queue.len() > bound
            && let Some(oldest) = queue.pop_front()
        {
            self.events.remove(&oldest);
        }
    }

    /// How many events are remembered, open or not.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(details: Details) -> Known {
        Known { kind: Kind::Coll, thread: ThreadId(0), context: Handle(1), start: HostNs(0), stops: 0, details }
    }

    #[test]
    fn memory_is_bounded_whatever_is_never_stopped() {
        let mut table = Table::default();
        for id in 1..=1_000_000_u64 {
            table.insert(Handle(id), known(Details::None));
            if id % 3 == 0 {
                table.close(Handle(id));
            }
        }
        assert!(table.len() <= OPEN + CLOSED_OTHERS);
        assert!(table.started.len() <= 2 * OPEN + 1);
        assert!(table.evicted_open() > 500_000);
        assert!(table.get(Handle(1_000_000)).is_some());
    }

    fn call(captured: bool) -> Details {
        let made = Moment { tid: 1, time: HostNs(0) };
        Details::Call { captured, replays: 0, number: None, group: Handle::NONE, made }
    }

    #[test]
    fn a_captured_call_outlives_a_flood_of_others() {
        let mut table = Table::default();
        table.insert(Handle(1), known(call(true)));
        table.close(Handle(1));
        for id in 2..=200_000_u64 {
            table.insert(Handle(id), known(call(false)));
            table.close(Handle(id));
        }
        assert!(table.get(Handle(1)).is_some());
        assert!(table.get(Handle(2)).is_none());
    }
}
