//! The archive: equal files give equal bytes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use tar::{Builder, HeaderMode};

use super::{ARCH, LIBRARY, MODULE, PROGRAM, copy, tree};
use crate::steps::{Failure, Place, call};

const FILES: [&str; 6] = ["include/ncclscope.h", MODULE, "README.md", "LICENSE", "LICENSE-APACHE", "LICENSE-MIT"];

pub(super) fn make(place: &Place, arch: &str) -> Result<(), Failure> {
    let folder = tree(place, arch);
    if let Some(missing) = [LIBRARY, PROGRAM].into_iter().find(|name| !folder.join(name).is_file()) {
        return Err(format!("{} has no {missing}: cargo xtask package library wheel", folder.display()).into());
    }
    for name in FILES {
        copy(&place.root.join(name), &folder.join(name))?;
    }
    copy_pages(&place.root, &folder, |_| true)?;
    // The output is the same everywhere, and this machine can only run its own program.
    call(place.command(tree(place, ARCH).join(PROGRAM)).arg("generate").arg(&folder))?;

    let archive = of(&folder);
    let packed = File::create(&archive).and_then(|file| pack(&folder, file));
    packed.map_err(|error| format!("failed to write {}: {error}", archive.display()))?;
    println!("   {}", archive.display());
    Ok(())
}

/// Copies the pages and queries that the program's output and README.md name, as far as they are
/// wanted.
pub(super) fn copy_pages(root: &Path, to: &Path, is_wanted: fn(&Path) -> bool) -> Result<(), String> {
    let copy_all = || {
        for folder in ["docs", "sql"] {
            for file in files_in(&root.join(folder))?.iter().filter(|file| is_wanted(file)) {
                let to = to.join(file.strip_prefix(root).unwrap_or(file));
                fs::create_dir_all(to.parent().unwrap_or(&to))?;
                fs::copy(file, to)?;
            }
        }
        Ok(())
    };
    copy_all().map_err(|error: io::Error| format!("failed to copy the pages to {}: {error}", to.display()))
}

/// Next to the folder that it contains.
pub(super) fn of(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".tar.gz");
    name.into()
}

/// Packs a folder: files in order, without times and owners.
fn pack<W: io::Write>(folder: &Path, output: W) -> io::Result<W> {
    let mut tar = Builder::new(GzBuilder::new().write(output, Compression::best()));
    tar.mode(HeaderMode::Deterministic);
    let above = folder.parent().unwrap_or(folder);
    for file in files_in(folder)? {
        tar.append_path_with_name(&file, file.strip_prefix(above).unwrap_or(&file))?;
    }
    tar.into_inner()?.finish()
}

/// All files below a folder, sorted.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { files.extend(files_in(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    /// A folder with a program and a page, created in the given order.
    fn folder(name: &str, order: &[(&str, u32)], time: u64) -> PathBuf {
        let above = std::env::temp_dir().join(format!("ncclscope-archive-{}-{name}", std::process::id()));
        let folder = above.join("it-1.0");
        for (name, mode) in order {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = File::create(&path).unwrap();
            io::Write::write_all(&mut &file, name.as_bytes()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(time)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        folder
    }

    #[test]
    fn the_pages_that_the_program_names_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let to = folder("pages", &[("program", 0o755)], 1);
        copy_pages(root, &to, |file| file.extension().is_none_or(|end| end != "png")).unwrap();
        for page in ["queries", "beside-nsight", "tables", "otlp", "hanging"] {
            assert!(to.join(format!("docs/{page}.md")).is_file(), "{page}");
        }
        assert!(to.join("sql/ncclscope.sql").is_file() && !to.join("docs/pictures").exists());
        fs::remove_dir_all(to.parent().unwrap()).unwrap();
    }

    #[test]
    fn equal_files_make_equal_bytes() {
        let one = folder("one", &[("program", 0o700), ("man/page.1", 0o600)], 1);
        let other = folder("other", &[("man/page.1", 0o664), ("program", 0o775)], 1_000_000_000);
        let packed = pack(&one, Vec::new()).unwrap();
        assert!(packed == pack(&other, Vec::new()).unwrap());

        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let entries: Vec<_> = tar.entries().unwrap().map(Result::unwrap).collect();
        let seen: Vec<_> =
            entries.iter().map(|it| (it.path().unwrap().into_owned(), it.header().mode().unwrap())).collect();
        assert_eq!(seen, [("it-1.0/man/page.1".into(), 0o644), ("it-1.0/program".into(), 0o755)]);
        for folder in [one, other] {
            fs::remove_dir_all(folder.parent().unwrap()).unwrap();
        }
    }
}
