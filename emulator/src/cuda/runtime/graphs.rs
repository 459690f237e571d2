//! Captures and graphs, as libnccl takes part in them and the job launches them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{Dimensions, Handle, HostFunction, body, put, put_if_wanted, slice};
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

pub(in crate::cuda) unsafe extern "C" fn stream_begin_capture(stream: Handle, mode: c_int) -> c_int {
    call(c"cudaStreamBeginCapture", |_| Capture::begin(&device::stream(stream)?, mode))
}

pub(in crate::cuda) unsafe extern "C" fn stream_end_capture(stream: Handle, out: *mut Handle) -> c_int {
    call(c"cudaStreamEndCapture", |_| {
        let graph = Capture::end(&device::stream(stream)?);
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, graph.as_ref().map_or(std::ptr::null_mut(), handle))? };
        graph.map(|_| ())
    })
}

pub(in crate::cuda) unsafe extern "C" fn stream_is_capturing(stream: Handle, out: *mut c_int) -> c_int {
    call(c"cudaStreamIsCapturing", |_| {
        let (status, ()) = device::stream(stream)?.capture_info(|_| ());
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, status as c_int) }
    })
}

/// CUDA 12's plain `cudaStreamGetCaptureInfo`.
pub(super) unsafe extern "C" fn stream_get_capture_status(stream: Handle, status: *mut c_int, id: *mut u64) -> c_int {
    let null = std::ptr::null_mut();
    // SAFETY: the same promises, and null for what is not asked for.
    unsafe { capture_info(stream, status, id, null, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut()) }
}

pub(super) unsafe extern "C" fn stream_get_capture_info_without_edges(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { capture_info(stream, status, id, graph.cast(), nodes, std::ptr::null_mut(), count) }
}

pub(super) unsafe extern "C" fn stream_get_capture_info(
    stream: Handle,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    nodes: *mut *const usize,
    edges: *mut *const Edge,
    count: *mut usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { capture_info(stream, status, id, graph.cast(), nodes, edges, count) }
}

unsafe fn capture_info(
    stream: Handle,
    status_out: *mut c_int,
    id: *mut u64,
    graph: *mut c_void,
    nodes: *mut *const usize,
    edges: *mut *const Edge,
    count: *mut usize,
) -> c_int {
    call(c"cudaStreamGetCaptureInfo", |_| {
        let (status, answer) = device::stream(stream)?.capture_info(|member| {
            let Some(member) = member else { return Ok(()) };
            member.answer.nodes.clear();
            member.answer.edges.clear();
            for dependency in &member.frontier {
                let node = member.capture.graph.node(dependency.node);
                member.answer.nodes.push(handle(&node) as usize);
                member.answer.edges.push(if dependency.at_start { AT_START } else { [0; 8] });
            }
            // SAFETY: CUDA's caller promises places for what it wants to know. The arrays stay
            // until the next query.
            unsafe {
                put_if_wanted(id, member.capture.id);
                put_if_wanted(graph.cast::<Handle>(), handle(&member.capture.graph));
                if !nodes.is_null() && edges.is_null() && member.frontier.iter().any(|dependency| dependency.at_start) {
                    return Err(Error::LossyQuery);
                }
                put_if_wanted(nodes, member.answer.nodes.as_ptr());
                put_if_wanted(edges, member.answer.edges.as_ptr());
                put_if_wanted(count, member.frontier.len());
            }
            Ok(())
        });
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(status_out, status as c_int)? };
        answer
    })
}

pub(super) unsafe extern "C" fn stream_update_capture_dependencies(
    stream: Handle,
    nodes: *const usize,
    count: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { stream_update_capture_dependencies_with_edges(stream, nodes, std::ptr::null(), count, flags) }
}

pub(super) unsafe extern "C" fn stream_update_capture_dependencies_with_edges(
    stream: Handle,
    nodes: *const usize,
    edges: *const Edge,
    count: usize,
    flags: u32,
) -> c_int {
    call(c"cudaStreamUpdateCaptureDependencies", |_| {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (nodes, edges) = unsafe { (slice(nodes, count), slice(edges, count)) };
        let nodes: Vec<_> =
            nodes.iter().enumerate().map(|(at, node)| (*node, edges.get(at).is_some_and(at_start))).collect();
        // cudaStreamSetCaptureDependencies
        let replace = flags & 1 != 0;
        capture::update_frontier(&device::stream(stream)?, &nodes, replace)
    })
}

pub(super) unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut c_int) -> c_int {
    thread_local! {
        static MODE: Cell<c_int> = const { Cell::new(0) };
    }
    // It is only remembered: no call is forbidden because a stream captures in the global mode.
    call(c"cudaThreadExchangeStreamCaptureMode", |_| {
        if mode.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises a mode there; the old one replaces it.
        unsafe { mode.write_unaligned(MODE.replace(mode.read_unaligned())) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn graph_add_dependencies(
    graph: Handle,
    from: *const usize,
    to: *const usize,
    count: usize,
) -> c_int {
    // SAFETY: the same promises.
    unsafe { graph_add_dependencies_with_edges(graph, from, to, std::ptr::null(), count) }
}

pub(super) unsafe extern "C" fn graph_add_dependencies_with_edges(
    graph: Handle,
    from: *const usize,
    to: *const usize,
    edges: *const Edge,
    count: usize,
) -> c_int {
    call(c"cudaGraphAddDependencies", |_| {
        // SAFETY: CUDA's caller promises arrays of this length.
        let (from, to, edges) = unsafe { (slice(from, count), slice(to, count), slice(edges, count)) };
        let edge = |(at, (from, to)): (usize, (&usize, &usize))| (*from, *to, edges.get(at).is_some_and(at_start));
        let edges: Vec<_> = from.iter().zip(to).enumerate().map(edge).collect();
        machine().graphs.get(graph)?.connect(&edges)
    })
}

/// Adds a node to a graph.
///
/// # Safety
///
/// `out` is null or writable; there are as many dependencies as `count` says.
unsafe fn add_node(
    out: *mut Handle,
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
    // SAFETY: as the caller promises.
    unsafe { put(out, handle(&graph.node(index))) }
}

pub(super) unsafe extern "C" fn graph_add_event_record_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    event: Handle,
) -> c_int {
    call(c"cudaGraphAddEventRecordNode", |_| {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Record(event)) }
    })
}

pub(super) unsafe extern "C" fn graph_add_event_wait_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    event: Handle,
) -> c_int {
    call(c"cudaGraphAddEventWaitNode", |_| {
        let event = machine().events.get(event)?;
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, Action::Wait(event)) }
    })
}

/// `cudaHostNodeParams`.
#[repr(C)]
pub(super) struct HostNodeParameters {
    function: Option<HostFunction>,
    data: *mut c_void,
}

pub(super) unsafe extern "C" fn graph_add_host_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    parameters: *const HostNodeParameters,
) -> c_int {
    call(c"cudaGraphAddHostNode", |_| {
        // SAFETY: CUDA's caller promises parameters or null.
        let parameters = unsafe { parameters.as_ref() }.ok_or(Error::InvalidValue)?;
        let function = parameters.function.ok_or(Error::InvalidValue)?;
        let action = Action::Host { function, data: parameters.data as usize };
        // SAFETY: the same promises.
        unsafe { add_node(out, graph, dependencies, count, action) }
    })
}

/// `cudaKernelNodeParams`.
#[repr(C)]
pub(super) struct KernelNodeParameters {
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    shared_memory: u32,
    arguments: *const *const u8,
    extra: *const *const c_void,
}

pub(super) unsafe extern "C" fn graph_add_kernel_node(
    out: *mut Handle,
    graph: Handle,
    dependencies: *const usize,
    count: usize,
    parameters: *const KernelNodeParameters,
) -> c_int {
    call(c"cudaGraphAddKernelNode", |_| {
        // SAFETY: CUDA's caller promises parameters or null.
        let parameters = unsafe { parameters.as_ref() }.ok_or(Error::InvalidValue)?;
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
    })
}

pub(in crate::cuda) unsafe extern "C" fn graph_instantiate(out: *mut Handle, graph: Handle, _flags: u64) -> c_int {
    call(c"cudaGraphInstantiate", |_| {
        let exec = machine().graphs.get(graph)?.instantiate()?;
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, handle(&exec)) }
    })
}

/// Puts a new graph into `graph`, which holds none yet: `cudaGraphCreate` and
/// `cudaGraphAddChildGraphNode` in one.
pub(in crate::cuda) unsafe extern "C" fn graph_with_child(graph: *mut Handle, child: Handle) -> c_int {
    call(c"cudaGraphAddChildGraphNode", |_| {
        let outer = machine().graphs.get(child)?.nest();
        machine().graphs.insert(outer.clone());
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(graph, handle(&outer)) }
    })
}

pub(in crate::cuda) unsafe extern "C" fn graph_clone(out: *mut Handle, graph: Handle) -> c_int {
    call(c"cudaGraphClone", |_| {
        let clone = machine().graphs.get(graph)?.duplicate();
        machine().graphs.insert(clone.clone());
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, handle(&clone)) }
    })
}

#[repr(C)]
struct GraphLaunchParameters {
    exec: Handle,
    stream: Handle,
}

pub(in crate::cuda) unsafe extern "C" fn graph_launch(exec: Handle, stream: Handle) -> c_int {
    let parameters = GraphLaunchParameters { exec, stream };
    let parameters = (&raw const parameters).cast();
    call_of(c"cudaGraphLaunch", None, parameters, |origin| {
        nested_call(c"cuGraphLaunch", None, parameters, origin, || {
            let exec: Arc<Exec> = machine().execs.get(exec)?;
            exec.launch(&device::stream(stream)?, origin)
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
pub(in crate::cuda) unsafe extern "C" fn graph_exec_update(exec: Handle, graph: Handle, result: *mut c_void) -> c_int {
    let parameters = GraphExecUpdateParameters { exec, graph, result };
    let parameters = (&raw const parameters).cast();
    call_of(c"cudaGraphExecUpdate", None, parameters, |origin| {
        nested_call(c"cuGraphExecUpdate_v2", None, parameters, origin, || {
            let (exec, graph): (Arc<Exec>, _) = (machine().execs.get(exec)?, machine().graphs.get(graph)?);
            exec.update(&graph)
        })
    })
}

pub(in crate::cuda) unsafe extern "C" fn graph_exec_destroy(exec: Handle) -> c_int {
    call(c"cudaGraphExecDestroy", |_| Exec::destroy(exec))
}

pub(in crate::cuda) unsafe extern "C" fn graph_destroy(graph: Handle) -> c_int {
    call(c"cudaGraphDestroy", |_| Graph::destroy(graph))
}

pub(super) unsafe extern "C" fn user_object_create(
    out: *mut Handle,
    object: *mut c_void,
    destroy: Option<HostFunction>,
    references: u32,
    _flags: u32,
) -> c_int {
    call(c"cudaUserObjectCreate", |_| {
        let destroy = destroy.ok_or(Error::InvalidValue)?;
        if references == 0 || out.is_null() {
            return Err(Error::InvalidValue);
        }
        let object = UserObject::new(object, destroy);
        let name = handle(&object);
        lock(&machine().user_objects).insert(name as usize, (object, references));
        // SAFETY: CUDA's caller promises a place for the result.
        unsafe { put(out, name) }
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

pub(super) unsafe extern "C" fn user_object_retain(object: Handle, count: u32) -> c_int {
    call(c"cudaUserObjectRetain", |_| change_references(object, count.into()).map(|_| ()))
}

pub(super) unsafe extern "C" fn user_object_release(object: Handle, count: u32) -> c_int {
    call(c"cudaUserObjectRelease", |_| change_references(object, -i64::from(count)).map(|_| ()))
}

pub(super) unsafe extern "C" fn graph_retain_user_object(
    graph: Handle,
    object: Handle,
    count: u32,
    flags: u32,
) -> c_int {
    call(c"cudaGraphRetainUserObject", |_| {
        let graph = machine().graphs.get(graph)?;
        // cudaGraphUserObjectMove: the references become the graph's.
        let moved = if flags & 1 != 0 { -i64::from(count) } else { 0 };
        graph.retain(&change_references(object, moved)?, count as usize);
        Ok(())
    })
}
