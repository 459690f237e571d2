//! Maps our handles to the other plugin's. Written and read on NCCL's threads: it has a fixed size,
//! takes no lock, and never waits.
//!
//! Sets of eight places, found by a hash of the number. A place is written in three steps (claim,
//! value, name), and a reader reads the name before and after the value. A name is never reused, so
//! a value read between two equal names belongs to that name.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What a name stands for: two of its bits, so one number can have four names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    /// One of our own handles.
    Ours = 0,
    /// A handle of an event or communicator that only the other plugin asked for.
    Spare = 1,
    /// The name of a communicator.
    CommName = 2,
    /// Its hash.
    CommHash = 3,
}

/// A number of 44 bits, and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(u64);

impl Name {
    pub(super) fn new(what: What, number: u64) -> Name {
        Name(number << 4 | (what as u64) << 2)
    }

    /// Where the search begins.
    fn hash(self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The lowest two bits of a place's name.
const STATE: u64 = 3;
/// Its value is being written.
const WRITING: u64 = 1;
const OPEN: u64 = 2;
const STOPPED: u64 = 3;

/// 0 is empty.
struct Place {
    name: AtomicU64,
    value: AtomicU64,
}

const WAYS: usize = 8;
/// How often to look for a free place if other threads keep taking the ones that were found.
const TRIES: usize = 4;

#[repr(align(64))]
struct Set([Place; WAYS]);

pub(super) struct Table {
    sets: Box<[Set]>,
    shift: u32,
    /// Whether a full set forgets: a stopped event rather than an open one, and the older of two.
    forgets: bool,
}

impl Table {
    /// A table with `2^bits` sets. All of it is touched.
    pub(super) fn new(bits: u32, forgets: bool) -> Table {
        let place = || Place { name: AtomicU64::new(0), value: AtomicU64::new(0) };
        let sets = (0..1_u64 << bits).map(|_| Set(std::array::from_fn(|_| place()))).collect();
        Table { sets, shift: 64 - bits, forgets }
    }

    fn set(&self, name: Name) -> &[Place] {
        let index = usize::try_from(name.hash() >> self.shift).unwrap_or(0);
        self.sets.get(index).map_or(&[], |set| &set.0)
    }

    /// Remembers the value of a new name. False if there was no place.
    pub(super) fn put(&self, name: Name, value: u64) -> bool {
        for _ in 0..TRIES {
            // An empty place, or else the oldest stopped one, or else the oldest.
            let rank = |found: u64| match found & STATE {
                _ if found == 0 => Some((0, 0)),
                STOPPED if self.forgets => Some((1, found)),
                OPEN if self.forgets => Some((2, found)),
                _ => None,
            };
            let places = self.set(name).iter().filter_map(|place| {
                let found = place.name.load(Ordering::Relaxed);
                rank(found).map(|rank| (rank, found, place))
            });
            let Some((_, found, place)) = places.min_by_key(|(rank, ..)| *rank) else { return false };
            let claimed =
                place.name.compare_exchange(found, name.0 | WRITING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if claimed {
                // A reader that sees the new value sees that the old name is gone, too.
                fence(Ordering::Release);
                place.value.store(value, Ordering::Relaxed);
                place.name.store(name.0 | OPEN, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// The place of a name, what was found in it, and the value.
    fn find(&self, name: Name) -> Option<(&Place, u64, u64)> {
        self.set(name).iter().find_map(|place| {
            let found = place.name.load(Ordering::Acquire);
            if found & !STATE != name.0 || found & STATE < OPEN {
                return None;
            }
            let value = place.value.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            let again = place.name.load(Ordering::Relaxed);
            // It may have been stopped meanwhile.
            (again & !STATE == name.0 && again & STATE >= OPEN).then_some((place, again, value))
        })
    }

    /// The value of a name, and whether it is open.
    pub(super) fn get(&self, name: Name) -> Option<(u64, bool)> {
        self.find(name).map(|(_, found, value)| (value, found & STATE == OPEN))
    }

    /// The value of an open name, which is stopped from now on.
    pub(super) fn stop(&self, name: Name) -> Option<u64> {
        let (place, found, value) = self.find(name)?;
        let stopped = found & STATE == OPEN
            && place.name.compare_exchange(found, name.0 | STOPPED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        stopped.then_some(value)
    }

    /// Forgets a name.
    pub(super) fn remove(&self, name: Name) {
        if let Some((place, found, _)) = self.find(name) {
            let _ = place.name.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name::new(What::Ours, number)
    }

    #[test]
    fn a_name_has_its_value_until_it_is_forgotten() {
        let table = Table::new(4, true);
        assert!(table.put(name(5), 55) && table.put(Name::new(What::Spare, 5), 66));
        assert_eq!(table.get(name(5)), Some((55, true)));
        assert_eq!(table.stop(name(5)), Some(55));
        assert_eq!(table.stop(name(5)), None, "a second stop");
        assert_eq!(table.get(name(5)), Some((55, false)), "still a parent");
        assert_eq!(table.get(Name::new(What::Spare, 5)), Some((66, true)), "another name of that number");
        assert_eq!(table.get(Name::new(What::CommName, 5)), None);
        table.remove(name(5));
        assert_eq!(table.get(name(5)), None);
    }

    #[test]
    fn a_full_table_forgets_what_has_stopped_first_or_nothing() {
        let forgetful = Table::new(1, true);
        (1..=3).for_each(|number| assert!(forgetful.put(name(number), number)));
        assert_eq!(forgetful.stop(name(2)), Some(2));
        // More than its 16 places.
        (4..=400).for_each(|number| assert!(forgetful.put(name(number), number)));
        assert_eq!(forgetful.get(name(2)), None);
        assert_eq!(forgetful.get(name(400)), Some((400, true)), "the newest is there");
        let keeping = Table::new(1, false);
        let kept: Vec<_> = (1..=400).filter(|&number| keeping.put(name(number), number)).collect();
        assert_eq!(kept.len(), 16);
        kept.iter().for_each(|&number| assert_eq!(keeping.get(name(number)), Some((number, true))));
    }

    #[test]
    fn no_name_ever_has_the_value_of_another() {
        let table = Table::new(2, true);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let table = &table;
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let number = 4 * turn + thread;
                        let own = name(number);
                        table.put(own, number);
                        for other in number.saturating_sub(40)..number + 8 {
                            assert!(table.get(name(other)).is_none_or(|(value, _)| value == other));
                        }
                        assert!(table.stop(own).is_none_or(|value| value == number));
                    }
                });
            }
        });
    }
}
