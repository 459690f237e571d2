//! What the process answered while its buffers were decoded, for decoding them again (pure).

use std::ffi::c_char;
use std::sync::Arc;

use cupti_sys::records::{End, Table, Walker};
use rustc_hash::FxHashMap;

use super::Key;
use crate::cupti::decode::Outside;

/// A new answer: the number of the lookup in its buffer, counted from 0, that it answered first;
/// the question; and the text.
pub type Answer = (u64, Key, Arc<str>);

/// The steps of a walk through a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// How many steps of how many bytes, in order.
    pub runs: Vec<(u64, u64)>,
    /// Whether the walk reached the buffer's end.
    pub is_whole: bool,
}

/// The newest answer to each question so far.
#[derive(Debug, Default)]
pub struct Dictionary {
    known: FxHashMap<Key, Arc<str>>,
}

/// Gives the answers while one buffer is decoded.
pub struct Answering<'d> {
    dictionary: &'d mut Dictionary,
    lookups: u64,
    fresh: &'d [Answer],
}

/// Repeats a recorded walk.
pub struct Again<'s> {
    runs: &'s [(u64, u64)],
    is_whole: bool,
    done: u64,
    at: usize,
}

impl Steps {
    /// A walker that repeats these steps.
    #[must_use]
    pub fn again(&self) -> Again<'_> {
        Again { runs: &self.runs, is_whole: self.is_whole, done: 0, at: 0 }
    }
}

impl Walker for Again<'_> {
    fn next(&mut self, _: &Table, _: &[u8], at: Option<usize>) -> Result<usize, End> {
        let Some((&(count, step), rest)) = self.runs.split_first() else {
            return Err(if self.is_whole { End::Done } else { End::Strayed { at } });
        };
        self.done += 1;
        if self.done >= count {
            (self.runs, self.done) = (rest, 0);
        }
        // The caller checks each position against the buffer.
        self.at = self.at.saturating_add(usize::try_from(step).unwrap_or(usize::MAX));
        Ok(self.at)
    }
}

impl Dictionary {
    /// Starts a buffer with the answers that are new in it.
    pub fn answering<'d>(&'d mut self, fresh: &'d [Answer]) -> Answering<'d> {
        Answering { dictionary: self, lookups: 0, fresh }
    }

    fn learn(&mut self, (_, key, text): &Answer) {
        self.known.insert(*key, Arc::clone(text));
    }
}

impl Answering<'_> {
    fn answer(&mut self, key: Key) -> Arc<str> {
        while let Some((answer, rest)) = self.fresh.split_first()
            && answer.0 <= self.lookups
        {
            self.dictionary.learn(answer);
            self.fresh = rest;
        }
        self.lookups += 1;
        if let Some(known) = self.dictionary.known.get(&key) {
            return Arc::clone(known);
        }
        // Another version may ask in another order.
        let later = self.fresh.iter().find(|(_, of, _)| *of == key);
        later.map_or_else(|| "(unknown)".into(), |(_, _, text)| Arc::clone(text))
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.fresh.iter().for_each(|answer| self.dictionary.learn(answer));
    }
}

impl Outside for Answering<'_> {
    fn text(&mut self, address: *const c_char) -> Arc<str> {
        self.answer(Key::Text(address.addr() as u64))
    }

    fn function(&mut self, domain: u32, id: u32) -> Arc<str> {
        self.answer(Key::Function(domain, id))
    }

    fn thread(&mut self, tid: i32) -> Arc<str> {
        self.answer(Key::Thread(tid))
    }
}
