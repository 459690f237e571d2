//! Collects records: which ones are wanted, which are incomplete, and how they are returned. Each
//! subscriber that shares has kinds, buffers and losses of its own; the others have one set of
//! them.
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

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use crate::buffers::Buffers;
use crate::process::lock;
use crate::subscriber::Client;
use work::Work;
use worker::start_worker;

pub(crate) use delivery::{
    BufferCallbacks, Complete, CompleteV2, Request, RequestV2, callbacks, flush, register, set_buffers_per_thread,
    take_dropped, write, write_for,
};
pub(crate) use objects::{on_context, on_stream, write_contexts, write_devices, write_streams};
pub(crate) use work::{keep, on_activity, on_queued};
pub(crate) use worker::{StateData, wait_for_round};

/// Kinds as a set of bits.
type Kinds = u64;

#[derive(Default)]
struct Tracer {
    clients: BTreeMap<Client, Share>,
    work: Work,
}

/// What one client wants and has.
#[derive(Default)]
struct Share {
    callbacks: Option<BufferCallbacks>,
    buffers: Buffers,
    enabled: Kinds,
    /// Functions of the driver and the runtime that were selected or deselected individually.
    functions: HashMap<(u32, u32), bool>,
    dropped: u64,
    has_devices: bool,
}

static DELIVERY: Mutex<()> = Mutex::new(());
static PROGRESS: Mutex<()> = Mutex::new(());
static REQUEST: Mutex<()> = Mutex::new(());
static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// The kinds that anybody wants, to be read without a lock.
static ENABLED: AtomicU64 = AtomicU64::new(0);
/// Whether a function was ever selected individually.
static SELECTED: AtomicBool = AtomicBool::new(false);
/// Whether the machine reports work when it is queued.
static TELLS_QUEUED: AtomicBool = AtomicBool::new(false);

pub(crate) static ZEROED_BUFFERS: AtomicBool = AtomicBool::new(false);

fn with<T>(use_it: impl FnOnce(&mut Tracer) -> T) -> T {
    use_it(lock(&TRACER).get_or_insert_default())
}

fn with_share<T>(client: Client, use_it: impl FnOnce(&mut Share) -> T) -> T {
    with(|tracer| use_it(tracer.clients.entry(client).or_default()))
}

impl Share {
    fn wants(&self, kind: u32) -> bool {
        self.enabled & 1 << kind != 0
    }

    fn wants_call(&self, kind: u32, function: u32) -> bool {
        self.functions.get(&(kind, function)).copied().unwrap_or_else(|| self.wants(kind))
    }
}

impl Tracer {
    fn has_full(&self) -> bool {
        self.clients.values().any(|share| share.buffers.has_full())
    }

    fn publish(&self) {
        let all = self.clients.values().fold(0, |all, share| all | share.enabled);
        ENABLED.store(all, Ordering::Relaxed);
    }
}

/// Those who want records of this kind.
pub(crate) fn wanting(kind: u32) -> Vec<Client> {
    if ENABLED.load(Ordering::Relaxed) & (1 << kind) == 0 {
        return Vec::new();
    }
    wanting_by(|share| share.wants(kind))
}

/// Those who want the record of a call: of its kind, or of that function.
pub(crate) fn wanting_call(kind: u32, function: u32) -> Vec<Client> {
    if !SELECTED.load(Ordering::Relaxed) {
        return wanting(kind);
    }
    wanting_by(|share| share.wants_call(kind, function))
}

fn wanting_by(wants: impl Fn(&Share) -> bool) -> Vec<Client> {
    with(|tracer| tracer.clients.iter().filter(|(_, share)| wants(share)).map(|(client, _)| *client).collect())
}

/// Enables or disables records of a kind.
pub(crate) fn want(client: Client, kind: u32, wanted: bool) {
    let bit = 1 << kind;
    with(|tracer| {
        let share = tracer.clients.entry(client).or_default();
        if wanted {
            share.enabled |= bit;
            // Choosing a whole kind overrides earlier choices of single functions.
            share.functions.retain(|(of, _), _| *of != kind);
        } else {
            share.enabled &= !bit;
        }
        tracer.publish();
    });
    start_worker();
}

/// Selects or deselects the records of one function.
pub(crate) fn want_function(client: Client, kind: u32, function: u32, wanted: bool) {
    with_share(client, |share| share.functions.insert((kind, function), wanted));
    SELECTED.store(true, Ordering::Relaxed);
    start_worker();
}

/// A subscriber that shared is gone, with what it wanted. Its buffers are never returned.
pub(crate) fn forget(client: Client) {
    with(|tracer| {
        tracer.clients.remove(&client);
        tracer.publish();
    });
}
