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
/// How long a sample waits, in ns, while kernels show nothing about its GPU's timer yet: CUPTI
/// returns none of a buffer's kernels before the last of them has ended, and a job's first kernels
/// run long.
const UNSETTLED_HOLD_NS: u64 = 30_000_000_000;
/// After how long a channel that does not end is drawn anyway if its GPU's timer is known, in ns.
const OPEN_NS: u64 = 1_000_000_000;
/// The error of the host's times of records, in ns, with a margin.
const RECORD_ERROR_NS: u32 = 500;
/// How far CUPTI's conversion of a GPU's timer may be off from one kernel to another, in ns, with a
/// margin. Channels that lie outside of their kernel by less do not contradict it.
pub(super) const CONVERSION_NS: u64 = 50_000;
/// The largest drift of a timer, in parts per million, with a margin.
const DRIFT_PPM: u64 = 400;

/// Channels and what they say about clocks and kernels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// Kernels are reported, so samples wait for theirs.
    kernels_expected: bool,
    /// There has been a sample.
    sampled: bool,
    runs: Bounded<Handle, Run>,
    /// How many samples all runs have.
    samples: usize,
    count: u64,
    /// Plans with samples that are not drawn yet.
    waiting: Vec<Handle>,
    clocks: Clocks,
    trust: Trust,
    orphans: Vec<Orphan>,
    /// The place of each stream handle of NCCL's, as learnt from matched kernels.
    streams: Bounded<u64, Place>,
    ready: VecDeque<Ready>,
    checks: ChannelChecks,
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

    /// A communicator's device, from its `init`.
    pub(super) fn comm_on(&mut self, context: Handle, device: u32) {
        self.clocks.devices.insert(context, device);
    }

    /// From this plan on, NCCL may mistake the stamps of a communicator's operations for those of
    /// others: they prove nothing, bound no clock, and are not drawn as GPU times.
    pub(super) fn distrust(&mut self, context: Handle) {
        self.trust.distrust(context, self.count);
    }

    /// Whether a communicator's stamps may be those of other operations from some time on.
    pub(super) fn distrusts(&self, context: Handle) -> bool {
        self.trust.distrusts(context)
    }

    /// A communicator was finalized. What is still open in it will not end, as after an abort.
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

    /// Forgets a communicator.
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

    /// Emits what is known about the samples of a plan that is forgotten.
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

    /// By when the kernel of a plan must have begun, judged by what NCCL's threads saw of its
    /// channels.
    pub(super) fn begun_by(&self, group: Handle) -> Option<HostNs> {
        let run = self.runs.get(&group).filter(|run| !self.trust.is_distrusted(run))?;
        let reliable = |sample: &&Sample| self.trust.is_reliable(run, sample) && sample.flaw.is_none();
        let first = run.stamps(|sample| reliable(sample) && sample.is_sound()).map(|[first, _]| first);
        let step = self.clocks.of_gpu(run).map_or_else(|| DeviceClock::default().step(), DeviceClock::step);
        let begun = run.samples.iter().filter(reliable).map(|sample| match first {
            // It ran for at least this long before its end was seen.
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
        // 0 to 2 are the default streams, which every context has.
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

    /// How much later than its channels a kernel that may be this plan's begins, in ns, if they lie
    /// outside of it; 0 if they lie inside it. `None` if that is not known.
    pub(super) fn apart(&self, group: Handle, kernel: &Kernel) -> Option<i64> {
        let run = self.runs.get(&group).filter(|run| run.open == 0 && !self.trust.is_distrusted(run))?;
        let clock = self.clocks.by_device.get(&kernel.place.device).filter(|clock| clock.is_settled())?;
        let [start, stop] = run.stamps(|sample| sample.is_sound() && self.trust.is_reliable(run, sample))?;
        let ((start, start_error), (end, end_error)) =
            (clock.to_host_unless_set(start)?, clock.to_host_unless_set(stop)?);
        let is_inside = is_inside(kernel.span, [start, end], start_error.max(end_error) + clock.step());
        Some(if is_inside { 0 } else { kernel.span.start.0 as i64 - start.0 as i64 })
    }

    /// What a plan's channels say about its kernel. An open question stays open, unless `is_last`.
    pub(super) fn agreement(&mut self, group: Handle, is_last: bool) -> Agreement {
        let Some((age, mut run)) = self.runs.take(&group) else { return Agreement::Unknown };
        self.agree(&mut run, is_last);
        let agreement = run.agreement;
        self.runs.put_back(group, age, run);
        agreement
    }

    /// The kernel that was matched to a plan may be another's, so its times say nothing about the
    /// plan or a clock.
    pub(super) fn contradict(&mut self, group: Handle) {
        let Some(run) = self.runs.get_mut(&group).filter(|run| run.agreement != Agreement::Agrees) else { return };
        run.agreement = Agreement::Contradicts;
        if let Some(ran) = &mut run.kernel {
            ran.disputed = true;
            let Ran { span, place, key, said, .. } = *ran;
            self.ready.extend(said.map(|method| Ready::Contradicted { time: span.start, place, key, method }));
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

    /// Nothing more will arrive.
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
                // It may have been CUPTI's times instead.
                Contradiction::Step { .. } if self.clocks.disputed.contains(&device) => {}
                Contradiction::Step { after, before, by } => {
                    self.ready.push_back(Ready::Step { device, after, before, by });
                }
                Contradiction::Unusable(_) | Contradiction::WrongMatch(_) => self.checks.contradictions += 1,
            }
        }
    }

    /// Emits what can be emitted of a plan's samples.
    fn look_at(&mut self, key: Handle, now: HostNs, last: bool) {
        let Some((age, mut run)) = self.runs.take(&key) else { return };
        self.tell_clocks(&mut run);
        for index in 0..run.samples.len() {
            let sample = &run.samples[index];
            let due = match sample.drawn {
                Drawn::Whole => false,
                Drawn::Begun(..) if !sample.ended => false,
                Drawn::No if !sample.ended && !last => {
                    // Until the timer is known well, each kernel that is still to be reported may
                    // help.
                    let patience = if self.is_timer_known(&run) { OPEN_NS } else { HOLD_NS };
                    now.since(sample.seen[0]) >= patience
                }
                // A sample that is wrong in itself need not wait for a clock, and nothing more will
                // be known about one that belongs to no plan.
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

    /// Compares the channels of a plan with its kernel. If they lie outside, either one of them
    /// belongs to another, or the GPU's timer was set; the following kernels decide.
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

    /// Whether the channels of a plan lie in its kernel, if that is known.
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
        if !run.told_comm && !self.trust.is_distrusted(run) {
            run.told_comm = true;
            let clock = self.clocks.by_comm.entry(run.context).or_default();
            clock.see(stamps.iter().copied());
            if let (Some(start), Some(end)) = (run.since, seen) {
                let host = Span { start, end: end.max(start), error_ns: RECORD_ERROR_NS };
                // A contradiction of so wide a bound shows in the checks of the samples.
                clock.add(Pair { host, device: device_stamps });
            }
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

    /// Whether the timer of a plan's GPU is known as well as kernels can show; always true without
    /// kernels.
    fn is_timer_known(&self, run: &Run) -> bool {
        !self.kernels_expected
            || self.clocks.is_disputed(run)
            || self.clocks.of_gpu(run).is_some_and(DeviceClock::is_settled)
    }

    /// When a sample ran, or why that is unknown.
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

    /// Counts the result for a sample that ended.
    fn count(&mut self, run: &Run, index: usize, judged: Result<(), Flaw>) {
        match judged {
            Ok(()) if run.kernel().is_some() => self.checks.inside_kernel += 1,
            Ok(()) => self.checks.without_kernel += 1,
            Err(Flaw::ClockUnknown | Flaw::Miscounted) => self.checks.unmapped += 1,
            Err(flaw) => {
                self.checks.implausible += 1;
                // If none of its channels fits, the clock or the match may be wrong instead.
                let fits = |it: &Sample| it.ended && it.is_channel() && self.judge(run, it).is_ok();
                let alone = flaw != Flaw::OutsideKernel || run.samples.iter().any(fits);
                if flaw.is_drift() && alone {
                    let is_first = self.trust.mark(run, &run.samples[index]);
                    self.checks.unreliable += u64::from(is_first);
                }
            }
        }
    }

    /// Emits a sample, or the rest of it.
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

/// Whether something with these times, off by at most `error`, can have run in a kernel.
fn is_inside(kernel: Span, [start, end]: [HostNs; 2], error: u64) -> bool {
    let room = error + u64::from(kernel.error_ns);
    start.0 + room >= kernel.start.0 && end.0 <= kernel.end.0 + room
}

/// A time that is off by at most `error` and lies in a kernel: the middle of the range that both
/// allow, moved to where the kernel is drawn; and how far off that may be.
fn inside(kernel: Span, time: HostNs, error: u64) -> (HostNs, u64) {
    let room = u64::from(kernel.error_ns);
    let low = time.0.saturating_sub(error).max(kernel.start.0.saturating_sub(room));
    let high = (time.0 + error).min(kernel.end.0 + room).max(low);
    let middle = HostNs(low.midpoint(high));
    let drawn = middle.clamp(kernel.start, kernel.end);
    (drawn, (high - low).div_ceil(2) + drawn.0.abs_diff(middle.0))
}
