//! The GPU's work: what was queued, and the records of what is done.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use observe::{Activity, ActivityKind, Machine};

use super::delivery::{begin, write_for};
use super::{ENABLED, PROGRESS, Share, TELLS_QUEUED, Tracer, WORK, with};
use crate::buffers::Slot;
use crate::layout::kind;
use crate::process::{self, lock};
use crate::records::{self, Timing};
use crate::subscriber::Client;
use crate::{clock, objects, subscriber};

/// Identifies the record of running work when it is done.
type Key = (u32, u64, u32);

/// Work that was given to the GPU, and work that is done.
#[derive(Default)]
pub(super) struct Work {
    /// The places of records of running work, without those that were dropped.
    under_way: HashMap<Key, VecDeque<Vec<Place>>>,
    pub(super) done: VecDeque<Done>,
    /// Kernels that wait for the next kernel of their stream, to swap correlation ids with it.
    to_swap: Option<Finished>,
}

/// Where a record is, whose it is, and its kind.
#[derive(Clone, Copy)]
struct Place {
    client: Client,
    slot: Slot,
    kind: u32,
}

/// Work that the GPU has done; its name is kept forever.
pub(super) struct Done {
    activity: Activity,
    name: *const c_char,
    at: u64,
}

// SAFETY: the pointers in it are to names that are never freed.
unsafe impl Send for Done {}

/// Finished work, and the content of its record.
struct Finished {
    activity: Activity,
    name: *const c_char,
    places: Vec<Place>,
    timing: Timing,
}

// SAFETY: as above.
unsafe impl Send for Finished {}

/// The kind of record that a client wants of the GPU's work, if any.
fn kind_of(activity: &Activity, share: &Share) -> Option<u32> {
    let candidates: &[u32] = match activity.kind {
        ActivityKind::Kernel => &[kind::CONCURRENT_KERNEL, kind::KERNEL],
        ActivityKind::Memcpy if activity.peer != activity.device => &[kind::MEMCPY2],
        ActivityKind::Memcpy => &[kind::MEMCPY],
        ActivityKind::Memset => &[kind::MEMSET],
        ActivityKind::HostNode if activity.node_id != 0 => &[kind::GRAPH_HOST_NODE],
        ActivityKind::HostNode => &[kind::HOST_LAUNCH],
    };
    candidates.iter().copied().find(|kind| share.wants(*kind))
}

/// Who wants a record of the GPU's work, and of which kind.
fn wanted(activity: &Activity, tracer: &Tracer) -> Vec<(Client, u32)> {
    tracer.clients.iter().filter_map(|(client, share)| Some((*client, kind_of(activity, share)?))).collect()
}

fn key(activity: &Activity) -> Key {
    (activity.correlation, activity.node_id, activity.kind as u32)
}

/// This thread has given work to the GPU.
pub(crate) fn on_queued(activity: &Activity) {
    TELLS_QUEUED.store(true, Ordering::Relaxed);
    if process::attached().is_none() {
        return;
    }
    let wanted = with(|tracer| wanted(activity, tracer));
    if wanted.is_empty() {
        return;
    }
    let timing = Timing { start: 0, end: 0 };
    // SAFETY: the machine passes null or a C string.
    let name = unsafe { keep(activity.name) };
    let source = objects::origin(activity.node_id);
    let place = |(client, kind)| {
        let record = records::activity(kind, process::options().release, activity, timing, name, source);
        begin(client, record.as_ref(), false).map(|slot| Place { client, slot, kind })
    };
    let places = wanted.into_iter().filter_map(place).collect();
    with(|tracer| tracer.work.under_way.entry(key(activity)).or_default().push_back(places));
}

/// The GPU has finished work. Runs on a thread of the machine, which must not be delayed.
pub(crate) fn on_activity(activity: &Activity) {
    if ENABLED.load(Ordering::Relaxed) == 0 && with(|tracer| tracer.work.under_way.is_empty()) {
        return;
    }
    let at = process::attached().map_or(activity.end, |machine| (machine.now)());
    // SAFETY: the machine passes null or a C string.
    let name = unsafe { keep(activity.name) };
    with(|tracer| {
        tracer.work.done.push_back(Done { activity: Activity { name, ..*activity }, name, at });
        if tracer.work.done.len() == 1 {
            WORK.notify_one();
        }
    });
}

/// Completes the records of finished work; with the option `late`, only those that are due, unless
/// `all`.
pub(super) fn catch_up(machine: &Machine, all: bool) {
    let _one = lock(&PROGRESS);
    let late = process::options().late;
    loop {
        let done = with(|tracer| {
            let due = |done: &Done| all || late == 0 || done.at + late <= (machine.now)();
            if due(tracer.work.done.front()?) { tracer.work.done.pop_front() } else { None }
        });
        let Some(done) = done else { break };
        finish(machine, &done);
    }
    if all && let Some(alone) = with(|tracer| tracer.work.to_swap.take()) {
        complete(&alone);
    }
}

/// Completes the record of finished work.
fn finish(machine: &Machine, done: &Done) {
    let activity = &done.activity;
    let (start, end) = times(machine, activity);
    let timing = Timing { start, end };
    let under_way = with(|tracer| {
        let key = key(activity);
        let waiting = tracer.work.under_way.get_mut(&key)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            tracer.work.under_way.remove(&key);
        }
        first
    });
    match under_way {
        Some(places) if places.is_empty() => {}
        Some(places) => complete_or_swap(Finished { activity: *activity, name: done.name, places, timing }),
        // It was launched before CUPTI was listening, so the real library would not have
        // instrumented it.
        None if TELLS_QUEUED.load(Ordering::Relaxed) => {}
        None => {
            for (client, kind) in with(|tracer| wanted(activity, tracer)) {
                let source = objects::origin(activity.node_id);
                let release = process::options().release;
                write_for(client, records::activity(kind, release, activity, timing, done.name, source));
            }
        }
    }
}

/// Completes records with the values that were missing.
fn complete(finished: &Finished) {
    let Finished { activity, name, places, timing } = finished;
    let source = objects::origin(activity.node_id);
    let (activity, name) = (&Activity { correlation: launch_told(activity), ..*activity }, name_told(*name));
    for place in places {
        let record = records::activity(place.kind, process::options().release, activity, *timing, name, source);
        with(|tracer| {
            // Its client may be gone.
            if let (Some(share), Some(record)) = (tracer.clients.get_mut(&place.client), record) {
                share.buffers.complete(place.slot, record.as_bytes());
            }
        });
    }
}

/// The launch that a record names: that of the previous graph if the options ask for it.
fn launch_told(activity: &Activity) -> u32 {
    /// The last two launches of graphs in records, the earlier one first.
    static LAUNCHES: Mutex<(u32, u32)> = Mutex::new((0, 0));
    if !process::options().confuse || activity.node_id == 0 || subscriber::sessions() < 2 {
        return activity.correlation;
    }
    let mut launches = lock(&LAUNCHES);
    if launches.1 != activity.correlation {
        *launches = (launches.1, activity.correlation);
    }
    if launches.0 == 0 { activity.correlation } else { launches.0 }
}

/// The name in a record: that of the application's last kernel if the options ask for it.
fn name_told(name: *const c_char) -> *const c_char {
    static BEFORE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    let share = process::options().rename;
    if name.is_null() || share <= 0.0 {
        return name;
    }
    // NCCL's modules stay loaded; only others are unloaded.
    if !is_nccl(name) {
        BEFORE.store(name.cast_mut(), Ordering::Relaxed);
    }
    let before = BEFORE.load(Ordering::Relaxed);
    if !before.is_null() && process::happens(share) { before } else { name }
}

/// Like [`complete`], but some of NCCL's kernels wait for the next one of their stream, to swap
/// correlation ids with it.
fn complete_or_swap(mut finished: Finished) {
    let share = process::options().swap;
    if share <= 0.0 || !can_swap(&finished) {
        complete(&finished);
        return;
    }
    let stream = |it: &Finished| (it.activity.device, it.activity.context_id, it.activity.stream_id);
    let waiting = with(|tracer| tracer.work.to_swap.take_if(|waiting| stream(waiting) == stream(&finished)));
    match waiting {
        Some(mut first) => {
            std::mem::swap(&mut first.activity.correlation, &mut finished.activity.correlation);
            complete(&first);
            complete(&finished);
        }
        None if with(|tracer| tracer.work.to_swap.is_none()) && process::happens(share) => {
            with(|tracer| tracer.work.to_swap = Some(finished));
        }
        None => complete(&finished),
    }
}

/// Whether this is an NCCL kernel outside of graphs.
fn can_swap(finished: &Finished) -> bool {
    let is_kernel = finished.activity.kind == ActivityKind::Kernel && finished.activity.node_id == 0;
    is_kernel && !finished.name.is_null() && is_nccl(finished.name)
}

/// Whether this name, which is kept forever and not null, is one of NCCL's.
fn is_nccl(name: *const c_char) -> bool {
    const NCCL: &[u8] = b"nccl";
    // SAFETY: not null, and kept forever.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    name.windows(NCCL.len()).any(|part| part == NCCL)
}

/// The work's times in CUPTI's time, or wrong ones if the options ask for that.
fn times(machine: &Machine, activity: &Activity) -> (u64, u64) {
    let options = process::options();
    if process::happens(options.zero) {
        return (0, 0);
    }
    static KERNELS: AtomicU64 = AtomicU64::new(0);
    let is_kernel = activity.kind == ActivityKind::Kernel;
    let kernels = KERNELS.fetch_add(u64::from(is_kernel), Ordering::Relaxed);
    let skew = if kernels >= options.skew_after { options.skew } else { 0 };
    let off = |at| skew + clock::conversion(options.conversion, options.seed, at);
    // A thread that is interrupted while it compares two clocks gets a time that is too late. If
    // the begin is after the end again and again, the wall clock was set back in between.
    let stamps = || (clock::stamp(machine, activity.start), clock::stamp(machine, activity.end));
    let (start, end) = (0..5).map(|_| stamps()).find(|(start, end)| start <= end).unwrap_or_else(stamps);
    let times = (start.wrapping_add_signed(off(activity.start)), end.wrapping_add_signed(off(activity.end)));
    if is_kernel && kernels >= options.exhaust {
        return if kernels.is_multiple_of(2) { (0, 0) } else { (times.1 + 1, times.0) };
    }
    times
}

/// Keeps a name forever, because records point to it.
///
/// # Safety
///
/// `name` is null or a C string.
pub(crate) unsafe fn keep(name: *const c_char) -> *const c_char {
    static NAMES: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    if name.is_null() {
        return name;
    }
    // SAFETY: not null, and the caller promises a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let mut names = lock(&NAMES);
    let names = names.get_or_insert_default();
    if let Some(kept) = names.get(name) {
        return kept.as_ptr();
    }
    let kept: &'static CStr = Box::leak(CString::from(name).into_boxed_c_str());
    names.insert(kept);
    kept.as_ptr()
}
