//! What the first pass over one file gathers.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::settings;
use super::{
    Call, Collective, Communicator, HandedOver, LAG_NS, Process, Reach, Reading, Request, Survey, Track, Transfer,
    Tuning, Unfinished, Work,
};
use crate::cli::{Fault, must_be_trace};
use crate::model::time::HostNs;
use crate::trace::fields::{
    nccl, process_descriptor, thread_descriptor, track_descriptor, track_event::r#type as kind,
};
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::Function;
use crate::trace::reader::wire::fields;
use crate::trace::reader::{self, Ends, Event, Extent, Numbers, Packet};
use crate::trace::words::{self, Category, attribute};
use crate::trace::writer::{TRACK_BITS, tag_of_sequence};

/// What the first pass over one file gathers, with what its processes say, by track.
#[derive(Default)]
pub(in crate::cli) struct Looking {
    survey: Survey,
    numbers: Numbers,
    last: HostNs,
    /// The UUIDs of GPUs, by the tag of their process and their number there.
    gpus: BTreeMap<(u64, u64), String>,
    /// When recordings ended, by the tag of their process.
    ended: FxHashMap<u64, HostNs>,
    /// Counters that were above zero.
    counted: FxHashSet<u64>,
    /// Tags of processes that say that settings left something out, of those whose files are full,
    /// and of those to whose files nothing more is written.
    partial: FxHashSet<u64>,
    full: FxHashSet<u64>,
    stopped: FxHashSet<u64>,
    /// When processes last noticed that records of kernels were lost, by tag.
    discarded: FxHashMap<u64, HostNs>,
    /// When full files last said how far their process had come, by its tag.
    alive: FxHashMap<u64, HostNs>,
    /// The boots of their hosts, by the tag of the process.
    boots: FxHashMap<u64, String>,
    /// Their settings, by the tag of the process.
    settings: FxHashMap<u64, BTreeMap<String, String>>,
    /// How often recordings wrote, if they say so, by the tag of their process, ns.
    flush_ns: FxHashMap<u64, u64>,
}

/// What is [`Unfinished`] unless it still ends, with its arguments as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    kind: Work,
    begin: HostNs,
    place: u64,
    correlation: Option<u64>,
    name: Arc<str>,
    args: Vec<u8>,
}

/// An open slice. For those that are listed, its index in the survey's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Open {
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

impl Looking {
    /// Looks through a trace as far as it can be read, on this many threads; `each` gets its
    /// packets and the numbers among the arguments of their events, too.
    pub(super) fn at(
        path: &Path,
        threads: usize,
        (lists_work, reach): (bool, Reach),
        mut each: impl FnMut(&Packet<'_>, &Numbers),
    ) -> (Survey, Result<Extent, Fault>) {
        let mut looking = Looking { survey: Survey { lists_work, ..Survey::default() }, ..Looking::default() };
        let mut look = || {
            must_be_trace(path).map_err(Fault::Other)?;
            let mut file = File::open(path).map_err(reader::Error::Io)?;
            let ends = if let Reach::Ends(head) = reach { Ends::of(&mut file, head, 0)? } else { None };
            let mut extent = Extent::default();
            for part in ends.as_ref().map_or(vec![(0, u64::MAX)], |ends| ends.parts().to_vec()) {
                looking.skip();
                extent = reader::read_part(threads, &mut file, part, |packet| {
                    each(packet, looking.take(packet));
                    Ok::<_, Fault>(())
                })?;
            }
            looking.only_ends(ends);
            Ok(extent)
        };
        let extent = look();
        (looking.done(), extent)
    }

    /// Only these parts of the file were taken, if any are given.
    pub(in crate::cli) fn only_ends(&mut self, ends: Option<Ends>) {
        self.survey.ends.extend(ends.map(|ends| (0, ends)));
    }

    /// Takes the packets of a file that is read for something else, too, and `None` where a part is
    /// left out.
    pub(in crate::cli) fn beside(&mut self) -> impl FnMut(Option<&Packet<'_>>) {
        |packet| match packet {
            Some(packet) => _ = self.take(packet),
            None => self.skip(),
        }
    }

    /// What comes next in the file is not taken: what is open may end there.
    pub(in crate::cli) fn skip(&mut self) {
        for track in self.survey.tracks.values_mut() {
            track.reading.open.clear();
            track.reading.call = None;
            let HandedOver { last, collective, .. } = &mut track.handed_over;
            (*last, *collective) = (None, None);
        }
    }

    /// Takes the next packet; returns the numbers among the arguments of its event.
    pub(in crate::cli) fn take(&mut self, packet: &Packet<'_>) -> &Numbers {
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
            // Any variable shows that the recording does not leave them out.
            if key.starts_with(attribute::ENVIRONMENT) {
                self.settings.entry(tag).or_default().entry(attribute::ENVIRONMENT.to_owned()).or_default();
            }
            if let Some(name) = settings::setting(&key) {
                self.settings.entry(tag).or_default().insert(name.to_owned(), value);
                continue;
            }
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
                self.ended.insert(event.track >> TRACK_BITS, time);
            }
            kind::TYPE_INSTANT if event.name == words::remark::LEFT_OUT => {
                self.partial.insert(event.track >> TRACK_BITS);
            }
            kind::TYPE_INSTANT if event.name == words::remark::DISCARDED => {
                let last = self.discarded.entry(event.track >> TRACK_BITS).or_insert(time);
                *last = time.max(*last);
            }
            kind::TYPE_INSTANT if event.name == words::remark::FULL => {
                self.full.insert(event.track >> TRACK_BITS);
            }
            kind::TYPE_INSTANT if event.name == words::remark::STOPPED => {
                self.stopped.insert(event.track >> TRACK_BITS);
            }
            kind::TYPE_INSTANT if event.name == words::remark::ALIVE => {
                self.alive.insert(event.track >> TRACK_BITS, time);
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
    pub(in crate::cli) fn done(self) -> Survey {
        let Looking { mut survey, last, gpus, ended, counted, partial, boots, flush_ns, .. } = self;
        let (full, stopped, alive, discarded) = (self.full, self.stopped, self.alive, self.discarded);
        let settings = self.settings;
        let first = survey.span.map_or(last, |it| it.0);
        let is_tail = !survey.ends.is_empty();
        let (mut moved, mut beats, mut lossy) = (FxHashMap::default(), FxHashSet::default(), FxHashSet::default());
        let mut captures = FxHashSet::default();
        for (uuid, track) in &survey.tracks {
            if let Some((first, last)) = track.moved {
                let all = moved.entry(uuid >> TRACK_BITS).or_insert((first, last));
                *all = (first.min(all.0), last.max(all.1));
            }
            if track.name == words::track::OWN_CPU {
                beats.insert(uuid >> TRACK_BITS);
            }
            if track.captures {
                captures.insert(uuid >> TRACK_BITS);
            }
            if track.name == words::track::DROPS && counted.contains(uuid) {
                lossy.insert(uuid >> TRACK_BITS);
            }
        }
        // A process with several GPUs is drawn as several, with one tag.
        let process = |uuid: u64, name: &str| {
            let number = names::without_gpu(name).1;
            let gpu = number.and_then(|number| gpus.get(&(uuid >> TRACK_BITS, u64::from(number)))).cloned();
            let tag = uuid >> TRACK_BITS;
            let (first, last) = moved.get(&tag).copied().unwrap_or((first, last));
            // Only a full file says that its process is alive.
            let is_full = full.contains(&tag) || alive.contains_key(&tag);
            let is_stopped = stopped.contains(&tag);
            let beat_ns = if is_full { words::ALIVE_NS } else { 0 };
            let silence_ns = (beats.contains(&tag) && !is_stopped)
                .then(|| LAG_NS + beat_ns + flush_ns.get(&tag).copied().unwrap_or(0));
            Process {
                first,
                last,
                silence_ns,
                is_full: is_full || is_stopped,
                alive: alive.get(&tag).copied(),
                is_tail,
                gpu,
                boot: boots.get(&tag).cloned(),
                settings: settings.get(&tag).cloned().unwrap_or_default(),
                ended: ended.get(&tag).copied(),
                is_lossy: lossy.contains(&tag),
                lost_kernels: discarded.get(&tag).copied(),
                is_partial: partial.contains(&tag),
                captures: captures.contains(&tag),
                ..Process::default()
            }
        };
        let processes = survey.tracks.iter().filter(|(_, track)| track.is_process);
        survey.processes = processes.map(|(uuid, track)| (*uuid, process(*uuid, &track.name))).collect();
        let tracks = survey.tracks.iter_mut();
        survey.unfinished.extend(tracks.flat_map(|(uuid, track)| track.take_unfinished(*uuid)));
        survey
    }
}

impl Survey {
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
                    let labels = fields(field.bytes()).filter(|it| it.number == process_descriptor::PROCESS_LABELS);
                    let mut told = labels.filter_map(|it| names::told_pid(&String::from_utf8_lossy(it.bytes())));
                    track.told_pid = told.next().and_then(|pid| u64::try_from(pid).ok());
                    track.name =
                        part(process_descriptor::PROCESS_NAME).map_or_else(String::new, |name| text(name.bytes()));
                }
                track_descriptor::THREAD => {
                    track.pid = part(thread_descriptor::PID).map(|pid| pid.uint());
                    track.tid = part(thread_descriptor::TID).map(|tid| tid.uint());
                }
                _ => {}
            }
        }
        // A restart of the file describes it again.
        if let Some(known) = self.tracks.get_mut(&uuid) {
            let Track { parent, name, pid, tid, is_process, told_pid, .. } = track;
            track = Track { parent, name, pid, tid, is_process, told_pid, ..std::mem::take(known) };
        }
        self.put(uuid, track);
    }

    fn event(&mut self, event: &Event<'_>, numbers: &Numbers, time: HostNs) {
        let track = self.tracks.entry(event.track).or_default();
        let is_cut = ends_with_its_comm(event);
        if !is_cut {
            track.moved = Some(track.moved.map_or((time, time), |(first, last)| (first.min(time), last.max(time))));
        }
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
                        // When a graph is replayed, its operations come out of the order of calls,
                        // and with their numbers again, or those of calls that NCCL handed over
                        // since.
                        let is_replay = numbers.get(nccl::REPLAY).is_some();
                        let seq = numbers.get(nccl::SEQ).filter(|_| !is_replay);
                        track.handed_over.take(event, time, seq);
                        if let (Some(seq), Some(function)) = (seq, numbers.get(nccl::FUNCTION)) {
                            let (count, root) = (numbers.get(nccl::COUNT), numbers.get(nccl::ROOT));
                            let request = Request { name: event.shared_name(), count, root };
                            let word = |field| u8::try_from(number(field)).unwrap_or_default();
                            let tuning = Tuning { algorithm: word(nccl::ALGORITHM), protocol: word(nccl::PROTOCOL) };
                            track.calls.take(function, Call { seq, request: self.requests.put(request), tuning });
                        } else if !is_replay {
                            track.transfer(event, numbers);
                        }
                        match self.lists_work {
                            true => Open::Operation(begun(&mut self.operations, time)),
                            false => Open::Other,
                        }
                    }
                    Some(Category::Run) => {
                        track.operations += 1;
                        track.runs += 1;
                        track.ran = track.ran.max(Some((time, event.correlation)));
                        track.bytes = track.bytes.saturating_add(number(nccl::BYTES));
                        Open::Run(time.saturating_sub(number(nccl::QUEUED_NS)))
                    }
                    Some(Category::Kernel) => {
                        track.has_kernels = true;
                        match self.lists_work && comm.is_some() {
                            true => Open::Kernel(begun(&mut self.kernels, time)),
                            false => Open::Other,
                        }
                    }
                    Some(Category::Proxy) if numbers.get(nccl::STEPS).is_some() => {
                        Open::Work(work(Work::Proxy, self.slices))
                    }
                    Some(Category::Gpu) if event.correlation.is_some() => Open::Work(work(Work::Channel, self.slices)),
                    Some(Category::Api) => {
                        track.captures |= numbers.get(nccl::CAPTURED) == Some(1);
                        if comm.is_some() && numbers.get(nccl::COUNT).is_some() {
                            let memory = track.reading.call.take().map(|call| call.args).unwrap_or_default();
                            track.reading.call = Some(Begun::new(Work::Call, event, time, self.slices, memory));
                        }
                        Open::Call(time)
                    }
                    Some(Category::NotDone) => Open::Work(work(Work::Overdue, self.slices)),
                    _ => Open::Other,
                };
                track.reading.open.push(open);
            }
            kind::TYPE_SLICE_END => match track.reading.open.pop() {
                Some(Open::Operation(index)) => self.operations[index].1 = time,
                Some(Open::Kernel(index)) => self.kernels[index].1 = time,
                Some(Open::Run(since)) => track.longest_ns = track.longest_ns.max(time.since(since)),
                Some(Open::Work(work)) if is_cut => self.unfinished.push(work.unfinished(event.track)),
                Some(Open::Work(work)) if work.kind == Work::Channel => {
                    track.longest_ns = track.longest_ns.max(time.since(work.begin));
                }
                _ => {}
            },
            kind::TYPE_INSTANT if event.category == Some(Category::Newest) => {
                track.longest_ns = track.longest_ns.max(number(nccl::LONGEST_RUN_NS));
                track.handed_over.newest(event, numbers, time);
                if let (Some(seq), Some(function)) = (numbers.get(nccl::SEQ), numbers.get(nccl::FUNCTION)) {
                    track.calls.reached(function, seq);
                }
            }
            kind::TYPE_INSTANT if event.name == words::instant::COMM_FINALIZE => track.finalized = Some(time),
            _ => self.dropped = self.dropped.saturating_add(number(nccl::DROPPED)),
        }
        if let Some(hash) = comm {
            track.named(hash, &mut self.communicators, event, numbers);
        }
    }
}

impl Track {
    /// An operation was handed over that may be a send or a receive.
    fn transfer(&mut self, event: &Event<'_>, numbers: &Numbers) {
        let (Some(mark), Some(bytes)) = (event.correlation, numbers.get(nccl::BYTES)) else { return };
        let Some(Ok(peer)) = numbers.get(nccl::PEER).map(u32::try_from) else { return };
        let transfer = Transfer { mark, peer, bytes };
        match numbers.get(nccl::FUNCTION) {
            Some(function) if function == Function::Send as u64 => self.calls.send(transfer),
            Some(function) if function == Function::Recv as u64 => self.calls.receive(transfer),
            _ => {}
        }
    }

    /// What is open on it, which has this uuid, at the end.
    fn take_unfinished(&mut self, uuid: u64) -> Vec<Unfinished> {
        let Reading { open, call, .. } = std::mem::take(&mut self.reading);
        // A group of calls returns, or does not return, as a whole.
        let since = open.iter().find_map(|open| if let Open::Call(since) = open { Some(*since) } else { None });
        let call = call.filter(|call| since.is_some_and(|since| since <= call.begin));
        let work = open.into_iter().filter_map(|open| if let Open::Work(slice) = open { Some(*slice) } else { None });
        work.chain(call).map(|begun| begun.unfinished(uuid)).collect()
    }

    /// An event on it names this communicator.
    fn named(&mut self, hash: u64, known: &mut BTreeMap<u64, Communicator>, event: &Event<'_>, numbers: &Numbers) {
        // Other tools do not know an interface version.
        let is_told = [nccl::INTERFACE, nccl::RANK].iter().any(|field| numbers.get(*field).is_some());
        if self.reading.named == Some(hash) && !is_told {
            return;
        }
        self.reading.named = Some(hash);
        if self.communicators.len() < 2 && !self.communicators.contains(&hash) {
            self.communicators.push(hash);
        }
        let comm = known.entry(hash).or_default();
        if is_told {
            comm.name = event.arg(nccl::COMM_NAME).map(|name| String::from_utf8_lossy(name.bytes()).into_owned());
            comm.ranks = numbers.get(nccl::RANKS);
            self.interface = self.interface.or(numbers.get(nccl::INTERFACE));
        }
    }
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
        (*at, self.mark) = (time, event.correlation);
    }

    /// The file names a collective as the newest of its function, or a communicator without any.
    fn newest(&mut self, event: &Event<'_>, numbers: &Numbers, time: HostNs) {
        self.told_gap_ns = self.told_gap_ns.max(numbers.get(nccl::LONGEST_GAP_NS).unwrap_or_default());
        let Some(seq) = numbers.get(nccl::SEQ) else { return };
        let function = event.name.split(' ').next();
        self.newest.retain(|(known, ..)| known.split(' ').next() != function);
        self.newest.push((event.name.to_owned(), seq, time));
        if self.last.as_ref().is_none_or(|(_, last)| *last <= time) {
            self.last = Some((event.name.to_owned(), time));
            self.mark = event.correlation;
        }
        if let Some(correlation) = event.correlation
            && self.collective.as_ref().is_none_or(|(_, last)| *last <= time)
        {
            self.collective = Some((Collective { correlation, name: event.name.to_owned(), seq }, time));
        }
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
            is_doubted: args
                .doubt
                .is_some_and(|doubt| [words::overdue::MAY_BE_DONE, words::overdue::BEHIND_LOST].contains(&&*doubt)),
        }
    }
}

/// Whether an event ends something that was under way when its communicator was finalized.
pub(in crate::cli) fn ends_with_its_comm(event: &Event<'_>) -> bool {
    let doubt = || event.arg(nccl::DOUBT).map(|doubt| doubt.bytes());
    event.kind == kind::TYPE_SLICE_END && !event.args().is_empty() && doubt() == Some(words::FINALIZED.as_bytes())
}

/// Lists what begins at this time, and returns its index.
fn begun(list: &mut Vec<(HostNs, HostNs)>, time: HostNs) -> usize {
    list.push((time, time));
    list.len() - 1
}
