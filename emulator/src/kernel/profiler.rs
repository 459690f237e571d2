//! The counters and times that kernels write for NCCL's profiler: which works of a channel have
//! begun and ended, and when.
//!
//! | release | what |
//! | --- | --- |
//! | up to 2.25 | nothing |
//! | 2.26 | for each channel the numbers of the last works that have begun and ended |
//! | from 2.27 | for each channel a ring of numbers with the device's time |
//!
//! Works are numbered over the life of the channel. Up to 2.30 the kernel numbers every work,
//! according to public sources, although the host has not numbered those of several broadcasts
//! since 2.29. From 2.31 on the host numbers only the works that the profiler wants events for. We
//! assume that the kernel does the same, because nothing would match otherwise.

use super::block::Block;
use super::memory::{self, Place};
use crate::time;

/// The profiler of a block.
pub(super) struct Profiler<'b> {
    block: &'b Block<'b>,
    books: Option<Books>,
    /// The number of the last work that has ended.
    ended: u64,
    /// The number of the last work that has begun.
    begun: u64,
}

/// Where the stamps of a channel's works are written.
#[derive(Clone, Copy)]
struct Books {
    /// Where the channel stores its last number.
    counter: Place,
    started: Place,
    completed: Place,
    /// The offset of the ring in the structures that the other two point to, if they have one.
    ring: Option<usize>,
}

/// A work has begun, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Its number, if the profiler wants events for it.
    pub(super) counter: Option<u64>,
    /// When the device's timer was read, and what it showed.
    pub(super) at: u64,
    pub(super) timer: u64,
}

impl<'b> Profiler<'b> {
    /// Continues where the channel's last kernel ended.
    pub(super) fn new(block: &'b Block<'b>) -> Profiler<'b> {
        let layout = &block.model.layout;
        let place = |offset: Option<usize>| block.comm.place.follow(offset?);
        let books = (|| {
            let started = place(layout.kernel_comm.work_started)?;
            let completed = place(layout.kernel_comm.work_completed)?;
            let entry = layout.profiler.map_or(size_of::<u64>(), |layout| layout.size);
            let channel = block.channel as usize * entry;
            Some(Books {
                counter: block.place().at(layout.channel.work_counter?),
                started: started.at(channel),
                completed: completed.at(channel),
                ring: layout.profiler.map(|layout| layout.data),
            })
        })();
        let last = books.map_or(0, |books| books.counter.word(0));
        Profiler { block, books, ended: last, begun: last }
    }

    /// Stamps the beginning of a batch's works. `profiled` says for each whether the profiler
    /// wants events for it.
    pub(super) fn begin(&mut self, profiled: &[bool]) -> Vec<Stamp> {
        let every = self.block.model.release < 23100;
        let mut stamps = Vec::with_capacity(profiled.len());
        for &profiled in profiled {
            if every || profiled {
                self.begun += 1;
            }
            let counter = (profiled && self.books.is_some()).then_some(self.begun);
            stamps.push(self.write(counter, |books| books.started));
        }
        self.tell(&stamps, |books| books.started);
        stamps
    }

    /// Stamps the end of all of them.
    pub(super) fn end(&mut self, begun: &[Stamp]) -> Vec<Stamp> {
        let stamps = begun.iter().map(|stamp| self.write(stamp.counter, |books| books.completed)).collect();
        self.tell(begun, |books| books.completed);
        self.ended = self.begun;
        stamps
    }

    /// Stores the channel's number when the kernel ends.
    pub(super) fn leave(self) {
        if let Some(books) = self.books {
            books.counter.set_word(0, self.ended);
        }
    }

    /// Reads the timer, and writes the time to the ring, if there is one.
    fn write(&self, counter: Option<u64>, which: impl Fn(&Books) -> Place) -> Stamp {
        /// `MAX_PROFILER_EVENTS_PER_CHANNEL`
        const ENTRIES: u64 = 64;
        const ENTRY: usize = 16;

        let at = time::now();
        let timer = self.block.gpu.timer().at(at);
        if let (Some(counter), Some(books)) = (counter, &self.books)
            && let Some(ring) = books.ring
        {
            let entry = (counter % ENTRIES) as usize * ENTRY;
            memory::stamp(which(books).at(ring + entry), counter, timer);
        }
        Stamp { counter, at, timer }
    }

    /// Without a ring, writes the number of the batch's last work, whether or not the profiler
    /// wants events for that one.
    fn tell(&self, stamps: &[Stamp], which: impl Fn(&Books) -> Place) {
        if let Some(books @ Books { ring: None, .. }) = &self.books
            && stamps.iter().any(|stamp| stamp.counter.is_some())
        {
            which(books).release(self.begun);
        }
    }
}
