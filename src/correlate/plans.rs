//! Which kernel carried which operations.
//!
//! NCCL launches one kernel for each *plan*, and a plan may carry many operations. What NCCL says about it comes in three
//! pieces without a link between them: a KernelLaunch around the launch, a Group with the operations it hands over, and, from
//! CUPTI and much later, the kernel. They are joined here:
//!
//! ```text
//! thread A   [KernelLaunch: launch, correlation 7]  [Group: Coll, Coll]      the next Group on that thread and context
//! callback                                          [Group: Coll, Coll]      or, through NCCL's host stream, the next one
//!                                                                            whose calls were made in the same GroupApi
//! GPU                                [kernel, correlation 7]
//! ```
//!
//! A captured launch is a node of a graph: its clones carry it to the kernels of every replay. All of it is bounded; what is
//! forgotten is a kernel without an owner, which says so.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::activity::Kernel;
use crate::model::ids::Handle;
use crate::model::timeline::{Method, Operation, ThreadId, Unmatched};

/// Launches remembered until their kernels arrive: at 10,000 a second, and CUPTI's buffers stuck for seconds behind a
/// kernel that hangs, this is enough.
const LAUNCHES: usize = 64 << 10;
/// Captured launches, whose graph may be replayed at any time.
const CAPTURED: usize = 16 << 10;
/// Nodes of graphs that are NCCL's.
const NODES: usize = 128 << 10;
/// Replays of one captured launch whose kernels have not arrived.
const REPLAYS: usize = 4096;
/// Groups of calls remembered for launches that belong to no plan.
const CALLS: usize = 4096;
/// Groups that are open: one a thread, and those whose stop was lost.
const OPEN_GROUPS: usize = 4096;
/// Operations remembered of one plan; NCCL's own limit is far below.
const OPERATIONS: usize = 4096;

/// The operations of a plan.
pub(super) type Operations = Arc<Vec<Arc<Operation>>>;

/// Launches, plans and the kernels that wait to be claimed.
#[derive(Debug, Default)]
pub(super) struct Plans {
    launches: Bounded<Handle, Launch>,
    /// Launches that were captured; moved here from the others.
    captured: Bounded<Handle, Launch>,
    /// What a launching call's correlation id claims.
    claims: Bounded<u32, Claim>,
    /// The captured launch behind a node of a graph.
    nodes: Bounded<u64, Handle>,
    /// The launch that ended last on a thread, until something else begins there.
    just_launched: FxHashMap<ThreadId, Handle>,
    /// The launch of one of NCCL's kernels without a KernelLaunch (v1 to v4), until the Group that follows on its thread.
    undeclared: FxHashMap<ThreadId, u32>,
    /// Launches whose plan goes through the host stream, by context and GroupApi, in order.
    queued: Bounded<(Handle, Handle), Queue>,
    /// Plans that came through the host stream before their launch, by the same, in order.
    early: Bounded<(Handle, Handle), VecDeque<Operations>>,
    /// Groups that are open.
    groups: Bounded<Handle, OpenGroup>,
    /// Calls made in a GroupApi which no plan has carried yet.
    calls: Bounded<Handle, Vec<(Handle, Arc<Operation>)>>,
}

#[derive(Debug)]
struct Launch {
    context: Handle,
    /// The GroupApi it was made in.
    group_api: Handle,
    /// The operations of each run that no kernel has claimed yet, oldest first. An eager launch has one run.
    runs: VecDeque<Operations>,
    /// The operations of the last run claimed: those of a replay about which NCCL said nothing.
    last: Option<Operations>,
    /// Kernels that claimed it.
    kernels: u64,
}

/// The launches of one GroupApi in one communicator.
#[derive(Debug, Default)]
struct Queue {
    launches: VecDeque<Handle>,
    /// The next to get a plan: a captured one comes round again with each replay.
    next: usize,
}

#[derive(Debug)]
struct OpenGroup {
    context: Handle,
    /// The launch it hands over, or the correlation id of an undeclared one.
    owner: Option<Claim>,
    /// The GroupApi in which its operations were asked for, once that is known.
    group_api: Option<Handle>,
    operations: Vec<Arc<Operation>>,
}

#[derive(Debug, Clone)]
enum Claim {
    /// The launch inside a KernelLaunch.
    Launch(Handle),
    /// NCCL's kernel inside a GroupApi, without a KernelLaunch.
    Calls(Handle),
    /// NCCL's kernel on a thread where a Group followed.
    Thread(u32, Option<(Handle, Operations)>),
}

/// Who owns a kernel.
pub(super) struct Found {
    pub(super) method: Method,
    pub(super) context: Handle,
    pub(super) operations: Operations,
    /// The KernelLaunch, where there was one.
    pub(super) launch: Handle,
    /// The how manieth kernel of a captured launch, from 1.
    pub(super) replay: Option<u64>,
}

impl Plans {
    /// A KernelLaunch begins.
    pub(super) fn launch(&mut self, id: Handle, context: Handle, group_api: Handle) {
        let launch = Launch { context, group_api, runs: VecDeque::new(), last: None, kernels: 0 };
        self.launches.insert(id, launch, LAUNCHES);
    }

    /// A KernelLaunch ends on its thread.
    pub(super) fn launched(&mut self, id: Handle, thread: ThreadId) {
        if self.launches.get(&id).is_some() || self.captured.get(&id).is_some() {
            self.just_launched.insert(thread, id);
        }
    }

    /// Something other than a Group begins on a thread: a launch that ended there goes through the host stream.
    pub(super) fn something_else(&mut self, thread: ThreadId) {
        if let Some(id) = self.just_launched.remove(&thread) {
            self.queue(id);
        }
    }

    fn queue(&mut self, id: Handle) {
        if self.take_early(id) {
            return;
        }
        let Some(launch) = self.captured.get(&id).or_else(|| self.launches.get(&id)) else { return };
        let key = (launch.context, launch.group_api);
        if self.queued.get(&key).is_none() {
            self.queued.insert(key, Queue::default(), CAPTURED);
        }
        if let Some(queue) = self.queued.get_mut(&key) {
            queue.launches.push_back(id);
        }
    }

    /// Gives a launch the plan that came before it: NCCL puts the host function into the stream first, and it may run before the
    /// launching thread goes on. Whether there was one.
    fn take_early(&mut self, id: Handle) -> bool {
        let Some(launch) = self.launches.get_mut(&id) else { return false };
        let early = self.early.get_mut(&(launch.context, launch.group_api)).and_then(VecDeque::pop_front);
        let found = early.is_some();
        launch.runs.extend(early);
        found
    }

    /// A thread has ended.
    pub(super) fn thread_end(&mut self, thread: ThreadId) {
        self.something_else(thread);
        self.undeclared.remove(&thread);
    }

    /// A Group begins.
    pub(super) fn group(&mut self, id: Handle, thread: ThreadId, context: Handle) {
        let direct = self.just_launched.remove(&thread);
        let same = |launch: &Handle| self.context_of(*launch) == Some(context);
        let owner = match direct {
            Some(launch) if same(&launch) => Some(Claim::Launch(launch)),
            Some(other) => {
                self.queue(other);
                None
            }
            None => self.undeclared.remove(&thread).map(|correlation| Claim::Thread(correlation, None)),
        };
        self.groups.insert(id, OpenGroup { context, owner, group_api: None, operations: Vec::new() }, OPEN_GROUPS);
    }

    /// An operation is handed over in a Group. `call` is the call that asked for it, and `group_api` that call's group.
    pub(super) fn operation(&mut self, group: Handle, operation: &Arc<Operation>, call: Handle, group_api: Handle) {
        if let Some(calls) = self.calls.get_mut(&group_api) {
            calls.retain(|(made, _)| *made != call);
        }
        if self.groups.get(&group).is_some_and(|open| open.owner.is_none()) {
            // On the launching thread nothing may have followed yet.
            let waiting =
                self.just_launched.iter().filter(|(_, launch)| self.group_api_of(**launch) == Some(group_api));
            for thread in waiting.map(|(&thread, _)| thread).collect::<Vec<_>>() {
                self.something_else(thread);
            }
        }
        let Some(open) = self.groups.get_mut(&group) else { return };
        open.group_api.get_or_insert(group_api);
        if open.operations.len() < OPERATIONS {
            open.operations.push(Arc::clone(operation));
        }
        if open.owner.is_none()
            && let Some(queue) = self.queued.get_mut(&(open.context, group_api))
        {
            let captured = |id: &Handle| self.captured.get(id).is_some();
            open.owner = match queue.launches.front() {
                // Each replay runs through the captured launches of the group in order.
                Some(front) if captured(front) => {
                    let launch = queue.launches[queue.next % queue.launches.len()];
                    queue.next += 1;
                    Some(Claim::Launch(launch))
                }
                _ => queue.launches.pop_front().map(Claim::Launch),
            };
        }
    }

    /// A Group ends: its plan is complete.
    pub(super) fn group_end(&mut self, id: Handle) {
        let Some(OpenGroup { context, owner, group_api, operations }) = self.groups.remove(&id) else { return };
        let operations = Arc::new(operations);
        match owner {
            Some(Claim::Launch(id)) => {
                let launch = match self.captured.get_mut(&id) {
                    Some(launch) => Some(launch),
                    None => self.launches.get_mut(&id),
                };
                if let Some(launch) = launch
                    && launch.runs.len() < REPLAYS
                {
                    launch.runs.push_back(operations);
                }
            }
            Some(Claim::Thread(correlation, _)) => {
                self.claims.insert(correlation, Claim::Thread(correlation, Some((context, operations))), LAUNCHES);
            }
            Some(Claim::Calls(_)) => {}
            None => {
                let Some(group_api) = group_api else { return };
                let key = (context, group_api);
                if self.early.get(&key).is_none() {
                    self.early.insert(key, VecDeque::new(), CALLS);
                }
                if let Some(early) = self.early.get_mut(&key)
                    && early.len() < REPLAYS
                {
                    early.push_back(operations);
                }
            }
        }
    }

    /// A call is made in a GroupApi.
    pub(super) fn call(&mut self, id: Handle, group_api: Handle, operation: &Arc<Operation>) {
        if self.calls.get(&group_api).is_none() {
            self.calls.insert(group_api, Vec::new(), CALLS);
        }
        if let Some(calls) = self.calls.get_mut(&group_api)
            && calls.len() < OPERATIONS
        {
            calls.push((id, Arc::clone(operation)));
        }
    }

    /// A kernel is being launched on a thread. `declared` is whether this interface has KernelLaunch events.
    pub(super) fn kernel_launched(
        &mut self,
        thread: Option<ThreadId>,
        correlation: u32,
        launch: Handle,
        group: Handle,
        declared: bool,
    ) {
        let claim = match thread {
            _ if !launch.is_none() => Claim::Launch(launch),
            _ if !group.is_none() => Claim::Calls(group),
            Some(thread) if !declared => {
                // One that is still there went through the host stream: nothing here says which Group is its own.
                self.undeclared.insert(thread, correlation);
                Claim::Thread(correlation, None)
            }
            _ => return,
        };
        self.claims.insert(correlation, claim, LAUNCHES);
    }

    /// A node was made inside a KernelLaunch: that is captured.
    pub(super) fn node(&mut self, node: u64, launch: Handle) {
        if let Some(captured) = self.launches.remove(&launch) {
            self.captured.insert(launch, captured, CAPTURED);
        }
        self.nodes.insert(node, launch, NODES);
    }

    /// A node was cloned.
    pub(super) fn node_cloned(&mut self, node: u64, original: u64) {
        if let Some(&launch) = self.nodes.get(&original) {
            self.nodes.insert(node, launch, NODES);
        }
    }

    /// Finds the owner of a kernel that ran. To be asked in the order in which kernels ended.
    ///
    /// # Errors
    ///
    /// Why it has none.
    pub(super) fn claim(&mut self, kernel: &Kernel) -> Result<Found, Unmatched> {
        if kernel.graph_node != 0 {
            let launch = *self.nodes.get(&kernel.graph_node).ok_or(Unmatched::UnknownNode)?;
            return self.run(launch, Method::GraphNode);
        }
        // An id is used by one kernel only, unless it is that of a graph's launch.
        match self.claims.remove(&kernel.correlation).ok_or(Unmatched::NoLaunch)? {
            Claim::Launch(launch) => self.run(launch, Method::Bracket),
            Claim::Thread(_, Some((context, operations))) => {
                Ok(Found { method: Method::ThreadOrder, context, operations, launch: Handle::NONE, replay: None })
            }
            Claim::Thread(_, None) => Err(Unmatched::NoGroup),
            Claim::Calls(group) => {
                let calls = self.calls.remove(&group).filter(|calls| !calls.is_empty()).ok_or(Unmatched::NoCall)?;
                let operations = calls.into_iter().map(|(_, operation)| operation).collect();
                Ok(Found {
                    method: Method::ApiBracket,
                    context: Handle::NONE,
                    operations: Arc::new(operations),
                    launch: Handle::NONE,
                    replay: None,
                })
            }
        }
    }

    /// The next run of a launch.
    fn run(&mut self, id: Handle, method: Method) -> Result<Found, Unmatched> {
        let captured = self.captured.get(&id).is_some();
        if self.launches.get(&id).is_some_and(|launch| launch.runs.is_empty()) {
            self.take_early(id);
        }
        let launch = match captured {
            true => self.captured.get_mut(&id),
            false => self.launches.get_mut(&id),
        };
        let launch = launch.ok_or(Unmatched::Forgotten)?;
        launch.kernels += 1;
        let operations = launch.runs.pop_front().or_else(|| launch.last.clone()).ok_or(Unmatched::NoGroup)?;
        let replay = captured.then_some(launch.kernels);
        if captured {
            launch.last = Some(Arc::clone(&operations));
        }
        let context = launch.context;
        if !captured {
            self.launches.remove(&id);
        }
        Ok(Found { method, context, operations, launch: id, replay })
    }

    /// Launches outside graphs whose kernel has not been seen.
    pub(super) fn without_kernel(&self) -> u64 {
        self.launches.len() as u64
    }

    /// How much is remembered, in entries.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.launches.len() + self.captured.len() + self.claims.len() + self.nodes.len()
    }

    fn context_of(&self, launch: Handle) -> Option<Handle> {
        self.captured.get(&launch).or_else(|| self.launches.get(&launch)).map(|launch| launch.context)
    }

    fn group_api_of(&self, launch: Handle) -> Option<Handle> {
        self.captured.get(&launch).or_else(|| self.launches.get(&launch)).map(|launch| launch.group_api)
    }
}

/// A map that forgets what was inserted first.
#[derive(Debug)]
struct Bounded<K, V> {
    map: FxHashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Bounded { map: FxHashMap::default(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Bounded<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }

    fn len(&self) -> usize {
        self.map.len()
    }

    /// Inserts, and forgets the oldest of more than `bound`.
    fn insert(&mut self, key: K, value: V, bound: usize) {
        if self.map.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        while self.map.len() > bound {
            let Some(oldest) = self.order.pop_front() else { break };
            self.map.remove(&oldest);
        }
        // Keys that were removed stay in the order until it is much too long.
        if self.order.len() > 2 * bound {
            let map = &self.map;
            self.order.retain(|key| map.contains_key(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_map_forgets_the_oldest_and_nothing_else() {
        let mut map = Bounded::default();
        for key in 0..10_000_u32 {
            map.insert(key, key, 100);
            if key % 3 == 0 {
                map.remove(&key);
            }
        }
        assert!(map.len() <= 100);
        assert!(map.order.len() <= 200);
        assert_eq!(map.get(&9_998), Some(&9_998));
        assert_eq!(map.get(&1), None);
    }
}
