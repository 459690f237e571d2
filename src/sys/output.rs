//! An output file of whole packets, on a file system that may be full, or gone, and by a descriptor
//! that the program may close.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::descriptor::{Descriptor, Standing};

/// Space is reserved in steps of this many bytes.
const STEP: u64 = 256 << 10;

/// An output file.
#[derive(Debug)]
pub struct Output {
    descriptor: Descriptor,
    /// The path as the user gave it.
    path: PathBuf,
    /// The absolute path, which holds after the program changes its directory.
    absolute: PathBuf,
    length: u64,
    room: Room,
}

/// The space reserved for the file beyond its end.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// The file system is not asked to reserve any.
    Unknown,
    /// At least `ahead` bytes beyond the end are reserved; now it is reserved up to `until`.
    Kept { ahead: u64, until: u64 },
}

/// The result of appending.
#[derive(Debug)]
pub enum Append {
    /// The packets are in the file.
    Done,
    /// The packets are in the file, and only the space kept for the end of the recording is left.
    NearlyFull(io::Error),
    /// The packets are not in the file.
    Failed(WriteError),
}

/// Why bytes cannot be appended to a file.
#[derive(Debug)]
pub enum WriteError {
    /// The operating system's error.
    Io(io::Error),
    /// The file was removed.
    Removed,
    /// The program closed the descriptor, and the path leads to another file now.
    Replaced,
    /// The program closed the descriptor, and the file cannot be opened again.
    Closed(io::Error),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Io(error) => write!(f, "{error}"),
            WriteError::Removed => f.write_str("it was removed"),
            WriteError::Replaced => f.write_str("the program closed its descriptor, and the path is another file now"),
            WriteError::Closed(error) => {
                write!(f, "the program closed its descriptor, and the file cannot be reopened: {error}")
            }
        }
    }
}

impl Error for WriteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            WriteError::Io(error) | WriteError::Closed(error) => Some(error),
            WriteError::Removed | WriteError::Replaced => None,
        }
    }
}

impl Output {
    /// Creates the file at `path` in `folder`, readable by its owner only. `ahead` is how many
    /// bytes must still fit when the file system is full.
    ///
    /// # Errors
    ///
    /// The operating system's error, also if the file exists.
    pub fn create(folder: &Descriptor, path: PathBuf, ahead: u64) -> io::Result<Output> {
        let name = path.file_name().unwrap_or_default();
        // Always append: also after the file was opened a second time.
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let descriptor = Descriptor::open(Some(folder), name, flags)?;
        let there = Descriptor::open(Some(folder), name, libc::O_PATH | libc::O_NOFOLLOW)?;
        if !there.is_same(&descriptor) {
            return Err(io::Error::other("the program closed its descriptor right after it was opened"));
        }
        let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let room = if ahead > 0 { Room::Kept { ahead, until: 0 } } else { Room::Unknown };
        Ok(Output { descriptor, path, absolute, length: 0, room })
    }

    /// The path as the user gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file these permissions, whatever the umask says.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        self.descriptor.permit(mode)
    }

    /// The length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Free bytes on the file system, as far as we may use them.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.descriptor.free_bytes()
    }

    /// Appends whole packets. If not all of them can be written, none is in the file.
    #[must_use]
    pub fn append(&mut self, packets: &[u8]) -> Append {
        let full = self.keep_room(packets.len() as u64);
        match self.write(packets) {
            Ok(()) => {
                self.length += packets.len() as u64;
                full.map_or(Append::Done, Append::NearlyFull)
            }
            Err(why) => {
                if self.descriptor.standing() == Standing::Ours {
                    let _ = self.descriptor.cut(self.length);
                }
                Append::Failed(why)
            }
        }
    }

    /// Closes the file, and frees the space that was reserved.
    pub fn close(self) {
        if matches!(self.room, Room::Kept { .. }) && self.descriptor.standing() == Standing::Ours {
            let _ = self.descriptor.cut(self.length);
        }
    }

    /// Closes the file, and removes it.
    pub fn remove(self) {
        let there = Descriptor::open(None, &self.absolute, libc::O_PATH | libc::O_NOFOLLOW);
        if there.is_ok_and(|there| there.is_same(&self.descriptor)) {
            let _ = std::fs::remove_file(&self.absolute);
        }
    }

    fn write(&mut self, mut rest: &[u8]) -> Result<(), WriteError> {
        while !rest.is_empty() {
            self.check()?;
            match self.descriptor.write(rest) {
                Ok(0) => {
                    return Err(WriteError::Io(io::Error::new(
                        io::ErrorKind::WriteZero,
                        "the file system accepted no bytes",
                    )));
                }
                Ok(count) => rest = &rest[count..],
                Err(error) => return Err(WriteError::Io(error)),
            }
        }
        Ok(())
    }

    /// Makes sure that what is written next goes to our file, and that the file still has a name.
    fn check(&mut self) -> Result<(), WriteError> {
        match self.descriptor.standing() {
            Standing::Ours => Ok(()),
            Standing::Removed => Err(WriteError::Removed),
            Standing::Lost => self.open_again(),
        }
    }

    fn open_again(&mut self) -> Result<(), WriteError> {
        const FLAGS: i32 = libc::O_WRONLY | libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        match Descriptor::open(None, &self.absolute, FLAGS) {
            Ok(again) if again.is_same(&self.descriptor) => {
                self.descriptor = again;
                Ok(())
            }
            Ok(_) => Err(WriteError::Replaced),
            Err(error) => Err(WriteError::Closed(error)),
        }
    }

    /// Reserves space for what comes next and for what must fit after that. Returns the file
    /// system's error if it has no more space.
    fn keep_room(&mut self, next: u64) -> Option<io::Error> {
        let Room::Kept { ahead, until } = self.room else { return None };
        let end = self.length + next + ahead;
        if end <= until || self.descriptor.standing() != Standing::Ours {
            return None;
        }
        match self.descriptor.reserve(until, end + STEP) {
            Ok(()) => {
                self.room = Room::Kept { ahead, until: end + STEP };
                None
            }
            Err(error) => {
                let is_full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
                if !is_full {
                    // This file system cannot reserve space.
                    self.room = Room::Unknown;
                }
                is_full.then_some(error)
            }
        }
    }
}
