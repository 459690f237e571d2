//! Which samples cannot belong to the operations that NCCL assigns them to.

use super::super::bounded::Bounded;
use super::run::{Run, Sample, flaw_of, is_time};
use crate::model::ids::Handle;
use crate::model::time::GpuNs;
use crate::model::timeline::Flaw;

/// How far apart the timers of two processors of one GPU may be, in ns, with a margin.
const ASIDE_NS: u64 = 1_024;
/// Channels of communicators whose newest sample is known, and that are unreliable. What is known
/// of a plan may arrive after its communicator was forgotten.
const CHANNELS: usize = 8 << 10;
/// Communicators whose stamps may be wrong.
const COMMS: usize = 2 << 10;

/// What speaks against samples, judged by their channels and communicators.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// The newest sample of a communicator's channel.
    newest: Bounded<(Handle, u8), Newest>,
    /// Channels with an impossible sample, and the number of the first plan with one.
    unreliable: Bounded<(Handle, u8), u64>,
    /// Communicators whose stamps may be those of other operations, and the number of the first
    /// plan for which that holds.
    distrusted: Bounded<Handle, u64>,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    run: u64,
    stamps: [GpuNs; 2],
}

impl Trust {
    /// Forgets a communicator.
    pub(super) fn forget(&mut self, context: Handle) {
        self.distrusted.remove(&context);
        self.newest.retain(|(of, _)| *of != context);
        self.unreliable.retain(|(of, _)| *of != context);
    }

    /// From this plan number on, the stamps of a communicator's plans prove nothing.
    pub(super) fn distrust(&mut self, context: Handle, since: u64) {
        if self.distrusted.get(&context).is_none() {
            self.distrusted.insert(context, since, COMMS);
        }
    }

    /// Whether a communicator's stamps may be those of other operations from some time on.
    pub(super) fn distrusts(&self, context: Handle) -> bool {
        self.distrusted.get(&context).is_some()
    }

    /// Whether a plan's stamps may be those of another.
    pub(super) fn is_distrusted(&self, run: &Run) -> bool {
        self.distrusted.get(&run.context).is_some_and(|&since| run.number >= since)
    }

    /// What is wrong with the stamps of a channel that ended, in themselves or compared with
    /// earlier ones.
    pub(super) fn look_at(&mut self, context: Handle, number: u64, sample: &Sample) -> Option<Flaw> {
        let stamps = [sample.facts.start, sample.stop];
        let channel = (context, sample.facts.channel);
        let known = self.newest.get(&channel).copied();
        if stamps.into_iter().all(is_time) && known.is_none_or(|before| before.run <= number) {
            self.newest.insert(channel, Newest { run: number, stamps }, CHANNELS);
        }
        flaw_of(stamps).or_else(|| match known.filter(|before| before.run < number)?.stamps {
            same if same == stamps => Some(Flaw::Repeated),
            [_, stop] if stamps[0].0.saturating_add(ASIDE_NS) < stop.0 => Some(Flaw::BeforeThePrevious),
            _ => None,
        })
    }

    /// Notes that a sample of a plan is impossible. Returns whether it is the first of its channel.
    pub(super) fn mark(&mut self, run: &Run, sample: &Sample) -> bool {
        let known = self.since(run, sample);
        let since = known.map_or(run.number, |since| since.min(run.number));
        self.unreliable.insert((run.context, sample.facts.channel), since, CHANNELS);
        known.is_none()
    }

    /// The number of the first plan with an impossible sample of this sample's channel.
    pub(super) fn since(&self, run: &Run, sample: &Sample) -> Option<u64> {
        self.unreliable.get(&(run.context, sample.facts.channel)).copied()
    }

    /// Whether nothing was found against a sample's channel, up to its plan.
    pub(super) fn is_reliable(&self, run: &Run, sample: &Sample) -> bool {
        self.since(run, sample).is_none_or(|since| run.number < since)
    }
}
