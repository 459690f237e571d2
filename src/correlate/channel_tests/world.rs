//! The simulated world: what ran on its GPUs, the records of it that the correlator gets, and how
//! what the correlator says compares with the truth.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::correlate::tests::Player;
use crate::correlate::*;
use crate::model::timeline::{ChannelChecks, Owner, Timing, Unmatched};

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
/// When a world begins.
pub(super) const BEGIN: u64 = 1_000_000_000_000;
/// How late CUPTI reports.
pub(super) const FLUSH: u64 = 500 * MS;

/// Random numbers that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// A plan with one operation on two channels, and its kernel.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) comm: usize,
    pub(super) launched: u64,
    pub(super) kernel: [u64; 2],
    /// When each channel really ran.
    pub(super) channels: [[u64; 2]; 2],
    /// When NCCL's thread saw each.
    pub(super) seen: [[u64; 2]; 2],
}

/// What to play, and how the GPUs' timers run.
pub(super) struct World {
    pub(super) plans: Vec<Plan>,
    /// For each communicator (which is on the device with its number): host less device in ns, and
    /// the drift of that in ppm.
    pub(super) timers: Vec<(i64, i64)>,
    /// Kernel launches are seen.
    pub(super) launches: bool,
    /// NCCL's threads report channels.
    pub(super) samples: bool,
    /// Kernels are reported.
    pub(super) kernels: bool,
    /// Stamps that replace the true ones, by plan and channel.
    pub(super) false_stamps: HashMap<(usize, usize), [u64; 2]>,
    /// Plans whose kernel CUPTI does not report.
    pub(super) lost: Vec<usize>,
    /// The communicators know their device.
    pub(super) devices: bool,
    /// All communicators are on one GPU.
    pub(super) one_gpu: bool,
    /// How late CUPTI's times are in ns, from each of these plans on.
    pub(super) skews: Vec<(usize, i64)>,
    /// Plans whose kernel swapped correlation ids with the next one's.
    pub(super) swapped: Vec<usize>,
}

/// A world with this many plans on one communicator, 300 us apart on average.
pub(super) fn world(seed: u64, plans: usize) -> World {
    let mut random = Random(seed);
    let mut time = BEGIN;
    let mut last = [0; 2];
    let plans = (0..plans).map(|_| {
        time += 100 * US + random.below(400 * US);
        plan(0, time, 20 * US + random.below(60 * US), &mut last, &mut random)
    });
    World {
        plans: plans.collect(),
        timers: vec![(59_000_000_000, 50)],
        launches: true,
        samples: true,
        kernels: true,
        false_stamps: HashMap::new(),
        lost: Vec::new(),
        devices: true,
        one_gpu: false,
        skews: Vec::new(),
        swapped: Vec::new(),
    }
}

/// A plan launched at this time. `last` is when each channel was last seen.
pub(super) fn plan(comm: usize, launched: u64, length: u64, last: &mut [u64; 2], random: &mut Random) -> Plan {
    let start = launched + 4 * US + random.below(4 * US);
    let end = start + length;
    let mut plan = Plan { comm, launched, kernel: [start, end], channels: [[0; 2]; 2], seen: [[0; 2]; 2] };
    for (channel, last) in last.iter_mut().enumerate() {
        let from = start + 1200 + random.below(200);
        let to = end - 1500 - random.below(300) - channel as u64 * random.below(5 * US);
        let seen = (from + 10 * US + random.below(300 * US)).max(*last + 1);
        let stopped = (to + 10 * US + random.below(300 * US)).max(seen + 1);
        (plan.channels[channel], plan.seen[channel]) = ([from, to], [seen, stopped]);
        *last = stopped;
    }
    plan
}

/// What is said about channels and kernels.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// By the channel's label: begin, end, how they are known, and whether the channel is
    /// unreliable.
    pub(super) channels: HashMap<String, (u64, u64, Timing, bool)>,
    /// By the kernel's start: how it was matched, and the element count of its operation.
    pub(super) kernels: HashMap<u64, Result<(Method, u64), Unmatched>>,
    pub(super) steps: Vec<i64>,
    /// By the kernel's start: the error that it states.
    pub(super) errors: HashMap<u64, u32>,
    /// What is said about CUPTI's times: the least and the most that they are late.
    pub(super) off: Vec<(i64, i64)>,
    /// The begin of kernels whose match was contradicted after it had been said.
    pub(super) contradicted: Vec<u64>,
    pub(super) matches: Matches,
    pub(super) checks: ChannelChecks,
}

impl Said {
    /// How many matches were contradicted, by the final counts.
    pub(super) fn contradicted(&self) -> u64 {
        *self.matches.clone().by(Method::Contradicted)
    }
}

impl World {
    fn device(&self, comm: usize) -> usize {
        if self.one_gpu { 0 } else { comm }
    }

    /// The time of a GPU at a time of the host.
    pub(super) fn stamp(&self, comm: usize, time: u64) -> u64 {
        let (offset, ppm) = self.timers[comm];
        let drift = (time - BEGIN) as i64 * ppm / 1_000_000;
        // The timer ticks every 32 ns.
        ((time as i64 - offset - drift) as u64) & !31
    }

    /// All records, in the order in which the collector takes them.
    pub(super) fn script(&self) -> String {
        let mut lines: Vec<(u64, String)> = Vec::new();
        for comm in 0..self.timers.len() {
            let device = if self.devices { self.device(comm) + 1 } else { 0 };
            let line = format!("comm C{comm} hash={} rank=0 ranks=2 interface=6 device={device}", comm + 7);
            lines.push((BEGIN - 3, format!("{} 0 {line}", BEGIN - 3)));
        }
        for (n, plan) in self.plans.iter().enumerate() {
            let (at, c) = (plan.launched, plan.comm);
            let mut line = |time: u64, ring: u32, what: String| lines.push((time, format!("{time} {ring} {what}")));
            line(at - 3, 0, format!("start g{n} GroupApi in=C{c}"));
            line(at - 2, 0, format!("start a{n} CollApi in=C{c} parent=g{n} count={n}"));
            line(at - 1, 0, format!("stop a{n}"));
            line(at, 0, format!("start l{n} KernelLaunch in=C{c} parent=g{n} stream={}", 1000 + c));
            if self.launches {
                line(at, 0, format!("launch corr={} in=l{n} group=g{n}", n + 1));
            }
            line(at + 1, 0, format!("stop l{n}"));
            line(at + 2, 0, format!("start p{n} Group in=C{c}"));
            line(at + 2, 0, format!("start c{n} Coll in=C{c} parent=a{n} group=p{n} count={n}"));
            line(at + 3, 0, format!("stop c{n}"));
            line(at + 3, 0, format!("stop p{n}"));
            line(at + 4, 0, format!("stop g{n}"));
            for (channel, [seen, stopped]) in plan.seen.into_iter().enumerate().filter(|_| self.samples) {
                let truth = plan.channels[channel].map(|time| self.stamp(c, time));
                let [start, stop] = self.false_stamps.get(&(n, channel)).copied().unwrap_or(truth);
                let k = format!("k{n}.{channel}");
                line(seen, 1, format!("start {k} KernelCh in=C{c} parent=c{n} channel={channel} gpu={start}"));
                if stopped < u64::MAX {
                    line(stopped, 1, format!("state {k} KERNEL_CH_STOP argument={stop}"));
                    line(stopped, 1, format!("stop {k}"));
                }
            }
        }
        // The sort is stable: records with the same time stay in order.
        lines.sort_by_key(|(time, _)| *time);
        let mut kernels: Vec<(u64, String)> = Vec::new();
        for (n, plan) in self.plans.iter().enumerate().filter(|(n, _)| self.kernels && !self.lost.contains(n)) {
            let skew = self.skews.iter().rev().find(|(from, _)| n >= *from).map_or(0, |(_, skew)| *skew);
            let [start, end] = plan.kernel.map(|time| time.wrapping_add_signed(skew));
            let place = format!("device={} stream={}", self.device(plan.comm), plan.comm + 7);
            let launch = match n {
                _ if self.swapped.contains(&n) => n + 2,
                _ if n > 0 && self.swapped.contains(&(n - 1)) => n,
                _ => n + 1,
            };
            kernels.push((end, format!("{end} 0 kernel {start} corr={launch} {place}")));
        }
        kernels.sort_by_key(|(end, _)| *end);
        let mut script = format!("{} 0 thread 100 python3\n{} 1 thread 200 NCCL\n", BEGIN - 9, BEGIN - 9);
        let mut kernels = kernels.into_iter().peekable();
        let mut advanced = BEGIN;
        for (time, line) in lines {
            while advanced + 10 * MS < time {
                advanced += 10 * MS;
                while let Some((_, kernel)) = kernels.next_if(|(end, _)| end + FLUSH <= advanced) {
                    let _ = writeln!(script, "{kernel}");
                }
                let _ = writeln!(script, "{advanced} 0 advance");
            }
            let _ = writeln!(script, "{line}");
        }
        kernels.for_each(|(_, kernel)| script.push_str(&(kernel + "\n")));
        script
    }

    pub(super) fn play(&self) -> Said {
        let mut player = Player::new();
        if self.kernels {
            player.correlator.expect_kernels();
        }
        let mut said = Said::default();
        player.play(&(self.script() + "finish"), &mut |labels, entry| match entry.what {
            What::ChannelBegin { id, timing, unreliable, .. } => {
                let before = said.channels.insert(labels.label(id).to_owned(), (entry.time.0, 0, timing, unreliable));
                assert_eq!(before, None, "a channel is said once");
            }
            What::ChannelEnd { id, timing, .. } => {
                let said = said.channels.get_mut(labels.label(id)).expect("an end follows its begin");
                said.1 = entry.time.0;
                said.2 = timing.unwrap_or(said.2);
            }
            What::Kernel { kernel, owner } => {
                let owner = match owner {
                    Owner::Operations { method, operations, .. } => Ok((method, operations[0].count())),
                    Owner::Unmatched(reason) => Err(reason),
                    Owner::Application => panic!("a kernel of NCCL's"),
                };
                said.errors.insert(kernel.span.start.0, kernel.span.error_ns);
                said.kernels.insert(kernel.span.start.0, owner);
            }
            What::TimerStep { by, .. } => said.steps.push(by),
            What::TimesOff { least, most, .. } => said.off.push((least, most)),
            What::Contradicted { .. } => said.contradicted.push(entry.time.0),
            _ => {}
        });
        said.matches = player.correlator.matches();
        said.checks = said.matches.channels;
        said
    }

    /// Asserts that every sample is reported and that its true times lie within the stated error,
    /// unless `except` holds for its plan and channel.
    #[track_caller]
    pub(super) fn check_times(&self, said: &Said, except: impl Fn(usize, usize) -> bool) {
        for (n, plan) in self.plans.iter().enumerate() {
            for channel in 0..2 {
                let &(begin, end, timing, _) =
                    said.channels.get(&format!("k{n}.{channel}")).expect("each sample is said");
                if except(n, channel) {
                    continue;
                }
                let Timing::Gpu { error_ns, .. } = timing else { panic!("k{n}.{channel}: {timing:?}") };
                let [from, to] = plan.channels[channel];
                let off = begin.abs_diff(from).max(end.abs_diff(to));
                assert!(off <= u64::from(error_ns), "k{n}.{channel} is off by {off}, beyond {error_ns}");
            }
        }
    }

    /// The number of matched kernels. Asserts that none was matched wrongly.
    #[track_caller]
    pub(super) fn right(&self, said: &Said) -> usize {
        let owners = self.plans.iter().enumerate().filter_map(|(n, plan)| {
            let owner = said.kernels.get(&plan.kernel[0])?.as_ref().ok()?;
            assert_eq!(owner.1, n as u64, "the kernel of plan {n}");
            Some(())
        });
        owners.count()
    }
}

/// The worst stated error among the samples of plans launched after this time.
pub(super) fn worst_error(world: &World, said: &Said, after: u64) -> u32 {
    let samples = world.plans.iter().enumerate().filter(|(_, plan)| plan.launched > BEGIN + after);
    let errors = samples.map(|(n, _)| match said.channels[&format!("k{n}.0")].2 {
        Timing::Gpu { error_ns, .. } => error_ns,
        Timing::Seen(_) => u32::MAX,
    });
    errors.max().expect("samples")
}

/// The kernels matched by this method, as numbers of their plans.
pub(super) fn matched_by(world: &World, said: &Said, method: Method) -> Vec<usize> {
    let is = |(_, plan): &(usize, &Plan)| said.kernels[&plan.kernel[0]].is_ok_and(|(by, _)| by == method);
    world.plans.iter().enumerate().filter(is).map(|(n, _)| n).collect()
}
