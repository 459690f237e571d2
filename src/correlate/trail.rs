//! How the match of a kernel is decided, step by step: `ncclscope replay --explain` prints it. A
//! recording follows no kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::skew::Bounds;
use crate::model::activity::{Kernel, Span};
use crate::model::time::HostNs;
use crate::model::timeline::{Method, Operation};

/// The kernels of one launching call, and how their matches were decided.
#[derive(Debug, Default)]
pub(super) struct Trail(Option<Box<Followed>>);

#[derive(Debug)]
struct Followed {
    correlation: u32,
    steps: Vec<String>,
}

impl Trail {
    /// From here on, follows the kernels of the call with this correlation id.
    #[cfg(feature = "cli")]
    pub(super) fn follow(&mut self, correlation: u32) {
        self.0 = Some(Box::new(Followed { correlation, steps: Vec::new() }));
    }

    /// The steps since the last call.
    #[cfg(feature = "cli")]
    pub(super) fn take(&mut self) -> Vec<String> {
        self.0.as_mut().map(|followed| std::mem::take(&mut followed.steps)).unwrap_or_default()
    }

    /// Whether kernels of this call are followed.
    #[inline]
    pub(super) fn follows(&self, correlation: u32) -> bool {
        cfg!(feature = "cli") && self.0.as_ref().is_some_and(|followed| followed.correlation == correlation)
    }

    /// Notes steps, if the kernel is followed.
    #[inline]
    pub(super) fn say<T: IntoIterator<Item = String>>(&mut self, kernel: &Kernel, steps: impl FnOnce() -> T) {
        if self.follows(kernel.correlation)
            && let Some(followed) = &mut self.0
        {
            followed.steps.extend(steps());
        }
    }
}

/// What CUPTI reported about a kernel.
pub(super) fn kernel(kernel: &Kernel) -> String {
    let Kernel { name, place, span, correlation, graph_node, .. } = kernel;
    let from = match graph_node {
        0 => format!("launched by call {correlation}"),
        node => format!("node {node} of a graph that call {correlation} launched"),
    };
    format!(
        "kernel {name} on GPU {}, stream {}, {from}: began at {} and ran {}, give or take {}",
        place.device,
        place.stream,
        time(span.start),
        us(span.end.since(span.start)),
        error(*span)
    )
}

/// What was found for a kernel.
pub(super) fn found(method: Method, carried: &[Arc<Operation>], replay: Option<u64>) -> String {
    let run = replay.map(|run| format!(", run {run} of its graph")).unwrap_or_default();
    format!("rule: {}; it carries {}{run}", method.text(), operations(carried))
}

/// Operations, named by their functions.
pub(super) fn operations(operations: &[Arc<Operation>]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for operation in operations {
        *counts.entry(operation.func().spelling().unwrap_or("an operation of another name")).or_default() += 1;
    }
    let parts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    if parts.is_empty() { "no operation".into() } else { parts.join(", ") }
}

/// What NCCL's own times say about a kernel's.
pub(super) fn bounds(bounds: Bounds, kernel: &Kernel, contradicts: bool, is_off: bool) -> String {
    let late = match (bounds.least, bounds.most) {
        (i64::MIN, i64::MAX) => "NCCL saw nothing that bounds CUPTI's times".into(),
        (i64::MIN, most) => format!("by its launch, CUPTI's times are late by {} at most", signed_us(most)),
        (least, i64::MAX) => format!("by its work, CUPTI's times are late by {} at least", signed_us(least)),
        (least, most) => {
            let (least, most) = (signed_us(least), signed_us(most));
            format!("by its launch and its work, CUPTI's times are late by {least} at least and {most} at most")
        }
    };
    let verdict = match (contradicts, is_off) {
        (false, _) => "nothing speaks against it",
        (true, true) => "CUPTI's times of this GPU are off, as other kernels say too",
        (true, false) => "that speaks against the match, or CUPTI's times are off",
    };
    format!("bounds: {late}; {verdict}; drawn give or take {}", error(kernel.span))
}

/// When something happened, relative to the begin of a kernel.
pub(super) fn before(time: HostNs, kernel: Option<Span>) -> String {
    match kernel {
        Some(span) if time <= span.start => format!("{} before it began", us(span.start.since(time))),
        Some(span) => format!("{} after it began", us(time.since(span.start))),
        None => format!("at {}", self::time(time)),
    }
}

fn time(time: HostNs) -> String {
    format!("{}.{:09} s", time.0 / 1_000_000_000, time.0 % 1_000_000_000)
}

fn error(span: Span) -> String {
    if span.error_ns == Span::UNKNOWN_ERROR { "an unknown error".into() } else { us(span.error_ns.into()) }
}

fn us(ns: u64) -> String {
    format!("{:.3} us", ns as f64 / 1e3)
}

fn signed_us(ns: i64) -> String {
    format!("{:.3} us", ns as f64 / 1e3)
}
