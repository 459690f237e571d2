//! What CUPTI and the GPU's timer do, asked without NCCL and without the profiler.

use super::bench::{Answer, Bench, Layout, Plan, Plugin, Question};
use crate::job::Ended;

const TOPIC: &str = "questions";

/// A question: its name, the workload, the text, and how it is answered.
type Asked = (&'static str, &'static str, &'static str, fn(&Ended) -> Answer);

const QUESTIONS: [Asked; 5] = [
    ("globaltimer", "timer", "how finely does %globaltimer count", timer),
    (
        "correlation",
        "correlation",
        "is the correlation id of the driver's callback that of the kernel's record, with no API kind on",
        correlation,
    ),
    ("external-all", "external", "do external ids come, with all calls of the driver recorded", external_all),
    ("external-single", "external-single", "do external ids come, with the launch alone recorded", external_single),
    ("graph-ids", "graph-ids", "do ids of nodes lead from a kernel back to its capture", graph_ids),
];

pub(super) fn run(bench: &mut Bench) {
    for (name, workload, text, answer) in QUESTIONS {
        bench.ask(&Question::new(TOPIC, name, text), &[name], |bench| {
            if let Some(why) = bench.no_cupti().filter(|_| workload != "timer") {
                return Answer::not_run(why);
            }
            let plan = Plan::new(name, workload, Layout::Alone).plugin(Plugin::None).with("repeats", 100);
            match bench.run(&plan) {
                Ok(ended) if ended.is_well() => answer(&ended),
                Ok(ended) => Answer::not_ok(ended.why()),
                Err(why) => Answer::not_ok(why),
            }
        });
    }
}

fn figure(ended: &Ended, name: &str) -> f64 {
    ended.figure(name).unwrap_or(0.0)
}

fn word(ended: &Ended, name: &str) -> Option<String> {
    ended.told.first()?.as_ref()?.words.get(name).cloned()
}

fn timer(ended: &Ended) -> Answer {
    let [readings, changes, least, median, divisor, backwards] =
        ["readings", "changes", "least_step_ns", "median_step_ns", "divisor_ns", "backwards"]
            .map(|name| figure(ended, name));
    let mut faults = Vec::new();
    faults.extend((changes == 0.0).then(|| "it did not change".to_owned()));
    faults.extend((backwards > 0.0).then(|| format!("it went back {backwards} times")));
    let figure =
        format!("steps of {least} ns at least, {median} ns at the median; all readings are multiples of {divisor} ns");
    Answer::by(format!("{figure} ({readings} readings)"), &faults)
        .value("least_step_ns", least)
        .value("divisor_ns", divisor)
}

fn correlation(ended: &Ended) -> Answer {
    let [launches, records, same, in_order] =
        ["launches", "records", "same", "in_order"].map(|name| figure(ended, name));
    let is_good = launches > 0.0 && same == launches && records == launches;
    let faults = (!is_good).then(|| "the profiler takes this for granted".to_owned());
    let order = if in_order == 1.0 { "in the order of the launches" } else { "in another order than the launches" };
    let figure = format!("{same} of {launches} launches; {records} records, {order}");
    Answer::by(figure, faults.as_slice()).value("launches", launches).value("same", same)
}

fn external_all(ended: &Ended) -> Answer {
    let [launches, ids, right] = ["launches", "ids", "right"].map(|name| figure(ended, name));
    let faults = (launches == 0.0 || right < launches)
        .then(|| "the profiler takes this for granted where callbacks cannot be had".to_owned());
    Answer::by(format!("{right} of {launches} launches have theirs; {ids} ids came"), faults.as_slice())
        .value("launches", launches)
        .value("right", right)
}

fn external_single(ended: &Ended) -> Answer {
    if let Some(why) = word(ended, "absent") {
        return Answer::not_run(why);
    }
    let [launches, ids, right] = ["launches", "ids", "right"].map(|name| figure(ended, name));
    // Either answer is one; ids that are wrong are none.
    let faults = (launches == 0.0 || ids > right).then(|| "some are not those that were pushed".to_owned());
    Answer::by(format!("{right} of {launches} launches have theirs; {ids} ids came"), faults.as_slice())
        .value("launches", launches)
        .value("right", right)
}

fn graph_ids(ended: &Ended) -> Answer {
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    for what in ["captured", "cloned", "updated"] {
        if let Some(why) = word(ended, what) {
            parts.push(format!("{what}: not tried ({why})"));
            continue;
        }
        let [kernels, nodes, followed] =
            ["kernels", "nodes", "followed"].map(|name| figure(ended, &format!("{what}_{name}")));
        parts.push(format!("{what}: {followed} of {kernels} kernels, {nodes} nodes"));
        faults.extend((kernels == 0.0 || followed < kernels).then(|| format!("{what}: the trail is lost")));
    }
    Answer::by(parts.join("; "), &faults)
}
