//! Jobs that hang or pause, second by second.

use super::*;
use crate::model::activity::{Kernel, Place, Span};
use crate::model::event::{self, Event};
use crate::model::ids::ProcessTag;
use crate::model::state;
use crate::model::timeline::{Entry, ProxyOp, ThreadId, Unmatched, What};
use crate::model::word::Word;
use crate::trace::reader;
use crate::trace::reader::proto::perfetto::protos::track_event::Type;
use crate::trace::tracks::{Figures, ProcessInfo, Tracks};
use crate::trace::words;
use crate::trace::writer::Clocks;

const SECOND: u64 = 1_000_000_000;

/// A recording of one communicator whose operations are numbered by their handles.
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
        Job { tracks, comm: Comm::named(Handle(1), "dp") }
    }

    fn operation(number: u64) -> Arc<Operation> {
        let coll = event::Coll { seq: number, func: Word::ALL_REDUCE, ..event::Coll::default() };
        let (id, since) = (Handle(number), HostNs(0));
        Arc::new(Operation { id, since, asked: None, event: Event::Coll(coll), texts: None, number: 0 })
    }

    fn draw(&mut self, time: u64, what: What<'_>) {
        self.tracks.draw(&Entry { time: HostNs(time), what });
    }

    fn hand_over(&mut self, number: u64, time: u64) {
        let (id, operation, comm) = (Handle(number), Job::operation(number), self.comm.clone());
        let (thread, call, comm) = (ThreadId(0), Handle::NONE, Some(&comm));
        let what = What::OperationBegin { id, thread, call, comm, operation: &operation, replay: None, doubt: None };
        self.draw(time, what);
        self.draw(time + 10, What::OperationEnd { id });
    }

    fn ran(&mut self, number: Option<u64>, end: u64) {
        let kernel = Kernel::during(Span { start: HostNs(end - 100), end: HostNs(end), error_ns: 0 });
        let (operations, comm) = (number.map(Job::operation), self.comm.clone());
        let owner = match &operations {
            None => Owner::Unmatched(Unmatched::UnknownNode),
            Some(operation) => Owner::of_one(&comm, operation),
        };
        self.draw(end - 100, What::Kernel { kernel: &kernel, owner });
    }

    /// A second passes. CUPTI immediately returns whatever it is forced to return. Returns whether
    /// it was forced.
    fn tick(&mut self, second: u64) -> bool {
        self.tick_with(second, &|_| None, None)
    }

    fn tick_with(
        &mut self,
        second: u64,
        done: &dyn Fn(Handle) -> Option<HostNs>,
        launches: Option<(HostNs, HostNs)>,
    ) -> bool {
        let now = HostNs(second * SECOND);
        let forced = self.wish(now, done, launches) == Some(Wish::Force);
        if forced {
            self.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
        }
        forced
    }

    fn wish(
        &mut self,
        now: HostNs,
        done: &dyn Fn(Handle) -> Option<HostNs>,
        launches: Option<(HostNs, HostNs)>,
    ) -> Option<Wish> {
        self.tracks.tick(now, now, &Evidence { done, moved: &|_| None, launches })
    }

    /// CUPTI reports that the kernel of an operation, or one of the application's, had not ended.
    fn had_not_ended(&mut self, correlation: u32, name: &str, number: Option<u64>, replay: Option<(u64, HostNs)>) {
        let place = Place { device: 0, context: 1, stream: 7 };
        let kernel = &activity::Unfinished { place, correlation, graph_node: 0, name: name.into() };
        let (operations, comm) = (number.map(Job::operation), self.comm.clone());
        let comm = operations.is_some().then_some(&comm);
        let operations = operations.as_slice();
        self.draw(0, What::Unfinished { kernel, comm, operations, replay });
    }

    /// The arguments of everything that was shown.
    fn begun(&mut self) -> Vec<reader::Nccl> {
        let mut begun = Vec::new();
        reader::read(&self.tracks.take()[..], |packet| {
            let begins =
                |it: &reader::Event<'_>| it.category == Some(Category::NotDone) && it.r#type() == Type::SliceBegin;
            begun.extend(packet.event.filter(begins).map(|event| event.nccl()));
            Ok::<_, reader::Error>(())
        })
        .expect("a whole trace");
        begun
    }

    /// The operations shown: number, begin, end, and the doubts of both.
    fn shown(mut self) -> Vec<(u64, i64, Option<i64>, String)> {
        self.tracks.finish(HostNs(100 * SECOND), &Figures::default());
        let (mut shown, mut open) = (Vec::new(), Vec::new());
        reader::read(&self.tracks.take()[..], |packet| {
            let (Some(event), Some(time)) = (packet.event, packet.time) else { return Ok(()) };
            let (nccl, time) = (event.nccl(), time.0 as i64);
            let doubt = nccl.doubt().to_owned();
            match event.r#type() {
                Type::SliceBegin if event.category == Some(Category::NotDone) => {
                    open.push((event.track, shown.len()));
                    shown.push((nccl.seq(), time, None, doubt));
                }
                Type::SliceEnd => {
                    if let Some(at) = open.iter().position(|(track, _)| *track == event.track) {
                        let (_, _, end, doubts): &mut (u64, i64, Option<i64>, String) = &mut shown[open.remove(at).1];
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
fn hanging_operations_stay_open_and_paused_ones_end_on_time() {
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
    // A pause of this length is nothing new. Operations ended if later ones did.
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
fn a_forced_flush_shows_which_operation_hangs() {
    let mut job = Job::new();
    for number in 1..20 {
        job.hand_over(number, SECOND + number);
    }
    let now = HostNs(5 * SECOND);
    assert_eq!(job.wish(now, &|_| None, None), Some(Wish::Force));
    assert!(job.tracks.not_done.is_forcing());
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
        assert_eq!(job.wish(now, &|_| None, None), Some(Wish::Force));
        for (correlation, name, number) in [first, second] {
            job.had_not_ended(correlation, name, number, None);
        }
        job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
        job.tick(6);
        job.begun().iter().map(|nccl| nccl.note().to_owned()).collect::<Vec<_>>()
    };
    let (ours, theirs) = ((8, "ncclDevKernel", Some(1)), |correlation| (correlation, "backward", None));
    assert_eq!(notes(ours, theirs(7)), ["the GPU had not finished an earlier kernel: backward"]);
    assert_eq!(notes(ours, theirs(9)), [""], "it was launched later");
}

#[test]
fn a_standstill_is_said_once_and_a_pause_raises_the_bar() {
    let said = |job: &mut Job, seconds: std::ops::Range<u64>| -> Vec<(u64, String)> {
        let of = |job: &mut Job, second| {
            job.tick(second);
            Some((second, job.tracks.not_done.take_standing(HostNs(second * SECOND))?))
        };
        seconds.filter_map(|second| of(job, second)).collect()
    };
    let stands = |job: &mut Job, number: u64, second: u64| {
        job.hand_over(number, second * SECOND);
        let now = HostNs((second + 10) * SECOND);
        assert_eq!(job.wish(now, &|_| None, None), Some(Wish::Force));
        job.had_not_ended(2, "ncclDevKernel", Some(number), None);
        job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(0));
    };
    let mut job = Job::new();
    stands(&mut job, 1, 1);
    assert_eq!(said(&mut job, 11..200), [(31, "AllReduce, seq 1, on dp has not ended for 30.0 s".to_owned())]);
    job.ran(Some(1), 200 * SECOND);
    assert_eq!(said(&mut job, 201..202), []);

    stands(&mut job, 2, 300);
    let expected = "AllReduce, seq 2, on dp has not ended for 60.0 s".to_owned();
    assert_eq!(said(&mut job, 311..400), [(360, expected)], "a pause of up to a minute is nothing new");
    job.ran(Some(2), 400 * SECOND);

    stands(&mut job, 3, 500);
    job.ran(Some(3), 515 * SECOND);
    assert_eq!(said(&mut job, 516..1000), [], "it ended in time");

    let mut job = Job::new();
    job.hand_over(1, SECOND);
    assert_eq!(said(&mut job, 1..200), [], "it has not been seen to end, and may be done");
}

#[test]
fn an_operation_is_done_when_its_proxy_and_channels_are() {
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
fn a_hang_in_a_replayed_graph_names_its_run() {
    let mut job = Job::new();
    job.hand_over(1, SECOND);
    job.ran(Some(1), SECOND + 500);
    let launched = HostNs(2 * SECOND);
    assert!(!job.tick_with(3, &|_| None, Some((launched, launched))));
    let now = HostNs(5 * SECOND);
    assert_eq!(job.wish(now, &|_| None, Some((launched, launched))), Some(Wish::Force));
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
fn while_graphs_are_launched_no_record_is_taken() {
    let mut job = Job::new();
    let first = HostNs(2 * SECOND);
    // Something always runs, so CUPTI returns nothing.
    for second in 3..32 {
        let last = HostNs((second - 1) * SECOND);
        assert!(!job.tick_with(second, &|_| None, Some((first, last))), "second {second}");
    }
    assert!(job.tick_with(32, &|_| None, Some((first, HostNs(31 * SECOND)))), "it may be another stream that runs");
    let mut job = Job::new();
    let last = HostNs(12 * SECOND);
    assert!(!job.tick_with(14, &|_| None, Some((first, last))));
    assert!(job.tick_with(15, &|_| None, Some((first, last))), "nothing was launched for a while");
}

#[test]
fn overdue_operations_of_communicators_without_tracks_of_their_own_share_one() {
    let mut job = Job::new();
    let others = (2..400).map(|number| Comm { number, ..Comm::named(Handle(number.into()), &format!("tp{number}")) });
    for comm in others.chain([job.comm.clone()]) {
        job.draw(SECOND, What::CommInit(&comm));
    }
    let launched = HostNs(2 * SECOND);
    assert_eq!(job.wish(HostNs(5 * SECOND), &|_| None, Some((launched, launched))), Some(Wish::Force));
    job.had_not_ended(3, "ncclDevKernel", Some(1), Some((7, launched)));
    job.tracks.flushed_by_force(HostNs(5 * SECOND), "kernels that had not ended", HostNs(0));
    job.tick(6);
    let mut names = Vec::new();
    reader::read(&job.tracks.take()[..], |packet| {
        let name = packet.track_descriptor().map(|it| it.name().to_owned());
        names.extend(name.filter(|name| name.contains("not done")));
        Ok::<_, reader::Error>(())
    })
    .expect("a whole trace");
    assert_eq!(names, ["other communicators · not done"]);
}

#[test]
fn a_gpu_busy_with_queued_work_does_not_hang() {
    for (moved, shown) in [(HostNs(3 * SECOND), 8), (HostNs(4 * SECOND), 0)] {
        let mut job = Job::new();
        (1..20).for_each(|number| job.hand_over(number, SECOND + number));
        let now = HostNs(5 * SECOND);
        assert_eq!(job.wish(now, &|_| None, None), Some(Wish::Force));
        (6..20).for_each(|number| job.had_not_ended(number as u32, "ncclDevKernel", Some(number), None));
        job.had_not_ended(30, "ncclDevKernel", Some(30), Some((7, now)));
        (1..6).for_each(|number| job.ran(Some(number), moved.0));
        job.tracks.flushed_by_force(now, "kernels that had not ended", moved);
        // What was lost stays unknown, and is not asked for again. Later operations are followed.
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
fn behind_kernels_without_records_nothing_is_known_to_stand_still() {
    for has_ended_since in [false, true] {
        let mut job = Job::new();
        (1..20).for_each(|number| job.hand_over(number, SECOND + number));
        let now = HostNs(5 * SECOND);
        assert_eq!(job.wish(now, &|_| None, None), Some(Wish::Force));
        job.ran(Some(1), 4 * SECOND);
        (2..20).for_each(|number| job.had_not_ended(number as u32, "ncclDevKernel", Some(number), None));
        job.tracks.flushed_by_force(now, "kernels that had not ended", HostNs(4 * SECOND));
        assert!(!job.tick(6));
        job.hand_over(50, 7 * SECOND);
        job.hand_over(51, 7 * SECOND + 1);
        if has_ended_since {
            job.ran(Some(50), 8 * SECOND);
        }
        let asked = (8..20).find(|second| job.wish(HostNs(second * SECOND), &|_| None, None).is_some());
        let asked = HostNs(asked.expect("a pause of twice the time") * SECOND);
        job.had_not_ended(51, "ncclDevKernel", Some(51), None);
        job.tracks.flushed_by_force(asked, "kernels that had not ended", HostNs(4 * SECOND));
        let waited = HostNs(asked.0 + 300 * SECOND);
        job.wish(waited, &|_| None, None);
        let is_said = job.tracks.not_done.take_standing(waited).is_some();
        assert_eq!(is_said, has_ended_since, "nothing is said on stderr that may not be true");
        let (numbers, doubts): (Vec<u64>, Vec<String>) = job.shown().into_iter().map(|it| (it.0, it.3)).unzip();
        let expected = if has_ended_since { (vec![51], NOT_ENDED) } else { (vec![50, 51], BEHIND_LOST) };
        assert_eq!((numbers, &*doubts[0]), expected);
    }
}

/// CUPTI answers so late that its operation was shown before.
#[test]
fn what_was_shown_before_its_record_was_lost_is_closed() {
    let mut job = Job::new();
    (1..4).for_each(|number| job.hand_over(number, SECOND + number));
    let wishes = (5..9).filter_map(|second| job.wish(HostNs(second * SECOND), &|_| None, None));
    assert!(wishes.eq([Wish::Force]));
    job.ran(Some(1), 9 * SECOND);
    (2..4).for_each(|number| job.had_not_ended(number as u32, "ncclDevKernel", Some(number), None));
    job.tracks.flushed_by_force(HostNs(10 * SECOND), "kernels that had not ended", HostNs(9 * SECOND));
    job.tick(11);
    let shown = job.shown();
    assert_eq!(shown.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(shown[0].2, Some(9 * SECOND as i64));
    for (number, _, end, doubts) in &shown[1..] {
        assert_eq!(*end, Some(10 * SECOND as i64), "{number}");
        assert_eq!(*doubts, format!("{NOT_SEEN}CUPTI was flushed by force, and lost the record of its kernel"));
    }
}

#[test]
fn without_an_answer_from_cupti_operations_may_be_done() {
    let mut job = Job::new();
    job.hand_over(1, SECOND);
    let wishes: Vec<_> = (3..9).map(|second| job.wish(HostNs(second * SECOND), &|_| None, None)).collect();
    assert_eq!(wishes, [None, Some(Wish::Force), None, None, None, None]);
    assert!(job.tracks.not_done.is_forcing(), "its answer may still come");
    assert_eq!(job.shown(), [(1, SECOND as i64, None, NOT_SEEN.to_owned())]);
}

#[test]
fn a_flush_that_is_late_is_waited_for_or_taken_back() {
    for has_begun in [true, false] {
        let mut job = Job::new();
        let wish = |job: &mut Job, second: u64| job.wish(HostNs(second * SECOND), &|_| None, None);
        job.hand_over(1, SECOND);
        assert_eq!((4..9).filter_map(|second| wish(&mut job, second)).collect::<Vec<_>>(), [Wish::Force]);
        // The job goes on before CUPTI has answered.
        job.ran(Some(1), 9 * SECOND);
        assert_eq!([10, 11].map(|second| wish(&mut job, second)), [Some(Wish::Leave); 2]);
        assert!(job.tracks.not_done.is_forcing(), "it may have begun");
        if has_begun {
            job.hand_over(2, 11 * SECOND);
            job.had_not_ended(2, "ncclDevKernel", Some(2), None);
            job.tracks.flushed_by_force(HostNs(12 * SECOND), "kernels that had not ended", HostNs(0));
        } else {
            job.tracks.not_done.not_forced();
        }
        assert!(!job.tracks.not_done.is_forcing());
        assert_eq!(wish(&mut job, 13), None, "{has_begun}");
        // The next standstill is asked about.
        job.hand_over(3, 20 * SECOND);
        let wishes: Vec<_> = (21..40).filter_map(|second| wish(&mut job, second)).collect();
        assert_eq!(wishes, [Wish::Force], "{has_begun}");
    }
}

/// While CUPTI still answers to an earlier standstill.
#[test]
fn one_flush_is_asked_for_at_a_time() {
    let mut job = Job::new();
    let wish = |job: &mut Job, second: u64| job.wish(HostNs(second * SECOND), &|_| None, None);
    job.hand_over(1, SECOND);
    (4..9).for_each(|second| _ = wish(&mut job, second));
    job.ran(Some(1), 9 * SECOND);
    assert_eq!(wish(&mut job, 10), Some(Wish::Leave));
    job.hand_over(2, 10 * SECOND);
    let wishes: Vec<_> = (11..30).filter_map(|second| wish(&mut job, second)).collect();
    assert!(!wishes.contains(&Wish::Force), "{wishes:?}");
    job.tracks.flushed_by_force(HostNs(8 * SECOND), "kernels that had not ended", HostNs(0));
    assert_eq!(wish(&mut job, 30), Some(Wish::Force), "that shows nothing of it");
}

#[test]
fn a_healthy_job_shows_nothing() {
    let mut job = Job::new();
    for number in 1..50 {
        job.hand_over(number, number * SECOND);
        job.ran(Some(number), number * SECOND + SECOND / 2);
        assert!(!job.tick(number + 1));
    }
    // Its host runs ahead, and CUPTI returns nothing for a long time.
    for number in 50..100 {
        job.hand_over(number, number * SECOND);
        assert!(!job.tick(number + 1));
    }
    assert_eq!(job.shown(), []);
}

#[test]
fn without_kernels_nothing_is_overdue() {
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
fn missing_kernels_are_mentioned() {
    let mut job = Job::new();
    job.hand_over(1, SECOND);
    job.ran(Some(1), 2 * SECOND);
    job.tracks.not_done.kernels_lost();
    job.hand_over(2, 3 * SECOND);
    job.tick(8);
    job.tick(9);
    assert_eq!(job.shown(), [(2, 3 * SECOND as i64, None, MAY_BE_DONE.to_owned())]);
}

#[test]
fn operations_that_can_no_longer_be_followed_are_closed() {
    let end = |job: &mut Job, time| {
        let comm = job.comm.clone();
        job.draw(time, What::CommFinalize(&comm));
    };
    for (give_up, why) in [
        (end as fn(&mut Job, u64), words::FINALIZED),
        (|job, time| job.tracks.expect_kernels(false, HostNs(time)), "from here on nothing is known about kernels"),
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

/// After an abort, NCCL reports no end of what the proxy did. What ends a moment later has an end
/// of its own.
#[test]
fn what_the_proxy_does_ends_with_its_communicator() {
    let mut job = Job::new();
    let (comm, operation) = (job.comm.clone(), Job::operation(1));
    let thread = ThreadId(0);
    for (number, peer) in [(2, 1), (3, 2)] {
        let (op, step) = (Handle(number), Handle(10 + number));
        let event = event::ProxyOp { peer, send: event::Flag(1), ..event::ProxyOp::default() };
        let proxy = ProxyOp { event, batch: 0, comm: Some(&comm), operation: Some(&operation), doubt: None };
        let begin = What::ProxyOpBegin { id: op, thread, proxy, queued_ns: 0, was_taken: false };
        job.draw(SECOND, begin);
        job.draw(SECOND, What::StepBegin { id: step, op, thread, step: 0, proxy: Some(proxy) });
        job.draw(SECOND + 1, What::StepPhase { id: step, state: state::PROXY_STEP_SEND_WAIT, bytes: Some(8) });
    }
    job.draw(2 * SECOND, What::CommFinalize(&comm));
    job.draw(2 * SECOND + 100, What::StepEnd { id: Handle(12), starts: 1, stopped: true });
    job.draw(2 * SECOND + 100, What::ProxyOpEnd { id: Handle(2) });
    job.tick(2);
    job.tick(5);
    let (mut ends, mut in_flight) = (BTreeMap::new(), Vec::new());
    reader::read(&job.tracks.take()[..], |packet| {
        let (Some(event), Some(time)) = (packet.event, packet.time) else { return Ok(()) };
        match event.r#type() {
            Type::SliceEnd => *ends.entry((time.0, event.nccl().doubt().to_owned())).or_default() += 1,
            Type::Counter => in_flight.push(event.value.expect("a value")),
            _ => {}
        }
        Ok::<_, reader::Error>(())
    })
    .expect("a whole trace");
    let expected = [((2 * SECOND, words::FINALIZED.to_owned()), 3), ((2 * SECOND + 100, String::new()), 3)];
    assert_eq!(ends, BTreeMap::from(expected));
    // Transfers and their bytes.
    assert_eq!(in_flight[in_flight.len() - 2..], [0, 0], "{in_flight:?}");
}

#[test]
fn only_the_first_of_many_operations_are_shown() {
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
