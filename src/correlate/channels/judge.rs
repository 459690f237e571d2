//! When the samples of a plan ran, and whether that can be true.

use std::collections::VecDeque;

use super::clocks::Clocks;
use super::run::{Agreement, Drawn, Facts, Ran, Run, Sample, flaw_of};
use super::trust::Trust;
use super::{CONVERSION_NS, HOLD_NS, Ready};
use crate::clock::device::{Contradiction, DeviceClock, Pair};
use crate::model::activity::{Kernel, Span};
use crate::model::time::{GpuNs, HostNs};
use crate::model::timeline::{ChannelChecks, Flaw, Timing};

/// How long a sample waits, in ns, while kernels show nothing about its GPU's timer yet: CUPTI
/// returns none of a buffer's kernels before the last of them has ended, and a job's first kernels
/// run long.
const UNSETTLED_HOLD_NS: u64 = 30_000_000_000;
/// After how long a channel that does not end is drawn anyway if its GPU's timer is known, in ns.
const OPEN_NS: u64 = 1_000_000_000;
/// The error of the host's times of records, in ns, with a margin.
const RECORD_ERROR_NS: u32 = 500;
/// The largest drift of a timer, in parts per million, with a margin.
const DRIFT_PPM: u64 = 400;

/// What is known about the clocks and the channels, and what follows from it for a plan.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// Kernels are reported, so samples wait for theirs.
    pub(super) kernels_expected: bool,
    pub(super) clocks: Clocks,
    pub(super) trust: Trust,
    pub(super) checks: ChannelChecks,
    pub(super) ready: VecDeque<Ready>,
}

impl Judge {
    /// By when the kernel of a plan must have begun, judged by what NCCL's threads saw of its
    /// channels.
    pub(super) fn begun_by(&self, run: &Run) -> Option<HostNs> {
        if run.samples.is_empty() || self.trust.is_distrusted(run) {
            return None;
        }
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

    /// How much later than its channels a kernel that may be this plan's begins, in ns, if they lie
    /// outside of it; 0 if they lie inside it. `None` if that is not known.
    pub(super) fn apart(&self, run: &Run, kernel: &Kernel) -> Option<i64> {
        if run.samples.is_empty() || run.open != 0 || self.trust.is_distrusted(run) {
            return None;
        }
        let clock = self.clocks.by_device.get(&kernel.place.device).filter(|clock| clock.is_settled())?;
        let [start, stop] = run.stamps(|sample| sample.is_sound() && self.trust.is_reliable(run, sample))?;
        let ((start, start_error), (end, end_error)) =
            (clock.to_host_unless_set(start)?, clock.to_host_unless_set(stop)?);
        let is_inside = is_inside(kernel.span, [start, end], start_error.max(end_error) + clock.step());
        Some(if is_inside { 0 } else { kernel.span.start.0 as i64 - start.0 as i64 })
    }

    pub(super) fn tell_clock(&mut self, device: u32, pair: Pair) {
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
    pub(super) fn look_at(&mut self, run: &mut Run, now: HostNs, last: bool) {
        self.tell_clocks(run);
        for index in 0..run.samples.len() {
            let sample = &run.samples[index];
            let due = match sample.drawn {
                Drawn::Whole => false,
                Drawn::Begun(..) if !sample.ended => false,
                Drawn::No if !sample.ended && !last => {
                    // Until the timer is known well, each kernel that is still to be reported may
                    // help.
                    let patience = if self.is_timer_known(run) { OPEN_NS } else { HOLD_NS };
                    now.since(sample.seen[0]) >= patience
                }
                // A sample that is wrong in itself need not wait for a clock, and nothing more will
                // be known about one that belongs to no plan.
                _ if last || sample.flaw.is_some() || run.loose || self.trust.is_distrusted(run) => true,
                _ => {
                    let known = self.is_timer_known(run);
                    let patience = match () {
                        () if !known => UNSETTLED_HOLD_NS,
                        () if self.kernels_expected => HOLD_NS,
                        () => OPEN_NS,
                    };
                    now.since(sample.seen[1]) >= patience || (run.told_device && known)
                }
            };
            if due {
                self.draw(run, index);
            }
        }
        let is_late = run.kernel.is_some_and(|ran| now.since(ran.since) >= HOLD_NS);
        self.agree(run, last || is_late);
    }

    /// Compares the channels of a plan with its kernel. If they lie outside, either one of them
    /// belongs to another, or the GPU's timer was set; the following kernels decide.
    pub(super) fn agree(&mut self, run: &mut Run, is_last: bool) {
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
            && let Some(ran) = &mut run.kernel
            && let Some(method) = ran.said.take()
        {
            let Ran { span, place, key, .. } = *ran;
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
            // Nothing will be known better, unless its channels are still to come.
            run.told_device |= complete && run.kernel.is_some() && !run.samples.is_empty();
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
    pub(super) fn draw(&mut self, run: &mut Run, index: usize) {
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
