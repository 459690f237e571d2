//! The tables as comma-separated values, for programs and for `ncclscope summary` itself.

use std::fmt::Write as _;

use super::{Cell, FORMAT_VERSION, Report, Table};

impl Report {
    /// All tables. Above each, a line with `#` names it and the version of the format.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for (at, table) in self.tables.iter().enumerate() {
            let between = if at > 0 { "\n" } else { "" };
            let _ = writeln!(text, "{between}# ncclscope summary, format {FORMAT_VERSION}: {}", table.name);
            let _ = writeln!(text, "{}", table.header());
            table.rows.iter().for_each(|row| _ = writeln!(text, "{}", values(row)));
        }
        text
    }
}

impl Table {
    /// The names of its columns.
    #[must_use]
    pub fn header(&self) -> String {
        self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(",")
    }
}

/// A row.
#[must_use]
pub fn values(row: &[Cell]) -> String {
    let cell = |cell: &Cell| match cell {
        Cell::Empty => String::new(),
        Cell::Number(number) => number.to_string(),
        Cell::Text(text) if text.contains([',', '"', '\n', '\r']) || text.starts_with('#') => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Cell::Text(text) => text.clone(),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(",")
}
