//! Arrows. Perfetto draws an arrow from each slice with a number to the next slice in time with the
//! same number, and none if a number occurs once. So each arrow has a number of its own, made from
//! the handle of the event it starts at, which both ends know:
//!
//! ```text
//! ncclAllReduce --> KernelLaunch --> AllReduce, handed over --> AllReduce, run
//!                        `--> kernel --> its channels --> proxy operations
//! ```
//!
//! A captured call or launch has one arrow through all of its replays. A handle begins with the tag
//! of its process, so that the arrows of merged files do not mix.

use crate::model::ids::Handle;

/// Bits of a handle's counter that are kept. With more events than that in a process, an arrow may
/// lead to the wrong slice.
const COUNTER_BITS: u32 = Handle::COUNTER_BITS - 8;
/// The most channels that NCCL uses.
const CHANNELS: u8 = 64;

/// The arrow from an event to what it causes.
pub(super) fn from(event: Handle) -> u64 {
    numbered(event, 0)
}

/// The arrow from a kernel to one of the channels of an operation that it carries.
pub(super) fn to_channel(operation: Handle, channel: u8) -> u64 {
    numbered(operation, 1 + channel % CHANNELS)
}

/// The arrow between a channel of an operation and the proxy's work for it.
pub(super) fn to_proxy(operation: Handle, channel: u8) -> u64 {
    numbered(operation, 1 + CHANNELS + channel % CHANNELS)
}

fn numbered(event: Handle, number: u8) -> u64 {
    let tag = u64::from(event.tag_bits()) << Handle::COUNTER_BITS;
    tag | u64::from(number) << COUNTER_BITS | event.0 & ((1 << COUNTER_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_arrows_share_a_number() {
        let mut numbers = HashSet::new();
        for event in [0x8_0000_0000_0001, 0x8_0000_0000_0002, 0xfff_f000_0000_0001].map(Handle) {
            assert!(numbers.insert(from(event)));
            for channel in 0..64 {
                assert!(numbers.insert(to_channel(event, channel)) && numbers.insert(to_proxy(event, channel)));
            }
        }
    }
}
