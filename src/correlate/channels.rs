//! When each channel of a kernel ran, on the host's clock, and whether that can be true.
//!
//! NCCL's threads report a channel some time after it ran, with two stamps of the GPU's own timer.
//! Three things bound the offset between that timer and the host's clock, and so show when the
//! channel ran and how certain that is:
//!
//! ```text
//!  host    [KernelLaunch]                                            NCCL's thread sees the stop
//!          |<------------ the channel ran in here, without CUPTI --------------->|
//!  GPU                       [ kernel, by CUPTI           ]
//!                              [channel 0            ]
//!                               [channel 1         ]
//! ```
//!
//! The same bounds check each sample. NCCL predicts which of a channel's reports belongs to which
//! operation; if that fails (docs/nccl-profiler-interface.md), all later reports of that channel
//! may be another operation's. A sample that is impossible is drawn where NCCL's thread saw it,
//! with the reason, and the channel is marked from there on.
//!
//! If a kernel's launch was not seen, its channels show whose it is: [`super::adopt`].

mod clocks;
mod judge;
mod orphans;
mod run;
mod trust;

use self::judge::Judge;
pub(super) use self::orphans::Adopted;
pub(super) use self::run::{Agreement, Facts};
use self::run::{Drawn, Ran, Run, Sample};
use super::adopt::Orphan;
use super::bounded::Bounded;
use super::plans::Handover;
use crate::clock::device::DeviceClock;
use crate::model::activity::{Kernel, Place};
use crate::model::ids::Handle;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{ChannelChecks, Doubt, Flaw, Method, Timing, Unmatched};

/// How many plans are remembered, for samples and kernels that arrive late.
const RUNS: usize = 4096;
/// How many samples of one plan may wait: 64 channels, with a send and a receive on each, and their
/// phases.
const SAMPLES: usize = 512;
/// How many samples of all plans may wait. Beyond that, those of the oldest plan are drawn as far
/// as they are known, and forgotten.
const ALL_SAMPLES: usize = 16 << 10;
/// About how much is emitted at once: all of it is held in memory until it is written. More follows
/// the next time.
const AT_ONCE: usize = 4096;
/// How many streams with a known place are remembered.
const STREAMS: usize = 4096;
/// How long a sample waits for its kernel, and a kernel for its samples, in ns.
const HOLD_NS: u64 = 4_000_000_000;
/// How far CUPTI's conversion of a GPU's timer may be off from one kernel to another, in ns, with a
/// margin. Channels that lie outside of their kernel by less do not contradict it.
pub(super) const CONVERSION_NS: u64 = 50_000;

/// Channels and what they say about clocks and kernels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// There has been a sample.
    sampled: bool,
    runs: Bounded<Handle, Run>,
    /// How many samples all runs have.
    samples: usize,
    count: u64,
    /// Plans with samples that are not drawn yet.
    waiting: Vec<Handle>,
    judge: Judge,
    orphans: Vec<Orphan>,
    /// The place of each stream handle of NCCL's, as learnt from matched kernels.
    streams: Bounded<u64, Place>,
}

/// What is certain now, in the order in which it is emitted.
#[derive(Debug)]
pub(super) enum Ready {
    Begin {
        time: HostNs,
        context: Handle,
        facts: Box<Facts>,
        timing: Timing,
        unreliable: bool,
    },
    End {
        time: HostNs,
        id: Handle,
        stop: GpuNs,
        timing: Option<Timing>,
        doubt: Option<Doubt>,
    },
    Kernel(Box<Kernel>, Result<Adopted, Unmatched>),
    /// The match of a kernel that was emitted with this method.
    Contradicted {
        time: HostNs,
        place: Place,
        key: (u32, u64),
        method: Method,
    },
    Step {
        device: u32,
        after: HostNs,
        before: HostNs,
        by: i64,
    },
}

impl Channels {
    /// Kernels will be reported.
    pub(super) fn expect_kernels(&mut self) {
        self.judge.kernels_expected = true;
    }

    /// What the cross-checks found so far.
    pub(super) fn checks(&self) -> ChannelChecks {
        self.judge.checks
    }

    /// The next thing that is certain.
    pub(super) fn next_ready(&mut self) -> Option<Ready> {
        self.judge.ready.pop_front()
    }

    /// A communicator's device, from its `init`.
    pub(super) fn comm_on(&mut self, context: Handle, device: u32) {
        self.judge.clocks.devices.insert(context, device);
    }

    /// From this plan on, NCCL may mistake the stamps of a communicator's operations for those of
    /// others: they prove nothing, bound no clock, and are not drawn as GPU times.
    pub(super) fn distrust(&mut self, context: Handle) {
        self.judge.trust.distrust(context, self.count);
    }

    /// Whether a communicator's stamps may be those of other operations from some time on.
    pub(super) fn distrusts(&self, context: Handle) -> bool {
        self.judge.trust.distrusts(context)
    }

    /// A communicator was finalized. What is still open in it will not end, as after an abort.
    pub(super) fn finalized(&mut self, context: Handle) {
        for key in &self.waiting {
            let Some(run) = self.runs.get_mut(key).filter(|run| run.context == context) else { continue };
            for index in 0..run.samples.len() {
                let sample = &run.samples[index];
                if !sample.ended && sample.drawn == Drawn::No {
                    self.judge.draw(run, index);
                }
            }
        }
    }

    /// Forgets a communicator.
    pub(super) fn forget(&mut self, context: Handle) {
        self.judge.trust.forget(context);
        self.judge.clocks.devices.remove(&context);
        self.judge.clocks.by_comm.remove(&context);
    }

    /// A plan is being handed over in a Group. Its kernel cannot have run before `since`.
    pub(super) fn run(&mut self, group: Handle, context: Handle, since: Option<HostNs>) {
        self.insert(group, context, since, false);
    }

    fn insert(&mut self, key: Handle, context: Handle, since: Option<HostNs>, loose: bool) {
        self.count += 1;
        let run = Run::new(self.count, context, since, loose);
        if let Some(forgotten) = self.runs.insert(key, run, RUNS) {
            self.forgotten(forgotten);
        }
    }

    /// Emits what is known about the samples of a plan that is forgotten.
    fn forgotten(&mut self, mut run: Run) {
        self.samples -= run.samples.len();
        for index in 0..run.samples.len() {
            self.judge.draw(&mut run, index);
        }
    }

    /// A plan was handed over.
    pub(super) fn handed_over(&mut self, group: Handle, handover: Handover) {
        if let Some(run) = self.runs.get_mut(&group) {
            run.since = run.since.or(handover.since);
            run.handover = Some(handover);
        }
    }

    /// A sample begins in the plan of this Group. Returns the key under which it continues: its own
    /// if the plan is not known.
    pub(super) fn begin(&mut self, group: Handle, context: Handle, facts: Facts, now: HostNs) -> Handle {
        self.sampled = true;
        while self.samples >= ALL_SAMPLES
            && let Some(oldest) = self.runs.forget()
        {
            self.forgotten(oldest);
        }
        let known = self.runs.get(&group).is_some_and(|run| run.samples.len() < SAMPLES);
        let key = if known { group } else { facts.id };
        if !known {
            self.insert(key, context, None, true);
        }
        if self.waiting.len() >= 2 * RUNS {
            let runs = &self.runs;
            self.waiting.retain(|key| runs.get(key).is_some());
        }
        if let Some(run) = self.runs.get_mut(&key) {
            if !std::mem::replace(&mut run.waiting, true) {
                self.waiting.push(key);
            }
            let sample = Sample::new(facts, now);
            run.open += u32::from(sample.is_channel());
            run.samples.push(sample);
            self.samples += 1;
        }
        key
    }

    /// The GPU's timer at the end of a sample.
    pub(super) fn stamp(&mut self, run: Handle, id: Handle, stop: GpuNs) {
        if let Some(sample) = self.sample(run, id) {
            sample.stop = stop;
        }
    }

    fn sample(&mut self, run: Handle, id: Handle) -> Option<&mut Sample> {
        self.runs.get_mut(&run)?.samples.iter_mut().rev().find(|sample| sample.facts.id == id)
    }

    /// A sample ends.
    pub(super) fn end(&mut self, key: Handle, id: Handle, now: HostNs) {
        let Some(run) = self.runs.get_mut(&key) else {
            // Its begin was emitted when the plan was forgotten, and its stamp with it.
            let timing = Some(Timing::Seen(Flaw::NoStamp));
            self.judge.ready.push_back(Ready::End { time: now, id, stop: GpuNs(0), timing, doubt: None });
            return;
        };
        let Some(sample) = run.samples.iter_mut().rev().find(|sample| sample.facts.id == id) else { return };
        sample.seen[1] = now;
        sample.ended = true;
        if sample.is_channel() {
            run.open -= 1;
            sample.flaw = self.judge.trust.look_at(run.context, run.number, sample);
        }
        self.judge.look_at(run, now, false);
    }

    /// By when the kernel of a plan must have begun, judged by what NCCL's threads saw of its
    /// channels.
    pub(super) fn begun_by(&self, group: Handle) -> Option<HostNs> {
        self.judge.begun_by(self.runs.get(&group)?)
    }

    /// By how much CUPTI's conversion of a GPU's timer was seen to be off, in ns.
    pub(super) fn conversion(&self, device: u32) -> u32 {
        self.judge.clocks.by_device.get(&device).map_or(0, DeviceClock::conversion)
    }

    /// Whether CUPTI's times of a GPU are off, by NCCL's own.
    pub(super) fn dispute(&mut self, device: u32, are_off: bool) {
        if are_off {
            self.judge.clocks.disputed.insert(device);
        } else {
            self.judge.clocks.disputed.remove(&device);
        }
    }

    /// A kernel of this plan ran.
    pub(super) fn kernel(&mut self, group: Handle, context: Handle, stream: u64, kernel: &Kernel, now: HostNs) {
        // 0 to 2 are the default streams, which every context has.
        if stream > 2 {
            self.streams.insert(stream, kernel.place, STREAMS);
        }
        if !context.is_none() {
            self.judge.clocks.devices.insert(context, kernel.place.device);
        }
        if let Some(run) = self.runs.get_mut(&group)
            && run.kernel.is_none()
        {
            let disputed =
                run.agreement == Agreement::Contradicts || self.judge.clocks.disputed.contains(&kernel.place.device);
            let &Kernel { span, place, correlation, graph_node, .. } = kernel;
            run.kernel = Some(Ran { span, place, key: (correlation, graph_node), since: now, said: None, disputed });
            self.judge.look_at(run, now, false);
        }
    }

    /// How much later than its channels a kernel that may be this plan's begins, in ns, if they lie
    /// outside of it; 0 if they lie inside it. `None` if that is not known.
    pub(super) fn apart(&self, group: Handle, kernel: &Kernel) -> Option<i64> {
        self.judge.apart(self.runs.get(&group)?, kernel)
    }

    /// What a plan's channels say about its kernel. An open question stays open, unless `is_last`.
    pub(super) fn agreement(&mut self, group: Handle, is_last: bool) -> Agreement {
        let Some(run) = self.runs.get_mut(&group) else { return Agreement::Unknown };
        self.judge.agree(run, is_last);
        run.agreement
    }

    /// The kernel that was matched to a plan may be another's, so its times say nothing about the
    /// plan or a clock.
    pub(super) fn contradict(&mut self, group: Handle) {
        let Some(run) = self.runs.get_mut(&group).filter(|run| run.agreement != Agreement::Agrees) else { return };
        run.agreement = Agreement::Contradicts;
        if let Some(ran) = &mut run.kernel {
            ran.disputed = true;
            let (Ran { span, place, key, .. }, said) = (*ran, ran.said.take());
            self.judge.ready.extend(said.map(|method| Ready::Contradicted { time: span.start, place, key, method }));
        }
    }

    /// The match of a plan's kernel was emitted. If something contradicts it later, that has to be
    /// emitted, too.
    pub(super) fn said(&mut self, group: Handle, method: Method) {
        if let Some(ran) = self.runs.get_mut(&group).and_then(|run| run.kernel.as_mut()) {
            ran.said = Some(method);
        }
    }

    /// The channels of a plan's operations that NCCL has reported so far.
    pub(super) fn sampled(&self, group: Handle) -> Vec<(Handle, u8)> {
        let samples = self.runs.get(&group).map_or(&[][..], |run| &run.samples);
        let channels = samples.iter().filter(|sample| sample.is_channel());
        channels.filter_map(|sample| Some((sample.facts.operation.as_ref()?.id, sample.facts.channel))).collect()
    }

    /// Advances the time: what waited long enough is emitted.
    pub(super) fn advance(&mut self, now: HostNs) {
        self.find_owners(now);
        for key in std::mem::take(&mut self.waiting) {
            if self.judge.ready.len() >= AT_ONCE {
                self.waiting.push(key);
                continue;
            }
            if let Some(run) = self.runs.get_mut(&key) {
                self.judge.look_at(run, now, false);
                let is_open = run.agreement == Agreement::Open;
                run.waiting = is_open || run.samples.iter().any(|sample| sample.drawn != Drawn::Whole);
                if run.waiting {
                    self.waiting.push(key);
                } else {
                    self.samples -= run.samples.len();
                    run.samples = Vec::new();
                    if run.loose {
                        self.runs.remove(&key);
                    }
                }
            }
        }
        self.give_up_older(now);
    }

    /// Nothing more will arrive.
    pub(super) fn finish(&mut self, now: HostNs) {
        self.find_owners(now);
        let orphans = std::mem::take(&mut self.orphans);
        self.give_up(orphans);
        for key in std::mem::take(&mut self.waiting) {
            if let Some(run) = self.runs.get_mut(&key) {
                self.judge.look_at(run, now, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::activity::Span;

    #[test]
    fn a_match_is_contradicted_once_however_many_things_contradict_it() {
        let (mut channels, group) = (Channels::default(), Handle(1));
        channels.run(group, Handle(2), None);
        let kernel = Kernel::during(Span { start: HostNs(10), end: HostNs(20), error_ns: 0 });
        channels.kernel(group, Handle(2), 0, &kernel, HostNs(30));
        channels.contradict(group);
        assert!(channels.next_ready().is_none(), "its match was not emitted yet");
        channels.said(group, Method::Bracket);
        channels.contradict(group);
        channels.contradict(group);
        assert!(matches!(channels.next_ready(), Some(Ready::Contradicted { .. })));
        assert!(channels.next_ready().is_none());
    }
}
