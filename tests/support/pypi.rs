//! Other projects' own readers, from PyPI: Prometheus's parser of its text format, the types of
//! Grafana's dashboards, and engines for tables: DuckDB, Apache Arrow and Apache Spark.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Packages that are kept together in a folder of the cache.
struct Packages {
    /// The folder's name; with that of the Python where they are made for one.
    folder: &'static str,
    is_for_one_python: bool,
    what_for: &'static str,
    wheels: &'static [&'static str],
    /// Options of `fetch_wheel.py`.
    options: &'static [&'static str],
}

const METRICS: Packages = Packages {
    folder: "metrics-readers-1",
    is_for_one_python: false,
    what_for: "Prometheus's and Grafana's Python packages",
    wheels: &[
        "prometheus-client==0.21.1 --hash=sha256:594b45c410d6f4f8888940fe80b5cc2521b305a1fafe1c58609ef715a001f301",
        "grafana-foundation-sdk==1769699998!10.1.0 \
         --hash=sha256:d131ffe49057fb669ba31ce7e28a303c96b3aecf4332b20de33cfa55110d498c",
    ],
    options: &["--keep", r"((?:prometheus_client|grafana_foundation_sdk)/.*)", r"\1"],
};

/// For Python 3.11 to 3.14.
const TABLES: Packages = Packages {
    folder: "tables-readers-1",
    is_for_one_python: true,
    what_for: "DuckDB and PyArrow",
    wheels: &[
        "duckdb==2.0.1 --hash=sha256:eb32b389d99d14cbbec4c110f58237c77eacefc65ef6f737619f413c97a91a77 \
         --hash=sha256:39ffeb136abed770a496e5592a464f18a07b1543e7ddb1ff6453215e179f1647",
        "pyarrow==26.0.1 --hash=sha256:39cb0f2418282c24bea6ceda77b03e5a8f0a5766b63a8bf194d4e2a2c423548c \
         --hash=sha256:c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9 \
         --hash=sha256:f71221bbc7707e3fad920d0478db9350791d4714ec445299ee0d56559fbc156c \
         --hash=sha256:7ae48ab53610b85e004b03bccff593fbdf22186d0ab48ed42c90797915dac814",
    ],
    options: &["--keep", r"((?!.*/(?:tests|include)/)(?:_?duckdb|adbc_driver_duckdb|pyarrow).*)", r"\1"],
};

/// PyPI has it as source only, which holds the built jars.
const SPARK: Packages = Packages {
    folder: "spark-1",
    is_for_one_python: false,
    what_for: "Apache Spark",
    wheels: &[
        "pyspark==4.3.0 --hash=sha256:e8c517948eff7088a7aa07449aa8eafa4a15a8d50319de2525a6fd26622476c6",
        "py4j==0.10.9.9 --hash=sha256:c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533",
    ],
    options: &[
        "--pip=--no-binary=pyspark",
        "--keep",
        r"pyspark-[^/]*/(pyspark/.*\.(?:py|json))",
        r"\1",
        "--keep",
        r"pyspark-[^/]*/deps/((?:bin|jars)/.*)",
        r"spark/\1",
        "--keep",
        r"(py4j/.*)",
        r"\1",
    ],
};

/// Runs a Python program that may import `prometheus_client` and `grafana_foundation_sdk`, with this
/// text as its input, and returns what it prints. `None` if they are not in the cache and cannot be
/// fetched, which is said on stderr; in CI that is a failure.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn python(program: &str, input: &str) -> Option<String> {
    let folder = METRICS.fetched()?;
    Some(run(&[&folder], &["-c", program], input, &[], Duration::from_secs(60)))
}

/// The same with `duckdb` and `pyarrow`, and these arguments of `python3`. `ncclscope`, the module
/// in `python/`, can be imported, too.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn tables(arguments: &[&str]) -> Option<String> {
    let folder = TABLES.fetched()?;
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    Some(run(&[&folder, &ours], arguments, "", &[], Duration::from_secs(120)))
}

/// The same with `pyspark`, which needs a Java runtime from version 17 on.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn spark(arguments: &[&str]) -> Option<String> {
    if Command::new("java").arg("-version").output().is_err() {
        skipped("a Java runtime", "on Debian: apt-get install openjdk-17-jre-headless");
        return None;
    }
    let folder = SPARK.fetched()?;
    let home = folder.join("spark");
    // Files lose their mode on the way.
    for program in std::fs::read_dir(home.join("bin")).into_iter().flatten().flatten() {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program.path(), mode).expect("the cache is ours");
    }
    Some(run(&[&folder], arguments, "", &[("SPARK_HOME", &home)], Duration::from_secs(300)))
}

fn run(folders: &[&Path], arguments: &[&str], input: &str, variables: &[(&str, &Path)], limit: Duration) -> String {
    let mut command = Command::new("python3");
    let folders = env::join_paths(folders).expect("the folders have no colon");
    command.env("PYTHONPATH", folders).env("PYTHONDONTWRITEBYTECODE", "1").envs(variables.iter().copied());
    let done = crate::play::run(command.args(arguments), input, limit).expect("python3 runs");
    assert!(done.status.success(), "{}", done.stderr);
    done.stdout
}

impl Packages {
    fn fetched(&self) -> Option<PathBuf> {
        let python = |arguments: &[&str]| {
            let done = Command::new("python3").args(arguments).output();
            done.unwrap_or_else(|error| panic!("failed to run python3: {error}"))
        };
        let mut name = self.folder.to_owned();
        if self.is_for_one_python {
            let tag = python(&["-c", "import sys; print(sys.implementation.cache_tag, end='')"]);
            name = format!("{name}-{}", String::from_utf8_lossy(&tag.stdout));
        }
        let folder = cache().join(name);
        let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/fetch_wheel.py");
        let folder_name = folder.to_string_lossy();
        let fetched = python(&[&[fetch, &folder_name], self.wheels, self.options].concat());
        if !fetched.status.success() {
            skipped(self.what_for, &String::from_utf8_lossy(&fetched.stderr));
            return None;
        }
        Some(folder)
    }
}

/// A test cannot be done; in CI that is a failure.
fn skipped(what: &str, reason: &str) {
    assert!(env::var_os("CI").is_none(), "a test needs {what}: {reason}");
    let _ = std::io::stderr().write_all(format!("skipped: the test needs {what}: {reason}\n").as_bytes());
}

fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    let home = || env::var_os("HOME").map_or_else(env::temp_dir, |home| PathBuf::from(home).join(".cache"));
    base.unwrap_or_else(home).join("ncclscope")
}
