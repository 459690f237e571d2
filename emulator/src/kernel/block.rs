//! A block of a kernel: one channel, from its first work to its last.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::memory::Place;
use super::pace::{GpuPace, Halt};
use super::plan::{Comm, Ring, Share, Works};
use super::profiler::Profiler;
use super::unplayable::Unplayable;
use super::{Model, broadcasts, collective, point_to_point};
use crate::{time, truth};

/// The communicator was aborted, so the kernel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aborted;

/// A block.
pub(super) struct Block<'k> {
    /// The library's kernels.
    pub(super) model: &'k Model,
    /// The GPU it runs on.
    pub(super) gpu: &'k GpuPace,
    /// The communicator.
    pub(super) comm: &'k Comm,
    /// The channel.
    pub(super) channel: u32,
    symbol: &'k str,
    halts: &'k [Halt],
    steps: AtomicU32,
    aborted: AtomicBool,
}

/// A work that was played, to its end or to an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Played {
    /// The index of its operation.
    pub(super) operation: u32,
    /// The index of the work in its batch.
    pub(super) work: usize,
    /// When it began.
    pub(super) start: u64,
    /// When it ended.
    pub(super) end: u64,
}

impl Played {
    /// Plays a work now, and notes when it began and ended.
    pub(super) fn during(operation: u32, work: usize, play: impl FnOnce() -> Result<(), Aborted>) -> Played {
        let start = time::now();
        // The block remembers an abort.
        let _ = play();
        Played { operation, work, start, end: time::now() }
    }
}

impl<'k> Block<'k> {
    /// A block that has not begun.
    pub(super) fn new(
        model: &'k Model,
        gpu: &'k GpuPace,
        comm: &'k Comm,
        channel: u32,
        symbol: &'k str,
        halts: &'k [Halt],
    ) -> Block<'k> {
        let (steps, aborted) = (AtomicU32::new(0), AtomicBool::new(false));
        Block { model, gpu, comm, channel, symbol, halts, steps, aborted }
    }

    /// Plays everything. Returns the truth about it, and when its first and last stamps were made,
    /// or when a stall before them began.
    pub(super) fn play(&self, share: &Share) -> (Vec<truth::Channel>, [u64; 2]) {
        let mut truth = Vec::new();
        let mut stamped = Vec::with_capacity(2 * share.batches.len() + 1);
        if self.halts.iter().any(|halt| halt.step.is_none()) {
            stamped.push(time::now());
        }
        // The first wait of the first work notices an abort.
        let _ = self.meet(None);
        let mut profiler = Profiler::new(self);
        for batch in &share.batches {
            if let Some(consumed) = batch.consumed {
                self.consumed(consumed);
            }
            let starts = profiler.begin(&batch.works.profiled());
            let played = match &batch.works {
                Works::Exchanges(works) => point_to_point::play(self, works),
                Works::Collectives(function, works) => collective::play(self, *function, works),
                Works::Broadcasts(protocol, works) => broadcasts::play(self, *protocol, works),
            };
            let ends = profiler.end(&starts);
            stamped.extend(starts.iter().chain(&ends).map(|stamp| stamp.at));
            truth.extend(played.into_iter().map(|played| truth::Channel {
                channel: self.channel,
                operation: played.operation,
                counter: starts[played.work].counter,
                start: played.start,
                end: played.end,
                timer_start: starts[played.work].timer,
                timer_end: ends[played.work].timer,
            }));
            if self.is_aborted() {
                break;
            }
        }
        profiler.leave();
        let now = time::now();
        (truth, [stamped.first(), stamped.last()].map(|at| at.copied().unwrap_or(now)))
    }

    /// Whether the communicator was aborted, as far as this block has noticed.
    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    /// The channel's structure.
    pub(super) fn place(&self) -> Place {
        self.comm.channels.at(self.channel as usize * self.model.layout.channel.size)
    }

    /// The channel's ring.
    pub(super) fn ring(&self) -> Ring {
        Ring::read(self.model, self.comm, self.channel).unwrap_or_else(|why| self.refuse(&why))
    }

    /// The channel's connections with a rank.
    pub(super) fn peer(&self, rank: i32) -> Option<Place> {
        let rank = usize::try_from(rank).ok().filter(|rank| *rank < self.comm.ranks)?;
        self.place().follow(self.model.layout.channel.peers)?.follow(8 * rank)
    }

    /// Ends the process, because this kernel cannot be played.
    pub(super) fn refuse(&self, why: &Unplayable) -> ! {
        why.refuse(self.symbol)
    }

    /// Called before each step: a stall may come first.
    pub(super) fn step(&self) -> Result<(), Aborted> {
        self.meet(Some(self.steps.fetch_add(1, Ordering::Relaxed)))
    }

    /// Waits for the stalls before this step, or those before everything.
    fn meet(&self, step: Option<u32>) -> Result<(), Aborted> {
        self.halts.iter().filter(|halt| halt.step == step).try_for_each(|halt| self.sleep_until(halt.until()))
    }

    /// Waits until `ready` returns true. Checks the abort flag often, and yields: there are more
    /// blocks than processors, and the blocks waited for need one too.
    pub(super) fn wait(&self, mut ready: impl FnMut() -> bool) -> Result<(), Aborted> {
        const YIELDS: u32 = 64;
        const SHORTEST: Duration = Duration::from_micros(10);
        const LONGEST: Duration = Duration::from_micros(200);
        let mut sleep = SHORTEST;
        let mut waits = 0;
        while !ready() {
            self.watch()?;
            waits += 1;
            if waits <= YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(sleep);
                sleep = (sleep + sleep / 4).min(LONGEST);
            }
        }
        Ok(())
    }

    /// Sleeps until a true time.
    pub(super) fn sleep_until(&self, at: u64) -> Result<(), Aborted> {
        const WATCHED_NS: u64 = 1_000_000;
        loop {
            let now = time::now();
            if now >= at {
                return Ok(());
            }
            self.watch()?;
            time::sleep_until(at.min(now + WATCHED_NS));
        }
    }

    fn watch(&self) -> Result<(), Aborted> {
        if self.comm.abort.glance() != 0 {
            self.aborted.store(true, Ordering::Relaxed);
        }
        if self.is_aborted() { Err(Aborted) } else { Ok(()) }
    }

    /// Tells the host how far the work FIFO has been read.
    fn consumed(&self, consumed: u32) {
        let counters = self.model.layout.kernel_comm.work_consumed.and_then(|offset| self.comm.place.follow(offset));
        if let Some(counters) = counters {
            counters.at(4 * self.channel as usize).release_int(consumed);
        }
    }
}
