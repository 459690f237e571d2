//! Instants, one type per clock, so that two clocks cannot be mixed up.

use bytemuck::{Pod, Zeroable};

/// A reading of the recorder's clock: TSC ticks, or nanoseconds where the TSC cannot be trusted.
///
/// Only the host's clock (`clock::align`) turns it into a [`HostNs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct Ticks(pub u64);

/// An instant on the host: nanoseconds of `CLOCK_BOOTTIME`, which is the time of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostNs(pub u64);

/// An instant on one GPU: nanoseconds of its `%globaltimer`, as NCCL's kernels write it.
///
/// Its offset to the host's clock is unknown until it is measured; it may be minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct GpuNs(pub u64);

/// What a GPU's timer counts, as `init` finds out.
///
/// NCCL's kernels read `%globaltimer`, which counts nanoseconds. RCCL's read `wall_clock64()`
/// (projects/rccl/src/device/common.h of ROCm/rocm-systems, `globaltimer`), which counts ticks of a
/// constant rate that HIP knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct GpuTimer(u8);

impl GpuTimer {
    /// Nanoseconds: NCCL.
    pub const NANOSECONDS: GpuTimer = GpuTimer(0);
    /// Ticks of a rate that is not known: RCCL without an answer of HIP's.
    pub const UNKNOWN: GpuTimer = GpuTimer(u8::MAX);

    /// Ticks of this rate in kHz. Unknown if it is no whole number of MHz below 255, such as 25 and
    /// 100.
    #[must_use]
    pub fn of_khz(rate: u32) -> GpuTimer {
        let mhz = u8::try_from(rate / 1000).ok().filter(|mhz| rate.is_multiple_of(1000) && *mhz > 0);
        mhz.map_or(GpuTimer::UNKNOWN, GpuTimer)
    }

    /// Whether the library is RCCL.
    #[must_use]
    pub fn is_rccl(self) -> bool {
        self != GpuTimer::NANOSECONDS
    }

    /// The rate in MHz, if it counts ticks of a known rate.
    #[must_use]
    pub fn mhz(self) -> Option<u8> {
        (self.is_rccl() && self != GpuTimer::UNKNOWN).then_some(self.0)
    }

    /// The nanoseconds of a reading; 0, no time, if the rate is not known.
    #[must_use]
    pub fn to_ns(self, reading: u64) -> GpuNs {
        match (self, self.mhz()) {
            (GpuTimer::NANOSECONDS, _) => GpuNs(reading),
            (_, Some(mhz)) => {
                let mhz = u64::from(mhz);
                // No product of a whole reading, which might not fit.
                GpuNs((reading / mhz).saturating_mul(1000).saturating_add(reading % mhz * 1000 / mhz))
            }
            (_, None) => GpuNs(0),
        }
    }
}

/// An instant on the clock of a file: nanoseconds, negative before the clock's zero.
///
/// Which clock that is, and how far off its times may be, is in `import::Clock`. The times of two
/// files are compared when one file has been shifted as a whole, or as [`UtcNs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNs(pub i64);

/// An instant on the wall clock: nanoseconds since 1970.
///
/// Hosts and tools set and read it differently: how far off it may be is in the shift that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcNs(pub i64);

impl UtcNs {
    /// Nanoseconds since `earlier`; negative when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: UtcNs) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The same instant in a file with this shift to the wall clock.
    #[must_use]
    pub fn in_file(self, to_utc: Shift) -> FileNs {
        FileNs(self.0.saturating_sub(to_utc.ns))
    }
}

impl FileNs {
    /// Before all others.
    pub const MIN: FileNs = FileNs(i64::MIN);
    /// After all others.
    pub const MAX: FileNs = FileNs(i64::MAX);

    /// Nanoseconds since `earlier`; negative when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: FileNs) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This many nanoseconds later.
    #[must_use]
    pub fn saturating_add(self, ns: i64) -> FileNs {
        FileNs(self.0.saturating_add(ns))
    }

    /// This many nanoseconds earlier.
    #[must_use]
    pub fn saturating_sub(self, ns: i64) -> FileNs {
        FileNs(self.0.saturating_sub(ns))
    }

    /// The same instant on the wall clock, by the file's shift to it.
    #[must_use]
    pub fn to_utc(self, by: Shift) -> UtcNs {
        UtcNs(self.0.saturating_add(by.ns))
    }

    /// The same instant in a trace whose times are on the file's clock. An instant before the
    /// clock's zero becomes that zero.
    #[must_use]
    pub fn in_trace(self) -> HostNs {
        HostNs(u64::try_from(self.0).unwrap_or(0))
    }
}

impl From<HostNs> for FileNs {
    /// The same instant, for a file on the host's clock.
    fn from(time: HostNs) -> FileNs {
        FileNs(i64::try_from(time.0).unwrap_or(i64::MAX))
    }
}

impl HostNs {
    /// Nanoseconds since `earlier`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: HostNs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This many nanoseconds later.
    #[must_use]
    pub fn saturating_add(self, ns: u64) -> HostNs {
        HostNs(self.0.saturating_add(ns))
    }

    /// This many nanoseconds earlier.
    #[must_use]
    pub fn saturating_sub(self, ns: u64) -> HostNs {
        HostNs(self.0.saturating_sub(ns))
    }
}

/// An instant on a host, with its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// The instant as stated.
    pub time: HostNs,
    /// How much earlier or later it may be, in ns.
    pub error_ns: u64,
}

impl Bounded {
    /// The earliest instant it may be.
    #[must_use]
    pub fn earliest(self) -> HostNs {
        self.time.saturating_sub(self.error_ns)
    }

    /// The latest instant it may be.
    #[must_use]
    pub fn latest(self) -> HostNs {
        self.time.saturating_add(self.error_ns)
    }

    /// The same instant on another host's clock; the error of the shift is added.
    #[must_use]
    pub fn shifted(self, by: Shift) -> Bounded {
        Bounded {
            time: HostNs(self.time.0.saturating_add_signed(by.ns)),
            error_ns: self.error_ns.saturating_add(by.error_ns),
        }
    }
}

/// The way from one clock to another: what to add to the times of the first to get times of the
/// second, with its error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// What to add, in ns.
    pub ns: i64,
    /// How much more or less it may be, in ns.
    pub error_ns: u64,
}

impl Shift {
    /// The shift between two bounds.
    #[must_use]
    pub fn between(low: i64, high: i64) -> Shift {
        let between = high.saturating_sub(low).max(0);
        Shift { ns: low.saturating_add(between / 2), error_ns: between.unsigned_abs().div_ceil(2) }
    }

    /// Whether it may lie between `low` and `high`.
    #[must_use]
    pub fn meets(self, low: i64, high: i64) -> bool {
        high >= self.ns.saturating_sub_unsigned(self.error_ns) && low <= self.ns.saturating_add_unsigned(self.error_ns)
    }

    /// The opposite shift.
    #[must_use]
    pub fn back(self) -> Shift {
        Shift { ns: self.ns.saturating_neg(), ..self }
    }

    /// This shift followed by another one, to a third clock: the errors add up.
    #[must_use]
    pub fn then(self, next: Shift) -> Shift {
        Shift { ns: self.ns.saturating_add(next.ns), error_ns: self.error_ns.saturating_add(next.error_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_a_file_may_be_negative_and_those_in_a_trace_are_not() {
        let (before, after) = (FileNs(-5), FileNs(7));
        assert_eq!((before.since(after), after.since(before)), (-12, 12));
        assert_eq!((before.in_trace(), after.in_trace()), (HostNs(0), HostNs(7)));
        assert_eq!(FileNs::from(HostNs(7)), after);
        let to_utc = Shift { ns: 100, error_ns: 3 };
        assert_eq!((before.to_utc(to_utc), before.to_utc(to_utc).in_file(to_utc)), (UtcNs(95), before));
        assert_eq!((FileNs::MIN.saturating_sub(1), FileNs::MAX.since(FileNs::MIN)), (FileNs::MIN, i64::MAX));
    }

    #[test]
    fn ticks_become_nanoseconds_where_their_rate_is_known() {
        assert_eq!(GpuTimer::NANOSECONDS.to_ns(7), GpuNs(7));
        let of = GpuTimer::of_khz;
        assert_eq!(
            (of(100_000).to_ns(7), of(25_000).to_ns(7), of(48_000).to_ns(7)),
            (GpuNs(70), GpuNs(280), GpuNs(145))
        );
        // Decades, in which a product of all ticks would not fit.
        assert_eq!(of(100_000).to_ns(179_000_000_000_000_000), GpuNs(1_790_000_000_000_000_000));
        assert_eq!(of(1_000).to_ns(u64::MAX), GpuNs(u64::MAX));
        for unknown in [0, 999, 100_001, 255_000, u32::MAX] {
            assert_eq!((of(unknown), of(unknown).to_ns(5)), (GpuTimer::UNKNOWN, GpuNs(0)), "{unknown}");
        }
        assert!(of(100_000).is_rccl() && GpuTimer::UNKNOWN.is_rccl() && !GpuTimer::default().is_rccl());
    }

    #[test]
    fn a_shift_never_reduces_the_error() {
        let shift = Shift::between(-7, 4);
        assert_eq!(shift, Shift { ns: -2, error_ns: 6 });
        assert!(shift.meets(4, 9) && !shift.meets(5, 9) && shift.meets(-20, -8) && !shift.meets(-20, -9));
        let there = Bounded { time: HostNs(100), error_ns: 10 };
        let here = there.shifted(shift);
        assert_eq!((here.earliest(), here.time, here.latest()), (HostNs(82), HostNs(98), HostNs(114)));
        assert_eq!(here.shifted(shift.back()), there.shifted(shift.then(shift.back())));
        assert_eq!(here.shifted(shift.back()), Bounded { time: HostNs(100), error_ns: 22 });
    }
}
