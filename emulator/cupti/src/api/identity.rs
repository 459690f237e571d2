//! Versions, results, time, and the ids of nodes.

use std::ffi::{CStr, c_char, c_void};

use super::{Out, exported, put};
use crate::release::Release;
use crate::{clock, objects, process, result, subscriber};

exported! {
    /// `cuptiGetVersion`.
    since V12_0, Anyone, Unneeded:
    fn cuptiGetVersion(version: Out<u32>) {
        put(version, process::options().version)
    }

    /// `cuptiGetResultString`. An unknown code has a string too, but is an error.
    since V12_0, Anyone, Unneeded:
    fn cuptiGetResultString(code: u32, string: Out<*const c_char>) {
        put_name(code, string)
    }

    /// `cuptiGetTimestamp`. From 13.3 on it is refused to a `_v2` subscriber.
    since V12_0, Anyone, Unneeded:
    fn cuptiGetTimestamp(timestamp: Out<u64>) {
        refuse_beside_v2()?;
        put(timestamp, process::machine().map_or_else(|_| clock::without_machine(), clock::now))
    }

    /// `cuptiGetGraphNodeId`: the graph's id in the upper half, the node's number in the lower.
    since V12_0, NoBuffer, Needed:
    fn cuptiGetGraphNodeId(node: *mut c_void, id: Out<u64>) {
        put_known(node, id, objects::node)
    }
}

fn put_name(code: u32, string: Out<*const c_char>) -> Result<(), u32> {
    let name = result::name(code, process::options().release);
    put(string, name.unwrap_or(c"<unknown>").as_ptr())?;
    name.map(|_| ()).ok_or(result::INVALID_PARAMETER)
}

/// Writes the id of an object, or an error if there is none.
fn put_known<T>(handle: *mut c_void, out: Out<T>, find: impl FnOnce(*mut c_void) -> Option<T>) -> Result<(), u32> {
    if handle.is_null() {
        return Err(result::INVALID_PARAMETER);
    }
    process::machine()?;
    put(out, find(handle).ok_or(result::INVALID_PARAMETER)?)
}

/// Refuses a function that has a `_v2` form to a subscriber from `cuptiSubscribe_v2`, from 13.3
/// on.
pub(super) fn refuse_beside_v2() -> Result<(), u32> {
    let is_v2 = subscriber::current().is_some_and(|subscriber| subscriber.is_v2);
    if is_v2 && process::options().release >= Release::V13_3 { Err(result::NOT_COMPATIBLE) } else { Ok(()) }
}

/// Forbids a function of the whole process beside subscribers that share. What the real one does is
/// not known, so nobody should depend on it.
pub(super) fn forbid_beside_sharing(function: &str) {
    if subscriber::is_shared() {
        process::misuse(&format!("{function} was called beside subscribers that share, instead of {function}_v2"));
    }
}

/// Refuses a function that its header says is not supported beside subscribers that share.
pub(super) fn refuse_if_shared() -> Result<(), u32> {
    if subscriber::is_shared() { Err(result::NOT_SUPPORTED) } else { Ok(()) }
}

/// The name of a subscriber, as it is told to others (13.0 Update 1 on H100).
pub(super) fn public_name(name: &CStr) -> Vec<u8> {
    let name = if name.is_empty() { c"<not provided>" } else { name };
    [b"CUPTI for ", name.to_bytes()].concat()
}
