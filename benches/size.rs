//! How many bytes a slice takes in the file, by kind, and the same in other encodings.
//!
//! ```text
//! cargo bench --bench size
//! ```
//!
//! Each kind is drawn 100,000 times, at irregular times. The compressed size is that of packets of
//! 192 KiB, as in a recording.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use flate2::write::{GzEncoder, ZlibEncoder};
use ncclscope::model::activity::{Kernel, Place, Span};
use ncclscope::model::event::{self, Event};
use ncclscope::model::ids::{Handle, ProcessTag};
use ncclscope::model::state;
use ncclscope::model::time::{GpuNs, HostNs};
use ncclscope::model::timeline::{
    Channel, Comm, Entry, Method, Operation, Owner, ProxyOp, Thread, ThreadId, Timing, What,
};
use ncclscope::model::word::Word;
use ncclscope::trace::args::Args;
use ncclscope::trace::fields::{nccl, trace};
use ncclscope::trace::names::OperationName;
use ncclscope::trace::reader;
use ncclscope::trace::tracks::{ProcessInfo, Tracks};
use ncclscope::trace::words::Category;
use ncclscope::trace::writer::{Clocks, Extra, Form, Place as At, Writer};

const NUMBER: u64 = 100_000;
const PACKET: usize = 192 << 10;
/// A process tag with high bits set, as most have: it is in every packet.
const TAG: u64 = 0x9e37_79b9_7f4a_7c15;
const PLACE: Place = Place { device: 0, context: 1, stream: 13 };

fn main() {
    println!("| slice | slices | bytes each, plain | compressed |");
    println!("| --- | --- | --- | --- |");
    row("a call of the application (`ncclAllReduce`)", |draw, n, at| {
        let event = Event::CollApi(event::CollApi { count: 1 << 22, func: Word::ALL_REDUCE, ..Default::default() });
        let operation = operation(n, at, event);
        let what = What::CallBegin {
            id: operation.id,
            thread: ThreadId(0),
            comm: Some(draw.comm),
            event: &event,
            operation: Some(&operation),
            asked_by: &[],
            doubt: None,
        };
        draw.at(at, what);
        draw.at(at + 300, What::CallEnd { id: operation.id, group_marks: [None; 2] });
    });
    row("an operation handed over", |draw, n, at| {
        let operation = all_reduce(n, at);
        let (id, call, comm) = (operation.id, handle(n + (1 << 30)), Some(draw.comm));
        let operation = &Arc::new(operation);
        let what = What::OperationBegin { id, thread: ThreadId(0), call, comm, operation, replay: None, doubt: None };
        draw.at(at, what);
        draw.at(at + 2_000, What::OperationEnd { id });
    });
    row("a kernel of NCCL, its operation on the communicator's track, and two counters", |draw, n, at| {
        let operations = [Arc::new(all_reduce(n, at))];
        let kernel = kernel(n, at);
        let owner = Owner::Operations {
            method: Method::Bracket,
            comm: Some(draw.comm),
            operations: &operations,
            around: &[],
            late: &[],
            channels: &[],
            launch: Some(handle(n + (1 << 30))),
            replay: None,
            untold: 0,
        };
        draw.at(at, What::Kernel { kernel: &kernel, owner });
    });
    row("a kernel of the application", |draw, n, at| {
        let kernel = Kernel { name: "elementwise_kernel".into(), ..kernel(n, at) };
        draw.at(at, What::Kernel { kernel: &kernel, owner: Owner::Application });
    });
    row("a kernel channel", |draw, n, at| {
        let operation = all_reduce(n, at);
        let channel = Channel { channel: (n % 8) as u8, start: GpuNs(at + 1_795_000_000_000_000_000), phase: None };
        let what = What::ChannelBegin {
            id: handle(n + (1 << 30)),
            comm: Some(draw.comm),
            channel,
            operation: Some(&operation),
            timing: Timing::Gpu { error_ns: 3_600, place: Some(PLACE) },
            unreliable: false,
            doubt: None,
        };
        draw.at(at, what);
        draw.at(
            at + 5_000,
            What::ChannelEnd {
                id: handle(n + (1 << 30)),
                stop: GpuNs(at + 1_795_000_000_000_005_000),
                timing: None,
                doubt: None,
            },
        );
    });
    row("a proxy operation", |draw, n, at| {
        let operation = all_reduce(n, at);
        let proxy = proxy(draw.comm, &operation, n);
        draw.at(at - 900, What::ProxyOpTaken { thread: ThreadId(1) });
        draw.at(
            at,
            What::ProxyOpBegin {
                id: handle(n + (1 << 30)),
                thread: ThreadId(1),
                proxy,
                queued_ns: 900,
                was_taken: true,
            },
        );
        draw.at(at + 5_000, What::ProxyOpEnd { id: handle(n + (1 << 30)) });
    });
    row("a transfer with its three waits, and counters", |draw, n, at| {
        let operation = all_reduce(n, at);
        let (id, op, step) = (handle(n), handle(n + (1 << 30)), (n % 8) as i32);
        let proxy = Some(proxy(draw.comm, &operation, n));
        draw.at(at, What::StepBegin { id, op, thread: ThreadId(1), step, proxy });
        for (number, state) in
            [state::PROXY_STEP_SEND_GPU_WAIT, state::PROXY_STEP_SEND_PEER_WAIT, state::PROXY_STEP_SEND_WAIT]
                .into_iter()
                .enumerate()
        {
            let bytes = (state == state::PROXY_STEP_SEND_WAIT).then_some(1 << 19);
            draw.at(at + 1_000 * number as u64, What::StepPhase { id, state, bytes });
        }
        draw.at(at + 5_000, What::StepEnd { id, starts: 1, stopped: true });
    });
    println!();
    six_arguments();
}

/// Draws the slices of one kind.
struct Draw<'t> {
    tracks: &'t mut Tracks,
    comm: &'t Comm,
}

impl Draw<'_> {
    fn at(&mut self, time: u64, what: What<'_>) {
        self.tracks.draw(&Entry { time: HostNs(time), what });
    }
}

fn row(kind: &str, mut draw: impl FnMut(&mut Draw<'_>, u64, u64)) {
    let info = ProcessInfo { pid: 1, name: "bench".into(), labels: Vec::new(), rank: None, world_size: None };
    let mut tracks = Tracks::new(ProcessTag::from_random(TAG), clocks(), &info);
    let comm = comm();
    for (id, name) in [(0, "python3"), (1, "NCCL Progress")] {
        let what = What::Thread(Thread { id: ThreadId(id), tid: 100 + id as i32, name });
        tracks.draw(&Entry { time: HostNs(0), what });
    }
    tracks.draw(&Entry { time: HostNs(0), what: What::CommInit(&comm) });
    let _ = tracks.take();
    let before = tracks.written().begins;
    let mut time = 0;
    for n in 0..NUMBER {
        time += 20_000 + noise(n) % 5_000;
        draw(&mut Draw { tracks: &mut tracks, comm: &comm }, n, time);
    }
    let slices = tracks.written().begins - before;
    let bytes = tracks.take();
    let each = |bytes: usize| bytes as f64 / slices as f64;
    println!("| {kind} | {} | {:.1} | {:.1} |", slices / NUMBER, each(bytes.len()), each(deflated(&bytes)));
}

/// The slice that the project's size target is about: six typed arguments, an operation's number,
/// one end of an arrow, and the slice's end.
fn six_arguments() {
    let (operation, comm) = (all_reduce(0, 0), comm());
    let name = OperationName { operation: &operation, prefix: "" };
    let mut writer = Writer::new(ProcessTag::from_random(TAG), clocks());
    let track = writer.track(Form::Plain { name: "track" }, At::default()).expect("a track");
    let sequence = writer.sequence(track, HostNs(0));
    let _ = writer.take();
    let mut args = Args::new();
    let mut time = 0;
    let begin = Instant::now();
    for n in 0..NUMBER {
        time += 20_000 + noise(n) % 5_000;
        args.clear()
            .uint(nccl::SEQ, n)
            .uint(nccl::BYTES, 1 << 24)
            .uint(nccl::COUNT, 1 << 22)
            .uint(nccl::DATATYPE, 24)
            .uint(nccl::FUNCTION, 2)
            .uint(nccl::CHANNELS, 8);
        let flows = [0x1234_5000_0000_0000 | n];
        let number = Operation { id: handle(n), ..all_reduce(n, time) }.correlation(Some(&comm));
        let extra = Extra { args: args.bytes(), correlation: number, flows: &flows };
        writer.begin(sequence, track, HostNs(time), Category::Operation, &name, &extra);
        writer.end(sequence, track, HostNs(time + 9_000), &Extra::default());
    }
    let ours = begin.elapsed();
    let bytes = writer.take();
    let (mut packets, mut json) = (Vec::new(), String::from("["));
    reader::decoded(&bytes, |packet| packets.push(packet)).expect("our own trace");
    let mut encoded = Vec::with_capacity(bytes.len());
    let begin = Instant::now();
    for packet in &packets {
        prost::encoding::message::encode(trace::PACKET, packet, &mut encoded);
    }
    let prost = begin.elapsed();
    time = 0;
    for n in 0..NUMBER {
        time += 20_000 + noise(n) % 5_000;
        let (start, flow) = (time as f64 / 1e3, 0x1234_5000_0000_0000_u64 | n);
        let _ = write!(
            json,
            "{{\"ph\":\"X\",\"pid\":1,\"tid\":100,\"ts\":{start:.3},\"dur\":9.000,\"cat\":\"operation\",\
             \"name\":\"AllReduce 16 MiB f32\",\"args\":{{\"seq\":{n},\"bytes\":16777216,\"count\":4194304,\
             \"datatype\":\"ncclFloat32\",\"function\":\"AllReduce\",\"channels\":8}}}},\
             {{\"ph\":\"f\",\"bp\":\"e\",\"pid\":1,\"tid\":100,\"ts\":{start:.3},\"id\":{flow},\"cat\":\"arrow\",\"name\":\"a\"}},"
        );
    }
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, json.as_bytes()).expect("memory");
    let gzipped = gzip.finish().expect("memory").len();
    let each = |bytes: usize| bytes as f64 / NUMBER as f64;
    let ns = |time: std::time::Duration| time.as_nanos() as f64 / (2 * NUMBER) as f64;
    println!("| six arguments, a number, an arrow, and the end | bytes, plain | compressed | ns an event |");
    println!("| --- | --- | --- | --- |");
    println!("| ours | {:.1} | {:.1} | {:.0} |", each(bytes.len()), each(deflated(&bytes)), ns(ours));
    println!("| the same packets through prost, filled in already | {:.1} | | {:.0} |", each(encoded.len()), ns(prost));
    println!("| Chrome JSON | {:.1} | {:.1} | |", each(json.len()), each(gzipped));
}

fn deflated(bytes: &[u8]) -> usize {
    let packed = bytes.chunks(PACKET).map(|part| {
        let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, part).expect("memory");
        encoder.finish().expect("memory").len()
    });
    packed.sum()
}

fn clocks() -> Clocks {
    Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 }
}

fn comm() -> Comm {
    Comm {
        context: Handle(9),
        number: 1,
        hash: 0x1f2e_3d4c_5b6a_7988,
        name: Some("dp".into()),
        rank: 3,
        ranks: 64,
        nodes: 8,
        interface: 7,
        version: 23_203,
        device: Some(0),
        timer: Default::default(),
    }
}

/// A handle of this process.
fn handle(number: u64) -> Handle {
    Handle(0x4_2000_0000_0001 + number)
}

fn operation(n: u64, at: u64, event: Event) -> Operation {
    Operation { id: handle(n), since: HostNs(at), asked: None, event, texts: None, number: 0 }
}

fn all_reduce(n: u64, at: u64) -> Operation {
    let coll = event::Coll {
        seq: n,
        func: Word::ALL_REDUCE,
        datatype: Word::FLOAT32,
        count: 1 << 22,
        algorithm: Word::RING,
        protocol: Word::SIMPLE,
        channels: 8,
        ..Default::default()
    };
    operation(n, at, Event::Coll(coll))
}

fn kernel(n: u64, at: u64) -> Kernel {
    Kernel {
        span: Span { start: HostNs(at), end: HostNs(at + 9_000 + noise(n) % 900), error_ns: 1_034 },
        place: PLACE,
        correlation: n as u32,
        graph_node: 0,
        graph: 0,
        grid: [8, 1, 1],
        block: [544, 1, 1],
        name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL".into(),
    }
}

fn proxy<'a>(comm: &'a Comm, operation: &'a Operation, n: u64) -> ProxyOp<'a> {
    let event = event::ProxyOp {
        pid: 1,
        peer: 4,
        channel: (n % 8) as u8,
        steps: 8,
        chunk_bytes: 1 << 19,
        send: event::Flag(1),
        ..Default::default()
    };
    ProxyOp { event, comm: Some(comm), operation: Some(operation), batch: 0, doubt: None }
}

/// Numbers without a pattern.
fn noise(n: u64) -> u64 {
    n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}
