//! Captures: all that a recording read of the world, in a file, so that the recording can be made again from it.
//!
//! ```text
//!  magic 8 | format u32 | length u8, the plugin's version        the head
//!  length u32 | packed u32 | zlib stream                         a chunk: whole entries, one after the other
//!  length u32 | packed u32 | zlib stream                         ...
//! ```
//!
//! The file is a run of whole chunks, appended, and so good at every moment: a killed process loses the last one at most. An entry
//! is a tag and what belongs to it: an [`Input`](crate::pipeline::input::Input), a buffer of CUPTI's, or the capture's own begin and end. Numbers are
//! variable-length (LEB128), those that can be negative or grow slowly are differences to the one before, so entries are read from
//! the first on. docs/captures.md draws all of it.
//!
//! [`mod@write`] is in the plugin; the readers are the command line's.

#[cfg(feature = "cli")]
pub mod dictionary;
pub mod file;
#[cfg(feature = "cli")]
pub mod read;
#[cfg(feature = "cli")]
pub mod replay;
#[cfg(all(test, feature = "cli"))]
mod tests;
pub mod write;

/// What a capture begins with. The first byte is that of no text and of no packet; the last two show whether line ends were changed.
pub const MAGIC: [u8; 8] = *b"\x89NCCAP\r\n";
/// Bytes of the magic that tell a capture from all else; the others may have been changed with line ends.
const TELLING: usize = 6;
/// The format that is written. Whatever an older reader would not know or take for something else makes a new one: a new entry, another
/// layout of one, of a record of [`crate::model::event`] too.
pub const FORMAT: u32 = 1;
/// The oldest that is read.
pub const OLDEST: u32 = 1;
/// Most bytes of a chunk's entries: a buffer of CUPTI's with a thousand of the longest names is below that.
pub const MAX_CHUNK: usize = 64 << 20;

/// Whether a file that begins so is a capture.
#[must_use]
pub fn is_capture(head: &[u8]) -> bool {
    head.starts_with(&MAGIC[..TELLING])
}

/// What an entry is. The numbers never change their meaning.
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
    /// The capture ended before the recording; why.
    pub(crate) const CUT_SHORT: u8 = 19;
}

/// Whose text an answer is. The numbers never change their meaning.
pub(crate) mod key {
    pub(crate) const TEXT: u8 = 0;
    pub(crate) const FUNCTION: u8 = 1;
    pub(crate) const THREAD: u8 = 2;
}

/// What was asked of the process while a buffer was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The text at an address.
    Text(u64),
    /// The name of a function of CUDA's, by callback domain and number.
    Function(u32, u32),
    /// The name of a thread.
    Thread(i32),
}

/// Bytes of texts that are remembered on both sides before they are all forgotten, and told anew.
pub(crate) const REMEMBERED: usize = 16 << 20;

/// What lies between an entry and the one like it before, for both directions.
pub(crate) mod state {
    use crate::model::event::MAX_WORDS;

    /// What the next entries are differences to.
    pub(crate) struct Last {
        /// Of the last pass: ticks and host.
        pub(crate) ticks: u64,
        pub(crate) host: u64,
        /// Of the last record.
        pub(crate) record: u64,
        /// The five of the last reading.
        pub(crate) reading: [u64; 5],
        /// The words of the last record of each kind.
        words: Box<[[u64; MAX_WORDS]; KINDS]>,
    }

    /// Kinds of records end below this.
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
