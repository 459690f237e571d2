//! Which recordings are still being written, and which processes have ended without a word, as far
//! as this machine and the traces tell.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::LISTED;
use super::survey::{LAG_NS, Process, Survey, Track, rank};
use crate::model::time::HostNs;

/// A recording was alive if others of its communicators handed over collectives so long after its
/// last sign of life, ns: its trace was not written in time. Its process may have taken part for a
/// second or two after that sign.
const TOOK_PART_NS: u64 = 3_000_000_000;

/// All recordings of a host have stopped if those of others go on for this much longer, ns. Files
/// that are copied from one host after another end some time apart, too.
const HOST_STOPPED_NS: u64 = 60_000_000_000;

/// A process that seems to have ended before others of its run, or to stand still.
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
    /// Its trace and so many others, all of its host, stop long before those of other hosts.
    WithItsHost { others: usize },
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
            How::WithItsHost { others } => {
                let whose = match others {
                    0 => "its trace stops".to_owned(),
                    1 => "its trace and the other one of its host stop".to_owned(),
                    many => format!("its trace and the {many} others of its host stop"),
                };
                write!(
                    f,
                    "{whose} {early:.1} s before those of other hosts: its host or its processes had probably ended by \
                     then, unless the files were copied earlier"
                )
            }
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
/// more, but those of others of their run on the same host, which is this one. Or they show no sign
/// of life at the end, where those others do, or other hosts. Or they exited by themselves, and
/// most of the others did not.
pub(super) fn gone(survey: &Survey) -> BTreeMap<u64, Gone> {
    let writing = are_being_written(survey.extents.iter().map(|(path, _)| path.as_path()));
    let (tracks, with_host) = (tracks_of(survey), stopped_with_their_hosts(survey));
    let mut all = BTreeMap::new();
    for group in survey.side_by_side() {
        let group: Vec<_> = group.iter().map(|track| (*track, &survey.processes[track])).collect();
        let writes = |it: &Process| writing.get(it.file).copied().unwrap_or(false);
        let is_here = group.iter().any(|(_, it)| writes(it));
        let end = group.iter().map(|(_, it)| it.last).max().unwrap_or_default();
        let last_collective = last_collectives(&tracks, &group);
        // Without it, no collective of its communicators would have been handed over for long.
        let took_part = |track: &u64, it: &Process| {
            last_collective.get(track).is_some_and(|last| last.since(it.last) > TOOK_PART_NS)
        };
        let exited = group.iter().filter(|(_, it)| it.ended.is_some()).count();
        for &(track, it) in &group {
            let (is_there, mut early_ns) = (writes(it), end.since(it.last));
            let stopped = with_host.get(&track).filter(|_| !is_here);
            let how = match it.ended {
                // A job ends like this, too.
                Some(_) if 2 * exited >= group.len() || is_here && early_ns <= LAG_NS => continue,
                Some(_) => How::Exited { others_run: is_here },
                None if it.is_silent_at(end) && (is_there || !took_part(&track, it)) => How::Silent { is_there },
                None if !is_there && is_here => How::Unwritten,
                None => {
                    let Some(ns) = stopped else { continue };
                    early_ns = *ns;
                    How::WithItsHost { others: group.len() - 1 }
                }
            };
            let rank = survey.tracks.get(&track).and_then(|it| rank(&it.name));
            let name = || survey.tracks.get(&track).map(|it| it.name.clone());
            all.insert(track, Gone { rank, place: survey.place(track).or_else(name), how, early_ns });
        }
    }
    all
}

/// The tracks of each process that are of a communicator.
fn tracks_of(survey: &Survey) -> HashMap<u64, Vec<&Track>> {
    let mut all: HashMap<u64, Vec<&Track>> = HashMap::new();
    for (uuid, track) in survey.tracks.iter().filter(|(_, track)| !track.communicators.is_empty()) {
        if let Some(process) = survey.process(*uuid) {
            all.entry(process).or_default().push(track);
        }
    }
    all
}

/// When each communicator last handed over a collective on a track.
fn last_collective(track: &Track) -> Option<(u64, HostNs)> {
    let ([hash], Some((_, time))) = (&track.communicators[..], &track.handed_over.collective) else { return None };
    Some((*hash, *time))
}

/// The processes of hosts whose recordings all stop long before those of other hosts, which did
/// nothing any more either; and how long before, ns. That is counted from the last collective of a
/// communicator that both have, so that the hosts' clocks need not agree.
pub(super) fn stopped_with_their_hosts(survey: &Survey) -> HashMap<u64, u64> {
    let tracks = tracks_of(survey);
    let mut hosts = Vec::new();
    // How long the recordings of others went on after the last collective of a communicator, by its
    // hash.
    let mut waited: HashMap<u64, u64> = HashMap::new();
    for group in survey.side_by_side() {
        let of_host: Vec<&Process> = group.iter().map(|process| &survey.processes[process]).collect();
        let end = of_host.iter().map(|it| it.last).max().unwrap_or_default();
        let (mut since, mut quiet_ns): (HashMap<u64, u64>, _) = (HashMap::new(), u64::MAX);
        for track in group.iter().filter_map(|process| tracks.get(process)).flatten() {
            quiet_ns = track.handed_over.last.as_ref().map_or(quiet_ns, |(_, time)| end.since(*time).min(quiet_ns));
            if let Some((hash, time)) = last_collective(track) {
                let known = since.entry(hash).or_insert(u64::MAX);
                *known = end.since(time).min(*known);
            }
        }
        if quiet_ns >= HOST_STOPPED_NS {
            for (hash, since) in &since {
                let longest = waited.entry(*hash).or_default();
                *longest = (*longest).max(*since);
            }
        }
        let shows_life = |it: &&Process| it.silence_ns.is_some() && !it.is_full && !it.is_partial;
        if of_host.iter().all(|it| it.ended.is_none()) && of_host.iter().all(shows_life) {
            hosts.push((group, since));
        }
    }
    let early = |(hash, since): (&u64, &u64)| Some(waited.get(hash)?.saturating_sub(*since));
    let stopped = hosts.iter().filter_map(|(group, since)| Some((group, since.iter().filter_map(early).max()?)));
    let stopped = stopped.filter(|(_, early)| *early >= HOST_STOPPED_NS);
    stopped.flat_map(|(group, early)| group.iter().map(move |process| (*process, early))).collect()
}

/// What is said of processes that ended first: the first one with where to look, and the others.
/// `all` are in this order.
pub(super) fn ended_first(all: &[Gone]) -> Option<(String, Vec<String>)> {
    let [first, others @ ..] = all else { return None };
    let look = "its own log, that of its launcher and that of the kernel (dmesg) may say why".to_owned();
    let mut details: Vec<String> = [look].into_iter().chain(others.iter().take(LISTED - 1).map(Gone::line)).collect();
    if let more @ 1.. = others.len().saturating_sub(LISTED - 1) {
        details.push(format!("and {more} more"));
    }
    Some((first.line(), details))
}

/// When one of these processes last handed over a collective that the others have to take part in:
/// for each process, of its communicators.
fn last_collectives(tracks: &HashMap<u64, Vec<&Track>>, group: &[(u64, &Process)]) -> BTreeMap<u64, HostNs> {
    let of = |process: &u64| tracks.get(process).into_iter().flatten();
    let mut last: HashMap<u64, HostNs> = HashMap::new();
    for (hash, time) in group.iter().flat_map(|(process, _)| of(process)).filter_map(|track| last_collective(track)) {
        let known = last.entry(hash).or_default();
        *known = time.max(*known);
    }
    let newest = |process: &u64| {
        let hashes = of(process).flat_map(|track| &track.communicators);
        hashes.filter_map(|hash| last.get(hash)).max().copied()
    };
    group.iter().filter_map(|(process, _)| Some((*process, newest(process)?))).collect()
}

/// For each file, whether a process of this machine, one that we may inspect, has it open for
/// writing.
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
    fn a_host_whose_recordings_all_stop_has_ended_unless_others_go_on() {
        // The hosts' clocks are a thousand seconds apart.
        let nodes = [("rank 0 · a", 90), ("rank 1 · a", 90), ("rank 2 · b", 1_700), ("rank 3 · b", 1_700)];
        let mut survey = survey(&nodes);
        let hand_over = |survey: &mut Survey, tracks: [u64; 2], last: u64, of_any: u64| {
            for track in tracks {
                let handed_over = &mut survey.tracks.get_mut(&track).unwrap().handed_over;
                handed_over.collective = Some((Collective::default(), HostNs(last * SECOND)));
                handed_over.last = Some((String::new(), HostNs(of_any * SECOND)));
            }
        };
        hand_over(&mut survey, [0, 1], 89, 89);
        hand_over(&mut survey, [2, 3], 1_100, 1_100);
        let stopped = "its trace and the other one of its host stop 599.0 s before those of other hosts: its host or its \
                       processes had probably ended by then, unless the files were copied earlier";
        assert_eq!(said(&survey), [(0, stopped.to_owned()), (1, stopped.to_owned())]);
        assert_eq!(stopped_with_their_hosts(&survey), [(0, 599 * SECOND), (1, 599 * SECOND)].into());
        // The other host goes on elsewhere, so this one's files may only be older.
        hand_over(&mut survey, [2, 3], 1_100, 1_650);
        assert_eq!(said(&survey), []);
        // Both did nothing for as long.
        hand_over(&mut survey, [2, 3], 1_690, 1_690);
        assert_eq!(said(&survey), []);
        hand_over(&mut survey, [2, 3], 1_100, 1_100);
        survey.processes.get_mut(&0).unwrap().ended = Some(HostNs(90 * SECOND));
        assert_eq!(stopped_with_their_hosts(&survey), [].into(), "it ended in an orderly way");
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
