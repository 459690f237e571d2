//! The observer of the machine: an emulated CUPTI, if there is one.
//!
//! It is told of calls, of objects that are created and destroyed, and of what the GPUs have done.
//! None of the machine's locks is held while it is told. Without an observer, each such event
//! costs one load.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use ::observe::{Activity, Gpu, Observer, Resource, ResourceKind};

use super::device::{self, Device};
use super::graph::{self, Exec, ExecNode, Graph, Node};
use super::names::Name;
use super::registry::handle;
use super::stream::Stream;
use super::work::Origin;
use super::{Error, MACHINE, machine, threads, time};
use crate::time::HostClocks;

static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(std::ptr::null_mut());

/// Attaches an observer, tells it what exists already, and returns the functions it may call. A
/// null observer only gets those functions. Of several others, only the last one is told. Returns
/// null when there is no machine.
///
/// # Safety
///
/// The observer is null or lives as long as the process, and its functions can be called from any
/// thread.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ncclscope_emulator_attach(observer: *const Observer) -> *const ::observe::Machine {
    static TABLE: ::observe::Machine = ::observe::Machine {
        now,
        wall,
        devices,
        current_context,
        correlation,
        current_device,
        driver_version,
        describe,
        function: super::application::function,
    };
    if MACHINE.get().is_none() {
        return std::ptr::null();
    }
    if !observer.is_null() {
        OBSERVER.store(observer.cast_mut(), Ordering::Release);
        replay();
    }
    &raw const TABLE
}

fn observer() -> Option<&'static Observer> {
    // SAFETY: null, or the observer given to attach, which lives as long as the process.
    unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }
}

extern "C" fn now() -> u64 {
    time::now()
}

extern "C" fn wall(at: u64) -> u64 {
    HostClocks::wall_at(at)
}

extern "C" fn devices() -> u32 {
    machine().config.devices
}

extern "C" fn current_context() -> *mut c_void {
    device::current().existing_context().map_or(std::ptr::null_mut(), device::Context::handle)
}

extern "C" fn correlation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

extern "C" fn current_device() -> u32 {
    device::current().ordinal
}

extern "C" fn driver_version() -> u32 {
    machine().config.driver_version as u32
}

extern "C" fn describe(ordinal: u32, out: *mut Gpu) -> bool {
    let Ok(device) = device::get(ordinal as i32) else { return false };
    let attribute = |number| device::attribute(machine(), number, device) as u32;
    let mut name = [0; 64];
    for (to, from) in name.iter_mut().zip(device::NAME.to_bytes_with_nul()) {
        *to = *from as c_char;
    }
    let gpu = Gpu {
        name,
        uuid: device.uuid(),
        pci: [0, device.bus(), 0],
        compute_capability: [attribute(75), attribute(76)],
        memory: device::MEMORY_BYTES as u64,
        multiprocessors: attribute(16),
    };
    // SAFETY: the observer promises a place for the answer.
    unsafe { out.write(gpu) };
    true
}

/// Tells what exists, as if it were created now. Objects that other threads create meanwhile may
/// be told twice.
fn replay() {
    let machine = machine();
    let mut contexts: Vec<_> = machine.devices.iter().filter(|device| device.existing_context().is_some()).collect();
    contexts.sort_by_key(|device| device.context().id());
    contexts.iter().for_each(|device| resource(ResourceKind::ContextCreated, device, |_| {}));
    let mut streams = machine.streams.all();
    streams.sort_by_key(|stream| stream.number);
    streams.iter().for_each(|stream| stream_resource(ResourceKind::StreamCreated, stream));
    let mut graphs = machine.graphs.all();
    graphs.sort_by_key(|graph| graph.id);
    for graph in &graphs {
        graph_created(graph);
        graph.nodes().iter().for_each(|node| node_resource(ResourceKind::NodeCreated, graph, node));
    }
    let mut execs = machine.execs.all();
    execs.sort_by_key(|exec| exec.id);
    execs.iter().for_each(instantiated);
}

thread_local! {
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// The last error of the thread's calls, or 0; resets it.
pub(super) fn take_last_error() -> i32 {
    LAST_ERROR.replace(0)
}

/// A call into the API. Returns the number that the C function returns.
pub(super) fn call(function: &'static CStr, work: impl FnOnce(&Origin) -> Result<(), Error>) -> i32 {
    call_of(function, None, std::ptr::null(), work)
}

/// A call that launches the kernel of this name, or that has parameters to show.
pub(super) fn call_of(
    function: &'static CStr,
    kernel: Option<&Name>,
    parameters: *const c_void,
    work: impl FnOnce(&Origin) -> Result<(), Error>,
) -> i32 {
    let origin = Origin {
        correlation: correlation(),
        thread: threads::id(),
        called: time::now(),
        returned: Arc::new(AtomicU64::new(0)),
    };
    tell_call(function, kernel, parameters, &origin, None, origin.called);
    let result = work(&origin);
    let returned = time::now();
    origin.returned.store(returned, Ordering::Release);
    let number = result.err().map_or(0, Error::number);
    tell_call(function, kernel, parameters, &origin, Some(number), returned);
    if machine().config.trace {
        trace(function, kernel, &origin, result);
    }
    if number != 0 {
        LAST_ERROR.set(number);
    }
    number
}

/// A call that the runtime makes into the driver, with the same correlation id.
pub(super) fn nested_call(
    function: &'static CStr,
    kernel: Option<&Name>,
    parameters: *const c_void,
    origin: &Origin,
    work: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    tell_call(function, kernel, parameters, origin, None, time::now());
    let result = work();
    let number = result.err().map_or(0, Error::number);
    tell_call(function, kernel, parameters, origin, Some(number), time::now());
    result
}

fn tell_call(
    function: &'static CStr,
    kernel: Option<&Name>,
    parameters: *const c_void,
    origin: &Origin,
    result: Option<i32>,
    at: u64,
) {
    let Some(observer) = observer() else { return };
    let context = device::current().existing_context();
    let call = ::observe::Call {
        function: function.as_ptr(),
        exits: result.is_some().into(),
        correlation: origin.correlation,
        context: context.map_or(std::ptr::null_mut(), device::Context::handle),
        context_id: context.map_or(0, device::Context::id),
        symbol: kernel.map_or(std::ptr::null(), |name| name.c_str().as_ptr()),
        parameters,
        result: result.unwrap_or(0),
        at,
    };
    // SAFETY: the observer promised to be callable from any thread; everything in the call lives
    // until it returns.
    unsafe { (observer.call)(&raw const call) };
}

fn trace(function: &CStr, kernel: Option<&Name>, origin: &Origin, result: Result<(), Error>) {
    let (function, correlation) = (function.to_string_lossy(), origin.correlation);
    let kernel = kernel.map_or("", |name| name);
    match result {
        Ok(()) => eprintln!("emulator: {correlation} {function} {kernel}"),
        Err(error) => eprintln!("emulator: {correlation} {function} {kernel}: {error}"),
    }
}

/// Tells what is about to be given to a GPU, if observers are told of such work.
pub(super) fn queued(activity: impl FnOnce() -> Option<Activity>) {
    if let Some(observer) = observer()
        && let Some(activity) = activity()
    {
        // SAFETY: the observer promised to be callable from any thread; the name lives until the
        // call returns.
        unsafe { (observer.queued)(&raw const activity) };
    }
}

/// Tells what a GPU has done.
pub(super) fn activity(activity: impl FnOnce() -> Activity) {
    if let Some(observer) = observer() {
        let activity = activity();
        // SAFETY: the observer promised to be callable from any thread; the name lives until the
        // call returns.
        unsafe { (observer.activity)(&raw const activity) };
    }
}

/// Tells that an object on a device was created or destroyed.
pub(super) fn resource(kind: ResourceKind, device: &Device, fill: impl FnOnce(&mut Resource)) {
    let Some(observer) = observer() else { return };
    let context = device.context();
    let mut resource = Resource::new(kind, device.ordinal, context.handle(), context.id());
    fill(&mut resource);
    // SAFETY: the observer promised to be callable from any thread.
    unsafe { (observer.resource)(&raw const resource) };
}

fn of(device: u32) -> &'static Device {
    device::get(device as i32).expect("the object was made on it")
}

pub(super) fn stream_resource(kind: ResourceKind, stream: &Arc<Stream>) {
    resource(kind, of(stream.device), |resource| {
        resource.stream_id = stream.id;
        resource.stream = device::stream_handle(stream);
    });
}

fn graph_resource(kind: ResourceKind, graph: &Arc<Graph>) {
    resource(kind, of(graph.device), |resource| {
        resource.graph = handle(graph);
        resource.graph_id = graph.id;
    });
}

fn node_resource(kind: ResourceKind, graph: &Arc<Graph>, node: &Arc<Node>) {
    if !node.action.is_observed() {
        return;
    }
    resource(kind, of(node.origin.device), |resource| {
        resource.graph = handle(graph);
        resource.graph_id = graph.id;
        resource.node = handle(node);
        resource.node_id = node.id;
    });
}

pub(super) fn graph_created(graph: &Arc<Graph>) {
    graph_resource(ResourceKind::GraphCreated, graph);
}

/// A graph was cloned of another one, with these nodes: into a graph of the user's, or as a child
/// graph.
pub(super) fn duplicated(clone: &Arc<Graph>, of: &Arc<Graph>, originals: &[Arc<Node>], is_child: bool) {
    if observer().is_none() {
        return;
    }
    graph_created(clone);
    let nodes = clone.nodes();
    for (node, original) in nodes.iter().zip(originals).filter(|(node, _)| node.action.is_observed()) {
        node_resource(ResourceKind::NodeCreated, clone, node);
        resource(ResourceKind::NodeCloned, self::of(node.origin.device), |resource| {
            (resource.graph, resource.graph_id) = (handle(clone), clone.id);
            resource.original_graph = handle(of);
            (resource.node, resource.node_id) = (handle(node), node.id);
            resource.original_node = handle(original);
        });
    }
    if !is_child {
        resource(ResourceKind::GraphCloned, self::of(clone.device), |resource| {
            (resource.graph, resource.graph_id) = (handle(clone), clone.id);
            resource.original_graph = handle(of);
        });
    }
}

pub(super) fn node_created(graph: &Arc<Graph>, index: u32) {
    if observer().is_some() {
        node_resource(ResourceKind::NodeCreated, graph, &graph.node(index));
    }
}

pub(super) fn graph_destroyed(graph: &Arc<Graph>) {
    if observer().is_some() {
        graph_resource(ResourceKind::GraphDestroyed, graph);
        graph.nodes().iter().for_each(|node| node_resource(ResourceKind::NodeDestroyed, graph, node));
    }
}

pub(super) fn instantiated(exec: &Arc<Exec>) {
    if observer().is_none() {
        return;
    }
    exec_resource(ResourceKind::GraphCreated, exec, |_| {});
    for (index, node) in exec.nodes().iter().enumerate() {
        let id = graph::node_id(exec.cloned_into, index as u32);
        exec_node(ResourceKind::NodeCreated, exec, node, |resource| {
            (resource.graph_id, resource.node_id) = (exec.cloned_into, id);
            (resource.original_graph, resource.original_node) = (std::ptr::null_mut(), std::ptr::null_mut());
        });
        exec_node(ResourceKind::NodeCloned, exec, node, |resource| {
            (resource.graph_id, resource.node_id) = (exec.cloned_into, id);
        });
    }
    exec_resource(ResourceKind::GraphInstantiating, exec, |resource| {
        resource.original_graph = exec.original_handle as *mut c_void;
        resource.exec = handle(exec);
    });
    if exec.cloned_into != exec.id {
        exec.nodes().iter().for_each(|node| exec_node(ResourceKind::NodeMoved, exec, node, |_| {}));
    }
    exec_resource(ResourceKind::GraphInstantiated, exec, |resource| {
        resource.original_graph = exec.original_handle as *mut c_void;
        resource.exec = handle(exec);
    });
}

/// The nodes of an executable graph do the work of others from now on.
pub(super) fn updated(exec: &Arc<Exec>, nodes: &[(ExecNode, Arc<Node>)]) {
    if observer().is_none() {
        return;
    }
    for (node, source) in nodes {
        exec_node(ResourceKind::NodeUpdated, exec, node, |resource| {
            (resource.graph, resource.original_graph) = (std::ptr::null_mut(), std::ptr::null_mut());
            (resource.node, resource.node_id) = (handle(source), source.id);
            (resource.original_node, resource.exec) = (handle(&node.own), handle(exec));
        });
        exec_node(ResourceKind::NodeSet, exec, node, |resource| {
            (resource.graph, resource.exec) = (std::ptr::null_mut(), handle(exec));
        });
    }
}

pub(super) fn exec_destroyed(exec: &Arc<Exec>) {
    if observer().is_none() {
        return;
    }
    exec_resource(ResourceKind::ExecDestroyed, exec, |resource| resource.exec = handle(exec));
    exec_resource(ResourceKind::GraphDestroyed, exec, |_| {});
    exec.nodes().iter().for_each(|node| exec_node(ResourceKind::NodeDestroyed, exec, node, |_| {}));
}

fn exec_resource(kind: ResourceKind, exec: &Arc<Exec>, fill: impl FnOnce(&mut Resource)) {
    resource(kind, of(exec.device), |resource| {
        (resource.graph, resource.graph_id) = (exec.clone_handle(), exec.id);
        fill(resource);
    });
}

fn exec_node(kind: ResourceKind, exec: &Arc<Exec>, node: &ExecNode, fill: impl FnOnce(&mut Resource)) {
    if !node.node.action.is_observed() {
        return;
    }
    resource(kind, of(node.node.origin.device), |resource| {
        (resource.graph, resource.graph_id) = (exec.clone_handle(), exec.id);
        resource.original_graph = exec.nodes_original_handle as *mut c_void;
        resource.node = handle(&node.own);
        resource.node_id = node.node.id;
        resource.original_node = node.original_handle as *mut c_void;
        fill(resource);
    });
}
