//! Another tool that shares CUPTI (CUDA 13.3): a subscriber with buffers of its own, which counts
//! kernels that have ended.

use std::alloc::{self, Layout};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::gpu::cupti;

const BUFFER: Layout = match Layout::from_size_align(64 << 10, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};
const CONCURRENT_KERNEL: u32 = 10;
/// Where a kernel's record has its end, in bytes; 0 if it is not known.
const END: usize = 24;
const NAME: &CStr = c"sharer";

/// `CUpti_SubscriberParams` since CUDA 13.2.
#[repr(C)]
struct Parameters {
    size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_name_size: usize,
    allow_multiple: u8,
}

type Handle = *mut c_void;
type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);
type Subscribe = unsafe extern "C" fn(*mut Handle, Callback, *mut c_void, *mut Parameters) -> c_int;
type Register = unsafe extern "C" fn(Handle, Request, Complete) -> c_int;
type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize, *mut c_void);
type Complete = unsafe extern "C" fn(*mut u8, usize, usize, *mut c_void);
type Enable = unsafe extern "C" fn(Handle, u32, *mut c_void) -> c_int;
type Next = unsafe extern "C" fn(Handle, *mut u8, usize, *mut *mut u8) -> c_int;
type WithNumber = unsafe extern "C" fn(u32) -> c_int;
type Unsubscribe = unsafe extern "C" fn(Handle) -> c_int;

static SUBSCRIBER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static KERNELS: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" fn ignore(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize, _: *mut c_void) {
    // SAFETY: the layout has a size; CUPTI passes places to write to.
    unsafe {
        buffer.write(alloc::alloc(BUFFER));
        size.write(BUFFER.size());
        most.write(0);
    }
}

unsafe extern "C" fn complete(buffer: *mut u8, _: usize, valid: usize, _: *mut c_void) {
    let Ok(next) = cupti("cuptiActivityGetNextRecord_v2") else { return };
    let mut record = std::ptr::null_mut::<u8>();
    // SAFETY: CUPTI's headers give the function this type; the buffer has this many bytes, a record
    // begins with its kind, and the memory is from `request`.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Next>(next);
        while next(SUBSCRIBER.load(Ordering::SeqCst), buffer, valid, &raw mut record) == 0 {
            let is_kernel = record.cast::<u32>().read() == CONCURRENT_KERNEL;
            let has_ended = is_kernel && record.add(END).cast::<u64>().read() != 0;
            KERNELS.fetch_add(has_ended.into(), Ordering::SeqCst);
        }
        alloc::dealloc(buffer, BUFFER);
    }
}

/// Subscribes and counts kernels from here on. Returns the first answer of CUPTI's that is not
/// success; on stderr it reports the name of an earlier subscriber.
///
/// # Errors
///
/// If there is no CUPTI in the process that can be shared.
pub fn begin() -> Result<c_int, String> {
    let mut old_name = [0; 64];
    let mut parameters = Parameters {
        size: size_of::<Parameters>(),
        name: NAME.as_ptr(),
        old_name: old_name.as_mut_ptr(),
        old_name_size: old_name.len(),
        allow_multiple: 1,
    };
    let mut handle = std::ptr::null_mut();
    KERNELS.store(0, Ordering::SeqCst);
    // SAFETY: CUPTI's headers give the functions these types; what they are given lives for the
    // call, and the functions for buffers as long as the process.
    unsafe {
        let subscribe = std::mem::transmute::<*mut c_void, Subscribe>(cupti("cuptiSubscribe_v2")?);
        let answer = subscribe(&raw mut handle, ignore, std::ptr::null_mut(), &raw mut parameters);
        eprintln!("sharer: beside '{}'", CStr::from_ptr(old_name.as_ptr()).to_string_lossy());
        if answer != 0 {
            return Ok(answer);
        }
        SUBSCRIBER.store(handle, Ordering::SeqCst);
        let register = std::mem::transmute::<*mut c_void, Register>(cupti("cuptiActivityRegisterCallbacks_v2")?);
        let enable = std::mem::transmute::<*mut c_void, Enable>(cupti("cuptiActivityEnable_v2")?);
        let registered = register(handle, request, complete);
        let enabled = enable(handle, CONCURRENT_KERNEL, std::ptr::null_mut());
        Ok(if registered == 0 { enabled } else { registered })
    }
}

/// Takes what CUPTI has and unsubscribes. Returns the number of kernels.
///
/// # Errors
///
/// If there is no CUPTI in the process that can be shared.
pub fn end() -> Result<c_int, String> {
    let handle = SUBSCRIBER.load(Ordering::SeqCst);
    // SAFETY: as above; the handle is that of the subscription, and is not used again.
    unsafe {
        let disable = std::mem::transmute::<*mut c_void, Enable>(cupti("cuptiActivityDisable_v2")?);
        let flush = std::mem::transmute::<*mut c_void, WithNumber>(cupti("cuptiActivityFlushAll")?);
        let unsubscribe = std::mem::transmute::<*mut c_void, Unsubscribe>(cupti("cuptiUnsubscribe")?);
        disable(handle, CONCURRENT_KERNEL, std::ptr::null_mut());
        flush(0);
        unsubscribe(handle);
    }
    Ok(KERNELS.load(Ordering::SeqCst))
}
