//! Host threads: one track per thread, on which the application's calls, launches and hand-overs
//! nest.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::args::Args;
use super::canvas::Canvas;
use super::fields::nccl;
use super::flows;
use super::lanes::{FamilyId, Look, Placing};
use super::names::Fixed;
use super::words::{Category, instant};
use super::writer::{Extra, Form, Name, Place, Sequence, Track, Writer};
use crate::model::event::Kind;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Thread, ThreadId};

/// Threads that are remembered after their end, for late events.
const ENDED: usize = 256;
/// Threads that get tracks of their own.
const OWN: usize = 512;
/// The most arrows to one launch: it may carry thousands of sends and receives.
const ARROWS: usize = 64;

/// The threads that called NCCL.
#[derive(Default)]
pub(super) struct Threads {
    threads: FxHashMap<ThreadId, HostThread>,
    /// Threads that have ended, oldest first.
    ended: VecDeque<ThreadId>,
    /// The thread of each open call.
    calls: FxHashMap<Handle, ThreadId>,
    /// How many got tracks of their own so far, how many did not, and the tracks that those share.
    own: usize,
    pub(super) sharing: u64,
    others: Option<FamilyId>,
    /// Tracks of threads that have not called NCCL yet, by the system's thread id.
    early: FxHashMap<i32, Track>,
}

struct HostThread {
    tid: i32,
    name: String,
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

/// A KernelLaunch that may carry out several calls. Its end is written once it is known which.
struct Launched {
    end: HostNs,
    /// The arrows from these calls.
    calls: Vec<u64>,
    /// The begin of the hand-over with its arguments. It waits, too, because a track must be
    /// written in order of time.
    group: Option<(HostNs, Args)>,
}

struct Call {
    id: Handle,
    kind: Kind,
    begin: HostNs,
    /// Its number in the summary, if it asks for an operation.
    sum: Option<u32>,
    /// It is a launch, and a hand-over will say what it carries.
    waits: bool,
    /// After which restart of the trace it was begun.
    restart: u32,
}

/// A call that begins.
pub(super) struct NewCall<'a> {
    pub(super) id: Handle,
    pub(super) kind: Kind,
    pub(super) time: HostNs,
    /// The calls that it may carry out.
    pub(super) asked_by: &'a [Handle],
    pub(super) name: &'a dyn Name,
    /// Its number in the summary, if it asks for an operation.
    pub(super) sum: Option<u32>,
}

impl Threads {
    pub(super) fn add(&mut self, thread: Thread<'_>) {
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

    /// Whether a call is open that was begun before the last restart of the trace, of which there
    /// were this many.
    pub(super) fn has_old(&self, restarts: u32) -> bool {
        self.threads.values().flat_map(|thread| thread.stack.first()).any(|call| call.restart != restarts)
    }

    /// A thread's system id and its name.
    pub(super) fn get(&self, id: ThreadId) -> Option<(i32, &str)> {
        self.threads.get(&id).map(|thread| (thread.tid, &*thread.name))
    }

    /// The threads that have or had this system id.
    pub(super) fn with_number(&self, tid: i32) -> impl Iterator<Item = ThreadId> {
        self.threads.iter().filter(move |(_, thread)| thread.tid == tid).map(|(id, _)| *id)
    }

    /// A thread has ended; what was open on it ends with it. The thread that ended longest ago is
    /// forgotten and returned.
    pub(super) fn ended(&mut self, canvas: &mut Canvas, id: ThreadId, time: HostNs) -> Option<ThreadId> {
        self.end_launch(canvas, id);
        if let Some(thread) = self.threads.get_mut(&id)
            && let Some(on) = thread.track
        {
            cut(canvas.writer(), &mut self.calls, on, &mut thread.stack, 0, time.max(thread.last));
        }
        self.ended.push_back(id);
        if self.ended.len() <= ENDED {
            return None;
        }
        let oldest = self.ended.pop_front()?;
        self.threads.remove(&oldest);
        Some(oldest)
    }

    /// Writes the ends of all launches that wait for their hand-over.
    pub(super) fn finish(&mut self, canvas: &mut Canvas) {
        for thread in self.threads.keys().copied().collect::<Vec<_>>() {
            self.end_launch(canvas, thread);
        }
    }

    /// Writes the end of a thread's launch that waited for its hand-over.
    fn end_launch(&mut self, canvas: &mut Canvas, id: ThreadId) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        if let (Some((sequence, track)), Some(Launched { end, calls, group })) = (thread.track, thread.launched.take())
        {
            canvas.writer().end(sequence, track, end, &Extra { flows: &calls, ..Extra::default() });
            if let Some((begin, args)) = group {
                let extra = Extra { args: args.bytes(), ..Extra::default() };
                canvas.writer().begin(sequence, track, begin, Category::Api, &Fixed(Kind::Group.name()), &extra);
            }
        }
    }

    fn track(&mut self, canvas: &mut Canvas, id: ThreadId, time: HostNs) -> Option<(Sequence, Track)> {
        let thread = self.threads.get_mut(&id)?;
        if thread.track.is_none() && (self.own >= OWN || !canvas.lanes.is_roomy()) {
            self.sharing += u64::from(!std::mem::replace(&mut thread.shares, true));
            return None;
        }
        if thread.track.is_none() {
            let form = Form::Thread { pid: canvas.processes.pid, tid: thread.tid, name: &thread.name };
            let known = self.early.remove(&thread.tid);
            let track = known.or_else(|| canvas.writer().track(form, Place::default()))?;
            thread.track = Some((canvas.writer().sequence(track, time), track));
            self.own += 1;
        }
        thread.track
    }

    /// The track of the thread that last had this id, even if it never called NCCL.
    pub(super) fn track_of(&mut self, canvas: &mut Canvas, tid: i32, name: &str, time: HostNs) -> Option<Track> {
        let last = self.with_number(tid).max();
        if let Some((_, track)) = last.and_then(|id| self.track(canvas, id, time)) {
            return Some(track);
        }
        let form = Form::Thread { pid: canvas.processes.pid, tid, name };
        let track = canvas.writer().track(form, Place::default())?;
        self.early.insert(tid, track);
        Some(track)
    }

    /// Begins a call, with the arguments in [`Canvas::args`].
    pub(super) fn begin(&mut self, canvas: &mut Canvas, thread_id: ThreadId, call: &NewCall<'_>) {
        let &NewCall { id, kind, time, asked_by, name, sum } = call;
        let Some((sequence, track)) = self.track(canvas, thread_id, time) else {
            return self.begin_elsewhere(canvas, thread_id, call);
        };
        // The hand-over follows a launch immediately, or happens on another thread.
        let hands_over = self.threads.get(&thread_id).is_some_and(|thread| {
            let waits = thread.launched.as_ref().is_some_and(|launched| launched.group.is_none());
            waits && kind == Kind::Group && thread.stack.iter().all(|call| call.kind != kind)
        });
        if !hands_over {
            self.end_launch(canvas, thread_id);
        }
        let Some(thread) = self.threads.get_mut(&thread_id) else { return };
        let time = time.max(thread.last);
        // A kind of call never contains itself, and a group of calls is never inside another call:
        // one that is still open has lost its stop.
        let still_open =
            if kind == Kind::GroupApi { Some(0) } else { thread.stack.iter().position(|call| call.kind == kind) };
        if let Some(keep) = still_open {
            cut(canvas.writer(), &mut self.calls, (sequence, track), &mut thread.stack, keep, time);
        }
        thread.last = time;
        let restart = canvas.lanes.writer.restarts();
        thread.stack.push(Call { id, kind, begin: time, sum, waits: asked_by.len() > 1, restart });
        self.calls.insert(id, thread_id);
        // From a call to its launch and to the operation it asks for, and from a launch to its
        // kernel.
        let arrows = [flows::from(id), asked_by.first().map_or(0, |call| flows::from(*call))];
        let flows = match kind {
            Kind::KernelLaunch if asked_by.len() == 1 => &arrows[..],
            Kind::CollApi | Kind::P2pApi | Kind::CeColl | Kind::KernelLaunch => &arrows[..1],
            _ => &[],
        };
        if let Some(launched) = thread.launched.as_mut() {
            launched.group = Some((time, std::mem::take(&mut canvas.args)));
            return;
        }
        let extra = Extra { args: canvas.args.bytes(), flows, ..Extra::default() };
        canvas.lanes.writer.begin(sequence, track, time, Category::Api, name, &extra);
    }

    /// A call on a thread without a track of its own.
    fn begin_elsewhere(&mut self, canvas: &mut Canvas, thread: ThreadId, call: &NewCall<'_>) {
        let Some(thread) = self.threads.get(&thread) else {
            canvas.lanes.missing += 1;
            return;
        };
        let family = *self.others.get_or_insert_with(|| {
            let description = "Calls of threads that have no track of their own, because there are too many; the \
                               thread is an argument.";
            let place = Placing { parent: canvas.processes.track(), rank: 0, description };
            canvas.lanes.shared_family("other threads".into(), place)
        });
        canvas.args.int(nccl::TID, thread.tid);
        canvas.begin(family, call.id, call.time, &Look::new(Category::Api, call.name));
    }

    /// A hand-over on this thread shows that its launch carried this call.
    pub(super) fn carries(&mut self, thread: ThreadId, call: Handle) {
        if let Some(launched) = self.threads.get_mut(&thread).and_then(|thread| thread.launched.as_mut())
            && !call.is_none()
            && launched.calls.len() < ARROWS
        {
            launched.calls.push(flows::from(call));
        }
    }

    /// Ends a call. A group's end states when its start returned and when its end was called.
    pub(super) fn end(&mut self, canvas: &mut Canvas, id: Handle, time: HostNs, marks: [Option<HostNs>; 2]) {
        canvas.args.clear();
        // Absent if it was already cut, by the end of the enclosing call or by a later one, or if
        // its thread shares a track.
        let thread_id = self.calls.remove(&id).filter(|id| self.threads.contains_key(id));
        let Some(thread_id) = thread_id else {
            canvas.end(id, time);
            return;
        };
        self.end_launch(canvas, thread_id);
        let Some(thread) = self.threads.get_mut(&thread_id) else { return };
        let Some(on) = thread.track else { return };
        let Some(index) = thread.stack.iter().rposition(|call| call.id == id) else { return };
        let time = time.max(thread.last);
        thread.last = time;
        cut(canvas.writer(), &mut self.calls, on, &mut thread.stack, index + 1, time);
        if let Some(call) = thread.stack.pop() {
            if call.waits {
                thread.launched = Some(Launched { end: time, calls: Vec::new(), group: None });
                return;
            }
            if let Some(sum) = call.sum {
                canvas.summary.called(sum, time.since(call.begin));
            }
            canvas.args.group_marks(call.begin, marks);
            let extra = Extra { args: canvas.args.bytes(), ..Extra::default() };
            canvas.lanes.writer.end(on.0, on.1, time, &extra);
        }
    }

    /// An event of a newer NCCL.
    pub(super) fn unknown(&mut self, canvas: &mut Canvas, id: ThreadId, time: HostNs, bits: u64) {
        canvas.args.clear().uint(nccl::UNKNOWN, bits);
        let time = self.threads.get(&id).map_or(time, |thread| time.max(thread.last));
        self.end_launch(canvas, id);
        if let Some((sequence, track)) = self.track(canvas, id, time) {
            let extra = Extra { args: canvas.args.bytes(), ..Extra::default() };
            let name = Fixed(instant::UNKNOWN_EVENT);
            canvas.lanes.writer.instant(sequence, track, time, Category::Api, &name, &extra);
        }
    }
}

/// Ends the calls above the first `keep`: their stop was lost, or came after that of the enclosing
/// call.
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
        args.text(nccl::DOUBT, "no stop before the end of the enclosing call");
        writer.end(sequence, track, time, &Extra { args: args.bytes(), ..Extra::default() });
    }
}
