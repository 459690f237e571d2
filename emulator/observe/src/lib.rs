//! What an emulated GPU tells an emulated CUPTI.
//!
//! The host program of the emulator holds the GPUs; the emulated `libcupti.so` is a library of its own, as the real one
//! is. Between them lies this table of C functions: the library asks the program for [`ATTACH`] and hands over an [`Observer`].
//! All structures are `repr(C)`, because the two sides are linked apart from each other. Pointers in them live for the call.

use std::ffi::{c_char, c_void};

/// The symbol that the host program exports: `extern "C" fn(*const Observer) -> *const Machine`.
pub const ATTACH: &std::ffi::CStr = c"ncclscope_emulator_attach";

/// The type of [`ATTACH`]. The observer must live as long as the process; null only asks for the machine.
///
/// Before it returns, it tells the observer through `resource` what exists already: contexts, streams, graphs, their nodes,
/// executable graphs and theirs, in the order in which they came to be. It returns null when there is no machine.
pub type Attach = unsafe extern "C" fn(*const Observer) -> *const Machine;

/// Functions that the observer asks for.
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
    /// CUDA's version as `cuDriverGetVersion` gives it: 13000 is 13.0.
    pub driver_version: extern "C" fn() -> u32,
    /// Describes a GPU; false when there is none of that ordinal.
    pub describe: extern "C" fn(u32, *mut Gpu) -> bool,
    /// The machine's own function of the driver that is exported under this name; null where it has none.
    pub function: extern "C" fn(*const c_char) -> *const c_void,
}

/// The id of the default stream of every context; no [`ResourceKind::StreamCreated`] tells of it.
pub const DEFAULT_STREAM_ID: u32 = 7;

/// What a GPU is like.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Gpu {
    /// Its name, ended by a zero.
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

/// Functions that the machine calls. Each may come on any thread, and never two for the same thread at once.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Observer {
    /// A call into the CUDA API begins or ends, on the thread that makes it.
    pub call: unsafe extern "C" fn(*const Call),
    /// Something came to be or went, on the thread that did it.
    pub resource: unsafe extern "C" fn(*const Resource),
    /// Something was given to the GPU to do, on the thread that makes the call, before the GPU can begin: one for each
    /// [`Activity`] that will follow, with no times yet. A graph's launch gives one for each of its nodes.
    pub queued: unsafe extern "C" fn(*const Activity),
    /// The GPU has done something, on a thread of the emulator.
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
    /// Its correlation id, the same at both ends and in the activity that follows from it.
    pub correlation: u32,
    /// The context.
    pub context: *mut c_void,
    /// The context's id, from 1.
    pub context_id: u32,
    /// The name of the kernel it launches as in the symbol table, or null.
    pub symbol: *const c_char,
    /// Its parameters, laid out as the generated structure of that function (`cuLaunchKernelEx_params`), or null.
    pub parameters: *const c_void,
    /// What it returned; only at the end.
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
    /// An executable graph was made of `original_graph`; the clone that it executes, and the clones of the nodes, were told
    /// before.
    GraphInstantiated,
    /// An executable graph is about to be destroyed.
    ExecDestroyed,
}

/// Something that came to be or went.
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
    /// The node's id as `cuptiGetGraphNodeId` gives it, or 0.
    pub node_id: u64,
    /// The node it was cloned from, or null.
    pub original_node: *mut c_void,
    /// `CUgraphNodeType`: 0 kernel, 1 memcpy, 2 memset, 3 host, 5 empty, 6 wait event, 7 event record.
    pub node_type: u32,
    /// The executable graph's handle, or null.
    pub exec: *mut c_void,
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

/// What a GPU has done.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Activity {
    /// What.
    pub kind: ActivityKind,
    /// The device.
    pub device: u32,
    /// The context's id, from 1.
    pub context_id: u32,
    /// The stream's id: [`DEFAULT_STREAM_ID`], that of a created stream, or, for a branch of a graph, one that no stream has.
    pub stream_id: u32,
    /// The correlation id of the call it follows from.
    pub correlation: u32,
    /// The executable node's id when it ran in a graph, or 0.
    pub node_id: u64,
    /// The executable graph's id when it ran in a graph, or 0.
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
    /// Bytes copied or set; of a batch, all of them.
    pub bytes: u64,
    /// How many copies a batch of them made; 1 for a single one.
    pub copies: u32,
    /// The device that a copy between GPUs went to; for all else the device itself.
    pub peer: u32,
    /// `cudaMemcpyKind` of a copy: 1 host to device, 2 device to host, 3 device to device.
    pub copy_kind: u32,
    /// The value set by a memset.
    pub value: u32,
}
