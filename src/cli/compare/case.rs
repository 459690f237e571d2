//! Whether two files come from the same run or from two, judged by their times, hosts and
//! processes; and which pairs cannot be compared.

use clap::ValueEnum;
use serde::Serialize;

use crate::cli::reason::Reason;
use crate::import::knowledge::utc;
use crate::import::{Profile, Tool, WALL_CLOCKS_NS};
use crate::model::time::UtcNs;

/// What helps if neither case fits.
const ANYWAY: &str = "--as two-runs compares counts and durations all the same";

/// How two files are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    /// The same processes, recorded by two tools at once: moments can be compared.
    SameRun,
    /// Two runs: only counts and durations can be compared.
    TwoRuns,
}

/// The case, and how it was recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Recognised {
    pub(crate) case: Case,
    pub(crate) reason: String,
}

/// Recognises the case; `said` is what the user says it is.
///
/// # Errors
///
/// Why the two cannot be compared.
pub(crate) fn recognise(a: &Profile, b: &Profile, said: Option<Case>) -> Result<Recognised, Reason> {
    comparable(a, b)?;
    let found = find(a, b);
    match (said, found) {
        (Some(case), Ok(found)) if case == found.case => Ok(found),
        (Some(Case::SameRun), Ok(found)) => {
            Err(Reason::Refused(format!("--as same-run contradicts the files: {}", found.reason)))
        }
        (Some(case), Ok(found)) => {
            Ok(Recognised { case, reason: format!("named with --as; the files say otherwise: {}", found.reason) })
        }
        (Some(Case::TwoRuns), Err(reason)) => {
            Ok(Recognised { case: Case::TwoRuns, reason: format!("named with --as; otherwise refused: {reason}") })
        }
        (Some(Case::SameRun), Err(reason)) => Err(reason),
        (None, found) => found,
    }
}

/// Refuses files that can have nothing in common.
fn comparable(a: &Profile, b: &Profile) -> Result<(), Reason> {
    let name = |profile: &Profile| profile.source.path.display().to_string();
    for profile in [a, b] {
        if profile.extent().is_none() {
            return Err(Reason::Refused(format!(
                "{} has nothing to compare: {}",
                name(profile),
                profile.notes.join("; ")
            )));
        }
    }
    if same_recording(a, b) {
        return Err(Reason::Refused(format!("{} and {} are the same recording", name(a), name(b))));
    }
    Ok(())
}

/// Whether two files of one tool are the same recording.
fn same_recording(a: &Profile, b: &Profile) -> bool {
    let pids = |profile: &Profile| profile.processes.iter().map(|process| process.pid).collect::<Vec<_>>();
    let is_same_time = match (utc_extent(a), utc_extent(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a.extent() == b.extent(),
    };
    a.source.tool == b.source.tool && pids(a) == pids(b) && is_same_time
}

fn find(a: &Profile, b: &Profile) -> Result<Recognised, Reason> {
    let two = |reason: String| Ok(Recognised { case: Case::TwoRuns, reason });
    let (Some([begin_a, end_a]), Some([begin_b, end_b])) = (utc_extent(a), utc_extent(b)) else {
        return two("the times of one of them are related to no other clock, so they are taken for two runs".into());
    };
    let common: Vec<i64> = pids(a).into_iter().filter(|pid| pids(b).contains(pid)).collect();
    // Two tools read the wall clock at different times, and a job may be shorter than the time
    // between.
    let apart = begin_b.since(end_a).max(begin_a.since(end_b));
    let may_be_one = !common.is_empty() && a.source.tool != b.source.tool;
    if apart > if may_be_one { WALL_CLOCKS_NS.cast_signed() } else { 0 } {
        return two(format!("their times do not overlap: from {} and from {}", utc(begin_a), utc(begin_b)));
    }
    if let (Some(host), Some(other)) = (&a.host, &b.host)
        && host != other
    {
        return Err(Reason::Refused(format!(
            "they were recorded at the same time on different hosts, {host} and {other}, so they are neither one process nor two runs; \
             {ANYWAY}"
        )));
    }
    match (&common[..], a.source.tool, b.source.tool) {
        ([], Tool::Ncclscope, Tool::Ncclscope) => Err(Reason::Refused(format!(
            "they were recorded at the same time and have no process in common ({} and {}); ncclscope merge puts them on one timeline; {ANYWAY}",
            list(&pids(a)),
            list(&pids(b))
        ))),
        ([], ..) => Err(Reason::Refused(format!(
            "they were recorded at the same time and have no process in common ({} and {}); {ANYWAY}",
            list(&pids(a)),
            list(&pids(b))
        ))),
        (common, Tool::Ncclscope, Tool::Ncclscope) => Err(Reason::Refused(format!(
            "both are recordings of the same run, of process {}: there is nothing to compare; name traces of two runs",
            list(common)
        ))),
        (common, Tool::Ncclscope, tool) => Ok(Recognised {
            case: Case::SameRun,
            reason: format!(
                "their times {} and process {} is in both, recorded by ncclscope and by {tool}",
                if apart > 0 { "are as close as wall clocks can tell" } else { "overlap" },
                list(common)
            ),
        }),
        (common, _, Tool::Ncclscope) => Err(Reason::Refused(format!(
            "both are recordings of the same run, of process {}, and the trace of ncclscope has to come first: \
             name them the other way round",
            list(common)
        ))),
        (common, ..) => Err(Reason::Refused(format!(
            "both are recordings of the same run, of process {}, and moments can be compared only with a trace of \
             ncclscope; {ANYWAY}",
            list(common)
        ))),
    }
}

/// When the first item began and the last one ended.
fn utc_extent(profile: &Profile) -> Option<[UtcNs; 2]> {
    let (extent, to_utc) = (profile.extent()?, profile.clock.to_utc?);
    Some([extent.start, extent.end].map(|time| time.to_utc(to_utc)))
}

fn pids(profile: &Profile) -> Vec<i64> {
    profile.processes.iter().map(|process| process.pid).filter(|pid| *pid != 0).collect()
}

fn list(pids: &[i64]) -> String {
    let shown: Vec<String> = pids.iter().take(8).map(ToString::to_string).collect();
    let more = if pids.len() > 8 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Clock, Launch, Process, Source, Span};

    fn profile(tool: Tool, host: Option<&str>, pid: i64, start: i64) -> Profile {
        let process =
            Process { pid, name: String::new(), rank: None, threads: std::collections::BTreeMap::new(), lost: 0 };
        Profile {
            source: Source { tool, ..Source::default() },
            host: host.map(Into::into),
            clock: Clock::of_file("", Some(1_000)),
            processes: vec![process],
            launches: vec![Launch {
                process: 0,
                tid: pid,
                span: Span::of(start, start + 100),
                communicator: None,
                stream: 0,
            }],
            ..Profile::default()
        }
    }

    #[test]
    fn one_process_seen_by_two_tools_is_one_run() {
        let (ours, theirs) = (profile(Tool::Ncclscope, Some("n1"), 7, 0), profile(Tool::Kineto, None, 7, 50));
        assert_eq!(recognise(&ours, &theirs, None).unwrap().case, Case::SameRun);
        assert_eq!(recognise(&ours, &theirs, Some(Case::TwoRuns)).unwrap().case, Case::TwoRuns);
    }

    #[test]
    fn a_job_may_be_shorter_than_the_time_between_clock_readings() {
        for start in [-900_000_000, 500, 900_000_000] {
            let (ours, theirs) = (profile(Tool::Ncclscope, Some("n1"), 7, 0), profile(Tool::Kineto, None, 7, start));
            assert_eq!(recognise(&ours, &theirs, None).unwrap().case, Case::SameRun, "{start}");
        }
    }

    #[test]
    fn different_times_mean_different_runs() {
        let ours = profile(Tool::Ncclscope, Some("n1"), 7, 0);
        let tools = [Tool::Ncclscope, Tool::Nsight, Tool::Kineto];
        for (one, tool) in tools.into_iter().flat_map(|one| tools.map(|tool| (one, tool))) {
            let (one, other) =
                (profile(one, Some("n1"), 7, 0), profile(tool, Some("n1"), 7, 2 * WALL_CLOCKS_NS.cast_signed()));
            assert_eq!(recognise(&one, &other, None).unwrap().case, Case::TwoRuns);
            let other_process = profile(tool, Some("n1"), 8, 500);
            assert_eq!(recognise(&one, &other_process, None).unwrap().case, Case::TwoRuns);
            assert!(recognise(&one, &other, Some(Case::SameRun)).is_err());
        }
        let mut unrelated = profile(Tool::Nsight, None, 7, 0);
        unrelated.clock.to_utc = None;
        assert_eq!(recognise(&ours, &unrelated, None).unwrap().case, Case::TwoRuns);
    }

    #[test]
    fn impossible_pairs_are_refused_with_the_reason() {
        let ours = profile(Tool::Ncclscope, Some("n1"), 7, 0);
        for (a, b, reason) in [
            (&ours, profile(Tool::Nsight, Some("n2"), 7, 0), "different hosts"),
            (&ours, profile(Tool::Nsight, Some("n1"), 8, 0), "no process in common"),
            (&ours, profile(Tool::Ncclscope, Some("n1"), 8, 0), "ncclscope merge"),
            (&ours, profile(Tool::Ncclscope, Some("n1"), 7, 10), "the same run"),
            (&ours, ours.clone(), "the same recording"),
            (&profile(Tool::Kineto, None, 7, 0), ours.clone(), "the other way round"),
            (&profile(Tool::Kineto, None, 7, 0), profile(Tool::Nsight, None, 7, 0), "only with a trace of ncclscope"),
            (&profile(Tool::Kineto, None, 7, 0), profile(Tool::Kineto, None, 7, 0), "the same recording"),
            (&ours, Profile { launches: Vec::new(), ..profile(Tool::Kineto, None, 7, 0) }, "nothing to compare"),
        ] {
            let error = recognise(a, &b, None).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
        // Two processes that ran at the same time may be compared by duration if the user says so.
        let other = profile(Tool::Ncclscope, Some("n1"), 8, 0);
        assert_eq!(recognise(&ours, &other, Some(Case::TwoRuns)).unwrap().case, Case::TwoRuns);
    }
}
