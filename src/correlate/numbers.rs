//! The numbers of sends, receives and broadcasts, which NCCL does not number: all ranks count them.
//! And corrections to those of collectives, which NCCL numbers, but not always alike on all ranks
//! (pure).
//!
//! A number is right only if all ranks counted alike. They cannot once a record was lost, so from
//! then on there are none. NCCL may hand over a captured operation once on one rank and at each
//! run on the other; so captured ones are counted apart, when they are handed over first, and keep
//! their number.
//!
//! Ranks agree on the order of their calls, but not on that in which NCCL hands them over, and by
//! which it numbers collectives: while a graph exists, what needs the proxy is handed over later,
//! by a callback of CUDA, and what does not at once. So the number of a collective is put right by
//! what was called earlier and is still to come, and by what was called later and came before. A
//! send or receive has no number if an earlier launch, whose peers are not known, is still to come.
//! Up to v4 of the interface none of this can be seen.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::Operation;
use crate::model::word::Word;

/// How many combinations of communicator, peer and direction are counted.
const PEERS: usize = 28 << 10;

/// How many launches of a communicator may wait to be handed over, and how many operations may
/// overtake them.
const LATE: usize = 4096;

/// Communicator, peer and direction; those of collectives are [`collectives`].
pub(super) type Pair = (Handle, i32, Word);

/// What the collectives of a function are counted by: all ranks call them in the same order.
pub(super) const fn collectives(context: Handle, func: Word) -> Pair {
    (context, -1, func)
}

/// The call that asked for an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    pub(super) group_api: Handle,
    pub(super) at: HostNs,
    /// The operation is handed over on another thread.
    pub(super) is_deferred: bool,
}

/// How the order in which an operation is handed over fits that of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// An earlier launch is still to be handed over.
    pub(super) is_early: bool,
    /// How many of its pair were early that were called before it, unless it is early too.
    before: u32,
    /// How many of its pair were early that were called after it.
    pub(super) after: u32,
}

/// What was counted so far.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The next number, of those that were captured and of others; [`Operation::UNNUMBERED`] once
    /// one may have been left out.
    next: FxHashMap<(Pair, bool), u32>,
    is_lossy: bool,
    /// The GroupApis with calls to be numbered that were launched and not handed over, and when, in
    /// order, by communicator.
    launched: FxHashMap<Handle, VecDeque<(Handle, HostNs)>>,
    /// What overtook one of them, and when it was called.
    early: Vec<(Pair, HostNs)>,
    /// The communicators of which CUDA's callbacks hand over something.
    deferring: FxHashSet<Handle>,
    /// There was no room for a combination once, so what is new may not be at its first.
    was_full: bool,
}

impl Numbers {
    /// The number of the next operation that was not captured.
    pub(super) fn next(&mut self, pair: Pair) -> u32 {
        self.count(pair, false)
    }

    /// CUDA's callbacks may hand over what is called on a communicator.
    pub(super) fn defers(&mut self, context: Handle) {
        self.deferring.insert(context);
    }

    /// A GroupApi with calls to be numbered was launched.
    pub(super) fn launched(&mut self, context: Handle, group_api: Handle, now: HostNs) {
        let waiting = self.launched.entry(context).or_default();
        if waiting.len() < LATE && waiting.back().is_none_or(|(last, _)| *last != group_api) {
            waiting.push_back((group_api, now));
        }
    }

    /// An operation is handed over that was not captured.
    pub(super) fn turn(&mut self, pair: Pair, call: Called) -> Turn {
        let Called { group_api, at, is_deferred } = call;
        if self.is_lossy {
            // Whether something is still to be handed over is not known either.
            return Turn::default();
        }
        if is_deferred {
            self.deferring.insert(pair.0);
        }
        let defers = self.deferring.contains(&pair.0);
        let mut is_early = false;
        if let Some(waiting) = self.launched.get_mut(&pair.0) {
            // The callbacks come in order, and so does all where there are none: what was passed by
            // is never handed over.
            if let Some(own) = waiting.iter().position(|(known, _)| *known == group_api) {
                waiting.drain(if defers && !is_deferred { own..=own } else { 0..=own });
            }
            if self.early.len() == LATE {
                waiting.clear();
            }
            is_early = defers && waiting.front().is_some_and(|(_, launched)| *launched < at);
        }
        let is_before = |(of, called): &(Pair, HostNs)| *of == pair && *called <= at;
        let before = if is_early { 0 } else { self.early.extract_if(.., |it| is_before(it)).count() as u32 };
        let after = self.early.iter().filter(|(of, called)| *of == pair && *called > at).count() as u32;
        if is_early {
            self.early.push((pair, at));
        }
        Turn { is_early, before, after }
    }

    /// The GroupApis that were launched before this and are still to be handed over.
    pub(super) fn waiting(&self, context: Handle, at: HostNs) -> impl Iterator<Item = Handle> {
        let all = self.launched.get(&context).into_iter().flatten();
        all.take_while(move |(_, launched)| *launched < at).map(|(group_api, _)| *group_api)
    }

    /// The number of the next operation, by the call that asked for it.
    pub(super) fn called(&mut self, pair: Pair, call: Called) -> u32 {
        let turn = self.turn(pair, call);
        if turn.is_early {
            return Operation::UNNUMBERED;
        }
        for _ in 0..turn.before {
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
        self.deferring.remove(&context);
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
        let call = |at| Called { group_api: Handle(at), at: HostNs(at), is_deferred: false };
        let deferred = |at| Called { is_deferred: true, ..call(at) };
        let other = (Handle(1), 3, Word::SEND);
        let launched = |numbers: &mut Numbers, calls: &[u64]| {
            calls.iter().for_each(|at| numbers.launched(Handle(1), Handle(*at), HostNs(at + 1)));
        };

        let mut numbers = Numbers::default();
        launched(&mut numbers, &[5, 6]);
        assert_eq!(numbers.called(PAIR, call(6)), 0, "nothing shows that what was launched is to come");
        numbers.defers(Handle(1));
        launched(&mut numbers, &[10, 30]);
        assert_eq!(numbers.called((Handle(2), 2, Word::SEND), call(30)), 0, "another communicator");
        assert_eq!(numbers.called(PAIR, call(30)), NONE);
        let all = collectives(Handle(1), Word::ALL_REDUCE);
        assert_eq!(numbers.turn(all, call(30)), Turn { is_early: true, before: 0, after: 0 });
        assert_eq!(numbers.waiting(Handle(1), HostNs(30)).collect::<Vec<_>>(), [Handle(10)]);
        assert_eq!(numbers.turn(all, deferred(10)), Turn { is_early: false, before: 0, after: 1 });
        assert_eq!([numbers.called(PAIR, deferred(10)), numbers.called(PAIR, deferred(10))], [1, 2]);
        assert_eq!(numbers.called(other, call(30)), 0, "it overtakes nothing any more");
        assert_eq!(numbers.called(PAIR, call(40)), 4, "number 3 is what overtook");
        assert_eq!(numbers.turn(all, call(40)), Turn { is_early: false, before: 1, after: 0 });

        // What is never handed over ends the numbers for a while only.
        launched(&mut numbers, &[50, 60]);
        assert_eq!([numbers.called(other, call(70)), numbers.called(other, deferred(60))], [NONE, 1]);
        assert_eq!(numbers.called(other, call(71)), 3, "a later callback has passed it by");
        launched(&mut numbers, &Vec::from_iter(80..80 + 2 * LATE as u64));
        let early = (0..2 * LATE).map(|_| numbers.called(PAIR, call(1 << 20)));
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
