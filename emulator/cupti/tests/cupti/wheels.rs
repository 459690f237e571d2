//! The real CUPTI from NVIDIA's PyPI wheels: for its headers, and for what works without a driver.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use emulated_cupti::release::Release;

/// A wheel.
pub(crate) struct Wheel {
    pub(crate) release: Release,
    version: &'static str,
    sha256: &'static str,
}

/// One wheel per release.
pub(crate) const WHEELS: [Wheel; 6] = [
    Wheel {
        release: Release::V12_0,
        version: "12.0.146",
        sha256: "218901bafaef99588bc3681a2af61ea1b884b78c53e554fc8d94056d893920a0",
    },
    Wheel {
        release: Release::V12_9,
        version: "12.9.79",
        sha256: "096bcf334f13e1984ba36685ad4c1d6347db214de03dbb6eebb237b41d9d934f",
    },
    Wheel {
        release: Release::V13_0,
        version: "13.0.85",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    },
    Wheel {
        release: Release::V13_1,
        version: "13.1.115",
        sha256: "2c76d91807cf76fc0e4b08ad71c4dff0e8e9f678fc8dbbbc43ec55125a70b553",
    },
    Wheel {
        release: Release::V13_3,
        version: "13.3.75",
        sha256: "a969cc446c44db612e417bd0af722cfad9009c027dabd4ed255262c0e9a9a3d2",
    },
    Wheel {
        release: Release::V13_5,
        version: "13.5.25",
        sha256: "9dcca41c12a734192b14e7128ae116bc9ce1b9da686e2ebf48ae7a4415f76650",
    },
];

const FETCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fetch_wheel.py");

/// The contents of a wheel's folder.
pub(crate) struct Unpacked {
    pub(crate) library: PathBuf,
    pub(crate) headers: PathBuf,
}

impl Wheel {
    /// The wheel's folder in the user's cache, fetched first if it is not there. `None` if it is
    /// not available: then the test does less, and says so on stderr, unless the test runner
    /// captures that. In CI this is a failure.
    pub(crate) fn unpacked(&self) -> Option<Unpacked> {
        match self.fetched() {
            Ok(folder) => {
                Some(Unpacked { library: folder.join(self.release.soname()), headers: folder.join("include") })
            }
            Err(reason) => {
                assert!(std::env::var_os("CI").is_none(), "the real CUPTI {} is needed here: {reason}", self.version);
                let said = format!("skipped: what the real CUPTI {} is needed for: {reason}\n", self.version);
                let _ = std::io::stderr().write_all(said.as_bytes());
                None
            }
        }
    }

    fn fetched(&self) -> Result<PathBuf, String> {
        /// Where each wheel is, or why it is not there: nobody waits twice for a network that is
        /// down.
        static FETCHED: Mutex<BTreeMap<&str, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
        let mut fetched = FETCHED.lock().expect("no test panics there");
        fetched.entry(self.version).or_insert_with(|| self.fetch()).clone()
    }

    fn fetch(&self) -> Result<PathBuf, String> {
        let package = if self.release < Release::V13_0 { "nvidia-cuda-cupti-cu12" } else { "nvidia-cuda-cupti" };
        let mut command = Command::new("python3");
        command.arg(FETCH).arg(format!("cupti/{}", self.version));
        command.arg(format!("{package}=={} --hash=sha256:{}", self.version, self.sha256));
        for (name, place) in [
            (r"(?:.*/)?(libcupti\.so\.\d+|(?i:licen[cs]e)(?:\.txt)?)", r"\1"),
            (
                r"(?:.*/)?include/((?:.*/)?(?:cupti|generated|cuda)\w*\.h|(?:.*/)?(?:Openacc|Openmp)/[^/]+)",
                r"include/\1",
            ),
        ] {
            command.args(["--keep", name, place]);
        }
        for platform in ["manylinux_2_25_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"] {
            command.arg(format!("--pip=--platform={platform}"));
        }
        command.args(["--need", "libcupti.so.*"]);
        let output = command.output().map_err(|error| format!("failed to start python3: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout).into()) } else { Err(text(&output.stderr)) }
    }
}
