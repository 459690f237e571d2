//! The contents of records, in every release.

use emulated_cupti::layout::{self, kind};
use emulated_cupti::release::Release;
use observe::{Activity, ActivityKind, ResourceKind};

use crate::alone::{alone, release};
use crate::consumer::{self, records};
use crate::cupti;
use crate::host::{self, CONTEXT_ID, WALL_AHEAD};

/// Runs a body once per release.
macro_rules! in_every_release {
    ($body:expr) => {
        for release in Release::ALL {
            alone(&format!("release={}", release.name()), $body);
        }
    };
}

#[test]
fn a_kernel() {
    in_every_release!(|| {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let start = host::now();
        let kernel = host::launch(host::kernel(13));
        host::finish(kernel, start + 5_000, 70_000);
        cupti.flush(false);
        let [record] = records(cupti).try_into().expect("one kernel was launched");
        use layout::kernel as k;
        assert_eq!(record.kind(), kind::CONCURRENT_KERNEL);
        assert_eq!(record.size(), layout::size(kind::CONCURRENT_KERNEL, release()).expect("kernels always were"));
        for (field, expected) in [
            (k::START, start + 5_000 + WALL_AHEAD),
            (k::END, start + 75_000 + WALL_AHEAD),
            (k::DEVICE_ID, 0),
            (k::CONTEXT_ID, CONTEXT_ID.into()),
            (k::STREAM_ID, 13),
            (k::GRID_X, 8),
            (k::GRID_Y, 1),
            (k::BLOCK_X, 512),
            (k::DYNAMIC_SHARED_MEMORY, 1024),
            (k::CORRELATION_ID, kernel.correlation.into()),
            (k::GRAPH_NODE_ID, 0),
            (k::GRAPH_ID, 0),
            (k::QUEUED, 0),
            (k::SUBMITTED, 0),
            (k::CHANNEL_TYPE, 1),
        ] {
            assert_eq!(record.get(field), expected, "{}", field.name);
        }
        assert_eq!(record.string(k::NAME), host::KERNEL, "the name outlives the machine's own string");
    });
}

#[test]
fn copies_and_memsets() {
    in_every_release!(|| {
        let cupti = consumer::start(&[kind::MEMCPY, kind::MEMCPY2, kind::MEMSET]);
        let copy = |copy_kind, peer, copies| {
            let copy = host::activity(ActivityKind::Memcpy, 14);
            let copy = Activity { bytes: 4096, copy_kind, peer, copies, ..copy };
            host::call(c"cudaMemcpyAsync", None, |correlation| {
                let copy = Activity { correlation, ..copy };
                host::queue(&copy);
                host::finish(copy, host::now(), 1_000);
            });
        };
        copy(1, 0, 1);
        copy(2, 0, 1);
        copy(3, 0, 5);
        copy(3, 1, 1);
        host::call(c"cudaMemsetAsync", None, |correlation| {
            let set = host::activity(ActivityKind::Memset, 14);
            let set = Activity { correlation, bytes: 64, value: 0x5a, ..set };
            host::queue(&set);
            host::finish(set, host::now(), 1_000);
        });
        cupti.flush(false);
        let records = records(cupti);
        let kinds: Vec<u32> = records.iter().map(consumer::Record::kind).collect();
        assert_eq!(kinds, [kind::MEMCPY, kind::MEMCPY, kind::MEMCPY, kind::MEMCPY2, kind::MEMSET]);
        use layout::{memcpy as m, memcpy_peer as p, memset as s};
        let copy_kinds: Vec<u64> = records[..3].iter().map(|record| record.get(m::COPY_KIND)).collect();
        assert_eq!(copy_kinds, [1, 2, 8]);
        assert_eq!(records[0].get(m::BYTES), 4096);
        if m::COPY_COUNT.since <= release() {
            assert_eq!(records[2].get(m::COPY_COUNT), 5);
        }
        assert_eq!((records[3].get(p::SOURCE_DEVICE_ID), records[3].get(p::DESTINATION_DEVICE_ID)), (0, 1));
        assert_eq!(records[3].get(p::COPY_KIND), 10);
        assert_eq!((records[4].get(s::VALUE), records[4].get(s::BYTES)), (0x5a, 64));
    });
}

#[test]
fn calls_with_the_ids_pushed_around_them() {
    in_every_release!(|| {
        let cupti = consumer::start(&[kind::DRIVER, kind::RUNTIME, kind::EXTERNAL_CORRELATION]);
        assert_eq!(cupti!(cupti, cuptiSetThreadIdType(u32 = 1)), 0);
        let push = |kind: u32, id: u64| cupti!(cupti, cuptiActivityPushExternalCorrelationId(u32 = kind, u64 = id));
        let pop = |kind: u32| {
            let mut last = 0;
            let code = cupti!(
                cupti,
                cuptiActivityPopExternalCorrelationId(u32 = kind, *mut u64 = &raw mut last)
            );
            (code, last)
        };
        assert_eq!((push(5, 77), push(5, 78), push(3, 1), push(9, 1)), (0, 0, 0, 1));
        let outer = host::call(c"cudaLaunchKernelExC", None, |correlation| {
            host::call_as(correlation, c"cuLaunchKernelEx", None, |_| ());
            correlation
        });
        assert_eq!((pop(5), pop(5), pop(5)), ((0, 78), (0, 77), (18, 0)));
        assert_eq!(pop(3), (0, 1));
        let plain = host::call(c"cudaStreamSynchronize", None, |correlation| correlation);
        cupti.flush(false);
        let records = records(cupti);
        use layout::{api as a, external_correlation as e};
        let kinds: Vec<u32> = records.iter().map(consumer::Record::kind).collect();
        let (external, driver, runtime) = (kind::EXTERNAL_CORRELATION, kind::DRIVER, kind::RUNTIME);
        assert_eq!(kinds, [external, external, driver, external, external, runtime, runtime]);
        for (record, expected) in records.iter().zip([(3, 1), (5, 78)]) {
            assert_eq!((record.get(e::EXTERNAL_KIND), record.get(e::EXTERNAL_ID)), expected);
            assert_eq!(record.get(e::CORRELATION_ID), outer.into());
        }
        let (driver, runtime, plain_record) = (&records[2], &records[5], &records[6]);
        assert_eq!((driver.get(a::CALLBACK_ID), runtime.get(a::CALLBACK_ID)), (652, 430));
        assert_eq!((driver.get(a::CORRELATION_ID), runtime.get(a::CORRELATION_ID)), (outer.into(), outer.into()));
        assert_eq!((plain_record.get(a::CALLBACK_ID), plain_record.get(a::CORRELATION_ID)), (131, plain.into()));
        assert!(runtime.get(a::START) <= driver.get(a::START) && driver.get(a::END) <= runtime.get(a::END));
        // SAFETY: the call cannot fail.
        assert_eq!(runtime.get(a::THREAD_ID), unsafe { libc::gettid() } as u64);
        assert_eq!(runtime.get(a::PROCESS_ID), std::process::id().into());
    });
}

#[test]
fn single_functions_can_be_chosen() {
    alone("release=13.1", || {
        let cupti = consumer::start(&[]);
        let choose = |id: u32| cupti!(cupti, cuptiActivityEnableDriverApi(u32 = id, u8 = 1));
        assert_eq!((choose(652), choose(9999)), (0, 1));
        let calls = || {
            host::call(c"cuLaunchKernelEx", None, |_| ());
            host::call(c"cuLaunchKernel", None, |_| ());
            host::call(c"cudaFree", None, |_| ());
            cupti.flush(false);
            records(cupti).iter().map(|record| record.get(layout::api::CALLBACK_ID)).collect::<Vec<_>>()
        };
        assert_eq!(calls(), [652]);
        cupti.enable(&[kind::DRIVER]);
        assert_eq!(calls(), [652, 307], "enabling the kind overrides the functions chosen earlier");
    });
}

#[test]
fn existing_objects_are_dumped() {
    in_every_release!(|| {
        host::exists(host::resource(ResourceKind::ContextCreated));
        host::exists(host::stream(ResourceKind::StreamCreated, 0x5000, 13));
        let cupti = consumer::start(&[kind::DEVICE, kind::CONTEXT]);
        cupti.flush(false);
        assert!(records(cupti).is_empty(), "without a dump, existing objects are not reported");
        for kind in [kind::DEVICE, kind::CONTEXT, kind::STREAM] {
            assert_eq!(cupti!(cupti, cuptiActivityEnableAndDump(u32 = kind)), 0);
        }
        let created = host::call(c"cudaStreamCreateWithFlags", None, |correlation| {
            host::tell(&host::stream(ResourceKind::StreamCreated, 0x6000, 14));
            correlation
        });
        cupti.flush(false);
        let records = records(cupti);
        use layout::{context as c, device as d, stream as s};
        let kinds: Vec<u32> = records.iter().map(consumer::Record::kind).collect();
        let (device, context, stream) = (kind::DEVICE, kind::CONTEXT, kind::STREAM);
        assert_eq!(kinds, [device, device, context, stream, stream, stream]);
        assert_eq!((records[1].get(d::ID), records[1].bytes(d::UUID)), (1, &[0x41; 16][..]));
        assert_eq!(records[0].string(d::NAME), c"Emulated GPU");
        assert_eq!((records[0].get(d::COMPUTE_CAPABILITY_MAJOR), records[0].get(d::MULTIPROCESSORS)), (8, 108));
        assert_eq!((records[2].get(c::CONTEXT_ID), records[2].get(c::NULL_STREAM_ID)), (1, 7));
        let streams: Vec<[u64; 3]> = records[3..]
            .iter()
            .map(|record| [record.get(s::STREAM_ID), record.get(s::FLAG), record.get(s::CORRELATION_ID)])
            .collect();
        assert_eq!(streams, [[7, 3, 0], [13, 2, 0], [14, 2, created.into()]]);
    });
}

#[test]
fn early_listeners_get_the_devices() {
    alone("", || {
        let cupti = consumer::start(&[kind::DEVICE, kind::CONTEXT]);
        host::tell(&host::resource(ResourceKind::ContextCreated));
        cupti.flush(false);
        let kinds: Vec<u32> = records(cupti).iter().map(consumer::Record::kind).collect();
        assert_eq!(kinds, [kind::DEVICE, kind::DEVICE, kind::CONTEXT]);
    });
}

#[test]
fn host_functions_of_graphs_and_streams() {
    alone("release=13.1", || {
        let cupti = consumer::start(&[kind::GRAPH_HOST_NODE, kind::HOST_LAUNCH]);
        for node_id in [9 << 32 | 2, 0] {
            host::call(c"cudaGraphLaunch", None, |correlation| {
                let function = host::activity(ActivityKind::HostNode, 13);
                let function = Activity { correlation, node_id, graph_id: (node_id >> 32) as u32, ..function };
                host::queue(&function);
                host::finish(function, host::now(), 500);
            });
        }
        cupti.flush(false);
        let records = records(cupti);
        let [node, launch] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!((node.kind(), launch.kind()), (kind::GRAPH_HOST_NODE, kind::HOST_LAUNCH));
        assert_eq!(node.get(layout::graph_host_node::GRAPH_NODE_ID), 9 << 32 | 2);
        assert_eq!(launch.get(layout::host_launch::END) - launch.get(layout::host_launch::START), 500);
    });
}

#[test]
fn kinds_that_a_release_does_not_have_are_refused() {
    in_every_release!(|| {
        let cupti = consumer::start(&[]);
        let enable = |kind: u32| cupti!(cupti, cuptiActivityEnable(u32 = kind));
        assert_eq!((enable(0), enable(release().kinds())), (21, 21));
        assert_eq!(enable(kind::GRAPH_HOST_NODE), if release() >= Release::V13_1 { 0 } else { 21 });
        assert_eq!(enable(6), if release() >= Release::V13_0 { 21 } else { 0 }, "CUPTI 13 has no event records");
        if cupti.symbol("cuptiActivityGetStructSize").is_null() {
            assert!(release() < Release::V13_3);
            return;
        }
        let size_in = |version: u32| {
            let mut size = 0usize;
            let kernel = kind::CONCURRENT_KERNEL;
            let code = cupti!(
                cupti,
                cuptiActivityGetStructSize(u32 = kernel, u32 = version, *mut usize = &raw mut size)
            );
            (code, size)
        };
        let own = layout::size(kind::CONCURRENT_KERNEL, release()).expect("kernels always were");
        assert_eq!(size_in(0), (0, own));
        assert_eq!((size_in(130_000), size_in(130_100), size_in(130_200)), ((0, 216), (0, 224), (0, 224)));
        assert_eq!(size_in(28).0, 27);
    });
}
