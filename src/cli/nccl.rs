//! What a libnccl says about itself, without loading it.

use std::fs::File;
use std::path::Path;

use memchr::memmem;
use object::{Object as _, ObjectSection as _, ReadCache};

use crate::releases::Version;

/// The release of a libnccl, as its file states it: `2.30.7+cuda13.3`. `None` if it cannot be read
/// or states none.
pub(super) fn release(library: &Path) -> Option<String> {
    // Only the parts needed are read: the file has hundreds of megabytes of GPU code.
    let cache = ReadCache::new(File::open(library).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let constants = file.section_by_name(".rodata")?.data().ok()?;
    // The line that NCCL prints at its start. Other texts begin like it.
    memmem::find_iter(constants, BEFORE).find_map(|at| {
        let text = &constants[at + BEFORE.len()..];
        let end = text.iter().position(|byte| !byte.is_ascii_graphic())?;
        let text = std::str::from_utf8(&text[..end]).ok()?;
        version(text).map(|_| text.to_owned())
    })
}

const BEFORE: &[u8] = b"NCCL version ";

/// A release as a number: `2.30.7+cuda13.3` is 23007.
pub(super) fn version(release: &str) -> Option<Version> {
    let numbers = release.split(['+', '-', 'r', 'a', 'b']).next()?;
    let mut numbers = numbers.split('.').map(|number| number.parse::<Version>().ok());
    let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(major * 10_000 + minor * 100 + patch)
}

/// Whether a file is a libnccl by its name: `libnccl.so.2`, `libnccl.so.2.28.9`; not
/// `libnccl-net.so`.
pub(super) fn is_nccl(file: &Path) -> bool {
    file.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name == "libnccl.so" || name.starts_with("libnccl.so.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_numbers() {
        assert_eq!(version("2.30.7+cuda13.3"), Some(23007));
        assert_eq!(version("2.8.4"), Some(20804));
        assert_eq!(version("2.27"), None);
        assert_eq!(version("%s"), None);
    }

    #[test]
    fn a_libnccl_is_recognised_by_its_name() {
        for (name, is) in [
            ("/a/libnccl.so.2", true),
            ("/a/libnccl.so", true),
            ("/a/libnccl.so.2.28.9", true),
            ("/a/libnccl-net.so", false),
            ("/a/libnccl-profiler.so", false),
        ] {
            assert_eq!(is_nccl(Path::new(name)), is, "{name}");
        }
    }

    #[test]
    fn other_files_have_no_release() {
        assert_eq!(release(Path::new("/proc/self/exe")), None);
        assert_eq!(release(Path::new("/nowhere")), None);
    }
}
