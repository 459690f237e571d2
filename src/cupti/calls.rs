//! The names of CUDA functions, each looked up once, and of the threads that call them, each looked
//! up now and then.

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cupti_sys::bindings as cupti;
use rustc_hash::FxHashMap;

use crate::sys;

/// Functions and threads remembered. CUDA has some 1,300 functions; threads come and go.
const FUNCTIONS: usize = 8192;
const THREADS: usize = 4096;
/// How long the name of a thread holds: it may be changed, and the number may become that of
/// another thread.
const HOLDS: Duration = Duration::from_secs(5);

/// The names looked up so far.
pub(super) struct Calls {
    /// CUPTI's look-up function, if there is one.
    function_name: Option<cupti::cuptiGetCallbackName>,
    functions: FxHashMap<(u32, u32), Arc<str>>,
    threads: FxHashMap<i32, Thread>,
    /// When names of threads last became old, and how often they did.
    aged: Instant,
    age: u32,
}

/// A thread, by the name that it had at this age.
struct Thread {
    name: Arc<str>,
    age: u32,
}

impl Calls {
    pub(super) fn new(function_name: Option<cupti::cuptiGetCallbackName>) -> Calls {
        let (functions, threads) = (FxHashMap::default(), FxHashMap::default());
        Calls { function_name, functions, threads, aged: Instant::now(), age: 0 }
    }

    /// Looks threads up again, if it is time.
    pub(super) fn renew(&mut self) {
        if self.aged.elapsed() >= HOLDS {
            self.grow_old();
        }
    }

    fn grow_old(&mut self) {
        (self.aged, self.age) = (Instant::now(), self.age.wrapping_add(1));
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

    /// A thread's name. If it has ended, the last that is known, or none.
    pub(super) fn thread(&mut self, tid: i32) -> Arc<str> {
        if self.threads.len() >= THREADS {
            self.threads.clear();
        }
        let age = self.age;
        let look = || sys::name_of_thread(tid);
        let known = self.threads.entry(tid).or_insert_with(|| Thread { name: look().unwrap_or_default().into(), age });
        if known.age != age {
            known.age = age;
            if let Some(name) = look().filter(|name| **name != *known.name) {
                known.name = name.into();
            }
        }
        Arc::clone(&known.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_gets_another_name_is_called_by_it() {
        let mut calls = Calls::new(None);
        let ((tell, told), (go, gone)) = (mpsc::channel(), mpsc::channel());
        let body = move || {
            tell.send(sys::thread_id()).unwrap();
            gone.recv().unwrap();
            sys::thread::set_name(c"second");
            tell.send(0).unwrap();
            gone.recv().unwrap();
        };
        let thread = std::thread::Builder::new().name("first".into()).spawn(body).unwrap();
        let tid = told.recv().unwrap();
        assert_eq!(&*calls.thread(tid), "first");
        go.send(()).unwrap();
        told.recv().unwrap();
        calls.renew();
        assert_eq!(&*calls.thread(tid), "first", "it is not asked for each record");
        calls.grow_old();
        assert_eq!(&*calls.thread(tid), "second");
        go.send(()).unwrap();
        thread.join().unwrap();
        // The kernel may need a moment to remove it.
        while sys::name_of_thread(tid).is_some() {}
        calls.grow_old();
        assert_eq!(&*calls.thread(tid), "second", "its records come later than its end");
    }
}
