//! The ways of matching, each in a run of the same workload, compared with what was called and
//! with each other.

use ncclscope::trace::words::remark;

use super::bench::{Answer, Bench, Plan, Question};
use crate::trace::{Agreement, Seen, Verdict};

const TOPIC: &str = "matching";
/// The percentage of kernels that must be matched by stream and timer alone.
const BY_TIMER: f64 = 99.9;

/// A way of matching: its name, the setting that disables all others, and whether it needs the
/// time of channels.
const WAYS: [(&str, &str, &str); 3] = [
    (
        "bracket",
        "all",
        "by brackets of launches and nodes of graphs: how many kernels are matched, and is any matched wrongly",
    ),
    ("external", "external", "the same by external ids and nodes of graphs, with no callback at launches"),
    ("timer", "timer", "the same by stream and the GPU's timer alone, with no callback and no external id"),
];

pub(super) fn run(bench: &mut Bench) {
    let several = bench.several();
    let repeats = bench.repeats();
    let mut runs: Vec<(&str, Vec<Seen>)> = Vec::new();
    for (name, setting, text) in WAYS {
        let plan = Plan::new(&format!("mixed-{name}"), "mixed", several).with("repeats", repeats);
        let plan = if setting == "external" { plan } else { plan.full() };
        let plan = plan.set("NCCLSCOPE_MATCH", setting);
        let job = plan.name.clone();
        bench.ask(&Question::new(TOPIC, name, text), &[&job], |bench| {
            bench.needs_cupti()?;
            let (ended, seen) = bench.watch(&plan)?;
            if let Some(why) = without_channels(&seen).filter(|_| name == "timer") {
                return Err(Answer::not_run(why));
            }
            if name == "external" && !bench.tells_launches() {
                return Err(Answer::not_run("needs NCCL 2.28, which is the first to report launches"));
            }
            let verdict = Verdict::of(&seen, &ended.told);
            runs.push((name, seen));
            Ok(judge(bench, &verdict, name == "timer"))
        });
    }
    for (name, other) in [("bracket", "external"), ("bracket", "timer"), ("external", "timer")] {
        let text = format!("do {name} and {other} agree, kernel by kernel");
        let jobs = [format!("mixed-{name}"), format!("mixed-{other}")];
        let question = Question::new(TOPIC, &format!("{name}-{other}"), &text);
        bench.ask(&question, &jobs.each_ref().map(String::as_str), |_| {
            let run = |wanted| runs.iter().find(|(name, _)| *name == wanted).map(|(_, seen)| seen);
            match run(name).zip(run(other)) {
                Some((one, two)) => Ok(agree(Agreement::of(one, two))),
                None => Err(Answer::not_run("one of them was not run, or did not end well")),
            }
        });
    }
    let question =
        Question::new(TOPIC, "channels", "do the GPU's times of channels confirm the matches of the same run");
    bench.ask(&question, &["mixed-bracket"], |_| {
        let Some((_, seen)) = runs.iter().find(|(name, _)| *name == "bracket") else {
            return Err(Answer::not_run("the run did not end well"));
        };
        if let Some(why) = without_channels(seen) {
            return Err(Answer::not_run(why));
        }
        let verdict = Verdict::of(seen, &[]);
        let doubts = verdict.contradicted + verdict.timer_contradictions;
        let mut faults = Vec::new();
        faults.extend((doubts > 0).then(|| format!("{doubts} contradictions")));
        faults.extend((verdict.confirmed == 0).then(|| "none is confirmed".to_owned()));
        let figure = format!("{} confirmed, {} contradicted", verdict.confirmed, verdict.contradicted);
        let answer = Answer::by(figure, &faults);
        Ok(answer.value("confirmed", verdict.confirmed).value("contradicted", verdict.contradicted))
    });
}

fn judge(bench: &Bench, verdict: &Verdict, is_timer: bool) -> Answer {
    let share = 100.0 * verdict.all_matched() as f64 / verdict.kernels.max(1) as f64;
    let figure = format!(
        "{} of {} ({share:.1} %; {}), {} wrong",
        verdict.all_matched(),
        verdict.kernels,
        verdict.methods(),
        verdict.wrong
    );
    let answer = if is_timer {
        // It says which kernels it leaves open, and why; what it states must be right.
        let mut faults = verdict.wrongs();
        faults.extend((verdict.all_matched() == 0).then(|| "none is matched".to_owned()));
        let answer = Answer::by(format!("{figure}; the aim is {BY_TIMER} %"), &faults);
        Answer { why: [answer.why, verdict.open_ends().unwrap_or_default()].concat(), ..answer }
    } else {
        bench.judge(figure, verdict, Vec::new())
    };
    answer.value("matched_percent", share).value("wrong", verdict.wrong)
}

fn agree(agreement: Agreement) -> Answer {
    let Agreement { both, same, one } = agreement;
    let mut faults = Vec::new();
    faults.extend((same < both).then(|| format!("{} kernels have different owners", both - same)));
    faults.extend((both == 0).then(|| "there is no kernel whose owner both know".to_owned()));
    let figure = format!("{same} of {both} the same; {one} known to one only");
    Answer::by(figure, &faults).value("both", both).value("same", same).value("one", one)
}

/// Why channels have no times, if they have none.
fn without_channels(seen: &[Seen]) -> Option<String> {
    if seen.iter().any(|seen| !seen.channels.is_empty()) {
        return None;
    }
    let notes = seen.iter().flat_map(|seen| &seen.notes);
    let said = notes.flat_map(|note| note.split("; ")).find(|note| note.contains(remark::NO_CHANNELS));
    Some(said.map_or_else(|| "no channel has GPU times".into(), str::to_owned))
}
