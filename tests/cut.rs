//! `ncclscope cut`: the part that is kept is unchanged and complete.

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::perfetto::{Trace, Value};
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::{Slice, Timeline};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What the cut writes on an instant that it moved.
const REMARK: &str = "outside what ncclscope cut kept";

/// A trace on disk and as Perfetto reads it.
struct Original {
    folder: TempDir,
    file: PathBuf,
    trace: Trace,
}

/// What identifies a slice: begin, duration, track, name, depth, arguments.
type Identity = (i64, Option<i64>, String, String, usize, String);

impl Original {
    /// The traces of scenarios in one file, each as a rank of its own.
    fn of(scenarios: &[&str]) -> Original {
        let mut bytes = Vec::new();
        for (rank, scenario) in scenarios.iter().enumerate() {
            let path = format!("{}/scenarios/{scenario}.txt", env!("CARGO_MANIFEST_DIR"));
            let play = Play::new(fs::read_to_string(path).unwrap()).env("NCCLSCOPE_PRESET", "full");
            let play = play.env("NCCLSCOPE_KERNEL_CH", "force").env("NCCLSCOPE_RANK", rank.to_string());
            let recording = Recording::by(play);
            bytes.extend(fs::read(recording.traces.file()).unwrap());
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("original.perfetto-trace");
        fs::write(&file, &bytes).unwrap();
        Original { folder, file, trace: Trace::from_bytes(bytes).unwrap() }
    }

    /// Begin and duration of the trace.
    fn span(&self) -> (i64, i64) {
        let row = &self.trace.rows("SELECT trace_start() AS start, trace_dur() AS dur")[0];
        (row.i64("start"), row.i64("dur"))
    }

    fn cut(&self, words: &[&str]) -> Result<Trace, String> {
        let output = self.folder.path().join("part.perfetto-trace");
        let _ = fs::remove_file(&output);
        let mut all = vec!["cut".as_ref(), self.file.as_os_str(), "-o".as_ref(), output.as_os_str()];
        all.extend(words.iter().map(|word| Path::new(word).as_os_str()));
        ncclscope(&all)?;
        Ok(Trace::open(&output).unwrap())
    }
}

fn identities(timeline: &Timeline, keep: impl Fn(&Slice) -> bool) -> Vec<Identity> {
    let kept = timeline.slices.iter().filter(|slice| keep(slice));
    let mut all: Vec<_> = kept
        .map(|slice| {
            let Slice { begin, duration, name, depth, .. } = slice;
            (*begin, *duration, timeline.place(slice), name.clone(), *depth, slice.arguments())
        })
        .collect();
    all.sort();
    all
}

fn has_remark(slice: &Slice) -> bool {
    matches!(slice.args.get("note"), Some(Value::Text(note)) if note.contains(REMARK))
}

fn is_instant(slice: &Slice) -> bool {
    slice.duration == Some(0)
}

/// Whether a slice overlaps a window.
fn overlaps(slice: &Slice, begin: i64, end: i64) -> bool {
    let until = slice.duration.map_or(i64::MAX, |duration| slice.begin + duration);
    slice.begin <= end && (until > begin || slice.begin >= begin)
}

/// Asserts that a part contains exactly what it should, and has no other problems.
fn assert_part(original: &Original, part: &Trace, begin: i64, end: i64, keep: impl Fn(&Slice) -> bool) {
    let before = Timeline::read(&original.trace);
    let after = Timeline::read(part);
    let open = after.slices.iter().filter(|slice| slice.duration.is_none()).count();
    assert_sound(part, open as u64);
    let expected = identities(&before, |slice| overlaps(slice, begin, end) && keep(slice));
    let found = identities(&after, |slice| !has_remark(slice));
    assert_eq!(found, expected);
    for moved in after.slices.iter().filter(|slice| has_remark(slice)) {
        assert!(is_instant(moved) && (begin..=end).contains(&moved.begin), "{moved:?}");
    }
    // No track is empty.
    let above: BTreeSet<i64> = after.tracks.iter().filter_map(|track| track.parent).collect();
    for track in &after.tracks {
        let drawn = after.slices.iter().any(|slice| slice.track == track.id);
        let counts = part.rows(&format!("SELECT count() AS n FROM counter WHERE track_id = {}", track.id))[0].i64("n");
        let process =
            part.rows(&format!("SELECT count() AS n FROM process_track WHERE id = {} AND name IS NULL", track.id));
        assert!(drawn || counts > 0 || above.contains(&track.id) || process[0].i64("n") > 0, "{track:?} is empty");
    }
}

#[test]
fn a_cut_of_everything_is_everything() {
    for scenario in ["eager_allreduce", "graph_replay", "kernel_channels", "net_plugin", "proxy_ctrl", "abort"] {
        let original = Original::of(&[scenario]);
        let part = original.cut(&[]).unwrap();
        assert_part(&original, &part, i64::MIN, i64::MAX, |_| true);
        let counters = "SELECT ts, value FROM counter ORDER BY ts, value";
        assert_eq!(part.text(counters), original.trace.text(counters), "{scenario}");
        let clocks = "SELECT clock_name, clock_value FROM clock_snapshot WHERE clock_name IS NOT NULL ORDER BY 1, 2";
        assert_eq!(part.text(clocks), original.trace.text(clocks), "{scenario}");
    }
}

#[test]
fn a_time_window_keeps_everything_that_overlaps_it() {
    let mut across = 0;
    for scenarios in [&["eager_allreduce", "net_plugin", "abort"][..], &["graph_replay"], &["kernel_channels"]] {
        let original = Original::of(scenarios);
        let (start, duration) = original.span();
        let parts = [(0, 100), (300, 301), (500, 700), (900, 1000), (0, 1)];
        let parts = parts.map(|(from, to)| [from, to].map(|part| duration * part / 1000));
        // Through the middle of the longest slice, wherever that is in this run.
        let longest = "SELECT ts + dur / 2 AS middle FROM slice ORDER BY dur DESC LIMIT 1";
        let middle = original.trace.rows(longest)[0].i64("middle") - start;
        for [from, to] in parts.into_iter().chain([[middle, duration.min(middle + duration / 10 + 1)]]) {
            let [begin, end] = [start + from, start + to];
            let part = match original.cut(&["--time", &format!("{from}ns..{to}ns")]) {
                Ok(part) => part,
                Err(reason) => {
                    assert!(reason.contains("no slice of"), "{reason}");
                    let before = Timeline::read(&original.trace);
                    let inside = |slice: &&Slice| !is_instant(slice) && overlaps(slice, begin, end);
                    assert_eq!(before.slices.iter().filter(inside).count(), 0);
                    continue;
                }
            };
            assert_part(&original, &part, begin, end, |_| true);
            let last_word = "SELECT count() AS n FROM slice JOIN args USING (arg_set_id) WHERE key = 'nccl.recorded'";
            assert_eq!(part.text(last_word), original.trace.text(last_word), "the recordings' last words");
            let open_at_edge = format!("SELECT count() AS n FROM slice WHERE dur <> 0 AND ts < {begin}");
            across += part.rows(&open_at_edge)[0].i64("n");
            // Counters have a value from the start on.
            let known = format!("SELECT count() AS n FROM counter WHERE ts BETWEEN {begin} AND {end}");
            assert!(part.rows(&known)[0].i64("n") > 0);
        }
    }
    assert!(across > 0, "no cut went through a slice");
}

#[test]
fn ranks_are_kept_with_everything_that_belongs_to_them() {
    let original = Original::of(&["eager_allreduce", "graph_replay", "net_plugin"]);
    let part = original.cut(&["--ranks", "0,2-7"]).unwrap();
    let before = Timeline::read(&original.trace);
    let of_rank_1 = original.trace.rows(
        "SELECT t.id FROM process_track t JOIN process USING (upid) WHERE process.name LIKE 'rank 1 %' UNION \
         SELECT t.id FROM thread_track t JOIN thread USING (utid) JOIN process USING (upid) WHERE process.name LIKE 'rank 1 %'",
    );
    let of_rank_1: BTreeSet<i64> = of_rank_1.iter().map(|row| row.i64("id")).collect();
    assert!(before.slices.iter().any(|slice| of_rank_1.contains(&slice.track)));
    assert_part(&original, &part, i64::MIN, i64::MAX, |slice| !of_rank_1.contains(&slice.track));
    let names = part.text("SELECT substr(name, 1, 6) AS name FROM process WHERE pid > 0 ORDER BY name");
    assert_eq!(names, "name\nrank 0\nrank 2\n");
}

#[test]
fn steps_can_be_left_out() {
    let original = Original::of(&["eager_allreduce"]);
    let steps = "SELECT count() AS n FROM slice JOIN args USING (arg_set_id) WHERE key = 'nccl.step'";
    assert!(original.trace.rows(steps)[0].i64("n") > 3);
    let part = original.cut(&["--no-steps"]).unwrap();
    assert_eq!(part.rows(steps)[0].i64("n"), 0);
    let before = Timeline::read(&original.trace);
    let is_step = |slice: &Slice| {
        let mut around = Some(slice);
        while let Some(this) = around {
            if this.args.contains_key("step") {
                return true;
            }
            around = this.parent.and_then(|parent| before.slices.iter().find(|other| other.id == parent));
        }
        false
    };
    assert_part(&original, &part, i64::MIN, i64::MAX, |slice| !is_step(slice));
}

const TWO_COMMUNICATORS: &str = "\
user init dp comm=0xd9 rank=0 nranks=2 name=\"data parallel\"
user init tp comm=0x79 rank=1 nranks=2 name=\"tensor parallel\"
user start g dp GroupApi groupDepth=1
user start a dp CollApi parent=g func=AllReduce count=1Mi datatype=ncclFloat32 stream=0x1
user stop a
user start b tp CollApi parent=g func=AllGather count=1Mi datatype=ncclFloat32 stream=0x1
user stop b
user start plan dp Group
user start ca dp Coll parent=a group=plan seqNumber=0 func=AllReduce count=1Mi datatype=ncclFloat32 nChannels=1 algo=RING proto=SIMPLE
user stop ca
user stop plan
user start plan2 tp Group
user start cb tp Coll parent=b group=plan2 seqNumber=0 func=AllGather count=1Mi datatype=ncclFloat32 nChannels=1 algo=RING proto=SIMPLE
user stop cb
user stop plan2
user stop g
proxy start pa dp ProxyOp parent=ca channelId=0 peer=1 nSteps=1 chunkSize=4Mi isSend=1
proxy state pa OpInProgress
proxy start sa dp ProxyStep parent=pa step=0
proxy state sa StepSendGpuWait
proxy state sa StepSendWait value=4Mi
proxy stop sa
proxy stop pa
proxy start pb tp ProxyOp parent=cb channelId=0 peer=0 nSteps=1 chunkSize=4Mi isSend=1
proxy state pb OpInProgress
proxy start sb tp ProxyStep parent=pb step=0
proxy state sb StepSendGpuWait
proxy state sb StepSendWait value=4Mi
proxy stop sb
proxy stop pb
user finalize dp
user finalize tp
";

#[test]
fn a_communicator_is_kept_without_the_others() {
    let recording = Recording::of(TWO_COMMUNICATORS);
    let folder = tempfile::tempdir().unwrap();
    let trace = recording.traces.open();
    let original = Original { folder, file: recording.traces.file(), trace };
    let operations = "SELECT DISTINCT extract_arg(arg_set_id, 'nccl.function') AS f FROM slice WHERE category = 'operation' AND f IS NOT NULL";
    let steps = "SELECT count() AS n FROM slice JOIN args USING (arg_set_id) WHERE key = 'nccl.step'";
    assert_eq!(original.trace.rows(steps)[0].i64("n"), 2);
    for name in ["tensor parallel", "0000000000000079", "0x0000000000000079"] {
        let part = original.cut(&["--comm", name]).unwrap();
        assert_sound(&part, 0);
        assert_eq!(part.text(operations), "f\nAllGather\n");
        // A transfer names no communicator. It is drawn beside the operation it belongs to.
        assert_eq!(part.rows(steps)[0].i64("n"), 1);
        // The group of calls belongs to the other communicator, and encloses the call that is kept.
        let calls = part.text("SELECT name FROM slice WHERE category = 'api' ORDER BY ts, id");
        assert!(calls.contains("ncclAllGather") && !calls.contains("ncclAllReduce"), "{calls}");
    }
}

#[test]
fn counters_belong_to_their_communicator() {
    // Rank 0, with a communicator of all ranks and one of its host's.
    let mut bytes = Vec::new();
    Job::new(4, 2, 5).write(0, false, &mut bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("original.perfetto-trace");
    fs::write(&file, &bytes).unwrap();
    let original = Original { folder, file, trace: Trace::from_bytes(bytes).unwrap() };
    let counters = |trace: &Trace| -> Vec<String> {
        let sql = "SELECT DISTINCT t.name FROM counter c JOIN counter_track t ON t.id = c.track_id \
                   WHERE t.name GLOB '* of *' ORDER BY t.name";
        trace.rows(sql).iter().map(|row| row.str("name").to_owned()).collect()
    };
    let (of_world, others): (Vec<_>, Vec<_>) =
        counters(&original.trace).into_iter().partition(|name| name.contains(" · world · "));
    assert!(of_world.len() > 1 && !others.is_empty(), "{of_world:?} {others:?}");
    for words in [&["--comm", "world"][..], &["--comm", "world", "--time", "2ms.."]] {
        assert_eq!(counters(&original.cut(words).unwrap()), of_world, "{words:?}");
    }
}

#[test]
fn what_a_merge_drew_of_a_communicator_is_left_out_with_it() {
    let folder = tempfile::tempdir().unwrap();
    Job::new(4, 2, 5).write_to(folder.path(), 4, true);
    let file = folder.path().join("merged");
    ncclscope(&["merge".as_ref(), folder.path().as_os_str(), "-o".as_ref(), file.as_os_str()]).unwrap();
    let original = Original { trace: Trace::open(&file).unwrap(), folder, file };
    let drawn = |trace: &Trace| -> BTreeSet<String> {
        let sql = "SELECT name FROM track WHERE name GLOB '* · ranks waiting' OR name GLOB '* · first to last rank'";
        trace.rows(sql).iter().map(|row| row.str("name").to_owned()).collect()
    };
    let (of_world, others): (BTreeSet<_>, BTreeSet<_>) =
        drawn(&original.trace).into_iter().partition(|name| name.starts_with("world · "));
    assert!(of_world.len() == 2 && !others.is_empty(), "{of_world:?} {others:?}");
    assert_eq!(drawn(&original.cut(&["--comm", "world"]).unwrap()), of_world);
}

#[test]
fn an_impossible_cut_says_why() {
    let original = Original::of(&["eager_allreduce"]);
    for (words, says) in [
        (&["--time", "1h.."][..], "the trace is over by then; it lasts"),
        (&["--time", "1..2"], "has no unit"),
        (&["--ranks", "7"], "none of them is in the trace; it lasts"),
        (&["--ranks", "x"], "not a rank"),
        (&["--comm", "nobody"], "no such communicator in the trace"),
        (&["--time", "0ns..1ns"], "no slice of"),
    ] {
        let reason = original.cut(words).err().unwrap();
        assert!(reason.contains(says), "{words:?}: {reason}");
    }
    let unranked = Recording::of("user init a comm=1 rank=0 nranks=1\nuser finalize a");
    let output = original.folder.path().join("other");
    let words = |file: &Path| -> Vec<std::ffi::OsString> {
        vec!["cut".into(), file.into(), "-o".into(), output.clone().into(), "--ranks".into(), "0".into()]
    };
    let reason = ncclscope(&words(&unranked.traces.file())).unwrap_err();
    assert!(reason.contains("knows its rank in the job"), "{reason}");
    let no_trace = original.folder.path().join("no-trace");
    fs::write(&no_trace, "hello").unwrap();
    let reason = ncclscope(&words(&no_trace)).unwrap_err();
    assert!(reason.contains("match no known format"), "{reason}");
    assert!(!output.exists());
    fs::write(&output, "here").unwrap();
    let reason = ncclscope(&words(&original.file)).unwrap_err();
    assert!(reason.contains("exists already"), "{reason}");
}

#[test]
fn an_unfinished_last_packet_is_left_out() {
    let original = Original::of(&["eager_allreduce"]);
    let mut bytes = fs::read(&original.file).unwrap();
    bytes.extend([0x0a, 100, 1, 2, 3]);
    fs::write(&original.file, bytes).unwrap();
    let part = original.cut(&[]).unwrap();
    assert_part(&original, &part, i64::MIN, i64::MAX, |_| true);
}

/// Traces that our writer does not make: packets as other tools may write them.
mod foreign {
    use super::*;
    use ncclscope::trace::reader::proto::perfetto::protos::clock_snapshot::Clock;
    use ncclscope::trace::reader::proto::perfetto::protos::track_event::Type;
    use ncclscope::trace::reader::proto::perfetto::protos::{
        ClockSnapshot, EventName, GpuRenderStageEvent, InternedData, ProcessDescriptor, TracePacketDefaults,
        TrackDescriptor, TrackEventDefaults,
    };
    use ncclscope::trace::reader::{Trace as Packets, TracePacket, TrackEvent};
    use prost::Message;

    const BOOTTIME: u32 = 6;

    fn at(sequence: u32, time: u64, event: TrackEvent) -> TracePacket {
        TracePacket {
            trusted_packet_sequence_id: Some(sequence),
            timestamp: Some(time),
            track_event: Some(event),
            ..TracePacket::default()
        }
    }

    fn event(kind: Type, track: Option<u64>) -> TrackEvent {
        TrackEvent { r#type: Some(kind as i32), track_uuid: track, ..TrackEvent::default() }
    }

    /// A slice on the sequence's own track, with a name that is interned elsewhere.
    fn slice(sequence: u32, begin: u64, end: u64, iid: u64) -> [TracePacket; 2] {
        let named = TrackEvent { name_iid: Some(iid), ..event(Type::SliceBegin, None) };
        [at(sequence, begin, named), at(sequence, end, event(Type::SliceEnd, None))]
    }

    fn names(sequence: u32, names: &[(u64, &str)]) -> TracePacket {
        let event_names =
            names.iter().map(|(iid, name)| EventName { iid: Some(*iid), name: Some((*name).to_owned()) }).collect();
        TracePacket {
            trusted_packet_sequence_id: Some(sequence),
            interned_data: Some(InternedData { event_names, ..InternedData::default() }),
            ..TracePacket::default()
        }
    }

    /// Starts or restarts a sequence: its clock 64 reads `reading` at `time`.
    fn state(sequence: u32, track: u64, (reading, time): (u64, u64), is_incremental: bool) -> TracePacket {
        let clock =
            |id, timestamp, is_incremental| Clock { clock_id: Some(id), timestamp: Some(timestamp), is_incremental };
        TracePacket {
            trusted_packet_sequence_id: Some(sequence),
            sequence_flags: Some(1),
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![clock(BOOTTIME, time, None), clock(64, reading, is_incremental.then_some(true))],
            }),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(64),
                track_event_defaults: Some(TrackEventDefaults { track_uuid: Some(track) }),
            }),
            ..TracePacket::default()
        }
    }

    fn original(packets: Vec<TracePacket>) -> Original {
        let track = |uuid, name: &str| TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(1),
            name: Some(name.to_owned()),
            ..TrackDescriptor::default()
        };
        let process =
            ProcessDescriptor { pid: Some(7), process_name: Some("rank 0 · a".into()), ..Default::default() };
        let process = TrackDescriptor { uuid: Some(1), process: Some(process), ..TrackDescriptor::default() };
        let described = [process, track(2, "first"), track(3, "second")].map(|descriptor| TracePacket {
            trusted_packet_sequence_id: Some(9),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        });
        original_of(described.into_iter().chain(packets).collect())
    }

    fn original_of(packet: Vec<TracePacket>) -> Original {
        let bytes = Packets { packet }.encode_to_vec();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("original.perfetto-trace");
        fs::write(&file, &bytes).unwrap();
        Original { folder, file, trace: Trace::from_bytes(bytes).unwrap() }
    }

    #[test]
    fn clocks_and_names_of_any_kind_are_followed() {
        let mut packets = Vec::new();
        // Times since an origin, in any order.
        packets.push(state(5, 3, (0, 1000), false));
        packets.push(names(5, &[(7, "seven")]));
        packets.extend(slice(5, 900, 950, 7)); // 1900 to 1950
        packets.extend(slice(5, 300, 400, 7)); // 1300 to 1400
        // Deltas, with a packet in between on the trace's own clock; then the sequence restarts.
        packets.push(state(4, 2, (1000, 1000), true));
        packets.push(names(4, &[(1, "one"), (2, "two")]));
        packets.extend(slice(4, 100, 100, 1)); // 1100 to 1200
        let mut late = at(4, 1050, TrackEvent { name: Some("late".into()), ..event(Type::Instant, Some(3)) });
        late.timestamp_clock_id = Some(BOOTTIME);
        packets.push(late);
        packets.extend(slice(4, 100, 300, 2)); // 1300 to 1600
        packets.push(state(4, 2, (2000, 2000), true));
        packets.push(names(4, &[(1, "uno")]));
        packets.extend(slice(4, 0, 50, 1)); // 2000 to 2050
        let original = original(packets);
        assert_sound(&original.trace, 0);
        let (start, _) = original.span();
        assert_eq!(start, 1050);
        for (begin, end) in [(0, 10_000), (200, 300), (300, 1000), (500, 1000), (860, 960), (0, 100)] {
            let part = original.cut(&["--time", &format!("{begin}ns..{end}ns")]).unwrap();
            let first = |slice: &Slice| slice.name == "late" && (begin..=end).contains(&(slice.begin - start));
            let [from, to] = [start + begin, start + end];
            assert_part(&original, &part, from, to, |slice| slice.name != "late" || first(slice));
        }
    }

    #[test]
    fn arrows_that_lose_an_end_are_left_out() {
        let with = |kind, track, flows: &[u64]| TrackEvent {
            flow_ids: flows.to_vec(),
            name: (kind == Type::SliceBegin).then(|| "slice".to_owned()),
            ..event(kind, Some(track))
        };
        let original = original(
            vec![
                at(4, 100, with(Type::SliceBegin, 2, &[11, 12])),
                at(4, 200, with(Type::SliceEnd, 2, &[])),
                at(4, 300, with(Type::SliceBegin, 3, &[11, 13])),
                at(4, 400, with(Type::SliceEnd, 3, &[])),
                at(4, 500, with(Type::SliceBegin, 2, &[12])),
                at(4, 600, with(Type::SliceEnd, 2, &[13])),
            ]
            .into_iter()
            .enumerate()
            .map(|(index, mut packet)| {
                packet.sequence_flags = (index == 0).then_some(1);
                packet
            })
            .collect(),
        );
        let arrows = |trace: &Trace| trace.rows("SELECT count() AS n FROM flow")[0].i64("n");
        assert_sound(&original.trace, 0);
        assert_eq!(arrows(&original.trace), 3);
        for (window, left) in [("0ns..1us", 3), ("0ns..250ns", 1), ("150ns..1us", 1), ("250ns..350ns", 0)] {
            let part = original.cut(&["--time", window]).unwrap();
            assert_sound(&part, 0);
            assert_eq!(arrows(&part), left, "{window}");
        }
    }

    #[test]
    fn kernels_as_gpu_work_stay_with_their_process() {
        const TAGS: [u32; 2] = [5, 6];
        let process = |tag: u32| TrackDescriptor {
            uuid: Some(u64::from(tag) << 16 | 1),
            process: Some(ProcessDescriptor {
                pid: Some(tag as i32),
                process_name: Some(format!("rank {} · a", tag - TAGS[0])),
                ..Default::default()
            }),
            ..TrackDescriptor::default()
        };
        let described = |tag: u32| TracePacket {
            trusted_packet_sequence_id: Some(tag << 8 | 1),
            track_descriptor: Some(process(tag)),
            ..TracePacket::default()
        };
        let work = |tag: u32| TracePacket {
            trusted_packet_sequence_id: Some(tag << 8 | 2),
            sequence_flags: Some(1),
            timestamp: Some(150),
            gpu_render_stage_event: Some(GpuRenderStageEvent { event_id: Some(tag.into()), ..Default::default() }),
            ..TracePacket::default()
        };
        let slice = |tag: u32| {
            let track = Some(u64::from(tag) << 16 | 1);
            let named = TrackEvent { name: Some("slice".to_owned()), ..event(Type::SliceBegin, track) };
            [at(tag << 8 | 1, 100, named), at(tag << 8 | 1, 200, event(Type::SliceEnd, track))]
        };
        let all = TAGS.into_iter().flat_map(|tag| [vec![described(tag), work(tag)], slice(tag).to_vec()].concat());
        let original = original_of(all.collect());
        let output = original.folder.path().join("part.perfetto-trace");
        original.cut(&["--ranks", "1"]).unwrap();
        let part = Packets::decode(&fs::read(output).unwrap()[..]).unwrap();
        let mut of_stages = Vec::new();
        ncclscope::trace::reader::decoded(&part.encode_to_vec(), |packet| {
            of_stages.extend(packet.gpu_render_stage_event.map(|stage| stage.event_id()));
        })
        .unwrap();
        assert_eq!(of_stages, [u64::from(TAGS[1])]);
    }
}
