//! Concatenated files are one trace, in any order; a file that was cut off is valid up to the cut.

use crate::command::ncclscope;
use crate::synthetic::{Damage, Job};
use ncclscope::trace::reader::proto::perfetto::protos::track_event::Type;
use ncclscope::trace::reader::{self, whole_length};
use ncclscope::trace::words::Category;
use ncclscope::trace::writer::TRACK_BITS;
use ncclscope_tests::perfetto::{Problem, Trace};
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::{Recording, assert_sound};
use ncclscope_tests::timeline::{Slice, Timeline};
use std::collections::HashMap;
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
    let reason = ncclscope(&["join", "-o", "out", "a", "b"]).unwrap_err();
    assert!(reason.contains("ncclscope merge"), "{reason}");
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
    let play = Play::new(script).env("NCCLSCOPE_COMPRESS", "0");
    let play = settings.iter().fold(play, |play, (name, value)| play.env(*name, *value));
    let recording = Recording::by(play);
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

#[test]
fn files_of_another_boot_or_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, comm, settings: &[(&str, &str)]| alone(folder.path(), name, comm, settings);
    let join = |files: &[&Path]| {
        let output = folder.path().join("joined");
        let _ = fs::remove_file(&output);
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        let said = ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>());
        assert_eq!(said.is_ok(), output.exists(), "nothing is left of what is refused");
        said
    };
    // The boot id that this machine reports is in the file.
    let (one, other) = (file("one", 1, &[]), file("other", 1, &[]));
    join(&[&one, &other]).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let another = "00000000-0000-4000-8000-000000000000";
    replace(&other, boot.trim(), another);
    let reason = join(&[&one, &other]).unwrap_err();
    assert!(reason.contains("have no common clock") && reason.contains("was booted between them"), "{reason}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let elsewhere = "x".repeat(host.len());
    replace(&other, host, &elsewhere);
    let reason = join(&[&one, &other]).unwrap_err();
    assert!(reason.contains(&format!("they are of different hosts, {host} and {elsewhere}")), "{reason}");
    assert!(reason.contains("nothing relates their clocks"), "{reason}");
    let reason = ncclscope(&["open".as_ref(), one.as_os_str(), other.as_os_str()]).unwrap_err();
    assert!(reason.contains("use different clocks; ncclscope merge puts them on one"), "{reason}");
    // A container has a name of its own, but the boot id of its host.
    replace(&other, another, boot.trim());
    join(&[&one, &other]).unwrap();

    // Two runs one after the other, and one file that states its run.
    let later = file("later", 2, &[]);
    let reason = join(&[&one, &later]).unwrap_err();
    assert!(reason.contains("are from two runs: they were not recorded at the same time"), "{reason}");
    let run = [("NCCLSCOPE_RUN_ID", "tuesday")];
    let (one, later) = (file("said", 1, &run), file("said later", 2, &run));
    join(&[&one, &later]).unwrap();
    let third = file("third", 1, &[("NCCLSCOPE_RUN_ID", "monday")]);
    join(&[&one, &third]).expect("what one communicator ties, no name divides");
    let reason = join(&[&later, &third]).unwrap_err();
    assert!(reason.contains("NCCLSCOPE_RUN_ID=tuesday and NCCLSCOPE_RUN_ID=monday"), "{reason}");
    // All are one run: the third belongs to the first one's run, and so does the second.
    join(&[&later, &third, &one]).unwrap();
}

#[test]
fn one_of_several_runs_is_chosen_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (name, comm, run) in [("a", 1, "monday"), ("b", 2, "tuesday"), ("c", 3, "tuesday")] {
        alone(folder.path(), &format!("{name}.perfetto-trace"), comm, &[("NCCLSCOPE_RUN_ID", run)]);
    }
    alone(folder.path(), "notes.txt", 4, &[]);
    let merge = |output: &str, words: &[&str]| {
        let output = folder.path().join(output);
        let all = ["merge".as_ref(), folder.path().as_os_str(), "-o".as_ref(), output.as_os_str()];
        ncclscope(&all.into_iter().chain(words.iter().map(std::ffi::OsStr::new)).collect::<Vec<_>>())
    };
    let reason = merge("both", &[]).unwrap_err();
    assert!(reason.contains("are from two runs") && reason.contains("--run"), "{reason}");
    for (output, run) in [("one", "tuesday"), ("other", "NCCLSCOPE_RUN_ID=tuesday")] {
        let said = merge(output, &["--run", run]).unwrap();
        assert!(
            said.contains("a.perfetto-trace: it is of NCCLSCOPE_RUN_ID=monday") && said.contains(": 2 files, "),
            "{said}"
        );
    }
    let reason = merge("none", &["--run", "friday"]).unwrap_err();
    assert!(reason.contains("it is of NCCLSCOPE_RUN_ID=monday"), "{reason}");
}

#[test]
fn damaged_files_are_left_out_and_ranks_without_a_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |rank: u32| folder.path().join(format!("{rank}.perfetto-trace"));
    for rank in 0..6 {
        let play = Play::new(format!("user init a comm=1 rank={rank} nranks=8\nuser finalize a"));
        let play = play.env("NCCLSCOPE_RANK", rank.to_string());
        fs::copy(Recording::by(play).traces.file(), file(rank)).unwrap();
    }
    let merge = |output: &str| {
        let output = folder.path().join(output);
        ncclscope(&["merge".as_ref(), "-o".as_ref(), output.as_os_str(), folder.path().as_os_str()])
    };
    assert_eq!(merge("six").unwrap().lines().next(), Some("no file of rank 6-7 of 8"));
    // An empty file, one that cannot be a trace, and a trace with something else in the middle.
    fs::write(file(1), "").unwrap();
    fs::write(file(3), "neither a trace nor anything else\n").unwrap();
    let mut bytes = fs::read(file(4)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 20].fill(0xff);
    fs::write(file(4), bytes).unwrap();
    let said = merge("three").unwrap();
    for rank in [1, 3, 4] {
        let name = file(rank);
        let line = said.lines().find(|line| line.contains(&*name.to_string_lossy()));
        assert!(line.is_some_and(|line| line.starts_with("left out: ")), "{rank}: {said}");
    }
    assert!(said.contains("no file of rank 1,3-4,6-7 of 8\n"), "{said}");
    let trace = Trace::open(folder.path().join("three")).unwrap();
    assert_sound(&trace, 0);
    assert_eq!(trace.rows("SELECT count(DISTINCT pid) AS n FROM process WHERE pid > 0")[0].i64("n"), 3);
}

/// Byte positions to cut at: in the first packet, in the middle, around the last packet, and
/// others.
fn cuts(length: usize) -> [usize; 9] {
    [1, 2, 40, length / 4, length / 2, length * 3 / 4, length - 40, length - 2, length - 1]
}

#[test]
fn a_cut_file_can_be_opened_up_to_the_cut() {
    for compress in [true, false] {
        let file = recorded("eager_allreduce", compress);
        assert_eq!(whole_length(&file), file.len());
        let all = identities(&Trace::from_bytes(&file[..]).unwrap()).len();
        let mut before = 0;
        for cut in cuts(file.len()) {
            let trace = match Trace::from_bytes(&file[..cut]) {
                Ok(trace) => trace,
                Err(error) => panic!("cut at {cut} of {}: {error}", file.len()),
            };
            let bad = trace.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
            assert!(bad.is_empty(), "cut at {cut} of {}: {bad:?}", file.len());
            let slices = trace.rows("SELECT count(*) AS n FROM slice")[0].i64("n") as usize;
            assert!(slices >= before && slices <= all, "cut at {cut}: {slices} slices after {before} of {all}");
            before = slices;
        }
    }
}

#[test]
fn a_cut_file_can_be_merged_without_its_tail() {
    // Uncompressed, it has hundreds of packets, and most cuts go through one.
    let cut_file = recorded("eager_allreduce", false);
    let other = recorded("graph_replay", true);
    let others = identities(&Trace::from_bytes(&other[..]).unwrap());
    for cut in cuts(cut_file.len()) {
        let bytes = &cut_file[..cut];
        let whole = &bytes[..whole_length(bytes)];
        // Nothing whole is lost: the next packet begins where the whole ones end, and the cut is
        // inside it.
        assert!(cut_file[whole.len()] == 0x0a && cut - whole.len() < 4096, "cut at {cut}: {} are whole", whole.len());
        for (order, joined) in [[whole, &other[..]].concat(), [&other[..], whole].concat()].into_iter().enumerate() {
            let joined = Trace::from_bytes(joined).unwrap();
            let problems: Vec<_> = joined.check();
            // What was open at the cut has lost its end, and nothing else is wrong.
            let wrong = problems.iter().filter(|problem| !matches!(problem, Problem::OpenSlices { .. }));
            let wrong: Vec<_> = wrong.map(ToString::to_string).collect();
            assert!(wrong.is_empty(), "cut at {cut}, order {order}: {wrong:?}");
            let joined = identities(&joined);
            let missing = others.iter().filter(|slice| joined.binary_search(slice).is_err()).count();
            assert_eq!(missing, 0, "cut at {cut}, order {order}: slices of the file that was not cut");
        }
    }
}

#[test]
fn a_file_after_an_unremoved_tail_is_silently_lost() {
    // This is why the tail must be removed first.
    let file = recorded("eager_allreduce", true);
    let other = recorded("graph_replay", true);
    let joined = Trace::from_bytes([&file[..file.len() - 2], &other[..]].concat());
    let fine = joined.is_ok_and(|joined| {
        let slices = joined.rows("SELECT count(*) AS n FROM slice WHERE name LIKE 'AllReduce 4 MiB%'");
        joined.check().is_empty() && slices[0].i64("n") > 0
    });
    assert!(!fine);
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

/// The names of the tracks of unnamed communicators, after a merge by the command line.
fn communicators(files: &[&Path]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let joined = folder.path().join("joined.perfetto-trace");
    let words = ["ncclscope".as_ref(), "merge".as_ref(), "-o".as_ref(), joined.as_os_str()];
    let line = words.into_iter().chain(files.iter().map(|file| file.as_os_str()));
    ncclscope::cli::run(line, &mut Vec::new()).unwrap_or_else(|failure| panic!("{failure}"));
    let trace = Trace::open(&joined).unwrap();
    assert_sound(&trace, 0);
    let rows = trace.rows("SELECT DISTINCT name FROM track WHERE name LIKE '%000000%' ORDER BY name");
    rows.iter().map(|row| row.str("name").to_owned()).collect()
}

#[test]
fn unnamed_communicators_are_named_by_their_members_if_all_are_merged() {
    let recordings: Vec<_> = (0..4).map(in_pairs).collect();
    let files: Vec<_> = recordings.iter().map(|(_, file)| file.as_path()).collect();
    let of_rank = |rank: u32, far: &str| {
        let (near_rank, far_rank) = (rank % 2, rank / 2);
        [
            format!("{far} · rank {far_rank} of 2"),
            format!("{far} · rank {far_rank} of 2 · handed over"),
            format!("{far} · send → 1"),
            format!("this host 000000a{} · rank {near_rank} of 2", rank / 2),
        ]
    };
    let expected = |far: &dyn Fn(u32) -> String| {
        let mut all: Vec<_> = (0..4).flat_map(|rank| of_rank(rank, &far(rank % 2))).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(communicators(&files), expected(&|pair| format!("stride 2 000000b{pair}")));
    // In any order.
    assert_eq!(communicators(&[files[3], files[1], files[2], files[0]]), communicators(&files));
    // Nothing is said about incomplete communicators.
    let three = communicators(&files[..3]);
    assert!(three.contains(&"stride 2 000000b0 · rank 1 of 2".to_owned()), "{three:?}");
    assert!(three.contains(&"000000b1 · rank 0 of 2".to_owned()), "{three:?}");
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

/// The members of a tar, by its format: a header of 512 bytes with name and octal length, and the bytes, filled up to the same.
fn members(tar: &[u8]) -> Vec<(String, &[u8])> {
    let (mut members, mut rest) = (Vec::new(), tar);
    while rest[0] != 0 {
        let text = |from: usize, to: usize| {
            let field = &rest[from..to];
            std::str::from_utf8(field.split(|byte| *byte == 0).next().unwrap()).unwrap().trim().to_owned()
        };
        assert_eq!(&rest[257..262], b"ustar");
        let length = usize::from_str_radix(&text(124, 136), 8).unwrap();
        members.push((text(0, 100), &rest[512..512 + length]));
        rest = &rest[512 + length.next_multiple_of(512)..];
    }
    assert_eq!((rest.len(), rest.iter().all(|byte| *byte == 0)), (1024, true), "two empty blocks end it");
    members
}

#[test]
fn an_archive_has_the_files_as_they_are_and_opens_as_they_do() {
    let recordings: Vec<_> = (0..4).map(in_pairs).collect();
    let folder = tempfile::tempdir().unwrap();
    let output = |name: &str| folder.path().join(name);
    let merge = |output: &Path, files: &[&Path]| {
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>())
    };
    // One was killed while it wrote.
    let mut files: Vec<_> = recordings.iter().map(|(_, file)| file.as_path()).collect();
    let (cut, bytes) = (output("3.perfetto-trace"), fs::read(files[3]).unwrap());
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    files[3] = &cut;
    let said = merge(&output("job.tar"), &files).unwrap();
    assert!(said.contains("3.perfetto-trace: left out an unfinished packet"), "{said}");
    assert!(said.contains("job.tar: 4 files, "), "{said}");
    let archive = fs::read(output("job.tar")).unwrap();
    let members = members(&archive);
    let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
    let traces = ["0.perfetto-trace", "1.perfetto-trace", "2.perfetto-trace", "3.perfetto-trace"];
    assert_eq!(names, [&["perfetto_manifest.json"], &traces[..]].concat());
    let mut expected = Vec::new();
    for (file, (name, bytes)) in files.iter().zip(&members[1..]) {
        let own = fs::read(file).unwrap();
        assert!(*bytes == &own[..whole_length(&own)], "{name}");
        expected.extend(identities(&Trace::from_bytes(*bytes).unwrap()));
    }
    expected.sort();
    // All of one clock: nothing but the host is to be said. Perfetto tells a manifest by how it begins.
    assert!(members[0].1.starts_with(b"{\"perfetto_manifest\":"));
    let manifest: serde_json::Value = serde_json::from_slice(members[0].1).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let file = |name: &str| serde_json::json!({ "path": name, "machine": { "name": host.trim() } });
    let expected_manifest = serde_json::json!({ "perfetto_manifest": {
        "version": 1,
        "trace_time": { "clock": "BOOTTIME", "file": "0.perfetto-trace" },
        "files": traces.map(file),
        "attributes": {},
    } });
    assert_eq!(manifest, expected_manifest);
    // The release of these tests, v52, knows no manifest: it skips it, and shows files of one clock
    // correctly.
    let opened = Trace::open(output("job.tar")).unwrap();
    assert_eq!(identities(&opened), expected);
    let bad = opened.rows("SELECT name FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')");
    assert!(bad.is_empty(), "{bad:?}");

    let reason = merge(&output("job.zip"), &files).unwrap_err();
    assert!(reason.contains("an archive of traces is a tar: name it") && reason.ends_with("job.tar"), "{reason}");
    let reason = ncclscope(&[
        "merge".as_ref(),
        files[0].as_os_str(),
        "-o".as_ref(),
        output("with.tar").as_os_str(),
        "--with".as_ref(),
        files[1].as_os_str(),
    ]);
    assert!(reason.unwrap_err().contains("name a .perfetto-trace to write"));
    let reason = merge(&output("again"), &[&output("job.tar")]).unwrap_err();
    assert!(reason.contains("this is an archive: unpack it first"), "{reason}");
    assert!(!output("job.zip").exists() && !output("with.tar").exists());
}

#[test]
fn processes_are_in_the_order_of_their_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let elsewhere = "x".repeat(host.trim().len());
    // Neither by name nor by file, and every other one in a container with a name of its own; one has no rank.
    let ranks = [Some(10), Some(0), Some(2), None, Some(1)];
    let files: Vec<_> = ranks
        .iter()
        .enumerate()
        .map(|(number, rank)| {
            let rank = rank.map(|rank: u32| rank.to_string());
            let settings: Vec<_> = rank.iter().map(|rank| ("NCCLSCOPE_RANK", rank.as_str())).collect();
            let file = alone(folder.path(), &format!("{number}.perfetto-trace"), 7, &settings);
            if number % 2 == 1 {
                replace(&file, host.trim(), &elsewhere);
            }
            file
        })
        .collect();
    let joined = folder.path().join("joined");
    let words = ["merge".as_ref(), "-o".as_ref(), joined.as_os_str()];
    ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>()).unwrap();
    let trace = Trace::open(&joined).unwrap();
    // What Perfetto sorts by from v57 on, where the root asks for it.
    let rows = trace.rows(
        "SELECT p.name FROM process_track t JOIN process p USING (upid) WHERE t.type = 'process_track_event' \
         AND p.name <> 'Job' ORDER BY extract_arg(t.source_arg_set_id, 'sibling_order_rank')",
    );
    let order: Vec<_> = rows.iter().map(|row| row.str("name").split(" · ").next().unwrap().to_owned()).collect();
    assert_eq!(order[..4], ["rank 0", "rank 1", "rank 2", "rank 10"], "{order:?}");
    assert_eq!(order.len(), 5);
    let root = trace.bytes().windows(6).filter(|bytes| bytes.starts_with(ROOT_IN_ORDER)).count();
    assert_eq!(root, files.len(), "the root of each file says so");
}

/// A root (`uuid` 0) that asks for its processes in an explicit order: fields 1 and 19 of a descriptor.
const ROOT_IN_ORDER: &[u8] = &[0x08, 0x00, 0x98, 0x01, 0x01];

#[test]
fn ranks_that_cannot_be_are_said_and_merged_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, comm_rank: u32, rank: &str, size: &str| {
        let script = format!("user init a comm=1 rank={comm_rank} nranks=2\nuser finalize a");
        let recording = Recording::by(Play::new(script).env("RANK", rank).env("WORLD_SIZE", size));
        let path = folder.path().join(name);
        fs::copy(recording.traces.file(), &path).unwrap();
        path
    };
    let merge = |output: &str, files: &[&Path]| {
        let output = folder.path().join(output);
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>()).unwrap()
    };
    let (first, second) = (file("a", 0, "0", "2"), file("b", 1, "1", "2"));
    assert_eq!(merge("healthy", &[&first, &second]).lines().count(), 1);
    let stranger = file("c", 1, "5", "8");
    let said = merge("strange", &[&first, &second, &stranger]);
    for line in [
        "a process says that it is rank 5, and others that the job has 2 ranks",
        "communicator 00000001: more than one process says that it is its rank 1",
    ] {
        assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{line}: {said}");
    }
    assert!(said.contains("strange: 3 files, "), "{said}");
}

#[test]
fn a_communicator_is_selected_by_the_name_of_its_tracks() {
    let recordings: Vec<_> = (0..4).map(in_pairs).collect();
    let folder = tempfile::tempdir().unwrap();
    let joined = folder.path().join("joined");
    let mut words = vec!["merge".into(), "-o".into(), joined.clone().into_os_string()];
    words.extend(recordings.iter().map(|(_, file)| file.clone().into_os_string()));
    ncclscope(&words).unwrap();
    let info = ncclscope(&["info".into(), joined.clone()]).unwrap();
    assert!(info.contains("communicator  00000000000000b0 (no name, 000000b0): rank 0 of 2 on 2 hosts"), "{info}");
    let operations = |name: &str| {
        let part = folder.path().join(name);
        let words =
            ["cut".as_ref(), joined.as_os_str(), "-o".as_ref(), part.as_os_str(), "--comm".as_ref(), name.as_ref()];
        ncclscope(&words)?;
        let info = ncclscope(&["info".into(), part]).unwrap();
        Ok::<_, String>(info.lines().filter(|line| line.trim_start().starts_with("operations")).count())
    };
    assert_eq!(operations("stride 2"), Ok(2));
    assert_eq!(operations("stride 2 000000b1"), Ok(1));
    assert_eq!(operations("000000b1"), Ok(1));
    let reason = operations("stride 3").unwrap_err();
    let listed = "stride 2 000000b0, stride 2 000000b1, this host 000000a0, this host 000000a1";
    assert!(reason.ends_with(&format!("the communicators {listed}")), "{reason}");
}

#[test]
fn processes_that_drew_the_same_mark_are_told_apart() {
    const RANKS: u32 = 6;
    const STEPS: u64 = 5;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let merge = |output: &str, files: &[PathBuf]| {
        let words = ["merge".into(), "-o".into(), path(output)];
        ncclscope(&words.into_iter().chain(files.iter().cloned()).collect::<Vec<_>>()).unwrap()
    };
    let write = |folder: &str, marks: u32| {
        let mut job = Job::new(RANKS, 2, STEPS);
        job.marks = marks;
        fs::create_dir(path(folder)).unwrap();
        for rank in 0..RANKS {
            let mut bytes = Vec::new();
            job.write(rank, rank != 3, &mut bytes).unwrap();
            fs::write(path(folder).join(job.name(rank)), bytes).unwrap();
        }
    };
    // All ranks have marks of their own, or two marks among them.
    write("own", RANKS);
    write("two", 2);
    let [own, two] = ["own", "two"].map(|folder| {
        let output = format!("{folder}.perfetto-trace");
        let said = merge(&output, &[path(folder)]);
        assert!(!said.contains("left out"), "{said}");
        let trace = Trace::open(path(&output)).unwrap();
        assert_sound(&trace, 0);
        identities(&trace)
    });
    assert_eq!(own, two);
    // What was merged has other marks; it is merged with the rest of the job all the same, and not with its own ranks.
    let files: Vec<PathBuf> = fs::read_dir(path("two")).unwrap().map(|entry| entry.unwrap().path()).collect();
    merge("some.perfetto-trace", &files[..4]);
    let said = merge("again.perfetto-trace", &[&[path("some.perfetto-trace")], &files[3..]].concat());
    assert_eq!(said.matches("the same recording is in ").count(), 1, "{said}");
    assert_eq!(identities(&Trace::open(path("again.perfetto-trace")).unwrap()).len(), own.len());
}

#[test]
fn info_tells_apart_processes_that_drew_the_same_mark() {
    const RANKS: u32 = 2;
    // The first rank, whose file is the same in both jobs, is cut off early on, in an operation.
    let said = |marks: u32, part: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::new(RANKS, 1, 8_000);
        job.marks = marks;
        let write = |rank: u32| {
            let mut bytes = Vec::new();
            job.write(rank, false, &mut bytes).unwrap();
            bytes.truncate(if rank == 0 { bytes.len() / part } else { bytes.len() });
            let path = folder.path().join(job.name(rank));
            fs::write(&path, bytes).unwrap();
            path
        };
        let words = ["info".into()].into_iter().chain((0..RANKS).map(write));
        let said = ncclscope(&words.collect::<Vec<_>>()).unwrap();
        said.lines().take_while(|line| !line.contains("perfetto-trace")).map(str::to_owned).collect::<Vec<_>>()
    };
    let all_came = |said: &[String]| said.iter().any(|line| line.contains("all 2 ranks have come"));
    let part = (8..24).find(|part| all_came(&said(RANKS, *part))).expect("a cut inside of an operation");
    assert_eq!(said(1, part), said(RANKS, part));
}

#[test]
fn nobody_is_called_the_last_while_a_rank_is_missing() {
    const RANKS: u32 = 4;
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(RANKS, 2, 5);
    let paths: Vec<PathBuf> = (0..RANKS).map(|rank| folder.path().join(job.name(rank))).collect();
    for (rank, path) in (0..RANKS).zip(&paths) {
        let mut bytes = Vec::new();
        job.write(rank, true, &mut bytes).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let named = |name: &str, files: &[PathBuf]| {
        let output = folder.path().join(name);
        let words = ["merge".into(), "-o".into(), output.clone()];
        ncclscope(&words.into_iter().chain(files.iter().cloned()).collect::<Vec<_>>()).unwrap();
        let sql = "SELECT sum(s.name GLOB 'rank *') AS named, count() AS n, ifnull(min(extract_arg(s.arg_set_id, 'nccl.doubt')), '') AS doubt \
                   FROM slice s JOIN track t ON t.id = s.track_id WHERE t.name = 'world · first to last rank'";
        let trace = Trace::open(&output).unwrap();
        let row = &trace.rows(sql)[0];
        assert!(row.i64("n") > 0);
        (row.i64("named"), row.str("doubt").to_owned())
    };
    assert!(named("all.perfetto-trace", &paths).0 > 0);
    let (some, doubt) = named("three.perfetto-trace", &paths[..3]);
    assert_eq!((some, &*doubt), (0, "only 3 of 4 ranks are known"));
}

#[test]
fn of_a_large_job_half_of_whose_files_are_damaged_the_other_half_arrives() {
    const RANKS: u32 = 64;
    const STEPS: u64 = 40;
    let job = Job::new(RANKS, 8, STEPS);
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: u32| folder.path().join(job.name(rank));
    let trace = |rank: u32| {
        let mut bytes = Vec::new();
        // Every third is not compressed: no checksum tells what is wrong with it.
        let size = job.write(rank, !rank.is_multiple_of(3), &mut bytes).unwrap();
        assert_eq!(size.bytes, bytes.len() as u64);
        (bytes, size.events)
    };
    let damage = |rank: u32| (rank % 2 == 1).then(|| Damage::ALL[rank as usize / 2 % Damage::ALL.len()]);
    let mut written = 0;
    for rank in 0..RANKS {
        let (mut bytes, events) = trace(rank);
        match damage(rank) {
            Some(damage) => damage.wreak(&mut bytes, || trace((rank + 1) % RANKS).0),
            None => written += events,
        }
        fs::write(path(rank), bytes).unwrap();
    }
    let joined = folder.path().join("joined");
    let words = ["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()];
    let said = ncclscope(&words).unwrap();
    let lines = |rank: u32| {
        let name = path(rank).display().to_string();
        said.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect::<Vec<_>>()
    };
    for rank in 0..RANKS {
        // Of twins, which have different names in a folder, the second one is left out.
        let of_twins = |line: &String| line.contains("the same recording is in ");
        let (mut lines, how) = (lines(rank), damage(rank));
        lines.retain(|line| how.is_some() || !of_twins(line));
        let is_right = match how {
            None => lines.is_empty(),
            // One that is compressed has a single packet.
            Some(Damage::Cut) => {
                let how = if rank.is_multiple_of(3) {
                    "left out an unfinished packet of "
                } else {
                    "there is no whole packet in it"
                };
                lines.len() == 1 && lines[0].contains(how)
            }
            Some(Damage::Twin) => lines.len() == 1 && of_twins(&lines[0]),
            Some(_) => lines.len() == 1 && lines[0].starts_with("left out: "),
        };
        assert!(is_right, "rank {rank}, {how:?}: {lines:?}");
    }

    // What arrives of the others is all of it, at its true time.
    let (mut ranks, mut events, mut runs) = (HashMap::new(), 0, HashMap::new());
    let mut farthest = 0;
    reader::read_file::<reader::Error>(&joined, |packet| {
        if let Some(descriptor) = packet.track_descriptor()
            && let Some(process) = &descriptor.process
            && let Some(rank) = process.process_name().strip_prefix("rank ").and_then(|name| name.split(' ').next())
        {
            ranks.insert(descriptor.uuid() >> TRACK_BITS, rank.parse::<u32>().unwrap());
        }
        let Some(event) = &packet.event else { return Ok(()) };
        // What the merge itself draws is on tracks of no process, or is about all ranks.
        let Some(&rank) = ranks.get(&(event.track >> TRACK_BITS)).filter(|_| event.category != Some(Category::Job))
        else {
            return Ok(());
        };
        if damage(rank).is_none() {
            events += u64::from(event.r#type() != Type::SliceEnd);
        }
        if event.category == Some(Category::Run) {
            let step = runs.entry(rank).or_insert(0_u64);
            let [came, _] = job.truth(rank, *step);
            farthest = farthest.max(packet.time.unwrap().0.abs_diff(came));
            *step += 1;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(events, written);
    assert!((0..RANKS).filter(|rank| damage(*rank).is_none()).all(|rank| runs[&rank] == STEPS), "{runs:?}");
    // Offsets of hours, and operations of 20 us that bound them from both sides.
    assert!(farthest < 20_000, "{farthest} ns");
    let problems = Trace::open(&joined).unwrap().check();
    let wrong = problems.iter().filter(|problem| !matches!(problem, Problem::OpenSlices { .. }));
    let wrong: Vec<_> = wrong.map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn hosts_with_quick_operations_are_on_one_clock_to_a_few_microseconds() {
    const RANKS: u32 = 8;
    // For operations of this many us, the largest stated error in us.
    for (transfer, most) in [(20, 24.0), (10, 14.0), (4, 8.0)] {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::new(RANKS, 4, 3_000);
        job.transfer = transfer * 1_000;
        for rank in 0..RANKS {
            let mut bytes = Vec::new();
            job.write(rank, false, &mut bytes).unwrap();
            fs::write(folder.path().join(job.name(rank)), bytes).unwrap();
        }
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
fn whatever_is_recorded_or_cut_or_merged_is_merged() {
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

#[test]
fn files_that_end_before_anything_relates_their_clock_are_left_out() {
    // A rank a host. Two of them were killed before their first operation, among them the first.
    let (job, unborn) = (Job::new(4, 4, 40), Job::new(4, 4, 0));
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: u32| folder.path().join(job.name(rank));
    for rank in 0..4_u32 {
        let mut bytes = Vec::new();
        if rank.is_multiple_of(2) {
            unborn.write(rank, false, &mut bytes).unwrap();
            bytes.truncate(bytes.len() - 3);
        } else {
            job.write(rank, true, &mut bytes).unwrap();
        }
        fs::write(path(rank), bytes).unwrap();
    }
    let joined = folder.path().join("joined");
    let merge = || ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), folder.path().as_os_str()]);
    let said = merge().unwrap();
    for rank in [0, 2] {
        let line = format!("left out: {}: nothing in it relates the clock of its host", path(rank).display());
        assert!(said.contains(&line), "{said}");
    }
    assert!(said.contains("node3: its times are put on the clock of node1"), "{said}");
    assert!(said.contains(": 2 files, "), "{said}");
    // Nothing but what relates them is missing: that is not left out without being asked.
    fs::remove_file(&joined).unwrap();
    let mut bytes = Vec::new();
    unborn.write(2, true, &mut bytes).unwrap();
    fs::write(path(2), bytes).unwrap();
    let reason = merge().unwrap_err();
    assert!(reason.contains("nothing relates their clocks"), "{reason}");
}

#[test]
fn what_is_overwritten_in_a_file_without_compression_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, joined) = (folder.path().join("overwritten"), folder.path().join("joined"));
    let mut whole = Vec::new();
    Job::new(8, 2, 60).write(3, false, &mut whole).unwrap();
    let mut noise = 1_u64;
    let mut next = || {
        noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        noise >> 33
    };
    let mut missed = Vec::new();
    const TIMES: usize = 100;
    for number in 0..TIMES {
        let mut bytes = whole.clone();
        let at = next() as usize % (whole.len() - 64);
        let from = next() as usize % (whole.len() - 64);
        bytes[at..at + 64].iter_mut().enumerate().for_each(|(place, byte)| {
            *byte = match number % 4 {
                0 => 0,
                1 => 0xff,
                2 => next() as u8,
                _ => whole[from + place],
            }
        });
        fs::write(&path, bytes).unwrap();
        let said = ncclscope(&["merge".as_ref(), "-o".as_ref(), joined.as_os_str(), path.as_os_str()]);
        if said.is_ok_and(|said| !said.contains("left out")) {
            missed.push((number, at));
        }
        let _ = fs::remove_file(&joined);
    }
    // Not where a value stands in the place of a value, or a text in that of a text.
    assert!(missed.len() <= TIMES / 50, "{missed:?}");
}
