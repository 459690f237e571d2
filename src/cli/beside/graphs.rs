//! The CUDA graphs of both files: which launches our trace saw captured, which graphs the other
//! file saw launched, and what follows from the two (`order`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Own;
use super::order::{self, Asked, Capture, Captured, Found, Graph, Made, Node};
use crate::import::{Kernel, Profile, Span};
use crate::model::activity;
use crate::model::time::FileNs;
use crate::model::timeline::{Method, Operation, Owner, Unmatched};

/// What is known about the graphs of one process.
#[derive(Default)]
pub(super) struct Graphs {
    /// Captured launches, by index.
    pub(super) captured: Vec<usize>,
    /// The captured launch, by index, of each node of an executable graph.
    pub(super) nodes: Vec<(usize, u64)>,
    /// Launches of the graphs whose capture is known; in order of time for each graph.
    pub(super) replays: Vec<Replay>,
    /// Why the other tool's kernels stay unmatched, by graph.
    reasons: HashMap<u64, Unmatched>,
    /// Graphs whose replays could not be numbered.
    uncounted: HashSet<u64>,
    /// When NCCL handed over what a node carries, at each replay; only for nodes where NCCL reports
    /// it.
    runs: HashMap<u64, Vec<FileNs>>,
    /// Calls that launched a graph or that several kernels came from.
    launching: HashSet<u32>,
}

/// A launch of an executable graph.
pub(super) struct Replay {
    pub(super) time: FileNs,
    pub(super) tid: Option<i64>,
    pub(super) graph: u64,
    pub(super) correlation: u32,
    /// How many replays before this one are missing from the file.
    pub(super) missed: u64,
}

/// The graph of a node, from CUPTI's node number.
pub(super) fn of_node(node: u64) -> u64 {
    node >> 32
}

/// A time in which a thread captured. Where several captures overlap, from the first begin to the
/// last end.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    tid: i64,
    span: Span,
    captures: usize,
    /// It began before the recording did.
    is_cut: bool,
}

impl Session {
    /// Its time, extended by this many nanoseconds at both ends.
    fn wider(&self, by: i64) -> Span {
        Span { start: self.span.start.saturating_sub(by), end: self.span.end.saturating_add(by) }
    }
}

impl Graphs {
    /// What is concluded for a process. The other tool's calls with a kernel of their own are given
    /// as threads and times.
    pub(super) fn of(
        own: &Own<'_>,
        theirs: &Profile,
        process: usize,
        eager: &[(i64, Span, u32)],
        error: i64,
    ) -> Graphs {
        let kernels: Vec<&Kernel> = theirs.kernels.iter().filter(|kernel| kernel.process == process).collect();
        let calls = Calls::of(theirs, process);
        let mut graphs = Graphs { launching: launching(&kernels, &calls), ..Graphs::default() };
        let captured = captured(own, eager);
        graphs.captured = captured.iter().map(|it| it.launch).collect();
        let began = (theirs.cuda_calls.iter().filter(|call| call.process == process).map(|call| call.span.start))
            .chain(kernels.iter().map(|kernel| kernel.span.start))
            .min();
        let captures = captures(own, captured, &calls.sessions, began.unwrap_or(FileNs::MAX), error);
        let executable = executable(&kernels, &calls);
        let plain: Vec<Graph> = executable.iter().map(|it| it.graph.clone()).collect();
        let made = Made {
            captures: calls.sessions.iter().map(|session| session.captures).sum(),
            instantiated: calls.instantiated.clone(),
        };
        for (it, found) in executable.iter().zip(order::conclude(&captures, &plain, &made, error)) {
            match found {
                // If its launches were lost, a capture would look like a different one.
                _ if own.lost > 0 => drop(graphs.reasons.insert(it.id, Unmatched::CallsLost)),
                Ok(found) => graphs.take(it, &captures[found.capture], &found),
                Err(reason) => drop(graphs.reasons.insert(it.id, reason)),
            }
        }
        graphs
    }

    fn take(&mut self, executable: &Executable, capture: &Capture, found: &Found) {
        let launches = capture.launches.iter().map(|captured| captured.launch);
        self.nodes.extend(launches.zip(executable.nodes.iter().copied()));
        let runs = capture.launches.iter().map(|captured| captured.runs.clone());
        self.runs.extend(executable.nodes.iter().copied().zip(runs).filter(|(_, runs)| !runs.is_empty()));
        if found.numbers.is_none() {
            self.uncounted.insert(executable.id);
        }
        let mut next = 0;
        for (at, (&time, &(correlation, tid))) in executable.graph.replays.iter().zip(&executable.launches).enumerate()
        {
            let number = found.numbers.as_ref().and_then(|numbers| numbers.get(at)).copied().unwrap_or(next);
            let missed = number.saturating_sub(next);
            self.replays.push(Replay { time, tid, graph: executable.id, correlation, missed });
            next = number + 1;
        }
    }

    /// Who owns a kernel, as far as this module knows. The correlator treats what it was told about
    /// nodes as exact.
    pub(super) fn owner<'a>(&self, kernel: &activity::Kernel, mut owner: Owner<'a>) -> Owner<'a> {
        let graph = of_node(kernel.graph_node);
        match &mut owner {
            Owner::Operations { method: method @ Method::GraphNode, operations, replay, .. } => {
                if !self.was_handed_over(kernel.graph_node, *replay, operations) {
                    return Owner::Unmatched(Unmatched::SeveralReplays);
                }
                *method = Method::CaptureOrder;
                *replay = replay.filter(|_| !self.uncounted.contains(&graph));
            }
            Owner::Unmatched(reason @ Unmatched::UnknownNode) => {
                *reason = self.reasons.get(&graph).copied().unwrap_or(Unmatched::UnknownNode);
            }
            Owner::Unmatched(reason @ Unmatched::NoLaunch) if self.launching.contains(&kernel.correlation) => {
                *reason = Unmatched::NoNode;
            }
            _ => {}
        }
        owner
    }

    /// Whether the operations are those that NCCL handed over for this replay of a node, as far as
    /// NCCL reported it. The correlator remembers a limited number of hand-overs, and takes older
    /// ones for those it has forgotten.
    fn was_handed_over(&self, node: u64, replay: Option<u64>, operations: &[Arc<Operation>]) -> bool {
        let (Some(runs), Some(operation)) = (self.runs.get(&node), operations.first()) else { return true };
        let Some(at) = replay.and_then(|replay| usize::try_from(replay).ok()?.checked_sub(1)) else { return false };
        let since = FileNs::from(operation.since);
        runs.get(at).is_some_and(|run| *run <= since) && runs.get(at + 1).is_none_or(|next| since < *next)
    }
}

/// Calls that launched a graph, known by their name or because several kernels came from them.
fn launching(kernels: &[&Kernel], calls: &Calls) -> HashSet<u32> {
    let mut kernels_of: HashMap<u32, usize> = HashMap::new();
    for kernel in kernels {
        *kernels_of.entry(kernel.correlation).or_default() += 1;
    }
    let several = kernels_of.into_iter().filter(|(correlation, count)| *correlation != 0 && *count > 1);
    several.map(|(correlation, _)| correlation).chain(calls.launched.keys().copied()).collect()
}

/// The captured launches, in order of time.
fn captured(own: &Own<'_>, eager: &[(i64, Span, u32)]) -> Vec<Captured> {
    // By group of calls and communicator: what was asked for, and when plans of it were handed over
    // at replays.
    type Key = (usize, Option<usize>);
    let mut asked: HashMap<Key, Vec<Asked>> = HashMap::new();
    let mut group_of: HashMap<u64, usize> = HashMap::new();
    for call in own.calls.iter().filter(|call| call.captured) {
        let Some(group) = own.group_of(call.tid, call.span) else { continue };
        let operation = &call.operation;
        let one = Asked { function: operation.function.clone(), datatype: operation.datatype.clone() };
        asked.entry((group, operation.communicator)).or_default().push(one);
        group_of.extend(call.arrows.iter().map(|arrow| (*arrow, group)));
    }
    let mut runs: HashMap<Key, Vec<usize>> = HashMap::new();
    for handover in &own.handovers {
        let Some(&group) = handover.arrows.iter().find_map(|arrow| group_of.get(arrow)) else { continue };
        let Some(plan) = super::around(&own.plans, handover.tid, handover.span) else { continue };
        // A plan that is handed over within the group itself is handed over only once, by the
        // capture.
        if own.plans[plan].span.start > own.groups[group].span.end {
            let of = runs.entry((group, handover.operation.communicator)).or_default();
            if of.last() != Some(&plan) {
                of.push(plan);
            }
        }
    }
    let eager: HashSet<usize> =
        eager.iter().filter_map(|(tid, call, _)| super::around(&own.launches, *tid, *call)).collect();
    let mut of_group: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (at, launch) in own.launches.iter().enumerate() {
        let Some(group) = own.group_of(launch.tid, launch.span) else { continue };
        let key = (group, launch.communicator);
        if asked.contains_key(&key) && !eager.contains(&at) {
            of_group.entry(key).or_default().push(at);
        }
    }
    let mut captured = Vec::new();
    for (key, launches) in of_group {
        let mut plans = runs.remove(&key).unwrap_or_default();
        plans.sort_unstable_by_key(|plan| own.plans[*plan].span.start);
        plans.dedup();
        for (place, &launch) in launches.iter().enumerate() {
            // A replay runs the launches of a group in their order.
            let runs = plans.iter().skip(place).step_by(launches.len()).map(|plan| own.plans[*plan].span.start);
            let asked = asked.get(&key).cloned().unwrap_or_default();
            captured.push(Captured { launch, communicator: key.1, asked, runs: runs.collect() });
        }
    }
    captured.sort_by_key(|it| own.launches[it.launch].span);
    captured
}

/// The captures that these launches belong to. They are told apart by the thread's calls that begin
/// and end a capture, or, without such calls, by what lies between the launches.
fn captures(own: &Own<'_>, captured: Vec<Captured>, sessions: &[Session], began: FileNs, error: i64) -> Vec<Capture> {
    let mut of_session: Vec<Vec<Captured>> = sessions.iter().map(|_| Vec::new()).collect();
    let mut is_doubtful = vec![false; sessions.len()];
    let mut rest = Vec::new();
    for it in captured {
        let launch = own.launches[it.launch];
        // Near an end, the clocks may not tell whether the launch was inside.
        let near: Vec<usize> =
            (0..sessions.len()).filter(|at| sessions[*at].wider(error).contains(launch.span)).collect();
        let (same, other): (Vec<usize>, Vec<usize>) = near.into_iter().partition(|at| sessions[*at].tid == launch.tid);
        // Another thread may launch into a stream that joined the capture, as the thread of a
        // backward pass does.
        let near = if same.is_empty() { other } else { same };
        let certain = |at: &&usize| sessions[**at].wider(-error).contains(launch.span);
        match near[..] {
            [] => rest.push(it),
            [session] => of_session[session].push(it),
            _ => match near.iter().filter(certain).collect::<Vec<_>>()[..] {
                [session] => of_session[*session].push(it),
                _ => near.iter().for_each(|at| is_doubtful[*at] = true),
            },
        }
    }
    let group_end = |it: &Captured| {
        let launch = own.launches[it.launch];
        own.group_of(launch.tid, launch.span).map_or(launch.span.end, |group| own.groups[group].span.end)
    };
    let mut captures = Vec::new();
    for ((session, launches), is_doubtful) in sessions.iter().zip(of_session).zip(is_doubtful) {
        let Some(first) = launches.first() else { continue };
        let span = Span { start: own.launches[first.launch].span.start, end: session.span.end };
        let whole = Capture { span, was_seen: began <= session.span.start, ..Capture::default() };
        // Captures of several devices by one thread overlap. On one device they could not be told
        // apart.
        let devices: BTreeSet<Option<u32>> = launches.iter().map(|it| own.device(it.communicator)).collect();
        let is_split = session.captures == devices.len() && !devices.contains(&None);
        if is_doubtful || session.captures > 1 && !is_split {
            captures.push(Capture { launches, is_several: true, ..whole });
        } else if session.captures == 1 {
            captures.push(Capture { launches, may_be_several: session.is_cut, ..whole });
        } else {
            for device in devices {
                let is_on = |it: &&Captured| own.device(it.communicator) == device;
                let launches = launches.iter().filter(is_on).cloned().collect();
                captures.push(Capture { launches, device, ..whole });
            }
        }
    }
    // Without these calls, a capture is a series of launches with no launch outside of a capture
    // between them.
    let is_captured: HashSet<usize> = rest.iter().map(|it| it.launch).collect();
    let mut bounds: Vec<FileNs> = (own.launches.iter().enumerate())
        .filter(|(at, _)| !is_captured.contains(at))
        .map(|(_, launch)| launch.span.start)
        .chain(sessions.iter().flat_map(|session| [session.span.start, session.span.end]))
        .collect();
    bounds.sort_unstable();
    let mut run: Vec<Captured> = Vec::new();
    let close = |run: &mut Vec<Captured>, captures: &mut Vec<Capture>| {
        let launches = std::mem::take(run);
        let start = launches.first().map(|it| own.launches[it.launch].span.start);
        let Some((start, end)) = start.zip(launches.iter().map(group_end).max()) else { return };
        let (span, was_seen) = (Span { start, end }, began <= start);
        let may_be_several = launches.len() > 1;
        captures.push(Capture { launches, span, was_seen, may_be_several, ..Capture::default() });
    };
    for it in rest {
        if let Some(last) = run.last() {
            let (from, to) = (own.launches[last.launch].span.start, own.launches[it.launch].span.start);
            if bounds.get(bounds.partition_point(|bound| *bound <= from)).is_some_and(|bound| *bound < to) {
                close(&mut run, &mut captures);
            }
        }
        run.push(it);
    }
    close(&mut run, &mut captures);
    captures
}

/// The other tool's calls that concern graphs.
#[derive(Debug, Default)]
struct Calls {
    sessions: Vec<Session>,
    instantiated: Vec<Span>,
    /// The first call that changes an executable graph.
    updated: Option<FileNs>,
    /// When and on which thread a graph was launched, by the call's correlation id.
    launched: HashMap<u32, (FileNs, i64)>,
}

impl Calls {
    /// Names have the driver's or the runtime's prefix, and suffixes that depend on the release.
    /// Where the file has both calls, one lies within the other.
    fn of(theirs: &Profile, process: usize) -> Calls {
        let mut calls = Calls::default();
        let mut threads: BTreeMap<i64, Vec<(Span, &str, u32)>> = BTreeMap::new();
        for call in theirs.cuda_calls.iter().filter(|call| call.process == process) {
            threads.entry(call.tid).or_default().push((call.span, &call.name, call.correlation));
        }
        for (tid, mut list) in threads {
            list.sort_by_key(|(span, ..)| (span.start, Reverse(span.end)));
            let mut outer: Option<(Span, &str)> = None;
            let mut open = Session { tid, ..Session::default() };
            let (mut depth, mut last_end) = (0_usize, FileNs::MIN);
            for (span, name, correlation) in list {
                let Some(kind) = KINDS.into_iter().find(|kind| name.contains(kind)) else { continue };
                if outer.is_some_and(|(around, same)| same == kind && around.contains(span)) {
                    continue;
                }
                outer = Some((span, kind));
                match kind {
                    BEGIN => {
                        if depth == 0 {
                            open = Session { tid, span, ..Session::default() };
                        }
                        (depth, open.captures) = (depth + 1, open.captures + 1);
                    }
                    END => {
                        if depth == 0 {
                            // It began before the other tool was recording.
                            let span = Span { start: last_end, end: span.end };
                            open = Session { tid, span, captures: 1, is_cut: true };
                        }
                        depth = depth.saturating_sub(1);
                        open.span.end = span.end;
                        last_end = span.end;
                        if depth == 0 {
                            calls.sessions.push(open);
                        }
                    }
                    INSTANTIATE => calls.instantiated.push(span),
                    LAUNCH => drop(calls.launched.insert(correlation, (span.start, tid))),
                    _ if name.contains("Exec") => {
                        calls.updated = Some(calls.updated.map_or(span.start, |first| first.min(span.start)));
                    }
                    _ => {}
                }
            }
            if depth > 0 {
                open.span.end = FileNs::MAX;
                calls.sessions.push(open);
            }
        }
        calls
    }
}

const BEGIN: &str = "StreamBeginCapture";
const END: &str = "StreamEndCapture";
const INSTANTIATE: &str = "GraphInstantiate";
const LAUNCH: &str = "GraphLaunch";
/// The last two change an existing executable graph, as `cudaGraphExecUpdate` and
/// `cudaGraphExecKernelNodeSetParams` do. Calls without Exec in their names change a graph that is
/// not executable.
const KINDS: [&str; 6] = [BEGIN, END, INSTANTIATE, LAUNCH, "ExecUpdate", "SetParams"];

/// An executable graph in the other tool's file.
struct Executable {
    id: u64,
    graph: Graph,
    /// CUPTI's numbers of the nodes, in the order of the graph's nodes.
    nodes: Vec<u64>,
    /// The launching calls, in the order of the graph's replays: correlation id, and the thread
    /// where the file has the call.
    launches: Vec<(u32, Option<i64>)>,
}

fn executable(kernels: &[&Kernel], calls: &Calls) -> Vec<Executable> {
    let mut of_graph: BTreeMap<u64, Vec<&Kernel>> = BTreeMap::new();
    for kernel in kernels.iter().filter(|kernel| kernel.graph_node != 0 && kernel.is_nccl()) {
        of_graph.entry(of_node(kernel.graph_node)).or_default().push(kernel);
    }
    (of_graph.into_iter())
        .map(|(id, kernels)| {
            // Launches of one graph run one after the other.
            let mut begun: BTreeMap<u32, FileNs> = BTreeMap::new();
            for kernel in &kernels {
                let first = begun.entry(kernel.correlation).or_insert(kernel.span.start);
                *first = (*first).min(kernel.span.start);
            }
            let mut launches: Vec<(FileNs, u32)> =
                begun.into_iter().map(|(correlation, time)| (time, correlation)).collect();
            launches.sort_unstable();
            let place: HashMap<u32, usize> = launches.iter().enumerate().map(|(at, (_, it))| (*it, at)).collect();
            let mut nodes: BTreeMap<u64, Node> = BTreeMap::new();
            for kernel in &kernels {
                let node = nodes.entry(kernel.graph_node).or_insert_with(|| Node {
                    device: kernel.place.device,
                    kernels: vec![None; launches.len()],
                    ..Node::default()
                });
                if !node.names.contains(&kernel.name) {
                    node.names.push(Arc::clone(&kernel.name));
                }
                node.kernels[place[&kernel.correlation]] = Some(kernel.span);
            }
            let called = |(begun, correlation): &(FileNs, u32)| {
                calls.launched.get(correlation).map_or(*begun, |(time, _)| *time.min(begun))
            };
            let replays: Vec<FileNs> = launches.iter().map(called).collect();
            let was_updated = calls.updated.is_some_and(|at| replays.iter().any(|replay| *replay > at));
            let by = |correlation| (correlation, calls.launched.get(&correlation).map(|(_, tid)| *tid));
            let launches = launches.into_iter().map(|(_, correlation)| by(correlation)).collect();
            let (numbers, nodes) = nodes.into_iter().unzip();
            Executable { id, graph: Graph { nodes, replays, was_updated }, nodes: numbers, launches }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{CudaCall, Process};
    use crate::model::activity::Api;

    /// What the calls of threads say. Each is given as (thread, from, to, name).
    fn calls(list: &[(i64, i64, i64, &str)]) -> Calls {
        let call = |&(tid, start, end, name): &(i64, i64, i64, &str)| CudaCall {
            process: 0,
            tid,
            span: Span::of(start, end),
            name: name.into(),
            api: if name.starts_with("cuda") { Api::Runtime } else { Api::Driver },
            correlation: start as u32,
        };
        Calls::of(&Profile { cuda_calls: list.iter().map(call).collect(), ..Profile::default() }, 0)
    }

    fn sessions(list: &[(i64, i64, i64, &str)]) -> Vec<(i64, i64, i64, usize, bool)> {
        let session = |it: &Session| (it.tid, it.span.start.0, it.span.end.0, it.captures, it.is_cut);
        calls(list).sessions.iter().map(session).collect()
    }

    #[test]
    fn calls_show_when_a_thread_captured() {
        let begin = "cudaStreamBeginCapture_v10000";
        let end = "cudaStreamEndCapture_v10000";
        // A runtime call contains the driver's call; the two are one.
        let both = [
            (7, 10, 20, begin),
            (7, 12, 18, "cuStreamBeginCapture_v2"),
            (7, 50, 60, end),
            (7, 52, 58, "cuStreamEndCapture"),
        ];
        assert_eq!(sessions(&both), [(7, 10, 60, 1, false)]);
        // Two captures in sequence on one thread; two at once on two threads; two that overlap on
        // one thread.
        let after = [(7, 10, 11, begin), (7, 20, 21, end), (7, 30, 31, begin), (7, 40, 41, end)];
        assert_eq!(sessions(&after), [(7, 10, 21, 1, false), (7, 30, 41, 1, false)]);
        let beside = [(7, 10, 11, begin), (8, 15, 16, begin), (7, 20, 21, end), (8, 40, 41, end)];
        assert_eq!(sessions(&beside), [(7, 10, 21, 1, false), (8, 15, 41, 1, false)]);
        let over = [(7, 10, 11, begin), (7, 15, 16, begin), (7, 20, 21, end), (7, 40, 41, end)];
        assert_eq!(sessions(&over), [(7, 10, 41, 2, false)]);
        // A recording that began or ended during a capture.
        assert_eq!(sessions(&[(7, 20, 21, end)]), [(7, i64::MIN, 21, 1, true)]);
        assert_eq!(sessions(&[(7, 10, 11, begin)]), [(7, 10, i64::MAX, 1, false)]);
    }

    #[test]
    fn nothing_is_concluded_if_calls_are_missing() {
        let process = |lost| Process { pid: 1, name: String::new(), rank: None, threads: BTreeMap::new(), lost };
        let kernel = Kernel {
            graph_node: 5 << 32 | 3,
            name: "ncclDevKernel_AllReduce_Sum_f32_RING_LL".into(),
            ..Kernel::default()
        };
        let theirs = Profile { processes: vec![process(0)], kernels: vec![kernel], ..Profile::default() };
        for (lost, reason) in [(0, Unmatched::UnknownNode), (1, Unmatched::CallsLost)] {
            let ours = Profile { processes: vec![process(lost)], ..Profile::default() };
            let graphs = Graphs::of(&Own::of(&ours, 0), &theirs, 0, &[], 0);
            assert_eq!(graphs.reasons, [(5, reason)].into(), "{lost}");
        }
    }

    #[test]
    fn only_calls_on_executable_graphs_change_them() {
        assert_eq!(
            calls(&[(7, 10, 11, "cudaGraphKernelNodeSetParams"), (7, 20, 21, "cudaGraphAddKernelNode")]).updated,
            None
        );
        let changed =
            ["cudaGraphExecUpdate_v10020", "cuGraphExecKernelNodeSetParams_v2", "cudaGraphExecMemcpyNodeSetParams"];
        for name in changed {
            assert_eq!(calls(&[(7, 40, 41, name), (8, 30, 31, name)]).updated, Some(FileNs(30)), "{name}");
        }
        let made = calls(&[(7, 10, 15, "cudaGraphInstantiateWithFlags_v11040"), (7, 20, 21, "cudaGraphLaunch_v10000")]);
        assert_eq!((made.instantiated, made.launched), (vec![Span::of(10, 15)], [(20, (FileNs(20), 7))].into()));
    }
}
