//! The model itself: everything that a file may say about processes, GPUs, operations and times.
//!
//! A [`Profile`] holds what its file says and nothing more. What a tool does not know is absent, or
//! 0 where 0 has no other meaning; each such field says so.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use super::kernel_name;
use crate::model::activity::{Api, CopyKind, Place, is_nccl};
use crate::model::time::{FileNs, Shift};

/// Everything a file says about one or more processes. Times are nanoseconds on [`Clock`].
///
/// It has more than twenty fields because each kind of thing in a file has a list of its own.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The tool and file it comes from.
    pub source: Source,
    /// The host, if the file names one.
    pub host: Option<String>,
    /// The clock of all times.
    pub clock: Clock,
    /// The first time in one of our traces, of anything: from there the viewer counts.
    pub begin: Option<FileNs>,
    /// The processes that the file knows about.
    pub processes: Vec<Process>,
    /// The GPUs, by number.
    pub devices: BTreeMap<u32, String>,
    /// NCCL's communicators, or the process groups above them.
    pub communicators: Vec<Communicator>,
    /// NCCL's version, `2.30.7`; several if processes differ.
    pub nccl_versions: Vec<String>,
    /// The number of ranks in the whole job.
    pub world: Option<i32>,
    /// Kernels, ordered by start.
    pub kernels: Vec<Kernel>,
    /// Copies and memsets, ordered by start.
    pub copies: Vec<Copy>,
    /// Calls into CUDA, ordered by start.
    pub cuda_calls: Vec<CudaCall>,
    /// NVTX or PyTorch ranges, ordered by start.
    pub ranges: Vec<Range>,
    /// What NCCL was asked to do.
    pub operations: Vec<Operation>,
    /// NCCL's kernel launches, ordered by start: KernelLaunch in our traces.
    pub launches: Vec<Launch>,
    /// Hand-overs of plans, ordered by start: Group in our traces.
    pub plans: Vec<Launch>,
    /// Groups of calls, or single calls, ordered by start: GroupApi in our traces.
    pub groups: Vec<Launch>,
    /// The application's calls into NCCL, as our traces record them, ordered by start.
    pub nccl_calls: Vec<NcclCall>,
    /// Each hand-over of an operation by NCCL, ordered by start; operations of a graph appear at
    /// every replay.
    pub handovers: Vec<Handover>,
    /// Transfers over the network.
    pub transfers: Vec<Transfer>,
    /// When a progress thread was ready to run and had no processor for some of the time, ordered
    /// by process and start.
    pub cpu_waits: Vec<CpuWait>,
    /// When CUPTI was flushed by force while kernels had not ended, so that these have no record:
    /// the process, and the time.
    pub flushes: Vec<(usize, FileNs)>,
    /// What the settings of the recording left out of it, if what ran in between is missing.
    pub gaps: Option<String>,
    /// The reader's remarks about the file: what was left out, and what could not be read.
    pub notes: Vec<String>,
}

/// Where a profile comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The tool that recorded it.
    pub tool: Tool,
    /// The file is a trace that `ncclscope import` made from the tool's file.
    pub imported: bool,
    /// The tool's version, and the version of its format.
    pub version: String,
    /// The file.
    pub path: PathBuf,
}

/// A tool that writes profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tool {
    /// This one.
    #[default]
    Ncclscope,
    /// NVIDIA Nsight Systems.
    Nsight,
    /// PyTorch's profiler.
    Kineto,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::Ncclscope => "ncclscope",
            Tool::Nsight => "Nsight Systems",
            Tool::Kineto => "Kineto",
        })
    }
}

/// The clock of a profile's times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Its origin, in words.
    pub name: String,
    /// The shift to the time since 1970; `None` if the file does not relate the two.
    pub to_utc: Option<Shift>,
    /// How far the conversion to this clock may put all times off, in ns. Their error before that
    /// is not included.
    pub error_ns: u64,
}

impl Clock {
    /// A file's own clock. Adding `to_utc_ns` gives the time since 1970.
    #[must_use]
    pub fn of_file(name: impl Into<String>, to_utc_ns: Option<i64>) -> Clock {
        let to_utc = to_utc_ns.map(|ns| Shift { ns, error_ns: WALL_CLOCKS_NS / 2 });
        Clock { name: name.into(), to_utc, error_ns: 0 }
    }

    /// The shift to another file's clock, by the wall clock of both.
    #[must_use]
    pub fn to(&self, other: &Clock) -> Option<Shift> {
        Some(self.to_utc?.then(other.to_utc?.back()))
    }
}

/// How far apart the wall clocks that two tools read on one host may be, in ns.
pub(crate) const WALL_CLOCKS_NS: u64 = 2_000_000_000;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id, as the process itself sees it.
    pub pid: i64,
    /// Its name.
    pub name: String,
    /// Its rank in the job, if the file says it.
    pub rank: Option<i32>,
    /// Names of its threads.
    pub threads: BTreeMap<i64, String>,
    /// NCCL's calls that its recording lost or left out, by its own account.
    pub lost: u64,
}

/// How long a progress thread was ready to run and had no processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuWait {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// When it was looked at.
    pub span: Span,
    /// For how much of that, in percent.
    pub percent: u64,
}

/// When something ran, in nanoseconds of the profile's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// When it began.
    pub start: FileNs,
    /// When it ended.
    pub end: FileNs,
}

impl Span {
    /// A span between two times as a file has them, in ns.
    #[must_use]
    pub fn of(start: i64, end: i64) -> Span {
        Span { start: FileNs(start), end: FileNs(end) }
    }

    /// Its length in ns; 0 if the end is before the start.
    #[must_use]
    pub fn duration(self) -> u64 {
        u64::try_from(self.end.since(self.start)).unwrap_or(0)
    }

    /// The same span on another clock. The error of the shift belongs to the clock.
    #[must_use]
    pub fn shifted(self, by: Shift) -> Span {
        Span { start: self.start.saturating_add(by.ns), end: self.end.saturating_add(by.ns) }
    }

    /// Whether the two have a moment in common.
    #[must_use]
    pub fn overlaps(self, other: Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether `inner` lies within it.
    #[must_use]
    pub fn contains(self, inner: Span) -> bool {
        self.start <= inner.start && inner.end <= self.end
    }
}

/// A kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The correlation id of the call that launched it, from CUPTI or AMD's equivalent; 0 if the
    /// tool does not say.
    pub correlation: u32,
    /// Its name as the tool writes it.
    pub name: Arc<str>,
    /// Blocks; zeros if the tool does not say.
    pub grid: [u32; 3],
    /// Threads per block; zeros if the tool does not say.
    pub block: [u32; 3],
    /// The node of the graph that it ran from, or 0.
    pub graph_node: u64,
    /// What it carried, for NCCL's kernels.
    pub carried: Carried,
}

impl Kernel {
    /// Whether it is one of NCCL's kernels.
    #[must_use]
    pub fn is_nccl(&self) -> bool {
        is_nccl(&self.name)
    }

    /// Whether it belongs to a collective, of NCCL's or of a framework's own.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        self.is_nccl() || kernel_name::collective_without_nccl(&self.name).is_some()
    }
}

/// The operations that a kernel carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How many; some may be missing from the list.
    pub count: u32,
    /// Which ones, as indices into [`Profile::operations`].
    pub operations: Vec<usize>,
    /// How that is known.
    pub how: How,
    /// Which run of the captured call it is, counted from 1, if it comes from a graph and our trace
    /// says so.
    pub replay: Option<u32>,
}

/// How the operations of a kernel are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// They are not known.
    #[default]
    Unknown,
    /// The file says so: our match, exact.
    Exact,
    /// Our match, inferred.
    Inferred,
    /// The tool attached them to the kernel itself.
    Told,
    /// Its launch, or the kernel itself, lies within the range of their call or group.
    Launched,
    /// Its launch is not in the file, but all groups of its process in the file ask for the same
    /// operations.
    Concluded,
    /// Its own name says so: it is a collective of a framework's own.
    Named,
}

impl How {
    /// The wording in reports.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            How::Unknown => "unknown",
            How::Exact => "exact match",
            How::Inferred => "inferred match",
            How::Told => "stated by the tool",
            How::Launched => "launched inside the range of their call or group",
            How::Concluded => "concluded: all groups of its process ask for the same",
            How::Named => "by the kernel's own name",
        }
    }
}

/// A copy or a memset.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The correlation id of the call; 0 if the tool does not say.
    pub correlation: u32,
    /// Bytes, if the tool says.
    pub bytes: Option<u64>,
    /// What was done.
    pub kind: CopyKind,
}

/// A call into CUDA, or into AMD's HIP.
#[derive(Clone, Debug)]
pub struct CudaCall {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The thread, as the system's thread id.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// The function.
    pub name: Arc<str>,
    /// The API it belongs to.
    pub api: Api,
    /// Its correlation id; 0 if the tool does not say.
    pub correlation: u32,
}

/// A range that a program marked.
#[derive(Clone, Debug)]
pub struct Range {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The thread, as the system's thread id; `None` for a range of the process.
    pub tid: Option<i64>,
    /// When.
    pub span: Span,
    /// Its text.
    pub name: Arc<str>,
    /// What marked it, or its domain; `None` is NVTX's default domain.
    pub domain: Option<Arc<str>>,
}

/// A communicator, or a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communicator {
    /// The process that is a member, as an index into [`Profile::processes`].
    pub process: usize,
    /// Its name or description.
    pub name: Option<String>,
    /// NCCL's hash: the same on all ranks of a run, and different in the next run.
    pub hash: Option<u64>,
    /// Ranks.
    pub ranks: Option<i32>,
    /// This process's rank.
    pub rank: Option<i32>,
    /// Hosts, as NCCL counts them.
    pub nodes: Option<i32>,
    /// The profiler interface that NCCL chose.
    pub interface: Option<u32>,
    /// NCCL's version as a number: 23007 is 2.30.7.
    pub version: Option<u32>,
    /// The rank of each of this process's GPUs, by device number.
    pub gpus: BTreeMap<u32, i32>,
    /// World ranks of its members, as the tool writes them.
    pub members: Option<String>,
    /// When NCCL had created it, in one of our traces.
    pub created: Option<FileNs>,
}

impl Communicator {
    /// Its GPU, if the process has one for it.
    pub fn device(&self) -> Option<u32> {
        self.gpus.keys().next().copied().filter(|_| self.gpus.len() == 1)
    }

    /// The rank that this GPU of the process is, as far as the file says.
    pub fn rank_on(&self, device: u32) -> Option<i32> {
        self.gpus.get(&device).copied().or(self.rank.filter(|_| self.gpus.len() < 2))
    }
}

/// An operation of NCCL's: one collective, one send or one receive.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The call, if it is known.
    pub call: Option<Span>,
    /// The thread of the call.
    pub tid: Option<i64>,
    /// The communicator, as an index into [`Profile::communicators`].
    pub communicator: Option<usize>,
    /// What NCCL was asked to do: shared by operations that do not differ in it.
    pub request: Arc<Request>,
    /// NCCL's or the process group's sequence number.
    pub seq: Option<u64>,
    /// The number that the operation has on every rank of the run.
    pub correlation: Option<u64>,
}

/// What NCCL was asked to do.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `AllReduce`, `Send`.
    pub function: String,
    /// Elements.
    pub count: Option<u64>,
    /// Bytes as NCCL counts them for the call: its count times the size of its type.
    pub bytes: Option<u64>,
    /// The datatype in NCCL's words, `ncclFloat32`, or in the tool's own.
    pub datatype: Option<String>,
    /// The algorithm that was used.
    pub algorithm: Option<String>,
    /// The protocol that was used.
    pub protocol: Option<String>,
    /// Channels.
    pub channels: Option<u32>,
    /// The other rank.
    pub peer: Option<i32>,
    /// The root.
    pub root: Option<i32>,
    /// The reduction, as in `ncclRedOp_t` without the prefix: `Sum`, `Prod`.
    pub reduction: Option<String>,
}

impl Deref for Operation {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl Operation {
    /// Whether it is a send or a receive.
    #[must_use]
    pub fn is_point_to_point(&self) -> bool {
        matches!(self.function.as_str(), "Send" | "Recv")
    }
}

/// A launch of NCCL's, or what encloses or follows it on its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The thread, as the system's thread id.
    pub tid: i64,
    /// From its start to its stop.
    pub span: Span,
    /// The communicator, as an index into [`Profile::communicators`].
    pub communicator: Option<usize>,
    /// The `cudaStream_t`, or 0.
    pub stream: u64,
}

/// A call of the application into NCCL.
#[derive(Clone, Debug)]
pub struct NcclCall {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The thread, as the system's thread id.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// What was asked for. Its run on the GPU has an entry of its own.
    pub operation: Operation,
    /// It was captured into a graph.
    pub captured: bool,
    /// The ids of the arrows from it to its hand-overs.
    pub arrows: Vec<u64>,
}

/// One hand-over of an operation by NCCL.
#[derive(Clone, Debug)]
pub struct Handover {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// The thread, as the system's thread id.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// What was handed over.
    pub operation: Operation,
    /// The ids of the arrows through it. The arrow from its call has one of the call's ids.
    pub arrows: Vec<u64>,
}

/// One transfer over the network.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// The process, as an index into [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// The number of its operation, as in [`Operation::correlation`].
    pub correlation: Option<u64>,
    /// This process's rank in the communicator, if the file says it.
    pub rank: Option<i32>,
    /// The other rank, by its number in the communicator.
    pub peer: Option<i32>,
    /// The channel, if NCCL reported it.
    pub channel: Option<u32>,
    /// It goes to the other rank; otherwise it comes from there.
    pub is_send: bool,
    /// What it waited for, in order of time, and for how many ns.
    pub waits: Vec<(Arc<str>, u64)>,
}

impl Profile {
    /// NCCL's kernels.
    pub fn nccl_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|kernel| kernel.is_nccl())
    }

    /// Kernels of collectives: NCCL's, and those that frameworks wrote themselves.
    pub fn collective_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|kernel| kernel.is_collective())
    }

    /// The calls that may have launched something: their process and correlation id.
    pub fn launching(&self) -> impl Iterator<Item = (usize, u32)> {
        self.cuda_calls.iter().filter(|it| it.correlation != 0).map(|it| (it.process, it.correlation))
    }

    /// The same profile on another clock. The error of the shift is added to that of its times.
    #[must_use]
    pub(crate) fn shifted(mut self, by: Shift, to: &Clock) -> Profile {
        let spans = (self.kernels.iter_mut().map(|it| &mut it.span))
            .chain(self.copies.iter_mut().map(|it| &mut it.span))
            .chain(self.cuda_calls.iter_mut().map(|it| &mut it.span))
            .chain(self.ranges.iter_mut().map(|it| &mut it.span))
            .chain(self.launches.iter_mut().map(|it| &mut it.span))
            .chain(self.plans.iter_mut().map(|it| &mut it.span))
            .chain(self.groups.iter_mut().map(|it| &mut it.span))
            .chain(self.nccl_calls.iter_mut().flat_map(|it| [&mut it.span].into_iter().chain(&mut it.operation.call)))
            .chain(self.handovers.iter_mut().flat_map(|it| [&mut it.span].into_iter().chain(&mut it.operation.call)))
            .chain(self.transfers.iter_mut().map(|it| &mut it.span))
            .chain(self.cpu_waits.iter_mut().map(|it| &mut it.span))
            .chain(self.operations.iter_mut().filter_map(|it| it.call.as_mut()));
        spans.for_each(|span| *span = span.shifted(by));
        let created = self.communicators.iter_mut().filter_map(|it| it.created.as_mut());
        let single = self.flushes.iter_mut().map(|it| &mut it.1).chain(created).chain(&mut self.begin);
        single.for_each(|time| *time = time.saturating_add(by.ns));
        self.clock = Clock { error_ns: self.clock.error_ns.saturating_add(by.error_ns), ..to.clone() };
        self
    }

    /// From the first to the last time in it; `None` if it is empty.
    #[must_use]
    pub fn extent(&self) -> Option<Span> {
        let spans = (self.kernels.iter().map(|it| it.span))
            .chain(self.copies.iter().map(|it| it.span))
            .chain(self.cuda_calls.iter().map(|it| it.span))
            .chain(self.ranges.iter().map(|it| it.span))
            .chain(self.launches.iter().map(|it| it.span))
            .chain(self.nccl_calls.iter().map(|it| it.span))
            .chain(self.transfers.iter().map(|it| it.span));
        spans.reduce(|all, it| Span { start: all.start.min(it.start), end: all.end.max(it.end) })
    }

    /// Sorts everything by time.
    pub(crate) fn sort(&mut self) {
        self.kernels.sort_by_key(|it| it.span);
        self.copies.sort_by_key(|it| it.span);
        self.cuda_calls.sort_by_key(|it| it.span);
        self.ranges.sort_by_key(|it| it.span);
        self.launches.sort_by_key(|it| it.span);
        self.plans.sort_by_key(|it| it.span);
        self.groups.sort_by_key(|it| it.span);
        self.nccl_calls.sort_by_key(|it| it.span);
        self.handovers.sort_by_key(|it| it.span);
        self.transfers.sort_by_key(|it| it.span);
    }
}
