//! The buffers lent to CUPTI, from one bounded pool.
//!
//! ```text
//!           request             complete             take               give_back
//!   free  ----------->  lent  ----------->  full  ---------->  (taken)  ---------> free
//!     (a thread that launches)   (CUPTI's worker)     (the collector's thread)
//! ```
//!
//! CUPTI returns a buffer once it is full and all its kernels have ended, and while a kernel runs
//! nothing makes it return more, short of force. So a buffer must not take long to fill: where few
//! kernels are launched, less of it is lent ([`Pace`]).
//!
//! CUPTI clears a buffer before it uses it, on the thread that asks for it: 128 KiB, once in six
//! hundred launches. CUPTI can be told that buffers are already clear (attribute 5), but that holds
//! for the whole process, and another tool that uses CUPTI with us may not clear its buffers.
//!
//! CUPTI asks for buffers on the application's threads, so a buffer's state is a bit in a word: no
//! lock, no allocation, no wait. If no buffer is free, a small spare one is lent and its content is
//! lost: a null pointer crashes CUPTI before 12.9. If all spare ones are lent too, a full buffer
//! that the collector has not taken is lent again, and what is in it is lost. CUPTI gets a null
//! pointer only while it holds all of these itself. Then one buffer for everybody would be worse:
//! CUPTI fills in a record when its kernel ends, and nothing says that it does not read there what
//! another thread has overwritten.
//!
//! A buffer that CUPTI holds is never unmapped, not even after unsubscribing; the pool lives as
//! long as the process.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::record::sync::AtomicU64;
use crate::sys::Pages;

/// Most buffers; one bit each.
const MAX_BUFFERS: usize = 64;
/// Bytes of a buffer: five hundred kernels. NVIDIA advises 1 to 10 MB, but from CUDA 13.0 on each
/// launching thread holds a buffer, and a kernel that waits for a slow peer holds back the buffer
/// of its thread: many small buffers are better than a few large ones.
const BUFFER: usize = 128 << 10;
/// Number of spare buffers, and the bytes of each. Small, so that CUPTI soon asks again.
const SPARES: usize = if cfg!(loom) { 1 } else { 32 };
const SPARE: usize = 16 << 10;
/// Bytes of the shortest kernel record.
const KERNEL: u64 = 208;
/// Buffers touched in advance. The lowest free one is always lent first, so a quiet process needs
/// no more.
const WARM: usize = 4;
const PAGE: usize = 4096;

/// The least that is lent of a buffer, in bytes: twenty kernels. NVIDIA's own Fuser lends as little
/// (github.com/NVIDIA/Fuser, csrc/fusion_profiler.cpp).
const LEAST: usize = 4 << 10;

/// Decides how much of a buffer to lend: a quarter of what was lent in the same second. So a buffer
/// grows with a burst of launches, and never holds most of it back.
///
/// The second is in the upper half, the bytes that were lent in it are in the lower one.
#[derive(Debug, Default)]
pub(super) struct Pace(AtomicU64);

impl Pace {
    /// How much of the next buffer to lend, in bytes. `now` is `CLOCK_BOOTTIME` in ns.
    pub(super) fn next(&self, now: u64) -> usize {
        // A second of 2^30 ns. Two threads at once may count one of their buffers: never mind.
        let (second, before) = (now >> 30 << 32, self.0.load(Relaxed));
        let lent = if before >> 32 << 32 == second { before & u64::from(u32::MAX) } else { 0 };
        let size = (lent as usize >> 2 & !(LEAST - 1)).clamp(LEAST, BUFFER);
        self.0.store(second | (lent + size as u64).min(u32::MAX.into()), Relaxed);
        size
    }
}

/// The pool.
pub(super) struct Pool {
    /// The buffers, followed by the spare ones.
    memory: Pages,
    count: usize,
    /// One bit per buffer: free; lent to CUPTI; completed.
    free: AtomicU64,
    lent: AtomicU64,
    full: AtomicU64,
    free_spares: AtomicU64,
    slots: Box<[Slot]>,
    completions: AtomicU64,
    /// Spare buffers that came back with records, full ones that were lent again, and the bytes in
    /// both; requests for which none of these was left.
    buffers_lost: AtomicU64,
    bytes_lost: AtomicU64,
    refused: AtomicU64,
    /// Returned buffers that had not been lent.
    foreign: AtomicU64,
}

/// What is known about a completed buffer.
struct Slot {
    /// Bytes that CUPTI wrote.
    valid: AtomicU64,
    /// Its position in the order of completion.
    number: AtomicU64,
    /// When it was completed, in ns of `CLOCK_BOOTTIME`.
    at: AtomicU64,
}

impl Slot {
    fn new() -> Slot {
        Slot { valid: AtomicU64::new(0), number: AtomicU64::new(0), at: AtomicU64::new(0) }
    }
}

/// A completed buffer, outside the pool until it is given back.
#[derive(Debug)]
pub(super) struct Taken {
    index: usize,
    number: u64,
    valid: usize,
    /// When it was completed, in ns of `CLOCK_BOOTTIME`.
    pub(super) at: u64,
}

/// What the pool has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Buffers whose content was lost because no other buffer was free.
    pub(super) buffers: u64,
    /// Bytes in them.
    pub(super) bytes: u64,
    /// Requests that got no buffer at all.
    pub(super) refused: u64,
    /// Buffers that CUPTI returned but had not been lent.
    pub(super) foreign: u64,
}

impl Pool {
    /// A pool of about this many bytes; `None` if there is no such memory.
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    pub(super) fn new(bytes: usize) -> Option<Pool> {
        let count = (bytes / BUFFER).clamp(2, MAX_BUFFERS);
        let memory = Pages::new(count * BUFFER + SPARES * SPARE)?;
        for page in 0..WARM.min(count) * BUFFER / PAGE {
            // SAFETY: within the mapping, which nobody else uses yet.
            unsafe { memory.address().add(page * PAGE).write_volatile(0) };
        }
        Some(Pool {
            memory,
            count,
            free: AtomicU64::new(u64::MAX >> (MAX_BUFFERS - count)),
            lent: AtomicU64::new(0),
            full: AtomicU64::new(0),
            free_spares: AtomicU64::new(u64::MAX >> (MAX_BUFFERS - SPARES)),
            slots: (0..count).map(|_| Slot::new()).collect(),
            completions: AtomicU64::new(0),
            buffers_lost: AtomicU64::new(0),
            bytes_lost: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
        })
    }

    /// Lends a buffer: its address and its length in bytes. Null if CUPTI or the collector has all
    /// of them, which takes more launching threads than there are buffers.
    pub(super) fn request(&self) -> (*mut u8, usize) {
        if let Some(index) = take_lowest(&self.free) {
            return self.lend(index);
        }
        if let Some(index) = take_lowest(&self.free_spares) {
            return (self.spare(index), SPARE);
        }
        // Whoever clears the bit has the buffer: this thread or the collector.
        if let Some(index) = take_lowest(&self.full) {
            let valid = self.slots.get(index).map_or(0, |slot| slot.valid.load(Relaxed));
            self.count_lost(valid);
            return self.lend(index);
        }
        self.refused.fetch_add(1, Relaxed);
        (std::ptr::null_mut(), 0)
    }

    /// Whether so few buffers are free that each should take as much as it can.
    pub(super) fn is_scarce(&self) -> bool {
        2 * (self.free.load(Relaxed).count_ones() as usize) < self.count
    }

    fn lend(&self, index: usize) -> (*mut u8, usize) {
        self.lent.fetch_or(1 << index, Relaxed);
        (self.buffer(index), BUFFER)
    }

    fn count_lost(&self, bytes: u64) {
        self.buffers_lost.fetch_add(1, Relaxed);
        self.bytes_lost.fetch_add(bytes, Relaxed);
    }

    /// Takes back a buffer that CUPTI filled with `valid` bytes. `at` is the time, in ns of
    /// `CLOCK_BOOTTIME`.
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    pub(super) fn complete(&self, buffer: *mut u8, valid: usize, at: u64) {
        let offset = buffer.addr().wrapping_sub(self.memory.address().addr());
        match offset.checked_sub(self.count * BUFFER) {
            None if offset.is_multiple_of(BUFFER) => self.complete_buffer(offset / BUFFER, valid.min(BUFFER), at),
            Some(offset) if offset < SPARES * SPARE && offset.is_multiple_of(SPARE) => {
                self.complete_spare(offset / SPARE, valid.min(SPARE));
            }
            _ => {
                self.foreign.fetch_add(1, Relaxed);
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the number of a buffer of ours, from its address")]
    fn complete_buffer(&self, index: usize, valid: usize, at: u64) {
        let bit = 1 << index;
        if self.lent.fetch_and(!bit, Relaxed) & bit == 0 {
            self.foreign.fetch_add(1, Relaxed);
            return;
        }
        let slot = &self.slots[index];
        slot.valid.store(valid as u64, Relaxed);
        slot.number.store(self.completions.fetch_add(1, Relaxed), Relaxed);
        slot.at.store(at, Relaxed);
        // The collector must see the slot, and what CUPTI wrote on this thread.
        self.full.fetch_or(bit, Release);
    }

    fn complete_spare(&self, index: usize, valid: usize) {
        let bit = 1 << index;
        if self.free_spares.load(Relaxed) & bit != 0 {
            self.foreign.fetch_add(1, Relaxed);
            return;
        }
        if valid > 0 {
            self.count_lost(valid as u64);
        }
        self.free_spares.fetch_or(bit, Release);
    }

    /// Appends all completed buffers to `into`, in the order of completion.
    #[expect(clippy::indexing_slicing, reason = "only bits of our buffers are set; `into` only grows")]
    pub(super) fn take(&self, into: &mut Vec<Taken>) {
        let mut full = self.full.swap(0, Acquire);
        let first = into.len();
        while full != 0 {
            let index = full.trailing_zeros() as usize;
            full &= full - 1;
            let Slot { valid, number, at } = &self.slots[index];
            let valid = valid.load(Relaxed) as usize;
            into.push(Taken { index, number: number.load(Relaxed), valid, at: at.load(Relaxed) });
        }
        into[first..].sort_unstable_by_key(|taken| taken.number);
    }

    /// What CUPTI wrote into a completed buffer.
    pub(super) fn bytes<'a>(&'a self, taken: &'a Taken) -> &'a [u8] {
        // SAFETY: `valid` bytes from there lie within the buffer. CUPTI returned it, and it is lent
        // again only after `give_back`, which consumes the value borrowed here.
        unsafe { std::slice::from_raw_parts(self.buffer(taken.index), taken.valid) }
    }

    /// Puts a buffer back into the pool.
    pub(super) fn give_back(&self, taken: Taken) {
        self.free.fetch_or(1 << taken.index, Release);
    }

    /// The most records that the buffers now lent to CUPTI can hold.
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    pub(super) fn room(&self) -> u64 {
        let lent = u64::from(self.lent.load(Relaxed).count_ones());
        let spares = SPARES as u64 - u64::from(self.free_spares.load(Relaxed).count_ones());
        (lent * BUFFER as u64 + spares * SPARE as u64) / KERNEL
    }

    /// What was lost so far.
    pub(super) fn lost(&self) -> Lost {
        Lost {
            buffers: self.buffers_lost.load(Relaxed),
            bytes: self.bytes_lost.load(Relaxed),
            refused: self.refused.load(Relaxed),
            foreign: self.foreign.load(Relaxed),
        }
    }

    fn buffer(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.count);
        self.memory.address().wrapping_add(index * BUFFER)
    }

    fn spare(&self, index: usize) -> *mut u8 {
        debug_assert!(index < SPARES);
        self.memory.address().wrapping_add(self.count * BUFFER + index * SPARE)
    }
}

/// Clears the lowest set bit and returns its position.
fn take_lowest(bits: &AtomicU64) -> Option<usize> {
    // Acquire: what the previous holder wrote into the buffer comes before what the next one
    // writes.
    let before = bits.fetch_update(AcqRel, Relaxed, |bits| (bits != 0).then(|| bits & (bits - 1)));
    before.ok().map(|bits| bits.trailing_zeros() as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn write(buffer: *mut u8, bytes: &[u8]) {
        // SAFETY: the test has requested the buffer, and it is longer than `bytes`.
        unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn take(pool: &Pool) -> Vec<Taken> {
        let mut taken = Vec::new();
        pool.take(&mut taken);
        taken
    }

    #[test]
    fn a_buffer_comes_back_with_what_was_written() {
        let pool = Pool::new(4 * BUFFER).unwrap();
        let (first, size) = pool.request();
        let (second, _) = pool.request();
        assert_eq!((size, second.addr() - first.addr()), (BUFFER, BUFFER));
        assert_eq!(pool.room(), 2 * 630);
        assert_eq!(first.addr() % 8, 0);
        write(second, b"second");
        write(first, b"first");
        pool.complete(second, 6, 10);
        pool.complete(first, 5, 11);
        let taken = take(&pool);
        assert_eq!(
            taken.iter().map(|it| (pool.bytes(it), it.at)).collect::<Vec<_>>(),
            [(&b"second"[..], 10), (&b"first"[..], 11)]
        );
        assert!(take(&pool).is_empty());
        taken.into_iter().for_each(|it| pool.give_back(it));
        let (again, _) = pool.request();
        assert_eq!(again, first, "the first free one, which is warm");
        assert_eq!(pool.lost(), Lost::default());
    }

    #[test]
    fn records_without_a_free_buffer_are_lost_and_counted() {
        let pool = Pool::new(2 * BUFFER).unwrap();
        let lent = [pool.request(), pool.request()];
        let (spare, size) = pool.request();
        assert_eq!(size, SPARE);
        write(spare, b"lost");
        pool.complete(spare, 4, 0);
        assert_eq!(pool.lost(), Lost { buffers: 1, bytes: 4, ..Lost::default() });
        let (spare, _) = pool.request();
        // An empty spare buffer loses nothing.
        pool.complete(spare, 0, 0);
        assert_eq!(pool.lost().buffers, 1);
        let spares: Vec<_> = (0..SPARES).map(|_| pool.request()).collect();
        assert!(spares.iter().all(|(buffer, size)| !buffer.is_null() && *size == SPARE));
        assert_eq!(pool.request(), (std::ptr::null_mut(), 0));
        assert_eq!(pool.lost().refused, 1);
        assert_eq!(pool.room(), (2 * BUFFER + SPARES * SPARE) as u64 / KERNEL);
        pool.complete(lent[0].0, 8, 0);
        pool.complete(lent[1].0, 8, 0);
        assert_eq!(take(&pool).len(), 2);
    }

    #[test]
    fn full_buffers_are_lent_again_before_cupti_gets_none() {
        let pool = Pool::new(2 * BUFFER).unwrap();
        let lent = [pool.request(), pool.request()];
        (0..SPARES).for_each(|_| assert!(!pool.request().0.is_null()));
        pool.complete(lent[0].0, 8, 0);
        pool.complete(lent[1].0, 6, 0);
        assert_eq!(pool.request(), lent[0]);
        assert_eq!(pool.lost(), Lost { buffers: 1, bytes: 8, ..Lost::default() });
        // The other one is the collector's from here on.
        let taken = take(&pool);
        assert_eq!((taken.len(), pool.bytes(&taken[0]).as_ptr()), (1, lent[1].0.cast_const()));
        assert_eq!((pool.request().0, pool.lost().refused), (std::ptr::null_mut(), 1));
        pool.complete(lent[0].0, 5, 0);
        assert_eq!(take(&pool)[0].valid, 5);
        assert_eq!((pool.lost().buffers, pool.lost().foreign), (1, 0));
    }

    #[test]
    fn buffers_grow_with_a_burst_and_hold_little_of_it_back() {
        const SECOND: u64 = 1 << 30;
        let pace = Pace::default();
        let sizes = |now, count: usize| (0..count).map(|_| pace.next(now)).collect::<Vec<_>>();
        assert_eq!(sizes(7 * SECOND, 9), [1, 1, 1, 1, 1, 1, 1, 1, 2].map(|times| times * LEAST));
        let burst = sizes(8 * SECOND - 1, 60);
        assert_eq!(burst.last(), Some(&BUFFER));
        let mut before = 10 * LEAST;
        for size in burst {
            assert!((LEAST..=BUFFER).contains(&size) && 4 * size <= before.max(4 * LEAST), "{size} after {before}");
            before += size;
        }
        assert_eq!(pace.next(8 * SECOND), LEAST, "another second");
        assert_eq!(pace.next(u64::MAX), LEAST);
    }

    #[test]
    fn buffers_are_scarce_if_most_are_lent() {
        let pool = Pool::new(4 * BUFFER).unwrap();
        let lent = [(); 3].map(|()| (pool.is_scarce(), pool.request().0));
        assert_eq!(lent.map(|it| it.0), [false; 3]);
        assert!(pool.is_scarce());
        lent.iter().for_each(|it| pool.complete(it.1, 8, 0));
        take(&pool).into_iter().for_each(|it| pool.give_back(it));
        assert!(!pool.is_scarce());
    }

    #[test]
    fn buffers_that_were_not_lent_are_left_alone() {
        let pool = Pool::new(2 * BUFFER).unwrap();
        let (buffer, _) = pool.request();
        let mut other = [0_u8; 64];
        pool.complete(other.as_mut_ptr(), 64, 0);
        pool.complete(std::ptr::null_mut(), 0, 0);
        pool.complete(buffer.wrapping_add(8), 64, 0);
        pool.complete(buffer.wrapping_add(BUFFER), 64, 0);
        pool.complete(buffer.wrapping_add(2 * BUFFER), 64, 0);
        pool.complete(buffer.wrapping_add(2 * BUFFER + 8), 64, 0);
        pool.complete(buffer, usize::MAX, 0);
        pool.complete(buffer, 64, 0);
        assert_eq!(pool.lost().foreign, 7);
        let taken = take(&pool);
        assert_eq!(taken.len(), 1);
        assert_eq!(pool.bytes(&taken[0]).len(), BUFFER);
    }

    #[test]
    fn many_threads_share_the_pool() {
        const EACH: u64 = 2_000;
        let pool = Pool::new(4 * BUFFER).unwrap();
        let seen = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u64)
                .map(|thread| {
                    let pool = &pool;
                    scope.spawn(move || {
                        for n in 0..EACH {
                            let (buffer, size) = pool.request();
                            assert!(!buffer.is_null() && size >= SPARE);
                            write(buffer, &(thread * EACH + n).to_ne_bytes());
                            pool.complete(buffer, 8, n);
                        }
                    })
                })
                .collect();
            let mut seen = Vec::new();
            loop {
                let finished = threads.iter().all(std::thread::ScopedJoinHandle::is_finished);
                for taken in take(&pool) {
                    seen.push(u64::from_ne_bytes(pool.bytes(&taken).try_into().unwrap()));
                    pool.give_back(taken);
                }
                if finished {
                    return seen;
                }
            }
        });
        assert_eq!(seen.len() as u64 + pool.lost().buffers, 4 * EACH);
        assert_eq!(seen.iter().collect::<std::collections::HashSet<_>>().len(), seen.len(), "none came twice");
        assert_eq!((pool.lost().foreign, pool.lost().refused), (0, 0));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Every interleaving of two lending threads and the collector.

    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    fn drain(pool: &Pool, into: &mut Vec<u8>) {
        let mut taken = Vec::new();
        pool.take(&mut taken);
        for taken in taken {
            into.push(pool.bytes(&taken)[0]);
            pool.give_back(taken);
        }
    }

    #[test]
    fn loom_every_buffer_comes_back_once() {
        loom::model(|| {
            let pool = Arc::new(Pool::new(2 * BUFFER).unwrap());
            let threads: Vec<_> = (1..=2_u8)
                .map(|n| {
                    let pool = Arc::clone(&pool);
                    thread::spawn(move || {
                        let (buffer, size) = pool.request();
                        assert_eq!(size, BUFFER);
                        // SAFETY: it was requested.
                        unsafe { buffer.write(n) };
                        pool.complete(buffer, 1, 0);
                    })
                })
                .collect();
            let mut seen = Vec::new();
            drain(&pool, &mut seen);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            drain(&pool, &mut seen);
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
            assert_eq!(pool.free.load(Relaxed), 3);
            assert_eq!(pool.lost(), Lost::default());
        });
    }

    /// Stands for a buffer's memory: loom finds two threads in it at the same time.
    type Memory = [UnsafeCell<u8>; 2];

    #[test]
    fn loom_a_full_buffer_is_lent_again_or_read() {
        loom::model(|| {
            let pool = Arc::new(Pool::new(2 * BUFFER).unwrap());
            let memory: Arc<Memory> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
            let write = |pool: &Pool, memory: &Memory, n| {
                let (buffer, size) = pool.request();
                if size == BUFFER {
                    let index = (buffer.addr() - pool.buffer(0).addr()) / BUFFER;
                    // SAFETY: it was requested; loom checks that nobody else is there.
                    memory[index].with_mut(|place| unsafe { place.write(n) });
                    pool.complete(buffer, 1, 0);
                }
                size
            };
            let read = |pool: &Pool, memory: &Memory, into: &mut Vec<u8>| {
                let mut taken = Vec::new();
                pool.take(&mut taken);
                for taken in taken {
                    // SAFETY: it was taken; as above.
                    into.push(memory[taken.index].with(|place| unsafe { place.read() }));
                    pool.give_back(taken);
                }
            };
            // The spare one is lent for good.
            let held = [pool.request(), pool.request()];
            assert_eq!(pool.request().1, SPARE);
            held.iter().for_each(|(buffer, _)| pool.complete(*buffer, 1, 0));
            let threads: Vec<_> = (1..=2_u8)
                .map(|n| {
                    let (pool, memory) = (Arc::clone(&pool), Arc::clone(&memory));
                    thread::spawn(move || write(&pool, &memory, n))
                })
                .collect();
            let mut seen = Vec::new();
            read(&pool, &memory, &mut seen);
            let lent = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|size| *size == BUFFER).count();
            read(&pool, &memory, &mut seen);
            let lost = pool.lost();
            assert_eq!((seen.len() as u64 + lost.buffers, lost.buffers), (2 + lent as u64, lost.bytes));
            assert_eq!((lost.foreign, lost.refused), (0, 2 - lent as u64));
            assert_eq!((pool.free.load(Relaxed), pool.lent.load(Relaxed)), (3, 0));
        });
    }
}
