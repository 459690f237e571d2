//! What CUPTI itself does, without NCCL and without the profiler; each question in its own
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cupti_sys::Cupti;
use cupti_sys::bindings as sys;
use cupti_sys::records::{Library, Table};
use cupti_sys::table::{ExternalCorrelation, Kernel};

use super::{Told, Workload};
use crate::cuda::{Gpu, Stream};

/// The kind of external ids that is pushed.
const KIND: u32 = sys::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;
/// The size of a buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// A returned buffer, and how much of it is filled.
struct Filled(&'static mut [u64], usize);

/// What callbacks saw, in order.
#[derive(Default)]
pub(super) struct Seen {
    filled: Vec<Filled>,
    /// Correlation ids of launches, of kernels and of graphs.
    pub(super) launches: Vec<u32>,
    /// How often each function of the driver began.
    pub(super) calls: BTreeMap<u32, u32>,
    /// Nodes that were created.
    created: Vec<u64>,
    /// Nodes that were cloned, and their originals.
    cloned: BTreeMap<u64, u64>,
    /// The clones since a graph last became executable, by address, and their numbers.
    clones: BTreeMap<usize, u64>,
    /// Nodes that do the work of others since an update.
    updated: BTreeMap<u64, u64>,
    /// Both in words, with the nodes' addresses: for where a trail is lost.
    trail: Vec<String>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);
/// Callbacks do nothing: only the cost of calling them is measured.
pub(super) static IS_QUIET: AtomicBool = AtomicBool::new(false);
static API: Mutex<Option<Cupti>> = Mutex::new(None);

pub(super) fn with_seen<R>(look: impl FnOnce(&mut Seen) -> R) -> R {
    look(SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert_default())
}

/// The version that `cuptiGetVersion` returns. The driver must have been started.
///
/// # Errors
///
/// When the library cannot be loaded, or does not report it.
pub(super) fn version(path: &Path) -> Result<u32, String> {
    let api = load(path)?;
    let mut version = 0;
    // SAFETY: the driver is in the process, the number is writable.
    check("cuptiGetVersion", unsafe { (api.cuptiGetVersion)(&raw mut version) })?;
    Ok(version)
}

fn load(path: &Path) -> Result<Cupti, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the suite says that the file is a libcupti.
    unsafe { Cupti::open(&[&name]) }.map_err(|error| error.to_string())
}

pub(super) fn check(what: &str, result: u32) -> Result<(), String> {
    if result == sys::CUPTI_SUCCESS { Ok(()) } else { Err(format!("{what} gave {result}")) }
}

/// The content of a kernel's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ran {
    /// In CUPTI's time.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) correlation: u32,
    /// 0 outside of graphs.
    pub(super) node: u64,
}

/// The content of records.
#[derive(Default)]
pub(super) struct Records {
    /// Kernels, in the order of their records.
    pub(super) kernels: Vec<Ran>,
    /// External ids, by correlation id.
    external: BTreeMap<u32, u64>,
}

/// A subscription, and a GPU to try it on.
pub(super) struct Trial {
    pub(super) tap: Tap,
    pub(super) subscriber: sys::CUpti_SubscriberHandle,
    pub(super) gpu: Gpu,
    pub(super) stream: Stream,
}

/// Returns records, on whichever thread.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub(super) api: Cupti,
    version: u32,
}

/// Functions of the driver that launch kernels or graphs, and one that changes a graph. Older
/// releases and drivers lack some.
const CALLS: [u32; 8] = [
    sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    sys::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    sys::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
    sys::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate,
    UPDATE,
];
const UPDATE: u32 = sys::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2;

impl Trial {
    /// Subscribes, and enables only kernels.
    fn begin(workload: &Workload) -> Result<Trial, String> {
        let trial = Trial::subscribe(workload)?;
        trial.enable(sys::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)?;
        Ok(trial)
    }

    /// Subscribes before there is a context.
    pub(super) fn subscribe(workload: &Workload) -> Result<Trial, String> {
        crate::cuda::start()?;
        let (tap, subscriber) = subscribe(workload)?;
        let gpu = workload.open_gpu()?;
        Ok(Trial { tap, subscriber, stream: gpu.stream()?, gpu })
    }

    /// Subscribes when there is a context.
    pub(super) fn subscribe_late(workload: &Workload, gpu: Gpu, stream: Stream) -> Result<Trial, String> {
        let (tap, subscriber) = subscribe(workload)?;
        Ok(Trial { tap, subscriber, stream, gpu })
    }

    pub(super) fn enable(&self, kind: u32) -> Result<(), String> {
        // SAFETY: no pointers.
        check("cuptiActivityEnable", unsafe { (self.tap.api.cuptiActivityEnable)(kind) })
    }

    fn launch(&self) -> Result<(), String> {
        self.launch_for(2_000)
    }

    /// Launches a kernel that runs for so many ns.
    fn launch_for(&self, duration_ns: u64) -> Result<(), String> {
        self.gpu.spin(self.stream, duration_ns)
    }

    /// All records since the last call.
    pub(super) fn records(&self) -> Result<Records, String> {
        self.gpu.synchronize()?;
        check("cuptiActivityFlushAll", self.tap.flush(true))?;
        // Everything has ended, and the machine may not have enough memory for so many kernels.
        Ok(self.tap.read(drop))
    }
}

impl Tap {
    /// Makes CUPTI return complete records, or all of them; returns its result.
    pub(super) fn flush(&self, is_forced: bool) -> u32 {
        let flag = if is_forced { sys::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED } else { 0 };
        // SAFETY: this is not a callback's thread.
        unsafe { (self.api.cuptiActivityFlushAll)(flag) }
    }

    /// The records that CUPTI has returned since the last call. The memory is never freed: CUPTI
    /// may still write the record of a running kernel into it.
    pub(super) fn returned(&self) -> Records {
        self.read(std::mem::forget)
    }

    fn read(&self, done_with: fn(Box<[u64]>)) -> Records {
        // SAFETY: the function of a library that stays loaded, in a process with a driver.
        let walker = unsafe { Library::new(self.api.cuptiActivityGetNextRecord) };
        let table = Table::new(self.version);
        let mut records = Records::default();
        for Filled(buffer, valid) in with_seen(|seen| std::mem::take(&mut seen.filled)) {
            // SAFETY: this much of the buffer was filled, and nobody writes to it any more.
            let bytes = unsafe { cupti_sys::records::bytes(buffer.as_ptr().cast(), valid) };
            for record in table.walk(bytes, walker) {
                if let Some(kernel) = record.view::<Kernel>() {
                    records.kernels.push(Ran {
                        start: kernel.get(Kernel::START).unwrap_or_default(),
                        end: kernel.get(Kernel::END).unwrap_or_default(),
                        correlation: kernel.get(Kernel::CORRELATION_ID).unwrap_or_default(),
                        node: kernel.get(Kernel::GRAPH_NODE_ID).unwrap_or_default(),
                    });
                } else if let Some(id) = record.view::<ExternalCorrelation>() {
                    let call = id.get(ExternalCorrelation::CORRELATION_ID).unwrap_or_default();
                    records.external.insert(call, id.get(ExternalCorrelation::EXTERNAL_ID).unwrap_or_default());
                }
            }
            // SAFETY: it was leaked as a box of this many words, and nothing that was read points
            // into it.
            done_with(unsafe { Box::from_raw(std::ptr::from_mut(buffer)) });
        }
        records
    }
}

/// Subscribes, and registers callbacks and buffers. The driver must have been started.
fn subscribe(workload: &Workload) -> Result<(Tap, sys::CUpti_SubscriberHandle), String> {
    let path = workload.cupti.as_deref().ok_or("no libcupti was named")?;
    let version = version(path)?;
    let api = load(path)?;
    *API.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(api);
    let mut subscriber = std::ptr::null_mut();
    // SAFETY: places are writable; the functions live as long as the process.
    unsafe {
        check("cuptiSubscribe", (api.cuptiSubscribe)(&raw mut subscriber, Some(on_event), std::ptr::null_mut()))?;
        check("cuptiActivityRegisterCallbacks", (api.cuptiActivityRegisterCallbacks)(Some(lend), Some(take)))?;
        for id in CALLS {
            (api.cuptiEnableCallback)(1, subscriber, sys::CUPTI_CB_DOMAIN_DRIVER_API, id);
        }
        let updates = (version >= UPDATES).then_some(sys::CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED);
        for id in NODES.into_iter().chain(updates) {
            let domain = sys::CUPTI_CB_DOMAIN_RESOURCE;
            check("cuptiEnableCallback", (api.cuptiEnableCallback)(1, subscriber, domain, id))?;
        }
    }
    Ok((Tap { api, version }, subscriber))
}

/// The granularity of the GPU's timer.
pub(super) fn timer(workload: &Workload, told: &mut Told) -> Result<(), String> {
    const READINGS: u32 = 100_000;
    let gpu = workload.open_gpu()?;
    let readings = gpu.timer(gpu.stream()?, READINGS)?;
    let steps: Vec<u64> = readings.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let mut changes: Vec<u64> = steps.iter().copied().filter(|step| *step > 0).collect();
    changes.sort_unstable();
    let backwards = changes.iter().filter(|step| **step > u64::MAX / 2).count();
    let divisor = readings.iter().fold(0, |divisor, reading| common_divisor(divisor, *reading));
    let figures = [
        ("readings", readings.len() as f64),
        ("changes", changes.len() as f64),
        ("backwards", backwards as f64),
        ("least_step_ns", changes.first().copied().unwrap_or_default() as f64),
        ("median_step_ns", changes.get(changes.len() / 2).copied().unwrap_or_default() as f64),
        ("divisor_ns", divisor as f64),
    ];
    told.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// Whether the callback at a launch has the same correlation id as the kernel's record.
pub(super) fn correlation(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    for _ in 0..workload.repeats {
        trial.launch()?;
    }
    let Records { kernels, .. } = trial.records()?;
    let launches = with_seen(|seen| seen.launches.clone());
    let records: BTreeSet<u32> = kernels.iter().map(|kernel| kernel.correlation).collect();
    let same = launches.iter().filter(|id| records.contains(id)).count();
    let in_order = kernels.iter().map(|kernel| kernel.correlation).eq(launches.iter().copied());
    let figures = [
        ("launches", launches.len() as f64),
        ("records", kernels.len() as f64),
        ("same", same as f64),
        ("in_order", f64::from(u8::from(in_order))),
    ];
    told.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

/// Whether an external id that was pushed at a launch is recorded with it, when all calls of the
/// driver are recorded or only the launch.
pub(super) fn external(workload: &Workload, is_single: bool, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    trial.enable(sys::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)?;
    if is_single {
        let Some(enable) = trial.tap.api.cuptiActivityEnableDriverApi else {
            told.words
                .insert("absent".into(), "this CUPTI has no cuptiActivityEnableDriverApi, which came with 12.5".into());
            return Ok(());
        };
        // SAFETY: no pointers.
        let result = unsafe { enable(sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 1) };
        check("cuptiActivityEnableDriverApi", result)?;
    } else {
        trial.enable(sys::CUPTI_ACTIVITY_KIND_DRIVER)?;
    }
    for id in 0..u64::from(workload.repeats) {
        // SAFETY: no pointers.
        check("push", unsafe { (trial.tap.api.cuptiActivityPushExternalCorrelationId)(KIND, 1000 + id) })?;
        trial.launch()?;
        let mut popped = 0;
        // SAFETY: the number is writable.
        check("pop", unsafe { (trial.tap.api.cuptiActivityPopExternalCorrelationId)(KIND, &raw mut popped) })?;
    }
    let Records { external, .. } = trial.records()?;
    let launches = with_seen(|seen| seen.launches.clone());
    let right = launches.iter().zip(1000..).filter(|(call, id)| external.get(call) == Some(id)).count();
    told.figures.insert("launches".into(), launches.len() as f64);
    told.figures.insert("ids".into(), external.len() as f64);
    told.figures.insert("right".into(), right as f64);
    Ok(())
}

/// The number of kernels in the captured graph.
const CAPTURED: usize = 2;
/// What is asked for to follow nodes.
const NODES: [u32; 4] = [
    sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
    sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED,
    sys::CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING,
    sys::CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED,
];
/// The release of CUPTI that reports updates of nodes.
const UPDATES: u32 = 130_000;

/// Whether the node that a record names leads back to the kernel that was captured, and to no
/// other: directly, through a copy of the graph, inside another graph, and after an update. After
/// the update it also reports which of the two captures the node leads to, and whether CUPTI said
/// so.
pub(super) fn graph_ids(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    let durations = std::cell::Cell::new(2_000);
    let capture_by = |begin: &dyn Fn() -> Result<(), String>| {
        let before = with_seen(|seen| seen.created.len());
        begin()?;
        for _ in 0..CAPTURED {
            // An update is told of nodes whose parameters differ.
            durations.set(durations.get() + 100);
            trial.launch_for(durations.get())?;
        }
        let graph = trial.stream.end_capture()?;
        Ok::<_, String>((graph, with_seen(|seen| seen.created.split_off(before))))
    };
    let capture = || capture_by(&|| trial.stream.begin_capture());
    let replay = |exec: crate::cuda::Exec| {
        (0..workload.repeats).try_for_each(|_| exec.launch(trial.stream))?;
        let mut kernels = trial.records()?.kernels;
        kernels.sort_unstable();
        Ok::<_, String>(kernels)
    };
    let mut tell = |name: String, value: usize| told.figures.insert(name, value as f64);
    let mut lost = BTreeMap::new();
    let mut follow = |what: &str, kernels: &[Ran], created: &[u64]| {
        let (right, trail) = with_seen(|seen| (followed(kernels, created, seen), seen.trail.split_off(0)));
        tell(format!("{what}_kernels"), kernels.len());
        tell(format!("{what}_nodes"), created.len());
        tell(format!("{what}_followed"), right);
        if right < kernels.len() {
            let nodes: BTreeSet<u64> = kernels.iter().map(|kernel| kernel.node).collect();
            let ran: Vec<String> = nodes.into_iter().map(node_name).collect();
            lost.insert(format!("{what}_trail"), format!("{}; ran {}", trail.join(", "), ran.join(", ")));
        }
    };
    let (graph, created) = capture()?;
    let exec = graph.instantiate()?;
    follow("captured", &replay(exec)?, &created);
    match graph.copy()? {
        None => drop(told.words.insert("cloned".into(), "this driver has no cuGraphClone".into())),
        Some(copy) => follow("cloned", &replay(copy.instantiate()?)?, &created),
    }
    // Inside another graph: as a copy, and as itself; and captured into a graph that is there, as
    // XLA does.
    for (what, is_moved, is_into) in [("child", false, false), ("moved", true, false), ("into", true, true)] {
        let empty = if is_into { crate::cuda::Graph::for_capture()? } else { None };
        let captured = match empty {
            Some(empty) => Some(capture_by(&|| trial.stream.begin_capture_to(empty))?),
            None if is_into => None,
            None => Some(capture()?),
        };
        let Some((graph, created)) = captured else {
            told.words.insert(what.into(), "this driver lacks a function for it".into());
            continue;
        };
        match graph.inside_another(is_moved) {
            Ok(Some(outer)) => follow(what, &replay(outer.instantiate()?)?, &created),
            Ok(None) => drop(told.words.insert(what.into(), "this driver lacks a function for it".into())),
            // Drivers for CUDA 12.3 to 12.8 have the function, but do not know that a graph can be
            // moved.
            Err(reason) => drop(told.words.insert(what.into(), format!("not asked: {reason}"))),
        }
    }
    let (other, created_later) = capture()?;
    if !exec.update(other)? {
        told.words.insert("updated".into(), "this driver has no cuGraphExecUpdate".into());
        told.words.extend(lost);
        return Ok(());
    }
    let kernels = replay(exec)?;
    follow("updated", &kernels, &created);
    follow("renewed", &kernels, &created_later);
    let updates = with_seen(|seen| seen.calls.get(&UPDATE).copied());
    told.figures.insert("update_calls".into(), updates.unwrap_or_default().into());
    told.figures.insert("updated_nodes".into(), with_seen(|seen| seen.updated.len()) as f64);
    told.words.extend(lost);
    Ok(())
}

/// CUPTI's number of a node, as that of its graph and its own in it.
fn node_name(node: u64) -> String {
    format!("{}:{}", node >> 32, node & u64::from(u32::MAX))
}

/// How many kernels of a graph's replays, in the order in which they ran, have nodes that lead
/// back to the nodes created for them.
fn followed(kernels: &[Ran], created: &[u64], seen: &Seen) -> usize {
    // A limit on clones of clones.
    const GENERATIONS: usize = 16;
    let before = |node: &u64| seen.updated.get(node).or_else(|| seen.cloned.get(node)).copied();
    let leads_to =
        |node: u64, origin: u64| std::iter::successors(Some(node), before).take(GENERATIONS).any(|node| node == origin);
    let pairs = kernels.iter().zip(created.iter().cycle());
    pairs.filter(|(kernel, origin)| leads_to(kernel.node, **origin)).count()
}

/// `CUpti_CallbackFunc`. These callbacks are few, and nothing is measured meanwhile, so it may
/// lock and allocate.
///
/// # Safety
///
/// As CUPTI calls it: `data` is the structure for that domain and id, valid for the call.
unsafe extern "C" fn on_event(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    if domain == sys::CUPTI_CB_DOMAIN_DRIVER_API {
        // SAFETY: the structure of this domain.
        let call = unsafe { &*data.cast::<sys::CUpti_CallbackData>() };
        if call.callbackSite == sys::CUPTI_API_ENTER && !IS_QUIET.load(Relaxed) {
            with_seen(|seen| {
                *seen.calls.entry(id).or_default() += 1;
                if ![UPDATE, sys::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate].contains(&id) {
                    seen.launches.push(call.correlationId);
                }
            });
        }
        return;
    }
    // SAFETY: the structure of this domain.
    let resource = unsafe { &*data.cast::<sys::CUpti_ResourceData>() };
    // SAFETY: for the ids that are enabled the descriptor is null or a graph's.
    let Some(graph) = (unsafe { resource.resourceDescriptor.cast::<sys::CUpti_GraphData>().as_ref() }) else { return };
    let Some(api) = *API.lock().unwrap_or_else(std::sync::PoisonError::into_inner) else { return };
    let number = |node| {
        let mut number = 0;
        // SAFETY: a node that CUPTI just passed, and a writable number; the call is allowed in
        // this callback.
        let result = unsafe { (api.cuptiGetGraphNodeId)(node, &raw mut number) };
        (result == sys::CUPTI_SUCCESS).then_some(number)
    };
    match id {
        sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED => with_seen(|seen| {
            let created = number(graph.node);
            seen.created.extend(created);
            seen.trail.extend(created.map(|node| format!("created {} at {:?}", node_name(node), graph.node)));
        }),
        // The node that was a child graph goes when the other graph has its nodes.
        sys::CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING => {
            with_seen(|seen| _ = seen.clones.remove(&(graph.node as usize)));
        }
        sys::CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED => with_seen(|seen| {
            for (node, before) in std::mem::take(&mut seen.clones) {
                let now = number(node as sys::CUgraphNode).filter(|now| *now != before);
                seen.cloned.extend(now.map(|now| (now, before)));
                seen.trail.extend(now.map(|now| format!("{} became {}", node_name(before), node_name(now))));
            }
        }),
        sys::CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED => with_seen(|seen| {
            let updated = number(graph.originalNode).zip(number(graph.node));
            seen.updated.extend(updated);
            seen.trail.extend(updated.map(|(node, to)| format!("updated {} to {}", node_name(node), node_name(to))));
        }),
        _ => with_seen(|seen| {
            let cloned = number(graph.node).zip(number(graph.originalNode));
            seen.cloned.extend(cloned);
            seen.clones.extend(cloned.map(|(node, _)| (graph.node as usize, node)));
            let [to, from] = [graph.node, graph.originalNode];
            let words = |(node, original)| {
                format!("cloned {} at {from:?} to {} at {to:?}", node_name(original), node_name(node))
            };
            seen.trail.extend(cloned.map(words));
        }),
    }
}

/// `CUpti_BuffersCallbackRequestFunc`
///
/// # Safety
///
/// As CUPTI calls it: the places are writable.
unsafe extern "C" fn lend(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    let memory = Box::leak(vec![0_u64; BUFFER / 8].into_boxed_slice());
    // SAFETY: the caller's promise.
    unsafe {
        buffer.write(memory.as_mut_ptr().cast());
        size.write(BUFFER);
        most.write(0);
    }
}

/// `CUpti_BuffersCallbackCompleteFunc`
///
/// # Safety
///
/// As CUPTI calls it: the buffer was lent by us, and CUPTI does not use it any more.
unsafe extern "C" fn take(_: sys::CUcontext, _: u32, buffer: *mut u8, size: usize, valid: usize) {
    // SAFETY: it was leaked as this many words, and nobody else has it.
    let words = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u64>(), size / 8) };
    with_seen(|seen| seen.filled.push(Filled(words, valid)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_must_lead_to_the_kernel_that_was_captured_at_its_place() {
        let ran = |nodes: &[u64]| nodes.iter().map(|&node| Ran { node, ..Ran::default() }).collect::<Vec<_>>();
        let cloned = BTreeMap::from([(22, 10), (23, 11), (20, 10), (32, 22), (33, 23), (99, 98)]);
        let seen = Seen { cloned, updated: BTreeMap::from([(40, 10), (41, 11), (20, 98)]), ..Seen::default() };
        let right = |nodes: &[u64]| followed(&ran(nodes), &[10, 11], &seen);
        assert_eq!(right(&[22, 23, 22, 23]), 4);
        assert_eq!(right(&[32, 33]), 2, "of a copy");
        assert_eq!(right(&[40, 41]), 2, "updated to them");
        assert_eq!(right(&[20, 23]), 1, "a clone, but updated to another");
        assert_eq!(right(&[23, 22]), 0, "those of each other");
        assert_eq!(right(&[22, 22]), 1);
        assert_eq!(right(&[99, 0]), 0, "some node, and none");
        assert_eq!(followed(&ran(&[22]), &[], &seen), 0);
    }
}
