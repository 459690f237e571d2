//! How a trace is laid out: which track an entry of the timeline is drawn on.
//!
//! ```text
//! rank 3 · node17 · GPU 3 (H200)   the process, with its first GPU
//!   python3, ...                   one track per host thread: the application's calls, launches,
//!                                  hand-overs
//!     CUDA runtime, CUDA driver    if enabled: calls into CUDA, in lanes
//!     NVTX                         if enabled: the program's ranges, which nest
//!   Communicators
//!     dp · rank 3 of 64            operations while the GPU works on them, in lanes; init and
//!                                  finalize
//!     dp · rank 3 of 64 · handed over   operations while NCCL hands them over
//!     busbw · dp · rank 3 of 64, algbw · …   kernels' bandwidth, as in nccl-tests
//!     outstanding · dp · rank 3 of 64   operations that were handed over, until their kernel ends
//!     dp · rank 3 of 64 · not done   overdue operations: those that should have ended by now
//!   Proxy
//!     proxy thread (4711)          one group per progress thread, with NCCL's name for it, if any
//!       state                      idle, active, sleep, append
//!       CPU, operations queued, steps in flight, bytes in flight
//!       dp · send → 4              proxy operations from their first progress on, in lanes
//!       dp · send → 4 · steps      their transfers, with what each waits for
//!       network events
//!   GPU
//!     GPU 0 · stream 13            kernels, in lanes; NCCL's are named by what they carry; copies,
//!                                  and functions that the host ran for graphs
//!     GPU 0 · stream 13 · operations   the operations of kernels that carry more than one
//!   GPU channels                   kernel channels whose kernel is not known
//!   ncclscope                      what the recording says about itself
//! rank 3 · node17 · GPU 4          a further GPU of the process: its communicators and streams
//! ```
//!
//! A file has a few thousand tracks at most. Past the limit, in total or for one kind, new items
//! share a track: `other communicators`, `other peers`, `other threads`, `other streams`,
//! `other channels`.
//!
//! Slices of one track must nest. Slices that may overlap get lanes: tracks with the same name,
//! which the viewer stacks. Calls of one thread nest by nature. Where a stop is missing or out of
//! order, a slice is cut at the end of the enclosing one, and says so. Every end lies at or after
//! its begin.

use std::sync::Arc;

use super::canvas::Canvas;
use super::channels::{self, Channels};
use super::comms::{self, Comms};
use super::counters;
use super::fields::nccl;
use super::flows;
use super::gpu::Gpu;
use super::host::Host;
use super::lanes::Look;
use super::names::{self, Fixed, OperationName};
use super::not_done::{self, Evidence, NotDone, Wish};
pub use super::processes::ProcessInfo;
use super::proxy::{At, Proxy};
pub use super::recording::Figures;
use super::recording::Recording;
use super::stages::RenderStages;
pub use super::stages::Stages;
use super::threads::{NewCall, Threads};
use super::words::{Category, FINALIZED, instant, remark};
use super::writer::{Clocks, Written};
use crate::model::activity::{Kernel, Span};
use crate::model::doing::{CpuWait, Doing};
use crate::model::event::Event;
use crate::model::ids::{Handle, ProcessTag};
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Entry, Method, Operation, Owner, Timing, What};
use crate::summary::Summary;

/// Draws the timeline of one process.
pub struct Tracks {
    pub(super) canvas: Canvas,
    threads: Threads,
    host: Host,
    comms: Comms,
    /// What stands still.
    pub not_done: NotDone,
    proxy: Proxy,
    gpu: Gpu,
    /// Kernels as render stages, if enabled.
    stages: Option<RenderStages>,
    channels: Channels,
    recording: Recording,
    /// Communicators that were finalized, and when, until what is open there is ended.
    finalized: Vec<(Handle, HostNs)>,
    /// After how many bytes of packets the trace is restarted.
    restart_after: usize,
}

/// The same in a recording: far more than a restart itself takes, and few enough that the last ones
/// of thousands of files can be read.
const RESTART: usize = 8 << 20;

/// For how long after a communicator's `finalize` its operations may still end, ns: a progress
/// thread that communicators share reports that later.
const LATE_NS: u64 = 1_000_000_000;

impl Tracks {
    /// A trace of the process with this tag, starting at `clocks`.
    #[must_use]
    pub fn new(tag: ProcessTag, clocks: Clocks, process: &ProcessInfo) -> Tracks {
        let mut canvas = Canvas::new(tag, clocks, process);
        // In the order in which they are described.
        let (proxy, channels) = (Proxy::new(&mut canvas), Channels::new(&mut canvas));
        Tracks {
            recording: Recording::new(&mut canvas, clocks.boottime),
            canvas,
            threads: Threads::default(),
            host: Host::default(),
            comms: Comms::default(),
            not_done: NotDone::default(),
            proxy,
            gpu: Gpu::default(),
            stages: None,
            channels,
            finalized: Vec::new(),
            restart_after: RESTART,
        }
    }

    /// From here on kernels are drawn as render stages.
    pub fn draw_render_stages(&mut self, stages: Stages) {
        self.stages = RenderStages::new(&mut self.canvas, stages);
    }

    /// From here on ranges come from PyTorch's profiler: its operators, and what the program marked
    /// with it.
    pub fn ranges_by_pytorch(&mut self) {
        self.host.ranges_by_pytorch();
    }

    /// The packets written since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        // Values that counters held back would be missing if nothing more arrives.
        self.proxy.flush(&mut self.canvas);
        let taken = self.canvas.writer().take();
        if self.canvas.writer().since_restart() >= self.restart_after {
            self.restart();
        }
        taken
    }

    /// Restarts the trace, so that its end can be read alone. All that is open was begun after the
    /// restart before: so whoever reads from there knows what hangs.
    fn restart(&mut self) {
        let Tracks { canvas, comms, threads, .. } = self;
        let restarts = canvas.writer().restarts();
        if canvas.writer().is_mute() || canvas.lanes.has_old() || threads.has_old(restarts) {
            return;
        }
        canvas.writer().restart();
        comms.draw_all(canvas);
        self.recording.restarted(canvas);
    }

    /// Restarts the trace after so many bytes of packets, instead of [`RESTART`].
    #[cfg(feature = "cli")]
    pub(crate) fn restart_after(&mut self, bytes: usize) {
        self.restart_after = bytes;
    }

    /// Bytes that wait to be taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.canvas.lanes.writer.pending_bytes()
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        self.canvas.lanes.writer.written()
    }

    /// Notes how many records were dropped up to `time`.
    pub fn dropped(&mut self, time: HostNs, total: u64) {
        let Tracks { canvas, recording, .. } = self;
        canvas.aloud(|canvas| recording.dropped(canvas, time, total));
    }

    /// A thread of NCCL or ours took this share of a processor, in percent, since the last call,
    /// and is now doing this, on this processor.
    pub fn thread(&mut self, time: HostNs, who: (i32, &str), percent: i64, now: (Doing, Option<u32>)) {
        let Tracks { canvas, threads, proxy, recording, .. } = self;
        recording.cpu(canvas, threads, proxy, time, who, percent);
        recording.does(canvas, threads, proxy, time, who, now);
    }

    /// For how long progress threads waited for a processor until `time`.
    pub fn cpu_waits(&mut self, time: HostNs, waits: &[CpuWait]) {
        let Tracks { canvas, threads, proxy, recording, .. } = self;
        recording.cpu_waits(canvas, threads, proxy, time, waits);
    }

    /// All threads have been sampled for this time.
    pub fn threads_looked_at(&mut self, time: HostNs) {
        self.recording.looked(&mut self.canvas, time, false);
    }

    /// The system's ids of NCCL's progress threads that did anything.
    #[must_use]
    pub fn progress_threads(&self) -> Vec<i32> {
        let numbers = self.proxy.threads().filter_map(|id| Some(self.threads.get(id)?.0));
        numbers.filter(|tid| *tid != 0).collect()
    }

    /// Facts about the recording, for the viewer's overview page.
    pub fn attributes(&mut self, attributes: &[(&str, &str)]) {
        self.canvas.attributes(attributes);
    }

    /// The totals of what was drawn so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.canvas.summary
    }

    /// From here on events are not written: nobody will read them.
    pub fn without_trace(&mut self) {
        self.canvas.writer().mute();
    }

    /// From here on nothing is added up.
    pub fn without_summary(&mut self) {
        self.canvas.summary.switch_off();
    }

    /// A remark of the recording about itself.
    pub fn note(&mut self, time: HostNs, name: &str, note: &str) {
        let Tracks { canvas, recording, .. } = self;
        canvas.args.clear().text(nccl::NOTE, note);
        recording.note(canvas, time, name);
    }

    /// A remark about a communicator that may have nothing drawn.
    pub fn note_comm(&mut self, time: HostNs, name: &str, comm: &Comm, note: &str) {
        self.canvas.args.clear().comm(comm).text(nccl::NOTE, note);
        self.recording.remark(&mut self.canvas, time, name);
    }

    /// Sets whether the GPU's side will be known for operations handed over from now on.
    pub fn expect_kernels(&mut self, expected: bool, now: HostNs) {
        self.not_done.expect_kernels(&mut self.canvas, &mut self.comms, expected, now);
    }

    /// The file is full. From here on, what was begun is ended, and of the rest only remarks, what
    /// hangs and [signs of life](Tracks::sign_of_life) are written. All of it is still added up.
    pub fn file_is_full(&mut self) {
        self.canvas.is_full = true;
        self.canvas.writer().file_is_full();
    }

    /// In a full file: shows how far the process has come by `time`, and that it is alive.
    pub fn sign_of_life(&mut self, time: HostNs) {
        let Tracks { canvas, comms, recording, .. } = self;
        comms.draw_newest(canvas);
        recording.alive(canvas, time);
    }

    /// Called once a second, whatever the job is doing: see [`not_done`]. Returns what is wanted of
    /// CUPTI.
    pub fn tick(&mut self, now: HostNs, drawn: HostNs, evidence: &Evidence<'_>) -> Option<Wish> {
        self.end_finalized(now, drawn.saturating_sub(LATE_NS));
        self.not_done.tick(&mut self.canvas, &mut self.comms, now, drawn, evidence)
    }

    /// Ends what the proxy and channels still do for communicators that were finalized by `until`.
    fn end_finalized(&mut self, now: HostNs, until: HostNs) {
        let Tracks { canvas, threads, comms, proxy, channels, finalized, .. } = self;
        for (context, time) in finalized.extract_if(.., |(_, time)| *time <= until) {
            let families: Vec<_> = proxy.of_comm(context).chain(channels.of_comm(context)).collect();
            canvas.args.clear().text(nccl::DOUBT, FINALIZED);
            let ended = canvas.end_all(&families, time);
            proxy.given_up(&mut At { time: now, canvas, threads, comms }, &ended);
        }
    }

    /// CUPTI was forced to return its buffers, and they have been processed. Their content is that
    /// of `time`. The last thing to end on the GPU ended at `moved`.
    pub fn flushed_by_force(&mut self, time: HostNs, note: &str, moved: HostNs) {
        let unfinished = self.not_done.flushed_by_force(&mut self.canvas, &mut self.comms, time, moved);
        self.note(time, remark::FORCED, &format!("{note}: {unfinished}"));
    }

    /// The final event of a recording.
    pub fn finish(&mut self, time: HostNs, figures: &Figures) {
        self.end_finalized(time, time);
        let Tracks { canvas, threads, comms, .. } = self;
        threads.finish(canvas);
        comms.flush(canvas);
        not_done::end_what_is_done(canvas, comms);
        self.proxy.flush(canvas);
        self.recording.looked(canvas, time, true);
        self.recording.cpu_waits(canvas, threads, &self.proxy, time, &[]);
        if let Some(text) = self.recording.cpu_waited() {
            self.note(time, remark::CPU_WAIT, &text);
        }
        let Tracks { canvas, threads, comms, .. } = self;
        let (recording, sharing) = (&mut self.recording, [comms.sharing, threads.sharing]);
        canvas.aloud(|canvas| recording.finish(canvas, time, figures, sharing));
    }

    /// Draws one entry.
    pub fn draw(&mut self, entry: &Entry<'_>) {
        let Tracks { canvas, threads, host, comms, not_done, proxy, gpu, channels, recording, finalized, .. } = self;
        let time = entry.time;
        match entry.what {
            // Only slices would come of it.
            What::CallBegin { operation: None, .. } if canvas.lanes.writer.is_mute() => {}
            What::Thread(thread) => threads.add(thread),
            What::ThreadEnd(thread) => {
                let forgotten = threads.ended(canvas, thread, time);
                proxy.ended(canvas, thread, time);
                forgotten.into_iter().for_each(|thread| proxy.forget(thread));
            }
            What::CommInit(comm) => comms.init(canvas, time, comm),
            What::CommFinalize(comm) => {
                comms.finalize(canvas, time, comm);
                not_done.give_up(canvas, comms, comm.context, time, FINALIZED);
                finalized.push((comm.context, time));
                comms.ended(canvas, comm.context);
            }
            What::CallBegin { .. } => self.call(time, &entry.what),
            What::CallEnd { id, group_marks } => threads.end(canvas, id, time, group_marks),
            What::OperationBegin { .. } => self.handed_over(time, &entry.what),
            What::OperationEnd { id } | What::NetEnd { id } | What::ProxyOpEnd { id } => {
                canvas.args.clear();
                canvas.end(id, time);
            }
            What::ProxyOpTaken { .. }
            | What::ProxyOpBegin { .. }
            | What::ProxyOpsQueued { .. }
            | What::ProxyOpNever { .. }
            | What::StepBegin { .. }
            | What::StepPhase { .. }
            | What::StepEnd { .. }
            | What::Control { .. }
            | What::NetBegin { .. } => proxy.draw(&mut At { time, canvas, threads, comms }, &entry.what),
            What::ProxyOpPhase { id, state, bytes, steps } => {
                canvas.args.clear().uint(nccl::BYTES, bytes).int(nccl::STEPS, steps);
                canvas.lanes.phase(id, time, names::proxy_op_phase(state), (None, None), &canvas.args);
            }
            What::ChannelBegin { id, comm, ref channel, operation, timing, unreliable, doubt } => {
                let family = match timing {
                    Timing::Gpu { place: Some(place), .. } => gpu.channel(canvas, place, channel.channel),
                    _ => channels.family(canvas, comms, comm, channel.channel),
                };
                canvas.args.clear().channel(channel, timing).of_comm(comm).channel_doubt(timing, unreliable, doubt);
                channels::begin(canvas, family, id, time, channel, comm, operation);
            }
            What::ChannelEnd { id, stop, timing, doubt } => {
                canvas.args.clear().nonzero(nccl::GPU_STOP_NS, stop.0);
                if let Some(timing) = timing {
                    // If a slice has an argument twice, the later one counts.
                    canvas.args.timing(timing).channel_doubt(timing, false, doubt);
                }
                canvas.end(id, time);
            }
            What::NetUpdate { id, net } => {
                canvas.args.clear().net(net);
                canvas.lanes.instant_inside(id, time, &Fixed(instant::NETWORK_UPDATE), &canvas.args);
            }
            What::Kernel { kernel, owner } => self.kernel(kernel, &owner),
            What::Unfinished { kernel, comm, operations, replay } => {
                not_done.unfinished(comms, kernel, comm, operations, replay);
            }
            What::Untimed { comm, operations } => not_done.untimed(canvas, comms, time, comm, operations),
            What::Copy { copy, of } => gpu.copy(canvas, copy, of),
            What::CudaCall(call) => host.cuda_call(canvas, threads, call),
            What::Range { marker, end, is_open } => host.range(canvas, threads, marker, end, is_open),
            What::HostFunction(function) => gpu.host_function(canvas, function),
            What::Device(device) => recording.device(canvas, time, device),
            What::Overhead(overhead) => gpu.overhead(canvas, overhead),
            What::Contradicted { place, correlation, graph_node } => {
                recording.contradicted(canvas, time, place, (correlation, graph_node));
            }
            What::TimesOff { device, least, most } => recording.times_off(canvas, time, device, [least, most]),
            What::TimerStep { device, before, by } => recording.timer_step(canvas, time, device, before, by),
            What::Unknown { thread, bits } => threads.unknown(canvas, thread, time, bits),
        }
    }

    /// Watches an entry that is not drawn, so that hangs are shown and the counts of outstanding
    /// operations are right.
    pub fn watch(&mut self, entry: &Entry<'_>) {
        let Tracks { canvas, threads, comms, not_done, proxy, .. } = self;
        match entry.what {
            What::OperationBegin { comm: Some(comm), operation, replay: None, .. } => {
                comms.handed(canvas, entry.time, comm, operation, not_done.may_hang(comm));
            }
            What::Kernel { kernel, ref owner } => {
                not_done.kernel(owner);
                if let Owner::Operations { comm: Some(comm), operations, replay, .. } = *owner {
                    has_ended(canvas, comms, not_done, kernel.span, comm, (operations, replay.is_some()));
                }
            }
            What::ProxyOpBegin { .. } | What::ProxyOpsQueued { .. } => {
                proxy.watch(&mut At { time: entry.time, canvas, threads, comms }, &entry.what);
            }
            _ => {}
        }
    }

    /// A call on its thread.
    fn call(&mut self, time: HostNs, what: &What<'_>) {
        let What::CallBegin { id, thread, comm, event, operation, asked_by, doubt } = *what else { return };
        let Tracks { canvas, threads, .. } = self;
        canvas.args.clear();
        if let Some(operation) = operation {
            canvas.args.operation(operation);
        }
        canvas.args.call(event).of_comm(comm).doubt(doubt);
        let (kind, name) = (event.kind(), &Fixed(event.kind().name()));
        let prefix = if matches!(event, Event::CeColl(_)) { "copy engine " } else { "nccl" };
        let sum = operation.and_then(|_| canvas.add_up(Summary::call)).flatten();
        match operation {
            Some(operation) => {
                let name = &OperationName { operation, prefix };
                threads.begin(canvas, thread, &NewCall { id, kind, time, asked_by, name, sum });
            }
            None => threads.begin(canvas, thread, &NewCall { id, kind, time, asked_by, name, sum }),
        }
    }

    /// An operation on the track of its communicator.
    fn handed_over(&mut self, time: HostNs, what: &What<'_>) {
        let What::OperationBegin { id, thread, call, comm, operation, replay, doubt } = *what else { return };
        let Tracks { canvas, threads, comms, not_done, .. } = self;
        let tid = threads.get(thread).map_or(0, |(tid, _)| tid);
        canvas.args.clear().operation(operation).of_comm(comm).doubt(doubt).int(nccl::TID, tid);
        canvas.args.known(nccl::REPLAY, replay.map(u64::from));
        let family = match comm {
            Some(comm) => comms.handed_over(canvas, time, comm),
            None => comms.unknown(canvas),
        };
        let name = OperationName { operation, prefix: "" };
        let arrows = [flows::from(id), flows::from(call)];
        let arrows = if call.is_none() { &arrows[..1] } else { &arrows };
        let look = Look::new(Category::Operation, &name).of(operation.correlation(comm)).with(arrows);
        canvas.add_up(Summary::handed_over);
        canvas.begin(family, id, time, &look);
        threads.carries(thread, call);
        if let (Some(comm), None) = (comm, replay) {
            comms.handed(canvas, time, comm, operation, not_done.may_hang(comm));
        }
    }

    /// A kernel: on its stream, its operations on the track of their communicator, and their
    /// bandwidth.
    fn kernel(&mut self, kernel: &Kernel, owner: &Owner<'_>) {
        let Tracks { canvas, comms, not_done, gpu, stages, .. } = self;
        let span = kernel.span;
        not_done.kernel(owner);
        let carried = match owner {
            Owner::Operations { comm: Some(comm), operations, around, late, method, replay, .. }
                if !operations.is_empty() =>
            {
                Some((*comm, *operations, (*around, *late), (*method, *replay)))
            }
            _ => None,
        };
        let speed = carried
            .filter(|(.., (method, _))| *method != Method::Contradicted && !canvas.lanes.writer.is_mute())
            .and_then(|(comm, operations, ..)| counters::bandwidth(comm, operations, span.end.since(span.start)));
        if !canvas.lanes.writer.is_mute() && !stages.as_mut().is_some_and(|stages| stages.kernel(canvas, kernel, owner))
        {
            gpu.kernel(canvas, kernel, owner, speed);
        }
        let Some((comm, operations, (around, late), how)) = carried else { return };
        let family = comms.family(canvas, span.start, comm);
        has_ended(canvas, comms, not_done, span, comm, (operations, how.1.is_some()));
        comms::ran(canvas, family, span, comm, (operations, around, late), how);
        if let Some(speed) = speed {
            comms.sped(canvas, span, comm, speed);
        }
    }
}

/// The kernel of these operations has ended.
fn has_ended(
    canvas: &mut Canvas,
    comms: &mut Comms,
    not_done: &mut NotDone,
    span: Span,
    comm: &Comm,
    (operations, is_replay): (&[Arc<Operation>], bool),
) {
    for operation in operations {
        // An operation of a replayed graph may have been handed over long before.
        let since = if is_replay { span.start } else { operation.since };
        comms.took(comm, span.end.since(since));
        if comms.done(canvas, span.end, comm, operation.id) {
            not_done.untold_done(canvas, comm.context, span.end);
        }
    }
}
