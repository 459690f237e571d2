//! Turns NCCL's C strings into [`Word`]s during the call.
//!
//! NCCL passes the same few static strings again and again, so each thread remembers them by
//! address. The content is compared every time: after NCCL is unloaded and loaded again, an address
//! can hold another string.

use std::cell::Cell;
use std::ffi::c_char;

use crate::model::event::TEXT_BYTES;
use crate::model::word::Word;

/// One remembered string; fills a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entry {
    /// Where the string is. [`SLOW`] is added if comparing 16 bytes is not enough or not allowed:
    /// the string is longer, or near the end of its page.
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

/// No string of a process has an address so high.
const SLOW: usize = 1 << (usize::BITS - 1);
const PREFIX: usize = size_of::<u128>();
const ENTRIES: usize = 64;
const EMPTY: Entry = Entry { address: usize::MAX, word: Word::ABSENT, length: 0, prefix: 0, mask: 0, rest: 0 };

/// A thread's memory of NCCL's strings.
pub(super) struct Words([Cell<Entry>; ENTRIES]);

impl Words {
    pub(super) const fn new() -> Words {
        Words([const { Cell::new(EMPTY) }; ENTRIES])
    }

    /// The words for some of NCCL's strings: one comparison of each, and one branch for the
    /// contents of all of them.
    ///
    /// # Safety
    ///
    /// Each text is null, or points at a NUL-terminated string that nobody changes during the call.
    #[inline(always)]
    pub(super) unsafe fn all<const N: usize>(&self, texts: [*const c_char; N]) -> [Word; N] {
        let mut words = [Word::ABSENT; N];
        let mut differ = 0;
        for (word, text) in words.iter_mut().zip(texts) {
            let Some(entry) = self.place(text, text as usize) else {
                // SAFETY: the caller's promise.
                return unsafe { self.each(texts) };
            };
            let entry = entry.get();
            // SAFETY: the caller's promise; an entry without `SLOW` was made because the 16 bytes
            // at its address lie in one page.
            differ |= (unsafe { sixteen(text) } ^ entry.prefix) & entry.mask;
            *word = entry.word;
        }
        if differ == 0 {
            return words;
        }
        // SAFETY: the caller's promise.
        unsafe { self.each(texts) }
    }

    /// As [`Words::all`], for strings that may be new.
    ///
    /// # Safety
    ///
    /// As for [`Words::all`].
    #[cold]
    #[inline(never)]
    unsafe fn each<const N: usize>(&self, texts: [*const c_char; N]) -> [Word; N] {
        // SAFETY: the caller's promise.
        texts.map(|text| unsafe { self.one(text) })
    }

    /// Where this string is remembered, if it is: at the first or the second place for it.
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "`home` is within the table, which has an even length")]
    fn place(&self, text: *const c_char, address: usize) -> Option<&Cell<Entry>> {
        let (first, second) = (&self.0[home(text)], &self.0[home(text) ^ 1]);
        if first.get().address == address {
            return Some(first);
        }
        (second.get().address == address).then_some(second)
    }

    /// As [`Words::all`], for one string that may be new.
    ///
    /// # Safety
    ///
    /// As for [`Words::all`].
    #[inline(never)]
    #[expect(clippy::indexing_slicing, reason = "`home` is within the table, which has an even length")]
    unsafe fn one(&self, text: *const c_char) -> Word {
        if text.is_null() {
            return Word::ABSENT;
        }
        let known = self.place(text, text as usize).or_else(|| self.place(text, text as usize | SLOW));
        if let Some(entry) = known {
            let entry = entry.get();
            // SAFETY: the caller's promise.
            if unsafe { still_holds(&entry, text) } {
                return entry.word;
            }
        }
        // SAFETY: the caller's promise.
        let entry = unsafe { look_up(text) };
        if entry.word != Word::LOST {
            let first = &self.0[home(text)];
            let place = if first.get().address == usize::MAX { first } else { &self.0[home(text) ^ 1] };
            known.unwrap_or(place).set(entry);
        }
        entry.word
    }
}

/// The first place of a string in the table.
#[inline]
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
fn home(text: *const c_char) -> usize {
    ((text as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % ENTRIES
}

/// Whether the address still holds the string that was remembered for it.
///
/// # Safety
///
/// `text` points at a NUL-terminated string.
unsafe fn still_holds(entry: &Entry, text: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    let same = unsafe { prefix(text) } & entry.mask == entry.prefix;
    // SAFETY: the caller's promise, and the prefix was just seen to contain no NUL.
    same && (usize::from(entry.length) < PREFIX || unsafe { rest(text) } == (usize::from(entry.length), entry.rest))
}

/// Whether the 16 bytes at `text` can be read whatever they are: they lie in one page. Tools that
/// check every access do not know that.
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
fn may_look_ahead(text: *const c_char) -> bool {
    const PAGE: usize = 4096;
    !cfg!(any(miri, sanitize_build)) && text as usize % PAGE <= PAGE - PREFIX
}

/// The 16 bytes at `text`, in memory order; bytes after the NUL are arbitrary.
///
/// # Safety
///
/// `text` points at a NUL-terminated string, and [`may_look_ahead`] there.
#[inline(always)]
unsafe fn sixteen(text: *const c_char) -> u128 {
    // SAFETY: the string's first byte is readable and the load stays in its page, so it cannot
    // fault. Bytes after the NUL may belong to something else; they are masked away before anything
    // depends on them.
    u128::from_le_bytes(unsafe { text.cast::<[u8; PREFIX]>().read_unaligned() })
}

/// The same for any string: bytes after the NUL are arbitrary.
///
/// # Safety
///
/// `text` points at a NUL-terminated string.
unsafe fn prefix(text: *const c_char) -> u128 {
    if may_look_ahead(text) {
        // SAFETY: the caller's promise.
        return unsafe { sixteen(text) };
    }
    let mut bytes = [0_u8; PREFIX];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: no byte before this one was the NUL, so this one belongs to the string.
        *byte = unsafe { *text.add(offset) } as u8;
        if *byte == 0 {
            break;
        }
    }
    u128::from_le_bytes(bytes)
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

/// A string, cut at [`TEXT_BYTES`].
pub(super) struct Read {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

/// Copies a string.
///
/// # Safety
///
/// `text` points at a NUL-terminated string.
#[cold]
#[expect(clippy::indexing_slicing, reason = "`length` is less than `TEXT_BYTES`")]
pub(super) unsafe fn read(text: *const c_char) -> Read {
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
    Read { bytes, length }
}

impl Read {
    /// Its word; one that has no fixed number is recorded first.
    #[expect(clippy::indexing_slicing, reason = "`length` is at most `TEXT_BYTES`")]
    pub(super) fn word(&self, record: impl FnOnce(&[u8]) -> Word) -> Word {
        match Word::known(&self.bytes[..self.length]) {
            Some(word) => word,
            // NCCL passes an empty string for "none": the protocol of a symmetric kernel.
            None if self.length == 0 => Word::ABSENT,
            None if self.length == TEXT_BYTES => record(cut(&mut { self.bytes })),
            None => record(&self.bytes[..self.length]),
        }
    }
}

/// # Safety
///
/// `text` points at a NUL-terminated string.
#[cold]
#[expect(clippy::indexing_slicing, reason = "`kept` is at most both lengths")]
unsafe fn look_up(text: *const c_char) -> Entry {
    // SAFETY: the caller's promise.
    let copy = unsafe { read(text) };
    let Read { bytes, length } = copy;
    let word = copy.word(super::text);
    let mut prefix = [0; PREFIX];
    let kept = length.min(PREFIX);
    prefix[..kept].copy_from_slice(&bytes[..kept]);
    let slow = length >= PREFIX || !may_look_ahead(text);
    Entry {
        address: text as usize | if slow { SLOW } else { 0 },
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
    use super::super::{rare_word, words};
    use super::*;

    fn word_of(text: &[u8]) -> Word {
        // SAFETY: every caller passes a NUL-terminated literal or buffer.
        unsafe { rare_word(text.as_ptr().cast()) }
    }

    #[test]
    fn known_words_are_found_every_time() {
        for _ in 0..3 {
            assert_eq!(word_of(b"AllReduce\0"), Word::ALL_REDUCE);
            assert_eq!(word_of(b"ncclFloat8e4m3\0"), Word::FLOAT8_E4M3);
            assert_eq!(word_of(b"RING\0"), Word::RING);
        }
        let [first, none, last] = [c"RING".as_ptr(), std::ptr::null(), c"LL".as_ptr()];
        // SAFETY: literals, and null is allowed.
        assert_eq!(unsafe { words([first, none, last]) }, [Word::RING, Word::ABSENT, Word::LL]);
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
    fn memory_that_is_used_again_is_noticed_whatever_was_in_it() {
        // More addresses than there are places, and random bytes behind each string.
        let known: Vec<&str> = (0..60).filter_map(|number| Word(number).spelling()).chain([""]).collect();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |end: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % end
        };
        let mut memory = [([0_u8; 24], Word::ABSENT); 3 * ENTRIES];
        for _ in 0..if cfg!(miri) { 500 } else { 200_000 } {
            let (bytes, word) = &mut memory[below(3 * ENTRIES)];
            let text = known[below(known.len())];
            bytes.fill_with(|| below(256) as u8);
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            bytes[text.len()] = 0;
            *word = Word::known(text.as_bytes()).unwrap_or(Word::ABSENT);
            // Few addresses again and again, as NCCL has them, and all others now and then.
            let span = if below(4) == 0 { 3 * ENTRIES } else { 12 };
            let picked: [_; 4] = std::array::from_fn(|_| &memory[below(span)]);
            // SAFETY: each buffer holds a NUL, which was just put there or is all that it has.
            let found = unsafe { words(picked.map(|(bytes, _)| bytes.as_ptr().cast())) };
            assert_eq!(found, picked.map(|(_, word)| *word));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no mprotect")]
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
                assert_eq!(rare_word(at.cast()), Word::TREE);
            }
            libc::munmap(base, 2 * page);
        }
    }
}
