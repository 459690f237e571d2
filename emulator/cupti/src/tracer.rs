//! Collecting records: what is wanted, what is under way, and giving it back.
//!
//! Four locks, never taken in another order than this one, and the last one never held while a function of the caller's runs:
//!
//! - `DELIVERY`: buffers go back one after the other, from the worker or from whoever flushes.
//! - `PROGRESS`: what was done is taken in by one of them at a time, so that a flush finds nothing half taken in.
//! - `REQUEST`: one buffer is requested at a time.
//! - `TRACER`: everything else.
//!
//! A call's record is written on the thread that made it. The GPU's work is begun there too, when it is launched; that it is
//! done comes from the machine's own threads into a queue, which CUPTI's worker empties every few milliseconds, or whoever
//! flushes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use observe::{Activity, ActivityKind, Machine};

use crate::buffers::{Buffers, Lane, Memory, Returned, Slot, Take};
use crate::layout::kind;
use crate::names::domain;
use crate::objects::{self, Context, Stream};
use crate::options::State;
use crate::process::{self, Inside, lock};
use crate::records::{self, Record, Timing, overhead};
use crate::release::Release;
use crate::{calls, clock, result, subscriber};

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type Request = unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type Complete =
    unsafe extern "C" fn(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, valid: usize);
/// `CUpti_BuffersCallbackRequestFunc_v2`.
pub(crate) type RequestV2 =
    unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize, info: *mut RequestInfo);
/// `CUpti_BuffersCallbackCompleteFunc_v2`.
pub(crate) type CompleteV2 = unsafe extern "C" fn(buffer: *mut u8, size: usize, valid: usize, info: *mut CompleteInfo);

/// `CUpti_BufferCallbackRequestInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct RequestInfo {
    /// Its own size.
    pub size: usize,
}

/// `CUpti_BufferCallbackCompleteInfo`. There are no user-defined records, hence no layouts.
#[repr(C)]
#[derive(Debug)]
pub struct CompleteInfo {
    /// Its own size.
    pub size: usize,
    /// The thread whose records the buffer holds, or 0.
    pub thread: u64,
    /// The layouts of user-defined records, by kind.
    pub layouts: *const c_void,
    /// How many.
    pub count: usize,
}

/// The caller's functions for buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BufferCallbacks {
    V1(Request, Complete),
    V2(RequestV2, CompleteV2),
}

/// Kinds as a set of bits.
type Kinds = u64;

/// By what the record of something under way is found when it is done.
type Key = (u32, u64, u32);

/// Something that was given to the GPU.
struct UnderWay {
    /// Where its record is; `None` when none is wanted, or it was dropped.
    slot: Option<Slot>,
    kind: u32,
    queued: u64,
    submitted: u64,
}

/// A launch of a graph that is recorded as a whole.
struct GraphLaunch {
    slot: Option<Slot>,
    expected: u32,
    done: u32,
    start: u64,
    end: u64,
}

struct Tracer {
    callbacks: Option<BufferCallbacks>,
    buffers: Buffers,
    enabled: Kinds,
    /// What was enabled or disabled for one context, which goes before the rest: which kinds, and which of them on.
    contexts: HashMap<u32, (Kinds, Kinds)>,
    /// Functions of the driver and of the runtime that were selected or deselected one by one.
    functions: HashMap<(u32, u32), bool>,
    under_way: HashMap<Key, VecDeque<UnderWay>>,
    graphs: HashMap<u32, GraphLaunch>,
    done: VecDeque<Done>,
    /// What waits for the next kernel of its stream, to swap correlation ids with it.
    to_swap: Option<Finished>,
    dropped: u64,
    period: Option<Duration>,
    /// When the worker last returned what was full.
    returned_at: Instant,
    has_devices: bool,
}

/// Something that the GPU has done, with its name kept for good.
struct Done {
    activity: Activity,
    name: *const c_char,
    at: u64,
}

// SAFETY: the pointers in it are to names that live for ever.
unsafe impl Send for Done {}

/// Something that is done, and what its record will say.
struct Finished {
    activity: Activity,
    name: *const c_char,
    slot: Slot,
    kind: u32,
    timing: Timing,
}

// SAFETY: as above.
unsafe impl Send for Finished {}

static DELIVERY: Mutex<()> = Mutex::new(());
static PROGRESS: Mutex<()> = Mutex::new(());
static REQUEST: Mutex<()> = Mutex::new(());
static TRACER: Mutex<Option<Tracer>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// The kinds that are enabled for any context, to look at without a lock.
static ENABLED: AtomicU64 = AtomicU64::new(0);
/// Whether single functions were ever selected.
static SELECTED: AtomicBool = AtomicBool::new(false);
/// Whether the machine tells what it is given before it is done.
static TELLS_QUEUED: AtomicBool = AtomicBool::new(false);

/// Switches of the caller's.
pub(crate) static LATENCY: AtomicBool = AtomicBool::new(false);
pub(crate) static ZEROED_BUFFERS: AtomicBool = AtomicBool::new(false);
/// 0 and 1, or 2 where the release's default holds.
static PER_THREAD: AtomicU64 = AtomicU64::new(2);

/// Whether each thread has a buffer of its own. That is the default from 13.0 on.
pub(crate) fn has_buffers_per_thread() -> bool {
    match PER_THREAD.load(Ordering::Relaxed) {
        2 => process::options().release >= Release::V13_0,
        chosen => chosen == 1,
    }
}

/// Chooses whether each thread has a buffer of its own.
pub(crate) fn set_buffers_per_thread(chosen: bool) {
    PER_THREAD.store(chosen.into(), Ordering::Relaxed);
}

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
            under_way: HashMap::new(),
            graphs: HashMap::new(),
            done: VecDeque::new(),
            to_swap: None,
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

    /// How long the worker's period still lasts, where one was set.
    fn time_left(&self) -> Option<Duration> {
        self.period.map(|period| period.saturating_sub(self.returned_at.elapsed()))
    }

    fn publish(&self) {
        let anywhere = self.contexts.values().fold(self.enabled, |all, (_, on)| all | on);
        ENABLED.store(anywhere, Ordering::Relaxed);
    }
}

// ---------------------------------------------------------------------------------------------- what is wanted

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

/// Wants records of a kind, or no longer; of everything, or of one context.
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
                // Choosing a whole kind overrides what was chosen function by function before.
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

// ---------------------------------------------------------------------------------------------- objects

/// Writes records of all GPUs. They come when the driver is initialised, or with a dump, and are of no use twice.
pub(crate) fn write_devices(machine: &Machine, again: bool) {
    let first = with(|tracer| !std::mem::replace(&mut tracer.has_devices, true));
    if !first && !again {
        return;
    }
    for ordinal in 0..(machine.devices)() {
        let mut gpu = std::mem::MaybeUninit::zeroed();
        if (machine.describe)(ordinal, gpu.as_mut_ptr()) {
            // SAFETY: the machine said that it filled it in, and zeroes are a valid value anyhow.
            let gpu: observe::Gpu = unsafe { gpu.assume_init() };
            // SAFETY: the name ends in a zero, and the description lives meanwhile.
            let name = unsafe { keep(gpu.name.as_ptr()) };
            write(records::device(process::options().release, ordinal, &gpu, name));
        }
    }
}

/// Writes the records of all contexts.
pub(crate) fn write_contexts() {
    objects::contexts().into_iter().for_each(on_context);
}

/// Writes the records of all streams. The call that made each is not known any more.
pub(crate) fn write_streams() {
    for stream in objects::streams() {
        on_stream(stream, 0);
    }
}

/// A context was created.
pub(crate) fn on_context(context: Context) {
    if is_wanted(kind::CONTEXT, context.id) {
        let release = process::options().release;
        write(records::context(release, context.id, context.device, observe::DEFAULT_STREAM_ID));
    }
}

/// A stream was created.
pub(crate) fn on_stream(stream: Stream, correlation: u32) {
    if is_wanted(kind::STREAM, stream.context) {
        let release = process::options().release;
        write(records::stream(release, stream.context, stream.id, correlation));
    }
}

// ---------------------------------------------------------------------------------------------- the GPU's work

/// The kind of record that something of the GPU's leads to, if one is wanted.
fn kind_of(activity: &Activity, tracer: &Tracer) -> Option<u32> {
    let candidates: &[u32] = match activity.kind {
        ActivityKind::Kernel => &[kind::CONCURRENT_KERNEL, kind::KERNEL],
        ActivityKind::Memcpy if activity.peer != activity.device => &[kind::MEMCPY2],
        ActivityKind::Memcpy => &[kind::MEMCPY],
        ActivityKind::Memset => &[kind::MEMSET],
        ActivityKind::HostNode if activity.node_id != 0 => &[kind::GRAPH_HOST_NODE],
        ActivityKind::HostNode => &[kind::HOST_LAUNCH],
    };
    candidates.iter().copied().find(|kind| tracer.wants(*kind, activity.context_id))
}

/// Whether something is a node of a graph whose launches are recorded as a whole.
fn is_part_of_trace(activity: &Activity, tracer: &Tracer) -> bool {
    activity.node_id != 0 && tracer.wants(kind::GRAPH_TRACE, activity.context_id)
}

fn key(activity: &Activity) -> Key {
    (activity.correlation, activity.node_id, activity.kind as u32)
}

/// The GPU was given something, by this thread.
pub(crate) fn on_queued(activity: &Activity) {
    TELLS_QUEUED.store(true, Ordering::Relaxed);
    let Some(machine) = process::attached() else { return };
    let release = process::options().release;
    let (is_graph, of_kind) = with(|tracer| (is_part_of_trace(activity, tracer), kind_of(activity, tracer)));
    if is_graph {
        on_queued_in_graph(activity, release);
        return;
    }
    let Some(of_kind) = of_kind else { return };
    let latency = LATENCY.load(Ordering::Relaxed);
    let mut under_way = UnderWay {
        slot: None,
        kind: of_kind,
        queued: if latency { calls::began(activity.correlation) } else { 0 },
        submitted: if latency { clock::now(machine) } else { 0 },
    };
    let timing = Timing { start: 0, end: 0, queued: under_way.queued, submitted: under_way.submitted };
    // SAFETY: the machine passes null or a C string.
    let name = unsafe { keep(activity.name) };
    let source = objects::origin(activity.node_id);
    under_way.slot = begin(records::activity(of_kind, release, activity, timing, name, source), false);
    with(|tracer| tracer.under_way.entry(key(activity)).or_default().push_back(under_way));
}

/// The GPU was given a node of a graph that is recorded as a whole: the first one begins the record.
fn on_queued_in_graph(activity: &Activity, release: Release) {
    let is_first = with(|tracer| match tracer.graphs.get_mut(&activity.correlation) {
        Some(launch) => {
            launch.expected += 1;
            false
        }
        None => true,
    });
    if is_first {
        let slot = begin(records::graph_trace(release, activity, 0, 0), false);
        let launch = GraphLaunch { slot, expected: 1, done: 0, start: u64::MAX, end: 0 };
        with(|tracer| tracer.graphs.insert(activity.correlation, launch));
    }
}

/// The GPU has done something. Runs on a thread of the machine, which is not to be kept.
pub(crate) fn on_activity(activity: &Activity) {
    if ENABLED.load(Ordering::Relaxed) == 0 && with(|tracer| tracer.under_way.is_empty()) {
        return;
    }
    let at = process::attached().map_or(activity.end, |machine| (machine.now)());
    // SAFETY: the machine passes null or a C string.
    let name = unsafe { keep(activity.name) };
    with(|tracer| {
        tracer.done.push_back(Done { activity: Activity { name, ..*activity }, name, at });
        if tracer.done.len() == 1 {
            WORK.notify_one();
        }
    });
}

/// Completes the records of what was done; of late things only those that are due, unless `all`.
fn catch_up(machine: &Machine, all: bool) {
    let _one = lock(&PROGRESS);
    let late = process::options().late;
    loop {
        let done = with(|tracer| {
            let due = |done: &Done| all || late == 0 || done.at + late <= (machine.now)();
            if due(tracer.done.front()?) { tracer.done.pop_front() } else { None }
        });
        let Some(done) = done else { break };
        finish(machine, &done);
    }
    if all && let Some(alone) = with(|tracer| tracer.to_swap.take()) {
        complete(&alone);
    }
}

/// Completes the record of something that was done.
fn finish(machine: &Machine, done: &Done) {
    let activity = &done.activity;
    let (start, end) = times(machine, activity);
    if activity.node_id != 0 && finish_in_graph(activity, start, end) {
        return;
    }
    let under_way = with(|tracer| {
        let key = key(activity);
        let waiting = tracer.under_way.get_mut(&key)?;
        let first = waiting.pop_front();
        if waiting.is_empty() {
            tracer.under_way.remove(&key);
        }
        first
    });
    match under_way {
        Some(UnderWay { slot: Some(slot), kind, queued, submitted }) => {
            let timing = Timing { start, end, queued, submitted };
            complete_or_swap(Finished { activity: *activity, name: done.name, slot, kind, timing });
        }
        Some(UnderWay { slot: None, .. }) => {}
        // It was launched before CUPTI listened: the real one has not instrumented it.
        None if TELLS_QUEUED.load(Ordering::Relaxed) => {}
        None => {
            if let Some(kind) = with(|tracer| kind_of(activity, tracer)) {
                let timing = Timing { start, end, queued: 0, submitted: 0 };
                let source = objects::origin(activity.node_id);
                write(records::activity(kind, process::options().release, activity, timing, done.name, source));
            }
        }
    }
}

/// Writes what was missing in a record.
fn complete(finished: &Finished) {
    let Finished { activity, name, slot, kind, timing } = finished;
    let source = objects::origin(activity.node_id);
    let (activity, name) = (&Activity { correlation: launch_told(activity), ..*activity }, name_told(*name));
    if let Some(record) = records::activity(*kind, process::options().release, activity, *timing, name, source) {
        with(|tracer| tracer.buffers.complete(*slot, record.as_bytes()));
    }
}

/// The launch that a record names: that of the graph before, where the options ask for that.
fn launch_told(activity: &Activity) -> u32 {
    /// The launches of graphs of the last records, that before the last and the last.
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

/// The name that a record has: where the options ask for that, that of the application's last.
fn name_told(name: *const c_char) -> *const c_char {
    static BEFORE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
    let share = process::options().rename;
    if name.is_null() || share <= 0.0 {
        return name;
    }
    // NCCL's modules stay: it is others that are unloaded.
    if !is_nccl(name) {
        BEFORE.store(name.cast_mut(), Ordering::Relaxed);
    }
    let before = BEFORE.load(Ordering::Relaxed);
    if !before.is_null() && process::happens(share) { before } else { name }
}

/// As [`complete`], but some kernels of NCCL's wait for the next one of their stream, with which they swap correlation ids.
fn complete_or_swap(mut finished: Finished) {
    let share = process::options().swap;
    if share <= 0.0 || !can_swap(&finished) {
        complete(&finished);
        return;
    }
    let stream = |it: &Finished| (it.activity.device, it.activity.context_id, it.activity.stream_id);
    let waiting = with(|tracer| tracer.to_swap.take_if(|waiting| stream(waiting) == stream(&finished)));
    match waiting {
        Some(mut first) => {
            std::mem::swap(&mut first.activity.correlation, &mut finished.activity.correlation);
            complete(&first);
            complete(&finished);
        }
        None if with(|tracer| tracer.to_swap.is_none()) && process::happens(share) => {
            with(|tracer| tracer.to_swap = Some(finished));
        }
        None => complete(&finished),
    }
}

/// Whether this is a kernel of NCCL's that was launched by a call of its own.
fn can_swap(finished: &Finished) -> bool {
    let is_kernel = finished.activity.kind == ActivityKind::Kernel && finished.activity.node_id == 0;
    is_kernel && !finished.name.is_null() && is_nccl(finished.name)
}

/// Whether a name that was kept for good, and is not null, is one of NCCL's.
fn is_nccl(name: *const c_char) -> bool {
    const NCCL: &[u8] = b"nccl";
    // SAFETY: not null, and kept for good.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    name.windows(NCCL.len()).any(|part| part == NCCL)
}

/// Completes the record of a graph's launch with its last node; false when launches are not recorded as a whole.
fn finish_in_graph(activity: &Activity, start: u64, end: u64) -> bool {
    with(|tracer| {
        let Some(launch) = tracer.graphs.get_mut(&activity.correlation) else { return false };
        launch.done += 1;
        launch.start = launch.start.min(start);
        launch.end = launch.end.max(end);
        if launch.done == launch.expected {
            let release = process::options().release;
            if let Some(record) = records::graph_trace(release, activity, launch.start, launch.end)
                && let Some(slot) = launch.slot
            {
                tracer.buffers.complete(slot, record.as_bytes());
            }
            tracer.graphs.remove(&activity.correlation);
        }
        true
    })
}

/// The times of something in CUPTI's time, or wrong ones where the options ask for that.
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
    let stamp = |at| clock::stamp(machine, at).wrapping_add_signed(off(at));
    let times = (stamp(activity.start), stamp(activity.end));
    if is_kernel && kernels >= options.exhaust {
        return if kernels.is_multiple_of(2) { (0, 0) } else { (times.1 + 1, times.0) };
    }
    if process::happens(options.reversed) { (times.1 + 1, times.0) } else { times }
}

/// Keeps a name for good; records point to it.
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

// ---------------------------------------------------------------------------------------------- buffers

/// Registers the caller's functions for buffers; the last registration holds.
pub(crate) fn register(callbacks: BufferCallbacks) {
    with(|tracer| tracer.callbacks = Some(callbacks));
}

/// Writes a record that is complete.
pub(crate) fn write(record: Option<Record>) {
    begin(record, true);
}

/// Writes a record; `None` when it was dropped, or there is nobody to give it to.
fn begin(record: Option<Record>, complete: bool) -> Option<Slot> {
    let record = record?;
    let options = process::options();
    if process::happens(options.drop) {
        with(|tracer| tracer.dropped += 1);
        return None;
    }
    let lane = Lane {
        thread: if has_buffers_per_thread() { calls::system_thread_id().into() } else { 0 },
        turn: if options.reorder { (process::random() % 4) as u8 } else { 0 },
    };
    let of_interest = record.kind() != kind::OVERHEAD;
    let append = || with(|tracer| tracer.buffers.append(lane, record.as_bytes(), complete, of_interest));
    let mut slot = append();
    if slot.is_none() {
        let callbacks = with(|tracer| tracer.callbacks)?;
        let _one = lock(&REQUEST);
        // Another thread may have been faster, and a flush may return a new buffer before there is anything in it.
        loop {
            slot = append();
            if slot.is_some() || request(callbacks, lane).is_none_or(|size| size < record.as_bytes().len()) {
                break;
            }
        }
        if slot.is_none() {
            with(|tracer| {
                tracer.buffers.call_full(lane);
                tracer.dropped += 1;
            });
        }
    }
    if options.partial && process::happens(1.0 / 16.0) {
        with(|tracer| tracer.buffers.call_full(lane));
    }
    if with(|tracer| tracer.period.is_none() && tracer.buffers.has_full()) {
        WORK.notify_one();
    }
    slot
}

/// Requests a buffer from the caller; its size, or `None` when none came.
fn request(callbacks: BufferCallbacks, lane: Lane) -> Option<usize> {
    let machine = process::attached();
    let start = machine.map_or(0, clock::now);
    let mut memory = Memory { address: std::ptr::null_mut(), size: 0, most: 0 };
    let (address, size, most) = (&raw mut memory.address, &raw mut memory.size, &raw mut memory.most);
    process::call_out(Inside::BufferCallback, || match callbacks {
        // SAFETY: the caller's function, with places for what it answers.
        BufferCallbacks::V1(request, _) => unsafe { request(address, size, most) },
        BufferCallbacks::V2(request, _) => {
            let mut info = RequestInfo { size: size_of::<RequestInfo>() };
            // SAFETY: as above.
            unsafe { request(address, size, most, &raw mut info) }
        }
    });
    if !is_usable(&memory) {
        return None;
    }
    // SAFETY: the caller gave the memory, and it overlaps nothing that CUPTI has.
    with(|tracer| unsafe { tracer.buffers.give(lane, memory) });
    if let Some(machine) = machine.filter(|_| is_wanted(kind::OVERHEAD, 0)) {
        let release = process::options().release;
        let (thread, end) = (calls::thread_id(), clock::now(machine));
        // The kind came with 12.6. It does not matter enough to request a buffer for it.
        if release >= Release::V12_9
            && let Some(record) = records::overhead(release, overhead::BUFFER_REQUEST, thread, start, end)
        {
            with(|tracer| tracer.buffers.append(lane, record.as_bytes(), true, false));
        }
    }
    Some(memory.size)
}

/// Whether CUPTI can use a buffer. What a correct caller never gives is reported.
fn is_usable(memory: &Memory) -> bool {
    /// From here on an empty answer is no crash.
    const EMPTY_IS_SAFE: Release = Release::V12_9;
    const ALIGNMENT: usize = 8;
    if memory.address.is_null() {
        if process::options().release < EMPTY_IS_SAFE {
            process::misuse("a buffer request was answered with NULL, on which CUPTI before 12.9 crashes");
        }
        return false;
    }
    if !memory.address.addr().is_multiple_of(ALIGNMENT) {
        process::misuse("a buffer is not aligned to 8 bytes");
        return false;
    }
    if with(|tracer| tracer.buffers.holds(memory)) {
        process::misuse("a buffer was given that CUPTI still has");
        return false;
    }
    // SAFETY: the caller gave so many bytes, and nobody else uses them now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.address, memory.size) };
    if !ZEROED_BUFFERS.load(Ordering::Relaxed) {
        bytes.fill(0);
    } else if bytes.iter().any(|byte| *byte != 0) {
        process::misuse("a buffer is not zeroed, although attribute 5 promises it");
        bytes.fill(0);
    }
    true
}

/// How many records were dropped since the last time this was asked.
pub(crate) fn take_dropped() -> u64 {
    with(|tracer| std::mem::take(&mut tracer.dropped))
}

/// Returns buffers to the caller; whether there were any with more in them than CUPTI's own overhead.
fn deliver(take: Take) -> bool {
    let _one = lock(&DELIVERY);
    let (callbacks, mut returned) = with(|tracer| (tracer.callbacks, tracer.buffers.take(take)));
    let Some(callbacks) = callbacks else { return false };
    if process::options().reorder {
        for last in (1..returned.len()).rev() {
            returned.swap(last, (process::random() % (last as u64 + 1)) as usize);
        }
    }
    let mut is_of_interest = false;
    for buffer in returned {
        is_of_interest |= buffer.is_of_interest;
        process::call_out(Inside::BufferCallback, || give_back(callbacks, &buffer));
    }
    is_of_interest
}

fn give_back(callbacks: BufferCallbacks, buffer: &Returned) {
    let Memory { address, size, .. } = buffer.memory;
    match callbacks {
        // Context and stream have been meaningless since CUDA 6.
        // SAFETY: the caller's function and the caller's memory.
        BufferCallbacks::V1(_, complete) => unsafe {
            complete(std::ptr::null_mut(), 0, address, size, buffer.filled);
        },
        BufferCallbacks::V2(_, complete) => {
            let mut info = CompleteInfo {
                size: size_of::<CompleteInfo>(),
                thread: buffer.thread,
                layouts: std::ptr::null(),
                count: 0,
            };
            // SAFETY: as above.
            unsafe { complete(address, size, buffer.filled, &raw mut info) }
        }
    }
}

/// Returns what there is: buffers whose records are complete, or with `forced` all of them.
///
/// # Errors
///
/// When no functions for buffers were registered.
pub(crate) fn flush(machine: &Machine, forced: bool) -> Result<(), u32> {
    static FLUSHING: AtomicBool = AtomicBool::new(false);
    if with(|tracer| tracer.callbacks.is_none()) {
        return Err(result::INVALID_OPERATION);
    }
    if FLUSHING.swap(true, Ordering::Relaxed) {
        static SAID: Once = Once::new();
        SAID.call_once(|| eprintln!("emulated CUPTI: two threads flush at once, on which the real one has deadlocked"));
    }
    let start = clock::now(machine);
    catch_up(machine, forced);
    let is_of_interest = deliver(if forced { Take::Everything } else { Take::Complete });
    FLUSHING.store(false, Ordering::Relaxed);
    // Else every flush would leave something for the next one.
    if is_of_interest && !forced && is_wanted(kind::OVERHEAD, 0) {
        let release = process::options().release;
        let (thread, end) = (calls::thread_id(), clock::now(machine));
        write(records::overhead(release, overhead::BUFFER_FLUSH, thread, start, end));
    }
    Ok(())
}

/// Sets the time after which the worker returns full buffers, or leaves it to its own judgement.
pub(crate) fn set_period(milliseconds: u32) {
    let period = (milliseconds != 0).then(|| Duration::from_millis(milliseconds.into()));
    with(|tracer| (tracer.period, tracer.returned_at) = (period, Instant::now()));
    WORK.notify_one();
    start_worker();
}

/// How often CUPTI's own thread has looked for what is to happen.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static STARTED: Once = Once::new();

/// Waits until CUPTI's own thread, if there is one, has looked once more for what is to happen.
pub(crate) fn wait_for_round() {
    // One may be under way.
    let round = ROUNDS.load(Ordering::SeqCst) + 2;
    while STARTED.is_completed() && ROUNDS.load(Ordering::SeqCst) < round {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts CUPTI's own thread, once there is a machine.
fn start_worker() {
    let Some(machine) = process::attached() else { return };
    STARTED.call_once(|| {
        let blocked = block_signals();
        let started = std::thread::Builder::new().name("emulated cupti".to_owned()).spawn(move || work(machine));
        unblock_signals(&blocked);
        if let Err(error) = started {
            eprintln!("emulated CUPTI: failed to start its thread: {error}");
        }
    });
}

/// Blocks all signals of this thread, for a new one to inherit that; returns what was blocked before.
fn block_signals() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, the second reads it and writes the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn unblock_signals(before: &libc::sigset_t) {
    // SAFETY: a set that `block_signals` got from the system.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// What CUPTI's thread does, for ever.
fn work(machine: &'static Machine) {
    /// How long it lets work gather.
    const REST: Duration = Duration::from_millis(2);
    /// How long it sleeps when there is nothing to do.
    const SLEEP: Duration = Duration::from_millis(500);
    let mut states = process::options().states.iter();
    let mut next_state = states.next();
    let mut rival = process::options().rival.as_ref();
    loop {
        wait_for_work(if next_state.is_some() || rival.is_some() { REST } else { SLEEP });
        if let Some((name, _)) = rival.take_if(|(_, after)| *after <= process::elapsed()) {
            compete(name);
        }
        while let Some((_, state)) = next_state.filter(|(after, _)| *after <= process::elapsed()) {
            report(*state);
            next_state = states.next();
        }
        ROUNDS.fetch_add(1, Ordering::SeqCst);
        catch_up(machine, false);
        let is_time = with(|tracer| {
            let is_time = tracer.time_left().is_none_or(|left| left.is_zero());
            if is_time {
                tracer.returned_at = Instant::now();
            }
            is_time
        });
        if is_time {
            deliver(Take::Full);
        }
        std::thread::sleep(REST);
    }
}

/// Waits until something was done, or a full buffer may go back, or for so long.
fn wait_for_work(longest: Duration) {
    let guard = lock(&TRACER);
    let idle = |tracer: &mut Option<Tracer>| {
        tracer
            .as_ref()
            .is_none_or(|tracer| tracer.done.is_empty() && (tracer.period.is_some() || !tracer.buffers.has_full()))
    };
    let left = guard.as_ref().and_then(Tracer::time_left);
    drop(WORK.wait_timeout_while(guard, left.unwrap_or(longest).min(longest), idle));
}

/// Another tool wants the subscription. Where it gets it, it keeps it.
fn compete(name: &str) {
    let own_name = CString::new(name).unwrap_or_default();
    match subscriber::subscribe(None, std::ptr::null_mut(), own_name, false) {
        Ok(_) => eprintln!("emulated CUPTI: {name} subscribed"),
        Err(_) => {
            eprintln!("emulated CUPTI: {name} asked to subscribe: {}", result::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
        }
    }
}

/// `CUpti_StateData`.
#[repr(C)]
struct StateData {
    result: u32,
    message: *const c_char,
}

/// Reports a failure of CUPTI's own. After a fatal one it is as if nobody had subscribed or enabled anything.
fn report(state: State) {
    let data = StateData { result: result::UNKNOWN, message: c"as EMULATED_CUPTI asks for".as_ptr() };
    subscriber::call_back(domain::STATE, state as u32, &data);
    if state == State::Fatal {
        subscriber::detach();
        with(|tracer| {
            tracer.enabled = 0;
            tracer.contexts.clear();
            tracer.functions.clear();
            tracer.publish();
        });
    }
}
