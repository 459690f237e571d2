//! The numbers of sends, receives and broadcasts that NCCL gives none: all ranks count them (pure).
//!
//! A number is right only if all ranks counted alike. They cannot once a record was lost, so from
//! then on there are none. NCCL may hand over a captured operation once on one rank and at each
//! run on the other; so captured ones are counted apart, when they are handed over first, and keep
//! their number.

use rustc_hash::FxHashMap;

use crate::model::ids::Handle;
use crate::model::timeline::Operation;
use crate::model::word::Word;

/// How many combinations of communicator, peer and direction are counted.
const PEERS: usize = 28 << 10;

/// Communicator, peer and direction; those of broadcasts are [`broadcasts`].
pub(super) type Pair = (Handle, i32, Word);

/// What the broadcasts of a communicator are counted by: all ranks call them in the same order.
pub(super) const fn broadcasts(context: Handle) -> Pair {
    (context, -1, Word::BROADCAST)
}

/// What was counted so far.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The next number, of those that were captured and of others; [`Operation::UNNUMBERED`] once
    /// one may have been left out.
    next: FxHashMap<(Pair, bool), u32>,
    is_lossy: bool,
    /// There was no room for a combination once, so what is new may not be at its first.
    was_full: bool,
}

impl Numbers {
    /// The number of the next operation that was not captured.
    pub(super) fn next(&mut self, pair: Pair) -> u32 {
        self.count(pair, false)
    }

    /// The number of a captured operation that is handed over for the first time.
    pub(super) fn captured(&mut self, pair: Pair) -> u32 {
        self.count(pair, true) | Operation::CAPTURED
    }

    /// There is an operation of which it is not known whether it counts.
    pub(super) fn uncounted(&mut self, pair: Pair) -> u32 {
        self.count(pair, false);
        self.next.entry((pair, false)).and_modify(|next| *next = Operation::UNNUMBERED);
        Operation::UNNUMBERED
    }

    /// There was no room for a record.
    pub(super) fn lost(&mut self) {
        self.is_lossy = true;
        self.next = FxHashMap::default();
    }

    /// Whether a record was lost, so that no numbers are right.
    pub(super) fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// A communicator has ended.
    pub(super) fn forget(&mut self, context: Handle) {
        self.next.retain(|((of, ..), _), _| *of != context);
    }

    fn count(&mut self, pair: Pair, is_captured: bool) -> u32 {
        let key = (pair, is_captured);
        self.was_full |= self.next.len() >= PEERS;
        if self.is_lossy || self.was_full && !self.next.contains_key(&key) {
            return Operation::UNNUMBERED;
        }
        let next = self.next.entry(key).or_default();
        let number = *next;
        *next = number.saturating_add(1);
        number
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.next.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = (Handle(1), 2, Word::SEND);
    const NONE: u32 = Operation::UNNUMBERED;

    #[test]
    fn without_room_there_are_no_numbers() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.next(PAIR), 0);
        for peer in 0..2 * PEERS as i32 {
            numbers.next((Handle(2), peer, Word::SEND));
        }
        assert!(numbers.len() <= PEERS);
        assert_eq!(numbers.next(PAIR), 1, "it is still counted");
        assert_eq!(numbers.next((Handle(2), 2 * PEERS as i32, Word::SEND)), NONE);
        // When there is room again, what was not counted does not begin at 0.
        numbers.forget(Handle(2));
        assert_eq!([numbers.next((Handle(3), 5, Word::RECV)), numbers.next(PAIR)], [NONE, 2]);
    }

    #[test]
    fn a_pair_in_which_something_may_not_count_has_no_numbers() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.next(PAIR), numbers.uncounted(PAIR), numbers.next(PAIR)], [0, NONE, NONE]);
        assert_eq!(numbers.captured(PAIR), Operation::CAPTURED);
        assert_eq!(numbers.next((Handle(1), 2, Word::RECV)), 0, "another pair");
    }
}
