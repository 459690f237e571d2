//! The callbacks that CUPTI calls, on the application's threads and on its own: look, record,
//! return.
//!
//! They take no lock, allocate nothing, wait for nothing, do not call CUDA, and call CUPTI only for
//! the id of a graph's node. No panic leaves them. Also here is the code that NCCL's threads run if
//! CUPTI offers no callbacks: see [`BRACKET`]. CUPTI may still call after the subscription has
//! ended, so everything needed here lives as long as the process.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use cupti_sys::bindings as cupti;

use super::shared::{Shared, has_succeeded};
use super::{graphs, names};
use crate::model::ids::Handle;
use crate::record::recorder::{self, Bracket};
use crate::{fault, sys};

/// Functions whose start is recorded: kernel launches.
pub(super) const LAUNCHES: [u32; 4] = [
    cupti::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
];

/// Functions whose start is recorded inside a copy-engine collective: those that NCCL uses for its
/// copies (src/ce_coll.cc). Releases before 12.8 lack some.
pub(super) const COPYING: [u32; 8] = [
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2_ptsz,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_ptsz,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuMemcpyBatchAsync_v2_ptsz,
];

/// The kind of our external ids. By their sources, Kineto, HPCToolkit, IREE and others use other
/// kinds.
pub(super) const EXTERNAL: u32 = cupti::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2;

/// Links a launch to its KernelLaunch by an external id, if CUPTI offers no callbacks at launches.
///
/// These two are the only calls into CUPTI inside NCCL's callbacks; if there are callbacks, no
/// launch makes them. Each kind has a stack on every thread; how CUPTI reaches it is not
/// documented.
pub(super) const BRACKET: Bracket = Bracket { open: push_id, close: pop_id };

/// Pushes a KernelLaunch's handle as the external id of this thread's calls. The handle carries the
/// tag of this process.
fn push_id(launch: Handle) -> bool {
    let Some(shared) = Shared::get() else { return false };
    if shared.shares.load(Ordering::Relaxed) {
        return shared.door.push(EXTERNAL, launch.0);
    }
    // SAFETY: no pointers; a thread of the application's, in no callback of CUPTI's.
    let result = unsafe { (shared.api.cuptiActivityPushExternalCorrelationId)(EXTERNAL, launch.0) };
    result == cupti::CUPTI_SUCCESS
}

/// Pops the id. Also if CUPTI was given up in between: otherwise the id would stay with this
/// thread.
fn pop_id() {
    let Some(shared) = Shared::get() else { return };
    if shared.shares.load(Ordering::Relaxed) {
        return shared.door.pop(EXTERNAL);
    }
    let mut id = 0;
    // SAFETY: the id is writable; on the thread of the push, as above.
    unsafe { (shared.api.cuptiActivityPopExternalCorrelationId)(EXTERNAL, &raw mut id) };
}

/// CUPTI's own failures.
pub(super) const STATES: [u32; 3] =
    [cupti::CUPTI_CBID_STATE_FATAL_ERROR, cupti::CUPTI_CBID_STATE_ERROR, cupti::CUPTI_CBID_STATE_WARNING];

/// Runs `body` so that no panic unwinds into C.
#[inline]
fn fence(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        recorder::count_panic();
    }
}

/// `CUpti_CallbackFunc`.
///
/// # Safety
///
/// As CUPTI calls it: `data` is the structure for that domain and id, for the length of the call.
pub(super) unsafe extern "C" fn on_event(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    if data.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    fence(|| unsafe { event(domain, id, data) });
}

/// # Safety
///
/// As for [`on_event`].
unsafe fn event(domain: u32, id: u32, data: *const c_void) {
    fault::at("cupti event");
    match domain {
        cupti::CUPTI_CB_DOMAIN_DRIVER_API if recorder::is_on() && LAUNCHES.contains(&id) => {
            // SAFETY: the structure for this domain, used only during this call.
            launch(unsafe { &*data.cast::<cupti::CUpti_CallbackData>() });
        }
        cupti::CUPTI_CB_DOMAIN_DRIVER_API if recorder::is_on() && graphs::LAUNCHES.contains(&id) => {
            // SAFETY: as above.
            graphs::launch(unsafe { &*data.cast::<cupti::CUpti_CallbackData>() });
        }
        cupti::CUPTI_CB_DOMAIN_DRIVER_API if recorder::is_on() && COPYING.contains(&id) => {
            // SAFETY: as above.
            copy(unsafe { &*data.cast::<cupti::CUpti_CallbackData>() });
        }
        cupti::CUPTI_CB_DOMAIN_DRIVER_API if graphs::INSTANTIATIONS.contains(&id) => {
            // SAFETY: as above.
            graphs::instantiation(unsafe { &*data.cast::<cupti::CUpti_CallbackData>() });
        }
        cupti::CUPTI_CB_DOMAIN_DRIVER_API if recorder::is_on() && graphs::is_change(id) => {
            // SAFETY: as above.
            graphs::change(id, unsafe { &*data.cast::<cupti::CUpti_CallbackData>() });
        }
        cupti::CUPTI_CB_DOMAIN_RESOURCE if recorder::is_on() && graphs::is_resource(id) => {
            // SAFETY: as above.
            let resource = unsafe { &*data.cast::<cupti::CUpti_ResourceData>() };
            // SAFETY: for these ids the descriptor is null or describes a graph.
            let graph = unsafe { resource.resourceDescriptor.cast::<cupti::CUpti_GraphData>().as_ref() };
            if let Some(graph) = graph {
                graphs::resource(id, graph);
            }
        }
        cupti::CUPTI_CB_DOMAIN_STATE => {
            // SAFETY: as above; these ids come with a notification.
            let result = unsafe { (*data.cast::<cupti::CUpti_StateData>()).__bindgen_anon_1.notification.result };
            failure(id, result);
        }
        _ => {}
    }
}

/// A kernel launch begins or ends on this thread.
fn launch(call: &cupti::CUpti_CallbackData) {
    let Some(shared) = Shared::get() else { return };
    if call.callbackSite == cupti::CUPTI_API_ENTER {
        shared.contact.begins();
        // SAFETY: the symbol is null or a C string.
        recorder::launch(call.correlationId, || unsafe { names::is_nccl_kernel(call.symbolName) });
    } else if has_succeeded(call) {
        shared.contact.made();
    }
}

/// A copy is being queued on this thread.
fn copy(call: &cupti::CUpti_CallbackData) {
    if call.callbackSite == cupti::CUPTI_API_ENTER {
        recorder::launch(call.correlationId, || false);
    }
}

/// CUPTI reports a failure of its own.
fn failure(id: u32, result: u32) {
    let Some(shared) = Shared::get() else { return };
    shared.last_failure.store(result, Ordering::Relaxed);
    shared.failures.fetch_add(1, Ordering::Relaxed);
    if id == cupti::CUPTI_CBID_STATE_FATAL_ERROR {
        shared.fatal.fetch_add(1, Ordering::Relaxed);
    }
}

/// `CUpti_BuffersCallbackRequestFunc`.
///
/// # Safety
///
/// As CUPTI calls it: the pointers are writable.
pub(super) unsafe extern "C" fn on_request(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let mut lent = (std::ptr::null_mut(), 0);
    fence(|| {
        fault::at("cupti request");
        if let Some(shared) = Shared::get() {
            let now = sys::boottime_ns();
            shared.contact.heard(now);
            lent = shared.pool.request();
            // Where launches are not seen, kernels are matched by the GPU's timer, for which many
            // are needed at once. The first buffers are requested before a launch.
            let by_launch = shared.contact.is_new() || shared.contact.sees_launches();
            if by_launch && !shared.pool.is_scarce() {
                lent.1 = lent.1.min(shared.pace.next(now));
            }
        }
    });
    // SAFETY: the caller's promise. There is no limit on the number of records: as many as fit.
    unsafe {
        buffer.write(lent.0);
        size.write(lent.1);
        max_records.write(0);
    }
}

/// `CUpti_BuffersCallbackCompleteFunc`.
///
/// # Safety
///
/// As CUPTI calls it: it no longer uses the buffer.
pub(super) unsafe extern "C" fn on_complete(_: cupti::CUcontext, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    fence(|| {
        fault::at("cupti complete");
        if let Some(shared) = Shared::get() {
            let now = sys::boottime_ns();
            shared.contact.heard(now);
            shared.pool.complete(buffer, valid, now);
        }
    });
}

/// `CUpti_BuffersCallbackRequestFunc_v2`.
///
/// # Safety
///
/// As for [`on_request`].
pub(super) unsafe extern "C" fn on_own_request(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
    _: *mut cupti::CUpti_BufferCallbackRequestInfo,
) {
    // SAFETY: the caller's promise.
    unsafe { on_request(buffer, size, max_records) };
}

/// `CUpti_BuffersCallbackCompleteFunc_v2`. There are no layouts to read: no fields were chosen.
///
/// # Safety
///
/// As for [`on_complete`].
pub(super) unsafe extern "C" fn on_own_complete(
    buffer: *mut u8,
    size: usize,
    valid: usize,
    _: *mut cupti::CUpti_BufferCallbackCompleteInfo,
) {
    // SAFETY: the caller's promise.
    unsafe { on_complete(std::ptr::null_mut(), 0, buffer, size, valid) };
}
