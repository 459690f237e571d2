//! Streams and events, as libnccl makes and uses them.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use ::observe::ResourceKind;

use super::{Handle, HostFunction, Out, exported};
use crate::cuda::event::Event;
use crate::cuda::observe;
use crate::cuda::registry::handle;
use crate::cuda::work::{Action, Origin};
use crate::cuda::{Error, capture, device, machine};

exported! {
    fn cudaStreamCreate(out: Out<Handle>) {
        create_stream(out)
    }

    fn cudaStreamCreateWithFlags(out: Out<Handle>, _flags: u32) {
        create_stream(out)
    }

    fn cudaStreamDestroy(stream: Handle) {
        let stream = machine().streams.remove(stream)?;
        observe::stream_resource(ResourceKind::StreamDestroyed, &stream);
        stream.destroy();
        Ok(())
    }

    fn cudaStreamSynchronize(stream: Handle) {
        device::stream(stream)?.synchronize()
    }

    fn cudaStreamQuery(stream: Handle) {
        if device::stream(stream)?.query()? { Ok(()) } else { Err(Error::NotReady) }
    }

    fn cudaStreamGetId(stream: Handle, out: Out<u64>) {
        out.put(device::stream(stream)?.number)
    }

    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: u32) {
        capture::wait(&device::stream(stream)?, &machine().events.get(event)?, flags)
    }

    [unsafe] fn cudaLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) |origin| {
        let function = function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: data as usize };
        device::stream(stream)?.submit(action, origin).map(|_| ())
    }

    fn cudaEventDestroy(event: Handle) {
        // Queued work holds the event itself.
        machine().events.remove(event).map(|_| ())
    }

    fn cudaEventRecord(event: Handle, stream: Handle) {
        capture::record(&device::stream(stream)?, &machine().events.get(event)?, 0)
    }

    fn cudaEventQuery(event: Handle) {
        if machine().events.get(event)?.query()? { Ok(()) } else { Err(Error::NotReady) }
    }

    fn cudaEventSynchronize(event: Handle) {
        machine().events.get(event)?.synchronize()
    }

    fn cudaEventElapsedTime(out: Out<f32>, earlier: Handle, later: Handle) {
        let elapsed = machine().events.get(later)?.elapsed(&*machine().events.get(earlier)?)?;
        out.put((elapsed as f64 / 1e6) as f32)
    }

    fn cudaEventCreate(out: Out<Handle>) {
        create_event(out, 0)
    }

    fn cudaEventCreateWithFlags(out: Out<Handle>, flags: u32) {
        create_event(out, flags)
    }
}

fn create_stream(out: Out<Handle>) -> Result<(), Error> {
    let stream = device::current().create_stream();
    machine().streams.insert(stream.clone());
    observe::stream_resource(ResourceKind::StreamCreated, &stream);
    out.put(handle(&stream))
}

fn create_event(out: Out<Handle>, flags: u32) -> Result<(), Error> {
    device::current().context();
    out.put(machine().events.insert(Arc::new(Event::new(flags))))
}

/// Adds a graph node or a queue entry that nobody observes.
pub(in crate::cuda) fn submit_unobserved(stream: Handle, work: Box<dyn FnMut() + Send>) -> Result<(), Error> {
    let action = Action::Unobserved(Mutex::new(work));
    device::stream(stream)?.submit(action, &Origin::none()).map(|_| ())
}
