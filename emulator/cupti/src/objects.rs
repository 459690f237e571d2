//! The machine's objects: contexts, streams, graphs, their nodes, and the ids that CUPTI gives
//! them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use observe::{DEFAULT_STREAM_ID, Resource, ResourceKind};

use crate::names::domain;
use crate::process::lock;
use crate::{calls, subscriber, tracer};

/// A context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) id: u32,
    pub(crate) device: u32,
}

/// A stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Its context's id.
    pub(crate) context: u32,
    pub(crate) id: u32,
}

impl Context {
    /// The default stream, which the machine does not report.
    pub(crate) fn default_stream(self) -> Stream {
        Stream { context: self.id, id: DEFAULT_STREAM_ID }
    }
}

/// Ids by handle. The handle of a destroyed object is forgotten, because the next object may get
/// it.
#[derive(Debug, Default)]
struct Objects {
    contexts: HashMap<usize, Context>,
    streams: HashMap<(usize, usize), Stream>,
    nodes: HashMap<usize, u64>,
    /// The node that each node was cloned from. Running work may still ask for a destroyed one, so
    /// none is forgotten.
    origins: HashMap<u64, u64>,
}

static OBJECTS: Mutex<Option<Objects>> = Mutex::new(None);

fn with<T>(use_them: impl FnOnce(&mut Objects) -> T) -> T {
    use_them(lock(&OBJECTS).get_or_insert_default())
}

/// All contexts, oldest first.
pub(crate) fn contexts() -> Vec<Context> {
    let mut contexts: Vec<Context> = with(|objects| objects.contexts.values().copied().collect());
    contexts.sort_by_key(|context| context.id);
    contexts
}

/// All streams, by context and id.
pub(crate) fn streams() -> Vec<Stream> {
    let mut streams: Vec<Stream> = with(|objects| objects.streams.values().copied().collect());
    streams.extend(contexts().into_iter().map(Context::default_stream));
    streams.sort_by_key(|stream| (stream.context, stream.id));
    streams
}

/// The id of a graph's node.
pub(crate) fn node(handle: *mut c_void) -> Option<u64> {
    with(|objects| objects.nodes.get(&(handle as usize)).copied())
}

/// The id of the node that the one with this id was cloned from, or 0.
pub(crate) fn origin(node: u64) -> u64 {
    with(|objects| objects.origins.get(&node).copied().unwrap_or(0))
}

/// `CUpti_ResourceData`.
#[repr(C)]
pub(crate) struct ResourceData {
    pub(crate) context: *mut c_void,
    pub(crate) stream: *mut c_void,
    pub(crate) descriptor: *const GraphData,
}

/// `CUpti_GraphData`.
#[repr(C)]
pub(crate) struct GraphData {
    pub(crate) graph: *mut c_void,
    pub(crate) original_graph: *mut c_void,
    pub(crate) node: *mut c_void,
    pub(crate) original_node: *mut c_void,
    pub(crate) node_type: u32,
    pub(crate) dependency: *mut c_void,
    pub(crate) exec: *mut c_void,
}

/// An object was created or is about to be destroyed. Its id is known before the callback of its
/// creation, and until after the callback of its destruction.
pub(crate) fn on_resource(resource: &Resource) {
    if !is_end(resource.kind) {
        with(|objects| objects.learn(resource));
        match resource.kind {
            ResourceKind::ContextCreated => {
                let context = Context { id: resource.context_id, device: resource.device };
                tracer::on_context(context);
                tracer::on_stream(context.default_stream(), calls::current_correlation());
            }
            ResourceKind::StreamCreated => {
                tracer::on_stream(stream_of(resource), calls::current_correlation());
            }
            _ => {}
        }
    }
    let graph = GraphData {
        graph: resource.graph,
        original_graph: resource.original_graph,
        node: resource.node,
        original_node: resource.original_node,
        // Whatever it is (13.0 Update 1 on H200).
        node_type: 0,
        dependency: std::ptr::null_mut(),
        exec: resource.exec,
    };
    use ResourceKind::{ContextCreated, ContextDestroyed, StreamCreated, StreamDestroyed};
    let is_graph = !matches!(resource.kind, ContextCreated | ContextDestroyed | StreamCreated | StreamDestroyed);
    let data = ResourceData {
        context: resource.context,
        stream: resource.stream,
        descriptor: if is_graph { &raw const graph } else { std::ptr::null() },
    };
    if let Some(id) = callback(resource.kind) {
        subscriber::call_back(domain::RESOURCE, id, &data);
    }
    if is_end(resource.kind) {
        with(|objects| objects.forget(resource));
    }
}

fn is_end(kind: ResourceKind) -> bool {
    use ResourceKind::{ContextDestroyed, ExecDestroyed, GraphDestroyed, NodeDestroyed, StreamDestroyed};
    matches!(kind, ContextDestroyed | StreamDestroyed | GraphDestroyed | NodeDestroyed | ExecDestroyed)
}

/// The callback for an event, if there is one. The one that announces a node (12) is not made,
/// because the machine reports nodes only once they exist.
fn callback(kind: ResourceKind) -> Option<u32> {
    let id = match kind {
        ResourceKind::ContextCreated => 1,
        ResourceKind::ContextDestroyed => 2,
        ResourceKind::StreamCreated => 3,
        ResourceKind::StreamDestroyed => 4,
        ResourceKind::GraphCreated => 9,
        ResourceKind::GraphDestroyed => 10,
        ResourceKind::GraphCloned => 11,
        ResourceKind::NodeCreated => 13,
        ResourceKind::NodeDestroyed => 14,
        ResourceKind::GraphInstantiating => 17,
        ResourceKind::GraphInstantiated => 18,
        ResourceKind::ExecDestroyed => 19,
        ResourceKind::NodeCloned => 20,
        ResourceKind::NodeUpdated => 22,
        ResourceKind::NodeSet => 23,
        ResourceKind::NodeMoved => return None,
    };
    Some(id)
}

fn stream_of(resource: &Resource) -> Stream {
    Stream { context: resource.context_id, id: resource.stream_id }
}

impl Objects {
    fn learn(&mut self, resource: &Resource) {
        let context = resource.context as usize;
        match resource.kind {
            ResourceKind::ContextCreated => {
                self.contexts.insert(context, Context { id: resource.context_id, device: resource.device });
            }
            ResourceKind::StreamCreated => {
                self.streams.insert((context, resource.stream as usize), stream_of(resource));
            }
            ResourceKind::NodeCreated | ResourceKind::NodeCloned => {
                self.nodes.insert(resource.node as usize, resource.node_id);
                if let Some(&original) = self.nodes.get(&(resource.original_node as usize)) {
                    self.origins.insert(resource.node_id, original);
                }
            }
            ResourceKind::NodeMoved => {
                let before = self.nodes.insert(resource.node as usize, resource.node_id);
                if let Some(&origin) = before.and_then(|before| self.origins.get(&before)) {
                    self.origins.insert(resource.node_id, origin);
                }
            }
            _ => {}
        }
    }

    fn forget(&mut self, resource: &Resource) {
        let context = resource.context as usize;
        match resource.kind {
            ResourceKind::ContextDestroyed => {
                self.contexts.remove(&context);
                self.streams.retain(|key, _| key.0 != context);
            }
            ResourceKind::StreamDestroyed => {
                self.streams.remove(&(context, resource.stream as usize));
            }
            ResourceKind::NodeDestroyed => {
                self.nodes.remove(&(resource.node as usize));
            }
            _ => {}
        }
    }
}
