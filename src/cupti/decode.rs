//! Decodes the records in CUPTI's buffers into plain values.
//!
//! Nothing is trusted: the library that wrote the records steps over them, within the buffer;
//! fields are read only if the table for this release has them; impossible times are refused. What
//! a buffer only points to, such as names, comes from an [`Outside`]: the process, or a capture of
//! it.

use std::ffi::c_char;
use std::sync::Arc;

use cupti_sys::bindings as cupti;
use cupti_sys::records::{End, Family, Field, Record, Table, View, Walker};
use cupti_sys::table;

use super::callbacks;
use super::calls::Calls;
use super::clock::{CuptiClock, Stamp};
use super::names::Names;
use crate::model::activity::{
    Activity, Api, Context, Copy, CopyKind, CudaCall, Device, Edge, GPU_STAMP_ERROR_NS, HostFunction, Kernel, Marker,
    Overhead, Place, Span, Stream, Unfinished,
};
use crate::model::ids::Handle;
use crate::model::time::HostNs;

/// What decoding had to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that were decoded.
    pub decoded: u64,
    /// Records whose times are missing, are reversed by more than a step of their clock explains,
    /// or belong to no clock that CUPTI was seen to use.
    pub implausible: u64,
    /// Records of kinds that were not requested here, and external ids of other tools.
    pub other_kinds: u64,
    /// Buffers that could not be read to their end.
    pub unreadable: u64,
    /// Kernels whose records are too short for their release. They count as implausible too.
    pub misshapen: u64,
}

/// Decodes buffers.
pub struct Decoder {
    table: Table,
    asked: Asked,
    /// Calls are recorded for the external ids that come with them.
    pub(super) carries_ids: bool,
    /// What was decoded and left out so far.
    pub counts: Counts,
}

/// What is requested from CUPTI besides kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Calls into CUDA.
    pub calls: bool,
    /// NVTX ranges.
    pub markers: bool,
}

/// Answers the decoder's questions about what records only point to.
pub trait Outside {
    /// The text at an address in a record; `(unknown)` for null.
    fn text(&mut self, address: *const c_char) -> Arc<str>;
    /// CUPTI's name for the function with this number in a callback domain.
    fn function(&mut self, domain: u32, id: u32) -> Arc<str>;
    /// A thread's name; empty if it is not known.
    fn thread(&mut self, tid: i32) -> Arc<str>;
}

/// The recording process, which knows all answers. Each text is kept once.
pub struct Process {
    names: Names,
    calls: Calls,
}

/// The [`Process`] while one buffer is decoded.
pub struct Asking<'p>(&'p mut Process);

impl Process {
    /// A process that has not been asked yet. Without CUPTI's look-up function, functions have only
    /// numbers.
    #[must_use]
    pub fn new(function_name: Option<cupti::cuptiGetCallbackName>) -> Process {
        Process { names: Names::new(), calls: Calls::new(function_name) }
    }

    /// Lets a decoder ask.
    ///
    /// # Safety
    ///
    /// Until the result is dropped it is asked only for addresses that are null or C strings: those
    /// in a buffer that CUPTI returned to this process and that has not been given back yet.
    pub unsafe fn asked(&mut self) -> Asking<'_> {
        self.calls.renew();
        Asking(self)
    }
}

impl Outside for Asking<'_> {
    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "whoever made this has promised what it is asked for")]
    fn text(&mut self, address: *const c_char) -> Arc<str> {
        // SAFETY: null or a C string, as promised when `self` was made.
        unsafe { self.0.names.intern(address) }
    }

    fn function(&mut self, domain: u32, id: u32) -> Arc<str> {
        self.0.calls.function(domain, id)
    }

    fn thread(&mut self, tid: i32) -> Arc<str> {
        self.0.calls.thread(tid)
    }
}

/// What times are converted with.
#[derive(Clone, Copy)]
pub struct Times<'c> {
    /// CUPTI's clock.
    pub clock: &'c CuptiClock,
    /// The host's time: nothing in the buffer is later.
    pub now: HostNs,
}

impl Times<'_> {
    /// When something happened; `None` if the times are impossible.
    fn span(&self, start: Option<u64>, end: Option<u64>, error_ns: u32) -> Option<Span> {
        let (start, end) = (start.filter(|&ns| ns != 0)?, end.filter(|&ns| ns != 0)?);
        let (from, from_error) = self.clock.to_host(Stamp(start), self.now)?;
        let (until, until_error) = self.clock.to_host(Stamp(end), self.now)?;
        // If the clock was set in between, the end may have the smaller stamp, or the earlier
        // middle. What still ends before its start is rejected.
        let earliest = from.0.saturating_sub(u64::from(from_error));
        let latest = until.0.saturating_add(u64::from(until_error));
        if latest < earliest {
            return None;
        }
        let (start, end) = (from.0.min(latest), until.0.max(earliest));
        let error_ns = from_error.max(until_error).saturating_add(error_ns);
        Some(Span { start: HostNs(start.min(end)), end: HostNs(end), error_ns })
    }
}

impl Decoder {
    /// A decoder for the records of this version of CUPTI, from which `asked` was requested.
    #[must_use]
    pub fn new(version: u32, asked: Asked) -> Decoder {
        Decoder { table: Table::new(version), asked, carries_ids: false, counts: Counts::default() }
    }

    /// Decodes a buffer, as far as `walker` gets.
    pub fn decode(
        &mut self,
        buffer: &[u8],
        walker: impl Walker,
        outside: &mut impl Outside,
        times: Times<'_>,
        sink: &mut dyn FnMut(Activity),
    ) {
        let Decoder { table, asked, carries_ids, counts } = self;
        let mut walk = table.walk(buffer, walker);
        for record in &mut walk {
            let activity = match record.kind() {
                cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL | cupti::CUPTI_ACTIVITY_KIND_KERNEL => {
                    record.view().and_then(|view| kernel(&view, outside, times))
                }
                cupti::CUPTI_ACTIVITY_KIND_MEMCPY => record.view().and_then(|view| memcpy(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_MEMCPY2 => record.view().and_then(|view| memcpy_ptop(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_MEMSET => record.view().and_then(|view| memset(&view, times)),
                cupti::CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE => {
                    record.view().and_then(|view| host_function(&view, times))
                }
                cupti::CUPTI_ACTIVITY_KIND_OVERHEAD => record.view().and_then(|view| overhead(&view, times)),
                // CUPTI also names the GPUs that `CUDA_VISIBLE_DEVICES` hides; the process has none
                // of them.
                cupti::CUPTI_ACTIVITY_KIND_DEVICE if is_hidden(&record) => continue,
                cupti::CUPTI_ACTIVITY_KIND_DEVICE => record.view().and_then(|view| device(&view, outside)),
                cupti::CUPTI_ACTIVITY_KIND_CONTEXT => record.view().and_then(|view| context(&view)),
                cupti::CUPTI_ACTIVITY_KIND_STREAM => record.view().and_then(|view| stream(&view)),
                // The other flags belong to user-defined synchronisation.
                cupti::CUPTI_ACTIVITY_KIND_MARKER if asked.markers && edge(&record).is_some() => {
                    record.view().and_then(|view| marker(&view, edge(&record)?, outside, times))
                }
                cupti::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION if is_ours(&record) => {
                    record.view().and_then(|view| external(&view))
                }
                cupti::CUPTI_ACTIVITY_KIND_DRIVER if asked.calls => {
                    record.view().and_then(|view| call(&view, DRIVER, outside, times))
                }
                cupti::CUPTI_ACTIVITY_KIND_RUNTIME if asked.calls => {
                    record.view().and_then(|view| call(&view, RUNTIME, outside, times))
                }
                cupti::CUPTI_ACTIVITY_KIND_DRIVER if *carries_ids => continue,
                _ => {
                    counts.other_kinds += 1;
                    continue;
                }
            };
            if activity.is_none() && table::Kernel::KINDS.contains(&record.kind()) {
                counts.misshapen += 1;
            }
            match activity {
                Some(Activity::Untimed(_)) | None => counts.implausible += 1,
                Some(_) => counts.decoded += 1,
            }
            sink(activity.unwrap_or(Activity::Implausible));
        }
        if walk.end() != Some(End::Done) || (walk.rest() > 0 && table.is_exact()) {
            counts.unreadable += 1;
        }
    }
}

fn kernel(view: &View<'_, table::Kernel>, outside: &mut impl Outside, times: Times<'_>) -> Option<Activity> {
    type Of = table::Kernel;
    let name: *const c_char = view.get(Of::NAME)?;
    let place = Place {
        device: view.get(Of::DEVICE_ID)?,
        context: view.get(Of::CONTEXT_ID)?,
        stream: view.get(Of::STREAM_ID)?,
    };
    let (correlation, graph_node) = (view.get(Of::CORRELATION_ID)?, view.get(Of::GRAPH_NODE_ID)?);
    if view.get(Of::END) == Some(0) {
        return Some(Activity::Unfinished(Unfinished { place, correlation, graph_node, name: outside.text(name) }));
    }
    let Some(span) = times.span(view.get(Of::START), view.get(Of::END), GPU_STAMP_ERROR_NS) else {
        return Some(Activity::Untimed(Unfinished { place, correlation, graph_node, name: outside.text(name) }));
    };
    let size = |field: Field<Of, i32>| view.get(field).and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    Some(Activity::Kernel(Kernel {
        span,
        place,
        correlation,
        graph_node,
        graph: view.get(Of::GRAPH_ID)?,
        grid: [size(Of::GRID_X), size(Of::GRID_Y), size(Of::GRID_Z)],
        block: [size(Of::BLOCK_X), size(Of::BLOCK_Y), size(Of::BLOCK_Z)],
        name: outside.text(name),
    }))
}

/// The API of a call, with the callback domain that CUPTI knows its functions by.
type Callee = (Api, u32);

const DRIVER: Callee = (Api::Driver, cupti::CUPTI_CB_DOMAIN_DRIVER_API);
const RUNTIME: Callee = (Api::Runtime, cupti::CUPTI_CB_DOMAIN_RUNTIME_API);

fn call(
    view: &View<'_, table::Api>,
    (api, domain): Callee,
    outside: &mut impl Outside,
    times: Times<'_>,
) -> Option<Activity> {
    type Of = table::Api;
    // Stamped by the processor, without delay.
    let span = times.span(view.get(Of::START), view.get(Of::END), 0)?;
    let tid = view.get(Of::THREAD_ID)? as i32;
    Some(Activity::CudaCall(CudaCall {
        span,
        api,
        name: outside.function(domain, view.get(Of::CBID)?),
        tid,
        thread: outside.thread(tid),
        correlation: view.get(Of::CORRELATION_ID)?,
        result: view.get(Of::RETURN_VALUE)?,
    }))
}

/// Whether a record is of a GPU that CUDA does not show to this process.
fn is_hidden(record: &Record<'_>) -> bool {
    record.view().and_then(|view| view.get(table::Device::IS_CUDA_VISIBLE)) == Some(0)
}

/// Which edge a marker marks.
fn edge(record: &Record<'_>) -> Option<Edge> {
    match record.view()?.get(table::Marker::FLAGS)? {
        cupti::CUPTI_ACTIVITY_FLAG_MARKER_START => Some(Edge::Begin),
        cupti::CUPTI_ACTIVITY_FLAG_MARKER_END => Some(Edge::End),
        cupti::CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS => Some(Edge::Mark),
        _ => None,
    }
}

/// By its header CUPTI puts the text of each message into the record, and so also that of a
/// registered string; that has not been seen yet.
fn marker(
    view: &View<'_, table::Marker>,
    edge: Edge,
    outside: &mut impl Outside,
    times: Times<'_>,
) -> Option<Activity> {
    type Of = table::Marker;
    let span = times.span(view.get(Of::TIMESTAMP), view.get(Of::TIMESTAMP), 0)?;
    let on_a_thread = view.get(Of::OBJECT_KIND) == Some(cupti::CUPTI_ACTIVITY_OBJECT_THREAD);
    let tid = view.get(Of::OBJECT_ID_PT_THREAD_ID).filter(|_| on_a_thread).map(|tid| tid as i32);
    let domain: *const c_char = view.get(Of::DOMAIN)?;
    Some(Activity::Marker(Marker {
        time: span.start,
        error_ns: span.error_ns,
        id: view.get(Of::ID)?,
        edge,
        tid,
        thread: tid.map_or_else(|| "".into(), |tid| outside.thread(tid)),
        name: outside.text(view.get(Of::NAME)?),
        domain: (!domain.is_null()).then(|| outside.text(domain)),
    }))
}

/// Whether an external id is of the kind that we push.
fn is_ours(record: &Record<'_>) -> bool {
    let kind = record.view().and_then(|view| view.get(table::ExternalCorrelation::EXTERNAL_KIND));
    kind == Some(callbacks::EXTERNAL)
}

fn external(view: &View<'_, table::ExternalCorrelation>) -> Option<Activity> {
    type Of = table::ExternalCorrelation;
    let id = Handle(view.get(Of::EXTERNAL_ID)?);
    Some(Activity::ExternalId { id, correlation: view.get(Of::CORRELATION_ID)? })
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

fn host_function(view: &View<'_, table::GraphHostNode>, times: Times<'_>) -> Option<Activity> {
    type Of = table::GraphHostNode;
    Some(Activity::HostFunction(HostFunction {
        // The header does not say whose clock this is, so the larger error counts.
        span: times.span(view.get(Of::START), view.get(Of::END), GPU_STAMP_ERROR_NS)?,
        place: Place {
            device: view.get(Of::DEVICE_ID)?,
            context: view.get(Of::CONTEXT_ID)?,
            stream: view.get(Of::STREAM_ID)?,
        },
        correlation: view.get(Of::CORRELATION_ID)?,
        graph: view.get(Of::GRAPH_ID)?,
        graph_node: view.get(Of::GRAPH_NODE_ID)?,
        tid: view.get(Of::THREAD_ID)? as i32,
    }))
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

fn device(view: &View<'_, table::Device>, outside: &mut impl Outside) -> Option<Activity> {
    type Of = table::Device;
    let name: *const c_char = view.get(Of::NAME)?;
    // Under MIG several instances are on one GPU, each with its own UUID.
    let is_instance = view.get(Of::IS_MIG_ENABLED).is_some_and(|enabled| enabled != 0);
    let uuid = view.get(if is_instance { Of::MIG_UUID } else { Of::UUID })?;
    Some(Activity::Device(Device { device: view.get(Of::ID)?, name: outside.text(name), uuid }))
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
        // Unsigned in CUPTI's header, signed in CUDA: smaller numbers are more urgent.
        priority: view.get(Of::PRIORITY)? as i32,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cupti::clock::Reading;

    const MS: u64 = 1_000_000;
    /// How far the wall clock is ahead of the host's clock.
    const LEAD: u64 = 1_795_200_300_000 * MS;

    /// Reads the wall clock this far ahead.
    fn read(clock: &mut CuptiClock, at: u64, lead: u64) {
        let [boot_before, boot_after] = [HostNs(at - 50), HostNs(at + 50)];
        let (wall_before, wall_after) = (at - 20 + lead, at + 20 + lead);
        clock.add(&Reading { boot_before, wall_before, cupti: Some(Stamp(at + lead)), wall_after, boot_after });
    }

    #[test]
    fn an_end_before_its_start_is_accepted_only_if_the_clock_was_set_back() {
        let (start, end) = (10_400 * MS, 10_600 * MS);
        let stamps = [start + LEAD, end + LEAD - 300 * MS];
        assert!(stamps[1] < stamps[0]);
        let mut clock = CuptiClock::default();
        read(&mut clock, 10_000 * MS, LEAD);
        let span = |clock: &CuptiClock| {
            Times { clock, now: HostNs(11_100 * MS) }.span(Some(stamps[0]), Some(stamps[1]), 1_000)
        };
        assert_eq!(span(&clock), None);
        read(&mut clock, 11_000 * MS, LEAD - 300 * MS);
        let span = span(&clock).expect("a span");
        assert!(span.start <= span.end, "{span:?}");
        for (said, true_time) in [(span.start, start), (span.end, end)] {
            assert!(said.0.abs_diff(true_time) <= u64::from(span.error_ns), "{said:?} is not {true_time}: {span:?}");
        }
        // All that is known is that it was within a second of the step.
        assert!(u64::from(span.error_ns) < 1_000 * MS, "{span:?}");
    }
}
