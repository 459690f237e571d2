//! Our subscriber, and how it speaks to CUPTI: as the only one, by the functions of all releases;
//! or as one of several, by those that take the subscriber (CUDA 13.3).
//!
//! The two must not be mixed: beside a subscriber that shares, CUPTI refuses some of the older
//! functions, and others act on the whole process. So the choice is made once, when CUPTI is taken,
//! and everything that differs is a method of [`Subscriber`]. Functions without a `_v2` form serve
//! both: callbacks, flushing, ids and names.
//!
//! A subscriber that shares has buffers, kinds, a time, external ids and a count of dropped records
//! of its own. Its records are those of the release, since no fields are chosen. A flush flushes
//! everybody.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use cupti_sys::bindings as cupti;
use cupti_sys::records::{self, Library};

use super::Absent;
use super::absent::error_name;
use super::callbacks;
use super::door::{Ids, Pop, Push};
use super::shared::Shared;
use crate::model::time::HostNs;
use crate::sys;

/// Whether CUPTI is to be shared with other subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No.
    No,
    /// Yes, if possible; otherwise CUPTI is taken alone.
    IfPossible,
    /// Yes: it was shared before.
    Only,
}

/// The functions that take the subscriber.
#[derive(Clone, Copy)]
struct Functions {
    subscribe: cupti::cuptiSubscribe_v2,
    register: cupti::cuptiActivityRegisterCallbacks_v2,
    enable: cupti::cuptiActivityEnable_v2,
    enable_and_dump: cupti::cuptiActivityEnableAndDump_v2,
    disable: cupti::cuptiActivityDisable_v2,
    set_attribute: cupti::cuptiActivitySetAttribute_v2,
    next_record: cupti::cuptiActivityGetNextRecord_v2,
    dropped: cupti::cuptiActivityGetNumDroppedRecords_v2,
    timestamp: cupti::cuptiGetTimestamp_v2,
}

impl Functions {
    /// All of them, or none: before CUDA 13.3 some are missing.
    fn of(api: &cupti_sys::Cupti) -> Option<(Functions, Push, Pop)> {
        let own = Functions {
            subscribe: api.cuptiSubscribe_v2?,
            register: api.cuptiActivityRegisterCallbacks_v2?,
            enable: api.cuptiActivityEnable_v2?,
            enable_and_dump: api.cuptiActivityEnableAndDump_v2?,
            disable: api.cuptiActivityDisable_v2?,
            set_attribute: api.cuptiActivitySetAttribute_v2?,
            next_record: api.cuptiActivityGetNextRecord_v2?,
            dropped: api.cuptiActivityGetNumDroppedRecords_v2?,
            timestamp: api.cuptiGetTimestamp_v2?,
        };
        let push = api.cuptiActivityPushExternalCorrelationId_v2?;
        Some((own, push, api.cuptiActivityPopExternalCorrelationId_v2?))
    }
}

/// A subscriber. When dropped, it is unsubscribed.
pub(super) struct Subscriber {
    shared: &'static Shared,
    handle: cupti::CUpti_SubscriberHandle,
    /// When it had subscribed: earlier buffers were another one's.
    since: HostNs,
    /// If it shares CUPTI.
    own: Option<Functions>,
    /// For the door, if it shares CUPTI.
    ids: Option<&'static Ids>,
    /// The first subscriber's name, if it shares and was not the first.
    beside: Option<String>,
}

// SAFETY: the handle is an opaque value that CUPTI accepts on any thread; the rest are functions.
unsafe impl Send for Subscriber {}
// SAFETY: as above. What must be serialised is called by the flushing thread only.
unsafe impl Sync for Subscriber {}

impl Subscriber {
    /// Subscribes. Also returns why CUPTI is not shared although it should be.
    pub(super) fn new(
        shared: &'static Shared,
        version: u32,
        sharing: Sharing,
    ) -> Result<(Subscriber, Option<String>), Absent> {
        if sharing == Sharing::No {
            return Subscriber::alone(shared, version, false).map(|it| (it, None));
        }
        let Some((own, push, pop)) = Functions::of(&shared.api) else {
            let release = records::release(version).unwrap_or("an unknown release");
            let why = format!("CUPTI of CUDA {release} cannot be shared: it takes CUPTI of CUDA 13.3 or later");
            return Subscriber::alone(shared, version, true).map(|it| (it, Some(why)));
        };
        let Answer { code, handle, name } = subscribe(own.subscribe, version, true);
        if code == cupti::CUPTI_SUCCESS {
            // Never freed: a thread may still look at it. There is one for each time CUPTI is
            // taken.
            let ids: &'static Ids = Box::leak(Box::new(Ids { handle, push, pop }));
            let since = HostNs(sys::boottime_ns());
            return Ok((Subscriber { shared, handle, since, own: Some(own), ids: Some(ids), beside: name }, None));
        }
        let is_taken = code == cupti::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
        if sharing == Sharing::Only {
            return Err(match is_taken {
                true => Absent::Taken { owner: name, asked: true },
                false => Absent::Refused { call: "cuptiSubscribe_v2", code },
            });
        }
        let why = match is_taken {
            true => {
                "CUPTI refuses to be shared, though no other tool has it: by NVIDIA's documentation, sharing takes \
                     driver r610 or later"
                    .to_owned()
            }
            false => format!("CUPTI refuses to be shared: cuptiSubscribe_v2 answered {}", error_name(code)),
        };
        Subscriber::alone(shared, version, true).map(|it| (it, Some(why)))
    }

    /// The only subscriber. `asked`: whether sharing was asked for.
    fn alone(shared: &'static Shared, version: u32, asked: bool) -> Result<Subscriber, Absent> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is writable, the function lives as long as the process.
        let result =
            unsafe { (shared.api.cuptiSubscribe)(&raw mut handle, Some(callbacks::on_event), ptr::null_mut()) };
        match result {
            cupti::CUPTI_SUCCESS => {
                let since = HostNs(sys::boottime_ns());
                Ok(Subscriber { shared, handle, since, own: None, ids: None, beside: None })
            }
            cupti::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => {
                Err(Absent::Taken { owner: owner(&shared.api, version), asked })
            }
            code => Err(Absent::Refused { call: "cuptiSubscribe", code }),
        }
    }

    /// Whether it shares CUPTI.
    pub(super) fn shares(&self) -> bool {
        self.own.is_some()
    }

    /// Whether a buffer that was returned at this time is one of its buffers, not an earlier
    /// subscriber's.
    pub(super) fn has_returned(&self, at: HostNs) -> bool {
        at >= self.since
    }

    /// The first subscriber's name, if that is another one.
    pub(super) fn beside(&self) -> Option<&str> {
        self.beside.as_deref()
    }

    /// Makes CUPTI request buffers from us.
    pub(super) fn register(&self) -> u32 {
        // SAFETY: all these functions live as long as the process.
        unsafe {
            match self.own {
                Some(own) => (own.register)(
                    self.handle,
                    Some(callbacks::on_own_request as _),
                    Some(callbacks::on_own_complete as _),
                ),
                None => (self.shared.api.cuptiActivityRegisterCallbacks)(
                    Some(callbacks::on_request as _),
                    Some(callbacks::on_complete as _),
                ),
            }
        }
    }

    /// Enables a kind.
    pub(super) fn enable(&self, kind: u32) -> u32 {
        // SAFETY: subscribed. Without a configuration, records have all fields.
        unsafe {
            match self.own {
                Some(own) => (own.enable)(self.handle, kind, ptr::null_mut()),
                None => (self.shared.api.cuptiActivityEnable)(kind),
            }
        }
    }

    /// Enables a kind, and has the existing objects listed.
    pub(super) fn enable_and_dump(&self, kind: u32) -> u32 {
        // SAFETY: as above.
        unsafe {
            match self.own {
                Some(own) => (own.enable_and_dump)(self.handle, kind, ptr::null_mut()),
                None => (self.shared.api.cuptiActivityEnableAndDump)(kind),
            }
        }
    }

    /// Disables a kind.
    pub(super) fn disable(&self, kind: u32) -> u32 {
        // SAFETY: as above.
        unsafe {
            match self.own {
                Some(own) => (own.disable)(self.handle, kind, ptr::null_mut()),
                None => (self.shared.api.cuptiActivityDisable)(kind),
            }
        }
    }

    /// From here on, NCCL's threads push external ids for it, if it shares CUPTI.
    pub(super) fn open_door(&self) {
        if let Some(ids) = self.ids {
            self.shared.door.open(ids);
        }
    }

    /// Enables or disables a callback.
    pub(super) fn enable_callback(&self, on: bool, domain: u32, id: u32) -> u32 {
        // SAFETY: the handle is that of this subscription; only the thread that starts it and the
        // one that ends it call this, one after the other.
        unsafe { (self.shared.api.cuptiEnableCallback)(on.into(), self.handle, domain, id) }
    }

    /// The type of thread ids in the whole process; `None` if each subscriber has its own.
    pub(super) fn thread_ids(&self) -> Option<u32> {
        let mut kind = 0;
        // SAFETY: `kind` is writable.
        let is_known =
            !self.shares() && unsafe { (self.shared.api.cuptiGetThreadIdType)(&raw mut kind) } == cupti::CUPTI_SUCCESS;
        is_known.then_some(kind)
    }

    /// Chooses the type of thread ids in records.
    pub(super) fn set_thread_ids(&self, kind: u32) -> u32 {
        let (mut kind, mut size) = (kind, size_of::<u32>());
        // SAFETY: the value has this size, which is that of `CUpti_ActivityThreadIdType`.
        unsafe {
            match self.own {
                Some(own) => (own.set_attribute)(
                    self.handle,
                    cupti::CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE,
                    &raw mut size,
                    (&raw mut kind).cast::<c_void>(),
                ),
                None => (self.shared.api.cuptiSetThreadIdType)(kind),
            }
        }
    }

    /// CUPTI's time, if it answers.
    pub(super) fn timestamp(&self) -> Option<u64> {
        let mut stamp = 0;
        // SAFETY: the stamp is writable; the function may be called on any thread at any time.
        let result = unsafe {
            match self.own {
                Some(own) => (own.timestamp)(self.handle, &raw mut stamp),
                None => (self.shared.api.cuptiGetTimestamp)(&raw mut stamp),
            }
        };
        (result == cupti::CUPTI_SUCCESS).then_some(stamp)
    }

    /// How many records CUPTI has dropped since the last call, if it answers.
    pub(super) fn take_dropped(&self) -> Option<usize> {
        let mut dropped = 0;
        // SAFETY: the number is writable; no context and no stream means all of them.
        let result = unsafe {
            match self.own {
                Some(own) => (own.dropped)(self.handle, ptr::null_mut(), 0, &raw mut dropped),
                None => (self.shared.api.cuptiActivityGetNumDroppedRecords)(ptr::null_mut(), 0, &raw mut dropped),
            }
        };
        (result == cupti::CUPTI_SUCCESS).then_some(dropped)
    }

    /// Makes CUPTI return buffers: ours and, if it is shared, everybody's.
    pub(super) fn flush(&self, flag: u32) -> u32 {
        // SAFETY: subscribed, and only the flushing thread calls this, which is in no callback.
        unsafe { (self.shared.api.cuptiActivityFlushAll)(flag) }
    }

    /// Steps through our buffers. It must not outlive this subscriber, whose handle the library
    /// follows.
    pub(super) fn walker(&self) -> Library {
        // SAFETY: the library stays mapped and answered in this process; the caller keeps the
        // subscriber.
        unsafe {
            match self.own {
                Some(own) => Library::of_subscriber(self.handle, own.next_record),
                None => Library::new(self.shared.api.cuptiActivityGetNextRecord),
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // A thread that would not leave keeps it: its callbacks are off, and nothing more is
        // returned.
        if self.ids.is_some_and(|ids| !self.shared.door.close(ids)) {
            return;
        }
        // SAFETY: the handle is that of this subscription, and is not used again.
        unsafe { (self.shared.api.cuptiUnsubscribe)(self.handle) };
    }
}

/// What CUPTI answers to a subscriber with a name.
struct Answer {
    code: u32,
    handle: cupti::CUpti_SubscriberHandle,
    /// The name of the tool that has CUPTI, or of the first one that shares it.
    name: Option<String>,
}

fn subscribe(function: cupti::cuptiSubscribe_v2, version: u32, shared: bool) -> Answer {
    let mut answer = Answer { code: cupti::CUPTI_ERROR_NOT_SUPPORTED, handle: ptr::null_mut(), name: None };
    let Some(size) = records::subscriber_params_size(version) else { return answer };
    let mut name = [0_u8; 128];
    let mut parameters = cupti::CUpti_SubscriberParams {
        structSize: size,
        subscriberName: OUR_NAME.as_ptr(),
        oldSubscriberName: name.as_mut_ptr().cast::<c_char>(),
        oldSubscriberSize: name.len() - 1,
        allowMultipleSubscribers: shared.into(),
        padding: [0; 7],
    };
    // SAFETY: the structure and the name buffer are at least as long as their stated sizes.
    answer.code =
        unsafe { function(&raw mut answer.handle, Some(callbacks::on_event), ptr::null_mut(), &raw mut parameters) };
    let name: Vec<u8> = name.into_iter().take_while(|&byte| byte != 0).collect();
    // The first one that shares is told its own name. PyTorch's profiler gives none.
    let is_other = !name.is_empty() && ![OUR_NAME.to_bytes(), NAMELESS].iter().any(|end| name.ends_with(end));
    answer.name = is_other.then(|| String::from_utf8_lossy(&name).into_owned());
    answer
}

/// Our name among subscribers.
const OUR_NAME: &CStr = c"ncclscope";
/// How the name of a subscriber without a name ends. Source: CUPTI 13.0 Update 1 on H100.
const NAMELESS: &[u8] = b"<not provided>";

/// The tool that holds CUPTI, if the release tells: from CUDA 13.0 on, a second subscriber is given
/// the first one's name.
fn owner(api: &cupti_sys::Cupti, version: u32) -> Option<String> {
    let answer = subscribe(api.cuptiSubscribe_v2?, version, false);
    if answer.code == cupti::CUPTI_SUCCESS {
        // CUPTI was given up at this very moment; the next attempt will succeed.
        // SAFETY: the handle is that of the subscription just made.
        unsafe { (api.cuptiUnsubscribe)(answer.handle) };
        return None;
    }
    answer.name
}
