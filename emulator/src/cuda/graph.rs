//! Graphs: nodes and what they wait for, and the executable graphs made of them.
//!
//! A launch of an executable graph is one entry in a stream's queue. A node runs as soon as its
//! dependencies are done. The stream's thread takes one branch, and other threads run the others,
//! so that kernels which wait for each other never wait for a thread.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::event::Record;
use super::registry::handle;
use super::stream::Stream;
use super::threads::{self, lock};
use super::work::{Action, Origin, Place};
use super::{Error, device, machine, observe};
use crate::truth::GraphPlace;

/// A graph.
pub(super) struct Graph {
    /// From 1, in one sequence with executable graphs.
    pub(super) id: u32,
    pub(super) device: u32,
    state: Mutex<State>,
    /// A child graph, if this graph consists of one child graph node.
    child: Option<Arc<Graph>>,
    /// Objects kept alive by the graph and by what is made of it.
    objects: Mutex<Vec<Arc<UserObject>>>,
}

#[derive(Default)]
struct State {
    nodes: Vec<Entry>,
    /// Indices by handle.
    indices: HashMap<usize, u32>,
}

struct Entry {
    node: Arc<Node>,
    dependencies: Vec<Dependency>,
}

/// A node.
pub(super) struct Node {
    /// As `cuptiGetGraphNodeId` returns it: the graph's id in the upper half, the node's number,
    /// from 0, in the lower.
    pub(super) id: u64,
    /// The id of the node that was captured or added by hand: its own, unless it was cloned.
    pub(super) root: u64,
    pub(super) action: Arc<Action>,
    pub(super) origin: NodeOrigin,
}

/// Where a node came from.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeOrigin {
    /// The device it runs on.
    pub(super) device: u32,
    /// The number of the stream that it was captured in, if that is not the capture's first
    /// stream.
    pub(super) branch: Option<u64>,
    /// Whether it was captured, not added by hand.
    pub(super) captured: bool,
}

/// A node that another one waits for, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependency {
    pub(super) node: u32,
    /// Whether its beginning suffices (a programmatic dependency on a launch completion event).
    pub(super) at_start: bool,
}

/// An object of the user that a graph keeps alive.
pub(super) struct UserObject {
    destroy: unsafe extern "C" fn(*mut c_void),
    object: usize,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: whoever created the object promised that the function takes it, from any thread.
        unsafe { (self.destroy)(self.object as *mut c_void) };
    }
}

impl UserObject {
    pub(super) fn new(object: *mut c_void, destroy: unsafe extern "C" fn(*mut c_void)) -> Arc<UserObject> {
        Arc::new(UserObject { destroy, object: object as usize })
    }
}

pub(super) fn node_id(graph: u32, index: u32) -> u64 {
    u64::from(graph) << 32 | u64::from(index)
}

fn next_id() -> u32 {
    machine().graph_ids.fetch_add(1, Ordering::Relaxed) + 1
}

impl Graph {
    pub(super) fn create(device: u32) -> Arc<Graph> {
        Arc::new(Graph { id: next_id(), device, state: Mutex::default(), child: None, objects: Mutex::default() })
    }

    /// A clone of the graph, with clones of its nodes.
    pub(super) fn duplicate(self: &Arc<Graph>) -> Arc<Graph> {
        match &self.child {
            Some(child) => child.nest(),
            None => self.cloned(false),
        }
    }

    fn cloned(self: &Arc<Graph>, is_child: bool) -> Arc<Graph> {
        let (id, mut copy) = (next_id(), State::default());
        let state = lock(&self.state);
        for (index, Entry { node, dependencies }) in state.nodes.iter().enumerate() {
            let (root, action, origin) = (node.root, Arc::clone(&node.action), node.origin);
            let node = Arc::new(Node { id: node_id(id, index as u32), root, action, origin });
            copy.indices.insert(handle(&node) as usize, index as u32);
            copy.nodes.push(Entry { node, dependencies: dependencies.clone() });
        }
        let originals: Vec<_> = state.nodes.iter().map(|entry| Arc::clone(&entry.node)).collect();
        drop(state);
        let (state, objects) = (Mutex::new(copy), Mutex::new(lock(&self.objects).clone()));
        let clone = Arc::new(Graph { id, device: self.device, state, child: None, objects });
        observe::duplicated(&clone, self, &originals, is_child);
        clone
    }

    /// A graph whose only node is a child graph, cloned from this one.
    pub(super) fn nest(self: &Arc<Graph>) -> Arc<Graph> {
        let (id, child) = (next_id(), Some(self.cloned(true)));
        let objects = Mutex::new(lock(&self.objects).clone());
        let outer = Arc::new(Graph { id, device: self.device, state: Mutex::default(), child, objects });
        observe::graph_created(&outer);
        outer
    }

    /// Adds a node; returns its index.
    pub(super) fn add(&self, action: Action, dependencies: &[Dependency], origin: NodeOrigin) -> Result<u32, Error> {
        let mut state = lock(&self.state);
        let index = state.nodes.len() as u32;
        if dependencies.iter().any(|dependency| dependency.node >= index) {
            return Err(Error::InvalidValue);
        }
        let id = node_id(self.id, index);
        let node = Arc::new(Node { id, root: id, action: Arc::new(action), origin });
        state.indices.insert(handle(&node) as usize, index);
        state.nodes.push(Entry { node, dependencies: dependencies.to_vec() });
        Ok(index)
    }

    /// Makes nodes wait for others.
    pub(super) fn connect(&self, edges: &[(usize, usize, bool)]) -> Result<(), Error> {
        let mut state = lock(&self.state);
        for &(from, to, at_start) in edges {
            let index = |node| state.indices.get(&node).copied().ok_or(Error::InvalidValue);
            let (from, to) = (index(from)?, index(to)?);
            if from == to {
                return Err(Error::InvalidValue);
            }
            state.nodes[to as usize].dependencies.push(Dependency { node: from, at_start });
        }
        Ok(())
    }

    /// The index of a node by its handle.
    pub(super) fn index(&self, node: usize) -> Result<u32, Error> {
        lock(&self.state).indices.get(&node).copied().ok_or(Error::InvalidValue)
    }

    /// The node of an index.
    pub(super) fn node(&self, index: u32) -> Arc<Node> {
        lock(&self.state).nodes[index as usize].node.clone()
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.state).nodes.iter().map(|entry| entry.node.clone()).collect()
    }

    /// Whether the node was captured.
    pub(super) fn captured(&self, index: u32) -> bool {
        lock(&self.state).nodes[index as usize].node.origin.captured
    }

    /// For each node, whether it is one of `last` or precedes one of them.
    pub(super) fn with_all_before(&self, last: &[Dependency]) -> Vec<bool> {
        let state = lock(&self.state);
        let mut reached = vec![false; state.nodes.len()];
        let mut open: Vec<u32> = last.iter().map(|dependency| dependency.node).collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                open.extend(state.nodes[node as usize].dependencies.iter().map(|dependency| dependency.node));
            }
        }
        reached
    }

    /// Keeps an object alive.
    pub(super) fn retain(&self, object: &Arc<UserObject>, times: usize) {
        lock(&self.objects).extend(std::iter::repeat_n(object.clone(), times));
    }

    /// Destroys the graph of a handle; executable graphs made of it live on.
    pub(super) fn destroy(graph: *mut c_void) -> Result<(), Error> {
        let graph = machine().graphs.remove(graph)?;
        observe::graph_destroyed(&graph);
        // An event that was recorded in the capture may keep the graph for longer, but not the
        // user's objects.
        let objects = std::mem::take(&mut *lock(&graph.objects));
        drop(objects);
        Ok(())
    }

    /// Makes an executable graph.
    pub(super) fn instantiate(self: &Arc<Graph>) -> Result<Arc<Exec>, Error> {
        let id = next_id();
        // The child graph's nodes are cloned into a graph of their own first. Then the clone that
        // is executed takes them in, after the node that was the child graph (seen on an H200).
        let (of, cloned_into, first) = match &self.child {
            Some(child) => (child, next_id(), 1),
            None => (self, id, 0),
        };
        let state = lock(&of.state);
        let mut streams = HashMap::new();
        let mut nodes = Vec::with_capacity(state.nodes.len());
        for (index, entry) in state.nodes.iter().enumerate() {
            let node = &entry.node;
            let context = device::get(node.origin.device as i32)?.context();
            // A branch was captured in its own stream, so its activities run in an order of their
            // own.
            let stream = node.origin.branch.filter(|_| node.action.is_activity()).map(|number| {
                let next = || context.next_stream_id();
                *streams.entry(number).or_insert_with(next)
            });
            let (root, action, origin) = (node.root, node.action.clone(), node.origin);
            let own = Arc::new(Node { id: node_id(id, first + index as u32), root, action, origin });
            nodes.push(ExecNode {
                node: Arc::clone(&own),
                own,
                original_handle: handle(node) as usize,
                stream,
                waits_for: entry.dependencies.len() as u32,
                after_start: Vec::new(),
                after_end: Vec::new(),
            });
        }
        for (index, entry) in state.nodes.iter().enumerate() {
            for dependency in &entry.dependencies {
                let from = &mut nodes[dependency.node as usize];
                if dependency.at_start { &mut from.after_start } else { &mut from.after_end }.push(index as u32);
            }
        }
        drop(state);
        let order = in_order(&nodes)?;
        let made_of = lock(&self.objects).clone();
        let exec = Arc::new(Exec {
            id,
            cloned_into,
            device: self.device,
            original_handle: handle(self) as usize,
            nodes_original_handle: handle(of) as usize,
            nodes: Mutex::new(Arc::new(nodes)),
            order,
            launches: AtomicU64::new(0),
            last: Mutex::default(),
            objects: Mutex::new(made_of),
        });
        machine().execs.insert(exec.clone());
        observe::instantiated(&exec);
        Ok(exec)
    }
}

/// The nodes in an order in which each follows its dependencies, otherwise in the order of their
/// capture.
fn in_order(nodes: &[ExecNode]) -> Result<Vec<u32>, Error> {
    let mut waits_for: Vec<u32> = nodes.iter().map(|node| node.waits_for).collect();
    let ready = (0..nodes.len() as u32).filter(|&index| waits_for[index as usize] == 0);
    let mut ready: BinaryHeap<Reverse<u32>> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(index);
        let node = &nodes[index as usize];
        for &next in node.after_start.iter().chain(&node.after_end) {
            waits_for[next as usize] -= 1;
            if waits_for[next as usize] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    // The remaining nodes form a cycle.
    if order.len() == nodes.len() { Ok(order) } else { Err(Error::InvalidValue) }
}

/// An executable graph.
pub(super) struct Exec {
    /// The id of the clone that it executes.
    pub(super) id: u32,
    /// The id of the graph that its nodes were in when they were cloned: that clone, or a clone of
    /// its child graph.
    pub(super) cloned_into: u32,
    pub(super) device: u32,
    pub(super) original_handle: usize,
    /// The handle of the graph that its nodes were cloned from.
    pub(super) nodes_original_handle: usize,
    nodes: Mutex<Arc<Vec<ExecNode>>>,
    order: Vec<u32>,
    launches: AtomicU64,
    /// The end of its latest launch: two launches never overlap.
    last: Mutex<Option<Arc<Record>>>,
    /// The objects of the graph it was made of, and of those it was updated by.
    objects: Mutex<Vec<Arc<UserObject>>>,
}

/// A node of an executable graph.
#[derive(Clone)]
pub(super) struct ExecNode {
    /// The node as it was made, whose handle it keeps.
    pub(super) own: Arc<Node>,
    /// The same with what it does since the last update.
    pub(super) node: Arc<Node>,
    /// The handle of the node it was cloned from.
    pub(super) original_handle: usize,
    /// The id of the stream it runs in, if that is not the one of the launch.
    stream: Option<u32>,
    waits_for: u32,
    after_start: Vec<u32>,
    after_end: Vec<u32>,
}

impl Exec {
    /// The handle of the clone that it executes, for observers: an inner address, so that no other
    /// object has it.
    pub(super) fn clone_handle(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast::<c_void>().wrapping_byte_add(8)
    }

    /// Its nodes as the next launch will run them.
    pub(super) fn nodes(&self) -> Arc<Vec<ExecNode>> {
        Arc::clone(&lock(&self.nodes))
    }

    /// Makes it do what another graph of the same shape does. Its nodes keep their ids.
    pub(super) fn update(self: &Arc<Exec>, graph: &Graph) -> Result<(), Error> {
        let state = lock(&graph.child.as_deref().unwrap_or(graph).state);
        let mut nodes = lock(&self.nodes);
        let same = |(node, entry): (&ExecNode, &Entry)| {
            node.waits_for == entry.dependencies.len() as u32
                && node.node.action.node_type() == entry.node.action.node_type()
                && node.node.origin.device == entry.node.origin.device
        };
        if nodes.len() != state.nodes.len() || !nodes.iter().zip(&state.nodes).all(same) {
            return Err(Error::InvalidValue);
        }
        let updated = nodes.iter().zip(&state.nodes).map(|(node, entry)| {
            let (action, origin) = (entry.node.action.clone(), entry.node.origin);
            let of = Arc::new(Node { id: node.node.id, root: entry.node.root, action, origin });
            ExecNode { node: of, ..node.clone() }
        });
        let updated: Vec<ExecNode> = updated.collect();
        // Only other parameters are reported (seen on an H200).
        let pairs = nodes.iter().zip(&state.nodes);
        let changed = pairs.filter(|(node, entry)| !node.node.action.has_parameters_of(&entry.node.action));
        let changed: Vec<_> = changed.map(|(node, entry)| (node.clone(), Arc::clone(&entry.node))).collect();
        *nodes = Arc::new(updated);
        drop((nodes, state));
        observe::updated(self, &changed);
        lock(&self.objects).extend(lock(&graph.objects).iter().cloned());
        Ok(())
    }

    /// Launches it in a stream.
    pub(super) fn launch(self: &Arc<Exec>, stream: &Arc<Stream>, origin: &Origin) -> Result<(), Error> {
        // Launching a graph inside a capture is not emulated.
        stream.not_capturing()?;
        let nodes = self.nodes();
        let mut records: Vec<Option<Arc<Record>>> = vec![None; nodes.len()];
        for &index in &self.order {
            records[index as usize] = match &*nodes[index as usize].node.action {
                Action::Record(event) => Some(event.record_by_node()),
                Action::Wait(event) => event.latest(),
                _ => None,
            };
        }
        let place = stream.place(origin);
        for &index in &self.order {
            let node = &nodes[index as usize];
            observe::queued(|| node.node.action.describe(&self.place_of(node, &place, 0)));
        }
        let done = Arc::new(Record::default());
        // The lock is held until the launch is queued, so that launches come in the order of their
        // numbers.
        let mut last = lock(&self.last);
        let replay = Replay {
            exec: self.clone(),
            nodes,
            number: self.launches.fetch_add(1, Ordering::Relaxed),
            records,
            after: last.replace(done.clone()),
            done,
        };
        stream.queue_replay(replay, place)
    }

    /// Where a node runs in the `replay`-th launch.
    fn place_of(&self, node: &ExecNode, launch: &Place, replay: u64) -> Place {
        let mut place = launch.clone();
        if node.node.origin.device != place.device {
            let device = device::get(node.node.origin.device as i32).expect("the node was captured on it");
            (place.device, place.context) = (device.ordinal, device.context().id());
        }
        if let Some(stream) = node.stream {
            (place.stream, place.stream_handle) = (stream, 0);
        }
        let (exec, id, original_node) = (self.id, node.node.id, node.node.root);
        place.graph = Some(GraphPlace { exec, node: id, original_node, replay });
        place
    }

    /// Destroys the executable graph of a handle; queued launches of it still run.
    pub(super) fn destroy(exec: *mut c_void) -> Result<(), Error> {
        let exec = machine().execs.remove(exec)?;
        observe::exec_destroyed(&exec);
        Ok(())
    }
}

/// One launch of an executable graph.
pub(super) struct Replay {
    exec: Arc<Exec>,
    /// The nodes as they were at the launch.
    nodes: Arc<Vec<ExecNode>>,
    number: u64,
    /// The records that nodes complete or wait for.
    records: Vec<Option<Arc<Record>>>,
    /// The end of the previous launch.
    after: Option<Arc<Record>>,
    done: Arc<Record>,
}

/// A launch that is being carried out.
struct Running {
    replay: Replay,
    place: Place,
    progress: Mutex<Progress>,
    finished: Condvar,
}

struct Progress {
    waits_for: Vec<u32>,
    left: usize,
}

impl Replay {
    /// Runs all nodes, on the stream's thread and on others.
    pub(super) fn run(self, place: Place) {
        if let Some(after) = &self.after {
            after.wait();
        }
        let (exec, nodes) = (self.exec.clone(), self.nodes.clone());
        let running = Arc::new(Running {
            progress: Mutex::new(Progress {
                waits_for: nodes.iter().map(|node| node.waits_for).collect(),
                left: nodes.len(),
            }),
            finished: Condvar::new(),
            replay: self,
            place,
        });
        let roots = exec.order.iter().copied().filter(|&index| nodes[index as usize].waits_for == 0).collect();
        if let Some(own) = running.spread(roots) {
            running.run_branch(own);
        }
        let mut progress = lock(&running.progress);
        while progress.left > 0 {
            progress = running.finished.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        drop(progress);
        running.replay.done.complete();
    }
}

impl Running {
    /// Starts all nodes but the first, which is left to the caller.
    fn spread(self: &Arc<Running>, ready: Vec<u32>) -> Option<u32> {
        let mut ready = ready.into_iter();
        let own = ready.next();
        ready.for_each(|index| self.run_aside(index));
        own
    }

    fn run_aside(self: &Arc<Running>, index: u32) {
        let running = self.clone();
        let job = Box::new(move || running.run_branch(index));
        threads::run_aside(job).expect("the system has a thread for each branch of a graph");
    }

    /// Runs a node and then, one by one, nodes that become ready.
    fn run_branch(self: &Arc<Running>, first: u32) {
        let mut next = Some(first);
        while let Some(index) = next {
            let node = &self.replay.nodes[index as usize];
            self.run_node(index, node);
            let (ready, last) = self.advance(&node.after_end, true);
            next = self.spread(ready);
            if last {
                self.finished.notify_all();
            }
        }
    }

    fn run_node(self: &Arc<Running>, index: u32, node: &ExecNode) {
        let action = &*node.node.action;
        match (action, &self.replay.records[index as usize]) {
            (Action::Record(_), Some(record)) => return record.complete(),
            (Action::Wait(_), Some(record)) => return record.wait(),
            (Action::Record(_) | Action::Wait(_), None) => return,
            _ => {}
        }
        let place = self.replay.exec.place_of(node, &self.place, self.replay.number);
        action.run(&place, &|| {
            let (ready, _) = self.advance(&node.after_start, false);
            ready.into_iter().for_each(|index| self.run_aside(index));
        });
    }

    /// Tells nodes that one of their dependencies is met. Returns which of them are ready, and
    /// whether the node that `ends` was the last one.
    fn advance(&self, nodes: &[u32], ends: bool) -> (Vec<u32>, bool) {
        if nodes.is_empty() && !ends {
            return (Vec::new(), false);
        }
        let mut progress = lock(&self.progress);
        let mut ready = Vec::new();
        for &node in nodes {
            progress.waits_for[node as usize] -= 1;
            if progress.waits_for[node as usize] == 0 {
                ready.push(node);
            }
        }
        progress.left -= usize::from(ends);
        (ready, progress.left == 0)
    }
}
