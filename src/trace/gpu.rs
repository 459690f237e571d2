//! What ran on the GPUs: one family of tracks per stream, and one for the operations of kernels
//! that carry several.

use rustc_hash::FxHashMap;

use super::canvas::Canvas;
use super::counters::Bandwidth;
use super::fields::nccl;
use super::flows;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{self, CarriedName, Fixed, KernelName, OperationName};
use super::processes;
use super::words::{Category, track};
use super::writer::Track;
use crate::model::activity::{Copy, HostFunction, Kernel, Overhead, Place};
use crate::model::timeline::{CopyOf, Owner};

/// Lanes for kernels of one stream that overlap, as programmatic launches do, or that arrive late.
const LANES: usize = 16;
/// Streams that get tracks of their own; the rest share one family, so that the viewer stays
/// usable.
const STREAMS: usize = 512;
/// Channels of streams that get tracks of their own; the rest of a GPU's channels share one family.
const CHANNELS: usize = 2048;
/// How many operations of one kernel are drawn below it; a kernel of an all-to-all may carry
/// thousands. There are lanes for four such kernels, because late ones find the first lanes taken.
const OPERATIONS: usize = 16;

/// The stream number shared by streams that have no tracks of their own.
const OTHERS: u32 = u32::MAX;

/// The GPUs of a trace.
#[derive(Default)]
pub(super) struct Gpu {
    streams: FxHashMap<Place, Families>,
    channels: FxHashMap<(Place, u8), FamilyId>,
    overhead: Option<FamilyId>,
}

/// The tracks of a stream.
#[derive(Clone, Copy)]
struct Families {
    kernels: FamilyId,
    operations: FamilyId,
    /// The group of its channels, made with the first one.
    channels: Option<Track>,
}

impl Gpu {
    /// A kernel. NCCL's are named by what they carry and get their bandwidth; all others have their
    /// own name.
    pub(super) fn kernel(&mut self, canvas: &mut Canvas, kernel: &Kernel, owner: &Owner<'_>, speed: Option<Bandwidth>) {
        let families = self.stream(canvas, kernel.place);
        let span = (kernel.span.start, kernel.span.end);
        canvas.args.clear();
        match owner {
            Owner::Operations { comm, operations, around, channels, launch, .. } if !operations.is_empty() => {
                if let [operation] = operations {
                    canvas.args.operation(operation);
                }
                canvas.args.kernel(kernel, owner).around(around.first());
                if let Some([algorithm, bus]) = speed {
                    canvas.args.uint(nccl::ALGBW_BYTES_PER_S, algorithm).uint(nccl::BUSBW_BYTES_PER_S, bus);
                }
                let arrows = launch.iter().map(|launch| flows::from(*launch));
                let arrows: Vec<u64> =
                    arrows.chain(channels.iter().map(|(of, channel)| flows::to_channel(*of, *channel))).collect();
                // A kernel that carries one operation has the colour of that operation.
                let correlation = operations.first().and_then(|operation| operation.correlation(*comm));
                let name = CarriedName { comm: *comm, operations };
                let look = Look::new(Category::Kernel, &name).of(correlation).with(&arrows);
                canvas.whole(families.kernels, span, &look);
                let several = operations.iter().enumerate().take(OPERATIONS).filter(|_| operations.len() > 1);
                for (place, operation) in several {
                    canvas.args.clear().operation(operation).of_comm(*comm).around(around.get(place));
                    let name = OperationName { operation, prefix: "" };
                    let look = Look::new(Category::Carried, &name).of(operation.correlation(*comm));
                    canvas.whole(families.operations, span, &look);
                }
            }
            _ => {
                canvas.args.kernel(kernel, owner);
                let name = KernelName(&kernel.name);
                canvas.whole(families.kernels, span, &Look::new(Category::Kernel, &name));
            }
        }
    }

    /// A copy or a memset. One that a collective queued is named after the collective.
    pub(super) fn copy(&mut self, canvas: &mut Canvas, copy: &Copy, of: Option<CopyOf<'_>>) {
        let families = self.stream(canvas, copy.place);
        let name = names::copy(copy.kind);
        canvas
            .args
            .clear()
            .nonzero(nccl::BYTES, copy.bytes)
            .nonzero(nccl::CORRELATION, u64::from(copy.correlation))
            .ran(copy.place, copy.span);
        if copy.graph_node != 0 {
            canvas.args.uint(nccl::GRAPH_NODE, copy.graph_node);
        }
        let span = (copy.span.start, copy.span.end);
        let Some(CopyOf { comm, operation, method }) = of else {
            let name = Fixed(name);
            canvas.whole(families.kernels, span, &Look::new(Category::Kernel, &name));
            return;
        };
        canvas.args.text(nccl::NOTE, name).matched_by(method).of_comm(comm);
        let (name, arrow) = (OperationName { operation, prefix: "" }, [flows::from(operation.id)]);
        let look = Look::new(Category::Kernel, &name).of(operation.correlation(comm)).with(&arrow);
        canvas.whole(families.kernels, span, &look);
    }

    /// A function that the host ran for a graph: the stream waited for it.
    pub(super) fn host_function(&mut self, canvas: &mut Canvas, function: &HostFunction) {
        let families = self.stream(canvas, function.place);
        canvas
            .args
            .clear()
            .uint(nccl::CORRELATION, u64::from(function.correlation))
            .uint(nccl::GRAPH, u64::from(function.graph))
            .uint(nccl::GRAPH_NODE, function.graph_node)
            .ran(function.place, function.span);
        if function.tid != 0 {
            canvas.args.int(nccl::TID, function.tid);
        }
        let span = (function.span.start, function.span.end);
        let name = Fixed("host function");
        canvas.whole(families.kernels, span, &Look::new(Category::Host, &name));
    }

    /// Time that CUPTI itself took.
    pub(super) fn overhead(&mut self, canvas: &mut Canvas, overhead: &Overhead) {
        let parent = canvas.gpu_group(None);
        let family = *self.overhead.get_or_insert_with(|| {
            let description = "Time that CUPTI took from the application, as CUPTI reports it.";
            let place = Placing { parent, rank: u32::MAX >> 1, description };
            canvas.lanes.family("CUPTI overhead".into(), place, LANES)
        });
        canvas.args.clear().uint(nccl::TIME_ERROR_NS, u64::from(overhead.span.error_ns));
        if let Some(tid) = overhead.tid {
            canvas.args.int(nccl::TID, tid);
        }
        // CUpti_ActivityOverheadKind: 1, or a number in the upper half.
        let name = match overhead.kind >> 16 {
            0 if overhead.kind == 1 => "driver compiler",
            1 => "buffer flush",
            2 => "instrumentation",
            3 => "resource creation",
            4 => "runtime triggered module loading",
            5 => "lazy function loading",
            6 => "command buffer full",
            7 => "activity buffer request",
            _ => "overhead",
        };
        let span = (overhead.span.start, overhead.span.end);
        canvas.whole(family, span, &Look::new(Category::Ncclscope, &Fixed(name)));
    }

    /// The tracks of a channel of a stream's kernels.
    pub(super) fn channel(&mut self, canvas: &mut Canvas, place: Place, channel: u8) -> FamilyId {
        let place = self.place_of(canvas, place);
        let full = self.channels.len() >= CHANNELS || !canvas.lanes.is_roomy();
        let crowded = full && !self.channels.contains_key(&(place, channel));
        let key =
            if crowded { (Place { stream: OTHERS, context: OTHERS, ..place }, u8::MAX) } else { (place, channel) };
        if let Some(&family) = self.channels.get(&key) {
            return family;
        }
        let place = key.0;
        let mut families = self.stream(canvas, place);
        if families.channels.is_none() {
            let name = format!("{} · channels", self.stream_name(place));
            let description = "Kernel channels while they ran, by the GPU's own timer.";
            let parent = canvas.gpu_group(Some(place.device));
            families.channels = processes::group(canvas.writer(), parent, &name, stream_rank(place) + 2, description);
            self.streams.insert(place, families);
        }
        let parent = families.channels;
        let of = Placing { parent, rank: u32::from(channel), description: "" };
        let name = if crowded { "other channels".into() } else { format!("channel {channel}") };
        let family = canvas.family(name, of, Some(LANES).filter(|_| !crowded));
        self.channels.insert(key, family);
        family
    }

    /// Where a stream is drawn: beyond the limit, together with others.
    fn place_of(&self, canvas: &Canvas, place: Place) -> Place {
        let full = self.streams.len() >= STREAMS || !canvas.lanes.is_roomy();
        let crowded = full && !self.streams.contains_key(&place);
        if crowded { Place { stream: OTHERS, context: OTHERS, ..place } } else { place }
    }

    /// The name of a place that [`Gpu::place_of`] returned.
    fn stream_name(&self, place: Place) -> String {
        if place.stream == OTHERS {
            return format!("GPU {} · other streams", place.device);
        }
        let name = format!("GPU {} · stream {}", place.device, place.stream);
        // CUPTI numbers streams per context, and the viewer would merge two tracks with the same
        // name.
        let twin = |other: &Place| {
            other.device == place.device && other.stream == place.stream && other.context != place.context
        };
        if self.streams.keys().any(twin) { format!("{name} of context {}", place.context) } else { name }
    }

    /// The tracks of a stream.
    fn stream(&mut self, canvas: &mut Canvas, place: Place) -> Families {
        let place = self.place_of(canvas, place);
        if let Some(&families) = self.streams.get(&place) {
            return families;
        }
        let name = self.stream_name(place);
        let rank = stream_rank(place);
        let description = "Kernels and copies while they ran, from CUPTI. NCCL's kernels are named by what they \
                           carry.";
        let parent = canvas.gpu_group(Some(place.device));
        let placing = Placing { parent, rank, description };
        let kernels = canvas.family(name.clone(), placing, Some(LANES).filter(|_| place.stream != OTHERS));
        let description = "The operations of kernels that carry more than one, each as long as its kernel.";
        let place_of = Placing { parent, rank: rank + 1, description };
        let operations = canvas.lanes.family(name + track::OPERATIONS, place_of, 4 * OPERATIONS);
        let families = Families { kernels, operations, channels: None };
        self.streams.insert(place, families);
        families
    }
}

/// The rank of a stream's tracks among those of all GPUs.
fn stream_rank(place: Place) -> u32 {
    (place.device.min(0xff) << 20 | place.stream.min(0x7_ffff)) << 2
}
