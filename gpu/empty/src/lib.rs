//! A profiler plugin that asks NCCL for the same events as preset `standard`, and ignores them.
//!
//! Its cost is what NCCL itself does for a profiler. The rest of our plugin's cost is our own.

use std::ffi::{c_char, c_int, c_void};

/// Calls, launches, operations, the proxy's operations and steps, as in preset `standard`.
/// Releases ignore bits that they do not know.
const MASK: c_int = 0b1111_0001_1111;

type Init = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
/// From v5 on the communicator's id comes before the mask.
type InitNumbered = unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int) -> c_int;

/// The table that NCCL looks up. It is the same in every version except for the type of `init`.
#[repr(C)]
struct Table<I> {
    name: *const c_char,
    init: I,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: nothing in it is ever written.
unsafe impl<I> Sync for Table<I> {}

impl<I> Table<I> {
    const fn new(init: I) -> Table<I> {
        Table { name: c"ncclscope-empty".as_ptr(), init, start, stop, state, finalize }
    }
}

macro_rules! export {
    ($($symbol:ident: $init:ty = $function:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        static $symbol: Table<$init> = Table::<$init>::new($function);
    )*};
}

// Further arguments of `init` are ignored; the caller removes them from the stack.
export! {
    ncclProfiler_v1: Init = init;
    ncclProfiler_v2: Init = init;
    ncclProfiler_v3: Init = init;
    ncclProfiler_v4: Init = init;
    ncclProfiler_v5: InitNumbered = init_numbered;
    ncclProfiler_v6: InitNumbered = init_numbered;
    ncclProfiler_v7: InitNumbered = init_numbered;
}

/// The handle of events and communicators: anything but null, for which NCCL would omit the events
/// that belong to it.
const SOMETHING: *mut c_void = std::ptr::without_provenance_mut(0x40);

unsafe extern "C" fn init(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL passes places for both.
    unsafe {
        *context = SOMETHING;
        *mask = MASK;
    }
    0
}

unsafe extern "C" fn init_numbered(context: *mut *mut c_void, _: u64, mask: *mut c_int) -> c_int {
    // SAFETY: the same promises.
    unsafe { init(context, mask) }
}

unsafe extern "C" fn start(_: *mut c_void, handle: *mut *mut c_void, _: *const c_void) -> c_int {
    // SAFETY: NCCL passes a place for the handle.
    unsafe { *handle = SOMETHING };
    0
}

unsafe extern "C" fn stop(_: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn state(_: *mut c_void, _: c_int, _: *const c_void) -> c_int {
    0
}

unsafe extern "C" fn finalize(_: *mut c_void) -> c_int {
    0
}
