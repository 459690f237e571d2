//! Subscribers, and the callbacks they want: one, or several that share.
//!
//! Reading one bit decides whether a callback is made, without a lock. A subscriber is freed long
//! after it has unsubscribed, because a callback may still be running then, and CUPTI does not wait
//! for it.

use std::collections::VecDeque;
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
    /// Whether others may subscribe too.
    pub(crate) shares: bool,
    wanted: [[AtomicU64; WORDS]; DOMAINS],
}

/// Whose records they are: a subscriber's that shares, or those of the whole process.
pub(crate) type Client = usize;

/// Everybody who does not share.
pub(crate) const PROCESS: Client = 0;

const DOMAINS: usize = 7;
/// Enough bits for every callback id of any release.
const WORDS: usize = 16;
/// How many ended subscriptions keep their memory, because a callback may still use it. A job may
/// have any number of them.
const KEPT: usize = 1000;
/// The most subscribers. How many the real one accepts is not known.
const MOST: usize = 4;

static CURRENT: [AtomicPtr<Subscriber>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
static CHANGING: Mutex<()> = Mutex::new(());
static SESSIONS: AtomicU32 = AtomicU32::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
/// The driver's correlation id before the first one that is told as 1, with `restart`.
static BEFORE: AtomicU32 = AtomicU32::new(0);

/// Subscribes. Also returns the name of the first subscriber if that is another one.
///
/// # Errors
///
/// The name of the first subscriber, with which this one does not share.
pub(crate) fn subscribe(
    callback: Option<Callback>,
    user: *mut c_void,
    name: CString,
    is_v2: bool,
    shares: bool,
) -> Result<(*mut Subscriber, Option<CString>), CString> {
    let _changing = lock(&CHANGING);
    let first = current().map(|first| first.name.clone());
    let free = CURRENT.iter().find(|place| place.load(Ordering::Acquire).is_null());
    let others_share = all().all(|subscriber| subscriber.shares);
    let (Some(place), true) = (free, first.is_none() || (shares && others_share)) else {
        return Err(first.unwrap_or_default());
    };
    let wanted = [const { [const { AtomicU64::new(0) }; WORDS] }; DOMAINS];
    let subscriber = Subscriber { callback, user: AtomicPtr::new(user), name, is_v2, shares, wanted };
    let subscriber = Box::leak(Box::new(subscriber));
    place.store(subscriber, Ordering::Release);
    if SESSIONS.fetch_add(1, Ordering::Relaxed) > 0
        && process::options().restart
        && let Ok(machine) = process::machine()
    {
        BEFORE.store((machine.correlation)(), Ordering::Relaxed);
    }
    Ok((subscriber, first))
}

/// A correlation id as it is told in this session; 0 is none.
pub(crate) fn told(correlation: u32) -> u32 {
    if correlation == 0 { 0 } else { correlation.wrapping_sub(BEFORE.load(Ordering::Relaxed)) }
}

/// How many subscriptions there have been.
pub(crate) fn sessions() -> u32 {
    SESSIONS.load(Ordering::Relaxed)
}

/// How many subscriptions have ended.
pub(crate) fn left() -> u64 {
    LEFT.load(Ordering::SeqCst)
}

/// Ends a subscription. `None` if there is none with this handle.
pub(crate) fn unsubscribe(subscriber: *mut Subscriber) -> Option<&'static Subscriber> {
    let _changing = lock(&CHANGING);
    let gone = find(subscriber)?;
    forget(gone);
    Some(gone)
}

/// Ends all subscriptions.
pub(crate) fn detach() {
    let _changing = lock(&CHANGING);
    all().for_each(forget);
}

fn forget(subscriber: &Subscriber) {
    static GONE: Mutex<VecDeque<AtomicPtr<Subscriber>>> = Mutex::new(VecDeque::new());
    for word in subscriber.wanted.iter().flatten() {
        word.store(0, Ordering::Relaxed);
    }
    let mut gone = lock(&GONE);
    for place in CURRENT.iter().filter(|place| std::ptr::eq(place.load(Ordering::Acquire), subscriber)) {
        gone.push_back(place.swap(std::ptr::null_mut(), Ordering::AcqRel).into());
        LEFT.fetch_add(1, Ordering::SeqCst);
    }
    if gone.len() > KEPT
        && let Some(oldest) = gone.pop_front()
    {
        // SAFETY: `subscribe` leaked it, it is in neither list any more, and no call takes as long
        // as that many subscriptions.
        drop(unsafe { Box::from_raw(oldest.into_inner()) });
    }
}

/// The subscribers.
pub(crate) fn all() -> impl Iterator<Item = &'static Subscriber> {
    // SAFETY: null or a subscriber that `subscribe` leaked; freed long after it left the list.
    CURRENT.iter().filter_map(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
}

/// The first subscriber.
pub(crate) fn current() -> Option<&'static Subscriber> {
    all().next()
}

/// The subscriber with this handle.
pub(crate) fn find(subscriber: *const Subscriber) -> Option<&'static Subscriber> {
    all().find(|one| std::ptr::eq(*one, subscriber))
}

/// Whether there are subscribers that share.
pub(crate) fn is_shared() -> bool {
    all().any(|subscriber| subscriber.shares)
}

impl Subscriber {
    /// Whose records it gets.
    pub(crate) fn client(&self) -> Client {
        if self.shares { std::ptr::from_ref(self).addr() } else { PROCESS }
    }

    /// Enables or disables a callback.
    pub(crate) fn want(&self, domain: u32, id: u32, wanted: bool) {
        let Some(word) = self.word(domain, id) else { return };
        let bit = 1 << (id % 64);
        if wanted {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether it wants a callback.
    pub(crate) fn wants(&self, domain: u32, id: u32) -> bool {
        self.word(domain, id).is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (id % 64)) != 0)
    }

    /// The callbacks that it wants of a domain.
    pub(crate) fn wanted(&self, domain: u32) -> Vec<u32> {
        (0..64 * WORDS as u32).filter(|id| self.wants(domain, *id)).collect()
    }

    /// Makes a callback, whether it wants it or not.
    pub(crate) fn call<T>(&self, domain: u32, id: u32, data: &T) {
        let Some(callback) = self.callback else { return };
        let place = match domain {
            domain::DRIVER | domain::RUNTIME => Inside::ApiCallback,
            _ => Inside::OtherCallback,
        };
        let user = self.user.load(Ordering::Relaxed);
        process::call_out(place, || {
            // SAFETY: the subscriber's own function with its own pointer; the data has the domain's
            // type and lives for the call.
            unsafe { callback(user, domain, id, (&raw const *data).cast()) }
        });
    }

    fn word(&self, domain: u32, id: u32) -> Option<&AtomicU64> {
        self.wanted.get(domain as usize)?.get(id as usize / 64)
    }
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

/// Makes a callback for each subscriber that wants it. No lock of the library is held during it.
pub(crate) fn call_back<T>(domain: u32, id: u32, data: &T) {
    for subscriber in all().filter(|subscriber| subscriber.wants(domain, id) && !is_withheld(domain)) {
        subscriber.call(domain, id, data);
    }
}
