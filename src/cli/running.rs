//! Which recordings are still being written, and which processes have ended without a word, as far as
//! this machine and the traces tell.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::LISTED;
use super::survey::{LAG_NS, Process, Survey, rank};
use crate::model::time::HostNs;

/// A recording was alive if others of its communicators handed over collectives so long after its last sign
/// of life, ns: its trace was not written in time. Its process may have taken part for a second or two after
/// that sign.
const TOOK_PART_NS: u64 = 3_000_000_000;

/// A process that seems to have ended before others of its run on its host, or to stand still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// Its rank in the job, if known.
    pub(super) rank: Option<u32>,
    /// As in `pid 4711 on node17`, or its name if its host is not known.
    pub(super) place: Option<String>,
    pub(super) how: How,
    /// How long the others showed life after it, ns.
    pub(super) early_ns: u64,
}

/// What shows that a process has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum How {
    /// Nobody writes its trace any more, but those of others.
    #[default]
    Unwritten,
    /// Its trace stops long before those of the others. It may still have it open.
    Silent { is_there: bool },
    /// It exited in an orderly way, and most of the others did not.
    Exited { others_run: bool },
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let early = self.early_ns as f64 / 1e9;
        match self.how {
            How::Unwritten => f.write_str("nobody writes its trace any more, so its process has probably ended"),
            How::Silent { is_there: true } => write!(
                f,
                "its trace stops {early:.1} s before the others of its host, though its process is still there: it is \
                 stopped, or cannot write"
            ),
            How::Silent { is_there: false } => write!(
                f,
                "its trace stops {early:.1} s before the others of its host, so its process had probably ended by then, \
                 or was stopped"
            ),
            How::Exited { others_run: true } => {
                write!(f, "it exited by itself {early:.1} s ago, and others of its host are still running")
            }
            How::Exited { others_run: false } if self.early_ns > 0 => write!(
                f,
                "it exited by itself, and others of its host showed life for another {early:.1} s; these have no end, \
                 so they are still running or were killed"
            ),
            How::Exited { others_run: false } => f.write_str(
                "it exited by itself; others of its host have no end, so they are still running or were killed",
            ),
        }
    }
}

impl Gone {
    /// The same for a line of its own.
    pub(super) fn line(&self) -> String {
        let rank = self.rank.map(|rank| format!("rank {rank}"));
        let who: Vec<String> = rank.into_iter().chain(self.place.clone()).collect();
        format!("{}: {self}", who.join(", "))
    }
}

/// The processes that seem to have ended, by their tracks. Either nobody has their traces open any
/// more, but those of others of their run on the same host, which is this one. Or they show no sign of
/// life at the end, where those others do. Or they exited by themselves, and most of the others did not.
pub(super) fn gone(survey: &Survey) -> BTreeMap<u64, Gone> {
    let writing = are_being_written(survey.extents.iter().map(|(path, _)| path.as_path()));
    let mut all = BTreeMap::new();
    for group in survey.side_by_side() {
        let group: Vec<_> = group.iter().map(|track| (*track, &survey.processes[track])).collect();
        let writes = |it: &Process| writing.get(it.file).copied().unwrap_or(false);
        let is_here = group.iter().any(|(_, it)| writes(it));
        let end = group.iter().map(|(_, it)| it.last).max().unwrap_or_default();
        let last_collective = last_collectives(survey, &group);
        // Without it, no collective of its communicators would have been handed over for long.
        let took_part = |track: &u64, it: &Process| {
            last_collective.get(track).is_some_and(|last| last.since(it.last) > TOOK_PART_NS)
        };
        let exited = group.iter().filter(|(_, it)| it.ended.is_some()).count();
        for &(track, it) in &group {
            let (is_there, early_ns) = (writes(it), end.since(it.last));
            let how = match it.ended {
                // A job ends like this, too.
                Some(_) if 2 * exited >= group.len() || is_here && early_ns <= LAG_NS => continue,
                Some(_) => How::Exited { others_run: is_here },
                None if it.is_silent_at(end) && (is_there || !took_part(&track, it)) => How::Silent { is_there },
                None if !is_there && is_here => How::Unwritten,
                None => continue,
            };
            let rank = survey.tracks.get(&track).and_then(|it| rank(&it.name));
            let name = || survey.tracks.get(&track).map(|it| it.name.clone());
            all.insert(track, Gone { rank, place: survey.place(track).or_else(name), how, early_ns });
        }
    }
    all
}

/// What is said of processes that ended first: the first one with where to look, and the others. `all` are
/// in this order.
pub(super) fn ended_first(all: &[Gone]) -> Option<(String, Vec<String>)> {
    let [first, others @ ..] = all else { return None };
    let look = "its own log, that of its launcher and that of the kernel (dmesg) may say why".to_owned();
    let mut details: Vec<String> = [look].into_iter().chain(others.iter().take(LISTED - 1).map(Gone::line)).collect();
    if let more @ 1.. = others.len().saturating_sub(LISTED - 1) {
        details.push(format!("and {more} more"));
    }
    Some((first.line(), details))
}

/// When one of these processes last handed over a collective that the others have to take part in: for
/// each process, of its communicators.
fn last_collectives(survey: &Survey, group: &[(u64, &Process)]) -> BTreeMap<u64, HostNs> {
    let in_group: BTreeSet<u64> = group.iter().map(|(track, _)| *track).collect();
    let (mut last, mut members) = (BTreeMap::new(), BTreeSet::new());
    for (uuid, track) in &survey.tracks {
        let Some(process) = survey.process(*uuid).filter(|process| in_group.contains(process)) else { continue };
        members.extend(track.communicators.iter().map(|hash| (process, *hash)));
        if let ([hash], Some((_, time))) = (&track.communicators[..], &track.handed_over.collective) {
            let last: &mut HostNs = last.entry(*hash).or_default();
            *last = (*last).max(*time);
        }
    }
    let mut of_process = BTreeMap::new();
    for (process, hash) in members {
        let newest: &mut HostNs = of_process.entry(process).or_default();
        *newest = last.get(&hash).map_or(*newest, |last| (*last).max(*newest));
    }
    of_process
}

/// For each file, whether a process of this machine, one that we may inspect, has it open for writing.
pub(super) fn are_being_written<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Vec<bool> {
    let id = |file: fs::Metadata| (file.dev(), file.ino());
    let ids: Vec<_> = paths.into_iter().map(|path| fs::metadata(path).ok().map(id)).collect();
    let mut written: HashMap<_, bool> = ids.iter().flatten().map(|id| (*id, false)).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in processes.flat_map(|process| fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()) {
        let of_it = fs::metadata(entry.path()).ok().and_then(|file| written.get_mut(&id(file)));
        let Some(is_written) = of_it.filter(|is_written| !**is_written) else { continue };
        // `flags:	0100001`: the last octal digit is the access mode.
        let info = entry.path().to_string_lossy().replacen("/fd/", "/fdinfo/", 1);
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        *is_written = flags.is_some_and(|flags| flags.trim().ends_with(['1', '2']));
    }
    ids.iter().map(|id| id.is_some_and(|id| written[&id])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::survey::Collective;
    use crate::trace::reader::Extent;

    const SECOND: u64 = 1_000_000_000;

    /// Processes with a trace each, which nobody writes. Each shows life up to this second.
    fn survey(processes: &[(&str, u64)]) -> Survey {
        let mut survey = Survey::default();
        for (file, (name, last)) in processes.iter().enumerate() {
            let track = survey.tracks.entry(file as u64).or_default();
            (track.name, track.pid, track.is_process) = ((*name).to_owned(), Some(7), true);
            track.communicators = vec![1];
            let (last, silence_ns) = (HostNs(last * SECOND), Some(5 * SECOND));
            survey.processes.insert(file as u64, Process { file, last, silence_ns, ..Process::default() });
            survey.extents.push((format!("no file {file}").into(), Extent::default()));
        }
        survey
    }

    fn said(survey: &Survey) -> Vec<(u64, String)> {
        gone(survey).iter().map(|(track, gone)| (*track, gone.to_string())).collect()
    }

    #[test]
    fn a_process_whose_trace_nobody_writes_has_probably_ended() {
        let mut survey = survey(&[("rank 0 · node", 90), ("rank 1 · node", 90)]);
        let files = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap().into_temp_path());
        survey.extents.iter_mut().zip(&files).for_each(|(extent, file)| extent.0 = file.to_path_buf());
        assert_eq!(said(&survey), [], "all have ended, or this is another machine");
        let open = std::fs::File::options().append(true).open(&files[1]).unwrap();
        let ended = "nobody writes its trace any more, so its process has probably ended";
        assert_eq!(said(&survey), [(0, ended.to_owned())]);
        survey.processes.get_mut(&1).unwrap().last = HostNs(80 * SECOND);
        let stopped = "its trace stops 10.0 s before the others of its host, though its process is still there: it is \
                       stopped, or cannot write";
        assert_eq!(said(&survey)[1], (1, stopped.to_owned()));
        survey.tracks.get_mut(&1).unwrap().name = "rank 1 · other".to_owned();
        assert_eq!(said(&survey), [], "nothing is known about its host");
        drop(open);
    }

    #[test]
    fn a_process_without_a_sign_of_life_at_the_end_has_probably_ended() {
        let mut survey =
            survey(&[("rank 0 · node", 90), ("rank 1 · node", 84), ("rank 2 · node", 86), ("rank 3 · other", 10)]);
        let ended = "its trace stops 6.0 s before the others of its host, so its process had probably ended by then, or \
                     was stopped";
        assert_eq!(said(&survey), [(1, ended.to_owned())]);
        assert_eq!(gone(&survey)[&1].place.as_deref(), Some("pid 7 on node"));
        let one = |survey: &mut Survey, change: fn(&mut Process)| {
            change(survey.processes.get_mut(&1).unwrap());
            assert_eq!(said(survey), []);
        };
        one(&mut survey, |it| it.silence_ns = Some(60 * SECOND));
        one(&mut survey, |it| it.silence_ns = None);
        one(&mut survey, |it| (it.silence_ns, it.boot) = (Some(5 * SECOND), Some("another".into())));
    }

    #[test]
    fn a_process_whose_trace_was_not_written_in_time_has_not_ended() {
        let mut survey = survey(&[("rank 0 · node", 90), ("rank 1 · node", 80)]);
        for (time, is_gone) in [(82, true), (89, false)] {
            let handed_over = &mut survey.tracks.get_mut(&0).unwrap().handed_over;
            handed_over.collective = Some((Collective::default(), HostNs(time * SECOND)));
            assert_eq!(!gone(&survey).is_empty(), is_gone, "others handed a collective over at {time} s");
        }
        survey.tracks.get_mut(&0).unwrap().communicators = vec![2];
        let track = survey.tracks.entry(9).or_default();
        (track.parent, track.communicators) = (Some(0), vec![1]);
        assert!(!gone(&survey).is_empty(), "it has no part in that communicator");
    }

    #[test]
    fn a_process_that_exited_while_most_of_the_others_were_killed_is_named() {
        let mut survey = survey(&[("rank 0 · node", 90), ("rank 1 · node", 87), ("rank 2 · node", 90)]);
        assert_eq!(said(&survey), []);
        let exits = |survey: &mut Survey, track| {
            let it = survey.processes.get_mut(&track).unwrap();
            it.ended = Some(it.last);
        };
        exits(&mut survey, 1);
        let exited = "it exited by itself, and others of its host showed life for another 3.0 s; these have no end, so they \
                      are still running or were killed";
        assert_eq!(said(&survey), [(1, exited.to_owned())]);
        survey.processes.get_mut(&1).unwrap().last = HostNs(90 * SECOND);
        let exited = "it exited by itself; others of its host have no end, so they are still running or were killed";
        assert_eq!(said(&survey), [(1, exited.to_owned())]);
        // While the others are being written, they may be about to exit, too.
        let files = [(); 3].map(|()| tempfile::NamedTempFile::new().unwrap().into_temp_path());
        survey.extents.iter_mut().zip(&files).for_each(|(extent, file)| extent.0 = file.to_path_buf());
        let open = [0, 2].map(|file: usize| std::fs::File::options().append(true).open(&files[file]).unwrap());
        assert_eq!(said(&survey), []);
        survey.processes.get_mut(&1).unwrap().last = HostNs(80 * SECOND);
        let exited = "it exited by itself 10.0 s ago, and others of its host are still running";
        assert_eq!(said(&survey), [(1, exited.to_owned())]);
        drop(open);
        exits(&mut survey, 0);
        assert_eq!(said(&survey), [], "most have exited: the job had ended");
    }

    #[test]
    fn of_many_that_ended_first_the_first_is_told_with_where_to_look() {
        let gone = |rank: u32| Gone {
            rank: Some(rank),
            place: Some(format!("pid {rank} on node")),
            how: How::Silent { is_there: false },
            early_ns: 8 * SECOND,
        };
        assert_eq!(ended_first(&[]), None);
        let all: Vec<Gone> = (0..20).map(gone).collect();
        let (first, details) = ended_first(&all).unwrap();
        assert!(first.starts_with("rank 0, pid 0 on node: its trace stops 8.0 s before"), "{first}");
        assert_eq!(details.len(), LISTED + 1);
        assert!(details[0].contains("dmesg") && details[1].starts_with("rank 1, pid 1 on node: "), "{details:?}");
        assert_eq!(details[LISTED], format!("and {} more", 20 - LISTED));
    }

    #[test]
    fn an_earlier_run_on_the_same_host_has_not_died_before_the_later_one() {
        let mut survey = survey(&[("rank 0 · node", 30), ("rank 1 · node", 30), ("rank 0 · node", 90)]);
        let all = said(&survey);
        assert_eq!(all.iter().map(|(track, _)| *track).collect::<Vec<_>>(), [0, 1]);
        survey.tracks.get_mut(&2).unwrap().communicators = vec![2];
        assert_eq!(said(&survey), [], "it has no communicator in common with them");
        let files = [(); 3].map(|()| tempfile::NamedTempFile::new().unwrap().into_temp_path());
        survey.extents.iter_mut().zip(&files).for_each(|(extent, file)| extent.0 = file.to_path_buf());
        let _open = std::fs::File::options().append(true).open(&files[2]).unwrap();
        assert_eq!(said(&survey), [], "it alone is being written");
        // A track of another communicator of a rank of the earlier run.
        let track = survey.tracks.entry(9).or_default();
        (track.parent, track.communicators) = (Some(1), vec![2]);
        assert_eq!(said(&survey), all, "they share a communicator with its rank 1");
    }
}
