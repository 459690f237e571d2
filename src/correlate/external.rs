//! Kernels that arrived before the external id of their launch.
//!
//! Where CUPTI does not call back at launches, a record of its own names the KernelLaunch of a
//! call. That record may lie in a buffer that a kernel of another stream holds back, so a kernel
//! waits for it. The time is bounded, and so is the number that wait.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::sessions::Call;
use crate::model::activity::Kernel;
use crate::model::time::HostNs;

/// How long a kernel waits, in ns of the host's time. CUPTI returns full and complete buffers every
/// second.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How many may wait.
const WAITING: usize = 4096;

/// The waiting kernels, by the call that launched them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    expects: bool,
    kernels: FxHashMap<Call, Kernel>,
    /// Deadlines, oldest first. Kernels that were found are still in it.
    order: VecDeque<(HostNs, Call)>,
}

impl Waiting {
    /// From now on external ids will be reported.
    pub(super) fn expect(&mut self) {
        self.expects = true;
    }

    /// Whether an external id may still arrive for a kernel without a known launch.
    pub(super) fn expects(&self) -> bool {
        self.expects
    }

    /// Makes a kernel wait. Returns the one it displaces, if two name the same call.
    #[must_use]
    pub(super) fn push(&mut self, call: Call, kernel: Kernel, now: HostNs) -> Option<Kernel> {
        self.order.push_back((HostNs(now.0.saturating_add(PATIENCE_NS)), call));
        self.kernels.insert(call, kernel)
    }

    /// Removes the kernel that waits for this call's id.
    pub(super) fn take(&mut self, call: Call) -> Option<Kernel> {
        self.kernels.remove(&call)
    }

    /// Removes the next kernel that has waited long enough, or that is one too many.
    pub(super) fn give_up(&mut self, now: HostNs) -> Option<Kernel> {
        while let Some(&(until, call)) = self.order.front() {
            if until > now && self.kernels.len() <= WAITING && self.order.len() <= 2 * WAITING {
                return None;
            }
            self.order.pop_front();
            if let Some(kernel) = self.kernels.remove(&call) {
                return Some(kernel);
            }
        }
        None
    }
}
