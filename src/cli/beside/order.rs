//! Which capture each graph was made from (pure).
//!
//! ```text
//! ours     [capture: launch 0, launch 1, launch 2]                hand-overs of launch 1:  x         x
//!                       |  the n-th launch is the n-th node
//! theirs   [graph 5: node 3, node 8, node 9]    replays:  [.. 3 .... 8 .. 9 ..]  [.. 3 .... 8 .. 9 ..]
//! ```
//!
//! Nothing in either file links the two. One thing is assumed: the numbers of a graph's nodes rise
//! in the order in which they were captured. Everything else has to agree: the number of nodes; the
//! function and datatype in each kernel's name; the order in which the kernels of one communicator
//! run; that a capture ends before its graph is made and launched; and, where NCCL hands over a
//! plan at each replay, that each kernel has a hand-over of its own before it. If a graph agrees
//! with several captures, nothing is concluded.

use std::sync::Arc;

use crate::import::{Span, kernel_name};
use crate::model::time::FileNs;
use crate::model::timeline::Unmatched;

/// A launch that was captured.
#[derive(Clone, Debug, Default)]
pub(super) struct Captured {
    /// Its index in the caller's list.
    pub(super) launch: usize,
    /// The communicator, as any value that tells it from others.
    pub(super) communicator: Option<usize>,
    /// What the calls of its group asked of this communicator. The launch carries some of it.
    pub(super) asked: Vec<Asked>,
    /// When NCCL handed over its plan at replays, in order of time. Empty where NCCL reports no
    /// replays.
    pub(super) runs: Vec<FileNs>,
}

/// What a call asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) function: String,
    pub(super) datatype: Option<String>,
}

/// A capture, or what looks like one.
#[derive(Clone, Debug, Default)]
pub(super) struct Capture {
    pub(super) launches: Vec<Captured>,
    /// From its first launch until the capture ended.
    pub(super) span: Span,
    /// It may have been several captures, each with a part of the launches.
    pub(super) may_be_several: bool,
    /// It was certainly several captures, so no graph has all of the launches.
    pub(super) is_several: bool,
    /// The device on which all of its kernels ran, where captures of several devices overlapped.
    pub(super) device: Option<u32>,
    /// The other tool was already recording, so it has all replays.
    pub(super) was_seen: bool,
}

/// The NCCL part of an executable graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// In the order of their numbers.
    pub(super) nodes: Vec<Node>,
    /// When each of its launches was called, in order of time.
    pub(super) replays: Vec<FileNs>,
    /// It may have been updated before one of the replays.
    pub(super) was_updated: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The different names of its kernels: one, unless the node was changed.
    pub(super) names: Vec<Arc<str>>,
    pub(super) device: u32,
    /// Its kernel in each replay, where the file has it.
    pub(super) kernels: Vec<Option<Span>>,
}

/// The other tool's calls that make graphs.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// Captures, including those without NCCL.
    pub(super) captures: usize,
    /// Instantiations.
    pub(super) instantiated: Vec<Span>,
}

/// The capture of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its index in the list.
    pub(super) capture: usize,
    /// The number of each replay among all replays of this capture, from 0. `None` where that is
    /// not known and makes no difference.
    pub(super) numbers: Option<Vec<u64>>,
}

/// Whether a graph may have been made from a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fit {
    No,
    /// Yes, with the numbers of its replays, as in [`Found`].
    Yes(Option<Vec<u64>>),
    /// Yes, but the numbers of its replays are ambiguous.
    Vaguely,
    /// Perhaps, from a part of the capture.
    Perhaps,
}

/// The capture of each graph, or why none is concluded. The clocks of the two files may differ by
/// up to `error` ns.
pub(super) fn conclude(
    captures: &[Capture],
    graphs: &[Graph],
    made: &Made,
    error: i64,
) -> Vec<Result<Found, Unmatched>> {
    let fits: Vec<Vec<Fit>> = (graphs.iter())
        .map(|graph| captures.iter().map(|capture| fit(capture, graph, made, error)).collect())
        .collect();
    let fitting = |fits: &Vec<Fit>| (0..fits.len()).filter(|&at| fits[at] != Fit::No).collect::<Vec<usize>>();
    let all: Vec<Vec<usize>> = fits.iter().map(fitting).collect();
    // If no more graphs were instantiated than captured, no capture was instantiated twice.
    let has_one_each = !made.instantiated.is_empty() && made.instantiated.len() <= made.captures;
    let can_be_taken = |capture: usize| !captures[capture].may_be_several && !captures[capture].is_several;
    let open = if has_one_each { without_taken(&all, &can_be_taken).unwrap_or(all) } else { all };
    (graphs.iter().zip(&fits).zip(&open))
        .map(|((graph, fits), own)| match own[..] {
            _ if graph.is_changed() => Err(Unmatched::GraphChanged),
            _ if captures.is_empty() => Err(Unmatched::UnknownNode),
            [] => Err(Unmatched::NoCapture),
            [capture] if open.iter().filter(|other| other[..] == [capture]).count() == 1 => match &fits[capture] {
                Fit::Yes(numbers) => Ok(Found { capture, numbers: numbers.clone() }),
                Fit::Vaguely => Err(Unmatched::SeveralReplays),
                Fit::Perhaps | Fit::No => Err(Unmatched::SeveralCaptures),
            },
            _ => Err(Unmatched::SeveralCaptures),
        })
        .collect()
}

/// The captures left for each graph once a capture that is the only candidate of one graph is taken
/// from all others. `None` if that leaves a graph that had candidates with none: then one capture
/// was instantiated several times.
fn without_taken(all: &[Vec<usize>], can_be_taken: &dyn Fn(usize) -> bool) -> Option<Vec<Vec<usize>>> {
    let mut open = all.to_vec();
    loop {
        let only =
            |own: &Vec<usize>| if let [one] = own[..] { Some(one).filter(|one| can_be_taken(*one)) } else { None };
        let taken: Vec<usize> = open.iter().filter_map(only).collect();
        let mut has_changed = false;
        for own in open.iter_mut().filter(|own| own.len() > 1) {
            let before = own.len();
            own.retain(|capture| !taken.contains(capture));
            has_changed |= own.len() < before;
            if own.is_empty() {
                return None;
            }
        }
        if !has_changed {
            return Some(open);
        }
    }
}

impl Graph {
    fn is_changed(&self) -> bool {
        self.was_updated || self.nodes.iter().any(|node| node.names.len() > 1)
    }
}

fn fit(capture: &Capture, graph: &Graph, made: &Made, error: i64) -> Fit {
    let Some(&first) = graph.replays.first() else { return Fit::No };
    let pairs = || graph.nodes.iter().zip(&capture.launches);
    let is_made_between =
        |call: &Span| capture.span.end <= call.start.saturating_add(error) && call.end <= first.saturating_add(error);
    let agrees = graph.nodes.len() == capture.launches.len()
        && !capture.is_several
        && !graph.is_changed()
        && capture.span.end <= first.saturating_add(error)
        && (!capture.was_seen || made.instantiated.is_empty() || made.instantiated.iter().any(is_made_between))
        && pairs().all(|(node, launch)| {
            capture.device.is_none_or(|device| device == node.device)
                && node.names.iter().all(|name| may_carry(name, &launch.asked))
        })
        && runs_in_order(capture, graph);
    if agrees {
        return numbers(capture, graph, error);
    }
    let has_one_for = |node: &Node| {
        let may_be = |launch: &Captured| node.names.iter().all(|name| may_carry(name, &launch.asked));
        capture.launches.iter().any(may_be)
    };
    let is_part = (capture.may_be_several || capture.is_several)
        && graph.nodes.len() < capture.launches.len()
        && capture.span.start <= first.saturating_add(error)
        && graph.nodes.iter().all(has_one_for);
    if is_part { Fit::Perhaps } else { Fit::No }
}

/// Whether the kernels of each communicator began in the order of their nodes in every replay. NCCL
/// makes each wait for the one before.
fn runs_in_order(capture: &Capture, graph: &Graph) -> bool {
    let starts = |node: &Node, replay: usize| node.kernels.get(replay).copied().flatten().map(|span| span.start);
    (0..graph.replays.len()).all(|replay| {
        let mut last: Vec<(Option<usize>, FileNs)> = Vec::new();
        graph.nodes.iter().zip(&capture.launches).all(|(node, launch)| {
            let Some(start) = starts(node, replay) else { return true };
            match last.iter_mut().find(|(communicator, _)| *communicator == launch.communicator) {
                Some((_, before)) => std::mem::replace(before, start) <= start,
                None => {
                    last.push((launch.communicator, start));
                    true
                }
            }
        })
    })
}

/// The numbers of a graph's replays, from what NCCL handed over at each. A kernel waits for the
/// hand-over of its plan; the next hand-over comes when the graph is launched again, after the
/// kernel has ended.
fn numbers(capture: &Capture, graph: &Graph, error: i64) -> Fit {
    let replays = graph.replays.len();
    let mut ranges = vec![(0_i64, i64::MAX); replays];
    for (node, launch) in graph.nodes.iter().zip(&capture.launches).filter(|(_, launch)| !launch.runs.is_empty()) {
        for (range, kernel) in ranges.iter_mut().zip(&node.kernels) {
            let Some(kernel) = kernel else { continue };
            let before = |time: FileNs| launch.runs.partition_point(|run| *run <= time) as i64;
            let (least, most) =
                (before(kernel.start.saturating_sub(error)), before(kernel.start.saturating_add(error)));
            *range = (range.0.max(least - 1), range.1.min(most - 1));
        }
    }
    if ranges.iter().any(|(least, most)| least > most) {
        return Fit::No;
    }
    let told = |numbers: Vec<i64>| Fit::Yes(Some(numbers.into_iter().map(|number| number as u64).collect()));
    if capture.launches.iter().all(|launch| launch.runs.is_empty()) {
        return if capture.was_seen { told((0..replays as i64).collect()) } else { Fit::Yes(None) };
    }
    // Usually the replays are consecutive.
    let firsts = ranges.iter().zip(0..).map(|((least, most), at)| (least - at, most.saturating_sub(at)));
    let (least, most) = firsts.fold((0, i64::MAX), |all, one| (all.0.max(one.0), all.1.min(one.1)));
    if least <= most {
        let is_certain = least == most || least == 0 && capture.was_seen;
        return if is_certain { told((least..least + replays as i64).collect()) } else { Fit::Vaguely };
    }
    // Otherwise the other file lacks some replays, or some of our hand-overs belong to another
    // graph.
    let mut next = 0;
    let early: Vec<i64> = (ranges.iter())
        .map(|(least, _)| {
            next = next.max(*least) + 1;
            next - 1
        })
        .collect();
    if early.iter().zip(&ranges).any(|(number, (_, most))| number > most) {
        return Fit::No;
    }
    let mut before = i64::MAX;
    let mut late: Vec<i64> = (ranges.iter().rev())
        .map(|(_, most)| {
            before = (*most).min(before.saturating_sub(1));
            before
        })
        .collect();
    late.reverse();
    if early == late { told(early) } else { Fit::Vaguely }
}

/// Whether a kernel of this name may carry any of what was asked for. NCCL launches a kernel made
/// for one operation of its plan, or a generic one. The algorithm and protocol in its name are not
/// always those that run.
fn may_carry(name: &str, asked: &[Asked]) -> bool {
    const TYPES: [(&str, &str); 12] = [
        ("i8", "int8"),
        ("u8", "int8"),
        ("i32", "int32"),
        ("u32", "int32"),
        ("i64", "int64"),
        ("u64", "int64"),
        ("f16", "float16"),
        ("f32", "float32"),
        ("f64", "float64"),
        ("bf16", "bfloat16"),
        ("f8e4m3", "float8e4m3"),
        ("f8e5m2", "float8e5m2"),
    ];
    let base = kernel_name::base(name);
    let mut words = base.split('_').skip(1);
    let Some(function) = words.next() else { return false };
    let datatype = words.find_map(|word| TYPES.iter().find(|(short, _)| *short == word)).map(|(_, datatype)| *datatype);
    asked.iter().any(|asked| {
        let is_same = match function {
            "Generic" => true,
            "SendRecv" => matches!(&*asked.function, "Send" | "Recv" | "SendRecv" | "AlltoAll" | "Gather" | "Scatter"),
            "AllGatherV" => matches!(&*asked.function, "Broadcast" | "AllGatherV"),
            _ => asked.function == function,
        };
        // NCCL uses the unsigned integer kernels for signed integers, too. Our trace may have a
        // datatype that is not known here.
        let own =
            asked.datatype.as_deref().map(|own| own.trim_start_matches("nccl").to_ascii_lowercase().replace('_', ""));
        let own = own.map(|own| own.strip_prefix('u').map_or(own.clone(), str::to_owned));
        let own = own.filter(|own| TYPES.iter().any(|(_, known)| known == own));
        is_same && datatype.zip(own).is_none_or(|(datatype, own)| datatype == own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: &str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
    const GATHER: &str = "_Z30ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE";
    const SEND: &str = "ncclDevKernel_SendRecv";

    fn asked(function: &str, datatype: &str) -> Asked {
        Asked { function: function.into(), datatype: Some(datatype.into()) }
    }

    fn launch(function: &str) -> Captured {
        Captured { asked: vec![asked(function, "ncclFloat32")], ..Captured::default() }
    }

    fn times(list: &[i64]) -> Vec<FileNs> {
        list.iter().copied().map(FileNs).collect()
    }

    /// A capture with these launches that ended at `end`.
    fn capture(functions: &[&str], end: i64) -> Capture {
        let launches = functions.iter().map(|function| launch(function)).collect();
        Capture { launches, span: Span::of(end - 50, end), was_seen: true, ..Capture::default() }
    }

    /// A graph with these kernels, launched at these times. Each kernel takes 2 and begins 10 after
    /// the one before.
    fn graph(names: &[&str], replays: &[i64]) -> Graph {
        let kernel = |at: usize, replay: &i64| {
            let start = replay + 10 * (at as i64 + 1);
            Some(Span::of(start, start + 2))
        };
        let node = |(at, name): (usize, &&str)| Node {
            names: vec![(*name).into()],
            device: 0,
            kernels: replays.iter().map(|replay| kernel(at, replay)).collect(),
        };
        Graph { nodes: names.iter().enumerate().map(node).collect(), replays: times(replays), was_updated: false }
    }

    fn made(captures: usize, instantiated: &[i64]) -> Made {
        let instantiated = instantiated.iter().map(|&start| Span::of(start, start + 1)).collect();
        Made { captures, instantiated }
    }

    fn concluded(captures: &[Capture], graphs: &[Graph], made: &Made) -> Vec<Result<usize, Unmatched>> {
        conclude(captures, graphs, made, 0).into_iter().map(|found| found.map(|found| found.capture)).collect()
    }

    #[test]
    fn a_graph_matches_the_capture_with_its_launches() {
        let captures = [capture(&["AllReduce", "AllGather"], 100), capture(&["AllGather", "AllReduce"], 200)];
        let graphs = [graph(&[GATHER, F32], &[300, 400]), graph(&[F32, GATHER], &[350])];
        assert_eq!(concluded(&captures, &graphs, &Made::default()), [Ok(1), Ok(0)]);
        let found = conclude(&captures, &graphs, &Made::default(), 0);
        assert_eq!(found[0], Ok(Found { capture: 1, numbers: Some(vec![0, 1]) }));
        // One node more, one fewer, another function, another datatype, and no match at all.
        for names in
            [&[F32, GATHER, F32][..], &[F32], &[F32, F32], &[&*F32.replace("f32", "f16"), GATHER], &[SEND, SEND]]
        {
            assert_eq!(concluded(&captures, &[graph(names, &[300])], &Made::default()), [Err(Unmatched::NoCapture)]);
        }
        assert_eq!(concluded(&[], &graphs[1..], &Made::default()), [Err(Unmatched::UnknownNode)]);
    }

    #[test]
    fn a_graph_cannot_come_from_a_later_capture() {
        let two = [capture(&["AllReduce"], 100), capture(&["AllReduce"], 200)];
        let early = graph(&[F32], &[150, 300]);
        let late = graph(&[F32], &[250, 350]);
        let several = Err(Unmatched::SeveralCaptures);
        assert_eq!(concluded(&two, std::slice::from_ref(&early), &Made::default()), [Ok(0)]);
        assert_eq!(concluded(&two, std::slice::from_ref(&late), &Made::default()), [several]);
        // The second graph was made from the second capture only if no capture was instantiated
        // twice.
        let both = [early, late];
        assert_eq!(concluded(&two, &both, &Made::default()), [Ok(0), several]);
        assert_eq!(concluded(&two, &both, &made(2, &[110, 210])), [Ok(0), Ok(1)]);
        assert_eq!(concluded(&two, &both, &made(2, &[110, 120, 210])), [Ok(0), several]);
        // The second capture was not instantiated before this graph ran.
        assert_eq!(concluded(&two, &both[1..], &made(2, &[110, 400])), [Ok(0)]);
        // Two graphs that could only be of the first capture.
        let graphs = [graph(&[F32], &[150]), graph(&[F32], &[160])];
        assert_eq!(concluded(&two, &graphs, &made(2, &[110, 210])), [several, several]);
    }

    #[test]
    fn changed_graphs_and_kernels_out_of_order_are_not_matched() {
        let captures = [capture(&["AllReduce", "AllReduce"], 100)];
        let whole = graph(&[F32, F32], &[200, 300]);
        assert_eq!(concluded(&captures, std::slice::from_ref(&whole), &Made::default()), [Ok(0)]);
        let updated = Graph { was_updated: true, ..whole.clone() };
        assert_eq!(concluded(&captures, &[updated], &Made::default()), [Err(Unmatched::GraphChanged)]);
        let mut renamed = whole.clone();
        renamed.nodes[1].names.push(GATHER.into());
        assert_eq!(concluded(&captures, &[renamed], &Made::default()), [Err(Unmatched::GraphChanged)]);
        let mut swapped = whole.clone();
        swapped.nodes.swap(0, 1);
        assert_eq!(concluded(&captures, &[swapped.clone()], &Made::default()), [Err(Unmatched::NoCapture)]);
        // Kernels of two communicators may run in any order.
        let mut others = captures[0].clone();
        others.launches[1].communicator = Some(1);
        assert_eq!(concluded(&[others], &[swapped], &Made::default()), [Ok(0)]);
        // A record missing from one replay does not contradict the rest.
        let mut missing = whole;
        missing.nodes[0].kernels[1] = None;
        assert_eq!(concluded(&captures, &[missing], &Made::default()), [Ok(0)]);
    }

    #[test]
    fn an_ambiguous_capture_matches_only_a_graph_with_all_of_it() {
        let mut run = capture(&["AllReduce", "AllReduce"], 100);
        run.may_be_several = true;
        let one = capture(&["AllReduce"], 150);
        let several = [Err(Unmatched::SeveralCaptures)];
        assert_eq!(concluded(&[run.clone()], &[graph(&[F32, F32], &[200])], &Made::default()), [Ok(0)]);
        assert_eq!(concluded(&[run.clone(), one.clone()], &[graph(&[F32], &[200])], &Made::default()), several);
        assert_eq!(
            concluded(&[run.clone(), one], &[graph(&[GATHER], &[200])], &Made::default()),
            [Err(Unmatched::NoCapture)]
        );
        run.is_several = true;
        assert_eq!(concluded(&[run], &[graph(&[F32, F32], &[200])], &Made::default()), [Err(Unmatched::NoCapture)]);
    }

    /// Replays whose kernels begin at 10, 110 and 210.
    fn numbered(runs: &[i64], was_seen: bool, error: i64) -> Result<Option<Vec<u64>>, Unmatched> {
        let mut capture = capture(&["AllReduce"], -50);
        capture.launches[0].runs = times(runs);
        capture.was_seen = was_seen;
        let graph = graph(&[F32], &[0, 100, 200]);
        conclude(&[capture], &[graph], &Made::default(), error).remove(0).map(|found| found.numbers)
    }

    #[test]
    fn replays_are_numbered_by_the_hand_overs_before_their_kernels() {
        assert_eq!(numbered(&[], true, 0), Ok(Some(vec![0, 1, 2])));
        assert_eq!(numbered(&[], false, 0), Ok(None));
        assert_eq!(numbered(&[5, 105, 205], true, 0), Ok(Some(vec![0, 1, 2])));
        // The other file begins with the third replay.
        assert_eq!(numbered(&[-200, -100, 5, 105, 205], false, 0), Ok(Some(vec![2, 3, 4])));
        // The other file lacks a replay in between.
        assert_eq!(numbered(&[5, 105, 150, 205], false, 0), Ok(Some(vec![0, 1, 3])));
        // A kernel without a hand-over of its own belongs to another capture.
        assert_eq!(numbered(&[105, 205], false, 0), Err(Unmatched::NoCapture));
        assert_eq!(numbered(&[5, 205], false, 0), Err(Unmatched::NoCapture));
        // Clocks that are off by a whole replay prove nothing, unless all replays were seen.
        assert_eq!(numbered(&[-100, 5, 105, 205, 305], false, 120), Err(Unmatched::SeveralReplays));
        assert_eq!(numbered(&[5, 105, 205], true, 120), Ok(Some(vec![0, 1, 2])));
    }

    #[test]
    fn the_name_of_a_kernel_says_what_it_may_carry() {
        let one = |function, datatype| [asked(function, datatype)];
        assert!(may_carry(F32, &one("AllReduce", "ncclFloat32")));
        assert!(!may_carry(F32, &one("AllReduce", "ncclFloat64")));
        assert!(!may_carry(F32, &one("ReduceScatter", "ncclFloat32")));
        assert!(!may_carry(F32, &[]));
        // A group's kernel is made for one of its operations.
        assert!(may_carry(F32, &[asked("AllGather", "ncclInt8"), asked("AllReduce", "ncclFloat32")]));
        // The kernel for unsigned integers also runs signed ones. An unknown datatype excludes
        // nothing.
        assert!(may_carry("ncclDevKernel_AllReduce_Sum_u32_RING_LL", &one("AllReduce", "ncclInt32")));
        assert!(may_carry(F32, &one("AllReduce", "Unknown")));
        assert!(may_carry(GATHER, &one("AllGather", "ncclBfloat16")));
        assert!(may_carry(SEND, &one("Recv", "ncclFloat32")) && !may_carry(SEND, &one("AllReduce", "ncclFloat32")));
        assert!(may_carry("ncclDevKernel_Generic(int)", &one("Reduce", "ncclInt8")));
        assert!(!may_carry("ncclDevKernel", &one("Reduce", "ncclInt8")) && !may_carry("", &one("Reduce", "ncclInt8")));
    }
}
