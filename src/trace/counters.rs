//! Counters: the bandwidth of a communicator's kernels, what a progress thread has under way, the
//! processor time of threads.

use std::sync::Arc;

use super::writer::{Form, Place, Sequence, Track, Unit, Writer};
use crate::model::event::Event;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation};
use crate::summary::Traffic;

/// The shortest time between two values of a counter, in ns. Values in between are left out. The
/// last of them is written with the time from which it held.
const GAP_NS: u64 = 10_000;
/// How many kernels of one communicator may overlap without a gap before they are drawn anyway.
const OVERLAPPING: usize = 256;

/// A counter's track.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter(Sequence, Track);

impl Counter {
    /// A new counter, with value 0 from `time` on.
    pub(super) fn new(writer: &mut Writer, name: &str, unit: Unit, place: Place<'_>, time: HostNs) -> Option<Counter> {
        let track = writer.track(Form::Counter { name, unit }, place)?;
        Some(Counter(writer.sequence(track, time), track))
    }

    pub(super) fn set(self, writer: &mut Writer, time: HostNs, value: i64) {
        writer.counter(self.0, self.1, time, value);
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    counter: Option<Counter>,
    value: i64,
    since: HostNs,
    /// The last value that was written, and its time.
    written: (i64, HostNs),
}

impl Gauge {
    pub(super) fn new(counter: Option<Counter>) -> Gauge {
        Gauge { counter, ..Gauge::default() }
    }

    /// Adds to the value from `time` on.
    pub(super) fn add(&mut self, writer: &mut Writer, time: HostNs, change: i64) {
        let time = time.max(self.since);
        if time.since(self.written.1) >= GAP_NS {
            self.flush(writer);
        }
        // Sizes come from NCCL and may be nonsense; wrapping lets them cancel out when they are
        // subtracted.
        (self.value, self.since) = (self.value.wrapping_add(change), time);
        if time.since(self.written.1) >= GAP_NS {
            self.flush(writer);
        }
    }

    /// Writes the value if it differs from the last one written.
    pub(super) fn flush(&mut self, writer: &mut Writer) {
        if self.value != self.written.0 {
            self.written = (self.value, self.since);
            if let Some(counter) = self.counter {
                counter.set(writer, self.since, self.value);
            }
        }
    }
}

/// Algorithm and bus bandwidth in bytes per second: the terms and formulas of nccl-tests.
pub(super) type Bandwidth = [u64; 2];

/// The bandwidth of a communicator's kernels over time.
#[derive(Debug)]
pub(super) struct Speed {
    counters: [Option<Counter>; 2],
    /// Kernels that overlap each other, or may.
    pending: Vec<(HostNs, HostNs, Bandwidth)>,
    until: HostNs,
}

impl Speed {
    pub(super) fn new(counters: [Option<Counter>; 2]) -> Speed {
        Speed { counters, pending: Vec::new(), until: HostNs(0) }
    }

    /// A kernel ran. Kernels arrive roughly in order of their ends.
    pub(super) fn ran(&mut self, writer: &mut Writer, start: HostNs, end: HostNs, bandwidth: Bandwidth) {
        if start >= self.until || self.pending.len() >= OVERLAPPING {
            self.flush(writer);
        }
        self.pending.push((start, end, bandwidth));
        self.until = self.until.max(end);
    }

    /// Writes what is pending. The bandwidths of kernels that run at the same time add up.
    pub(super) fn flush(&mut self, writer: &mut Writer) {
        let signed = |bandwidth: Bandwidth| bandwidth.map(|rate| i64::try_from(rate).unwrap_or(i64::MAX));
        let mut changes = Vec::with_capacity(2 * self.pending.len());
        for (start, end, bandwidth) in self.pending.drain(..) {
            changes.push((start, signed(bandwidth)));
            changes.push((end, signed(bandwidth).map(|rate| -rate)));
        }
        changes.sort_unstable_by_key(|(time, _)| *time);
        let mut now = [0_i64; 2];
        for (index, &(time, change)) in changes.iter().enumerate() {
            now = [now[0].saturating_add(change[0]), now[1].saturating_add(change[1])];
            if changes.get(index + 1).is_none_or(|next| next.0 > time) {
                for (counter, rate) in self.counters.iter().zip(now) {
                    counter.iter().for_each(|counter| counter.set(writer, time, rate));
                }
            }
        }
    }
}

/// The bandwidth of a kernel that took `ns`. `None` if NCCL does not say how much data it moved.
pub(super) fn bandwidth(comm: &Comm, operations: &[Arc<Operation>], ns: u64) -> Option<Bandwidth> {
    let ranks = u32::try_from(comm.ranks).ok()?;
    let mut traffic = Traffic::default();
    for operation in operations {
        let to_itself = matches!(&operation.event, Event::P2p(p2p) if p2p.peer == comm.rank);
        if !traffic.add(operation.func(), operation.bytes()?, ranks, to_itself) {
            return None;
        }
    }
    traffic.bandwidth(ranks, 1, ns)
}
