//! Our own memory: one mapping, reserved when a recording starts, that serves the allocations here.
//!
//! We must never be the reason that a job reaches its memory limit. So everything that a recording
//! should need is reserved at its start, and if that runs short, the recording ends, not the job:
//!
//! ```text
//! |<---------------- our threads ------------------>|<- the end ->|<- NCCL's threads ->|
//! 0                                             ends          ours                 limit
//! ```
//!
//! Above `ends` the collector is told to end the recording (`is_short`). Until it has ended, the
//! system is asked for what our threads cannot get below `ours`. It is also asked for a piece for
//! which the mapping is too fragmented. If the system has no memory either, a thread of ours stops
//! where it is, forever (`is_over`): an allocation may neither fail, which aborts, nor unwind.
//! Nobody waits for our threads without a limit. NCCL's threads, which allocate a few kilobytes in
//! `init` and `finalize`, have a part of the mapping for themselves.
//!
//! Before a recording, in a forked child and in the command line, all memory comes from the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use talc::{ErrOnOom, Span, Talc};

use crate::fault::planted;
use crate::{process, sys};

/// Bytes of the mapping, unless `NCCLSCOPE_HEAP_SIZE` says otherwise. What is kept has limits of
/// its own. With everything switched on and nearly all limits reached at once, as in a long job
/// whose launches have no kernels, at most 28 MiB were held in an hour.
pub const HEAP: usize = 32 << 20;
/// Bytes that are left to NCCL's threads.
const THEIRS: usize = 256 << 10;
/// Bytes below those at which the recording ends.
const END: usize = 1 << 20;

/// The library's allocator.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

struct Heap {
    talc: Talc<ErrOnOom>,
    /// Most bytes that may be held.
    limit: usize,
    /// Bytes allocated and not freed, and the most so far.
    held: usize,
    most: usize,
}

static LOCKED: Mutex<Heap> = Mutex::new(Heap::new());
/// The first byte of the mapping.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// The first byte of what was added to it, and how many bytes that is.
static MORE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static MORE_BYTES: AtomicUsize = AtomicUsize::new(0);
static SHORT: AtomicBool = AtomicBool::new(false);
static OVER: AtomicBool = AtomicBool::new(false);

/// Whether memory from the system is counted; the bytes held, and the most held.
static COUNTS: AtomicBool = AtomicBool::new(false);
static PASSED: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

/// Our threads, which may be stopped forever, by their [numbers](sys::thread::own_number); 0 is a
/// free place. Not a thread-local: libc ends the process if it has no memory for those.
static OURS: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];

/// Reserves the mapping, and makes it serve all allocations. False if there is no such memory. Once
/// in a process.
#[must_use]
pub(crate) fn reserve() -> bool {
    // Sanitizers and Miri can check single pieces better than one large one.
    if process::has_heap() || cfg!(any(sanitize_build, miri)) || planted::is_planted("libc", "heap") {
        return true;
    }
    let Some(base) = sys::reserve(HEAP) else { return false };
    let mut heap = lock();
    // SAFETY: a fresh mapping of that length, never unmapped and used for nothing else.
    let claimed = unsafe { heap.talc.claim(Span::from_base_size(base, HEAP)) }.is_ok();
    BASE.store(base, Ordering::Release);
    drop(heap);
    if claimed {
        process::use_heap();
    }
    claimed
}

/// Lets the recording hold this many bytes. Once in a process; false if there is no such memory,
/// and the limit stays as it was.
#[must_use]
pub(crate) fn limit(bytes: usize) -> bool {
    if bytes > HEAP && process::has_heap() && MORE_BYTES.load(Ordering::Relaxed) == 0 {
        let more = bytes - HEAP;
        let Some(base) = sys::reserve(more) else { return false };
        MORE.store(base, Ordering::Relaxed);
        MORE_BYTES.store(more, Ordering::Release);
        // SAFETY: a fresh mapping of that length, never unmapped and used for nothing else.
        if unsafe { lock().talc.claim(Span::from_base_size(base, more)) }.is_err() {
            return false;
        }
    }
    lock().limit = bytes.min(HEAP + MORE_BYTES.load(Ordering::Relaxed));
    true
}

/// How many bytes the recording may hold.
pub(crate) fn bytes() -> usize {
    lock().limit
}

/// Runs the body of a thread of ours, which stops forever if there is no memory at all.
pub(crate) fn on_our_thread<T>(body: impl FnOnce() -> T) -> T {
    struct Place(&'static AtomicUsize);
    impl Drop for Place {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }
    let own = sys::thread::own_number();
    let take = |place: &&AtomicUsize| place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let _place = OURS.iter().find(take).map(Place);
    body()
}

fn is_on_our_thread() -> bool {
    let own = sys::thread::own_number();
    OURS.iter().any(|place| place.load(Ordering::Relaxed) == own)
}

/// Whether so much memory is held that the recording has to end.
#[inline]
pub(crate) fn is_short() -> bool {
    SHORT.load(Ordering::Relaxed)
}

/// The most bytes of the heap that were held at a time so far.
pub(crate) fn most_held() -> usize {
    lock().most
}

/// Whether a thread of ours has stopped for lack of memory. Our threads will then not answer
/// requests.
pub(crate) fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// For tests: counts allocations from the system from now on.
pub fn count() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// Bytes held of what was [counted](count), and the most held since the last call. Negative if
/// memory is freed that was allocated before.
pub fn counted() -> (isize, isize) {
    let held = PASSED.load(Ordering::Relaxed);
    (held, MOST.swap(held, Ordering::Relaxed))
}

fn lock() -> MutexGuard<'static, Heap> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_in_heap(place: *mut u8) -> bool {
    let is_in = |base: *mut u8, bytes| !base.is_null() && place.addr().wrapping_sub(base.addr()) < bytes;
    is_in(BASE.load(Ordering::Relaxed), HEAP) || is_in(MORE.load(Ordering::Relaxed), MORE_BYTES.load(Ordering::Relaxed))
}

impl Heap {
    const fn new() -> Heap {
        Heap { talc: Talc::new(ErrOnOom), limit: HEAP, held: 0, most: 0 }
    }

    /// Most bytes that our threads may hold.
    fn ours(&self) -> usize {
        self.limit - THEIRS
    }

    /// With more bytes than this the recording ends.
    fn ends(&self) -> usize {
        self.ours() - END
    }

    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let held = self.held + layout.size();
        if held > self.ends() {
            SHORT.store(true, Ordering::Relaxed);
            if held > self.ours() && is_on_our_thread() {
                return None;
            }
        }
        // SAFETY: the size is not zero, which the allocator's caller has promised.
        let place = unsafe { self.talc.malloc(layout) }.ok()?;
        self.hold(held);
        Some(place)
    }

    /// Makes a piece larger where it is. False if there is no room behind it.
    ///
    /// # Safety
    ///
    /// It was allocated here with this layout, and `size` is larger.
    unsafe fn grow(&mut self, place: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let held = self.held + size - layout.size();
        // SAFETY: the caller's promise.
        let grown = held <= self.ends() && unsafe { self.talc.grow_in_place(place, layout, size) }.is_ok();
        if grown {
            self.hold(held);
        }
        grown
    }

    fn hold(&mut self, held: usize) {
        self.held = held;
        self.most = self.most.max(held);
    }
}

/// Allocates what the heap has no room for, or not in one piece. The latter is no reason to end the
/// recording: much may be free.
#[cold]
fn beyond(layout: Layout) -> *mut u8 {
    // SAFETY: the size is not zero, as above.
    let place = unsafe { System.alloc(layout) };
    if place.is_null() {
        SHORT.store(true, Ordering::Relaxed);
        if is_on_our_thread() {
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

// SAFETY: memory from the heap goes back to the heap, and memory from the system to the system; the
// address tells them apart. The heap is used under a lock and neither unwinds nor allocates.
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
            // SAFETY: the caller's promise; what is not in the heap came from the system.
            return unsafe { System.dealloc(place, layout) };
        }
        // In a child it is not freed.
        if process::has_heap()
            && let Some(place) = NonNull::new(place)
        {
            let mut heap = lock();
            heap.held -= layout.size();
            // SAFETY: it was allocated there with this layout.
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
            // SAFETY: the allocation has that length.
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
                // SAFETY: it was allocated there with this layout, and the new size is not larger.
                unsafe { heap.talc.shrink(place, layout, size) };
                heap.held -= layout.size() - size;
                return place.as_ptr();
            }
            // SAFETY: as above, and the new size is larger.
            if unsafe { heap.grow(place, layout, size) } {
                return place.as_ptr();
            }
        }
        // SAFETY: the caller promises that such a layout exists.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the caller's promise; both pieces are as long as what is copied, and the old one
        // is freed once.
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
    fn without_a_mapping_memory_comes_from_the_system() {
        let text = String::from("anything");
        assert!(!is_in_heap(text.as_ptr().cast_mut()) && !process::has_heap());
    }

    #[test]
    fn what_grows_in_its_place_counts_as_held() {
        let mut memory = vec![0_u64; 1 << 16];
        let mut heap = Heap::new();
        // SAFETY: the memory is used for nothing else, and outlives the heap.
        unsafe { heap.talc.claim(Span::from_base_size(memory.as_mut_ptr().cast(), 8 << 16)) }.unwrap();
        let piece = Layout::from_size_align(1 << 10, 8).unwrap();
        let place = heap.allocate(piece).unwrap();
        // SAFETY: it was allocated there with this layout.
        assert!(unsafe { heap.grow(place, piece, 1 << 12) });
        assert_eq!((heap.held, heap.most), (1 << 12, 1 << 12));
    }

    #[test]
    fn our_threads_leave_room_for_nccls_and_survive_fragmentation() {
        let mut memory = vec![0_u64; HEAP / 8];
        let mut heap = Heap::new();
        // SAFETY: the memory is used for nothing else, and outlives the heap.
        unsafe { heap.talc.claim(Span::from_base_size(memory.as_mut_ptr().cast(), HEAP)) }.unwrap();
        let piece = Layout::from_size_align(64 << 10, 8).unwrap();
        let most = heap.ours();
        let mut fill = || (0..).take_while(|_| heap.allocate(piece).is_some()).count() * piece.size();
        let ours = std::thread::scope(|scope| scope.spawn(|| on_our_thread(&mut fill)).join().unwrap());
        assert!(ours <= most && ours > most - 2 * piece.size(), "{ours}");
        assert!(is_short());
        let others = fill();
        assert!(others >= 2 * piece.size(), "{others}");
        SHORT.store(false, Ordering::Relaxed);

        // Half of it is free, but no piece is as large as the request.
        let mut heap = Heap::new();
        // SAFETY: as above; the previous heap is no longer used.
        unsafe { heap.talc.claim(Span::from_base_size(memory.as_mut_ptr().cast(), HEAP)) }.unwrap();
        let ends = heap.ends();
        let pieces: Vec<_> = (0..ends / piece.size()).filter_map(|_| heap.allocate(piece)).collect();
        for &place in pieces.iter().step_by(2) {
            heap.held -= piece.size();
            // SAFETY: it was allocated there with this layout.
            unsafe { heap.talc.free(place, piece) };
        }
        let large = Layout::from_size_align(HEAP / 4, 8).unwrap();
        assert!(heap.held + large.size() < ends && heap.allocate(large).is_none());
        let place = beyond(large);
        assert!(!place.is_null() && !is_short());
        // SAFETY: it was allocated there with this layout.
        unsafe { System.dealloc(place, large) };
    }
}
