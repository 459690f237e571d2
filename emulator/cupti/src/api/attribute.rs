//! Attributes of the activity functions.

use std::sync::atomic::Ordering;

use crate::process;
use crate::subscriber::Client;
use crate::{calls, result, tracer};

const ZEROED_OUT_ACTIVITY_BUFFER: u32 = 5;
const PER_THREAD_ACTIVITY_BUFFER: u32 = 9;
const USER_DEFINED_RECORDS: u32 = 11;
const MULTIPLE_SUBSCRIBER_STATE: u32 = 12;
const ENABLE_HES: u32 = 13;
const THREAD_ID_TYPE: u32 = 21;
const TIMESTAMP_CALLBACK: u32 = 22;

/// The length of an attribute in bytes, by the headers.
fn length_of(number: u32) -> usize {
    match number {
        0..=4 | 6 | 7 | 10 | TIMESTAMP_CALLBACK | 24 => 8,
        THREAD_ID_TYPE => 4,
        _ => 1,
    }
}

/// Writes an attribute.
///
/// # Safety
///
/// `value` is null or has `*size` bytes.
pub(super) unsafe fn set(client: Client, number: u32, size: Option<&mut usize>, value: *mut u8) -> Result<(), u32> {
    let bytes = check(number, size.as_deref().copied(), value)?;
    let mut wanted = [0; 8];
    // SAFETY: not null, and `check` made sure that there are enough bytes.
    unsafe { std::ptr::copy_nonoverlapping(value, wanted.as_mut_ptr(), bytes) };
    let wanted = u64::from_ne_bytes(wanted);
    match number {
        ZEROED_OUT_ACTIVITY_BUFFER => tracer::ZEROED_BUFFERS.store(wanted != 0, Ordering::Relaxed),
        PER_THREAD_ACTIVITY_BUFFER => tracer::set_buffers_per_thread(wanted != 0),
        THREAD_ID_TYPE if wanted < calls::THREAD_ID_TYPES.into() => calls::set_thread_id_type(client, wanted as u32),
        // Not emulated; a caller that depends on it gets an error.
        THREAD_ID_TYPE | USER_DEFINED_RECORDS | MULTIPLE_SUBSCRIBER_STATE | ENABLE_HES | TIMESTAMP_CALLBACK => {
            return Err(result::NOT_SUPPORTED);
        }
        // The others have no effect here.
        _ => {}
    }
    Ok(())
}

/// Checks the arguments; returns the attribute's length.
fn check(number: u32, size: Option<usize>, value: *mut u8) -> Result<usize, u32> {
    let size = size.ok_or(result::INVALID_PARAMETER)?;
    if value.is_null() || number >= process::options().release.attributes() {
        return Err(result::INVALID_PARAMETER);
    }
    let bytes = length_of(number);
    if size < bytes { Err(result::PARAMETER_SIZE_NOT_SUFFICIENT) } else { Ok(bytes) }
}
