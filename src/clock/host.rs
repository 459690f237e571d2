//! Reads the host's clock in a callback.
//!
//! The TSC costs about 9 ns here and `clock_gettime` about 25 (more if the hypervisor forbids the
//! vDSO). The TSC is used only if it can serve as a clock: the processor states that its rate is
//! the same in every power state, the kernel uses it to keep time, and the process may read it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::align::Pair;
use crate::model::time::{HostNs, Ticks};
use crate::sys;

/// The clock that the recorder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The processor's time-stamp counter.
    Tsc,
    /// `clock_gettime(CLOCK_BOOTTIME)`, through libc's symbol, so that a test can replace it.
    Boottime,
}

static USE_TSC: AtomicBool = AtomicBool::new(false);

/// Tries for one [`pair`]; the tightest one counts.
const PAIR_TRIES: u32 = 5;

impl Source {
    /// Its name in the trace.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Tsc => "TSC",
            Source::Boottime => "CLOCK_BOOTTIME",
        }
    }

    /// The best source on this machine, and what rules out the TSC, if anything does.
    #[must_use]
    pub fn best() -> (Source, Option<&'static str>) {
        match tsc_objection() {
            None => (Source::Tsc, None),
            Some(reason) => (Source::Boottime, Some(reason)),
        }
    }

    /// Makes this the clock of [`now`]. Only before the first record: times of two sources cannot
    /// be compared.
    pub fn select(self) {
        USE_TSC.store(self == Source::Tsc, Ordering::Relaxed);
    }
}

/// The time on the selected source.
#[inline]
#[must_use]
pub fn now() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    if USE_TSC.load(Ordering::Relaxed) {
        // SAFETY: RDTSC needs only the right to execute it, which `tsc_objection` checked before
        // the source was selected. It is not fenced: a time may be off by the few dozen cycles in
        // flight.
        return Ticks(unsafe { std::arch::x86_64::_rdtsc() });
    }
    Ticks(sys::boottime_ns())
}

/// Both clocks at one instant: the host's clock, read between two readings of the recorder's.
#[must_use]
pub fn pair() -> Pair {
    if !USE_TSC.load(Ordering::Relaxed) {
        let now = sys::boottime_ns();
        return Pair { ticks: Ticks(now), host: HostNs(now), error_ns: 0 };
    }
    let bracket = || {
        let before = now().0;
        let host = sys::boottime_ns();
        (now().0.wrapping_sub(before), before, host)
    };
    let tightest = (1..PAIR_TRIES).map(|_| bracket()).fold(bracket(), Ord::min);
    let (width, before, host) = tightest;
    // Ticks are at most a nanosecond long on any processor with an invariant TSC, so this bounds
    // the error.
    Pair { ticks: Ticks(before + width / 2), host: HostNs(host), error_ns: (width / 2 + 1) as u32 }
}

#[cfg(target_arch = "x86_64")]
fn tsc_objection() -> Option<&'static str> {
    const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    /// CPUID leaf with the power-management flags, among them bit 8 of EDX: invariant TSC.
    const POWER_MANAGEMENT: u32 = 0x8000_0007;

    #[allow(unused_unsafe)] // safe on newer compilers
    // SAFETY: every x86-64 processor has CPUID.
    let (highest, flags) = unsafe {
        let highest = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        (highest, std::arch::x86_64::__cpuid(POWER_MANAGEMENT.min(highest)).edx)
    };
    if highest < POWER_MANAGEMENT || flags & 1 << 8 == 0 {
        return Some("the processor does not promise a constant rate");
    }
    if !sys::read_file(CLOCKSOURCE).is_ok_and(|source| source.trim_ascii() == b"tsc") {
        return Some("the kernel does not use it to keep time");
    }
    if !sys::may_read_tsc() {
        return Some("this process may not read it");
    }
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_objection() -> Option<&'static str> {
    Some("this processor has none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_source_agrees_with_the_kernel() {
        let (source, objection) = Source::best();
        assert_eq!(source == Source::Boottime, objection.is_some());
        source.select();
        let first = pair();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = pair();
        let mut clock = crate::clock::align::HostClock::new(first);
        assert!(clock.add(second));
        let (before, ticks, after) = (sys::boottime_ns(), now(), sys::boottime_ns());
        let (host, error) = clock.to_host(ticks);
        // A line through 20 ms, extended for a moment, is good to microseconds unless the machine
        // stopped us in between.
        let slack = u64::from(error) + 10_000;
        assert!(host.0 + slack >= before && host.0 <= after + slack, "{before} {host:?} {after}");
    }
}
