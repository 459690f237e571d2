//! Concatenated files are one trace, in any order; a file that was cut off is valid up to the cut.

mod archive;
mod damaged;
mod many;
mod naming;
mod runs;

use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::{Slice, Timeline};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const SCENARIOS: [&str; 3] = ["eager_allreduce", "graph_replay", "net_plugin"];

/// The trace of a scenario, as it is in the file.
fn recorded(scenario: &str, compress: bool) -> Vec<u8> {
    let path = format!("{}/scenarios/{scenario}.txt", env!("CARGO_MANIFEST_DIR"));
    let play = Play::new(fs::read_to_string(path).unwrap()).env("NCCLSCOPE_PRESET", "full");
    let recording = Recording::by(play.env("NCCLSCOPE_COMPRESS", if compress { "1" } else { "0" }));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    fs::read(recording.traces.file()).unwrap()
}

/// What identifies a slice in any file.
fn identity(timeline: &Timeline, slice: &Slice) -> (i64, Option<i64>, String, String, usize, String) {
    let Slice { begin, duration, name, depth, .. } = slice;
    (*begin, *duration, timeline.place(slice), name.clone(), *depth, slice.arguments())
}

fn identities(trace: &Trace) -> Vec<(i64, Option<i64>, String, String, usize, String)> {
    let timeline = Timeline::read(trace);
    let mut all: Vec<_> = timeline.slices.iter().map(|slice| identity(&timeline, slice)).collect();
    all.sort();
    all
}

#[test]
fn files_are_concatenated_in_any_order() {
    let files: Vec<_> = SCENARIOS.iter().map(|scenario| recorded(scenario, true)).collect();
    let mut expected = Vec::new();
    for file in &files {
        expected.extend(identities(&Trace::from_bytes(&file[..]).unwrap()));
    }
    expected.sort();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let joined = Trace::from_bytes(order.map(|index| &files[index][..]).concat()).unwrap();
        assert_sound(&joined, 0);
        assert_eq!(identities(&joined), expected, "{order:?}");
        let processes = joined.rows("SELECT count(DISTINCT pid) AS n FROM process WHERE pid > 0")[0].i64("n");
        assert_eq!(processes, 3, "{order:?}");
    }
}

#[test]
fn a_file_concatenated_with_itself_is_not_taken_for_another_process() {
    // Uuids and sequence ids contain a tag of the process. Files of different processes never share
    // one; only this mistake does.
    let file = recorded("pxn", true);
    let joined = Trace::from_bytes([&file[..], &file].concat()).unwrap();
    let processes = joined.rows("SELECT count(DISTINCT pid) AS n FROM process WHERE pid > 0")[0].i64("n");
    assert_eq!(processes, 1);
}

#[test]
fn files_that_cannot_or_should_not_be_merged_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let files = [path("first"), path("second")];
    for file in &files {
        let play = Play::new("user init a comm=1 rank=0 nranks=1\nuser finalize a").env("NCCLSCOPE_RANK", "3");
        fs::copy(Recording::by(play).traces.file(), file).unwrap();
    }
    let join = |output: &Path, files: &[&Path]| {
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>())
    };
    let [first, second] = &files;
    let reason = join(&path("folder"), &[folder.path()]).unwrap_err();
    assert!(reason.contains("there is no trace (*.perfetto-trace) in this folder"), "{reason}");
    assert_eq!(join(&path("one"), &[first]).unwrap().lines().count(), 1);
    let said = join(&path("both"), &[first, second]).unwrap();
    assert!(said.starts_with("more than one process says that it is rank 3: "), "{said}");
    // With several, each figure is reported with its process, and the killed one is named.
    let mut bytes = fs::read(second).unwrap();
    bytes.truncate(bytes.len() - 3);
    fs::write(second, bytes).unwrap();
    join(&path("killed"), &[first, second]).unwrap();
    let info = ncclscope(&["info".into(), path("killed")]).unwrap();
    let lines = |what: &str| info.lines().filter(|line| line.trim_start().starts_with(what)).collect::<Vec<_>>();
    let processes = lines("process");
    let name = |line: &str| line.trim_start().strip_prefix("process").unwrap().trim().to_owned();
    let [recorded, not_closed] = [lines("recorded"), lines("not closed")];
    assert!(recorded.len() == 1 && recorded[0].contains(&format!("{}: ", name(processes[0]))), "{info}");
    assert!(not_closed.len() == 1 && not_closed[0].ends_with(&name(processes[1])), "{info}");
    let reason = join(&path("both"), &[first]).unwrap_err();
    assert!(reason.contains("both exists already; name another file, or remove it"), "{reason}");
}

/// A process with its own communicator, in a file that can be changed byte by byte.
fn alone(folder: &Path, name: &str, comm: u32, settings: &[(&str, &str)]) -> PathBuf {
    let script = format!("user init a comm={comm} rank=0 nranks=1\nuser finalize a");
    let recording = Recording::by(Play::new(script).env("NCCLSCOPE_COMPRESS", "0").envs(settings));
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    let path = folder.join(name);
    fs::copy(recording.traces.file(), &path).unwrap();
    path
}

/// Replaces a text by another of the same length wherever it occurs.
fn replace(path: &Path, old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    let mut bytes = fs::read(path).unwrap();
    let mut found = 0;
    for at in 0..=bytes.len() - old.len() {
        if bytes[at..].starts_with(old.as_bytes()) {
            bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{old} is not in {}", path.display());
    fs::write(path, bytes).unwrap();
}

/// A process that is a rank of four, in a pair with its neighbour on the same host and in a pair
/// across hosts; both have no name.
fn in_pairs(rank: u32) -> (tempfile::TempDir, PathBuf) {
    let script = format!(
        "user init near comm={:#x} rank={} nranks=2 nodes=1\n\
         user init far comm={:#x} rank={} nranks=2 nodes=2\n\
         user start api0 far CollApi func=AllReduce count=4Mi datatype=ncclFloat32 stream=0x7f10\n\
         user stop api0\n\
         user start coll0 far Coll parent=api0 seqNumber=0 func=AllReduce count=4Mi datatype=ncclFloat32 nChannels=2\n\
         user stop coll0\n\
         proxy start send0 far ProxyOp parent=coll0 channelId=0 peer=1 nSteps=1 chunkSize=4Mi isSend=1\n\
         proxy stop send0\n\
         user finalize near\n\
         user finalize far\n",
        0xa0 + rank / 2,
        rank % 2,
        0xb0 + rank % 2,
        rank / 2,
    );
    let play = Play::new(script).env("NCCLSCOPE_RANK", rank.to_string());
    let recording = Recording::by(play);
    assert_eq!(recording.outcome.status, Some(0), "{}", recording.outcome.stderr);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("{rank}.perfetto-trace"));
    fs::copy(recording.traces.file(), &file).unwrap();
    (folder, file)
}

#[test]
fn a_file_named_twice_is_not_merged_with_itself() {
    let (folder, file) = in_pairs(0);
    let joined = folder.path().join("joined.perfetto-trace");
    let said =
        ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), file.as_os_str(), file.as_os_str()]).unwrap();
    assert!(said.starts_with("left out: ") && said.contains("the same recording is in "), "{said}");
    assert_eq!(fs::read(joined).unwrap(), fs::read(file).unwrap());
}

#[test]
fn each_rank_of_a_merged_trace_is_counted_once() {
    const RANKS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::new(RANKS as u32, 2, 200);
    // As in containers, where every process is number 1.
    job.pids = 1;
    job.write_to(folder.path(), RANKS as u32, false);
    let joined = folder.path().join("joined.perfetto-trace");
    ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()]).unwrap();
    let ranks = |said: &str| (0..RANKS).filter(|rank| said.contains(&format!("rank {rank} · node"))).count();
    let of_joined = ncclscope(&["summary".as_ref(), "--format".as_ref(), "json".as_ref(), joined.as_os_str()]).unwrap();
    assert_eq!(ranks(&of_joined), RANKS, "{of_joined}");
    // Beside what it was merged from.
    let both = ncclscope(&["summary".as_ref(), "--format".as_ref(), "json".as_ref(), folder.path().as_os_str()]);
    let said = both.unwrap_err();
    assert_eq!(said.matches("an earlier file has the same recording: rank ").count(), RANKS, "{said}");
}

#[test]
fn a_rank_without_kernels_is_not_compared_with_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::new(3, 1, 200);
    job.dark = Some(1);
    job.write_to(folder.path(), 3, false);
    let apart = folder.path().join("apart");
    fs::create_dir(&apart).unwrap();
    let joined = apart.join("joined.perfetto-trace");
    ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()]).unwrap();
    for traces in [folder.path(), &joined] {
        let said = ncclscope(&["diagnose".as_ref(), "--json".as_ref(), "-".as_ref(), traces.as_os_str()]).unwrap();
        let answer: Value = serde_json::from_str(&said).unwrap();
        let ranks: Vec<_> = answer["ranks"].as_array().unwrap().iter().map(|row| &row["rank"]).collect();
        assert_eq!(ranks, ["rank 0", "rank 2"], "{said}");
        let left_out = "The file of 1 rank has no kernels, and that rank may be the cause";
        assert!(answer["notes"].to_string().contains(left_out), "{said}");
    }
}

#[test]
fn steps_that_are_not_there_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(2, 1, 60);
    job.write_to(folder.path(), 2, false);
    let refused =
        ncclscope(&["diagnose".as_ref(), "--steps".as_ref(), "5000..6000".as_ref(), folder.path().as_os_str()]);
    let said = refused.unwrap_err();
    assert!(said.contains("these files have ") && said.contains(" so there are no steps 5000 to 6000"), "{said}");
}

#[test]
fn hosts_with_short_operations_are_aligned_to_a_few_microseconds() {
    const RANKS: u32 = 8;
    // For operations of this many us, the largest stated error in us.
    for (transfer, most) in [(20, 24.0), (10, 14.0), (4, 8.0)] {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::new(RANKS, 4, 3_000);
        job.transfer = transfer * 1_000;
        job.write_to(folder.path(), RANKS, false);
        let joined = folder.path().join("joined");
        let said =
            ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()]).unwrap();
        let worst: Vec<&str> = said
            .lines()
            .filter_map(|line| Some(line.split_once(" at best and ")?.1.split_once(" µs at worst")?.0))
            .collect();
        assert_eq!(worst.len(), 3, "{said}");
        assert!(worst.iter().all(|worst| worst.parse::<f64>().is_ok_and(|worst| worst < most)), "{said}");
        println!("{said}");
    }
}

#[test]
fn a_merge_of_merged_files_is_no_surer_of_the_time_between_hosts() {
    let job = Job::new(4, 4, 40);
    let folder = tempfile::tempdir().unwrap();
    job.write_to(folder.path(), 4, true);
    let path = |name: &str| folder.path().join(name);
    let rank = |rank: u32| path(&job.name(rank));
    // What `info` says, and the least error of how long ranks waited for the last one, ns.
    let merge = |output: &str, files: &[PathBuf]| {
        let words = ["merge".into(), "-o".into(), path(output)];
        ncclscope(&words.into_iter().chain(files.iter().cloned()).collect::<Vec<_>>()).unwrap();
        let said = ncclscope(&["info".into(), path(output)]).unwrap();
        let between = said.lines().find_map(|line| Some(line.split_once(", between hosts to ")?.1.to_owned()));
        let sql = "SELECT min(extract_arg(s.arg_set_id, 'nccl.time_error_ns')) AS error \
                   FROM slice s JOIN track t ON t.id = s.track_id WHERE t.name = 'world · first to last rank'";
        (between.unwrap(), Trace::open(path(output)).unwrap().rows(sql)[0].i64("error"))
    };
    let all: Vec<PathBuf> = (0..4).map(rank).collect();
    let at_once = merge("at once", &all);
    assert_eq!(merge("again", &[path("at once")]).0, at_once.0);
    let error = |name: &str, files: &[PathBuf]| merge(name, files).1;
    assert!(error("once more", &[path("again")]) >= at_once.1);
    let (front, back) = (merge("front", &all[..2]).1, merge("back", &all[2..]).1);
    let both = [path("front"), path("back")];
    assert!(error("both", &both) >= front.max(back), "the error of each remains");
    assert!(error("both again", &[path("both")]) >= front.max(back), "and is still known");
}

#[test]
fn recordings_cuts_and_merges_can_all_be_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let scenarios = fs::read_dir(format!("{}/scenarios", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut count = 0;
    for scenario in scenarios {
        let scenario = scenario.unwrap().path();
        let name = scenario.display();
        let play = Play::new(fs::read_to_string(&scenario).unwrap()).env("NCCLSCOPE_PRESET", "full");
        // One of them aborts.
        let recording = Recording::by(play.env("NCCLSCOPE_COMPRESS", "0"));
        fs::copy(recording.traces.file(), path("trace")).unwrap();
        let merge = |file: &str, output: &str| {
            let _ = fs::remove_file(path(output));
            let said = ncclscope(&["merge".into(), "-o".into(), path(output), path(file)]);
            said.unwrap_or_else(|reason| panic!("{name}, {file}: {reason}"))
        };
        merge("trace", "merged");
        merge("merged", "again");
        assert_eq!(fs::read(path("trace")).unwrap(), fs::read(path("again")).unwrap(), "{name}");
        for [how, value] in [["--no-steps", ""], ["--time", "1us.."], ["--time", "..2ms"]] {
            let _ = fs::remove_file(path("cut"));
            let mut words = vec!["cut".into(), path("trace"), "-o".into(), path("cut"), how.into()];
            words.extend((!value.is_empty()).then(|| value.into()));
            if ncclscope(&words).is_ok() {
                merge("cut", "merged");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}
