//! What all files show together about the operations that ranks share. This relates the clocks of
//! hosts ([`Shared::orders`]), and `job` draws it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{End, Evidence, Member, Role, Visit, Waits};
use crate::clock::chains::{self, Transfer};
use crate::clock::hosts::Orders;
use crate::model::time::{Bounded, HostNs, Shift};

/// How many timestamps of other hosts all transfers together may carry, 8 bytes each. Beyond that,
/// a transfer relates only its own two hosts.
const CHAINED: usize = 64 << 20;

/// What all files together show.
#[derive(Default)]
pub(in crate::cli::merge) struct Shared {
    pub(in crate::cli::merge) members: Vec<Member>,
    /// Visits; those of one operation are adjacent.
    visits: Vec<Visit>,
    /// The ranges of visits of operations that at least two ranks are known to have had.
    operations: Vec<Range<u32>>,
    /// Sends and receives whose other end is not known, by index.
    lonely: Vec<u32>,
    ends: Vec<End>,
    /// In order of members and marks.
    waits: Vec<((u32, u64), Waits)>,
    /// The sending and the receiving end of each transfer, by index.
    transfers: Vec<(u32, u32)>,
    /// For each file, its clock, and how many operations are known by inference only.
    inferred: Vec<(usize, u64)>,
    /// There was not enough room for all operations or all transfers; or for all operations.
    pub(in crate::cli::merge) is_sample: bool,
    pub(in crate::cli::merge) lacks_visits: bool,
}

impl Shared {
    /// Combines several files, each with the number of its clock.
    pub(in crate::cli::merge) fn of(files: Vec<Evidence>, clocks: &[usize]) -> Shared {
        let bits = |of: fn(&Evidence) -> u64| files.iter().fold(0, |all, file| all | of(file));
        let (visits, ends) = (bits(|it| it.visits.left_out), bits(|it| it.ends.left_out));
        // Exactly as much as there is: these are the largest things in memory.
        let kept = |of: fn(&Evidence) -> usize| files.iter().map(of).sum();
        let (all_visits, all_ends) = (kept(|it| it.visits.kept.len()), kept(|it| it.ends.kept.len()));
        let all_waits = kept(|it| it.waits.len());
        let mut all = Shared { is_sample: visits | ends != 0, lacks_visits: visits != 0, ..Shared::default() };
        all.visits.reserve_exact(all_visits);
        all.ends.reserve_exact(all_ends);
        all.waits.reserve_exact(all_waits);
        for (number, mut file) in files.into_iter().enumerate() {
            let base = all.members.len() as u32;
            file.leave_out(visits);
            file.ends.leave_out(ends, End::mark);
            let clock = clocks[number];
            all.members.extend(file.members.into_iter().map(|it| Member { clock, ..it }));
            let moved = |member: u32| base + member;
            all.visits.extend(file.visits.kept.into_iter().map(|it| Visit { member: moved(it.member), ..it }));
            all.ends.extend(file.ends.kept.into_iter().map(|it| End { member: moved(it.member), ..it }));
            // Each file's are in order, and so are the members of all files.
            all.waits.extend(file.waits.into_iter().map(|((member, mark), waits)| ((moved(member), mark), waits)));
            all.inferred.push((clock, file.inferred));
        }
        all.doubt_captured();
        all.find_operations();
        all.find_transfers();
        all
    }

    /// Finds captured sends and receives whose numbers do not go together. A rank numbers them when
    /// NCCL hands them over first: during capture on one rank, and perhaps at the first replay on
    /// the other, where graphs may come in another order. What one rank sends to another runs in
    /// one order on both. If it does not by its numbers, these prove nothing.
    fn doubt_captured(&mut self) {
        let Shared { members, visits, inferred, .. } = self;
        let mut pairs: FxHashMap<(u64, [i32; 2]), [Vec<usize>; 2]> = FxHashMap::default();
        for (index, visit) in visits.iter().enumerate().filter(|(_, it)| it.is_send_recv && it.is_exact) {
            if let Member { comm, rank, .. } = members[visit.member as usize]
                && visit.operation.2 > 0
            {
                let is_receive = visit.role == Role::Takes;
                let pair = if is_receive { [visit.peer, rank] } else { [rank, visit.peer] };
                pairs.entry((comm, pair)).or_default()[usize::from(is_receive)].push(index);
            }
        }
        for [mut sends, receives] in pairs.into_values() {
            let received: FxHashMap<_, _> =
                receives.iter().map(|index| (visits[*index].operation, visits[*index].entered)).collect();
            sends.sort_unstable_by_key(|index| visits[*index].entered);
            // When the last one was received: of all so far, and of those of earlier kernels.
            let (mut last, mut earlier, mut kernel) = (HostNs(0), HostNs(0), HostNs(0));
            let is_ordered = sends.iter().all(|index| {
                let Visit { operation, entered, .. } = visits[*index];
                let Some(&received) = received.get(&operation) else { return true };
                if entered > kernel {
                    (earlier, kernel) = (last, entered);
                }
                last = last.max(received);
                received >= earlier
            });
            for index in sends.into_iter().chain(receives).filter(|_| !is_ordered) {
                let visit = &mut visits[index];
                visit.is_exact = false;
                let clock = members[visit.member as usize].clock;
                inferred.iter_mut().find(|(it, _)| *it == clock).into_iter().for_each(|(_, count)| *count += 1);
            }
        }
    }

    /// Finds operations that several ranks had. NCCL does not number operations while a graph is
    /// captured, so several in one run of a graph may share a number. They ran in the same order on
    /// all ranks, and all of them are known if every rank has equally many.
    fn find_operations(&mut self) {
        self.visits.sort_unstable_by_key(|it| (it.operation, it.member, it.entered));
        let mut start = 0;
        for group in self.visits.chunk_by_mut(|one, other| one.operation == other.operation) {
            let end = start + group.len();
            let per_rank: Vec<usize> =
                group.chunk_by(|one, other| one.member == other.member).map(<[_]>::len).collect();
            let (ranks, times) = (per_rank.len(), per_rank[0]);
            if ranks > 1 && per_rank.iter().all(|it| *it == times) {
                // Sorted by occurrence first, then by rank.
                let by_rank = group.to_vec();
                for (place, visit) in group.iter_mut().enumerate() {
                    *visit = by_rank[place % ranks * times + place / ranks];
                }
                let of = |time: usize| (start + time * ranks) as u32..(start + (time + 1) * ranks) as u32;
                self.operations.extend((0..times).map(of));
            }
            // What a rank sends to itself has both of its ends.
            if (ranks, times) == (1, 1) && group[0].is_send_recv {
                self.lonely.push(start as u32);
            }
            start = end;
        }
    }

    /// Finds the transfers whose two ends are each known exactly once.
    fn find_transfers(&mut self) {
        self.ends.sort_unstable_by_key(|it| (it.transfer, !it.is_send));
        let mut start = 0;
        for group in self.ends.chunk_by(|one, other| one.transfer == other.transfer) {
            if matches!(group, [End { is_send: true, .. }, End { is_send: false, .. }]) {
                self.transfers.push((start, start + 1));
            }
            start += group.len() as u32;
        }
    }

    /// The clocks whose files have an operation or a transfer in common with files of another
    /// clock.
    pub(in crate::cli::merge) fn related_clocks(&self) -> BTreeSet<usize> {
        let mut related = BTreeSet::new();
        for visits in self.operations() {
            let clock = |visit: &Visit| self.member_of(visit).clock;
            if visits.iter().any(|visit| clock(visit) != clock(&visits[0])) {
                related.extend(visits.iter().map(clock));
            }
        }
        for [(from, _), (to, _)] in self.transfers().map(|ends| ends.map(|end| self.time_of(end))) {
            if from != to {
                related.extend([from, to]);
            }
        }
        related
    }

    /// Forgets the clocks that have no new number. They must have nothing in common with the
    /// others.
    pub(in crate::cli::merge) fn keep(&mut self, numbers: &HashMap<usize, usize>) {
        let is_kept = |members: &[Member], member: u32| numbers.contains_key(&members[member as usize].clock);
        let (members, visits, ends) = (&self.members, &self.visits, &self.ends);
        self.operations.retain(|range| is_kept(members, visits[range.start as usize].member));
        self.transfers.retain(|(sent, _)| is_kept(members, ends[*sent as usize].member));
        self.inferred.retain_mut(|(clock, _)| {
            let number = numbers.get(clock);
            *clock = number.copied().unwrap_or_default();
            number.is_some()
        });
        for member in &mut self.members {
            member.clock = numbers.get(&member.clock).copied().unwrap_or_default();
        }
    }

    /// Each operation with the parts of its ranks, by communicator.
    pub(in crate::cli::merge) fn operations(&self) -> impl Iterator<Item = &[Visit]> {
        self.operations.iter().map(|range| &self.visits[range.start as usize..range.end as usize])
    }

    /// Sends and receives of ranks whose peer's part is not known.
    pub(in crate::cli::merge) fn lonely(&self) -> impl Iterator<Item = &Visit> {
        self.lonely.iter().map(|index| &self.visits[*index as usize])
    }

    /// Each transfer with both of its ends, the sending one first.
    pub(in crate::cli::merge) fn transfers(&self) -> impl Iterator<Item = [&End; 2]> {
        self.transfers.iter().map(|(sent, arrived)| [&self.ends[*sent as usize], &self.ends[*arrived as usize]])
    }

    pub(in crate::cli::merge) fn member_of(&self, visit: &Visit) -> &Member {
        &self.members[visit.member as usize]
    }

    /// What the sends of a rank's part waited for; `None` for replays, which may share one mark.
    pub(in crate::cli::merge) fn waits_of(&self, visit: &Visit) -> Option<&Waits> {
        let (_, mark, run) = visit.operation;
        let place = self.waits.binary_search_by_key(&(visit.member, mark), |(of, _)| *of).ok()?;
        (run == 0).then(|| &self.waits[place].1)
    }

    /// The clock of an end, and its time there.
    pub(in crate::cli::merge) fn time_of(&self, end: &End) -> (usize, Bounded) {
        let member = &self.members[end.member as usize];
        (member.clock, Bounded { time: end.at, error_ns: member.error_ns.saturating_add(member.moved.error_ns) })
    }

    /// How many operations are known by inference only, in the files of a clock.
    pub(in crate::cli::merge) fn inferred(&self, clock: usize) -> u64 {
        self.inferred.iter().filter(|(it, _)| *it == clock).map(|(_, count)| count).sum()
    }

    /// What the files show about each pair of clocks, by the clocks' numbers.
    pub(in crate::cli::merge) fn orders(&self) -> HashMap<(usize, usize), Orders> {
        let mut orders: HashMap<(usize, usize), Orders> = HashMap::new();
        // For each clock: the last rank that others wait for arrived at this time or later; the
        // first rank that waits for others was done at this time or earlier.
        let mut clocks: Vec<(usize, Option<HostNs>, Option<HostNs>)> = Vec::new();
        for visits in self.operations() {
            clocks.clear();
            if !visits.iter().all(|it| it.is_exact) {
                continue;
            }
            for visit in visits {
                let Member { clock, ref moved, .. } = *self.member_of(visit);
                let on_clock = Shift { ns: 0, error_ns: moved.error_ns };
                let [enters, leaves] = visit.times().map(|time| time.shifted(on_clock));
                let entered = (visit.role != Role::Takes).then(|| enters.earliest());
                let left = (visit.role != Role::Gives).then(|| leaves.latest());
                match clocks.iter_mut().find(|it| it.0 == clock) {
                    Some(known) => {
                        known.1 = known.1.max(entered);
                        known.2 = known.2.into_iter().chain(left).min();
                    }
                    None => clocks.push((clock, entered, left)),
                }
            }
            clocks.sort_unstable_by_key(|it| it.0);
            let Some(((reference, entered_here, left_here), others)) = clocks.split_first() else { continue };
            for (other, entered, left) in others {
                let between = orders.entry((*reference, *other)).or_default();
                if let (Some(here), Some(there)) = (entered_here, left) {
                    between.here_first(*here, *there);
                }
                if let (Some(here), Some(there)) = (left_here, entered) {
                    between.there_first(*here, *there);
                }
            }
        }
        let transfers: Vec<Transfer> = self
            .transfers()
            .map(|ends| {
                let [(from, sent), (to, arrived)] = ends.map(|end| self.time_of(end));
                Transfer { from, sent: sent.earliest(), to, arrived: arrived.latest() }
            })
            .filter(|it| it.from != it.to)
            .collect();
        for Transfer { from, to, .. } in &transfers {
            orders.entry((*from.min(to), *from.max(to))).or_default();
        }
        let clocks = self.members.iter().map(|it| it.clock + 1).max().unwrap_or(0);
        let mut before = |one: usize, at, other: usize, later| {
            // Hosts that share no operations are related through other hosts.
            if let Some(between) = orders.get_mut(&(one.min(other), one.max(other))) {
                if one < other { between.here_first(at, later) } else { between.there_first(later, at) }
            }
        };
        if clocks.saturating_mul(transfers.len()) <= CHAINED {
            chains::orders(clocks, &transfers, before);
        } else {
            transfers.iter().for_each(|it| before(it.from, it.sent, it.to, it.arrived));
        }
        orders
    }
}

#[cfg(test)]
impl Shared {
    /// The sends and receives between two ranks, as both show them: the rank and its peer, whether
    /// it sends, and when its kernel began and ended. Each rank is on the clock with its number.
    pub(in crate::cli::merge) fn exchanges(parts: &[(i32, i32, bool, [u64; 2])]) -> Shared {
        let ranks = parts.iter().map(|part| part.0 + 1).max().unwrap_or(0);
        let member = |rank: i32| Member {
            process: rank as u64,
            comm: 7,
            label: "world".to_owned(),
            rank,
            size: ranks,
            group: None,
            clock: rank as usize,
            moved: super::Moved::default(),
            error_ns: 0,
        };
        let visit = |&(rank, peer, sends, [entered, left]): &(i32, i32, bool, [u64; 2])| {
            let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
            Visit {
                member: rank as u32,
                left: HostNs(left),
                role: if sends { Role::Gives } else { Role::Takes },
                is_send_recv: true,
                peer,
                ..super::tests::visit((from * ranks + to) as u64, 0, entered)
            }
        };
        let mut shared = Shared {
            members: (0..ranks).map(member).collect(),
            visits: parts.iter().map(visit).collect(),
            ..Shared::default()
        };
        shared.find_operations();
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::visit;
    use super::*;

    fn shared(visits: Vec<Visit>, ends: Vec<End>) -> Shared {
        let mut shared = Shared { visits, ends, ..Shared::default() };
        shared.find_operations();
        shared.find_transfers();
        shared
    }

    #[test]
    fn operations_with_one_number_are_told_apart_by_order_if_all_are_known() {
        let shared = shared(
            vec![
                visit(1, 1, 20),
                visit(1, 0, 31),
                visit(1, 0, 10),
                visit(1, 1, 40),
                // One of rank 1's is missing, so it is unclear which.
                visit(2, 0, 50),
                visit(2, 0, 60),
                visit(2, 1, 51),
                // No other rank has it.
                visit(3, 0, 70),
            ],
            Vec::new(),
        );
        let found: Vec<Vec<(u32, u64)>> =
            shared.operations().map(|it| it.iter().map(|it| (it.member, it.entered.0)).collect()).collect();
        assert_eq!(found, [[(0, 10), (1, 20)], [(0, 31), (1, 40)]]);
    }

    #[test]
    fn a_send_to_another_rank_without_its_receive_is_lonely() {
        let part = |operation, member, role| Visit { role, is_send_recv: true, ..visit(operation, member, 10) };
        let shared = shared(
            vec![
                part(1, 0, Role::Gives),
                part(1, 1, Role::Takes),
                // To itself.
                part(2, 0, Role::Gives),
                part(2, 0, Role::Takes),
                part(3, 1, Role::Gives),
                // A collective whose other ranks are not known.
                visit(4, 0, 10),
            ],
            Vec::new(),
        );
        let lonely: Vec<(u64, u32)> = shared.lonely().map(|it| (it.operation.1, it.member)).collect();
        assert_eq!((lonely, shared.operations().count()), (vec![(3, 1)], 1));
    }

    #[test]
    fn a_transfer_needs_each_end_exactly_once() {
        let end =
            |transfer: u64, is_send: bool, at: u64| End { transfer, is_send, member: 0, track: 0, at: HostNs(at) };
        let ends = vec![
            end(1, false, 20),
            end(2, true, 30),
            end(1, true, 10),
            end(3, true, 1),
            end(3, true, 2),
            end(3, false, 3),
            end(4, false, 5),
            end(4, false, 6),
        ];
        let shared = shared(Vec::new(), ends);
        let found: Vec<[u64; 2]> = shared.transfers().map(|ends| ends.map(|end| end.at.0)).collect();
        assert_eq!(found, [[10, 20]]);
    }

    #[test]
    fn captured_sends_that_run_in_another_order_than_their_receives_are_not_exact() {
        // Two graphs, which the ranks run in this order, by their numbers on the sending rank and
        // on the receiving one. Each run is a kernel with a send and a receive.
        let exact = |sent: &[(u64, u64)], received: &[(u64, u64)]| {
            let mut shared = Shared::exchanges(&[(0, 1, true, [0, 0]), (1, 0, false, [0, 0])]);
            let runs = |of: &[(u64, u64)], rank: u32, role: Role, other: u64| -> Vec<Visit> {
                let visit = |(place, &(mark, run)): (usize, &(u64, u64))| Visit {
                    operation: (7, other + mark, run),
                    role,
                    is_send_recv: true,
                    peer: 1 - rank as i32,
                    ..visit(mark, rank, 100 * place as u64)
                };
                of.iter().enumerate().map(visit).collect()
            };
            shared.visits = runs(sent, 0, Role::Gives, 0);
            shared.visits.extend(runs(received, 1, Role::Takes, 0));
            // The other direction: always in order.
            shared.visits.extend(runs(sent, 0, Role::Takes, 50));
            shared.visits.extend(runs(sent, 1, Role::Gives, 50));
            shared.inferred = vec![(0, 0), (1, 0)];
            shared.doubt_captured();
            let (back, there): (Vec<&Visit>, Vec<_>) = shared.visits.iter().partition(|it| it.correlation() >= 50);
            assert!(back.iter().all(|it| it.is_exact));
            assert_eq!(there.iter().filter(|it| !it.is_exact).count() as u64, shared.inferred(0) + shared.inferred(1));
            there.iter().all(|it| it.is_exact)
        };
        let runs = [(1, 1), (2, 1), (2, 2), (1, 2)];
        assert!(exact(&runs, &runs));
        assert!(exact(&runs, &runs[1..]), "the first one's record was lost");
        assert!(exact(&[(1, 0), (2, 0)], &[(2, 0), (1, 0)]), "not captured");
        assert!(!exact(&runs, &runs.map(|(mark, run)| (3 - mark, run))));
        assert!(!exact(&[(1, 1), (1, 2), (2, 1)], &[(2, 1), (2, 2), (1, 1)]));
    }

    #[test]
    fn a_clock_is_known_no_better_than_the_times_that_a_merge_put_on_it() {
        // Two ranks on two clocks wait for each other; a merge moved the second one's host.
        let error = |moved_ns: u64| {
            let mut shared = Shared::exchanges(&[(0, 1, true, [0, 0]), (1, 0, false, [0, 0])]);
            shared.members[1].moved.error_ns = moved_ns;
            shared.visits =
                (1..10).flat_map(|at| [visit(at, 0, 1_000_000 * at), visit(at, 1, 1_000_000 * at)]).collect();
            (shared.operations, shared.lonely) = (Vec::new(), Vec::new());
            shared.find_operations();
            shared.orders().remove(&(0, 1)).unwrap().solve().unwrap().errors().1
        };
        assert!(error(700) >= error(0) + 700, "{} {}", error(700), error(0));
    }
}
