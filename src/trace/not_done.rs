//! Operations that should be done and are not known to be: a communicator's track of them appears when one was handed over two seconds ago and no
//! kernel of it has been seen to end. In a job that hangs they stay open, also where no proxy is at work that would show it: between the GPUs of one
//! host.
//!
//! CUPTI returns its records in buffers, and a buffer when all in it has ended. So the kernels just before one that hangs are not known
//! either: the first operations that are shown may be done, and the one that hangs is among them. And on a GPU that is never idle a buffer
//! comes when it is full, which may take seconds: where records come late, more time passes until an operation counts as overdue.

use std::sync::Arc;

use super::fields::nccl;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{self, OperationName};
use super::tracks::{COMM_LANES, Tracks, comm_rank};
use super::writer::Category;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Comm, Operation};

const DESCRIPTION: &str = "Operations that should be done for long and are not known to be, from their hand-over on. CUPTI holds back what it recorded \
                           just before a kernel that still runs, so that the first ones may be done.";
/// How long an operation may be under way until it is shown, ns, where CUPTI's records come as they should: within its flush period.
const OVERDUE_NS: u64 = 2_000_000_000;
const FLUSH_PERIOD_NS: u64 = 1_000_000_000;
const NOT_SEEN: &str = "its kernel has not been seen to end";
const MAY_BE_DONE: &str = "its kernel has not been seen to end, but kernels were lost or could not be matched in this process: it may be done";

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

    /// Comes once a second, in whatever state the job is; kernels are drawn up to `drawn`, as far as CUPTI has returned them. `late_ns` is how long
    /// after a kernel's end its record may come, going by those that came.
    pub fn tick(&mut self, now: HostNs, drawn: HostNs, late_ns: u64) {
        let patience = late_ns.saturating_sub(FLUSH_PERIOD_NS).saturating_mul(2).saturating_add(OVERDUE_NS);
        let since = HostNs(drawn.0.saturating_sub(patience));
        let mut shown = Vec::new();
        for (context, comm) in &mut self.comms {
            comm.outstanding.settle(&mut self.lanes.writer, now);
            // Where none of its kernels is known, and others are not matched, its own may be among those.
            if comm.outstanding.is_drawn() || !self.kernels_missing {
                shown.extend(comm.outstanding.overdue(since).map(|(begin, operation)| (*context, begin, operation)));
            }
        }
        // In one order, whatever that of the map.
        shown.sort_by_key(|(_, begin, operation)| (*begin, operation.id));
        for (context, begin, operation) in shown {
            self.not_done(context, begin, &operation);
        }
        self.end_what_is_done();
    }

    fn not_done(&mut self, context: Handle, begin: HostNs, operation: &Arc<Operation>) {
        let Some(family) = self.not_done_family(context) else { return };
        let Some(comm) = self.comms.get(&context).and_then(|drawn| drawn.comm.clone()) else { return };
        let doubt = if self.kernels_missing { MAY_BE_DONE } else { NOT_SEEN };
        self.args.clear().operation(operation).of_comm(Some(&comm)).text(nccl::DOUBT, doubt);
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

    /// What is under way in a communicator will not be known to end.
    pub(super) fn no_kernels_for(&mut self, context: Handle, now: HostNs, why: &str) {
        let Some(drawn) = self.comms.get_mut(&context) else { return };
        for operation in drawn.outstanding.give_up() {
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

        fn tick(&mut self, time: HostNs) {
            self.tracks.tick(time, time, 0);
        }

        /// What was shown: number, begin, end, and the doubts of both.
        fn shown(mut self) -> Vec<(u64, i64, Option<i64>, String)> {
            self.tracks.finish(HostNs(100 * SECOND), &Figures::default());
            let (mut sequences, mut shown, mut open) = (reader::Sequences::default(), Vec::new(), Vec::new());
            let look = |mut packet| {
                let Some(event) = sequences.take(&mut packet) else { return };
                let nccl = event.event.nccl.clone().unwrap_or_default();
                let doubt = nccl.doubt().to_owned();
                match event.event.r#type() {
                    Type::SliceBegin if &*event.category == "not done" => {
                        open.push((event.track, shown.len()));
                        shown.push((nccl.seq(), event.time, None, doubt));
                    }
                    Type::SliceEnd => {
                        if let Some(at) = open.iter().position(|(track, _)| *track == event.track) {
                            let (_, _, end, doubts): &mut (u64, i64, Option<i64>, String) =
                                &mut shown[open.remove(at).1];
                            *end = Some(event.time);
                            doubts.push_str(&doubt);
                        }
                    }
                    _ => {}
                }
            };
            reader::packets(&self.tracks.take(), look).expect("a whole trace");
            shown
        }
    }

    #[test]
    fn what_hangs_is_open_and_what_was_late_ends_when_it_did() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.hand_over(2, 2 * SECOND);
        job.tick(HostNs(2 * SECOND));
        job.hand_over(3, 3 * SECOND);
        job.tick(HostNs(3 * SECOND + 1));
        job.ran(Some(1), 4 * SECOND);
        for second in 4..9 {
            job.tick(HostNs(second * SECOND));
        }
        // One whose kernel is not known has ended when a later one has.
        job.hand_over(4, 9 * SECOND);
        job.ran(Some(3), 10 * SECOND);
        for second in 10..20 {
            job.tick(HostNs(second * SECOND));
        }
        let (at, doubt) = (|second: u64| (second * SECOND) as i64, || NOT_SEEN.to_owned());
        let expected = [
            (1, at(1), Some(at(4)), doubt()),
            (2, at(2), Some(at(10)), doubt()),
            (3, at(3), Some(at(10)), doubt()),
            (4, at(9), None, doubt()),
        ];
        assert_eq!(job.shown(), expected);
    }

    #[test]
    fn a_job_that_is_well_shows_nothing() {
        let mut job = Job::new();
        for number in 1..50 {
            job.hand_over(number, number * SECOND);
            job.ran(Some(number), number * SECOND + SECOND / 2);
            job.tick(HostNs(number * SECOND + SECOND));
        }
        assert_eq!(job.shown(), []);
    }

    #[test]
    fn where_records_come_late_it_waits_for_them() {
        let is_shown = |late_ns: u64, age: u64| {
            let mut job = Job::new();
            job.hand_over(1, SECOND);
            let now = HostNs((1 + age) * SECOND);
            job.tracks.tick(now, now, late_ns);
            !job.shown().is_empty()
        };
        for (late_ns, patience) in [(0, 2), (SECOND / 2, 2), (5 * SECOND, 10)] {
            assert!(!is_shown(late_ns, patience - 1) && is_shown(late_ns, patience), "{late_ns}");
        }
        assert!(!is_shown(u64::MAX, 1_000));
    }

    #[test]
    fn where_no_kernels_are_to_be_had_nothing_hangs() {
        let mut job = Job::new();
        job.tracks.expect_kernels(false, HostNs(0));
        job.hand_over(1, SECOND);
        job.tick(HostNs(9 * SECOND));
        assert_eq!(job.shown(), [], "CUPTI is another's");

        let mut job = Job::new();
        job.comm.interface = 4;
        job.hand_over(1, SECOND);
        job.tick(HostNs(9 * SECOND));
        assert_eq!(job.shown(), [], "it may have been captured");

        let mut job = Job::new();
        job.ran(None, SECOND);
        job.hand_over(1, SECOND);
        job.tick(HostNs(9 * SECOND));
        assert_eq!(job.shown(), [], "none of its kernels may be matched");
    }

    #[test]
    fn where_some_are_missing_it_says_so() {
        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.ran(Some(1), 2 * SECOND);
        job.tracks.kernels_lost();
        job.hand_over(2, 3 * SECOND);
        job.tick(HostNs(9 * SECOND));
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
            job.hand_over(2, 4 * SECOND);
            job.tick(HostNs(4 * SECOND));
            give_up(&mut job, 5 * SECOND);
            job.tick(HostNs(9 * SECOND));
            assert_eq!(job.shown(), [(1, SECOND as i64, Some(5 * SECOND as i64), format!("{NOT_SEEN}{why}"))]);
        }
    }

    #[test]
    fn of_very_many_the_first_are_shown() {
        let mut job = Job::new();
        for number in 1..10_000 {
            job.hand_over(number, SECOND + number);
        }
        job.tick(HostNs(9 * SECOND));
        let numbers: Vec<u64> = job.shown().iter().map(|shown| shown.0).collect();
        assert_eq!(numbers, (1..9).collect::<Vec<_>>(), "none of its kernels is known yet");

        let mut job = Job::new();
        job.hand_over(1, SECOND);
        job.ran(Some(1), SECOND + 500);
        for number in 2..2_000 {
            job.hand_over(number, SECOND + number);
        }
        job.tick(HostNs(9 * SECOND));
        let numbers: Vec<u64> = job.shown().iter().map(|shown| shown.0).collect();
        assert_eq!(numbers, (2..10).collect::<Vec<_>>());
    }
}
