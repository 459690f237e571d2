use super::*;

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
/// The host's time at the beginning of a world.
const BEGIN: i64 = 100_000 * SECOND;

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    /// From 0 to `limit` - 1.
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as i64) % limit
    }

    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below(high - low + 1)
    }
}

/// A host, a GPU and what is known of its kernels.
struct World {
    random: Random,
    /// From each host time on: the device's time then, and its ns per host ns, less one.
    course: Vec<(i64, i64, f64)>,
    /// The step of the device's timer.
    step: i64,
    /// The greatest error of a kernel's times.
    error: i64,
    /// The least and greatest time between a kernel's ends and its first or last channel.
    slack: [i64; 2],
}

/// A pair, and the true host times of its stamps.
struct Kernel {
    pair: Pair,
    truth: [i64; 2],
}

impl World {
    /// A world with a device that is `ahead` of the host and faster by `drift` ns per second.
    fn new(seed: u64, ahead: i64, drift: f64, step: i64, error: i64) -> World {
        World {
            random: Random(seed),
            course: vec![(BEGIN, BEGIN + ahead, drift / 1e9)],
            step,
            error,
            slack: [3_000, 4_000],
        }
    }

    fn device(&self, host: i64) -> i64 {
        let (from, device, rate) = self.course[self.course.partition_point(|turn| turn.0 <= host).max(1) - 1];
        device + (host - from) + ((host - from) as f64 * rate).floor() as i64
    }

    /// From now on the device is further ahead by `more`, and its drift has grown by `drift`.
    fn turn(&mut self, host: i64, more: i64, drift: f64) {
        let rate = self.course[self.course.len() - 1].2;
        self.course.push((host, self.device(host) + more, rate + drift / 1e9));
    }

    fn stamp(&self, host: i64) -> GpuNs {
        GpuNs((self.device(host) / self.step * self.step) as u64)
    }

    /// A kernel that starts now.
    fn kernel(&mut self, start: i64) -> Kernel {
        let busy = self.random.between(5_000, 600_000);
        self.kernel_of(start, busy)
    }

    /// A kernel with channels that run for `busy` ns.
    fn kernel_of(&mut self, start: i64, busy: i64) -> Kernel {
        let slack = self.random.between(self.slack[0], self.slack[1]);
        let head = self.random.between(0, slack);
        let error = self.random.between(0, self.error);
        let truth = [start + head, start + head + busy];
        // CUPTI's times have steps as well.
        let mut seen = |time: i64| HostNs((time + self.random.between(-error - 31, error)) as u64);
        let host = Span { start: seen(start), end: seen(start + busy + slack), error_ns: error as u32 };
        Kernel { pair: Pair { host, device: truth.map(|time| self.stamp(time)) }, truth }
    }
}

/// Asserts that a device instant is converted correctly, and returns the bound.
#[track_caller]
fn check(clock: &DeviceClock, world: &World, truth: i64) -> u64 {
    let (host, error) = clock.to_host(GpuNs(world.device(truth) as u64)).expect("a time");
    // The world's device times are rounded down.
    assert!(host.0.abs_diff(truth as u64) <= error + 1, "{host:?} ± {error} is not {truth}: {clock:?}");
    error
}

/// Asserts that the stamps of a kernel are converted correctly.
#[track_caller]
fn check_stamps(clock: &DeviceClock, kernel: &Kernel) -> u64 {
    let mut most = 0;
    for (stamp, truth) in kernel.pair.device.into_iter().zip(kernel.truth) {
        let (host, error) = clock.to_host(stamp).expect("a time");
        let (low, high) = (host.0 as i64 - error as i64 - 1, (host.0 + error + clock.step()) as i64);
        assert!((low..=high).contains(&truth), "{low}..{high} is not {truth}: {clock:?}");
        most = most.max(error);
    }
    most
}

/// All kinds of GPUs: (how far ahead, drift in ns per second, step, error).
fn kinds() -> impl Iterator<Item = (i64, f64, i64, i64)> {
    let mut random = Random(7);
    let steps = [1, 32, 1000, 1024];
    (0..16).map(move |index| {
        let far = [5, 60, 600, 1_790_000_000][index / 4] * SECOND;
        // The host's time must stay above 0.
        let ahead = random.between(-far.min(4_000 * SECOND), far);
        let drift = random.between(-100_000, 100_000) as f64;
        (ahead, drift, steps[index % 4], [0, 100, 500, 1000][(index + index / 4) % 4])
    })
}

#[test]
fn the_bound_holds_and_is_small_after_a_second() {
    for (seed, (ahead, drift, step, error)) in kinds().enumerate() {
        let mut world = World::new(seed as u64, ahead, drift, step, error);
        let mut clock = DeviceClock::default();
        for index in 0..1_300 {
            let now = BEGIN + index * MS;
            let kernel = world.kernel(now);
            assert_eq!(clock.add(kernel.pair), [], "{index}");
            let bound = check_stamps(&clock, &kernel);
            assert!(index < 1_000 || bound <= 4_000, "± {bound} after {index} ms");
            if index % 8 == 0 {
                // Also before the first kernel and after the last one.
                let times = [(BEGIN, now), (BEGIN - 3 * SECOND, BEGIN), (now, now + 10 * SECOND)];
                for time in times.map(|(from, until)| world.random.between(from, until)) {
                    check(&clock, &world, time);
                }
            }
        }
    }
}

#[test]
fn a_few_pairs_give_a_bound_that_grows_with_distance() {
    let mut world = World::new(1, 77 * SECOND, 100_000.0, 32, 0);
    let mut clock = DeviceClock::default();
    assert_eq!(clock.to_host(GpuNs(1)), None);
    let kernel = world.kernel(BEGIN);
    clock.add(kernel.pair);
    // A single pair says nothing about the timer's step, which could be as coarse as the kernel is
    // long.
    let length = (kernel.truth[1] - kernel.truth[0]).unsigned_abs();
    let first = check_stamps(&clock, &kernel);
    assert!((length / 2..length / 2 + 4_000).contains(&first), "± {first} of {length}");
    for index in 1..4 {
        let kernel = world.kernel(BEGIN + index * MS);
        clock.add(kernel.pair);
        check_stamps(&clock, &kernel);
    }
    let mut last = check_stamps(&clock, &kernel);
    assert!(last < 3_000, "± {last}");
    for distance in [10 * MS, SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND] {
        let errors = [BEGIN - distance, BEGIN + distance].map(|time| check(&clock, &world, time));
        let prior = distance as u64 / 5_000;
        for error in errors {
            assert!(error > last && (prior..4 * prior + 8_000).contains(&error), "± {error} at {distance}");
        }
        last = errors[0].min(errors[1]);
    }
    // A device time before the host's time 0 has no host time.
    assert_eq!(clock.to_host(GpuNs(0)), None);
    assert_eq!(clock.to_host(GpuNs(u64::MAX)), None);
}

#[test]
fn a_clock_may_change_its_rate_slowly() {
    // Rates that change by up to 0.1 ppm within 4 s: steadily, at random, or back and forth.
    let changes: [fn(i64, &mut Random) -> i64; 3] =
        [|_, _| 20, |_, random| random.between(-20, 20), |second, _| if second % 8 < 4 { 20 } else { -20 }];
    for (seed, change) in changes.into_iter().enumerate() {
        let mut world = World::new(seed as u64, 3 * SECOND, 9_000.0, 1024, 0);
        // Kernels with no slack, so that every error shows.
        world.slack = [0, 0];
        for second in 1..150 {
            let by = change(second, &mut world.random);
            world.turn(BEGIN + second * SECOND, 0, by as f64);
        }
        // Some run for many seconds, and there is an idle half minute.
        let mut now = BEGIN;
        let mut kernels: Vec<Kernel> = (0..1_000)
            .map(|index| {
                now += if index == 500 { 30 * SECOND } else { world.random.between(0, 100) * MS };
                let long = index % 5 == 2 && !(300..500).contains(&index);
                let busy = if long { world.random.below(10 * SECOND) } else { 100_000 };
                world.kernel_of(now, busy)
            })
            .collect();
        kernels.sort_by_key(|kernel| kernel.truth[1]);
        let mut clock = DeviceClock::default();
        for (index, kernel) in kernels.iter().enumerate() {
            assert_eq!(clock.add(kernel.pair), [], "{index}");
            let bound = check_stamps(&clock, kernel);
            assert!(index < 30 || (500..530).contains(&index) || bound <= 4_000, "± {bound} at {index}");
            let later = kernel.truth[1] + world.random.below(20 * SECOND);
            check(&clock, &world, later);
        }
        for kernel in &kernels {
            check_stamps(&clock, kernel);
        }
        // While idle, both sides help.
        let idle = kernels[499].truth[1];
        for second in 0..30 {
            let bound = check(&clock, &world, idle + second * SECOND);
            let distance = second.min(30 - second) as u64;
            assert!(bound <= 4_000 + 2_500 * distance, "± {bound} after {second} s");
        }
        assert!(clock.pieces.len() > 10);
    }
}

#[test]
fn the_truth_is_kept_when_the_bounds_have_no_slack() {
    for (seed, step) in [1, 32, 1000, 1024].into_iter().enumerate() {
        let mut world = World::new(seed as u64, -33 * SECOND, -100_000.0, step, 40);
        world.slack = [0, 0];
        let mut clock = DeviceClock::default();
        let kernels: Vec<Kernel> = (0..800).map(|index| world.kernel(BEGIN + index * MS)).collect();
        for kernel in &kernels {
            assert_eq!(clock.add(kernel.pair), []);
            check_stamps(&clock, kernel);
        }
        for kernel in &kernels {
            assert!(check_stamps(&clock, kernel) < 1_000);
        }
    }
}

#[test]
fn a_step_begins_a_new_segment() {
    //  kernels   0 1 2 ... 399 | 400 401 402 ... 799      the device was set forward or back at |
    //  one comes late            399       400
    for (seed, by) in [60_000, -60_000, 900_000, -900_000, 5 * SECOND, -5 * SECOND].into_iter().enumerate() {
        for late in [None, Some(399), Some(400)] {
            let mut world = World::new(seed as u64, 60 * SECOND, -40_000.0, 1000, 700);
            let mut clock = DeviceClock::default();
            let kernels: Vec<Kernel> = (0..800)
                .map(|index| {
                    let now = BEGIN + index * 5 * MS;
                    if index == 400 {
                        world.turn(now - 2 * MS, by, 0.0);
                    }
                    world.kernel(now)
                })
                .collect();
            let mut order: Vec<usize> = (0..800).collect();
            match late {
                Some(399) => order.swap(399, 400),
                Some(_) => order[400..405].rotate_left(1),
                None => {}
            }
            let mut found = Vec::new();
            for (count, index) in order.into_iter().enumerate() {
                found.extend(clock.add(kernels[index].pair));
                let bound = check_stamps(&clock, &kernels[index]);
                assert!(!((200..399).contains(&count) || count >= 600) || bound <= 4_000, "± {bound} at {index}");
                assert!((399..403).contains(&count) || clock.suspects.is_empty(), "{index}");
            }
            let [Contradiction::Step { after, before, by: found }] = found[..] else { panic!("{found:?}") };
            let [last, first] = [399, 400].map(|index| &kernels[index]);
            assert!(after >= last.pair.host.end && before.0 > last.pair.host.end.0);
            assert!(late == Some(400) || before <= first.pair.host.start);
            assert!((found + by).abs() < 10_000, "{found} is not {}", -by);
            // A time that occurred twice means the later one.
            for (index, kernel) in kernels.iter().enumerate().skip(if by < -SECOND { 400 } else { 0 }) {
                let bound = check_stamps(&clock, kernel);
                // Near the step it is open whether a stamp lies before or after it.
                let undecided = if (399..=400).contains(&index) { by.unsigned_abs() } else { 0 };
                assert!(bound <= 6_000 + undecided, "± {bound} at {index}");
            }
            // Between the two kernels the step may be anywhere, but a leap forward leaves a gap.
            if by > -SECOND {
                for tenth in 0..40 {
                    let bound = check(&clock, &world, last.truth[1] + tenth * MS / 10);
                    assert!(by < SECOND || late == Some(400) || bound <= 6_000, "± {bound}");
                }
            }
        }
    }
}

/// A kernel in the middle of a span that starts at a host time, with 2 us on both sides.
fn plain(world: &World, start: i64, error: i64) -> Kernel {
    let truth = [start + 2_000, start + 102_000];
    let ends = [start, start + 104_000].map(|time| HostNs(time as u64));
    let host = Span { start: ends[0], end: ends[1], error_ns: error as u32 };
    Kernel { pair: Pair { host, device: truth.map(|time| world.stamp(time)) }, truth }
}

#[test]
fn the_bound_covers_the_step_of_the_timer_however_coarse() {
    for (seed, step) in [2_000, 10_000, 65_536, 1_000_000].into_iter().enumerate() {
        for error in [0, 1_000] {
            let mut world = World::new(seed as u64, 59 * SECOND, 50_000.0, step, error);
            let mut clock = DeviceClock::default();
            let kernels: Vec<Kernel> = (0..1_000).map(|index| world.kernel(BEGIN + index * MS)).collect();
            for kernel in &kernels {
                assert_eq!(clock.add(kernel.pair), [], "{step}");
                check_stamps(&clock, kernel);
            }
            assert_eq!(clock.step(), step as u64);
            for kernel in &kernels {
                let bound = check_stamps(&clock, kernel);
                assert!(bound <= 4_000 + step as u64, "± {bound} at {step}");
            }
            assert_eq!(clock.conversion(), 0, "{step}");
        }
    }
}

#[test]
fn the_stamps_of_all_channels_show_the_step_at_the_first_kernel() {
    for step in [32, 10_000] {
        let mut world = World::new(2, 59 * SECOND, 0.0, step, 0);
        let kernel = world.kernel_of(BEGIN, 777_777);
        let mut clock = DeviceClock::default();
        let between: Vec<i64> =
            (1..10).map(|part| kernel.truth[0] + part * 70_000 + world.random.below(20_000)).collect();
        clock.see(between.into_iter().map(|time| world.stamp(time)));
        assert_eq!(clock.add(kernel.pair), []);
        let bound = check_stamps(&clock, &kernel);
        assert!(bound <= 3_000 + step as u64, "± {bound} with steps of {step}");
    }
}

#[test]
fn a_timer_whose_step_gets_coarser_is_followed() {
    let mut world = World::new(1, 59 * SECOND, 50_000.0, 32, 0);
    let mut clock = DeviceClock::default();
    let mut found = Vec::new();
    for index in 0..1_000 {
        world.step = if index < 500 { 32 } else { 10_000 };
        let kernel = world.kernel(BEGIN + index * MS);
        found.extend(clock.add(kernel.pair));
        // It takes some stamps until that shows.
        if !(500..540).contains(&index) {
            check_stamps(&clock, &kernel);
        }
    }
    assert_eq!((clock.step(), found), (10_000, Vec::new()));
}

#[test]
fn jumps_of_cuptis_conversion_widen_the_bound_and_are_not_a_step() {
    // CUPTI's times are off by up to `most` ns: by a new amount every 100 ms, drifting back and
    // forth in between.
    for most in [2_000, 5_000, 10_000] {
        for seed in 0..20 {
            let mut world = World::new(seed, 59 * SECOND, 50_000.0, 32, 0);
            let mut clock = DeviceClock::default();
            let (mut from, mut to) = (0, 0);
            let mut kernels = Vec::new();
            for index in 0..3_000 {
                if index % 100 == 0 {
                    (from, to) = (world.random.between(-most, most), world.random.between(-most, most));
                }
                let mut kernel = world.kernel(BEGIN + index * MS);
                let off = from + (to - from) * (index % 100) / 100;
                let by = |time: HostNs| HostNs(time.0.wrapping_add_signed(off));
                (kernel.pair.host.start, kernel.pair.host.end) = (by(kernel.pair.host.start), by(kernel.pair.host.end));
                assert_eq!(clock.add(kernel.pair), [], "± {most} at {index}");
                kernels.push(kernel);
            }
            // Each was converted with what was known at the time; what is known at the end holds
            // for all.
            for kernel in &kernels {
                let bound = check_stamps(&clock, kernel);
                assert!(bound <= 5_000 + u64::from(clock.conversion()), "± {bound} where CUPTI is off by {most}");
            }
        }
    }
}

#[test]
fn one_jump_of_cuptis_conversion_keeps_both_sides_within_the_bound() {
    for by in [-15_000, -8_000, -5_000, 5_000, 8_000, 15_000] {
        let mut world = World::new(3, 59 * SECOND, 50_000.0, 32, 0);
        let mut clock = DeviceClock::default();
        for index in 0..2_000 {
            let mut kernel = world.kernel(BEGIN + index * MS);
            if index >= 1_000 {
                let host = &mut kernel.pair.host;
                (host.start, host.end) =
                    (HostNs(host.start.0.wrapping_add_signed(by)), HostNs(host.end.0.wrapping_add_signed(by)));
            }
            assert_eq!(clock.add(kernel.pair), [], "{by} at {index}");
            check_stamps(&clock, &kernel);
        }
        assert!(clock.conversion() > 0);
    }
}

#[test]
fn a_clock_that_keeps_jumping_is_not_taken_for_a_growing_error() {
    let mut world = World::new(5, 59 * SECOND, 0.0, 32, 0);
    let mut clock = DeviceClock::default();
    let mut found = Vec::new();
    for index in 0..3_000 {
        let now = BEGIN + index * MS;
        // Faster than any clock drifts.
        if index % 50 == 49 {
            world.turn(now - MS / 2, 19_000, 0.0);
        }
        let kernel = world.kernel(now);
        found.extend(clock.add(kernel.pair));
    }
    assert!(clock.conversion() <= JUMPS as u32, "{}", clock.conversion());
    assert!(found.iter().any(|it| matches!(it, Contradiction::Step { .. })), "{found:?}");
}

#[test]
fn a_pair_that_fits_both_lines_decides_nothing() {
    //  kernels   0 ... 99 | 100  101  102  103  104  105   after |, the even ones fit only the new
    //                       new  both new  both new  both      line and the others fit both
    let mut world = World::new(0, 10 * SECOND, 0.0, 1, 0);
    let mut clock = DeviceClock::default();
    let mut kernels = Vec::new();
    let mut random = Random(1);
    for index in 0..106 {
        let now = BEGIN + index * MS;
        if index == 100 {
            world.turn(now - MS / 2, 80_000, 0.0);
        }
        let both = index > 100 && index % 2 == 1;
        let kernel = plain(&world, now + random.below(MS / 4), if both { 80_000 } else { 0 });
        let found = clock.add(kernel.pair);
        check_stamps(&clock, &kernel);
        kernels.push(kernel);
        if index == 104 {
            let [Contradiction::Step { after, before, .. }] = found[..] else { panic!("{found:?}") };
            assert_eq!(after, kernels[99].pair.host.end);
            assert_eq!(before, kernels[100].pair.host.start);
        } else {
            assert_eq!(found, [], "{index}");
        }
    }
    for kernel in &kernels {
        check_stamps(&clock, kernel);
    }
}

#[test]
fn a_suspicion_expires() {
    // One kernel a minute: by then the old line and that of a wrong match are both possible.
    let world = World::new(0, 10 * SECOND, 0.0, 1, 0);
    let mut clock = DeviceClock::default();
    let mut wrong = Vec::new();
    let mut random = Random(1);
    for index in 0..40 {
        let now = BEGIN + index * 60 * SECOND + random.below(SECOND);
        let kernel = plain(&world, now, 0);
        let expected = std::mem::take(&mut wrong);
        assert_eq!(clock.add(kernel.pair), expected, "{index}");
        let bound = check_stamps(&clock, &kernel);
        assert!(index < 3 || bound < 4_000, "± {bound} at {index}");
        if index % 10 == 9 {
            let mut pair = plain(&world, now + SECOND, 0).pair;
            pair.device = pair.device.map(|stamp| GpuNs(stamp.0 + 50_000));
            assert_eq!(clock.add(pair), []);
            wrong.push(Contradiction::WrongMatch(pair));
        }
    }
}

#[test]
fn wrong_matches_change_nothing() {
    for seed in 0..6 {
        let worlds = || World::new(seed, -300 * SECOND, 90_000.0, 1024, 200);
        let (mut world, mut clock, mut untouched) = (worlds(), DeviceClock::default(), DeviceClock::default());
        let mut kernels: Vec<Kernel> = Vec::new();
        let (mut wrong, mut found) = (Vec::new(), Vec::new());
        for index in 0..500 {
            kernels.push(world.kernel(BEGIN + index * MS));
            let kernel = &kernels[kernels.len() - 1];
            // Wrong matches, alone or two in a row.
            if index % 50 == 49 || index % 200 == 98 {
                // The stamps of another kernel, or meaningless ones.
                let mut pair = kernel.pair;
                pair.device = match index / 50 % 4 {
                    0 => kernels[kernels.len() - 2].pair.device,
                    1 => kernel.pair.device.map(|stamp| GpuNs(stamp.0 + 50_000)),
                    2 => kernel.pair.device.map(|stamp| GpuNs(stamp.0 + 3_600_000_000_000)),
                    _ => kernel.pair.device.map(|stamp| GpuNs(stamp.0 / 1_000_000)),
                };
                if pair.device == kernels[kernels.len() - 2].pair.device {
                    // Its length must fit the kernel, or it is refused at once.
                    pair.host.end.0 += 700_000;
                }
                wrong.push(Contradiction::WrongMatch(pair));
                found.extend(clock.add(pair));
                // Meanwhile older times keep their bound.
                if index > 100 {
                    check(&clock, &world, BEGIN + 20 * MS);
                }
            } else {
                found.extend(clock.add(kernel.pair));
                assert_eq!(untouched.add(kernel.pair), []);
                assert!(clock.suspects.is_empty());
                check_stamps(&clock, kernel);
            }
        }
        let last = kernels.pop().expect("kernels");
        found.extend(clock.add(last.pair));
        untouched.add(last.pair);
        assert_eq!(found, wrong);
        for kernel in &kernels {
            assert_eq!(clock.to_host(kernel.pair.device[0]), untouched.to_host(kernel.pair.device[0]));
        }
    }
}

#[test]
fn a_wrong_first_pair_is_outvoted() {
    let mut world = World::new(3, 8 * SECOND, 10_000.0, 32, 0);
    let mut clock = DeviceClock::default();
    let mut wrong = world.kernel(BEGIN).pair;
    wrong.device = wrong.device.map(|stamp| GpuNs(stamp.0 + 40_000));
    assert_eq!(clock.add(wrong), []);
    let mut found = Vec::new();
    for index in 1..20 {
        let kernel = world.kernel(BEGIN + index * MS);
        found.extend(clock.add(kernel.pair));
        // Before that nobody can know.
        let bound = check_stamps(&clock, &kernel);
        assert!(index < 3 || bound < 3_000, "± {bound} at {index}");
    }
    assert_eq!(found, [Contradiction::WrongMatch(wrong)]);
    assert!(check(&clock, &world, BEGIN) < 10_000);
}

#[test]
fn a_pair_that_contradicts_itself_is_refused() {
    let mut world = World::new(4, 8 * SECOND, 0.0, 32, 0);
    let good = world.kernel(BEGIN).pair;
    let Pair { host, device: [first, last] } = good;
    let mut clock = DeviceClock::default();
    // The timer's step must be known for that.
    let before: Vec<Kernel> = (1..8).map(|index| world.kernel(BEGIN - index * 10 * MS)).collect();
    before.iter().for_each(|kernel| assert_eq!(clock.add(kernel.pair), []));
    let known = clock.to_host(first);
    let later = |stamp: GpuNs, by: u64| GpuNs(stamp.0 + by);
    for bad in [
        Pair { host, device: [last, first] },
        Pair { host, device: [first, later(last, 60_000)] },
        Pair { host: Span { start: host.end, end: host.start, error_ns: 0 }, device: [first, last] },
        Pair { host: Span { end: HostNs(u64::MAX), ..host }, device: [first, GpuNs(u64::MAX)] },
        Pair { host: Span { end: HostNs(1 << 62), ..host }, device: [first, last] },
    ] {
        assert_eq!(clock.add(bad), [Contradiction::Unusable(bad)]);
    }
    assert_eq!(clock.to_host(first), known);
    assert_eq!(clock.add(good), []);
}

#[test]
fn kernels_may_come_late_and_run_long() {
    let mut world = World::new(5, -20 * SECOND, 50_000.0, 32, 100);
    let mut clock = DeviceClock::default();
    let mut kernels: Vec<Kernel> = (0..400).map(|index| world.kernel(BEGIN + index * 40 * MS)).collect();
    // One that ran all the time, and some that were reported 9 s later.
    let long = [BEGIN + 2_000, BEGIN + 15 * SECOND];
    let host = Span { start: HostNs(BEGIN as u64), end: HostNs((long[1] + 1_500) as u64), error_ns: 0 };
    let long = Kernel { pair: Pair { host, device: long.map(|time| world.stamp(time)) }, truth: long };
    kernels.insert(390, long);
    for index in (0..150).step_by(7) {
        kernels[index..index + 230].rotate_left(1);
    }
    for kernel in &kernels {
        assert_eq!(clock.add(kernel.pair), []);
        check_stamps(&clock, kernel);
    }
    for kernel in &kernels {
        assert!(check_stamps(&clock, kernel) <= 4_000);
    }
}

#[test]
fn memory_is_bounded() {
    let mut world = World::new(6, 20 * SECOND, -70_000.0, 1000, 1000);
    let mut clock = DeviceClock::default();
    for index in 0..3_000_i64 {
        let kernel = world.kernel(BEGIN + index * 700 * MS);
        let mut pair = kernel.pair;
        if index % 5 == 0 {
            let by = world.random.below(SECOND) as u64;
            pair.device = pair.device.map(|stamp| GpuNs(stamp.0 + by));
        }
        clock.add(pair);
        assert!(clock.pieces.len() <= PIECES && clock.suspects.len() <= SUSPECTS);
        assert!(clock.pieces.back().is_some_and(|piece| piece.lines.0.len() <= CORNERS));
        assert!(clock.suspects.iter().all(|suspect| suspect.witnesses.len() < WITNESSES));
    }
    assert_eq!(clock.pieces.len(), PIECES);
}

#[test]
fn thinning_only_widens() {
    // Bounds that all matter: they touch a parabola from both sides.
    let curve = |at: i64| 10_000_000 + (900_000.0 * seconds(at) * seconds(at)) as i64;
    let bounds = |at: i64| Bounds {
        lower_at: at,
        lower: -curve(at),
        upper_at: at,
        upper: curve(at),
        host_first: 0,
        host_last: 0,
    };
    let mut piece = Piece::new(&bounds(0)).expect("lines");
    let mut exact = piece.lines.clone();
    let mut random = Random(9);
    for _ in 0..200 {
        let bounds = bounds(random.between(-2 * SECOND, 2 * SECOND));
        let (at, low, high) = (seconds(bounds.lower_at), bounds.lower - piece.base, bounds.upper - piece.base);
        assert!(piece.include(&bounds));
        assert!(exact.clip(|line| line.at(at) - low as f64) && exact.clip(|line| high as f64 - line.at(at)));
        assert!(piece.lines.0.len() <= CORNERS);
        for at in -8..=8 {
            let (least, greatest) = exact.range(f64::from(at));
            let (low, high) = piece.lines.range(f64::from(at));
            assert!(low <= least + 1e-3 && high >= greatest - 1e-3, "{low}..{high} lost {least}..{greatest}");
            // It costs little.
            assert!(high - low <= 1.1 * (greatest - least), "{low}..{high} for {least}..{greatest}");
        }
    }
    assert!(exact.0.len() > 2 * CORNERS, "{} corners", exact.0.len());
}

/// From one piece to the next, bounds that are known better may move the result back, but not
/// beyond its error.
#[test]
fn within_a_piece_later_stamps_are_never_earlier() {
    let mut random = Random(99);
    for (seed, (ahead, drift, step, error)) in kinds().enumerate() {
        let mut world = World::new(seed as u64, ahead, drift, step, error);
        let mut clock = DeviceClock::default();
        for index in 0..400 {
            clock.add(world.kernel(BEGIN + index * 20 * MS).pair);
        }
        let (count, last) = (clock.pieces.len(), clock.pieces[clock.pieces.len() - 1].last);
        assert!(count > 2, "{count}");
        let (from, until) = ((clock.pieces[0].first - SECOND).max(0), last + SECOND);
        let mut stamps: Vec<i64> = (0..4_000).map(|_| from + random.below((until - from) / 1000) * 1000).collect();
        // Close together, at the ends of the pieces too.
        for piece in &clock.pieces {
            stamps.extend([piece.first, piece.last, piece.first + MS].iter().flat_map(|at| (at - 40).max(0)..at + 40));
        }
        stamps.sort_unstable();
        // The piece, and whether the next one counts as well.
        let place = |time: i64| {
            let piece = clock.pieces.iter().rposition(|piece| time >= piece.first).unwrap_or(0);
            (piece, time > clock.pieces[piece].last)
        };
        for two in stamps.windows(2) {
            let [before, after] = [two[0], two[1]].map(|time| clock.to_host(GpuNs(time as u64)).expect("a time"));
            if place(two[0]) == place(two[1]) {
                assert!(after.0 >= before.0, "{two:?}: {before:?}, {after:?}");
            }
            let (low, high) = (before.0.0.saturating_sub(before.1), after.0.0 + after.1);
            assert!(high >= low, "{two:?}: {before:?}, {after:?}");
        }
    }
}

#[test]
fn extreme_numbers_are_harmless() {
    let mut random = Random(11);
    let edges = [0, 1, BEGIN as u64, 1 << 61, 1 << 62, i64::MAX as u64, u64::MAX];
    let mut clock = DeviceClock::default();
    for _ in 0..4_000 {
        let edge = edges[random.below(7) as usize];
        let mut number = |near: u64| near.wrapping_add_signed(random.between(-SECOND, SECOND));
        let [start, stop] = [number(BEGIN as u64), number(edge)].map(|near| near.min(1 << 62));
        let [end, last] = [start, stop].map(|from| from.saturating_add(number(SECOND as u64) / 1000));
        let error_ns = number(u64::from(u32::MAX)) as u32;
        let host = Span { start: HostNs(start), end: HostNs(end), error_ns };
        clock.add(Pair { host, device: [GpuNs(stop), GpuNs(last)] });
        for time in [number(0), number(edge), stop, last] {
            let _ = clock.to_host(GpuNs(time));
        }
    }
}

#[test]
fn widening_adds_offset_and_drift() {
    let mut lines = Lines::between(0.0, 3_000.0, DRIFT);
    assert!(lines.clip(|line| line.at(2.0) + 1_000.0) && lines.clip(|line| 4_000.0 - line.at(2.0)));
    let narrow = lines.clone();
    lines.widen(200.0, 50.0);
    for at in [-3.0_f64, 0.0, 0.5, 2.0, 10.0] {
        let (was, is) = (narrow.range(at), lines.range(at));
        let by = 200.0 + 50.0 * at.abs();
        assert!((was.0 - is.0 - by).abs() < 1e-6 && (is.1 - was.1 - by).abs() < 1e-6, "{was:?} {is:?}");
    }
}
