//! Subscribing, and choosing callbacks.

use std::ffi::{CStr, CString, c_char, c_void};

use super::identity::public_name;
use super::{Out, exported, put};
use crate::names::{self, domain};
use crate::release::Release;
use crate::subscriber::{self, Callback, Subscriber};
use crate::{process, result, tracer};

/// `CUpti_SubscriberParams`. `allow_multiple` came with 13.2.
#[repr(C)]
#[derive(Debug)]
pub struct SubscriberParams {
    /// Its own size, which must be the release's.
    pub size: usize,
    /// The subscriber's name, or null.
    pub name: *const c_char,
    /// Where the name of an earlier subscriber goes, or null.
    pub old_name: *mut c_char,
    /// The room there, in bytes.
    pub old_name_size: usize,
    /// Whether others may subscribe too.
    pub allow_multiple: u8,
}

/// The size of [`SubscriberParams`] up to 13.1.
const SHORT_PARAMS: usize = 32;
/// The size since then.
const LONG_PARAMS: usize = 40;

exported! {
    /// `cuptiSubscribe`.
    since V12_0, NoBuffer, Needed:
    fn cuptiSubscribe(handle: Out<*mut Subscriber>, callback: Option<Callback>, user: *mut c_void) {
        // 12.0 checks its arguments before it looks for the driver.
        if handle.is_none() && process::options().release == Release::V12_0 {
            return Err(result::INVALID_PARAMETER);
        }
        process::machine()?;
        let handle = handle.ok_or(result::INVALID_PARAMETER)?;
        let subscriber = subscribe(callback, user, CString::default(), false, false);
        handle.write(subscriber.map_err(|(code, _)| code)?.0);
        Ok(())
    }

    /// `cuptiSubscribe_v2`. Sharing is refused unless the driver allows it, which the options say.
    since V13_0, NoBuffer, Needed:
    fn cuptiSubscribe_v2(
        handle: Out<*mut Subscriber>,
        callback: Option<Callback>,
        user: *mut c_void,
        params: Option<&mut SubscriberParams>,
    ) {
        process::machine()?;
        let handle = handle.ok_or(result::INVALID_PARAMETER)?;
        let expected = if process::options().release < Release::V13_3 { SHORT_PARAMS } else { LONG_PARAMS };
        if params.as_ref().is_some_and(|params| params.size != expected) {
            return Err(result::INVALID_PARAMETER);
        }
        let shares = expected == LONG_PARAMS && params.as_ref().is_some_and(|params| params.allow_multiple != 0);
        let name = params.as_ref().map_or(std::ptr::null(), |params| params.name);
        // SAFETY: the caller promises null or a C string.
        let name = if name.is_null() { CString::default() } else { unsafe { CStr::from_ptr(name) }.to_owned() };
        let (code, other) = match subscribe(callback, user, name, true, shares) {
            Ok((subscriber, first)) => {
                handle.write(subscriber);
                (result::SUCCESS, first)
            }
            Err((code, owner)) => (code, owner),
        };
        if let (Some(params), Some(other)) = (params, other) {
            // SAFETY: the caller promises null or this much room.
            unsafe { put_old_name(params.old_name, params.old_name_size, &public_name(&other)) };
        }
        if code == result::SUCCESS { Ok(()) } else { Err(code) }
    }

    /// `cuptiUnsubscribe`. It does not wait for callbacks that are running.
    since V12_0, NoBuffer, Unneeded:
    fn cuptiUnsubscribe(handle: *mut Subscriber) {
        let gone = subscriber::unsubscribe(handle).ok_or(result::INVALID_PARAMETER)?;
        if gone.shares {
            tracer::forget(gone.client());
        }
        Ok(())
    }

    /// `cuptiEnableCallback`.
    since V12_0, NoBuffer, Unneeded:
    fn cuptiEnableCallback(enable: u32, handle: *mut Subscriber, domain: u32, id: u32) {
        check(handle, domain, Some(id))?.want(domain, id, enable != 0);
        Ok(())
    }

    /// `cuptiEnableDomain`.
    since V12_0, NoBuffer, Unneeded:
    fn cuptiEnableDomain(enable: u32, handle: *mut Subscriber, domain: u32) {
        let subscriber = check(handle, domain, None)?;
        for id in 1..process::options().release.callbacks(domain) {
            subscriber.want(domain, id, enable != 0);
        }
        Ok(())
    }

    /// `cuptiGetCallbackName`, for the functions that are listed here.
    since V12_0, Anyone, Unneeded:
    fn cuptiGetCallbackName(domain: u32, id: u32, name: Out<*const c_char>) {
        let known = names::name(domain, id, process::options().release);
        put(name, known.map_or(std::ptr::null(), CStr::as_ptr))?;
        known.map(|_| ()).ok_or(result::INVALID_PARAMETER)
    }
}

/// Makes this a subscriber, and gives the name of the first one if that is another, or why not.
#[allow(clippy::type_complexity, reason = "what is told to the caller, in both cases")]
fn subscribe(
    callback: Option<Callback>,
    user: *mut c_void,
    name: CString,
    is_v2: bool,
    shares: bool,
) -> Result<(*mut Subscriber, Option<CString>), (u32, Option<CString>)> {
    const TAKEN: u32 = result::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    let options = process::options();
    if let Some(owner) = options.taken.as_ref().filter(|_| process::elapsed() < options.taken_for) {
        return Err((TAKEN, Some(CString::new(owner.as_str()).unwrap_or_default())));
    }
    if shares && !options.share {
        return Err((TAKEN, subscriber::current().map(|first| first.name.clone())));
    }
    subscriber::subscribe(callback, user, name, is_v2, shares).map_err(|owner| (TAKEN, Some(owner)))
}

/// Gives a caller the name of the current subscriber, truncated if it does not fit.
///
/// # Safety
///
/// `out` is null or has room for `size` bytes.
unsafe fn put_old_name(out: *mut c_char, size: usize, name: &[u8]) {
    if out.is_null() || size == 0 {
        return;
    }
    let kept = name.len().min(size - 1);
    // SAFETY: the caller promises `size` bytes, of which `kept` and one more are written.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, kept);
        out.add(kept).write(0);
    }
}

/// Checks the arguments that the functions for callbacks have in common.
fn check(handle: *mut Subscriber, domain: u32, id: Option<u32>) -> Result<&'static Subscriber, u32> {
    let release = process::options().release;
    let is_domain = (domain::DRIVER..release.domains()).contains(&domain);
    let is_id = id.is_none_or(|id| (1..release.callbacks(domain)).contains(&id));
    subscriber::find(handle).filter(|_| is_domain && is_id).ok_or(result::INVALID_PARAMETER)
}
