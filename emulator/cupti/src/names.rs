//! Functions of CUDA and CUPTI's numbers for them.
//!
//! The numbers are those of `cupti_driver_cbid.h` and `cupti_runtime_cbid.h`. They never change,
//! and a release knows those below its own highest. Only functions that an emulated job may call
//! are listed. CUPTI names a runtime function with the version of CUDA that gave it its present
//! arguments. If a function has several versions, the newest that the release knows is the one
//! that is called.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::OnceLock;

use crate::release::Release;

/// A domain of callbacks.
pub mod domain {
    /// Calls of the driver.
    pub const DRIVER: u32 = 1;
    /// Calls of the runtime.
    pub const RUNTIME: u32 = 2;
    /// Contexts, streams, graphs.
    pub const RESOURCE: u32 = 3;
    /// CUPTI's own failures.
    pub const STATE: u32 = 6;
}

/// A function as CUPTI numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Its domain.
    pub domain: u32,
    /// Its number.
    pub id: u32,
    /// Its name, as a callback gets it: without CUPTI's version suffix. That is how it appears in
    /// the profiles that other tools publish; the headers do not say it.
    pub name: &'static CStr,
}

/// The number of a function, by its spelling in CUDA's headers.
pub fn find(name: &CStr, release: Release) -> Option<Function> {
    let known = |function: &&Function| function.id < release.callbacks(function.domain);
    index().get(name)?.iter().filter(known).max_by_key(|function| function.id).copied()
}

/// Whether a function is listed here, whatever the release.
pub fn is_listed(name: &CStr) -> bool {
    index().contains_key(name)
}

/// All functions by name.
fn index() -> &'static HashMap<&'static CStr, Vec<Function>> {
    static INDEX: OnceLock<HashMap<&'static CStr, Vec<Function>>> = OnceLock::new();
    INDEX.get_or_init(|| {
        let mut index: HashMap<_, Vec<_>> = HashMap::new();
        for &(name, id) in DRIVER {
            index.entry(name).or_default().push(Function { domain: domain::DRIVER, id, name });
        }
        for &(name, _, id) in RUNTIME {
            index.entry(name).or_default().push(Function { domain: domain::RUNTIME, id, name });
        }
        index
    })
}

/// The name that CUPTI gives to a number.
pub fn name(domain: u32, id: u32, release: Release) -> Option<&'static CStr> {
    all(release).find(|(of, _, known)| (*of, *known) == (domain, id)).map(|(_, name, _)| name)
}

/// All functions that a release knows: domain, CUPTI's name, number.
pub fn all(release: Release) -> impl Iterator<Item = (u32, &'static CStr, u32)> {
    let old_name = move |id| {
        let mut renamed = RENAMED.iter().filter(|_| release < Release::V13_0);
        renamed.find(|(_, known)| *known == id).map(|(name, _)| *name)
    };
    let driver = DRIVER.iter().map(|(name, id)| (domain::DRIVER, *name, *id));
    let runtime = RUNTIME.iter().map(move |(_, name, id)| (domain::RUNTIME, old_name(*id).unwrap_or(name), *id));
    driver.chain(runtime).filter(move |(domain, _, id)| *id < release.callbacks(*domain))
}

/// The names, before 13.0, of functions that were renamed when they replaced their predecessors.
const RENAMED: &[(&CStr, u32)] = &[
    (c"cudaGetDeviceProperties_v2_v12000", 440),
    (c"cudaGraphAddDependencies_v2_v12030", 458),
    (c"cudaGraphAddNode_v2_v12030", 460),
    (c"cudaStreamGetCaptureInfo_v3_v12030", 461),
    (c"cudaStreamGetCaptureInfo_v3_ptsz_v12030", 462),
    (c"cudaStreamUpdateCaptureDependencies_v2_v12030", 463),
    (c"cudaStreamUpdateCaptureDependencies_v2_ptsz_v12030", 464),
    (c"cudaEventElapsedTime_v2_v12080", 486),
];

/// Name and number of functions of the driver.
const DRIVER: &[(&CStr, u32)] = &[
    (c"cuInit", 1),
    (c"cuDeviceGet", 3),
    (c"cuDeviceGetCount", 4),
    (c"cuDeviceGetAttribute", 9),
    (c"cuCtxCreate", 10),
    (c"cuCtxDestroy", 11),
    (c"cuCtxGetDevice", 16),
    (c"cuCtxSynchronize", 17),
    (c"cuMemGetAddressRange", 35),
    (c"cuMemFreeHost", 38),
    (c"cuMemHostAlloc", 39),
    (c"cuMemcpyHtoD", 43),
    (c"cuMemcpyDtoH", 45),
    (c"cuMemcpyDtoD", 47),
    (c"cuMemcpyHtoDAsync", 60),
    (c"cuMemcpyDtoHAsync", 62),
    (c"cuMemcpyDtoDAsync", 64),
    (c"cuMemcpy2DAsync", 68),
    (c"cuEventCreate", 118),
    (c"cuEventRecord", 119),
    (c"cuEventQuery", 120),
    (c"cuEventSynchronize", 121),
    (c"cuStreamCreate", 124),
    (c"cuStreamQuery", 125),
    (c"cuStreamSynchronize", 126),
    (c"cuMemsetD8Async", 216),
    (c"cuMemsetD16Async", 218),
    (c"cuMemsetD32Async", 220),
    (c"cuMemAlloc_v2", 243),
    (c"cuMemFree_v2", 245),
    (c"cuMemsetD8_v2", 249),
    (c"cuMemsetD16_v2", 250),
    (c"cuMemsetD32_v2", 251),
    (c"cuMemcpyHtoD_v2", 276),
    (c"cuMemcpyHtoDAsync_v2", 277),
    (c"cuMemcpyDtoH_v2", 278),
    (c"cuMemcpyDtoHAsync_v2", 279),
    (c"cuMemcpyDtoD_v2", 280),
    (c"cuMemcpyDtoDAsync_v2", 281),
    (c"cuMemcpy2DAsync_v2", 289),
    (c"cuStreamWaitEvent", 295),
    (c"cuCtxSetCurrent", 303),
    (c"cuCtxGetCurrent", 304),
    (c"cuMemcpy", 305),
    (c"cuMemcpyAsync", 306),
    (c"cuLaunchKernel", 307),
    (c"cuPointerGetAttribute", 310),
    (c"cuMemcpyPeer", 318),
    (c"cuMemcpyPeerAsync", 319),
    (c"cuEventDestroy_v2", 325),
    (c"cuStreamDestroy_v2", 326),
    (c"cuStreamCreateWithPriority", 367),
    (c"cuPointerSetAttribute", 378),
    (c"cuDevicePrimaryCtxRetain", 386),
    (c"cuDevicePrimaryCtxRelease", 387),
    (c"cuMemcpyHtoD_v2_ptds", 397),
    (c"cuMemcpyDtoH_v2_ptds", 398),
    (c"cuMemcpyDtoD_v2_ptds", 399),
    (c"cuMemcpy_ptds", 408),
    (c"cuMemcpyPeer_ptds", 409),
    (c"cuMemsetD8_v2_ptds", 411),
    (c"cuMemsetD16_v2_ptds", 412),
    (c"cuMemsetD32_v2_ptds", 413),
    (c"cuMemcpyAsync_ptsz", 418),
    (c"cuMemcpyHtoDAsync_v2_ptsz", 421),
    (c"cuMemcpyDtoHAsync_v2_ptsz", 422),
    (c"cuMemcpyDtoDAsync_v2_ptsz", 423),
    (c"cuMemcpy2DAsync_v2_ptsz", 424),
    (c"cuMemcpyPeerAsync_ptsz", 426),
    (c"cuMemsetD8Async_ptsz", 428),
    (c"cuMemsetD16Async_ptsz", 429),
    (c"cuMemsetD32Async_ptsz", 430),
    (c"cuStreamWaitEvent_ptsz", 436),
    (c"cuStreamQuery_ptsz", 439),
    (c"cuStreamSynchronize_ptsz", 440),
    (c"cuEventRecord_ptsz", 441),
    (c"cuLaunchKernel_ptsz", 442),
    (c"cuStreamWaitValue32", 458),
    (c"cuStreamWaitValue32_ptsz", 459),
    (c"cuStreamWriteValue32", 460),
    (c"cuStreamWriteValue32_ptsz", 461),
    (c"cuStreamBatchMemOp", 462),
    (c"cuStreamBatchMemOp_ptsz", 463),
    (c"cuStreamWaitValue64", 473),
    (c"cuStreamWaitValue64_ptsz", 474),
    (c"cuStreamWriteValue64", 475),
    (c"cuStreamWriteValue64_ptsz", 476),
    (c"cuLaunchCooperativeKernel", 477),
    (c"cuLaunchCooperativeKernel_ptsz", 478),
    (c"cuDeviceGetUuid", 482),
    (c"cuStreamBeginCapture", 495),
    (c"cuStreamBeginCapture_ptsz", 496),
    (c"cuStreamEndCapture", 497),
    (c"cuStreamEndCapture_ptsz", 498),
    (c"cuStreamIsCapturing", 499),
    (c"cuStreamIsCapturing_ptsz", 500),
    (c"cuGraphCreate", 501),
    (c"cuGraphAddKernelNode", 502),
    (c"cuGraphAddMemcpyNode", 504),
    (c"cuGraphAddMemsetNode", 506),
    (c"cuGraphInstantiate", 513),
    (c"cuGraphLaunch", 514),
    (c"cuGraphLaunch_ptsz", 515),
    (c"cuGraphExecDestroy", 516),
    (c"cuGraphDestroy", 517),
    (c"cuGraphClone", 523),
    (c"cuGraphAddEmptyNode", 526),
    (c"cuLaunchHostFunc", 527),
    (c"cuLaunchHostFunc_ptsz", 528),
    (c"cuGraphAddHostNode", 530),
    (c"cuStreamBeginCapture_v2", 539),
    (c"cuStreamBeginCapture_v2_ptsz", 540),
    (c"cuThreadExchangeStreamCaptureMode", 541),
    (c"cuMemAddressReserve", 547),
    (c"cuMemAddressFree", 548),
    (c"cuMemCreate", 549),
    (c"cuMemRelease", 550),
    (c"cuMemMap", 551),
    (c"cuMemUnmap", 552),
    (c"cuMemSetAccess", 553),
    (c"cuMemExportToShareableHandle", 554),
    (c"cuMemImportFromShareableHandle", 555),
    (c"cuMemGetAllocationGranularity", 556),
    (c"cuMemGetAllocationPropertiesFromHandle", 557),
    (c"cuGraphExecUpdate", 561),
    (c"cuMemRetainAllocationHandle", 565),
    (c"cuGraphUpload", 580),
    (c"cuGraphUpload_ptsz", 581),
    (c"cuEventRecordWithFlags", 587),
    (c"cuEventRecordWithFlags_ptsz", 588),
    (c"cuGraphAddEventRecordNode", 589),
    (c"cuGraphAddEventWaitNode", 590),
    (c"cuMemAllocAsync", 598),
    (c"cuMemAllocAsync_ptsz", 599),
    (c"cuMemFreeAsync", 600),
    (c"cuMemFreeAsync_ptsz", 601),
    (c"cuMemAllocFromPoolAsync", 611),
    (c"cuMemAllocFromPoolAsync_ptsz", 612),
    (c"cuStreamUpdateCaptureDependencies", 631),
    (c"cuStreamUpdateCaptureDependencies_ptsz", 632),
    (c"cuUserObjectCreate", 633),
    (c"cuUserObjectRelease", 635),
    (c"cuGraphRetainUserObject", 636),
    (c"cuGraphInstantiateWithFlags", 643),
    (c"cuLaunchKernelEx", 652),
    (c"cuLaunchKernelEx_ptsz", 653),
    (c"cuGraphInstantiateWithParams", 656),
    (c"cuGraphInstantiateWithParams_ptsz", 657),
    (c"cuStreamWaitValue32_v2", 659),
    (c"cuStreamWaitValue32_v2_ptsz", 660),
    (c"cuStreamWaitValue64_v2", 661),
    (c"cuStreamWaitValue64_v2_ptsz", 662),
    (c"cuStreamWriteValue32_v2", 663),
    (c"cuStreamWriteValue32_v2_ptsz", 664),
    (c"cuStreamWriteValue64_v2", 665),
    (c"cuStreamWriteValue64_v2_ptsz", 666),
    (c"cuStreamBatchMemOp_v2", 667),
    (c"cuStreamBatchMemOp_v2_ptsz", 668),
    (c"cuGraphAddKernelNode_v2", 689),
    (c"cuGraphExecUpdate_v2", 696),
    (c"cuGraphAddNode", 712),
    (c"cuGraphAddNode_v2", 723),
    (c"cuStreamUpdateCaptureDependencies_v2", 731),
    (c"cuStreamUpdateCaptureDependencies_v2_ptsz", 732),
    (c"cuMemcpyBatchAsync", 776),
    (c"cuMemcpyBatchAsync_ptsz", 777),
    (c"cuMemcpyBatchAsync_v2", 796),
    (c"cuMemcpyBatchAsync_v2_ptsz", 797),
    (c"cuLaunchHostFunc_v2", 831),
    (c"cuLaunchHostFunc_v2_ptsz", 832),
];

/// Name, CUPTI's name, and number of functions of the runtime.
const RUNTIME: &[(&CStr, &CStr, u32)] = &[
    (c"cudaDriverGetVersion", c"cudaDriverGetVersion_v3020", 1),
    (c"cudaRuntimeGetVersion", c"cudaRuntimeGetVersion_v3020", 2),
    (c"cudaGetDeviceCount", c"cudaGetDeviceCount_v3020", 3),
    (c"cudaGetDeviceProperties", c"cudaGetDeviceProperties_v3020", 4),
    (c"cudaFuncGetAttributes", c"cudaFuncGetAttributes_v3020", 15),
    (c"cudaSetDevice", c"cudaSetDevice_v3020", 16),
    (c"cudaGetDevice", c"cudaGetDevice_v3020", 17),
    (c"cudaMalloc", c"cudaMalloc_v3020", 20),
    (c"cudaFree", c"cudaFree_v3020", 22),
    (c"cudaMallocHost", c"cudaMallocHost_v3020", 25),
    (c"cudaFreeHost", c"cudaFreeHost_v3020", 26),
    (c"cudaHostAlloc", c"cudaHostAlloc_v3020", 27),
    (c"cudaHostGetDevicePointer", c"cudaHostGetDevicePointer_v3020", 28),
    (c"cudaMemGetInfo", c"cudaMemGetInfo_v3020", 30),
    (c"cudaMemcpy", c"cudaMemcpy_v3020", 31),
    (c"cudaMemcpyAsync", c"cudaMemcpyAsync_v3020", 41),
    (c"cudaMemcpy2DAsync", c"cudaMemcpy2DAsync_v3020", 44),
    (c"cudaMemset", c"cudaMemset_v3020", 49),
    (c"cudaMemsetAsync", c"cudaMemsetAsync_v3020", 51),
    (c"cudaStreamCreate", c"cudaStreamCreate_v3020", 129),
    (c"cudaStreamDestroy", c"cudaStreamDestroy_v3020", 130),
    (c"cudaStreamSynchronize", c"cudaStreamSynchronize_v3020", 131),
    (c"cudaStreamQuery", c"cudaStreamQuery_v3020", 132),
    (c"cudaEventCreate", c"cudaEventCreate_v3020", 133),
    (c"cudaEventCreateWithFlags", c"cudaEventCreateWithFlags_v3020", 134),
    (c"cudaEventRecord", c"cudaEventRecord_v3020", 135),
    (c"cudaEventDestroy", c"cudaEventDestroy_v3020", 136),
    (c"cudaEventSynchronize", c"cudaEventSynchronize_v3020", 137),
    (c"cudaEventQuery", c"cudaEventQuery_v3020", 138),
    (c"cudaEventElapsedTime", c"cudaEventElapsedTime_v3020", 139),
    (c"cudaStreamWaitEvent", c"cudaStreamWaitEvent_v3020", 147),
    (c"cudaPointerGetAttributes", c"cudaPointerGetAttributes_v4000", 151),
    (c"cudaHostRegister", c"cudaHostRegister_v4000", 152),
    (c"cudaHostUnregister", c"cudaHostUnregister_v4000", 153),
    (c"cudaDeviceCanAccessPeer", c"cudaDeviceCanAccessPeer_v4000", 154),
    (c"cudaDeviceEnablePeerAccess", c"cudaDeviceEnablePeerAccess_v4000", 155),
    (c"cudaDeviceDisablePeerAccess", c"cudaDeviceDisablePeerAccess_v4000", 156),
    (c"cudaMemcpyPeer", c"cudaMemcpyPeer_v4000", 160),
    (c"cudaMemcpyPeerAsync", c"cudaMemcpyPeerAsync_v4000", 161),
    (c"cudaDeviceSynchronize", c"cudaDeviceSynchronize_v3020", 165),
    (c"cudaDeviceSetLimit", c"cudaDeviceSetLimit_v3020", 167),
    (c"cudaDeviceGetByPCIBusId", c"cudaDeviceGetByPCIBusId_v4010", 173),
    (c"cudaDeviceGetPCIBusId", c"cudaDeviceGetPCIBusId_v4010", 174),
    (c"cudaIpcGetMemHandle", c"cudaIpcGetMemHandle_v4010", 178),
    (c"cudaIpcOpenMemHandle", c"cudaIpcOpenMemHandle_v4010", 179),
    (c"cudaIpcCloseMemHandle", c"cudaIpcCloseMemHandle_v4010", 180),
    (c"cudaStreamCreateWithFlags", c"cudaStreamCreateWithFlags_v5000", 198),
    (c"cudaDeviceGetAttribute", c"cudaDeviceGetAttribute_v5000", 200),
    (c"cudaStreamDestroy", c"cudaStreamDestroy_v5050", 201),
    (c"cudaStreamCreateWithPriority", c"cudaStreamCreateWithPriority_v5050", 202),
    (c"cudaStreamGetPriority", c"cudaStreamGetPriority_v5050", 203),
    (c"cudaLaunchKernel", c"cudaLaunchKernel_v7000", 211),
    (c"cudaLaunchKernel_ptsz", c"cudaLaunchKernel_ptsz_v7000", 214),
    (c"cudaMemcpy_ptds", c"cudaMemcpy_ptds_v7000", 215),
    (c"cudaMemcpyAsync_ptsz", c"cudaMemcpyAsync_ptsz_v7000", 225),
    (c"cudaMemcpy2DAsync_ptsz", c"cudaMemcpy2DAsync_ptsz_v7000", 228),
    (c"cudaMemset_ptds", c"cudaMemset_ptds_v7000", 233),
    (c"cudaMemsetAsync_ptsz", c"cudaMemsetAsync_ptsz_v7000", 235),
    (c"cudaStreamGetPriority_ptsz", c"cudaStreamGetPriority_ptsz_v7000", 237),
    (c"cudaStreamSynchronize_ptsz", c"cudaStreamSynchronize_ptsz_v7000", 239),
    (c"cudaStreamQuery_ptsz", c"cudaStreamQuery_ptsz_v7000", 240),
    (c"cudaEventRecord_ptsz", c"cudaEventRecord_ptsz_v7000", 242),
    (c"cudaStreamWaitEvent_ptsz", c"cudaStreamWaitEvent_ptsz_v7000", 247),
    (c"cudaLaunchCooperativeKernel", c"cudaLaunchCooperativeKernel_v9000", 269),
    (c"cudaLaunchCooperativeKernel_ptsz", c"cudaLaunchCooperativeKernel_ptsz_v9000", 270),
    (c"cudaFuncSetAttribute", c"cudaFuncSetAttribute_v9000", 273),
    (c"cudaLaunchHostFunc", c"cudaLaunchHostFunc_v10000", 284),
    (c"cudaLaunchHostFunc_ptsz", c"cudaLaunchHostFunc_ptsz_v10000", 285),
    (c"cudaGraphCreate", c"cudaGraphCreate_v10000", 286),
    (c"cudaGraphAddKernelNode", c"cudaGraphAddKernelNode_v10000", 289),
    (c"cudaGraphAddMemcpyNode", c"cudaGraphAddMemcpyNode_v10000", 290),
    (c"cudaGraphAddMemsetNode", c"cudaGraphAddMemsetNode_v10000", 293),
    (c"cudaGraphAddHostNode", c"cudaGraphAddHostNode_v10000", 296),
    (c"cudaGraphAddEmptyNode", c"cudaGraphAddEmptyNode_v10000", 300),
    (c"cudaGraphClone", c"cudaGraphClone_v10000", 301),
    (c"cudaGraphAddDependencies", c"cudaGraphAddDependencies_v10000", 307),
    (c"cudaGraphInstantiate", c"cudaGraphInstantiate_v10000", 310),
    (c"cudaGraphLaunch", c"cudaGraphLaunch_v10000", 311),
    (c"cudaGraphLaunch_ptsz", c"cudaGraphLaunch_ptsz_v10000", 312),
    (c"cudaGraphExecDestroy", c"cudaGraphExecDestroy_v10000", 313),
    (c"cudaGraphDestroy", c"cudaGraphDestroy_v10000", 314),
    (c"cudaStreamBeginCapture", c"cudaStreamBeginCapture_v10000", 315),
    (c"cudaStreamBeginCapture_ptsz", c"cudaStreamBeginCapture_ptsz_v10000", 316),
    (c"cudaStreamIsCapturing", c"cudaStreamIsCapturing_v10000", 317),
    (c"cudaStreamIsCapturing_ptsz", c"cudaStreamIsCapturing_ptsz_v10000", 318),
    (c"cudaStreamEndCapture", c"cudaStreamEndCapture_v10000", 319),
    (c"cudaStreamEndCapture_ptsz", c"cudaStreamEndCapture_ptsz_v10000", 320),
    (c"cudaGraphGetNodes", c"cudaGraphGetNodes_v10000", 322),
    (c"cudaStreamGetCaptureInfo", c"cudaStreamGetCaptureInfo_v10010", 324),
    (c"cudaStreamGetCaptureInfo_ptsz", c"cudaStreamGetCaptureInfo_ptsz_v10010", 325),
    (c"cudaThreadExchangeStreamCaptureMode", c"cudaThreadExchangeStreamCaptureMode_v10010", 327),
    (c"cudaGraphExecUpdate", c"cudaGraphExecUpdate_v10020", 335),
    (c"cudaGetFuncBySymbol", c"cudaGetFuncBySymbol_v11000", 336),
    (c"cudaGraphUpload", c"cudaGraphUpload_v10000", 348),
    (c"cudaGraphUpload_ptsz", c"cudaGraphUpload_ptsz_v10000", 349),
    (c"cudaGraphAddMemcpyNode1D", c"cudaGraphAddMemcpyNode1D_v11010", 352),
    (c"cudaGraphAddEventRecordNode", c"cudaGraphAddEventRecordNode_v11010", 362),
    (c"cudaGraphAddEventWaitNode", c"cudaGraphAddEventWaitNode_v11010", 365),
    (c"cudaEventRecordWithFlags", c"cudaEventRecordWithFlags_v11010", 370),
    (c"cudaEventRecordWithFlags_ptsz", c"cudaEventRecordWithFlags_ptsz_v11010", 371),
    (c"cudaMallocAsync", c"cudaMallocAsync_v11020", 373),
    (c"cudaMallocAsync_ptsz", c"cudaMallocAsync_ptsz_v11020", 374),
    (c"cudaFreeAsync", c"cudaFreeAsync_v11020", 375),
    (c"cudaFreeAsync_ptsz", c"cudaFreeAsync_ptsz_v11020", 376),
    (c"cudaMemPoolSetAttribute", c"cudaMemPoolSetAttribute_v11020", 378),
    (c"cudaMemPoolSetAccess", c"cudaMemPoolSetAccess_v11020", 380),
    (c"cudaMemPoolCreate", c"cudaMemPoolCreate_v11020", 383),
    (c"cudaMemPoolDestroy", c"cudaMemPoolDestroy_v11020", 384),
    (c"cudaMallocFromPoolAsync", c"cudaMallocFromPoolAsync_v11020", 391),
    (c"cudaMallocFromPoolAsync_ptsz", c"cudaMallocFromPoolAsync_ptsz_v11020", 392),
    (c"cudaGetDriverEntryPoint", c"cudaGetDriverEntryPoint_v11030", 406),
    (c"cudaGetDriverEntryPoint_ptsz", c"cudaGetDriverEntryPoint_ptsz_v11030", 407),
    (c"cudaStreamGetCaptureInfo_v2", c"cudaStreamGetCaptureInfo_v2_v11030", 409),
    (c"cudaStreamGetCaptureInfo_v2_ptsz", c"cudaStreamGetCaptureInfo_v2_ptsz_v11030", 410),
    (c"cudaStreamUpdateCaptureDependencies", c"cudaStreamUpdateCaptureDependencies_v11030", 411),
    (c"cudaStreamUpdateCaptureDependencies_ptsz", c"cudaStreamUpdateCaptureDependencies_ptsz_v11030", 412),
    (c"cudaUserObjectCreate", c"cudaUserObjectCreate_v11030", 413),
    (c"cudaUserObjectRetain", c"cudaUserObjectRetain_v11030", 414),
    (c"cudaUserObjectRelease", c"cudaUserObjectRelease_v11030", 415),
    (c"cudaGraphRetainUserObject", c"cudaGraphRetainUserObject_v11030", 416),
    (c"cudaGraphInstantiateWithFlags", c"cudaGraphInstantiateWithFlags_v11040", 418),
    (c"cudaLaunchKernelExC", c"cudaLaunchKernelExC_v11060", 430),
    (c"cudaLaunchKernelExC_ptsz", c"cudaLaunchKernelExC_ptsz_v11060", 431),
    (c"cudaGraphInstantiateWithParams", c"cudaGraphInstantiateWithParams_v12000", 436),
    (c"cudaGraphInstantiateWithParams_ptsz", c"cudaGraphInstantiateWithParams_ptsz_v12000", 437),
    (c"cudaGetDeviceProperties", c"cudaGetDeviceProperties_v12000", 440),
    (c"cudaStreamGetId", c"cudaStreamGetId_v12000", 441),
    (c"cudaStreamGetId_ptsz", c"cudaStreamGetId_ptsz_v12000", 442),
    (c"cudaGraphInstantiate", c"cudaGraphInstantiate_v12000", 443),
    (c"cudaGraphAddNode", c"cudaGraphAddNode_v12020", 445),
    (c"cudaGraphAddDependencies", c"cudaGraphAddDependencies_v12030", 458),
    (c"cudaGraphAddNode", c"cudaGraphAddNode_v12030", 460),
    (c"cudaStreamGetCaptureInfo", c"cudaStreamGetCaptureInfo_v12030", 461),
    (c"cudaStreamGetCaptureInfo_ptsz", c"cudaStreamGetCaptureInfo_ptsz_v12030", 462),
    (c"cudaStreamUpdateCaptureDependencies", c"cudaStreamUpdateCaptureDependencies_v12030", 463),
    (c"cudaStreamUpdateCaptureDependencies_ptsz", c"cudaStreamUpdateCaptureDependencies_ptsz_v12030", 464),
    (c"cudaGetDriverEntryPointByVersion", c"cudaGetDriverEntryPointByVersion_v12050", 468),
    (c"cudaGetDriverEntryPointByVersion_ptsz", c"cudaGetDriverEntryPointByVersion_ptsz_v12050", 469),
    (c"cudaMemcpyBatchAsync", c"cudaMemcpyBatchAsync_v12080", 482),
    (c"cudaMemcpyBatchAsync_ptsz", c"cudaMemcpyBatchAsync_ptsz_v12080", 483),
    (c"cudaEventElapsedTime", c"cudaEventElapsedTime_v12080", 486),
    (c"cudaMemcpyBatchAsync", c"cudaMemcpyBatchAsync_v13000", 509),
    (c"cudaMemcpyBatchAsync_ptsz", c"cudaMemcpyBatchAsync_ptsz_v13000", 510),
    (c"cudaLaunchHostFunc_v2", c"cudaLaunchHostFunc_v2_v13020", 550),
    (c"cudaLaunchHostFunc_v2_ptsz", c"cudaLaunchHostFunc_v2_ptsz_v13020", 551),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_the_number_of_its_newest_form() {
        let id = |name, release| find(name, release).map(|function| (function.domain, function.id));
        assert_eq!(id(c"cuLaunchKernelEx", Release::V12_0), Some((domain::DRIVER, 652)));
        assert_eq!(id(c"cudaMemcpyBatchAsync", Release::V12_0), None);
        assert_eq!(id(c"cudaMemcpyBatchAsync", Release::V12_9), Some((domain::RUNTIME, 482)));
        assert_eq!(id(c"cudaMemcpyBatchAsync", Release::V13_0), Some((domain::RUNTIME, 509)));
        assert_eq!(id(c"cuMemcpyBatchAsync_v2", Release::V12_9), None);
        assert_eq!(id(c"cuMemcpyBatchAsync_v2", Release::V13_0), Some((domain::DRIVER, 796)));
        assert_eq!(name(domain::RUNTIME, 211, Release::V13_0), Some(c"cudaLaunchKernel_v7000"));
        assert_eq!(name(domain::DRIVER, 796, Release::V12_9), None);
    }
}
