//! Our subscription to CUPTI: what is requested, and in which order it is given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cupti_sys::bindings as cupti;

use super::callbacks::{self, COPYING, LAUNCHES, STATES};
use super::share::Subscriber;
use super::shared::Shared;
use super::{Absent, Options, graphs};
use crate::config::Matching;
use crate::record::recorder;
use crate::releases::{self, FaultId};
use crate::sys;

/// The release that added CUPTI's reports of its own failures.
const STATE_DOMAIN: u32 = 20;
/// The release that added reports of what an update makes of nodes (its header).
const UPDATES: u32 = 130_000;
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
    /// Also kept by whoever reads its buffers, if it shares CUPTI.
    subscriber: Arc<Subscriber>,
    /// How often CUPTI had detached itself before.
    detached: u64,
    version: u32,
    kinds: Vec<u32>,
    /// The enabled callbacks: domain and id.
    callbacks: Vec<(u32, u32)>,
    /// Settings of the whole process, as they were before.
    before: Before,
}

/// Settings of the whole process that the next owner of CUPTI must find as they were.
#[derive(Default)]
struct Before {
    thread_ids: Option<u32>,
    /// CUPTI's clock was the wall clock, and we replaced it.
    wall_clock: bool,
}

impl Subscription {
    /// Subscribes and enables what the options request. Optional parts that CUPTI refuses are added
    /// to `refused`. Also returns why CUPTI is not shared although it should be.
    pub(super) fn start(
        shared: &'static Shared,
        version: u32,
        options: &Options,
        refused: &mut Vec<String>,
    ) -> Result<(Subscription, Option<String>), Absent> {
        // Before anything that affects the whole process: if another tool holds CUPTI, nothing of
        // its is changed.
        let detached = shared.fatal.load(Ordering::Relaxed);
        let (subscriber, unshared) = Subscriber::new(shared, version, options.sharing)?;
        let mut subscription = Subscription {
            shared,
            subscriber: Arc::new(subscriber),
            detached,
            version,
            kinds: Vec::new(),
            callbacks: Vec::new(),
            before: Before::default(),
        };
        subscription.ask(options, refused)?;
        Ok((subscription, unshared))
    }

    fn ask(&mut self, options: &Options, refused: &mut Vec<String>) -> Result<(), Absent> {
        let subscriber = &*Arc::clone(&self.subscriber);
        let mut note = |what: &str, result: u32| {
            if result != cupti::CUPTI_SUCCESS {
                refused.push(format!("{what}: {}", super::absent::error_name(result)));
            }
            result == cupti::CUPTI_SUCCESS
        };
        self.before = Before { thread_ids: subscriber.thread_ids(), wall_clock: false };
        // Before the first kind is enabled: records under way keep the clock they had. A clock of
        // one subscriber among several is new in CUDA 13.4, and CUPTI's own will do.
        self.before.wall_clock = options.boottime
            && !subscriber.shares()
            && note("a clock of our own", set_clock(&self.shared.api, boottime));
        note("system thread ids", subscriber.set_thread_ids(cupti::CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
        let result = self.register();
        if result != cupti::CUPTI_SUCCESS {
            return Err(Absent::Refused { call: "cuptiActivityRegisterCallbacks", code: result });
        }
        let reports_launches = self.enable_callbacks(options, &mut note);
        self.enable_kinds(options, &mut note)?;
        if !reports_launches && options.matching != Matching::Timer {
            self.know_launches_by_id(&mut note);
        }
        Ok(())
    }

    /// Returns whether launches are reported.
    fn enable_callbacks(&mut self, options: &Options, note: &mut dyn FnMut(&str, u32) -> bool) -> bool {
        // Where there is no word for them, refusals lose nothing.
        let mut enable = |what: Option<&str>, domain: u32, ids: &[u32]| {
            let mut enabled = 0;
            for &id in ids {
                let result = self.subscriber.enable_callback(true, domain, id);
                let is_on = match what {
                    Some(what) => note(&format!("{what} (callback {id})"), result),
                    None => result == cupti::CUPTI_SUCCESS,
                };
                if is_on {
                    self.callbacks.push((domain, id));
                    enabled += 1;
                }
            }
            enabled
        };
        let launches = match options.matching {
            Matching::All => enable(Some("launches"), cupti::CUPTI_CB_DOMAIN_DRIVER_API, &LAUNCHES),
            Matching::External | Matching::Timer => 0,
        };
        if options.matching != Matching::Timer {
            enable(Some("graph nodes"), cupti::CUPTI_CB_DOMAIN_RESOURCE, &graphs::NODES);
            enable(Some("graph launches"), cupti::CUPTI_CB_DOMAIN_DRIVER_API, &graphs::LAUNCHES);
            // Releases without a function refuse it.
            enable(None, cupti::CUPTI_CB_DOMAIN_DRIVER_API, &graphs::INSTANTIATIONS);
            let updates = if self.version >= UPDATES { &graphs::UPDATES[..] } else { &[] };
            let enabled = enable(Some("graph updates"), cupti::CUPTI_CB_DOMAIN_RESOURCE, updates);
            let reports_updates = enabled == graphs::UPDATES.len();
            self.shared.reports_updates.store(reports_updates, Ordering::Relaxed);
            enable(None, cupti::CUPTI_CB_DOMAIN_DRIVER_API, &graphs::CHANGES);
            if !reports_updates {
                enable(None, cupti::CUPTI_CB_DOMAIN_DRIVER_API, &graphs::KERNEL_CHANGES);
            }
        }
        if options.copies {
            enable(None, cupti::CUPTI_CB_DOMAIN_DRIVER_API, &COPYING);
        }
        if self.version >= STATE_DOMAIN {
            enable(Some("reports of its own failures"), cupti::CUPTI_CB_DOMAIN_STATE, &STATES);
        }
        launches > 0
    }

    fn enable_kinds(&mut self, options: &Options, note: &mut dyn FnMut(&str, u32) -> bool) -> Result<(), Absent> {
        let subscriber = &*self.subscriber;
        for kind in OBJECTS {
            if subscriber.enable_and_dump(kind) == cupti::CUPTI_SUCCESS
                || note(&format!("kind {kind}"), subscriber.enable(kind))
            {
                self.kinds.push(kind);
            }
        }
        let result = subscriber.enable(KERNELS);
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
            if note(&format!("kind {kind}"), subscriber.enable(kind)) {
                self.kinds.push(kind);
            }
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
            let result = self.subscriber.enable(kind);
            if note(what, result) {
                self.kinds.push(kind);
            }
            result == cupti::CUPTI_SUCCESS
        };
        if enable("external ids", cupti::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)
            && enable("driver calls", cupti::CUPTI_ACTIVITY_KIND_DRIVER)
        {
            self.subscriber.open_door();
            recorder::bracket_launches(callbacks::BRACKET);
        }
    }

    /// Makes CUPTI request buffers from us. The last tool that registers gets all records.
    fn register(&self) -> u32 {
        // Records of earlier launches may go to another tool.
        self.shared.contact.begin_anew(sys::boottime_ns());
        self.subscriber.register()
    }

    /// Takes back what another tool may have taken without subscribing: CUPTI's buffers, and the
    /// recorded kinds. Returns the first answer that is not success.
    pub(super) fn again(&self) -> u32 {
        self.subscriber.set_thread_ids(cupti::CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
        let enabled = self.kinds.iter().map(|&kind| self.subscriber.enable(kind));
        std::iter::once(self.register()).chain(enabled).find(|&code| code != cupti::CUPTI_SUCCESS).unwrap_or_default()
    }

    /// Whether CUPTI uses the clock that we gave it.
    pub(super) fn has_our_clock(&self) -> bool {
        self.before.wall_clock
    }

    /// Whether it stops the recording of kernels when it is given up. In one release disabling
    /// kernels deadlocks.
    pub(super) fn stops(&self) -> bool {
        releases::cupti_fault(self.version, FaultId::DisableDeadlocks).is_none()
    }

    pub(super) fn shared(&self) -> &'static Shared {
        self.shared
    }

    /// How often CUPTI had detached itself before this subscription.
    pub(super) fn detached(&self) -> u64 {
        self.detached
    }

    /// What speaks to CUPTI.
    pub(super) fn subscriber(&self) -> &Arc<Subscriber> {
        &self.subscriber
    }

    /// Ends the recording of all kinds, flushes what CUPTI still holds, and unsubscribes; if CUPTI
    /// is shared, that happens when its buffers were read. Returns the result of the flush.
    ///
    /// Unless the process ends, other subscribers are spared a forced flush: it would take from
    /// them the records of kernels that have not ended.
    pub(super) fn end(mut self, process_ends: bool) -> u32 {
        /// Flushes, and the time between them.
        const TRIES: u32 = 5;
        const REST: Duration = Duration::from_millis(20);
        self.disable();
        if !self.subscriber.shares() || process_ends {
            return self.subscriber.flush(cupti::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        }
        let mut result = self.subscriber.flush(0);
        for _ in 1..TRIES {
            if self.shared.pool.room() == 0 {
                break;
            }
            std::thread::sleep(REST);
            result = self.subscriber.flush(0);
        }
        result
    }

    fn disable(&mut self) {
        recorder::end_brackets();
        for kind in std::mem::take(&mut self.kinds) {
            if self.stops() {
                self.subscriber.disable(kind);
            }
        }
        // Otherwise they end right after this, with the subscription.
        let callbacks = std::mem::take(&mut self.callbacks).into_iter();
        for (domain, id) in callbacks.filter(|_| self.subscriber.shares()) {
            self.subscriber.enable_callback(false, domain, id);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.disable();
        if let Some(before) = self.before.thread_ids {
            self.subscriber.set_thread_ids(before);
        }
        // CUPTI's own clock cannot be restored, but it is the wall clock.
        if self.before.wall_clock {
            set_clock(&self.shared.api, wall_clock);
        }
    }
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
