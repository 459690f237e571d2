//! Other projects' own readers, from PyPI: Prometheus's parser of its text format, the types of
//! Grafana's dashboards and of OpenTelemetry's protocol, engines for tables: DuckDB, Apache Arrow
//! and Apache Spark, and Matplotlib.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Packages that are kept together in a folder of the cache.
struct Packages {
    /// The folder's name, with the Python version if they are built for one.
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

const OTLP: Packages = Packages {
    folder: "otlp-readers-1",
    is_for_one_python: false,
    what_for: "OpenTelemetry's and protobuf's Python packages",
    wheels: &[
        "opentelemetry-proto==1.45.2 --hash=sha256:03a7ca1b43f89fd5b965d5975902bb2515c0c86e2428b456836e9a6149c6235a",
        "protobuf==7.36.2 --hash=sha256:89f23aa53c24553a2416fd4fd1ec06f74fa42b14b546d8883128813f775bbfd2",
    ],
    options: &["--keep", r"((?:google|opentelemetry)/.*)", r"\1"],
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

/// For Python 3.11 to 3.14.
const PLOTS: Packages = Packages {
    folder: "plots-1",
    is_for_one_python: true,
    what_for: "Matplotlib",
    wheels: &[
        "matplotlib==3.11.2 --hash=sha256:07d9b9fa60cd4c393692f50d0bb03123242ddf61c99bb0e95e75feb354e7c1a8 \
         --hash=sha256:df4f7784aca81a94f254c0a2767d592ee25f407e488f5fa7203e51093fb6ca27 \
         --hash=sha256:1944895967f87c84c9b4bad29a707b31f5b36df4a3a2339ea1f8ea3ce5105539 \
         --hash=sha256:8c8255de28f986d935a64c9ca71c0ec2d2f41d355691f5ea684725dc91413f71",
        "numpy==2.4.6 --hash=sha256:89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93 \
         --hash=sha256:90f9849678c75fe7afa2d348ac842c168b0a4d3d61919687216dfc547976d853 \
         --hash=sha256:a7830bab239b79cda9c08c2da014761cafb48da6150e1da17ac06283f43b6089 \
         --hash=sha256:a2c306dea656c12c68f51f4cea133cbe78ca7435eb28c735eac1d3ebe73be6e8",
        "pillow==13.0.0 --hash=sha256:a625df9a2a5597fa5e5266e01aefc82604bb85d291e3547981e863560d75da6c \
         --hash=sha256:42d63be3af4f9b951b199b0a9d23365d37ab14687e6d77b74940432c8515c4ca \
         --hash=sha256:5f56499c1a74d2b862beb0c33b8016f99d095858455df9d21583bbbc1c15b582 \
         --hash=sha256:e91c2b1cbeae768c98752e67e717e283d68dae45717b41f2d91eaee648e37b7d",
        "kiwisolver==1.5.1 --hash=sha256:95a02752aa032eef4aed01cda6d9b687c669bd0396bf4519eef8bba22a286720 \
         --hash=sha256:34633ecf50d16187ab8e5528b7a2530f2feb4e23f300db4672538b51cfc5cd38 \
         --hash=sha256:74ad5c3dad54a4641b4c28cd15ded70899d04459c6c7aeacafea716be97cce6d \
         --hash=sha256:18a0cfb124546a4c2e6087c5f3029c7f44b37c85b142e0ced71f73a7599ac208",
        "fonttools==4.68.0 --hash=sha256:d76f8fdcb6936f5e1045a0c9dd721a4bf11112e60d1e243bfa1d39f06a8b3104",
        "cycler==0.12.1 --hash=sha256:85cef7cff222d8644161529808465972e51340599459b8ac3ccbac5a854e0d30",
        "packaging==26.4 --hash=sha256:81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2",
        "pyparsing==3.3.3 --hash=sha256:ece8c00a69cf01b45d0b1dedabb469c90d8caf996d4fda40f147627a122849a4",
        "python-dateutil==4.0.0 --hash=sha256:a5e246f79eb80475e691bf93862cead98decd8a498cf53ba0516fcdc0f50dc1c",
    ],
    options: &[
        "--keep",
        r"((?!.*/tests/)(?:matplotlib|mpl_toolkits|numpy|PIL|pillow|kiwisolver|fontTools|cycler|packaging|pyparsing|dateutil).*)",
        r"\1",
    ],
};

/// PyPI has it only as a source package, which contains the built jars.
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

/// Runs a Python program that may import `prometheus_client` and `grafana_foundation_sdk`, with
/// this text as its input, and returns what it prints. `None` if they are not in the cache and
/// cannot be fetched, which stderr says; in CI that is a failure.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn python(program: &str, input: &str) -> Option<String> {
    let folder = METRICS.fetched()?;
    Some(run(&[&folder], &["-c", program], input, &[], Duration::from_secs(60)))
}

/// Runs Python with these arguments; it may import `opentelemetry.proto`.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn otlp(arguments: &[&str]) -> Option<String> {
    Some(run(&[&OTLP.fetched()?], arguments, "", &[], Duration::from_secs(60)))
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

/// The same with `matplotlib`, too, in this folder.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn plots(folder: &Path, program: &str) -> Option<String> {
    let (tables, plots) = (TABLES.fetched()?, PLOTS.fetched()?);
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let program = format!("import os\nos.chdir({folder:?})\n{program}");
    let variables = [("MPLBACKEND", Path::new("agg")), ("MPLCONFIGDIR", folder)];
    Some(run(&[&tables, &plots, &ours], &["-c", &program], "", &variables, Duration::from_secs(120)))
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
        let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/fetch_wheel.py");
        let fetched = python(&[&[fetch, &name], self.wheels, self.options].concat());
        if !fetched.status.success() {
            skipped(self.what_for, &String::from_utf8_lossy(&fetched.stderr));
            return None;
        }
        Some(String::from_utf8_lossy(&fetched.stdout).into_owned().into())
    }
}

/// Reports a test that cannot be run; in CI that is a failure.
fn skipped(what: &str, reason: &str) {
    assert!(env::var_os("CI").is_none(), "a test needs {what}: {reason}");
    let _ = std::io::stderr().write_all(format!("skipped: the test needs {what}: {reason}\n").as_bytes());
}
