//! Kernel channels in a simulated world whose truth is known: GPUs with timers that are far off and
//! drift, NCCL threads that see channels late, and kernels that CUPTI reports later still.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::tests::Player;
use super::*;
use crate::model::timeline::{Flaw, Owner, Timing, Unmatched};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// When a world begins.
const BEGIN: u64 = 1_000_000_000_000;
/// How late CUPTI reports.
const FLUSH: u64 = 500 * MS;

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// A plan with one operation on two channels, and its kernel.
#[derive(Clone, Debug)]
struct Plan {
    comm: usize,
    launched: u64,
    kernel: [u64; 2],
    /// When each channel really ran.
    channels: [[u64; 2]; 2],
    /// When NCCL's thread saw each.
    seen: [[u64; 2]; 2],
}

/// What to play, and how the GPUs' timers run.
struct World {
    plans: Vec<Plan>,
    /// For each communicator (which is on the device with its number): host less device in ns, and
    /// the drift of that in ppm.
    timers: Vec<(i64, i64)>,
    /// Kernel launches are seen.
    launches: bool,
    /// NCCL's threads report channels.
    samples: bool,
    /// Kernels are reported.
    kernels: bool,
    /// Stamps that replace the true ones, by plan and channel.
    false_stamps: HashMap<(usize, usize), [u64; 2]>,
    /// Plans whose kernel CUPTI does not report.
    lost: Vec<usize>,
    /// The communicators know their device.
    devices: bool,
    /// All communicators are on one GPU.
    one_gpu: bool,
    /// How late CUPTI's times are in ns, from each of these plans on.
    skews: Vec<(usize, i64)>,
    /// Plans whose kernel swapped correlation ids with the next one's.
    swapped: Vec<usize>,
}

/// A world with this many plans on one communicator, 300 us apart on average.
fn world(seed: u64, plans: usize) -> World {
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
fn plan(comm: usize, launched: u64, length: u64, last: &mut [u64; 2], random: &mut Random) -> Plan {
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
struct Said {
    /// By the channel's label: begin, end, how they are known, and whether the channel is
    /// unreliable.
    channels: HashMap<String, (u64, u64, Timing, bool)>,
    /// By the kernel's start: how it was matched, and the element count of its operation.
    kernels: HashMap<u64, Result<(Method, u64), Unmatched>>,
    steps: Vec<i64>,
    /// By the kernel's start: the error that it states.
    errors: HashMap<u64, u32>,
    /// What is said about CUPTI's times: the least and the most that they are late.
    off: Vec<(i64, i64)>,
    /// The begin of kernels whose match was contradicted after it had been said.
    contradicted: Vec<u64>,
    matches: Matches,
    checks: crate::model::timeline::ChannelChecks,
}

impl Said {
    /// How many matches were contradicted, by the final counts.
    fn contradicted(&self) -> u64 {
        *self.matches.clone().by(Method::Contradicted)
    }
}

impl World {
    fn device(&self, comm: usize) -> usize {
        if self.one_gpu { 0 } else { comm }
    }

    /// The time of a GPU at a time of the host.
    fn stamp(&self, comm: usize, time: u64) -> u64 {
        let (offset, ppm) = self.timers[comm];
        let drift = (time - BEGIN) as i64 * ppm / 1_000_000;
        // The timer ticks every 32 ns.
        ((time as i64 - offset - drift) as u64) & !31
    }

    /// All records, in the order in which the collector takes them.
    fn script(&self) -> String {
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

    fn play(&self) -> Said {
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
    fn check_times(&self, said: &Said, except: impl Fn(usize, usize) -> bool) {
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
    fn right(&self, said: &Said) -> usize {
        let owners = self.plans.iter().enumerate().filter_map(|(n, plan)| {
            let owner = said.kernels.get(&plan.kernel[0])?.as_ref().ok()?;
            assert_eq!(owner.1, n as u64, "the kernel of plan {n}");
            Some(())
        });
        owners.count()
    }
}

/// The worst stated error among the samples of plans launched after this time.
fn worst_error(world: &World, said: &Said, after: u64) -> u32 {
    let samples = world.plans.iter().enumerate().filter(|(_, plan)| plan.launched > BEGIN + after);
    let errors = samples.map(|(n, _)| match said.channels[&format!("k{n}.0")].2 {
        Timing::Gpu { error_ns, .. } => error_ns,
        Timing::Seen(_) => u32::MAX,
    });
    errors.max().expect("samples")
}

#[test]
fn true_channel_times_lie_within_the_stated_error() {
    for seed in 0..5 {
        let mut world = world(seed, 6000);
        world.timers = vec![([59_000_000_000, -38_000_000_000][seed as usize % 2], [50, -5, 0][seed as usize % 3])];
        let said = world.play();
        world.check_times(&said, |_, _| false);
        let error = worst_error(&world, &said, 1000 * MS);
        assert!(error <= 4000, "the bound after a second is {error} ns");
        assert_eq!(said.checks.kernels_confirmed, 6000);
        assert_eq!(said.checks.inside_kernel, 12_000);
        assert_eq!((said.checks.implausible, said.checks.unreliable, said.contradicted()), (0, 0, 0));
        assert!(said.steps.is_empty() && said.off.is_empty(), "{:?} {:?}", said.steps, said.off);
        assert_eq!(said.matches.mistimed, 0);
        let [Some(least), Some(most)] = said.matches.cupti_off else { panic!("{:?}", said.matches) };
        assert!((-370_000..-50_000).contains(&least), "{least}");
        assert!((50_000..70_000).contains(&most), "{most}");
    }
}

#[test]
fn impossible_cupti_times_are_reported_with_their_error() {
    for skew in [-30 * MS as i64, -5 * MS as i64, -(MS as i64), MS as i64, 5 * MS as i64, 30 * MS as i64] {
        let mut world = world(11, 1500);
        world.skews = vec![(0, skew)];
        let said = world.play();
        let [(least, most)] = said.off[..] else { panic!("{skew}: {:?}", said.off) };
        assert!(least <= skew && skew <= most, "{skew}: {least} to {most}");
        assert!(
            if skew > 0 { least > skew * 9 / 10 - 50_000 } else { most < skew * 9 / 10 + 50_000 },
            "{least} to {most}"
        );
        // The matches are right, but times that agree with the channels' prove nothing here.
        assert_eq!(said.matches.matched[0], 1500);
        assert_eq!((said.checks.kernels_confirmed, said.contradicted()), (0, 0), "{skew}");
        assert!(said.matches.mistimed >= 1490, "{}", said.matches.mistimed);
        for (start, error) in &said.errors {
            assert!(u64::from(*error) >= skew.unsigned_abs(), "{skew}: ± {error} at {start}");
        }
        // The host's own clock is right.
        world.check_times(&said, |_, _| false);
        assert!(said.steps.is_empty(), "{skew}: {:?}", said.steps);
    }
}

#[test]
fn cupti_times_that_become_wrong_are_not_taken_for_a_timer_step() {
    for skew in [-2 * MS as i64, MS as i64] {
        let mut world = world(12, 1500);
        world.skews = vec![(0, 0), (700, skew)];
        let said = world.play();
        let [(least, most)] = said.off[..] else { panic!("{skew}: {:?}", said.off) };
        assert!(least <= skew && skew <= most, "{skew}: {least} to {most}");
        assert!(said.steps.is_empty(), "{skew}: {:?}", said.steps);
        world.check_times(&said, |_, _| false);
        assert!((600..=700).contains(&said.checks.kernels_confirmed), "{:?}", said.checks);
    }
}

#[test]
fn small_errors_of_cuptis_conversion_are_not_reported() {
    // Errors and jumps that cannot be told apart from outside.
    for skew in [-8_000, -3_000, 5_000, 12_000] {
        let mut world = world(13, 1500);
        world.skews = vec![(0, 0), (300, skew), (600, -skew / 2), (900, skew)];
        let said = world.play();
        assert!(said.off.is_empty() && said.steps.is_empty(), "{skew}: {:?} {:?}", said.off, said.steps);
        assert_eq!((said.matches.mistimed, said.checks.contradictions), (0, 0), "{skew}");
        assert_eq!((said.contradicted(), said.checks.implausible), (0, 0), "{skew}");
    }
}

#[test]
fn without_kernels_the_host_alone_bounds_the_timer() {
    let mut world = world(7, 3000);
    world.kernels = false;
    let said = world.play();
    world.check_times(&said, |_, _| false);
    assert_eq!(said.checks.without_kernel, 6000);
    let error = worst_error(&world, &said, 800 * MS);
    // Launch to start, and stop to seen, take 10 us and more here.
    assert!(error < 30_000, "{error}");
}

#[test]
fn a_hanging_channel_is_reported_after_a_second() {
    let mut world = world(1, 1000);
    let hung = world.plans.len() - 1;
    world.plans[hung].seen[1][1] = u64::MAX;
    world.lost = vec![hung];
    let begun = world.plans[hung].seen[1][0];
    let name = format!("k{hung}.1");
    let mut player = Player::new();
    player.correlator.expect_kernels();
    let mut said = Vec::new();
    let script = world.script();
    for (until, expected) in [(900 * MS, 0), (1100 * MS, 1)] {
        let script = if said.is_empty() && expected == 0 { script.as_str() } else { "" };
        player.play(&format!("{script}\n{} 0 advance", begun + until), &mut |labels, entry| {
            if let What::ChannelBegin { id, timing, .. } = entry.what
                && labels.label(id) == name
            {
                said.push((entry.time.0, timing));
            }
        });
        assert_eq!(said.len(), expected, "{until} ns after it was seen to start");
    }
    let [(time, Timing::Gpu { error_ns, place: None })] = said[..] else { panic!("{said:?}") };
    assert!(time.abs_diff(world.plans[hung].channels[1][0]) <= u64::from(error_ns));
}

#[test]
fn channels_wait_for_the_first_kernels_of_their_gpu() {
    let mut world = world(1, 2);
    world.lost = vec![0, 1];
    let ended = world.plans[1].seen.iter().map(|seen| seen[1]).max().expect("channels");
    let mut player = Player::new();
    player.correlator.expect_kernels();
    // CUPTI returns no kernel before the longest of them has ended.
    for (until, expected) in [(0, 0), (29_000 * MS, 0), (31_000 * MS, 4)] {
        let script = if until == 0 { world.script() } else { String::new() };
        let mut begun = 0;
        player.play(&format!("{script}\n{} 0 advance", ended + until), &mut |_, entry| {
            begun += usize::from(matches!(entry.what, What::ChannelBegin { .. }));
        });
        assert_eq!(begun, expected, "{until} ns after the last was seen to end");
    }
}

#[test]
fn an_end_with_a_larger_error_than_its_begin_states_it() {
    let play = |seconds: u64, lost: bool| {
        let mut random = Random(3);
        let (mut short, mut long) = ([0; 2], [0; 2]);
        let mut world = world(3, 0);
        // One kernel of another communicator bounds the timer by the time the long one has to be
        // said.
        world.timers = vec![(59_000_000_000, 50); 2];
        world.one_gpu = true;
        let first = plan(1, BEGIN + MS, 20 * US, &mut short, &mut random);
        let mut second = plan(0, BEGIN + 500 * MS, seconds * 1_000 * MS, &mut long, &mut random);
        second.seen[1][1] += 60 * MS;
        world.plans = vec![first, second];
        world.lost = if lost { vec![1] } else { Vec::new() };
        let said = world.play();
        (world, said)
    };
    // The kernel is worth the wait.
    let error = |(world, said): (World, Said)| {
        world.check_times(&said, |_, _| false);
        let Timing::Gpu { error_ns, .. } = said.channels["k1.1"].2 else { panic!("{said:?}") };
        u64::from(error_ns)
    };
    let at_begin = error(play(5, false));
    assert!(at_begin < MS / 2, "{at_begin}");
    // Without it there are only the kernel before, from which the timer drifts, and NCCL's late
    // thread.
    let at_end = error(play(5, true));
    assert!((MS..2 * MS).contains(&at_end), "{at_end}");
    let (world, said) = play(80, true);
    world.check_times(&said, |n, _| n == 1);
    for channel in 0..2 {
        let (_, end, timing, _) = said.channels[&format!("k1.{channel}")];
        assert_eq!((end, timing), (world.plans[1].seen[channel][1], Timing::Seen(Flaw::ClockUnknown)));
    }
}

#[test]
fn a_channel_whose_counter_drifted_is_marked_from_there_on() {
    // From plan 500 on, channel 1 gets the stamps of the plan before.
    let mut world = world(3, 1000);
    let stamps: Vec<[u64; 2]> =
        world.plans.iter().map(|plan| plan.channels[1].map(|time| world.stamp(0, time))).collect();
    for n in 500..1000 {
        world.false_stamps.insert((n, 1), stamps[n - 1]);
    }
    let said = world.play();
    world.check_times(&said, |n, channel| n >= 500 && channel == 1);
    for n in 500..1000 {
        let (.., timing, _) = said.channels[&format!("k{n}.1")];
        assert!(matches!(timing, Timing::Seen(Flaw::Repeated | Flaw::OutsideKernel)), "k{n}.1: {timing:?}");
    }
    assert_eq!((said.checks.implausible, said.checks.unreliable), (500, 1));
    // The match is exact, and channel 0 confirms it: the channel is at fault.
    assert_eq!(world.right(&said), 1000);
    let late = said.channels["k999.0"];
    assert!(!late.3, "channel 0 is not in doubt");
}

#[test]
fn a_doubtful_channel_stays_doubtful_even_where_it_fits() {
    let mut world = world(4, 400);
    let stamps = world.plans[199].channels[1].map(|time| world.stamp(0, time));
    world.false_stamps.insert((200, 1), stamps);
    let said = world.play();
    assert!(!said.channels["k150.1"].3);
    assert!(said.channels["k399.1"].3, "marked from there on");
    assert!(!said.channels["k399.0"].3);
}

#[test]
fn missing_or_backward_stamps_are_not_drawn_as_times() {
    let mut world = world(5, 300);
    let [start, stop] = world.plans[100].channels[0].map(|time| world.stamp(0, time));
    world.false_stamps.insert((100, 0), [0, stop]);
    world.false_stamps.insert((101, 0), [start, 0]);
    world.false_stamps.insert((102, 0), [stop, start]);
    world.false_stamps.insert((103, 0), [u64::MAX - 1, u64::MAX]);
    let said = world.play();
    let timing = |label: &str| said.channels[label].2;
    assert_eq!(timing("k100.0"), Timing::Seen(Flaw::NoStamp));
    assert_eq!(timing("k101.0"), Timing::Seen(Flaw::NoStamp));
    assert_eq!(timing("k102.0"), Timing::Seen(Flaw::Backwards));
    assert_eq!(timing("k103.0"), Timing::Seen(Flaw::ClockUnknown));
    assert_eq!((said.checks.implausible, said.checks.unmapped), (3, 1));
    world.check_times(&said, |n, channel| (100..104).contains(&n) && channel == 0);
}

#[test]
fn a_kernel_without_a_launch_is_found_by_its_channels() {
    for seed in 0..10 {
        for devices in [true, false] {
            let mut world = world(seed, 2000);
            world.launches = false;
            world.devices = devices;
            let said = world.play();
            let right = world.right(&said);
            assert!(right * 1000 >= 2000 * 999, "seed {seed}: {right} of 2000");
            world.check_times(&said, |_, _| false);
            let methods = said.kernels.values().flatten().all(|(method, _)| *method == Method::DeviceTimer);
            assert!(methods, "only the channels tell");
        }
    }
}

#[test]
fn overlapping_kernels_are_found_by_their_channels() {
    // Two communicators on two streams of one GPU: long kernels of one contain short ones of the
    // other.
    for seed in 0..10 {
        let mut world = world(seed, 0);
        let mut random = Random(seed + 100);
        let (mut time, mut last) = (BEGIN, [[0; 2]; 2]);
        for _ in 0..700 {
            time += 600 * US + random.below(400 * US);
            world.plans.push(plan(0, time, 350 * US + random.below(100 * US), &mut last[0], &mut random));
            for inner in 0..2 {
                let at = time + 30 * US + inner * 150 * US + random.below(60 * US);
                world.plans.push(plan(1, at, 10 * US + random.below(40 * US), &mut last[1], &mut random));
            }
        }
        (world.timers, world.one_gpu) = (vec![(59_000_000_000, 20); 2], true);
        world.launches = false;
        let said = world.play();
        let right = world.right(&said);
        assert!(right * 1000 >= 2100 * 999, "seed {seed}: {right} of 2100");
    }
}

/// As where two processes share a GPU, each with two streams (seen on H200).
#[test]
fn a_kernel_that_waits_for_its_turn_does_not_lose_its_channels_to_another() {
    for seed in 0..10 {
        let mut world = world(seed, 0);
        let mut random = Random(seed + 100);
        let (mut time, mut last, mut waits) = (BEGIN, [[0; 2]; 2], 0);
        for n in 0..700 {
            time += 600 * US + random.below(400 * US);
            let mut long = plan(0, time, 20 * US + random.below(20 * US), &mut last[0], &mut random);
            if n % 10 == 9 {
                // Its channels are done when the GPU turns to the other process. Beside them there is a
                // kernel of a graph, about whose channels nothing is known.
                let at = time - random.below(8 * US);
                let beside = plan(1, at, 60 * US, &mut last[1], &mut random);
                long.kernel[1] += 4500 * US;
                time += 5 * MS;
                waits += 1;
                let place = world.plans.len();
                world.false_stamps.extend([0, 1].map(|channel| ((place, channel), [0, 0])));
                world.plans.push(beside);
            }
            world.plans.push(long);
        }
        (world.timers, world.one_gpu) = (vec![(59_000_000_000, 20); 2], true);
        world.launches = false;
        let said = world.play();
        let right = world.right(&said);
        assert!(right * 100 >= 700 * 99, "seed {seed}: {right} of 700, {waits} wait");
    }
}

#[test]
fn lost_kernels_cause_no_wrong_match() {
    for seed in 0..10 {
        let mut world = world(seed, 2000);
        world.launches = false;
        let mut random = Random(seed + 7);
        world.lost = (0..2000).filter(|_| random.below(10) == 0).collect();
        let said = world.play();
        let (right, there) = (world.right(&said), 2000 - world.lost.len());
        assert!(right * 100 >= there * 99, "seed {seed}: {right} of {there}");
    }
}

#[test]
fn a_perfectly_even_rhythm_causes_no_wrong_match() {
    // Each kernel is like the one before to the nanosecond, and NCCL's thread sees channels
    // milliseconds late.
    let mut world = world(1, 0);
    for n in 0..500 {
        let at = BEGIN + n * 50 * US;
        let kernel = [at + 5 * US, at + 25 * US];
        let channels = [[kernel[0] + 1300, kernel[1] - 1600]; 2];
        let seen = [[at + 5000 * US, at + 5001 * US]; 2];
        world.plans.push(Plan { comm: 0, launched: at, kernel, channels, seen });
    }
    world.launches = false;
    let said = world.play();
    world.right(&said);
}

#[test]
fn a_timer_that_is_set_is_noticed() {
    let mut world = world(2, 3000);
    for n in 1500..3000 {
        for channel in 0..2 {
            let stamps = world.plans[n].channels[channel].map(|time| world.stamp(0, time) + 3 * MS);
            world.false_stamps.insert((n, channel), stamps);
        }
    }
    let said = world.play();
    let [by] = said.steps[..] else { panic!("{:?}", said.steps) };
    assert!(by.abs_diff(-3 * MS as i64) < 20_000, "{by}");
    // Nothing is claimed until a wrong match can be ruled out.
    world.check_times(&said, |n, _| (1490..1510).contains(&n));
    assert!(said.checks.implausible < 10, "{:?}", said.checks);
    assert_eq!(world.right(&said), 3000);
    // The kernels that reveal it are no less certain for that.
    assert_eq!(matched_by(&world, &said, Method::Bracket).len(), 3000);
    assert_eq!((said.contradicted(), said.contradicted.len()), (0, 0));
}

/// The kernels matched by this method, as numbers of their plans.
fn matched_by(world: &World, said: &Said, method: Method) -> Vec<usize> {
    let is = |(_, plan): &(usize, &Plan)| said.kernels[&plan.kernel[0]].is_ok_and(|(by, _)| by == method);
    world.plans.iter().enumerate().filter(is).map(|(n, _)| n).collect()
}

#[test]
fn kernels_that_swap_their_launches_are_not_called_exact() {
    for seed in 0..5 {
        let mut world = world(seed, 600);
        // In the middle, twice in a row, and at the very end.
        world.swapped = vec![100, 200, 202, 598];
        let wrong = [100, 101, 200, 201, 202, 203, 598, 599];
        let said = world.play();
        assert_eq!(matched_by(&world, &said, Method::Contradicted), wrong, "seed {seed}");
        assert_eq!(matched_by(&world, &said, Method::Bracket).len(), 592);
        assert_eq!((said.contradicted(), said.matches.matched[0]), (8, 592));
        assert!(said.contradicted.is_empty() && said.off.is_empty() && said.steps.is_empty(), "{said:?}");
        assert_eq!(said.matches.mistimed, 0);
    }
}

#[test]
fn kernels_that_swap_launches_made_before_both_are_found_by_their_channels() {
    for seed in 0..5 {
        let mut world = world(seed, 600);
        world.swapped = vec![100, 200, 202, 400];
        let wrong = [100, 101, 200, 201, 202, 203, 400, 401];
        // The program runs ahead of the GPU.
        for (n, plan) in world.plans.iter_mut().enumerate() {
            plan.launched = BEGIN + n as u64 * 10 * US;
        }
        let said = world.play();
        assert_eq!(matched_by(&world, &said, Method::Contradicted), wrong, "seed {seed}");
        assert_eq!((said.contradicted(), said.matches.matched[0]), (8, 592));
        assert!(said.contradicted.is_empty() && said.off.is_empty() && said.steps.is_empty(), "{said:?}");
    }
}

#[test]
fn kernels_that_swap_launches_are_found_by_the_order_of_their_stream() {
    for seed in 0..5 {
        let mut world = world(seed, 600);
        // Only their order contradicts them: the program runs ahead of the GPU, and no channel is
        // reported.
        world.samples = false;
        for (n, plan) in world.plans.iter_mut().enumerate() {
            plan.launched = BEGIN + n as u64 * 10 * US;
        }
        assert_eq!(world.play().matches.matched[0], 600);
        world.swapped = vec![100, 200, 202, 400];
        let said = world.play();
        // The first of each pair was said before the second arrived.
        assert_eq!((said.contradicted(), said.matches.matched[0]), (8, 592));
        assert_eq!(matched_by(&world, &said, Method::Contradicted), [101, 201, 203, 401]);
        let first = |n: usize| world.plans[n].kernel[0];
        assert_eq!(said.contradicted, [100, 200, 202, 400].map(first), "seed {seed}");
    }
}

#[test]
fn a_contradiction_of_a_drawn_kernel_is_reported() {
    let mut world = world(6, 600);
    world.swapped = vec![300];
    // On two streams of one GPU, whose order tells nothing.
    (world.one_gpu, world.timers) = (true, vec![world.timers[0]; 2]);
    for (n, plan) in world.plans.iter_mut().enumerate() {
        plan.comm = n % 2;
        plan.launched = BEGIN + n as u64 * 10 * US;
        // NCCL's thread was away for so long that the kernel is drawn before the thread sees the
        // channels.
        if n >= 299 {
            plan.seen.iter_mut().flatten().for_each(|seen| *seen += 2 * FLUSH);
        }
    }
    let said = world.play();
    assert_eq!(matched_by(&world, &said, Method::Bracket).len(), 600);
    let mut contradicted = said.contradicted.clone();
    contradicted.sort_unstable();
    assert_eq!(contradicted, [300, 301].map(|n| world.plans[n].kernel[0]));
    assert_eq!((said.contradicted(), said.matches.matched[0]), (2, 598));
}
