//! `ncclscope compare`: a trace of ours with a file of another tool, or with a trace of another run.
//!
//! [`case`] says what the two files are to each other; [`kernels`], [`starts`] and [`slower`] compare, with the means of [`statistics`];
//! [`report`] words it.

pub(super) mod case;
mod kernels;
mod report;
mod slower;
pub(super) mod starts;
mod statistics;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use self::case::Case;
use self::report::{Knowledge, Report, Side, Style};
use crate::import::{self, Profile, Tool, knowledge};

/// Of the report's JSON.
const FORMAT_VERSION: u32 = 1;
/// Kinds of operations that are named one by one.
const KINDS: usize = 5;

/// What the command line says.
#[derive(Args)]
pub(super) struct Wish {
    /// A trace of ncclscope, of one process or of many
    a: PathBuf,
    /// An SQLite export of Nsight Systems, JSON of PyTorch's profiler, or a trace of ncclscope of another run
    b: PathBuf,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// What the two files are to each other, where times, hosts and processes do not say it
    #[arg(long = "as", value_name = "CASE")]
    case: Option<Case>,
}

pub(super) fn run(wish: &Wish, out: &mut dyn Write) -> Result<(), String> {
    for output in [&wish.json, &wish.markdown].into_iter().flatten() {
        super::must_be_new(output)?;
    }
    let open = |path: &Path| import::open(path).map_err(|error| format!("{}: {error}", path.display()));
    let (a, b) = (open(&wish.a)?, open(&wish.b)?);
    let report = compare(&a, &b, wish.case)?;
    if let Some(path) = &wish.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| format!("failed to write JSON: {error}"))?;
        write_new(path, text.as_bytes())?;
    }
    if let Some(path) = &wish.markdown {
        let mut text = Vec::new();
        report.write(Style::Markdown, &mut text).map_err(|error| format!("failed to write Markdown: {error}"))?;
        write_new(path, &text)?;
    }
    report.write(Style::Text, out).map_err(|error| format!("failed to write: {error}"))
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let written = super::create(path, false)?.write_all(bytes);
    written.map_err(|error| format!("failed to write {}: {error}", path.display()))
}

fn compare(a: &Profile, b: &Profile, said: Option<Case>) -> Result<Report, String> {
    let recognised = case::recognise(a, b, said)?;
    let case = recognised.case;
    let of_both = knowledge::facts(a).into_iter().zip(knowledge::facts(b));
    let is_ours = b.source.tool == Tool::Ncclscope;
    Ok(Report {
        format_version: FORMAT_VERSION,
        a: Side::of(a),
        b: Side::of(b),
        recognised,
        differences: differences(a, b, case),
        knowledge: of_both.map(|(a, b)| Knowledge { what: a.what, a, b }).collect(),
        starts: (case == Case::SameRun).then(|| starts::compare(a, b)),
        kernels: kernels::by_name(a, b),
        operations: kernels::by_operation(a, b),
        slower: (is_ours && case == Case::TwoRuns).then(|| slower::compare(a, b)),
    })
}

/// In what two files differ that makes their times differ: versions, ranks, GPUs, what was recorded, what was run.
fn differences(a: &Profile, b: &Profile, case: Case) -> Vec<String> {
    let mut all = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b && !a.is_empty() && !b.is_empty() {
            all.push(format!("{what}: {a} and {b}"));
        }
    };
    let (versions_a, versions_b) = (a.nccl_versions.join(", "), b.nccl_versions.join(", "));
    differ("NCCL", versions_a, versions_b);
    differ("GPUs", devices(a), devices(b));
    if case == Case::TwoRuns {
        differ("processes in the file", a.processes.len().to_string(), b.processes.len().to_string());
        differ("hosts", a.host.clone().unwrap_or_default(), b.host.clone().unwrap_or_default());
        // What names NCCL's communicators have is not in a file of Nsight Systems.
        let is_named = b.source.tool != Tool::Nsight;
        differ("communicators", communicators(a, is_named), communicators(b, is_named));
    }
    if b.source.tool == Tool::Ncclscope && case == Case::TwoRuns {
        differ("ncclscope", a.source.version.clone(), b.source.version.clone());
        differ("preset", presets(a), presets(b));
        for (side, one, other) in [("A", a, b), ("B", b, a)] {
            let only = slower::only_in(one, other);
            if !only.is_empty() {
                let more = if only.len() > KINDS { format!(" and {} more", only.len() - KINDS) } else { String::new() };
                all.push(format!("only {side} has {}{more}", only[..only.len().min(KINDS)].join(", ")));
            }
        }
    }
    all
}

fn devices(profile: &Profile) -> String {
    let names: BTreeSet<&str> = profile.devices.values().map(String::as_str).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Names and sizes of the communicators, or sizes alone, each once.
fn communicators(profile: &Profile, is_named: bool) -> String {
    let all = profile.communicators.iter().filter_map(|it| {
        let name = is_named.then(|| it.name.clone().unwrap_or_else(|| "unnamed".into()));
        let words: Vec<String> = name.into_iter().chain(it.ranks.map(|ranks| format!("of {ranks} ranks"))).collect();
        (!words.is_empty()).then(|| words.join(" "))
    });
    all.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// The presets of the recordings, as their first words say.
fn presets(profile: &Profile) -> String {
    let words = profile.notes.iter().filter_map(|note| note.split("; ").find_map(|part| part.strip_prefix("preset ")));
    words.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Communicator, Source};

    #[test]
    fn communicators_without_names_differ_in_their_sizes_only() {
        let profile = |tool, name: Option<&str>, ranks| Profile {
            source: Source { tool, ..Source::default() },
            communicators: vec![Communicator { name: name.map(Into::into), ranks, ..Communicator::default() }],
            ..Profile::default()
        };
        let ours = profile(Tool::Ncclscope, Some("dp"), Some(4));
        for (tool, name, ranks, expected) in [
            (Tool::Nsight, None, Some(4), None),
            (Tool::Nsight, None, None, None),
            (Tool::Nsight, None, Some(2), Some("communicators: of 4 ranks and of 2 ranks")),
            (Tool::Kineto, Some("tp"), Some(4), Some("communicators: dp of 4 ranks and tp of 4 ranks")),
            (Tool::Ncclscope, None, Some(4), Some("communicators: dp of 4 ranks and unnamed of 4 ranks")),
        ] {
            let all = differences(&ours, &profile(tool, name, ranks), Case::TwoRuns);
            let found = all.iter().find(|difference| difference.starts_with("communicators"));
            assert_eq!(found.map(String::as_str), expected, "{tool}");
        }
    }
}
