//! Layouts that were read before: one JSON file per library, named after its build id.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Unsuitable;
use super::layout::{DECLARATION, Layout};

/// Raise this when the same declaration of [`Layout`] is read in another way.
const FORMAT: u32 = 1;

/// How the cache was used.
#[derive(Debug)]
pub enum CacheUse {
    /// The layout came from this file.
    Read(PathBuf),
    /// It was read from the library and put into this file.
    Written(PathBuf),
    /// It was read from the library, and this file could not be written.
    NotWritten(PathBuf, io::Error),
    /// The library has no build id to name a file after.
    NotPossible,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    format: String,
    build_id: String,
    layout: Layout,
}

/// Takes the layout of the library with this build id from the folder `cache`, or else from
/// `read`, and stores it there. A file that is broken or older than this program is replaced. A
/// file that cannot be written is not an error.
pub(super) fn layout(
    cache: &Path,
    build_id: Option<&str>,
    read: impl FnOnce() -> Result<Layout, Unsuitable>,
) -> Result<(Layout, CacheUse), Unsuitable> {
    let Some(build_id) = build_id else { return Ok((read()?, CacheUse::NotPossible)) };
    let path = cache.join(format!("layout-{build_id}.json"));
    if let Some(layout) = kept(&path, build_id) {
        return Ok((layout, CacheUse::Read(path)));
    }
    let layout = read()?;
    let entry = Entry { format: format(), build_id: build_id.to_owned(), layout };
    Ok(match keep(&path, &entry) {
        Ok(()) => (layout, CacheUse::Written(path)),
        Err(error) => (layout, CacheUse::NotWritten(path, error)),
    })
}

fn kept(path: &Path, build_id: &str) -> Option<Layout> {
    let entry: Entry = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (entry.format == format() && entry.build_id == build_id).then_some(entry.layout)
}

/// Several processes may do this at once, so the file appears complete or not at all.
fn keep(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(entry)?;
    text.push(b'\n');
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    let written = fs::File::create(&unfinished)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The file may not exist.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Changes whenever the members of a layout change: a member that an older program did not know
/// would be read as absent.
fn format() -> String {
    // FNV-1a
    let hash = DECLARATION
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{FORMAT}-{hash:016x}")
}
