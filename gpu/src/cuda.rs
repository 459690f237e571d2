//! The part of the driver that the workloads use: a GPU, streams, memory, graphs, and the suite's
//! own kernels.
//!
//! Everything goes through `cudarc`, which opens `libcuda.so.1` at the first call; [`Gpu::open`]
//! first checks that there is one. Objects are not destroyed individually, because a workload is a
//! process that ends.
//!
//! Unless a function says otherwise, it fails when the driver refuses.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;

/// The suite's kernels, terminated by a zero as the driver requires.
const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

/// A GPU with its primary context, and the suite's kernels in it.
#[derive(Debug)]
pub struct Gpu {
    spin: sys::CUfunction,
    readings: sys::CUfunction,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream(sys::CUstream);

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event(sys::CUevent);

/// Memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(sys::CUdeviceptr);

/// What a stream captured.
#[derive(Clone, Copy, Debug)]
pub struct Graph(sys::CUgraph);

/// An executable graph.
#[derive(Clone, Copy, Debug)]
pub struct Exec(sys::CUgraphExec);

/// The part of CUDA's runtime that launches graphs: its calls contain calls into the driver.
#[derive(Debug)]
pub struct Runtime {
    graph_launch: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
}

/// A description of a GPU.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// Its compute capability, `9.0`.
    pub capability: String,
    /// Its multiprocessors.
    pub multiprocessors: i32,
}

/// Reports what failed, and how.
fn check(what: &str, result: sys::CUresult) -> Result<(), String> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{what}: {code:?}")),
    }
}

/// Starts the driver.
///
/// # Errors
///
/// When there is none, or it does not start.
pub fn start() -> Result<(), String> {
    // SAFETY: opens the driver's library, whose initialisers are the driver's.
    if !unsafe { sys::is_culib_present() } {
        return Err("libcuda.so.1 is not there".into());
    }
    // SAFETY: it takes flags, of which there are none.
    check("cuInit", unsafe { sys::cuInit(0) })
}

/// The newest CUDA that the driver supports: 13000 is 13.0. Call it after [`start`].
///
/// # Errors
///
/// When the driver does not report it.
pub fn version() -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: the number is writable.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}

/// All GPUs. Call it after [`start`].
///
/// # Errors
///
/// When the driver does not report them.
pub fn gpus() -> Result<Vec<Description>, String> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    };
    let mut count = 0;
    // SAFETY: the number is writable.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let describe = |ordinal| {
        let (mut device, mut name, mut memory) = (0, [0; 128], 0);
        let attribute = |what, device| {
            let mut value = 0;
            // SAFETY: the number is writable.
            check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, what, device) })?;
            Ok::<_, String>(value)
        };
        // SAFETY: all places are writable, and the name has the stated length; the driver ends it
        // with a zero.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal))?;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
            check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut memory, device))?;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let capability = format!("{}.{}", attribute(MAJOR, device)?, attribute(MINOR, device)?);
        let multiprocessors = attribute(MULTIPROCESSORS, device)?;
        Ok(Description { name, memory: memory as u64, capability, multiprocessors })
    };
    (0..count).map(describe).collect()
}

/// Whether the driver exports a function of this name. Call it after [`start`].
#[must_use]
pub fn has(function: &str) -> bool {
    // SAFETY: the address is not called here.
    unsafe { sys::culib().get::<*const c_void>(function.as_bytes()) }.is_ok()
}

impl Gpu {
    /// Opens a GPU and makes it the current one of this thread.
    ///
    /// # Errors
    ///
    /// When there is no driver, no such GPU, or the suite's kernels cannot be loaded.
    pub fn open(ordinal: u32) -> Result<Gpu, String> {
        start()?;
        let (mut device, mut context, mut module) = (0, ptr::null_mut(), ptr::null_mut());
        let kernel = |module, name: &CStr| {
            let mut function = ptr::null_mut();
            // SAFETY: the place is writable, the name a C string, the module one of the driver's.
            let result = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", result).map(|()| function)
        };
        // SAFETY: all places are writable; the image is PTX ended by a zero.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal as i32))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            check("cuModuleLoadData", sys::cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast()))?;
        }
        Ok(Gpu { spin: kernel(module, c"ncclscope_spin")?, readings: kernel(module, c"ncclscope_globaltimer")? })
    }

    /// A new stream, which does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream, String> {
        /// `CU_STREAM_NON_BLOCKING`
        const NON_BLOCKING: u32 = 1;
        let mut stream = ptr::null_mut();
        // SAFETY: the place is writable.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, NON_BLOCKING) })?;
        Ok(Stream(stream))
    }

    /// A new event.
    pub fn event(&self) -> Result<Event, String> {
        /// `CU_EVENT_DISABLE_TIMING`
        const WITHOUT_TIME: u32 = 2;
        let mut event = ptr::null_mut();
        // SAFETY: the place is writable.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, WITHOUT_TIME) })?;
        Ok(Event(event))
    }

    /// Memory, not initialised.
    ///
    /// # Errors
    ///
    /// When there is none left.
    pub fn memory(&self, bytes: usize) -> Result<Buffer, String> {
        let mut address = 0;
        // SAFETY: the place is writable.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
        Ok(Buffer(address))
    }

    /// Waits until the GPU has done all work of this process.
    ///
    /// # Errors
    ///
    /// When something on the GPU failed.
    pub fn synchronize(&self) -> Result<(), String> {
        // SAFETY: no arguments.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Launches a kernel that runs for this many nanoseconds.
    pub fn spin(&self, stream: Stream, mut ns: u64) -> Result<(), String> {
        launch(self.spin, stream, &mut [(&raw mut ns).cast()])
    }

    /// The same through `cuLaunchKernelEx`, which runtimes since CUDA 12 use. Returns whether the
    /// driver has it.
    pub fn spin_ex(&self, stream: Stream, mut ns: u64) -> Result<bool, String> {
        if !has("cuLaunchKernelEx") {
            return Ok(false);
        }
        let config = sys::CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.0,
            attrs: ptr::null_mut(),
            numAttrs: 0,
        };
        let mut arguments = [(&raw mut ns).cast()];
        // SAFETY: the argument is that of the kernel, which the driver copies before it returns;
        // no attributes.
        let result =
            unsafe { sys::cuLaunchKernelEx(&raw const config, self.spin, arguments.as_mut_ptr(), ptr::null_mut()) };
        check("cuLaunchKernelEx", result).map(|()| true)
    }

    /// Consecutive readings of the GPU's timer, in ns.
    pub fn timer(&self, stream: Stream, count: u32) -> Result<Vec<u64>, String> {
        let mut readings = vec![0_u64; count as usize];
        let memory = self.memory(size_of_val(&readings[..]))?;
        self.timer_into(stream, memory, &mut readings)?;
        Ok(readings)
    }

    /// The same, into memory of the GPU that has room for them.
    pub fn timer_into(&self, stream: Stream, memory: Buffer, readings: &mut [u64]) -> Result<(), String> {
        let (mut address, mut count) = (memory.0, readings.len() as u32);
        launch(self.readings, stream, &mut [(&raw mut address).cast(), (&raw mut count).cast()])?;
        stream.synchronize()?;
        let bytes = size_of_val(readings);
        // SAFETY: both have this length.
        check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(readings.as_mut_ptr().cast(), memory.0, bytes) })
    }

    /// Bytes of its memory that are free; `None` if the driver does not report them.
    #[must_use]
    pub fn free_memory(&self) -> Option<u64> {
        if !has("cuMemGetInfo_v2") {
            return None;
        }
        let (mut free, mut all) = (0, 0);
        // SAFETY: both places are writable.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut all) };
        (result == sys::CUresult::CUDA_SUCCESS).then_some(free as u64)
    }
}

/// Launches a kernel of one thread.
fn launch(function: sys::CUfunction, stream: Stream, arguments: &mut [*mut c_void]) -> Result<(), String> {
    let none = ptr::null_mut();
    // SAFETY: the arguments are those of the kernel in `kernels.ptx`; the driver copies them
    // before it returns.
    let result = unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream.0, arguments.as_mut_ptr(), none) };
    check("cuLaunchKernel", result)
}

impl Runtime {
    /// Loads the runtime.
    ///
    /// # Errors
    ///
    /// When it cannot be loaded.
    pub fn load(path: &std::path::Path) -> Result<Runtime, String> {
        // SAFETY: the suite says that the file is a libcudart; it is never closed.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
        // SAFETY: the type is that of CUDA's header.
        let graph_launch =
            unsafe { library.get::<unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32>(b"cudaGraphLaunch\0") };
        let graph_launch = *graph_launch.map_err(|error| error.to_string())?;
        std::mem::forget(library);
        Ok(Runtime { graph_launch })
    }

    /// Launches a graph.
    ///
    /// # Errors
    ///
    /// When the runtime refuses.
    pub fn launch(&self, exec: Exec, stream: Stream) -> Result<(), String> {
        // SAFETY: both live as long as the process; the runtime's handles are the driver's.
        match unsafe { (self.graph_launch)(exec.0.cast(), stream.0.cast()) } {
            0 => Ok(()),
            code => Err(format!("cudaGraphLaunch: {code}")),
        }
    }
}

impl Stream {
    /// `cudaStream_t`
    #[must_use]
    pub fn handle(self) -> *mut c_void {
        self.0.cast()
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    ///
    /// When something on the GPU failed.
    pub fn synchronize(self) -> Result<(), String> {
        // SAFETY: the stream lives as long as the process.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Makes later work on this stream wait for earlier work on the other.
    pub fn wait_for(self, other: Stream, event: Event) -> Result<(), String> {
        // SAFETY: streams and event live as long as the process.
        unsafe {
            check("cuEventRecord", sys::cuEventRecord(event.0, other.0))?;
            check("cuStreamWaitEvent", sys::cuStreamWaitEvent(self.0, event.0, 0))
        }
    }

    /// Begins to capture the calls on this stream.
    pub fn begin_capture(self) -> Result<(), String> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the process.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) })
    }

    /// The same, into a graph that is [there for it](Graph::for_capture).
    pub fn begin_capture_to(self, graph: Graph) -> Result<(), String> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (none, no_data) = (ptr::null(), ptr::null());
        // SAFETY: stream and graph live as long as the process; nothing comes before what is
        // captured.
        let begun = unsafe { sys::cuStreamBeginCaptureToGraph(self.0, graph.0, none, no_data, 0, mode) };
        check("cuStreamBeginCaptureToGraph", begun)
    }

    /// Ends the capture and returns the graph.
    ///
    /// # Errors
    ///
    /// When the capture has become invalid.
    pub fn end_capture(self) -> Result<Graph, String> {
        let mut graph = ptr::null_mut();
        // SAFETY: the place is writable.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.0, &raw mut graph) })?;
        Ok(Graph(graph))
    }
}

impl Buffer {
    /// The address at this offset in bytes.
    #[must_use]
    pub fn at(self, offset: usize) -> *mut c_void {
        (self.0 as usize + offset) as *mut c_void
    }
}

impl Graph {
    /// Instantiates the graph.
    pub fn instantiate(self) -> Result<Exec, String> {
        let mut exec = ptr::null_mut();
        // SAFETY: the place is writable, the graph is one.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, self.0, 0) })?;
        Ok(Exec(exec))
    }

    /// A copy of it; `None` if the driver lacks the function.
    pub fn copy(self) -> Result<Option<Graph>, String> {
        if !has("cuGraphClone") {
            return Ok(None);
        }
        let mut copy = ptr::null_mut();
        // SAFETY: the place is writable, the graph is one.
        check("cuGraphClone", unsafe { sys::cuGraphClone(&raw mut copy, self.0) })?;
        Ok(Some(Graph(copy)))
    }

    /// A graph without nodes, to capture into; `None` if the driver lacks a function for that.
    pub fn for_capture() -> Result<Option<Graph>, String> {
        if has("cuStreamBeginCaptureToGraph") { Graph::empty() } else { Ok(None) }
    }

    /// A graph without nodes; `None` if the driver lacks the function.
    fn empty() -> Result<Option<Graph>, String> {
        if !has("cuGraphCreate") {
            return Ok(None);
        }
        let mut graph = ptr::null_mut();
        // SAFETY: the place is writable.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&raw mut graph, 0) })?;
        Ok(Some(Graph(graph)))
    }

    /// A graph whose only node is this graph: a copy of it, or the graph itself, which then belongs
    /// to the other one. `None` if the driver lacks a function.
    pub fn inside_another(self, is_moved: bool) -> Result<Option<Graph>, String> {
        let name = if is_moved { "cuGraphAddNode_v2" } else { "cuGraphAddChildGraphNode" };
        let Some(outer) = Graph::empty()?.filter(|_| has(name)) else { return Ok(None) };
        let mut node = ptr::null_mut();
        let added = if is_moved {
            let ownership = sys::CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
            // SAFETY: zeros are valid, and what is reserved must be zero.
            let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
            params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH;
            params.__bindgen_anon_1.graph = sys::CUDA_CHILD_GRAPH_NODE_PARAMS { graph: self.0, ownership };
            let (none, no_data) = (ptr::null(), ptr::null());
            // SAFETY: the places are writable, both graphs are alive, and no node comes before.
            unsafe { sys::cuGraphAddNode_v2(&raw mut node, outer.0, none, no_data, 0, &raw mut params) }
        } else {
            // SAFETY: the place is writable, both graphs are alive, and no node comes before.
            unsafe { sys::cuGraphAddChildGraphNode(&raw mut node, outer.0, ptr::null(), 0, self.0) }
        };
        check(name, added).map(|()| Some(outer))
    }
}

impl Exec {
    /// Launches it.
    pub fn launch(self, stream: Stream) -> Result<(), String> {
        // SAFETY: both live as long as the process.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.0) })
    }

    /// Updates it with the parameters of another graph of the same shape. Returns whether the
    /// driver has the function.
    pub fn update(self, graph: Graph) -> Result<bool, String> {
        if !has("cuGraphExecUpdate_v2") {
            return Ok(false);
        }
        let mut info = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: ptr::null_mut(),
            errorFromNode: ptr::null_mut(),
        };
        // SAFETY: the information is writable; exec and graph are alive.
        check("cuGraphExecUpdate", unsafe { sys::cuGraphExecUpdate_v2(self.0, graph.0, &raw mut info) })?;
        Ok(true)
    }
}

impl Exec {
    /// Destroys it. Communicators count the graphs with work of theirs, and wait until the last
    /// one is destroyed.
    pub fn destroy(self) -> Result<(), String> {
        // SAFETY: nobody uses it afterwards.
        check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.0) })
    }
}

impl Graph {
    /// Destroys it.
    pub fn destroy(self) -> Result<(), String> {
        // SAFETY: nobody uses it afterwards.
        check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(self.0) })
    }
}
