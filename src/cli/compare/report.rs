//! The report of a comparison: as data for JSON, and as sections for people, in text or Markdown.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::answer::{Answer, grown};
use super::case::{Case, Recognised};
use super::change::{self, Change};
use super::differences::Differences;
use super::kernels::Row as KernelRow;
use super::slower::{LEAST, Link, Part, RankRow, Row as SlowerRow, Slower};
use super::starts::Starts;
use super::statistics::Distribution;
use super::steps::{Repeat, Source};
use crate::cli::LISTED;
use crate::cli::colour;
use crate::cli::said;
use crate::cli::survey::attempts::LEFT_OUT;
use crate::import::Profile;
use crate::import::knowledge::{Fact, duration};
use crate::trace::names;

/// Rows of a table for people; the JSON has all of them.
const ROWS: usize = 25;

/// Everything a comparison found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this structure.
    pub(crate) format_version: u32,
    pub(crate) a: Side,
    pub(crate) b: Side,
    #[serde(flatten)]
    pub(crate) recognised: Recognised,
    /// How the two differ, before any verdict.
    pub(crate) differences: Differences,
    /// For two runs: which is slower, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
    /// What each side knows about NCCL's kernels.
    pub(crate) knowledge: Vec<Knowledge>,
    /// For one run: a comparison of moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) starts: Option<Starts>,
    /// Kernels by name and order.
    pub(crate) kernels: Vec<KernelRow>,
    /// NCCL's kernels by what they carry, where both sides know it.
    pub(crate) operations: Vec<KernelRow>,
    /// For two runs: what takes longer, rank by rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slower: Option<Slower>,
}

/// One of the files.
#[derive(Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) file: String,
    pub(crate) tool: String,
    pub(crate) version: String,
    pub(crate) host: Option<String>,
    pub(crate) processes: Vec<String>,
    /// Number of kernels, and of NCCL's among them.
    pub(crate) kernels: u64,
    pub(crate) nccl_kernels: u64,
    /// Its GPUs are those of the project's emulator.
    pub(crate) is_emulated: bool,
    /// What keeps its job from going on, or in which ranks share a GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) troubles: Vec<String>,
    /// What the reader noted.
    pub(crate) notes: Vec<String>,
}

impl Side {
    pub(crate) fn of(profile: &Profile) -> Side {
        Side {
            file: profile.source.path.display().to_string(),
            tool: profile.source.tool.to_string(),
            version: profile.source.version.clone(),
            host: profile.host.clone(),
            processes: profile
                .processes
                .iter()
                .map(|process| format!("{} (pid {})", process.name, process.pid))
                .collect(),
            kernels: profile.kernels.len() as u64,
            nccl_kernels: profile.nccl_kernels().count() as u64,
            is_emulated: profile.devices.values().any(|name| name.starts_with("Emulated")),
            troubles: Vec::new(),
            notes: profile.notes.clone(),
        }
    }

    fn words(&self) -> String {
        let processes = match &self.processes[..] {
            [one] => one.clone(),
            more => format!("{} processes", more.len()),
        };
        format!(
            "{}: {} {}; {processes}; {} kernels, {} of them NCCL's",
            self.file, self.tool, self.version, self.kernels, self.nccl_kernels
        )
    }
}

/// One fact on both sides.
#[derive(Debug, Serialize)]
pub(crate) struct Knowledge {
    pub(crate) what: &'static str,
    pub(crate) a: Fact,
    pub(crate) b: Fact,
}

/// A part of the report for people.
struct Section {
    title: &'static str,
    lines: Vec<String>,
    table: Option<Table>,
}

/// The format of the report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Markdown,
}

impl Report {
    pub(crate) fn write(&self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        if style == Style::Markdown {
            writeln!(out, "# Comparison\n")?;
        }
        for line in self.answer() {
            let line = if style == Style::Text { colour::paint(colour::ANSWER, line) } else { line };
            writeln!(out, "{line}\n")?;
        }
        for section in self.sections() {
            section.write(style, out)?;
        }
        Ok(())
    }

    /// What the user asked: first what is worse than being slow and how the two differ, then which
    /// is slower and why.
    fn answer(&self) -> Vec<String> {
        let mut lines: Vec<String> = of_both([&self.a.troubles, &self.b.troubles]).collect();
        let of_jobs = &self.differences.of_jobs;
        if !of_jobs.is_empty() {
            let warning = match self.recognised.case {
                Case::SameRun => "They differ",
                Case::TwoRuns => "A and B are not alike, and what follows may be due to that alone",
            };
            lines.push(format!("{warning}: {}.", of_jobs.join("; ")));
        }
        lines.extend(self.answer.as_ref().map(|answer| answer.text.clone()));
        // They may be why one of them is slower.
        let settings = &self.differences.settings;
        let more = settings.len().saturating_sub(LISTED);
        let more = if more > 0 { format!("; and {more} more, which the JSON lists") } else { String::new() };
        if !settings.is_empty() {
            lines.push(format!("Settings differ: {}{more}.", settings[..settings.len().min(LISTED)].join("; ")));
        }
        lines
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        if let Some(slower) = self.slower.as_ref().filter(|slower| !slower.ranks.is_empty()) {
            sections.push(ranks(slower));
            sections.extend((!slower.rows.is_empty()).then(|| changes(slower)));
            sections.extend((!slower.links.is_empty()).then(|| links(&slower.links)));
        }
        sections.extend(self.starts.as_ref().map(starts));
        let title = match self.recognised.case {
            Case::SameRun => "Kernels, by name",
            Case::TwoRuns => "Kernels, by name and order",
        };
        sections.push(kernels(title, &self.kernels));
        if !self.operations.is_empty() {
            sections.push(kernels("NCCL's kernels, by what they carry", &self.operations));
        }
        sections.extend([self.heading(), self.known()]);
        sections
    }

    fn heading(&self) -> Section {
        let case = match self.recognised.case {
            Case::SameRun => "One run, recorded by two tools",
            Case::TwoRuns => "Two runs: their moments say nothing about each other, and are not compared",
        };
        let mut lines = vec![
            format!("A: {}", self.a.words()),
            format!("B: {}", self.b.words()),
            format!("{case}: {}.", self.recognised.reason),
        ];
        let sides = [("A", &self.a), ("B", &self.b)];
        for (name, side) in sides {
            let left_out = side.notes.iter().filter(|note| note.starts_with(LEFT_OUT));
            lines.extend(left_out.map(|note| format!("{name}: {note}.")));
        }
        let emulated = sides.into_iter().filter(|(_, side)| side.is_emulated);
        lines.extend(
            emulated.map(|(name, _)| format!("The GPUs of {name} are emulated: its times are not performance.")),
        );
        let differences = self.differences.of_jobs.iter().chain(&self.differences.others);
        lines.extend(differences.map(|difference| format!("They differ: {difference}.")));
        Section { title: "Files", lines, table: None }
    }

    fn known(&self) -> Section {
        let mut table = table(&["about NCCL's kernels", "", "known", "of", ""]);
        for Knowledge { what, a, b } in &self.knowledge {
            for (what, side, fact) in [(*what, "A", a), ("", "B", b)] {
                let row = [
                    what.to_owned(),
                    side.to_owned(),
                    fact.known.to_string(),
                    fact.of.to_string(),
                    shortened(&fact.remark),
                ];
                table.add_row(row);
            }
        }
        numbers(&mut table, 2..4);
        Section { title: "What each side knows", lines: Vec::new(), table: Some(table) }
    }
}

/// What keeps the job of either run from going on, in sentences.
pub(super) fn of_both(troubles: [&Vec<String>; 2]) -> impl Iterator<Item = String> {
    let sides = ["A", "B"].into_iter().zip(troubles);
    sides.flat_map(|(name, all)| all.iter().map(move |it| format!("In {name}, {it}.")))
}

/// A remark, shortened to leave room for others; the JSON has all of it.
fn shortened(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn starts(starts: &Starts) -> Section {
    let mut lines = Vec::new();
    match &starts.offset {
        Some(offset) => {
            let wall = match offset.beyond_wall_clocks_ns {
                Some(more) => format!("; the wall clocks in the files are off by {} from that", duration(more as f64)),
                None => String::new(),
            };
            lines.push(format!(
                "B's clock is put on A's by {} of B's {} launches, which A saw too, to ±{}{wall}.",
                offset.launches,
                offset.launches_of_b,
                duration(offset.error_ns as f64)
            ));
        }
        None => lines.push(format!("Starts are not compared: {}.", starts.reason)),
    }
    let table = (!starts.differences.is_empty()).then(|| {
        let mut table = table(&["moments", "count", "min", "p10", "median", "p90", "max"]);
        for difference in &starts.differences {
            let mut row = vec![difference.what.to_owned(), difference.ns.count.to_string()];
            let ns = difference.ns;
            row.extend([ns.min, ns.p10, ns.median, ns.p90, ns.max].map(duration));
            table.add_row(row);
        }
        numbers(&mut table, 1..7);
        table
    });
    Section { title: "Starts", lines, table }
}

fn kernels(title: &'static str, rows: &[KernelRow]) -> Section {
    let mut table =
        table(&["kernel", "A", "B", "A total", "B total", "A median", "B median", "A p10 … p90", "B p10 … p90", "B/A"]);
    for row in rows.iter().take(ROWS) {
        let both = |cell: &dyn Fn(&Distribution) -> String| {
            [&row.a, &row.b].map(|side| side.as_ref().map_or_else(|| "-".to_owned(), cell))
        };
        let mut cells = vec![names::short(&row.name).into_owned()];
        cells.extend([&row.a, &row.b].map(|side| side.map_or(0, |it| it.count).to_string()));
        cells.extend(both(&|it| duration(it.sum)));
        cells.extend(both(&|it| duration(it.median)));
        cells.extend(both(&|it| format!("{} … {}", duration(it.p10), duration(it.p90))));
        cells.push(row.by.map_or_else(|| "-".into(), |by| format!("{by:.2}")));
        table.add_row(cells);
    }
    numbers(&mut table, 1..10);
    let mut lines = Vec::new();
    if rows.iter().any(|row| row.a.is_some()) && rows.iter().any(|row| row.b.is_some()) {
        lines.push(
            "All ranks together. B/A is the median of the ratios, kernel by kernel, rank by rank in their order; where one side has more, the \
             ratio of the medians."
                .to_owned(),
        );
    } else {
        lines.push("Only one side has kernels.".to_owned());
    }
    if rows.len() > ROWS {
        lines.push(format!("{} more names are in the JSON.", rows.len() - ROWS));
    }
    Section { title, lines, table: (!rows.is_empty()).then_some(table) }
}

/// Steps, rank by rank, and what they are made of.
fn ranks(slower: &Slower) -> Section {
    let mut lines = Vec::new();
    let sources: Vec<String> = slower.ranks.iter().filter_map(|rank| rank.source.as_ref()).map(source).collect();
    match sources.first() {
        Some(first) if sources.iter().all(|it| it == first) => lines.push(first.clone()),
        Some(_) => lines.push("How steps are known differs from rank to rank; the JSON says how.".into()),
        None => lines.push("Nothing repeats that could be taken for steps in both runs.".into()),
    }
    if slower.is_partial {
        lines.push("Ranks that others wait for are in no file: waiting for these counts as communication.".into());
    }
    let mut table =
        table(&["rank", "step A", "step B", "B/A", "verdict", "works", "transfers", "communicates", "waits", "idles"]);
    let mut by_rank: BTreeMap<(&str, Part), Vec<&SlowerRow>> = BTreeMap::new();
    for (row, rank) in slower.rows.iter().flat_map(|row| row.ranks.iter().map(move |rank| (row, rank))) {
        by_rank.entry((rank, row.part)).or_default().push(row);
    }
    // Of many, those that grew most.
    let mut all: Vec<&RankRow> = slower.ranks.iter().collect();
    if all.len() > ROWS {
        all.sort_by(|one, other| grew(other).total_cmp(&grew(one)));
        lines.push(format!("{} more ranks are in the JSON.", all.len() - ROWS));
    }
    for rank in all.into_iter().take(ROWS) {
        let name = if rank.a == rank.b { rank.a.clone() } else { format!("{} and {}", rank.a, rank.b) };
        let mut cells = vec![name];
        match &rank.steps {
            Some(steps) => cells.extend(medians(steps).into_iter().chain([ratio(steps), steps.verdict.text().into()])),
            None => cells.extend(["-".into(), "-".into(), "-".into(), "-".into()]),
        }
        for part in [Part::Works, Part::Transfers, Part::Communicates, Part::Waits, Part::Idles] {
            let own = by_rank.get(&(rank.a.as_str(), part)).map_or(&[][..], Vec::as_slice);
            let growth: f64 = own.iter().map(|row| row.change.growth()).sum();
            cells.push(if own.is_empty() || rank.steps.is_none() { "-".into() } else { grown(growth) });
        }
        table.add_row(cells);
    }
    numbers(&mut table, 1..4);
    numbers(&mut table, 5..10);
    Section { title: "Steps, rank by rank, and by how much each part of them grew", lines, table: Some(table) }
}

/// By how much a rank's steps changed, ns.
fn grew(rank: &RankRow) -> f64 {
    rank.steps.map_or(0.0, |steps| steps.growth().abs())
}

fn source(source: &Source) -> String {
    match source {
        Source::Ranges => "Steps are the ranges that the program marked.".to_owned(),
        Source::Repeats(Repeat { name, times: 1 }) => {
            format!(
                "Steps are inferred: each rank's goes from one `{name}` to the next, since what runs between them repeats."
            )
        }
        Source::Repeats(Repeat { name, times }) => {
            format!("Steps are inferred: each rank's has `{name}` {times} times, since what runs meanwhile repeats.")
        }
    }
}

/// `ranks 0 to 3 and 8`, if they are numbered.
fn numbered(ranks: &[String]) -> Option<String> {
    let numbers: Option<Vec<u32>> = ranks.iter().map(|rank| rank.strip_prefix("rank ")?.parse().ok()).collect();
    numbers.map(said::ranks)
}

/// What ranks do in their steps; what changed comes first.
fn changes(slower: &Slower) -> Section {
    let columns = if slower.steps.is_some() { ["A in a step", "B in a step"] } else { ["A each time", "B each time"] };
    let mut table = table(&["verdict", "rank", "", "what", columns[0], columns[1], "B/A", "lost in all", "noise", "p"]);
    for row in slower.rows.iter().take(ROWS) {
        let SlowerRow { ranks, part, change, lost, .. } = row;
        let [a, b] = medians(change);
        let who = match &ranks[..] {
            [one] => one.clone(),
            several if several.len() == slower.ranks.len() => "every rank".into(),
            several => numbered(several).unwrap_or_else(|| format!("{} ranks", several.len())),
        };
        table.add_row([
            change.verdict.text().to_owned(),
            who,
            part.text().to_owned(),
            names::short(&row.said()).into_owned(),
            a,
            b,
            ratio(change),
            grown(*lost),
            duration(change.noise()),
            probability(change),
        ]);
    }
    numbers(&mut table, 4..10);
    let mut lines = vec![format!(
        "Medians of blocks of consecutive {} are compared, since neighbours depend on each other; the \
         first tenth, 1 to 20, is left out as warm-up. A verdict needs p < {} (Mann-Whitney test, \
         two-sided, with Holm's correction), medians that differ by {:.0} % and by more than the noise (how much the \
         blocks differ within A, plus the same within B), and {} blocks on each side. What takes less than {:.0} % of {} \
         is left out.",
        if slower.steps.is_some() { "steps" } else { "executions" },
        change::LEVEL,
        change::EFFECT * 100.0,
        change::ENOUGH,
        LEAST * 100.0,
        if slower.steps.is_some() { "a step" } else { "the time" },
    )];
    if slower.rows.len() > ROWS {
        lines.push(format!("{} more rows are in the JSON.", slower.rows.len() - ROWS));
    }
    Section { title: "What takes longer, or less", lines, table: Some(table) }
}

/// The network, link by link.
fn links(all: &[Link]) -> Section {
    let mut table = table(&["verdict", "from", "to", "A", "B", "A median", "B median", "B/A", "p"]);
    for Link { from, to, change, .. } in all.iter().take(ROWS) {
        let [a, b] = medians(change);
        table.add_row([
            change.verdict.text().to_owned(),
            from.clone(),
            to.clone(),
            change.a.count.to_string(),
            change.b.count.to_string(),
            a,
            b,
            ratio(change),
            probability(change),
        ]);
    }
    numbers(&mut table, 3..9);
    let lines = vec!["What a transfer waited for the network, on the side that sends.".into()];
    Section { title: "Network transfers, link by link", lines, table: Some(table) }
}

fn medians(change: &Change) -> [String; 2] {
    [change.a, change.b].map(|side| duration(side.median))
}

fn ratio(change: &Change) -> String {
    match change.a.median {
        a if a > 0.0 => format!("{:.2}", change.b.median / a),
        _ => "-".into(),
    }
}

fn probability(change: &Change) -> String {
    match change.probability {
        Some(p) if p < 0.001 => format!("{p:.0e}"),
        Some(p) => format!("{p:.3}"),
        None => "-".into(),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_header(header.to_vec());
    table
}

/// Right-aligns columns of numbers.
fn numbers(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

impl Section {
    fn write(self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        match style {
            Style::Text => writeln!(out, "{}", self.title.to_uppercase())?,
            Style::Markdown => writeln!(out, "\n## {}\n", self.title)?,
        }
        for line in &self.lines {
            match style {
                Style::Text => writeln!(out, "  {line}")?,
                Style::Markdown => writeln!(out, "{line}\n")?,
            }
        }
        if let Some(mut table) = self.table {
            match style {
                Style::Text => table.load_style(presets::NOTHING),
                Style::Markdown => table.load_style(presets::ASCII_MARKDOWN),
            };
            let text = table.to_string();
            text.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
        }
        if style == Style::Text { writeln!(out) } else { Ok(()) }
    }
}
