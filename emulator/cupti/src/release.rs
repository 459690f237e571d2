//! The releases of CUPTI that the library can emulate.
//!
//! The differences between them come from the headers in NVIDIA's PyPI wheels (12.0.146, 12.9.79,
//! 13.0.85, 13.1.115, 13.3.75, 13.5.25) and, where a release works without a driver, from calling
//! it.

/// A release, by the CUDA it comes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// CUDA 12.0.
    V12_0,
    /// CUDA 12.9, update 1.
    V12_9,
    /// CUDA 13.0, update 1.
    V13_0,
    /// CUDA 13.1, update 1.
    V13_1,
    /// CUDA 13.3, update 1.
    V13_3,
    /// CUDA 13.5.
    V13_5,
}

use Release::{V12_0, V12_9, V13_0, V13_1, V13_3, V13_5};

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Release; 6] = [V12_0, V12_9, V13_0, V13_1, V13_3, V13_5];

    /// The release of that name: `12.9`.
    pub fn named(name: &str) -> Option<Release> {
        Release::ALL.into_iter().find(|release| release.name() == name)
    }

    /// Its name: `12.9`.
    pub const fn name(self) -> &'static str {
        match self {
            V12_0 => "12.0",
            V12_9 => "12.9",
            V13_0 => "13.0",
            V13_1 => "13.1",
            V13_3 => "13.3",
            V13_5 => "13.5",
        }
    }

    /// The file name and SONAME of its library.
    pub const fn soname(self) -> &'static str {
        match self {
            V12_0 | V12_9 => "libcupti.so.12",
            V13_0 | V13_1 | V13_3 | V13_5 => "libcupti.so.13",
        }
    }

    /// The result of `cuptiGetVersion`.
    pub const fn version(self) -> u32 {
        match self {
            V12_0 => 18,
            V12_9 => 28,
            V13_0 => 130_001,
            V13_1 => 130_101,
            V13_3 => 130_301,
            V13_5 => 130_500,
        }
    }

    /// One more than the highest kind of record.
    pub const fn kinds(self) -> u32 {
        match self {
            V12_0 => 53,
            V12_9 | V13_0 => 56,
            V13_1 => 59,
            V13_3 | V13_5 => 60,
        }
    }

    /// One more than the highest attribute.
    pub const fn attributes(self) -> u32 {
        match self {
            V12_0 => 9,
            V12_9 | V13_0 | V13_1 => 11,
            V13_3 => 24,
            V13_5 => 25,
        }
    }

    /// One more than the highest callback domain. The domain of states came with 12.2.
    pub const fn domains(self) -> u32 {
        if matches!(self, V12_0) { 6 } else { 7 }
    }

    /// One more than the highest callback id of a domain.
    pub const fn callbacks(self, domain: u32) -> u32 {
        const DRIVER: u32 = 1;
        const RUNTIME: u32 = 2;
        const RESOURCE: u32 = 3;
        match (domain, self) {
            (DRIVER, V12_0) => 701,
            (DRIVER, V12_9) => 784,
            (DRIVER, V13_0) => 807,
            (DRIVER, V13_1) => 846,
            (DRIVER, V13_3) => 860,
            (DRIVER, V13_5) => 877,
            (RUNTIME, V12_0) => 445,
            (RUNTIME, V12_9) => 487,
            (RUNTIME, V13_0) => 523,
            (RUNTIME, V13_1) => 550,
            (RUNTIME, V13_3) => 559,
            (RUNTIME, V13_5) => 567,
            (RESOURCE, V12_0) => 21,
            (RESOURCE, V12_9) => 22,
            (RESOURCE, V13_0 | V13_1 | V13_3) => 24,
            (RESOURCE, V13_5) => 26,
            // Synchronisation, NVTX, states: few ids, and never called here.
            _ => 96,
        }
    }

    /// Whether result code `code` has a name. In 13.1 the last one that its header defines has
    /// none.
    pub const fn names_result(self, code: u32) -> bool {
        let highest = match self {
            V12_0 => 42,
            V12_9 => 45,
            V13_0 | V13_1 => 46,
            V13_3 | V13_5 => 47,
        };
        code <= highest || code == crate::result::UNKNOWN
    }

    /// The result of a function that needs the driver when there is none. From 13.0 on it is the
    /// general error.
    pub const fn without_driver(self) -> u32 {
        match self {
            V12_0 | V12_9 => crate::result::NOT_INITIALIZED,
            V13_0 | V13_1 | V13_3 | V13_5 => crate::result::UNKNOWN,
        }
    }

    /// Whether no function at all works without a driver, not even `cuptiGetVersion`.
    pub const fn is_mute_without_driver(self) -> bool {
        matches!(self, V13_3 | V13_5)
    }

    /// The result of stepping onto a record of unknown kind: 999 up to 12.3, `INVALID_KIND` since.
    pub const fn unknown_record(self) -> u32 {
        if matches!(self, V12_0) { crate::result::UNKNOWN } else { crate::result::INVALID_KIND }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_again() {
        for release in Release::ALL {
            assert_eq!(Release::named(release.name()), Some(release));
        }
        assert_eq!(Release::named("12.7"), None);
    }
}
