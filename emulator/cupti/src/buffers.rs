//! The caller's buffers, while CUPTI holds them.
//!
//! Records follow each other in the order in which they were begun. A record of the GPU's work is
//! begun when the work is launched and completed when the work is done. Until then only a forced
//! flush can return its buffer. That is why one long kernel holds back everything that was
//! launched around it.

use std::collections::{BTreeMap, HashMap};

/// Which buffer a record goes to: each lane has one that is being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    /// The thread, or 0 where threads share their buffers.
    pub(crate) thread: u64,
    /// Distinguishes several lanes of one thread.
    pub(crate) turn: u8,
}

/// A buffer that the caller gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Its address.
    pub(crate) address: *mut u8,
    /// Its size in bytes.
    pub(crate) size: usize,
    /// The most records it may hold; 0 means as many as fit.
    pub(crate) most: usize,
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    buffer: u64,
    offset: usize,
}

/// Which buffers to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// Full ones whose records are complete.
    Full,
    /// All whose records are complete.
    Complete,
    /// All.
    Everything,
}

/// A buffer that goes back to the caller.
#[derive(Debug)]
pub(crate) struct Returned {
    /// The caller's memory.
    pub(crate) memory: Memory,
    /// How much of it is filled, in bytes.
    pub(crate) filled: usize,
    /// The thread whose records it holds, or 0.
    pub(crate) thread: u64,
    /// Whether it holds anything but CUPTI's own overhead.
    pub(crate) is_of_interest: bool,
}

#[derive(Debug)]
struct Buffer {
    memory: Memory,
    filled: usize,
    records: usize,
    incomplete: usize,
    is_full: bool,
    is_of_interest: bool,
    lane: Lane,
}

/// All buffers that CUPTI has.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    next: u64,
    /// By number, which is the order in which they were requested.
    all: BTreeMap<u64, Buffer>,
    filling: HashMap<Lane, u64>,
}

// SAFETY: the memory belongs to the caller, who leaves it to CUPTI until it is returned; the owner
// of this value may write to it.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Whether CUPTI has a buffer that overlaps this one.
    pub(crate) fn holds(&self, memory: &Memory) -> bool {
        let start = memory.address as usize;
        let overlaps = |other: &Memory| {
            start < other.address as usize + other.size && (other.address as usize) < start + memory.size
        };
        self.all.values().any(|buffer| overlaps(&buffer.memory))
    }

    /// Whether there is a buffer that a worker could return.
    pub(crate) fn has_full(&self) -> bool {
        self.all.values().any(|buffer| buffer.is_full && buffer.incomplete == 0)
    }

    /// Makes this the lane's buffer to fill. The lane has none.
    ///
    /// # Safety
    ///
    /// The memory is writable, and nobody else uses it until it is returned.
    pub(crate) unsafe fn give(&mut self, lane: Lane, memory: Memory) {
        let number = self.next;
        self.next += 1;
        let buffer =
            Buffer { memory, filled: 0, records: 0, incomplete: 0, is_full: false, is_of_interest: false, lane };
        self.all.insert(number, buffer);
        self.filling.insert(lane, number);
    }

    /// Whether a record of this size needs a new buffer first.
    pub(crate) fn needs_buffer(&mut self, lane: Lane, size: usize) -> bool {
        let Some(number) = self.filling.get(&lane) else { return true };
        let Some(buffer) = self.all.get_mut(number) else { return true };
        let fits = buffer.filled + size <= buffer.memory.size;
        if fits && (buffer.memory.most == 0 || buffer.records < buffer.memory.most) {
            return false;
        }
        buffer.is_full = true;
        self.filling.remove(&lane);
        true
    }

    /// Appends a record to a lane's buffer; `None` if there is no room.
    pub(crate) fn append(&mut self, lane: Lane, record: &[u8], complete: bool, of_interest: bool) -> Option<Slot> {
        if self.needs_buffer(lane, record.len()) {
            return None;
        }
        let number = *self.filling.get(&lane)?;
        let buffer = self.all.get_mut(&number)?;
        let slot = Slot { buffer: number, offset: buffer.filled };
        buffer.write(slot.offset, record);
        buffer.filled += record.len();
        buffer.records += 1;
        buffer.incomplete += usize::from(!complete);
        buffer.is_of_interest |= of_interest;
        if buffer.memory.most != 0 && buffer.records == buffer.memory.most {
            self.call_full(lane);
        }
        Some(slot)
    }

    /// Marks a lane's buffer as full.
    pub(crate) fn call_full(&mut self, lane: Lane) {
        if let Some(buffer) = self.filling.remove(&lane).and_then(|number| self.all.get_mut(&number)) {
            buffer.is_full = true;
        }
    }

    /// Completes a record; false if its buffer has been returned already.
    pub(crate) fn complete(&mut self, slot: Slot, record: &[u8]) -> bool {
        let Some(buffer) = self.all.get_mut(&slot.buffer) else { return false };
        buffer.write(slot.offset, record);
        buffer.incomplete -= 1;
        true
    }

    /// Removes buffers in order to return them, in the order of their requests.
    pub(crate) fn take(&mut self, take: Take) -> Vec<Returned> {
        let wanted = |buffer: &Buffer| match take {
            Take::Full => buffer.is_full && buffer.incomplete == 0,
            // An empty buffer is kept, unless no record fits.
            Take::Complete => buffer.incomplete == 0 && (buffer.filled != 0 || buffer.is_full),
            Take::Everything => true,
        };
        let numbers: Vec<u64> =
            self.all.iter().filter(|(_, buffer)| wanted(buffer)).map(|(number, _)| *number).collect();
        self.filling.retain(|_, number| !numbers.contains(number));
        let removed = numbers.iter().filter_map(|number| self.all.remove(number));
        removed.map(Buffer::into_returned).collect()
    }
}

impl Buffer {
    fn write(&mut self, offset: usize, record: &[u8]) {
        assert!(offset + record.len() <= self.memory.size, "a record is written inside its buffer");
        // SAFETY: the range lies inside the memory, which is CUPTI's until it is returned, as the
        // caller of `give` promised.
        unsafe {
            std::ptr::copy_nonoverlapping(record.as_ptr(), self.memory.address.add(offset), record.len());
        }
    }

    fn into_returned(self) -> Returned {
        Returned {
            memory: self.memory,
            filled: self.filled,
            thread: self.lane.thread,
            is_of_interest: self.is_of_interest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Lane = Lane { thread: 0, turn: 0 };

    /// Buffers; the first one holds `most` records of 8 bytes.
    fn buffers(memory: &mut [u64], most: usize) -> Buffers {
        let mut buffers = Buffers::default();
        let size = size_of_val(memory);
        // SAFETY: the test does not touch its memory until the buffers are gone.
        unsafe { buffers.give(LANE, Memory { address: memory.as_mut_ptr().cast(), size, most }) };
        buffers
    }

    fn append(buffers: &mut Buffers, byte: u8, complete: bool) -> Option<Slot> {
        buffers.append(LANE, &[byte; 8], complete, true)
    }

    #[test]
    fn an_incomplete_record_holds_its_buffer_back() {
        let mut memory = [0; 4];
        let mut buffers = buffers(&mut memory, 0);
        append(&mut buffers, 1, true).expect("there is room");
        let slot = append(&mut buffers, 2, false).expect("there is room");
        assert!(buffers.take(Take::Complete).is_empty());
        assert!(buffers.complete(slot, &[3; 8]));
        assert!(buffers.take(Take::Full).is_empty(), "complete, but not full");
        let returned = buffers.take(Take::Complete);
        assert_eq!(returned.iter().map(|returned| returned.filled).collect::<Vec<_>>(), [16]);
        assert_eq!(memory.map(|word| word as u8), [1, 3, 0, 0]);
    }

    #[test]
    fn a_forced_flush_takes_incomplete_records_for_good() {
        let mut memory = [0; 4];
        let mut buffers = buffers(&mut memory, 0);
        let slot = append(&mut buffers, 1, false).expect("there is room");
        assert_eq!(buffers.take(Take::Everything).len(), 1);
        assert!(!buffers.complete(slot, &[9; 8]));
        assert_eq!(memory[0] as u8, 1, "what was returned is not written to");
        assert!(append(&mut buffers, 2, true).is_none(), "a new buffer is needed");
    }

    #[test]
    fn a_buffer_is_full_by_size_or_by_number() {
        let mut memory = [0; 2];
        let mut by_size = buffers(&mut memory, 0);
        assert!(append(&mut by_size, 1, true).is_some() && append(&mut by_size, 2, true).is_some());
        assert!(!by_size.has_full(), "nobody has asked for more yet");
        assert!(append(&mut by_size, 3, true).is_none());
        assert!(by_size.has_full());
        let mut memory = [0; 2];
        let mut by_number = buffers(&mut memory, 1);
        assert!(append(&mut by_number, 1, true).is_some());
        assert!(by_number.has_full(), "no further record may come");
        assert!(append(&mut by_number, 2, true).is_none());
    }

    #[test]
    fn lent_memory_is_recognised() {
        let mut memory = [0u64; 4];
        let address = memory.as_mut_ptr().cast::<u8>();
        let buffers = buffers(&mut memory, 0);
        // SAFETY: inside the array, or one past its end.
        let (inside, after) = unsafe { (address.add(31), address.add(32)) };
        assert!(buffers.holds(&Memory { address: inside, size: 8, most: 0 }));
        assert!(!buffers.holds(&Memory { address: after, size: 8, most: 0 }));
    }
}
