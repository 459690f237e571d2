//! Calls that the ranks of a communicator do not agree on: a collective with another size, type or
//! root than on other ranks, a call of another function in its place, or a send and its receive
//! with different sizes.
//!
//! NCCL checks none of this. The job then hangs, or its results are wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rustc_hash::FxHashMap;

use super::LISTED;
use super::hang::{list, named};
use super::survey::attempts::started_again;
use super::survey::{self, Calls, OfFunction, Request, Requests, Survey, Transfer, placed};
use crate::trace::names;
use crate::trace::reader::proto::ncclscope::Function;

/// The function whose size may be another on each rank.
const VARIABLE: u64 = Function::AllGatherV as u64;

/// The first version of NCCL's profiler interface that reports calls. Without them the numbers of
/// sends and receives are those of the order in which NCCL handed them over, which may be another.
const CALLS: u64 = 5;

/// How many different requests for one call are named.
const SIDES: usize = 4;

/// What the ranks of a communicator do not agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The communicator's name on its tracks, and its hash.
    comm: String,
    pub(super) hash: u64,
    /// Which ranks of the job the communicator's are; empty if the numbers are the same.
    in_job: BTreeMap<u32, u32>,
    pub(super) what: What,
    /// The processes of those who are the fewest, as in `rank 3 is pid 4711 on node17`.
    pub(super) details: Vec<String>,
    /// It is of an earlier attempt of the job: its ranks were started again.
    pub(super) is_again: bool,
}

/// A call, and the ranks that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) call: String,
    pub(super) ranks: Vec<u32>,
}

/// How the calls differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The ranks asked for different things with the same call of a function, and with this many
    /// others.
    Request { seq: u64, sides: Vec<Side>, more: usize },
    /// Each of two groups of ranks made a call that the other did not make.
    Order([Side; 2]),
    /// A send and its receive, and so many others, have different sizes.
    Transfer { sides: [Side; 2], more: usize },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = |side: &Side| {
            let names = list(side.ranks.iter().map(|rank| named(*rank, &self.in_job)));
            if side.ranks.len() == 1 { format!("rank {names}") } else { format!("ranks {names}") }
        };
        if self.is_again {
            f.write_str("in an earlier attempt, ")?;
        }
        match &self.what {
            What::Request { seq, sides, more } => {
                // The largest and the smallest tell most.
                let hidden = sides.len().saturating_sub(SIDES);
                let (most, fewest) = sides.split_at(if hidden > 0 { SIDES - 1 } else { sides.len() });
                let told = most.iter().chain(fewest.last());
                let sides: Vec<_> = told.map(|side| format!("{} on {}", side.call, ranks(side))).collect();
                write!(f, "seq {seq} on {} is {}", self.comm, sides.join(", but "))?;
                if hidden > 0 {
                    write!(f, ", and {hidden} more than these")?;
                }
                match more {
                    0 => Ok(()),
                    1 => write!(f, "; 1 call after it differs, too"),
                    more => write!(f, "; {more} calls after it differ, too"),
                }
            }
            What::Transfer { sides: [send, receive], more } => {
                let (comm, from, to) = (&self.comm, ranks(send), ranks(receive));
                write!(f, "on {comm}, {from} called {}, but {to} called {}", send.call, receive.call)?;
                match more {
                    0 => Ok(()),
                    1 => write!(f, "; 1 other transfer differs, too"),
                    more => write!(f, "; {more} other transfers differ, too"),
                }
            }
            What::Order([one, other]) => write!(
                f,
                "on {}, {} called {}, but {} did not; {} called {}, but {} did not",
                self.comm,
                ranks(one),
                one.call,
                ranks(other),
                ranks(other),
                other.call,
                ranks(one)
            ),
        }
    }
}

impl What {
    /// What is wrong, without who did it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            What::Request { .. } | What::Order(_) => "the ranks do not call the same collectives",
            What::Transfer { .. } => "a send and its receive have different sizes",
        }
    }

    /// The calls, each with the ranks that made it; the one of the fewest comes last.
    pub(super) fn sides(&self) -> &[Side] {
        match self {
            What::Request { sides, .. } => sides,
            What::Order(sides) | What::Transfer { sides, .. } => sides,
        }
    }
}

/// A communicator, as the traces show it.
#[derive(Default)]
struct Comm<'a> {
    label: String,
    members: BTreeMap<u32, Member<'a>>,
    is_again: bool,
}

/// A rank of a communicator.
#[derive(Default)]
struct Member<'a> {
    world: Option<u32>,
    place: Option<String>,
    /// The version of NCCL's profiler interface, if NCCL created the communicator while it was
    /// recorded.
    interface: Option<u64>,
    /// Records were dropped, or settings left calls out.
    is_partial: bool,
    calls: Vec<&'a Calls>,
}

/// What the ranks of these traces do not agree on, that of earlier attempts last; empty if they
/// agree, or if only one of a communicator's ranks is there.
pub(super) fn find(survey: &Survey) -> Vec<Mismatch> {
    let again = started_again(&[survey]);
    let mut comms: BTreeMap<u64, Comm<'_>> = BTreeMap::new();
    let twice = survey.claimed_twice();
    let mut tracks: Vec<_> = survey.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()).collect();
    tracks.sort_unstable_by_key(|(uuid, _)| **uuid);
    for (&uuid, track) in tracks {
        let ([hash], Some((label, rank, _))) = (&track.communicators[..], placed(&track.name)) else { continue };
        let Some(process) = survey.process(uuid) else { continue };
        let comm = comms.entry(*hash).or_default();
        comm.is_again |= again.contains_key(&(0, process));
        // A process with several of its ranks numbers their tracks: `world #2`.
        if comm.label.is_empty() || label.len() < comm.label.len() {
            label.clone_into(&mut comm.label);
        }
        let member = comm.members.entry(rank).or_default();
        member.interface = member.interface.or(track.interface);
        member.calls.push(&track.calls);
        if let Some(known) = survey.tracks.get(&process) {
            member.world = survey::rank(&known.name).filter(|rank| !twice.contains(rank));
            member.place = survey.place(process);
        }
        member.is_partial |= survey.processes.get(&process).is_none_or(|it| it.is_lossy || it.is_partial);
    }
    // Other tools number operations in their own way.
    comms.retain(|_, comm| comm.members.values().any(|member| member.interface.is_some()));
    let all = comms.into_iter().flat_map(|(hash, comm)| comm.mismatches(hash, &survey.requests));
    let (earlier, mut last): (Vec<_>, Vec<_>) = all.partition(|it| it.is_again);
    last.extend(earlier);
    last
}

impl Member<'_> {
    /// Whether it made different calls with one number: there were two communicators with one hash.
    fn contradicts_itself(&self) -> bool {
        let mut known: FxHashMap<(u64, u64), u32> = FxHashMap::default();
        let mut calls = self.calls.iter().flat_map(|calls| calls.by_function());
        calls.any(|of| {
            let mut recent = of.recent.iter();
            recent.any(|call| *known.entry((of.function, call.seq)).or_insert(call.request) != call.request)
        })
    }
}

impl Comm<'_> {
    fn mismatches(&self, hash: u64, requests: &Requests) -> Vec<Mismatch> {
        if self.members.values().any(Member::contradicts_itself) {
            return Vec::new();
        }
        let order = self.order(requests);
        let functions: BTreeSet<u64> = self.calls().map(|(_, calls)| calls.function).collect();
        let differing = functions.into_iter().filter_map(|function| self.differing(function, requests));
        let known = self.members.iter().filter_map(|(rank, member)| Some((*rank, member.world?)));
        let mut in_job: BTreeMap<u32, u32> = known.collect();
        if in_job.iter().all(|(rank, world)| rank == world) {
            in_job.clear();
        }
        let of = |what| {
            let details = self.details(&what, &in_job);
            let (comm, in_job, is_again) = (self.label.clone(), in_job.clone(), self.is_again);
            Mismatch { comm, hash, in_job, what, details, is_again }
        };
        order.into_iter().chain(differing).chain(self.transfer()).map(of).collect()
    }

    /// The calls of each rank.
    fn all_calls(&self) -> impl Iterator<Item = (u32, &Calls)> {
        self.members.iter().flat_map(|(rank, member)| member.calls.iter().map(|calls| (*rank, *calls)))
    }

    /// The collectives of each rank, by function.
    fn calls(&self) -> impl Iterator<Item = (u32, &OfFunction)> {
        self.all_calls().flat_map(|(rank, calls)| calls.by_function().map(move |calls| (rank, calls)))
    }

    /// The first call of a function with which ranks asked for different things.
    fn differing(&self, function: u64, requests: &Requests) -> Option<What> {
        if function == VARIABLE {
            return None;
        }
        let of_it = || {
            let calls = self.calls().filter(|(_, calls)| calls.function == function);
            calls.flat_map(|(rank, calls)| calls.recent.iter().map(move |call| (rank, call.seq, call.request)))
        };
        let mut first: FxHashMap<u64, u32> = FxHashMap::default();
        let differs = |(_, seq, request): &(u32, u64, u32)| *first.entry(*seq).or_insert(*request) != *request;
        let differing: BTreeSet<u64> = of_it().filter(differs).map(|(_, seq, _)| seq).collect();
        let seq = *differing.first()?;
        let mut by_request: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (rank, _, request) in of_it().filter(|(_, of, _)| *of == seq) {
            by_request.entry(request).or_default().push(rank);
        }
        let mut sides: Vec<(&Request, Vec<u32>)> =
            by_request.into_iter().map(|(request, ranks)| (requests.get(request), ranks)).collect();
        sides.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
        let has_root = sides.iter().any(|(request, _)| request.root != sides[0].0.root);
        let has_count = sides.iter().skip(1).any(|(request, _)| request.name == sides[0].0.name) && !has_root;
        let sides = sides.into_iter().map(|(request, ranks)| {
            let mut call = request.name.to_string();
            if let Some(root) = request.root.filter(|_| has_root) {
                call.push_str(&format!(" with root {root}"));
            }
            if let Some(count) = request.count.filter(|_| has_count) {
                call.push_str(&format!(" ({count} elements)"));
            }
            Side { call, ranks }
        });
        Some(What::Request { seq, sides: sides.collect(), more: differing.len() - 1 })
    }

    /// The first send of the lowest rank whose receive has another size.
    fn transfer(&self) -> Option<What> {
        let known = |rank: &u32| {
            let member = &self.members[rank];
            member.interface.is_some_and(|version| version >= CALLS) && !member.is_partial
        };
        // A mark that occurs twice between two ranks says nothing.
        let mut received: FxHashMap<_, Option<u64>> = FxHashMap::default();
        for (to, calls) in self.all_calls().filter(|(rank, _)| known(rank)) {
            for Transfer { mark, peer, bytes } in &calls.receives {
                received.entry((*peer, to, *mark)).and_modify(|known| *known = None).or_insert(Some(*bytes));
            }
        }
        let mut differing = Vec::new();
        for (from, calls) in self.all_calls().filter(|(rank, _)| known(rank)) {
            let mut times: FxHashMap<_, u32> = FxHashMap::default();
            calls.sends.iter().for_each(|it| *times.entry((it.peer, it.mark)).or_default() += 1);
            let single = calls.sends.iter().filter(|it| times[&(it.peer, it.mark)] == 1);
            differing.extend(single.filter_map(|Transfer { mark, peer: to, bytes }| {
                let other = received.get(&(from, *to, *mark)).copied()??;
                (other != *bytes).then_some((from, *to, *bytes, other))
            }));
        }
        let &(from, to, sent, received) = differing.first()?;
        let is_exact = names::size(sent) == names::size(received);
        let size = |bytes| if is_exact { format!("{bytes} B") } else { names::size(bytes) };
        let send = Side { call: format!("Send {} → {to}", size(sent)), ranks: vec![from] };
        let receive = Side { call: format!("Recv {} ← {from}", size(received)), ranks: vec![to] };
        Some(What::Transfer { sides: [send, receive], more: differing.len() - 1 })
    }

    /// Two calls, each of which one group of ranks made and the other did not. Ranks that make the
    /// same calls in the same order are merely ahead of each other.
    fn order(&self, requests: &Requests) -> Option<What> {
        let all_seen = self.members.iter().filter(|(_, member)| member.interface.is_some() && !member.is_partial);
        let mut made: BTreeMap<u32, BTreeMap<u64, u64>> = all_seen.map(|(rank, _)| (*rank, BTreeMap::new())).collect();
        for (rank, calls) in self.calls() {
            // NCCL 2.29 and later do not report all of these.
            let is_reported = calls.function != Function::Broadcast as u64 && calls.function != VARIABLE;
            if let Some(made) = made.get_mut(&rank).filter(|_| is_reported) {
                let count = made.entry(calls.function).or_default();
                *count = (*count).max(calls.last + 1);
            }
        }
        let count = |rank: u32, function: u64| made.get(&rank).and_then(|of| of.get(&function)).copied().unwrap_or(0);
        let mut ranks: Vec<u32> = made.keys().copied().collect();
        ranks.sort_by_key(|rank| made[rank].values().sum::<u64>());
        let (one, other) = ranks.windows(2).find_map(|pair| {
            let (less, more) = (pair[0], pair[1]);
            let ahead = |of: u32, than: u32| made[&of].keys().copied().find(|at| count(of, *at) > count(than, *at));
            let (one, other) = (ahead(less, more)?, ahead(more, less)?);
            Some(((one, count(more, one)), (other, count(less, other))))
        })?;
        let has_made = |rank: u32, (function, seq): (u64, u64)| count(rank, function) > seq;
        let side = |made: (u64, u64), not: (u64, u64)| {
            let ranks = ranks.iter().copied().filter(|rank| has_made(*rank, made) && !has_made(*rank, not));
            let mut ranks: Vec<u32> = ranks.collect();
            ranks.sort_unstable();
            Side { call: self.named(made, requests), ranks }
        };
        let mut sides = [side(one, other), side(other, one)];
        sides.sort_by_key(|side| std::cmp::Reverse(side.ranks.len()));
        Some(What::Order(sides))
    }

    /// A call, as in `AllReduce 4 MiB f32, seq 5`.
    fn named(&self, (function, seq): (u64, u64), requests: &Requests) -> String {
        let of_it = self.calls().filter(|(_, calls)| calls.function == function);
        let found = of_it.flat_map(|(_, calls)| &calls.recent).find(|call| call.seq == seq);
        let name = match found {
            Some(call) => requests.get(call.request).name.to_string(),
            None => Function::try_from(function as i32).unwrap_or_default().as_str_name().to_owned(),
        };
        format!("{name}, seq {seq}")
    }

    /// The processes of the ranks on the last side, or of both ranks of a transfer.
    fn details(&self, what: &What, in_job: &BTreeMap<u32, u32>) -> Vec<String> {
        let sides = what.sides();
        let first = if matches!(what, What::Transfer { .. }) { 0 } else { sides.len().saturating_sub(1) };
        let ranks = sides[first..].iter().flat_map(|side| &side.ranks);
        let place =
            |rank: &u32| Some(format!("rank {} is {}", named(*rank, in_job), self.members[rank].place.as_ref()?));
        ranks.filter_map(place).take(LISTED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::survey::{Call, Process, Tuning};
    use super::*;
    use crate::model::time::HostNs;

    const WORLD: u64 = 7;
    const PROCESS: u64 = 1 << 40;

    /// A call of a rank: its function, number and request.
    type Made = (Function, u64, &'static str);

    const BEFORE: [Made; 2] =
        [(Function::AllReduce, 0, "AllReduce 1 MiB f32"), (Function::AllReduce, 1, "AllReduce 1 MiB f32")];

    /// The traces of a job whose rank n makes these calls. Its communicator's ranks are 4 and on of
    /// the job.
    fn survey(ranks: &[&[Made]]) -> Survey {
        let mut survey = Survey::default();
        for (rank, calls) in ranks.iter().enumerate() {
            let process = PROCESS + rank as u64;
            let known = survey.tracks.entry(process).or_default();
            (known.is_process, known.pid) = (true, Some(100 + rank as u64));
            known.name = format!("rank {} · node", rank + 4);
            survey.processes.insert(process, Process::default());
            let track = survey.tracks.entry(rank as u64).or_default();
            track.name = format!("dp · rank {rank} of {} · handed over", ranks.len());
            (track.parent, track.communicators, track.interface) = (Some(process), vec![WORLD], Some(CALLS));
            for (function, seq, name) in BEFORE.iter().chain(*calls) {
                let (name, root) =
                    name.split_once(" root ").map_or((*name, None), |(name, root)| (name, root.parse().ok()));
                let request = Request { name: name.into(), count: Some(name.len() as u64), root };
                let call = Call { seq: *seq, request: survey.requests.put(request), tuning: Tuning::default() };
                track.calls.take(*function as u64, call);
            }
        }
        survey
    }

    fn said(ranks: &[&[Made]]) -> Vec<String> {
        find(&survey(ranks)).iter().map(ToString::to_string).collect()
    }

    const SMALL: Made = (Function::AllReduce, 2, "AllReduce 4 MiB f32");
    const LARGE: Made = (Function::AllReduce, 2, "AllReduce 8 MiB f32");
    const GATHER: Made = (Function::AllGather, 0, "AllGather 1 MiB");

    #[test]
    fn another_size_on_a_rank_is_named() {
        let found = find(&survey(&[&[SMALL], &[SMALL], &[LARGE]]));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "seq 2 on dp is AllReduce 4 MiB f32 on ranks 0 (rank 4 of the job), 1 (rank 5 of the job), but AllReduce 8 \
             MiB f32 on rank 2 (rank 6 of the job)"
        );
        assert_eq!(found[0].details, ["rank 2 (rank 6 of the job) is pid 102 on node"]);
    }

    #[test]
    fn another_root_is_named() {
        let call = |root| (Function::Reduce, 0, root);
        let found = said(&[&[call("Reduce 4 MiB f32 root 0")], &[call("Reduce 4 MiB f32 root 1")]]);
        assert!(found[0].contains("Reduce 4 MiB f32 with root 0 on rank 0"), "{found:?}");
        assert!(found[0].contains("but Reduce 4 MiB f32 with root 1 on rank 1"), "{found:?}");
    }

    #[test]
    fn another_function_in_its_place_is_named() {
        let next = (Function::AllReduce, 3, "AllReduce 4 MiB f32");
        let found = said(&[&[GATHER, SMALL], &[GATHER, SMALL, next], &[SMALL, next]]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].ends_with(
                "called AllGather 1 MiB, seq 0, but rank 2 (rank 6 of the job) did not; rank 2 (rank 6 of the job) \
                 called AllReduce 4 MiB f32, seq 3, but rank 0 (rank 4 of the job) did not"
            ) && found[0].starts_with("on dp, rank 0 (rank 4 of the job) called"),
            "{found:?}"
        );
    }

    #[test]
    fn a_rank_that_is_ahead_makes_the_same_calls() {
        let calls = [
            SMALL,
            GATHER,
            (Function::AllReduce, 3, "AllReduce 8 MiB f32"),
            (Function::AllGather, 1, "AllGather 2 MiB"),
        ];
        for behind in 0..=calls.len() {
            assert_eq!(said(&[&calls, &calls[..behind], &calls[..2]]), [""; 0], "{behind}");
        }
    }

    #[test]
    fn a_rank_whose_calls_are_not_all_in_its_trace_is_not_said_to_call_less() {
        let faults: [fn(&mut Survey); 3] = [
            |survey| survey.processes.entry(PROCESS).or_default().is_lossy = true,
            |survey| survey.processes.entry(PROCESS).or_default().is_partial = true,
            |survey| survey.tracks.entry(1).or_default().interface = None,
        ];
        for fault in faults {
            let mut survey = survey(&[&[GATHER], &[SMALL]]);
            assert_eq!(find(&survey).len(), 1);
            fault(&mut survey);
            assert_eq!(find(&survey), []);
        }
    }

    #[test]
    fn a_rank_that_numbers_two_calls_alike_shows_nothing() {
        assert_eq!(said(&[&[SMALL, LARGE], &[SMALL]]), [""; 0]);
    }

    #[test]
    fn only_what_nccl_reports_is_compared() {
        let mut survey = survey(&[&[SMALL], &[LARGE]]);
        survey.tracks.values_mut().for_each(|track| track.interface = None);
        assert_eq!(find(&survey), []);
        let variable = |name| (Function::AllGatherV, 0, name);
        assert_eq!(said(&[&[variable("AllGatherV 1 MiB i8")], &[variable("AllGatherV 2 MiB i8")]]), [""; 0]);
    }

    #[test]
    fn a_send_and_its_receive_of_another_size_are_named() {
        let mut survey = survey(&[&[], &[], &[]]);
        let mut calls = |rank: u64| std::mem::take(&mut survey.tracks.entry(rank).or_default().calls);
        let (mut zero, mut one, mut two) = (calls(0), calls(1), calls(2));
        let transfer = |mark, peer, bytes| Transfer { mark, peer, bytes };
        // Rank 2 has received the first only, and the marks of some are those of others.
        for (mark, bytes) in [(1, 8 << 20), (2, 4 << 20), (2, 4 << 20), (3, 64)] {
            one.send(transfer(mark, 2, bytes));
            zero.receive(transfer(mark, 2, 7));
        }
        two.receive(transfer(1, 1, 8 << 20));
        two.receive(transfer(2, 1, 1 << 20));
        let found = |zero: &Calls, one: &Calls, two: &Calls, survey: &mut Survey| {
            for (rank, calls) in (0..).zip([zero, one, two]) {
                survey.tracks.entry(rank).or_default().calls = calls.clone();
            }
            find(survey)
        };
        assert_eq!(found(&zero, &one, &two, &mut survey), []);
        one.send(transfer(4, 2, 2 << 20));
        two.receive(transfer(4, 1, 1 << 20));
        let all = found(&zero, &one, &two, &mut survey);
        assert_eq!(all.len(), 1);
        let text = "on dp, rank 1 (rank 5 of the job) called Send 2 MiB → 2, but rank 2 (rank 6 of the job) called \
                    Recv 1 MiB ← 1";
        assert_eq!(all[0].to_string(), text);
        assert_eq!(all[0].what.kind(), "a send and its receive have different sizes");
        let places = ["rank 1 (rank 5 of the job) is pid 101 on node", "rank 2 (rank 6 of the job) is pid 102 on node"];
        assert_eq!(all[0].details, places);
        // What is written alike is told to the byte. That of a lower rank comes first.
        two.receive(transfer(9, 0, 1 << 30));
        zero.send(transfer(9, 2, (1 << 30) + 4));
        let all = found(&zero, &one, &two, &mut survey);
        assert!(all[0].to_string().contains("called Send 1073741828 B → 2, but"), "{}", all[0]);
        assert!(
            all[0].to_string().ends_with("called Recv 1073741824 B ← 0; 1 other transfer differs, too"),
            "{}",
            all[0]
        );
    }

    #[test]
    fn all_later_calls_that_differ_are_counted() {
        let other = |seq| (Function::AllReduce, seq, "AllReduce 8 MiB f32");
        let same = |seq| (Function::AllReduce, seq, "AllReduce 4 MiB f32");
        let found = said(&[&[same(2), same(3), same(4)], &[other(2), same(3), other(4)]]);
        assert!(found[0].ends_with("; 1 call after it differs, too"), "{found:?}");
    }

    #[test]
    fn of_many_different_calls_the_largest_groups_and_the_smallest_are_named() {
        let side = |rank: u32| Side { call: format!("Broadcast {rank} B"), ranks: vec![rank] };
        let mut mismatch = Mismatch {
            comm: "dp".to_owned(),
            hash: WORLD,
            in_job: BTreeMap::new(),
            what: What::Request { seq: 5, sides: (0..9).map(side).collect(), more: 0 },
            details: Vec::new(),
            is_again: true,
        };
        let text = "in an earlier attempt, seq 5 on dp is Broadcast 0 B on rank 0, but Broadcast 1 B on rank 1, but Broadcast \
                    2 B on rank 2, but Broadcast 8 B on rank 8, and 5 more than these";
        assert_eq!(mismatch.to_string(), text);
        mismatch.what = What::Request { seq: 5, sides: (0..4).map(side).collect(), more: 0 };
        assert!(mismatch.to_string().ends_with("but Broadcast 3 B on rank 3"), "{mismatch}");
    }

    #[test]
    fn what_ranks_that_were_started_again_did_not_agree_on_comes_last() {
        let all = |seq| [(Function::AllReduce, seq, "AllReduce 1 MiB f32")];
        let other = [(Function::AllReduce, 2, "AllReduce 2 MiB f32")];
        let mut survey = survey(&[&all(2), &other]);
        assert!(!find(&survey)[0].is_again);
        // The same ranks on the same host, later, in another communicator.
        for rank in 0..2 {
            let (first, process) = (PROCESS + rank, PROCESS + 10 + rank);
            let name = survey.tracks[&first].name.clone();
            let known = survey.tracks.entry(process).or_default();
            (known.is_process, known.name, known.pid) = (true, name, Some(200 + rank));
            let times = |first, last| Process { first: HostNs(first), last: HostNs(last), ..Process::default() };
            survey.processes.insert(first, times(0, 10));
            survey.processes.insert(process, times(20, 30));
            let track = survey.tracks.entry(10 + rank).or_default();
            track.name = format!("dp · rank {rank} of 2 · handed over");
            (track.parent, track.communicators, track.interface) = (Some(process), vec![WORLD + 1], Some(CALLS));
        }
        assert!(find(&survey)[0].is_again);
    }
}
