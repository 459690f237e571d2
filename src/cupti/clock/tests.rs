use super::*;
use crate::correlate::tests::random::Random;

const SECOND: u64 = 1_000_000_000;
const EPOCH: u64 = 1_795_200_300 * SECOND;

/// A reading at a host time; the wall clock is ahead by `offset`, and CUPTI by `cupti`.
fn reading(at: u64, offset: u64, cupti: Option<u64>) -> Reading {
    Reading {
        boot_before: HostNs(at - 60),
        wall_before: at - 30 + offset,
        cupti: cupti.map(|ahead| Stamp(at + ahead)),
        wall_after: at + 30 + offset,
        boot_after: HostNs(at + 60),
    }
}

fn wall(at: u64, offset: u64) -> Reading {
    reading(at, offset, Some(offset))
}

#[track_caller]
fn assert_within(clock: &CuptiClock, stamp: u64, now: u64, truth: u64, at_most: u32) {
    let (host, error) = clock.to_host(Stamp(stamp), HostNs(now)).expect("an instant");
    assert!(host.0.abs_diff(truth) <= u64::from(error), "{host:?} ± {error} is not {truth}");
    assert!(error <= at_most, "± {error}, not ± {at_most}, at {truth}");
}

#[test]
fn the_wall_clock_is_a_constant_away() {
    let mut clock = CuptiClock::default();
    for second in 10..20 {
        assert_eq!(clock.add(&wall(second * SECOND, EPOCH)), None);
    }
    assert!(clock.covers(HostNs(100 * SECOND)));
    assert_within(&clock, EPOCH + 15 * SECOND + 123, 20 * SECOND, 15 * SECOND + 123, 101);
    // Also just before the first reading and just after the last.
    assert_within(&clock, EPOCH + 9_900_000_000, 20 * SECOND, 9_900_000_000, 101);
    assert_within(&clock, EPOCH + 20 * SECOND, 20 * SECOND, 20 * SECOND, 101);
}

#[test]
fn readings_that_were_interrupted_do_not_widen_the_error() {
    let mut clock = CuptiClock::default();
    clock.add(&wall(10 * SECOND, EPOCH));
    // The kernel stopped the thread for 3 ms between the clocks.
    let late = 3_000_000;
    let mut interrupted = wall(11 * SECOND, EPOCH);
    interrupted.wall_after += late;
    interrupted.boot_after.0 += late;
    assert_eq!(clock.add(&interrupted), None);
    assert_within(&clock, EPOCH + 11 * SECOND, 12 * SECOND, 11 * SECOND, 101);
}

#[test]
fn impossible_times_are_refused() {
    let mut clock = CuptiClock::default();
    assert_eq!(clock.to_host(Stamp(EPOCH), HostNs(SECOND)), None);
    clock.add(&wall(10 * SECOND, EPOCH));
    let now = HostNs(11 * SECOND);
    for stamp in [0, 1, 10 * SECOND, EPOCH, EPOCH + 8 * SECOND, EPOCH + 12 * SECOND, 2 * EPOCH, u64::MAX] {
        assert_eq!(clock.to_host(Stamp(stamp), now), None, "{stamp}");
    }
}

#[test]
fn a_step_of_the_wall_clock_widens_the_error_around_it() {
    //  readings   10    11    12    13 | 14    15    16    17    18
    //  wall clock is EPOCH ahead       | EPOCH + 5 ms (or - 5 ms) ahead
    const STEP: u64 = 5_000_000;
    for back in [false, true] {
        let after = if back { EPOCH - STEP } else { EPOCH + STEP };
        let mut clock = CuptiClock::default();
        for second in 10..=13 {
            assert_eq!(clock.add(&wall(second * SECOND, EPOCH)), None);
        }
        let Some(Change::Stepped(by)) = clock.add(&wall(14 * SECOND, after)) else { panic!("no step") };
        assert!((by.unsigned_abs().abs_diff(STEP)) < 200 && back == (by < 0), "{by}");
        for second in 15..=18 {
            assert_eq!(clock.add(&wall(second * SECOND, after)), None);
        }
        let now = 18 * SECOND;
        // Far from the step nothing is lost.
        assert_within(&clock, EPOCH + 11 * SECOND, now, 11 * SECOND, 101);
        assert_within(&clock, after + 16 * SECOND, now, 16 * SECOND, 101);
        // The step was at 13.5; CUPTI's own line may cross it.
        for (stamp, truth) in [
            (EPOCH + 13_400_000_000, 13_400_000_000),
            (after + 13_600_000_000, 13_600_000_000),
            (EPOCH.midpoint(after) + 13_500_000_000, 13_500_000_000),
            (EPOCH.midpoint(after) + 14_500_000_000, 14_500_000_000),
            (EPOCH + 12_500_000_000, 12_500_000_000),
        ] {
            assert_within(&clock, stamp, now, truth, STEP as u32);
        }
    }
}

#[test]
fn after_a_clock_was_set_far_back_the_newest_meaning_applies() {
    // Set back by an hour. Times are taken as recent, since records from an hour ago no longer
    // arrive.
    const HOUR: u64 = 3600 * SECOND;
    let mut clock = CuptiClock::default();
    for second in 7200..=7300 {
        clock.add(&wall(second * SECOND, EPOCH));
    }
    for second in 7301..=9000 {
        clock.add(&wall(second * SECOND, EPOCH - HOUR));
    }
    assert_within(&clock, EPOCH - HOUR + 8999 * SECOND, 9000 * SECOND, 8999 * SECOND, 101);
}

#[test]
fn a_clock_that_is_set_again_and_again_loses_no_times() {
    // As in a virtual machine that catches up: 0.5 ms every 100 ms. Once it is also set by an
    // hour.
    const HOUR: u64 = 3600 * SECOND;
    const TENTH: u64 = SECOND / 10;
    let tenths = 72_000..=72_400;
    let offset = |tenth: u64| EPOCH + tenth * 500_000 + if tenth > 72_200 { HOUR } else { 0 };
    let mut clock = CuptiClock::default();
    for tenth in tenths.clone() {
        clock.add(&wall(tenth * TENTH, offset(tenth)));
        for age in [0, 3, 10, 20, 50, 100, 200, 250].into_iter().filter(|age| tenth - age >= *tenths.start()) {
            let truth = (tenth - age) * TENTH;
            // Around the large step CUPTI's own line may cross it.
            let across = if (tenth - age).abs_diff(72_200) < 15 { SECOND as u32 } else { 0 };
            let at_most = 12_000_000 + 500_000 * age as u32 + across;
            assert_within(&clock, truth + offset(tenth - age), tenth * TENTH, truth, at_most);
        }
    }
}

#[test]
fn ticks_are_converted_piece_by_piece() {
    // 2.5 ticks per ns, at a rate that changes by one part per million each second.
    let mut clock = CuptiClock::default();
    let mut ticks = 77_000_000_000_000_u64;
    let mut known = Vec::new();
    for second in 10..20_u64 {
        let at = second * SECOND;
        let mut reading = reading(at, EPOCH, None);
        reading.cupti = Some(Stamp(ticks));
        let change = clock.add(&reading);
        assert_eq!(change, (second == 10).then_some(Change::Foreign));
        assert_eq!(clock.covers(HostNs(at - 1000)), second > 10);
        assert!(!clock.covers(HostNs(at + 1000)));
        let piece = 2_500_000_000 + 2_500 * (second - 10);
        known.extend((0..10).map(|tenth| (ticks + piece * tenth / 10, at + tenth * SECOND / 10)));
        ticks += piece;
    }
    for (ticks, truth) in known {
        let inside = truth <= 19 * SECOND;
        assert_within(&clock, ticks, 21 * SECOND, truth, if inside { 1_000 } else { 200_000 });
    }
    assert_eq!(clock.to_host(Stamp(EPOCH + 15 * SECOND), HostNs(20 * SECOND)), None);
}

#[test]
fn a_clock_that_speeds_up_is_not_taken_for_straight() {
    // The rate grows by 3 parts per million each second: in the middle of a piece, that is 375 ns
    // off the line.
    let ticks = |at: u64| (at as f64 + 1.5e-15 * (at as f64).powi(2)) as u64;
    let mut clock = CuptiClock::default();
    for second in 10..20_u64 {
        let mut reading = reading(second * SECOND, EPOCH, None);
        reading.cupti = Some(Stamp(ticks(second * SECOND)));
        clock.add(&reading);
    }
    for tenth in 100..=190_u64 {
        let truth = tenth * SECOND / 10;
        assert_within(&clock, ticks(truth), 20 * SECOND, truth, 1_000);
    }
}

#[test]
fn another_tool_changes_the_clock_and_changes_it_back() {
    let mut clock = CuptiClock::default();
    let other = |at: u64| reading(at, EPOCH, Some(5 * SECOND));
    assert_eq!(clock.add(&wall(10 * SECOND, EPOCH)), None);
    assert_eq!(clock.add(&wall(11 * SECOND, EPOCH)), None);
    // If CUPTI was not asked, the wall clock proves nothing about it.
    assert_eq!(clock.add(&reading(11_900_000_000, EPOCH, None)), None);
    assert_eq!(clock.add(&other(12 * SECOND)), Some(Change::Foreign));
    assert!(!clock.covers(HostNs(11 * SECOND)));
    assert_eq!(clock.add(&other(13 * SECOND)), None);
    assert!(clock.covers(HostNs(12_500_000_000)));
    assert_eq!(clock.add(&wall(14 * SECOND, EPOCH)), Some(Change::Wall));
    assert_eq!(clock.add(&wall(15 * SECOND, EPOCH)), None);
    let now = 15 * SECOND;
    assert_within(&clock, EPOCH + 10_500_000_000, now, 10_500_000_000, 101);
    assert_within(&clock, EPOCH + 11_500_000_000, now, 11_500_000_000, 101);
    assert_within(&clock, 17_500_000_000, now, 12_500_000_000, 200);
    // Half a second before the first reading on its line, by that line's rate.
    assert_within(&clock, 16_600_000_000, now, 11_600_000_000, 100_000);
    assert_within(&clock, 18_600_000_000, now, 13_600_000_000, 100_000);
    assert_within(&clock, EPOCH + 14_500_000_000, now, 14_500_000_000, 101);
}

#[test]
fn our_own_clock_needs_no_other_and_ignores_steps() {
    let ours = |at: u64, offset: u64| reading(at, offset, Some(0));
    let mut clock = CuptiClock::default();
    assert_eq!(clock.add(&ours(10 * SECOND, EPOCH)), None);
    assert!(clock.covers(HostNs(11 * SECOND)));
    // A reading without asking CUPTI says nothing about it, and the wall clock may be set.
    assert_eq!(clock.add(&reading(11 * SECOND, EPOCH, None)), None);
    assert_eq!(clock.add(&ours(12 * SECOND, EPOCH - 300_000_000)), None);
    for truth in [9_500_000_000, 11_900_000_000, 12 * SECOND] {
        assert_within(&clock, truth, 12 * SECOND, truth, 11);
    }
    assert_eq!(clock.to_host(Stamp(EPOCH + 13 * SECOND), HostNs(12 * SECOND)), None);
    assert!(!clock.is_latched());
    // Once given up, CUPTI reports the wall clock's time. What it recorded before arrives late.
    assert_eq!(clock.add(&wall(13 * SECOND, EPOCH)), Some(Change::Wall));
    assert_within(&clock, 12_900_000_000, 14 * SECOND, 12_900_000_000, 11);
    assert_within(&clock, EPOCH + 13_500_000_000, 14 * SECOND, 13_500_000_000, 101);
    assert_eq!(clock.add(&ours(15 * SECOND, EPOCH)), Some(Change::Boottime));
}

#[test]
fn gpu_times_may_stay_on_the_wall_clock_after_cupti_accepted_ours() {
    let ours = |at: u64, offset: u64| reading(at, offset, Some(0));
    let mut clock = CuptiClock::default();
    clock.add(&ours(10 * SECOND, EPOCH));
    assert_within(&clock, EPOCH + 10 * SECOND, 11 * SECOND, 10 * SECOND, 101);
    assert!(clock.is_latched());
    // Times taken on the host have the clock that we gave it.
    assert_within(&clock, 10_500_000_000, 11 * SECOND, 10_500_000_000, 11);
    for stamp in [EPOCH, EPOCH + 8 * SECOND, EPOCH + 12 * SECOND, 2 * EPOCH] {
        assert_eq!(clock.to_host(Stamp(stamp), HostNs(11 * SECOND)), None, "{stamp}");
    }
    // It is not known whether these times follow when the wall clock is set.
    clock.add(&reading(12 * SECOND, EPOCH - 3_000_000, None));
    for truth in [EPOCH + 12 * SECOND, EPOCH - 3_000_000 + 12 * SECOND] {
        assert_within(&clock, truth, 13 * SECOND, 12 * SECOND, 1_600_000);
    }
}

#[test]
fn true_times_lie_within_the_bound_of_a_foreign_clock() {
    // Random rates, and readings at random intervals, in which CUPTI is read anywhere between the
    // other clocks.
    let mut numbers = Random::new(0xfeed);
    let mut random = |below| numbers.below(below);
    for _ in 0..200 {
        let (rate, lead) = (1 + random(40), random(EPOCH));
        // Tenths of a tick per ns; the host's own clock is steered by up to 50 ppm.
        let steered = random(100_000) as i128 - 50_000;
        let ticks = |at: u64| {
            let steered = at as i128 + at as i128 * steered / 1_000_000_000;
            (steered as u64 * rate / 10).max(1) + lead
        };
        let mut clock = CuptiClock::default();
        let (mut at, mut first) = (10 * SECOND, 0);
        for round in 0..40 {
            let width = 1 + random(2_000);
            let asked = at + random(width + 1);
            clock.add(&Reading {
                boot_before: HostNs(at),
                wall_before: at + EPOCH,
                cupti: Some(Stamp(ticks(asked))),
                wall_after: at + width + EPOCH,
                boot_after: HostNs(at + width),
            });
            let now = HostNs(at + width);
            if round == 0 {
                first = at;
            }
            let truth = first + random(at - first + 1);
            if clock.covers(HostNs(truth)) {
                let (host, error) = clock.to_host(Stamp(ticks(truth)), now).expect("an instant");
                // A stamp is no more precise than its ticks.
                let off = host.0.abs_diff(truth).saturating_sub(10 / rate + 1);
                assert!(off <= u64::from(error), "{host:?} ± {error} is not {truth}: {clock:?}");
                assert!(error < 6_000, "± {error}: {clock:?}");
            }
            at += width + [1_000, 1_000_000, SECOND][random(3) as usize] + random(SECOND / 2);
        }
    }
}

#[test]
fn within_a_segment_later_stamps_are_never_earlier() {
    // The wall clock, `CLOCK_BOOTTIME`, and ticks whose rate changes; readings at random intervals.
    let mut numbers = Random::new(0xbeef);
    let mut random = |below| numbers.below(below);
    for world in 0..300 {
        let (rate, mut ticks) = (1 + random(40), 1 + random(EPOCH));
        let (mut clock, mut at) = (CuptiClock::default(), 10 * SECOND);
        let mut stamps = Vec::new();
        for _ in 0..20 {
            let width = 1 + random(2_000);
            let stamp = [at + width / 2 + EPOCH, at + width / 2, ticks][world % 3];
            clock.add(&Reading {
                boot_before: HostNs(at),
                wall_before: at + EPOCH,
                cupti: Some(Stamp(stamp)),
                wall_after: at + width + EPOCH,
                boot_after: HostNs(at + width),
            });
            stamps.extend([stamp - 1, stamp, stamp + 1]);
            let passed = width + [1_000, 1_000_000, SECOND][random(3) as usize] + random(SECOND / 2);
            // By up to 100 ppm.
            ticks += (passed * rate).div_ceil(10) + passed * rate / 100_000 * random(11) / 10;
            at += passed;
        }
        assert_eq!(clock.segments.len(), 1, "{clock:?}");
        let (first, last) = (stamps[0], stamps[stamps.len() - 1]);
        stamps.extend((0..500).map(|_| first + random(last - first + 1)));
        stamps.sort_unstable();
        let mut before = HostNs(0);
        for stamp in stamps {
            let (host, _) = clock.to_host(Stamp(stamp), HostNs(at)).expect("an instant");
            assert!(host >= before, "{stamp} is at {host:?}, and one before it at {before:?}: {clock:?}");
            before = host;
        }
    }
}

#[test]
fn true_times_lie_within_the_bound() {
    // Random worlds: readings at random intervals with random delays, a wall clock that is set now
    // and then, a CUPTI that interpolates along straight lines of up to a second across it, and
    // records that arrive up to 3 s late.
    let mut numbers = Random::new(0x1234_5678_9abc_def0);
    let mut random = |below| numbers.below(below);
    let (mut converted, mut sharp) = (0_u32, 0_u32);
    for _ in 0..200 {
        // The wall clock's lead after each of its steps.
        let mut steps = vec![(0, EPOCH)];
        let mut at = 10 * SECOND;
        while at < 40 * SECOND {
            at += 2 * SECOND + random(20 * SECOND);
            let by = [10_000, 1_000_000, 700_000_000, 5 * SECOND][random(4) as usize];
            // A step smaller than the time of a reading does not show; nobody sets a clock by so
            // little.
            let by = 2_000 + random(by);
            let lead = steps[steps.len() - 1].1;
            steps.push((at, if random(2) == 0 { lead + by } else { lead - by }));
        }
        let lead = |at: u64| steps.iter().rev().find(|(from, _)| *from <= at).map_or(EPOCH, |(_, lead)| *lead);
        let wall_at = |at: u64| at + lead(at);
        // CUPTI's own readings, between which it interpolates; the last line continues.
        let mut own = vec![9 * SECOND];
        while own[own.len() - 1] < 41 * SECOND {
            let last = own[own.len() - 1];
            own.push(last + 1 + random(SECOND));
        }
        let stamp_at = |at: u64, now: u64| {
            let index = own.partition_point(|own| *own <= at).clamp(1, own.len() - 1);
            let (from, to) = (own[index - 1], own[index]);
            if to > now {
                return at + lead(from);
            }
            let (low, high) = (wall_at(from) as i128, wall_at(to) as i128);
            (low + (high - low) * (at - from) as i128 / (to - from) as i128) as u64
        };
        let mut clock = CuptiClock::default();
        let mut at = 10 * SECOND;
        while at < 40 * SECOND {
            let mut moment = at;
            let mut later = |most: u64| {
                moment += 10 + random(most);
                moment
            };
            let [a, b, c, d, e] = [0; 5].map(|_| later(200));
            clock.add(&Reading {
                boot_before: HostNs(a),
                wall_before: wall_at(b),
                cupti: (c % 3 == 0).then(|| Stamp(wall_at(c))),
                wall_after: wall_at(d),
                boot_after: HostNs(e),
            });
            for _ in 0..20 {
                let truth = e.saturating_sub(random(3 * SECOND)).max(10 * SECOND);
                let Some((host, error)) = clock.to_host(Stamp(stamp_at(truth, e)), HostNs(e)) else {
                    panic!("no instant for {truth} at {e}: {clock:?}");
                };
                let off = host.0.abs_diff(truth);
                assert!(off <= u64::from(error), "{host:?} ± {error} is not {truth} at {e}: {clock:?}");
                converted += 1;
                sharp += u32::from(error < 1_000);
            }
            at = e + 1 + random(SECOND);
        }
    }
    assert!(sharp > converted / 3, "{sharp} of {converted} are sharp");
}
