//! The clocks of an emulated job: the true one, each host's, each GPU's.
//!
//! True time is the `CLOCK_BOOTTIME` of the machine that runs the emulation, in ns; all processes
//! share it. A host's clocks and a GPU's timer are functions of it, so the emulator always knows
//! the error of each.

use std::sync::OnceLock;

/// The true time, in ns.
pub fn now() -> u64 {
    nanoseconds(real(libc::CLOCK_BOOTTIME))
}

/// Sleeps until the true time `at`, accurate to a few microseconds; returns at once if that has
/// passed.
pub fn sleep_until(at: u64) {
    // The kernel may lengthen each sleep of the thread by this much; the default is 50 us.
    const SLACK_NS: libc::c_ulong = 1_000;
    thread_local! {
        static PRECISE: bool = {
            // SAFETY: PR_SET_TIMERSLACK takes one number and concerns the calling thread only.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) == 0 }
        };
    }
    PRECISE.with(|_| ());
    loop {
        let now = now();
        if now >= at {
            return;
        }
        std::thread::sleep(std::time::Duration::from_nanos(at - now));
    }
}

/// How one host's clock deviates from the true one.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct ClockError {
    /// How far it is ahead at the reference time, in ns.
    pub offset_ns: i64,
    /// How much faster it runs, in parts per million.
    pub drift_ppm: f64,
    /// Steps: at the first number of ns after the reference time, the clock jumps by the second.
    pub steps: Vec<(u64, i64)>,
}

impl ClockError {
    /// How far the clock is ahead, in ns, `elapsed` ns after the reference time.
    pub fn at(&self, elapsed: i64) -> i64 {
        let drift = (elapsed as f64 * self.drift_ppm / 1e6).round() as i64;
        let steps: i64 = self.steps.iter().filter(|(at, _)| elapsed >= *at as i64).map(|(_, by)| by).sum();
        self.offset_ns + drift + steps
    }
}

/// The clocks of the host that this process pretends to run on.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct HostClocks {
    /// The true time that the errors refer to, the same in all processes of a job.
    pub reference: u64,
    /// `CLOCK_REALTIME`.
    pub wall: ClockError,
    /// `CLOCK_BOOTTIME`.
    pub boot: ClockError,
}

static HOST: OnceLock<HostClocks> = OnceLock::new();

impl HostClocks {
    /// The boot clock at the true time `at`, in ns.
    pub fn boot_at(&self, at: u64) -> i64 {
        at as i64 + self.boot.at(at as i64 - self.reference as i64)
    }

    /// Makes this process's `clock_gettime` return this host's times from now on.
    ///
    /// # Panics
    ///
    /// When it was called before.
    pub fn install(self) {
        assert!(HOST.set(self).is_ok(), "a process has one host");
    }

    /// The wall clock at the true time `at`, in ns since 1970.
    pub fn wall_at(at: u64) -> u64 {
        // A thread may be interrupted between two clocks: the quickest of a few attempts counts.
        let attempt = |_| {
            let read = |clock| nanoseconds(real(clock)) as i64;
            let (before, wall, after) =
                (read(libc::CLOCK_BOOTTIME), read(libc::CLOCK_REALTIME), read(libc::CLOCK_BOOTTIME));
            (after - before, wall - before.midpoint(after))
        };
        let ahead = (0..5).map(attempt).min().map_or(0, |(_, ahead)| ahead);
        let error = HOST.get().map_or(0, |host| host.wall.at(at as i64 - host.reference as i64));
        (ahead + at as i64 + error) as u64
    }
}

/// A GPU's `%globaltimer`.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct DeviceTimer {
    /// What it shows at the reference time, in ns.
    pub base: u64,
    /// The true time to which `base` refers.
    pub reference: u64,
    /// How much faster than true time it runs, in parts per million.
    pub drift_ppm: f64,
    /// The steps in which it advances, in ns.
    pub granularity_ns: u64,
    /// How far that rate swings to either side, in parts per million, with a period of eight
    /// seconds.
    #[serde(default)]
    pub wander_ppm: f64,
}

/// The period with which a timer's rate swings, in ns.
const SWING_NS: f64 = 8e9;

impl DeviceTimer {
    /// What the timer shows at the true time `at`.
    pub fn at(&self, at: u64) -> u64 {
        let elapsed = at as i64 - self.reference as i64;
        let exact = (self.base as i64 + elapsed + self.gained(elapsed)) as u64;
        exact - exact % self.granularity_ns.max(1)
    }

    /// How far it has moved ahead of true time since the reference, in ns.
    fn gained(&self, elapsed: i64) -> i64 {
        let swing = std::f64::consts::TAU / SWING_NS;
        let wandered = self.wander_ppm / swing * (1.0 - (elapsed as f64 * swing).cos());
        ((elapsed as f64 * self.drift_ppm + wandered) / 1e6).round() as i64
    }

    /// The earliest true time at which the timer shows this.
    pub fn when(&self, shown: u64) -> u64 {
        let shown = shown as i64 - self.base as i64;
        let mut elapsed = (shown as f64 / (1.0 + self.drift_ppm / 1e6)).round() as i64;
        // The wander is small, and changes little from one guess to the next.
        for _ in 0..3 {
            elapsed = shown - self.gained(elapsed);
        }
        (self.reference as i64 + elapsed) as u64
    }
}

/// Overrides `clock_gettime` for the whole process, libnccl and plugin included: a program's own
/// symbol takes precedence over libc's. Only the wall and boot clocks are shifted; waits in the
/// kernel use the monotonic clock.
///
/// # Safety
///
/// As libc's: `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller's promise is passed on.
    let status = unsafe { real_function()(clock, out) };
    let Some(host) = HOST.get() else { return status };
    let error = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => &host.wall,
        libc::CLOCK_BOOTTIME => &host.boot,
        _ => return status,
    };
    if status == 0 && !out.is_null() {
        let elapsed = nanoseconds(real(libc::CLOCK_BOOTTIME)) as i64 - host.reference as i64;
        // SAFETY: not null, and the real function has just written it.
        let out = unsafe { &mut *out };
        let shifted = nanoseconds(*out) as i64 + error.at(elapsed);
        *out = libc::timespec { tv_sec: shifted.div_euclid(1_000_000_000), tv_nsec: shifted.rem_euclid(1_000_000_000) };
    }
    status
}

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// libc's own `clock_gettime`.
fn real_function() -> ClockGettime {
    static FUNCTION: OnceLock<ClockGettime> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: the name is a C string; RTLD_NEXT finds the definition after this program's,
        // which is libc's.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) };
        assert!(!address.is_null(), "libc has no clock_gettime");
        // SAFETY: libc's function has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, ClockGettime>(address) }
    })
}

fn real(clock: libc::clockid_t) -> libc::timespec {
    let mut out = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `out` is writable, and the clocks asked for exist on every Linux this runs on.
    unsafe { real_function()(clock, &raw mut out) };
    out
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_drifts_and_steps() {
        let clock = ClockError { offset_ns: -5, drift_ppm: 100.0, steps: vec![(1_000_000, 7), (2_000_000, -9)] };
        assert_eq!(clock.at(0), -5);
        assert_eq!(clock.at(999_999), 95);
        assert_eq!(clock.at(1_000_000), 102);
        assert_eq!(clock.at(2_000_000), 193);
    }

    #[test]
    fn a_device_timer_advances_in_its_steps() {
        let timer =
            DeviceTimer { base: 1_000_000, reference: 500, drift_ppm: 50.0, granularity_ns: 32, wander_ppm: 0.0 };
        assert_eq!(timer.at(500), 1_000_000);
        assert_eq!(timer.at(531), 1_000_000);
        assert_eq!(timer.at(532), 1_000_032);
        assert_eq!(timer.at(20_000_500), 21_000_992);
    }

    #[test]
    fn a_device_timer_may_wander_and_comes_back() {
        let timer = DeviceTimer { base: 1 << 40, reference: 5, drift_ppm: -30.0, granularity_ns: 1, wander_ppm: 10.0 };
        // A swing to one side is 10 ppm times its length over pi.
        let gained =
            |seconds: u64| timer.at(5 + seconds * 1_000_000_000) as i64 - (1 << 40) - (seconds * 999_970_000) as i64;
        assert!(gained(8).abs() <= 1 && (25_000..26_000).contains(&gained(4)), "{} {}", gained(4), gained(8));
        for at in (0..20_000_000_000).step_by(777_777_777) {
            assert!(timer.when(timer.at(at)).abs_diff(at) <= 1, "{at}");
        }
    }
}
