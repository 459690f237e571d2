//! Relates one host's clock to another's, with an error bound, by the order of events on both
//! (pure).
//!
//! Each host counts from its own boot, and NTP adjusts the rate. Clocks are never compared across
//! hosts, only order is used: no rank leaves a collective before the last one has entered it, and
//! nothing is received before it was sent. So each operation between two hosts bounds the offset of
//! their clocks: from below if one waited for the other, from above if it was the other way round.
//!
//! ```text
//!  offset   (the reference's time less the host's)
//!    |   v      v            v   v    upper bounds: the reference had entered when the host left
//!    |  ______________
//!    |                \_____________  what is possible in between; half of its height is the error
//!    |    ^    ^         ^    ^       lower bounds: the host had entered when the reference left
//!    +--------------------------------> the host's time
//! ```
//!
//! The slope at two moments that are at most a second apart differs by at most 10 ppm. So in each
//! window of time a straight line holds, except for a small bend, and the lines of neighbouring
//! windows are near each other. That is an assumption about clocks that NTP adjusts. Operations
//! that contradict it, or contradict others, are left out, counted and reported.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::lines::{Line, Lines};
use crate::model::time::{Bounded, HostNs, Shift};

/// Largest drift between two hosts' clocks, in ns per second: NTP slews each by up to half of it.
const DRIFT: f64 = 1_000_000.0;
/// By how much the drift may differ between two moments at most a second apart, in ns per second.
const CHANGE: f64 = 10_000.0;
/// Length of a window in which a line must hold, in ns; longer if there would be more than
/// [`WINDOWS`].
const WINDOW: i64 = 1_000_000_000;
/// Most windows.
const WINDOWS: i64 = 100_000;
/// The most shorter windows that a window is split into, and the most of them in total.
const PARTS: i64 = 8;
const SHORT_WINDOWS: i64 = 1 << 14;
/// The shortest stretch of time in which an order that the others rule out is looked for, in ns,
/// and how many times longer the next one is.
const STRETCH: i64 = 16_000_000;
const LONGER: i64 = 8;
/// Corners kept of the feasible lines.
const CORNERS: usize = 16;
/// Orders considered together when half of them are dropped; the tightest half stays.
const KEPT: usize = 64;
/// Orders of one side that are collected before half of them are dropped.
const CROWD: usize = 1 << 16;

/// The order of events on a reference host and another host.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    lower: Vec<Bound>,
    upper: Vec<Bound>,
    /// All orders, including those dropped since.
    count: u64,
}

/// A bound of the offset at a time of the other host, both in ns.
#[derive(Clone, Copy, Debug)]
struct Bound {
    at: i64,
    offset: i64,
}

/// The reference's time less another host's, as a function of the other host's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Offset {
    /// In time order; straight lines in between.
    knots: Vec<Knot>,
    /// Number of orders that it is based on.
    pub orders: u64,
    /// Orders that contradict the others and were left out.
    pub contradictions: u64,
    /// The largest contradiction, in ns. The error includes it.
    pub contradiction_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    at: i64,
    offset: i64,
    error: u64,
}

/// The bounds of both sides, in order of time: lower ones and upper ones.
type Sides<T> = [T; 2];

/// The orders between two hosts.
struct Sorted<'a> {
    sides: Sides<&'a [Bound]>,
    /// The time of the first one, and from there to the last one, in ns.
    first: i64,
    length: i64,
    /// What the offsets are relative to, in ns.
    origin: i64,
}

/// The lines that are possible in windows of one length.
struct Windows {
    lines: Vec<Lines>,
    /// The length of a window, in ns.
    length: i64,
    /// The orders that contradict others and were left out.
    left_out: Sides<Vec<Bound>>,
}

/// What the orders of all windows so far allow, and those that were left out.
struct Fit {
    lines: Lines,
    left_out: Sides<Vec<Bound>>,
}

impl Orders {
    /// An event on the reference came before one on the other host: the first at `here` or later,
    /// the second at `there` or earlier.
    pub fn here_first(&mut self, here: HostNs, there: HostNs) {
        self.lower.push(Bound::of(here, there));
        self.count += 1;
        if self.lower.len() == CROWD {
            thin(&mut self.lower, |bound| bound.offset.saturating_neg());
        }
    }

    /// An event on the other host came before one on the reference: the first at `there` or later,
    /// the second at `here` or earlier.
    pub fn there_first(&mut self, here: HostNs, there: HostNs) {
        self.upper.push(Bound::of(here, there));
        self.count += 1;
        if self.upper.len() == CROWD {
            thin(&mut self.upper, |bound| bound.offset);
        }
    }

    /// The offset that the orders allow; `None` if they bound it on one side only.
    #[must_use]
    pub fn solve(mut self) -> Option<Offset> {
        let all = || self.lower.iter().chain(&self.upper);
        let first = all().map(|bound| bound.at).min()?;
        let length = all().map(|bound| bound.at).max()?.saturating_sub(first);
        self.lower.sort_unstable_by_key(|bound| bound.at);
        self.upper.sort_unstable_by_key(|bound| bound.at);
        let mut sides = [self.lower, self.upper];
        let ruled_out = rule_out(&mut sides, first, length);
        let [lower, upper] = &sides;

        let origin = lower.first()?.offset;
        let room = room(length);
        // One bound of each side holds at any time, except for the drift in between.
        let relative = |bound: &Bound| bound.offset.saturating_sub(origin) as f64;
        let high = upper.iter().map(relative).min_by(f64::total_cmp)? + room;
        let low = lower.iter().map(relative).max_by(f64::total_cmp)? - room;
        let sorted = Sorted { sides: [lower, upper], first, length, origin };
        let possible = Lines::between(low, high, DRIFT);

        // A long window is more likely to have fast operations, and in a short one a line fits
        // better. What is known from either holds.
        let window = (length / WINDOWS + 1).max(WINDOW);
        let long = Windows::of(&sorted, window, &possible);
        let parts = (SHORT_WINDOWS / (length / window + 1)).clamp(1, PARTS);
        let short = (parts > 1).then(|| Windows::of(&sorted, window / parts, &possible));
        let short = short.as_ref().unwrap_or(&long);
        let range = |at: i64| both_or_all(long.range(at), short.range(at));
        // How far what was left out is from what is possible.
        let mut worst = 0.0_f64;
        for [lower, upper] in [&ruled_out, &long.left_out, &short.left_out] {
            lower.iter().for_each(|it| worst = worst.max(relative(it) - range(it.at - first).1));
            upper.iter().for_each(|it| worst = worst.max(range(it.at - first).0 - relative(it)));
        }
        let most = DRIFT * seconds(short.length);
        let mut before: Option<f64> = None;
        let knot = |number: usize| {
            let at = (number as i64).saturating_mul(short.length).min(length);
            let (low, high) = range(at);
            let middle = f64::midpoint(low, high);
            // However little is known, time never runs backwards.
            let offset = before.map_or(middle, |before| middle.clamp(before - most, before + most));
            before = Some(offset);
            // From one knot to the next a clock bends away from the straight line, twice as far as
            // from the best line in between.
            let error = (offset - low).max(high - offset) + 2.0 * bend(short.length) + worst;
            Knot {
                at: first.saturating_add(at),
                offset: origin.saturating_add(offset as i64),
                error: error.ceil() as u64 + 1,
            }
        };
        Some(Offset {
            knots: (0..=short.lines.len()).map(knot).collect(),
            orders: self.count,
            contradictions: count(&ruled_out) + count(&long.left_out).max(count(&short.left_out)),
            contradiction_ns: worst.ceil() as u64,
        })
    }
}

impl Windows {
    /// For windows of this length, in ns. Only lines in `possible` are kept.
    fn of(sorted: &Sorted<'_>, length: i64, possible: &Lines) -> Windows {
        let count = (sorted.length / length) as usize + 1;
        let (window, bend, change) = (seconds(length), bend(length), change(length));
        let relative = |bound: &Bound| bound.offset.saturating_sub(sorted.origin) as f64;
        let mut left = sorted.sides;
        let mut windows = Windows { lines: Vec::with_capacity(count), length, left_out: Default::default() };
        for number in 0..count {
            let start = sorted.first + number as i64 * length;
            let sides = left.each_mut().map(|side| take(side, start + length));
            let fit = |lines| fit(lines, sides, |bound| (seconds(bound.at - start), relative(bound)), bend);
            let mut fitted = match windows.lines.last() {
                None => fit(possible.clone()),
                Some(before) => fit(carried(before, window, bend, change)),
            };
            if self::count(&fitted.left_out) > 0
                && let Some(before) = windows.lines.last()
            {
                // NTP may have set a clock to another rate.
                let anew = fit(carried(before, window, DRIFT * window / 4.0, 2.0 * DRIFT));
                if self::count(&anew.left_out) < self::count(&fitted.left_out) {
                    fitted = anew;
                }
            }
            for (all, its) in windows.left_out.iter_mut().zip(fitted.left_out) {
                all.extend(its);
            }
            windows.lines.push(fitted.lines);
        }
        for number in (1..count).rev() {
            let before = carried(&windows.lines[number], -window, bend, change);
            windows.lines[number - 1].meet(&before);
        }
        windows
    }

    /// The least and the greatest possible offset at a time after the first order, both in ns.
    fn range(&self, at: i64) -> (f64, f64) {
        let next = (at / self.length) as usize;
        let of = |number: usize| Some(self.lines.get(number)?.range(seconds(at - number as i64 * self.length)));
        // Between two windows, both count.
        let last = if at % self.length == 0 { next.checked_sub(1).and_then(of) } else { None };
        let (low, high) = match (last, of(next)) {
            (Some(last), Some(next)) => both_or_all(last, next),
            (last, next) => last.or(next).unwrap_or_default(),
        };
        (low - bend(self.length), high + bend(self.length))
    }
}

/// How many bounds there are.
fn count(sides: &Sides<Vec<Bound>>) -> u64 {
    sides.iter().map(Vec::len).sum::<usize>() as u64
}

/// By how much the offset may change within a time in ns, in ns.
fn room(length: i64) -> f64 {
    DRIFT * seconds(length) + 1.0
}

/// Takes out the bounds that others rule out: no clock drifts so fast that both can hold. Of two
/// such bounds the one is false that more bounds of the other side contradict. Nearby ones are
/// compared first, because there clocks drift least. Where as many contradict either, more of them
/// decide; in the end, both are taken out.
fn rule_out(sides: &mut Sides<Vec<Bound>>, first: i64, length: i64) -> Sides<Vec<Bound>> {
    let mut ruled_out = Sides::default();
    let whole = length.saturating_add(1);
    let mut stretch = STRETCH.min(whole);
    loop {
        let room = room(stretch) as i64;
        let contradict = |low: &Bound, high: &Bound| low.offset.saturating_sub(high.offset) > room;
        let place = |bound: &Bound| bound.at.saturating_sub(first) / stretch;
        let [mut lower, mut upper] = sides.each_ref().map(Vec::as_slice);
        let mut kept: Sides<Vec<Bound>> = Sides::default();
        let before = count(&ruled_out);
        while let Some(next) = [lower.first(), upper.first()].into_iter().flatten().map(place).min() {
            let near = |side: &mut &[Bound]| {
                let (now, later) = side.split_at(side.partition_point(|bound| place(bound) <= next));
                *side = later;
                now.to_vec()
            };
            let mut near = [near(&mut lower), near(&mut upper)];
            // The strictest come first.
            near[0].sort_unstable_by_key(|bound| Reverse(bound.offset));
            near[1].sort_unstable_by_key(|bound| bound.offset);
            let [mut lows, mut highs] = [0; 2];
            while let (Some(low), Some(high)) = (near[0].get(lows), near[1].get(highs))
                && contradict(low, high)
            {
                let against_low = near[1][highs..].partition_point(|high| contradict(low, high));
                let against_high = near[0][lows..].partition_point(|low| contradict(low, high));
                if against_low == against_high && stretch < whole {
                    break;
                }
                lows += usize::from(against_low >= against_high);
                highs += usize::from(against_high >= against_low);
            }
            for (side, out) in [lows, highs].into_iter().enumerate() {
                ruled_out[side].extend(near[side].drain(..out));
                kept[side].append(&mut near[side]);
            }
        }
        if count(&ruled_out) > before {
            kept.iter_mut().for_each(|side| side.sort_unstable_by_key(|bound| bound.at));
            *sides = kept;
        }
        if stretch == whole {
            return ruled_out;
        }
        stretch = stretch.saturating_mul(LONGER).min(whole);
    }
}

/// How far a clock may be off from the best line through a window, in ns: its drift changes by
/// [`change`] at most, and worst of all at once, in the middle. The drift of that line is the
/// window's mean drift.
fn bend(window: i64) -> f64 {
    change(window) * seconds(window) / 8.0
}

/// By how much the mean drifts of neighbouring windows may differ, and the drift at two moments of
/// one window, in ns per second.
fn change(window: i64) -> f64 {
    CHANGE * seconds(window).ceil().max(1.0)
}

/// The intersection of two ranges; their hull if they have nothing in common.
fn both_or_all(one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
    let both = (one.0.max(other.0), one.1.min(other.1));
    if both.0 <= both.1 { both } else { (one.0.min(other.0), one.1.max(other.1)) }
}

impl Bound {
    fn of(here: HostNs, there: HostNs) -> Bound {
        Bound { at: there.0.cast_signed(), offset: here.0.wrapping_sub(there.0).cast_signed() }
    }
}

/// Drops half of the bounds: in each stretch of time the loosest ones.
fn thin(bounds: &mut Vec<Bound>, looseness: impl Fn(&Bound) -> i64) {
    bounds.sort_unstable_by_key(|bound| bound.at);
    for stretch in bounds.chunks_mut(KEPT) {
        stretch.sort_unstable_by_key(&looseness);
    }
    let mut place = 0;
    bounds.retain(|_| {
        place += 1;
        (place - 1) % KEPT < KEPT / 2
    });
}

/// Splits off the bounds before a time.
fn take<'a>(bounds: &mut &'a [Bound], end: i64) -> &'a [Bound] {
    let (now, later) = bounds.split_at(bounds.partition_point(|bound| bound.at < end));
    *bounds = later;
    now
}

/// What holds in the next window, or in the previous one if `seconds` is negative. The lines of
/// both are near each other where the later window begins, and from there their drifts part them.
fn carried(lines: &Lines, seconds: f64, bend: f64, change: f64) -> Lines {
    let mut lines = lines.clone();
    lines.move_to(seconds.max(0.0));
    lines.widen(2.0 * bend, change);
    lines.move_to(seconds.min(0.0));
    lines.thin(CORNERS);
    lines
}

/// The lines that respect the bounds. A bound that contradicts all of them is left out.
fn fit(mut lines: Lines, sides: Sides<&[Bound]>, place: impl Fn(&Bound) -> (f64, f64), bend: f64) -> Fit {
    let mut left_out: Sides<Vec<Bound>> = Sides::default();
    for ((bounds, side), left_out) in sides.into_iter().zip([1.0, -1.0]).zip(&mut left_out) {
        for bound in bounds {
            let (at, offset) = place(bound);
            let margin = |line: Line| (line.at(at) - offset) * side + bend;
            if lines.0.iter().all(|line| margin(*line) < 0.0) {
                left_out.push(*bound);
                continue;
            }
            lines.clip(margin);
        }
    }
    lines.thin(CORNERS);
    Fit { lines, left_out }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

impl Offset {
    /// The offset of a host that shares the reference's clock.
    #[must_use]
    pub fn none() -> Offset {
        Offset { knots: vec![Knot { at: 0, offset: 0, error: 0 }], orders: 0, contradictions: 0, contradiction_ns: 0 }
    }

    /// The offset at a time of the other host. Outside the observed range the error grows: the
    /// clocks may have drifted apart.
    #[must_use]
    pub fn at(&self, there: HostNs) -> Shift {
        let at = there.0 as i64;
        let next = self.knots.partition_point(|knot| knot.at <= at);
        let (Some(from), Some(to)) = (next.checked_sub(1).map(|last| self.knots[last]), self.knots.get(next)) else {
            let nearest = if next == 0 { self.knots[0] } else { self.knots[next - 1] };
            let away = seconds(at.saturating_sub(nearest.at)).abs();
            let drifted = if self.knots.len() == 1 { 0.0 } else { DRIFT * away };
            return Shift { ns: nearest.offset, error_ns: nearest.error.saturating_add(drifted as u64) };
        };
        let share = (at - from.at) as f64 / (to.at - from.at) as f64;
        let offset = from.offset + ((to.offset - from.offset) as f64 * share).round() as i64;
        let error = from.error as f64 + (to.error as f64 - from.error as f64) * share;
        Shift { ns: offset, error_ns: error.ceil() as u64 }
    }

    /// A time of the other host on the reference's clock.
    #[must_use]
    pub fn moved(&self, there: HostNs) -> HostNs {
        HostNs(there.0.saturating_add_signed(self.at(there).ns))
    }

    /// The same for a time that is itself known to an error. The offset may be another one at the
    /// instant that it really was; the error covers that too.
    #[must_use]
    pub fn shifted(&self, there: Bounded) -> Bounded {
        let ns = self.at(there.time).ns;
        there.shifted(Shift { ns, error_ns: self.error_of(ns, there.earliest(), there.latest()) })
    }

    /// One offset for a whole range of the other host's time: the one in its middle. The error is
    /// the largest within the range, including the drift away from that offset.
    #[must_use]
    pub fn constant(&self, from: HostNs, to: HostNs) -> Shift {
        let middle = self.at(HostNs(from.0.midpoint(to.0))).ns;
        Shift { ns: middle, error_ns: self.error_of(middle, from.min(to), to.max(from)) }
    }

    /// How far an offset may be off at worst in a range of the other host's time, in ns.
    fn error_of(&self, offset: i64, from: HostNs, to: HostNs) -> u64 {
        let number = |time: HostNs| self.knots.partition_point(|knot| knot.at < time.0 as i64);
        let knots = &self.knots[number(from)..number(to)];
        let ends = [from, to].map(|at| self.at(at));
        // Offsets and errors are straight between knots, so the worst is at a knot or at an end.
        let all = knots.iter().map(|knot| (knot.offset, knot.error)).chain(ends.map(|it| (it.ns, it.error_ns)));
        all.map(|(ns, error)| ns.abs_diff(offset).saturating_add(error)).max().unwrap_or_default()
    }

    /// The error of the time between two instants of the other host once both are on the
    /// reference's clock, in ns. On the other host's clock, which may run at another rate, only
    /// their own errors count.
    #[must_use]
    pub fn error_between(&self, one: Bounded, other: Bounded) -> u64 {
        let each = self.shifted(one).error_ns.saturating_add(self.shifted(other).error_ns);
        let own = one.error_ns.saturating_add(other.error_ns);
        let apart = one.time.0.abs_diff(other.time.0).saturating_add(own);
        // Neither the true rate nor the stated one differs from the reference's by more than this.
        let by_rate = 2.0 * DRIFT * seconds(apart.min(i64::MAX as u64) as i64);
        each.min(own.saturating_add(by_rate.ceil() as u64))
    }

    /// The least and the greatest error between the first and the last operation, in ns.
    #[must_use]
    pub fn errors(&self) -> (u64, u64) {
        let errors = || self.knots.iter().map(|knot| knot.error);
        (errors().min().unwrap_or(0), errors().max().unwrap_or(0))
    }

    /// The offset in the opposite direction.
    fn turned(&self) -> Offset {
        let turned = |knot: &Knot| Knot {
            at: knot.at.saturating_add(knot.offset),
            offset: knot.offset.saturating_neg(),
            error: knot.error,
        };
        Offset { knots: self.knots.iter().map(turned).collect(), ..*self }
    }

    /// The median of the error, in ns.
    fn middle_error(&self) -> u64 {
        let mut errors: Vec<u64> = self.knots.iter().map(|knot| knot.error).collect();
        let middle = errors.len() / 2;
        *errors.select_nth_unstable(middle).1
    }

    /// Chains two offsets: this host's to its reference, and `next`, that reference's to a further
    /// one.
    #[must_use]
    pub fn then(&self, next: &Offset) -> Offset {
        if *next == Offset::none() {
            return self.clone();
        }
        let mut times: Vec<i64> = self.knots.iter().map(|knot| knot.at).collect();
        // Add the knots of `next` that lie within this offset's range.
        let (first, last) = (times[0], times[times.len() - 1]);
        let back = |knot: &Knot| {
            knot.at.saturating_sub(self.at(HostNs(knot.at.saturating_sub(self.knots[0].offset) as u64)).ns)
        };
        times.extend(next.knots.iter().map(back).filter(|at| (first..last).contains(at)));
        times.sort_unstable();
        times.dedup();
        let knot = |at: i64| {
            let here = HostNs(at as u64);
            let Shift { ns, error_ns } = self.at(here).then(next.at(self.moved(here)));
            Knot { at, offset: ns, error: error_ns }
        };
        Offset {
            knots: times.into_iter().map(knot).collect(),
            orders: self.orders.min(next.orders),
            contradictions: self.contradictions + next.contradictions,
            contradiction_ns: self.contradiction_ns.max(next.contradiction_ns),
        }
    }
}

/// Puts hosts on the clock of the first one: the offset of each host, `None` if no chain of
/// operations leads to it. `pairs` has the orders between a reference and another host, by host
/// number.
///
/// Hosts that share no operation are related through others, by the path with the smallest errors.
#[must_use]
pub fn solve(hosts: usize, pairs: impl IntoIterator<Item = ((usize, usize), Orders)>) -> Vec<Option<Offset>> {
    let mut links: Vec<Vec<(usize, Offset)>> = vec![Vec::new(); hosts];
    for ((reference, other), orders) in pairs {
        if let Some(offset) = orders.solve() {
            links[other].push((reference, offset.turned()));
            links[reference].push((other, offset));
        }
    }
    let mut known: Vec<Option<Offset>> = vec![None; hosts];
    // Dijkstra's search: the error of the path, the host, and the last link of the path.
    let mut next = BinaryHeap::from([Reverse((0_u64, 0_usize, None::<(usize, usize)>))]);
    while let Some(Reverse((error, host, step))) = next.pop() {
        if host >= hosts || known[host].is_some() {
            continue;
        }
        let offset = match step {
            None => Offset::none(),
            Some((before, link)) => match &known[before] {
                Some(offset) => {
                    let (_, link) = &links[before][link];
                    link.then(offset)
                }
                None => continue,
            },
        };
        known[host] = Some(offset);
        for (link, (other, offset)) in links[host].iter().enumerate() {
            next.push(Reverse((error + offset.middle_error(), *other, Some((host, link)))));
        }
    }
    known
}

#[cfg(test)]
mod tests;
