//! The functions of a copy of libcupti, found at run time.
//!
//! A second copy of CUPTI in a process cannot trace, so a copy that is already
//! [`mapped`](Cupti::mapped) is the one to use. Finding it calls nothing in it. Calling is another
//! matter: without `libcuda.so.1` in the process, some releases return errors, and CUDA 13.2
//! overflows the stack in the first function called; see [`is_mapped`].

use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::mem::{self, ManuallyDrop};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;

use libloading::os::unix::Library;

use crate::bindings;

/// The library's names, newest first. A copy opened by its path is also found under them.
pub const SONAMES: [&CStr; 2] = [c"libcupti.so.13", c"libcupti.so.12"];

macro_rules! functions {
    (required: $($required:ident)*; optional: $($optional:ident $since:literal)*) => {
        /// The functions of one copy of libcupti, under CUPTI's own names.
        ///
        /// The copy stays mapped for the rest of the process: CUPTI has threads and callbacks that
        /// nobody can recall. Each function must be called as NVIDIA documents it, which is why
        /// calling it is `unsafe`.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy, Debug)]
        pub struct Cupti {
            $(
                #[doc = concat!("`", stringify!($required), "`")]
                pub $required: bindings::$required,
            )*
            $(
                #[doc = concat!("`", stringify!($optional), "`, since CUDA ", $since)]
                pub $optional: Option<bindings::$optional>,
            )*
        }

        impl Cupti {
            /// Looks up every function.
            ///
            /// # Errors
            ///
            /// A required function is missing.
            ///
            /// # Safety
            ///
            /// `library` is never closed.
            unsafe fn resolve(library: &Library) -> Result<Cupti, Reason> {
                Ok(Cupti {
                    $(
                        $required: {
                            let name = concat!(stringify!($required), "\0");
                            // SAFETY: the type is the one that CUPTI's headers give this name in
                            // all releases, which `cargo xtask bindings --check` verifies; the
                            // linker's answer may be null.
                            let found = unsafe { library.get::<Option<bindings::$required>>(name) };
                            found.ok().and_then(|it| *it).ok_or(Reason::Lacks(stringify!($required)))?
                        },
                    )*
                    $(
                        $optional: {
                            let name = concat!(stringify!($optional), "\0");
                            // SAFETY: as above.
                            let found = unsafe { library.get::<Option<bindings::$optional>>(name) };
                            found.ok().and_then(|it| *it)
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    required:
        cuptiGetVersion
        cuptiGetTimestamp
        cuptiSubscribe
        cuptiUnsubscribe
        cuptiEnableCallback
        cuptiGetCallbackName
        cuptiSetThreadIdType
        cuptiGetThreadIdType
        cuptiGetGraphNodeId
        cuptiActivityRegisterCallbacks
        cuptiActivityRegisterTimestampCallback
        cuptiActivityEnable
        cuptiActivityEnableAndDump
        cuptiActivityDisable
        cuptiActivityFlushAll
        cuptiActivityGetNextRecord
        cuptiActivityGetNumDroppedRecords
        cuptiActivityPushExternalCorrelationId
        cuptiActivityPopExternalCorrelationId;
    optional:
        // The profiler calls neither, so a copy without them will do.
        cuptiGetResultString "12.0"
        cuptiActivitySetAttribute "12.0"
        cuptiActivityEnableDriverApi "12.5"
        cuptiSubscribe_v2 "13.0"
        cuptiActivityGetStructSize "13.2"
        cuptiActivityDisable_v2 "13.2"
        cuptiActivityEnableAndDump_v2 "13.2"
        cuptiActivityEnable_v2 "13.2"
        cuptiActivityRegisterCallbacks_v2 "13.2"
        cuptiActivitySetAttribute_v2 "13.2"
        cuptiActivityGetNextRecord_v2 "13.3"
        cuptiActivityGetNumDroppedRecords_v2 "13.3"
        cuptiActivityPopExternalCorrelationId_v2 "13.3"
        cuptiActivityPushExternalCorrelationId_v2 "13.3"
        cuptiGetTimestamp_v2 "13.3"
}

impl Cupti {
    /// The first of `names` that is already mapped in this process. A name is a SONAME or a path.
    ///
    /// # Errors
    ///
    /// None of them is mapped, or the one that is lacks a function.
    pub fn mapped(names: &[&CStr]) -> Result<Cupti, LoadError> {
        Cupti::first(names, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
    }

    /// The first of `names` that can be opened; maps it if necessary. A name is a SONAME or a path.
    ///
    /// # Errors
    ///
    /// None of them can be opened, or the one that can lacks a function.
    ///
    /// # Safety
    ///
    /// Opening a library runs its code: the names must be those of CUPTI.
    pub unsafe fn open(names: &[&CStr]) -> Result<Cupti, LoadError> {
        Cupti::first(names, libc::RTLD_LAZY | libc::RTLD_LOCAL)
    }

    fn first(names: &[&CStr], flags: c_int) -> Result<Cupti, LoadError> {
        let mut tried = Vec::new();
        for &name in names {
            match Cupti::named(name, flags) {
                Ok(cupti) => return Ok(cupti),
                Err(reason) => tried.push(Tried { name: name.to_owned(), reason }),
            }
        }
        Err(LoadError { tried })
    }

    fn named(name: &CStr, flags: c_int) -> Result<Cupti, Reason> {
        // SAFETY: `name` is a C string. With RTLD_NOLOAD no code runs; otherwise the caller of
        // `open` has promised that it is CUPTI.
        let library = unsafe { Library::open(Some(file_name(name)), flags) }.map_err(|error| {
            match flags & libc::RTLD_NOLOAD {
                0 => Reason::Refused(words(&error)),
                _ => Reason::NotMapped,
            }
        })?;
        // Never closed: this keeps the copy mapped.
        let library = ManuallyDrop::new(library);
        // SAFETY: `library` is never closed, as said above.
        unsafe { Cupti::resolve(&library) }
    }

    /// The path that this copy was mapped from.
    pub fn path(&self) -> Option<CString> {
        // SAFETY: all its fields are pointers, which may be null.
        let mut info: libc::Dl_info = unsafe { mem::zeroed() };
        let place = self.cuptiGetVersion as *const c_void;
        // SAFETY: `info` is writable. `place` is only compared with what is mapped.
        if unsafe { libc::dladdr(place, &raw mut info) } == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the linker's own string, which lives as long as the library, which stays mapped.
        Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_owned())
    }
}

/// A name for `dlopen`, with its NUL, which saves a copy.
fn file_name(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes_with_nul())
}

/// The linker's own message.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether a library is mapped in this process, by its SONAME or path. Maps nothing and runs
/// nothing.
///
/// No function of CUPTI may be called unless `libcuda.so.1` is mapped.
pub fn is_mapped(name: &CStr) -> bool {
    // SAFETY: a C string; with RTLD_NOLOAD no code runs. Others hold the library, or it would not
    // be found, so closing it runs nothing either.
    unsafe { Library::open(Some(file_name(name)), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// The paths of all copies of libcupti that are mapped in this process, in the order in which they
/// were loaded. Includes copies that were renamed when packed into a wheel
/// (`libcupti-1ba2a3c4.so.12`).
pub fn mapped_copies() -> Vec<CString> {
    let mut found: Vec<CString> = Vec::new();
    // SAFETY: `collect` is called only during the call, with the pointer passed here, and does not
    // unwind.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut found).cast()) };
    found
}

/// Keeps the library's name if it is a copy of CUPTI.
///
/// # Safety
///
/// As `dl_iterate_phdr` calls it: `info` is valid, `found` is the vector of [`mapped_copies`].
unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the linker passes a valid structure.
    let name: *const c_char = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: the name is a C string, and the linker holds its lock while we read it.
        let name = unsafe { CStr::from_ptr(name) };
        if is_copy(name.to_bytes()) {
            // SAFETY: nobody else borrows the vector during the call.
            unsafe { &mut *found.cast::<Vec<CString>>() }.push(name.to_owned());
        }
    }
    0
}

/// Whether a path is that of a libcupti.
fn is_copy(path: &[u8]) -> bool {
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let rest = file.strip_prefix(b"libcupti");
    rest.is_some_and(|rest| matches!(rest.first(), Some(b'.' | b'-')) && rest.windows(3).any(|part| part == b".so"))
}

/// No copy of libcupti could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The names that were tried, in order. Empty if there were none.
    pub tried: Vec<Tried>,
}

/// A name that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The SONAME or path.
    pub name: CString,
    /// Why.
    pub reason: Reason,
}

/// Why a name could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is not mapped in this process.
    NotMapped,
    /// The linker could not open it; the linker's message.
    Refused(String),
    /// It exists, but lacks a required function, which every release of CUPTI from CUDA 12.0 on
    /// has.
    Lacks(&'static str),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tried.is_empty() {
            return f.write_str("no names to look for");
        }
        for (place, Tried { name, reason }) in self.tried.iter().enumerate() {
            let comma = if place == 0 { "" } else { "; " };
            write!(f, "{comma}{}: {reason}", name.to_string_lossy())?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotMapped => f.write_str("not mapped"),
            Reason::Refused(words) => f.write_str(words),
            Reason::Lacks(function) => write!(f, "lacks {function}"),
        }
    }
}

impl std::error::Error for LoadError {}
