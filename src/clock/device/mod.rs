//! Converts a GPU's `%globaltimer` to the host's time, with an error bound (pure).
//!
//! The channels of a kernel run within it. So each kernel whose channels are known bounds the
//! offset (the host's time less the device's) from both sides: from below at its first channel's
//! start, from above at its last channel's stop. All lines of offset over time that respect every
//! bound are kept, never a single one:
//!
//! ```text
//!  offset
//!    |   v    v              v      upper bounds: a kernel's end less the last stop
//!    |                v  ________
//!    |   ____________----            the lines in between; how far they lie apart is the error
//!    |       ____----
//!    |        ^       ^      ^
//!    |   ^                           lower bounds: a kernel's start less the first start
//!    +-----------------------------> the device's time
//! ```
//!
//! No clock is straight for long: crystals follow the temperature, and the kernel steers the host's
//! clock. So a line must hold only for a piece of a few seconds, and the next piece starts with the
//! lines of the previous one, widened by the amount that a rate may change. A pair that is still
//! far from fitting is a wrong match or a step of a clock; later pairs tell which. A step that is
//! smaller than what kernels leave open, a few microseconds, may go unnoticed.
//!
//! CUPTI takes a kernel's times from the same timer and converts them along lines of its own, which
//! restart every now and then. So a small misfit is taken for an error of that conversion: nobody
//! can tell on which side of it the truth lies, and all bounds are widened until they hold both.

mod step;

use std::collections::VecDeque;

use self::step::Step;
use super::lines::Lines;
use crate::model::activity::Span;
use crate::model::time::{GpuNs, HostNs};

/// How much earlier than a kernel's true end CUPTI's time for it may be, in ns: CUPTI's times have
/// steps of their own.
const KERNEL_STEP: i64 = 32;
/// The greatest drift between the two clocks, in ns per second.
const DRIFT: f64 = 200_000.0;
/// How long a line must hold, in ns.
const PIECE: i64 = 2_000_000_000;
/// How much the drift may change within that time, in ns per second.
const CHANGE: f64 = 50.0;
/// How far the truth may then be from a straight line, in ns: with a rate that changes by `CHANGE`,
/// it strays from the chord by a quarter of `CHANGE` times the length.
const BEND: i64 = 25;
/// How far a pair may be outside what the others allow and still count as an error of CUPTI's
/// conversion, in ns; and the total of such errors for all pairs together.
const JUMP: i64 = 20_000;
const JUMPS: i64 = 60_000;
/// The least by which bounds are then widened, in ns.
const WIDEN: i64 = 1_000;
/// The shortest time over which such an error says something about a rate, in seconds.
const SHORTEST: f64 = 0.01;
/// Pieces kept: a few minutes.
const PIECES: usize = 128;
/// Corners kept of the feasible lines.
const CORNERS: usize = 16;
/// Pairs that must agree with each other to outweigh all earlier ones.
const WITNESSES: usize = 3;
/// Competing explanations kept until one of them is confirmed.
const SUSPECTS: usize = 4;
/// Kernels longer than this are not used, in ns: one day.
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
    /// No offset explains it: it goes back in time, its channels ran longer than its kernel (a
    /// wrong match, or a step of a clock while it ran), or it ran for more than a day. It was not
    /// used, and does not indicate a step.
    Unusable(Pair),
    /// The pairs around it agree with each other but not with it: it was a wrong match. It is no
    /// longer used.
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

/// Converts the times of one GPU to the host's.
#[derive(Debug, Default)]
pub struct DeviceClock {
    pieces: VecDeque<Piece>,
    /// The first pairs since the last step, until there are enough to rely on.
    witnesses: Vec<Pair>,
    suspects: Vec<Suspect>,
    step: Step,
    /// The error seen in CUPTI's conversion so far, in ns.
    conversion: i64,
}

/// What would hold if the pairs that contradict the newest piece were right.
#[derive(Debug)]
struct Suspect {
    piece: Piece,
    witnesses: Vec<Pair>,
}

/// A few seconds in which a straight line is good enough.
#[derive(Clone, Debug)]
struct Piece {
    lines: Lines,
    /// The device's time and the offset that `lines` are relative to.
    origin: i64,
    base: i64,
    /// The first and last device time with a bound.
    first: i64,
    last: i64,
    /// The host's time of the first and last pair.
    host_first: i64,
    host_last: i64,
    /// Whether a step lies between the previous piece and this one.
    stepped: bool,
}

/// What a pair shows about the offset, by device time.
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
    /// Takes one kernel. Pairs must come roughly in time order. Contradictions are returned once
    /// they are certain, which is some pairs later.
    ///
    /// The span's error must cover everything known about the kernel's two times, except the steps
    /// of the GPU's timer.
    pub fn add(&mut self, pair: Pair) -> Vec<Contradiction> {
        if let Some((bounds, _)) = self.bounds(&pair)
            && (1..=JUMP).contains(&bounds.contradiction())
            && self.conversion + bounds.contradiction() <= JUMPS
        {
            self.widen(bounds.contradiction());
        }
        let Some((mut bounds, mut alone, step)) = self.alone(&pair) else { return vec![Contradiction::Unusable(pair)] };
        if self.pieces.is_empty() {
            self.step = step;
            self.pieces.push_back(alone);
            self.witnesses.push(pair);
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut fit = self.fit(&bounds);
        while fit.is_none()
            && let Some(by) = self.missed(&bounds)
        {
            self.widen(by);
            if let Some((widened, piece, _)) = self.alone(&pair) {
                (bounds, alone) = (widened, piece);
            }
            fit = self.fit(&bounds);
        }
        let mut suspected = false;
        self.suspects.retain_mut(|suspect| {
            // It has not mattered for so long that it was no step.
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
            Some((index, piece)) if !suspected => {
                self.accept(index, piece, pair);
                self.follow_step(step);
            }
            // The pair fits both lines, so it decides nothing.
            Some(_) => {}
            None if suspected => {
                self.confirm(&mut found);
                if self.suspects.is_empty() {
                    self.follow_step(step);
                }
            }
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

    /// Takes stamps only to determine the timer's step: those of a pair's channels that lie between
    /// the first and the last.
    pub fn see(&mut self, stamps: impl Iterator<Item = GpuNs>) {
        let mut step = self.step;
        stamps.for_each(|stamp| step.see(stamp));
        self.follow_step(step);
    }

    /// How much older than its instant a stamp may be, in ns: the timer's step, as far as its
    /// stamps show it.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step.ns()
    }

    /// The error seen in CUPTI's conversion of the timer, in ns, beyond what the pairs state. The
    /// bounds already include it.
    #[must_use]
    pub fn conversion(&self) -> u32 {
        u32::try_from(self.conversion).unwrap_or(u32::MAX)
    }

    /// As [`DeviceClock::bounds`], with the piece that this pair alone would make.
    fn alone(&self, pair: &Pair) -> Option<(Bounds, Piece, Step)> {
        let (bounds, step) = self.bounds(pair)?;
        Some((bounds, Piece::new(&bounds)?, step))
    }

    /// What a pair shows, with room for CUPTI's conversion and for the timer's step, both as known
    /// with this pair included.
    fn bounds(&self, pair: &Pair) -> Option<(Bounds, Step)> {
        let mut step = self.step;
        let bounds = pair.bounds()?;
        pair.device.into_iter().for_each(|stamp| step.see(stamp));
        let room = i64::try_from(step.ns()).unwrap_or(LONGEST).min(LONGEST);
        let (lower, upper) = (bounds.lower - self.conversion - room, bounds.upper + self.conversion);
        Some((Bounds { lower, upper, ..bounds }, step))
    }

    /// Sets the timer's step. If it is coarser than was known, earlier bounds are loosened.
    fn follow_step(&mut self, step: Step) {
        let coarser = step.ns().saturating_sub(self.step.ns());
        if coarser > 0 {
            self.widen_lines(i64::try_from(coarser).unwrap_or(LONGEST).min(LONGEST));
        }
        self.step = step;
    }

    /// By how much all bounds must be widened to hold both the earlier pairs and these bounds, if
    /// that is little.
    fn missed(&self, bounds: &Bounds) -> Option<i64> {
        let index = self.pieces.iter().rposition(|piece| bounds.upper_at >= piece.first).unwrap_or(0);
        let piece = &self.pieces[index];
        let offset = |at: i64| {
            let (low, high) = piece.at(at);
            (low.saturating_sub(at), high.saturating_sub(at))
        };
        let ((low, _), (_, high)) = (offset(bounds.upper_at), offset(bounds.lower_at));
        let away = bounds.lower.saturating_sub(high).max(low.saturating_sub(bounds.upper));
        // Without the room that they already have.
        let (lower, upper) = (bounds.lower + self.conversion, bounds.upper - self.conversion);
        let by = upper.saturating_sub(high).max(low.saturating_sub(lower)).max(WIDEN);
        (away <= JUMP && self.conversion + by <= JUMPS).then_some(by)
    }

    /// CUPTI's conversion is off by `by` ns more than was known.
    fn widen(&mut self, by: i64) {
        self.conversion += by;
        self.widen_lines(by);
    }

    fn widen_lines(&mut self, by: i64) {
        let suspects = self.suspects.iter_mut().map(|suspect| &mut suspect.piece);
        for piece in self.pieces.iter_mut().chain(suspects) {
            // A conversion that is off at one time may be right at another, which bends a straight
            // line.
            let length = seconds(piece.last - piece.first).max(SHORTEST);
            piece.lines.widen(by as f64, (2.0 * by as f64 / length).min(2.0 * DRIFT));
            piece.lines.thin(CORNERS);
        }
    }

    /// Whether enough kernels agree with each other for [`DeviceClock::to_host`] to be relied on.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.witnesses.len() >= WITNESSES
    }

    /// Whether it is still open if the timer was set: the pairs that contradict the newest line may
    /// be right.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// The host instant for a device instant, and its error in ns. `None` before the first pair,
    /// and if there is no such instant.
    ///
    /// A stamp may have been taken up to [`DeviceClock::step`] after the instant that it names.
    /// Every new pair may move the result within the error. While it is open whether there was a
    /// step, the error covers both cases. Once a device's clock has been set back, times that occur
    /// twice are taken for the later ones.
    #[must_use]
    pub fn to_host(&self, time: GpuNs) -> Option<(HostNs, u64)> {
        self.at(time, &self.suspects)
    }

    /// As [`DeviceClock::to_host`], assuming that there was no undecided step: it ignores the pairs
    /// that contradict the newest line.
    #[must_use]
    pub fn to_host_unless_set(&self, time: GpuNs) -> Option<(HostNs, u64)> {
        self.at(time, &[])
    }

    fn at(&self, time: GpuNs, suspects: &[Suspect]) -> Option<(HostNs, u64)> {
        let time = signed(time.0)?;
        let newest = self.pieces.back()?;
        // What holds if there was a step and this time lies after it, while that is open.
        let mut after_step = None;
        for suspect in suspects {
            if time >= suspect.piece.first - suspect.piece.idle_after(newest) {
                after_step = Some(hull(after_step, suspect.piece.at(time)));
            }
        }
        // Newest first: most times are recent.
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
            // Between two pieces both neighbours hold.
            Some(next) if !next.stepped && time > piece.last => {
                let other = next.at(time);
                let both = (range.0.max(other.0), range.1.min(other.1));
                hull(after_step, if both.0 <= both.1 { both } else { hull(Some(range), other) })
            }
            // The device's time advanced further than the host's: only times after the step are
            // this late.
            Some(next) if next.stepped && time > piece.last + next.idle_after(piece) => after_step.unwrap_or(range),
            _ => hull(after_step, range),
        };
        if high < 0 {
            return None;
        }
        let low = low.max(0);
        Some((HostNs(low.midpoint(high) as u64), (high - low).unsigned_abs().div_ceil(2)))
    }

    /// The piece extended by these bounds, and its index: one past the newest if it is a new piece.
    fn fit(&self, bounds: &Bounds) -> Option<(usize, Piece)> {
        let newest = self.pieces.len() - 1;
        let index = self.pieces.iter().rposition(|piece| bounds.upper_at >= piece.first).unwrap_or(0);
        if index == newest {
            let next = self.pieces[newest].with(bounds)?;
            // Every piece has its own origin.
            return Some((if next.origin == self.pieces[newest].origin { newest } else { newest + 1 }, next));
        }
        // The pair came late.
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

    /// Switches to a suspected line that has enough witnesses.
    fn confirm(&mut self, found: &mut Vec<Contradiction>) {
        let Some(index) = self.suspects.iter().position(|suspect| suspect.witnesses.len() >= WITNESSES) else { return };
        let Suspect { mut piece, witnesses } = self.suspects.remove(index);
        let refuted = self.suspects.drain(..).flat_map(|suspect| suspect.witnesses);
        found.extend(refuted.map(Contradiction::WrongMatch));
        if self.witnesses.len() < WITNESSES {
            // The very first pairs were the wrong ones.
            found.extend(self.witnesses.drain(..).map(Contradiction::WrongMatch));
            self.pieces.clear();
        } else if let Some(newest) = self.pieces.back() {
            let middle = |piece: &Piece, at| {
                let (low, high) = piece.at(at);
                low.midpoint(high) - at
            };
            // The old line is extended for as long as the host's clock advanced, whatever the
            // device's did.
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
    /// What the pair shows, without the timer's step.
    fn bounds(&self) -> Option<Bounds> {
        let [first, last] = [signed(self.device[0].0)?, signed(self.device[1].0)?];
        let error = i64::from(self.host.error_ns);
        let [start, end] = [signed(self.host.start.0)?, signed(self.host.end.0)?];
        let lengths = [end - start, last - first];
        lengths.into_iter().all(|length| (0..=LONGEST).contains(&length)).then(|| Bounds {
            lower_at: first,
            // The first channel may have started up to a step after its stamp; the caller adds
            // that.
            lower: start - error - first - BEND,
            upper_at: last,
            upper: end + error + KERNEL_STEP - last + BEND,
            host_first: start - error,
            host_last: end + error,
        })
    }
}

impl Bounds {
    /// By how much the bounds contradict each other, in ns: the kernel is shorter than its channels
    /// ran.
    fn contradiction(&self) -> i64 {
        let drift = DRIFT * seconds(self.upper_at - self.lower_at);
        self.lower.saturating_sub(self.upper).saturating_sub(drift as i64)
    }
}

impl Piece {
    /// What one pair allows; `None` if it allows nothing.
    fn new(bounds: &Bounds) -> Option<Piece> {
        let length = seconds(bounds.upper_at - bounds.lower_at);
        let highest = (bounds.upper - bounds.lower) as f64 + DRIFT * length;
        let mut piece = Piece {
            lines: Lines::between(0.0, highest.max(0.0), DRIFT),
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

    /// The piece extended by these bounds, if they agree: this piece, or the next one if this one
    /// is long enough.
    fn with(&self, bounds: &Bounds) -> Option<Piece> {
        let mut piece = if bounds.upper_at - self.first > PIECE { self.next(bounds) } else { self.clone() };
        piece.include(bounds).then_some(piece)
    }

    /// The next piece, starting with what this one knows.
    fn next(&self, bounds: &Bounds) -> Piece {
        let at = bounds.upper_at;
        let idle = at - self.last;
        let mut lines = self.lines.clone();
        lines.move_to(seconds(at - self.origin));
        // From this piece's line to the truth, and from there to the next piece's line. The two
        // pieces and the time between them allow this many changes.
        let changes = CHANGE * (2.0 + seconds(idle) / seconds(PIECE));
        lines.widen(2.0 * BEND as f64 + stray(idle), changes);
        // No rate exceeds the prior, so this cuts off only what was added.
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

    /// Keeps the lines that respect the bounds. False if none are left.
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

    /// Extends the piece to this device time, or says how far the truth may have strayed from its
    /// line by then, in ns.
    fn reach(&mut self, at: i64) -> f64 {
        let (first, last) = (self.first.min(at), self.last.max(at));
        if last - first > PIECE {
            return stray(self.outside(at));
        }
        (self.first, self.last) = (first, last);
        0.0
    }

    /// How far a device time lies outside the piece, in ns.
    fn outside(&self, at: i64) -> i64 {
        (self.first - at).max(at - self.last).max(0)
    }

    /// The host's time from the end of `other` to the beginning of this piece, in ns.
    fn idle_after(&self, other: &Piece) -> i64 {
        (self.host_first - other.host_last).max(0)
    }

    /// The earliest and latest host time for this device time.
    fn at(&self, at: i64) -> (i64, i64) {
        let (low, high) = self.lines.range(seconds(at - self.origin));
        let error = BEND as f64 + stray(self.outside(at));
        // The rounding errors so far are much smaller than the nanosecond added here.
        let low = (low - error).floor() as i64 - 1;
        let high = (high + error).ceil() as i64 + 1;
        let base = self.base.saturating_add(at);
        (base.saturating_add(low), base.saturating_add(high))
    }
}

/// How far a clock may stray from its line in this time, in ns, beyond what it may stray within a
/// piece.
fn stray(time: i64) -> f64 {
    let time = seconds(time);
    (CHANGE * time * (1.0 + time / seconds(PIECE))).min(2.0 * DRIFT * time)
}

/// The smallest range that contains both.
fn hull(one: Option<(i64, i64)>, other: (i64, i64)) -> (i64, i64) {
    one.map_or(other, |one| (one.0.min(other.0), one.1.max(other.1)))
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// Nanoseconds small enough to add two of them: up to the year 2116.
fn signed(ns: u64) -> Option<i64> {
    i64::try_from(ns).ok().filter(|ns| *ns <= i64::MAX / 2)
}

#[cfg(test)]
mod tests;
