//! The one subscriber, and the callbacks it wants.
//!
//! Reading one bit decides whether a callback is made, without a lock. Subscribers are never
//! freed, because a callback may still be running when one unsubscribes, and CUPTI does not wait
//! for it.

use std::ffi::{CString, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::names::domain;
use crate::process::{self, Inside, lock};

/// `CUpti_CallbackFunc`.
pub(crate) type Callback = unsafe extern "C" fn(user: *mut c_void, domain: u32, id: u32, data: *const c_void);

/// `CUpti_Subscriber_st`.
#[derive(Debug)]
pub struct Subscriber {
    callback: Option<Callback>,
    user: AtomicPtr<c_void>,
    pub(crate) name: CString,
    /// Whether it came through `cuptiSubscribe_v2`.
    pub(crate) is_v2: bool,
}

const DOMAINS: usize = 7;
/// Enough bits for every callback id of any release.
const WORDS: usize = 16;

static WANTED: [[AtomicU64; WORDS]; DOMAINS] = [const { [const { AtomicU64::new(0) }; WORDS] }; DOMAINS];
static CURRENT: AtomicPtr<Subscriber> = AtomicPtr::new(std::ptr::null_mut());
static CHANGING: Mutex<()> = Mutex::new(());
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// Makes this the subscriber.
///
/// # Errors
///
/// The name of the current one.
pub(crate) fn subscribe(
    callback: Option<Callback>,
    user: *mut c_void,
    name: CString,
    is_v2: bool,
) -> Result<*mut Subscriber, CString> {
    let _changing = lock(&CHANGING);
    if let Some(current) = current() {
        return Err(current.name.clone());
    }
    let subscriber = Subscriber { callback, user: AtomicPtr::new(user), name, is_v2 };
    let subscriber = Box::leak(Box::new(subscriber));
    CURRENT.store(subscriber, Ordering::Release);
    SESSIONS.fetch_add(1, Ordering::Relaxed);
    Ok(subscriber)
}

/// How many subscriptions there have been.
pub(crate) fn sessions() -> u32 {
    SESSIONS.load(Ordering::Relaxed)
}

/// Ends the subscription; false if this is not the subscriber.
pub(crate) fn unsubscribe(subscriber: *mut Subscriber) -> bool {
    let _changing = lock(&CHANGING);
    if !is_current(subscriber) {
        return false;
    }
    forget();
    true
}

/// Ends the current subscription.
pub(crate) fn detach() {
    let _changing = lock(&CHANGING);
    forget();
}

fn forget() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    for word in WANTED.iter().flatten() {
        word.store(0, Ordering::Relaxed);
    }
}

/// The subscriber.
pub(crate) fn current() -> Option<&'static Subscriber> {
    // SAFETY: null or a subscriber that `subscribe` leaked.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Whether this is the subscriber's handle.
pub(crate) fn is_current(subscriber: *const Subscriber) -> bool {
    !subscriber.is_null() && CURRENT.load(Ordering::Acquire).cast_const() == subscriber
}

/// Enables or disables a callback.
pub(crate) fn want(domain: u32, id: u32, wanted: bool) {
    let Some(word) = word(domain, id) else { return };
    let bit = 1 << (id % 64);
    if wanted {
        word.fetch_or(bit, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether a callback is wanted.
pub(crate) fn is_wanted(domain: u32, id: u32) -> bool {
    word(domain, id).is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (id % 64)) != 0)
}

/// Whether the options withhold callbacks of this domain.
fn is_withheld(domain: u32) -> bool {
    let withheld = process::options().withhold;
    match domain {
        domain::DRIVER | domain::RUNTIME => withheld.calls,
        domain::RESOURCE => withheld.objects,
        _ => false,
    }
}

fn word(domain: u32, id: u32) -> Option<&'static AtomicU64> {
    WANTED.get(domain as usize)?.get(id as usize / 64)
}

/// Makes a callback, if it is wanted. No lock of the library is held during it.
pub(crate) fn call_back<T>(domain: u32, id: u32, data: &T) {
    if !is_wanted(domain, id) || is_withheld(domain) {
        return;
    }
    let Some(subscriber) = current() else { return };
    let Some(callback) = subscriber.callback else { return };
    let place = match domain {
        domain::DRIVER | domain::RUNTIME => Inside::ApiCallback,
        _ => Inside::OtherCallback,
    };
    let user = subscriber.user.load(Ordering::Relaxed);
    process::call_out(place, || {
        // SAFETY: the subscriber's own function with its own pointer; the data has the domain's
        // type and lives for the call.
        unsafe { callback(user, domain, id, (&raw const *data).cast()) }
    });
}
