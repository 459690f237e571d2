//! Who waited for whom: what the parts of all ranks in a collective say once their clocks are one.

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

/// Packets that are compressed together, in bytes.
const CHUNK: usize = 256 << 10;

/// The part of a rank on the clock of all.
#[derive(Clone, Copy)]
struct Placed<'a> {
    visit: &'a Visit,
    member: &'a Member,
    entered: Bounded,
    left: Bounded,
}

impl<'a> Placed<'a> {
    fn of(visit: &'a Visit, shared: &'a Shared, moves: &[Option<Move>]) -> Placed<'a> {
        let member = shared.member_of(visit);
        let [entered, left] = visit.times().map(|time| shifted(time, moves[member.clock].as_ref()));
        Placed { visit, member, entered, left }
    }

    /// How far it may be off when one of them entered before the other. What two ranks of one clock share does not count.
    fn error_to(&self, other: &Placed<'_>) -> u64 {
        if self.member.clock == other.member.clock {
            let own = |it: &Placed<'_>| it.visit.times()[0].error_ns;
            own(self).saturating_add(own(other))
        } else {
            self.entered.error_ns.saturating_add(other.entered.error_ns)
        }
    }
}

fn shifted(time: Bounded, how: Option<&Move>) -> Bounded {
    how.map_or(time, |how| time.shifted(how.offset.at(time.time)))
}

/// Draws it, and the arrows of transfers. Answers how many bytes that was, and how many arrows are missing because the clocks would turn
/// them round.
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
        collectives.sort_by_key(|(it, _)| it.first);
        let mut tracks: Option<Option<CommTracks>> = None;
        let mut changes = Vec::new();
        for (it, placed) in &collectives {
            let label = &labels.of(placed[0].member);
            let Some(of_all) = *tracks.get_or_insert_with(|| job.communicator(label, it.first)) else { break };
            let arrow = job.collective(of_all, it);
            for part in placed.iter().filter(|it| it.visit.role != Role::Gives) {
                let Placed { visit, member, entered, left } = *part;
                if it.last > entered.time {
                    changes.extend([(entered.time, 1), (it.last, -1)]);
                }
                let Member { group, rank, size, .. } = member;
                let of_rank = ranks.entry(visit.member).or_insert_with(|| job.rank((*group)?, label, *rank, *size));
                if let Some(of_rank) = *of_rank {
                    let last = placed.iter().find(|other| other.member.rank == it.last_rank).unwrap_or(part);
                    let error_ns = part.error_to(last);
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

/// A collective with the parts of its ranks; nothing where nobody waited for anybody.
fn collective<'a>(
    visits: &'a [Visit],
    shared: &'a Shared,
    moves: &[Option<Move>],
) -> Option<(Collective, Vec<Placed<'a>>)> {
    if visits.iter().any(|it| it.is_send_recv) {
        return None;
    }
    let placed: Vec<Placed<'_>> = visits.iter().map(|it| Placed::of(it, shared, moves)).collect();
    let mut givers: Vec<&Placed<'_>> = placed.iter().filter(|it| it.visit.role != Role::Takes).collect();
    givers.sort_by_key(|it| it.entered.time);
    let last = *givers.last()?;
    let first = placed.iter().map(|it| it.entered.time).min()?;
    // A broadcast has one that all wait for, whenever it came.
    let before = givers.len().checked_sub(2).map(|before| givers[before]);
    let (late_ns, late_error_ns) =
        before.map_or((u64::MAX, 0), |before| (last.entered.time.since(before.entered.time), last.error_to(before)));
    let it = Collective {
        correlation: visits[0].correlation(),
        first,
        last: last.entered.time,
        last_rank: last.member.rank,
        late_ns,
        late_error_ns,
        ranks: placed.len() as u32,
        size: last.member.size,
    };
    Some((it, placed))
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
        // Perfetto draws an arrow from what is earlier to what is later.
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
