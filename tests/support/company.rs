//! A stand-in for the CUPTI side of torch.profiler since August 2026 (pytorch/kineto 7a3ba363),
//! which never subscribes. It registers buffer functions, of which CUPTI keeps only the last ones,
//! enables kinds, and disables kernels at its end.
//!
//! Its buffers are not cleared, just as `malloc` does not clear memory. A buffer that it does not
//! know is left alone and counted.

use std::alloc::{self, Layout};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::gpu::cupti;

const SIZE: usize = 64 << 10;
const ALIGNMENT: usize = 8;
/// The content of memory that nobody has cleared.
const DIRT: u8 = 0xa5;
const CONCURRENT_KERNEL: u32 = 10;
const RUNTIME: u32 = 5;
const FORCED: u32 = 1;

type Register = unsafe extern "C" fn(Request, Complete) -> c_int;
type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type WithNumber = unsafe extern "C" fn(u32) -> c_int;

#[derive(Default)]
struct Profile {
    /// Buffers that CUPTI holds, by address.
    lent: HashMap<usize, Layout>,
    kernels: i32,
    foreign: u32,
    dirty: u32,
}

static PROFILE: Mutex<Option<Profile>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut Profile) -> T) -> T {
    use_it(PROFILE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    let layout = Layout::from_size_align(SIZE, ALIGNMENT).expect("a layout");
    // SAFETY: the layout has a size; the memory is this long; CUPTI passes places to write to.
    unsafe {
        let memory = alloc::alloc(layout);
        assert!(!memory.is_null(), "no memory");
        memory.write_bytes(DIRT, SIZE);
        with(|profile| profile.lent.insert(memory.expose_provenance(), layout));
        buffer.write(memory);
        size.write(SIZE);
        most.write(0);
    }
}

unsafe extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let Some(layout) = with(|profile| profile.lent.remove(&buffer.addr())) else {
        with(|profile| profile.foreign += 1);
        return;
    };
    // SAFETY: a buffer of ours, which CUPTI returned with this many bytes in it; freed once.
    unsafe {
        let (found, is_dirty) = (kernels(buffer, valid), buffer.add(SIZE - 1).read() == DIRT);
        with(|profile| {
            profile.kernels += found;
            profile.dirty += u32::from(is_dirty);
        });
        alloc::dealloc(buffer, layout);
    }
}

/// The number of kernels in a buffer.
///
/// # Safety
///
/// CUPTI has filled this many bytes of it.
unsafe fn kernels(buffer: *mut u8, valid: usize) -> i32 {
    let Ok(next) = cupti("cuptiActivityGetNextRecord") else { return 0 };
    let (mut record, mut kernels) = (std::ptr::null_mut::<u8>(), 0);
    // SAFETY: CUPTI's headers give the function this type; a record begins with its kind.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Next>(next);
        while next(buffer, valid, &raw mut record) == 0 {
            kernels += i32::from(record.cast::<u32>().read() == CONCURRENT_KERNEL);
        }
    }
    kernels
}

/// Calls a CUPTI function that takes a number.
fn call(function: &str, number: u32) -> Result<c_int, String> {
    // SAFETY: CUPTI's headers give these functions this type.
    unsafe { Ok(std::mem::transmute::<*mut c_void, WithNumber>(cupti(function)?)(number)) }
}

/// Begins a profile. Returns CUPTI's answer.
///
/// # Errors
///
/// If there is no CUPTI in the process.
pub fn begin() -> Result<c_int, String> {
    with(|profile| profile.kernels = 0);
    // SAFETY: CUPTI's headers give the function this type; both functions live as long as the
    // process.
    let registered = unsafe {
        let register = std::mem::transmute::<*mut c_void, Register>(cupti("cuptiActivityRegisterCallbacks")?);
        register(request, complete)
    };
    let enabled = [call("cuptiActivityEnable", CONCURRENT_KERNEL)?, call("cuptiActivityEnable", RUNTIME)?];
    Ok(enabled.into_iter().fold(registered, |first, answer| if first == 0 { answer } else { first }))
}

/// Ends the profile. Returns the number of its kernels. On stderr it reports what became of
/// buffers: foreign ones that arrived; its own that CUPTI did not clear before use; its own that
/// did not arrive, and how many of these contain what CUPTI wrote.
///
/// # Errors
///
/// If there is no CUPTI in the process.
pub fn end() -> Result<c_int, String> {
    call("cuptiActivityDisable", RUNTIME)?;
    call("cuptiActivityDisable", CONCURRENT_KERNEL)?;
    call("cuptiActivityFlushAll", FORCED)?;
    with(|profile| {
        let Profile { lent, kernels, foreign, dirty } = profile;
        // SAFETY: memory of ours that was not freed; what CUPTI may still write to it is of no
        // interest.
        let kind = |address: &usize| unsafe { std::ptr::with_exposed_provenance::<u32>(*address).read_volatile() };
        let written = lent.keys().filter(|address| (1..100).contains(&kind(address))).count();
        let gone = lent.len();
        eprintln!(
            "profile: {kernels} kernels, {foreign} foreign, {dirty} dirty, {gone} gone, {written} of them written"
        );
        Ok(*kernels)
    })
}

/// Gives CUPTI a clock of this tool's: ticks, 2.1 per ns, as torch.profiler gives it the
/// processor's. Returns CUPTI's answer.
///
/// # Errors
///
/// If there is no CUPTI in the process.
pub fn take_clock() -> Result<c_int, String> {
    type Register = unsafe extern "C" fn(extern "C" fn() -> u64) -> c_int;
    extern "C" fn ticks() -> u64 {
        u64::try_from(u128::from(crate::player::boottime()) * 21 / 10).unwrap_or_default()
    }
    // SAFETY: CUPTI's headers give the function this type, and the clock lives as long as the
    // process.
    unsafe {
        let register = std::mem::transmute::<*mut c_void, Register>(cupti("cuptiActivityRegisterTimestampCallback")?);
        Ok(register(ticks))
    }
}
