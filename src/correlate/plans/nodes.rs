//! The launches behind the nodes of graphs.

use std::collections::VecDeque;

use super::super::bounded::Bounded;
use super::CAPTURED;
use crate::model::ids::Handle;
use crate::model::time::HostNs;

/// How many graph nodes of NCCL's are remembered.
const NODES: usize = 28 << 10;
/// How many nodes of a graph can be inferred to be those that an update did not report.
const OF_GRAPH: usize = 1024;
/// How many updates of a node are remembered until kernels of later ones arrive.
const UPDATES: usize = 512;

/// Nodes of graphs, by CUPTI's number.
#[derive(Debug, Default)]
pub(in super::super) struct Nodes {
    known: Bounded<u64, Node>,
    /// Graphs with nodes that belong to a launch, and the first of those nodes.
    graphs: Bounded<u64, Vec<u64>>,
    /// What nodes of executable graphs were updated to, oldest first.
    updates: Bounded<u64, VecDeque<Update>>,
    /// How far apart the numbers of nodes are in an executable graph and in one that it was updated
    /// with; `None` if that differs.
    shifts: Bounded<(u64, u64), Option<i64>>,
}

/// A node of a graph.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// The captured launch.
    launch: Handle,
    is_clone: bool,
    is_cloned: bool,
}

/// What a node of an executable graph does from some time on.
#[derive(Debug, Clone, Copy)]
struct Update {
    at: HostNs,
    /// The node whose work it does, or 0 if that is not known.
    source: u64,
    /// How often its graph had been launched.
    launches: u64,
    is_told: bool,
}

/// The launch behind a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Behind {
    pub(in super::super) launch: Handle,
    /// How often the node's graph was launched before the node did this.
    pub(super) launches: u64,
    /// CUPTI said so.
    pub(super) is_told: bool,
}

impl Nodes {
    /// A node was made, by capture or by cloning another.
    pub(super) fn insert(&mut self, node: u64, launch: Handle, is_clone: bool) {
        self.known.insert(node, Node { launch, is_clone, is_cloned: false }, NODES);
        if !launch.is_none() {
            let nodes = self.graphs.entry(graph_of(node), CAPTURED);
            if nodes.len() < OF_GRAPH {
                nodes.push(node);
            }
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

    /// A node of an executable graph, which had been launched so often, does the work of another
    /// graph's node from now on; or, if that is 0, nobody knows what. Returns the launches that
    /// have become those behind a node.
    ///
    /// Kernels' nodes that keep their parameters are not told. They are taken for those whose
    /// numbers are as far apart as those of all nodes that were told.
    pub(super) fn updated(&mut self, node: u64, source: u64, at: HostNs, launches: u64) -> Vec<Handle> {
        let mut behind = Vec::new();
        let told = Update { at, source, launches, is_told: true };
        if source != 0 {
            let graphs = (graph_of(node), graph_of(source));
            let shift = index_of(node) - index_of(source);
            match self.shifts.get(&graphs).copied() {
                None => {
                    self.shifts.insert(graphs, Some(shift), CAPTURED);
                    for source in self.graphs.get(&graphs.1).cloned().unwrap_or_default() {
                        let update = Update { source, is_told: false, ..told };
                        behind.extend(shifted(graphs.0, source, shift).and_then(|node| self.push(node, update)));
                    }
                }
                Some(Some(known)) if known != shift => self.disprove(graphs, known),
                Some(_) => {}
            }
        }
        behind.extend(self.push(node, told));
        behind
    }

    /// Remembers an update. Returns the launch behind the node from then on, if that is another
    /// one.
    fn push(&mut self, node: u64, update: Update) -> Option<Handle> {
        let behind = self.known.get(&update.source).map(|source| source.launch);
        // A node that was not told did the same work before.
        let is_known = self.known.get(&node).is_some() || self.updates.get(&node).is_some();
        if !is_known && (behind.is_none() || !update.is_told) {
            return None;
        }
        // What is updated again and again is not to be forgotten.
        let mut updates = self.updates.remove(&node).unwrap_or_default();
        let is_same = match updates.back_mut().filter(|last| last.source == update.source) {
            Some(last) => {
                last.is_told |= update.is_told;
                true
            }
            None => false,
        };
        if !is_same {
            updates.push_back(update);
        }
        if updates.len() > UPDATES {
            forget(&mut updates, 2);
        }
        self.updates.insert(node, updates, NODES);
        let nodes = self.graphs.remove(&graph_of(node)).unwrap_or_default();
        self.graphs.insert(graph_of(node), nodes, CAPTURED);
        behind.filter(|_| !is_same)
    }

    /// The numbers of two graphs' nodes do not go together after all.
    fn disprove(&mut self, graphs: (u64, u64), shift: i64) {
        self.shifts.insert(graphs, None, CAPTURED);
        for source in self.graphs.get(&graphs.1).into_iter().flatten() {
            let updates = shifted(graphs.0, *source, shift).and_then(|node| self.updates.get_mut(&node));
            if let Some(last) = updates.and_then(VecDeque::back_mut)
                && last.source == *source
                && !last.is_told
            {
                last.source = 0;
            }
        }
    }

    /// The launch behind a node that ran in a launch of its graph at this time; `None` if that was
    /// not reported.
    pub(in super::super) fn behind(&self, node: u64, launched: Option<HostNs>) -> Option<Behind> {
        let update = match self.updates.get(&node) {
            Some(updates) => {
                let launched = launched?;
                updates.iter().rfind(|update| update.at <= launched)
            }
            None => None,
        };
        let (source, launches, is_told) =
            update.map_or((node, 0, true), |update| (update.source, update.launches, update.is_told));
        let launch = self.known.get(&source)?.launch;
        Some(Behind { launch, launches, is_told })
    }

    /// Whether a node was ever updated.
    pub(super) fn is_updated(&self, node: u64) -> bool {
        self.updates.get(&node).is_some()
    }

    /// A kernel of the node ran in a launch of its graph at this time, so hardly one of a much
    /// earlier launch will come.
    pub(super) fn has_run(&mut self, node: u64, launched: HostNs) {
        if let Some(updates) = self.updates.get_mut(&node) {
            let now = updates.iter().rposition(|update| update.at <= launched).unwrap_or_default();
            forget(updates, now.saturating_sub(1));
        }
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

/// Forgets what a node did before this update, but not that it did something.
fn forget(updates: &mut VecDeque<Update>, before: usize) {
    if before > 1 {
        updates.drain(1..before);
    }
    if before > 0
        && let Some(first) = updates.front_mut()
    {
        first.source = 0;
    }
}

/// The graph of a node, from CUPTI's node number.
fn graph_of(node: u64) -> u64 {
    node >> 32
}

/// The node's number in its graph.
fn index_of(node: u64) -> i64 {
    i64::from(node as u32)
}

/// The node of a graph whose number is this far from that of another graph's node.
fn shifted(graph: u64, node: u64, shift: i64) -> Option<u64> {
    let index = u32::try_from(index_of(node) + shift).ok()?;
    Some(graph << 32 | u64::from(index))
}
