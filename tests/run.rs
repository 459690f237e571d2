//! `ncclscope run`, as a program: what reaches the job, what comes back, and what is printed about
//! the recording. This test belongs to the package `ncclscope`, because Cargo tells only that
//! package's tests where the program is.

use ncclscope::config::SETTINGS;
use ncclscope_tests::play::{self, Finished};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A folder to work in, with a library that looks like libnccl.
struct Place {
    folder: TempDir,
    nccl: PathBuf,
}

impl Place {
    fn new() -> Place {
        Place::with_nccl("2.28.9+cuda13.0")
    }

    fn with_nccl(release: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("nccl.c");
        let nccl = folder.path().join("libnccl.so.2");
        fs::write(&source, format!("const char line[] = \"NCCL version {release}\";\n")).unwrap();
        play::compile_to(&nccl, source, &["-shared", "-fPIC"]);
        Place { folder, nccl }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// `ncclscope run`, with the library of this build, in a new folder.
    fn command(&self, flags: &[&str]) -> Command {
        let mut command = ncclscope();
        command.current_dir(self.path()).args(["run", "--library"]).arg(play::plugin_path().unwrap()).args(flags);
        command
    }

    #[track_caller]
    fn run(&self, flags: &[&str], job: &[&str]) -> Finished {
        finished(self.command(flags).arg("--").args(job))
    }

    /// A shell command that starts a program with NCCL loaded, which runs long enough to be seen.
    fn with_nccl_loaded(&self, program: &str) -> String {
        format!("env LD_PRELOAD={} {program}", self.nccl.display())
    }

    /// A job whose only rank plays a script through the plugin that `NCCL_PROFILER_PLUGIN` names,
    /// loaded as NCCL would load it.
    fn rank(&self, script: &str) -> String {
        let file = self.path().join("script.txt");
        fs::write(&file, script).unwrap();
        let host = play::host_path().unwrap();
        let play = format!("{} play --plugin $NCCL_PROFILER_PLUGIN --interface 7 {}", host.display(), file.display());
        self.with_nccl_loaded(&play)
    }
}

const COLLECTIVE: &str = "main init world comm=0xabc rank=0 nranks=4\n\
    main start c world Coll func=AllReduce count=16 datatype=ncclInt8\nmain stop c\nmain finalize world\n";

fn ncclscope() -> Command {
    // A shell that runs the tests in the background ignores these signals, and the job would
    // inherit that.
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=INT,QUIT").arg(env!("CARGO_BIN_EXE_ncclscope"));
    play::clean_environment(&mut command);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

#[track_caller]
fn finished(command: &mut Command) -> Finished {
    play::run(command, "", LIMIT).unwrap()
}

#[track_caller]
fn assert_says(finished: &Finished, words: &str) {
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
}

// ---- what comes back ----

#[test]
fn a_recorded_job_keeps_its_exit_code_and_lists_its_files_and_the_next_command() {
    let place = Place::new();
    let job = format!("{}; exit 3", place.rank(COLLECTIVE));
    let done = place.run(&[], &["sh", "-c", &job]);
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    assert_says(&done, "ncclscope: 1 trace, ");
    let next = done.stderr.lines().last().and_then(|line| line.strip_prefix("ncclscope: next: ncclscope ")).unwrap();
    let next = format!("{} {next}", env!("CARGO_BIN_EXE_ncclscope"));
    let said = finished(Command::new("sh").args(["-c", &next]).current_dir(place.path()));
    assert!(said.status.success() && said.stdout.starts_with("Cannot tell: there are no kernels"), "{}", said.stdout);
}

#[test]
fn a_job_with_metrics_only_lists_its_summaries() {
    let place = Place::new();
    let finished = place.run(&["--output", "t", "--preset", "metrics"], &["sh", "-c", &place.rank(COLLECTIVE)]);
    assert!(finished.status.success(), "{finished:?}");
    assert_says(&finished, "ncclscope: 1 summary, ");
    assert_says(&finished, "ncclscope: next: ncclscope summary t\n");
    let mut said = Vec::new();
    ncclscope::cli::run(["ncclscope".into(), "summary".into(), place.path().join("t").into_os_string()], &mut said)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(String::from_utf8_lossy(&said).contains("AllReduce"));

    let text = ["--output", "texts", "--preset", "metrics", "--summary-format", "table"];
    let finished = place.run(&text, &["sh", "-c", &place.rank(COLLECTIVE)]);
    assert_says(&finished, "ncclscope: 1 summary, ");
    assert!(!finished.stderr.contains("next: "), "{}", finished.stderr);
}

#[test]
fn each_rank_exports_its_own_trace_after_the_job() {
    let place = Place::new();
    let job = format!("{}; exit 3", place.rank(COLLECTIVE));
    let done = place.run(&["--export", "parquet", "--output", "out"], &["sh", "-c", &job]);
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    assert_says(&done, "/tables: 1 trace exported, ");
    let tables = place.path().join("out/tables");
    assert_eq!(fs::read_dir(&tables).unwrap().count(), 9 + 1);
    // A trace of another rank, which is not over.
    fs::write(place.path().join("out/other.1.perfetto-trace"), "").unwrap();
    let mut command = place.command(&["--export", "parquet", "--output", "out", "--", "sh", "-c", &job]);
    let done = finished(command.env("RANK", "1").env("WORLD_SIZE", "2").env("NCCLSCOPE_RUN_ID", "r"));
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    assert_says(&done, "/tables: 1 trace exported, ");
    assert_eq!(fs::read_dir(tables.join("_exported")).unwrap().count(), 2);
}

#[test]
fn a_launcher_with_nccl_loaded_is_not_reported_as_missing() {
    let place = Place::new();
    let launcher = place.with_nccl_loaded(&format!("sh -c '{}; sleep 1; exit 0'", place.rank(COLLECTIVE)));
    let done = place.run(&[], &["sh", "-c", &launcher]);
    assert_says(&done, "ncclscope: 1 trace, ");
    assert!(!done.stderr.contains("not recorded: "), "{}", done.stderr);
}

#[test]
fn a_killed_job_ends_us_by_the_same_signal() {
    for (signal, number) in [("KILL", 9), ("INT", 2), ("SEGV", 11)] {
        let done = Place::new().run(&[], &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(done.status.signal(), Some(number), "{}", done.status);
    }
}

#[test]
fn a_missing_program_is_reported_as_by_a_shell() {
    let done = Place::new().run(&[], &["/nowhere/train"]);
    assert_eq!(done.status.code(), Some(127));
    assert_says(&done, "failed to start /nowhere/train: No such file");
}

// ---- signals ----

/// Prints when it is ready, counts signals, and prints the count on SIGTERM.
const COUNTER: &str = "n=0; trap 'n=$((n+1))' USR1; trap 'echo $n; exit 5' TERM; echo ready; i=0; while [ $i -lt 1000 ]; do sleep 0.02; i=$((i+1)); done";

struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn new(command: &mut Command) -> Running {
        let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Running { child, lines }
    }

    fn kill(&self, signal: &str, target: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{signal} {target}")]).status().unwrap();
        assert!(status.success());
    }
}

#[test]
fn a_signal_reaches_the_job_once_whoever_gets_it() {
    for to_group in [false, true] {
        let place = Place::new();
        let mut running = Running::new(place.command(&[]).args(["--", "sh", "-c", COUNTER]));
        let pid = running.child.id();
        running.kill("USR1", &if to_group { format!("-{pid}") } else { pid.to_string() });
        // Longer than ncclscope waits for a signal that was sent to the group.
        std::thread::sleep(Duration::from_millis(800));
        running.kill("TERM", &pid.to_string());
        assert_eq!(running.lines.next().unwrap().unwrap(), "1", "to the group: {to_group}");
        assert_eq!(running.child.wait().unwrap().code(), Some(5));
    }
}

#[test]
fn ctrl_c_reaches_the_job_once() {
    // The trap counts; the effect of a second signal would show before the end.
    let job = "trap 'echo caught' INT; echo ready; n=0; while [ $n -lt 40 ]; do sleep 0.02; n=$((n+1)); done; exit 9";
    let place = Place::new();
    let run = place.command(&["--", "sh", "-c", job]);
    let done = on_a_terminal(&run, "ready", r#"os.write(terminal, b"\x03")"#);
    assert_eq!((done.stdout.matches("caught").count(), done.status.code()), (1, Some(9)), "{}", done.stderr);
}

#[test]
fn ignored_signals_stay_ignored_in_the_job() {
    let place = Place::new();
    let inner = place.command(&["--", "sh", "-c", "kill -HUP $$; echo alive"]);
    let words: Vec<_> = inner.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(&words);
    shell.current_dir(place.path());
    assert_eq!(finished(&mut shell).stdout, "alive\n");
}

#[test]
fn a_job_does_not_outlive_us() {
    let place = Place::new();
    let mut running = Running::new(place.command(&[]).args(["--", "sh", "-c", "echo ready; sleep 20; echo alive"]));
    running.child.kill().unwrap();
    assert_eq!(running.child.wait().unwrap().signal(), Some(9));
    // The job holds the other end, which is closed when the job is gone.
    assert!(running.lines.next().is_none());
}

// ---- what is set ----

#[test]
fn variables_that_are_set_are_kept_and_named_unless_replaced() {
    let place = Place::new();
    let job = ["sh", "-c", "echo $NCCL_PROFILER_PLUGIN $CUDA_INJECTION64_PATH"];
    let ours = play::plugin_path().unwrap();
    let ours = ours.to_str().unwrap();
    for (flags, expected, words) in [
        (&["--inject"][..], "other.so nsys.so".to_owned(), "NCCL_PROFILER_PLUGIN=other.so was set before and is kept"),
        (
            &["--inject", "--replace"],
            format!("libncclscope.so {ours}"),
            "NCCL_PROFILER_PLUGIN is libncclscope.so instead of other.so",
        ),
    ] {
        let mut command = place.command(flags);
        command.env("NCCL_PROFILER_PLUGIN", "other.so").env("CUDA_INJECTION64_PATH", "nsys.so");
        let done = finished(command.arg("--").args(job));
        assert_eq!(done.stdout.trim(), expected);
        assert_says(&done, words);
    }
}

#[test]
fn the_environment_is_printed_for_a_shell() {
    let place = Place::new();
    let printed = finished(&mut place.command(&["--print-env", "--preset", "full", "--output", "it's here"])).stdout;
    let job = format!("{}\n{}", printed, place.rank(COLLECTIVE));
    let mut shell = Command::new("sh");
    play::clean_environment(&mut shell);
    let done = finished(shell.args(["-c", &job]).current_dir(place.path()));
    assert!(done.status.success(), "{}", done.stderr);
    let traces: Vec<_> = fs::read_dir(place.path().join("it's here")).unwrap().collect();
    assert_eq!(traces.len(), 2, "a trace and its summary: {traces:?}");
}

#[test]
fn every_setting_but_the_rank_is_a_flag() {
    let help = finished(ncclscope().args(["run", "--help"])).stdout;
    for setting in SETTINGS {
        let flag = setting.name.replace("NCCLSCOPE_", "--").to_lowercase().replace('_', "-");
        let said = help.lines().any(|line| line.trim_start().split([' ', '[']).next() == Some(&flag));
        assert_eq!(said, setting.name != "NCCLSCOPE_RANK", "{flag}");
    }
    let place = Place::new();
    let done = place.run(&["--max-size", "5M", "--nvtx"], &["sh", "-c", "echo $NCCLSCOPE_MAX_SIZE $NCCLSCOPE_NVTX"]);
    assert_eq!(done.stdout, "5M 1\n");
    let refused = place.run(&["--max-size", "many"], &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_says(&refused, "invalid value 'many' for '--max-size <SIZE>': expected 1M to");
    assert!(!refused.stderr.contains("using the default"), "{}", refused.stderr);
}

// ---- inside a launcher ----

#[test]
fn ranks_share_one_run_and_the_first_one_prints() {
    let place = Place::new();
    let run = place.command(&["--", "sh", "-c", "echo $RANK $$ $NCCLSCOPE_RUN_ID $NCCLSCOPE_OUTPUT"]);
    let words: Vec<_> = run.get_args().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let ranks = format!(
        "for rank in 0 1; do RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 '{}' {} 2>said.$rank & echo started $rank $!; done; wait",
        run.get_program().display(),
        words.join(" ")
    );
    let mut shell = Command::new("sh");
    play::clean_environment(&mut shell);
    let done = finished(shell.args(["-c", &ranks]).current_dir(place.path()));
    let line = |begin: &str| {
        let found =
            done.stdout.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_else(|| panic!("{}", done.stdout));
        found.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, second) = (line("0 "), line("1 "));
    assert_eq!(first[1..], second[1..], "the run and its folder");
    assert!(!first[1].is_empty() && first[2].contains("/ncclscope-"), "{first:?}");
    assert_eq!(second[0], line("started 1 ")[0], "a rank that has nothing to say becomes the job");
    let said = |rank: u32| fs::read_to_string(place.path().join(format!("said.{rank}"))).unwrap();
    assert!(said(0).contains("ncclscope: nothing was recorded"), "{}", said(0));
    assert_eq!(said(1), "");
}

#[test]
fn ranks_that_have_not_ended_are_not_reported_as_killed() {
    let place = Place::new();
    fs::create_dir(place.path().join("out")).unwrap();
    fs::write(place.path().join("out/other.perfetto-trace"), "").unwrap();
    let job = place.rank(COLLECTIVE);
    let mut command = place.command(&["--output", "out", "--", "sh", "-c", &job]);
    let done = finished(command.env("RANK", "0").env("WORLD_SIZE", "2"));
    assert_says(&done, "ncclscope: 2 traces, ");
    assert_says(&done, " so far, in out\n");
    assert!(!done.stderr.contains("killed"), "{}", done.stderr);
}

// ---- the doctor ----

#[test]
fn the_doctor_s_exit_code_says_whether_recording_will_work() {
    // With the library beside the program, as installed.
    let install = |place: &Place| {
        let program = place.path().join("ncclscope");
        play::copy_program(Path::new(env!("CARGO_BIN_EXE_ncclscope")), &program);
        fs::copy(play::plugin_path().unwrap(), place.path().join("libncclscope.so")).unwrap();
        program
    };
    let doctor = |place: &Place, program: &Path, variables: &[(&str, &str)]| {
        let mut command = Command::new(program);
        play::clean_environment(&mut command);
        command.args(["doctor", "--python", "/nowhere/python3", "--json"]).envs(variables.iter().copied());
        command.current_dir(place.path()).env("LD_LIBRARY_PATH", place.path()).env("NCCLSCOPE_MIN_FREE", "0");
        let done = finished(&mut command);
        (done.status.code(), done.stdout)
    };
    let place = Place::new();
    let program = install(&place);
    let (code, said) = doctor(&place, &program, &[]);
    assert!(said.contains("2.28.9, profiler interface v5: ") && said.contains("(LD_LIBRARY_PATH)"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\"ok\": true"), "{said}");
    // A CUPTI, named as in toolkits.
    fs::write(place.path().join("libcupti.so.2025.3.1"), "").unwrap();
    std::os::unix::fs::symlink("libcupti.so.2025.3.1", place.path().join("libcupti.so.13")).unwrap();
    let (code, said) = doctor(&place, &program, &[]);
    assert_eq!(code, Some(0), "{said}");
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&told["format_version"], &told["ok"]), (&1.into(), &true.into()), "nothing but JSON: {said}");
    let faults = told["findings"].as_array().unwrap().iter().filter(|it| it["about"] == "CUPTI's faults");
    let fault =
        faults.map(|it| it["found"].as_str().unwrap()).find(|it| it.contains("2025.3.1: after some 25 million"));
    assert!(fault.is_some_and(|fault| fault.ends_with("(parca-dev/parcagpu#23)")), "{said}");
    let (code, said) = doctor(&place, &program, &[("NCCL_PROFILER_PLUGIN", "other.so")]);
    assert_eq!(code, Some(1));
    assert!(said.contains("\"ok\": false") && said.contains("NCCL_PROFILER_PLUGIN=other.so"), "{said}");
    fs::remove_file(place.path().join("libncclscope.so")).unwrap();
    let (code, said) = doctor(&place, &program, &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("there is no libncclscope.so beside "), "{said}");
}

// ---- on a terminal ----

/// A program on a terminal, with its exit code. Once `until` is on the screen (if it is not empty),
/// `deed` is run, in Python.
fn on_a_terminal(command: &Command, until: &str, deed: &str) -> Finished {
    const PTY: &str = r#"
import os, pty, sys
until, deed = sys.argv[1].encode(), sys.argv[2]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[3], sys.argv[3:])
text = b""
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    text += part
    if until and until in text:
        until = b""
        exec(deed)
sys.stdout.buffer.write(text)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let mut python = Command::new("python3");
    play::clean_environment(&mut python);
    python.args(["-c", PTY, until, deed]).arg(command.get_program()).args(command.get_args());
    let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    python.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables);
    if let Some(folder) = command.get_current_dir() {
        python.current_dir(folder);
    }
    finished(&mut python)
}

#[test]
fn colour_is_for_terminals_and_on_request() {
    let doctor = |variables: &[(&str, &str)]| {
        let mut command = ncclscope();
        command.args(["doctor", "--python", "/nowhere/python3"]).envs(variables.iter().copied());
        command
    };
    assert!(on_a_terminal(&doctor(&[]), "", "").stdout.contains("\u{1b}["));
    for unwanted in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let said = on_a_terminal(&doctor(&[unwanted]), "", "").stdout;
        assert!(said.contains("ok ") && !said.contains('\u{1b}'), "{said}");
    }
    let said = finished(&mut doctor(&[])).stdout;
    assert!(said.contains("ok ") && !said.contains('\u{1b}'), "{said}");
}

#[test]
fn progress_is_shown_after_a_second_and_on_a_terminal_only() {
    let place = Place::new();
    let slow = place.path().join("slow.perfetto-trace");
    // Opening the pipe waits for a writer.
    let make = || assert!(Command::new("mkfifo").arg(&slow).status().unwrap().success());
    make();
    let mut info = ncclscope();
    info.arg("info").arg(&slow);
    // Opening the pipe to write and closing it is the end of the file.
    let end = format!("pipe = os.open({slow:?}, os.O_WRONLY); os.unlink({slow:?}); os.close(pipe)");
    let said = on_a_terminal(&info, "working", &end).stdout;
    assert!(said.contains("working"), "{said}");
    make();
    let python = place.path().join("python3");
    fs::write(&python, format!("#!/bin/sh\ncat {slow:?}\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let mut doctor = ncclscope();
    doctor.args(["doctor", "--python"]).arg(&python);
    let said = on_a_terminal(&doctor, "looking", &end).stdout;
    assert!(said.contains("looking"), "{said}");
    make();
    let mut elsewhere =
        ncclscope().arg("info").arg(&slow).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // Longer than it would stay silent.
    std::thread::sleep(Duration::from_millis(1500));
    let pipe = fs::OpenOptions::new().write(true).open(&slow).unwrap();
    fs::remove_file(&slow).unwrap();
    drop(pipe);
    let mut said = String::new();
    elsewhere.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    elsewhere.wait().unwrap();
    assert!(!said.contains("working") && !said.contains('\u{1b}'), "{said}");
}

// ---- why nothing was recorded ----

#[track_caller]
fn assert_cause(place: &Place, flags: &[&str], job: &str, words: &str) {
    let done = place.run(flags, &["sh", "-c", &format!("{job}; exit 4")]);
    assert_eq!(done.status.code(), Some(4), "the job ends as it would without us: {}", done.stderr);
    let last = done.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("nothing was recorded: ") && last.contains(words), "{}", done.stderr);
}

#[test]
fn a_job_without_nccl_is_reported() {
    assert_cause(&Place::new(), &[], "sleep 1", "no process of the job was seen with NCCL");
}

#[test]
fn an_nccl_without_plugins_is_named() {
    let place = Place::with_nccl("2.21.5+cuda12.4");
    assert_cause(
        &place,
        &[],
        &place.with_nccl_loaded("sleep 2"),
        "NCCL is 2.21.5, and profiler plugins came with 2.23",
    );
}

#[test]
fn a_library_that_cannot_be_loaded_is_reported_in_the_loaders_words() {
    let place = Place::new();
    let broken = place.path().join("libncclscope.so");
    fs::write(&broken, "this is no library").unwrap();
    let done = finished(ncclscope().args(["run", "--library"]).arg(&broken).args(["--", "sh", "-c", "exit 4"]));
    assert_eq!(done.status.code(), Some(4));
    assert_says(&done, "the job will not be recorded: ");
    assert_says(&done, "nothing was recorded: the library cannot be loaded here: ");
    assert_says(&done, "libncclscope.so: file too short");
}

#[test]
fn a_variable_that_is_lost_or_replaced_on_the_way_is_named() {
    let place = Place::new();
    let sleep = place.with_nccl_loaded("sleep 2");
    for (way, words) in [
        ("-u NCCL_PROFILER_PLUGIN", "NCCL_PROFILER_PLUGIN did not reach the program"),
        ("NCCL_PROFILER_PLUGIN=none", "the program was started with NCCL_PROFILER_PLUGIN=none"),
        ("-u LD_LIBRARY_PATH", "LD_LIBRARY_PATH did not reach the program"),
    ] {
        assert_cause(&place, &[], &sleep.replacen("env ", &format!("env {way} "), 1), words);
    }
}

#[test]
fn a_program_that_only_loads_nccl_is_not_blamed() {
    let place = Place::new();
    assert_cause(
        &place,
        &[],
        &place.with_nccl_loaded("sleep 2"),
        "NCCL 2.28.9+cuda13.0 was loaded and ncclscope was not",
    );
}

#[test]
fn an_unwritable_folder_is_named() {
    let place = Place::new();
    let job = place.rank(&COLLECTIVE.replace("main finalize", "main sleep 2s\nmain finalize"));
    let flags = ["--output", "script.txt/traces"];
    assert_cause(&place, &flags, &job, "its folder cannot be written: ");
    let done = place.run(&flags, &["true"]);
    assert_says(&done, "the job will not be recorded: the folder of its traces cannot be written: ");
    assert_says(&done, "script.txt: Not a directory");
}

#[test]
fn a_process_killed_before_the_first_flush_is_reported() {
    let place = Place::new();
    let job = place.rank(&COLLECTIVE.replace("main finalize world", "main kill SIGKILL"));
    assert_cause(&place, &["--flush-period", "60000"], &job, "before any of the recording was flushed");
}
