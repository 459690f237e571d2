//! How kernels are matched to operations, or why not, counted.

use super::ChannelChecks;

/// How a kernel was matched to its operations, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// It was launched between start and stop of a KernelLaunch, on the same thread. Exact.
    Bracket,
    /// It was launched while the external id of a KernelLaunch was pushed on the thread, between start and stop of that. Exact.
    External,
    /// It ran from a node of a graph that was recorded between start and stop of a KernelLaunch. Exact.
    GraphNode,
    /// The same, but which run of the graph it was, the count of launches does not say: launches were not seen, or NCCL's records and times
    /// speak against it. Inferred from times, or left open.
    GraphReplay,
    /// It was launched inside a GroupApi, without a KernelLaunch, and so belongs to the calls of that group about which NCCL says nothing else.
    ApiBracket,
    /// Its launch was followed by a Group on the same thread (interfaces without KernelLaunch). Inferred.
    ThreadOrder,
    /// The channels of an operation ran in it and in no other kernel, by the GPU's timer. Inferred.
    DeviceTimer,
    /// It ran from a graph whose nodes are the launches of one capture, in their order. Inferred, of files of other tools only.
    CaptureOrder,
    /// It was launched, or ran, inside of a range that names the call: `ncclSend`, `nccl:all_reduce`. Inferred, of files of other tools only.
    Range,
    /// Its own name says so, and it carries nothing else: a collective that a framework wrote itself. Inferred, of files of other tools only.
    KernelName,
    /// One of these says so, and NCCL's own times say that it cannot be.
    Contradicted,
}

impl Method {
    /// Every method.
    pub const ALL: [Method; 11] = [
        Method::Bracket,
        Method::External,
        Method::GraphNode,
        Method::ApiBracket,
        Method::ThreadOrder,
        Method::DeviceTimer,
        Method::CaptureOrder,
        Method::Range,
        Method::KernelName,
        Method::GraphReplay,
        Method::Contradicted,
    ];

    /// As the trace says it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Method::Bracket => "exact (launch bracket)",
            Method::External => "exact (external id)",
            Method::GraphReplay => "inferred (graph replay)",
            Method::GraphNode => "exact (graph node)",
            Method::ApiBracket => "inferred (call bracket)",
            Method::ThreadOrder => "inferred (thread order)",
            Method::DeviceTimer => "inferred (stream and device timer)",
            Method::CaptureOrder => "inferred (order of capture)",
            Method::Range => "inferred (range)",
            Method::KernelName => "inferred (kernel's name)",
            Method::Contradicted => "contradicted",
        }
    }
}

/// Why one of NCCL's kernels has no operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// Its launch was not seen: it was made before the recording, or there was no room to record it.
    NoLaunch,
    /// Its launch was seen, and NCCL handed over no operations for it.
    NoGroup,
    /// It was launched in a group whose calls all have kernels of their own.
    NoCall,
    /// It ran from a node of a graph whose recording was not seen.
    UnknownNode,
    /// It ran from a graph whose recording was seen, and NCCL told nothing of the launch behind its node.
    UntoldNode,
    /// Its launch is no longer remembered.
    Forgotten,
    /// It ran from a graph, and the file of another tool does not say from which node.
    NoNode,
    /// It ran from a graph, and calls that may have captured it are missing.
    CallsLost,
    /// It ran from a graph of which nothing captured could be the origin.
    NoCapture,
    /// It ran from a graph whose origin could be one of several captures, or is claimed by several graphs.
    SeveralCaptures,
    /// It ran from a graph that was changed after it had been made.
    GraphChanged,
    /// It ran from a graph whose origin is known, and which of its replays it was is not.
    SeveralReplays,
    /// Its launch is in the file of another tool, which does not say what was asked for.
    NotSaid,
    /// The file of another tool does not have its launch, nor what was asked for.
    NotInFile,
}

impl Unmatched {
    /// As the trace says it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Unmatched::NoLaunch => "its launch was not seen",
            Unmatched::NoGroup => "NCCL handed over no operation for its launch",
            Unmatched::NoCall => "all calls of its group have kernels of their own",
            Unmatched::UnknownNode => "its graph was captured unseen",
            Unmatched::UntoldNode => "NCCL told nothing of its launch when its graph was captured",
            Unmatched::Forgotten => "its launch was too long ago",
            Unmatched::NoNode => "the file does not say from which node of its graph it ran",
            Unmatched::CallsLost => {
                "calls of NCCL are missing in the trace, and with them the order of what its graph captured"
            }
            Unmatched::NoCapture => "no capture in the trace has the launches of its graph, in their order",
            Unmatched::SeveralCaptures => "several captures could be its graph's, or several graphs of its capture",
            Unmatched::GraphChanged => "its graph may have been updated, so that its nodes are not those captured",
            Unmatched::SeveralReplays => "which replay of its graph it was cannot be told by the clocks",
            Unmatched::NotSaid => "its launch is in the file, and the file does not say what it was asked for",
            Unmatched::NotInFile => "its launch is not in the file",
        }
    }
}

/// What became of the kernels, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// Kernels of NCCL by method, in the order of [`Method::ALL`].
    pub matched: [u64; 11],
    /// Kernels of NCCL without operations.
    pub unmatched: u64,
    /// Kernels of the application.
    pub application: u64,
    /// KernelLaunches whose kernel CUPTI did not report.
    pub without_kernel: u64,
    /// Records of CUPTI's that cannot be true.
    pub implausible: u64,
    /// Begins of NVTX's ranges without an end, and ends without a begin.
    pub unpaired_markers: u64,
    /// Kernels that had not ended when CUPTI was flushed by force, and so have no record of their end.
    pub unfinished: u64,
    /// Kernels of NCCL whose times cannot be true; they are among the records that cannot.
    pub untimed: u64,
    /// External ids that another process made, or another tool.
    pub foreign_ids: u64,
    /// Records that CUPTI says it dropped.
    pub dropped: u64,
    /// Buffers of records that were lost because none was free.
    pub discarded_buffers: u64,
    /// Records that were not drawn, because the file had reached its size.
    pub discarded: u64,
    /// Kernels whose times NCCL's own contradict.
    pub mistimed: u64,
    /// How late CUPTI's times of kernels may be at least and at most, in ns, without that anything NCCL saw would speak against it;
    /// below zero they are early. `None` where nothing bounds it.
    pub cupti_off: [Option<i64>; 2],
    /// What kernel channels say about them.
    pub channels: ChannelChecks,
}

impl Matches {
    /// The kernels that were matched by a method.
    pub fn by(&mut self, method: Method) -> &mut u64 {
        let index = Method::ALL.iter().position(|it| *it == method).unwrap_or_default();
        &mut self.matched[index]
    }
}
