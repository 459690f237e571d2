//! Kernels that came before the external id of their launch.
//!
//! Where CUPTI does not call back at launches, it names the KernelLaunch of a call by a record of its own. That may lie in a buffer which
//! a kernel of another stream holds back, so a kernel waits for it: for a bounded time, and so many at most.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::activity::Kernel;
use crate::model::time::HostNs;

/// How long a kernel waits, in ns of the host's time. Full buffers and complete ones come every second.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How many wait at most.
const WAITING: usize = 4096;

/// The kernels that wait, by the correlation id of their launch.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    expects: bool,
    kernels: FxHashMap<u32, Kernel>,
    /// Until when, oldest first. Those that were found are still in it.
    order: VecDeque<(HostNs, u32)>,
}

impl Waiting {
    /// External ids are going to be reported.
    pub(super) fn expect(&mut self) {
        self.expects = true;
    }

    /// Whether a kernel whose launch is not known may still be named.
    pub(super) fn expects(&self) -> bool {
        self.expects
    }

    /// Has a kernel wait. The answer is one that waits no longer: its id was used again.
    #[must_use]
    pub(super) fn push(&mut self, kernel: &Kernel, now: HostNs) -> Option<Kernel> {
        self.order.push_back((HostNs(now.0.saturating_add(PATIENCE_NS)), kernel.correlation));
        self.kernels.insert(kernel.correlation, kernel.clone())
    }

    /// The kernel that waits for this call's id.
    pub(super) fn take(&mut self, correlation: u32) -> Option<Kernel> {
        self.kernels.remove(&correlation)
    }

    /// The next kernel that has waited long enough, or is one too many.
    pub(super) fn give_up(&mut self, now: HostNs) -> Option<Kernel> {
        while let Some(&(until, correlation)) = self.order.front() {
            if until > now && self.kernels.len() <= WAITING && self.order.len() <= 2 * WAITING {
                return None;
            }
            self.order.pop_front();
            if let Some(kernel) = self.kernels.remove(&correlation) {
                return Some(kernel);
            }
        }
        None
    }
}
