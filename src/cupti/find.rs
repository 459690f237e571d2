//! Chooses the copy of libcupti to use: the one already in the process, or else the best one to
//! load.
//!
//! Two copies in a process cannot both trace. So a copy that is already mapped is always used, and
//! a second one is never loaded. Nothing here calls CUPTI.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cupti_sys::Cupti;
use cupti_sys::load::{self, LoadError, Reason};

use super::Absent;
use super::driver::{self, Driver};
use crate::config::Cupti as Source;
use crate::sys;

/// A copy of libcupti whose functions may be called.
pub(super) struct Found {
    pub(super) api: Cupti,
    pub(super) path: String,
    /// Remarks about the choice.
    pub(super) remarks: Vec<String>,
}

/// CUDA's major versions whose libcupti can be read, newest first.
const MAJORS: [u32; 2] = [13, 12];

/// Finds the copy to use. Without a driver in the process it does not search; while the driver
/// starts, it does not ask the driver about its GPUs.
pub(super) fn find(source: &Source, driver_starts: bool) -> Result<Found, Absent> {
    let driver = Driver::mapped().ok_or(Absent::NoDriver)?;
    let mut found = match mapped()? {
        Some(found) => found,
        None => open(source, &driver)?,
    };
    if let Source::Path(wanted) = source
        && !same_file(wanted, Path::new(&found.path))
    {
        found.remarks.push(format!("{} was requested, but this copy was already loaded", wanted.display()));
    }
    // This CUPTI overflows the stack in the first function called if it cannot use the driver.
    let has_gpu = || !driver_starts && driver.devices().is_some_and(|count| count > 0);
    let usable = || has_gpu() && driver.cuda_major().is_some_and(|major| major >= 13);
    if is_13_2(&found) && !usable() {
        return Err(Absent::Broken { path: found.path, driver_starts });
    }
    Ok(found)
}

/// Whether a copy is that of CUDA 13.2, found out without calling it: it has a function that is new
/// in 13.2 and lacks one that is new in 13.3.
fn is_13_2(found: &Found) -> bool {
    let later = |path: CString| driver::exports(&path, c"cuptiGetTimestamp_v2");
    found.api.cuptiActivityGetStructSize.is_some() && !found.api.path().is_some_and(later)
}

/// The mapped copy, if there is one.
fn mapped() -> Result<Option<Found>, Absent> {
    let copies = load::mapped_copies();
    let by_name = Cupti::mapped(&load::SONAMES);
    let api = match by_name {
        Ok(api) => api,
        Err(error) if copies.is_empty() => match lacking(&error) {
            Some((name, function)) => {
                return Err(Absent::TooOld { path: name, function: Some(function), version: None });
            }
            None => return Ok(None),
        },
        // Packed into a wheel under another name, or of a later major version than those known
        // here.
        Err(_) => {
            let names: Vec<&CStr> = copies.iter().map(CString::as_c_str).collect();
            match Cupti::mapped(&names) {
                Ok(api) => api,
                Err(error) => {
                    return Err(match lacking(&error) {
                        Some((path, function)) => Absent::TooOld { path, function: Some(function), version: None },
                        None => Absent::NoLibrary { tried: error.to_string() },
                    });
                }
            }
        }
    };
    let path = path_of(&api);
    let others: Vec<String> =
        copies.iter().map(|copy| copy.to_string_lossy().into_owned()).filter(|copy| *copy != path).collect();
    let remarks = among(&path, &others).into_iter().collect();
    Ok(Some(Found { api, path, remarks }))
}

/// Why this copy was chosen, if others are loaded.
fn among(path: &str, others: &[String]) -> Option<String> {
    let major = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        MAJORS.into_iter().find(|major| file.contains(&format!(".so.{major}")))
    };
    if others.is_empty() {
        return None;
    }
    let is_newest = others.iter().all(|other| major(other) < major(path));
    let reason = if is_newest { "it is of the newest CUDA" } else { "it was loaded first" };
    Some(format!(
        "chosen because {reason}; of several copies in a process only one can trace; also loaded: {}",
        others.join(", ")
    ))
}

/// Loads a copy: the one asked for, or the best one found.
fn open(source: &Source, driver: &Driver) -> Result<Found, Absent> {
    let names = match source {
        Source::Path(path) => vec![path.clone()],
        Source::Auto | Source::Share | Source::Off => {
            candidates(&sys::mapped_files(), driver.cuda_major(), &|name| std::env::var_os(name))
                .into_iter()
                // A name without a folder is left to the linker.
                .filter(|path| path.components().count() == 1 || path.exists())
                .collect()
        }
    };
    let names: Vec<CString> = names.iter().filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect();
    let names: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
    // SAFETY: these are names of CUPTI, or a path that the user named as CUPTI.
    match unsafe { Cupti::open(&names) } {
        Ok(api) => Ok(Found { path: path_of(&api), api, remarks: vec!["loaded by ncclscope".into()] }),
        Err(error) => Err(Absent::NoLibrary { tried: error.to_string() }),
    }
}

/// Where a libcupti that is not loaded may be, best first. By the major version of the running
/// CUDA: the linker's search path, the toolkit, and the folders of NVIDIA's Python packages.
fn candidates(mapped: &[PathBuf], driver: Option<u32>, variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let file = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let runtime = MAJORS.into_iter().find(|major| {
        let name = format!("libcudart.so.{major}");
        mapped.iter().any(|path| file(path).starts_with(&name))
    });
    // A CUPTI newer than the driver does not work; an older one does.
    let mut majors: Vec<u32> =
        MAJORS.into_iter().filter(|&major| driver.is_none_or(|driver| major <= driver)).collect();
    majors.sort_by_key(|&major| Some(major) != runtime);
    let toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|name| variable(name))
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .chain(["/usr/local/cuda".into()])
        .collect();
    let mut packages: Vec<PathBuf> = Vec::new();
    for path in mapped {
        // .../site-packages/nvidia/<package>/lib/<library>
        let nvidia = path.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "nvidia"));
        if let Some(nvidia) = nvidia
            && !packages.iter().any(|known| known == nvidia)
        {
            packages.push(nvidia.to_owned());
        }
    }
    let mut found = Vec::new();
    for major in majors {
        let name = format!("libcupti.so.{major}");
        found.push(PathBuf::from(&name));
        let packaged = if major == 12 { "cuda_cupti/lib".to_owned() } else { format!("cu{major}/lib") };
        found.extend(packages.iter().map(|folder| folder.join(&packaged).join(&name)));
        found.extend(toolkits.iter().map(|folder| folder.join("extras/CUPTI/lib64").join(&name)));
    }
    found
}

fn path_of(api: &Cupti) -> String {
    api.path().map_or_else(|| "an unknown place".into(), |path| path.to_string_lossy().into_owned())
}

fn same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(a) == real(b)
}

/// The first copy that exists but lacks a function, and the function, if that was the error.
fn lacking(error: &LoadError) -> Option<(String, &'static str)> {
    error.tried.iter().find_map(|tried| match tried.reason {
        Reason::Lacks(function) => {
            let name = OsString::from_vec(tried.name.to_bytes().to_vec());
            Some((name.to_string_lossy().into_owned(), function))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mapped: &[&str], driver: Option<u32>, variables: &[(&str, &str)], expected: &[&str]) {
        let mapped: Vec<PathBuf> = mapped.iter().map(PathBuf::from).collect();
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        let found = candidates(&mapped, driver, &variable);
        assert_eq!(found.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_copy_for_the_running_cuda_comes_first() {
        check(
            &[],
            Some(13),
            &[],
            &[
                "libcupti.so.13",
                "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                "libcupti.so.12",
                "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12",
            ],
        );
        let torch = [
            "/venv/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12",
            "/venv/site-packages/nvidia/nccl/lib/libnccl.so.2",
        ];
        check(
            &torch,
            Some(13),
            &[("CUDA_HOME", "/opt/cuda"), ("CUDA_PATH", "")],
            &[
                "libcupti.so.12",
                "/venv/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12",
                "/opt/cuda/extras/CUPTI/lib64/libcupti.so.12",
                "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12",
                "libcupti.so.13",
                "/venv/site-packages/nvidia/cu13/lib/libcupti.so.13",
                "/opt/cuda/extras/CUPTI/lib64/libcupti.so.13",
                "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
            ],
        );
    }

    #[test]
    fn a_copy_newer_than_the_driver_is_not_tried() {
        check(&[], Some(12), &[], &["libcupti.so.12", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12"]);
        check(&[], Some(11), &[], &[]);
    }

    #[test]
    fn the_choice_among_copies_has_its_reason() {
        let others = |paths: &[&str]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(among("/a/libcupti.so.13", &[]), None);
        let said = among("/a/libcupti.so.13", &others(&["/b/libcupti.so.12"])).unwrap();
        assert!(said.starts_with("chosen because it is of the newest CUDA; "), "{said}");
        let said = among("/a/libcupti.so.13.0", &others(&["/b/libcupti.so.13", "/c/libcupti.so.12"])).unwrap();
        assert!(said.starts_with("chosen because it was loaded first; "), "{said}");
        assert!(said.ends_with("also loaded: /b/libcupti.so.13, /c/libcupti.so.12"), "{said}");
    }

    #[test]
    fn without_a_driver_nothing_is_loaded() {
        // No test program of ours has a driver in it, on any machine.
        assert!(matches!(find(&Source::Path("/nowhere/libcupti.so.13".into()), false), Err(Absent::NoDriver)));
        assert!(matches!(find(&Source::Auto, true), Err(Absent::NoDriver)));
    }
}
