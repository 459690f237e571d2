//! Where libraries may be, and which are there. Nothing is loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A file or a folder, and what points to it.
pub type Place = (PathBuf, String);

/// Folders that one thing points to.
pub fn places(by: &str, folders: impl IntoIterator<Item = PathBuf>) -> impl Iterator<Item = Place> {
    folders.into_iter().map(move |folder| (folder, by.to_owned()))
}

/// The folders of the loader's cache, of the system, and of toolkits.
#[must_use]
pub fn of_system() -> Vec<Place> {
    const SYSTEM: [&str; 8] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/lib",
        "/usr/lib/wsl/lib",
        "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    ];
    const OF_TOOLKIT: [&str; 4] = ["lib64", "extras/CUPTI/lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
    let of_toolkits = toolkits().into_iter().flat_map(|toolkit| OF_TOOLKIT.map(|folder| toolkit.join(folder)));
    places("the loader's cache", loader_cache())
        .chain(places("the system's folders", SYSTEM.map(PathBuf::from)))
        .chain(places("a toolkit", of_toolkits))
        .collect()
}

/// The folders of CUDA toolkits.
#[must_use]
pub fn toolkits() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(PathBuf::from);
    let entries = fs::read_dir("/usr/local").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_toolkit = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda"));
    let mut installed: Vec<PathBuf> = entries.filter(is_toolkit).collect();
    installed.sort();
    named.chain(installed).collect()
}

/// The folders in a variable such as `PATH`.
#[must_use]
pub fn paths(variable: &str) -> Vec<PathBuf> {
    let value = env::var_os(variable).unwrap_or_default();
    env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect()
}

/// The folders listed by `ldconfig -p`.
fn loader_cache() -> Vec<PathBuf> {
    const WANTED: [&str; 5] = ["libcuda.so", "libnccl.so", "libcupti.so", "libnvrtc.so", "libcudart.so"];
    let said = ["ldconfig", "/sbin/ldconfig"].iter().find_map(|program| Command::new(program).arg("-p").output().ok());
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines()
        .filter(|line| WANTED.iter().any(|name| line.contains(name)))
        .filter_map(|line| Some(Path::new(line.split(" => ").nth(1)?).parent()?.to_owned()))
        .collect()
}

/// All files of this name in these folders, without repeats.
#[must_use]
pub fn every(folders: &[Place], name: &str) -> Vec<Place> {
    let mut known = BTreeSet::new();
    let files = folders.iter().map(|(folder, by)| (folder.join(name), by.clone())).filter(|(path, _)| path.is_file());
    files.filter(|(path, _)| known.insert(path.canonicalize().unwrap_or_else(|_| path.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_once_and_in_the_order_of_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for place in [&first, &second] {
            fs::create_dir(place).unwrap();
        }
        fs::write(second.join("libnccl.so.2"), "").unwrap();
        let places = [(first.clone(), "one".to_owned()), (second.clone(), "two".to_owned())];
        assert_eq!(every(&places, "libnccl.so.2"), [(second.join("libnccl.so.2"), "two".to_owned())]);
        // A link to the same file does not count as a second one.
        std::os::unix::fs::symlink(second.join("libnccl.so.2"), first.join("libnccl.so.2")).unwrap();
        let found = every(&places, "libnccl.so.2");
        assert_eq!(found.iter().map(|(_, by)| by.as_str()).collect::<Vec<_>>(), ["one"]);
        assert!(every(&places, "libcuda.so.1").is_empty());
    }
}
