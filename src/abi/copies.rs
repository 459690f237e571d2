//! Another copy of this library in the process.
//!
//! CUDA opens the library that `CUDA_INJECTION64_PATH` names, NCCL the one that
//! `NCCL_PROFILER_PLUGIN` names. One file is one library, however often it is opened. Two files are
//! two libraries, each with its own state; both would take CUPTI and write a trace. So the copy
//! that the process loaded first records, and the other passes every call to it: contexts and
//! handles are then the first copy's. Copies of different versions do not trust each other: the
//! later one records nothing, and says so.
//!
//! The first copy is found by its SONAME, for which the loader returns the oldest library of that
//! name. No copy is ever unloaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Abi, Table};
use crate::profiler;

const SONAME: &CStr = c"libncclscope.so";

/// This version, for other copies and for [`super::c`].
pub(super) const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// The copy that records, if it is not this one.
struct First(*mut c_void);

/// The first copy's tables, by interface version, once an `init` has looked for them.
static TABLES: [AtomicPtr<c_void>; 16] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 16];

/// The table that `init` calls instead of our own, if another copy records.
#[expect(clippy::indexing_slicing, reason = "there is a place for each version of the interface")]
pub(super) fn table<A: Abi, Init: Copy>() -> Option<&'static Table<A, Init>> {
    let found = catch_unwind(|| {
        let first = first()?;
        let table = first.symbol(&CString::new(format!("ncclProfiler_v{}", A::VERSION)).unwrap_or_default());
        if table.is_null() {
            profiler::stay_out("the copy of ncclscope that was loaded first lacks this interface");
        }
        TABLES[usize::from(A::VERSION)].store(table, Ordering::Release);
        Some(table)
    });
    // SAFETY: null, or the table of this version in a library that is never unloaded.
    unsafe { found.ok().flatten()?.cast::<Table<A, Init>>().as_ref() }
}

/// The table to call instead of our own after `init`. Its `init` must not be called.
#[inline]
#[expect(clippy::indexing_slicing, reason = "there is a place for each version of the interface")]
pub(super) fn known_table<A: Abi>() -> Option<&'static Table<A, *const c_void>> {
    // SAFETY: as above; the tables differ only in the type of `init`, which is a function pointer
    // in each.
    unsafe { TABLES[usize::from(A::VERSION)].load(Ordering::Acquire).cast::<Table<A, *const c_void>>().as_ref() }
}

/// The function `int name(void)` of our C interface to call instead of our own.
pub(super) fn function(name: &CStr) -> Option<extern "C" fn() -> c_int> {
    let found = symbol(name)?;
    // SAFETY: null, which is `None`, or a function of this type in a copy of this version.
    unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn() -> c_int>>(found) }
}

/// The `ncclscope_name_comm` to call instead of our own.
pub(super) fn name_comm() -> Option<unsafe extern "C" fn(*const c_char)> {
    let found = symbol(c"ncclscope_name_comm")?;
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*const c_char)>>(found) }
}

/// The `ncclscope_step` to call instead of our own.
pub(super) fn step() -> Option<extern "C" fn(u64)> {
    let found = symbol(c"ncclscope_step")?;
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn(u64)>>(found) }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    catch_unwind(|| first().map(|first| first.symbol(name))).ok().flatten()
}

/// The copy that every call is passed to. `None` if this copy is alone, was loaded first, or has
/// another version.
fn first() -> Option<First> {
    // No lock: a thread that waits for it may hold the loader's lock, which is needed here, and in
    // a child forked meanwhile it would never open.
    static LOOKED: AtomicBool = AtomicBool::new(false);
    static FIRST: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if !LOOKED.load(Ordering::Acquire) {
        FIRST.store(look().map_or(std::ptr::null_mut(), |first| first.0), Ordering::Relaxed);
        LOOKED.store(true, Ordering::Release);
    }
    let first = FIRST.load(Ordering::Relaxed);
    (!first.is_null()).then_some(First(first))
}

fn look() -> Option<First> {
    // SAFETY: a C string; RTLD_NOLOAD loads nothing. The handle is never closed: our libraries
    // stay.
    let first = First(unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) });
    if first.0.is_null() {
        return None;
    }
    // Not the address of an exported symbol: in every copy that may resolve to the first copy's.
    static HERE: u8 = 0;
    let (here, _) = image((&raw const HERE).cast())?;
    let (there, path) = image(first.symbol(c"ncclProfiler_v1"))?;
    if here == there {
        return None;
    }
    let version = first.symbol(c"ncclscope_version");
    // SAFETY: null, which is `None`, or our own function.
    let version = unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn() -> *const c_char>>(version) };
    // SAFETY: it returns a static C string.
    let version = version.map(|version| unsafe { CStr::from_ptr(version()) });
    if version == Some(VERSION) {
        return Some(first);
    }
    profiler::stay_out(&format!(
        "ncclscope {} from {} was loaded before this ncclscope {}, which therefore records nothing. Set \
         NCCL_PROFILER_PLUGIN and CUDA_INJECTION64_PATH to the same file",
        version.map_or("of an unknown version".into(), CStr::to_string_lossy),
        path.display(),
        VERSION.to_string_lossy(),
    ));
    None
}

impl First {
    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open handle and a C string.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// The library that contains an address: its base address and its file.
fn image(address: *const c_void) -> Option<(*mut c_void, PathBuf)> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: `dladdr` only looks the address up and fills `info`; its name lives as long as the
    // library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let file = std::ffi::OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes());
        Some((info.dli_fbase, file.into()))
    }
}
