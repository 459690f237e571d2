//! The job played again, as it was or with changes.

use super::{FREE_NS, Graph, NONE, Node, UNKNOWN};

/// How long things take in a replay: as recorded, or changed.
#[derive(Clone, Debug)]
pub(in crate::cli::diagnose) struct Plan {
    /// Of each item, without waiting for other ranks, ns.
    pub(in crate::cli::diagnose) length: Vec<i64>,
    /// Of each send that does not wait: from its begin until its data is through, ns.
    pub(in crate::cli::diagnose) through: Vec<i64>,
    /// From what it waited for to its own begin, ns.
    pub(in crate::cli::diagnose) lag: Vec<i64>,
    /// Ranks do not wait for each other, nor for transfers.
    pub(in crate::cli::diagnose) is_alone: bool,
}

/// When each item began and ended in a replay, ns.
#[derive(Debug)]
pub(in crate::cli::diagnose) struct Times {
    pub(in crate::cli::diagnose) start: Vec<i64>,
    pub(in crate::cli::diagnose) end: Vec<i64>,
    /// Sends that would have waited forever.
    pub(super) stuck: Vec<u32>,
}

/// A stretch of what a replay waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::diagnose) struct Stretch {
    /// The item that ran, or whose transfer it was. If nothing ran, the item that began afterwards.
    pub(in crate::cli::diagnose) item: u32,
    pub(in crate::cli::diagnose) is_idle: bool,
    /// How long, ns.
    pub(in crate::cli::diagnose) ns: i64,
}

/// A replay under way.
struct Replay<'g> {
    graph: &'g Graph,
    plan: &'g Plan,
    times: Times,
    /// The next item of each rank.
    cursors: Vec<usize>,
    /// In how many of its meetings each item still waits.
    open: Vec<u32>,
    /// How many items have not come to each meeting, and when the last one has.
    missing: Vec<usize>,
    latest: Vec<i64>,
    /// When all data that was sent without waiting has arrived.
    arrived: Vec<i64>,
    /// What each rank cannot go on without.
    blocked: Vec<u32>,
    ready: Vec<usize>,
}

impl Graph {
    /// Everything as it was.
    pub(in crate::cli::diagnose) fn plan(&self) -> Plan {
        Plan {
            length: self.nodes.iter().map(|node| node.own).collect(),
            through: self.nodes.iter().map(|node| node.through).collect(),
            lag: self.nodes.iter().map(|node| node.lag).collect(),
            is_alone: false,
        }
    }

    /// When everything would have begun and ended.
    pub(in crate::cli::diagnose) fn replay(&self, plan: &Plan) -> Times {
        let unknown = |count: usize| vec![UNKNOWN; count];
        let (items, meetings, ranks) = (self.items.len(), self.meetings.len(), self.ranks.len());
        let mut replay = Replay {
            graph: self,
            plan,
            times: Times { start: unknown(items), end: unknown(items), stuck: Vec::new() },
            cursors: self.ranks.iter().map(|rank| rank.start).collect(),
            open: self.joins.iter().map(|joins| joins.end - joins.start).collect(),
            missing: self.meetings.iter().map(ExactSizeIterator::len).collect(),
            latest: unknown(meetings),
            arrived: unknown(meetings),
            blocked: vec![NONE; ranks],
            ready: (0..ranks).rev().collect(),
        };
        loop {
            while let Some(rank) = replay.ready.pop() {
                replay.go_on(rank);
            }
            if !replay.unblock() {
                break;
            }
        }
        let mut times = replay.times;
        for (at, item) in self.items.iter().enumerate() {
            if times.end[at] == UNKNOWN {
                times.end[at] = times.start[at] + item.took();
            }
        }
        times
    }

    /// The critical path of a replay, backwards from the begin of an item to a time: each stretch
    /// begins when the next one has ended, on its own rank or on another.
    pub(in crate::cli::diagnose) fn path(&self, times: &Times, mut item: u32, since: i64) -> Vec<Stretch> {
        let mut path = Vec::new();
        // Times that fit together end it earlier.
        for _ in 0..self.items.len() {
            let start = times.start[item as usize];
            if start <= since {
                break;
            }
            let node = &self.nodes[item as usize];
            let end_of = |other: u32| if other == NONE { i64::MIN } else { times.end[other as usize] };
            let Some(before) = [node.previous, node.asked, node.awaited]
                .into_iter()
                .filter(|other| *other != NONE)
                .max_by_key(|other| end_of(*other))
            else {
                break;
            };
            let mut push = |item, is_idle, from: i64, to: i64| {
                let ns = to - from.max(since);
                if ns > 0 {
                    path.push(Stretch { item, is_idle, ns });
                }
            };
            let end = end_of(before).min(start);
            push(item, true, end, start);
            let at = before as usize;
            let last = if self.nodes[at].is_free || self.joins[at].is_empty() {
                before
            } else {
                let ready = |other: &usize| match self.nodes[*other] {
                    Node { is_free: true, through, .. } => times.start[*other] + through.max(self.nodes[at].own),
                    _ => times.start[*other] + self.nodes[at].own,
                };
                self.partners(at).max_by_key(ready).map_or(before, |last| last as u32)
            };
            let begin = times.start[last as usize].min(end);
            push(before, false, begin, end);
            item = last;
        }
        path
    }
}

impl Replay<'_> {
    /// A rank goes on until it has to wait for something.
    fn go_on(&mut self, rank: usize) {
        let Replay { graph, plan, .. } = *self;
        while self.cursors[rank] < graph.ranks[rank].end {
            let at = self.cursors[rank];
            let node = &graph.nodes[at];
            let before = [node.awaited, node.previous, node.asked];
            let is_unknown = |it: &u32| *it != NONE && self.times.end[*it as usize] == UNKNOWN;
            if let Some(unknown) = before.iter().copied().find(is_unknown) {
                self.blocked[rank] = unknown;
                break;
            }
            let end_of = |it: u32| if it == NONE { UNKNOWN } else { self.times.end[it as usize] };
            let awaited = match end_of(node.awaited) {
                UNKNOWN if node.previous == NONE && at > graph.ranks[rank].start => {
                    graph.begins[rank] + graph.items[at].start - graph.items[graph.ranks[rank].start].start
                }
                UNKNOWN => graph.begins[rank],
                end => end + plan.lag[at],
            };
            let start = awaited.max(end_of(node.previous)).max(end_of(node.asked));
            self.times.start[at] = start;
            self.cursors[rank] += 1;
            if self.open[at] == 0 || plan.is_alone || node.is_free {
                self.times.end[at] = start + plan.length[at];
            }
            if plan.is_alone {
                continue;
            }
            for meeting in graph.meetings_of(at) {
                self.missing[meeting] -= 1;
                self.latest[meeting] = self.latest[meeting].max(start);
                if node.is_free {
                    self.arrived[meeting] = self.arrived[meeting].max(start + plan.through[at]);
                }
                if self.missing[meeting] == 0 {
                    self.have_met(meeting);
                }
            }
        }
    }

    /// The last rank has come to a meeting.
    fn have_met(&mut self, meeting: usize) {
        let Replay { graph, plan, .. } = *self;
        for item in &graph.members[graph.meetings[meeting].clone()] {
            let at = *item as usize;
            self.open[at] -= 1;
            if self.open[at] > 0 || self.times.end[at] != UNKNOWN {
                continue;
            }
            let last = |of: &[i64]| graph.meetings_of(at).map(|meeting| of[meeting]).max().unwrap_or(i64::MIN);
            let through = last(&self.latest).max(self.times.start[at]) + plan.length[at];
            self.times.end[at] = through.max(last(&self.arrived));
            let rank = graph.rank_of(*item);
            if self.blocked[rank] == *item {
                self.blocked[rank] = NONE;
                self.ready.push(rank);
            }
        }
    }

    /// The ranks' files do not agree on the order, or something is wrongly thought to wait: it
    /// takes as long as it did. That a send waited is a guess. Returns false if no rank waits.
    fn unblock(&mut self) -> bool {
        let graph = self.graph;
        let waiting = || (0..graph.ranks.len()).filter(|rank| self.cursors[*rank] < graph.ranks[*rank].end);
        let waits = |rank: &usize| {
            let item = self.blocked[*rank] as usize;
            (!graph.items[item].only_gives, graph.waited(item))
        };
        let Some(rank) = waiting().min_by_key(waits) else { return false };
        let (item, (_, waited)) = (self.blocked[rank], waits(&rank));
        // Other sends that waited for about as short a time may be of the same circle.
        let is_alike = |rank: &usize| waits(rank) <= (false, 2 * waited + FREE_NS);
        self.times.stuck.extend(waiting().filter(is_alike).map(|rank| self.blocked[rank]));
        let item = item as usize;
        self.times.end[item] = self.times.start[item].max(0) + graph.items[item].took();
        self.ready.push(rank);
        true
    }
}
