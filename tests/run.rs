//! `ncclscope run`, as a program: what reaches the job, what comes back of it, and what is said of the recording. A test of the package
//! `ncclscope`, because Cargo tells only these where the program is.

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

/// A folder to work in, with a library that looks like a libnccl.
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
        let compiler = std::env::var_os("CC").unwrap_or("cc".into());
        let mut compile = Command::new(compiler);
        let compiled = compile.args(["-shared", "-fPIC", "-o"]).arg(&nccl).arg(source).status().unwrap();
        assert!(compiled.success());
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

    /// A shell's words that start a program which has NCCL, and is there for long enough to be seen.
    fn with_nccl_loaded(&self, program: &str) -> String {
        format!("env LD_PRELOAD={} {program}", self.nccl.display())
    }

    /// A job whose only rank plays a script through the plugin that `NCCL_PROFILER_PLUGIN` names, as NCCL would load it.
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
    // Who starts the tests in the background has a shell that ignores these, and so would the job.
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
fn a_recorded_job_ends_with_its_own_code_what_was_written_and_the_next_command() {
    let place = Place::new();
    let job = format!("{}; exit 3", place.rank(COLLECTIVE));
    let done = place.run(&[], &["sh", "-c", &job]);
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    assert_says(&done, "ncclscope: 1 trace, ");
    let next = done.stderr.lines().last().and_then(|line| line.strip_prefix("ncclscope: next: ncclscope ")).unwrap();
    let next = format!("{} {next}", env!("CARGO_BIN_EXE_ncclscope"));
    let info = finished(Command::new("sh").args(["-c", &next]).current_dir(place.path()));
    assert!(info.status.success() && info.stdout.contains("AllReduce: 1, 16 B in all"), "{}", info.stdout);
}

#[test]
fn a_launcher_that_has_nccl_itself_is_not_said_to_be_missing() {
    let place = Place::new();
    let launcher = place.with_nccl_loaded(&format!("sh -c '{}; sleep 1; exit 0'", place.rank(COLLECTIVE)));
    let done = place.run(&[], &["sh", "-c", &launcher]);
    assert_says(&done, "ncclscope: 1 trace, ");
    assert!(!done.stderr.contains("not recorded: "), "{}", done.stderr);
}

#[test]
fn a_job_that_is_killed_ends_us_by_the_same_signal() {
    for (signal, number) in [("KILL", 9), ("INT", 2), ("SEGV", 11)] {
        let done = Place::new().run(&[], &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(done.status.signal(), Some(number), "{}", done.status);
    }
}

#[test]
fn a_program_that_is_not_there_is_said_as_a_shell_does() {
    let done = Place::new().run(&[], &["/nowhere/train"]);
    assert_eq!(done.status.code(), Some(127));
    assert_says(&done, "failed to start /nowhere/train: No such file");
}

// ---- signals ----

/// Says when it is ready, counts signals, and tells on SIGTERM how many there were.
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
fn a_signal_reaches_the_job_once_whoever_it_was_sent_to() {
    for to_group in [false, true] {
        let place = Place::new();
        let mut running = Running::new(place.command(&[]).args(["--", "sh", "-c", COUNTER]));
        let pid = running.child.id();
        running.kill("USR1", &if to_group { format!("-{pid}") } else { pid.to_string() });
        // Longer than what was sent to the group is waited for.
        std::thread::sleep(Duration::from_millis(800));
        running.kill("TERM", &pid.to_string());
        assert_eq!(running.lines.next().unwrap().unwrap(), "1", "to the group: {to_group}");
        assert_eq!(running.child.wait().unwrap().code(), Some(5));
    }
}

#[test]
fn ctrl_c_reaches_the_job_once() {
    // The trap counts; what a second signal would do is seen before the end.
    let job = "trap 'echo caught' INT; echo ready; n=0; while [ $n -lt 40 ]; do sleep 0.02; n=$((n+1)); done; exit 9";
    let place = Place::new();
    let run = place.command(&["--", "sh", "-c", job]);
    let done = on_a_terminal(&run, "ready", r#"os.write(terminal, b"\x03")"#);
    assert_eq!((done.stdout.matches("caught").count(), done.status.code()), (1, Some(9)), "{}", done.stderr);
}

#[test]
fn what_is_ignored_stays_ignored_in_the_job() {
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
    // The job has the other end: it is closed when the job is gone.
    assert!(running.lines.next().is_none());
}

// ---- what is set ----

#[test]
fn what_is_set_is_kept_and_named_unless_it_is_to_be_replaced() {
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
    assert_eq!(traces.len(), 1);
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
    assert_says(&refused, "NCCLSCOPE_MAX_SIZE=many: expected 1M to");
    assert!(!refused.stderr.contains("using the default"), "{}", refused.stderr);
}

// ---- inside of a launcher ----

#[test]
fn ranks_have_one_run_and_the_first_speaks() {
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
fn ranks_that_have_not_ended_are_not_said_to_be_killed() {
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
fn the_doctor_tells_by_its_exit_code_whether_something_will_keep_it_from_recording() {
    // With the library beside the program, as it is installed.
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
    // A CUPTI, as toolkits name it.
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

/// A program on a terminal, with its exit code. Once `until` is on the screen, if it is anything, a deed is done, in Python.
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
fn colour_is_for_terminals_and_for_those_who_want_it() {
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
fn what_takes_more_than_a_second_says_so_on_a_terminal_only() {
    let place = Place::new();
    let slow = place.path().join("slow.perfetto-trace");
    // Who opens it waits for somebody to write.
    let make = || assert!(Command::new("mkfifo").arg(&slow).status().unwrap().success());
    make();
    let mut info = ncclscope();
    info.arg("info").arg(&slow);
    // What opens the pipe to write, and closes it, is the end of the file.
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
    // Longer than it would have kept still.
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
    assert_eq!(done.status.code(), Some(4), "the job is as it would have been: {}", done.stderr);
    let last = done.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("nothing was recorded: ") && last.contains(words), "{}", done.stderr);
}

#[test]
fn a_job_without_nccl_is_said_to_have_none() {
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
fn a_library_that_cannot_be_loaded_is_said_in_the_loaders_words() {
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
fn a_variable_that_is_lost_or_set_anew_on_the_way_is_named() {
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
fn a_program_that_only_loads_nccl_is_not_accused() {
    let place = Place::new();
    assert_cause(
        &place,
        &[],
        &place.with_nccl_loaded("sleep 2"),
        "NCCL 2.28.9+cuda13.0 was loaded and ncclscope was not",
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let place = Place::new();
    let job = place.rank(&COLLECTIVE.replace("main finalize", "main sleep 2s\nmain finalize"));
    let flags = ["--output", "script.txt/traces"];
    assert_cause(&place, &flags, &job, "its folder cannot be written: ");
    let done = place.run(&flags, &["true"]);
    assert_says(&done, "the job will not be recorded: the folder of its traces cannot be written: ");
    assert_says(&done, "script.txt: Not a directory");
}

#[test]
fn a_process_that_is_killed_before_the_first_flush_is_said_to_be_so() {
    let place = Place::new();
    let job = place.rank(&COLLECTIVE.replace("main finalize world", "main kill SIGKILL"));
    assert_cause(&place, &["--flush-period", "60000"], &job, "before anything of the recording was flushed");
}
