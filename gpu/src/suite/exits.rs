//! Processes that end abnormally: what was recorded must be in a readable trace, and the process
//! must end as it does without us.

use super::bench::{Answer, Bench, Plan, Plugin, Question};
use crate::job::How;
use crate::trace::Verdict;

const TOPIC: &str = "exits";
/// The exit status of a Rust panic.
const PANIC: i32 = 101;

/// A way to end: the workload, how every process must end, whether the trace has its last word,
/// and a description.
const WAYS: [(&str, How, bool, &str); 8] = [
    ("exit-return", How::Status(0), true, "main returns with everything open"),
    ("exit-hung", How::Status(0), true, "main returns while a kernel runs that never ends"),
    ("exit-panic", How::Status(PANIC), true, "a panic"),
    ("exit-at-once", How::Status(0), false, "_exit"),
    ("exit-abort", How::Signal(libc::SIGABRT), false, "abort"),
    ("exit-terminated", How::Signal(libc::SIGTERM), false, "SIGTERM"),
    ("fork-before", How::Status(0), true, "a fork before cuInit"),
    ("fork-after", How::Status(0), true, "a fork after cuInit, between operations"),
];

pub(super) fn run(bench: &mut Bench) {
    for (name, must, is_closed, what) in WAYS {
        let text = format!("{what}: does it end as without the profiler, and is everything in a readable trace");
        bench.ask(&Question::new(TOPIC, name, &text), &[name], |bench| {
            bench.needs_cupti()?;
            let plan = Plan::new(name, name, bench.several()).set("NCCLSCOPE_FLUSH_PERIOD", "100");
            let ended = bench.run(&plan).map_err(Answer::not_ok)?;
            let alike = ended.how.iter().all(|how| *how == must) || {
                // If it also happens without us, it is not our fault.
                let plan = Plan { name: format!("{name}-without"), ..plan }.plugin(Plugin::None);
                bench.run(&plan).is_ok_and(|without| without.how == ended.how)
            };
            let seen = bench.read(&ended);
            let verdict = Verdict::of(&seen, &ended.told);
            let mut faults = Vec::new();
            faults.extend((!alike).then(|| format!("not as without the profiler; {}", ended.why())));
            // A forked child leaves no trace.
            let traces = verdict.traces;
            faults.extend(
                (traces != ended.how.len()).then(|| format!("{traces} traces of {} processes", ended.how.len())),
            );
            faults.extend((is_closed && verdict.open > 0).then(|| format!("{} traces have no end", verdict.open)));
            let child = ended.told.iter().flatten().filter_map(|told| told.figures.get("child"));
            faults.extend(child.filter(|status| **status != 0.0).map(|status| format!("a child ended with {status}")));
            let figure =
                format!("{} of {} kernels matched, {} wrong", verdict.all_matched(), verdict.kernels, verdict.wrong);
            Ok(bench.judge(figure, &verdict, faults))
        });
    }
}
