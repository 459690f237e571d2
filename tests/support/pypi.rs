//! Other projects' own readers, from PyPI: Prometheus's parser of its text format, and the types of
//! Grafana's dashboards.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const WHEELS: [&str; 2] = [
    "prometheus-client==0.21.1 --hash=sha256:594b45c410d6f4f8888940fe80b5cc2521b305a1fafe1c58609ef715a001f301",
    "grafana-foundation-sdk==1769699998!10.1.0 \
     --hash=sha256:d131ffe49057fb669ba31ce7e28a303c96b3aecf4332b20de33cfa55110d498c",
];

/// Runs a Python program that may import `prometheus_client` and `grafana_foundation_sdk`, with this
/// text as its input, and returns what it prints. `None` if they are not in the cache and cannot be
/// fetched, which is said on stderr; in CI that is a failure.
///
/// # Panics
///
/// If the program fails.
#[must_use]
pub fn python(program: &str, input: &str) -> Option<String> {
    let folder = cache().join("metrics-readers-1");
    let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/fetch_wheel.py");
    let modules = ["--keep", r"((?:prometheus_client|grafana_foundation_sdk)/.*)", r"\1"];
    let fetched = Command::new("python3").arg(fetch).arg(&folder).args(WHEELS).args(modules).output();
    let fetched = fetched.unwrap_or_else(|error| panic!("failed to run python3: {error}"));
    if !fetched.status.success() {
        let reason = String::from_utf8_lossy(&fetched.stderr).into_owned();
        assert!(env::var_os("CI").is_none(), "Prometheus's and Grafana's Python packages are needed: {reason}");
        let _ = std::io::stderr().write_all(format!("skipped: the packages are needed: {reason}\n").as_bytes());
        return None;
    }
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", program]);
    let done = crate::play::run(&mut command, input, std::time::Duration::from_secs(60)).expect("python3 runs");
    assert!(done.status.success(), "{}", done.stderr);
    Some(done.stdout)
}

fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    let home = || env::var_os("HOME").map_or_else(env::temp_dir, |home| PathBuf::from(home).join(".cache"));
    base.unwrap_or_else(home).join("ncclscope")
}
