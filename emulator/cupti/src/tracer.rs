//! Collects records: which ones are wanted, which are incomplete, and how they are returned.
//!
//! There are four locks, always taken in this order. The last one is never held while a function
//! of the caller's runs:
//!
//! - `DELIVERY`: buffers are returned one after the other, by the worker or by a thread that
//!   flushes.
//! - `PROGRESS`: only one of those at a time processes finished work, so that a flush never finds
//!   it half processed.
//! - `REQUEST`: one buffer is requested at a time.
//! - `TRACER`: everything else.
//!
//! A call's record is written on the thread that makes it. The record of the GPU's work is begun
//! there too, when the work is launched. The machine's own threads queue finished work. CUPTI's
//! worker empties that queue every few milliseconds, and so does a thread that flushes.

mod delivery;
mod objects;
mod work;
mod worker;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::buffers::Buffers;
use crate::process::lock;
use work::Work;
use worker::start_worker;

pub(crate) use delivery::{
    BufferCallbacks, Complete, CompleteV2, Request, RequestV2, flush, has_buffers_per_thread, register,
    set_buffers_per_thread, take_dropped, write,
};
pub(crate) use objects::{on_context, on_stream, write_contexts, write_devices, write_streams};
pub(crate) use work::{keep, on_activity, on_queued};
pub(crate) use worker::{set_period, wait_for_round};

/// Kinds as a set of bits.
type Kinds = u64;

struct Tracer {
    callbacks: Option<BufferCallbacks>,
    buffers: Buffers,
    enabled: Kinds,
    /// Kinds that were enabled or disabled for one context, which override the rest: the kinds,
    /// and which of them are on.
    contexts: HashMap<u32, (Kinds, Kinds)>,
    /// Functions of the driver and the runtime that were selected or deselected individually.
    functions: HashMap<(u32, u32), bool>,
    work: Work,
    dropped: u64,
    period: Option<Duration>,
    /// When the worker last returned full buffers.
    returned_at: Instant,
    has_devices: bool,
}

static DELIVERY: Mutex<()> = Mutex::new(());
static PROGRESS: Mutex<()> = Mutex::new(());
static REQUEST: Mutex<()> = Mutex::new(());
static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// The kinds that are enabled for any context, to be read without a lock.
static ENABLED: AtomicU64 = AtomicU64::new(0);
/// Whether a function was ever selected individually.
static SELECTED: AtomicBool = AtomicBool::new(false);
/// Whether the machine reports work when it is queued.
static TELLS_QUEUED: AtomicBool = AtomicBool::new(false);

/// Whether the caller wants latency timestamps.
pub(crate) static LATENCY: AtomicBool = AtomicBool::new(false);
pub(crate) static ZEROED_BUFFERS: AtomicBool = AtomicBool::new(false);

fn with<T>(use_it: impl FnOnce(&mut Tracer) -> T) -> T {
    use_it(lock(&TRACER).get_or_insert_with(Tracer::new))
}

impl Tracer {
    fn new() -> Tracer {
        Tracer {
            callbacks: None,
            buffers: Buffers::new(),
            enabled: 0,
            contexts: HashMap::new(),
            functions: HashMap::new(),
            work: Work::default(),
            dropped: 0,
            period: None,
            returned_at: Instant::now(),
            has_devices: false,
        }
    }

    fn wants(&self, kind: u32, context: u32) -> bool {
        let bit = 1 << kind;
        let (chosen, on) = self.contexts.get(&context).copied().unwrap_or_default();
        (if chosen & bit != 0 { on } else { self.enabled }) & bit != 0
    }

    /// How long the worker's period still lasts, if one was set.
    fn time_left(&self) -> Option<Duration> {
        self.period.map(|period| period.saturating_sub(self.returned_at.elapsed()))
    }

    fn publish(&self) {
        let anywhere = self.contexts.values().fold(self.enabled, |all, (_, on)| all | on);
        ENABLED.store(anywhere, Ordering::Relaxed);
    }
}

/// Whether records of this kind are wanted from a context.
pub(crate) fn is_wanted(kind: u32, context: u32) -> bool {
    ENABLED.load(Ordering::Relaxed) & (1 << kind) != 0 && with(|tracer| tracer.wants(kind, context))
}

/// Whether the record of a call is wanted: the kind's, or that function's.
pub(crate) fn is_call_wanted(kind: u32, function: u32, context: u32) -> bool {
    if SELECTED.load(Ordering::Relaxed) {
        let chosen = with(|tracer| tracer.functions.get(&(kind, function)).copied());
        if let Some(chosen) = chosen {
            return chosen;
        }
    }
    is_wanted(kind, context)
}

/// Enables or disables records of a kind, for everything or for one context.
pub(crate) fn want(kind: u32, context: Option<u32>, wanted: bool) {
    let bit = 1 << kind;
    let set = |kinds: &mut Kinds| if wanted { *kinds |= bit } else { *kinds &= !bit };
    with(|tracer| {
        match context {
            Some(context) => {
                let (chosen, on) = tracer.contexts.entry(context).or_default();
                *chosen |= bit;
                set(on);
            }
            None => {
                set(&mut tracer.enabled);
                // Choosing a whole kind overrides earlier choices of single functions.
                if wanted {
                    tracer.functions.retain(|(of, _), _| *of != kind);
                }
            }
        }
        tracer.publish();
    });
    start_worker();
}

/// Selects or deselects the records of one function.
pub(crate) fn want_function(kind: u32, function: u32, wanted: bool) {
    with(|tracer| tracer.functions.insert((kind, function), wanted));
    SELECTED.store(true, Ordering::Relaxed);
    start_worker();
}

/// The kinds that are enabled.
pub(crate) fn enabled_kinds() -> Vec<u32> {
    let enabled = with(|tracer| tracer.enabled);
    (0..u64::BITS).filter(|kind| enabled & (1 << kind) != 0).collect()
}
