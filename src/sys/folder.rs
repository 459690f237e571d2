//! Folders, opened step by step, so that a planted symbolic link cannot redirect our files.
//!
//! In a folder that everybody may write to, such as `/tmp`, anybody can put a symbolic link in the
//! place of a folder that is about to be made, and so redirect the files written there. Kernels
//! refuse to follow such links with `fs.protected_symlinks`, which is not on everywhere. So each
//! step of the path is opened without following links, and a link is followed only after a check of
//! its owner and its folder.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};

use super::descriptor::Descriptor;

/// Most symbolic links in a path, as in the kernel.
const LINKS: u32 = 40;

/// Opens a folder to make files in it. Missing parts of the path are made: with these permissions,
/// whatever the umask says, or, without `mode`, as the umask says. If a new folder cannot have the
/// permissions, `refused` gets the reason.
///
/// # Errors
///
/// The operating system's error, or another user's link in the path.
pub fn open(path: &Path, mode: Option<u32>, mut refused: impl FnMut(io::Error)) -> io::Result<Descriptor> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut folder = Descriptor::open(None, if path.is_absolute() { "/" } else { "." }, flags)?;
    let mut steps: VecDeque<OsString> = steps(path).collect();
    let mut links = 0;
    while let Some(step) = steps.pop_front() {
        let next = match Descriptor::open(Some(&folder), &step, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_ours = folder.make(&step, if mode.is_some() { 0o700 } else { 0o777 })?;
                let made = Descriptor::open(Some(&folder), &step, flags);
                if let (Some(mode), true, Ok(made)) = (mode, is_ours, &made) {
                    made.permit(mode).unwrap_or_else(&mut refused);
                }
                made
            }
            other => other,
        };
        folder = match next {
            Ok(next) => next,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let link = Descriptor::open(Some(&folder), &step, libc::O_PATH | libc::O_NOFOLLOW)?;
                let Some(target) = link.target() else { return Err(error) };
                if link.is_planted_in(&folder) {
                    let text = format!("{} is another user's symbolic link in a world-writable folder", step.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
                }
                links += 1;
                if links > LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                // Relative to the link's folder, or from the root.
                self::steps(Path::new(&target)).rev().for_each(|step| steps.push_front(step));
                folder
            }
            Err(error) => return Err(error),
        };
    }
    Ok(folder)
}

fn steps(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter(|step| *step != Component::CurDir).map(|step| step.as_os_str().to_owned())
}

impl Descriptor {
    /// Makes a folder in this one, and returns whether it did: if it already exists, that is no
    /// error.
    fn make(&self, name: &OsStr, mode: u32) -> io::Result<bool> {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string.
        let result = unsafe { libc::mkdirat(self.number(), name.as_ptr(), mode) };
        let error = io::Error::last_os_error();
        match result {
            0 => Ok(true),
            _ if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            _ => Err(error),
        }
    }

    /// The target, if this is a symbolic link.
    fn target(&self) -> Option<OsString> {
        let mut target = vec![0_u8; libc::PATH_MAX as usize];
        // SAFETY: an empty C string, which means the link itself; `target` has the stated length.
        let length = unsafe { libc::readlinkat(self.number(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
        target.truncate(usize::try_from(length).ok()?);
        Some(OsString::from_vec(target))
    }

    /// Whether this link was made neither by us nor by the owner of its folder, and everybody may
    /// write to the folder: the kernel's rule.
    fn is_planted_in(&self, folder: &Descriptor) -> bool {
        const EVERYBODYS: libc::mode_t = libc::S_ISVTX | libc::S_IWOTH;
        let (Some(link), Some(folder)) = (self.stat(), folder.stat()) else { return true };
        // SAFETY: no arguments, cannot fail.
        let us = unsafe { libc::geteuid() };
        folder.st_mode & EVERYBODYS == EVERYBODYS && link.st_uid != us && link.st_uid != folder.st_uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_folder_is_opened_where_the_system_finds_it() {
        let base = std::env::temp_dir().join(format!("ncclscope-folders-{}", std::process::id()));
        std::fs::create_dir_all(base.join("real/deep")).unwrap();
        symlink("real/deep", base.join("relative")).unwrap();
        symlink(base.join("relative"), base.join("absolute")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        std::fs::write(base.join("file"), "").unwrap();
        for path in
            ["real/deep", "relative", "absolute/.././deep", "real/../relative/new/newer", "absolute/new/newest/"]
        {
            let ours = open(&base.join(path), None, |_| ()).unwrap();
            let theirs = Descriptor::open(None, base.join(path), libc::O_PATH).unwrap();
            assert!(ours.is_same(&theirs), "{path}");
        }
        for path in ["file", "file/below", "loop", "loop/below"] {
            open(&base.join(path), None, |_| ()).unwrap_err();
        }
        std::fs::remove_dir_all(&base).unwrap();
    }
}
