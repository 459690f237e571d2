//! Values by number.

use rustc_hash::FxHashMap;

/// Values by numbers such as the uuids of tracks, in the order in which they came. The numbers of a
/// process follow one another, so nearly all are found without hashing.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    all: Vec<(u64, T)>,
    places: FxHashMap<u64, u32>,
    /// By the lowest bits of a number: the place of the last one with these.
    near: [u32; NEAR],
}

const NEAR: usize = 256;

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { all: Vec::new(), places: FxHashMap::default(), near: [0; NEAR] }
    }
}

impl<T> Numbered<T> {
    #[inline]
    fn place(&mut self, number: u64) -> Option<usize> {
        let near = self.near[number as usize % NEAR] as usize;
        match self.all.get(near) {
            Some((it, _)) if *it == number => Some(near),
            _ => self.search(number),
        }
    }

    fn search(&mut self, number: u64) -> Option<usize> {
        let place = *self.places.get(&number)?;
        self.near[number as usize % NEAR] = place;
        Some(place as usize)
    }

    /// The value of a number, if it has one.
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        let place = *self.places.get(&number)? as usize;
        Some(&self.all[place].1)
    }

    /// The same, found faster.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number)?;
        Some(&mut self.all[place].1)
    }

    /// The value of a number; a new one if it has none.
    #[inline]
    pub(crate) fn entry(&mut self, number: u64) -> &mut T
    where
        T: Default,
    {
        let place = self.place(number).unwrap_or_else(|| self.add(number));
        &mut self.all[place].1
    }

    #[cold]
    fn add(&mut self, number: u64) -> usize
    where
        T: Default,
    {
        let place = self.all.len();
        self.all.push((number, T::default()));
        self.places.insert(number, place as u32);
        place
    }

    /// All numbers with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, T)> {
        self.all.iter()
    }

    /// The same, for keeping.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = (u64, T)> {
        self.all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_equal_lowest_bits_are_told_apart() {
        let near = NEAR as u64;
        let numbers = [7, 7 + near, 7 + 5 * near, 0, u64::MAX, 8];
        let mut all = Numbered::default();
        assert_eq!(all.get_mut(0), None);
        for _ in 0..2 {
            numbers.iter().for_each(|number| *all.entry(*number) += 1);
        }
        assert_eq!(all.get_mut(7 + near), Some(&mut 2));
        assert_eq!(all.get_mut(7 + 2 * near), None);
        assert_eq!(all.into_iter().collect::<Vec<_>>(), numbers.map(|number| (number, 2)));
    }
}
