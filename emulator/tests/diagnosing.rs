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

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::support::{Job as Run, Plan, plugin_said};
use emulator::scenario::random::Dice;
use emulator::truth::Line;
use serde_json::{Value, json};

const CUPTI: &str = "13.0";
/// The most plays of a job of the ordinary tests: the machine may be too busy.
const TIMES: usize = 5;
/// The number of steps from one wait for the data loader to the next.
const LOADED: u64 = 10;
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
enum Shape {
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
enum Cause {
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
struct Planted {
    cause: Cause,
    cost: u64,
}

/// How far the hosts run ahead of their GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// They wait for the end of each step.
    Nothing,
    /// They are this many steps ahead.
    Steps(u64),
}

const TABLES: &str = include_str!("../../sql/ncclscope.sql");

/// Jobs of the ordinary tests: a slow kernel, a late host, a slow link, pauses, and nothing. The late
/// host is no step ahead: on a busy machine the lead of one that is hides its lateness.
const FEW: [u64; 5] = [211, 213, 244, 206, 219];

/// A job.
#[derive(Debug, Clone)]
struct Job {
    seed: u64,
    nccl: &'static str,
    shape: Shape,
    hosts: u32,
    ranks_per_host: u32,
    lead: Lead,
    /// Whether the emulator's own network is between the hosts.
    has_network: bool,
    channels: u64,
    protocol: Option<&'static str>,
    steps: u64,
    /// The duration of a step without any cause, in µs, by arithmetic.
    step: u64,
    /// The most expensive first.
    planted: Vec<Planted>,
}

/// The kinds of jobs, each drawn equally often.
const KINDS: [&str; 10] =
    ["kernels", "one-kernel", "another-kernel", "host", "link", "stall", "pauses", "unequal", "two", "healthy"];

impl Job {
    /// The job of a seed, whose last digit decides the kind.
    fn drawn(seed: u64) -> Job {
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
        job
    }

    fn kind(seed: u64) -> &'static str {
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

    fn ranks(&self) -> u32 {
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
    fn overhead(&self) -> u64 {
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

    /// The elements of a collective among this many ranks that takes a link this many µs, as `SIZE`.
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

        let Job { seed, hosts, ranks_per_host, .. } = self;
        let mut text = format!(
            "title = \"job {seed}\"\n[job]\nhosts = {hosts}\nranks_per_host = {ranks_per_host}\nseed = {seed}\nprogram = \"\"\"\n\
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

    /// Plays it with these causes, again if something else on the machine disturbed it.
    #[track_caller]
    fn play(&self, planted: &[Planted]) -> Run {
        for _ in 1..TIMES {
            let run = self.play_once(planted);
            if self.is_as_planted(planted, &Steps::of(&run)) {
                return run;
            }
        }
        self.play_once(planted)
    }

    /// Whether the steps are as even as they should be.
    fn is_as_planted(&self, planted: &[Planted], steps: &Steps) -> bool {
        let has = |such: fn(&Cause) -> bool| planted.iter().any(|planted| such(&planted.cause));
        if has(|cause| *cause == Cause::Unequal) {
            return true;
        }
        let is_rare = has(|cause| matches!(cause, Cause::Stall { .. } | Cause::Pauses { .. }));
        is_rare || (steps.range * 100 <= steps.median * 20 && steps.mean * 100 <= steps.median * 115)
    }

    #[track_caller]
    fn play_once(&self, planted: &[Planted]) -> Run {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file for the scenario");
        fs::write(file.path(), self.scenario(planted)).expect("room for the scenario");
        let plan = Plan::new(self.nccl, file.path().to_str().expect("a plain name")).with_cupti(CUPTI).quiet();
        // With everything recorded, there are copies, and what each channel did.
        let preset = if self.seed.is_multiple_of(3) { "full" } else { "standard" };
        plan.with("NCCLSCOPE_PRESET", preset).run().succeeded()
    }

    /// Whether a cause in the answer is this one.
    fn is_named(&self, said: &Value, planted: &Planted) -> Result<(), String> {
        let kind = match planted.cause {
            Cause::Kernels { .. } | Cause::Another { .. } => "kernels",
            Cause::Host { .. } => "host",
            Cause::Link { .. } => "link",
            Cause::Stall { .. } => "stall",
            Cause::Pauses { .. } => "pauses",
            Cause::Unequal => "unequal-work",
        };
        let is_right = |right: bool, what: &str| if right { Ok(()) } else { Err(format!("{what}: {said}")) };
        let host = |rank: &Value| rank.as_u64().map(|rank| rank as u32 / self.ranks_per_host);
        is_right(said["kind"] == kind, "another kind")?;
        match planted.cause {
            Cause::Kernels { rank, .. } | Cause::Another { rank } | Cause::Host { rank } => {
                is_right(said["ranks"] == json!([rank]), "another rank")
            }
            Cause::Link { from, to } | Cause::Stall { from, to } => {
                let ends = (host(&said["link"]["from"]), host(&said["link"]["to"]));
                is_right(ends == (Some(from), Some(to)), "another link")
            }
            Cause::Pauses { rank } => {
                let ranks = said["ranks"].as_array().map_or(&[][..], Vec::as_slice);
                let are_right = match rank {
                    Some(rank) => *ranks == [Value::from(rank)],
                    None => ranks.is_empty() || ranks.len() == self.ranks() as usize,
                };
                is_right(are_right, "other ranks")?;
                is_right(said["every"].is_null() || said["every"] == LOADED, "in other steps")
            }
            Cause::Unequal => Ok(()),
        }
    }

    /// Whether the answer names what was planted, and nobody else before it.
    fn judge(&self, answer: &Value) -> Judgement {
        let causes = answer["causes"].as_array().map_or(&[][..], Vec::as_slice);
        match (answer["verdict"].as_str().unwrap_or_default(), causes) {
            ("healthy", []) if self.planted.is_empty() => return Judgement::Right,
            ("healthy" | "cannot-tell", []) => return Judgement::NotTold,
            ("causes", [_, ..]) => {}
            (verdict, _) => return Judgement::Wrong(format!("{verdict} with {} causes", causes.len())),
        }
        if self.planted.is_empty() {
            return Judgement::Wrong(format!("a cause in a healthy job: {}", causes[0]));
        }
        for (place, planted) in self.planted.iter().enumerate() {
            let Some(said) = causes.get(place) else { return Judgement::NotTold };
            if let Err(wrong) = self.is_named(said, planted) {
                return Judgement::Wrong(wrong);
            }
        }
        Judgement::Right
    }

    /// Keeps the traces of a run where the environment asks for it, with what was planted.
    fn keep(&self, run: &Run, more: &str) {
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
struct Steps {
    median: u64,
    mean: u64,
    /// From the first quartile to the third.
    range: u64,
}

impl Steps {
    fn of(run: &Run) -> Steps {
        let mut all = Vec::new();
        for (_, lines) in run.truths() {
            let mut begun: Vec<u64> = lines
                .iter()
                .filter_map(|line| match line {
                    Line::Kernel(kernel) if kernel.symbol == "optimizer" => Some(kernel.start),
                    _ => None,
                })
                .collect();
            begun.sort_unstable();
            all.extend(begun.windows(2).map(|pair| pair[1] - pair[0]));
        }
        all.sort_unstable();
        assert!(!all.is_empty(), "no steps");
        let sum: u64 = all.iter().sum();
        let part = |quarters: usize| all[all.len() * quarters / 4];
        Steps { median: part(2), mean: sum / all.len() as u64, range: part(3) - part(1) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Judgement {
    Right,
    /// Something was planted and nothing is said, or of two causes only the first.
    NotTold,
    Wrong(String),
}

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
    let played = [(); 2].map(|()| Steps::of(&job.play(&others)).median);
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

/// Asserts that the part of a trace in which each cause is said to show has kernels in it.
#[track_caller]
fn has_kernels_where_it_says_to_look(answer: &Value) {
    for cause in answer["causes"].as_array().map_or(&[][..], Vec::as_slice) {
        let look = &cause["look_at"];
        let folder = tempfile::tempdir().expect("a folder for a part");
        let part = folder.path().join("part.perfetto-trace");
        let window = format!("{}ns..{}ns", look["from_ns"], look["to_ns"]);
        let file = look["file"].as_str().expect("a file");
        let part_name = part.to_str().expect("a plain name");
        let line = ["ncclscope", "cut", file, "--time", &window, "-o", part_name];
        ncclscope::cli::run(line, &mut Vec::new()).unwrap_or_else(|error| panic!("{window}: {error}"));
        let kernels = ncclscope::import::open(&part).unwrap_or_else(|error| panic!("{error}")).kernels.len();
        assert!((1..1_000).contains(&kernels), "{kernels} kernels in {window}: {cause:#}");
    }
}

/// Asserts that what a rank's step goes into adds up to a step.
#[track_caller]
fn adds_up(answer: &Value) {
    let step = answer["steps"]["mean_ns"].as_f64().expect("a duration");
    let has_steps = answer["steps"]["count"] != 0;
    for rank in answer["ranks"].as_array().filter(|_| has_steps).map_or(&[][..], Vec::as_slice) {
        let parts = ["own_ns", "exposed_ns", "waits_ns", "idle_ns"].map(|part| rank[part].as_f64().expect("a part"));
        let sum: f64 = parts.iter().sum();
        // A step is that of the middle rank, each time of another.
        assert!((sum - step).abs() <= 0.15 * step, "{sum} instead of {step}: {rank}");
    }
}

/// Asserts that a merged trace marks each cause, in a step of a rank that has it: from the begin of a
/// kernel, or from the end of one for what the GPU did not do.
#[track_caller]
fn is_marked_in_a_merged_trace(run: &Run, answer: &Value) {
    let (trace, _) = run.joined();
    trace.query(TABLES).unwrap_or_else(|error| panic!("{error}"));
    let marks = trace.rows(
        "SELECT slice.name, slice.ts, dur FROM slice JOIN track ON track.id = track_id WHERE track.name = 'Diagnosis' \
         ORDER BY slice.id",
    );
    let causes = answer["causes"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(marks.len(), causes.len(), "{marks:?}");
    for cause in causes {
        let text = cause["text"].as_str().expect("a text");
        let mark = marks.iter().find(|mark| mark.str("name").starts_with(text)).expect("each cause has a mark");
        // Files of several hosts were moved onto one clock, and a step's first kernel with them.
        let kernels = trace.rows(&format!(
            "SELECT kernel.ts FROM nccl_kernel AS kernel JOIN nccl_process AS process USING (upid) \
             WHERE process.name GLOB 'rank {} *' AND abs(kernel.ts {} - {}) <= 2",
            cause["ranks"][0],
            if ["host", "pauses", "host-bound"].contains(&cause["kind"].as_str().expect("a kind")) {
                "+ dur"
            } else {
                ""
            },
            mark.i64("ts")
        ));
        let step = cause["look_at"]["to_ns"].as_i64().zip(cause["look_at"]["from_ns"].as_i64());
        let step = step.map(|(to, from)| to - from).expect("a step");
        assert_eq!(kernels.len(), 1, "{mark:?}");
        assert!((mark.i64("dur") - step).abs() <= step / 1_000, "{mark:?} {step}");
    }
}

/// Plays a job, prints what was planted and what is said, and judges it.
#[track_caller]
fn check(job: &Job) -> (Judgement, Value, Run) {
    let run = job.play(&job.planted);
    let answer = run.answer("diagnose");
    let judgement = job.judge(&answer);
    has_kernels_where_it_says_to_look(&answer);
    adds_up(&answer);
    let steps = Steps::of(&run);
    job.keep(&run, &format!("{judgement:?}\n{answer:#}\n"));
    let word = match &judgement {
        Judgement::Right => "right",
        Judgement::NotTold => "NOT TOLD",
        Judgement::Wrong(_) => "WRONG",
    };
    let planted: Vec<String> =
        job.planted.iter().map(|Planted { cause, cost }| format!("{cause:?} {}", ms(cost * 1000))).collect();
    println!(
        "{} {}: {word}: {:?}, {} hosts of {}, NCCL {}, {:?}: {}; steps of {} (mean {}){}; said: {}",
        job.seed,
        Job::kind(job.seed),
        job.shape,
        job.hosts,
        job.ranks_per_host,
        job.nccl,
        job.lead,
        if planted.is_empty() { "nothing".into() } else { planted.join(" and ") },
        ms(steps.median),
        ms(steps.mean),
        if job.is_as_planted(&job.planted, &steps) { "" } else { ", disturbed" },
        answer["text"].as_str().unwrap_or_default()
    );
    if let Judgement::Wrong(why) = &judgement {
        println!("    {why}");
    }
    (judgement, answer, run)
}

#[test]
fn answers_are_judged_by_whom_they_name() {
    let planted = |cause| Planted { cause, cost: 3_000 };
    let slow = planted(Cause::Kernels { rank: 2, only: None });
    let link = planted(Cause::Link { from: 1, to: 0 });
    let said = |kind: &str, more: &str| format!("{{\"kind\": \"{kind}\", {more}}}");
    let (own, other) = (said("kernels", "\"ranks\": [2]"), said("kernels", "\"ranks\": [3]"));
    let there = said("link", "\"link\": {\"from\": 3, \"to\": 0}");
    let back = said("link", "\"link\": {\"from\": 0, \"to\": 3}");
    let late = said("host", "\"ranks\": [2]");
    let all = said("pauses", "\"ranks\": [], \"every\": 10");
    let fifth = said("pauses", "\"ranks\": [], \"every\": 5");
    let judge = |planted: &[Planted], verdict: &str, causes: &[&String]| {
        let job = Job { hosts: 2, ranks_per_host: 2, planted: planted.to_vec(), ..Job::drawn(0) };
        let causes: Vec<Value> = causes.iter().map(|cause| serde_json::from_str(cause).expect("JSON")).collect();
        match job.judge(&json!({"verdict": verdict, "causes": causes})) {
            Judgement::Right => "right",
            Judgement::NotTold => "not told",
            Judgement::Wrong(_) => "wrong",
        }
    };
    assert_eq!(judge(&[], "healthy", &[]), "right");
    assert_eq!(judge(&[], "cannot-tell", &[]), "not told");
    assert_eq!(judge(&[], "causes", &[&own]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&own, &there]), "right");
    assert_eq!(judge(&[slow], "causes", &[&there, &own]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&other]), "wrong");
    assert_eq!(judge(&[slow], "causes", &[&late]), "wrong");
    assert_eq!(judge(&[slow], "healthy", &[]), "not told");
    assert_eq!(judge(&[slow], "hang", &[]), "wrong");
    assert_eq!(judge(&[link], "causes", &[&there]), "right");
    assert_eq!(judge(&[link], "causes", &[&back]), "wrong");
    assert_eq!(judge(&[slow, link], "causes", &[&own, &there]), "right");
    assert_eq!(judge(&[slow, link], "causes", &[&own]), "not told");
    assert_eq!(judge(&[slow, link], "causes", &[&there, &own]), "wrong");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: None })], "causes", &[&all]), "right");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: None })], "causes", &[&fifth]), "wrong");
    assert_eq!(judge(&[planted(Cause::Pauses { rank: Some(1) })], "causes", &[&all]), "wrong");
}

#[test]
fn what_slows_a_job_down_is_named_and_nobody_innocent() {
    for seed in FEW {
        let job = Job::drawn(seed);
        let mut judgements = Vec::new();
        // On a busy machine a job may really be slowed down by something else.
        while !judgements.contains(&Judgement::Right) {
            let (judgement, answer, run) = check(&job);
            if judgement == Judgement::Right {
                is_marked_in_a_merged_trace(&run, &answer);
            }
            judgements.push(judgement);
            assert!(judgements.len() < TIMES || judgements.contains(&Judgement::Right), "{job:#?}\n{judgements:#?}");
        }
    }
}

#[test]
fn each_demo_of_a_slow_job_is_explained_in_the_first_line() {
    for (scenario, kind, whose) in [
        ("straggler", "kernels", json!([2])),
        ("late_host", "host", json!([2])),
        ("pauses", "pauses", json!([1])),
        ("host_bound", "host-bound", json!([0, 1])),
        ("unequal", "unequal-work", json!([0, 1, 2, 3])),
        ("slow_link", "link", json!([[3, 4], [4, 3]])),
        ("stalling_link", "stall", json!([[1, 2]])),
    ] {
        let mut told = Vec::new();
        loop {
            let answer = Plan::new("2.30.7", scenario).with_cupti(CUPTI).run().answer("diagnose");
            let first = &answer["causes"][0];
            let mut links: Vec<[i64; 2]> = (first["links"].as_array().into_iter().flatten())
                .map(|link| ["from", "to"].map(|end| link[end].as_i64().expect("a rank")))
                .collect();
            links.sort_unstable();
            let of_first = if links.is_empty() { first["ranks"].clone() } else { json!(links) };
            if first["kind"] == kind && of_first == whose {
                break;
            }
            told.push(format!("{}, {of_first}", answer["text"]));
            assert!(told.len() < TIMES, "{scenario}: {told:#?}");
        }
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
        let (judgement, answer, _) = check(&job);
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
        let run = job.play(&job.planted);
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
            let well = Steps::of(&job.play(&others));
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
