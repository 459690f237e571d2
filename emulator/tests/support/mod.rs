//! Jobs of the real NCCL with the plugin loaded, and what their traces must have in common with the truth.

#![allow(dead_code, reason = "each program that includes this uses a part of it")]

pub(crate) mod accuracy;
mod events;
mod nsight;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use emulator::accuracy::{Demand, Verdict, judge};
use emulator::truth::{self, Call, Capture, Kernel, Line, Operation, Process, Transfer};
use emulator::wheel::Release;
use ncclscope_tests::perfetto::{Row, Trace};
use ncclscope_tests::play;
use ncclscope_tests::recording::{assert_sound, said};
use ncclscope_tests::timeline::Figures;
use tempfile::TempDir;

/// How long a job may take before the emulator ends it, and how much later a test gives up on the emulator itself.
const JOB_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(75);

/// A job to run.
pub(crate) struct Plan {
    nccl: &'static Release,
    scenario: String,
    settings: Vec<(String, String)>,
    cupti: Option<String>,
    misbehaviour: String,
    is_quiet: bool,
    limit: Duration,
    folder: Option<TempDir>,
}

impl Plan {
    /// A scenario by its name, with everything recorded.
    pub(crate) fn new(nccl: &str, scenario: &str) -> Plan {
        let nccl = Release::named(nccl).unwrap_or_else(|error| panic!("{error}"));
        let plan = Plan {
            nccl,
            scenario: scenario.into(),
            settings: Vec::new(),
            cupti: None,
            misbehaviour: String::new(),
            is_quiet: false,
            limit: JOB_LIMIT,
            folder: None,
        };
        plan.with("NCCLSCOPE_PRESET", "full")
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

    /// The same without printing what the job said.
    pub(crate) fn quiet(mut self) -> Plan {
        self.is_quiet = true;
        self
    }

    /// The same, killed after so long.
    pub(crate) fn killed_after(mut self, limit: Duration) -> Plan {
        self.limit = limit;
        self
    }

    /// The same in a folder that somebody looks into meanwhile: its traces are in `traces`.
    pub(crate) fn in_folder(mut self, folder: TempDir) -> Plan {
        self.folder = Some(folder);
        self
    }

    /// Runs it to its end.
    #[track_caller]
    pub(crate) fn run(self) -> Job {
        let library = self.nccl.path();
        assert!(library.is_file(), "{} is not there; `cargo xtask e2e` fetches it", library.display());
        let folder = self.folder.unwrap_or_else(|| tempfile::tempdir().expect("a folder for the job"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_emulator"));
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
        // The last of a name holds.
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

/// Which reports NCCL was to be asked for, beside those of its calls and operations.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Those of proxies.
    proxy: bool,
    /// The work of each channel.
    channels: bool,
}

/// A job that has run.
pub(crate) struct Job {
    /// The emulator's exit code; none when it was killed.
    pub(crate) status: Option<i32>,
    /// What it printed.
    pub(crate) stdout: String,
    /// What it complained of.
    pub(crate) stderr: String,
    folder: TempDir,
    /// What NCCL was to be asked for.
    asked: Asked,
}

impl Job {
    /// Requires that it ended well: every result was right.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Job {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// What `ncclscope info` says of its traces.
    pub(crate) fn info(&self) -> String {
        info(&self.folder.path().join("traces"))
    }

    /// Requires that each of its captures makes its trace again, byte for byte; how many there are.
    #[track_caller]
    pub(crate) fn check_captures(&self) -> usize {
        let captures = files(&self.folder.path().join("traces"), ".capture");
        for capture in &captures {
            let again = self.folder.path().join("again.perfetto-trace");
            let line = ["ncclscope".into(), "replay".into(), capture.clone(), "-o".into(), again.clone()];
            let mut said = Vec::new();
            ncclscope::cli::run(line, &mut said).unwrap_or_else(|error| panic!("{error}"));
            println!("{}", String::from_utf8_lossy(&said));
            let bytes = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let (live, replayed) = (bytes(&capture.with_extension("perfetto-trace")), bytes(&again));
            let differs = live.iter().zip(&replayed).position(|(live, replayed)| live != replayed);
            let lengths = (live.len(), replayed.len());
            assert!(live == replayed, "{}: {lengths:?} bytes, different from {differs:?} on", capture.display());
            std::fs::remove_file(&again).expect("it was just written");
        }
        captures.len()
    }

    /// The folder of its traces, which is gone with the job.
    pub(crate) fn traces(&self) -> PathBuf {
        self.folder.path().join("traces")
    }

    /// What `ncclscope merge` makes of its traces, and what it says.
    #[track_caller]
    pub(crate) fn joined(&self) -> (Trace, String) {
        let (joined, said) = self.joined_as("joined.perfetto-trace");
        let trace = Trace::open(&joined).unwrap_or_else(|error| panic!("{error}"));
        assert_sound(&trace, 0);
        (trace, said)
    }

    /// The file of this name that `ncclscope merge` makes of its traces, and what it says.
    #[track_caller]
    pub(crate) fn joined_as(&self, name: &str) -> (PathBuf, String) {
        let joined = self.folder.path().join(name);
        let mut line: Vec<std::ffi::OsString> =
            vec!["ncclscope".into(), "merge".into(), "-o".into(), joined.clone().into()];
        line.extend(files(&self.traces(), ".perfetto-trace").into_iter().map(Into::into));
        let mut said = Vec::new();
        ncclscope::cli::run(line, &mut said).unwrap_or_else(|error| panic!("{error}"));
        let said = String::from_utf8_lossy(&said).into_owned();
        println!("{said}");
        (joined, said)
    }

    /// Everything that its processes said.
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

    /// Writes the traces of all its processes as one into a file, which is gone with the job.
    #[track_caller]
    pub(crate) fn trace_file(&self) -> PathBuf {
        let path = self.folder.path().join("all.perfetto-trace");
        std::fs::write(&path, self.trace().bytes()).expect("room for a trace");
        path
    }

    /// The truth about each of its processes and where that is, with its trace.
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
        for path in files(&self.folder.path().join("job"), ".jsonl") {
            let lines = truth::read(&path).unwrap_or_else(|error| panic!("{error}"));
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

    /// Requires of each process what [`Played::check`] does, and of all together that what went between hosts is in one of their traces.
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
    /// What the command said.
    pub(crate) said: String,
    /// How right the matches are.
    pub(crate) verdict: Verdict,
}

/// A tool that held CUPTI beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Kineto,
    Nsight,
}

impl Job {
    /// Leaves of each of its traces what came after the first capture.
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
            let mut line: Vec<std::ffi::OsString> = vec!["ncclscope".into(), "cut".into(), path.clone().into()];
            line.extend(["--time".into(), window.into(), "-o".into(), part.clone().into()]);
            ncclscope::cli::run(line, &mut Vec::new()).unwrap_or_else(|error| panic!("{error}"));
            std::fs::rename(&part, &path).expect("both are in one folder");
        }
    }

    /// As [`Job::joined_with`] of Kineto.
    #[track_caller]
    pub(crate) fn joined_with_another_tool(&self, ahead: i64, edit: &dyn Fn(&mut Vec<String>)) -> Beside {
        self.joined_with(Tool::Kineto, ahead, edit)
    }

    /// Joins each trace with what another tool would have recorded of its kernels and of calls into CUDA, on a clock that is ahead by so many
    /// ns. `edit` has the events of its file before it is written.
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
            let words: [&std::ffi::OsStr; 4] = ["ncclscope".as_ref(), "merge".as_ref(), "-o".as_ref(), joined.as_ref()];
            let line = words.into_iter().chain([path.as_os_str(), "--with".as_ref(), theirs.as_os_str()]);
            let mut out = Vec::new();
            let _ = std::fs::remove_file(&joined);
            ncclscope::cli::run(line, &mut out).unwrap_or_else(|error| panic!("{error}"));
            beside.said.push_str(&String::from_utf8_lossy(&out));
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

/// What `ncclscope info` says of the traces in a folder; nothing where there are none yet. A process that has just begun
/// may have an empty one.
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
        // Whether the traces can be trusted.
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

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

/// What one process did, and the trace of it.
pub(crate) struct Played {
    /// The process.
    pub(crate) process: Process,
    /// Its kernels, the application's own among them.
    pub(crate) kernels: Vec<Kernel>,
    /// Its calls into NCCL.
    pub(crate) calls: Vec<Call>,
    /// What its threads asked the emulator's own network for.
    transfers: Vec<Transfer>,
    /// The truth, line by line.
    lines: Vec<Line>,
    /// The sizes of its communicators, by name.
    pub(crate) sizes: HashMap<String, u32>,
    /// The ranks in them, by name and world rank.
    ranks: HashMap<(String, u32), u32>,
    /// The hash of each kernel's communicator, and the rank in it. Names stand for several, on other ranks, and addresses are
    /// used again.
    comms: HashMap<(i64, i64), (u64, u32)>,
    /// The host of each rank of each communicator, of the whole job, by hash.
    hosts: HashMap<u64, HashMap<u32, u32>>,
    /// What NCCL was to be asked for.
    asked: Asked,
    /// What it captured.
    captures: Vec<Capture>,
    /// The trace; none when the plugin left none.
    trace: Option<Trace>,
    /// The kernels in it are another tool's.
    is_joined: bool,
}

impl Played {
    fn new(lines: Vec<Line>, path: &Path) -> Played {
        let mut process = None;
        let (mut kernels, mut calls, mut captures, mut transfers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut sizes, mut ranks, mut comms) = (HashMap::new(), HashMap::new(), HashMap::new());
        // By the address on the device, as far as the file has been read.
        let mut hashes: HashMap<u64, (u64, u32)> = HashMap::new();
        for line in lines.clone() {
            match line {
                Line::Process(it) => process = Some(it),
                Line::Kernel(it) => {
                    let hash = it.device_comm.and_then(|address| hashes.get(&address));
                    comms.extend(hash.map(|hash| (key(&it), *hash)));
                    kernels.push(it);
                }
                Line::Call(it) => calls.push(it),
                Line::Capture(it) => captures.push(it),
                Line::Communicator(it) => {
                    sizes.insert(it.name.clone(), it.size);
                    hashes.extend(it.device_comm.zip(it.hash.map(|hash| (hash, it.rank))));
                    ranks.insert((it.name, it.world_rank), it.rank);
                }
                Line::Transfer(it) => transfers.push(it),
                Line::Device(_) | Line::Copy(_) | Line::Lend(_) | Line::End(_) => {}
            }
        }
        let process = process.unwrap_or_else(|| panic!("{} does not begin with its process", path.display()));
        Played {
            process,
            kernels,
            calls,
            transfers,
            lines,
            sizes,
            ranks,
            comms,
            hosts: HashMap::new(),
            asked: Asked::default(),
            captures,
            trace: None,
            is_joined: false,
        }
    }

    /// The trace.
    #[track_caller]
    pub(crate) fn trace(&self) -> &Trace {
        self.trace.as_ref().unwrap_or_else(|| panic!("process {} left no trace", self.process.pid))
    }

    /// NCCL's version, in hundredths: 2.30.7 is 230.
    pub(crate) fn minor(&self) -> u32 {
        self.process.nccl / 100
    }

    /// Whether NCCL tells a profiler nothing about an operation but its call. Since 2.29 broadcasts go another way.
    fn is_silent(&self, operation: &Operation) -> bool {
        self.minor() >= 229
            && self.process.environment.get("NCCL_ALLGATHERV_ENABLE") != Some(&"0".into())
            && matches!(&*operation.function, "Broadcast" | "AllGatherV")
    }

    /// The kernels of NCCL for whose operations NCCL sends events.
    pub(crate) fn told_kernels(&self) -> impl Iterator<Item = &Kernel> {
        let silent = |kernel: &Kernel| kernel.operations.iter().all(|it| self.is_silent(it));
        self.kernels.iter().filter(move |kernel| kernel.device_comm.is_some() && !silent(kernel))
    }

    /// Requires that the trace is whole, that nothing in it is in doubt, and that it has what was played: each call, each
    /// launch, each operation, each channel, no more and no less; and each call at its true time.
    #[track_caller]
    pub(crate) fn check(&self) {
        // NCCL stops looking at a communicator that is aborted: channels of its last kernels stay open.
        let aborted = self.kernels.iter().any(|kernel| kernel.aborted);
        let open = if aborted { self.count("category = 'gpu' AND dur < 0") } else { 0 };
        assert_sound(self.trace(), open as u64);
        let figures = Figures::read(self.trace());
        let mut doubts = figures.remarkable();
        // Without CUPTI short jobs do not tell enough to relate a GPU's timer to the host's clock, and NCCL's own miscounts are found.
        doubts.retain(|name, _| !name.starts_with("channels_"));
        assert_eq!(doubts, BTreeMap::new(), "doubts in a quiet job");
        self.check_calls();
        self.check_launches();
        self.check_operations();
        self.check_channels();
        self.check_proxy();
        self.check_times();
    }

    /// Each call lies where it was made, on the host's shifted clock, to the error that the trace states.
    #[track_caller]
    fn check_times(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| {
            let clocks = &self.process.clocks;
            at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64)
        };
        let rows = self.trace().rows(
            "SELECT slice.ts, slice.dur, slice.name, thread.tid, extract_arg(arg_set_id, 'nccl.function') AS function, \
             extract_arg(arg_set_id, 'nccl.count') AS count, extract_arg(arg_set_id, 'nccl.datatype') AS datatype FROM slice JOIN \
             thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) WHERE category = 'api' AND slice.name GLOB \
             'nccl*' ORDER BY slice.ts",
        );
        let mut found: HashMap<(i64, String), Vec<Row>> = HashMap::new();
        for row in rows {
            let name = row.str("name").split(' ').next().unwrap_or_default().to_owned();
            found.entry((row.i64("tid"), name)).or_default().push(row);
        }
        let mut expected: HashMap<(i64, String), Vec<&Call>> = HashMap::new();
        for call in self.told_calls() {
            for name in self.names(call) {
                expected.entry((i64::from(call.thread), format!("nccl{name}"))).or_default().push(call);
            }
        }
        for (key, slices) in found {
            let mut calls = expected.remove(&key).unwrap_or_default();
            calls.sort_by_key(|call| call.called);
            assert_eq!(slices.len(), calls.len(), "{key:?}");
            for (row, call) in slices.into_iter().zip(calls) {
                let (begin, end) = (row.i64("ts"), row.i64("ts") + row.i64("dur"));
                if key.1 == format!("nccl{}", call.function) {
                    let said = (row.str("function"), row.i64("count"));
                    assert_eq!(said, (&*call.function, call.count as i64), "{}", row.str("name"));
                    // NCCL has no word for some of its datatypes.
                    if row.str("datatype") == "Unknown" {
                        assert!(!matches!(&*call.datatype, "ncclFloat32" | "ncclFloat16" | "ncclBfloat16"), "{call:?}");
                    } else {
                        assert_eq!((row.str("datatype"), row.str("name")), (&*call.datatype, &*called_name(call)));
                    }
                }
                let (called, returned) = (boot(call.called), boot(call.returned));
                let inside = called - error <= begin && begin <= end && end <= returned + error;
                assert!(inside, "{key:?}: {begin}..{end} is not within {called}..{returned} to {error} ns");
            }
        }
    }

    /// Each launch has its call into CUDA in it, on the thread that made it, to the error that the trace states.
    #[track_caller]
    pub(crate) fn check_launch_times(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| {
            let clocks = &self.process.clocks;
            at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64)
        };
        let mut launches: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
        for row in self.trace().rows(
            "SELECT slice.ts, slice.dur, thread.tid FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING \
             (utid) WHERE category = 'api' AND slice.name = 'KernelLaunch' ORDER BY slice.ts",
        ) {
            launches.entry(row.i64("tid")).or_default().push((row.i64("ts"), row.i64("ts") + row.i64("dur")));
        }
        for kernel in self.told_kernels().filter(|kernel| kernel.graph.is_none()) {
            let of_thread = launches.get_mut(&i64::from(kernel.thread));
            let (called, returned) = (boot(kernel.called), boot(kernel.returned));
            let own = of_thread.and_then(|launches| {
                let around = |(begin, end): &(i64, i64)| begin - error <= called && returned <= end + error;
                Some(launches.remove(launches.iter().position(around)?))
            });
            assert!(own.is_some(), "no launch around {called}..{returned}: {kernel:?}");
        }
    }

    /// Each message that NCCL handed to the network is a step that waited for the network from then to when NCCL was told that it is done, and an
    /// event of the network itself inside of the calls, with the bytes that were moved, to the error that the trace states.
    #[track_caller]
    pub(crate) fn check_transfers(&self) {
        let error = Figures::read(self.trace()).get("clock_error_ns") as i64;
        let boot = |at: u64| {
            let clocks = &self.process.clocks;
            at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64)
        };
        assert!(!self.transfers.is_empty(), "the network was not used");
        let threads: HashSet<u32> = self.transfers.iter().map(|transfer| transfer.thread).collect();
        assert_eq!(threads.len(), 1, "one communicator has one progress thread");
        // NCCL tells of something after the network's call and before its next one.
        let mut calls: Vec<u64> = self.transfers.iter().flat_map(|it| [it.called, it.asked]).collect();
        calls.sort_unstable();
        let next =
            |after: u64| calls.get(calls.partition_point(|call| *call <= after)).copied().unwrap_or(u64::MAX >> 2);
        // A receive's size is told when it is flushed.
        let waits = self.trace().rows(
            "SELECT wait.ts, wait.dur, track.name GLOB '*send*' AS sends, extract_arg(coalesce(flush.arg_set_id, wait.arg_set_id), \
             'nccl.bytes') AS bytes FROM slice AS wait JOIN track ON track.id = wait.track_id LEFT JOIN slice AS flush ON \
             flush.parent_id = wait.parent_id AND flush.name = 'flush wait' WHERE wait.category = 'proxy' AND wait.name = 'network wait' \
             ORDER BY wait.ts",
        );
        let events = self.trace().rows(
            "SELECT ts, dur, extract_arg(arg_set_id, 'nccl.net_opcode') AS sends, extract_arg(arg_set_id, 'nccl.net_length') AS bytes \
             FROM slice WHERE category = 'net' ORDER BY ts",
        );
        for sends in [true, false] {
            let mut transfers: Vec<_> = self.transfers.iter().filter(|it| it.sends == sends).collect();
            transfers.sort_by_key(|it| it.called);
            let of =
                |rows: &[Row]| rows.iter().filter(|row| (row.i64("sends") != 0) == sends).cloned().collect::<Vec<_>>();
            let (waits, events) = (of(&waits), of(&events));
            assert_eq!((waits.len(), events.len()), (transfers.len(), transfers.len()), "sends: {sends}");
            for ((wait, event), truth) in waits.iter().zip(&events).zip(transfers) {
                let within = |at: i64, from: u64, to: u64| boot(from) - error <= at && at <= boot(to) + error;
                let (begin, end) = (wait.i64("ts"), wait.i64("ts") + wait.i64("dur"));
                assert!(within(begin, truth.called, next(truth.called)), "waits from {begin}: {truth:?}");
                assert!(within(end, truth.asked, next(truth.asked)), "waits to {end}: {truth:?}");
                assert_eq!(wait.i64("bytes") as u64, truth.bytes, "{truth:?}");
                let (begin, end) = (event.i64("ts"), event.i64("ts") + event.i64("dur"));
                assert!(within(begin, truth.called, truth.returned), "event from {begin}: {truth:?}");
                assert!(within(end, truth.asked, truth.answered), "event to {end}: {truth:?}");
                // Room, for a receive.
                assert!(
                    event.i64("bytes") as u64 >= truth.bytes && (!sends || event.i64("bytes") as u64 == truth.bytes),
                    "{truth:?}"
                );
            }
        }
    }

    /// Each operation on a communicator's track is as long as a kernel that carried one of its function, on the GPU's stream.
    #[track_caller]
    pub(crate) fn check_runs(&self) {
        let alone = self.trace().rows(
            "SELECT name, ts, dur FROM slice AS run WHERE category = 'run' AND NOT EXISTS (SELECT 1 FROM slice AS kernel WHERE \
             kernel.category = 'kernel' AND kernel.ts = run.ts AND kernel.dur = run.dur AND extract_arg(kernel.arg_set_id, 'nccl.comm') \
             = extract_arg(run.arg_set_id, 'nccl.comm'))",
        );
        assert!(alone.is_empty(), "operations that ran without a kernel: {alone:?}");
        let mut found = self.counts("category = 'run'");
        // NCCL 2.29 and newer does not tell of broadcasts: those that are alone in their group are found by the call all the same.
        if self.minor() >= 229 {
            found.remove("Broadcast");
        }
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for operation in self.told_kernels().flat_map(|kernel| kernel.operations.iter().take(16)) {
            *expected.entry(operation.function.clone()).or_default() += 1;
        }
        if self.minor() >= 229 {
            expected.remove("Broadcast");
        }
        assert_eq!(found, expected, "operations while the GPU worked on them");
    }

    /// Requires that the trace has every kernel of the truth, on its stream, at its true time within the stated error, and
    /// says of each of NCCL's which operations it carried: all of them, and never a wrong one.
    #[track_caller]
    pub(crate) fn check_kernels(&self) {
        let arg = |key: &str| {
            format!(
                "(SELECT coalesce(int_value, string_value) FROM args WHERE args.arg_set_id = slice.arg_set_id AND \
                 key = 'nccl.{key}')"
            )
        };
        let rows = self.trace().rows(&format!(
            "SELECT ts, dur, name, {} AS correlation, {} AS node, {} AS error, {} AS by, {} AS operations, {} AS device, \
             {} AS stream, {} AS replay, {} AS count FROM slice WHERE category = 'kernel' AND {} IS NOT NULL ORDER BY ts",
            arg("correlation"),
            arg("graph_node"),
            arg("time_error_ns"),
            arg("match"),
            arg("operations"),
            arg("device"),
            arg("stream_id"),
            arg("replay"),
            arg("count"),
            arg("kernel")
        ));
        let wall_to_boot = |at: u64| {
            let clocks = &self.process.clocks;
            at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64)
        };
        let optional = |row: &Row, key: &str| if row.is_null(key) { 0 } else { row.i64(key) };
        let mut found: HashMap<(i64, i64), Vec<Row>> = HashMap::new();
        for row in rows {
            found.entry((row.i64("correlation"), optional(&row, "node"))).or_default().push(row);
        }
        for kernel in &self.kernels {
            let rows = found.remove(&key(kernel)).unwrap_or_else(|| panic!("the trace lacks {kernel:?}"));
            let [row] = &rows[..] else { panic!("{} slices of {kernel:?}", rows.len()) };
            assert_eq!(row.i64("device"), i64::from(kernel.device), "{kernel:?}");
            assert_eq!(row.i64("stream"), i64::from(kernel.stream), "{kernel:?}");
            let error = row.i64("error");
            let (begin, end) = (row.i64("ts"), row.i64("ts") + row.i64("dur"));
            for (drawn, truth) in [(begin, wall_to_boot(kernel.start)), (end, wall_to_boot(kernel.end))] {
                assert!((drawn - truth).abs() <= error, "{} ns off, {error} stated: {kernel:?}", drawn - truth);
            }
            self.check_match(kernel, row);
        }
        assert!(found.is_empty(), "kernels that never ran: {found:?}");
        // Before 2.28 NCCL does not tell of launches.
        let demand = if self.minor() < 228 { Demand::NeverWrong } else { Demand::Whole };
        let mut verdict = judge(&self.lines, &accuracy::seen(&self.lines, self.trace()));
        // How wide channels' bounds may be is for the tests of accuracy: on a busy machine, and without CUPTI, they are wide.
        verdict.timer.wide = 0;
        if self.is_joined {
            // Another tool's kernels have no arrows from our launches.
            verdict.arrows = [0; 2];
        }
        assert_eq!(verdict.faults(demand), [""; 0], "{}", verdict.examples.join("\n"));
        self.check_copies();
        self.check_facts();
    }

    /// The kernels, the calls that launched them and those that made graphs as Kineto writes them, at true times and so many ns. Calls that
    /// launch into a capture are not among them.
    fn kineto(&self, offset: i64) -> Vec<String> {
        let micros = |ns: i64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let time = |at: u64| {
            let clocks = &self.process.clocks;
            micros(at as i64 + clocks.boot.at(at as i64 - clocks.reference as i64) + offset)
        };
        let call = |name: &str, thread: u32, (called, returned): (u64, u64), correlation: u32| {
            format!(
                "{{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"{name}\", \"pid\": {}, \"tid\": {thread}, \"ts\": {}, \
                 \"dur\": {}, \"args\": {{\"correlation\": {correlation}}}}}",
                self.process.pid,
                time(called),
                micros((returned - called) as i64)
            )
        };
        let mut events = Vec::new();
        for Capture { thread, begin, end, instantiate } in &self.captures {
            events.push(call("cudaStreamBeginCapture", *thread, *begin, 0));
            events.push(call("cudaStreamEndCapture", *thread, *end, 0));
            events.push(call("cudaGraphInstantiateWithFlags", *thread, *instantiate, 0));
        }
        // Each thread that launches is in one step until the launch in the middle, and in the next from there on.
        let mut launches: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        for kernel in &self.kernels {
            launches.entry(kernel.thread).or_default().push((kernel.called, kernel.returned));
        }
        for (thread, mut launches) in launches {
            launches.sort_unstable();
            let calls = self.calls.iter().filter(|call| call.thread == thread).map(|call| call.called);
            let begin = calls.chain([launches[0].0]).min().unwrap_or(0);
            let (middle, end) = (launches[launches.len() / 2].0, launches[launches.len() - 1].1);
            for (step, from, to) in [(1, begin - 1_000, middle), (2, middle, end + 1_000)] {
                events.push(format!(
                    "{{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#{step}\", \"pid\": {}, \"tid\": {thread}, \
                     \"ts\": {}, \"dur\": {}}}",
                    self.process.pid,
                    time(from),
                    micros((to - from) as i64)
                ));
            }
        }
        let mut launched = HashSet::new();
        for kernel in &self.kernels {
            let Kernel { correlation, device, context, stream, grid, symbol, thread, .. } = kernel;
            let node = kernel.graph.map_or_else(String::new, |place| format!(", \"graph node id\": {}", place.node));
            events.push(format!(
                "{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"{symbol}\", \"pid\": {device}, \"tid\": {stream}, \"ts\": {}, \"dur\": {}, \
                 \"args\": {{\"device\": {device}, \"context\": {context}, \"stream\": {stream}, \"correlation\": {correlation}, \
                 \"grid\": [{grid}, 1, 1]{node}}}}}",
                time(kernel.start),
                micros((kernel.end - kernel.start) as i64)
            ));
            if launched.insert(correlation) {
                let name = if kernel.graph.is_some() { "cudaGraphLaunch" } else { "cudaLaunchKernelExC" };
                events.push(call(name, *thread, (kernel.called, kernel.returned), *correlation));
            }
        }
        events
    }

    /// Requires that each operation on the GPU says in which of the steps that [`Played::kineto`] makes it was asked for, or its graph
    /// launched; and that these are in order, on each stream.
    #[track_caller]
    pub(crate) fn check_steps(&self) {
        let rows = self.trace().rows(
            "SELECT extract_arg(arg_set_id, 'nccl.stream_id') AS stream, extract_arg(arg_set_id, 'nccl.nvtx_step') AS step FROM slice \
             WHERE category = 'kernel' AND extract_arg(arg_set_id, 'nccl.match') GLOB '*_*' ORDER BY ts",
        );
        let mut last = HashMap::new();
        for row in &rows {
            let before = last.insert(row.i64("stream"), row.i64("step")).unwrap_or(1);
            assert!((before..=2).contains(&row.i64("step")), "{before} before {row:?}");
        }
        assert!(last.values().any(|step| *step == 2), "no operation of the second step: {last:?}");
    }

    /// Requires that each of NCCL's kernels that the trace matches, and each of which it says that it carried one all-reduce, is of the size
    /// that it had.
    #[track_caller]
    pub(crate) fn check_sizes(&self) {
        let arg = |key: &str| format!("extract_arg(arg_set_id, 'nccl.{key}')");
        let rows = self.trace().rows(&format!(
            "SELECT {} AS correlation, {} AS node, {} AS count FROM slice WHERE category = 'kernel' AND name GLOB 'AllReduce*' AND {} = 1",
            arg("correlation"),
            arg("graph_node"),
            arg("count"),
            arg("operations")
        ));
        for row in rows {
            let node = if row.is_null("node") { 0 } else { row.i64("node") };
            let kernel = self.kernels.iter().find(|kernel| key(kernel) == (row.i64("correlation"), node));
            let kernel = kernel.unwrap_or_else(|| panic!("{row:?} never ran"));
            let counts: Vec<u64> = kernel.operations.iter().map(|operation| operation.count).collect();
            assert_eq!(counts, [row.i64("count") as u64], "{row:?}");
        }
    }

    /// Requires that an arrow leads to each kernel that was matched by its launch, from the launch that it had, and to each of its
    /// operations on the communicator's track from where that was handed over; or to there, where the kernel had begun already.
    #[track_caller]
    pub(crate) fn check_arrows(&self) {
        let arg = |of: &str, key: &str| {
            format!("(SELECT int_value FROM args WHERE args.arg_set_id = {of}.arg_set_id AND key = 'nccl.{key}')")
        };
        let bare = |category: &str, from: &str, more: &str| {
            self.trace().rows(&format!(
                "SELECT slice.name AS name FROM slice WHERE category = '{category}' AND {} IS NULL AND extract_arg(arg_set_id, \
                 'nccl.match') = 'exact_launch_bracket' AND NOT EXISTS (SELECT 1 FROM flow JOIN slice AS origin ON \
                 origin.id IN (flow.slice_out, flow.slice_in) WHERE slice.id IN (flow.slice_in, flow.slice_out) AND \
                 origin.category = '{from}' AND {more})",
                arg("slice", "replay")
            ))
        };
        let launched = "origin.name = 'KernelLaunch' AND origin.ts <= slice.ts";
        assert!(bare("kernel", "api", launched).is_empty(), "kernels without their launch's arrow");
        let same = format!("{} = {} AND origin.name = slice.name", arg("origin", "comm"), arg("slice", "comm"));
        let runs = bare("run", "operation", &same);
        assert!(runs.is_empty(), "operations without the arrow from their hand-over: {runs:?}");
    }

    /// Requires that the arrows to a launch come from the calls of just those operations that its kernel carried. Where NCCL hands over on
    /// another thread, as it does for a while after a graph, there are none to a launch that may carry several. The answer is the number of
    /// launches with arrows from several calls.
    #[track_caller]
    pub(crate) fn check_calls_of_launches(&self) -> usize {
        let rows = self.trace().rows(
            "SELECT extract_arg(kernel.arg_set_id, 'nccl.correlation') AS correlation, substr(call.name, 5, instr(call.name, ' ') - 5) AS asked, \
             (SELECT count(*) FROM flow JOIN slice AS plan ON plan.id = flow.slice_in WHERE flow.slice_out = launch.id AND \
             plan.category = 'operation') AS handed_over \
             FROM slice AS kernel JOIN flow ON flow.slice_in = kernel.id JOIN slice AS launch ON launch.id = flow.slice_out \
             LEFT JOIN flow AS arrow ON arrow.slice_in = launch.id LEFT JOIN slice AS call ON call.id = arrow.slice_out \
             WHERE kernel.category = 'kernel' AND launch.name = 'KernelLaunch' AND \
             extract_arg(kernel.arg_set_id, 'nccl.match') = 'exact_launch_bracket'",
        );
        let mut asked: BTreeMap<i64, (Vec<&str>, bool)> = BTreeMap::new();
        for row in &rows {
            let (calls, direct) = asked.entry(row.i64("correlation")).or_default();
            *direct = row.i64("handed_over") > 0;
            if !row.is_null("asked") {
                calls.push(row.str("asked"));
            }
        }
        let several = asked.values().filter(|(calls, _)| calls.len() > 1).count();
        for (correlation, (mut calls, direct)) in asked {
            let kernel = self.kernels.iter().find(|kernel| key(kernel) == (correlation, 0));
            let kernel = kernel.unwrap_or_else(|| panic!("{correlation} never ran"));
            let mut carried: Vec<&str> = kernel.operations.iter().map(|operation| &*operation.function).collect();
            calls.sort_unstable();
            carried.sort_unstable();
            let is_told_elsewhere = calls.is_empty() && !direct;
            assert!(calls == carried || is_told_elsewhere, "{calls:?}, and it carried {carried:?}: {kernel:?}");
        }
        several
    }

    /// Requires that what NCCL was handed is outstanding until its kernel has ended, and that all of it is done where the job is.
    #[track_caller]
    pub(crate) fn check_outstanding(&self) {
        let counters = self.trace().rows(
            "SELECT track.name, min(value) AS least, max(value) AS most, (SELECT value FROM counter AS last WHERE \
             last.track_id = counter.track_id ORDER BY ts DESC LIMIT 1) AS left FROM counter JOIN track ON track.id = \
             counter.track_id WHERE track.name GLOB 'outstanding · *' GROUP BY counter.track_id",
        );
        assert!(!counters.is_empty(), "no operation was ever outstanding");
        for row in counters {
            let (least, most, left) = (row.f64("least"), row.f64("most"), row.f64("left"));
            assert!(least >= 0.0 && most >= 1.0 && left == 0.0, "{row:?}");
        }
    }

    /// What the trace says a kernel carried is what it carried.
    #[track_caller]
    fn check_match(&self, kernel: &Kernel, row: &Row) {
        if kernel.device_comm.is_none() {
            assert!(row.is_null("by"), "the application's kernel {} is matched: {kernel:?}", row.str("name"));
            return;
        }
        let by = row.str("by");
        let exact = by.starts_with("exact");
        let silent = !self.told_kernels().any(|told| std::ptr::eq(told, kernel));
        if self.is_joined && kernel.graph.is_some() {
            assert_eq!(by, "inferred_capture_order", "{} {kernel:?}", row.str("name"));
            let replay = kernel.graph.map_or(0, |place| place.replay as i64 + 1);
            assert_eq!(row.i64("replay"), replay, "{} {kernel:?}", row.str("name"));
        } else if self.minor() >= 228 && !silent {
            assert!(exact, "{by}: {} {kernel:?}", row.str("name"));
        }
        if by == "unmatched" {
            return;
        }
        let first = row.str("name").split(' ').next().unwrap_or_default();
        let carried = kernel.operations.iter().any(|operation| operation.function == first);
        assert!(carried, "{} is none of {:?}", row.str("name"), kernel.operations);
        if let [operation] = &kernel.operations[..]
            && exact
            && !matches!(first, "Send" | "Recv")
        {
            assert_eq!(row.i64("count"), operation.count as i64, "{} {kernel:?}", row.str("name"));
        }
    }

    /// Why there are no kernels, by the trace's first word.
    #[track_caller]
    pub(crate) fn why_no_kernels(&self) -> String {
        let rows = self.trace().rows(
            "SELECT string_value AS note FROM slice JOIN args USING (arg_set_id) WHERE slice.name = 'recording started' \
             AND key = 'nccl.note'",
        );
        let notes: Vec<&str> = rows.iter().map(|row| row.str("note")).collect();
        let reason = notes.iter().find_map(|note| Some(note.split_once("no GPU kernels: ")?.1.to_owned()));
        reason.unwrap_or_else(|| panic!("the trace does not say why it has no kernels: {notes:?}"))
    }

    /// How many slices meet a condition.
    #[track_caller]
    pub(crate) fn count(&self, condition: &str) -> i64 {
        self.trace().rows(&format!("SELECT count(*) AS n FROM slice WHERE {condition}"))[0].i64("n")
    }

    /// How many slices meet a condition, by the first word of their names.
    #[track_caller]
    fn counts(&self, condition: &str) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for row in self.trace().rows(&format!("SELECT name, count(*) AS n FROM slice WHERE {condition} GROUP BY name"))
        {
            let first = row.str("name").split(' ').next().unwrap_or_default().to_owned();
            *counts.entry(first).or_default() += row.i64("n");
        }
        counts
    }
}

/// How the trace should name a call.
fn called_name(call: &Call) -> String {
    let (short, bytes) = match call.datatype.as_str() {
        "ncclInt8" => ("i8", 1),
        "ncclUint8" => ("u8", 1),
        "ncclInt32" => ("i32", 4),
        "ncclUint32" => ("u32", 4),
        "ncclInt64" => ("i64", 8),
        "ncclUint64" => ("u64", 8),
        "ncclFloat16" => ("f16", 2),
        "ncclFloat32" => ("f32", 4),
        "ncclFloat64" => ("f64", 8),
        "ncclBfloat16" => ("bf16", 2),
        other => panic!("a datatype that this test does not know: {other}"),
    };
    let size = call.count * bytes;
    let in_units = |shift: u32| {
        let tenths = (size as f64 / f64::from(1 << shift) * 10.0).round() as u64;
        if tenths.is_multiple_of(10) { format!("{}", tenths / 10) } else { format!("{}.{}", tenths / 10, tenths % 10) }
    };
    let size = match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", in_units(10)),
        _ => format!("{} MiB", in_units(20)),
    };
    format!("nccl{} {size} {short}", call.function)
}

/// What identifies a kernel in the truth and in CUPTI's records: the call that launched it and, in a graph, the node.
fn key(kernel: &Kernel) -> (i64, i64) {
    (i64::from(kernel.correlation), kernel.graph.map_or(0, |place| place.node.cast_signed()))
}

/// What the plugin said in any process of a job.
pub(crate) fn plugin_said(job: &Job) -> Vec<String> {
    said(&job.logs()).into_iter().map(str::to_owned).collect()
}
