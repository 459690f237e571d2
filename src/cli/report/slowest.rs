//! How long kernels took, by kind of operation: a histogram, and the slowest ones (pure).

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::cli::diagnose::look_at;
use crate::cli::summary::{Lasted, OfFile};
use crate::model::time::HostNs;
use crate::summary::{Row, Summary};

/// Bins for each power of ten.
const PER_DECADE: f64 = 10.0;
/// How many of the slowest are kept for each kind.
const KEPT: usize = 10;
/// Kinds of operations that are shown; the slowest come first.
const KINDS: usize = 100;
/// What is shown before and after a slow operation, ns.
const AROUND: u64 = 100_000;

/// Kernels of one kind of operation.
#[derive(Debug, Serialize)]
pub(super) struct Kind {
    communicator: String,
    name: String,
    /// The table of the summary, and the row there.
    table: &'static str,
    row: usize,
    /// The bins that are not empty, shortest first, with their counts: bin n begins at 10^(n/10)
    /// ns.
    lengths: Vec<(u32, u64)>,
    slowest: Vec<Slow>,
}

/// A slow operation on the rank where it took longest.
#[derive(Debug, Serialize)]
struct Slow {
    rank: String,
    ns: u64,
    /// When it began, ns after the begin of the file.
    at_ns: u64,
    /// What to type to look at it.
    command: String,
}

/// The durations of one row.
#[derive(Debug, Default)]
struct Durations {
    lengths: BTreeMap<u32, u64>,
    slowest: Vec<Found>,
}

#[derive(Clone, Debug)]
struct Found {
    ns: u64,
    begin: HostNs,
    mark: Option<(u64, u64)>,
    /// Set once its file has been read: the process's name, the file, its begin.
    place: Option<(String, usize, HostNs)>,
}

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Slowest {
    /// Of the file that is being read, by process and row.
    reading: FxHashMap<(usize, Row), Durations>,
    all: FxHashMap<Row, Durations>,
    files: Vec<PathBuf>,
}

impl Durations {
    /// Keeps one of this rank. Its operations in one run of a graph may share a mark.
    fn keep(&mut self, found: Found) {
        let at = self.slowest.partition_point(|it| it.ns >= found.ns);
        if at < KEPT {
            self.slowest.insert(at, found);
            self.slowest.truncate(KEPT);
        }
    }

    /// Keeps one that may be known from another rank already.
    fn keep_once(&mut self, found: Found) {
        let is_same = |it: &Found| it.mark.is_some() && it.mark == found.mark && it.place != found.place;
        match self.slowest.iter().position(is_same) {
            Some(same) if self.slowest[same].ns >= found.ns => return,
            Some(same) => drop(self.slowest.remove(same)),
            None => {}
        }
        self.keep(found);
    }
}

impl Slowest {
    pub(super) fn take(&mut self, it: Lasted) {
        let Lasted { process, row, begin, ns, mark } = it;
        let durations = self.reading.entry((process, row)).or_default();
        *durations.lengths.entry(bin(ns)).or_default() += 1;
        durations.keep(Found { ns, begin, mark, place: None });
    }

    /// The file has been read. What it had is added to the rows of all files.
    pub(super) fn end_file(&mut self, of: &OfFile<'_>) {
        let file = self.files.len();
        self.files.push(of.path.to_owned());
        for ((process, row), durations) in self.reading.drain() {
            let at = process - of.before;
            let (Some(Some(summary)), Some(place)) = (of.recorded.get(at), of.places.get(at)) else { continue };
            let all = self.all.entry(place(row)).or_default();
            for (bin, number) in durations.lengths {
                *all.lengths.entry(bin).or_default() += number;
            }
            for found in durations.slowest {
                let place = Some((summary.rank_name(), file, of.first.unwrap_or_default()));
                all.keep_once(Found { place, ..found });
            }
        }
    }

    /// The kinds of operations of `all`, whose rows these are; and how many kinds are left out.
    pub(super) fn finish(mut self, all: &Summary) -> (Vec<Kind>, usize) {
        let tables = ["operations", "groups"].into_iter().zip(all.sorted_rows());
        let rows = tables.flat_map(|(table, rows)| rows.into_iter().enumerate().map(move |(at, row)| (table, at, row)));
        let mut kinds: Vec<Kind> = rows
            .filter_map(|(table, at, row)| {
                let durations = self.all.remove(&row)?;
                let [communicator, name] = all.title(row);
                let lengths = durations.lengths.into_iter().collect();
                let slowest = durations.slowest.into_iter().filter_map(|it| self.slow(it)).collect();
                Some(Kind { communicator, name, table, row: at, lengths, slowest })
            })
            .collect();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.slowest.first().map(|it| it.ns)));
        let more = kinds.len().saturating_sub(KINDS);
        kinds.truncate(KINDS);
        (kinds, more)
    }

    fn slow(&self, found: Found) -> Option<Slow> {
        let (rank, file, first) = found.place?;
        let at_ns = found.begin.since(first);
        let around = AROUND + found.ns / 4;
        let command = look_at(
            &self.files[file],
            at_ns.saturating_sub(around) as i64,
            at_ns.saturating_add(found.ns).saturating_add(around) as i64,
        );
        Some(Slow { rank, ns: found.ns, at_ns, command })
    }
}

/// The bin of a duration.
fn bin(ns: u64) -> u32 {
    let near = ((ns.max(1) as f64).log10() * PER_DECADE) as u32;
    // The logarithm may be off by a little.
    [near + 1, near].into_iter().find(|bin| edge(*bin) <= ns).unwrap_or(near.saturating_sub(1))
}

/// Where a bin begins, ns.
fn edge(bin: u32) -> u64 {
    10_f64.powf(f64::from(bin) / PER_DECADE).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_duration_is_in_the_length_that_begins_before_it() {
        for ns in (1..2_000).chain((0..50).map(|shift| (1 << shift) + 1)).chain((0..18).map(|it| 10_u64.pow(it))) {
            let bin = bin(ns);
            assert!(edge(bin) <= ns && ns < edge(bin + 1), "{ns}: {bin} from {} to {}", edge(bin), edge(bin + 1));
        }
    }

    #[test]
    fn one_operation_is_kept_once_and_the_slowest_come_first() {
        let mut durations = Durations::default();
        for n in 0..40_u64 {
            let ns = (n * 7) % 40;
            let mark = Some((n / 2, 0));
            let place = Some((String::new(), n as usize, HostNs(0)));
            durations.keep_once(Found { ns, begin: HostNs(0), mark, place });
        }
        let marks: BTreeSet<_> = durations.slowest.iter().map(|it| it.mark).collect();
        assert_eq!((durations.slowest.len(), marks.len()), (KEPT, KEPT));
        assert!(durations.slowest.is_sorted_by_key(|it| std::cmp::Reverse(it.ns)));
        assert_eq!(durations.slowest[0].ns, 39);
    }

    #[test]
    fn collectives_of_one_run_of_a_graph_are_all_kept() {
        let mut all = Durations::default();
        // Two in the first run, one in the second, as the two ranks saw them.
        for (file, ns, run) in [(0, 50, 1), (0, 40, 1), (0, 30, 2), (1, 55, 1), (1, 45, 1), (1, 20, 2)] {
            let place = Some((String::new(), file, HostNs(0)));
            all.keep_once(Found { ns, begin: HostNs(0), mark: Some((7, run)), place });
        }
        let kept: Vec<_> = all.slowest.iter().map(|it| it.ns).collect();
        assert_eq!(kept, [55, 45, 30]);
    }
}
