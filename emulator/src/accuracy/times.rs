//! Whether times are within the errors that the trace states.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::{Claim, Clock, Key, Seen, SeenChannel, SeenKernel, Truth, Verdict, key};
use crate::truth::Kernel;

/// The length of the shortest NCCL kernel on a real GPU, in ns: 3.1 to 3.7 us pass from its
/// beginning to the first stamp of a channel, and from the last one to its end. Emulated ones may
/// be shorter.
const SHORTEST_NS: i64 = 3_100;
/// The same for a channel, from the same kernels. The timers' bound is compared with it.
const SHORTEST_CHANNEL_NS: i64 = 4_000;

impl Clock {
    /// Adds one more thing of length `long`, whose ends are off by `off` and whose stated error is
    /// `error`.
    pub(super) fn add(&mut self, off: &[i64], error: i64, long: i64) {
        let worst = off.iter().map(|it| it.abs()).max().unwrap_or_default();
        self.worst = self.worst.max(worst);
        self.bound = self.bound.max(error);
        self.outside += u64::from(worst > error);
        self.wide += u64::from(error > long.max(SHORTEST_NS));
    }

    pub(super) fn join(&mut self, other: &Clock) {
        self.worst = self.worst.max(other.worst);
        self.bound = self.bound.max(other.bound);
        self.outside += other.outside;
        self.wide += other.wide;
    }
}

/// How much later a kernel's beginning and end are drawn than they were, in ns.
pub(super) fn off(truth: &Truth<'_>, kernel: &Kernel, seen: &SeenKernel) -> [i64; 2] {
    [(seen.begin, kernel.start), (seen.end, kernel.end)].map(|(at, was)| at - truth.boot(was))
}

impl Verdict {
    pub(super) fn judge_times(
        &mut self,
        truth: &Truth<'_>,
        kernel: &Kernel,
        seen: &SeenKernel,
        cupti_off: [Option<i64>; 2],
    ) {
        let off = off(truth, kernel, seen);
        let long = kernel.end.saturating_sub(kernel.start) as i64;
        let before = self.clock;
        self.clock.add(&off, seen.error, long);
        self.explain(&off, seen.error, cupti_off);
        let when = (kernel.start as i64 - truth.process.clocks.reference as i64) as f64 / 1e9;
        let (symbol, key, error) = (&seen.symbol, seen.key, seen.error);
        if self.clock.outside > before.outside {
            self.example(|| format!("{symbol} {key:?}, {when:.3} s: off by {off:?} ns where {error} are stated"));
        }
        if self.clock.wide > before.wide {
            self.example(|| format!("{symbol} {key:?}, {when:.3} s: {long} ns long, {error} ns uncertain"));
        }
    }

    /// Whether the times are off by no more than their own error plus what the recording says
    /// CUPTI's may be off.
    fn explain(&mut self, off: &[i64], error: i64, [least, most]: [Option<i64>; 2]) {
        // Where it gives no bound, it does not know one.
        let (least, most) = (least.unwrap_or(i64::MIN / 4).min(0), most.unwrap_or(i64::MAX / 4).max(0));
        let possible = |off: &i64| (least - error..=most + error).contains(off);
        self.unexplained += u64::from(!off.iter().all(possible));
    }

    pub(super) fn judge_channels(&mut self, truth: &Truth<'_>, seen: &Seen) {
        /// What a kernel stamped.
        struct Stamped {
            times: [i64; 2],
            /// When the timer's next step came.
            until: [i64; 2],
            /// The length of the kernel that it must fit into. Where the trace has none, or does
            /// not know that it is the right one, there is nothing to compare its time with, and
            /// it may be as uncertain as it states.
            room: Option<i64>,
            /// A second or more after the first on this GPU.
            later: bool,
        }
        let is_matched = |kernel: &&SeenKernel| matches!(kernel.claim, Claim::Operations { .. });
        let shown: HashSet<Key> = seen.kernels.iter().filter(is_matched).map(|kernel| kernel.key).collect();
        let mut first: HashMap<u32, i64> = HashMap::new();
        let mut stamped: HashMap<(u32, u64), Vec<Stamped>> = HashMap::new();
        for (kernel, channel) in
            truth.kernels.iter().flat_map(|kernel| kernel.channels.iter().map(move |channel| (kernel, channel)))
        {
            // The stamps belong to a batch of works, each of which began later and ended earlier.
            let stamps = [channel.timer_start, channel.timer_end];
            // A timer shows the same time until its next step.
            let (times, until) = match truth.timers.get(&kernel.device) {
                Some(timer) => {
                    (stamps.map(|at| timer.when(at)), stamps.map(|at| timer.when(at + timer.granularity_ns)))
                }
                None => ([channel.start, channel.end], [channel.start, channel.end]),
            };
            let [times, until] = [times, until].map(|times| times.map(|time| truth.boot(time)));
            let room = shown.contains(&key(kernel)).then(|| (kernel.end - kernel.start) as i64);
            let later = times[0] - *first.entry(kernel.device).or_insert(times[0]) >= 1_000_000_000;
            stamped.entry((channel.channel, channel.timer_start)).or_default().push(Stamped {
                times,
                until,
                room,
                later,
            });
        }
        let cupti_off = seen.cupti_off;
        for channel in &seen.channels {
            self.channels += 1;
            // Timers of two GPUs may show the same time, and two works of a batch may begin within
            // one step of the timer. Then the better fit is the right one.
            let off = |stamped: &Stamped| {
                let away = |at: i64, of: usize| at - at.clamp(stamped.times[of], stamped.until[of]);
                [away(channel.begin, 0), channel.end.map_or(0, |at| away(at, 1))]
            };
            let candidates = stamped.get(&(channel.channel, channel.timer_start)).into_iter().flatten();
            let Some(stamped) = candidates.min_by_key(|stamped| off(stamped).map(i64::abs).into_iter().max()) else {
                self.unknown_channels += 1;
                continue;
            };
            let off = off(stamped);
            let room = stamped.room.map_or(i64::MAX, |room| room.max(SHORTEST_CHANNEL_NS));
            let before = self.timer;
            self.timer.add(&off, channel.error, room);
            self.explain(&off, channel.error, cupti_off);
            if stamped.later && stamped.room.is_some() {
                self.later.add(&off, channel.error, room);
            }
            let SeenChannel { name, channel: number, error, .. } = channel;
            let when = (stamped.times[0] - truth.boot(truth.process.clocks.reference)) as f64 / 1e9;
            if self.timer.outside > before.outside {
                let kernel = if stamped.room.is_some() { "a matched kernel" } else { "an unmatched kernel" };
                self.example(|| {
                    format!(
                        "{name}, channel {number} of {kernel}, {when:.3} s: off by {off:?} ns where {error} are stated"
                    )
                });
            }
            if self.timer.wide > before.wide {
                self.example(|| {
                    format!("{name}, channel {number}, {when:.3} s: its kernel is {room} ns long, {error} ns uncertain")
                });
            }
        }
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}/{:.1} us", self.worst as f64 / 1e3, self.bound as f64 / 1e3)
    }
}
