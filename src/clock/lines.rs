//! Lines of offset over time, and all of them that respect some bounds (pure).

/// How exactly corners are known, in ns and ns per second: the direction between two that are
/// nearer to each other is mostly rounding.
const EXACT: f64 = 1e-3;

/// A line of offset over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// The offset at the origin, in ns.
    pub(super) offset: f64,
    /// Its growth, in ns per second.
    pub(super) drift: f64,
}

/// All lines that respect the bounds: a convex polygon over offset and drift, since each bound cuts
/// it along a straight line there. Its corners are the lines that touch two bounds, in
/// counterclockwise order.
#[derive(Clone, Debug)]
pub(super) struct Lines(pub(super) Vec<Line>);

impl Line {
    pub(super) fn at(self, seconds: f64) -> f64 {
        self.offset + self.drift * seconds
    }

    pub(super) fn to(self, other: Line) -> Line {
        Line { offset: other.offset - self.offset, drift: other.drift - self.drift }
    }

    pub(super) fn along(self, way: Line, share: f64) -> Line {
        Line { offset: self.offset + way.offset * share, drift: self.drift + way.drift * share }
    }

    /// Twice the area between two sides; positive if the second turns left.
    pub(super) fn cross(self, other: Line) -> f64 {
        self.offset * other.drift - self.drift * other.offset
    }
}

impl Lines {
    /// All lines between two offsets at the origin, in ns, with at most this drift, in ns per
    /// second.
    pub(super) fn between(low: f64, high: f64, drift: f64) -> Lines {
        let corners = [(low, -drift), (high, -drift), (high, drift), (low, drift)];
        Lines(corners.map(|(offset, drift)| Line { offset, drift }).into())
    }

    /// Keeps the lines whose margin is not negative. False if none are left.
    pub(super) fn clip(&mut self, margin: impl Fn(Line) -> f64) -> bool {
        // Most bounds exclude nothing.
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

    /// Keeps the lines that are also in `others`. If there are none, nothing changes and the result
    /// is false.
    #[cfg(feature = "cli")]
    pub(super) fn meet(&mut self, others: &Lines) -> bool {
        let mut both = self.clone();
        let count = others.0.len();
        for index in 0..count {
            let (from, to) = (others.0[index], others.0[(index + 1) % count]);
            let margin = |way: Line| from.to(to).cross(way) + EXACT * (way.offset.abs() + way.drift.abs());
            if !both.clip(|corner| margin(from.to(corner))) {
                return false;
            }
        }
        *self = both;
        true
    }

    /// Reduces the corners to `most`. A side is dropped by extending its neighbours until they
    /// meet, so no feasible line is lost; the side that adds least goes first.
    pub(super) fn thin(&mut self, most: usize) {
        let is_same = |one: &Line, other: &Line| {
            let way = one.to(*other);
            way.offset.abs() < EXACT && way.drift.abs() < EXACT
        };
        self.0.dedup_by(|next, corner| is_same(corner, next));
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
    pub(super) fn move_to(&mut self, seconds: f64) {
        for corner in &mut self.0 {
            corner.offset = corner.at(seconds);
        }
    }

    /// Adds all lines that differ by at most this offset, in ns, and this drift, in ns per second.
    pub(super) fn widen(&mut self, offset: f64, drift: f64) {
        let ways = [(-offset, -drift), (offset, -drift), (offset, drift), (-offset, drift)];
        let ways = ways.map(|(offset, drift)| Line { offset, drift });
        let mut all: Vec<Line> = self.0.iter().flat_map(|corner| ways.map(|way| corner.along(way, 1.0))).collect();
        all.sort_by(|one, other| one.offset.total_cmp(&other.offset).then(one.drift.total_cmp(&other.drift)));
        // The convex hull: the lower side from left to right, then the upper one back.
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
            // This corner is the first of the other side.
            hull.pop();
        }
        self.0 = hull;
    }

    /// The least and the greatest offset at a time, in ns.
    pub(super) fn range(&self, seconds: f64) -> (f64, f64) {
        let offsets = self.0.iter().map(|corner| corner.at(seconds));
        offsets.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), offset| (low.min(offset), high.max(offset)))
    }
}
