//! Records by the table, and the walk over buffers that may hold anything. No library is needed.

use cupti_sys::bindings::*;
use cupti_sys::records::{self, End, Field, Own, Table, Value, Walker};
use cupti_sys::table::{
    Api, Context, Device, ExternalCorrelation, GraphHostNode, Kernel, Marker, Memcpy, MemcpyPtoP, Memset, Overhead,
    Stream,
};

use support::{Buffer, Random, kinds};

mod support;

/// Versions of all releases, of some between them, and of one that is not there yet.
const VERSIONS: [u32; 18] =
    [18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 130_000, 130_001, 130_100, 130_200, 130_201, 130_300, 130_401, 130_500];
const FUTURE: u32 = 140_000;

/// Walks with the table's own sizes; the places and kinds of the records, and the end.
fn walk(table: &Table, bytes: &[u8]) -> (Vec<(usize, u32)>, End) {
    let mut walk = table.walk(bytes, Own);
    let records = walk.by_ref().map(|record| {
        let at = record.bytes().as_ptr().addr() - bytes.as_ptr().addr();
        assert!(at + record.bytes().len() <= bytes.len());
        (at, record.kind())
    });
    let records = records.collect();
    (records, walk.end().expect("the walk is over"))
}

#[test]
fn a_kernel_is_read() {
    let table = Table::new(28);
    let mut buffer = Buffer::default();
    buffer.push(&table, CUPTI_ACTIVITY_KIND_STREAM);
    let at = buffer.push(&table, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    assert_eq!((at, buffer.bytes.len()), (24, 24 + 208));
    // The places are those of reference/cupti.md, which took them from the headers by another way.
    buffer.put(at + 16, 1_000_000_000_000_000_001u64.to_ne_bytes());
    buffer.put(at + 24, 1_000_000_000_000_000_033u64.to_ne_bytes());
    buffer.put(at + 40, 3u32.to_ne_bytes());
    buffer.put(at + 44, 1u32.to_ne_bytes());
    buffer.put(at + 48, 14u32.to_ne_bytes());
    buffer.put(at + 52, 24i32.to_ne_bytes());
    buffer.put(at + 64, 640i32.to_ne_bytes());
    buffer.put(at + 92, 77u32.to_ne_bytes());
    buffer.put(at + 104, 0xdead_beefusize.to_ne_bytes());
    buffer.put(at + 144, 0x5_0000_0002u64.to_ne_bytes());
    buffer.put(at + 156, 5u32.to_ne_bytes());

    let mut walk = table.walk(&buffer.bytes, Own);
    assert_eq!(walk.end(), None);
    assert!(walk.next().unwrap().view::<Kernel>().is_none(), "a stream is no kernel");
    let kernel = walk.next().unwrap().view::<Kernel>().unwrap();
    assert!(walk.next().is_none());
    assert_eq!(walk.end(), Some(End::Done));

    assert_eq!(kernel.get(Kernel::START), Some(1_000_000_000_000_000_001));
    assert_eq!(kernel.get(Kernel::END), Some(1_000_000_000_000_000_033));
    assert_eq!(kernel.get(Kernel::DEVICE_ID), Some(3));
    assert_eq!(kernel.get(Kernel::CONTEXT_ID), Some(1));
    assert_eq!(kernel.get(Kernel::STREAM_ID), Some(14));
    assert_eq!(kernel.get(Kernel::GRID_X), Some(24));
    assert_eq!(kernel.get(Kernel::BLOCK_X), Some(640));
    assert_eq!(kernel.get(Kernel::CORRELATION_ID), Some(77));
    assert_eq!(kernel.get(Kernel::NAME).unwrap().addr(), 0xdead_beef);
    assert_eq!(kernel.get(Kernel::GRAPH_NODE_ID), Some(0x5_0000_0002));
    assert_eq!(kernel.get(Kernel::GRAPH_ID), Some(5));
    assert_eq!(kernel.get(Kernel::PRIORITY), None, "CUDA 13.1 has it first");
}

/// A field is where it is said to be, from the release on that is said to have it, and within the
/// record.
fn field<F, T: Value>(kind: u32, field: Field<F, T>, offset: usize, cuda: &str) {
    assert_eq!(field.offset(), offset, "kind {kind}");
    assert_eq!(records::release(field.since()), Some(cuda), "kind {kind}, offset {offset}");
    for version in VERSIONS.into_iter().filter(|version| *version >= field.since()) {
        let size = Table::new(version).size(kind).expect("a record that has a field is there");
        assert!(offset + size_of::<T>() <= size, "kind {kind}, offset {offset}, version {version}");
    }
}

#[test]
fn fields_are_where_the_reference_has_them() {
    let kernel = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    field(kernel, Kernel::PRIORITY, 216, "13.1");

    let memcpy = CUPTI_ACTIVITY_KIND_MEMCPY;
    field(memcpy, Memcpy::COPY_KIND, 4, "12.0");
    field(memcpy, Memcpy::BYTES, 8, "12.0");
    field(memcpy, Memcpy::STREAM_ID, 40, "12.0");
    field(memcpy, Memcpy::CORRELATION_ID, 44, "12.0");
    field(memcpy, Memcpy::GRAPH_NODE_ID, 64, "12.0");
    let peer = CUPTI_ACTIVITY_KIND_MEMCPY2;
    field(peer, MemcpyPtoP::CORRELATION_ID, 60, "12.0");
    field(peer, MemcpyPtoP::GRAPH_NODE_ID, 72, "12.0");
    let memset = CUPTI_ACTIVITY_KIND_MEMSET;
    field(memset, Memset::CORRELATION_ID, 44, "12.0");
    field(memset, Memset::GRAPH_NODE_ID, 64, "12.0");

    for kind in [CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME] {
        field(kind, Api::CBID, 4, "12.0");
        field(kind, Api::START, 8, "12.0");
        field(kind, Api::THREAD_ID, 28, "12.0");
        field(kind, Api::CORRELATION_ID, 32, "12.0");
        field(kind, Api::RETURN_VALUE, 36, "12.0");
    }
    let external = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    field(external, ExternalCorrelation::EXTERNAL_KIND, 4, "12.0");
    field(external, ExternalCorrelation::EXTERNAL_ID, 8, "12.0");
    field(external, ExternalCorrelation::CORRELATION_ID, 16, "12.0");

    let overhead = CUPTI_ACTIVITY_KIND_OVERHEAD;
    field(overhead, Overhead::OVERHEAD_KIND, 4, "12.0");
    field(overhead, Overhead::OBJECT_KIND, 8, "12.0");
    field(overhead, Overhead::OBJECT_ID_PT_THREAD_ID, 16, "12.0");
    field(overhead, Overhead::START, 24, "12.0");
    let device = CUPTI_ACTIVITY_KIND_DEVICE;
    field(device, Device::ID, 112, "12.0");
    field(device, Device::UUID, 120, "12.0");
    field(device, Device::NAME, 136, "12.0");
    field(device, Device::MIG_UUID, 160, "12.0");
    let context = CUPTI_ACTIVITY_KIND_CONTEXT;
    field(context, Context::CONTEXT_ID, 4, "12.0");
    field(context, Context::DEVICE_ID, 8, "12.0");
    field(context, Context::NULL_STREAM_ID, 14, "12.0");
    let stream = CUPTI_ACTIVITY_KIND_STREAM;
    field(stream, Stream::STREAM_ID, 8, "12.0");
    field(stream, Stream::PRIORITY, 12, "12.0");

    field(CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE, GraphHostNode::GRAPH_NODE_ID, 24, "13.1");
    field(CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE, GraphHostNode::END, 48, "13.1");
    field(CUPTI_ACTIVITY_KIND_MARKER, Marker::TIMESTAMP, 8, "12.0");
    field(CUPTI_ACTIVITY_KIND_MARKER, Marker::ID, 16, "12.0");
    field(CUPTI_ACTIVITY_KIND_MARKER, Marker::NAME, 40, "12.0");
    field(CUPTI_ACTIVITY_KIND_MARKER, Marker::DOMAIN, 48, "12.0");
}

#[test]
fn sizes_follow_the_rules_of_cupti() {
    let families = [
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMCPY2,
        CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_OVERHEAD,
        CUPTI_ACTIVITY_KIND_DEVICE,
        CUPTI_ACTIVITY_KIND_CONTEXT,
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
        CUPTI_ACTIVITY_KIND_CUDA_EVENT,
        CUPTI_ACTIVITY_KIND_GRAPH_TRACE,
    ];
    let mut before = Table::new(18);
    for version in VERSIONS {
        let table = Table::new(version);
        for kind in kinds(&table) {
            assert_eq!(table.size(kind).unwrap() % 8, 0, "kind {kind}, version {version}");
        }
        for kind in families {
            assert!(table.size(kind) >= before.size(kind), "kind {kind} shrinks in version {version}");
        }
        let (one, other) = (CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
        assert_eq!(table.size(one), table.size(other));
        before = table;
    }
}

#[test]
fn a_newer_version_is_read_as_the_newest_known() {
    let (newest, future) = (Table::new(130_500), Table::new(FUTURE));
    for kind in 0..200 {
        assert_eq!(newest.size(kind), future.size(kind));
    }
    assert_eq!(future.version(), FUTURE);
    assert_eq!(records::release(FUTURE), Some("13.5"));
    assert_eq!(records::subscriber_params_size(FUTURE), Some(40));
}

#[test]
fn a_version_older_than_the_table_has_no_records() {
    let table = Table::new(17);
    assert!(kinds(&table).is_empty());
    let bytes = [0u32, 10, 0, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(walk(&table, &bytes[4..]), (Vec::new(), End::UnknownKind { kind: 10, at: 0 }));
    assert_eq!(records::release(17), None);
    assert_eq!(records::subscriber_params_size(28), None);
    assert_eq!(records::subscriber_params_size(130_101), Some(32));
}

#[test]
fn every_kind_of_every_version_is_walked() {
    for version in VERSIONS {
        let table = Table::new(version);
        let mut buffer = Buffer::default();
        for kind in kinds(&table) {
            buffer.push(&table, kind);
            buffer.push(&table, CUPTI_ACTIVITY_KIND_STREAM);
        }
        assert_eq!(walk(&table, &buffer.bytes), (buffer.records, End::Done), "version {version}");
    }
}

#[test]
fn a_cut_buffer_gives_the_whole_records_only() {
    let table = Table::new(130_400);
    let mut buffer = Buffer::default();
    for kind in [CUPTI_ACTIVITY_KIND_STREAM, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME] {
        buffer.push(&table, kind);
    }
    // STREAM 0..24, CONCURRENT_KERNEL 24..272, RUNTIME 272..312
    for len in 0..=buffer.bytes.len() {
        let (records, end) = walk(&table, &buffer.bytes[..len]);
        let (whole, expected) = match len {
            0 => (0, End::Done),
            1..24 => (0, End::Truncated { at: 0 }),
            24 => (1, End::Done),
            25..272 => (1, End::Truncated { at: 24 }),
            272 => (2, End::Done),
            273..312 => (2, End::Truncated { at: 272 }),
            _ => (3, End::Done),
        };
        assert_eq!((records.as_slice(), end), (&buffer.records[..whole], expected), "{len} bytes");
        let mut walk = table.walk(&buffer.bytes[..len], Own);
        assert_eq!(walk.by_ref().count(), whole);
        assert_eq!(walk.rest(), len - [0, 24, 272, 312][whole], "{len} bytes");
    }
    assert!(table.is_exact() && !Table::new(FUTURE).is_exact());
}

#[test]
fn an_unknown_kind_ends_the_walk_and_says_so() {
    let table = Table::new(28);
    let mut buffer = Buffer::default();
    buffer.push(&table, CUPTI_ACTIVITY_KIND_STREAM);
    buffer.push(&table, CUPTI_ACTIVITY_KIND_STREAM);
    // GRAPH_HOST_NODE came with CUDA 13.1.
    buffer.put(24, CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE.to_ne_bytes());
    let (records, end) = walk(&table, &buffer.bytes);
    assert_eq!((records.len(), end), (1, End::UnknownKind { kind: 56, at: 24 }));
    assert_eq!(end.to_string(), "a record of unknown kind 56, at byte 24");
}

#[test]
fn any_bytes_can_be_walked_and_read() {
    let mut random = Random(1);
    for _ in 0..20_000 {
        let version = [VERSIONS.as_slice(), &[0, 17, FUTURE, u32::MAX]].concat()[random.below(22)];
        let table = Table::new(version);
        let len = random.below(1500);
        let bytes = random.bytes(len);
        let mut next = 0;
        let mut walk = table.walk(&bytes, Own);
        for record in walk.by_ref() {
            let at = record.bytes().as_ptr().addr() - bytes.as_ptr().addr();
            assert!(at >= next && at + record.bytes().len() <= bytes.len());
            next = at + record.bytes().len();
            if let Some(kernel) = record.view::<Kernel>() {
                kernel.get(Kernel::PRIORITY);
                kernel.get(Kernel::NAME);
            }
            if let Some(device) = record.view::<Device>() {
                device.get(Device::MIG_UUID);
            }
        }
        assert!(walk.end().is_some());
    }
}

/// Leads astray: a list of steps, whatever was asked.
struct Steps(Vec<Result<usize, End>>);

impl Walker for Steps {
    fn next(&mut self, _: &Table, _: &[u8], _: Option<usize>) -> Result<usize, End> {
        if self.0.is_empty() { Err(End::Done) } else { self.0.remove(0) }
    }
}

#[test]
fn a_walker_that_leaves_the_buffer_is_not_followed() {
    let table = Table::new(28);
    let bytes = [CUPTI_ACTIVITY_KIND_STREAM.to_ne_bytes(); 32].concat();
    for (steps, seen, end) in [
        (vec![], 0, End::Done),
        (vec![Ok(126)], 0, End::Strayed { at: None }),
        (vec![Ok(usize::MAX)], 0, End::Strayed { at: None }),
        (vec![Ok(24), Ok(24)], 1, End::Strayed { at: Some(24) }),
        (vec![Ok(24), Ok(0)], 1, End::Strayed { at: Some(24) }),
        (vec![Ok(24), Ok(26)], 1, End::Strayed { at: Some(24) }),
        (vec![Ok(0), Ok(4), Ok(124)], 3, End::Done),
        (vec![Err(End::Refused { result: 999, at: None })], 0, End::Refused { result: 999, at: None }),
    ] {
        let mut walk = table.walk(&bytes, Steps(steps));
        assert_eq!(walk.by_ref().count(), seen);
        assert_eq!(walk.end(), Some(end));
        assert!(walk.next().is_none());
    }
}

#[test]
fn a_record_longer_than_in_the_table_is_read_as_far_as_it_is_known() {
    let table = Table::new(FUTURE);
    let known = table.size(CUPTI_ACTIVITY_KIND_STREAM).unwrap();
    let bytes = [CUPTI_ACTIVITY_KIND_STREAM.to_ne_bytes(); 40].concat();
    // The library knows that a record is 80 bytes long now.
    let records: Vec<_> = table.walk(&bytes, Steps(vec![Ok(0), Ok(80)])).collect();
    assert_eq!(records.iter().map(|record| record.bytes().len()).collect::<Vec<_>>(), [known, known]);
    // And this one is shorter than the table has it.
    let records: Vec<_> = table.walk(&bytes, Steps(vec![Ok(0), Ok(12)])).collect();
    assert_eq!(records[0].bytes().len(), 12);
    assert_eq!(records[0].view::<Stream>().unwrap().get(Stream::PRIORITY), None);
}
