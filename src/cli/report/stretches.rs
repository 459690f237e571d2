//! Who came late, from the summaries of a job without traces.
//!
//! Each rank says how long its kernels of successive collectives took in total. An AllReduce, for
//! example, ends on all ranks at once, so the rank that took the least came last. A stretch shows
//! the average of its operations: two ranks that take turns in coming late even out.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diagnose::{APART_NS, Late, Lateness};
use crate::summary::{Cell, Report, Table};

/// The most columns of the map.
const COLUMNS: u64 = 64;
/// Losses after which it may not be known which kernel of a rank belongs beside which of the
/// others.
const SHIFTING: [&str; 9] = [
    "dropped",
    "discarded",
    "kernels_unmatched",
    "launches_without_kernel",
    "launches_lost",
    "activities_implausible",
    "activities_dropped",
    "activities_discarded",
    "activity_buffers_discarded",
];
/// How many times longer a stretch must be than what its ranks may be shifted by.
const SHIFTS: u64 = 100;

/// Successive collectives of one rank: their number, when the first began (ns after the beginning
/// of its recording), and how long all of their kernels took, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    number: u64,
    begin: u64,
    ns: u64,
}

/// The stretches of the ranks of a communicator, by the number of their first collective.
type OfComm<'a> = BTreeMap<&'a str, BTreeMap<u64, Stretch>>;

/// How late each rank came, in columns of time.
pub(super) fn lateness(report: &Report) -> Lateness {
    let rows = |name: &str| {
        let table = report.tables.iter().find(|table| table.name == name).expect("the summary has it");
        table.rows.iter().map(move |row| Row(table, row))
    };
    let ranks_of = |row: Row<'_>| Some((row.text("id")?.to_owned(), row.number("ranks")?));
    let members: BTreeMap<String, u64> = rows("communicators").filter_map(ranks_of).collect();
    let mut by_comm: BTreeMap<&str, OfComm<'_>> = BTreeMap::new();
    for row in rows("stretches") {
        let number = |name| row.number(name).unwrap_or(0);
        let stretch = Stretch { number: number("number"), begin: number("begin_ns"), ns: number("kernel_total_ns") };
        if let (Some(id), Some(rank)) = (row.text("id"), row.text("rank")) {
            by_comm.entry(id).or_default().entry(rank).or_default().insert(number("first"), stretch);
        }
    }
    let mut shifts: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows("losses").filter(|row| row.text("what").is_some_and(|what| SHIFTING.contains(&what))) {
        if let Some(rank) = row.text("rank") {
            let shift = shifts.entry(rank).or_default();
            *shift = shift.saturating_add(row.number("number").unwrap_or(0));
        }
    }
    let ranks: BTreeSet<(u64, &str)> =
        by_comm.values().flat_map(|of| of.keys()).map(|rank| (rank.parse().unwrap_or(u64::MAX), *rank)).collect();
    let places: BTreeMap<&str, usize> = ranks.iter().enumerate().map(|(at, (_, rank))| (*rank, at)).collect();

    let (mut all, mut unknown, mut columns) = (Vec::new(), 0, 1);
    for (id, of) in &by_comm {
        let is_whole = members.get(*id) == Some(&(of.len() as u64)) && of.len() > 1;
        let before = all.len();
        let shift = of.keys().filter_map(|rank| shifts.get(rank)).max().copied().unwrap_or(0);
        for stretches in side_by_side(of) {
            let most = stretches.values().map(|it| it.number).max().unwrap_or(0);
            let is_alike = stretches.len() == of.len() && stretches.values().all(|it| it.number == most);
            match is_whole && is_alike && shift.saturating_mul(SHIFTS) <= most {
                true => all.push(stretches),
                false => unknown = most.saturating_add(unknown),
            }
        }
        columns = columns.max((all.len() - before) as u64).min(COLUMNS);
    }
    let begin = |of: &BTreeMap<&str, Stretch>| of.values().map(|it| it.begin).min().unwrap_or(0);
    let first = all.iter().map(begin).min().unwrap_or(0);
    let width = all.iter().map(begin).max().unwrap_or(0).saturating_sub(first) / columns;
    let width = width.saturating_add(1);
    let columns = all.iter().map(|of| (begin(of) - first) / width).max().map_or(0, |last| last + 1);
    let mut lateness = Lateness {
        ranks: ranks
            .iter()
            .map(|(number, rank)| if *number == u64::MAX { (*rank).to_owned() } else { format!("rank {rank}") })
            .collect(),
        edges: (0..=columns).map(|column| column.saturating_mul(width)).collect(),
        unknown,
        ..Lateness::default()
    };
    let mut cells: BTreeMap<(usize, usize), (Late, u128)> = BTreeMap::new();
    for of in &all {
        let column = ((begin(of) - first) / width) as usize;
        let longest = of.values().map(|it| it.ns).max().unwrap_or(0);
        let shortest = of.values().map(|it| it.ns).min().unwrap_or(0);
        for (rank, stretch) in of {
            let rank = places[rank];
            let (cell, late) = cells.entry((rank, column)).or_insert((Late { rank, column, ..Late::default() }, 0));
            let mean = (longest - stretch.ns) / stretch.number.max(1);
            cell.operations = cell.operations.saturating_add(stretch.number);
            cell.most_ns = cell.most_ns.max(mean);
            *late += u128::from(longest - stretch.ns);
            if stretch.ns == shortest && mean > APART_NS.unsigned_abs() {
                cell.last = cell.last.saturating_add(stretch.number);
            }
        }
        lateness.known = lateness.known.saturating_add(of.values().map(|it| it.number).max().unwrap_or(0));
    }
    lateness.cells = cells
        .into_values()
        .map(|(cell, late)| Late { mean_ns: (late / u128::from(cell.operations.max(1))) as u64, ..cell })
        .collect();
    lateness
}

/// The stretches of all ranks in the order of their collectives, in the longest that one rank has.
fn side_by_side<'a>(of: &OfComm<'a>) -> Vec<BTreeMap<&'a str, Stretch>> {
    let width = of.values().filter_map(|it| it.keys().nth(1)).max().copied().unwrap_or(u64::MAX);
    let mut all: BTreeMap<u64, BTreeMap<&str, Stretch>> = BTreeMap::new();
    for (rank, stretches) in of {
        for (first, stretch) in stretches {
            let joined =
                all.entry(first / width).or_default().entry(rank).or_insert(Stretch { number: 0, ns: 0, ..*stretch });
            joined.number = joined.number.saturating_add(stretch.number);
            joined.ns = joined.ns.saturating_add(stretch.ns);
        }
    }
    all.into_values().collect()
}

/// A row of a table, read by the names of its columns.
struct Row<'a>(&'a Table, &'a [Cell]);

impl<'a> Row<'a> {
    fn cell(&self, name: &str) -> Option<&'a Cell> {
        let at = self.0.columns.iter().position(|column| column.name == name)?;
        self.1.get(at)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        match self.cell(name)? {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        match self.cell(name)? {
            Cell::Number(number) => Some(*number),
            _ => None,
        }
    }
}
