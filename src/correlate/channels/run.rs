//! A plan that was handed over, its kernel, and what NCCL's threads reported about its channels.

use std::sync::Arc;

use super::super::plans::Handover;
use crate::model::activity::{Place, Span};
use crate::model::ids::Handle;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{Doubt, Flaw, Method, Operation, Timing};

/// A plan that was handed over, and what is known about its kernel.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) context: Handle,
    /// Its kernel cannot have run before this time.
    pub(super) since: Option<HostNs>,
    /// No kernel will be found for it.
    pub(super) loose: bool,
    pub(super) handover: Option<Handover>,
    pub(super) samples: Vec<Sample>,
    /// It is among the waiting plans.
    pub(super) waiting: bool,
    /// Samples, without phases, that have not ended.
    pub(super) open: u32,
    pub(super) kernel: Option<Ran>,
    /// The clocks have used it.
    pub(super) told_device: bool,
    pub(super) told_comm: bool,
    pub(super) agreement: Agreement,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) span: Span,
    pub(super) place: Place,
    /// The correlation id of its launch, and its graph node.
    pub(super) key: (u32, u64),
    /// When it arrived here.
    pub(super) since: HostNs,
    /// The method with which its match was emitted, once it was, until that is contradicted.
    pub(super) said: Option<Method>,
    /// NCCL's own times contradict its times.
    pub(super) disputed: bool,
}

impl Run {
    pub(super) fn new(number: u64, context: Handle, since: Option<HostNs>, loose: bool) -> Run {
        Run {
            number,
            context,
            since,
            loose,
            handover: None,
            samples: Vec::new(),
            waiting: false,
            open: 0,
            kernel: None,
            told_device: false,
            told_comm: false,
            agreement: Agreement::Unknown,
        }
    }

    /// Its kernel, if that kernel's times are reliable.
    pub(super) fn kernel(&self) -> Option<Ran> {
        self.kernel.filter(|ran| !ran.disputed)
    }

    /// The earliest start and the latest stop of its channels, among the samples that `of` accepts.
    pub(super) fn stamps(&self, of: impl Fn(&&Sample) -> bool) -> Option<[GpuNs; 2]> {
        let these = || self.samples.iter().filter(&of);
        Some([these().map(|sample| sample.facts.start).min()?, these().map(|sample| sample.stop).max()?])
    }
}

/// What the channels of a plan say about the kernel that was matched to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Agreement {
    /// Nothing.
    Unknown,
    /// They lie outside of it, or the GPU's timer was set; what follows decides.
    Open,
    /// They lie inside it.
    Agrees,
    /// They lie outside of it.
    Contradicts,
}

/// What one `KernelCh` or `KernelPhase` states at its start.
#[derive(Debug, Clone)]
pub(in super::super) struct Facts {
    pub(in super::super) id: Handle,
    pub(in super::super) channel: u8,
    /// For a phase: its number and name.
    pub(in super::super) phase: Option<(u8, Box<str>)>,
    pub(in super::super) operation: Option<Arc<Operation>>,
    pub(in super::super) doubt: Option<Doubt>,
    pub(in super::super) start: GpuNs,
}

/// One `KernelCh` or `KernelPhase`, and its state.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) facts: Facts,
    pub(super) stop: GpuNs,
    /// When NCCL's thread saw it start and stop.
    pub(super) seen: [HostNs; 2],
    pub(super) ended: bool,
    pub(super) drawn: Drawn,
    pub(super) flaw: Option<Flaw>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Drawn {
    No,
    /// Its begin was drawn at this time, known this way.
    Begun(HostNs, Timing),
    Whole,
}

impl Sample {
    pub(super) fn new(facts: Facts, now: HostNs) -> Sample {
        Sample { facts, stop: GpuNs(0), seen: [now; 2], ended: false, drawn: Drawn::No, flaw: None }
    }

    /// Whether it is a channel's sample, not a phase's.
    pub(super) fn is_channel(&self) -> bool {
        self.facts.phase.is_none()
    }

    /// The end to draw if the begin was emitted before, and how it is known if the begin promised
    /// more. By then another clock may be the best, and a stated error can only be replaced by a
    /// larger one.
    pub(super) fn end_after(
        &self,
        begin: HostNs,
        said: Timing,
        end: HostNs,
        known: Timing,
    ) -> (HostNs, Option<Timing>) {
        match (said, known) {
            // As for the begin; the GPU's end may lie before that.
            (Timing::Seen(_), _) => (self.seen[1], None),
            (Timing::Gpu { .. }, Timing::Seen(_)) => (end.max(begin), Some(known)),
            (Timing::Gpu { error_ns: said, .. }, Timing::Gpu { error_ns, .. }) => {
                let known = Timing::Gpu { error_ns, place: None };
                (end.max(begin), (error_ns > said).then_some(known))
            }
        }
    }

    /// Whether its stamps may be used for a clock.
    pub(super) fn is_sound(&self) -> bool {
        let stamps = [self.facts.start, self.stop];
        self.ended && self.is_channel() && self.flaw.is_none() && stamps.into_iter().all(is_time)
    }
}

/// Whether a GPU's timer can have shown this: it counts from 1970 or from a later day.
pub(super) fn is_time(stamp: GpuNs) -> bool {
    const NEVER: u64 = u64::MAX >> 2;
    (1..NEVER).contains(&stamp.0)
}

/// What is wrong with two stamps in themselves.
pub(super) fn flaw_of([start, stop]: [GpuNs; 2]) -> Option<Flaw> {
    match () {
        () if start.0 == 0 || stop.0 == 0 => Some(Flaw::NoStamp),
        () if stop < start => Some(Flaw::Backwards),
        () => None,
    }
}
