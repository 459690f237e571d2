//! Periods in which CUPTI's times of kernels cannot be true (pure).
//!
//! A single record without times is harmless: some tools have seen such records, and they are
//! counted. But CUPTI 13.0 was seen to return only such records from some kernel on
//! (parca-dev/parcagpu#23). Then nothing can be concluded from kernels until they have times again.

/// The weight of a bad record (a good one has 1), and the total weight at which a period begins.
const BAD: u32 = 8;
const BEGIN: u32 = 64;

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Times cannot be trusted from here on.
    Begins,
    /// They can be trusted again.
    Ends,
}

/// Follows the records of kernels in the order in which they arrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spoilt {
    weight: u32,
    is_spoilt: bool,
    bad: u64,
}

impl Spoilt {
    /// A kernel with plausible times.
    #[inline]
    pub fn good(&mut self) -> Option<Change> {
        if self.weight == 0 {
            return None;
        }
        self.weight -= 1;
        (self.weight == 0 && std::mem::take(&mut self.is_spoilt)).then_some(Change::Ends)
    }

    /// A kernel with implausible times.
    pub fn bad(&mut self) -> Option<Change> {
        self.bad += 1;
        self.weight = (self.weight + BAD).min(BEGIN);
        (self.weight == BEGIN && !std::mem::replace(&mut self.is_spoilt, true)).then_some(Change::Begins)
    }

    /// Whether such a period is under way.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Kernels with bad times so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_bad_records_make_a_period_and_single_ones_do_not() {
        let mut spoilt = Spoilt::default();
        for number in 0..10_000 {
            assert_eq!(if number % 20 == 0 { spoilt.bad() } else { spoilt.good() }, None, "one of twenty");
        }
        (0..100).for_each(|_| _ = spoilt.good());
        let changes: Vec<_> = (0..20).map(|_| spoilt.bad()).collect();
        assert_eq!(changes.iter().position(|it| *it == Some(Change::Begins)), Some(7));
        assert_eq!((changes.iter().flatten().count(), spoilt.is_spoilt()), (1, true));
        // A single good one ends nothing.
        assert_eq!((spoilt.good(), spoilt.bad()), (None, None));
        let changes: Vec<_> = (0..1000).map(|_| spoilt.good()).collect();
        assert_eq!(changes.iter().position(|it| *it == Some(Change::Ends)), Some(63));
        assert_eq!((changes.iter().flatten().count(), spoilt.is_spoilt(), spoilt.count()), (1, false, 521));
    }
}
