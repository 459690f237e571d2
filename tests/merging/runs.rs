//! Which files belong to one run, and which are refused.

use super::{alone, replace};
use crate::command::ncclscope;
use crate::synthetic::Job;
use ncclscope_tests::play::Play;
use ncclscope_tests::recording::Recording;
use std::fs;
use std::path::Path;

#[test]
fn files_of_another_boot_or_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, comm, settings: &[(&str, &str)]| alone(folder.path(), name, comm, settings);
    let join = |files: &[&Path]| {
        let output = folder.path().join("joined");
        let _ = fs::remove_file(&output);
        let words = ["merge".as_ref(), "-o".as_ref(), output.as_os_str()];
        let said = ncclscope(&words.into_iter().chain(files.iter().map(|file| file.as_os_str())).collect::<Vec<_>>());
        assert_eq!(said.is_ok(), output.exists(), "a refused merge leaves no file");
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

    // Two runs of a program one after the other, and files that state their run.
    let later = file("later", 2, &[]);
    let said = join(&[&one, &later]).unwrap();
    assert!(said.starts_with("Left out: 1 file of earlier attempts") && said.contains(": 1 file, "), "{said}");
    let run = [("NCCLSCOPE_RUN_ID", "tuesday")];
    let (one, later) = (file("said", 1, &run), file("said later", 2, &run));
    join(&[&one, &later]).unwrap();
    let rank = [("NCCLSCOPE_RUN_ID", "tuesday"), ("RANK", "0"), ("WORLD_SIZE", "1")];
    let (attempt, again) = (file("attempt", 3, &rank), file("again", 4, &rank));
    let said = join(&[&attempt, &again]).unwrap();
    assert!(said.starts_with("Left out: 1 file of earlier attempts"), "a rank that was started again: {said}");
    let third = file("third", 1, &[("NCCLSCOPE_RUN_ID", "monday")]);
    join(&[&one, &third]).expect("files that share a communicator are one run, whatever its name");
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
fn impossible_ranks_are_reported_and_merged_all_the_same() {
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
fn files_that_end_before_their_clock_can_be_aligned_are_left_out() {
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
