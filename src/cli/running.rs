//! Which recordings are still being written, and which processes have ended without a word, as far as
//! this machine and the traces tell.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::survey::{Process, Survey};

/// A process that seems to have ended, or to stand still.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// As in `pid 4711 on node17`.
    pub(super) place: Option<String>,
    /// How long before the others of its host its trace stops, ns. `None`: they are being written, and
    /// its trace is not.
    pub(super) early_ns: Option<u64>,
    /// It still has its trace open.
    pub(super) is_there: bool,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(early_ns) = self.early_ns else {
            return f.write_str("nobody writes its trace any more, so its process has probably ended");
        };
        write!(f, "its trace stops {:.1} s before the others of its host", early_ns as f64 / 1e9)?;
        f.write_str(match self.is_there {
            true => ", though its process is still there: it is stopped, or cannot write",
            false => ", so its process had probably ended by then, or was stopped",
        })
    }
}

/// The processes that seem to have ended, by their tracks. Either nobody has their traces open any
/// more, but those of others of their run on the same host, which is this one. Or they show no sign of
/// life at the end, where those others do.
pub(super) fn gone(survey: &Survey) -> BTreeMap<u64, Gone> {
    let writing = are_being_written(survey.extents.iter().map(|(path, _)| path.as_path()));
    let mut all = BTreeMap::new();
    for group in survey.side_by_side() {
        let group: Vec<_> = group.iter().map(|track| (*track, &survey.processes[track])).collect();
        let writes = |it: &Process| writing.get(it.file).copied().unwrap_or(false);
        let is_here = group.iter().any(|(_, it)| writes(it));
        let end = group.iter().map(|(_, it)| it.last).max().unwrap_or_default();
        for (track, it) in group {
            let (is_there, early_ns) = (writes(it), end.since(it.last));
            let is_silent = it.ended.is_none() && it.silence_ns.is_some_and(|silence| early_ns > silence);
            if is_silent || !is_there && is_here {
                let early_ns = is_silent.then_some(early_ns);
                all.insert(track, Gone { place: survey.place(track), early_ns, is_there });
            }
        }
    }
    all
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
    use crate::model::time::HostNs;
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
        one(&mut survey, |it| (it.silence_ns, it.ended) = (Some(5 * SECOND), Some(it.last)));
        one(&mut survey, |it| (it.ended, it.boot) = (None, Some("another".into())));
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
