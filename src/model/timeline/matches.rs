//! How kernels are matched to operations, or why they are not, with counts.

use super::ChannelChecks;

/// How a kernel was matched to its operations, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// It was launched between the start and the stop of a KernelLaunch on the same thread. Exact.
    Bracket,
    /// It was launched while the external id of a KernelLaunch was pushed on the thread, between
    /// that KernelLaunch's start and stop. Exact.
    External,
    /// It ran from a graph node that was recorded between the start and the stop of a KernelLaunch.
    /// Exact.
    GraphNode,
    /// As `GraphNode`, but the count of launches does not show which run of the graph it was:
    /// launches were not seen, or NCCL's records and times contradict the count. The run is
    /// inferred from times, or left open. Or its graph was updated, and CUPTI did not say that the
    /// node was, because its parameters stayed the same.
    GraphReplay,
    /// It was launched inside a GroupApi, without a KernelLaunch, so it belongs to the calls of
    /// that group about which NCCL reports nothing else.
    ApiBracket,
    /// Its launch was followed by a Group on the same thread (interfaces without KernelLaunch, or
    /// records were lost meanwhile). Inferred.
    ThreadOrder,
    /// By the GPU's timer, the channels of an operation ran in it and in no other kernel. Inferred.
    DeviceTimer,
    /// It ran from a graph whose nodes are the launches of one capture, in order. Inferred; only
    /// for other tools' files.
    CaptureOrder,
    /// It was launched, or ran, inside a range that names the call: `ncclSend`, `nccl:all_reduce`.
    /// Inferred; only for other tools' files.
    Range,
    /// Its own name says so, and it carries nothing else: a collective that a framework wrote
    /// itself. Inferred; only for other tools' files.
    KernelName,
    /// It was matched by one of these methods, but NCCL's own times rule that out.
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

    /// As the trace words it.
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
    /// Its launch was not seen: it came before the recording, or there was no room to record it.
    NoLaunch,
    /// Its launch was seen, but NCCL handed over no operations for it.
    NoGroup,
    /// It was launched in a group whose calls all have kernels of their own.
    NoCall,
    /// It was launched in a group in which several kernels carry calls, and nothing shows which of
    /// them it carried.
    SeveralCalls,
    /// It ran from a graph node whose capture was not seen.
    UnknownNode,
    /// It ran from a graph whose capture was seen, but NCCL reported nothing about the launch
    /// behind its node.
    UntoldNode,
    /// Its launch is no longer remembered.
    Forgotten,
    /// It ran from a graph, and the other tool's file does not say from which node.
    NoNode,
    /// It ran from a graph, and calls that may have captured it are missing.
    CallsLost,
    /// It ran from a graph that cannot have come from any capture.
    NoCapture,
    /// It ran from a graph that may come from several captures, or whose capture several graphs
    /// claim.
    SeveralCaptures,
    /// It ran from a graph that was changed after its creation.
    GraphChanged,
    /// It ran from a graph with a known capture, but which replay it was is not known.
    SeveralReplays,
    /// Its launch is in the other tool's file, which does not say what was asked for.
    NotSaid,
    /// The other tool's file has neither its launch nor what was asked for.
    NotInFile,
}

impl Unmatched {
    /// As the trace words it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Unmatched::NoLaunch => "its launch was not seen",
            Unmatched::NoGroup => "NCCL handed over no operation for its launch",
            Unmatched::NoCall => "all calls of its group have kernels of their own",
            Unmatched::SeveralCalls => "which of its group's calls it carried cannot be told",
            Unmatched::UnknownNode => "no capture is known behind its node",
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

/// What became of the kernels, with counts.
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
    /// CUPTI's records that are impossible.
    pub implausible: u64,
    /// Begins of NVTX ranges without an end, and ends without a begin.
    pub unpaired_markers: u64,
    /// Kernels that had not ended when CUPTI was flushed by force, and so have no record of their
    /// end.
    pub unfinished: u64,
    /// Kernels of NCCL with impossible times; they are included in `implausible`.
    pub untimed: u64,
    /// External ids that another process made, or another tool.
    pub foreign_ids: u64,
    /// Records that CUPTI says it dropped.
    pub dropped: u64,
    /// Buffers of records that were lost because none was free.
    pub discarded_buffers: u64,
    /// Records that were not drawn, because the file had reached its size limit.
    pub discarded: u64,
    /// Kernels whose times contradict NCCL's own times.
    pub mistimed: u64,
    /// The least and the most that CUPTI's times of kernels may be late, in ns, without
    /// contradicting anything NCCL saw; early if below zero. `None` where nothing bounds it.
    pub cupti_off: [Option<i64>; 2],
    /// What kernel channels show about the kernels.
    pub channels: ChannelChecks,
}

impl Matches {
    /// The count of kernels matched by a method.
    pub fn by(&mut self, method: Method) -> &mut u64 {
        let index = Method::ALL.iter().position(|it| *it == method).unwrap_or_default();
        &mut self.matched[index]
    }
}
