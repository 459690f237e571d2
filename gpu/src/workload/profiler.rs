//! A workload's calls to the profiler in its process.

use std::ffi::{CStr, c_int};

use libloading::os::unix::{Library, RTLD_LAZY};

/// The profiler's library, which NCCL has loaded.
pub(super) struct Profiler(Library);

impl Profiler {
    pub(super) fn find() -> Result<Profiler, String> {
        // SAFETY: the library is loaded already, so none of its code runs.
        let library = unsafe { Library::open(Some("libncclscope.so"), libc::RTLD_NOLOAD | RTLD_LAZY) };
        library.map(Profiler).map_err(|_| "the profiler is not in this process".into())
    }

    /// Calls a function without parameters; returns its result.
    pub(super) fn call(&self, name: &CStr) -> Result<c_int, String> {
        // SAFETY: include/ncclscope.h gives the functions called here this type.
        let function = unsafe { self.0.get::<unsafe extern "C" fn() -> c_int>(name.to_bytes_with_nul()) };
        let function = function.map_err(|error| error.to_string())?;
        // SAFETY: it may be called on any thread that is not in a callback.
        Ok(unsafe { function() })
    }
}
