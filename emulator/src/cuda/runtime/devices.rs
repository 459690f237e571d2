//! Devices, errors, and the driver's functions by name.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{Out, exported};
use crate::cuda::device::{self, MEMORY_BYTES};
use crate::cuda::observe;
use crate::cuda::{Error, driver, machine};

exported! {
    fn cudaGetDevice(out: Out<c_int>) {
        out.put(device::current().ordinal as c_int)
    }

    fn cudaSetDevice(ordinal: c_int) {
        device::set_current(ordinal)
    }

    fn cudaGetDeviceCount(out: Out<c_int>) {
        out.put(machine().config.devices as c_int)
    }

    fn cudaDriverGetVersion(out: Out<c_int>) {
        out.put(machine().config.driver_version)
    }

    fn cudaDeviceGetAttribute(out: Out<c_int>, attribute: c_int, ordinal: c_int) {
        let value = device::attribute(machine(), attribute, device::get(ordinal)?);
        out.put(value)
    }

    [unsafe] fn cudaDeviceGetPCIBusId(out: *mut c_char, bytes: c_int, ordinal: c_int) {
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
    }

    [unsafe] fn cudaDeviceGetByPCIBusId(out: Out<c_int>, id: *const c_char) {
        // SAFETY: CUDA's caller promises a C string or null.
        let id = unsafe { c_str(id)? }.to_str().map_err(|_| Error::InvalidValue)?;
        out.put(device::by_bus_id(id)?.ordinal as c_int)
    }

    fn cudaGetDeviceProperties(out: Out<DeviceProperties>, ordinal: c_int) {
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
        out.put(properties)
    }

    fn cudaDeviceCanAccessPeer(out: Out<c_int>, device: c_int, peer: c_int) {
        let can = device::can_access(device::get(device)?.ordinal, device::get(peer)?.ordinal)?;
        out.put(can.into())
    }

    fn cudaDeviceEnablePeerAccess(peer: c_int, _flags: u32) {
        device::current().enable_peer(device::get(peer)?.ordinal)
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        device::current().disable_peer(device::get(peer)?.ordinal)
    }

    fn cudaDeviceSetLimit(_limit: c_int, _value: usize) {
        Ok(())
    }

    fn cudaDeviceSynchronize() {
        device::current().synchronize()
    }

    [unsafe] fn cudaGetDriverEntryPoint(
        symbol: *const c_char,
        out: Out<*const c_void>,
        _flags: u64,
        status: Out<c_int>,
    ) {
        // SAFETY: CUDA's caller promises a C string or null.
        find_driver_function(unsafe { c_str(symbol)? }, out, status)
    }

    [unsafe] fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char,
        out: Out<*const c_void>,
        _version: u32,
        _flags: u64,
        status: Out<c_int>,
    ) {
        // SAFETY: CUDA's caller promises a C string or null.
        find_driver_function(unsafe { c_str(symbol)? }, out, status)
    }
}

/// # Safety
///
/// `text` is null or a C string.
unsafe fn c_str<'a>(text: *const c_char) -> Result<&'a CStr, Error> {
    // SAFETY: as the caller promises.
    if text.is_null() { Err(Error::InvalidValue) } else { Ok(unsafe { CStr::from_ptr(text) }) }
}

/// The beginning of `cudaDeviceProp`, which is the same in CUDA 12 and 13. The rest is left
/// untouched, because its length differs between them.
#[repr(C)]
pub(in crate::cuda) struct DeviceProperties {
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

pub(super) unsafe extern "C" fn get_last_error() -> c_int {
    observe::take_last_error()
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

fn find_driver_function(symbol: &CStr, out: Out<*const c_void>, status: Out<c_int>) -> Result<(), Error> {
    let found = driver::function(symbol.to_str().map_err(|_| Error::InvalidValue)?);
    // cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound
    status.put_if_wanted(if found.is_some() { 0 } else { 1 });
    out.put(found.unwrap_or(std::ptr::null()))
}
