//! Captures and graphs, as libnccl takes part in them and the job launches them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{Dimensions, Handle, HostFunction, Out, body, exported, slice};
use crate::cuda::capture::{self, Capture};
use crate::cuda::graph::{Dependency, Exec, Graph, NodeOrigin, UserObject};
use crate::cuda::observe::{self, call, call_of, nested_call};
use crate::cuda::registry::handle;
use crate::cuda::threads::lock;
use crate::cuda::work::{Action, Kernel};
use crate::cuda::{Error, device, machine};

/// `cudaGraphEdgeData`. Only one of its ports is known here: the beginning of the kernel that the
/// edge leaves.
type Edge = [u8; 8];

/// `cudaGraphKernelNodePortLaunchCompletion`, in the first byte of an edge, and
/// `cudaGraphDependencyTypeProgrammatic` in the third.
const AT_START: Edge = [2, 0, 1, 0, 0, 0, 0, 0];

/// The programmatic port (1) is treated as the end of the kernel, which is no earlier than it asks
/// for.
fn at_start(edge: &Edge) -> bool {
    edge[0] == AT_START[0]
}

exported! {
    fn cudaStreamBeginCapture(stream: Handle, mode: c_int) {
        Capture::begin(&device::stream(stream)?, mode)
    }

    fn cudaStreamEndCapture(stream: Handle, out: Out<Handle>) {
        let graph = Capture::end(&device::stream(stream)?);
        out.put(graph.as_ref().map_or(std::ptr::null_mut(), handle))?;
        graph.map(|_| ())
    }

    fn cudaStreamIsCapturing(stream: Handle, out: Out<c_int>) {
        let (status, ()) = device::stream(stream)?.capture_info(|_| ());
        out.put(status as c_int)
    }

    fn cudaStreamGetCaptureInfo(
        stream: Handle,
        status_out: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<*const usize>,
        edges: Out<*const Edge>,
        count: Out<usize>,
    ) {
        let (status, answer) = device::stream(stream)?.capture_info(|member| {
            let Some(member) = member else { return Ok(()) };
            member.answer.nodes.clear();
            member.answer.edges.clear();
            for dependency in &member.frontier {
                let node = member.capture.graph.node(dependency.node);
                member.answer.nodes.push(handle(&node) as usize);
                member.answer.edges.push(if dependency.at_start { AT_START } else { [0; 8] });
            }
            id.put_if_wanted(member.capture.id);
            graph.put_if_wanted(handle(&member.capture.graph));
            let loses_edges = nodes.is_wanted() && !edges.is_wanted();
            if loses_edges && member.frontier.iter().any(|dependency| dependency.at_start) {
                return Err(Error::LossyQuery);
            }
            // The arrays stay until the next query.
            nodes.put_if_wanted(member.answer.nodes.as_ptr());
            edges.put_if_wanted(member.answer.edges.as_ptr());
            count.put_if_wanted(member.frontier.len());
            Ok(())
        });
        status_out.put(status as c_int)?;
        answer
    }

    [unsafe] fn cudaStreamUpdateCaptureDependencies(
        stream: Handle,
        nodes: *const usize,
        edges: *const Edge,
        count: usize,
        flags: u32,
    ) {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (nodes, edges) = unsafe { (slice(nodes, count), slice(edges, count)) };
        let nodes: Vec<_> =
            nodes.iter().enumerate().map(|(at, node)| (*node, edges.get(at).is_some_and(at_start))).collect();
        // cudaStreamSetCaptureDependencies
        let replace = flags & 1 != 0;
        capture::update_frontier(&device::stream(stream)?, &nodes, replace)
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Option<&mut c_int>) {
        thread_local! {
            static MODE: Cell<c_int> = const { Cell::new(0) };
        }
        // It is only remembered: no call is forbidden because a stream captures in the global mode.
        let mode = mode.ok_or(Error::InvalidValue)?;
        *mode = MODE.replace(*mode);
        Ok(())
    }

    [unsafe] fn cudaGraphAddDependencies(
        graph: Handle,
        from: *const usize,
        to: *const usize,
        edges: *const Edge,
        count: usize,
    ) {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (from, to, edges) = unsafe { (slice(from, count), slice(to, count), slice(edges, count)) };
        let edge = |(at, (from, to)): (usize, (&usize, &usize))| (*from, *to, edges.get(at).is_some_and(at_start));
        let edges: Vec<_> = from.iter().zip(to).enumerate().map(edge).collect();
        machine().graphs.get(graph)?.connect(&edges)
    }

    [unsafe] fn cudaGraphAddEventRecordNode(
        out: Out<Handle>,
        graph: Handle,
        dependencies: *const usize,
        count: usize,
        event: Handle,
    ) {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Record(event)) }
    }

    [unsafe] fn cudaGraphAddEventWaitNode(
        out: Out<Handle>,
        graph: Handle,
        dependencies: *const usize,
        count: usize,
        event: Handle,
    ) {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Wait(event)) }
    }

    [unsafe] fn cudaGraphAddHostNode(
        out: Out<Handle>,
        graph: Handle,
        dependencies: *const usize,
        count: usize,
        parameters: Option<&HostNodeParameters>,
    ) {
        let parameters = parameters.ok_or(Error::InvalidValue)?;
        let function = parameters.function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: parameters.data as usize };
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, action) }
    }

    [unsafe] fn cudaGraphAddKernelNode(
        out: Out<Handle>,
        graph: Handle,
        dependencies: *const usize,
        count: usize,
        parameters: Option<&KernelNodeParameters>,
    ) {
        let parameters = parameters.ok_or(Error::InvalidValue)?;
        let name = machine().name(parameters.function);
        let kernel = Kernel {
            function: parameters.function as usize,
            grid: parameters.grid.into(),
            block: parameters.block.into(),
            shared_memory: parameters.shared_memory,
            // SAFETY: CUDA's caller promises the arguments of this kernel.
            body: unsafe { body(&name, parameters.arguments, parameters.extra)? },
            name,
        };
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Kernel(kernel)) }
    }

    fn cudaGraphExecDestroy(exec: Handle) {
        Exec::destroy(exec)
    }

    fn cudaGraphDestroy(graph: Handle) {
        Graph::destroy(graph)
    }

    [unsafe] fn cudaUserObjectCreate(
        out: Out<Handle>,
        object: *mut c_void,
        destroy: Option<HostFunction>,
        references: u32,
        _flags: u32,
    ) {
        let destroy = destroy.ok_or(Error::InvalidValue)?;
        if references == 0 || !out.is_wanted() {
            return Err(Error::InvalidValue);
        }
        let object = UserObject::new(object, destroy);
        let name = handle(&object);
        lock(&machine().user_objects).insert(name as usize, (object, references));
        out.put(name)
    }

    fn cudaGraphRetainUserObject(graph: Handle, object: Handle, count: u32, flags: u32) {
        let graph = machine().graphs.get(graph)?;
        // cudaGraphUserObjectMove: the references become the graph's.
        let moved = if flags & 1 != 0 { -i64::from(count) } else { 0 };
        graph.retain(&change_references(object, moved)?, count as usize);
        Ok(())
    }
}

/// CUDA 12's plain `cudaStreamGetCaptureInfo`.
pub(super) extern "C" fn stream_get_capture_status(stream: Handle, status: Out<c_int>, id: Out<u64>) -> c_int {
    cudaStreamGetCaptureInfo(stream, status, id, Out::none(), Out::none(), Out::none(), Out::none())
}

pub(super) extern "C" fn stream_get_capture_info_without_edges(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    nodes: Out<*const usize>,
    count: Out<usize>,
) -> c_int {
    cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, Out::none(), count)
}

pub(super) unsafe extern "C" fn stream_update_capture_dependencies(
    stream: Handle,
    nodes: *const usize,
    count: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { cudaStreamUpdateCaptureDependencies(stream, nodes, std::ptr::null(), count, flags) }
}

pub(super) unsafe extern "C" fn graph_add_dependencies(
    graph: Handle,
    from: *const usize,
    to: *const usize,
    count: usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { cudaGraphAddDependencies(graph, from, to, std::ptr::null(), count) }
}

/// Adds a node to a graph.
///
/// # Safety
///
/// There are as many dependencies as `count` says.
unsafe fn add_node(
    out: Out<Handle>,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    action: Action,
) -> Result<(), Error> {
    let graph = machine().graphs.get(graph)?;
    // SAFETY: as the caller promises.
    let dependencies = unsafe { slice(dependencies, count) };
    let after = |node: &usize| Ok(Dependency { node: graph.index(*node)?, at_start: false });
    let dependencies: Vec<Dependency> = dependencies.iter().map(after).collect::<Result<_, Error>>()?;
    let origin = NodeOrigin { device: device::current().ordinal, branch: None, captured: false };
    let index = graph.add(action, &dependencies, origin)?;
    observe::node_created(&graph, index);
    out.put(handle(&graph.node(index)))
}

/// `cudaHostNodeParams`.
#[repr(C)]
pub(in crate::cuda) struct HostNodeParameters {
    function: Option<HostFunction>,
    data: *mut c_void,
}

/// `cudaKernelNodeParams`.
#[repr(C)]
pub(in crate::cuda) struct KernelNodeParameters {
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    shared_memory: u32,
    arguments: *const *const u8,
    extra: *const *const c_void,
}

#[repr(C)]
struct GraphLaunchParameters {
    exec: Handle,
    stream: Handle,
}

pub(in crate::cuda) extern "C" fn graph_launch(exec: Handle, stream: Handle) -> c_int {
    let parameters = GraphLaunchParameters { exec, stream };
    let parameters = (&raw const parameters).cast();
    call_of(c"cudaGraphLaunch", None, parameters, |origin| {
        nested_call(c"cuGraphLaunch", None, parameters, origin, || {
            let exec: Arc<Exec> = machine().execs.get(exec)?;
            exec.launch(&device::stream(stream)?, origin)
        })
    })
}

pub(in crate::cuda) extern "C" fn graph_instantiate(out: Out<Handle>, graph: Handle, _flags: u64) -> c_int {
    call_of(c"cudaGraphInstantiateWithFlags", None, std::ptr::null(), |origin| {
        nested_call(c"cuGraphInstantiateWithFlags", None, std::ptr::null(), origin, || {
            let exec = machine().graphs.get(graph)?.instantiate()?;
            out.put(handle(&exec))
        })
    })
}

#[repr(C)]
struct GraphExecUpdateParameters {
    exec: Handle,
    graph: Handle,
    result: *mut c_void,
}

/// Writes no result, because nobody here asks for it.
pub(in crate::cuda) extern "C" fn graph_exec_update(exec: Handle, graph: Handle, result: *mut c_void) -> c_int {
    let parameters = GraphExecUpdateParameters { exec, graph, result };
    let parameters = (&raw const parameters).cast();
    call_of(c"cudaGraphExecUpdate", None, parameters, |origin| {
        nested_call(c"cuGraphExecUpdate_v2", None, parameters, origin, || {
            let (exec, graph): (Arc<Exec>, _) = (machine().execs.get(exec)?, machine().graphs.get(graph)?);
            exec.update(&graph)
        })
    })
}

/// Puts a new graph into `graph`, which holds none yet: `cudaGraphCreate` and
/// `cudaGraphAddChildGraphNode` in one. Only the job calls it.
pub(in crate::cuda) extern "C" fn graph_with_child(graph: Out<Handle>, child: Handle) -> c_int {
    call(c"cudaGraphAddChildGraphNode", |_| {
        let outer = machine().graphs.get(child)?.nest();
        machine().graphs.insert(outer.clone());
        graph.put(handle(&outer))
    })
}

/// `cudaGraphClone`. Only the job calls it.
pub(in crate::cuda) extern "C" fn graph_clone(out: Out<Handle>, graph: Handle) -> c_int {
    call(c"cudaGraphClone", |_| {
        let clone = machine().graphs.get(graph)?.duplicate();
        machine().graphs.insert(clone.clone());
        out.put(handle(&clone))
    })
}

/// Changes the number of the user's references; at zero, the handle is gone.
fn change_references(object: Handle, change: i64) -> Result<Arc<UserObject>, Error> {
    let mut objects = lock(&machine().user_objects);
    let (object_itself, references) = objects.get_mut(&(object as usize)).ok_or(Error::InvalidValue)?;
    *references = u32::try_from(i64::from(*references) + change).map_err(|_| Error::InvalidValue)?;
    let (object_itself, references) = (object_itself.clone(), *references);
    if references == 0 {
        objects.remove(&(object as usize));
    }
    Ok(object_itself)
}
