//! `ncclscope report`: one page with the charts that a timeline cannot show.
//!
//! ```text
//!   files -> summary  -> tables, links, slowest --\
//!         -> diagnose -> verdict, lateness, shares -> data -> page.html, with page.js and page.css
//!
//!   summaries of a job without traces -> tables, shares, stretches -> data
//! ```
//!
//! The figures are those of `ncclscope summary` and `ncclscope diagnose`; nothing is computed here.
//! The page is one file: it contains its data, its script and the chart library (`vendor/`), and
//! its policy forbids network access.

mod links;
mod slowest;
mod stretches;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use self::links::{Gathered, Links, several};
use self::slowest::{Kind, Slowest};
use super::diagnose::{self, Lateness};
use super::summary::{self, Added};
use super::survey::attempts;
use crate::cli::reason::Reason;
use crate::summary::{Cell, Kind as Of, Report, Summary, Table};
use crate::sys;

/// The version of the data in the page.
const FORMAT_VERSION: u32 = 1;
/// The most rows of the map of lateness: beyond that, each stands for several ranks.
const MAP_ROWS: usize = 128;
/// How often a name may occur in the environment; further ones are only counted.
const ALIKE: usize = 16;
/// How many ranks a loss names.
const NAMED: usize = 4;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const LIBRARY: &str = include_str!("vendor/echarts.min.js");
const LICENCE: &str = include_str!("vendor/LICENSE");

/// What to write.
#[derive(clap::Args)]
pub(super) struct Wish {
    /// Traces, or folders with the traces of a job's ranks; where there are none, as with the
    /// preset metrics, files that end in .summary.csv
    #[arg(required = true, value_name = "FOLDER|FILE")]
    traces: Vec<PathBuf>,
    /// The page to write; it must not exist
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// What the page shows.
#[derive(Default, Serialize)]
struct Data {
    format_version: u32,
    ncclscope: &'static str,
    /// What was named on the command line.
    named: Vec<String>,
    files: usize,
    /// They are summaries of processes without a trace.
    is_of_summaries: bool,
    processes: usize,
    /// The JSON of `ncclscope diagnose`, or why there is none.
    diagnosis: Option<Value>,
    no_diagnosis: Option<String>,
    lateness: Option<Map>,
    /// How GPUs spent their time, where there is no diagnosis to say more.
    gpus: Option<Value>,
    /// Tables of `ncclscope summary`: of all processes together, if there are several.
    operations: Value,
    groups: Value,
    environment: Value,
    communicators: Value,
    losses: Value,
    links: Links,
    kinds: Vec<Kind>,
    kinds_left_out: usize,
    /// What could not be read.
    unread: Vec<String>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    super::must_be_new(&wish.output)?;
    let data = match summary::written::files(&wish.traces)? {
        Some(files) => of_summaries(wish, &files)?,
        None => of_traces(wish)?,
    };
    let page = page(&data)?;
    super::write_new(&wish.output, page.as_bytes())?;
    let from = match (data.files, data.is_of_summaries) {
        (1, false) => "1 trace".to_owned(),
        (1, true) => "1 summary".to_owned(),
        (files, false) => format!("{files} traces"),
        (files, true) => format!("{files} summaries"),
    };
    let size = crate::trace::names::size(page.len() as u64);
    writeln!(out, "{}: {size}, from {from}; a browser shows it without a network", wish.output.display())
        .map_err(Reason::Output)?;
    data.unread.iter().try_for_each(|reason| writeln!(out, "left out: {reason}")).map_err(Reason::Output)
}

fn of_traces(wish: &Wish) -> Result<Data, Reason> {
    let (files, earlier) = attempts::newest(summary::files(&wish.traces)?);
    let (mut links, mut slowest) = (Gathered::default(), Slowest::default());
    let mut only = None;
    let added = {
        let slowest = std::cell::RefCell::new(&mut slowest);
        summary::add_up(
            &files,
            |lasted| slowest.borrow_mut().take(lasted),
            |of| {
                of.recorded.iter().flatten().for_each(|process| links.add(process));
                slowest.borrow_mut().end_file(&of);
                only = of.recorded.into_iter().flatten().last().or(only.take());
            },
        )
    };
    let Added { mut report, all, processes, reasons } = added;
    if processes == 0 {
        return Err(Reason::all(reasons).err().unwrap_or_else(|| "there is no recording in these files".into()));
    }
    // With one process, its rows are those of the summary.
    let whole = only.filter(|_| processes == 1).map_or(all, |only: Summary| only);
    let (kinds, kinds_left_out) = slowest.finish(&whole);
    let readable: Vec<PathBuf> = files.iter().filter(|file| !is_named(&reasons, file)).cloned().collect();
    let diagnosed = diagnose::for_report(if readable.is_empty() { &files } else { &readable }, &wish.traces);
    let (diagnosis, lateness, no_diagnosis) = match diagnosed {
        Ok((diagnosis, lateness)) => (Some(diagnosis), Some(Map::of(&lateness)), None),
        Err(reason) => (None, None, Some(reason.to_string())),
    };
    let mut tables = Data::of_tables(wish, &mut report, files.len(), processes, &reasons);
    let earlier = earlier.iter().map(|note| note.trim_start_matches(attempts::LEFT_OUT).to_owned());
    tables.unread.splice(0..0, earlier);
    Ok(Data { diagnosis, no_diagnosis, lateness, links: links.finish(), kinds, kinds_left_out, ..tables })
}

/// Of a job without traces.
fn of_summaries(wish: &Wish, files: &[PathBuf]) -> Result<Data, Reason> {
    let (mut report, reasons) = summary::written::add_up(files);
    let processes = files.len() - reasons.len();
    if processes == 0 {
        return Err(Reason::all(reasons).err().unwrap_or_else(|| "there is no summary in these files".into()));
    }
    let lateness = stretches::lateness(&report);
    let why = "These are the summaries of a job without traces, and a verdict takes the traces of all ranks: \
               NCCLSCOPE_PRESET=light and the larger presets record them";
    let tables = Data::of_tables(wish, &mut report, files.len(), processes, &reasons);
    let gpus = Some(plain(&taken(&mut report, "gpus")));
    let (no_diagnosis, lateness) = (Some(why.to_owned()), Some(Map::of(&lateness)));
    Ok(Data { is_of_summaries: true, no_diagnosis, lateness, gpus, ..tables })
}

impl Data {
    /// Only the tables of a summary.
    fn of_tables(wish: &Wish, report: &mut Report, files: usize, processes: usize, reasons: &[Reason]) -> Data {
        let mut table = |name: &str| taken(report, name);
        let of_whole = |mut table: Table| {
            table.rows.retain(|row| processes == 1 || row.first() == Some(&"all".into()));
            plain(&table)
        };
        Data {
            format_version: FORMAT_VERSION,
            ncclscope: env!("CARGO_PKG_VERSION"),
            named: wish.traces.iter().map(|path| path.display().to_string()).collect(),
            files,
            processes,
            operations: of_whole(table("operations")),
            groups: of_whole(table("groups")),
            environment: plain(&environment(table("environment"))),
            communicators: communicators(&table("communicators")),
            losses: losses(&table("losses"), processes),
            links: Gathered::default().finish(),
            unread: reasons.iter().map(ToString::to_string).collect(),
            ..Data::default()
        }
    }
}

/// Whether one of these reasons is about a file.
fn is_named(reasons: &[Reason], file: &Path) -> bool {
    reasons.iter().any(|reason| matches!(reason, Reason::File(path, _) | Reason::Read(path, _) if path == file))
}

/// The page. No data becomes markup: the script sets text.
fn page(data: &Data) -> Result<String, Reason> {
    let data = serde_json::to_string(data).map_err(Reason::failed("write JSON"))?;
    let mut safe = String::with_capacity(data.len());
    for letter in data.chars() {
        match letter {
            // These are in texts only, where an escape means the same.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => safe.push(letter),
        }
    }
    // Only scripts that carry the nonce are run, and no trace can know it.
    let nonce = format!("{:016x}{:016x}", sys::random(), sys::random());
    let licence = LICENCE.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let parts = [
        ("STYLE", STYLE),
        ("DATA", &safe),
        ("LICENCE", &licence),
        ("LIBRARY", LIBRARY),
        ("SCRIPT", SCRIPT),
        ("NONCE", &nonce),
    ];
    let mut page = String::new();
    for part in PAGE.split("{{") {
        let (name, rest) = part.split_once("}}").unwrap_or(("", part));
        page.push_str(parts.iter().find(|it| it.0 == name).map_or("", |it| it.1));
        page.push_str(rest);
    }
    Ok(page)
}

fn taken(report: &mut Report, name: &str) -> Table {
    let at = report.tables.iter().position(|table| table.name == name).expect("the summary has it");
    let table = &mut report.tables[at];
    Table { rows: std::mem::take(&mut table.rows), ..table.clone() }
}

/// A table in the page's format.
fn plain(table: &Table) -> Value {
    let kind = |kind: Of| match kind {
        Of::Text => "text",
        Of::Number => "number",
        Of::Counter => "counter",
        Of::Ns => "ns",
        Of::Bytes => "bytes",
        Of::Rate => "rate",
    };
    let columns: Vec<Value> =
        table.columns.iter().map(|it| json!({ "name": it.name, "title": it.title, "kind": kind(it.kind) })).collect();
    let rows: Vec<Value> = table.rows.iter().map(|row| row.iter().map(summary::value).collect()).collect();
    json!({ "columns": columns, "rows": rows })
}

/// The environment; entries that very many ranks have are shortened to a count.
fn environment(mut table: Table) -> Table {
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    let name = |row: &[Cell]| match row.get(1) {
        Some(Cell::Text(name)) => name.clone(),
        _ => String::new(),
    };
    let rows = std::mem::take(&mut table.rows);
    for row in rows {
        let number = alike.entry(name(&row)).or_default();
        *number += 1;
        if *number <= ALIKE {
            table.rows.push(row);
        }
    }
    for (name, number) in alike {
        if number > ALIKE {
            let more = format!("and {} more: ncclscope summary --table environment", number - ALIKE);
            table.rows.push(vec![Cell::Empty, name.into(), more.into()]);
        }
    }
    table.rows.sort_by_key(|row| !matches!(row.first(), Some(Cell::Text(who)) if who == "all"));
    table
}

/// The communicators, each once.
fn communicators(table: &Table) -> Value {
    // Their facts, ranks seen, and the first and last time after the begin of a recording.
    type Seen = (Vec<Value>, u64, Option<[u64; 2]>);
    let mut all: BTreeMap<String, Seen> = BTreeMap::new();
    let at = |name: &str| table.columns.iter().position(|column| column.name == name);
    for row in &table.rows {
        let cell = |name: &str| at(name).and_then(|at| row.get(at)).cloned().unwrap_or(Cell::Empty);
        let facts = ["id", "name", "ranks", "nodes", "nccl", "interface"].map(|name| summary::value(&cell(name)));
        let (_, seen, created) = all.entry(format!("{facts:?}")).or_insert((facts.to_vec(), 0, None));
        *seen += 1;
        if let Cell::Number(ns) = cell("created_ns") {
            let [first, last] = created.unwrap_or([ns; 2]);
            *created = Some([first.min(ns), last.max(ns)]);
        }
    }
    let column = |name: &str, title: &str, kind: &str| json!({ "name": name, "title": title, "kind": kind });
    let columns = [
        column("id", "id", "text"),
        column("name", "name", "text"),
        column("ranks", "ranks", "number"),
        column("nodes", "nodes", "number"),
        column("nccl", "NCCL", "text"),
        column("interface", "interface", "number"),
        column("seen", "ranks in these files", "number"),
        column("created_first_ns", "created after, at first", "ns"),
        column("created_last_ns", "at last", "ns"),
    ];
    let rows: Vec<Value> = all
        .into_values()
        .map(|(mut row, seen, created)| {
            row.extend([json!(seen), json!(created.map(|it| it[0])), json!(created.map(|it| it[1]))]);
            row.into()
        })
        .collect();
    json!({ "columns": columns, "rows": rows })
}

/// Losses and doubts, each with the ranks that have it.
fn losses(table: &Table, processes: usize) -> Value {
    let mut all: BTreeMap<(String, String), (Vec<String>, Option<u64>)> = BTreeMap::new();
    let text = |cell: Option<&Cell>| match cell {
        Some(Cell::Text(text)) => text.clone(),
        Some(Cell::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    for row in &table.rows {
        let entry = all.entry((text(row.get(1)), text(row.get(3)))).or_default();
        entry.0.push(text(row.first()));
        if let Some(Cell::Number(number)) = row.get(2) {
            entry.1 = Some(entry.1.unwrap_or(0).saturating_add(*number));
        }
    }
    let who = |ranks: &[String]| match ranks.len() {
        all if all == processes && processes > 1 => "all".to_owned(),
        few if few <= NAMED => ranks.join(", "),
        many => format!("{many} ranks"),
    };
    let rows: Vec<Value> =
        all.into_iter().map(|((what, note), (ranks, number))| json!([who(&ranks), what, number, note])).collect();
    let column = |name: &str, kind: &str| json!({ "name": name, "title": name, "kind": kind });
    json!({
        "columns": [column("ranks", "text"), column("what", "text"), column("number", "number"), column("note", "text")],
        "rows": rows,
    })
}

/// How late ranks came, in as many rows as fit.
#[derive(Serialize)]
struct Map {
    /// The name of each row, and how many ranks it stands for.
    labels: Vec<String>,
    each: usize,
    is_by_step: bool,
    edges: Vec<u64>,
    /// Row, column; and for the rank of the row that came latest on average: the rank, mean and
    /// maximum in ns, its operations, and to how many of them it came last.
    cells: Vec<[u64; 7]>,
    ranks: Vec<OfRank>,
    known: u64,
    unknown: u64,
}

/// How late a rank came to all operations.
#[derive(Serialize)]
struct OfRank {
    rank: String,
    operations: u64,
    mean_ns: Option<u64>,
    most_ns: Option<u64>,
    last: u64,
}

impl Map {
    fn of(lateness: &Lateness) -> Map {
        let each = lateness.ranks.len().div_ceil(MAP_ROWS).max(1);
        let mut cells: BTreeMap<(usize, usize), [u64; 7]> = BTreeMap::new();
        let mut sums = vec![(0_u64, 0_u128, 0_u64, 0_u64); lateness.ranks.len()];
        for it in &lateness.cells {
            let sum = &mut sums[it.rank];
            sum.0 += it.operations;
            sum.1 += u128::from(it.mean_ns) * u128::from(it.operations);
            sum.2 = sum.2.max(it.most_ns);
            sum.3 += it.last;
            let place = (it.rank / each, it.column);
            let cell = [place.0 as u64, place.1 as u64, it.rank as u64, it.mean_ns, it.most_ns, it.operations, it.last];
            let known = cells.entry(place).or_insert(cell);
            if (it.mean_ns, it.last) > (known[3], known[6]) {
                *known = cell;
            }
        }
        let rank = |(rank, sum): (&String, (u64, u128, u64, u64))| OfRank {
            rank: rank.clone(),
            operations: sum.0,
            mean_ns: sum.1.checked_div(u128::from(sum.0)).map(|ns| ns as u64),
            most_ns: (sum.0 > 0).then_some(sum.2),
            last: sum.3,
        };
        Map {
            labels: several(&lateness.ranks, each),
            each,
            is_by_step: lateness.is_by_step,
            edges: lateness.edges.clone(),
            cells: cells.into_values().collect(),
            ranks: lateness.ranks.iter().zip(sums).map(rank).collect(),
            known: lateness.known,
            unknown: lateness.unknown,
        }
    }
}
