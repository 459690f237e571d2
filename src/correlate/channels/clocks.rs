//! The GPUs' timers, compared with the host's clock.

use rustc_hash::{FxHashMap, FxHashSet};

use super::run::Run;
use crate::clock::device::DeviceClock;
use crate::model::ids::Handle;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::Flaw;

/// A time with a larger error than this, in ns, is not drawn as a GPU time.
const WORST_ERROR_NS: u64 = 10_000_000;

/// What is known about the timers.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// The device of a communicator.
    pub(super) devices: FxHashMap<Handle, u32>,
    /// The GPUs' timers, judged by kernels.
    pub(super) by_device: FxHashMap<u32, DeviceClock>,
    /// GPUs for which CUPTI's times are off.
    pub(super) disputed: FxHashSet<u32>,
    /// The timers by communicator, judged by the host alone.
    pub(super) by_comm: FxHashMap<Handle, DeviceClock>,
}

impl Clocks {
    /// A plan's GPU.
    fn device_of(&self, run: &Run) -> Option<u32> {
        run.kernel.map(|ran| ran.place.device).or_else(|| self.devices.get(&run.context).copied())
    }

    /// Whether CUPTI's times of a plan's kernel, or of its GPU, are off.
    pub(super) fn is_disputed(&self, run: &Run) -> bool {
        run.kernel.is_some_and(|ran| ran.disputed)
            || self.device_of(run).is_some_and(|device| self.disputed.contains(&device))
    }

    /// The clock of a plan's GPU, judged by kernels.
    pub(super) fn of_gpu(&self, run: &Run) -> Option<&DeviceClock> {
        self.by_device.get(&self.device_of(run)?)
    }

    /// The clocks for a plan's stamps, the most trusted first. The host's own bounds are hard. If
    /// few kernels are known, each at least bounds its own channels. If CUPTI's times are off, they
    /// say nothing.
    fn clocks(&self, run: &Run) -> impl Iterator<Item = &DeviceClock> {
        let by_device = self.of_gpu(run);
        let (trusted, young) = match by_device {
            Some(clock) if run.told_device || clock.is_settled() => (by_device, None),
            _ => (None, by_device),
        };
        let disputed = by_device.is_some() && self.is_disputed(run);
        let by_kernels = [trusted, young].into_iter().flatten().filter(move |_| !disputed);
        self.by_comm.get(&run.context).into_iter().chain(by_kernels)
    }

    /// The time of a stamp, and how far off it may be. Each clock gives a range of possible times,
    /// and the result lies in all of them. A clock that contradicts a more trusted one is ignored.
    pub(super) fn at(&self, run: &Run, stamp: GpuNs) -> Result<(HostNs, u64), Flaw> {
        let to_host = |clock: &DeviceClock| {
            let (time, error) = match run.kernel {
                // What the timer says if it was not set either fits the kernel, or nothing is
                // certain.
                Some(_) => clock.to_host_unless_set(stamp),
                None => clock.to_host(stamp),
            }?;
            // A stamp may have been taken up to a step after the instant that it names.
            Some((time.0.saturating_sub(error), time.0 + error + clock.step()))
        };
        let ranges = self.clocks(run).filter_map(to_host);
        let both = |known: (u64, u64), other: (u64, u64)| {
            let both = (known.0.max(other.0), known.1.min(other.1));
            if both.0 <= both.1 { both } else { known }
        };
        let (low, high) = ranges.reduce(both).ok_or(Flaw::ClockUnknown)?;
        let error = (high - low).div_ceil(2);
        if error <= WORST_ERROR_NS { Ok((HostNs(low.midpoint(high)), error)) } else { Err(Flaw::ClockUnknown) }
    }
}
