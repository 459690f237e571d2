//! What an observer, such as the emulated CUPTI, is told.

use super::*;
use crate::cuda::host::{self, Stream};
use ::observe::{Activity, ActivityKind, Call, Observer, Resource, ResourceKind};
use std::ffi::CStr;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the observer was told, and on which thread.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Call { function: String, exits: bool, correlation: u32, symbol: Option<String>, at: u64 },
    Resource { kind: ResourceKind, node: u64, stream: usize, graph: u32 },
    Queued { name: Option<String>, correlation: u32, node: u64 },
    Activity { name: Option<String>, correlation: u32, node: u64, kind: ActivityKind, stream: u32, bytes: u64 },
}

static TOLD: Mutex<Vec<(u32, Told)>> = Mutex::new(Vec::new());

fn told() -> MutexGuard<'static, Vec<(u32, Told)>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn text(from: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: null or a C string, during the call.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_str().unwrap().to_owned())
}

unsafe extern "C" fn on_call(call: *const Call) {
    // SAFETY: the machine passes a call.
    let call = unsafe { &*call };
    let (function, symbol) = (text(call.function).unwrap(), text(call.symbol));
    let told_call = Told::Call { function, exits: call.exits != 0, correlation: call.correlation, symbol, at: call.at };
    told().push((threads::id(), told_call));
}

unsafe extern "C" fn on_resource(resource: *const Resource) {
    // SAFETY: the machine passes a resource.
    let of = unsafe { &*resource };
    assert!(of.context_id > 0 && !of.context.is_null());
    let resource = Told::Resource { kind: of.kind, node: of.node_id, stream: of.stream as usize, graph: of.graph_id };
    told().push((threads::id(), resource));
}

unsafe extern "C" fn on_queued(activity: *const Activity) {
    // SAFETY: the machine passes an activity.
    let of = unsafe { &*activity };
    assert_eq!((of.start, of.end), (0, 0));
    told().push((threads::id(), Told::Queued { name: text(of.name), correlation: of.correlation, node: of.node_id }));
}

unsafe extern "C" fn on_activity(activity: *const Activity) {
    // SAFETY: the machine passes an activity.
    let of = unsafe { &*activity };
    assert!(of.start > 0 && of.end >= of.start);
    let activity = Told::Activity {
        name: text(of.name),
        correlation: of.correlation,
        node: of.node_id,
        kind: of.kind,
        stream: of.stream_id,
        bytes: of.bytes,
    };
    told().push((threads::id(), activity));
}

static OBSERVER: Observer = Observer { call: on_call, resource: on_resource, queued: on_queued, activity: on_activity };

impl Told {
    fn is_call(&self, wanted: &str, end: bool) -> bool {
        matches!(self, Told::Call { function, exits, .. } if function == wanted && *exits == end)
    }

    fn is_stream(&self, wanted: ResourceKind, handle: usize) -> bool {
        matches!(self, Told::Resource { kind, stream, .. } if *kind == wanted && *stream == handle)
    }

    fn correlation(&self) -> Option<u32> {
        match self {
            Told::Call { correlation, .. } | Told::Queued { correlation, .. } | Told::Activity { correlation, .. } => {
                Some(*correlation)
            }
            Told::Resource { .. } => None,
        }
    }
}

#[test]
fn an_observer_is_told_everything_in_order() {
    ready();
    // It exists before the observer attaches, so the observer is told of it then.
    let early = Stream::create().unwrap();
    // SAFETY: the observer is a static.
    let table = unsafe { observe::ncclscope_emulator_attach(&raw const OBSERVER).as_ref() }.unwrap();
    let own = threads::id();
    let handle = early.handle() as usize;
    let mine = || told().iter().filter(|(thread, _)| *thread == own).map(|(_, told)| told.clone()).collect::<Vec<_>>();
    assert!(matches!(mine()[0], Told::Resource { kind: ResourceKind::ContextCreated, .. }));
    assert!(mine().iter().any(|told| told.is_stream(ResourceKind::StreamCreated, handle)));
    assert_eq!(((table.devices)(), (table.current_device)()), (4, 0));
    assert!(!(table.current_context)().is_null());
    let mut gpu = std::mem::MaybeUninit::uninit();
    assert!((table.describe)(3, gpu.as_mut_ptr()) && !(table.describe)(4, gpu.as_mut_ptr()));

    // A launch outside of graphs, as libnccl makes it.
    told().clear();
    let number = AtomicU32::new(0);
    launch_like_nccl(ADD_ONE, &number, early.handle(), None);
    early.synchronize().unwrap();
    let calls = mine();
    let launch = calls.iter().position(|told| told.is_call("cuLaunchKernelEx", false));
    let calls = &calls[launch.unwrap()..];
    let Told::Call { exits: false, correlation, symbol: Some(symbol), at: entered, .. } = &calls[0] else { panic!() };
    assert_eq!(symbol, "add_one");
    let queued = Told::Queued { name: Some("add_one".to_owned()), correlation: *correlation, node: 0 };
    assert_eq!(calls[1], queued);
    let Told::Call { function, exits: true, correlation: same, at: left, .. } = &calls[2] else { panic!() };
    assert_eq!((function.as_str(), same), ("cuLaunchKernelEx", correlation));
    assert!(left >= entered);
    let activity = |told: &Told| match told {
        Told::Activity { kind, stream, .. } if told.correlation() == Some(*correlation) => Some((*kind, *stream)),
        _ => None,
    };
    let activities: Vec<_> = told().iter().filter_map(|(_, told)| activity(told)).collect();
    assert_eq!(activities, [(ActivityKind::Kernel, early.id())]);

    // A capture: nodes are reported within the call that makes them, clones before the executable
    // graph.
    told().clear();
    let buffer = host::malloc(256).unwrap();
    early.begin_capture().unwrap();
    launch_like_nccl(ADD_ONE, &number, early.handle(), None);
    // SAFETY: the buffer outlives the graph.
    unsafe { early.set(buffer.as_ptr(), 1, 256) }.unwrap();
    early.host_work(|| {}).unwrap();
    let graph = early.end_capture().unwrap();
    let exec = graph.instantiate().unwrap();
    let resources = |all: &[Told]| -> Vec<(ResourceKind, u64)> {
        let resource = |told: &Told| match told {
            Told::Resource { kind, node, .. } => Some((*kind, *node)),
            _ => None,
        };
        all.iter().filter_map(resource).collect()
    };
    let all = mine();
    let kinds: Vec<_> = resources(&all).iter().map(|(kind, _)| *kind).collect();
    use ResourceKind::*;
    let captured = [GraphCreated, NodeCreated, NodeCreated];
    let made = [GraphCreated, NodeCreated, NodeCloned, NodeCreated, NodeCloned, GraphInstantiating, GraphInstantiated];
    assert_eq!(kinds, [&captured[..], &made].concat());
    let node = all.iter().position(|told| matches!(told, Told::Resource { kind: NodeCreated, .. })).unwrap();
    assert!(all[node - 1].is_call("cuLaunchKernelEx", false));
    assert!(all[node + 1].is_call("cuLaunchKernelEx", true));
    assert!(!all.iter().any(|told| matches!(told, Told::Queued { .. })), "nothing runs yet");

    // A launch of the graph: the driver's call is within the runtime's, with the same id. Each
    // node is announced, then done.
    told().clear();
    exec.launch(&early).unwrap();
    early.synchronize().unwrap();
    let all = mine();
    let correlation = all[0].correlation();
    assert!(all[0].is_call("cudaGraphLaunch", false) && all[1].is_call("cuGraphLaunch", false));
    assert_eq!(all[1].correlation(), correlation);
    let of_launch = |told: &&Told| told.correlation() == correlation;
    let announced = |told: &Told| if let Told::Queued { node, .. } = told { Some(*node) } else { None };
    let announced: Vec<_> = all.iter().filter(of_launch).filter_map(announced).collect();
    let done = |told: &Told| match told {
        Told::Activity { node, kind, bytes, .. } => Some((*node, *kind, *bytes)),
        _ => None,
    };
    let done: Vec<_> = told().iter().map(|(_, told)| told).filter(of_launch).filter_map(done).collect();
    assert_eq!(announced, done.iter().map(|(node, _, _)| *node).collect::<Vec<_>>());
    assert_eq!((done[0].1, done[1].1, done[1].2), (ActivityKind::Kernel, ActivityKind::Memset, 256));
    assert_eq!(done[0].0 >> 32, done[1].0 >> 32);

    // An update reports the nodes whose parameters differ: of the same kernel with the same
    // arguments it says nothing.
    let capture_again = |number: &_| {
        early.begin_capture().unwrap();
        launch_like_nccl(ADD_ONE, number, early.handle(), None);
        // SAFETY: the buffer outlives the graph.
        unsafe { early.set(buffer.as_ptr(), 2, 256) }.unwrap();
        early.host_work(|| {}).unwrap();
        early.end_capture().unwrap()
    };
    let same = capture_again(&number);
    told().clear();
    exec.update(&same).unwrap();
    let kinds: Vec<_> = resources(&mine()).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [NodeUpdated, NodeSet]);
    drop(same);

    told().clear();
    drop(exec);
    drop(graph);
    let kinds: Vec<_> = resources(&mine()).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [ExecDestroyed, GraphDestroyed, NodeDestroyed, NodeDestroyed, GraphDestroyed, NodeDestroyed, NodeDestroyed]
    );
    drop(early);
    assert!(mine().iter().any(|told| told.is_stream(StreamDestroyed, handle)));
}
