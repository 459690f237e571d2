//! What `ncclscope info` says about jobs that cannot be played here, from traces made up as our
//! writer would write them.

use crate::command::ncclscope;
use ncclscope::trace::reader::proto::ncclscope::Function;
use ncclscope::trace::reader::proto::perfetto::protos::track_event::Type;
use ncclscope::trace::reader::proto::perfetto::protos::{
    EventCategory, InternedData, ProcessDescriptor, ThreadDescriptor, TrackDescriptor,
};
use ncclscope::trace::reader::{Nccl, Trace as Packets, TracePacket, TrackEvent};
use prost::Message as _;
use std::fs;
use std::path::Path;

const SECOND: u64 = 1_000_000_000;
const BOOTTIME: u32 = 6;
/// Bits of a track's uuid below its process's tag.
const TRACK_BITS: u32 = 16;
const HASH: u64 = 0xaaaa_1111;
const CATEGORIES: [&str; 3] = ["operation", "api", "ncclscope"];

/// The trace of one recording.
struct Rank {
    tag: u64,
    pid: i32,
    tracks: u64,
    /// Its communicator, and when that is made.
    hash: u64,
    begin: u64,
    packets: Vec<TracePacket>,
}

impl Rank {
    fn new(tag: u64) -> Rank {
        let event_categories =
            (1..).zip(CATEGORIES).map(|(iid, name)| EventCategory { iid: Some(iid), name: Some(name.into()) });
        let interned_data = Some(InternedData { event_categories: event_categories.collect(), ..Default::default() });
        let mut rank = Rank { tag, pid: 4000 + tag as i32, tracks: 0, hash: HASH, begin: SECOND, packets: Vec::new() };
        rank.push(TracePacket { interned_data, sequence_flags: Some(1), ..Default::default() });
        rank
    }

    fn push(&mut self, packet: TracePacket) {
        let trusted_packet_sequence_id = Some((self.tag << 8 | 1) as u32);
        self.packets.push(TracePacket { trusted_packet_sequence_id, ..packet });
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> u64 {
        self.tracks += 1;
        let uuid = self.tag << TRACK_BITS | self.tracks;
        let track_descriptor = Some(TrackDescriptor { uuid: Some(uuid), ..descriptor });
        self.push(TracePacket { track_descriptor, ..Default::default() });
        uuid
    }

    /// A process: the recorded one, or that of one of its further GPUs.
    fn process(&mut self, name: &str, gpu: i32) -> u64 {
        let labels = if gpu > 0 { vec![format!("of process {}", self.pid)] } else { Vec::new() };
        let process = ProcessDescriptor {
            pid: Some(gpu << 22 | self.pid),
            process_name: Some(name.into()),
            process_labels: labels,
        };
        self.track(TrackDescriptor { process: Some(process), ..Default::default() })
    }

    fn thread(&mut self, tid: i32) -> u64 {
        let thread = ThreadDescriptor { pid: Some(self.pid), tid: Some(tid), ..Default::default() };
        self.track(TrackDescriptor { thread: Some(thread), ..Default::default() })
    }

    /// A communicator, and the track on which its operations are handed over.
    fn comm(&mut self, parent: u64, rank: i32, ranks: i32) -> u64 {
        let mut named = |name: String| {
            self.track(TrackDescriptor { name: Some(name), parent_uuid: Some(parent), ..Default::default() })
        };
        let run = named(format!("all · rank {rank} of {ranks}"));
        let handed_over = named(format!("all · rank {rank} of {ranks} · handed over"));
        let comm = Some(self.hash);
        let args = Nccl { comm, rank: Some(rank), ranks: Some(ranks), interface: Some(5), ..Default::default() };
        self.event(self.begin, Type::Instant, run, "communicator init", "operation", None, args);
        handed_over
    }

    #[allow(clippy::too_many_arguments, reason = "an event has as many parts")]
    fn event(&mut self, time: u64, kind: Type, track: u64, name: &str, category: &str, mark: Option<u64>, nccl: Nccl) {
        let category = CATEGORIES.iter().position(|it| *it == category).unwrap() as u64 + 1;
        let track_event = Some(TrackEvent {
            category_iids: vec![category],
            r#type: Some(kind.into()),
            track_uuid: Some(track),
            name: Some(name.into()),
            correlation_id: mark,
            nccl: Some(nccl),
            ..Default::default()
        });
        self.push(TracePacket {
            timestamp: Some(time),
            timestamp_clock_id: Some(BOOTTIME),
            track_event,
            ..Default::default()
        });
    }

    fn write(self, folder: &Path) {
        let packets = Packets { packet: self.packets };
        fs::write(folder.join(format!("{}.perfetto-trace", self.tag)), packets.encode_to_vec()).unwrap();
    }
}

fn all_reduce(seq: Option<u64>, bytes: u64) -> Nccl {
    Nccl {
        function: Some(Function::AllReduce.into()),
        count: Some(bytes / 4),
        bytes: Some(bytes),
        comm: Some(HASH),
        seq,
        ..Default::default()
    }
}

/// The lines of `info` about the whole job.
fn said(ranks: impl IntoIterator<Item = Rank>) -> String {
    let folder = tempfile::tempdir().unwrap();
    ranks.into_iter().for_each(|rank| rank.write(folder.path()));
    let text = ncclscope(&["info".as_ref(), folder.path().as_os_str()]).unwrap();
    let about = ["hang ", "hung ", "waits ", "mismatch ", "              "];
    text.lines().filter(|line| about.iter().any(|it| line.starts_with(it))).map(|line| format!("{line}\n")).collect()
}

#[test]
fn replays_are_no_calls_in_another_order() {
    // Both call the graph, then an all-reduce; on rank 1 the GPU is behind.
    let rank = |number: u64, calls: [(u64, u64, Option<u32>); 2]| {
        let mut rank = Rank::new(number + 1);
        let process = rank.process(&format!("rank {number} · node"), 0);
        let track = rank.comm(process, number as i32, 2);
        for (at, (seq, bytes, replay)) in (2..).zip(calls) {
            let name = format!("AllReduce {} KiB f32", bytes >> 10);
            let args = Nccl { replay, ..all_reduce(Some(seq), bytes) };
            rank.event(at * SECOND, Type::SliceBegin, track, &name, "operation", Some(seq << 28 | 7), args);
            rank.event(at * SECOND + 1000, Type::SliceEnd, track, "", "operation", None, Nccl::default());
        }
        rank
    };
    let (graph, eager) = (8 << 10, 4096 << 10);
    let job = |replay| {
        let behind = [(0, eager, None), (1, graph, replay)];
        said([rank(0, [(0, graph, replay), (1, eager, None)]), rank(1, behind)])
    };
    assert_eq!(job(Some(1)), "");
    assert!(job(None).starts_with("mismatch"), "{}", job(None));
}

#[test]
fn a_call_of_a_process_with_several_gpus_is_that_of_any_of_its_ranks() {
    // Two processes with four GPUs each. All eight ranks wait inside their calls.
    let process = |number: i32, gpus: i32| {
        let mut rank = Rank::new(number as u64 + 1);
        let first = rank.process(&format!("rank {number} · node{number} · GPU 0 (H100)"), 0);
        for gpu in 0..gpus {
            let process = match gpu {
                0 => first,
                _ => rank.process(&format!("rank {number} · node{number} · GPU {gpu} (H100)"), gpu),
            };
            rank.comm(process, number * gpus + gpu, 2 * gpus);
            let thread = rank.thread(9000 + gpu);
            let at = 2 * SECOND + gpu as u64;
            rank.event(at, Type::SliceBegin, thread, "ncclAllReduce 1 MiB f32", "api", None, all_reduce(None, 1 << 20));
        }
        rank.event(60 * SECOND, Type::Instant, first, "alive", "ncclscope", None, Nccl::default());
        rank
    };
    let alone = said([process(0, 1), process(1, 1)]);
    assert!(alone.contains("all 2 ranks have come"), "{alone}");
    let several = said([process(0, 4), process(1, 4)]);
    // Nothing tells whose calls they are.
    let expected = "the call has not returned for 58.0 s in the processes of these ranks: 0, 1, 2, 3, 4, 5, 6, 7. ";
    assert!(several.contains(expected) && !several.contains("have come and"), "{several}");
}

#[test]
fn a_missing_rank_of_a_process_with_several_gpus_is_named() {
    // Rank 2, the first of the second process's two, stops calling; or rank 3, its second.
    let job = |missing: i32, drops: i64| {
        said([0, 1].map(|number: i32| {
            let mut rank = Rank::new(number as u64 + 1);
            let first = rank.process(&format!("rank {number} · node{number} · GPU 0 (H100)"), 0);
            let second = rank.process(&format!("rank {number} · node{number} · GPU 1 (H100)"), 1);
            for (gpu, process) in [(0, first), (1, second)] {
                let own = number * 2 + gpu;
                let track = rank.comm(process, own, 4);
                for seq in 0..if own == missing { 10 } else { 20 } {
                    let (at, args) = (2 * SECOND + seq * SECOND / 10, all_reduce(Some(seq), 1 << 20));
                    let mark = Some(seq << 28 | 7);
                    rank.event(at, Type::SliceBegin, track, "AllReduce 1 MiB f32", "operation", mark, args);
                    rank.event(at + 1000, Type::SliceEnd, track, "", "operation", None, Nccl::default());
                }
            }
            let dropped = Some("records dropped".into());
            let counter = rank.track(TrackDescriptor { name: dropped, parent_uuid: Some(first), ..Default::default() });
            let value = if number == 1 { drops } else { 0 };
            rank.event(60 * SECOND, Type::Counter, counter, "", "ncclscope", None, Nccl::default());
            let last = rank.packets.last_mut().and_then(|packet| packet.track_event.as_mut()).unwrap();
            last.counter_value = Some(value);
            rank
        }))
    };
    for missing in [2, 3] {
        let text = job(missing, 0);
        let expected = format!("3 of 4 ranks have come and waited 57.0 s, missing: {missing} (last seen");
        assert!(text.starts_with("hang") && text.contains(&expected), "{text}");
        assert!(text.contains(&format!("rank {missing} is pid 4002 on node1, GPU {}\n", missing - 2)), "{text}");
        let text = job(missing, 1);
        assert!(text.starts_with("waits") && text.contains("records were dropped there"), "{text}");
    }
}

#[test]
fn a_rank_inherited_from_another_launcher_names_nobody() {
    // All four processes say that they are rank 0 of the job.
    let text = said((0..4).map(|number: i32| {
        let mut rank = Rank::new(number as u64 + 1);
        let process = rank.process("rank 0 · node", 0);
        let track = rank.comm(process, number, 4);
        for seq in 0..if number == 3 { 10 } else { 20 } {
            let (at, args) = (2 * SECOND + seq * SECOND / 10, all_reduce(Some(seq), 1 << 20));
            rank.event(at, Type::SliceBegin, track, "AllReduce 1 MiB f32", "operation", Some(seq << 28 | 7), args);
            rank.event(at + 1000, Type::SliceEnd, track, "", "operation", None, Nccl::default());
        }
        rank.event(60 * SECOND, Type::Instant, process, "alive", "ncclscope", None, Nccl::default());
        rank
    }));
    assert!(text.contains("missing: 3 (last seen") && text.contains("rank 3 is pid 4004 on node\n"), "{text}");
}

#[test]
fn a_hang_before_a_restart_is_over() {
    // In the first attempt, rank 1 stops calling.
    let attempt = |number: u64, calls: [u64; 2]| {
        [0, 1].map(|own: u64| {
            let mut rank = Rank::new(number << 4 | own);
            (rank.hash, rank.begin) = (number, number * 100 * SECOND);
            let process = rank.process(&format!("rank {own} · node"), 0);
            let track = rank.comm(process, own as i32, 2);
            let thread = rank.thread(9000);
            for seq in 0..calls[own as usize] {
                let at = rank.begin + SECOND + seq * SECOND / 10;
                let args = Nccl { comm: Some(number), ..all_reduce(Some(seq), 1 << 20) };
                rank.event(at - 2000, Type::SliceBegin, thread, "ncclAllReduce 1 MiB f32", "api", None, args.clone());
                rank.event(at - 1000, Type::SliceEnd, thread, "", "api", None, Nccl::default());
                rank.event(
                    at,
                    Type::SliceBegin,
                    track,
                    "AllReduce 1 MiB f32",
                    "operation",
                    Some(seq << 28 | number),
                    args,
                );
                rank.event(at + 1000, Type::SliceEnd, track, "", "operation", None, Nccl::default());
            }
            rank.event(rank.begin + 60 * SECOND, Type::Instant, process, "alive", "ncclscope", None, Nccl::default());
            rank
        })
    };
    let over = "this is over: its ranks were started again";
    let stuck = said(attempt(1, [20, 10]));
    assert!(stuck.starts_with("hang") && !stuck.contains(over), "{stuck}");
    let folder = |last| said(attempt(1, [20, 10]).into_iter().chain(attempt(2, last)));
    let healthy = folder([20, 20]);
    assert!(healthy.starts_with("hung ") && healthy.contains(over) && !healthy.contains("hang "), "{healthy}");
    // The one that goes on comes first.
    let both = folder([30, 20]);
    assert!(both.starts_with("hang") && both.contains(over) && both.find("seq 20") < both.find("seq 10"), "{both}");
    // A comparison takes the last attempt, and says first that it hangs.
    let [healthy, restarted] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    attempt(3, [20, 20]).into_iter().for_each(|rank| rank.write(healthy.path()));
    attempt(1, [20, 10]).into_iter().chain(attempt(2, [30, 20])).for_each(|rank| rank.write(restarted.path()));
    let paths = [healthy.path(), restarted.path()].map(Path::as_os_str);
    let compared = ncclscope(&["compare".as_ref(), paths[0], paths[1]]).unwrap();
    assert!(compared.starts_with("In B, the job hangs: AllReduce 1 MiB f32, seq 20 "), "{compared}");
    assert!(compared.contains("\n  B: Left out: 2 files of earlier attempts, such as "), "{compared}");
    let swapped = ncclscope(&["compare".as_ref(), paths[1], paths[0]]).unwrap();
    assert!(swapped.starts_with("In A, the job hangs: ") && !swapped.contains("In B, "), "{swapped}");
    // So do the commands that add up and merge.
    let [merged, page] = ["merged.perfetto-trace", "page.html"].map(|name| healthy.path().join(name));
    let done = |command: &str, output: &Path| {
        ncclscope(&[command.as_ref(), paths[1], "-o".as_ref(), output.as_os_str()]).unwrap()
    };
    let [merged, page] = [done("merge", &merged), done("report", &page)];
    assert!(merged.starts_with("Left out: 2 files of earlier attempts, such as "), "{merged}");
    assert!(merged.contains(": 2 files, "), "{merged}");
    assert!(page.contains("from 2 traces") && page.contains("left out: 2 files of earlier attempts"), "{page}");
    let words = ["summary", "--table", "environment", "--format", "csv"].map(AsRef::as_ref);
    let summed = ncclscope(&[&words[..], &[paths[1]]].concat()).unwrap();
    assert_eq!(summed.lines().filter(|line| line.contains(",process,")).count(), 2, "{summed}");
}
