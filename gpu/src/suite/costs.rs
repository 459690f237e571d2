//! The profiler's cost: A and B are run in the order A, B, B, A, each in its own process, so that
//! drift affects both alike.

use std::collections::BTreeMap;

use super::bench::{Answer, Bench, Layout, Plan, Plugin, Question};
use crate::job::{Ended, median};

const TOPIC: &str = "costs";

/// A case to compare with no plugin: a name, the plugin, the settings, and a description.
type Compared = (&'static str, Plugin, &'static [(&'static str, &'static str)], &'static str);

const COMPARED: [Compared; 5] = [
    ("empty", Plugin::Empty, &[], "a plugin that does nothing"),
    ("light", Plugin::Ours, &[("NCCLSCOPE_PRESET", "light")], "preset light"),
    ("standard", Plugin::Ours, &[("NCCLSCOPE_PRESET", "standard")], "preset standard"),
    ("full", Plugin::Ours, &[("NCCLSCOPE_PRESET", "full"), ("NCCL_ALLGATHERV_ENABLE", "0")], "preset full"),
    (
        "no-cupti",
        Plugin::Ours,
        &[("NCCLSCOPE_PRESET", "standard"), ("NCCLSCOPE_CUPTI", "0")],
        "preset standard without CUPTI",
    ),
];

pub(super) fn run(bench: &mut Bench) {
    let cycles = bench.suite.cost_cycles.unwrap_or(if bench.is_short() { 1 } else { 5 });
    let batches = if bench.is_short() { 10 } else { 30 };
    let mut memory: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
    for (name, plugin, settings, what) in COMPARED {
        let text = format!(
            "what {what} costs compared with no plugin, one rank: a launch on its thread, and with its execution"
        );
        bench.ask(&Question::new(TOPIC, name, &text), &[], |bench| {
            if plugin == Plugin::Empty && bench.machine.empty.is_none() {
                return Err(Answer::not_run("needs libncclscope_empty.so beside ncclscope-gpu"));
            }
            let plan = |cycle: u32, order: usize, is_b: bool| {
                let which = if is_b { name } else { "none" };
                let plan = Plan::new(&format!("cost-{name}-{cycle}-{order}-{which}"), "cost", Layout::Alone);
                let plan = plan.with("repeats", batches).plugin(if is_b { plugin } else { Plugin::None });
                settings.iter().filter(|_| is_b).fold(plan, |plan, (name, value)| plan.set(name, value))
            };
            let runs = abba(bench, cycles, plan)?;
            memory.insert(name, runs.each_ref().map(|runs| peaks(runs)));
            Ok(compare(&runs))
        });
    }
    application(bench, cycles);
    let question =
        Question::new(TOPIC, "memory", "how much more memory a process has at its peak with preset standard");
    bench.ask(&question, &[], |_| {
        let Some([mut a, mut b]) = memory.get("standard").cloned().filter(|it| it.iter().all(|it| !it.is_empty()))
        else {
            return Err(Answer::not_run("its cost was not measured"));
        };
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let more = mib(median(&mut b) - median(&mut a));
        Ok(Answer::ok(format!("{more:+.1} MiB ({:.0} MiB without)", mib(median(&mut a)))).value("mib", more))
    });
}

/// The additional cost of the application's own kernels where the profiler is injected: alone, and
/// as nodes of a graph.
fn application(bench: &mut Bench, cycles: u32) {
    let text = "how much more a launch of the application's own kernel costs with the profiler injected, and a node of a graph of 1000";
    bench.ask(&Question::new(TOPIC, "application", text), &[], |bench| {
        bench.needs_cupti()?;
        let repeats = if bench.is_short() { 10 } else { 100 };
        let plan = |cycle: u32, order: usize, is_b: bool| {
            let which = if is_b { "ours" } else { "none" };
            let name = format!("cost-application-{cycle}-{order}-{which}");
            let plan = Plan::new(&name, "kernel-cost", Layout::Alone).with("repeats", repeats);
            plan.plugin(if is_b { Plugin::Injected } else { Plugin::None })
        };
        let runs = abba(bench, cycles, plan)?;
        let part = |name: &str, what: &str| {
            let (more, text) = difference(&medians(&runs[0], name), &medians(&runs[1], name));
            (more, format!("{what} {text}"))
        };
        let (launch, launch_text) = part("eager_launch_ns", "launch");
        let (whole, whole_text) = part("eager_whole_ns", "with its execution");
        let (node, node_text) = part("graph_whole_ns", "each node of a graph");
        Ok(Answer::ok(format!("{launch_text}; {whole_text}; {node_text}"))
            .value("launch_ns", launch)
            .value("whole_ns", whole)
            .value("node_ns", node))
    });
}

/// Runs A and B by turns, and forgets their traces: losses are counted, and the traces are large
/// and all alike.
fn abba(bench: &mut Bench, cycles: u32, plan: impl Fn(u32, usize, bool) -> Plan) -> Result<[Vec<Ended>; 2], Answer> {
    let mut runs: [Vec<Ended>; 2] = Default::default();
    for cycle in 0..cycles {
        for (order, is_b) in [false, true, true, false].into_iter().enumerate() {
            let ended = bench.done(&plan(cycle, order, is_b))?;
            drop(bench.read(&ended));
            ended.traces.iter().for_each(|trace| drop(std::fs::remove_file(trace)));
            runs[usize::from(is_b)].push(ended);
        }
    }
    Ok(runs)
}

/// The median of this figure in each process.
fn medians(runs: &[Ended], name: &str) -> Vec<f64> {
    runs.iter().filter_map(|ended| ended.median(name)).collect()
}

/// The most memory that the first rank of each run had.
fn peaks(runs: &[Ended]) -> Vec<f64> {
    let told = runs.iter().filter_map(|ended| ended.told.first()?.as_ref());
    told.filter_map(|told| told.figures.get("memory_peak").copied()).collect()
}

fn compare([a, b]: &[Vec<Ended>; 2]) -> Answer {
    let of = |name: &str| [medians(a, name), medians(b, name)];
    let ([launch_a, launch_b], [whole_a, whole_b]) = (of("launch_ns"), of("whole_ns"));
    if launch_a.is_empty() || launch_b.is_empty() {
        return Answer::not_ok("nothing was measured");
    }
    let (launch, launch_text) = difference(&launch_a, &launch_b);
    let (whole, whole_text) = difference(&whole_a, &whole_b);
    let text = format!("launch {launch_text}; with its execution {whole_text}; {} processes each", launch_a.len());
    Answer::ok(text).value("launch_ns", launch).value("whole_ns", whole)
}

/// How far the median of B is above that of A, in ns; and the same in words with the spread of
/// both.
fn difference(a: &[f64], b: &[f64]) -> (f64, String) {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    let (middle_a, middle_b) = (median(&mut a), median(&mut b));
    let more = middle_b - middle_a;
    // They are sorted already.
    let spread = |it: &[f64]| match (it.first(), it.last()) {
        (Some(least), Some(most)) => format!("{:.2} to {:.2}", least / 1000.0, most / 1000.0),
        _ => String::new(),
    };
    let percent = 100.0 * more / middle_a.max(f64::MIN_POSITIVE);
    (more, format!("{:+.2} us ({percent:+.1} %; {} against {} us)", more / 1000.0, spread(&b), spread(&a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_that_of_medians_with_both_spreads() {
        let (more, text) = difference(&[1000.0, 9000.0, 2000.0], &[2500.0, 2600.0, 2400.0]);
        assert_eq!(more, 500.0);
        assert_eq!(text, "+0.50 us (+25.0 %; 2.40 to 2.60 against 1.00 to 9.00 us)");
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
