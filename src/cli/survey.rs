//! A first pass over a trace: its time range, tracks, processes, communicators and operations.

mod calls;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub(super) use self::calls::{Calls, OfFunction, Request, Requests};
use super::Fault;
use super::merge::abreast;
use crate::cli::reason::Reason;
use crate::model::ids::ProcessTag;
use crate::model::time::HostNs;
use crate::trace::fields::{
    nccl, process_descriptor, thread_descriptor, track_descriptor, track_event::r#type as kind,
};
use crate::trace::names;
use crate::trace::reader::wire::fields;
use crate::trace::reader::{self, Event, Extent, Numbers, Packet, blocks};
use crate::trace::words::{self, Category, attribute};
use crate::trace::writer::{TRACK_BITS, tag_of_sequence};

/// No communicator has more ranks; a damaged file may say so.
const RANKS: u32 = 1 << 20;
/// How much earlier than others of its host a recording may end on a busy machine, ns.
pub(super) const LAG_NS: u64 = 5_000_000_000;

/// What is found in one trace, or in several that are treated as one.
#[derive(Default)]
pub(super) struct Survey {
    /// The first and the last time in it.
    pub(super) span: Option<(HostNs, HostNs)>,
    pub(super) slices: u64,
    pub(super) tracks: FxHashMap<u64, Track>,
    /// The tracks of processes, by pid. Containers have processes with the same pid.
    pub(super) by_pid: FxHashMap<u64, Vec<u64>>,
    pub(super) communicators: BTreeMap<u64, Communicator>,
    /// The time ranges of operations as the host handed them over, and of NCCL's kernels, in the
    /// order of the file. Those without an end end when they begin. Empty unless `lists_work`:
    /// there may be millions.
    pub(super) lists_work: bool,
    pub(super) operations: Vec<(HostNs, HostNs)>,
    pub(super) kernels: Vec<(HostNs, HostNs)>,
    /// What may have hung: overdue operations, the proxy's work on operations, and calls into NCCL,
    /// all without an end.
    pub(super) unfinished: Vec<Unfinished>,
    /// The processes, by their track.
    pub(super) processes: HashMap<u64, Process>,
    /// What the ranks asked for in their calls of collectives.
    pub(super) requests: Requests,
    /// How many records were dropped.
    pub(super) dropped: u64,
    /// How many bytes of each file are trace.
    pub(super) extents: Vec<(PathBuf, Extent)>,
    /// Tags of processes, by file, that a process of an earlier file drew, too.
    pub(super) namesakes: BTreeSet<(usize, u64)>,
}

/// A track's description, and what lies on it.
#[derive(Default)]
pub(super) struct Track {
    pub(super) parent: Option<u64>,
    pub(super) name: String,
    /// The pid of its process, or the id of its thread.
    pub(super) pid: Option<u64>,
    pub(super) is_process: bool,
    /// Communicators named on it: the first two, since of a track with several, none counts.
    pub(super) communicators: Vec<u64>,
    last_named: Option<u64>,
    /// Operations on it, their bytes, and how many of them are drawn while the GPU worked on them.
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) runs: u64,
    /// Collectives that were handed over on it.
    pub(super) handed_over: HandedOver,
    pub(super) calls: Calls,
    /// It shows how NCCL created the communicator.
    pub(super) has_init: bool,
    /// The longest time from the hand-over of an operation to the end of its kernel, ns.
    pub(super) longest_ns: u64,
    /// When something first and last began or ended on it.
    pub(super) moved: Option<(HostNs, HostNs)>,
    /// The last call for an operation on it.
    call: Option<Begun>,
    open: Vec<Open>,
}

/// The operations whose hand-over one track shows.
#[derive(Default)]
pub(super) struct HandedOver {
    /// The last operation, and when.
    pub(super) last: Option<(String, HostNs)>,
    /// The last collective, and when.
    pub(super) collective: Option<(Collective, HostNs)>,
    /// The longest time between two, ns.
    pub(super) gap_ns: u64,
}

/// A collective, with the numbers that all ranks use for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Collective {
    pub(super) correlation: u64,
    pub(super) name: String,
    pub(super) seq: u64,
}

/// Work on an operation that was begun and has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) kind: Work,
    pub(super) begin: HostNs,
    /// Its index among all slices. Of those that begin together, the first comes first.
    pub(super) place: u64,
    pub(super) track: u64,
    /// The communicator, if known.
    pub(super) hash: Option<u64>,
    /// The operation's mark, which is the same on all ranks, and its name.
    pub(super) correlation: Option<u64>,
    pub(super) name: String,
    pub(super) seq: Option<u64>,
    pub(super) peer: Option<u32>,
    /// For a replayed graph: which run, counted from 1.
    pub(super) replay: Option<u64>,
    /// The recording's remark.
    pub(super) note: String,
}

/// The same while it may still end, with its arguments as written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Begun {
    kind: Work,
    begin: HostNs,
    place: u64,
    correlation: Option<u64>,
    name: Arc<str>,
    args: Vec<u8>,
}

/// Who has to do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The GPU, as far as known: the operation is overdue.
    Overdue,
    Proxy,
    /// The host: the call that asked for it does not return.
    Call,
}

/// What a trace says about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    /// The first time in its file, and the last time on one of its tracks.
    pub(super) first: HostNs,
    pub(super) last: HostNs,
    /// How long it can have been alive after that without a sign in its trace, ns. `None` if it gives
    /// no regular sign of life.
    pub(super) silence_ns: Option<u64>,
    /// Its file, as an index into the survey's.
    pub(super) file: usize,
    /// The id of its host's boot, if known: several hosts may have the same name.
    pub(super) boot: Option<String>,
    /// The UUID of its GPU, in hexadecimal digits, if known.
    pub(super) gpu: Option<String>,
    /// When its recording ended, if known.
    pub(super) ended: Option<HostNs>,
    /// Records of it were dropped.
    pub(super) is_lossy: bool,
    /// Settings left out a part of it.
    pub(super) is_partial: bool,
    /// Its file was full, so what came after is not known.
    pub(super) is_full: bool,
}

/// An open slice. For those that are listed, its index in the survey's list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Open {
    Operation(usize),
    Kernel(usize),
    /// Boxed, because all others are small.
    Work(Box<Begun>),
    /// An operation while the GPU worked on it, and when it was handed over.
    Run(HostNs),
    /// A call into NCCL on a host thread, and when it was made.
    Call(HostNs),
    Other,
}

/// What the first pass over one file gathers, with what its processes say, by track.
#[derive(Default)]
pub(super) struct Looking {
    survey: Survey,
    numbers: Numbers,
    last: HostNs,
    /// The UUIDs of GPUs, by the tag of their process and their number there.
    gpus: BTreeMap<(u64, u64), String>,
    ended: FxHashMap<u64, HostNs>,
    /// Counters that were above zero.
    counted: BTreeSet<u64>,
    /// Where it says that settings left something out.
    partial: BTreeSet<u64>,
    /// Tags of processes whose files are full.
    stopped: FxHashSet<u64>,
    /// The boots of their hosts, by the tag of the process.
    boots: FxHashMap<u64, String>,
    /// How often recordings wrote, if they say so, by the tag of their process, ns.
    flush_ns: FxHashMap<u64, u64>,
}

impl HandedOver {
    fn take(&mut self, event: &Event<'_>, time: HostNs, seq: Option<u64>) {
        if let Some((_, before)) = &self.last {
            self.gap_ns = self.gap_ns.max(time.since(*before));
        }
        // Sends and receives are not numbered in the same order on all ranks.
        if let (Some(correlation), Some(seq)) = (event.correlation, seq) {
            let (collective, at) = self.collective.get_or_insert_default();
            (collective.correlation, collective.seq, *at) = (correlation, seq, time);
            event.name.clone_into(&mut collective.name);
        }
        let (last, at) = self.last.get_or_insert_default();
        event.name.clone_into(last);
        *at = time;
    }
}

impl Track {
    /// What is open on it, which has this uuid, at the end.
    fn take_unfinished(&mut self, uuid: u64) -> Vec<Unfinished> {
        let (open, call) = (std::mem::take(&mut self.open), self.call.take());
        // A group of calls returns, or does not return, as a whole.
        let since = open.iter().find_map(|open| if let Open::Call(since) = open { Some(*since) } else { None });
        let call = call.filter(|call| since.is_some_and(|since| since <= call.begin));
        let work = open.into_iter().filter_map(|open| if let Open::Work(slice) = open { Some(*slice) } else { None });
        work.chain(call).map(|begun| begun.unfinished(uuid)).collect()
    }
}

impl Begun {
    /// `args` is memory to use.
    fn new(kind: Work, event: &Event<'_>, begin: HostNs, place: u64, mut args: Vec<u8>) -> Begun {
        args.clear();
        args.extend_from_slice(event.args());
        Begun { kind, begin, place, correlation: event.correlation, name: event.shared_name(), args }
    }

    fn unfinished(self, track: u64) -> Unfinished {
        let args = reader::nccl(&self.args);
        Unfinished {
            kind: self.kind,
            begin: self.begin,
            place: self.place,
            track,
            hash: args.comm,
            correlation: self.correlation,
            name: self.name.to_string(),
            seq: args.seq,
            peer: args.peer.and_then(|peer| u32::try_from(peer).ok()),
            replay: args.replay.map(u64::from),
            note: args.note.unwrap_or_default(),
        }
    }
}

/// What a trace says about a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) name: Option<String>,
    pub(super) ranks: Option<u64>,
}

impl Looking {
    /// Looks through a trace as far as it can be read, on this many threads; `each` gets its packets
    /// and the numbers among the arguments of their events, too.
    fn at(
        path: &Path,
        threads: usize,
        lists_work: bool,
        mut each: impl FnMut(&Packet<'_>, &Numbers),
    ) -> (Survey, Result<Extent, Fault>) {
        let mut looking = Looking { survey: Survey { lists_work, ..Survey::default() }, ..Looking::default() };
        let extent = super::must_be_trace(path).map_err(Fault::Other).and_then(|()| {
            reader::read_on(threads, File::open(path).map_err(reader::Error::Io)?, |packet| {
                each(packet, looking.take(packet));
                Ok(())
            })
        });
        (looking.done(), extent)
    }

    /// Takes the next packet; returns the numbers among the arguments of its event.
    pub(super) fn take(&mut self, packet: &Packet<'_>) -> &Numbers {
        self.numbers.decode(packet.event.as_ref().map_or(&[], Event::args));
        if packet.event.is_none() {
            packet.descriptor.into_iter().for_each(|descriptor| self.survey.describe(descriptor));
            self.attributes(packet);
        }
        if let Some(time) = packet.time {
            self.timed(packet, time);
        }
        &self.numbers
    }

    fn attributes(&mut self, packet: &Packet<'_>) {
        let tag = tag_of_sequence(packet.sequence);
        for (key, value) in packet.attributes() {
            match (key.as_str(), value.parse::<u64>()) {
                (attribute::BOOT, _) => _ = self.boots.insert(tag, value),
                (attribute::FLUSH, Ok(ms)) => _ = self.flush_ns.insert(tag, ms.saturating_mul(1_000_000)),
                _ => {}
            }
        }
    }

    fn timed(&mut self, packet: &Packet<'_>, time: HostNs) {
        let (first, last) = self.survey.span.unwrap_or((time, time));
        self.survey.span = Some((first.min(time), last.max(time)));
        self.last = self.last.max(time);
        let Some(event) = &packet.event else { return };
        match event.kind {
            kind::TYPE_INSTANT if self.numbers.get(nccl::RECORDED).is_some() => {
                self.ended.insert(event.track, time);
            }
            kind::TYPE_INSTANT if event.name == words::remark::LEFT_OUT => {
                self.partial.insert(event.track);
            }
            kind::TYPE_INSTANT if event.name == words::remark::STOPPED => {
                self.stopped.insert(event.track >> TRACK_BITS);
            }
            kind::TYPE_INSTANT if event.name == words::instant::GPU => {
                if let (Some(number), Some(uuid)) = (self.numbers.get(nccl::DEVICE), event.arg(nccl::UUID)) {
                    let uuid = String::from_utf8_lossy(uuid.bytes()).into_owned();
                    self.gpus.insert((event.track >> TRACK_BITS, number), uuid);
                }
            }
            kind::TYPE_COUNTER if event.value.is_some_and(|value| value > 0) => {
                self.counted.insert(event.track);
            }
            _ => {}
        }
        self.survey.event(event, &self.numbers, time);
    }

    /// What the file shows.
    pub(super) fn done(self) -> Survey {
        let Looking { mut survey, last, gpus, ended, counted, partial, stopped, boots, flush_ns, .. } = self;
        let first = survey.span.map_or(last, |it| it.0);
        let (mut moved, mut beats) = (FxHashMap::default(), FxHashSet::default());
        for (uuid, track) in &survey.tracks {
            if let Some((first, last)) = track.moved {
                let all = moved.entry(uuid >> TRACK_BITS).or_insert((first, last));
                *all = (first.min(all.0), last.max(all.1));
            }
            if track.name == words::track::OWN_CPU {
                beats.insert(uuid >> TRACK_BITS);
            }
        }
        let process = |uuid: u64, name: &str| {
            let number = names::without_gpu(name).1;
            let gpu = number.and_then(|number| gpus.get(&(uuid >> TRACK_BITS, u64::from(number)))).cloned();
            let tag = uuid >> TRACK_BITS;
            let (first, last) = moved.get(&tag).copied().unwrap_or((first, last));
            let is_full = stopped.contains(&tag);
            let silence_ns =
                (beats.contains(&tag) && !is_full).then(|| LAG_NS + flush_ns.get(&tag).copied().unwrap_or(0));
            Process { first, last, silence_ns, is_full, gpu, boot: boots.get(&tag).cloned(), ..Process::default() }
        };
        let processes = survey.tracks.iter().filter(|(_, track)| track.is_process);
        survey.processes = processes.map(|(uuid, track)| (*uuid, process(*uuid, &track.name))).collect();
        for (track, time) in &ended {
            // A process with several GPUs is drawn as several, with one tag.
            let same = |uuid: &u64| uuid >> TRACK_BITS == track >> TRACK_BITS;
            let processes = survey.processes.iter_mut().filter(|(uuid, _)| same(uuid));
            processes.for_each(|(_, process)| process.ended = Some(*time));
        }
        for track in &counted {
            let counts_losses = survey.tracks.get(track).is_some_and(|track| track.name == words::track::DROPS);
            if counts_losses && let Some(process) = survey.process(*track) {
                survey.processes.entry(process).or_default().is_lossy = true;
            }
        }
        for process in partial.into_iter().filter_map(|track| survey.process(track)).collect::<Vec<_>>() {
            survey.processes.entry(process).or_default().is_partial = true;
        }
        let tracks = survey.tracks.iter_mut();
        survey.unfinished = tracks.flat_map(|(uuid, track)| track.take_unfinished(*uuid)).collect();
        survey
    }
}

impl Survey {
    /// Looks through traces, and lists their operations and kernels, too.
    ///
    /// # Errors
    ///
    /// If one cannot be read, or is not a trace, or has a process tag that is in another one.
    pub(super) fn with_work(paths: &[PathBuf]) -> Result<Survey, Reason> {
        let (survey, looked) = Survey::of_what_can_be_read(true, paths, |(), _, _| {});
        if let Some(fault) = paths.iter().zip(looked).find_map(|(path, ((), fault))| Some(fault?.of(path))) {
            return Err(fault);
        }
        match survey.namesakes.first() {
            Some((file, _)) => Err(twins(&paths[*file])),
            None => Ok(survey),
        }
    }

    /// Looks through one trace; `each` gets its packets, too.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is not a trace.
    pub(super) fn of_one(path: &Path, mut each: impl FnMut(&Packet<'_>)) -> Result<Survey, Reason> {
        let (mut survey, looked) = Looking::at(path, blocks::cores(), false, |packet, _| each(packet));
        let extent = looked.map_err(|fault| fault.of(path))?;
        survey.extents.push((path.to_owned(), extent));
        Ok(survey)
    }

    /// Looks through traces as far as they can be read, side by side. Says for each why it was not
    /// read to its end, and what `each` made of its packets and the numbers among the arguments of
    /// their events.
    pub(super) fn of_what_can_be_read<T: Default + Send>(
        lists_work: bool,
        paths: &[PathBuf],
        each: impl Fn(&mut T, &Packet<'_>, &Numbers) + Sync,
    ) -> (Survey, Vec<(T, Option<Fault>)>) {
        let (mut all, mut looked) = (Survey::default(), Vec::new());
        let look = |path: &PathBuf, threads| {
            let mut made = T::default();
            let (survey, extent) =
                Looking::at(path, threads, lists_work, |packet, numbers| each(&mut made, packet, numbers));
            (made, survey, extent)
        };
        abreast::look(paths, look, |path, (made, survey, extent)| {
            looked.push((made, all.add(path, survey, extent).err()));
        });
        (all, looked)
    }

    /// Adds a further trace, as far as it could be read. An error if that is not to its end, or if an
    /// earlier one has the same recording: a process with the same tag, name and pid.
    pub(super) fn add(&mut self, path: &Path, other: Survey, extent: Result<Extent, Fault>) -> Result<Extent, Fault> {
        let file = self.extents.len();
        self.extents.push((path.to_owned(), *extent.as_ref().unwrap_or(&Extent::default())));
        for (uuid, track) in other.tracks.iter().filter(|(_, track)| track.is_process) {
            let Some(earlier) = self.tracks.get(uuid).filter(|known| known.is_process) else { continue };
            if (earlier.pid, &earlier.name) == (track.pid, &track.name) {
                return Err(Fault::Other(twins(path)));
            }
            self.namesakes.insert((file, uuid >> TRACK_BITS));
        }
        let requests = self.requests.put_all(other.requests);
        for (uuid, mut track) in other.tracks {
            track.calls.renumber(&requests);
            track.parent = track.parent.map(|parent| self.uuid(file, parent));
            let uuid = self.uuid(file, uuid);
            if !self.tracks.contains_key(&uuid) {
                self.put(uuid, track);
            }
        }
        for mut slice in other.unfinished {
            (slice.track, slice.place) = (self.uuid(file, slice.track), self.slices + slice.place);
            self.unfinished.push(slice);
        }
        self.unfinished.sort_by_key(|slice| (slice.begin, slice.place));
        let processes: Vec<_> =
            other.processes.into_iter().map(|(uuid, it)| (self.uuid(file, uuid), Process { file, ..it })).collect();
        self.processes.extend(processes);
        for (hash, communicator) in other.communicators {
            let known = self.communicators.entry(hash).or_default();
            if communicator != Communicator::default() {
                *known = communicator;
            }
        }
        self.operations.extend(other.operations);
        self.kernels.extend(other.kernels);
        self.span = self.span.into_iter().chain(other.span).reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
        self.slices += other.slices;
        self.dropped = self.dropped.saturating_add(other.dropped);
        extent
    }

    /// A track's uuid, unlike those of all other files.
    pub(super) fn uuid(&self, file: usize, uuid: u64) -> u64 {
        let beyond = (file as u64 + 1) << (TRACK_BITS + ProcessTag::BITS);
        if self.namesakes.contains(&(file, uuid >> TRACK_BITS)) { uuid | beyond } else { uuid }
    }

    fn describe(&mut self, descriptor: &[u8]) {
        let mut uuid = 0;
        let mut track = Track::default();
        for field in fields(descriptor) {
            let part = |number| fields(field.bytes()).find(|part| part.number == number);
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            match field.number {
                track_descriptor::UUID => uuid = field.uint(),
                track_descriptor::PARENT_UUID => track.parent = Some(field.uint()),
                track_descriptor::NAME => track.name = text(field.bytes()),
                track_descriptor::PROCESS => {
                    track.is_process = true;
                    track.pid = part(process_descriptor::PID).map(|pid| pid.uint());
                    track.name =
                        part(process_descriptor::PROCESS_NAME).map_or_else(String::new, |name| text(name.bytes()));
                }
                track_descriptor::THREAD => track.pid = part(thread_descriptor::PID).map(|pid| pid.uint()),
                _ => {}
            }
        }
        let known = self.tracks.get_mut(&uuid).map(|known| std::mem::take(&mut known.communicators));
        self.put(uuid, Track { communicators: known.unwrap_or_default(), ..track });
    }

    fn put(&mut self, uuid: u64, track: Track) {
        if let Some(pid) = track.pid.filter(|_| track.is_process) {
            let of_pid = self.by_pid.entry(pid).or_default();
            if !of_pid.contains(&uuid) {
                of_pid.push(uuid);
            }
        }
        self.tracks.insert(uuid, track);
    }

    fn event(&mut self, event: &Event<'_>, numbers: &Numbers, time: HostNs) {
        let track = self.tracks.entry(event.track).or_default();
        track.moved = Some(track.moved.map_or((time, time), |(first, last)| (first.min(time), last.max(time))));
        let number = |field| numbers.get(field).unwrap_or_default();
        let comm = numbers.get(nccl::COMM);
        let work = |kind, place| Box::new(Begun::new(kind, event, time, place, Vec::new()));
        match event.kind {
            kind::TYPE_SLICE_BEGIN => {
                self.slices += 1;
                let open = match event.category {
                    Some(Category::Operation) => {
                        track.operations += 1;
                        track.bytes = track.bytes.saturating_add(number(nccl::BYTES));
                        let seq = numbers.get(nccl::SEQ);
                        track.handed_over.take(event, time, seq);
                        if let (Some(seq), Some(function)) = (seq, numbers.get(nccl::FUNCTION)) {
                            let (count, root) = (numbers.get(nccl::COUNT), numbers.get(nccl::ROOT));
                            let request = Request { name: event.shared_name(), count, root };
                            track.calls.take(function, seq, self.requests.put(request));
                        }
                        match self.lists_work {
                            true => Open::Operation(begun(&mut self.operations, time)),
                            false => Open::Other,
                        }
                    }
                    Some(Category::Run) => {
                        track.operations += 1;
                        track.runs += 1;
                        track.bytes = track.bytes.saturating_add(number(nccl::BYTES));
                        Open::Run(time.saturating_sub(number(nccl::QUEUED_NS)))
                    }
                    Some(Category::Kernel) if self.lists_work && comm.is_some() => {
                        Open::Kernel(begun(&mut self.kernels, time))
                    }
                    Some(Category::Proxy) if numbers.get(nccl::STEPS).is_some() => {
                        Open::Work(work(Work::Proxy, self.slices))
                    }
                    Some(Category::Api) => {
                        if comm.is_some() && numbers.get(nccl::COUNT).is_some() {
                            let memory = track.call.take().map(|call| call.args).unwrap_or_default();
                            track.call = Some(Begun::new(Work::Call, event, time, self.slices, memory));
                        }
                        Open::Call(time)
                    }
                    Some(Category::NotDone) => Open::Work(work(Work::Overdue, self.slices)),
                    _ => Open::Other,
                };
                track.open.push(open);
            }
            kind::TYPE_SLICE_END => match track.open.pop() {
                Some(Open::Operation(index)) => self.operations[index].1 = time,
                Some(Open::Kernel(index)) => self.kernels[index].1 = time,
                Some(Open::Run(handed_over)) => {
                    track.longest_ns = track.longest_ns.max(time.since(handed_over));
                }
                _ => {}
            },
            _ => self.dropped = self.dropped.saturating_add(number(nccl::DROPPED)),
        }
        let Some(hash) = comm else { return };
        // Other tools do not know an interface version.
        let is_told = [nccl::INTERFACE, nccl::RANK].iter().any(|field| numbers.get(*field).is_some());
        if track.last_named == Some(hash) && !is_told {
            return;
        }
        track.last_named = Some(hash);
        if track.communicators.len() < 2 && !track.communicators.contains(&hash) {
            track.communicators.push(hash);
        }
        let comm = self.communicators.entry(hash).or_default();
        if is_told {
            comm.name = event.arg(nccl::COMM_NAME).map(|name| String::from_utf8_lossy(name.bytes()).into_owned());
            comm.ranks = numbers.get(nccl::RANKS);
            track.has_init |= numbers.get(nccl::INTERFACE).is_some();
        }
    }

    /// The process that a track belongs to, by the process's track.
    pub(super) fn process(&self, track: u64) -> Option<u64> {
        let mut at = track;
        // Only a faulty file has a cycle.
        for _ in 0..64 {
            let found = self.tracks.get(&at)?;
            if found.is_process {
                return Some(at);
            }
            match (found.parent, found.pid) {
                (Some(parent), _) => at = parent,
                (None, pid) => {
                    let of_pid = self.by_pid.get(&pid?)?;
                    // The tag tells those with the same pid apart.
                    let near = of_pid.iter().find(|uuid| *uuid >> TRACK_BITS == at >> TRACK_BITS);
                    return near.or(if let [only] = &of_pid[..] { Some(only) } else { None }).copied();
                }
            }
        }
        None
    }

    /// The host of a process: its name, and the id of its boot.
    pub(super) fn host(&self, process: u64) -> (Option<&str>, Option<&str>) {
        let name = self.tracks.get(&process).and_then(|track| host(&track.name));
        (name, self.processes.get(&process).and_then(|it| it.boot.as_deref()))
    }

    /// When the last trace of each host ends.
    pub(super) fn ends(&self) -> HashMap<(Option<&str>, Option<&str>), HostNs> {
        let mut ends = HashMap::new();
        for (process, it) in &self.processes {
            let end: &mut HostNs = ends.entry(self.host(*process)).or_default();
            *end = it.last.max(*end);
        }
        ends
    }

    /// The processes with their rank in the job, if known.
    pub(super) fn ranks(&self) -> BTreeMap<u64, Option<u32>> {
        let processes = self.tracks.iter().filter(|(_, track)| track.is_process);
        processes.map(|(uuid, track)| (*uuid, rank(&track.name))).collect()
    }

    /// What communicators' tracks call them, by hash: `dp` in `dp · rank 3 of 8`. One has several names
    /// if processes that do not know each other use different ones.
    pub(super) fn shown_as(&self) -> BTreeMap<u64, BTreeSet<&str>> {
        let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for track in self.tracks.values() {
            if let ([hash], Some((name, _))) = (&track.communicators[..], track.name.split_once(words::track::RANK)) {
                all.entry(*hash).or_default().insert(name);
            }
        }
        all
    }

    /// How long the trace lasts, ns.
    pub(super) fn duration(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last.since(first))
    }
}

/// Lists what begins at this time, and returns its index.
fn begun(list: &mut Vec<(HostNs, HostNs)>, time: HostNs) -> usize {
    list.push((time, time));
    list.len() - 1
}

/// The rank in the job that is part of a process's name: `rank 3 · node17`.
pub(super) fn rank(process: &str) -> Option<u32> {
    let digits = process.strip_prefix("rank ")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The host in a process's name, `rank 3 · node17` or `rank 3 · node17 · GPU 1`.
pub(super) fn host(process: &str) -> Option<&str> {
    names::without_gpu(process).0.split(" · ").nth(1)
}

/// A process, as in `pid 4711 on node17`. One without a rank has no host in its name.
pub(super) fn place(pid: u64, process: &str) -> Option<String> {
    Some(format!("pid {pid} on {}", host(process)?))
}

/// The communicator, the rank and the number of ranks in a track's name: `world · rank 3 of 8 ·
/// handed over`.
pub(super) fn placed(track: &str) -> Option<(&str, u32, u32)> {
    let (label, rest) = track.split_once(words::track::RANK)?;
    let rest = rest.split(" · ").next()?;
    let (rank, ranks) = rest.split_once(" of ")?;
    Some((label, rank.parse().ok()?, ranks.parse().ok().filter(|ranks| *ranks <= RANKS)?))
}

/// A communicator's name for people: its name, or else its hash.
pub(super) fn label(hash: u64, comm: &Communicator) -> String {
    comm.name.clone().unwrap_or_else(|| format!("{hash:016x}"))
}

/// Why a trace cannot be shown together with the others.
fn twins(path: &Path) -> Reason {
    Reason::Refused(format!(
        "{} carries the same process tag as one of the other files, so their tracks would mix: they are the same \
         recording, or two processes drew the same random tag, which can happen in a job of a thousand; ncclscope merge \
         tells those apart",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::{Survey, TRACK_BITS, Track, place};

    #[test]
    fn a_thread_belongs_to_the_process_of_its_recording() {
        let track = |is_process| Track { is_process, pid: Some(7), ..Track::default() };
        let mut survey = Survey::default();
        for tag in 1..40 {
            survey.put(tag << TRACK_BITS | 1, track(true));
            survey.put(tag << TRACK_BITS | 2, track(false));
        }
        for tag in 1..40 {
            assert_eq!(survey.process(tag << TRACK_BITS | 2), Some(tag << TRACK_BITS | 1));
        }
        // Another tool's tracks have no tag: of several processes with its pid it may be anyone's.
        survey.put(50 << TRACK_BITS, track(false));
        assert_eq!(survey.process(50 << TRACK_BITS), None);
        survey.put(60 << TRACK_BITS, Track { pid: Some(8), ..track(true) });
        survey.put(61 << TRACK_BITS, Track { pid: Some(8), ..track(false) });
        assert_eq!(survey.process(61 << TRACK_BITS), Some(60 << TRACK_BITS));
    }

    #[test]
    fn a_gpu_is_no_host() {
        for (name, said) in [
            ("rank 3 · node17 · GPU 3 (H200)", Some("pid 5 on node17")),
            ("rank 3 · node17", Some("pid 5 on node17")),
            ("python3 · GPU 3 (H200)", None),
            ("python3", None),
        ] {
            assert_eq!(place(5, name).as_deref(), said, "{name}");
        }
    }
}
