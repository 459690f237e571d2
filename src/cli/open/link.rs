//! The link: which trace, where to look first, what to pin, what to compute.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use super::super::diagnose::Seen;
use super::super::hang::Hang;
use super::super::survey::{Survey, Track};
use crate::model::time::HostNs;
use crate::trace::words::{self, Category};

/// How many tracks are pinned: more leave no room for the others.
const PINNED: usize = 16;

/// How many operations per process the first view shows.
const SHOWN: usize = 50;

/// Where to look first, in the trace's time: where something never ended; otherwise everything that
/// NCCL did, or the part where it did the most.
pub(super) fn busy(survey: &Survey, hang: Option<&Hang>, (first, last): (HostNs, HostNs)) -> (HostNs, HostNs) {
    // What the GPUs did if they were recorded, otherwise what the host asked for.
    let mut work = if survey.kernels.is_empty() { survey.operations.clone() } else { survey.kernels.clone() };
    work.sort_unstable();
    let processes = survey.tracks.values().filter(|track| track.is_process).count().max(1);
    let count = (SHOWN * processes).min(work.len()).max(1);
    if let Some(hang) = hang.map(|hang| hang.begin) {
        // What came before the hang, and the same length of what has not ended.
        work.retain(|(begin, _)| *begin <= hang);
        let begin = work.iter().rev().take(count).next_back().map_or(hang, |(begin, _)| *begin);
        let length = hang.since(begin).max(1_000_000);
        return (begin.saturating_sub(length / 20).max(first), hang.saturating_add(length).min(last));
    }
    let Some(densest) = work.windows(count).min_by_key(|window| window[count - 1].0.since(window[0].0)) else {
        return (first, last);
    };
    let begin = densest[0].0;
    let end = densest.iter().map(|(_, end)| *end).max().unwrap_or(begin);
    let margin = end.since(begin) / 20;
    (begin.saturating_sub(margin).max(first), end.saturating_add(margin).min(last))
}

/// The subject and the time range of the first view.
pub(super) struct First<'a> {
    pub(super) hang: Option<&'a Hang>,
    pub(super) causes: &'a [Seen],
    pub(super) view: (HostNs, HostNs),
}

/// The link to a viewer with the trace at `path` on this port.
pub(super) fn link(survey: &Survey, first: &First<'_>, port: u16, path: &str, is_own_viewer: bool) -> String {
    let own = format!("http://127.0.0.1:{port}/");
    let viewer = if is_own_viewer { &own } else { "https://ui.perfetto.dev/" };
    let mut link = format!("{viewer}#!/?url={}", encoded(&format!("{own}{path}")));
    let (begin, end) = first.view;
    // The viewer ignores an empty range, or one that leaves the trace.
    if begin < end {
        let _ = write!(link, "&visStart={}&visEnd={}", begin.0, end.0);
    }
    let commands = commands(survey, first.hang, first.causes);
    if !commands.is_empty() {
        let _ = write!(link, "&startupCommands={}", encoded(&format!("[{}]", commands.join(","))));
    }
    link
}

/// What the viewer should do with the trace, as JSON.
fn commands(survey: &Survey, hang: Option<&Hang>, causes: &[Seen]) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = |id: &str, words: &[&str]| {
        commands.push(json!({ "id": format!("dev.perfetto.{id}"), "args": words }).to_string());
    };
    // One command per track, because the viewer orders the tracks pinned by one command by process,
    // which up to v56 means by their slices.
    let pinned = pinned(survey);
    for name in &pinned {
        command("PinTracksByRegex", &[&format!("^{}$", escaped(name))]);
    }
    // `merge` drew who was last, with the clocks' errors.
    let merged = first_to_last(survey, &pinned);
    for name in &merged {
        command("PinTracksByRegex", &[&format!("^{}$", escaped(name))]);
    }
    if survey.dropped > 0 {
        command("PinTracksByRegex", &[&format!("^{}$", words::track::DROPS)]);
    }
    if hang.is_some() {
        command("AddDebugSliceTrack", &[&unfinished(), "No end seen"]);
    }
    // `merge` drew them, too.
    if survey.tracks.values().any(|track| track.name == words::track::DIAGNOSIS) {
        command("PinTracksByRegex", &[&format!("^{}$", words::track::DIAGNOSIS)]);
    } else if !causes.is_empty() {
        command("AddDebugSliceTrack", &[&diagnosis(causes), words::track::DIAGNOSIS]);
    }
    let processes = survey.tracks.values().filter(|track| track.is_process).count();
    if processes > 1 && !survey.operations.is_empty() && merged.is_empty() {
        let with_runs = with_runs(survey);
        let of_all = survey.tracks.iter().filter(|(_, track)| track.operations > 0);
        let all_run = of_all.map(|(uuid, _)| survey.process(*uuid)).all(|process| with_runs.contains(&process));
        let category = if all_run { Category::Run } else { Category::Operation };
        command("AddDebugSliceTrack", &[&arrivals(category.name()), "First to last rank"]);
    }
    commands
}

/// A slice for each cause, in words.
fn diagnosis(causes: &[Seen]) -> String {
    let slice = |Seen { text, time: (begin, end), .. }: &Seen| {
        format!("SELECT {} AS ts, {} AS dur, '{}' AS name", begin.0, end.since(*begin), text.replace('\'', "''"))
    };
    causes.iter().map(slice).collect::<Vec<_>>().join(" UNION ALL ")
}

/// What NCCL had not ended, or was not seen to end, when the recording ended; one slice per
/// operation.
fn unfinished() -> String {
    let overdue = Category::NotDone.name();
    format!(
        "SELECT min(ts) AS ts, -1 AS dur, name FROM slice WHERE dur=-1 AND (category='{overdue}' \
         OR extract_arg(arg_set_id,'nccl.steps') IS NOT NULL) \
         GROUP BY coalesce(extract_arg(arg_set_id,'correlation_id'),id)"
    )
}

/// For each operation, the time from the first rank that began it to the last one.
const ARRIVALS: &str = include_str!("arrivals.sql");

/// [`ARRIVALS`] for the operations of a category, without its comments and on one line, because it
/// goes into a link.
fn arrivals(category: &str) -> String {
    let words = ARRIVALS.lines().filter(|line| !line.starts_with("--")).flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ").replace("CATEGORY", category)
}

/// The processes whose operations are drawn while the GPU worked on them. A process that hung from
/// its first operation on is not one of them: its kernels never came.
fn with_runs(survey: &Survey) -> HashSet<Option<u64>> {
    let drawn = survey.tracks.iter().filter(|(_, track)| track.runs > 0);
    drawn.map(|(uuid, _)| survey.process(*uuid)).collect()
}

/// The communicators' tracks by name, those with the most traffic, in order of rank. Where a
/// process's operations are drawn while the GPU worked on them, those tracks are used.
fn pinned(survey: &Survey) -> Vec<String> {
    let mut by_name: BTreeMap<&str, (u64, u64, BTreeSet<Option<u64>>)> = BTreeMap::new();
    let with_runs = with_runs(survey);
    for (uuid, Track { name, bytes, operations, runs, .. }) in &survey.tracks {
        let process = survey.process(*uuid);
        let is_drawn = if with_runs.contains(&process) { *runs > 0 } else { *operations > 0 };
        if !is_drawn || name.is_empty() {
            continue;
        }
        let entry = by_name.entry(name).or_default();
        entry.0 += bytes;
        entry.1 += operations;
        entry.2.insert(process);
    }
    let mut names: Vec<_> = by_name.into_iter().collect();
    names.sort_by_key(|(_, (bytes, operations, _))| std::cmp::Reverse((*bytes, *operations)));
    let mut room = PINNED;
    let fits = names.into_iter().filter(|(_, (.., processes))| {
        let fits = processes.len() <= room;
        room -= if fits { processes.len() } else { 0 };
        fits
    });
    let mut names: Vec<_> = fits.map(|(name, _)| name.to_owned()).collect();
    names.sort_by_cached_key(|name| by_rank(name));
    names
}

/// The tracks that say who was last, of the communicators of these tracks.
fn first_to_last(survey: &Survey, tracks: &[String]) -> BTreeSet<String> {
    let label = |name: &String| Some(name.split_once(words::track::RANK)?.0.to_owned() + words::track::FIRST_TO_LAST);
    let there: BTreeSet<&str> = survey.tracks.values().map(|track| &*track.name).collect();
    tracks.iter().filter_map(label).filter(|name| there.contains(&**name)).collect()
}

/// The sort key of a communicator's track: its label, and the rank in it as a number.
fn by_rank(name: &str) -> (String, u32, String) {
    let (label, rest) = name.split_once(words::track::RANK).unwrap_or((name, ""));
    let rank = rest.split(' ').next().and_then(|rank| rank.parse().ok());
    (label.to_owned(), rank.unwrap_or(u32::MAX), rest.to_owned())
}

/// A text as a pattern that matches only that text.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if "\\^$.|?*+()[]{}/".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// A text, encoded as a value in a link.
fn encoded(text: &str) -> String {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, &PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_for_each_context() {
        assert_eq!(escaped("dp (a|b) · 1.5"), "dp \\(a\\|b\\) · 1\\.5");
    }

    #[test]
    fn a_process_whose_kernels_never_came_is_pinned_too() {
        let mut survey = Survey::default();
        let mut track = |uuid: u64, parent: Option<u64>, name: &str, runs: u64| {
            let track = survey.tracks.entry(uuid).or_default();
            (track.is_process, track.pid, track.parent) = (parent.is_none(), Some(70 + uuid), parent);
            (track.name, track.operations, track.runs) = (name.to_owned(), if parent.is_some() { 3 } else { 0 }, runs);
        };
        track(1, None, "rank 0", 0);
        track(2, None, "rank 1", 0);
        track(11, Some(1), "tp · rank 0 of 2 · handed over", 0);
        track(21, Some(2), "tp · rank 1 of 2", 3);
        track(22, Some(2), "tp · rank 1 of 2 · handed over", 0);
        survey.operations.push((HostNs(5), HostNs(6)));
        assert_eq!(Vec::from_iter(pinned(&survey)), ["tp · rank 0 of 2 · handed over", "tp · rank 1 of 2"]);
        assert!(commands(&survey, None, &[]).iter().any(|command| command.contains("s.category = 'operation'")));
    }

    #[test]
    fn tracks_are_pinned_in_the_order_of_ranks() {
        let mut survey = Survey::default();
        for rank in [11, 2, 10, 0] {
            let process = survey.tracks.entry(rank).or_default();
            (process.is_process, process.pid) = (true, Some(70 + rank));
            let track = survey.tracks.entry(100 + rank).or_default();
            (track.parent, track.operations, track.bytes) = (Some(rank), 3, rank);
            track.name = format!("tp (a) · rank {rank} of 12");
        }
        let names = [0, 2, 10, 11].map(|rank| format!("tp (a) · rank {rank} of 12"));
        assert_eq!(pinned(&survey), names);
        let commands = commands(&survey, None, &[]);
        let pins: Vec<_> = commands.iter().filter(|command| command.contains("PinTracksByRegex")).collect();
        assert_eq!(pins.len(), 4, "one by one, because the viewer has an order of its own: {commands:?}");
        assert!(
            pins.iter().zip(&names).all(|(pin, name)| pin.contains(json!(escaped(name)).to_string().trim_matches('"')))
        );
    }

    #[test]
    fn overdue_operations_count_as_unfinished() {
        let overdue = |hang| {
            let commands = commands(&Survey::default(), hang, &[]);
            commands.iter().any(|command| command.contains("No end seen") && command.contains("category='not done'"))
        };
        let hang = Hang::default();
        assert!(overdue(Some(&hang)) && !overdue(None));
    }

    #[test]
    fn causes_are_a_track_unless_merge_drew_one() {
        let time = (HostNs(5), HostNs(25));
        let cause = |text: &str| Seen { text: text.to_owned(), time, file: "a".into() };
        let causes = [cause("rank 2's host is late"), cause("a link is slow")];
        let drawn = commands(&Survey::default(), None, &causes);
        let query = "SELECT 5 AS ts, 20 AS dur, 'rank 2''s host is late' AS name UNION ALL \
                     SELECT 5 AS ts, 20 AS dur, 'a link is slow' AS name";
        assert!(drawn.iter().any(|it| it.contains(query) && it.contains("Diagnosis")), "{drawn:?}");
        let mut survey = Survey::default();
        survey.tracks.entry(1).or_default().name = words::track::DIAGNOSIS.to_owned();
        let pinned = commands(&survey, None, &causes);
        assert!(pinned.iter().any(|it| it.contains("PinTracksByRegex") && it.contains("^Diagnosis$")), "{pinned:?}");
        assert!(!pinned.iter().any(|it| it.contains("rank 2")), "{pinned:?}");
    }

    #[test]
    fn the_first_view_is_where_operations_are_densest() {
        let survey = |begins: Vec<u64>| Survey {
            operations: begins.into_iter().map(|begin| (HostNs(begin), HostNs(begin + 1000))).collect(),
            ..Survey::default()
        };
        let busy = |survey: &Survey, hang: Option<&Hang>, (first, last): (u64, u64)| {
            let (begin, end) = busy(survey, hang, (HostNs(first), HostNs(last)));
            (begin.0, end.0)
        };
        // Fifty one millisecond apart, then fifty ten times as dense, then one far away.
        let dense = (0..50).map(|n| n * 1_000_000).chain((0..50).map(|n| 100_000_000 + n * 100_000));
        let (begin, end) = busy(&survey(dense.chain([900_000_000]).collect()), None, (0, 1_000_000_000));
        assert_eq!((begin, end), (100_000_000 - 245_050, 104_901_000 + 245_050));
        // Something hangs: everything up to there, and the same length after it.
        let hang = Hang { begin: HostNs(500_000_000), ..Hang::default() };
        let survey_of_it = survey(vec![100_000_000, 400_000_000, 600_000_000]);
        assert_eq!(busy(&survey_of_it, Some(&hang), (0, 1_000_000_000)), (80_000_000, 900_000_000));
        // If there are few, all of them; if none, everything.
        assert_eq!(busy(&survey(vec![500, 700]), None, (0, 2000)), (440, 1760));
        assert_eq!(busy(&survey(vec![]), None, (5, 1000)), (5, 1000));
    }
}
