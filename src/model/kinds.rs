//! NCCL's event kinds, as its mask and its descriptors number them.

use std::fmt;
use std::ops::{BitOr, BitOrAssign, Sub};

/// The bit of each kind.
pub mod bit {
    #![allow(missing_docs)] // NCCL's names
    pub const GROUP: u64 = 1;
    pub const COLL: u64 = 1 << 1;
    pub const P2P: u64 = 1 << 2;
    pub const PROXY_OP: u64 = 1 << 3;
    pub const PROXY_STEP: u64 = 1 << 4;
    pub const PROXY_CTRL: u64 = 1 << 5;
    pub const KERNEL_CH: u64 = 1 << 6;
    pub const NET_PLUGIN: u64 = 1 << 7;
    pub const GROUP_API: u64 = 1 << 8;
    pub const COLL_API: u64 = 1 << 9;
    pub const P2P_API: u64 = 1 << 10;
    pub const KERNEL_LAUNCH: u64 = 1 << 11;
    pub const CE_COLL: u64 = 1 << 12;
    pub const CE_SYNC: u64 = 1 << 13;
    pub const CE_BATCH: u64 = 1 << 14;
    pub const KERNEL_PHASE: u64 = 1 << 15;
}

/// NCCL's names, without the leading `ncclProfile`.
pub const NAMES: [(&str, Kinds); 16] = [
    ("Group", Kinds(bit::GROUP)),
    ("Coll", Kinds(bit::COLL)),
    ("P2p", Kinds(bit::P2P)),
    ("ProxyOp", Kinds(bit::PROXY_OP)),
    ("ProxyStep", Kinds(bit::PROXY_STEP)),
    ("ProxyCtrl", Kinds(bit::PROXY_CTRL)),
    ("KernelCh", Kinds(bit::KERNEL_CH)),
    ("NetPlugin", Kinds(bit::NET_PLUGIN)),
    ("GroupApi", Kinds(bit::GROUP_API)),
    ("CollApi", Kinds(bit::COLL_API)),
    ("P2pApi", Kinds(bit::P2P_API)),
    ("KernelLaunch", Kinds(bit::KERNEL_LAUNCH)),
    ("CeColl", Kinds(bit::CE_COLL)),
    ("CeSync", Kinds(bit::CE_SYNC)),
    ("CeBatch", Kinds(bit::CE_BATCH)),
    ("KernelPhase", Kinds(bit::KERNEL_PHASE)),
];

/// The kinds with which NCCL starts such an event: itself, and those whose events have it as an
/// ancestor. The event is given by its bit.
#[must_use]
pub fn asked_by(event: u64) -> u64 {
    use bit::*;
    const STEPS: u64 = PROXY_STEP | NET_PLUGIN;
    const CHANNELS: u64 = KERNEL_CH | KERNEL_PHASE;
    const BELOW: u64 = PROXY_OP | STEPS | CHANNELS;
    const COPIES: u64 = CE_COLL | CE_SYNC | CE_BATCH;
    match event {
        GROUP_API => !PROXY_CTRL,
        COLL_API => COLL_API | COLL | BELOW | COPIES,
        P2P_API => P2P_API | P2P | BELOW,
        GROUP => GROUP | COLL | P2P | BELOW,
        COLL => COLL | BELOW,
        P2P => P2P | BELOW,
        PROXY_OP => PROXY_OP | STEPS,
        PROXY_STEP => STEPS,
        KERNEL_CH => CHANNELS,
        CE_COLL => COPIES,
        other => other,
    }
}

/// A set of kinds, as in NCCL's mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(pub u64);

impl Kinds {
    /// None.
    pub const NONE: Kinds = Kinds(0);
    /// Operations, and the launches by which their kernels are known.
    pub const METRICS: Kinds = Kinds(bit::KERNEL_LAUNCH | bit::GROUP | bit::COLL | bit::P2P);
    /// The application's calls, launches and operations.
    pub const LIGHT: Kinds =
        Kinds(bit::GROUP_API | bit::COLL_API | bit::P2P_API | bit::KERNEL_LAUNCH | bit::GROUP | bit::COLL | bit::P2P);
    /// The same, with the proxy's operations and steps.
    pub const STANDARD: Kinds = Kinds(Kinds::LIGHT.0 | bit::PROXY_OP | bit::PROXY_STEP);
    /// Everything.
    pub const FULL: Kinds = Kinds(
        Kinds::STANDARD.0
            | bit::PROXY_CTRL
            | bit::NET_PLUGIN
            | bit::CE_COLL
            | bit::CE_SYNC
            | bit::CE_BATCH
            | Kinds::CHANNELS.0,
    );
    /// Kinds that need the GPU's own stamps. NCCL measures phases of kernels by the same means as
    /// channels, and enables channels with them.
    pub const CHANNELS: Kinds = Kinds(bit::KERNEL_CH | bit::KERNEL_PHASE);

    /// The kind of this name, in any case, with or without the leading `ncclProfile`.
    #[must_use]
    pub fn named(name: &str) -> Option<Kinds> {
        const PREFIX: &str = "ncclProfile";
        let has_prefix = name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
        let name = if has_prefix { &name[PREFIX.len()..] } else { name };
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|&(_, kind)| kind)
    }

    /// Whether this set contains all of `kinds`.
    #[must_use]
    pub fn has(self, kinds: Kinds) -> bool {
        self.0 & kinds.0 == kinds.0
    }
}

impl BitOr for Kinds {
    type Output = Kinds;

    fn bitor(self, more: Kinds) -> Kinds {
        Kinds(self.0 | more.0)
    }
}

impl BitOrAssign for Kinds {
    fn bitor_assign(&mut self, more: Kinds) {
        self.0 |= more.0;
    }
}

impl Sub for Kinds {
    type Output = Kinds;

    fn sub(self, less: Kinds) -> Kinds {
        Kinds(self.0 & !less.0)
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, _) in NAMES.iter().filter(|(_, kind)| self.has(*kind)) {
            write!(f, "{between}{name}")?;
            between = ", ";
        }
        Ok(())
    }
}
