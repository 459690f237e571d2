//! Puts the library where a profiler finds it.

use std::io;
use std::path::{Path, PathBuf};

use crate::release::Release;

/// Copies the built library into a folder, under the file name and with the SONAME of a release;
/// returns its path.
///
/// The two SONAMEs are equally long, so the copy differs in one byte.
///
/// # Errors
///
/// When it cannot be read or written, or is not this library.
pub fn place(library: &Path, folder: &Path, release: Release) -> io::Result<PathBuf> {
    const BUILT: &[u8] = b"\0libcupti.so.13\0";
    let mut bytes = std::fs::read(library)?;
    let wanted = format!("\0{}\0", release.soname());
    let mut places = bytes.windows(BUILT.len()).enumerate().filter(|(_, window)| *window == BUILT);
    let (Some((offset, _)), None) = (places.next(), places.next()) else {
        let what = format!("{} is not the emulated CUPTI: it does not name itself once", library.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    bytes[offset..offset + BUILT.len()].copy_from_slice(wanted.as_bytes());
    let target = folder.join(release.soname());
    std::fs::write(&target, bytes)?;
    Ok(target)
}
