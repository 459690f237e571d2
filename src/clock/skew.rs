//! Bounds the error of CUPTI's kernel times by what NCCL's own threads saw (pure).
//!
//! CUPTI converts a GPU's times itself, and nothing that it reports would show an error of that
//! conversion. NCCL's threads are on the host's clock, and some things are impossible: a kernel
//! that begins before the call that launches it, and one that begins after a thread saw its
//! results. So each kernel bounds the error from both sides:
//!
//! ```text
//!  host     launch |----------------------------------| seen
//!  CUPTI           |      [ kernel ]                  |  early by the gap before it at most,
//!                                                        late by the gap after it at most
//!  CUPTI           |                                  |  [ kernel ]  late by the gap at least
//! ```
//!
//! Threads see results late, by milliseconds on a busy machine. That makes the bounds wide, but
//! never wrong. So an error is reported only if it is certain.

/// Kernels that must agree before an error is reported. A single one may be matched wrongly.
const WITNESSES: u32 = 2;
/// The smallest error that is reported, in ns. Smaller ones only widen the bounds.
const SAID: i64 = 50_000;
/// Most reports of a changed error for one GPU.
const MOST_SAID: u32 = 16;

/// What one kernel shows about CUPTI's error, in ns: the least and the most by which CUPTI's time
/// is late. Negative values mean early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Late by at least this.
    pub least: i64,
    /// Late by at most this.
    pub most: i64,
}

impl Bounds {
    /// Nothing is known.
    pub const NONE: Bounds = Bounds { least: i64::MIN, most: i64::MAX };

    /// The bounds of a kernel that, by CUPTI, began at `start` ± `error_ns`, and was launched and
    /// seen at these host times, if known.
    #[must_use]
    pub fn of(start: u64, error_ns: u32, launched: Option<u64>, seen: Option<u64>) -> Bounds {
        let apart = |time: u64| i64::try_from(i128::from(start) - i128::from(time)).unwrap_or(0);
        let error = i64::from(error_ns);
        Bounds {
            least: seen.map_or(i64::MIN, |seen| apart(seen).saturating_sub(error)),
            most: launched.map_or(i64::MAX, |launched| apart(launched).saturating_add(error)),
        }
    }

    /// The error that is certain, in ns: 0 if there may be none.
    #[must_use]
    pub fn violation(&self) -> i64 {
        self.least.max(self.most.saturating_neg()).max(0)
    }

    /// The largest possible error, if both sides are known.
    fn extent(&self) -> Option<i64> {
        let is_known = self.least != i64::MIN && self.most != i64::MAX;
        is_known.then(|| self.least.saturating_abs().max(self.most.saturating_abs()))
    }

    fn and(&self, other: &Bounds) -> Bounds {
        Bounds { least: self.least.max(other.least), most: self.most.min(other.most) }
    }

    fn or(&self, other: &Bounds) -> Bounds {
        Bounds { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    fn is_possible(&self) -> bool {
        self.least <= self.most
    }
}

/// What the kernels of one GPU show together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skew {
    known: Known,
    /// The result if newer kernels that no others support are right, and by how much, in ns, these
    /// kernels begin later than their channels, if known.
    trial: Option<(Known, Option<i64>)>,
}

/// What some kernels show together.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Of the kernels since the error last changed.
    now: Bounds,
    /// What `now` was after the last kernel that is certainly off: the error may have ended
    /// unnoticed since.
    confirmed: Bounds,
    /// Kernels since then, and how many of them are certainly late, or early, by more than
    /// [`SAID`].
    kernels: u32,
    off: [u32; 2],
    /// The last report, and the number of reports.
    last: Option<Bounds>,
    said: u32,
    /// What the kernels before that left possible.
    before: Option<Bounds>,
}

impl Default for Known {
    fn default() -> Known {
        let none = Bounds::NONE;
        Known { now: none, confirmed: none, kernels: 0, off: [0; 2], last: None, said: 0, before: None }
    }
}

impl Skew {
    /// Takes one kernel's bounds. Returns what is certain about the error, if that is new.
    ///
    /// `apart` says by how much the kernel begins later than its channels, in ns, if by the GPU's
    /// timer they lie outside it, and 0 if they lie inside. After a change of CUPTI's error all
    /// kernels are apart by the same amount. A kernel that is apart while others are not is matched
    /// wrongly, and is ignored.
    pub fn add(&mut self, bounds: Bounds, apart: Option<i64>) -> Option<Bounds> {
        let apart_by = apart.filter(|apart| apart.abs() > SAID);
        let is_alone = apart_by.is_some() || (apart.is_none() && bounds.violation() > SAID && !self.is_off());
        if !is_alone {
            self.trial = self.trial.take().and_then(|(mut trial, by)| {
                trial.add(bounds);
                (trial.is_suspected() && (by.is_none() || apart.is_none())).then_some((trial, by))
            });
            return self.known.add(bounds);
        }
        let is_same = |by: Option<i64>| match (by, apart_by) {
            (Some(by), Some(apart)) => by.abs_diff(apart) <= SAID.unsigned_abs(),
            (by, apart) => by == apart,
        };
        let mut trial = self.trial.take().filter(|(_, by)| is_same(*by)).map_or(self.known, |(trial, _)| trial);
        let news = trial.add(bounds);
        if trial.is_off() {
            self.known = trial;
        } else {
            self.trial = Some((trial, apart_by));
        }
        news
    }

    /// Ignores the newest kernels, because they were matched wrongly: nothing else supports what
    /// they show.
    pub fn forget_trial(&mut self) {
        self.trial = None;
    }

    /// Whether a kernel with these bounds is certainly off by more than the usual error.
    #[must_use]
    pub fn contradicts(&self, bounds: &Bounds) -> bool {
        self.is_off() || bounds.violation() > SAID
    }

    /// Whether CUPTI's times are certainly off now.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.known.is_off()
    }

    /// The possible error of the times of a kernel with these bounds, in ns, beyond the error that
    /// CUPTI's times have anyway. Zero if nothing speaks against them.
    #[must_use]
    pub fn error_of(&self, bounds: &Bounds) -> i64 {
        self.known.error_of(bounds)
    }

    /// The errors that nothing rules out for any kernel of the recording.
    ///
    /// The bounds of several kernels are combined as if the error were constant. It may change
    /// unnoticed by 50 us from one kernel to the next, so there is that much room on either side.
    #[must_use]
    pub fn open(&self) -> Bounds {
        let last = self.known.lasting();
        let Bounds { least, most } = self.known.before.map_or(last, |before| before.or(&last));
        let room = |bound: i64, none: i64, by: i64| if bound == none { none } else { bound.saturating_add(by) };
        Bounds { least: room(least, i64::MIN, -SAID), most: room(most, i64::MAX, SAID) }
    }
}

impl Known {
    fn add(&mut self, bounds: Bounds) -> Option<Bounds> {
        if bounds == Bounds::NONE {
            return None;
        }
        let both = self.now.and(&bounds);
        let is_certain = bounds.violation() > SAID;
        // The error may begin now, even if one that was always there explains all kernels.
        let may_begin = is_certain && !self.is_suspected();
        if both.is_possible() && !may_begin {
            self.now = both;
        } else {
            // One kernel may be matched wrongly, so it rules nothing out.
            let lasted = (self.kernels >= WITNESSES).then(|| self.lasting());
            let before = self.before.into_iter().chain(lasted).reduce(|one, other| one.or(&other));
            if both.least.saturating_sub(both.most) <= SAID && !may_begin {
                // CUPTI's conversion is never exactly the same. But if the bounds were wide, the
                // error may have changed by as much: what either allows is possible.
                *self = Known { now: self.now.or(&bounds), before, ..*self };
            } else {
                // Either the error changed or this match is wrong: later kernels tell.
                *self = Known { now: bounds, before, last: self.last, said: self.said, ..Known::default() };
            }
        }
        self.kernels = self.kernels.saturating_add(1);
        if is_certain {
            self.confirmed = self.now;
        }
        self.off[0] += u32::from(bounds.least > SAID);
        self.off[1] += u32::from(bounds.most < -SAID);
        // Kernels arrive in no particular order, so one error may seem to come and go.
        let is_same = self.last.is_some_and(|last| last.and(&self.now).is_possible());
        let found = self.is_off() && !is_same && self.said < MOST_SAID;
        if found {
            (self.last, self.said) = (Some(self.now), self.said + 1);
        }
        found.then_some(self.now)
    }

    fn is_off(&self) -> bool {
        self.off.iter().any(|kernels| *kernels >= WITNESSES)
    }

    /// Whether a kernel since the error last changed is certainly off by more than the usual error.
    fn is_suspected(&self) -> bool {
        self.off != [0; 2]
    }

    /// What is known of an error for as long as it lasted.
    fn lasting(&self) -> Bounds {
        if self.is_suspected() { self.confirmed } else { self.now }
    }

    fn error_of(&self, bounds: &Bounds) -> i64 {
        let now = self.now.and(bounds);
        let known = if now.is_possible() && (self.is_off() || now.violation() <= SAID) { now } else { *bounds };
        match known.violation().max(bounds.violation()) {
            // Doubled, because nobody knows how much of the error is visible.
            little @ 0..=SAID if !self.is_off() => 2 * little,
            // If the other side is unbounded, only the least error is known.
            violation => known.extent().unwrap_or(violation).max(violation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: i64 = 1_000;
    const MS: i64 = 1_000_000;
    const BEGIN: i64 = 1_000_000_000_000;

    /// A kernel that began at `place` ms, launched `launched` ns before and seen `seen` ns after,
    /// with CUPTI's times late by `off` ns.
    fn kernel(place: i64, launched: i64, seen: i64, off: i64) -> Bounds {
        let start = BEGIN + place * MS;
        let at = |time: i64| time as u64;
        Bounds::of(at(start + off), 1_000, Some(at(start - launched)), Some(at(start + seen)))
    }

    #[test]
    fn possible_times_are_never_reported() {
        let mut skew = Skew::default();
        // Late threads alone never cause a report; CUPTI is good to 20 us.
        for place in 0..1_000 {
            let (launched, seen) = (4 * US + place % 7 * MS, 20 * US + place % 11 * 3 * MS);
            let bounds = kernel(place, launched, seen, [-20 * US, 0, 20 * US][place as usize % 3]);
            assert_eq!(skew.add(bounds, None), None);
            assert!(skew.error_of(&bounds) <= 40 * US);
        }
        assert!(!skew.is_off());
        // Each of the three errors remains possible, though hardly any single kernel allows it in
        // full.
        let Bounds { least, most } = skew.open();
        assert!((-100 * US..=-20 * US).contains(&least) && (20 * US..=100 * US).contains(&most), "{least} {most}");
    }

    #[test]
    fn a_certain_error_is_reported_once_and_bounded() {
        for off in [-30 * MS, -MS, -100 * US, MS, 5 * MS, 30 * MS] {
            let (mut skew, mut is_certain) = (Skew::default(), false);
            let mut said = Vec::new();
            for place in 0..100 {
                // One kernel in ten is launched, and one seen, soon.
                let (launched, seen) = if place % 10 == 0 { (6 * US, 40 * US) } else { (50 * MS, 60 * MS) };
                let bounds = kernel(place, launched, seen, off);
                said.extend(skew.add(bounds, None));
                let error = skew.error_of(&bounds);
                // Each contradicting kernel has the error in its bounds; from the second on, all
                // kernels have it.
                is_certain |= skew.is_off();
                let states_it = is_certain || bounds.violation() > SAID;
                assert_eq!(error >= off.abs(), states_it, "{off}: ± {error} at {place}");
            }
            let [bounds] = said[..] else { panic!("{off}: {said:?}") };
            assert!(bounds.least <= off && off <= bounds.most, "{off}: {bounds:?}");
            assert!((bounds.least > SAID) == (off > 0) && (bounds.most < -SAID) == (off < 0), "{off}: {bounds:?}");
            assert!(skew.open().least <= off && off <= skew.open().most);
        }
    }

    #[test]
    fn a_fluctuating_error_is_one_error() {
        let mut skew = Skew::default();
        let mut said = 0;
        for place in 0..100 {
            let off = MS + [-20 * US, 0, 20 * US][place as usize % 3];
            let bounds = kernel(place, 6 * US, 10 * US, off);
            said += u32::from(skew.add(bounds, None).is_some());
            assert!(skew.error_of(&bounds) >= off.abs(), "{place}");
        }
        assert!(said == 1 && skew.is_off(), "{said}: {skew:?}");
        assert!(skew.open().least <= MS - 20 * US && MS + 20 * US <= skew.open().most, "{skew:?}");
    }

    #[test]
    fn a_change_that_wide_bounds_nearly_allow_is_within_the_new_bounds() {
        // The machine is busy: kernels begin 1.9 ms after their launch, and threads see results
        // late.
        let mut skew = Skew::default();
        for place in 0..20 {
            skew.add(kernel(place, 1_900 * US, 3 * MS, 0), None);
        }
        // CUPTI's times are 2 ms late now. That contradicts what was known by less than 50 us.
        for place in 20..40 {
            let bounds = kernel(place, 500 * US, 60 * US, 2 * MS);
            skew.add(bounds, None);
            assert!(skew.error_of(&bounds) >= 2 * MS, "{place}: {skew:?}");
        }
        assert!(skew.open().most >= 2 * MS && skew.open().least <= 0, "{skew:?}");
    }

    #[test]
    fn a_change_that_one_error_would_explain_too_is_within_the_bounds() {
        // The machine is busy, as above. Any one error between 1.7 and 1.9 ms explains all kernels.
        let mut skew = Skew::default();
        let mut add = |place: i64, launched: i64, seen: i64, off: i64| {
            skew.add(kernel(place, launched, seen, off), None);
            skew.open()
        };
        for place in 0..20 {
            add(place, 1_900 * US, 3 * MS, 0);
        }
        let certain = (20..40).map(|place| add(place, 40 * US, 300 * US, 2 * MS)).last().unwrap();
        assert!(certain.least <= 0 && certain.most >= 2 * MS, "{certain:?}");
        // Nor does it rule the error out if it has ended unnoticed.
        let ended = (40..60).map(|place| add(place, 1_900 * US, 3 * MS, 0)).last().unwrap();
        assert_eq!(ended, certain);
    }

    #[test]
    fn one_wrong_match_is_not_an_error_of_cuptis() {
        let mut skew = Skew::default();
        for place in 0..100 {
            let off = if place % 30 == 15 { 700 * MS } else { 0 };
            assert_eq!(skew.add(kernel(place, 6 * US, 40 * US, off), None), None, "{place}");
        }
        assert!(!skew.is_off() && skew.open().most < MS, "{skew:?}");
    }

    #[test]
    fn scattered_contradictions_by_channels_are_not_an_error_of_cuptis() {
        // The program is far ahead of the GPU: no launch contradicts a late kernel.
        let mut skew = Skew::default();
        let mut bounds = |place: i64, off: i64, apart: i64| {
            let bounds = kernel(place, 900 * MS, 40 * US, off);
            (skew.add(bounds, Some(apart)), skew.is_off())
        };
        for place in 0..300 {
            // Each kernel is apart by another amount, or by the same amount with other kernels in
            // between that are not.
            let off = [0, 300 * US, 2 * MS, 0, 7 * MS, 0, 7 * MS][place as usize % 7];
            assert_eq!(bounds(place, off, off), (None, false), "{place}");
        }
        // All are apart by the same amount.
        assert_eq!(bounds(300, 7 * MS, 7 * MS), (None, false));
        let (Some(Bounds { least, .. }), true) = bounds(301, 7 * MS, 7 * MS + 3 * US) else { panic!("{skew:?}") };
        assert!((6 * MS..7 * MS).contains(&least), "{least}");
    }

    #[test]
    fn an_error_that_ends_is_over_but_not_forgotten() {
        let mut skew = Skew::default();
        let mut said = 0;
        for place in 0..100 {
            let off = if (40..60).contains(&place) { 2 * MS } else { 0 };
            let bounds = kernel(place, 6 * US, 40 * US, off);
            said += usize::from(skew.add(bounds, None).is_some());
            assert_eq!(skew.error_of(&bounds) >= 2 * MS, (40..60).contains(&place), "{place}");
        }
        assert_eq!(said, 1);
        assert!(!skew.is_off());
        assert!(skew.open().most >= 2 * MS && skew.open().least <= 0);
    }

    #[test]
    fn extreme_times_are_harmless() {
        let edges = [None, Some(0), Some(1), Some(u64::MAX >> 1), Some(u64::MAX)];
        let mut skew = Skew::default();
        for start in [0, 1, u64::MAX >> 1, u64::MAX] {
            for launched in edges {
                for seen in edges {
                    let bounds = Bounds::of(start, u32::MAX, launched, seen);
                    skew.add(bounds, None);
                    let _ = (skew.error_of(&bounds), skew.open(), bounds.violation());
                }
            }
        }
    }
}
