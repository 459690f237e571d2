//! The CUDA runtime as libnccl calls it: the C functions that overwrite its own.
//!
//! Each function has the arguments of the CUDA function that [`table`] names it after. Its caller
//! promises what that function's documentation asks for: pointers for results are null or
//! writable, names are C strings, memory lives as long as queued work needs it. Handles are looked
//! up, so a wrong one gives an error.

mod devices;
mod graphs;
mod kernels;
mod memory;
mod streams;

use std::ffi::c_void;

use super::Error;

pub(super) use self::{devices::*, graphs::*, kernels::*, memory::*, streams::*};

type Handle = *mut c_void;
type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The functions by name. `exists` says whether the library has one of that name.
pub(super) fn table(exists: impl Fn(&str) -> bool) -> Vec<(&'static str, *const c_void)> {
    macro_rules! functions {
        ($($name:literal: $function:expr,)*) => { vec![$(($name, $function as *const c_void),)*] };
    }
    let mut table = functions! {
        "cudaDeviceCanAccessPeer": device_can_access_peer,
        "cudaDeviceDisablePeerAccess": device_disable_peer_access,
        "cudaDeviceEnablePeerAccess": device_enable_peer_access,
        "cudaDeviceGetAttribute": device_get_attribute,
        "cudaDeviceGetByPCIBusId": device_get_by_pci_bus_id,
        "cudaDeviceGetPCIBusId": device_get_pci_bus_id,
        "cudaDeviceSetLimit": device_set_limit,
        "cudaDeviceSynchronize": device_synchronize,
        "cudaDriverGetVersion": driver_get_version,
        "cudaEventCreate": event_create,
        "cudaEventCreateWithFlags": event_create_with_flags,
        "cudaEventDestroy": event_destroy,
        "cudaEventElapsedTime": event_elapsed_time,
        "cudaEventElapsedTime_v2": event_elapsed_time,
        "cudaEventQuery": event_query,
        "cudaEventRecord": event_record,
        "cudaEventRecordWithFlags": event_record_with_flags,
        "cudaEventSynchronize": event_synchronize,
        "cudaFree": free,
        "cudaFreeAsync": free_async,
        "cudaFreeHost": free_host,
        "cudaFuncGetAttributes": func_get_attributes,
        "cudaFuncSetAttribute": func_set_attribute,
        "cudaGetDevice": get_device,
        "cudaGetDeviceCount": get_device_count,
        "cudaGetDeviceProperties": get_device_properties,
        "cudaGetDeviceProperties_v2": get_device_properties,
        "cudaGetDriverEntryPoint": get_driver_entry_point,
        "cudaGetDriverEntryPointByVersion": get_driver_entry_point_by_version,
        "cudaGetErrorName": get_error_name,
        "cudaGetErrorString": get_error_string,
        "cudaGetFuncBySymbol": get_func_by_symbol,
        "cudaGetLastError": get_last_error,
        "cudaGraphAddDependencies_v2": graph_add_dependencies_with_edges,
        "cudaGraphAddEventRecordNode": graph_add_event_record_node,
        "cudaGraphAddEventWaitNode": graph_add_event_wait_node,
        "cudaGraphAddHostNode": graph_add_host_node,
        "cudaGraphAddKernelNode": graph_add_kernel_node,
        "cudaGraphDestroy": graph_destroy,
        "cudaGraphExecDestroy": graph_exec_destroy,
        "cudaGraphInstantiate": graph_instantiate,
        "cudaGraphLaunch": graph_launch,
        "cudaGraphRetainUserObject": graph_retain_user_object,
        "cudaHostAlloc": host_alloc,
        "cudaHostGetDevicePointer": host_get_device_pointer,
        "cudaHostRegister": host_register,
        "cudaHostUnregister": host_unregister,
        "cudaIpcCloseMemHandle": ipc_close_mem_handle,
        "cudaIpcGetMemHandle": ipc_get_mem_handle,
        "cudaIpcOpenMemHandle": ipc_open_mem_handle,
        "cudaLaunchHostFunc": launch_host_func,
        "cudaLaunchKernel": launch_kernel,
        "cudaLaunchKernelExC": launch_kernel_ex,
        "cudaMalloc": malloc,
        "cudaMallocAsync": malloc_async,
        "cudaMallocFromPoolAsync": malloc_from_pool_async,
        "cudaMallocHost": malloc_host,
        "cudaMemGetInfo": mem_get_info,
        "cudaMemPoolCreate": mem_pool_create,
        "cudaMemPoolDestroy": mem_pool_destroy,
        "cudaMemPoolSetAttribute": mem_pool_set_attribute,
        "cudaMemcpy": memcpy,
        "cudaMemcpyAsync": memcpy_async,
        "cudaMemset": memset,
        "cudaMemsetAsync": memset_async,
        "cudaPeekAtLastError": peek_at_last_error,
        "cudaPointerGetAttributes": pointer_get_attributes,
        "cudaRuntimeGetVersion": driver_get_version,
        "cudaSetDevice": set_device,
        "cudaStreamBeginCapture": stream_begin_capture,
        "cudaStreamCreate": stream_create,
        "cudaStreamCreateWithFlags": stream_create_with_flags,
        "cudaStreamCreateWithPriority": stream_create_with_priority,
        "cudaStreamDestroy": stream_destroy,
        "cudaStreamEndCapture": stream_end_capture,
        "cudaStreamGetCaptureInfo_v2": stream_get_capture_info_without_edges,
        "cudaStreamGetCaptureInfo_v3": stream_get_capture_info,
        "cudaStreamGetId": stream_get_id,
        "cudaStreamIsCapturing": stream_is_capturing,
        "cudaStreamQuery": stream_query,
        "cudaStreamSynchronize": stream_synchronize,
        "cudaStreamUpdateCaptureDependencies_v2": stream_update_capture_dependencies_with_edges,
        "cudaStreamWaitEvent": stream_wait_event,
        "cudaThreadExchangeStreamCaptureMode": thread_exchange_stream_capture_mode,
        "cudaUserObjectCreate": user_object_create,
        "cudaUserObjectRelease": user_object_release,
        "cudaUserObjectRetain": user_object_retain,
    };
    // CUDA 13 gave the plain names of these functions the arguments of their second versions.
    table.extend(if exists("cudaGetDeviceProperties_v2") {
        functions! {
            "cudaGraphAddDependencies": graph_add_dependencies,
            "cudaMemcpyBatchAsync": memcpy_batch_async_12,
            "cudaStreamGetCaptureInfo": stream_get_capture_status,
            "cudaStreamUpdateCaptureDependencies": stream_update_capture_dependencies,
        }
    } else {
        functions! {
            "cudaGraphAddDependencies": graph_add_dependencies_with_edges,
            "cudaMemcpyBatchAsync": memcpy_batch_async_13,
            "cudaStreamGetCaptureInfo": stream_get_capture_info,
            "cudaStreamUpdateCaptureDependencies": stream_update_capture_dependencies_with_edges,
        }
    });
    table
}

/// Writes a result.
///
/// # Safety
///
/// `out` is null or writable.
pub(super) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Error> {
    if out.is_null() {
        return Err(Error::InvalidValue);
    }
    // SAFETY: writable, as the caller promises; C callers need not align what they have.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Writes a result that the caller may not want.
///
/// # Safety
///
/// `out` is null or writable.
unsafe fn put_if_wanted<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: writable, as the caller promises.
        unsafe { out.write_unaligned(value) };
    }
}

/// The elements that C passes as a pointer and a count.
///
/// # Safety
///
/// If the pointer is not null, there are this many elements, for as long as the result is used.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(first, count) }
}
