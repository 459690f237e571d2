//! The order of events across several hosts (pure).
//!
//! A transfer orders two instants: it was sent before it arrived. In a ring, data goes in one
//! direction, so transfers between two neighbours bound their clocks on one side only. But what a
//! host sends after an arrival also comes after it, by the host's own clock, and so the other bound
//! comes round the ring:
//!
//! ```text
//!   host 0   sent ---.                       .--> arrived: later than host 1 sent
//!   host 1           '--> arrived, sent --.  |
//!   host 2                                '--' arrived, sent
//! ```

use std::rc::Rc;

use crate::model::time::HostNs;

/// Data that went from one host to another; each host has its own clock.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The number of the sending host.
    pub from: usize,
    /// It was sent at this time or later, on the sender's clock.
    pub sent: HostNs,
    /// The number of the receiving host.
    pub to: usize,
    /// It had arrived by this time, on the receiver's clock.
    pub arrived: HostNs,
}

/// An event on a host: a send or an arrival. At equal times, arrivals come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Happens {
    at: HostNs,
    is_send: bool,
    transfer: usize,
}

/// Calls `before` with `(host, time, other, other's time)` wherever the first came before the
/// second and no tighter order is known.
pub fn orders(hosts: usize, transfers: &[Transfer], mut before: impl FnMut(usize, HostNs, usize, HostNs)) {
    let mut events: Vec<Vec<Happens>> = vec![Vec::new(); hosts];
    for (transfer, it) in transfers.iter().enumerate() {
        events[it.from].push(Happens { at: it.sent, is_send: true, transfer });
        events[it.to].push(Happens { at: it.arrived, is_send: false, transfer });
    }
    events.iter_mut().for_each(|events| events.sort_unstable());
    let mut sends = vec![0; transfers.len()];
    for events in &events {
        for (place, it) in events.iter().enumerate().filter(|(_, it)| it.is_send) {
            sends[it.transfer] = place;
        }
    }
    // For each host, the index of its next event, and the latest event of each other host known to
    // have happened before it; 0 if none.
    let mut next = vec![0; hosts];
    let mut known: Vec<Rc<[HostNs]>> = vec![vec![HostNs(0); hosts].into(); hosts];
    // What the sender of a transfer knew when it sent.
    let mut carried: Vec<Option<Rc<[HostNs]>>> = vec![None; transfers.len()];
    for first in 0..hosts {
        // A host is followed to its end. Before an arrival on it is taken, the sender is followed
        // to where the data was sent.
        let mut following = vec![(first, events[first].len())];
        while let Some(&(host, until)) = following.last() {
            if next[host] >= until {
                following.pop();
                continue;
            }
            let Happens { is_send, transfer, .. } = events[host][next[host]];
            let Transfer { from, sent, arrived, .. } = transfers[transfer];
            if is_send {
                carried[transfer] = Some(known[host].clone());
            } else if let Some(knew) = carried[transfer].take() {
                let mine = Rc::make_mut(&mut known[host]);
                for (other, mine) in mine.iter_mut().enumerate().filter(|(other, _)| *other != host) {
                    let theirs = if other == from { sent } else { knew[other] };
                    if theirs > *mine {
                        *mine = theirs;
                        before(other, theirs, host, arrived);
                    }
                }
            } else if following.iter().all(|(it, _)| *it != from) {
                following.push((from, sends[transfer] + 1));
                continue;
            }
            // Otherwise it arrived before it was sent, by way of other hosts, so it is wrong.
            next[host] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(hosts: usize, transfers: &[(usize, u64, usize, u64)]) -> Vec<(usize, u64, usize, u64)> {
        let transfers: Vec<Transfer> = transfers
            .iter()
            .map(|&(from, sent, to, arrived)| Transfer { from, sent: HostNs(sent), to, arrived: HostNs(arrived) })
            .collect();
        let mut found = Vec::new();
        orders(hosts, &transfers, |one, at, other, later| found.push((one, at.0, other, later.0)));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_send_after_an_arrival_follows_what_led_to_it() {
        // Unrelated clocks: host 1 is 1000 ahead, host 2 is 500 behind.
        let transfers = [(2, 520, 0, 1_030), (0, 1_000, 1, 2_010), (1, 2_015, 2, 515)];
        assert_eq!(
            found(3, &transfers),
            [(0, 1_000, 1, 2_010), (0, 1_000, 2, 515), (1, 2_015, 0, 1_030), (1, 2_015, 2, 515), (2, 520, 0, 1_030),]
        );
    }

    #[test]
    fn a_send_before_an_arrival_proves_nothing() {
        assert_eq!(found(3, &[(0, 100, 1, 200), (1, 199, 2, 300)]), [(0, 100, 1, 200), (1, 199, 2, 300)]);
    }

    #[test]
    fn impossible_transfers_are_skipped() {
        // Each arrives before it was sent, by way of the other.
        let found = found(2, &[(0, 100, 1, 50), (1, 60, 0, 90)]);
        assert!(found.len() <= 1, "{found:?}");
        assert!(super::tests::found(1, &[(0, 100, 0, 50), (0, 10, 0, 20)]).is_empty());
    }

    #[test]
    fn every_order_is_true() {
        // Hosts whose clocks are off by a constant, and random messages.
        let mut state = 7_u64;
        let mut below = |most: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % most
        };
        for _ in 0..200 {
            let hosts = 2 + below(5) as usize;
            let ahead: Vec<u64> = (0..hosts).map(|_| below(1_000_000)).collect();
            let transfers: Vec<_> = (0..below(60))
                .map(|_| {
                    let (from, to, sent) = (below(hosts as u64) as usize, below(hosts as u64) as usize, below(10_000));
                    (from, sent + ahead[from], to, sent + 1 + below(300) + ahead[to])
                })
                .collect();
            for (one, at, other, later) in found(hosts, &transfers) {
                assert!(at - ahead[one] < later - ahead[other], "{transfers:?}: {one} at {at}, {other} at {later}");
            }
        }
    }
}
