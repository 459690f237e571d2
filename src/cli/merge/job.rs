//! Who waited for whom: what the parts of all ranks in a collective show once they are on one
//! clock.

use std::collections::HashMap;

use super::evidence::{End, Member, Role, Shared, Visit};
use super::members::Labels;
use super::moved::Move;
use crate::model::ids::ProcessTag;
use crate::model::time::{Bounded, HostNs};
use crate::trace::job::{Collective, CommTracks, JobTracks, Part, RankTracks};
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
    clock: usize,
    how: Option<&'a Move>,
    /// On the common clock.
    at: HostNs,
    /// On its own clock.
    there: HostNs,
    /// How far that may be off on its own clock, and on the common clock, ns.
    own_error: u64,
    error: u64,
}

impl<'a> Placed<'a> {
    fn of(visit: &'a Visit, shared: &'a Shared, moves: &'a [Option<Move>]) -> Placed<'a> {
        let member = shared.member_of(visit);
        let how = moves[member.clock].as_ref();
        let [entered, left] = visit.times().map(|time| shifted(time, how));
        Placed { visit, member, how, entered, left }
    }

    fn came(&self) -> Came<'a> {
        let [Bounded { time: there, error_ns: own_error }, _] = self.visit.times();
        let (at, error) = (self.entered.time, self.entered.error_ns);
        Came { clock: self.member.clock, how: self.how, at, there, own_error, error }
    }
}

impl Came<'_> {
    /// The error of the time between the two, ns.
    fn error_to(self, other: Came<'_>) -> u64 {
        if self.clock == other.clock {
            let between = self.how.map_or(0, |how| how.offset.error_between(self.there, other.there));
            self.own_error.saturating_add(other.own_error).saturating_add(between)
        } else {
            self.error.saturating_add(other.error)
        }
    }
}

/// The error of how long a rank waited for the last one, whichever rank that really was, ns.
fn wait_error(came: Came<'_>, last: Came<'_>, last_of_hosts: &[Came<'_>]) -> u64 {
    let latest = last_of_hosts.iter().map(|it| it.at.0.saturating_add(came.error_to(*it))).max().unwrap_or(0);
    latest.saturating_sub(last.at.0).max(came.error_to(last))
}

fn shifted(time: Bounded, how: Option<&Move>) -> Bounded {
    how.map_or(time, |how| time.shifted(how.offset.at(time.time)))
}

/// What is not drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    /// Arrows that the clocks would reverse.
    pub(super) arrows: u64,
    /// Communicators, and ranks in them, for which there are too many tracks.
    pub(super) tracks: u64,
}

/// Draws it, and the arrows of transfers, and hands the packets to `put`.
pub(super) fn draw(
    shared: &Shared,
    moves: &[Option<Move>],
    labels: &Labels,
    tag: ProcessTag,
    mut put: impl FnMut(Vec<u8>) -> Result<(), reader::Error>,
) -> Result<LeftOut, reader::Error> {
    let first = |visits: &[Visit]| visits.iter().map(|it| Placed::of(it, shared, moves).entered.time).min();
    let ends = shared.transfers().flatten().map(|end| moved(end, shared, moves).1);
    let Some(begin) = shared.operations().filter_map(first).chain(ends).min() else { return Ok(LeftOut::default()) };
    let mut job = JobTracks::new(tag, begin);
    let mut ranks: HashMap<u32, Option<RankTracks>> = HashMap::new();
    let mut all: Vec<&[Visit]> = shared.operations().collect();
    for of_comm in all.chunk_by_mut(|one, other| shared.member_of(&one[0]).comm == shared.member_of(&other[0]).comm) {
        let begins = |visits: &&[Visit]| first(visits).unwrap_or_default();
        of_comm.sort_by_cached_key(begins);
        let mut tracks: Option<Option<CommTracks>> = None;
        let mut changes = Vec::new();
        for visits in of_comm.iter() {
            let Some(Known { it, parts, last, last_of_hosts }) = collective(visits, shared, moves) else { continue };
            let label = &labels.of(parts[0].member);
            let Some(of_all) = *tracks.get_or_insert_with(|| job.communicator(label, it.first)) else { break };
            job.collective(of_all, &it);
            let drawn = || parts.iter().filter(|it| it.visit.role != Role::Gives);
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
                    let error_ns = wait_error(part.came(), last, &last_of_hosts);
                    let sends = shared.waits_of(visit).copied();
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

/// A collective, with the parts of its ranks.
struct Known<'a> {
    it: Collective,
    parts: Vec<Placed<'a>>,
    last: Came<'a>,
    last_of_hosts: Vec<Came<'a>>,
}

/// What is known about a collective; `None` if nobody waited for anybody.
fn collective<'a>(visits: &'a [Visit], shared: &'a Shared, moves: &'a [Option<Move>]) -> Option<Known<'a>> {
    if visits.iter().any(|it| it.is_send_recv) {
        return None;
    }
    let parts: Vec<Placed<'_>> = visits.iter().map(|it| Placed::of(it, shared, moves)).collect();
    let givers = || parts.iter().filter(|it| it.visit.role != Role::Takes);
    let first = parts.iter().map(|it| it.entered.time).min()?;
    let by = givers().max_by_key(|it| it.entered.time)?;
    let last = by.came();
    let mut last_of_hosts: Vec<Came<'_>> = Vec::new();
    for came in givers().map(Placed::came) {
        match last_of_hosts.iter_mut().find(|it| it.clock == came.clock) {
            Some(known) => {
                (known.at, known.there) = (known.at, known.there).max((came.at, came.there));
                known.own_error = known.own_error.max(came.own_error);
                known.error = known.error.max(came.error);
            }
            None => last_of_hosts.push(came),
        }
    }
    // How long it came after another one: the least, the likeliest and the most.
    let after = |other: &Placed<'_>| {
        let (late, error) = (last.at.since(other.entered.time), last.error_to(other.came()));
        [late.saturating_sub(error), late, late.saturating_add(error)]
    };
    let late = givers().filter(|it| it.visit.member != by.visit.member).map(after).reduce(|one, other| {
        let [least, late, most] = one;
        [least.min(other[0]), late.min(other[1]), most.min(other[2])]
    });
    let it = Collective {
        correlation: visits[0].correlation(),
        first,
        last: last.at,
        last_rank: by.member.rank,
        late_ns: late.map(|[_, late, _]| late),
        late_error_ns: late.map_or(0, |[least, late, most]| (late - least).max(most - late)),
        ranks: parts.len() as u32,
        size: by.member.size,
    };
    Some(Known { it, parts, last, last_of_hosts })
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
