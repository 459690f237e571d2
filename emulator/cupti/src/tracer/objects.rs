//! Records of objects: GPUs, contexts and streams.

use observe::Machine;

use super::{keep, with_share, write, write_for};
use crate::objects::{self, Context, Stream};
use crate::process;
use crate::records::{self, Record};
use crate::subscriber::Client;

/// Writes records of all GPUs. They are written when the driver is initialised, or with a dump,
/// but not twice.
pub(crate) fn write_devices(client: Client, machine: &Machine, again: bool) {
    let first = with_share(client, |share| !std::mem::replace(&mut share.has_devices, true));
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
            write_for(client, records::device(process::options().release, ordinal, &gpu, name));
        }
    }
}

/// Writes the records of all contexts.
pub(crate) fn write_contexts(client: Client) {
    objects::contexts().into_iter().for_each(|context| write_for(client, record_of_context(context)));
}

/// Writes the records of all streams. The call that created each is not known any more.
pub(crate) fn write_streams(client: Client) {
    objects::streams().into_iter().for_each(|stream| write_for(client, record_of_stream(stream, 0)));
}

/// A context was created.
pub(crate) fn on_context(context: Context) {
    write(record_of_context(context));
}

fn record_of_context(context: Context) -> Option<Record> {
    records::context(process::options().release, context.id, context.device, observe::DEFAULT_STREAM_ID)
}

/// A stream was created.
pub(crate) fn on_stream(stream: Stream, correlation: u32) {
    write(record_of_stream(stream, correlation));
}

fn record_of_stream(stream: Stream, correlation: u32) -> Option<Record> {
    records::stream(process::options().release, stream.context, stream.id, correlation)
}
