//! Streams and events, as libnccl makes and uses them.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex};

use ::observe::ResourceKind;

use super::{Handle, HostFunction, put};
use crate::cuda::event::Event;
use crate::cuda::observe::{self, call};
use crate::cuda::registry::handle;
use crate::cuda::work::{Action, Origin};
use crate::cuda::{Error, capture, device, machine};

pub(super) unsafe extern "C" fn stream_create(out: *mut Handle) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreate", out) }
}

pub(in crate::cuda) unsafe extern "C" fn stream_create_with_flags(out: *mut Handle, _flags: u32) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreateWithFlags", out) }
}

pub(super) unsafe extern "C" fn stream_create_with_priority(out: *mut Handle, _flags: u32, _priority: c_int) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_stream(c"cudaStreamCreateWithPriority", out) }
}

unsafe fn create_stream(function: &'static CStr, out: *mut Handle) -> c_int {
    call(function, |_| {
        let stream = device::current().create_stream();
        machine().streams.insert(stream.clone());
        observe::stream_resource(ResourceKind::StreamCreated, &stream);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, handle(&stream)) }
    })
}

pub(in crate::cuda) unsafe extern "C" fn stream_destroy(stream: Handle) -> c_int {
    call(c"cudaStreamDestroy", |_| {
        let stream = machine().streams.remove(stream)?;
        observe::stream_resource(ResourceKind::StreamDestroyed, &stream);
        stream.destroy();
        Ok(())
    })
}

pub(in crate::cuda) unsafe extern "C" fn stream_synchronize(stream: Handle) -> c_int {
    call(c"cudaStreamSynchronize", |_| device::stream(stream)?.synchronize())
}

pub(in crate::cuda) unsafe extern "C" fn stream_query(stream: Handle) -> c_int {
    call(c"cudaStreamQuery", |_| if device::stream(stream)?.query()? { Ok(()) } else { Err(Error::NotReady) })
}

pub(super) unsafe extern "C" fn stream_get_id(stream: Handle, out: *mut u64) -> c_int {
    // SAFETY: CUDA's caller promises a place for the result.
    call(c"cudaStreamGetId", |_| unsafe { put(out, device::stream(stream)?.number) })
}

pub(in crate::cuda) unsafe extern "C" fn stream_wait_event(stream: Handle, event: Handle, flags: u32) -> c_int {
    call(c"cudaStreamWaitEvent", |_| capture::wait(&device::stream(stream)?, &machine().events.get(event)?, flags))
}

pub(super) unsafe extern "C" fn launch_host_func(
    stream: Handle,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> c_int {
    call(c"cudaLaunchHostFunc", |origin| {
        let function = function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: data as usize };
        device::stream(stream)?.submit(action, origin).map(|_| ())
    })
}

pub(in crate::cuda) unsafe extern "C" fn event_create(out: *mut Handle) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_event(c"cudaEventCreate", out, 0) }
}

pub(in crate::cuda) unsafe extern "C" fn event_create_with_flags(out: *mut Handle, flags: u32) -> c_int {
    // SAFETY: the same promises.
    unsafe { create_event(c"cudaEventCreateWithFlags", out, flags) }
}

unsafe fn create_event(function: &'static CStr, out: *mut Handle, flags: u32) -> c_int {
    call(function, |_| {
        device::current().context();
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, machine().events.insert(Arc::new(Event::new(flags)))) }
    })
}

pub(in crate::cuda) unsafe extern "C" fn event_destroy(event: Handle) -> c_int {
    // Queued work holds the event itself.
    call(c"cudaEventDestroy", |_| machine().events.remove(event).map(|_| ()))
}

pub(in crate::cuda) unsafe extern "C" fn event_record(event: Handle, stream: Handle) -> c_int {
    call(c"cudaEventRecord", |_| capture::record(&device::stream(stream)?, &machine().events.get(event)?, 0))
}

pub(super) unsafe extern "C" fn event_record_with_flags(event: Handle, stream: Handle, flags: u32) -> c_int {
    call(c"cudaEventRecordWithFlags", |_| {
        capture::record(&device::stream(stream)?, &machine().events.get(event)?, flags)
    })
}

pub(in crate::cuda) unsafe extern "C" fn event_query(event: Handle) -> c_int {
    call(c"cudaEventQuery", |_| if machine().events.get(event)?.query()? { Ok(()) } else { Err(Error::NotReady) })
}

pub(in crate::cuda) unsafe extern "C" fn event_synchronize(event: Handle) -> c_int {
    call(c"cudaEventSynchronize", |_| machine().events.get(event)?.synchronize())
}

pub(in crate::cuda) unsafe extern "C" fn event_elapsed_time(out: *mut f32, earlier: Handle, later: Handle) -> c_int {
    call(c"cudaEventElapsedTime", |_| {
        let elapsed = machine().events.get(later)?.elapsed(&*machine().events.get(earlier)?)?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, (elapsed as f64 / 1e6) as f32) }
    })
}

/// Adds a graph node or a queue entry that nobody observes.
pub(in crate::cuda) fn submit_unobserved(stream: Handle, work: Box<dyn FnMut() + Send>) -> Result<(), Error> {
    let action = Action::Unobserved(Mutex::new(work));
    device::stream(stream)?.submit(action, &Origin::none()).map(|_| ())
}
