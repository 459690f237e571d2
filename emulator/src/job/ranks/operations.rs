//! Operations: what fills their memory before, and the checks after.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::nccl::Passed;
use super::Ranks;
use super::calls::{Part, native};
use super::memory::Memory;
use crate::scenario::program::{Operation, What};
use elements::data::{Data, Mismatch};
use elements::mix;

/// A comparison to make once an operation is done.
pub(super) struct Check {
    rank: usize,
    line: usize,
    operation: Operation,
    data: Data,
    memory: Memory,
}

impl Ranks<'_> {
    pub(super) fn operation(&mut self, operation: &Operation, active: &[usize]) -> Result<(), String> {
        let members = active.iter().copied().filter(|&index| self.ranks[index].communicators[operation.on].is_some());
        let members: Vec<usize> = members.collect();
        if members.is_empty() {
            return Ok(());
        }
        if operation.symmetric {
            self.open_windows(operation, &members)?;
        }
        let is_one_call =
            native(self.job.nccl.library.api(), operation).is_some() || matches!(operation.what, What::Send { .. });
        let grouped = self.depth == 0 && (members.len() > 1 || !is_one_call);
        self.together(&members, grouped, |ranks| members.iter().try_for_each(|&index| ranks.issue(index, operation)))
    }

    /// Queues one rank's part of an operation, and before it the work that fills its memory.
    fn issue(&mut self, index: usize, operation: &Operation) -> Result<(), String> {
        self.select(index)?;
        let memory = self.memory(index, operation)?;
        let caller = self.caller(index, operation.on);
        let rank = &mut self.ranks[index];
        let communicator = rank.communicators[operation.on].as_ref().expect("only members issue");
        let calls = rank.calls.entry(operation.site).or_default();
        let reduction = match operation.what {
            What::AllReduce(reduction) | What::ReduceScatter(reduction) | What::Reduce { reduction, .. } => {
                Some(reduction)
            }
            _ => None,
        };
        let seed = [operation.site as u64, communicator.group as u64, rank.made[operation.on], *calls];
        let seed = seed.into_iter().fold(self.job.scenario.seed, |seed, more| mix(seed ^ mix(more + 1)));
        *calls += 1;
        let data = Data { seed, datatype: operation.datatype, reduction };

        let mut replays = 0;
        let (filled, own) = (memory.clone(), communicator.rank);
        let fill = move || {
            // Stale results from the last execution must not pass the check if nothing is written.
            // Both buffers may be the same memory, so each is used by itself.
            if filled.send.as_ptr() != filled.receive.as_ptr() {
                // SAFETY: other operations on this memory come before or after this in the order
                // of the stream.
                unsafe { filled.receive.bytes() }.fill(0xa5);
            }
            // SAFETY: as above.
            replay(data, &mut replays).fill(unsafe { filled.send.bytes() }, own);
        };
        let queued = rank
            .compute
            .record(&rank.event)
            .and_then(|()| communicator.stream.wait_event(&rank.event))
            .and_then(|()| communicator.stream.host_work(fill));
        queued.map_err(|error| format!("rank {}: failed to queue: {error}", rank.world))?;
        if let Some(uses) = &mut rank.capture {
            uses.insert(operation.on);
        }

        let part = Part {
            nccl: &self.job.nccl,
            caller,
            communicator,
            operation,
            passed: Passed {
                count: operation.count,
                datatype: Some(operation.datatype),
                send: memory.send.as_ptr(),
                receive: memory.receive.as_ptr(),
                root: -1,
                stream: communicator.stream.handle(),
                captured: rank.capture.is_some(),
            },
        };
        part.call()?;
        self.pending.push(Check { rank: index, line: self.line, operation: operation.clone(), data, memory });
        Ok(())
    }

    /// Queues the checks, now that what they check is queued.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        if self.depth > 0 {
            return Ok(());
        }
        for check in std::mem::take(&mut self.pending) {
            let Check { rank: index, line, operation, data, memory } = check;
            self.select(index)?;
            let rank = &self.ranks[index];
            let Some(communicator) = &rank.communicators[operation.on] else { continue };
            let (own, size) = (communicator.rank, communicator.size);
            if !receives(operation.what, own) {
                continue;
            }
            let tally = Arc::clone(&self.job.tally);
            let aborted = Arc::clone(&communicator.aborted);
            let name = self.caller(index, operation.on).communicator.to_owned();
            let (world, mut replays) = (rank.world, 0);
            let work = move || {
                let data = replay(data, &mut replays);
                if aborted.load(Ordering::SeqCst) {
                    return;
                }
                // SAFETY: other operations on this memory come before or after this in the order
                // of the stream.
                let received = unsafe { memory.receive.bytes() };
                let result = compare(&operation, &data, received, own, size);
                tally.count(&result, || {
                    format!("rank {world}: {} on `{name}`, rank {own} there, line {line}", operation.what.word())
                });
            };
            let queued = communicator.stream.host_work(work);
            queued.map_err(|error| format!("rank {}: failed to queue: {error}", rank.world))?;
        }
        Ok(())
    }
}

/// The data of the next replay of a graph. Outside of graphs there is only one execution.
fn replay(data: Data, replays: &mut u64) -> Data {
    *replays += 1;
    Data { seed: mix(data.seed ^ mix(*replays)), ..data }
}

/// Whether a rank of the communicator receives a result.
fn receives(what: What, own: u32) -> bool {
    match what {
        What::Reduce { root, .. } | What::Gather { root } => own == root,
        What::Send { to, .. } => own == to,
        _ => true,
    }
}

/// Compares what a rank received with what it should have.
fn compare(operation: &Operation, data: &Data, received: &[u8], own: u32, size: u32) -> Result<(), Mismatch> {
    let count = operation.count;
    match operation.what {
        What::AllReduce(_) | What::Reduce { .. } => data.check_reduced(received, size, 0),
        What::ReduceScatter(_) => data.check_reduced(received, size, own as usize * count),
        What::Broadcast { root } => data.check_copy(received, root, 0),
        What::Send { from, .. } => data.check_copy(received, from, 0),
        What::Ring => data.check_copy(received, (own + size - 1) % size, 0),
        What::Scatter { root } => data.check_copy(received, root, own as usize * count),
        What::AllGather | What::Gather { .. } | What::AllToAll => {
            let first = if operation.what == What::AllToAll { own as usize * count } else { 0 };
            let one = (count * operation.datatype.size()).max(1);
            for (peer, part) in received.chunks(one).enumerate() {
                data.check_copy(part, peer as u32, first)
                    .map_err(|wrong| Mismatch { element: wrong.element + peer * count, ..wrong })?;
            }
            Ok(())
        }
    }
}
