//! What is written, as a reader understands it: decoded by another encoder's types, and by Perfetto itself.
//!
//! Perfetto drops and misplaces without a word, so [`Picture::read`] refuses what it would. The lines that a
//! [`Picture`] is compared by are: a track, deeper the deeper it lies, and on it `BEGIN..END NAME` for a slice,
//! `BEGIN.. NAME` for one without end, `TIME NAME` for an instant, `TIME = VALUE` for a counter.

use std::collections::HashMap;
use std::fmt::Write as _;

use ncclscope_tests::perfetto::{self, Check};
use prost::Message as _;

use super::args::Args;
use super::fields::{EXTENSION, nccl};
use super::names::{Fixed, StepName, Text};
use super::reader::proto::ncclscope as words;
use super::reader::proto::perfetto::protos::{TracePacket, TrackDescriptor, track_event::Type};
use super::reader::{self, Error, Nccl};
use super::tracks::{Figures, ProcessInfo, Tracks};
use super::writer::{Category, Clocks, Extra, Form, Name, Place, Sequence, Track, Unit, Writer};
use crate::correlate::Correlator;
use crate::correlate::tests::{PID, Player, Random, Records, tag};
use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;
use crate::model::timeline::{Entry, What};
use crate::model::word::Word;

/// Id of the delta clock.
const DELTA: u32 = 64;
const BOOTTIME: u32 = 6;

/// A trace as a reader understands it.
#[derive(Default)]
struct Picture {
    /// In the order of their description.
    tracks: Vec<TrackDescriptor>,
    /// In the order of the file.
    events: Vec<Drawn>,
}

/// An event with everything resolved.
#[derive(Clone, Debug, Default, PartialEq)]
struct Drawn {
    kind: Type,
    track: u64,
    time: u64,
    category: String,
    name: String,
    correlation: Option<u64>,
    flows: Vec<u64>,
    value: Option<i64>,
    args: Nccl,
}

/// What a sequence of packets has said so far.
#[derive(Default)]
struct Stream {
    time: u64,
    track: u64,
    names: HashMap<u64, String>,
    categories: HashMap<u64, String>,
}

impl Picture {
    /// Reads a trace, and panics at whatever Perfetto would drop or misplace.
    fn read(bytes: &[u8]) -> Picture {
        let mut picture = Picture::default();
        let mut streams = HashMap::new();
        reader::decoded(bytes, |packet| picture.packet(packet, &mut streams)).expect("a whole trace");
        picture
    }

    fn packet(&mut self, packet: TracePacket, streams: &mut HashMap<u32, Stream>) {
        let sequence = packet.trusted_packet_sequence_id();
        assert!(sequence > 0 && sequence < 1 << 31, "sequence id {sequence}");
        if packet.sequence_flags() == 1 {
            assert!(streams.insert(sequence, Stream::default()).is_none(), "sequence {sequence} begins once");
        }
        let stream = streams.get_mut(&sequence).expect("a sequence begins with a cleared state");
        for clock in packet.clock_snapshot.iter().flat_map(|snapshot| &snapshot.clocks) {
            if clock.clock_id() == DELTA {
                assert!(clock.is_incremental());
                stream.time = clock.timestamp();
            }
        }
        if let Some(defaults) = &packet.trace_packet_defaults {
            assert_eq!(defaults.timestamp_clock_id(), DELTA);
            stream.track = defaults.track_event_defaults.as_ref().expect("a default track").track_uuid();
        }
        for entry in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert!(stream.names.insert(entry.iid(), entry.name().to_owned()).is_none(), "a name is defined once");
        }
        for entry in packet.interned_data.iter().flat_map(|data| &data.event_categories) {
            stream.categories.insert(entry.iid(), entry.name().to_owned());
        }
        if let Some(track) = &packet.track_descriptor
            // The root is no track; it says how processes are ordered.
            && track.uuid() != 0
        {
            assert!(self.track(track.uuid()).is_none(), "track {} is described once", track.uuid());
            assert!(track.parent_uuid.is_none_or(|parent| self.track(parent).is_some()), "parents come first");
            self.tracks.push(track.clone());
        }
        let Some(event) = &packet.track_event else { return };
        let time = match packet.timestamp_clock_id {
            Some(clock) => {
                assert_eq!(clock, BOOTTIME);
                packet.timestamp()
            }
            None => {
                stream.time += packet.timestamp();
                stream.time
            }
        };
        let name = match event.name_iid {
            Some(iid) => stream.names.get(&iid).expect("a name is defined before its use").clone(),
            None => event.name().to_owned(),
        };
        let category = |iid: &u64| stream.categories.get(iid).expect("a category is defined before its use").clone();
        let drawn = Drawn {
            kind: event.r#type(),
            track: event.track_uuid.unwrap_or(stream.track),
            time,
            category: event.category_iids.iter().map(category).collect(),
            name,
            correlation: event.correlation_id,
            flows: event.flow_ids.clone(),
            value: event.counter_value,
            args: event.nccl.clone().unwrap_or_default(),
        };
        let track = self.track(drawn.track).expect("tracks are described before their events");
        assert_eq!(track.counter.is_some(), drawn.kind == Type::Counter, "counters are on tracks of their own");
        self.events.push(drawn);
    }

    fn track(&self, uuid: u64) -> Option<&TrackDescriptor> {
        self.tracks.iter().find(|track| track.uuid() == uuid)
    }

    fn count(&self, kind: Type) -> u64 {
        self.events.iter().filter(|event| event.kind == kind).count() as u64
    }

    /// Slices without end.
    fn open(&self) -> u64 {
        self.count(Type::SliceBegin) - self.count(Type::SliceEnd)
    }

    /// Holds every track to what makes its slices nest as they were meant to: begins and ends in order of time,
    /// no end without a begin, one slice at a time in a lane, and only a phase inside it.
    fn check_nesting(&self) {
        const INNER: &[&str] = &[
            "GPU wait",
            "peer wait",
            "network wait",
            "flush wait",
            "posted",
            "remote FIFO wait",
            "transmitted",
            "received",
            "done",
            "sleep",
            "append",
        ];
        let mut tracks: HashMap<u64, (u64, u32)> = HashMap::new();
        // By track, the begin of the last operation that a kernel carried; of those that found no lane, all have the same span.
        let mut carried: HashMap<u64, u64> = HashMap::new();
        for event in &self.events {
            let is_thread = self.track(event.track).is_some_and(|track| track.thread.is_some());
            let (last, depth) = tracks.entry(event.track).or_default();
            if event.kind == Type::SliceBegin && event.category == "run" {
                let before = carried.insert(event.track, event.time);
                if before == Some(event.time) && *last > event.time {
                    (*last, *depth) = (event.time, 0);
                }
            }
            if matches!(event.kind, Type::SliceBegin | Type::SliceEnd) {
                assert!(event.time >= *last, "after {last}: {:?} {} at {}", event.kind, event.name, event.time);
                *last = event.time;
            }
            match event.kind {
                Type::SliceBegin => {
                    *depth += 1;
                    let fits = *depth == 1 || *depth == 2 && INNER.contains(&event.name.as_str());
                    assert!(is_thread || fits, "depth {depth} in a lane: {} at {}", event.name, event.time);
                }
                Type::SliceEnd => {
                    assert!(*depth > 0, "ends nothing: at {}", event.time);
                    *depth -= 1;
                }
                _ => {}
            }
        }
    }

    /// The tracks on which something is drawn, as lines.
    fn lines(&self) -> String {
        let mut lines = String::new();
        for root in self.tracks.iter().filter(|track| track.parent_uuid.is_none()) {
            self.write_track(root, 0, &mut lines);
        }
        lines.trim_end().to_owned()
    }

    fn write_track(&self, track: &TrackDescriptor, depth: usize, lines: &mut String) {
        let at = lines.len();
        let indent = "  ".repeat(depth);
        let name = match (&track.process, &track.thread) {
            (Some(process), _) => process.process_name(),
            (_, Some(thread)) => thread.thread_name(),
            _ => track.name(),
        };
        let _ = writeln!(lines, "{indent}{name}");
        let before = lines.len();
        for line in self.slices(track.uuid()) {
            let _ = writeln!(lines, "{indent}  {line}");
        }
        let mut children: Vec<_> = self.tracks.iter().filter(|it| it.parent_uuid == track.uuid).collect();
        children.sort_by_key(|child| child.sibling_order_rank());
        for child in children {
            self.write_track(child, depth + 1, lines);
        }
        if lines.len() == before {
            // Without events it is not drawn.
            lines.truncate(at);
        }
    }

    fn slices(&self, track: u64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut open = Vec::new();
        for event in self.events.iter().filter(|event| event.track == track) {
            let Drawn { kind, time, name, args, value, .. } = event;
            let remark = |text: &Option<String>| text.as_ref().map_or(String::new(), |text| format!(" ({text})"));
            let remarks = format!("{}{}", remark(&args.doubt), remark(&args.note));
            match kind {
                Type::SliceBegin => {
                    open.push((lines.len(), time.to_string().len()));
                    lines.push(format!("{time}.. {name}{remarks}"));
                }
                Type::SliceEnd => {
                    let (line, at) = open.pop().expect("checked when nesting was");
                    lines[line].insert_str(at + 2, &time.to_string());
                    lines[line].push_str(&remarks);
                }
                Type::Counter => match value {
                    Some(0) => {}
                    value => lines.push(format!("{time} = {}", value.unwrap_or_default())),
                },
                _ => lines.push(format!("{time} {name}{remarks}")),
            }
        }
        lines
    }
}

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

/// Plays a scenario, in the language of the correlator's tests, into a trace.
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

/// Compares what is drawn of a scenario with what should be.
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
fn every_event_comes_back_at_its_time_on_its_track() {
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

/// Place of a track in the order of description.
fn track_number(track: Track) -> usize {
    let number: String = format!("{track:?}").chars().filter(char::is_ascii_digit).collect();
    number.parse::<usize>().expect("a number") - 1
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
    // Forward by anything from nothing to hours; now and then back.
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
    let category = match category {
        Category::Api => "api",
        Category::Operation => "operation",
        _ => "gpu",
    };
    (track, Drawn { category: category.into(), name: spelled, ..drawn })
}

#[test]
fn tracks_say_what_they_are() {
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
fn what_is_taken_piece_by_piece_is_one_trace() {
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

// ---- our typed arguments ----

/// Google's descriptors, as far as they matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorSet {
    #[prost(message, repeated, tag = "1")]
    file: Vec<FileDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileDescriptor {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<EnumDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MessageDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    fields: Vec<FieldDescriptor>,
    #[prost(message, repeated, tag = "6")]
    extensions: Vec<FieldDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldDescriptor {
    #[prost(string, tag = "2")]
    extendee: String,
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(string, tag = "6")]
    type_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EnumDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    values: Vec<FieldDescriptorOfEnum>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldDescriptorOfEnum {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "2")]
    number: i32,
}

fn descriptor() -> FileDescriptor {
    let set = DescriptorSet::decode(EXTENSION).expect("a set of descriptors");
    let [file] = &set.file[..] else { panic!("one file") };
    file.clone()
}

#[test]
fn the_file_carries_the_descriptor_of_our_arguments() {
    let file = descriptor();
    assert_eq!(file.package, "ncclscope");
    let extensions: Vec<_> = file.messages.iter().flat_map(|message| &message.extensions).collect();
    let [extension] = &extensions[..] else { panic!("one extension") };
    assert_eq!(extension.number, nccl_field());
    assert_eq!((&*extension.extendee, &*extension.type_name), (".perfetto.protos.TrackEvent", ".ncclscope.Nccl"));

    let mut writer = Writer::new(tag(), clocks(0));
    let mut carried = Vec::new();
    reader::decoded(&writer.take(), |packet| carried.extend(packet.extension_descriptor)).unwrap();
    assert_eq!(carried.len(), 1);
    assert_eq!(carried[0].extension_set(), EXTENSION);
}

fn nccl_field() -> i32 {
    super::fields::track_event::NCCL as i32
}

#[test]
fn the_arguments_lie_in_field_9900() {
    assert_eq!(nccl_field(), 9900);
}

#[test]
fn words_have_the_same_numbers_in_memory_and_in_the_trace() {
    // Names that an enum needs and NCCL has not.
    const OWN: &[(&str, Word)] = &[
        ("FUNCTION_ABSENT", Word::ABSENT),
        ("DATATYPE_ABSENT", Word::ABSENT),
        ("ALGORITHM_ABSENT", Word::ABSENT),
        ("PROTOCOL_ABSENT", Word::ABSENT),
    ];
    let mut spelled = 0;
    // How a kernel was matched, and by what a peer is reached, is ours, not NCCL's.
    let descriptor = descriptor();
    let ours = ["MATCH_ABSENT", "TRANSPORT_ABSENT"];
    let words = descriptor.enums.iter().filter(|it| !ours.contains(&it.values[0].name.as_str()));
    for value in words.flat_map(|it| &it.values) {
        if let Some((_, word)) = OWN.iter().find(|(name, _)| *name == value.name) {
            assert_eq!(value.number, i32::from(word.0), "{}", value.name);
        } else {
            let word = Word::known(value.name.as_bytes());
            assert_eq!(word, Some(Word(value.number as u16)), "{}", value.name);
            spelled += 1;
        }
    }
    // MC and UC are written as text; all others have a name.
    let known = (1..Word::FIRST_TEXT.0).filter(|&number| Word(number).spelling().is_some()).count();
    assert_eq!(spelled, known - 2);
    // And the reader's types say the same.
    assert_eq!(words::Function::AllReduce as u16, Word::ALL_REDUCE.0);
    assert_eq!(words::DataType::NcclFloat32 as u16, Word::FLOAT32.0);
}

/// What an event says beside its name, in the order of the fields.
fn arguments(input: &str) -> String {
    let picture = picture(draw(input));
    let args = |event: &Drawn| {
        let all = format!("{:?}", event.args);
        let set: Vec<String> = all
            .trim_start_matches("Nccl { ")
            .split(", ")
            .filter_map(|field| {
                let (name, value) = field.split_once(": Some(")?;
                Some(format!("{name}={}", value.trim_end_matches([' ', '}', ')'])))
            })
            .collect();
        set.join(" ")
    };
    let said = picture.events.iter().map(|event| (event, args(event))).filter(|(_, args)| !args.is_empty());
    said.map(|(event, args)| format!("{}: {args}\n", if event.name.is_empty() { "end" } else { &event.name })).collect()
}

#[test]
fn events_say_what_is_known_of_them() {
    let said = arguments(
        "0 0 thread 100 python3 | 0 1 thread 200 NCCL | 0 0 text $1 AllShuffle
         0 0 comm C hash=7 rank=0 ranks=2 nodes=1
         1 0 start g GroupApi depth=2
         2 0 state g GROUP_START_API_STOP
         3 0 start api CollApi parent=g captured count=16
         4 0 stop api
         5 0 start ar Coll parent=api seq=3 count=16 func=$1
         6 0 stop ar
         7 0 stop g
        20 1 start p ProxyOp parent=ar peer=1 channel=2 steps=4
        21 1 start s ProxyStep parent=p step=3
        22 1 state s PROXY_STEP_SEND_WAIT argument=512
        23 1 start s2 ProxyStep parent=p step=3
        24 1 stop s2
        25 1 stop p
        30 1 start k KernelCh parent=ar channel=3 gpu=1000
        31 1 state k KERNEL_CH_STOP argument=1200
        32 1 stop k
        33 1 start c ProxyCtrl | 33 1 state c PROXY_CTRL_APPEND | 34 1 state c PROXY_CTRL_APPEND_END argument=6
        35 1 start n NetPlugin parent=s bytes=100
        finish",
    );
    let expected = unindent(
        "
        communicator init: rank=0 comm=7 ranks=2 nodes=1 interface=5 comm_hash=\"0000000000000007\"
        GroupApi: depth=2 comm=7
        ncclAllReduce 64 B f32: bytes=64 count=16 datatype=NcclFloat32 function=AllReduce captured=true comm=7
        AllShuffle 64 B f32: seq=3 bytes=64 count=16 datatype=NcclFloat32 algorithm=Ring protocol=Simple channels=0 \
            root=0 warps=0 replay=1 reduction=0 comm=7 function_text=\"AllShuffle\" tid=100
        end: group_start_returned_ns=1
        AllShuffle 64 B f32 ch 2: seq=3 bytes=64 channel=2 peer=1 steps=4 chunk_bytes=0 comm=7 queued_ns=1 transport=Net
        step 3 · AllShuffle 64 B f32: channel=2 step=3
        network wait: bytes=512
        end: starts=2
        AllShuffle 64 B f32: channel=3 gpu_start_ns=1000 comm=7 doubt=\"as NCCL saw it: this release may take \
            the stamps of other operations for its own\"
        end: gpu_stop_ns=1200
        append: comm=7
        end: appended=6
        network event: net_id=65537 net_type=0 net_device=0 net_work_request=0 net_opcode=0 net_queue_pair=0 \
            net_length=100",
    );
    let said = said.trim_end();
    // The first are the recording's own.
    let said = said.split_once("communicator init").map(|(_, rest)| format!("communicator init{rest}")).unwrap();
    assert!(said == expected, "\n-- said --\n{said}\n-- expected --\n{expected}\n");
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
fn calls_whose_stop_is_missing_or_late_are_cut_at_what_contains_them() {
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
          2..4 ncclAllReduce 1 KiB f32 (no stop before the end of what contains it)
          4..8 ncclAllReduce 1 KiB f32 (no stop before the end of what contains it)
          10..11 GroupApi (no stop before the end of what contains it)",
    );
}

#[test]
fn what_overlaps_gets_lanes_and_lanes_are_used_again() {
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
fn a_proxy_operation_that_queued_is_in_the_lane_of_the_one_before_it() {
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
    // A record may come late, or the next thread's own record be lost.
    check(
        "0 0 thread 100 python3 | 1 0 start a GroupApi | 9 0 ends | 5 0 start b GroupApi | 10 0 stop b",
        "
        python3
          1..9 GroupApi (no stop before the end of what contains it)
        unknown
          5..10 GroupApi",
    );
}

// ---- whatever comes ----

/// A trace of records that no NCCL would send.
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
fn whatever_comes_slices_nest() {
    for seed in 0..100 {
        let picture = picture(nonsense(seed, 1500));
        let last = picture.events.last().map_or(0, |event| event.time);
        for event in &picture.events {
            assert!((Records::BEGIN..=last).contains(&event.time), "{} at {}", event.name, event.time);
        }
    }
}

#[test]
fn whatever_comes_perfetto_loses_nothing() {
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
fn ranges_keep_their_times_whatever_lies_across_them() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut tracks = Tracks::new(tag(), clocks(0), &process());
    // In the order of their ends, but for a few that come late; many begin or end together, or last no time.
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
    let missing = tracks.lanes.missing;
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
fn a_file_has_only_so_many_tracks() {
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
fn a_kernel_of_hundreds_of_operations_has_them_all() {
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
    // Each handed over once, with its arrow; and each ran, for as long as the kernel.
    for (category, time) in [("operation", None), ("run", Some(2_000))] {
        let begins = begins(category);
        let numbers: std::collections::BTreeSet<u64> = begins.iter().map(|event| event.args.seq()).collect();
        assert_eq!((begins.len(), numbers.len()), (700, 700), "{category:?}");
        assert!(begins.iter().all(|event| time.is_none_or(|time| event.time == time) && !event.flows.is_empty()));
    }
    // Without an end of their own are those of which only the begin is drawn.
    let ends = picture.events.iter().filter(|event| event.kind == Type::SliceEnd && event.time == 5_000).count();
    assert_eq!(ends, 700 + 1 + 16);
    assert_eq!(picture.events.last().unwrap().args.lanes_missing(), 700 - 16);
}

#[test]
fn a_run_that_may_be_any_of_several_has_no_arrow_from_one_of_them() {
    // Two executable graphs are of one capture, and both hand-overs are before the kernel of either.
    let input = CAST.to_owned()
        + "| 1 0 start g GroupApi captured | 1 0 start a CollApi parent=g captured | 1 0 stop a | 2 0 start l KernelLaunch parent=g | 2 0 launch corr=3 in=l group=g | 2 0 node 50 in=l
           3 0 stop l | 3 0 stop g | 4 0 clone 60 of=50 | 4 0 graph 9 | 4 0 clone 61 of=50 | 4 0 graph 10
           10000 1 start p Group | 10000 1 start x Coll parent=a group=p | 10000 1 stop x | 10000 1 stop p
           10001 1 start q Group | 10001 1 start y Coll parent=a group=q | 10001 1 stop y | 10001 1 stop q
           25000 0 kernel 20000 corr=7 node=60 device=0 stream=7 | 35000 0 kernel 30000 corr=8 node=61 device=0 stream=7";
    let mut tracks = draw(&input);
    tracks.finish(HostNs(40_000), &Figures::default());
    let picture = picture(tracks);
    let runs = picture.events.iter().filter(|event| event.kind == Type::SliceBegin && event.category == "run");
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
    // 256 kernels at the same time, and so many lanes for what shares tracks, and one for the rest.
    assert_eq!(lanes("other channels"), 65);
}

// ---- the reader ----

/// A trace that a recording of some calls made; one packet in it is compressed.
fn sample() -> Vec<u8> {
    let mut tracks = draw(&format!("{CAST} | 1 0 start a GroupApi | 2 0 stop a"));
    let mut bytes = tracks.take();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    tracks.finish(HostNs(9), &Figures::default());
    std::io::Write::write_all(&mut encoder, &tracks.take()).unwrap();
    bytes.extend(compressed(&encoder.finish().unwrap()));
    bytes
}

fn compressed(stream: &[u8]) -> Vec<u8> {
    let packet = TracePacket { compressed_packets: Some(stream.to_vec()), ..TracePacket::default() };
    reader::Trace { packet: vec![packet] }.encode_to_vec()
}

#[test]
fn compressed_packets_are_read_like_others() {
    let picture = Picture::read(&sample());
    assert_eq!(picture.events.last().unwrap().name, "recording ended");
}

#[test]
fn a_cut_file_reads_to_its_last_whole_packet() {
    let bytes = sample();
    let mut packets = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + 1..=bytes.len()).find(|&end| reader::whole_length(&bytes[..end]) == end).unwrap();
        packets.push(at..end);
        at = end;
    }
    assert_eq!(reader::whole_length(&bytes), bytes.len());
    for packet in packets {
        for cut in packet.clone().skip(1) {
            let extent = reader::decoded(&bytes[..cut], |_| {}).unwrap();
            let unfinished = (cut - packet.start) as u64;
            assert_eq!(extent, reader::Extent { whole: packet.start as u64, unfinished });
            assert_eq!(reader::whole_length(&bytes[..cut]), packet.start);
        }
        reader::decoded(&bytes[..packet.end], |_| {}).unwrap();
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    for bytes in [&b"this is not a trace"[..], b"\x1f\x8b\x08", b"\0"] {
        assert!(matches!(reader::decoded(bytes, |_| {}), Err(Error::NotATrace)));
        assert_eq!(reader::whole_length(bytes), 0);
    }
    assert!(reader::decoded(&[], |_| {}).is_ok());
}

#[test]
fn a_fault_says_where_it_is_and_what_came_before_is_kept() {
    let good = sample();
    let at = good.len() as u64;
    let count = |bytes: &[u8]| {
        let mut count = 0;
        let result = reader::decoded(bytes, |_| count += 1);
        (count, result)
    };
    let (whole, result) = count(&good);
    result.unwrap();
    for fault in [
        b"no packet".to_vec(),
        // A packet that is no message; a stream that is none; one that ends inside a packet.
        b"\x0a\x02\x0b\x0b".to_vec(),
        compressed(b"no zlib stream"),
        compressed(&deflated(b"\x0a\x20\x08")),
    ] {
        let (kept, result) = count(&[&good[..], &fault].concat());
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Packet { at: fault, .. } if fault == at), "{error}");
        assert_eq!(kept, whole);
    }
    assert_eq!(reader::whole_length(&[&good[..], b"no packet"].concat()), good.len());
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let good = sample();
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let _ = reader::decoded(&bytes, |_| {});
        assert!(reader::whole_length(&bytes) <= bytes.len());
    }
}
