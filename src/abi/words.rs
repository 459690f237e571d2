//! Turns NCCL's C strings into [`Word`]s during the call.
//!
//! NCCL passes the same few static strings again and again, so each thread remembers them by
//! address. The content is compared every time: after NCCL is unloaded and loaded again, an address
//! can hold another string.

use std::cell::Cell;
use std::ffi::c_char;

use crate::model::event::TEXT_BYTES;
use crate::model::word::Word;
use crate::record::recorder;

/// One remembered string; fills a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    address: usize,
    word: Word,
    /// Length without the NUL, cut at [`TEXT_BYTES`].
    length: u8,
    /// The first bytes, zeros after the string's end.
    prefix: u128,
    /// A mask of the prefix bytes that belong to the string, its NUL included.
    mask: u128,
    /// FNV-1a hash of what follows the prefix, if the string is longer.
    rest: u64,
}

const PREFIX: usize = size_of::<u128>();
const ENTRIES: usize = 64;
const EMPTY: Entry = Entry { address: 0, word: Word::ABSENT, length: 0, prefix: 0, mask: 0, rest: 0 };

/// A thread's memory of NCCL's strings.
pub(super) struct Words([Cell<Entry>; ENTRIES]);

thread_local! {
    static WORDS: Words = const { Words([const { Cell::new(EMPTY) }; ENTRIES]) };
}

/// Calls `body` with the thread's words. Reaching the thread-local costs as much as the rest of a
/// look-up, so it is done once for all strings of a descriptor.
#[inline]
pub(super) fn with_words<T>(body: impl FnOnce(&Words) -> T) -> T {
    WORDS.with(body)
}

/// The word for a string that is nearly always null, and then costs nothing.
///
/// # Safety
///
/// As for [`Words::word`].
#[inline]
pub(super) unsafe fn rare_word(text: *const c_char) -> Word {
    if text.is_null() {
        return Word::ABSENT;
    }
    // SAFETY: the caller's promise.
    with_words(|words| unsafe { words.word(text) })
}

impl Words {
    /// The word for one of NCCL's strings.
    ///
    /// # Safety
    ///
    /// `text` is null, or points at a NUL-terminated string that nobody changes during the call.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "`home` is within the table")]
    pub(super) unsafe fn word(&self, text: *const c_char) -> Word {
        if text.is_null() {
            return Word::ABSENT;
        }
        let entry = &self.0[home(text)];
        // SAFETY: the caller's promise.
        if unsafe { still_holds(entry, text) } {
            return entry.get().word;
        }
        // SAFETY: the caller's promise.
        unsafe { self.word_elsewhere(text) }
    }

    /// As [`Words::word`], for a string that is not at its first place: it is at its second, or
    /// new.
    ///
    /// # Safety
    ///
    /// As for [`Words::word`], and not null.
    #[cold]
    #[inline(never)]
    #[expect(clippy::indexing_slicing, reason = "`home` is within the table, whose length is even")]
    unsafe fn word_elsewhere(&self, text: *const c_char) -> Word {
        let (first, second) = (home(text), home(text) ^ 1);
        // SAFETY: the caller's promise.
        if unsafe { still_holds(&self.0[second], text) } {
            return self.0[second].get().word;
        }
        // SAFETY: the caller's promise.
        let entry = unsafe { look_up(text) };
        if entry.word != Word::LOST {
            let place = if self.0[first].get().address == 0 { first } else { second };
            self.0[place].set(entry);
        }
        entry.word
    }
}

/// The first place of a string in the table.
#[inline]
fn home(text: *const c_char) -> usize {
    ((text as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % ENTRIES
}

/// Whether this entry is for that address, and the address still holds the same string.
///
/// # Safety
///
/// `text` points at a NUL-terminated string.
#[inline]
unsafe fn still_holds(entry: &Cell<Entry>, text: *const c_char) -> bool {
    let entry = entry.get();
    if entry.address != text as usize {
        return false;
    }
    // SAFETY: the caller's promise.
    let same = unsafe { prefix(text) } & entry.mask == entry.prefix;
    // SAFETY: the caller's promise, and the prefix was just seen to contain no NUL.
    same && (usize::from(entry.length) < PREFIX || unsafe { rest(text) } == (usize::from(entry.length), entry.rest))
}

/// The first 16 bytes at `text`, in memory order; bytes after the NUL are arbitrary.
///
/// # Safety
///
/// `text` points at a NUL-terminated string.
#[inline]
unsafe fn prefix(text: *const c_char) -> u128 {
    const PAGE: usize = 4096;
    let fits_page = text as usize % PAGE <= PAGE - PREFIX;
    if cfg!(any(miri, sanitize_build)) || !fits_page {
        let mut bytes = [0_u8; PREFIX];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: no byte before this one was the NUL, so this one belongs to the string.
            *byte = unsafe { *text.add(offset) } as u8;
            if *byte == 0 {
                break;
            }
        }
        return u128::from_le_bytes(bytes);
    }
    // SAFETY: the string's first byte is readable and the load stays in its page, so it cannot
    // fault. Bytes after the NUL may belong to something else; they are masked away before anything
    // depends on them.
    u128::from_le_bytes(unsafe { text.cast::<[u8; PREFIX]>().read_unaligned() })
}

/// The length, cut at [`TEXT_BYTES`], and the hash of what follows the prefix.
///
/// # Safety
///
/// `text` points at a NUL-terminated string of at least [`PREFIX`] bytes.
unsafe fn rest(text: *const c_char) -> (usize, u64) {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for offset in PREFIX..TEXT_BYTES {
        // SAFETY: no byte before this one was the NUL.
        let byte = unsafe { *text.add(offset) } as u8;
        if byte == 0 {
            return (offset, hash);
        }
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (TEXT_BYTES, hash)
}

/// # Safety
///
/// `text` points at a NUL-terminated string.
#[cold]
#[expect(clippy::indexing_slicing, reason = "`length` is at most `TEXT_BYTES`, and `kept` at most both lengths")]
unsafe fn look_up(text: *const c_char) -> Entry {
    let mut bytes = [0_u8; TEXT_BYTES];
    let mut length = 0;
    while length < TEXT_BYTES {
        // SAFETY: no byte before this one was the NUL.
        let byte = unsafe { *text.add(length) } as u8;
        if byte == 0 {
            break;
        }
        bytes[length] = byte;
        length += 1;
    }
    let word = match Word::known(&bytes[..length]) {
        Some(word) => word,
        // NCCL passes an empty string for "none": the protocol of a symmetric kernel.
        None if length == 0 => Word::ABSENT,
        None if length == TEXT_BYTES => recorder::text(cut(&mut { bytes })),
        None => recorder::text(&bytes[..length]),
    };
    let mut prefix = [0; PREFIX];
    let kept = length.min(PREFIX);
    prefix[..kept].copy_from_slice(&bytes[..kept]);
    Entry {
        address: text as usize,
        length: length as u8,
        word,
        prefix: u128::from_le_bytes(prefix),
        mask: if length < PREFIX { u128::MAX >> (8 * (PREFIX - 1 - length)) } else { u128::MAX },
        // SAFETY: the string was just seen to be that long.
        rest: if length < PREFIX { 0 } else { unsafe { rest(text) }.1 },
    }
}

/// Marks a text that was cut: its last bytes become an ellipsis, placed on a character boundary.
#[expect(clippy::indexing_slicing, reason = "the ellipsis is shorter than the text, and `end` only shrinks")]
fn cut(text: &mut [u8; TEXT_BYTES]) -> &[u8] {
    const ELLIPSIS: &[u8] = "…".as_bytes();
    let mut end = TEXT_BYTES - ELLIPSIS.len();
    while end > 0 && text[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    text[end..end + ELLIPSIS.len()].copy_from_slice(ELLIPSIS);
    &text[..end + ELLIPSIS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word_of(text: &[u8]) -> Word {
        // SAFETY: every caller passes a NUL-terminated literal or buffer.
        with_words(|words| unsafe { words.word(text.as_ptr().cast()) })
    }

    #[test]
    fn known_words_are_found_every_time() {
        for _ in 0..3 {
            assert_eq!(word_of(b"AllReduce\0"), Word::ALL_REDUCE);
            assert_eq!(word_of(b"ncclFloat8e4m3\0"), Word::FLOAT8_E4M3);
            assert_eq!(word_of(b"RING\0"), Word::RING);
        }
        // SAFETY: null is allowed.
        assert_eq!(with_words(|words| unsafe { words.word(std::ptr::null()) }), Word::ABSENT);
    }

    #[test]
    fn an_address_with_new_content_is_noticed() {
        let mut buffer = *b"AllReduce\0\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5";
        assert_eq!(word_of(&buffer), Word::ALL_REDUCE);
        buffer[10..].fill(0x5a);
        assert_eq!(word_of(&buffer), Word::ALL_REDUCE, "bytes behind the NUL do not matter");
        buffer[..10].copy_from_slice(b"Broadcast\0");
        assert_eq!(word_of(&buffer), Word::BROADCAST);
        buffer[..7].copy_from_slice(b"Reduce\0");
        assert_eq!(word_of(&buffer), Word::REDUCE, "shorter than before");
        buffer[..14].copy_from_slice(b"ReduceScatter\0");
        assert_eq!(word_of(&buffer), Word::REDUCE_SCATTER, "longer than before");
    }

    #[test]
    fn a_string_at_the_end_of_a_page_is_not_read_past_it() {
        // SAFETY: a fresh private mapping of two pages, of which the second is made unreadable;
        // only the first is touched, and both are unmapped at the end.
        unsafe {
            let page = 4096;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.add(page), page, libc::PROT_NONE), 0);
            let text = b"TREE\0";
            let at = base.cast::<u8>().add(page - text.len());
            at.copy_from_nonoverlapping(text.as_ptr(), text.len());
            for _ in 0..3 {
                assert_eq!(with_words(|words| words.word(at.cast())), Word::TREE);
            }
            libc::munmap(base, 2 * page);
        }
    }
}
