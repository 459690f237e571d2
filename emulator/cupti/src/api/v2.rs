//! The functions with a subscriber argument, from 13.2 on. For a subscriber that does not share
//! they do the same as the older ones.

use std::ffi::c_void;

use super::activity::{check_external, disable, enable, next_record, pop_external};
use super::{Out, attribute, exported, put};
use crate::layout;
use crate::release::Release;
use crate::subscriber::{self, Client, Subscriber};
use crate::tracer::{self, BufferCallbacks, CompleteV2, RequestV2};
use crate::{calls, clock, process, result};

exported! {
    /// `cuptiActivityRegisterCallbacks_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityRegisterCallbacks_v2(
        subscriber: *mut Subscriber,
        request: Option<RequestV2>,
        complete: Option<CompleteV2>,
    ) {
        let client = check(subscriber)?;
        let request = request.ok_or(result::INVALID_PARAMETER)?;
        tracer::register(client, BufferCallbacks::V2(request, complete.ok_or(result::INVALID_PARAMETER)?));
        Ok(())
    }

    /// `cuptiActivityEnable_v2`. Records with chosen fields are not supported.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityEnable_v2(subscriber: *mut Subscriber, kind: u32, config: *const c_void) {
        let client = check(subscriber)?;
        check_config(config)?;
        enable(client, kind, false)
    }

    /// `cuptiActivityEnableAndDump_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityEnableAndDump_v2(subscriber: *mut Subscriber, kind: u32, config: *const c_void) {
        let client = check(subscriber)?;
        check_config(config)?;
        enable(client, kind, true)
    }

    /// `cuptiActivityDisable_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityDisable_v2(subscriber: *mut Subscriber, kind: u32, _config: *const c_void) {
        let client = check(subscriber)?;
        disable(client, kind)
    }

    /// `cuptiActivityGetNextRecord_v2`.
    since V13_3, Anyone, Later:
    fn cuptiActivityGetNextRecord_v2(
        subscriber: *mut Subscriber,
        buffer: *mut u8,
        valid: usize,
        record: Option<&mut *mut u8>,
    ) {
        if subscriber.is_null() {
            return Err(result::INVALID_PARAMETER);
        }
        process::machine()?;
        if subscriber::find(subscriber).is_none() {
            process::misuse("a buffer is read for a subscriber that is gone, whose handle the real one follows");
        }
        let record = record.ok_or(result::INVALID_PARAMETER)?;
        // SAFETY: the caller promises null or this many bytes.
        unsafe { next_record(buffer, valid, record) }
    }

    /// `cuptiActivityGetNumDroppedRecords_v2`.
    since V13_3, Anyone, Unneeded:
    fn cuptiActivityGetNumDroppedRecords_v2(
        subscriber: *mut Subscriber,
        _context: *mut c_void,
        _stream: u32,
        dropped: Out<usize>,
    ) {
        let client = check(subscriber)?;
        let dropped = dropped.ok_or(result::INVALID_PARAMETER)?;
        dropped.write(tracer::take_dropped(client) as usize);
        Ok(())
    }

    /// `cuptiActivitySetAttribute_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivitySetAttribute_v2(
        subscriber: *mut Subscriber,
        number: u32,
        size: Option<&mut usize>,
        value: *mut c_void,
    ) {
        let client = check(subscriber)?;
        // SAFETY: the caller promises null or this many bytes.
        unsafe { attribute::set(client, number, size, value.cast()) }
    }

    /// `cuptiActivityPushExternalCorrelationId_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityPushExternalCorrelationId_v2(subscriber: *mut Subscriber, kind: u32, id: u64) {
        let client = check(subscriber)?;
        check_external(kind)?;
        calls::push_external(client, kind, id)
    }

    /// `cuptiActivityPopExternalCorrelationId_v2`.
    since V13_3, NoBuffer, Needed:
    fn cuptiActivityPopExternalCorrelationId_v2(subscriber: *mut Subscriber, kind: u32, last: Out<u64>) {
        let client = check(subscriber)?;
        check_external(kind)?;
        pop_external(client, kind, last)
    }

    /// `cuptiGetTimestamp_v2`.
    since V13_3, Anyone, Unneeded:
    fn cuptiGetTimestamp_v2(subscriber: *mut Subscriber, timestamp: Out<u64>) {
        check(subscriber)?;
        put(timestamp, clock::now(process::machine()?))
    }

    /// `cuptiActivityGetStructSize`: the size in this release, or in an older one from 13.0 on.
    since V13_3, Anyone, Unneeded:
    fn cuptiActivityGetStructSize(kind: u32, version: u32, size: Out<usize>) {
        const FIRST: u32 = 130_000;
        let size = size.ok_or(result::INVALID_PARAMETER)?;
        let release = match version {
            0 => process::options().release,
            1..FIRST => return Err(result::NOT_SUPPORTED),
            // The newest release up to that version, by minor version: updates do not change
            // records.
            _ => {
                let older = |release: &Release| release.version() / 100 <= version / 100 && *release >= Release::V13_0;
                Release::ALL.into_iter().rev().find(older).unwrap_or(Release::V13_0)
            }
        };
        size.write(layout::size(kind, release).ok_or(result::INVALID_KIND)?);
        Ok(())
    }
}

/// Whose records a subscriber gets, if it is one.
fn check(subscriber: *mut Subscriber) -> Result<Client, u32> {
    subscriber::find(subscriber).map(Subscriber::client).ok_or(result::INVALID_PARAMETER)
}

/// A configuration that chooses fields or functions is not emulated.
fn check_config(config: *const c_void) -> Result<(), u32> {
    if config.is_null() { Ok(()) } else { Err(result::NOT_SUPPORTED) }
}
