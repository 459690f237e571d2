//! What merging many files adds: names of communicators, the order of processes, who came last.

use super::{alone, identities, in_pairs, replace};
use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::recording::assert_sound;
use std::fs;
use std::path::{Path, PathBuf};

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
fn a_communicator_is_selected_by_the_name_of_its_tracks() {
    let recordings: Vec<_> = (0..4).map(in_pairs).collect();
    let folder = tempfile::tempdir().unwrap();
    let joined = folder.path().join("joined");
    let mut words = vec!["merge".into(), "-o".into(), joined.clone().into_os_string()];
    words.extend(recordings.iter().map(|(_, file)| file.clone().into_os_string()));
    ncclscope(&words).unwrap();
    let info = ncclscope(&["info".into(), joined.clone()]).unwrap();
    assert!(info.contains("communicator  00000000000000b0 (no name, 000000b0): ranks 0-1 of 2 on 2 hosts"), "{info}");
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
fn processes_are_in_the_order_of_their_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let elsewhere = "x".repeat(host.trim().len());
    // Neither by name nor by file, and every other one in a container with a name of its own; one
    // has no rank.
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

/// A root (`uuid` 0) that asks for its processes in an explicit order: fields 1 and 19 of a
/// descriptor.
const ROOT_IN_ORDER: &[u8] = &[0x08, 0x00, 0x98, 0x01, 0x01];

#[test]
fn processes_whose_marks_collide_are_told_apart() {
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
    // What was merged has other marks; it is merged with the rest of the job all the same, and not
    // with its own ranks.
    let files: Vec<PathBuf> = fs::read_dir(path("two")).unwrap().map(|entry| entry.unwrap().path()).collect();
    merge("some.perfetto-trace", &files[..4]);
    let said = merge("again.perfetto-trace", &[&[path("some.perfetto-trace")], &files[3..]].concat());
    assert_eq!(said.matches("the same recording is in ").count(), 1, "{said}");
    assert_eq!(identities(&Trace::open(path("again.perfetto-trace")).unwrap()).len(), own.len());
}

#[test]
fn info_tells_apart_processes_whose_marks_collide() {
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
fn no_rank_is_called_last_while_one_is_missing() {
    const RANKS: u32 = 4;
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(RANKS, 2, 5);
    let paths: Vec<PathBuf> = (0..RANKS).map(|rank| folder.path().join(job.name(rank))).collect();
    job.write_to(folder.path(), RANKS, true);
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
