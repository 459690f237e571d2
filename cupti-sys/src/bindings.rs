//! CUPTI's types, constants and function types, under its own names, as of CUDA 13.5.
//!
//! Written by `cargo xtask bindings` from NVIDIA's headers on PyPI; not to be edited. What they mean is in NVIDIA's
//! documentation of CUPTI.

#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all)]

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUfunc_st {
    _unused: [u8; 0],
}
pub type CUfunction = *mut CUfunc_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type CUstream = *mut CUstream_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUgraph_st {
    _unused: [u8; 0],
}
pub type CUgraph = *mut CUgraph_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUgraphNode_st {
    _unused: [u8; 0],
}
pub type CUgraphNode = *mut CUgraphNode_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUgraphExec_st {
    _unused: [u8; 0],
}
pub type CUgraphExec = *mut CUgraphExec_st;
pub const CU_GRAPH_NODE_TYPE_KERNEL: CUgraphNodeType_enum = 0;
pub const CU_GRAPH_NODE_TYPE_MEMCPY: CUgraphNodeType_enum = 1;
pub const CU_GRAPH_NODE_TYPE_MEMSET: CUgraphNodeType_enum = 2;
pub const CU_GRAPH_NODE_TYPE_HOST: CUgraphNodeType_enum = 3;
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType_enum = 4;
pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType_enum = 5;
pub const CU_GRAPH_NODE_TYPE_WAIT_EVENT: CUgraphNodeType_enum = 6;
pub const CU_GRAPH_NODE_TYPE_EVENT_RECORD: CUgraphNodeType_enum = 7;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: CUgraphNodeType_enum = 8;
pub const CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: CUgraphNodeType_enum = 9;
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType_enum = 10;
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType_enum = 11;
pub const CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: CUgraphNodeType_enum = 12;
pub const CU_GRAPH_NODE_TYPE_CONDITIONAL: CUgraphNodeType_enum = 13;
pub const CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: CUgraphNodeType_enum = 14;
pub const CU_GRAPH_NODE_TYPE_RESERVED_16: CUgraphNodeType_enum = 16;
pub const CU_GRAPH_NODE_TYPE_EXTERNAL_ENGINE: CUgraphNodeType_enum = 17;
pub const CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH: CUgraphNodeType_enum = 18;
pub type CUgraphNodeType_enum = ::core::ffi::c_uint;
pub use self::CUgraphNodeType_enum as CUgraphNodeType;
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUlaunchAttribute_st {
    pub _bindgen_opaque_blob: [u64; 9usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUlaunchAttribute_st"][::core::mem::size_of::<CUlaunchAttribute_st>() - 72usize];
    ["Alignment of CUlaunchAttribute_st"][::core::mem::align_of::<CUlaunchAttribute_st>() - 8usize];
};
pub type CUlaunchAttribute = CUlaunchAttribute_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUlaunchConfig_st {
    pub gridDimX: ::core::ffi::c_uint,
    pub gridDimY: ::core::ffi::c_uint,
    pub gridDimZ: ::core::ffi::c_uint,
    pub blockDimX: ::core::ffi::c_uint,
    pub blockDimY: ::core::ffi::c_uint,
    pub blockDimZ: ::core::ffi::c_uint,
    pub sharedMemBytes: ::core::ffi::c_uint,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: ::core::ffi::c_uint,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUlaunchConfig_st"][::core::mem::size_of::<CUlaunchConfig_st>() - 56usize];
    ["Alignment of CUlaunchConfig_st"][::core::mem::align_of::<CUlaunchConfig_st>() - 8usize];
    ["Offset of field: CUlaunchConfig_st::gridDimX"][::core::mem::offset_of!(CUlaunchConfig_st, gridDimX) - 0usize];
    ["Offset of field: CUlaunchConfig_st::gridDimY"][::core::mem::offset_of!(CUlaunchConfig_st, gridDimY) - 4usize];
    ["Offset of field: CUlaunchConfig_st::gridDimZ"][::core::mem::offset_of!(CUlaunchConfig_st, gridDimZ) - 8usize];
    ["Offset of field: CUlaunchConfig_st::blockDimX"][::core::mem::offset_of!(CUlaunchConfig_st, blockDimX) - 12usize];
    ["Offset of field: CUlaunchConfig_st::blockDimY"][::core::mem::offset_of!(CUlaunchConfig_st, blockDimY) - 16usize];
    ["Offset of field: CUlaunchConfig_st::blockDimZ"][::core::mem::offset_of!(CUlaunchConfig_st, blockDimZ) - 20usize];
    ["Offset of field: CUlaunchConfig_st::sharedMemBytes"]
        [::core::mem::offset_of!(CUlaunchConfig_st, sharedMemBytes) - 24usize];
    ["Offset of field: CUlaunchConfig_st::hStream"][::core::mem::offset_of!(CUlaunchConfig_st, hStream) - 32usize];
    ["Offset of field: CUlaunchConfig_st::attrs"][::core::mem::offset_of!(CUlaunchConfig_st, attrs) - 40usize];
    ["Offset of field: CUlaunchConfig_st::numAttrs"][::core::mem::offset_of!(CUlaunchConfig_st, numAttrs) - 48usize];
};
pub type CUlaunchConfig = CUlaunchConfig_st;
pub const CUPTI_SUCCESS: CUptiResult = 0;
pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = 1;
pub const CUPTI_ERROR_INVALID_DEVICE: CUptiResult = 2;
pub const CUPTI_ERROR_INVALID_CONTEXT: CUptiResult = 3;
pub const CUPTI_ERROR_INVALID_EVENT_DOMAIN_ID: CUptiResult = 4;
pub const CUPTI_ERROR_INVALID_EVENT_ID: CUptiResult = 5;
pub const CUPTI_ERROR_INVALID_EVENT_NAME: CUptiResult = 6;
pub const CUPTI_ERROR_INVALID_OPERATION: CUptiResult = 7;
pub const CUPTI_ERROR_OUT_OF_MEMORY: CUptiResult = 8;
pub const CUPTI_ERROR_HARDWARE: CUptiResult = 9;
pub const CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT: CUptiResult = 10;
pub const CUPTI_ERROR_API_NOT_IMPLEMENTED: CUptiResult = 11;
pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = 12;
pub const CUPTI_ERROR_NOT_READY: CUptiResult = 13;
pub const CUPTI_ERROR_NOT_COMPATIBLE: CUptiResult = 14;
pub const CUPTI_ERROR_NOT_INITIALIZED: CUptiResult = 15;
pub const CUPTI_ERROR_INVALID_METRIC_ID: CUptiResult = 16;
pub const CUPTI_ERROR_INVALID_METRIC_NAME: CUptiResult = 17;
pub const CUPTI_ERROR_QUEUE_EMPTY: CUptiResult = 18;
pub const CUPTI_ERROR_INVALID_HANDLE: CUptiResult = 19;
pub const CUPTI_ERROR_INVALID_STREAM: CUptiResult = 20;
pub const CUPTI_ERROR_INVALID_KIND: CUptiResult = 21;
pub const CUPTI_ERROR_INVALID_EVENT_VALUE: CUptiResult = 22;
pub const CUPTI_ERROR_DISABLED: CUptiResult = 23;
pub const CUPTI_ERROR_INVALID_MODULE: CUptiResult = 24;
pub const CUPTI_ERROR_INVALID_METRIC_VALUE: CUptiResult = 25;
pub const CUPTI_ERROR_HARDWARE_BUSY: CUptiResult = 26;
pub const CUPTI_ERROR_NOT_SUPPORTED: CUptiResult = 27;
pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED: CUptiResult = 28;
pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE: CUptiResult = 29;
pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES: CUptiResult = 30;
pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS: CUptiResult = 31;
pub const CUPTI_ERROR_CDP_TRACING_NOT_SUPPORTED: CUptiResult = 32;
pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED: CUptiResult = 33;
pub const CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE: CUptiResult = 34;
pub const CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: CUptiResult = 35;
pub const CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED: CUptiResult = 36;
pub const CUPTI_ERROR_OPENACC_UNDEFINED_ROUTINE: CUptiResult = 37;
pub const CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED: CUptiResult = 38;
pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = 39;
pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES: CUptiResult = 40;
pub const CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED: CUptiResult = 41;
pub const CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED: CUptiResult = 42;
pub const CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED: CUptiResult = 43;
pub const CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED: CUptiResult = 44;
pub const CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED: CUptiResult = 45;
pub const CUPTI_ERROR_INVALID_CHIP_NAME: CUptiResult = 46;
pub const CUPTI_ERROR_HES_TRACE_NOT_SUPPORTED_ON_MPS: CUptiResult = 47;
pub const CUPTI_ERROR_UNKNOWN: CUptiResult = 999;
pub type CUptiResult = ::core::ffi::c_uint;
/// `cuptiGetResultString`
pub type cuptiGetResultString =
    unsafe extern "C" fn(result: CUptiResult, str_: *mut *const ::core::ffi::c_char) -> CUptiResult;
/// `cuptiGetErrorMessage`, since CUDA 12.2
pub type cuptiGetErrorMessage =
    unsafe extern "C" fn(result: CUptiResult, str_: *mut *const ::core::ffi::c_char) -> CUptiResult;
/// `cuptiGetVersion`
pub type cuptiGetVersion = unsafe extern "C" fn(version: *mut u32) -> CUptiResult;
pub const CUPTI_API_ENTER: CUpti_ApiCallbackSite = 0;
pub const CUPTI_API_EXIT: CUpti_ApiCallbackSite = 1;
pub type CUpti_ApiCallbackSite = ::core::ffi::c_uint;
pub const CUPTI_CB_DOMAIN_INVALID: CUpti_CallbackDomain = 0;
pub const CUPTI_CB_DOMAIN_DRIVER_API: CUpti_CallbackDomain = 1;
pub const CUPTI_CB_DOMAIN_RUNTIME_API: CUpti_CallbackDomain = 2;
pub const CUPTI_CB_DOMAIN_RESOURCE: CUpti_CallbackDomain = 3;
pub const CUPTI_CB_DOMAIN_SYNCHRONIZE: CUpti_CallbackDomain = 4;
pub const CUPTI_CB_DOMAIN_NVTX: CUpti_CallbackDomain = 5;
pub const CUPTI_CB_DOMAIN_STATE: CUpti_CallbackDomain = 6;
pub type CUpti_CallbackDomain = ::core::ffi::c_uint;
pub const CUPTI_CBID_RESOURCE_INVALID: CUpti_CallbackIdResource = 0;
pub const CUPTI_CBID_RESOURCE_CONTEXT_CREATED: CUpti_CallbackIdResource = 1;
pub const CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING: CUpti_CallbackIdResource = 2;
pub const CUPTI_CBID_RESOURCE_STREAM_CREATED: CUpti_CallbackIdResource = 3;
pub const CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING: CUpti_CallbackIdResource = 4;
pub const CUPTI_CBID_RESOURCE_CU_INIT_FINISHED: CUpti_CallbackIdResource = 5;
pub const CUPTI_CBID_RESOURCE_MODULE_LOADED: CUpti_CallbackIdResource = 6;
pub const CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING: CUpti_CallbackIdResource = 7;
pub const CUPTI_CBID_RESOURCE_MODULE_PROFILED: CUpti_CallbackIdResource = 8;
pub const CUPTI_CBID_RESOURCE_GRAPH_CREATED: CUpti_CallbackIdResource = 9;
pub const CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING: CUpti_CallbackIdResource = 10;
pub const CUPTI_CBID_RESOURCE_GRAPH_CLONED: CUpti_CallbackIdResource = 11;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CREATE_STARTING: CUpti_CallbackIdResource = 12;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED: CUpti_CallbackIdResource = 13;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING: CUpti_CallbackIdResource = 14;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_CREATED: CUpti_CallbackIdResource = 15;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_DESTROY_STARTING: CUpti_CallbackIdResource = 16;
pub const CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING: CUpti_CallbackIdResource = 17;
pub const CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED: CUpti_CallbackIdResource = 18;
pub const CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING: CUpti_CallbackIdResource = 19;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED: CUpti_CallbackIdResource = 20;
pub const CUPTI_CBID_RESOURCE_STREAM_ATTRIBUTE_CHANGED: CUpti_CallbackIdResource = 21;
pub const CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED: CUpti_CallbackIdResource = 22;
pub const CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS: CUpti_CallbackIdResource = 23;
pub const CUPTI_CBID_RESOURCE_LOGICAL_ENDPOINT_CREATED: CUpti_CallbackIdResource = 24;
pub const CUPTI_CBID_RESOURCE_LOGICAL_ENDPOINT_DESTROYED: CUpti_CallbackIdResource = 25;
pub type CUpti_CallbackIdResource = ::core::ffi::c_uint;
pub const CUPTI_CBID_STATE_INVALID: CUpti_CallbackIdState = 0;
pub const CUPTI_CBID_STATE_FATAL_ERROR: CUpti_CallbackIdState = 1;
pub const CUPTI_CBID_STATE_ERROR: CUpti_CallbackIdState = 2;
pub const CUPTI_CBID_STATE_WARNING: CUpti_CallbackIdState = 3;
pub type CUpti_CallbackIdState = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_CallbackData {
    pub callbackSite: CUpti_ApiCallbackSite,
    pub functionName: *const ::core::ffi::c_char,
    pub functionParams: *const ::core::ffi::c_void,
    pub functionReturnValue: *mut ::core::ffi::c_void,
    pub symbolName: *const ::core::ffi::c_char,
    pub context: CUcontext,
    pub contextUid: u32,
    pub correlationData: *mut u64,
    pub correlationId: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_CallbackData"][::core::mem::size_of::<CUpti_CallbackData>() - 72usize];
    ["Alignment of CUpti_CallbackData"][::core::mem::align_of::<CUpti_CallbackData>() - 8usize];
    ["Offset of field: CUpti_CallbackData::callbackSite"]
        [::core::mem::offset_of!(CUpti_CallbackData, callbackSite) - 0usize];
    ["Offset of field: CUpti_CallbackData::functionName"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionName) - 8usize];
    ["Offset of field: CUpti_CallbackData::functionParams"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionParams) - 16usize];
    ["Offset of field: CUpti_CallbackData::functionReturnValue"]
        [::core::mem::offset_of!(CUpti_CallbackData, functionReturnValue) - 24usize];
    ["Offset of field: CUpti_CallbackData::symbolName"]
        [::core::mem::offset_of!(CUpti_CallbackData, symbolName) - 32usize];
    ["Offset of field: CUpti_CallbackData::context"][::core::mem::offset_of!(CUpti_CallbackData, context) - 40usize];
    ["Offset of field: CUpti_CallbackData::contextUid"]
        [::core::mem::offset_of!(CUpti_CallbackData, contextUid) - 48usize];
    ["Offset of field: CUpti_CallbackData::correlationData"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationData) - 56usize];
    ["Offset of field: CUpti_CallbackData::correlationId"]
        [::core::mem::offset_of!(CUpti_CallbackData, correlationId) - 64usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUpti_ResourceData {
    pub context: CUcontext,
    pub resourceHandle: CUpti_ResourceData__bindgen_ty_1,
    pub resourceDescriptor: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ResourceData__bindgen_ty_1 {
    pub stream: CUstream,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ResourceData__bindgen_ty_1"][::core::mem::size_of::<CUpti_ResourceData__bindgen_ty_1>() - 8usize];
    ["Alignment of CUpti_ResourceData__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_ResourceData__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_ResourceData__bindgen_ty_1::stream"]
        [::core::mem::offset_of!(CUpti_ResourceData__bindgen_ty_1, stream) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ResourceData"][::core::mem::size_of::<CUpti_ResourceData>() - 24usize];
    ["Alignment of CUpti_ResourceData"][::core::mem::align_of::<CUpti_ResourceData>() - 8usize];
    ["Offset of field: CUpti_ResourceData::context"][::core::mem::offset_of!(CUpti_ResourceData, context) - 0usize];
    ["Offset of field: CUpti_ResourceData::resourceHandle"]
        [::core::mem::offset_of!(CUpti_ResourceData, resourceHandle) - 8usize];
    ["Offset of field: CUpti_ResourceData::resourceDescriptor"]
        [::core::mem::offset_of!(CUpti_ResourceData, resourceDescriptor) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_GraphData {
    pub graph: CUgraph,
    pub originalGraph: CUgraph,
    pub node: CUgraphNode,
    pub originalNode: CUgraphNode,
    pub nodeType: CUgraphNodeType,
    pub dependency: CUgraphNode,
    pub graphExec: CUgraphExec,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_GraphData"][::core::mem::size_of::<CUpti_GraphData>() - 56usize];
    ["Alignment of CUpti_GraphData"][::core::mem::align_of::<CUpti_GraphData>() - 8usize];
    ["Offset of field: CUpti_GraphData::graph"][::core::mem::offset_of!(CUpti_GraphData, graph) - 0usize];
    ["Offset of field: CUpti_GraphData::originalGraph"]
        [::core::mem::offset_of!(CUpti_GraphData, originalGraph) - 8usize];
    ["Offset of field: CUpti_GraphData::node"][::core::mem::offset_of!(CUpti_GraphData, node) - 16usize];
    ["Offset of field: CUpti_GraphData::originalNode"]
        [::core::mem::offset_of!(CUpti_GraphData, originalNode) - 24usize];
    ["Offset of field: CUpti_GraphData::nodeType"][::core::mem::offset_of!(CUpti_GraphData, nodeType) - 32usize];
    ["Offset of field: CUpti_GraphData::dependency"][::core::mem::offset_of!(CUpti_GraphData, dependency) - 40usize];
    ["Offset of field: CUpti_GraphData::graphExec"][::core::mem::offset_of!(CUpti_GraphData, graphExec) - 48usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct CUpti_StateData {
    pub __bindgen_anon_1: CUpti_StateData__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_StateData__bindgen_ty_1 {
    pub notification: CUpti_StateData__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_StateData__bindgen_ty_1__bindgen_ty_1 {
    pub result: CUptiResult,
    pub message: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_StateData__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::size_of::<CUpti_StateData__bindgen_ty_1__bindgen_ty_1>() - 16usize];
    ["Alignment of CUpti_StateData__bindgen_ty_1__bindgen_ty_1"]
        [::core::mem::align_of::<CUpti_StateData__bindgen_ty_1__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_StateData__bindgen_ty_1__bindgen_ty_1::result"]
        [::core::mem::offset_of!(CUpti_StateData__bindgen_ty_1__bindgen_ty_1, result) - 0usize];
    ["Offset of field: CUpti_StateData__bindgen_ty_1__bindgen_ty_1::message"]
        [::core::mem::offset_of!(CUpti_StateData__bindgen_ty_1__bindgen_ty_1, message) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_StateData__bindgen_ty_1"][::core::mem::size_of::<CUpti_StateData__bindgen_ty_1>() - 16usize];
    ["Alignment of CUpti_StateData__bindgen_ty_1"][::core::mem::align_of::<CUpti_StateData__bindgen_ty_1>() - 8usize];
    ["Offset of field: CUpti_StateData__bindgen_ty_1::notification"]
        [::core::mem::offset_of!(CUpti_StateData__bindgen_ty_1, notification) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_StateData"][::core::mem::size_of::<CUpti_StateData>() - 16usize];
    ["Alignment of CUpti_StateData"][::core::mem::align_of::<CUpti_StateData>() - 8usize];
};
pub type CUpti_CallbackId = u32;
pub type CUpti_CallbackFunc = ::core::option::Option<
    unsafe extern "C" fn(
        userdata: *mut ::core::ffi::c_void,
        domain: CUpti_CallbackDomain,
        cbid: CUpti_CallbackId,
        cbdata: *const ::core::ffi::c_void,
    ),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_Subscriber_st {
    _unused: [u8; 0],
}
pub type CUpti_SubscriberHandle = *mut CUpti_Subscriber_st;
/// `cuptiSubscribe`
pub type cuptiSubscribe = unsafe extern "C" fn(
    subscriber: *mut CUpti_SubscriberHandle,
    callback: CUpti_CallbackFunc,
    userdata: *mut ::core::ffi::c_void,
) -> CUptiResult;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_SubscriberParams {
    pub structSize: usize,
    pub subscriberName: *const ::core::ffi::c_char,
    pub oldSubscriberName: *mut ::core::ffi::c_char,
    pub oldSubscriberSize: usize,
    pub allowMultipleSubscribers: u8,
    pub padding: [u8; 7usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_SubscriberParams"][::core::mem::size_of::<CUpti_SubscriberParams>() - 40usize];
    ["Alignment of CUpti_SubscriberParams"][::core::mem::align_of::<CUpti_SubscriberParams>() - 8usize];
    ["Offset of field: CUpti_SubscriberParams::structSize"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, structSize) - 0usize];
    ["Offset of field: CUpti_SubscriberParams::subscriberName"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, subscriberName) - 8usize];
    ["Offset of field: CUpti_SubscriberParams::oldSubscriberName"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, oldSubscriberName) - 16usize];
    ["Offset of field: CUpti_SubscriberParams::oldSubscriberSize"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, oldSubscriberSize) - 24usize];
    ["Offset of field: CUpti_SubscriberParams::allowMultipleSubscribers"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, allowMultipleSubscribers) - 32usize];
    ["Offset of field: CUpti_SubscriberParams::padding"]
        [::core::mem::offset_of!(CUpti_SubscriberParams, padding) - 33usize];
};
/// `cuptiSubscribe_v2`, since CUDA 13.0
pub type cuptiSubscribe_v2 = unsafe extern "C" fn(
    subscriber: *mut CUpti_SubscriberHandle,
    callback: CUpti_CallbackFunc,
    userdata: *mut ::core::ffi::c_void,
    pParams: *mut CUpti_SubscriberParams,
) -> CUptiResult;
/// `cuptiUnsubscribe`
pub type cuptiUnsubscribe = unsafe extern "C" fn(subscriber: CUpti_SubscriberHandle) -> CUptiResult;
/// `cuptiEnableCallback`
pub type cuptiEnableCallback = unsafe extern "C" fn(
    enable: u32,
    subscriber: CUpti_SubscriberHandle,
    domain: CUpti_CallbackDomain,
    cbid: CUpti_CallbackId,
) -> CUptiResult;
/// `cuptiGetCallbackName`
pub type cuptiGetCallbackName =
    unsafe extern "C" fn(domain: CUpti_CallbackDomain, cbid: u32, name: *mut *const ::core::ffi::c_char) -> CUptiResult;
pub const CUPTI_ACTIVITY_KIND_INVALID: CUpti_ActivityKind = 0;
pub const CUPTI_ACTIVITY_KIND_MEMCPY: CUpti_ActivityKind = 1;
pub const CUPTI_ACTIVITY_KIND_MEMSET: CUpti_ActivityKind = 2;
pub const CUPTI_ACTIVITY_KIND_KERNEL: CUpti_ActivityKind = 3;
pub const CUPTI_ACTIVITY_KIND_DRIVER: CUpti_ActivityKind = 4;
pub const CUPTI_ACTIVITY_KIND_RUNTIME: CUpti_ActivityKind = 5;
pub const CUPTI_ACTIVITY_KIND_EVENT: CUpti_ActivityKind = 6;
pub const CUPTI_ACTIVITY_KIND_METRIC: CUpti_ActivityKind = 7;
pub const CUPTI_ACTIVITY_KIND_DEVICE: CUpti_ActivityKind = 8;
pub const CUPTI_ACTIVITY_KIND_CONTEXT: CUpti_ActivityKind = 9;
pub const CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: CUpti_ActivityKind = 10;
pub const CUPTI_ACTIVITY_KIND_NAME: CUpti_ActivityKind = 11;
pub const CUPTI_ACTIVITY_KIND_MARKER: CUpti_ActivityKind = 12;
pub const CUPTI_ACTIVITY_KIND_MARKER_DATA: CUpti_ActivityKind = 13;
pub const CUPTI_ACTIVITY_KIND_SOURCE_LOCATOR: CUpti_ActivityKind = 14;
pub const CUPTI_ACTIVITY_KIND_GLOBAL_ACCESS: CUpti_ActivityKind = 15;
pub const CUPTI_ACTIVITY_KIND_BRANCH: CUpti_ActivityKind = 16;
pub const CUPTI_ACTIVITY_KIND_OVERHEAD: CUpti_ActivityKind = 17;
pub const CUPTI_ACTIVITY_KIND_CDP_KERNEL: CUpti_ActivityKind = 18;
pub const CUPTI_ACTIVITY_KIND_PREEMPTION: CUpti_ActivityKind = 19;
pub const CUPTI_ACTIVITY_KIND_ENVIRONMENT: CUpti_ActivityKind = 20;
pub const CUPTI_ACTIVITY_KIND_EVENT_INSTANCE: CUpti_ActivityKind = 21;
pub const CUPTI_ACTIVITY_KIND_MEMCPY2: CUpti_ActivityKind = 22;
pub const CUPTI_ACTIVITY_KIND_METRIC_INSTANCE: CUpti_ActivityKind = 23;
pub const CUPTI_ACTIVITY_KIND_INSTRUCTION_EXECUTION: CUpti_ActivityKind = 24;
pub const CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: CUpti_ActivityKind = 25;
pub const CUPTI_ACTIVITY_KIND_FUNCTION: CUpti_ActivityKind = 26;
pub const CUPTI_ACTIVITY_KIND_MODULE: CUpti_ActivityKind = 27;
pub const CUPTI_ACTIVITY_KIND_DEVICE_ATTRIBUTE: CUpti_ActivityKind = 28;
pub const CUPTI_ACTIVITY_KIND_SHARED_ACCESS: CUpti_ActivityKind = 29;
pub const CUPTI_ACTIVITY_KIND_PC_SAMPLING: CUpti_ActivityKind = 30;
pub const CUPTI_ACTIVITY_KIND_PC_SAMPLING_RECORD_INFO: CUpti_ActivityKind = 31;
pub const CUPTI_ACTIVITY_KIND_INSTRUCTION_CORRELATION: CUpti_ActivityKind = 32;
pub const CUPTI_ACTIVITY_KIND_OPENACC_DATA: CUpti_ActivityKind = 33;
pub const CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH: CUpti_ActivityKind = 34;
pub const CUPTI_ACTIVITY_KIND_OPENACC_OTHER: CUpti_ActivityKind = 35;
pub const CUPTI_ACTIVITY_KIND_CUDA_EVENT: CUpti_ActivityKind = 36;
pub const CUPTI_ACTIVITY_KIND_STREAM: CUpti_ActivityKind = 37;
pub const CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: CUpti_ActivityKind = 38;
pub const CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: CUpti_ActivityKind = 39;
pub const CUPTI_ACTIVITY_KIND_NVLINK: CUpti_ActivityKind = 40;
pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_EVENT: CUpti_ActivityKind = 41;
pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_EVENT_INSTANCE: CUpti_ActivityKind = 42;
pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_METRIC: CUpti_ActivityKind = 43;
pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_METRIC_INSTANCE: CUpti_ActivityKind = 44;
pub const CUPTI_ACTIVITY_KIND_MEMORY: CUpti_ActivityKind = 45;
pub const CUPTI_ACTIVITY_KIND_PCIE: CUpti_ActivityKind = 46;
pub const CUPTI_ACTIVITY_KIND_OPENMP: CUpti_ActivityKind = 47;
pub const CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API: CUpti_ActivityKind = 48;
pub const CUPTI_ACTIVITY_KIND_MEMORY2: CUpti_ActivityKind = 49;
pub const CUPTI_ACTIVITY_KIND_MEMORY_POOL: CUpti_ActivityKind = 50;
pub const CUPTI_ACTIVITY_KIND_GRAPH_TRACE: CUpti_ActivityKind = 51;
pub const CUPTI_ACTIVITY_KIND_JIT: CUpti_ActivityKind = 52;
pub const CUPTI_ACTIVITY_KIND_DEVICE_GRAPH_TRACE: CUpti_ActivityKind = 53;
pub const CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS: CUpti_ActivityKind = 54;
pub const CUPTI_ACTIVITY_KIND_CONFIDENTIAL_COMPUTE_ROTATION: CUpti_ActivityKind = 55;
pub const CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE: CUpti_ActivityKind = 56;
pub const CUPTI_ACTIVITY_KIND_COMPUTE_ENGINE_CTX_SWITCH: CUpti_ActivityKind = 57;
pub const CUPTI_ACTIVITY_KIND_HOST_LAUNCH: CUpti_ActivityKind = 58;
pub const CUPTI_ACTIVITY_KIND_GREEN_CONTEXT: CUpti_ActivityKind = 59;
pub type CUpti_ActivityKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_OBJECT_UNKNOWN: CUpti_ActivityObjectKind = 0;
pub const CUPTI_ACTIVITY_OBJECT_PROCESS: CUpti_ActivityObjectKind = 1;
pub const CUPTI_ACTIVITY_OBJECT_THREAD: CUpti_ActivityObjectKind = 2;
pub const CUPTI_ACTIVITY_OBJECT_DEVICE: CUpti_ActivityObjectKind = 3;
pub const CUPTI_ACTIVITY_OBJECT_CONTEXT: CUpti_ActivityObjectKind = 4;
pub const CUPTI_ACTIVITY_OBJECT_STREAM: CUpti_ActivityObjectKind = 5;
pub type CUpti_ActivityObjectKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_OVERHEAD_UNKNOWN: CUpti_ActivityOverheadKind = 0;
pub const CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER: CUpti_ActivityOverheadKind = 1;
pub const CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH: CUpti_ActivityOverheadKind = 65536;
pub const CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION: CUpti_ActivityOverheadKind = 131072;
pub const CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE: CUpti_ActivityOverheadKind = 196608;
pub const CUPTI_ACTIVITY_OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING: CUpti_ActivityOverheadKind = 262144;
pub const CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING: CUpti_ActivityOverheadKind = 327680;
pub const CUPTI_ACTIVITY_OVERHEAD_COMMAND_BUFFER_FULL: CUpti_ActivityOverheadKind = 393216;
pub const CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST: CUpti_ActivityOverheadKind = 458752;
pub const CUPTI_ACTIVITY_OVERHEAD_UVM_ACTIVITY_INIT: CUpti_ActivityOverheadKind = 524288;
pub type CUpti_ActivityOverheadKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_FLAG_NONE: CUpti_ActivityFlag = 0;
pub const CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC: CUpti_ActivityFlag = 1;
pub const CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS: CUpti_ActivityFlag = 1;
pub const CUPTI_ACTIVITY_FLAG_MARKER_START: CUpti_ActivityFlag = 2;
pub const CUPTI_ACTIVITY_FLAG_MARKER_END: CUpti_ActivityFlag = 4;
pub const CUPTI_ACTIVITY_FLAG_MARKER_SYNC_ACQUIRE: CUpti_ActivityFlag = 8;
pub const CUPTI_ACTIVITY_FLAG_MARKER_SYNC_ACQUIRE_SUCCESS: CUpti_ActivityFlag = 16;
pub const CUPTI_ACTIVITY_FLAG_MARKER_SYNC_ACQUIRE_FAILED: CUpti_ActivityFlag = 32;
pub const CUPTI_ACTIVITY_FLAG_MARKER_SYNC_RELEASE: CUpti_ActivityFlag = 64;
pub const CUPTI_ACTIVITY_FLAG_MARKER_COLOR_NONE: CUpti_ActivityFlag = 1;
pub const CUPTI_ACTIVITY_FLAG_MARKER_COLOR_ARGB: CUpti_ActivityFlag = 2;
pub const CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: CUpti_ActivityFlag = 1;
pub const CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC: CUpti_ActivityFlag = 1;
pub type CUpti_ActivityFlag = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_UNKNOWN: CUpti_ActivityMemcpyKind = 0;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: CUpti_ActivityMemcpyKind = 1;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: CUpti_ActivityMemcpyKind = 2;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOA: CUpti_ActivityMemcpyKind = 3;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOH: CUpti_ActivityMemcpyKind = 4;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOA: CUpti_ActivityMemcpyKind = 5;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_ATOD: CUpti_ActivityMemcpyKind = 6;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOA: CUpti_ActivityMemcpyKind = 7;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: CUpti_ActivityMemcpyKind = 8;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: CUpti_ActivityMemcpyKind = 9;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: CUpti_ActivityMemcpyKind = 10;
pub type CUpti_ActivityMemcpyKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN: CUpti_ActivityMemoryKind = 0;
pub const CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: CUpti_ActivityMemoryKind = 1;
pub const CUPTI_ACTIVITY_MEMORY_KIND_PINNED: CUpti_ActivityMemoryKind = 2;
pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE: CUpti_ActivityMemoryKind = 3;
pub const CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: CUpti_ActivityMemoryKind = 4;
pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: CUpti_ActivityMemoryKind = 5;
pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC: CUpti_ActivityMemoryKind = 6;
pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC: CUpti_ActivityMemoryKind = 7;
pub type CUpti_ActivityMemoryKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN: CUpti_ActivitySynchronizationType = 0;
pub const CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE: CUpti_ActivitySynchronizationType = 1;
pub const CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: CUpti_ActivitySynchronizationType = 2;
pub const CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE: CUpti_ActivitySynchronizationType = 3;
pub const CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE: CUpti_ActivitySynchronizationType = 4;
pub type CUpti_ActivitySynchronizationType = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_STREAM_CREATE_FLAG_UNKNOWN: CUpti_ActivityStreamFlag = 0;
pub const CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT: CUpti_ActivityStreamFlag = 1;
pub const CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING: CUpti_ActivityStreamFlag = 2;
pub const CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL: CUpti_ActivityStreamFlag = 3;
pub const CUPTI_ACTIVITY_STREAM_CREATE_MASK: CUpti_ActivityStreamFlag = 65535;
pub type CUpti_ActivityStreamFlag = ::core::ffi::c_uint;
pub const CUPTI_CHANNEL_TYPE_INVALID: CUpti_ChannelType = 0;
pub const CUPTI_CHANNEL_TYPE_COMPUTE: CUpti_ChannelType = 1;
pub const CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY: CUpti_ChannelType = 2;
pub const CUPTI_CHANNEL_TYPE_DECOMP: CUpti_ChannelType = 3;
pub type CUpti_ChannelType = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityFieldLayoutEntry {
    pub structSize: usize,
    pub fieldId: ::core::ffi::c_int,
    pub offset: usize,
    pub size: usize,
    pub alignment: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityFieldLayoutEntry"][::core::mem::size_of::<CUpti_ActivityFieldLayoutEntry>() - 40usize];
    ["Alignment of CUpti_ActivityFieldLayoutEntry"][::core::mem::align_of::<CUpti_ActivityFieldLayoutEntry>() - 8usize];
    ["Offset of field: CUpti_ActivityFieldLayoutEntry::structSize"]
        [::core::mem::offset_of!(CUpti_ActivityFieldLayoutEntry, structSize) - 0usize];
    ["Offset of field: CUpti_ActivityFieldLayoutEntry::fieldId"]
        [::core::mem::offset_of!(CUpti_ActivityFieldLayoutEntry, fieldId) - 8usize];
    ["Offset of field: CUpti_ActivityFieldLayoutEntry::offset"]
        [::core::mem::offset_of!(CUpti_ActivityFieldLayoutEntry, offset) - 16usize];
    ["Offset of field: CUpti_ActivityFieldLayoutEntry::size"]
        [::core::mem::offset_of!(CUpti_ActivityFieldLayoutEntry, size) - 24usize];
    ["Offset of field: CUpti_ActivityFieldLayoutEntry::alignment"]
        [::core::mem::offset_of!(CUpti_ActivityFieldLayoutEntry, alignment) - 32usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityRecordLayout {
    pub structSize: usize,
    pub pEntries: *mut CUpti_ActivityFieldLayoutEntry,
    pub numFields: usize,
    pub recordSize: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityRecordLayout"][::core::mem::size_of::<CUpti_ActivityRecordLayout>() - 32usize];
    ["Alignment of CUpti_ActivityRecordLayout"][::core::mem::align_of::<CUpti_ActivityRecordLayout>() - 8usize];
    ["Offset of field: CUpti_ActivityRecordLayout::structSize"]
        [::core::mem::offset_of!(CUpti_ActivityRecordLayout, structSize) - 0usize];
    ["Offset of field: CUpti_ActivityRecordLayout::pEntries"]
        [::core::mem::offset_of!(CUpti_ActivityRecordLayout, pEntries) - 8usize];
    ["Offset of field: CUpti_ActivityRecordLayout::numFields"]
        [::core::mem::offset_of!(CUpti_ActivityRecordLayout, numFields) - 16usize];
    ["Offset of field: CUpti_ActivityRecordLayout::recordSize"]
        [::core::mem::offset_of!(CUpti_ActivityRecordLayout, recordSize) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityFieldSelection {
    pub structSize: usize,
    pub numFields: usize,
    pub pFieldIds: *mut ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityFieldSelection"][::core::mem::size_of::<CUpti_ActivityFieldSelection>() - 24usize];
    ["Alignment of CUpti_ActivityFieldSelection"][::core::mem::align_of::<CUpti_ActivityFieldSelection>() - 8usize];
    ["Offset of field: CUpti_ActivityFieldSelection::structSize"]
        [::core::mem::offset_of!(CUpti_ActivityFieldSelection, structSize) - 0usize];
    ["Offset of field: CUpti_ActivityFieldSelection::numFields"]
        [::core::mem::offset_of!(CUpti_ActivityFieldSelection, numFields) - 8usize];
    ["Offset of field: CUpti_ActivityFieldSelection::pFieldIds"]
        [::core::mem::offset_of!(CUpti_ActivityFieldSelection, pFieldIds) - 16usize];
};
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_Activity {
    pub kind: CUpti_ActivityKind,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_Activity"][::core::mem::size_of::<CUpti_Activity>() - 8usize];
    ["Alignment of CUpti_Activity"][::core::mem::align_of::<CUpti_Activity>() - 8usize];
    ["Offset of field: CUpti_Activity::kind"][::core::mem::offset_of!(CUpti_Activity, kind) - 0usize];
};
pub const CUPTI_EXTERNAL_CORRELATION_KIND_INVALID: CUpti_ExternalCorrelationKind = 0;
pub const CUPTI_EXTERNAL_CORRELATION_KIND_UNKNOWN: CUpti_ExternalCorrelationKind = 1;
pub const CUPTI_EXTERNAL_CORRELATION_KIND_OPENACC: CUpti_ExternalCorrelationKind = 2;
pub const CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0: CUpti_ExternalCorrelationKind = 3;
pub const CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1: CUpti_ExternalCorrelationKind = 4;
pub const CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2: CUpti_ExternalCorrelationKind = 5;
pub type CUpti_ExternalCorrelationKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE_CDP: CUpti_ActivityAttribute = 1;
pub const CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT: CUpti_ActivityAttribute = 2;
pub const CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_POOL_LIMIT: CUpti_ActivityAttribute = 4;
pub const CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER: CUpti_ActivityAttribute = 5;
pub const CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE: CUpti_ActivityAttribute = 6;
pub const CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE: CUpti_ActivityAttribute = 7;
pub const CUPTI_ACTIVITY_ATTR_MEM_ALLOCATION_TYPE_HOST_PINNED: CUpti_ActivityAttribute = 8;
pub const CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER: CUpti_ActivityAttribute = 9;
pub const CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE_DEVICE_GRAPHS: CUpti_ActivityAttribute = 10;
pub const CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS: CUpti_ActivityAttribute = 11;
pub const CUPTI_ACTIVITY_ATTR_MULTIPLE_SUBSCRIBER_STATE: CUpti_ActivityAttribute = 12;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_HES: CUpti_ActivityAttribute = 13;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_ALLOCATION_SOURCE_TRACKING: CUpti_ActivityAttribute = 14;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LATENCY_TIMESTAMPS: CUpti_ActivityAttribute = 15;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_ALL_SYNC_RECORDS: CUpti_ActivityAttribute = 16;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_CUDA_EVENT_DEVICE_TIMESTAMPS: CUpti_ActivityAttribute = 17;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LAUNCH_ATTRIBUTES: CUpti_ActivityAttribute = 18;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_DEVICE_GRAPH_TRACE: CUpti_ActivityAttribute = 19;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_MULTI_SUBSCRIBER_GRAPH_TRACE: CUpti_ActivityAttribute = 20;
pub const CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE: CUpti_ActivityAttribute = 21;
pub const CUPTI_ACTIVITY_ATTR_TIMESTAMP_CALLBACK: CUpti_ActivityAttribute = 22;
pub const CUPTI_ACTIVITY_ATTR_ENABLE_CIG_MODE: CUpti_ActivityAttribute = 23;
pub type CUpti_ActivityAttribute = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT: CUpti_ActivityThreadIdType = 0;
pub const CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM: CUpti_ActivityThreadIdType = 1;
pub type CUpti_ActivityThreadIdType = ::core::ffi::c_uint;
/// `cuptiGetTimestamp`
pub type cuptiGetTimestamp = unsafe extern "C" fn(timestamp: *mut u64) -> CUptiResult;
/// `cuptiGetTimestamp_v2`, since CUDA 13.3
pub type cuptiGetTimestamp_v2 =
    unsafe extern "C" fn(subscriber: CUpti_SubscriberHandle, timestamp: *mut u64) -> CUptiResult;
/// `cuptiGetContextId`
pub type cuptiGetContextId = unsafe extern "C" fn(context: CUcontext, contextId: *mut u32) -> CUptiResult;
/// `cuptiGetStreamIdEx`
pub type cuptiGetStreamIdEx =
    unsafe extern "C" fn(context: CUcontext, stream: CUstream, perThreadStream: u8, streamId: *mut u32) -> CUptiResult;
/// `cuptiGetDeviceId`
pub type cuptiGetDeviceId = unsafe extern "C" fn(context: CUcontext, deviceId: *mut u32) -> CUptiResult;
/// `cuptiGetGraphNodeId`
pub type cuptiGetGraphNodeId = unsafe extern "C" fn(node: CUgraphNode, nodeId: *mut u64) -> CUptiResult;
/// `cuptiGetGraphId`
pub type cuptiGetGraphId = unsafe extern "C" fn(graph: CUgraph, pId: *mut u32) -> CUptiResult;
/// `cuptiGetGraphExecId`, since CUDA 12.3
pub type cuptiGetGraphExecId = unsafe extern "C" fn(graphExec: CUgraphExec, pId: *mut u32) -> CUptiResult;
/// `cuptiActivityEnable`
pub type cuptiActivityEnable = unsafe extern "C" fn(kind: CUpti_ActivityKind) -> CUptiResult;
/// `cuptiActivityEnableAndDump`
pub type cuptiActivityEnableAndDump = unsafe extern "C" fn(kind: CUpti_ActivityKind) -> CUptiResult;
/// `cuptiActivityDisable`
pub type cuptiActivityDisable = unsafe extern "C" fn(kind: CUpti_ActivityKind) -> CUptiResult;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_ActivityConfig {
    pub structSize: usize,
    pub fieldSelection: CUpti_ActivityFieldSelection,
    pub pKindOptions: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_ActivityConfig"][::core::mem::size_of::<CUpti_ActivityConfig>() - 40usize];
    ["Alignment of CUpti_ActivityConfig"][::core::mem::align_of::<CUpti_ActivityConfig>() - 8usize];
    ["Offset of field: CUpti_ActivityConfig::structSize"]
        [::core::mem::offset_of!(CUpti_ActivityConfig, structSize) - 0usize];
    ["Offset of field: CUpti_ActivityConfig::fieldSelection"]
        [::core::mem::offset_of!(CUpti_ActivityConfig, fieldSelection) - 8usize];
    ["Offset of field: CUpti_ActivityConfig::pKindOptions"]
        [::core::mem::offset_of!(CUpti_ActivityConfig, pKindOptions) - 32usize];
};
/// `cuptiActivityEnable_v2`, since CUDA 13.2
pub type cuptiActivityEnable_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    kind: CUpti_ActivityKind,
    pActivityConfig: *mut CUpti_ActivityConfig,
) -> CUptiResult;
/// `cuptiActivityDisable_v2`, since CUDA 13.2
pub type cuptiActivityDisable_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    kind: CUpti_ActivityKind,
    pActivityConfig: *mut CUpti_ActivityConfig,
) -> CUptiResult;
/// `cuptiActivityEnableAndDump_v2`, since CUDA 13.2
pub type cuptiActivityEnableAndDump_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    kind: CUpti_ActivityKind,
    activityConfig: *mut CUpti_ActivityConfig,
) -> CUptiResult;
/// `cuptiActivityGetStructSize`, since CUDA 13.2
pub type cuptiActivityGetStructSize =
    unsafe extern "C" fn(activityKind: CUpti_ActivityKind, version: u32, activityStructSize: *mut usize) -> CUptiResult;
/// `cuptiActivityGetNumDroppedRecords`
pub type cuptiActivityGetNumDroppedRecords =
    unsafe extern "C" fn(context: CUcontext, streamId: u32, dropped: *mut usize) -> CUptiResult;
/// `cuptiActivityGetNumDroppedRecords_v2`, since CUDA 13.3
pub type cuptiActivityGetNumDroppedRecords_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    context: CUcontext,
    streamId: u32,
    dropped: *mut usize,
) -> CUptiResult;
/// `cuptiActivityGetNextRecord`
pub type cuptiActivityGetNextRecord =
    unsafe extern "C" fn(buffer: *mut u8, validBufferSizeBytes: usize, record: *mut *mut CUpti_Activity) -> CUptiResult;
/// `cuptiActivityGetNextRecord_v2`, since CUDA 13.3
pub type cuptiActivityGetNextRecord_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    buffer: *mut u8,
    validBufferSizeBytes: usize,
    record: *mut *mut CUpti_Activity,
) -> CUptiResult;
pub type CUpti_BuffersCallbackRequestFunc =
    ::core::option::Option<unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, maxNumRecords: *mut usize)>;
pub type CUpti_BuffersCallbackCompleteFunc = ::core::option::Option<
    unsafe extern "C" fn(context: CUcontext, streamId: u32, buffer: *mut u8, size: usize, validSize: usize),
>;
/// `cuptiActivityRegisterCallbacks`
pub type cuptiActivityRegisterCallbacks = unsafe extern "C" fn(
    funcBufferRequested: CUpti_BuffersCallbackRequestFunc,
    funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc,
) -> CUptiResult;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_BufferCallbackRequestInfo {
    pub structSize: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_BufferCallbackRequestInfo"][::core::mem::size_of::<CUpti_BufferCallbackRequestInfo>() - 8usize];
    ["Alignment of CUpti_BufferCallbackRequestInfo"]
        [::core::mem::align_of::<CUpti_BufferCallbackRequestInfo>() - 8usize];
    ["Offset of field: CUpti_BufferCallbackRequestInfo::structSize"]
        [::core::mem::offset_of!(CUpti_BufferCallbackRequestInfo, structSize) - 0usize];
};
pub type CUpti_BuffersCallbackRequestFunc_v2 = ::core::option::Option<
    unsafe extern "C" fn(
        buffer: *mut *mut u8,
        size: *mut usize,
        maxNumRecords: *mut usize,
        pBufferRequestInfo: *mut CUpti_BufferCallbackRequestInfo,
    ),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUpti_BufferCallbackCompleteInfo {
    pub structSize: usize,
    pub threadId: u64,
    pub ppRecordLayouts: *mut *mut CUpti_ActivityRecordLayout,
    pub numRecordLayouts: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CUpti_BufferCallbackCompleteInfo"][::core::mem::size_of::<CUpti_BufferCallbackCompleteInfo>() - 32usize];
    ["Alignment of CUpti_BufferCallbackCompleteInfo"]
        [::core::mem::align_of::<CUpti_BufferCallbackCompleteInfo>() - 8usize];
    ["Offset of field: CUpti_BufferCallbackCompleteInfo::structSize"]
        [::core::mem::offset_of!(CUpti_BufferCallbackCompleteInfo, structSize) - 0usize];
    ["Offset of field: CUpti_BufferCallbackCompleteInfo::threadId"]
        [::core::mem::offset_of!(CUpti_BufferCallbackCompleteInfo, threadId) - 8usize];
    ["Offset of field: CUpti_BufferCallbackCompleteInfo::ppRecordLayouts"]
        [::core::mem::offset_of!(CUpti_BufferCallbackCompleteInfo, ppRecordLayouts) - 16usize];
    ["Offset of field: CUpti_BufferCallbackCompleteInfo::numRecordLayouts"]
        [::core::mem::offset_of!(CUpti_BufferCallbackCompleteInfo, numRecordLayouts) - 24usize];
};
pub type CUpti_BuffersCallbackCompleteFunc_v2 = ::core::option::Option<
    unsafe extern "C" fn(
        buffer: *mut u8,
        size: usize,
        validSize: usize,
        pBufferCompleteInfo: *mut CUpti_BufferCallbackCompleteInfo,
    ),
>;
/// `cuptiActivityRegisterCallbacks_v2`, since CUDA 13.2
pub type cuptiActivityRegisterCallbacks_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    funcBufferRequested: CUpti_BuffersCallbackRequestFunc_v2,
    funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc_v2,
) -> CUptiResult;
/// `cuptiActivityFlushAll`
pub type cuptiActivityFlushAll = unsafe extern "C" fn(flag: u32) -> CUptiResult;
/// `cuptiActivityGetAttribute`
pub type cuptiActivityGetAttribute = unsafe extern "C" fn(
    attr: CUpti_ActivityAttribute,
    valueSize: *mut usize,
    value: *mut ::core::ffi::c_void,
) -> CUptiResult;
/// `cuptiActivitySetAttribute`
pub type cuptiActivitySetAttribute = unsafe extern "C" fn(
    attr: CUpti_ActivityAttribute,
    valueSize: *mut usize,
    value: *mut ::core::ffi::c_void,
) -> CUptiResult;
/// `cuptiActivitySetAttribute_v2`, since CUDA 13.2
pub type cuptiActivitySetAttribute_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    attr: CUpti_ActivityAttribute,
    valueSize: *mut usize,
    value: *mut ::core::ffi::c_void,
) -> CUptiResult;
/// `cuptiSetThreadIdType`
pub type cuptiSetThreadIdType = unsafe extern "C" fn(type_: CUpti_ActivityThreadIdType) -> CUptiResult;
/// `cuptiGetThreadIdType`
pub type cuptiGetThreadIdType = unsafe extern "C" fn(type_: *mut CUpti_ActivityThreadIdType) -> CUptiResult;
/// `cuptiActivityPushExternalCorrelationId`
pub type cuptiActivityPushExternalCorrelationId =
    unsafe extern "C" fn(kind: CUpti_ExternalCorrelationKind, id: u64) -> CUptiResult;
/// `cuptiActivityPopExternalCorrelationId`
pub type cuptiActivityPopExternalCorrelationId =
    unsafe extern "C" fn(kind: CUpti_ExternalCorrelationKind, lastId: *mut u64) -> CUptiResult;
/// `cuptiActivityPushExternalCorrelationId_v2`, since CUDA 13.3
pub type cuptiActivityPushExternalCorrelationId_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    kind: CUpti_ExternalCorrelationKind,
    id: u64,
) -> CUptiResult;
/// `cuptiActivityPopExternalCorrelationId_v2`, since CUDA 13.3
pub type cuptiActivityPopExternalCorrelationId_v2 = unsafe extern "C" fn(
    subscriber: CUpti_SubscriberHandle,
    kind: CUpti_ExternalCorrelationKind,
    lastId: *mut u64,
) -> CUptiResult;
/// `cuptiActivityFlushPeriod`
pub type cuptiActivityFlushPeriod = unsafe extern "C" fn(time: u32) -> CUptiResult;
pub type CUpti_TimestampCallbackFunc = ::core::option::Option<unsafe extern "C" fn() -> u64>;
/// `cuptiActivityRegisterTimestampCallback`
pub type cuptiActivityRegisterTimestampCallback =
    unsafe extern "C" fn(funcTimestamp: CUpti_TimestampCallbackFunc) -> CUptiResult;
/// `cuptiActivityEnableDriverApi`, since CUDA 12.5
pub type cuptiActivityEnableDriverApi = unsafe extern "C" fn(cbid: CUpti_CallbackId, enable: u8) -> CUptiResult;
/// `cuptiActivityEnableRuntimeApi`, since CUDA 12.5
pub type cuptiActivityEnableRuntimeApi = unsafe extern "C" fn(cbid: CUpti_CallbackId, enable: u8) -> CUptiResult;
/// `cuptiActivityEnableHWTrace`, since CUDA 12.8
pub type cuptiActivityEnableHWTrace = unsafe extern "C" fn(enable: u8) -> CUptiResult;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD: CUpti_driver_api_trace_cbid_enum = 43;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH: CUpti_driver_api_trace_cbid_enum = 45;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD: CUpti_driver_api_trace_cbid_enum = 47;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoA: CUpti_driver_api_trace_cbid_enum = 49;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoD: CUpti_driver_api_trace_cbid_enum = 51;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoA: CUpti_driver_api_trace_cbid_enum = 53;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoH: CUpti_driver_api_trace_cbid_enum = 54;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoA: CUpti_driver_api_trace_cbid_enum = 55;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2D: CUpti_driver_api_trace_cbid_enum = 56;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DUnaligned: CUpti_driver_api_trace_cbid_enum = 57;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D: CUpti_driver_api_trace_cbid_enum = 58;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync: CUpti_driver_api_trace_cbid_enum = 60;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync: CUpti_driver_api_trace_cbid_enum = 62;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync: CUpti_driver_api_trace_cbid_enum = 64;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoAAsync: CUpti_driver_api_trace_cbid_enum = 66;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoHAsync: CUpti_driver_api_trace_cbid_enum = 67;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DAsync: CUpti_driver_api_trace_cbid_enum = 68;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DAsync: CUpti_driver_api_trace_cbid_enum = 69;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD8: CUpti_driver_api_trace_cbid_enum = 71;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD16: CUpti_driver_api_trace_cbid_enum = 73;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD32: CUpti_driver_api_trace_cbid_enum = 75;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D8: CUpti_driver_api_trace_cbid_enum = 77;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D16: CUpti_driver_api_trace_cbid_enum = 79;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D32: CUpti_driver_api_trace_cbid_enum = 81;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunch: CUpti_driver_api_trace_cbid_enum = 115;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchGrid: CUpti_driver_api_trace_cbid_enum = 116;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchGridAsync: CUpti_driver_api_trace_cbid_enum = 117;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async: CUpti_driver_api_trace_cbid_enum = 216;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD16Async: CUpti_driver_api_trace_cbid_enum = 218;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async: CUpti_driver_api_trace_cbid_enum = 220;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D8Async: CUpti_driver_api_trace_cbid_enum = 222;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D16Async: CUpti_driver_api_trace_cbid_enum = 224;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D32Async: CUpti_driver_api_trace_cbid_enum = 226;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD8_v2: CUpti_driver_api_trace_cbid_enum = 249;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD16_v2: CUpti_driver_api_trace_cbid_enum = 250;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD32_v2: CUpti_driver_api_trace_cbid_enum = 251;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D8_v2: CUpti_driver_api_trace_cbid_enum = 252;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D16_v2: CUpti_driver_api_trace_cbid_enum = 253;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D32_v2: CUpti_driver_api_trace_cbid_enum = 254;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2: CUpti_driver_api_trace_cbid_enum = 276;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2: CUpti_driver_api_trace_cbid_enum = 277;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2: CUpti_driver_api_trace_cbid_enum = 278;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2: CUpti_driver_api_trace_cbid_enum = 279;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD_v2: CUpti_driver_api_trace_cbid_enum = 280;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2: CUpti_driver_api_trace_cbid_enum = 281;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoH_v2: CUpti_driver_api_trace_cbid_enum = 282;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoHAsync_v2: CUpti_driver_api_trace_cbid_enum = 283;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoD_v2: CUpti_driver_api_trace_cbid_enum = 284;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoA_v2: CUpti_driver_api_trace_cbid_enum = 285;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoA_v2: CUpti_driver_api_trace_cbid_enum = 286;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2D_v2: CUpti_driver_api_trace_cbid_enum = 287;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DUnaligned_v2: CUpti_driver_api_trace_cbid_enum = 288;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DAsync_v2: CUpti_driver_api_trace_cbid_enum = 289;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2: CUpti_driver_api_trace_cbid_enum = 290;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DAsync_v2: CUpti_driver_api_trace_cbid_enum = 291;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoA_v2: CUpti_driver_api_trace_cbid_enum = 292;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoAAsync_v2: CUpti_driver_api_trace_cbid_enum = 293;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy: CUpti_driver_api_trace_cbid_enum = 305;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync: CUpti_driver_api_trace_cbid_enum = 306;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel: CUpti_driver_api_trace_cbid_enum = 307;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeer: CUpti_driver_api_trace_cbid_enum = 318;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeerAsync: CUpti_driver_api_trace_cbid_enum = 319;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeer: CUpti_driver_api_trace_cbid_enum = 320;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync: CUpti_driver_api_trace_cbid_enum = 321;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2_ptds: CUpti_driver_api_trace_cbid_enum = 397;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds: CUpti_driver_api_trace_cbid_enum = 398;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD_v2_ptds: CUpti_driver_api_trace_cbid_enum = 399;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoA_v2_ptds: CUpti_driver_api_trace_cbid_enum = 400;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoD_v2_ptds: CUpti_driver_api_trace_cbid_enum = 401;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoA_v2_ptds: CUpti_driver_api_trace_cbid_enum = 402;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoH_v2_ptds: CUpti_driver_api_trace_cbid_enum = 403;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoA_v2_ptds: CUpti_driver_api_trace_cbid_enum = 404;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2D_v2_ptds: CUpti_driver_api_trace_cbid_enum = 405;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DUnaligned_v2_ptds: CUpti_driver_api_trace_cbid_enum = 406;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3D_v2_ptds: CUpti_driver_api_trace_cbid_enum = 407;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy_ptds: CUpti_driver_api_trace_cbid_enum = 408;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeer_ptds: CUpti_driver_api_trace_cbid_enum = 409;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeer_ptds: CUpti_driver_api_trace_cbid_enum = 410;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD8_v2_ptds: CUpti_driver_api_trace_cbid_enum = 411;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD16_v2_ptds: CUpti_driver_api_trace_cbid_enum = 412;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD32_v2_ptds: CUpti_driver_api_trace_cbid_enum = 413;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D8_v2_ptds: CUpti_driver_api_trace_cbid_enum = 414;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D16_v2_ptds: CUpti_driver_api_trace_cbid_enum = 415;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D32_v2_ptds: CUpti_driver_api_trace_cbid_enum = 416;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 418;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoAAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 419;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAtoHAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 420;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 421;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 422;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 423;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 424;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 425;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyPeerAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 426;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DPeerAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 427;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async_ptsz: CUpti_driver_api_trace_cbid_enum = 428;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD16Async_ptsz: CUpti_driver_api_trace_cbid_enum = 429;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async_ptsz: CUpti_driver_api_trace_cbid_enum = 430;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D8Async_ptsz: CUpti_driver_api_trace_cbid_enum = 431;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D16Async_ptsz: CUpti_driver_api_trace_cbid_enum = 432;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemsetD2D32Async_ptsz: CUpti_driver_api_trace_cbid_enum = 433;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz: CUpti_driver_api_trace_cbid_enum = 442;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel: CUpti_driver_api_trace_cbid_enum = 477;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz: CUpti_driver_api_trace_cbid_enum = 478;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernelMultiDevice: CUpti_driver_api_trace_cbid_enum = 480;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch: CUpti_driver_api_trace_cbid_enum = 514;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz: CUpti_driver_api_trace_cbid_enum = 515;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc: CUpti_driver_api_trace_cbid_enum = 527;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc_ptsz: CUpti_driver_api_trace_cbid_enum = 528;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams: CUpti_driver_api_trace_cbid_enum = 538;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate: CUpti_driver_api_trace_cbid_enum = 561;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams: CUpti_driver_api_trace_cbid_enum = 586;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled: CUpti_driver_api_trace_cbid_enum = 650;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx: CUpti_driver_api_trace_cbid_enum = 652;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz: CUpti_driver_api_trace_cbid_enum = 653;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams_v2: CUpti_driver_api_trace_cbid_enum = 692;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2: CUpti_driver_api_trace_cbid_enum = 696;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams: CUpti_driver_api_trace_cbid_enum = 714;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync: CUpti_driver_api_trace_cbid_enum = 776;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 777;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync: CUpti_driver_api_trace_cbid_enum = 778;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 779;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2: CUpti_driver_api_trace_cbid_enum = 796;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 797;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync_v2: CUpti_driver_api_trace_cbid_enum = 798;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DBatchAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 799;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc_v2: CUpti_driver_api_trace_cbid_enum = 831;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchHostFunc_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 832;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyWithAttributesAsync: CUpti_driver_api_trace_cbid_enum = 837;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyWithAttributesAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 838;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DWithAttributesAsync: CUpti_driver_api_trace_cbid_enum = 839;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpy3DWithAttributesAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 840;
pub type CUpti_driver_api_trace_cbid_enum = ::core::ffi::c_uint;
pub use self::CUpti_driver_api_trace_cbid_enum as CUpti_driver_api_trace_cbid;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunch_v3020: CUpti_runtime_api_trace_cbid_enum = 13;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020: CUpti_runtime_api_trace_cbid_enum = 31;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2D_v3020: CUpti_runtime_api_trace_cbid_enum = 32;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToArray_v3020: CUpti_runtime_api_trace_cbid_enum = 33;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DToArray_v3020: CUpti_runtime_api_trace_cbid_enum = 34;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromArray_v3020: CUpti_runtime_api_trace_cbid_enum = 35;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DFromArray_v3020: CUpti_runtime_api_trace_cbid_enum = 36;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyArrayToArray_v3020: CUpti_runtime_api_trace_cbid_enum = 37;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DArrayToArray_v3020: CUpti_runtime_api_trace_cbid_enum = 38;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbol_v3020: CUpti_runtime_api_trace_cbid_enum = 39;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbol_v3020: CUpti_runtime_api_trace_cbid_enum = 40;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 41;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToArrayAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 42;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromArrayAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 43;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 44;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DToArrayAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 45;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DFromArrayAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 46;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbolAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 47;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbolAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 48;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020: CUpti_runtime_api_trace_cbid_enum = 49;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset2D_v3020: CUpti_runtime_api_trace_cbid_enum = 50;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 51;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset2DAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 52;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset3D_v3020: CUpti_runtime_api_trace_cbid_enum = 142;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset3DAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 143;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3D_v3020: CUpti_runtime_api_trace_cbid_enum = 144;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DAsync_v3020: CUpti_runtime_api_trace_cbid_enum = 145;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeer_v4000: CUpti_runtime_api_trace_cbid_enum = 160;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000: CUpti_runtime_api_trace_cbid_enum = 161;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DPeer_v4000: CUpti_runtime_api_trace_cbid_enum = 162;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DPeerAsync_v4000: CUpti_runtime_api_trace_cbid_enum = 163;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000: CUpti_runtime_api_trace_cbid_enum = 211;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunch_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 213;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 214;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 215;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2D_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 216;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 217;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DToArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 218;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 219;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DFromArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 220;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyArrayToArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 221;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DArrayToArray_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 222;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbol_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 223;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbol_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 224;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 225;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToArrayAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 226;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromArrayAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 227;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 228;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DToArrayAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 229;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DFromArrayAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 230;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyToSymbolAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 231;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyFromSymbolAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 232;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 233;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset2D_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 234;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 235;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset2DAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 236;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset3D_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 243;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemset3DAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 244;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3D_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 245;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 246;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DPeer_ptds_v7000: CUpti_runtime_api_trace_cbid_enum = 249;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DPeerAsync_ptsz_v7000: CUpti_runtime_api_trace_cbid_enum = 250;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000: CUpti_runtime_api_trace_cbid_enum = 269;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_ptsz_v9000: CUpti_runtime_api_trace_cbid_enum = 270;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernelMultiDevice_v9000: CUpti_runtime_api_trace_cbid_enum =
    272;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v10000: CUpti_runtime_api_trace_cbid_enum = 284;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_ptsz_v10000: CUpti_runtime_api_trace_cbid_enum = 285;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000: CUpti_runtime_api_trace_cbid_enum = 311;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_ptsz_v10000: CUpti_runtime_api_trace_cbid_enum = 312;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060: CUpti_runtime_api_trace_cbid_enum = 430;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_ptsz_v11060: CUpti_runtime_api_trace_cbid_enum = 431;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyBatchAsync_v12080: CUpti_runtime_api_trace_cbid_enum = 482;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyBatchAsync_ptsz_v12080: CUpti_runtime_api_trace_cbid_enum = 483;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DBatchAsync_v12080: CUpti_runtime_api_trace_cbid_enum = 484;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DBatchAsync_ptsz_v12080: CUpti_runtime_api_trace_cbid_enum = 485;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyBatchAsync_v13000: CUpti_runtime_api_trace_cbid_enum = 509;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyBatchAsync_ptsz_v13000: CUpti_runtime_api_trace_cbid_enum = 510;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DBatchAsync_v13000: CUpti_runtime_api_trace_cbid_enum = 511;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DBatchAsync_ptsz_v13000: CUpti_runtime_api_trace_cbid_enum = 512;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v2_v13020: CUpti_runtime_api_trace_cbid_enum = 550;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaLaunchHostFunc_v2_ptsz_v13020: CUpti_runtime_api_trace_cbid_enum = 551;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyWithAttributesAsync_v13020: CUpti_runtime_api_trace_cbid_enum = 554;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyWithAttributesAsync_ptsz_v13020: CUpti_runtime_api_trace_cbid_enum = 555;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DWithAttributesAsync_v13020: CUpti_runtime_api_trace_cbid_enum = 556;
pub const CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy3DWithAttributesAsync_ptsz_v13020: CUpti_runtime_api_trace_cbid_enum = 557;
pub type CUpti_runtime_api_trace_cbid_enum = ::core::ffi::c_uint;
pub use self::CUpti_runtime_api_trace_cbid_enum as CUpti_runtime_api_trace_cbid;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cuLaunchKernel_params_st {
    pub f: CUfunction,
    pub gridDimX: ::core::ffi::c_uint,
    pub gridDimY: ::core::ffi::c_uint,
    pub gridDimZ: ::core::ffi::c_uint,
    pub blockDimX: ::core::ffi::c_uint,
    pub blockDimY: ::core::ffi::c_uint,
    pub blockDimZ: ::core::ffi::c_uint,
    pub sharedMemBytes: ::core::ffi::c_uint,
    pub hStream: CUstream,
    pub kernelParams: *mut *mut ::core::ffi::c_void,
    pub extra: *mut *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cuLaunchKernel_params_st"][::core::mem::size_of::<cuLaunchKernel_params_st>() - 64usize];
    ["Alignment of cuLaunchKernel_params_st"][::core::mem::align_of::<cuLaunchKernel_params_st>() - 8usize];
    ["Offset of field: cuLaunchKernel_params_st::f"][::core::mem::offset_of!(cuLaunchKernel_params_st, f) - 0usize];
    ["Offset of field: cuLaunchKernel_params_st::gridDimX"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, gridDimX) - 8usize];
    ["Offset of field: cuLaunchKernel_params_st::gridDimY"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, gridDimY) - 12usize];
    ["Offset of field: cuLaunchKernel_params_st::gridDimZ"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, gridDimZ) - 16usize];
    ["Offset of field: cuLaunchKernel_params_st::blockDimX"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, blockDimX) - 20usize];
    ["Offset of field: cuLaunchKernel_params_st::blockDimY"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, blockDimY) - 24usize];
    ["Offset of field: cuLaunchKernel_params_st::blockDimZ"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, blockDimZ) - 28usize];
    ["Offset of field: cuLaunchKernel_params_st::sharedMemBytes"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, sharedMemBytes) - 32usize];
    ["Offset of field: cuLaunchKernel_params_st::hStream"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, hStream) - 40usize];
    ["Offset of field: cuLaunchKernel_params_st::kernelParams"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, kernelParams) - 48usize];
    ["Offset of field: cuLaunchKernel_params_st::extra"]
        [::core::mem::offset_of!(cuLaunchKernel_params_st, extra) - 56usize];
};
pub type cuLaunchKernel_params = cuLaunchKernel_params_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cuGraphLaunch_params_st {
    pub hGraph: CUgraphExec,
    pub hStream: CUstream,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cuGraphLaunch_params_st"][::core::mem::size_of::<cuGraphLaunch_params_st>() - 16usize];
    ["Alignment of cuGraphLaunch_params_st"][::core::mem::align_of::<cuGraphLaunch_params_st>() - 8usize];
    ["Offset of field: cuGraphLaunch_params_st::hGraph"]
        [::core::mem::offset_of!(cuGraphLaunch_params_st, hGraph) - 0usize];
    ["Offset of field: cuGraphLaunch_params_st::hStream"]
        [::core::mem::offset_of!(cuGraphLaunch_params_st, hStream) - 8usize];
};
pub type cuGraphLaunch_params = cuGraphLaunch_params_st;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cuLaunchKernelEx_params_st {
    pub config: *const CUlaunchConfig,
    pub f: CUfunction,
    pub kernelParams: *mut *mut ::core::ffi::c_void,
    pub extra: *mut *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cuLaunchKernelEx_params_st"][::core::mem::size_of::<cuLaunchKernelEx_params_st>() - 32usize];
    ["Alignment of cuLaunchKernelEx_params_st"][::core::mem::align_of::<cuLaunchKernelEx_params_st>() - 8usize];
    ["Offset of field: cuLaunchKernelEx_params_st::config"]
        [::core::mem::offset_of!(cuLaunchKernelEx_params_st, config) - 0usize];
    ["Offset of field: cuLaunchKernelEx_params_st::f"][::core::mem::offset_of!(cuLaunchKernelEx_params_st, f) - 8usize];
    ["Offset of field: cuLaunchKernelEx_params_st::kernelParams"]
        [::core::mem::offset_of!(cuLaunchKernelEx_params_st, kernelParams) - 16usize];
    ["Offset of field: cuLaunchKernelEx_params_st::extra"]
        [::core::mem::offset_of!(cuLaunchKernelEx_params_st, extra) - 24usize];
};
pub type cuLaunchKernelEx_params = cuLaunchKernelEx_params_st;
