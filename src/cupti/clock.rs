//! Converts CUPTI's time to the host's, with an error bound (pure).
//!
//! CUPTI's time is the wall clock unless a tool gave CUPTI another clock: we give it
//! `CLOCK_BOOTTIME` if no tool has used it before (`super::subscription`), and a PyTorch tracer
//! gives it the processor's ticks. So the clock is checked repeatedly ([`Reading`]), and each
//! stretch of time without a change is a segment with its own rule.
//!
//! ```text
//!        wall clock       |  wall clock, set back  |  ticks of the processor
//! -- reading -- reading --|-- reading -- reading --|-- reading -- reading --> CLOCK_BOOTTIME
//! ```
//!
//! The kernel steers all its clocks together, so between two steps the wall clock and
//! `CLOCK_BOOTTIME` differ by a constant, and every reading bounds it. If no constant fits any
//! more, the wall clock was set. A time from around that moment may be meant before or after the
//! step, or lie on the line that CUPTI drew across it; its error covers all three.
//!
//! A CUPTI that was given `CLOCK_BOOTTIME` may keep the wall clock for the GPU's times without
//! reporting it (`crate::releases`, `LatchedClock`). The two clocks are decades apart, so each such
//! time shows which clock it comes from.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::model::time::HostNs;

/// How far CUPTI's time may lie outside the two surrounding readings of a host clock and still
/// count as that clock, in ns. Other clocks are off by far more.
const SLACK: u64 = 10_000;
/// Rounding between two clocks of the kernel, in ns.
const ROUNDING: i64 = 10;
/// How far a step of the wall clock may affect times before and after it, in ns: CUPTI converts the
/// GPU's times along straight lines between its own readings, and does not say how far these are
/// apart.
const BEND: i64 = 1_000_000_000;
/// If the wall clock was set back, records older than this on arrival, in ns, are taken for more
/// recent ones.
const LATE: i64 = 30_000_000_000;
/// How much older than a change of CUPTI's clock a record may be and still have its time in the new
/// clock, in ns: CUPTI converts the GPU's times with some delay.
const CONVERTED_LATE: i64 = 10_000_000_000;
/// How long before the first reading a record may have begun, in ns.
const BEFORE: i64 = 1_000_000_000;
/// How far in the future a converted time may lie, in ns.
const AHEAD: i64 = 1_000_000;
/// Segments kept. It is rare to have more than one. Where the wall clock is set again and again, as
/// in some virtual machines, older ones are joined.
const SEGMENTS: usize = 8;
/// Readings kept of a clock that is not the wall clock, and the shortest piece between two of them
/// that shows its rate well, in ns.
const PAIRS: usize = 64;
const PIECE: i64 = 50_000_000;
/// How much the rate of such a clock may change from one piece to the next before it counts as
/// another clock, and how much it may be off beyond what was measured (both relative).
const OTHER_CLOCK: f64 = 1e-3;
const DRIFT: f64 = 1e-4;

/// A time of CUPTI's, in the clock that it used at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

/// The clocks, read one after the other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `CLOCK_BOOTTIME`.
    pub boot_before: HostNs,
    /// `CLOCK_REALTIME` in ns.
    pub wall_before: u64,
    /// `cuptiGetTimestamp`; `None` if it was not called or did not answer.
    pub cupti: Option<Stamp>,
    /// `CLOCK_REALTIME` in ns.
    pub wall_after: u64,
    /// `CLOCK_BOOTTIME`.
    pub boot_after: HostNs,
}

/// What differs from the reading before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The wall clock was set forwards, or back if negative, by this many ns.
    Stepped(i64),
    /// CUPTI's time is no longer the wall clock, or another foreign clock than before.
    Foreign,
    /// CUPTI's time is the wall clock again.
    Wall,
    /// CUPTI's time is `CLOCK_BOOTTIME` now.
    Boottime,
}

/// Maps CUPTI's time onto the host's.
#[derive(Debug, Default)]
pub struct CuptiClock {
    segments: VecDeque<Segment>,
    /// A time was the wall clock's, though CUPTI states `CLOCK_BOOTTIME` as its clock.
    is_latched: Cell<bool>,
}

/// A stretch of time with one rule.
#[derive(Debug)]
struct Segment {
    rule: Rule,
    /// The host's time at the segment's first and last reading, and at the last one that included
    /// CUPTI.
    first: i64,
    last: i64,
    checked: i64,
}

#[derive(Debug)]
enum Rule {
    /// CUPTI's time is the wall clock.
    Wall {
        /// Bounds of the wall clock less `CLOCK_BOOTTIME`.
        low: i64,
        high: i64,
        /// How far outside its brackets CUPTI was seen.
        slack: i64,
    },
    /// CUPTI's time is `CLOCK_BOOTTIME`, seen outside its brackets by at most `slack`; the GPU's
    /// times may be the wall clock.
    Boottime {
        slack: i64,
        /// Bounds of the wall clock less `CLOCK_BOOTTIME`; if it was set, they include the values
        /// before and after.
        low: i64,
        high: i64,
    },
    /// CUPTI's time is another clock: a straight line from each reading to the next.
    Line(VecDeque<Pair>),
}

/// A foreign clock and the host's, at one instant.
#[derive(Clone, Copy, Debug)]
struct Pair {
    stamp: i64,
    host: i64,
    error: i64,
}

/// The clock that a reading shows CUPTI to use.
#[derive(Clone, Copy)]
enum Domain {
    /// Not known: CUPTI was not asked.
    Unknown,
    /// The wall clock, to within this many ns.
    Wall(i64),
    /// `CLOCK_BOOTTIME`, to within this many ns.
    Boottime(i64),
    Foreign(Pair),
}

impl Reading {
    /// Bounds of the wall clock less `CLOCK_BOOTTIME`. `None` if the wall clock was set in between;
    /// the next reading will show that.
    fn offset(&self) -> Option<(i64, i64)> {
        let [boot_before, wall_before, wall_after, boot_after] =
            [self.boot_before.0, self.wall_before, self.wall_after, self.boot_after.0].map(signed);
        let low = wall_after?.checked_sub(boot_after?)?.checked_sub(ROUNDING)?;
        let high = wall_before?.checked_sub(boot_before?)?.checked_add(ROUNDING)?;
        (low <= high).then_some((low, high))
    }

    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    fn domain(&self) -> Domain {
        // Before CUPTI has looked at the GPU, its clock may not run yet.
        let Some(Stamp(stamp @ 1..)) = self.cupti else { return Domain::Unknown };
        let outside = |before: u64, after: u64| before.saturating_sub(stamp).max(stamp.saturating_sub(after));
        let wall = outside(self.wall_before, self.wall_after);
        if wall <= SLACK {
            return Domain::Wall(wall as i64);
        }
        let boottime = outside(self.boot_before.0, self.boot_after.0);
        if boottime <= SLACK {
            return Domain::Boottime(boottime as i64);
        }
        let (Some(stamp), Some(before), Some(after)) =
            (signed(stamp), signed(self.boot_before.0), signed(self.boot_after.0))
        else {
            return Domain::Unknown;
        };
        let error = (after - before) / 2 + 1;
        Domain::Foreign(Pair { stamp, host: before + error - 1, error })
    }
}

impl CuptiClock {
    /// Takes a reading. A reading older than the last one is ignored.
    pub fn add(&mut self, reading: &Reading) -> Option<Change> {
        let (low, high) = reading.offset()?;
        let now = signed(reading.boot_after.0)?;
        if self.segments.back().is_some_and(|segment| now < segment.last) {
            return None;
        }
        let domain = reading.domain();
        let asked = !matches!(domain, Domain::Unknown);
        let had_one = !self.segments.is_empty();
        let (rule, change) = match (self.segments.back_mut().map(|it| &mut it.rule), domain) {
            (Some(Rule::Line(_)), Domain::Unknown) => return None,
            (Some(Rule::Boottime { slack, low: lowest, high: highest }), Domain::Unknown | Domain::Boottime(_)) => {
                // It is not known whether CUPTI follows when the wall clock is set.
                let fits = low <= *highest && high >= *lowest;
                (*lowest, *highest) = match fits {
                    true => (low.max(*lowest), high.min(*highest)),
                    false => (low.min(*lowest), high.max(*highest)),
                };
                if let Domain::Boottime(outside) = domain {
                    *slack = outside.max(*slack);
                    self.confirm(now, asked);
                }
                return None;
            }
            (_, Domain::Boottime(slack)) => (Rule::Boottime { slack, low, high }, Change::Boottime),
            (Some(Rule::Wall { low: lowest, high: highest, slack }), Domain::Unknown | Domain::Wall(_)) => {
                if low <= *highest && high >= *lowest {
                    *lowest = low.max(*lowest);
                    *highest = high.min(*highest);
                    if let Domain::Wall(outside) = domain {
                        *slack = outside.max(*slack);
                    }
                    self.confirm(now, asked);
                    return None;
                }
                let step = low.midpoint(high) - lowest.midpoint(*highest);
                (Rule::Wall { low, high, slack: *slack }, Change::Stepped(step))
            }
            (_, Domain::Unknown) => (Rule::Wall { low, high, slack: 0 }, Change::Wall),
            (_, Domain::Wall(slack)) => (Rule::Wall { low, high, slack }, Change::Wall),
            (Some(Rule::Line(pairs)), Domain::Foreign(pair)) if continues(pairs, pair) => {
                extend(pairs, pair);
                self.confirm(now, asked);
                return None;
            }
            (_, Domain::Foreign(pair)) => (Rule::Line(VecDeque::from([pair])), Change::Foreign),
        };
        if self.segments.len() == SEGMENTS {
            self.make_room(now);
        }
        // The first segment is not a change, unless its clock is not the expected one.
        let told = had_one || matches!(rule, Rule::Line(_));
        self.segments.push_back(Segment { rule, first: now, last: now, checked: now });
        told.then_some(change)
    }

    /// Joins two successive segments of the wall clock: those whose difference is the smallest part
    /// of their age. Without such, the oldest segment goes.
    fn make_room(&mut self, now: i64) {
        let pairs = self.segments.iter().zip(self.segments.iter().skip(1)).enumerate();
        let joined = pairs.filter_map(|(index, (one, next))| {
            let both = one.joined(next)?;
            let Rule::Wall { low, high, .. } = both.rule else { return None };
            Some((index, high.saturating_sub(low) as f64 / (now - both.last).max(1) as f64, both))
        });
        let Some((index, _, both)) = joined.min_by(|(_, one, _), (_, other, _)| one.total_cmp(other)) else {
            self.segments.pop_front();
            return;
        };
        self.segments.remove(index + 1);
        if let Some(segment) = self.segments.get_mut(index) {
            *segment = both;
        }
    }

    fn confirm(&mut self, now: i64, asked: bool) {
        if let Some(segment) = self.segments.back_mut() {
            segment.last = now;
            if asked {
                segment.checked = now;
            }
        }
    }

    /// Whether times up to `until` can be converted as precisely as they ever will be. A foreign
    /// clock needs the next reading for that.
    #[must_use]
    pub fn covers(&self, until: HostNs) -> bool {
        match self.segments.back().map(|it| &it.rule) {
            None => false,
            Some(Rule::Wall { .. } | Rule::Boottime { .. }) => true,
            Some(Rule::Line(pairs)) => pairs.len() >= 2 && pairs.back().is_some_and(|pair| pair.host >= until.0 as i64),
        }
    }

    /// The host instant for a time of CUPTI's, and its error in ns. `now` is the host's time:
    /// nothing was recorded later. `None` if the stamp matches no instant.
    #[must_use]
    pub fn to_host(&self, stamp: Stamp, now: HostNs) -> Option<(HostNs, u32)> {
        let stamp = signed(stamp.0)?;
        let now = signed(now.0)?;
        match self.segments.back() {
            // The usual case.
            Some(only) if self.segments.len() == 1 => {
                let meant = only.candidate(stamp, now)?;
                let plausible = meant.1 >= only.first - BEFORE && meant.0 <= now + AHEAD;
                if plausible && matches!(only.rule, Rule::Boottime { .. }) && stamp > now + AHEAD {
                    self.is_latched.set(true);
                }
                if plausible { instant(meant) } else { None }
            }
            _ => self.by_all_segments(stamp, now),
        }
    }

    /// Whether a time was seen to be the wall clock's, though CUPTI states `CLOCK_BOOTTIME` as its
    /// clock.
    #[must_use]
    pub fn is_latched(&self) -> bool {
        self.is_latched.get()
    }

    #[cold]
    fn by_all_segments(&self, stamp: i64, now: i64) -> Option<(HostNs, u32)> {
        let mut range = Range::default();
        // So old that the more recent instant must be the one meant.
        let is_late = |range: &Range, until: i64| range.0.is_some() && until < now - LATE;
        // Newest first.
        for (index, segment) in self.segments.iter().enumerate().rev() {
            let next = self.segments.get(index + 1);
            let previous = index.checked_sub(1).and_then(|index| self.segments.get(index));
            let until = next.map_or(now + AHEAD, |next| next.first);
            if is_late(&range, until) {
                break;
            }
            let Some(meant) = segment.candidate(stamp, now) else { continue };
            let from = previous.map_or(segment.first - BEFORE, |previous| segment.begin(previous));
            if meant.1 >= from && meant.0 <= until {
                range.include((meant.0.max(from), meant.1.min(until)));
            }
            // A line across the step between two segments of the wall clock.
            if let Some(previous) = previous
                && let (Rule::Wall { .. }, Rule::Wall { .. }) = (&previous.rule, &segment.rule)
                && let Some(before) = previous.candidate(stamp, now)
                && !is_late(&range, segment.first + BEND)
            {
                let low = before.0.min(meant.0).max(previous.last - BEND);
                let high = before.1.max(meant.1).min(segment.first + BEND).min(now + AHEAD);
                if low <= high {
                    range.include((low, high));
                }
            }
        }
        instant(range.0?)
    }
}

/// The middle of a range, and half its length, in ns.
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
fn instant((low, high): (i64, i64)) -> Option<(HostNs, u32)> {
    let error = u32::try_from((high - low + 1) / 2).unwrap_or(u32::MAX);
    Some((HostNs(u64::try_from(low.midpoint(high)).ok()?), error))
}

impl Segment {
    /// One segment for both, if both are of the wall clock: an instant in it can be meant by either
    /// rule.
    fn joined(&self, next: &Segment) -> Option<Segment> {
        let (Rule::Wall { low, high, slack }, Rule::Wall { low: next_low, high: next_high, slack: next_slack }) =
            (&self.rule, &next.rule)
        else {
            return None;
        };
        let rule = Rule::Wall { low: *low.min(next_low), high: *high.max(next_high), slack: *slack.max(next_slack) };
        Some(Segment { rule, first: self.first, last: next.last, checked: next.checked })
    }

    /// The earliest host time that this segment's rule may apply to.
    fn begin(&self, previous: &Segment) -> i64 {
        let both_wall = matches!((&previous.rule, &self.rule), (Rule::Wall { .. }, Rule::Wall { .. }));
        if both_wall { previous.last } else { previous.checked - CONVERTED_LATE }
    }

    /// The first and last host instant that a stamp can mean by this segment's rule, if not later
    /// than `now`.
    #[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
    fn candidate(&self, stamp: i64, now: i64) -> Option<(i64, i64)> {
        let of_wall = |low: i64, high: i64, slack: i64| {
            let from = stamp.checked_sub(high)?.checked_sub(slack)?;
            let until = stamp.checked_sub(low)?.checked_add(slack)?;
            // There is no instant before the host's start. This check also keeps all later sums in
            // range.
            (from >= 0 && until <= i64::MAX / 2).then_some((from, until))
        };
        match &self.rule {
            Rule::Wall { low, high, slack } => of_wall(*low, *high, *slack),
            Rule::Boottime { low, high, .. } if stamp > now + AHEAD => of_wall(*low, *high, 0),
            Rule::Boottime { slack, .. } => {
                let plausible = (0..=i64::MAX / 2).contains(&stamp);
                plausible.then_some((stamp - slack - ROUNDING, stamp + slack + ROUNDING))
            }
            Rule::Line(pairs) => on_line(pairs, stamp),
        }
    }
}

/// The hull of all ranges included.
#[derive(Default)]
struct Range(Option<(i64, i64)>);

impl Range {
    fn include(&mut self, (low, high): (i64, i64)) {
        self.0 = Some(self.0.map_or((low, high), |hull| (hull.0.min(low), hull.1.max(high))));
    }
}

/// Whether a reading continues the line.
fn continues(pairs: &VecDeque<Pair>, pair: Pair) -> bool {
    let Some(&last) = pairs.back() else { return true };
    if pair.stamp <= last.stamp || pair.host <= last.host {
        return false;
    }
    let Some(&before) = pairs.len().checked_sub(2).and_then(|index| pairs.get(index)) else { return true };
    let (was, is) = (slope(before, last), slope(last, pair));
    (is / was - 1.0).abs() <= OTHER_CLOCK + doubt(before, last) + doubt(last, pair)
}

/// Appends a reading to the line, replacing the last one if that is close to the one before it.
fn extend(pairs: &mut VecDeque<Pair>, pair: Pair) {
    let mut newest = pairs.iter().rev().map(|pair| pair.host);
    if newest.next().zip(newest.next()).is_some_and(|(last, before)| last - before < PIECE) {
        pairs.pop_back();
    } else if pairs.len() == PAIRS {
        pairs.pop_front();
    }
    pairs.push_back(pair);
}

/// Host ns per tick between two readings.
fn slope(from: Pair, to: Pair) -> f64 {
    (to.host - from.host) as f64 / (to.stamp - from.stamp) as f64
}

/// How far off a slope may be because its ends were not read at one instant (relative).
fn doubt(from: Pair, to: Pair) -> f64 {
    (from.error + to.error) as f64 / (to.host - from.host) as f64
}

/// The first and last host instant that a stamp of a foreign clock can mean.
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
fn on_line(pairs: &VecDeque<Pair>, stamp: i64) -> Option<(i64, i64)> {
    if pairs.len() < 2 {
        return None;
    }
    // Nearly always the newest piece.
    let mut end = pairs.len() - 1;
    while end > 1 && pairs.get(end - 1).is_some_and(|pair| stamp < pair.stamp) {
        end -= 1;
    }
    let (from, to) = (*pairs.get(end - 1)?, *pairs.get(end)?);
    let rate = slope(from, to);
    let length = (to.host - from.host) as f64;
    let along = stamp.checked_sub(from.stamp)? as f64 * rate;
    // A clock with a changing rate runs on a curve between two readings; the neighbouring pieces
    // show how much.
    let known = doubt(from, to);
    let neighbours = [end.checked_sub(2).map(|index| (index, index + 1)), Some((end, end + 1))];
    let bent = neighbours
        .into_iter()
        .flatten()
        .filter_map(|(from, to)| {
            let (from, to) = (*pairs.get(from)?, *pairs.get(to)?);
            Some((slope(from, to) / rate - 1.0).abs() - doubt(from, to) - known)
        })
        .fold(0.0, f64::max);
    let outside = (-along).max(along - length).max(0.0);
    let error = from.error.max(to.error) as f64 + bent * length / 4.0 + outside * (known + bent + DRIFT);
    let host = from.host as f64 + along;
    // Far outside the readings nothing is known.
    if !(0.0..=(i64::MAX / 4) as f64).contains(&host) || error > (i64::MAX / 4) as f64 {
        return None;
    }
    let host = from.host + along as i64;
    let error = error as i64 + 1;
    Some((host - error, host + error))
}

fn signed(ns: u64) -> Option<i64> {
    i64::try_from(ns).ok()
}

#[cfg(test)]
mod tests;
