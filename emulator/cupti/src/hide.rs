//! Hides functions that the emulated release does not have.
//!
//! Callers use `dlsym` to find out what a CUPTI can do. So when the library is loaded, it removes
//! the newer functions from its own dynamic symbol table: glibc does not find a symbol without a
//! value.

use std::ffi::{CStr, c_int, c_void};

use crate::process;
use crate::release::Release;

/// A function of CUPTI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) address: *const (),
    pub(crate) since: Release,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    let release = process::options().release;
    for function in crate::api::functions().filter(|function| function.since > release) {
        hide(&function);
    }
}

/// Removes a function from the symbol table of the library that contains it, if that library can
/// be opened as CUPTI.
fn hide(function: &Function) {
    const ASK_FOR_SYMBOL: c_int = 1;
    // SAFETY: plain data, for which zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut symbol: *mut c_void = std::ptr::null_mut();
    // SAFETY: an address of this code, and places for the answers; the flag asks for the symbol's
    // entry.
    let found = unsafe { dladdr1(function.address.cast(), &raw mut info, &raw mut symbol, ASK_FOR_SYMBOL) };
    if found == 0 || symbol.is_null() || info.dli_sname.is_null() {
        // It is linked into a program that does not export it.
        return;
    }
    // SAFETY: a name in the symbol table of a loaded library.
    let name = unsafe { CStr::from_ptr(info.dli_sname) };
    if name.to_bytes() != function.name.as_bytes() {
        return;
    }
    set_undefined(symbol.cast());
}

/// Makes a symbol undefined.
fn set_undefined(symbol: *mut Symbol) {
    // SAFETY: the call uses no memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = symbol.addr() & !(page - 1);
    let length = (symbol.addr() + size_of::<Symbol>()).next_multiple_of(page) - start;
    let pages = start as *mut c_void;
    // SAFETY: the pages of this library's symbol table, which only the loader writes, and this
    // runs under the loader's lock. They are made writable for two stores to one entry, and then
    // restored.
    unsafe {
        if libc::mprotect(pages, length, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            (*symbol).value = 0;
            (*symbol).section = 0;
            libc::mprotect(pages, length, libc::PROT_READ);
        }
    }
}
