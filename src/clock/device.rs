//! From a GPU's `%globaltimer` to the host's time, with an error bound (pure).
//!
//! The channels of a kernel run inside of it. So each kernel whose channels are known bounds the offset (the host's
//! time less the device's) from both sides: from below at its first channel's start, from above at its last
//! channel's stop. All lines of offset over time that respect every bound are kept, never a single one:
//!
//! ```text
//!   offset
//!     |   v    v              v      upper bounds: a kernel's end less the last stop
//!     |                v  ________
//!     |   ____________----            the lines in between; how far they lie apart is the error
//!     |       ____----
//!     |        ^       ^      ^
//!     |   ^                           lower bounds: a kernel's start less the first start
//!     +-----------------------------> the device's time
//! ```
//!
//! No clock is straight for long: crystals follow the temperature, and the kernel steers the host's. So a line is
//! only asked to hold for a piece of a few seconds, and the next piece begins with the lines of the one before,
//! widened by what a rate may change. What does not fit even so is a wrong match or a step of a clock, and what
//! follows tells which. A step that is smaller than what kernels leave open, a few microseconds, may go unnoticed.

use std::collections::VecDeque;

use crate::model::activity::Span;
use crate::model::time::{GpuNs, HostNs};

/// The coarsest step of a `%globaltimer`, in ns. A stamp may be older than its instant by one step. The true step is
/// often 32 ns, but it may change while a job runs and does not show in the values.
pub const STEP_NS: u64 = 1024;

/// How much earlier than a kernel's end its time may be because CUPTI's times have steps of their own, in ns.
const KERNEL_STEP: i64 = 32;
/// The most that the two clocks may drift apart, in ns per second.
const DRIFT: f64 = 200_000.0;
/// How long a line is asked to hold, in ns.
const PIECE: i64 = 2_000_000_000;
/// How much the drift may change within that time, in ns per second.
const CHANGE: f64 = 50.0;
/// How far the truth may then be from a straight line, in ns: a rate that changes by `CHANGE` strays from the chord
/// by a quarter of `CHANGE` times the length.
const BEND: i64 = 25;
/// Pieces kept: some minutes.
const PIECES: usize = 128;
/// Corners kept of what is feasible.
const CORNERS: usize = 16;
/// Pairs that must agree with each other before they stand against all the earlier ones.
const WITNESSES: usize = 3;
/// Contradictory explanations kept until one of them is confirmed.
const SUSPECTS: usize = 4;
/// A longer kernel says nothing about an offset, in ns.
const LONGEST: i64 = 86_400_000_000_000;

/// A kernel and its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// When the kernel ran.
    pub host: Span,
    /// The earliest start and the latest stop of its channels.
    pub device: [GpuNs; 2],
}

/// A pair that does not fit what the others say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// No offset explains it: it goes back in time, its channels ran longer than its kernel (a match that is wrong, or
    /// a step of a clock while it ran), or it lasted for more than a day. It was not used, and does not tell of a step.
    Unusable(Pair),
    /// Those around it agree with each other, not with it: it was a wrong match. It is not used any more.
    WrongMatch(Pair),
    /// A clock was set, or changed its rate, between these two kernels.
    Step {
        /// The end of the last kernel before it.
        after: HostNs,
        /// The start of the first kernel after it.
        before: HostNs,
        /// How much the offset (host less device) grew, in ns.
        by: i64,
    },
}

/// Maps the time of one GPU onto the host's.
#[derive(Debug, Default)]
pub struct DeviceClock {
    pieces: VecDeque<Piece>,
    /// The first pairs since the last step, until there are enough to trust them.
    witnesses: Vec<Pair>,
    suspects: Vec<Suspect>,
}

/// What would hold if pairs that contradict the newest piece were right.
#[derive(Debug)]
struct Suspect {
    piece: Piece,
    witnesses: Vec<Pair>,
}

/// Some seconds in which a line is good enough.
#[derive(Clone, Debug)]
struct Piece {
    lines: Lines,
    /// The device's time and the offset from which `lines` count.
    origin: i64,
    base: i64,
    /// The first and last device time with a bound.
    first: i64,
    last: i64,
    /// The host's time of the first and last pair.
    host_first: i64,
    host_last: i64,
    /// Whether a step lies between the piece before and this one.
    stepped: bool,
}

/// What a pair says about the offset, by device time.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    lower_at: i64,
    lower: i64,
    upper_at: i64,
    upper: i64,
    host_first: i64,
    host_last: i64,
}

impl DeviceClock {
    /// Takes what one kernel says. Pairs come roughly in the order of time. What they contradict is told as soon as
    /// it is certain, which is some pairs later.
    ///
    /// The span's error must cover all that is known of the kernel's two times, but for the steps of a GPU's timer.
    pub fn add(&mut self, pair: Pair) -> Vec<Contradiction> {
        let Some((bounds, alone)) = pair.bounds().and_then(|bounds| Some((bounds, Piece::new(&bounds)?))) else {
            return vec![Contradiction::Unusable(pair)];
        };
        if self.pieces.is_empty() {
            self.pieces.push_back(alone);
            self.witnesses.push(pair);
            return Vec::new();
        }
        let mut found = Vec::new();
        let fit = self.fit(&bounds);
        let mut suspected = false;
        self.suspects.retain_mut(|suspect| {
            // What did not matter for so long was not a step.
            let stale = bounds.upper_at > suspect.piece.first.saturating_add(PIECE);
            if !(stale && fit.is_some())
                && let Some(piece) = suspect.piece.with(&bounds)
            {
                suspected = true;
                suspect.piece = piece;
                if fit.is_none() {
                    suspect.witnesses.push(pair);
                }
                return true;
            }
            let refuted = fit.is_some() && bounds.host_last > suspect.piece.host_first;
            if refuted {
                found.extend(suspect.witnesses.iter().copied().map(Contradiction::WrongMatch));
            }
            !refuted
        });
        match fit {
            Some((index, piece)) if !suspected => self.accept(index, piece, pair),
            // It may be meant on either line, so it decides nothing.
            Some(_) => {}
            None if suspected => self.confirm(&mut found),
            None => {
                if self.suspects.len() == SUSPECTS {
                    let oldest = self.suspects.remove(0);
                    found.extend(oldest.witnesses.into_iter().map(Contradiction::WrongMatch));
                }
                self.suspects.push(Suspect { piece: alone, witnesses: vec![pair] });
            }
        }
        found
    }

    /// Whether enough kernels agree with each other to rely on what [`DeviceClock::to_host`] says.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.witnesses.len() >= WITNESSES
    }

    /// The host instant for an instant of the device's clock, and how far off it may be in ns. `None` before the
    /// first pair, and when there is no such instant.
    ///
    /// A stamp may have been taken up to [`STEP_NS`] after the instant that it names. Every new pair may move the
    /// result within the error. While it is not decided whether there was a step, the error covers both cases; once
    /// a device's time was set back, times that occur twice are taken for the later ones.
    #[must_use]
    pub fn to_host(&self, time: GpuNs) -> Option<(HostNs, u64)> {
        self.at(time, &self.suspects)
    }

    /// As [`DeviceClock::to_host`], if what is not decided was no step: it leaves out of account what contradicts the newest line.
    #[must_use]
    pub fn to_host_unless_set(&self, time: GpuNs) -> Option<(HostNs, u64)> {
        self.at(time, &[])
    }

    fn at(&self, time: GpuNs, suspects: &[Suspect]) -> Option<(HostNs, u64)> {
        let time = signed(time.0)?;
        let newest = self.pieces.back()?;
        // What holds if there was a step and this time lies after it, as far as that is not decided.
        let mut after_step = None;
        for suspect in suspects {
            if time >= suspect.piece.first - suspect.piece.idle_after(newest) {
                after_step = Some(hull(after_step, suspect.piece.at(time)));
            }
        }
        // The newest first: times are mostly young.
        let mut chosen = 0;
        for (index, piece) in self.pieces.iter().enumerate().rev() {
            if time >= piece.first || index == 0 {
                chosen = index;
                break;
            }
            if piece.stepped && time >= piece.first - piece.idle_after(&self.pieces[index - 1]) {
                after_step = Some(hull(after_step, piece.at(time)));
            }
        }
        let piece = &self.pieces[chosen];
        let range = piece.at(time);
        let (low, high) = match self.pieces.get(chosen + 1) {
            // In an idle time both neighbours are right.
            Some(next) if !next.stepped && time > piece.last => {
                let other = next.at(time);
                let both = (range.0.max(other.0), range.1.min(other.1));
                hull(after_step, if both.0 <= both.1 { both } else { hull(Some(range), other) })
            }
            // The device's time went on by more than the host's: only times after the step come so late.
            Some(next) if next.stepped && time > piece.last + next.idle_after(piece) => after_step.unwrap_or(range),
            _ => hull(after_step, range),
        };
        if high < 0 {
            return None;
        }
        let low = low.max(0);
        Some((HostNs(low.midpoint(high) as u64), (high - low).unsigned_abs().div_ceil(2)))
    }

    /// The piece that goes on with these bounds, and where it belongs: beyond the newest when it is a new one.
    fn fit(&self, bounds: &Bounds) -> Option<(usize, Piece)> {
        let newest = self.pieces.len() - 1;
        let index = self.pieces.iter().rposition(|piece| bounds.upper_at >= piece.first).unwrap_or(0);
        if index == newest {
            let next = self.pieces[newest].with(bounds)?;
            // Every piece has an origin of its own.
            return Some((if next.origin == self.pieces[newest].origin { newest } else { newest + 1 }, next));
        }
        // It came late.
        [index, index + 1].into_iter().find_map(|index| {
            let mut piece = self.pieces[index].clone();
            piece.include(bounds).then_some((index, piece))
        })
    }

    fn accept(&mut self, index: usize, piece: Piece, pair: Pair) {
        if self.witnesses.len() < WITNESSES {
            self.witnesses.push(pair);
        }
        if let Some(place) = self.pieces.get_mut(index) {
            *place = piece;
            return;
        }
        self.push(piece);
    }

    fn push(&mut self, piece: Piece) {
        if self.pieces.len() == PIECES {
            self.pieces.pop_front();
        }
        self.pieces.push_back(piece);
    }

    /// Goes over to a suspicion that has enough witnesses.
    fn confirm(&mut self, found: &mut Vec<Contradiction>) {
        let Some(index) = self.suspects.iter().position(|suspect| suspect.witnesses.len() >= WITNESSES) else { return };
        let Suspect { mut piece, witnesses } = self.suspects.remove(index);
        let refuted = self.suspects.drain(..).flat_map(|suspect| suspect.witnesses);
        found.extend(refuted.map(Contradiction::WrongMatch));
        if self.witnesses.len() < WITNESSES {
            // The first pairs of all were the wrong ones.
            found.extend(self.witnesses.drain(..).map(Contradiction::WrongMatch));
            self.pieces.clear();
        } else if let Some(newest) = self.pieces.back() {
            let middle = |piece: &Piece, at| {
                let (low, high) = piece.at(at);
                low.midpoint(high) - at
            };
            // The old line is followed for as long as the host's clock went on, whatever the device's did.
            let until = newest.last + piece.idle_after(newest);
            found.push(Contradiction::Step {
                after: HostNs(newest.host_last.max(0) as u64),
                before: HostNs(piece.host_first.max(0) as u64),
                by: middle(&piece, piece.first).saturating_sub(middle(newest, until)),
            });
            piece.stepped = true;
        }
        self.witnesses = witnesses;
        self.push(piece);
    }
}

impl Pair {
    fn bounds(&self) -> Option<Bounds> {
        let [first, last] = [signed(self.device[0].0)?, signed(self.device[1].0)?];
        let error = i64::from(self.host.error_ns);
        let [start, end] = [signed(self.host.start.0)?, signed(self.host.end.0)?];
        let lengths = [end - start, last - first];
        lengths.into_iter().all(|length| (0..=LONGEST).contains(&length)).then(|| Bounds {
            lower_at: first,
            // The first channel may have started up to a step after its stamp.
            lower: start - error - first - STEP_NS as i64 - BEND,
            upper_at: last,
            upper: end + error + KERNEL_STEP - last + BEND,
            host_first: start - error,
            host_last: end + error,
        })
    }
}

impl Piece {
    /// What one pair allows, if it allows anything.
    fn new(bounds: &Bounds) -> Option<Piece> {
        let length = seconds(bounds.upper_at - bounds.lower_at);
        let highest = (bounds.upper - bounds.lower) as f64 + DRIFT * length;
        let mut piece = Piece {
            lines: Lines::between(0.0, highest.max(0.0)),
            origin: bounds.lower_at,
            base: bounds.lower,
            first: bounds.lower_at,
            last: bounds.lower_at,
            host_first: bounds.host_first,
            host_last: bounds.host_last,
            stepped: false,
        };
        piece.include(bounds).then_some(piece)
    }

    /// The piece that goes on with these bounds, if they agree: this one, or the next when this one is long enough.
    fn with(&self, bounds: &Bounds) -> Option<Piece> {
        let mut piece = if bounds.upper_at - self.first > PIECE { self.next(bounds) } else { self.clone() };
        piece.include(bounds).then_some(piece)
    }

    /// The next piece, which knows what this one knew.
    fn next(&self, bounds: &Bounds) -> Piece {
        let at = bounds.upper_at;
        let idle = at - self.last;
        let mut lines = self.lines.clone();
        lines.move_to(seconds(at - self.origin));
        // From the line of this piece to the truth, and from there to the line of the next. The two pieces and what
        // lies between them have room for so many changes.
        let changes = CHANGE * (2.0 + seconds(idle) / seconds(PIECE));
        lines.widen(2.0 * BEND as f64 + stray(idle), changes);
        // No rate is beyond the prior, so this cuts off only what was added.
        lines.clip(|line| DRIFT - line.drift);
        lines.clip(|line| DRIFT + line.drift);
        Piece {
            lines,
            origin: at,
            base: self.base,
            first: at,
            last: at,
            host_first: bounds.host_first,
            host_last: bounds.host_last,
            stepped: false,
        }
    }

    /// Keeps the lines that respect the bounds. Whether there are any.
    fn include(&mut self, bounds: &Bounds) -> bool {
        let lower = self.reach(bounds.lower_at);
        let limit = bounds.lower.saturating_sub(self.base) as f64 - lower;
        let at = seconds(bounds.lower_at - self.origin);
        let above = self.lines.clip(|line| line.at(at) - limit);

        let upper = self.reach(bounds.upper_at);
        let limit = bounds.upper.saturating_sub(self.base) as f64 + upper;
        let at = seconds(bounds.upper_at - self.origin);
        let below = above && self.lines.clip(|line| limit - line.at(at));

        self.lines.thin(CORNERS);
        self.host_first = self.host_first.min(bounds.host_first);
        self.host_last = self.host_last.max(bounds.host_last);
        below
    }

    /// Makes the piece reach to this device time, or says how far the truth there may have strayed from its line.
    fn reach(&mut self, at: i64) -> f64 {
        let (first, last) = (self.first.min(at), self.last.max(at));
        if last - first > PIECE {
            return stray(self.outside(at));
        }
        (self.first, self.last) = (first, last);
        0.0
    }

    /// How far a device time lies outside of the piece.
    fn outside(&self, at: i64) -> i64 {
        (self.first - at).max(at - self.last).max(0)
    }

    /// The host's time from the end of another piece to the beginning of this one, in ns.
    fn idle_after(&self, other: &Piece) -> i64 {
        (self.host_first - other.host_last).max(0)
    }

    /// The earliest and latest host time for this device time.
    fn at(&self, at: i64) -> (i64, i64) {
        let (low, high) = self.lines.range(seconds(at - self.origin));
        let error = BEND as f64 + stray(self.outside(at));
        // The fractions lost on the way are far below the nanosecond added here.
        let low = (low - error).floor() as i64 - 1;
        let high = (high + error).ceil() as i64 + 1;
        let base = self.base.saturating_add(at);
        (base.saturating_add(low), base.saturating_add(high))
    }
}

/// A line of offset over time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// The offset at the origin, in ns.
    offset: f64,
    /// Its growth, in ns per second.
    drift: f64,
}

/// All lines that respect the bounds: a convex polygon over offset and drift, since each bound cuts along a straight
/// line there. Its corners are the lines that touch two bounds, in counterclockwise order.
#[derive(Clone, Debug)]
struct Lines(Vec<Line>);

impl Line {
    fn at(self, seconds: f64) -> f64 {
        self.offset + self.drift * seconds
    }

    fn to(self, other: Line) -> Line {
        Line { offset: other.offset - self.offset, drift: other.drift - self.drift }
    }

    fn along(self, way: Line, share: f64) -> Line {
        Line { offset: self.offset + way.offset * share, drift: self.drift + way.drift * share }
    }

    /// Twice the area between two sides; positive when the second turns left.
    fn cross(self, other: Line) -> f64 {
        self.offset * other.drift - self.drift * other.offset
    }
}

impl Lines {
    /// All that are between two offsets at the origin.
    fn between(low: f64, high: f64) -> Lines {
        let corners = [(low, -DRIFT), (high, -DRIFT), (high, DRIFT), (low, DRIFT)];
        Lines(corners.map(|(offset, drift)| Line { offset, drift }).into())
    }

    /// Keeps those whose margin is not negative. Whether there are any.
    fn clip(&mut self, margin: impl Fn(Line) -> f64) -> bool {
        // Most bounds say nothing new.
        if self.0.iter().all(|corner| margin(*corner) >= 0.0) {
            return !self.0.is_empty();
        }
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        let mut from = self.0[self.0.len() - 1];
        let mut before = margin(from);
        for &corner in &self.0 {
            let margin = margin(corner);
            if (before < 0.0) != (margin < 0.0) {
                kept.push(from.along(from.to(corner), before / (before - margin)));
            }
            if margin >= 0.0 {
                kept.push(corner);
            }
            (from, before) = (corner, margin);
        }
        self.0 = kept;
        !self.0.is_empty()
    }

    /// Leaves at most so many corners. A side is dropped by letting its neighbours run on until they meet, so nothing
    /// that is feasible gets lost; the one that adds least goes first.
    fn thin(&mut self, most: usize) {
        while self.0.len() > most {
            let count = self.0.len();
            let corner = |index: usize| self.0[index % count];
            let meeting = |index: usize| {
                let [before, from, to, after] = [0, 1, 2, 3].map(|next| corner(index + next));
                let (arriving, side, leaving) = (before.to(from), from.to(to), to.to(after));
                let turn = arriving.cross(leaving);
                let share = (side.cross(leaving) / turn).max(0.0);
                let meeting = from.along(arriving, share);
                (turn > 0.0).then_some((side.cross(from.to(meeting)).abs(), index, meeting))
            };
            let least = (0..count).filter_map(meeting).min_by(|one, other| one.0.total_cmp(&other.0));
            let Some((_, index, meeting)) = least else { return };
            self.0[(index + 1) % count] = meeting;
            self.0.remove((index + 2) % count);
        }
    }

    /// Moves the origin.
    fn move_to(&mut self, seconds: f64) {
        for corner in &mut self.0 {
            corner.offset = corner.at(seconds);
        }
    }

    /// Adds all lines that differ by at most so much.
    fn widen(&mut self, offset: f64, drift: f64) {
        let ways = [(-offset, -drift), (offset, -drift), (offset, drift), (-offset, drift)];
        let ways = ways.map(|(offset, drift)| Line { offset, drift });
        let mut all: Vec<Line> = self.0.iter().flat_map(|corner| ways.map(|way| corner.along(way, 1.0))).collect();
        all.sort_by(|one, other| one.offset.total_cmp(&other.offset).then(one.drift.total_cmp(&other.drift)));
        // Their hull: the lower side from left to right, then the upper one back.
        let mut hull = Vec::with_capacity(self.0.len() + 4);
        for back in [false, true] {
            let fixed = hull.len();
            for index in 0..all.len() {
                let line = all[if back { all.len() - 1 - index } else { index }];
                while let [.., before, last] = hull[fixed..]
                    && Line::to(before, last).cross(Line::to(last, line)) <= 0.0
                {
                    hull.pop();
                }
                hull.push(line);
            }
            // It is the first of the other side.
            hull.pop();
        }
        self.0 = hull;
    }

    /// The least and the greatest offset at a time.
    fn range(&self, seconds: f64) -> (f64, f64) {
        let offsets = self.0.iter().map(|corner| corner.at(seconds));
        offsets.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), offset| (low.min(offset), high.max(offset)))
    }
}

/// How far a clock may stray from its line in this time, in ns, beyond what it may stray within a piece.
fn stray(time: i64) -> f64 {
    let time = seconds(time);
    (CHANGE * time * (1.0 + time / seconds(PIECE))).min(2.0 * DRIFT * time)
}

/// The smallest range that holds both.
fn hull(one: Option<(i64, i64)>, other: (i64, i64)) -> (i64, i64) {
    one.map_or(other, |one| (one.0.min(other.0), one.1.max(other.1)))
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// Nanoseconds that are small enough for sums of two of them: up to the year 2116.
fn signed(ns: u64) -> Option<i64> {
    i64::try_from(ns).ok().filter(|ns| *ns <= i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const MS: i64 = 1_000_000;
    /// The host's time when a world begins.
    const BEGIN: i64 = 100_000 * SECOND;

    /// The same numbers in every run.
    struct Random(u64);

    impl Random {
        /// From 0 to one below.
        fn below(&mut self, limit: i64) -> i64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) as i64) % limit
        }

        fn between(&mut self, low: i64, high: i64) -> i64 {
            low + self.below(high - low + 1)
        }
    }

    /// A host, a GPU and what is known of the kernels that run there.
    struct World {
        random: Random,
        /// From each host time on: the device's time then, and its ns per host ns, less one.
        course: Vec<(i64, i64, f64)>,
        /// Of the device's timer.
        step: i64,
        /// The most that a kernel's times are off.
        error: i64,
        /// The least and most time of a kernel before its first channel and after its last one.
        slack: [i64; 2],
    }

    /// A pair, and the true host times of its stamps.
    struct Kernel {
        pair: Pair,
        truth: [i64; 2],
    }

    impl World {
        /// One with a device `ahead` of the host and faster by `drift` ns per second.
        fn new(seed: u64, ahead: i64, drift: f64, step: i64, error: i64) -> World {
            World {
                random: Random(seed),
                course: vec![(BEGIN, BEGIN + ahead, drift / 1e9)],
                step,
                error,
                slack: [3_000, 4_000],
            }
        }

        fn device(&self, host: i64) -> i64 {
            let (from, device, rate) = self.course[self.course.partition_point(|turn| turn.0 <= host).max(1) - 1];
            device + (host - from) + ((host - from) as f64 * rate).floor() as i64
        }

        /// From now on the device is ahead by so much more, and its drift grew.
        fn turn(&mut self, host: i64, more: i64, drift: f64) {
            let rate = self.course[self.course.len() - 1].2;
            self.course.push((host, self.device(host) + more, rate + drift / 1e9));
        }

        fn stamp(&self, host: i64) -> GpuNs {
            GpuNs((self.device(host) / self.step * self.step) as u64)
        }

        /// A kernel that starts now.
        fn kernel(&mut self, start: i64) -> Kernel {
            let busy = self.random.between(5_000, 600_000);
            self.kernel_of(start, busy)
        }

        /// A kernel with channels that run for so long.
        fn kernel_of(&mut self, start: i64, busy: i64) -> Kernel {
            let slack = self.random.between(self.slack[0], self.slack[1]);
            let head = self.random.between(0, slack);
            let error = self.random.between(0, self.error);
            let truth = [start + head, start + head + busy];
            // CUPTI's times have steps as well.
            let mut seen = |time: i64| HostNs((time + self.random.between(-error - 31, error)) as u64);
            let host = Span { start: seen(start), end: seen(start + busy + slack), error_ns: error as u32 };
            Kernel { pair: Pair { host, device: truth.map(|time| self.stamp(time)) }, truth }
        }
    }

    /// Asserts that an instant of the device's clock is where it should be, and returns the bound.
    #[track_caller]
    fn check(clock: &DeviceClock, world: &World, truth: i64) -> u64 {
        let (host, error) = clock.to_host(GpuNs(world.device(truth) as u64)).expect("a time");
        // The world's device times are rounded down.
        assert!(host.0.abs_diff(truth as u64) <= error + 1, "{host:?} ± {error} is not {truth}: {clock:?}");
        error
    }

    /// Asserts that the stamps of a kernel are where they should be.
    #[track_caller]
    fn check_stamps(clock: &DeviceClock, kernel: &Kernel) -> u64 {
        let mut most = 0;
        for (stamp, truth) in kernel.pair.device.into_iter().zip(kernel.truth) {
            let (host, error) = clock.to_host(stamp).expect("a time");
            let (low, high) = (host.0 as i64 - error as i64 - 1, (host.0 + error + STEP_NS) as i64);
            assert!((low..=high).contains(&truth), "{low}..{high} is not {truth}: {clock:?}");
            most = most.max(error);
        }
        most
    }

    /// All kinds of GPUs: (how far ahead, drift in ns per second, step, error).
    fn kinds() -> impl Iterator<Item = (i64, f64, i64, i64)> {
        let mut random = Random(7);
        let steps = [1, 32, 1000, 1024];
        (0..16).map(move |index| {
            let far = [5, 60, 600, 1_790_000_000][index / 4] * SECOND;
            // The host's time has to remain above 0.
            let ahead = random.between(-far.min(4_000 * SECOND), far);
            let drift = random.between(-100_000, 100_000) as f64;
            (ahead, drift, steps[index % 4], [0, 100, 500, 1000][(index + index / 4) % 4])
        })
    }

    #[test]
    fn the_truth_is_inside_and_the_bound_is_small_after_a_second() {
        for (seed, (ahead, drift, step, error)) in kinds().enumerate() {
            let mut world = World::new(seed as u64, ahead, drift, step, error);
            let mut clock = DeviceClock::default();
            for index in 0..1_300 {
                let now = BEGIN + index * MS;
                let kernel = world.kernel(now);
                assert_eq!(clock.add(kernel.pair), [], "{index}");
                let bound = check_stamps(&clock, &kernel);
                assert!(index < 1_000 || bound <= 4_000, "± {bound} after {index} ms");
                if index % 8 == 0 {
                    // Also before the first and after the last one.
                    let times = [(BEGIN, now), (BEGIN - 3 * SECOND, BEGIN), (now, now + 10 * SECOND)];
                    for time in times.map(|(from, until)| world.random.between(from, until)) {
                        check(&clock, &world, time);
                    }
                }
            }
        }
    }

    #[test]
    fn one_pair_is_a_bound_and_it_grows_with_the_distance() {
        let mut world = World::new(1, 77 * SECOND, 100_000.0, 32, 0);
        let mut clock = DeviceClock::default();
        assert_eq!(clock.to_host(GpuNs(1)), None);
        let kernel = world.kernel(BEGIN);
        clock.add(kernel.pair);
        let mut last = check_stamps(&clock, &kernel);
        assert!(last < 3_000, "± {last}");
        for distance in [10 * MS, SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND] {
            let errors = [BEGIN - distance, BEGIN + distance].map(|time| check(&clock, &world, time));
            let prior = distance as u64 / 5_000;
            for error in errors {
                assert!(error > last && (prior..4 * prior + 4_000).contains(&error), "± {error} at {distance}");
            }
            last = errors[0].min(errors[1]);
        }
        // What has no place on the host has no time.
        assert_eq!(clock.to_host(GpuNs(0)), None);
        assert_eq!(clock.to_host(GpuNs(u64::MAX)), None);
    }

    #[test]
    fn a_clock_may_change_its_rate_slowly() {
        // Rates that change by up to 0.1 ppm within 4 s: steadily, at random, or back and forth.
        let changes: [fn(i64, &mut Random) -> i64; 3] =
            [|_, _| 20, |_, random| random.between(-20, 20), |second, _| if second % 8 < 4 { 20 } else { -20 }];
        for (seed, change) in changes.into_iter().enumerate() {
            let mut world = World::new(seed as u64, 3 * SECOND, 9_000.0, 1024, 0);
            // Kernels with nothing to spare, so that every error shows.
            world.slack = [0, 0];
            for second in 1..150 {
                let by = change(second, &mut world.random);
                world.turn(BEGIN + second * SECOND, 0, by as f64);
            }
            // Some run for many seconds, and there is an idle half minute.
            let mut now = BEGIN;
            let mut kernels: Vec<Kernel> = (0..1_000)
                .map(|index| {
                    now += if index == 500 { 30 * SECOND } else { world.random.between(0, 100) * MS };
                    let long = index % 5 == 2 && !(300..500).contains(&index);
                    let busy = if long { world.random.below(10 * SECOND) } else { 100_000 };
                    world.kernel_of(now, busy)
                })
                .collect();
            kernels.sort_by_key(|kernel| kernel.truth[1]);
            let mut clock = DeviceClock::default();
            for (index, kernel) in kernels.iter().enumerate() {
                assert_eq!(clock.add(kernel.pair), [], "{index}");
                let bound = check_stamps(&clock, kernel);
                assert!(index < 30 || (500..530).contains(&index) || bound <= 4_000, "± {bound} at {index}");
                let later = kernel.truth[1] + world.random.below(20 * SECOND);
                check(&clock, &world, later);
            }
            for kernel in &kernels {
                check_stamps(&clock, kernel);
            }
            // In the idle time both sides help.
            let idle = kernels[499].truth[1];
            for second in 0..30 {
                let bound = check(&clock, &world, idle + second * SECOND);
                let distance = second.min(30 - second) as u64;
                assert!(bound <= 4_000 + 2_500 * distance, "± {bound} after {second} s");
            }
            assert!(clock.pieces.len() > 10);
        }
    }

    #[test]
    fn nothing_is_lost_when_the_bounds_have_nothing_to_spare() {
        for (seed, step) in [1, 32, 1000, 1024].into_iter().enumerate() {
            let mut world = World::new(seed as u64, -33 * SECOND, -100_000.0, step, 40);
            world.slack = [0, 0];
            let mut clock = DeviceClock::default();
            let kernels: Vec<Kernel> = (0..800).map(|index| world.kernel(BEGIN + index * MS)).collect();
            for kernel in &kernels {
                assert_eq!(clock.add(kernel.pair), []);
                check_stamps(&clock, kernel);
            }
            for kernel in &kernels {
                assert!(check_stamps(&clock, kernel) < 1_000);
            }
        }
    }

    #[test]
    fn a_step_begins_a_new_segment() {
        //  kernels   0 1 2 ... 399 | 400 401 402 ... 799      the device was set forward or back at |
        //  one comes late            399       400
        for (seed, by) in [20_000, -20_000, 900_000, -900_000, 5 * SECOND, -5 * SECOND].into_iter().enumerate() {
            for late in [None, Some(399), Some(400)] {
                let mut world = World::new(seed as u64, 60 * SECOND, -40_000.0, 1000, 700);
                let mut clock = DeviceClock::default();
                let kernels: Vec<Kernel> = (0..800)
                    .map(|index| {
                        let now = BEGIN + index * 5 * MS;
                        if index == 400 {
                            world.turn(now - 2 * MS, by, 0.0);
                        }
                        world.kernel(now)
                    })
                    .collect();
                let mut order: Vec<usize> = (0..800).collect();
                match late {
                    Some(399) => order.swap(399, 400),
                    Some(_) => order[400..405].rotate_left(1),
                    None => {}
                }
                let mut found = Vec::new();
                for (count, index) in order.into_iter().enumerate() {
                    found.extend(clock.add(kernels[index].pair));
                    let bound = check_stamps(&clock, &kernels[index]);
                    assert!(!((200..399).contains(&count) || count >= 600) || bound <= 4_000, "± {bound} at {index}");
                    assert!((399..403).contains(&count) || clock.suspects.is_empty(), "{index}");
                }
                let [Contradiction::Step { after, before, by: found }] = found[..] else { panic!("{found:?}") };
                let [last, first] = [399, 400].map(|index| &kernels[index]);
                assert!(after >= last.pair.host.end && before.0 > last.pair.host.end.0);
                assert!(late == Some(400) || before <= first.pair.host.start);
                assert!((found + by).abs() < 10_000, "{found} is not {}", -by);
                // A time that occurred twice means the later one.
                for (index, kernel) in kernels.iter().enumerate().skip(if by < -SECOND { 400 } else { 0 }) {
                    let bound = check_stamps(&clock, kernel);
                    // The last one before the step stopped when it may just have been.
                    let undecided = if (399..=400).contains(&index) { by.unsigned_abs() } else { 0 };
                    assert!(bound <= 6_000 + undecided, "± {bound} at {index}");
                }
                // Between the two kernels it may have been at any time, but a leap forward leaves a mark.
                if by > -SECOND {
                    for tenth in 0..40 {
                        let bound = check(&clock, &world, last.truth[1] + tenth * MS / 10);
                        assert!(by < SECOND || late == Some(400) || bound <= 6_000, "± {bound}");
                    }
                }
            }
        }
    }

    /// A kernel in the middle of a span, with 2 us on both sides, from a host time on.
    fn plain(world: &World, start: i64, error: i64) -> Kernel {
        let truth = [start + 2_000, start + 102_000];
        let ends = [start, start + 104_000].map(|time| HostNs(time as u64));
        let host = Span { start: ends[0], end: ends[1], error_ns: error as u32 };
        Kernel { pair: Pair { host, device: truth.map(|time| world.stamp(time)) }, truth }
    }

    #[test]
    fn what_fits_both_lines_decides_nothing() {
        //  kernels   0 ... 99 | 100  101  102  103  104  105       of the ones after |, the even ones fit only the new
        //                       new  both new  both new  both      line and the others fit both
        let mut world = World::new(0, 10 * SECOND, 0.0, 1, 0);
        let mut clock = DeviceClock::default();
        let mut kernels = Vec::new();
        for index in 0..106 {
            let now = BEGIN + index * MS;
            if index == 100 {
                world.turn(now - MS / 2, 8_000, 0.0);
            }
            let both = index > 100 && index % 2 == 1;
            let kernel = plain(&world, now, if both { 8_000 } else { 0 });
            let found = clock.add(kernel.pair);
            check_stamps(&clock, &kernel);
            kernels.push(kernel);
            if index == 104 {
                let [Contradiction::Step { after, before, .. }] = found[..] else { panic!("{found:?}") };
                assert_eq!(after, kernels[99].pair.host.end);
                assert_eq!(before, kernels[100].pair.host.start);
            } else {
                assert_eq!(found, [], "{index}");
            }
        }
        for kernel in &kernels {
            check_stamps(&clock, kernel);
        }
    }

    #[test]
    fn a_suspicion_does_not_last() {
        // One kernel a minute: by then the old line and that of a wrong match are both possible.
        let world = World::new(0, 10 * SECOND, 0.0, 1, 0);
        let mut clock = DeviceClock::default();
        let mut wrong = Vec::new();
        for index in 0..40 {
            let now = BEGIN + index * 60 * SECOND;
            let kernel = plain(&world, now, 0);
            let expected = std::mem::take(&mut wrong);
            assert_eq!(clock.add(kernel.pair), expected, "{index}");
            let bound = check_stamps(&clock, &kernel);
            assert!(bound < 4_000, "± {bound}");
            if index % 10 == 9 {
                let mut pair = plain(&world, now + SECOND, 0).pair;
                pair.device = pair.device.map(|stamp| GpuNs(stamp.0 + 50_000));
                assert_eq!(clock.add(pair), []);
                wrong.push(Contradiction::WrongMatch(pair));
            }
        }
    }

    #[test]
    fn wrong_matches_change_nothing() {
        for seed in 0..6 {
            let worlds = || World::new(seed, -300 * SECOND, 90_000.0, 1024, 200);
            let (mut world, mut clock, mut untouched) = (worlds(), DeviceClock::default(), DeviceClock::default());
            let mut kernels: Vec<Kernel> = Vec::new();
            let (mut wrong, mut found) = (Vec::new(), Vec::new());
            for index in 0..500 {
                kernels.push(world.kernel(BEGIN + index * MS));
                let kernel = &kernels[kernels.len() - 1];
                // One alone, or two of a kind.
                if index % 50 == 49 || index % 200 == 98 {
                    // The stamps of another kernel, or stamps that mean nothing.
                    let mut pair = kernel.pair;
                    pair.device = match index / 50 % 4 {
                        0 => kernels[kernels.len() - 2].pair.device,
                        1 => kernel.pair.device.map(|stamp| GpuNs(stamp.0 + 50_000)),
                        2 => kernel.pair.device.map(|stamp| GpuNs(stamp.0 + 3_600_000_000_000)),
                        _ => kernel.pair.device.map(|stamp| GpuNs(stamp.0 / 1_000_000)),
                    };
                    if pair.device == kernels[kernels.len() - 2].pair.device {
                        // Its length must fit the kernel, or it is refused at once.
                        pair.host.end.0 += 700_000;
                    }
                    wrong.push(Contradiction::WrongMatch(pair));
                    found.extend(clock.add(pair));
                    // Meanwhile what is older keeps its bound.
                    if index > 100 {
                        check(&clock, &world, BEGIN + 20 * MS);
                    }
                } else {
                    found.extend(clock.add(kernel.pair));
                    assert_eq!(untouched.add(kernel.pair), []);
                    assert!(clock.suspects.is_empty());
                    check_stamps(&clock, kernel);
                }
            }
            let last = kernels.pop().expect("kernels");
            found.extend(clock.add(last.pair));
            untouched.add(last.pair);
            assert_eq!(found, wrong);
            for kernel in &kernels {
                assert_eq!(clock.to_host(kernel.pair.device[0]), untouched.to_host(kernel.pair.device[0]));
            }
        }
    }

    #[test]
    fn a_wrong_first_pair_is_outvoted() {
        let mut world = World::new(3, 8 * SECOND, 10_000.0, 32, 0);
        let mut clock = DeviceClock::default();
        let mut wrong = world.kernel(BEGIN).pair;
        wrong.device = wrong.device.map(|stamp| GpuNs(stamp.0 + 40_000));
        assert_eq!(clock.add(wrong), []);
        let mut found = Vec::new();
        for index in 1..20 {
            let kernel = world.kernel(BEGIN + index * MS);
            found.extend(clock.add(kernel.pair));
            // Nobody can know before.
            let bound = check_stamps(&clock, &kernel);
            assert!(index < 3 || bound < 3_000, "± {bound} at {index}");
        }
        assert_eq!(found, [Contradiction::WrongMatch(wrong)]);
        assert!(check(&clock, &world, BEGIN) < 10_000);
    }

    #[test]
    fn a_pair_that_contradicts_itself_is_refused() {
        let mut world = World::new(4, 8 * SECOND, 0.0, 32, 0);
        let good = world.kernel(BEGIN).pair;
        let Pair { host, device: [first, last] } = good;
        let mut clock = DeviceClock::default();
        let later = |stamp: GpuNs, by: u64| GpuNs(stamp.0 + by);
        for bad in [
            Pair { host, device: [last, first] },
            Pair { host, device: [first, later(last, 20_000)] },
            Pair { host: Span { start: host.end, end: host.start, error_ns: 0 }, device: [first, last] },
            Pair { host: Span { end: HostNs(u64::MAX), ..host }, device: [first, GpuNs(u64::MAX)] },
            Pair { host: Span { end: HostNs(1 << 62), ..host }, device: [first, last] },
        ] {
            assert_eq!(clock.add(bad), [Contradiction::Unusable(bad)]);
        }
        assert_eq!(clock.to_host(first), None);
        assert_eq!(clock.add(good), []);
    }

    #[test]
    fn kernels_may_come_late_and_run_long() {
        let mut world = World::new(5, -20 * SECOND, 50_000.0, 32, 100);
        let mut clock = DeviceClock::default();
        let mut kernels: Vec<Kernel> = (0..400).map(|index| world.kernel(BEGIN + index * 40 * MS)).collect();
        // One that ran all the time, and some that were reported 9 s later.
        let long = [BEGIN + 2_000, BEGIN + 15 * SECOND];
        let host = Span { start: HostNs(BEGIN as u64), end: HostNs((long[1] + 1_500) as u64), error_ns: 0 };
        let long = Kernel { pair: Pair { host, device: long.map(|time| world.stamp(time)) }, truth: long };
        kernels.insert(390, long);
        for index in (0..150).step_by(7) {
            kernels[index..index + 230].rotate_left(1);
        }
        for kernel in &kernels {
            assert_eq!(clock.add(kernel.pair), []);
            check_stamps(&clock, kernel);
        }
        for kernel in &kernels {
            assert!(check_stamps(&clock, kernel) <= 4_000);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut world = World::new(6, 20 * SECOND, -70_000.0, 1000, 1000);
        let mut clock = DeviceClock::default();
        for index in 0..3_000_i64 {
            let kernel = world.kernel(BEGIN + index * 700 * MS);
            let mut pair = kernel.pair;
            if index % 5 == 0 {
                let by = world.random.below(SECOND) as u64;
                pair.device = pair.device.map(|stamp| GpuNs(stamp.0 + by));
            }
            clock.add(pair);
            assert!(clock.pieces.len() <= PIECES && clock.suspects.len() <= SUSPECTS);
            assert!(clock.pieces.back().is_some_and(|piece| piece.lines.0.len() <= CORNERS));
            assert!(clock.suspects.iter().all(|suspect| suspect.witnesses.len() < WITNESSES));
        }
        assert_eq!(clock.pieces.len(), PIECES);
    }

    #[test]
    fn thinning_only_widens() {
        // Bounds that all matter: they touch a parabola from both sides.
        let curve = |at: i64| 10_000_000 + (900_000.0 * seconds(at) * seconds(at)) as i64;
        let bounds = |at: i64| Bounds {
            lower_at: at,
            lower: -curve(at),
            upper_at: at,
            upper: curve(at),
            host_first: 0,
            host_last: 0,
        };
        let mut piece = Piece::new(&bounds(0)).expect("lines");
        let mut exact = piece.lines.clone();
        let mut random = Random(9);
        for _ in 0..200 {
            let bounds = bounds(random.between(-2 * SECOND, 2 * SECOND));
            let (at, low, high) = (seconds(bounds.lower_at), bounds.lower - piece.base, bounds.upper - piece.base);
            assert!(piece.include(&bounds));
            assert!(exact.clip(|line| line.at(at) - low as f64) && exact.clip(|line| high as f64 - line.at(at)));
            assert!(piece.lines.0.len() <= CORNERS);
            for at in -8..=8 {
                let (least, greatest) = exact.range(f64::from(at));
                let (low, high) = piece.lines.range(f64::from(at));
                assert!(low <= least + 1e-3 && high >= greatest - 1e-3, "{low}..{high} lost {least}..{greatest}");
                // It costs little.
                assert!(high - low <= 1.1 * (greatest - least), "{low}..{high} for {least}..{greatest}");
            }
        }
        assert!(exact.0.len() > 2 * CORNERS, "{} corners", exact.0.len());
    }

    #[test]
    fn no_numbers_are_too_strange() {
        let mut random = Random(11);
        let edges = [0, 1, BEGIN as u64, 1 << 61, 1 << 62, i64::MAX as u64, u64::MAX];
        let mut clock = DeviceClock::default();
        for _ in 0..4_000 {
            let edge = edges[random.below(7) as usize];
            let mut number = |near: u64| near.wrapping_add_signed(random.between(-SECOND, SECOND));
            let [start, stop] = [number(BEGIN as u64), number(edge)].map(|near| near.min(1 << 62));
            let [end, last] = [start, stop].map(|from| from.saturating_add(number(SECOND as u64) / 1000));
            let error_ns = number(u64::from(u32::MAX)) as u32;
            let host = Span { start: HostNs(start), end: HostNs(end), error_ns };
            clock.add(Pair { host, device: [GpuNs(stop), GpuNs(last)] });
            for time in [number(0), number(edge), stop, last] {
                let _ = clock.to_host(GpuNs(time));
            }
        }
    }

    #[test]
    fn widening_holds_every_sum() {
        let mut lines = Lines::between(0.0, 3_000.0);
        assert!(lines.clip(|line| line.at(2.0) + 1_000.0) && lines.clip(|line| 4_000.0 - line.at(2.0)));
        let narrow = lines.clone();
        lines.widen(200.0, 50.0);
        for at in [-3.0_f64, 0.0, 0.5, 2.0, 10.0] {
            let (was, is) = (narrow.range(at), lines.range(at));
            let by = 200.0 + 50.0 * at.abs();
            assert!((was.0 - is.0 - by).abs() < 1e-6 && (is.1 - was.1 - by).abs() < 1e-6, "{was:?} {is:?}");
        }
    }
}
