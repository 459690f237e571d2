//! Queries the driver, and libraries that are already mapped. Maps nothing itself.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

/// The driver's SONAME. CUPTI must not be touched in a process without it.
pub(super) const NAME: &CStr = c"libcuda.so.1";

/// The driver, if it is already mapped.
pub(super) struct Driver {
    handle: *mut c_void,
}

impl Driver {
    /// The driver, if this process has one. Maps nothing.
    pub(super) fn mapped() -> Option<Driver> {
        open(NAME).map(|handle| Driver { handle })
    }

    /// The CUDA version of the driver: 13010 is 13.1.
    pub(super) fn cuda_version(&self) -> Option<u32> {
        u32::try_from(self.ask(c"cuDriverGetVersion")?).ok()
    }

    /// Its major part.
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    pub(super) fn cuda_major(&self) -> Option<u32> {
        Some(self.cuda_version()? / 1000).filter(|&major| major > 0)
    }

    /// The number of GPUs that the driver shows this process; `None` if it is not, or cannot be,
    /// initialised.
    pub(super) fn devices(&self) -> Option<u32> {
        u32::try_from(self.ask(c"cuDeviceGetCount")?).ok()
    }

    /// The device of this thread's current context, if there is one.
    pub(super) fn current_device(&self) -> Option<u32> {
        u32::try_from(self.ask(c"cuCtxGetDevice")?).ok()
    }

    /// A device's name, such as `NVIDIA H200`.
    pub(super) fn device_name(&self, device: u32) -> Option<String> {
        /// `CUresult cuDeviceGetName(char *, int, CUdevice)`.
        type Function = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
        // SAFETY: an open handle and a C string.
        let function = unsafe { libc::dlsym(self.handle, c"cuDeviceGetName".as_ptr()) };
        if function.is_null() {
            return None;
        }
        // SAFETY: cuda.h declares the function with this type, and it may be called on any thread
        // once the driver is initialised, which it is if there is a device to ask about.
        let function = unsafe { mem::transmute::<*mut c_void, Function>(function) };
        let mut name = [0_u8; 256];
        let device = c_int::try_from(device).ok()?;
        // SAFETY: `name` is writable and has the stated length.
        let result = unsafe { function(name.as_mut_ptr().cast(), name.len() as c_int, device) };
        let name = CStr::from_bytes_until_nul(&name).ok()?.to_string_lossy().into_owned();
        (result == 0 && !name.is_empty()).then_some(name)
    }

    /// Calls a function of the form `CUresult f(int *)`.
    fn ask(&self, name: &CStr) -> Option<c_int> {
        // SAFETY: an open handle and a C string.
        let function = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if function.is_null() {
            return None;
        }
        // SAFETY: cuda.h declares these functions with this type, and they may be called at any
        // time on any thread.
        let function = unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(function) };
        let mut answer = 0;
        // SAFETY: `answer` is writable.
        (unsafe { function(&raw mut answer) } == 0).then_some(answer)
    }
}

/// Opens a mapped library, by its SONAME or path.
fn open(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string; with RTLD_NOLOAD no code runs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

/// Whether a mapped library, by its SONAME or path, exports this function.
pub(super) fn exports(library: &CStr, function: &CStr) -> bool {
    open(library).is_some_and(|handle| {
        // SAFETY: an open handle and a C string; it is closed once, and others keep the library
        // open.
        unsafe {
            let found = !libc::dlsym(handle, function.as_ptr()).is_null();
            libc::dlclose(handle);
            found
        }
    })
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: opened once by `mapped`; whoever loaded the driver keeps it open.
        unsafe { libc::dlclose(self.handle) };
    }
}
