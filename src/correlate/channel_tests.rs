//! Kernel channels in a simulated world whose truth is known: GPUs with timers that are far off and
//! drift, NCCL threads that see channels late, and kernels that CUPTI reports later still.

mod world;

use self::world::{BEGIN, FLUSH, MS, Plan, Random, Said, US, World, matched_by, plan, world, worst_error};
use super::tests::Player;
use super::*;
use crate::model::timeline::{Flaw, Timing};

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
fn channels_that_are_seen_after_their_kernel_has_arrived_bound_the_timer_too() {
    let mut world = world(3, 500);
    world.plans.iter_mut().flat_map(|plan| &mut plan.seen).flatten().for_each(|time| *time += FLUSH + 200 * MS);
    let said = world.play();
    world.check_times(&said, |_, _| false);
    assert_eq!((said.checks.kernels_confirmed, said.contradicted()), (500, 0));
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
                // Its channels are done when the GPU turns to the other process. Beside them there
                // is a kernel of a graph, about whose channels nothing is known.
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
