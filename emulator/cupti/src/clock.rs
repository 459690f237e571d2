//! CUPTI's time.
//!
//! By default this is the host's wall clock, which `cuptiGetTimestamp` reads and to which the
//! GPU's times are converted. A caller can register a clock of its own. Then times taken on the
//! processor are readings of that clock, and the GPU's times are computed from two readings of it,
//! as in the real library.

use std::sync::Mutex;

use observe::Machine;

use crate::process::{self, lock};

/// `CUpti_TimestampCallbackFunc`.
pub(crate) type TimestampCallback = extern "C" fn() -> u64;

struct Registered {
    clock: TimestampCallback,
    /// The true time of registration, and the clock's reading then.
    anchor: (u64, u64),
}

static REGISTERED: Mutex<Option<Registered>> = Mutex::new(None);

/// Registers a caller's clock.
pub(crate) fn register(machine: &Machine, clock: TimestampCallback) {
    let anchor = pair(machine, clock);
    *lock(&REGISTERED) = Some(Registered { clock, anchor });
}

/// The caller's clock, if one is registered.
pub(crate) fn registered() -> Option<TimestampCallback> {
    lock(&REGISTERED).as_ref().map(|registered| registered.clock)
}

/// CUPTI's time now.
pub(crate) fn now(machine: &Machine) -> u64 {
    if !ticks()
        && let Some(clock) = registered()
    {
        return clock();
    }
    stamp(machine, (machine.now)())
}

/// CUPTI's time at the true time `at`.
pub(crate) fn stamp(machine: &Machine, at: u64) -> u64 {
    if ticks() {
        return (u128::from(at) * 21 / 10) as u64;
    }
    let registered = lock(&REGISTERED).as_ref().map(|registered| (registered.clock, registered.anchor));
    let registered = registered.filter(|_| !process::options().latch);
    let Some((clock, anchor)) = registered else { return (machine.wall)(at) };
    interpolate(anchor, pair(machine, clock), at)
}

/// How far off a conversion is at the true time `at`, in ns, if it may be off by `most`. CUPTI
/// converts the GPU's times along a straight line, and starts a new line every now and then.
pub(crate) fn conversion(most: u64, seed: u64, at: u64) -> i64 {
    const LINE_NS: u64 = 100_000_000;
    if most == 0 {
        return 0;
    }
    let end = |number: u64| {
        // splitmix64
        let mut bits = number.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % (2 * most + 1)) as i64 - most as i64
    };
    let (line, along) = (at / LINE_NS, (at % LINE_NS) as i64);
    let (from, to) = (end(2 * line), end(2 * line + 1));
    from + (to - from) * along / LINE_NS as i64
}

/// The true time, and a clock's reading then. The two are read one after the other. The result is
/// the fastest of several tries, in which the thread was hardly interrupted in between.
fn pair(machine: &Machine, clock: TimestampCallback) -> (u64, u64) {
    let attempt = |_| {
        let (before, shown, after) = ((machine.now)(), clock(), (machine.now)());
        (after.saturating_sub(before), (before.midpoint(after), shown))
    };
    (0..5).map(attempt).min().map_or((0, 0), |(_, pair)| pair)
}

/// CUPTI's time of an event on this thread that has just happened, at the machine's true time
/// `at`.
pub(crate) fn stamp_call(machine: &Machine, at: u64) -> u64 {
    let is_foreign = !ticks() && lock(&REGISTERED).is_some();
    if is_foreign { now(machine) } else { stamp(machine, at) }
}

/// The wall clock, for when there is no machine.
pub(crate) fn without_machine() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Whether timestamps are ticks now.
fn ticks() -> bool {
    process::options().ticks_after.is_some_and(|after| after <= process::elapsed())
}

/// A clock's reading at the true time `at`, from its readings at two true times.
fn interpolate(first: (u64, u64), last: (u64, u64), at: u64) -> u64 {
    /// Readings closer than this say too little about the clock's rate.
    const APART_NS: u64 = 1_000_000;
    let apart = last.0.saturating_sub(first.0);
    let rate = if apart < APART_NS { 1.0 } else { last.1.saturating_sub(first.1) as f64 / apart as f64 };
    let before = last.0 as i64 - at as i64;
    last.1.wrapping_add_signed(-(before as f64 * rate).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversion_stays_within_its_bound_and_jumps() {
        let off: Vec<i64> = (0..1_000).map(|step| conversion(5_000, 7, step * 1_000_000)).collect();
        assert!(off.iter().all(|off| off.abs() <= 5_000) && off.iter().any(|off| off.abs() > 3_000));
        let jumps = off.windows(2).filter(|pair| (pair[0] - pair[1]).abs() > 200).count();
        assert!((1..=9).contains(&jumps), "{jumps}");
        assert_eq!(conversion(0, 7, 12_345), 0);
    }

    #[test]
    fn a_registered_clock_may_tick_at_another_rate() {
        // 2 ticks per ns, and 7 at the time 0.
        let ticks = |at: u64| (at, 2 * at + 7);
        assert_eq!(interpolate(ticks(1_000_000_000), ticks(3_000_000_000), 2_999_999_000), 5_999_998_007);
        assert_eq!(interpolate(ticks(1_000_000_000), ticks(3_000_000_000), 3_000_000_500), 6_000_001_007);
        // Just registered: the clock is assumed to count ns.
        assert_eq!(interpolate((1_000, 5_000), (1_010, 5_010), 1_000), 5_000);
    }
}
