//! What a script can do with CUDA: one GPU that runs kernels of any name, for the emulated libcuda
//! and libcupti, and functions of libraries.
//!
//! The libraries find the GPU through the symbol [`observe::ATTACH`], which only the program
//! `scripted-host` exports. Without them a kernel takes its time and nobody is told.

use observe::{Activity, ActivityKind, Call, DEFAULT_STREAM_ID, Gpu, Machine, Observer, Resource, ResourceKind};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::player::{boottime, clock};

/// The only context, which nobody looks into, and its id.
const CONTEXT: *mut c_void = std::ptr::without_provenance_mut(0xc0_0000);
const CONTEXT_ID: u32 = 1;

static MACHINE: Machine =
    Machine { now, wall, devices, current_context, correlation, current_device, driver_version, describe, function };
static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn now() -> u64 {
    boottime()
}

extern "C" fn wall(at: u64) -> u64 {
    // A thread may be interrupted between two clocks: the quickest of a few attempts counts.
    let attempt = |_| {
        let (before, wall, after) = (boottime(), clock(libc::CLOCK_REALTIME), boottime());
        (after - before, wall.saturating_sub(before.midpoint(after)))
    };
    at + (0..5).map(attempt).min().map_or(0, |(_, ahead)| ahead)
}

extern "C" fn devices() -> u32 {
    1
}

extern "C" fn current_context() -> *mut c_void {
    CONTEXT
}

extern "C" fn correlation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

extern "C" fn current_device() -> u32 {
    0
}

extern "C" fn driver_version() -> u32 {
    13000
}

extern "C" fn function(_: *const c_char) -> *const c_void {
    // Scripts launch through this file, not through the driver.
    std::ptr::null()
}

extern "C" fn describe(ordinal: u32, gpu: *mut Gpu) -> bool {
    let mut name = [0; 64];
    for (to, from) in name.iter_mut().zip(b"Scripted GPU") {
        *to = *from as c_char;
    }
    let described =
        Gpu { name, uuid: [7; 16], pci: [0; 3], compute_capability: [9, 0], memory: 1 << 30, multiprocessors: 1 };
    if ordinal == 0 {
        // SAFETY: the library passes a place for one description.
        unsafe { gpu.write(described) };
    }
    ordinal == 0
}

/// The implementation of the program's [`observe::ATTACH`].
///
/// # Safety
///
/// The observer is null or lives as long as the process.
pub unsafe extern "C" fn attach(observer: *const Observer) -> *const Machine {
    // SAFETY: the caller's promise.
    if let Some(known) = unsafe { observer.as_ref() } {
        OBSERVER.store(observer.cast_mut(), Ordering::Release);
        let context = Resource::new(ResourceKind::ContextCreated, 0, CONTEXT, CONTEXT_ID);
        // SAFETY: the library's function, and a resource that lives meanwhile.
        unsafe { (known.resource)(&raw const context) };
    }
    &raw const MACHINE
}

/// Launches a kernel on the default stream. It starts immediately, as after a programmatic launch,
/// and runs until the returned thread ends.
pub fn kernel(name: CString, time: Duration) -> JoinHandle<()> {
    // The name is used for as long as the process lives.
    let name = name.into_raw();
    let queued = queue(&[c"cuLaunchKernelEx"], ActivityKind::Kernel, name, 0);
    std::thread::spawn(move || queued.run(time))
}

/// A kernel's launch becomes a node of a graph.
pub fn capture(node: u64) {
    // SAFETY: null or a library's static.
    let Some(observer) = (unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }) else { return };
    let handle = |id: u64| std::ptr::without_provenance_mut(id as usize);
    let graph = (node >> 32) as u32;
    let created = Resource {
        graph: handle(graph.into()),
        graph_id: graph,
        node: handle(node),
        node_id: node,
        ..Resource::new(ResourceKind::NodeCreated, 0, CONTEXT, CONTEXT_ID)
    };
    // SAFETY: the library's function, and a resource that lives meanwhile.
    unsafe { (observer.resource)(&raw const created) };
}

/// Launches a graph with one node into the default stream: a host function that takes this long.
/// Waits for it.
pub fn host_node(node: u64, time: Duration) {
    // The runtime's call makes the driver's, which shares its correlation id.
    queue(&[c"cudaGraphLaunch", c"cuGraphLaunch"], ActivityKind::HostNode, std::ptr::null(), node).run(time);
}

/// Work given to the GPU.
struct Queued(Activity);

// SAFETY: its pointers name things that live as long as the process.
unsafe impl Send for Queued {}

/// Makes a call, inside it the next, and so on, and gives the GPU work. A node id contains the id
/// of its graph in the upper half.
fn queue(functions: &[&CStr], kind: ActivityKind, name: *const c_char, node_id: u64) -> Queued {
    // SAFETY: null or a library's static.
    let observer = unsafe { OBSERVER.load(Ordering::Acquire).as_ref() };
    let correlation = correlation();
    let call = |function: &CStr, exits| Call {
        function: function.as_ptr(),
        exits,
        correlation,
        context: CONTEXT,
        context_id: CONTEXT_ID,
        symbol: name,
        parameters: std::ptr::null(),
        result: 0,
        at: boottime(),
    };
    let activity = Activity {
        correlation,
        node_id,
        graph_id: (node_id >> 32) as u32,
        name,
        grid: [1; 3],
        block: [32, 1, 1],
        ..Activity::new(kind, 0, CONTEXT_ID, DEFAULT_STREAM_ID)
    };
    if let Some(observer) = observer {
        // SAFETY: the library's functions; what they are shown lives meanwhile.
        unsafe {
            functions.iter().for_each(|function| (observer.call)(&call(function, 0)));
            (observer.queued)(&activity);
            functions.iter().rev().for_each(|function| (observer.call)(&call(function, 1)));
        }
    }
    Queued(activity)
}

impl Queued {
    /// Runs it for this long.
    fn run(self, time: Duration) {
        let Queued(mut activity) = self;
        activity.start = boottime();
        std::thread::sleep(time);
        activity.end = boottime();
        // SAFETY: null or a library's static.
        if let Some(observer) = unsafe { OBSERVER.load(Ordering::Acquire).as_ref() } {
            // SAFETY: the library's function; what it is shown lives meanwhile.
            unsafe { (observer.activity)(&activity) };
        }
    }
}

/// Calls a function that takes nothing, or flags (0 is passed), and returns an `int`.
///
/// # Errors
///
/// If there is no such library or function.
///
/// # Safety
///
/// The function has that type.
pub unsafe fn call(library: &CStr, function: &str) -> Result<c_int, String> {
    // SAFETY: the function has that type, by the caller's promise.
    unsafe {
        let function = find(library, function)?;
        let function = std::mem::transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(function);
        Ok(function(0))
    }
}

/// Calls the plugin's `ncclscope_name_comm`.
///
/// # Errors
///
/// If there is no such library or function.
///
/// # Safety
///
/// The library is the plugin.
pub unsafe fn name_comm(library: &CStr, name: Option<&CStr>) -> Result<(), String> {
    // SAFETY: its header gives the function this type; the name lives meanwhile.
    unsafe {
        let function = find(library, "ncclscope_name_comm")?;
        let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(function);
        function(name.map_or(std::ptr::null(), CStr::as_ptr));
    }
    Ok(())
}

/// Calls the plugin's `ncclscope_step`.
///
/// # Errors
///
/// If there is no such library or function.
///
/// # Safety
///
/// The library is the plugin.
pub unsafe fn step(library: &CStr, number: u64) -> Result<(), String> {
    // SAFETY: its header gives the function this type.
    unsafe {
        let function = find(library, "ncclscope_step")?;
        let function = std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(function);
        function(number);
    }
    Ok(())
}

/// A subscription of a tool other than the profiler.
#[derive(Debug)]
pub struct Tool(*mut c_void);

// SAFETY: it is a name that CUPTI takes on any thread.
unsafe impl Send for Tool {}

unsafe extern "C" fn ignore(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}

impl Tool {
    /// Subscribes. Returns the tool, if CUPTI allows it, and CUPTI's answer.
    ///
    /// # Errors
    ///
    /// If there is no CUPTI in the process.
    pub fn subscribe() -> Result<(Option<Tool>, c_int), String> {
        type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);
        type Subscribe = unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> c_int;
        let mut handle = std::ptr::null_mut();
        // SAFETY: CUPTI's headers give the function this type; the handle is writable.
        let answer = unsafe {
            let subscribe = std::mem::transmute::<*mut c_void, Subscribe>(cupti("cuptiSubscribe")?);
            subscribe(&raw mut handle, ignore, std::ptr::null_mut())
        };
        Ok(((answer == 0).then_some(Tool(handle)), answer))
    }

    /// Ends the subscription. Returns CUPTI's answer.
    ///
    /// # Errors
    ///
    /// If there is no CUPTI in the process.
    pub fn unsubscribe(self) -> Result<c_int, String> {
        type Unsubscribe = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: CUPTI's headers give the function this type; the handle is that of a
        // subscription.
        unsafe {
            let unsubscribe = std::mem::transmute::<*mut c_void, Unsubscribe>(cupti("cuptiUnsubscribe")?);
            Ok(unsubscribe(self.0))
        }
    }
}

pub(crate) fn cupti(function: &str) -> Result<*mut c_void, String> {
    find(c"libcupti.so.13", function).or_else(|_| find(c"libcupti.so.12", function))
}

fn find(library: &CStr, function: &str) -> Result<*mut c_void, String> {
    let symbol = CString::new(function).map_err(|error| error.to_string())?;
    // SAFETY: C strings. Opening the library runs its constructors, which is what the script wants.
    let found = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        match handle.is_null() {
            true => return Err(format!("failed to open {}", library.to_string_lossy())),
            false => libc::dlsym(handle, symbol.as_ptr()),
        }
    };
    match found.is_null() {
        true => Err(format!("{} has no function {function}", library.to_string_lossy())),
        false => Ok(found),
    }
}
