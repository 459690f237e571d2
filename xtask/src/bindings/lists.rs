//! What the bindings need from CUPTI: functions, types, constants, and the fields of records.

/// A pattern for the names of the headers that are read.
pub(super) const HEADERS: &str =
    r"cuda\.h|cuda_stdint\.h|cupti_\w+\.h|generated_cuda_meta\.h|Openacc/cupti_openacc\.h|Openmp/cupti_openmp\.h";

/// The functions that are bound.
pub(super) const FUNCTIONS: &[&str] = &[
    "cuptiActivityDisable",
    "cuptiActivityDisable_v2",
    "cuptiActivityEnable",
    "cuptiActivityEnableAndDump",
    "cuptiActivityEnableAndDump_v2",
    "cuptiActivityEnableDriverApi",
    "cuptiActivityEnable_v2",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNextRecord_v2",
    "cuptiActivityGetNumDroppedRecords",
    "cuptiActivityGetNumDroppedRecords_v2",
    "cuptiActivityGetStructSize",
    "cuptiActivityPopExternalCorrelationId",
    "cuptiActivityPopExternalCorrelationId_v2",
    "cuptiActivityPushExternalCorrelationId",
    "cuptiActivityPushExternalCorrelationId_v2",
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityRegisterCallbacks_v2",
    "cuptiActivityRegisterTimestampCallback",
    "cuptiActivitySetAttribute",
    "cuptiActivitySetAttribute_v2",
    "cuptiEnableCallback",
    "cuptiGetCallbackName",
    "cuptiGetGraphNodeId",
    "cuptiGetResultString",
    "cuptiGetThreadIdType",
    "cuptiGetTimestamp",
    "cuptiGetTimestamp_v2",
    "cuptiGetVersion",
    "cuptiSetThreadIdType",
    "cuptiSubscribe",
    "cuptiSubscribe_v2",
    "cuptiUnsubscribe",
];

/// The types that are bound besides those that the functions need: the arguments of callbacks, and
/// enumerations, which become plain integers and constants.
pub(super) const TYPES: &[&str] = &[
    "CUpti_ActivityAttribute",
    "CUpti_ActivityFlag",
    "CUpti_ActivityKind",
    "CUpti_ActivityMemcpyKind",
    "CUpti_ActivityObjectKind",
    "CUpti_ActivityThreadIdType",
    "CUpti_ApiCallbackSite",
    "CUpti_CallbackData",
    "CUpti_CallbackDomain",
    "CUpti_CallbackIdResource",
    "CUpti_CallbackIdState",
    "CUpti_ExternalCorrelationKind",
    "CUpti_GraphData",
    "CUpti_ResourceData",
    "CUpti_StateData",
    "CUpti_driver_api_trace_cbid",
    "CUptiResult",
];

/// The constants that are kept: how their names begin, and how they go on.
pub(super) const KEPT: &[(&str, &str)] = &[
    ("CU_GRAPH_NODE_TYPE_", "KERNEL MEMCPY GRAPH"),
    ("CUPTI_", "SUCCESS"),
    (
        "CUPTI_ERROR_",
        "INVALID_PARAMETER INVALID_DEVICE INVALID_OPERATION OUT_OF_MEMORY MAX_LIMIT_REACHED NOT_COMPATIBLE
         NOT_INITIALIZED INVALID_KIND NOT_SUPPORTED VIRTUALIZED_DEVICE_NOT_SUPPORTED INSUFFICIENT_PRIVILEGES
         LEGACY_PROFILER_NOT_SUPPORTED MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
         VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES CONFIDENTIAL_COMPUTING_NOT_SUPPORTED
         CMP_DEVICE_NOT_SUPPORTED MIG_DEVICE_NOT_SUPPORTED SLI_DEVICE_NOT_SUPPORTED WSL_DEVICE_NOT_SUPPORTED
         UNKNOWN",
    ),
    ("CUPTI_API_", "ENTER EXIT"),
    ("CUPTI_CB_DOMAIN_", "DRIVER_API RUNTIME_API RESOURCE STATE"),
    (
        "CUPTI_CBID_RESOURCE_",
        "GRAPHNODE_CREATED GRAPHNODE_DESTROY_STARTING GRAPHEXEC_CREATED GRAPHNODE_CLONED GRAPH_NODE_UPDATED
         GRAPH_NODE_SET_PARAMS",
    ),
    ("CUPTI_CBID_STATE_", "FATAL_ERROR ERROR WARNING"),
    (
        "CUPTI_ACTIVITY_KIND_",
        "INVALID MEMCPY MEMSET KERNEL DRIVER RUNTIME DEVICE CONTEXT CONCURRENT_KERNEL MARKER OVERHEAD MEMCPY2
         CUDA_EVENT STREAM SYNCHRONIZATION EXTERNAL_CORRELATION INTERNAL_LAUNCH_API GRAPH_TRACE
         GRAPH_HOST_NODE",
    ),
    ("CUPTI_ACTIVITY_OBJECT_", "THREAD"),
    ("CUPTI_ACTIVITY_FLAG_", "MARKER_INSTANTANEOUS MARKER_START MARKER_END FLUSH_FORCED"),
    ("CUPTI_ACTIVITY_MEMCPY_KIND_", "HTOD DTOH DTOD PTOP"),
    ("CUPTI_EXTERNAL_CORRELATION_KIND_", "CUSTOM2"),
    ("CUPTI_ACTIVITY_ATTR_", "DEVICE_BUFFER_POOL_LIMIT THREAD_ID_TYPE"),
    ("CUPTI_ACTIVITY_THREAD_ID_TYPE_", "SYSTEM"),
    (
        "CUPTI_DRIVER_TRACE_CBID_",
        "cuMemcpyDtoDAsync_v2 cuMemcpyAsync cuLaunchKernel cuMemcpyAsync_ptsz cuMemcpyDtoDAsync_v2_ptsz
         cuLaunchKernel_ptsz cuGraphInstantiate cuGraphLaunch cuGraphLaunch_ptsz
         cuGraphExecKernelNodeSetParams cuGraphExecUpdate cuGraphInstantiate_v2
         cuGraphExecChildGraphNodeSetParams cuGraphInstantiateWithFlags cuGraphNodeSetEnabled
         cuLaunchKernelEx cuLaunchKernelEx_ptsz cuGraphInstantiateWithParams
         cuGraphInstantiateWithParams_ptsz cuGraphExecKernelNodeSetParams_v2 cuGraphExecUpdate_v2
         cuGraphExecNodeSetParams cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2
         cuMemcpyBatchAsync_v2_ptsz",
    ),
];

/// Records with the same layout.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// `CUPTI_ACTIVITY_KIND_*`
    pub(super) kinds: &'static [&'static str],
    pub(super) about: &'static str,
    /// The fields that are read, as in C.
    pub(super) fields: &'static str,
}

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Kernel",
        kinds: &["CONCURRENT_KERNEL", "KERNEL"],
        about: "A kernel that ran.",
        fields: "start end deviceId contextId streamId gridX gridY gridZ blockX blockY blockZ correlationId name
                 graphNodeId graphId priority",
    },
    Family {
        name: "Memcpy",
        kinds: &["MEMCPY"],
        about: "A copy, or since CUDA 12.8 a batch of copies.",
        fields: "copyKind bytes start end deviceId contextId streamId correlationId graphNodeId",
    },
    Family {
        name: "MemcpyPtoP",
        kinds: &["MEMCPY2"],
        about: "A copy from one device to another.",
        fields: "copyKind bytes start end deviceId contextId streamId correlationId graphNodeId",
    },
    Family {
        name: "Memset",
        kinds: &["MEMSET"],
        about: "Memory that was set.",
        fields: "bytes start end deviceId contextId streamId correlationId graphNodeId",
    },
    Family {
        name: "Api",
        kinds: &["DRIVER", "RUNTIME", "INTERNAL_LAUNCH_API"],
        about: "A call of the driver's or runtime's API.",
        fields: "cbid start end threadId correlationId returnValue",
    },
    Family {
        name: "ExternalCorrelation",
        kinds: &["EXTERNAL_CORRELATION"],
        about: "An id that was pushed when an API call was made.",
        fields: "externalKind externalId correlationId",
    },
    Family {
        name: "Overhead",
        kinds: &["OVERHEAD"],
        about: "CUPTI's own cost. Of the ids, those are meant that the kind of object has.",
        fields: "overheadKind objectKind objectId.pt.threadId start end",
    },
    Family {
        name: "Device",
        kinds: &["DEVICE"],
        about: "A GPU.",
        fields: "id uuid name isCudaVisible isMigEnabled migUuid",
    },
    Family { name: "Context", kinds: &["CONTEXT"], about: "A context.", fields: "contextId deviceId nullStreamId" },
    Family { name: "Stream", kinds: &["STREAM"], about: "A stream.", fields: "contextId streamId priority" },
    Family {
        name: "GraphHostNode",
        kinds: &["GRAPH_HOST_NODE"],
        about: "A host function that a graph ran.",
        fields: "streamId contextId deviceId correlationId graphId graphNodeId threadId start end",
    },
    Family {
        name: "Marker",
        kinds: &["MARKER"],
        about: "The start or end of an NVTX range, or an NVTX mark.",
        fields: "flags timestamp id objectKind objectId.pt.threadId name domain",
    },
];

/// Where the library's step over a record differs from its header. This was found by running it,
/// and the tests of cupti-sys check it. Each row has the first version, the first version after,
/// the kinds, and their size; 0 for kinds at which the walk ends.
pub(super) const WALKED: &[(u32, u32, &[u32], u32)] = &[
    // JIT: the comment names the first struct until CUDA 13.1, but the second is written since
    // CUDA 12.4.
    (22, 130_100, &[52], 72),
    // CONFIDENTIAL_COMPUTE_ROTATION: present in CUDA 12.9, in the header since 13.1.
    (27, 130_100, &[55], 32),
    // Events, metrics, source locations and PC sampling: gone since CUDA 13.0, but still in the
    // header.
    (130_000, u32::MAX, &[6, 7, 14, 15, 16, 21, 23, 24, 29, 30, 31, 32, 41, 42, 43, 44], 0),
];
