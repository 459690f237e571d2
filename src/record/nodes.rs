//! The graph nodes that are NCCL's.

use std::sync::atomic::{AtomicU64, Ordering};

/// The parts of a [`Nodes`], a power of two.
const PARTS: usize = 4;
/// How many nodes one part takes.
const FULL: u64 = 8 << 10;
/// The places of a part: half of them stay empty, so that searches are short.
const PLACES: usize = 2 * FULL as usize;
/// Places that are searched for a node.
const SEARCHED: usize = 64;

type Part = [AtomicU64; PLACES];

/// A set of nodes, by CUPTI's numbers. It remembers at least the 2 × [`FULL`] that were added last.
/// An application's graphs have nodes by the thousand, and most need no record.
///
/// Any thread may use it at any time. A node that a thread adds is found by every thread that
/// learns of it from there. What is about to be forgotten may be missed.
pub(super) struct Nodes {
    /// They take turns. A part is emptied while the one before it has its turn, so nobody adds to
    /// it meanwhile, unless the thread that empties it is held up for all of that turn.
    parts: [Part; PARTS],
    /// Nodes added so far.
    added: AtomicU64,
}

impl Nodes {
    pub(super) const fn new() -> Nodes {
        Nodes { parts: [const { [const { AtomicU64::new(0) }; PLACES] }; PARTS], added: AtomicU64::new(0) }
    }

    /// Whether nothing was ever added.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.added.load(Ordering::Relaxed) == 0
    }

    /// Adds a node. 0 is none.
    pub(super) fn add(&self, node: u64) {
        let last = self.added.load(Ordering::Relaxed).saturating_sub(1);
        if has(self.part(turn(last)), node) {
            return;
        }
        let before = self.added.fetch_add(1, Ordering::Relaxed);
        let turn = turn(before);
        if before.is_multiple_of(FULL) && turn + 1 >= PARTS {
            self.part(turn + 1).iter().for_each(|place| place.store(0, Ordering::Relaxed));
        }
        for place in places(self.part(turn), node) {
            if place.compare_exchange(0, node, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Whether the node is remembered.
    pub(super) fn contains(&self, node: u64) -> bool {
        let begun = turn(self.added.load(Ordering::Relaxed)) + 1;
        !self.is_empty() && self.parts.iter().take(begun).any(|part| has(part, node))
    }

    /// The part that has this turn.
    fn part(&self, turn: usize) -> &Part {
        let [first, second, third, fourth] = &self.parts;
        match turn & (PARTS - 1) {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        }
    }
}

/// Which turn it is after so many nodes.
fn turn(added: u64) -> usize {
    (added >> FULL.ilog2()) as usize
}

fn has(part: &Part, node: u64) -> bool {
    let nodes = places(part, node).map(|place| place.load(Ordering::Relaxed));
    nodes.take_while(|it| *it != 0).any(|it| it == node)
}

/// Where a node may be, in the order in which it is searched.
fn places(part: &Part, node: u64) -> impl Iterator<Item = &AtomicU64> {
    let first = node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.ilog2());
    // It has as many bits as the number of a place.
    let (before, after) = part.split_at(first as usize);
    after.iter().chain(before).take(SEARCHED)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NODES: Nodes = Nodes::new();

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn the_nodes_added_last_are_remembered_and_the_others_make_room() {
        let node = |number: u64| ((number / 10 + 1) << 32) | (number % 10);
        assert!(NODES.is_empty() && !NODES.contains(node(0)));
        let remembered = 2 * FULL;
        let all = 11 * FULL + 7;
        for number in 0..all {
            NODES.add(node(number));
            NODES.add(node(number));
            let oldest = number.saturating_sub(remembered - 1);
            assert!([oldest, number].iter().all(|number| NODES.contains(node(*number))), "{number}");
        }
        let known = (0..all).filter(|number| NODES.contains(node(*number))).count() as u64;
        assert!((remembered..=2 * remembered).contains(&known), "{known}");
        assert!(!NODES.contains(node(all)) && !NODES.contains(0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn threads_that_add_at_once_erase_no_node_of_each_other() {
        const THREADS: u64 = 4;
        const EACH: u64 = 64;
        let missing = |nodes: &Nodes| {
            let all = (1..=THREADS).flat_map(|thread| (1..=EACH).map(move |number| (thread << 32) | number));
            all.filter(|node| !nodes.contains(*node)).count()
        };
        for before in [0, 100, FULL, 3 * FULL - 100, 4 * FULL] {
            for _ in 0..50 {
                let nodes = Box::new(Nodes::new());
                nodes.added.store(before, Ordering::Relaxed);
                let start = std::sync::Barrier::new(THREADS as usize);
                std::thread::scope(|scope| {
                    for thread in 1..=THREADS {
                        let (nodes, start) = (&nodes, &start);
                        scope.spawn(move || {
                            start.wait();
                            (1..=EACH).for_each(|number| nodes.add((thread << 32) | number));
                        });
                    }
                });
                assert_eq!(missing(&nodes), 0, "after {before} others");
            }
        }
    }
}
