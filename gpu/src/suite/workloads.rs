//! Each workload with the profiler: every NCCL kernel must be matched, and none wrongly.

use super::bench::{Answer, Bench, Layout, Plan, Plugin, Question};
use crate::trace::Verdict;

const TOPIC: &str = "workloads";
/// The first release in which NCCL allows several ranks on a GPU.
const MULTI_RANK: u32 = 23_000;

pub(super) fn run(bench: &mut Bench) {
    let several = bench.several();
    let repeats = bench.repeats();
    let most = if bench.is_short() { 1 << 20 } else { 16 << 20 };
    let plan = |name: &str, workload, layout| Plan::new(name, workload, layout).with("repeats", repeats);
    let all = |name: &str, layout| plan(name, "collectives", layout).with("bytes", most);
    let jobs = [
        (all("collectives", several), "every collective, send and receive, from 4 B up"),
        (all("alone", Layout::Alone), "one rank that sends to itself"),
        (all("shared", Layout::Shared), "two ranks on one GPU of one host"),
        (plan("groups", "groups", several), "groups of several operations"),
        (plan("communicators", "communicators", several), "two communicators on two streams"),
        (plan("graphs", "graphs", several), "a graph, replayed between eager work"),
        (
            plan("graphs-channels", "graphs", several).full().set("NCCLSCOPE_CAPTURE", "1"),
            "the same with the GPU's time of channels",
        ),
        (plan("overlap", "overlap", several), "compute beside communication"),
        (all("injected", several).plugin(Plugin::Injected), "every operation, the profiler injected into cuInit"),
        (plan("attach-late", "attach-late", several), "NCCL, and ncclscope with it, starts while a kernel runs"),
        (
            plan("injected-graphs", "graphs", several).plugin(Plugin::Injected),
            "graphs, the profiler injected into cuInit",
        ),
    ];
    for (plan, what) in jobs {
        let text = format!("{what}: how many of NCCL's kernels are matched, and is any matched wrongly");
        let question = Question::new(TOPIC, &plan.name, &text);
        bench.ask(&question, &[&plan.name], |bench| {
            if plan.layout == Layout::Shared && bench.nccl < MULTI_RANK {
                return Err(Answer::not_run("needs NCCL 2.30 (NCCL_MULTI_RANK_GPU_ENABLE)"));
            }
            matched(bench, &plan)
        });
    }
    lent(bench);
    second(bench);
    kernels(bench);
    capture(bench);
    if bench.suite.hang {
        let question = Question::new(TOPIC, "hang", "a job that never ends");
        bench.ask(&question, &["hang"], |bench| matched(bench, &Plan::new("hang", "hang", Layout::Alone)));
    }
}

/// The requirement for every workload.
fn matched(bench: &mut Bench, plan: &Plan) -> Result<Answer, Answer> {
    bench.needs_cupti()?;
    let (ended, seen) = bench.watch(plan)?;
    let verdict = Verdict::of(&seen, &ended.told);
    let mut faults: Vec<String> = verdict.missing().into_iter().collect();
    let spins: u64 = ended.told.iter().flatten().map(|told| told.spins).sum();
    if spins != verdict.application as u64 && spins > 0 {
        faults.push(format!("{} of the application's {spins} kernels are in the traces", verdict.application));
    }
    let beside = match spins {
        0 => String::new(),
        _ => format!("; {} of {spins} kernels of the application ran beside one of NCCL's", verdict.beside),
    };
    let figure = format!(
        "{} of {} matched ({}), {} checked, {} wrong{beside}",
        verdict.all_matched(),
        verdict.kernels,
        verdict.methods(),
        verdict.right + verdict.wrong,
        verdict.wrong
    );
    Ok(bench.judge(figure, &verdict, faults).value("verdict", serde_json::to_value(&verdict).unwrap_or_default()))
}

/// CUPTI is lent in the middle, and taken back.
fn lent(bench: &mut Bench) {
    let question = Question::new(
        TOPIC,
        "lent",
        "CUPTI is released and taken again: are all kernels before and after matched, and none in between",
    );
    bench.ask(&question, &["lent"], |bench| {
        bench.needs_cupti()?;
        let plan = Plan::new("lent", "lend", bench.several()).with("repeats", bench.repeats());
        let (ended, seen) = bench.watch(&plan)?;
        let verdict = Verdict::of(&seen, &ended.told);
        let mut faults = Vec::new();
        for call in ["release", "acquire"] {
            let answers = ended.told.iter().flatten().filter_map(|told| told.figures.get(call));
            faults.extend(answers.filter(|it| **it != 0.0).map(|it| format!("ncclscope_{call} answered {it}")));
        }
        let asked = ended.told.iter().flatten().flat_map(|told| &told.asked).flatten().count();
        let figure = format!(
            "{} of {} matched, {} wrong; {asked} groups were asked for while CUPTI was ours",
            verdict.all_matched(),
            verdict.kernels,
            verdict.wrong
        );
        Ok(bench.judge(figure, &verdict, faults))
    });
}

/// Two NCCL libraries in one process.
fn second(bench: &mut Bench) {
    let text =
        "two libnccl in one process, one after the other: how many kernels are matched, and is any matched wrongly";
    bench.ask(&Question::new(TOPIC, "second-nccl", text), &["second-nccl"], |bench| {
        if bench.is_emulated() {
            return Err(Answer::not_run("emulated GPUs have one libnccl"));
        }
        let plan = Plan::new("second-nccl", "second-nccl", bench.several()).with("repeats", bench.repeats());
        matched(bench, &plan)
    });
}

/// A program without NCCL, recorded from `cuInit` on.
fn kernels(bench: &mut Bench) {
    let question = Question::new(
        TOPIC,
        "injected-kernels",
        "a program without NCCL, the profiler injected: how many kernels are recorded",
    );
    bench.ask(&question, &["injected-kernels"], |bench| {
        bench.needs_cupti()?;
        let plan =
            Plan::new("injected-kernels", "kernels", Layout::Alone).plugin(Plugin::Injected).with("repeats", 100);
        let (ended, seen) = bench.watch(&plan)?;
        let spins: u64 = ended.told.iter().flatten().map(|told| told.spins).sum();
        let verdict = Verdict::of(&seen, &ended.told);
        let faults = (verdict.application as u64 != spins).then(|| "some are missing".to_owned());
        Ok(Answer::by(format!("{} of {spins}", verdict.application), faults.as_slice()))
    });
}

/// The profiler's raw input: small captures are worth keeping as tests for machines without a GPU.
fn capture(bench: &mut Bench) {
    let question = Question::new(TOPIC, "capture", "a raw capture of a small job, for replay elsewhere");
    bench.ask(&question, &["capture"], |bench| {
        let plan = Plan::new("capture", "groups", bench.several()).with("repeats", 3).set("NCCLSCOPE_CAPTURE", "1");
        let (ended, _) = bench.watch(&plan)?;
        if ended.captures.is_empty() {
            return Err(Answer::not_run("this build of the profiler writes none"));
        }
        let bytes: u64 = ended.captures.iter().filter_map(|path| path.metadata().ok()).map(|it| it.len()).sum();
        Ok(Answer::ok(format!("{bytes} B in {} files", ended.captures.len())).value("bytes", bytes))
    });
}
