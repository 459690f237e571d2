//! The tables for people: in the file beside the trace and on the terminal, and a few lines of them
//! for the end of a job.

use std::fmt::Write as _;

use super::{Arguments, Cell, Column, FORMAT_VERSION, Kind, Report, Summary, Table, Wait};
use crate::trace::names;

/// Most lines of [`Summary::block`]. A job prints at most 20, with those that the collector adds:
/// where the whole summary is, and the gist.
pub const BLOCK: usize = 18;
/// Most operations and groups in it.
const BLOCK_ROWS: usize = 12;

impl Report {
    /// The tables as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("ncclscope summary, format {FORMAT_VERSION}\n");
        let is_asked_for = self.tables.len() == 1;
        let is_for_people = |table: &&Table| !table.rows.is_empty() && (table.name != "stretches" || is_asked_for);
        for table in self.tables.iter().filter(is_for_people) {
            table.write(&mut text);
        }
        text
    }
}

impl Table {
    /// Writes the table, without empty columns.
    fn write(&self, text: &mut String) {
        let says = |at: usize| {
            self.rows.iter().filter_map(|row| row.get(at)).any(|cell| match cell {
                Cell::Empty => false,
                Cell::Number(0) => self.columns[at].kind != Kind::Counter,
                Cell::Number(_) | Cell::Text(_) => true,
            })
        };
        let shown: Vec<usize> = (0..self.columns.len()).filter(|at| says(*at)).collect();
        let title = |at: &usize| self.columns[*at].title.to_owned();
        let cell = |row: &Vec<Cell>, at: usize| row.get(at).map_or(String::new(), |cell| self.columns[at].show(cell));
        let mut lines = vec![shown.iter().map(title).collect::<Vec<_>>()];
        lines.extend(self.rows.iter().map(|row| shown.iter().map(|at| cell(row, *at)).collect()));
        let is_right = shown.iter().map(|at| self.columns[*at].kind != Kind::Text);
        let _ = writeln!(text, "\n{}", self.title);
        aligned(&lines, &is_right.collect::<Vec<_>>(), text);
    }
}

impl Column {
    /// A cell with its unit.
    fn show(&self, cell: &Cell) -> String {
        match (cell, self.kind) {
            (Cell::Empty, _) => "-".into(),
            (Cell::Text(text), _) => text.clone(),
            (Cell::Number(ns), Kind::Ns) => names::duration(*ns as f64),
            (Cell::Number(bytes), Kind::Bytes) => names::size(*bytes),
            (Cell::Number(rate), Kind::Rate) => self::rate(*rate),
            (Cell::Number(number), Kind::Number | Kind::Counter | Kind::Text) => number.to_string(),
        }
    }
}

/// Writes lines of cells, two spaces between the columns.
fn aligned(lines: &[Vec<String>], is_right: &[bool], text: &mut String) {
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..is_right.len()).map(width).collect();
    for cells in lines {
        let mut line = String::new();
        for ((cell, width), is_right) in cells.iter().zip(&widths).zip(is_right) {
            let _ = match is_right {
                true => write!(line, "  {cell:>width$}"),
                false => write!(line, "  {cell:<width$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// A rate in decimal units, as nccl-tests gives it: `12.3 GB/s`.
fn rate(bytes_per_s: u64) -> String {
    let rate = bytes_per_s as f64;
    let (scaled, unit) = match rate {
        small if small < 1e3 => return format!("{bytes_per_s} B/s"),
        small if small < 1e6 => (rate / 1e3, "kB/s"),
        small if small < 1e9 => (rate / 1e6, "MB/s"),
        _ => (rate / 1e9, "GB/s"),
    };
    format!("{scaled:.*} {unit}", if scaled < 10.0 { 2 } else { usize::from(scaled < 100.0) })
}

impl Summary {
    /// The lines for the end of a job: what took the most time, waits, and what is missing. At most
    /// [`BLOCK`] lines.
    #[must_use]
    pub fn block(&self) -> Vec<String> {
        let mut rows: Vec<(u64, Vec<String>)> = Vec::new();
        let unknown = || "-".to_owned();
        let cells = |comm, name: String, number: u64, times: &super::Times, bandwidth: Option<[u64; 2]>| {
            let shown = |ns: Option<u64>| ns.map_or_else(unknown, |ns| names::duration(ns as f64));
            let total = Some(times.total()).filter(|_| times.number() > 0);
            let bus = bandwidth.map_or_else(unknown, |[_, bus]| rate(bus));
            let [median, p99, most] = [times.percentile(50), times.percentile(99), times.most()].map(shown);
            vec![self.comm_name(comm), name, number.to_string(), median, p99, most, shown(total), bus]
        };
        for (_, (key, row)) in self.sorted_operations() {
            let number = row.seen().number().saturating_sub(row.grouped);
            if number > 0 {
                let bandwidth = self.bandwidth(key, row);
                rows.push((
                    row.kernel.total(),
                    cells(key.comm, self.short_name(key, row.bytes(key)), number, &row.kernel, bandwidth),
                ));
            }
        }
        for (_, (group, of)) in self.sorted_groups() {
            let (name, times) = (self.group_title(group, of), &of.times);
            rows.push((
                times.total(),
                cells(group.comm(), name, times.number(), times, self.group_bandwidth(group, of)),
            ));
        }
        if rows.is_empty() {
            return Vec::new();
        }
        rows.sort_by_key(|(total, _)| std::cmp::Reverse(*total));
        let more = rows.len().saturating_sub(BLOCK_ROWS);
        let head = ["communicator", "operation", "number", "median", "p99", "max", "total", "busbw"];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(rows.into_iter().take(BLOCK_ROWS).map(|(_, cells)| cells));
        let mut text = String::new();
        aligned(&lines, &[false, false, true, true, true, true, true, true], &mut text);
        let mut block = vec![format!("summary of rank {}: time of kernels by operation", self.rank_name())];
        block.extend(text.lines().map(str::to_owned));
        if more > 0 {
            block.push(format!("  and {more} more"));
        }
        block.extend(self.waits_in_words());
        // What was left out on request is no loss.
        let lost: Vec<_> = self.lost().into_iter().filter(|(what, _)| !what.ends_with("_left_out")).collect();
        if !lost.is_empty() {
            let lost: Vec<String> = lost.iter().take(6).map(|(what, count)| format!("{count} {what}")).collect();
            block.push(format!("  losses and doubts: {}", lost.join(", ")));
        }
        block.truncate(BLOCK);
        block
    }

    /// `Send 16 MiB f32, peer 3`.
    pub(super) fn short_name(&self, key: &Arguments, bytes: Option<u64>) -> String {
        let mut name = self.function(key);
        match (bytes, key.count) {
            (Some(bytes), _) => {
                let _ = write!(name, " {}", names::size(bytes));
            }
            (None, Some(count)) => {
                let _ = write!(name, " {count} elements");
            }
            (None, None) => {}
        }
        if let Some(datatype) = crate::model::word::Word(key.datatype).short_datatype() {
            let _ = write!(name, " {datatype}");
        }
        if let Some(peer) = key.peer {
            let _ = write!(name, ", peer {peer}");
        }
        name
    }

    /// What the proxy's sends waited for, in percent.
    fn waits_in_words(&self) -> Option<String> {
        let sends = self.peers.rows.iter().filter(|(key, _)| key.is_send);
        let mut sums = [0_u64; Wait::ALL.len()];
        sends.for_each(|(_, of)| sums.iter_mut().zip(of.waits).for_each(|(sum, ns)| *sum = sum.saturating_add(ns)));
        let all: u64 = sums.iter().fold(0, |all, ns| all.saturating_add(*ns));
        let percent =
            |wait: Wait| (u128::from(sums[wait as usize]) * 100 + u128::from(all / 2)) / u128::from(all.max(1));
        (all > 0).then(|| {
            format!(
                "  the proxy's sends waited for: GPU {} %, peer {} %, network {} %",
                percent(Wait::Gpu),
                percent(Wait::Peer),
                percent(Wait::Network)
            )
        })
    }
}
