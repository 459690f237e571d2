//! The state that all topics share: the machine, how jobs are started, and the rows so far.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Suite;
use crate::cuda::Description;
use crate::find::Machine;
use crate::home::Home;
use crate::job::{Ended, Job, Process, TRACES};
use crate::report::{JobRun, Row, State};
use crate::trace::{Seen, Verdict};

/// A running suite.
pub(super) struct Bench {
    pub(super) suite: Suite,
    /// Topics and rows that are asked now; if empty, all of them.
    pub(super) wanted: Vec<String>,
    pub(super) machine: Machine,
    pub(super) gpus: Vec<Description>,
    /// The folder of jobs, and the output.
    pub(super) jobs_folder: PathBuf,
    pub(super) home: Home,
    pub(super) began: Instant,
    /// When everything must have ended.
    end: Option<Instant>,
    /// The GPUs' device files, held open: without persistence mode the driver would initialise the
    /// GPU for each process, which takes seconds.
    _devices: Vec<File>,
    /// A job of this row had less time than usual, and needed more.
    is_cut: bool,
    pub(super) rows: Vec<Row>,
    pub(super) jobs: Vec<JobRun>,
    /// NCCL's version: 23007 is 2.30.7.
    pub(super) nccl: u32,
    driver_cuda: u32,
    cupti: Option<u32>,
    /// The number of lost records in all jobs, and the number of traces.
    lost: u64,
    traces: usize,
}

/// How ranks are placed on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One rank, which sends to itself.
    Alone,
    /// Two ranks on the first GPU, which NCCL takes for ranks on two hosts: it communicates over
    /// sockets, through the proxy.
    Hosts,
    /// Two ranks on the first GPU of one host, which NCCL allows from 2.30 on.
    Shared,
    /// One rank on each of this many GPUs.
    Gpus(u32),
}

/// Which plugin NCCL loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    /// None.
    None,
    /// The plugin that does nothing.
    Empty,
    /// Ours.
    Ours,
    /// Ours, which CUDA has loaded before.
    Injected,
}

/// A topic's description of a job.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) workload: &'static str,
    pub(super) layout: Layout,
    pub(super) plugin: Plugin,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
    /// Which of the libcupti that were found, by index; the best is first.
    pub(super) cupti: usize,
}

/// A question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) topic: &'static str,
    pub(super) name: String,
    pub(super) text: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) figure: String,
    pub(super) state: State,
    pub(super) why: String,
    pub(super) values: Vec<(&'static str, Value)>,
}

impl Plan {
    pub(super) fn new(name: &str, workload: &'static str, layout: Layout) -> Plan {
        let (arguments, variables) = (Vec::new(), Vec::new());
        Plan { name: name.into(), workload, layout, plugin: Plugin::Ours, arguments, variables, cupti: 0 }
    }

    pub(super) fn plugin(self, plugin: Plugin) -> Plan {
        Plan { plugin, ..self }
    }

    pub(super) fn set(mut self, name: &str, value: &str) -> Plan {
        self.variables.push((name.into(), value.into()));
        self
    }

    pub(super) fn with(mut self, option: &str, value: impl ToString) -> Plan {
        self.arguments.extend([format!("--{option}"), value.to_string()]);
        self
    }

    /// Records everything, including the time of channels.
    pub(super) fn full(self) -> Plan {
        // From 2.29 to 2.30 channels hang where broadcasts use this path.
        self.set("NCCLSCOPE_PRESET", "full").set("NCCL_ALLGATHERV_ENABLE", "0")
    }
}

impl Answer {
    /// Good if there are no faults.
    pub(super) fn by(figure: String, faults: &[String]) -> Answer {
        let state = if faults.is_empty() { State::Ok } else { State::NotOk };
        Answer { figure, state, why: faults.join("; "), values: Vec::new() }
    }

    pub(super) fn ok(figure: String) -> Answer {
        Answer::by(figure, &[])
    }

    pub(super) fn not_run(why: impl Into<String>) -> Answer {
        Answer { figure: String::new(), state: State::NotRun, why: why.into(), values: Vec::new() }
    }

    pub(super) fn not_ok(why: impl Into<String>) -> Answer {
        Answer { figure: String::new(), state: State::NotOk, why: why.into(), values: Vec::new() }
    }

    pub(super) fn value(mut self, name: &'static str, value: impl Into<Value>) -> Answer {
        self.values.push((name, value.into()));
        self
    }
}

/// The topic of the last row, which is always included.
const LOSSES: &str = "losses";
/// No job begins with less time than this.
const LEAST: Duration = Duration::from_secs(5);
/// Time after the last job, to read its traces and write the report.
const CLOSING: Duration = Duration::from_secs(12);
/// The part of it that is left when the process is ended.
const LAST: Duration = Duration::from_secs(3);

/// A variable of the shell that concerns the machine, not a job.
const KEPT: &str = "NCCLSCOPE_MIN_FREE";

/// Variables of the shell that are meant for other jobs.
const FOREIGN: [&str; 8] = [
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_HOSTID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "SLURM_PROCID",
];

impl Bench {
    /// Starts a process that finds out what there is.
    pub(super) fn new(suite: Suite, machine: Machine) -> Result<Bench, String> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(|error| error.to_string());
        let home = absolute(&suite.output)?;
        let beside = PathBuf::from(format!("{}-jobs", home.display()));
        let jobs_folder = suite.jobs.as_deref().map_or(Ok(beside), absolute)?;
        let began = Instant::now();
        // After the last job its traces are read and the report is written. If that takes too
        // long, the process is ended anyway.
        let all = suite.seconds().map(Duration::from_secs_f64);
        let end = all.map(|all| began + all - (all / 10).min(CLOSING));
        let home = Home::new(&home, all.map(|all| began + all - (all / 40).min(LAST)))?;
        let mut bench = Bench {
            wanted: suite.only.clone(),
            suite,
            machine,
            gpus: Vec::new(),
            jobs_folder,
            home,
            began,
            end,
            _devices: devices(),
            is_cut: false,
            rows: Vec::new(),
            jobs: Vec::new(),
            nccl: 0,
            driver_cuda: 0,
            cupti: None,
            lost: 0,
            traces: 0,
        };
        // If the driver hangs, the report already has what was found on the machine.
        bench.home.report(bench.report())?;
        bench.probe()?;
        // CUPTI must not be newer than the driver.
        const CUDA_13: u32 = 13_000;
        if bench.driver_cuda < CUDA_13 && bench.suite.wanted.cupti.is_none() {
            let newer = |found: &crate::find::Found| found.path.ends_with("libcupti.so.13");
            if bench.machine.cupti.first().is_some_and(newer) {
                bench.machine.cupti.sort_by_key(newer);
                bench.probe()?;
            }
        }
        if bench.gpus.is_empty() { Err("there is no GPU".into()) } else { Ok(bench) }
    }

    /// Starts a process that reads the versions of the driver, the GPUs and the libraries.
    fn probe(&mut self) -> Result<(), String> {
        let ended = self.run(&Plan::new("probe", "probe", Layout::Alone).plugin(Plugin::None))?;
        let Some(Some(told)) = ended.told.first().filter(|_| ended.is_well()) else { return Err(ended.why()) };
        self.gpus.clone_from(&told.gpus);
        let figure = |name: &str| told.figures.get(name).map(|value| *value as u32);
        self.nccl = figure("nccl").unwrap_or(0);
        self.driver_cuda = figure("driver_cuda").unwrap_or(0);
        self.cupti = figure("cupti");
        Ok(())
    }

    /// The best layout with several ranks on this machine.
    pub(super) fn several(&self) -> Layout {
        const MOST: u32 = 8;
        match self.gpus.len() as u32 {
            0 | 1 => Layout::Hosts,
            gpus => Layout::Gpus(gpus.min(MOST)),
        }
    }

    pub(super) fn layout(&self) -> String {
        match self.several() {
            _ if self.gpus.is_empty() => "not known: the driver was not asked yet".into(),
            Layout::Gpus(count) => format!("{count}, one on each GPU"),
            _ => {
                "2 on one GPU as if on two hosts, over sockets: they take turns, so times include waiting for the turn"
                    .into()
            }
        }
    }

    pub(super) fn is_emulated(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.name.to_lowercase().contains("emulated"))
    }

    pub(super) fn versions(&self) -> Vec<(String, String)> {
        let known = |version: u32, text: String| if version == 0 { "unknown".into() } else { text };
        let nccl = format!("{}.{}.{}", self.nccl / 10_000, self.nccl / 100 % 100, self.nccl % 100);
        let nccl = known(self.nccl, nccl);
        let cuda = format!("{}.{}", self.driver_cuda / 1000, self.driver_cuda / 10 % 100);
        let cuda = known(self.driver_cuda, cuda);
        let driver = self.machine.driver_version.clone().unwrap_or_else(|| "of unknown version".into());
        let cupti = self.cupti.map_or_else(|| "none".into(), |version| version.to_string());
        let torch = self.machine.torch.as_ref().map_or_else(|| "none".into(), |torch| torch.version.clone());
        [("driver", format!("{driver}, for CUDA {cuda}")), ("NCCL", nccl), ("CUPTI", cupti), ("PyTorch", torch)]
            .map(|(what, version)| (what.to_owned(), version))
            .to_vec()
    }

    /// The answer that follows from a verdict. Before 2.28 NCCL does not report launches, so
    /// kernels may stay unmatched there, but none may be matched wrongly.
    pub(super) fn judge(&self, figure: String, verdict: &Verdict, mut further: Vec<String>) -> Answer {
        if self.tells_launches() {
            further.splice(0..0, verdict.faults());
            return Answer::by(figure, &further);
        }
        further.splice(0..0, verdict.wrongs());
        let answer = Answer::by(figure, &further);
        match verdict.open_ends().filter(|_| further.is_empty()) {
            Some(why) => Answer { why: format!("{why}; this NCCL does not report launches"), ..answer },
            None => answer,
        }
    }

    /// Whether NCCL reports launches.
    pub(super) fn tells_launches(&self) -> bool {
        const LAUNCHES: u32 = 22_800;
        self.nccl >= LAUNCHES
    }

    /// Without CUPTI, the answer to what needs it.
    pub(super) fn needs_cupti(&self) -> Result<(), Answer> {
        match self.cupti {
            Some(_) => Ok(()),
            None => Err(Answer::not_run("needs CUPTI (libcupti.so.12 or .13)")),
        }
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(self.suite.job_limit)
    }

    /// Whether there is little time.
    pub(super) fn is_short(&self) -> bool {
        self.suite.quick || self.suite.first || self.suite.second
    }

    /// How often a workload repeats its work.
    pub(super) fn repeats(&self) -> u32 {
        if self.is_short() { 5 } else { 25 }
    }

    /// The processes of a job, with their environment; `command` gives the program and its
    /// arguments for a rank.
    pub(super) fn processes(&self, plan: &Plan, command: impl Fn(u32, u32) -> Vec<OsString>) -> Vec<Process> {
        let ranks = match plan.layout {
            Layout::Alone => 1,
            Layout::Hosts | Layout::Shared => 2,
            Layout::Gpus(count) => count,
        };
        (0..ranks)
            .map(|rank| Process { command: command(rank, ranks), variables: self.variables(plan, rank, ranks) })
            .collect()
    }

    fn variables(&self, plan: &Plan, rank: u32, ranks: u32) -> Vec<(String, OsString)> {
        let own = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let own = own.filter(|name| name.starts_with("NCCLSCOPE_") && name != KEPT || FOREIGN.contains(&name.as_str()));
        let mut variables: Vec<(String, OsString)> = own.map(|name| (name, OsString::new())).collect();
        let mut set = |name: &str, value: OsString| variables.push((name.to_owned(), value));
        set("NCCL_DEBUG", "WARN".into());
        // The last line of a log must say what was wrong.
        set("RUST_BACKTRACE", "0".into());
        set("RANK", rank.to_string().into());
        set("WORLD_SIZE", ranks.to_string().into());
        set("LOCAL_RANK", if matches!(plan.layout, Layout::Gpus(_)) { rank.to_string() } else { "0".into() }.into());
        if let Some(folder) = &self.suite.wanted.driver {
            let outer = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let paths = std::iter::once(folder.clone()).chain(std::env::split_paths(&outer));
            set("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap_or_default());
        }
        match plan.layout {
            Layout::Hosts => {
                set("NCCL_HOSTID", format!("ncclscope-gpu-{rank}").into());
                set("NCCL_NET", "Socket".into());
                set("NCCL_SOCKET_IFNAME", "lo".into());
                set("NCCL_IB_DISABLE", "1".into());
                // Other ways by which NCCL would find out that the hosts are one.
                set("NCCL_MNNVL_ENABLE", "0".into());
                set("NCCL_RAS_ENABLE", "0".into());
            }
            Layout::Shared => set("NCCL_MULTI_RANK_GPU_ENABLE", "1".into()),
            Layout::Alone | Layout::Gpus(_) => {}
        }
        let path = |found: &Option<crate::find::Found>| found.as_ref().map(|it| it.path.clone().into_os_string());
        let plugin = match plan.plugin {
            Plugin::None => None,
            Plugin::Empty => path(&self.machine.empty),
            Plugin::Ours | Plugin::Injected => path(&self.machine.plugin),
        };
        set("NCCL_PROFILER_PLUGIN", plugin.clone().unwrap_or_else(|| "none".into()));
        if plan.plugin == Plugin::Injected {
            set("CUDA_INJECTION64_PATH", plugin.unwrap_or_default());
        }
        set("NCCLSCOPE_OUTPUT", self.jobs_folder.join(&plan.name).join(TRACES).into());
        if let Some(cupti) = self.machine.cupti.first() {
            set("NCCLSCOPE_CUPTI", cupti.path.clone().into());
        }
        variables.extend(plan.variables.iter().map(|(name, value)| (name.clone(), value.into())));
        variables
    }

    /// Runs one of this program's workloads.
    pub(super) fn run(&mut self, plan: &Plan) -> Result<Ended, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let folder = self.jobs_folder.join(&plan.name);
        let processes = self.processes(plan, |rank, ranks| {
            let device = if matches!(plan.layout, Layout::Gpus(_)) { rank } else { 0 };
            let mut command: Vec<OsString> = vec![program.clone().into(), "workload".into(), plan.workload.into()];
            for (option, value) in [("--rank", rank), ("--ranks", ranks), ("--device", device)] {
                command.extend([option.into(), value.to_string().into()]);
            }
            let mut file = |option: &str, path: &Path| command.extend([option.into(), path.into()]);
            file("--meeting", &folder);
            file("--result", &folder.join(format!("told-{rank}.json")));
            self.machine.nccl.first().iter().for_each(|found| file("--nccl", &found.path));
            self.machine.cupti.get(plan.cupti).iter().for_each(|found| file("--cupti", &found.path));
            self.machine.cudart.iter().for_each(|found| file("--cudart", &found.path));
            command.extend(plan.arguments.iter().map(Into::into));
            command
        });
        self.start(&Job { name: plan.name.clone(), processes, limit: self.limit() })
    }

    /// Runs a job if there is time, and adds it to the report.
    pub(super) fn start(&mut self, job: &Job) -> Result<Ended, String> {
        let rest = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = rest.map_or(job.limit, |rest| rest.min(job.limit));
        if limit < job.limit.min(LEAST) {
            self.is_cut = true;
            return Err("no time left".into());
        }
        self.home.begins(&job.name);
        let ended = Job { limit, ..job.clone() }.run(&self.jobs_folder)?;
        self.home.ends(&job.name, &ended.folder);
        self.is_cut |= limit < job.limit && ended.took_too_long();
        let bytes = ended.traces.iter().filter_map(|path| path.metadata().ok()).map(|it| it.len()).sum();
        let below = |path: &PathBuf| path.strip_prefix(&self.jobs_folder).unwrap_or(path).display().to_string();
        self.jobs.push(JobRun {
            name: job.name.clone(),
            seconds: ended.took.as_secs_f64(),
            why: ended.why(),
            traces: ended.traces.iter().map(below).collect(),
            bytes,
        });
        Ok(ended)
    }

    /// Runs a plan; the answer is the reason if a process failed.
    pub(super) fn done(&mut self, plan: &Plan) -> Result<Ended, Answer> {
        let ended = self.run(plan).map_err(Answer::not_ok)?;
        if ended.is_well() { Ok(ended) } else { Err(Answer::not_ok(ended.why())) }
    }

    /// The same, and reads its traces, those of a job that failed too.
    pub(super) fn watch(&mut self, plan: &Plan) -> Result<(Ended, Vec<Seen>), Answer> {
        let ended = self.run(plan).map_err(Answer::not_ok)?;
        let seen = self.read(&ended);
        if ended.is_well() { Ok((ended, seen)) } else { Err(Answer::not_ok(ended.why())) }
    }

    pub(super) fn read(&mut self, ended: &Ended) -> Vec<Seen> {
        let seen: Vec<Seen> = ended.traces.iter().map(|path| Seen::of(path)).collect();
        self.lost += Verdict::of(&seen, &[]).lost;
        self.traces += seen.len();
        seen
    }

    /// Answers a question if there is time left. An error is an answer, too.
    pub(super) fn ask(
        &mut self,
        question: &Question,
        jobs: &[&str],
        answer: impl FnOnce(&mut Bench) -> Result<Answer, Answer>,
    ) {
        let is_wanted = |name: &str| self.wanted.is_empty() || self.is_named(name);
        if !is_wanted(question.topic) && !is_wanted(&question.name) && question.topic != LOSSES {
            return;
        }
        let is_late = question.topic != LOSSES && self.end.is_some_and(|end| Instant::now() + LEAST > end);
        self.is_cut = is_late;
        let answer = if is_late { Answer::not_run("") } else { answer(self).unwrap_or_else(|answer| answer) };
        // A job that was cut short gives no answer.
        let answer = match std::mem::take(&mut self.is_cut) {
            true => Answer::not_run("no time left: see --minutes"),
            false => answer,
        };
        let state = match answer.state {
            State::Ok => "ok",
            State::NotOk => "NOT OK",
            State::NotRun => "not run",
        };
        let what = if answer.figure.is_empty() { &answer.why } else { &answer.figure };
        super::say(&format!("{state:<8} {:<28} {what}", question.name));
        if answer.state == State::NotOk && !answer.figure.is_empty() {
            super::say(&format!("{:<37} {}", "", answer.why));
        }
        self.rows.push(Row {
            topic: question.topic,
            name: question.name.clone(),
            question: question.text.clone(),
            figure: answer.figure,
            state: answer.state,
            why: answer.why,
            jobs: jobs.iter().map(|&job| job.to_owned()).collect(),
            values: answer.values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        });
        // If the suite is killed, the answers so far are written. A lack of space is reported at
        // the end.
        let _ = self.home.report(self.report());
    }

    /// Whether a topic or a row is named on the command line.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted == name)
    }

    /// The last row: the records lost in all traces together.
    pub(super) fn lost(&mut self) {
        let (lost, traces) = (self.lost, self.traces);
        let question = Question::new(LOSSES, "lost", "how many records were lost in all traces of this report");
        let faults = if lost > 0 { vec!["records were lost".to_owned()] } else { Vec::new() };
        self.ask(&question, &[], |_| {
            Ok(Answer::by(format!("{lost} in {traces} traces"), &faults).value("lost", lost).value("traces", traces))
        });
    }
}

/// The device files of GPUs that this process may open.
fn devices() -> Vec<File> {
    let files = std::fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_gpu = |path: &PathBuf| {
        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("nvidia"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    files.filter(is_gpu).filter_map(|path| File::open(path).ok()).collect()
}

impl Question {
    pub(super) fn new(topic: &'static str, name: &str, text: &str) -> Question {
        Question { topic, name: name.into(), text: text.into() }
    }
}
