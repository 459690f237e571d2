//! A job that is drawn by its seed: its shape, what is planted in it, what a step should take by
//! arithmetic, and how it is played.

use super::{CUPTI, TIMES};
use crate::support::{Job as Run, Plan};
use emulator::scenario::random::Dice;
use emulator::truth::Line;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The number of steps from one wait for the data loader to the next.
pub(super) const LOADED: u64 = 10;
/// Microbatches of a pipeline's step.
const MICROBATCHES: u64 = 4;
/// The pace of one channel, in bytes per µs: low, so that a step's messages take long but little
/// processor time.
const PACE: u64 = 100;
/// Roughly how long a rank on a machine with two cores takes to react to what another has sent, in
/// µs.
const HOP: u64 = 250;

/// What a step consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Forward, backward, one AllReduce, optimizer.
    Plain,
    /// Three AllReduces, two of them beside the rest of backward.
    Buckets,
    /// AllReduces of pairs within forward, and one of the others after backward.
    Two,
    /// Parameters gathered, gradients scattered.
    Sharded,
    /// Two stages; microbatches travel between them.
    Pipeline,
    /// `Plain`, captured once and replayed.
    Graph,
}

/// What slows a job down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// A rank's kernels take longer: one of those in [`Job::kernels`], or all.
    Kernels { rank: u32, only: Option<usize> },
    /// A rank runs one kernel more before the last collective.
    Another { rank: u32 },
    /// A rank's host begins each step late.
    Host { rank: u32 },
    /// A link between hosts is slow in this direction.
    Link { from: u32, to: u32 },
    /// A link between hosts stands still for a while, again and again.
    Stall { from: u32, to: u32 },
    /// Every tenth step begins late, on a rank or on all.
    Pauses { rank: Option<u32> },
    /// Kernels differ in length between ranks, differently in each step.
    Unequal,
}

/// A cause, and by how much a step would be shorter without it on average, in µs, by arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planted {
    pub(super) cause: Cause,
    pub(super) cost: u64,
}

/// How far the hosts run ahead of their GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    /// They wait for the end of each step.
    Nothing,
    /// They are this many steps ahead.
    Steps(u64),
}

/// A job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) seed: u64,
    pub(super) nccl: &'static str,
    pub(super) shape: Shape,
    pub(super) hosts: u32,
    pub(super) ranks_per_host: u32,
    /// How the ranks of a host are divided into processes, as a scenario says it.
    pub(super) layout: &'static str,
    pub(super) lead: Lead,
    /// Whether the emulator's own network is between the hosts.
    pub(super) has_network: bool,
    pub(super) channels: u64,
    pub(super) protocol: Option<&'static str>,
    pub(super) steps: u64,
    /// The duration of a step without any cause, in µs, by arithmetic.
    pub(super) step: u64,
    /// The most expensive first.
    pub(super) planted: Vec<Planted>,
}

/// The kinds of jobs, each drawn equally often.
const KINDS: [&str; 10] =
    ["kernels", "one-kernel", "another-kernel", "host", "link", "stall", "pauses", "unequal", "two", "healthy"];

impl Job {
    /// The job of a seed, whose last digit decides the kind.
    pub(super) fn drawn(seed: u64) -> Job {
        let dice = &mut Dice::new(seed);
        let kind = Job::kind(seed);
        let has_link = matches!(kind, "link" | "stall" | "two");
        // Two causes are both worth their cost only if each rank waits for all others in between. A
        // slow link between gathers is partly hidden: data travels while the receiver computes.
        let mut shapes = vec![Shape::Plain, Shape::Two, Shape::Graph];
        if kind != "two" {
            shapes.push(Shape::Buckets);
        }
        if !matches!(kind, "two" | "link") {
            shapes.push(Shape::Sharded);
        }
        if !matches!(kind, "two" | "unequal" | "stall") {
            shapes.push(Shape::Pipeline);
        }
        if kind == "unequal" {
            // A graph repeats what was captured.
            shapes.retain(|shape| *shape != Shape::Graph);
        }
        let shape = *dice.one_of(&shapes);
        // A machine with two cores is busy with more than eight ranks.
        let size = dice.below(100);
        let shape = if size >= 96 { *dice.one_of(&[Shape::Plain, Shape::Two]) } else { shape };
        let mut places = match size {
            ..60 => vec![(1, 4), (2, 2), (2, 2), (4, 1)],
            60..96 => vec![(1, 8), (2, 4), (3, 2), (4, 2)],
            _ => vec![(1, 16), (2, 8)],
        };
        places.retain(|(hosts, each)| match shape {
            Shape::Two => each % 2 == 0 && hosts * each % 4 == 0,
            Shape::Pipeline => *hosts <= 2,
            _ => true,
        });
        places.retain(|(hosts, _)| *hosts > 1 || !has_link);
        let (hosts, ranks_per_host): (u32, u32) = *dice.one_of(&places);
        // The more ranks share a machine, the more each step is disturbed, by milliseconds.
        let step = match hosts * ranks_per_host {
            ..=4 => 20_000 + dice.below(15_000),
            5..=8 => 40_000 + dice.below(20_000),
            _ => 90_000 + dice.below(30_000),
        };
        let mut job = Job {
            seed,
            nccl: *dice.one_of(&["2.28.9", "2.30.7", "2.32.3"]),
            shape,
            hosts,
            ranks_per_host,
            layout: "processes",
            lead: *dice.one_of(&[Lead::Nothing, Lead::Steps(1), Lead::Steps(2)]),
            has_network: has_link || (hosts > 1 && hosts * ranks_per_host <= 8 && dice.percent(60)),
            channels: *dice.one_of(&[1, 1, 2]),
            protocol: *dice.one_of(if has_link {
                &[Some("Simple"), Some("LL")]
            } else {
                &[None, None, Some("Simple"), Some("LL")]
            }),
            steps: 20 + dice.below(21),
            step,
            planted: Vec::new(),
        };
        job.plant(kind, dice);
        // One thread for all GPUs of a host is late on all of them. Eight in one process
        // communicate more slowly, by more than what is planted.
        let by_host = job.planted.iter().any(|it| matches!(it.cause, Cause::Host { .. } | Cause::Pauses { .. }));
        let several = if by_host { "threads" } else { "devices" };
        if ranks_per_host <= 4 {
            job.layout = *dice.one_of(&["processes", "processes", "processes", "threads", several]);
        }
        job
    }

    pub(super) fn kind(seed: u64) -> &'static str {
        KINDS[(seed % KINDS.len() as u64) as usize]
    }

    fn plant(&mut self, kind: &str, dice: &mut Dice) {
        let ranks = u64::from(self.ranks());
        // What is late in a pipeline's second stage may only shorten its wait for the first.
        let first_ranks = if self.shape == Shape::Pipeline { ranks / 2 } else { ranks };
        let rank = dice.below(ranks) as u32;
        let first_rank = dice.below(first_ranks) as u32;
        let from = dice.below(u64::from(self.hosts)) as u32;
        // A ring passes through the hosts in order, and back to the first.
        let to = (from + 1) % self.hosts;
        let only = Some(dice.below(self.kernels().len() as u64 - 1) as usize);
        let cost = |percent: u64| (self.step + self.overhead()) * percent / 100;
        let one = |dice: &mut Dice| match kind {
            "kernels" => (Cause::Kernels { rank, only: None }, 15, 60),
            "one-kernel" => (Cause::Kernels { rank, only }, 15, 60),
            "another-kernel" => (Cause::Another { rank: first_rank }, 15, 60),
            "host" => (Cause::Host { rank: first_rank }, 15, 60),
            "link" => (Cause::Link { from, to }, 20, 60),
            "stall" => (Cause::Stall { from, to }, 20, 40),
            "pauses" if dice.percent(50) => (Cause::Pauses { rank: Some(first_rank) }, 20, 60),
            "pauses" => (Cause::Pauses { rank: None }, 20, 60),
            "unequal" => (Cause::Unequal, 15, 35),
            other => unreachable!("{other}"),
        };
        self.planted = match kind {
            "healthy" => Vec::new(),
            "two" => {
                // Each has a part of the step of its own, so that each costs what it does alone.
                let first = *dice.one_of(&[
                    Cause::Kernels { rank, only: None },
                    Cause::Kernels { rank, only },
                    Cause::Another { rank },
                    Cause::Host { rank },
                ]);
                let mut second = vec![Cause::Stall { from, to }, Cause::Pauses { rank: None }];
                if ranks <= 4 {
                    // In a longer ring a slow link works on while the late rank is missing.
                    second.extend([Cause::Link { from, to }, Cause::Link { from, to }]);
                }
                let second = *dice.one_of(&second);
                let (more, less) = (cost(40 + dice.below(20)), cost(15 + dice.below(6)));
                let costs = if dice.percent(50) { [more, less] } else { [less, more] };
                let mut planted: Vec<Planted> =
                    [first, second].into_iter().zip(costs).map(|(cause, cost)| Planted { cause, cost }).collect();
                planted.sort_by_key(|planted| std::cmp::Reverse(planted.cost));
                planted
            }
            _ => {
                let (cause, least, most) = one(dice);
                vec![Planted { cause, cost: cost(least + dice.below(most - least + 1)) }]
            }
        };
        let is = |such: fn(&Cause) -> bool| self.planted.iter().any(|planted| such(&planted.cause));
        let has_host = is(|cause| matches!(cause, Cause::Host { .. }));
        // A host that is ahead is late only when its own steps take longer than its GPU's.
        if has_host && (self.planted.len() > 1 || !matches!(self.shape, Shape::Plain | Shape::Graph)) {
            self.lead = Lead::Nothing;
        }
        self.steps =
            if is(|cause| matches!(cause, Cause::Stall { .. } | Cause::Pauses { .. })) { 40 } else { self.steps };
    }

    pub(super) fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// The kernels of a step, with the µs that each takes and how often it runs.
    fn kernels(&self) -> Vec<(&'static str, u64, u64)> {
        // The rest of the step is communication.
        let work = self.step * 80 / 100;
        let parts =
            |parts: &[(&'static str, u64)]| parts.iter().map(|(name, part)| (*name, work * part / 100, 1)).collect();
        match self.shape {
            Shape::Plain | Shape::Graph => parts(&[("forward", 30), ("backward", 50), ("optimizer", 20)]),
            Shape::Buckets => {
                parts(&[("forward", 25), ("backward_3", 20), ("backward_2", 20), ("backward_1", 20), ("optimizer", 15)])
            }
            Shape::Two => parts(&[("forward_1", 15), ("forward_2", 15), ("backward", 50), ("optimizer", 20)]),
            Shape::Sharded => parts(&[("forward", 30), ("backward", 55), ("optimizer", 15)]),
            Shape::Pipeline => {
                // Both stages wait for each other once in each direction.
                let one = work * 90 / 100 / (3 * (MICROBATCHES + 1));
                vec![("forward", one, MICROBATCHES), ("backward", 2 * one, MICROBATCHES), ("optimizer", work / 10, 1)]
            }
        }
    }

    /// The µs of a kernel.
    fn kernel(&self, name: &str) -> u64 {
        self.kernels().into_iter().find(|(known, ..)| *known == name).map_or(0, |(_, duration, _)| duration)
    }

    /// The µs that a rank computes in a step.
    fn work(&self) -> u64 {
        self.kernels().into_iter().map(|(_, duration, times)| duration * times).sum()
    }

    /// The µs that each of the step's messages between hosts should take.
    fn message(&self) -> u64 {
        match self.shape {
            Shape::Plain | Shape::Graph => self.step * 20 / 100,
            Shape::Buckets => self.step * 8 / 100,
            Shape::Two => self.step * 14 / 100,
            Shape::Sharded => self.step * 7 / 100,
            Shape::Pipeline => self.step * 2 / 100,
        }
    }

    /// The µs by which steps take longer because the ranks' threads have to wake each other up.
    pub(super) fn overhead(&self) -> u64 {
        let ranks = u64::from(self.ranks());
        let around = |members: u64| 2 * (members - 1);
        HOP * match self.shape {
            // What is hidden beside backward does not count.
            Shape::Plain | Shape::Graph | Shape::Buckets => around(ranks),
            Shape::Two => around(ranks / 2) + 2 * around(2),
            Shape::Sharded => 3 * (ranks - 1),
            Shape::Pipeline => around(ranks / 2) + 2 * (MICROBATCHES + 1),
        }
    }

    /// The bytes per second of a link that adds this many µs to a step.
    fn slow(&self, from: u32, cost: u64) -> u64 {
        let message = self.message();
        let (own, overhead) = (message / self.channels, self.overhead());
        // The time that the link may take for one message of the step.
        let takes = match self.shape {
            Shape::Plain | Shape::Graph | Shape::Two => own + overhead + cost,
            Shape::Sharded => own + (overhead + cost) / 3,
            // What is hidden beside backward comes on top.
            Shape::Buckets => (cost + self.kernel("backward_2") + self.kernel("backward_1") + own + overhead) / 3,
            Shape::Pipeline => {
                let own = own + HOP;
                let beside = self.kernel(if from == 0 { "forward" } else { "backward" });
                if own + cost <= beside {
                    own + cost
                } else {
                    // On a busy machine half of that hides behind what the ranks do meanwhile.
                    beside + 2 * (own + cost).saturating_sub(beside) / MICROBATCHES
                }
            }
        };
        // Half of what LL sends are flags.
        let times = if self.protocol == Some("LL") { 2 } else { 1 };
        times * message * PACE * 1_000_000 / takes
    }

    /// The elements of a collective among this many ranks that takes a link this many µs, as
    /// `SIZE`.
    fn size(&self, collective: &str, members: u64, takes: u64) -> String {
        let bytes = takes * PACE;
        let size = match collective {
            "all_reduce" => bytes * members / (2 * (members - 1)),
            "all_gather" | "reduce_scatter" => bytes / (members - 1),
            _ => bytes,
        };
        format!("{collective} {} B f32", size / 4 * 4)
    }

    /// The job as a scenario, with these causes.
    fn scenario(&self, planted: &[Planted]) -> String {
        let find = |such: fn(&Cause) -> bool| planted.iter().find(|planted| such(&planted.cause));
        let ranks = u64::from(self.ranks());
        let message = self.message();

        // How long a kernel takes on each rank.
        let compute = |name: &str| {
            let (at, (_, usual, times)) = self
                .kernels()
                .into_iter()
                .enumerate()
                .find(|(_, (known, ..))| *known == name)
                .expect("a kernel of the step");
            let mut text = String::new();
            let longer = planted.iter().find_map(|planted| match planted.cause {
                Cause::Kernels { rank, only: Some(only) } if only == at => Some((rank, planted.cost / times)),
                _ => None,
            });
            let uneven = find(|cause| *cause == Cause::Unequal).filter(|_| name != "optimizer");
            match (longer, uneven) {
                (Some((rank, more)), _) => {
                    let _ = write!(
                        text,
                        "only rank {rank} {{\ncompute {name} {} us\n}}\nexcept rank {rank} {{\ncompute {name} {usual} us\n}}\n",
                        usual + more
                    );
                }
                (None, Some(Planted { cost, .. })) => {
                    // Of n ranks the slowest takes n / (n + 1) of the range on average.
                    let varied = self.work() - self.kernel("optimizer");
                    let part = (cost * 100 * (ranks + 1) / (ranks - 1) / varied).min(95);
                    let (least, most) = (usual * (100 - part) / 100, usual * (100 + part) / 100);
                    let _ = writeln!(text, "compute {name} {least} us to {most} us");
                }
                (None, None) => {
                    let _ = writeln!(text, "compute {name} {usual} us");
                }
            }
            text
        };
        let another = match find(|cause| matches!(cause, Cause::Another { .. })) {
            Some(Planted { cause: Cause::Another { rank }, cost }) => {
                format!("only rank {rank} {{\ncompute other {cost} us\n}}\n")
            }
            _ => String::new(),
        };
        let collective = |what: &str, on: &str, members: u64, takes: u64| {
            let sum = if what == "all_gather" { "" } else { " sum" };
            format!("{}{sum} on {on}\n", self.size(what, members, takes))
        };
        let all = |what: &str| collective(what, "world", ranks, message);

        let mut communicators = "communicator world = all\n".to_owned();
        let body = match self.shape {
            Shape::Plain | Shape::Graph => {
                compute("forward")
                    + &compute("backward")
                    + &another
                    + &all("all_reduce")
                    + "wait world\n"
                    + &compute("optimizer")
            }
            Shape::Buckets => {
                let reduce = all("all_reduce");
                compute("forward")
                    + &compute("backward_3")
                    + &reduce
                    + &compute("backward_2")
                    + &reduce
                    + &compute("backward_1")
                    + &another
                    + &reduce
                    + "wait world\n"
                    + &compute("optimizer")
            }
            Shape::Two => {
                communicators = "communicator tp = blocks 2\ncommunicator dp = stride 2\n".into();
                let pairs = collective("all_reduce", "tp", 2, self.step * 3 / 100) + "wait tp\n";
                compute("forward_1")
                    + &pairs
                    + &compute("forward_2")
                    + &pairs
                    + &compute("backward")
                    + &another
                    + &collective("all_reduce", "dp", ranks / 2, message)
                    + "wait dp\n"
                    + &compute("optimizer")
            }
            Shape::Sharded => {
                let gather = all("all_gather") + "wait world\n";
                gather.clone()
                    + &compute("forward")
                    + &gather
                    + &compute("backward")
                    + &another
                    + &all("reduce_scatter")
                    + "wait world\n"
                    + &compute("optimizer")
            }
            Shape::Pipeline => {
                let half = ranks / 2;
                communicators = format!("communicator dp = blocks {half}\ncommunicator pp = stride {half}\n");
                let stage = |stage: u64, what: &str| {
                    let ranks: Vec<String> = (stage * half..(stage + 1) * half).map(|rank| rank.to_string()).collect();
                    format!("only ranks {} {{\n{what}}}\n", ranks.join(","))
                };
                let pass = |from: u64, to: u64, what: &str| {
                    let send = self.size("send", 2, message);
                    stage(from, what)
                        + &format!("{send} from {from} to {to} on pp\n")
                        + &stage(to, &format!("wait pp\n{what}"))
                };
                let forward = pass(0, 1, &compute("forward")).repeat(MICROBATCHES as usize);
                let backward = pass(1, 0, &compute("backward")).repeat(MICROBATCHES as usize);
                let reduce = collective("all_reduce", "dp", half, self.step * 10 / 100);
                forward + &backward + &another + &reduce + "wait dp\n" + &compute("optimizer")
            }
        };

        let late = match find(|cause| matches!(cause, Cause::Host { .. })) {
            Some(Planted { cause: Cause::Host { rank }, cost }) => {
                let sleep = if self.lead == Lead::Nothing { *cost } else { self.step + self.overhead() + cost };
                format!("only rank {rank} {{\nsleep {sleep} us\n}}\n")
            }
            _ => String::new(),
        };
        let (step, capture) = match self.shape {
            Shape::Graph => ("replay step\n".into(), format!("capture step {{\n{body}}}\n")),
            _ => (body, String::new()),
        };
        let step = match self.lead {
            Lead::Nothing => format!("{late}{step}sync\n"),
            Lead::Steps(count) => format!("{late}{step}ahead {count}\n"),
        };
        let steps = match find(|cause| matches!(cause, Cause::Pauses { .. })) {
            Some(Planted { cause: Cause::Pauses { rank }, cost }) => {
                let others: u64 = planted.iter().map(|other| other.cost).sum::<u64>() - cost;
                let takes = self.step + self.overhead() + others;
                let used_up = if let Lead::Steps(count) = self.lead { count * takes } else { 0 };
                let sleep = format!("sleep {} us\n", LOADED * cost + used_up);
                let sleep = rank.map_or_else(|| sleep.clone(), |rank| format!("only rank {rank} {{\n{sleep}}}\n"));
                let (before, times) = (LOADED - 1, self.steps / LOADED);
                format!("repeat {times} {{\nrepeat {before} {{\n{step}}}\n{sleep}{step}}}\n")
            }
            _ => format!("repeat {} {{\n{step}}}\n", self.steps),
        };

        let Job { seed, hosts, ranks_per_host, layout, .. } = self;
        let mut text = format!(
            "title = \"job {seed}\"\n[job]\nhosts = {hosts}\nranks_per_host = {ranks_per_host}\nranks = \"{layout}\"\nseed = {seed}\nprogram = \"\"\"\n\
             {communicators}{capture}{steps}sync\n\"\"\"\n[nccl]\nNCCL_ALGO = \"Ring\"\nNCCL_MIN_NCHANNELS = \"{0}\"\n\
             NCCL_MAX_NCHANNELS = \"{0}\"\nNCCL_MAX_P2P_NCHANNELS = \"1\"\n\
             NCCL_BUFFSIZE = \"1048576\"\n",
            self.channels
        );
        if let Some(protocol) = self.protocol {
            let _ = writeln!(text, "NCCL_PROTO = \"{protocol}\"");
        }
        let _ = writeln!(text, "[gpu]\nbandwidth = \"{PACE} MB/s\"");
        for planted in planted {
            if let Cause::Kernels { rank, only: None } = planted.cause {
                let factor = 1.0 + planted.cost as f64 / self.work() as f64;
                let _ = writeln!(text, "[[slow]]\nrank = {rank}\ncompute = {factor:.3}");
            }
        }
        if self.has_network {
            text.push_str("[network]\nkind = \"plugin\"\nbandwidth = \"2 GB/s\"\nlatency = \"20 us\"\n");
        }
        let causes = planted;
        for planted in causes {
            match planted.cause {
                Cause::Link { from, to } => {
                    let bandwidth = self.slow(from, planted.cost) / 1000;
                    let _ = writeln!(text, "[[route]]\nfrom = {from}\nto = {to}\nbandwidth = \"{bandwidth} KB/s\"");
                }
                Cause::Stall { from, to } => {
                    // It costs less than it lasts: nobody needs the link at once.
                    let others: u64 = causes.iter().map(|other| other.cost).sum::<u64>() - planted.cost;
                    let step = self.step + self.overhead() + others;
                    let between = 8 * step;
                    let pause = 8 * planted.cost + step / 2;
                    let _ = writeln!(
                        text,
                        "[[route]]\nfrom = {from}\nto = {to}\nstall = {{ every = \"{} us\", for = \"{pause} us\" }}",
                        between + pause
                    );
                }
                _ => {}
            }
        }
        let clocks = &mut Dice::new(seed ^ 0xc10c);
        for index in 0..*hosts {
            // Files of one boot less than a minute apart are taken for one clock's.
            let (drift, offset) = (clocks.below(101) as i64 - 50, 900 * u64::from(index) + clocks.below(801));
            let _ = writeln!(
                text,
                "[[host]]\nindex = {index}\nwall = {{ drift = \"{drift} ppm\" }}\nboot = {{ offset = \"{offset} s\", drift = \"{drift} ppm\" }}"
            );
        }
        text
    }

    /// Plays it with these causes in a world that is so many times slower, again if something else
    /// on the machine disturbed it. What is compared with each other has to be of one world.
    #[track_caller]
    pub(super) fn play(&self, planted: &[Planted], slower: u32) -> Run {
        for _ in 1..TIMES {
            let run = self.play_once(planted, slower);
            if self.is_as_planted(planted, &Steps::of(&run)) {
                return run;
            }
        }
        self.play_once(planted, slower)
    }

    /// Whether the steps are as even as they should be.
    pub(super) fn is_as_planted(&self, planted: &[Planted], steps: &Steps) -> bool {
        let has = |such: fn(&Cause) -> bool| planted.iter().any(|planted| such(&planted.cause));
        if has(|cause| *cause == Cause::Unequal) {
            return true;
        }
        let is_rare = has(|cause| matches!(cause, Cause::Stall { .. } | Cause::Pauses { .. }));
        is_rare || (steps.range * 100 <= steps.median * 20 && steps.mean * 100 <= steps.median * 115)
    }

    #[track_caller]
    fn play_once(&self, planted: &[Planted], slower: u32) -> Run {
        let plan = Plan::of_text(self.nccl, &self.scenario(planted)).slower(slower).with_cupti(CUPTI).quiet();
        // With everything recorded, there are copies, and what each channel did.
        let preset = if self.seed.is_multiple_of(3) { "full" } else { "standard" };
        plan.with("NCCLSCOPE_PRESET", preset).run().succeeded()
    }

    /// Keeps the traces of a run where the environment asks for it, with what was planted.
    pub(super) fn keep(&self, run: &Run, more: &str) {
        let Some(folder) = std::env::var_os("DIAGNOSE_KEEP") else { return };
        let folder = Path::new(&folder).join(format!("{}-{}", Job::kind(self.seed), self.seed));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder to keep a job in");
        for entry in fs::read_dir(run.traces()).expect("the traces").flatten() {
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("room for a trace");
        }
        let Steps { median, mean, .. } = Steps::of(run);
        let truth = format!("{self:#?}\nsteps as played: median {median} ns, mean {mean} ns\n{more}");
        fs::write(folder.join("truth.txt"), truth).expect("room for the truth");
        fs::write(folder.join("scenario.txt"), self.scenario(&self.planted)).expect("room for the scenario");
    }
}

/// The steps of a run as they truly were, from one optimizer to the next, in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub(super) median: u64,
    pub(super) mean: u64,
    /// From the first quartile to the third.
    range: u64,
}

impl Steps {
    pub(super) fn of(run: &Run) -> Steps {
        let mut all = Vec::new();
        for (_, lines) in run.truths() {
            let mut begun: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
            for line in lines {
                if let Line::Kernel(kernel) = line
                    && kernel.symbol == "optimizer"
                {
                    begun.entry(kernel.device).or_default().insert(kernel.start);
                }
            }
            for of_gpu in begun.into_values() {
                all.extend(of_gpu.iter().zip(of_gpu.iter().skip(1)).map(|(begin, next)| next - begin));
            }
        }
        all.sort_unstable();
        assert!(!all.is_empty(), "no steps");
        let sum: u64 = all.iter().sum();
        let part = |quarters: usize| all[all.len() * quarters / 4];
        Steps { median: part(2), mean: sum / all.len() as u64, range: part(3) - part(1) }
    }
}
