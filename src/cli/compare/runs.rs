//! A run as named on the command line: a file, or a folder with the files of its ranks; read as one
//! profile.

use std::path::{Path, PathBuf};

use crate::cli::merge::abreast;
use crate::cli::reason::Reason;
use crate::cli::survey::{Looking, Survey, attempts};
use crate::import::{self, Operation, Profile, Wanted};
use crate::summary;
use crate::trace::reader::Extent;

/// A folder holds nothing to read.
const NONE: &str = "the folder has no *.perfetto-trace, *.sqlite, *.json or *.json.gz in it";
/// There is no such folder.
const NOWHERE: &str = "there is no such folder. A recorded job has one once it has made its first communicator; if it \
                       stands still before, it waits in ncclCommInitRank or has not come to it";

/// Reads a run, of several attempts the last one; and what else its traces show, if they are ours.
///
/// # Errors
///
/// Which file cannot be read, and why; or what in the folder makes it more than one run.
pub(crate) fn open(path: &Path) -> Result<(Profile, Survey), Reason> {
    let files = if path.is_dir() { files(path)? } else { vec![path.to_owned()] };
    let read = |file: &PathBuf, threads| {
        let mut looking = Looking::default();
        let profile = import::open_as(file, threads, (Wanted::Calls, None), looking.beside());
        (profile.map_err(Reason::file(file)), looking.done())
    };
    let mut all = Vec::new();
    abreast::look(&files, read, |file, (profile, looked)| all.push((file, profile, looked)));
    let earlier = attempts::earlier(&all.iter().map(|(_, _, looked)| looked).collect::<Vec<_>>());
    let (mut survey, mut whole) = (Survey::default(), None::<(&Path, Profile)>);
    for (_, (file, profile, looked)) in all.into_iter().enumerate().filter(|(at, _)| !earlier.contains(at)) {
        // The same recording twice is refused below.
        let _ = survey.add(file, looked, Ok(Extent::default()));
        whole = Some(match whole {
            None => (file, profile?),
            Some((first, all)) => (first, added(all, profile?, first, file)?),
        });
    }
    survey.sort_unfinished();
    let (_, mut profile) = whole.ok_or(NONE).map_err(Reason::file(path))?;
    profile.sort();
    path.clone_into(&mut profile.source.path);
    profile.notes.extend(attempts::left_out(&files, &earlier));
    Ok((profile, survey))
}

/// The files that are named, and those that may be profiles in the folders that are named.
///
/// # Errors
///
/// A folder that cannot be read, or nothing to read in any of them.
pub(in crate::cli) fn named(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Reason> {
    listed(paths, NONE, |_| true)
}

/// The files that are named, and the traces in the folders that are named.
///
/// # Errors
///
/// A folder that cannot be read, or no trace in any of them.
pub(in crate::cli) fn traces(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Reason> {
    listed(paths, "there is no trace (*.perfetto-trace) in this folder", is_trace)
}

/// Those of folders are in order of name; without one that is wanted, `none` is the reason.
fn listed(paths: &[PathBuf], none: &'static str, is_wanted: fn(&Path) -> bool) -> Result<Vec<PathBuf>, Reason> {
    let (mut all, mut empty) = (Vec::new(), Vec::new());
    for path in paths {
        if path.extension().is_none() && !path.exists() {
            return Err(Reason::file(path)(NOWHERE));
        }
        if !path.is_dir() {
            all.extend((paths.len() == 1 || !is_summary(path)).then(|| path.clone()));
            continue;
        }
        let before = all.len();
        all.extend(files(path)?.into_iter().filter(|path| is_wanted(path)));
        if all.len() == before {
            empty.push(path);
        }
    }
    unless_all_empty(all, &empty, none)
}

/// The files, with a line on stderr about each folder that had none; an error if there are none at
/// all. A pattern such as `ncclscope-*` may name more than the folders of runs.
pub(in crate::cli) fn unless_all_empty(
    files: Vec<PathBuf>,
    empty: &[&PathBuf],
    none: &'static str,
) -> Result<Vec<PathBuf>, Reason> {
    if let (true, Some(first)) = (files.is_empty(), empty.first()) {
        return Err(Reason::file(first)(none));
    }
    for folder in empty {
        eprintln!("ncclscope: {}: left out: {none}", folder.display());
    }
    Ok(files)
}

/// Whether a file is the summary beside a trace, by its name. A shell names it with the traces of a
/// folder.
pub(in crate::cli) fn is_summary(path: &Path) -> bool {
    is_table(path) || ends_with(path, summary::ENDING)
}

/// Whether a file is a summary that can be added to others, by its name.
pub(in crate::cli) fn is_table(path: &Path) -> bool {
    ends_with(path, summary::ENDING_CSV)
}

/// Whether a file is a trace, by its name.
pub(in crate::cli) fn is_trace(path: &Path) -> bool {
    ends_with(path, ".perfetto-trace")
}

fn ends_with(path: &Path, ending: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(ending))
}

/// The files that may be profiles, by their names.
pub(in crate::cli) fn files(folder: &Path) -> Result<Vec<PathBuf>, Reason> {
    const OF_OTHERS: [&str; 3] = [".sqlite", ".json", ".json.gz"];
    let failed = Reason::read(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if is_trace(&path) || OF_OTHERS.iter().any(|ending| ends_with(&path, ending)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Adds one profile to another, without sorting what they have.
fn added(mut all: Profile, mut one: Profile, first: &Path, file: &Path) -> Result<Profile, Reason> {
    if all.source.tool != one.source.tool {
        return Err(Reason::Refused(format!(
            "{} is from {} and {} from {}: a folder must hold the files of one run by one tool",
            first.display(),
            all.source.tool,
            file.display(),
            one.source.tool
        )));
    }
    let is_known = |rank: i32| all.processes.iter().any(|it| it.rank == Some(rank));
    if let Some(rank) = one.processes.iter().filter_map(|it| it.rank).find(|rank| is_known(*rank)) {
        return Err(Reason::file(file)(format!(
            "rank {rank} is in another file of the folder too: it must hold the files of one run, each rank once"
        )));
    }
    // Hosts have their own clocks, and other tools' files may count from anything.
    if (all.host != one.host || all.clock.name != one.clock.name)
        && let Some(by) = one.clock.to(&all.clock)
    {
        one = one.shifted(by, &all.clock);
    }
    if all.host != one.host {
        all.host = None;
    }
    renumber(&mut one, all.processes.len(), all.communicators.len(), all.operations.len());
    for name in one.devices.into_values() {
        // GPUs are numbered from 0 on every host, so their names are compared.
        if !all.devices.values().any(|known| *known == name) {
            let number = all.devices.last_key_value().map_or(0, |(number, _)| number + 1);
            all.devices.insert(number, name);
        }
    }
    all.world = all.world.or(one.world);
    all.processes.append(&mut one.processes);
    all.communicators.append(&mut one.communicators);
    all.kernels.append(&mut one.kernels);
    all.copies.append(&mut one.copies);
    all.cuda_calls.append(&mut one.cuda_calls);
    all.ranges.append(&mut one.ranges);
    all.operations.append(&mut one.operations);
    all.launches.append(&mut one.launches);
    all.nccl_calls.append(&mut one.nccl_calls);
    all.transfers.append(&mut one.transfers);
    all.cpu_waits.append(&mut one.cpu_waits);
    all.flushes.append(&mut one.flushes);
    all.nccl_versions.append(&mut one.nccl_versions);
    all.notes.append(&mut one.notes);
    for words in [&mut all.nccl_versions, &mut all.notes] {
        words.sort();
        words.dedup();
    }
    Ok(all)
}

/// Shifts a profile's indices by this many processes, communicators and operations.
fn renumber(profile: &mut Profile, processes: usize, communicators: usize, operations: usize) {
    let operation = |it: &mut Operation| {
        it.process += processes;
        it.communicator = it.communicator.map(|at| at + communicators);
    };
    for kernel in &mut profile.kernels {
        kernel.process += processes;
        kernel.carried.operations.iter_mut().for_each(|at| *at += operations);
    }
    profile.operations.iter_mut().for_each(operation);
    profile.copies.iter_mut().for_each(|it| it.process += processes);
    profile.cuda_calls.iter_mut().for_each(|it| it.process += processes);
    profile.ranges.iter_mut().for_each(|it| it.process += processes);
    profile.transfers.iter_mut().for_each(|it| it.process += processes);
    profile.cpu_waits.iter_mut().for_each(|it| it.process += processes);
    profile.flushes.iter_mut().for_each(|it| it.0 += processes);
    profile.communicators.iter_mut().for_each(|it| it.process += processes);
    for launch in &mut profile.launches {
        launch.process += processes;
        launch.communicator = launch.communicator.map(|at| at + communicators);
    }
    for call in &mut profile.nccl_calls {
        call.process += processes;
        operation(&mut call.operation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run as typed;
    use crate::import::{CpuWait, Process, Span};
    use crate::model::time::{FileNs, Shift};

    #[test]
    fn flushes_and_waits_for_a_cpu_stay_with_their_process() {
        let process =
            |rank| Process { pid: 7, name: String::new(), rank: Some(rank), threads: Default::default(), lost: 0 };
        let wait = |process, at| CpuWait { process, span: Span::of(at, at + 2), percent: 9 };
        let of = |rank| Profile {
            processes: vec![process(rank)],
            flushes: vec![(0, FileNs(7))],
            cpu_waits: vec![wait(0, 7)],
            ..Profile::default()
        };
        let second = of(1);
        let clock = second.clock.clone();
        let second = second.shifted(Shift { ns: 30, error_ns: 0 }, &clock);
        let both = added(of(0), second, Path::new("a"), Path::new("b")).unwrap();
        assert_eq!(both.flushes, [(0, FileNs(7)), (1, FileNs(37))]);
        assert_eq!(both.cpu_waits, [wait(0, 7), wait(1, 37)]);
    }

    #[test]
    fn folders_without_traces_do_not_stand_in_the_way_of_others() {
        let above = tempfile::tempdir().unwrap();
        let [run, archive] = ["ncclscope-4711", "ncclscope-0.1.0"].map(|name| above.path().join(name));
        let trace = run.join("a.perfetto-trace");
        for folder in [&run, &archive] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(&trace, "").unwrap();
        for list in [named, traces] {
            assert_eq!(list(&[archive.clone(), run.clone()]).unwrap(), std::slice::from_ref(&trace));
            let refused = list(&[archive.clone(), archive.clone()]).unwrap_err().to_string();
            assert!(refused.contains("perfetto-trace"), "{refused}");
        }
    }

    #[test]
    fn only_what_a_command_takes_is_named_as_supported() {
        let folder = tempfile::tempdir().unwrap();
        let [text, output] = ["text", "output"].map(|name| folder.path().join(name));
        std::fs::write(&text, "no trace at all").unwrap();
        for command in ["scrub", "cut"] {
            let words = ["ncclscope".as_ref(), command.as_ref(), text.as_os_str(), "-o".as_ref(), output.as_os_str()];
            let refused = typed(words, &mut Vec::new()).unwrap_err().to_string();
            assert!(refused.contains("this is not a profile") && !refused.contains("Nsight"), "{command}: {refused}");
        }
    }

    #[test]
    fn a_folder_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["ncclscope".as_ref(), "open".as_ref(), folder.path().as_os_str()];
        let refused = typed(words, &mut Vec::new()).unwrap_err().to_string();
        assert!(refused.contains("there is no trace (*.perfetto-trace) in this folder"), "{refused}");
    }
}
