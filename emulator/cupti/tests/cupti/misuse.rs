//! Use that the real library would crash or hang on ends the process, with the reason.

use std::ffi::c_void;
use std::sync::Mutex;

use emulated_cupti::layout::kind;
use observe::ResourceKind;

use crate::alone::{alone, dies};
use crate::consumer;
use crate::cupti;
use crate::host;
use crate::library::Cupti;

static LIBRARY: Mutex<Option<Cupti>> = Mutex::new(None);

fn library() -> Cupti {
    LIBRARY.lock().expect("no test panics there").expect("it was set")
}

fn remember(cupti: Cupti) -> Cupti {
    *LIBRARY.lock().expect("no test panics there") = Some(cupti);
    cupti
}

/// Records a kernel and flushes, with these functions for buffers.
fn record(request: crate::library::Request, complete: crate::library::Complete) {
    let cupti = remember(Cupti::emulated());
    cupti.subscribe_deaf();
    cupti.register(request, complete);
    cupti.enable(&[kind::CONCURRENT_KERNEL]);
    host::finish(host::launch(host::kernel(13)), host::now(), 10);
    cupti.flush(false);
}

#[test]
fn cupti_is_never_finalized() {
    dies("", "cuptiFinalize was called", || {
        cupti!(Cupti::emulated(), cuptiFinalize());
    });
}

#[test]
fn a_buffer_callback_does_not_flush() {
    unsafe extern "C" fn flushes(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: usize) {
        library().flush(false);
    }
    dies("", "cuptiActivityFlushAll was called from a buffer callback", || record(consumer::request, flushes));
}

#[test]
fn a_buffer_callback_may_count_drops_and_step_through_its_records() {
    unsafe extern "C" fn looks(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, valid: usize) {
        // SAFETY: memory from `consumer::request`, filled up to here.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
        assert_eq!(library().walk(bytes), (vec![0], 12));
        assert_eq!(library().dropped(), 0);
        // SAFETY: as CUPTI called this function.
        unsafe { consumer::complete(context, stream, buffer, size, valid) };
    }
    alone("", || {
        record(consumer::request, looks);
        assert_eq!(consumer::take().len(), 1);
    });
}

#[test]
fn a_buffer_callback_does_not_call_cuda() {
    unsafe extern "C" fn calls(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
        host::call(c"cudaMallocHost", None, |_| ());
        // SAFETY: as CUPTI called this function.
        unsafe { consumer::request(buffer, size, most) };
    }
    dies("", "a buffer callback called CUDA", || record(calls, consumer::complete));
}

#[test]
fn a_resource_callback_does_not_flush() {
    unsafe extern "C" fn flushes(_: *mut c_void, _: u32, _: u32, _: *const c_void) {
        library().flush(false);
    }
    dies("", "cuptiActivityFlushAll was called from a callback that is not of an API call", || {
        let cupti = remember(Cupti::emulated());
        let handle = cupti.subscribe(flushes, std::ptr::null_mut()).expect("nobody has subscribed");
        cupti.register(consumer::request, consumer::complete);
        cupti.call_back(handle, 3, 3);
        host::tell(&host::stream(ResourceKind::StreamCreated, 0x5000, 13));
    });
}

#[test]
fn a_request_is_not_answered_with_null_before_12_9() {
    dies("release=12.0", "answered with NULL", || {
        consumer::supply(|supply| supply.left = 0);
        record(consumer::request, consumer::complete);
    });
}

#[test]
fn a_buffer_is_not_given_twice() {
    unsafe extern "C" fn same(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
        static MEMORY: Mutex<[u64; 512]> = Mutex::new([0; 512]);
        // SAFETY: places provided by CUPTI.
        unsafe {
            buffer.write(MEMORY.lock().expect("no test panics there").as_mut_ptr().cast());
            size.write(4096);
            most.write(1);
        }
    }
    dies("", "a buffer was given that CUPTI still has", || {
        let cupti = consumer::start(&[]);
        cupti.register(same, consumer::complete);
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        host::launch(host::kernel(13));
        host::launch(host::kernel(13));
    });
}

#[test]
fn a_promise_of_zeroes_is_kept() {
    dies("", "a buffer is not zeroed, although attribute 5 promises it", || {
        let cupti = consumer::start(&[]);
        cupti.set_switch(5, 1);
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        host::launch(host::kernel(13));
    });
}

#[test]
fn a_buffer_is_aligned() {
    unsafe extern "C" fn odd(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
        // SAFETY: as CUPTI called this function; the buffer has room for four bytes less.
        unsafe {
            consumer::request(buffer, size, most);
            buffer.write(buffer.read().add(4));
            size.write(size.read() - 4);
        }
    }
    dies("", "not aligned to 8 bytes", || record(odd, consumer::complete));
}

#[test]
fn a_forked_child_does_not_flush() {
    dies("", "a forked child flushes", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        // SAFETY: this process has no other threads in use, and the child only calls CUPTI.
        let child = unsafe { libc::fork() };
        if child == 0 {
            cupti.flush(false);
            std::process::exit(0);
        }
        let mut status = 0;
        // SAFETY: the child that was just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFSIGNALED(status), "the child lives");
        std::process::abort();
    });
}

#[test]
fn a_forked_child_may_go_on_without_cupti() {
    alone("", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL, kind::DRIVER]);
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child == 0 {
            host::launch(host::kernel(13));
            // SAFETY: the child has nothing to clean up.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child that was just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status));
        host::finish(host::launch(host::kernel(13)), host::now(), 10);
        cupti.flush(false);
        assert_eq!(consumer::records(cupti).len(), 2);
    });
}
