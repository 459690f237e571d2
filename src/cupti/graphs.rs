//! Graphs, as CUPTI's callbacks tell of them: which node is a clone of which, what an update makes
//! of it, and when a graph is launched.
//!
//! What CUPTI does was seen with 13.0 Update 1 on an H200. A node keeps its handle for life. Its
//! number changes if it is in a child graph: the graph that becomes executable takes the child's
//! nodes in, and by then their clones have been reported. Kernels have the last number.
//!
//! ```text
//! captured 2:4  ──clone──►  child 3:4  ──clone──►  5:4  becomes 4:36, which the kernels have
//! ```
//!
//! Some clones go before the graph is executable, among them the node that was the child graph. A
//! node that is being destroyed is forgotten: CUPTI must not be asked for the number of a handle
//! that is no more.
//!
//! An update reports each kernel's node that gets other parameters, with the node whose work it
//! does from now on. One that has them already is not reported. Nodes of other kinds were always
//! reported.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use cupti_sys::bindings as cupti;

use super::shared::{Shared, has_succeeded};
use crate::record::recorder;

/// Graph launches. They tell the runs of a graph's nodes apart: all nodes of a run have the
/// launching call's correlation id.
pub(super) const LAUNCHES: [u32; 2] =
    [cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz];

/// Functions that make a graph executable. Its nodes are cloned between their begin and their end.
pub(super) const INSTANTIATIONS: [u32; 5] = [
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz,
];

/// Functions that change nodes of an executable graph. All of them take the graph as their first
/// parameter, as its launch does. Some releases lack some of them.
pub(super) const CHANGES: [u32; 5] = [
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled,
];

/// Those that change one kernel. They need a callback only where CUPTI reports no [`UPDATES`].
pub(super) const KERNEL_CHANGES: [u32; 2] = [
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams,
    cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams_v2,
];

/// Events of a graph's nodes, and its becoming executable.
pub(super) const NODES: [u32; 4] = [
    cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
    cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING,
    cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED,
    cupti::CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED,
];

/// Changes of the nodes of executable graphs: CUPTI 13.0 and later (cupti_callbacks.h).
pub(super) const UPDATES: [u32; 2] =
    [cupti::CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED, cupti::CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS];

/// How many threads may make graphs executable at the same time.
const MAKERS: usize = 16;
/// How many nodes of NCCL's one such graph may have.
const MADE: usize = 2048;

static MAKING: [Making; MAKERS] = [const { Making::new() }; MAKERS];

/// The nodes of NCCL's in a graph that is being made executable.
struct Making {
    is_taken: AtomicBool,
    count: AtomicUsize,
    /// Their handles, and the numbers they had when they were cloned.
    nodes: [(AtomicPtr<cupti::CUgraphNode_st>, AtomicU64); MADE],
}

/// What a thread is making.
#[derive(Clone, Copy)]
enum Maker {
    Idle,
    Making(&'static Making),
    /// All places were taken.
    Placeless,
}

thread_local! {
    static MAKER: Cell<Maker> = const { Cell::new(Maker::Idle) };
}

impl Making {
    const fn new() -> Making {
        let nodes = [const { (AtomicPtr::new(ptr::null_mut()), AtomicU64::new(0)) }; MADE];
        Making { is_taken: AtomicBool::new(false), count: AtomicUsize::new(0), nodes }
    }

    /// A place for this thread.
    fn take() -> Maker {
        let free = MAKING.iter().find(|making| !making.is_taken.swap(true, Ordering::Acquire));
        free.map_or(Maker::Placeless, Maker::Making)
    }

    /// Remembers a node. False if there is no room.
    fn push(&self, handle: cupti::CUgraphNode, number: u64) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let Some((its_handle, its_number)) = self.nodes.get(count) else { return false };
        its_handle.store(handle, Ordering::Relaxed);
        its_number.store(number, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        true
    }

    fn nodes(&self) -> impl Iterator<Item = (cupti::CUgraphNode, u64)> {
        let of = |(handle, number): &(AtomicPtr<_>, AtomicU64)| {
            (handle.load(Ordering::Relaxed), number.load(Ordering::Relaxed))
        };
        let known = self.nodes.iter().take(self.count.load(Ordering::Relaxed));
        known.map(of).filter(|(handle, _)| !handle.is_null())
    }

    /// Forgets a node.
    fn forget(&self, gone: cupti::CUgraphNode) {
        let known = self.nodes.iter().take(self.count.load(Ordering::Relaxed));
        for (handle, _) in known.filter(|(handle, _)| handle.load(Ordering::Relaxed) == gone) {
            handle.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    fn give_back(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.is_taken.store(false, Ordering::Release);
    }
}

/// One of [`INSTANTIATIONS`] begins or ends on this thread.
pub(super) fn instantiation(call: &cupti::CUpti_CallbackData) {
    let begins = call.callbackSite == cupti::CUPTI_API_ENTER;
    let _ = MAKER.try_with(|maker| {
        let before = maker.replace(if begins { Making::take() } else { Maker::Idle });
        if let Maker::Making(making) = before {
            making.give_back();
        }
    });
}

/// The graph is executable: its nodes have the numbers that they keep.
fn made(shared: &Shared) {
    let Ok(Maker::Making(making)) = MAKER.try_with(Cell::get) else { return };
    for (handle, before) in making.nodes() {
        // It belongs to the executable graph, which has just been made: others were destroyed.
        if let Some(now) = number(shared, handle).filter(|now| *now != before) {
            recorder::graph_node_cloned(now, before);
        }
    }
}

/// A node of NCCL's was cloned.
fn cloned(handle: cupti::CUgraphNode, number: u64) {
    let has_room = MAKER.try_with(|maker| match maker.get() {
        Maker::Idle => true,
        Maker::Making(making) => making.push(handle, number),
        Maker::Placeless => false,
    });
    if has_room == Ok(false) {
        recorder::graph_node_lost();
    }
}

/// A node is about to be destroyed.
fn destroyed(handle: cupti::CUgraphNode) {
    if let Ok(Maker::Making(making)) = MAKER.try_with(Cell::get) {
        making.forget(handle);
    }
}

/// CUPTI's number of a node that it has just passed, or that still exists: its graph's number in
/// the upper half, its own in the lower.
fn number(shared: &Shared, node: cupti::CUgraphNode) -> Option<u64> {
    let mut number = 0;
    // SAFETY: the node exists, and the number is writable; the call is allowed in this callback.
    let result = unsafe { (shared.api.cuptiGetGraphNodeId)(node, &raw mut number) };
    (result == cupti::CUPTI_SUCCESS && number != 0).then_some(number)
}

/// Whether it is one of [`NODES`] or [`UPDATES`].
pub(super) fn is_resource(id: u32) -> bool {
    NODES.contains(&id) || UPDATES.contains(&id)
}

/// Such a thing has happened to a graph.
pub(super) fn resource(id: u32, graph: &cupti::CUpti_GraphData) {
    let Some(shared) = Shared::get() else { return };
    let exec = graph.graphExec.addr() as u64;
    let of = |node| number(shared, node);
    match id {
        cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED => {
            // Only these take the place of a launch, and only they are expected to leave records.
            if graph.nodeType == cupti::CU_GRAPH_NODE_TYPE_KERNEL {
                shared.contact.captured();
            }
            of(graph.node).into_iter().for_each(recorder::graph_node_created);
        }
        cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED => {
            if let (Some(node), Some(original)) = (of(graph.node), of(graph.originalNode))
                && recorder::graph_node_cloned(node, original)
            {
                cloned(graph.node, node);
            }
        }
        cupti::CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING => destroyed(graph.node),
        cupti::CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED => {
            made(shared);
            recorder::graph_launch(exec, 0);
        }
        // Here the node is the other graph's, and the original the executable one.
        cupti::CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED => {
            if let (Some(source), Some(node)) = (of(graph.node), of(graph.originalNode)) {
                recorder::graph_node_updated(node, source, exec);
            }
        }
        // Here it is the other way round; the original is not asked for, because it may be gone.
        cupti::CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS => {
            of(graph.node).into_iter().for_each(|node| recorder::graph_node_set(node, exec));
        }
        _ => {}
    }
}

/// One of [`LAUNCHES`] begins or ends.
pub(super) fn launch(call: &cupti::CUpti_CallbackData) {
    let Some(shared) = Shared::get() else { return };
    if call.callbackSite == cupti::CUPTI_API_ENTER {
        graph_of(call).into_iter().for_each(|graph| recorder::graph_launch(graph, call.correlationId));
    } else if has_succeeded(call) {
        shared.contact.graph_made();
    }
}

/// Whether it is one of [`CHANGES`] or [`KERNEL_CHANGES`].
pub(super) fn is_change(id: u32) -> bool {
    CHANGES.contains(&id) || KERNEL_CHANGES.contains(&id)
}

/// Such a function begins or ends. Where CUPTI reports [`UPDATES`], nothing else needs to be known
/// of a change, unless it fails halfway or turns nodes off.
pub(super) fn change(id: u32, call: &cupti::CUpti_CallbackData) {
    let Some(shared) = Shared::get() else { return };
    let is_told =
        shared.reports_updates.load(Ordering::Relaxed) && id != cupti::CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled;
    let is_due = if is_told {
        call.callbackSite == cupti::CUPTI_API_EXIT && !has_succeeded(call)
    } else {
        call.callbackSite == cupti::CUPTI_API_ENTER
    };
    if is_due {
        graph_of(call).into_iter().for_each(recorder::graph_change);
    }
}

/// The executable graph that is the first parameter of one of these functions, as the driver names
/// it.
fn graph_of(call: &cupti::CUpti_CallbackData) -> Option<u64> {
    // SAFETY: it is, for all functions whose callbacks come here. Parameters lie in order, and all
    // pointers are alike; null if they are not shown.
    let graph = unsafe { call.functionParams.cast::<cupti::CUgraphExec>().as_ref() };
    graph.map(|graph| graph.addr() as u64)
}
