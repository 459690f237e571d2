//! Rings: one producer, one consumer, drops counted, memory from one fixed pool.
//!
//! ```text
//! slot 3 ──► segment 17 ──► segment 4 ──► segment 90        pool: 5, 6, 8, ...
//!            ▲ reader                     ▲ writer
//! ```
//!
//! A thread's ring is a chain of segments. The writer fills the last one and takes the next from
//! the pool; the reader follows and gives each drained segment back. So a busy thread can hold much
//! of the pool while a quiet one holds a single segment. Nothing blocks: if the pool is empty, the
//! record is dropped and counted.
//!
//! Memory ordering, in four hand-overs:
//!
//! - words to the reader: the writer stores words relaxed, then `committed` with release; the
//!   reader loads `committed` with acquire before it reads words below it.
//! - a segment to the reader: its header is reset, then it is linked with a release store to
//!   `next`; the reader follows with acquire. A writer never commits to a segment after linking its
//!   successor, so a reader that sees `next` and then `committed` sees the final value.
//! - a segment to the pool and out again: release and acquire on the head of the free list. The
//!   head also counts its changes, so the exchange fails if a segment came back meanwhile (ABA).
//! - a slot to the next thread: release on `state`, acquire by the thread that claims it.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::Deref;

use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::model::event::{self, MAX_WORDS};

/// Words in one segment; with its header it fills 16 KiB.
#[cfg(not(loom))]
const SEGMENT_WORDS: usize = 2040;
#[cfg(loom)]
const SEGMENT_WORDS: usize = 4;

/// A writer prefetches the memory that it will write in parts of this many words, two parts ahead:
/// the reader used it last, and a callback would otherwise wait for it.
const PART: usize = 64;
/// The parts of a segment, the last of which may be shorter.
const PARTS: usize = size_of::<Segment>().div_ceil(8 * PART);
/// Where a segment's first part ends, which begins with its header.
const FIRST_LIMIT: u32 = if PART < SEGMENT_WORDS { PART as u32 - 1 } else { SEGMENT_WORDS as u32 };
/// The words of a cache line.
const LINE: usize = 8;

/// Most segments of a pool: 20 bits number them, and one number means "none".
const MAX_SEGMENTS: usize = (1 << FreeList::BITS) - 1;

/// Most threads that can have a ring at the same time.
const MAX_SLOTS: usize = 8192;

/// How often a writer tries to take a segment from a contended pool before it treats the pool as
/// empty: no call ever waits.
const POOL_TRIES: u32 = 64;

const NONE: u32 = u32::MAX;

/// The states of a slot.
mod state {
    pub(super) const FREE: u32 = 0;
    /// A thread writes to it.
    pub(super) const OWNED: u32 = 1;
    /// Its thread has ended; the reader drains it and frees it.
    pub(super) const LEFT: u32 = 2;
}

#[repr(C, align(64))]
struct Segment {
    /// The next segment of the ring, or of the free list while in the pool.
    next: AtomicU32,
    /// Words that the reader may read.
    committed: AtomicU32,
    words: [AtomicU64; SEGMENT_WORDS],
}

#[repr(align(64))]
struct Slot {
    state: AtomicU32,
    /// The ring's first segment, for the reader to begin at.
    head: AtomicU32,
    /// Segments that the reader has given back since the slot was claimed.
    returned: AtomicU32,
    /// Records dropped by this slot's threads for lack of room.
    dropped: AtomicU64,
}

/// All rings of the process and the pool they share.
pub struct Rings {
    segments: Pool,
    slots: Box<[Slot]>,
    /// The free list: see [`FreeList`].
    free: Line<AtomicU64>,
    /// Where the search for a free slot starts.
    next_slot: AtomicU32,
    /// One past the highest slot ever claimed.
    used_slots: AtomicU32,
    /// Records of threads that got no slot or no first segment.
    homeless: AtomicU64,
    /// Most segments one ring may hold.
    share: u32,
}

/// Something that changes often, in a cache line of its own.
#[repr(align(64))]
struct Line<T>(T);

/// The head of the free list: a single word, so that one exchange changes all of it.
///
/// ```text
/// | changes so far 24 | segments in the list 20 | first segment 20 |
/// ```
#[derive(Clone, Copy)]
struct FreeList(u64);

/// The writing end of one ring. It stays on the thread that claimed it: its cells make it `!Sync`,
/// and the recorder keeps it in a thread-local.
pub struct Writer<'r> {
    rings: &'r Rings,
    slot: u32,
    segment: std::cell::Cell<&'r Segment>,
    at: std::cell::Cell<u32>,
    /// The position at which the writer leaves the fast path: the end of a [`PART`], or of the
    /// segment. 0 once the thread has left.
    limit: std::cell::Cell<u32>,
    /// The segment that will probably be the next, near the end of this one.
    next: std::cell::Cell<Option<u32>>,
    taken: std::cell::Cell<u32>,
}

/// The reading end of one ring; the collector holds one for each slot.
pub struct Reader {
    slot: u32,
    segment: u32,
    at: u32,
}

impl Rings {
    /// Rings over a pool of about `bytes` bytes. Every page is touched, so that no callback takes a
    /// page fault; in a child they are empty. `None` if there is no such memory.
    #[must_use]
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    pub fn new(bytes: usize) -> Option<Rings> {
        let count = (bytes / size_of::<Segment>()).clamp(4, MAX_SEGMENTS);
        Some(Self::over(Pool::new(count)?))
    }

    #[cfg(test)]
    fn with_segments(count: usize) -> Rings {
        Self::over(Pool::new(count).unwrap())
    }

    fn over(segments: Pool) -> Rings {
        let count = segments.len();
        for (index, segment) in segments.iter().enumerate() {
            let next = if index + 1 < count { index as u32 + 1 } else { NONE };
            segment.next.store(next, Ordering::Relaxed);
            // Touch every page now rather than in a callback.
            for word in segment.words.iter().step_by(256) {
                word.store(0, Ordering::Relaxed);
            }
        }
        let slots = (0..count.min(MAX_SLOTS))
            .map(|_| Slot {
                state: AtomicU32::new(state::FREE),
                head: AtomicU32::new(NONE),
                returned: AtomicU32::new(0),
                dropped: AtomicU64::new(0),
            })
            .collect();
        Rings {
            segments,
            slots,
            free: Line(AtomicU64::new(FreeList::of(count).0)),
            next_slot: AtomicU32::new(0),
            used_slots: AtomicU32::new(0),
            homeless: AtomicU64::new(0),
            share: (count as u32).div_ceil(2),
        }
    }

    #[expect(clippy::indexing_slicing, reason = "numbers of slots come from `claim`, which counts within them")]
    fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "numbers of segments come from the free list, which was made of them")]
    fn segment(&self, index: u32) -> &Segment {
        &self.segments[index as usize]
    }

    /// A ring for the calling thread; `None` if no slot or no segment is left.
    #[must_use]
    #[expect(
        clippy::integer_division_remainder_used,
        reason = "there are as many slots as segments, and at least four of those"
    )]
    pub fn claim(&self) -> Option<Writer<'_>> {
        let count = self.slots.len() as u32;
        let first = self.next_slot.load(Ordering::Relaxed);
        let index = (0..count).map(|step| (first + step) % count).find(|&index| {
            self.slot(index)
                .state
                .compare_exchange(state::FREE, state::OWNED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })?;
        let slot = self.slot(index);
        let Some(segment) = self.take() else {
            slot.state.store(state::FREE, Ordering::Release);
            return None;
        };
        self.next_slot.store((index + 1) % count, Ordering::Relaxed);
        self.used_slots.fetch_max(index + 1, Ordering::AcqRel);
        slot.returned.store(0, Ordering::Relaxed);
        slot.head.store(segment, Ordering::Release);
        Some(Writer {
            rings: self,
            slot: index,
            segment: self.segment(segment).into(),
            at: 0.into(),
            limit: FIRST_LIMIT.into(),
            next: None.into(),
            taken: 1.into(),
        })
    }

    /// Counts records of a thread that has no ring.
    pub fn count_homeless(&self) {
        self.homeless.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of slots ever used; readers exist for slots 0 up to this.
    #[must_use]
    pub fn used_slots(&self) -> u32 {
        self.used_slots.load(Ordering::Acquire)
    }

    /// Records dropped so far, by all threads.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let used = self.used_slots() as usize;
        let in_rings: u64 = self.slots.iter().take(used).map(|slot| slot.dropped.load(Ordering::Relaxed)).sum();
        in_rings + self.homeless.load(Ordering::Relaxed)
    }

    /// The size of the pool in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.segments)
    }

    /// The part of the pool that is free, in percent.
    #[must_use]
    #[expect(clippy::integer_division_remainder_used, reason = "there are at least four segments")]
    pub fn free_percent(&self) -> u32 {
        let free = FreeList(self.free.0.load(Ordering::Relaxed)).count();
        (free * 100 / self.segments.len() as u64) as u32
    }

    /// Takes a segment off the free list.
    fn take(&self) -> Option<u32> {
        let mut head = FreeList(self.free.0.load(Ordering::Acquire));
        for _ in 0..POOL_TRIES {
            let index = head.first()?;
            let segment = self.segment(index);
            // Another thread may already have taken it and be writing this field; the exchange
            // fails then.
            let next = segment.next.load(Ordering::Relaxed);
            match self.free.0.compare_exchange_weak(
                head.0,
                head.without_first(next).0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    segment.next.store(NONE, Ordering::Relaxed);
                    segment.committed.store(0, Ordering::Relaxed);
                    return Some(index);
                }
                Err(now) => head = FreeList(now),
            }
        }
        None
    }

    /// Puts a drained segment on the free list. Only the reader calls this; it may retry as often
    /// as it must.
    fn give_back(&self, index: u32) {
        let segment = self.segment(index);
        let mut head = FreeList(self.free.0.load(Ordering::Relaxed));
        loop {
            segment.next.store(head.first().unwrap_or(NONE), Ordering::Relaxed);
            match self.free.0.compare_exchange_weak(head.0, head.with(index).0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = FreeList(now),
            }
        }
    }
}

impl FreeList {
    const BITS: u32 = 20;
    const MASK: u64 = (1 << Self::BITS) - 1;

    /// A list of the segments 0 to `count`, in order.
    fn of(count: usize) -> FreeList {
        FreeList((count as u64) << Self::BITS)
    }

    fn first(self) -> Option<u32> {
        let first = self.0 & Self::MASK;
        (first != Self::MASK).then_some(first as u32)
    }

    fn count(self) -> u64 {
        self.0 >> Self::BITS & Self::MASK
    }

    fn without_first(self, next: u32) -> FreeList {
        self.changed(self.count().wrapping_sub(1), next)
    }

    fn with(self, first: u32) -> FreeList {
        self.changed(self.count() + 1, first)
    }

    fn changed(self, count: u64, first: u32) -> FreeList {
        let changes = (self.0 >> (2 * Self::BITS)).wrapping_add(1);
        FreeList(changes << (2 * Self::BITS) | (count & Self::MASK) << Self::BITS | u64::from(first) & Self::MASK)
    }
}

impl Writer<'_> {
    /// The number of this ring.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Publishes one record, in parts. False if it was dropped; the caller decides whether to count
    /// that ([`Writer::count_drop`]).
    #[inline(always)]
    pub fn push<const PARTS: usize>(&self, parts: [&[u64]; PARTS]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        debug_assert!(length <= MAX_WORDS || cfg!(loom));
        if self.at.get() as usize + length > self.limit.get() as usize && !self.make_room(length) {
            return false;
        }
        let at = self.at.get() as usize;
        let segment = self.segment.get();
        // Both are never so: together they cost two instructions.
        if length > SEGMENT_WORDS || at > SEGMENT_WORDS - length {
            return false;
        }
        let Some(mut rest) = segment.words.get(at..at + length) else { return false };
        for part in parts {
            for (word, value) in rest.iter().zip(part) {
                word.store(*value, Ordering::Relaxed);
            }
            rest = rest.get(part.len()..).unwrap_or_default();
        }
        self.at.set((at + length) as u32);
        segment.committed.store((at + length) as u32, Ordering::Release);
        true
    }

    /// Counts a record that found no room.
    #[cold]
    pub fn count_drop(&self) {
        // The only writer of this counter is the thread that owns the slot.
        let dropped = &self.rings.slot(self.slot).dropped;
        dropped.store(dropped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Marks the ring as left by its thread. Nothing may be pushed afterwards.
    pub fn leave(&self) {
        self.limit.set(0);
        self.rings.slot(self.slot).state.store(state::LEFT, Ordering::Release);
    }

    /// Room for a record where the current limit leaves none. False when the pool has none either,
    /// and where the thread has left.
    #[cold]
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    fn make_room(&self, length: usize) -> bool {
        let limit = self.limit.get();
        if limit == 0 {
            return false;
        }
        if limit < SEGMENT_WORDS as u32 {
            self.look_ahead(limit as usize / PART + 1);
            self.limit.set((limit + PART as u32).min(SEGMENT_WORDS as u32));
        }
        self.at.get() as usize + length <= SEGMENT_WORDS || self.extend()
    }

    /// Prefetches the memory that is written after this part of the segment and the next one.
    fn look_ahead(&self, part: usize) {
        let rings = self.rings;
        if part + 2 < PARTS {
            prefetch_part(self.segment.get(), part + 2);
        } else {
            if part + 2 == PARTS {
                self.next.set(FreeList(rings.free.0.load(Ordering::Relaxed)).first());
            }
            if let Some(next) = self.next.get() {
                prefetch_part(rings.segment(next), part + 2 - PARTS);
            }
        }
        // What taking a segment needs, in time.
        if part + 4 == PARTS {
            prefetch(&raw const rings.free);
            prefetch(rings.slot(self.slot));
        }
    }

    /// Continues in a new segment from the pool.
    fn extend(&self) -> bool {
        let rings = self.rings;
        let returned = rings.slot(self.slot).returned.load(Ordering::Relaxed);
        if self.taken.get().wrapping_sub(returned) >= rings.share {
            return false;
        }
        let Some(index) = rings.take() else { return false };
        self.taken.set(self.taken.get().wrapping_add(1));
        self.segment.get().next.store(index, Ordering::Release);
        self.segment.set(rings.segment(index));
        self.at.set(0);
        self.limit.set(FIRST_LIMIT);
        true
    }
}

impl Reader {
    /// A reader for the ring of slot `slot`.
    #[must_use]
    pub fn new(slot: u32) -> Reader {
        Reader { slot, segment: NONE, at: 0 }
    }

    /// The number of the ring.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The first two words of the oldest record: its header and its time. Also gives drained
    /// segments back to the pool and, once its thread has left, the ring.
    pub fn peek(&mut self, rings: &Rings) -> Option<(u64, u64)> {
        let slot = rings.slot(self.slot);
        // Loaded before the words: a thread that has left has published everything it ever will.
        let left = slot.state.load(Ordering::Acquire) == state::LEFT;
        if self.segment == NONE {
            self.segment = slot.head.load(Ordering::Acquire);
            if self.segment == NONE {
                return None;
            }
            self.at = 0;
        }
        loop {
            let segment = rings.segment(self.segment);
            let next = segment.next.load(Ordering::Acquire);
            if self.at < segment.committed.load(Ordering::Acquire) {
                let word = |offset: u32| {
                    let index = (self.at + offset) as usize;
                    segment.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
                };
                return Some((word(0), word(1)));
            }
            if next == NONE {
                break;
            }
            rings.give_back(self.segment);
            // Only the reader writes this counter.
            slot.returned.store(slot.returned.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            self.segment = next;
            self.at = 0;
        }
        if left {
            rings.give_back(self.segment);
            self.segment = NONE;
            slot.head.store(NONE, Ordering::Relaxed);
            slot.state.store(state::FREE, Ordering::Release);
        }
        None
    }

    /// The time of the newest record, if it has not been read: to be called after [`Reader::peek`].
    #[must_use]
    pub fn newest(&self, rings: &Rings) -> Option<u64> {
        let (mut number, mut at) = (self.segment, self.at);
        if number == NONE {
            return None;
        }
        // A thread writes on meanwhile, but no faster than this reads.
        loop {
            let segment = rings.segment(number);
            let next = segment.next.load(Ordering::Acquire);
            if next == NONE {
                break;
            }
            (number, at) = (next, 0);
        }
        let segment = rings.segment(number);
        let (committed, mut newest) = (segment.committed.load(Ordering::Acquire), None);
        while at < committed {
            let mut words = segment.words.get(at as usize..).unwrap_or_default().iter();
            let [header, time] = [words.next(), words.next()];
            newest = time.map(|time| time.load(Ordering::Relaxed));
            let length = header.map_or(0, |header| event::length(header.load(Ordering::Relaxed)));
            at += length.clamp(1, MAX_WORDS) as u32;
        }
        newest
    }

    /// Copies the record that [`Reader::peek`] just showed, and moves on.
    pub fn read<'b>(&mut self, rings: &Rings, buffer: &'b mut [u64; MAX_WORDS]) -> &'b [u64] {
        let segment = rings.segment(self.segment);
        let rest = segment.words.get(self.at as usize..).unwrap_or_default();
        let first = rest.first().map_or(0, |word| word.load(Ordering::Relaxed));
        let length = event::length(first).clamp(1, MAX_WORDS);
        for (to, from) in buffer.iter_mut().zip(rest.iter().take(length)) {
            *to = from.load(Ordering::Relaxed);
        }
        self.at += length as u32;
        buffer.get(..length).unwrap_or_default()
    }
}

/// Prefetches all cache lines of a part of a segment.
fn prefetch_part(segment: &Segment, part: usize) {
    let begin = std::ptr::from_ref(segment).cast::<u64>().wrapping_add(part * PART);
    (0..PART).step_by(LINE).for_each(|word| prefetch(begin.wrapping_add(word)));
}

/// Prefetches a cache line for writing: a hint, which waits for nothing. A prefetch for reading
/// would leave the line with the reader's core, and the first write would wait.
///
/// `core::arch` offers this only for processors that declare it. Others (Intel's before Broadwell)
/// execute it as a no-op.
#[inline(always)]
fn prefetch<T>(what: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing but caches, whatever the address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) what, options(readonly, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) what, options(readonly, nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = what;
}

/// The pool's memory: mapped pages, or plain memory when the ring is model-checked.
struct Pool {
    #[cfg(not(loom))]
    pages: crate::sys::Pages,
    #[cfg(loom)]
    segments: Box<[Segment]>,
}

#[cfg(not(loom))]
impl Pool {
    /// A child needs no copy of it: after a `fork`, callbacks would take a page fault for each page
    /// that the child shares.
    fn new(count: usize) -> Option<Pool> {
        let pages = crate::sys::Pages::new(count.checked_mul(size_of::<Segment>())?)?;
        crate::sys::empty_in_children(pages.address(), pages.length());
        Some(Pool { pages })
    }
}

#[cfg(not(loom))]
impl Deref for Pool {
    type Target = [Segment];

    #[inline]
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    fn deref(&self) -> &[Segment] {
        let count = self.pages.length() / size_of::<Segment>();
        // SAFETY: the pages have that length, are page-aligned, and belong to `self`. They were
        // zeroed, and all-zero bytes are a valid `Segment`: it consists of atomic integers, which
        // may change behind a shared reference.
        unsafe { std::slice::from_raw_parts(self.pages.address().cast(), count) }
    }
}

#[cfg(loom)]
impl Pool {
    fn new(count: usize) -> Option<Pool> {
        let segment = || Segment {
            next: AtomicU32::new(NONE),
            committed: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Some(Pool { segments: (0..count).map(|_| segment()).collect() })
    }
}

#[cfg(loom)]
impl Deref for Pool {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.segments
    }
}
