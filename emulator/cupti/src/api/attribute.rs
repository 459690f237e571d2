//! Attributes of the activity functions.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::process::{self, lock};
use crate::subscriber::{self, Client};
use crate::{calls, result, tracer};

const ZEROED_OUT_ACTIVITY_BUFFER: u32 = 5;
const PER_THREAD_ACTIVITY_BUFFER: u32 = 9;
const USER_DEFINED_RECORDS: u32 = 11;
const MULTIPLE_SUBSCRIBER_STATE: u32 = 12;
const ENABLE_HES: u32 = 13;
const ENABLE_LATENCY_TIMESTAMPS: u32 = 15;
const THREAD_ID_TYPE: u32 = 21;
const TIMESTAMP_CALLBACK: u32 = 22;

/// Its size in bytes and its initial value. The headers give the sizes.
fn kind_of(number: u32) -> (usize, u64) {
    match number {
        0 => (8, 3_200_000),
        1 => (8, 8 << 20),
        2 | 4 => (8, 250),
        3 => (8, 25_000),
        6 | 7 => (8, 3),
        10 => (8, 16 << 20),
        THREAD_ID_TYPE => (4, 0),
        TIMESTAMP_CALLBACK => (8, 0),
        24 => (8, 128),
        _ => (1, 0),
    }
}

/// The values of attributes that have no effect here.
static VALUES: Mutex<Option<HashMap<u32, u64>>> = Mutex::new(None);

/// Reads an attribute.
///
/// # Safety
///
/// `value` is null or has room for `*size` bytes.
pub(super) unsafe fn get(client: Client, number: u32, size: Option<&mut usize>, value: *mut u8) -> Result<(), u32> {
    let (bytes, initial) = check(number, size.as_deref().copied(), value)?;
    let current = match number {
        ZEROED_OUT_ACTIVITY_BUFFER => tracer::ZEROED_BUFFERS.load(Ordering::Relaxed).into(),
        PER_THREAD_ACTIVITY_BUFFER => tracer::has_buffers_per_thread().into(),
        ENABLE_LATENCY_TIMESTAMPS => tracer::LATENCY.load(Ordering::Relaxed).into(),
        THREAD_ID_TYPE => calls::thread_id_type(client).into(),
        // 2 means undecided.
        MULTIPLE_SUBSCRIBER_STATE => subscriber::current().map_or(2, |first| first.shares.into()),
        _ => lock(&VALUES).get_or_insert_default().get(&number).copied().unwrap_or(initial),
    };
    // SAFETY: not null, and `check` made sure that there is enough room.
    unsafe { std::ptr::copy_nonoverlapping(current.to_ne_bytes().as_ptr(), value, bytes) };
    if let Some(size) = size {
        *size = bytes;
    }
    Ok(())
}

/// Writes an attribute.
///
/// # Safety
///
/// `value` is null or has `*size` bytes.
pub(super) unsafe fn set(client: Client, number: u32, size: Option<&mut usize>, value: *mut u8) -> Result<(), u32> {
    let (bytes, _) = check(number, size.as_deref().copied(), value)?;
    let mut wanted = [0; 8];
    // SAFETY: not null, and `check` made sure that there are enough bytes.
    unsafe { std::ptr::copy_nonoverlapping(value, wanted.as_mut_ptr(), bytes) };
    let wanted = u64::from_ne_bytes(wanted);
    match number {
        ZEROED_OUT_ACTIVITY_BUFFER => tracer::ZEROED_BUFFERS.store(wanted != 0, Ordering::Relaxed),
        PER_THREAD_ACTIVITY_BUFFER => tracer::set_buffers_per_thread(wanted != 0),
        ENABLE_LATENCY_TIMESTAMPS => tracer::LATENCY.store(wanted != 0, Ordering::Relaxed),
        THREAD_ID_TYPE if wanted < calls::THREAD_ID_TYPES.into() => calls::set_thread_id_type(client, wanted as u32),
        // Not emulated; a caller that depends on it gets an error.
        THREAD_ID_TYPE | USER_DEFINED_RECORDS | MULTIPLE_SUBSCRIBER_STATE | ENABLE_HES | TIMESTAMP_CALLBACK => {
            return Err(result::NOT_SUPPORTED);
        }
        _ => {
            lock(&VALUES).get_or_insert_default().insert(number, wanted);
        }
    }
    Ok(())
}

/// Checks the arguments; returns the attribute's size and initial value.
fn check(number: u32, size: Option<usize>, value: *mut u8) -> Result<(usize, u64), u32> {
    let size = size.ok_or(result::INVALID_PARAMETER)?;
    if value.is_null() || number >= process::options().release.attributes() {
        return Err(result::INVALID_PARAMETER);
    }
    let (bytes, initial) = kind_of(number);
    if size < bytes { Err(result::PARAMETER_SIZE_NOT_SUFFICIENT) } else { Ok((bytes, initial)) }
}
