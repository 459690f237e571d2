//! Makes the ranks mean the same by a step.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::super::graph::Item;
use super::super::job::RankFacts;
use super::Loading;
use crate::cli::compare::steps::{Repeat, Source};

/// Of how many things that steps may begin with it is tried whether the ranks agree on them.
const CANDIDATES: usize = 8;
/// Steps of two ranks are as long if they differ by at most this part.
const ABOUT: i64 = 4;

impl Loading {
    /// Makes the ranks mean the same by a step: what most of them begin theirs with, if that gives a
    /// rank steps about as long as theirs. Ranks with other work, such as those of another stage of a
    /// pipeline, may run it more often; their steps follow from the operations that they share with
    /// the others. A rank that shares none has no steps.
    pub(super) fn agree(&mut self) {
        let mut votes: BTreeMap<&Repeat, usize> = BTreeMap::new();
        for source in &self.sources {
            match source {
                Some(Source::Repeats(repeat)) => *votes.entry(repeat).or_default() += 1,
                // The program's own steps are the same everywhere.
                Some(Source::Ranges) => return,
                None => {}
            }
        }
        let mut candidates: Vec<(usize, Repeat)> =
            votes.into_iter().map(|(repeat, votes)| (votes, repeat.clone())).collect();
        candidates.sort_unstable_by(|one, other| other.cmp(one));
        candidates.truncate(CANDIDATES);
        let of = |(_, repeat): &(usize, Repeat)| {
            let edges = self.edges_by(repeat);
            let lengths: Vec<Option<i64>> =
                edges.iter().zip(&self.items).map(|(of, items)| middle(items, of)).collect();
            let (agreed, usual) = usual(&lengths);
            let agrees = |length: &Option<i64>| length.is_some_and(|it| is_about(it, usual));
            (agreed, lengths.iter().map(agrees).collect::<Vec<_>>(), edges, repeat.clone())
        };
        // Of equals, the first one, which has most votes.
        let agreement = candidates.iter().map(of).rev().max_by_key(|it| it.0);
        let Some((_, mut has_steps, edges, common)) = agreement.filter(|it| it.0 > 0) else { return };
        let agreed = self.ranks.iter_mut().zip(&mut self.sources).zip(edges).zip(&has_steps).filter(|it| *it.1);
        for (((facts, source), edges), _) in agreed {
            if !matches!(source, Some(Source::Repeats(own)) if *own == common) {
                facts.steps = edges.len() - 1;
            }
            (facts.edges, *source) = (edges, Some(Source::Repeats(common.clone())));
        }
        while self.follow(&mut has_steps) {}
        for (rank, has_steps) in has_steps.into_iter().enumerate() {
            self.sources[rank] = has_steps.then(|| Source::Repeats(common.clone()));
            if !has_steps {
                (self.ranks[rank].edges, self.ranks[rank].steps) = (Vec::new(), 0);
            }
        }
    }

    /// Where the steps of each rank begin if they begin with this.
    fn edges_by(&self, repeat: &Repeat) -> Vec<Vec<usize>> {
        let is_it: Vec<bool> = self.kinds.iter().map(|kind| kind.name == repeat.name).collect();
        let of = |((items, facts), source): ((&Vec<Item>, &RankFacts), &Option<Source>)| {
            if matches!(source, Some(Source::Repeats(own)) if own == repeat) {
                return facts.edges.clone();
            }
            let places = items.iter().enumerate().filter(|(_, item)| is_it[item.kind as usize]).map(|it| it.0);
            places.step_by(repeat.times).collect()
        };
        self.items.iter().zip(&self.ranks).zip(&self.sources).map(of).collect()
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
        for (rank, mut steps) in shared {
            steps.sort_unstable();
            let mut edges: Vec<usize> = Vec::new();
            for (item, step) in steps {
                // A step without a shared operation is empty.
                edges.resize(edges.len().max(step + 1), item as usize);
            }
            if edges.len() > 1 {
                let facts = &mut self.ranks[rank as usize];
                (facts.steps, facts.edges) = (edges.len() - 1, edges);
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
