//! Memory, as libnccl allocates and copies it.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use super::{Handle, Out, exported, slice};
use crate::cuda::capture::Status;
use crate::cuda::device;
use crate::cuda::memory::{IpcHandle, Kind};
use crate::cuda::observe::{call, call_of, nested_call};
use crate::cuda::stream::{Stream, Submitted};
use crate::cuda::work::{Action, CopyPart, Origin, Set, Source};
use crate::cuda::{Error, machine};

exported! {
    fn cudaMalloc(out: Out<*mut c_void>, bytes: usize) {
        device::current().context();
        out.put(machine().memory.allocate(bytes, device::current().ordinal, Kind::Device)?)
    }

    fn cudaHostAlloc(out: Out<*mut c_void>, bytes: usize, _flags: u32) {
        device::current().context();
        out.put(machine().memory.allocate(bytes, device::current().ordinal, Kind::Host)?)
    }

    [unsafe] fn cudaFree(address: *mut c_void) {
        device::current().context();
        machine().memory.free(address, |kind| kind == Kind::Device)
    }

    [unsafe] fn cudaFreeHost(address: *mut c_void) {
        machine().memory.free(address, |kind| kind == Kind::Host)
    }

    fn cudaMallocAsync(out: Out<*mut c_void>, bytes: usize, stream: Handle) {
        // The memory is there at once, which is no later than CUDA promises. A capture allocates
        // it once, not at each replay.
        let stream = device::stream(stream)?;
        out.put(machine().memory.allocate(bytes, stream.device, Kind::Device)?)
    }

    [unsafe] fn cudaFreeAsync(address: *mut c_void, stream: Handle) |origin| {
        if machine().memory.find(address).is_none() {
            return Err(Error::InvalidValue);
        }
        device::stream(stream)?.submit(Action::Free(address as usize), origin).map(|_| ())
    }

    fn cudaMemPoolCreate(out: Out<Handle>, _properties: *const c_void) {
        // Every pool stands for all memory, so it needs no state.
        out.put(1 as Handle)
    }

    fn cudaMemPoolDestroy(_pool: Handle) {
        Ok(())
    }

    fn cudaMemPoolSetAttribute(_pool: Handle, _attribute: c_int, _value: *mut c_void) {
        Ok(())
    }

    fn cudaHostRegister(address: *mut c_void, bytes: usize, _flags: u32) {
        machine().memory.register(address, bytes, device::current().ordinal)
    }

    [unsafe] fn cudaHostUnregister(address: *mut c_void) {
        machine().memory.unregister(address)
    }

    fn cudaHostGetDevicePointer(out: Out<*mut c_void>, address: *mut c_void, _flags: u32) {
        match machine().memory.find(address) {
            Some(range) if range.kind != Kind::Device => out.put(address),
            _ => Err(Error::InvalidValue),
        }
    }

    fn cudaPointerGetAttributes(out: Out<PointerAttributes>, address: *const c_void) {
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
        out.put(attributes)
    }

    fn cudaIpcGetMemHandle(out: Out<IpcHandle>, address: *const c_void) {
        out.put(machine().memory.share(address)?)
    }

    fn cudaIpcOpenMemHandle(out: Out<*mut c_void>, handle: IpcHandle, _flags: u32) {
        out.put(machine().memory.open(&handle)?)
    }

    [unsafe] fn cudaIpcCloseMemHandle(address: *mut c_void) {
        machine().memory.free(address, |kind| kind == Kind::Device)
    }
}

pub(super) extern "C" fn malloc_from_pool_async(
    out: Out<*mut c_void>,
    bytes: usize,
    _pool: Handle,
    stream: Handle,
) -> c_int {
    cudaMallocAsync(out, bytes, stream)
}

/// `cudaPointerAttributes`, without the part at its end that CUDA leaves unused.
#[repr(C)]
pub(in crate::cuda) struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *const c_void,
    host_pointer: *const c_void,
}

#[repr(C)]
struct MemcpyParameters {
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: Handle,
}

/// `cudaMemcpyKind`. 4 means that the addresses give the direction; here they always do.
const KINDS: std::ops::RangeInclusive<c_int> = 0..=4;

pub(in crate::cuda) unsafe extern "C" fn memcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> c_int {
    let parameters = MemcpyParameters { to, from, bytes, kind, stream: std::ptr::null_mut() };
    call_of(c"cudaMemcpy", None, (&raw const parameters).cast(), |origin| {
        let stream = device::stream(std::ptr::null_mut())?;
        // SAFETY: CUDA's caller promises the ranges; the copy is made before the call returns.
        unsafe { copy(&stream, &[(to, from, bytes)], kind, origin)? };
        stream.drain();
        Ok(())
    })
}

pub(in crate::cuda) unsafe extern "C" fn memcpy_async(
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

/// As in CUDA, pageable memory of the host is read before the call returns, because the caller may
/// have it on its stack, and has been written when the call returns. A captured copy does neither.
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

pub(super) unsafe extern "C" fn memcpy_batch_async_12(
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

pub(super) unsafe extern "C" fn memcpy_batch_async_13(
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

pub(super) unsafe extern "C" fn memset(at: *mut c_void, value: c_int, bytes: usize) -> c_int {
    let parameters = MemsetParameters { at, value, bytes, stream: std::ptr::null_mut() };
    call_of(c"cudaMemset", None, (&raw const parameters).cast(), |origin| {
        let stream = device::stream(std::ptr::null_mut())?;
        set(&stream, at, value, bytes, origin)?;
        stream.drain();
        Ok(())
    })
}

pub(in crate::cuda) unsafe extern "C" fn memset_async(
    at: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: Handle,
) -> c_int {
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
