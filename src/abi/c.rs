//! The entry point that CUDA calls, and our C interface for the program that NCCL runs in.
//! include/ncclscope.h describes the latter.

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::copies;
use crate::profiler::{self, HandOver};
use crate::record::recorder;
use crate::{fault, process, sys};

/// Starts the recording, where `CUDA_INJECTION64_PATH` names this library. The driver calls it on
/// the thread that is in `cuInit`, before `cuInit` returns, so CUPTI is there before the first
/// kernel. It always answers "accepted": CUDA goes on either way.
#[unsafe(no_mangle)]
extern "C" fn InitializeInjection() -> c_int {
    const ACCEPTED: c_int = 1;
    process::begin();
    if process::is_child() {
        return ACCEPTED;
    }
    fault::prepare();
    sys::without_cancellation(|| {
        if let Some(first) = copies::function(c"InitializeInjection") {
            return first();
        }
        let start = || {
            fault::at("cuInit");
            profiler::start_in_cuda_init();
        };
        if catch_unwind(start).is_err() {
            fault::say(format_args!("was caught in cuInit"));
        }
        ACCEPTED
    })
}

/// `ncclscope_version`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_version() -> *const c_char {
    copies::VERSION.as_ptr()
}

/// `ncclscope_release`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_release() -> c_int {
    hand_over(c"ncclscope_release", profiler::release_cupti)
}

/// `ncclscope_acquire`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_acquire() -> c_int {
    hand_over(c"ncclscope_acquire", profiler::acquire_cupti)
}

/// Passes the call to the copy that records, or answers it here.
fn hand_over(name: &CStr, ours: fn() -> HandOver) -> c_int {
    process::begin();
    if process::is_child() {
        return answer(ours);
    }
    sys::without_cancellation(|| copies::function(name).map_or_else(|| answer(ours), |first| first()))
}

/// Longest name kept, in bytes.
const NAME_LENGTH: usize = 255;
/// The name that the program gives to the communicators it creates from now on.
static NAME: Mutex<Option<CString>> = Mutex::new(None);

/// `ncclscope_name_comm`.
///
/// # Safety
///
/// `name` is null, or points at a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclscope_name_comm(name: *const c_char) {
    process::begin();
    if process::is_child() {
        return;
    }
    if let Some(first) = copies::name_comm() {
        // SAFETY: the caller's promise.
        return unsafe { first(name) };
    }
    let keep = || {
        fault::at("name comm");
        let name = (!name.is_null()).then(|| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
            CString::new(bytes.get(..NAME_LENGTH).unwrap_or(bytes)).unwrap_or_default()
        });
        if let Some(mut kept) = lock() {
            *kept = name.filter(|name| !name.is_empty());
        }
    };
    if catch_unwind(AssertUnwindSafe(keep)).is_err() {
        fault::say(format_args!("was caught in ncclscope_name_comm"));
    }
}

/// `ncclscope_step`.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_step(number: u64) {
    process::begin();
    if process::is_child() {
        return;
    }
    match copies::step() {
        Some(first) => first(number),
        None if catch_unwind(|| step(number)).is_err() => recorder::count_panic(),
        None => {}
    }
}

fn step(number: u64) {
    fault::at("step");
    recorder::step(number);
}

/// The name that the program gives to the communicators it creates now, if it gives one.
pub(super) fn comm_name() -> Option<CString> {
    lock()?.clone()
}

/// Locks the name, waiting 100 ms at most: in a child that was forked while another thread held the
/// lock, it never opens.
fn lock() -> Option<MutexGuard<'static, Option<CString>>> {
    for _ in 0..100 {
        match NAME.try_lock() {
            Ok(name) => return Some(name),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Runs `body` so that no panic unwinds into C, and answers with the header's number.
fn answer(body: impl FnOnce() -> HandOver) -> c_int {
    let body = || {
        fault::at("hand over");
        body()
    };
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        fault::say(format_args!("was caught while CUPTI changed hands"));
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
