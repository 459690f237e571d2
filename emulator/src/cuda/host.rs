//! The functions that the job calls: the same machine that libnccl uses, behind a safe interface.
//!
//! Each function means what CUDA's function of the same name means. As in CUDA, each thread has
//! its own current device.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use super::device;
use super::error::check;
use super::runtime::{self, Out};
use super::work::Body;
use super::{Error, machine};

/// Makes a device the current one of this thread.
///
/// # Errors
///
/// When there is no such device.
pub fn set_device(device: u32) -> Result<(), Error> {
    let device = c_int::try_from(device).map_err(|_| Error::InvalidDevice)?;
    check(runtime::cudaSetDevice(device))
}

/// Memory of a device, freed on drop. Work already queued may go on using it; the memory is
/// released when that work is done.
#[derive(Debug)]
pub struct DeviceBuffer {
    address: *mut u8,
}

// SAFETY: an address of the process's memory, which any thread may pass on. Reads and writes are
// up to whoever orders the work.
unsafe impl Send for DeviceBuffer {}
// SAFETY: as above.
unsafe impl Sync for DeviceBuffer {}

/// Allocates memory of the current device; it is zeroed.
///
/// # Errors
///
/// When there is none left.
pub fn malloc(bytes: usize) -> Result<DeviceBuffer, Error> {
    let mut address = std::ptr::null_mut();
    check(runtime::cudaMalloc(Out::new(&mut address), bytes))?;
    Ok(DeviceBuffer { address: address.cast() })
}

impl DeviceBuffer {
    /// Where it is.
    pub fn as_ptr(&self) -> *mut c_void {
        self.address.cast()
    }

    /// Its address as a number, as the truth shows it.
    pub fn address(&self) -> u64 {
        self.address as u64
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and nobody else frees it.
        unsafe { runtime::cudaFree(self.address.cast()) };
    }
}

/// A stream. A created one is destroyed on drop, after its work is done.
#[derive(Debug)]
pub struct Stream(Owned);

impl Stream {
    /// Creates a stream on the current device. Like NCCL's own streams it does not synchronise
    /// with the default stream.
    ///
    /// # Errors
    ///
    /// When no thread can be started for it.
    pub fn create() -> Result<Stream, Error> {
        /// `cudaStreamNonBlocking`.
        const NON_BLOCKING: u32 = 1;
        Owned::new(|out| runtime::cudaStreamCreateWithFlags(out, NON_BLOCKING), runtime::cudaStreamDestroy).map(Stream)
    }

    /// The default stream of whichever device is current when it is used.
    #[allow(clippy::should_implement_trait, reason = "the name is CUDA's")]
    pub fn default() -> Stream {
        Stream(Owned { handle: std::ptr::null_mut(), destroy: runtime::cudaStreamDestroy })
    }

    /// `cudaStream_t`.
    pub fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    /// The stream's id in its context, as CUPTI gives it.
    pub fn id(&self) -> u32 {
        device::stream(self.handle()).map_or(0, |stream| stream.id)
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    ///
    /// When the stream is capturing.
    pub fn synchronize(&self) -> Result<(), Error> {
        check(runtime::cudaStreamSynchronize(self.handle()))
    }

    /// Whether all queued work is done.
    ///
    /// # Errors
    ///
    /// When the stream is capturing.
    pub fn query(&self) -> Result<bool, Error> {
        done(runtime::cudaStreamQuery(self.handle()))
    }

    /// Records an event, which happens when the work queued before it is done.
    ///
    /// # Errors
    ///
    /// When the stream's capture has become invalid.
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        check(runtime::cudaEventRecord(event.handle(), self.handle()))
    }

    /// Makes later work in the stream wait for the event. If the event was recorded in a capture,
    /// the stream joins that capture.
    ///
    /// # Errors
    ///
    /// When the stream is capturing and the event is not in a capture, or when both are in
    /// different captures.
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        check(runtime::cudaStreamWaitEvent(self.handle(), event.handle(), 0))
    }

    /// From now on calls are captured in a graph and not executed
    /// (`cudaStreamCaptureModeThreadLocal`).
    ///
    /// # Errors
    ///
    /// When it is capturing, or is the default stream.
    pub fn begin_capture(&self) -> Result<(), Error> {
        /// `cudaStreamCaptureModeThreadLocal`.
        const THREAD_LOCAL: c_int = 1;
        check(runtime::cudaStreamBeginCapture(self.handle(), THREAD_LOCAL))
    }

    /// Ends the capture that this stream began.
    ///
    /// # Errors
    ///
    /// When it began none, when the capture has become invalid, or when a stream that joined is
    /// not joined back.
    pub fn end_capture(&self) -> Result<Graph, Error> {
        Graph::new(|out| runtime::cudaStreamEndCapture(self.handle(), out))
    }

    /// Copies memory, in the order of the stream.
    ///
    /// # Errors
    ///
    /// When the stream's capture has become invalid.
    ///
    /// # Safety
    ///
    /// Both ranges must exist until the copy has been made; nobody else may write to either
    /// meanwhile.
    pub unsafe fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<(), Error> {
        /// `cudaMemcpyDefault`: the addresses give the direction.
        const DEFAULT: c_int = 4;
        // SAFETY: the caller promises the ranges.
        check(unsafe { runtime::memcpy_async(to, from, bytes, DEFAULT, self.handle()) })
    }

    /// Sets memory to a byte, in the order of the stream.
    ///
    /// # Errors
    ///
    /// When the stream's capture has become invalid.
    ///
    /// # Safety
    ///
    /// The range must exist until this is done; nobody else may use it meanwhile.
    pub unsafe fn set(&self, at: *mut c_void, byte: u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller promises the range.
        check(unsafe { runtime::memset_async(at, byte.into(), bytes, self.handle()) })
    }

    /// Runs a kernel of the application. It is observed and in the truth, like any other kernel.
    /// It does `work` and lasts at least `duration_ns`, which the caller has scaled by the pace of
    /// the GPU. In a captured graph it does `work` at every replay.
    ///
    /// # Errors
    ///
    /// When the stream's capture has become invalid.
    pub fn compute(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        duration_ns: u64,
        work: impl FnMut() + Send + 'static,
    ) -> Result<(), Error> {
        let (name, function) = machine().names.of_kernel(name);
        check(runtime::launch(function, &name, grid, block, std::ptr::null(), 0, self.handle(), || {
            Ok(Body::Compute { duration_ns, work: Mutex::new(Box::new(work)) })
        }))
    }

    /// Queues work in the stream that no observer sees and the truth does not mention. The job
    /// fills and checks its buffers this way. In a captured graph the work happens at every
    /// replay.
    ///
    /// # Errors
    ///
    /// When the stream's capture has become invalid.
    pub fn host_work(&self, work: impl FnMut() + Send + 'static) -> Result<(), Error> {
        runtime::submit_unobserved(self.handle(), Box::new(work))
    }
}

/// An event; destroyed on drop.
#[derive(Debug)]
pub struct Event(Owned);

impl Event {
    /// Creates an event.
    ///
    /// # Errors
    ///
    /// None so far; CUDA's can fail.
    pub fn create() -> Result<Event, Error> {
        Owned::new(|out| runtime::cudaEventCreate(out), runtime::cudaEventDestroy).map(Event)
    }

    /// `cudaEvent_t`.
    pub fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    /// Waits until it has happened.
    ///
    /// # Errors
    ///
    /// When it was last recorded in a capture.
    pub fn synchronize(&self) -> Result<(), Error> {
        check(runtime::cudaEventSynchronize(self.handle()))
    }

    /// Whether it has happened.
    ///
    /// # Errors
    ///
    /// When it was last recorded in a capture.
    pub fn query(&self) -> Result<bool, Error> {
        done(runtime::cudaEventQuery(self.handle()))
    }
}

/// A graph, destroyed on drop.
#[derive(Debug)]
pub struct Graph(Owned);

impl Graph {
    fn new(make: impl FnOnce(Out<'_, *mut c_void>) -> c_int) -> Result<Graph, Error> {
        Owned::new(make, runtime::cudaGraphDestroy).map(Graph)
    }

    /// Makes an executable graph of it.
    ///
    /// # Errors
    ///
    /// None so far; CUDA's can fail.
    pub fn instantiate(&self) -> Result<Exec, Error> {
        let make = |out: Out<_>| runtime::graph_instantiate(out, self.handle(), 0);
        Owned::new(make, runtime::cudaGraphExecDestroy).map(Exec)
    }

    /// A graph whose only node is this graph as a child graph.
    ///
    /// # Errors
    ///
    /// None so far; CUDA's can fail.
    pub fn nest(&self) -> Result<Graph, Error> {
        Graph::new(|out| runtime::graph_with_child(out, self.handle()))
    }

    /// A clone of it.
    ///
    /// # Errors
    ///
    /// Like [`Graph::nest`].
    pub fn duplicate(&self) -> Result<Graph, Error> {
        Graph::new(|out| runtime::graph_clone(out, self.handle()))
    }

    /// `cudaGraph_t`.
    pub fn handle(&self) -> *mut c_void {
        self.0.handle
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> usize {
        machine().graphs.get(self.handle()).map_or(0, |graph| graph.nodes().len())
    }
}

/// An executable graph; destroyed on drop, after launches of it are done.
#[derive(Debug)]
pub struct Exec(Owned);

impl Exec {
    /// Launches it in the order of a stream.
    ///
    /// # Errors
    ///
    /// When the stream is capturing: launching a graph inside a capture is not emulated.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        check(runtime::graph_launch(self.handle(), stream.handle()))
    }

    /// Makes it do what another graph of the same shape does.
    ///
    /// # Errors
    ///
    /// When the graph has another shape.
    pub fn update(&self, graph: &Graph) -> Result<(), Error> {
        check(runtime::graph_exec_update(self.handle(), graph.handle(), std::ptr::null_mut()))
    }

    /// `cudaGraphExec_t`.
    pub fn handle(&self) -> *mut c_void {
        self.0.handle
    }
}

/// An object of the machine, destroyed on drop. A null handle stands for one that nobody made.
#[derive(Debug)]
struct Owned {
    handle: *mut c_void,
    destroy: extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the machine looks the object up by its handle, and synchronises every access.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn new(
        make: impl FnOnce(Out<'_, *mut c_void>) -> c_int,
        destroy: extern "C" fn(*mut c_void) -> c_int,
    ) -> Result<Owned, Error> {
        let mut handle = std::ptr::null_mut();
        check(make(Out::new(&mut handle)))?;
        Ok(Owned { handle, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            (self.destroy)(self.handle);
        }
    }
}

/// Whether what was asked for is done.
fn done(answer: c_int) -> Result<bool, Error> {
    match check(answer) {
        Ok(()) => Ok(true),
        Err(Error::NotReady) => Ok(false),
        Err(error) => Err(error),
    }
}
