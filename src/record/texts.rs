//! The numbers of recorded texts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::word::Word;

/// Most texts, a power of two. NCCL has some dozens.
const PLACES: usize = 1 << 15;
/// Places that are searched for a text.
const SEARCHED: usize = 64;
/// Added to a hash once the text is recorded.
const RECORDED: u64 = 1;

/// All texts of the process that have no fixed number, by their hashes. A text's place is its
/// number: every thread has the same one, and so has every rank, unless two texts want one place.
pub(super) struct Texts([AtomicU64; PLACES]);

const _: () = assert!(Word::FIRST_TEXT.0 as usize + PLACES <= Word::LOST.0 as usize);

impl Texts {
    pub(super) const fn new() -> Texts {
        Texts([const { AtomicU64::new(0) }; PLACES])
    }

    /// The word of a text. `record` records the text with this word, and says whether it could: it
    /// is called until it could once. [`Word::LOST`] if it could not, or if there is no place left.
    pub(super) fn word(&self, text: &[u8], record: impl FnOnce(Word) -> bool) -> Word {
        let hash = hash(text);
        for step in 0..SEARCHED {
            let number = ((hash >> (u64::BITS - PLACES.ilog2())) as usize + step) & (PLACES - 1);
            let Some(place) = self.0.get(number) else { break };
            let found = place.compare_exchange(0, hash, Ordering::Acquire, Ordering::Acquire);
            let found = found.unwrap_or_else(|found| found);
            if found != 0 && found & !RECORDED != hash {
                continue;
            }
            let word = Word(Word::FIRST_TEXT.0 + number as u16);
            // Two threads may record it at once, which does no harm.
            if found & RECORDED == 0 {
                if !record(word) {
                    break;
                }
                // Whoever sees this uses the word later than it was recorded.
                place.store(hash | RECORDED, Ordering::Release);
            }
            return word;
        }
        Word::LOST
    }
}

/// FNV-1a, spread to the high bits. Neither 0 nor [`RECORDED`].
fn hash(text: &[u8]) -> u64 {
    let hash = text
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !RECORDED | 2
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    static TEXTS: Texts = Texts::new();

    #[test]
    fn a_text_is_recorded_once_and_has_one_number_on_all_threads() {
        let names = ["AGxLL_R", "RSxLD_AGxST", "RailRing_LsaSTMC"];
        let words = || {
            let mut words = HashSet::new();
            // More calls than there are numbers.
            for call in 0..if cfg!(miri) { 200 } else { 70_000 } {
                words.insert(TEXTS.word(names[call % names.len()].as_bytes(), |_| call < 100));
            }
            words
        };
        let first = words();
        assert!(first.len() == names.len() && first.iter().all(|word| word.is_text()), "{first:?}");
        let others = std::thread::scope(|scope| [0, 1].map(|_| scope.spawn(words)).map(|it| it.join().unwrap()));
        assert!(others.iter().all(|words| *words == first), "{others:?}");
        // Where they come in another order, as on another rank.
        static ELSEWHERE: Texts = Texts::new();
        let elsewhere = names.iter().rev().map(|name| ELSEWHERE.word(name.as_bytes(), |_| true));
        assert_eq!(elsewhere.collect::<HashSet<_>>(), first);
    }

    #[test]
    fn a_text_that_finds_no_room_is_recorded_later() {
        static TEXTS: Texts = Texts::new();
        assert_eq!(TEXTS.word(b"later", |_| false), Word::LOST);
        let mut recorded = None;
        let word = TEXTS.word(b"later", |word| {
            recorded = Some(word);
            true
        });
        assert_eq!(recorded, Some(word));
        assert_eq!(TEXTS.word(b"later", |_| unreachable!("it is recorded")), word);
    }

    #[test]
    #[cfg_attr(miri, ignore = "too slow")]
    fn texts_beyond_the_last_number_are_lost_and_the_others_keep_theirs() {
        static TEXTS: Texts = Texts::new();
        let word = |number: usize| TEXTS.word(&number.to_le_bytes(), |_| true);
        let words: Vec<_> = (0..2 * PLACES).map(word).collect();
        let kept: Vec<_> = (0..2 * PLACES).filter(|number| words[*number] != Word::LOST).collect();
        assert!(kept.len() > PLACES / 2 && kept.len() <= PLACES, "{}", kept.len());
        assert_eq!(kept.iter().map(|number| words[*number]).collect::<HashSet<_>>().len(), kept.len());
        assert!(kept.iter().all(|number| word(*number) == words[*number]));
    }
}
