//! What is written, as a reader understands it: decoded by another encoder's types, and by Perfetto
//! itself.
//!
//! Perfetto silently drops and misplaces events, so [`Picture::read`] refuses such input. A
//! [`Picture`] is compared as lines: the tracks, indented by depth, and on each track
//! `BEGIN..END NAME` for a slice, `BEGIN.. NAME` for one without an end, `TIME NAME` for an
//! instant, `TIME = VALUE` for a counter.

mod arguments;
mod damage;
mod picture;

use std::collections::HashMap;
use std::fmt::Write as _;

use ncclscope_tests::perfetto::{self, Check};
use prost::Message as _;

use self::picture::{Drawn, Picture};
use super::args::Args;
use super::fields::{self, EXTENSION, nccl};
use super::names::{Fixed, StepName, Text};
use super::reader::proto::ncclscope as words;
use super::reader::proto::perfetto::protos::{TracePacket, TrackDescriptor, track_event::Type};
use super::reader::{self, Error, Nccl};
use super::tracks::{Figures, ProcessInfo, Tracks};
use super::words::Category;
use super::writer::{Clocks, Extra, Form, Name, Place, Sequence, TRACK_BITS, Track, Unit, Writer};
use crate::correlate::Correlator;
use crate::correlate::tests::random::{Random, Records};
use crate::correlate::tests::{PID, Player, tag};
use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;
use crate::model::timeline::{Entry, Matches, Method, What};
use crate::model::word::Word;

fn clocks(boottime: u64) -> Clocks {
    Clocks { boottime: HostNs(boottime), monotonic: 5, realtime: 7 }
}

fn process() -> ProcessInfo {
    ProcessInfo {
        pid: PID,
        name: "rank 0 · node".into(),
        labels: vec!["rank from RANK".into()],
        rank: None,
        world_size: None,
    }
}

/// Plays a scenario into a trace, in the language of the correlator's tests.
fn draw(input: &str) -> Tracks {
    let mut tracks = Tracks::new(tag(), clocks(0), &process());
    Player::new().play(input, &mut |_, entry| tracks.draw(entry));
    tracks
}

fn picture(mut tracks: Tracks) -> Picture {
    let written = tracks.written();
    let picture = Picture::read(&tracks.take());
    picture.check_nesting();
    assert_eq!(picture.count(Type::SliceBegin), written.begins);
    assert_eq!(picture.count(Type::SliceEnd), written.ends);
    assert_eq!(picture.count(Type::Instant), written.instants);
    assert_eq!(picture.count(Type::Counter), written.counters);
    picture
}

/// Compares what is drawn for a scenario with what is expected.
#[track_caller]
fn check(input: &str, expected: &str) {
    let drawn = picture(draw(input)).lines();
    let expected = unindent(expected);
    assert!(drawn == expected, "\n-- drawn --\n{drawn}\n-- expected --\n{expected}\n");
}

fn unindent(text: &str) -> String {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let margin = lines().map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines().map(|line| line[margin..].trim_end()).collect::<Vec<_>>().join("\n")
}

// ---- what the writer writes comes back ----

#[test]
fn every_event_is_read_back_at_its_time_on_its_track() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let base = 1 + random.below(1 << 40);
        let mut writer = Writer::new(tag(), clocks(base));
        let process = writer.track(Form::Process { pid: PID, name: "rank 0", labels: &[] }, Place::default());
        let mut tracks = vec![process.unwrap()];
        let mut counters = Vec::new();
        for number in 0..6 {
            let place = Place { parent: process, rank: Some(number), ..Place::default() };
            tracks.push(writer.track(Form::Plain { name: "lane" }, place).unwrap());
            let unit = if number % 2 == 0 { Unit::Bytes } else { Unit::Named("records") };
            counters.push(writer.track(Form::Counter { name: "counter", unit }, place).unwrap());
        }
        let sequences: Vec<Sequence> = tracks.iter().map(|&track| writer.sequence(track, HostNs(base))).collect();
        let mut expected = Vec::new();
        let mut time = base;
        for _ in 0..500 {
            expected.push(write_something(&mut writer, &mut random, &mut time, base, &sequences, &tracks, &counters));
        }
        let bytes = writer.take();
        let picture = Picture::read(&bytes);
        let uuid = |track: Track| picture.tracks[track_number(track)].uuid();
        assert_eq!(picture.events.len(), expected.len());
        for (drawn, (track, expected)) in picture.events.iter().zip(expected) {
            assert_eq!(*drawn, Drawn { track: uuid(track), ..expected });
        }
    }
}

/// The index of a track in the order of description.
fn track_number(track: Track) -> usize {
    let number: String = format!("{track:?}").chars().filter(char::is_ascii_digit).collect();
    (number.parse::<u64>().expect("a uuid") & ((1 << TRACK_BITS) - 1)) as usize - 1
}

fn write_something(
    writer: &mut Writer,
    random: &mut Random,
    time: &mut u64,
    base: u64,
    sequences: &[Sequence],
    tracks: &[Track],
    counters: &[Track],
) -> (Track, Drawn) {
    let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
    // Forward by anything from nothing to hours; now and then backwards.
    *time += [0, 1, 127, 128, random.below(1 << 44)][pick(random, 5)];
    let at = if random.below(5) == 0 { base + random.below(*time - base + 1) } else { *time };
    let sequence = sequences[pick(random, sequences.len())];
    let (track, counter) = (tracks[pick(random, tracks.len())], counters[pick(random, counters.len())]);
    let category = [Category::Api, Category::Operation, Category::Gpu][pick(random, 3)];
    let number = random.below(8) as i64 - 4;
    let text = ["dp", "", "ä · →"][pick(random, 3)];
    let names: [&dyn Name; 3] = [&Fixed("a fixed name"), &StepName { step: number, operation: None }, &Text(text)];
    let name = names[pick(random, 3)];
    let mut spelled = String::new();
    name.write(&mut spelled);
    let mut args = Args::new();
    args.uint(nccl::SEQ, random.next()).int(nccl::PEER, number as i32).text(nccl::NOTE, text);
    let with_args = random.below(2) == 0;
    let optional = |random: &mut Random| (random.below(3) == 0).then(|| random.next());
    let correlation = optional(random);
    let flows: Vec<u64> = (0..random.below(3)).map(|_| random.next()).collect();
    let extra = Extra { args: if with_args { args.bytes() } else { &[] }, correlation, flows: &flows };
    let mut drawn = Drawn {
        time: at,
        correlation: extra.correlation,
        flows: flows.clone(),
        args: Nccl::decode(extra.args).expect("our own message"),
        ..Drawn::default()
    };
    if with_args {
        assert_eq!((drawn.args.peer(), drawn.args.note()), (number as i32, text));
    }
    match random.below(4) {
        0 => {
            writer.counter(sequence, counter, HostNs(at), number);
            return (counter, Drawn { kind: Type::Counter, time: at, value: Some(number), ..Drawn::default() });
        }
        1 => {
            drawn.kind = Type::SliceEnd;
            writer.end(sequence, track, HostNs(at), &extra);
            return (track, drawn);
        }
        2 => {
            drawn.kind = Type::Instant;
            writer.instant(sequence, track, HostNs(at), category, name, &extra);
        }
        _ => {
            drawn.kind = Type::SliceBegin;
            writer.begin(sequence, track, HostNs(at), category, name, &extra);
        }
    }
    (track, Drawn { category: category.name().into(), name: spelled, ..drawn })
}

#[test]
fn tracks_are_described() {
    let mut writer = Writer::new(tag(), clocks(9));
    let labels = ["first".to_owned(), "second".to_owned()];
    let process = writer.track(Form::Process { pid: 5, name: "rank 0", labels: &labels }, Place::default());
    writer.track(Form::Thread { pid: 5, tid: 6, name: "python3" }, Place::default());
    let place = Place { parent: process, rank: Some(3), orders_children: true, separate: true, description: "why" };
    writer.track(Form::Plain { name: "group" }, place);
    writer.track(Form::Counter { name: "bytes", unit: Unit::Bytes }, Place { parent: process, ..Place::default() });
    let [process, thread, group, counter] = &Picture::read(&writer.take()).tracks[..] else { panic!("four tracks") };
    let said = process.process.as_ref().unwrap();
    assert_eq!((said.pid(), said.process_name(), &said.process_labels[..]), (5, "rank 0", &labels[..]));
    let said = thread.thread.as_ref().unwrap();
    assert_eq!((said.pid(), said.tid(), said.thread_name()), (5, 6, "python3"));
    assert_eq!((group.name(), group.parent_uuid(), group.sibling_order_rank()), ("group", process.uuid(), 3));
    assert_eq!((group.child_ordering, group.sibling_merge_behavior, group.description()), (Some(3), Some(2), "why"));
    assert_eq!((counter.name(), counter.counter.as_ref().unwrap().unit), ("bytes", Some(3)));
}

#[test]
fn a_trace_taken_in_pieces_is_one_trace() {
    let mut tracks = Tracks::new(tag(), clocks(0), &process());
    let mut bytes = tracks.take();
    let scenario = "1 0 start a GroupApi | 2 0 start b CollApi parent=a | 3 0 stop b | 4 0 stop a";
    Player::new().play(scenario, &mut |_, entry| {
        tracks.draw(entry);
        bytes.extend(tracks.take());
        assert_eq!(tracks.pending_bytes(), 0);
    });
    let mut whole = draw(scenario);
    assert_eq!(bytes, whole.take());
}

// ---- names ----

/// The name of the last event that a scenario begins.
fn name(event: &str) -> String {
    let cast = "0 0 thread 100 python3 | 0 0 text $1 AllShuffle | 0 0 text $2 ncclInt4 | 0 0 comm C hash=7 ranks=2";
    let picture = picture(draw(&format!("{cast}\n1 0 start x {event}")));
    let begin = picture.events.iter().rfind(|event| event.kind == Type::SliceBegin);
    begin.map_or_else(String::new, |event| event.name.clone())
}

#[test]
fn operations_are_named_as_people_name_them() {
    for (event, expected) in [
        ("Coll func=AllReduce count=4194304", "AllReduce 16 MiB f32"),
        ("Coll func=ReduceScatter count=1024 type=ncclBfloat16", "ReduceScatter 2 KiB bf16"),
        // NCCL counts bytes here, whatever the application passed.
        ("Coll func=AllGather count=1024 type=ncclInt8", "AllGather 1 KiB"),
        ("Coll func=Broadcast count=1024 type=ncclInt8", "Broadcast 1 KiB"),
        ("Coll func=AllReduce count=1024 type=ncclInt8", "AllReduce 1 KiB i8"),
        ("CollApi func=AllGather count=1024 type=ncclInt8", "ncclAllGather 1 KiB i8"),
        ("CollApi func=AllGather count=1024 type=ncclFloat16", "ncclAllGather 2 KiB f16"),
        ("P2pApi func=Send count=256", "ncclSend 1 KiB f32"),
        ("P2p func=Send count=256 peer=3", "Send 1 KiB f32 → 3"),
        ("P2p func=Recv count=256 peer=3", "Recv 1 KiB f32 ← 3"),
        ("Coll func=AllReduce count=1000 type=Unknown", "AllReduce 1000 elements"),
        ("Coll func=AllReduce count=18446744073709551615", "AllReduce 18446744073709551615 elements f32"),
        ("CeColl func=AllGather count=1024 type=ncclInt8", "copy engine AllGather 1 KiB i8"),
        ("Coll func=$1 type=$2 count=5", "AllShuffle 5 elements"),
        ("Coll func=$9", "operation 1 KiB f32"),
        ("KernelLaunch", "KernelLaunch"),
        ("Group", "Group"),
    ] {
        assert_eq!(name(event), expected, "{event}");
    }
}

#[test]
fn every_function_of_nccl_has_its_name() {
    for number in Word::ALL_GATHER.0..Word::INVALID.0 {
        let func = Word(number).spelling().unwrap();
        assert_eq!(name(&format!("Coll func={func} count=1024")), format!("{func} 4 KiB f32"));
    }
}

// ---- what is drawn where ----

const CAST: &str = "0 0 thread 100 python3 | 0 1 thread 200 NCCL | 0 0 comm C hash=7 rank=0 ranks=2";

#[test]
fn calls_with_a_missing_or_late_stop_are_cut_at_the_enclosing_call() {
    //  g  1|--------------------|8
    //  a    2|--?                      never stopped
    //  b        4|------------------|9 stopped after what contains it
    //  h                          10|--|
    check(
        &format!(
            "{CAST}
             1 0 start g GroupApi
             2 0 start a CollApi parent=g
             4 0 start b CollApi parent=g
             8 0 stop g
             9 0 stop b
            10 0 start h GroupApi
            11 0 ends"
        ),
        "
        rank 0 · node
          Communicators
            00000007 · rank 0 of 2
              0 communicator init
        python3
          1..8 GroupApi
          2..4 ncclAllReduce 1 KiB f32 (no stop before the end of the enclosing call)
          4..8 ncclAllReduce 1 KiB f32 (no stop before the end of the enclosing call)
          10..11 GroupApi (no stop before the end of the enclosing call)",
    );
}

#[test]
fn overlapping_slices_get_lanes_and_lanes_are_reused() {
    //  a  1|---------|5
    //  b     2|-----------|6
    //  c              5|-----|7     in a's lane, from the instant on when that is free
    check(
        &format!(
            "{CAST}
             1 0 start a Coll seq=1 | 2 0 start b Coll seq=2 | 5 0 stop a | 5 0 start c Coll seq=3 | 6 0 stop b
             7 0 stop c"
        ),
        "
        rank 0 · node
          Communicators
            00000007 · rank 0 of 2
              0 communicator init
            00000007 · rank 0 of 2 · handed over
              1..5 AllReduce 1 KiB f32 (no parent)
              5..7 AllReduce 1 KiB f32 (no parent)
            00000007 · rank 0 of 2 · handed over
              2..6 AllReduce 1 KiB f32 (no parent)",
    );
}

#[test]
fn a_queued_proxy_operation_takes_the_lane_of_the_one_before_it() {
    //  a     2|---|4
    //  b  1|..............9|-----|12   it queues until 9
    check(
        &format!(
            "{CAST}
             1 1 start b ProxyOp parent=none peer=1 | 2 1 start a ProxyOp parent=none peer=1
             2 1 state a PROXY_OP_IN_PROGRESS | 4 1 stop a | 9 1 start s ProxyStep parent=b
             9 1 state s PROXY_STEP_SEND_GPU_WAIT | 11 1 stop s | 12 1 stop b"
        ),
        "
        rank 0 · node
          Communicators
            00000007 · rank 0 of 2
              0 communicator init
          Proxy
            NCCL (200)
              00000007 · send → 1
                2..4 unknown operation ch 0 (no parent)
                9..12 unknown operation ch 0 (no parent)
              00000007 · send → 1 · steps
                9..11 step 0
                9..11 GPU wait",
    );
}

#[test]
fn the_progress_thread_s_states_end_with_it() {
    //  active   1|---------------------------------------|8, and said again at 4
    //  append      3|----|4   5|---|6 its end was lost
    //  sleep                       6|-----------------|8
    check(
        &format!(
            "{CAST}
             1 1 start c ProxyCtrl | 1 1 state c PROXY_CTRL_ACTIVE | 3 1 state c PROXY_CTRL_APPEND
             4 1 state c PROXY_CTRL_APPEND_END | 4 1 state c PROXY_CTRL_ACTIVE | 5 1 state c PROXY_CTRL_APPEND
             6 1 state c PROXY_CTRL_SLEEP | 7 1 state c PROXY_CTRL_APPEND_END | 8 1 ends"
        ),
        "
        rank 0 · node
          Communicators
            00000007 · rank 0 of 2
              0 communicator init
          Proxy
            NCCL (200)
              state
                1..8 active
                3..4 append
                5..6 append
                6..8 sleep",
    );
}

#[test]
fn an_ended_thread_s_track_keeps_its_order() {
    // A record may arrive late, or the next thread's own record may be lost.
    check(
        "0 0 thread 100 python3 | 1 0 start a GroupApi | 9 0 ends | 5 0 start b GroupApi | 10 0 stop b",
        "
        python3
          1..9 GroupApi (no stop before the end of the enclosing call)
        unknown
          5..10 GroupApi",
    );
}

// ---- arbitrary input ----

/// A trace of records that NCCL would never send.
fn nonsense(seed: u64, count: usize) -> Tracks {
    let mut records = Records::new(seed);
    let mut tracks = Tracks::new(tag(), clocks(Records::BEGIN), &process());
    let mut correlator = Correlator::new(tag(), PID);
    let mut last = HostNs(Records::BEGIN);
    for _ in 0..count {
        records.next(|ring, time, record| {
            last = last.max(time);
            correlator.push(ring, time, record, &mut |entry| tracks.draw(entry));
        });
    }
    correlator.finish(&mut |entry| tracks.draw(entry));
    tracks.finish(last, &Figures { doubts: correlator.doubts(), ..Figures::default() });
    tracks
}

#[test]
fn slices_nest_on_any_input() {
    for seed in 0..100 {
        let picture = picture(nonsense(seed, 1500));
        let last = picture.events.last().map_or(0, |event| event.time);
        for event in &picture.events {
            assert!((Records::BEGIN..=last).contains(&event.time), "{} at {}", event.name, event.time);
        }
    }
}

#[test]
fn perfetto_loses_nothing_on_any_input() {
    for seed in 1000..1003 {
        let mut tracks = nonsense(seed, 2000);
        let bytes = tracks.take();
        let open = Picture::read(&bytes).open();
        let trace = perfetto::Trace::from_bytes(bytes).unwrap();
        let problems = Check::new().open_slices(open).of_no_program().run(&trace);
        assert!(problems.is_empty(), "seed {seed}: {problems:#?}");
    }
}

#[test]
fn ranges_keep_their_times_whatever_crosses_them() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut tracks = Tracks::new(tag(), clocks(0), &process());
    // In order of their ends, except for a few late ones. Many begin or end together, or take no
    // time.
    let mut expected = Vec::new();
    for number in 0..3000_u64 {
        let late = if random(20) == 0 { random(30) } else { 0 };
        let end = (100 + number / 2).saturating_sub(late);
        let start = end - random(if number % 5 == 0 { 100 } else { 4 });
        expected.push((start, end - start));
        let name = format!("{number}").into();
        let (thread, domain) = ("python3".into(), None);
        let time = HostNs(start);
        let marker = Marker { time, error_ns: 0, id: 0, edge: Edge::Begin, tid: Some(100), thread, name, domain };
        let what = What::Range { marker: &marker, end: Some(HostNs(end)), is_open: false };
        tracks.draw(&Entry { time, what });
    }
    let missing = tracks.canvas.lanes.missing;
    assert!(missing < 300, "{missing}");
    let trace = perfetto::Trace::from_bytes(tracks.take()).unwrap();
    let rows = trace.rows("SELECT name, ts, dur, depth FROM slice WHERE category = 'nvtx'");
    let mut shortened = 0;
    for row in &rows {
        let (start, length) = expected[row.str("name").parse::<usize>().unwrap()];
        assert_eq!(row.i64("ts") as u64, start);
        let found = row.i64("dur") as u64;
        assert!(found == length || found == 0, "{}: {found} instead of {length}", row.str("name"));
        shortened += u64::from(found != length);
    }
    assert_eq!(rows.len(), expected.len());
    assert!(shortened <= missing, "{shortened} of {missing}");
    assert!(rows.iter().any(|row| row.i64("depth") >= 2));
}

// ---- limits ----

#[test]
fn names_beyond_the_limit_are_written_in_full() {
    let mut writer = Writer::new(tag(), clocks(0));
    let track = writer.track(Form::Plain { name: "track" }, Place::default()).unwrap();
    let sequence = writer.sequence(track, HostNs(0));
    for round in 0..2 {
        for number in 0..5000 {
            let name = StepName { step: number, operation: None };
            writer.instant(sequence, track, HostNs(round), Category::Proxy, &name, &Extra::default());
        }
    }
    let bytes = writer.take();
    let mut interned = 0;
    reader::decoded(&bytes, |packet| interned += packet.interned_data.map_or(0, |data| data.event_names.len()))
        .unwrap();
    assert_eq!(interned, 4096);
    for (index, event) in Picture::read(&bytes).events.iter().enumerate() {
        assert_eq!(event.name, format!("step {}", index % 5000));
    }
}

#[test]
fn sequences_beyond_the_limit_are_shared_and_nothing_is_misplaced() {
    let mut writer = Writer::new(tag(), clocks(0));
    let mut tracks = Vec::new();
    for number in 0..3000_u64 {
        let track = writer.track(Form::Plain { name: "track" }, Place::default()).unwrap();
        tracks.push((track, writer.sequence(track, HostNs(number))));
    }
    for (number, &(track, sequence)) in tracks.iter().enumerate().rev() {
        writer.instant(sequence, track, HostNs(number as u64), Category::Api, &Fixed("here"), &Extra::default());
    }
    let picture = Picture::read(&writer.take());
    assert_eq!(picture.events.len(), tracks.len());
    for (number, event) in (0..).zip(picture.events.iter().rev()) {
        let &(track, _) = &tracks[number as usize];
        assert_eq!((event.time, event.track), (number, picture.tracks[track_number(track)].uuid()));
    }
}

#[test]
fn the_number_of_tracks_in_a_file_is_limited() {
    let mut writer = Writer::new(tag(), clocks(0));
    let made = (0..70_000).filter(|_| writer.track(Form::Plain { name: "" }, Place::default()).is_some()).count();
    assert_eq!(made, 0xffff);
}

#[test]
fn without_a_free_lane_the_begin_is_drawn_with_its_arrows() {
    let mut input = CAST.to_owned();
    for number in 0..19 {
        let _ = write!(input, "| 1 0 start x{number} Coll seq={number}");
    }
    for number in 0..19 {
        let _ = write!(input, "| 2 0 stop x{number}");
    }
    let mut tracks = draw(&input);
    tracks.finish(HostNs(3), &Figures::default());
    let picture = picture(tracks);
    let noted = picture.events.iter().filter(|event| event.args.note() == "no free lane: begin only");
    assert!(noted.clone().all(|event| event.kind == Type::SliceBegin && event.name == "AllReduce 1 KiB f32"));
    assert_eq!((picture.count(Type::SliceBegin), picture.open(), noted.count()), (19, 0, 3));
    assert_eq!(picture.events.last().unwrap().args.lanes_missing(), 3);
}

#[test]
fn a_kernel_of_hundreds_of_operations_shows_all_of_them() {
    let mut input = CAST.to_owned();
    input += "| 1 0 start g GroupApi | 2 0 start l KernelLaunch parent=g | 2 0 launch corr=7 in=l group=g | 3 0 stop l | 4 0 start p Group";
    for number in 0..700 {
        let _ = write!(input, "| {} 0 start x{number} Coll group=p seq={number}", 5 + number);
    }
    for number in 0..700 {
        let _ = write!(input, "| 800 0 stop x{number}");
    }
    input += "| 801 0 stop p | 802 0 stop g | 5000 0 kernel 2000 corr=7 device=0 stream=7";
    let mut tracks = draw(&input);
    tracks.finish(HostNs(6_000), &Figures::default());
    let picture = picture(tracks);
    assert_eq!(picture.open(), 0);
    let begins = |category: &'static str| {
        let of =
            picture.events.iter().filter(move |event| event.kind == Type::SliceBegin && event.category == category);
        of.collect::<Vec<_>>()
    };
    // Each is handed over once, with its arrow, and each ran for as long as the kernel.
    for (category, time) in [(Category::Operation.name(), None), (Category::Run.name(), Some(2_000))] {
        let begins = begins(category);
        let numbers: std::collections::BTreeSet<u64> = begins.iter().map(|event| event.args.seq()).collect();
        assert_eq!((begins.len(), numbers.len()), (700, 700), "{category:?}");
        assert!(begins.iter().all(|event| time.is_none_or(|time| event.time == time) && !event.flows.is_empty()));
    }
    // A slice without an end of its own shows only a begin.
    let ends = picture.events.iter().filter(|event| event.kind == Type::SliceEnd && event.time == 5_000).count();
    assert_eq!(ends, 700 + 1 + 16);
    assert_eq!(picture.events.last().unwrap().args.lanes_missing(), 700 - 16);
}

#[test]
fn a_run_that_may_be_any_of_several_has_no_arrow() {
    // Two executable graphs from one capture. Both hand-overs come before the kernel of either.
    let input = CAST.to_owned()
        + "| 1 0 start g GroupApi captured | 1 0 start a CollApi parent=g captured | 1 0 stop a | 2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l
           3 0 stop l | 3 0 stop g | 4 0 clone 60 of=50 | 4 0 graph 9 | 4 0 clone 61 of=50 | 4 0 graph 10
           10000 1 start p Group | 10000 1 start x Coll parent=a group=p | 10000 1 stop x | 10000 1 stop p
           10001 1 start q Group | 10001 1 start y Coll parent=a group=q | 10001 1 stop y | 10001 1 stop q
           25000 0 kernel 20000 corr=7 node=60 device=0 stream=7 | 35000 0 kernel 30000 corr=8 node=61 device=0 stream=7";
    let mut tracks = draw(&input);
    tracks.finish(HostNs(40_000), &Figures::default());
    let picture = picture(tracks);
    let runs =
        picture.events.iter().filter(|event| event.kind == Type::SliceBegin && event.category == Category::Run.name());
    let said: Vec<_> = runs.map(|run| (run.args.r#match(), run.args.replay, run.flows.len())).collect();
    let open = (words::MatchedBy::InferredGraphReplay, None, 0);
    assert_eq!(said[0], open);
    assert!(said.iter().all(|(_, replay, flows)| replay.is_some() == (*flows > 0)), "{said:?}");
}

#[test]
fn peers_and_channels_beyond_the_limit_share_tracks() {
    let mut input = format!("{CAST} | 0 0 comm D hash=8 rank=0 ranks=2000");
    for peer in 0..1030 {
        let _ = write!(
            input,
            "| {peer} 1 start p{peer} ProxyOp in=D parent=none peer={peer} | {peer} 1 stop p{peer}
             {peer} 1 start c{peer} ProxyCtrl in=D"
        );
    }
    for comm in 0..5 {
        let _ = write!(input, "| 2000 0 comm K{comm} hash={} rank=0 ranks=2", 100 + comm);
        for channel in 0..256 {
            let label = format!("k{comm}x{channel}");
            let _ = write!(
                input,
                "| 2000 1 start {label} KernelCh in=K{comm} parent=none channel={channel} | 2001 1 stop {label}"
            );
        }
    }
    let picture = picture(draw(&input));
    assert_eq!(picture.open(), 0);
    let lanes = |name: &str| picture.tracks.iter().filter(|track| track.name().starts_with(name)).count();
    assert_eq!(lanes("00000008 · send →"), 1024);
    assert_eq!(lanes("other peers · send"), 1);
    assert_eq!((0..5).map(|comm| lanes(&format!("{:08x} · channel", 100 + comm))).sum::<usize>(), 1024);
    // 256 kernels at the same time, 64 lanes for shared tracks, and one for the rest.
    assert_eq!(lanes("other channels"), 65);
}
