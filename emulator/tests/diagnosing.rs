//! Jobs of the real NCCL with a planted cause of slowness, or none, and what `ncclscope diagnose`
//! says about them.
//!
//! The seed of a job decides everything about it: [`Job::drawn`]. These variables change what the
//! ignored tests play:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `DIAGNOSE_SEED` | the seed of the first job; the others follow it |
//! | `DIAGNOSE_JOBS` | how many jobs |
//! | `DIAGNOSE_KEEP` | a folder for the traces of each job, its scenario and what was planted |
//! | `DIAGNOSE_WHAT_IF` | `0`: do not play the jobs again without each cause |

mod job;
mod judging;

use crate::support::{Job as Run, Plan, SLOWER, plugin_said};
use emulator::truth::Line;
use job::{Cause, Job, Planted, Steps};
use judging::{Judgement, adds_up, has_kernels_where_it_says_to_look, is_marked_in_a_merged_trace};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const CUPTI: &str = "13.0";
/// The most plays of a job in one world: the machine may be too busy.
const TIMES: usize = 5;

/// Jobs of the ordinary tests: a slow kernel, a late host, a slow link, pauses, and nothing. The
/// late host is no step ahead: on a busy machine the lead of one that is hides its lateness.
const FEW: [u64; 5] = [211, 213, 244, 206, 219];

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

/// Plays a job without one of its causes, twice, and compares the steps with the prediction.
/// Returns whether it is within 10 % or the spread of the two plays, and whether within its own
/// doubt; `None` if there is no prediction.
fn what_if(job: &Job, answer: &Value, place: usize) -> Option<(bool, bool)> {
    let mut others = job.planted.clone();
    others.remove(place);
    let played = [(); 2].map(|()| Steps::of(&job.play(&others, 1)).median);
    let (least, most) = (played[0].min(played[1]), played[0].max(played[1]));
    let all = answer["what_if"].as_array().map_or(&[][..], Vec::as_slice);
    let said = all.iter().find(|said| said["cause"] == place);
    let figures = said.and_then(|said| Some((said["step_ns"].as_u64()?, said["doubt_ns"].as_u64()?)));
    let Some((step, doubt)) = figures else {
        println!("    without cause {place}: played {} and {}; nothing predicted", ms(least), ms(most));
        return None;
    };
    let off = least.saturating_sub(step).max(step.saturating_sub(most));
    let is_near = off <= ((least + most) / 20).max(most - least);
    let is_inside = off <= doubt;
    println!(
        "    without cause {place}: played {} and {}, predicted {} ± {}: {}{}",
        ms(least),
        ms(most),
        ms(step),
        ms(doubt),
        if is_near { "near" } else { "FAR" },
        if is_inside { "" } else { ", OUTSIDE its doubt" }
    );
    Some((is_near, is_inside))
}

/// A job that was played, and what is said about it.
struct Checked {
    judgement: Judgement,
    answer: Value,
    run: Run,
    /// Nothing else seems to have slowed it down.
    is_as_planted: bool,
}

/// Plays a job in a world that is so many times slower, prints what was planted and what is said,
/// and judges it.
#[track_caller]
fn check(job: &Job, slower: u32) -> Checked {
    let run = job.play(&job.planted, slower);
    let answer = run.answer("diagnose");
    let judgement = job.judge(&answer);
    has_kernels_where_it_says_to_look(&answer);
    adds_up(&answer);
    let steps = Steps::of(&run);
    let is_as_planted = job.is_as_planted(&job.planted, &steps);
    job.keep(&run, &format!("{judgement:?}\n{answer:#}\n"));
    let word = match &judgement {
        Judgement::Right => "right",
        Judgement::NotTold => "NOT TOLD",
        Judgement::Wrong(_) => "WRONG",
    };
    let planted: Vec<String> =
        job.planted.iter().map(|Planted { cause, cost }| format!("{cause:?} {}", ms(cost * 1000))).collect();
    println!(
        "{} {}: {word}: {:?}, {} hosts of {} ({}), NCCL {}, {:?}: {}; steps of {} (mean {}){}; said: {}",
        job.seed,
        Job::kind(job.seed),
        job.shape,
        job.hosts,
        job.ranks_per_host,
        job.layout,
        job.nccl,
        job.lead,
        if planted.is_empty() { "nothing".into() } else { planted.join(" and ") },
        ms(steps.median),
        ms(steps.mean),
        if is_as_planted { "" } else { ", disturbed" },
        answer["text"].as_str().unwrap_or_default()
    );
    if let Judgement::Wrong(why) = &judgement {
        println!("    {why}");
    }
    Checked { judgement, answer, run, is_as_planted }
}

#[test]
fn what_slows_a_job_down_is_named_and_nothing_else() {
    for seed in FEW {
        let job = Job::drawn(seed);
        let mut judgements = Vec::new();
        // On a busy machine a job may really be slowed down by something else. Where its steps do
        // not show that, one wrong answer is one too many, unless it was the only one.
        let mut was_wrong = false;
        let is_told = SLOWER.into_iter().any(|slower| {
            let Checked { judgement, answer, run, is_as_planted } = check(&job, slower);
            let is_wrong = is_as_planted && matches!(judgement, Judgement::Wrong(_));
            let is_right = judgement == Judgement::Right;
            judgements.push(judgement);
            if is_right {
                is_marked_in_a_merged_trace(&run, &answer);
            }
            assert!(!(was_wrong && is_wrong), "wrong the second time: {job:#?}\n{judgements:#?}");
            was_wrong |= is_wrong;
            is_right
        });
        assert!(is_told, "{job:#?}\n{judgements:#?}");
    }
}

#[test]
fn each_demo_of_a_slow_job_is_explained_in_the_first_line_and_nothing_else_is_blamed() {
    for (scenario, kind, whose) in [
        ("straggler", "kernels", json!([2])),
        ("late_host", "host", json!([2])),
        ("pauses", "pauses", json!([1])),
        ("host_bound", "host-bound", json!([0, 1])),
        ("unequal", "unequal-work", json!([0, 1, 2, 3])),
        ("slow_link", "link", json!([[3, 4], [4, 3]])),
        ("stalling_link", "stall", json!([[1, 2]])),
        // Rank 1 is the next on its host.
        ("slow_copies", "gpu-wait", json!([0])),
    ] {
        let mut told = Vec::new();
        let is_told = SLOWER.into_iter().any(|slower| {
            let answer = Plan::new("2.30.7", scenario).slower(slower).with_cupti(CUPTI).run().answer("diagnose");
            let first = &answer["causes"][0];
            let mut links: Vec<[i64; 2]> = (first["links"].as_array().into_iter().flatten())
                .map(|link| ["from", "to"].map(|end| link[end].as_i64().expect("a rank")))
                .collect();
            links.sort_unstable();
            let of_first = if links.is_empty() { first["ranks"].clone() } else { json!(links) };
            told.push(format!("{}, {of_first}", answer["text"]));
            let count = answer["causes"].as_array().map_or(0, Vec::len);
            (count, &first["kind"], &of_first) == (1, &json!(kind), &whose)
        });
        assert!(is_told, "{scenario}: {told:#?}");
    }
}

/// What a GPU did from the begin of NCCL's first kernel to that of the last one, by the truth, in
/// percent: nothing but NCCL's kernels, and nothing at all.
fn alone_and_idle(lines: &[Line]) -> [f64; 2] {
    let of = |is_nccl: bool| {
        let kernels = lines.iter().filter_map(|line| if let Line::Kernel(kernel) = line { Some(kernel) } else { None });
        let spans = kernels.filter(|kernel| kernel.device_comm.is_some() == is_nccl).map(|it| (it.start, it.end));
        let mut spans: Vec<(u64, u64)> = spans.collect();
        spans.sort_unstable();
        spans
    };
    let (ours, own) = (of(true), of(false));
    let (from, to) = (ours[0].0, ours[ours.len() - 1].0);
    let covered = |spans: &[(u64, u64)]| {
        let (mut sum, mut until) = (0, from);
        for (start, end) in spans {
            let (start, end) = (until.max(*start), to.min(*end));
            sum += end.saturating_sub(start);
            until = until.max(end);
        }
        sum
    };
    let mut all = [ours.clone(), own.clone()].concat();
    all.sort_unstable();
    let (own, all) = (covered(&own), covered(&all));
    [all - own, to - from - all].map(|ns| 100.0 * ns as f64 / (to - from) as f64)
}

#[test]
fn the_first_rank_says_at_the_end_how_its_gpu_spent_the_time() {
    for scenario in ["straggler", "host_bound"] {
        let run = Plan::new("2.30.7", scenario).with_cupti(CUPTI).run().succeeded();
        let said: Vec<String> = plugin_said(&run).into_iter().filter(|line| line.starts_with("seen from ")).collect();
        let [line] = &said[..] else { panic!("{scenario}: {said:?}") };
        assert!(line.ends_with(&format!("; all ranks: ncclscope diagnose {}", run.traces().display())), "{line}");
        let whats = ["only communicated", "had nothing to do"];
        let told = whats.iter().enumerate().find_map(|(which, what)| {
            let rest = line.strip_prefix(&format!("seen from one rank, its GPU {what} for "))?;
            Some((which, rest.split_once(" % of the time")?.0.parse::<f64>().ok()?))
        });
        let (which, percent) = told.unwrap_or_else(|| panic!("{scenario}: {line}"));
        let truth = alone_and_idle(&run.truths()[0].1);
        // The truth includes the first steps, and on a busy machine each step is another.
        let is_right = (percent - truth[which]).abs() <= 15.0 && truth[which] + 15.0 >= truth[1 - which];
        assert!(is_right, "{scenario}: {truth:.0?} %, but {line}");
    }
}

/// NCCL gives all collectives of a function that are captured the same number.
#[test]
fn a_slow_rank_is_named_where_a_graph_has_several_collectives() {
    let layer = |name: &str, size: u32| format!("compute {name} 3 ms\nall_reduce {size} KiB f32 sum\nwait world\n");
    let program = format!(
        "capture decode {{\n{}{}}}\nrepeat 150 {{\nreplay decode\nsync\n}}\n",
        layer("attention", 256),
        layer("mlp", 192)
    );
    let text = format!(
        "title = \"decode\"\n[job]\nhosts = 1\nranks_per_host = 4\nprogram = \"\"\"\ncommunicator world = all\n\
         {program}\"\"\"\n[[slow]]\nrank = 2\ncompute = 1.5\n"
    );
    let answers = SLOWER
        .into_iter()
        .map(|slower| Plan::of_text("2.30.7", &text).slower(slower).with_cupti(CUPTI).quiet().run().answer("diagnose"));
    let is_told = |answer: &Value| {
        let said = answer["text"].as_str().expect("a text");
        println!("{said}");
        said.starts_with("Rank 2 on ") && said.contains("`attention`") && said.contains("`mlp`")
    };
    let answer = answers.into_iter().find(is_told).expect("an answer that names the rank");
    let operations: Vec<_> = answer["operations"].as_array().expect("a list").iter().map(|it| &it["name"]).collect();
    let expected = [256, 192].map(|size| json!(format!("AllReduce {size} KiB f32 on world")));
    assert!(operations.len() == 2 && expected.iter().all(|it| operations.contains(&it)), "{operations:?}");
    let on_path = answer["critical_path"].as_array().expect("a list").iter().map(|it| it["ns"].as_u64());
    let (on_path, step) = (on_path.flatten().sum::<u64>(), answer["steps"]["mean_ns"].as_u64().expect("a length"));
    assert!(on_path.abs_diff(step) < step / 5, "the critical path of a step of {step} ns has {on_path} ns");
}

#[test]
fn a_rank_without_steps_keeps_nobody_from_being_named() {
    let text = "title = \"one rank evaluates\"\n[job]\nhosts = 1\nranks_per_host = 5\nprogram = \"\"\"\n\
                communicator world = all\ncommunicator train = ranks 0,1,2,3\nall_reduce 1 MiB f32 sum\n\
                except rank 4 {\nrepeat 20 {\ncompute forward 3 ms\nall_reduce 1 MiB f32 sum on train\nwait train\n}\n}\n\
                only rank 4 {\ncompute evaluate 40 ms\nsync\n}\nsync\n\"\"\"\n[[slow]]\nrank = 2\ncompute = 1.5\n";
    let says = |slower: u32| {
        let answer = Plan::of_text("2.30.7", text).slower(slower).with_cupti(CUPTI).quiet().run().answer("diagnose");
        println!("{}", answer["text"]);
        let notes = answer["notes"].as_array().map_or(&[][..], Vec::as_slice);
        let is_told = notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("it has no steps")));
        is_told && answer["text"].as_str().is_some_and(|text| text.starts_with("Rank 2 on "))
    };
    assert!([4, 8, 24].into_iter().any(says));
}

/// The schedule of two pipelines of four stages, side by side, each of which runs one forward and
/// one backward pass by turns: a stage sends before it knows whether the next one receives.
fn pipelines() -> String {
    const STAGES: usize = 4;
    const MICROBATCHES: usize = 6;
    let mut program = "communicator pp = blocks 4\ncommunicator dp = stride 4\nrepeat 10 {\n".to_owned();
    for stage in 0..STAGES {
        let ahead = STAGES - 1 - stage;
        let by_turns = [true, false].into_iter().cycle().take(2 * (MICROBATCHES - ahead));
        let passes = std::iter::repeat_n(true, ahead).chain(by_turns).chain(std::iter::repeat_n(false, ahead));
        let transfer = |from: usize, to: usize| format!("send 256 KiB bf16 from {from} to {to} on pp\n");
        let _ = writeln!(program, "only ranks {stage},{} {{", stage + STAGES);
        for is_forward in passes {
            let (name, ms, before, after) = match is_forward {
                true => ("forward", 2, stage.checked_sub(1), Some(stage + 1)),
                false => ("backward", 3, Some(stage + 1), stage.checked_sub(1)),
            };
            let is_stage = |it: &usize| *it < STAGES;
            if let Some(before) = before.filter(is_stage) {
                program += &format!("{}wait pp\n", transfer(before, stage));
            }
            let _ = writeln!(program, "compute {name} {ms} ms");
            program += &after.filter(is_stage).map(|after| transfer(stage, after)).unwrap_or_default();
        }
        program += "wait pp\n}\n";
    }
    program + "all_reduce 1 MiB f32 sum on dp\nwait dp\ncompute optimizer 1 ms\n}\nsync\n"
}

#[test]
fn in_a_pipeline_the_slow_rank_or_link_is_named() {
    let says = |planted: &str, slower: u32| {
        let text = format!(
            "title = \"pipelines\"\n[job]\nhosts = 2\nranks_per_host = 4\nprogram = \"\"\"\n{}\"\"\"\n{planted}",
            pipelines()
        );
        let answer = Plan::of_text("2.30.7", &text).slower(slower).with_cupti(CUPTI).quiet().run().answer("diagnose");
        let said = answer["text"].as_str().expect("a text").to_owned();
        println!("{said}");
        said
    };
    for (planted, expected) in [
        ("[[slow]]\nrank = 5\ncompute = 1.6\n", "Rank 5 on "),
        ("[[link]]\nfrom = 1\nto = 2\nbandwidth = \"20 MB/s\"\n", "The link from rank 1 to rank 2 is slow"),
        ("", "Healthy"),
    ] {
        assert!([4, 8, 24].into_iter().any(|slower| says(planted, slower).starts_with(expected)), "{expected}");
    }
}

/// Within a host NCCL reports no transfers: only the groups that do the same show where it is slow.
/// A job of four ranks on so many hosts, and what `diagnose` says of it.
fn answered(hosts: u32, program: &str, planted: &str, slower: u32) -> Value {
    let text = format!(
        "title = \"a job\"\n[job]\nhosts = {hosts}\nranks_per_host = {}\nprogram = \"\"\"\n{program}\"\"\"\n{planted}",
        4 / hosts
    );
    let answer = Plan::of_text("2.30.7", &text).slower(slower).with_cupti(CUPTI).quiet().run().answer("diagnose");
    println!("{}", answer["text"]);
    answer
}

#[test]
fn the_group_with_a_slow_link_within_its_host_is_named() {
    let layer = "compute attention 2 ms\nall_reduce 256 KiB bf16 sum on tp\nwait tp\ncompute mlp 3 ms\n\
                 all_reduce 256 KiB bf16 sum on tp\nwait tp\n";
    let program = format!(
        "communicator world = all\ncommunicator tp = blocks 2\n\
         repeat 15 {{\nrepeat 3 {{\n{layer}}}\nall_reduce 4 B f32 sum on world\nwait world\nsync\n}}\n"
    );
    let says = |planted: &str, slower: u32| answered(2, &program, planted, slower);
    let slow = "[[link]]\nfrom = 2\nto = 3\nbandwidth = \"100 MB/s\"\n";
    assert!([4, 8, 24].into_iter().any(|slower| {
        let causes = &says(slow, slower)["causes"];
        let is_only = causes.as_array().is_some_and(|all| all.len() == 1);
        let cause = &causes[0];
        is_only && cause["kind"] == "group" && cause["ranks"] == json!([2, 3])
    }));
    assert!([4, 8, 24].into_iter().any(|slower| says("", slower)["verdict"] == "healthy"));
    // NCCL takes the network where it may not use shared memory.
    let odd = "[network]\nkind = \"plugin\"\nbandwidth = \"100 MB/s\"\n\
               [[host]]\nindex = 1\nnccl = { NCCL_SHM_DISABLE = \"1\" }\n";
    assert!([4, 8, 24].into_iter().any(|slower| {
        let cause = &says(odd, slower)["causes"][0];
        let is_told = cause["kind"] == "group" && cause["ranks"] == json!([2, 3]);
        let differing = "NCCL_SHM_DISABLE is 0 on ranks 0 and 1, and 1 on ranks 2 and 3";
        is_told && cause["links"].as_array().map(Vec::len) == Some(2) && cause["differing"] == json!([differing])
    }));
}

#[test]
fn the_slow_link_of_a_ring_within_a_host_is_named() {
    let program = "communicator cp = all\ncommunicator dp = all\n\
                   repeat 10 {\nrepeat 3 {\nsend_recv ring 64 KiB bf16 on cp\ncompute block 1 ms\nwait cp\n}\n\
                   compute backward 3 ms\nall_reduce 64 KiB f32 avg on dp\nwait dp\nahead 2\n}\n";
    let slow = "[[link]]\nfrom = 2\nto = 3\nbandwidth = \"10 MB/s\"\n";
    assert!([4, 8, 24].into_iter().any(|slower| {
        let causes = &answered(1, program, slow, slower)["causes"];
        let is_only = causes.as_array().is_some_and(|all| all.len() == 1);
        is_only && causes[0]["kind"] == "link" && causes[0]["links"] == json!([{ "from": 2, "to": 3 }])
    }));
    assert!([4, 8, 24].into_iter().any(|slower| answered(1, program, "", slower)["verdict"] == "healthy"));
}

/// What a stage sends keeps the network busy until the next step and longer, so each message waits
/// for the one before it.
#[test]
fn a_slow_link_between_two_stages_of_a_pipeline_costs_what_it_costs() {
    let program = "communicator pp = all\nrepeat 14 {\ncompute forward 2 ms\n\
                   send 256 KiB bf16 from 0 to 1 on pp\nwait pp\nsend 256 KiB bf16 from 1 to 2 on pp\nwait pp\n\
                   send 256 KiB bf16 from 2 to 3 on pp\nwait pp\ncompute optimizer 500 us\nahead 2\n}\n";
    let slow = "[network]\nkind = \"plugin\"\n[[route]]\nfrom = 1\nto = 2\nbandwidth = \"20 MB/s\"\n";
    assert!([4, 8, 24].into_iter().any(|slower| {
        let answer = answered(4, program, slow, slower);
        let cause = &answer["causes"][0];
        let without = answer["what_if"][0]["step_ns"].as_f64().unwrap_or(f64::MAX);
        println!("{cause}\n{} {without}", answer["steps"]);
        let is_named = cause["kind"] == "link" && cause["links"] == json!([{ "from": 1, "to": 2 }]);
        is_named && without < 0.4 * answer["steps"]["median_ns"].as_f64().unwrap_or(0.0)
    }));
}

/// From 2.29 on NCCL does not hand broadcasts over, and they are all in which the ranks meet.
#[test]
fn a_root_that_saves_now_and_then_keeps_the_receivers_of_its_broadcasts_waiting() {
    let program = "repeat 5 {\nrepeat 12 {\ncompute forward 4 ms\nbroadcast 64 KiB bf16 root 1\nwait world\n}\n\
                   sync\nonly rank 1 {\nsleep 100 ms\n}\nbroadcast 4 B i32 root 1\nwait world\n}\n";
    assert!([2, 4, 12].into_iter().any(|slower| {
        let cause = &answered(2, program, "", slower)["causes"][0];
        cause["kind"] == "pauses" && cause["ranks"] == json!([1]) && cause["every"] == 12
    }));
}

/// CUPTI is flushed by force meanwhile, so the kernels that stand still have no record.
#[test]
fn what_stands_still_for_seconds_is_named_and_no_hang_afterwards() {
    let link = "[[route]]\nfrom = 1\nto = 2\nstall = { message = 400, for = \"6 s\" }\n";
    let gpu = "[[stall]]\nrank = 1\nkernel = 20\nfor = \"6 s\"\n";
    for (once, more, expected) in [
        ("", link, "The link from rank 1 to rank 2 stood still once: kernels without a record kept it busy for 6."),
        ("", gpu, "Rank 1 on vm stood still once: for 6."),
        ("compute forward 6 s\n", "", "Rank 1 on vm stood still once: its GPU did not end `forward` for 6."),
        ("sleep 6 s\n", "", "Rank 1 on vm paused once: its GPU had nothing to do for 6."),
    ] {
        let step = "compute forward 10 ms\nall_reduce 1 MiB f32 sum\nwait world\ncompute optimizer 2 ms\nsync\n";
        let half = format!("repeat 20 {{\n{step}}}\n");
        let text = format!(
            "title = \"something stands still once\"\n[job]\nhosts = 3\nranks_per_host = 1\nprogram = \"\"\"\n\
             {half}only rank 1 {{\n{once}}}\n{half}\"\"\"\n[nccl]\nNCCL_ALGO = \"Ring\"\n[network]\nkind = \"plugin\"\n{more}"
        );
        let job = Plan::of_text("2.30.7", &text).with_cupti(CUPTI).quiet().run();
        let answer = job.answer("diagnose");
        let said = answer["text"].as_str().expect("a text");
        println!("{said}");
        let on_host = expected
            .replace(" on vm ", &format!(" on {} ", answer["causes"][0]["hosts"][0].as_str().unwrap_or_default()));
        assert!(said.starts_with(&on_host), "{said}");
        let info = job.info();
        let hangs: Vec<&str> = info.lines().filter(|it| it.starts_with("hang ") || it.starts_with("waits ")).collect();
        assert!(hangs.is_empty(), "{hangs:?}");
    }
}

#[test]
#[ignore = "cargo xtask e2e --all"]
fn a_hundred_jobs() {
    let (first, count) = (number("DIAGNOSE_SEED", 7_000), number("DIAGNOSE_JOBS", 100));
    let with_what_if = number("DIAGNOSE_WHAT_IF", 1) != 0;
    let mut tally: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    // Predicted, near what was played, inside their own doubt; and asked for.
    let mut predicted = [0; 4];
    for seed in first..first + count {
        let job = Job::drawn(seed);
        let Checked { judgement, answer, .. } = check(&job, 1);
        let place = match judgement {
            Judgement::Right => 0,
            Judgement::NotTold => 1,
            Judgement::Wrong(_) => 2,
        };
        tally.entry(Job::kind(seed)).or_default()[place] += 1;
        if with_what_if && judgement == Judgement::Right {
            for place in 0..job.planted.len() {
                predicted[3] += 1;
                if let Some((is_near, is_inside)) = what_if(&job, &answer, place) {
                    predicted = [
                        predicted[0] + 1,
                        predicted[1] + u64::from(is_near),
                        predicted[2] + u64::from(is_inside),
                        predicted[3],
                    ];
                }
            }
        }
    }
    println!("kind            right  not told  wrong");
    for (kind, [right, silent, wrong]) in &tally {
        println!("{kind:<15} {right:>5}  {silent:>8}  {wrong:>5}");
    }
    let sum = |place: usize| tally.values().map(|counts| counts[place]).sum::<u64>();
    let (right, wrong) = (sum(0), sum(2));
    let [told, near, inside, asked] = predicted;
    println!(
        "{right} of {count} right, {wrong} wrong; of {asked} steps without a cause {told} predicted, {near} near, {inside} in doubt"
    );
    assert!(right * 100 >= count * 98 && wrong * 100 <= count * 2, "{right} of {count} right, {wrong} wrong");
    assert!(near * 100 >= told * 90 && inside * 100 >= told * 90, "{near} of {told} near, {inside} in their doubt");
}

/// The yardstick itself, by the truth: what is planted has a cost, and nothing else does.
#[test]
#[ignore = "cargo xtask e2e --all"]
fn a_planted_cause_costs_what_it_should() {
    let (first, count) = (number("DIAGNOSE_SEED", 7_000), number("DIAGNOSE_JOBS", 20));
    let (mut good, mut all) = (0, 0);
    for seed in first..first + count {
        let job = Job::drawn(seed);
        let run = job.play(&job.planted, 1);
        let sick = Steps::of(&run);
        let mut said = format!(
            "{seed} {}: {:?}, {} hosts of {}, NCCL {}, {:?}: steps of {} (mean {}), {} without a cause by arithmetic{}\n",
            Job::kind(seed),
            job.shape,
            job.hosts,
            job.ranks_per_host,
            job.nccl,
            job.lead,
            ms(sick.median),
            ms(sick.mean),
            ms((job.step + job.overhead()) * 1000),
            if job.is_as_planted(&job.planted, &sick) { "" } else { ", disturbed" },
        );
        for (place, planted) in job.planted.iter().enumerate() {
            let mut others = job.planted.clone();
            others.remove(place);
            let well = Steps::of(&job.play(&others, 1));
            let is_rare = matches!(planted.cause, Cause::Stall { .. } | Cause::Pauses { .. } | Cause::Unequal);
            let cost = |steps: &Steps| if is_rare { steps.mean } else { steps.median };
            let costs = cost(&sick).saturating_sub(cost(&well));
            let _ = writeln!(
                said,
                "    {:?} costs {}, {} by arithmetic; without it steps of {} (mean {})",
                planted.cause,
                ms(costs),
                ms(planted.cost * 1000),
                ms(well.median),
                ms(well.mean)
            );
            all += 1;
            good += u64::from((planted.cost * 400..=planted.cost * 2500).contains(&costs));
        }
        job.keep(&run, &said);
        print!("{said}");
    }
    println!("{good} of {all} causes cost about what they should");
    assert!(good * 100 >= all * 80, "{good} of {all}");
}
