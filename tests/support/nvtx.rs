//! A program that uses NVTX: what NVTX's headers do, as far as scripts need it.
//!
//! At its first call NVTX reads the path of a tool's library from the environment, loads it, and
//! passes tables with the places of its functions (nvtxDetail/nvtxInit.h and nvtxTypes.h of version
//! 3). Functions that the tool leaves empty do nothing.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Once, PoisonError};

const CALLBACKS: u32 = 1;
const CORE: u32 = 1;
const CORE2: u32 = 5;
const FUNCTIONS: usize = 16;

/// A function's place, which the tool fills.
type Slot = AtomicPtr<c_void>;

#[repr(C)]
struct Table {
    size: usize,
    get: unsafe extern "C" fn(module: u32, table: *mut *const *const Slot, size: *mut c_uint) -> c_int,
}

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// An array of places.
struct Places([*const Slot; FUNCTIONS]);

// SAFETY: the places are statics.
unsafe impl Sync for Places {}

static CORE_SLOTS: [Slot; FUNCTIONS] = [const { Slot::new(std::ptr::null_mut()) }; FUNCTIONS];
static CORE2_SLOTS: [Slot; FUNCTIONS] = [const { Slot::new(std::ptr::null_mut()) }; FUNCTIONS];
static CORE_PLACES: Places = places(&CORE_SLOTS);
static CORE2_PLACES: Places = places(&CORE2_SLOTS);
static TABLE: Table = Table { size: size_of::<Table>(), get };

/// Index 0 is no function.
const fn places(slots: &'static [Slot; FUNCTIONS]) -> Places {
    let mut places = [std::ptr::null(); FUNCTIONS];
    let mut index = 1;
    while index < FUNCTIONS {
        places[index] = &raw const slots[index];
        index += 1;
    }
    Places(places)
}

unsafe extern "C" fn get(module: u32, table: *mut *const *const Slot, size: *mut c_uint) -> c_int {
    let places = match module {
        CORE => &CORE_PLACES,
        CORE2 => &CORE2_PLACES,
        _ => return 0,
    };
    // SAFETY: the tool passes places for the answers.
    unsafe {
        table.write(places.0.as_ptr());
        size.write(FUNCTIONS as c_uint);
    }
    1
}

unsafe extern "C" fn export(id: u32) -> *const c_void {
    if id == CALLBACKS { (&raw const TABLE).cast() } else { std::ptr::null() }
}

/// Looks for a tool, once, as NVTX does.
fn initialise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var_os("NVTX_INJECTION64_PATH") else { return };
        let Ok(path) = CString::new(path.as_bytes()) else { return };
        // SAFETY: C strings; the function has the type that NVTX gives it.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
            let entry = if library.is_null() {
                std::ptr::null_mut()
            } else {
                libc::dlsym(library, c"InitializeInjectionNvtx2".as_ptr())
            };
            if !entry.is_null() {
                type Entry = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;
                std::mem::transmute::<*mut c_void, Entry>(entry)(export);
            }
        }
    });
}

fn function(slots: &[Slot; FUNCTIONS], index: usize) -> Option<*mut c_void> {
    initialise();
    let function = slots[index].load(Ordering::Acquire);
    (!function.is_null()).then_some(function)
}

/// Calls an NVTX function, if the tool has one.
macro_rules! call {
    ($slots:ident[$index:literal]($($argument:expr => $type:ty),*) -> $result:ty) => {
        function(&$slots, $index).map(|function| {
            // SAFETY: NVTX's headers give the function at this place this type.
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(function)($($argument),*) }
        })
    };
}

/// A domain's handle, made at its first use.
fn domain(name: &str) -> *mut c_void {
    static DOMAINS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let name = CString::new(name).unwrap_or_default();
        call!(CORE2_SLOTS[12](name.as_ptr() => *const c_char) -> *mut c_void)
            .map_or(0, <*mut c_void>::expose_provenance)
    };
    let handle = *domains.get_or_insert_default().entry(name.to_owned()).or_insert_with(make);
    std::ptr::with_exposed_provenance_mut(handle)
}

/// `nvtxRangePushA`; in a domain `nvtxDomainRangePushEx`, with a registered string.
pub fn push(text: &str, in_domain: Option<&str>) {
    let text = CString::new(text).unwrap_or_default();
    let Some(name) = in_domain else {
        call!(CORE_SLOTS[9](text.as_ptr() => *const c_char) -> c_int);
        return;
    };
    const REGISTERED: i32 = 3;
    let domain = domain(name);
    let registered = call!(CORE2_SLOTS[10](domain => *mut c_void, text.as_ptr() => *const c_char) -> *const c_char);
    let attributes = Attributes {
        version: 2,
        size: size_of::<Attributes>() as u16,
        category: 0,
        color_type: 0,
        color: 0,
        payload_type: 0,
        reserved: 0,
        payload: 0,
        message_type: REGISTERED,
        message: registered.unwrap_or(std::ptr::null()),
    };
    call!(CORE2_SLOTS[4](domain => *mut c_void, &raw const attributes => *const Attributes) -> c_int);
}

/// `nvtxRangePop`, or `nvtxDomainRangePop`.
pub fn pop(in_domain: Option<&str>) {
    match in_domain {
        None => call!(CORE_SLOTS[11]() -> c_int),
        Some(name) => {
            let domain = domain(name);
            call!(CORE2_SLOTS[5](domain => *mut c_void) -> c_int)
        }
    };
}

/// `nvtxMarkA`.
pub fn mark(text: &str) {
    let text = CString::new(text).unwrap_or_default();
    call!(CORE_SLOTS[2](text.as_ptr() => *const c_char) -> ());
}

/// `nvtxRangeStartA`: the range's id, or 0.
pub fn start(text: &str) -> u64 {
    let text = CString::new(text).unwrap_or_default();
    call!(CORE_SLOTS[5](text.as_ptr() => *const c_char) -> u64).unwrap_or(0)
}

/// `nvtxRangeEnd`.
pub fn end(id: u64) {
    call!(CORE_SLOTS[7](id => u64) -> ());
}
