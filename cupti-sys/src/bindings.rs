//! CUPTI's types, constants and function types, under its own names, as of CUDA 13.5.
//!
//! Written by `cargo xtask bindings` from NVIDIA's headers on PyPI; not to be edited. What they
//! mean is in NVIDIA's documentation of CUPTI.

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
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType_enum = 4;
pub type CUgraphNodeType_enum = ::core::ffi::c_uint;
pub use self::CUgraphNodeType_enum as CUgraphNodeType;
pub const CUPTI_SUCCESS: CUptiResult = 0;
pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = 1;
pub const CUPTI_ERROR_INVALID_DEVICE: CUptiResult = 2;
pub const CUPTI_ERROR_INVALID_OPERATION: CUptiResult = 7;
pub const CUPTI_ERROR_OUT_OF_MEMORY: CUptiResult = 8;
pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = 12;
pub const CUPTI_ERROR_NOT_COMPATIBLE: CUptiResult = 14;
pub const CUPTI_ERROR_NOT_INITIALIZED: CUptiResult = 15;
pub const CUPTI_ERROR_INVALID_KIND: CUptiResult = 21;
pub const CUPTI_ERROR_NOT_SUPPORTED: CUptiResult = 27;
pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED: CUptiResult = 33;
pub const CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: CUptiResult = 35;
pub const CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED: CUptiResult = 38;
pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = 39;
pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES: CUptiResult = 40;
pub const CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED: CUptiResult = 41;
pub const CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED: CUptiResult = 42;
pub const CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED: CUptiResult = 43;
pub const CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED: CUptiResult = 44;
pub const CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED: CUptiResult = 45;
pub const CUPTI_ERROR_UNKNOWN: CUptiResult = 999;
pub type CUptiResult = ::core::ffi::c_uint;
/// `cuptiGetResultString`
pub type cuptiGetResultString =
    unsafe extern "C" fn(result: CUptiResult, str_: *mut *const ::core::ffi::c_char) -> CUptiResult;
/// `cuptiGetVersion`
pub type cuptiGetVersion = unsafe extern "C" fn(version: *mut u32) -> CUptiResult;
pub const CUPTI_API_ENTER: CUpti_ApiCallbackSite = 0;
pub const CUPTI_API_EXIT: CUpti_ApiCallbackSite = 1;
pub type CUpti_ApiCallbackSite = ::core::ffi::c_uint;
pub const CUPTI_CB_DOMAIN_DRIVER_API: CUpti_CallbackDomain = 1;
pub const CUPTI_CB_DOMAIN_RUNTIME_API: CUpti_CallbackDomain = 2;
pub const CUPTI_CB_DOMAIN_RESOURCE: CUpti_CallbackDomain = 3;
pub const CUPTI_CB_DOMAIN_STATE: CUpti_CallbackDomain = 6;
pub type CUpti_CallbackDomain = ::core::ffi::c_uint;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED: CUpti_CallbackIdResource = 13;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING: CUpti_CallbackIdResource = 14;
pub const CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED: CUpti_CallbackIdResource = 18;
pub const CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED: CUpti_CallbackIdResource = 20;
pub const CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED: CUpti_CallbackIdResource = 22;
pub const CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS: CUpti_CallbackIdResource = 23;
pub type CUpti_CallbackIdResource = ::core::ffi::c_uint;
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
pub const CUPTI_ACTIVITY_KIND_DEVICE: CUpti_ActivityKind = 8;
pub const CUPTI_ACTIVITY_KIND_CONTEXT: CUpti_ActivityKind = 9;
pub const CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: CUpti_ActivityKind = 10;
pub const CUPTI_ACTIVITY_KIND_MARKER: CUpti_ActivityKind = 12;
pub const CUPTI_ACTIVITY_KIND_OVERHEAD: CUpti_ActivityKind = 17;
pub const CUPTI_ACTIVITY_KIND_MEMCPY2: CUpti_ActivityKind = 22;
pub const CUPTI_ACTIVITY_KIND_CUDA_EVENT: CUpti_ActivityKind = 36;
pub const CUPTI_ACTIVITY_KIND_STREAM: CUpti_ActivityKind = 37;
pub const CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: CUpti_ActivityKind = 38;
pub const CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: CUpti_ActivityKind = 39;
pub const CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API: CUpti_ActivityKind = 48;
pub const CUPTI_ACTIVITY_KIND_GRAPH_TRACE: CUpti_ActivityKind = 51;
pub const CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE: CUpti_ActivityKind = 56;
pub type CUpti_ActivityKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_OBJECT_THREAD: CUpti_ActivityObjectKind = 2;
pub type CUpti_ActivityObjectKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS: CUpti_ActivityFlag = 1;
pub const CUPTI_ACTIVITY_FLAG_MARKER_START: CUpti_ActivityFlag = 2;
pub const CUPTI_ACTIVITY_FLAG_MARKER_END: CUpti_ActivityFlag = 4;
pub const CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: CUpti_ActivityFlag = 1;
pub type CUpti_ActivityFlag = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: CUpti_ActivityMemcpyKind = 1;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: CUpti_ActivityMemcpyKind = 2;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: CUpti_ActivityMemcpyKind = 8;
pub const CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: CUpti_ActivityMemcpyKind = 10;
pub type CUpti_ActivityMemcpyKind = ::core::ffi::c_uint;
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
pub const CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2: CUpti_ExternalCorrelationKind = 5;
pub type CUpti_ExternalCorrelationKind = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT: CUpti_ActivityAttribute = 2;
pub const CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE: CUpti_ActivityAttribute = 21;
pub type CUpti_ActivityAttribute = ::core::ffi::c_uint;
pub const CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM: CUpti_ActivityThreadIdType = 1;
pub type CUpti_ActivityThreadIdType = ::core::ffi::c_uint;
/// `cuptiGetTimestamp`
pub type cuptiGetTimestamp = unsafe extern "C" fn(timestamp: *mut u64) -> CUptiResult;
/// `cuptiGetTimestamp_v2`, since CUDA 13.3
pub type cuptiGetTimestamp_v2 =
    unsafe extern "C" fn(subscriber: CUpti_SubscriberHandle, timestamp: *mut u64) -> CUptiResult;
/// `cuptiGetGraphNodeId`
pub type cuptiGetGraphNodeId = unsafe extern "C" fn(node: CUgraphNode, nodeId: *mut u64) -> CUptiResult;
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
pub type CUpti_TimestampCallbackFunc = ::core::option::Option<unsafe extern "C" fn() -> u64>;
/// `cuptiActivityRegisterTimestampCallback`
pub type cuptiActivityRegisterTimestampCallback =
    unsafe extern "C" fn(funcTimestamp: CUpti_TimestampCallbackFunc) -> CUptiResult;
/// `cuptiActivityEnableDriverApi`, since CUDA 12.5
pub type cuptiActivityEnableDriverApi = unsafe extern "C" fn(cbid: CUpti_CallbackId, enable: u8) -> CUptiResult;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2: CUpti_driver_api_trace_cbid_enum = 281;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync: CUpti_driver_api_trace_cbid_enum = 306;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel: CUpti_driver_api_trace_cbid_enum = 307;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 418;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 423;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz: CUpti_driver_api_trace_cbid_enum = 442;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate: CUpti_driver_api_trace_cbid_enum = 513;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch: CUpti_driver_api_trace_cbid_enum = 514;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz: CUpti_driver_api_trace_cbid_enum = 515;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams: CUpti_driver_api_trace_cbid_enum = 538;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate: CUpti_driver_api_trace_cbid_enum = 561;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2: CUpti_driver_api_trace_cbid_enum = 578;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams: CUpti_driver_api_trace_cbid_enum = 586;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags: CUpti_driver_api_trace_cbid_enum = 643;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled: CUpti_driver_api_trace_cbid_enum = 650;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx: CUpti_driver_api_trace_cbid_enum = 652;
pub const CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz: CUpti_driver_api_trace_cbid_enum = 653;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams: CUpti_driver_api_trace_cbid_enum = 656;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz: CUpti_driver_api_trace_cbid_enum = 657;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams_v2: CUpti_driver_api_trace_cbid_enum = 692;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2: CUpti_driver_api_trace_cbid_enum = 696;
pub const CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams: CUpti_driver_api_trace_cbid_enum = 714;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync: CUpti_driver_api_trace_cbid_enum = 776;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_ptsz: CUpti_driver_api_trace_cbid_enum = 777;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2: CUpti_driver_api_trace_cbid_enum = 796;
pub const CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2_ptsz: CUpti_driver_api_trace_cbid_enum = 797;
pub type CUpti_driver_api_trace_cbid_enum = ::core::ffi::c_uint;
pub use self::CUpti_driver_api_trace_cbid_enum as CUpti_driver_api_trace_cbid;
