//! How the times of kernel channels are known, and what is wrong with them.

use crate::model::activity;

/// How the times of a kernel channel are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// By the GPU's timer.
    Gpu {
        /// How far both times may be off, in ns.
        error_ns: u32,
        /// Where its kernel ran, if known; both times lie in that kernel.
        place: Option<activity::Place>,
    },
    /// They are when NCCL's thread saw it, which is later than it happened; with why they are not
    /// known better.
    Seen(Flaw),
}

/// Why the stamps of a kernel channel cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// NCCL gave none.
    NoStamp,
    /// The GPU's timer could not be related to the host's clock.
    ClockUnknown,
    /// The stop lies before the start.
    Backwards,
    /// They lie outside of the kernel.
    OutsideKernel,
    /// The start lies before the launch.
    BeforeLaunch,
    /// The stop lies after NCCL's thread saw it.
    AfterSeen,
    /// They are those of the previous operation.
    Repeated,
    /// The start lies before the stop of the previous operation.
    BeforeThePrevious,
    /// On this release, they may be another operation's after what its communicator has done.
    Miscounted,
}

impl Flaw {
    /// As the trace words it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Flaw::NoStamp => "as NCCL saw it: no stamp of the GPU",
            Flaw::ClockUnknown => "as NCCL saw it: the GPU's timer is not known on the host's clock",
            Flaw::Backwards => "as NCCL saw it: its stamps run back",
            Flaw::OutsideKernel => "as NCCL saw it: its stamps lie outside of the kernel",
            Flaw::BeforeLaunch => "as NCCL saw it: its stamps lie before the launch",
            Flaw::AfterSeen => "as NCCL saw it: its stamps lie after that",
            Flaw::Repeated => "as NCCL saw it: its stamps are those of the operation before",
            Flaw::BeforeThePrevious => "as NCCL saw it: its stamps lie before the end of the operation before",
            Flaw::Miscounted => "as NCCL saw it: this release may take the stamps of other operations for its own",
        }
    }

    /// Whether it is a sign that NCCL mistakes the reports of other operations for those of this
    /// one.
    #[must_use]
    pub fn is_drift(self) -> bool {
        !matches!(self, Flaw::NoStamp | Flaw::ClockUnknown | Flaw::Miscounted)
    }
}

/// What checking kernel channels against their kernels, launches and neighbours found, with counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelChecks {
    /// Samples inside their kernel.
    pub inside_kernel: u64,
    /// Samples without a known kernel that lie between their launch and when they were seen.
    pub without_kernel: u64,
    /// Samples whose time is unknown because there was no usable clock.
    pub unmapped: u64,
    /// Impossible samples.
    pub implausible: u64,
    /// Channels with an impossible sample: all their later samples are in doubt.
    pub unreliable: u64,
    /// Matched kernels that contain all of their channels.
    pub kernels_confirmed: u64,
    /// Kernels that contradicted what the others show about the GPU's timer.
    pub contradictions: u64,
}
