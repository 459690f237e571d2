//! `ncclscope doctor`: what will work here, what will not, and what to do about it.

mod facts;
mod findings;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use self::facts::Facts;
use self::findings::{Finding, Grade};
use crate::cli::reason::Reason;

/// The command line of `ncclscope doctor`.
#[derive(Args)]
pub(super) struct Wish {
    /// The Python in whose packages NCCL and CUPTI are looked for
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Write what was found as JSON, too; to the standard output instead of the text where no file
    /// is named, or -
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// What is written as JSON.
#[derive(Serialize)]
struct Report<'a> {
    format_version: u32,
    /// Nothing will keep ncclscope from recording.
    ok: bool,
    findings: &'a [Finding],
    facts: &'a Facts,
}

/// Collects the facts and prints the findings. Returns whether nothing will keep ncclscope from
/// recording.
pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<bool, Reason> {
    let facts = Facts::look(&wish.python);
    let findings = findings::findings(&facts);
    let ok = findings.iter().all(|finding| finding.grade != Grade::Problem);
    if let Some(path) = &wish.json {
        super::must_be_new_json(path)?;
        super::write_json(path, &Report { format_version: 1, ok, findings: &findings, facts: &facts }, out)?;
        if super::is_screen(path) {
            return Ok(ok);
        }
    }
    findings.iter().try_for_each(|finding| finding.print(out)).map_err(Reason::Output)?;
    Ok(ok)
}
