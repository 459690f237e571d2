//! The memory that a kernel shares with NCCL's host side, with other kernels and with other
//! processes.
//!
//! A GPU's memory model, on a processor. Words by which one side signals another that data is
//! there or space is free (`head`, `tail`, the flags of LL lines, the profiler's counters) are
//! read and written as atomics, with acquire and release, or between fences. The data they signal
//! is plain: it is written before the signal and read after it, so nobody writes to it while it is
//! read. NCCL's own code on the other side uses volatile accesses of the same aligned words, which
//! on this machine are single instructions too. Structures that the host fills before it launches
//! a kernel are read without synchronisation, and volatile only so that each read happens once and
//! where it is written.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::library::layout::Bits;

/// The address of one of NCCL's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place(*mut u8);

// SAFETY: an address; `Place::new` demands that the memory may be used from any thread.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// A structure at an address.
    ///
    /// # Safety
    ///
    /// The address is that of a structure in readable and writable memory that lives as long as
    /// this place, its copies and its parts are used. Offsets passed to its methods are those of
    /// members of that structure, of the methods' type. The same holds for offsets into structures
    /// that its pointers lead to.
    pub(super) unsafe fn new(address: *mut u8) -> Place {
        Place(address)
    }

    /// Its address.
    pub(super) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Its address.
    pub(super) fn as_ptr(self) -> *mut u8 {
        self.0
    }

    /// A part of it.
    pub(super) fn at(self, offset: usize) -> Place {
        Place(self.0.wrapping_add(offset))
    }

    /// A member of one byte.
    pub(super) fn byte(self, offset: usize) -> u8 {
        // SAFETY: as `new` demands.
        unsafe { self.at(offset).0.read_volatile() }
    }

    /// A member of four bytes.
    pub(super) fn int(self, offset: usize) -> i32 {
        // SAFETY: as `new` demands.
        unsafe { self.at(offset).0.cast::<i32>().read_volatile() }
    }

    /// A member of eight bytes.
    pub(super) fn word(self, offset: usize) -> u64 {
        // SAFETY: as `new` demands.
        unsafe { self.at(offset).0.cast::<u64>().read_volatile() }
    }

    /// Sets a member of eight bytes.
    pub(super) fn set_word(self, offset: usize, value: u64) {
        // SAFETY: as `new` demands.
        unsafe { self.at(offset).0.cast::<u64>().write_volatile(value) }
    }

    /// A bit field.
    pub(super) fn bits(self, bits: Bits) -> u64 {
        // SAFETY: as `new` demands.
        unsafe { bits.read(self.0) }
    }

    /// A single bit.
    pub(super) fn bit(self, bits: Bits) -> bool {
        self.bits(bits) != 0
    }

    /// What a pointer in it points to, unless it is null.
    pub(super) fn follow(self, offset: usize) -> Option<Place> {
        let address = self.pointer(offset);
        (!address.is_null()).then_some(Place(address))
    }

    /// A pointer in it.
    pub(super) fn pointer(self, offset: usize) -> *mut u8 {
        // SAFETY: as `new` demands.
        unsafe { self.at(offset).0.cast::<*mut u8>().read_volatile() }
    }

    /// Reads the word at this place, which somebody else writes; everything they wrote before is
    /// visible afterwards.
    pub(super) fn acquire(self) -> u64 {
        // SAFETY: as `new` demands; NCCL aligns such words.
        unsafe { AtomicU64::from_ptr(self.0.cast()) }.load(Ordering::Acquire)
    }

    /// Sets the word at this place, which somebody else reads; everything written before is
    /// visible to whoever reads the new value.
    pub(super) fn release(self, value: u64) {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.0.cast()) }.store(value, Ordering::Release);
    }

    /// Like [`Place::release`], for four bytes.
    pub(super) fn release_int(self, value: u32) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.0.cast()) }.store(value, Ordering::Release);
    }

    /// Reads the four bytes at this place, which somebody else may set at any time and which
    /// signal no data.
    pub(super) fn glance(self) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.0.cast()) }.load(Ordering::Relaxed)
    }
}

/// Bytes of data in a line of the LL protocol.
pub(super) const LINE_DATA: usize = 8;
/// Bytes of a line: four of data and four of a flag, twice.
pub(super) const LINE: usize = 16;

/// Takes the data from an LL line, if both its flags are there.
pub(super) fn open_line(line: Place, flag: u32) -> Option<u64> {
    // Each half holds its own flag and is read at once, so its flag is never seen without its
    // data.
    let (first, second) = (line.acquire(), line.at(8).acquire());
    let complete = (first >> 32) as u32 == flag && (second >> 32) as u32 == flag;
    complete.then_some(first & 0xffff_ffff | second << 32)
}

/// Writes an LL line.
pub(super) fn write_line(line: Place, data: u64, flag: u32) {
    let flag = u64::from(flag) << 32;
    line.release(data & 0xffff_ffff | flag);
    line.at(8).release(data >> 32 | flag);
}

/// Writes an entry of the profiler's ring: first the time, then the counter that makes it valid.
pub(super) fn stamp(entry: Place, counter: u64, timer: u64) {
    const TIME: usize = 8;
    entry.set_word(TIME, timer);
    fence(Ordering::SeqCst);
    entry.release(counter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_open_when_both_flags_are_there() {
        let mut memory = [0_u64; 2];
        // SAFETY: a line in memory of our own.
        let line = unsafe { Place::new(memory.as_mut_ptr().cast()) };
        write_line(line, 0x1122_3344_5566_7788, 9);
        assert_eq!(open_line(line, 9), Some(0x1122_3344_5566_7788));
        assert_eq!(open_line(line, 8), None);
        line.release(0x5566_7788);
        assert_eq!(open_line(line, 9), None);
        assert_eq!(memory[1], 9 << 32 | 0x1122_3344);
    }

    #[test]
    fn members_are_where_the_layout_says() {
        let mut memory = [0x8877_6655_4433_2211_u64, 0, u64::MAX];
        let third = &raw mut memory[2];
        memory[1] = third as u64;
        // SAFETY: memory of our own, and the pointer in it leads to its last word.
        let place = unsafe { Place::new(memory.as_mut_ptr().cast()) };
        assert_eq!(place.byte(1), 0x22);
        assert_eq!(place.int(4), 0x8877_6655_u32 as i32);
        assert_eq!(place.word(0), 0x8877_6655_4433_2211);
        assert_eq!(place.bits(Bits { offset: 12, width: 9 }), 0x132);
        assert!(place.bit(Bits { offset: 0, width: 1 }));
        assert!(!place.bit(Bits { offset: 1, width: 1 }));
        assert_eq!(place.follow(8).unwrap().word(0), u64::MAX);
        place.at(8).release(0);
        assert_eq!(place.follow(8), None);
    }
}
