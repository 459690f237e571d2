//! The GPU's side: what CUPTI reports, as plain values whose times are already on the host's clock.

use std::sync::Arc;

use super::ids::Handle;
use super::time::HostNs;

/// One thing that CUPTI reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// A kernel ran.
    Kernel(Kernel),
    /// Memory was copied or set.
    Copy(Copy),
    /// A call into CUDA.
    CudaCall(CudaCall),
    /// The begin or end of an NVTX range, or a mark.
    Marker(Marker),
    /// The host ran a function for a graph.
    HostFunction(HostFunction),
    /// A GPU of the process.
    Device(Device),
    /// A context.
    Context(Context),
    /// A stream.
    Stream(Stream),
    /// A call into CUDA that was made while an external id was pushed on its thread.
    ExternalId {
        /// The id. If it is ours, it is the KernelLaunch that was open there.
        id: Handle,
        /// CUPTI's id of the call.
        correlation: u32,
    },
    /// Time that CUPTI itself took.
    Overhead(Overhead),
    /// Records that CUPTI dropped since the last report.
    Dropped(u64),
    /// A kernel without an end.
    Unfinished(Unfinished),
    /// A kernel that has ended, but whose times cannot be true.
    Untimed(Unfinished),
    /// Another record that cannot be true: without a time, with an end before its start, or of an
    /// unknown kind.
    Implausible,
}

/// The error of CUPTI's own conversion from the GPU's clock to the processor's, in ns. NVIDIA
/// states no figure; it is good to about a microsecond.
pub const GPU_STAMP_ERROR_NS: u32 = 1_000;

/// When something ran on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub start: HostNs,
    /// When it ended, at or after the start.
    pub end: HostNs,
    /// The error of both, in ns.
    pub error_ns: u32,
}

impl Span {
    /// The error of times whose error is unknown: those of other tools.
    pub const UNKNOWN_ERROR: u32 = u32::MAX;
}

/// Where something ran. CUPTI numbers streams per context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The device.
    pub device: u32,
    /// The context; 0 where another tool does not say, as of AMD's GPUs, which have none.
    pub context: u32,
    /// The stream in that context.
    pub stream: u32,
}

/// A kernel that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The id of the call that launched it. For a kernel of a graph that is the graph's launch.
    pub correlation: u32,
    /// The node of the executable graph it ran from, or 0.
    pub graph_node: u64,
    /// The executable graph, or 0.
    pub graph: u32,
    /// Blocks. For NCCL's kernels the first number is the number of channels.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Its name as in the symbol table.
    pub name: Arc<str>,
}

#[cfg(test)]
impl Kernel {
    /// A kernel of NCCL's that ran then, on a stream of the first GPU.
    pub(crate) fn during(span: Span) -> Kernel {
        let place = Place { device: 0, context: 1, stream: 7 };
        let (correlation, graph_node, graph, grid, block) = (0, 0, 0, [1; 3], [1; 3]);
        Kernel { span, place, correlation, graph_node, graph, grid, block, name: "ncclDevKernel".into() }
    }
}

/// Whether a kernel belongs to NCCL or to RCCL, its counterpart for AMD's GPUs, by its name:
/// mangled, plain, or demangled with the return type.
#[must_use]
pub fn is_nccl(name: &str) -> bool {
    let plain = match name.strip_prefix("_Z") {
        Some(mangled) => mangled.trim_start_matches(|digit: char| digit.is_ascii_digit()),
        None => name.strip_prefix("void ").unwrap_or(name),
    };
    ["ncclDevKernel", "ncclSymkDevKernel", "ncclSymDevKernel", "ncclKernel", "rcclGenericKernel", "mscclKernel"]
        .iter()
        .any(|it| plain.starts_with(it))
}

/// A kernel whose record has no end. CUPTI was forced to return the record before the kernel had
/// ended, and will not return it again. If CUPTI was not forced, the kernel has ended and the
/// record is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Where it was launched.
    pub place: Place,
    /// As [`Kernel::correlation`].
    pub correlation: u32,
    /// As [`Kernel::graph_node`].
    pub graph_node: u64,
    /// As [`Kernel::name`].
    pub name: Arc<str>,
}

/// A copy or a memset that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The id of the call that caused it.
    pub correlation: u32,
    /// The node of the executable graph it ran from, or 0.
    pub graph_node: u64,
    /// Bytes.
    pub bytes: u64,
    /// What was done.
    pub kind: CopyKind,
}

/// What a [`struct@Copy`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// From host to device.
    HostToDevice,
    /// From device to host.
    DeviceToHost,
    /// Within one device.
    DeviceToDevice,
    /// From one device to another.
    PeerToPeer,
    /// Memory was set to a value.
    Set,
    /// Anything else, as a `CUpti_ActivityMemcpyKind`.
    Other(u8),
}

/// A call into CUDA on a host thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaCall {
    /// When.
    pub span: Span,
    /// Whose function it is.
    pub api: Api,
    /// The function, as CUPTI spells it.
    pub name: Arc<str>,
    /// The thread, as the system's thread id.
    pub tid: i32,
    /// The thread's name when the call became known; empty if the thread had ended.
    pub thread: Arc<str>,
    /// CUPTI's id of the call, shared by the GPU work that it caused. A driver call made inside a
    /// runtime call has the runtime call's id.
    pub correlation: u32,
    /// What it returned: a `CUresult` or a `cudaError_t`.
    pub result: u32,
}

/// The begin or end of an NVTX range of the program, or a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// When.
    pub time: HostNs,
    /// The error of that, in ns.
    pub error_ns: u32,
    /// CUPTI's id of the range, shared by both of its markers.
    pub id: u32,
    /// What it marks.
    pub edge: Edge,
    /// The thread, as the system's thread id; `None` for a range of the process.
    pub tid: Option<i32>,
    /// The thread's name when the marker became known; empty if the thread had ended.
    pub thread: Arc<str>,
    /// The message; meaningless at an end.
    pub name: Arc<str>,
    /// The domain; `None` is NVTX's default domain.
    pub domain: Option<Arc<str>>,
}

/// What a [`Marker`] marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A range begins.
    Begin,
    /// A range ends.
    End,
    /// A moment.
    Mark,
}

/// The API that a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// CUDA's driver API.
    Driver,
    /// CUDA's runtime API.
    Runtime,
    /// AMD's HIP; only in files of other tools.
    Hip,
}

impl Api {
    /// How its tracks are named.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Api::Driver => "CUDA driver",
            Api::Runtime => "CUDA runtime",
            Api::Hip => "HIP runtime",
        }
    }
}

/// A function that the host ran as a node of a graph. Its stream waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFunction {
    /// When.
    pub span: Span,
    /// The stream that it belonged to.
    pub place: Place,
    /// The id of the graph's launch.
    pub correlation: u32,
    /// The executable graph.
    pub graph: u32,
    /// Its node in that graph.
    pub graph_node: u64,
    /// The thread that ran it, or 0.
    pub tid: i32,
}

/// A GPU of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub device: u32,
    /// Its name, such as `NVIDIA H200`.
    pub name: Arc<str>,
    /// Its UUID, or [`Device::NO_UUID`].
    pub uuid: [u8; 16],
}

impl Device {
    /// Stands for an unknown UUID: other tools do not report it.
    pub const NO_UUID: [u8; 16] = [0; 16];
}

/// A context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Its id.
    pub context: u32,
    /// Its device.
    pub device: u32,
    /// The id of its default stream.
    pub null_stream: u32,
}

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its context.
    pub context: u32,
    /// Its id.
    pub stream: u32,
    /// Its priority.
    pub priority: i32,
}

/// Time that CUPTI itself took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// When.
    pub span: Span,
    /// `CUpti_ActivityOverheadKind`.
    pub kind: u32,
    /// The thread that lost the time, if CUPTI says which.
    pub tid: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::is_nccl;

    /// Mangled and plain names are tested in `cupti::names`, which has to agree on them.
    #[test]
    fn demangled_kernels_of_nccl_are_recognised_by_name() {
        for (name, nccl) in [
            ("void ncclDevKernel_AllReduce_Sum_f32_RING_LL<true>(ncclDevKernelArgsStorage<4096ul>)", true),
            ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", true),
            ("void rcclGenericKernel<2, false>(ncclDevKernelArgsStorage<4096ul>)", true),
            ("void my_ncclDevKernel()", false),
        ] {
            assert_eq!(is_nccl(name), nccl, "{name}");
        }
    }
}
