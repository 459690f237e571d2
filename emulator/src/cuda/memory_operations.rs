//! Memory operations of streams: write a value, wait for one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::Error;

/// `CUstreamBatchMemOpParams`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryOperation {
    pub(super) operation: u32,
    pub(super) address: usize,
    pub(super) value: u64,
    pub(super) flags: u32,
    pub(super) rest: [u64; 2],
}

const _: () = assert!(size_of::<MemoryOperation>() == 48);

impl MemoryOperation {
    pub(super) const WAIT_32: u32 = 1;
    pub(super) const WRITE_32: u32 = 2;
    /// Nothing to do here: writes are visible at once.
    const FLUSH_REMOTE_WRITES: u32 = 3;
    pub(super) const WAIT_64: u32 = 4;
    pub(super) const WRITE_64: u32 = 5;
    const BARRIER: u32 = 6;

    pub(super) fn new(operation: u32, address: usize, value: u64, flags: u32) -> MemoryOperation {
        MemoryOperation { operation, address, value, flags, rest: [0; 2] }
    }

    /// Whether the emulator knows this operation and can do it at this address.
    pub(super) fn check(&self) -> Result<(), Error> {
        let aligned = |to: usize| self.address != 0 && self.address.is_multiple_of(to);
        let right = match self.operation {
            Self::WAIT_32 | Self::WRITE_32 => aligned(4),
            Self::WAIT_64 | Self::WRITE_64 => aligned(8),
            Self::FLUSH_REMOTE_WRITES | Self::BARRIER => true,
            _ => return Err(Error::NotSupported),
        };
        if right { Ok(()) } else { Err(Error::InvalidValue) }
    }

    /// Whether the value in memory meets the condition.
    fn met(&self, value: u64) -> bool {
        let wanted = self.value;
        let wide = self.operation == Self::WAIT_64;
        // The lower bits give the comparison; a higher one may ask for a flush.
        match (self.flags & 3, wide) {
            (0, true) => value.wrapping_sub(wanted) as i64 >= 0,
            (0, false) => (value as u32).wrapping_sub(wanted as u32) as i32 >= 0,
            (1, true) => value == wanted,
            (1, false) => value as u32 == wanted as u32,
            (2, true) => value & wanted != 0,
            (2, false) => (value & wanted) as u32 != 0,
            (_, true) => !(value | wanted) != 0,
            (_, false) => !((value | wanted) as u32) != 0,
        }
    }
}

/// Runs them one after the other.
pub(super) fn run(operations: &[MemoryOperation]) {
    for operation in operations {
        // SAFETY: whoever queued it promised the address, and it was checked to be aligned.
        let narrow = || unsafe { AtomicU32::from_ptr(operation.address as *mut u32) };
        // SAFETY: as above.
        let wide = || unsafe { AtomicU64::from_ptr(operation.address as *mut u64) };
        match operation.operation {
            MemoryOperation::WRITE_32 => narrow().store(operation.value as u32, Ordering::SeqCst),
            MemoryOperation::WRITE_64 => wide().store(operation.value, Ordering::SeqCst),
            MemoryOperation::WAIT_32 => wait(|| operation.met(narrow().load(Ordering::SeqCst).into())),
            MemoryOperation::WAIT_64 => wait(|| operation.met(wide().load(Ordering::SeqCst))),
            _ => {}
        }
    }
}

fn wait(met: impl Fn() -> bool) {
    let mut tries = 0;
    while !met() {
        tries += 1;
        match tries {
            ..64 => std::thread::yield_now(),
            64..2000 => std::thread::sleep(Duration::from_micros(20)),
            _ => std::thread::sleep(Duration::from_micros(500)),
        }
    }
}
