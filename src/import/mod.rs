//! Profiles of whichever tool, as one plain model: Nsight Systems' SQLite exports, Kineto's JSON, and our own traces.
//!
//! ```text
//!   report.sqlite -> nsight --\
//!   trace.json.gz -> kineto ---> Profile -> cli::import, cli::compare, cli::info
//!   *.perfetto-trace -> ours -/
//! ```
//!
//! A [`Profile`] holds what its file says and nothing more: what a tool does not know is absent, or the zero that nothing real has there, which
//! each such field says of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::activity::{Api, is_nccl};
use crate::model::time::Shift;

pub mod kernel_name;
mod kineto;
pub mod knowledge;
mod nsight;
pub(crate) mod ours;

/// Everything a file says about one or more processes. Times are nanoseconds on [`Clock`].
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Who wrote it.
    pub source: Source,
    /// The host, where the file names one.
    pub host: Option<String>,
    /// The times' clock.
    pub clock: Clock,
    /// The processes that something is known of.
    pub processes: Vec<Process>,
    /// The GPUs, by number.
    pub devices: BTreeMap<u32, String>,
    /// NCCL's communicators, or the process groups above them.
    pub communicators: Vec<Communicator>,
    /// NCCL's version, `2.30.7`; several where processes differ.
    pub nccl_versions: Vec<String>,
    /// Ranks of the whole job.
    pub world: Option<i32>,
    /// Kernels, by their start.
    pub kernels: Vec<Kernel>,
    /// Copies and memsets, by their start.
    pub copies: Vec<Copy>,
    /// Calls into CUDA, by their start.
    pub cuda_calls: Vec<CudaCall>,
    /// Ranges of NVTX, or of PyTorch's, by their start.
    pub ranges: Vec<Range>,
    /// What NCCL was asked to do.
    pub operations: Vec<Operation>,
    /// When NCCL launched kernels, by their start: what ours calls KernelLaunch.
    pub launches: Vec<Launch>,
    /// Hand-overs of plans, by their start: what ours calls Group.
    pub plans: Vec<Launch>,
    /// Groups of calls, or lone ones, by their start: what ours calls GroupApi.
    pub groups: Vec<Launch>,
    /// Calls of the application into NCCL as ours records them, by their start.
    pub nccl_calls: Vec<NcclCall>,
    /// Operations each time that NCCL handed them over, by their start; those of graphs come with every replay.
    pub handovers: Vec<Handover>,
    /// Transfers over the network.
    pub transfers: Vec<Transfer>,
    /// What the reader has to say about the file: what was left out, and what could not be read.
    pub notes: Vec<String>,
}

/// Who wrote a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The tool that recorded it.
    pub tool: Tool,
    /// It is the trace that `ncclscope import` made of the tool's file.
    pub imported: bool,
    /// Its version, and its format's.
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

/// What the times of a profile count from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// In words.
    pub name: String,
    /// To the time since 1970; `None` where the file does not relate them.
    pub to_utc: Option<Shift>,
    /// How far all times may be off for having been shifted to it, ns. How far each was off before is not in it.
    pub error_ns: u64,
}

impl Clock {
    /// A clock as a file has it; `to_utc_ns` is added for the time since 1970.
    #[must_use]
    pub fn of_file(name: impl Into<String>, to_utc_ns: Option<i64>) -> Clock {
        let to_utc = to_utc_ns.map(|ns| Shift { ns, error_ns: WALL_CLOCKS_NS / 2 });
        Clock { name: name.into(), to_utc, error_ns: 0 }
    }

    /// To another file's clock, by the wall clock of both.
    #[must_use]
    pub fn to(&self, other: &Clock) -> Option<Shift> {
        Some(self.to_utc?.then(other.to_utc?.back()))
    }
}

/// How far the wall clocks that two tools read on one host may lie apart, ns.
pub(crate) const WALL_CLOCKS_NS: u64 = 2_000_000_000;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id, as it sees itself.
    pub pid: i64,
    /// Its name.
    pub name: String,
    /// Its rank in the job, where that is said.
    pub rank: Option<i32>,
    /// Names of its threads.
    pub threads: BTreeMap<i64, String>,
    /// Calls of NCCL's that its recording lost or left out, by its own account.
    pub lost: u64,
}

/// When something ran, in nanoseconds of the profile's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// When it began.
    pub start: i64,
    /// When it ended.
    pub end: i64,
}

impl Span {
    /// Nanoseconds; 0 where the end lies before the start.
    #[must_use]
    pub fn duration(self) -> u64 {
        u64::try_from(self.end.saturating_sub(self.start)).unwrap_or(0)
    }

    /// The same on another clock. How far off that may be is for the clock to say.
    #[must_use]
    pub fn shifted(self, by: Shift) -> Span {
        Span { start: self.start.saturating_add(by.ns), end: self.end.saturating_add(by.ns) }
    }

    /// Whether they have a moment in common.
    #[must_use]
    pub fn overlaps(self, other: Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether `inner` lies in it.
    #[must_use]
    pub fn contains(self, inner: Span) -> bool {
        self.start <= inner.start && inner.end <= self.end
    }
}

/// Where something ran on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The device.
    pub device: u32,
    /// The context; 0 where the tool does not say, as of AMD's GPUs, which have none.
    pub context: u32,
    /// The stream in it.
    pub stream: u32,
}

/// A kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The number of the call that launched it, by CUPTI or what AMD has for it; 0 where the tool does not say.
    pub correlation: u32,
    /// Its name as the tool has it.
    pub name: Arc<str>,
    /// Blocks; zeros where the tool does not say.
    pub grid: [u32; 3],
    /// Threads of a block; zeros where the tool does not say.
    pub block: [u32; 3],
    /// The node of the graph that it ran from, or 0.
    pub graph_node: u64,
    /// What it carried, for NCCL's.
    pub carried: Carried,
}

impl Kernel {
    /// Whether NCCL made it.
    #[must_use]
    pub fn is_nccl(&self) -> bool {
        is_nccl(&self.name)
    }

    /// Whether it is a collective's, NCCL's or a framework's own.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        self.is_nccl() || kernel_name::collective_without_nccl(&self.name).is_some()
    }
}

/// The operations that a kernel carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How many; some may not be in the list.
    pub count: u32,
    /// Which, by their places in [`Profile::operations`].
    pub operations: Vec<usize>,
    /// How that is known.
    pub how: How,
}

/// How the operations of a kernel are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// They are not.
    #[default]
    Unknown,
    /// The file says so: our match, exact.
    Exact,
    /// Our match, inferred.
    Inferred,
    /// The tool attached them to the kernel itself.
    Told,
    /// Its launch, or it itself, lies in the range of their call or group.
    Launched,
    /// Its launch is not in the file, but every group of its process that is asks for the same operations.
    Concluded,
    /// Its own name says so: a collective of a framework's.
    Named,
}

impl How {
    /// As reports say it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            How::Unknown => "unknown",
            How::Exact => "exact match",
            How::Inferred => "inferred match",
            How::Told => "told by the tool",
            How::Launched => "launched inside the range of their call or group",
            How::Concluded => "concluded: every group of its process asks for the same",
            How::Named => "by the kernel's own name",
        }
    }
}

/// A copy or a memset.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// The number of the call; 0 where the tool does not say.
    pub correlation: u32,
    /// Bytes, where the tool says.
    pub bytes: Option<u64>,
    /// What was done.
    pub kind: crate::model::activity::CopyKind,
}

/// A call into CUDA, or into AMD's HIP.
#[derive(Clone, Debug)]
pub struct CudaCall {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The thread, by the system's number.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// The function.
    pub name: Arc<str>,
    /// Whose function it is.
    pub api: Api,
    /// Its number; 0 where the tool does not say.
    pub correlation: u32,
}

/// A range that a program marked.
#[derive(Clone, Debug)]
pub struct Range {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The thread, by the system's number; `None` where it is the process's.
    pub tid: Option<i64>,
    /// When.
    pub span: Span,
    /// Its text.
    pub name: Arc<str>,
    /// What it was marked by, or its domain; `None` is NVTX's default domain.
    pub domain: Option<Arc<str>>,
}

/// A communicator, or a process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communicator {
    /// The process that is a member, by its place in [`Profile::processes`].
    pub process: usize,
    /// Its name or description.
    pub name: Option<String>,
    /// NCCL's hash; the same on all ranks of one run, and another in the next.
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
    /// Its GPU.
    pub device: Option<u32>,
    /// World ranks of its members, as the tool has them.
    pub members: Option<String>,
}

/// What NCCL was asked to do: one collective, one send, one receive.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The call, where that is known.
    pub call: Option<Span>,
    /// The thread of the call.
    pub tid: Option<i64>,
    /// `AllReduce`, `Send`.
    pub function: String,
    /// The communicator, by its place in [`Profile::communicators`].
    pub communicator: Option<usize>,
    /// Elements.
    pub count: Option<u64>,
    /// Bytes, as NCCL counts them for the call: its count times the size of its type.
    pub bytes: Option<u64>,
    /// The datatype in NCCL's words, `ncclFloat32`, or the tool's own.
    pub datatype: Option<String>,
    /// The algorithm that ran.
    pub algorithm: Option<String>,
    /// The protocol that ran.
    pub protocol: Option<String>,
    /// Channels.
    pub channels: Option<u32>,
    /// The other rank.
    pub peer: Option<i32>,
    /// The root.
    pub root: Option<i32>,
    /// The reduction, as `ncclRedOp_t` has it without its prefix: `Sum`, `Prod`.
    pub reduction: Option<String>,
    /// NCCL's sequence number, or the process group's.
    pub seq: Option<u64>,
    /// The number that the operation has on every rank of the run.
    pub correlation: Option<u64>,
}

impl Operation {
    /// Whether it is a send or a receive.
    #[must_use]
    pub fn is_point_to_point(&self) -> bool {
        matches!(self.function.as_str(), "Send" | "Recv")
    }
}

/// A launch of NCCL's, or what surrounds or follows it on its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The thread, by the system's number.
    pub tid: i64,
    /// From its start to its stop.
    pub span: Span,
    /// The communicator, by its place in [`Profile::communicators`].
    pub communicator: Option<usize>,
    /// The `cudaStream_t`, or 0.
    pub stream: u64,
}

/// A call of the application into NCCL.
#[derive(Clone, Debug)]
pub struct NcclCall {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The thread, by the system's number.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// What was asked for. What ran of it has an entry of its own.
    pub operation: Operation,
    /// It was captured into a graph.
    pub captured: bool,
    /// The arrows that lead from it to its hand-overs, by number.
    pub arrows: Vec<u64>,
}

/// An operation that NCCL handed over, once.
#[derive(Clone, Debug)]
pub struct Handover {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// The thread, by the system's number.
    pub tid: i64,
    /// When.
    pub span: Span,
    /// What was handed over.
    pub operation: Operation,
    /// The arrows that it is part of: the one that comes from its call has a number of that call's.
    pub arrows: Vec<u64>,
}

/// One transfer over the network.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// The process, by its place in [`Profile::processes`].
    pub process: usize,
    /// When.
    pub span: Span,
    /// Bytes, where NCCL said.
    pub bytes: Option<u64>,
    /// The other rank.
    pub peer: Option<i32>,
    /// It goes to the other rank; otherwise it comes from there.
    pub is_send: bool,
    /// What it waited for, in the order of time, and how long in ns.
    pub waits: Vec<(String, u64)>,
}

impl Profile {
    /// Kernels of NCCL.
    pub fn nccl_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|kernel| kernel.is_nccl())
    }

    /// Kernels of collectives: NCCL's, and those that frameworks wrote themselves.
    pub fn collective_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter().filter(|kernel| kernel.is_collective())
    }

    /// The calls that may have launched something: their process and number.
    pub fn launching(&self) -> impl Iterator<Item = (usize, u32)> {
        self.cuda_calls.iter().filter(|it| it.correlation != 0).map(|it| (it.process, it.correlation))
    }

    /// The same on another clock, with times that may be off by as much more as the way there.
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
            .chain(self.operations.iter_mut().filter_map(|it| it.call.as_mut()));
        spans.for_each(|span| *span = span.shifted(by));
        self.clock = Clock { error_ns: self.clock.error_ns.saturating_add(by.error_ns), ..to.clone() };
        self
    }

    /// From the first to the last thing in it; `None` where there is none.
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

    /// Puts everything into the order of time.
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

/// Why a file cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The operating system says so.
    Io(String),
    /// It has no bytes.
    Empty,
    /// It is none of the formats that are known; with what it seems to be.
    Foreign(String),
    /// It begins as one and is damaged: what is wrong, and where.
    Damaged(String),
    /// It is of a version that is not known, or lacks what is needed; with what to do.
    Unsupported(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(reason) => write!(f, "failed to read it: {reason}"),
            Error::Empty => {
                write!(f, "the file is empty: the tool that should have written it did not finish, or ran out of disk")
            }
            Error::Foreign(what) => write!(
                f,
                "{what}; known are traces of ncclscope, SQLite exports of Nsight Systems (nsys export --type sqlite report.nsys-rep) and \
                 JSON of PyTorch's profiler (export_chrome_trace), also gzipped"
            ),
            Error::Damaged(reason) | Error::Unsupported(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Io(error.to_string())
    }
}

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace of ours, or another of Perfetto's.
    Perfetto,
    /// An SQLite database.
    Sqlite,
    /// JSON, plain or gzipped.
    Json,
}

/// Times beyond this, in ns, are since 1970: no clock that counts from a boot or a session's begin has run for thirty years.
const SINCE_1970: i64 = 1_000_000_000_000_000_000;
/// What some editors and scripts put before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Says what a file is, by its first bytes.
///
/// # Errors
///
/// When it cannot be read, is empty, or is none of them.
pub fn format(path: &Path) -> Result<Format, Error> {
    let mut head = [0; 64];
    let mut file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Error::Unsupported("this is a folder; name the files in it, as in FOLDER/*.perfetto-trace".into()));
    }
    let mut length = 0;
    while length < head.len() {
        match file.read(&mut head[length..])? {
            0 => break,
            read => length += read,
        }
    }
    let head = &head[..length];
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    // A packet of Perfetto's begins with a line feed too, and its length may be that of a brace.
    let is_text = head.iter().all(|byte| *byte >= b' ' || byte.is_ascii_whitespace());
    let text = if is_text { head.trim_ascii_start() } else { &[] };
    Ok(match head {
        [] => return Err(Error::Empty),
        _ if head.starts_with(b"SQLite format 3\0") => Format::Sqlite,
        [0x1f, 0x8b, ..] => Format::Json,
        _ if matches!(text.first(), Some(b'{' | b'[')) => Format::Json,
        [0x0a, ..] => Format::Perfetto,
        _ if crate::capture::is_capture(head) => {
            return Err(Error::Foreign("this is a capture of ncclscope: ncclscope replay makes a trace of it".into()));
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(Error::Foreign("this is text in UTF-16: write it in UTF-8".into()));
        }
        [b'P', b'K', ..] => return Err(Error::Foreign("this is a ZIP archive: unpack it first".into())),
        _ if path.extension().is_some_and(|it| it == "tar") => {
            return Err(Error::Foreign("this is an archive: unpack it first".into()));
        }
        _ if head.starts_with(b"QDSTRM") || path.extension().is_some_and(|it| it == "nsys-rep" || it == "qdrep") => {
            return Err(Error::Foreign(
                "this is a report of Nsight Systems, in its own format: export it first".into(),
            ));
        }
        _ => {
            return Err(Error::Foreign("this is no profile: its first bytes belong to no format that is known".into()));
        }
    })
}

/// Reads a file of whichever tool.
///
/// # Errors
///
/// See [`Error`].
pub fn open(path: &Path) -> Result<Profile, Error> {
    let mut profile = match format(path)? {
        Format::Sqlite => nsight::read(path)?,
        Format::Json => kineto::read(path)?,
        Format::Perfetto => ours::read(&[path])?,
    };
    profile.source.path = path.to_owned();
    profile.sort();
    Ok(profile)
}

/// Reads traces of ours as one, as far as they can be read.
///
/// # Errors
///
/// See [`Error`].
pub fn open_traces(paths: &[impl AsRef<Path>]) -> Result<Profile, Error> {
    let mut profile = ours::read(paths)?;
    profile.sort();
    Ok(profile)
}
