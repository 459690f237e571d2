//! What ran on the GPUs: one family of tracks a stream, and one for the operations of kernels that carry several.

use rustc_hash::FxHashMap;

use super::counters;
use super::fields::nccl;
use super::flows;
use super::lanes::{FamilyId, Look, Placing};
use super::names::{self, CarriedName, Fixed, KernelName, OperationName};
use super::tracks::Tracks;
use super::writer::{self, Category, Form, Track};
use crate::model::activity::{Copy, Device, HostFunction, Kernel, Overhead, Place};
use crate::model::time::HostNs;
use crate::model::timeline::{CopyOf, Owner};

/// Kernels of one stream that may overlap, as programmatic launches do, and those that arrive late.
const LANES: usize = 16;
/// Streams that get tracks of their own; the rest share one family, so that the viewer stays usable.
const STREAMS: usize = 512;
/// Channels of streams that get tracks of their own; the rest of a GPU's share one family.
const CHANNELS: usize = 2048;
/// Operations of one kernel that are drawn below it; a kernel of an all-to-all may carry thousands. There are lanes for four such kernels, because late ones
/// find the first lanes taken.
const OPERATIONS: usize = 16;

/// The number of the stream that streams without tracks of their own share.
const OTHERS: u32 = u32::MAX;

/// The GPUs of a trace.
pub(super) struct Gpu {
    streams: FxHashMap<Place, Families>,
    channels: FxHashMap<(Place, u8), FamilyId>,
    overhead: Option<FamilyId>,
    /// By their number: name and uuid; an empty name for one that is not known.
    devices: Vec<(String, [u8; 16])>,
}

/// Most GPUs of a process.
const DEVICES: usize = 64;

/// The tracks of a stream.
#[derive(Clone, Copy)]
struct Families {
    kernels: FamilyId,
    operations: FamilyId,
    /// The group of its channels; made with the first.
    channels: Option<Track>,
}

impl Gpu {
    /// The GPUs of a process.
    pub(super) fn new() -> Gpu {
        Gpu { streams: FxHashMap::default(), channels: FxHashMap::default(), overhead: None, devices: Vec::new() }
    }
}

impl Gpu {
    /// What a GPU calls itself, where that is known.
    pub(super) fn name(&self, device: u32) -> Option<&str> {
        self.devices.get(device as usize).map(|(name, _)| &**name).filter(|name| !name.is_empty())
    }
}

impl Tracks {
    /// A kernel: on its stream, its operations on the track of their communicator, and their bandwidth.
    pub(super) fn kernel(&mut self, kernel: &Kernel, owner: &Owner<'_>) {
        let (start, end) = (kernel.span.start, kernel.span.end);
        // Of an operation whose hand-over is not known nobody will tell that it ended.
        self.kernels_missing |= match owner {
            Owner::Operations { operations, .. } => operations.iter().any(|operation| operation.id.is_none()),
            Owner::Unmatched(_) => true,
            Owner::Application => false,
        };
        let speed = match owner {
            Owner::Operations { comm: Some(comm), operations, .. } if !operations.is_empty() => {
                counters::bandwidth(comm, operations, end.since(start)).map(|bandwidth| (comm, bandwidth))
            }
            _ => None,
        };
        if !self.render_stage(kernel, owner) {
            self.kernel_on_stream(kernel, owner, speed.map(|(_, bandwidth)| bandwidth));
        }
        self.runs(kernel, owner);
        if let Some((comm, bandwidth)) = speed {
            self.speed(start, comm, |speed, writer| speed.ran(writer, start, end, bandwidth));
        }
    }

    /// NCCL's by what it carries, any other by its own name.
    fn kernel_on_stream(&mut self, kernel: &Kernel, owner: &Owner<'_>, speed: Option<counters::Bandwidth>) {
        let families = self.stream(kernel.place);
        let (start, end) = (kernel.span.start, kernel.span.end);
        self.args.clear();
        match owner {
            Owner::Operations { comm, operations, around, channels, launch, .. } if !operations.is_empty() => {
                if let [operation] = operations {
                    self.args.operation(operation);
                }
                self.args.kernel(kernel, owner).around(around.first());
                if let Some([algorithm, bus]) = speed {
                    self.args.uint(nccl::ALGBW_BYTES_PER_S, algorithm).uint(nccl::BUSBW_BYTES_PER_S, bus);
                }
                let arrows = launch.iter().map(|launch| flows::from(*launch));
                let arrows: Vec<u64> =
                    arrows.chain(channels.iter().map(|(of, channel)| flows::to_channel(*of, *channel))).collect();
                // A kernel that carries one operation has that one's colour.
                let correlation = operations.first().and_then(|operation| operation.correlation(*comm));
                let name = CarriedName { operations };
                let look = Look::new(Category::Kernel, &name).of(correlation).with(&arrows);
                self.lanes.whole(families.kernels, start, end, &look, &mut self.args);
                let several = operations.iter().enumerate().take(OPERATIONS).filter(|_| operations.len() > 1);
                for (place, operation) in several {
                    self.args.clear().operation(operation).of_comm(*comm).around(around.get(place));
                    let name = OperationName { operation, prefix: "" };
                    let look = Look::new(Category::Carried, &name).of(operation.correlation(*comm));
                    self.lanes.whole(families.operations, start, end, &look, &mut self.args);
                }
            }
            _ => {
                self.args.kernel(kernel, owner);
                let name = KernelName(&kernel.name);
                self.lanes.whole(families.kernels, start, end, &Look::new(Category::Kernel, &name), &mut self.args);
            }
        }
    }

    /// The operations of a kernel, on the tracks of their communicator.
    fn runs(&mut self, kernel: &Kernel, owner: &Owner<'_>) {
        let Owner::Operations { comm: Some(comm), operations, around, method, replay, .. } = owner else { return };
        if operations.is_empty() {
            return;
        }
        let family = self.comm(kernel.span.start, comm);
        operations.iter().for_each(|operation| self.done(kernel.span.end, comm, operation.id));
        // All of them: who asks for an operation asks for its run.
        for (place, operation) in operations.iter().enumerate() {
            self.args.clear().operation(operation).of_comm(Some(comm)).matched_by(*method).around(around.get(place));
            match replay {
                Some(replay) => self.args.uint(nccl::REPLAY, *replay),
                // Of an operation in another tool's file this may not be known.
                None if operation.since == HostNs(0) => &mut self.args,
                // What NCCL says of a replay may be of another one.
                None => self.args.uint(nccl::QUEUED_NS, kernel.span.start.since(operation.since)),
            };
            self.args.time_error(kernel.span.error_ns);
            let name = OperationName { operation, prefix: "" };
            let arrow = Some(operation.id).filter(|id| !id.is_none()).map(flows::from);
            let look = Look::new(Category::Run, &name).of(operation.correlation(Some(comm))).with(arrow.as_slice());
            self.lanes.whole(family, kernel.span.start, kernel.span.end, &look, &mut self.args);
        }
    }

    /// A copy or a memset; one that a collective queued is named by it.
    pub(super) fn copy(&mut self, copy: &Copy, of: Option<CopyOf<'_>>) {
        let families = self.stream(copy.place);
        let name = names::copy(copy.kind);
        self.args
            .clear()
            .nonzero(nccl::BYTES, copy.bytes)
            .nonzero(nccl::CORRELATION, u64::from(copy.correlation))
            .ran(copy.place, copy.span);
        if copy.graph_node != 0 {
            self.args.uint(nccl::GRAPH_NODE, copy.graph_node);
        }
        let (start, end) = (copy.span.start, copy.span.end);
        let Some(CopyOf { comm, operation, method }) = of else {
            let name = Fixed(name);
            return self.lanes.whole(families.kernels, start, end, &Look::new(Category::Kernel, &name), &mut self.args);
        };
        self.args.text(nccl::NOTE, name).matched_by(method).of_comm(comm);
        let (name, arrow) = (OperationName { operation, prefix: "" }, [flows::from(operation.id)]);
        let look = Look::new(Category::Kernel, &name).of(operation.correlation(comm)).with(&arrow);
        self.lanes.whole(families.kernels, start, end, &look, &mut self.args);
    }

    /// A function that a graph had the host run: the stream waited for it.
    pub(super) fn host_function(&mut self, function: &HostFunction) {
        let families = self.stream(function.place);
        self.args
            .clear()
            .uint(nccl::CORRELATION, u64::from(function.correlation))
            .uint(nccl::GRAPH, u64::from(function.graph))
            .uint(nccl::GRAPH_NODE, function.graph_node)
            .ran(function.place, function.span);
        if function.tid != 0 {
            self.args.int(nccl::TID, function.tid);
        }
        let (start, end) = (function.span.start, function.span.end);
        let name = Fixed("host function");
        self.lanes.whole(families.kernels, start, end, &Look::new(Category::Host, &name), &mut self.args);
    }

    /// A GPU of the process, once.
    pub(super) fn device(&mut self, time: HostNs, device: &Device) {
        let number = device.device as usize;
        if number >= DEVICES || self.gpu.devices.get(number).is_some_and(|(name, _)| !name.is_empty()) {
            return;
        }
        self.gpu.devices.resize(self.gpu.devices.len().max(number + 1), Default::default());
        self.gpu.devices[number] = (device.name.to_string(), device.uuid);
        let known: Vec<_> = self.gpu.devices.iter().map(|(name, uuid)| (&**name, *uuid)).collect();
        self.lanes.writer.gpus(&known);
        self.args.clear().uint(nccl::DEVICE, u64::from(device.device)).text(nccl::NOTE, &device.name);
        if device.uuid != Device::NO_UUID {
            let uuid: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            self.args.text(nccl::UUID, &uuid);
        }
        self.lanes.instant(self.own, time, Category::Ncclscope, &Fixed("GPU"), &self.args);
    }

    /// CUPTI's times contradict NCCL's.
    pub(super) fn times_off(&mut self, time: HostNs, device: u32, least: i64, most: i64) {
        self.args.clear().uint(nccl::DEVICE, u64::from(device));
        for (field, bound) in [(nccl::CUPTI_OFF_LEAST_NS, least), (nccl::CUPTI_OFF_MOST_NS, most)] {
            if bound != i64::MIN && bound != i64::MAX {
                self.args.long(field, bound);
            }
        }
        let (way, by) = if least > 0 { ("late", least) } else { ("early", -most) };
        let what = match way {
            "late" => "NCCL's threads saw the work of kernels before these begin",
            _ => "kernels begin before the calls that launch them",
        };
        let note = format!(
            "GPU {device}: by at least {} too {way}: {what}; kernels state an error that covers it from here on",
            names::duration(by as f64)
        );
        self.args.text(nccl::NOTE, &note);
        self.lanes.instant(self.own, time, Category::Ncclscope, &Fixed("CUPTI's times are off"), &self.args);
    }

    /// A GPU's timer, or the host's clock, was set.
    pub(super) fn timer_step(&mut self, time: HostNs, device: u32, before: HostNs, by: i64) {
        self.args.clear().uint(nccl::DEVICE, u64::from(device)).long(nccl::TIMER_STEP_NS, by);
        let within = before.since(time);
        let note = format!("within {within} ns, between two kernels; or CUPTI's conversion of it was");
        self.args.text(nccl::NOTE, &note);
        self.lanes.instant(self.own, time, Category::Ncclscope, &Fixed("GPU timer was set"), &self.args);
    }

    /// Time that CUPTI itself took.
    pub(super) fn overhead(&mut self, overhead: &Overhead) {
        let parent = self.gpu_group(None);
        let family = *self.gpu.overhead.get_or_insert_with(|| {
            let description = "Time that CUPTI took from the application, by its own account.";
            let place = Placing { parent, rank: u32::MAX >> 1, description };
            self.lanes.family("CUPTI overhead".into(), place, LANES)
        });
        self.args.clear().uint(nccl::TIME_ERROR_NS, u64::from(overhead.span.error_ns));
        if let Some(tid) = overhead.tid {
            self.args.int(nccl::TID, tid);
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
        let (start, end) = (overhead.span.start, overhead.span.end);
        self.lanes.whole(family, start, end, &Look::new(Category::Ncclscope, &Fixed(name)), &mut self.args);
    }

    /// The tracks of a channel of the kernels of a stream.
    pub(super) fn channel_of_kernel(&mut self, place: Place, channel: u8) -> FamilyId {
        let place = self.place_of(place);
        let full = self.gpu.channels.len() >= CHANNELS || !self.lanes.is_roomy();
        let crowded = full && !self.gpu.channels.contains_key(&(place, channel));
        let key =
            if crowded { (Place { stream: OTHERS, context: OTHERS, ..place }, u8::MAX) } else { (place, channel) };
        if let Some(&family) = self.gpu.channels.get(&key) {
            return family;
        }
        let place = key.0;
        let mut families = self.stream(place);
        if families.channels.is_none() {
            let name = format!("{} · channels", self.stream_name(place));
            let description = "Kernel channels while they ran, by the GPU's own timer.";
            let parent = self.gpu_group(Some(place.device));
            let rank = Some(stream_rank(place) + 2);
            let of = writer::Place { parent, rank, orders_children: true, description, ..writer::Place::default() };
            families.channels = self.lanes.writer.track(Form::Plain { name: &name }, of);
            self.gpu.streams.insert(place, families);
        }
        let parent = families.channels;
        let of = Placing { parent, rank: u32::from(channel), description: "" };
        let family = match crowded {
            true => self.lanes.shared_family("other channels".into(), of),
            false => self.lanes.family(format!("channel {channel}"), of, LANES),
        };
        self.gpu.channels.insert(key, family);
        family
    }

    /// Where a stream is drawn: beyond so many, together with others.
    fn place_of(&self, place: Place) -> Place {
        let full = self.gpu.streams.len() >= STREAMS || !self.lanes.is_roomy();
        let crowded = full && !self.gpu.streams.contains_key(&place);
        if crowded { Place { stream: OTHERS, context: OTHERS, ..place } } else { place }
    }

    /// The name of a place that [`Tracks::place_of`] returned.
    fn stream_name(&self, place: Place) -> String {
        if place.stream == OTHERS {
            return format!("GPU {} · other streams", place.device);
        }
        let name = format!("GPU {} · stream {}", place.device, place.stream);
        // Streams are numbered per context, and two tracks of one name would be drawn as one.
        let twin = |other: &Place| {
            other.device == place.device && other.stream == place.stream && other.context != place.context
        };
        if self.gpu.streams.keys().any(twin) { format!("{name} of context {}", place.context) } else { name }
    }

    /// The tracks of a stream.
    fn stream(&mut self, place: Place) -> Families {
        let place = self.place_of(place);
        if let Some(&families) = self.gpu.streams.get(&place) {
            return families;
        }
        let name = self.stream_name(place);
        let rank = stream_rank(place);
        let description = "Kernels and copies while they ran, by CUPTI. Those of NCCL are named by what they carry.";
        let parent = self.gpu_group(Some(place.device));
        let placing = Placing { parent, rank, description };
        let kernels = match place.stream == OTHERS {
            true => self.lanes.shared_family(name.clone(), placing),
            false => self.lanes.family(name.clone(), placing, LANES),
        };
        let description = "The operations of kernels that carry more than one, each as long as its kernel.";
        let place_of = Placing { parent, rank: rank + 1, description };
        let operations = self.lanes.family(format!("{name} · operations"), place_of, 4 * OPERATIONS);
        let families = Families { kernels, operations, channels: None };
        self.gpu.streams.insert(place, families);
        families
    }
}

/// The place of a stream's tracks among those of all GPUs.
fn stream_rank(place: Place) -> u32 {
    (place.device.min(0xff) << 20 | place.stream.min(0x7_ffff)) << 2
}
