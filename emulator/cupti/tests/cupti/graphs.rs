//! Graphs: captured, instantiated, launched many times, two at once.

use std::ffi::c_void;
use std::sync::Mutex;

use emulated_cupti::layout::{self, kind};
use emulated_cupti::release::Release;
use observe::{Activity, Resource, ResourceKind};

use crate::alone::alone;
use crate::consumer::{self, Record, records};
use crate::cupti;
use crate::host;
use crate::library::Cupti;

const RESOURCE: u32 = 3;

/// `CUpti_ResourceData` and the `CUpti_GraphData` it points to.
#[repr(C)]
#[derive(Clone, Copy)]
struct ResourceData {
    context: *mut c_void,
    stream: *mut c_void,
    descriptor: *const GraphData,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GraphData {
    graph: usize,
    original_graph: usize,
    node: usize,
    original_node: usize,
    node_type: u32,
    dependency: usize,
    exec: usize,
}

const _: () = assert!(size_of::<ResourceData>() == 24 && size_of::<GraphData>() == 56);

/// A graph with nodes; its handles are derived from ids.
struct Graph {
    id: u32,
    nodes: u32,
}

impl Graph {
    fn handle(id: u32) -> *mut c_void {
        (0x10_0000 + id as usize) as *mut c_void
    }

    fn exec_handle(id: u32) -> *mut c_void {
        (0x30_0000 + id as usize) as *mut c_void
    }

    fn node_id(&self, node: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(node)
    }

    fn node(&self, node: u32) -> *mut c_void {
        (0x20_0000 + self.id as usize * 0x100 + node as usize) as *mut c_void
    }

    fn told(&self, kind: ResourceKind) -> Resource {
        Resource { graph: Self::handle(self.id), graph_id: self.id, ..host::resource(kind) }
    }

    /// Captures `nodes` launches.
    fn capture(id: u32, nodes: u32) -> Graph {
        let graph = Graph { id, nodes };
        host::tell(&graph.told(ResourceKind::GraphCreated));
        for node in 0..nodes {
            let created = graph.told(ResourceKind::NodeCreated);
            let created = Resource { node: graph.node(node), node_id: graph.node_id(node), ..created };
            // While capturing, the call is reported and nothing is queued.
            host::call(c"cuLaunchKernelEx", Some(host::KERNEL), |_| host::tell(&created));
        }
        graph
    }

    /// Makes an executable graph, whose nodes are clones.
    fn instantiate(&self, id: u32) -> Graph {
        let exec = Graph { id, nodes: self.nodes };
        let original_graph = Self::handle(self.id);
        host::tell(&Resource { original_graph, ..exec.told(ResourceKind::GraphCloned) });
        for node in 0..self.nodes {
            host::tell(&Resource {
                original_graph,
                original_node: self.node(node),
                node: exec.node(node),
                node_id: exec.node_id(node),
                ..exec.told(ResourceKind::NodeCloned)
            });
        }
        let made = exec.told(ResourceKind::GraphInstantiated);
        host::tell(&Resource { original_graph, exec: Self::exec_handle(id), ..made });
        exec
    }

    /// Launches it: all nodes are queued before the first one runs.
    fn launch(&self, stream_id: u32) -> (u32, Vec<Activity>) {
        host::call(c"cudaGraphLaunch", None, |correlation| {
            host::call_as(correlation, c"cuGraphLaunch", None, |_| ());
            let nodes = (0..self.nodes).map(|node| {
                let node_id = self.node_id(node);
                Activity { correlation, node_id, graph_id: self.id, ..host::kernel(stream_id) }
            });
            let nodes: Vec<Activity> = nodes.collect();
            nodes.iter().for_each(host::queue);
            (correlation, nodes)
        })
    }
}

static SEEN: Mutex<Vec<(u32, u64, u64)>> = Mutex::new(Vec::new());
static LIBRARY: Mutex<Option<Cupti>> = Mutex::new(None);

/// Asks for the ids in each callback, as a profiler does that follows a node to its clone.
unsafe extern "C" fn follow(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    assert_eq!(domain, RESOURCE);
    // SAFETY: data of a graph's resource, valid for the length of the callback.
    let graph = unsafe { *(*data.cast::<ResourceData>()).descriptor };
    let cupti = LIBRARY.lock().expect("no test panics there").expect("it was set");
    SEEN.lock().expect("no test panics there").push((
        id,
        node_id(cupti, graph.node),
        node_id(cupti, graph.original_node),
    ));
}

fn node_id(cupti: Cupti, node: usize) -> u64 {
    let mut id = 0;
    let code = cupti!(cupti, cuptiGetGraphNodeId(usize = node, *mut u64 = &raw mut id));
    assert_eq!(code, if node == 0 { 1 } else { 0 });
    id
}

#[test]
fn a_node_is_followed_to_its_clone_and_into_every_replay() {
    for release in Release::ALL {
        alone(&format!("release={}", release.name()), || {
            const CREATED: u32 = 13;
            const CLONED: u32 = 20;
            let cupti = Cupti::emulated();
            *LIBRARY.lock().expect("no test panics there") = Some(cupti);
            let handle = cupti.subscribe(follow, std::ptr::null_mut()).expect("nobody has subscribed");
            cupti.register(consumer::request, consumer::complete);
            cupti.enable(&[kind::CONCURRENT_KERNEL]);
            cupti.call_back(handle, RESOURCE, CREATED);
            cupti.call_back(handle, RESOURCE, CLONED);
            let graph = Graph::capture(3, 2);
            let execs = [graph.instantiate(4), graph.instantiate(5)];
            let node = |graph: u64, node: u64| graph << 32 | node;
            let expected = [
                (CREATED, node(3, 0), 0),
                (CREATED, node(3, 1), 0),
                (CLONED, node(4, 0), node(3, 0)),
                (CLONED, node(4, 1), node(3, 1)),
                (CLONED, node(5, 0), node(3, 0)),
                (CLONED, node(5, 1), node(3, 1)),
            ];
            assert_eq!(*SEEN.lock().expect("no test panics there"), expected);
            cupti.flush(false);
            assert!(records(cupti).is_empty(), "what is captured does not run");

            // Two graphs at once, whose nodes end alternately, and a launch outside of graphs.
            let mut launched = Vec::new();
            for replay in 0..20 {
                let [first, second] = execs.each_ref().map(|exec| exec.launch(13 + exec.id));
                let eager = host::launch(host::kernel(13));
                for (one, other) in first.1.into_iter().zip(second.1) {
                    host::finish_here(other, host::now(), 10);
                    host::finish_here(one, host::now(), 20 + replay);
                }
                host::finish_here(eager, host::now(), 10);
                launched.push((first.0, second.0, eager.correlation));
            }
            cupti.flush(false);
            let records = records(cupti);
            let mut replays = records.chunks_exact(5);
            use layout::kernel as k;
            for ((first, second, eager), replay) in launched.into_iter().zip(&mut replays) {
                let found = |record: &Record| {
                    [record.get(k::CORRELATION_ID), record.get(k::GRAPH_ID), record.get(k::GRAPH_NODE_ID)]
                };
                let expected = [
                    [first.into(), 4, node(4, 0)],
                    [first.into(), 4, node(4, 1)],
                    [second.into(), 5, node(5, 0)],
                    [second.into(), 5, node(5, 1)],
                    [eager.into(), 0, 0],
                ];
                assert_eq!(replay.iter().map(found).collect::<Vec<_>>(), expected);
                let has_source = replay[0].size() > k::SOURCE_GRAPH_NODE_ID.offset;
                assert_eq!(has_source, std::env::var("EMULATED_CUPTI").is_ok_and(|options| options.ends_with("13.5")));
                if has_source {
                    let sources: Vec<u64> = replay.iter().map(|record| record.get(k::SOURCE_GRAPH_NODE_ID)).collect();
                    assert_eq!(sources, [node(3, 0), node(3, 1), node(3, 0), node(3, 1), 0]);
                    assert_eq!(replay[0].get(k::SOURCE_GRAPH_ID), 3);
                }
            }
            assert!(replays.remainder().is_empty() && records.len() == 100);
        });
    }
}
