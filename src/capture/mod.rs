//! Captures: everything that a recording read from outside, in a file from which the recording can
//! be made again.
//!
//! ```text
//! magic 8 | format u32 | length u8, the plugin's version        the head
//! length u32 | packed u32 | zlib stream                         a chunk of whole entries
//! length u32 | packed u32 | zlib stream                         ...
//! ```
//!
//! Whole chunks are appended to the file, so it is valid at every moment: a killed process loses at
//! most the last chunk. An entry is a tag and its values: an
//! [`Input`](crate::pipeline::input::Input), one of CUPTI's buffers, or the capture's own beginning
//! and end. Numbers are variable-length (LEB128); those that can be negative or that grow slowly
//! are stored as differences from the previous one, so entries can only be read from the first one
//! on. docs/captures.md has the whole format.
//!
//! [`mod@write`] is in the plugin; the readers are part of the command line.

#[cfg(feature = "cli")]
pub mod dictionary;
pub mod file;
#[cfg(feature = "cli")]
pub mod read;
#[cfg(feature = "cli")]
pub mod replay;
#[cfg(all(test, feature = "cli"))]
mod restart_tests;
#[cfg(all(test, feature = "cli"))]
mod tests;
pub mod write;

/// The first bytes of a capture. No text and no packet starts with the first byte; the last two
/// show whether line ends were converted.
pub const MAGIC: [u8; 8] = *b"\x89NCCAP\r\n";
/// Bytes of the magic that identify a capture; a conversion of line ends may have changed the
/// others.
const TELLING: usize = 6;
/// The format that is written. It changes with everything that an older reader would not know or
/// would misread: a new entry, or a new layout of an entry or of a record of
/// [`crate::model::event`].
pub const FORMAT: u32 = 5;
/// The oldest format that can be read.
pub const OLDEST: u32 = 1;
/// Most bytes of a chunk's entries, more than a buffer of CUPTI's with a thousand of the longest
/// names.
pub const MAX_CHUNK: usize = 64 << 20;

/// Whether a file that starts with `head` is a capture.
#[must_use]
pub fn is_capture(head: &[u8]) -> bool {
    head.starts_with(&MAGIC[..TELLING])
}

/// The kinds of entries. A number never changes its meaning.
pub(crate) mod tag {
    pub(crate) const BEGIN: u8 = 1;
    pub(crate) const RECORD: u8 = 2;
    pub(crate) const PASS: u8 = 3;
    pub(crate) const READING: u8 = 4;
    pub(crate) const BUFFER: u8 = 5;
    pub(crate) const STANDING: u8 = 6;
    pub(crate) const DUE: u8 = 7;
    pub(crate) const DUE_ALL: u8 = 8;
    pub(crate) const DRAW: u8 = 9;
    pub(crate) const ADVANCE: u8 = 10;
    pub(crate) const SHARES: u8 = 11;
    pub(crate) const DROPPED: u8 = 12;
    pub(crate) const LEVEL: u8 = 13;
    pub(crate) const FLUSH: u8 = 14;
    pub(crate) const NOTE: u8 = 15;
    pub(crate) const KERNELS: u8 = 16;
    pub(crate) const EXTERNAL_IDS: u8 = 17;
    pub(crate) const END: u8 = 18;
    /// The capture ended before the recording, with the reason.
    pub(crate) const CUT_SHORT: u8 = 19;
    pub(crate) const CPU_WAITS: u8 = 20;
}

/// The kinds of questions that an answer can belong to. A number never changes its meaning.
pub(crate) mod key {
    pub(crate) const TEXT: u8 = 0;
    pub(crate) const FUNCTION: u8 = 1;
    pub(crate) const THREAD: u8 = 2;
}

/// A question to the process while a buffer was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The text at an address.
    Text(u64),
    /// The name of a CUDA function, by callback domain and id.
    Function(u32, u32),
    /// The name of a thread, by its id.
    Thread(i32),
}

/// Texts that the writer remembers to have recorded, and their bytes. Beyond it all are forgotten,
/// and recorded anew where they are needed again.
pub(crate) const REMEMBERED: usize = 4096;
pub(crate) const REMEMBERED_BYTES: usize = 512 << 10;

/// The previous values that entries are stored as differences from, for writing and reading.
pub(crate) mod state {
    use crate::model::event::MAX_WORDS;

    /// The previous values.
    pub(crate) struct Last {
        /// Of the last pass: ticks and host time.
        pub(crate) ticks: u64,
        pub(crate) host: u64,
        /// The time of the last record.
        pub(crate) record: u64,
        /// The five values of the last reading.
        pub(crate) reading: [u64; 5],
        /// The words of the last record of each kind.
        words: Box<[[u64; MAX_WORDS]; KINDS]>,
    }

    /// The kinds of records are below this.
    const KINDS: usize = 64;

    impl Last {
        pub(crate) fn new() -> Last {
            let words = Box::new([[0; MAX_WORDS]; KINDS]);
            Last { ticks: 0, host: 0, record: 0, reading: [0; 5], words }
        }

        /// The words of the last record of this kind.
        pub(crate) fn words(&mut self, kind: u8) -> &mut [u64; MAX_WORDS] {
            &mut self.words[usize::from(kind) % KINDS]
        }
    }
}
