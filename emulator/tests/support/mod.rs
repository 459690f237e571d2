//! Jobs of the real NCCL with the plugin loaded, and how their traces must agree with the truth.

pub(crate) mod accuracy;
mod events;
mod nsight;
mod played;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use emulator::accuracy::Verdict;
use emulator::scenario::SHIPPED;
use emulator::truth::{self, Line};
use emulator::wheel::Release;
use ncclscope_tests::perfetto::Trace;
use ncclscope_tests::play;
use ncclscope_tests::recording::{assert_sound, said};
use tempfile::{NamedTempFile, TempDir};

pub(crate) use played::Played;

/// How many times slower the world of a job is each time that it is played. On a busy machine
/// something else may hide what is planted; that takes a smaller part of a slower world.
pub(crate) const SLOWER: [u32; 5] = [1, 1, 2, 4, 8];
/// How long a job may take before the emulator ends it; a test gives up on the emulator itself
/// some time later.
const JOB_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(75);

/// A job to run.
pub(crate) struct Plan {
    nccl: &'static Release,
    scenario: String,
    _file: Option<NamedTempFile>,
    settings: Vec<(String, String)>,
    cupti: Option<String>,
    misbehaviour: String,
    is_quiet: bool,
    limit: Duration,
    folder: Option<TempDir>,
    shared_memory: Option<&'static str>,
}

impl Plan {
    /// A scenario by its name, with everything recorded.
    pub(crate) fn new(nccl: &str, scenario: &str) -> Plan {
        let nccl = Release::named(nccl).unwrap_or_else(|error| panic!("{error}"));
        let plan = Plan {
            nccl,
            scenario: scenario.into(),
            _file: None,
            settings: Vec::new(),
            cupti: None,
            misbehaviour: String::new(),
            is_quiet: false,
            limit: JOB_LIMIT,
            folder: None,
            shared_memory: None,
        };
        plan.with("NCCLSCOPE_PRESET", "full")
    }

    /// A scenario by its text, with everything recorded.
    #[track_caller]
    pub(crate) fn of_text(nccl: &str, text: &str) -> Plan {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("room for a scenario");
        std::fs::write(file.path(), text).expect("room for a scenario");
        let plan = Plan::new(nccl, file.path().to_str().expect("a path in words"));
        Plan { _file: Some(file), ..plan }
    }

    /// The same in a world in which everything takes this many times as long.
    #[track_caller]
    pub(crate) fn slower(self, times: u32) -> Plan {
        let shipped = SHIPPED.iter().find(|(name, _)| *name == self.scenario).map(|(_, text)| (*text).to_owned());
        let text = shipped.unwrap_or_else(|| std::fs::read_to_string(&self.scenario).expect("a scenario's file"));
        let changed = text.replacen("[job]\n", &format!("[job]\nslower = {times}\n"), 1);
        assert_ne!(changed, text, "the scenario has a table [job]");
        let Plan { scenario, _file, .. } = Plan::of_text("2.30.7", &changed);
        Plan { scenario, _file, ..self }
    }

    /// The same with an environment variable.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Plan {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The same with an emulated driver and CUPTI of a release, such as 13.0, in the process.
    pub(crate) fn with_cupti(mut self, release: &str) -> Plan {
        self.cupti = Some(release.into());
        self
    }

    /// The same with a CUPTI that misbehaves, in the words of `emulator/cupti/src/options.rs`.
    pub(crate) fn misbehaving(mut self, words: &str) -> Plan {
        self.misbehaviour = words.into();
        self
    }

    /// The same without printing the job's output.
    pub(crate) fn quiet(mut self) -> Plan {
        self.is_quiet = true;
        self
    }

    /// The same, killed after this time.
    pub(crate) fn killed_after(mut self, limit: Duration) -> Plan {
        self.limit = limit;
        self
    }

    /// The same in a folder that is read while it runs: its traces are in `traces`.
    pub(crate) fn in_folder(mut self, folder: TempDir) -> Plan {
        self.folder = Some(folder);
        self
    }

    /// The same where `/dev/shm` has this size, as `mount` reads it. Only root may do that.
    pub(crate) fn with_shared_memory(mut self, size: &'static str) -> Plan {
        self.shared_memory = Some(size);
        self
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn run(self) -> Job {
        let library = self.nccl.path();
        assert!(library.is_file(), "{} is not there; `cargo xtask e2e` fetches it", library.display());
        let folder = self.folder.unwrap_or_else(|| tempfile::tempdir().expect("a folder for the job"));
        let emulator = env!("CARGO_BIN_EXE_emulator");
        let mut command = match self.shared_memory {
            None => Command::new(emulator),
            Some(size) => {
                let mount = format!("mount -t tmpfs -o size={size} tmpfs /dev/shm && exec \"$@\"");
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", &mount, "sh", emulator]);
                command
            }
        };
        play::clean_environment(&mut command);
        command.args(["run", &self.scenario, "--nccl"]).arg(library);
        command.arg("--plugin").arg(play::plugin_path().unwrap_or_else(|error| panic!("{error}")));
        command.arg("--output").arg(folder.path().join("job"));
        command.args(["--time-limit", &self.limit.as_secs().to_string()]);
        command.env("NCCLSCOPE_OUTPUT", folder.path().join("traces")).env("NCCLSCOPE_MIN_FREE", "0");
        if let Some(release) = &self.cupti {
            let libraries = folder.path().join("lib");
            std::fs::create_dir(&libraries).expect("a folder for libraries");
            place_cupti(&libraries, release);
            let words = format!("release={release},{}", self.misbehaviour);
            command.arg("--cupti").arg(&libraries).env("EMULATED_CUPTI", words);
        }
        // The last value of a name counts.
        let setting = |name| self.settings.iter().rev().find(|(of, _)| of == name).map(|(_, value)| value.as_str());
        let preset = setting("NCCLSCOPE_PRESET");
        let asked = Asked {
            proxy: preset != Some("light"),
            channels: preset == Some("full") && setting("NCCLSCOPE_KERNEL_CH") != Some("0"),
        };
        command.envs(self.settings);
        let finished = play::run(&mut command, "", LIMIT).unwrap_or_else(|error| panic!("{error}"));
        let job =
            Job { status: finished.status.code(), stdout: finished.stdout, stderr: finished.stderr, folder, asked };
        if !self.is_quiet {
            println!("{}{}", job.stdout, job.stderr);
        }
        job
    }
}

/// The events that NCCL was asked for, besides those of calls and operations.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Events of proxies.
    proxy: bool,
    /// The work of each channel.
    channels: bool,
}

/// A job that has run.
pub(crate) struct Job {
    /// The emulator's exit code; `None` when it was killed.
    pub(crate) status: Option<i32>,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
    folder: TempDir,
    /// What NCCL was asked for.
    asked: Asked,
}

impl Job {
    /// Asserts that it succeeded: every result was right.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Job {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// The output of `ncclscope info` on its traces.
    pub(crate) fn info(&self) -> String {
        info(&self.folder.path().join("traces"))
    }

    /// What `diagnose` or `info` says of its traces, as data.
    #[track_caller]
    pub(crate) fn answer(&self, verb: &str) -> serde_json::Value {
        let path = self.folder.path().join("answer.json");
        let mut line: Vec<OsString> = vec!["ncclscope".into(), verb.into(), "--json".into(), path.clone().into()];
        line.extend(files(&self.traces(), ".perfetto-trace").into_iter().map(Into::into));
        match ncclscope::cli::run(line, &mut Vec::new()) {
            // The exit code may say what was found.
            Ok(()) | Err(ncclscope::cli::Failure::Exit(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Asserts that each of its captures reproduces its trace byte for byte; returns how many
    /// there are.
    #[track_caller]
    pub(crate) fn check_captures(&self) -> usize {
        let captures = files(&self.folder.path().join("traces"), ".capture");
        for capture in &captures {
            let again = self.folder.path().join("again.perfetto-trace");
            println!("{}", command(["replay".into(), capture.clone(), "-o".into(), again.clone()]));
            let bytes = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let (live, replayed) = (bytes(&capture.with_extension("perfetto-trace")), bytes(&again));
            let differs = live.iter().zip(&replayed).position(|(live, replayed)| live != replayed);
            let lengths = (live.len(), replayed.len());
            assert!(live == replayed, "{}: {lengths:?} bytes, different from {differs:?} on", capture.display());
            std::fs::remove_file(&again).expect("it was just written");
        }
        captures.len()
    }

    /// The folder of its traces, which is deleted with the job.
    pub(crate) fn traces(&self) -> PathBuf {
        self.folder.path().join("traces")
    }

    /// What `ncclscope merge` makes of its traces, and its output.
    #[track_caller]
    pub(crate) fn joined(&self) -> (Trace, String) {
        let (joined, said) = self.joined_as("joined.perfetto-trace");
        let trace = Trace::open(&joined).unwrap_or_else(|error| panic!("{error}"));
        assert_sound(&trace, 0);
        (trace, said)
    }

    /// The file of this name that `ncclscope merge` makes of its traces, and its output.
    #[track_caller]
    pub(crate) fn joined_as(&self, name: &str) -> (PathBuf, String) {
        let joined = self.folder.path().join(name);
        let words = ["merge".into(), "-o".into(), joined.clone()];
        let said = command(words.into_iter().chain(files(&self.traces(), ".perfetto-trace")));
        println!("{said}");
        (joined, said)
    }

    /// The output of all its processes.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for path in files(&self.folder.path().join("job"), ".log") {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()));
        }
        text
    }

    /// The traces of all its processes as one.
    #[track_caller]
    pub(crate) fn trace(&self) -> Trace {
        let files = files(&self.folder.path().join("traces"), ".perfetto-trace");
        let bytes: Vec<u8> = files.iter().flat_map(|path| std::fs::read(path).expect("a trace")).collect();
        Trace::from_bytes(bytes).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the traces of all its processes as one file, which is deleted with the job.
    #[track_caller]
    pub(crate) fn trace_file(&self) -> PathBuf {
        let path = self.folder.path().join("all.perfetto-trace");
        std::fs::write(&path, self.trace().bytes()).expect("room for a trace");
        path
    }

    /// The truth of each of its processes.
    #[track_caller]
    pub(crate) fn truths(&self) -> Vec<(PathBuf, Vec<Line>)> {
        let read = |path: PathBuf| {
            let lines = truth::read(&path).unwrap_or_else(|error| panic!("{error}"));
            (path, lines)
        };
        files(&self.folder.path().join("job"), ".jsonl").into_iter().map(read).collect()
    }

    /// For each of its processes the truth, where that is, and the trace.
    #[track_caller]
    pub(crate) fn told(&self) -> Vec<(PathBuf, Vec<Line>, Option<Trace>)> {
        let mut traces = HashMap::new();
        for path in files(&self.folder.path().join("traces"), ".perfetto-trace") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // HOST.PID.START.perfetto-trace, and a host may have dots.
            let pid = name.rsplit('.').nth(2).and_then(|pid| pid.parse().ok());
            let pid: u32 = pid.unwrap_or_else(|| panic!("no process in the name {name}"));
            let trace = Trace::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(traces.insert(pid, trace).is_none(), "two traces of process {pid}");
        }
        let mut told = Vec::new();
        for (path, lines) in self.truths() {
            let pid = lines.iter().find_map(|line| if let Line::Process(it) = line { Some(it.pid) } else { None });
            let trace = pid.and_then(|pid| traces.remove(&pid));
            told.push((path, lines, trace));
        }
        assert!(!told.is_empty(), "no truth in {}", self.folder.path().display());
        assert!(traces.is_empty(), "traces of processes without truth: {:?}", traces.keys());
        told
    }

    /// What happened in each of its processes, with its trace.
    #[track_caller]
    pub(crate) fn processes(&self) -> Vec<Played> {
        let mut processes = Vec::new();
        for (path, lines, trace) in self.told() {
            let mut played = Played::new(lines, &path);
            played.trace = trace;
            processes.push(played);
        }
        let mut hosts: HashMap<u64, HashMap<u32, u32>> = HashMap::new();
        for played in &processes {
            for (hash, rank) in played.comms.values() {
                hosts.entry(*hash).or_default().insert(*rank, played.process.host);
            }
        }
        for played in &mut processes {
            (played.hosts, played.asked) = (hosts.clone(), self.asked);
        }
        processes
    }

    /// Runs [`Played::check`] on each process, and asserts for all together that every transfer
    /// between hosts is in one of their traces.
    #[track_caller]
    pub(crate) fn check(&self) -> Vec<Played> {
        let processes = self.processes();
        processes.iter().for_each(Played::check);
        if self.asked.proxy {
            events::check_rings(&processes);
        }
        processes
    }
}

/// What `ncclscope merge` makes of a job's traces and of what another tool would have recorded.
pub(crate) struct Beside {
    /// What happened in each process, with the joined trace.
    pub(crate) processes: Vec<Played>,
    /// The command's output.
    pub(crate) said: String,
    /// The verdict on the matches.
    pub(crate) verdict: Verdict,
}

/// A tool that held CUPTI beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Kineto,
    Nsight,
}

impl Job {
    /// Keeps only the part of each of its traces after the first capture.
    #[track_caller]
    pub(crate) fn cut_traces(&self) {
        for path in files(&self.folder.path().join("traces"), ".perfetto-trace") {
            let trace = Trace::open(&path).unwrap_or_else(|error| panic!("{error}"));
            let rows = trace.rows(
                "SELECT max(ts + dur) - (SELECT start_ts FROM trace_bounds) AS end FROM slice WHERE name = 'GroupApi' AND \
                 extract_arg(arg_set_id, 'nccl.captured')",
            );
            let part = path.with_extension("part");
            let window = format!("{}ns..", rows[0].i64("end") + 1000);
            command(["cut".into(), path.clone(), "--time".into(), window.into(), "-o".into(), part.clone()]);
            std::fs::rename(&part, &path).expect("both are in one folder");
        }
    }

    /// Like [`Job::joined_with`] for Kineto.
    #[track_caller]
    pub(crate) fn joined_with_another_tool(&self, ahead: i64, edit: &dyn Fn(&mut Vec<String>)) -> Beside {
        self.joined_with(Tool::Kineto, ahead, edit)
    }

    /// Merges each trace with what another tool would have recorded of its kernels and of calls
    /// into CUDA, on a clock that is ahead by this many ns. `edit` can change the events of its
    /// file before it is written.
    #[track_caller]
    pub(crate) fn joined_with(&self, tool: Tool, ahead: i64, edit: &dyn Fn(&mut Vec<String>)) -> Beside {
        let mut beside = Beside { processes: self.processes(), said: String::new(), verdict: Verdict::default() };
        let truths: Vec<Vec<Line>> = self.told().into_iter().map(|(_, lines, _)| lines).collect();
        let mut judged = Vec::new();
        for path in files(&self.folder.path().join("traces"), ".perfetto-trace") {
            let profile = ncclscope::import::open(&path).unwrap_or_else(|error| panic!("{error}"));
            let pid = profile.processes[0].pid;
            let is_own = |played: &(&mut Played, Vec<Line>)| i64::from(played.0.process.pid) == pid;
            let mut all = beside.processes.iter_mut().zip(truths.iter().cloned());
            let (played, truth) = all.find(is_own).unwrap_or_else(|| panic!("no truth about process {pid}"));
            let (theirs, joined) = (path.with_extension("theirs"), path.with_extension("joined"));
            let offset = profile.clock.to_utc.expect("a trace relates its clocks").ns + ahead;
            let mut events = played.kineto(offset);
            edit(&mut events);
            match tool {
                Tool::Nsight => nsight::write(&theirs, played.process.pid, &events),
                Tool::Kineto => {
                    let text = format!("{{\"schemaVersion\": 1, \"traceEvents\": [{}]}}", events.join(",\n"));
                    std::fs::write(&theirs, text).expect("room for a file");
                }
            }
            let _ = std::fs::remove_file(&joined);
            let words = ["merge".into(), "-o".into(), joined.clone(), path, "--with".into(), theirs];
            beside.said.push_str(&command(words));
            let trace = Trace::open(&joined).unwrap_or_else(|error| panic!("{error}"));
            assert_sound(&trace, 0);
            let seen = accuracy::seen(&truth, &trace);
            judged.push((truth, seen));
            (played.trace, played.is_joined) = (Some(trace), true);
        }
        println!("{}", beside.said);
        beside.verdict = emulator::accuracy::judge_job(&judged);
        beside.verdict.arrows = [0; 2];
        beside
    }
}

/// The output of a command of `ncclscope`, which must succeed.
#[track_caller]
pub(crate) fn command<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> String {
    let words = words.into_iter().map(Into::into);
    let mut said = Vec::new();
    ncclscope::cli::run([OsString::from("ncclscope")].into_iter().chain(words), &mut said)
        .unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(said).expect("text")
}

/// The output of `ncclscope info` on the traces in a folder; nothing if there are none yet. A
/// process that has just begun may have an empty one.
pub(crate) fn info(folder: &Path) -> String {
    if !folder.is_dir() {
        return String::new();
    }
    let traces = files(folder, ".perfetto-trace");
    if traces.is_empty() {
        return String::new();
    }
    let mut out = Vec::new();
    let line = ["ncclscope".into(), "info".into()].into_iter().chain(traces);
    match ncclscope::cli::run(line, &mut out) {
        // The exit code says whether the traces can be trusted.
        Ok(()) | Err(ncclscope::cli::Failure::Exit(_)) => {}
        Err(error) => assert!(error.to_string().contains("is empty"), "{error}"),
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Puts the emulated driver and CUPTI into a folder, under the names that a profiler looks for.
fn place_cupti(folder: &Path, release: &str) {
    let built = |name: &str| {
        let program = std::env::current_exe().expect("this test is a program");
        let beside = program.parent().expect("it is in a folder").join(name);
        assert!(beside.is_file(), "{} was not built", beside.display());
        beside
    };
    let release = emulated_cupti::release::Release::named(release).unwrap_or_else(|| panic!("no CUPTI {release}"));
    emulated_cupti::place(&built("libemulated_cupti.so"), folder, release).expect("room for the emulated CUPTI");
    std::fs::copy(built("libemulated_libcuda.so"), folder.join("libcuda.so.1")).expect("room for the emulated driver");
}

/// Asserts that the processes of a trace are in the order of their ranks, each before those of its
/// further GPUs, and that there are this many.
#[track_caller]
pub(crate) fn in_order_of_ranks(trace: &Trace, processes: usize) {
    let rows = trace.rows(
        "SELECT p.name, p.pid FROM process_track t JOIN process p USING (upid) WHERE t.type = 'process_track_event' \
         AND p.name GLOB 'rank *' ORDER BY extract_arg(t.source_arg_set_id, 'sibling_order_rank')",
    );
    let place = |row: &ncclscope_tests::perfetto::Row| {
        let rank = row.str("name").strip_prefix("rank ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        // The number of a further GPU's process is made up: above what Linux gives.
        (rank.unwrap_or(u32::MAX), row.i64("pid") >> 22)
    };
    let places: Vec<_> = rows.iter().map(place).collect();
    assert!(places.len() == processes && places.is_sorted(), "{places:?}");
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

/// The plugin's messages in all processes of a job.
pub(crate) fn plugin_said(job: &Job) -> Vec<String> {
    said(&job.logs()).into_iter().map(str::to_owned).collect()
}
