//! Whether kernels are matched to the right operations, in a few jobs; and whether the judge would
//! notice if they were not.
//!
//! `cargo xtask accuracy` plays all cases, and as many random ones as asked for.

use std::sync::LazyLock;

use crate::support::accuracy::{Case, RIGHT_AGAIN, named, random, read};
use emulator::accuracy::{Claim, Demand, Seen, SeenKernel, Verdict, judge};
use emulator::truth::Line;

/// Examples of what was wrong, and why kernels were not matched.
fn why(verdict: &Verdict) -> String {
    let unmatched = verdict.unmatched.iter().map(|(reason, number)| format!("{number} unmatched: {reason}"));
    verdict.examples.iter().cloned().chain(unmatched).collect::<Vec<_>>().join("\n")
}

/// Plays cases with NCCL releases; each must meet its demand.
#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (name, nccl) in cases {
        let case = named(name);
        let verdict = case.judge(nccl);
        let faults = case.faults(nccl, &verdict);
        assert!(faults.is_empty(), "{name} with {nccl}: {faults:?}\n{}", why(&verdict));
    }
}

#[test]
fn every_kernel_is_matched() {
    check(&[("groups", "2.28.9"), ("graphs and eager", "2.32.3"), ("several GPUs", "2.30.7")]);
}

#[test]
fn remaining_matches_are_right_when_records_are_dropped() {
    check(&[("drops", "2.30.7")]);
}

#[test]
fn timers_that_are_far_off_change_nothing() {
    check(&[("timers", "2.30.7")]);
}

#[test]
fn large_errors_of_cuptis_times_are_reported_and_small_ones_are_not() {
    check(&[
        ("CUPTI 1 ms late", "2.28.9"),
        ("CUPTI 30 ms early", "2.32.3"),
        ("CUPTI 2 ms late later", "2.28.9"),
        ("CUPTI 20 us late", "2.28.9"),
        ("conversion to 5 us", "2.32.3"),
    ]);
}

/// What CUPTI does before 13.1 Update 1, and before 13.4 Update 1 (`ncclscope::releases`).
#[test]
fn launches_and_names_that_cupti_confuses_make_no_match_wrong() {
    check(&[("lent, launches confused", "2.32.3"), ("names confused", "2.28.9")]);
}

#[test]
fn coarse_timers_and_changing_rates_stay_within_the_bound() {
    check(&[("steps of 10 us", "2.28.9"), ("rates that change", "2.28.9")]);
}

#[test]
fn without_callbacks_the_gpus_timers_match_some_kernels_and_none_wrongly() {
    check(&[("no callbacks", "2.32.3")]);
}

#[test]
fn a_trace_without_matches_is_noticed() {
    let case = named("no callbacks");
    let none =
        Verdict { kernels: 106, unmatched: [("its launch was not seen".into(), 106)].into(), ..Verdict::default() };
    assert_eq!(case.faults("2.32.3", &none), ["0 of 106 were matched, and three quarters can be"]);
    assert_eq!(case.faults("2.30.7", &none), [""; 0]);
    let eager = named("no callbacks, eager");
    assert_eq!(eager.faults("2.30.7", &none), ["0 of 106 were matched, and half of them can be"]);
}

/// Plays a random job.
#[track_caller]
fn check_random(seed: u64) {
    let folder = tempfile::tempdir().expect("a folder for the scenario");
    let (case, nccl) = random(seed, folder.path());
    let verdict = case.judge(nccl);
    let faults = case.faults(nccl, &verdict);
    let again = format!("cargo xtask accuracy --scenario none --runs 1 --seed {seed}");
    assert!(faults.is_empty(), "seed {seed}, {nccl}, {case:?}: {faults:?}\n{}\n{again}", why(&verdict));
}

#[test]
fn random_jobs() {
    // Seeds for releases that every change is tested with.
    for seed in [5, 19, 26] {
        check_random(seed);
    }
}

#[test]
fn random_jobs_that_went_wrong_once() {
    for (seed, was) in RIGHT_AGAIN {
        println!("seed {seed}: {was}");
        check_random(*seed);
    }
}

#[test]
#[ignore = "cargo xtask e2e --all"]
fn older_releases_are_never_wrong() {
    check(&[("groups", "2.23.4"), ("training", "2.26.5"), ("several GPUs", "2.27.7"), ("graphs and eager", "2.27.7")]);
}

// ---------------------------------------------------------------------------------- the judge
// itself

/// The truth about each process of a real job, and what its trace says.
static REAL: LazyLock<Vec<(Vec<Line>, Seen)>> = LazyLock::new(|| read(&named("groups").play("2.30.7")));

/// Changes what the trace of each process says, and judges the result.
#[track_caller]
fn changed(change: impl Fn(&mut Vec<SeenKernel>)) -> Verdict {
    let mut verdict = Verdict::default();
    for (truth, seen) in &*REAL {
        let mut seen = seen.clone();
        change(&mut seen.kernels);
        verdict.add(&judge(truth, &seen));
    }
    verdict
}

/// The indices of two consecutive NCCL kernels for which `alike` is true.
#[track_caller]
fn two(kernels: &[SeenKernel], alike: impl Fn(&SeenKernel, &SeenKernel) -> bool) -> (usize, usize) {
    let matched = |kernel: &SeenKernel| matches!(kernel.claim, Claim::Operations { .. });
    let mut pairs = (0..kernels.len()).flat_map(|first| (first + 1..kernels.len()).map(move |second| (first, second)));
    let fits = |(first, second): &(usize, usize)| {
        let (first, second) = (&kernels[*first], &kernels[*second]);
        matched(first) && matched(second) && alike(first, second)
    };
    pairs.find(fits).expect("the job has two such kernels")
}

/// The facts about a kernel's operations, without their sequence numbers.
fn facts(kernel: &SeenKernel) -> String {
    let Claim::Operations { shown, comm, .. } = &kernel.claim else { return String::new() };
    let mut shown = shown.clone();
    shown.iter_mut().for_each(|operation| (operation.number, operation.id) = (None, None));
    format!("{comm:?} {shown:?}")
}

#[test]
fn an_unchanged_trace_has_no_faults() {
    let verdict = changed(|_| ());
    assert_eq!(verdict.faults(Demand::Whole), [""; 0], "{}", verdict.examples.join("\n"));
}

#[test]
fn two_kernels_swapped_are_noticed() {
    let swap = |kernels: &mut Vec<SeenKernel>, (first, second): (usize, usize)| {
        let claim = kernels[first].claim.clone();
        kernels[first].claim = std::mem::replace(&mut kernels[second].claim, claim);
    };
    let processes = REAL.len() as u64;
    // Once with different operations; once with operations that differ only in their place in the
    // loop.
    let different = changed(|kernels| swap(kernels, two(kernels, |first, second| facts(first) != facts(second))));
    assert_eq!(different.all_wrong(), 2 * processes, "{different:?}");
    for function in ["AllReduce", "Send"] {
        let alike = |first: &SeenKernel, second: &SeenKernel| {
            facts(first) == facts(second) && facts(first).contains(&format!("\"{function}\""))
        };
        let same = changed(|kernels| swap(kernels, two(kernels, alike)));
        assert!(same.all_wrong() >= processes, "{function}: {same:?}");
        assert!(!same.faults(Demand::NeverWrong).is_empty());
    }
}

#[test]
fn a_clock_beyond_its_bound_is_noticed() {
    // By the smallest amount: 1 ns more than the stated error, on top of the actual error.
    let verdict = changed(|kernels| {
        for kernel in kernels {
            kernel.begin += 2 * kernel.error + 1;
            kernel.end += 2 * kernel.error + 1;
        }
    });
    let unchanged = changed(|_| ());
    assert!(unchanged.kernels > 0 && verdict.clock.outside >= unchanged.kernels, "{verdict:?}");
    assert!(verdict.faults(Demand::NeverWrong).iter().any(|fault| fault.contains("outside of the stated error")));
}

#[test]
fn a_useless_bound_is_noticed() {
    let verdict =
        changed(|kernels| kernels.iter_mut().for_each(|kernel| kernel.error = kernel.end - kernel.begin + 100_000));
    assert!(verdict.clock.wide > 0 && !verdict.faults(Demand::NeverWrong).is_empty(), "{verdict:?}");
}

#[test]
fn a_missing_launch_is_noticed() {
    let verdict = changed(|kernels| {
        let (place, _) = two(kernels, |_, _| true);
        kernels[place].claim = Claim::Unmatched("its launch was not seen".into());
    });
    assert_eq!(verdict.faults(Demand::Whole), [format!("{} not matched", REAL.len())]);
    let verdict = changed(|kernels| {
        kernels.remove(two(kernels, |_, _| true).0);
    });
    assert_eq!(verdict.faults(Demand::Whole), [format!("{} missing in the trace", REAL.len())]);
}

/// The verdict on a job whose CUPTI misbehaves.
#[track_caller]
fn lied_to(words: &str) -> Verdict {
    Case { misbehaviour: words.into(), ..named("groups") }.judge("2.30.7")
}

#[test]
fn records_that_swap_their_launches_are_noticed_in_the_trace() {
    let verdict = lied_to("swap=30%,seed=11");
    assert!(!verdict.faults(Demand::NeverWrong).is_empty(), "{verdict:?}");
}

#[test]
fn times_that_are_shifted_are_noticed_in_the_trace() {
    let verdict = lied_to("skew=5ms,seed=12");
    let clock = verdict.clock;
    // The trace itself says so, once it is certain.
    assert!(clock.outside > 0 && clock.bound >= 5_000_000 && verdict.remarks[0] >= REAL.len() as u64, "{verdict:?}");
    assert!(!verdict.faults(Demand::NeverWrong).is_empty());
}

#[test]
fn unreported_launches_are_never_called_exact() {
    let whole = changed(|_| ());
    let verdict = lied_to("miss=20%,seed=13");
    let bracket = |verdict: &Verdict| verdict.right.get("exact_launch_bracket").copied().unwrap_or_default();
    assert!(bracket(&verdict) < bracket(&whole), "{verdict:?}");
    assert_eq!(verdict.all_wrong(), 0, "{}", verdict.examples.join("\n"));
    assert_eq!(verdict.missing, 0);
}
