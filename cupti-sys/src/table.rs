//! Where the fields of activity records lie, and how long records are: CUPTI of CUDA 12.0 to 13.5.
//!
//! Written by `cargo xtask bindings` from the headers on PyPI that `releases.txt` names; not to be
//! edited. The sizes are those that the headers name for each kind, but for the few that the
//! libraries themselves contradict (`WALKED` in xtask); the tests walk the libraries of all these
//! releases.

use core::ffi::c_char;

use crate::bindings;
use crate::records::{Family, Field};

/// The first version of each release, as `cuptiGetVersion` reports it.
pub(crate) const RELEASES: &[(u32, &str)] = &[
    (18, "12.0"),
    (20, "12.2"),
    (21, "12.3"),
    (22, "12.4"),
    (23, "12.5"),
    (24, "12.6"),
    (26, "12.8"),
    (27, "12.9"),
    (130_000, "13.0"),
    (130_100, "13.1"),
    (130_200, "13.2"),
    (130_201, "13.2U1"),
    (130_300, "13.3"),
    (130_400, "13.4"),
    (130_500, "13.5"),
];

/// The size of `CUpti_SubscriberParams` from a version on.
pub(crate) const SUBSCRIBER_PARAMS_SIZES: &[(u32, usize)] = &[(130_000, 32), (130_200, 40)];

/// By kind: from a version on, how long a record is; 0 where it cannot be stepped over.
pub(crate) const SIZES: [&[(u32, u16)]; 60] = [
    // 0: not a record
    &[],
    // 1: MEMCPY
    &[(18, 88), (26, 96), (130_400, 112)],
    // 2: MEMSET
    &[(18, 88), (130_400, 104)],
    // 3: KERNEL
    &[(18, 208), (130_000, 216), (130_100, 224), (130_300, 232), (130_400, 248)],
    // 4: DRIVER
    &[(18, 40)],
    // 5: RUNTIME
    &[(18, 40)],
    // 6: EVENT
    &[(18, 24), (130_000, 0)],
    // 7: METRIC
    &[(18, 24), (130_000, 0)],
    // 8: DEVICE
    &[(18, 176), (20, 184), (130_200, 192)],
    // 9: CONTEXT
    &[(18, 16), (22, 24), (23, 32), (130_100, 40)],
    // 10: CONCURRENT_KERNEL
    &[(18, 208), (130_000, 216), (130_100, 224), (130_300, 232), (130_400, 248)],
    // 11: NAME
    &[(18, 32)],
    // 12: MARKER
    &[(18, 56)],
    // 13: MARKER_DATA
    &[(18, 32), (130_000, 40)],
    // 14: SOURCE_LOCATOR
    &[(18, 24), (130_000, 0)],
    // 15: GLOBAL_ACCESS
    &[(18, 56), (130_000, 0)],
    // 16: BRANCH
    &[(18, 40), (130_000, 0)],
    // 17: OVERHEAD
    &[(18, 40), (21, 48), (22, 56)],
    // 18: CDP_KERNEL
    &[(18, 144)],
    // 19: PREEMPTION
    &[(18, 40)],
    // 20: ENVIRONMENT
    &[(18, 40)],
    // 21: EVENT_INSTANCE
    &[(18, 32), (130_000, 0)],
    // 22: MEMCPY2
    &[(18, 96)],
    // 23: METRIC_INSTANCE
    &[(18, 32), (130_000, 0)],
    // 24: INSTRUCTION_EXECUTION
    &[(18, 48), (130_000, 0)],
    // 25: UNIFIED_MEMORY_COUNTER
    &[(18, 64), (26, 104)],
    // 26: FUNCTION
    &[(18, 32)],
    // 27: MODULE
    &[(18, 24)],
    // 28: DEVICE_ATTRIBUTE
    &[(18, 24)],
    // 29: SHARED_ACCESS
    &[(18, 56), (130_000, 0)],
    // 30: PC_SAMPLING
    &[(18, 40), (130_000, 0)],
    // 31: PC_SAMPLING_RECORD_INFO
    &[(18, 32), (130_000, 0)],
    // 32: INSTRUCTION_CORRELATION
    &[(18, 24), (130_000, 0)],
    // 33: OPENACC_DATA
    &[(18, 152)],
    // 34: OPENACC_LAUNCH
    &[(18, 152)],
    // 35: OPENACC_OTHER
    &[(18, 120)],
    // 36: CUDA_EVENT
    &[(18, 24), (26, 56), (130_500, 80)],
    // 37: STREAM
    &[(18, 24)],
    // 38: SYNCHRONIZATION
    &[(18, 40), (26, 56)],
    // 39: EXTERNAL_CORRELATION
    &[(18, 24)],
    // 40: NVLINK
    &[(18, 136), (130_200, 88)],
    // 41: INSTANTANEOUS_EVENT
    &[(18, 32), (130_000, 0)],
    // 42: INSTANTANEOUS_EVENT_INSTANCE
    &[(18, 32), (130_000, 0)],
    // 43: INSTANTANEOUS_METRIC
    &[(18, 32), (130_000, 0)],
    // 44: INSTANTANEOUS_METRIC_INSTANCE
    &[(18, 32), (130_000, 0)],
    // 45: MEMORY
    &[(18, 80)],
    // 46: PCIE
    &[(18, 168)],
    // 47: OPENMP
    &[(18, 40)],
    // 48: INTERNAL_LAUNCH_API
    &[(18, 40)],
    // 49: MEMORY2
    &[(18, 120), (24, 128)],
    // 50: MEMORY_POOL
    &[(18, 72), (130_000, 80)],
    // 51: GRAPH_TRACE
    &[(18, 48), (21, 56)],
    // 52: JIT
    &[(18, 64), (22, 72)],
    // 53: DEVICE_GRAPH_TRACE
    &[(26, 56)],
    // 54: MEM_DECOMPRESS
    &[(26, 64)],
    // 55: CONFIDENTIAL_COMPUTE_ROTATION
    &[(27, 32)],
    // 56: GRAPH_HOST_NODE
    &[(130_100, 56)],
    // 57: COMPUTE_ENGINE_CTX_SWITCH
    &[(130_100, 24)],
    // 58: HOST_LAUNCH
    &[(130_100, 48)],
    // 59: GREEN_CONTEXT
    &[(130_200, 152), (130_201, 168), (130_400, 304)],
];

/// A kernel that ran. `CUpti_ActivityKernel9` to `CUpti_ActivityKernel13`.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {}

impl Family for Kernel {
    const KINDS: &'static [u32] =
        &[bindings::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, bindings::CUPTI_ACTIVITY_KIND_KERNEL];
}

impl Kernel {
    /// `start`
    pub const START: Field<Self, u64> = Field::new(16, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(24, 18);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(40, 18);
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(44, 18);
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(48, 18);
    /// `gridX`
    pub const GRID_X: Field<Self, i32> = Field::new(52, 18);
    /// `gridY`
    pub const GRID_Y: Field<Self, i32> = Field::new(56, 18);
    /// `gridZ`
    pub const GRID_Z: Field<Self, i32> = Field::new(60, 18);
    /// `blockX`
    pub const BLOCK_X: Field<Self, i32> = Field::new(64, 18);
    /// `blockY`
    pub const BLOCK_Y: Field<Self, i32> = Field::new(68, 18);
    /// `blockZ`
    pub const BLOCK_Z: Field<Self, i32> = Field::new(72, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(92, 18);
    /// `name`
    pub const NAME: Field<Self, *const c_char> = Field::new(104, 18);
    /// `graphNodeId`
    pub const GRAPH_NODE_ID: Field<Self, u64> = Field::new(144, 18);
    /// `graphId`
    pub const GRAPH_ID: Field<Self, u32> = Field::new(156, 18);
    /// `priority`, since CUDA 13.1
    pub const PRIORITY: Field<Self, i32> = Field::new(216, 130_100);
}

/// A copy, or since CUDA 12.8 a batch of copies. `CUpti_ActivityMemcpy5` to `CUpti_ActivityMemcpy7`.
#[derive(Clone, Copy, Debug)]
pub enum Memcpy {}

impl Family for Memcpy {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_MEMCPY];
}

impl Memcpy {
    /// `copyKind`
    pub const COPY_KIND: Field<Self, u8> = Field::new(4, 18);
    /// `bytes`
    pub const BYTES: Field<Self, u64> = Field::new(8, 18);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(16, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(24, 18);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(32, 18);
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(36, 18);
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(40, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(44, 18);
    /// `graphNodeId`
    pub const GRAPH_NODE_ID: Field<Self, u64> = Field::new(64, 18);
}

/// A copy from one device to another. `CUpti_ActivityMemcpyPtoP4`.
#[derive(Clone, Copy, Debug)]
pub enum MemcpyPtoP {}

impl Family for MemcpyPtoP {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_MEMCPY2];
}

impl MemcpyPtoP {
    /// `copyKind`
    pub const COPY_KIND: Field<Self, u8> = Field::new(4, 18);
    /// `bytes`
    pub const BYTES: Field<Self, u64> = Field::new(8, 18);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(16, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(24, 18);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(32, 18);
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(36, 18);
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(40, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(60, 18);
    /// `graphNodeId`
    pub const GRAPH_NODE_ID: Field<Self, u64> = Field::new(72, 18);
}

/// Memory that was set. `CUpti_ActivityMemset4` to `CUpti_ActivityMemset5`.
#[derive(Clone, Copy, Debug)]
pub enum Memset {}

impl Family for Memset {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_MEMSET];
}

impl Memset {
    /// `bytes`
    pub const BYTES: Field<Self, u64> = Field::new(8, 18);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(16, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(24, 18);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(32, 18);
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(36, 18);
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(40, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(44, 18);
    /// `graphNodeId`
    pub const GRAPH_NODE_ID: Field<Self, u64> = Field::new(64, 18);
}

/// A call of the driver's or runtime's API. `CUpti_ActivityAPI`.
#[derive(Clone, Copy, Debug)]
pub enum Api {}

impl Family for Api {
    const KINDS: &'static [u32] = &[
        bindings::CUPTI_ACTIVITY_KIND_DRIVER,
        bindings::CUPTI_ACTIVITY_KIND_RUNTIME,
        bindings::CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API,
    ];
}

impl Api {
    /// `cbid`
    pub const CBID: Field<Self, u32> = Field::new(4, 18);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(8, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(16, 18);
    /// `threadId`
    pub const THREAD_ID: Field<Self, u32> = Field::new(28, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(32, 18);
    /// `returnValue`
    pub const RETURN_VALUE: Field<Self, u32> = Field::new(36, 18);
}

/// An id that was pushed when an API call was made. `CUpti_ActivityExternalCorrelation`.
#[derive(Clone, Copy, Debug)]
pub enum ExternalCorrelation {}

impl Family for ExternalCorrelation {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION];
}

impl ExternalCorrelation {
    /// `externalKind`
    pub const EXTERNAL_KIND: Field<Self, u32> = Field::new(4, 18);
    /// `externalId`
    pub const EXTERNAL_ID: Field<Self, u64> = Field::new(8, 18);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(16, 18);
}

/// CUPTI's own cost. Of the ids, those are meant that the kind of object has. `CUpti_ActivityOverhead` to `CUpti_ActivityOverhead3`.
#[derive(Clone, Copy, Debug)]
pub enum Overhead {}

impl Family for Overhead {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_OVERHEAD];
}

impl Overhead {
    /// `overheadKind`
    pub const OVERHEAD_KIND: Field<Self, u32> = Field::new(4, 18);
    /// `objectKind`
    pub const OBJECT_KIND: Field<Self, u32> = Field::new(8, 18);
    /// `objectId.pt.threadId`
    pub const OBJECT_ID_PT_THREAD_ID: Field<Self, u32> = Field::new(16, 18);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(24, 18);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(32, 18);
}

/// A GPU. `CUpti_ActivityDevice4` to `CUpti_ActivityDevice6`.
#[derive(Clone, Copy, Debug)]
pub enum Device {}

impl Family for Device {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_DEVICE];
}

impl Device {
    /// `id`
    pub const ID: Field<Self, u32> = Field::new(112, 18);
    /// `uuid`
    pub const UUID: Field<Self, [u8; 16]> = Field::new(120, 18);
    /// `name`
    pub const NAME: Field<Self, *const c_char> = Field::new(136, 18);
    /// `isCudaVisible`
    pub const IS_CUDA_VISIBLE: Field<Self, u8> = Field::new(144, 18);
    /// `isMigEnabled`
    pub const IS_MIG_ENABLED: Field<Self, u8> = Field::new(145, 18);
    /// `migUuid`
    pub const MIG_UUID: Field<Self, [u8; 16]> = Field::new(160, 18);
}

/// A context. `CUpti_ActivityContext` to `CUpti_ActivityContext4`.
#[derive(Clone, Copy, Debug)]
pub enum Context {}

impl Family for Context {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_CONTEXT];
}

impl Context {
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(4, 18);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(8, 18);
    /// `nullStreamId`
    pub const NULL_STREAM_ID: Field<Self, u16> = Field::new(14, 18);
}

/// A stream. `CUpti_ActivityStream`.
#[derive(Clone, Copy, Debug)]
pub enum Stream {}

impl Family for Stream {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_STREAM];
}

impl Stream {
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(4, 18);
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(8, 18);
    /// `priority`
    pub const PRIORITY: Field<Self, u32> = Field::new(12, 18);
}

/// A host function that a graph ran. `CUpti_ActivityGraphHostNode`.
#[derive(Clone, Copy, Debug)]
pub enum GraphHostNode {}

impl Family for GraphHostNode {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE];
}

impl GraphHostNode {
    /// `streamId`
    pub const STREAM_ID: Field<Self, u32> = Field::new(4, 130_100);
    /// `contextId`
    pub const CONTEXT_ID: Field<Self, u32> = Field::new(8, 130_100);
    /// `deviceId`
    pub const DEVICE_ID: Field<Self, u32> = Field::new(12, 130_100);
    /// `correlationId`
    pub const CORRELATION_ID: Field<Self, u32> = Field::new(16, 130_100);
    /// `graphId`
    pub const GRAPH_ID: Field<Self, u32> = Field::new(20, 130_100);
    /// `graphNodeId`
    pub const GRAPH_NODE_ID: Field<Self, u64> = Field::new(24, 130_100);
    /// `threadId`
    pub const THREAD_ID: Field<Self, u32> = Field::new(36, 130_100);
    /// `start`
    pub const START: Field<Self, u64> = Field::new(40, 130_100);
    /// `end`
    pub const END: Field<Self, u64> = Field::new(48, 130_100);
}

/// The start or end of an NVTX range, or an NVTX mark. `CUpti_ActivityMarker2`.
#[derive(Clone, Copy, Debug)]
pub enum Marker {}

impl Family for Marker {
    const KINDS: &'static [u32] = &[bindings::CUPTI_ACTIVITY_KIND_MARKER];
}

impl Marker {
    /// `flags`
    pub const FLAGS: Field<Self, u32> = Field::new(4, 18);
    /// `timestamp`
    pub const TIMESTAMP: Field<Self, u64> = Field::new(8, 18);
    /// `id`
    pub const ID: Field<Self, u32> = Field::new(16, 18);
    /// `objectKind`
    pub const OBJECT_KIND: Field<Self, u32> = Field::new(20, 18);
    /// `objectId.pt.threadId`
    pub const OBJECT_ID_PT_THREAD_ID: Field<Self, u32> = Field::new(28, 18);
    /// `name`
    pub const NAME: Field<Self, *const c_char> = Field::new(40, 18);
    /// `domain`
    pub const DOMAIN: Field<Self, *const c_char> = Field::new(48, 18);
}
