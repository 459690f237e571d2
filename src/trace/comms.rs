//! Communicators: the tracks of their operations while they are handed over and while they run,
//! their bandwidth, and how many operations are outstanding.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::args::Args;
use super::canvas::Canvas;
use super::counters::{Bandwidth, Counter, Speed};
use super::fields::nccl;
use super::flows;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{self, Fixed, OperationName};
use super::outstanding::Outstanding;
use super::words::{Category, attribute, instant, track};
use super::writer::{Place, Unit, Writer};
use crate::model::activity::Span;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Around, Comm, Late, Method, Operation};
use crate::summary::{Facts, Summary};

/// Lanes of one communicator.
const LANES: usize = 16;
/// Communicators that get tracks of their own.
const OWN: usize = 256;
/// Finalized communicators that are remembered for late events: more than the correlator remembers.
const ENDED: usize = 512;
/// Roughly how many operations under way are remembered over all communicators: those whose facts
/// are kept, and all of a communicator without known kernels.
const REMEMBERED: usize = 16 << 10;

/// The communicators of a trace.
#[derive(Default)]
pub(super) struct Comms {
    pub(super) drawn: FxHashMap<Handle, DrawnComm>,
    /// The finalized ones, oldest first.
    ended: VecDeque<Handle>,
    /// Short names of communicators that have tracks.
    labels: FxHashSet<String>,
    /// How many have no tracks of their own, and the families they share: while operations run,
    /// while they are handed over, and for overdue ones.
    pub(super) sharing: u64,
    others: [Option<FamilyId>; 3],
    /// As shown on the overview page.
    nccl_version: u32,
}

pub(super) struct DrawnComm {
    init: HostNs,
    /// Its identity, once it is known.
    pub(super) comm: Option<Arc<Comm>>,
    /// Its tracks, once something is drawn on them.
    family: Option<FamilyId>,
    /// Its short name, unique within the process: the viewer would merge tracks with equal names.
    label: String,
    /// Its tracks for operations being handed over, made in the same way.
    handed_over: Option<FamilyId>,
    /// Its tracks for overdue operations, made in the same way.
    pub(super) not_done: Option<FamilyId>,
    speed: Option<Speed>,
    pub(super) outstanding: Outstanding,
    /// When the last of its kernels ended.
    pub(super) ran: HostNs,
    /// The newest collective of each function.
    newest: Vec<Newest>,
    pace: Pace,
}

/// How long a communicator's operations and pauses were at most, ns.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When something was last handed over; 0 if nothing was.
    last: HostNs,
    gap: u64,
    run: u64,
}

impl Pace {
    fn handed_over(&mut self, time: HostNs) {
        if self.last != HostNs(0) {
            self.gap = self.gap.max(time.since(self.last));
        }
        self.last = time;
    }

    fn write(self, args: &mut Args) {
        args.nonzero(nccl::LONGEST_GAP_NS, self.gap).nonzero(nccl::LONGEST_RUN_NS, self.run);
    }
}

/// A collective, and when it was handed over.
struct Newest {
    time: HostNs,
    operation: Arc<Operation>,
    /// The file shows it.
    is_drawn: bool,
}

/// The tracks of a communicator, in display order.
#[derive(Clone, Copy)]
enum Slot {
    Run,
    HandedOver,
    BusBandwidth,
    AlgorithmBandwidth,
    Outstanding,
    NotDone,
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
            ran: HostNs(0),
            newest: Vec::new(),
            pace: Pace::default(),
        }
    }

    /// Writes what its counters held back.
    fn flush(&mut self, writer: &mut Writer) {
        self.speed.iter_mut().for_each(|speed| speed.flush(writer));
        self.outstanding.flush(writer);
    }
}

impl Comms {
    pub(super) fn init(&mut self, canvas: &mut Canvas, time: HostNs, comm: &Comm) {
        if comm.version > 0 && self.nccl_version != comm.version {
            self.nccl_version = comm.version;
            let rccl = if comm.timer.is_rccl() { " (RCCL)" } else { "" };
            let version = format!("{}{rccl}", names::nccl_version(comm.version));
            canvas.attributes(&[(attribute::NCCL_VERSION, &version)]);
        }
        self.drawn.entry(comm.context).or_insert(DrawnComm::new(time));
        // Up to interface v3 the identity comes with the first operation: the track waits for its
        // name.
        if comm.hash != 0 || comm.interface > 3 {
            self.family(canvas, time, comm);
        }
    }

    pub(super) fn finalize(&mut self, canvas: &mut Canvas, time: HostNs, comm: &Comm) {
        let family = self.family(canvas, time, comm);
        canvas.args.clear().comm(comm);
        canvas.aloud(|canvas| canvas.instant(family, time, Category::Operation, &Fixed(instant::COMM_FINALIZE)));
    }

    /// A communicator was finalized. The one that was finalized longest ago is forgotten, so that a
    /// job may make as many as it likes.
    pub(super) fn ended(&mut self, canvas: &mut Canvas, context: Handle) {
        self.ended.push_back(context);
        if self.ended.len() > ENDED
            && let Some(oldest) = self.ended.pop_front()
            && let Some(mut drawn) = self.drawn.remove(&oldest)
        {
            drawn.flush(canvas.writer());
        }
    }

    /// Writes what their counters held back.
    pub(super) fn flush(&mut self, canvas: &mut Canvas) {
        self.drawn.values_mut().for_each(|drawn| drawn.flush(canvas.writer()));
    }

    /// Draws the collectives that were handed over last, as far as they were not drawn.
    pub(super) fn draw_newest(&mut self, canvas: &mut Canvas) {
        self.newest(canvas, |newest| !newest.is_drawn);
    }

    /// Draws each communicator, and the collectives that were handed over last: what a reader that
    /// begins here has to know of them.
    pub(super) fn draw_all(&mut self, canvas: &mut Canvas) {
        let mut silent: Vec<_> = self.drawn.values().filter(|drawn| drawn.newest.is_empty()).collect();
        silent.sort_by_key(|drawn| drawn.comm.as_ref().map(|comm| comm.number));
        for DrawnComm { init, family, comm, pace, .. } in silent {
            let (Some(family), Some(comm)) = (family, comm) else { continue };
            // Another tool's file does not say what was handed over.
            if comm.interface == 0 || canvas.lanes.is_shared(*family) {
                continue;
            }
            pace.write(canvas.args.clear().comm(comm));
            canvas.aloud(|canvas| canvas.instant(*family, *init, Category::Newest, &Fixed(instant::NO_COLLECTIVE)));
        }
        self.newest(canvas, |_| true);
    }

    fn newest(&mut self, canvas: &mut Canvas, is_wanted: impl Fn(&Newest) -> bool) {
        let is_wanted = &is_wanted;
        let newest = self.drawn.values_mut().flat_map(|drawn| {
            let (comm, pace) = (drawn.comm.clone(), drawn.pace);
            drawn.newest.iter_mut().filter(|newest| is_wanted(newest)).filter_map(move |newest| {
                newest.is_drawn = true;
                Some((newest.time, Arc::clone(&newest.operation), comm.clone()?, pace))
            })
        });
        // A fixed order, whatever the order of the map.
        let mut newest: Vec<_> = newest.collect();
        newest.sort_by_key(|(time, operation, ..)| (*time, operation.id));
        for (time, operation, comm, pace) in newest {
            let family = self.handed_over(canvas, time, &comm);
            pace.write(canvas.args.clear().operation(&operation).comm(&comm));
            let name = OperationName { operation: &operation, prefix: "" };
            let look = Look::new(Category::Newest, &name).of(operation.correlation(Some(&comm)));
            canvas.aloud(|canvas| canvas.mark(family, time, &look));
        }
    }

    /// A communicator's short name, even before its track exists; `None` if it has no tracks of its
    /// own.
    pub(super) fn label(&mut self, canvas: &mut Canvas, comm: &Comm) -> Option<String> {
        let init = self.drawn.get(&comm.context).map_or(HostNs(0), |drawn| drawn.init);
        let family = self.family(canvas, init, comm);
        let drawn = self.drawn.get(&comm.context).filter(|_| !canvas.lanes.is_shared(family))?;
        Some(drawn.label.clone())
    }

    /// The communicator's tracks; its initialisation is their first event.
    pub(super) fn family(&mut self, canvas: &mut Canvas, time: HostNs, comm: &Comm) -> FamilyId {
        let drawn = self.drawn.entry(comm.context).or_insert(DrawnComm::new(time));
        if let Some(family) = drawn.family {
            return family;
        }
        let init = drawn.init;
        let (family, label) = match self.labels.len() < OWN && canvas.lanes.is_roomy() {
            true => self.own_family(canvas, comm),
            false => {
                self.sharing += 1;
                (self.others(canvas, 0), String::new())
            }
        };
        if let Some(drawn) = self.drawn.get_mut(&comm.context) {
            (drawn.family, drawn.label) = (Some(family), label);
            drawn.comm.get_or_insert_with(|| Arc::new(comm.clone()));
        }
        let mut args = Args::new();
        args.comm(comm);
        canvas.aloud(|canvas| {
            canvas.lanes.instant(family, init, Category::Operation, &Fixed(instant::COMM_INIT), &args);
        });
        canvas.summary.comm_init(init, &Facts::of(args.bytes()));
        family
    }

    /// New tracks for a communicator, and its short name.
    fn own_family(&mut self, canvas: &mut Canvas, comm: &Comm) -> (FamilyId, String) {
        let place = Placing {
            parent: canvas.comms_group(comm.device),
            rank: rank(comm, Slot::Run),
            description: "Operations while the GPU works on them: from the start of their kernel to its end, by CUPTI.",
        };
        let mut label = names::short_comm(comm, canvas.processes.world());
        if self.labels.contains(&label) {
            label = format!("{label} #{}", comm.number);
        }
        self.labels.insert(label.clone());
        (canvas.lanes.family(names::comm(&label, comm), place, LANES), label)
    }

    /// The tracks that communicators without tracks of their own share: for running operations, for
    /// those being handed over, or for overdue ones.
    fn others(&mut self, canvas: &mut Canvas, which: usize) -> FamilyId {
        let parent = canvas.comms_group(None);
        let (name, description) = [
            (
                "other communicators",
                "Operations of communicators that have no tracks of their own, because there are too many, while \
                 the GPU works on them. The communicator is an argument.",
            ),
            (
                "other communicators · handed over",
                "The same while NCCL hands them over to the GPU and the proxy, on the host.",
            ),
            ("other communicators · not done", "Overdue operations of these communicators."),
        ][which];
        *self.others[which].get_or_insert_with(|| {
            let rank = (u32::MAX >> 2) + which as u32;
            canvas.lanes.shared_family(name.into(), Placing { parent, rank, description })
        })
    }

    /// The tracks of a communicator's operations while they are handed over.
    pub(super) fn handed_over(&mut self, canvas: &mut Canvas, time: HostNs, comm: &Comm) -> FamilyId {
        let family = self.family(canvas, time, comm);
        if canvas.lanes.is_shared(family) {
            return self.others(canvas, 1);
        }
        let parent = canvas.comms_group(comm.device);
        let drawn = self.drawn.entry(comm.context).or_insert(DrawnComm::new(time));
        *drawn.handed_over.get_or_insert_with(|| {
            let place = Placing {
                parent,
                rank: rank(comm, Slot::HandedOver),
                description: "Operations while NCCL hands them over to the GPU and the proxy, on the host.",
            };
            let name = names::comm(&drawn.label, comm) + track::HANDED_OVER;
            canvas.lanes.family(name, place, LANES)
        })
    }

    /// The tracks of operations whose communicator is unknown or belongs to another process.
    pub(super) fn unknown(&mut self, canvas: &mut Canvas) -> FamilyId {
        let parent = canvas.comms_group(None);
        let drawn = self.drawn.entry(Handle::NONE).or_insert(DrawnComm::new(HostNs(0)));
        *drawn.family.get_or_insert_with(|| {
            let place = Placing { parent, rank: u32::MAX >> 1, description: "Operations of unknown communicators." };
            canvas.lanes.family("unknown communicator".into(), place, LANES)
        })
    }

    /// A communicator's tracks for overdue operations, made with the first one.
    pub(super) fn not_done(
        &mut self,
        canvas: &mut Canvas,
        context: Handle,
        description: &'static str,
    ) -> Option<FamilyId> {
        let drawn = self.drawn.get_mut(&context)?;
        if drawn.family.is_some_and(|family| canvas.lanes.is_shared(family)) {
            return Some(self.others(canvas, 2));
        }
        if drawn.not_done.is_none() {
            let comm = drawn.comm.as_ref()?;
            let place =
                Placing { parent: canvas.comms_group(comm.device), rank: rank(comm, Slot::NotDone), description };
            let name = names::comm(&drawn.label, comm) + track::NOT_DONE;
            drawn.not_done = Some(canvas.lanes.family(name, place, LANES));
        }
        drawn.not_done
    }

    /// An operation was handed over. It is outstanding until its kernel has ended. With `may_hang`
    /// it is remembered, since it may have to be shown as overdue.
    pub(super) fn handed(
        &mut self,
        canvas: &mut Canvas,
        time: HostNs,
        comm: &Comm,
        operation: &Arc<Operation>,
        may_hang: bool,
    ) {
        let most = REMEMBERED / self.drawn.len().max(1);
        if let Some(drawn) = self.drawn.get_mut(&comm.context)
            && drawn.family.is_some_and(|family| !canvas.lanes.is_shared(family))
        {
            drawn.outstanding.begin(operation.id, time, Some(operation).filter(|_| may_hang), most);
            drawn.outstanding.settle(canvas.writer(), time);
            drawn.pace.handed_over(time);
            if operation.seq().is_some() {
                let newest = Newest { time, operation: Arc::clone(operation), is_drawn: !canvas.is_full };
                match drawn.newest.iter_mut().find(|newest| newest.operation.func() == operation.func()) {
                    Some(known) => *known = newest,
                    None => drawn.newest.push(newest),
                }
            }
        }
    }

    /// From the hand-over of an operation to the end of its kernel, it took this long.
    pub(super) fn took(&mut self, comm: &Comm, ns: u64) {
        if let Some(drawn) = self.drawn.get_mut(&comm.context) {
            drawn.pace.run = drawn.pace.run.max(ns);
        }
    }

    /// An operation's kernel has ended. Returns whether its communicator has tracks of its own.
    pub(super) fn done(&mut self, canvas: &mut Canvas, end: HostNs, comm: &Comm, operation: Handle) -> bool {
        let parent = canvas.comms_group(comm.device);
        let Some(drawn) = self.drawn.get_mut(&comm.context) else { return false };
        drawn.ran = drawn.ran.max(end);
        if drawn.family.is_none_or(|family| canvas.lanes.is_shared(family)) {
            return false;
        }
        if !drawn.outstanding.is_drawn() {
            let description = "Operations that NCCL has handed over and the GPU has not finished, according to \
                               their kernels. An operation whose kernel is not known counts until a later one has \
                               ended.";
            let place = Place { parent, rank: Some(rank(comm, Slot::Outstanding)), description, ..Place::default() };
            let name = format!("outstanding · {}", names::comm(&drawn.label, comm));
            let counter = Counter::new(canvas.writer(), &name, Unit::Named("operations"), place, drawn.init);
            drawn.outstanding.draw(counter);
        }
        drawn.outstanding.end(operation, end);
        drawn.outstanding.settle(canvas.writer(), end);
        true
    }

    /// A kernel of this communicator ran with this bandwidth.
    pub(super) fn sped(&mut self, canvas: &mut Canvas, span: Span, comm: &Comm, bandwidth: Bandwidth) {
        let family = self.family(canvas, span.start, comm);
        if canvas.lanes.is_shared(family) {
            // The arguments of its kernels still have the bandwidth.
            return;
        }
        let parent = canvas.comms_group(comm.device);
        let Some(drawn) = self.drawn.get_mut(&comm.context) else { return };
        let label = &drawn.label;
        let writer = canvas.writer();
        let speed = drawn.speed.get_or_insert_with(|| {
            let mut counter = |slot, of, description| {
                let place = Place { parent, rank: Some(rank(comm, slot)), description, ..Place::default() };
                let name = format!("{of} · {}", names::comm(label, comm));
                Counter::new(writer, &name, Unit::Named("B/s"), place, span.start)
            };
            let algorithm = "Algorithm bandwidth: bytes of the operations per second of kernel time, as in nccl-tests.";
            let bus = "Bus bandwidth: bytes that each link has to carry for them per second of kernel time, as in \
                 nccl-tests.";
            Speed::new([
                counter(Slot::AlgorithmBandwidth, "algbw", algorithm),
                counter(Slot::BusBandwidth, "busbw", bus),
            ])
        });
        speed.ran(writer, span.start, span.end, bandwidth);
    }
}

/// Draws operations of a communicator while their kernel ran, each with the ranges around its call
/// and its wait for the proxy. All of them are drawn, because a query for an operation expects its
/// run.
pub(super) fn ran(
    canvas: &mut Canvas,
    family: FamilyId,
    span: Span,
    comm: &Comm,
    (operations, around, late): (&[Arc<Operation>], &[Around], &[Option<Late>]),
    (method, replay): (Method, Option<u64>),
) {
    for (place, operation) in operations.iter().enumerate() {
        canvas.args.clear().operation(operation).of_comm(Some(comm)).matched_by(method).around(around.get(place));
        match replay {
            Some(replay) => canvas.args.uint(nccl::REPLAY, replay),
            // A file of another tool may not say since when an operation was queued.
            None if operation.since == HostNs(0) => &mut canvas.args,
            // NCCL's report may be of another replay.
            None => canvas.args.uint(nccl::QUEUED_NS, span.start.since(operation.since)),
        };
        canvas.args.time_error(span.error_ns);
        if operations.len() > 1 {
            canvas.args.uint(nccl::OPERATIONS, operations.len() as u64);
        }
        // A match that is wrong says nothing about the proxy.
        let late = late.get(place).copied().flatten().filter(|_| method != Method::Contradicted);
        canvas.args.known(nccl::PROXY_WAIT_NS, late.map(|late| late.begun.since(span.start)));
        let run = canvas.add_up(Summary::run);
        let name = OperationName { operation, prefix: "" };
        let arrow = Some(operation.id).filter(|id| !id.is_none() && method != Method::Contradicted).map(flows::from);
        let look = Look::new(Category::Run, &name).of(operation.correlation(Some(comm))).with(arrow.as_slice());
        let phase = late.map(|late| (names::late(late.why), late.begun));
        let is_drawn = canvas.whole(family, (span.start, span.end), &Look { phase, ..look });
        if let Some(run) = run {
            canvas.summary.ran(&run, span.start, is_drawn.then(|| span.end.since(span.start)));
        }
    }
}

/// The rank of one of a communicator's tracks among those of all communicators.
fn rank(comm: &Comm, slot: Slot) -> u32 {
    comm.number.min(u32::MAX >> 5) << 3 | slot as u32
}
