//! The transfers of the network proxy, and what they wait for.

use super::{Facts, Summary, UNKNOWN};
use crate::model::state;
use crate::model::time::HostNs;
use crate::trace::words::wait;

/// A connection of the proxy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Peer {
    pub(super) comm: u32,
    pub(super) peer: Option<i32>,
    pub(super) is_send: bool,
}

/// What the proxy did for one peer in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transfers {
    pub(super) operations: u64,
    pub(super) queued: u64,
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) waits: [u64; Wait::ALL.len()],
    pub(super) longest: u64,
}

/// What a transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The GPU.
    Gpu,
    /// The peer.
    Peer,
    /// The network.
    Network,
    /// A flush.
    Flush,
}

impl Wait {
    pub(super) const ALL: [Wait; 4] = [Wait::Gpu, Wait::Peer, Wait::Network, Wait::Flush];

    /// The wait that is drawn under this name.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn named(name: &str) -> Option<Wait> {
        Wait::ALL.into_iter().find(|it| it.name() == name)
    }

    /// What a transfer waits for in this state; `None` if this build does not know it.
    #[inline]
    #[must_use]
    pub fn of(number: u16) -> Option<Wait> {
        match number {
            state::PROXY_STEP_SEND_GPU_WAIT | state::PROXY_STEP_RECV_GPU_WAIT => Some(Wait::Gpu),
            state::PROXY_STEP_SEND_PEER_WAIT => Some(Wait::Peer),
            state::PROXY_STEP_SEND_WAIT | state::PROXY_STEP_RECV_WAIT => Some(Wait::Network),
            state::PROXY_STEP_RECV_FLUSH_WAIT => Some(Wait::Flush),
            _ => None,
        }
    }

    /// The name under which it is drawn.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Wait::Gpu => wait::GPU,
            Wait::Peer => wait::PEER,
            Wait::Network => wait::NETWORK,
            Wait::Flush => wait::FLUSH,
        }
    }
}

/// A transfer of the proxy under way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    peer: u32,
    waits_since: HostNs,
    waits_for: Option<Wait>,
    waits: [u64; Wait::ALL.len()],
    bytes: u64,
}

impl Transfer {
    /// One that begins, for the peer of this number.
    #[must_use]
    pub fn new(peer: u32, time: HostNs) -> Transfer {
        Transfer { peer, waits_since: time, waits_for: None, waits: [0; Wait::ALL.len()], bytes: 0 }
    }

    /// From here on it waits for this; `None` for something unknown, and at its end.
    #[inline]
    pub fn waits(&mut self, time: HostNs, wait: Option<Wait>, bytes: Option<u64>) {
        if let Some(wait) = self.waits_for {
            let sum = &mut self.waits[wait as usize];
            *sum = sum.saturating_add(time.since(self.waits_since));
        }
        (self.waits_since, self.waits_for) = (time, wait);
        self.bytes = self.bytes.max(bytes.unwrap_or_default());
    }
}

impl Peer {
    pub(super) const REST: Peer = Peer { comm: UNKNOWN, peer: None, is_send: false };
}

impl Transfers {
    pub(super) fn add_all(&mut self, other: &Transfers) {
        self.operations += other.operations;
        self.queued = self.queued.saturating_add(other.queued);
        self.number += other.number;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.waits.iter_mut().zip(other.waits).for_each(|(ours, theirs)| *ours = ours.saturating_add(theirs));
        self.longest = self.longest.max(other.longest);
    }
}

impl Summary {
    /// The number of a peer of the proxy's, for [`Transfer::new`].
    pub fn peer(&mut self, facts: &Facts<'_>, is_send: bool) -> u32 {
        let comm = self.known_comm(facts);
        self.peers.place(Peer { comm, peer: facts.peer, is_send }, Peer::REST)
    }

    /// An operation of the proxy's begins, after it had queued.
    pub fn proxy_operation(&mut self, peer: u32, queued_ns: Option<u64>) {
        if let Some(peer) = self.peers.at(peer) {
            peer.operations += 1;
            peer.queued = peer.queued.saturating_add(queued_ns.unwrap_or_default());
        }
    }

    /// A transfer of the proxy's is done.
    #[inline]
    pub fn transferred(&mut self, mut transfer: Transfer, time: HostNs) {
        transfer.waits(time, None, None);
        let Some(peer) = self.peers.at(transfer.peer) else { return };
        peer.number += 1;
        peer.bytes = peer.bytes.saturating_add(transfer.bytes);
        for (sum, wait) in peer.waits.iter_mut().zip(transfer.waits) {
            *sum = sum.saturating_add(wait);
            peer.longest = peer.longest.max(wait);
        }
    }

    /// The end of a transfer that has begun will never be known.
    pub fn not_transferred(&mut self) {
        self.unfinished += 1;
    }
}
