//! The entry on a machine that has nothing: it says in one line what is missing, and asks nothing.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ENTRY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/run");
const PROGRAM: &str = env!("CARGO_BIN_EXE_ncclscope-gpu");
/// The exit code when something required is missing.
const MISSING: i32 = 3;

/// A folder like a bundle's, with the entry and the named files.
fn bundle(folder: &Path, files: &[(&str, &str)]) -> PathBuf {
    // A copy could still be open in a process that another test is just starting.
    symlink(ENTRY, folder.join("run")).unwrap();
    for (name, from) in files {
        symlink(from, folder.join(name)).unwrap();
    }
    folder.join("run")
}

fn run(entry: &Path, words: &[&str]) -> Output {
    Command::new(entry).args(words).output().unwrap()
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    text
}

#[test]
fn without_a_driver_one_line_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let entry = bundle(folder.path(), &[("ncclscope-gpu", PROGRAM)]);
    let found = Command::new(PROGRAM).arg("find").output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    if found.lines().any(|line| line.starts_with("driver") && !line.contains("not found")) {
        println!("left out: this machine has a driver\n{found}");
        return;
    }
    let output = run(&entry, &["--quick", "--python", "/nowhere/python3"]);
    assert_eq!(output.status.code(), Some(MISSING));
    let text = complaint(&output);
    assert!(text.contains("missing: an NVIDIA driver (libcuda.so.1)"), "{text}");
    assert!(!folder.path().join("gpu-report").exists());
}

#[test]
fn a_driver_without_a_gpu_is_reported_in_one_line() {
    // A file with the driver's name that is not a driver.
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    let source = "-xc /dev/null -shared -o";
    assert!(compiler.args(source.split(' ')).arg(&library).status().unwrap().success());
    let entry = bundle(folder.path(), &[("ncclscope-gpu", PROGRAM)]);
    let library = library.to_str().unwrap();
    let here = folder.path().to_str().unwrap();
    let report = folder.path().join("report");
    let words = ["--driver", here, "--nccl", library, "--plugin", library, "--output", report.to_str().unwrap()];
    let output = run(&entry, &words);
    assert_eq!(output.status.code(), Some(MISSING), "{}", String::from_utf8_lossy(&output.stderr));
    let text = complaint(&output);
    assert!(text.contains("nothing can be asked here: process 0") && text.contains("cuInit"), "{text}");
}

#[test]
fn without_the_program_one_line_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    // No program beside it, and no repository around it.
    let inner = folder.path().join("gpu");
    std::fs::create_dir(&inner).unwrap();
    let output = run(&bundle(&inner, &[]), &["--quick"]);
    assert_eq!(output.status.code(), Some(MISSING));
    assert!(complaint(&output).contains("cargo xtask gpu-bundle"));
}
