//! Tells the attempts of a job apart whose ranks were restarted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::{Looking, Reach, Survey, host, rank};
use crate::cli::merge::abreast;
use crate::cli::progress::Stage;
use crate::trace::names;
use crate::trace::reader::HEAD;

/// The files of the last attempt in each folder, and a note for each folder in which others are
/// left out. Of long files only the ends are read.
pub(in crate::cli) fn newest(files: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<String>) {
    let mut folders: BTreeMap<Option<&Path>, Vec<PathBuf>> = BTreeMap::new();
    for file in &files {
        folders.entry(file.parent()).or_default().push(file.clone());
    }
    let (mut over, mut notes) = (BTreeSet::new(), Vec::new());
    for of_folder in folders.into_values().filter(|it| it.len() > 1) {
        let stage = Stage::of_ends("looking at", of_folder.len());
        let look = |path: &PathBuf, threads| Looking::at(path, threads, (false, Reach::Ends(HEAD)), |_, _| {}).0;
        let mut surveys = Vec::new();
        abreast::look(&of_folder, look, |path, survey| {
            surveys.push(survey);
            stage.advance(super::size_of(std::slice::from_ref(path)));
        });
        let earlier = earlier(&surveys.iter().collect::<Vec<_>>());
        notes.extend(left_out(&of_folder, &earlier));
        over.extend(earlier.into_iter().map(|at| of_folder[at].clone()));
    }
    (files.into_iter().filter(|file| !over.contains(file)).collect(), notes)
}

/// Which of these files are of attempts that had ended before a rank was started again on the same
/// host. Files are of one attempt if their ranks share communicators, directly or through others.
pub(in crate::cli) fn earlier(files: &[&Survey]) -> BTreeSet<usize> {
    let mut attempts: Vec<usize> = (0..files.len()).collect();
    let mut first = HashMap::new();
    for (file, survey) in files.iter().enumerate() {
        for hash in survey.communicators.keys() {
            let (own, other) = (attempts[file], attempts[*first.entry(*hash).or_insert(file)]);
            if own != other {
                attempts.iter_mut().filter(|it| **it == own).for_each(|it| *it = other);
            }
        }
    }
    let again = started_again(files);
    let other = again.iter().filter(|((ended, _), (newest, _))| attempts[*ended] != attempts[*newest]);
    let over: BTreeSet<usize> = other.map(|((ended, _), _)| attempts[*ended]).collect();
    (0..files.len()).filter(|file| over.contains(&attempts[*file])).collect()
}

/// How a note about files of earlier attempts begins.
pub(in crate::cli) const LEFT_OUT: &str = "Left out: ";

/// That these of the files are left out, if any are.
pub(in crate::cli) fn left_out(files: &[PathBuf], earlier: &BTreeSet<usize>) -> Option<String> {
    let (are, first) = (if earlier.len() == 1 { "file" } else { "files" }, &files[*earlier.first()?]);
    Some(format!(
        "{LEFT_OUT}{} {are} of earlier attempts, such as {}, because their ranks were started again",
        earlier.len(),
        first.display()
    ))
}

/// What a process is again when it is started again on its host.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Role<'a> {
    Rank(u32),
    /// Without a number from a launcher: its program, and the size of its largest communicator.
    Program(&'a str, u64),
}

/// Processes that had ended when another with the same rank was started on the same host, or
/// without a rank the same program in a job of the same size; and the last such one. Each by the
/// number of its survey, and its track.
pub(in crate::cli) fn started_again(surveys: &[&Survey]) -> BTreeMap<(usize, u64), (usize, u64)> {
    let mut of_role: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (number, survey) in surveys.iter().enumerate() {
        let sizes = largest(survey);
        for (uuid, it) in &survey.processes {
            let name = survey.tracks.get(uuid).map_or("", |track| &track.name);
            let role = match (rank(name), host(name), sizes.get(uuid)) {
                (Some(rank), _, _) => Role::Rank(rank),
                (None, Some(_), Some(size)) => Role::Program(names::without_gpu(name).0, *size),
                _ => continue,
            };
            of_role.entry((role, survey.host(*uuid))).or_default().push((it.first, it.last, (number, *uuid)));
        }
    }
    let mut again = BTreeMap::new();
    for all in of_role.values() {
        let Some(newest) = all.iter().max_by_key(|it| it.0) else { continue };
        again.extend(all.iter().filter(|it| it.1 < newest.0).map(|it| (it.2, newest.2)));
    }
    again
}

/// The size of the largest communicator of each process that has one, by its track.
fn largest(survey: &Survey) -> BTreeMap<u64, u64> {
    let mut sizes = BTreeMap::new();
    for (uuid, track) in &survey.tracks {
        let all = track.communicators.iter().filter_map(|hash| survey.communicators.get(hash)?.ranks);
        let (Some(size), Some(process)) = (all.max(), survey.process(*uuid)) else { continue };
        let known = sizes.entry(process).or_insert(size);
        *known = size.max(*known);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::survey::{Communicator, Process, Track};
    use crate::model::time::HostNs;

    /// The file of a process with this name, from when to when it ran, and its communicators.
    fn file(name: &str, (first, last): (u64, u64), communicators: &[u64]) -> Survey {
        let process = Process { first: HostNs(first), last: HostNs(last), ..Process::default() };
        let mut track = Track::default();
        (track.name, track.is_process) = (name.into(), true);
        Survey {
            tracks: [(1, track)].into_iter().collect(),
            processes: [(1, process)].into(),
            communicators: communicators.iter().map(|hash| (*hash, Communicator::default())).collect(),
            ..Survey::default()
        }
    }

    /// The file of a process that has no rank from a launcher, on host `a`, in a communicator of
    /// this size.
    fn program(name: &str, ran: (u64, u64), (hash, size): (u64, u64)) -> Survey {
        let mut survey = file(name, ran, &[hash]);
        survey.communicators = [(hash, Communicator { ranks: Some(size), ..Communicator::default() })].into();
        let mut track = Track::default();
        (track.parent, track.communicators) = (Some(1), vec![hash]);
        survey.tracks.insert(2, track);
        survey
    }

    fn earlier_of(files: &[Survey]) -> Vec<usize> {
        earlier(&files.iter().collect::<Vec<_>>()).into_iter().collect()
    }

    #[test]
    fn what_ended_before_its_rank_was_started_again_is_an_earlier_attempt() {
        // Rank 2, of another host, is not started again.
        let mut files = vec![
            file("rank 0 · a", (10, 20), &[7]),
            file("rank 0 · a", (30, 40), &[9]),
            file("rank 1 · a", (10, 21), &[7, 8]),
            file("rank 1 · a", (30, 40), &[9]),
            file("rank 2 · b", (500, 600), &[8]),
        ];
        assert_eq!(earlier_of(&files), [0, 2, 4]);
        // The last of three attempts.
        files.push(file("rank 0 · a", (50, 60), &[]));
        assert_eq!(earlier_of(&files), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn without_ranks_the_same_program_in_a_job_of_the_same_size_is_another_attempt() {
        let (first, second) = (("python · a", (10, 20), (7, 8)), ("python · a · GPU 0", (30, 40), (9, 8)));
        let is_earlier = |one: (_, _, _), other: (_, _, _)| {
            earlier_of(&[program(one.0, one.1, one.2), program(other.0, other.1, other.2)]) == [0]
        };
        assert!(is_earlier(first, second));
        assert!(!is_earlier(first, (second.0, (15, 40), second.2)), "side by side");
        assert!(!is_earlier(first, (second.0, second.1, (9, 2))), "of another size");
        assert!(!is_earlier(first, ("python · b", second.1, second.2)), "on another host");
        assert!(!is_earlier(first, ("eval · a", second.1, second.2)), "another program");
        assert!(!is_earlier(first, (second.0, second.1, first.2)), "in the same communicator");
    }

    #[test]
    fn runs_side_by_side_and_on_other_hosts_are_no_attempts() {
        let side_by_side = [file("rank 0 · a", (10, 40), &[7]), file("rank 0 · a", (30, 50), &[9])];
        assert_eq!(earlier_of(&side_by_side), [0_usize; 0]);
        let hosts = [file("rank 0 · a", (10, 20), &[7]), file("rank 0 · b", (30, 40), &[9])];
        assert_eq!(earlier_of(&hosts), [0_usize; 0]);
        let one = [file("rank 0 · a", (10, 20), &[7]), file("rank 0 · a", (30, 40), &[7])];
        assert_eq!(earlier_of(&one), [0_usize; 0], "they share a communicator");
        assert_eq!(earlier_of(&[file("python", (10, 20), &[7]), file("python", (30, 40), &[9])]), [0_usize; 0]);
    }
}
