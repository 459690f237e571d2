//! Where NCCL's threads push external ids for a subscriber that shares CUPTI, as long as there is
//! one.
//!
//! The handle of a subscriber that is gone must not be used. So whoever unsubscribes closes the
//! door and waits until nobody is inside. Those who enter wait for nobody.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cupti_sys::bindings as cupti;

pub(super) type Push = cupti::cuptiActivityPushExternalCorrelationId_v2;
pub(super) type Pop = cupti::cuptiActivityPopExternalCorrelationId_v2;

/// The subscriber, and its functions for external ids.
pub(super) struct Ids {
    pub(super) handle: cupti::CUpti_SubscriberHandle,
    pub(super) push: Push,
    pub(super) pop: Pop,
}

/// See the module.
#[derive(Default)]
pub(super) struct Door {
    inside: AtomicUsize,
    ids: AtomicPtr<Ids>,
}

impl Door {
    /// How long to wait for threads that are inside. What they do takes less than a microsecond.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// Lets threads in. Until the door is closed, the subscriber is subscribed.
    pub(super) fn open(&self, ids: &'static Ids) {
        self.ids.store(ptr::from_ref(ids).cast_mut(), Ordering::SeqCst);
    }

    /// Pushes an external id; false if nobody takes it.
    pub(super) fn push(&self, kind: u32, id: u64) -> bool {
        // SAFETY: subscribed: `close` waits for this thread to leave. This is in no callback of
        // CUPTI's.
        let push = |ids: &Ids| unsafe { (ids.push)(ids.handle, kind, id) } == cupti::CUPTI_SUCCESS;
        self.enter(push).unwrap_or(false)
    }

    /// Pops the external id pushed last. If its subscriber is gone, so is the id.
    pub(super) fn pop(&self, kind: u32) {
        let mut id = 0;
        // SAFETY: as above; the id is writable.
        self.enter(|ids| unsafe { (ids.pop)(ids.handle, kind, &raw mut id) });
    }

    fn enter<T>(&self, call: impl FnOnce(&Ids) -> T) -> Option<T> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        // SAFETY: null, or what lives as long as the process.
        let result = unsafe { self.ids.load(Ordering::SeqCst).as_ref() }.map(call);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Lets nobody in to this subscriber any more, and waits until all have left. False if that
    /// took too long. To a later one the door stays open.
    pub(super) fn close(&self, ids: &'static Ids) -> bool {
        let ours = ptr::from_ref(ids).cast_mut();
        let _ = self.ids.compare_exchange(ours, ptr::null_mut(), Ordering::SeqCst, Ordering::SeqCst);
        let begin = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 {
            if begin.elapsed() > Door::PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes only the ids of subscriber 8.
    unsafe extern "C" fn push(handle: cupti::CUpti_SubscriberHandle, _: u32, _: u64) -> u32 {
        if handle.addr() == 8 { cupti::CUPTI_SUCCESS } else { cupti::CUPTI_ERROR_INVALID_PARAMETER }
    }

    unsafe extern "C" fn pop(_: cupti::CUpti_SubscriberHandle, _: u32, _: *mut u64) -> u32 {
        cupti::CUPTI_SUCCESS
    }

    #[test]
    fn the_end_of_a_subscriber_leaves_the_door_open_to_the_next() {
        let door = Door::default();
        let ids = |handle| -> &'static Ids {
            Box::leak(Box::new(Ids { handle: ptr::without_provenance_mut(handle), push, pop }))
        };
        let (earlier, later) = (ids(4), ids(8));
        door.open(earlier);
        assert!(!door.push(5, 1), "it refuses");
        door.open(later);
        assert!(door.close(earlier));
        assert!(door.push(5, 1));
        assert!(door.close(later));
        assert!(!door.push(5, 1));
    }
}
