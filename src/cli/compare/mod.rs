//! `ncclscope compare`: two runs of a job, or one of our traces and another tool's file of the same
//! run.
//!
//! ```text
//!   runs -> Profile -> ranks -> steps -> slower -> answer --> report
//!                   \-> differences, kernels, starts -------/
//! ```
//!
//! [`case`] decides how the two are related. [`change`] decides what counts as a change, with the
//! methods in [`statistics`].

mod answer;
pub(super) mod case;
mod change;
mod differences;
mod kernels;
pub(super) mod ranks;
mod report;
pub(super) mod runs;
mod slower;
pub(super) mod starts;
mod statistics;
pub(super) mod steps;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use self::case::Case;
use self::ranks::Ranks;
pub(super) use self::report::Side;
use self::report::{Knowledge, Report, Style};
use crate::cli::differing;
use crate::cli::reason::Reason;
use crate::cli::survey::Survey;
use crate::cli::troubles::Troubles;
use crate::import::{Profile, knowledge};

/// The version of the report's JSON.
const FORMAT_VERSION: u32 = 2;

/// Arguments on the command line.
#[derive(Args)]
pub(super) struct Wish {
    /// The first run: a trace, an SQLite export of Nsight Systems, JSON of PyTorch's profiler, or a
    /// folder with those of its ranks
    a: PathBuf,
    /// The second run, likewise; or what another tool recorded of the same run
    b: PathBuf,
    /// Write everything as JSON, with - to standard output alone
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// What the two files are to each other, where times, hosts and processes do not say it
    #[arg(long = "as", value_name = "CASE")]
    case: Option<Case>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), Reason> {
    wish.json.as_deref().map_or(Ok(()), super::must_be_new_json)?;
    wish.markdown.as_deref().map_or(Ok(()), super::must_be_new)?;
    let ((a, looked_a), (b, looked_b)) = (runs::open(&wish.a)?, runs::open(&wish.b)?);
    let troubles = [troubles(&looked_a), troubles(&looked_b)];
    let mut report =
        compare(&a, &b, wish.case).map_err(|reason| match report::of_both(troubles.each_ref()).next() {
            Some(trouble) => Reason::Refused(format!("{reason}. {trouble}")),
            None => reason,
        })?;
    [report.a.troubles, report.b.troubles] = troubles;
    if report.recognised.case == Case::TwoRuns {
        report.differences.settings = differing::between([&looked_a, &looked_b]);
    }
    if let Some(path) = &wish.json {
        super::write_json(path, &report, out)?;
    }
    if let Some(path) = &wish.markdown {
        let mut text = Vec::new();
        report.write(Style::Markdown, &mut text).map_err(Reason::failed("write Markdown"))?;
        super::write_new(path, &text)?;
    }
    if wish.json.as_deref().is_some_and(super::is_screen) {
        return Ok(());
    }
    report.write(Style::Text, out).map_err(Reason::Output)
}

/// What is worse in a run than being slow.
fn troubles(survey: &Survey) -> Vec<String> {
    let troubles = Troubles::of(survey);
    let shared = troubles.shared_gpus.first().map(ToString::to_string);
    troubles.stuck().map(|it| it.to_string()).into_iter().chain(shared).collect()
}

fn compare(a: &Profile, b: &Profile, said: Option<Case>) -> Result<Report, Reason> {
    let recognised = case::recognise(a, b, said)?;
    let case = recognised.case;
    let of_both = knowledge::facts(a).into_iter().zip(knowledge::facts(b));
    let is_kernels = !a.kernels.is_empty() && !b.kernels.is_empty();
    let [mut ranks_a, mut ranks_b] = [a, b].map(|run| Ranks::of(run, is_kernels));
    let numbers = [ranks_a.numbers(a), ranks_b.numbers(b)];
    if numbers.iter().zip([&ranks_a, &ranks_b]).all(|(numbers, ranks)| numbers.is_some() || ranks.are_numbered()) {
        for (ranks, numbers) in [&mut ranks_a, &mut ranks_b].into_iter().zip(numbers) {
            ranks.number(&numbers.unwrap_or_default());
        }
    }
    if is_kernels {
        ranks_a.add_waits(a);
        ranks_b.add_waits(b);
    }
    let slower = (case == Case::TwoRuns).then(|| slower::compare([a, b], [&ranks_a, &ranks_b]));
    Ok(Report {
        format_version: FORMAT_VERSION,
        a: Side::of(a),
        b: Side::of(b),
        recognised,
        differences: differences::find(a, b, [&ranks_a, &ranks_b], case),
        answer: slower.as_ref().map(|slower| answer::of(slower, is_kernels)),
        knowledge: of_both.map(|(a, b)| Knowledge { what: a.what, a, b }).collect(),
        starts: (case == Case::SameRun).then(|| starts::compare(a, b)),
        kernels: kernels::by_name(a, b),
        operations: kernels::by_operation(a, b),
        slower,
    })
}
