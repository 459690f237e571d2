//! Where a libnccl comes from: NVIDIA's wheels on PyPI, fetched by pip into the user's cache.
//!
//! Nothing of NVIDIA's is shipped with this project. The library is the user's own copy, and its
//! file is never touched.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One release of NCCL on PyPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// `2.30.7`
    pub version: &'static str,
    /// `nvidia-nccl-cu13`
    pub package: &'static str,
    /// The checksum of the wheel for x86-64.
    pub sha256: &'static str,
    /// The size of the wheel, in MB.
    pub megabytes: u32,
    /// Whether every change is tested with it.
    pub always: bool,
}

/// The releases that the emulator is tested with, oldest first. Together they cover all seven
/// profiler interfaces.
pub const RELEASES: &[Release] = &[
    Release {
        version: "2.23.4",
        package: "nvidia-nccl-cu12",
        sha256: "b097258d9aab2fa9f686e33c6fe40ae57b27df60cedbd15d139701bb5509e0c1",
        megabytes: 199,
        always: false,
    },
    Release {
        version: "2.24.3",
        package: "nvidia-nccl-cu12",
        sha256: "e5c5167351e8936b96ddad8ac6f687199e22d09db07cf08af9457a123b34cac0",
        megabytes: 201,
        always: false,
    },
    Release {
        version: "2.26.5",
        package: "nvidia-nccl-cu12",
        sha256: "ea5ed3e053c735f16809bee7111deac62ac35b10128a8c102960a0462ce16cbe",
        megabytes: 318,
        always: false,
    },
    Release {
        version: "2.27.3",
        package: "nvidia-nccl-cu12",
        sha256: "adf27ccf4238253e0b826bce3ff5fa532d65fc42322c8bfdfaf28024c0fbe039",
        megabytes: 322,
        always: false,
    },
    Release {
        version: "2.27.7",
        package: "nvidia-nccl-cu13",
        sha256: "b28a524abd8389b76a4a3f133c76a7aaa7005e47fcaa9d9603b90103927a3f93",
        megabytes: 194,
        always: false,
    },
    Release {
        version: "2.28.9",
        package: "nvidia-nccl-cu13",
        sha256: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
        megabytes: 196,
        always: true,
    },
    Release {
        version: "2.29.7",
        package: "nvidia-nccl-cu13",
        sha256: "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d",
        megabytes: 206,
        always: false,
    },
    Release {
        version: "2.30.7",
        package: "nvidia-nccl-cu13",
        sha256: "cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50",
        megabytes: 216,
        always: true,
    },
    Release {
        version: "2.31.2",
        package: "nvidia-nccl-cu13",
        sha256: "0bcaf0308854cb55fcc35af72e2c83143f3b71e65a4e865e2c586b1cdcdb5ae0",
        megabytes: 252,
        always: false,
    },
    Release {
        version: "2.32.3",
        package: "nvidia-nccl-cu13",
        sha256: "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
        megabytes: 305,
        always: true,
    },
];

/// The default release: it sends every kind of event that the emulated GPUs can cause.
pub const DEFAULT: &str = "2.30.7";

const FETCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fetch_wheel.py");

impl Release {
    /// The release with this version.
    ///
    /// # Errors
    ///
    /// When it is not in [`RELEASES`]; the text names those.
    pub fn named(version: &str) -> Result<&'static Release, String> {
        RELEASES.iter().find(|release| release.version == version).ok_or_else(|| {
            let known: Vec<_> = RELEASES.iter().map(|release| release.version).collect();
            format!("NCCL {version} is not a release known here: {}", known.join(", "))
        })
    }

    /// Its library in the user's cache, whether it is there or not.
    pub fn path(&self) -> PathBuf {
        cache().join("nccl").join(self.version).join("libnccl.so.2")
    }

    /// Whether its library is in the cache.
    pub fn is_cached(&self) -> bool {
        self.path().is_file()
    }

    /// Its library, which is first fetched if it is not in the cache. The output of pip goes to
    /// stderr.
    ///
    /// # Errors
    ///
    /// When it is not in the cache and cannot be fetched; the text says why and what can be done.
    pub fn fetch(&self) -> Result<PathBuf, String> {
        let path = self.path();
        if !path.is_file() {
            let folder = path.parent().expect("a library has a folder");
            let mut command = Command::new("python3");
            command.arg(FETCH).arg(folder);
            command.arg(format!("{}=={} --hash=sha256:{}", self.package, self.version, self.sha256));
            command.args(["--keep", r"(?:.*/)?(libnccl\.so\.2|License\.txt|LICENSE(?:\.txt)?)", r"\1"]);
            command.args(["--need", "libnccl.so.2", "--progress"]);
            let status = command.status().map_err(|error| format!("failed to start python3: {error}"))?;
            if !status.success() {
                return Err(format!("failed to fetch {} {} from PyPI ({status})", self.package, self.version));
            }
        }
        Ok(path)
    }
}

/// The user's cache of this project.
pub fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    let home = || env::var_os("HOME").map_or_else(env::temp_dir, |home| PathBuf::from(home).join(".cache"));
    base.unwrap_or_else(home).join("ncclscope")
}
