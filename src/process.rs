//! Tells the recording process from its children.
//!
//! A child has a copy of our memory and none of our threads, so it would wait for them forever. Two
//! things identify it: the handler that `fork` runs, and, for children made by a bare `clone`, a
//! page that the kernel zeroes in them. Both are set up before our first lock is taken, so no child
//! ever waits for one of our locks.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::sys;

/// The state that is zero in a child.
#[repr(C)]
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
struct Page {
    mode: AtomicU8,
    heap: AtomicBool,
    rest: [u8; LARGEST - 2],
}

/// The largest page that the processor's kernels have. Before glibc 2.35 the loader ignores a
/// larger alignment than its own page's.
const LARGEST: usize = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };

/// Its own page of anonymous memory, which the kernel can zero.
static PAGE: Page = Page { mode: AtomicU8::new(NONE), heap: AtomicBool::new(false), rest: [0; LARGEST - 2] };

/// Nothing has begun; or it has, and this is a child.
const NONE: u8 = 0;
/// It has begun, and callbacks do nothing.
const OFF: u8 = 1;
/// Callbacks record.
const ON: u8 = 2;
/// A child, set by the handler of `fork`.
const CHILD: u8 = 3;
/// Callbacks record, and another plugin beside ours gets them as well.
const ON_BESIDE: u8 = ON | BESIDE;
const BESIDE: u8 = 4;

/// Whether there is another plugin beside ours.
static HAS_OTHER: AtomicBool = AtomicBool::new(false);

/// Whether anything of ours has begun in this process, or in the one it was forked from.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Must be called before any of our locks is taken, on every path into the library that may take
/// one. A child forked before this call does not count as a child, and may record itself.
pub fn begin() {
    if BEGUN.load(Ordering::Acquire) {
        return;
    }
    // Several threads may do this at once: each step can be done twice, and no thread returns
    // before all are done.
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

/// Whether this process is a child of the one that records, or was about to record.
#[must_use]
pub fn is_child() -> bool {
    match PAGE.mode.load(Ordering::Relaxed) {
        NONE => BEGUN.load(Ordering::Relaxed),
        mode => mode == CHILD,
    }
}

/// Whether `fork` made this child. In other children not even libc's own locks are safe.
#[must_use]
pub fn is_forked() -> bool {
    PAGE.mode.load(Ordering::Relaxed) == CHILD
}

/// Whether callbacks record. It costs a callback one relaxed load.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    PAGE.mode.load(Ordering::Relaxed) | BESIDE == ON_BESIDE
}

/// Whether callbacks record and do nothing else: the only check that each of them makes.
#[inline(always)]
#[must_use]
pub fn is_on_alone() -> bool {
    PAGE.mode.load(Ordering::Relaxed) == ON
}

/// Makes callbacks record from now on. Returns whether they do: false in a child.
#[must_use]
pub fn switch_on() -> bool {
    change(OFF, ON);
    if HAS_OTHER.load(Ordering::SeqCst) {
        change(ON, ON_BESIDE);
    }
    is_on()
}

/// Makes callbacks do nothing from now on; those under way may still publish.
pub fn switch_off() {
    change(ON, OFF);
    change(ON_BESIDE, OFF);
}

/// From now on another plugin gets NCCL's calls as well.
pub fn stand_beside() {
    HAS_OTHER.store(true, Ordering::SeqCst);
    change(ON, ON_BESIDE);
}

fn change(from: u8, to: u8) {
    let _ = PAGE.mode.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
}

/// Whether memory comes from our own heap: see [`crate::memory`]. False in a child, where the
/// heap's lock may be held forever.
#[cfg(not(loom))]
#[inline]
pub(crate) fn has_heap() -> bool {
    PAGE.heap.load(Ordering::Relaxed)
}

/// Makes memory come from our own heap.
#[cfg(not(loom))]
pub(crate) fn use_heap() {
    PAGE.heap.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_fills_whole_pages() {
        assert_eq!((size_of::<Page>(), align_of::<Page>()), (LARGEST, LARGEST));
        assert_eq!(PAGE.rest.len(), LARGEST - 2);
        // SAFETY: no pointers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        assert!(LARGEST.is_multiple_of(page), "{page}");
    }
}
