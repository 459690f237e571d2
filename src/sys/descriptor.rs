//! Our own descriptors in a process that belongs to somebody else.
//!
//! A descriptor is only a number. A program that closes all its descriptors closes ours too, and
//! the next file it opens gets the number. So ours have high numbers, which programs rarely reach,
//! and each is identified by device and inode: it is checked right before each write and before it
//! is closed. A gap of less than a microsecond remains between check and write, in which the
//! program would have to close our number and open another file under the same number.
//!
//! A thread with its own descriptor table (`CLONE_FILES`) would close that gap and open a worse
//! one: libraries that intercept file calls identify a file by its number, and would take ours for
//! the program's.
//!
//! Unless a function says otherwise, its error is the operating system's.

use std::ffi::{CString, OsStr, c_int};
use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A file that we have opened.
#[derive(Debug)]
pub struct Descriptor {
    number: c_int,
    identity: Identity,
    /// Whether the file had a name when it was opened. Some file systems always say that it has
    /// none.
    had_name: bool,
}

/// The identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// The state of one of our descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is our file.
    Ours,
    /// It is our file, but the file was removed: what is written is lost with the descriptor.
    Removed,
    /// The number is closed, or belongs to another file.
    Lost,
}

impl Descriptor {
    /// Opens a file at a path relative to `folder`; a new one is readable by its owner only. The
    /// number is never below 3, and `exec` closes it.
    pub fn open(folder: Option<&Descriptor>, path: impl AsRef<Path>, flags: c_int) -> io::Result<Descriptor> {
        let path = CString::new(path.as_ref().as_os_str().as_bytes())?;
        let folder = folder.map_or(libc::AT_FDCWD, |folder| folder.number);
        let low = Low::hold();
        // SAFETY: a C string.
        let number = again(|| unsafe { libc::openat(folder, path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) })?;
        drop(low);
        Descriptor::raised(number)
    }

    /// Takes over a descriptor and moves it to a high number.
    fn raised(low: c_int) -> io::Result<Descriptor> {
        let Some(stat) = stat(low) else { return Err(io::Error::last_os_error()) };
        let (identity, had_name) = (Identity::of(&stat), stat.st_nlink > 0);
        let high = duplicate(low);
        let low = Descriptor { number: low, identity, had_name };
        match high {
            Ok(number) => {
                // The number may belong to another file since it was opened.
                let there = Identity::of_number(number);
                let high = Descriptor { number, identity: there.unwrap_or(identity), had_name };
                if there == Some(identity) { Ok(high) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
            }
            Err(_) if low.number > 2 => Ok(low),
            Err(error) => Err(error),
        }
    }

    pub(super) fn number(&self) -> c_int {
        self.number
    }

    pub(super) fn stat(&self) -> Option<libc::stat64> {
        stat(self.number)
    }

    /// Whether the descriptor still refers to the file that was opened.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match stat(self.number) {
            Some(stat) if Identity::of(&stat) == self.identity => match self.had_name && stat.st_nlink == 0 {
                true => Standing::Removed,
                false => Standing::Ours,
            },
            _ => Standing::Lost,
        }
    }

    /// Whether both are the same file.
    #[must_use]
    pub fn is_same(&self, other: &Descriptor) -> bool {
        self.identity == other.identity
    }

    /// Writes a part of `bytes`, and returns its length.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the pointer and the length are those of `bytes`.
        again(|| unsafe { libc::write(self.number, bytes.as_ptr().cast(), bytes.len()) }).map(|count| count as usize)
    }

    /// Reads everything up to the end of the file.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut part = [0_u8; 4096];
        loop {
            // SAFETY: `part` has the stated length.
            match again(|| unsafe { libc::read(self.number, part.as_mut_ptr().cast(), part.len()) })? {
                0 => return Ok(all),
                count => all.extend(&part[..count as usize]),
            }
        }
    }

    /// Reads from this byte of the file on, and returns how much.
    pub fn read_at(&self, part: &mut [u8], from: usize) -> io::Result<usize> {
        // SAFETY: the pointer and the length are those of `part`.
        again(|| unsafe { libc::pread64(self.number, part.as_mut_ptr().cast(), part.len(), from as libc::off64_t) })
            .map(|count| count as usize)
    }

    /// The names in a folder. Not through the standard library, which panics if the program closes
    /// the descriptor meanwhile.
    #[must_use]
    pub fn names(&self) -> Vec<Vec<u8>> {
        /// Offsets of the entry's length and of its name in `struct linux_dirent64`.
        const LENGTH_AT: usize = 16;
        const NAME_AT: usize = 19;
        let mut names = Vec::new();
        let mut part = [0_u64; 512];
        loop {
            // By number: glibc has no function for it before 2.30.
            // SAFETY: `part` has the stated length.
            let size =
                unsafe { libc::syscall(libc::SYS_getdents64, self.number, part.as_mut_ptr(), size_of_val(&part)) };
            let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else { return names };
            let mut entries = &bytemuck::bytes_of(&part)[..size];
            while let Some(&[low, high]) = entries.get(LENGTH_AT..LENGTH_AT + 2) {
                let length = usize::from(u16::from_ne_bytes([low, high])).clamp(NAME_AT, entries.len());
                let name = entries[NAME_AT..length].split(|byte| *byte == 0).next().unwrap_or_default();
                names.push(name.to_owned());
                entries = &entries[length..];
            }
        }
    }

    /// Renames a file in this folder, in place of the one that has the new name.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let (from, to) = (CString::new(from.as_bytes())?, CString::new(to.as_bytes())?);
        // SAFETY: C strings.
        again(|| unsafe { libc::renameat(self.number, from.as_ptr(), self.number, to.as_ptr()) }).map(drop)
    }

    /// Removes a file in this folder.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let name = CString::new(name.as_bytes())?;
        // SAFETY: a C string.
        again(|| unsafe { libc::unlinkat(self.number, name.as_ptr(), 0) }).map(drop)
    }

    /// Takes over another kind of descriptor, such as a socket, and moves it to a high number.
    pub fn of(owned: OwnedFd) -> io::Result<Descriptor> {
        Descriptor::raised(owned.into_raw_fd())
    }

    /// Gives the file or folder these permissions, whatever the umask says.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        // A descriptor opened with `O_PATH` can only be changed through its link.
        let link = CString::new(format!("/proc/self/fd/{}", self.number))?;
        // SAFETY: a C string.
        again(|| unsafe { libc::chmod(link.as_ptr(), mode) }).map(drop)
    }

    /// Bytes that an unprivileged process may still write to the file system.
    pub fn free_bytes(&self) -> io::Result<u64> {
        // SAFETY: `stats` is writable, and read only if the call filled it.
        unsafe {
            let mut stats: libc::statvfs64 = std::mem::zeroed();
            again(|| libc::fstatvfs64(self.number, &raw mut stats))?;
            Ok(bytes_of(stats.f_bavail, stats.f_frsize))
        }
    }

    /// Reserves space for this part of the file without changing the file's length.
    pub fn reserve(&self, from: u64, until: u64) -> io::Result<()> {
        let (from, length) = (from as libc::off_t, until.saturating_sub(from) as libc::off_t);
        // SAFETY: no pointers.
        again(|| unsafe { libc::fallocate(self.number, libc::FALLOC_FL_KEEP_SIZE, from, length) }).map(drop)
    }

    /// Truncates the file, and frees what is reserved beyond that length.
    pub fn cut(&self, length: u64) -> io::Result<()> {
        // SAFETY: no pointers.
        again(|| unsafe { libc::ftruncate(self.number, length as libc::off_t) }).map(drop)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.standing() != Standing::Lost {
            // SAFETY: it is ours, and no longer used.
            unsafe { libc::close(self.number) };
        }
    }
}

impl Identity {
    fn of(stat: &libc::stat64) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino }
    }

    /// The identity of the file with this number, if there is one.
    pub(crate) fn of_number(number: c_int) -> Option<Identity> {
        stat(number).as_ref().map(Identity::of)
    }
}

fn stat(number: c_int) -> Option<libc::stat64> {
    // SAFETY: `stat` is writable, and read only if the call filled it.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        (libc::fstat64(number, &raw mut stat) == 0).then_some(stat)
    }
}

/// The bytes of so many blocks. A file system without a limit may say any number of them.
fn bytes_of(blocks: u64, size: u64) -> u64 {
    blocks.saturating_mul(size)
}

/// Another number for the same file, a high one if possible; `exec` closes it.
pub(crate) fn duplicate(number: c_int) -> io::Result<c_int> {
    // SAFETY: no pointers.
    let from = |lowest: c_int| again(|| unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, lowest) });
    from(lowest_number()).or_else(|_| from(3))
}

/// The lowest number for our descriptors: high enough that a program with few files never reaches
/// it, low enough that the kernel's table, which is as long as the highest number, stays small.
fn lowest_number() -> c_int {
    const HIGHEST: u64 = 4096;
    const ROOM: u64 = 64;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur.min(HIGHEST).saturating_sub(ROOM).max(3) as c_int
}

/// Holds the numbers 0 to 2 if the program has closed them. What the program writes to them must
/// not go to a file that we are opening; it fails, as it did before.
struct Low([Option<c_int>; 3]);

impl Low {
    fn hold() -> Low {
        let mut held = Low([None; 3]);
        for place in &mut held.0 {
            // SAFETY: no pointers.
            let is_open = (0..3).all(|number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
            if is_open {
                break;
            }
            // Such a descriptor can be neither read nor written.
            // SAFETY: a C string.
            let number = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
            *place = Some(number).filter(|&number| number >= 0);
        }
        held
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        for &number in self.0.iter().flatten() {
            // SAFETY: ours, opened a moment ago.
            unsafe { libc::close(number) };
        }
    }
}

/// Repeats a call that a signal interrupts.
fn again<T: Default + PartialOrd>(mut call: impl FnMut() -> T) -> io::Result<T> {
    loop {
        let result = call();
        if result >= T::default() {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_reused_for_another_file_is_not_ours_and_stays_open() {
        let ours = Descriptor::open(None, "/proc/self/stat", libc::O_RDONLY).unwrap();
        assert_eq!(ours.standing(), Standing::Ours);
        assert!(ours.number > 2);
        let other = Descriptor::open(None, "/proc/self/maps", libc::O_RDONLY).unwrap();
        // SAFETY: both numbers are open.
        let taken = unsafe { libc::dup2(other.number, ours.number) };
        assert_eq!((taken, ours.standing()), (ours.number, Standing::Lost));
        drop(ours);
        assert_eq!(Identity::of_number(taken), Some(other.identity), "it stays open");
        // SAFETY: it is open, and nobody else's.
        unsafe { libc::close(taken) };
    }

    #[test]
    fn free_space_without_end_is_much() {
        assert_eq!((bytes_of(3, 4096), bytes_of(1 << 52, 4096), bytes_of(u64::MAX, 2)), (12_288, u64::MAX, u64::MAX));
    }

    #[test]
    fn all_names_in_a_folder_are_listed() {
        let folder = std::env::temp_dir().join(format!("ncclscope-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut expected: Vec<_> = (0..500).map(|n| format!("a name of some length {n}").into_bytes()).collect();
        for name in &expected {
            std::fs::write(folder.join(String::from_utf8_lossy(name).as_ref()), "").unwrap();
        }
        expected.extend([b".".to_vec(), b"..".to_vec()]);
        let mut names = Descriptor::open(None, &folder, libc::O_RDONLY | libc::O_DIRECTORY).unwrap().names();
        std::fs::remove_dir_all(&folder).unwrap();
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
    }
}
