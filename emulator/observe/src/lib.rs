//! The interface between emulated GPUs and an emulated CUPTI.
//!
//! The emulator's host program holds the GPUs. The emulated `libcupti.so` is a separate library,
//! as the real one is. They are connected by this table of C functions: the library looks up
//! [`ATTACH`] in the program and passes an [`Observer`]. All structures are `repr(C)`, because the
//! two sides are linked separately. Pointers in them are valid for the call.

use std::ffi::{c_char, c_void};

/// The symbol that the host program exports: `extern "C" fn(*const Observer) -> *const Machine`.
pub const ATTACH: &std::ffi::CStr = c"ncclscope_emulator_attach";

/// The type of [`ATTACH`]. The observer must live as long as the process. A null one only asks for
/// the machine.
///
/// Before it returns, it reports through `resource` what exists already: contexts, streams,
/// graphs, their nodes, executable graphs and their nodes, in the order of their creation. It
/// returns null when there is no machine.
pub type Attach = unsafe extern "C" fn(*const Observer) -> *const Machine;

/// Functions that the observer may call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The true time now, in ns of the machine's own unshifted `CLOCK_BOOTTIME`.
    pub now: extern "C" fn() -> u64,
    /// Converts a true time into the wall clock of this process's host, in ns since 1970.
    pub wall: extern "C" fn(u64) -> u64,
    /// How many GPUs there are.
    pub devices: extern "C" fn() -> u32,
    /// The process's current context, or null before the first call that makes one.
    pub current_context: extern "C" fn() -> *mut c_void,
    /// The next correlation id.
    pub correlation: extern "C" fn() -> u32,
    /// The calling thread's current device.
    pub current_device: extern "C" fn() -> u32,
    /// CUDA's version as `cuDriverGetVersion` returns it: 13000 is 13.0.
    pub driver_version: extern "C" fn() -> u32,
    /// Describes a GPU; false when there is none with that ordinal.
    pub describe: extern "C" fn(u32, *mut Gpu) -> bool,
    /// The machine's own implementation of the driver function with this name; null if it has
    /// none.
    pub function: extern "C" fn(*const c_char) -> *const c_void,
}

/// The id of the default stream of every context. It is not reported as
/// [`ResourceKind::StreamCreated`].
pub const DEFAULT_STREAM_ID: u32 = 7;

/// A description of a GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Gpu {
    /// Its name, as a C string.
    pub name: [c_char; 64],
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its PCI domain, bus and device.
    pub pci: [u32; 3],
    /// Its compute capability, major and minor.
    pub compute_capability: [u32; 2],
    /// Its memory, in bytes.
    pub memory: u64,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
}

/// Functions that the machine calls. Calls may come on any thread, but never two at once on the
/// same thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Observer {
    /// A call into the CUDA API begins or ends, on the thread that makes it.
    pub call: unsafe extern "C" fn(*const Call),
    /// An object was created or is about to be destroyed, on the thread that does it.
    pub resource: unsafe extern "C" fn(*const Resource),
    /// Work is given to the GPU, on the thread that makes the call, before the GPU can begin. It
    /// is called once for each [`Activity`] that will follow, with no times yet: once for each
    /// node when a graph is launched.
    pub queued: unsafe extern "C" fn(*const Activity),
    /// The GPU has finished some work, on a thread of the emulator.
    pub activity: unsafe extern "C" fn(*const Activity),
}

/// A call into the CUDA API.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The function, spelled as in CUDA's headers: `cuLaunchKernelEx`, `cudaMemcpyAsync`.
    pub function: *const c_char,
    /// Whether the call begins (0) or ends (1).
    pub exits: u32,
    /// Its correlation id, the same at both ends and in the activities that it causes.
    pub correlation: u32,
    /// The context.
    pub context: *mut c_void,
    /// The context's id, from 1.
    pub context_id: u32,
    /// The name of the kernel it launches, as in the symbol table, or null.
    pub symbol: *const c_char,
    /// Its parameters, laid out as the function's generated structure (`cuLaunchKernelEx_params`),
    /// or null.
    pub parameters: *const c_void,
    /// The value it returned; only at the end.
    pub result: i32,
    /// When, in true ns.
    pub at: u64,
}

/// The kinds of [`Resource`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// A context was created.
    ContextCreated,
    /// A context is about to be destroyed.
    ContextDestroyed,
    /// A stream was created.
    StreamCreated,
    /// A stream is about to be destroyed.
    StreamDestroyed,
    /// A graph was created.
    GraphCreated,
    /// A graph is about to be destroyed.
    GraphDestroyed,
    /// A graph was cloned from `original_graph`.
    GraphCloned,
    /// A node was created in a graph.
    NodeCreated,
    /// A node is about to be destroyed.
    NodeDestroyed,
    /// A node was cloned from `original_node` of `original_graph`.
    NodeCloned,
    /// An executable graph is about to be made of `original_graph`. The clone that it executes, and
    /// the clones of the nodes, have been reported before.
    GraphInstantiating,
    /// A node got another id, because another graph took it in.
    NodeMoved,
    /// An executable graph was made of `original_graph`.
    GraphInstantiated,
    /// `original_node` of an executable graph does the work of the node from now on.
    NodeUpdated,
    /// A node of an executable graph has other parameters from now on. `original_node` of
    /// `original_graph` is the one it was cloned from.
    NodeSet,
    /// An executable graph is about to be destroyed.
    ExecDestroyed,
}

/// An object that was created or is about to be destroyed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Resource {
    /// What happened.
    pub kind: ResourceKind,
    /// The device.
    pub device: u32,
    /// The context.
    pub context: *mut c_void,
    /// The context's id, from 1.
    pub context_id: u32,
    /// The stream's id, or 0.
    pub stream_id: u32,
    /// The stream's handle, or null.
    pub stream: *mut c_void,
    /// The graph's handle, or null.
    pub graph: *mut c_void,
    /// The graph's id, or 0.
    pub graph_id: u32,
    /// The graph it was cloned from, or null.
    pub original_graph: *mut c_void,
    /// The node's handle, or null.
    pub node: *mut c_void,
    /// The node's id as `cuptiGetGraphNodeId` returns it, or 0.
    pub node_id: u64,
    /// The node it was cloned from, or null.
    pub original_node: *mut c_void,
    /// The executable graph's handle, or null.
    pub exec: *mut c_void,
}

impl Resource {
    /// An object in a context, with nothing said of streams and graphs.
    pub fn new(kind: ResourceKind, device: u32, context: *mut c_void, context_id: u32) -> Resource {
        let null = std::ptr::null_mut();
        Resource {
            kind,
            device,
            context,
            context_id,
            stream_id: 0,
            stream: null,
            graph: null,
            graph_id: 0,
            original_graph: null,
            node: null,
            node_id: 0,
            original_node: null,
            exec: null,
        }
    }
}

/// The kinds of [`Activity`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivityKind {
    /// A kernel ran.
    Kernel,
    /// Memory was copied.
    Memcpy,
    /// Memory was set.
    Memset,
    /// A host function ran as a node of a graph.
    HostNode,
}

/// Work that a GPU has done.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Activity {
    /// Its kind.
    pub kind: ActivityKind,
    /// The device.
    pub device: u32,
    /// The context's id, from 1.
    pub context_id: u32,
    /// The stream's id: [`DEFAULT_STREAM_ID`], that of a created stream, or, for a branch of a
    /// graph, one that belongs to no stream.
    pub stream_id: u32,
    /// The correlation id of the call that caused it.
    pub correlation: u32,
    /// The executable node's id if it ran in a graph, or 0.
    pub node_id: u64,
    /// The executable graph's id if it ran in a graph, or 0.
    pub graph_id: u32,
    /// When it began, in true ns.
    pub start: u64,
    /// When it ended, in true ns.
    pub end: u64,
    /// The kernel's name as in the symbol table, or null.
    pub name: *const c_char,
    /// The grid, for a kernel.
    pub grid: [u32; 3],
    /// The block, for a kernel.
    pub block: [u32; 3],
    /// Shared memory asked for at the launch, in bytes.
    pub shared_memory: u32,
    /// Bytes copied or set; for a batch, the total.
    pub bytes: u64,
    /// The number of copies in a batch; 1 for a single copy.
    pub copies: u32,
    /// The destination of a copy between GPUs; otherwise the device itself.
    pub peer: u32,
    /// `cudaMemcpyKind` of a copy: 1 host to device, 2 device to host, 3 device to device.
    pub copy_kind: u32,
    /// The value set by a memset.
    pub value: u32,
}

impl Activity {
    /// Work on a stream, with nothing said of its times and of what it did.
    pub fn new(kind: ActivityKind, device: u32, context_id: u32, stream_id: u32) -> Activity {
        Activity {
            kind,
            device,
            context_id,
            stream_id,
            correlation: 0,
            node_id: 0,
            graph_id: 0,
            start: 0,
            end: 0,
            name: std::ptr::null(),
            grid: [0; 3],
            block: [0; 3],
            shared_memory: 0,
            bytes: 0,
            copies: 1,
            peer: device,
            copy_kind: 0,
            value: 0,
        }
    }
}
