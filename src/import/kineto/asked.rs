//! What a collective's kernel carried: from the arguments that PyTorch attaches to the kernel, or,
//! in older releases, from the range of the call (`nccl:all_reduce`).

use std::collections::HashMap;

use super::event::{self, Arguments, Id};
use crate::import::{Carried, Communicator, How, Operation, Place, Profile, Request, Span, kernel_name};
use crate::model::word::Word;

/// The prefix of the ranges that PyTorch puts around its calls of NCCL.
const RANGE: &str = "nccl:";

/// What was found about the calls behind kernels.
#[derive(Default)]
pub(super) struct Asked {
    /// What PyTorch attached to kernels, with the kernel's index.
    attached: Vec<(usize, Arguments)>,
    /// Ranges of calls as shown on the GPU: over the kernels that were launched in them.
    on_gpu: HashMap<(Id, i64), Vec<(Span, String)>>,
    /// Process groups, by process and name.
    pub(super) groups: HashMap<(usize, String), usize>,
}

impl Asked {
    /// Keeps the arguments attached to a kernel.
    pub(super) fn attach(&mut self, kernel: usize, args: &Arguments) {
        self.attached.push((kernel, args.clone()));
    }

    /// Keeps a range on a GPU's stream, if it belongs to a call.
    pub(super) fn annotate(&mut self, gpu: &Id, stream: Option<i64>, span: Span, name: &str) {
        if let Some(stream) = stream.filter(|_| name.starts_with(RANGE)) {
            self.on_gpu.entry((gpu.clone(), stream)).or_default().push((span, name.to_owned()));
        }
    }

    /// Gives each kernel the operations that it carried. `gpu` returns the file's id of a kernel's
    /// GPU.
    pub(super) fn give<'g>(&mut self, profile: &mut Profile, gpu: impl Fn(usize) -> Option<&'g Id>) {
        for (kernel, args) in std::mem::take(&mut self.attached) {
            let Some(collective) = &args.collective else { continue };
            let operation = self.operation(profile, kernel, &args, collective);
            carry(profile, kernel, operation, How::Told);
        }
        let calls: HashMap<(usize, u32), usize> = (profile.cuda_calls.iter().enumerate())
            .filter(|(_, call)| call.correlation != 0)
            .map(|(at, call)| ((call.process, call.correlation), at))
            .collect();
        let ranges = Ranges::of(profile);
        // One call may launch several kernels.
        let mut of_range: HashMap<usize, usize> = HashMap::new();
        let mut of_annotation: HashMap<(Id, i64, Span), usize> = HashMap::new();
        for kernel in 0..profile.kernels.len() {
            let it = &profile.kernels[kernel];
            if it.carried.count > 0 || !it.is_collective() {
                continue;
            }
            let call = calls.get(&(it.process, it.correlation)).map(|at| &profile.cuda_calls[*at]);
            let around = call.and_then(|call| ranges.around(profile, call.process, call.tid, call.span));
            let asked = around.and_then(|range| Some((range, function_for(&it.name, &profile.ranges[range].name)?)));
            if let Some((range, function)) = asked {
                let made = *of_range.entry(range).or_insert_with(|| {
                    let (span, tid) = (profile.ranges[range].span, profile.ranges[range].tid);
                    add(profile, kernel, function, Some(span), tid)
                });
                carry(profile, kernel, made, How::Launched);
            } else if let Some((key, function)) =
                gpu(kernel).and_then(|gpu| self.annotation(gpu, it.place, it.span, &it.name))
            {
                let made = *of_annotation.entry(key).or_insert_with(|| add(profile, kernel, function, None, None));
                carry(profile, kernel, made, How::Launched);
            } else if let Some(function) = kernel_name::collective_without_nccl(&it.name) {
                let made = add(profile, kernel, function, None, None);
                carry(profile, kernel, made, How::Named);
            }
        }
    }

    /// The innermost range on the GPU around a kernel, if it may belong to its call.
    fn annotation(&self, gpu: &Id, place: Place, span: Span, name: &str) -> Option<((Id, i64, Span), &'static str)> {
        let stream = i64::from(place.stream);
        let all = self.on_gpu.get(&(gpu.clone(), stream))?;
        let around = all.iter().filter(|(range, _)| range.contains(span)).max_by_key(|(range, _)| range.start)?;
        Some(((gpu.clone(), stream, around.0), function_for(name, &around.1)?))
    }

    fn operation(&mut self, profile: &mut Profile, kernel: usize, args: &Arguments, collective: &str) -> usize {
        let process = profile.kernels[kernel].process;
        let function = function(collective).map_or_else(|| collective.to_owned(), str::to_owned);
        let datatype = args.datatype.as_deref().map(datatype);
        let group_size = args.group_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        // As NCCL counts: the smaller side of what a rank sends and receives, for an all-to-all
        // what it sends to each rank. PyTorch's `all_to_allv` has a count for each, and a scatter's
        // input is that of all ranks.
        let (count, peer) = match function.as_str() {
            "ReduceScatter" | "Scatter" => (args.elements_out.or(args.elements_in), None),
            "AlltoAll" if collective.ends_with('v') => (None, None),
            "AlltoAll" => {
                let each = |(all, size): (u64, u64)| all.is_multiple_of(size).then(|| all / size);
                (args.elements_in.or(args.elements_out).zip(group_size).and_then(each), None)
            }
            "Send" => (args.elements_in.or(args.elements_out), args.target_rank),
            "Recv" => (args.elements_out.or(args.elements_in), args.source_rank),
            _ => (args.elements_in.or(args.elements_out), None),
        };
        // PyTorch names the peer by its rank in the job, NCCL by that in the communicator.
        let members = args.group_ranks.as_deref().map(event::ranks).unwrap_or_default();
        let peer = peer.and_then(|peer| i32::try_from(members.iter().position(|it| *it == peer)?).ok());
        let size = datatype.as_ref().and_then(|(_, size)| *size);
        let request = Request {
            count,
            bytes: count.zip(size).and_then(|(count, size)| count.checked_mul(size)),
            datatype: datatype.map(|(name, _)| name),
            peer,
            function,
            ..Request::default()
        };
        let communicator = self.group(profile, process, args);
        // PyTorch numbers sends and receives by themselves, and each rank its own.
        let seq = args.sequence.filter(|_| !matches!(request.function.as_str(), "Send" | "Recv"));
        let request = request.into();
        profile.operations.push(Operation { process, communicator, request, seq, ..Operation::default() });
        profile.operations.len() - 1
    }

    fn group(&mut self, profile: &mut Profile, process: usize, args: &Arguments) -> Option<usize> {
        let name = args.group_name.as_ref()?;
        if let Some(&known) = self.groups.get(&(process, name.clone())) {
            return Some(known);
        }
        let description = args.group_description.as_deref().filter(|text| !text.is_empty());
        profile.communicators.push(Communicator {
            process,
            name: Some(group_name(name, description.unwrap_or_default())),
            ranks: args.group_size,
            members: args.group_ranks.clone().filter(|ranks| !ranks.is_empty()),
            ..Communicator::default()
        });
        let new = profile.communicators.len() - 1;
        self.groups.insert((process, name.clone()), new);
        Some(new)
    }
}

fn add(profile: &mut Profile, kernel: usize, function: &str, call: Option<Span>, tid: Option<i64>) -> usize {
    let process = profile.kernels[kernel].process;
    let request = Request { function: function.to_owned(), ..Request::default() }.into();
    profile.operations.push(Operation { process, call, tid, request, ..Operation::default() });
    profile.operations.len() - 1
}

fn carry(profile: &mut Profile, kernel: usize, operation: usize, how: How) {
    profile.kernels[kernel].carried = Carried { count: 1, operations: vec![operation], how, replay: None };
}

/// What a kernel launched in the range of a call carried; `None` if the kernel's name says
/// otherwise.
fn function_for(kernel: &str, range: &str) -> Option<&'static str> {
    let asked = function(range)?;
    let fits = match kernel_name::collective_without_nccl(kernel) {
        Some(own) => own == asked,
        // The generic kernel may carry anything.
        None => kernel_name::function(kernel).is_none_or(|it| kernel_name::carries(&it, asked)),
    };
    fits.then_some(asked)
}

/// The ranges around calls of NCCL, by process and thread.
struct Ranges(HashMap<(usize, i64), Vec<usize>>);

impl Ranges {
    fn of(profile: &Profile) -> Ranges {
        let mut threads: HashMap<(usize, i64), Vec<usize>> = HashMap::new();
        for (at, range) in profile.ranges.iter().enumerate().filter(|(_, range)| range.name.starts_with(RANGE)) {
            if let Some(tid) = range.tid {
                threads.entry((range.process, tid)).or_default().push(at);
            }
        }
        threads.values_mut().for_each(|all| all.sort_by_key(|at| profile.ranges[*at].span));
        Ranges(threads)
    }

    /// The innermost range of a thread around a call.
    fn around(&self, profile: &Profile, process: usize, tid: i64, call: Span) -> Option<usize> {
        let all = self.0.get(&(process, tid))?;
        let next = all.partition_point(|at| profile.ranges[*at].span.start <= call.start);
        // Calls of NCCL nest a few levels at most.
        all[..next].iter().rev().take(8).find(|at| profile.ranges[**at].span.contains(call)).copied()
    }
}

pub(super) fn group_name(name: &str, description: &str) -> String {
    match description {
        "" | "undefined" => format!("process group {name}"),
        description => format!("{description} ({name})"),
    }
}

/// A function in NCCL's words, from PyTorch's: `allreduce`, `_allgather_base`, `nccl:all_to_allv`.
fn function(collective: &str) -> Option<&'static str> {
    let plain: String = collective.trim_start_matches(RANGE).chars().filter(|it| *it != '_').collect();
    let plain = plain.to_ascii_lowercase();
    // The longer word first: `reducescatter` begins with `reduce`.
    let known = [
        ("allreduce", "AllReduce"),
        ("allgather", "AllGather"),
        ("alltoall", "AlltoAll"),
        ("reducescatter", "ReduceScatter"),
        ("broadcast", "Broadcast"),
        ("reduce", "Reduce"),
        ("gather", "Gather"),
        ("scatter", "Scatter"),
        ("send", "Send"),
        ("recv", "Recv"),
        // PyTorch's barrier is an all-reduce of one element.
        ("barrier", "AllReduce"),
    ];
    known.iter().find(|(word, _)| plain.starts_with(word)).map(|(_, name)| *name)
}

/// A datatype in NCCL's words and the size of an element in bytes, from PyTorch's: `Float`,
/// `BFloat16`.
fn datatype(name: &str) -> (String, Option<u64>) {
    let word = match name {
        "Char" => Word::INT8,
        "Byte" | "Bool" => Word::UINT8,
        "Int" => Word::INT32,
        "UInt32" => Word::UINT32,
        "Long" => Word::INT64,
        "UInt64" => Word::UINT64,
        "Half" => Word::FLOAT16,
        "Float" => Word::FLOAT32,
        "Double" => Word::FLOAT64,
        "BFloat16" => Word::BFLOAT16,
        "Float8_e4m3fn" => Word::FLOAT8_E4M3,
        "Float8_e5m2" => Word::FLOAT8_E5M2,
        _ => return (name.to_owned(), None),
    };
    (word.spelling().unwrap_or(name).to_owned(), word.element_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_names_the_operation_unless_the_kernel_contradicts_it() {
        let ring = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        for (kernel, range, carried) in [
            (ring, "nccl:all_reduce", Some("AllReduce")),
            (ring, "nccl:all_reduce_barrier", Some("AllReduce")),
            (ring, "nccl:all_gather", None),
            (ring, "nccl:coalesced", None),
            ("ncclDevKernel_SendRecv(int)", "nccl:all_to_all", Some("AlltoAll")),
            ("ncclDevKernel_SendRecv(int)", "nccl:send 0->1", Some("Send")),
            ("ncclDevKernel_SendRecv(int)", "nccl:all_reduce", None),
            ("rcclGenericKernel<1, false>(int)", "nccl:_reduce_scatter_base", Some("ReduceScatter")),
            ("void multimem_all_reduce_kernel<float, 16>(float*)", "nccl:all_reduce", Some("AllReduce")),
            ("void multimem_all_reduce_kernel<float, 16>(float*)", "nccl:broadcast", None),
        ] {
            assert_eq!(function_for(kernel, range), carried, "{kernel} in {range}");
        }
    }
}
