//! Kernels whose own times contradict their match: they are held back until it is decided which of
//! the two is wrong.
//!
//! Three things are impossible: that a kernel begins before its launch or after NCCL's threads saw
//! its work, that its channels ran outside it, and that it overtook another kernel of its stream
//! ([`super::streams`]). Either the match belongs to another kernel, or a clock is wrong: CUPTI's
//! times are off, or the GPU's timer was set. If a clock is wrong, the following kernels show the
//! same error, and the match stands. If they do not, it is contradicted.

use super::Correlator;
use super::channels::Agreement;
use super::kernels::Carried;
use super::plans::Found;
use crate::clock::skew::Skew;
use crate::model::activity::Kernel;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::{Entry, Method};

/// How long a kernel waits for others that decide, in ns.
const PATIENCE_NS: u64 = 4_000_000_000;
/// How many may wait.
const WAITING: usize = 1024;

/// A kernel that waits for the decision.
#[derive(Debug)]
pub(super) struct Doubted {
    kernel: Kernel,
    found: Found,
    since: HostNs,
    /// The host's times contradict the match, not the channels.
    by_host: bool,
}

impl Correlator {
    /// Emits a kernel with what it carried, or holds it back. `by_host` is whether the host's times
    /// of its launch and work contradict the match.
    pub(super) fn owned(&mut self, kernel: Kernel, found: Found, by_host: bool, sink: &mut dyn FnMut(&Entry<'_>)) {
        self.channels.kernel(found.group, found.context, found.stream, &kernel, self.last);
        let is_open = by_host || self.channels.agreement(found.group, false) == Agreement::Open;
        if !is_open || self.doubted.len() >= WAITING {
            return self.decided(&kernel, found, by_host, sink);
        }
        self.trail.say(&kernel, || {
            let who = if by_host { "the host's times" } else { "its channels" };
            [format!("waits: {who} contradict the match, and later kernels will show which is wrong")]
        });
        self.doubted.push(Doubted { kernel, found, since: self.last, by_host });
    }

    /// Emits the kernels whose match has been decided; all of them if `is_last`.
    pub(super) fn say_decided(&mut self, now: HostNs, is_last: bool, sink: &mut dyn FnMut(&Entry<'_>)) {
        let mut index = 0;
        while let Some(Doubted { kernel, found, since, by_host }) = self.doubted.get(index) {
            let is_last = is_last || now.since(*since) >= PATIENCE_NS;
            let waits = match by_host {
                true => !self.are_times_off(kernel.place.device),
                false => self.channels.agreement(found.group, is_last) == Agreement::Open,
            };
            if waits && !is_last {
                index += 1;
                continue;
            }
            let Doubted { kernel, found, by_host, .. } = self.doubted.remove(index);
            self.decided(&kernel, found, by_host, sink);
        }
    }

    /// Emits a kernel with what it carried, and whether its match is contradicted.
    fn decided(&mut self, kernel: &Kernel, found: Found, by_host: bool, sink: &mut dyn FnMut(&Entry<'_>)) {
        let Found { method, context, operations, group, launch, replay, replayed, untold, .. } = found;
        let are_times_off = by_host && self.are_times_off(kernel.place.device);
        self.matches.mistimed += u64::from(are_times_off);
        let agreement = self.channels.agreement(group, false);
        let is_contradicted = by_host && !are_times_off || agreement == Agreement::Contradicts;
        self.trail.say(kernel, || {
            let channels = match agreement {
                Agreement::Unknown => "say nothing",
                Agreement::Open => "may lie outside it, which is not decided yet",
                Agreement::Agrees => "lie in it",
                Agreement::Contradicts => "lie outside it, or the order of its stream contradicts the match",
            };
            [format!("its channels: {channels}")]
        });
        // No arrow to a kernel whose match may be wrong.
        let (method, launch) = if is_contradicted { (Method::Contradicted, Handle::NONE) } else { (method, launch) };
        let carried = Carried { context, group, operations: &operations, launch, replay, replayed, untold };
        self.matched(kernel, method, &carried, sink);
        if !is_contradicted {
            self.channels.said(group, method);
        }
    }

    /// Whether CUPTI's times of this GPU's kernels are known to be off.
    pub(super) fn are_times_off(&self, device: u32) -> bool {
        self.skews.get(&device).is_some_and(Skew::is_off)
    }
}
