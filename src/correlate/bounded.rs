//! Maps in bounded memory.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// A map that keeps its values apart from its keys. A hash table with much turnover has room for up
/// to four times its content, which is a lot where values are large; here only the keys have that
/// room.
#[derive(Debug)]
pub(super) struct Store<K, V> {
    places: FxHashMap<K, u32>,
    values: Vec<Option<V>>,
    free: Vec<u32>,
}

impl<K, V> Default for Store<K, V> {
    fn default() -> Self {
        Store { places: FxHashMap::default(), values: Vec::new(), free: Vec::new() }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Store<K, V> {
    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.values[*self.places.get(key)? as usize].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.values[*self.places.get(key)? as usize].as_mut()
    }

    /// Inserts a value, replacing the one that was there.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if let Some(known) = self.get_mut(&key) {
            *known = value;
            return;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() as u32 - 1
        });
        self.values[place as usize] = Some(value);
        self.places.insert(key, place);
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        self.free.push(place);
        self.values[place as usize].take()
    }

    /// Removes what is not to be kept.
    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let Store { places, values, free } = self;
        places.retain(|key, place| {
            let is_kept = keep(key);
            if !is_kept {
                values[*place as usize] = None;
                free.push(*place);
            }
            is_kept
        });
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.values.into_iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}

/// A map that forgets what was inserted first.
#[derive(Debug)]
pub(super) struct Bounded<K, V> {
    /// Each value with its insertion number.
    map: Store<K, (u64, V)>,
    /// Oldest first. A removed entry stays here for a while; its number is no longer in the map.
    order: VecDeque<(K, u64)>,
    inserted: u64,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Bounded { map: Store::default(), order: VecDeque::new(), inserted: 0 }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V> Bounded<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key).map(|(_, value)| value)
    }

    /// Removes what is not to be kept.
    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.map.retain(keep);
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = V> {
        self.map.into_values().map(|(_, value)| value)
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.map.values.iter().flatten().map(|(_, value)| value)
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Inserts a value. Beyond `bound` the oldest is forgotten and returned. A new value of an
    /// existing key keeps that key's age.
    pub(super) fn insert(&mut self, key: K, value: V, bound: usize) -> Option<V> {
        let number = self.inserted;
        if let Some(known) = self.map.get_mut(&key) {
            known.1 = value;
            return None;
        }
        // Make room first: a full table would double.
        let forgotten = if self.map.len() >= bound { self.forget() } else { None };
        self.map.insert(key, (number, value));
        self.inserted += 1;
        self.order.push_back((key, number));
        if self.order.len() > 2 * bound {
            let map = &self.map;
            self.order.retain(|(key, number)| map.get(key).is_some_and(|(known, _)| known == number));
        }
        forgotten
    }

    /// The value of a key, which is inserted if missing.
    pub(super) fn entry(&mut self, key: K, bound: usize) -> &mut V
    where
        V: Default,
    {
        if self.get(&key).is_none() {
            self.insert(key, V::default(), bound);
        }
        self.get_mut(&key).expect("it was inserted")
    }

    /// Forgets the oldest.
    pub(super) fn forget(&mut self) -> Option<V> {
        while let Some((oldest, number)) = self.order.pop_front() {
            if self.map.get(&oldest).is_some_and(|(known, _)| *known == number) {
                return self.remove(&oldest);
            }
        }
        None
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

    #[test]
    fn a_key_inserted_again_counts_as_new() {
        let mut map = Bounded::default();
        map.insert(1, "first", 2);
        map.remove(&1);
        map.insert(2, "second", 2);
        map.insert(1, "again", 2);
        assert_eq!(map.insert(3, "third", 2), Some("second"), "the oldest that is still there");
        assert_eq!(map.get(&1), Some(&"again"));
        // A value that replaces another keeps its age.
        assert_eq!(map.insert(1, "once more", 2), None);
        assert_eq!(map.insert(4, "fourth", 2), Some("once more"));
    }

    #[test]
    fn frequent_inserts_and_removals_are_fast() {
        let mut map = Bounded::default();
        for round in 0..1_000_000 {
            let key = round % 100;
            map.remove(&key);
            map.insert(key, round, 100);
            assert!(map.order.len() <= 200);
        }
        assert_eq!(map.len(), 100);
    }
}
