//! Makes the ranks mean the same by a step.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::super::graph::Item;
use super::super::job::RankFacts;
use super::Loading;
use crate::cli::compare::steps::{Repeat, Source};
use crate::model::time::UtcNs;

/// Of how many things that steps may begin with it is tried whether the ranks agree on them.
const CANDIDATES: usize = 8;
/// Steps of two ranks are as long if they differ by at most this part.
const ABOUT: i64 = 4;
/// With fewer steps in common than this, others are looked for.
const FEW: i64 = 10;

/// What the steps of a rank begin with: these items, of which each step has so many. The first step
/// begins with this one of them.
#[derive(Debug)]
struct Begins {
    places: Vec<usize>,
    first: usize,
    times: usize,
}

impl Begins {
    fn edges(&self) -> Vec<usize> {
        self.places.iter().skip(self.first).step_by(self.times).copied().collect()
    }
}

impl Loading {
    /// Makes the ranks mean the same by a step: what most of them begin theirs with, if that gives
    /// a rank steps about as long as theirs. Ranks with other work, such as those of another stage
    /// of a pipeline, may run it more often; their steps follow from the operations that they share
    /// with the others. A rank that shares none has no steps.
    ///
    /// Returns until when all of them were recorded, if they have too few of these steps in common
    /// because some recordings went on for longer.
    pub(super) fn agree(&mut self) -> Option<UtcNs> {
        let begins = match self.sources.iter().any(|source| matches!(source, Some(Source::Ranges))) {
            // The program's own steps are the same everywhere.
            true => self.ranks.iter().map(|rank| Begins { places: rank.edges.clone(), first: 0, times: 1 }).collect(),
            false => self.vote()?,
        };
        let mut has_steps: Vec<bool> = begins.iter().map(|it| it.places.len() > it.times).collect();
        let until = self.align(&begins, &has_steps);
        if self.sources.iter().any(|source| matches!(source, Some(Source::Ranges))) {
            return until;
        }
        while self.follow(&mut has_steps) {}
        let common = self.sources.iter().zip(&has_steps).find_map(|(source, has)| source.clone().filter(|_| *has));
        for (rank, has_steps) in has_steps.into_iter().enumerate() {
            self.sources[rank] = common.clone().filter(|_| has_steps);
            if !has_steps {
                (self.ranks[rank].edges, self.ranks[rank].steps) = (Vec::new(), 0);
            }
        }
        until
    }

    /// What most ranks begin their steps with, by rank; empty for those that do not agree. `None`
    /// if none has steps.
    fn vote(&mut self) -> Option<Vec<Begins>> {
        let mut votes: BTreeMap<&Repeat, usize> = BTreeMap::new();
        for source in self.sources.iter().flatten() {
            if let Source::Repeats(repeat) = source {
                *votes.entry(repeat).or_default() += 1;
            }
        }
        let mut candidates: Vec<(usize, Repeat)> =
            votes.into_iter().map(|(repeat, votes)| (votes, repeat.clone())).collect();
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates.truncate(CANDIDATES);
        let of = |(_, repeat): &(usize, Repeat)| {
            let begins = self.begins_by(repeat);
            let lengths: Vec<Option<i64>> =
                begins.iter().zip(&self.items).map(|(of, items)| middle(items, &of.edges())).collect();
            let (agreed, usual) = usual(&lengths);
            let agrees = |length: &Option<i64>| length.is_some_and(|it| is_about(it, usual));
            (agreed, lengths.iter().map(agrees).collect::<Vec<_>>(), begins, repeat.clone())
        };
        // Of equals, the first one, which has most votes.
        let agreement = candidates.iter().map(of).rev().max_by_key(|it| it.0);
        let (_, agreed, mut begins, common) = agreement.filter(|it| it.0 > 0)?;
        for (rank, begins) in begins.iter_mut().enumerate() {
            if !agreed[rank] {
                begins.places.clear();
                continue;
            }
            let facts = &mut self.ranks[rank];
            if !matches!(&self.sources[rank], Some(Source::Repeats(own)) if *own == common) {
                // How many there are is known when they are counted like the others.
                (facts.first, facts.steps) = (0, 0);
            }
            self.sources[rank] = Some(Source::Repeats(common.clone()));
        }
        Some(begins)
    }

    /// Where each rank's steps begin if they begin with this.
    fn begins_by(&self, repeat: &Repeat) -> Vec<Begins> {
        let times = repeat.times;
        let is_it: Vec<bool> = self.kinds.iter().map(|kind| kind.name == repeat.name).collect();
        let of = |((items, facts), source): ((&Vec<Item>, &RankFacts), &Option<Source>)| {
            let is_own = matches!(source, Some(Source::Repeats(own)) if own == repeat);
            if is_own && times == 1 {
                return Begins { places: facts.edges.clone(), first: 0, times };
            }
            let places = items.iter().enumerate().filter(|(_, item)| is_it[item.kind as usize]).map(|it| it.0);
            let places: Vec<usize> = places.collect();
            let own = facts.edges.first().filter(|_| is_own).and_then(|edge| places.binary_search(edge).ok());
            Begins { places, first: own.unwrap_or(0), times }
        };
        self.items.iter().zip(&self.ranks).zip(&self.sources).map(of).collect()
    }

    /// Makes the first step of all ranks the same one: recordings may begin at different times, and
    /// of long ones only the end is looked at. The operations that ranks share tell which steps are
    /// the same; without any, their numbers do. Returns what [`agree`](Loading::agree) does.
    fn align(&mut self, begins: &[Begins], has_steps: &[bool]) -> Option<UtcNs> {
        let with_steps = || (0..begins.len()).filter(|rank| has_steps[*rank]);
        // The one that has most of them counts them.
        let counts = with_steps().rev().max_by_key(|rank| self.ranks[*rank].steps)?;
        let (times, counted) = (begins[counts].times as i64, self.ranks[counts].first);
        let told = self.shifts(begins, has_steps, counts);
        // Where the first step begins of the one that counts.
        let by_number =
            |rank: usize| (counted as i64 - self.ranks[rank].first as i64) * times + begins[rank].first as i64;
        let zeros = told.iter().enumerate().map(|(rank, told)| match told {
            Some(shift) => begins[counts].first as i64 + shift,
            None => by_number(rank),
        });
        let zeros: Vec<i64> = zeros.collect();
        let zero = |rank: usize| zeros[rank];
        let first = |rank: usize| (-zero(rank)).div_euclid(times) + i64::from((-zero(rank)).rem_euclid(times) > 0);
        let last = |rank: usize| (begins[rank].places.len() as i64 - 1 - zero(rank)).div_euclid(times);
        let (from, to) = (with_steps().map(first).max()?, with_steps().map(last).min()?);
        let most = with_steps().map(|rank| last(rank) - first(rank)).max()?;
        let has_more = self.is_of_ends || with_steps().any(|rank| self.ranks[rank].first > 0);
        let number = counted + from.max(0) as usize;
        for rank in with_steps() {
            let facts = &mut self.ranks[rank];
            facts.edges = begins[rank].edges();
            if from < to {
                let edges = (from..=to).map(|step| begins[rank].places[(zero(rank) + times * step) as usize]);
                (facts.edges, facts.first) = (edges.collect(), number);
            }
            facts.steps = facts.steps.max(facts.first + facts.edges.len() - 1);
        }
        let lasts = || with_steps().map(|rank| self.ranks[rank].last);
        let until = lasts().min()?.filter(|until| lasts().max() > Some(Some(*until)));
        until.filter(|_| has_more && to - from < FEW.min(most))
    }

    /// By rank, how many of what steps begin with came before what it shares with the one that
    /// counts, more than there. `None` if they share nothing, or their operations disagree about
    /// it.
    fn shifts(&mut self, begins: &[Begins], has_steps: &[bool], counts: usize) -> Vec<Option<i64>> {
        let mut shifts: Vec<Option<i64>> = vec![None; begins.len()];
        shifts[counts] = Some(0);
        let before =
            |rank: usize, item: u32| begins[rank].places.partition_point(|place| *place <= item as usize) as i64;
        self.joined.sort_unstable();
        let mut has_new = true;
        while std::mem::take(&mut has_new) {
            let mut found: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
            for of_operation in self.joined.chunk_by(|one, other| one.0 == other.0) {
                let of_operation = || of_operation.iter().map(|(_, rank, item)| (*rank as usize, *item));
                let known = of_operation().find_map(|(rank, item)| Some(before(rank, item) - shifts[rank]?));
                let Some(known) = known else { continue };
                for (rank, item) in of_operation().filter(|it| has_steps[it.0] && shifts[it.0].is_none()) {
                    found.entry(rank).or_default().push(before(rank, item) - known);
                }
            }
            for (rank, mut found) in found {
                found.sort_unstable();
                let most = found.chunk_by(|one, other| one == other).max_by_key(|alike| alike.len());
                if let Some(alike) = most.filter(|alike| 2 * alike.len() > found.len()) {
                    shifts[rank] = Some(alike[0]);
                    has_new = true;
                }
            }
        }
        shifts
    }

    /// Gives ranks without steps those of the ranks with which they share operations. A step begins
    /// with the first operation that is in it elsewhere.
    fn follow(&mut self, has_steps: &mut [bool]) -> bool {
        let mut step_of: FxHashMap<u64, usize> = FxHashMap::default();
        for (operation, rank, item) in self.joined.iter().filter(|it| has_steps[it.1 as usize]) {
            let edges = &self.ranks[*rank as usize].edges;
            if let Some(step) = edges.partition_point(|edge| *edge <= *item as usize).checked_sub(1) {
                step_of.entry(*operation).or_insert(step);
            }
        }
        let mut shared: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
        for (operation, rank, item) in self.joined.iter().filter(|it| !has_steps[it.1 as usize]) {
            if let Some(step) = step_of.get(operation) {
                shared.entry(*rank).or_default().push((*item, *step));
            }
        }
        let mut has_new = false;
        let with_steps = self.ranks.iter().zip(&*has_steps).find(|it| *it.1);
        let first = with_steps.map_or(0, |it| it.0.first);
        for (rank, mut steps) in shared {
            steps.sort_unstable();
            let mut edges: Vec<usize> = Vec::new();
            for (item, step) in steps {
                // A step without a shared operation is empty.
                edges.resize(edges.len().max(step + 1), item as usize);
            }
            if edges.len() > 1 {
                let facts = &mut self.ranks[rank as usize];
                (facts.first, facts.steps, facts.edges) = (first, first + edges.len() - 1, edges);
                (has_steps[rank as usize], has_new) = (true, true);
            }
        }
        has_new
    }
}

/// How long steps are in the middle, ns; `None` if there are none.
fn middle(items: &[Item], edges: &[usize]) -> Option<i64> {
    let mut lengths: Vec<i64> = edges.windows(2).map(|edge| items[edge[1]].start - items[edge[0]].start).collect();
    let middle = lengths.len() / 2;
    (!lengths.is_empty()).then(|| *lengths.select_nth_unstable(middle).1)
}

/// How many of these lengths are about the same, at most; and the one in their middle.
fn usual(lengths: &[Option<i64>]) -> (usize, i64) {
    let mut lengths: Vec<i64> = lengths.iter().copied().flatten().collect();
    lengths.sort_unstable();
    let of = |(first, length): (usize, &i64)| {
        let after = lengths.partition_point(|other| is_about(*other, *length) || other < length);
        (after - first, lengths[(first + after) / 2])
    };
    lengths.iter().enumerate().map(of).max_by_key(|it| it.0).unwrap_or_default()
}

fn is_about(one: i64, other: i64) -> bool {
    (one - other).abs() <= other / ABOUT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::compare::ranks::{Class, Kind};

    /// Ranks with three steps of 100 ns, by the kinds that run in each, and by what each rank's own
    /// steps begin with.
    fn loading(ranks: &[(&[u32], u32)]) -> Loading {
        let kind = |name: &str| Kind { class: Class::Kernel, name: name.to_owned() };
        let mut loading = Loading { kinds: ["forward", "matmul", "update"].map(kind).into(), ..Loading::default() };
        for (of_step, begin) in ranks {
            let start = |at: usize| (100 * at / of_step.len()) as i64;
            let kinds = of_step.repeat(3).into_iter().enumerate();
            let items: Vec<Item> = kinds.map(|(at, kind)| Item { kind, start: start(at), ..Item::default() }).collect();
            let own = items.iter().enumerate().filter(|(_, it)| it.kind == *begin);
            let edges: Vec<usize> = own.map(|it| it.0).collect();
            loading.ranks.push(RankFacts { steps: edges.len() - 1, edges, ..RankFacts::default() });
            loading.items.push(items);
            let name = loading.kinds[*begin as usize].name.clone();
            loading.sources.push(Some(Source::Repeats(Repeat::once(&name))));
        }
        loading
    }

    fn edges(loading: &Loading) -> Vec<&[usize]> {
        loading.ranks.iter().map(|rank| rank.edges.as_slice()).collect()
    }

    #[test]
    fn all_ranks_begin_their_steps_with_what_most_of_them_do() {
        // The last rank multiplies four times in each step, and each of that looked like a step.
        let mut of = loading(&[(&[0, 1], 0), (&[0, 1], 0), (&[0, 1, 1, 1, 1], 1)]);
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[0, 5, 10]]);
        assert_eq!(of.ranks[2].steps, 2);
        assert_eq!(of.sources[2], Some(Source::Repeats(Repeat::once("forward"))));

        // The program's own steps are the same everywhere.
        of.sources[0] = Some(Source::Ranges);
        of.sources[2] = Some(Source::Repeats(Repeat::once("matmul")));
        of.agree();
        assert_eq!(of.sources[2], Some(Source::Repeats(Repeat::once("matmul"))));
    }

    /// Ranks that run a `forward` and a `matmul` for each number in turn, from one number to
    /// another, and share the operation of this number at the end of it.
    fn numbered(ranks: &[(u64, u64)], times: usize) -> Loading {
        let kind = |name: &str| Kind { class: Class::Kernel, name: name.to_owned() };
        let mut loading = Loading { kinds: ["forward", "matmul"].map(kind).into(), ..Loading::default() };
        for (rank, (from, to)) in ranks.iter().enumerate() {
            let item = |at: u64| Item { kind: (at % 2) as u32, start: 50 * at as i64, ..Item::default() };
            loading.items.push((2 * from..2 * to).map(item).collect());
            loading.joined.extend((*from..*to).map(|number| (number, rank as u32, (2 * (number - from) + 1) as u32)));
            let edges: Vec<usize> = (0..(to - from) as usize).step_by(times).map(|number| 2 * number).collect();
            loading.ranks.push(RankFacts { steps: edges.len() - 1, edges, ..RankFacts::default() });
            loading.sources.push(Some(Source::Repeats(Repeat { name: "forward".into(), times })));
        }
        loading
    }

    /// The numbers that each rank's first and last step begin with, and the number of the first
    /// step.
    fn seen(loading: &Loading) -> Vec<(i64, i64, usize)> {
        let of = |(facts, items): (&RankFacts, &Vec<Item>)| {
            let begin = |edge: Option<&usize>| items[*edge.unwrap()].start / 100;
            (begin(facts.edges.first()), begin(facts.edges.last()), facts.first)
        };
        loading.ranks.iter().zip(&loading.items).map(of).collect()
    }

    #[test]
    fn recordings_that_begin_and_end_at_different_times_are_compared_where_they_overlap() {
        let mut of = numbered(&[(0, 40), (7, 47), (2, 30)], 1);
        assert_eq!(of.agree(), None);
        assert_eq!(seen(&of), [(7, 29, 7); 3]);

        // Where a step has several, it begins with the same one on all ranks.
        let mut of = numbered(&[(0, 40), (7, 47), (2, 30)], 4);
        of.agree();
        assert_eq!(seen(&of), [(8, 28, 2); 3]);

        // Without shared operations, the first one is the same.
        of = numbered(&[(0, 40), (7, 47)], 1);
        of.joined.clear();
        of.agree();
        assert_eq!(seen(&of), [(0, 39, 0), (7, 46, 0)]);
        // And if most do not agree.
        of = numbered(&[(0, 40), (7, 47)], 1);
        of.joined.iter_mut().filter(|it| it.1 == 1).for_each(|it| it.0 += it.0 % 3);
        of.agree();
        assert_eq!(seen(&of), [(0, 39, 0), (7, 46, 0)]);
    }

    #[test]
    fn of_recordings_whose_last_steps_differ_it_is_said_until_when_all_were_recorded() {
        // Of both, the last 30 steps are kept.
        let of = |last: [Option<i64>; 2], numbers: [(u64, u64); 2]| {
            let mut loading = numbered(&numbers, 1);
            for ((facts, last), (from, to)) in loading.ranks.iter_mut().zip(last).zip(numbers) {
                (facts.first, facts.steps, facts.last) = (from as usize, to as usize - 1, last.map(UtcNs));
            }
            (loading.agree(), seen(&loading))
        };
        let (until, seen) = of([Some(4_000), Some(2_000)], [(970, 1_000), (470, 500)]);
        assert_eq!((until, seen), (Some(UtcNs(2_000)), vec![(970, 999, 970), (470, 499, 470)]));
        let (until, seen) = of([Some(4_000), Some(3_995)], [(970, 1_000), (965, 995)]);
        assert_eq!((until, seen), (None, vec![(970, 994, 970); 2]));
        assert_eq!(of([Some(4_000), None], [(970, 1_000), (470, 500)]).0, None, "its clock is unknown");
        assert_eq!(of([Some(4_000), Some(2_000)], [(0, 30), (0, 5)]).0, None, "there are no others");
    }

    #[test]
    fn a_rank_with_other_work_has_the_steps_of_those_with_which_it_meets() {
        // A pipeline: the last rank, with more layers, updates four times in each step, and passes
        // its second kernel's result on.
        let mut of = loading(&[(&[2, 0], 2), (&[2, 0], 2), (&[2, 2, 2, 2, 0, 1], 1)]);
        for step in 0..3 {
            of.joined.extend([(step, 1, 2 * step as u32 + 1), (step, 2, 6 * step as u32 + 4)]);
        }
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[4, 10, 16]]);
        assert!(of.sources.iter().all(|it| *it == Some(Source::Repeats(Repeat::once("update")))));

        // What it shares with nobody cannot be told.
        let mut of = loading(&[(&[2, 0], 2), (&[2, 0], 2), (&[2, 2, 2, 2, 0, 1], 2)]);
        of.agree();
        assert_eq!(edges(&of), [&[0, 2, 4][..], &[0, 2, 4], &[]]);
        assert_eq!((of.ranks[2].steps, &of.sources[2]), (0, &None));
    }
}
