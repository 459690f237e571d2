//! Devices, errors, and the driver's functions by name.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{put, put_if_wanted};
use crate::cuda::device::{self, MEMORY_BYTES};
use crate::cuda::observe::{self, call};
use crate::cuda::{Error, driver, machine};

pub(super) unsafe extern "C" fn get_device(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaGetDevice", |_| unsafe { put(out, device::current().ordinal as c_int) })
}

pub(in crate::cuda) unsafe extern "C" fn set_device(ordinal: c_int) -> c_int {
    call(c"cudaSetDevice", |_| device::set_current(ordinal))
}

pub(super) unsafe extern "C" fn get_device_count(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaGetDeviceCount", |_| unsafe { put(out, machine().config.devices as c_int) })
}

pub(super) unsafe extern "C" fn driver_get_version(out: *mut c_int) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaDriverGetVersion", |_| unsafe { put(out, machine().config.driver_version) })
}

pub(super) unsafe extern "C" fn device_get_attribute(out: *mut c_int, attribute: c_int, ordinal: c_int) -> c_int {
    call(c"cudaDeviceGetAttribute", |_| {
        let value = device::attribute(machine(), attribute, device::get(ordinal)?);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, value) }
    })
}

pub(super) unsafe extern "C" fn device_get_pci_bus_id(out: *mut c_char, bytes: c_int, ordinal: c_int) -> c_int {
    call(c"cudaDeviceGetPCIBusId", |_| {
        let id = device::get(ordinal)?.bus_id();
        if out.is_null() || bytes as usize <= id.len() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises room for this many bytes, and the id with its zero is no
        // longer.
        unsafe {
            out.cast::<u8>().copy_from(id.as_ptr(), id.len());
            out.add(id.len()).write(0);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn device_get_by_pci_bus_id(out: *mut c_int, id: *const c_char) -> c_int {
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

/// The beginning of `cudaDeviceProp`, which is the same in CUDA 12 and 13. The rest is left
/// untouched, because its length differs between them.
#[repr(C)]
pub(super) struct DeviceProperties {
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

pub(super) unsafe extern "C" fn get_device_properties(out: *mut DeviceProperties, ordinal: c_int) -> c_int {
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

pub(super) unsafe extern "C" fn device_can_access_peer(out: *mut c_int, device: c_int, peer: c_int) -> c_int {
    call(c"cudaDeviceCanAccessPeer", |_| {
        let can = device::can_access(device::get(device)?.ordinal, device::get(peer)?.ordinal)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, can.into()) }
    })
}

pub(super) unsafe extern "C" fn device_enable_peer_access(peer: c_int, _flags: u32) -> c_int {
    call(c"cudaDeviceEnablePeerAccess", |_| device::current().enable_peer(device::get(peer)?.ordinal))
}

pub(super) unsafe extern "C" fn device_disable_peer_access(peer: c_int) -> c_int {
    call(c"cudaDeviceDisablePeerAccess", |_| device::current().disable_peer(device::get(peer)?.ordinal))
}

pub(super) unsafe extern "C" fn device_set_limit(_limit: c_int, _value: usize) -> c_int {
    call(c"cudaDeviceSetLimit", |_| Ok(()))
}

pub(in crate::cuda) unsafe extern "C" fn device_synchronize() -> c_int {
    call(c"cudaDeviceSynchronize", |_| device::current().synchronize())
}

pub(super) unsafe extern "C" fn get_last_error() -> c_int {
    observe::take_last_error()
}

pub(super) unsafe extern "C" fn peek_at_last_error() -> c_int {
    observe::last_error()
}

pub(in crate::cuda) fn error_text(number: c_int) -> &'static CStr {
    match Error::from_number(number) {
        Some(error) => error.c_text(),
        None if number == 0 => c"no error",
        None => c"unrecognized error code",
    }
}

pub(in crate::cuda) fn error_name(number: c_int) -> &'static CStr {
    match Error::from_number(number) {
        Some(error) => error.c_name(),
        None if number == 0 => c"cudaSuccess",
        None => c"unrecognized error code",
    }
}

pub(super) unsafe extern "C" fn get_error_string(number: c_int) -> *const c_char {
    error_text(number).as_ptr()
}

pub(super) unsafe extern "C" fn get_error_name(number: c_int) -> *const c_char {
    error_name(number).as_ptr()
}

pub(super) unsafe extern "C" fn get_driver_entry_point(
    symbol: *const c_char,
    out: *mut *const c_void,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { find_driver_function(c"cudaGetDriverEntryPoint", symbol, out, status) }
}

pub(super) unsafe extern "C" fn get_driver_entry_point_by_version(
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
        // SAFETY: CUDA's caller promises a place for the result, and one for the status if it
        // wants it.
        unsafe {
            put_if_wanted(status, answer);
            put(out, found.unwrap_or(std::ptr::null()))
        }
    })
}
