//! Work: what a stream or a graph's node does.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::observe::{Activity, ActivityKind};

use super::event::Event;
use super::memory::Kind;
use super::memory_operations::{self, MemoryOperation};
use super::names::Name;
use super::one_rank::OneRank;
use super::threads::lock;
use super::{Arguments, Launch, Ran, machine, observe, time};
use crate::truth::{self, GraphPlace, Line};

/// How long a line of truth waits for the launching call to return. That is imminent: the call has
/// queued the kernel already.
const RETURN_PATIENCE: Duration = Duration::from_secs(1);

/// The call that caused some work.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) correlation: u32,
    pub(super) thread: u32,
    /// When it was made, in true ns.
    pub(super) called: u64,
    /// When it returned; 0 before.
    pub(super) returned: Arc<AtomicU64>,
}

/// Where and why work is done.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) device: u32,
    pub(super) context: u32,
    pub(super) stream: u32,
    pub(super) stream_handle: u64,
    pub(super) origin: Origin,
    /// When it was queued, in true ns.
    pub(super) queued: u64,
    pub(super) graph: Option<GraphPlace>,
}

/// What is to be done.
pub(super) enum Action {
    Kernel(Kernel),
    Copy(Vec<CopyPart>),
    Set(Set),
    /// A host function of libnccl's.
    Host {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
    },
    /// Work of the job's own, which nobody observes.
    Unobserved(Mutex<Box<dyn FnMut() + Send>>),
    /// Completes a record of an event. In a stream, and in a graph, whoever launches it says which
    /// one.
    Record(Arc<Event>),
    /// Waits for a record of an event, chosen in the same way.
    Wait(Arc<Event>),
    Memory(Vec<MemoryOperation>),
    Free(usize),
}

/// A kernel as it was launched.
pub(super) struct Kernel {
    pub(super) function: usize,
    pub(super) name: Name,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_memory: u32,
    pub(super) body: Body,
}

/// What a kernel does.
pub(super) enum Body {
    /// One of NCCL's, with its arguments.
    Nccl(Arguments),
    /// NCCL's kernel for a communicator of one rank.
    OneRank(OneRank),
    /// NCCL's kernel that writes down the device's timer.
    Timer(usize),
    /// A kernel of the application.
    Compute { duration_ns: u64, work: Mutex<Box<dyn FnMut() + Send>> },
}

/// One copy.
pub(super) struct CopyPart {
    pub(super) to: usize,
    pub(super) from: Source,
    pub(super) bytes: usize,
}

/// What a copy reads.
pub(super) enum Source {
    Address(usize),
    /// Pageable memory of the host, which was read during the call.
    Staged(Box<[u8]>),
}

/// Memory to be set.
pub(super) struct Set {
    pub(super) at: usize,
    pub(super) byte: u8,
    pub(super) bytes: usize,
}

impl Action {
    /// `CUgraphNodeType`.
    pub(super) fn node_type(&self) -> u32 {
        match self {
            Action::Kernel(_) => 0,
            Action::Copy(_) => 1,
            Action::Set(_) => 2,
            Action::Host { .. } => 3,
            Action::Unobserved(_) => 5,
            Action::Wait(_) => 6,
            Action::Record(_) => 7,
            Action::Free(_) => 11,
            Action::Memory(_) => 12,
        }
    }

    /// Whether observers are told of such a node.
    pub(super) fn is_observed(&self) -> bool {
        !matches!(self, Action::Unobserved(_))
    }

    /// Whether it surely has the same parameters as another one.
    pub(super) fn has_parameters_of(&self, other: &Action) -> bool {
        let (Action::Kernel(one), Action::Kernel(other)) = (self, other) else { return false };
        let launch = |kernel: &Kernel| (kernel.function, kernel.grid, kernel.block, kernel.shared_memory);
        launch(one) == launch(other)
            && match (&one.body, &other.body) {
                (Body::Nccl(one), Body::Nccl(other)) => one == other,
                (Body::Compute { duration_ns: one, .. }, Body::Compute { duration_ns: other, .. }) => one == other,
                _ => false,
            }
    }

    /// Whether observers are told when it is done.
    pub(super) fn is_activity(&self) -> bool {
        matches!(self, Action::Kernel(_) | Action::Copy(_) | Action::Set(_))
    }

    /// What observers are told of it, without times.
    pub(super) fn describe(&self, place: &Place) -> Option<Activity> {
        match self {
            Action::Kernel(kernel) => Some(kernel.describe(place)),
            Action::Copy(parts) => Some(describe_copy(parts, place)),
            Action::Set(set) => Some(set.describe(place)),
            Action::Host { .. } if place.graph.is_some() => Some(place.activity(ActivityKind::HostNode)),
            _ => None,
        }
    }

    /// Runs it. `started` is called when a kernel begins.
    pub(super) fn run(&self, place: &Place, started: &dyn Fn()) {
        match self {
            Action::Kernel(kernel) => kernel.run(place, started),
            Action::Copy(parts) => copy(parts, place),
            Action::Set(set) => set.run(place),
            Action::Host { function, data } => host(*function, *data, place),
            Action::Unobserved(work) => lock(work)(),
            Action::Memory(operations) => memory_operations::run(operations),
            Action::Free(address) => {
                // An unknown address is ignored: there is nobody left to report it to.
                let _ = machine().memory.free(*address as *mut c_void, |kind| kind == Kind::Device);
            }
            // Only the queue and the graph know which record is meant.
            Action::Record(_) | Action::Wait(_) => {
                unreachable!("records and waits are carried out by those who hold them")
            }
        }
    }
}

impl Kernel {
    fn run(&self, place: &Place, started: &dyn Fn()) {
        time::sleep_until(place.queued + machine().config.launch_latency_ns);
        started();
        let ran = match &self.body {
            Body::Nccl(arguments) => machine().kernels.run(&self.launch(place, arguments)),
            Body::OneRank(kernel) => timed(|| kernel.run()),
            Body::Timer(address) => timed(|| {
                let timer = machine().kernels.timer(place.device);
                // SAFETY: the kernel was launched with an address that has eight writable bytes.
                unsafe { (*address as *mut u64).write_volatile(timer) };
            }),
            Body::Compute { duration_ns, work } => timed(|| {
                let start = time::now();
                lock(work)();
                time::sleep_until(start + duration_ns);
            }),
        };
        observe::activity(|| Activity { start: ran.start, end: ran.end, ..self.describe(place) });
        machine().truth.write(&Line::Kernel(truth::Kernel {
            correlation: place.origin.correlation,
            thread: place.origin.thread,
            called: place.origin.called,
            returned: place.origin.wait_for_return(),
            device: place.device,
            context: place.context,
            stream: place.stream,
            stream_handle: place.stream_handle,
            symbol: self.name.to_string(),
            grid: self.grid.iter().product(),
            start: ran.start,
            end: ran.end,
            graph: place.graph,
            device_comm: ran.device_comm,
            operations: ran.operations,
            channels: ran.channels,
            aborted: ran.aborted,
        }));
    }

    fn describe(&self, place: &Place) -> Activity {
        Activity {
            name: self.name.c_str().as_ptr(),
            grid: self.grid,
            block: self.block,
            shared_memory: self.shared_memory,
            ..place.activity(ActivityKind::Kernel)
        }
    }

    fn launch(&self, place: &Place, arguments: &Arguments) -> Launch {
        Launch { device: place.device, symbol: self.name.text(), grid: self.grid, arguments: arguments.clone() }
    }
}

/// Runs something and returns when it began and ended.
fn timed(work: impl FnOnce()) -> Ran {
    let start = time::now();
    work();
    Ran { start, end: time::now(), ..Ran::default() }
}

fn copy(parts: &[CopyPart], place: &Place) {
    let start = time::now();
    for part in parts {
        let from = match &part.from {
            Source::Address(address) => *address as *const u8,
            Source::Staged(bytes) => bytes.as_ptr(),
        };
        // SAFETY: whoever asked for the copy promised both ranges until it has been made. They may
        // overlap, as they may in CUDA without a fault.
        unsafe { std::ptr::copy(from, part.to as *mut u8, part.bytes) };
    }
    let end = time::now();
    observe::activity(|| Activity { start, end, ..describe_copy(parts, place) });
    place.write_copy(parts.iter().map(|part| part.bytes as u64).sum(), false, start, end);
}

fn describe_copy(parts: &[CopyPart], place: &Place) -> Activity {
    let device_of = |address: usize| {
        let range = machine().memory.find(address as *const c_void);
        range.filter(|range| range.kind == Kind::Device).map(|range| range.device)
    };
    let to = parts.first().and_then(|part| device_of(part.to));
    let from = parts.first().and_then(|part| match part.from {
        Source::Address(address) => device_of(address),
        Source::Staged(_) => None,
    });
    Activity {
        bytes: parts.iter().map(|part| part.bytes as u64).sum(),
        copies: parts.len() as u32,
        // cudaMemcpyKind: 0 host to host, 1 host to device, 2 device to host, 3 device to device.
        copy_kind: 2 * u32::from(from.is_some()) + u32::from(to.is_some()),
        peer: from.and(to).unwrap_or(place.device),
        ..place.activity(ActivityKind::Memcpy)
    }
}

impl Set {
    fn run(&self, place: &Place) {
        let start = time::now();
        // SAFETY: whoever asked for it promised the range until it is done.
        unsafe { (self.at as *mut u8).write_bytes(self.byte, self.bytes) };
        let end = time::now();
        observe::activity(|| Activity { start, end, ..self.describe(place) });
        place.write_copy(self.bytes as u64, true, start, end);
    }

    fn describe(&self, place: &Place) -> Activity {
        Activity { bytes: self.bytes as u64, value: self.byte.into(), ..place.activity(ActivityKind::Memset) }
    }
}

fn host(function: unsafe extern "C" fn(*mut c_void), data: usize, place: &Place) {
    let start = time::now();
    // SAFETY: whoever queued it promised that the function takes the data, on any thread.
    unsafe { function(data as *mut c_void) };
    let end = time::now();
    if place.graph.is_some() {
        observe::activity(|| Activity { start, end, ..place.activity(ActivityKind::HostNode) });
    }
}

impl Origin {
    /// The origin of work that follows from no call.
    pub(super) fn none() -> Origin {
        Origin { correlation: 0, thread: 0, called: 0, returned: Arc::default() }
    }

    /// When the call returned; 0 if it does not within [`RETURN_PATIENCE`].
    fn wait_for_return(&self) -> u64 {
        let patience = std::time::Instant::now() + RETURN_PATIENCE;
        loop {
            let returned = self.returned.load(Ordering::Acquire);
            if returned != 0 || std::time::Instant::now() >= patience {
                return returned;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

impl Place {
    fn activity(&self, kind: ActivityKind) -> Activity {
        Activity {
            correlation: self.origin.correlation,
            node_id: self.graph.map_or(0, |graph| graph.node),
            graph_id: self.graph.map_or(0, |graph| graph.exec),
            ..Activity::new(kind, self.device, self.context, self.stream)
        }
    }

    fn write_copy(&self, bytes: u64, set: bool, start: u64, end: u64) {
        let (correlation, device, stream) = (self.origin.correlation, self.device, self.stream);
        let copy = truth::Copy { correlation, device, stream, bytes, set, start, end };
        machine().truth.write(&Line::Copy(copy));
    }
}
