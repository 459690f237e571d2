//! `CUptiResult`: plain numbers, the same in all releases.

use std::ffi::CStr;

use crate::release::Release;

/// A result code.
pub type CuptiResult = u32;

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_PARAMETER: u32 = 1;
pub(crate) const INVALID_OPERATION: u32 = 7;
pub(crate) const PARAMETER_SIZE_NOT_SUFFICIENT: u32 = 10;
pub(crate) const MAX_LIMIT_REACHED: u32 = 12;
pub(crate) const NOT_COMPATIBLE: u32 = 14;
pub(crate) const NOT_INITIALIZED: u32 = 15;
pub(crate) const QUEUE_EMPTY: u32 = 18;
pub(crate) const INVALID_KIND: u32 = 21;
pub(crate) const NOT_SUPPORTED: u32 = 27;
pub(crate) const MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: u32 = 39;
pub(crate) const UNKNOWN: u32 = 999;
/// The codes below this one have names, and UNKNOWN has.
pub(crate) const NAMED: u32 = 48;

/// The name of a code, if it has one in the release. Two codes that the headers define have none
/// in any release.
pub(crate) fn name(code: u32, release: Release) -> Option<&'static CStr> {
    const NAMES: [&CStr; NAMED as usize] = [
        c"CUPTI_SUCCESS",
        c"CUPTI_ERROR_INVALID_PARAMETER",
        c"CUPTI_ERROR_INVALID_DEVICE",
        c"CUPTI_ERROR_INVALID_CONTEXT",
        c"CUPTI_ERROR_INVALID_EVENT_DOMAIN_ID",
        c"CUPTI_ERROR_INVALID_EVENT_ID",
        c"CUPTI_ERROR_INVALID_EVENT_NAME",
        c"CUPTI_ERROR_INVALID_OPERATION",
        c"CUPTI_ERROR_OUT_OF_MEMORY",
        c"CUPTI_ERROR_HARDWARE",
        c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT",
        c"CUPTI_ERROR_API_NOT_IMPLEMENTED",
        c"CUPTI_ERROR_MAX_LIMIT_REACHED",
        c"CUPTI_ERROR_NOT_READY",
        c"CUPTI_ERROR_NOT_COMPATIBLE",
        c"CUPTI_ERROR_NOT_INITIALIZED",
        c"CUPTI_ERROR_INVALID_METRIC_ID",
        c"CUPTI_ERROR_INVALID_METRIC_NAME",
        c"CUPTI_ERROR_QUEUE_EMPTY",
        c"CUPTI_ERROR_INVALID_HANDLE",
        c"CUPTI_ERROR_INVALID_STREAM",
        c"CUPTI_ERROR_INVALID_KIND",
        c"CUPTI_ERROR_INVALID_EVENT_VALUE",
        c"CUPTI_ERROR_DISABLED",
        c"CUPTI_ERROR_INVALID_MODULE",
        c"CUPTI_ERROR_INVALID_METRIC_VALUE",
        c"CUPTI_ERROR_HARDWARE_BUSY",
        c"CUPTI_ERROR_NOT_SUPPORTED",
        c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED",
        c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE",
        c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES",
        c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS",
        c"CUPTI_ERROR_CDP_TRACING_NOT_SUPPORTED",
        c"CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED",
        c"CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE",
        c"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        c"CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED",
        c"CUPTI_ERROR_OPENACC_UNDEFINED_ROUTINE",
        c"CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED",
        c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        c"CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES",
        c"CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED",
        c"CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED",
        c"CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
        c"CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED",
        c"CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED",
        c"CUPTI_ERROR_INVALID_CHIP_NAME",
        c"CUPTI_ERROR_HES_TRACE_NOT_SUPPORTED_ON_MPS",
    ];
    const NAMELESS: [u32; 2] = [36, 37];
    if !release.names_result(code) || NAMELESS.contains(&code) {
        return None;
    }
    if code == UNKNOWN { Some(c"CUPTI_ERROR_UNKNOWN") } else { NAMES.get(code as usize).copied() }
}
