//! Overdue operations: a track of its own shows those of a communicator that should have ended. In a job that hangs they stay
//! open, also where no proxy is at work that would show it: between the GPUs of one host.
//!
//! An operation is done when its kernel has ended, or that of a later one of its communicator; or when all has ended that
//! NCCL's proxy and channels were doing for it. CUPTI holds back the record of a kernel that still runs, and with it the
//! records of kernels that ended before it. So where a communicator stands still, CUPTI is made to return everything, once:
//! what had ended is known then, and so is what had not. That costs the records of the kernels that are under way, which a
//! job that hangs does not miss. One that only paused does; so each pause doubles the time until the next flush.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fields::nccl;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{self, OperationName};
use super::outstanding::Overdue;
use super::tracks::{COMM_LANES, Tracks, comm_rank};
use super::writer::Category;
use crate::model::activity;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation};

const DESCRIPTION: &str = "Operations that should have ended and are not known to have, from their hand-over on; those of a \
                           graph from its launch on. The first one is what the others wait for.";
/// How long a communicator may stand still with an operation under way, ns.
const PATIENCE_NS: u64 = 3_000_000_000;
/// It is doubled so often at most: three minutes.
const DOUBLINGS: u32 = 6;
/// What ended on the GPU so shortly before a flush shows that it goes on, ns.
const RECENT_NS: u64 = 1_500_000_000;
/// How long a flush by force is waited for, ns.
const FLUSH_NS: u64 = 2_000_000_000;
/// Operations that were not handed over and are shown at a time.
const UNTOLD: usize = 64;
const NOT_ENDED: &str = "its kernel had not ended when CUPTI was flushed by force";
const NOT_SEEN: &str = "its kernel has not been seen to end: it may be done";
const MAY_BE_DONE: &str = "its kernel has not been seen to end, but kernels were lost or could not be matched in this process: it may be done";

/// What is known elsewhere of what is under way.
pub struct Evidence<'a> {
    /// When all that NCCL's proxy and channels did for an operation had ended.
    pub done: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// When the proxy or a channel last moved in a communicator.
    pub moved: &'a dyn Fn(Handle) -> Option<HostNs>,
    /// The first launch of which no kernel has been seen, and NCCL tells nothing else: of a graph, or of a broadcast.
    pub launch: Option<HostNs>,
}

/// What is known of a standstill.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    state: State,
    /// How often what stood still went on.
    pauses: u32,
    /// By device: the first kernel that had not ended, by the id of its launch; its name, where it is not NCCL's.
    first: BTreeMap<u32, (u32, Option<Arc<str>>)>,
    unfinished: u64,
    /// Operations that had not ended and were not handed over: not shown yet; and shown, with their communicator.
    untold: Vec<Untold>,
    shown: Vec<(Handle, Handle)>,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    /// All moves, as far as is known.
    #[default]
    Moving,
    /// CUPTI's buffers were asked for then.
    Asked(HostNs),
    /// They came, as they were then; or they did not come.
    Flushed(HostNs),
    Silent(HostNs),
}

/// An operation of which NCCL did not say that it was handed over: of a graph's replay, or a broadcast from 2.29 on.
#[derive(Debug)]
struct Untold {
    context: Handle,
    /// Which run of its graph, counted from 1.
    number: Option<u64>,
    /// When its graph was launched, or it was asked for.
    begin: HostNs,
    operation: Arc<Operation>,
}

impl Tracks {
    /// Whether the GPU's side of what is handed over from now on will be known.
    pub fn expect_kernels(&mut self, expected: bool, now: HostNs) {
        self.expects_kernels = expected;
        if !expected {
            for context in self.comms.keys().copied().collect::<Vec<_>>() {
                self.no_kernels_for(context, now, "from here on nothing is known of kernels");
            }
        }
    }

    /// Records of kernels were lost.
    pub fn kernels_lost(&mut self) {
        self.kernels_missing = true;
    }

    /// Whether CUPTI was asked for what has not ended, and has not answered.
    #[must_use]
    pub fn is_forcing(&self) -> bool {
        matches!(self.standstill.state, State::Asked(_) | State::Silent(_))
    }

    /// Comes once a second, in whatever state the job is; kernels are drawn up to `drawn`, as far as CUPTI has returned them.
    /// Answers whether CUPTI has to be made to return everything.
    pub fn tick(&mut self, now: HostNs, drawn: HostNs, evidence: &Evidence<'_>) -> bool {
        let patience = PATIENCE_NS << self.standstill.pauses.min(DOUBLINGS);
        let since = HostNs(drawn.0.saturating_sub(patience));
        let mut standing = Vec::new();
        let (mut moved, mut all_still) = (HostNs(0), true);
        for (context, comm) in &mut self.comms {
            comm.outstanding.settle(&mut self.lanes.writer, now);
            let last = comm.outstanding.moved().max((evidence.moved)(*context).unwrap_or(HostNs(0)));
            // Where none of its kernels is known, and others are not matched, its own may be among those.
            let is_known = comm.outstanding.is_drawn() || !self.kernels_missing;
            all_still &= last <= since;
            if is_known && last <= since && comm.outstanding.stands(since, evidence.done) {
                standing.push(*context);
                moved = moved.max(last);
            }
        }
        let launch = evidence.launch.filter(|launched| self.expects_kernels && all_still && *launched <= since);
        let Standstill { untold, shown, .. } = &self.standstill;
        let stands = !standing.is_empty() || launch.is_some() || !untold.is_empty() || !shown.is_empty();
        let moved = moved.max(launch.unwrap_or(HostNs(0)));
        let wish = self.standstill.tick(now, stands, moved);
        if matches!(self.standstill.state, State::Flushed(_) | State::Silent(_)) {
            self.show(&standing, since);
        }
        self.end_what_is_done();
        wish
    }

    /// CUPTI was made to return its buffers, as they were at `time`, and they have been taken; something last ended on the
    /// GPU at `moved`.
    ///
    /// Where that was just before, nothing stood: the host had only handed over enough for long, and CUPTI held back what
    /// had ended. What was under way has lost its record, and is not followed any more.
    pub fn flushed_by_force(&mut self, time: HostNs, note: &str, moved: HostNs) {
        self.standstill.state = State::Flushed(time);
        if moved.0 + RECENT_NS >= time.0 {
            self.standstill.untold.clear();
            self.comms.values_mut().for_each(|comm| comm.outstanding.forget_unfinished());
        }
        let unfinished = std::mem::take(&mut self.standstill.unfinished);
        self.note(time, "CUPTI flushed by force", &format!("{note}: {unfinished}"));
    }

    /// A kernel had not ended when CUPTI was made to return its record.
    pub(super) fn unfinished(
        &mut self,
        kernel: &activity::Unfinished,
        comm: Option<&Comm>,
        operations: &[Arc<Operation>],
        replay: Option<(u64, HostNs)>,
    ) {
        let standstill = &mut self.standstill;
        standstill.unfinished += 1;
        let name = comm.is_none().then(|| Arc::clone(&kernel.name));
        let first = standstill.first.entry(kernel.place.device).or_insert((kernel.correlation, name.clone()));
        if kernel.correlation < first.0 {
            *first = (kernel.correlation, name);
        }
        let Some(comm) = comm else { return };
        let Some(drawn) = self.comms.get_mut(&comm.context) else { return };
        for operation in operations {
            if replay.is_none() && drawn.outstanding.unfinished(operation.id) {
                continue;
            }
            drawn.comm.get_or_insert_with(|| Arc::new(comm.clone()));
            let (number, begin) = replay.unzip();
            let begin = begin.unwrap_or(operation.since);
            // Records come in no order. Of a graph's replays the first is the one that stands.
            if let Some(known) = standstill.untold.iter_mut().find(|it| it.operation.id == operation.id) {
                if number < known.number {
                    (known.number, known.begin) = (number, begin);
                }
            } else if standstill.untold.len() < UNTOLD {
                let (context, operation) = (comm.context, Arc::clone(operation));
                standstill.untold.push(Untold { context, number, begin, operation });
            }
        }
    }

    /// A kernel has ended by `now`, and nobody knows when. What it carried is not under way any more.
    pub(super) fn untimed(&mut self, now: HostNs, comm: Option<&Comm>, operations: &[Arc<Operation>]) {
        self.kernels_lost();
        let Some(comm) = comm else { return };
        if let Some(drawn) = self.comms.get_mut(&comm.context) {
            operations.iter().for_each(|operation| drawn.outstanding.end(operation.id, now));
        }
        self.untold_done(comm.context, now);
    }

    fn show(&mut self, standing: &[Handle], since: HostNs) {
        let mut overdue = Vec::new();
        for context in standing {
            let Some(comm) = self.comms.get_mut(context) else { continue };
            overdue.extend(comm.outstanding.overdue(since).map(|it| (*context, it)));
        }
        // In one order, whatever that of the map.
        overdue.sort_by_key(|(_, it)| (it.begin, it.operation.id));
        for (context, Overdue { begin, operation, is_unfinished }) in overdue {
            let doubt = match (is_unfinished, self.kernels_missing) {
                (true, _) => NOT_ENDED,
                (false, false) => NOT_SEEN,
                (false, true) => MAY_BE_DONE,
            };
            self.not_done(context, begin, &operation, None, doubt);
        }
        for Untold { context, number, begin, operation } in std::mem::take(&mut self.standstill.untold) {
            self.standstill.shown.push((context, operation.id));
            self.not_done(context, begin, &operation, number, NOT_ENDED);
        }
    }

    fn not_done(
        &mut self,
        context: Handle,
        begin: HostNs,
        operation: &Arc<Operation>,
        replay: Option<u64>,
        doubt: &str,
    ) {
        let Some(family) = self.not_done_family(context) else { return };
        let Some(comm) = self.comms.get(&context).and_then(|drawn| drawn.comm.clone()) else { return };
        self.args.clear().operation(operation).of_comm(Some(&comm)).text(nccl::DOUBT, doubt);
        if let Some(number) = replay {
            self.args.uint(nccl::REPLAY, number);
        }
        if let Some((_, Some(kernel))) = comm.device.and_then(|device| self.standstill.first.get(&device)) {
            self.args.text(nccl::NOTE, &format!("the GPU had not ended a kernel before it: {kernel}"));
        }
        let name = OperationName { operation, prefix: "" };
        let look = Look::new(Category::NotDone, &name).of(operation.correlation(Some(&comm)));
        self.lanes.begin(family, shown(operation.id), begin, &look, &mut self.args);
    }

    /// A communicator's tracks for them, made with the first.
    fn not_done_family(&mut self, context: Handle) -> Option<FamilyId> {
        let drawn = self.comms.get(&context)?;
        if drawn.not_done.is_some() {
            return drawn.not_done;
        }
        let (comm, label) = (drawn.comm.clone()?, drawn.label.clone());
        let place = Placing { parent: self.comms_group(&comm), rank: comm_rank(&comm, 5), description: DESCRIPTION };
        let family = self.lanes.family(format!("{} · not done", names::comm(&label, &comm)), place, COMM_LANES);
        self.comms.get_mut(&context)?.not_done = Some(family);
        Some(family)
    }

    /// Ends the slices of those whose end is known by now.
    pub(super) fn end_what_is_done(&mut self) {
        let mut ended: Vec<_> = self.comms.values_mut().flat_map(|drawn| drawn.outstanding.take_ended()).collect();
        ended.sort_unstable();
        self.args.clear();
        for (end, operation) in ended {
            self.lanes.end(shown(operation), end, &self.args);
        }
    }

    /// A kernel of a communicator has ended: what was shown of it before and was not handed over has ended, too.
    pub(super) fn untold_done(&mut self, context: Handle, end: HostNs) {
        let State::Flushed(flushed) = self.standstill.state else { return };
        if end < flushed || self.standstill.shown.is_empty() {
            return;
        }
        let done: Vec<_> = self.standstill.shown.extract_if(.., |(of, _)| *of == context).collect();
        self.args.clear();
        done.iter().for_each(|(_, operation)| self.lanes.end(shown(*operation), end, &self.args));
    }

    /// What is under way in a communicator will not be known to end.
    pub(super) fn no_kernels_for(&mut self, context: Handle, now: HostNs, why: &str) {
        let Some(drawn) = self.comms.get_mut(&context) else { return };
        let mut given_up = drawn.outstanding.give_up();
        self.standstill.untold.retain(|it| it.context != context);
        given_up.extend(self.standstill.shown.extract_if(.., |(of, _)| *of == context).map(|(_, operation)| operation));
        for operation in given_up {
            self.args.clear().text(nccl::DOUBT, why);
            self.lanes.end(shown(operation), now, &self.args);
        }
    }

    /// An operation of `comm` was handed over, which may have to be shown.
    pub(super) fn may_hang(&self, comm: &Comm) -> bool {
        // Up to interface v4 NCCL does not tell what is captured into a graph, and so runs later or never.
        self.expects_kernels && comm.interface >= 5
    }
}

impl Standstill {
    /// Something `stands` still, or nothing does; what stands last moved then. Whether CUPTI has to be flushed by force.
    fn tick(&mut self, now: HostNs, stands: bool, moved: HostNs) -> bool {
        self.state = match self.state {
            State::Moving if stands => State::Asked(now),
            State::Asked(asked) if now.since(asked) > FLUSH_NS => State::Silent(asked),
            State::Flushed(_) | State::Silent(_) if !stands => {
                self.pauses += 1;
                State::Moving
            }
            // Something else came to stand, of which the flush told nothing.
            State::Flushed(flushed) | State::Silent(flushed) if moved > flushed => State::Asked(now),
            _ => return false,
        };
        let wish = matches!(self.state, State::Asked(_));
        if wish {
            self.first.clear();
        }
        wish
    }
}

/// The number of an operation's slice: the operation's, with a bit that no counter of events reaches, because its hand-over has that one.
fn shown(operation: Handle) -> Handle {
    Handle(operation.0 | 1 << (Handle::COUNTER_BITS - 1))
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use super::*;
    use crate::model::activity::{Kernel, Place, Span};
    use crate::model::event::{self, Event};
    use crate::model::ids::ProcessTag;
    use crate::model::timeline::{Entry, Method, Owner, ThreadId, Unmatched, What};
    use crate::model::word::Word;
    use crate::trace::reader;
    use crate::trace::reader::proto::perfetto::protos::track_event::Type;
    use crate::trace::tracks::{Figures, ProcessInfo};
    use crate::trace::writer::Clocks;

    const SECOND: u64 = 1_000_000_000;

    /// A recording in which one communicator's operations are numbered by their handles.
    struct Job {
        tracks: Tracks,
        comm: Comm,
    }

    impl Job {
        fn new() -> Job {
            let process =
                ProcessInfo { pid: 1, name: "rank 0".into(), labels: Vec::new(), rank: Some(0), world_size: None };
            let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
            let mut tracks = Tracks::new(ProcessTag::from_random(42), clocks, &process);
            tracks.expect_kernels(true, HostNs(0));
            let name = Some("dp".into());
            let (context, number, hash, rank, ranks, nodes) = (Handle(1), 1, 7, 0, 2, 1);
            let comm =
                Comm { context, number, hash, name, rank, ranks, nodes, interface: 6, version: 23_007, device: None };
            Job { tracks, comm }
        }

        fn operation(number: u64) -> Arc<Operation> {
            let coll = event::Coll { seq: number, func: Word::ALL_REDUCE, ..event::Coll::default() };
            let (id, since) = (Handle(number), HostNs(0));
            Arc::new(Operation { id, since, asked: None, event: Event::Coll(coll), texts: None, p2p_number: 0 })
        }

        fn draw(&mut self, time: u64, what: What<'_>) {
            self.tracks.draw(&Entry { time: HostNs(time), what });
        }

        fn hand_over(&mut self, number: u64, time: u64) {
            let (id, operation, comm) = (Handle(number), Job::operation(number), self.comm.clone());
            let (thread, call, comm) = (ThreadId(0), Handle::NONE, Some(&comm));
            let what =
                What::OperationBegin { id, thread, call, comm, operation: &operation, replay: None, doubt: None };
            self.draw(time, what);
            self.draw(time + 10, What::OperationEnd { id });
        }

        fn ran(&mut self, number: Option<u64>, end: u64) {
            let kernel = Kernel {
                span: Span { start: HostNs(end - 100), end: HostNs(end), error_ns: 0 },
                place: Place { device: 0, context: 1, stream: 7 },
                correlation: 0,
                graph_node: 0,
                graph: 0,
                grid: [1; 3],
                block: [1; 3],
                name: "ncclDevKernel".into(),
            };
            let (operations, comm) = (number.map(Job::operation), self.comm.clone());
            let owner = match &operations {
                None => Owner::Unmatched(Unmatched::UnknownNode),
                Some(operation) => Owner::Operations {
                    method: Method::Bracket,
                    comm: Some(&comm),
                    operations: std::slice::from_ref(operation),
                    around: &[],
                    channels: &[],
                    launch: None,
                    replay: None,
                    untold: 0,
                },
            };
            self.draw(end - 100, What::Kernel { kernel: &kernel, owner });
        }

        /// A second passes; CUPTI returns at once what it is made to return. Whether it was.
        fn tick(&mut self, second: u64) -> bool {
            self.tick_with(second, &|_| None, None)
        }

        fn tick_with(&mut self, second: u64, done: &dyn Fn(Handle) -> Option<HostNs>, launch: Option<HostNs>) -> bool {
            let now = HostNs(second * SECOND);
            let forced = self.tracks.tick(now, now, &Evidence { done, moved: &|_| None, launch });
            if forced {
                self.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
            }
            forced
        }

        /// CUPTI says that the kernel of an operation had not ended, or one of the application's.
        fn had_not_ended(&mut self, correlation: u32, name: &str, number: Option<u64>, replay: Option<(u64, HostNs)>) {
            let place = Place { device: 0, context: 1, stream: 7 };
            let kernel = &activity::Unfinished { place, correlation, graph_node: 0, name: name.into() };
            let (operations, comm) = (number.map(Job::operation), self.comm.clone());
            let comm = operations.is_some().then_some(&comm);
            let operations = operations.as_slice();
            self.draw(0, What::Unfinished { kernel, comm, operations, replay });
        }

        /// What is said where something is shown.
        fn begun(&mut self) -> Vec<reader::Nccl> {
            let mut begun = Vec::new();
            reader::read(&self.tracks.take()[..], |packet| {
                let begins = |it: &reader::Event<'_>| it.category == "not done" && it.r#type() == Type::SliceBegin;
                begun.extend(packet.event.filter(begins).map(|event| event.nccl()));
                Ok::<_, reader::Error>(())
            })
            .expect("a whole trace");
            begun
        }

        /// What was shown: number, begin, end, and the doubts of both.
        fn shown(mut self) -> Vec<(u64, i64, Option<i64>, String)> {
            self.tracks.finish(HostNs(100 * SECOND), &Figures::default());
            let (mut shown, mut open) = (Vec::new(), Vec::new());
            reader::read(&self.tracks.take()[..], |packet| {
                let (Some(event), Some(time)) = (packet.event, packet.time) else { return Ok(()) };
                let (nccl, time) = (event.nccl(), time as i64);
                let doubt = nccl.doubt().to_owned();
                match event.r#type() {
                    Type::SliceBegin if event.category == "not done" => {
                        open.push((event.track, shown.len()));
                        shown.push((nccl.seq(), time, None, doubt));
                    }
                    Type::SliceEnd => {
                        if let Some(at) = open.iter().position(|(track, _)| *track == event.track) {
                            let (_, _, end, doubts): &mut (u64, i64, Option<i64>, String) =
                                &mut shown[open.remove(at).1];
                            *end = Some(time);
                            doubts.push_str(&doubt);
                        }
                    }
                    _ => {}
                }
                Ok::<_, reader::Error>(())
            })
            .expect("a whole trace");
            shown
        }
    }

    #[test]
    fn what_hangs_is_open_and_what_paused_ends_when_it_did() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.hand_over(2, 2 * SECOND);
        assert!(!job.tick(4), "the host goes on");
        assert!(job.tick(6));
        assert!(!job.tick(6), "once");
        job.ran(Some(1), 7 * SECOND);
        job.ran(Some(2), 8 * SECOND);
        for second in 8..10 {
            assert!(!job.tick(second));
        }
        // A pause of so long is nothing new; and what ended is known by what came after it.
        job.hand_over(3, 10 * SECOND);
        job.hand_over(4, 10 * SECOND + 1);
        job.hand_over(5, 10 * SECOND + 2);
        assert!(!job.tick(14));
        job.ran(Some(4), 14 * SECOND);
        for second in 15..20 {
            assert!(!job.tick(second));
        }
        assert!(job.tick(20));
        for second in 21..40 {
            assert!(!job.tick(second));
        }
        let at = |second: u64| (second * SECOND) as i64;
        let expected = [
            (1, at(1), Some(at(7)), NOT_SEEN.to_owned()),
            (2, at(2), Some(at(8)), NOT_SEEN.to_owned()),
            (5, at(10) + 2, None, NOT_SEEN.to_owned()),
        ];
        assert_eq!(job.shown(), expected);
    }

    #[test]
    fn what_cupti_is_made_to_return_tells_which_one_hangs() {
        let mut job = Job::new();
        for number in 1..20 {
            job.hand_over(number, SECOND + number);
        }
        let now = HostNs(5 * SECOND);
        assert!(job.tracks.tick(now, now, &Evidence { done: &|_| None, moved: &|_| None, launch: None }));
        assert!(job.tracks.is_forcing());
        (1..6).for_each(|number| job.ran(Some(number), SECOND + 100 * number));
        (6..20).for_each(|number| job.had_not_ended(number as u32, "ncclDevKernel", Some(number), None));
        job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
        assert!(!job.tick(6));
        let shown = job.shown();
        assert_eq!(shown.iter().map(|it| it.0).collect::<Vec<_>>(), (6..14).collect::<Vec<_>>());
        assert!(shown.iter().all(|(_, _, end, doubt)| end.is_none() && doubt == NOT_ENDED), "{shown:?}");
    }

    #[test]
    fn a_kernel_of_the_application_before_it_is_named() {
        let notes = |first: (u32, &str, Option<u64>), second: (u32, &str, Option<u64>)| {
            let mut job = Job::new();
            job.comm.device = Some(0);
            job.hand_over(1, SECOND);
            let now = HostNs(5 * SECOND);
            assert!(job.tracks.tick(now, now, &Evidence { done: &|_| None, moved: &|_| None, launch: None }));
            for (correlation, name, number) in [first, second] {
                job.had_not_ended(correlation, name, number, None);
            }
            job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
            job.tick(6);
            job.begun().iter().map(|nccl| nccl.note().to_owned()).collect::<Vec<_>>()
        };
        let (ours, theirs) = ((8, "ncclDevKernel", Some(1)), |correlation| (correlation, "backward", None));
        assert_eq!(notes(ours, theirs(7)), ["the GPU had not ended a kernel before it: backward"]);
        assert_eq!(notes(ours, theirs(9)), [""], "it was launched later");
    }

    #[test]
    fn what_the_proxy_and_channels_have_done_is_done() {
        let mut job = Job::new();
        for number in 1..4 {
            job.hand_over(number, SECOND + number);
        }
        let until = |last: u64| move |id: Handle| (id.0 <= last).then_some(HostNs(2 * SECOND + id.0));
        assert!(!job.tick_with(5, &until(3), None), "all of them");
        assert!(!job.tick_with(6, &until(3), None));
        job.hand_over(4, 6 * SECOND);
        job.hand_over(5, 6 * SECOND);
        assert!(job.tick_with(10, &until(4), None));
        job.tick_with(11, &until(4), None);
        let numbers: Vec<u64> = job.shown().iter().map(|shown| shown.0).collect();
        assert_eq!(numbers, [5]);
    }

    #[test]
    fn a_replayed_graph_hangs_in_its_run() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.ran(Some(1), SECOND + 500);
        let launched = HostNs(2 * SECOND);
        assert!(!job.tick_with(3, &|_| None, Some(launched)));
        let now = HostNs(5 * SECOND);
        assert!(job.tracks.tick(now, now, &Evidence { done: &|_| None, moved: &|_| None, launch: Some(launched) }));
        for replay in [8, 7, 9] {
            job.had_not_ended(3, "ncclDevKernel", Some(1), Some((replay, launched)));
        }
        job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
        job.tick(6);
        job.tick(7);
        let shown: Vec<_> = job.begun().iter().map(|it| (it.seq(), it.replay, it.doubt().to_owned())).collect();
        assert_eq!(shown, [(1, Some(7), NOT_ENDED.to_owned())], "the first of them");
    }

    #[test]
    fn a_gpu_that_is_busy_with_what_its_host_handed_over_does_not_stand() {
        for (moved, shown) in [(HostNs(3 * SECOND), 8), (HostNs(4 * SECOND), 0)] {
            let mut job = Job::new();
            (1..20).for_each(|number| job.hand_over(number, SECOND + number));
            let now = HostNs(5 * SECOND);
            assert!(job.tracks.tick(now, now, &Evidence { done: &|_| None, moved: &|_| None, launch: None }));
            (6..20).for_each(|number| job.had_not_ended(number as u32, "ncclDevKernel", Some(number), None));
            job.had_not_ended(30, "ncclDevKernel", Some(30), Some((7, now)));
            (1..6).for_each(|number| job.ran(Some(number), moved.0));
            job.tracks.flushed_by_force(now, "kernels that had not ended", moved);
            // What is lost stays unknown, and is not asked for again; what comes later is followed.
            (6..20).for_each(|second| assert!(!job.tick(second)));
            if shown == 0 {
                job.hand_over(50, 20 * SECOND);
                (20..26).for_each(|second| assert!(!job.tick(second)));
                assert!(job.tick(26), "a pause of twice the time");
                assert!(!job.tick(27));
            }
            let numbers: Vec<u64> = job.shown().iter().map(|it| it.0).collect();
            let expected = if shown > 0 { (6..14).chain([30]).collect() } else { vec![50] };
            assert_eq!(numbers, expected, "{moved:?}");
        }
    }

    #[test]
    fn where_cupti_does_not_answer_what_is_shown_may_be_done() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        let evidence = Evidence { done: &|_| None, moved: &|_| None, launch: None };
        let wishes: Vec<bool> =
            (3..9).map(|second| job.tracks.tick(HostNs(second * SECOND), HostNs(second * SECOND), &evidence)).collect();
        assert_eq!(wishes, [false, true, false, false, false, false]);
        assert!(job.tracks.is_forcing(), "its answer may still come");
        assert_eq!(job.shown(), [(1, SECOND as i64, None, NOT_SEEN.to_owned())]);
    }

    #[test]
    fn a_job_that_is_well_shows_nothing() {
        let mut job = Job::new();
        for number in 1..50 {
            job.hand_over(number, number * SECOND);
            job.ran(Some(number), number * SECOND + SECOND / 2);
            assert!(!job.tick(number + 1));
        }
        // Its host runs ahead, and CUPTI returns nothing for long.
        for number in 50..100 {
            job.hand_over(number, number * SECOND);
            assert!(!job.tick(number + 1));
        }
        assert_eq!(job.shown(), []);
    }

    #[test]
    fn where_no_kernels_are_to_be_had_nothing_hangs() {
        let mut job = Job::new();
        job.tracks.expect_kernels(false, HostNs(0));
        job.hand_over(1, SECOND);
        assert!(!job.tick(9) && !job.tick(10), "CUPTI is another's");

        let mut job = Job::new();
        job.comm.interface = 4;
        job.hand_over(1, SECOND);
        assert!(!job.tick(9) && !job.tick(10), "it may have been captured");

        let mut job = Job::new();
        job.ran(None, SECOND);
        job.hand_over(1, SECOND);
        assert!(!job.tick(9) && !job.tick(10), "none of its kernels may be matched");
    }

    #[test]
    fn where_some_are_missing_it_says_so() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.ran(Some(1), 2 * SECOND);
        job.tracks.kernels_lost();
        job.hand_over(2, 3 * SECOND);
        job.tick(8);
        job.tick(9);
        assert_eq!(job.shown(), [(2, 3 * SECOND as i64, None, MAY_BE_DONE.to_owned())]);
    }

    #[test]
    fn what_cannot_be_known_any_more_is_not_left_open() {
        let end = |job: &mut Job, time| {
            let comm = job.comm.clone();
            job.draw(time, What::CommFinalize(&comm));
        };
        for (give_up, why) in [
            (end as fn(&mut Job, u64), "its communicator was finalized"),
            (|job, time| job.tracks.expect_kernels(false, HostNs(time)), "from here on nothing is known of kernels"),
        ] {
            let mut job = Job::new();
            job.hand_over(1, SECOND);
            job.tick(4);
            job.tick(5);
            give_up(&mut job, 5 * SECOND);
            job.tick(9);
            assert_eq!(job.shown(), [(1, SECOND as i64, Some(5 * SECOND as i64), format!("{NOT_SEEN}{why}"))]);
        }
    }

    #[test]
    fn of_very_many_the_first_are_shown() {
        for known in [0, 1] {
            let mut job = Job::new();
            for number in 1..2_000 {
                job.hand_over(number, SECOND + number);
            }
            (1..=known).for_each(|number| job.ran(Some(number), SECOND + 50_000));
            job.tick(8);
            job.tick(9);
            let numbers: Vec<u64> = job.shown().iter().map(|shown| shown.0).collect();
            assert_eq!(numbers, (known + 1..known + 9).collect::<Vec<_>>());
        }
    }
}
