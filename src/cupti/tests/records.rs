//! Records as CUPTI returns them, and what is decoded from them.

use super::fake::fresh;
use super::*;
use crate::model::activity::{self, Api, CopyKind, Kernel, Place};

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
        let device = |number: u32, is_visible: u8, has_mig: u8| {
            Written::new(version, cupti::CUPTI_ACTIVITY_KIND_DEVICE)
                .with(table::Device::ID, &number.to_ne_bytes())
                .with(table::Device::UUID, &[5; 16])
                .with(table::Device::NAME, &(gpu.as_ptr().expose_provenance()).to_ne_bytes())
                .with(table::Device::IS_CUDA_VISIBLE, &[is_visible])
                .with(table::Device::IS_MIG_ENABLED, &[has_mig])
                .with(table::Device::MIG_UUID, &[6; 16])
                .bytes
        };
        // One that `CUDA_VISIBLE_DEVICES` hides, and an instance of a GPU.
        records.extend([device(3, 0, 0), device(3, 1, 0), device(4, 1, 1)].concat());
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
            Activity::Device(instance),
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
        assert_eq!((instance.device, instance.uuid), (4, [6; 16]));
        assert_eq!((context.context, context.device, context.null_stream), (1, 3, 7));
        assert_eq!((stream.context, stream.stream, stream.priority), (1, 13, -1));
        let losses = reader.counts();
        assert_eq!((losses.decoded, losses.implausible, losses.other_kinds), (7, 3, 1));
        assert_eq!((reader.standing().dropped, losses.unreadable), (12, 0));
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
    assert_eq!(reader.counts().other_kinds, 3);
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
        let losses = reader.counts();
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
    assert_eq!(reader.counts().unreadable, 1);
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
