//! A file of ours that grows by whole packets, on a file system that may be full, gone or closed by
//! the program.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::descriptor::{Descriptor, Standing};

/// Room is reserved in steps of this, in bytes.
const STEP: u64 = 256 << 10;

/// The file.
#[derive(Debug)]
pub struct Output {
    descriptor: Descriptor,
    /// As the person gave it.
    path: PathBuf,
    /// The same, wherever the program goes.
    absolute: PathBuf,
    length: u64,
    room: Room,
}

/// What the file system keeps for the file beyond its end.
#[derive(Clone, Copy, Debug)]
enum Room {
    /// It is not asked.
    Unknown,
    /// `ahead` bytes beyond the end at least, up to `until` now.
    Kept { ahead: u64, until: u64 },
}

/// What became of bytes that were to be appended.
#[derive(Debug)]
pub enum Append {
    /// They are in the file.
    Done,
    /// They are in the file, and there is only as much room left as was kept for the end.
    NearlyFull(io::Error),
    /// They are not.
    Failed(WriteError),
}

/// Why bytes cannot be appended to a file.
#[derive(Debug)]
pub enum WriteError {
    /// What the operating system says against it.
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
            WriteError::Replaced => f.write_str("the program closed its descriptor, and another file is there now"),
            WriteError::Closed(error) => {
                write!(f, "the program closed its descriptor, and it cannot be opened again: {error}")
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
    /// Makes a file, readable by its owner only, in a folder whose path this is. `ahead` is what is
    /// to fit into it when the file system is full, in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says against it; among that, that it exists.
    pub fn create(folder: &Descriptor, path: PathBuf, ahead: u64) -> io::Result<Output> {
        let name = path.file_name().unwrap_or_default();
        // Always to the end: also after the file was opened a second time.
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let descriptor = Descriptor::open(Some(folder), name, flags)?;
        let there = Descriptor::open(Some(folder), name, libc::O_PATH | libc::O_NOFOLLOW)?;
        if !there.is_same(&descriptor) {
            return Err(io::Error::other("the program closed its descriptor at once"));
        }
        let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let room = if ahead > 0 { Room::Kept { ahead, until: 0 } } else { Room::Unknown };
        Ok(Output { descriptor, path, absolute, length: 0, room })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it these permissions, whatever the umask says.
    ///
    /// # Errors
    ///
    /// What the operating system says against it.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        self.descriptor.permit(mode)
    }

    /// Bytes in it.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes free on its file system, for us.
    ///
    /// # Errors
    ///
    /// What the operating system says against the question.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.descriptor.free_bytes()
    }

    /// Appends whole packets. Where not all of them can be written, none is in the file.
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

    /// Ends it, and gives back what room was kept.
    pub fn close(self) {
        if matches!(self.room, Room::Kept { .. }) && self.descriptor.standing() == Standing::Ours {
            let _ = self.descriptor.cut(self.length);
        }
    }

    /// Ends it, and removes it.
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
                Ok(0) => return Err(WriteError::Io(io::Error::new(io::ErrorKind::WriteZero, "nothing is taken"))),
                Ok(count) => rest = &rest[count..],
                Err(error) => return Err(WriteError::Io(error)),
            }
        }
        Ok(())
    }

    /// Requires that what is written now goes to our file, and that somebody can find it.
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

    /// Has the file system keep room for what comes next and what must still fit in then; what it
    /// says where it has no more.
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
                    // A file system that does not know how.
                    self.room = Room::Unknown;
                }
                is_full.then_some(error)
            }
        }
    }
}
