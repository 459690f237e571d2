//! How far CUPTI's times of kernels are off, beyond their stated error, judged by NCCL's own times
//! and by other kernels.

use super::plans::Found;
use super::{Correlator, Details, trail};
use crate::clock::skew::{Bounds, Skew};
use crate::model::activity::Kernel;
use crate::model::time::HostNs;
use crate::model::timeline::{Entry, Method, What};

impl Correlator {
    /// Adds to the error of a kernel's times what is known of it now. Returns whether the host's
    /// times of its launch and work contradict its match (unless CUPTI's times are off, which other
    /// kernels do not show yet).
    pub(super) fn judge_times(
        &mut self,
        kernel: &mut Kernel,
        found: Option<&Found>,
        sink: &mut dyn FnMut(&Entry<'_>),
    ) -> bool {
        let device = kernel.place.device;
        let bounds = found.map_or(Bounds::NONE, |found| self.bounds_of(kernel, found));
        let apart = found.and_then(|found| self.channels.apart(found.group, kernel));
        let skew = self.skews.entry(device).or_default();
        let news = skew.add(bounds, apart);
        let (contradicts, is_off) = (skew.contradicts(&bounds), skew.is_off());
        let error = skew.error_of(&bounds);
        if found.is_some() {
            self.matches.mistimed += u64::from(is_off);
            self.channels.dispute(device, contradicts);
        }
        if let Some(Bounds { least, most }) = news {
            let what = What::TimesOff { device, least, most };
            sink(&Entry { time: kernel.span.start, what });
        }
        let error = u32::try_from(error).unwrap_or(u32::MAX).saturating_add(self.channels.conversion(device));
        kernel.span.error_ns = kernel.span.error_ns.saturating_add(error);
        if found.is_some() {
            self.trail.say(kernel, || [trail::bounds(bounds, kernel, contradicts, is_off)]);
        }
        contradicts && !is_off
    }

    /// What NCCL's own times say about CUPTI's times of a kernel whose match is certain.
    fn bounds_of(&self, kernel: &Kernel, found: &Found) -> Bounds {
        if !matches!(found.method, Method::Bracket | Method::External | Method::GraphNode) {
            return Bounds::NONE;
        }
        // Where records are missing, a report may belong to another run of a graph. When the graph
        // was launched is certain.
        let seen = if found.replay.is_none() { self.begun_by(found) } else { None };
        let error = kernel.span.error_ns.saturating_add(RECORD_ERROR_NS);
        Bounds::of(kernel.span.start.0, error, found.since.map(|time| time.0), seen.map(|time| time.0))
    }

    /// By when a kernel must have begun, since NCCL's threads saw its work.
    fn begun_by(&self, found: &Found) -> Option<HostNs> {
        let by_proxy = found.operations.iter().filter_map(|operation| match self.events.details(operation.id)? {
            Details::Operation(.., work) => work.seen,
            _ => None,
        });
        by_proxy.chain(self.channels.begun_by(found.group)).min()
    }

    /// Errors of CUPTI's times that nothing contradicts, over all GPUs.
    pub(super) fn open_errors(&self) -> [Option<i64>; 2] {
        let open = || self.skews.values().map(Skew::open).filter(|open| *open != Bounds::NONE);
        let least = open().map(|open| open.least).min().filter(|least| *least != i64::MIN);
        let most = open().map(|open| open.most).max().filter(|most| *most != i64::MAX);
        [least, most]
    }
}

/// The error of the host's times of records, in ns, with a margin.
const RECORD_ERROR_NS: u32 = 500;
