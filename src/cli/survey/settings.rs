//! Which of the facts that a trace gives about its process should be the same on all ranks.

use crate::trace::words::attribute;

/// Beginnings of the environment variables that should be the same on all ranks.
const BEGINNINGS: [&str; 3] = ["NCCL_", "TORCH_NCCL_", "CUDA_"];
/// Those among them that say where a rank is, or that change only what is printed, by their
/// beginnings.
const OWN: [&str; 8] = [
    "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_HOSTID",
    "NCCL_RAS_ADDR",
    "NCCL_TOPO_DUMP_FILE",
    "TORCH_NCCL_DEBUG_INFO",
    "TORCH_NCCL_TRACE",
];

/// The name of a fact, by its key in the trace, if it should be the same on all ranks.
pub(in crate::cli) fn setting(key: &str) -> Option<&str> {
    match key.strip_prefix(attribute::ENVIRONMENT) {
        Some(name) => {
            let begins = |beginning: &&str| name.starts_with(beginning);
            (BEGINNINGS.iter().any(begins) && !OWN.iter().any(begins)).then_some(key)
        }
        None if key == attribute::DRIVER => Some("driver"),
        None => None,
    }
}
