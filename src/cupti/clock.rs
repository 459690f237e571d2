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
/// Segments kept. It is rare to have more than one.
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
            self.segments.pop_front();
        }
        // The first segment is not a change, unless its clock is not the expected one.
        let told = had_one || matches!(rule, Rule::Line(_));
        self.segments.push_back(Segment { rule, first: now, last: now, checked: now });
        told.then_some(change)
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
                range.include(meant);
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
fn instant((low, high): (i64, i64)) -> Option<(HostNs, u32)> {
    let error = u32::try_from((high - low + 1) / 2).unwrap_or(u32::MAX);
    Some((HostNs(u64::try_from(low.midpoint(high)).ok()?), error))
}

impl Segment {
    /// The earliest host time that this segment's rule may apply to.
    fn begin(&self, previous: &Segment) -> i64 {
        let both_wall = matches!((&previous.rule, &self.rule), (Rule::Wall { .. }, Rule::Wall { .. }));
        if both_wall { previous.last } else { previous.checked - CONVERTED_LATE }
    }

    /// The first and last host instant that a stamp can mean by this segment's rule, if not later
    /// than `now`.
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
    let short = |before: usize| pairs[before + 1].host - pairs[before].host < PIECE;
    if pairs.len().checked_sub(2).is_some_and(short) {
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
fn on_line(pairs: &VecDeque<Pair>, stamp: i64) -> Option<(i64, i64)> {
    if pairs.len() < 2 {
        return None;
    }
    // Nearly always the newest piece.
    let mut end = pairs.len() - 1;
    while end > 1 && stamp < pairs[end - 1].stamp {
        end -= 1;
    }
    let (from, to) = (pairs[end - 1], pairs[end]);
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
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const EPOCH: u64 = 1_795_200_300 * SECOND;

    /// A reading at a host time, with the wall clock ahead of it by `offset` and CUPTI ahead by
    /// `cupti`.
    fn reading(at: u64, offset: u64, cupti: Option<u64>) -> Reading {
        Reading {
            boot_before: HostNs(at - 60),
            wall_before: at - 30 + offset,
            cupti: cupti.map(|ahead| Stamp(at + ahead)),
            wall_after: at + 30 + offset,
            boot_after: HostNs(at + 60),
        }
    }

    fn wall(at: u64, offset: u64) -> Reading {
        reading(at, offset, Some(offset))
    }

    #[track_caller]
    fn assert_within(clock: &CuptiClock, stamp: u64, now: u64, truth: u64, at_most: u32) {
        let (host, error) = clock.to_host(Stamp(stamp), HostNs(now)).expect("an instant");
        assert!(host.0.abs_diff(truth) <= u64::from(error), "{host:?} ± {error} is not {truth}");
        assert!(error <= at_most, "± {error}");
    }

    #[test]
    fn the_wall_clock_differs_by_a_constant() {
        let mut clock = CuptiClock::default();
        for second in 10..20 {
            assert_eq!(clock.add(&wall(second * SECOND, EPOCH)), None);
        }
        assert!(clock.covers(HostNs(100 * SECOND)));
        assert_within(&clock, EPOCH + 15 * SECOND + 123, 20 * SECOND, 15 * SECOND + 123, 101);
        // Also just before the first reading and after the last.
        assert_within(&clock, EPOCH + 9_900_000_000, 20 * SECOND, 9_900_000_000, 101);
        assert_within(&clock, EPOCH + 20 * SECOND, 20 * SECOND, 20 * SECOND, 101);
    }

    #[test]
    fn interrupted_readings_do_not_widen_the_error() {
        let mut clock = CuptiClock::default();
        clock.add(&wall(10 * SECOND, EPOCH));
        // The kernel stopped the thread for 3 ms between the clocks.
        let late = 3_000_000;
        let mut interrupted = wall(11 * SECOND, EPOCH);
        interrupted.wall_after += late;
        interrupted.boot_after.0 += late;
        assert_eq!(clock.add(&interrupted), None);
        assert_within(&clock, EPOCH + 11 * SECOND, 12 * SECOND, 11 * SECOND, 101);
    }

    #[test]
    fn impossible_times_are_refused() {
        let mut clock = CuptiClock::default();
        assert_eq!(clock.to_host(Stamp(EPOCH), HostNs(SECOND)), None);
        clock.add(&wall(10 * SECOND, EPOCH));
        let now = HostNs(11 * SECOND);
        for stamp in [0, 1, 10 * SECOND, EPOCH, EPOCH + 8 * SECOND, EPOCH + 12 * SECOND, 2 * EPOCH, u64::MAX] {
            assert_eq!(clock.to_host(Stamp(stamp), now), None, "{stamp}");
        }
    }

    #[test]
    fn a_step_of_the_wall_clock_widens_the_error_around_it() {
        //  readings   10    11    12    13 | 14    15    16    17    18
        //  wall clock is EPOCH ahead       | EPOCH + 5 ms (or - 5 ms) ahead
        const STEP: u64 = 5_000_000;
        for back in [false, true] {
            let after = if back { EPOCH - STEP } else { EPOCH + STEP };
            let mut clock = CuptiClock::default();
            for second in 10..=13 {
                assert_eq!(clock.add(&wall(second * SECOND, EPOCH)), None);
            }
            let Some(Change::Stepped(by)) = clock.add(&wall(14 * SECOND, after)) else { panic!("no step") };
            assert!((by.unsigned_abs().abs_diff(STEP)) < 200 && back == (by < 0), "{by}");
            for second in 15..=18 {
                assert_eq!(clock.add(&wall(second * SECOND, after)), None);
            }
            let now = 18 * SECOND;
            // Far from the step nothing is lost.
            assert_within(&clock, EPOCH + 11 * SECOND, now, 11 * SECOND, 101);
            assert_within(&clock, after + 16 * SECOND, now, 16 * SECOND, 101);
            // The step was at 13.5; CUPTI's own line may go across it.
            for (stamp, truth) in [
                (EPOCH + 13_400_000_000, 13_400_000_000),
                (after + 13_600_000_000, 13_600_000_000),
                (EPOCH.midpoint(after) + 13_500_000_000, 13_500_000_000),
                (EPOCH.midpoint(after) + 14_500_000_000, 14_500_000_000),
                (EPOCH + 12_500_000_000, 12_500_000_000),
            ] {
                assert_within(&clock, stamp, now, truth, STEP as u32);
            }
        }
    }

    #[test]
    fn a_clock_set_far_back_leaves_the_most_recent_meaning() {
        // Set back by an hour: times are taken as recent, since records from an hour ago no longer
        // arrive.
        const HOUR: u64 = 3600 * SECOND;
        let mut clock = CuptiClock::default();
        for second in 7200..=7300 {
            clock.add(&wall(second * SECOND, EPOCH));
        }
        for second in 7301..=9000 {
            clock.add(&wall(second * SECOND, EPOCH - HOUR));
        }
        assert_within(&clock, EPOCH - HOUR + 8999 * SECOND, 9000 * SECOND, 8999 * SECOND, 101);
    }

    #[test]
    fn ticks_are_converted_piece_by_piece() {
        // 2.5 ticks per ns, and a rate that changes by one part in a million each second.
        let mut clock = CuptiClock::default();
        let mut ticks = 77_000_000_000_000_u64;
        let mut known = Vec::new();
        for second in 10..20_u64 {
            let at = second * SECOND;
            let mut reading = reading(at, EPOCH, None);
            reading.cupti = Some(Stamp(ticks));
            let change = clock.add(&reading);
            assert_eq!(change, (second == 10).then_some(Change::Foreign));
            assert_eq!(clock.covers(HostNs(at - 1000)), second > 10);
            assert!(!clock.covers(HostNs(at + 1000)));
            let piece = 2_500_000_000 + 2_500 * (second - 10);
            known.extend((0..10).map(|tenth| (ticks + piece * tenth / 10, at + tenth * SECOND / 10)));
            ticks += piece;
        }
        for (ticks, truth) in known {
            let inside = truth <= 19 * SECOND;
            assert_within(&clock, ticks, 21 * SECOND, truth, if inside { 1_000 } else { 200_000 });
        }
        assert_eq!(clock.to_host(Stamp(EPOCH + 15 * SECOND), HostNs(20 * SECOND)), None);
    }

    #[test]
    fn a_clock_that_speeds_up_is_not_taken_for_straight() {
        // Three parts in a million more every second: in the middle of a piece that is 375 ns off
        // the line.
        let ticks = |at: u64| (at as f64 + 1.5e-15 * (at as f64).powi(2)) as u64;
        let mut clock = CuptiClock::default();
        for second in 10..20_u64 {
            let mut reading = reading(second * SECOND, EPOCH, None);
            reading.cupti = Some(Stamp(ticks(second * SECOND)));
            clock.add(&reading);
        }
        for tenth in 100..=190_u64 {
            let truth = tenth * SECOND / 10;
            assert_within(&clock, ticks(truth), 20 * SECOND, truth, 1_000);
        }
    }

    #[test]
    fn another_tool_may_change_the_clock_and_change_it_back() {
        let mut clock = CuptiClock::default();
        let other = |at: u64| reading(at, EPOCH, Some(5 * SECOND));
        assert_eq!(clock.add(&wall(10 * SECOND, EPOCH)), None);
        assert_eq!(clock.add(&wall(11 * SECOND, EPOCH)), None);
        // If CUPTI was not asked, the wall clock proves nothing about CUPTI's.
        assert_eq!(clock.add(&reading(11_900_000_000, EPOCH, None)), None);
        assert_eq!(clock.add(&other(12 * SECOND)), Some(Change::Foreign));
        assert!(!clock.covers(HostNs(11 * SECOND)));
        assert_eq!(clock.add(&other(13 * SECOND)), None);
        assert!(clock.covers(HostNs(12_500_000_000)));
        assert_eq!(clock.add(&wall(14 * SECOND, EPOCH)), Some(Change::Wall));
        assert_eq!(clock.add(&wall(15 * SECOND, EPOCH)), None);
        let now = 15 * SECOND;
        assert_within(&clock, EPOCH + 10_500_000_000, now, 10_500_000_000, 101);
        assert_within(&clock, EPOCH + 11_500_000_000, now, 11_500_000_000, 101);
        assert_within(&clock, 17_500_000_000, now, 12_500_000_000, 200);
        // Half a second before the first reading of its line, by the line's rate.
        assert_within(&clock, 16_600_000_000, now, 11_600_000_000, 100_000);
        assert_within(&clock, 18_600_000_000, now, 13_600_000_000, 100_000);
        assert_within(&clock, EPOCH + 14_500_000_000, now, 14_500_000_000, 101);
    }

    #[test]
    fn our_own_clock_needs_no_other_and_is_unaffected_by_steps() {
        let ours = |at: u64, offset: u64| reading(at, offset, Some(0));
        let mut clock = CuptiClock::default();
        assert_eq!(clock.add(&ours(10 * SECOND, EPOCH)), None);
        assert!(clock.covers(HostNs(11 * SECOND)));
        // A reading without CUPTI says nothing about it, and the wall clock may be set.
        assert_eq!(clock.add(&reading(11 * SECOND, EPOCH, None)), None);
        assert_eq!(clock.add(&ours(12 * SECOND, EPOCH - 300_000_000)), None);
        for truth in [9_500_000_000, 11_900_000_000, 12 * SECOND] {
            assert_within(&clock, truth, 12 * SECOND, truth, 11);
        }
        assert_eq!(clock.to_host(Stamp(EPOCH + 13 * SECOND), HostNs(12 * SECOND)), None);
        assert!(!clock.is_latched());
        // Once given up, CUPTI's time is the wall clock. What it recorded before arrives late.
        assert_eq!(clock.add(&wall(13 * SECOND, EPOCH)), Some(Change::Wall));
        assert_within(&clock, 12_900_000_000, 14 * SECOND, 12_900_000_000, 11);
        assert_within(&clock, EPOCH + 13_500_000_000, 14 * SECOND, 13_500_000_000, 101);
        assert_eq!(clock.add(&ours(15 * SECOND, EPOCH)), Some(Change::Boottime));
    }

    #[test]
    fn gpu_times_may_keep_the_wall_clock_though_cupti_states_ours() {
        let ours = |at: u64, offset: u64| reading(at, offset, Some(0));
        let mut clock = CuptiClock::default();
        clock.add(&ours(10 * SECOND, EPOCH));
        assert_within(&clock, EPOCH + 10 * SECOND, 11 * SECOND, 10 * SECOND, 101);
        assert!(clock.is_latched());
        // Times taken on the host are in the clock that CUPTI was given.
        assert_within(&clock, 10_500_000_000, 11 * SECOND, 10_500_000_000, 11);
        for stamp in [EPOCH, EPOCH + 8 * SECOND, EPOCH + 12 * SECOND, 2 * EPOCH] {
            assert_eq!(clock.to_host(Stamp(stamp), HostNs(11 * SECOND)), None, "{stamp}");
        }
        // It is not known whether CUPTI follows when the wall clock is set.
        clock.add(&reading(12 * SECOND, EPOCH - 3_000_000, None));
        for truth in [EPOCH + 12 * SECOND, EPOCH - 3_000_000 + 12 * SECOND] {
            assert_within(&clock, truth, 13 * SECOND, 12 * SECOND, 1_600_000);
        }
    }

    #[test]
    fn every_true_time_of_a_foreign_clock_is_within_its_bound() {
        // Random rates, and readings at random distances, with CUPTI read anywhere between the
        // other clocks.
        let mut state = 0xfeed_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..200 {
            let (rate, lead) = (1 + random(40), random(EPOCH));
            // Tenths of a tick per ns; the host's own clock is steered by up to 50 ppm.
            let steered = random(100_000) as i128 - 50_000;
            let ticks = |at: u64| {
                let steered = at as i128 + at as i128 * steered / 1_000_000_000;
                (steered as u64 * rate / 10).max(1) + lead
            };
            let mut clock = CuptiClock::default();
            let (mut at, mut first) = (10 * SECOND, 0);
            for round in 0..40 {
                let width = 1 + random(2_000);
                let asked = at + random(width + 1);
                clock.add(&Reading {
                    boot_before: HostNs(at),
                    wall_before: at + EPOCH,
                    cupti: Some(Stamp(ticks(asked))),
                    wall_after: at + width + EPOCH,
                    boot_after: HostNs(at + width),
                });
                let now = HostNs(at + width);
                if round == 0 {
                    first = at;
                }
                let truth = first + random(at - first + 1);
                if clock.covers(HostNs(truth)) {
                    let (host, error) = clock.to_host(Stamp(ticks(truth)), now).expect("an instant");
                    // A stamp is no more precise than its ticks.
                    let off = host.0.abs_diff(truth).saturating_sub(10 / rate + 1);
                    assert!(off <= u64::from(error), "{host:?} ± {error} is not {truth}: {clock:?}");
                    assert!(error < 6_000, "± {error}: {clock:?}");
                }
                at += width + [1_000, 1_000_000, SECOND][random(3) as usize] + random(SECOND / 2);
            }
        }
    }

    #[test]
    fn every_true_time_is_within_its_bound() {
        // Random worlds: readings at random distances and with random delays, a wall clock that is
        // sometimes set, a CUPTI that draws straight lines of up to a second across the steps, and
        // records that arrive up to 3 s late.
        let mut state = 0x1234_5678_9abc_def0_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut converted, mut sharp) = (0_u32, 0_u32);
        for _ in 0..200 {
            // The wall clock's lead from each of its steps on.
            let mut steps = vec![(0, EPOCH)];
            let mut at = 10 * SECOND;
            while at < 40 * SECOND {
                at += 2 * SECOND + random(20 * SECOND);
                let by = [10_000, 1_000_000, 700_000_000, 5 * SECOND][random(4) as usize];
                // A step smaller than the duration of a reading is invisible; nobody sets a clock
                // by so little.
                let by = 2_000 + random(by);
                let lead = steps[steps.len() - 1].1;
                steps.push((at, if random(2) == 0 { lead + by } else { lead - by }));
            }
            let lead = |at: u64| steps.iter().rev().find(|(from, _)| *from <= at).map_or(EPOCH, |(_, lead)| *lead);
            let wall_at = |at: u64| at + lead(at);
            // CUPTI's own readings, with lines between them; a line continues after the last one.
            let mut own = vec![9 * SECOND];
            while own[own.len() - 1] < 41 * SECOND {
                let last = own[own.len() - 1];
                own.push(last + 1 + random(SECOND));
            }
            let stamp_at = |at: u64, now: u64| {
                let index = own.partition_point(|own| *own <= at).clamp(1, own.len() - 1);
                let (from, to) = (own[index - 1], own[index]);
                if to > now {
                    return at + lead(from);
                }
                let (low, high) = (wall_at(from) as i128, wall_at(to) as i128);
                (low + (high - low) * (at - from) as i128 / (to - from) as i128) as u64
            };
            let mut clock = CuptiClock::default();
            let mut at = 10 * SECOND;
            while at < 40 * SECOND {
                let mut moment = at;
                let mut later = |most: u64| {
                    moment += 10 + random(most);
                    moment
                };
                let [a, b, c, d, e] = [0; 5].map(|_| later(200));
                clock.add(&Reading {
                    boot_before: HostNs(a),
                    wall_before: wall_at(b),
                    cupti: (c % 3 == 0).then(|| Stamp(wall_at(c))),
                    wall_after: wall_at(d),
                    boot_after: HostNs(e),
                });
                for _ in 0..20 {
                    let truth = e.saturating_sub(random(3 * SECOND)).max(10 * SECOND);
                    let Some((host, error)) = clock.to_host(Stamp(stamp_at(truth, e)), HostNs(e)) else {
                        panic!("no instant for {truth} at {e}: {clock:?}");
                    };
                    let off = host.0.abs_diff(truth);
                    assert!(off <= u64::from(error), "{host:?} ± {error} is not {truth} at {e}: {clock:?}");
                    converted += 1;
                    sharp += u32::from(error < 1_000);
                }
                at = e + 1 + random(SECOND);
            }
        }
        assert!(sharp > converted / 3, "{sharp} of {converted} are sharp");
    }
}
