//! The whole module against a made-up CUPTI.

mod fake;

use std::ffi::CString;
use std::time::Instant;

use bytemuck::Zeroable;
use cupti_sys::records::{Field, Table, Value, Walker};
use cupti_sys::table;

use self::fake::{HANG, api, fake, fresh};
use super::clock::Reading;
use super::decode::Outside;
use super::intake::{Intake, Standing};
use super::*;
use crate::model::activity::{self, Activity, Api, CopyKind, Kernel, Place};
use crate::model::event::{Body, KernelLaunch, MAX_WORDS, Record};
use crate::model::ids::{Handle, ProcessTag};
use crate::record::recorder;
use crate::record::ring::{self, Rings};

fn options() -> Options {
    // Flushes only on request.
    Options { flush_period: Duration::from_secs(3600), pool_bytes: 2 << 20, ..Options::new(config::Cupti::Auto) }
}

/// A reader, and the result of what it hands over.
struct Drained {
    reader: Reader,
    intake: Intake,
}

/// Feeds an intake.
struct Into<'i>(&'i mut Intake, &'i mut Vec<Activity>);

impl Taker for Into<'_> {
    fn reading(&mut self, reading: &Reading) {
        self.0.learn(reading);
    }

    fn covers(&self, until: HostNs) -> bool {
        self.0.covers(until)
    }

    fn buffer(&mut self, now: HostNs, bytes: &[u8], walker: impl Walker, outside: &mut impl Outside) {
        self.0.decode(now, bytes, walker, outside, &mut |activity| self.1.push(activity));
    }

    fn gives_up(&mut self, _: HostNs) {}

    fn stands(&mut self, standing: Standing) {
        self.0.stands(standing, &mut |activity| self.1.push(activity));
    }
}

impl Drained {
    fn drain(&mut self) -> Vec<Activity> {
        let mut seen = Vec::new();
        if recorder::has_brackets() {
            self.intake.expect_external_ids();
        }
        self.reader.drain(&mut Into(&mut self.intake, &mut seen));
        seen
    }

    /// Has CUPTI return records.
    fn flushed(&mut self, cupti: &Cupti, records: Vec<u8>) -> Vec<Activity> {
        fake(|fake| fake.records = records);
        assert!(cupti.sync(Duration::from_secs(10)));
        self.drain()
    }

    fn losses(&self) -> Losses {
        self.intake.losses()
    }

    fn take_notes(&mut self) -> Vec<Note> {
        self.intake.take_notes()
    }
}

fn start(options: &Options) -> Result<(Cupti, Drained), Absent> {
    let (cupti, reader) = start_with(api(), "libcupti.so.13".into(), Vec::new(), options)?;
    let intake = Intake::new(reader.source());
    Ok((cupti, Drained { reader, intake }))
}

#[track_caller]
fn refused(options: &Options) -> Absent {
    start(options).err().expect("refused")
}

/// The calls by which a CUPTI that is ours is taken again, whatever another tool did.
const AGAIN: [&str; 8] =
    ["flush(0)", "thread ids(1)", "register", "enable(8)", "enable(9)", "enable(37)", "enable(10)", "enable(17)"];

fn calls() -> Vec<String> {
    fake(|fake| std::mem::take(&mut fake.calls))
}

/// A record of a kind, as this version writes it.
struct Written {
    bytes: Vec<u8>,
}

impl Written {
    fn new(version: u32, kind: u32) -> Written {
        let mut bytes = vec![0; Table::new(version).size(kind).unwrap()];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        Written { bytes }
    }

    fn with<F, T: Value>(mut self, field: Field<F, T>, value: &[u8]) -> Written {
        self.bytes[field.offset()..][..value.len()].copy_from_slice(value);
        self
    }
}

fn kernel(version: u32, correlation: u32, start: u64, end: u64, name: &CString) -> Vec<u8> {
    type Of = table::Kernel;
    Written::new(version, cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        .with(Of::START, &start.to_ne_bytes())
        .with(Of::END, &end.to_ne_bytes())
        .with(Of::CORRELATION_ID, &correlation.to_ne_bytes())
        .with(Of::DEVICE_ID, &3_u32.to_ne_bytes())
        .with(Of::CONTEXT_ID, &1_u32.to_ne_bytes())
        .with(Of::STREAM_ID, &7_u32.to_ne_bytes())
        .with(Of::GRID_X, &24_i32.to_ne_bytes())
        .with(Of::GRID_Y, &1_i32.to_ne_bytes())
        .with(Of::GRID_Z, &1_i32.to_ne_bytes())
        .with(Of::BLOCK_X, &640_i32.to_ne_bytes())
        .with(Of::GRAPH_NODE_ID, &0x9_0000_0002_u64.to_ne_bytes())
        .with(Of::GRAPH_ID, &9_u32.to_ne_bytes())
        .with(Of::NAME, &(name.as_ptr().expose_provenance()).to_ne_bytes())
        .bytes
}

#[test]
fn cupti_gets_our_clock_once_and_then_the_wall_clock() {
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&Options { boottime: true, ..options() }).unwrap();
    assert!(cupti.facts().to_string().ends_with("; its clock is CLOCK_BOOTTIME"), "{}", cupti.facts());
    let begun = calls();
    let at = |wanted: &str| begun.iter().position(|call| call == wanted);
    assert!(at("subscribe") < at("clock") && at("clock") < at("dump(8)"), "{begun:?}");
    reader.drain();
    assert!(cupti.release(Duration::from_secs(10)));
    let ended = calls();
    assert!(ended.ends_with(&["clock".into(), "unsubscribe".into()]), "{ended:?}");
    // The next owner finds the wall clock, and so do we.
    assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
    assert!(!calls().contains(&"clock".to_owned()));
    reader.drain();
    let notes = reader.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].text.contains("wall clock"), "{notes:?}");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn a_clock_that_cupti_refuses_costs_nothing_else() {
    let _one = fresh(28, &[("clock", cupti::CUPTI_ERROR_NOT_COMPATIBLE)]);
    let (cupti, mut reader) = start(&Options { boottime: true, ..options() }).unwrap();
    assert_eq!(cupti.facts().refused, ["a clock of our own: NOT_COMPATIBLE (14)"]);
    reader.drain();
    assert_eq!(reader.take_notes(), []);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls().iter().filter(|call| *call == "clock").count(), 1);
}

#[test]
fn cupti_is_taken_and_given_back_in_the_right_order() {
    let _one = fresh(28, &[]);
    let (cupti, _reader) = start(&Options { copies: true, ..options() }).unwrap();
    assert_eq!(cupti.facts().to_string(), "CUPTI of CUDA 12.9 (version 28) from libcupti.so.13");
    let callbacks = |domain: u32, ids: &[u32]| -> Vec<String> {
        ids.iter().map(|id| format!("callback(1 {domain}/{id})")).collect()
    };
    let launches = [307, 442, 652, 653];
    let graphs = [514, 515, 561, 696, 538, 692, 714, 586, 650];
    let copies = [306, 418, 281, 423, 776, 777, 796, 797];
    let expected = [
        ["version", "subscribe", "thread ids(1)", "register"].map(str::to_owned).to_vec(),
        callbacks(1, &launches),
        callbacks(3, &[13, 20, 18]),
        callbacks(1, &graphs),
        callbacks(1, &copies),
        callbacks(6, &[1, 2, 3]),
        ["dump(8)", "dump(9)", "dump(37)"].map(str::to_owned).to_vec(),
        ["enable(10)", "enable(17)", "enable(1)", "enable(22)", "enable(2)"].map(str::to_owned).to_vec(),
    ];
    assert_eq!(calls(), expected.concat());
    assert_eq!(refused(&options()), Absent::Held);
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(calls(), ["flush(0)"]);
    assert!(cupti.release(Duration::from_secs(10)));
    let disabled = [8, 9, 37, 10, 17, 1, 22, 2].map(|kind| format!("disable({kind})"));
    assert_eq!(calls(), [&disabled[..], &["flush(1)", "thread ids(0)", "unsubscribe"].map(str::to_owned)].concat());
    // Released for good; but it can be taken again.
    assert!(cupti.sync(Duration::ZERO) && cupti.release(Duration::ZERO));
    let (again, _reader) = start(&options()).unwrap();
    assert!(again.release(Duration::from_secs(10)));
}

#[test]
fn cupti_can_be_lent_and_taken_again_repeatedly() {
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&options()).unwrap();
    let first = calls();
    let before = reader.losses().decoded;
    let name = CString::new("kernel").unwrap();
    let mut kernels = 0;
    for _ in 0..3 {
        assert!(cupti.is_held());
        assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Held));
        assert_eq!(calls(), AGAIN, "nobody else has its buffers from here on");
        let wall = sys::realtime_ns();
        fake(|fake| fake.records = kernel(28, 1, wall - 2000, wall - 1000, &name));
        // The last flush returns the kernel, and the next owner finds the settings as they were.
        assert!(cupti.release(Duration::from_secs(10)));
        assert!(!cupti.is_held());
        assert_eq!(fake(|fake| fake.thread_ids), 0);
        let given_back = calls();
        assert_eq!(given_back[given_back.len() - 3..], ["flush(1)", "thread ids(0)", "unsubscribe"]);
        kernels += reader.drain().len();
        // Nothing of ours is done while it is lent.
        assert!(cupti.sync(Duration::ZERO) && cupti.release(Duration::ZERO));
        assert_eq!(calls(), [""; 0]);
        // The other tool may keep it; it can be requested again.
        fake(|fake| fake.answers.insert("subscribe".into(), 39));
        assert_eq!(cupti.acquire(Duration::ZERO), Err(Absent::Taken { owner: None, asked: false }));
        assert_eq!(calls(), ["subscribe"]);
        assert!(!cupti.is_held());
        fake(|fake| fake.answers.clear());
        assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
        let again = calls();
        assert_eq!(again[..], first[1..], "as for the first time, but for the version");
        assert!(cupti.sync(Duration::from_secs(10)));
        assert_eq!(calls(), ["flush(0)"]);
    }
    assert_eq!((kernels, reader.losses().decoded), (3, before + 3), "one reader for all of it");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn cupti_is_not_taken_again_before_it_was_given_up() {
    let _one = fresh(28, &[]);
    let (mut cupti, _reader) = start(&options()).unwrap();
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.release(Duration::from_millis(20)));
    assert!(!cupti.is_held());
    assert_eq!(cupti.acquire(Duration::from_millis(20)), Err(Absent::Leaving));
    HANG.store(false, Ordering::Relaxed);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    let calls = calls();
    let at = |name: &str| calls.iter().rposition(|call| call == name);
    assert!(at("unsubscribe") < at("subscribe"), "{calls:?}");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn optional_parts_may_be_refused() {
    let _one = fresh(130_100, &[("callback(1 1/652)", 1), ("enable(17)", 14), ("dump", 27)]);
    let (cupti, _reader) = start(&options()).unwrap();
    assert_eq!(
        cupti.facts().refused,
        ["launches (callback 652): INVALID_PARAMETER (1)", "kind 17: NOT_COMPATIBLE (14)"]
    );
    assert!(calls().contains(&"enable(8)".to_owned()), "without the dump, at least what is new");
    assert!(cupti.release(Duration::from_secs(10)));
    assert!(!calls().contains(&"disable(17)".to_owned()));
}

#[test]
fn a_refusal_says_why_and_leaves_cupti_as_it_was() {
    let taken = Absent::Taken { owner: Some("Kineto".into()), asked: false };
    assert!(taken.to_string().contains("Kineto has it"));
    for (version, answers, expected, after) in [
        (
            130_000,
            &[("subscribe", 39), ("subscribe_v2", 39)][..],
            taken.clone(),
            &["subscribe", "subscribe_v2(32)"][..],
        ),
        (130_300, &[("subscribe", 39), ("subscribe_v2", 39)], taken, &["subscribe", "subscribe_v2(40)"]),
        (28, &[("subscribe", 39)], Absent::Taken { owner: None, asked: false }, &["subscribe"]),
        (28, &[("subscribe", 15)], Absent::Refused { call: "cuptiSubscribe", code: 15 }, &["subscribe"]),
        (130_000, &[("subscribe", 999)], Absent::Refused { call: "cuptiSubscribe", code: 999 }, &["subscribe"]),
        (28, &[("version", 27)], Absent::Refused { call: "cuptiGetVersion", code: 27 }, &[]),
        (17, &[], Absent::TooOld { path: "libcupti.so.13".into(), function: None, version: Some(17) }, &[]),
        (
            28,
            &[("register", 27)],
            Absent::Refused { call: "cuptiActivityRegisterCallbacks", code: 27 },
            &["subscribe", "thread ids(1)", "register", "thread ids(0)", "unsubscribe"],
        ),
    ] {
        let _one = fresh(version, answers);
        assert_eq!(refused(&options()), expected);
        assert_eq!(calls()[1..], *after, "{expected:?}");
    }
    let _one = fresh(28, &[("enable(10)", 35)]);
    let absent = refused(&options());
    assert_eq!(absent, Absent::Refused { call: "cuptiActivityEnable", code: 35 });
    assert!(absent.to_string().starts_with("cuptiActivityEnable answered INSUFFICIENT_PRIVILEGES (35): the admin"));
    let calls = calls();
    assert_eq!(calls[calls.len() - 5..], ["disable(8)", "disable(9)", "disable(37)", "thread ids(0)", "unsubscribe"]);
    drop(_one);
    let off = Options::new(config::Cupti::Off);
    assert_eq!(super::start(&off).err(), Some(Absent::SwitchedOff));
    assert_eq!(super::start(&Options::new(config::Cupti::Auto)).err(), Some(Absent::NoDriver));
}

#[test]
fn kernels_are_not_disabled_where_that_deadlocks() {
    let _one = fresh(130_000, &[]);
    let (cupti, _reader) = start(&options()).unwrap();
    calls();
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls(), ["flush(1)", "thread ids(0)", "unsubscribe"]);
}

#[test]
fn records_of_every_release_are_decoded() {
    for version in [18, 28, 130_000, 130_100, 130_300, 130_500] {
        let _one = fresh(version, &[]);
        let (cupti, mut reader) = start(&options()).unwrap();
        assert_eq!(reader.drain(), []);
        let name = CString::new("_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL").unwrap();
        let width = |reading: &Reading| reading.boot_after.since(reading.boot_before);
        let tight = (0..100).map(|_| flush::read_host()).min_by_key(width).unwrap();
        let (offset, wall) = (tight.wall_before - tight.boot_before.0, sys::realtime_ns());
        let (start, end) = (wall - 3_000_000, wall - 1_000_000);
        let mut records = kernel(version, 77, start, end, &name);
        records.extend(
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_MEMCPY2)
                .with(table::MemcpyPtoP::COPY_KIND, &[10])
                .with(table::MemcpyPtoP::BYTES, &4096_u64.to_ne_bytes())
                .with(table::MemcpyPtoP::START, &start.to_ne_bytes())
                .with(table::MemcpyPtoP::END, &start.to_ne_bytes())
                .with(table::MemcpyPtoP::CORRELATION_ID, &78_u32.to_ne_bytes())
                .bytes,
        );
        // Kinds that were not requested here, and impossible records.
        records.extend(Written::new(version, cupti::CUPTI_ACTIVITY_KIND_RUNTIME).bytes);
        records.extend(kernel(version, 79, 0, end, &name));
        records.extend(kernel(version, 80, end, start, &name));
        records.extend(kernel(version, 81, end, end + 3_600_000_000_000, &name));
        records.extend(
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_OVERHEAD)
                .with(table::Overhead::OVERHEAD_KIND, &(1_u32 << 16).to_ne_bytes())
                .with(table::Overhead::OBJECT_KIND, &2_u32.to_ne_bytes())
                .with(table::Overhead::OBJECT_ID_PT_THREAD_ID, &4711_u32.to_ne_bytes())
                .with(table::Overhead::START, &start.to_ne_bytes())
                .with(table::Overhead::END, &end.to_ne_bytes())
                .bytes,
        );
        let gpu = CString::new("NVIDIA H200").unwrap();
        records.extend(
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_DEVICE)
                .with(table::Device::ID, &3_u32.to_ne_bytes())
                .with(table::Device::UUID, &[5; 16])
                .with(table::Device::NAME, &(gpu.as_ptr().expose_provenance()).to_ne_bytes())
                .bytes,
        );
        records.extend(
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_CONTEXT)
                .with(table::Context::CONTEXT_ID, &1_u32.to_ne_bytes())
                .with(table::Context::DEVICE_ID, &3_u32.to_ne_bytes())
                .with(table::Context::NULL_STREAM_ID, &7_u16.to_ne_bytes())
                .bytes,
        );
        records.extend(
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_STREAM)
                .with(table::Stream::CONTEXT_ID, &1_u32.to_ne_bytes())
                .with(table::Stream::STREAM_ID, &13_u32.to_ne_bytes())
                .with(table::Stream::PRIORITY, &(-1_i32).to_ne_bytes())
                .bytes,
        );
        fake(|fake| (fake.records, fake.dropped) = (records, 12));
        assert!(cupti.sync(Duration::from_secs(10)));
        let seen = reader.drain();
        let [
            Activity::Kernel(ran),
            Activity::Copy(copy),
            Activity::Untimed(without_begin),
            Activity::Untimed(_),
            Activity::Untimed(in_an_hour),
            Activity::Overhead(overhead),
            Activity::Device(device),
            Activity::Context(context),
            Activity::Stream(stream),
            Activity::Dropped(12),
        ] = &seen[..]
        else {
            panic!("{seen:#?}");
        };
        assert_eq!((without_begin.correlation, in_an_hour.correlation), (79, 81));
        let slack = u64::from(ran.span.error_ns) + width(&tight);
        assert!(ran.span.start.0.abs_diff(start - offset) <= slack, "{:?} {}", ran.span, start - offset);
        assert_eq!(ran.span.end.since(ran.span.start), 2_000_000);
        assert!(ran.span.error_ns > GPU_STAMP_ERROR_NS, "{:?}", ran.span);
        let place = Place { device: 3, context: 1, stream: 7 };
        assert_eq!(
            *ran,
            Kernel {
                span: ran.span,
                place,
                correlation: 77,
                graph_node: 0x9_0000_0002,
                graph: 9,
                grid: [24, 1, 1],
                block: [640, 0, 0],
                name: name.to_str().unwrap().into()
            }
        );
        assert_eq!((copy.bytes, copy.kind, copy.correlation), (4096, CopyKind::PeerToPeer, 78));
        assert_eq!((overhead.kind, overhead.tid), (1 << 16, Some(4711)));
        assert_eq!((device.device, &*device.name, device.uuid), (3, "NVIDIA H200", [5; 16]));
        assert_eq!((context.context, context.device, context.null_stream), (1, 3, 7));
        assert_eq!((stream.context, stream.stream, stream.priority), (1, 13, -1));
        let losses = reader.losses();
        assert_eq!((losses.decoded, losses.implausible, losses.other_kinds), (6, 3, 1));
        assert_eq!((losses.dropped, losses.unreadable), (12, 0));
        assert!(cupti.release(Duration::from_secs(10)));
    }
}

#[test]
fn host_functions_of_graphs_are_decoded_since_cuda_13_1() {
    type Of = table::GraphHostNode;
    const KIND: u32 = cupti::CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE;
    for (version, asked) in [(28, false), (130_000, false), (130_100, true), (130_500, true)] {
        let _one = fresh(version, &[]);
        let (cupti, mut reader) = start(&options()).unwrap();
        assert_eq!(calls().contains(&format!("enable({KIND})")), asked, "{version}");
        reader.drain();
        if asked {
            let end = sys::realtime_ns();
            let record = |start: u64| {
                let place = [(Of::STREAM_ID, 13_u32), (Of::CONTEXT_ID, 1), (Of::DEVICE_ID, 3)];
                let numbers = [(Of::CORRELATION_ID, 77), (Of::GRAPH_ID, 9), (Of::THREAD_ID, 4711)];
                place
                    .into_iter()
                    .chain(numbers)
                    .fold(Written::new(version, KIND), |record, (field, value)| {
                        record.with(field, &value.to_ne_bytes())
                    })
                    .with(Of::GRAPH_NODE_ID, &0x9_0000_0002_u64.to_ne_bytes())
                    .with(Of::START, &start.to_ne_bytes())
                    .with(Of::END, &end.to_ne_bytes())
                    .bytes
            };
            let seen = reader.flushed(&cupti, [record(end - 5000), record(0)].concat());
            let [Activity::HostFunction(ran), Activity::Implausible] = seen[..] else { panic!("{seen:?}") };
            assert_eq!(ran.span.end.since(ran.span.start), 5000);
            let place = Place { device: 3, context: 1, stream: 13 };
            let expected = (place, 77, 9, 0x9_0000_0002, 4711);
            assert_eq!((ran.place, ran.correlation, ran.graph, ran.graph_node, ran.tid), expected);
        }
        assert!(cupti.release(Duration::from_secs(10)));
    }
}

#[test]
fn calls_into_cuda_are_decoded_on_request() {
    type Of = table::Api;
    let wall = sys::realtime_ns();
    let record = |kind: u32, id: u32, tid: i32, length: u64| {
        Written::new(28, kind)
            .with(Of::CBID, &id.to_ne_bytes())
            .with(Of::START, &(wall - 5000).to_ne_bytes())
            .with(Of::END, &(wall - 5000 + length).to_ne_bytes())
            .with(Of::THREAD_ID, &tid.to_ne_bytes())
            .with(Of::CORRELATION_ID, &77_u32.to_ne_bytes())
            .with(Of::RETURN_VALUE, &600_u32.to_ne_bytes())
            .bytes
    };
    let (driver, runtime) = (cupti::CUPTI_ACTIVITY_KIND_DRIVER, cupti::CUPTI_ACTIVITY_KIND_RUNTIME);
    let (sender, receiver) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let named = std::thread::Builder::new().name("python3".into()).spawn(move || {
        sender.send(sys::thread_id()).unwrap();
        ended.recv().unwrap();
    });
    let tid = receiver.recv().unwrap();
    let records = [record(driver, 652, tid, 1000), record(runtime, 211, tid, 3000), record(runtime, 9999, 0, 0)];
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    assert_eq!(reader.flushed(&cupti, records.concat()), []);
    assert_eq!(reader.losses().other_kinds, 3);
    assert!(cupti.release(Duration::from_secs(10)));

    calls();
    let (cupti, mut reader) = start(&Options { calls: true, ..options() }).unwrap();
    assert!(calls().ends_with(&["enable(17)", "enable(4)", "enable(5)"].map(str::to_owned)));
    fake(|fake| fake.records = [&records[..], &records[..]].concat().concat());
    assert!(cupti.sync(Duration::from_secs(10)));
    calls();
    let seen = reader.drain();
    let [Activity::CudaCall(inner), Activity::CudaCall(outer), Activity::CudaCall(unknown), ..] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((seen.len(), &seen[3..]), (6, &seen[..3]));
    assert_eq!(calls(), ["name(1 652)", "name(2 211)", "name(2 9999)"], "each asked for once");
    let facts = |call: &activity::CudaCall| (call.api, call.tid, call.correlation, call.result);
    assert_eq!(
        (facts(inner), &*inner.name, &*inner.thread),
        ((Api::Driver, tid, 77, 600), "cuLaunchKernelEx", "python3")
    );
    assert_eq!((facts(outer), &*outer.name), ((Api::Runtime, tid, 77, 600), "cudaLaunchKernel_v7000"));
    assert_eq!((&*unknown.name, &*unknown.thread), ("runtime function 9999", ""));
    assert_eq!(outer.span.end.since(outer.span.start), 3000);
    end.send(()).unwrap();
    named.unwrap().join().unwrap();
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn markers_are_decoded_on_request() {
    type Of = table::Marker;
    let at = sys::realtime_ns() - 1000;
    let [text, domain] = ["forward", "PyTorch"].map(|text| CString::new(text).unwrap());
    let record = |flags: u32, object: u32, tid: u32, name: Option<&CString>, at: u64| {
        let address = |text: Option<&CString>| text.map_or(0, |text| text.as_ptr().expose_provenance()).to_ne_bytes();
        Written::new(28, cupti::CUPTI_ACTIVITY_KIND_MARKER)
            .with(Of::FLAGS, &flags.to_ne_bytes())
            .with(Of::TIMESTAMP, &at.to_ne_bytes())
            .with(Of::ID, &77_u32.to_ne_bytes())
            .with(Of::OBJECT_KIND, &object.to_ne_bytes())
            .with(Of::OBJECT_ID_PT_THREAD_ID, &tid.to_ne_bytes())
            .with(Of::NAME, &address(name))
            .with(Of::DOMAIN, &address(name.map(|_| &domain)))
            .bytes
    };
    let tid = sys::thread_id();
    let records = [
        record(2, 2, tid as u32, Some(&text), at),
        record(4, 2, tid as u32, None, at + 100),
        record(1, 1, 4711, Some(&text), at),
        // An attempt to take a lock of the program's, and a record without a time.
        record(8, 2, 0, Some(&text), at),
        record(2, 2, 0, Some(&text), 0),
    ];
    let _one = fresh(28, &[]);
    for nvtx in [false, true] {
        // Not through `start_with`, which would change the environment of all tests.
        let (cupti, mut reader) = start(&options()).unwrap();
        let asked = Asked { markers: nvtx, ..Asked::default() };
        reader.intake = Intake::new(Source { asked, ..reader.reader.source() });
        let seen = reader.flushed(&cupti, records.concat());
        let losses = reader.losses();
        if !nvtx {
            assert_eq!((seen.len(), losses.other_kinds), (0, 5));
        } else {
            let [Activity::Marker(begin), Activity::Marker(end), Activity::Marker(mark), Activity::Implausible] =
                &seen[..]
            else {
                panic!("{seen:?}")
            };
            assert_eq!((losses.other_kinds, losses.implausible), (1, 1));
            assert_eq!(
                (begin.edge, begin.id, begin.tid, &*begin.name),
                (activity::Edge::Begin, 77, Some(tid), "forward")
            );
            assert_eq!(begin.domain.as_deref(), Some("PyTorch"));
            assert!(!begin.thread.is_empty());
            assert_eq!((end.edge, end.time.since(begin.time), &end.domain), (activity::Edge::End, 100, &None));
            assert_eq!((mark.edge, mark.tid, &*mark.thread), (activity::Edge::Mark, None, ""));
        }
        assert!(cupti.release(Duration::from_secs(10)));
    }
}

#[test]
fn a_meaningless_buffer_is_counted_and_harmless() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    reader.drain();
    let name = CString::new("kernel").unwrap();
    let wall = sys::realtime_ns();
    let mut records = kernel(28, 1, wall - 2000, wall - 1000, &name);
    // From a newer library than it claims to be.
    records.extend([0xee; 64]);
    assert_eq!(reader.flushed(&cupti, records).len(), 1);
    assert_eq!(reader.losses().unreadable, 1);
    let mut state = 99_u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    for _ in 0..200 {
        let mut bytes: Vec<u8> = (0..random() % 600).map(|_| random() as u8).collect();
        // Names are trusted, so no records with names.
        if let Some(kind) = bytes.first_chunk_mut::<4>() {
            *kind = [1_u32, 2, 4, 5, 9, 17, 22, 37, 99][random() as usize % 9].to_ne_bytes();
        }
        reader.flushed(&cupti, bytes);
    }
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn a_flush_that_hangs_blocks_nobody() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    calls();
    HANG.store(true, Ordering::Relaxed);
    // They return while the flush hangs.
    assert!(!cupti.sync(Duration::from_millis(50)));
    assert!(!cupti.release(Duration::from_millis(50)));
    reader.drain();
    assert_eq!(reader.take_notes()[0].name, "kernels late");
    assert_eq!(calls(), ["flush(0)"], "one at a time");
    assert_eq!(refused(&options()), Absent::Held);
    HANG.store(false, Ordering::Relaxed);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls().last().unwrap(), "unsubscribe");
}

#[test]
fn cupti_is_flushed_every_period() {
    let _one = fresh(28, &[]);
    let period = Options { flush_period: Duration::from_millis(5), ..options() };
    let begin = Instant::now();
    let (cupti, _reader) = start(&period).unwrap();
    calls();
    while fake(|fake| fake.calls.len()) < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begin.elapsed() >= Duration::from_millis(25), "never before its time");
    assert!(calls().iter().all(|call| call == "flush(0)"));
    assert!(cupti.release(Duration::from_secs(10)));
}

/// Calls the callback as CUPTI does.
fn event<T>(domain: u32, id: u32, data: &T) {
    // SAFETY: the structure that belongs to the domain and the id.
    unsafe { callbacks::on_event(std::ptr::null_mut(), domain, id, std::ptr::from_ref(data).cast()) };
}

fn launch(site: u32, id: u32, correlation: u32, symbol: &CString) {
    let data = cupti::CUpti_CallbackData {
        callbackSite: site,
        functionName: c"cuLaunchKernelEx".as_ptr(),
        functionParams: std::ptr::null(),
        functionReturnValue: std::ptr::null_mut(),
        symbolName: symbol.as_ptr(),
        context: std::ptr::null_mut(),
        contextUid: 1,
        correlationData: std::ptr::null_mut(),
        correlationId: correlation,
    };
    event(1, id, &data);
}

fn node(id: u32, node: usize, original: usize) {
    let mut graph = cupti::CUpti_GraphData {
        graph: std::ptr::null_mut(),
        originalGraph: std::ptr::null_mut(),
        node: std::ptr::without_provenance_mut(node),
        originalNode: std::ptr::without_provenance_mut(original),
        nodeType: 0,
        dependency: std::ptr::null_mut(),
        graphExec: std::ptr::null_mut(),
    };
    let data = cupti::CUpti_ResourceData {
        context: std::ptr::null_mut(),
        resourceHandle: cupti::CUpti_ResourceData__bindgen_ty_1 { stream: std::ptr::null_mut() },
        resourceDescriptor: (&raw mut graph).cast(),
    };
    event(3, id, &data);
}

#[test]
fn launches_and_nodes_are_recorded_on_the_thread_that_makes_them() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    let nccl = CString::new("_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgs").unwrap();
    let other = CString::new("_Z6vecAddPKfS0_Pfi").unwrap();
    // The recorder stays on, and its rings may be from another test. A thread of its own gets its
    // own ring.
    let rings = recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let (opened, launches, nodes) = std::thread::spawn(move || {
        launch(0, 652, 2, &other);
        launch(0, 652, 3, &nccl);
        // Not recorded: the end of a call, another function, a node outside a launch.
        launch(1, 652, 3, &nccl);
        launch(0, 514, 4, &nccl);
        node(13, 0x100, 0);
        node(20, 0x200, 0x100);
        launch(0, 307, 5, &nccl);
        let opened = start_launch();
        launch(0, 653, 6, &other);
        node(13, 0x300, 0);
        recorder::stop(opened);
        launch(0, 442, 7, &other);
        node(20, 0x400, 0x300);
        event(
            3,
            13,
            &cupti::CUpti_ResourceData {
                context: std::ptr::null_mut(),
                resourceHandle: cupti::CUpti_ResourceData__bindgen_ty_1 { stream: std::ptr::null_mut() },
                resourceDescriptor: std::ptr::null_mut(),
            },
        );
        // SAFETY: the pointer is checked for null first.
        unsafe { callbacks::on_event(std::ptr::null_mut(), 1, 307, std::ptr::null()) };
        let is_ours = |reader: &mut ring::Reader| {
            // A thread's first record names it.
            reader.peek(rings).is_some_and(|(header, _)| (header >> 32) as i32 == sys::thread_id())
        };
        let mut ours = (0..rings.used_slots())
            .map(ring::Reader::new)
            .find_map(|mut reader| is_ours(&mut reader).then_some(reader))
            .unwrap();
        let (mut launches, mut nodes) = (Vec::new(), Vec::new());
        let mut buffer = [0; MAX_WORDS];
        // The few records fit into one segment, so nothing is given back.
        while ours.peek(rings).is_some() {
            match Record::decode(ours.read(rings, &mut buffer)).unwrap().body {
                Body::Launch { correlation, nccl, launch, .. } => launches.push((correlation, nccl, launch)),
                Body::GraphNode { node, original, launch } => nodes.push((node, original, launch)),
                _ => {}
            }
        }
        (opened, launches, nodes)
    })
    .join()
    .unwrap();
    assert_eq!(launches, [(3, true, Handle::NONE), (5, true, Handle::NONE), (6, false, opened)]);
    assert_eq!(nodes, [(0x300, 0, opened), (0x400, 0x300, Handle::NONE)]);

    // CUPTI's own failure is reported once, as CUPTI reported it.
    let notification = cupti::CUpti_StateData__bindgen_ty_1__bindgen_ty_1 { result: 35, message: std::ptr::null() };
    let state = cupti::CUpti_StateData { __bindgen_anon_1: cupti::CUpti_StateData__bindgen_ty_1 { notification } };
    let before = reader.losses().failures;
    event(6, 1, &state);
    reader.drain();
    assert_eq!(reader.losses().failures, before + 1);
    let notes = reader.take_notes();
    assert!(notes[0].text.contains("INSUFFICIENT_PRIVILEGES (35); there will be no more kernels, unless"), "{notes:?}");
    assert_eq!(reader.take_notes(), []);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(recorder::panics(), 0);
}

/// Starts a KernelLaunch on this thread.
fn start_launch() -> Handle {
    recorder::start(Handle::NONE, Handle::NONE, 0, &KernelLaunch::zeroed())
}

#[test]
fn without_launch_callbacks_an_id_is_pushed_around_launches() {
    const REFUSED: [(&str, u32); 4] =
        [("callback(1 1/307)", 14), ("callback(1 1/442)", 14), ("callback(1 1/652)", 14), ("callback(1 1/653)", 14)];
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    // With callbacks, even only one of them, a launch calls nothing.
    for answers in [&[][..], &REFUSED[1..]] {
        let _one = fresh(28, answers);
        let (cupti, _reader) = start(&options()).unwrap();
        assert_eq!(calls().last().unwrap(), "enable(17)");
        recorder::stop(start_launch());
        assert_eq!(calls(), [""; 0]);
        assert!(cupti.release(Duration::from_secs(10)));
    }
    let _one = fresh(28, &REFUSED);
    let (cupti, mut reader) = start(&options()).unwrap();
    assert!(calls().ends_with(&["enable(17)", "enable(39)", "enable(4)"].map(str::to_owned)));
    let (push, pop) = (|launch: Handle| format!("push(5 {})", launch.0), "pop(5)");
    // Once per launch, also if it is stopped twice, on another thread, or never.
    let first = start_launch();
    assert!(recorder::is_ours(first));
    assert_eq!(calls(), [push(first)]);
    recorder::stop(Handle(first.0 + 1));
    assert_eq!(calls(), [""; 0]);
    recorder::stop(first);
    recorder::stop(first);
    assert_eq!(calls(), [pop]);
    let never = start_launch();
    std::thread::spawn(move || recorder::stop(never)).join().unwrap();
    let next = start_launch();
    recorder::stop(next);
    assert_eq!(calls(), [push(never), pop.to_owned(), push(next), pop.to_owned()]);
    // An id that was not pushed is not popped, and is counted.
    let lost = recorder::lost_launches();
    fake(|fake| fake.answers.insert("push".into(), 7));
    let refused = start_launch();
    recorder::stop(refused);
    assert_eq!((calls(), recorder::lost_launches()), (vec![push(refused)], lost + 1));
    fake(|fake| fake.answers.remove("push"));
    // Ids come back as they were pushed; others belong to another tool.
    let id = |kind: u32, id: u64, correlation: u32| {
        type Of = table::ExternalCorrelation;
        let record = Written::new(28, cupti::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
        let record = record.with(Of::EXTERNAL_KIND, &kind.to_ne_bytes()).with(Of::EXTERNAL_ID, &id.to_ne_bytes());
        record.with(Of::CORRELATION_ID, &correlation.to_ne_bytes()).bytes
    };
    let driver = Written::new(28, cupti::CUPTI_ACTIVITY_KIND_DRIVER).bytes;
    let before = reader.losses();
    let records = [id(3, 1, 76), id(5, next.0, 77), driver].concat();
    assert_eq!(reader.flushed(&cupti, records), [Activity::ExternalId { id: next, correlation: 77 }]);
    let losses = reader.losses();
    assert_eq!((losses.other_kinds - before.other_kinds, losses.implausible - before.implausible), (1, 0));
    // Given up during a launch, CUPTI keeps no id; from then on nothing is called.
    let open = start_launch();
    assert!(cupti.release(Duration::from_secs(10)));
    calls();
    recorder::stop(open);
    recorder::stop(start_launch());
    assert_eq!(calls(), [pop]);
    // The same if the recording ends during a launch.
    let (cupti, _reader) = start(&options()).unwrap();
    let open = start_launch();
    calls();
    recorder::stop_unrecorded(Handle(open.0 + 1));
    recorder::stop_unrecorded(open);
    recorder::stop_unrecorded(open);
    assert_eq!(calls(), [pop]);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn kernels_are_recorded_without_callbacks_and_ids() {
    let _one = fresh(28, &[("callback", 14), ("enable(4)", 14)]);
    let (cupti, _reader) = start(&options()).unwrap();
    assert!(cupti.facts().refused.ends_with(&["driver calls: NOT_COMPATIBLE (14)".to_owned()]));
    calls();
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    recorder::stop(start_launch());
    assert_eq!(calls(), [""; 0]);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn every_reason_is_a_sentence() {
    for (absent, says) in [
        (Absent::SwitchedOff, "NCCLSCOPE_CUPTI=0"),
        (Absent::Forked, "forked"),
        (Absent::NoDriver, "libcuda.so.1"),
        (Absent::NoLibrary { tried: "libcupti.so.13: not mapped".into() }, "NCCLSCOPE_CUPTI=/path"),
        (
            Absent::TooOld { path: "/x".into(), function: Some("cuptiGetGraphId"), version: None },
            "lacks cuptiGetGraphId",
        ),
        (Absent::TooOld { path: "/x".into(), function: None, version: Some(17) }, "its version is 17"),
        (Absent::Broken { path: "/x".into(), driver_starts: false }, "13.3"),
        (Absent::Broken { path: "/x".into(), driver_starts: true }, "ncclscope_acquire"),
        (Absent::Taken { owner: None, asked: false }, "torch.profiler"),
        (Absent::Refused { call: "cuptiSubscribe", code: 27 }, "remote machine"),
        (Absent::Refused { call: "cuptiSubscribe", code: 15 }, "NOT_INITIALIZED (15)"),
        (Absent::Refused { call: "cuptiSubscribe", code: 999 }, "UNKNOWN (999)"),
        (Absent::Refused { call: "cuptiSubscribe", code: 12345 }, "error 12345"),
        (Absent::Leaving, "given up"),
        (Absent::NoResources("no thread".into()), "no thread"),
    ] {
        let text = absent.to_string();
        assert!(text.contains(says), "{text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
    }
}

/// A whole launch on this thread, as CUPTI reports it, that succeeds or not.
fn whole_launch(succeeds: bool) {
    let mut result = u32::from(!succeeds);
    for site in [cupti::CUPTI_API_ENTER, cupti::CUPTI_API_EXIT] {
        // SAFETY: a C structure of numbers and pointers.
        let mut data: cupti::CUpti_CallbackData = unsafe { std::mem::zeroed() };
        data.callbackSite = site;
        data.functionReturnValue = (&raw mut result).cast();
        event(1, 652, &data);
    }
}

#[test]
fn a_cupti_that_gives_its_records_to_another_tool_counts_as_silent() {
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&options()).unwrap();
    let silent = |change: Option<Change>| match change {
        Some(Change::Silent(silence)) => silence.launches,
        other => panic!("{other:?}"),
    };
    let name = CString::new("kernel").unwrap();
    let record = || {
        let wall = sys::realtime_ns();
        fake(|fake| fake.records = kernel(28, 1, wall - 2000, wall - 1000, &name));
    };
    let force = |cupti: &Cupti, reader: &mut Drained| {
        reader.reader.force();
        assert!(cupti.sync(Duration::from_secs(10)));
        reader.drain();
        reader.reader.take_change()
    };
    // Neither an ordinary flush nor a failed launch proves anything; and if any record came, all is
    // well.
    whole_launch(true);
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(reader.reader.take_change(), None);
    record();
    assert_eq!(force(&cupti, &mut reader), None);
    whole_launch(false);
    assert_eq!(force(&cupti, &mut reader), None);
    // A launch of which a forced flush returns nothing; reported once, also if it is found again.
    whole_launch(true);
    assert_eq!(silent(force(&cupti, &mut reader)), 1);
    assert_eq!(force(&cupti, &mut reader), None);
    // The records resume by themselves.
    record();
    assert_eq!(force(&cupti, &mut reader), Some(Change::Heard));
    // Records that CUPTI dropped are missing for that reason.
    whole_launch(true);
    fake(|fake| fake.dropped = 1);
    assert_eq!(force(&cupti, &mut reader), None);
    record();
    force(&cupti, &mut reader);
    // More launches than its buffers hold; when taken again it is ours, and the silence was already
    // reported.
    (0..4096).for_each(|_| whole_launch(true));
    assert_eq!(reader.reader.take_change(), None);
    whole_launch(true);
    assert_eq!(silent(reader.reader.take_change()), 4097);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    assert_eq!(reader.reader.take_change(), None);
    // Only noticed when it is taken again.
    whole_launch(true);
    calls();
    let again = cupti.acquire(Duration::from_secs(10));
    assert!(matches!(again, Ok(Acquired::Again(Some(Silence { launches: 1, .. })))), "{again:?}");
    assert_eq!(calls()[..2], ["flush(0)", "flush(1)"], "whoever has them gets all that is in them");
    assert_eq!(reader.reader.take_change(), None);
    // And at the end.
    whole_launch(true);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(silent(reader.reader.take_change()), 1);
}
