//! How a trace is laid out: which track an entry of the timeline is drawn on.
//!
//! ```text
//! rank 3 · node17 · GPU 3 (H200)   the process, with its first GPU
//!   python3, ...                   one track a host thread: the application's calls, launches, hand-overs
//!     CUDA runtime, CUDA driver    where asked for: calls into CUDA, in lanes
//!     NVTX                         where asked for: the program's ranges, which nest
//!   Communicators
//!     dp · rank 3 of 64            operations while the GPU works on them, in lanes; init and finalize
//!     dp · rank 3 of 64 · handed over   operations while NCCL hands them over to the GPU and the proxy
//!     busbw · dp · rank 3 of 64, algbw · …   bandwidth of the kernels that run, as nccl-tests counts
//!     outstanding · dp · rank 3 of 64   operations that were handed over and whose kernel has not ended
//!     dp · rank 3 of 64 · not done    those of them that should have ended by now
//!   Proxy
//!     proxy thread (4711)          one group a progress thread, by NCCL's name for it where it has one
//!       state                      idle, active, sleep, append
//!       CPU, operations queued, steps in flight, bytes in flight
//!       dp · send → 4              proxy operations from their first progress on, in lanes
//!       dp · send → 4 · steps      their transfers, each with what it waits for
//!       network events
//!   GPU
//!     GPU 0 · stream 13            kernels, in lanes; NCCL's are named by what they carry; copies, and functions that graphs have the host run
//!     GPU 0 · stream 13 · operations   the operations of kernels that carry more than one
//!   GPU channels                   kernel channels whose kernel is not known
//!   ncclscope                      what the recording says of itself
//! rank 3 · node17 · GPU 4          a further GPU of the process: its communicators and streams
//! ```
//!
//! A file has a few thousand tracks at most. What is new when there are so many, or very many of its kind, shares tracks named so: `other communicators`,
//! `other peers`, `other threads`, `other streams`, `other channels`.
//!
//! Slices of one track must nest. Those that may overlap get lanes: tracks of one name, which the viewer stacks.
//! Calls of one thread nest by nature; where a stop is missing or out of order, a slice is cut at the end of what
//! contains it and says so. Every end lies at or after its begin.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::args::Args;
use super::counters::{Counter, Speed};
use super::fields::nccl;
use super::flows;
use super::gpu::Gpu;
use super::host::Host;
use super::lanes::{FamilyId, Lanes, Look, Placing};
use super::names::{self, Fixed, OperationName, Text};
use super::not_done::Standstill;
use super::outstanding::Outstanding;
use super::proxy::{PeerKey, ProxyThread};
use super::stages::RenderStages;
pub use super::stages::Stages;
use super::writer::{Category, Clocks, Extra, Form, Name, Place, Sequence, Track, Unit, Writer, Written, attribute};
use crate::model::event::{Event, Kind};
use crate::model::ids::{Handle, ProcessTag};
use crate::model::time::HostNs;
use crate::model::timeline::{ChannelChecks, Comm, Doubts, Entry, Matches, Operation, Thread, ThreadId, Timing, What};

/// Lanes of one communicator, of one peer's operations, and of everything else that overlaps.
pub(super) const COMM_LANES: usize = 16;
pub(super) const LANES: usize = 32;
/// Threads remembered after their end, for what comes late.
const ENDED_THREADS: usize = 256;
/// GPUs of a process that have one of their own in the picture.
const SEATS: usize = 63;
/// The place of the communicators among a process's groups, and what they are.
const COMMS_RANK: u32 = 1;
const COMMS: &str = "One track a communicator, in the order of their creation.";
/// Arrows to one launch: it may carry thousands of sends and receives.
const ARROWS: usize = 64;
/// Threads whose time on a processor is drawn.
const CPU_COUNTERS: usize = 64;
/// Peers and channels that get tracks of their own; the rest share one family, so that the viewer stays usable.
pub(super) const FAMILIES: usize = 1024;
/// Communicators and host threads that get tracks of their own.
const OWN_COMMS: usize = 256;
const OWN_THREADS: usize = 512;
/// Finalized communicators that are remembered, for what comes late: more than the correlator remembers.
const ENDED_COMMS: usize = 512;
/// Operations of all communicators that are remembered while they are under way, about: with their facts, and at all where no kernel is
/// known.
const REMEMBERED: usize = 16 << 10;

/// Draws the timeline of one process.
pub struct Tracks {
    pub(super) lanes: Lanes,
    pub(super) args: Args,
    pub(super) pid: i32,
    /// Where the tracks of each GPU are, and the one whose are in the process itself.
    seats: FxHashMap<u32, Seat>,
    first: Seat,
    first_device: Option<u32>,
    pub(super) proxy_group: Option<Track>,
    channels_group: Option<Track>,
    own_group: Option<Track>,
    rank: Option<u32>,
    world_size: Option<u32>,
    /// As the overview page has it.
    nccl_version: u32,
    /// The process's name without its GPU: `rank 3 · node17`.
    who: String,
    pub(super) own: FamilyId,
    drops: Option<Counter>,
    /// The time that threads take.
    cpu: FxHashMap<i32, Option<Counter>>,
    pub(super) threads: FxHashMap<ThreadId, HostThread>,
    /// Host threads, and progress threads, that got tracks of their own so far.
    thread_tracks: usize,
    pub(super) progress_threads: usize,
    /// Threads that have ended, oldest first.
    ended: VecDeque<ThreadId>,
    pub(super) proxies: FxHashMap<ThreadId, ProxyThread>,
    pub(super) comms: FxHashMap<Handle, DrawnComm>,
    /// What is handed over will be known to be done, and whether that of some was lost.
    pub(super) expects_kernels: bool,
    pub(super) kernels_missing: bool,
    pub(super) standstill: Standstill,
    /// Those that were finalized, oldest first.
    ended_comms: VecDeque<Handle>,
    /// Short names of communicators with tracks.
    labels: FxHashSet<String>,
    /// The tracks of communicators that have none of their own: while they run, and while they are handed over.
    other_comms: [Option<FamilyId>; 2],
    /// Host threads that have no track of their own, and theirs.
    other_threads: Option<FamilyId>,
    /// Communicators and threads without tracks of their own.
    sharing: [u64; 2],
    pub(super) peers: FxHashMap<PeerKey, [FamilyId; 2]>,
    /// Transfers under way: their thread, and the bytes that are in flight.
    pub(super) steps: FxHashMap<Handle, (ThreadId, i64)>,
    channels: FxHashMap<(Handle, u8), FamilyId>,
    pub(super) gpu: Gpu,
    /// Kernels as render stages, where asked for.
    pub(super) stages: Option<RenderStages>,
    pub(super) host: Host,
    /// The thread of each open call.
    calls: FxHashMap<Handle, ThreadId>,
}

/// The tracks of one GPU: those of the first are in the process, those of each further one in a process of its own.
#[derive(Clone, Copy)]
struct Seat {
    process: Option<Track>,
    comms: Option<Track>,
    /// Made with the first thing drawn in it: many recordings have no CUPTI.
    gpu: Option<Track>,
}

/// What names a process in the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: i32,
    /// `rank 3 · node17 · GPU 3 (H200)`; without the GPU where it is not known when the recording starts.
    pub name: String,
    /// Further facts, shown beside the name.
    pub labels: Vec<String>,
    /// Its rank in the job, if that is known.
    pub rank: Option<u32>,
    /// Ranks of the job, if that is known.
    pub world_size: Option<u32>,
}

/// The recording's own figures, for its last word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Calls of NCCL's that were recorded.
    pub recorded: u64,
    /// Calls that found no room.
    pub dropped: u64,
    /// Calls that were recorded and not written, because the file had reached its size.
    pub discarded: u64,
    /// Panics caught in callbacks.
    pub panics: u64,
    /// Greatest error of a host time, ns.
    pub clock_error_ns: u32,
    /// What was doubtful.
    pub doubts: Doubts,
    /// What became of the kernels; none where CUPTI was not in use.
    pub matches: Option<Matches>,
    /// What was found of kernel channels, if there were any or kernels.
    pub channels: Option<ChannelChecks>,
    /// Launches for which there was no room.
    pub launches_lost: u64,
}

/// A host thread that called NCCL.
pub(super) struct HostThread {
    pub(super) tid: i32,
    pub(super) name: String,
    /// Described only when something is drawn on it.
    track: Option<(Sequence, Track)>,
    /// There was no room for a track when something was to be drawn on it.
    shares: bool,
    /// The open calls, outermost first.
    stack: Vec<Call>,
    last: HostNs,
    /// A launch that has ended and waits for the hand-over that says what it carries.
    launched: Option<Launched>,
}

/// A KernelLaunch that may carry out several calls: its end is written when it is known which.
struct Launched {
    end: HostNs,
    /// The arrows from these calls.
    calls: Vec<u64>,
    /// The begin of the hand-over with its arguments, which waits too: on a track, what is written is in the order of time.
    group: Option<(HostNs, Args)>,
}

struct Call {
    id: Handle,
    kind: Kind,
    begin: HostNs,
    /// It is a launch of which the hand-over will say what it carries.
    waits: bool,
}

pub(super) struct DrawnComm {
    init: HostNs,
    /// Who it is, once an operation was handed over.
    pub(super) comm: Option<Arc<Comm>>,
    /// Its tracks, once something is drawn on them.
    family: Option<FamilyId>,
    /// Its short name, which no other communicator of this process has: equal names would be drawn as one track.
    pub(super) label: String,
    /// Its tracks for what is handed over, likewise.
    handed_over: Option<FamilyId>,
    /// Its tracks for what is overdue, likewise.
    pub(super) not_done: Option<FamilyId>,
    speed: Option<Speed>,
    pub(super) outstanding: Outstanding,
}

impl DrawnComm {
    fn new(init: HostNs) -> DrawnComm {
        DrawnComm {
            init,
            comm: None,
            family: None,
            label: String::new(),
            handed_over: None,
            not_done: None,
            speed: None,
            outstanding: Outstanding::default(),
        }
    }

    /// Writes what its counters held back.
    fn flush(&mut self, writer: &mut Writer) {
        self.speed.iter_mut().for_each(|speed| speed.flush(writer));
        self.outstanding.flush(writer);
    }
}

impl Tracks {
    /// A trace of the process with this tag, from `clocks` on.
    #[must_use]
    pub fn new(tag: ProcessTag, clocks: Clocks, process: &ProcessInfo) -> Tracks {
        let mut writer = Writer::new(tag, clocks);
        let (who, first_device) = names::without_gpu(&process.name);
        let labels = &process.labels;
        let form = Form::Process { pid: process.pid, name: &process.name, labels };
        let rank = Some(process_rank(process.rank, 0));
        let track = writer.track(form, Place { orders_children: true, rank, ..Place::default() });
        let mut group = |name, rank, description| {
            writer.track(
                Form::Plain { name },
                Place { parent: track, rank: Some(rank), orders_children: true, description, ..Place::default() },
            )
        };
        let comms = group("Communicators", COMMS_RANK, COMMS);
        let proxy_group = group("Proxy", 3, "What NCCL's network proxy does, one group a progress thread.");
        let channels_group = group(
            "GPU channels",
            4,
            "Kernel channels whose kernel is not known: by the GPU's timer where the host alone bounds it, else as NCCL's threads saw \
             them. The stamps themselves are in the arguments, on the GPU's own clock.",
        );
        let own_group = group("ncclscope", 5, "What the recording says of itself: losses, doubts, limits.");
        let place = Placing { parent: own_group, rank: 0, description: "Begin, end and remarks of the recording." };
        let on = Place { parent: own_group, rank: Some(1), ..Place::default() };
        let drops = Counter::new(&mut writer, "records dropped", Unit::Named("records"), on, clocks.boottime);
        let mut lanes = Lanes::new(writer);
        let own = lanes.family("recording".into(), place, 1);
        let mut tracks = Tracks {
            lanes,
            args: Args::new(),
            pid: process.pid,
            seats: FxHashMap::default(),
            first: Seat { process: track, comms, gpu: None },
            first_device,
            proxy_group,
            channels_group,
            own_group,
            rank: process.rank,
            world_size: process.world_size,
            nccl_version: 0,
            who: who.to_owned(),
            own,
            drops,
            cpu: FxHashMap::default(),
            steps: FxHashMap::default(),
            threads: FxHashMap::default(),
            thread_tracks: 0,
            progress_threads: 0,
            ended: VecDeque::new(),
            proxies: FxHashMap::default(),
            comms: FxHashMap::default(),
            expects_kernels: false,
            kernels_missing: false,
            standstill: Standstill::default(),
            ended_comms: VecDeque::new(),
            labels: FxHashSet::default(),
            other_comms: [None; 2],
            other_threads: None,
            sharing: [0; 2],
            peers: FxHashMap::default(),
            channels: FxHashMap::default(),
            gpu: Gpu::new(),
            stages: None,
            host: Host::default(),
            calls: FxHashMap::default(),
        };
        tracks.dropped(clocks.boottime, 0);
        tracks
    }

    /// The packets written since the last time.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        // What a counter held back would be missing where nothing more comes.
        self.flush_gauges();
        self.lanes.writer.take()
    }

    /// Bytes that wait to be taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.lanes.writer.pending_bytes()
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        self.lanes.writer.written()
    }

    /// Notes how many records were dropped up to `time`.
    pub fn dropped(&mut self, time: HostNs, total: u64) {
        self.lanes.lossy |= total > 0;
        if let Some(counter) = self.drops {
            counter.set(&mut self.lanes.writer, time, total as i64);
        }
    }

    /// A thread of NCCL's or ours took this share of a processor, in percent, since it was last asked.
    pub fn cpu(&mut self, time: HostNs, tid: i32, name: &str, percent: i64) {
        let counter = match self.cpu.get(&tid) {
            Some(&counter) => counter,
            None if self.cpu.len() >= CPU_COUNTERS => None,
            None => {
                let proxy = self.threads.iter().find(|(id, thread)| thread.tid == tid && self.proxies.contains_key(id));
                let group = proxy.and_then(|(id, _)| self.proxies.get(id)?.group);
                let (name, parent) = match group {
                    Some(group) => ("CPU".to_owned(), Some(group)),
                    None if name.starts_with("ncclscope") => (format!("CPU · {name}"), self.own_group),
                    None => (format!("CPU · {name} ({tid})"), self.proxy_group),
                };
                let description = "Time on a processor, by the kernel, as a share of the second before.";
                let place = Place { parent, rank: Some(0), description, ..Place::default() };
                let counter = Counter::new(&mut self.lanes.writer, &name, Unit::Named("%"), place, time);
                self.cpu.insert(tid, counter);
                counter
            }
        };
        if let Some(counter) = counter {
            counter.set(&mut self.lanes.writer, time, percent);
        }
    }

    /// The system's ids of NCCL's progress threads, as far as they did anything.
    #[must_use]
    pub fn progress_threads(&self) -> Vec<i32> {
        self.proxies.keys().filter_map(|id| Some(self.threads.get(id)?.tid)).filter(|tid| *tid != 0).collect()
    }

    /// Facts about the recording, for the viewer's overview page.
    pub fn attributes(&mut self, attributes: &[(&str, &str)]) {
        self.lanes.writer.attributes(attributes);
    }

    /// A remark of the recording about itself.
    pub fn note(&mut self, time: HostNs, name: &str, note: &str) {
        self.args.clear().text(nccl::NOTE, note);
        self.remark(time, name);
    }

    /// A remark about a communicator of which nothing may be drawn.
    pub fn note_comm(&mut self, time: HostNs, name: &str, comm: &Comm, note: &str) {
        self.args.clear().comm(comm).text(nccl::NOTE, note);
        self.remark(time, name);
    }

    /// The last word of a recording.
    pub fn finish(&mut self, time: HostNs, figures: &Figures) {
        for thread in self.threads.keys().copied().collect::<Vec<_>>() {
            self.end_launch(thread);
        }
        let writer = &mut self.lanes.writer;
        self.comms.values_mut().for_each(|comm| comm.flush(writer));
        self.end_what_is_done();
        self.flush_gauges();
        self.dropped(time, figures.dropped);
        self.args
            .clear()
            .uint(nccl::RECORDED, figures.recorded)
            .uint(nccl::DROPPED, figures.dropped)
            .uint(nccl::DISCARDED, figures.discarded)
            .uint(nccl::LANES_MISSING, self.lanes.missing)
            .uint(nccl::COMMUNICATORS_SHARING, self.sharing[0])
            .uint(nccl::THREADS_SHARING, self.sharing[1])
            .uint(nccl::SLICES_SHARING, self.lanes.sharing)
            .uint(nccl::PANICS, figures.panics)
            .uint(nccl::CLOCK_ERROR_NS, u64::from(figures.clock_error_ns))
            .doubts(&figures.doubts);
        if let Some(matches) = &figures.matches {
            self.args.matches(matches, figures.launches_lost);
        }
        if let Some(channels) = &figures.channels {
            self.args.channel_checks(channels);
        }
        self.remark(time, "recording ended");
        let lost = figures.dropped + figures.discarded + figures.launches_lost;
        let lost = lost + figures.matches.map_or(0, |it| it.dropped + it.discarded + it.discarded_buffers);
        // In a joined file each recording has its own.
        let (key, lost) = (format!("ncclscope.lost.{} {}", self.who, self.pid), lost.to_string());
        self.attributes(&[(&key, &lost)]);
    }

    fn remark(&mut self, time: HostNs, name: &str) {
        self.lanes.instant(self.own, time, Category::Ncclscope, &Fixed(name), &self.args);
    }

    /// Draws one entry.
    pub fn draw(&mut self, entry: &Entry<'_>) {
        let time = entry.time;
        match entry.what {
            What::Thread(thread) => self.thread(thread),
            What::ThreadEnd(thread) => self.thread_end(thread, time),
            What::CommInit(comm) => self.comm_init(time, comm),
            What::CommFinalize(comm) => {
                let family = self.comm(time, comm);
                self.args.clear().comm(comm);
                self.lanes.instant(family, time, Category::Operation, &Fixed("communicator finalize"), &self.args);
                self.no_kernels_for(comm.context, time, "its communicator was finalized");
                self.comm_ended(comm.context);
            }
            What::CallBegin { id, thread, comm, event, operation, asked_by, doubt } => {
                self.args.clear();
                if let Some(operation) = operation {
                    self.args.operation(operation);
                }
                self.args.call(event).of_comm(comm).doubt(doubt);
                match operation {
                    Some(operation) => {
                        let prefix = if matches!(event, Event::CeColl(_)) { "copy engine " } else { "nccl" };
                        self.call_begin(id, thread, time, event.kind(), asked_by, &OperationName { operation, prefix });
                    }
                    None => self.call_begin(id, thread, time, event.kind(), asked_by, &Fixed(event.kind().name())),
                }
            }
            What::CallEnd { id, group_marks } => self.call_end(id, time, group_marks),
            What::OperationBegin { id, thread, call, comm, operation, replay, doubt } => {
                let tid = self.threads.get(&thread).map_or(0, |thread| thread.tid);
                self.args.clear().operation(operation).of_comm(comm).doubt(doubt).int(nccl::TID, tid);
                if let Some(replay) = replay {
                    self.args.uint(nccl::REPLAY, u64::from(replay));
                }
                let family = match comm {
                    Some(comm) => self.handed_over(time, comm),
                    None => self.unknown_comm(),
                };
                let name = OperationName { operation, prefix: "" };
                let arrows = [flows::from(id), flows::from(call)];
                let look = Look::new(Category::Operation, &name)
                    .of(operation.correlation(comm))
                    .with(if call.is_none() { &arrows[..1] } else { &arrows });
                self.lanes.begin(family, id, time, &look, &mut self.args);
                if let Some(launched) = self.threads.get_mut(&thread).and_then(|thread| thread.launched.as_mut())
                    && !call.is_none()
                    && launched.calls.len() < ARROWS
                {
                    launched.calls.push(flows::from(call));
                }
                if let (Some(comm), None) = (comm, replay) {
                    self.handed(time, comm, operation);
                }
            }
            What::OperationEnd { id } | What::NetEnd { id } => {
                self.args.clear();
                self.lanes.end(id, time, &self.args);
            }
            What::ProxyOpTaken { thread } => self.queued(thread, time, 1),
            What::ProxyOpBegin { id, thread, ref proxy, queued_ns, was_taken } => {
                if was_taken {
                    self.queued(thread, time, -1);
                }
                self.proxy_op(id, thread, time, proxy, queued_ns);
            }
            What::ProxyOpPhase { id, state, bytes, steps } => {
                self.args.clear().uint(nccl::BYTES, bytes).int(nccl::STEPS, steps);
                self.lanes.phase(id, time, names::proxy_op_phase(state), &self.args);
            }
            What::ProxyOpEnd { id } => {
                self.args.clear();
                self.lanes.end(id, time, &self.args);
            }
            What::ProxyOpsQueued { thread, ref proxy, queued_ns, count, given_up } => {
                self.proxy_queue(thread, time, proxy, queued_ns, count);
                if given_up > 0 {
                    self.queued(thread, time, -given_up.cast_signed());
                }
            }
            What::ProxyOpNever { thread, ref proxy } => self.silent_proxy_op(thread, time, proxy),
            What::StepBegin { id, op: _, thread, step, ref proxy } => self.step(id, thread, time, step, proxy.as_ref()),
            What::StepPhase { id, state, bytes } => self.step_phase(id, time, state, bytes),
            What::StepEnd { id, starts, stopped } => self.step_end(id, time, starts, stopped),
            What::Control { thread, comm, state, appended } => self.control(thread, time, comm, state, appended),
            What::ChannelBegin { id, comm, ref channel, operation, timing, unreliable, doubt } => {
                let family = match timing {
                    Timing::Gpu { place: Some(place), .. } => self.channel_of_kernel(place, channel.channel),
                    _ => self.channel(comm, channel.channel),
                };
                self.args.clear().channel(channel, timing).of_comm(comm).channel_doubt(timing, unreliable, doubt);
                let mut begin = |look: &Look<'_>| self.lanes.begin(family, id, time, look, &mut self.args);
                match (channel.phase, operation) {
                    (Some((_, name)), _) => begin(&Look::new(Category::Gpu, &Text(name))),
                    (None, Some(operation)) => {
                        let (of, number) = (operation.id, channel.channel);
                        let arrows = [flows::to_channel(of, number), flows::to_proxy(of, number)];
                        let name = OperationName { operation, prefix: "" };
                        begin(&Look::new(Category::Gpu, &name).of(operation.correlation(comm)).with(&arrows));
                    }
                    (None, None) => begin(&Look::new(Category::Gpu, &Fixed("unknown operation"))),
                }
            }
            What::ChannelEnd { id, stop, timing, doubt } => {
                self.args.clear();
                if stop.0 > 0 {
                    self.args.uint(nccl::GPU_STOP_NS, stop.0);
                }
                if let Some(timing) = timing {
                    // Of an argument that a slice has twice, the later one counts.
                    self.args.timing(timing).channel_doubt(timing, false, doubt);
                }
                self.lanes.end(id, time, &self.args);
            }
            What::NetBegin { id, thread, net } => {
                let family = self.proxy_thread(thread).net;
                self.args.clear().net(net);
                let name = Fixed("network event");
                self.lanes.begin(family, id, time, &Look::new(Category::Net, &name), &mut self.args);
            }
            What::NetUpdate { id, net } => {
                self.args.clear().net(net);
                self.lanes.instant_inside(id, time, Category::Net, &Fixed("network update"), &self.args);
            }
            What::Kernel { kernel, owner } => self.kernel(kernel, &owner),
            What::Unfinished { kernel, comm, operations, replay } => self.unfinished(kernel, comm, operations, replay),
            What::Untimed { comm, operations } => self.untimed(time, comm, operations),
            What::Copy { copy, of } => self.copy(copy, of),
            What::CudaCall(call) => self.cuda_call(call),
            What::Range { marker, end, is_open } => self.range(marker, end, is_open),
            What::HostFunction(function) => self.host_function(function),
            What::Device(device) => self.device(time, device),
            What::Overhead(overhead) => self.overhead(overhead),
            What::TimesOff { device, least, most } => self.times_off(time, device, least, most),
            What::TimerStep { device, before, by } => self.timer_step(time, device, before, by),
            What::Unknown { thread, bits } => {
                self.args.clear().uint(nccl::UNKNOWN, bits);
                let time = self.threads.get(&thread).map_or(time, |thread| time.max(thread.last));
                self.end_launch(thread);
                if let Some((sequence, track)) = self.thread_track(thread, time) {
                    let extra = Extra { args: self.args.bytes(), ..Extra::default() };
                    self.lanes.writer.instant(
                        sequence,
                        track,
                        time,
                        Category::Api,
                        &Fixed("unknown event type"),
                        &extra,
                    );
                }
            }
        }
    }

    // ---- host threads ----

    fn thread(&mut self, thread: Thread<'_>) {
        self.threads.insert(
            thread.id,
            HostThread {
                tid: thread.tid,
                name: thread.name.to_owned(),
                track: None,
                shares: false,
                stack: Vec::new(),
                last: HostNs(0),
                launched: None,
            },
        );
    }

    /// Writes the end of a thread's launch that waited for its hand-over.
    fn end_launch(&mut self, id: ThreadId) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        if let (Some((sequence, track)), Some(Launched { end, calls, group })) = (thread.track, thread.launched.take())
        {
            self.lanes.writer.end(sequence, track, end, &Extra { flows: &calls, ..Extra::default() });
            if let Some((begin, args)) = group {
                let extra = Extra { args: args.bytes(), ..Extra::default() };
                self.lanes.writer.begin(sequence, track, begin, Category::Api, &Fixed(Kind::Group.name()), &extra);
            }
        }
    }

    /// What was open on a thread that has ended, ends with it.
    fn thread_end(&mut self, id: ThreadId, time: HostNs) {
        self.end_launch(id);
        if let Some(thread) = self.threads.get_mut(&id)
            && let Some(on) = thread.track
        {
            cut(&mut self.lanes.writer, &mut self.calls, on, &mut thread.stack, 0, time.max(thread.last));
        }
        if let Some(proxy) = self.proxies.get_mut(&id) {
            let open = usize::from(proxy.base.take().is_some()) + usize::from(proxy.inner.take().is_some());
            let family = proxy.state;
            for _ in 0..open {
                self.lanes.pop(family, time, &[]);
            }
        }
        self.ended.push_back(id);
        if self.ended.len() > ENDED_THREADS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.threads.remove(&oldest);
            self.proxies.remove(&oldest);
        }
    }

    fn thread_track(&mut self, id: ThreadId, time: HostNs) -> Option<(Sequence, Track)> {
        let thread = self.threads.get_mut(&id)?;
        if thread.track.is_none() && (self.thread_tracks >= OWN_THREADS || !self.lanes.is_roomy()) {
            self.sharing[1] += u64::from(!std::mem::replace(&mut thread.shares, true));
            return None;
        }
        if thread.track.is_none() {
            let form = Form::Thread { pid: self.pid, tid: thread.tid, name: &thread.name };
            let known = self.host.take_track(thread.tid);
            let track = known.or_else(|| self.lanes.writer.track(form, Place::default()))?;
            thread.track = Some((self.lanes.writer.sequence(track, time), track));
            self.thread_tracks += 1;
        }
        thread.track
    }

    /// The track of the thread that had this number last, where NCCL was called on it.
    pub(super) fn track_of_tid(&mut self, tid: i32, time: HostNs) -> Option<Track> {
        let threads = self.threads.iter().filter(|(_, thread)| thread.tid == tid);
        let id = threads.map(|(id, _)| *id).max()?;
        self.thread_track(id, time).map(|(_, track)| track)
    }

    fn call_begin(
        &mut self,
        id: Handle,
        thread_id: ThreadId,
        time: HostNs,
        kind: Kind,
        asked_by: &[Handle],
        name: &dyn Name,
    ) {
        let Some((sequence, track)) = self.thread_track(thread_id, time) else {
            return self.call_of_other_thread(id, thread_id, time, name);
        };
        // Its hand-over follows on a launch at once, or comes on another thread.
        let hands_over = self.threads.get(&thread_id).is_some_and(|thread| {
            let waits = thread.launched.as_ref().is_some_and(|launched| launched.group.is_none());
            waits && kind == Kind::Group && thread.stack.iter().all(|call| call.kind != kind)
        });
        if !hands_over {
            self.end_launch(thread_id);
        }
        let Some(thread) = self.threads.get_mut(&thread_id) else { return };
        let time = time.max(thread.last);
        // A kind of call never contains itself, and a group of calls is never inside another call: what is still
        // open then has lost its stop.
        let still_open =
            if kind == Kind::GroupApi { Some(0) } else { thread.stack.iter().position(|call| call.kind == kind) };
        if let Some(keep) = still_open {
            cut(&mut self.lanes.writer, &mut self.calls, (sequence, track), &mut thread.stack, keep, time);
        }
        thread.last = time;
        thread.stack.push(Call { id, kind, begin: time, waits: asked_by.len() > 1 });
        self.calls.insert(id, thread_id);
        // From a call to its launch and to what it asks for, and from a launch to its kernel.
        let arrows = [flows::from(id), asked_by.first().map_or(0, |call| flows::from(*call))];
        let flows = match kind {
            Kind::KernelLaunch if asked_by.len() == 1 => &arrows[..],
            Kind::CollApi | Kind::P2pApi | Kind::CeColl | Kind::KernelLaunch => &arrows[..1],
            _ => &[],
        };
        if let Some(launched) = thread.launched.as_mut() {
            launched.group = Some((time, std::mem::take(&mut self.args)));
            return;
        }
        let extra = Extra { args: self.args.bytes(), flows, ..Extra::default() };
        self.lanes.writer.begin(sequence, track, time, Category::Api, name, &extra);
    }

    /// A call on a thread without a track of its own.
    fn call_of_other_thread(&mut self, id: Handle, thread: ThreadId, time: HostNs, name: &dyn Name) {
        let Some(thread) = self.threads.get(&thread) else {
            self.lanes.missing += 1;
            return;
        };
        let parent = self.first.process;
        let family = *self.other_threads.get_or_insert_with(|| {
            let description = "Calls of threads that have no track of their own, because there are so many; the thread is an argument.";
            self.lanes.shared_family("other threads".into(), Placing { parent, rank: 0, description })
        });
        self.args.int(nccl::TID, thread.tid);
        self.lanes.begin(family, id, time, &Look::new(Category::Api, name), &mut self.args);
    }

    fn call_end(&mut self, id: Handle, time: HostNs, marks: [Option<HostNs>; 2]) {
        // Not there if it was cut already, at the end of the call around it or by a later one; or if its thread shares a track.
        let thread_id = self.calls.remove(&id).filter(|id| self.threads.contains_key(id));
        let Some(thread_id) = thread_id else {
            self.args.clear();
            return self.lanes.end(id, time, &self.args);
        };
        self.end_launch(thread_id);
        let Some(thread) = self.threads.get_mut(&thread_id) else { return };
        let Some(on) = thread.track else { return };
        let Some(index) = thread.stack.iter().rposition(|call| call.id == id) else { return };
        let time = time.max(thread.last);
        thread.last = time;
        cut(&mut self.lanes.writer, &mut self.calls, on, &mut thread.stack, index + 1, time);
        if let Some(call) = thread.stack.pop() {
            if call.waits {
                thread.launched = Some(Launched { end: time, calls: Vec::new(), group: None });
                return;
            }
            self.args.clear().group_marks(call.begin, marks);
            let extra = Extra { args: self.args.bytes(), ..Extra::default() };
            self.lanes.writer.end(on.0, on.1, time, &extra);
        }
    }

    // ---- GPUs of one process ----

    /// Where the tracks of a GPU are: of one that is not known, in the process.
    fn seat(&mut self, device: Option<u32>) -> &mut Seat {
        let Some(device) = device else { return &mut self.first };
        if *self.first_device.get_or_insert(device) == device || self.seats.len() >= SEATS {
            return &mut self.first;
        }
        let Tracks { seats, lanes, who, pid, rank, gpu, .. } = self;
        let rank = Some(process_rank(*rank, device.saturating_add(1)));
        seats.entry(device).or_insert_with(|| {
            // No process of a Linux has a number of more than 22 bits.
            let made_up = (device as i32 + 1) << 22 | *pid;
            let model = gpu.name(device);
            let (name, labels) = (names::on_gpu(who, device, model), [format!("of process {pid}")]);
            let form = Form::Process { pid: made_up, name: &name, labels: &labels };
            let process = lanes.writer.track(form, Place { orders_children: true, rank, ..Place::default() });
            let place = Place { parent: process, rank: Some(COMMS_RANK), orders_children: true, ..Place::default() };
            let comms =
                lanes.writer.track(Form::Plain { name: "Communicators" }, Place { description: COMMS, ..place });
            Seat { process, comms, gpu: None }
        })
    }

    /// The group of a GPU's streams.
    /// The group of a communicator's tracks.
    pub(super) fn comms_group(&mut self, comm: &Comm) -> Option<Track> {
        self.seat(comm.device).comms
    }

    pub(super) fn gpu_group(&mut self, device: Option<u32>) -> Option<Track> {
        let seat = *self.seat(device);
        if seat.gpu.is_some() {
            return seat.gpu;
        }
        let place = Place {
            parent: seat.process,
            rank: Some(2),
            orders_children: true,
            description: "What ran on the GPU, by CUPTI: one track a stream.",
            ..Place::default()
        };
        let group = self.lanes.writer.track(Form::Plain { name: "GPU" }, place);
        self.seat(device).gpu = group;
        group
    }

    /// The process's name, without its GPU.
    pub(super) fn who(&self) -> &str {
        &self.who
    }

    /// The process itself.
    pub(super) fn process(&self) -> Option<Track> {
        self.first.process
    }

    // ---- communicators ----

    fn comm_init(&mut self, time: HostNs, comm: &Comm) {
        if comm.version > 0 && self.nccl_version != comm.version {
            self.nccl_version = comm.version;
            self.attributes(&[(attribute::NCCL_VERSION, &names::nccl_version(comm.version))]);
        }
        self.comms.entry(comm.context).or_insert(DrawnComm::new(time));
        // Up to interface v3 the identity comes with the first operation: the track waits for its name.
        if comm.hash != 0 || comm.interface > 3 {
            self.comm(time, comm);
        }
    }

    /// The one that was finalized longest ago is forgotten, so that a job may make as many as it likes.
    fn comm_ended(&mut self, context: Handle) {
        self.ended_comms.push_back(context);
        if self.ended_comms.len() > ENDED_COMMS
            && let Some(oldest) = self.ended_comms.pop_front()
            && let Some(mut drawn) = self.comms.remove(&oldest)
        {
            drawn.flush(&mut self.lanes.writer);
        }
    }

    /// The communicator's tracks, with its birth as the first event.
    pub(super) fn comm(&mut self, time: HostNs, comm: &Comm) -> FamilyId {
        let drawn = self.comms.entry(comm.context).or_insert(DrawnComm::new(time));
        if let Some(family) = drawn.family {
            return family;
        }
        let init = drawn.init;
        let (family, label) = match self.labels.len() < OWN_COMMS && self.lanes.is_roomy() {
            true => self.own_comm(comm),
            false => {
                self.sharing[0] += 1;
                (self.other_comms(0), String::new())
            }
        };
        if let Some(drawn) = self.comms.get_mut(&comm.context) {
            (drawn.family, drawn.label) = (Some(family), label);
        }
        self.with_saved_args(|tracks| {
            tracks.args.clear().comm(comm);
            tracks.lanes.instant(family, init, Category::Operation, &Fixed("communicator init"), &tracks.args);
        });
        family
    }

    /// New tracks of a communicator, and its short name.
    fn own_comm(&mut self, comm: &Comm) -> (FamilyId, String) {
        let place = Placing {
            parent: self.seat(comm.device).comms,
            rank: comm_rank(comm, 0),
            description: "Operations while the GPU works on them: from the start of their kernel to its end, by CUPTI.",
        };
        let mut label = names::short_comm(comm, self.rank.zip(self.world_size));
        if self.labels.contains(&label) {
            label = format!("{label} #{}", comm.number);
        }
        self.labels.insert(label.clone());
        (self.lanes.family(names::comm(&label, comm), place, COMM_LANES), label)
    }

    /// The tracks of communicators that have none of their own: of their operations while they run, or while they are handed over.
    fn other_comms(&mut self, which: usize) -> FamilyId {
        let parent = self.first.comms;
        let (name, description) = [
            (
                "other communicators",
                "Operations of communicators that have no tracks of their own, because there are so many, while the GPU works on them. The \
                 communicator is an argument.",
            ),
            (
                "other communicators · handed over",
                "The same while NCCL hands them over to the GPU and the proxy, on the host.",
            ),
        ][which];
        *self.other_comms[which].get_or_insert_with(|| {
            let rank = (u32::MAX >> 2) + which as u32;
            self.lanes.shared_family(name.into(), Placing { parent, rank, description })
        })
    }

    /// The tracks of a communicator's operations while they are handed over.
    fn handed_over(&mut self, time: HostNs, comm: &Comm) -> FamilyId {
        let family = self.comm(time, comm);
        if self.lanes.is_shared(family) {
            return self.other_comms(1);
        }
        let parent = self.seat(comm.device).comms;
        let Some(drawn) = self.comms.get_mut(&comm.context) else { return self.own };
        if let Some(family) = drawn.handed_over {
            return family;
        }
        let place = Placing {
            parent,
            rank: comm_rank(comm, 1),
            description: "Operations while NCCL hands them over to the GPU and the proxy, on the host.",
        };
        let name = format!("{} · handed over", names::comm(&drawn.label, comm));
        let family = self.lanes.family(name, place, COMM_LANES);
        drawn.handed_over = Some(family);
        family
    }

    /// The counters of a communicator's bandwidth.
    pub(super) fn speed(&mut self, time: HostNs, comm: &Comm, body: impl FnOnce(&mut Speed, &mut Writer)) {
        let family = self.comm(time, comm);
        if self.lanes.is_shared(family) {
            // What its kernels reach is in their arguments.
            return;
        }
        let parent = self.seat(comm.device).comms;
        let Tracks { lanes, comms, .. } = self;
        let Some(drawn) = comms.get_mut(&comm.context) else { return };
        let label = &drawn.label;
        let speed = drawn.speed.get_or_insert_with(|| {
            let mut counter = |slot, of, description| {
                let rank = Some(comm_rank(comm, slot));
                let place = Place { parent, rank, description, ..Place::default() };
                let name = format!("{of} · {}", names::comm(label, comm));
                Counter::new(&mut lanes.writer, &name, Unit::Named("B/s"), place, time)
            };
            Speed::new([
                counter(3, "algbw", "Algorithm bandwidth: bytes of the operations, a second of their kernel, as nccl-tests counts."),
                counter(2, "busbw", "Bus bandwidth: what each link has to carry for them, a second of their kernel, as nccl-tests counts."),
            ])
        });
        body(speed, &mut lanes.writer);
    }

    /// An operation was handed over: it is outstanding until its kernel has ended.
    fn handed(&mut self, time: HostNs, comm: &Comm, operation: &Arc<Operation>) {
        let may_hang = self.may_hang(comm);
        let most = REMEMBERED / self.comms.len().max(1);
        if let Some(drawn) = self.comms.get_mut(&comm.context)
            && drawn.family.is_some_and(|family| !self.lanes.is_shared(family))
        {
            if may_hang && drawn.comm.is_none() {
                drawn.comm = Some(Arc::new(comm.clone()));
            }
            drawn.outstanding.begin(operation.id, time, Some(operation).filter(|_| may_hang), most);
            drawn.outstanding.settle(&mut self.lanes.writer, time);
        }
    }

    /// An operation's kernel has ended.
    pub(super) fn done(&mut self, end: HostNs, comm: &Comm, operation: Handle) {
        let parent = self.seat(comm.device).comms;
        let Tracks { lanes, comms, .. } = self;
        let Some(drawn) = comms.get_mut(&comm.context) else { return };
        if drawn.family.is_none_or(|family| lanes.is_shared(family)) {
            return;
        }
        if !drawn.outstanding.is_drawn() {
            let description = "Operations that NCCL was handed and the GPU has not finished, by their kernels. One whose kernel is not known \
                               counts until a later one has ended.";
            let place = Place { parent, rank: Some(comm_rank(comm, 4)), description, ..Place::default() };
            let name = format!("outstanding · {}", names::comm(&drawn.label, comm));
            let counter = Counter::new(&mut lanes.writer, &name, Unit::Named("operations"), place, drawn.init);
            drawn.outstanding.draw(counter);
        }
        drawn.outstanding.end(operation, end);
        drawn.outstanding.settle(&mut lanes.writer, end);
        self.untold_done(comm.context, end);
    }

    /// A communicator's short name, of one whose track need not be there yet; none where it has no tracks of its own.
    pub(super) fn comm_label(&mut self, comm: &Comm) -> Option<String> {
        let init = self.comms.get(&comm.context).map_or(HostNs(0), |drawn| drawn.init);
        let family = self.comm(init, comm);
        let drawn = self.comms.get(&comm.context).filter(|_| !self.lanes.is_shared(family))?;
        Some(drawn.label.clone())
    }

    /// Operations whose communicator is unknown or another process's.
    fn unknown_comm(&mut self) -> FamilyId {
        let parent = self.first.comms;
        let drawn = self.comms.entry(Handle::NONE).or_insert(DrawnComm::new(HostNs(0)));
        if let Some(family) = drawn.family {
            return family;
        }
        let place = Placing { parent, rank: u32::MAX >> 1, description: "Operations of unknown communicators." };
        let family = self.lanes.family("unknown communicator".into(), place, COMM_LANES);
        self.comms.insert(Handle::NONE, DrawnComm { family: Some(family), ..DrawnComm::new(HostNs(0)) });
        family
    }

    // ---- GPU channels ----

    fn channel(&mut self, comm: Option<&Comm>, channel: u8) -> FamilyId {
        let context = comm.map_or(Handle::NONE, |comm| comm.context);
        let key = (context, channel);
        if let Some(&family) = self.channels.get(&key) {
            return family;
        }
        let label = comm.and_then(|comm| self.comm_label(comm));
        let full = self.channels.len() >= FAMILIES || !self.lanes.is_roomy();
        let crowded = full || comm.is_some() && label.is_none();
        let key = if crowded { (Handle::NONE, u8::MAX) } else { key };
        if let Some(&family) = self.channels.get(&key) {
            return family;
        }
        let name = match label {
            Some(label) if !crowded => format!("{label} · channel {channel}"),
            _ => "other channels".into(),
        };
        let number = comm.filter(|_| !crowded).map_or(u32::MAX >> 10, |comm| comm.number);
        let rank = number.min(u32::MAX >> 10) << 8 | u32::from(channel);
        let place = Placing { parent: self.channels_group, rank, description: "" };
        let family = match crowded {
            true => self.lanes.shared_family(name, place),
            false => self.lanes.family(name, place, LANES),
        };
        self.channels.insert(key, family);
        family
    }

    pub(super) fn with_saved_args(&mut self, body: impl FnOnce(&mut Tracks)) {
        let saved = std::mem::take(&mut self.args);
        body(self);
        self.args = saved;
    }
}

/// The place of a process among those of a file: by rank, those without one last; and of its further GPUs behind it.
fn process_rank(rank: Option<u32>, seat: u32) -> u32 {
    const SEAT_BITS: u32 = 7;
    let last = u32::MAX >> 1 >> SEAT_BITS;
    rank.unwrap_or(last).min(last) << SEAT_BITS | seat.min((1 << SEAT_BITS) - 1)
}

/// The place of one of a communicator's tracks among all of them.
pub(super) fn comm_rank(comm: &Comm, slot: u32) -> u32 {
    comm.number.min(u32::MAX >> 5) << 3 | slot
}

/// Ends the calls above the first `keep`: their stop was lost, or comes after that of the call around them.
fn cut(
    writer: &mut Writer,
    calls: &mut FxHashMap<Handle, ThreadId>,
    (sequence, track): (Sequence, Track),
    stack: &mut Vec<Call>,
    keep: usize,
    time: HostNs,
) {
    for call in stack.drain(keep..) {
        calls.remove(&call.id);
        let mut args = Args::new();
        args.text(nccl::DOUBT, "no stop before the end of what contains it");
        writer.end(sequence, track, time, &Extra { args: args.bytes(), ..Extra::default() });
    }
}
