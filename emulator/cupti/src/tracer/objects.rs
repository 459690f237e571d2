//! Records of objects: GPUs, contexts and streams.

use observe::Machine;

use super::{is_wanted, keep, with, write};
use crate::layout::kind;
use crate::objects::{self, Context, Stream};
use crate::{process, records};

/// Writes records of all GPUs. They are written when the driver is initialised, or with a dump,
/// but not twice.
pub(crate) fn write_devices(machine: &Machine, again: bool) {
    let first = with(|tracer| !std::mem::replace(&mut tracer.has_devices, true));
    if !first && !again {
        return;
    }
    for ordinal in 0..(machine.devices)() {
        let mut gpu = std::mem::MaybeUninit::zeroed();
        if (machine.describe)(ordinal, gpu.as_mut_ptr()) {
            // SAFETY: the machine said that it filled this in, and zeroes are a valid value
            // anyway.
            let gpu: observe::Gpu = unsafe { gpu.assume_init() };
            // SAFETY: the name ends in a zero, and the description lives for the call.
            let name = unsafe { keep(gpu.name.as_ptr()) };
            write(records::device(process::options().release, ordinal, &gpu, name));
        }
    }
}

/// Writes the records of all contexts.
pub(crate) fn write_contexts() {
    objects::contexts().into_iter().for_each(on_context);
}

/// Writes the records of all streams. The call that created each is not known any more.
pub(crate) fn write_streams() {
    for stream in objects::streams() {
        on_stream(stream, 0);
    }
}

/// A context was created.
pub(crate) fn on_context(context: Context) {
    if is_wanted(kind::CONTEXT, context.id) {
        let release = process::options().release;
        write(records::context(release, context.id, context.device, observe::DEFAULT_STREAM_ID));
    }
}

/// A stream was created.
pub(crate) fn on_stream(stream: Stream, correlation: u32) {
    if is_wanted(kind::STREAM, stream.context) {
        let release = process::options().release;
        write(records::stream(release, stream.context, stream.id, correlation));
    }
}
