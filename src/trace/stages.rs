//! Kernels as Perfetto's GPU work, one packet each, for users of its GPU pages: see docs/events.md.
//!
//! Perfetto keeps such work in a group of its own, tells processes apart only by numbers, and
//! merges equal numbers. So all numbers contain the process tag.

use rustc_hash::FxHashMap;

use super::canvas::Canvas;
use super::fields::gpu_render_stage_event::{self as stage, compute_kernel_launch, dim3, extra_compute_arg};
use super::fields::interned_gpu_render_stage_specification::{self as specification, render_stage_category};
use super::fields::{interned_data, interned_graphics_context as graphics_context, trace_packet};
use super::names::{CarriedName, KernelName};
use super::wire::Buf;
use super::writer::{Name, Sequence};
use crate::model::activity::{Kernel, Place, Span};
use crate::model::timeline::Owner;

/// Queues, contexts and kinds of kernels that get a number of their own, per process. Beyond that,
/// queues and contexts share a number, and kernels carry their name in each packet.
const NUMBERS: u32 = 1 << NUMBER_BITS;
/// Where the process tag begins in the number of a queue or a context. Smaller numbers are kinds of
/// kernels.
pub const NUMBER_BITS: u32 = 12;
/// The same for the number of a kernel.
pub const EVENT_BITS: u32 = 36;
/// The kind of kernels that have no kind of their own.
const OTHER_KERNELS: u32 = 1;

/// Whether kernels are also drawn on their streams' tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// They are not.
    Alone,
    /// They are.
    Beside,
}

/// The render stages of a trace.
pub(super) struct RenderStages {
    sequence: Sequence,
    stages: Stages,
    /// Contexts, queues with their names, and kinds of kernels.
    contexts: FxHashMap<u32, Numbered>,
    queues: FxHashMap<Place, (Numbered, String)>,
    kinds: FxHashMap<(u64, u64), Numbered>,
    other: Numbered,
    events: u64,
}

/// The number of something, and after which restart of the trace it was last described.
struct Numbered {
    number: u32,
    described: Option<u32>,
}

impl Numbered {
    fn new(number: u32) -> Numbered {
        Numbered { number, described: None }
    }

    /// Whether the trace has to describe it now.
    fn is_due(&mut self, restarts: u32) -> bool {
        self.described.replace(restarts) != Some(restarts)
    }
}

impl RenderStages {
    /// `None` if the file already has as many sequences as it may have.
    pub(super) fn new(canvas: &mut Canvas, stages: Stages) -> Option<RenderStages> {
        Some(RenderStages {
            sequence: canvas.writer().plain_sequence()?,
            stages,
            contexts: FxHashMap::default(),
            queues: FxHashMap::default(),
            kinds: FxHashMap::default(),
            other: Numbered::new(OTHER_KERNELS),
            events: 0,
        })
    }

    /// Draws a kernel as a render stage. Returns whether its stream's track should not show it.
    pub(super) fn kernel(&mut self, canvas: &mut Canvas, kernel: &Kernel, owner: &Owner<'_>) -> bool {
        let carried = match owner {
            Owner::Operations { comm, operations, .. } if !operations.is_empty() => {
                Some(CarriedName { comm: *comm, operations })
            }
            _ => None,
        };
        let own = KernelName(&kernel.name);
        let name: &dyn Name = carried.as_ref().map_or(&own, |carried| carried);
        let text = || {
            let mut text = String::new();
            name.write(&mut text);
            text
        };
        let (tag, restarts) = (canvas.writer().tag().bits(), canvas.writer().restarts());
        let mut interned = Buf::new();
        let context = self.context((tag, restarts), canvas.processes.pid, kernel.place.context, &mut interned);
        let queue = self.queue((tag, restarts), &canvas.processes.who, kernel.place, &mut interned);
        let kind = self.kind(restarts, (name.key(), own.key()), text, &kernel.name, &mut interned);
        self.events += 1;
        let event = u64::from(tag) << EVENT_BITS | self.events & ((1 << EVENT_BITS) - 1);
        let span = kernel.span;
        canvas.writer().render_stage(self.sequence, span.start, |out| {
            if !interned.is_empty() {
                out.bytes_field(trace_packet::INTERNED_DATA, interned.bytes());
            }
            out.message(trace_packet::GPU_RENDER_STAGE_EVENT, |out| {
                out.uint(stage::EVENT_ID, event);
                out.uint(stage::DURATION, span.end.since(span.start));
                out.uint(stage::CONTEXT, u64::from(context));
                out.uint(stage::SUBMISSION_ID, u64::from(kernel.correlation));
                out.uint(stage::GPU_ID, u64::from(kernel.place.device));
                out.uint(stage::HW_QUEUE_IID, u64::from(queue));
                out.uint(stage::STAGE_IID, u64::from(kind));
                if kind == OTHER_KERNELS {
                    out.bytes_field(stage::NAME, text().as_bytes());
                }
                out.message(stage::LAUNCH, |out| launch(out, kernel, owner));
            });
        });
        self.stages == Stages::Alone
    }

    fn context(&mut self, (tag, restarts): (u32, u32), pid: i32, context: u32, interned: &mut Buf) -> u32 {
        let context = context & (NUMBERS - 1);
        let known = self.contexts.entry(context).or_insert(Numbered::new(tag << NUMBER_BITS | context));
        if known.is_due(restarts) {
            interned.message(interned_data::GRAPHICS_CONTEXTS, |out| {
                out.uint(graphics_context::IID, u64::from(known.number));
                out.int(graphics_context::PID, i64::from(pid));
                out.uint(graphics_context::API, graphics_context::api::CUDA);
            });
        }
        known.number
    }

    fn queue(&mut self, (tag, restarts): (u32, u32), who: &str, place: Place, interned: &mut Buf) -> u32 {
        let crowded = self.queues.len() as u32 >= NUMBERS - 1 && !self.queues.contains_key(&place);
        let place = if crowded { Place { device: u32::MAX, context: u32::MAX, stream: u32::MAX } } else { place };
        if !self.queues.contains_key(&place) {
            let twin = |other: &Place| (other.device, other.stream) == (place.device, place.stream);
            let context =
                if self.queues.keys().any(twin) { format!(" of context {}", place.context) } else { String::new() };
            let name = match crowded {
                true => format!("{who} · other streams"),
                false => format!("{who} · GPU {} · stream {}{context}", place.device, place.stream),
            };
            let number = tag << NUMBER_BITS | self.queues.len() as u32;
            self.queues.insert(place, (Numbered::new(number), name));
        }
        let Some((known, name)) = self.queues.get_mut(&place) else { return 0 };
        if known.is_due(restarts) {
            interned.message(interned_data::GPU_SPECIFICATIONS, |out| {
                out.uint(specification::IID, u64::from(known.number));
                out.bytes_field(specification::NAME, name.as_bytes());
                out.bytes_field(specification::DESCRIPTION, b"Kernels while they ran, from CUPTI.");
            });
        }
        known.number
    }

    /// A kind of kernel: a name, and a function on the GPU.
    fn kind(
        &mut self,
        restarts: u32,
        key: (u64, u64),
        name: impl FnOnce() -> String,
        kernel: &str,
        interned: &mut Buf,
    ) -> u32 {
        let specify = |interned: &mut Buf, kind: u32, name: &str, kernel: &str| {
            interned.message(interned_data::GPU_SPECIFICATIONS, |out| {
                out.uint(specification::IID, u64::from(kind));
                out.bytes_field(specification::NAME, name.as_bytes());
                out.bytes_field(specification::DESCRIPTION, kernel.as_bytes());
                out.uint(specification::CATEGORY, render_stage_category::COMPUTE);
            });
        };
        if self.other.is_due(restarts) {
            specify(interned, OTHER_KERNELS, "kernel", "");
        }
        let next = OTHER_KERNELS + 1 + self.kinds.len() as u32;
        if next >= NUMBERS && !self.kinds.contains_key(&key) {
            return OTHER_KERNELS;
        }
        let known = self.kinds.entry(key).or_insert(Numbered::new(next));
        if known.is_due(restarts) {
            specify(interned, known.number, &name(), kernel);
        }
        known.number
    }
}

/// What the viewer shows about a launch: its sizes, under the names that its pages look for, and
/// our own facts.
fn launch(out: &mut Buf, kernel: &Kernel, owner: &Owner<'_>) {
    let sizes =
        [(compute_kernel_launch::GRID_SIZE, kernel.grid), (compute_kernel_launch::WORKGROUP_SIZE, kernel.block)];
    for (field, size) in sizes {
        out.message(field, |out| {
            for (axis, length) in [dim3::X, dim3::Y, dim3::Z].into_iter().zip(size) {
                out.uint(axis, u64::from(length));
            }
        });
    }
    let product =
        |size: [u32; 3]| size.into_iter().fold(1_u64, |product, length| product.saturating_mul(length.into()));
    let mut argument = |name: &str, value: Result<u64, &str>| {
        out.message(compute_kernel_launch::ARGS, |out| {
            out.bytes_field(extra_compute_arg::NAME, name.as_bytes());
            match value {
                Ok(number) => out.uint(extra_compute_arg::UINT_VALUE, number),
                Err(text) => out.bytes_field(extra_compute_arg::STRING_VALUE, text.as_bytes()),
            }
        });
    };
    argument("launch__grid_size", Ok(product(kernel.grid)));
    argument("launch__block_size", Ok(product(kernel.block)));
    argument("device", Ok(kernel.place.device.into()));
    argument("stream", Ok(kernel.place.stream.into()));
    if kernel.span.error_ns != Span::UNKNOWN_ERROR {
        argument("time_error_ns", Ok(kernel.span.error_ns.into()));
    }
    match owner {
        Owner::Application => {}
        Owner::Operations { method, operations, .. } => {
            argument("match", Err(method.text()));
            argument("operations", Ok(operations.len() as u64));
        }
        Owner::Unmatched(reason) => {
            argument("match", Err("unmatched"));
            argument("doubt", Err(reason.text()));
        }
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use super::*;
    use crate::model::ids::ProcessTag;
    use crate::model::time::HostNs;
    use crate::model::timeline::{Entry, What};
    use crate::trace::reader::proto::perfetto::protos::GpuRenderStageEvent;
    use crate::trace::reader::{self, TracePacket};
    use crate::trace::tracks::{ProcessInfo, Tracks};
    use crate::trace::writer::Clocks;

    const PLACE: Place = Place { device: 1, context: 7, stream: 13 };

    fn kernel(number: u64, name: &str) -> Kernel {
        let (start, end) = (HostNs(1_000 * number), HostNs(1_000 * number + 300));
        let (span, correlation, name) = (Span { start, end, error_ns: 40 }, number as u32, name.into());
        Kernel { place: PLACE, correlation, grid: [4, 2, 1], block: [512, 1, 1], name, ..Kernel::during(span) }
    }

    /// The packets written for these kernels.
    fn drawn(kernels: impl Iterator<Item = Kernel>) -> Vec<TracePacket> {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let info = ProcessInfo { pid: 4711, name: "python3".into(), labels: Vec::new(), rank: None, world_size: None };
        let mut tracks = Tracks::new(ProcessTag::from_random(42), clocks, &info);
        tracks.draw_render_stages(Stages::Alone);
        for kernel in kernels {
            let what = What::Kernel { kernel: &kernel, owner: Owner::Application };
            tracks.draw(&Entry { time: kernel.span.start, what });
        }
        let mut packets = Vec::new();
        reader::decoded(&tracks.take(), |packet| packets.push(packet)).unwrap();
        packets.into_iter().filter(|packet| packet.gpu_render_stage_event.is_some()).collect()
    }

    fn stage(packet: &TracePacket) -> &GpuRenderStageEvent {
        packet.gpu_render_stage_event.as_ref().unwrap()
    }

    #[test]
    fn a_launch_has_the_arguments_that_the_viewer_expects() {
        // The second one arrives late and ran before the first.
        let packets = drawn([kernel(5, "gemm"), kernel(2, "gemm")].into_iter());
        assert_eq!([packets[0].timestamp(), packets[1].timestamp()], [5_000, 2_000]);
        assert_eq!(packets[1].interned_data, None, "all names are known");
        let launch = stage(&packets[0]).launch.as_ref().unwrap();
        let (grid, block) = (launch.grid_size.unwrap(), launch.workgroup_size.unwrap());
        assert_eq!([grid.x(), grid.y(), grid.z(), block.x()], [4, 2, 1, 512]);
        let args: Vec<_> = launch.args.iter().map(|arg| (arg.name(), arg.uint_value())).collect();
        assert_eq!(
            args,
            [
                ("launch__grid_size", 8),
                ("launch__block_size", 512),
                ("device", 1),
                ("stream", 13),
                ("time_error_ns", 40)
            ]
        );
        assert_ne!(stage(&packets[0]).event_id(), stage(&packets[1]).event_id());
        let interned = packets[0].interned_data.as_ref().unwrap();
        assert_eq!(interned.graphics_contexts[0].pid(), 4711);
        let kind =
            interned.gpu_specifications.iter().find(|kind| kind.iid() == stage(&packets[0]).stage_iid()).unwrap();
        assert_eq!((kind.name(), kind.description(), kind.category() as u32), ("gemm", "gemm", 2));
        let queue = interned.gpu_specifications.iter().find(|it| it.iid() == stage(&packets[0]).hw_queue_iid());
        assert_eq!(queue.unwrap().name(), "python3 · GPU 1 · stream 13");
    }

    #[test]
    fn too_many_names_are_written_in_full() {
        let packets = drawn((0..5_000).map(|number| kernel(number, &format!("kernel {number}"))));
        let interned: usize =
            packets.iter().flat_map(|it| &it.interned_data).map(|it| it.gpu_specifications.len()).sum();
        assert!(interned <= NUMBERS as usize + 1, "{interned}");
        let last = stage(packets.last().unwrap());
        assert_eq!((last.stage_iid(), last.name()), (u64::from(OTHER_KERNELS), "kernel 4999"));
    }
}
