//! The names of CUDA functions and of the threads that call them, each looked up once.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Arc;

use cupti_sys::bindings as cupti;
use rustc_hash::FxHashMap;

use crate::sys;

/// Functions and threads remembered. CUDA has some 1,300 functions; threads come and go.
const FUNCTIONS: usize = 8192;
const THREADS: usize = 4096;

/// The names looked up so far.
pub(super) struct Calls {
    /// CUPTI's look-up function, if there is one.
    function_name: Option<cupti::cuptiGetCallbackName>,
    functions: FxHashMap<(u32, u32), Arc<str>>,
    threads: FxHashMap<i32, Arc<str>>,
}

impl Calls {
    pub(super) fn new(function_name: Option<cupti::cuptiGetCallbackName>) -> Calls {
        Calls { function_name, functions: FxHashMap::default(), threads: FxHashMap::default() }
    }

    /// The name of a driver or runtime function, as CUPTI spells it; its number if CUPTI does not
    /// know it.
    pub(super) fn function(&mut self, domain: u32, id: u32) -> Arc<str> {
        if self.functions.len() >= FUNCTIONS {
            self.functions.clear();
        }
        let ask = self.function_name;
        let name = || {
            let mut name: *const c_char = ptr::null();
            // SAFETY: the name is writable. This is not a callback, and the function only reads a
            // table.
            let result = ask.map(|ask| unsafe { ask(domain, id, &raw mut name) });
            if result != Some(cupti::CUPTI_SUCCESS) || name.is_null() {
                let api = if domain == cupti::CUPTI_CB_DOMAIN_DRIVER_API { "driver" } else { "runtime" };
                return format!("{api} function {id}").into();
            }
            // SAFETY: a C string in the library, which stays mapped.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into()
        };
        Arc::clone(self.functions.entry((domain, id)).or_insert_with(name))
    }

    /// A thread's current name; empty if the thread has ended.
    pub(super) fn thread(&mut self, tid: i32) -> Arc<str> {
        if self.threads.len() >= THREADS {
            self.threads.clear();
        }
        Arc::clone(self.threads.entry(tid).or_insert_with(|| sys::name_of_thread(tid).unwrap_or_default().into()))
    }
}
