//! Instants, one type per clock, so that two clocks cannot be mixed up.

use bytemuck::{Pod, Zeroable};

/// A reading of the recorder's clock: TSC ticks, or nanoseconds where the TSC cannot be trusted.
///
/// Only the host's clock (`clock::align`) turns it into a [`HostNs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct Ticks(pub u64);

/// An instant on the host: nanoseconds of `CLOCK_BOOTTIME`, which is the time of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostNs(pub u64);

/// An instant on one GPU: nanoseconds of its `%globaltimer`, as NCCL's kernels write it.
///
/// Its offset to the host is unknown (minutes are possible) until it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct GpuNs(pub u64);

impl HostNs {
    /// Nanoseconds since `earlier`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: HostNs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
