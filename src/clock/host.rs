//! Reads the host's clock in a callback.
//!
//! The TSC costs about 9 ns here and `clock_gettime` about 25 (more if the hypervisor forbids the
//! vDSO). The TSC is used only if it can serve as a clock: the processor states that its rate is
//! the same in every power state, the kernel uses it to keep time, and the process may read it.
//!
//! On aarch64 the generic timer's virtual counter takes its place. Its rate is the same in every
//! power state by definition. A tick may be many nanoseconds long, which the stated error covers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::align::Pair;
use crate::model::time::{HostNs, Ticks};
use crate::sys;

/// The clock that the recorder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The processor's counter: the time-stamp counter, or the generic timer's of aarch64.
    Tsc,
    /// `clock_gettime(CLOCK_BOOTTIME)`, through libc's symbol, so that a test can replace it.
    Boottime,
}

static USE_TSC: AtomicBool = AtomicBool::new(false);
/// The most that a tick of it lasts, in ns. On any processor with an invariant TSC it is 1.
static TICK_NS: AtomicU64 = AtomicU64::new(1);

/// Tries for one [`pair`]; the tightest one counts.
const PAIR_TRIES: u32 = 5;

impl Source {
    /// Its name in the trace.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Tsc => COUNTER,
            Source::Boottime => "CLOCK_BOOTTIME",
        }
    }

    /// The best source on this machine, and what rules out the TSC, if anything does.
    #[must_use]
    pub fn best() -> (Source, Option<&'static str>) {
        match counter_objection() {
            None => (Source::Tsc, None),
            Some(reason) => (Source::Boottime, Some(reason)),
        }
    }

    /// Makes this the clock of [`now`]. Only before the first record: times of two sources cannot
    /// be compared.
    pub fn select(self) {
        #[cfg(target_arch = "aarch64")]
        TICK_NS.store(1_000_000_000_u64.div_ceil(counter_hz().max(1)), Ordering::Relaxed);
        USE_TSC.store(self == Source::Tsc, Ordering::Relaxed);
    }
}

/// The time on the selected source.
#[inline]
#[must_use]
pub fn now() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    if USE_TSC.load(Ordering::Relaxed) {
        // SAFETY: RDTSC needs only the right to execute it, which `counter_objection` checked
        // before the source was selected. It is not fenced: a time may be off by the few dozen
        // cycles in flight.
        return Ticks(unsafe { std::arch::x86_64::_rdtsc() });
    }
    #[cfg(target_arch = "aarch64")]
    if USE_TSC.load(Ordering::Relaxed) {
        return Ticks(counter());
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
    let error_ns = (width / 2 + 1).saturating_mul(TICK_NS.load(Ordering::Relaxed));
    Pair { ticks: Ticks(before + width / 2), host: HostNs(host), error_ns: u32::try_from(error_ns).unwrap_or(u32::MAX) }
}

/// What the counter is called in the trace.
const COUNTER: &str = if cfg!(target_arch = "aarch64") { "generic timer" } else { "TSC" };

/// Where the kernel says what it keeps time with.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn is_clocksource(name: &[u8]) -> bool {
    const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    sys::read_file(CLOCKSOURCE).is_ok_and(|source| source.trim_ascii() == name)
}

/// The generic timer's virtual counter.
#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets every process read it, or reads it for the process. Without a barrier
    // before it, a time may be off by the few dozen cycles in flight, as with RDTSC.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// The rate of the generic timer; 0 where the firmware did not set it.
#[cfg(target_arch = "aarch64")]
fn counter_hz() -> u64 {
    let hz: u64;
    // SAFETY: as above.
    unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
    // The upper half is reserved.
    hz & 0xffff_ffff
}

/// A slower counter has too long a tick: `clock_gettime` is better.
#[cfg(target_arch = "aarch64")]
const LEAST_HZ: u64 = 10_000_000;

#[cfg(target_arch = "aarch64")]
fn counter_objection() -> Option<&'static str> {
    if counter_hz() < LEAST_HZ {
        return Some("the generic timer is slow, or its rate is not known");
    }
    if !is_clocksource(b"arch_sys_counter") {
        return Some("the kernel does not use the generic timer to keep time");
    }
    None
}

#[cfg(target_arch = "x86_64")]
fn counter_objection() -> Option<&'static str> {
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
    if !is_clocksource(b"tsc") {
        return Some("the kernel does not use it to keep time");
    }
    if !sys::may_read_tsc() {
        return Some("this process may not read it");
    }
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_objection() -> Option<&'static str> {
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
        agrees();
        // Every process can read it, whatever the kernel keeps time with.
        if cfg!(target_arch = "aarch64") {
            Source::Tsc.select();
            agrees();
            source.select();
        }
    }

    #[track_caller]
    fn agrees() {
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
