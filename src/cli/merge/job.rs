//! Who waited for whom: what the parts of all ranks in a collective show once they are on one
//! clock.

use std::collections::HashMap;
use std::io::Write;

use super::evidence::{Member, Role, Shared, Visit};
use super::members::Labels;
use super::moved::Move;
use crate::cli::reason::Reason;
use crate::model::ids::ProcessTag;
use crate::model::time::{Bounded, HostNs};
use crate::trace::job::{Collective, CommTracks, JobTracks, Part, RankTracks};
use crate::trace::reader::blocks::packed;

/// How many bytes of packets are compressed together.
const CHUNK: usize = 256 << 10;

/// One rank's part, on the common clock.
#[derive(Clone, Copy)]
struct Placed<'a> {
    visit: &'a Visit,
    member: &'a Member,
    entered: Bounded,
    left: Bounded,
}

/// When the last rank of one host came.
#[derive(Clone, Copy)]
struct Came {
    clock: usize,
    at: HostNs,
    /// How far that may be off on its own clock, and on the common clock, ns.
    own_error: u64,
    error: u64,
}

impl<'a> Placed<'a> {
    fn of(visit: &'a Visit, shared: &'a Shared, moves: &[Option<Move>]) -> Placed<'a> {
        let member = shared.member_of(visit);
        let [entered, left] = visit.times().map(|time| shifted(time, moves[member.clock].as_ref()));
        Placed { visit, member, entered, left }
    }

    fn came(&self) -> Came {
        let [Bounded { error_ns: own_error, .. }, _] = self.visit.times();
        Came { clock: self.member.clock, at: self.entered.time, own_error, error: self.entered.error_ns }
    }
}

impl Came {
    /// The error of the time between the two, ns. Ranks on one clock share the error of that clock,
    /// so it does not count between them.
    fn error_to(self, other: Came) -> u64 {
        if self.clock == other.clock {
            self.own_error.saturating_add(other.own_error)
        } else {
            self.error.saturating_add(other.error)
        }
    }
}

/// The error of how long a rank waited for the last one, whichever rank that really was, ns.
fn wait_error(came: Came, last: Came, last_of_hosts: &[Came]) -> u64 {
    let latest = last_of_hosts.iter().map(|it| it.at.0.saturating_add(came.error_to(*it))).max().unwrap_or(0);
    latest.saturating_sub(last.at.0).max(came.error_to(last))
}

fn shifted(time: Bounded, how: Option<&Move>) -> Bounded {
    how.map_or(time, |how| time.shifted(how.offset.at(time.time)))
}

/// Draws it, and the arrows of transfers. Returns how many bytes that was, and how many arrows are
/// left out because the clocks would reverse them.
pub(super) fn draw(
    shared: &Shared,
    moves: &[Option<Move>],
    labels: &Labels,
    tag: ProcessTag,
    output: &mut dyn Write,
) -> Result<(u64, u64), Reason> {
    let mut flush = Flush { output, written: 0 };
    let first = |visits: &[Visit]| visits.iter().map(|it| Placed::of(it, shared, moves).entered.time).min();
    let Some(begin) = shared.operations().filter_map(first).min() else { return Ok((0, 0)) };
    let mut job = JobTracks::new(tag, begin);
    let mut ranks: HashMap<u32, Option<RankTracks>> = HashMap::new();
    let all: Vec<&[Visit]> = shared.operations().collect();
    for of_comm in all.chunk_by(|one, other| shared.member_of(&one[0]).comm == shared.member_of(&other[0]).comm) {
        let mut collectives: Vec<_> = of_comm.iter().filter_map(|visits| collective(visits, shared, moves)).collect();
        collectives.sort_by_key(|known| known.it.first);
        let mut tracks: Option<Option<CommTracks>> = None;
        let mut changes = Vec::new();
        for Known { it, parts, last, last_of_hosts } in &collectives {
            let label = &labels.of(parts[0].member);
            let Some(of_all) = *tracks.get_or_insert_with(|| job.communicator(label, it.first)) else { break };
            let arrow = job.collective(of_all, it);
            for part in parts.iter().filter(|it| it.visit.role != Role::Gives) {
                let Placed { visit, member, entered, left } = *part;
                if it.last > entered.time {
                    changes.extend([(entered.time, 1), (it.last, -1)]);
                }
                let Member { group, rank, size, .. } = member;
                let of_rank = ranks.entry(visit.member).or_insert_with(|| job.rank((*group)?, label, *rank, *size));
                if let Some(of_rank) = *of_rank {
                    let error_ns = wait_error(part.came(), *last, last_of_hosts);
                    let sends = shared.waits_of(visit).copied();
                    let part =
                        Part { sends, entered: entered.time, left: left.time, queued_ns: visit.queued_ns, error_ns };
                    job.part(of_rank, it, &part, arrow);
                }
            }
            flush.some(&mut job, CHUNK)?;
        }
        if let Some(Some(of_all)) = tracks {
            job.waiting(of_all, &mut changes);
        }
    }
    let backwards = transfers(shared, moves, &mut job, &mut flush)?;
    flush.some(&mut job, 1)?;
    Ok((flush.written, backwards))
}

/// A collective, with the parts of its ranks.
struct Known<'a> {
    it: Collective,
    parts: Vec<Placed<'a>>,
    last: Came,
    last_of_hosts: Vec<Came>,
}

/// What is known about a collective; `None` if nobody waited for anybody.
fn collective<'a>(visits: &'a [Visit], shared: &'a Shared, moves: &[Option<Move>]) -> Option<Known<'a>> {
    if visits.iter().any(|it| it.is_send_recv) {
        return None;
    }
    let parts: Vec<Placed<'_>> = visits.iter().map(|it| Placed::of(it, shared, moves)).collect();
    let givers = || parts.iter().filter(|it| it.visit.role != Role::Takes);
    let first = parts.iter().map(|it| it.entered.time).min()?;
    let by = givers().max_by_key(|it| it.entered.time)?;
    let last = by.came();
    let mut last_of_hosts: Vec<Came> = Vec::new();
    for came in givers().map(Placed::came) {
        match last_of_hosts.iter_mut().find(|it| it.clock == came.clock) {
            Some(known) => {
                known.at = known.at.max(came.at);
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

/// Draws the arrows of transfers.
fn transfers(
    shared: &Shared,
    moves: &[Option<Move>],
    job: &mut JobTracks,
    flush: &mut Flush<'_>,
) -> Result<u64, Reason> {
    let mut arrows: Vec<[(u64, HostNs); 2]> = Vec::new();
    let mut backwards = 0;
    for ends in shared.transfers() {
        let arrow @ [(_, sent), (_, arrived)] = ends.map(|end| {
            let (clock, time) = shared.time_of(end);
            (end.track, shifted(time, moves[clock].as_ref()).time)
        });
        // Perfetto draws an arrow from the earlier end to the later one.
        if sent <= arrived { arrows.push(arrow) } else { backwards += 1 }
    }
    arrows.sort_unstable_by_key(|[(_, sent), _]| *sent);
    for [sent, arrived] in arrows {
        job.transfer(sent, arrived);
        flush.some(job, CHUNK)?;
    }
    Ok(backwards)
}

/// Writes what was drawn, compressed.
struct Flush<'a> {
    output: &'a mut dyn Write,
    written: u64,
}

impl Flush<'_> {
    fn some(&mut self, job: &mut JobTracks, at_least: usize) -> Result<(), Reason> {
        if job.pending_bytes() >= at_least {
            let packet = packed(&job.take()).map_err(Reason::Output)?;
            self.output.write_all(&packet).map_err(Reason::Output)?;
            self.written += packet.len() as u64;
        }
        Ok(())
    }
}
