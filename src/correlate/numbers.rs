//! The numbers of sends, receives and broadcasts that NCCL gives none: all ranks count them (pure).
//!
//! A number is right only if all ranks counted alike. They cannot once a record was lost, so from
//! then on there are none. NCCL may hand over a captured operation once on one rank and at each
//! run on the other; so captured ones are counted apart, when they are handed over first, and keep
//! their number.
//!
//! Ranks agree on the order of their calls, but not on that in which NCCL hands them over: while a
//! graph exists, what needs the proxy is handed over later, by a callback of CUDA, and what does
//! not at once. So an operation that is handed over before an earlier launch gets no number, and
//! counts for those after it. Up to v4 of the interface this cannot be seen.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::Operation;
use crate::model::word::Word;

/// How many combinations of communicator, peer and direction are counted.
const PEERS: usize = 28 << 10;

/// How many launches of a communicator may wait to be handed over, and how many operations may
/// overtake them.
const LATE: usize = 4096;

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
    /// The GroupApis with sends or receives that were launched and not handed over, and when, in
    /// order, by communicator.
    launched: FxHashMap<Handle, VecDeque<(Handle, HostNs)>>,
    /// What overtook one of them, and when it was called.
    early: Vec<(Pair, HostNs)>,
    /// There was no room for a combination once, so what is new may not be at its first.
    was_full: bool,
}

impl Numbers {
    /// The number of the next operation that was not captured.
    pub(super) fn next(&mut self, pair: Pair) -> u32 {
        self.count(pair, false)
    }

    /// A GroupApi with sends or receives was launched.
    pub(super) fn launched(&mut self, context: Handle, group_api: Handle, now: HostNs) {
        let waiting = self.launched.entry(context).or_default();
        if waiting.len() < LATE && waiting.back().is_none_or(|(last, _)| *last != group_api) {
            waiting.push_back((group_api, now));
        }
    }

    /// The number of the next operation, which was called then in this GroupApi.
    pub(super) fn called(&mut self, pair: Pair, group_api: Handle, made: HostNs) -> u32 {
        if let Some(waiting) = self.launched.get_mut(&pair.0) {
            let own = waiting.iter().position(|(known, _)| *known == group_api);
            own.map(|at| waiting.remove(at));
            if self.early.len() == LATE {
                // What so much overtakes is not handed over any more.
                waiting.clear();
            } else if waiting.front().is_some_and(|(_, launched)| *launched < made) {
                self.early.push((pair, made));
                return Operation::UNNUMBERED;
            }
        }
        let passed = self.early.extract_if(.., |(of, called)| *of == pair && *called <= made).count();
        for _ in 0..passed {
            self.next(pair);
        }
        self.next(pair)
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
        *self = Numbers { is_lossy: true, ..Numbers::default() };
    }

    /// Whether a record was lost, so that no numbers are right.
    pub(super) fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// A communicator has ended.
    pub(super) fn forget(&mut self, context: Handle) {
        self.next.retain(|((of, ..), _), _| *of != context);
        self.launched.remove(&context);
        self.early.retain(|((of, ..), _)| *of != context);
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
    fn what_is_handed_over_before_an_earlier_launch_has_no_number_and_counts() {
        let mut numbers = Numbers::default();
        let [first, second, third] = [10, 20, 30].map(|at| (Handle(at), HostNs(at)));
        let call = |numbers: &mut Numbers, pair, (group, made)| numbers.called(pair, group, made);
        let other = (Handle(1), 3, Word::SEND);
        for (group, made) in [first, second] {
            numbers.launched(Handle(1), group, HostNs(made.0 + 1));
        }
        let elsewhere = (Handle(2), 2, Word::SEND);
        assert_eq!(call(&mut numbers, elsewhere, second), 0, "another communicator");
        assert_eq!(call(&mut numbers, PAIR, second), NONE);
        assert_eq!([call(&mut numbers, PAIR, first), call(&mut numbers, PAIR, first)], [0, 1]);
        assert_eq!(call(&mut numbers, other, second), 0, "it overtakes nothing any more");
        assert_eq!(call(&mut numbers, PAIR, third), 3, "number 2 is what overtook");
        // What is never handed over ends the numbers for a while only.
        for group in 0..2 * LATE as u64 {
            numbers.launched(Handle(1), Handle(100 + group), HostNs(40));
        }
        let early = (0..2 * LATE).map(|_| call(&mut numbers, PAIR, (Handle(50), HostNs(50))));
        assert_eq!(early.filter(|number| *number == NONE).count(), LATE);
        assert!(numbers.launched[&Handle(1)].is_empty() && numbers.early.is_empty());
    }

    #[test]
    fn a_pair_in_which_something_may_not_count_has_no_numbers() {
        let mut numbers = Numbers::default();
        assert_eq!([numbers.next(PAIR), numbers.uncounted(PAIR), numbers.next(PAIR)], [0, NONE, NONE]);
        assert_eq!(numbers.captured(PAIR), Operation::CAPTURED);
        assert_eq!(numbers.next((Handle(1), 2, Word::RECV)), 0, "another pair");
    }
}
