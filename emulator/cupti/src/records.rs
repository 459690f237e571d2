//! Records as bytes.
//!
//! Features that the emulated machine lacks are 0, as on hardware that lacks them: caches,
//! clusters, local memory, green contexts, MIG. The `completed` time of a kernel, which covers
//! children of dynamic parallelism, is unknown (0).

use std::ffi::c_char;

use observe::{Activity, Gpu};

use crate::layout::{self, Field, kind};
use crate::release::Release;
use crate::{corrupt, subscriber};

/// A record in the structure of a release.
#[derive(Clone)]
pub(crate) struct Record {
    kind: u32,
    release: Release,
    size: usize,
    bytes: [u8; layout::LARGEST + corrupt::LONGER],
}

impl Record {
    /// A record with only its kind set; `None` if the release has no such record.
    pub(crate) fn new(kind: u32, release: Release) -> Option<Record> {
        let size = corrupt::size(kind, layout::size(kind, release)?);
        let mut record = Record { kind, release, size, bytes: [0; layout::LARGEST + corrupt::LONGER] };
        record.bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        Some(record)
    }

    /// Sets a field, if the release has it.
    pub(crate) fn set(&mut self, field: Field, value: u64) -> &mut Record {
        self.set_bytes(field, &value.to_ne_bytes()[..field.size.min(8)])
    }

    /// Sets a field that is not a number.
    pub(crate) fn set_bytes(&mut self, field: Field, value: &[u8]) -> &mut Record {
        if field.since <= self.release {
            self.bytes[field.offset..field.offset + field.size].copy_from_slice(value);
        }
        self
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// The kind of the hardware queue that did the work.
mod channel {
    pub(super) const COMPUTE: u64 = 1;
    pub(super) const COPY: u64 = 2;
}

/// The kinds of memory at both ends of a copy.
mod memory {
    pub(super) const PINNED: u64 = 2;
    pub(super) const DEVICE: u64 = 3;
}

/// What is known about the GPU's work besides what the machine reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// When it began, in CUPTI's time; 0 if unknown.
    pub(crate) start: u64,
    /// When it ended.
    pub(crate) end: u64,
}

/// The record of the GPU's work, with the given kind. `name` outlives every buffer; `source` is
/// the node that the executed one was cloned from, or 0.
pub(crate) fn activity(
    kind: u32,
    release: Release,
    activity: &Activity,
    timing: Timing,
    name: *const c_char,
    source: u64,
) -> Option<Record> {
    let mut record = Record::new(kind, release)?;
    match kind {
        kind::KERNEL | kind::CONCURRENT_KERNEL => kernel(&mut record, activity, timing, name, source),
        kind::MEMCPY => memcpy(&mut record, activity, timing, source),
        kind::MEMCPY2 => memcpy_peer(&mut record, activity, timing),
        kind::MEMSET => memset(&mut record, activity, timing, source),
        kind::GRAPH_HOST_NODE => graph_host_node(&mut record, activity, timing),
        kind::HOST_LAUNCH => host_launch(&mut record, activity, timing),
        _ => return None,
    }
    Some(record)
}

/// Sets the fields that all records of the GPU's work have.
macro_rules! set_work {
    ($record:expr, $layout:ident, $activity:expr, $timing:expr) => {
        $record
            .set($layout::START, $timing.start)
            .set($layout::END, $timing.end)
            .set($layout::DEVICE_ID, $activity.device.into())
            .set($layout::CONTEXT_ID, $activity.context_id.into())
            .set($layout::STREAM_ID, $activity.stream_id.into())
            .set($layout::CORRELATION_ID, subscriber::told($activity.correlation).into())
    };
}

fn kernel(record: &mut Record, activity: &Activity, timing: Timing, name: *const c_char, source: u64) {
    use layout::kernel as k;
    /// Roughly the registers of an NCCL kernel.
    const REGISTERS: u64 = 96;
    let [grid_x, grid_y, grid_z] = activity.grid.map(u64::from);
    let [block_x, block_y, block_z] = activity.block.map(u64::from);
    set_work!(record, k, activity, timing)
        .set(k::REGISTERS_PER_THREAD, REGISTERS)
        .set(k::GRID_X, grid_x)
        .set(k::GRID_Y, grid_y)
        .set(k::GRID_Z, grid_z)
        .set(k::BLOCK_X, block_x)
        .set(k::BLOCK_Y, block_y)
        .set(k::BLOCK_Z, block_z)
        .set(k::DYNAMIC_SHARED_MEMORY, activity.shared_memory.into())
        .set(k::SHARED_MEMORY_EXECUTED, activity.shared_memory.into())
        .set(k::GRID_ID, activity.correlation.into())
        .set(k::NAME, name as u64)
        .set(k::GRAPH_NODE_ID, activity.node_id)
        .set(k::GRAPH_ID, activity.graph_id.into())
        .set(k::CHANNEL_ID, channel_of(activity))
        .set(k::CHANNEL_TYPE, channel::COMPUTE)
        .set(k::SOURCE_GRAPH_ID, source >> 32)
        .set(k::SOURCE_GRAPH_NODE_ID, source);
}

fn memcpy(record: &mut Record, activity: &Activity, timing: Timing, source: u64) {
    use layout::memcpy as m;
    let (copy_kind, from, to) = copy_kinds(activity);
    set_work!(record, m, activity, timing)
        .set(m::COPY_KIND, copy_kind)
        .set(m::SOURCE_KIND, from)
        .set(m::DESTINATION_KIND, to)
        .set(m::FLAGS, 1) // asynchronous
        .set(m::BYTES, activity.bytes)
        .set(m::GRAPH_NODE_ID, activity.node_id)
        .set(m::GRAPH_ID, activity.graph_id.into())
        .set(m::CHANNEL_ID, channel_of(activity))
        .set(m::CHANNEL_TYPE, channel::COPY)
        .set(m::COPY_COUNT, activity.copies.max(1).into())
        .set(m::SOURCE_GRAPH_ID, source >> 32)
        .set(m::SOURCE_GRAPH_NODE_ID, source);
}

fn memcpy_peer(record: &mut Record, activity: &Activity, timing: Timing) {
    use layout::memcpy_peer as m;
    const PEER_TO_PEER: u64 = 10;
    set_work!(record, m, activity, timing)
        .set(m::COPY_KIND, PEER_TO_PEER)
        .set(m::SOURCE_KIND, memory::DEVICE)
        .set(m::DESTINATION_KIND, memory::DEVICE)
        .set(m::FLAGS, 1) // asynchronous
        .set(m::BYTES, activity.bytes)
        .set(m::SOURCE_DEVICE_ID, activity.device.into())
        .set(m::SOURCE_CONTEXT_ID, activity.context_id.into())
        .set(m::DESTINATION_DEVICE_ID, activity.peer.into())
        // The machine has one context per device, numbered in the order of their creation; the
        // peer's is not reported.
        .set(m::DESTINATION_CONTEXT_ID, 0)
        .set(m::GRAPH_NODE_ID, activity.node_id)
        .set(m::GRAPH_ID, activity.graph_id.into())
        .set(m::CHANNEL_ID, channel_of(activity))
        .set(m::CHANNEL_TYPE, channel::COPY);
}

fn memset(record: &mut Record, activity: &Activity, timing: Timing, source: u64) {
    use layout::memset as m;
    set_work!(record, m, activity, timing)
        .set(m::VALUE, activity.value.into())
        .set(m::BYTES, activity.bytes)
        .set(m::FLAGS, 1) // asynchronous
        .set(m::MEMORY_KIND, memory::DEVICE)
        .set(m::GRAPH_NODE_ID, activity.node_id)
        .set(m::GRAPH_ID, activity.graph_id.into())
        .set(m::CHANNEL_ID, channel_of(activity))
        .set(m::CHANNEL_TYPE, channel::COMPUTE)
        .set(m::SOURCE_GRAPH_ID, source >> 32)
        .set(m::SOURCE_GRAPH_NODE_ID, source);
}

fn graph_host_node(record: &mut Record, activity: &Activity, timing: Timing) {
    use layout::graph_host_node as g;
    set_work!(record, g, activity, timing)
        .set(g::GRAPH_ID, activity.graph_id.into())
        .set(g::GRAPH_NODE_ID, activity.node_id)
        .set(g::PROCESS_ID, std::process::id().into());
}

fn host_launch(record: &mut Record, activity: &Activity, timing: Timing) {
    use layout::host_launch as h;
    set_work!(record, h, activity, timing).set(h::PROCESS_ID, std::process::id().into());
}

/// The hardware queue: one for each stream.
fn channel_of(activity: &Activity) -> u64 {
    u64::from(activity.stream_id % 32)
}

/// The kind of a copy as CUPTI numbers it, and the kinds of memory at both ends.
fn copy_kinds(activity: &Activity) -> (u64, u64, u64) {
    const HOST_TO_DEVICE: u64 = 1;
    const DEVICE_TO_HOST: u64 = 2;
    const DEVICE_TO_DEVICE: u64 = 8;
    const HOST_TO_HOST: u64 = 9;
    // CUDA's own numbers, as the machine reports them.
    match activity.copy_kind {
        0 => (HOST_TO_HOST, memory::PINNED, memory::PINNED),
        1 => (HOST_TO_DEVICE, memory::PINNED, memory::DEVICE),
        2 => (DEVICE_TO_HOST, memory::DEVICE, memory::PINNED),
        _ => (DEVICE_TO_DEVICE, memory::DEVICE, memory::DEVICE),
    }
}

/// The record of a call.
pub(crate) struct ApiCall {
    pub(crate) kind: u32,
    pub(crate) id: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) thread: u32,
    pub(crate) correlation: u32,
    pub(crate) result: i32,
}

impl ApiCall {
    pub(crate) fn record(&self, release: Release) -> Option<Record> {
        use layout::api as a;
        let mut record = Record::new(self.kind, release)?;
        record
            .set(a::CALLBACK_ID, self.id.into())
            .set(a::START, self.start)
            .set(a::END, self.end)
            .set(a::PROCESS_ID, std::process::id().into())
            .set(a::THREAD_ID, self.thread.into())
            .set(a::CORRELATION_ID, subscriber::told(self.correlation).into())
            .set(a::RETURN_VALUE, self.result as u32 as u64);
        Some(record)
    }
}

/// The record that ties an external id to a call.
pub(crate) fn external(release: Release, external_kind: u32, id: u64, correlation: u32) -> Option<Record> {
    use layout::external_correlation as e;
    let mut record = Record::new(kind::EXTERNAL_CORRELATION, release)?;
    record
        .set(e::EXTERNAL_KIND, external_kind.into())
        .set(e::EXTERNAL_ID, id)
        .set(e::CORRELATION_ID, subscriber::told(correlation).into());
    Some(record)
}

/// The record of a range's beginning or end, or of a mark. `of` is the kind of object that it
/// belongs to; the record also names this thread. The texts, name and domain, outlive every
/// buffer.
pub(crate) fn marker(
    release: Release,
    flags: u32,
    at: u64,
    id: u32,
    of: (u32, u32),
    texts: [*const c_char; 2],
) -> Option<Record> {
    use layout::marker as m;
    let mut record = Record::new(kind::MARKER, release)?;
    let mut object = [0; 12];
    object[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    object[4..8].copy_from_slice(&of.1.to_ne_bytes());
    record
        .set(m::FLAGS, flags.into())
        .set(m::TIMESTAMP, at)
        .set(m::ID, id.into())
        .set(m::OBJECT_KIND, of.0.into())
        .set_bytes(m::OBJECT_ID, &object)
        .set(m::NAME, texts[0] as u64)
        .set(m::DOMAIN, texts[1] as u64);
    Some(record)
}

/// The kinds of CUPTI's overhead, as it numbers them.
pub(crate) mod overhead {
    pub(crate) const BUFFER_FLUSH: u32 = 1 << 16;
    pub(crate) const BUFFER_REQUEST: u32 = 7 << 16;
}

/// The record of time that CUPTI spent on a thread.
pub(crate) fn overhead(release: Release, what: u32, thread: u32, start: u64, end: u64) -> Option<Record> {
    use layout::overhead as o;
    const OBJECT_THREAD: u64 = 2;
    let mut record = Record::new(kind::OVERHEAD, release)?;
    let mut object = [0; 12];
    object[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    object[4..8].copy_from_slice(&thread.to_ne_bytes());
    record
        .set(o::OVERHEAD_KIND, what.into())
        .set(o::OBJECT_KIND, OBJECT_THREAD)
        .set_bytes(o::OBJECT_ID, &object)
        .set(o::START, start)
        .set(o::END, end);
    Some(record)
}

/// The record of a GPU. `name` outlives every buffer.
pub(crate) fn device(release: Release, ordinal: u32, gpu: &Gpu, name: *const c_char) -> Option<Record> {
    use layout::device as d;
    const CONCURRENT_KERNELS: u64 = 1;
    /// The value when there is no MIG.
    const NO_INSTANCE: u64 = u32::MAX as u64;
    let [major, minor] = gpu.compute_capability;
    let mut record = Record::new(kind::DEVICE, release)?;
    record
        .set(d::FLAGS, CONCURRENT_KERNELS)
        .set(d::GLOBAL_MEMORY_BANDWIDTH, 1_555_200_000) // kB/s
        .set(d::GLOBAL_MEMORY_SIZE, gpu.memory)
        .set(d::CONSTANT_MEMORY_SIZE, 65_536)
        .set(d::L2_CACHE_SIZE, 40 << 20)
        .set(d::THREADS_PER_WARP, 32)
        .set(d::CORE_CLOCK_RATE, 1_410_000) // kHz
        .set(d::MEMCPY_ENGINES, 3)
        .set(d::MULTIPROCESSORS, gpu.multiprocessors.into())
        .set(d::MAX_THREADS_PER_BLOCK, 1024)
        .set(d::COMPUTE_CAPABILITY_MAJOR, major.into())
        .set(d::COMPUTE_CAPABILITY_MINOR, minor.into())
        .set(d::ID, ordinal.into())
        .set_bytes(d::UUID, &gpu.uuid)
        .set(d::NAME, name as u64)
        .set(d::IS_CUDA_VISIBLE, 1)
        .set(d::GPU_INSTANCE_ID, NO_INSTANCE)
        .set(d::COMPUTE_INSTANCE_ID, NO_INSTANCE)
        .set(d::NUM_TPCS, u64::from(gpu.multiprocessors) / 2);
    Some(record)
}

/// The record of a context.
pub(crate) fn context(release: Release, id: u32, device: u32, null_stream: u32) -> Option<Record> {
    use layout::context as c;
    const CUDA: u64 = 1;
    let mut record = Record::new(kind::CONTEXT, release)?;
    record
        .set(c::CONTEXT_ID, id.into())
        .set(c::DEVICE_ID, device.into())
        .set(c::COMPUTE_API_KIND, CUDA)
        .set(c::NULL_STREAM_ID, null_stream.into())
        .set(c::PROCESS_ID, std::process::id().into());
    Some(record)
}

/// The record of a stream.
pub(crate) fn stream(release: Release, context: u32, id: u32, correlation: u32) -> Option<Record> {
    use layout::stream as s;
    const NON_BLOCKING: u64 = 2;
    const NULL_STREAM: u64 = 3;
    let mut record = Record::new(kind::STREAM, release)?;
    record
        .set(s::CONTEXT_ID, context.into())
        .set(s::STREAM_ID, id.into())
        .set(s::FLAG, if id == observe::DEFAULT_STREAM_ID { NULL_STREAM } else { NON_BLOCKING })
        .set(s::CORRELATION_ID, subscriber::told(correlation).into());
    Some(record)
}
