//! What the pipeline makes of launches and of bad times, without threads and files.

use super::*;
use crate::clock::align::Pair;
use crate::correlate::tests::random::{Random, Records};
use crate::correlate::tests::{Player, tag};
use crate::cupti::decode::Asked;
use crate::model::activity::{self, Span};
use crate::model::doing::{CpuWait, Doing};
use crate::model::selection::Selection;
use crate::model::time::Ticks;
use crate::model::timeline::Method;
use crate::trace::tracks::ProcessInfo;
use crate::trace::writer::Clocks;

/// A recording with kernels from a CUPTI of this version.
pub(super) fn with_kernels(version: u32) -> Pipeline {
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
    launch_a_graph(pipeline).correlator.unseen_launches().map(|(first, _)| first)
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
    (0..bad).for_each(|number| pipeline.activity(Activity::Untimed(kernel(100 + number, 0)), HostNs(0)));
    pipeline.activity(Activity::Unfinished(kernel(2, 71)), HostNs(0));
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
    pipeline.activity(Activity::Kernel(kernel), HostNs(0));
    let draw = |pipeline: &mut Pipeline| {
        pipeline.take(&Input::Due { all: true });
        pipeline.take(&Input::Draw);
    };
    draw(&mut pipeline);
    assert_eq!(second(&mut pipeline, 14), Some(Wish::Leave));
    if is_taken_back {
        pipeline.take(&Input::Note { time: HostNs(14), name: remark::NOT_FORCED, text: "" });
    }
    pipeline.activity(Activity::Unfinished(unfinished), HostNs(0));
    draw(&mut pipeline);
    let found = pipeline.correlator.matches();
    (found.unfinished, found.implausible)
}

#[test]
fn a_forced_flush_that_comes_late_returns_kernels_that_have_not_ended() {
    assert_eq!(without_an_end(false), (1, 0));
    assert_eq!(without_an_end(true), (0, 1), "then the record is damaged");
}

#[test]
fn what_was_lost_of_graphs_reaches_their_matches() {
    // The kernel of a graph that was captured and launched, after this.
    let matched = |name: Option<&str>| {
        let mut player = Player::new();
        let mut pipeline = with_kernels(130_000);
        let mut play = |pipeline: &mut Pipeline, input: &str| {
            std::mem::swap(&mut player.correlator, &mut pipeline.correlator);
            player.play(input, &mut |_, _| {});
            std::mem::swap(&mut player.correlator, &mut pipeline.correlator);
        };
        play(
            &mut pipeline,
            "0 0 comm C hash=7 rank=0 ranks=2 interface=7
             1 0 start g GroupApi | 1 0 start a CollApi parent=g captured | 2 0 stop a
             3 0 start l KernelLaunch parent=g | 3 0 node 70 in=l | 4 0 stop l
             5 0 start p Group | 5 0 start c Coll parent=a group=p | 6 0 stop c | 6 0 stop p | 7 0 stop g
             8 0 clone 71 of=70 | 8 0 graph 9",
        );
        if let Some(name) = name {
            pipeline.take(&Input::Note { time: HostNs(15), name, text: "" });
        }
        play(&mut pipeline, "20 0 graph 9 corr=2 | 40 0 kernel 30 corr=2 node=71");
        let mut found = pipeline.correlator.matches();
        let of = [Method::GraphNode, Method::GraphReplay].map(|method| *found.by(method));
        (of, found.unmatched)
    };
    assert_eq!(matched(None), ([1, 0], 0));
    assert_eq!(matched(Some(remark::LAUNCH_LOST)), ([0, 1], 0));
    assert_eq!(matched(Some(remark::CHANGE_LOST)), ([0, 0], 1));
}

/// Whether kernels may be missing after this.
fn misses_kernels_after(this: impl FnOnce(&mut Pipeline)) -> bool {
    let mut pipeline = with_kernels(130_101);
    this(&mut pipeline);
    pipeline.tracks.not_done.misses_kernels()
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
    let wait = CpuWait { tid: 7, since: HostNs(0), ns: u64::MAX };
    for (level, grows) in [(Level::All, true), (Level::Hangs, false), (Level::Ends, false)] {
        for input in [Input::Shares(std::slice::from_ref(&share)), Input::CpuWaits(&[wait])] {
            let mut pipeline = with_kernels(130_101);
            pipeline.take(&Input::Level { level, why: "the file is full" });
            let before = pipeline.tracks.pending_bytes();
            pipeline.take(&input);
            pipeline.take(&input);
            assert_eq!(pipeline.tracks.pending_bytes() > before, grows, "{level:?}, {input:?}");
        }
    }
}

#[cfg(feature = "cli")]
#[test]
fn how_long_threads_wait_for_a_processor_is_drawn_and_said() {
    use crate::trace::reader;

    let mut pipeline = with_kernels(130_101);
    let (second, mut at) = (1_000_000_000, 0);
    // In percent, for two threads; the second ends.
    for percent in [[0, 2], [30, 0], [30, 0], [10, -1], [0, -1]] {
        read(&mut pipeline, at + second, (at + second) / 1_000_000);
        let now = pipeline.now().0;
        let wait = |(tid, percent): (i32, i64)| {
            Some(CpuWait { tid, since: HostNs(at), ns: u64::try_from(percent).ok()? * (now - at) / 100 })
        };
        let waits: Vec<CpuWait> = [7, 8].into_iter().zip(percent).filter_map(wait).collect();
        pipeline.take(&Input::CpuWaits(&waits));
        at = now;
    }
    pipeline.take(&Input::End(Ending::default()));
    let packets = pipeline.chunk();
    let (mut tracks, mut drawn, mut said) = (std::collections::BTreeMap::new(), Vec::new(), Vec::new());
    reader::read(&packets[..], |packet| {
        let descriptor = packet.track_descriptor();
        tracks.extend(descriptor.filter(|it| it.name() == "CPU wait").map(|it| (it.uuid(), tracks.len())));
        if let Some(event) = &packet.event {
            let known = tracks.get(&event.track);
            drawn.extend(known.map(|track| (*track, packet.time.unwrap().0 / second, event.value.unwrap())));
            said.extend((event.name == "CPU wait").then(|| event.nccl().note.unwrap_or_default()));
        }
        Ok::<_, reader::Error>(())
    })
    .unwrap();
    drawn.sort_unstable();
    assert_eq!(drawn, [(0, 0, 2), (0, 1, 0), (1, 1, 30), (1, 3, 10), (1, 4, 0)]);
    assert_eq!(said, ["proxy thread 7 was ready to run and had no processor for 700 ms of 5.00 s"]);
}

#[test]
fn lost_buffers_are_reported_in_the_words_that_readers_know() {
    let mut intake = Intake::new(Source { version: 130_000, asked: Asked::default(), failures: 0 });
    intake.stands(Standing { discarded_buffers: 1, ..Standing::default() }, &mut |_| ());
    let said: Vec<_> = intake.take_notes().into_iter().map(|note| note.name).collect();
    assert_eq!(said, [crate::trace::words::remark::DISCARDED]);
}

/// A reading of a clock with two ticks in a ns, and a waiting time of 50 ms.
fn read(pipeline: &mut Pipeline, ticks: u64, host_ms: u64) {
    let pair = Pair { ticks: Ticks(ticks), host: HostNs(host_ms * 1_000_000), error_ns: 0 };
    pipeline.take(&Input::Pass { pair, window_ns: 50_000_000 });
    pipeline.take(&Input::Advance);
    pipeline.take(&Input::Shares(&[]));
}

/// When a record is drawn, in ms; `None` if it is not taken in this pass.
fn taken(pipeline: &Pipeline, ticks: u64) -> Option<u64> {
    let time = pipeline.clock.time_of(Ticks(ticks)).map(|(time, _)| time.0 / 1_000_000);
    // What is taken is drawn.
    assert_eq!(time.is_some(), pipeline.due().has(Ticks(ticks)), "{ticks}");
    time
}

fn says_that_a_clock_went_back(pipeline: &mut Pipeline, whose: &str) -> bool {
    let chunk = pipeline.chunk();
    let has = |text: &str| chunk.windows(text.len()).any(|part| part == text.as_bytes());
    has(remark::WENT_BACK) && has(&format!("{whose} went back by"))
}

#[test]
fn a_recorders_clock_that_goes_back_stops_nothing() {
    const MS: u64 = 2_000_000;
    let mut pipeline = with_kernels(130_000);
    read(&mut pipeline, 10_000 * MS, 10_000);
    assert_eq!((taken(&pipeline, 9_900 * MS), taken(&pipeline, 9_960 * MS)), (Some(9_900), None));
    assert!(!says_that_a_clock_went_back(&mut pipeline, "the"));
    // It is restored 20 ms later, from a copy in which little time had passed, and read 80 ms after
    // that.
    read(&mut pipeline, 1_080 * MS, 10_100);
    assert!(says_that_a_clock_went_back(&mut pipeline, "the recorder's clock"));
    assert!(pipeline.waits_for_clock());
    assert_eq!((taken(&pipeline, 9_960 * MS), taken(&pipeline, 10_010 * MS)), (Some(9_960), Some(10_010)));
    assert_eq!((taken(&pipeline, 1_000 * MS), pipeline.clock.until()), (None, HostNs(9_950_000_000)));
    // The next reading says when the newer records were made.
    read(&mut pipeline, 1_180 * MS, 10_200);
    assert!(!pipeline.waits_for_clock() && !says_that_a_clock_went_back(&mut pipeline, "the"));
    assert_eq!((taken(&pipeline, 1_000 * MS), taken(&pipeline, 1_130 * MS)), (Some(10_020), Some(10_150)));
    assert_eq!((taken(&pipeline, 1_131 * MS), pipeline.clock.until()), (None, HostNs(10_100_000_000)));
    // A thread that was stopped then holds nothing up.
    assert_eq!(taken(&pipeline, 10_015 * MS), Some(10_015));
    // Once the clock comes to the old times again, they are ordinary.
    read(&mut pipeline, 10_030 * MS, 19_050);
    assert_eq!((taken(&pipeline, 9_970 * MS), taken(&pipeline, 10_015 * MS)), (Some(18_990), None));
}

#[test]
fn a_hosts_clock_that_goes_back_stops_nothing() {
    const MS: u64 = 2_000_000;
    let mut pipeline = with_kernels(130_000);
    read(&mut pipeline, 10_000 * MS, 10_000);
    read(&mut pipeline, 10_100 * MS, 4_000);
    assert!(says_that_a_clock_went_back(&mut pipeline, "the host's clock"));
    // Nothing tells on which side of it they are.
    assert_eq!((taken(&pipeline, 10_000 * MS), taken(&pipeline, 10_100 * MS)), (Some(10_000), Some(10_100)));
    assert_eq!(pipeline.now(), HostNs(4_000_000_000));
    read(&mut pipeline, 10_200 * MS, 4_100);
    assert_eq!((taken(&pipeline, 10_150 * MS), taken(&pipeline, 10_160 * MS)), (Some(4_050), None));
    // Both, and again at once: everything is still taken.
    read(&mut pipeline, 5_000 * MS, 3_000);
    read(&mut pipeline, 100 * MS, 1_000);
    assert!([50, 5_000, 10_200, 20_000].iter().all(|ms| taken(&pipeline, ms * MS).is_some()));
    read(&mut pipeline, 200 * MS, 1_100);
    assert_eq!((taken(&pipeline, 150 * MS), taken(&pipeline, 160 * MS)), (Some(1_050), None));
}

#[test]
fn clocks_may_go_back_at_any_time() {
    for seed in 0..20 {
        let mut pipeline = with_kernels(130_000);
        let (mut random, mut records) = (Random::new(seed), Records::new(seed));
        let (mut ticks, mut host_ms) = (1 << 40, 100_000);
        for _ in 0..200 {
            match random.below(10) {
                0 => ticks = random.below(ticks + 1),
                1 => host_ms = random.below(host_ms + 1),
                2 => host_ms += random.below(10_000),
                _ => (ticks, host_ms) = (ticks + 20_000_000 + random.below(100_000_000), host_ms + 10),
            }
            read(&mut pipeline, ticks, host_ms);
            for _ in 0..10 {
                records.next(|ring, _, record| {
                    // Records from before and after, as far as they are taken.
                    if let Some((time, _)) = pipeline.clock.time_of(Ticks(random.below(2 * ticks + 1))) {
                        let (correlator, mut draw) = pipeline.stages();
                        correlator.push(ring, time, record, &mut draw);
                    }
                });
            }
            pipeline.take(&Input::Due { all: false });
            pipeline.take(&Input::Draw);
            let _ = (pipeline.chunk(), pipeline.take_wish(), pipeline.take_standing());
        }
        pipeline.take(&Input::End(Ending::default()));
    }
}
