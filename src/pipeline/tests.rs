//! What the pipeline makes of launches and of bad times, without threads and files.

use std::sync::Arc;

use super::*;
use crate::correlate::tests::{Player, tag};
use crate::cupti::decode::Asked;
use crate::model::activity::{self, Span};
use crate::model::doing::Doing;
use crate::model::event::{self, Event};
use crate::model::ids::Handle;
use crate::model::selection::Selection;
use crate::model::timeline::{Comm, Operation, Owner, ThreadId, What};
use crate::model::word::Word;
use crate::trace::reader;
use crate::trace::reader::proto::perfetto::protos::track_event::Type;
use crate::trace::tracks::ProcessInfo;
use crate::trace::words::Category;
use crate::trace::writer::Clocks;

/// A recording with kernels from a CUPTI of this version.
fn with_kernels(version: u32) -> Pipeline {
    let pair = Pair { ticks: Ticks(0), host: HostNs(0), error_ns: 0 };
    let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
    let process = ProcessInfo { pid: 1, name: String::new(), labels: Vec::new(), rank: None, world_size: None };
    let mut pipeline = Pipeline::new(&Begin {
        tag: tag(),
        clocks,
        process,
        stages: None,
        complaints: Vec::new(),
        attributes: Vec::new(),
        first_words: String::new(),
        capture: None,
        first: pair,
        selection: Selection::default(),
    });
    pipeline.take(&Input::Kernels(Source { version, asked: Asked { calls: false, markers: false }, failures: 0 }));
    pipeline
}

/// A launch is captured as a node, and its graph is launched at 20 ns.
fn launch_a_graph(mut pipeline: Pipeline) -> Pipeline {
    let mut player = Player::new();
    player.correlator = pipeline.correlator;
    let input =
        "0 0 comm C hash=7 rank=0 ranks=2 interface=7 | 10 0 start l KernelLaunch | 12 0 node 70 in=l | 13 0 stop l
        14 0 clone 71 of=70 | 14 0 graph 9 | 20 0 graph 9 corr=2";
    player.play(input, &mut |_, _| {});
    pipeline.correlator = player.correlator;
    pipeline
}

/// When the first graph launch without a known kernel was made, after a CUPTI of this version
/// was lent.
fn unseen_after_cupti_was_lent(version: u32) -> Option<HostNs> {
    let mut pipeline = with_kernels(version);
    for name in [remark::RELEASED, remark::TAKEN_AGAIN] {
        pipeline.take(&Input::Note { time: HostNs(5), name, text: "" });
    }
    launch_a_graph(pipeline).correlator.unseen_launch()
}

#[test]
fn graph_launches_are_waited_for_unless_kernels_may_name_other_launches() {
    assert_eq!(unseen_after_cupti_was_lent(130_100), None);
    assert_eq!(unseen_after_cupti_was_lent(130_101), Some(HostNs(20)));
}

/// How many kernels are reported as not ended, and how many records are implausible, after
/// `bad` bad ones during a forced flush.
fn not_ended_after(bad: u32) -> (u64, u64) {
    let mut pipeline = launch_a_graph(with_kernels(130_000));
    let pair = Pair { ticks: Ticks(10_000_000_000), host: HostNs(10_000_000_000), error_ns: 0 };
    pipeline.take(&Input::Pass { pair, window_ns: 0 });
    pipeline.take(&Input::Shares(&[]));
    assert_eq!(pipeline.take_wish(), Some(Wish::Force), "the graph's launch stands still");
    let kernel = |correlation, graph_node| activity::Unfinished {
        place: activity::Place { device: 0, context: 1, stream: 7 },
        correlation,
        graph_node,
        name: "kernel".into(),
    };
    (0..bad).for_each(|number| pipeline.activity(Activity::Untimed(kernel(100 + number, 0))));
    pipeline.activity(Activity::Unfinished(kernel(2, 71)));
    pipeline.take(&Input::Due { all: true });
    pipeline.take(&Input::Draw);
    let found = pipeline.correlator.matches();
    (found.unfinished, found.implausible - u64::from(bad))
}

#[test]
fn no_kernel_is_said_to_hang_while_times_are_bad() {
    assert_eq!(not_ended_after(0), (1, 0));
    assert_eq!(not_ended_after(7), (1, 0), "single bad records are no stretch");
    assert_eq!(not_ended_after(8), (0, 1), "it may have ended without a time");
}

/// What becomes of a kernel without an end, after the job has gone on before CUPTI was flushed by
/// force: how many are reported as not ended, and how many records are impossible.
fn without_an_end(is_taken_back: bool) -> (u64, u64) {
    let mut pipeline = launch_a_graph(with_kernels(130_000));
    let second = |pipeline: &mut Pipeline, second: u64| {
        let at = second * 1_000_000_000;
        let pair = Pair { ticks: Ticks(at), host: HostNs(at), error_ns: 0 };
        pipeline.take(&Input::Pass { pair, window_ns: 0 });
        pipeline.take(&Input::Shares(&[]));
        pipeline.take_wish()
    };
    assert_eq!([10, 13].map(|at| second(&mut pipeline, at)), [Some(Wish::Force), None]);
    let span = Span { start: HostNs(30), end: HostNs(40), error_ns: 0 };
    let kernel = activity::Kernel { correlation: 2, graph_node: 71, ..activity::Kernel::during(span) };
    let unfinished =
        activity::Unfinished { place: kernel.place, correlation: 3, graph_node: 71, name: kernel.name.clone() };
    pipeline.activity(Activity::Kernel(kernel));
    let draw = |pipeline: &mut Pipeline| {
        pipeline.take(&Input::Due { all: true });
        pipeline.take(&Input::Draw);
    };
    draw(&mut pipeline);
    assert_eq!(second(&mut pipeline, 14), Some(Wish::Leave));
    if is_taken_back {
        pipeline.take(&Input::Note { time: HostNs(14), name: remark::NOT_FORCED, text: "" });
    }
    pipeline.activity(Activity::Unfinished(unfinished));
    draw(&mut pipeline);
    let found = pipeline.correlator.matches();
    (found.unfinished, found.implausible)
}

#[test]
fn a_forced_flush_that_comes_late_returns_kernels_that_have_not_ended() {
    assert_eq!(without_an_end(false), (1, 0));
    assert_eq!(without_an_end(true), (0, 1), "then the record is damaged");
}

/// Whether kernels may be missing after this.
fn misses_kernels_after(this: impl FnOnce(&mut Pipeline)) -> bool {
    let mut pipeline = with_kernels(130_101);
    this(&mut pipeline);
    pipeline.tracks.misses_kernels()
}

#[test]
fn lost_kernels_count_however_they_were_lost() {
    struct Nobody;
    impl Outside for Nobody {
        fn text(&mut self, _: *const std::ffi::c_char) -> std::sync::Arc<str> {
            "".into()
        }
        fn function(&mut self, _: u32, _: u32) -> std::sync::Arc<str> {
            "".into()
        }
        fn thread(&mut self, _: i32) -> std::sync::Arc<str> {
            "".into()
        }
    }
    let none = Standing::default();
    for (standing, expected) in [
        (none, false),
        (Standing { dropped: 1, ..none }, true),
        (Standing { discarded_buffers: 1, ..none }, true),
        (Standing { refused_requests: 1, ..none }, true),
        (Standing { foreign_buffers: 1, ..none }, true),
        (Standing { failed_flushes: 1, ..none }, false),
    ] {
        assert_eq!(misses_kernels_after(|it| it.take(&Input::Standing(standing))), expected, "{standing:?}");
    }
    for (bytes, expected) in [(&[][..], false), (&[0xee; 64], true)] {
        let has = misses_kernels_after(|it| it.buffer(HostNs(1), bytes, cupti_sys::records::Own, &mut Nobody));
        assert_eq!(has, expected, "{bytes:?}");
    }
}

#[test]
fn a_full_file_does_not_grow_by_the_time_of_threads() {
    let share = input::Share { tid: 7, name: "NCCL".into(), percent: 50, doing: Doing::Running, processor: None };
    for (level, grows) in [(Level::All, true), (Level::Hangs, false), (Level::Ends, false)] {
        let mut pipeline = with_kernels(130_101);
        pipeline.take(&Input::Level { level, why: "the file is full" });
        let before = pipeline.tracks.pending_bytes();
        pipeline.take(&Input::Shares(std::slice::from_ref(&share)));
        assert_eq!(pipeline.tracks.pending_bytes() > before, grows, "{level:?}");
    }
}

const SECOND: u64 = 1_000_000_000;

/// A second in which an AllReduce with this number is handed over, and its kernel ends, or hangs.
/// Returns what is wanted of CUPTI.
fn all_reduce(pipeline: &mut Pipeline, number: u64, ends: bool) -> Option<Wish> {
    let at = HostNs(number * SECOND);
    let comm = Comm::named(Handle(1), "dp");
    let coll = event::Coll { seq: number, func: Word::ALL_REDUCE, ..event::Coll::default() };
    let (id, event) = (Handle(1_000 + number), Event::Coll(coll));
    let operation = Arc::new(Operation { id, since: at, asked: None, event, texts: None, p2p_number: 0 });
    let (thread, call, comm) = (ThreadId(0), Handle::NONE, Some(&comm));
    let handed = What::OperationBegin { id, thread, call, comm, operation: &operation, replay: None, doubt: None };
    let span = Span { start: at, end: HostNs(at.0 + 100), error_ns: 0 };
    let kernel = activity::Kernel::during(span);
    let (_, mut draw) = pipeline.stages();
    draw(&Entry { time: at, what: handed });
    draw(&Entry { time: at, what: What::OperationEnd { id } });
    if ends {
        let owner = Owner::of_one(comm.unwrap(), &operation);
        draw(&Entry { time: span.end, what: What::Kernel { kernel: &kernel, owner } });
    }
    drop(draw);
    second(pipeline, number)
}

/// A second passes.
fn second(pipeline: &mut Pipeline, second: u64) -> Option<Wish> {
    let at = second * SECOND;
    let pair = Pair { ticks: Ticks(at), host: HostNs(at), error_ns: 0 };
    pipeline.take(&Input::Pass { pair, window_ns: 0 });
    pipeline.take(&Input::Shares(&[]));
    pipeline.take_wish()
}

/// What was drawn since the last time, with the seconds and the numbers of operations. `packets` are
/// those of before.
fn drawn(pipeline: &mut Pipeline, packets: &mut Vec<u8>) -> Vec<String> {
    let (mut said, known) = (Vec::new(), packets.len() as u64);
    packets.extend(pipeline.chunk());
    reader::read(&packets[..], |packet| {
        if packet.at < known {
            return Ok(());
        }

        let (Some(event), Some(time)) = (packet.event, packet.time) else { return Ok(()) };
        let kind = match (event.r#type(), event.category) {
            (Type::SliceBegin, Some(category)) => category.name(),
            (Type::Instant, Some(Category::Newest)) => "newest",
            (Type::Instant, Some(Category::Ncclscope)) => event.name,
            (Type::Counter, _) => "counter",
            _ => return Ok(()),
        };
        let number = event.nccl().seq.map_or_else(String::new, |seq| format!(" {seq}"));
        said.push(format!("{kind}{number} at {}", time.0 / SECOND));
        Ok::<_, reader::Error>(())
    })
    .expect("whole packets");
    said
}

#[test]
fn in_a_full_file_hangs_and_signs_of_life_are_still_drawn() {
    let (mut pipeline, mut packets) = (with_kernels(130_101), Vec::new());
    for number in 1..=3 {
        assert_eq!(all_reduce(&mut pipeline, number, true), None);
    }
    pipeline.take(&Input::Level { level: Level::Hangs, why: "the file is full" });
    assert!(drawn(&mut pipeline, &mut packets).contains(&"operation 3 at 3".to_owned()));

    for number in 4..13 {
        assert_eq!(all_reduce(&mut pipeline, number, true), None);
        assert_eq!(drawn(&mut pipeline, &mut packets), [""; 0], "{number}");
    }
    assert_eq!(all_reduce(&mut pipeline, 13, true), None);
    assert_eq!(drawn(&mut pipeline, &mut packets), ["newest 13 at 13", "still following at 13"]);

    assert_eq!(all_reduce(&mut pipeline, 14, false), None);
    assert_eq!([15, 16, 17, 18].map(|at| second(&mut pipeline, at)), [None, None, Some(Wish::Force), None]);
    pipeline.take(&Input::Note { time: HostNs(18 * SECOND), name: remark::FORCED, text: "kernels that had not ended" });
    (19..=23).for_each(|at| _ = second(&mut pipeline, at));
    let said = drawn(&mut pipeline, &mut packets);
    assert_eq!(said, ["CUPTI flushed by force at 18", "not done 14 at 14", "newest 14 at 14", "still following at 23"]);

    // What the file has no room for is counted.
    pipeline.take(&Input::End(Ending::default()));
    let ended = drawn(&mut pipeline, &mut packets);
    assert!(ended.contains(&"recording ended at 23".to_owned()), "{ended:?}");
}
