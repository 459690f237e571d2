//! Who waited for whom: what all ranks of a collective, or both ranks of a send and receive, show
//! once they are on one clock.

use std::collections::{BTreeSet, HashMap};

use super::evidence::{End, Member, Role, Shared, Visit, Waits};
use super::members::Labels;
use super::moved::Move;
use crate::model::ids::ProcessTag;
use crate::model::time::{Bounded, HostNs};
use crate::trace::job::{Collective, CommTracks, Diagnosis, JobTracks, Part, RankTracks};
use crate::trace::reader;

/// How many bytes of packets are handed on together.
const CHUNK: usize = 256 << 10;

/// One rank's part, on the common clock.
#[derive(Clone, Copy)]
struct Placed<'a> {
    visit: &'a Visit,
    member: &'a Member,
    how: Option<&'a Move>,
    entered: Bounded,
    left: Bounded,
}

/// When a rank came, or the last rank of a host.
#[derive(Clone, Copy)]
struct Came<'a> {
    member: &'a Member,
    how: Option<&'a Move>,
    /// On the common clock.
    at: Bounded,
    /// On its own clock.
    there: Bounded,
}

impl<'a> Placed<'a> {
    fn of(visit: &'a Visit, shared: &'a Shared, moves: &'a [Option<Move>]) -> Placed<'a> {
        let member = shared.member_of(visit);
        let how = moves[member.clock].as_ref();
        let [entered, left] = visit.times().map(|time| shifted(time, how));
        Placed { visit, member, how, entered, left }
    }

    fn came(&self) -> Came<'a> {
        let [there, _] = self.visit.times();
        Came { member: self.member, how: self.how, at: self.entered, there }
    }
}

impl Came<'_> {
    /// The error of the time between the two, ns.
    fn error_to(self, other: Came<'_>) -> u64 {
        let error_ns = match self.how {
            Some(how) if self.member.clock == other.member.clock => how.offset.error_between(self.there, other.there),
            _ => self.at.error_ns.saturating_add(other.at.error_ns),
        };
        if self.is_of_host(other) {
            return error_ns;
        }
        let [one, two] = [self, other].map(|it| it.member.moved.error_ns);
        error_ns.saturating_add(one).saturating_add(two)
    }

    /// Whether both ranks are on one host. A file that was merged before has those of several.
    fn is_of_host(self, other: Came<'_>) -> bool {
        (self.member.clock, &self.member.moved) == (other.member.clock, &other.member.moved)
    }
}

/// The error of how long a rank waited for the last one, whichever rank that really was, ns.
fn wait_error(came: Came<'_>, last: Came<'_>, last_of_hosts: &[Came<'_>]) -> u64 {
    let latest = last_of_hosts.iter().map(|it| it.at.time.0.saturating_add(came.error_to(*it))).max().unwrap_or(0);
    latest.saturating_sub(last.at.time.0).max(came.error_to(last))
}

fn shifted(time: Bounded, how: Option<&Move>) -> Bounded {
    how.map_or(time, |how| how.offset.shifted(time))
}

/// What is not drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    /// Arrows that the clocks would reverse.
    pub(super) arrows: u64,
    /// Communicators, and ranks in them, for which there are too many tracks.
    pub(super) tracks: u64,
}

/// Draws who waited for whom, what `ncclscope diagnose` says, and the arrows of transfers. Hands
/// the packets to `put`.
pub(super) fn draw(
    shared: &Shared,
    moves: &[Option<Move>],
    labels: &Labels,
    tag: ProcessTag,
    diagnosis: &Diagnosis,
    mut put: impl FnMut(Vec<u8>) -> Result<(), reader::Error>,
) -> Result<LeftOut, reader::Error> {
    let entered = |visit: &Visit| Placed::of(visit, shared, moves).entered.time;
    let first = |operations: &[&[Visit]]| operations.iter().copied().flatten().map(entered).min();
    let ends = shared.transfers().flatten().map(|end| moved(end, shared, moves).1);
    let all: Vec<&[Visit]> = shared.operations().collect();
    let ends = ends.chain(diagnosis.answer.iter().chain(&diagnosis.causes).map(|it| it.0));
    let Some(begin) = first(&all).into_iter().chain(ends).min() else { return Ok(LeftOut::default()) };
    let mut job = JobTracks::new(tag, begin);
    job.diagnosis(diagnosis);
    let mut ranks: HashMap<u32, Option<RankTracks>> = HashMap::new();
    let lonely = lonely(shared);
    for of_comm in all.chunk_by(|one, other| shared.member_of(&one[0]).comm == shared.member_of(&other[0]).comm) {
        let exchanged = exchanged(of_comm);
        let kernels = exchanged.chunk_by(|one, other| kernel(one.own) == kernel(other.own)).map(Item::Exchange);
        let collectives = of_comm.iter().filter(|it| !is_exchange(it)).map(|visits| Item::Collective(visits));
        // On each rank, this is the order in which they ran.
        let mut items: Vec<(HostNs, Item<'_>)> =
            collectives.chain(kernels).filter_map(|item| Some((item.came(entered)?, item))).collect();
        items.sort_by_key(|(came, _)| *came);
        let mut tracks: Option<Option<CommTracks>> = None;
        let mut changes = Vec::new();
        for (_, item) in &items {
            let known = match item {
                Item::Collective(visits) => collective(visits, shared, moves),
                Item::Exchange(transfers) => exchange(transfers, &lonely, shared, moves),
            };
            let Some(Known { it, parts, last, last_of_hosts, error_ns }) = known else { continue };
            let label = &labels.of(parts[0].member);
            let first = || first(of_comm).unwrap_or(it.first);
            let Some(of_all) = *tracks.get_or_insert_with(|| job.communicator(label, first())) else { break };
            let sends = match item {
                Item::Collective(_) => None,
                Item::Exchange(transfers) => waits(transfers, shared),
            };
            if it.transfers == 0 {
                job.collective(of_all, &it);
            }
            let drawn = || parts.iter().filter(|part| it.transfers > 0 || part.visit.role != Role::Gives);
            // An arrow has two ends.
            let arrow = (drawn().count() > 1).then(|| job.arrow());
            for part in drawn() {
                let Placed { visit, member, entered, left, .. } = *part;
                if it.last > entered.time {
                    changes.extend([(entered.time, 1), (it.last, -1)]);
                }
                let Member { group, rank, size, .. } = member;
                let of_rank = ranks.entry(visit.member).or_insert_with(|| job.rank((*group)?, label, *rank, *size));
                if let Some(of_rank) = *of_rank {
                    let error_ns = wait_error(part.came(), last, &last_of_hosts).max(error_ns);
                    let sends = sends.or_else(|| shared.waits_of(visit).copied());
                    let part =
                        Part { sends, entered: entered.time, left: left.time, queued_ns: visit.queued_ns, error_ns };
                    job.part(of_rank, &it, &part, arrow);
                }
            }
            hand_on(&mut job, CHUNK, &mut put)?;
        }
        if let Some(Some(of_all)) = tracks {
            job.waiting(of_all, &mut changes);
        }
    }
    let arrows = transfers(shared, moves, &mut job, &mut put)?;
    hand_on(&mut job, 1, &mut put)?;
    Ok(LeftOut { arrows, tracks: job.left_out() })
}

/// What is drawn of a communicator.
enum Item<'a> {
    Collective(&'a [Visit]),
    /// The sends and receives that one kernel of one rank carried.
    Exchange(&'a [Exchanged<'a>]),
}

impl Item<'_> {
    /// When the last rank came to a collective, or the rank to its kernel.
    fn came(&self, entered: impl Fn(&Visit) -> HostNs) -> Option<HostNs> {
        match self {
            Item::Collective(visits) => visits.iter().filter(|it| it.role != Role::Takes).map(entered).max(),
            Item::Exchange(transfers) => Some(entered(transfers.first()?.own)),
        }
    }
}

/// A send and a receive: one rank's part, and its peer's.
#[derive(Clone, Copy)]
struct Exchanged<'a> {
    own: &'a Visit,
    peer: &'a Visit,
}

fn is_exchange(visits: &[Visit]) -> bool {
    visits.iter().any(|it| it.is_send_recv)
}

/// What identifies a visit's kernel.
fn kernel(visit: &Visit) -> (u32, [HostNs; 2]) {
    (visit.member, visit.times().map(|it| it.time))
}

/// The sends and receives among these operations, from the point of view of both ranks, by kernel.
fn exchanged<'a>(operations: &[&'a [Visit]]) -> Vec<Exchanged<'a>> {
    let both = |visits: &'a [Visit]| match visits {
        [one, other] if is_exchange(visits) && one.role != other.role => {
            [Some(Exchanged { own: one, peer: other }), Some(Exchanged { own: other, peer: one })]
        }
        _ => [None; 2],
    };
    let mut all: Vec<_> = operations.iter().flat_map(|visits| both(visits)).flatten().collect();
    all.sort_by_key(|it| kernel(it.own));
    all
}

/// Sends and receives whose other end is not known, by kernel.
fn lonely(shared: &Shared) -> Vec<&Visit> {
    let mut lonely: Vec<&Visit> = shared.lonely().collect();
    lonely.sort_by_key(|visit| kernel(visit));
    lonely
}

/// What the sends of a kernel waited for.
fn waits(transfers: &[Exchanged<'_>], shared: &Shared) -> Option<Waits> {
    let all = transfers.iter().filter_map(|it| shared.waits_of(it.own).copied());
    all.reduce(|one, other| std::array::from_fn(|what| one[what].saturating_add(other[what])))
}

/// An operation, with the parts of its ranks that are drawn.
struct Known<'a> {
    it: Collective,
    parts: Vec<Placed<'a>>,
    last: Came<'a>,
    last_of_hosts: Vec<Came<'a>>,
    /// How far waits may be off at least, ns.
    error_ns: u64,
}

/// What is known about a collective; `None` if nobody waited for anybody.
fn collective<'a>(visits: &'a [Visit], shared: &'a Shared, moves: &'a [Option<Move>]) -> Option<Known<'a>> {
    let parts: Vec<Placed<'_>> = visits.iter().map(|it| Placed::of(it, shared, moves)).collect();
    let givers = parts.iter().filter(|it| it.visit.role != Role::Takes).copied().collect();
    let Last { by, last_of_hosts, late_ns, late_error_ns } = Last::of(givers)?;
    let (known, all) = (parts.len() as u32, by.member.size);
    let first = parts.iter().min_by_key(|it| it.entered.time)?;
    let it = Collective {
        correlation: visits[0].correlation(),
        first: first.entered.time,
        first_error_ns: wait_error(first.came(), by.came(), &last_of_hosts),
        last: by.entered.time,
        last_rank: by.member.rank,
        late_ns,
        late_error_ns,
        ranks: known,
        transfers: 0,
        doubt: (i64::from(known) < i64::from(all)).then(|| format!("only {known} of {all} ranks are known")),
    };
    Some(Known { it, parts, last: by.came(), last_of_hosts, error_ns: 0 })
}

/// What is known about the sends and receives of a kernel: before the peer has come, it cannot
/// receive, and cannot finish a send that fills NCCL's buffers.
fn exchange<'a>(
    transfers: &[Exchanged<'a>],
    lonely: &[&Visit],
    shared: &'a Shared,
    moves: &'a [Option<Move>],
) -> Option<Known<'a>> {
    let own = Placed::of(transfers.first()?.own, shared, moves);
    let (mut came, mut error_ns, mut may_have_come) = (vec![own], 0, None);
    // Of the peers, those from which it receives.
    let mut givers = BTreeSet::from([own.member.rank]);
    let mut peers = givers.clone();
    for &Exchanged { own: part, peer } in transfers {
        let peer = Placed::of(peer, shared, moves);
        peers.insert(peer.member.rank);
        if part.role == Role::Takes {
            givers.insert(peer.member.rank);
        } else {
            // It did not wait for a receiver that came after it had left, where the clocks can
            // tell.
            let is_after = peer.entered.time >= own.left.time;
            if own.left.time.0.abs_diff(peer.entered.time.0) <= own.came().error_to(peer.came()) {
                error_ns = own.left.time.since(own.entered.time);
                if is_after {
                    may_have_come = Some(peer.member.rank);
                }
            }
            if is_after {
                continue;
            }
        }
        came.push(peer);
    }
    let Last { by, last_of_hosts, late_ns, late_error_ns } = Last::of(came)?;
    let from = lonely.partition_point(|it| kernel(it) < kernel(own.visit));
    let lonely = lonely[from..].iter().take_while(|it| kernel(it) == kernel(own.visit));
    let known = peers.len() as u32;
    peers.extend(lonely.map(|it| it.peer));
    let doubt = if peers.len() as u32 > known {
        Some(format!("only {known} of {} ranks are known", peers.len()))
    } else if shared.lacks_visits {
        Some("not all of its sends and receives are known".to_owned())
    } else if let Some(rank) = may_have_come {
        Some(format!(
            "rank {rank} may have been the last, or may have come after this one left: the clocks cannot tell"
        ))
    } else if (known > 2 || error_ns > 0) && !givers.contains(&by.member.rank) {
        Some(format!("it only sends to rank {}, and what fits NCCL's buffers is sent without waiting", by.member.rank))
    } else {
        None
    };
    let it = Collective {
        correlation: by_peer(transfers, by.visit).correlation(),
        first: own.entered.time,
        first_error_ns: 0,
        last: by.entered.time,
        last_rank: by.member.rank,
        late_ns,
        late_error_ns,
        ranks: known,
        transfers: transfers.len() as u32,
        doubt,
    };
    Some(Known { it, parts: vec![own], last: by.came(), last_of_hosts, error_ns })
}

/// The part in the transfer with the peer that came last, or else in the first transfer.
fn by_peer<'a>(transfers: &[Exchanged<'a>], last: &Visit) -> &'a Visit {
    transfers.iter().find(|it| std::ptr::eq(it.peer, last)).unwrap_or(&transfers[0]).own
}

/// Who came last.
struct Last<'a> {
    by: Placed<'a>,
    last_of_hosts: Vec<Came<'a>>,
    /// By how much, if there are others; and the error of that, ns.
    late_ns: Option<u64>,
    late_error_ns: u64,
}

impl<'a> Last<'a> {
    fn of(all: Vec<Placed<'a>>) -> Option<Last<'a>> {
        let by = *all.iter().max_by_key(|it| it.entered.time)?;
        let last = by.came();
        let mut last_of_hosts: Vec<Came<'_>> = Vec::new();
        for came in all.iter().map(Placed::came) {
            match last_of_hosts.iter_mut().find(|it| it.is_of_host(came)) {
                Some(known) => {
                    // The largest errors of all, with the last one's times.
                    for (known, came) in [(&mut known.at, came.at), (&mut known.there, came.there)] {
                        known.time = known.time.max(came.time);
                        known.error_ns = known.error_ns.max(came.error_ns);
                    }
                }
                None => last_of_hosts.push(came),
            }
        }
        // How long it came after another one: the least, the likeliest and the most.
        let after = |other: &Placed<'_>| {
            let (late, error) = (last.at.time.since(other.entered.time), last.error_to(other.came()));
            [late.saturating_sub(error), late, late.saturating_add(error)]
        };
        let late = all.iter().filter(|it| it.visit.member != by.visit.member).map(after).reduce(|one, other| {
            let [least, late, most] = one;
            [least.min(other[0]), late.min(other[1]), most.min(other[2])]
        });
        Some(Last {
            by,
            last_of_hosts,
            late_ns: late.map(|[_, late, _]| late),
            late_error_ns: late.map_or(0, |[least, late, most]| (late - least).max(most - late)),
        })
    }
}

/// The track of an end, and its time on the common clock.
fn moved(end: &End, shared: &Shared, moves: &[Option<Move>]) -> (u64, HostNs) {
    let (clock, time) = shared.time_of(end);
    (end.track, shifted(time, moves[clock].as_ref()).time)
}

/// Draws the arrows of transfers. Returns how many the clocks would reverse.
fn transfers(
    shared: &Shared,
    moves: &[Option<Move>],
    job: &mut JobTracks,
    put: &mut impl FnMut(Vec<u8>) -> Result<(), reader::Error>,
) -> Result<u64, reader::Error> {
    let mut arrows: Vec<[(u64, HostNs); 2]> = Vec::new();
    let mut backwards = 0;
    for ends in shared.transfers() {
        let arrow @ [(_, sent), (_, arrived)] = ends.map(|end| moved(end, shared, moves));
        // Perfetto draws an arrow from the earlier end to the later one.
        if sent <= arrived { arrows.push(arrow) } else { backwards += 1 }
    }
    arrows.sort_unstable_by_key(|[(_, sent), _]| *sent);
    for [sent, arrived] in arrows {
        job.transfer(sent, arrived);
        hand_on(job, CHUNK, put)?;
    }
    Ok(backwards)
}

/// Hands on what was drawn, if it has reached this many bytes.
fn hand_on(
    job: &mut JobTracks,
    at_least: usize,
    put: &mut impl FnMut(Vec<u8>) -> Result<(), reader::Error>,
) -> Result<(), reader::Error> {
    if job.pending_bytes() < at_least { Ok(()) } else { put(job.take()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::hosts::Orders;

    /// A host's clock that is known to 0.1 ms, near this time.
    fn loose(at: u64) -> Move {
        let mut orders = Orders::default();
        orders.here_first(HostNs(at - 100_000), HostNs(at));
        orders.there_first(HostNs(at + 100_000), HostNs(at));
        Move { offset: orders.solve().unwrap(), host: String::new(), how: String::new(), error_ns: 0 }
    }

    #[test]
    fn nobody_is_named_while_a_receiver_may_have_come_last() {
        const BASE: u64 = 1_000_000_000;
        // Rank 0 receives from rank 1, which comes late, and sends to rank 2.
        let doubt = |receiver: u64| {
            let times = |entered: u64, left: u64| [BASE + entered, BASE + left];
            let shared = Shared::exchanges(&[
                (0, 1, false, times(0, 2_000_000)),
                (0, 2, true, times(0, 2_000_000)),
                (1, 0, true, times(1_500_000, 1_600_000)),
                (2, 0, false, times(receiver, receiver + 10_000)),
            ]);
            let moves = [None, Some(loose(BASE)), Some(loose(BASE + receiver))];
            let operations: Vec<&[Visit]> = shared.operations().collect();
            let all = exchanged(&operations);
            let own: Vec<Exchanged<'_>> = all.into_iter().filter(|it| shared.member_of(it.own).rank == 0).collect();
            assert_eq!(own.len(), 2);
            let Known { it, error_ns, .. } = exchange(&own, &[], &shared, &moves).unwrap();
            assert_eq!((it.last_rank, it.is_certain()), (1, it.doubt.is_none()));
            (it.doubt, error_ns)
        };
        assert_eq!(doubt(2_300_000), (None, 0), "it came after rank 0 had left");
        let (doubt, error_ns) = doubt(2_050_000);
        assert!(doubt.as_ref().is_some_and(|doubt| doubt.contains("rank 2 may have been the last")), "{doubt:?}");
        assert_eq!(error_ns, 2_000_000);
    }
}
