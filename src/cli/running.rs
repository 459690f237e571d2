//! Which recordings are still being written, as far as this machine can tell.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether a process of this machine, one that we may inspect, has the file open for writing.
pub(super) fn is_being_written(path: &Path) -> bool {
    are_being_written([path]) == [true]
}

/// The same for several files.
pub(super) fn are_being_written<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Vec<bool> {
    let id = |file: fs::Metadata| (file.dev(), file.ino());
    let ids: Vec<_> = paths.into_iter().map(|path| fs::metadata(path).ok().map(id)).collect();
    let mut written: HashMap<_, bool> = ids.iter().flatten().map(|id| (*id, false)).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in processes.flat_map(|process| fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()) {
        let of_it = fs::metadata(entry.path()).ok().and_then(|file| written.get_mut(&id(file)));
        let Some(is_written) = of_it.filter(|is_written| !**is_written) else { continue };
        // `flags:	0100001`: the last octal digit is the access mode.
        let info = entry.path().to_string_lossy().replacen("/fd/", "/fdinfo/", 1);
        let info = fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        *is_written = flags.is_some_and(|flags| flags.trim().ends_with(['1', '2']));
    }
    ids.iter().map(|id| id.is_some_and(|id| written[&id])).collect()
}
