//! A map in bounded memory.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// A map that forgets what was inserted first.
#[derive(Debug)]
pub(super) struct Bounded<K, V> {
    map: FxHashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Bounded { map: FxHashMap::default(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Bounded<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }

    /// Puts back what was just removed; its age stays.
    pub(super) fn put_back(&mut self, key: K, value: V) {
        self.map.insert(key, value);
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.map.into_values()
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Inserts, and forgets the oldest of more than `bound`, which is returned.
    pub(super) fn insert(&mut self, key: K, value: V, bound: usize) -> Option<V> {
        if self.map.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        let mut forgotten = None;
        while self.map.len() > bound {
            let Some(oldest) = self.order.pop_front() else { break };
            forgotten = self.map.remove(&oldest);
        }
        // Keys that were removed stay in the order until it is much too long.
        if self.order.len() > 2 * bound {
            let map = &self.map;
            self.order.retain(|key| map.contains_key(key));
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_map_forgets_the_oldest_and_nothing_else() {
        let mut map = Bounded::default();
        for key in 0..10_000_u32 {
            map.insert(key, key, 100);
            if key % 3 == 0 {
                map.remove(&key);
            }
        }
        assert!(map.len() <= 100);
        assert!(map.order.len() <= 200);
        assert_eq!(map.get(&9_998), Some(&9_998));
        assert_eq!(map.get(&1), None);
    }
}
