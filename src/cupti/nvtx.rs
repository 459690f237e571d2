//! Makes NVTX report to CUPTI. At its first call in a program NVTX loads the library that
//! `NVTX_INJECTION64_PATH` names, and libcupti can be that library. A library whose first NVTX call
//! came earlier is not heard; setting the variable before the program starts helps.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::sys;

const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Why NVTX cannot be used, if another tool has it. Ours is the library at `path`, under any name.
pub(super) fn objection(path: &str) -> Option<String> {
    objection_to(std::env::var_os(VARIABLE).as_deref(), path)
}

fn objection_to(value: Option<&OsStr>, path: &str) -> Option<String> {
    let other = value.filter(|value| !value.is_empty())?;
    let file = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    (file(Path::new(other)) != file(Path::new(path))).then(|| {
        let other = other.to_string_lossy();
        format!("no NVTX ranges: {VARIABLE} names another tool's library ({other}); unset it, or set it to {path}")
    })
}

/// Names the library at `path` to NVTX, if none is named yet.
pub(super) fn inject(path: &str) {
    if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
        sys::add_variable(VARIABLE, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_file_does_not_count_as_another_tool() {
        let folder = std::env::temp_dir().join(format!("ncclscope-nvtx-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [ours, link, other] = ["libcupti.so.13", "libcupti.so", "other.so"].map(|name| folder.join(name));
        fs::write(&ours, "").unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        let ours = ours.to_str().unwrap();
        let objects = |value: Option<&OsStr>| objection_to(value, ours);
        for value in [None, Some(OsStr::new("")), Some(OsStr::new(ours)), Some(link.as_os_str())] {
            assert_eq!(objects(value), None, "{value:?}");
        }
        let objection = objects(Some(other.as_os_str())).unwrap();
        assert!(objection.contains("other.so") && objection.ends_with("libcupti.so.13"), "{objection}");
        assert!(objects(Some(OsStr::new("/nowhere/libnvtx.so"))).is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
