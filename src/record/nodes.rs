//! The graph nodes that are NCCL's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many nodes one half of a [`Nodes`] takes.
const FULL: u32 = 16 << 10;
/// The places of a half: half of them stay empty, so that searches are short.
const PLACES: usize = 2 * FULL as usize;
/// Places that are searched for a node.
const SEARCHED: usize = 64;

type Half = [AtomicU64; PLACES];

/// A set of nodes, by CUPTI's numbers. It remembers at least the [`FULL`] that were added last. An
/// application's graphs have nodes by the thousand, and most need no record.
///
/// Any thread may use it at any time. What another thread adds meanwhile may be missed, and so may
/// what is about to be forgotten.
pub(super) struct Nodes {
    /// They take turns. A half is emptied before its turn.
    halves: [Half; 2],
    /// Nodes added so far.
    added: AtomicU32,
}

impl Nodes {
    pub(super) const fn new() -> Nodes {
        Nodes { halves: [const { [const { AtomicU64::new(0) }; PLACES] }; 2], added: AtomicU32::new(0) }
    }

    /// Whether nothing was ever added.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.added.load(Ordering::Relaxed) == 0
    }

    /// Adds a node. 0 is none.
    pub(super) fn add(&self, node: u64) {
        if has(self.half(self.added.load(Ordering::Relaxed)), node) {
            return;
        }
        let before = self.added.fetch_add(1, Ordering::Relaxed);
        let half = self.half(before);
        if before.is_multiple_of(FULL) {
            half.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        }
        for place in places(half, node) {
            if place.compare_exchange(0, node, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Whether the node is remembered.
    pub(super) fn contains(&self, node: u64) -> bool {
        !self.is_empty() && self.halves.iter().any(|half| has(half, node))
    }

    /// The half whose turn it is after so many nodes.
    fn half(&self, added: u32) -> &Half {
        let [first, second] = &self.halves;
        if (added >> FULL.ilog2()).is_multiple_of(2) { first } else { second }
    }
}

fn has(half: &Half, node: u64) -> bool {
    let nodes = places(half, node).map(|place| place.load(Ordering::Relaxed));
    nodes.take_while(|it| *it != 0).any(|it| it == node)
}

/// Where a node may be, in the order in which it is searched.
fn places(half: &Half, node: u64) -> impl Iterator<Item = &AtomicU64> {
    let first = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
    let (before, after) = half.split_at(first as usize);
    after.iter().chain(before).take(SEARCHED)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NODES: Nodes = Nodes::new();

    #[test]
    fn the_nodes_added_last_are_remembered_and_the_others_make_room() {
        let node = |number: u64| ((number / 10 + 1) << 32) | (number % 10);
        assert!(NODES.is_empty() && !NODES.contains(node(0)));
        let all = 5 * u64::from(FULL) + 7;
        for number in 0..all {
            NODES.add(node(number));
            NODES.add(node(number));
            let oldest = number.saturating_sub(u64::from(FULL) - 1);
            assert!([oldest, number].iter().all(|number| NODES.contains(node(*number))), "{number}");
        }
        let known = (0..all).filter(|number| NODES.contains(node(*number))).count() as u32;
        assert!((FULL..=2 * FULL).contains(&known), "{known}");
        assert!(!NODES.contains(node(all)) && !NODES.contains(0));
    }
}
