//! NVTX: ranges and marks of programs that load this library through `NVTX_INJECTION64_PATH`, as
//! records of kind MARKER.
//!
//! The protocol is in NVTX's own headers (nvtxDetail/nvtxTypes.h of version 3): the program passes
//! tables of pointers to its functions, and the tool puts its own into them. Only functions with
//! byte strings are replaced; wide strings are ignored. It is an assumption that a registered
//! string comes back as its text, and that ranges with a handle belong to the process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::layout::kind;
use crate::{calls, clock, process, records, tracer};

/// `NvtxGetExportTableFunc_t`.
type GetExportTable = unsafe extern "C" fn(id: u32) -> *const c_void;
/// `NvtxFunctionTable`: an array of pointers to function pointers.
type FunctionTable = *mut *mut *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(module: u32, table: *mut FunctionTable, size: *mut c_uint) -> c_int,
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

const CALLBACKS: u32 = 1;
const CORE: u32 = 1;
const CORE2: u32 = 5;
const MESSAGE_ASCII: i32 = 1;
const MESSAGE_REGISTERED: i32 = 3;

/// The kind of a marker, as CUPTI flags it.
mod flag {
    pub(super) const INSTANTANEOUS: u32 = 1;
    pub(super) const START: u32 = 2;
    pub(super) const END: u32 = 4;
}

/// The owner of a marker, as CUPTI numbers it.
mod object {
    pub(super) const PROCESS: u32 = 1;
    pub(super) const THREAD: u32 = 2;
}

/// The entry point that NVTX looks for. Returns 0 if the tables cannot be obtained; then the
/// program runs without records.
///
/// # Safety
///
/// `table` is null or the program's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(table: Option<GetExportTable>) -> c_int {
    let Some(table) = table else { return 0 };
    // SAFETY: the program's function, which returns null or the table of that number.
    let Some(callbacks) = (unsafe { table(CALLBACKS).cast::<Callbacks>().as_ref() }) else { return 0 };
    let core: [(usize, *const c_void); 7] = [
        (1, mark_ex as *const c_void),
        (2, mark_a as *const c_void),
        (4, start_ex as *const c_void),
        (5, start_a as *const c_void),
        (7, end as *const c_void),
        (8, push_ex as *const c_void),
        (9, push_a as *const c_void),
    ];
    let core2: [(usize, *const c_void); 7] = [
        (1, domain_mark_ex as *const c_void),
        (2, domain_start_ex as *const c_void),
        (3, domain_end as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, register_a as *const c_void),
        (12, create_a as *const c_void),
    ];
    // SAFETY: the program's tables, which are as long as it says.
    unsafe {
        put(callbacks, CORE, &core)
            && put(callbacks, CORE, &[(11, pop as *const c_void)])
            && put(callbacks, CORE2, &core2)
    }
    .into()
}

/// Puts functions into the program's table of a module.
///
/// # Safety
///
/// The table is the program's.
unsafe fn put(callbacks: &Callbacks, module: u32, functions: &[(usize, *const c_void)]) -> bool {
    let (mut table, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller's promise; both are writable.
    if unsafe { (callbacks.table)(module, &raw mut table, &raw mut size) } == 0 || table.is_null() {
        return false;
    }
    for &(id, function) in functions.iter().filter(|(id, _)| *id < size as usize) {
        // SAFETY: within the table; each entry is null or the place of a function.
        if let Some(place) = unsafe { (*table.add(id)).as_mut() } {
            *place = function;
        }
    }
    true
}

thread_local! {
    /// The ranges open on this thread, innermost last, by domain.
    static OPEN: RefCell<HashMap<usize, Vec<u32>>> = RefCell::default();
}

static NEXT: AtomicU32 = AtomicU32::new(1);

/// The text of a name: passed directly or registered before; this library keeps registered texts
/// itself.
///
/// # Safety
///
/// The attributes are null or as NVTX fills them.
unsafe fn message(attributes: *const Attributes) -> *const c_char {
    // SAFETY: the caller's promise.
    match unsafe { attributes.as_ref() } {
        Some(it) if it.message_type == MESSAGE_ASCII || it.message_type == MESSAGE_REGISTERED => it.message,
        _ => std::ptr::null(),
    }
}

/// Writes a record.
///
/// # Safety
///
/// The texts are null or C strings; a domain is null or one of [`create_a`].
unsafe fn write(flags: u32, id: u32, object: u32, text: *const c_char, domain: *const c_char) {
    let clients = tracer::wanting(kind::MARKER);
    let Some(machine) = process::attached().filter(|_| !clients.is_empty()) else { return };
    let at = clock::now(machine);
    // SAFETY: the caller's promise.
    let name = unsafe { tracer::keep(text) };
    for client in clients {
        let of = (object, calls::thread_id(client));
        tracer::write_for(client, records::marker(process::options().release, flags, at, id, of, [name, domain]));
    }
}

fn push(domain: *const c_char, text: *const c_char) -> c_int {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the callers' promises.
    unsafe { write(flag::START, id, object::THREAD, text, domain) };
    OPEN.with_borrow_mut(|open| {
        let open = open.entry(domain as usize).or_default();
        open.push(id);
        open.len() as c_int - 1
    })
}

fn start(domain: *const c_char, text: *const c_char) -> u64 {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the callers' promises.
    unsafe { write(flag::START, id, object::PROCESS, text, domain) };
    id.into()
}

fn mark(domain: *const c_char, text: *const c_char) {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the callers' promises.
    unsafe { write(flag::INSTANTANEOUS, id, object::THREAD, text, domain) };
}

unsafe extern "C" fn mark_ex(attributes: *const Attributes) {
    // SAFETY: NVTX passes attributes.
    mark(std::ptr::null(), unsafe { message(attributes) });
}

unsafe extern "C" fn mark_a(text: *const c_char) {
    mark(std::ptr::null(), text);
}

unsafe extern "C" fn start_ex(attributes: *const Attributes) -> u64 {
    // SAFETY: NVTX passes attributes.
    start(std::ptr::null(), unsafe { message(attributes) })
}

unsafe extern "C" fn start_a(text: *const c_char) -> u64 {
    start(std::ptr::null(), text)
}

unsafe extern "C" fn end(id: u64) {
    // SAFETY: no texts.
    unsafe { write(flag::END, id as u32, object::PROCESS, std::ptr::null(), std::ptr::null()) };
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    // SAFETY: NVTX passes attributes.
    push(std::ptr::null(), unsafe { message(attributes) })
}

unsafe extern "C" fn push_a(text: *const c_char) -> c_int {
    push(std::ptr::null(), text)
}

unsafe extern "C" fn pop() -> c_int {
    // SAFETY: the domain is null.
    unsafe { domain_pop(std::ptr::null()) }
}

unsafe extern "C" fn domain_mark_ex(domain: *const c_char, attributes: *const Attributes) {
    // SAFETY: NVTX passes attributes.
    mark(domain, unsafe { message(attributes) });
}

unsafe extern "C" fn domain_start_ex(domain: *const c_char, attributes: *const Attributes) -> u64 {
    // SAFETY: NVTX passes attributes.
    start(domain, unsafe { message(attributes) })
}

unsafe extern "C" fn domain_end(domain: *const c_char, id: u64) {
    // SAFETY: the domain is one of `create_a`.
    unsafe { write(flag::END, id as u32, object::PROCESS, std::ptr::null(), domain) };
}

unsafe extern "C" fn domain_push_ex(domain: *const c_char, attributes: *const Attributes) -> c_int {
    // SAFETY: NVTX passes attributes.
    push(domain, unsafe { message(attributes) })
}

unsafe extern "C" fn domain_pop(domain: *const c_char) -> c_int {
    const NO_PUSH_POP_TRACKING: c_int = -2;
    let popped = OPEN.with_borrow_mut(|open| {
        let open = open.entry(domain as usize).or_default();
        Some((open.pop()?, open.len() as c_int))
    });
    let Some((id, depth)) = popped else { return NO_PUSH_POP_TRACKING };
    // SAFETY: the domain is null or one of `create_a`.
    unsafe { write(flag::END, id, object::THREAD, std::ptr::null(), domain) };
    depth
}

unsafe extern "C" fn register_a(_: *const c_char, text: *const c_char) -> *const c_char {
    // SAFETY: NVTX passes a C string.
    unsafe { tracer::keep(text) }
}

unsafe extern "C" fn create_a(name: *const c_char) -> *const c_char {
    // SAFETY: NVTX passes a C string.
    unsafe { tracer::keep(name) }
}
