//! The joined result: what the correlator tells the trace, entry by entry, in the order of time.

use std::sync::Arc;

use super::activity;
use super::event::{self, Event};
use super::ids::Handle;
use super::time::{GpuNs, HostNs};
use super::word::Word;

/// One thing to draw or to note.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// When it happened.
    pub time: HostNs,
    /// What happened.
    pub what: What<'a>,
}

/// What an [`Entry`] says. A `Begin` may be followed by its `End` much later or never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What<'a> {
    /// A thread made its first call.
    Thread(Thread<'a>),
    /// A thread has ended.
    ThreadEnd(ThreadId),
    /// A communicator was initialised, or its identity became known.
    CommInit(&'a Comm),
    /// A communicator was finalized.
    CommFinalize(&'a Comm),
    /// A call on a host thread: the user's calls, launches, groups, the enqueueing of copies.
    CallBegin {
        /// The event.
        id: Handle,
        /// The thread it runs on.
        thread: ThreadId,
        /// The communicator it belongs to, if that is ours and known.
        comm: Option<&'a Comm>,
        /// The event.
        event: &'a Event,
        /// The operation it asks for, if it asks for one.
        operation: Option<&'a Operation>,
        /// `KernelLaunch`: the calls that it may carry out, those of its group and communicator that nothing has carried out yet. One alone
        /// is the one; of several, the hand-over that follows says which.
        asked_by: &'a [Handle],
        /// Why this may not be what it seems.
        doubt: Option<Doubt>,
    },
    /// A kernel had not ended when CUPTI was made to return its record.
    Unfinished {
        /// The kernel.
        kernel: &'a activity::Unfinished,
        /// Its communicator, if it is known to be NCCL's.
        comm: Option<&'a Comm>,
        /// What it carries; empty where that is not known, and for the application's.
        operations: &'a [Arc<Operation>],
        /// Of a captured launch: which run, counted from 1, and when its graph was launched.
        replay: Option<(u64, HostNs)>,
    },
    /// A kernel of NCCL's has ended by now, and nobody knows when.
    Untimed {
        /// Its communicator, if that is known.
        comm: Option<&'a Comm>,
        /// What it carried.
        operations: &'a [Arc<Operation>],
    },
    /// The call returned.
    CallEnd {
        /// The event.
        id: Handle,
        /// `GroupApi`: when the group's start had returned and when its end was called, if NCCL said so.
        group_marks: [Option<HostNs>; 2],
    },
    /// An operation is handed over to the GPU and the proxy.
    OperationBegin {
        /// The event.
        id: Handle,
        /// The thread that hands it over.
        thread: ThreadId,
        /// The call that asked for it, if NCCL says.
        call: Handle,
        /// Its communicator.
        comm: Option<&'a Comm>,
        /// The operation.
        operation: &'a Arc<Operation>,
        /// Graph replays: which run of the captured call, counted from 1.
        replay: Option<u32>,
        /// Why this may not be what it seems.
        doubt: Option<Doubt>,
    },
    /// The hand-over is done.
    OperationEnd {
        /// The event.
        id: Handle,
    },
    /// The progress thread took an operation of the network, which queues until its first sign of progress.
    ProxyOpTaken {
        /// The progress thread.
        thread: ThreadId,
    },
    /// A proxy operation makes progress for the first time.
    ProxyOpBegin {
        /// The event.
        id: Handle,
        /// The progress thread.
        thread: ThreadId,
        /// What is known of it.
        proxy: ProxyOp<'a>,
        /// For how long it had queued, ns: from when the progress thread took it.
        queued_ns: u64,
        /// That was told by [`What::ProxyOpTaken`].
        was_taken: bool,
    },
    /// A proxy operation reached a state (NCCL up to 2.26), which it keeps until the next.
    ProxyOpPhase {
        /// The event.
        id: Handle,
        /// The state's number.
        state: u16,
        /// Bytes transferred so far.
        bytes: u64,
        /// Transfers so far.
        steps: i32,
    },
    /// A proxy operation is done.
    ProxyOpEnd {
        /// The event.
        id: Handle,
    },
    /// Operations of one connection of the network that still queue: those before them have not ended.
    ProxyOpsQueued {
        /// The progress thread.
        thread: ThreadId,
        /// What is known of the first.
        proxy: ProxyOp<'a>,
        /// For how long it has queued, ns.
        queued_ns: u64,
        /// How many they are.
        count: u64,
        /// So many of those that [`What::ProxyOpTaken`] told will never be begun: their communicator has ended.
        given_up: u64,
    },
    /// A proxy operation was started, and neither progressed nor stopped, and none of its connection ever did: NCCL reports no more of
    /// transports other than NET.
    ProxyOpNever {
        /// The progress thread.
        thread: ThreadId,
        /// What is known of it.
        proxy: ProxyOp<'a>,
    },
    /// One transfer begins.
    StepBegin {
        /// The event.
        id: Handle,
        /// The proxy operation, drawn or not.
        op: Handle,
        /// The progress thread.
        thread: ThreadId,
        /// Its number.
        step: i32,
        /// The proxy operation's facts, if it is known.
        proxy: Option<ProxyOp<'a>>,
    },
    /// A transfer waits for something else from here on.
    StepPhase {
        /// The event.
        id: Handle,
        /// The state's number.
        state: u16,
        /// Bytes of the transfer, in the two states where NCCL tells them.
        bytes: Option<u64>,
    },
    /// A transfer is done.
    StepEnd {
        /// The event.
        id: Handle,
        /// How often NCCL started it, once or more.
        starts: u32,
        /// NCCL stopped it; otherwise it ends with its operation.
        stopped: bool,
    },
    /// What the progress thread does from here on.
    Control {
        /// The progress thread.
        thread: ThreadId,
        /// The communicator that owns it.
        comm: Option<&'a Comm>,
        /// The state's number.
        state: u16,
        /// Operations taken in, at the end of an append.
        appended: Option<u32>,
    },
    /// A kernel channel or a phase of it began. `time` may lie well before the entry before it.
    ChannelBegin {
        /// The event.
        id: Handle,
        /// Its communicator.
        comm: Option<&'a Comm>,
        /// Channel and, for a phase, its name.
        channel: Channel<'a>,
        /// The operation it is part of.
        operation: Option<&'a Operation>,
        /// How its times are known.
        timing: Timing,
        /// An earlier sample of this channel could not be true: its later ones may be of other operations.
        unreliable: bool,
        /// Why this may not be what it seems.
        doubt: Option<Doubt>,
    },
    /// It ended.
    ChannelEnd {
        /// The event.
        id: Handle,
        /// The GPU's clock at the stop; 0 where NCCL did not say.
        stop: GpuNs,
        /// How the end is known, where the begin was said before it and promised more.
        timing: Option<Timing>,
        /// The doubt of its begin.
        doubt: Option<Doubt>,
    },
    /// A network event begins.
    NetBegin {
        /// The event.
        id: Handle,
        /// The thread it was reported on.
        thread: ThreadId,
        /// What the network said.
        net: &'a event::Net,
    },
    /// A network event was updated.
    NetUpdate {
        /// The event.
        id: Handle,
        /// What the network said.
        net: &'a event::Net,
    },
    /// A network event is done.
    NetEnd {
        /// The event.
        id: Handle,
    },
    /// An event type of a newer NCCL.
    Unknown {
        /// The thread it was reported on.
        thread: ThreadId,
        /// The type's bit.
        bits: u64,
    },
    /// A kernel ran. `time` is when it began; it may lie well before the entry before it.
    Kernel {
        /// What CUPTI says about it.
        kernel: &'a activity::Kernel,
        /// Whose it is.
        owner: Owner<'a>,
    },
    /// Memory was copied or set by a stream. `time` is when that began.
    Copy {
        /// What CUPTI says about it.
        copy: &'a activity::Copy,
        /// The collective of the copy engines that queued it.
        of: Option<CopyOf<'a>>,
    },
    /// A call into CUDA on a host thread. `time` is when it began.
    CudaCall(&'a activity::CudaCall),
    /// A range of NVTX, or a mark. `time` is when it began.
    Range {
        /// How it began.
        marker: &'a activity::Marker,
        /// When it ended; a mark does not.
        end: Option<HostNs>,
        /// A range that had not ended when the recording did.
        is_open: bool,
    },
    /// The host ran a function as a node of a graph. `time` is when that began.
    HostFunction(&'a activity::HostFunction),
    /// A GPU of the process.
    Device(&'a activity::Device),
    /// Time that CUPTI itself took. `time` is when it began.
    Overhead(&'a activity::Overhead),
    /// CUPTI's times of a GPU's kernels contradict what NCCL's threads saw. `time` is that of the kernel that made it certain.
    TimesOff {
        /// The GPU.
        device: u32,
        /// How late they are at least, and at most, in ns; below zero they are early. `i64::MIN` and `i64::MAX` where nothing bounds it.
        least: i64,
        /// See `least`.
        most: i64,
    },
    /// What NCCL's own times say contradicts the match of a kernel that was said before. `time` is when that kernel began.
    Contradicted {
        /// Where it ran.
        place: activity::Place,
        /// CUPTI's id of the call that launched it.
        correlation: u32,
        /// The node of its graph, or 0.
        graph_node: u64,
    },
    /// A GPU's timer, CUPTI's conversion of it, or the host's clock, was set. `time` is that of the last kernel before.
    TimerStep {
        /// The GPU.
        device: u32,
        /// The start of the first kernel after it.
        before: HostNs,
        /// How much the host's time less the device's grew, in ns.
        by: i64,
    },
}

/// How the times of a kernel channel are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// By the GPU's timer.
    Gpu {
        /// How far both may be off, in ns.
        error_ns: u32,
        /// Where its kernel ran, if that is known; both times lie in it.
        place: Option<activity::Place>,
    },
    /// They are when NCCL's thread saw it, which is later than it was; and why they are not known better.
    Seen(Flaw),
}

/// Why the stamps of a kernel channel say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// NCCL gave none.
    NoStamp,
    /// The GPU's timer could not be related to the host's clock.
    ClockUnknown,
    /// The stop lies before the start.
    Backwards,
    /// They lie outside of the kernel.
    OutsideKernel,
    /// The start lies before the launch.
    BeforeLaunch,
    /// The stop lies after NCCL's thread saw it.
    AfterSeen,
    /// They are those of the operation before.
    Repeated,
    /// The start lies before the stop of the operation before.
    BeforeThePrevious,
    /// On this release they may be another operation's, after what its communicator has done.
    Miscounted,
}

impl Flaw {
    /// As the trace says it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Flaw::NoStamp => "as NCCL saw it: no stamp of the GPU",
            Flaw::ClockUnknown => "as NCCL saw it: the GPU's timer is not related to the host's clock",
            Flaw::Backwards => "as NCCL saw it: its stamps run back",
            Flaw::OutsideKernel => "as NCCL saw it: its stamps lie outside of the kernel",
            Flaw::BeforeLaunch => "as NCCL saw it: its stamps lie before the launch",
            Flaw::AfterSeen => "as NCCL saw it: its stamps lie after that",
            Flaw::Repeated => "as NCCL saw it: its stamps are those of the operation before",
            Flaw::BeforeThePrevious => "as NCCL saw it: its stamps lie before the end of the operation before",
            Flaw::Miscounted => "as NCCL saw it: this release may take the stamps of other operations for its own",
        }
    }

    /// Whether it is a sign that NCCL takes the reports of other operations for those of this one.
    #[must_use]
    pub fn is_drift(self) -> bool {
        !matches!(self, Flaw::NoStamp | Flaw::ClockUnknown | Flaw::Miscounted)
    }
}

/// What the checks of kernel channels against their kernels, launches and neighbours found, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelChecks {
    /// Samples that lie in their kernel.
    pub inside_kernel: u64,
    /// Samples whose kernel is not known, and that lie between their launch and when they were seen.
    pub without_kernel: u64,
    /// Samples whose time could not be told for want of a clock.
    pub unmapped: u64,
    /// Samples that cannot be true.
    pub implausible: u64,
    /// Channels with such a sample: all later ones are in doubt.
    pub unreliable: u64,
    /// Matched kernels whose channels all lie in them.
    pub kernels_confirmed: u64,
    /// Kernels that contradicted what the others say about the GPU's timer.
    pub contradictions: u64,
}

/// A collective of the copy engines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyOf<'a> {
    /// The communicator, if that is known.
    pub comm: Option<&'a Comm>,
    /// The collective.
    pub operation: &'a Operation,
    /// How that is known.
    pub method: Method,
}

/// Whose a kernel is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owner<'a> {
    /// The application's: it is none of NCCL's.
    Application,
    /// NCCL's, and it carried these operations.
    Operations {
        /// How that is known.
        method: Method,
        /// The communicator, if that is known.
        comm: Option<&'a Comm>,
        /// The operations, in the order of the plan.
        operations: &'a [Arc<Operation>],
        /// The program's ranges around the asking for each of them, or around the launch of the graph; empty where none are known.
        around: &'a [Around],
        /// Those of their channels that NCCL has reported so far.
        channels: &'a [(Handle, u8)],
        /// The KernelLaunch, where there was one.
        launch: Option<Handle>,
        /// Of a captured launch: which run of its graph, counted from 1, where that is known.
        replay: Option<u64>,
        /// Broadcasts asked for in the same group, of which NCCL tells nothing: it may carry them too.
        untold: u32,
    },
    /// NCCL's, and nothing says which operations it carried.
    Unmatched(Unmatched),
}

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

/// A host thread of this process: a number that no other thread of the trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// A host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread<'a> {
    /// Our number.
    pub id: ThreadId,
    /// The kernel's thread id.
    pub tid: i32,
    /// Its name when it made its first call.
    pub name: &'a str,
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comm {
    /// The context of its events.
    pub context: Handle,
    /// Number in this process, from 1, in the order of `init`.
    pub number: u32,
    /// NCCL's hash, the same on all ranks; 0 while unknown.
    pub hash: u64,
    /// Name from its configuration.
    pub name: Option<Box<str>>,
    /// Our rank; -1 where NCCL did not say.
    pub rank: i32,
    /// Ranks; -1 likewise.
    pub ranks: i32,
    /// Hosts; -1 likewise.
    pub nodes: i32,
    /// The interface in use.
    pub interface: u8,
    /// NCCL's version number; 0 while unknown.
    pub version: u32,
    /// Its device, where the driver said.
    pub device: Option<u32>,
}

/// What a proxy operation is known to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProxyOp<'a> {
    /// NCCL's facts.
    pub event: event::ProxyOp,
    /// Its communicator, unless it works for another process.
    pub comm: Option<&'a Comm>,
    /// The operation it is part of.
    pub operation: Option<&'a Operation>,
    /// Why this may not be what it seems.
    pub doubt: Option<Doubt>,
}

/// A kernel channel, or a phase on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel<'a> {
    /// NCCL's number.
    pub channel: u8,
    /// The GPU's clock at the start.
    pub start: GpuNs,
    /// The phase: number and name.
    pub phase: Option<(u8, &'a str)>,
}

/// A moment on a thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The thread, by the system's number.
    pub tid: i32,
    /// When.
    pub time: HostNs,
}

/// What the program said by NVTX that it was doing at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The innermost range of the thread.
    pub range: Option<Arc<str>>,
    /// The number in the innermost range that names a step or an iteration; where none of the thread's does, that of the other threads',
    /// if they agree.
    pub step: Option<u64>,
}

/// A collective or a send/receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its event; of one that NCCL does not hand over, the call that asked for it.
    pub id: Handle,
    /// When that began: the operation was handed over, or asked for. 0 where it is not known, as in files of other tools.
    pub since: HostNs,
    /// Where the program asked for it: the call's begin, up to v4 of the interface the hand-over's. `None` where a file of another tool
    /// does not say.
    pub asked: Option<Moment>,
    /// NCCL's facts.
    pub event: Event,
    /// Texts behind those words of the event that are not in the table: function, datatype, algorithm,
    /// protocol, variant or sync strategy. Nearly always `None`.
    pub texts: Option<Box<Texts>>,
    /// Send and receive: its number among those with that peer and direction on this communicator, from 0; or [`Operation::UNNUMBERED`].
    pub p2p_number: u32,
}

/// Texts of an operation that are no [`Word`] of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // NCCL's own words
pub struct Texts {
    pub func: Option<Box<str>>,
    pub datatype: Option<Box<str>>,
    pub algorithm: Option<Box<str>>,
    pub protocol: Option<Box<str>>,
    pub variant: Option<Box<str>>,
}

/// Why an entry may not be what it seems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The parent had been stopped twice before: NCCL may have reused a handle it should have cleared.
    ParentStoppedTwice,
    /// The parent is not known here: its record was lost, or it is older than what is remembered.
    ParentUnknown,
    /// The parent belongs to another process.
    ParentForeign,
    /// There should be a parent, and NCCL passed none.
    ParentMissing,
}

/// What was found to be doubtful, counted. Every field is an event or a call of NCCL's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Stops of events that were stopped before.
    pub double_stops: u64,
    /// Stops and states of events that are not known: their start was lost, or was long ago.
    pub unknown_handles: u64,
    /// Stops and states with handles of another process or plugin.
    pub foreign_handles: u64,
    /// Events whose parent is not known.
    pub unknown_parents: u64,
    /// Events that work for another process (PXN).
    pub foreign_events: u64,
    /// Events that were given up, still open, because too many were.
    pub evicted_open: u64,
    /// Proxy operations that NCCL started and never mentioned again.
    pub silent_proxy_ops: u64,
    /// Event types and states that this build does not know, and states that do not fit their event.
    pub unknown_types: u64,
    /// Records that lie before one that was already processed.
    pub late: u64,
}

impl Doubt {
    /// As the trace says it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Doubt::ParentStoppedTwice => "parent was stopped twice",
            Doubt::ParentUnknown => "parent unknown",
            Doubt::ParentForeign => "parent in another process",
            Doubt::ParentMissing => "no parent",
        }
    }
}

impl Operation {
    /// The number of a send or receive where those before it are not known, as in files of other tools.
    pub const UNNUMBERED: u32 = u32::MAX;

    /// The function.
    #[must_use]
    pub fn func(&self) -> Word {
        match &self.event {
            Event::Coll(coll) => coll.func,
            Event::P2p(p2p) => p2p.func,
            Event::CollApi(call) => call.func,
            Event::P2pApi(call) => call.func,
            Event::CeColl(coll) => coll.func,
            _ => Word::ABSENT,
        }
    }

    /// The datatype.
    #[must_use]
    pub fn datatype(&self) -> Word {
        match &self.event {
            Event::Coll(coll) => coll.datatype,
            Event::P2p(p2p) => p2p.datatype,
            Event::CollApi(call) => call.datatype,
            Event::P2pApi(call) => call.datatype,
            Event::CeColl(coll) => coll.datatype,
            _ => Word::ABSENT,
        }
    }

    /// Elements, as NCCL counts them for this event.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.event {
            Event::Coll(coll) => coll.count,
            Event::P2p(p2p) => p2p.count,
            Event::CollApi(call) => call.count,
            Event::P2pApi(call) => call.count,
            Event::CeColl(coll) => coll.count,
            _ => 0,
        }
    }

    /// Whether its elements are counted. NCCL always does; other tools may know no more than the function, or bytes.
    #[must_use]
    pub fn has_count(&self) -> bool {
        let datatype = self.texts.as_ref().is_some_and(|texts| texts.datatype.is_some());
        self.datatype() != Word::BYTES && (self.count() > 0 || datatype || self.datatype() != Word::ABSENT)
    }

    /// Bytes: elements times their size; `None` where NCCL does not say the datatype.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.count().checked_mul(self.datatype().element_bytes()?)
    }

    /// The number that marks this operation in every rank's trace: 32 bits of sequence, 5 of function, 23 of communicator. The sequence
    /// is above, because what is small at first makes it short in the file; and 28 bits up, where its bytes are those of the argument
    /// `seq`, which packs well. `None` where nothing common to the ranks is known.
    #[must_use]
    pub fn correlation(&self, comm: Option<&Comm>) -> Option<u64> {
        let comm = comm.filter(|comm| comm.hash != 0)?;
        let (function, sequence) = match &self.event {
            Event::Coll(coll) if coll.seq != event::Coll::UNNUMBERED => (coll.func.0 as u8, coll.seq as u32),
            Event::P2p(p2p) if comm.rank >= 0 && self.p2p_number != Self::UNNUMBERED => {
                let (from, to) = if p2p.func == Word::RECV { (p2p.peer, comm.rank) } else { (comm.rank, p2p.peer) };
                let pair = u64::from(from as u32) << 32 | u64::from(to as u32);
                let mixed = (pair ^ u64::from(self.p2p_number).rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (Word::SEND_RECV.0 as u8, (mixed >> 32) as u32)
            }
            _ => return None,
        };
        let communicator = (comm.hash ^ comm.hash >> 23 ^ comm.hash >> 46) & 0x7f_ffff;
        Some(u64::from(sequence) << 28 | u64::from(function & 0x1f) << 23 | communicator)
    }
}
