//! The launches behind the nodes of graphs.

use super::super::bounded::Bounded;
use super::CAPTURED;
use crate::model::ids::Handle;

/// How many graph nodes of NCCL's are remembered.
const NODES: usize = 28 << 10;

/// Nodes of graphs, by CUPTI's number.
#[derive(Debug, Default)]
pub(in super::super) struct Nodes {
    known: Bounded<u64, Node>,
    /// Graphs with a node that belongs to a launch.
    graphs: Bounded<u64, ()>,
}

/// A node of a graph.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// The captured launch.
    launch: Handle,
    is_clone: bool,
    is_cloned: bool,
}

impl Nodes {
    /// A node was made, by capture or by cloning another.
    pub(super) fn insert(&mut self, node: u64, launch: Handle, is_clone: bool) {
        self.known.insert(node, Node { launch, is_clone, is_cloned: false }, NODES);
        if !launch.is_none() {
            self.graphs.insert(graph_of(node), (), CAPTURED);
        }
    }

    /// A node was cloned. Returns the launch behind it, and whether the clone is one more in an
    /// executable graph.
    pub(super) fn cloned(&mut self, node: u64, original: u64) -> Option<(Handle, bool)> {
        let original = self.known.get_mut(&original)?;
        let is_first = !std::mem::replace(&mut original.is_cloned, true);
        let Node { launch, is_clone, .. } = *original;
        self.insert(node, launch, true);
        Some((launch, !(is_clone && is_first)))
    }

    /// What was open when the original of a node was made.
    pub(in super::super) fn launch_of(&self, node: u64) -> Option<Handle> {
        self.known.get(&node).map(|node| node.launch)
    }

    /// Whether the graph of a node has a node that belongs to a launch.
    pub(super) fn is_in_known_graph(&self, node: u64) -> bool {
        self.graphs.get(&graph_of(node)).is_some()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

/// The graph of a node, from CUPTI's node number.
fn graph_of(node: u64) -> u64 {
    node >> 32
}
