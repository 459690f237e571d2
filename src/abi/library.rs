//! The calling library. It is not part of the interface, but `init` passes NCCL's log function,
//! which lies in the library that can tell its version, and whether it is RCCL.

use std::ffi::{CStr, c_int, c_void};

use crate::model::time::GpuTimer;
use crate::releases::Version;

/// What is known about the calling library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Library {
    /// Its version; for RCCL that of the NCCL that it follows.
    pub(super) version: Option<Version>,
    /// The unit of this thread's GPU timer, which also says whether the library is RCCL.
    pub(super) timer: GpuTimer,
    /// This thread's device, if it is RCCL's.
    pub(super) device: Option<u32>,
}

/// HIP's number of the wall clock's rate in kHz (`hipDeviceAttributeWallClockRate`, as the bindings
/// of cubecl-hip-sys give it).
const WALL_CLOCK_RATE: c_int = 10_017;

/// The library that this log function belongs to.
///
/// # Safety
///
/// `logger` is null, or a function of a library that stays mapped during the call. If that library
/// is RCCL, this thread may call HIP.
#[must_use]
pub(super) unsafe fn library(logger: *const c_void) -> Library {
    if logger.is_null() {
        return Library::default();
    }
    // SAFETY: `dladdr` only fills `info`. The log function's library is mapped while NCCL calls us;
    // RTLD_NOLOAD only takes a reference to it, which is given back.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(logger, &raw mut info) == 0 || info.dli_fname.is_null() {
            return Library::default();
        }
        let library = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return Library::default();
        }
        // A search in a library covers what it needs: RCCL needs HIP, and NCCL does not.
        let symbol = |name: &CStr| libc::dlsym(library, name.as_ptr());
        let hip = [c"hipGetDevice", c"hipDeviceGetAttribute"].map(symbol);
        let file = CStr::from_ptr(info.dli_fname).to_bytes();
        let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_rccl = name.starts_with(b"librccl") || hip.iter().all(|symbol| !symbol.is_null());
        let device = if is_rccl { hip_device(hip[0]) } else { None };
        let timer = match (is_rccl, device) {
            (false, _) => GpuTimer::NANOSECONDS,
            (true, Some(device)) => wall_clock(hip[1], device),
            (true, None) => GpuTimer::UNKNOWN,
        };
        let found = Library {
            version: version(symbol(c"ncclGetVersion")),
            timer,
            device: device.and_then(|device| u32::try_from(device).ok()),
        };
        libc::dlclose(library);
        found
    }
}

/// # Safety
///
/// `symbol` is null or `ncclGetVersion`, which writes one int and has had this type since NCCL 2.0.
unsafe fn version(symbol: *mut c_void) -> Option<Version> {
    // SAFETY: the caller's promise; null is `None`.
    let get: Option<unsafe extern "C" fn(*mut c_int) -> c_int> = unsafe { std::mem::transmute(symbol) };
    let mut version = 0;
    // SAFETY: the number is writable.
    let answered = get.is_some_and(|get| unsafe { get(&raw mut version) } == 0);
    Version::try_from(version).ok().filter(|version| answered && *version > 0)
}

/// # Safety
///
/// `symbol` is null or `hipGetDevice`.
unsafe fn hip_device(symbol: *mut c_void) -> Option<c_int> {
    // SAFETY: the caller's promise; null is `None`.
    let get: Option<unsafe extern "C" fn(*mut c_int) -> c_int> = unsafe { std::mem::transmute(symbol) };
    let mut device = 0;
    // SAFETY: the number is writable.
    (unsafe { get?(&raw mut device) } == 0).then_some(device)
}

/// # Safety
///
/// `symbol` is null or `hipDeviceGetAttribute`.
unsafe fn wall_clock(symbol: *mut c_void, device: c_int) -> GpuTimer {
    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // SAFETY: the caller's promise; null is `None`.
    let get: Option<GetAttribute> = unsafe { std::mem::transmute(symbol) };
    let mut rate = 0;
    // SAFETY: the number is writable.
    let answered = get.is_some_and(|get| unsafe { get(&raw mut rate, WALL_CLOCK_RATE, device) } == 0);
    u32::try_from(rate).ok().filter(|_| answered).map_or(GpuTimer::UNKNOWN, GpuTimer::of_khz)
}
