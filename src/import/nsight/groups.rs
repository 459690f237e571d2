//! What NCCL's own ranges say: which operations each group asked for, and which kernels carried
//! them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::payloads::{Payload, Payloads};
use crate::import::{Carried, How, Operation, Profile, Range, Request, Span, kernel_name};

/// What NCCL's own ranges say: the operations requested in each group, and where the group
/// launched.
pub(super) struct Groups {
    /// By process and thread, in order of time.
    groups: Vec<Group>,
}

struct Group {
    process: usize,
    tid: i64,
    /// Where its kernels are launched: the `ncclGroupEnd`, or the single call.
    launches: Span,
    operations: Vec<Asked>,
}

/// An operation that was requested.
#[derive(Clone, Copy)]
struct Asked {
    call: Span,
    function: &'static str,
    payload: Payload,
}

/// NCCL's ranges that are operations, and the function they request.
const OPERATIONS: [(&str, &str); 12] = [
    ("ncclAllGather", "AllGather"),
    ("ncclAllReduce", "AllReduce"),
    ("ncclAlltoAll", "AlltoAll"),
    ("ncclBroadcast", "Broadcast"),
    ("ncclBcast", "Broadcast"),
    ("ncclGather", "Gather"),
    ("ncclRecv", "Recv"),
    ("ncclReduce", "Reduce"),
    ("ncclReduceScatter", "ReduceScatter"),
    ("ncclScatter", "Scatter"),
    ("ncclSend", "Send"),
    ("ncclPutSignal", "PutSignal"),
];

impl Groups {
    pub(super) fn of(profile: &Profile, payloads: &Payloads) -> Groups {
        let mut threads: BTreeMap<(usize, i64), Vec<&Range>> = BTreeMap::new();
        for range in profile.ranges.iter().filter(|range| range.name.starts_with("nccl")) {
            if let Some(tid) = range.tid {
                threads.entry((range.process, tid)).or_default().push(range);
            }
        }
        let mut groups = Vec::new();
        for ((process, tid), ranges) in threads {
            let mut depth = 0_u32;
            let mut asked: Vec<Asked> = Vec::new();
            for range in ranges {
                let operation = OPERATIONS.iter().find(|(name, _)| **name == *range.name).map(|(_, function)| Asked {
                    call: range.span,
                    function,
                    payload: payloads.of(process, tid, range.span, &range.name),
                });
                match (&*range.name, operation) {
                    ("ncclGroupStart", _) => depth += 1,
                    ("ncclGroupEnd", _) => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 && !asked.is_empty() {
                            let operations = std::mem::take(&mut asked);
                            groups.push(Group { process, tid, launches: range.span, operations });
                        }
                    }
                    // A call within a call belongs to the outer one: the all-to-all of newer
                    // releases makes sends.
                    (_, Some(_)) if asked.last().is_some_and(|last| last.call.contains(range.span)) => {}
                    (_, Some(operation)) if depth > 0 => asked.push(operation),
                    (_, Some(operation)) => {
                        let operations = vec![operation];
                        groups.push(Group { process, tid, launches: range.span, operations });
                    }
                    _ => {}
                }
            }
            // The file may end inside a group: its operations are kept, without a launch.
            if !asked.is_empty() {
                groups.push(Group { process, tid, launches: Span::default(), operations: asked });
            }
        }
        Groups { groups }
    }

    /// Gives each of NCCL's kernels the operations of the group in whose range it was launched.
    pub(super) fn attach(&self, profile: &mut Profile, communicators: &HashMap<(usize, u64), usize>) {
        let mut calls: HashMap<(usize, u32), usize> = HashMap::new();
        for (at, call) in profile.cuda_calls.iter().enumerate().filter(|(_, call)| call.correlation != 0) {
            calls.insert((call.process, call.correlation), at);
        }
        let mut threads: HashMap<(usize, i64), Vec<usize>> = HashMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            threads.entry((group.process, group.tid)).or_default().push(at);
        }
        let mut kernels_of: Vec<Vec<usize>> = vec![Vec::new(); self.groups.len()];
        let mut without_launch: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, kernel) in profile.kernels.iter().enumerate().filter(|(_, kernel)| kernel.is_nccl()) {
            let Some(call) = calls.get(&(kernel.process, kernel.correlation)).map(|at| &profile.cuda_calls[*at]) else {
                without_launch.entry(kernel.process).or_default().push(at);
                continue;
            };
            let groups = threads.get(&(call.process, call.tid)).map_or(&[][..], Vec::as_slice);
            let next = groups.partition_point(|group| self.groups[*group].launches.start <= call.span.start);
            let group =
                groups[..next].iter().rev().take(2).find(|group| self.groups[**group].launches.contains(call.span));
            if let Some(group) = group {
                kernels_of[*group].push(at);
            }
        }
        let firsts = self.add_operations(profile, communicators);
        for (at, group) in self.groups.iter().enumerate() {
            let all: Vec<usize> = (firsts[at]..firsts[at] + group.operations.len()).collect();
            for &kernel in &kernels_of[at] {
                let operations = share(profile, &all, kernel, &kernels_of[at]);
                if !operations.is_empty() {
                    profile.kernels[kernel].carried =
                        Carried { count: operations.len() as u32, operations, how: How::Launched, replay: None };
                }
            }
        }
        for (process, kernels) in without_launch {
            self.conclude(profile, process, &kernels);
        }
    }

    /// Adds the operations to the profile. Returns the index of each group's first operation.
    fn add_operations(&self, profile: &mut Profile, communicators: &HashMap<(usize, u64), usize>) -> Vec<usize> {
        let mut firsts = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            firsts.push(profile.operations.len());
            for Asked { call, function, payload } in &group.operations {
                let communicator = payload.communicator.and_then(|hash| communicators.get(&(group.process, hash)));
                profile.operations.push(Operation {
                    process: group.process,
                    call: Some(*call),
                    tid: Some(group.tid),
                    communicator: communicator.copied(),
                    request: Arc::new(Request {
                        function: (*function).to_owned(),
                        bytes: payload.bytes,
                        peer: payload.peer,
                        root: payload.root,
                        reduction: payload.reduction.map(str::to_owned),
                        ..Request::default()
                    }),
                    ..Operation::default()
                });
            }
        }
        firsts
    }

    /// Handles kernels whose launch is not in the file: if all groups of their process in the file
    /// request the same operations, these kernels carry as many.
    fn conclude(&self, profile: &mut Profile, process: usize, kernels: &[usize]) {
        let functions = |group: &Group| {
            let mut functions: Vec<_> = group.operations.iter().map(|asked| asked.function).collect();
            functions.sort_unstable();
            functions
        };
        let mut kinds: Vec<_> = self.groups.iter().filter(|group| group.process == process).map(functions).collect();
        kinds.dedup();
        let [kind] = &kinds[..] else { return };
        for &kernel in kernels {
            let fits = kernel_name::function(&profile.kernels[kernel].name)
                .is_some_and(|it| kind.iter().all(|asked| kernel_name::carries(&it, asked)));
            if fits {
                profile.kernels[kernel].carried =
                    Carried { count: kind.len() as u32, operations: Vec::new(), how: How::Concluded, replay: None };
            }
        }
    }
}

/// The operations of a group that one of its kernels carried: those that fit its name and that of
/// no other kernel of the group.
fn share(profile: &Profile, operations: &[usize], kernel: usize, kernels: &[usize]) -> Vec<usize> {
    let fits = |kernel: usize, operation: usize| {
        // The generic kernel may carry anything.
        kernel_name::function(&profile.kernels[kernel].name)
            .is_none_or(|it| kernel_name::carries(&it, &profile.operations[operation].function))
    };
    let only = |operation: usize| kernels.iter().all(|other| fits(*other, operation) == (*other == kernel));
    operations.iter().copied().filter(|operation| only(*operation)).collect()
}
