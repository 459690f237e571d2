//! The dependencies in a job, and how long it would have taken if something had been different
//! (pure).
//!
//! Each item is a kernel or a copy. It began some time after what it waited for: the item before it
//! on its stream, or whichever item of its GPU ended last. A collective's kernel begins on its own
//! rank, and ends when the last rank has begun it and the data is through: the ranks *meet* in it.
//! Only durations on one rank are used, so the clocks of different hosts need not be related.
//!
//! The transfer of a collective is the shortest of its ranks' kernels, because the rank that comes
//! last waits for nobody. The rest of the other ranks' kernels is waiting, and every
//! [`replay`](Graph::replay) computes it anew. Where a kernel exchanges data with several ranks, as
//! in a ring of sends and receives, that does not divide its time, nor theirs; but if they are on
//! one clock, it waits until the last of them has begun. A send that fits into a buffer ends before
//! its data has arrived: there, the transfer takes at least as long as the network did. Whether it
//! fits is guessed from durations; where all would then wait for each other, it did.

mod replay;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher as _;
use std::ops::Range;

use rustc_hash::FxHasher;

pub(super) use self::replay::{Plan, Times};

/// No item.
const NONE: u32 = u32::MAX;
/// A time that is not known yet.
const UNKNOWN: i64 = i64::MIN;
/// A send that takes at most this much longer than its receive has not waited for it, ns.
const FREE_NS: i64 = 50_000;
/// How often it is looked for sends that waited for nobody, though they seemed to.
const ROUNDS: usize = 8;
/// Kernels of one stream that follow each other within this time depend on nothing else, ns.
const NEXT_NS: i64 = 20_000;

/// One thing that ran on a GPU. Times are on the clock of its rank, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) stream: u32,
    pub(super) start: i64,
    pub(super) end: i64,
    /// Grows with each launch of its process; 0 if unknown. What runs from one graph shares one.
    pub(super) launch: u32,
    /// What it is, as a number that is the same on all ranks.
    pub(super) kind: u32,
    /// It carries operations of NCCL.
    pub(super) is_communication: bool,
    /// It only sends. If the message fits into a buffer, it does not wait for the receiver.
    pub(super) only_gives: bool,
    /// From its begin until the network had delivered what it sent, ns; 0 if that is unknown.
    pub(super) sent: i64,
}

impl Item {
    /// From its begin to its end, ns.
    fn took(&self) -> i64 {
        self.end - self.start
    }
}

/// How an item depends on others.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The one before it on its stream.
    previous: u32,
    /// What it waited for, and how long after the end of that it began, ns.
    awaited: u32,
    lag: i64,
    /// For communication: the application's last kernel that was launched before it.
    asked: u32,
    /// How long it took, without waiting for other ranks, ns.
    length: i64,
    /// The same once all data has arrived.
    own: i64,
    /// The GPU did nothing before it for this long, ns.
    idle: i64,
    /// It sent and did not wait for a receiver. Its data was through this long after its begin.
    is_free: bool,
    through: i64,
}

/// A job: the items of all ranks, and how they depend on each other.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// By rank, and in order of start.
    pub(super) items: Vec<Item>,
    ranks: Vec<Range<usize>>,
    nodes: Vec<Node>,
    /// The items that meet, meeting by meeting.
    members: Vec<u32>,
    meetings: Vec<Range<usize>>,
    /// An item of the meeting meets other ranks in other ones.
    are_mixed: Vec<bool>,
    /// The meetings of each item, item by item.
    joined: Vec<u32>,
    joins: Vec<Range<u32>>,
    /// When each rank's first item began, on a common clock, ns.
    begins: Vec<i64>,
    /// The clock of each rank, as that of the first one that has it: their times can be compared.
    clocks: Vec<usize>,
}

impl Graph {
    /// `ranks` has each rank's items in order of start. `joined` has the items that share an
    /// operation's number: the number, the rank, and the item's place among those of the rank.
    /// `clocks` tells which ranks' times can be compared: those with the same number.
    pub(super) fn new(ranks: Vec<Vec<Item>>, mut joined: Vec<(u64, u32, u32)>, clocks: Vec<usize>) -> Graph {
        let mut graph = Graph { clocks, ..Graph::default() };
        let mut bases = Vec::new();
        for items in ranks {
            let base = graph.items.len();
            bases.push(base as u32);
            graph.ranks.push(base..base + items.len());
            graph.depend(&items, base as u32);
            graph.items.extend(items);
        }
        joined.sort_unstable();
        joined.dedup();
        let mut by_item: Vec<(u32, u32)> = Vec::new();
        // The ranks that meet, as a number.
        let mut who: Vec<u64> = Vec::new();
        for of_number in joined.chunk_by(|one, other| one.0 == other.0) {
            let of_ranks: Vec<_> = of_number.chunk_by(|one, other| one.1 == other.1).collect();
            let times = of_ranks[0].len();
            // As NCCL does not number operations while a graph is captured, several in one run of a
            // graph may share a number. They ran in the same order on all ranks, and all are known
            // if every rank has equally many.
            if of_ranks.len() == 1 || of_ranks.iter().any(|it| it.len() != times) {
                continue;
            }
            for time in 0..times {
                let meeting = graph.meetings.len() as u32;
                let from = graph.members.len();
                for (_, rank, place) in of_ranks.iter().map(|it| it[time]) {
                    let item = bases[rank as usize] + place;
                    graph.members.push(item);
                    by_item.push((item, meeting));
                }
                graph.meetings.push(from..graph.members.len());
                let mut ranks = FxHasher::default();
                of_ranks.iter().for_each(|it| ranks.write_u32(it[time].1));
                who.push(ranks.finish());
            }
        }
        by_item.sort_unstable();
        let mut at = 0;
        for item in 0..graph.items.len() as u32 {
            let from = at;
            while by_item.get(at).is_some_and(|it| it.0 == item) {
                graph.joined.push(by_item[at].1);
                at += 1;
            }
            graph.joins.push(from as u32..at as u32);
        }
        graph.are_mixed = vec![false; graph.meetings.len()];
        for joins in &graph.joins {
            let of_item = &graph.joined[joins.start as usize..joins.end as usize];
            if of_item.windows(2).any(|two| who[two[0] as usize] != who[two[1] as usize]) {
                of_item.iter().for_each(|meeting| graph.are_mixed[*meeting as usize] = true);
            }
        }
        let free = graph.free();
        graph.divide(&free);
        graph.align();
        graph.settle(free);
        graph
    }

    /// Finds what the items of a rank waited for.
    fn depend(&mut self, items: &[Item], base: u32) {
        let mut last_of_stream: Vec<u32> = Vec::new();
        let mut running: BinaryHeap<Reverse<(i64, u32)>> = BinaryHeap::new();
        let mut ended: Option<(i64, u32)> = None;
        let mut launched: Vec<(u32, u32)> = (items.iter().zip(0..))
            .filter(|(item, _)| !item.is_communication && item.launch != 0)
            .map(|(item, at)| (item.launch, at))
            .collect();
        launched.sort_unstable();
        for (at, item) in items.iter().enumerate() {
            while let Some(Reverse(first)) = running.peek().copied().filter(|first| first.0.0 <= item.start) {
                running.pop();
                ended = ended.max(Some(first));
            }
            let stream = item.stream as usize;
            if last_of_stream.len() <= stream {
                last_of_stream.resize(stream + 1, NONE);
            }
            let previous = std::mem::replace(&mut last_of_stream[stream], at as u32);
            let end_of = |other: u32| items[other as usize].end;
            let follows = previous != NONE && (0..NEXT_NS).contains(&(item.start - end_of(previous)));
            let awaited = if follows { Some((end_of(previous), previous)) } else { ended };
            let asked = if item.is_communication && item.launch != 0 {
                let before = launched.partition_point(|it| it.0 < item.launch);
                let asked = before.checked_sub(1).map(|before| launched[before].1);
                asked.filter(|asked| end_of(*asked) <= item.start)
            } else {
                None
            };
            let of_graph = |other: u32| if other == NONE { NONE } else { base + other };
            self.nodes.push(Node {
                previous: of_graph(previous),
                awaited: of_graph(awaited.map_or(NONE, |it| it.1)),
                lag: awaited.map_or(0, |it| item.start - it.0),
                asked: of_graph(asked.unwrap_or(NONE)),
                length: item.end - item.start,
                own: item.end - item.start,
                idle: ended.filter(|_| running.is_empty()).map_or(0, |it| item.start - it.0),
                is_free: false,
                through: 0,
            });
            running.push(Reverse((item.end, at as u32)));
        }
    }

    /// The duration of the shortest item of each meeting, ns.
    fn shortest(&self) -> Vec<i64> {
        let took = |item: &u32| self.items[*item as usize].took();
        let shortest = |members: &Range<usize>| self.members[members.clone()].iter().map(took).min().unwrap_or(0);
        self.meetings.iter().map(shortest).collect()
    }

    /// The least of these values, which are of meetings, for the meetings of an item.
    fn least(&self, at: usize, of: &[i64]) -> i64 {
        self.meetings_of(at).map(|meeting| of[meeting]).min().unwrap_or(i64::MAX)
    }

    /// Whether each item is a send that did not wait: it took little longer than its receive, or
    /// its data was through long after its end.
    fn free(&self) -> Vec<bool> {
        let shortest = self.shortest();
        let is_short = |at: usize| self.items[at].took() - self.least(at, &shortest) < FREE_NS;
        let is_early = |at: usize| self.items[at].sent >= 2 * self.items[at].took();
        let did_not_wait = |at: usize| is_short(at) || is_early(at);
        let is_free = |at: usize| self.items[at].only_gives && !self.joins[at].is_empty() && did_not_wait(at);
        (0..self.items.len()).map(is_free).collect()
    }

    /// Finds the other sends that did not wait. In the stages of a pipeline, each of which sends
    /// before it receives, one that is thought to wait stops all ranks.
    fn settle(&mut self, mut free: Vec<bool>) {
        for _ in 0..ROUNDS {
            let times = self.replay(&self.plan());
            let mut is_settled = true;
            for at in times.stuck.iter().map(|at| *at as usize) {
                is_settled &= free[at];
                free[at] = true;
            }
            if is_settled {
                return;
            }
            self.divide(&free);
        }
    }

    /// Divides the time of items in which ranks meet into transfer and waiting: the shortest of
    /// them waited for nobody.
    fn divide(&mut self, free: &[bool]) {
        let shortest = self.shortest();
        // Data that has not arrived when the send ends is on its way, and the receivers wait for
        // it.
        let through = |members: &Range<usize>| {
            let sent = self.members[members.clone()].iter().filter(|it| free[**it as usize]);
            sent.map(|it| self.items[*it as usize].sent).max().unwrap_or(0)
        };
        let transfers: Vec<i64> =
            self.meetings.iter().zip(&shortest).map(|(members, shortest)| through(members).max(*shortest)).collect();
        let divided: Vec<[i64; 2]> = (self.items.iter().enumerate())
            .map(|(at, item)| {
                let took = item.took();
                match self.since_all_began(at) {
                    _ if free[at] => [took; 2],
                    Some(ns) => [ns; 2],
                    None => [&transfers, &shortest].map(|of| took.min(self.least(at, of))),
                }
            })
            .collect();
        for (((node, item), is_free), [length, own]) in self.nodes.iter_mut().zip(&self.items).zip(free).zip(divided) {
            (node.length, node.own, node.is_free) = (length, own, *is_free);
            node.through = if *is_free { item.sent } else { 0 };
        }
    }

    /// How long an item went on once everything had begun with which it exchanges data, ns; `None`
    /// if all of that meets the same ranks in all its operations, so that the shortest shows it, or
    /// if not all are on its clock.
    pub(super) fn since_all_began(&self, at: usize) -> Option<i64> {
        if !self.meetings_of(at).any(|meeting| self.are_mixed[meeting]) {
            return None;
        }
        let clock_of = |item: usize| self.clocks[self.rank_of(item as u32)];
        let is_on_one = self.partners(at).all(|item| clock_of(item) == clock_of(at));
        let last = self.partners(at).map(|item| self.items[item].start).max().filter(|_| is_on_one)?;
        Some(self.items[at].end - last).filter(|ns| *ns > 0)
    }

    /// Puts the begins of all ranks on one clock: the first item in which ranks with different ones
    /// meet ends for them at the same time. A send may end before its receive: those only count
    /// where nothing else relates two clocks.
    fn align(&mut self) {
        let mut offsets: Vec<Option<i64>> = vec![None; self.ranks.len()];
        let mut firsts: Vec<(bool, i64, usize)> = Vec::new();
        for (meeting, members) in self.meetings.iter().enumerate() {
            let place = |item: u32| item as i64 - self.ranks[self.rank_of(item)].start as i64;
            let items = || self.members[members.clone()].iter();
            let is_send = items().any(|item| self.items[*item as usize].only_gives);
            firsts.push((is_send, items().map(|item| place(*item)).min().unwrap_or(0), meeting));
        }
        firsts.sort_unstable();
        let clock_of = |item: u32| self.clocks[self.rank_of(item)];
        for clock in &self.clocks {
            if offsets[*clock].is_some() {
                continue;
            }
            offsets[*clock] = Some(0);
            let mut grows = true;
            while grows {
                grows = false;
                for (.., meeting) in &firsts {
                    let members = &self.members[self.meetings[*meeting].clone()];
                    let known = members
                        .iter()
                        .find_map(|item| Some(self.items[*item as usize].end - offsets[clock_of(*item)]?));
                    let Some(end) = known else { continue };
                    for item in members {
                        let offset = &mut offsets[clock_of(*item)];
                        if offset.is_none() {
                            *offset = Some(self.items[*item as usize].end - end);
                            grows = true;
                        }
                    }
                }
            }
        }
        let begin = |rank: &Range<usize>| self.items.get(rank.start).filter(|_| !rank.is_empty()).map(|it| it.start);
        self.begins = (self.ranks.iter().zip(&self.clocks))
            .map(|(rank, clock)| begin(rank).unwrap_or(0) - offsets[*clock].unwrap_or(0))
            .collect();
    }

    /// The rank of an item.
    pub(super) fn rank_of(&self, item: u32) -> usize {
        self.ranks.partition_point(|rank| rank.end <= item as usize)
    }

    /// The items of a rank.
    pub(super) fn rank(&self, rank: usize) -> Range<usize> {
        self.ranks[rank].clone()
    }

    /// The items of each operation in which ranks meet.
    pub(super) fn meetings(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.meetings.iter().map(|members| &self.members[members.clone()])
    }

    /// When an item began, on a clock that is roughly common to all ranks, ns.
    pub(super) fn time(&self, item: u32) -> i64 {
        let rank = self.rank_of(item);
        self.begins[rank] + self.items[item as usize].start - self.items[self.ranks[rank].start].start
    }

    /// How long an item waited for other ranks, ns.
    pub(super) fn waited(&self, item: usize) -> i64 {
        self.items[item].end - self.items[item].start - self.nodes[item].length
    }

    /// How long a GPU did nothing before this item, ns.
    pub(super) fn idle(&self, item: usize) -> i64 {
        self.nodes[item].idle
    }

    /// How long an item took without waiting for other ranks, ns.
    pub(super) fn length(&self, item: usize) -> i64 {
        self.nodes[item].length
    }

    /// For a send that did not wait: from its begin until its data was through, ns.
    pub(super) fn through(&self, item: usize) -> Option<i64> {
        self.nodes[item].is_free.then_some(self.nodes[item].through)
    }

    /// The operations that an item shares with items of other ranks, by their numbers.
    pub(super) fn meetings_of(&self, item: usize) -> impl Iterator<Item = usize> {
        let joins = &self.joins[item];
        self.joined[joins.start as usize..joins.end as usize].iter().map(|it| *it as usize)
    }

    /// The items that share an operation, by its number.
    pub(super) fn members_of(&self, meeting: usize) -> impl Iterator<Item = usize> {
        self.members[self.meetings[meeting].clone()].iter().map(|it| *it as usize)
    }

    /// All items that share an operation with this one, itself included; some more than once.
    pub(super) fn partners(&self, item: usize) -> impl Iterator<Item = usize> {
        self.meetings_of(item).flat_map(|meeting| self.members_of(meeting)).chain([item])
    }

    /// Those of one rank.
    pub(super) fn partners_on(&self, item: usize, rank: usize) -> impl Iterator<Item = usize> {
        let Range { start, end } = self.ranks[rank];
        self.meetings_of(item).flat_map(move |meeting| {
            // They are in order of ranks.
            let members = &self.members[self.meetings[meeting].clone()];
            let of_rank = members[members.partition_point(|it| (*it as usize) < start)..].iter();
            of_rank.map(|it| *it as usize).take_while(move |it| *it < end)
        })
    }

    /// When everything began and ended in the recording, each rank on its own clock.
    pub(super) fn recorded(&self) -> Times {
        let of = |time: fn(&Item) -> i64| self.items.iter().map(time).collect();
        Times { start: of(|it| it.start), end: of(|it| it.end), stuck: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: i64 = 1_000;

    /// Each rank has a clock of its own.
    fn apart(ranks: Vec<Vec<Item>>, joined: Vec<(u64, u32, u32)>) -> Graph {
        let clocks = (0..ranks.len()).collect();
        Graph::new(ranks, joined, clocks)
    }

    /// Times are in us.
    fn item(stream: u32, start: i64, end: i64) -> Item {
        Item { stream, start: start * US, end: end * US, ..Item::default() }
    }

    fn collective(start: i64, end: i64) -> Item {
        Item { is_communication: true, ..item(1, start, end) }
    }

    fn us(times: &[i64]) -> Vec<i64> {
        times.iter().map(|ns| ns / US).collect()
    }

    /// Two ranks with clocks of their own: each computes, then both meet. Rank 1 is the slow one.
    fn two() -> Graph {
        let fast = vec![item(0, 0, 100), collective(100, 310), item(0, 310, 360)];
        let slow = vec![item(0, 5_000, 5_300), collective(5_300, 5_310), item(0, 5_310, 5_360)];
        apart(vec![fast, slow], vec![(1, 0, 1), (1, 1, 1)])
    }

    #[test]
    fn a_replay_without_changes_is_what_happened() {
        let graph = two();
        let times = graph.replay(&graph.plan());
        assert_eq!(us(&times.start), [0, 100, 310, 0, 300, 310]);
        assert_eq!(us(&times.end), [100, 310, 360, 300, 310, 360]);
    }

    #[test]
    fn without_the_slow_kernel_nobody_waits() {
        let graph = two();
        let mut plan = graph.plan();
        plan.length[3] = 100 * US;
        assert_eq!(us(&graph.replay(&plan).end), [100, 110, 160, 100, 110, 160]);
    }

    #[test]
    fn the_critical_path_leads_through_the_rank_that_comes_last() {
        let graph = two();
        let path = graph.path(&graph.replay(&graph.plan()), 2, 0);
        let path: Vec<(u32, bool, i64)> = path.iter().map(|it| (it.item, it.is_idle, it.ns / US)).collect();
        // The collective, then what the slow rank did before it.
        assert_eq!(path, [(1, false, 10), (3, false, 300)]);
    }

    #[test]
    fn operations_with_one_number_are_told_apart_by_order_if_all_are_known() {
        // In one run of a graph, both collectives have its number.
        let rank =
            |own: i64| vec![item(0, 0, own), collective(own, 250), item(0, 250, 250 + own), collective(250 + own, 500)];
        let both = |rank: u32| [(1, rank, 1), (1, rank, 3)];
        let graph = apart(vec![rank(100), rank(200)], [both(0), both(1)].concat());
        let meetings: Vec<&[u32]> = graph.meetings().collect();
        assert_eq!(meetings, [[1, 5], [3, 7]]);
        let path = graph.path(&graph.replay(&graph.plan()), 7, 0);
        let path: Vec<(u32, i64)> = path.iter().map(|it| (it.item, it.ns / US)).collect();
        assert_eq!(path, [(6, 200), (5, 50), (4, 200)]);
        // If one of a rank's is missing, it is unclear which.
        let graph = apart(vec![rank(100), rank(200)], [&both(0)[..], &both(1)[1..]].concat());
        assert_eq!(graph.meetings().len(), 0);
    }

    #[test]
    fn idle_time_is_on_the_critical_path() {
        let graph = apart(vec![vec![item(0, 0, 100), item(0, 160, 200), item(0, 200, 210)]], Vec::new());
        let path = graph.path(&graph.replay(&graph.plan()), 2, 50 * US);
        let path: Vec<(u32, bool, i64)> = path.iter().map(|it| (it.item, it.is_idle, it.ns / US)).collect();
        assert_eq!(path, [(1, false, 40), (1, true, 60), (0, false, 50)]);
    }

    #[test]
    fn a_buffered_send_takes_what_the_network_takes() {
        // The send ends at once; its data arrives 80 us after it began, when the receiver has
        // waited.
        let send = Item { only_gives: true, sent: 75 * US, ..collective(100, 110) };
        let ranks = vec![vec![item(0, 0, 100), send], vec![collective(0, 180), item(0, 180, 200)]];
        let graph = apart(ranks, vec![(1, 0, 1), (1, 1, 0)]);
        assert_eq!(us(&[graph.length(1), graph.length(2), graph.waited(2)]), [10, 75, 105]);
        let mut plan = graph.plan();
        assert_eq!(us(&graph.replay(&plan).end), [100, 110, 175, 195]);
        // On a faster link it would have come earlier, but the receiver takes its time.
        plan.through[1] = 5 * US;
        assert_eq!(us(&graph.replay(&plan).end), [100, 110, 110, 130]);
    }

    #[test]
    fn a_send_whose_data_is_long_on_its_way_did_not_wait_for_a_late_receiver() {
        // What was sent before it keeps the network busy: the send takes long, and its receiver
        // comes when some of the data has arrived.
        let send = Item { only_gives: true, sent: 300 * US, ..collective(0, 130) };
        let ranks = vec![vec![send, item(0, 130, 140)], vec![item(0, 0, 200), collective(200, 300)]];
        let graph = Graph::new(ranks, vec![(1, 0, 0), (1, 1, 1)], vec![0, 0]);
        assert_eq!(graph.through(0), Some(300 * US));
        assert_eq!(us(&graph.replay(&graph.plan()).end), [130, 140, 200, 300]);
    }

    #[test]
    fn a_faster_rank_that_waits_anyway_changes_nothing() {
        let graph = two();
        let mut plan = graph.plan();
        plan.length[0] = 10 * US;
        let times = graph.replay(&plan);
        assert_eq!(us(&[times.start[1], times.end[1], times.end[5]]), [10, 310, 360]);
    }

    #[test]
    fn overlapped_communication_delays_only_what_waits_for_it() {
        // The collective runs beside the second kernel; the third waits for it.
        let items = vec![
            Item { launch: 1, ..item(0, 0, 100) },
            Item { launch: 2, ..collective(100, 400) },
            Item { launch: 3, ..item(0, 100, 300) },
            Item { launch: 4, ..item(0, 400, 500) },
        ];
        let graph = apart(vec![items.clone(), items], vec![(1, 0, 1), (1, 1, 1)]);
        let mut plan = graph.plan();
        (plan.length[1], plan.length[5]) = (50 * US, 50 * US);
        let times = graph.replay(&plan);
        assert_eq!(us(&[times.end[1], times.end[2], times.start[3], times.end[3]]), [150, 300, 300, 400]);
        // It still begins after the kernel before which it was asked for.
        let mut plan = graph.plan();
        plan.length[0] = 200 * US;
        assert_eq!(graph.replay(&plan).start[1], 200 * US);
    }

    #[test]
    fn idle_time_is_when_no_stream_runs_anything() {
        let items = vec![item(0, 0, 100), item(1, 50, 200), item(0, 150, 180), item(0, 260, 300)];
        let graph = apart(vec![items], Vec::new());
        let idle: Vec<i64> = (0..4).map(|at| graph.idle(at)).collect();
        assert_eq!(us(&idle), [0, 0, 0, 60]);
    }

    #[test]
    fn ranks_that_meet_in_different_orders_do_not_stop_a_replay() {
        let one = vec![collective(0, 10), Item { stream: 1, ..collective(10, 20) }];
        let graph = apart(vec![one.clone(), one], vec![(1, 0, 0), (1, 1, 1), (2, 0, 1), (2, 1, 0)]);
        assert!(graph.replay(&graph.plan()).end.iter().all(|end| *end > 0));
    }

    #[test]
    fn a_send_that_is_buffered_does_not_wait() {
        // The sender goes on; the receiver comes later and finds the message there.
        let send = Item { only_gives: true, ..collective(0, 10) };
        let ranks = vec![vec![send, item(0, 10, 60)], vec![item(0, 0, 90), collective(90, 100)]];
        let graph = apart(ranks, vec![(1, 0, 0), (1, 1, 1)]);
        let mut plan = graph.plan();
        plan.length[2] += 50 * US;
        // If the receiver were later still, nothing would change for the sender.
        assert_eq!(us(&graph.replay(&graph.plan()).end), [10, 60, 0, 10]);
        assert_eq!(us(&graph.replay(&plan).end), [10, 60, 50, 60]);
    }

    #[test]
    fn sends_of_which_only_one_can_have_waited_did_not_wait() {
        // Two stages of a pipeline send to each other before they receive. Reading takes much less
        // time than sending, as if the sends had waited for it.
        let send = Item { only_gives: true, ..collective(10, 120) };
        let stage = || vec![collective(0, 10), send, item(0, 120, 200), collective(200, 240)];
        let joined = vec![(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 3), (2, 1, 1), (2, 0, 3)];
        let graph = apart(vec![stage(), stage()], joined);
        assert_eq!(us(&graph.replay(&graph.plan()).end), [10, 120, 200, 240, 10, 120, 200, 240]);
        let mut plan = graph.plan();
        plan.length[2] += 1_000 * US;
        assert_eq!(us(&graph.replay(&plan).end), [10, 120, 1_200, 1_240, 10, 120, 200, 240]);
    }

    #[test]
    fn a_send_waits_for_its_receive_and_no_other_rank() {
        // 0 sends to 1; 2 meets nobody.
        let ranks = vec![vec![collective(0, 100)], vec![item(0, 0, 90), collective(90, 100)], vec![collective(0, 7)]];
        let graph = apart(ranks, vec![(1, 0, 0), (1, 1, 1), (2, 2, 0)]);
        assert_eq!(us(&[graph.length(0), graph.length(2), graph.length(3)]), [10, 10, 7]);
        let mut plan = graph.plan();
        plan.length[1] += 10 * US;
        let times = graph.replay(&plan);
        assert_eq!(us(&[times.end[0], times.end[2], times.end[3]]), [110, 110, 7]);
    }

    #[test]
    fn in_a_ring_a_kernel_takes_as_long_as_its_own_transfers() {
        // Each sends to the next; rank 3 begins late, and the data from 1 to 2 takes long.
        let items = [(0, 52), (10, 110), (10, 110), (50, 53)].map(|(start, end)| vec![collective(start, end)]);
        let joined: Vec<_> =
            (0..4).flat_map(|from| [(from, from as u32, 0), (from, (from as u32 + 1) % 4, 0)]).collect();
        let on = |clocks: [usize; 4]| Graph::new(items.to_vec(), joined.clone(), clocks.into());
        let graph = on([0; 4]);
        assert_eq!(us(&[0, 1, 2, 3].map(|at| graph.length(at))), [2, 100, 60, 3]);
        let times = graph.replay(&graph.plan());
        assert_eq!(us(&times.end), [52, 110, 110, 53]);
        // Without a common clock, the shortest counts of what each meets.
        let graph = on([0, 1, 2, 3]);
        assert_eq!(us(&[0, 1, 2, 3].map(|at| graph.length(at))), [3, 52, 3, 3]);
    }
}
