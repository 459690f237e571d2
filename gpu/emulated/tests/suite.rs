//! The suite on emulated GPUs: every row is there, questions that can be answered are answered
//! correctly, and problems are reported.
//!
//! `cargo xtask e2e` fetches the libraries and runs this. Figures are not checked, because they
//! are those of emulated GPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ncclscope_tests::play;
use serde_json::Value;
use tempfile::TempDir;

/// The release whose channels are easiest to tell apart.
const NCCL: &str = "2.32.3";

/// The rows of the whole suite, in order.
const ROWS: &str = "collectives alone shared groups communicators graphs graphs-channels overlap injected attach-late \
    injected-graphs lent second-nccl injected-kernels capture bracket external timer bracket-external bracket-timer external-timer \
    channels launches graph-ids clock-raw clock-given late hung pool globaltimer correlation external-all external-single other-cupti kinds \
    bound-1s drift empty light standard full no-cupti application memory exit-return exit-hung exit-panic exit-at-once exit-abort \
    exit-terminated fork-before fork-after ddp py-graph fsdp ddp-injected py-no-destroy py-at-once py-exception py-terminated \
    py-fork-before py-fork-after profiler-before profiler-after profiler-lent profiler-returned profiler-kept profiler-daemon kineto lost";

/// The results of a suite.
struct Run {
    status: Option<i32>,
    /// State, figure and reason by row name, and the names in order.
    rows: BTreeMap<String, [String; 3]>,
    order: Vec<String>,
    report: Value,
    folder: TempDir,
}

fn libraries(folder: &Path) -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let built = built.parent().unwrap();
    let libraries = folder.join("lib");
    std::fs::create_dir(&libraries).unwrap();
    for (name, from) in [("libcupti.so.13", "libemulated_cupti.so"), ("libcuda.so.1", "libemulated_libcuda.so")] {
        std::fs::copy(built.join(from), libraries.join(name)).unwrap();
    }
    libraries
}

/// A library of this build: beside the programs, or among the dependencies.
fn built(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let found = tests.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built"))
}

#[track_caller]
fn suite(words: &[&str], variables: &[(&str, &str)]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path(), words, variables).output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Run::read(output.status.code(), folder)
}

/// The suite with everything it needs in a folder. It is the short form unless a part of the first
/// ten minutes is asked for.
#[track_caller]
fn command(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> Command {
    let libraries = libraries(folder);
    let nccl = emulator::wheel::Release::named(NCCL).unwrap().path();
    assert!(nccl.is_file(), "{} is not there; `cargo xtask e2e` fetches it", nccl.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-emulated"));
    play::clean_environment(&mut command);
    command.args(["suite", "--clock-seconds", "1"]);
    if !words.contains(&"--first") {
        command.arg("--quick");
    }
    if !words.contains(&"--python") {
        command.args(["--python", "/nowhere/python3"]);
    }
    command.arg("--output").arg(folder.join("report")).arg("--nccl").arg(nccl);
    command.arg("--driver").arg(&libraries).arg("--cupti").arg(libraries.join("libcupti.so.13"));
    if !words.contains(&"--plugin") {
        command.arg("--plugin").arg(play::plugin_path().unwrap());
    }
    command.arg("--empty").arg(built("libncclscope_empty.so"));
    command.env("NCCLSCOPE_MIN_FREE", "0").envs(variables.iter().copied()).args(words);
    command
}

impl Run {
    #[track_caller]
    fn read(status: Option<i32>, folder: TempDir) -> Run {
        let text = std::fs::read_to_string(folder.path().join("report/report.json")).expect("a report");
        let report: Value = serde_json::from_str(&text).unwrap();
        let told = report["rows"].as_array().unwrap();
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let rows = told.iter().map(|row| (text(row, "name"), ["state", "figure", "why"].map(|name| text(row, name))));
        let (rows, order) = (rows.collect(), told.iter().map(|row| text(row, "name")).collect());
        Run { status, rows, order, report, folder }
    }

    /// The names of the files in the archive, as read by another program.
    #[track_caller]
    fn archive(&self) -> Vec<String> {
        let archive = self.folder.path().join("report").join(ncclscope_gpu::home::ARCHIVE);
        let listed = Command::new("tar").arg("-tzf").arg(archive).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// The output is a few files, none of them large, and no folders.
    #[track_caller]
    fn check_output(&self) {
        let files: Vec<_> = std::fs::read_dir(self.folder.path().join("report")).unwrap().map(Result::unwrap).collect();
        assert!(files.len() <= 8, "{files:?}");
        for file in files {
            let facts = file.metadata().unwrap();
            assert!(facts.is_file() && facts.len() <= 16 << 20, "{file:?}");
        }
        assert!(self.folder.path().join("report/report.md").is_file());
        self.archive();
    }

    #[track_caller]
    fn row(&self, name: &str) -> [&str; 3] {
        self.rows.get(name).unwrap_or_else(|| panic!("there is no row {name}")).each_ref().map(String::as_str)
    }
}

#[test]
fn every_question_has_its_row_and_what_the_emulator_can_answer_is_ok() {
    // Longer than the short form, for a busy machine.
    let run = suite(&["--minutes", "30"], &[]);
    assert_eq!(run.order, ROWS.split_whitespace().collect::<Vec<_>>());
    for (name, [state, figure, why]) in &run.rows {
        let is_python =
            run.report["rows"].as_array().unwrap().iter().any(|row| row["name"] == **name && row["topic"] == "python");
        match name.as_str() {
            _ if is_python => assert_eq!((state.as_str(), why.as_str()), ("not run", "needs PyTorch"), "{name}"),
            "other-cupti" => assert_eq!((state.as_str(), why.as_str()), ("not run", "needs a second libcupti")),
            "second-nccl" => assert_eq!((state.as_str(), why.as_str()), ("not run", "emulated GPUs have one libnccl")),
            // The row says whether this build writes captures, and nothing else.
            "capture" => assert_ne!(state, "not ok", "{why}"),
            _ => {
                assert_eq!(state, "ok", "{name}: {figure}; {why}");
                assert!(!figure.is_empty(), "{name}");
            }
        }
    }
    assert_eq!(run.status, Some(0));
    assert_eq!(run.report["emulated"], true);
    // Each way of matching was the only one used in its run.
    assert!(
        run.row("bracket")[1].contains("exact_launch_bracket") && run.row("bracket")[1].contains("exact_graph_node")
    );
    assert!(run.row("external")[1].contains("exact_external_id"), "{:?}", run.row("external"));
    assert!(!run.row("timer")[1].contains("exact"), "{:?}", run.row("timer"));
    let markdown = std::fs::read_to_string(run.folder.path().join("report/report.md")).unwrap();
    assert!(markdown.contains("The GPUs were emulated"), "{markdown}");
    for row in run.report["rows"].as_array().unwrap() {
        assert!(markdown.contains(row["question"].as_str().unwrap()), "{row}");
    }
    // A trace of each workload stays beside the report.
    let jobs = run.report["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["name"] == "collectives").unwrap();
    let traces = job["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2);
    assert!(traces.iter().all(|path| run.folder.path().join("report-jobs").join(path.as_str().unwrap()).is_file()));
    assert!(run.archive().contains(&"graph-ids/told-0.json".to_owned()));
    // Rows that were not asked say so.
    assert!(
        run.row("launches")[1].contains("cudaGraphLaunch: unasked (no libcudart was found)"),
        "{:?}",
        run.row("launches")
    );
    assert!(run.row("graph-ids")[1].contains("to the capture that they were updated to"), "{:?}", run.row("graph-ids"));
}

#[test]
fn the_first_ten_minutes_end_in_time_with_all_rows_in_a_few_small_files() {
    // No machine plays all of it in this time: two rows watch clocks for 3 s, and two wait for
    // kernels of 2 and 4 s.
    let run = suite(&["--first", "--minutes", "0.18"], &[]);
    assert!(run.report["seconds"].as_f64().unwrap() < 10.8);
    assert!(run.rows.values().all(|row| row[0] != "not ok"), "{:?}", run.rows);
    // The most important rows come first, and rows without time are listed.
    assert_eq!(run.order[..2], ["launches", "graph-ids"]);
    let late = run.row("profiler-daemon");
    assert_eq!(late, ["not run", "", "no time left: see --minutes"]);
    assert_eq!(run.order.len(), 24, "{:?}", run.order);
    run.check_output();
}

#[test]
fn whenever_it_is_killed_there_is_a_report_and_an_archive_that_can_be_read() {
    for seconds in [0.0, 2.0, 3.3, 5.1, 9.7] {
        let folder = tempfile::tempdir().unwrap();
        let mut running = command(folder.path(), &["--first"], &[]).spawn().unwrap();
        let report = folder.path().join("report/report.json");
        while !report.is_file() {
            assert_eq!(running.try_wait().unwrap(), None, "it ended without a report");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
        running.kill().unwrap();
        running.wait().unwrap();
        let run = Run::read(None, folder);
        assert!(run.report["machine"]["nccl"][0]["path"].is_string(), "{}", run.report);
        assert!(seconds == 0.0 || run.report["running"].is_array() || !run.order.is_empty(), "{}", run.report);
        run.check_output();
    }
}

#[test]
fn without_the_profiler_and_with_a_job_that_hangs_rows_are_not_ok_and_the_suite_goes_on() {
    let empty = built("libncclscope_empty.so");
    let words =
        ["--plugin", empty.to_str().unwrap(), "--only", "groups,hang,globaltimer", "--hang", "--job-limit", "20"];
    let run = suite(&words, &[]);
    assert_eq!(run.order, ["groups", "hang", "globaltimer", "lost"]);
    let [state, _, why] = run.row("groups");
    assert!(state == "not ok" && why.contains("there is no trace"), "{why}");
    let [state, _, why] = run.row("hang");
    assert!(state == "not ok" && why.contains("was killed: it did not end"), "{why}");
    let jobs = run.report["jobs"].as_array().unwrap();
    assert!(jobs.iter().all(|job| job["seconds"].as_f64().unwrap() <= 20.0), "{jobs:?}");
    assert_eq!(run.row("globaltimer")[0], "ok");
    assert_eq!(run.status, Some(1));
}

#[test]
fn programs_of_pytorch_are_started_as_ranks_and_judged_by_their_ends_and_traces() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    // Not PyTorch: it says where PyTorch would be, and as a rank it reports its arguments and
    // succeeds without a trace.
    let python = folder.path().join("python3");
    let text = "#!/bin/sh\n\
        if [ \"$1\" = -c ]; then echo 9.9; echo /nowhere; exit; fi\n\
        echo \"$RANK of $WORLD_SIZE on $LOCAL_RANK: ${1##*/} ${8} ${9}; ${CUDA_INJECTION64_PATH##*/}\" > \"$3\"\n";
    std::fs::write(&python, text).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = suite(&["--python", python.to_str().unwrap(), "--only", "ddp,py-terminated,py-at-once"], &[]);
    assert_eq!(run.order, ["ddp", "py-at-once", "py-terminated", "lost"]);
    let [state, _, why] = run.row("ddp");
    assert!(state == "not ok" && why.contains("there is no trace") && why.contains("0 traces of 2 processes"), "{why}");
    // --quick leaves it out unless it is named.
    assert!(run.row("py-terminated")[2].contains("there is no trace"), "{:?}", run.row("py-terminated"));
    let told = std::fs::read_to_string(run.folder.path().join("report-jobs/py-at-once/told-1.json")).unwrap();
    assert_eq!(told.trim(), "1 of 2 on 0: train.py --exit at-once;");
    let torch = run.report["versions"].as_array().unwrap().iter().find(|version| version[0] == "PyTorch").unwrap();
    assert_eq!(torch[1], "9.9");
}

#[test]
fn wrong_matches_and_lost_kernels_are_reported() {
    let run = suite(&["--only", "collectives,bracket-external"], &[("EMULATED_CUPTI", "swap=30%,seed=3")]);
    let [state, figure, why] = run.row("collectives");
    assert!(state == "not ok" && why.contains("matched wrongly"), "{figure}; {why}");
    let run = suite(&["--only", "collectives"], &[("EMULATED_CUPTI", "drop=20%,seed=3")]);
    let [state, figure, why] = run.row("collectives");
    assert!(state == "not ok" && why.contains("records were lost"), "{figure}; {why}");
    assert_eq!(run.row("lost")[0], "not ok");
}
