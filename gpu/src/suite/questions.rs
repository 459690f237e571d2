//! What CUPTI and the GPU's timer do, without NCCL and without the profiler.

use super::bench::{Answer, Bench, Layout, Plan, Plugin, Question};
use crate::job::Ended;
use crate::workload::probes::LEVELS;

const TOPIC: &str = "questions";

/// The number of kernels in the graph that the row `graph-ids` replays.
const GRAPH_NODES: u64 = 2;
const GRAPH_LAUNCHES: u64 = REPEATS as u64;
/// How often a workload repeats its work.
const REPEATS: u32 = 100;

/// A question: its name, which is also the workload's, the text, and the function that answers it.
type Asked = (&'static str, &'static str, fn(&Ended) -> Answer);

const QUESTIONS: [Asked; 11] = [
    (
        "launches",
        "do the driver's callbacks and records have the same correlation id, whichever function launches",
        launches,
    ),
    (
        "graph-ids",
        "do node ids lead from a kernel back to its own capture, through clones and updates of the graph",
        graph_ids,
    ),
    ("clock-raw", "how far do CUPTI's kernel times drift from the GPU's own timer, second by second", clock),
    ("clock-given", "which clock do kernel times have if CUPTI is given a clock after a context exists", clock),
    ("late", "CUPTI is asked for kernels while one runs: what waits for it, and is it recorded", late),
    ("hung", "CUPTI is flushed and released while a kernel runs: what waits for it, and which records come", hung),
    (
        "pool",
        "does CUPTI, with little memory of its own, lose the times of graph kernels when there are very many",
        pool,
    ),
    ("globaltimer", "what is the resolution of %globaltimer", timer),
    (
        "correlation",
        "do the driver's callback and the kernel's record have the same correlation id, with no API kind enabled",
        correlation,
    ),
    ("external-all", "are external ids delivered if all driver calls are recorded", external_all),
    ("external-single", "are external ids delivered if only launches are recorded", external_single),
];

pub(super) fn run(bench: &mut Bench) {
    for (name, text, answer) in QUESTIONS {
        bench.ask(&Question::new(TOPIC, name, text), &[name], |bench| {
            if name != "globaltimer" {
                bench.needs_cupti()?;
            }
            Ok(answer(&bench.done(&plan(bench, name))?))
        });
    }
    other(bench);
    kinds(bench);
}

/// The same with the second libcupti that was found, which is newer or older than the one used
/// otherwise.
fn other(bench: &mut Bench) {
    let text = "what the rows launches and pool say under another libcupti, on the same driver";
    bench.ask(&Question::new(TOPIC, "other-cupti", text), &["other-launches", "other-pool"], |bench| {
        let Some(path) = bench.machine.cupti.get(1).map(|found| found.path.display().to_string()) else {
            return Err(Answer::not_run("needs a second libcupti"));
        };
        let mut answers = Vec::new();
        for (job, name, answer) in
            [("other-launches", "launches", launches as fn(&Ended) -> Answer), ("other-pool", "pool", pool)]
        {
            let plan = Plan { name: job.into(), cupti: 1, ..plan(bench, name) };
            answers.push(answer(&bench.done(&plan)?));
        }
        let figures: Vec<String> = answers.iter().map(|answer| answer.figure.clone()).collect();
        let faults: Vec<String> = answers.into_iter().map(|answer| answer.why).filter(|why| !why.is_empty()).collect();
        Ok(Answer::by(format!("{path}: {}", figures.join("; ")), &faults))
    });
}

fn plan(bench: &Bench, name: &'static str) -> Plan {
    let workload = match name {
        "globaltimer" => "timer",
        "external-all" => "external",
        name => name,
    };
    // Each has a thousand kernels.
    let launches = match (bench.is_emulated(), bench.is_short()) {
        (true, _) => 5,
        (false, true) => 1_200,
        (false, false) => 30_000,
    };
    let seconds = if bench.is_short() { 10.0 } else { 30.0 };
    let seconds = bench.suite.clock_seconds.iter().copied().reduce(f64::max).map_or(seconds, |most| most + 1.5);
    let plan = Plan::new(name, workload, Layout::Alone).plugin(Plugin::None);
    match name {
        // As many as there is time for: the job ends well before it would be killed.
        "pool" => plan.with("repeats", launches).with("seconds", bench.suite.job_limit / 2),
        "clock-raw" => plan.with("seconds", seconds),
        "clock-given" => plan.with("seconds", 2.5),
        _ => plan.with("repeats", REPEATS),
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
    // Either result is an answer, but wrong ids are not.
    let faults = (launches == 0.0 || ids > right).then(|| "some are not those that were pushed".to_owned());
    Answer::by(format!("{right} of {launches} launches have theirs; {ids} ids came"), faults.as_slice())
        .value("launches", launches)
        .value("right", right)
}

fn graph_ids(ended: &Ended) -> Answer {
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    let of = |what: &str| ["kernels", "nodes", "followed"].map(|name| figure(ended, &format!("{what}_{name}")) as u64);
    for what in ["captured", "cloned", "child", "moved", "into"] {
        if let Some(why) = word(ended, what) {
            parts.push(format!("{what}: not tried ({why})"));
            continue;
        }
        let [kernels, nodes, followed] = of(what);
        parts.push(format!("{what}: {followed} of {kernels} kernels lead to their own of {nodes} nodes"));
        if nodes != GRAPH_NODES || kernels != GRAPH_NODES * GRAPH_LAUNCHES || followed < kernels {
            let trail = word(ended, &format!("{what}_trail")).unwrap_or_default();
            faults.push(format!("{what}: the trail is lost: {trail}"));
        }
    }
    if let Some(why) = word(ended, "updated") {
        parts.push(format!("updated: not tried ({why})"));
        return Answer::by(parts.join("; "), &faults);
    }
    let ([kernels, _, first], [_, _, second]) = (of("updated"), of("renewed"));
    let is_told = figure(ended, "updated_nodes") > 0.0;
    let to = match (first == kernels, second == kernels) {
        (true, false) if !is_told => "lead to the first capture, and CUPTI reports no updates",
        (false, true) if is_told => "lead to the capture that they were updated to, as CUPTI reports",
        _ => {
            faults.push("updated: the trail is lost".into());
            "lead nowhere"
        }
    };
    parts.push(format!("updated: {kernels} kernels {to}"));
    if kernels != GRAPH_NODES * GRAPH_LAUNCHES {
        faults.push("updated: kernels are missing".into());
    }
    if figure(ended, "update_calls") != 1.0 {
        faults.push("the update was not reported, and the profiler takes for granted that it is".into());
    }
    Answer::by(parts.join("; "), &faults)
}

/// The functions that launch kernels or graphs.
const FUNCTIONS: [(&str, &str); 4] = [
    ("kernel", "cuLaunchKernel"),
    ("kernel_ex", "cuLaunchKernelEx"),
    ("graph", "cuGraphLaunch"),
    ("runtime_graph", "cudaGraphLaunch"),
];

fn launches(ended: &Ended) -> Answer {
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    for (name, function) in FUNCTIONS {
        if let Some(why) = word(ended, name) {
            parts.push(format!("{function}: unasked ({why})"));
            continue;
        }
        let [expected, records, known, callbacks] =
            ["expected", "records", "known", "callbacks"].map(|what| figure(ended, &format!("{name}_{what}")));
        let calls = word(ended, &format!("{name}_calls")).unwrap_or_default();
        parts.push(format!("{function}: {known} of {records} records known by {callbacks} callbacks ({calls})"));
        if records == 0.0 || records != expected || known != records {
            faults.push(format!("{function}: {records} of {expected} records, {known} with the id of a callback"));
        }
    }
    Answer::by(parts.join("; "), &faults)
}

fn clock(ended: &Ended) -> Answer {
    let [launches, matched, on_wall, says_wall] =
        ["launches", "matched", "kernels_on_wall_clock", "cupti_on_wall_clock"].map(|name| figure(ended, name));
    let series = |name: &str| -> Vec<f64> {
        ended.told.iter().flatten().find_map(|told| told.series.get(name).cloned()).unwrap_or_default()
    };
    let (least, most) = (series("begin_least_ns"), series("begin_most_ns"));
    let (end_least, end_most) = (series("end_least_ns"), series("end_most_ns"));
    // How the earliest time of a second differs from that of the next: a launch may be late, but
    // never early.
    let jumps = least.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    let jump = jumps.fold(0.0, f64::max);
    let wide = |low: &[f64], high: &[f64]| low.iter().zip(high).map(|(low, high)| high - low).fold(0.0, f64::max);
    let name = |is_wall: f64| if is_wall == 1.0 { "the wall clock" } else { "CLOCK_BOOTTIME" };
    let mut faults = Vec::new();
    faults.extend(
        (matched == 0.0 || matched < launches).then(|| format!("{matched} of {launches} kernels have records")),
    );
    let figure = format!(
        "kernels have {}, CUPTI says {}; {} seconds, at most {:.2} us from one to the next; within a second begins {:.2} us, ends {:.2} us; {matched} kernels",
        name(on_wall),
        name(says_wall),
        least.len(),
        jump / 1e3,
        wide(&least, &most) / 1e3,
        wide(&end_least, &end_most) / 1e3,
    );
    Answer::by(figure, &faults)
        .value("jump_us", jump / 1e3)
        .value("begin_least_ns", least)
        .value("begin_most_ns", most)
        .value("end_least_ns", end_least)
        .value("end_most_ns", end_most)
}

/// Whether what was asked for took, in ms, as long as the kernel that ran meanwhile, within a
/// thousandth of it.
fn has_waited(asked: f64, kernel: f64) -> bool {
    asked >= 0.999 * kernel
}

fn late(ended: &Ended) -> Answer {
    let [subscribe, enable, launch, asked, kernel, records] =
        ["subscribe_ms", "enable_ms", "launch_ms", "asked_ms", "kernel_ms", "records"].map(|name| figure(ended, name));
    let waited = has_waited(asked, kernel);
    let faults = (records < 10.0).then(|| "launches after it are missing".to_owned());
    let figure = format!(
        "subscribing {subscribe:.1} ms, enabling {enable:.1} ms, ten launches {launch:.1} ms; {} the kernel of {kernel:.0} ms; {records} of 11 recorded",
        if waited { "waited for" } else { "none waited for" },
    );
    Answer::by(figure, faults.as_slice()).value("subscribe_ms", subscribe).value("enable_ms", enable)
}

fn hung(ended: &Ended) -> Answer {
    let [flush, came, disable, force, unsubscribe, asked, kernel, forced, unfinished] = [
        "flush_ms",
        "came",
        "disable_ms",
        "force_ms",
        "unsubscribe_ms",
        "asked_ms",
        "kernel_ms",
        "forced",
        "unfinished",
    ]
    .map(|name| figure(ended, name));
    // Whatever the answer is, the profiler must take it into account.
    let text = format!(
        "flushing {flush:.1} ms ({came} of 10 came), disabling {disable:.1} ms, by force {force:.1} ms ({forced} came, {unfinished} without an end), \
         unsubscribing {unsubscribe:.1} ms; {} the kernel of {kernel:.0} ms",
        if has_waited(asked, kernel) { "waited for" } else { "none waited for" },
    );
    Answer::ok(text)
        .value("flush_ms", flush)
        .value("disable_ms", disable)
        .value("force_ms", force)
        .value("unsubscribe_ms", unsubscribe)
}

fn pool(ended: &Ended) -> Answer {
    let [expected, records, zero, reversed] =
        ["expected", "records", "zero", "reversed"].map(|name| figure(ended, name));
    let mut faults = Vec::new();
    faults.extend((zero + reversed > 0.0).then(|| {
        format!("{zero} have no times, {reversed} end before they begin, from kernel {} on", figure(ended, "first_bad"))
    }));
    faults.extend((records != expected).then(|| format!("{} records are missing", expected - records)));
    let memory = ended.figure("memory").map_or("memory unasked".into(), |bytes| {
        format!("{:.1} MiB of the GPU's memory taken meanwhile", bytes / f64::from(1 << 20))
    });
    let limit = word(ended, "limit").map_or(String::new(), |why| format!("; the limit was refused: {why}"));
    Answer::by(format!("{records} of {expected} kernels recorded; {memory}{limit}"), &faults)
}

/// How much each further request to CUPTI adds to the cost of a launch: up and down again, one
/// process each.
fn kinds(bench: &mut Bench) {
    let text = "what a launch costs as more and more of CUPTI is enabled: on its thread, with its execution, and per node of a graph of 1000";
    bench.ask(&Question::new(TOPIC, "kinds", text), &[], |bench| {
        bench.needs_cupti()?;
        let mut figures: [[Vec<f64>; 3]; LEVELS.len()] = Default::default();
        let up = 0..LEVELS.len();
        for (order, level) in up.clone().chain(up.rev()).enumerate() {
            let plan = Plan::new(&format!("kinds-{order}-{level}"), "kinds", Layout::Alone).plugin(Plugin::None);
            let repeats = if bench.is_emulated() { 2 } else { 200 };
            let ended = bench.done(&plan.with("level", level).with("repeats", repeats))?;
            let names = ["eager_launch_ns", "eager_whole_ns", "graph_whole_ns"];
            for (figures, name) in figures[level].iter_mut().zip(names) {
                figures.extend(ended.median(name));
            }
        }
        let best = figures.map(|each| each.map(|values| values.into_iter().fold(f64::MAX, f64::min)));
        let parts = LEVELS
            .iter()
            .zip(best)
            .map(|(what, [launch, whole, node])| format!("{what}: {launch:.0}, {whole:.0}, {node:.0} ns"));
        let values: Vec<Vec<f64>> = best.iter().map(|each| each.to_vec()).collect();
        Ok(Answer::ok(parts.collect::<Vec<_>>().join("; ")).value("launch_whole_node_ns", values))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;
    use crate::workload::Told;

    fn ended(figures: &[(&str, f64)]) -> Ended {
        let mut told = Told::default();
        told.figures.extend(figures.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        Ended { told: vec![Some(told)], ..Ended::default() }
    }

    #[test]
    fn a_function_whose_records_no_callback_knows_is_named_and_one_that_is_not_there_is_unasked() {
        let of = |name: &str, known: f64| {
            ["expected", "records", "callbacks"]
                .map(|what| (format!("{name}_{what}"), 20.0))
                .into_iter()
                .chain([(format!("{name}_known"), known)])
        };
        let answer = |known: f64| {
            let mut ended = ended(&[]);
            let told = ended.told[0].as_mut().unwrap();
            told.figures.extend(of("kernel", 20.0).chain(of("graph", known)));
            for name in ["kernel_ex", "runtime_graph"] {
                told.words.insert(name.into(), "it is not there".into());
            }
            launches(&ended)
        };
        assert!(
            answer(20.0).state == State::Ok
                && answer(20.0).figure.contains("cudaGraphLaunch: unasked (it is not there)")
        );
        assert!(
            answer(19.0).state == State::NotOk && answer(19.0).why.starts_with("cuGraphLaunch: "),
            "{:?}",
            answer(19.0)
        );
    }

    #[test]
    fn a_pool_that_spoils_times_is_reported() {
        let good = [("expected", 5000.0), ("records", 5000.0)];
        assert_eq!(pool(&ended(&good)).state, State::Ok);
        for bad in [("zero", 1.0), ("reversed", 1.0), ("records", 4999.0)] {
            assert_eq!(pool(&ended(&[&good[..], &[bad]].concat())).state, State::NotOk, "{bad:?}");
        }
    }

    #[test]
    fn ids_of_nodes_are_good_only_where_each_kernel_leads_to_its_own() {
        let good: &[(&str, f64)] = &[
            ("captured_kernels", 200.0),
            ("captured_nodes", 2.0),
            ("captured_followed", 200.0),
            ("updated_kernels", 200.0),
            ("updated_followed", 200.0),
            ("renewed_followed", 0.0),
            ("update_calls", 1.0),
        ];
        let answer = |change: &[(&str, f64)]| {
            let mut told = Told::default();
            let figures = good.iter().chain(change).map(|(name, value)| ((*name).to_owned(), *value));
            told.figures.extend(figures);
            for what in ["cloned", "child", "moved", "into"] {
                if !change.iter().any(|(name, _)| name.starts_with(what)) {
                    told.words.insert(what.into(), "no function".into());
                }
            }
            graph_ids(&Ended { told: vec![Some(told)], ..Ended::default() })
        };
        assert_eq!(answer(&[]).state, State::Ok, "{:?}", answer(&[]));
        assert!(answer(&[]).figure.contains("updated: 200 kernels lead to the first capture"));
        let renewed = answer(&[("updated_followed", 0.0), ("renewed_followed", 200.0), ("updated_nodes", 2.0)]);
        assert!(renewed.state == State::Ok && renewed.figure.contains("the capture that they were updated to"));
        let moved = |followed| answer(&[("moved_kernels", 200.0), ("moved_nodes", 2.0), ("moved_followed", followed)]);
        assert_eq!([moved(200.0).state, moved(199.0).state], [State::Ok, State::NotOk]);
        for change in [
            ("captured_followed", 199.0),
            ("captured_kernels", 400.0),
            ("captured_nodes", 3.0),
            ("updated_followed", 100.0),
            ("updated_kernels", 100.0),
            ("renewed_followed", 200.0),
            ("updated_nodes", 2.0),
            ("update_calls", 0.0),
        ] {
            assert_eq!(answer(&[change]).state, State::NotOk, "{change:?}");
        }
    }
}
