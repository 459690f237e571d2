//! The suite on emulated GPUs: every row is there, what can be answered is answered well, and what is broken is told.
//!
//! `cargo xtask e2e` fetches the libraries and runs this. Figures are never looked at: they are those of emulated GPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ncclscope_tests::play;
use serde_json::Value;
use tempfile::TempDir;

/// The release in which channels are told apart best.
const NCCL: &str = "2.32.3";

/// Rows of the whole suite, in their order.
const ROWS: &str = "collectives alone shared groups communicators graphs graphs-channels overlap injected injected-graphs \
    injected-kernels capture bracket external timer bracket-external bracket-timer external-timer channels globaltimer \
    correlation external-all external-single graph-ids bound-1s drift empty light standard full no-cupti memory exit-return \
    exit-panic exit-at-once exit-abort exit-terminated fork-before fork-after ddp fsdp ddp-injected py-no-destroy py-at-once \
    py-exception py-terminated py-fork-before py-fork-after profiler-before profiler-after profiler-lent kineto lost";

/// A suite that has run.
struct Run {
    status: Option<i32>,
    /// State, figure and reason, by the row's name; and the names in their order.
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

/// A library of this build: beside the programs, or where dependencies are.
fn built(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let found = tests.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built"))
}

#[track_caller]
fn suite(words: &[&str], variables: &[(&str, &str)]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let libraries = libraries(folder.path());
    let nccl = emulator::wheel::Release::named(NCCL).unwrap().path();
    assert!(nccl.is_file(), "{} is not there; `cargo xtask e2e` fetches it", nccl.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-emulated"));
    play::clean_environment(&mut command);
    command.args(["suite", "--quick", "--clock-seconds", "1"]);
    if !words.contains(&"--python") {
        command.args(["--python", "/nowhere/python3"]);
    }
    command.arg("--output").arg(folder.path().join("report")).arg("--nccl").arg(nccl);
    command.arg("--driver").arg(&libraries).arg("--cupti").arg(libraries.join("libcupti.so.13"));
    if !words.contains(&"--plugin") {
        command.arg("--plugin").arg(play::plugin_path().unwrap());
    }
    command.arg("--empty").arg(built("libncclscope_empty.so"));
    command.env("NCCLSCOPE_MIN_FREE", "0").envs(variables.iter().copied()).args(words);
    let output = command.output().unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.path().join("report/report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).unwrap();
    let told = report["rows"].as_array().unwrap();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let rows = told.iter().map(|row| (text(row, "name"), ["state", "figure", "why"].map(|name| text(row, name))));
    let order = told.iter().map(|row| text(row, "name")).collect();
    Run { status: output.status.code(), rows: rows.collect(), order, report, folder }
}

impl Run {
    #[track_caller]
    fn row(&self, name: &str) -> [&str; 3] {
        self.rows.get(name).unwrap_or_else(|| panic!("there is no row {name}")).each_ref().map(String::as_str)
    }
}

#[test]
fn every_question_has_its_row_and_what_the_emulator_can_answer_is_ok() {
    let run = suite(&[], &[]);
    assert_eq!(run.order, ROWS.split_whitespace().collect::<Vec<_>>());
    for (name, [state, figure, why]) in &run.rows {
        let is_python =
            run.report["rows"].as_array().unwrap().iter().any(|row| row["name"] == **name && row["topic"] == "python");
        match name.as_str() {
            _ if is_python => assert_eq!((state.as_str(), why.as_str()), ("not run", "needs PyTorch"), "{name}"),
            // Whether this build writes captures is told, and no more.
            "capture" => assert_ne!(state, "not ok", "{why}"),
            _ => {
                assert_eq!(state, "ok", "{name}: {figure}; {why}");
                assert!(!figure.is_empty(), "{name}");
            }
        }
    }
    assert_eq!(run.status, Some(0));
    assert_eq!(run.report["emulated"], true);
    // Each way of matching was the only one in its run.
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
    // A trace for each workload stays beside the report.
    let jobs = run.report["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["name"] == "collectives").unwrap();
    let traces = job["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2);
    assert!(traces.iter().all(|path| run.folder.path().join("report").join(path.as_str().unwrap()).is_file()));
}

#[test]
fn without_the_profiler_and_with_a_job_that_hangs_rows_are_not_ok_and_the_suite_goes_on() {
    let empty = built("libncclscope_empty.so");
    let words =
        ["--plugin", empty.to_str().unwrap(), "--only", "groups,hang,globaltimer", "--hang", "--job-limit", "5"];
    let run = suite(&words, &[]);
    assert_eq!(run.order, ["groups", "hang", "globaltimer", "lost"]);
    let [state, _, why] = run.row("groups");
    assert!(state == "not ok" && why.contains("there is no trace"), "{why}");
    let [state, _, why] = run.row("hang");
    assert!(state == "not ok" && why.contains("was killed: it did not end"), "{why}");
    assert_eq!(run.row("globaltimer")[0], "ok");
    assert_eq!(run.status, Some(1));
}

#[test]
fn programs_of_pytorch_are_started_as_ranks_and_judged_by_their_ends_and_traces() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    // No PyTorch: it answers where it would be, and as a rank it tells what it was given and ends well without a trace.
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
    assert_eq!(run.row("py-terminated"), ["not run", "", "left out by --quick"]);
    let told = std::fs::read_to_string(run.folder.path().join("report/py-at-once/told-1.json")).unwrap();
    assert_eq!(told.trim(), "1 of 2 on 0: train.py --exit at-once;");
    let torch = run.report["versions"].as_array().unwrap().iter().find(|version| version[0] == "PyTorch").unwrap();
    assert_eq!(torch[1], "9.9");
}

#[test]
fn matches_that_are_wrong_are_told_and_kernels_that_are_lost() {
    let run = suite(&["--only", "collectives,bracket-external"], &[("EMULATED_CUPTI", "swap=30%,seed=3")]);
    let [state, figure, why] = run.row("collectives");
    assert!(state == "not ok" && why.contains("matched wrongly"), "{figure}; {why}");
    let run = suite(&["--only", "collectives"], &[("EMULATED_CUPTI", "drop=20%,seed=3")]);
    let [state, figure, why] = run.row("collectives");
    assert!(state == "not ok" && why.contains("records were lost"), "{figure}; {why}");
    assert_eq!(run.row("lost")[0], "not ok");
}
