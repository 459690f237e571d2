//! What CUPTI's callbacks share, from the first subscription to the end of the process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use cupti_sys::bindings as cupti;

use super::buffers::{Pace, Pool};
use super::contact::Contact;
use super::door::Door;

/// What the callbacks need, from the first subscription to the end of the process.
pub(super) struct Shared {
    pub(super) api: cupti_sys::Cupti,
    pub(super) pool: Pool,
    pub(super) pace: Pace,
    /// Failures that CUPTI reported of itself; the code of the last is in `last_failure`.
    pub(super) failures: AtomicU64,
    pub(super) last_failure: AtomicU32,
    /// How many of them were fatal: CUPTI has detached itself.
    pub(super) fatal: AtomicU64,
    /// Whether we get what CUPTI records.
    pub(super) contact: Contact,
    /// CUPTI reports what an update makes of each node of an executable graph.
    pub(super) reports_updates: AtomicBool,
    /// CUPTI is shared, from the first subscription to the last: `door` leads to the subscriber.
    pub(super) shares: AtomicBool,
    pub(super) door: Door,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

impl Shared {
    /// The process's only instance, made at the first call, with `pool` for its buffers.
    pub(super) fn get_or_init(api: cupti_sys::Cupti, pool: impl FnOnce() -> Option<Pool>) -> Option<&'static Shared> {
        if SHARED.get().is_none() {
            let shared = Shared {
                api,
                pool: pool()?,
                pace: Pace::default(),
                failures: AtomicU64::new(0),
                last_failure: AtomicU32::new(0),
                fatal: AtomicU64::new(0),
                contact: Contact::default(),
                reports_updates: AtomicBool::new(false),
                shares: AtomicBool::new(false),
                door: Door::default(),
            };
            // Only one thread at a time starts; a second pool would merely be unused.
            let _ = SHARED.set(shared);
        }
        SHARED.get()
    }

    /// The same, once there was a subscription.
    pub(super) fn get() -> Option<&'static Shared> {
        SHARED.get()
    }
}

/// Whether a driver call that ends has succeeded.
pub(super) fn has_succeeded(call: &cupti::CUpti_CallbackData) -> bool {
    // SAFETY: null or the result of this function, a `CUresult`, for the length of this callback.
    call.callbackSite == cupti::CUPTI_API_EXIT
        && unsafe { call.functionReturnValue.cast::<u32>().as_ref() }.is_some_and(|result| *result == 0)
}
