//! What CUDA calls, and our own C interface for the program that NCCL runs in: include/ncclscope.h describes that.

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::copies;
use crate::profiler::{self, HandOver};
use crate::record::recorder;

/// Called by the driver on the thread that is in `cuInit`, before that returns, where `CUDA_INJECTION64_PATH` names this
/// library: the recording starts here, and CUPTI is there before the first kernel. Always answers that it went well: CUDA runs
/// on either way.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // CUDA's name
extern "C" fn InitializeInjection() -> c_int {
    const ACCEPTED: c_int = 1;
    if let Some(first) = copies::function(c"InitializeInjection") {
        return first();
    }
    if catch_unwind(profiler::start_in_cuda_init).is_err() {
        recorder::count_panic();
    }
    ACCEPTED
}

/// `ncclscope_version`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_version() -> *const c_char {
    copies::VERSION.as_ptr()
}

/// `ncclscope_release`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_release() -> c_int {
    copies::function(c"ncclscope_release").map_or_else(|| answer(profiler::release_cupti), |first| first())
}

/// `ncclscope_acquire`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_acquire() -> c_int {
    copies::function(c"ncclscope_acquire").map_or_else(|| answer(profiler::acquire_cupti), |first| first())
}

/// Longest name that is kept, in bytes.
const NAME_LENGTH: usize = 255;
/// What the program calls the communicators that it makes now.
static NAME: Mutex<Option<CString>> = Mutex::new(None);

/// `ncclscope_name_comm`.
///
/// # Safety
///
/// `name` is null, or points at a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclscope_name_comm(name: *const c_char) {
    if let Some(first) = copies::name_comm() {
        // SAFETY: the caller's promise.
        return unsafe { first(name) };
    }
    let keep = || {
        let name = (!name.is_null()).then(|| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
            CString::new(&bytes[..bytes.len().min(NAME_LENGTH)]).unwrap_or_default()
        });
        *NAME.lock().unwrap_or_else(PoisonError::into_inner) = name.filter(|name| !name.is_empty());
    };
    if catch_unwind(AssertUnwindSafe(keep)).is_err() {
        recorder::count_panic();
    }
}

/// What the program calls the communicators that it makes now, if it says. For `init`: it locks.
pub(super) fn comm_name() -> Option<CString> {
    NAME.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Runs `body` so that no panic unwinds into C, and answers with the header's number.
fn answer(body: impl FnOnce() -> HandOver) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        recorder::count_panic();
        HandOver::Unavailable
    });
    match result {
        HandOver::Done => 0,
        HandOver::NotRecording => 1,
        HandOver::SwitchedOff => 2,
        HandOver::Taken => 3,
        HandOver::Unavailable => 4,
        HandOver::Late => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_these_numbers() {
        let header = include_str!("../../include/ncclscope.h");
        for (name, result) in [
            ("NCCLSCOPE_SUCCESS", HandOver::Done),
            ("NCCLSCOPE_NOT_RECORDING", HandOver::NotRecording),
            ("NCCLSCOPE_SWITCHED_OFF", HandOver::SwitchedOff),
            ("NCCLSCOPE_TAKEN", HandOver::Taken),
            ("NCCLSCOPE_UNAVAILABLE", HandOver::Unavailable),
            ("NCCLSCOPE_LATE", HandOver::Late),
        ] {
            let line = format!("  {name} = {}", answer(|| result));
            assert!(header.contains(&line), "{line}");
        }
    }
}
