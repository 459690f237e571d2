//! Summaries in comma-separated values, from jobs without traces.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::runs;
use crate::cli::reason::Reason;
use crate::summary::{ALL, ALL_TO_ALL_V, Cell, FORMAT_VERSION, Kind, Report, Table};

/// The summaries that are named, or in the folders that are named, if there are no traces.
pub(in crate::cli) fn files(named: &[PathBuf]) -> Result<Option<Vec<PathBuf>>, Reason> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            match runs::is_table(path) {
                true => files.push(path.clone()),
                false if runs::is_summary(path) => {}
                false => return Ok(None),
            }
            continue;
        }
        let failed = Reason::read(path);
        for entry in fs::read_dir(path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if runs::is_trace(&path) {
                return Ok(None);
            }
            files.extend(runs::is_table(&path).then_some(path));
        }
    }
    files.sort();
    Ok(Some(files).filter(|files| !files.is_empty()))
}

/// The tables of these files, and why some could not be read.
pub(in crate::cli) fn add_up(files: &[PathBuf]) -> (Report, Vec<Reason>) {
    let (mut report, mut reasons, mut read) = (Report::empty(), Vec::new(), 0);
    for path in files {
        match tables(path) {
            Ok(of_file) => {
                report.add(of_file);
                read += 1;
            }
            Err(reason) => reasons.push(reason),
        }
    }
    if read > 1 {
        let mut joined = all(&report);
        joined.add(report);
        joined.join_environment();
        report = joined;
    }
    (report, reasons)
}

fn tables(path: &Path) -> Result<Report, Reason> {
    let wrong = |line: u64, what: &str| {
        Reason::file(path)(format!("line {line}: {what}; this is not a summary that ncclscope {} wrote", version()))
    };
    let file = fs::File::open(path).map_err(Reason::read(path))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
    let mut report = Report::empty();
    // The current table, and the column of each value.
    let (mut table, mut columns): (Option<usize>, Option<Vec<Option<usize>>>) = (None, None);
    for record in reader.records() {
        let record = record.map_err(Reason::file(path))?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.get(0) == Some("# ncclscope summary") {
            let head = record.get(1).and_then(|head| head.strip_prefix(" format ")?.split_once(": "));
            let Some((format, name)) = head else { return Err(wrong(line, "no version of the format")) };
            if format.parse() != Ok(FORMAT_VERSION) {
                let text = format!("it has format {format}; ncclscope {} reads format {FORMAT_VERSION}", version());
                return Err(Reason::file(path)(text));
            }
            // A table of a later version.
            table = report.tables.iter().position(|table| table.name == name);
            columns = None;
            continue;
        }
        let Some(table) = table.and_then(|at| report.tables.get_mut(at)) else { continue };
        match &columns {
            None => {
                let of = |name| table.columns.iter().position(|column| column.name == name);
                columns = Some(record.iter().map(of).collect());
            }
            Some(columns) => {
                let row = row(table, columns, &record).ok_or_else(|| wrong(line, "not a number where one belongs"))?;
                table.rows.push(row);
            }
        }
    }
    match report.is_empty() {
        true => Err(wrong(1, "no tables")),
        false => Ok(report),
    }
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn row(table: &Table, columns: &[Option<usize>], record: &csv::StringRecord) -> Option<Vec<Cell>> {
    let mut row = vec![Cell::Empty; table.columns.len()];
    for (column, value) in columns.iter().zip(record).filter(|(_, value)| !value.is_empty()) {
        let Some(column) = *column else { continue };
        row[column] = match table.columns[column].kind {
            Kind::Text => Cell::Text(value.to_owned()),
            _ => Cell::Number(value.parse().ok()?),
        };
    }
    Some(row)
}

/// The rows of all ranks together: sums, minima and maxima. What rows cannot give, such as
/// percentiles, is empty. Communicators with the same name are combined.
fn all(report: &Report) -> Report {
    let mut joined = Report::empty();
    for (table, into) in report.tables.iter().zip(&mut joined.tables) {
        if matches!(table.name, "operations" | "groups" | "calls") {
            into.rows = together(table);
        }
    }
    joined
}

fn together(table: &Table) -> Vec<Vec<Cell>> {
    let at = |name: &str| table.columns.iter().position(|column| column.name == name);
    let is_key = |name: &str| {
        matches!(name, "communicator" | "operation" | "operations" | "datatype" | "count" | "bytes" | "root" | "note")
    };
    // Each of these carries another amount, so a row has the mean of one rank's.
    let is_uneven =
        |row: &[Cell]| at("operations").is_some_and(|at| matches!(&row[at], Cell::Text(name) if name == ALL_TO_ALL_V));
    let keys: Vec<usize> = (0..table.columns.len()).filter(|column| is_key(table.columns[*column].name)).collect();
    let mut kinds: BTreeMap<Vec<String>, Vec<&Vec<Cell>>> = BTreeMap::new();
    for row in &table.rows {
        let keys = keys.iter().filter(|key| !is_uneven(row) || Some(**key) != at("bytes"));
        kinds.entry(keys.map(|key| format!("{:?}", row[*key])).collect()).or_default().push(row);
    }
    let number = |row: &[Cell], column: Option<usize>| match column.map(|column| &row[column]) {
        Some(Cell::Number(number)) => Some(*number),
        _ => None,
    };
    let total = at("kernel_total_ns").or(at("host_total_ns"));
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for of in kinds.values() {
        let mut row = vec![Cell::Empty; table.columns.len()];
        row[0] = Cell::Text(ALL.into());
        keys.iter().for_each(|key| row[*key] = of[0][*key].clone());
        for (column, it) in table.columns.iter().enumerate() {
            let values = || of.iter().filter_map(|row| number(row, Some(column)));
            let cell = match it.name {
                "number" | "graph" | "grouped" | "timed" | "contradicted" | "proxy_waits" => {
                    values().reduce(u64::saturating_add)
                }
                "bytes" if is_uneven(of[0]) => {
                    let parts =
                        || of.iter().filter_map(|row| Some((number(row, Some(column))?, number(row, at("number"))?)));
                    let (bytes, kernels) = parts().fold((0_u128, 0_u128), |(bytes, kernels), (mean, number)| {
                        (bytes.saturating_add(u128::from(mean) * u128::from(number)), kernels + u128::from(number))
                    });
                    bytes.checked_div(kernels).and_then(|mean| u64::try_from(mean).ok())
                }
                name if name.ends_with("_min_ns") => values().min(),
                name if name.ends_with("_max_ns") => values().max(),
                name if name.ends_with("_total_ns") => values().reduce(u64::saturating_add),
                // Bytes divided by the time that all of them took.
                name if name.ends_with("bw_bytes_per_s") => {
                    let parts = || of.iter().filter_map(|row| Some((number(row, Some(column))?, number(row, total)?)));
                    let (bytes, ns) = parts().fold((0_u128, 0_u128), |(bytes, time), (rate, ns)| {
                        (bytes.saturating_add(u128::from(rate) * u128::from(ns)), time + u128::from(ns))
                    });
                    bytes.checked_div(ns).and_then(|rate| u64::try_from(rate).ok())
                }
                _ => continue,
            };
            row[column] = cell.into();
        }
        rows.push(row);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(number(row, total)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_an_uneven_exchange_are_averaged() {
        let mut report = Report::empty();
        let groups = report.tables.iter_mut().find(|table| table.name == "groups").unwrap();
        let row = |rank: &str, operations: &str, bytes: u64, number: u64| {
            let cell = |name: &str| match name {
                "rank" => Cell::Text(rank.to_owned()),
                "communicator" => Cell::Text("ep".to_owned()),
                "operations" => Cell::Text(operations.to_owned()),
                "bytes" => Cell::Number(bytes),
                "number" => Cell::Number(number),
                _ => Cell::Empty,
            };
            groups.columns.iter().map(|column| cell(column.name)).collect::<Vec<_>>()
        };
        let rows = [
            row("0", "AlltoAllv", 100, 1),
            row("1", "AlltoAllv", 200, 3),
            row("0", "AlltoAll", 64, 1),
            row("1", "AlltoAll", 32, 1),
        ];
        groups.rows.extend(rows);
        let at = |name: &str| groups.columns.iter().position(|column| column.name == name).unwrap();
        let columns = ["operations", "bytes", "number"].map(at);
        let rows: Vec<_> = together(groups).iter().map(|row| columns.map(|at| row[at].clone())).collect();
        let all = |operations: &str, bytes, number| {
            [Cell::Text(operations.to_owned()), Cell::Number(bytes), Cell::Number(number)]
        };
        assert_eq!(rows.len(), 3, "{rows:?}");
        for row in [all("AlltoAllv", 175, 4), all("AlltoAll", 64, 1), all("AlltoAll", 32, 1)] {
            assert!(rows.contains(&row), "{row:?}: {rows:?}");
        }
    }
}
