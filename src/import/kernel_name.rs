//! What a kernel's name says. Tools spell the same kernel differently: CUPTI mangled, Kineto
//! demangled, Nsight Systems both.

use crate::trace::names::demangled;

/// A name that is the same for the same kernel, whichever tool wrote it: demangled, without the
/// return type, the parameters, and the casts and suffixes in which demanglers differ.
#[must_use]
pub fn common(name: &str) -> String {
    let mut plain = demangled(name).replace("<unnamed>", "(anonymous namespace)");
    if let Some(rest) = plain.strip_prefix("void ") {
        plain = rest.to_owned();
    }
    plain.truncate(parameters(&plain).unwrap_or(plain.len()));
    let plain = plain.replace("(bool)1", "true").replace("(bool)0", "false");
    literals(&plain).trim().to_owned()
}

/// The identifier alone: `ncclDevKernel_SendRecv`.
#[must_use]
pub fn base(name: &str) -> String {
    let common = common(name);
    let end = common.find(['<', '(']).unwrap_or(common.len());
    common[..end].to_owned()
}

/// The function in the name of one of NCCL's kernels: `AllReduce`, `SendRecv`. `None` for the
/// generic kernels, which may run any.
#[must_use]
pub fn function(name: &str) -> Option<String> {
    let base = base(name);
    let function = base.split('_').nth(1)?;
    (function != "Generic").then(|| function.to_owned())
}

/// Whether an NCCL kernel with this function in its name may carry an operation.
#[must_use]
pub fn carries(kernel: &str, operation: &str) -> bool {
    kernel == operation
        || kernel == "SendRecv" && matches!(operation, "Send" | "Recv" | "AlltoAll" | "Gather" | "Scatter")
}

/// Collectives that frameworks implement as kernels of their own, over memory shared by the GPUs:
/// PyTorch's symmetric memory, and vLLM's.
const WITHOUT_NCCL: [(&str, &str); 9] = [
    ("multimem_all_reduce_kernel", "AllReduce"),
    ("multimem_one_shot_all_reduce_kernel", "AllReduce"),
    ("multimem_one_shot_reduce_kernel", "Reduce"),
    ("multimem_all_gather_kernel", "AllGather"),
    ("one_shot_all_reduce_kernel", "AllReduce"),
    ("two_shot_all_reduce_kernel", "AllReduce"),
    ("two_shot_all_reduce_kernel_inplace", "AllReduce"),
    ("cross_device_reduce_1stage", "AllReduce"),
    ("cross_device_reduce_2stage", "AllReduce"),
];

/// The collective that a kernel performs without NCCL, if any.
#[must_use]
pub fn collective_without_nccl(name: &str) -> Option<&'static str> {
    // This is called for every kernel, so check quickly before the name is parsed.
    if !WITHOUT_NCCL.iter().any(|(kernel, _)| name.contains(kernel)) {
        return None;
    }
    let common = common(name).replace("(anonymous namespace)::", "");
    let plain = &common[..common.find(['<', '(']).unwrap_or(common.len())];
    let last = plain.rsplit("::").next().unwrap_or(plain);
    WITHOUT_NCCL.iter().find(|(kernel, _)| *kernel == last).map(|(_, function)| *function)
}

/// Where the list of parameters begins: at the `(` outside all brackets, unless that belongs to
/// `(anonymous namespace)`.
fn parameters(plain: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, letter) in plain.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' if depth == 0 && !plain[at..].starts_with("(anonymous namespace)") => return Some(at),
            _ => {}
        }
    }
    None
}

/// Drops what demanglers add to numbers in template arguments: `(int)4`, `4ul` and `4` become
/// equal.
fn literals(plain: &str) -> String {
    let letters: Vec<char> = plain.chars().collect();
    let mut out = String::with_capacity(plain.len());
    let mut at = 0;
    while at < letters.len() {
        if letters[at] == '(' && matches!(out.trim_end().chars().last(), Some('<' | ',')) {
            let close = letters[at..].iter().position(|it| *it == ')').map(|length| at + length);
            let is_number = |at: usize| letters.get(at).is_some_and(|it| it.is_ascii_digit() || *it == '-');
            if let Some(close) = close.filter(|close| is_number(close + 1)) {
                at = close + 1;
                continue;
            }
        }
        let begins = letters[at].is_ascii_digit() && matches!(out.trim_end().chars().last(), Some('<' | ',' | '-'));
        out.push(letters[at]);
        at += 1;
        if begins {
            while letters.get(at).is_some_and(char::is_ascii_digit) {
                out.push(letters[at]);
                at += 1;
            }
            while letters.get(at).is_some_and(|it| matches!(it, 'u' | 'l' | 'U' | 'L')) {
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_a_kernel_give_one_name() {
        for (one, other) in [
            (
                "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int, float)",
                "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)",
            ),
            ("_Z4stepILb1ELi2EEvPf", "void step<(bool)1, (int)2>(float *)"),
            ("void (anonymous namespace)::softmax<8ul>(float)", "<unnamed>::softmax<(unsigned long)8>(float)"),
        ] {
            assert_eq!(common(one), common(other));
            assert!(!common(one).is_empty());
        }
        assert_ne!(common("void step<4>(int)"), common("void step<8>(int)"));
    }

    #[test]
    fn the_function_is_read_from_the_name_of_an_nccl_kernel() {
        let name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)";
        assert_eq!(function(name).as_deref(), Some("SendRecv"));
        assert_eq!(function("_Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE"), None);
        assert_eq!(function("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)"), None);
        assert_eq!(function("void ncclDevKernel_AllGather_RING_LL<1>(int)").as_deref(), Some("AllGather"));
        assert_eq!(function("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)").as_deref(), Some("AllReduce"));
    }

    #[test]
    fn a_framework_s_own_collective_is_recognised_by_name() {
        for (name, function) in [
            ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)", Some("AllReduce")),
            ("_Z26multimem_all_gather_kernelIfLi16EEvPT_m", Some("AllGather")),
            ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>(float**)", Some("AllReduce")),
            ("void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)", Some("AllReduce")),
            ("prepare_for_multimem_all_reduce_kernel(int)", None),
            ("void multimem_all_reduce_kernel_test()", None),
            ("void apply<multimem_all_reduce_kernel>(int)", None),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", None),
        ] {
            assert_eq!(collective_without_nccl(name), function, "{name}");
        }
    }

    #[test]
    fn names_that_cannot_be_demangled_are_kept() {
        assert_eq!(common("_Z41ncclDevKernel_AllReduce_Sum_f32_RI"), "ncclDevKernel_AllReduce_Sum_f32_RI");
        assert_eq!(common(""), "");
        assert_eq!(common("<<<("), "<<<(");
        assert_eq!(common("_Z"), "");
    }
}
