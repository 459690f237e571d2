//! The report of a comparison: as data for JSON, and as sections for people, as text or Markdown.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::case::{Case, Recognised};
use super::kernels::Row as KernelRow;
use super::slower::{self, Row as SlowerRow};
use super::starts::Starts;
use super::statistics::Distribution;
use crate::import::Profile;
use crate::import::knowledge::{Fact, duration};

/// Rows of a table for people; the JSON has all.
const ROWS: usize = 25;

/// Everything a comparison found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Of this structure.
    pub(crate) format_version: u32,
    pub(crate) a: Side,
    pub(crate) b: Side,
    #[serde(flatten)]
    pub(crate) recognised: Recognised,
    /// In what the two differ, before any verdict.
    pub(crate) differences: Vec<String>,
    /// What each side knows about NCCL's kernels.
    pub(crate) knowledge: Vec<Knowledge>,
    /// One run: moments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) starts: Option<Starts>,
    /// Kernels by name and order.
    pub(crate) kernels: Vec<KernelRow>,
    /// NCCL's kernels by what they carry, where both sides know.
    pub(crate) operations: Vec<KernelRow>,
    /// Two runs of ours: what got slower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slower: Option<Vec<SlowerRow>>,
}

/// One of the files.
#[derive(Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) file: String,
    pub(crate) tool: String,
    pub(crate) version: String,
    pub(crate) host: Option<String>,
    pub(crate) processes: Vec<String>,
    /// Kernels, and how many of them are NCCL's.
    pub(crate) kernels: u64,
    pub(crate) nccl_kernels: u64,
    /// Its GPUs are those of the project's emulator.
    pub(crate) is_emulated: bool,
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

/// How it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Text,
    Markdown,
}

impl Report {
    pub(crate) fn write(&self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        if style == Style::Markdown {
            writeln!(out, "# Comparison")?;
        }
        for section in self.sections() {
            section.write(style, out)?;
        }
        Ok(())
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.heading(), self.known()];
        sections.extend(self.starts.as_ref().map(starts));
        let title = match self.recognised.case {
            Case::SameRun => "Kernels, by name",
            Case::TwoRuns => "Kernels, by name and order",
        };
        sections.push(kernels(title, &self.kernels));
        if !self.operations.is_empty() {
            sections.push(kernels("NCCL's kernels, by what they carry", &self.operations));
        }
        sections.extend(self.slower.as_ref().map(|rows| slower_section(rows, &self.differences)));
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
        let emulated = [("A", &self.a), ("B", &self.b)].into_iter().filter(|(_, side)| side.is_emulated);
        lines.extend(
            emulated.map(|(name, _)| format!("The GPUs of {name} are emulated: its times are not performance.")),
        );
        lines.extend(self.differences.iter().map(|difference| format!("They differ: {difference}.")));
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

/// A remark that leaves room for the others; the JSON has all of it.
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
        table(&["kernel", "A", "B", "A median", "p10 … p90", "min … max", "B median", "p10 … p90", "min … max", "B/A"]);
    for row in rows.iter().take(ROWS) {
        let count = |side: &Option<Distribution>| side.map_or_else(|| "0".into(), |it| it.count.to_string());
        let spread = |side: &Option<Distribution>| match side {
            Some(it) => [
                duration(it.median),
                format!("{} … {}", duration(it.p10), duration(it.p90)),
                format!("{} … {}", duration(it.min), duration(it.max)),
            ],
            None => ["-".into(), "-".into(), "-".into()],
        };
        let mut cells = vec![shortened_name(&row.name), count(&row.a), count(&row.b)];
        cells.extend(spread(&row.a));
        cells.extend(spread(&row.b));
        cells.push(row.ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}", ratio.median)));
        table.add_row(cells);
    }
    numbers(&mut table, 1..10);
    let mut lines = Vec::new();
    if rows.iter().any(|row| row.a.is_some()) && rows.iter().any(|row| row.b.is_some()) {
        lines.push(
            "B/A is the median of the ratios, kernel by kernel, rank by rank in their order, where both have as many."
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

fn shortened_name(name: &str) -> String {
    const MOST: usize = 60;
    match name.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

fn slower_section(rows: &[SlowerRow], differences: &[String]) -> Section {
    let mut table =
        table(&["verdict", "what", "communicator", "arguments", "A", "B", "A median", "B median", "B/A", "p"]);
    for row in rows.iter().take(ROWS) {
        let count = |side: &Option<Distribution>| side.map_or_else(|| "0".into(), |it| it.count.to_string());
        let median = |side: &Option<Distribution>| side.map_or_else(|| "-".into(), |it| duration(it.median));
        let probability = row
            .probability
            .map_or_else(|| "-".into(), |p| if p < 0.001 { format!("{p:.0e}") } else { format!("{p:.3}") });
        table.add_row([
            row.verdict.text().to_owned(),
            row.kind.metric.text().to_owned(),
            row.kind.communicator.clone(),
            row.kind.arguments.clone(),
            count(&row.a),
            count(&row.b),
            median(&row.a),
            median(&row.b),
            row.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            probability,
        ]);
    }
    numbers(&mut table, 4..10);
    let mut lines = vec![format!(
        "p: test of Mann and Whitney, two-sided, corrected after Holm for {} tests; a verdict needs p < {}, a median that changed by {:.0} % \
         and {} durations on each side. The first tenth of each kind, 1 to 20, is left out as warm-up. Operations are taken for independent; transfers depend on each other and are \
         not tested.",
        rows.iter().filter(|row| row.probability.is_some()).count(),
        slower::LEVEL,
        slower::EFFECT * 100.0,
        slower::ENOUGH
    )];
    if !differences.is_empty() {
        lines.push("The runs differ in what stands under Files: a verdict may be due to that.".to_owned());
    }
    if rows.is_empty() {
        lines.push("The runs have nothing in common that could be compared.".to_owned());
    }
    if rows.len() > ROWS {
        lines.push(format!("{} more rows are in the JSON.", rows.len() - ROWS));
    }
    Section { title: "What got slower from A to B", lines, table: (!rows.is_empty()).then_some(table) }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_header(header.to_vec());
    table
}

/// Columns of numbers, which stand right.
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
