//! From ring to file: what a record costs to take from its ring in order, to decode, join and
//! draw, and to compress and write, and how many bytes it takes in the file; each without and with
//! a capture.
//!
//! ```text
//! cargo bench --bench pipeline
//! ```
//!
//! The records are those of a busy network proxy, the bulk of any recording: an operation with
//! eight transfers for each of eight peers, each transfer with its waits. Compressing and writing
//! is the processor time of the recording's own thread for that. The floors are those of the bytes:
//! copied in memory, compressed by zlib, and compressed ones written to a file in the kernel's
//! cache.

use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::write::ZlibEncoder;
use ncclscope::capture::write::Encoder;
use ncclscope::clock::align::{Due, Pair};
use ncclscope::collect::file::{Options, TraceFile};
use ncclscope::collect::order::{self, Source};
use ncclscope::model::event::MAX_WORDS;
use ncclscope::model::ids::{ProcessTag, RingId};
use ncclscope::model::selection::Selection;
use ncclscope::model::time::{HostNs, Ticks};
use ncclscope::pipeline::Pipeline;
use ncclscope::pipeline::input::{Begin, Input};
use ncclscope::record::recorder;
use ncclscope::record::ring::{Reader, Rings};
use ncclscope::trace::tracks::ProcessInfo;
use ncclscope::trace::writer::Clocks;
use ncclscope::{model::event, model::ids::Handle, model::state};

/// Proxy operations per round, transfers in each, and rounds.
const OPS: i32 = 8;
const STEPS: i32 = 8;
const ROUNDS: usize = 2000;

struct RingSource<'r>(Reader, &'r Rings);

impl Source for RingSource<'_> {
    fn peek(&mut self) -> Option<Ticks> {
        self.0.peek(self.1).map(|(_, ticks)| Ticks(ticks))
    }
}

fn main() {
    let tag = ProcessTag::from_random(42);
    let rings = recorder::switch_on(|| Rings::new(256 << 20), tag).expect("memory for the rings");
    let pid = std::process::id() as i32;
    let begin = Begin {
        tag,
        clocks: Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 },
        process: ProcessInfo { pid, name: "bench".into(), labels: Vec::new(), rank: None, world_size: None },
        stages: None,
        complaints: Vec::new(),
        attributes: Vec::new(),
        first_words: "bench".into(),
        capture: None,
        first: Pair { ticks: Ticks(0), host: HostNs(0), error_ns: 0 },
        selection: Selection::default(),
    };
    let (context, _) = recorder::comm_init(event::CommInit { hash: 7, ranks: 16, interface: 7, ..Default::default() });
    // Only this thread records, so it has the first ring.
    let mut sources = [RingSource(Reader::new(0), rings)];
    take(&mut sources, rings, context, pid);
    for capture in [None, Some(Encoder::new())] {
        measure(&begin, capture, &mut sources, rings, context);
    }
    assert_eq!(rings.dropped(), 0, "nothing may be missing from the measurement");
}

/// Records all rounds, takes them from their ring in order, and does nothing else with them.
fn take(sources: &mut [RingSource<'_>], rings: &Rings, context: Handle, pid: i32) {
    let all = Due { until: Ticks(u64::MAX), from: None };
    let mut buffer = [0; MAX_WORDS];
    let (mut records, mut taking, mut copying) = (0_u64, 0.0, 0.0);
    for _ in 0..ROUNDS / 100 {
        (0..100).for_each(|_| round(context, pid));
        let start = Instant::now();
        order::merge(sources, all, |source| {
            black_box(source.0.read(rings, &mut buffer));
            records += 1;
        });
        taking += start.elapsed().as_secs_f64();
        (0..100).for_each(|_| round(context, pid));
        let mut words = Vec::new();
        order::merge(sources, all, |source| words.extend_from_slice(source.0.read(rings, &mut buffer)));
        let mut copy = Vec::with_capacity(words.len());
        let start = Instant::now();
        copy.extend_from_slice(black_box(&words));
        black_box(&copy);
        copying += start.elapsed().as_secs_f64();
    }
    println!("from the ring: {records} records");
    println!("  take in order        {:.1} ns each", taking * 1e9 / records as f64);
    println!("  floor: copy          {:.1} ns each", copying * 1e9 / records as f64);
}

/// Records and draws all rounds, with or without a capture.
fn measure(
    begin: &Begin,
    mut capture: Option<Encoder>,
    sources: &mut [RingSource<'_>],
    rings: &Rings,
    context: Handle,
) {
    let mut pipeline = Pipeline::new(begin);
    let end = Pair { ticks: Ticks(1 << 50), host: HostNs(1 << 50), error_ns: 0 };
    pipeline.take(&Input::Pass { pair: end, window_ns: 0 });
    let what = if capture.is_some() { "with a capture" } else { "without a capture" };
    let (mut bytes, mut packed, mut captured, mut captured_packed) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (mut drawing, mut packing, mut copying, mut writing) = (0.0, 0.0, 0.0, 0.0);
    let mut plain = tempfile::tempfile().expect("a temporary file");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options { trace: true, compress: true, min_free: 0, capture: None, mode: None };
    let file = TraceFile::create(folder.path(), "bench", options, None).expect("a trace file");
    for _ in 0..ROUNDS / 100 {
        for _ in 0..100 {
            round(context, begin.process.pid);
        }
        let start = Instant::now();
        let mut buffer = [0; MAX_WORDS];
        let (mut chunks, mut entries) = (Vec::new(), Vec::new());
        order::merge(sources, pipeline.due(), |source| {
            let ring = RingId(source.0.slot());
            let input = Input::Record { ring, words: source.0.read(rings, &mut buffer) };
            pipeline.take(&input);
            if let Some(capture) = &mut capture {
                capture.input(&input);
                if capture.is_full() {
                    entries.push(capture.take());
                }
            }
            if pipeline.is_full() {
                chunks.push(pipeline.chunk());
            }
        });
        drawing += start.elapsed().as_secs_f64();
        let start = Instant::now();
        let small: Vec<Vec<u8>> = chunks.iter().map(|chunk| compress(chunk)).collect();
        packing += start.elapsed().as_secs_f64();
        captured_packed += entries.iter().map(|chunk| compress(chunk).len() as u64).sum::<u64>();
        chunks.iter().for_each(|chunk| file.write(chunk.clone()));
        file.flush(Duration::from_secs(60));
        packed += small.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        let (start, mut copy) = (Instant::now(), Vec::new());
        for chunk in &chunks {
            copy.clear();
            copy.extend_from_slice(chunk);
            black_box(&copy);
        }
        copying += start.elapsed().as_secs_f64();
        let start = Instant::now();
        small.iter().for_each(|chunk| plain.write_all(chunk).expect("room in the temporary folder"));
        writing += start.elapsed().as_secs_f64();
        bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        captured += entries.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
    }
    let records = pipeline.calls();
    let rate = |seconds: f64| records as f64 / seconds / 1e6;
    let each = |bytes: u64| bytes as f64 / records as f64;
    println!("{what}: {records} records");
    println!(
        "  decode, join, draw   {:.1} million records a second, {:.0} ns each",
        rate(drawing),
        1e3 / rate(drawing)
    );
    println!("  floor: copy          {:.1} ns each", 1e3 / rate(copying));
    let own = file.cpu_ns() as f64 / 1e9;
    println!("  compress and write   {:.1} million records a second, {:.0} ns each", rate(own), 1e3 / rate(own));
    println!("  floor: zlib          {:.1} ns each", 1e3 / rate(packing));
    println!("  floor: write         {:.1} ns each", 1e3 / rate(writing));
    println!("  in the file          {:.1} bytes a record, {:.1} compressed", each(bytes), each(packed));
    if captured > 0 {
        println!(
            "  in the capture       {:.1} bytes a record, {:.1} compressed",
            each(captured),
            each(captured_packed)
        );
    }
}

fn compress(chunk: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(chunk).expect("memory");
    encoder.finish().expect("memory")
}

/// One collective, and the proxy's work for it.
fn round(context: Handle, pid: i32) {
    let coll = event::Coll { count: 1 << 22, channels: 8, ..Default::default() };
    let coll = recorder::start(Handle::NONE, context, 0, &coll);
    recorder::stop(coll);
    let ops: Vec<_> = (0..OPS)
        .map(|peer| {
            let op = event::ProxyOp { pid, peer, steps: STEPS, send: event::Flag(1), ..Default::default() };
            let op = recorder::start(coll, context, 0, &op);
            recorder::state(op, state::PROXY_OP_IN_PROGRESS, 0, 0);
            op
        })
        .collect();
    for step in 0..STEPS {
        let begun: Vec<_> = ops
            .iter()
            .map(|&op| recorder::start(op, context, 0, &event::ProxyStep { step, ..Default::default() }))
            .collect();
        for number in [state::PROXY_STEP_SEND_GPU_WAIT, state::PROXY_STEP_SEND_PEER_WAIT, state::PROXY_STEP_SEND_WAIT] {
            begun.iter().for_each(|&step| recorder::state(step, number, 1 << 19, 0));
        }
        begun.iter().for_each(|&step| recorder::stop(step));
    }
    ops.iter().for_each(|&op| recorder::stop(op));
}
