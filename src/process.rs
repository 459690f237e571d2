//! Whose process this is: the one that records, or a child of it.
//!
//! A child has our memory and none of our threads, so whatever of ours it waited for would never come. Two things tell it: the
//! handler that `fork` runs, and, for children made by a bare `clone`, a page that the kernel empties in them. Both are in place
//! before the first lock of ours is taken, so that none is ever waited for in a child that was made meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::sys;

/// What a child finds empty.
#[repr(C, align(4096))]
struct Page {
    mode: AtomicU8,
    heap: AtomicBool,
    rest: [u8; 4094],
}

/// Its own page of memory without a file, which is what the kernel is able to empty.
static PAGE: Page = Page { mode: AtomicU8::new(NONE), heap: AtomicBool::new(false), rest: [0; 4094] };

/// Nothing has begun; or it has, and this is a child.
const NONE: u8 = 0;
/// It has begun, and callbacks do nothing.
const OFF: u8 = 1;
/// Callbacks record.
const ON: u8 = 2;
/// A child, as the handler of `fork` has said.
const CHILD: u8 = 3;

/// Whether something of ours has begun in this process, or in the one that it was forked from.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Before anything of ours takes a lock, on every way into the library that may take one. A child that was forked before it is none of ours,
/// and may record itself.
pub fn begin() {
    if BEGUN.load(Ordering::Acquire) {
        return;
    }
    // Several threads may do so at once: each step can be done twice, and none goes on before all are done.
    sys::empty_in_children(&raw const PAGE as *mut u8, size_of::<Page>());
    sys::on_fork(forked);
    let _ = PAGE.mode.compare_exchange(NONE, OFF, Ordering::AcqRel, Ordering::Relaxed);
    BEGUN.store(true, Ordering::Release);
}

/// The handler of `fork`, in the child.
extern "C" fn forked() {
    if BEGUN.load(Ordering::Relaxed) {
        PAGE.mode.store(CHILD, Ordering::Relaxed);
        PAGE.heap.store(false, Ordering::Relaxed);
    }
}

/// Whether this process is a child of the one that records, or was about to.
#[must_use]
pub fn is_child() -> bool {
    match PAGE.mode.load(Ordering::Relaxed) {
        NONE => BEGUN.load(Ordering::Relaxed),
        mode => mode == CHILD,
    }
}

/// Whether it is one that `fork` made. In others not even libc's own locks are safe.
#[must_use]
pub fn is_forked() -> bool {
    PAGE.mode.load(Ordering::Relaxed) == CHILD
}

/// Whether callbacks record. One relaxed load is all that a callback pays for it.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    PAGE.mode.load(Ordering::Relaxed) == ON
}

/// Has callbacks record from now on. Whether they do: not in a child.
#[must_use]
pub fn switch_on() -> bool {
    let _ = PAGE.mode.compare_exchange(OFF, ON, Ordering::AcqRel, Ordering::Relaxed);
    is_on()
}

/// Has callbacks do nothing from now on; those that are under way may still publish.
pub fn switch_off() {
    let _ = PAGE.mode.compare_exchange(ON, OFF, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether memory comes from our own heap: see [`crate::memory`]. Not in a child, where its lock may be held for ever.
#[cfg(not(loom))]
#[inline]
pub(crate) fn has_heap() -> bool {
    PAGE.heap.load(Ordering::Relaxed)
}

/// Has memory come from there.
#[cfg(not(loom))]
pub(crate) fn use_heap() {
    PAGE.heap.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_empties_is_whole_pages() {
        assert_eq!((size_of::<Page>(), align_of::<Page>()), (4096, 4096));
        assert_eq!(PAGE.rest.len(), 4094);
    }
}
