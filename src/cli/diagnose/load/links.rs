//! How long the network had what a rank sent, and its GPU what it had received.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::super::graph::Graph;
use super::super::job::{Link, RankFacts, Taken, Use};
use super::{Carrier, Loading, Send};
use crate::import::{Profile, Span};
use crate::trace::words::wait;

/// How many times longer than others a slow link, or a slow channel, takes.
pub(in super::super) const SLOW: f64 = 1.7;

/// From how long on it is known for each sender that a GPU did not take its data, ns.
const LONG_NS: f64 = 1e6;

/// From when to when the network, or a GPU, had something of a transfer of an item.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    item: usize,
    comm: u64,
    peer: i32,
    channel: Option<u32>,
    from: i64,
    to: i64,
}

impl Loading {
    /// For how long the network had something of a rank's sends, by item and peer; and its GPU
    /// something that it had received. Its ranks in communicators tell its transfers from those of
    /// its process's other GPUs.
    pub(super) fn transfers(
        &mut self,
        profile: &Profile,
        process: usize,
        rank: usize,
        own_ranks: &FxHashMap<u64, i32>,
        carriers: &[Carrier],
    ) {
        let (mut sent, mut held, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        for transfer in profile.transfers.iter().filter(|it| it.process == process) {
            let (Some(number), Some(peer)) = (transfer.correlation, transfer.peer) else { continue };
            let of_it = &carriers[carriers.partition_point(|it| it.shared < number)..];
            let is_own = |it: &&Carrier| {
                let own = own_ranks.get(&it.comm);
                transfer.rank.zip(own).is_none_or(|(sender, own)| sender == *own)
            };
            let of_it = of_it.iter().take_while(|it| it.shared == number).filter(is_own);
            // Replays of a graph share a number.
            let far = |it: &&Carrier| {
                let item = &self.items[rank][it.item];
                apart(Span::of(item.start, item.end), transfer.span)
            };
            let Some(Carrier { item, comm, .. }) = of_it.min_by_key(far) else { continue };
            let mut from = transfer.span.start.0;
            for (what, ns) in &transfer.waits {
                let to = from.saturating_add_unsigned(*ns);
                let stretch = Stretch { item: *item, comm: *comm, peer, channel: transfer.channel, from, to };
                if transfer.is_send && what.starts_with(wait::NETWORK) {
                    sent.push(stretch);
                } else if transfer.is_send && what.starts_with(wait::PEER) {
                    held.push(stretch);
                } else if !transfer.is_send && what.starts_with(wait::GPU) {
                    taken.push(stretch);
                }
                from = to;
            }
        }
        sent.sort_unstable_by_key(|it| (it.item, it.comm, it.peer, it.channel));
        for of_use in sent.chunk_by(|one, other| (one.item, one.comm, one.peer) == (other.item, other.comm, other.peer))
        {
            let Stretch { item, comm, peer, .. } = of_use[0];
            let (each, channel) = slowest(of_use);
            let it = &mut self.items[rank][item];
            it.sent = it.sent.max(of_use.iter().map(|it| it.to).max().unwrap_or(0) - it.start);
            let busy = covered(of_use);
            self.uses.push((comm, peer, Use { link: rank, item, is_direct: false, busy, each, channel }));
        }
        taken.sort_unstable_by_key(|it| (it.item, it.comm, it.peer));
        for of_peer in
            taken.chunk_by(|one, other| (one.item, one.comm, one.peer) == (other.item, other.comm, other.peer))
        {
            let Stretch { item, comm, peer, .. } = of_peer[0];
            let untaken = covered(of_peer);
            self.untaken.extend((untaken >= LONG_NS).then_some((rank, item, (comm, peer), untaken)));
        }
        // Before its kernel runs, a GPU can take nothing.
        for it in &mut taken {
            it.from = it.from.max(self.items[rank][it.item].start).min(it.to);
        }
        taken.sort_unstable_by_key(|it| (it.item, it.channel));
        held.sort_unstable_by_key(|it| it.item);
        let held_in = |item: usize| {
            let until = |last: usize| held.partition_point(|it| it.item < last);
            covered(&held[until(item)..until(item + 1)])
        };
        for of_item in taken.chunk_by(|one, other| one.item == other.item) {
            let count = by_channel(of_item).map(<[Stretch]>::len).max().unwrap_or(0);
            let each = lengths(of_item)[of_item.len() / 4] as f64;
            let item = of_item[0].item;
            self.taken.push((rank, item, Taken { busy: covered(of_item), each, count, held: held_in(item) }));
        }
    }
}

/// The links, and how they were used. `rank_of` knows which rank a communicator's is; `uses` and
/// `sends` are as in [`Loading`].
pub(super) fn all(
    graph: &Graph,
    ranks: &[RankFacts],
    rank_of: impl Fn(&u64, &i32) -> Option<usize>,
    uses: &[(u64, i32, Use)],
    sends: &[Send],
) -> (Vec<Link>, Vec<Use>) {
    let mut known: BTreeMap<Link, usize> = BTreeMap::new();
    let (mut links, mut all) = (Vec::new(), Vec::new());
    let mut link_of = |from: usize, to: Option<usize>, peer: i32| {
        let link = Link { from, to, peer };
        *known.entry(link.clone()).or_insert_with(|| {
            links.push(link);
            links.len() - 1
        })
    };
    for (comm, peer, it) in uses {
        let link = link_of(it.link, rank_of(comm, peer), *peer);
        all.push(Use { link, item: graph.rank(it.link).start + it.item, ..*it });
    }
    let is_by_network: BTreeSet<(usize, usize)> = all.iter().map(|it| (it.link, it.item)).collect();
    for Send { comm, peer, rank: from, item, is_even } in sends {
        let (Some(to), item) = (rank_of(comm, peer).filter(|to| to != from), graph.rank(*from).start + item) else {
            continue;
        };
        // Between hosts the network carries it, even if its work was not recorded.
        let is_near = ranks[*from].host.is_some() && ranks[*from].host == ranks[to].host;
        // What a kernel also exchanges with others may be what takes long. On one clock, the kernel
        // at the other end tells that: it takes at least as long as what both exchange.
        let others = |of: usize| graph.partners(of).filter(move |it| *it != of).map(|it| graph.rank_of(it as u32));
        let is_apart = |of: usize, peer: usize| {
            others(of).all(|rank| rank == peer) || *is_even && graph.since_all_began(of).is_some()
        };
        let ends = || graph.partners_on(item, to);
        if !is_near || ends().next().is_none() || !is_apart(item, to) || !ends().all(|end| is_apart(end, *from)) {
            continue;
        }
        let took = ends().chain([item]).map(|end| graph.length(end)).min().unwrap_or(0) as f64;
        let link = link_of(*from, Some(to), *peer);
        if !is_by_network.contains(&(link, item)) {
            all.push(Use { link, item, is_direct: true, busy: took, each: took, channel: None });
        }
    }
    (links, all)
}

/// What a transfer takes in the middle on the slowest channel, ns; and the channel, if the others
/// are much faster.
fn slowest(stretches: &[Stretch]) -> (f64, Option<u32>) {
    let middle = |of: &[Stretch]| (lengths(of)[of.len() / 2], of[0].channel);
    let mut middles: Vec<(i64, Option<u32>)> = by_channel(stretches).map(middle).collect();
    middles.sort_unstable();
    let Some((each, channel)) = middles.pop() else { return (0.0, None) };
    let stands_out = middles.last().is_some_and(|next| each as f64 >= SLOW * next.0 as f64);
    (each as f64, channel.filter(|_| stands_out))
}

fn by_channel(stretches: &[Stretch]) -> impl Iterator<Item = &[Stretch]> {
    stretches.chunk_by(|one, other| one.channel == other.channel)
}

/// The shortest comes first, ns.
fn lengths(stretches: &[Stretch]) -> Vec<i64> {
    let mut lengths: Vec<i64> = stretches.iter().map(|it| it.to - it.from).collect();
    lengths.sort_unstable();
    lengths
}

/// How much time they cover, ns.
fn covered(stretches: &[Stretch]) -> f64 {
    let mut spans: Vec<(i64, i64)> = stretches.iter().map(|it| (it.from, it.to)).collect();
    spans.sort_unstable();
    let (mut until, mut sum) = (i64::MIN, 0);
    for (from, to) in spans {
        sum += (to - from.max(until)).max(0);
        until = until.max(to);
    }
    sum as f64
}

/// How far two spans are apart, ns; 0 if they overlap.
fn apart(one: Span, other: Span) -> i64 {
    other.start.since(one.end).max(one.start.since(other.end)).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_channel_that_takes_much_longer_is_named() {
        let each = |ns: [i64; 2]| {
            let stretch = |channel, from, to| Stretch { channel: Some(channel), from, to, ..Stretch::default() };
            let on = |(channel, ns)| {
                [stretch(channel, 0, ns), stretch(channel, 500, 500 + ns), stretch(channel, 900, 900 + 9 * ns)]
            };
            slowest(&(0..).zip(ns).flat_map(on).collect::<Vec<_>>())
        };
        assert_eq!(each([100, 300]), (300.0, Some(1)));
        assert_eq!(each([300, 100]), (300.0, Some(0)));
        assert_eq!(each([200, 300]), (300.0, None));
        assert_eq!(slowest(&[Stretch { to: 70, ..Stretch::default() }]), (70.0, None));
    }
}
