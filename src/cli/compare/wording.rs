//! Words shared by the report and the answer above it.

use crate::import::knowledge::duration;

/// How much more or less, with its sign.
pub(super) fn grown(ns: f64) -> String {
    format!("{}{}", if ns < 0.0 { "-" } else { "+" }, duration(ns.abs()))
}
