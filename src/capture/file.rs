//! The capture's file, on the writing thread.

use std::error::Error;
use std::fmt;
use std::path::Path;

use flate2::{Compress, Compression, FlushCompress, Status};

use super::write;
use crate::sys::descriptor::Descriptor;
use crate::sys::output::{Append, Output, WriteError};
use crate::trace::names;
use crate::trace::packer::deflated_at_most;

/// Why a chunk is not in the capture.
#[derive(Debug)]
pub enum AppendError {
    /// It cannot be compressed.
    Compression,
    /// The file would have more than these bytes.
    MaxSize(u64),
    /// It cannot be written.
    Write(WriteError),
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::Compression => f.write_str("a chunk cannot be compressed"),
            AppendError::MaxSize(limit) => write!(f, "NCCLSCOPE_MAX_SIZE ({}) is reached", names::size(*limit)),
            AppendError::Write(error) => write!(f, "failed to write: {error}"),
        }
    }
}

impl Error for AppendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            AppendError::Write(error) => Some(error),
            AppendError::Compression | AppendError::MaxSize(_) => None,
        }
    }
}

/// A file that grows by chunks, up to a maximum size.
pub struct CaptureFile {
    file: Output,
    zlib: Compress,
    packed: Vec<u8>,
    max_size: u64,
}

impl CaptureFile {
    /// Creates the file at `path` in `folder`, readable by its owner only, and writes its head.
    ///
    /// # Errors
    ///
    /// The operating system's reason, also if the file exists.
    pub fn create(folder: &Descriptor, path: &Path, max_size: u64) -> std::io::Result<CaptureFile> {
        let mut file = Output::create(folder, path.to_owned(), 0)?;
        if let Append::Failed(why) = file.append(&write::head()) {
            file.remove();
            return Err(std::io::Error::other(why));
        }
        Ok(CaptureFile { file, zlib: Compress::new(Compression::fast(), true), packed: Vec::new(), max_size })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file itself.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.file
    }

    /// Closes the file and removes it.
    pub fn remove(self) {
        self.file.remove();
    }

    /// Appends a chunk of whole entries, if there is room.
    ///
    /// # Errors
    ///
    /// The reason, as a fragment. After that only the [end](CaptureFile::end) may be appended.
    pub fn append(&mut self, entries: &[u8]) -> Result<(), AppendError> {
        if !self.pack(entries) {
            return Err(AppendError::Compression);
        }
        if self.file.length() + self.packed.len() as u64 > self.max_size {
            return Err(AppendError::MaxSize(self.max_size));
        }
        match self.file.append(&self.packed) {
            Append::Failed(error) => Err(AppendError::Write(error)),
            Append::Done | Append::NearlyFull(_) => Ok(()),
        }
    }

    /// Marks the capture as ended before the recording, and returns the reason as a sentence. The
    /// mark takes 100 to 200 bytes.
    #[must_use]
    pub fn end(mut self, why: &str) -> String {
        let why = format!("{}: {why}; the capture ends here", self.path().display());
        if self.pack(&write::cut_short(&why)) {
            // On a full disk there is no mark, and a reader reports that the file was cut.
            let _ = self.file.append(&self.packed);
        }
        why
    }

    /// Compresses these entries into a chunk.
    fn pack(&mut self, entries: &[u8]) -> bool {
        self.zlib.reset();
        self.packed.clear();
        self.packed.reserve(8 + deflated_at_most(entries.len()));
        self.packed.extend((entries.len() as u32).to_le_bytes());
        self.packed.extend([0; 4]);
        let status = self.zlib.compress_vec(entries, &mut self.packed, FlushCompress::Finish);
        let packed = (self.packed.len() - 8) as u32;
        self.packed[4..8].copy_from_slice(&packed.to_le_bytes());
        matches!(status, Ok(Status::StreamEnd))
    }
}
