//! Which kernel carried which operations.
//!
//! NCCL launches one kernel for each *plan*, and a plan may carry many operations. NCCL reports it
//! in pieces without a link between them: a KernelLaunch around the launch, a Group with the
//! operations it hands over, and, from CUPTI and much later, the kernel. They are joined here:
//!
//! ```text
//! thread A   [KernelLaunch: launch, correlation 7]  [Group: Coll, Coll]      the next Group on that thread and context
//! callback                                          [Group: Coll, Coll]      or, through NCCL's host stream, the next one
//!                                                                            whose calls were made in the same GroupApi
//! GPU                                [kernel, correlation 7]
//! ```
//!
//! A captured launch is a node of a graph: its clones carry it to the kernels of every replay. What
//! NCCL hands over at replays comes through the host stream; the first time it is joined as above,
//! and from then on by the captured calls, which are the same each time.
//!
//! All of it is bounded; a kernel whose launch was forgotten has no owner, and says so.

mod calls;
mod nodes;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::calls::Calls;
use self::nodes::{Behind, Nodes};
use super::bounded::Bounded;
use super::replays::{Graphs, Operations, Run, Runs, Which};
use super::sessions::Call;
use super::trail;
use crate::model::activity::Span;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Method, Moment, Operation, ThreadId, Unmatched};
use crate::model::word::Word;

/// How many launches are remembered until their kernels arrive. This is enough for 10,000 launches
/// a second and CUPTI's buffers stuck for seconds behind a kernel that hangs.
const LAUNCHES: usize = 14 << 10;
/// The same if no kernel will claim a launch: what follows a launch comes soon.
const LAUNCHES_ALONE: usize = 1024;
/// The same with kernels, if less is to be remembered.
const LAUNCHES_FEW: usize = 2048;
/// Captured launches, whose graph may be replayed at any time.
const CAPTURED: usize = 8 << 10;
/// How many operations of captured launches are remembered, all together, until their kernels
/// arrive: as above.
const RECENT: usize = 40 << 10;
/// The same for all launches if no kernel will claim them, or if less is to be remembered.
const RECENT_FEW: usize = 4096;
/// Launches without a kernel that are watched.
const UNSEEN: usize = 4096;
/// Captured calls whose launch is known.
const CAPTURED_CALLS: usize = 16 << 10;
/// How many GroupApis with plans that came before their launch are remembered, and how many plans
/// of each. The launch follows at once, if it was reported.
const EARLY: usize = 256;
/// How many Groups are open: one per thread, and those whose stop was lost.
const OPEN_GROUPS: usize = 4096;
/// How many operations of one plan are remembered; NCCL's own limit is far lower.
const OPERATIONS: usize = 4096;

/// Launches, plans and the kernels that wait to be claimed.
#[derive(Debug, Default)]
pub(super) struct Plans {
    kernels_expected: bool,
    /// Less is remembered.
    is_small: bool,
    launches: Bounded<Handle, Launch>,
    /// Launches that were captured; they are moved here from `launches`.
    captured: Bounded<Handle, Launch>,
    /// What a launching call claims.
    claims: Bounded<Call, Claim>,
    pub(super) nodes: Nodes,
    /// The launch that ended last on a thread, until something else begins there.
    just_launched: FxHashMap<ThreadId, Handle>,
    /// The launch of one of NCCL's kernels without a KernelLaunch (v1 to v4), until the Group that
    /// follows on its thread.
    undeclared: FxHashMap<ThreadId, (Call, HostNs)>,
    /// Launches whose plan goes through the host stream, by context and GroupApi, in order. Only
    /// the first plan of a captured launch is awaited here.
    queued: Bounded<(Handle, Handle), VecDeque<Handle>>,
    /// The captured launch that carries a call, once it was handed over.
    launch_of_call: Bounded<Handle, Handle>,
    /// Plans that came through the host stream before their launch, by the same key, in order. Only
    /// those that were not captured can: a replay comes after the launches of its capture.
    early: Bounded<(Handle, Handle), VecDeque<(Run, HostNs)>>,
    /// Plans that were handed over, oldest first: the launch, the index among its plans, and how
    /// many operations. They are forgotten when there are too many in all.
    recent: VecDeque<(Handle, u64, usize)>,
    recent_operations: usize,
    /// Groups that are open.
    groups: Bounded<Handle, OpenGroup>,
    pub(super) calls: Calls,
    pub(super) graphs: Graphs,
    /// Launches of graphs, and of what NCCL does not hand over, that have no kernel yet; in order.
    /// Those whose kernel was seen since are skipped.
    unseen: VecDeque<(HostNs, Unseen)>,
}

/// A launch without a kernel so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unseen {
    /// The graph, and the index of its launch.
    Graph(u64, u64),
    /// What this call launched.
    Calls(Call),
}

/// What identifies a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelKey<'a> {
    /// The node of the executable graph, or 0.
    pub(super) graph_node: u64,
    /// The launching call.
    pub(super) call: Call,
    /// Where it ran.
    pub(super) device: u32,
    pub(super) name: &'a str,
    /// When it ran; `None` if it had not ended, or if its times are off.
    pub(super) span: Option<Span>,
}

#[derive(Debug)]
struct Launch {
    context: Handle,
    /// When its KernelLaunch began, and on which thread, by the system's id.
    start: HostNs,
    thread: i32,
    /// The stream, as NCCL names it.
    stream: u64,
    /// The GroupApi in which it was made.
    group_api: Handle,
    /// The plans handed over for it.
    runs: Runs,
    /// NCCL reports no KernelLaunch for it: it is known by the calls in its GroupApi.
    is_of_calls: bool,
}

#[derive(Debug)]
struct OpenGroup {
    context: Handle,
    begin: HostNs,
    owner: Option<PlanOf>,
    /// The GroupApi in which its operations were asked for, once known.
    group_api: Handle,
    /// They were captured.
    is_captured: bool,
    operations: Vec<Arc<Operation>>,
}

/// For what a plan was handed over.
#[derive(Debug, Clone, Copy)]
enum PlanOf {
    /// The launch inside a KernelLaunch.
    Launch(Handle),
    /// The call of an undeclared launch.
    Undeclared(Call),
}

#[derive(Debug, Clone)]
enum Claim {
    /// The launch inside a KernelLaunch.
    Launch(Handle),
    /// The launch inside a KernelLaunch, by its external id.
    External(Handle),
    /// NCCL's kernel inside a GroupApi, without a KernelLaunch.
    Calls(Handle),
    /// NCCL's kernel on a thread on which a Group followed.
    Thread(Option<(Handle, Run)>),
}

/// Who owns a kernel.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) method: Method,
    pub(super) context: Handle,
    pub(super) operations: Operations,
    /// The Group in which they were handed over, if NCCL reported it.
    pub(super) group: Handle,
    /// The KernelLaunch, if there was one, and its thread, by the system's id. With non-blocking
    /// communicators that is one of NCCL's.
    pub(super) launch: Handle,
    pub(super) thread: Option<i32>,
    /// For a captured launch: which run of it, counted from 1, if known.
    pub(super) replay: Option<u64>,
    /// Where its graph was launched.
    pub(super) replayed: Option<Moment>,
    /// It cannot have run before this time, as far as known.
    pub(super) since: Option<HostNs>,
    /// The stream as NCCL names it, or 0.
    pub(super) stream: u64,
    /// Broadcasts of its communicator in the same group of calls that no plan carried.
    pub(super) untold: u32,
}

impl Found {
    /// For a kernel without a KernelLaunch.
    fn new(method: Method, context: Handle, operations: Operations, group: Handle) -> Found {
        let (launch, thread, replay, replayed, since) = (Handle::NONE, None, None, None, None);
        Found { method, context, operations, group, launch, thread, replay, replayed, since, stream: 0, untold: 0 }
    }
}

/// A plan that was handed over completely.
#[derive(Debug, Clone)]
pub(super) struct Handover {
    pub(super) operations: Operations,
    /// Its kernel cannot have run before this time, as far as known.
    pub(super) since: Option<HostNs>,
    /// Its KernelLaunch, if known by now.
    pub(super) launch: Handle,
    /// The stream as NCCL names it, or 0.
    pub(super) stream: u64,
}

impl Plans {
    /// From here on less is remembered.
    pub(super) fn remember_less(&mut self) {
        self.is_small = true;
    }

    fn most_launches(&self) -> usize {
        if self.is_small { LAUNCHES_FEW } else { LAUNCHES }
    }

    /// Kernels will be reported.
    pub(super) fn expect_kernels(&mut self) {
        self.kernels_expected = true;
    }

    /// From here on, kernels of graphs may name a launch of their graph other than their own, so
    /// they do not show which run they are or which launches have no kernel.
    pub(super) fn distrust_graph_launches(&mut self) {
        self.graphs.distrust();
        self.unseen.retain(|(_, it)| !matches!(it, Unseen::Graph(..)));
    }

    /// A KernelLaunch begins.
    pub(super) fn launch(&mut self, id: Handle, context: Handle, group_api: Handle, stream: u64, begun: Moment) {
        let Moment { time: start, tid: thread } = begun;
        let launch = Launch { context, start, thread, stream, group_api, runs: Runs::default(), is_of_calls: false };
        let bound = if self.kernels_expected { self.most_launches() } else { LAUNCHES_ALONE };
        self.launches.insert(id, launch, bound);
    }

    /// A KernelLaunch ends on its thread.
    pub(super) fn launched(&mut self, id: Handle, thread: ThreadId) {
        if self.known(id).is_some() {
            self.just_launched.insert(thread, id);
        }
    }

    /// Something other than a Group begins on a thread, so a launch that ended there goes through
    /// the host stream.
    pub(super) fn something_else(&mut self, thread: ThreadId) {
        if let Some(id) = self.just_launched.remove(&thread) {
            self.queue(id);
        }
    }

    fn queue(&mut self, id: Handle) {
        if self.take_early(id) {
            return;
        }
        let Some(launch) = self.known(id) else { return };
        let key = (launch.context, launch.group_api);
        self.queued.entry(key, CAPTURED).push_back(id);
    }

    /// Gives a launch the plan that came before it, and returns whether there was one. NCCL puts
    /// the host function into the stream first, and it may run before the launching thread
    /// continues.
    fn take_early(&mut self, id: Handle) -> bool {
        let Some(launch) = self.launches.get_mut(&id) else { return false };
        let key = (launch.context, launch.group_api);
        let Some(early) = self.early.get_mut(&key) else { return false };
        // If the launch of the first one may be lost, nothing shows whose it is.
        let is_lost = early.front().is_some_and(|(_, begin)| self.graphs.is_lossy_since(*begin));
        if let Some((run, begin)) = early.pop_front().filter(|_| !is_lost) {
            launch.runs.push(run, begin);
        }
        if early.is_empty() || is_lost {
            self.early.remove(&key);
        }
        !is_lost
    }

    /// A thread has ended.
    pub(super) fn thread_end(&mut self, thread: ThreadId) {
        self.something_else(thread);
        self.undeclared.remove(&thread);
    }

    /// A Group begins. Returns the time before which its kernel cannot have run, if known by now:
    /// that of the launch that it follows.
    pub(super) fn group(&mut self, id: Handle, thread: ThreadId, context: Handle, now: HostNs) -> Option<HostNs> {
        let direct = self.just_launched.remove(&thread);
        let same = |launch: &Handle| self.known(*launch).is_some_and(|launch| launch.context == context);
        let mut since = None;
        let owner = match direct {
            Some(launch) if same(&launch) => {
                if let Some(launch) = self.launches.get(&launch) {
                    since = Some(launch.start);
                }
                if let Some(captured) = self.captured.get_mut(&launch) {
                    captured.runs.fall_silent();
                }
                Some(PlanOf::Launch(launch))
            }
            Some(other) => {
                self.queue(other);
                None
            }
            None => self.undeclared.remove(&thread).map(|(call, launched)| {
                since = Some(launched);
                PlanOf::Undeclared(call)
            }),
        };
        let (group_api, is_captured, operations) = (Handle::NONE, false, Vec::new());
        let group = OpenGroup { context, begin: now, owner, group_api, is_captured, operations };
        self.groups.insert(id, group, OPEN_GROUPS);
        since
    }

    /// An operation is handed over in a Group. `call` is the call that asked for it, whether that
    /// was captured, and its GroupApi.
    pub(super) fn operation(&mut self, group: Handle, operation: &Arc<Operation>, call: (Handle, bool, Handle)) {
        let (call, is_captured, group_api) = call;
        self.calls.carried(group_api, call);
        let Some(open) = self.groups.get(&group) else { return };
        let found = match open.owner {
            None if is_captured || !self.is_order_lost(operation) => self.launch_of(call, (open.context, group_api)),
            _ => None,
        };
        let Some(open) = self.groups.get_mut(&group) else { return };
        open.owner = open.owner.or(found.map(PlanOf::Launch));
        open.is_captured |= is_captured;
        if open.group_api.is_none() {
            open.group_api = group_api;
        }
        if open.operations.len() < OPERATIONS {
            open.operations.push(Arc::clone(operation));
        }
        if let Some(PlanOf::Launch(launch)) = open.owner
            && self.captured.get(&launch).is_some_and(|launch| !launch.runs.is_silent())
            && !call.is_none()
        {
            self.launch_of_call.insert(call, launch, CAPTURED_CALLS);
        }
    }

    /// Whether a launch or a plan may have been lost since this operation was asked for: then the
    /// order of those that are known does not tell which belong together.
    fn is_order_lost(&self, operation: &Operation) -> bool {
        operation.asked.is_some_and(|asked| self.graphs.is_lossy_since(asked.time))
    }

    /// The launch that carries a call whose plan came through the host stream.
    fn launch_of(&mut self, call: Handle, key: (Handle, Handle)) -> Option<Handle> {
        if let Some(launch) = self.launch_of_call.get(&call) {
            return Some(*launch);
        }
        // It may be that nothing has followed on the launching thread yet.
        let is_its = |launch: &Handle| self.known(*launch).is_some_and(|launch| launch.group_api == key.1);
        let waiting = self.just_launched.iter().filter(|(_, launch)| is_its(launch));
        for thread in waiting.map(|(&thread, _)| thread).collect::<Vec<_>>() {
            self.something_else(thread);
        }
        let queue = self.queued.get_mut(&key)?;
        // What is lost may be the first plan of another captured launch: all replays would be
        // taken for each other's.
        let captured = self.captured.get(queue.front()?);
        if queue.len() > 1 && captured.is_some_and(|first| self.graphs.is_lossy_since(first.start)) {
            return None;
        }
        let launch = queue.pop_front();
        if queue.is_empty() {
            self.queued.remove(&key);
        }
        launch
    }

    /// A Group ends: its plan is complete.
    pub(super) fn group_end(&mut self, id: Handle) -> Option<Handover> {
        let OpenGroup { context, begin, owner, group_api, is_captured, operations } = self.groups.remove(&id)?;
        let operations = Arc::new(operations);
        let is_doubtful = self.graphs.is_lossy_since(begin);
        let mut run = Run { group: id, operations: Arc::clone(&operations), is_doubtful };
        let mut handover =
            Handover { operations: Arc::clone(&operations), since: None, launch: Handle::NONE, stream: 0 };
        match owner {
            Some(PlanOf::Launch(id)) => {
                if let Some(launch) = self.captured.get(&id) {
                    // The kernel of a replay waits for the host function that reports this.
                    handover = Handover { launch: id, stream: launch.stream, since: Some(begin), ..handover };
                    self.told(id, run, begin);
                } else if let Some(launch) = self.launches.get(&id) {
                    // The launch's own plan may be lost, or the launch of this one.
                    run.is_doubtful |= self.graphs.is_lossy_since(launch.start);
                    if !run.is_doubtful || launch.group_api == group_api {
                        let since = Some(launch.start);
                        handover = Handover { launch: id, stream: launch.stream, since, ..handover };
                        self.told(id, run, begin);
                    }
                }
            }
            Some(PlanOf::Undeclared(call)) => {
                self.claims.insert(call, Claim::Thread(Some((context, run))), self.most_launches());
            }
            None if is_captured || group_api.is_none() => {}
            // It may be the plan of a later launch.
            None if operations.first().is_some_and(|first| self.is_order_lost(first)) => {}
            None => {
                let early = self.early.entry((context, group_api), EARLY);
                if early.len() < EARLY {
                    early.push_back((run, begin));
                }
            }
        }
        Some(handover)
    }

    /// A plan was handed over for a launch.
    fn told(&mut self, id: Handle, run: Run, begin: HostNs) {
        let operations = run.operations.len().max(1);
        let index = if let Some(launch) = self.captured.get_mut(&id) {
            let index = launch.runs.push(run, begin);
            if launch.runs.is_silent() {
                return;
            }
            index
        } else if let Some(launch) = self.launches.get_mut(&id).filter(|launch| launch.runs.is_empty()) {
            let index = launch.runs.push(run, begin);
            // Its kernel will come, or the launch itself is forgotten.
            if self.kernels_expected {
                return;
            }
            index
        } else {
            return;
        };
        self.recent.push_back((id, index, operations));
        self.recent_operations += operations;
        let bound = if self.kernels_expected && !self.is_small { RECENT } else { RECENT_FEW };
        while self.recent_operations > bound
            && let Some((id, index, operations)) = self.recent.pop_front()
        {
            self.recent_operations -= operations;
            if let Some(launch) = self.captured.get_mut(&id).or_else(|| self.launches.get_mut(&id)) {
                launch.runs.forget(index);
            }
        }
    }

    /// A kernel is being launched on a thread. `declared` is whether this interface has
    /// KernelLaunch events.
    pub(super) fn kernel_launched(
        &mut self,
        thread: Option<ThreadId>,
        call: Call,
        launch: Handle,
        group: Handle,
        declared: bool,
        now: HostNs,
    ) {
        let claim = match thread {
            _ if !launch.is_none() => Claim::Launch(launch),
            _ if !group.is_none() => Claim::Calls(group),
            Some(thread) if !declared => {
                // If this is still here when the kernel arrives, the plan went through the host
                // stream, and nothing shows which Group is its own.
                self.undeclared.insert(thread, (call, now));
                Claim::Thread(None)
            }
            _ => return,
        };
        if let Claim::Calls(group) = claim {
            self.calls.launched(group);
            self.unseen(now, Unseen::Calls(call));
        }
        self.claims.insert(call, claim, self.most_launches());
    }

    /// A call was made inside a KernelLaunch, by the id that was pushed there.
    pub(super) fn external_id(&mut self, call: Call, launch: Handle) {
        // What was seen at the call itself says as much and more.
        if self.claims.get(&call).is_none() {
            self.claims.insert(call, Claim::External(launch), self.most_launches());
        }
    }

    /// A node was made inside a KernelLaunch, so the launch is captured; or in a GroupApi, for
    /// calls that NCCL does not hand over.
    pub(super) fn node(&mut self, node: u64, launch: Handle, made: Moment) {
        if let Some(captured) = self.launches.remove(&launch) {
            self.captured.insert(launch, captured, CAPTURED);
        } else if let Some((context, operations)) = self.calls.captured(launch) {
            let mut runs = Runs::default();
            let run = Run { group: Handle::NONE, operations: Arc::new(operations), is_doubtful: false };
            runs.push(run, made.time);
            runs.fall_silent();
            let Moment { time: start, tid: thread } = made;
            let of_calls = Launch { context, start, thread, stream: 0, group_api: launch, runs, is_of_calls: true };
            self.captured.insert(launch, of_calls, CAPTURED);
            // No kernel will have the id of the call that was captured.
            if let Some(&(_, Unseen::Calls(call))) = self.unseen.back()
                && matches!(self.claims.get(&call), Some(Claim::Calls(group)) if *group == launch)
            {
                self.unseen.pop_back();
                self.claims.remove(&call);
            }
        }
        self.nodes.insert(node, launch, false);
    }

    /// An executable graph is launched by this call; or, if there is none, it is created.
    pub(super) fn graph_launched(&mut self, graph: u64, call: Option<Call>, asked: Option<Moment>, now: HostNs) {
        let Some(call) = call else {
            self.graphs.made(graph, now);
            self.unseen.retain(|(_, it)| !matches!(it, Unseen::Graph(other, _) if *other == graph));
            return;
        };
        // If nothing of NCCL's was captured, nothing of NCCL's can hang in a graph.
        if let Some(index) = self.graphs.launched(graph, call, asked, now)
            && self.captured.len() > 0
        {
            self.unseen(now, Unseen::Graph(graph, index));
        }
    }

    fn unseen(&mut self, now: HostNs, launch: Unseen) {
        if self.kernels_expected {
            if self.unseen.len() >= UNSEEN {
                self.unseen.pop_front();
            }
            self.unseen.push_back((now, launch));
        }
    }

    /// A kernel of this call's graph launch has been seen; `is_nccl` is whether it is NCCL's.
    pub(super) fn graph_seen(&mut self, node: u64, call: Call, is_nccl: bool) {
        self.graphs.kernel(call, is_nccl, self.nodes.is_in_known_graph(node));
    }

    /// When the first launch was made that has no kernel yet and about which NCCL reports nothing
    /// else, and when the last one was.
    pub(super) fn unseen_launches(&mut self) -> Option<(HostNs, HostNs)> {
        while let Some(&(time, launch)) = self.unseen.front() {
            let is_unseen = match launch {
                Unseen::Graph(graph, index) => self.graphs.is_unseen(graph, index),
                Unseen::Calls(call) => self.claims.get(&call).is_some(),
            };
            if is_unseen {
                return self.unseen.back().map(|(last, _)| (time, *last));
            }
            self.unseen.pop_front();
        }
        None
    }

    /// All existing records of kernels launched up to this time have been seen, so none will arrive
    /// for those still missing.
    pub(super) fn all_seen(&mut self, until: HostNs) {
        self.unseen.retain(|(time, _)| *time > until);
    }

    /// A node was cloned. A clone that is cloned again is not in an executable graph: it belongs to
    /// a child graph, or to the clone of a graph.
    pub(super) fn node_cloned(&mut self, node: u64, original: u64) {
        if let Some((launch, true)) = self.nodes.cloned(node, original)
            && let Some(captured) = self.captured.get_mut(&launch)
        {
            captured.runs.cloned();
        }
    }

    /// A node of this executable graph does the work of another graph's node from now on; or, if
    /// that is 0, nobody knows what.
    pub(super) fn node_updated(&mut self, node: u64, source: u64, graph: u64, now: HostNs) {
        for launch in self.nodes.updated(node, source, now, self.graphs.launches_of(graph)) {
            if let Some(captured) = self.captured.get_mut(&launch) {
                captured.runs.cloned();
            }
        }
    }

    /// Finds the owner of a kernel that ran. Call it in the order in which kernels ended.
    /// `device_of` is the device of a communicator, if known.
    ///
    /// # Errors
    ///
    /// Why the kernel has no owner.
    pub(super) fn claim(
        &mut self,
        kernel: KernelKey<'_>,
        device_of: &dyn Fn(Handle) -> Option<u32>,
    ) -> Result<Found, Unmatched> {
        if kernel.graph_node != 0 {
            return self.run_of_node(&kernel);
        }
        // An id is used by one kernel only, unless it is that of a graph launch.
        match self.claims.remove(&kernel.call).ok_or(Unmatched::NoLaunch)? {
            Claim::Launch(launch) => self.run(launch, Method::Bracket, 0, &kernel),
            Claim::External(launch) => self.run(launch, Method::External, 0, &kernel),
            Claim::Thread(Some((context, Run { group, operations, .. }))) if !operations.is_empty() => {
                Ok(Found::new(Method::ThreadOrder, context, operations, group))
            }
            Claim::Thread(_) => Err(Unmatched::NoGroup),
            Claim::Calls(group) => {
                let (context, operations) = self.calls.claim(group, (kernel.device, kernel.name), device_of)?;
                Ok(Found::new(Method::ApiBracket, context, Arc::new(operations), Handle::NONE))
            }
        }
    }

    /// What a kernel may be, before it is claimed.
    pub(super) fn explain(&self, kernel: &KernelKey<'_>) -> Vec<String> {
        let launch = match (kernel.graph_node, self.claims.get(&kernel.call)) {
            (0, None) => {
                return vec!["candidates: none; the call that launched it was not reported, or is too long ago".into()];
            }
            (0, Some(Claim::Launch(launch))) => *launch,
            (0, Some(Claim::External(launch))) => *launch,
            (0, Some(Claim::Thread(run))) => {
                let carried = run.as_ref().map_or("none yet".into(), |(_, run)| trail::operations(&run.operations));
                return vec![format!("candidates: what was handed over next on the launching thread: {carried}")];
            }
            (0, Some(Claim::Calls(group))) => {
                let carried = trail::operations(&self.calls.operations(*group));
                return vec![format!("candidates: calls of its group that no plan has carried: {carried}")];
            }
            (node, _) => match self.behind(node, kernel.call) {
                Some(Behind { launch, .. }) => launch,
                None => return vec!["candidates: none; no capture that NCCL reported has its node".into()],
            },
        };
        let Some(known) = self.known(launch) else {
            return vec!["candidates: its KernelLaunch, which is no longer remembered".into()];
        };
        let begun = trail::before(known.start, kernel.span);
        let is_captured = self.captured.get(&launch).is_some();
        let what = if is_captured { "captured " } else { "" };
        let of = if known.is_of_calls { "calls, whose graph node was made" } else { "KernelLaunch that began" };
        let mut steps = vec![format!("candidates: the {what}{of} {begun}")];
        let launches = self.behind(kernel.graph_node, kernel.call).map_or(0, |behind| behind.launches);
        let seen = self.graphs.seen(kernel.call, kernel.span).ok().filter(|_| is_captured);
        let seen = seen.map(|seen| seen.after(launches));
        known.runs.explain(seen.as_ref(), kernel.span, &mut steps);
        steps
    }

    /// The launch behind a node, when this call launched its graph.
    pub(super) fn behind(&self, node: u64, call: Call) -> Option<Behind> {
        self.nodes.behind(node, self.graphs.launch(call).map(|launched| launched.time))
    }

    /// The run of the launch behind a kernel's node.
    fn run_of_node(&mut self, kernel: &KernelKey<'_>) -> Result<Found, Unmatched> {
        let node = kernel.graph_node;
        let Some(Behind { launch, launches, is_told }) = self.behind(node, kernel.call) else {
            return Err(match self.nodes.is_updated(node) {
                true => Unmatched::GraphChanged,
                false if self.nodes.is_in_known_graph(node) => Unmatched::UntoldNode,
                false => Unmatched::UnknownNode,
            });
        };
        if let Some(launched) = self.graphs.launch(kernel.call) {
            self.nodes.has_run(node, launched.time);
        }
        let method = if is_told { Method::GraphNode } else { Method::GraphReplay };
        self.run(launch, method, launches, kernel)
    }

    /// The run of a launch that a kernel belongs to. If it is captured, its graph had been launched
    /// so often before it was part of it.
    fn run(&mut self, id: Handle, method: Method, launches: u64, kernel: &KernelKey<'_>) -> Result<Found, Unmatched> {
        if self.launches.get(&id).is_some_and(|launch| launch.runs.is_empty()) {
            self.take_early(id);
        }
        if let Some(launch) = self.captured.get_mut(&id) {
            let seen = self.graphs.seen(kernel.call, kernel.span)?.after(launches);
            let Which { run: Run { group, operations, .. }, number, is_exact } = launch.runs.which(&seen)?;
            if operations.is_empty() {
                return Err(Unmatched::NoGroup);
            }
            let method = match is_exact {
                _ if launch.is_of_calls => Method::ApiBracket,
                true => method,
                false => Method::GraphReplay,
            };
            return Ok(Found {
                launch: if launch.is_of_calls { Handle::NONE } else { id },
                replay: number,
                replayed: seen.asked(),
                since: seen.asked().map(|moment| moment.time),
                stream: launch.stream,
                untold: self.calls.collectives(launch.group_api, launch.context, Word::BROADCAST),
                ..Found::new(method, launch.context, operations, group)
            });
        }
        let Some(launch) = self.launches.get_mut(&id) else {
            return Err(if self.calls.is_group(id) { Unmatched::SeveralCalls } else { Unmatched::Forgotten });
        };
        let plan = launch.runs.pop().filter(|plan| !plan.operations.is_empty());
        let Run { group, operations, is_doubtful } = plan.ok_or(Unmatched::NoGroup)?;
        let method = if is_doubtful { Method::ThreadOrder } else { method };
        let found = Found {
            launch: id,
            thread: Some(launch.thread),
            since: Some(launch.start),
            stream: launch.stream,
            untold: self.calls.collectives(launch.group_api, launch.context, Word::BROADCAST),
            ..Found::new(method, launch.context, operations, group)
        };
        self.launches.remove(&id);
        Ok(found)
    }

    /// The kernel of a plan was found by other means than its launch.
    pub(super) fn claimed_otherwise(&mut self, launch: Handle) {
        self.launches.remove(&launch);
    }

    /// Launches outside graphs whose kernel has not been seen.
    pub(super) fn without_kernel(&self) -> u64 {
        self.launches.len() as u64
    }

    /// How many entries are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        let plans = self.early.len() + self.queued.len() + self.launch_of_call.len() + self.groups.len();
        self.launches.len() + self.captured.len() + self.claims.len() + self.nodes.len() + plans
    }

    /// How many plans of captured launches are remembered, with their operations or without.
    #[cfg(test)]
    pub(super) fn remembered_runs(&self) -> [usize; 2] {
        let all = self.captured.values().map(|launch| launch.runs.remembered());
        all.fold([0; 2], |[with, without], runs| [with + runs[0], without + runs[1]])
    }

    /// When a KernelLaunch began, if it is remembered.
    pub(super) fn launched_at(&self, launch: Handle) -> Option<HostNs> {
        self.known(launch).map(|launch| launch.start)
    }

    fn known(&self, launch: Handle) -> Option<&Launch> {
        self.captured.get(&launch).or_else(|| self.launches.get(&launch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_no_kernel_will_claim_are_forgotten_soon() {
        for (expected, oldest) in [(false, 100_000 - LAUNCHES_ALONE), (true, 100_000 - LAUNCHES)] {
            let mut plans = Plans::default();
            if expected {
                plans.expect_kernels();
            }
            for id in 1..=100_000 {
                plans.launch(Handle(id), Handle(1), Handle::NONE, 0, Moment { tid: 1, time: HostNs(id) });
            }
            let is_known = |id: usize| plans.launches.get(&Handle(id as u64)).is_some();
            assert!(is_known(oldest + 1) && !is_known(oldest), "{expected}");
        }
    }
}
