//! `ncclscope summary`: the totals of traces, as tables for people and for programs.

mod durations;
mod load;
pub(super) mod written;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use self::durations::Durations;
pub(super) use self::load::Lasted;
use self::load::Load;
use super::LISTED;
use super::compare::runs;
use super::progress::Stage;
use super::survey::attempts;
use crate::cli::reason::Reason;
use crate::import::{self, Format as Of};
use crate::model::time::HostNs;
use crate::summary::{ALL, Cell, FORMAT_VERSION, Report, Row, Summary, Table, values};

/// What to print.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Traces, or folders with the traces of a job's ranks; where there are none, as with the
    /// preset metrics, files that end in .summary.csv
    #[arg(required = true, value_name = "TRACE|FOLDER")]
    traces: Vec<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Only this table: environment, communicators, operations, groups, calls, buffers, proxy,
    /// stretches, gpus or losses
    #[arg(long = "table", value_name = "NAME")]
    table: Option<String>,
    /// Print each duration of each kind of operation instead, in the order of the trace: its number
    /// and [duration-us;*]
    #[arg(long, conflicts_with = "table")]
    durations: bool,
}

/// How to print it.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people, with units
    Table,
    /// Comma-separated values; a line with # before each table names it and the format's version
    Csv,
    /// One object
    Json,
    /// One object a line: the first has the format's version, each further one is a row
    Jsonl,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    let known = Report::empty();
    if let Some(name) = &wish.table
        && !known.tables.iter().any(|table| table.name == name)
    {
        let names: Vec<&str> = known.tables.iter().map(|table| table.name).collect();
        return Err(Reason::Refused(format!("there is no table {name}; the tables are {}", names.join(", "))));
    }
    if let Some(files) = written::files(&wish.traces)? {
        if wish.durations {
            return Err("single durations are in traces only, and these are summaries of jobs without any".into());
        }
        let (report, reasons) = written::add_up(&files);
        if !report.is_empty() {
            print(report, wish, out)?;
        }
        return Reason::all(reasons);
    }
    let (files, left_out) = attempts::newest(files(&wish.traces)?);
    left_out.iter().for_each(|note| eprintln!("ncclscope: {note}"));
    let mut durations = wish.durations.then(Durations::default);
    let mut labels = Vec::new();
    let added = add_up(
        &files,
        |lasted| {
            if let (Some(durations), Row::Operation(row)) = (&mut durations, lasted.row) {
                durations.add(lasted.process, row, lasted.ns);
            }
        },
        |of| {
            if wish.durations {
                labels.extend(of.recorded.iter().map(|it| it.as_ref().map(Summary::labels)));
            }
        },
    );
    if added.processes > 0 {
        match durations {
            Some(durations) => list(&durations, &labels, wish.format, out)?,
            None => print(added.report, wish, out)?,
        }
    }
    Reason::all(added.reasons)
}

/// The totals of several files.
pub(super) struct Added {
    /// The tables of `ncclscope summary`.
    pub(super) report: Report,
    /// All processes together, and how many there are.
    pub(super) all: Summary,
    pub(super) processes: usize,
    /// The files that cannot be read to their end, or have no recording in them.
    pub(super) reasons: Vec<Reason>,
}

/// A file that was read.
pub(super) struct OfFile<'a> {
    pub(super) path: &'a Path,
    /// How many processes the files before it have.
    pub(super) before: usize,
    /// Its processes in the order of the file; `None` for processes that are no recording.
    pub(super) recorded: Vec<Option<Summary>>,
    /// The places of their rows of operations and of groups in [`Added::all`].
    pub(super) places: &'a [Box<dyn Fn(Row) -> Row>],
    /// Its first time: from there the viewer counts.
    pub(super) first: Option<HostNs>,
}

/// Reads files and adds up what they contain. `each` gets every kernel whose duration is added up,
/// with the number of its process over all files, and `done` each file when it has been read.
pub(super) fn add_up(files: &[PathBuf], mut each: impl FnMut(Lasted), mut done: impl FnMut(OfFile<'_>)) -> Added {
    let bytes = files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|it| it.len()).sum();
    let stage = Stage::begin("adding up".into(), bytes);
    let mut added = Added { report: Report::empty(), all: Summary::new(), processes: 0, reasons: Vec::new() };
    let (mut before, mut known) = (0, HashSet::new());
    for path in files {
        let (mut load, result) = Load::read(path, |it| each(Lasted { process: before + it.process, ..it }));
        let mut places: Vec<Box<dyn Fn(Row) -> Row>> = Vec::new();
        let processes = added.processes;
        let mut twins = Vec::new();
        for (summary, who) in load.recorded.iter_mut().zip(load.tags.iter().zip(&load.pids)) {
            // As when the traces of a job and what they were merged into are in one folder.
            let name = summary.as_ref().and_then(Summary::process_name).map(str::to_owned);
            let (tag, pid) = who;
            if let Some(name) = name.filter(|name| !known.insert((*tag, *pid, name.clone()))) {
                twins.push(name);
                *summary = None;
            }
        }
        if !twins.is_empty() {
            let text = format!("not counted again, since an earlier file has the same recording: {}", twins.join(", "));
            added.reasons.push(Reason::file(path)(text));
        }
        for summary in &load.recorded {
            let Some(summary) = summary else {
                places.push(Box::new(|row| row));
                continue;
            };
            let mut of_it = summary.report();
            let remark = match &result {
                Ok(extent) => extent.remark(),
                Err(error) => Some(error.to_string()),
            };
            remark.into_iter().for_each(|remark| of_it.add_loss(summary, "file", &remark));
            added.report.add(of_it);
            places.push(Box::new(added.all.add_all(summary)));
            added.processes += 1;
        }
        let number = load.recorded.len();
        done(OfFile { path, before, recorded: load.recorded, places: &places, first: load.first });
        before += number;
        stage.advance(std::fs::metadata(path).map_or(0, |it| it.len()));
        match result {
            Err(error) => added.reasons.push(Reason::file(path)(error)),
            Ok(extent) if processes == added.processes && twins.is_empty() => {
                let why = extent.remark().map_or(String::new(), |remark| format!(": {remark}"));
                let text = format!("no process recorded by ncclscope is in this Perfetto trace{why}");
                added.reasons.push(Reason::file(path)(text));
            }
            Ok(_) => {}
        }
    }
    if added.processes > 1 {
        let mut joined = added.all.report_of_all();
        joined.add(std::mem::replace(&mut added.report, Report::empty()));
        joined.join_environment();
        added.report = joined;
    }
    added
}

/// The traces that are named, and those in the folders that are named.
pub(super) fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Reason> {
    let (mut files, mut empty) = (Vec::new(), Vec::new());
    for path in named {
        if !path.is_dir() {
            if named.len() > 1 && runs::is_summary(path) {
                continue;
            }
            super::must_be_trace(path)?;
            files.push(path.clone());
            continue;
        }
        let of_folder = runs::files(path)?;
        let before = files.len();
        // A file that should be a trace but is not is named later.
        let is_trace = |path: &PathBuf| runs::is_trace(path) || matches!(import::format(path), Ok(Of::Perfetto));
        files.extend(of_folder.into_iter().filter(is_trace));
        if files.len() == before {
            empty.push(path);
        }
    }
    let none = "the folder has no trace of ncclscope in it; ncclscope import makes one of another tool's file";
    runs::unless_all_empty(files, &empty, none)
}

fn print(mut report: Report, wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    if let Some(name) = &wish.table {
        report.tables.retain(|table| table.name == name);
    }
    let written = match wish.format {
        Format::Table => {
            let left_out = if wish.table.is_none() { shorten(&mut report) } else { None };
            out.write_all(report.text().as_bytes()).and_then(|()| match left_out {
                Some(left_out) => writeln!(out, "\n{left_out}"),
                None => Ok(()),
            })
        }
        Format::Csv => out.write_all(report.csv().as_bytes()),
        Format::Json => {
            let tables: Map<String, Value> = report
                .tables
                .iter()
                .map(|table| (table.name.to_owned(), table.rows.iter().map(|row| object(table, row)).collect()))
                .collect();
            let whole = json!({ "format_version": FORMAT_VERSION, "tables": tables });
            writeln!(out, "{whole:#}")
        }
        Format::Jsonl => writeln!(out, "{}", json!({ "format_version": FORMAT_VERSION })).and_then(|()| {
            report.tables.iter().try_for_each(|table| {
                table.rows.iter().try_for_each(|row| {
                    let mut object = object(table, row);
                    object["table"] = table.name.into();
                    writeln!(out, "{object}")
                })
            })
        }),
    };
    written.map_err(Reason::Output)
}

/// Of many ranks, leaves the rows of all of them together, where a table has such rows, and
/// otherwise its first ones. Returns what is left out, in words.
fn shorten(report: &mut Report) -> Option<String> {
    /// The most rows of a table that has none of all ranks together, or has more to say than they
    /// do.
    const ROWS: usize = 64;
    let is_of_all = |row: &Vec<Cell>| matches!(row.first(), Some(Cell::Text(rank)) if rank == ALL);
    let of_ranks = |table: &Table| table.columns.first().is_some_and(|column| column.name == "rank");
    let ranks: HashSet<String> = (report.tables.iter().filter(|table| of_ranks(table)))
        .flat_map(|table| table.rows.iter().filter(|row| !is_of_all(row)))
        .filter_map(|row| if let Some(Cell::Text(rank)) = row.first() { Some(rank.clone()) } else { None })
        .collect();
    if ranks.len() <= LISTED {
        return None;
    }
    let mut left_out = Vec::new();
    for table in report.tables.iter_mut().filter(|table| of_ranks(table) && table.name != "stretches") {
        let before = table.rows.len();
        // What is lost, and the environment, may be of one rank only.
        if !["environment", "losses"].contains(&table.name) && table.rows.iter().any(is_of_all) {
            table.rows.retain(is_of_all);
        }
        table.rows.sort_by_key(|row| !is_of_all(row));
        table.rows.truncate(ROWS);
        if let more @ 1.. = before - table.rows.len() {
            left_out.push(format!("{more} of {}", table.name));
        }
    }
    (!left_out.is_empty()).then(|| {
        let left_out = left_out.join(", ");
        format!("rows of single ranks are left out: {left_out}; --table NAME prints a table whole, --format csv all")
    })
}

/// Prints the lists of durations: what they are of, how many, and each in microseconds.
fn list(durations: &Durations, labels: &[Option<Table>], format: Format, out: &mut dyn Write) -> Result<(), Reason> {
    let wrote = Reason::Output;
    let Some(columns) = labels.iter().flatten().next() else { return Ok(()) };
    let is_json = matches!(format, Format::Json | Format::Jsonl);
    match format {
        Format::Json => writeln!(out, "{{\"format_version\":{FORMAT_VERSION},\"durations\":["),
        Format::Jsonl => writeln!(out, "{}", json!({ "format_version": FORMAT_VERSION })),
        Format::Table | Format::Csv => writeln!(out, "# ncclscope summary, format {FORMAT_VERSION}: durations")
            .and_then(|()| writeln!(out, "{},op_count,[duration-us;*]", columns.header())),
    }
    .map_err(wrote)?;
    let mut is_first = true;
    for (process, row) in durations.lists() {
        let Some(Some(table)) = labels.get(process) else { continue };
        let Some(cells) = table.rows.get(row as usize) else { continue };
        let number = durations.number(process, row);
        if is_json {
            let mut label = object(table, cells);
            label["op_count"] = number.into();
            let label = label.to_string();
            let comma = if format == Format::Json && !is_first { "," } else { "" };
            write!(out, "{comma}{},\"duration_us\":[", label.trim_end_matches('}')).map_err(wrote)?;
        } else {
            write!(out, "{},{number},[", values(cells)).map_err(wrote)?;
        }
        is_first = false;
        let mut between = "";
        durations.each(process, row, |ns| {
            write!(out, "{between}{}.{:03}", ns / 1000, ns % 1000).map_err(Reason::Output)?;
            between = if is_json { "," } else { ";" };
            Ok(())
        })?;
        writeln!(out, "{}", if is_json { "]}" } else { "]" }).map_err(wrote)?;
    }
    if format == Format::Json {
        writeln!(out, "]}}").map_err(wrote)?;
    }
    Ok(())
}

fn object(table: &Table, row: &[Cell]) -> Value {
    table.columns.iter().zip(row).map(|(column, it)| (column.name.to_owned(), value(it))).collect::<Map<_, _>>().into()
}

/// A cell as JSON.
pub(super) fn value(cell: &Cell) -> Value {
    match cell {
        Cell::Empty => Value::Null,
        Cell::Number(number) => (*number).into(),
        Cell::Text(text) => text.as_str().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessTag;
    use crate::trace::tracks::{ProcessInfo, Tracks};
    use crate::trace::words::instant;
    use crate::trace::writer::Clocks;

    #[test]
    fn processes_with_one_tag_and_name_are_told_apart_by_their_ids() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, pid: i32| {
            let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
            let info = ProcessInfo { pid, name: "python3".into(), labels: Vec::new(), rank: None, world_size: None };
            let mut tracks = Tracks::new(ProcessTag::from_random(7), clocks, &info);
            tracks.note(HostNs(1), instant::STARTED, "ncclscope");
            let path = folder.path().join(name);
            std::fs::write(&path, tracks.take()).unwrap();
            path
        };
        let files = [file("a", 7), file("b", 8), file("c", 7)];
        let added = add_up(&files, |_| (), |_| ());
        assert_eq!(added.processes, 2);
        let [reason] = &added.reasons[..] else { panic!("{:?}", added.reasons) };
        assert!(reason.to_string().contains("not counted again"), "{reason}");
    }
}
