//! All-to-alls: programs make them of sends and receives, one to each rank and one from each.

/// Ranks of a communicator whose all-to-alls are recognised.
const RANKS: usize = 4096;

/// The sends and receives of a kernel, as they come.
#[derive(Debug, Default)]
pub struct Exchange {
    /// This process's rank in the communicator, and the number of ranks, if known.
    own: Option<i32>,
    ranks: Option<usize>,
    sends: Way,
    receives: Way,
}

/// What they form together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllToAll {
    /// All have this many bytes.
    Equal(u64),
    /// They differ, or are not known.
    Unequal,
}

/// The sends or the receives.
#[derive(Debug, Default)]
struct Way {
    number: usize,
    /// The bytes of all; `None` if they differ or are not known.
    bytes: Option<u64>,
    /// Ranks, as bits.
    peers: Vec<u64>,
    /// One of them has no peer of its own.
    is_other: bool,
    has_itself: bool,
}

impl Exchange {
    /// None so far, for this rank among so many.
    #[must_use]
    pub fn of(own: Option<i32>, ranks: Option<u32>) -> Exchange {
        let ranks = ranks.map(|ranks| ranks as usize).filter(|ranks| *ranks <= RANKS);
        Exchange { own, ranks, ..Exchange::default() }
    }

    /// Adds a send or a receive.
    pub fn add(&mut self, is_send: bool, peer: Option<i32>, bytes: Option<u64>) {
        let (way, ranks) = (if is_send { &mut self.sends } else { &mut self.receives }, self.ranks.unwrap_or(0));
        way.bytes = bytes.filter(|_| way.number == 0 || way.bytes == bytes);
        way.number += 1;
        let Some(at) = peer.and_then(|peer| usize::try_from(peer).ok()).filter(|at| *at < ranks) else {
            way.is_other = true;
            return;
        };
        way.has_itself |= peer == self.own;
        way.peers.resize(ranks.div_ceil(64), 0);
        let bits = &mut way.peers[at / 64];
        way.is_other |= *bits >> (at % 64) & 1 != 0;
        *bits |= 1 << (at % 64);
    }

    /// How many there are.
    #[must_use]
    pub fn number(&self) -> usize {
        self.sends.number + self.receives.number
    }

    /// What they form. `None` if a rank is missing or comes twice: the own one does not matter,
    /// because what a rank sends to itself moves nothing.
    #[must_use]
    pub fn all_to_all(&self) -> Option<AllToAll> {
        let (ranks, both) = (self.ranks?, [&self.sends, &self.receives]);
        // Between two ranks, a send and a receive may be an exchange of anything.
        let is_one = ranks > 2 || ranks == 2 && both.iter().all(|way| way.has_itself);
        let is_whole = |way: &&Way| !way.is_other && way.number - usize::from(way.has_itself) == ranks - 1;
        if !is_one || !both.iter().all(is_whole) {
            return None;
        }
        Some(match (self.sends.bytes, self.receives.bytes) {
            (Some(sent), Some(received)) if sent == received => AllToAll::Equal(sent),
            _ => AllToAll::Unequal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends to and receives from these ranks, as rank 1 of so many.
    fn formed(ranks: u32, peers: &[i32], bytes: fn(i32) -> u64) -> Option<AllToAll> {
        let mut exchange = Exchange::of(Some(1), Some(ranks));
        for peer in peers {
            exchange.add(true, Some(*peer), Some(bytes(*peer)));
            exchange.add(false, Some(*peer), Some(bytes(*peer)));
        }
        assert_eq!(exchange.number(), 2 * peers.len());
        exchange.all_to_all()
    }

    #[test]
    fn an_all_to_all_reaches_every_rank_once() {
        let equal = Some(AllToAll::Equal(100));
        assert_eq!(formed(4, &[0, 1, 2, 3], |_| 100), equal);
        assert_eq!(formed(4, &[0, 2, 3], |_| 100), equal, "nothing to itself");
        assert_eq!(formed(4, &[3, 0, 2], |peer| peer as u64), Some(AllToAll::Unequal));
        assert_eq!(formed(200, &(0..200).collect::<Vec<_>>(), |_| 100), equal);
        for peers in [&[0, 2][..], &[0, 2, 2], &[0, 2, 3, 3], &[0, 2, 4], &[0, 2, -1], &[]] {
            assert_eq!(formed(4, peers, |_| 100), None, "{peers:?}");
        }
        assert_eq!(formed(2, &[0], |_| 100), None, "an exchange between two ranks");
        assert_eq!(formed(2, &[0, 1], |_| 100), equal);
        assert_eq!(formed(5000, &[0], |_| 100), None);
        let mut one_way = Exchange::of(Some(1), Some(3));
        one_way.add(true, Some(0), Some(1));
        one_way.add(true, Some(2), Some(1));
        assert_eq!(one_way.all_to_all(), None);
    }
}
