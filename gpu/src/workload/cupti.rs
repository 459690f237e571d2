//! What CUPTI itself does, asked without NCCL and without the profiler, each question in a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use cupti_sys::Cupti;
use cupti_sys::bindings as sys;
use cupti_sys::records::{Library, Table};
use cupti_sys::table::{ExternalCorrelation, Kernel};

use super::{Told, Workload};
use crate::cuda::{Gpu, Stream};

/// The kind of external ids that is pushed.
const KIND: u32 = sys::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;
/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;

/// A buffer that came back, and how much of it is filled. The memory stays lent for good: a question is short.
struct Filled(&'static mut [u64], usize);

/// What callbacks saw, in their order.
#[derive(Default)]
struct Seen {
    filled: Vec<Filled>,
    /// Correlation ids of launches.
    launches: Vec<u32>,
    /// Nodes that were created.
    created: Vec<u64>,
    /// Nodes that were cloned, and what from.
    cloned: Vec<(u64, u64)>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);
static API: Mutex<Option<Cupti>> = Mutex::new(None);

fn with_seen<R>(look: impl FnOnce(&mut Seen) -> R) -> R {
    look(SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert_default())
}

/// What `cuptiGetVersion` says. The driver must have been started.
///
/// # Errors
///
/// When the library cannot be loaded, or does not say.
pub(super) fn version(path: &Path) -> Result<u32, String> {
    let api = load(path)?;
    let mut version = 0;
    // SAFETY: the driver is in the process, the number is writable.
    check("cuptiGetVersion", unsafe { (api.cuptiGetVersion)(&raw mut version) })?;
    Ok(version)
}

fn load(path: &Path) -> Result<Cupti, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the file is a libcupti, by the suite's word.
    unsafe { Cupti::open(&[&name]) }.map_err(|error| error.to_string())
}

fn check(what: &str, result: u32) -> Result<(), String> {
    if result == sys::CUPTI_SUCCESS { Ok(()) } else { Err(format!("{what} gave {result}")) }
}

/// What records said.
#[derive(Default)]
struct Records {
    /// Kernels, by correlation id and graph node.
    kernels: Vec<(u32, u64)>,
    /// External ids, by correlation id.
    external: BTreeMap<u32, u64>,
}

/// A subscription with a GPU to try it on.
struct Trial {
    api: Cupti,
    version: u32,
    gpu: Gpu,
    stream: Stream,
}

impl Trial {
    /// Subscribes, and asks for kernels alone.
    fn begin(workload: &Workload) -> Result<Trial, String> {
        let path = workload.cupti.as_deref().ok_or("no libcupti was named")?;
        crate::cuda::start()?;
        let version = version(path)?;
        let api = load(path)?;
        *API.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(api);
        let mut subscriber = std::ptr::null_mut();
        // SAFETY: places are writable; the functions live as long as the process.
        unsafe {
            check("cuptiSubscribe", (api.cuptiSubscribe)(&raw mut subscriber, Some(on_event), std::ptr::null_mut()))?;
            check("cuptiActivityRegisterCallbacks", (api.cuptiActivityRegisterCallbacks)(Some(lend), Some(take)))?;
            let launch = sys::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;
            let domain = sys::CUPTI_CB_DOMAIN_DRIVER_API;
            check("cuptiEnableCallback", (api.cuptiEnableCallback)(1, subscriber, domain, launch))?;
            for id in [sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED] {
                let domain = sys::CUPTI_CB_DOMAIN_RESOURCE;
                check("cuptiEnableCallback", (api.cuptiEnableCallback)(1, subscriber, domain, id))?;
            }
        }
        let gpu = workload.open_gpu()?;
        let trial = Trial { api, version, stream: gpu.stream()?, gpu };
        trial.enable(sys::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)?;
        Ok(trial)
    }

    fn enable(&self, kind: u32) -> Result<(), String> {
        // SAFETY: no pointers.
        check("cuptiActivityEnable", unsafe { (self.api.cuptiActivityEnable)(kind) })
    }

    fn launch(&self) -> Result<(), String> {
        self.gpu.spin(self.stream, 2_000)
    }

    /// All records since the last time.
    fn records(&self) -> Result<Records, String> {
        self.gpu.synchronize()?;
        // SAFETY: on no callback's thread.
        check("cuptiActivityFlushAll", unsafe {
            (self.api.cuptiActivityFlushAll)(sys::CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)
        })?;
        // SAFETY: the function of a library that stays, in a process with a driver.
        let walker = unsafe { Library::new(self.api.cuptiActivityGetNextRecord) };
        let table = Table::new(self.version);
        let mut records = Records::default();
        for Filled(buffer, valid) in with_seen(|seen| std::mem::take(&mut seen.filled)) {
            // SAFETY: so much of the buffer was filled, and nobody writes to it any more.
            let bytes = unsafe { cupti_sys::records::bytes(buffer.as_ptr().cast(), valid) };
            for record in table.walk(bytes, walker) {
                if let Some(kernel) = record.view::<Kernel>() {
                    let id = kernel.get(Kernel::CORRELATION_ID).unwrap_or_default();
                    records.kernels.push((id, kernel.get(Kernel::GRAPH_NODE_ID).unwrap_or_default()));
                } else if let Some(id) = record.view::<ExternalCorrelation>() {
                    let call = id.get(ExternalCorrelation::CORRELATION_ID).unwrap_or_default();
                    records.external.insert(call, id.get(ExternalCorrelation::EXTERNAL_ID).unwrap_or_default());
                }
            }
        }
        Ok(records)
    }
}

/// How finely the GPU's timer counts.
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

/// Whether the callback at a launch names the correlation id that the kernel's record has.
pub(super) fn correlation(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    for _ in 0..workload.repeats {
        trial.launch()?;
    }
    let Records { kernels, .. } = trial.records()?;
    let launches = with_seen(|seen| seen.launches.clone());
    let records: BTreeSet<u32> = kernels.iter().map(|(id, _)| *id).collect();
    let same = launches.iter().filter(|id| records.contains(id)).count();
    let in_order = kernels.iter().map(|(id, _)| *id).eq(launches.iter().copied());
    let figures = [
        ("launches", launches.len() as f64),
        ("records", kernels.len() as f64),
        ("same", same as f64),
        ("in_order", f64::from(u8::from(in_order))),
    ];
    told.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

/// Whether an external id that was pushed at a launch comes with it, where all calls of the driver are recorded or the launch alone.
pub(super) fn external(workload: &Workload, is_single: bool, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    trial.enable(sys::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)?;
    if is_single {
        let Some(enable) = trial.api.cuptiActivityEnableDriverApi else {
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
        check("push", unsafe { (trial.api.cuptiActivityPushExternalCorrelationId)(KIND, 1000 + id) })?;
        trial.launch()?;
        let mut popped = 0;
        // SAFETY: the number is writable.
        check("pop", unsafe { (trial.api.cuptiActivityPopExternalCorrelationId)(KIND, &raw mut popped) })?;
    }
    let Records { external, .. } = trial.records()?;
    let launches = with_seen(|seen| seen.launches.clone());
    let right = launches.iter().zip(1000..).filter(|(call, id)| external.get(call) == Some(id)).count();
    told.figures.insert("launches".into(), launches.len() as f64);
    told.figures.insert("ids".into(), external.len() as f64);
    told.figures.insert("right".into(), right as f64);
    Ok(())
}

/// Whether the node that a record names can be followed back to the captured one: at once, through a clone, and after an update.
pub(super) fn graph_ids(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::begin(workload)?;
    let capture = || {
        trial.stream.begin_capture()?;
        trial.launch()?;
        trial.launch()?;
        trial.stream.end_capture()
    };
    // Of the kernels that came since, those whose node leads back to one that was created.
    let follow = |told: &mut Told, what: &str| {
        let Records { kernels, .. } = trial.records()?;
        let (created, cloned) = with_seen(|seen| (seen.created.clone(), seen.cloned.clone()));
        let origin: BTreeMap<u64, u64> = cloned.into_iter().collect();
        let leads_back = |mut node: u64| {
            // Clones of clones end somewhere.
            for _ in 0..16 {
                if created.contains(&node) {
                    return true;
                }
                let Some(before) = origin.get(&node) else { return false };
                node = *before;
            }
            false
        };
        let nodes: BTreeSet<u64> = kernels.iter().map(|(_, node)| *node).collect();
        told.figures.insert(format!("{what}_kernels"), kernels.len() as f64);
        told.figures.insert(format!("{what}_nodes"), nodes.len() as f64);
        let followed = kernels.iter().filter(|(_, node)| leads_back(*node)).count();
        told.figures.insert(format!("{what}_followed"), followed as f64);
        Ok::<_, String>(())
    };
    let graph = capture()?;
    let exec = graph.instantiate()?;
    for _ in 0..workload.repeats {
        exec.launch(trial.stream)?;
    }
    follow(told, "captured")?;
    match graph.copy()? {
        None => drop(told.words.insert("cloned".into(), "this driver has no cuGraphClone".into())),
        Some(copy) => {
            let exec = copy.instantiate()?;
            for _ in 0..workload.repeats {
                exec.launch(trial.stream)?;
            }
            follow(told, "cloned")?;
        }
    }
    let other = capture()?;
    if !exec.update(other)? {
        told.words.insert("updated".into(), "this driver has no cuGraphExecUpdate".into());
        return Ok(());
    }
    for _ in 0..workload.repeats {
        exec.launch(trial.stream)?;
    }
    follow(told, "updated")
}

/// `CUpti_CallbackFunc`. These callbacks are few, and nothing is measured meanwhile: it may lock and allocate.
///
/// # Safety
///
/// As CUPTI calls it: `data` is the structure of that domain and id, for the length of the call.
unsafe extern "C" fn on_event(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    if domain == sys::CUPTI_CB_DOMAIN_DRIVER_API {
        // SAFETY: the structure of this domain.
        let call = unsafe { &*data.cast::<sys::CUpti_CallbackData>() };
        if call.callbackSite == sys::CUPTI_API_ENTER {
            with_seen(|seen| seen.launches.push(call.correlationId));
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
        // SAFETY: a node that CUPTI just showed, and a writable number; allowed in this callback.
        let result = unsafe { (api.cuptiGetGraphNodeId)(node, &raw mut number) };
        (result == sys::CUPTI_SUCCESS).then_some(number)
    };
    match id {
        sys::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED => {
            with_seen(|seen| seen.created.extend(number(graph.node)));
        }
        _ => with_seen(|seen| seen.cloned.extend(number(graph.node).zip(number(graph.originalNode)))),
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
/// As CUPTI calls it: the buffer is one that was lent, and CUPTI does not use it any more.
unsafe extern "C" fn take(_: sys::CUcontext, _: u32, buffer: *mut u8, size: usize, valid: usize) {
    // SAFETY: it was leaked as so many words, and nobody else has it.
    let words = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u64>(), size / 8) };
    with_seen(|seen| seen.filled.push(Filled(words, valid)));
}
