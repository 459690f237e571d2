//! The kernels of a stream begin in the order of their launches (pure).
//!
//! If the times of two kernels of a stream are in another order than their launches, one match is
//! wrong, or CUPTI's times are. Either way neither match is certain. Correlation ids rise with the
//! launches of one thread. Launches of different threads are not compared: they may overtake each
//! other between taking an id and entering the stream.

use std::collections::VecDeque;

use super::bounded::Bounded;
use super::channels::CONVERSION_NS;
use super::plans::Found;
use super::sessions::Call;
use crate::model::activity::{Kernel, Place, Span};
use crate::model::ids::Handle;

/// Streams that are remembered.
const STREAMS: usize = 1024;
/// Kernels that are remembered of a stream: its records arrive almost in order.
const KERNELS: usize = 64;

/// The newest matched kernels of each stream.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// By place and launching thread, by the system's id, in the order of the launches.
    launched: Bounded<(Place, i32), VecDeque<Launched>>,
}

#[derive(Debug, Clone, Copy)]
struct Launched {
    call: Call,
    span: Span,
    group: Handle,
}

impl Launched {
    /// Whether it certainly began before the other.
    fn began_before(&self, other: &Launched) -> bool {
        let errors = u64::from(self.span.error_ns) + u64::from(other.span.error_ns) + CONVERSION_NS;
        self.span.start.0 + errors < other.span.start.0
    }
}

impl Streams {
    /// Takes a kernel and its match. Returns the Group of another kernel if the two did not begin
    /// in the order of their launches. Both are then forgotten, since it is not known which of them
    /// is right.
    pub(super) fn add(&mut self, call: Call, kernel: &Kernel, found: &Found) -> Option<Handle> {
        // All kernels of a graph have the id of its launch.
        let asked = found.operations.first()?.asked.filter(|_| kernel.graph_node == 0)?;
        // Without a KernelLaunch the calling thread launches.
        let thread = found.thread.unwrap_or(asked.tid);
        let new = Launched { call, span: kernel.span, group: found.group };
        let key = (kernel.place, thread);
        let Some(known) = self.launched.get_mut(&key) else {
            self.launched.insert(key, VecDeque::from([new]), STREAMS);
            return None;
        };
        let place = known.partition_point(|other| !other.call.is_after(call));
        let before = place.checked_sub(1).filter(|&index| new.began_before(&known[index]));
        let after = Some(place).filter(|&index| known.get(index).is_some_and(|other| other.began_before(&new)));
        if let Some(index) = before.or(after) {
            return known.remove(index).map(|other| other.group);
        }
        known.insert(place, new);
        if known.len() > KERNELS {
            known.pop_front();
        }
        None
    }
}
