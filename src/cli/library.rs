//! Where the library that NCCL loads is, and `ncclscope lib`, which prints it.

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::reason::Reason;

/// Its file name and SONAME.
pub(super) const NAME: &str = "libncclscope.so";

/// The variable that names the plugin for NCCL to load.
pub(super) const PLUGIN: &str = "NCCL_PROFILER_PLUGIN";
/// The variable that names the library for CUDA to load in `cuInit`.
pub(super) const INJECTION: &str = "CUDA_INJECTION64_PATH";
/// The variable with the folders of libraries that are named without a path.
pub(super) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Whether a value of [`PLUGIN`] or [`INJECTION`] means this library, also by a link.
pub(super) fn is_ours(value: &OsStr, library: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    value == NAME || real(Path::new(value)) == real(library)
}

pub(super) fn print(out: &mut dyn Write) -> Result<(), Reason> {
    let library = find()?;
    writeln!(out, "{}", library.display()).map_err(Reason::Output)
}

/// The library that belongs to this program.
///
/// # Errors
///
/// Where it was looked for, and how to get it.
pub(super) fn find() -> Result<PathBuf, Reason> {
    let program = env::current_exe().map_err(Reason::failed("find this program"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = places(folder);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        Reason::Refused(format!(
            "there is no {NAME} beside {}. The wheel and the archive have both; cargo install builds the program only. In the source,\n  \
             cargo build --release --lib --no-default-features && cp target/release/{NAME} {}/\n\
             puts it there; ncclscope run --library names one that is elsewhere",
            program.display(),
            folder.display()
        ))
    })
}

/// Where it may be, for a program in this folder: next to it, as built and in the archive, or in a
/// Python package, as a wheel installs both. If several Pythons share a folder for programs, the
/// one with this version comes first.
fn places(folder: &Path) -> Vec<PathBuf> {
    let mut places = vec![folder.join(NAME)];
    let Some(prefix) = folder.parent() else { return places };
    places.push(prefix.join("lib/ncclscope").join(NAME));
    // Made by pip install --target.
    places.push(prefix.join("ncclscope").join(NAME));
    let mut pythons: Vec<PathBuf> = ["lib", "lib64", "local/lib"]
        .iter()
        .flat_map(|lib| std::fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path())
        .collect();
    pythons.sort();
    let modules = |python: &PathBuf| ["site-packages", "dist-packages"].map(|it| python.join(it));
    let mut modules: Vec<PathBuf> = pythons.iter().flat_map(modules).collect();
    let installed = concat!("ncclscope-", env!("CARGO_PKG_VERSION"), ".dist-info");
    modules.sort_by_key(|it| !it.join(installed).is_dir());
    places.extend(modules.iter().map(|it| it.join("ncclscope").join(NAME)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_where_wheels_and_archives_put_it() {
        for place in ["bin/", "lib/ncclscope/", "ncclscope/", "lib/python3.12/site-packages/ncclscope/"] {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join(place).join(NAME);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            let found = places(&root.path().join("bin")).into_iter().find(|place| place.is_file());
            assert_eq!(found, Some(file), "{place}");
        }
    }

    #[test]
    fn a_link_to_the_library_is_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let [library, link, other] = [NAME, "link.so", "other.so"].map(|name| folder.path().join(name));
        std::fs::write(&library, "").unwrap();
        std::os::unix::fs::symlink(&library, &link).unwrap();
        assert!(is_ours(link.as_os_str(), &library) && is_ours(OsStr::new(NAME), &library));
        assert!(!is_ours(other.as_os_str(), &library));
    }
}
