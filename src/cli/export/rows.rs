//! The contents of a trace as rows of the tables of [`schema`](super::schema), in one pass and
//! bounded memory.

mod columns;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use rustc_hash::FxHashMap;

use self::columns::{Args, Comms, Peers};
use super::schema::Name;
use crate::cli::{Fault, Reason, survey};
use crate::model::time::HostNs;
use crate::model::timeline::Delay;
use crate::summary::{Facts, Summary, Wait};
use crate::trace::fields::{nccl, trace_packet, track_event::r#type as kind};
use crate::trace::names;
use crate::trace::reader::wire::fields;
use crate::trace::reader::{self, Event, Extent, Numbered, Packet};
use crate::trace::words::{Category, attribute, instant, track};
use crate::trace::writer::{TRACK_BITS, tag_of_sequence};

/// The most operations that wait for their kernel. Beyond that, the oldest gets a row without a
/// kernel.
const PENDING: usize = 1 << 17;
/// Processes in one file.
const PROCESSES: usize = 64;

/// A cell of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    None,
    /// On the clock of the trace.
    Time(HostNs),
    Number(i64),
    Text(&'a str),
    Flag(bool),
}

impl From<Option<u64>> for Cell<'_> {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Cell::None, |number| Cell::Number(number.cast_signed()))
    }
}

impl From<Option<HostNs>> for Cell<'_> {
    fn from(time: Option<HostNs>) -> Self {
        time.map_or(Cell::None, Cell::Time)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        if text.is_empty() { Cell::None } else { Cell::Text(text) }
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.unwrap_or_default().into()
    }
}

/// A process of a file.
#[derive(Default)]
pub(super) struct Process {
    tag: u64,
    name: String,
    pid: i64,
    /// `SLURM_JOB_ID=4711`.
    run: Option<String>,
    boot: Option<String>,
    summary: Summary,
    to_utc: Option<i64>,
    id: i64,
    first: Option<HostNs>,
    last: HostNs,
    /// From its recording's last remark: the errors of its clocks.
    ended: Option<[Option<u64>; 3]>,
    /// Communicators that another tool's file names, by their arguments, and when.
    noted: Vec<(HostNs, Box<[u8]>)>,
    pending: Pending,
    peers: Peers,
}

impl Process {
    /// The number of the process in all tables.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// What to add to its times for ns since 1970; 0 if it is not known.
    pub(super) fn to_utc(&self) -> i64 {
        self.to_utc.unwrap_or(0)
    }

    /// Whether [`to_utc`](Process::to_utc) is known.
    pub(super) fn knows_utc(&self) -> bool {
        self.to_utc.is_some()
    }

    pub(super) fn pid(&self) -> i64 {
        self.pid
    }

    /// The first and the last time in it, as far as it is read.
    pub(super) fn span(&self) -> [HostNs; 2] {
        [self.first.unwrap_or_default(), self.last]
    }

    /// Its rank in the job.
    pub(super) fn rank(&self) -> Option<u32> {
        survey::rank(&self.name)
    }

    pub(super) fn host(&self) -> &str {
        survey::host(&self.name).unwrap_or_default()
    }

    /// `4711`, from `SLURM_JOB_ID=4711`.
    fn job(&self) -> Option<&str> {
        Some(self.run.as_deref()?.split_once('=')?.1).filter(|job| !job.is_empty())
    }

    /// The job's name, from the command line or else from the recording.
    ///
    /// # Errors
    ///
    /// If neither does.
    pub(super) fn job_or<'a>(&'a self, told: Option<&'a str>, trace: &Path) -> Result<&'a str, Reason> {
        told.or_else(|| self.job()).ok_or_else(|| {
            Reason::file(trace)(
                "the recording does not say which job it is of (NCCLSCOPE_RUN_ID, or the launcher's job): name it with --job",
            )
        })
    }

    /// To be called at its first event: what a recording says about itself comes before.
    fn identify(&mut self, time: HostNs) {
        if self.first.is_some() {
            return;
        }
        self.first = Some(time);
        let boot = self.boot.as_deref().unwrap_or_default();
        let parts = [boot.as_bytes(), &self.pid.to_le_bytes(), &self.tag.to_le_bytes(), &time.0.to_le_bytes()];
        self.id = (super::hash(&parts) >> 1).cast_signed();
    }
}

/// Operations that were handed over, until their kernel is known.
#[derive(Default)]
struct Pending {
    all: BTreeMap<u64, HandOver>,
    /// Their numbers, by the key that they share with their kernel.
    by_key: FxHashMap<Key, VecDeque<u64>>,
    next: u64,
}

/// Communicator, mark, function and replay.
type Key = (u64, u64, u64, u64);

struct HandOver {
    key: Key,
    time: HostNs,
    mark: Option<u64>,
    args: Box<[u8]>,
}

impl Pending {
    /// Returns the oldest if there are too many.
    fn push(&mut self, hand_over: HandOver) -> Option<HandOver> {
        self.by_key.entry(hand_over.key).or_default().push_back(self.next);
        self.all.insert(self.next, hand_over);
        self.next += 1;
        if self.all.len() > PENDING { self.pop() } else { None }
    }

    /// The oldest.
    fn pop(&mut self) -> Option<HandOver> {
        let (_, hand_over) = self.all.pop_first()?;
        self.take_number(hand_over.key);
        Some(hand_over)
    }

    fn take(&mut self, key: Key) -> Option<HandOver> {
        let number = self.take_number(key)?;
        self.all.remove(&number)
    }

    fn take_number(&mut self, key: Key) -> Option<u64> {
        let numbers = self.by_key.get_mut(&key)?;
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.by_key.remove(&key);
        }
        number
    }
}

#[derive(Default)]
struct Track {
    parent: u64,
    name: String,
    /// Its transfers are sent, not received.
    is_send: bool,
    open: Vec<Open>,
    connection: Option<Connection>,
}

/// The ranks between which the transfers of a track go.
#[derive(Clone, Copy)]
struct Connection {
    comm: Option<u64>,
    peer: i32,
}

/// An open slice.
struct Open {
    what: What,
    begin: HostNs,
    mark: Option<u64>,
    args: Vec<u8>,
}

enum What {
    /// An operation, and why it waits for the proxy.
    Run(Option<Delay>),
    Kernel,
    /// An operation of a kernel whose communicator is not known.
    Carried,
    Channel,
    Step(Step),
    Wait(Option<Wait>),
    Other,
}

/// A transfer of the proxy.
#[derive(Clone, Copy, Default)]
struct Step {
    connection: Option<Connection>,
    /// In the order of the columns.
    waits: [u64; 4],
    bytes: Option<u64>,
}

/// Takes the rows.
pub(super) trait Sink {
    /// Takes a row of a process.
    fn row(&mut self, process: &Process, table: Name, row: &[Cell<'_>]) -> Result<(), Reason>;
}

/// Reads a file on this many threads, and gives its rows to `sink`: everything that can be read,
/// even if the file is damaged.
///
/// # Errors
///
/// The sink's, or what keeps the file from being exported at all. Other problems are in the result.
pub(super) fn read(path: &Path, threads: usize, sink: &mut impl Sink) -> Result<Result<Extent, Reason>, Reason> {
    let file = std::fs::File::open(path).map_err(Reason::read(path))?;
    let mut rows = Rows::new(path, sink);
    let result = reader::read_on(threads, file, |packet| rows.take(packet).map_err(Fault::Other));
    let (remark, result) = match result {
        Ok(extent) => (extent.remark(), Ok(extent)),
        Err(Fault::Other(reason)) => return Err(reason),
        Err(fault) => {
            let reason = fault.of(path);
            (Some(reason.to_string()), Err(reason))
        }
    };
    rows.finish(remark.as_deref())?;
    Ok(result)
}

struct Rows<'a, S> {
    path: &'a Path,
    sink: &'a mut S,
    processes: Vec<Process>,
    /// The places of processes, by their tags.
    places: Numbered<usize>,
    tracks: Numbered<Track>,
    /// By parent and name of the tracks of the proxy's operations.
    connections: FxHashMap<(u64, String), Connection>,
    /// The tags of what a merge drew.
    merged: Vec<u64>,
    comms: Comms,
    spare: Vec<Vec<u8>>,
}

/// The key that a hand-over and its kernel share.
fn key(args: &[u8], mark: Option<u64>) -> Key {
    let Args { numbers: [comm, function, replay], texts: [name] } =
        Args::of(args, [nccl::COMM, nccl::FUNCTION, nccl::REPLAY], [nccl::COMM_NAME]);
    let comm = comm.unwrap_or_else(|| super::hash(&[name.as_bytes()]));
    (comm, mark.unwrap_or(u64::MAX), function.unwrap_or(0), replay.unwrap_or(0))
}

impl<'a, S: Sink> Rows<'a, S> {
    fn new(path: &'a Path, sink: &'a mut S) -> Rows<'a, S> {
        Rows {
            path,
            sink,
            processes: Vec::new(),
            places: Numbered::default(),
            tracks: Numbered::default(),
            connections: FxHashMap::default(),
            merged: Vec::new(),
            comms: Comms::default(),
            spare: Vec::new(),
        }
    }

    fn take(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        if packet.descriptor.is_some() {
            return self.describe(packet);
        }
        let Some(event) = &packet.event else { return self.said(packet) };
        let time = packet.time.unwrap_or_default();
        let place = self.process(event.track >> TRACK_BITS)?;
        let process = &mut self.processes[place];
        process.identify(time);
        process.last = process.last.max(time);
        match event.kind {
            kind::TYPE_SLICE_BEGIN => self.begin(place, event, time),
            kind::TYPE_SLICE_END => self.end(place, event, time),
            kind::TYPE_INSTANT => self.instant(place, event, time),
            _ => Ok(()),
        }
    }

    /// The place of a process.
    fn process(&mut self, tag: u64) -> Result<usize, Reason> {
        if let Some(place) = self.places.get_mut(tag) {
            return Ok(*place);
        }
        if self.processes.len() == PROCESSES {
            return Err(Reason::file(self.path)(format!(
                "this file has the recordings of more than {PROCESSES} processes: export the traces that it was joined \
                 from; tables need no merging"
            )));
        }
        *self.places.entry(tag) = self.processes.len();
        self.processes.push(Process { tag, ..Process::default() });
        Ok(self.processes.len() - 1)
    }

    fn describe(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        let Some(descriptor) = packet.track_descriptor() else { return Ok(()) };
        let uuid = descriptor.uuid();
        if let Some(of) = &descriptor.process {
            let place = self.process(uuid >> TRACK_BITS)?;
            let process = &mut self.processes[place];
            // A process's further GPUs come after it.
            if process.name.is_empty() {
                of.process_name().clone_into(&mut process.name);
                process.pid = of.own_pid().into();
                process.summary.process(of.process_name());
            }
        }
        let track = self.tracks.entry(uuid);
        track.parent = descriptor.parent_uuid();
        descriptor.name().clone_into(&mut track.name);
        track.is_send = track.name.contains(track::SEND.trim_end());
        track.connection = None;
        Ok(())
    }

    /// What a packet without an event says about its process.
    fn said(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        let says = |number: u32| matches!(number, trace_packet::TRACE_ATTRIBUTES | trace_packet::CLOCK_SNAPSHOT);
        if !fields(packet.raw).any(|field| says(field.number)) {
            return Ok(());
        }
        let tag = tag_of_sequence(packet.sequence);
        let Ok(packet) = packet.decode() else { return Ok(()) };
        let place = self.process(tag)?;
        let process = &mut self.processes[place];
        // A value below the time since boot means that the wall clock was not known.
        process.to_utc = process.to_utc.or_else(|| reader::to_utc_ns(&packet).filter(|offset| *offset >= 0));
        for said in packet.trace_attributes.iter().flat_map(|it| &it.attribute) {
            match said.key() {
                attribute::MERGED => self.merged.extend(said.string_value().parse::<u64>()),
                attribute::RUN => process.run = Some(said.string_value().to_owned()),
                attribute::BOOT => process.boot = Some(said.string_value().to_owned()),
                // Its boot is that of another host, on whose clock a merge put its times as well as
                // it could.
                key if key.starts_with(attribute::HOST_CLOCK_ERROR) => process.boot = None,
                _ => {}
            }
            process.summary.attribute(said.key(), said.string_value());
        }
        Ok(())
    }

    fn begin(&mut self, place: usize, event: &Event<'_>, time: HostNs) -> Result<(), Reason> {
        let Rows { processes, tracks, connections, spare, .. } = self;
        let track = tracks.entry(event.track);
        let mut is_hand_over = false;
        let what = match event.category {
            Some(Category::Run) => What::Run(None),
            Some(Category::ProxyWait) => {
                if let Some(Open { what: What::Run(why), .. }) = track.open.last_mut() {
                    *why = names::delay(event.name);
                }
                What::Other
            }
            Some(Category::Kernel) if event.arg(nccl::KERNEL).is_some() => What::Kernel,
            Some(Category::Carried | Category::Kernel) if is_alone(event.args()) => What::Carried,
            Some(Category::Operation) if event.arg(nccl::TID).is_some() => {
                is_hand_over = true;
                What::Other
            }
            Some(Category::Gpu) if event.arg(nccl::CHANNEL).is_some() => What::Channel,
            Some(Category::Proxy) => match track.open.last() {
                Some(Open { what: What::Step(_), .. }) => What::Wait(Wait::named(event.name)),
                _ => {
                    processes[place].peers.of_proxy(event);
                    proxy(track, connections, event).map_or(What::Other, What::Step)
                }
            },
            _ => What::Other,
        };
        let mut args = spare.pop().unwrap_or_default();
        if !matches!(what, What::Other) {
            args.extend_from_slice(event.args());
        }
        track.open.push(Open { what, begin: time, mark: event.correlation, args });
        if is_hand_over { self.handed_over(place, event, time) } else { Ok(()) }
    }

    fn end(&mut self, place: usize, event: &Event<'_>, time: HostNs) -> Result<(), Reason> {
        let Some(track) = self.tracks.get_mut(event.track) else { return Ok(()) };
        let Some(mut open) = track.open.pop() else { return Ok(()) };
        if let (What::Wait(wait), Some(Open { what: What::Step(step), .. })) = (&open.what, track.open.last_mut()) {
            step.waited(*wait, time.since(open.begin), &open.args);
        }
        // What is said at the end counts, too.
        if !matches!(open.what, What::Other | What::Wait(_)) {
            open.args.extend_from_slice(event.args());
        }
        let is_send = track.is_send;
        let written = self.slice(place, &open, Some(time), is_send);
        open.args.clear();
        self.spare.push(open.args);
        written
    }

    /// Writes the row of a slice; without an end if it has none.
    fn slice(&mut self, place: usize, open: &Open, end: Option<HostNs>, is_send: bool) -> Result<(), Reason> {
        match &open.what {
            What::Run(why) => self.ran(place, open, end, *why),
            What::Carried => self.ran(place, open, end, None),
            What::Kernel => {
                self.kernel(place, open, end)?;
                // Without a communicator there is only the kernel.
                if is_alone(&open.args) { self.ran(place, open, end, None) } else { Ok(()) }
            }
            What::Channel => self.channel(place, open, end),
            What::Step(step) => self.step(place, open, end, *step, is_send),
            What::Wait(_) | What::Other => Ok(()),
        }
    }

    fn handed_over(&mut self, place: usize, event: &Event<'_>, time: HostNs) -> Result<(), Reason> {
        let key = key(event.args(), event.correlation);
        let hand_over = HandOver { key, time, mark: event.correlation, args: event.args().into() };
        match self.processes[place].pending.push(hand_over) {
            Some(oldest) => self.never_ran(place, &oldest),
            None => Ok(()),
        }
    }

    /// An operation whose kernel is not known.
    fn never_ran(&mut self, place: usize, hand_over: &HandOver) -> Result<(), Reason> {
        self.operation(place, &hand_over.args, hand_over.mark, [Some(hand_over.time), None, None], None)
    }

    /// An operation, while the GPU worked on it.
    fn ran(&mut self, place: usize, open: &Open, end: Option<HostNs>, why: Option<Delay>) -> Result<(), Reason> {
        let Args { numbers: [queued, tid], texts: [] } = Args::<2, 0>::of(&open.args, [nccl::QUEUED_NS, nccl::TID], []);
        let taken = self.processes[place].pending.take(key(&open.args, open.mark));
        let told = queued.map(|queued| open.begin.saturating_sub(queued));
        let handed_over = taken.as_ref().map(|it| it.time).or(told);
        let of_it = taken.filter(|_| tid.is_none());
        let args;
        let args = match &of_it {
            // Only the hand-over names the thread; everything else is in both.
            Some(of_it) => {
                args = [&of_it.args[..], &open.args].concat();
                &args
            }
            None => &open.args,
        };
        self.operation(place, args, open.mark, [handed_over, Some(open.begin), end], why)
    }

    fn instant(&mut self, place: usize, event: &Event<'_>, time: HostNs) -> Result<(), Reason> {
        match event.category {
            Some(Category::Operation) if event.name == instant::COMM_INIT => {
                let process = &mut self.processes[place];
                process.summary.comm_init(time, &Facts::of(event.args()));
                process.noted.retain(|(_, args)| membership(args) != membership(event.args()));
                self.communicator(place, event.track, event.args(), time)
            }
            // Slices that found no lane.
            Some(Category::Operation) if event.arg(nccl::TID).is_some() => self.handed_over(place, event, time),
            Some(Category::Run) => {
                let args = event.args().to_vec();
                let open = Open { what: What::Run(None), begin: time, mark: event.correlation, args };
                self.ran(place, &open, None, None)
            }
            Some(Category::Proxy) => {
                self.processes[place].peers.of_proxy(event);
                Ok(())
            }
            Some(Category::Ncclscope) => {
                let process = &mut self.processes[place];
                process.summary.remark(time, event.name, event.args());
                if event.name == instant::ENDED || event.name == instant::IMPORT_ENDED {
                    const CLOCKS: [u32; 3] = [nccl::CLOCK_ERROR_NS, nccl::CUPTI_OFF_LEAST_NS, nccl::CUPTI_OFF_MOST_NS];
                    process.ended = Some(event.uints(CLOCKS));
                }
                // Other tools' files have communicators with nothing drawn. Those with anything are
                // initialised later.
                if matches!(event.name, instant::COMM | instant::PROCESS_GROUP) {
                    process.noted.push((time, event.args().into()));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes what is left when the file has ended.
    fn finish(&mut self, remark: Option<&str>) -> Result<(), Reason> {
        for (uuid, mut track) in std::mem::take(&mut self.tracks).into_iter() {
            let Some(&place) = self.places.get(uuid >> TRACK_BITS) else { continue };
            let last = self.processes[place].last;
            let is_send = track.is_send;
            while let Some(open) = track.open.pop() {
                if let (What::Wait(wait), Some(Open { what: What::Step(step), .. })) =
                    (&open.what, track.open.last_mut())
                {
                    step.waited(*wait, last.since(open.begin), &open.args);
                }
                self.slice(place, &open, None, is_send)?;
            }
        }
        for place in 0..self.processes.len() {
            while let Some(hand_over) = self.processes[place].pending.pop() {
                self.never_ran(place, &hand_over)?;
            }
            for (time, args) in std::mem::take(&mut self.processes[place].noted) {
                self.communicator(place, 0, &args, time)?;
            }
            self.peers(place)?;
            let process = &self.processes[place];
            // Tracks drawn by a merge are no recording, nor are tracks without a process.
            if !process.name.is_empty() && !self.merged.contains(&process.tag) {
                self.about(place, remark)?;
            }
        }
        Ok(())
    }
}

impl Step {
    /// Adds a wait inside it; its arguments may state bytes.
    fn waited(&mut self, wait: Option<Wait>, ns: u64, args: &[u8]) {
        const ORDER: [Wait; 4] = [Wait::Gpu, Wait::Peer, Wait::Network, Wait::Flush];
        if let Some(place) = wait.and_then(|wait| ORDER.iter().position(|it| *it == wait)) {
            self.waits[place] += ns;
        }
        let [bytes] = reader::uints(args, [nccl::BYTES]);
        self.bytes = self.bytes.max(bytes);
    }
}

/// Whether a slice on a stream stands for an operation whose communicator is not known: then it is
/// the operation's only slice. Other tools' files may state bytes and no count.
fn is_alone(args: &[u8]) -> bool {
    let Args { numbers: [count, bytes, function, operations, comm], texts: [function_text, name] } = Args::of(
        args,
        [nccl::COUNT, nccl::BYTES, nccl::FUNCTION, nccl::OPERATIONS, nccl::COMM],
        [nccl::FUNCTION_TEXT, nccl::COMM_NAME],
    );
    count.or(bytes).is_some()
        && (function.is_some() || !function_text.is_empty())
        && operations.unwrap_or(1) == 1
        && comm.is_none()
        && name.is_empty()
}

/// What identifies a rank of a communicator: the communicator's hash and name, and the rank.
fn membership(args: &[u8]) -> (Option<u64>, Option<u64>, &str) {
    let Args { numbers: [comm, rank], texts: [name] } = Args::of(args, [nccl::COMM, nccl::RANK], [nccl::COMM_NAME]);
    (comm, rank, name)
}

/// Begins a transfer. A proxy operation says between which ranks the transfers beside it go.
fn proxy(track: &mut Track, connections: &mut FxHashMap<(u64, String), Connection>, event: &Event<'_>) -> Option<Step> {
    let [step, steps, peer, comm] = event.uints([nccl::STEP, nccl::STEPS, nccl::PEER, nccl::COMM]);
    let told = peer.map(|peer| Connection { comm, peer: peer as i32 });
    if step.is_some() {
        if track.connection.is_none()
            && let Some(name) = track.name.strip_suffix(track::STEPS)
        {
            track.connection = connections.get(&(track.parent, name.to_owned())).copied();
        }
        return Some(Step { connection: told.or(track.connection), ..Step::default() });
    }
    if let (Some(_), Some(told)) = (steps, told)
        && track.connection.is_none()
    {
        track.connection = Some(told);
        connections.insert((track.parent, track.name.clone()), told);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::activity::{Kernel, Span};
    use crate::model::event::{self, Event as Called};
    use crate::model::ids::{Handle, ProcessTag};
    use crate::model::time::GpuTimer;
    use crate::model::timeline::{Comm, Entry, Late, Method, Operation, Owner, ProxyOp, ThreadId, What as Drawn};
    use crate::model::word::Word;
    use crate::trace::tracks::{ProcessInfo, Tracks};
    use crate::trace::writer::Clocks;

    /// The names of communicators, and when they were created; and the boots of processes.
    #[derive(Default)]
    struct Named(Vec<(String, u64)>, Vec<Option<String>>);

    impl Sink for Named {
        fn row(&mut self, _: &Process, table: Name, row: &[Cell<'_>]) -> Result<(), Reason> {
            match (table, row) {
                (Name::Communicators, [_, _, Cell::Time(time), Cell::Text(name), ..]) => {
                    self.0.push(((*name).to_owned(), time.0));
                }
                (Name::ClockBounds, [_, Cell::Text(boot), ..]) => self.1.push(Some((*boot).to_owned())),
                (Name::ClockBounds, _) => self.1.push(None),
                _ => {}
            }
            Ok(())
        }
    }

    /// All rows of a table: the cells as they are printed.
    struct Of(Name, Vec<Vec<String>>);

    impl Sink for Of {
        fn row(&mut self, _: &Process, table: Name, row: &[Cell<'_>]) -> Result<(), Reason> {
            if table == self.0 {
                self.1.push(row[1..].iter().map(printed).collect());
            }
            Ok(())
        }
    }

    fn printed(cell: &Cell<'_>) -> String {
        match cell {
            Cell::None => "-".into(),
            Cell::Time(time) => time.0.to_string(),
            Cell::Number(number) => number.to_string(),
            Cell::Text(text) => (*text).into(),
            Cell::Flag(flag) => flag.to_string(),
        }
    }

    fn rows_of(table: Name, bytes: &[u8]) -> Vec<Vec<String>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        let mut found = Of(table, Vec::new());
        read(file.path(), 1, &mut found).unwrap().unwrap();
        found.1
    }

    fn tracks(tag: u64) -> Tracks {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let info = ProcessInfo { pid: 7, name: "rank 0".into(), labels: Vec::new(), rank: Some(0), world_size: None };
        Tracks::new(ProcessTag::from_random(tag), clocks, &info)
    }

    fn read_all(bytes: &[u8]) -> Named {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        let mut named = Named::default();
        read(file.path(), 1, &mut named).unwrap().unwrap();
        named
    }

    #[test]
    fn a_process_whose_times_were_put_on_another_host_s_clock_has_a_clock_of_its_own() {
        let moved = format!("{}node1", attribute::HOST_CLOCK_ERROR);
        let mut bytes = Vec::new();
        for (tag, said) in [(7, &[(attribute::BOOT, "b")][..]), (8, &[(attribute::BOOT, "b"), (&moved, "700")])] {
            let mut tracks = tracks(tag);
            tracks.attributes(said);
            tracks.note(HostNs(1), instant::STARTED, "");
            bytes.extend(tracks.take());
        }
        assert_eq!(read_all(&bytes).1, [Some("b".to_owned()), None]);
    }

    fn comm(name: &str, number: u32, rank: i32) -> Comm {
        Comm {
            context: Handle(number.into()),
            number,
            hash: 0,
            name: Some(name.into()),
            rank,
            ranks: 2,
            nodes: -1,
            interface: 5,
            version: 0,
            device: None,
            timer: GpuTimer::NANOSECONDS,
        }
    }

    #[test]
    fn a_rank_of_an_imported_communicator_has_one_row() {
        let mut tracks = tracks(7);
        let all = [comm("dp", 1, 0), comm("tp", 2, 0), comm("tp", 3, 1)];
        for comm in &all {
            tracks.note_comm(HostNs(1), instant::PROCESS_GROUP, comm, "");
        }
        // Two of them have something drawn.
        for comm in [&all[0], &all[2]] {
            tracks.draw(&Entry { time: HostNs(5), what: Drawn::CommInit(comm) });
        }
        let mut named = read_all(&tracks.take());
        named.0.sort();
        assert_eq!(named.0, [("dp".to_owned(), 5), ("tp".to_owned(), 1), ("tp".to_owned(), 5)]);
    }

    #[test]
    fn an_operation_has_its_wait_for_the_proxy_and_the_reason() {
        let (mut tracks, comm) = (tracks(7), comm("dp", 1, 0));
        let (asleep, append, busy) = (Some(Delay::Asleep), Some(Delay::Append), Some(Delay::Busy));
        let all = [
            (Method::Bracket, Some((300, asleep))),
            (Method::Bracket, Some((40, append))),
            (Method::Bracket, Some((50, busy))),
            (Method::Bracket, Some((60, None))),
            (Method::Bracket, None),
            (Method::Contradicted, Some((70, busy))),
        ];
        for (number, (method, wait)) in (1_u64..).zip(all) {
            let start = HostNs(1_000 * number);
            let func = Word::ALL_REDUCE;
            let event = Called::Coll(event::Coll { seq: number, func, count: 8, ..event::Coll::default() });
            let id = Handle(100 + number);
            let operation = Operation { id, since: start, asked: None, event, texts: None, number: 0 };
            let late = wait.map(|(ns, why)| Late { begun: HostNs(start.0 + ns), why });
            let owner = Owner::Operations {
                method,
                comm: Some(&comm),
                operations: &[Arc::new(operation)],
                around: &[],
                late: &[late],
                channels: &[],
                launch: None,
                replay: None,
                untold: 0,
            };
            let kernel = Kernel::during(Span { start, end: HostNs(start.0 + 500), error_ns: 1 });
            tracks.draw(&Entry { time: kernel.span.end, what: Drawn::Kernel { kernel: &kernel, owner } });
        }
        let rows = rows_of(Name::Operations, &tracks.take());
        let seq_wait_and_why = rows.iter().map(|row| [&row[4], &row[23], &row[24]].map(String::as_str));
        assert_eq!(
            seq_wait_and_why.collect::<Vec<_>>(),
            [
                ["1", "300", "asleep"],
                ["2", "40", "append"],
                ["3", "50", "busy"],
                ["4", "60", "-"],
                ["5", "-", "-"],
                ["6", "-", "-"],
            ]
        );
    }

    #[test]
    fn a_peer_has_its_transport_if_the_proxy_shows_it() {
        let (mut tracks, comm) = (tracks(7), Comm { hash: 0xabc, ..comm("dp", 1, 0) });
        let thread = ThreadId(1);
        let of = |comm, peer| {
            let event = event::ProxyOp { peer, steps: 1, ..event::ProxyOp::default() };
            ProxyOp { event, comm, operation: None, batch: 0, doubt: None }
        };
        let op = |peer| of(Some(&comm), peer);
        let begins =
            |number, proxy| Drawn::ProxyOpBegin { id: Handle(number), thread, proxy, queued_ns: 1, was_taken: false };
        let sends = |number, peer| {
            let event = Called::P2p(event::P2p { peer, count: 8, func: Word::SEND, ..event::P2p::default() });
            Arc::new(Operation { id: Handle(number), since: HostNs(1), asked: None, event, texts: None, number: 0 })
        };
        let [to_5, to_6] = [sends(21, 5), sends(22, 6)];
        let sent = |operation| Drawn::OperationBegin {
            id: Handle(20),
            thread,
            call: Handle::NONE,
            comm: Some(&comm),
            operation,
            replay: None,
            doubt: None,
        };
        let all = [
            begins(11, op(1)),
            Drawn::ProxyOpNever { thread, proxy: op(2) },
            Drawn::ProxyOpsQueued { thread, proxy: op(3), queued_ns: 1, count: 2, given_up: 0 },
            // Of two channels, one shows it.
            Drawn::ProxyOpNever { thread, proxy: op(4) },
            begins(12, op(4)),
            Drawn::ProxyOpNever { thread, proxy: op(4) },
            sent(&to_5),
            sent(&to_6),
            begins(13, op(6)),
            begins(14, of(None, 7)),
        ];
        for (time, what) in (10..).zip(all) {
            tracks.draw(&Entry { time: HostNs(time), what });
        }
        let (dp, net, not_visible) = ("0000000000000abc", "net", "not_visible");
        let expected = [
            [dp, "1", net],
            [dp, "2", not_visible],
            [dp, "3", net],
            [dp, "4", net],
            [dp, "5", not_visible],
            [dp, "6", net],
            ["-", "7", net],
        ];
        assert_eq!(rows_of(Name::Peers, &tracks.take()), expected);
    }
}
