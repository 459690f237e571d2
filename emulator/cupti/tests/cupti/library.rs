//! An open CUPTI: the emulated one, or a real one.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};

/// An open library.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cupti(*mut c_void);

// SAFETY: a handle for dlsym, which any thread may use.
unsafe impl Send for Cupti {}
// SAFETY: as above.
unsafe impl Sync for Cupti {}

pub(crate) type Handle = *mut c_void;
pub(crate) type Callback = unsafe extern "C" fn(user: *mut c_void, domain: u32, id: u32, data: *const c_void);
pub(crate) type Request = unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize);
pub(crate) type Complete =
    unsafe extern "C" fn(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, valid: usize);

/// Calls a function by name. The call gives its parameters' types, which nothing checks.
#[macro_export]
macro_rules! cupti {
    ($library:expr, $name:ident ($($type:ty = $value:expr),* $(,)?)) => {{
        let address = $library.symbol(stringify!($name));
        assert!(!address.is_null(), "{} is missing", stringify!($name));
        // SAFETY: CUPTI's header gives the function these parameters.
        let function = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> u32>(address)
        };
        $crate::library::call!(function($($value),*))
    }};
}

/// Calls a function of CUPTI with valid arguments.
macro_rules! call {
    ($function:ident($($value:expr),*)) => {{
        #[allow(clippy::macro_metavars_in_unsafe, reason = "each test passes what the header asks for")]
        // SAFETY: each test passes what the header asks for.
        unsafe { $function($($value),*) }
    }};
}
pub(crate) use call;

/// The file of the emulated library.
pub(crate) fn built() -> PathBuf {
    std::env::current_exe().expect("a program has a path").with_file_name("libemulated_cupti.so")
}

impl Cupti {
    /// Opens the emulated library.
    pub(crate) fn emulated() -> Cupti {
        Cupti::open(&built())
    }

    /// Opens a library.
    pub(crate) fn open(path: &Path) -> Cupti {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path has no zero");
        // SAFETY: a C string; the library's constructors only read its own image and the
        // environment.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} does not open", path.display());
        Cupti(handle)
    }

    /// A function's address, or null.
    pub(crate) fn symbol(self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name has no zero");
        // SAFETY: an open library and a C string.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    /// The result of `cuptiGetVersion`.
    pub(crate) fn version(self) -> u32 {
        let mut version = 0;
        assert_eq!(cupti!(self, cuptiGetVersion(*mut u32 = &raw mut version)), 0);
        version
    }

    /// Subscribes.
    pub(crate) fn subscribe(self, callback: Callback, user: *mut c_void) -> Result<Handle, u32> {
        let mut handle = std::ptr::null_mut();
        let code = cupti!(
            self,
            cuptiSubscribe(*mut Handle = &raw mut handle, Callback = callback, *mut c_void = user)
        );
        if code == 0 { Ok(handle) } else { Err(code) }
    }

    /// Subscribes with a callback that does nothing.
    pub(crate) fn subscribe_deaf(self) -> Handle {
        unsafe extern "C" fn deaf(_: *mut c_void, domain: u32, id: u32, _: *const c_void) {
            panic!("nobody wants callback {id} of domain {domain}");
        }
        self.subscribe(deaf, std::ptr::null_mut()).expect("nobody has subscribed")
    }

    /// Registers functions for buffers.
    pub(crate) fn register(self, request: Request, complete: Complete) {
        let code = cupti!(self, cuptiActivityRegisterCallbacks(Request = request, Complete = complete));
        assert_eq!(code, 0);
    }

    /// Enables kinds.
    pub(crate) fn enable(self, kinds: &[u32]) {
        for kind in kinds {
            assert_eq!(cupti!(self, cuptiActivityEnable(u32 = *kind)), 0, "kind {kind}");
        }
    }

    /// Enables a callback.
    pub(crate) fn call_back(self, handle: Handle, domain: u32, id: u32) {
        let code = cupti!(self, cuptiEnableCallback(u32 = 1, Handle = handle, u32 = domain, u32 = id));
        assert_eq!(code, 0, "callback {id} of domain {domain}");
    }

    /// Flushes.
    pub(crate) fn flush(self, forced: bool) {
        assert_eq!(cupti!(self, cuptiActivityFlushAll(u32 = u32::from(forced))), 0);
    }

    /// How many records were dropped since the last call.
    pub(crate) fn dropped(self) -> usize {
        let mut dropped = 0;
        let code = cupti!(
            self,
            cuptiActivityGetNumDroppedRecords(
                *mut c_void = std::ptr::null_mut(), u32 = 0, *mut usize = &raw mut dropped
            )
        );
        assert_eq!(code, 0);
        dropped
    }

    /// CUPTI's time.
    pub(crate) fn timestamp(self) -> u64 {
        let mut timestamp = 0;
        assert_eq!(cupti!(self, cuptiGetTimestamp(*mut u64 = &raw mut timestamp)), 0);
        timestamp
    }

    /// Sets an attribute of one byte.
    pub(crate) fn set_switch(self, number: u32, value: u8) {
        let mut size = 1usize;
        let code = cupti!(
            self,
            cuptiActivitySetAttribute(u32 = number, *mut usize = &raw mut size, *const u8 = &raw const value)
        );
        assert_eq!(code, 0, "attribute {number}");
    }

    /// The offset of the record after the one at `previous`, or of the first one.
    pub(crate) fn next(self, buffer: &[u8], previous: Option<usize>) -> Result<usize, u32> {
        let start = buffer.as_ptr().cast_mut();
        let mut record = previous.map_or(std::ptr::null_mut(), |offset| start.wrapping_add(offset));
        let code = cupti!(
            self,
            cuptiActivityGetNextRecord(
                *mut u8 = start, usize = buffer.len(), *mut *mut u8 = &raw mut record
            )
        );
        if code == 0 { Ok(record as usize - start as usize) } else { Err(code) }
    }

    /// The offsets of all records of a buffer, and the code at its end.
    pub(crate) fn walk(self, buffer: &[u8]) -> (Vec<usize>, u32) {
        let mut offsets = Vec::new();
        loop {
            match self.next(buffer, offsets.last().copied()) {
                Ok(offset) => offsets.push(offset),
                Err(code) => return (offsets, code),
            }
        }
    }

    /// The string for a result code, and the code that the function returned.
    pub(crate) fn result_string(self, code: u32) -> (u32, Option<&'static CStr>) {
        let mut text: *const c_char = std::ptr::null();
        let answer = cupti!(self, cuptiGetResultString(u32 = code, *mut *const c_char = &raw mut text));
        // SAFETY: null or a constant of the library's.
        (answer, (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }))
    }
}
