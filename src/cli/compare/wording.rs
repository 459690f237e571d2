//! Words shared by the report and the answer above it.

use crate::import::knowledge::duration;

/// How much more or less, with its sign.
pub(super) fn grown(ns: f64) -> String {
    format!("{}{}", if ns < 0.0 { "-" } else { "+" }, duration(ns.abs()))
}

/// A name, shortened to fit into a table.
pub(super) fn shortened_name(name: &str) -> String {
    const MOST: usize = 60;
    match name.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}
