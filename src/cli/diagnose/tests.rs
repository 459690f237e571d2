//! Jobs made of plain values, each with one thing that makes it slow, and the answers about them.

use std::path::PathBuf;

use super::answer::Report;
use super::causes::{self, Findings, What};
use super::found;
use super::graph::{Graph, Item};
use super::job::{Job, Link, Numbering, RankFacts, Taken, Use};
use crate::cli::compare::ranks::{Class, Kind, UNRECORDED};
use crate::cli::compare::steps::{Repeat, Source};
use crate::cli::differing::{Differing, Owner};
use crate::cli::hang::{Hang, Operation};
use crate::cli::shared_gpus::SharedGpu;
use crate::cli::troubles::Troubles;
use crate::import::{CpuWait, Span};
use crate::model::time::FileNs;

const FORWARD: u32 = 0;
const BACKWARD: u32 = 1;
const ALL_REDUCE: u32 = 2;
const CHECK: u32 = 3;
const UNKNOWN: u32 = 4;

/// The step in which something stands still.
const STOOD: usize = 20;
/// Nothing shows which rank does.
const NOBODY: usize = usize::MAX;

/// A job in which each rank computes, all meet, and the next step begins.
#[derive(Clone, Copy)]
struct Made {
    ranks: usize,
    steps: usize,
    /// What a rank's kernels take, in hundredths, by rank and step.
    work: fn(usize, usize) -> i64,
    /// How long a rank's GPU is idle before a step, us.
    pause: fn(usize, usize) -> i64,
    /// How long the link from a rank takes for an operation, us, in a step.
    link: fn(usize, usize) -> i64,
    /// How often a rank checks something in a step.
    checks: fn(usize, usize) -> usize,
    /// The rank whose second kernel stands still in a step, if any does.
    stood: Option<usize>,
    /// How many kernels each of the others is divided into, and by how many percent their lengths
    /// differ.
    parts: (usize, i64),
}

impl Made {
    /// A healthy one, with the noise of a machine.
    fn healthy() -> Made {
        Made {
            ranks: 4,
            steps: 40,
            work: |rank, step| 100 + noise(rank, step) % 3,
            pause: |rank, step| 10 + noise(rank, step) % 30,
            link: |rank, step| 900 + noise(rank, step) % 100,
            checks: |_, _| 0,
            stood: None,
            parts: (1, 0),
        }
    }

    fn job(self) -> Job {
        let mut ranks: Vec<Vec<Item>> = vec![Vec::new(); self.ranks];
        let (mut joined, mut uses) = (Vec::new(), Vec::new());
        let mut edges = vec![Vec::new(); self.ranks];
        let (mut done, mut begins) = (vec![0; self.ranks], vec![0; self.ranks]);
        for step in 0..self.steps {
            let mut ready = Vec::new();
            for (rank, items) in ranks.iter_mut().enumerate() {
                edges[rank].push(items.len());
                let mut at = done[rank] + 1_000 * (self.pause)(rank, step);
                for (kind, ns) in [(FORWARD, 30_000), (BACKWARD, 60_000), (CHECK, 30_000)] {
                    let checks = (self.checks)(rank, step);
                    let (parts, percent) = if kind == CHECK { (checks, 0) } else { self.parts };
                    let all = ns * if kind == CHECK { 100 * checks as i64 } else { (self.work)(rank, step) };
                    for part in (0..parts).filter(|_| all > 0) {
                        let off = noise(rank * 31 + part, step * 7 + kind as usize) % (2 * percent + 1) - percent;
                        let length = all / parts as i64 * (100 + off) / 100;
                        items.push(Item { start: at, end: at + length, kind, ..Item::default() });
                        at += length + 2_000;
                    }
                }
                if self.stood.is_some() && step == STOOD {
                    // What had not ended by then has no record.
                    let first = edges[rank][step];
                    items.truncate(if self.stood == Some(rank) { first + 1 } else { items.len() });
                    begins[rank] = items[items.len() - 1].end + 2_000;
                    at += if [Some(rank), Some(NOBODY)].contains(&self.stood) { 5_000_000_000 } else { 0 };
                }
                ready.push(at);
            }
            let last = ready.iter().max().copied().unwrap_or(0);
            let slowest = (0..self.ranks).map(|rank| (self.link)(rank, step)).max().unwrap_or(0);
            for (rank, items) in ranks.iter_mut().enumerate() {
                let end = last + 1_000 * slowest;
                let has_stood = self.stood.is_some() && step == STOOD;
                let (kind, start) = if has_stood { (UNKNOWN, begins[rank]) } else { (ALL_REDUCE, ready[rank]) };
                joined.push((step as u64, rank as u32, items.len() as u32));
                let busy = 1_000.0 * (self.link)(rank, step) as f64;
                uses.push((rank, Use { link: rank, item: items.len(), busy, each: busy / 8.0, ..Use::default() }));
                items.push(Item { stream: 1, start, end, kind, is_communication: true, ..Item::default() });
                done[rank] = end;
            }
        }
        let graph = Graph::new(ranks, joined, (0..self.ranks).collect());
        let kind = |class, name: &str| Kind { class, name: name.to_owned() };
        let facts = |rank: usize| RankFacts {
            label: format!("rank {rank}"),
            number: Some(rank as i32),
            host: Some(format!("node{}", rank / 2)),
            file: PathBuf::from(format!("{rank}.perfetto-trace")),
            is_ours: true,
            edges: edges[rank].clone(),
            steps: self.steps - 1,
            ..RankFacts::default()
        };
        let use_of = |(rank, it): (usize, Use)| Use { item: graph.rank(rank).start + it.item, ..it };
        Job {
            ranks: (0..self.ranks).map(facts).collect(),
            kinds: vec![
                kind(Class::Kernel, "forward"),
                kind(Class::Kernel, "backward"),
                kind(Class::Communication, "AllReduce 1 MiB f32 on dp"),
                kind(Class::Kernel, "check"),
                kind(Class::Communication, UNRECORDED),
            ],
            communicators: [(ALL_REDUCE, "dp".to_owned())].into_iter().collect(),
            sizes: [(ALL_REDUCE, Some(self.ranks))].into_iter().collect(),
            links: (0..self.ranks)
                .map(|from| Link { from, to: Some((from + 1) % self.ranks), peer: ((from + 1) % self.ranks) as i32 })
                .collect(),
            uses: uses.into_iter().map(use_of).collect(),
            steps: 2..self.steps - 1,
            numbering: Numbering {
                source: Some(Source::Repeats(Repeat::once("forward"))),
                all: self.steps - 1,
                ..Numbering::default()
            },
            graph,
            ..Job::default()
        }
    }

    fn found(self) -> (Job, Findings) {
        let job = self.job();
        let found = causes::find(&job);
        (job, found)
    }

    fn says(self) -> String {
        first_line(&self.job())
    }
}

fn first_line(job: &Job) -> String {
    written(&Report::of(job, &causes::find(job), &Troubles::default())).lines().next().unwrap_or_default().to_owned()
}

fn written(report: &Report) -> String {
    let mut out = Vec::new();
    report.write(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Fixed numbers without a pattern.
fn noise(rank: usize, step: usize) -> i64 {
    let mixed = ((rank * 1009 + step) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as i64
}

/// The causes: what, which ranks, what each costs in us per step.
fn told(found: &Findings) -> Vec<(What, Vec<usize>, i64)> {
    found.causes.iter().map(|it| (it.what, it.ranks.clone(), (it.cost / 1e3) as i64)).collect()
}

#[test]
fn a_healthy_job_is_called_healthy() {
    assert_eq!(Made::healthy().says(), "Healthy: no rank, host or link holds up the others in 37 steps of 10.2 ms.");
}

#[test]
fn of_a_healthy_job_it_is_said_if_communication_takes_much_of_it() {
    let says = Made { link: |_, _| 9_000, ..Made::healthy() }.says();
    let expected =
        ". 9.00 ms of each (49 %) is communication with no kernel beside it, mostly AllReduce 1 MiB f32 on dp.";
    assert!(says.starts_with("Healthy: ") && says.ends_with(expected), "{says}");
}

#[test]
fn a_job_is_not_called_healthy_if_its_communication_is_not_matched() {
    let mut job = Made { link: |_, _| 9_000, ..Made::healthy() }.job();
    // Of two operations only one is known on the other ranks; each step has three items.
    let items = (0..4).map(|rank| job.graph.items[job.graph.rank(rank)].to_vec()).collect();
    let joined = (0..40_u32).step_by(2).flat_map(|step| (0..4).map(move |rank| (step.into(), rank, 3 * step + 2)));
    job.graph = Graph::new(items, joined.collect(), vec![0, 1, 2, 3]);
    let says = first_line(&job);
    let expected = "Cannot tell for whom the ranks wait: rank 0 spends ";
    assert!(says.starts_with(expected) && says.contains("mostly in `AllReduce 1 MiB f32 on dp`"), "{says}");
}

#[test]
fn nobody_is_blamed_for_the_noise_of_single_kernels() {
    for ranks in [2, 4] {
        let made = Made { ranks, parts: (150, 20), work: |_, _| 100, ..Made::healthy() };
        assert!(made.says().starts_with("Healthy"), "{}", made.says());
    }
    let slow = Made { parts: (150, 20), work: |rank, _| if rank == 2 { 120 } else { 100 }, ..Made::healthy() };
    assert!(slow.says().starts_with("Rank 2 on node1 computes longer"), "{}", slow.says());
}

#[test]
fn a_rank_that_evaluates_now_and_then_has_no_unequal_work() {
    let work = |rank, step| if rank == 0 && step % 10 == 9 { 400 } else { 100 + noise(rank, step) % 3 };
    let told = told(&Made { work, ..Made::healthy() }.found().1);
    assert!(told.iter().all(|(what, ..)| *what != What::UnequalWork), "{told:?}");
}

#[test]
fn a_rank_that_becomes_slow_is_named() {
    let early: fn(usize, usize) -> i64 = |rank, step| if rank == 2 && step >= 14 { 150 } else { 100 };
    let late: fn(usize, usize) -> i64 = |rank, step| if rank == 2 && step >= 28 { 150 } else { 100 };
    for work in [early, late] {
        let says = Made { work, ..Made::healthy() }.says();
        assert!(says.starts_with("Rank 2 on node1 computes longer than the others"), "{says}");
    }
    let pause = |rank, step| if rank == 1 && step >= 20 { 1_500 } else { 10 };
    let says = Made { pause, ..Made::healthy() }.says();
    assert!(says.starts_with("Rank 1 on node0 gets work from its host too late"), "{says}");
    // Two of forty steps, or by chance one in three, are no stretch.
    let twice = |rank, step| if rank == 2 && step % 20 == 5 { 150 } else { 100 };
    let chance = |rank, step| if noise(rank, step) % 3 == 0 { 130 } else { 100 };
    let blamed = |work| told(&Made { work, ..Made::healthy() }.found().1).iter().any(|it| it.0 == What::Kernels);
    assert!(!blamed(twice) && !blamed(chance));
}

#[test]
fn a_slow_rank_costs_what_a_replay_saves() {
    let made = Made { work: |rank, step| if rank == 2 { 130 } else { 100 + noise(rank, step) % 3 }, ..Made::healthy() };
    let (_, found) = made.found();
    let told = told(&found);
    assert!(matches!(&told[..], [(What::Kernels, ranks, 2_500..2_800)] if ranks == &[2]), "{told:?}");
    let healthy = Made::healthy().found().1.steps.median;
    assert!((found.causes[0].without.median - healthy).abs() < 100_000.0, "{:?}", found.causes[0].without);
    let says = made.says();
    assert!(
        says.starts_with("Rank 2 on node1 computes longer than the others: its `backward` takes 7.80 ms"),
        "{says}"
    );
}

#[test]
fn two_ranks_that_hide_each_other_are_both_named() {
    let made = Made { work: |rank, _| if rank % 2 == 1 { 130 } else { 100 }, ..Made::healthy() };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::Kernels, ranks, 2_400..2_800)] if ranks == &[1, 3]), "{told:?}");
}

#[test]
fn slow_links_are_named_by_what_they_have_in_common() {
    let says = |ranks, link: fn(usize, usize) -> i64, host: fn(usize) -> usize| {
        let mut job = Made { ranks, link, ..Made::healthy() }.job();
        (0..).zip(&mut job.ranks).for_each(|(rank, facts)| facts.host = Some(format!("node{}", host(rank))));
        first_line(&job)
    };
    const fn slow(is_slow: bool) -> i64 {
        if is_slow { 9_000 } else { 900 }
    }
    // A ring of four hosts, of which one is at both slow links.
    let of_host = says(8, |rank, _| slow([3, 5].contains(&rank)), |rank| rank / 2);
    assert!(of_host.starts_with("The links of node2 are slow: a transfer of AllReduce"), "{of_host}");
    let some = says(12, |rank, _| slow([3, 5, 9].contains(&rank)), |rank| rank / 2 % 3);
    assert!(some.starts_with("3 of the 4 links of node2 are slow"), "{some}");
    let between = says(8, |rank, _| slow([0, 2, 4].contains(&rank)), |rank| rank % 2);
    assert!(between.starts_with("3 of the 8 links between node0 and node1 are slow"), "{between}");
    let of_rank = says(4, |rank, _| slow([1, 2].contains(&rank)), |rank| rank);
    assert!(of_rank.starts_with("The links of rank 2 are slow"), "{of_rank}");
    let of_none = says(8, |rank, _| slow([1, 5].contains(&rank)), |rank| rank / 2);
    assert!(of_none.starts_with("The links from rank 1 to rank 2 and from rank 5 to rank 6 are slow"), "{of_none}");
    let few = says(12, |rank, _| slow([3, 5].contains(&rank)), |rank| rank / 2 % 3);
    assert!(few.starts_with("The links from rank 3 to rank 4 and from rank 5 to rank 6 are slow"), "{few}");
}

#[test]
fn a_kernel_that_no_other_rank_runs_is_named() {
    let says = Made { checks: |rank, _| usize::from(rank == 1), ..Made::healthy() }.says();
    assert!(
        says.starts_with("Rank 1 on node0 runs `check` for 3.00 ms a step, which the other ranks do not"),
        "{says}"
    );
}

#[test]
fn kernels_without_a_record_are_not_said_to_be_a_rank_s_own() {
    let mut job = Made { checks: |rank, _| usize::from(rank == 1), ..Made::healthy() }.job();
    job.kinds[CHECK as usize].name = UNRECORDED.to_owned();
    assert!(causes::find(&job).causes.is_empty(), "{}", first_line(&job));
}

#[test]
fn a_single_long_pause_is_named() {
    let made = |pause: fn(usize, usize) -> i64| Made { pause, ..Made::healthy() };
    let says = made(|rank, step| if (rank, step) == (1, 20) { 8_000_000 } else { 10 + noise(rank, step) % 30 }).says();
    let expected = "Rank 1 on node0 paused once: its GPU had nothing to do for 8.00 s, usually for ";
    assert!(says.starts_with(expected), "{says}");
    let says = made(|rank, step| if step == 20 { 8_000_000 } else { 10 + noise(rank, step) % 30 }).says();
    assert!(says.starts_with("Every rank paused once: its GPU had nothing to do for 8.00 s"), "{says}");
    // A machine may be busy for as long.
    let says = made(|rank, step| if (rank, step) == (1, 20) { 800_000 } else { 10 + noise(rank, step) % 30 }).says();
    assert!(says.starts_with("Cannot tell: one step takes much longer"), "{says}");
}

#[test]
fn a_gpu_that_stood_still_once_is_named() {
    let says = Made { stood: Some(2), ..Made::healthy() }.says();
    let expected = "Rank 2 on node1 stood still once: its GPU did not end `backward` for 5.0";
    assert!(says.starts_with(expected) && says.contains("when those of the others had. Without it"), "{says}");
    // Nothing shows which it was.
    let mut job = Made { stood: Some(NOBODY), ..Made::healthy() }.job();
    let gaps: Vec<usize> =
        (0..job.graph.items.len()).filter(|item| !job.is_recorded(job.graph.items[*item].kind)).collect();
    assert!(causes::find(&job).causes.is_empty(), "{}", first_line(&job));
    // Data from rank 0 had arrived on rank 1 all the time.
    job.untaken = [((gaps[1], 0), 4e9)].into_iter().collect();
    let says = first_line(&job);
    let expected = "Rank 1 on node0 stood still once: for 5.0";
    assert!(says.starts_with(expected) && says.contains("took nothing of what had arrived. Without it"), "{says}");
    job.untaken = gaps.iter().map(|gap| ((*gap, 0), 4e9)).collect();
    assert!(causes::find(&job).causes.is_empty(), "all of them did: {}", first_line(&job));
}

#[test]
fn a_rank_with_most_of_the_work_is_named() {
    // It may be its part of the model, so it is not said to have something extra.
    let says = Made { work: |_, _| 20, checks: |rank, _| usize::from(rank == 1), ..Made::healthy() }.says();
    let expected = "Rank 1 on node0 has most of the work: 4.80 ms a step, where the ranks have 2.55 ms on average; \
                    most of the difference is `check`. Without it each step would be 2.24 ms shorter";
    assert!(says.starts_with(expected), "{says}");
}

#[test]
fn all_ranks_of_a_larger_stage_are_named() {
    // Which of them has most of the work differs from step to step.
    let made = Made {
        ranks: 8,
        work: |rank, step| 20 + noise(rank, step) % 3,
        checks: |rank, _| usize::from(rank > 1 && rank < 4),
        ..Made::healthy()
    };
    let says = made.says();
    let expected = "Ranks 2 and 3 on node1 have most of the work: 4.9";
    assert!(says.starts_with(expected), "{says}");
}

#[test]
fn a_rank_without_kernels_makes_nobody_s_work_unequal() {
    // They were lost: its process was killed.
    let made = Made { work: |rank, step| if rank == 2 { 0 } else { 100 + noise(rank, step) % 3 }, ..Made::healthy() };
    assert!(made.says().starts_with("Healthy"), "{}", made.says());
}

#[test]
fn a_shared_gpu_is_said_first_and_its_gaps_are_no_host_s_fault() {
    let late = Made { pause: |rank, _| if rank == 3 { 3_000 } else { 20 }, ..Made::healthy() };
    let slow = Made { work: |rank, _| if rank == 3 { 130 } else { 100 }, ..Made::healthy() };
    let lines = |made: Made| {
        let job = Job { shares_gpus: true, ..made.job() };
        let shared_gpus = vec![SharedGpu { ranks: vec![0, 1], pids: vec![10, 11], ..SharedGpu::default() }];
        let troubles = Troubles { shared_gpus, ..Troubles::default() };
        let says = written(&Report::of(&job, &causes::find(&job), &troubles));
        says.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let [late, slow] = [late, slow].map(lines);
    assert!(late[0].starts_with("Ranks 0, 1 share a GPU: ") && late[3].is_empty(), "{late:#?}");
    assert!(slow[3].starts_with("Rank 3 on node1 computes longer than the others"), "{slow:#?}");
}

#[test]
fn a_late_host_is_told_from_slow_kernels() {
    let made = Made { pause: |rank, _| if rank == 3 { 3_000 } else { 20 }, ..Made::healthy() };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::Host, ranks, 2_800..3_100)] if ranks == &[3]), "{told:?}");
}

#[test]
fn hosts_that_are_all_slow_are_no_single_rank_s_fault() {
    let made = Made { pause: |rank, step| 3_000 + noise(rank, step) % 50, ..Made::healthy() };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::HostBound, ranks, 2_800..3_200)] if ranks.len() == 4), "{told:?}");
}

#[test]
fn a_slow_link_is_the_one_whose_transfers_take_longer() {
    let made =
        Made { link: |rank, step| if rank == 1 { 4_000 } else { 900 + noise(rank, step) % 100 }, ..Made::healthy() };
    let (job, found) = made.found();
    let told = told(&found);
    assert!(matches!(&told[..], [(What::Link, _, 2_800..3_200)]), "{told:?}");
    assert_eq!(job.links[found.causes[0].links[0]], Link { from: 1, to: Some(2), peer: 2 });
}

#[test]
fn a_slow_channel_is_named_with_its_link() {
    let made = Made { link: |rank, _| if rank == 1 { 4_000 } else { 900 }, ..Made::healthy() };
    let on = |channels: [u32; 2]| {
        let mut job = made.job();
        for (turn, it) in job.uses.iter_mut().enumerate() {
            it.channel = Some(channels[turn / made.ranks % 2]);
        }
        first_line(&job)
    };
    assert!(on([3, 3]).starts_with("The link from rank 1 to rank 2 on channel 3 is slow: "), "{}", on([3, 3]));
    assert!(on([0, 1]).starts_with("The link from rank 1 to rank 2 is slow: "), "by turns: {}", on([0, 1]));
}

#[test]
fn what_gpus_must_take_is_not_won_by_a_faster_link() {
    let mut job = Made { link: |rank, _| if rank == 1 { 4_000 } else { 900 }, ..Made::healthy() }.job();
    let taken = Taken { busy: 2e6, each: 250e3, count: 8, held: 0.0 };
    job.taken = job.uses.iter().map(|it| (it.item, taken)).collect();
    let told = told(&causes::find(&job));
    // The others' links take 900 us, the GPUs another 2,000.
    assert!(matches!(&told[..], [(What::Link, _, 1_000..1_150)]), "{told:?}");
}

#[test]
fn a_link_that_stalls_is_not_called_slow() {
    let made = Made { link: |rank, step| if rank == 0 && step % 7 == 3 { 30_000 } else { 900 }, ..Made::healthy() };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::Stall, _, 3_500..5_000)]), "{told:?}");
}

/// Progress threads of this rank, or of all, wait for a processor for this part of the time in
/// which transfers take longer than this, ms; in percent.
fn without_processor(job: &mut Job, whose: Option<usize>, longer_ms: i64, percent: u64) {
    for rank in (0..job.ranks.len()).filter(|rank| whose.is_none_or(|whose| whose == *rank)) {
        let items = job.graph.items[job.graph.rank(rank)].iter();
        let long = items.filter(|it| it.is_communication && it.end - it.start > longer_ms * 1_000_000);
        let wait = |it: &Item| CpuWait { process: 0, span: Span::of(it.start, it.end), percent };
        job.ranks[rank].cpu_waits = long.map(wait).collect();
    }
}

#[test]
fn links_are_not_blamed_for_threads_without_a_processor() {
    let stalls =
        || Made { link: |rank, step| if rank == 0 && step % 7 == 3 { 30_000 } else { 900 }, ..Made::healthy() };
    for (whose, expected) in [(0, "Rank 0 on node0 lacks"), (1, "Rank 1 on node0 lacks"), (2, "The link from rank 0")] {
        let mut job = stalls().job();
        without_processor(&mut job, Some(whose), 10, 90);
        assert!(first_line(&job).starts_with(expected), "{whose}: {}", first_line(&job));
    }
    let mut job = stalls().job();
    without_processor(&mut job, Some(1), 10, 90);
    let says = first_line(&job);
    let expected = "Rank 1 on node0 lacks processor time: its proxy thread had to wait for it while transfers of \
                    AllReduce 1 MiB f32 on dp took 30.0 ms on the link from rank 0 to rank 1 instead of 900 µs. Without";
    assert!(says.starts_with(expected), "{says}");
    // Where threads take turns all the time, they wait for tens of ms; not for longer.
    let mut job = stalls().job();
    without_processor(&mut job, None, 0, 80);
    assert!(first_line(&job).contains(" processor time: "), "{}", first_line(&job));
    without_processor(&mut job, None, 0, 30);
    assert!(first_line(&job).starts_with("The link from rank 0 to rank 1 stalls"), "{}", first_line(&job));

    let slow = || Made { link: |rank, _| if rank == 1 { 4_000 } else { 900 }, ..Made::healthy() };
    let mut job = slow().job();
    without_processor(&mut job, Some(2), 0, 75);
    assert!(first_line(&job).starts_with("Rank 2 on node1 lacks processor time: "), "{}", first_line(&job));
    // At times it has one to itself.
    let mut job =
        Made { link: |rank, step| if rank == 1 && step % 3 == 0 { 9_000 } else { 900 }, ..Made::healthy() }.job();
    without_processor(&mut job, Some(2), 2, 75);
    assert!(first_line(&job).starts_with("Rank 2 on node1 lacks processor time: "), "{}", first_line(&job));
    // All wait, but it has a third of the others' time.
    let mut job = slow().job();
    without_processor(&mut job, None, 0, 70);
    let waits = std::mem::take(&mut job.ranks[2].cpu_waits);
    job.ranks[2].cpu_waits = waits.into_iter().map(|it| CpuWait { percent: 90, ..it }).collect();
    assert!(first_line(&job).starts_with("Rank 2 on node1 lacks processor time: "), "{}", first_line(&job));
    without_processor(&mut job, None, 0, 75);
    let says = first_line(&job);
    assert!(says.starts_with("The link from rank 1 to rank 2 is slow"), "those of the others wait, too: {says}");
}

#[test]
fn a_gpu_that_takes_late_what_has_arrived_is_named() {
    let made = Made { link: |_, _| 4_000, ..Made::healthy() };
    // The network is fast, and rank 2's GPU needs most of the time.
    let job = || {
        let mut job = made.job();
        job.uses.iter_mut().for_each(|it| (it.busy, it.each) = (400e3, 50e3));
        let late = job.graph.rank(2);
        let taken = |item: usize| match late.contains(&item) {
            true => Taken { busy: 3.5e6, each: 440e3, count: 8, held: 0.0 },
            false => Taken { busy: 320e3, each: 40e3, count: 8, held: 0.0 },
        };
        job.taken = job.uses.iter().map(|it| (it.item, taken(it.item))).collect();
        job
    };
    let says = first_line(&job());
    let expected = "Rank 2 on node1 takes late what has arrived: for AllReduce 1 MiB f32 on dp, each transfer waits \
                    440 µs for its GPU, or the next on that host, elsewhere 40.0 µs. Without it each step would be \
                    3.18 ms shorter";
    assert!(says.starts_with(expected), "{says}");
    let is_silent = |job: &Job| first_line(job).starts_with("Healthy: ");
    let mut blocked = job();
    let of_rank_2 = blocked.graph.rank(2);
    blocked.uses.iter_mut().filter(|it| of_rank_2.contains(&it.item)).for_each(|it| it.busy = 2e6);
    assert!(is_silent(&blocked), "what it passes on is slow: {}", first_line(&blocked));
    let mut held = job();
    held.taken.values_mut().for_each(|it| it.held = it.busy);
    assert!(is_silent(&held), "there is no room for what it passes on: {}", first_line(&held));
    let mut busy = job();
    without_processor(&mut busy, Some(2), 0, 60);
    assert!(is_silent(&busy), "its thread sees it late: {}", first_line(&busy));
    let mut at_times = job();
    let now_and_then = |(item, taken): (usize, Taken)| match item % 2 {
        0 => (item, Taken { busy: 320e3, each: 40e3, ..taken }),
        _ => (item, taken),
    };
    at_times.taken = std::mem::take(&mut at_times.taken).into_iter().map(now_and_then).collect();
    assert!(is_silent(&at_times), "not in most steps: {}", first_line(&at_times));
}

#[test]
fn a_gpu_is_not_blamed_for_a_link_that_is_slow_the_other_way() {
    // By turns, the ring of the operation goes one way and the other. Either way the same cable is
    // slow, and the GPU before it has nowhere to pass on what has arrived.
    let link = |rank, step| if rank == [1, 3][step % 2] { 4_000 } else { 900 };
    let mut job = Made { link, ..Made::healthy() }.job();
    let back = job.kinds.len() as u32;
    job.kinds.push(Kind { class: Class::Communication, name: "AllReduce 1 MiB f32 on back".to_owned() });
    for (turn, it) in job.uses.iter_mut().enumerate() {
        let is_back = turn / 4 % 2 == 1;
        let kind = if is_back { back } else { ALL_REDUCE };
        job.graph.items[it.item].kind = kind;
        let is_late = it.link == if is_back { 2 } else { 0 };
        let each = if is_late { 440e3 } else { 40e3 };
        job.taken.insert(it.item, Taken { busy: 8.0 * each, each, count: 8, held: 0.0 });
    }
    let found = causes::find(&job);
    assert!(matches!(&told(&found)[..], [(What::Link, ..)]), "{:?}", told(&found));
    assert_eq!(found.causes[0].names, ["AllReduce 1 MiB f32 on dp", "AllReduce 1 MiB f32 on back"]);
}

#[test]
fn a_gpu_is_not_blamed_for_what_it_waited_for() {
    // The others wait in the operation until rank 1 comes.
    let work = |rank, _| if rank == 1 { 200 } else { 100 };
    let mut job = Made { work, link: |_, _| 4_000, ..Made::healthy() }.job();
    job.uses.iter_mut().for_each(|it| (it.busy, it.each) = (400e3, 50e3));
    let late = job.graph.rank(2);
    let taken = |item: usize| match late.contains(&item) {
        true => Taken { busy: 9e6, each: 9e6, count: 1, held: 0.0 },
        false => Taken { busy: 40e3, each: 40e3, count: 1, held: 0.0 },
    };
    job.taken = job.uses.iter().map(|it| (it.item, taken(it.item))).collect();
    let told = told(&causes::find(&job));
    assert!(matches!(&told[..], [(What::Kernels, ranks, _)] if ranks == &[1]), "{told:?}");
}

#[test]
fn a_link_that_stands_still_once_is_named_if_the_receiver_waits_for_it() {
    let made = Made { link: |rank, step| if rank == 0 && step == 13 { 6_000_000 } else { 900 }, ..Made::healthy() };
    let mut job = made.job();
    let says = first_line(&job);
    assert!(says.starts_with("The link from rank 0 to rank 1 stood still once: AllReduce"), "{says}");
    // The receiver's GPU does not take what has arrived.
    let received: Vec<usize> = job.uses.iter().filter(|it| it.link == 1).map(|it| it.item).collect();
    job.untaken = received.into_iter().map(|item| ((item, 0), 5.9e9)).collect();
    let says = first_line(&job);
    assert!(says.starts_with("Cannot tell: one step takes much longer"), "{says}");
}

#[test]
fn one_long_step_is_no_disease() {
    let made = Made { pause: |_, step| if step == 20 { 90_000 } else { 20 }, ..Made::healthy() };
    assert!(made.says().starts_with("Healthy: "), "{}", made.says());
}

#[test]
fn links_that_stall_together_are_named_together() {
    let made = Made {
        ranks: 8,
        link: |rank, step| if rank % 4 == 0 && step % 7 == 3 { 30_000 - 4_000 * rank as i64 } else { 900 },
        ..Made::healthy()
    };
    let (_, found) = made.found();
    assert_eq!((found.causes.len(), found.causes[0].what, found.causes[0].links.len()), (1, What::Stall, 2));
}

#[test]
fn a_job_whose_long_steps_have_no_known_cause_is_not_called_healthy() {
    // On every link, so none of them is at fault.
    let says = Made { link: |_, step| if step % 9 == 4 { 40_000 } else { 900 }, ..Made::healthy() }.says();
    assert!(says.starts_with("Cannot tell: now and then a step takes much longer"), "{says}");
}

#[test]
fn steps_keep_their_numbers_if_only_some_are_looked_at() {
    let mut job = Made { checks: |rank, _| usize::from(rank == 1), ..Made::healthy() }.job();
    job.numbering.first = 100;
    let found = causes::find(&job);
    let says = written(&Report::of(&job, &found, &Troubles::default()));
    let look = format!("look at step {} of 1.perfetto-trace", 100 + found.causes[0].step);
    assert!(says.contains(&look) && says.contains("Steps 102 to 138 of 39"), "{says}");
}

#[test]
fn a_cause_says_how_to_see_it_on_all_ranks() {
    let says = |made: Made| {
        let (job, found) = made.found();
        written(&Report::of(&job, &found, &Troubles::default()).with_all_ranks(&["the job".into(), "b".into()]))
    };
    let expected = "\n    ncclscope merge -o job.perfetto-trace 'the job' b && ncclscope open job.perfetto-trace\n";
    let sick = says(Made { checks: |rank, _| usize::from(rank == 1), ..Made::healthy() });
    assert_eq!(sick.matches(expected).count(), 1, "{sick}");
    assert!(!says(Made::healthy()).contains("ncclscope merge"));
}

#[test]
fn pauses_have_a_period() {
    let made = Made { pause: |_, step| if step % 10 == 5 { 40_000 } else { 20 }, ..Made::healthy() };
    let (_, found) = made.found();
    let cause = &found.causes[0];
    assert_eq!((found.causes.len(), cause.what, cause.every, cause.ranks.len()), (1, What::Pauses, Some(10), 4));
    let says = made.says();
    assert!(says.starts_with("Every 10 steps every rank pauses: its GPU has nothing to do for 40.0 ms"), "{says}");
}

#[test]
fn shorter_pauses_of_other_ranks_hide_none() {
    let pause = |rank, step| match (rank, step) {
        (1, _) if step % 10 == 5 => 80_000,
        (0, 8 | 13 | 22 | 31) | (3, 8 | 17 | 22) => 20_000,
        _ => 20,
    };
    let (_, found) = Made { pause, ..Made::healthy() }.found();
    let cause = &found.causes[0];
    assert_eq!((cause.what, cause.every, &cause.ranks[..]), (What::Pauses, Some(10), &[1][..]), "{:?}", told(&found));
}

/// One of four stages has less to do, and which of the others has most is chance.
#[test]
fn a_stage_with_less_work_makes_nobody_s_work_unequal() {
    let work = |rank, step| if rank == 3 { 60 } else { 100 + noise(rank, step) % 6 };
    let says = Made { work, ..Made::healthy() }.says();
    assert!(says.starts_with("Healthy: "), "{says}");
    let work = |rank, step| if rank == 3 { 60 } else { 85 + noise(rank, step) % 60 };
    let says = Made { work, ..Made::healthy() }.says();
    assert!(says.starts_with("The work is unequal, and in each step another rank has most"), "{says}");
}

#[test]
fn work_that_is_unequal_by_turns_is_no_rank_s_fault() {
    let made = Made { work: |rank, step| 100 + noise(rank, step) % 60, ..Made::healthy() };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::UnequalWork, _, 1_000..2_500)]), "{told:?}");
}

#[test]
fn two_causes_come_in_the_order_of_their_cost() {
    let made = Made {
        work: |rank, _| if rank == 2 { 130 } else { 100 },
        link: |rank, _| if rank == 0 { 6_000 } else { 900 },
        ..Made::healthy()
    };
    let told = told(&made.found().1);
    assert!(matches!(&told[..], [(What::Link, ..), (What::Kernels, ranks, _)] if ranks == &[2]), "{told:?}");
}

#[test]
fn a_single_very_long_step_is_named() {
    let made = Made { pause: |_, step| if step == 12 { 900_000 } else { 100 }, ..Made::healthy() };
    let (job, found) = made.found();
    let says = written(&Report::of(&job, &found, &Troubles::default()));
    assert!(says.starts_with("Cannot tell: one step takes much longer"), "{says}");
    let step = found.steps.longest.1;
    assert!((11..=12).contains(&step) && says.contains(&format!("  look at step {step} of ")), "{says}");
}

#[test]
fn one_long_step_is_mentioned_in_a_healthy_job() {
    let says = Made { pause: |_, step| if step == 12 { 120_000 } else { 100 }, ..Made::healthy() }.says();
    let expected = ". Step 11 takes 130 ms: the GPUs have nothing to do for 120 ms of it.";
    assert!(says.starts_with("Healthy: ") && says.ends_with(expected), "{says}");
    let says = Made { pause: |_, step| if step == 12 { 20_000 } else { 100 }, ..Made::healthy() }.says();
    assert!(says.starts_with("Healthy: ") && !says.contains("Step "), "too short to matter: {says}");
}

#[test]
fn of_the_longest_step_it_is_said_what_it_goes_into() {
    let says = |made: Made, created: bool| {
        let mut job = made.job();
        let (from, _) = job.step_times(1, 13, false);
        let world = |at: i64| (FileNs(at), "world".to_owned());
        job.ranks[1].created = if created { vec![world(from - 1), world(from)] } else { vec![world(from - 1)] };
        first_line(&job)
    };
    let slow = Made { work: |rank, step| if (rank, step) == (2, 13) { 800 } else { 100 }, ..Made::healthy() };
    let expected = ": `backward` on rank 2 takes 48.0 ms of it";
    assert!(says(slow, false).ends_with(&format!("{expected}.")), "{}", says(slow, false));
    let with = format!("{expected}, and communicator world is created in it.");
    assert!(says(slow, true).ends_with(&with), "{}", says(slow, true));
    let all_slow = Made { work: |_, step| if step == 13 { 800 } else { 100 }, ..Made::healthy() };
    assert!(says(all_slow, false).ends_with(": `backward` takes 48.0 ms of it."), "{}", says(all_slow, false));
    let idle = Made { pause: |rank, step| if (rank, step) == (3, 14) { 90_000 } else { 10 }, ..Made::healthy() };
    let expected = ": the GPU of rank 3 has nothing to do for 90.0 ms of it.";
    assert!(says(idle, false).ends_with(expected), "{}", says(idle, false));
    let slow = Made { link: |_, step| if step == 13 { 90_000 } else { 900 }, ..Made::healthy() };
    assert!(says(slow, false).contains(": AllReduce 1 MiB f32 on dp takes 90.0 ms of it. "), "{}", says(slow, false));
}

/// Steps 40 to 79 take an eighth longer, and nothing shows why.
#[test]
fn what_costs_more_than_a_change_of_pace_is_found_in_all_steps() {
    let says = |stall: fn(usize, usize) -> i64| {
        let work = |rank, step| if step < 40 { 100 + noise(rank, step) % 3 } else { 114 + noise(rank, step) % 3 };
        let mut job = Made { steps: 80, link: stall, work, ..Made::healthy() }.job();
        job.look_at_slow_steps();
        let found = found(&mut job);
        written(&Report::of(&job, &found, &Troubles::default())).lines().next().unwrap().to_owned()
    };
    let healthy = says(|rank, step| 900 + noise(rank, step) % 100);
    assert!(healthy.starts_with("Healthy: ") && healthy.contains(". Since step 4"), "{healthy}");
    let often = says(|rank, step| if rank == 1 && step % 13 == 5 && step < 45 { 60_000 } else { 900 });
    assert!(often.starts_with("The link from rank 1 to rank 2 stalls now and then"), "{often}");
    assert!(!often.contains("Since step"), "{often}");
    let little = says(|rank, step| if rank == 1 && step % 13 == 5 && step < 45 { 9_000 } else { 900 });
    assert!(little.starts_with("Healthy: ") && little.contains(". Since step 4"), "{little}");
}

#[test]
fn one_rank_alone_is_healthy_if_nothing_holds_it_up() {
    let says = Made { ranks: 1, ..Made::healthy() }.says();
    assert!(says.starts_with("Healthy: nothing holds up rank 0 in 37 steps of "), "{says}");
}

#[test]
fn steps_with_more_work_on_every_rank_are_no_riddle() {
    let says = |checks: fn(usize, usize) -> usize| {
        let (job, found) = Made { checks, ..Made::healthy() }.found();
        written(&Report::of(&job, &found, &Troubles::default()))
    };
    let all = says(|_, step| if step % 12 == 11 { 20 } else { 0 });
    assert!(all.starts_with("Healthy: no rank, host or link holds up the others in 37 steps"), "{all}");
    let note = "3 of the 37 steps hold more work on every rank, as where a run is evaluated in between: the first is \
                step 11.";
    assert!(all.contains(note), "{all}");
    // One rank alone holds up the others.
    let one = says(|rank, step| if rank == 2 && step % 12 == 11 { 20 } else { 0 });
    assert!(!one.starts_with("Healthy") && !one.contains("more work on every rank"), "{one}");
    // As much work that takes longer shows that something is wrong.
    let slow = Made { work: |_, step| if step % 12 == 11 { 700 } else { 100 }, ..Made::healthy() }.says();
    assert!(slow.starts_with("Cannot tell: now and then a step takes much longer"), "{slow}");
}

#[test]
fn a_hang_comes_before_everything_else() {
    let made = Made { work: |rank, _| if rank == 2 { 130 } else { 100 }, ..Made::healthy() };
    let (job, found) = made.found();
    let operation = Operation { name: "AllReduce".to_owned(), ..Operation::default() };
    let hang = Hang { operation, is_numbered: true, is_certain: true, behind: 3, ..Hang::default() };
    let says = written(&Report::of(&job, &found, &Troubles { hangs: vec![hang], ..Troubles::default() }));
    let lines: Vec<&str> = says.lines().collect();
    assert!(lines[0].starts_with("The job hangs: AllReduce"), "{says}");
    assert_eq!(lines[1].trim(), "3 operations of its communicator wait behind it", "{says}");
}

#[test]
fn settings_that_differ_are_said_below_the_cause_of_these_ranks_or_the_hang_or_at_the_end() {
    let (job, found) = Made { work: |rank, _| if rank == 2 { 130 } else { 100 }, ..Made::healthy() }.found();
    let of = |rank: u32, hangs: Vec<Hang>| {
        let owner = |rank: u32| Owner { rank: Some(rank), pid: 0, file: format!("{rank}.perfetto-trace").into() };
        let others = (0..4).filter(|other| *other != rank).map(owner).collect();
        let values = vec![(Some("1".to_owned()), vec![owner(rank)]), (None, others)];
        let differing = vec![Differing { name: "NCCL_P2P_DISABLE".to_owned(), values, has_usual: true }];
        let says = written(&Report::of(&job, &found, &Troubles { hangs, differing, ..Troubles::default() }));
        says.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let said = |rank: u32| format!("NCCL_P2P_DISABLE is 1 on rank {rank}, and unset on the others");
    assert_eq!(of(2, vec![])[1], format!("  settings differ there: {}", said(2)));
    assert_eq!(of(3, vec![]).last(), Some(&format!("Settings differ: {}.", said(3))));
    let hang = Hang { is_numbered: true, is_certain: true, ..Hang::default() };
    assert_eq!(of(3, vec![hang])[1], format!("  Settings differ: {}", said(3)));
}

#[test]
fn a_job_that_may_hang_is_not_called_healthy() {
    let (job, found) = Made::healthy().found();
    let operation = Operation { name: "AllReduce".to_owned(), ..Operation::default() };
    let hang = Hang { operation, is_numbered: true, ..Hang::default() };
    let says = written(&Report::of(&job, &found, &Troubles { hangs: vec![hang], ..Troubles::default() }));
    assert!(says.starts_with("Cannot tell whether the job hangs or is slow: AllReduce"), "{says}");
}

#[test]
fn without_enough_steps_nobody_is_blamed() {
    let made = Made { steps: 6, work: |rank, _| if rank == 2 { 130 } else { 100 }, ..Made::healthy() };
    assert_eq!(made.says(), "Cannot tell: it takes 5 steps after warm-up; these files have 3.");
}

#[test]
fn without_the_application_s_kernels_no_host_is_accused() {
    let mut job =
        Made { pause: |_, _| 5_000, work: |rank, _| if rank == 1 { 120 } else { 100 }, ..Made::healthy() }.job();
    // As if only NCCL's kernels had been recorded.
    for item in &mut job.graph.items {
        item.is_communication = true;
    }
    job.kinds.iter_mut().for_each(|kind| kind.class = Class::Communication);
    let found = causes::find(&job);
    assert!(found.causes.is_empty(), "{:?}", told(&found));
    let says = written(&Report::of(&job, &found, &Troubles::default()));
    assert!(says.starts_with("Cannot tell what GPUs do between operations"), "{says}");
    assert!(says.contains("rank 1 comes last most often, in 100 %"), "{says}");
}

#[test]
fn what_counts_for_time_counts_for_coming_last() {
    let last = |job: &Job| {
        let of = super::shares::of_ranks(job, causes::find(job).steps.mean);
        of.into_iter().map(|it| it.last).collect::<Vec<_>>()
    };
    let warm_up = |rank, step| if rank == 3 && step < 2 { 200 } else { 100 };
    assert_eq!(last(&Made { work: warm_up, ..Made::healthy() }.job()), [0.0; 4]);
    let slow = Made { work: |rank, _| if rank == 3 { 120 } else { 100 }, ..Made::healthy() }.job();
    assert_eq!(last(&slow), [0.0, 0.0, 0.0, 1.0]);
    // Without steps, all of it counts.
    assert_eq!(last(&Job { numbering: Numbering::default(), steps: 0..0, ..slow }), [0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn without_steps_it_is_said_what_they_may_begin_with() {
    let job = Job { numbering: Numbering::default(), steps: 0..0, ..Made::healthy().job() };
    let says = first_line(&job);
    assert!(says.contains("with --step; most often run `forward`, `backward`, "), "{says}");
}

#[test]
fn ranks_that_wait_for_files_that_are_missing_are_not_healthy() {
    let job = Job { missing: 2, ..Made { link: |_, _| 3_000, ..Made::healthy() }.job() };
    let says = first_line(&job);
    assert!(says.starts_with("Cannot tell for whom the ranks wait. The files of 2 ranks are not here"), "{says}");
    let says = first_line(&Job { absent: vec![4, 6], ..job });
    assert!(says.starts_with("Cannot tell for whom the ranks wait. The files of ranks 4 and 6 are not"), "{says}");
}

#[test]
fn an_answer_about_no_step_is_not_drawn() {
    // Its only step was left out as warm-up.
    let job = Made::healthy().job();
    let drawn = |steps| super::seen(&job, "ranks share a GPU".into(), 0, steps, false).map(|it| it.time);
    assert!(drawn(1..1).is_none() && drawn(1..2) < drawn(1..3), "{:?}", drawn(1..2));
}
