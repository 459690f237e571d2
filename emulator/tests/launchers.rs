//! `ncclscope run` before and after launchers: the code blocks of `docs/running.md` that can run
//! on one machine, exactly as they stand there. The job is the real NCCL on emulated GPUs.
//!
//! These tests need torchrun and mpirun. Without them they say so and are skipped, except in
//! continuous integration.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use emulator::wheel::Release;
use ncclscope::trace::words::attribute;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play::{self, Finished};
use tempfile::TempDir;

const NCCL: &str = "2.30.7";
const RANKS: usize = 4;
const LIMIT: Duration = Duration::from_secs(300);

const SCENARIO: &str = "\
title = \"Four ranks of one host\"

[job]
hosts = 1
ranks_per_host = 4
program = \"\"\"
repeat 3 {
  all_reduce 64 KiB f32 sum
}
sync
\"\"\"
";

/// The code blocks below a heading of the document.
#[track_caller]
fn blocks(heading: &str) -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/running.md");
    let text = fs::read_to_string(file).unwrap();
    let section = text.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("docs/running.md has no {heading}"));
    let blocks: Vec<_> = section.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```")).collect();
    assert!(!blocks.is_empty(), "{heading} has nothing to type");
    blocks.into_iter().map(|(block, _)| block.to_owned()).collect()
}

/// Whether a launcher is installed.
///
/// # Panics
///
/// When it is not installed in continuous integration.
#[track_caller]
fn has(launcher: &str) -> bool {
    let there = Command::new("which").arg(launcher).output().is_ok_and(|output| output.status.success());
    assert!(there || std::env::var_os("CI").is_none(), "there is no {launcher}");
    if !there {
        eprintln!("left out: there is no {launcher}");
    }
    there
}

/// A folder with a `train.py`, which runs a rank of the job.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let nccl = Release::named(NCCL).unwrap().path();
        assert!(nccl.is_file(), "{} is not there; `cargo xtask e2e` fetches it", nccl.display());
        fs::write(place.path("job.toml"), SCENARIO).unwrap();
        // Side by side, as in an installation.
        fs::create_dir(place.path("bin")).unwrap();
        play::copy_program(&play::program_path().unwrap(), &place.path("bin/ncclscope"));
        symlink(play::plugin_path().unwrap(), place.path("bin/libncclscope.so")).unwrap();
        let emulator = env!("CARGO_BIN_EXE_emulator");
        let words = ["emulator", "member", "job.toml", "--nccl", nccl.to_str().unwrap(), "--output", "job"];
        fs::write(place.path("train.py"), format!("import os\nos.execv({emulator:?}, {words:?})\n")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a block of the document on this machine: with fewer ranks, and with torchrun's flags
    /// in a form that its older releases accept too.
    fn types(&self, block: &str) -> Finished {
        let mut line = block.to_owned();
        for flag in ["--nproc-per-node", "--no-python", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"] {
            line = line.replace(flag, &format!("--{}", flag[2..].replace('-', "_")));
        }
        for (theirs, here) in [("-np 8", "-np 4"), ("per_node 8", "per_node 4"), ("/shared", ".")] {
            line = line.replace(theirs, here);
        }
        let mut shell = Command::new("sh");
        play::clean_environment(&mut shell);
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let paths = [self.path("bin")].into_iter().chain(std::env::split_paths(&paths));
        shell.env("PATH", std::env::join_paths(paths).unwrap()).env("NCCLSCOPE_MIN_FREE", "0");
        // Two cores suffice for them, and in a container root runs them.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"] {
            shell.env(name, "1");
        }
        // PyTorch 1.13 needs them under Python 3.11; they name a rank that does not exist here.
        shell.env("PET_REDIRECTS", "9:3").env("PET_TEE", "9:3");
        shell.args(["-ec", &line]).current_dir(&self.0);
        let done = play::run(&mut shell, "", LIMIT).unwrap();
        println!("{line}{}{}", done.stdout, done.stderr);
        done
    }

    /// Asserts that there is a trace of each rank in one folder, all from the same run; returns
    /// that run's name.
    #[track_caller]
    fn one_run(&self, folder: &Path) -> String {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        let (traces, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|path| path.extension().is_some_and(|it| it == "perfetto-trace"));
        assert_eq!((traces.len(), others.len()), (RANKS, RANKS), "{traces:?} {others:?}");
        assert!(others.iter().all(|path| path.display().to_string().ends_with(".summary.txt")), "{others:?}");
        let mut runs = BTreeSet::new();
        let mut names = BTreeSet::new();
        for trace in &traces {
            let trace = Trace::open(trace).unwrap();
            runs.extend(trace.attributes().remove(attribute::RUN));
            let operations = trace.rows("SELECT name FROM slice WHERE name GLOB 'AllReduce*'");
            assert!(!operations.is_empty(), "a trace without the job's operations");
            let processes = trace.rows("SELECT name FROM process WHERE name GLOB 'rank *'");
            names.extend(processes.iter().map(|row| row.str("name").split(' ').nth(1).unwrap().to_owned()));
        }
        assert_eq!(names, (0..RANKS).map(|rank| rank.to_string()).collect(), "a trace of each rank");
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs.pop_first().unwrap()
    }

    /// The folder that `ncclscope run` made here.
    #[track_caller]
    fn folder(&self) -> PathBuf {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let found: Vec<_> = entries.filter(|path| path.display().to_string().contains("/ncclscope-")).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }
}

/// Asserts that a job succeeded, and that the user is told where the traces are.
#[track_caller]
fn assert_recorded(done: &Finished, folder: &Path) {
    assert!(done.status.success(), "{}", done.status);
    let name = folder.file_name().unwrap().to_str().unwrap();
    assert!(done.stderr.contains("recording to "), "the start line");
    assert!(done.stderr.contains(&format!("ncclscope: {RANKS} traces, ")), "how many there are");
    let next = done.stderr.lines().find(|line| line.contains("next: ncclscope diagnose "));
    assert!(next.is_some_and(|line| line.contains(name)), "the next command");
    assert!(!done.stderr.contains("nothing was recorded"));
}

/// Runs each block below a heading separately.
#[track_caller]
fn each_makes_one_run(heading: &str) {
    for block in blocks(heading) {
        let place = Place::new();
        let done = place.types(&block);
        let folder = place.folder();
        assert_recorded(&done, &folder);
        let run = place.one_run(&folder);
        assert!(run.starts_with("NCCLSCOPE_RUN_ID="), "{run}");
    }
}

#[test]
fn torchrun_on_one_node() {
    if has("torchrun") {
        each_makes_one_run("torchrun, one node");
    }
}

#[test]
fn torchrun_on_two_nodes() {
    if !has("torchrun") {
        return;
    }
    let block = blocks("torchrun, several nodes")[0].replace("--nproc-per-node 8", "--nproc-per-node 2");
    // Any free port: this listener is closed before torchrun starts.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let block = block.replace("node1:29400", &format!("localhost:{port}"));
    let place = Place::new();
    let both = thread::scope(|scope| {
        let nodes = [scope.spawn(|| place.types(&block)), scope.spawn(|| place.types(&block))];
        nodes.map(|node| node.join().unwrap())
    });
    let folder = place.path("traces/my-run");
    let speaks: Vec<_> = both.iter().filter(|node| node.stderr.contains("next: ")).collect();
    assert!(both.iter().all(|node| node.status.success()));
    assert_eq!(speaks.len(), 1, "rank 0 speaks for all");
    assert_recorded(speaks[0], &folder);
    assert_eq!(place.one_run(&folder), "NCCLSCOPE_RUN_ID=my-run");
}

#[test]
fn open_mpi() {
    if has("mpirun") {
        each_makes_one_run("Open MPI");
    }
}
