//! The joined result: what the correlator reports to the trace, entry by entry, in order of time.

mod matches;
mod operation;
mod timing;

use std::sync::Arc;

use super::activity;
use super::event::{self, Event};
use super::ids::Handle;
use super::time::{GpuNs, GpuTimer, HostNs};
pub use matches::{Matches, Method, Unmatched};
pub use operation::{Operation, Texts};
pub use timing::{ChannelChecks, Flaw, Timing};

/// One thing to draw or to note.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// When it happened.
    pub time: HostNs,
    /// What happened.
    pub what: What<'a>,
}

/// The content of an [`Entry`]. A `Begin` may be followed by its `End` much later or never.
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
        /// The communicator it belongs to, if it is one of ours and known.
        comm: Option<&'a Comm>,
        /// The event.
        event: &'a Event,
        /// The operation it asks for, if it asks for one.
        operation: Option<&'a Operation>,
        /// `KernelLaunch`: the calls that it may carry out, which are those of its group and
        /// communicator that nothing has carried out yet. If there is one, it is that call; if
        /// there are several, the following hand-over says which.
        asked_by: &'a [Handle],
        /// Why this may be wrong.
        doubt: Option<Doubt>,
    },
    /// A kernel had not ended when CUPTI was made to return its record.
    Unfinished {
        /// The kernel.
        kernel: &'a activity::Unfinished,
        /// Its communicator, if it is known to be NCCL's.
        comm: Option<&'a Comm>,
        /// What it carries; empty if that is not known, and for the application's kernels.
        operations: &'a [Arc<Operation>],
        /// For a captured launch: which run, counted from 1, and when its graph was launched.
        replay: Option<(u64, HostNs)>,
    },
    /// A kernel of NCCL has ended by now, at an unknown time.
    Untimed {
        /// Its communicator, if that is known.
        comm: Option<&'a Comm>,
        /// What it carried.
        operations: &'a [Arc<Operation>],
    },
    /// The call has returned.
    CallEnd {
        /// The event.
        id: Handle,
        /// `GroupApi`: when the group's start had returned and when its end was called, if NCCL
        /// reported it.
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
        /// For graph replays: which run of the captured call, counted from 1.
        replay: Option<u32>,
        /// Why this may be wrong.
        doubt: Option<Doubt>,
    },
    /// The hand-over is done.
    OperationEnd {
        /// The event.
        id: Handle,
    },
    /// The progress thread took an operation of the network, which queues until its first sign of
    /// progress.
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
        /// What is known about it.
        proxy: ProxyOp<'a>,
        /// How long it had queued since the progress thread took it, ns.
        queued_ns: u64,
        /// It was reported by [`What::ProxyOpTaken`].
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
        /// Number of transfers so far.
        steps: i32,
    },
    /// A proxy operation is done.
    ProxyOpEnd {
        /// The event.
        id: Handle,
    },
    /// Operations of one network connection that still queue, because those before them have not
    /// ended.
    ProxyOpsQueued {
        /// The progress thread.
        thread: ThreadId,
        /// What is known about the first.
        proxy: ProxyOp<'a>,
        /// How long it has queued, ns.
        queued_ns: u64,
        /// How many there are.
        count: u64,
        /// How many of those reported by [`What::ProxyOpTaken`] will never begin, because their
        /// communicator has ended.
        given_up: u64,
    },
    /// A proxy operation was started but neither progressed nor stopped, nor did any other on its
    /// connection: NCCL reports no more than that for transports other than NET.
    ProxyOpNever {
        /// The progress thread.
        thread: ThreadId,
        /// What is known about it.
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
        /// The number of the transfer.
        step: i32,
        /// The proxy operation's facts, if it is known.
        proxy: Option<ProxyOp<'a>>,
    },
    /// From here on, a transfer waits for something else.
    StepPhase {
        /// The event.
        id: Handle,
        /// The state's number.
        state: u16,
        /// Bytes of the transfer, in the two states in which NCCL reports them.
        bytes: Option<u64>,
    },
    /// A transfer is done.
    StepEnd {
        /// The event.
        id: Handle,
        /// How many times NCCL started it, at least once.
        starts: u32,
        /// NCCL stopped it; otherwise it ends with its operation.
        stopped: bool,
    },
    /// From here on, the progress thread does something else.
    Control {
        /// The progress thread.
        thread: ThreadId,
        /// The communicator that owns it.
        comm: Option<&'a Comm>,
        /// The state's number.
        state: u16,
        /// Operations taken in, at the end of an append.
        appended: Option<u32>,
        /// The number of the append on this thread, from 1; 0 for another state.
        batch: u32,
        /// At its end: the operations whose work it brought, as far as NCCL reports that, and how
        /// much of each.
        brought: &'a [(Arc<Operation>, u32)],
    },
    /// A kernel channel or a phase of it began. `time` may lie well before the previous entry.
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
        /// An earlier sample of this channel was impossible, so later ones may belong to other
        /// operations.
        unreliable: bool,
        /// Why this may be wrong.
        doubt: Option<Doubt>,
    },
    /// A kernel channel or a phase of it ended.
    ChannelEnd {
        /// The event.
        id: Handle,
        /// The GPU's timer at the stop; 0 if NCCL did not report it.
        stop: GpuNs,
        /// How the end is known, if the begin was emitted earlier and promised more.
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
        /// What the network plugin reported.
        net: &'a event::Net,
    },
    /// A network event was updated.
    NetUpdate {
        /// The event.
        id: Handle,
        /// What the network plugin reported.
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
    /// A kernel ran. `time` is when it began, which may lie well before the previous entry.
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
    /// An NVTX range, or a mark. `time` is when it began.
    Range {
        /// How it began.
        marker: &'a activity::Marker,
        /// When it ended; `None` for a mark.
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
    /// CUPTI's times of a GPU's kernels contradict what NCCL's threads saw. `time` is that of the
    /// kernel that made this certain.
    TimesOff {
        /// The GPU.
        device: u32,
        /// How late they are at least and at most, in ns; early if below zero. `i64::MIN` and
        /// `i64::MAX` where nothing bounds it.
        least: i64,
        /// See `least`.
        most: i64,
    },
    /// NCCL's own times contradict the match of a kernel that was emitted before. `time` is when
    /// that kernel began.
    Contradicted {
        /// Where it ran.
        place: activity::Place,
        /// CUPTI's id of the call that launched it.
        correlation: u32,
        /// The node of its graph, or 0.
        graph_node: u64,
    },
    /// A GPU's timer, CUPTI's conversion of it, or the host's clock was set. `time` is that of the
    /// last kernel before that.
    TimerStep {
        /// The GPU.
        device: u32,
        /// The start of the first kernel after it.
        before: HostNs,
        /// By how much the host's time minus the device's grew, in ns.
        by: i64,
    },
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

/// Who owns a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owner<'a> {
    /// The application; it is not a kernel of NCCL.
    Application,
    /// NCCL; the kernel carried these operations.
    Operations {
        /// How that is known.
        method: Method,
        /// The communicator, if that is known.
        comm: Option<&'a Comm>,
        /// The operations, in the order of the plan.
        operations: &'a [Arc<Operation>],
        /// The program's ranges around each request for an operation, or around the launch of the
        /// graph; empty if none are known.
        around: &'a [Around],
        /// For each operation, the proxy's work that began late; empty if there is none.
        late: &'a [Option<Late>],
        /// The operations' channels that NCCL has reported so far.
        channels: &'a [(Handle, u8)],
        /// The KernelLaunch, if there was one.
        launch: Option<Handle>,
        /// For a captured launch: which run of its graph, counted from 1, if known.
        replay: Option<u64>,
        /// Broadcasts requested in the same group about which NCCL reports nothing: the kernel may
        /// carry them, too.
        untold: u32,
    },
    /// NCCL, but nothing shows which operations the kernel carried.
    Unmatched(Unmatched),
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
    /// Its number in this process, from 1, in order of `init`.
    pub number: u32,
    /// NCCL's hash, the same on all ranks; 0 while unknown.
    pub hash: u64,
    /// Name from its configuration.
    pub name: Option<Box<str>>,
    /// Our rank; -1 if NCCL did not report it.
    pub rank: i32,
    /// The number of ranks; -1 if unknown.
    pub ranks: i32,
    /// The number of hosts; -1 if unknown.
    pub nodes: i32,
    /// The profiler interface in use.
    pub interface: u8,
    /// NCCL's version number; 0 while unknown.
    pub version: u32,
    /// Its device, if the driver told us.
    pub device: Option<u32>,
    /// What its GPU's timer counts.
    pub timer: GpuTimer,
}

/// What is known about a proxy operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProxyOp<'a> {
    /// NCCL's facts.
    pub event: event::ProxyOp,
    /// Its communicator, unless it works for another process.
    pub comm: Option<&'a Comm>,
    /// The operation it is part of.
    pub operation: Option<&'a Operation>,
    /// The number of the append that brought it, on its thread; 0 if none is known.
    pub batch: u32,
    /// Why this may be wrong.
    pub doubt: Option<Doubt>,
}

/// The last part of the network proxy's work on an operation, which began when the operation's
/// kernel was running already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// When the progress thread began it.
    pub begun: HostNs,
    /// What it waited for, if that is known.
    pub why: Option<Delay>,
}

/// What keeps the proxy from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The progress thread slept, and had not been given the work.
    Asleep,
    /// The progress thread had not taken the work in.
    Append,
    /// It had, but did other work first: of the same connection, or of others.
    Busy,
}

/// A kernel channel, or a phase on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel<'a> {
    /// NCCL's number.
    pub channel: u8,
    /// The GPU's timer at the start.
    pub start: GpuNs,
    /// The phase: number and name.
    pub phase: Option<(u8, &'a str)>,
}

/// A moment on a thread of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The thread, by the system's id.
    pub tid: i32,
    /// When.
    pub time: HostNs,
}

/// What the program was doing at a moment, as it told NVTX.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The innermost range of the thread.
    pub range: Option<Arc<str>>,
    /// The number in the thread's innermost range that names a step or an iteration. If the thread
    /// has none, the number of the other threads, if they agree.
    pub step: Option<u64>,
}

/// Why an entry may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The parent had been stopped twice before: NCCL may have reused a handle that it should have
    /// cleared.
    ParentStoppedTwice,
    /// The parent is unknown here: its record was lost, or it is older than what is remembered.
    ParentUnknown,
    /// The parent belongs to another process.
    ParentForeign,
    /// NCCL passed no parent where there should be one.
    ParentMissing,
}

/// The doubts, counted. Each field counts events or calls of NCCL's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Stops of events that had been stopped before.
    pub double_stops: u64,
    /// Stops and states of unknown events: their start was lost, or was long ago.
    pub unknown_handles: u64,
    /// Stops and states with handles of another process or plugin.
    pub foreign_handles: u64,
    /// Events with an unknown parent.
    pub unknown_parents: u64,
    /// Events that work for another process (PXN).
    pub foreign_events: u64,
    /// Events that were given up while still open, because there were too many.
    pub evicted_open: u64,
    /// Proxy operations that NCCL started and never mentioned again.
    pub silent_proxy_ops: u64,
    /// Event types and states that this build does not know, and states that do not fit their
    /// event.
    pub unknown_types: u64,
    /// Records that are older than one already processed.
    pub late: u64,
}

/// What the settings left out, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Operations, with everything that belongs to them.
    pub operations: u64,
    /// Kernels, copies and ranges of the application, calls into CUDA, and the like.
    pub activities: u64,
}

impl Doubt {
    /// As the trace words it.
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

#[cfg(all(test, not(loom)))]
impl Comm {
    /// A communicator of two ranks on a host, as the first one sees it.
    pub(crate) fn named(context: Handle, name: &str) -> Comm {
        let (number, hash, rank, ranks, nodes) = (1, 7, 0, 2, 1);
        let (interface, version, device, timer) = (6, 23_007, None, GpuTimer::default());
        Comm { context, number, hash, name: Some(name.into()), rank, ranks, nodes, interface, version, device, timer }
    }
}

#[cfg(all(test, not(loom)))]
impl<'a> Owner<'a> {
    /// An operation that is known by its launch, and about which nothing else is.
    pub(crate) fn of_one(comm: &'a Comm, operation: &'a Arc<Operation>) -> Owner<'a> {
        let operations = std::slice::from_ref(operation);
        let (method, around, late, channels) = (Method::Bracket, &[], &[], &[]);
        let (comm, launch, replay, untold) = (Some(comm), None, None, 0);
        Owner::Operations { method, comm, operations, around, late, channels, launch, replay, untold }
    }
}
