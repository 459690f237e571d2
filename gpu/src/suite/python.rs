//! PyTorch: training, processes that end abnormally, and its own profiler before and after ours.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::bench::{Answer, Bench, Layout, Plan, Plugin, Question};
use crate::job::{Ended, How, Job};
use crate::trace::{Seen, Verdict};

const TOPIC: &str = "python";
/// Python's exit status after an exception.
const EXCEPTION: i32 = 1;

/// What a row requires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// Every NCCL kernel is there and matched.
    Matched,
    /// The same, or the other profiler got kernels and the trace says so.
    Beside,
    /// The other profiler has CUPTI, and the trace says so.
    Taken,
    /// Everything in our trace is right, PyTorch's profiler saw kernels while it had CUPTI, and we
    /// have CUPTI again afterwards.
    Lent,
    /// The same, but PyTorch is told to keep CUPTI: we do not get it back, and say so.
    Kept,
}

/// A row: its name, the arguments of `train.py`, how the profiler gets into its processes, how
/// they end, what is required, and a description.
type Asked = (&'static str, &'static [&'static str], Way, How, Demand, &'static str);

/// How the profiler gets into a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// NCCL loads the profiler.
    Plugin,
    /// CUDA loads it before that.
    Injected,
    /// NCCL loads it, and this variable is set.
    With(&'static str, &'static str),
}

const WELL: How = How::Status(0);

/// Rows that the short form leaves out.
const LONG: [&str; 10] = [
    "ddp-injected",
    "py-exception",
    "py-terminated",
    "py-fork-before",
    "profiler-before",
    "profiler-after",
    "profiler-returned",
    "profiler-kept",
    "profiler-daemon",
    "kineto",
];

const ROWS: [Asked; 16] = [
    ("ddp", &["--kind", "ddp"], Way::With("NCCLSCOPE_CAPTURE", "1"), WELL, Demand::Matched, "training with DDP"),
    (
        "py-graph",
        &["--kind", "graph"],
        Way::Plugin,
        WELL,
        Demand::Matched,
        "operations in a graph of PyTorch's, replayed",
    ),
    ("fsdp", &["--kind", "fsdp"], Way::Plugin, WELL, Demand::Matched, "training with FSDP"),
    (
        "ddp-injected",
        &["--kind", "ddp"],
        Way::Injected,
        WELL,
        Demand::Matched,
        "training with DDP, the profiler injected into cuInit",
    ),
    ("py-no-destroy", &["--exit", "return"], Way::Plugin, WELL, Demand::Matched, "Python ends with everything open"),
    ("py-at-once", &["--exit", "at-once"], Way::Plugin, WELL, Demand::Matched, "os._exit"),
    ("py-exception", &["--exit", "exception"], Way::Plugin, How::Status(EXCEPTION), Demand::Matched, "an exception"),
    ("py-terminated", &["--exit", "terminated"], Way::Plugin, How::Signal(libc::SIGTERM), Demand::Matched, "SIGTERM"),
    ("py-fork-before", &["--exit", "fork-before"], Way::Plugin, WELL, Demand::Matched, "os.fork before cuInit"),
    ("py-fork-after", &["--exit", "fork-after"], Way::Plugin, WELL, Demand::Matched, "os.fork after cuInit"),
    (
        "profiler-before",
        &["--profiler", "before"],
        Way::Plugin,
        WELL,
        Demand::Taken,
        "torch.profiler, started before ncclscope",
    ),
    (
        "profiler-after",
        &["--profiler", "after"],
        Way::Plugin,
        WELL,
        Demand::Beside,
        "torch.profiler, started while ncclscope has CUPTI",
    ),
    (
        "profiler-lent",
        &["--profiler", "lent"],
        Way::Plugin,
        WELL,
        Demand::Lent,
        "torch.profiler, to which ncclscope lends CUPTI",
    ),
    (
        "profiler-returned",
        &["--profiler", "lent"],
        Way::With("TEARDOWN_CUPTI", "1"),
        WELL,
        Demand::Lent,
        "the same, and PyTorch is told from the start to give it back",
    ),
    (
        "profiler-kept",
        &["--profiler", "lent"],
        Way::With("TEARDOWN_CUPTI", "0"),
        WELL,
        Demand::Kept,
        "the same, and PyTorch is told from the start to keep it",
    ),
    (
        "profiler-daemon",
        &["--kind", "ddp"],
        Way::With("KINETO_USE_DAEMON", "1"),
        WELL,
        Demand::Matched,
        "training with DDP, where a daemon may start torch.profiler",
    ),
];

pub(super) fn run(bench: &mut Bench) {
    for (name, arguments, way, must, demand, what) in ROWS {
        let text = format!("{what}: does it end as without the profiler, and is every kernel matched");
        bench.ask(&Question::new(TOPIC, name, &text), &[name], |bench| {
            left_out(bench, name)?;
            let plugin = if way == Way::Injected { Plugin::Injected } else { Plugin::Ours };
            let variable = if let Way::With(name, value) = way { Some((name, value)) } else { None };
            let ended = train(bench, name, bench.several(), plugin, variable, arguments)?;
            Ok(judge(bench, &ended, must, demand))
        });
    }
    let question = Question::new(TOPIC, "kineto", "what torch.profiler adds to a step of DDP, and what ncclscope adds");
    bench.ask(&question, &[], cost);
}

/// Reads PyTorch's gigabytes into the page cache while other rows are asked: the first process
/// that imports it may take longer than a job's limit.
pub(super) fn warm_up(bench: &Bench) {
    if bench.machine.torch.is_some() {
        let mut import = Command::new(&bench.suite.wanted.python);
        import.args(["-c", "import torch"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It ends by itself, and the rows show whether it succeeded.
        let _ = import.spawn();
    }
}

/// The answer to a row that is left out.
fn left_out(bench: &Bench, name: &str) -> Result<(), Answer> {
    let is_named = bench.is_named(name);
    let is_left_out = bench.is_short() && !is_named && LONG.contains(&name) && bench.machine.torch.is_some();
    if is_left_out { Err(Answer::not_run("left out by --quick")) } else { Ok(()) }
}

fn judge(bench: &mut Bench, ended: &Ended, must: How, demand: Demand) -> Answer {
    let seen = bench.read(ended);
    let verdict = Verdict::of(&seen, &[]);
    let mut faults = Vec::new();
    faults.extend(ended.how.iter().find(|how| **how != must).map(|how| format!("a process {how}; {}", ended.why())));
    let traces = verdict.traces;
    faults.extend((traces != ended.how.len()).then(|| format!("{traces} traces of {} processes", ended.how.len())));
    let child = ended.told.iter().flatten().filter_map(|told| told.figures.get("child"));
    faults.extend(child.filter(|status| **status != 0.0).map(|status| format!("a child ended with {status}")));
    let theirs = ended.figure("profiler_kernels");
    if matches!(demand, Demand::Lent | Demand::Kept) && theirs.unwrap_or(0.0) == 0.0 {
        faults.push("torch.profiler saw no kernel".into());
    }
    let again: Vec<usize> = seen.iter().filter_map(Seen::kernels_since_acquired).collect();
    let theirs = theirs.map(|count| format!("; torch.profiler saw {count}")).unwrap_or_default();
    let figure = format!("{} of {} kernels matched{theirs}", verdict.all_matched(), verdict.kernels);
    match demand {
        Demand::Matched | Demand::Beside => {
            // Kernels that the other profiler got are not in the trace.
            let is_told = demand == Demand::Beside && seen.iter().all(Seen::says_silent);
            faults.extend(verdict.missing().filter(|_| !is_told));
            let figure = match is_told {
                true => format!("{figure}, and the trace says that {} more went to another profiler", verdict.unseen),
                false => figure,
            };
            bench.judge(figure, &verdict, faults)
        }
        // Kernels that ran while CUPTI was lent are not in our trace. Those in it must be right,
        // and there must be some after that.
        Demand::Lent => {
            faults.splice(0..0, verdict.wrongs());
            if again.len() < seen.len() {
                faults.push(format!("CUPTI did not come back in {} processes", seen.len() - again.len()));
            }
            let silent = again.iter().filter(|kernels| **kernels == 0).count();
            faults
                .extend((silent > 0).then(|| format!("in {silent} processes no kernel came after it was taken again")));
            Answer::by(format!("{figure}; {} of them after CUPTI came back", again.iter().sum::<usize>()), &faults)
        }
        Demand::Kept => {
            faults.splice(0..0, verdict.wrongs());
            faults.splice(0..0, taken(&seen));
            Answer::by(format!("{figure}; CUPTI came back in {} of {} processes", again.len(), seen.len()), &faults)
        }
        Demand::Taken => {
            faults.splice(0..0, taken(&seen));
            Answer::by(figure, &faults)
        }
    }
}

/// The trace must say that there are no kernels, and why.
fn taken(seen: &[Seen]) -> Vec<String> {
    let says = |seen: &Seen| seen.notes.iter().any(|note| note.contains("no GPU kernels"));
    let silent = seen.iter().filter(|seen| !says(seen)).count();
    let mut faults = Vec::new();
    faults.extend(seen.is_empty().then(|| "there is no trace".to_owned()));
    faults.extend((silent > 0).then(|| format!("{silent} traces do not say that there are no kernels")));
    faults
}

/// Runs `train.py`, one process per rank.
fn train(
    bench: &mut Bench,
    name: &str,
    layout: Layout,
    plugin: Plugin,
    variable: Option<(&str, &str)>,
    arguments: &[&str],
) -> Result<Ended, Answer> {
    if bench.machine.torch.is_none() {
        return Err(Answer::not_run("needs PyTorch"));
    }
    let Some(programs) = bench.machine.python.clone() else {
        return Err(Answer::not_run("needs the folder python of the suite"));
    };
    let plan = Plan::new(name, "python", layout).plugin(plugin).set("NCCLSCOPE_FLUSH_PERIOD", "100");
    // PyTorch has loaded CUPTI into the process already, and a second copy cannot trace.
    let plan = plan.set("NCCLSCOPE_CUPTI", "auto").set("MASTER_ADDR", "127.0.0.1").set("PYTHONUNBUFFERED", "1");
    let plan = plan.set("PYTHONPATH", &module().unwrap_or_default().display().to_string());
    // Unless the row sets them, as PyTorch has them.
    let plan = ["TEARDOWN_CUPTI", "KINETO_USE_DAEMON"].iter().fold(plan, |plan, name| plan.set(name, ""));
    let plan = variable.into_iter().fold(plan, |plan, (name, value)| plan.set(name, value));
    let folder = bench.jobs_folder.join(name);
    let python = bench.suite.wanted.python.clone();
    let repeats = bench.repeats();
    let processes = bench.processes(&plan, |rank, _| {
        let mut command: Vec<OsString> = vec![python.clone().into(), programs.join("train.py").into()];
        command.extend(["--told".into(), folder.join(format!("told-{rank}.json")).into()]);
        command.extend(["--meeting".into(), folder.join("store").into()]);
        command.extend(["--steps".into(), repeats.to_string().into()]);
        command.extend(arguments.iter().map(Into::into));
        command
    });
    bench.start(&Job { name: name.into(), processes, limit: bench.limit() }).map_err(Answer::not_ok)
}

/// The folder of our Python module: in the bundle beside this program, or in the repository.
fn module() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(5).map(|above| above.join("python"));
    folders.into_iter().find(|folder| folder.join("ncclscope/__init__.py").is_file())
}

/// How many steps are timed.
const TIMED_STEPS: &str = "200";

/// The duration of a DDP step with nothing, with torch.profiler, and with our profiler.
fn cost(bench: &mut Bench) -> Result<Answer, Answer> {
    left_out(bench, "kineto")?;
    // Ranks that take turns on one GPU would time the turns.
    let layout = match bench.several() {
        Layout::Hosts => Layout::Alone,
        several => several,
    };
    let mut step = |name: &str, plugin, arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--timed", "--steps", TIMED_STEPS]);
        let ended = train(bench, name, layout, plugin, None, &arguments)?;
        let figure = ended.figure("step_us").filter(|_| ended.is_well());
        figure.ok_or_else(|| Answer::not_ok(ended.why()))
    };
    let mut best = [f64::MAX; 3];
    // In both orders, so that drift affects all alike.
    for order in [[0, 1, 2], [2, 1, 0]] {
        for which in order {
            let (name, plugin, arguments): (_, _, &[&str]) = match which {
                0 => ("step-none", Plugin::None, &[]),
                1 => ("step-kineto", Plugin::None, &["--profiler", "whole"]),
                _ => ("step-ours", Plugin::Ours, &[]),
            };
            best[which] = f64::min(best[which], step(name, plugin, arguments)?);
        }
    }
    let [none, kineto, ours] = best;
    let more = |with: f64| format!("{:+.1} us ({:+.1} %)", with - none, 100.0 * (with - none) / none);
    Ok(Answer::ok(format!(
        "{}: torch.profiler {}, ours {}; a step takes {none:.1} us",
        if layout == Layout::Alone { "one rank" } else { "several ranks" },
        more(kineto),
        more(ours)
    ))
    .value("none_us", none)
    .value("kineto_us", kineto)
    .value("ours_us", ours))
}
