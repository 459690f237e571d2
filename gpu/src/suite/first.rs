//! The first ten minutes on a GPU, in two calls. Each is useful alone, and rows that may change
//! the design come first.
//!
//! A pass is a set of rows, which are asked in the suite's own order. The next pass begins after
//! that.

/// How long the first call may take, in seconds; and the second.
pub(super) const FIRST_SECONDS: f64 = 280.0;
pub(super) const SECOND_SECONDS: f64 = 420.0;

/// The rows of the first call.
pub(super) const FIRST: [&str; 6] = [
    // The basis of everything, without NCCL.
    "launches graph-ids clock-raw clock-given late hung",
    // PyTorch, which most users run: its graphs and its profiler.
    "ddp py-graph profiler-lent",
    "alone groups graphs-channels lent capture",
    "kinds pool other-cupti",
    "attach-late exit-hung injected",
    "profiler-returned profiler-kept profiler-daemon",
];

/// The rows of the second call.
pub(super) const SECOND: [&str; 6] = [
    "bracket timer bracket-timer channels bound-1s bound-10s drift",
    "standard no-cupti light application memory",
    "fsdp ddp-injected profiler-before profiler-after kineto",
    "collectives shared communicators overlap injected-graphs injected-kernels second-nccl globaltimer correlation",
    "exit-return exit-at-once exit-terminated fork-after py-no-destroy py-fork-after",
    "external bracket-external external-timer external-all external-single empty full graphs exit-panic exit-abort fork-before py-at-once \
     py-exception py-terminated py-fork-before",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_asked_twice() {
        let rows: Vec<&str> = FIRST.iter().chain(&SECOND).flat_map(|pass| pass.split_whitespace()).collect();
        let once: std::collections::BTreeSet<_> = rows.iter().collect();
        assert_eq!(once.len(), rows.len());
    }
}
