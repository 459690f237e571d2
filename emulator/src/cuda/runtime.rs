//! The CUDA runtime as libnccl calls it: the C functions that are written over its own.
//!
//! Each function here has the arguments of the CUDA function that [`table`] names it after. Its caller promises what that
//! function's documentation asks for: pointers for results are null or writable, names are C strings, memory lives as long
//! as queued work needs it. Handles are looked up, so that a wrong one gives an error.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use ::observe::ResourceKind;

use super::capture::{self, Capture, Status};
use super::device::{self, MEMORY_BYTES};
use super::event::Event;
use super::graph::{Dependency, Exec, Graph, NodeOrigin, UserObject};
use super::memory::{IpcHandle, Kind};
use super::names::Name;
use super::observe::{self, call, call_of, nested_call};
use super::registry::handle;
use super::stream::{Stream, Submitted};
use super::threads::lock;
use super::work::{Action, Body, CopyPart, Kernel, Origin, Set, Source};
use super::{Arguments, Error, driver, machine};

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
    // CUDA 13 took the second version of these functions' arguments for the plain names.
    table.extend(if exists("cudaGetDeviceProperties_v2") {
        functions! {
            "cudaGraphAddDependencies": graph_add_dependencies,
            "cudaGraphInstantiate": graph_instantiate,
            "cudaMemcpyBatchAsync": memcpy_batch_async_12,
            "cudaStreamGetCaptureInfo": stream_get_capture_status,
            "cudaStreamUpdateCaptureDependencies": stream_update_capture_dependencies,
        }
    } else {
        functions! {
            "cudaGraphAddDependencies": graph_add_dependencies_with_edges,
            "cudaGraphInstantiate": graph_instantiate,
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

/// The elements that C passes as a pointer and a number.
///
/// # Safety
///
/// There are so many, if the pointer is not null, for as long as the answer is used.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(first, count) }
}

// Memory.

pub(super) unsafe extern "C" fn malloc(out: *mut *mut c_void, bytes: usize) -> c_int {
    call(c"cudaMalloc", |_| {
        device::current().context();
        let address = machine().memory.allocate(bytes, device::current().ordinal, Kind::Device)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, address) }
    })
}

unsafe extern "C" fn malloc_host(out: *mut *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the same promises.
    unsafe { host_alloc(out, bytes, 0) }
}

unsafe extern "C" fn host_alloc(out: *mut *mut c_void, bytes: usize, _flags: u32) -> c_int {
    call(c"cudaHostAlloc", |_| {
        device::current().context();
        let address = machine().memory.allocate(bytes, device::current().ordinal, Kind::Host)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, address) }
    })
}

pub(super) unsafe extern "C" fn free(address: *mut c_void) -> c_int {
    call(c"cudaFree", |_| {
        device::current().context();
        machine().memory.free(address, |kind| kind == Kind::Device)
    })
}

unsafe extern "C" fn free_host(address: *mut c_void) -> c_int {
    call(c"cudaFreeHost", |_| machine().memory.free(address, |kind| kind == Kind::Host))
}

unsafe extern "C" fn malloc_async(out: *mut *mut c_void, bytes: usize, stream: Handle) -> c_int {
    call(c"cudaMallocAsync", |_| {
        // The memory is there at once, which is no later than CUDA promises. In a capture it is made once, not
        // at each replay.
        let stream = device::stream(stream)?;
        let address = machine().memory.allocate(bytes, stream.device, Kind::Device)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, address) }
    })
}

unsafe extern "C" fn malloc_from_pool_async(
    out: *mut *mut c_void,
    bytes: usize,
    _pool: Handle,
    stream: Handle,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { malloc_async(out, bytes, stream) }
}

unsafe extern "C" fn free_async(address: *mut c_void, stream: Handle) -> c_int {
    call(c"cudaFreeAsync", |origin| {
        if machine().memory.find(address).is_none() {
            return Err(Error::InvalidValue);
        }
        device::stream(stream)?.submit(Action::Free(address as usize), origin).map(|_| ())
    })
}

unsafe extern "C" fn mem_pool_create(out: *mut Handle, _properties: *const c_void) -> c_int {
    // Every pool is all memory, so nothing needs to be known of it.
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaMemPoolCreate", |_| unsafe { put(out, 1 as Handle) })
}

unsafe extern "C" fn mem_pool_destroy(_pool: Handle) -> c_int {
    call(c"cudaMemPoolDestroy", |_| Ok(()))
}

unsafe extern "C" fn mem_pool_set_attribute(_pool: Handle, _attribute: c_int, _value: *mut c_void) -> c_int {
    call(c"cudaMemPoolSetAttribute", |_| Ok(()))
}

unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> c_int {
    call(c"cudaMemGetInfo", |_| {
        // SAFETY: CUDA's caller promises places for the results.
        unsafe {
            put(free, MEMORY_BYTES - (1 << 30))?;
            put(total, MEMORY_BYTES)
        }
    })
}

unsafe extern "C" fn host_register(address: *mut c_void, bytes: usize, _flags: u32) -> c_int {
    call(c"cudaHostRegister", |_| machine().memory.register(address, bytes, device::current().ordinal))
}

unsafe extern "C" fn host_unregister(address: *mut c_void) -> c_int {
    call(c"cudaHostUnregister", |_| machine().memory.unregister(address))
}

unsafe extern "C" fn host_get_device_pointer(out: *mut *mut c_void, address: *mut c_void, _flags: u32) -> c_int {
    call(c"cudaHostGetDevicePointer", |_| match machine().memory.find(address) {
        // SAFETY: CUDA's caller promises a place for the result.
        Some(range) if range.kind != Kind::Device => unsafe { put(out, address) },
        _ => Err(Error::InvalidValue),
    })
}

/// `cudaPointerAttributes`, without the part at its end that CUDA leaves unused.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
}

unsafe extern "C" fn pointer_get_attributes(out: *mut PointerAttributes, address: *const c_void) -> c_int {
    call(c"cudaPointerGetAttributes", |_| {
        let null = std::ptr::null();
        // The kinds are 0 unregistered, 1 host, 2 device.
        let attributes = match machine().memory.find(address) {
            None => PointerAttributes { kind: 0, device: -2, device_pointer: null, host_pointer: address },
            Some(range) => {
                let on_device = range.kind == Kind::Device;
                PointerAttributes {
                    kind: if on_device { 2 } else { 1 },
                    device: range.device as c_int,
                    device_pointer: address,
                    host_pointer: if on_device { null } else { address },
                }
            }
        };
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, attributes) }
    })
}

unsafe extern "C" fn ipc_get_mem_handle(out: *mut IpcHandle, address: *const c_void) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaIpcGetMemHandle", |_| unsafe { put(out, machine().memory.share(address)?) })
}

unsafe extern "C" fn ipc_open_mem_handle(out: *mut *mut c_void, handle: IpcHandle, _flags: u32) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaIpcOpenMemHandle", |_| unsafe { put(out, machine().memory.open(&handle)?) })
}

unsafe extern "C" fn ipc_close_mem_handle(address: *mut c_void) -> c_int {
    call(c"cudaIpcCloseMemHandle", |_| machine().memory.free(address, |kind| kind == Kind::Device))
}

// Copies.

#[repr(C)]
struct MemcpyParameters {
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: Handle,
}

/// `cudaMemcpyKind`, of which 4 means that the addresses say it; they always do.
const KINDS: std::ops::RangeInclusive<c_int> = 0..=4;

unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) -> c_int {
    let parameters = MemcpyParameters { to, from, bytes, kind, stream: std::ptr::null_mut() };
    call_of(c"cudaMemcpy", None, (&raw const parameters).cast(), |origin| {
        let stream = device::stream(std::ptr::null_mut())?;
        // SAFETY: CUDA's caller promises the ranges; the copy is made before the call returns.
        unsafe { copy(&stream, &[(to, from, bytes)], kind, origin)? };
        stream.drain();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: Handle,
) -> c_int {
    let parameters = MemcpyParameters { to, from, bytes, kind, stream };
    call_of(c"cudaMemcpyAsync", None, (&raw const parameters).cast(), |origin| {
        // SAFETY: CUDA's caller promises the ranges.
        unsafe { copy(&device::stream(stream)?, &[(to, from, bytes)], kind, origin) }
    })
}

/// As CUDA does it: pageable memory of the host is read before the call returns, because the caller may have it on its stack,
/// and it has been written when the call returns. A captured copy does neither.
///
/// # Safety
///
/// The ranges exist until the copies have been made.
unsafe fn copy(
    stream: &Arc<Stream>,
    parts: &[(*mut c_void, *const c_void, usize)],
    kind: c_int,
    origin: &Origin,
) -> Result<(), Error> {
    if !KINDS.contains(&kind) {
        return Err(Error::InvalidMemcpyDirection);
    }
    let capturing = stream.capture_info(|_| ()).0 != Status::None;
    let pageable = |address: *const c_void| !capturing && machine().memory.find(address).is_none();
    let mut written = false;
    let mut copies = Vec::with_capacity(parts.len());
    for &(to, from, bytes) in parts.iter().filter(|(_, _, bytes)| *bytes > 0) {
        if to.is_null() || from.is_null() {
            return Err(Error::InvalidValue);
        }
        let from = if pageable(from) {
            // SAFETY: the caller promises the range.
            Source::Staged(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.into())
        } else {
            Source::Address(from as usize)
        };
        written |= pageable(to);
        copies.push(CopyPart { to: to as usize, from, bytes });
    }
    if copies.is_empty() {
        return Ok(());
    }
    if let Submitted::Queued(ticket) = stream.submit(Action::Copy(copies), origin)?
        && written
    {
        stream.wait_for(ticket);
    }
    Ok(())
}

unsafe extern "C" fn memcpy_batch_async_12(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    _attributes: *mut c_void,
    _indices: *mut usize,
    _attribute_count: usize,
    _fail_index: *mut usize,
    stream: Handle,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { memcpy_batch(c"cuMemcpyBatchAsync", to, from, bytes, count, stream) }
}

unsafe extern "C" fn memcpy_batch_async_13(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    _attributes: *mut c_void,
    _indices: *mut usize,
    _attribute_count: usize,
    stream: Handle,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { memcpy_batch(c"cuMemcpyBatchAsync_v2", to, from, bytes, count, stream) }
}

unsafe fn memcpy_batch(
    driver_function: &'static CStr,
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    stream: Handle,
) -> c_int {
    call(c"cudaMemcpyBatchAsync", |origin| {
        nested_call(driver_function, None, std::ptr::null(), origin, || {
            // SAFETY: CUDA's caller promises arrays of this length.
            let (to, from, bytes) = unsafe { (slice(to, count), slice(from, count), slice(bytes, count)) };
            if to.is_empty() || from.is_empty() || bytes.is_empty() {
                return Err(Error::InvalidValue);
            }
            let parts: Vec<_> =
                to.iter().zip(from).zip(bytes).map(|((to, from), bytes)| (*to, *from, *bytes)).collect();
            // SAFETY: CUDA's caller promises the ranges.
            unsafe { copy(&device::stream(stream)?, &parts, 4, origin) }
        })
    })
}

#[repr(C)]
struct MemsetParameters {
    at: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: Handle,
}

unsafe extern "C" fn memset(at: *mut c_void, value: c_int, bytes: usize) -> c_int {
    let parameters = MemsetParameters { at, value, bytes, stream: std::ptr::null_mut() };
    call_of(c"cudaMemset", None, (&raw const parameters).cast(), |origin| {
        let stream = device::stream(std::ptr::null_mut())?;
        set(&stream, at, value, bytes, origin)?;
        stream.drain();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn memset_async(at: *mut c_void, value: c_int, bytes: usize, stream: Handle) -> c_int {
    let parameters = MemsetParameters { at, value, bytes, stream };
    call_of(c"cudaMemsetAsync", None, (&raw const parameters).cast(), |origin| {
        set(&device::stream(stream)?, at, value, bytes, origin)
    })
}

fn set(stream: &Arc<Stream>, at: *mut c_void, value: c_int, bytes: usize, origin: &Origin) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    if at.is_null() {
        return Err(Error::InvalidValue);
    }
    stream.submit(Action::Set(Set { at: at as usize, byte: value as u8, bytes }), origin).map(|_| ())
}

// Streams.

unsafe extern "C" fn stream_create(out: *mut Handle) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreate", out) }
}

pub(super) unsafe extern "C" fn stream_create_with_flags(out: *mut Handle, _flags: u32) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreateWithFlags", out) }
}

unsafe extern "C" fn stream_create_with_priority(out: *mut Handle, _flags: u32, _priority: c_int) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreateWithPriority", out) }
}

unsafe fn create_stream(function: &'static CStr, out: *mut Handle) -> c_int {
    call(function, |_| {
        let stream = device::current().create_stream();
        machine().streams.insert(stream.clone());
        observe::stream_resource(ResourceKind::StreamCreated, &stream);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, handle(&stream)) }
    })
}

pub(super) unsafe extern "C" fn stream_destroy(stream: Handle) -> c_int {
    call(c"cudaStreamDestroy", |_| {
        let stream = machine().streams.remove(stream)?;
        observe::stream_resource(ResourceKind::StreamDestroyed, &stream);
        stream.destroy();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn stream_synchronize(stream: Handle) -> c_int {
    call(c"cudaStreamSynchronize", |_| device::stream(stream)?.synchronize())
}

pub(super) unsafe extern "C" fn stream_query(stream: Handle) -> c_int {
    call(c"cudaStreamQuery", |_| if device::stream(stream)?.query()? { Ok(()) } else { Err(Error::NotReady) })
}

unsafe extern "C" fn stream_get_id(stream: Handle, out: *mut u64) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaStreamGetId", |_| unsafe { put(out, device::stream(stream)?.number) })
}

pub(super) unsafe extern "C" fn stream_wait_event(stream: Handle, event: Handle, flags: u32) -> c_int {
    call(c"cudaStreamWaitEvent", |_| capture::wait(&device::stream(stream)?, &machine().events.get(event)?, flags))
}

unsafe extern "C" fn launch_host_func(stream: Handle, function: Option<HostFunction>, data: *mut c_void) -> c_int {
    call(c"cudaLaunchHostFunc", |origin| {
        let function = function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: data as usize };
        device::stream(stream)?.submit(action, origin).map(|_| ())
    })
}

// Events.

pub(super) unsafe extern "C" fn event_create(out: *mut Handle) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_event(c"cudaEventCreate", out, 0) }
}

unsafe extern "C" fn event_create_with_flags(out: *mut Handle, flags: u32) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_event(c"cudaEventCreateWithFlags", out, flags) }
}

unsafe fn create_event(function: &'static CStr, out: *mut Handle, flags: u32) -> c_int {
    call(function, |_| {
        device::current().context();
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, machine().events.insert(Arc::new(Event::new(flags)))) }
    })
}

pub(super) unsafe extern "C" fn event_destroy(event: Handle) -> c_int {
    // Whatever is queued holds the event itself.
    call(c"cudaEventDestroy", |_| machine().events.remove(event).map(|_| ()))
}

pub(super) unsafe extern "C" fn event_record(event: Handle, stream: Handle) -> c_int {
    call(c"cudaEventRecord", |_| capture::record(&device::stream(stream)?, &machine().events.get(event)?, 0))
}

unsafe extern "C" fn event_record_with_flags(event: Handle, stream: Handle, flags: u32) -> c_int {
    call(c"cudaEventRecordWithFlags", |_| {
        capture::record(&device::stream(stream)?, &machine().events.get(event)?, flags)
    })
}

pub(super) unsafe extern "C" fn event_query(event: Handle) -> c_int {
    call(c"cudaEventQuery", |_| if machine().events.get(event)?.query()? { Ok(()) } else { Err(Error::NotReady) })
}

pub(super) unsafe extern "C" fn event_synchronize(event: Handle) -> c_int {
    call(c"cudaEventSynchronize", |_| machine().events.get(event)?.synchronize())
}

pub(super) unsafe extern "C" fn event_elapsed_time(out: *mut f32, earlier: Handle, later: Handle) -> c_int {
    call(c"cudaEventElapsedTime", |_| {
        let elapsed = machine().events.get(later)?.elapsed(&*machine().events.get(earlier)?)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, (elapsed as f64 / 1e6) as f32) }
    })
}

// Captures and graphs.

/// `cudaGraphEdgeData`. Of its ports only one is known here: the beginning of the kernel that an edge leaves.
type Edge = [u8; 8];

/// `cudaGraphKernelNodePortLaunchCompletion`, in the first byte of an edge, and `cudaGraphDependencyTypeProgrammatic` in
/// the third.
const AT_START: Edge = [2, 0, 1, 0, 0, 0, 0, 0];

/// The programmatic port (1) is taken for the whole kernel, which is no earlier than it asks for.
fn at_start(edge: &Edge) -> bool {
    edge[0] == AT_START[0]
}

pub(super) unsafe extern "C" fn stream_begin_capture(stream: Handle, mode: c_int) -> c_int {
    call(c"cudaStreamBeginCapture", |_| Capture::begin(&device::stream(stream)?, mode))
}

pub(super) unsafe extern "C" fn stream_end_capture(stream: Handle, out: *mut Handle) -> c_int {
    call(c"cudaStreamEndCapture", |_| {
        let graph = Capture::end(&device::stream(stream)?);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, graph.as_ref().map_or(std::ptr::null_mut(), handle))? };
        graph.map(|_| ())
    })
}

pub(super) unsafe extern "C" fn stream_is_capturing(stream: Handle, out: *mut c_int) -> c_int {
    call(c"cudaStreamIsCapturing", |_| {
        let (status, ()) = device::stream(stream)?.capture_info(|_| ());
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, status as c_int) }
    })
}

/// CUDA 12's plain `cudaStreamGetCaptureInfo`.
unsafe extern "C" fn stream_get_capture_status(stream: Handle, status: *mut c_int, id: *mut u64) -> c_int {
    let null = std::ptr::null_mut();
    // SAFETY: the same promises, and null for what is not asked.
    unsafe { capture_info(stream, status, id, null, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()) }
}

unsafe extern "C" fn stream_get_capture_info_without_edges(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { capture_info(stream, status, id, graph.cast(), nodes, std::ptr::null_mut(), count) }
}

unsafe extern "C" fn stream_get_capture_info(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const usize,
    edges: *mut *const Edge,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { capture_info(stream, status, id, graph.cast(), nodes, edges, count) }
}

unsafe fn capture_info(
    stream: Handle,
    status_out: *mut c_int,
    id: *mut u64,
    graph: *mut c_void,
    nodes: *mut *const usize,
    edges: *mut *const Edge,
    count: *mut usize,
) -> c_int {
    call(c"cudaStreamGetCaptureInfo", |_| {
        let (status, answer) = device::stream(stream)?.capture_info(|member| {
            let Some(member) = member else { return Ok(()) };
            member.answer.nodes.clear();
            member.answer.edges.clear();
            for dependency in &member.frontier {
                let node = member.capture.graph.node(dependency.node);
                member.answer.nodes.push(handle(&node) as usize);
                member.answer.edges.push(if dependency.at_start { AT_START } else { [0; 8] });
            }
            // SAFETY: CUDA's caller promises places for what it wants to know. The arrays stay until the next question.
            unsafe {
                put_if_wanted(id, member.capture.id);
                put_if_wanted(graph.cast::<Handle>(), handle(&member.capture.graph));
                if !nodes.is_null() && edges.is_null() && member.frontier.iter().any(|dependency| dependency.at_start) {
                    return Err(Error::LossyQuery);
                }
                put_if_wanted(nodes, member.answer.nodes.as_ptr());
                put_if_wanted(edges, member.answer.edges.as_ptr());
                put_if_wanted(count, member.frontier.len());
            }
            Ok(())
        });
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(status_out, status as c_int)? };
        answer
    })
}

unsafe extern "C" fn stream_update_capture_dependencies(
    stream: Handle,
    nodes: *const usize,
    count: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { stream_update_capture_dependencies_with_edges(stream, nodes, std::ptr::null(), count, flags) }
}

unsafe extern "C" fn stream_update_capture_dependencies_with_edges(
    stream: Handle,
    nodes: *const usize,
    edges: *const Edge,
    count: usize,
    flags: u32,
) -> c_int {
    call(c"cudaStreamUpdateCaptureDependencies", |_| {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (nodes, edges) = unsafe { (slice(nodes, count), slice(edges, count)) };
        let nodes: Vec<_> =
            nodes.iter().enumerate().map(|(at, node)| (*node, edges.get(at).is_some_and(at_start))).collect();
        // cudaStreamSetCaptureDependencies
        let replace = flags & 1 != 0;
        capture::update_frontier(&device::stream(stream)?, &nodes, replace)
    })
}

unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut c_int) -> c_int {
    thread_local! {
        static MODE: Cell<c_int> = const { Cell::new(0) };
    }
    // It is remembered only: no call is forbidden because some stream captures in the global mode.
    call(c"cudaThreadExchangeStreamCaptureMode", |_| {
        if mode.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises a mode there, which the old one takes the place of.
        unsafe { mode.write_unaligned(MODE.replace(mode.read_unaligned())) };
        Ok(())
    })
}

unsafe extern "C" fn graph_add_dependencies(
    graph: Handle,
    from: *const usize,
    to: *const usize,
    count: usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { graph_add_dependencies_with_edges(graph, from, to, std::ptr::null(), count) }
}

unsafe extern "C" fn graph_add_dependencies_with_edges(
    graph: Handle,
    from: *const usize,
    to: *const usize,
    edges: *const Edge,
    count: usize,
) -> c_int {
    call(c"cudaGraphAddDependencies", |_| {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (from, to, edges) = unsafe { (slice(from, count), slice(to, count), slice(edges, count)) };
        let edge = |(at, (from, to)): (usize, (&usize, &usize))| (*from, *to, edges.get(at).is_some_and(at_start));
        let edges: Vec<_> = from.iter().zip(to).enumerate().map(edge).collect();
        machine().graphs.get(graph)?.connect(&edges)
    })
}

/// Adds a node to a graph.
///
/// # Safety
///
/// `out` is null or writable; there are as many dependencies as `count` says.
unsafe fn add_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    action: Action,
) -> Result<(), Error> {
    let graph = machine().graphs.get(graph)?;
    // SAFETY: as the caller promises.
    let dependencies = unsafe { slice(dependencies, count) };
    let after = |node: &usize| Ok(Dependency { node: graph.index(*node)?, at_start: false });
    let dependencies: Vec<Dependency> = dependencies.iter().map(after).collect::<Result<_, Error>>()?;
    let origin = NodeOrigin { device: device::current().ordinal, branch: None, captured: false };
    let index = graph.add(action, &dependencies, origin)?;
    observe::node_created(&graph, index);
    // SAFETY: as the caller promises.
    unsafe { put(out, handle(&graph.node(index))) }
}

unsafe extern "C" fn graph_add_event_record_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    event: Handle,
) -> c_int {
    call(c"cudaGraphAddEventRecordNode", |_| {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Record(event)) }
    })
}

unsafe extern "C" fn graph_add_event_wait_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    event: Handle,
) -> c_int {
    call(c"cudaGraphAddEventWaitNode", |_| {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Wait(event)) }
    })
}

/// `cudaHostNodeParams`.
#[repr(C)]
struct HostNodeParameters {
    function: Option<HostFunction>,
    data: *mut c_void,
}

unsafe extern "C" fn graph_add_host_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    parameters: *const HostNodeParameters,
) -> c_int {
    call(c"cudaGraphAddHostNode", |_| {
        // SAFETY: CUDA's caller promises parameters or null.
        let parameters = unsafe { parameters.as_ref() }.ok_or(Error::InvalidValue)?;
        let function = parameters.function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: parameters.data as usize };
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, action) }
    })
}

/// `cudaKernelNodeParams`.
#[repr(C)]
struct KernelNodeParameters {
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    shared_memory: u32,
    arguments: *const *const u8,
    extra: *const *const c_void,
}

unsafe extern "C" fn graph_add_kernel_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    parameters: *const KernelNodeParameters,
) -> c_int {
    call(c"cudaGraphAddKernelNode", |_| {
        // SAFETY: CUDA's caller promises parameters or null.
        let parameters = unsafe { parameters.as_ref() }.ok_or(Error::InvalidValue)?;
        let name = machine().name(parameters.function);
        let kernel = Kernel {
            function: parameters.function as usize,
            grid: parameters.grid.into(),
            block: parameters.block.into(),
            shared_memory: parameters.shared_memory,
            // SAFETY: CUDA's caller promises the arguments of this kernel.
            body: unsafe { body(&name, parameters.arguments, parameters.extra)? },
            name,
        };
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Kernel(kernel)) }
    })
}

pub(super) unsafe extern "C" fn graph_instantiate(out: *mut Handle, graph: Handle, _flags: u64) -> c_int {
    call(c"cudaGraphInstantiate", |_| {
        let exec = machine().graphs.get(graph)?.instantiate()?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, handle(&exec)) }
    })
}

#[repr(C)]
struct GraphLaunchParameters {
    exec: Handle,
    stream: Handle,
}

pub(super) unsafe extern "C" fn graph_launch(exec: Handle, stream: Handle) -> c_int {
    let parameters = GraphLaunchParameters { exec, stream };
    let parameters = (&raw const parameters).cast();
    call_of(c"cudaGraphLaunch", None, parameters, |origin| {
        nested_call(c"cuGraphLaunch", None, parameters, origin, || {
            let exec: Arc<Exec> = machine().execs.get(exec)?;
            exec.launch(&device::stream(stream)?, origin)
        })
    })
}

pub(super) unsafe extern "C" fn graph_exec_destroy(exec: Handle) -> c_int {
    call(c"cudaGraphExecDestroy", |_| Exec::destroy(exec))
}

pub(super) unsafe extern "C" fn graph_destroy(graph: Handle) -> c_int {
    call(c"cudaGraphDestroy", |_| Graph::destroy(graph))
}

unsafe extern "C" fn user_object_create(
    out: *mut Handle,
    object: *mut c_void,
    destroy: Option<HostFunction>,
    references: u32,
    _flags: u32,
) -> c_int {
    call(c"cudaUserObjectCreate", |_| {
        let destroy = destroy.ok_or(Error::InvalidValue)?;
        if references == 0 || out.is_null() {
            return Err(Error::InvalidValue);
        }
        let object = UserObject::new(object, destroy);
        let name = handle(&object);
        lock(&machine().user_objects).insert(name as usize, (object, references));
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, name) }
    })
}

/// Changes how many references the user holds; at none, the handle is no more.
fn change_references(object: Handle, change: i64) -> Result<Arc<UserObject>, Error> {
    let mut objects = lock(&machine().user_objects);
    let (object_itself, references) = objects.get_mut(&(object as usize)).ok_or(Error::InvalidValue)?;
    *references = u32::try_from(i64::from(*references) + change).map_err(|_| Error::InvalidValue)?;
    let (object_itself, references) = (object_itself.clone(), *references);
    if references == 0 {
        objects.remove(&(object as usize));
    }
    Ok(object_itself)
}

unsafe extern "C" fn user_object_retain(object: Handle, count: u32) -> c_int {
    call(c"cudaUserObjectRetain", |_| change_references(object, count.into()).map(|_| ()))
}

unsafe extern "C" fn user_object_release(object: Handle, count: u32) -> c_int {
    call(c"cudaUserObjectRelease", |_| change_references(object, -i64::from(count)).map(|_| ()))
}

unsafe extern "C" fn graph_retain_user_object(graph: Handle, object: Handle, count: u32, flags: u32) -> c_int {
    call(c"cudaGraphRetainUserObject", |_| {
        let graph = machine().graphs.get(graph)?;
        // cudaGraphUserObjectMove: the references become the graph's.
        let moved = if flags & 1 != 0 { -i64::from(count) } else { 0 };
        graph.retain(&change_references(object, moved)?, count as usize);
        Ok(())
    })
}

// Kernels.

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Dimensions {
    x: u32,
    y: u32,
    z: u32,
}

impl From<Dimensions> for [u32; 3] {
    fn from(of: Dimensions) -> [u32; 3] {
        [of.x, of.y, of.z]
    }
}

impl From<[u32; 3]> for Dimensions {
    fn from([x, y, z]: [u32; 3]) -> Dimensions {
        Dimensions { x, y, z }
    }
}

/// `cudaLaunchKernel_v7000_params`.
#[repr(C)]
struct LaunchParameters {
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
}

/// What a launch through `void* arguments[]` or `void* extra[]` does. The former says nothing about the arguments' sizes, so only
/// those few kernels can be launched that way that are known here by name.
///
/// # Safety
///
/// The arguments are those of the kernel of this name.
pub(super) unsafe fn body(
    name: &Name,
    arguments: *const *const u8,
    extra: *const *const c_void,
) -> Result<Body, Error> {
    if !extra.is_null() {
        // SAFETY: as the caller promises.
        return unsafe { driver::read_extra(extra) }.map(Body::Nccl);
    }
    if arguments.is_null() {
        return Err(Error::InvalidValue);
    }
    if name.contains("oneRankReduce") {
        // SAFETY: the kernel's parameters are (void*, void*, size_t, uint64_t, bool), and each pointer points to one.
        return Ok(Body::Nccl(unsafe { pack(arguments, &[8, 8, 8, 8, 1]) }));
    }
    if name.contains("ncclProgressCounterCaptureGpuTime") {
        // SAFETY: the kernel takes one argument, an address.
        return Ok(Body::Timer(unsafe { (*arguments).cast::<usize>().read() }));
    }
    eprintln!("emulator: kernel {} was launched through an array of arguments and is not emulated", &**name);
    Err(Error::InvalidDeviceFunction)
}

/// Packs arguments of these sizes as a launch through `extra` passes them: each at a multiple of its size.
///
/// # Safety
///
/// There are so many arguments, each of its size.
unsafe fn pack(arguments: *const *const u8, sizes: &[usize]) -> Arguments {
    let mut buffer = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        buffer.resize(buffer.len().next_multiple_of(*size), 0);
        // SAFETY: as the caller promises.
        buffer.extend_from_slice(unsafe { slice(*arguments.add(index), *size) });
    }
    Arguments::new(&buffer)
}

unsafe extern "C" fn launch_kernel(
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
) -> c_int {
    let name = machine().name(function);
    launch(function as usize, &name, grid.into(), block.into(), arguments, shared_memory, stream, || {
        // SAFETY: CUDA's caller promises the arguments of this kernel.
        unsafe { body(&name, arguments, std::ptr::null()) }
    })
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
struct LaunchConfig {
    grid: Dimensions,
    block: Dimensions,
    shared_memory: usize,
    stream: Handle,
    attributes: *const driver::LaunchAttribute,
    attribute_count: u32,
}

unsafe extern "C" fn launch_kernel_ex(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *const *const u8,
) -> c_int {
    let name = machine().name(function);
    call_of(c"cudaLaunchKernelExC", Some(&name), std::ptr::null(), |origin| {
        // SAFETY: CUDA's caller promises a configuration or null.
        let config = unsafe { config.as_ref() }.ok_or(Error::InvalidValue)?;
        let kernel = Kernel {
            function: function as usize,
            name: name.clone(),
            grid: config.grid.into(),
            block: config.block.into(),
            shared_memory: config.shared_memory as u32,
            // SAFETY: CUDA's caller promises the arguments of this kernel.
            body: unsafe { body(&name, arguments, std::ptr::null())? },
        };
        // SAFETY: CUDA's caller promises so many attributes.
        let event = driver::launch_event(unsafe { slice(config.attributes, config.attribute_count as usize) })?;
        let stream = device::stream(config.stream)?;
        nested_call(c"cuLaunchKernelEx", Some(&name), std::ptr::null(), origin, || {
            driver::submit_kernel(&stream, kernel, event.as_deref(), origin)
        })
    })
}

/// Launches a kernel as `cudaLaunchKernel` does, with the driver's call in it.
#[expect(clippy::too_many_arguments, reason = "they are the function's own")]
pub(super) fn launch(
    function: usize,
    name: &Name,
    grid: [u32; 3],
    block: [u32; 3],
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
    body: impl FnOnce() -> Result<Body, Error>,
) -> c_int {
    let parameters = LaunchParameters {
        function: function as *const c_void,
        grid: grid.into(),
        block: block.into(),
        arguments,
        shared_memory,
        stream,
    };
    call_of(c"cudaLaunchKernel", Some(name), (&raw const parameters).cast(), |origin| {
        let shared_memory = shared_memory as u32;
        let kernel = Kernel { function, name: name.clone(), grid, block, shared_memory, body: body()? };
        let parameters = driver::LaunchParameters::new(&kernel, stream, arguments);
        let stream = device::stream(stream)?;
        nested_call(c"cuLaunchKernel", Some(name), (&raw const parameters).cast(), origin, || {
            driver::submit_kernel(&stream, kernel, None, origin)
        })
    })
}

unsafe extern "C" fn get_func_by_symbol(out: *mut *const c_void, symbol: *const c_void) -> c_int {
    // The address that the host knows a kernel by is as good a handle as any.
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaGetFuncBySymbol", |_| unsafe { put(out, symbol) })
}

unsafe extern "C" fn func_get_attributes(out: *mut [u64; 6], _function: *const c_void) -> c_int {
    // No shared memory of its own, none on the stack. The structure is longer, but libnccl reads only its beginning.
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaFuncGetAttributes", |_| unsafe { put(out, [0; 6]) })
}

unsafe extern "C" fn func_set_attribute(_function: *const c_void, _attribute: c_int, _value: c_int) -> c_int {
    call(c"cudaFuncSetAttribute", |_| Ok(()))
}

// Devices.

unsafe extern "C" fn get_device(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaGetDevice", |_| unsafe { put(out, device::current().ordinal as c_int) })
}

pub(super) unsafe extern "C" fn set_device(ordinal: c_int) -> c_int {
    call(c"cudaSetDevice", |_| device::set_current(ordinal))
}

unsafe extern "C" fn get_device_count(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaGetDeviceCount", |_| unsafe { put(out, machine().config.devices as c_int) })
}

unsafe extern "C" fn driver_get_version(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaDriverGetVersion", |_| unsafe { put(out, machine().config.driver_version) })
}

unsafe extern "C" fn device_get_attribute(out: *mut c_int, attribute: c_int, ordinal: c_int) -> c_int {
    call(c"cudaDeviceGetAttribute", |_| {
        let value = device::attribute(machine(), attribute, device::get(ordinal)?);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, value) }
    })
}

unsafe extern "C" fn device_get_pci_bus_id(out: *mut c_char, bytes: c_int, ordinal: c_int) -> c_int {
    call(c"cudaDeviceGetPCIBusId", |_| {
        let id = device::get(ordinal)?.bus_id();
        if out.is_null() || bytes as usize <= id.len() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises room for so many bytes, and the id and a zero are no more.
        unsafe {
            out.cast::<u8>().copy_from(id.as_ptr(), id.len());
            out.add(id.len()).write(0);
        }
        Ok(())
    })
}

unsafe extern "C" fn device_get_by_pci_bus_id(out: *mut c_int, id: *const c_char) -> c_int {
    call(c"cudaDeviceGetByPCIBusId", |_| {
        if id.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises a C string.
        let id = unsafe { CStr::from_ptr(id) }.to_str().map_err(|_| Error::InvalidValue)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, device::by_bus_id(id)?.ordinal as c_int) }
    })
}

/// The beginning of `cudaDeviceProp`, which is the same in CUDA 12 and 13. The rest is left as it was, since the length of
/// the whole is not.
#[repr(C)]
struct DeviceProperties {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_mask: u32,
    memory: usize,
    shared_memory: usize,
    registers: c_int,
    warp: c_int,
    pitch: usize,
    threads: c_int,
    block: [c_int; 3],
    grid: [c_int; 3],
    _clock_rate: c_int,
    constant_memory: usize,
    major: c_int,
    minor: c_int,
}

const _: () = assert!(std::mem::offset_of!(DeviceProperties, major) == 360);

unsafe extern "C" fn get_device_properties(out: *mut DeviceProperties, ordinal: c_int) -> c_int {
    call(c"cudaGetDeviceProperties", |_| {
        let device = device::get(ordinal)?;
        let attribute = |number| device::attribute(machine(), number, device);
        let mut name = [0; 256];
        name[..device::NAME.count_bytes()].copy_from_slice(device::NAME.to_bytes());
        let properties = DeviceProperties {
            name,
            uuid: device.uuid(),
            luid: [0; 8],
            luid_mask: 0,
            memory: MEMORY_BYTES,
            shared_memory: attribute(8) as usize,
            registers: attribute(12),
            warp: attribute(10),
            pitch: i32::MAX as usize,
            threads: attribute(1),
            block: [attribute(2), attribute(3), attribute(4)],
            grid: [attribute(5), attribute(6), attribute(7)],
            _clock_rate: attribute(13),
            constant_memory: 65536,
            major: attribute(75),
            minor: attribute(76),
        };
        // SAFETY: CUDA's caller promises a place for the whole structure.
        unsafe { put(out, properties) }
    })
}

unsafe extern "C" fn device_can_access_peer(out: *mut c_int, device: c_int, peer: c_int) -> c_int {
    call(c"cudaDeviceCanAccessPeer", |_| {
        let can = device::can_access(device::get(device)?.ordinal, device::get(peer)?.ordinal)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, can.into()) }
    })
}

unsafe extern "C" fn device_enable_peer_access(peer: c_int, _flags: u32) -> c_int {
    call(c"cudaDeviceEnablePeerAccess", |_| device::current().enable_peer(device::get(peer)?.ordinal))
}

unsafe extern "C" fn device_disable_peer_access(peer: c_int) -> c_int {
    call(c"cudaDeviceDisablePeerAccess", |_| device::current().disable_peer(device::get(peer)?.ordinal))
}

unsafe extern "C" fn device_set_limit(_limit: c_int, _value: usize) -> c_int {
    call(c"cudaDeviceSetLimit", |_| Ok(()))
}

pub(super) unsafe extern "C" fn device_synchronize() -> c_int {
    call(c"cudaDeviceSynchronize", |_| device::current().synchronize())
}

// Errors and the driver's functions. Asking for an error is no call that could fail.

unsafe extern "C" fn get_last_error() -> c_int {
    observe::take_last_error()
}

unsafe extern "C" fn peek_at_last_error() -> c_int {
    observe::last_error()
}

pub(super) fn error_text(number: c_int) -> &'static CStr {
    match Error::from_number(number) {
        Some(error) => error.c_text(),
        None if number == 0 => c"no error",
        None => c"unrecognized error code",
    }
}

pub(super) fn error_name(number: c_int) -> &'static CStr {
    match Error::from_number(number) {
        Some(error) => error.c_name(),
        None if number == 0 => c"cudaSuccess",
        None => c"unrecognized error code",
    }
}

unsafe extern "C" fn get_error_string(number: c_int) -> *const c_char {
    error_text(number).as_ptr()
}

unsafe extern "C" fn get_error_name(number: c_int) -> *const c_char {
    error_name(number).as_ptr()
}

unsafe extern "C" fn get_driver_entry_point(
    symbol: *const c_char,
    out: *mut *const c_void,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { find_driver_function(c"cudaGetDriverEntryPoint", symbol, out, status) }
}

unsafe extern "C" fn get_driver_entry_point_by_version(
    symbol: *const c_char,
    out: *mut *const c_void,
    _version: u32,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { find_driver_function(c"cudaGetDriverEntryPointByVersion", symbol, out, status) }
}

unsafe fn find_driver_function(
    function: &'static CStr,
    symbol: *const c_char,
    out: *mut *const c_void,
    status: *mut c_int,
) -> c_int {
    call(function, |_| {
        if symbol.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises a C string.
        let symbol = unsafe { CStr::from_ptr(symbol) }.to_str().map_err(|_| Error::InvalidValue)?;
        let found = driver::function(symbol);
        // cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound
        let answer = if found.is_some() { 0 } else { 1 };
        // SAFETY: CUDA's caller promises a place for the result, and one for the status if it wants it.
        unsafe {
            put_if_wanted(status, answer);
            put(out, found.unwrap_or(std::ptr::null()))
        }
    })
}

/// Makes a node or an entry of a stream's queue that nobody observes.
pub(super) fn submit_unobserved(stream: Handle, work: Box<dyn FnMut() + Send>) -> Result<(), Error> {
    let action = Action::Unobserved(std::sync::Mutex::new(work));
    device::stream(stream)?.submit(action, &Origin::none()).map(|_| ())
}
