//! How late each rank came to the operations in which ranks meet, over time (pure).
//!
//! Only durations on one rank are used, so no clocks are compared: the first rank to come to an
//! operation has the longest kernel. For operations that not all members' files show, and for sends
//! that wait for nobody, it is not known who came when. They are left out and counted.

use serde::Serialize;

use super::job::Job;
use super::shares;

/// The most columns of the map.
const COLUMNS: usize = 100;

/// How late ranks came.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in crate::cli) struct Lateness {
    /// The name of each rank.
    pub(in crate::cli) ranks: Vec<String>,
    /// Columns are steps, or else parts of the time.
    pub(in crate::cli) is_by_step: bool,
    /// Where each column begins, and the last one ends: numbers of steps, without those left out as
    /// warm-up; or ns after the begin of the job.
    pub(in crate::cli) edges: Vec<u64>,
    /// What is known, in order of rank and column.
    pub(in crate::cli) cells: Vec<Cell>,
    /// How many operations count, and for how many it is not known who came when.
    pub(in crate::cli) known: u64,
    pub(in crate::cli) unknown: u64,
}

/// How late a rank came in a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Cell {
    pub(in crate::cli) rank: usize,
    pub(in crate::cli) column: usize,
    /// How many operations it came to.
    pub(in crate::cli) operations: u64,
    /// After the first rank: on average, and at most, ns.
    pub(in crate::cli) mean_ns: u64,
    pub(in crate::cli) most_ns: u64,
    /// How many it came to last, so that others waited.
    pub(in crate::cli) last: u64,
}

impl Lateness {
    /// `step` is what a step takes on average, ns.
    pub(super) fn of(job: &Job, step: f64) -> Lateness {
        let axis = Axis::of(job);
        let columns = axis.edges.len().saturating_sub(1);
        // By their numbers, whatever the files are called.
        let mut order: Vec<usize> = (0..job.ranks.len()).collect();
        order.sort_by_key(|rank| (job.ranks[*rank].number.is_none(), job.ranks[*rank].number));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, rank)| places[*rank] = place);
        let mut all = Lateness {
            ranks: order.iter().map(|rank| job.ranks[*rank].label.clone()).collect(),
            is_by_step: axis.is_by_step,
            edges: axis.edges.clone(),
            ..Lateness::default()
        };
        let mut sums = vec![Cell::default(); job.ranks.len() * columns];
        let mut nanoseconds = vec![0_u128; sums.len()];
        for members in job.graph.meetings() {
            let Some(column) = axis.column(job, members[0]) else { continue };
            let kind = job.graph.items[members[0] as usize].kind;
            if job.sizes.get(&kind).copied().flatten() != Some(members.len()) {
                all.unknown += 1;
                continue;
            }
            all.known += 1;
            let is_free = |item: u32| job.graph.through(item as usize).is_some();
            let first = members.iter().map(|item| job.graph.waited(*item as usize)).max().unwrap_or(0);
            let is_sure = !members.iter().any(|item| is_free(*item));
            let last = shares::last_of(job, members, step).filter(|_| is_sure);
            for item in members.iter().filter(|item| !is_free(**item)) {
                let at = places[job.graph.rank_of(*item)] * columns + column;
                let late = u64::try_from(first - job.graph.waited(*item as usize)).unwrap_or(0);
                let cell = &mut sums[at];
                cell.operations += 1;
                cell.most_ns = cell.most_ns.max(late);
                cell.last += u64::from(last == Some(*item));
                nanoseconds[at] += u128::from(late);
            }
        }
        for (at, (cell, ns)) in sums.into_iter().zip(nanoseconds).enumerate().filter(|it| it.1.0.operations > 0) {
            let mean_ns = (ns / u128::from(cell.operations)) as u64;
            all.cells.push(Cell { rank: at / columns, column: at % columns, mean_ns, ..cell });
        }
        all
    }
}

/// What the columns are.
struct Axis {
    is_by_step: bool,
    edges: Vec<u64>,
    /// Where time begins, on the common clock, ns.
    begin: i64,
}

impl Axis {
    fn of(job: &Job) -> Axis {
        if !job.steps.is_empty() {
            let each = job.steps.len().div_ceil(COLUMNS);
            let edges = job.steps.clone().step_by(each).chain([job.steps.end]);
            let edges = edges.map(|step| (job.numbering.first + step) as u64).collect();
            return Axis { is_by_step: true, edges, begin: 0 };
        }
        let times = || job.graph.meetings().flatten().map(|item| job.graph.time(*item));
        let (Some(begin), Some(end)) = (times().min(), times().max()) else {
            return Axis { is_by_step: false, edges: Vec::new(), begin: 0 };
        };
        let each = ((end - begin) as u64 / COLUMNS as u64).max(1);
        let columns = ((end - begin) as u64 / each + 1).min(COLUMNS as u64);
        Axis { is_by_step: false, edges: (0..=columns).map(|column| column * each).collect(), begin }
    }

    /// The column of an item.
    fn column(&self, job: &Job, item: u32) -> Option<usize> {
        let at = match self.is_by_step {
            true => job
                .step_of(item as usize)
                .filter(|step| *step < job.steps.end)
                .map(|step| (job.numbering.first + step) as u64)?,
            false => (job.graph.time(item) - self.begin) as u64,
        };
        let last = self.edges.len().checked_sub(2)?;
        Some(self.edges.partition_point(|edge| *edge <= at).checked_sub(1)?.min(last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Graph, Item};
    use super::super::job::RankFacts;
    use super::*;

    fn rank(number: i32, steps: usize) -> RankFacts {
        RankFacts {
            label: format!("rank {number}"),
            number: Some(number),
            edges: (0..=steps).collect(),
            steps,
            ..RankFacts::default()
        }
    }

    fn collective(start: i64, end: i64) -> Item {
        Item { start: start * 1_000, end: end * 1_000, is_communication: true, ..Item::default() }
    }

    /// Three ranks with clocks of their own meet in two steps; the last one ends the second step.
    fn job(size: usize) -> Job {
        let ranks = [[(0, 100), (200, 300)], [(7_040, 7_100), (7_200, 7_300)], [(90, 100), (210, 300)]];
        let items: Vec<Vec<Item>> =
            ranks.iter().map(|of| of.iter().map(|(start, end)| collective(*start, *end)).collect()).collect();
        let joined = (0..3).flat_map(|rank| [(1, rank, 0), (2, rank, 1)]).collect();
        Job {
            graph: Graph::new(items, joined, vec![0, 1, 2]),
            ranks: (0..3).map(|number| rank(number, 2)).collect(),
            sizes: [(0, Some(size))].into_iter().collect(),
            steps: 0..2,
            ..Job::default()
        }
    }

    #[test]
    fn ranks_are_late_by_what_the_first_one_waited_longer() {
        let found = Lateness::of(&job(3), 200_000.0);
        assert_eq!((found.known, found.unknown, found.is_by_step, &found.edges[..]), (2, 0, true, &[0, 1, 2][..]));
        let late: Vec<_> = found.cells.iter().map(|it| (it.rank, it.column, it.mean_ns / 1_000, it.last)).collect();
        let first_step = [(0, 0, 0, 0), (1, 0, 40, 0), (2, 0, 90, 1)];
        // Ranks may leave this far apart: nobody is called the last.
        let second_step = [(0, 1, 0, 0), (1, 1, 0, 0), (2, 1, 10, 0)];
        let mut expected = [first_step, second_step].concat();
        expected.sort_unstable();
        assert_eq!(late, expected);
    }

    #[test]
    fn where_a_member_is_missing_nothing_is_known() {
        let found = Lateness::of(&job(4), 200_000.0);
        assert_eq!((found.known, found.unknown, found.cells.len()), (0, 2, 0));
    }
}
