//! Synthetic jobs with one thing changed, and what is said about them.

use std::collections::BTreeMap;

use super::change::Verdict;
use super::ranks::{Class, UNRECORDED};
use super::report::{Report, Style};
use super::slower::Part;
use super::steps::{Repeat, Source};
use super::*;
use crate::import::{
    Carried, Communicator, How, Kernel, NcclCall, Operation, Place, Process, Range, Request, Span, Tool, Transfer,
};
use crate::model::time::{FileNs, Shift};

/// A job. Each step is `forward`, `backward`, an AllReduce in which all ranks wait for each other,
/// and `optimizer`. Times are microseconds.
///
/// ```text
///   rank 0  |forward|backward|====AllReduce====|optimizer|pause|forward ...
///   rank 2  |forward|backward........|AllReduce|optimizer|pause|forward ...
/// ```
#[derive(Clone)]
struct Job {
    tool: Tool,
    ranks: i32,
    /// How many of them are GPUs of one process; of one alone, the launcher's number begins with
    /// `first`.
    gpus: i32,
    first: i32,
    steps: usize,
    /// A rank, and the time added to its `backward`.
    slow: Option<(i32, i64)>,
    /// How long a GPU is idle after its step, and one rank with more.
    pause: i64,
    late: Option<(i32, i64)>,
    transfer: i64,
    bytes: u64,
    /// The sender of a link, and the time that its transfers additionally wait for the network.
    link: Option<(i32, i64)>,
    /// Everything varies by up to this many hundredths, and the transfer by a multiple of that.
    jitter: i64,
    rough: i64,
    seed: u64,
    world: i32,
    device: &'static str,
    nccl: &'static str,
}

const HEALTHY: Job = Job {
    tool: Tool::Ncclscope,
    ranks: 4,
    gpus: 1,
    first: 0,
    steps: 30,
    slow: None,
    pause: 100,
    late: None,
    transfer: 1000,
    bytes: 2 << 20,
    link: None,
    jitter: 1,
    rough: 1,
    seed: 1,
    world: 4,
    device: "H200",
    nccl: "2.30.7",
};

impl Job {
    fn profile(&self) -> Profile {
        let mut profile = Profile { nccl_versions: vec![self.nccl.into()], ..Profile::default() };
        profile.source.tool = self.tool;
        profile.source.path = format!("run-{}", self.seed).into();
        profile.world = Some(self.world);
        profile.devices.insert(0, self.device.into());
        let mut random = self.seed;
        let mut about = |us: i64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            us * 1000 + us * 10 * self.jitter * ((random >> 33) % 100) as i64 / 100
        };
        for rank in 0..self.ranks {
            if rank % self.gpus == 0 {
                let pid = (self.seed * 1000) as i64 + i64::from(rank);
                let name = format!("rank {rank} · node");
                let number = (self.gpus == 1).then_some(self.first + rank);
                profile.processes.push(Process { pid, name, rank: number, threads: BTreeMap::new(), lost: 0 });
                profile.communicators.push(Communicator {
                    process: self.process(rank),
                    name: Some("dp".into()),
                    ranks: Some(self.ranks),
                    hash: Some(self.seed),
                    ..Communicator::default()
                });
            }
            let communicator = profile.communicators.last_mut().unwrap();
            communicator.rank = Some(rank);
            communicator.gpus.insert((rank % self.gpus) as u32, rank);
        }
        let mut now = vec![0; self.ranks as usize];
        for step in 0..self.steps {
            for rank in 0..self.ranks {
                let at = &mut now[rank as usize];
                let extra = |of: Option<(i32, i64)>| of.filter(|(own, _)| *own == rank).map_or(0, |(_, us)| us);
                for (name, us) in [("forward", 3000), ("backward", 5000 + extra(self.slow))] {
                    let end = *at + about(us);
                    self.kernel(&mut profile, rank, name, Span::of(*at, end));
                    *at = end;
                }
            }
            // It ends when the last rank has arrived and the data has been transferred.
            let transfer = self.transfer * 1000;
            let end = now.iter().max().unwrap() + transfer + (about(self.transfer) - transfer) * self.rough;
            for rank in 0..self.ranks {
                let at = &mut now[rank as usize];
                let operation = profile.operations.len();
                let request = Request {
                    function: "AllReduce".into(),
                    bytes: Some(self.bytes),
                    datatype: Some("ncclFloat32".into()),
                    ..Request::default()
                };
                profile.operations.push(Operation {
                    process: self.process(rank),
                    communicator: Some(self.process(rank)),
                    request: request.into(),
                    correlation: Some(step as u64),
                    ..Operation::default()
                });
                self.kernel(&mut profile, rank, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", Span::of(*at, end));
                let carried = &mut profile.kernels.last_mut().unwrap().carried;
                *carried = Carried { count: 1, operations: vec![operation], how: How::Exact, replay: None };
                let more = self.link.filter(|(from, _)| *from == rank).map_or(0, |(_, us)| us);
                profile.transfers.push(Transfer {
                    process: self.process(rank),
                    rank: Some(rank),
                    correlation: Some(step as u64),
                    span: Span::of(*at, end),
                    peer: Some((rank + 1) % self.ranks),
                    is_send: true,
                    waits: vec![("network wait".into(), about(300 + more) as u64)],
                    ..Transfer::default()
                });
                let done = end + about(1000);
                self.kernel(&mut profile, rank, "optimizer", Span::of(end, done));
                let late = self.late.filter(|(own, _)| *own == rank).map_or(0, |(_, us)| us);
                *at = done + about(self.pause + late);
            }
        }
        profile.sort();
        profile
    }

    fn process(&self, rank: i32) -> usize {
        (rank / self.gpus) as usize
    }

    fn kernel(&self, profile: &mut Profile, rank: i32, name: &str, span: Span) {
        let process = self.process(rank);
        let place = Place { device: (rank % self.gpus) as u32, ..Place::default() };
        profile.kernels.push(Kernel { process, span, place, name: name.into(), ..Kernel::default() });
    }

    #[track_caller]
    fn against(&self, b: &Job) -> Report {
        compare(&self.profile(), &Job { seed: self.seed + 1, ..b.clone() }.profile(), Some(Case::TwoRuns)).unwrap()
    }

    #[track_caller]
    fn says(&self, b: &Job, expected: &str) -> Report {
        let report = self.against(b);
        let text = &report.answer.as_ref().unwrap().text;
        assert!(text.contains(expected), "{text}");
        report
    }
}

fn text(report: &Report) -> String {
    let mut out = Vec::new();
    report.write(Style::Text, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn names_the_rank_that_works_longer_and_who_waits_for_it() {
    let slow = Job { slow: Some((2, 3000)), ..HEALTHY };
    let report = HEALTHY.says(&slow, "B's steps take 13.2 ms instead of 10.2 ms (+29 %): ");
    let answer = report.answer.as_ref().unwrap();
    assert!(
        answer.text.contains("rank 2 works longer: its `backward` takes 8.04 ms a step instead of 5.03 ms"),
        "{}",
        answer.text
    );
    assert!(answer.text.contains("the others wait for it in AllReduce 2 MiB f32 on dp (+3.0"), "{}", answer.text);
    assert_eq!(answer.verdict, Verdict::Slower);
    assert_eq!(answer.causes.len(), 1, "{:?}", answer.causes);
    assert_eq!((answer.causes[0].part, &answer.causes[0].ranks[..]), (Part::Works, &["rank 2".to_owned()][..]));
    assert_eq!(answer.waiting, ["rank 0", "rank 1", "rank 3"]);
    // The full text begins with the answer.
    assert!(text(&report).starts_with(&answer.text));
    // And the other way round.
    let report = slow.says(&HEALTHY, "rank 2 works less: its `backward` takes 5.03 ms a step instead of 8.04 ms");
    assert_eq!(report.answer.unwrap().verdict, Verdict::Faster);
}

#[test]
fn all_that_work_longer_are_named_together() {
    let every = |us: i64| {
        let mut profile = Job { seed: us as u64 + 7, ..HEALTHY }.profile();
        // The same kernel on all ranks, with room for it after the step.
        profile.kernels.iter_mut().filter(|it| &*it.name == "optimizer").for_each(|it| it.span.end.0 += us * 1000);
        let step = |at: i64| at / 10_100_000;
        for kernel in &mut profile.kernels {
            kernel.span = kernel.span.shifted(Shift { ns: step(kernel.span.start.0) * us * 1000, error_ns: 0 });
        }
        profile
    };
    let report = compare(&every(0), &every(2000), Some(Case::TwoRuns)).unwrap();
    let text = report.answer.unwrap().text;
    assert!(text.contains("every rank works longer: its `optimizer` takes 3.0"), "{text}");
}

#[test]
fn a_gpu_left_idle_by_its_host_is_not_a_slower_kernel() {
    let report = HEALTHY.says(&Job { late: Some((1, 4000)), ..HEALTHY }, "rank 1's GPU idles longer: 4.1");
    let answer = report.answer.unwrap();
    assert!(answer.text.contains("the others wait for it in AllReduce"), "{}", answer.text);
    assert_eq!(answer.causes.len(), 1, "{:?}", answer.causes);
}

#[test]
fn of_groups_the_one_whose_transfers_take_longer_is_named() {
    // Ranks 0 and 1 meet each other, and so do ranks 2 and 3.
    let groups = |us: i64| {
        let mut profile = Job { seed: us as u64 + 7, link: (us > 0).then_some((0, 900)), ..HEALTHY }.profile();
        let is_second = |process: usize| process > 1;
        let second = profile.operations.iter_mut().filter(|it| is_second(it.process));
        second.for_each(|it| it.correlation = it.correlation.map(|step| step + 1000));
        for kernel in profile.kernels.iter_mut().filter(|it| is_second(it.process)) {
            let step = kernel.span.start.0 / 10_100_000;
            let (is_transfer, is_after) = (kernel.name.starts_with("nccl"), &*kernel.name == "optimizer");
            kernel.span = kernel.span.shifted(Shift { ns: (step + i64::from(is_after)) * us * 1000, error_ns: 0 });
            kernel.span.end.0 += if is_transfer { us * 1000 } else { 0 };
        }
        profile
    };
    let report = compare(&groups(0), &groups(3000), Some(Case::TwoRuns)).unwrap();
    let answer = report.answer.unwrap();
    let said = "AllReduce 2 MiB f32 on dp takes longer by itself on ranks 2 and 3, 4.0";
    assert!(answer.text.contains(said), "{}", answer.text);
    // The network changed elsewhere.
    assert!(answer.text.contains("these files do not show which"), "{}", answer.text);
    assert_eq!(answer.causes[0].ranks, ["rank 2", "rank 3"]);
}

#[test]
fn a_slower_transfer_blames_no_rank() {
    let report =
        HEALTHY.says(&Job { transfer: 4000, ..HEALTHY }, "AllReduce 2 MiB f32 on dp takes longer by itself, 4.0");
    let answer = report.answer.unwrap();
    assert!(answer.text.contains("these files do not show which"), "{}", answer.text);
    assert_eq!((answer.causes.len(), answer.causes[0].part), (1, Part::Transfers));
    // Unless the network shows where.
    let link = Job { transfer: 4000, link: Some((3, 900)), ..HEALTHY };
    HEALTHY.says(&link, "the network from rank 3 to rank 0 takes longer, 1.21 ms a transfer instead of 30");
}

#[test]
fn of_several_slow_links_it_is_said_from_whom_to_whom() {
    let with = |senders: &[usize]| {
        let mut profile = Job { transfer: 4000, seed: 2, ..HEALTHY }.profile();
        for transfer in profile.transfers.iter_mut().filter(|it| senders.contains(&it.process)) {
            transfer.waits[0].1 += 900_000;
        }
        compare(&HEALTHY.profile(), &profile, Some(Case::TwoRuns)).unwrap().answer.unwrap().text
    };
    let [some, all] = [with(&[0, 2]), with(&[0, 1, 2, 3])];
    let said = "it is the network, on 2 of 4 links, those from ranks 0 and 2 to ranks 1 and 3; most of all, the network \
                from rank ";
    assert!(some.contains(said), "{some}");
    assert!(all.contains("it is the network, on 4 of 4 links; most of all, "), "{all}");
}

#[test]
fn the_ends_of_a_link_are_named_as_ranks_of_the_job() {
    let named = |from: i32, healthy: Job, expected: &str| {
        let link = Job { transfer: 4000, link: Some((from, 900)), ..healthy.clone() };
        healthy.says(&link, expected);
    };
    let of_larger = Job { first: 8, ..HEALTHY };
    named(3, of_larger, "the network from rank 11 to rank 8 takes longer, 1.21 ms a transfer instead of 30");
    let of_two_processes = Job { gpus: 2, ..HEALTHY };
    named(1, of_two_processes.clone(), "the network from rank 1 to rank 2 takes longer, 1.21 ms a transfer instead of");
    named(2, of_two_processes, "the network from rank 2 to rank 3 takes longer, 1.21 ms a transfer instead of");
}

#[test]
fn other_sizes_count_as_different_work() {
    let report = HEALTHY.says(
        &Job { transfer: 2000, bytes: 4 << 20, ..HEALTHY },
        "they have AllReduce 4 MiB f32 on dp instead of AllReduce 2 MiB f32 on dp, +1.0",
    );
    assert_eq!(report.answer.as_ref().unwrap().causes.len(), 1);
    let only = ["only A has AllReduce 2 MiB f32 on dp", "only B has AllReduce 4 MiB f32 on dp"];
    assert_eq!(report.differences.others, only);
}

#[test]
fn other_sizes_come_before_what_explains_little_even_if_noise_hides_their_cost() {
    let rough = |rough| Job { transfer: 2000, rough, seed: 7, ..HEALTHY };
    let other = |job: &Job| Job { transfer: 6000, bytes: 8 << 20, pause: 800, ..job.clone() };
    let sizes =
        "they have AllReduce 8 MiB f32 on dp instead of AllReduce 2 MiB f32 on dp, at a cost that the noise hides";
    let report =
        rough(150).says(&other(&rough(150)), &format!("(+58 %): {sizes}; also, every rank's GPU idles longer"));
    assert_eq!(report.answer.unwrap().causes[0].growth, 0.0);
    // Where it is not known whether a step grew, the noise may hide anything.
    let report = rough(200).says(&other(&rough(200)), "; but every rank's GPU idles longer");
    let answer = report.answer.unwrap();
    assert!(answer.verdict == Verdict::CannotTell && answer.text.ends_with(&format!("; also, {sizes}.")), "{answer:?}");
}

#[test]
fn equal_runs_do_not_differ() {
    for seed in 0..40 {
        let report =
            Job { seed: 2 * seed + 1, ..HEALTHY }.says(&HEALTHY, "No difference beyond the noise of these runs");
        let answer = report.answer.unwrap();
        assert!(answer.causes.is_empty() && answer.waiting.is_empty(), "{answer:?}");
        // Where everything varies by half, one cannot say that nothing changed, and nobody is
        // accused.
        let noisy = Job { seed: 2 * seed + 1, jitter: 100, ..HEALTHY };
        let answer = noisy.against(&noisy).answer.unwrap();
        assert!(!answer.verdict.is_change() && answer.causes.is_empty(), "{answer:?}");
    }
}

#[test]
fn a_slower_rank_is_named_despite_noise() {
    let noisy = Job { jitter: 30, ..HEALTHY };
    let report = noisy.against(&Job { slow: Some((2, 3000)), ..noisy.clone() });
    assert_eq!(report.answer.unwrap().causes[0].ranks, ["rank 2"]);
}

/// A pipeline of two ranks. In each step rank 0 computes and sends, rank 1 receives, computes and
/// sends back. Or both compute, and then each sends to the other and receives in one kernel.
///
/// ```text
///   rank 0  |forward|Send|=======Recv======|forward ...
///   rank 1  |=====Recv===|backward|==Send==|=====Recv===| ...
/// ```
#[derive(Clone, Copy)]
struct Pipeline {
    backward: i64,
    /// From rank 0 to rank 1, and back.
    transfer: [i64; 2],
    is_one_kernel: bool,
    seed: u64,
}

const STAGES: Pipeline = Pipeline { backward: 5000, transfer: [100, 100], is_one_kernel: false, seed: 1 };

impl Pipeline {
    fn profile(self) -> Profile {
        let job = Job { ranks: 2, seed: self.seed, ..HEALTHY };
        let mut profile = Job { steps: 0, ..job.clone() }.profile();
        let mut random = self.seed;
        let mut about = |us: i64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            us * 1000 + us * 10 * ((random >> 33) % 100) as i64 / 100
        };
        // A kernel that exchanges data with the other rank; the numbers tell which way. A rank may
        // send to itself beside that.
        let exchange = |profile: &mut Profile, rank: i32, span: Span, numbers: &[(&str, usize)]| {
            job.kernel(profile, rank, "ncclDevKernel_SendRecv", span);
            let first = profile.operations.len();
            for (function, number) in numbers {
                let request = Request { function: (*function).to_owned(), bytes: Some(4096), ..Request::default() };
                profile.operations.push(Operation {
                    process: rank as usize,
                    communicator: Some(rank as usize),
                    request: request.into(),
                    correlation: Some(*number as u64),
                    ..Operation::default()
                });
            }
            let operations: Vec<usize> = (first..profile.operations.len()).collect();
            let carried = &mut profile.kernels.last_mut().unwrap().carried;
            *carried = Carried { count: operations.len() as u32, operations, how: How::Exact, replay: None };
        };
        let mut begun = [0; 2];
        for step in (0..4 * 30).step_by(4) {
            let computed = begun[0] + about(3000);
            job.kernel(&mut profile, 0, "forward", Span::of(begun[0], computed));
            let [there, back, own] = [step, step + 1, step + 2];
            if self.is_one_kernel {
                let done = begun[1] + about(self.backward);
                job.kernel(&mut profile, 1, "backward", Span::of(begun[1], done));
                let end = computed.max(done) + about(self.transfer[0]);
                exchange(&mut profile, 0, Span::of(computed, end), &[("Send", there), ("Recv", back)]);
                let and_own = [("Recv", there), ("Send", own), ("Recv", own), ("Send", back)];
                exchange(&mut profile, 1, Span::of(done, end), &and_own);
                begun = [end; 2];
                continue;
            }
            let given = computed + about(self.transfer[0]);
            let done = given + about(self.backward);
            job.kernel(&mut profile, 1, "backward", Span::of(given, done));
            let end = done + about(self.transfer[1]);
            exchange(&mut profile, 0, Span::of(computed, given), &[("Send", there)]);
            exchange(&mut profile, 0, Span::of(given, end), &[("Recv", back)]);
            exchange(&mut profile, 1, Span::of(begun[1], given), &[("Recv", there)]);
            exchange(&mut profile, 1, Span::of(done, end), &[("Send", back)]);
            begun = [end; 2];
        }
        profile.sort();
        profile
    }

    #[track_caller]
    fn says(self, b: Pipeline, expected: &str) -> Report {
        let b = Pipeline { seed: self.seed + 1, ..b };
        let report = compare(&self.profile(), &b.profile(), Some(Case::TwoRuns)).unwrap();
        let text = &report.answer.as_ref().unwrap().text;
        assert!(text.contains(expected), "{text}");
        report
    }
}

#[test]
fn between_two_ranks_a_slow_link_is_told_from_a_late_rank() {
    let both_ways = Pipeline { is_one_kernel: true, ..STAGES };
    let slow = |of: Pipeline| Pipeline { transfer: [4000, 100], ..of };
    let link = STAGES.says(slow(STAGES), "Send 4 KiB on dp from rank 0 to rank 1 takes longer by itself, 4.0");
    let answer = link.answer.unwrap();
    assert_eq!(answer.causes[0].link, Some(("rank 0".to_owned(), "rank 1".to_owned())), "{}", answer.text);
    let both = Pipeline { transfer: [4000, 3500], ..STAGES };
    let both = STAGES.says(both, "Send 4 KiB on dp from rank 0 to rank 1 takes longer by itself, 4.0");
    let answer = both.answer.unwrap();
    assert!(answer.text.ends_with("; one other link has the same."), "{}", answer.text);
    assert_eq!((answer.causes.len(), &answer.causes[0].link), (1, &None));
    let said = "between rank 0 and rank 1 takes longer by itself, 4.0";
    both_ways.says(slow(both_ways), said);

    for of in [STAGES, both_ways] {
        let late = of.says(Pipeline { backward: 9000, ..of }, "rank 1 works longer: its `backward` takes 9.0");
        assert_eq!(late.answer.unwrap().causes.len(), 1);
        let answer = of.says(of, "No difference beyond the noise").answer.unwrap();
        assert!(answer.causes.is_empty() && answer.waiting.is_empty(), "{answer:?}");
    }

    // A third rank, of whose communication it is not known with whom it is, waits for the two.
    let of_three = |of: Pipeline, seed| {
        let mut profile = Pipeline { seed, ..of }.profile();
        let process = Process { rank: Some(2), pid: 99, ..profile.processes[1].clone() };
        profile.processes.push(process);
        let begins: Vec<Kernel> = profile.kernels.iter().filter(|it| &*it.name == "forward").cloned().collect();
        let send = profile.kernels.iter().find(|it| it.is_nccl()).unwrap().carried.clone();
        for (begin, next) in begins.iter().zip(&begins[1..]) {
            let (start, own) = (begin.span.start.0, begin.span.start.0 + 50_000);
            let work = Kernel { process: 2, span: Span::of(start, own), ..begin.clone() };
            let carried = Carried { count: 2, ..send.clone() };
            let span = Span::of(own, next.span.start.0 - 50_000);
            profile.kernels.push(Kernel { span, carried, name: "ncclDevKernel_SendRecv".into(), ..work.clone() });
            profile.kernels.push(work);
        }
        profile.sort();
        profile
    };
    let [a, b] = [(both_ways, 1), (slow(both_ways), 2)].map(|(of, seed)| of_three(of, seed));
    let answer = compare(&a, &b, Some(Case::TwoRuns)).unwrap().answer.unwrap();
    assert!(answer.text.contains(said) && !answer.text.contains("cannot be told"), "{}", answer.text);
    let parts: Vec<Part> = answer.causes.iter().map(|it| it.part).collect();
    assert_eq!(parts, [Part::Transfers, Part::Communicates]);

    // Without the other rank's file it cannot be told.
    let alone = |of: Pipeline, seed| {
        let mut profile = Pipeline { seed, ..of }.profile();
        profile.kernels.retain(|kernel| kernel.process == 0);
        profile
    };
    let report = compare(&alone(STAGES, 1), &alone(slow(STAGES), 2), Some(Case::TwoRuns)).unwrap();
    assert!(report.answer.unwrap().causes.iter().all(|it| it.part == Part::Communicates));
}

#[test]
fn unknown_waiting_is_reported_as_unknown() {
    let only = |job: &Job, seed| {
        let mut profile = Job { seed, ..job.clone() }.profile();
        profile.kernels.retain(|kernel| kernel.process == 0);
        profile.processes.truncate(1);
        profile
    };
    let (a, b) = (only(&HEALTHY, 1), only(&Job { slow: Some((2, 3000)), ..HEALTHY }, 2));
    let answer = compare(&a, &b, Some(Case::TwoRuns)).unwrap().answer.unwrap();
    assert!(
        answer.text.contains("how much of that is waiting for other ranks cannot be told without their files"),
        "{}",
        answer.text
    );
    assert_eq!((answer.causes.len(), answer.causes[0].part), (1, Part::Communicates));
}

#[test]
fn a_missing_file_makes_no_other_work() {
    let mut of_three = Job { seed: 2, ..HEALTHY }.profile();
    of_three.kernels.retain(|kernel| kernel.process < 2);
    of_three.processes.truncate(2);
    let slower = compare(&HEALTHY.profile(), &of_three, Some(Case::TwoRuns)).unwrap();
    let answer = slower.answer.unwrap();
    assert!(answer.text.starts_with("No difference") && !answer.text.contains("; but"), "{}", answer.text);
    // Ranks 0 and 1 still show who waits for whom; rank 0 alone does not.
    of_three.kernels.retain(|kernel| kernel.process == 0);
    let slower = compare(&HEALTHY.profile(), &of_three, Some(Case::TwoRuns)).unwrap().slower.unwrap();
    let parts: Vec<Part> =
        slower.rows.iter().filter(|row| row.what.starts_with("AllReduce")).map(|row| row.part).collect();
    assert_eq!((slower.is_partial, parts), (true, vec![Part::Communicates]));
}

#[test]
fn few_long_steps_are_named_though_medians_do_not_differ() {
    let paused = |seed, pause_ns: i64| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        let mut starts: Vec<FileNs> = profile.kernels.iter().map(|it| it.span.start).collect();
        starts.sort_unstable();
        let from = starts[starts.len() / 2];
        for kernel in profile.kernels.iter_mut().filter(|it| it.span.start > from) {
            kernel.span = kernel.span.shifted(Shift { ns: pause_ns, error_ns: 0 });
        }
        profile
    };
    let says = |a: &Profile, b: &Profile| compare(a, b, Some(Case::TwoRuns)).unwrap().answer.unwrap().text;
    let (healthy, sick) = (paused(1, 0), paused(2, 5_000_000_000));
    let long = "because of a few long ones: the longest takes 5.0";
    let said = says(&healthy, &sick);
    assert!(said.starts_with("No difference") && said.contains(long) && said.contains(" s in B; ncclscope"), "{said}");
    let said = says(&sick, &healthy);
    assert!(said.contains(long) && said.contains(" s in A; ncclscope"), "{said}");
    assert!(!says(&healthy, &paused(2, 20_000_000)).contains("long ones"));
    assert!(!says(&sick, &paused(3, 5_000_000_000)).contains("long ones"), "both have them");
}

#[test]
fn too_few_steps_give_no_verdict() {
    // Seven step beginnings make six steps, one of them warm-up.
    for (steps, verdict) in [(7, Verdict::Slower), (6, Verdict::TooFew)] {
        let job = Job { steps, ..HEALTHY };
        let answer = job.against(&Job { slow: Some((2, 3000)), ..job.clone() }).answer.unwrap();
        assert_eq!(answer.verdict, verdict, "{}", answer.text);
    }
}

#[test]
fn marked_steps_take_precedence_over_repeats() {
    let marked = |seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        let starts: Vec<(usize, i64)> = (profile.kernels.iter())
            .filter(|kernel| &*kernel.name == "backward")
            .map(|kernel| (kernel.process, kernel.span.start.0))
            .collect();
        let mut numbers = [0; 4];
        for (process, start) in starts {
            numbers[process] += 1;
            // Up to the next one, except for a gap in which nothing runs.
            let span = Span::of(start, start + 9_900_000);
            let name = format!("step {}", numbers[process]).into();
            profile.ranges.push(Range { process, tid: Some(1), span, name, domain: None });
        }
        profile
    };
    let source = |a, b| compare(&a, &b, Some(Case::TwoRuns)).unwrap().slower.unwrap().ranks[0].source.clone();
    assert_eq!(source(marked(1), marked(2)), Some(Source::Ranges));
    let inferred = Some(Source::Repeats(Repeat::once("forward")));
    assert_eq!(source(marked(1), Job { seed: 2, ..HEALTHY }.profile()), inferred);
    // Marks that have nothing to do with what ran are not steps.
    let mut elsewhere = marked(1);
    elsewhere.ranges.iter_mut().for_each(|range| range.span.end.0 = range.span.start.0 + 1000);
    assert_eq!(source(elsewhere, marked(2)), inferred);
}

#[test]
fn copies_are_not_what_repeats() {
    // Many of them before the first step, and some in every third.
    let with_copies = |seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        let starts: Vec<(usize, i64)> =
            profile.kernels.iter().map(|kernel| (kernel.process, kernel.span.start.0)).collect();
        let early = (0..1_000).map(|at| (at % 4, 10_000 * at as i64 - 20_000_000));
        for (process, start) in early.chain(starts.into_iter().step_by(12)) {
            profile.copies.push(crate::import::Copy {
                process,
                span: Span::of(start, start + 1_000),
                place: Place::default(),
                correlation: 0,
                bytes: None,
                kind: crate::model::activity::CopyKind::HostToDevice,
            });
        }
        profile
    };
    let ranks = compare(&with_copies(1), &with_copies(2), Some(Case::TwoRuns)).unwrap().slower.unwrap().ranks;
    assert!(ranks.iter().all(|rank| rank.source == Some(Source::Repeats(Repeat::once("forward")))));
}

#[test]
fn steps_repeat_in_spite_of_a_long_pause_that_cost_records() {
    let paused = |seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        profile.kernels.sort_by_key(|kernel| (kernel.process, kernel.span.start));
        let mut steps = [0; 4];
        profile.kernels.retain_mut(|kernel| {
            let step = &mut steps[kernel.process];
            *step += i32::from(&*kernel.name == "forward");
            if *step > 15 {
                kernel.span = kernel.span.shifted(Shift { ns: 9_000_000_000, error_ns: 0 });
            }
            // What waits meanwhile has no record, as when CUPTI was flushed by force.
            *step != 15 || ["forward", "backward"].contains(&&*kernel.name)
        });
        profile
    };
    let ranks = compare(&paused(1), &paused(2), Some(Case::TwoRuns)).unwrap().slower.unwrap().ranks;
    assert!(ranks.iter().all(|rank| rank.source == Some(Source::Repeats(Repeat::once("forward")))));
}

/// The job with so many more kernels of 3 ms before each step of which the number can be divided by
/// `every`.
fn with_more(job: &Job, every: usize, name: &str, count: i64) -> Profile {
    const NS: i64 = 3_000_000;
    let mut profile = job.profile();
    profile.kernels.sort_by_key(|kernel| (kernel.process, kernel.span.start));
    let (mut steps, mut added) = ([0_usize; 4], Vec::new());
    for kernel in &mut profile.kernels {
        let step = &mut steps[kernel.process];
        let before = *step / every;
        *step += usize::from(&*kernel.name == "forward");
        let late = |ns| Shift { ns, error_ns: 0 };
        kernel.span = kernel.span.shifted(late(before as i64 * count * NS));
        if *step / every > before {
            let of = |at| Kernel { name: name.into(), span: kernel.span.shifted(late(at * NS)), ..kernel.clone() };
            added.extend((0..count).map(of));
            kernel.span = kernel.span.shifted(late(count * NS));
        }
    }
    profile.kernels.append(&mut added);
    profile
}

#[test]
fn steps_repeat_though_more_is_done_in_between() {
    let source = |job: &Job, every, name, count| {
        let of = |seed| with_more(&Job { seed, ..job.clone() }, every, name, count);
        let ranks = compare(&of(1), &of(2), Some(Case::TwoRuns)).unwrap().slower.unwrap().ranks;
        assert!(ranks.iter().all(|rank| rank.source == ranks[0].source));
        ranks[0].source.clone()
    };
    let forward = Some(Source::Repeats(Repeat::once("forward")));
    // A third of the time evaluates.
    assert_eq!(source(&HEALTHY, 10, "evaluate", 20), forward);
    // What saves always has as much before it, but happens too rarely.
    assert_eq!(source(&Job { steps: 60, ..HEALTHY }, 11, "save", 1), forward);
    // Most of the time evaluates, and nothing else runs as often.
    assert_ne!(source(&HEALTHY, 10, "evaluate", 100), forward);
}

#[test]
fn a_gpu_is_not_idle_where_its_kernels_have_no_record() {
    let mut profile = HEALTHY.profile();
    // What rank 1 hands over from step 10 on is lost, up to step 12.
    let of_rank: Vec<FileNs> =
        profile.kernels.iter().filter(|it| it.process == 1 && &*it.name == "forward").map(|it| it.span.start).collect();
    let (from, until) = (of_rank[10], of_rank[12]);
    let is_lost = |span: Span| (from..until).contains(&span.start);
    for kernel in &profile.kernels {
        for at in &kernel.carried.operations {
            profile.operations[*at].call = Some(kernel.span);
        }
    }
    let ran = profile.kernels.iter().filter(|it| it.process == 1 && it.span.start < from).map(|it| it.span.end).max();
    profile.kernels.retain(|it| it.process != 1 || !is_lost(it.span));
    let found = |profile: &Profile| {
        let ranks = Ranks::of(profile, true);
        let rank = ranks.all.iter().find(|it| it.process == 1).unwrap().clone();
        let item = rank.items.into_iter().find(|item| item.unrecorded.is_some());
        item.map(|item| (ranks.kinds[item.kind].clone(), item.span, ranks.unrecorded.clone()))
    };
    assert_eq!(found(&profile), None);
    profile.flushes = vec![(1, FileNs(until.0 - 1))];
    let (kind, span, carried) = found(&profile).unwrap();
    assert_eq!(
        (kind.class, &*kind.name, span),
        (Class::Communication, UNRECORDED, Span { start: ran.unwrap(), end: until })
    );
    let steps: Vec<Option<u64>> = carried[0].iter().map(|at| profile.operations[*at].correlation).collect();
    assert_eq!((carried.len(), steps), (1, vec![Some(10), Some(11)]));
    // If all that was still to run was lost, it ran until the last transfer had ended.
    profile.kernels.retain(|it| it.process != 1 || it.span.start < until);
    let last = profile.transfers.iter().filter(|it| it.process == 1).map(|it| it.span.end).max();
    assert_eq!(found(&profile).map(|it| it.1.end), last);
}

#[test]
fn steps_of_equal_blocks_are_found() {
    // Three blocks a step, the third with another kernel: nothing runs just once.
    let of_blocks = |seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        let mut blocks = [0; 4];
        for kernel in profile.kernels.iter_mut().filter(|kernel| &*kernel.name == "backward") {
            blocks[kernel.process] += 1;
            if blocks[kernel.process] % 3 == 0 {
                kernel.name = "forward".into();
            }
        }
        profile
    };
    let ranks = compare(&of_blocks(1), &of_blocks(2), Some(Case::TwoRuns)).unwrap().slower.unwrap().ranks;
    let expected = Some(Source::Repeats(Repeat { name: "forward".into(), times: 4 }));
    assert!(ranks.iter().all(|rank| rank.source == expected), "{:?}", ranks[0].source);
}

#[test]
fn without_steps_executions_are_compared() {
    // Kernels are missing here and there, so that nothing repeats.
    let irregular = |job: &Job, seed| {
        let mut profile = Job { seed, ..job.clone() }.profile();
        let mut count = 0;
        profile.kernels.retain(|kernel| {
            count += 1;
            kernel.is_nccl() || (count * count) % 7 < 4
        });
        profile
    };
    let slow = Job { slow: Some((2, 3000)), ..HEALTHY };
    let answer = |b| compare(&irregular(&HEALTHY, 1), &irregular(b, 2), Some(Case::TwoRuns)).unwrap().answer.unwrap();
    let text = answer(&slow).text;
    assert!(
        text.starts_with(
            "No steps repeat in both runs; compared one by one, things take longer in B: rank 2 works longer"
        ),
        "{text}"
    );
    assert!(!answer(&HEALTHY).verdict.is_change());
}

#[test]
fn differences_of_jobs_come_first_for_every_tool() {
    for (one, other) in [(Tool::Kineto, Tool::Kineto), (Tool::Nsight, Tool::Kineto), (Tool::Ncclscope, Tool::Nsight)] {
        let a = Job { tool: one, world: 8, device: "A100", ..HEALTHY };
        let b = Job { tool: other, world: 2, device: "V100", nccl: "2.28.9", ranks: 2, ..HEALTHY };
        let text = text(&a.against(&b));
        let first = text.lines().next().unwrap();
        let expected = "A and B are not alike, and what follows may be due to that alone: ranks in the files: 0, 1, 2, 3 and 0, 1; ranks of the \
                        job: 8 and 2; GPUs: A100 and V100; NCCL: 2.30.7 and 2.28.9.";
        assert_eq!(first, expected);
    }
    // Other tools' files get verdicts as ours do, also for kernels that carry nothing.
    let foreign = Job { tool: Tool::Nsight, ..HEALTHY };
    foreign.says(&Job { slow: Some((2, 3000)), tool: Tool::Kineto, ..HEALTHY }, "rank 2 works longer: its `backward`");
}

#[test]
fn single_ranks_with_different_numbers_are_compared() {
    let only = |rank: usize, seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        profile.kernels.retain(|kernel| kernel.process == rank);
        profile
    };
    let report = compare(&only(1, 1), &only(3, 2), Some(Case::TwoRuns)).unwrap();
    let ranks = &report.slower.as_ref().unwrap().ranks;
    assert_eq!((ranks.len(), ranks[0].a.as_str(), ranks[0].b.as_str()), (1, "rank 1", "rank 3"));
    assert!(text(&report).contains("rank 1 and rank 3"), "{}", text(&report));
}

#[test]
fn calls_stand_in_for_kernels() {
    let calls = |us: i64, seed| {
        let mut profile = Job { seed, ..HEALTHY }.profile();
        for kernel in std::mem::take(&mut profile.kernels) {
            let request = Request { function: kernel.name.to_string(), ..Request::default() }.into();
            let operation = Operation { request, ..Operation::default() };
            let start = kernel.span.start.0;
            let span = Span::of(start, start + us * 1000 + start % 1000);
            let process = kernel.process;
            profile.nccl_calls.push(NcclCall { process, tid: 1, span, operation, captured: false, arrows: Vec::new() });
        }
        profile
    };
    let answer = compare(&calls(100, 1), &calls(900, 2), Some(Case::TwoRuns)).unwrap().answer.unwrap();
    assert!(answer.text.contains("; but every rank works longer"), "{}", answer.text);
    assert!(answer.text.contains("call of `"), "{}", answer.text);
}
