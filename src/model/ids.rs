//! Identifiers.
//!
//! What NCCL holds as a pointer is, on our side, a number with no memory behind it. So a stale
//! parent, a second stop or the handle of another process is a look-up that may miss, never a read
//! of freed memory.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// What NCCL holds for an event or a communicator of ours: 20 bits of process tag above a 44-bit
/// counter.
///
/// 0 is "none". A tag other than this process's belongs to another process (with PXN, NCCL hands
/// one process's handles to another) or to another plugin.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Handle(pub u64);

/// The random tag of a process; never 0, and never one that a user-space pointer could carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessTag(u32);

impl Handle {
    /// No event.
    pub const NONE: Handle = Handle(0);
    /// Width of the counter.
    pub const COUNTER_BITS: u32 = 44;

    /// Whether it is the handle of no event.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The upper 20 bits.
    #[must_use]
    pub fn tag_bits(self) -> u32 {
        (self.0 >> Self::COUNTER_BITS) as u32
    }

    /// Whether the process with `tag` made this handle.
    #[must_use]
    pub fn is_from(self, tag: ProcessTag) -> bool {
        self.tag_bits() == tag.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counter = self.0 & ((1 << Self::COUNTER_BITS) - 1);
        write!(f, "{:05x}:{counter}", self.tag_bits())
    }
}

impl ProcessTag {
    /// Width of a tag.
    pub const BITS: u32 = 20;
    /// Tags below this look like the upper bits of a user-space pointer. Bits 47 to 63 of those are
    /// clear on x86-64, and bits 48 to 63 on aarch64, unless a program asks for addresses beyond.
    const FIRST: u32 = 16;

    /// Makes a tag of random bits.
    #[must_use]
    pub fn from_random(bits: u64) -> ProcessTag {
        let span = (1 << Self::BITS) - Self::FIRST;
        ProcessTag(Self::FIRST + (bits % u64::from(span)) as u32)
    }

    /// The tag with this number; `None` where no tag has it.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<ProcessTag> {
        let bits = u32::try_from(bits).ok().filter(|bits| (Self::FIRST..1 << Self::BITS).contains(bits))?;
        Some(ProcessTag(bits))
    }

    /// The tag as a number below 2^20.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The handle with counter 0; the counter is added to it.
    #[must_use]
    pub fn base(self) -> u64 {
        u64::from(self.0) << Handle::COUNTER_BITS
    }
}

/// A host thread's number in the recorder: the index of its ring, which a later thread may take
/// over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_never_looks_like_a_pointer() {
        for bits in [0, 1, u64::MAX, 1 << 20, (1 << 20) - 8] {
            let tag = ProcessTag::from_random(bits);
            assert!(tag.bits() >= 16 && tag.bits() < 1 << 20);
            assert!(Handle(tag.base() + 5).is_from(tag));
            assert!(!Handle(0xffff_ffff_ffff).is_from(tag), "the highest user-space address of aarch64");
        }
    }
}
