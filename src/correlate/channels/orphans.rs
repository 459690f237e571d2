//! Kernels without a launch, which wait for channels to show whose they are.

use super::super::adopt::{self, Candidate, Orphan};
use super::super::plans::Handover;
use super::super::replays::Operations;
use super::run::Sample;
use super::{Channels, HOLD_NS, Ready};
use crate::clock::device::DeviceClock;
use crate::model::activity::Kernel;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::Unmatched;
use crate::model::word::Word;

/// How many kernels may wait for channels to show whose they are.
const ORPHANS: usize = 4096;
/// A plan whose kernel was found by its channels.
#[derive(Debug)]
pub(in super::super) struct Adopted {
    pub(in super::super) group: Handle,
    pub(in super::super) context: Handle,
    pub(in super::super) operations: Operations,
    pub(in super::super) launch: Handle,
}

impl Channels {
    /// Whether the channels may show whose a kernel is. If so, it will be a [`Ready::Kernel`] at
    /// some time.
    pub(in super::super) fn adopt(&mut self, kernel: &Kernel, reason: Unmatched, now: HostNs) -> bool {
        if !self.sampled {
            return false;
        }
        self.orphans.push(Orphan { kernel: kernel.clone(), reason, since: now });
        if self.orphans.len() >= ORPHANS {
            self.find_owners(now);
            // Giving up a quarter makes room for many more.
            let oldest = if self.orphans.len() >= ORPHANS { ORPHANS / 4 } else { 0 };
            self.orphans.sort_unstable_by_key(|orphan| (orphan.since, orphan.kernel.span.end));
            let gone = self.orphans.drain(..oldest).collect();
            self.give_up(gone);
        }
        true
    }

    pub(super) fn give_up(&mut self, mut orphans: Vec<Orphan>) {
        orphans.sort_unstable_by_key(|orphan| orphan.kernel.span.start);
        let said = orphans.into_iter().map(|orphan| Ready::Kernel(Box::new(orphan.kernel), Err(orphan.reason)));
        self.judge.ready.extend(said);
    }

    /// Gives up kernels that waited too long for channels: they have no owner.
    pub(super) fn give_up_older(&mut self, now: HostNs) {
        let expired = |orphan: &Orphan| now.since(orphan.since) >= HOLD_NS;
        if self.orphans.iter().any(expired) {
            let (gone, stay) = std::mem::take(&mut self.orphans).into_iter().partition(expired);
            self.orphans = stay;
            self.give_up(gone);
        }
    }

    /// How the times of plans without a kernel relate to a kernel without a launch.
    pub(in super::super) fn explain(&self, kernel: &Kernel) -> [String; 1] {
        [adopt::explain(self.judge.clocks.by_device.get(&kernel.place.device), kernel, &self.candidates())]
    }

    /// Plans without a kernel whose channels have all ended.
    fn candidates(&self) -> Vec<Candidate> {
        let candidates = self.waiting.iter().filter_map(|&key| {
            let run = self.runs.get(&key)?;
            let complete = run.kernel.is_none() && !run.loose && run.open == 0;
            let operations = &run.handover.as_ref().filter(|_| complete)?.operations;
            let doubtful = |sample: &Sample| self.judge.trust.since(run, sample).is_some();
            if self.judge.trust.is_distrusted(run) || run.samples.iter().any(doubtful) {
                return None;
            }
            let [first, last] = run.stamps(|sample| sample.is_sound())?;
            let mut channels: Vec<u8> = run.samples.iter().map(|sample| sample.facts.channel).collect();
            channels.sort_unstable();
            channels.dedup();
            let place = run.handover.as_ref().and_then(|handed| self.streams.get(&handed.stream));
            let device = self.judge.clocks.devices.get(&run.context).copied();
            let clock = self.judge.clocks.by_comm.get(&run.context);
            let range = clock.and_then(|clock| clock.to_host(first));
            let step = clock.map_or_else(|| DeviceClock::default().step(), DeviceClock::step);
            let (context, channels) = (run.context, channels.len() as u32);
            let mut functions: Vec<Word> = operations.iter().map(|operation| operation.func()).collect();
            functions.sort_unstable();
            functions.dedup();
            let place = place.copied();
            Some(Candidate { key, context, device, first, last, step, channels, functions, place, range })
        });
        candidates.collect()
    }

    /// Matches kernels without a launch to plans without a kernel, where that is certain.
    pub(super) fn find_owners(&mut self, now: HostNs) {
        if self.orphans.is_empty() {
            return;
        }
        let candidates = self.candidates();
        for (device, pairs) in adopt::bootstrap(&self.judge.clocks.by_device, &self.orphans, &candidates) {
            for pair in pairs {
                self.judge.tell_clock(device, pair);
            }
        }
        let mut found = adopt::resolve(&self.judge.clocks.by_device, &self.orphans, &candidates);
        // In order of time, which the trace needs: a late kernel takes a lane from those before it.
        found.sort_unstable_by_key(|&(orphan, _)| self.orphans[orphan].kernel.span.start);
        let mut taken = vec![false; self.orphans.len()];
        for (orphan, key) in found {
            let Some(run) = self.runs.get(&key) else { continue };
            let Some(Handover { operations, launch, stream, .. }) = run.handover.clone() else { continue };
            let (context, kernel) = (run.context, self.orphans[orphan].kernel.clone());
            taken[orphan] = true;
            self.kernel(key, context, stream, &kernel, now);
            let adopted = Adopted { group: key, context, operations, launch };
            self.judge.ready.push_back(Ready::Kernel(Box::new(kernel), Ok(adopted)));
        }
        let mut taken = taken.into_iter();
        self.orphans.retain(|_| !taken.next().unwrap_or(false));
    }
}
