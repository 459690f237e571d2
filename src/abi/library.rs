//! The version of the calling NCCL. It is not part of the interface, but `init` passes NCCL's log
//! function, which lies in the library that knows it.

use std::ffi::{c_int, c_void};

use crate::releases::Version;

/// The version of the NCCL that this log function belongs to; `None` if it cannot be found.
///
/// # Safety
///
/// `logger` is null, or a function of a library that stays mapped during the call.
#[must_use]
pub(super) unsafe fn nccl_version(logger: *const c_void) -> Option<Version> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
    if logger.is_null() {
        return None;
    }
    // SAFETY: `dladdr` only fills `info`. The log function's library is mapped while NCCL calls us;
    // RTLD_NOLOAD only takes a reference to it, which is given back. `ncclGetVersion` writes one
    // int, and has had this signature since NCCL 2.0.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(logger, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let library = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let symbol = libc::dlsym(library, c"ncclGetVersion".as_ptr());
        let version = (!symbol.is_null()).then(|| {
            let get_version: GetVersion = std::mem::transmute(symbol);
            let mut version = 0;
            (get_version(&raw mut version) == 0).then_some(version)
        });
        libc::dlclose(library);
        version.flatten().and_then(|version| Version::try_from(version).ok()).filter(|&version| version > 0)
    }
}
