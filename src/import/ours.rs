//! Our own traces, of one process or of many.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Carried, Clock, Communicator, Copy, CpuWait, CudaCall, Error, Handover, How, Kernel, Launch, NcclCall, Operation,
    Place, Process, Profile, Range, Request, Source, Span, Tool, Transfer, Wanted,
};
use crate::model::activity::{Api, CopyKind};
use crate::model::event::Kind;
use crate::model::selection;
use crate::model::time::FileNs;
use crate::trace::fields::nccl;
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::{Algorithm, DataType, Function, MatchedBy, Protocol};
use crate::trace::reader::proto::perfetto::protos::TrackDescriptor;
use crate::trace::reader::proto::perfetto::protos::track_event::Type;
use crate::trace::reader::wire::fields;
use crate::trace::reader::{self, Ends, Event, Nccl, Numbers, Packet, TracePacket};
use crate::trace::words::{Category, attribute, instant, remark, track};
use crate::trace::writer::TRACK_BITS;

/// The categories of slices that are read.
const CATEGORIES: [Category; 8] = [
    Category::Kernel,
    Category::Carried,
    Category::Operation,
    Category::Api,
    Category::Proxy,
    Category::Cuda,
    Category::Nvtx,
    Category::PyTorch,
];
/// The prefix of a communicator's members in the remark about it.
pub(crate) const WORLD_RANKS: &str = "world ranks ";

/// The arguments that say what NCCL was asked to do, and the texts of those that have no number.
const REQUEST: [u32; 9] = [
    nccl::FUNCTION,
    nccl::COUNT,
    nccl::BYTES,
    nccl::DATATYPE,
    nccl::ALGORITHM,
    nccl::PROTOCOL,
    nccl::CHANNELS,
    nccl::PEER,
    nccl::ROOT,
];
/// What else tells operations apart. A rank's send to itself and the matching receive share a
/// number, and so do collectives of a function that are captured in graphs.
const IDENTITY: [u32; 4] = [nccl::FUNCTION, nccl::COUNT, nccl::DATATYPE, nccl::ROOT];
const REQUEST_TEXTS: [u32; 4] = [nccl::FUNCTION_TEXT, nccl::DATATYPE_TEXT, nccl::ALGORITHM_TEXT, nccl::PROTOCOL_TEXT];

/// Reads traces as one profile, or only these ends of each: what ran is read of the last part.
/// `also` gets the packets, too, and `None` before that part.
pub(super) fn read(
    paths: &[impl AsRef<Path>],
    threads: usize,
    (wanted, ends): (Wanted, Option<Ends>),
    mut also: impl FnMut(Option<&Packet<'_>>),
) -> Result<Profile, Error> {
    let mut reader = Reader { wanted, ..Reader::default() };
    for path in paths {
        let mut file = File::open(path)?;
        let Some([head, tail]) = ends.map(|ends| ends.parts()) else {
            reader.read(threads, &mut file, (0, u64::MAX), &mut also)?;
            continue;
        };
        reader.is_at_head = true;
        reader.read(threads, &mut file, head, &mut also)?;
        reader.is_at_head = false;
        reader.tracks.values_mut().for_each(|track| track.open.clear());
        also(None);
        reader.read(threads, &mut file, tail, &mut also)?;
    }
    reader.finish()
}

#[derive(Default)]
struct Reader {
    wanted: Wanted,
    /// What comes is the beginning of a file of which only the ends are read.
    is_at_head: bool,
    profile: Profile,
    tracks: FxHashMap<u64, Track>,
    /// Processes by their tag.
    processes: FxHashMap<u64, usize>,
    hosts: BTreeSet<String>,
    /// By process, hash, and the name of those without a hash.
    communicators: FxHashMap<(usize, u64, String), usize>,
    /// Operations by process, correlation number (the same on every rank) and [`IDENTITY`].
    operations: FxHashMap<(usize, u64, [Option<u64>; 4]), usize>,
    /// Kernels with several operations, by where and when they ran.
    several: FxHashMap<(usize, String, Span), usize>,
    carried: Vec<(usize, String, Span, usize)>,
    /// What is the same in many slices: requests, by their arguments, and the names of kernels.
    requests: FxHashMap<[Option<u64>; REQUEST.len()], Arc<Request>>,
    names: FxHashSet<Arc<str>>,
    /// Memory for the arguments of slices, as written and decoded.
    spare: Vec<Vec<u8>>,
    numbers: Box<Numbers>,
    versions: BTreeSet<String>,
    /// The rank of a process in a communicator, by the communicator's name in it.
    ranks: FxHashMap<(usize, Arc<str>), i32>,
    /// The tool whose file it was imported from.
    imported: Option<Source>,
    clock: Option<String>,
    to_utc_ns: Option<i64>,
    open: u64,
}

#[derive(Default)]
struct Track {
    parent: Option<u64>,
    name: Arc<str>,
    thread: Option<(i64, String)>,
    transfers: Option<Direction>,
    /// What has ended inside an open transfer.
    waits: Vec<(Arc<str>, u64)>,
    /// Its open slices, outermost first; `None` for those that are not read.
    open: Vec<Option<Open>>,
    /// How long its progress thread waits for a processor, and since when.
    cpu_wait: Option<CpuWait>,
}

/// What a track with transfers says of them.
struct Direction {
    is_send: bool,
    peer: Option<i32>,
    /// The communicator as its process names it, and the process's rank in it once that is known: a
    /// process with several ranks has a name for each.
    label: Arc<str>,
    rank: Option<i32>,
}

struct Open {
    begin: FileNs,
    name: Arc<str>,
    category: Category,
    /// Its arguments, decoded when they are needed: that takes longer than all else.
    args: Vec<u8>,
    correlation: Option<u64>,
    arrows: Vec<u64>,
}

/// The arguments of a slice, as written, and the numbers among them.
#[derive(Clone, Copy)]
struct Args<'a> {
    raw: &'a [u8],
    numbers: &'a Numbers,
}

impl<'a> Args<'a> {
    fn get(self, number: u32) -> Option<u64> {
        self.numbers.get(number)
    }

    /// 0 if it is absent.
    fn uint(self, number: u32) -> u64 {
        self.get(number).unwrap_or(0)
    }

    fn has(self, number: u32) -> bool {
        self.get(number).is_some()
    }

    fn text(self, number: u32) -> Option<Cow<'a, str>> {
        let field = fields(self.raw).find(|field| field.number == number && self.has(number))?;
        Some(String::from_utf8_lossy(field.bytes()))
    }

    fn tid(self) -> Option<i64> {
        self.get(nccl::TID).map(|tid| i64::from(tid as i32))
    }

    fn place(self) -> Place {
        let [device, context, stream] =
            [nccl::DEVICE, nccl::CONTEXT, nccl::STREAM_ID].map(|number| self.uint(number) as u32);
        Place { device, context, stream }
    }
}

impl Reader {
    fn read(
        &mut self,
        threads: usize,
        file: &mut File,
        part: (u64, u64),
        also: &mut impl FnMut(Option<&Packet<'_>>),
    ) -> Result<(), Error> {
        let extent = reader::read_part(threads, file, part, |packet| {
            also(Some(packet));
            self.take(packet);
            Ok(())
        });
        match extent {
            // It ends in the middle of a packet.
            Ok(_) if self.is_at_head => {}
            // A killed process leaves an unfinished packet: everything before it is valid.
            Ok(extent) => match extent.remark() {
                Some(remark) if extent.whole == 0 => return Err(Error::Damaged(remark)),
                remark => self.profile.notes.extend(remark),
            },
            Err(reader::Error::Io(error)) => return Err(error.into()),
            Err(error @ reader::Error::NotATrace) => return Err(Error::Foreign(error.to_string())),
            Err(fault) => return Err(Error::Damaged(format!("{fault}; copy the trace again"))),
        }
        Ok(())
    }

    fn take(&mut self, packet: &Packet<'_>) {
        if packet.descriptor.is_none() {
            let time = packet.time.map(FileNs::from);
            self.profile.begin = self.profile.begin.into_iter().chain(time).min();
        }
        if let Some(event) = &packet.event {
            self.event(event, packet.time.unwrap_or_default().into());
        } else if let Some(descriptor) = packet.track_descriptor() {
            self.track(&descriptor);
        } else if let Ok(packet) = packet.decode() {
            self.said(&packet);
        }
    }

    fn said(&mut self, packet: &TracePacket) {
        self.to_utc_ns = self.to_utc_ns.or_else(|| reader::to_utc_ns(packet));
        for said in packet.trace_attributes.iter().flat_map(|it| &it.attribute) {
            self.attribute(said.key(), said.string_value());
        }
    }

    fn track(&mut self, descriptor: &TrackDescriptor) {
        let uuid = descriptor.uuid();
        let thread = descriptor.thread.as_ref().map(|it| (i64::from(it.tid()), it.thread_name().to_owned()));
        if let Some(process) = &descriptor.process {
            self.process(uuid >> TRACK_BITS, process.own_pid().into(), process.process_name());
        }
        if let (Some((tid, name)), Some(&process)) = (&thread, self.processes.get(&(uuid >> TRACK_BITS))) {
            self.profile.processes[process].threads.insert(*tid, name.clone());
        }
        let track = self.tracks.entry(uuid).or_default();
        track.parent = descriptor.parent_uuid;
        track.name = descriptor.name().into();
        track.thread = thread;
        // `dp · send → 4 · steps`.
        track.transfers = descriptor.name().strip_suffix(track::STEPS).map(|name| {
            let sent = name.split_once(track::SEND);
            let label = sent.or_else(|| name.split_once(track::RECEIVE)).map_or(name, |(label, _)| label);
            let peer = name.rsplit(' ').next().and_then(|it| it.parse().ok());
            Direction { is_send: sent.is_some(), peer, label: label.into(), rank: None }
        });
        // `dp · rank 3 of 8`.
        let placed = descriptor.name().split_once(track::RANK);
        let rank = placed.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        if let (Some((label, _)), Some(rank), Some(process)) = (placed, rank, self.processes.get(&(uuid >> TRACK_BITS)))
        {
            self.ranks.insert((*process, label.into()), rank);
        }
    }

    /// What an imported trace says about its origin.
    fn attribute(&mut self, key: &str, value: &str) {
        let text = || value.to_owned();
        match key {
            attribute::TOOL => {
                let tool = [Tool::Nsight, Tool::Kineto].into_iter().find(|tool| tool.to_string() == value);
                self.imported = tool.map(|tool| Source { tool, imported: true, ..Source::default() });
            }
            attribute::TOOL_VERSION => self.imported.iter_mut().for_each(|source| source.version = text()),
            attribute::TOOL_CLOCK => self.clock = Some(text()),
            attribute::TOOL_HOST => drop(self.hosts.insert(text())),
            attribute::TOOL_RANKS => self.profile.world = value.parse().ok(),
            attribute::NCCL_VERSION => drop(self.versions.insert(text())),
            _ => {}
        }
    }

    fn process(&mut self, tag: u64, pid: i64, name: &str) {
        // A process's further GPUs come after it, each with a number of its own.
        if self.processes.contains_key(&tag) {
            return;
        }
        let mut parts = names::without_gpu(name).0.split(" · ");
        let who = parts.next().unwrap_or_default();
        self.hosts.extend(parts.next().map(str::to_owned));
        let rank = who.strip_prefix("rank ").and_then(|rank| rank.parse().ok());
        self.processes.insert(tag, self.profile.processes.len());
        self.profile.processes.push(Process { pid, name: name.to_owned(), rank, threads: BTreeMap::new(), lost: 0 });
    }

    fn event(&mut self, event: &Event<'_>, time: FileNs) {
        let uuid = event.track;
        match event.r#type() {
            Type::SliceBegin => {
                let category = event.category.filter(|it| !self.is_at_head && self.reads(*it));
                let open = category.map(|category| {
                    let mut args = self.spare.pop().unwrap_or_default();
                    args.extend_from_slice(event.args());
                    let (begin, name, correlation) = (time, event.shared_name(), event.correlation);
                    // Those of others do not count.
                    let has_arrows = matches!(category, Category::Api | Category::Operation);
                    let has_arrows = has_arrows && self.wanted == Wanted::Arrows;
                    let arrows = if has_arrows { event.flows().collect() } else { Vec::new() };
                    Open { begin, name, category, args, correlation, arrows }
                });
                self.tracks.entry(uuid).or_default().open.push(open);
            }
            Type::SliceEnd => {
                let track = self.tracks.entry(uuid).or_default();
                if let Some(Some(mut open)) = track.open.pop() {
                    let depth = track.open.len();
                    self.slice(uuid, &mut open, time, depth);
                    open.args.clear();
                    self.spare.push(open.args);
                }
            }
            Type::Counter => self.counter(uuid, time, event.value.unwrap_or_default()),
            Type::Instant => self.instant(uuid, event.name, time, event.category, event.nccl()),
            _ => {}
        }
    }

    fn counter(&mut self, uuid: u64, time: FileNs, value: i64) {
        let track = self.tracks.entry(uuid).or_default();
        let process = self.processes.get(&(uuid >> TRACK_BITS)).filter(|_| &*track.name == track::CPU_WAIT);
        let Some(process) = process.copied() else { return };
        let percent = u64::try_from(value).unwrap_or(0).min(100);
        let before = track.cpu_wait.replace(CpuWait { process, span: Span { start: time, end: time }, percent });
        let until = |wait: CpuWait| CpuWait { span: Span { end: time, ..wait.span }, ..wait };
        self.profile.cpu_waits.extend(before.map(until).filter(|wait| wait.percent > 0));
    }

    /// Whether slices of this category are read.
    fn reads(&self, category: Category) -> bool {
        let stands_in = self.wanted > Wanted::Work || self.profile.kernels.is_empty();
        CATEGORIES.contains(&category) && (category != Category::Api || stands_in)
    }

    fn instant(&mut self, uuid: u64, name: &str, time: FileNs, category: Option<Category>, nccl: Nccl) {
        let Some(&process) = self.processes.get(&(uuid >> TRACK_BITS)) else { return };
        match name {
            instant::COMM_INIT => self.joined(process, &nccl).created = Some(time),
            instant::COMM | instant::PROCESS_GROUP => _ = self.joined(process, &nccl),
            // Where only the ends of a file are read, its initialisation may not be in them.
            _ if category == Some(Category::Newest) && nccl.comm.is_some() => {
                self.joined(process, &nccl);
            }
            instant::GPU => {
                self.profile.devices.insert(nccl.device(), nccl.note().to_owned());
            }
            instant::STARTED => {
                let version = nccl.note().split(';').next().unwrap_or_default().trim_start_matches("ncclscope ");
                version.clone_into(&mut self.profile.source.version);
                self.profile.notes.push(nccl.note().to_owned());
            }
            instant::IMPORT_STARTED => self.profile.notes.push(nccl.note().to_owned()),
            instant::IMPORT_NOTE if self.imported.is_some() => self.profile.notes.push(nccl.note().to_owned()),
            remark::FORCED if nccl.note().rsplit_once(": ").is_some_and(|(_, unfinished)| unfinished != "0") => {
                self.profile.flushes.push((process, time));
                self.profile.notes.push(format!("{name}: {}", nccl.note()));
            }
            remark::LEFT_OUT => {
                self.profile.gaps = Some(nccl.note().to_owned()).filter(|parts| selection::leaves_gaps(parts));
                self.profile.notes.push(format!("{name}: {}", nccl.note()));
            }
            instant::ENDED if nccl.dropped() + nccl.discarded() > 0 => {
                let lost = nccl.dropped() + nccl.discarded();
                self.profile.processes[process].lost += lost;
                self.profile.notes.push(format!("{lost} calls from NCCL are not in the trace"));
            }
            _ if matches!(category, Some(Category::Nvtx | Category::PyTorch)) && !self.is_at_head => {
                let span = Span { start: time, end: time };
                let range = self.range(uuid, process, span, name, nccl.nvtx_domain.as_deref());
                self.profile.ranges.push(range);
            }
            _ => {}
        }
    }

    /// A process is part of a communicator.
    fn joined(&mut self, process: usize, nccl: &Nccl) -> &mut Communicator {
        let at = self.communicator(process, nccl.comm(), nccl.comm_name());
        let communicator = &mut self.profile.communicators[at];
        communicator.name.clone_from(&nccl.comm_name);
        if let Some((_, members)) = nccl.note().split_once(WORLD_RANKS) {
            communicator.members = Some(members.to_owned());
        }
        communicator.rank = nccl.rank;
        communicator.ranks = nccl.ranks;
        communicator.nodes = nccl.nodes;
        communicator.interface = nccl.interface;
        communicator.version = nccl.nccl_version;
        communicator.gpus.extend(nccl.device.zip(nccl.rank));
        let version = nccl.nccl_version();
        if version > 0 {
            self.versions.insert(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100));
        }
        communicator
    }

    fn slice(&mut self, uuid: u64, open: &mut Open, end: FileNs, depth: usize) {
        let Some(&process) = self.processes.get(&(uuid >> TRACK_BITS)) else { return };
        let span = Span { start: open.begin, end: end.max(open.begin) };
        if open.category == Category::Proxy {
            return self.transfer(uuid, process, span, open, depth);
        }
        let track = self.tracks.get(&uuid).map_or_else(|| "".into(), |track| Arc::clone(&track.name));
        let (raw, mut numbers) = (std::mem::take(&mut open.args), std::mem::take(&mut self.numbers));
        numbers.decode(&raw);
        let args = Args { raw: &raw, numbers: &numbers };
        match open.category {
            Category::Kernel if args.has(nccl::KERNEL) => self.kernel(process, &track, span, open, args),
            Category::Kernel => self.copy(process, span, open, args),
            Category::Carried => {
                let operation = self.operation(process, open, args);
                let of = track.strip_suffix(track::OPERATIONS).unwrap_or(&track).to_owned();
                self.carried.push((process, of, span, operation));
            }
            Category::Operation => {
                if self.wanted == Wanted::Arrows {
                    self.handover(process, span, open, args);
                }
                let operation = self.operation(process, open, args);
                let operation = &mut self.profile.operations[operation];
                (operation.call, operation.tid) = (Some(span), args.tid());
            }
            Category::Api => self.api(uuid, process, span, open, args),
            Category::Cuda => {
                let tid = args.tid().or_else(|| self.thread(uuid));
                let call = CudaCall {
                    process,
                    tid: tid.unwrap_or(0),
                    span,
                    api: [Api::Driver, Api::Hip]
                        .into_iter()
                        .find(|api| track.starts_with(api.name()))
                        .unwrap_or(Api::Runtime),
                    correlation: args.uint(nccl::CORRELATION) as u32,
                    name: Arc::clone(&open.name),
                };
                self.profile.cuda_calls.push(call);
            }
            Category::Nvtx | Category::PyTorch => {
                let range = self.range(uuid, process, span, &open.name, args.text(nccl::NVTX_DOMAIN).as_deref());
                self.profile.ranges.push(range);
            }
            _ => {}
        }
        (open.args, self.numbers) = (raw, numbers);
    }

    /// The id of the thread that a track belongs to.
    fn thread(&self, uuid: u64) -> Option<i64> {
        let mut at = self.tracks.get(&uuid)?;
        // A cycle would be a fault of the file.
        for _ in 0..64 {
            if let Some((tid, _)) = &at.thread {
                return Some(*tid);
            }
            at = self.tracks.get(&at.parent?)?;
        }
        None
    }

    fn range(&self, uuid: u64, process: usize, span: Span, name: &str, domain: Option<&str>) -> Range {
        let track = self.tracks.get(&uuid).map_or("", |track| &*track.name);
        let domain = domain.or_else(|| track.strip_prefix(track::PYTORCH)?.strip_prefix(" · ")).map(Into::into);
        Range { process, tid: self.thread(uuid), span, name: name.into(), domain }
    }

    fn kernel(&mut self, process: usize, track: &str, span: Span, open: &Open, args: Args<'_>) {
        let how = match MatchedBy::try_from(args.uint(nccl::MATCH) as i32).unwrap_or_default() {
            MatchedBy::ExactLaunchBracket | MatchedBy::ExactGraphNode | MatchedBy::ExactExternalId => How::Exact,
            MatchedBy::InferredCallBracket
            | MatchedBy::InferredThreadOrder
            | MatchedBy::InferredDeviceTimer
            | MatchedBy::InferredGraphReplay
            | MatchedBy::InferredCaptureOrder => How::Inferred,
            MatchedBy::InferredRange => How::Launched,
            MatchedBy::InferredKernelName => How::Named,
            MatchedBy::Contradicted | MatchedBy::Unmatched | MatchedBy::MatchAbsent => How::Unknown,
        };
        let how = if self.imported.is_some() && how == How::Exact { How::Told } else { how };
        let count = if how == How::Unknown { 0 } else { args.uint(nccl::OPERATIONS) as u32 };
        let replay = args.get(nccl::REPLAY).map(|replay| replay as u32);
        let mut carried = Carried { count, operations: Vec::new(), how, replay };
        match carried.count {
            0 => {}
            1 => carried.operations = vec![self.operation(process, open, args)],
            _ => drop(self.several.insert((process, track.to_owned(), span), self.profile.kernels.len())),
        }
        let name = args.text(nccl::KERNEL).unwrap_or_default();
        let name = self.names.get(&*name).cloned().unwrap_or_else(|| {
            let name: Arc<str> = name.into();
            self.names.insert(Arc::clone(&name));
            name
        });
        self.profile.kernels.push(Kernel {
            process,
            span,
            place: args.place(),
            correlation: args.uint(nccl::CORRELATION) as u32,
            name,
            grid: [args.uint(nccl::GRID) as u32, 0, 0],
            block: [args.uint(nccl::BLOCK) as u32, 0, 0],
            graph_node: args.uint(nccl::GRAPH_NODE),
            carried,
        });
    }

    fn copy(&mut self, process: usize, span: Span, open: &Open, args: Args<'_>) {
        let note = args.text(nccl::NOTE);
        let name = note.as_deref().unwrap_or(&open.name);
        let kinds = [
            CopyKind::HostToDevice,
            CopyKind::DeviceToHost,
            CopyKind::DeviceToDevice,
            CopyKind::PeerToPeer,
            CopyKind::Set,
        ];
        let kind = kinds.into_iter().find(|kind| names::copy(*kind) == name).unwrap_or(CopyKind::Other(0));
        let correlation = args.uint(nccl::CORRELATION) as u32;
        let (place, bytes) = (args.place(), args.get(nccl::BYTES));
        self.profile.copies.push(Copy { process, span, place, correlation, bytes, kind });
    }

    fn api(&mut self, uuid: u64, process: usize, span: Span, open: &mut Open, args: Args<'_>) {
        let Some(tid) = self.thread(uuid) else { return };
        let communicator = self.communicator_of(process, args);
        let launch = Launch { process, tid, span, communicator, stream: args.uint(nccl::STREAM) };
        let lists = [
            (Kind::KernelLaunch, Wanted::Calls, &mut self.profile.launches),
            (Kind::Group, Wanted::Arrows, &mut self.profile.plans),
            (Kind::GroupApi, Wanted::Arrows, &mut self.profile.groups),
        ];
        let list = lists.into_iter().find(|(kind, ..)| kind.name() == &*open.name);
        if let Some((_, level, list)) = list {
            list.extend((self.wanted >= level).then_some(launch));
        } else if args.has(nccl::COUNT) {
            // The operation of the call; its run has an entry of its own.
            let operation = self.described(process, args, None);
            self.profile.nccl_calls.push(NcclCall {
                process,
                tid,
                span,
                operation: Operation { call: Some(span), tid: Some(tid), ..operation },
                captured: args.uint(nccl::CAPTURED) != 0,
                arrows: std::mem::take(&mut open.arrows),
            });
        }
    }

    /// All replays of an operation in a graph share one number, so its entry among the operations
    /// does not show each of them.
    fn handover(&mut self, process: usize, span: Span, open: &mut Open, args: Args<'_>) {
        let Some(tid) = args.tid() else { return };
        let operation = self.described(process, args, open.correlation);
        let arrows = std::mem::take(&mut open.arrows);
        self.profile.handovers.push(Handover { process, tid, span, operation, arrows });
    }

    fn transfer(&mut self, uuid: u64, process: usize, span: Span, open: &Open, depth: usize) {
        let Some(track) = self.tracks.get_mut(&uuid) else { return };
        let Some(Direction { is_send, peer, label, rank }) = &mut track.transfers else { return };
        if depth > 0 {
            return track.waits.push((Arc::clone(&open.name), span.duration()));
        }
        *rank = rank.or_else(|| self.ranks.get(&(process, Arc::clone(label))).copied());
        let [channel] = reader::uints(&open.args, [nccl::CHANNEL]);
        self.profile.transfers.push(Transfer {
            process,
            rank: *rank,
            span,
            correlation: open.correlation,
            peer: *peer,
            channel: channel.map(|channel| channel as u32),
            is_send: *is_send,
            waits: std::mem::take(&mut track.waits),
        });
    }

    fn operation(&mut self, process: usize, open: &Open, args: Args<'_>) -> usize {
        let key = open.correlation.map(|number| (process, number, IDENTITY.map(|field| args.get(field))));
        let known = key.and_then(|key| self.operations.get(&key)).copied();
        if let Some(known) = known {
            return known;
        }
        let new = self.profile.operations.len();
        let operation = self.described(process, args, open.correlation);
        self.profile.operations.push(operation);
        if let Some(key) = key {
            self.operations.insert(key, new);
        }
        new
    }

    /// The operation described by the arguments of a slice.
    fn described(&mut self, process: usize, args: Args<'_>, correlation: Option<u64>) -> Operation {
        let communicator = self.communicator_of(process, args);
        let made = || Arc::new(request(&reader::nccl(args.raw)));
        let request = match REQUEST_TEXTS.iter().any(|number| args.has(*number)) {
            true => made(),
            false => {
                let key = REQUEST.map(|number| args.get(number));
                Arc::clone(self.requests.entry(key).or_insert_with(made))
            }
        };
        Operation { process, call: None, tid: None, communicator, request, seq: args.get(nccl::SEQ), correlation }
    }

    /// The communicator that something names: by hash, or by name for process groups of other
    /// tools.
    fn communicator_of(&mut self, process: usize, args: Args<'_>) -> Option<usize> {
        let hash = args.uint(nccl::COMM);
        let name = args.text(nccl::COMM_NAME).filter(|_| hash == 0);
        (hash != 0 || name.is_some()).then(|| self.communicator(process, hash, &name.unwrap_or_default()))
    }

    fn communicator(&mut self, process: usize, hash: u64, name: &str) -> usize {
        let name = if hash == 0 { name } else { "" };
        *self.communicators.entry((process, hash, name.to_owned())).or_insert_with(|| {
            let hash = Some(hash).filter(|hash| *hash != 0);
            self.profile.communicators.push(Communicator { process, hash, ..Communicator::default() });
            self.profile.communicators.len() - 1
        })
    }

    fn finish(mut self) -> Result<Profile, Error> {
        if self.processes.is_empty() {
            return Err(Error::Foreign("this is a Perfetto trace without a process recorded by ncclscope".into()));
        }
        for (process, track, span, operation) in std::mem::take(&mut self.carried) {
            if let Some(&kernel) = self.several.get(&(process, track, span)) {
                self.profile.kernels[kernel].carried.operations.push(operation);
            }
        }
        self.open = self.tracks.values().map(|track| track.open.len() as u64).sum();
        let mut profile = self.profile;
        if self.open > 0 {
            profile.notes.push(format!("{} slices have no end and are left out", self.open));
        }
        profile.cpu_waits.sort_unstable();
        profile.notes.sort();
        profile.notes.dedup();
        profile.host = (self.hosts.len() == 1).then(|| self.hosts.into_iter().next()).flatten();
        profile.nccl_versions = self.versions.into_iter().collect();
        let version = std::mem::take(&mut profile.source.version);
        let own = || Source { tool: Tool::Ncclscope, version, ..Source::default() };
        profile.source = self.imported.unwrap_or_else(own);
        let clock = self.clock.unwrap_or_else(|| "CLOCK_BOOTTIME".into());
        profile.clock = Clock::of_file(clock, self.to_utc_ns);
        Ok(profile)
    }
}

/// What NCCL was asked to do.
fn request(nccl: &Nccl) -> Request {
    let word = |known: Option<&str>, text: &Option<String>| known.map(str::to_owned).or_else(|| text.clone());
    let function = Some(nccl.function()).filter(|it| *it != Function::Absent);
    let datatype = Some(nccl.datatype()).filter(|it| *it != DataType::DatatypeAbsent);
    let algorithm = Some(nccl.algorithm()).filter(|it| *it != Algorithm::Absent);
    let protocol = Some(nccl.protocol()).filter(|it| *it != Protocol::Absent);
    Request {
        function: word(function.map(|it| it.as_str_name()), &nccl.function_text).unwrap_or_else(|| "operation".into()),
        count: nccl.count,
        bytes: nccl.bytes,
        datatype: word(datatype.map(|it| it.as_str_name()), &nccl.datatype_text),
        algorithm: word(algorithm.map(|it| it.as_str_name()), &nccl.algorithm_text),
        protocol: word(protocol.map(|it| it.as_str_name()), &nccl.protocol_text),
        channels: nccl.channels,
        peer: nccl.peer,
        root: nccl.root,
        // The interface had it only up to NCCL 2.23, as the number of a device function.
        reduction: None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use prost::Message as _;

    use super::*;
    use crate::trace::reader::proto::perfetto::protos::{
        EventCategory, InternedData, ProcessDescriptor, TrackDescriptor, track_event,
    };
    use crate::trace::reader::{Trace, TrackEvent};

    #[test]
    fn tracks_that_contain_each_other_belong_to_no_thread() {
        let track = |number, parent: Option<u64>, process| TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(7_u64 << TRACK_BITS | number),
                parent_uuid: parent.map(|parent| 7_u64 << TRACK_BITS | parent),
                process,
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        };
        let process = ProcessDescriptor { pid: Some(4711), ..ProcessDescriptor::default() };
        let category = EventCategory { iid: Some(1), name: Some("api".into()) };
        let interned = InternedData { event_categories: vec![category], ..InternedData::default() };
        let event = |kind: track_event::Type| TracePacket {
            interned_data: Some(interned.clone()),
            track_event: Some(TrackEvent {
                r#type: Some(kind.into()),
                track_uuid: Some(7_u64 << TRACK_BITS | 2),
                category_iids: vec![1],
                ..TrackEvent::default()
            }),
            ..TracePacket::default()
        };
        let packet = vec![
            track(1, None, Some(process)),
            track(2, Some(3), None),
            track(3, Some(2), None),
            event(track_event::Type::SliceBegin),
            event(track_event::Type::SliceEnd),
        ];
        let (mut reader, mut file) = (Reader::default(), tempfile::tempfile().unwrap());
        file.write_all(&Trace { packet }.encode_to_vec()).unwrap();
        reader.read(1, &mut file, (0, u64::MAX), &mut |_| ()).unwrap();
        let profile = reader.finish().unwrap();
        assert_eq!((profile.processes.len(), profile.nccl_calls.len()), (1, 0));
    }
}
