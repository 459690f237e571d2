//! Where each field of each record lies, by release.
//!
//! The table was derived from the headers in NVIDIA's PyPI wheels with a C compiler
//! (`tests/cupti/headers.rs` derives it again), and its sizes agree with the strides of the real
//! library's own walker in 12.0, 12.9, 13.0 and 13.1 (`tests/cupti/walkers.rs`). Two rules hold
//! for all releases, and keep the table small: a family of structures only grows at its end, and a
//! field never moves. So a record is one list of fields, those that are written, plus the structure
//! that each release writes, with its size.

use crate::release::Release::{self, V12_0, V12_9, V13_0, V13_1, V13_3, V13_5};

/// The kinds of records, as CUPTI numbers them.
pub mod kind {
    /// A copy.
    pub const MEMCPY: u32 = 1;
    /// A memset.
    pub const MEMSET: u32 = 2;
    /// A kernel, when kernels are serialised.
    pub const KERNEL: u32 = 3;
    /// A call of the driver.
    pub const DRIVER: u32 = 4;
    /// A call of the runtime.
    pub const RUNTIME: u32 = 5;
    /// A device.
    pub const DEVICE: u32 = 8;
    /// A context.
    pub const CONTEXT: u32 = 9;
    /// A kernel.
    pub const CONCURRENT_KERNEL: u32 = 10;
    /// The beginning or the end of an NVTX range, or a mark.
    pub const MARKER: u32 = 12;
    /// CUPTI's own overhead.
    pub const OVERHEAD: u32 = 17;
    /// A copy between GPUs.
    pub const MEMCPY2: u32 = 22;
    /// A stream.
    pub const STREAM: u32 = 37;
    /// An external id, and the call it belongs to.
    pub const EXTERNAL_CORRELATION: u32 = 39;
    /// A host function in a graph.
    pub const GRAPH_HOST_NODE: u32 = 56;
    /// A host function in a stream.
    pub const HOST_LAUNCH: u32 = 58;

    /// All kinds that are ever written.
    pub const WRITTEN: [u32; 15] = [
        MEMCPY,
        MEMSET,
        KERNEL,
        DRIVER,
        RUNTIME,
        DEVICE,
        CONTEXT,
        CONCURRENT_KERNEL,
        MARKER,
        OVERHEAD,
        MEMCPY2,
        STREAM,
        EXTERNAL_CORRELATION,
        GRAPH_HOST_NODE,
        HOST_LAUNCH,
    ];
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name in CUPTI's headers.
    pub name: &'static str,
    /// Its offset from the record's beginning, in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// The first release that has it; in earlier ones the bytes are padding or beyond the end.
    pub since: Release,
}

/// The structure of a record, from some release on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The first release.
    pub since: Release,
    /// Its name in CUPTI's headers.
    pub name: &'static str,
    /// Its size in bytes, which is the distance to the next record.
    pub size: usize,
}

/// The layouts of one kind of record.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The structures, oldest first.
    pub forms: &'static [Form],
    /// The fields that are written, in order; all others are 0.
    pub fields: &'static [Field],
}

impl Layout {
    /// The structure that a release writes; `None` where it has no such record.
    pub fn form(&self, release: Release) -> Option<&'static Form> {
        self.forms.iter().rev().find(|form| form.since <= release)
    }

    /// Those of the fields that a release has.
    pub fn fields_of(&self, release: Release) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().filter(move |field| field.since <= release)
    }
}

/// The layout of a kind, if it is one that is written.
pub fn of(kind: u32) -> Option<&'static Layout> {
    Some(match kind {
        kind::MEMCPY => &memcpy::LAYOUT,
        kind::MEMSET => &memset::LAYOUT,
        kind::KERNEL | kind::CONCURRENT_KERNEL => &kernel::LAYOUT,
        kind::DRIVER | kind::RUNTIME => &api::LAYOUT,
        kind::DEVICE => &device::LAYOUT,
        kind::CONTEXT => &context::LAYOUT,
        kind::MARKER => &marker::LAYOUT,
        kind::OVERHEAD => &overhead::LAYOUT,
        kind::MEMCPY2 => &memcpy_peer::LAYOUT,
        kind::STREAM => &stream::LAYOUT,
        kind::EXTERNAL_CORRELATION => &external_correlation::LAYOUT,
        kind::GRAPH_HOST_NODE => &graph_host_node::LAYOUT,
        kind::HOST_LAUNCH => &host_launch::LAYOUT,
        _ => return None,
    })
}

/// The size of a record of this kind, if the release has it.
pub fn size(kind: u32, release: Release) -> Option<usize> {
    of(kind)?.form(release).map(|form| form.size)
}

/// The largest record of any release, in bytes.
pub const LARGEST: usize = 248;

macro_rules! record {
    (
        $(#[$doc:meta])* $module:ident;
        $($form:ident $structure:literal $bytes:literal),+;
        $($field:ident $name:literal $offset:literal $size:literal $($since:ident)?),+ $(,)?
    ) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the names are CUPTI's")]
        pub mod $module {
            use super::*;
            $(
                pub const $field: Field = Field {
                    name: $name, offset: $offset, size: $size, since: first!($($since)?),
                };
            )+
            pub(crate) const LAYOUT: Layout = Layout {
                forms: &[$(Form { since: $form, name: concat!("CUpti_Activity", $structure), size: $bytes }),+],
                fields: &[$($field),+],
            };
        }
    };
}

macro_rules! first {
    () => {
        V12_0
    };
    ($since:ident) => {
        $since
    };
}

record! {
    /// Kernels. `Kernel13` came with 13.4.
    kernel;
    V12_0 "Kernel9" 208, V13_0 "Kernel10" 216, V13_1 "Kernel11" 224, V13_3 "Kernel12" 232, V13_5 "Kernel13" 248;
    KIND "kind" 0 4,
    REGISTERS_PER_THREAD "registersPerThread" 6 2,
    START "start" 16 8,
    END "end" 24 8,
    DEVICE_ID "deviceId" 40 4,
    CONTEXT_ID "contextId" 44 4,
    STREAM_ID "streamId" 48 4,
    GRID_X "gridX" 52 4,
    GRID_Y "gridY" 56 4,
    GRID_Z "gridZ" 60 4,
    BLOCK_X "blockX" 64 4,
    BLOCK_Y "blockY" 68 4,
    BLOCK_Z "blockZ" 72 4,
    DYNAMIC_SHARED_MEMORY "dynamicSharedMemory" 80 4,
    CORRELATION_ID "correlationId" 92 4,
    GRID_ID "gridId" 96 8,
    NAME "name" 104 8,
    QUEUED "queued" 120 8,
    SUBMITTED "submitted" 128 8,
    SHARED_MEMORY_EXECUTED "sharedMemoryExecuted" 140 4,
    GRAPH_NODE_ID "graphNodeId" 144 8,
    GRAPH_ID "graphId" 156 4,
    CHANNEL_ID "channelID" 168 4,
    CHANNEL_TYPE "channelType" 172 4,
    SOURCE_GRAPH_ID "sourceGraphId" 232 4 V13_5,
    SOURCE_GRAPH_NODE_ID "sourceGraphNodeId" 240 8 V13_5,
}

record! {
    /// Copies. `Memcpy6` came with 12.8, `Memcpy7` with 13.4.
    memcpy;
    V12_0 "Memcpy5" 88, V12_9 "Memcpy6" 96, V13_5 "Memcpy7" 112;
    KIND "kind" 0 4,
    COPY_KIND "copyKind" 4 1,
    SOURCE_KIND "srcKind" 5 1,
    DESTINATION_KIND "dstKind" 6 1,
    FLAGS "flags" 7 1,
    BYTES "bytes" 8 8,
    START "start" 16 8,
    END "end" 24 8,
    DEVICE_ID "deviceId" 32 4,
    CONTEXT_ID "contextId" 36 4,
    STREAM_ID "streamId" 40 4,
    CORRELATION_ID "correlationId" 44 4,
    GRAPH_NODE_ID "graphNodeId" 64 8,
    GRAPH_ID "graphId" 72 4,
    CHANNEL_ID "channelID" 76 4,
    CHANNEL_TYPE "channelType" 80 4,
    COPY_COUNT "copyCount" 88 8 V12_9,
    SOURCE_GRAPH_ID "sourceGraphId" 96 4 V13_5,
    SOURCE_GRAPH_NODE_ID "sourceGraphNodeId" 104 8 V13_5,
}

record! {
    /// Copies between GPUs.
    memcpy_peer;
    V12_0 "MemcpyPtoP4" 96;
    KIND "kind" 0 4,
    COPY_KIND "copyKind" 4 1,
    SOURCE_KIND "srcKind" 5 1,
    DESTINATION_KIND "dstKind" 6 1,
    FLAGS "flags" 7 1,
    BYTES "bytes" 8 8,
    START "start" 16 8,
    END "end" 24 8,
    DEVICE_ID "deviceId" 32 4,
    CONTEXT_ID "contextId" 36 4,
    STREAM_ID "streamId" 40 4,
    SOURCE_DEVICE_ID "srcDeviceId" 44 4,
    SOURCE_CONTEXT_ID "srcContextId" 48 4,
    DESTINATION_DEVICE_ID "dstDeviceId" 52 4,
    DESTINATION_CONTEXT_ID "dstContextId" 56 4,
    CORRELATION_ID "correlationId" 60 4,
    GRAPH_NODE_ID "graphNodeId" 72 8,
    GRAPH_ID "graphId" 80 4,
    CHANNEL_ID "channelID" 84 4,
    CHANNEL_TYPE "channelType" 88 4,
}

record! {
    /// Memsets. `Memset5` came with 13.4.
    memset;
    V12_0 "Memset4" 88, V13_5 "Memset5" 104;
    KIND "kind" 0 4,
    VALUE "value" 4 4,
    BYTES "bytes" 8 8,
    START "start" 16 8,
    END "end" 24 8,
    DEVICE_ID "deviceId" 32 4,
    CONTEXT_ID "contextId" 36 4,
    STREAM_ID "streamId" 40 4,
    CORRELATION_ID "correlationId" 44 4,
    FLAGS "flags" 48 2,
    MEMORY_KIND "memoryKind" 50 2,
    GRAPH_NODE_ID "graphNodeId" 64 8,
    GRAPH_ID "graphId" 72 4,
    CHANNEL_ID "channelID" 76 4,
    CHANNEL_TYPE "channelType" 80 4,
    SOURCE_GRAPH_ID "sourceGraphId" 88 4 V13_5,
    SOURCE_GRAPH_NODE_ID "sourceGraphNodeId" 96 8 V13_5,
}

record! {
    /// Calls of the driver and of the runtime.
    api;
    V12_0 "API" 40;
    KIND "kind" 0 4,
    CALLBACK_ID "cbid" 4 4,
    START "start" 8 8,
    END "end" 16 8,
    PROCESS_ID "processId" 24 4,
    THREAD_ID "threadId" 28 4,
    CORRELATION_ID "correlationId" 32 4,
    RETURN_VALUE "returnValue" 36 4,
}

record! {
    /// External ids.
    external_correlation;
    V12_0 "ExternalCorrelation" 24;
    KIND "kind" 0 4,
    EXTERNAL_KIND "externalKind" 4 4,
    EXTERNAL_ID "externalId" 8 8,
    CORRELATION_ID "correlationId" 16 4,
}

record! {
    /// NVTX ranges and marks.
    marker;
    V12_0 "Marker2" 56;
    KIND "kind" 0 4,
    FLAGS "flags" 4 4,
    TIMESTAMP "timestamp" 8 8,
    ID "id" 16 4,
    OBJECT_KIND "objectKind" 20 4,
    OBJECT_ID "objectId" 24 12,
    NAME "name" 40 8,
    DOMAIN "domain" 48 8,
}

record! {
    /// CUPTI's own overhead. `Overhead3` came with 12.4.
    overhead;
    V12_0 "Overhead" 40, V12_9 "Overhead3" 56;
    KIND "kind" 0 4,
    OVERHEAD_KIND "overheadKind" 4 4,
    OBJECT_KIND "objectKind" 8 4,
    OBJECT_ID "objectId" 12 12,
    START "start" 24 8,
    END "end" 32 8,
}

record! {
    /// Devices. `Device5` came with 12.2, `Device6` with 13.2.
    device;
    V12_0 "Device4" 176, V12_9 "Device5" 184, V13_3 "Device6" 192;
    KIND "kind" 0 4,
    FLAGS "flags" 4 4,
    GLOBAL_MEMORY_BANDWIDTH "globalMemoryBandwidth" 8 8,
    GLOBAL_MEMORY_SIZE "globalMemorySize" 16 8,
    CONSTANT_MEMORY_SIZE "constantMemorySize" 24 4,
    L2_CACHE_SIZE "l2CacheSize" 28 4,
    THREADS_PER_WARP "numThreadsPerWarp" 32 4,
    CORE_CLOCK_RATE "coreClockRate" 36 4,
    MEMCPY_ENGINES "numMemcpyEngines" 40 4,
    MULTIPROCESSORS "numMultiprocessors" 44 4,
    MAX_THREADS_PER_BLOCK "maxThreadsPerBlock" 76 4,
    COMPUTE_CAPABILITY_MAJOR "computeCapabilityMajor" 104 4,
    COMPUTE_CAPABILITY_MINOR "computeCapabilityMinor" 108 4,
    ID "id" 112 4,
    UUID "uuid" 120 16,
    NAME "name" 136 8,
    IS_CUDA_VISIBLE "isCudaVisible" 144 1,
    GPU_INSTANCE_ID "gpuInstanceId" 152 4,
    COMPUTE_INSTANCE_ID "computeInstanceId" 156 4,
    NUM_TPCS "numTpcs" 184 4 V13_3,
}

record! {
    /// Contexts. `Context3` came with 12.5, `Context4` with 13.1.
    context;
    V12_0 "Context" 16, V12_9 "Context3" 32, V13_1 "Context4" 40;
    KIND "kind" 0 4,
    CONTEXT_ID "contextId" 4 4,
    DEVICE_ID "deviceId" 8 4,
    COMPUTE_API_KIND "computeApiKind" 12 2,
    NULL_STREAM_ID "nullStreamId" 14 2,
    PROCESS_ID "processId" 32 8 V13_1,
}

record! {
    /// Streams.
    stream;
    V12_0 "Stream" 24;
    KIND "kind" 0 4,
    CONTEXT_ID "contextId" 4 4,
    STREAM_ID "streamId" 8 4,
    FLAG "flag" 16 4,
    CORRELATION_ID "correlationId" 20 4,
}

record! {
    /// Host functions in graphs.
    graph_host_node;
    V13_1 "GraphHostNode" 56;
    KIND "kind" 0 4,
    STREAM_ID "streamId" 4 4,
    CONTEXT_ID "contextId" 8 4,
    DEVICE_ID "deviceId" 12 4,
    CORRELATION_ID "correlationId" 16 4,
    GRAPH_ID "graphId" 20 4,
    GRAPH_NODE_ID "graphNodeId" 24 8,
    PROCESS_ID "processId" 32 4,
    START "start" 40 8,
    END "end" 48 8,
}

record! {
    /// Host functions in streams.
    host_launch;
    V13_1 "HostLaunch" 48;
    KIND "kind" 0 4,
    STREAM_ID "streamId" 4 4,
    CONTEXT_ID "contextId" 8 4,
    DEVICE_ID "deviceId" 12 4,
    CORRELATION_ID "correlationId" 16 4,
    PROCESS_ID "processId" 20 4,
    START "start" 32 8,
    END "end" 40 8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_inside_their_record_and_do_not_overlap() {
        for kind in kind::WRITTEN {
            for release in Release::ALL {
                let layout = of(kind).expect("a kind that is written has a layout");
                let Some(form) = layout.form(release) else { continue };
                assert!(form.size <= LARGEST && form.size % 8 == 0, "{}", form.name);
                let mut end = 0;
                for field in layout.fields_of(release) {
                    assert!(field.offset >= end, "{}.{} overlaps", form.name, field.name);
                    end = field.offset + field.size;
                    assert!(end <= form.size, "{}.{} is outside", form.name, field.name);
                }
            }
        }
    }
}
