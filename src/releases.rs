//! What is known against single releases of NCCL.

/// NCCL's version number: `major * 10000 + minor * 100 + patch`.
pub type Version = u32;

/// Whether NCCL may be asked for kernel channels, or why not.
///
/// `version` is `None` where the library did not say; then the interface tells the family. `allgatherv_off` is
/// whether `NCCL_ALLGATHERV_ENABLE=0` holds.
///
/// # Errors
///
/// The reason, for a person to read.
pub fn kernel_ch(version: Option<Version>, interface: u8, allgatherv_off: bool) -> Result<(), String> {
    let family = |minor: u32| version.is_some_and(|version| version / 100 == 200 + minor);
    let reason = match version {
        // The proxy thread would spin for a sample without a time. On emulated GPUs, 2.26.5 hangs when a
        // communicator is destroyed with it; whether real ones do is unknown.
        _ if interface == 3 => "NCCL 2.26 has no GPU time to give, and can hang with it",
        // nccl#2039: all-to-all overruns the proxy's pool.
        Some(22707) => "NCCL 2.27.7 can crash with it",
        // Grouped broadcasts advance the GPU's counter and not the host's; destroying the communicator then hangs.
        // Seen with the real library on emulated GPUs, up to 2.30.7.
        _ if (family(29) || family(30)) && !allgatherv_off => {
            "NCCL 2.29 and 2.30 can hang with it unless NCCL_ALLGATHERV_ENABLE=0"
        }
        // nccl#2355: 4 to 13 % on small collectives, and buffers are freed while its thread still reads them: seen to
        // crash with the real library on emulated GPUs.
        Some(23102) => "NCCL 2.31.2 can crash with it",
        None if interface == 6 && !allgatherv_off => {
            "this NCCL did not tell its version, and 2.29 and 2.30 can hang with it unless NCCL_ALLGATHERV_ENABLE=0"
        }
        None if matches!(interface, 4 | 7) => {
            "this NCCL did not tell its version, and some releases with this interface can crash with it"
        }
        _ => return Ok(()),
    };
    Err(reason.into())
}

/// The newest profiler interface that a release knows; `None` before 2.23, which has none that is called so. For releases after the last that
/// is known, that one's.
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
    use super::{NEWEST, interface, kernel_ch};

    #[test]
    fn each_release_has_its_interface() {
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
    fn the_known_releases_are_refused() {
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
            let verdict = kernel_ch(version, interface, allgatherv_off);
            assert_eq!(verdict.is_ok(), allowed, "{version:?} {interface} {allgatherv_off}");
        }
    }
}
