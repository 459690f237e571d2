//! The releases of CUPTI, with their headers.

use std::env;
use std::path::{Path, PathBuf};

use super::headers::{Headers, headers};
use super::lists::HEADERS;
use super::load;
use crate::steps::{Failure, Place, call};

/// One row of `cupti-sys/releases.txt`.
pub(super) struct Release {
    /// Such as `12.9`.
    pub(super) cuda: String,
    /// The first API version that it applies to.
    pub(super) from: u32,
    /// The first API version that it no longer applies to.
    pub(super) until: u32,
    /// The version on PyPI.
    pub(super) version: String,
    /// The wheels to fetch, as requirements for pip with their hashes.
    pub(super) wheels: [String; 2],
    /// Its folder in the cache.
    pub(super) folder: PathBuf,
    pub(super) headers: Headers,
}

pub(super) fn newest(releases: &[Release]) -> Result<&Release, Failure> {
    releases.last().ok_or_else(|| "releases.txt names no release".to_owned().into())
}

/// All releases, in order, with their headers; fetches missing ones.
pub(super) fn releases(place: &Place) -> Result<Vec<Release>, Failure> {
    let list = load(&place.root.join("cupti-sys/releases.txt"))?;
    let cache = cache()?.join("cupti-sys");
    let mut releases = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut release = parse(line, &cache).ok_or_else(|| format!("releases.txt: {line}"))?;
        if !release.folder.is_dir() {
            let mut command = place.command("python3");
            command.arg("tests/fetch_wheel.py").arg(&release.folder).args(&release.wheels);
            command.args(["--keep", &format!("(?:.*/)?include/({HEADERS})"), r"include/\1"]);
            command.args(["--keep", r"(?:.*/)?lib/(libcupti\.so\..+)", r"lib/\1", "--need", "lib/libcupti.so.*"]);
            for needed in ["cuda.h", "cupti_activity.h", "cupti_callbacks.h", "cupti_result.h", "cupti_version.h"] {
                command.arg(format!("--need=include/{needed}"));
            }
            // One platform's wheels suffice, because headers are the same everywhere.
            for platform in ["manylinux1", "manylinux2014", "manylinux_2_17", "manylinux_2_25"] {
                command.arg(format!("--pip=--platform={platform}_x86_64"));
            }
            call(&mut command)?;
        }
        release.headers = headers(&release.folder.join("include"))?;
        for before in releases.iter_mut().filter(|before: &&mut Release| before.from < release.from) {
            before.until = before.until.min(release.from);
        }
        releases.push(release);
    }
    Ok(releases)
}

fn parse(line: &str, cache: &Path) -> Option<Release> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[cuda, from, version, digest, runtime, runtime_digest] = words.as_slice() else { return None };
    let suffix = if cuda.starts_with("12.") { "-cu12" } else { "" };
    let wheel = |part: &str, version: &str, digest: &str| {
        format!("nvidia-cuda-{part}{suffix}=={version} --hash=sha256:{digest}")
    };
    Some(Release {
        cuda: cuda.to_owned(),
        from: from.parse().ok()?,
        until: u32::MAX,
        version: version.to_owned(),
        wheels: [wheel("cupti", version, digest), wheel("runtime", runtime, runtime_digest)],
        folder: cache.join(version),
        headers: Headers::default(),
    })
}

fn cache() -> Result<PathBuf, Failure> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home);
    Ok(cache.ok_or("neither XDG_CACHE_HOME nor HOME is set".to_owned())?.join("ncclscope"))
}

/// The bindings' comment on a function: the first release that has it.
pub(super) fn function_doc(name: &str, releases: &[Release]) -> Result<String, Failure> {
    let first = releases.iter().position(|release| release.headers.words.contains(name));
    let first = first.ok_or_else(|| format!("no release has {name}"))?;
    let since = if first == 0 { String::new() } else { format!(", since CUDA {}", releases[first].cuda) };
    Ok(format!("/// `{name}`{since}"))
}
