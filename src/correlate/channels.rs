//! When each channel of a kernel ran, on the host's clock, and whether that can be true.
//!
//! NCCL's threads report a channel some time after it ran, with two stamps of the GPU's own timer. Three things bound how that
//! timer lies to the host's clock, and so tell when the channel ran and how sure that is:
//!
//! ```text
//!  host    [KernelLaunch]                                            NCCL's thread sees the stop
//!          |<------------ the channel ran in here, without CUPTI --------------->|
//!  GPU                       [ kernel, by CUPTI           ]
//!                              [channel 0            ]
//!                               [channel 1         ]
//! ```
//!
//! The same bounds check each sample: NCCL predicts which of its channel's reports belongs to which operation, and where
//! that fails (docs/nccl-profiler-interface.md) all later ones of that channel may be another operation's. What cannot be true
//! is drawn where NCCL's thread saw it, with the reason, and the channel is marked from there on.
//!
//! Where a kernel's launch was not seen, its channels tell whose it is: [`super::adopt`].

mod clocks;
mod orphans;
mod run;
mod trust;

use std::collections::VecDeque;

use self::clocks::Clocks;
pub(super) use self::orphans::Adopted;
pub(super) use self::run::{Agreement, Facts};
use self::run::{Drawn, Ran, Run, Sample, flaw_of};
use self::trust::Trust;
use super::adopt::Orphan;
use super::bounded::Bounded;
use super::plans::Handover;
use crate::clock::device::{Contradiction, DeviceClock, Pair};
use crate::model::activity::{Kernel, Place, Span};
use crate::model::ids::Handle;
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{ChannelChecks, Doubt, Flaw, Method, Timing, Unmatched};

/// Plans remembered, for samples and kernels that come late.
const RUNS: usize = 4096;
/// Samples of one plan that wait: 64 channels, and a send and a receive on each, with their phases.
const SAMPLES: usize = 512;
/// Samples of all plans: beyond that, those of the oldest plan are drawn as they are known, and forgotten.
const ALL_SAMPLES: usize = 16 << 10;
/// What is said at once, about: all of it lies in memory until it is written. More follows the next time.
const AT_ONCE: usize = 4096;
/// Streams whose place is known.
const STREAMS: usize = 4096;
/// How long a sample waits for its kernel, and such a kernel for its samples, in ns.
const HOLD_NS: u64 = 4_000_000_000;
/// How long a sample waits where kernels tell nothing of its GPU's timer yet, in ns: CUPTI returns none of a buffer's kernels before the
/// last of them has ended, and the first of a job run long.
const UNSETTLED_HOLD_NS: u64 = 30_000_000_000;
/// After how long a channel that does not end is drawn all the same, where its GPU's timer is known, in ns.
const OPEN_NS: u64 = 1_000_000_000;
/// The error of the host's times of records, in ns, with room to spare.
const RECORD_ERROR_NS: u32 = 500;
/// How far CUPTI's conversion of a GPU's timer may be off from one kernel to another, in ns, and to spare. Channels that lie outside of
/// their kernel by less do not contradict it.
pub(super) const CONVERSION_NS: u64 = 50_000;
/// The most that a timer may drift, in parts per million, and to spare.
const DRIFT_PPM: u64 = 400;

/// Channels and what they say about clocks and kernels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// Kernels are reported: samples wait for theirs.
    kernels_expected: bool,
    /// There are samples at all.
    sampled: bool,
    runs: Bounded<Handle, Run>,
    /// Samples of all of them.
    samples: usize,
    count: u64,
    /// Plans with samples that are not drawn.
    waiting: Vec<Handle>,
    clocks: Clocks,
    trust: Trust,
    orphans: Vec<Orphan>,
    /// Where the streams are that NCCL names, as matched kernels taught.
    streams: Bounded<u64, Place>,
    ready: VecDeque<Ready>,
    checks: ChannelChecks,
}

/// What is certain now, in the order in which it is to be said.
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
    /// The match of a kernel that was said by this method.
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
    /// Kernels are going to be reported.
    pub(super) fn expect_kernels(&mut self) {
        self.kernels_expected = true;
    }

    /// What the cross-checks found so far.
    pub(super) fn checks(&self) -> ChannelChecks {
        self.checks
    }

    /// The next thing that is certain.
    pub(super) fn next_ready(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// A communicator's device, where `init` says.
    pub(super) fn comm_on(&mut self, context: Handle, device: u32) {
        self.clocks.devices.insert(context, device);
    }

    /// From the plan at hand on NCCL may take the stamps of a communicator's operations for those of others: they prove nothing, bound no
    /// clock, and are not drawn as the GPU's.
    pub(super) fn distrust(&mut self, context: Handle) {
        self.trust.distrust(context, self.count);
    }

    /// Whether a communicator's stamps may be those of other operations from some time on.
    pub(super) fn distrusts(&self, context: Handle) -> bool {
        self.trust.distrusts(context)
    }

    /// A communicator was finalized: what is open of it is not going to end, as after an abort.
    pub(super) fn finalized(&mut self, context: Handle) {
        for key in self.waiting.clone() {
            let Some((age, mut run)) = self.runs.take(&key) else { continue };
            for index in 0..run.samples.len() {
                let sample = &run.samples[index];
                if run.context == context && !sample.ended && sample.drawn == Drawn::No {
                    self.draw(&mut run, index);
                }
            }
            self.runs.put_back(key, age, run);
        }
    }

    /// A communicator is forgotten.
    pub(super) fn forget(&mut self, context: Handle) {
        self.trust.forget(context);
        self.clocks.devices.remove(&context);
        self.clocks.by_comm.remove(&context);
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

    /// Says of the samples of a plan that is forgotten what is known of them.
    fn forgotten(&mut self, mut run: Run) {
        self.samples -= run.samples.len();
        for index in 0..run.samples.len() {
            self.draw(&mut run, index);
        }
    }

    /// A plan was handed over.
    pub(super) fn handed_over(&mut self, group: Handle, handover: Handover) {
        if let Some(run) = self.runs.get_mut(&group) {
            run.since = run.since.or(handover.since);
            run.handover = Some(handover);
        }
    }

    /// A sample begins in the plan of this Group. The answer is under which key it goes on: its own, where the plan is not known.
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

    /// The GPU's clock at the end of a sample.
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
            // Its begin was said when the plan was forgotten, and its stamp with it.
            let timing = Some(Timing::Seen(Flaw::NoStamp));
            self.ready.push_back(Ready::End { time: now, id, stop: GpuNs(0), timing, doubt: None });
            return;
        };
        let Some(sample) = run.samples.iter_mut().rev().find(|sample| sample.facts.id == id) else { return };
        sample.seen[1] = now;
        sample.ended = true;
        if sample.is_channel() {
            run.open -= 1;
            sample.flaw = self.trust.look_at(run.context, run.number, sample);
        }
        self.look_at(key, now, false);
    }

    /// When the kernel of a plan must have begun, by what NCCL's threads saw of its channels.
    pub(super) fn begun_by(&self, group: Handle) -> Option<HostNs> {
        let run = self.runs.get(&group).filter(|run| !self.trust.is_distrusted(run))?;
        let reliable = |sample: &&Sample| self.trust.is_reliable(run, sample) && sample.flaw.is_none();
        let first = run.stamps(|sample| reliable(sample) && sample.is_sound()).map(|[first, _]| first);
        let step = self.clocks.of_gpu(run).map_or_else(|| DeviceClock::default().step(), DeviceClock::step);
        let begun = run.samples.iter().filter(reliable).map(|sample| match first {
            // It ran for so long at least, before its end was seen.
            Some(first) if sample.is_sound() => {
                let ran = sample.stop.0.saturating_sub(first.0).saturating_sub(step);
                let slow = ran / 1_000_000 * DRIFT_PPM;
                HostNs(sample.seen[1].0.saturating_sub(ran - slow)).min(sample.seen[0])
            }
            _ => sample.seen[0],
        });
        begun.min()
    }

    /// By how much CUPTI's conversion of a GPU's timer was seen to be off, in ns.
    pub(super) fn conversion(&self, device: u32) -> u32 {
        self.clocks.by_device.get(&device).map_or(0, DeviceClock::conversion)
    }

    /// Whether CUPTI's times of a GPU are off, by NCCL's own.
    pub(super) fn dispute(&mut self, device: u32, are_off: bool) {
        if are_off {
            self.clocks.disputed.insert(device);
        } else {
            self.clocks.disputed.remove(&device);
        }
    }

    /// A kernel of this plan ran.
    pub(super) fn kernel(&mut self, group: Handle, context: Handle, stream: u64, kernel: &Kernel, now: HostNs) {
        // 0 to 2 name the default streams, which every context has.
        if stream > 2 {
            self.streams.insert(stream, kernel.place, STREAMS);
        }
        if !context.is_none() {
            self.clocks.devices.insert(context, kernel.place.device);
        }
        if let Some(run) = self.runs.get_mut(&group)
            && run.kernel.is_none()
        {
            let disputed =
                run.agreement == Agreement::Contradicts || self.clocks.disputed.contains(&kernel.place.device);
            let &Kernel { span, place, correlation, graph_node, .. } = kernel;
            run.kernel = Some(Ran { span, place, key: (correlation, graph_node), since: now, said: None, disputed });
            self.look_at(group, now, false);
        }
    }

    /// How much later than its channels a kernel begins that may be this plan's, where these lie outside of it, in ns; 0 where they lie
    /// in it. `None` where that is not known.
    pub(super) fn apart(&self, group: Handle, kernel: &Kernel) -> Option<i64> {
        let run = self.runs.get(&group).filter(|run| run.open == 0 && !self.trust.is_distrusted(run))?;
        let clock = self.clocks.by_device.get(&kernel.place.device).filter(|clock| clock.is_settled())?;
        let [start, stop] = run.stamps(|sample| sample.is_sound() && self.trust.is_reliable(run, sample))?;
        let ((start, start_error), (end, end_error)) =
            (clock.to_host_unless_set(start)?, clock.to_host_unless_set(stop)?);
        let is_inside = is_inside(kernel.span, [start, end], start_error.max(end_error) + clock.step());
        Some(if is_inside { 0 } else { kernel.span.start.0 as i64 - start.0 as i64 })
    }

    /// What a plan's channels say of its kernel. Where that is open it stays so, unless `is_last`.
    pub(super) fn agreement(&mut self, group: Handle, is_last: bool) -> Agreement {
        let Some((age, mut run)) = self.runs.take(&group) else { return Agreement::Unknown };
        self.agree(&mut run, is_last);
        let agreement = run.agreement;
        self.runs.put_back(group, age, run);
        agreement
    }

    /// The kernel that was matched to a plan may be another's: its times say nothing of the plan, nor of a clock.
    pub(super) fn contradict(&mut self, group: Handle) {
        let Some(run) = self.runs.get_mut(&group).filter(|run| run.agreement != Agreement::Agrees) else { return };
        run.agreement = Agreement::Contradicts;
        if let Some(ran) = &mut run.kernel {
            ran.disputed = true;
            let Ran { span, place, key, said, .. } = *ran;
            self.ready.extend(said.map(|method| Ready::Contradicted { time: span.start, place, key, method }));
        }
    }

    /// The match of a plan's kernel was said: who contradicts it later has to be said, too.
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

    /// Time goes on: what waited long enough is said.
    pub(super) fn advance(&mut self, now: HostNs) {
        self.find_owners(now);
        for key in std::mem::take(&mut self.waiting) {
            if self.ready.len() >= AT_ONCE {
                self.waiting.push(key);
                continue;
            }
            self.look_at(key, now, false);
            if let Some(run) = self.runs.get_mut(&key) {
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

    /// Nothing more will come.
    pub(super) fn finish(&mut self, now: HostNs) {
        self.find_owners(now);
        let orphans = std::mem::take(&mut self.orphans);
        self.give_up(orphans);
        for key in std::mem::take(&mut self.waiting) {
            self.look_at(key, now, true);
        }
    }

    fn tell_clock(&mut self, device: u32, pair: Pair) {
        for contradiction in self.clocks.by_device.entry(device).or_default().add(pair) {
            match contradiction {
                // It may be CUPTI's times that were.
                Contradiction::Step { .. } if self.clocks.disputed.contains(&device) => {}
                Contradiction::Step { after, before, by } => {
                    self.ready.push_back(Ready::Step { device, after, before, by });
                }
                Contradiction::Unusable(_) | Contradiction::WrongMatch(_) => self.checks.contradictions += 1,
            }
        }
    }

    /// Says what can be said of a plan's samples.
    fn look_at(&mut self, key: Handle, now: HostNs, last: bool) {
        let Some((age, mut run)) = self.runs.take(&key) else { return };
        self.tell_clocks(&mut run);
        for index in 0..run.samples.len() {
            let sample = &run.samples[index];
            let due = match sample.drawn {
                Drawn::Whole => false,
                Drawn::Begun(..) if !sample.ended => false,
                Drawn::No if !sample.ended && !last => {
                    // Until the timer is known well, each kernel that is still to be reported may tell much.
                    let patience = if self.is_timer_known(&run) { OPEN_NS } else { HOLD_NS };
                    now.since(sample.seen[0]) >= patience
                }
                // What is wrong in itself need not wait for a clock, and nothing will be known of what belongs to no plan.
                _ if last || sample.flaw.is_some() || run.loose || self.trust.is_distrusted(&run) => true,
                _ => {
                    let known = self.is_timer_known(&run);
                    let patience = match () {
                        () if !known => UNSETTLED_HOLD_NS,
                        () if self.kernels_expected => HOLD_NS,
                        () => OPEN_NS,
                    };
                    now.since(sample.seen[1]) >= patience || (run.told_device && known)
                }
            };
            if due {
                self.draw(&mut run, index);
            }
        }
        let is_late = run.kernel.is_some_and(|ran| now.since(ran.since) >= HOLD_NS);
        self.agree(&mut run, last || is_late);
        self.runs.put_back(key, age, run);
    }

    /// Holds the channels of a plan against its kernel. Where they lie outside, either is another's, or the GPU's timer was set: the
    /// kernels that follow tell.
    fn agree(&mut self, run: &mut Run, is_last: bool) {
        if matches!(run.agreement, Agreement::Agrees | Agreement::Contradicts) {
            return;
        }
        let Some(agrees) = self.are_inside(run, is_last) else { return };
        let is_open = !agrees && !is_last && self.clocks.of_gpu(run).is_some_and(DeviceClock::is_undecided);
        run.agreement = match (agrees, is_open) {
            (true, _) => Agreement::Agrees,
            (false, true) => Agreement::Open,
            (false, false) => Agreement::Contradicts,
        };
        self.checks.kernels_confirmed += u64::from(agrees);
        if run.agreement == Agreement::Contradicts
            && let Some(Ran { span, place, key, said: Some(method), .. }) = run.kernel
        {
            self.ready.push_back(Ready::Contradicted { time: span.start, place, key, method });
        }
    }

    /// Whether the channels of a plan lie in its kernel, where that can be said.
    fn are_inside(&self, run: &Run, is_last: bool) -> Option<bool> {
        let Ran { span, .. } = run.kernel().filter(|_| run.open == 0 && !self.trust.is_distrusted(run))?;
        if self.clocks.is_disputed(run) {
            return None;
        }
        let [start, stop] = run.stamps(|sample| sample.is_sound() && self.trust.is_reliable(run, sample))?;
        let is_settled = self.clocks.of_gpu(run).is_some_and(DeviceClock::is_settled);
        let ((start, start_error), (end, end_error)) =
            (self.clocks.at(run, start).ok()?, self.clocks.at(run, stop).ok()?);
        let error = start_error.max(end_error);
        let agrees = is_inside(span, [start, end], error);
        let contradicts = !is_inside(span, [start, end], error + CONVERSION_NS);
        // Before the timer is known, a kernel agrees with what it says itself.
        (agrees != contradicts && (is_settled || (is_last && agrees))).then_some(agrees)
    }

    /// Gives the clocks what a plan says about them, once it is complete.
    fn tell_clocks(&mut self, run: &mut Run) {
        let complete = run.open == 0;
        let reliable = |sample: &&Sample| sample.is_sound() && self.trust.is_reliable(run, sample);
        let Some(device_stamps) = run.stamps(reliable).filter(|_| complete) else {
            // Nothing will be known better.
            run.told_device |= complete && run.kernel.is_some();
            return;
        };
        let samples = || run.samples.iter().filter(reliable);
        let seen = samples().map(|sample| sample.seen[1]).max();
        let stamps: Vec<GpuNs> = samples().flat_map(|sample| [sample.facts.start, sample.stop]).collect();
        if !run.told_comm
            && !self.trust.is_distrusted(run)
            && let (Some(start), Some(end)) = (run.since, seen)
        {
            run.told_comm = true;
            let host = Span { start, end: end.max(start), error_ns: RECORD_ERROR_NS };
            // What contradicts so wide a bound shows in the checks of the samples.
            let clock = self.clocks.by_comm.entry(run.context).or_default();
            clock.see(stamps.iter().copied());
            clock.add(Pair { host, device: device_stamps });
        }
        if !run.told_device
            && let Some(Ran { span, place, disputed, .. }) = run.kernel
        {
            run.told_device = true;
            if !self.trust.is_distrusted(run) && !disputed {
                self.clocks.by_device.entry(place.device).or_default().see(stamps.iter().copied());
                self.tell_clock(place.device, Pair { host: span, device: device_stamps });
            }
        }
    }

    /// Whether the timer of a plan's GPU is known as well as kernels can tell; without kernels, always.
    fn is_timer_known(&self, run: &Run) -> bool {
        !self.kernels_expected
            || self.clocks.is_disputed(run)
            || self.clocks.of_gpu(run).is_some_and(DeviceClock::is_settled)
    }

    /// When a sample ran, or why that cannot be said.
    fn judge(&self, run: &Run, sample: &Sample) -> Result<([HostNs; 2], u32), Flaw> {
        if let Some(flaw) = sample.flaw {
            return Err(flaw);
        }
        if sample.facts.start.0 == 0 {
            return Err(Flaw::NoStamp);
        }
        if self.trust.is_distrusted(run) {
            return Err(Flaw::Miscounted);
        }
        let (start, start_error) = self.clocks.at(run, sample.facts.start)?;
        if !sample.ended {
            if run.since.is_some_and(|since| start.0 + start_error < since.0) {
                return Err(Flaw::BeforeLaunch);
            }
            return Ok(([start; 2], start_error as u32));
        }
        if let Some(flaw) = flaw_of([sample.facts.start, sample.stop]) {
            return Err(flaw);
        }
        let (end, end_error) = self.clocks.at(run, sample.stop)?;
        let error = start_error.max(end_error);
        match run.kernel() {
            Some(Ran { span, .. }) => {
                if !is_inside(span, [start, end], error) {
                    return Err(Flaw::OutsideKernel);
                }
                let [(start, start_error), (end, end_error)] = [start, end].map(|time| inside(span, time, error));
                Ok(([start, end.max(start)], start_error.max(end_error) as u32))
            }
            None if run.since.is_some_and(|since| start.0 + error < since.0) => Err(Flaw::BeforeLaunch),
            None if end.0 > sample.seen[1].0 + error => Err(Flaw::AfterSeen),
            None => Ok(([start, end.max(start)], error as u32)),
        }
    }

    /// Counts what was found of a sample that ended.
    fn count(&mut self, run: &Run, index: usize, judged: Result<(), Flaw>) {
        match judged {
            Ok(()) if run.kernel().is_some() => self.checks.inside_kernel += 1,
            Ok(()) => self.checks.without_kernel += 1,
            Err(Flaw::ClockUnknown | Flaw::Miscounted) => self.checks.unmapped += 1,
            Err(flaw) => {
                self.checks.implausible += 1;
                // If none of its channels fits, the clock or the match may be wrong as well.
                let fits = |it: &Sample| it.ended && it.is_channel() && self.judge(run, it).is_ok();
                let alone = flaw != Flaw::OutsideKernel || run.samples.iter().any(fits);
                if flaw.is_drift() && alone {
                    let is_first = self.trust.mark(run, &run.samples[index]);
                    self.checks.unreliable += u64::from(is_first);
                }
            }
        }
    }

    /// Says a sample, or the rest of it.
    fn draw(&mut self, run: &mut Run, index: usize) {
        let sample = &run.samples[index];
        if sample.drawn == Drawn::Whole {
            return;
        }
        let judged = self.judge(run, sample);
        let unreliable = self.trust.since(run, sample).is_some_and(|since| run.number > since);
        if sample.ended && sample.is_channel() {
            self.count(run, index, judged.map(|_| ()));
        }
        let sample = &mut run.samples[index];
        let (times, timing) = match judged {
            Ok((times, error_ns)) => (times, Timing::Gpu { error_ns, place: run.kernel.map(|ran| ran.place) }),
            Err(flaw) => (sample.seen, Timing::Seen(flaw)),
        };
        let (time, known_less) = match sample.drawn {
            Drawn::Begun(begin, said) => sample.end_after(begin, said, times[1], timing),
            _ => {
                let (time, context, facts) = (times[0], run.context, Box::new(sample.facts.clone()));
                self.ready.push_back(Ready::Begin { time, context, facts, timing, unreliable });
                (times[1], None)
            }
        };
        sample.drawn = Drawn::Begun(times[0], timing);
        if sample.ended {
            sample.drawn = Drawn::Whole;
            let Facts { id, doubt, .. } = sample.facts;
            self.ready.push_back(Ready::End { time, id, stop: sample.stop, timing: known_less, doubt });
        }
    }
}

/// Whether what ran from and to these times, off by at most `error`, can have run in a kernel.
fn is_inside(kernel: Span, [start, end]: [HostNs; 2], error: u64) -> bool {
    let room = error + u64::from(kernel.error_ns);
    start.0 + room >= kernel.start.0 && end.0 <= kernel.end.0 + room
}

/// A time that is off by at most `error` and lies in a kernel: in the middle of what both leave open, as far as the kernel is drawn there,
/// and how far off that may be.
fn inside(kernel: Span, time: HostNs, error: u64) -> (HostNs, u64) {
    let room = u64::from(kernel.error_ns);
    let low = time.0.saturating_sub(error).max(kernel.start.0.saturating_sub(room));
    let high = (time.0 + error).min(kernel.end.0 + room).max(low);
    let middle = HostNs(low.midpoint(high));
    let drawn = middle.clamp(kernel.start, kernel.end);
    (drawn, (high - low).div_ceil(2) + drawn.0.abs_diff(middle.0))
}
