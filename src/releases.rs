//! Known faults of single releases of NCCL and CUPTI.

/// NCCL's version number: `major * 10000 + minor * 100 + patch`.
pub type Version = u32;

/// The reason not to ask NCCL for kernel channels, for the user; `None` if there is none.
///
/// If the library did not tell its `version`, the interface tells the family of releases.
/// `allgatherv_off` says whether `NCCL_ALLGATHERV_ENABLE=0` is set.
#[must_use]
pub fn against_kernel_ch(version: Option<Version>, interface: u8, allgatherv_off: bool) -> Option<&'static str> {
    let family = |minor: u32| version.is_some_and(|version| version / 100 == 200 + minor);
    Some(match version {
        // The proxy thread would spin, waiting for a sample without a time. On emulated GPUs,
        // 2.26.5 hangs when a communicator is destroyed with it; whether it does on real ones is
        // unknown.
        _ if interface == 3 => "NCCL 2.26 reports none, and can hang when asked for it",
        // nccl#2039: all-to-all overruns the proxy's pool.
        Some(22707) => "NCCL 2.27.7 can crash when asked for it",
        // Grouped broadcasts advance the GPU's counter but not the host's; destroying the
        // communicator then hangs. Seen with the real library on emulated GPUs, up to 2.30.7.
        _ if (family(29) || family(30)) && !allgatherv_off => {
            "NCCL 2.29 and 2.30 can hang when asked for it, unless NCCL_ALLGATHERV_ENABLE=0"
        }
        // nccl#2355: 4 to 13 % slower small collectives, and buffers are freed while its thread
        // still reads them: seen to crash with the real library on emulated GPUs.
        Some(23102) => "NCCL 2.31.2 can crash when asked for it",
        None if interface == 6 && !allgatherv_off => {
            "the version of this NCCL is unknown, and 2.29 and 2.30 can hang when asked for it, unless \
             NCCL_ALLGATHERV_ENABLE=0"
        }
        None if matches!(interface, 4 | 7) => {
            "the version of this NCCL is unknown, and some releases with this interface can crash when asked for it"
        }
        _ => return None,
    })
}

/// The bytes of `/dev/shm` that NCCL may take for kernel channels of `communicators` with `ranks`
/// on this host; 0 where the interface is that of releases that take none.
///
/// Up to 2.30.7 each rank of a communicator takes a pool of 34.2 MB at its first kernel, if no
/// other transport needed one before. If that fails, NCCL crashes (nccl#2326): seen with the real
/// 2.27.3, 2.28.9 and 2.30.7 on emulated GPUs.
#[must_use]
pub fn kernel_ch_memory(interface: u8, ranks: u64, communicators: u64) -> u64 {
    /// One pool, with a margin.
    const POOL: u64 = 36 << 20;
    if matches!(interface, 4..=6) { POOL.saturating_mul(ranks).saturating_mul(communicators) } else { 0 }
}

/// A fault of some releases of CUPTI, and its consequences for a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which one.
    pub id: FaultId,
    /// The first release that has it, and the first that does not, as `cuptiGetVersion` returns
    /// them. The latter is `u32::MAX` if none is known.
    pub releases: (u32, u32),
    /// What is wrong, as a sentence without its full stop.
    pub what: &'static str,
    /// The consequences here, and what the user can do, also without a full stop.
    pub follows: &'static str,
    /// How it is known.
    pub source: &'static str,
}

/// The known faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // described by `FAULTS`
pub enum FaultId {
    NullBuffer,
    NoKernels,
    Crash,
    DisableDeadlocks,
    SpoiltTimes,
    GraphLaunches,
    LatchedClock,
    ProcessorTime,
    StaleNames,
}

/// The known faults, in the order of the release that fixed them.
pub const FAULTS: [Fault; 9] = [
    Fault {
        id: FaultId::NoKernels,
        releases: (22, 23),
        what: "CUDA 12.4 Update 1 reports no kernels; 12.5 Update 1 does",
        follows: "the trace may have no kernels; use a newer CUPTI",
        source: "JuliaGPU/CUDA.jl#2328",
    },
    Fault {
        id: FaultId::NullBuffer,
        releases: (0, 27),
        what: "it crashes when it asks for a buffer and gets none",
        follows: "none, unless it holds 32 spare buffers at once while no other is free; records without room are counted",
        source: "pytorch/kineto#1534",
    },
    Fault {
        id: FaultId::DisableDeadlocks,
        releases: (130_000, 130_001),
        what: "it deadlocks when it is told to stop recording kernels",
        follows: "ncclscope does not tell it to: after ncclscope_release some kernels may still arrive, without \
                  operations",
        source: "NVIDIA's notes on CUDA 13.0 Update 1",
    },
    Fault {
        id: FaultId::SpoiltTimes,
        releases: (130_000, 130_100),
        what: "after some 25 million graph kernels it gives kernels no times, or reversed ones, and by then it has \
               taken 1 GiB of GPU memory; seen with 13.0.85 and driver 580",
        follows: "the trace says from when on kernels are missing; try a newer CUPTI",
        source: "parca-dev/parcagpu#23",
    },
    Fault {
        id: FaultId::GraphLaunches,
        releases: (0, 130_101),
        what: "after it was released and taken again, graph kernels may carry the correlation id of another graph \
               launch",
        follows: "after ncclscope_acquire the graph launch of a kernel is inferred from times or left open, and \
                  graph kernels do not show what hangs",
        source: "NVIDIA's notes on CUDA 13.1 Update 1",
    },
    Fault {
        id: FaultId::LatchedClock,
        releases: (0, 130_303),
        what: "if a CUDA context existed before it was given another clock, GPU times may keep the wall clock",
        follows: "with NCCLSCOPE_CUPTI_CLOCK=boottime such GPU times are read as wall-clock times; with \
                  CUDA_INJECTION64_PATH the recording starts before any context",
        source: "pytorch/pytorch#190354",
    },
    Fault {
        id: FaultId::ProcessorTime,
        releases: (0, 130_401),
        what: "its processor time grows without limit",
        follows: "record long jobs in parts, or without kernels (NCCLSCOPE_CUPTI=0); the counter of the thread \
                  \"ncclscope flush\" in the trace shows the part that flushing takes",
        source: "NVIDIA's notes on CUDA 13.4 Update 1",
    },
    Fault {
        id: FaultId::StaleNames,
        releases: (0, 130_401),
        what: "when modules are unloaded and loaded, a kernel may get the name of an earlier one",
        follows: "kernels of operations are identified by their launches; names of other kernels may be wrong",
        source: "NVIDIA's notes on CUDA 13.4 Update 1",
    },
    Fault {
        id: FaultId::Crash,
        releases: (130_200, 130_300),
        what: "it crashes if the driver shows no GPU",
        follows: "ncclscope does not use it unless a GPU is certain: no kernels if started in cuInit, or without a \
                  GPU",
        source: "tried with three builds of CUDA 13.2",
    },
];

/// The fault with this id, if a CUPTI has it by the result of its `cuptiGetVersion`.
#[must_use]
pub fn cupti_fault(version: u32, id: FaultId) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.id == id && (fault.releases.0..fault.releases.1).contains(&version))
}

/// The known faults of a CUPTI, by its name, and whether it certainly has them: a name may stand
/// for several updates of a release.
pub fn cupti_faults(name: &str) -> impl Iterator<Item = (&'static Fault, bool)> {
    let may_be = cupti_versions(name).unwrap_or((0, 0));
    let is_had = move |fault: &'static Fault| {
        let (from, to) = (fault.releases.0.max(may_be.0), fault.releases.1.min(may_be.1));
        (from < to).then_some((fault, (from, to) == may_be))
    };
    FAULTS.iter().filter_map(is_had)
}

/// The possible results of `cuptiGetVersion`, as first and past-the-end, for a CUPTI from this
/// package (`13.0.85`), or with this file name in a toolkit (`2025.3.1`).
fn cupti_versions(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.split('.').map(str::parse);
    let (first, second, third): (u32, u32, u32) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    // The last number of a file is the update; the last one of a package is the build.
    let file = FILES.iter().find(|(file, _)| *file == (first, second));
    let (major, minor, update) = match file {
        Some((_, (major, minor))) => (*major, *minor, Some(third)),
        None => (first, second, None),
    };
    let since_13 = major * 10_000 + minor * 100;
    match (major, update) {
        (12, _) => BEFORE_13.iter().find(|(known, _)| *known == minor).map(|(_, versions)| *versions),
        (13..=99, Some(update)) => Some((since_13 + update, since_13 + update + 1)),
        (13..=99, None) => Some((since_13, since_13 + 100)),
        _ => None,
    }
}

/// The results of `cuptiGetVersion` in the releases 12.x, by x.
const BEFORE_13: [(u32, (u32, u32)); 9] = [
    (0, (18, 20)),
    (1, (18, 20)),
    (2, (20, 21)),
    (3, (21, 22)),
    (4, (22, 23)),
    (5, (23, 24)),
    (6, (24, 26)),
    (8, (26, 27)),
    (9, (27, 29)),
];

/// CUDA releases by the first two numbers of their libcupti's file name, as far as seen.
const FILES: [((u32, u32), (u32, u32)); 5] =
    [((2024, 1), (12, 4)), ((2024, 3), (12, 6)), ((2025, 1), (12, 8)), ((2025, 2), (12, 9)), ((2025, 3), (13, 0))];

/// The newest profiler interface of a release; `None` before 2.23, which has no versioned
/// interface. For releases newer than the last known one, that one's interface.
#[must_use]
pub fn interface(version: Version) -> Option<u8> {
    Some(match version / 100 {
        ..223 => return None,
        223 => 1,
        224 | 225 => 2,
        226 => 3,
        227 => 4,
        228 => 5,
        229 | 230 => 6,
        _ => 7,
    })
}

/// The newest release that was tried.
pub const NEWEST: Version = 23203;

#[cfg(test)]
mod tests {
    use super::{
        FAULTS, FaultId, NEWEST, against_kernel_ch, cupti_fault, cupti_faults, cupti_versions, interface,
        kernel_ch_memory,
    };

    #[test]
    fn fixed_faults_do_not_count_for_later_releases() {
        use FaultId::{
            Crash, DisableDeadlocks, GraphLaunches, LatchedClock, NoKernels, NullBuffer, ProcessorTime, SpoiltTimes,
            StaleNames,
        };
        for (version, expected) in [
            (22, &[NoKernels, NullBuffer, GraphLaunches, LatchedClock, ProcessorTime, StaleNames][..]),
            (28, &[GraphLaunches, LatchedClock, ProcessorTime, StaleNames]),
            (130_000, &[DisableDeadlocks, SpoiltTimes, GraphLaunches, LatchedClock, ProcessorTime, StaleNames]),
            (130_001, &[SpoiltTimes, GraphLaunches, LatchedClock, ProcessorTime, StaleNames]),
            (130_101, &[LatchedClock, ProcessorTime, StaleNames]),
            (130_201, &[LatchedClock, ProcessorTime, StaleNames, Crash]),
            (130_303, &[ProcessorTime, StaleNames]),
            (130_401, &[]),
            (130_500, &[]),
        ] {
            for fault in FAULTS {
                let is_had = cupti_fault(version, fault.id).is_some();
                assert_eq!(is_had, expected.contains(&fault.id), "{version} {:?}", fault.id);
            }
        }
        assert!(cupti_fault(28, Crash).is_none() && cupti_fault(130_299, Crash).is_some());
        // They are printed as parts of a sentence.
        for fault in FAULTS {
            assert!([fault.what, fault.follows].iter().all(|text| !text.ends_with('.') && !text.contains('\n')));
        }
    }

    #[test]
    fn a_cupti_is_identified_by_its_package_or_its_file() {
        for (name, versions) in [
            ("12.0.146", (18, 20)),
            ("12.6.80", (24, 26)),
            ("12.9.79", (27, 29)),
            ("13.0.85", (130_000, 130_100)),
            ("13.4.92", (130_400, 130_500)),
            ("2024.1.1", (22, 23)),
            ("2025.3.1", (130_001, 130_002)),
        ] {
            assert_eq!(cupti_versions(name), Some(versions), "{name}");
        }
        for name in ["", "12", "12.7.1", "11.8.87", "2026.9.0", "13.x.1", "13.0"] {
            assert_eq!(cupti_versions(name), None, "{name}");
            assert_eq!(cupti_faults(name).count(), 0);
        }
        let certain = |name, id| cupti_faults(name).find(|(fault, _)| fault.id == id).map(|(_, is_certain)| is_certain);
        // CUDA 13.0 deadlocks, its Update 1 does not.
        assert_eq!(certain("13.0.85", FaultId::DisableDeadlocks), Some(false));
        assert_eq!(certain("2025.3.0", FaultId::DisableDeadlocks), Some(true));
        assert_eq!(certain("2025.3.1", FaultId::DisableDeadlocks), None);
        assert_eq!(certain("13.0.85", FaultId::SpoiltTimes), Some(true));
    }

    #[test]
    fn each_release_has_its_interface_version() {
        let expected = [(22205, None), (22304, Some(1)), (22503, Some(2)), (22605, Some(3)), (22707, Some(4))];
        let newer = [
            (22809, Some(5)),
            (22907, Some(6)),
            (23007, Some(6)),
            (23102, Some(7)),
            (NEWEST, Some(7)),
            (23300, Some(7)),
        ];
        for (version, number) in expected.into_iter().chain(newer) {
            assert_eq!(interface(version), number, "{version}");
        }
    }

    #[test]
    fn releases_with_known_faults_are_refused() {
        for (version, interface, allgatherv_off, allowed) in [
            (Some(22703), 4, false, true),
            (Some(22707), 4, true, false),
            (Some(22809), 5, false, true),
            (Some(22907), 6, false, false),
            (Some(22907), 6, true, true),
            (Some(23007), 6, false, false),
            (Some(23007), 6, true, true),
            (Some(23102), 7, true, false),
            (Some(23203), 7, false, true),
            (Some(22605), 3, false, false),
            (None, 3, false, false),
            (None, 4, false, false),
            (None, 5, false, true),
            (None, 6, false, false),
            (None, 6, true, true),
            (None, 7, true, false),
        ] {
            let against = against_kernel_ch(version, interface, allgatherv_off);
            assert_eq!(against.is_none(), allowed, "{version:?} {interface} {allgatherv_off}");
        }
    }

    #[test]
    fn kernel_channels_need_shared_memory_for_every_rank_and_communicator() {
        // Docker's default is enough for one rank, and too small for two.
        const DOCKER: u64 = 64 << 20;
        assert!(kernel_ch_memory(5, 1, 1) < DOCKER && kernel_ch_memory(5, 2, 1) > DOCKER);
        for (interface, needed) in [(3, 0), (4, (32 * 36) << 20), (6, (32 * 36) << 20), (7, 0)] {
            assert_eq!(kernel_ch_memory(interface, 8, 4), needed, "{interface}");
        }
        assert_eq!(kernel_ch_memory(6, u64::MAX, 2), u64::MAX);
    }
}
