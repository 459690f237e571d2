use std::ffi::OsString;
use std::fs::File;
use std::process::Command;

use super::processes::{describe, last_lines, remove_orphans};
use super::*;

fn launch(layout: &str, more: &str) -> Launch {
    let text = format!(
        "title = \"t\"\n[job]\nhosts = 2\nranks_per_host = 2\nranks = \"{layout}\"\n\
         program = \"environment NCCL_ALGO=Ring\"\n{more}"
    );
    let text = if layout == "threads" { text.replace("environment NCCL_ALGO=Ring", "") } else { text };
    Launch {
        program: "/bin/true".into(),
        scenario: Scenario::parse("t", &text, None).unwrap(),
        nccl: "/x/libnccl.so.2".into(),
        plugin: None,
        cupti: None,
        output: "/x/out".into(),
        set: Vec::new(),
        time_limit: None,
        trace: false,
    }
}

fn folder() -> (tempfile::TempDir, Folder) {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::open(&temporary.path().join("out")).unwrap();
    (temporary, folder)
}

#[test]
fn the_scenario_overrides_the_basics_and_the_user_overrides_both() {
    let (_temporary, folder) = folder();
    let mut launch = launch(
        "processes",
        "[nccl]\nNCCL_PROTO = \"LL\"\nNCCL_NET = \"x\"\n[[host]]\nindex = 1\nnccl = { NCCL_PROTO = \"Simple\" }",
    );
    launch.set = vec![("NCCL_NET".into(), "y".into()), ("OTHER".into(), "z".into())];
    launch.plugin = Some("/p/libncclscope.so".into());
    launch.cupti = Some("/c".into());
    let environment = launch.environment(3, &folder, Some("2.27.3+cuda12.9"));
    let get = |name: &str| environment.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned());
    assert_eq!(get("NCCL_PROTO").as_deref(), Some("Simple"));
    let of_host_0 = launch.environment(0, &folder, None);
    assert_eq!(of_host_0[&OsString::from("NCCL_PROTO")], "LL");
    assert_eq!(get("NCCL_NET").as_deref(), Some("y"));
    assert_eq!(get("OTHER").as_deref(), Some("z"));
    assert_eq!(get("NCCL_P2P_DISABLE").as_deref(), Some("1"));
    assert_eq!(get("NCCL_HOSTID").as_deref(), Some("emulated-host-1"));
    let variables = crate::scenario::program::VARIABLES;
    assert!(variables.iter().all(|name| get(name).is_some()), "what a program may set is there from the start");
    assert_eq!((get("RANK").as_deref(), get("LOCAL_RANK").as_deref()), (Some("3"), Some("1")));
    assert_eq!(get("NCCL_PROFILER_PLUGIN").as_deref(), Some("libncclscope.so"));
    assert!(get("LD_LIBRARY_PATH").unwrap().starts_with("/c:/p"));
    let environment = launch.environment(3, &folder, Some("2.30.7+cuda13.3"));
    assert_eq!(environment[&OsString::from("NCCL_PROFILER_PLUGIN")], "/p/libncclscope.so");
}

#[test]
fn threads_get_no_rank_variables() {
    let (_temporary, folder) = folder();
    let environment = launch("threads", "").environment(1, &folder, None);
    assert!(!environment.contains_key(&OsString::from("RANK")));
    assert_eq!(environment[&OsString::from("NCCL_HOSTID")], "emulated-host-1");
    assert_eq!(environment[&OsString::from("NCCL_PROFILER_PLUGIN")], "none");
}

#[test]
fn only_our_own_folders_are_reused() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("out");
    let folder = Folder::open(&path).unwrap();
    let message = Folder::open(&path).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("is not empty"), "{message}");
    fs::write(path.join(SCENARIO), "").unwrap();
    let message = Folder::open(&path).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("another job is running there"), "{message}");
    drop(folder);

    fs::create_dir(path.join("trace")).unwrap();
    for file in ["truth-7.jsonl", "process-0.log", "trace/a.perfetto-trace", "trace/notes", "truth-mine.jsonl"] {
        fs::write(path.join(file), "").unwrap();
    }
    drop(Folder::open(&path).unwrap());
    let left = |file: &str| path.join(file).exists();
    assert!(!left("truth-7.jsonl") && !left("process-0.log") && !left("trace/a.perfetto-trace"));
    assert!(left("trace/notes") && left("truth-mine.jsonl") && !left("meeting") && !left("lock"));
}

#[test]
fn clocks_begin_at_the_boot() {
    let late = launch("processes", "[[host]]\nindex = 1\nboot = { offset = \"-100 s\" }");
    assert!(late.clocks_are_possible(200_000_000_000).is_ok());
    let message = late.clocks_are_possible(50_000_000_000).unwrap_err().to_string();
    assert_eq!(message, "host 1's boot clock would be before its boot: this machine was booted only 50 s ago");
}

#[test]
fn old_releases_are_refused_for_scenarios_they_cannot_run() {
    let launch = launch("processes", "[network]\nkind = \"plugin\"");
    assert!(launch.release_is_new_enough(Some("2.26.5+cuda12.9")).is_ok());
    assert!(launch.release_is_new_enough(None).is_ok());
    let message = launch.release_is_new_enough(Some("2.24.3+cuda12.2")).unwrap_err().to_string();
    assert_eq!(message, "t needs NCCL 2.26 or later, and this is 2.24.3+cuda12.2");
}

#[test]
fn unused_shared_memory_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let before = SystemTime::now();
    for name in ["nccl-orphan", "nccl-used", "other"] {
        fs::write(path(name), "x").unwrap();
    }
    let used = File::open(path("nccl-used")).unwrap();
    remove_orphans(folder.path(), before);
    let left = |name: &str| path(name).exists();
    assert_eq!((left("nccl-orphan"), left("nccl-used"), left("other")), (false, true, true));
    drop(used);
    remove_orphans(folder.path(), SystemTime::now() + Duration::from_secs(10));
    assert!(left("nccl-used"), "older than the job");
    // A child that another test has just forked holds it until it runs its program.
    let is_removed = (0..1_000).any(|_| {
        remove_orphans(folder.path(), before);
        std::thread::sleep(Duration::from_millis(5));
        !left("nccl-used")
    });
    assert!(is_removed);
}

#[test]
fn a_process_is_described_by_its_end() {
    let temporary = tempfile::tempdir().unwrap();
    let log = temporary.path().join("log");
    let end = |script: &str| {
        let mut child = spawn(Command::new("/bin/sh").args(["-c", script]), &log).unwrap();
        (describe(child.wait().unwrap()), last_lines(&log))
    };
    assert_eq!(end("echo out; echo error >&2; exit 1"), ("failed".into(), "out\nerror".into()));
    assert_eq!(
        end("seq 100; kill -SEGV $$"),
        ("crashed: SIGSEGV".into(), (86..=100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n"))
    );
    assert_eq!(end("exit 86").0, "ended with status 86");
}
