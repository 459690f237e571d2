//! From the records in CUPTI's buffers to plain values.
//!
//! Nothing is believed: records are stepped over by the library that wrote them, within the buffer; fields are read where
//! the table of this release has them; times that cannot be are refused. Only the pointers to names are followed, which
//! CUPTI keeps valid.

use std::ffi::c_char;

use cupti_sys::bindings as cupti;
use cupti_sys::records::{End, Field, Table, View, Walker};
use cupti_sys::table;

use super::clock::{CuptiClock, Stamp};
use super::names::Names;
use crate::model::activity::{Activity, Context, Copy, CopyKind, Device, Kernel, Overhead, Place, Span, Stream};
use crate::model::time::HostNs;

/// How far CUPTI's own conversion of the GPU's clock to the processor's may be off, in ns. NVIDIA states no figure; it
/// is good to about a microsecond.
pub const GPU_STAMP_ERROR_NS: u32 = 1_000;

/// What decoding had to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Records that were decoded.
    pub(super) decoded: u64,
    /// Records whose times are missing, reversed, or of no clock that CUPTI was seen to have.
    pub(super) implausible: u64,
    /// Records of kinds that nobody here asked for.
    pub(super) other_kinds: u64,
    /// Buffers that could not be read to their end.
    pub(super) unreadable: u64,
}

/// Decodes buffers.
pub(super) struct Decoder {
    table: Table,
    names: Names,
    pub(super) counts: Counts,
}

/// Where times come from.
#[derive(Clone, Copy)]
pub(super) struct Times<'c> {
    pub(super) clock: &'c CuptiClock,
    /// The host's time: nothing in the buffer is later.
    pub(super) now: HostNs,
}

impl Times<'_> {
    /// When something was; `None` where it cannot be true.
    fn span(&self, start: Option<u64>, end: Option<u64>, error_ns: u32) -> Option<Span> {
        let (start, end) = (start.filter(|&ns| ns != 0)?, end.filter(|&ns| ns != 0)?);
        if end < start {
            return None;
        }
        let (from, from_error) = self.clock.to_host(Stamp(start), self.now)?;
        let (until, until_error) = self.clock.to_host(Stamp(end), self.now)?;
        let error_ns = from_error.max(until_error).saturating_add(error_ns);
        // With a step of the clock between them their middles may be in the wrong order, within the error.
        Some(Span { start: from, end: until.max(from), error_ns })
    }
}

impl Decoder {
    pub(super) fn new(version: u32) -> Decoder {
        Decoder { table: Table::new(version), names: Names::new(), counts: Counts::default() }
    }

    /// Decodes a buffer, as far as `walker` leads.
    ///
    /// # Safety
    ///
    /// The pointers in the records are null or C strings, as in a buffer that CUPTI returned to this process.
    pub(super) unsafe fn decode<W: Walker>(
        &mut self,
        buffer: &[u8],
        walker: W,
        times: Times<'_>,
        sink: &mut dyn FnMut(Activity),
    ) {
        let Decoder { table, names, counts } = self;
        let mut walk = table.walk(buffer, walker);
        for record in &mut walk {
            let activity = match record.kind() {
                cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL | cupti::CUPTI_ACTIVITY_KIND_KERNEL => {
                    // SAFETY: the caller's promise.
                    record.view().and_then(|view| unsafe { kernel(&view, names, times) })
                }
                cupti::CUPTI_ACTIVITY_KIND_MEMCPY => record.view().and_then(|view| memcpy(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_MEMCPY2 => record.view().and_then(|view| memcpy_ptop(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_MEMSET => record.view().and_then(|view| memset(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_OVERHEAD => record.view().and_then(|view| overhead(&view, times)),
                // SAFETY: the caller's promise.
                cupti::CUPTI_ACTIVITY_KIND_DEVICE => record.view().and_then(|view| unsafe { device(&view, names) }),
                cupti::CUPTI_ACTIVITY_KIND_CONTEXT => record.view().and_then(|view| context(&view)),
                cupti::CUPTI_ACTIVITY_KIND_STREAM => record.view().and_then(|view| stream(&view)),
                _ => {
                    counts.other_kinds += 1;
                    continue;
                }
            };
            if activity.is_some() {
                counts.decoded += 1;
            } else {
                counts.implausible += 1;
            }
            sink(activity.unwrap_or(Activity::Implausible));
        }
        if walk.end() != Some(End::Done) {
            counts.unreadable += 1;
        }
    }
}

/// # Safety
///
/// The record's name is null or a C string.
unsafe fn kernel(view: &View<'_, table::Kernel>, names: &mut Names, times: Times<'_>) -> Option<Activity> {
    type Of = table::Kernel;
    let span = times.span(view.get(Of::START), view.get(Of::END), GPU_STAMP_ERROR_NS)?;
    let size = |field: Field<Of, i32>| view.get(field).and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    let name: *const c_char = view.get(Of::NAME)?;
    Some(Activity::Kernel(Kernel {
        span,
        place: Place {
            device: view.get(Of::DEVICE_ID)?,
            context: view.get(Of::CONTEXT_ID)?,
            stream: view.get(Of::STREAM_ID)?,
        },
        correlation: view.get(Of::CORRELATION_ID)?,
        graph_node: view.get(Of::GRAPH_NODE_ID)?,
        graph: view.get(Of::GRAPH_ID)?,
        grid: [size(Of::GRID_X), size(Of::GRID_Y), size(Of::GRID_Z)],
        block: [size(Of::BLOCK_X), size(Of::BLOCK_Y), size(Of::BLOCK_Z)],
        // SAFETY: the caller's promise.
        name: unsafe { names.intern(name) },
    }))
}

/// Copies and memsets have the same fields in different places.
macro_rules! copy {
    ($view:expr, $times:expr, $family:ident, $kind:expr) => {
        Some(Activity::Copy(Copy {
            span: $times.span($view.get(table::$family::START), $view.get(table::$family::END), GPU_STAMP_ERROR_NS)?,
            place: Place {
                device: $view.get(table::$family::DEVICE_ID)?,
                context: $view.get(table::$family::CONTEXT_ID)?,
                stream: $view.get(table::$family::STREAM_ID)?,
            },
            correlation: $view.get(table::$family::CORRELATION_ID)?,
            graph_node: $view.get(table::$family::GRAPH_NODE_ID)?,
            bytes: $view.get(table::$family::BYTES)?,
            kind: $kind,
        }))
    };
}

fn memcpy(view: &View<'_, table::Memcpy>, times: Times<'_>) -> Option<Activity> {
    copy!(view, times, Memcpy, copy_kind(view.get(table::Memcpy::COPY_KIND)?))
}

fn memcpy_ptop(view: &View<'_, table::MemcpyPtoP>, times: Times<'_>) -> Option<Activity> {
    copy!(view, times, MemcpyPtoP, copy_kind(view.get(table::MemcpyPtoP::COPY_KIND)?))
}

fn memset(view: &View<'_, table::Memset>, times: Times<'_>) -> Option<Activity> {
    copy!(view, times, Memset, CopyKind::Set)
}

fn copy_kind(kind: u8) -> CopyKind {
    match u32::from(kind) {
        cupti::CUPTI_ACTIVITY_MEMCPY_KIND_HTOD => CopyKind::HostToDevice,
        cupti::CUPTI_ACTIVITY_MEMCPY_KIND_DTOH => CopyKind::DeviceToHost,
        cupti::CUPTI_ACTIVITY_MEMCPY_KIND_DTOD => CopyKind::DeviceToDevice,
        cupti::CUPTI_ACTIVITY_MEMCPY_KIND_PTOP => CopyKind::PeerToPeer,
        _ => CopyKind::Other(kind),
    }
}

fn overhead(view: &View<'_, table::Overhead>, times: Times<'_>) -> Option<Activity> {
    type Of = table::Overhead;
    let on_a_thread = view.get(Of::OBJECT_KIND) == Some(cupti::CUPTI_ACTIVITY_OBJECT_THREAD);
    Some(Activity::Overhead(Overhead {
        span: times.span(view.get(Of::START), view.get(Of::END), 0)?,
        kind: view.get(Of::OVERHEAD_KIND)?,
        tid: view.get(Of::OBJECT_ID_PT_THREAD_ID).filter(|_| on_a_thread).map(|tid| tid as i32),
    }))
}

/// # Safety
///
/// The record's name is null or a C string.
unsafe fn device(view: &View<'_, table::Device>, names: &mut Names) -> Option<Activity> {
    type Of = table::Device;
    let name: *const c_char = view.get(Of::NAME)?;
    Some(Activity::Device(Device {
        device: view.get(Of::ID)?,
        // SAFETY: the caller's promise.
        name: unsafe { names.intern(name) },
        uuid: view.get(Of::UUID)?,
    }))
}

fn context(view: &View<'_, table::Context>) -> Option<Activity> {
    type Of = table::Context;
    Some(Activity::Context(Context {
        context: view.get(Of::CONTEXT_ID)?,
        device: view.get(Of::DEVICE_ID)?,
        null_stream: u32::from(view.get(Of::NULL_STREAM_ID)?),
    }))
}

fn stream(view: &View<'_, table::Stream>) -> Option<Activity> {
    type Of = table::Stream;
    Some(Activity::Stream(Stream {
        context: view.get(Of::CONTEXT_ID)?,
        stream: view.get(Of::STREAM_ID)?,
        // Unsigned in CUPTI's header, signed in CUDA: more urgent is less.
        priority: view.get(Of::PRIORITY)? as i32,
    }))
}
