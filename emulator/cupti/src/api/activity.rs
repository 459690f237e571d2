//! Activity records: kinds, buffers, flushing, external ids.

use std::ffi::c_void;

use super::identity::{forbid_beside_sharing, refuse_beside_v2, refuse_if_shared};
use super::{Out, attribute, exported, put};
use crate::clock::{self, TimestampCallback};
use crate::layout::kind;
use crate::release::Release;
use crate::subscriber::{Client, PROCESS};
use crate::tracer::{self, BufferCallbacks, Complete, Request};
use crate::{calls, objects, process, result, walk};

exported! {
    /// `cuptiActivityRegisterCallbacks`.
    since V12_0, NoBuffer, Unneeded:
    fn cuptiActivityRegisterCallbacks(request: Option<Request>, complete: Option<Complete>) {
        forbid_beside_sharing("cuptiActivityRegisterCallbacks");
        let request = request.ok_or(result::INVALID_PARAMETER)?;
        tracer::register(PROCESS, BufferCallbacks::V1(request, complete.ok_or(result::INVALID_PARAMETER)?));
        Ok(())
    }

    /// `cuptiActivityEnable`.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityEnable(kind: u32) {
        forbid_beside_sharing("cuptiActivityEnable");
        enable(PROCESS, kind, false)
    }

    /// `cuptiActivityEnableAndDump`: also writes records of the devices, contexts or streams that
    /// exist.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityEnableAndDump(kind: u32) {
        forbid_beside_sharing("cuptiActivityEnableAndDump");
        enable(PROCESS, kind, true)
    }

    /// `cuptiActivityDisable`. Work that was launched before is still recorded.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityDisable(kind: u32) {
        forbid_beside_sharing("cuptiActivityDisable");
        disable(PROCESS, kind)
    }

    /// `cuptiActivityEnableDriverApi`.
    since V12_9, NoBuffer, Needed:
    fn cuptiActivityEnableDriverApi(id: u32, enable: u8) {
        forbid_beside_sharing("cuptiActivityEnableDriverApi");
        choose_function(PROCESS, kind::DRIVER, id, enable != 0)
    }

    /// `cuptiActivityGetNextRecord`.
    since V12_0, Anyone, Unneeded:
    fn cuptiActivityGetNextRecord(buffer: *mut u8, valid: usize, record: Option<&mut *mut u8>) {
        forbid_beside_sharing("cuptiActivityGetNextRecord");
        let record = record.ok_or(result::INVALID_PARAMETER)?;
        // SAFETY: the caller promises null or this many bytes.
        unsafe { next_record(buffer, valid, record) }
    }

    /// `cuptiActivityGetNumDroppedRecords`. There is one queue, whatever the context and the
    /// stream.
    since V12_0, Anyone, Unneeded:
    fn cuptiActivityGetNumDroppedRecords(_context: *mut c_void, _stream: u32, dropped: Out<usize>) {
        forbid_beside_sharing("cuptiActivityGetNumDroppedRecords");
        let dropped = dropped.ok_or(result::INVALID_PARAMETER)?;
        if process::options().release == Release::V12_0 {
            process::machine()?;
        }
        dropped.write(tracer::take_dropped(PROCESS) as usize);
        Ok(())
    }

    /// `cuptiActivityFlushAll`. Flag 1 forces it.
    since V12_0, Outside, Needed:
    fn cuptiActivityFlushAll(flag: u32) {
        flush(flag)
    }

    /// `cuptiActivitySetAttribute`.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivitySetAttribute(number: u32, size: Option<&mut usize>, value: *mut c_void) {
        forbid_beside_sharing("cuptiActivitySetAttribute");
        process::machine()?;
        // SAFETY: the caller promises null or this many bytes.
        unsafe { attribute::set(PROCESS, number, size, value.cast()) }
    }

    /// `cuptiActivityPushExternalCorrelationId`. From 13.3 on it is refused to a `_v2` subscriber.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) {
        check_external(kind)?;
        refuse_beside_v2()?;
        calls::push_external(PROCESS, kind, id)
    }

    /// `cuptiActivityPopExternalCorrelationId`. From 13.3 on it is refused to a `_v2` subscriber.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityPopExternalCorrelationId(kind: u32, last: Out<u64>) {
        check_external(kind)?;
        refuse_beside_v2()?;
        pop_external(PROCESS, kind, last)
    }

    /// `cuptiActivityRegisterTimestampCallback`. The last registration applies to the whole
    /// process.
    since V12_0, NoBuffer, Needed:
    fn cuptiActivityRegisterTimestampCallback(clock: Option<TimestampCallback>) {
        let clock = clock.ok_or(result::INVALID_PARAMETER)?;
        clock::register(process::machine()?, clock);
        Ok(())
    }

    /// `cuptiSetThreadIdType`.
    since V12_0, NoBuffer, Needed:
    fn cuptiSetThreadIdType(id_type: u32) {
        refuse_if_shared()?;
        process::machine()?;
        if id_type >= calls::THREAD_ID_TYPES {
            return Err(result::NOT_SUPPORTED);
        }
        calls::set_thread_id_type(PROCESS, id_type);
        Ok(())
    }

    /// `cuptiGetThreadIdType`.
    since V12_0, NoBuffer, Needed:
    fn cuptiGetThreadIdType(id_type: Out<u32>) {
        refuse_if_shared()?;
        process::machine()?;
        put(id_type, calls::thread_id_type(PROCESS))
    }
}

/// `cuptiFinalize`. Nobody may call it in a process that belongs to others, so it ends the
/// process.
///
/// # Safety
///
/// None is needed; the signature is CUPTI's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuptiFinalize() -> result::CuptiResult {
    process::misuse("cuptiFinalize was called, which can crash the process and takes CUPTI from everybody in it");
}

/// Enables a kind, after its record was found to exist in this release.
pub(super) fn enable(client: Client, kind: u32, dump: bool) -> Result<(), u32> {
    let machine = process::machine()?;
    check_kind(kind)?;
    tracer::want(client, kind, true);
    match kind {
        // Without a dump the records of devices are written when the driver is initialised, and
        // only if the kind is enabled by then.
        kind::DEVICE if dump || objects::contexts().is_empty() => tracer::write_devices(client, machine, dump),
        kind::CONTEXT if dump => tracer::write_contexts(client),
        kind::STREAM if dump => tracer::write_streams(client),
        _ => {}
    }
    Ok(())
}

pub(super) fn disable(client: Client, kind: u32) -> Result<(), u32> {
    process::machine()?;
    check_kind(kind)?;
    tracer::want(client, kind, false);
    Ok(())
}

pub(super) fn choose_function(client: Client, kind: u32, id: u32, wanted: bool) -> Result<(), u32> {
    process::machine()?;
    let domain = if kind == kind::DRIVER { 1 } else { 2 };
    if id == 0 || id >= process::options().release.callbacks(domain) {
        return Err(result::INVALID_PARAMETER);
    }
    tracer::want_function(client, kind, id, wanted);
    Ok(())
}

/// Kinds that 13.0 dropped: events, metrics, instruction-level records.
const DROPPED_KINDS: [u32; 16] = [6, 7, 14, 15, 16, 21, 23, 24, 29, 30, 31, 32, 41, 42, 43, 44];

fn check_kind(kind: u32) -> Result<(), u32> {
    let release = process::options().release;
    let exists = (1..release.kinds()).contains(&kind);
    let is_dropped = release >= Release::V13_0 && DROPPED_KINDS.contains(&kind);
    if exists && !is_dropped { Ok(()) } else { Err(result::INVALID_KIND) }
}

/// Steps to the next record of a buffer.
///
/// # Safety
///
/// `buffer` is null or has `valid` bytes, and `record` is null or a record in it.
pub(super) unsafe fn next_record(buffer: *mut u8, valid: usize, record: &mut *mut u8) -> Result<(), u32> {
    if buffer.is_null() {
        return Err(result::INVALID_PARAMETER);
    }
    // SAFETY: not null, and the caller promises the rest.
    let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
    let previous = (!record.is_null()).then(|| *record as usize - buffer as usize);
    let offset = walk::next(bytes, previous, process::options().release)?;
    *record = buffer.wrapping_add(offset);
    Ok(())
}

fn flush(flag: u32) -> Result<(), u32> {
    const FORCED: u32 = 1;
    let machine = process::machine()?;
    if process::is_forked() {
        process::misuse("a forked child flushes, on which the real one hangs: its thread is in the parent");
    }
    tracer::flush(machine, flag & FORCED != 0);
    Ok(())
}

/// The kind is checked before the driver.
pub(super) fn check_external(kind: u32) -> Result<(), u32> {
    if !calls::is_external_kind(kind) {
        return Err(result::INVALID_PARAMETER);
    }
    process::machine().map(|_| ())
}

pub(super) fn pop_external(client: Client, kind: u32, last: Out<u64>) -> Result<(), u32> {
    let id = calls::pop_external(client, kind)?;
    if let Some(last) = last {
        last.write(id);
    }
    Ok(())
}
