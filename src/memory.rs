//! The memory of our own: one mapping, reserved when a recording starts, from which everything comes that is allocated here.
//!
//! A job's limit of memory must never be met by us. So nothing is asked of the system once the recording has begun, what we hold cannot
//! grow beyond the mapping, and where even that is not enough the recording ends, not the job:
//!
//! ```text
//!  |<---------------- our threads ------------------>|<- the end ->|<- NCCL's threads ->|
//!  0                                              ENDS          OURS                 HEAP
//! ```
//!
//! Above `ENDS` the collector is told to come to an end (`is_short`). What our threads cannot have below `OURS`, and a piece
//! for which the mapping is too scattered, they take from the system while it has something to give. If it has nothing, the
//! thread stops where it is, for ever (`is_over`): an allocation may neither fail, which aborts, nor unwind. Nobody waits for
//! our threads without a limit. NCCL's threads, which allocate a few kilobytes in `init` and `finalize`, have a part of the
//! mapping for themselves.
//!
//! Before a recording, in a forked child and in the command line everything comes from the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use talc::{ErrOnOom, Span, Talc};

use crate::{process, sys};

/// Bytes of the mapping.
pub const HEAP: usize = 24 << 20;
/// Most that our threads may hold.
const OURS: usize = HEAP - (256 << 10);
/// From here on the recording comes to an end.
const ENDS: usize = OURS - (1 << 20);

/// Where everything of this library is allocated.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

struct Heap {
    talc: Talc<ErrOnOom>,
    /// Bytes that were asked for and not given back.
    held: usize,
}

static LOCKED: Mutex<Heap> = Mutex::new(Heap { talc: Talc::new(ErrOnOom), held: 0 });
/// The first byte of the mapping.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static SHORT: AtomicBool = AtomicBool::new(false);
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether what comes from the system is counted, how much is held of that, and the most that was.
static COUNTS: AtomicBool = AtomicBool::new(false);
static PASSED: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// A thread of ours, which may stop for ever.
    static OURS_TO_STOP: Cell<bool> = const { Cell::new(false) };
}

/// Reserves the mapping, and has everything come from there. False where there is no such memory. Once in a process.
#[must_use]
pub(crate) fn reserve() -> bool {
    // Sanitizers and the interpreter know more about each piece than about one large one.
    if process::has_heap() || cfg!(any(sanitize_build, miri)) {
        return true;
    }
    let Some(base) = sys::reserve(HEAP) else { return false };
    let mut heap = lock();
    // SAFETY: a fresh mapping of that length, which stays for ever and is used for nothing else.
    let claimed = unsafe { heap.talc.claim(Span::from_base_size(base, HEAP)) }.is_ok();
    BASE.store(base, Ordering::Release);
    drop(heap);
    if claimed {
        process::use_heap();
    }
    claimed
}

/// Runs the body of a thread of ours, which stops for ever where there is no memory at all.
pub(crate) fn on_our_thread<T>(body: impl FnOnce() -> T) -> T {
    OURS_TO_STOP.set(true);
    // The first time that a thread waits at a channel, libc allocates for what is to be done at its end, and aborts if it cannot. Now is
    // better than later.
    let (_sender, receiver) = crossbeam_channel::bounded::<()>(0);
    let _ = receiver.recv_timeout(Duration::ZERO);
    body()
}

/// Whether so much is held that the recording has to end.
#[inline]
pub(crate) fn is_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

/// Whether a thread of ours has stopped for want of memory. Nothing that our threads are asked for will be done.
pub(crate) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// For tests: counts what is allocated from the system from now on.
pub fn count() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// Bytes held of what was [counted](count), and the most that were since the last time this was asked. Less than nothing where what was
/// allocated before is given back.
pub fn counted() -> (isize, isize) {
    let held = PASSED.load(Ordering::Relaxed);
    (held, MOST.swap(held, Ordering::Relaxed))
}

fn lock() -> MutexGuard<'static, Heap> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_in_heap(place: *mut u8) -> bool {
    let base = BASE.load(Ordering::Relaxed);
    !base.is_null() && place.addr().wrapping_sub(base.addr()) < HEAP
}

impl Heap {
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let held = self.held + layout.size();
        if held > ENDS {
            SHORT.store(true, Ordering::Relaxed);
            if held > OURS && OURS_TO_STOP.get() {
                return None;
            }
        }
        // SAFETY: the size is not zero, which is the caller's promise to the allocator.
        let place = unsafe { self.talc.malloc(layout) }.ok()?;
        self.held = held;
        Some(place)
    }
}

/// What the heap has no room for, or not in one piece. The latter is no reason to end: much may be free.
#[cold]
fn beyond(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not zero, as above.
    let place = unsafe { System.alloc(layout) };
    if place.is_null() {
        SHORT.store(true, Ordering::Relaxed);
        if OURS_TO_STOP.get() {
            OVER.store(true, Ordering::Relaxed);
            process::switch_off();
            sys::stop_for_ever();
        }
    }
    place
}

#[inline]
fn count_passed(before: usize, after: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        let more = after as isize - before as isize;
        MOST.fetch_max(PASSED.fetch_add(more, Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

// SAFETY: what comes from the heap goes back to it, and what comes from the system to that, told apart by the address. The heap
// is used under a lock and neither unwinds nor allocates.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if process::has_heap() {
            let found = lock().allocate(layout);
            return found.map_or_else(|| beyond(layout), NonNull::as_ptr);
        }
        count_passed(0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if !is_in_heap(place) {
            count_passed(layout.size(), 0);
            // SAFETY: the caller's promise; what does not lie in the heap came from the system.
            return unsafe { System.dealloc(place, layout) };
        }
        // In a child it stays.
        if process::has_heap()
            && let Some(place) = NonNull::new(place)
        {
            let mut heap = lock();
            heap.held -= layout.size();
            // SAFETY: it came from there with this layout.
            unsafe { heap.talc.free(place, layout) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !process::has_heap() {
            count_passed(0, layout.size());
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        let place = unsafe { self.alloc(layout) };
        if !place.is_null() {
            // SAFETY: as long as that.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        place
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let in_heap = is_in_heap(place);
        if !in_heap && !process::has_heap() {
            count_passed(layout.size(), size);
            // SAFETY: the caller's promise.
            return unsafe { System.realloc(place, layout, size) };
        }
        if in_heap
            && process::has_heap()
            && let Some(place) = NonNull::new(place)
        {
            let mut heap = lock();
            if size <= layout.size() {
                // SAFETY: it came from there with this layout, and is no smaller.
                unsafe { heap.talc.shrink(place, layout, size) };
                heap.held -= layout.size() - size;
                return place.as_ptr();
            }
            let held = heap.held + size - layout.size();
            // SAFETY: as above, and it is no larger.
            if held <= ENDS && unsafe { heap.talc.grow_in_place(place, layout, size) }.is_ok() {
                heap.held = held;
                return place.as_ptr();
            }
        }
        // SAFETY: the caller promises that such a layout exists.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller's promise; both are as long as what is copied, and the old one is given back once.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(place, layout.size().min(size));
                self.dealloc(place, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_reserved_comes_from_the_system() {
        let text = String::from("anything");
        assert!(!is_in_heap(text.as_ptr().cast_mut()) && !process::has_heap());
    }

    #[test]
    fn ours_leave_something_for_those_of_nccl_and_need_no_end_where_it_is_scattered() {
        let mut memory = vec![0_u64; HEAP / 8];
        let mut heap = Heap { talc: Talc::new(ErrOnOom), held: 0 };
        // SAFETY: the memory is used for nothing else, and outlives the heap.
        unsafe { heap.talc.claim(Span::from_base_size(memory.as_mut_ptr().cast(), HEAP)) }.unwrap();
        let piece = Layout::from_size_align(64 << 10, 8).unwrap();
        let mut fill = || (0..).take_while(|_| heap.allocate(piece).is_some()).count() * piece.size();
        let ours = std::thread::scope(|scope| scope.spawn(|| on_our_thread(&mut fill)).join().unwrap());
        assert!(ours <= OURS && ours > OURS - 2 * piece.size(), "{ours}");
        assert!(is_short());
        let others = fill();
        assert!(others >= 2 * piece.size(), "{others}");
        SHORT.store(false, Ordering::Relaxed);

        // Half of it is free, and nowhere as much as is asked for.
        let mut heap = Heap { talc: Talc::new(ErrOnOom), held: 0 };
        // SAFETY: as above; the heap before is not used any more.
        unsafe { heap.talc.claim(Span::from_base_size(memory.as_mut_ptr().cast(), HEAP)) }.unwrap();
        let pieces: Vec<_> = (0..ENDS / piece.size()).filter_map(|_| heap.allocate(piece)).collect();
        for &place in pieces.iter().step_by(2) {
            heap.held -= piece.size();
            // SAFETY: it came from there with this layout.
            unsafe { heap.talc.free(place, piece) };
        }
        let large = Layout::from_size_align(HEAP / 4, 8).unwrap();
        assert!(heap.held + large.size() < ENDS && heap.allocate(large).is_none());
        let place = beyond(large);
        assert!(!place.is_null() && !is_short());
        // SAFETY: it came from there with this layout.
        unsafe { System.dealloc(place, large) };
    }
}
