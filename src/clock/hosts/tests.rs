use super::*;

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % most.max(1)
    }
}

/// A host's clock: its reading at a true time, both in ns. Its rate oscillates.
#[derive(Clone, Copy)]
struct Truth {
    ahead: i64,
    drift: f64,
    swing: f64,
}

impl Truth {
    fn reads(self, time: u64) -> u64 {
        let seconds = time as f64 / 1e9;
        // A period of 300 s: the rate changes by less than 0.03 ppm per second for each ppm of
        // the amplitude.
        let turn = 300.0 / std::f64::consts::TAU;
        let away = seconds * self.drift + self.swing * turn * (seconds / turn).sin();
        time.saturating_add_signed(self.ahead + away as i64)
    }

    fn at(self, time: u64) -> HostNs {
        HostNs(self.reads(time))
    }
}

/// An operation: when each host entered it and left it.
fn operation(random: &mut Random, time: u64, slowest: u64, transfer: u64) -> [(u64, u64); 2] {
    let entered = [0, 1].map(|_| time + random.below(slowest));
    let leaves = entered[0].max(entered[1]) + transfer;
    entered.map(|entered| (entered, leaves + random.below(transfer)))
}

fn seen(orders: &mut Orders, clocks: [Truth; 2], [here, there]: [(u64, u64); 2]) {
    orders.here_first(clocks[0].at(here.0), clocks[1].at(there.1));
    orders.there_first(clocks[0].at(here.1), clocks[1].at(there.0));
}

fn exact(time: HostNs) -> Bounded {
    Bounded { time, error_ns: 0 }
}

const REFERENCE: Truth = Truth { ahead: 7_000_000_000_000, drift: 3_000.0, swing: 0.0 };

#[test]
fn the_true_clock_is_within_the_bound() {
    for seed in 1..=24 {
        let random = &mut Random(seed);
        let other = Truth {
            ahead: random.below(7_200_000_000_000).cast_signed(),
            drift: random.below(200_000) as f64 - 100_000.0,
            swing: random.below(30_000) as f64,
        };
        let (mut orders, mut time) = (Orders::default(), 1_000_000_000);
        let mut times = Vec::new();
        while time < 61_000_000_000 {
            seen(&mut orders, [REFERENCE, other], operation(random, time, 2_000_000, 15_000));
            times.push(time);
            time += 1 + random.below(10_000_000);
        }
        let offset = orders.solve().unwrap();
        assert_eq!(offset.contradictions, 0, "seed {seed}");
        // Outside what was observed, too.
        let outside = [0, 500_000_000, 62_000_000_000, 90_000_000_000];
        for time in times.into_iter().chain(outside) {
            let there = HostNs(other.reads(time));
            let Shift { ns: found, error_ns: error } = offset.at(there);
            let truth = REFERENCE.reads(time) as i64 - there.0 as i64;
            assert!(found.abs_diff(truth) <= error, "seed {seed} at {time}: {found} is not {truth} within {error}");
        }
        let ((_, most), middle) = (offset.errors(), offset.middle_error());
        assert!(
            middle < 20_000 && most < 40_000,
            "seed {seed}: {middle} and {most} ns, where 15 to 30 us are a transfer's"
        );
    }
}

/// A clock whose rate changes again and again: each pair is a pause in seconds, and the change
/// after it in ns per second.
struct Unsteady(Vec<(f64, f64)>);

impl Unsteady {
    fn at(&self, time: u64) -> HostNs {
        let (mut left, mut rate, mut ahead) = (time as f64 / 1e9, -50_000.0, 0.0);
        for (pause, change) in &self.0 {
            ahead += rate * left.min(*pause);
            left -= pause;
            rate += change;
            if left <= 0.0 {
                break;
            }
        }
        HostNs(time.saturating_add_signed((ahead + rate * left.max(0.0)) as i64))
    }
}

#[test]
fn corners_that_differ_by_rounding_exclude_nothing() {
    // Two hosts, some of whose operations are known to a millisecond or to a second only. The
    // truth: how far the other clock is behind at its zero, and by how much it is fast.
    let hosts = [
        (
            (474290646569, -0.00015),
            &[
                (1474381203865, 1000245058571),
                (1473396895900, 1001276307389),
                (1474443289715, 1000304775157),
                (1474472262694, 1000336236290),
                (1474492025273, 1000373561597),
                (1474523631757, 1000403646758),
                (1474561705153, 1000441124850),
                (1474582744454, 1000462162779),
                (1474628782466, 1000508195740),
                (1474660910927, 1000540421019),
                (1474709903982, 1000589388152),
                (1474755021736, 1000614493876),
                (1474764230975, 1000648335919),
                (1474800034010, 1000679599786),
                (1473830341883, 1001689882584),
            ][..],
            &[
                (1474385282029, 1000240577717),
                (1475416913010, 999276272409),
                (1474445368438, 1000302670700),
                (1474477994592, 1000331717481),
                (1474514151206, 1000371507138),
                (1474544464260, 1000403032866),
                (1474581708185, 1000441100519),
                (1474602743263, 1000462130093),
                (1474648760594, 1000508161690),
                (1474680975199, 1000540389292),
                (1474729939763, 1000589328089),
                (1474755057841, 1000614454025),
                (1474788535114, 1000643603860),
                (1474820124984, 1000679522362),
                (1475830435350, 999689798080),
            ][..],
        ),
        (
            (678301810661, -9e-05),
            &[
                (1678427599314, 1000221385226),
                (1678450875892, 1000259895132),
                (1678493529796, 1000303844904),
                (1680029258056, 1001837697886),
                (1680078778053, 1001887190627),
                (1679109444262, 1002917923860),
                (1680148101973, 1001936513945),
                (1680156812007, 1001945241813),
                (1680184774494, 1001973170250),
                (1680208953278, 1002019288358),
            ][..],
            &[
                (1678433549080, 1000215797575),
                (1678471640502, 1000259046074),
                (1678515631738, 1000301778805),
                (1680049345619, 1001837670688),
                (1680098847986, 1001887118423),
                (1681129607480, 1000917870357),
                (1680148144150, 1001936476968),
                (1680156879840, 1001945204452),
                (1680184801258, 1001973106655),
                (1680230926887, 1002017233646),
            ][..],
        ),
    ];
    for ((behind, rate), here, there) in hosts {
        let mut orders = Orders::default();
        here.iter().for_each(|(here, there)| orders.here_first(HostNs(*here), HostNs(*there)));
        there.iter().for_each(|(here, there)| orders.there_first(HostNs(*here), HostNs(*there)));
        let offset = orders.solve().unwrap();
        assert_eq!(offset.contradictions, 0);
        for time in here.iter().chain(there).map(|(_, there)| *there) {
            let truth = behind + (rate * time as f64).round() as i64;
            let Shift { ns: found, error_ns: error } = offset.at(HostNs(time));
            assert!(found.abs_diff(truth) <= error, "at {time}: {found} is not {truth} within {error}");
        }
    }
}

#[test]
fn a_rate_that_changes_as_fast_as_it_may_stays_within_the_bound() {
    for (seed, delay, a_second) in
        [100, 1_000, 10_000].into_iter().flat_map(|it| [(1, it, 20), (2, it, 20), (3, it, 200)])
    {
        let random = &mut Random(seed);
        let start = random.below(1_000) as f64 / 1e3;
        let flips = (0..40).map(|number| (random.below(500) as f64 / 1e3, [CHANGE, -CHANGE][number % 2])).collect();
        // At once, and little by little; and up and down.
        let once = [start].into_iter().chain([1.001; 12]).map(|pause| (pause, CHANGE)).collect();
        for clock in [once, vec![(0.05, CHANGE / 20.0); 240], flips].map(Unsteady) {
            let (mut orders, mut times) = (Orders::default(), vec![1_000_000_000]);
            while let Some(&time) = times.last()
                && time < 12_000_000_000
            {
                let [there, back] = [0; 2].map(|_| delay + random.below(delay));
                orders.here_first(HostNs(time), clock.at(time + there));
                orders.there_first(HostNs(time + there + back), clock.at(time + there));
                times.push(time + there + back + random.below(2_000_000_000 / a_second));
            }
            let offset = orders.solve().unwrap();
            assert_eq!(offset.contradictions, 0);
            for time in (times[0]..times[times.len() - 2]).step_by(3_100_000) {
                let there = clock.at(time);
                let truth = time as i64 - there.0 as i64;
                let Shift { ns: found, error_ns: error } = offset.at(there);
                let case = format!("seed {seed}, {delay} ns, {a_second} a second, at {time}");
                assert!(found.abs_diff(truth) <= error + 2, "{case}: {found} is not {truth} within {error}");
            }
        }
    }
}

#[test]
fn quick_transfers_give_a_small_bound() {
    for seed in 1..=8 {
        let random = &mut Random(seed);
        let other = Truth { ahead: 3_600_000_000_000, drift: 100_000.0, swing: 20_000.0 };
        let (mut orders, mut time) = (Orders::default(), 1_000_000_000);
        // One in two takes 10 to 20 us, one in four up to 30 us and so on; each host sends by
        // turns.
        let quick = |random: &mut Random| {
            let slow = std::iter::repeat_with(|| random.below(2)).take(8).take_while(|it| *it == 1).count() as u64;
            10_000 * (1 + slow) + random.below(10_000)
        };
        while time < 21_000_000_000 {
            let [there, back] = [quick(random), quick(random)];
            orders.here_first(REFERENCE.at(time), other.at(time + there));
            orders.there_first(REFERENCE.at(time + 500_000 + back), other.at(time + 500_000));
            time += 1 + random.below(10_000_000);
        }
        let offset = orders.solve().unwrap();
        let ((_, most), middle) = (offset.errors(), offset.middle_error());
        assert!(middle < 14_000 && most < 20_000, "seed {seed}: {middle} and {most} ns");
    }
}

#[test]
fn bounds_hold_across_a_pause() {
    let random = &mut Random(3);
    let other = Truth { ahead: 5_000_000, drift: 40_000.0, swing: 1_000.0 };
    let mut orders = Orders::default();
    for second in (0..10).chain(20..30) {
        for part in 0..50 {
            let time = (second * 50 + part) * 20_000_000 + 1_000_000_000;
            seen(&mut orders, [REFERENCE, other], operation(random, time, 100_000, 10_000));
        }
    }
    let offset = orders.solve().unwrap();
    let mut errors = Vec::new();
    for second in 1..31 {
        let there = HostNs(other.reads(second * 1_000_000_000));
        let truth = REFERENCE.reads(second * 1_000_000_000) as i64 - there.0 as i64;
        let Shift { ns: found, error_ns: error } = offset.at(there);
        assert!(found.abs_diff(truth) <= error, "second {second}: {found} is not {truth} within {error}");
        errors.push(error);
    }
    assert!(errors[14] > 4 * errors[4], "in the pause less is known: {errors:?}");
    assert!(errors[14] < 1_000_000, "but not nothing: {errors:?}");
}

#[test]
fn an_impossible_order_is_left_out_and_reported() {
    let random = &mut Random(5);
    let other = Truth { ahead: 0, drift: 0.0, swing: 0.0 };
    let mut orders = Orders::default();
    for number in 0..500 {
        let time = number * 10_000_000 + 1_000_000_000;
        seen(&mut orders, [other, other], operation(random, time, 50_000, 10_000));
    }
    orders.there_first(HostNs(3_500_000_000), HostNs(3_503_000_000));
    let offset = orders.solve().unwrap();
    assert_eq!((offset.orders, offset.contradictions), (1001, 1));
    assert!((2_900_000..3_000_000).contains(&offset.contradiction_ns), "{}", offset.contradiction_ns);
    let Shift { ns: found, error_ns: error } = offset.at(HostNs(3_500_000_000));
    assert!(found.abs() < 20_000 && error > 2_900_000, "{found} within {error}");
}

#[test]
fn one_offset_for_a_range_includes_the_drift() {
    for seed in 1..=8 {
        let random = &mut Random(seed);
        let ahead = random.below(7_200_000_000_000).cast_signed();
        let other = Truth { ahead, drift: random.below(200_000) as f64 - 100_000.0, swing: 1_000.0 };
        let mut orders = Orders::default();
        for number in 0..2_000 {
            let time = number * 10_000_000 + 1_000_000_000;
            seen(&mut orders, [REFERENCE, other], operation(random, time, 50_000, 10_000));
        }
        let offset = orders.solve().unwrap();
        // Longer than the observed range.
        let (first, last) = (900_000_000, 22_000_000_000);
        let [from, to] = [first, last].map(|time| HostNs(other.reads(time)));
        let Shift { ns, error_ns } = offset.constant(from, to);
        assert_eq!(ns, offset.at(HostNs(from.0.midpoint(to.0))).ns);
        assert!(error_ns < 4_000_000, "seed {seed}: {error_ns}");
        for time in (first..=last).step_by(100_000_000) {
            let there = other.reads(time);
            let off = there.saturating_add_signed(ns).abs_diff(REFERENCE.reads(time));
            assert!(off <= error_ns, "seed {seed}: off by {off} at {time}, not {error_ns}");
        }
    }
}

#[test]
fn one_side_alone_gives_no_offset() {
    let mut orders = Orders::default();
    orders.here_first(REFERENCE.at(1_000), REFERENCE.at(2_000));
    assert_eq!(orders.solve(), None);
    assert_eq!(Orders::default().solve(), None);
}

#[test]
fn a_clock_that_changes_its_rate_is_followed() {
    let random = &mut Random(8);
    let at = |rate: f64, time: u64| (time as f64 * rate) as i64;
    let mut orders = Orders::default();
    // From second 30 on, NTP slews it by 300 ppm.
    let reads = |time: u64| {
        let slewed = time.saturating_sub(31_000_000_000);
        HostNs(time.saturating_add_signed(at(1e-5, time) + at(3e-4, slewed)))
    };
    let times = (0..6_000).map(|number| number * 10_000_000 + 1_000_000_000);
    for time in times.clone() {
        let [here, there] = operation(random, time, 100_000, 10_000);
        orders.here_first(REFERENCE.at(here.0), reads(there.1));
        orders.there_first(REFERENCE.at(here.1), reads(there.0));
    }
    let offset = orders.solve().unwrap();
    for time in times {
        let there = reads(time);
        let truth = REFERENCE.reads(time) as i64 - there.0 as i64;
        let Shift { ns: found, error_ns: error } = offset.at(there);
        assert!(found.abs_diff(truth) <= error, "{time}: {found} is not {truth} within {error}");
    }
    assert!(offset.errors().1 < 400_000, "{:?}", offset.errors());
}

#[test]
fn hosts_without_common_operations_are_related_through_others() {
    let random = &mut Random(9);
    let clocks =
        [0, 1, 2, 3].map(|host| Truth { ahead: host * 3_600_000_000_000, drift: host as f64 * 30_000.0, swing: 0.0 });
    let mut pairs = Vec::new();
    // The first three in a chain, the link to the third seen from its own side; the fourth
    // shares nothing with any.
    for (here, there) in [(0, 1), (2, 1)] {
        let mut orders = Orders::default();
        for number in 0..1_000 {
            let times = operation(random, number * 10_000_000 + 1_000_000_000, 50_000, 10_000);
            seen(&mut orders, [clocks[here], clocks[there]], times);
        }
        pairs.push(((here, there), orders));
    }
    let offsets = solve(4, pairs);
    assert_eq!(offsets[0], Some(Offset::none()));
    assert_eq!(offsets[3], None);
    for host in [1, 2] {
        let offset = offsets[host].as_ref().unwrap();
        for time in (2..10).map(|second| second * 1_000_000_000) {
            let there = HostNs(clocks[host].reads(time));
            let Shift { ns: found, error_ns: error } = offset.at(there);
            let truth = clocks[0].reads(time) as i64 - there.0 as i64;
            assert!(found.abs_diff(truth) <= error, "host {host}: {found} is not {truth} within {error}");
            assert!(error < 30_000 * host as u64, "host {host}: {error}");
        }
    }
}

#[test]
fn the_time_between_two_instants_is_known_better_than_either() {
    let random = &mut Random(4);
    let other = Truth { ahead: 5_000_000, drift: 90_000.0, swing: 0.0 };
    let mut orders = Orders::default();
    for number in 0..100 {
        let times = operation(random, number * 20_000_000 + 1_000_000_000, 400_000, 300_000);
        seen(&mut orders, [REFERENCE, other], times);
    }
    let offset = orders.solve().unwrap();
    for number in 1..90 {
        let [one, two] = [number * 20_000_000 + 1_000_000_000, number * 20_100_000 + 1_000_003_000];
        let shifted = |time| offset.moved(other.at(time)).0 as i64;
        let truth = REFERENCE.reads(two) as i64 - REFERENCE.reads(one) as i64;
        let off = (shifted(two) - shifted(one) - truth).unsigned_abs();
        let error = offset.error_between(exact(other.at(one)), exact(other.at(two)));
        assert!(off <= error + 2, "{number}: {off} is more than {error}");
    }
    let [near, far] = [1_000, 1_000_000_000]
        .map(|by| offset.error_between(exact(other.at(2_000_000_000)), exact(other.at(2_000_000_000 + by))));
    assert!(near <= 3 && far > 10_000, "{near} and {far}");
}

#[test]
fn a_time_that_is_hardly_known_takes_the_drift_within_its_error_along() {
    let random = &mut Random(5);
    let other = Truth { ahead: 5_000_000, drift: -90_000.0, swing: 0.0 };
    let mut orders = Orders::default();
    for number in 0..400 {
        let times = operation(random, number * 20_000_000 + 1_000_000_000, 2_000, 1_000);
        seen(&mut orders, [REFERENCE, other], times);
    }
    let offset = orders.solve().unwrap();
    // A wall clock was set: the first times are stated a second early, or late.
    const OFF: u64 = 1_000_000_000;
    for early in [true, false] {
        for truth in (0..20).map(|number| 4_000_000_000 + number * 37_000_000) {
            let (there, near) = (other.at(truth), other.at(truth + 300_000));
            let stated = if early { there.saturating_sub(OFF) } else { there.saturating_add(OFF) };
            let stated = Bounded { time: stated, error_ns: OFF };
            let here = offset.shifted(stated);
            assert!(
                (here.earliest()..=here.latest()).contains(&REFERENCE.at(truth)),
                "{here:?} is not {:?}",
                REFERENCE.at(truth)
            );
            let between = offset.moved(near).0.abs_diff(here.time.0);
            let error = offset.error_between(stated, exact(near));
            assert!(between.abs_diff(300_000) <= error + 2, "{between} is not 300 us within {error}");
            assert!(error < OFF + 250_000, "{error}");
        }
    }
}

#[test]
fn shifted_times_keep_their_order() {
    for seed in 1..=20 {
        let random = &mut Random(seed);
        let mut orders = Orders::default();
        // The bounds are loose: 10 to 500 ms.
        for number in 0..60 {
            let times = operation(random, number * 700_000_000 + 1_000_000_000, 500_000_000, 10_000_000);
            seen(&mut orders, [REFERENCE, Truth { ahead: 0, drift: 90_000.0, swing: 5_000.0 }], times);
        }
        let offset = orders.solve().unwrap();
        let shifted: Vec<u64> = (0..9_000).map(|at| offset.moved(HostNs(at * 5_000_000)).0).collect();
        assert!(shifted.is_sorted(), "seed {seed}");
    }
}

#[test]
fn a_false_order_does_not_move_a_clock_however_large_it_is() {
    // In a minute, clocks may drift by 60 ms.
    for (seconds, apart) in [(60, 40_000_000), (60, 250_000_000), (600, 400_000_000)] {
        for off in [apart / 20, 30_000_000, 5_000_000_000, 3_600_000_000_000_u64] {
            for (place, is_lower) in [(0, true), (2, true), (9, true), (0, false), (2, false), (9, false)] {
                let random = &mut Random(off + place);
                let other = Truth { ahead: 5_000_000, drift: 40_000.0, swing: 1_000.0 };
                let mut orders = Orders::default();
                let times = (0..seconds * 1_000_000_000 / apart).map(|number| 10_000_000_000_000 + number * apart);
                for time in times.clone() {
                    seen(&mut orders, [REFERENCE, other], operation(random, time, 50_000, 10_000));
                }
                let wrong = 10_000_000_000_000 + place * seconds * 100_000_000;
                let there = other.at(wrong);
                if is_lower {
                    orders.here_first(REFERENCE.at(wrong).saturating_add(off), there);
                } else {
                    orders.there_first(HostNs(REFERENCE.at(wrong).0 - off), there);
                }
                let case = format!("{seconds} s, off by {off} at {wrong}, {is_lower}");
                let offset = orders.solve().unwrap();
                assert_eq!(offset.contradictions, 1, "{case}");
                assert!(offset.contradiction_ns.abs_diff(off) < 100_000, "{case}: {}", offset.contradiction_ns);
                for time in times {
                    let there = other.at(time);
                    let truth = REFERENCE.reads(time) as i64 - there.0 as i64;
                    let Shift { ns: found, error_ns: error } = offset.at(there);
                    assert!(found.abs_diff(truth) < 60_000, "{case}, at {time}: {found} is not {truth}");
                    assert!(error >= offset.contradiction_ns && error < offset.contradiction_ns + 200_000, "{case}");
                }
            }
        }
    }
}

#[test]
fn orders_of_which_half_are_false_leave_a_bound_that_holds() {
    // The other host's clock was set in the middle, which no host's clock is.
    for by in [-5_000_000_000, 5_000_000_000_i64] {
        let random = &mut Random(7);
        let (mut orders, mut pairs) = (Orders::default(), Vec::new());
        for number in 0..2_000 {
            let time = number * 10_000_000 + 10_000_000_000_000;
            let set = if number < 1_000 { 0 } else { by };
            let other = Truth { ahead: 5_000_000 + set, drift: 0.0, swing: 0.0 };
            seen(&mut orders, [REFERENCE, other], operation(random, time, 50_000, 10_000));
            pairs.push((REFERENCE.at(time), other.at(time)));
        }
        let offset = orders.solve().unwrap();
        assert!(offset.contradictions > 0);
        for (here, there) in pairs {
            let error = offset.at(there).error_ns;
            assert!(
                offset.moved(there).0.abs_diff(here.0) <= error + 20_000,
                "{by}: {there:?} is not {here:?} within {error}"
            );
        }
    }
}
