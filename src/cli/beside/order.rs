//! Which capture a graph was made of (pure).
//!
//! ```text
//! ours     [capture: launch 0, launch 1, launch 2]                hand-overs of launch 1:  x         x
//!                       |  the n-th launch is the n-th node
//! theirs   [graph 5: node 3, node 8, node 9]    replays:  [.. 3 .... 8 .. 9 ..]  [.. 3 .... 8 .. 9 ..]
//! ```
//!
//! Nothing in either file links the two. What is taken for granted: the numbers of a graph's nodes rise in the order in which they were
//! captured. All else has to agree: how many there are, the function and datatype in each kernel's name, the order in which kernels of one
//! communicator run, that a capture ends before its graph is made and launched, and, where NCCL hands over a plan at each replay, that
//! each kernel has a hand-over of its own before it. What agrees with several is not concluded.

use std::sync::Arc;

use crate::import::{Span, kernel_name};
use crate::model::timeline::Unmatched;

/// A launch that was captured.
#[derive(Clone, Debug, Default)]
pub(super) struct Captured {
    /// Which, by its place in the caller's list.
    pub(super) launch: usize,
    /// The communicator, by whatever tells it from others.
    pub(super) communicator: Option<usize>,
    /// What the calls of its group asked of this communicator. It carries some of that.
    pub(super) asked: Vec<Asked>,
    /// When NCCL handed over its plan at replays, in the order of time. Empty where it says nothing of replays.
    pub(super) runs: Vec<i64>,
}

/// What a call asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) function: String,
    pub(super) datatype: Option<String>,
}

/// A capture, or what seems to be one.
#[derive(Clone, Debug, Default)]
pub(super) struct Capture {
    pub(super) launches: Vec<Captured>,
    /// When it had ended.
    pub(super) end: i64,
    /// The device on which all of its kernels ran, where captures of several lay over each other.
    pub(super) device: Option<u32>,
    /// The other tool was recording by then, and so has all replays.
    pub(super) was_seen: bool,
}

/// An executable graph: what of it is NCCL's.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    /// In the order of their numbers.
    pub(super) nodes: Vec<Node>,
    /// When each of its launches was called for, in the order of time.
    pub(super) replays: Vec<i64>,
    /// It may have been updated before one of these.
    pub(super) was_updated: bool,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The different names of its kernels: one, unless it was changed.
    pub(super) names: Vec<Arc<str>>,
    pub(super) device: u32,
    /// Its kernel of each replay, where the file has it.
    pub(super) kernels: Vec<Option<Span>>,
}

/// What the other tool's file has of calls that make graphs.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// Captures, those without NCCL included.
    pub(super) captures: usize,
    /// Instantiations.
    pub(super) instantiated: Vec<Span>,
}

/// The capture of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// By its place in the list.
    pub(super) capture: usize,
    /// The number of each replay among all of this capture, from 0; `None` where that is not known and changes nothing.
    pub(super) numbers: Option<Vec<u64>>,
}

/// Whether a graph may have been made of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fit {
    No,
    /// And the numbers of its replays, as in [`Found`].
    Yes(Option<Vec<u64>>),
    /// And its replays may be one or another.
    Vaguely,
}

/// The capture of each graph, or why none is concluded. Clocks may be off by `error` ns between the two files.
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
    // Where no more graphs were made than captured, none is there twice.
    let has_one_each = !made.instantiated.is_empty() && made.instantiated.len() <= made.captures;
    let open = if has_one_each { without_taken(&all).unwrap_or(all) } else { all };
    (graphs.iter().zip(&fits).zip(&open))
        .map(|((graph, fits), own)| match own[..] {
            _ if graph.is_changed() => Err(Unmatched::GraphChanged),
            _ if captures.is_empty() => Err(Unmatched::UnknownNode),
            [] => Err(Unmatched::NoCapture),
            [capture] if open.iter().filter(|other| other[..] == [capture]).count() == 1 => match &fits[capture] {
                Fit::Yes(numbers) => Ok(Found { capture, numbers: numbers.clone() }),
                _ => Err(Unmatched::SeveralReplays),
            },
            _ => Err(Unmatched::SeveralCaptures),
        })
        .collect()
}

/// What is left for each graph when a capture that is all that one graph may have been made of is no other's. `None` where that leaves
/// nothing for some graph that had something: then a capture was made into several.
fn without_taken(all: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    let mut open = all.to_vec();
    loop {
        let taken: Vec<usize> =
            open.iter().filter_map(|own| if let [one] = own[..] { Some(one) } else { None }).collect();
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
        |call: &Span| capture.end <= call.start.saturating_add(error) && call.end <= first.saturating_add(error);
    let agrees = graph.nodes.len() == capture.launches.len()
        && !graph.is_changed()
        && capture.end <= first.saturating_add(error)
        && (!capture.was_seen || made.instantiated.is_empty() || made.instantiated.iter().any(is_made_between))
        && pairs().all(|(node, launch)| {
            capture.device.is_none_or(|device| device == node.device)
                && node.names.iter().all(|name| may_carry(name, &launch.asked))
        })
        && runs_in_order(capture, graph);
    if agrees { numbers(capture, graph, error) } else { Fit::No }
}

/// Whether kernels of one communicator began in the order of their nodes, in every replay: NCCL has each wait for the one before.
fn runs_in_order(capture: &Capture, graph: &Graph) -> bool {
    let starts = |node: &Node, replay: usize| node.kernels.get(replay).copied().flatten().map(|span| span.start);
    (0..graph.replays.len()).all(|replay| {
        let mut last: Vec<(Option<usize>, i64)> = Vec::new();
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

/// The numbers of a graph's replays, by what NCCL handed over at each: a kernel waits for the hand-over of its plan, and the next one comes
/// when the graph is launched again, which is after it has ended.
fn numbers(capture: &Capture, graph: &Graph, error: i64) -> Fit {
    let replays = graph.replays.len();
    let mut ranges = vec![(0_i64, i64::MAX); replays];
    for (node, launch) in graph.nodes.iter().zip(&capture.launches).filter(|(_, launch)| !launch.runs.is_empty()) {
        for (range, kernel) in ranges.iter_mut().zip(&node.kernels) {
            let Some(kernel) = kernel else { continue };
            let before = |time: i64| launch.runs.partition_point(|run| *run <= time) as i64;
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
    // As a rule they come one after the other.
    let firsts = ranges.iter().zip(0..).map(|((least, most), at)| (least - at, most.saturating_sub(at)));
    let (least, most) = firsts.fold((0, i64::MAX), |all, one| (all.0.max(one.0), all.1.min(one.1)));
    if least <= most {
        let is_certain = least == most || least == 0 && capture.was_seen;
        return if is_certain { told((least..least + replays as i64).collect()) } else { Fit::Vaguely };
    }
    // Their file lacks some, or what of ours would be theirs.
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

/// Whether a kernel of this name may carry something of what was asked for. NCCL launches one that is made for one operation of its plan, or
/// for any; the algorithm and protocol in its name are not always those that run.
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
        // Of integers the kernel for those without sign is taken for both; ours may have a word that is not known here.
        let own =
            asked.datatype.as_deref().map(|own| own.trim_start_matches("nccl").to_ascii_lowercase().replace('_', ""));
        let own = own.map(|own| own.strip_prefix('u').map_or(own.clone(), str::to_owned));
        let own = own.filter(|own| TYPES.iter().any(|(_, known)| known == own));
        is_same && datatype.zip(own).is_none_or(|(datatype, own)| datatype == own)
    })
}
