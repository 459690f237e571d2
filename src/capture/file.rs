//! The capture's file, on the writing thread.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::{Compress, Compression, FlushCompress, Status};

use super::write;

/// A file that grows by chunks up to a size.
pub struct CaptureFile {
    file: File,
    path: PathBuf,
    zlib: Compress,
    packed: Vec<u8>,
    written: u64,
    max_size: u64,
}

impl CaptureFile {
    /// A new file, readable by its owner only, with its head.
    ///
    /// # Errors
    ///
    /// What the operating system says against it; among that, that it exists.
    pub fn create(path: &Path, max_size: u64) -> std::io::Result<CaptureFile> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let head = write::head();
        file.write_all(&head)?;
        Ok(CaptureFile {
            file,
            path: path.to_owned(),
            zlib: Compress::new(Compression::fast(), true),
            packed: Vec::new(),
            written: head.len() as u64,
            max_size,
        })
    }

    /// Appends a chunk of whole entries, where there is room.
    ///
    /// # Errors
    ///
    /// Why there is none, as a fragment. Nothing may be appended then but the [end](CaptureFile::end).
    pub fn append(&mut self, entries: &[u8]) -> Result<(), String> {
        if !self.pack(entries) {
            return Err("a chunk cannot be compressed".into());
        }
        if self.written + self.packed.len() as u64 > self.max_size {
            let limit = crate::trace::names::size(self.max_size);
            return Err(format!("NCCLSCOPE_MAX_SIZE ({limit}) is reached"));
        }
        // A part of the chunk may be in the file then: a reader leaves out such a tail.
        self.file.write_all(&self.packed).map_err(|error| format!("failed to write: {error}"))?;
        self.written += self.packed.len() as u64;
        Ok(())
    }

    /// Marks the capture as ended before the recording, and answers that in a sentence. The mark takes a hundred bytes or two.
    #[must_use]
    pub fn end(mut self, why: &str) -> String {
        let why = format!("{}: {why}; the capture ends here", self.path.display());
        if self.pack(&write::cut_short(&why)) {
            // Where the disk is full there is no mark, and a reader says that the file was cut.
            let _ = self.file.write_all(&self.packed);
        }
        why
    }

    /// Makes a chunk of these entries.
    fn pack(&mut self, entries: &[u8]) -> bool {
        self.zlib.reset();
        self.packed.clear();
        // More than deflate ever adds: 5 bytes a block of 16 KiB and a frame.
        self.packed.reserve(8 + entries.len() + entries.len() / 1000 + 64);
        self.packed.extend((entries.len() as u32).to_le_bytes());
        self.packed.extend([0; 4]);
        let status = self.zlib.compress_vec(entries, &mut self.packed, FlushCompress::Finish);
        let packed = (self.packed.len() - 8) as u32;
        self.packed[4..8].copy_from_slice(&packed.to_le_bytes());
        matches!(status, Ok(Status::StreamEnd))
    }
}
