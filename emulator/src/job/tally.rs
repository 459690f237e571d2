//! The number of results that were compared, and of those that were wrong. They are counted in a
//! file, so that they are known even of a process that was killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use elements::data::Mismatch;

/// How many wrong results are described; the others are only counted.
const TOLD: u64 = 10;

/// The results of one process.
#[derive(Debug)]
pub(super) struct Tally {
    file: File,
    counts: Mutex<(u64, u64)>,
}

impl Tally {
    /// Creates the file to count in.
    pub(super) fn create(path: &Path) -> io::Result<Tally> {
        Ok(Tally { file: File::create(path)?, counts: Mutex::default() })
    }

    /// Counts a result. A wrong one is reported on stderr, with what it was a result of.
    pub(super) fn count(&self, result: &Result<(), Mismatch>, of: impl Fn() -> String) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 += 1;
        if let Err(mismatch) = result {
            counts.1 += 1;
            if counts.1 <= TOLD {
                eprintln!("emulator: wrong result: {}: {mismatch}", of());
            }
            if counts.1 == TOLD {
                eprintln!("emulator: further wrong results are counted only");
            }
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&counts.0.to_ne_bytes());
        bytes[8..].copy_from_slice(&counts.1.to_ne_bytes());
        // A full disk makes the count in the file too low, but the process's exit status is still
        // right.
        let _ = self.file.write_all_at(&bytes, 0);
    }

    /// How many results were compared, and how many of them were wrong.
    pub(super) fn counts(&self) -> (u64, u64) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts in a file: results, and wrong ones. A process that compared nothing has counted
/// nothing.
pub(crate) fn read(path: &Path) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap_or_default();
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    (number(0), number(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tally");
        assert_eq!(read(&path), (0, 0));
        let tally = Tally::create(&path).unwrap();
        assert_eq!(read(&path), (0, 0));
        let wrong = Err(Mismatch { element: 3, got: 1.0, expected: 2.0 });
        for result in [Ok(()), wrong, Ok(())] {
            tally.count(&result, || "a test".into());
        }
        assert_eq!(read(&path), (3, 1));
        assert_eq!(tally.counts(), (3, 1));
    }
}
