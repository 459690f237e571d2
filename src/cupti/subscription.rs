//! The process's one subscription to CUPTI: what is requested, and in which order it is given back.

use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::Ordering;

use cupti_sys::bindings as cupti;
use cupti_sys::records;

use super::callbacks::{self, COPYING, GRAPH_CHANGES, GRAPH_LAUNCHES, LAUNCHES, NODES, STATES, Shared};
use super::{Absent, Options};
use crate::config::Matching;
use crate::record::recorder;
use crate::releases::{self, FaultId};
use crate::sys;

/// The release that added CUPTI's reports of its own failures.
const STATE_DOMAIN: u32 = 20;
/// The release that added records of host functions in graphs.
const HOST_NODES: u32 = 130_100;

/// Kinds whose existing objects are listed as well.
const OBJECTS: [u32; 3] =
    [cupti::CUPTI_ACTIVITY_KIND_DEVICE, cupti::CUPTI_ACTIVITY_KIND_CONTEXT, cupti::CUPTI_ACTIVITY_KIND_STREAM];
const COPIES: [u32; 3] =
    [cupti::CUPTI_ACTIVITY_KIND_MEMCPY, cupti::CUPTI_ACTIVITY_KIND_MEMCPY2, cupti::CUPTI_ACTIVITY_KIND_MEMSET];
const CALLS: [u32; 2] = [cupti::CUPTI_ACTIVITY_KIND_DRIVER, cupti::CUPTI_ACTIVITY_KIND_RUNTIME];
const KERNELS: u32 = cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;

/// A subscription, with its callbacks and kinds. When dropped, it leaves CUPTI as it was found.
pub(super) struct Subscription {
    shared: &'static Shared,
    handle: cupti::CUpti_SubscriberHandle,
    version: u32,
    kinds: Vec<u32>,
    /// Settings of the whole process, as they were before.
    before: Before,
    /// Another tool had registered functions for buffers; ours have replaced them.
    had_buffers: bool,
}

/// Settings of the whole process that the next owner of CUPTI must find as they were.
#[derive(Default)]
struct Before {
    thread_ids: Option<u32>,
    /// CUPTI's clock was the wall clock, and we replaced it.
    wall_clock: bool,
}

// SAFETY: the handle is an opaque value that CUPTI accepts on any thread.
unsafe impl Send for Subscription {}

impl Subscription {
    /// Subscribes and enables what the options request. Optional parts that CUPTI refuses are added
    /// to `refused`.
    pub(super) fn start(
        shared: &'static Shared,
        version: u32,
        options: &Options,
        refused: &mut Vec<String>,
    ) -> Result<Subscription, Absent> {
        let api = &shared.api;
        let mut handle = ptr::null_mut();
        // Before anything that affects the whole process: if another tool holds CUPTI, nothing of
        // its is changed.
        // SAFETY: the handle is writable, the function lives as long as the process.
        let result = unsafe { (api.cuptiSubscribe)(&raw mut handle, Some(callbacks::on_event), ptr::null_mut()) };
        match result {
            cupti::CUPTI_SUCCESS => {}
            cupti::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => {
                return Err(Absent::Taken { owner: owner(api, version) });
            }
            code => return Err(Absent::Refused { call: "cuptiSubscribe", code }),
        }
        // By its header this flush fails if nobody has registered functions for buffers; not seen
        // on a GPU yet. In `cuInit` nobody can have.
        let had_buffers = !shared.was_registered.load(Ordering::Relaxed)
            && !options.driver_starts
            // SAFETY: subscribed, and this thread is in no callback.
            && unsafe { (api.cuptiActivityFlushAll)(0) } == cupti::CUPTI_SUCCESS;
        let before = Before::default();
        let mut subscription = Subscription { shared, handle, version, kinds: Vec::new(), before, had_buffers };
        subscription.ask(options, refused)?;
        Ok(subscription)
    }

    fn ask(&mut self, options: &Options, refused: &mut Vec<String>) -> Result<(), Absent> {
        let api = &self.shared.api;
        let mut note = |what: &str, result: u32| {
            if result != cupti::CUPTI_SUCCESS {
                refused.push(format!("{what}: {}", super::absent::error_name(result)));
            }
            result == cupti::CUPTI_SUCCESS
        };
        self.before = Before { thread_ids: thread_ids(api), wall_clock: false };
        // Before the first kind is enabled: records under way keep the clock they had.
        self.before.wall_clock = options.boottime && note("a clock of our own", set_clock(api, boottime));
        note("system thread ids", set_thread_ids(api, cupti::CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
        let result = self.register();
        if result != cupti::CUPTI_SUCCESS {
            return Err(Absent::Refused { call: "cuptiActivityRegisterCallbacks", code: result });
        }
        let mut enable = |what: &str, domain: u32, ids: &[u32]| {
            let mut enabled = 0;
            for &id in ids {
                // SAFETY: the handle is that of this subscription.
                let result = unsafe { (api.cuptiEnableCallback)(1, self.handle, domain, id) };
                enabled += u32::from(note(&format!("{what} (callback {id})"), result));
            }
            enabled
        };
        let launches = match options.matching {
            Matching::All => enable("launches", cupti::CUPTI_CB_DOMAIN_DRIVER_API, &LAUNCHES),
            Matching::External | Matching::Timer => 0,
        };
        if options.matching != Matching::Timer {
            enable("graph nodes", cupti::CUPTI_CB_DOMAIN_RESOURCE, &NODES);
            enable("graph launches", cupti::CUPTI_CB_DOMAIN_DRIVER_API, &GRAPH_LAUNCHES);
        }
        let changes = GRAPH_CHANGES.into_iter().filter(|_| options.matching != Matching::Timer);
        for id in changes.chain(COPYING.into_iter().filter(|_| options.copies)) {
            // Releases without a function refuse it, and lose nothing.
            // SAFETY: the handle is that of this subscription.
            unsafe { (api.cuptiEnableCallback)(1, self.handle, cupti::CUPTI_CB_DOMAIN_DRIVER_API, id) };
        }
        if self.version >= STATE_DOMAIN {
            enable("reports of its own failures", cupti::CUPTI_CB_DOMAIN_STATE, &STATES);
        }
        for kind in OBJECTS {
            // SAFETY: no pointers.
            if unsafe { (api.cuptiActivityEnableAndDump)(kind) } == cupti::CUPTI_SUCCESS
                // SAFETY: no pointers.
                || note(&format!("kind {kind}"), unsafe { (api.cuptiActivityEnable)(kind) })
            {
                self.kinds.push(kind);
            }
        }
        // SAFETY: no pointers.
        let result = unsafe { (api.cuptiActivityEnable)(KERNELS) };
        if result != cupti::CUPTI_SUCCESS {
            return Err(Absent::Refused { call: "cuptiActivityEnable", code: result });
        }
        self.kinds.push(KERNELS);
        let copies = if options.copies { &COPIES[..] } else { &[] };
        let calls = if options.calls { &CALLS[..] } else { &[] };
        let markers = if options.nvtx { &[cupti::CUPTI_ACTIVITY_KIND_MARKER][..] } else { &[] };
        let host_nodes =
            if self.version >= HOST_NODES { &[cupti::CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE][..] } else { &[] };
        for &kind in
            [cupti::CUPTI_ACTIVITY_KIND_OVERHEAD].iter().chain(host_nodes).chain(copies).chain(calls).chain(markers)
        {
            // SAFETY: no pointers.
            if note(&format!("kind {kind}"), unsafe { (api.cuptiActivityEnable)(kind) }) {
                self.kinds.push(kind);
            }
        }
        if launches == 0 && options.matching != Matching::Timer {
            self.know_launches_by_id(&mut note);
        }
        Ok(())
    }

    /// Identifies launches by external ids, since there are no callbacks. Such an id comes with the
    /// record of a call, so calls must be recorded as well. Recording single functions (CUDA 12.5)
    /// would be cheaper, but ids have not been seen to come with them.
    fn know_launches_by_id(&mut self, note: &mut dyn FnMut(&str, u32) -> bool) {
        let mut enable = |what: &str, kind: u32| {
            if self.kinds.contains(&kind) {
                return true;
            }
            // SAFETY: no pointers.
            let result = unsafe { (self.shared.api.cuptiActivityEnable)(kind) };
            if note(what, result) {
                self.kinds.push(kind);
            }
            result == cupti::CUPTI_SUCCESS
        };
        if enable("external ids", cupti::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)
            && enable("driver calls", cupti::CUPTI_ACTIVITY_KIND_DRIVER)
        {
            recorder::bracket_launches(callbacks::BRACKET);
        }
    }

    /// Makes CUPTI request buffers from us. The last tool that registers gets all records.
    fn register(&self) -> u32 {
        self.shared.was_registered.store(true, Ordering::Relaxed);
        // Records of earlier launches may go to another tool.
        self.shared.contact.begin_anew(sys::boottime_ns());
        let (request, complete) = (Some(callbacks::on_request as _), Some(callbacks::on_complete as _));
        // SAFETY: both functions live as long as the process.
        unsafe { (self.shared.api.cuptiActivityRegisterCallbacks)(request, complete) }
    }

    /// Takes back what another tool may have taken without subscribing: CUPTI's buffers, and the
    /// recorded kinds. Returns the first answer that is not success.
    pub(super) fn again(&self) -> u32 {
        let api = &self.shared.api;
        set_thread_ids(api, cupti::CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
        // SAFETY: no pointers.
        let enabled = self.kinds.iter().map(|&kind| unsafe { (api.cuptiActivityEnable)(kind) });
        std::iter::once(self.register()).chain(enabled).find(|&code| code != cupti::CUPTI_SUCCESS).unwrap_or_default()
    }

    /// Whether another tool used CUPTI in this process before, and may still use it without a
    /// subscription.
    pub(super) fn took_buffers(&self) -> bool {
        self.had_buffers
    }

    /// Whether CUPTI uses the clock that we gave it.
    pub(super) fn has_our_clock(&self) -> bool {
        self.before.wall_clock
    }

    pub(super) fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// Ends the recording of all kinds, flushes what CUPTI still holds, and unsubscribes. Returns
    /// the result of the flush.
    pub(super) fn end(mut self) -> u32 {
        self.disable();
        // SAFETY: subscribed, and this thread is in no callback.
        unsafe { (self.shared.api.cuptiActivityFlushAll)(cupti::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) }
    }

    fn disable(&mut self) {
        recorder::end_brackets();
        let deadlocks = releases::cupti_fault(self.version, FaultId::DisableDeadlocks).is_some();
        for kind in std::mem::take(&mut self.kinds) {
            if !deadlocks {
                // SAFETY: no pointers.
                unsafe { (self.shared.api.cuptiActivityDisable)(kind) };
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.disable();
        let api = &self.shared.api;
        if let Some(before) = self.before.thread_ids {
            set_thread_ids(api, before);
        }
        // CUPTI's own clock cannot be restored, but it is the wall clock.
        if self.before.wall_clock {
            set_clock(api, wall_clock);
        }
        // SAFETY: the handle is that of this subscription, and is not used again.
        unsafe { (api.cuptiUnsubscribe)(self.handle) };
    }
}

fn thread_ids(api: &cupti_sys::Cupti) -> Option<u32> {
    let mut kind = 0;
    // SAFETY: `kind` is writable.
    let result = unsafe { (api.cuptiGetThreadIdType)(&raw mut kind) };
    (result == cupti::CUPTI_SUCCESS).then_some(kind)
}

fn set_thread_ids(api: &cupti_sys::Cupti, kind: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { (api.cuptiSetThreadIdType)(kind) }
}

/// Makes CUPTI call a function for the time. The library stays mapped, so CUPTI can call it
/// forever.
fn set_clock(api: &cupti_sys::Cupti, clock: unsafe extern "C" fn() -> u64) -> u32 {
    // SAFETY: the function has no preconditions and lives as long as the process.
    unsafe { (api.cuptiActivityRegisterTimestampCallback)(Some(clock)) }
}

extern "C" fn boottime() -> u64 {
    sys::boottime_ns()
}

extern "C" fn wall_clock() -> u64 {
    sys::realtime_ns()
}

/// The tool that holds CUPTI, if the release tells: from CUDA 13.0 on, a second subscriber is given
/// the first one's name.
fn owner(api: &cupti_sys::Cupti, version: u32) -> Option<String> {
    let subscribe = api.cuptiSubscribe_v2?;
    let size = records::subscriber_params_size(version)?;
    let mut name = [0_u8; 128];
    let mut parameters = cupti::CUpti_SubscriberParams {
        structSize: size,
        subscriberName: c"ncclscope".as_ptr(),
        oldSubscriberName: name.as_mut_ptr().cast::<c_char>(),
        oldSubscriberSize: name.len() - 1,
        allowMultipleSubscribers: 0,
        padding: [0; 7],
    };
    let mut handle = ptr::null_mut();
    // SAFETY: the structure and the name buffer are at least as long as their stated sizes.
    let result = unsafe { subscribe(&raw mut handle, Some(callbacks::on_event), ptr::null_mut(), &raw mut parameters) };
    if result == cupti::CUPTI_SUCCESS {
        // CUPTI was given up at this very moment; the next attempt will succeed.
        // SAFETY: the handle is that of the subscription just made.
        unsafe { (api.cuptiUnsubscribe)(handle) };
        return None;
    }
    let name: Vec<u8> = name.into_iter().take_while(|&byte| byte != 0).collect();
    (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned())
}
