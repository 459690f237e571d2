//! Turns inputs into bytes (pure). It runs on the collector's thread, so nothing is compressed
//! here.

use std::ffi::c_char;
use std::sync::Arc;

use cupti_sys::records::{End, Table, Walker};
use rustc_hash::FxHashMap;

use super::state::Last;
use super::{FORMAT, Key, MAGIC, REMEMBERED, REMEMBERED_BYTES, key, tag};
use crate::cupti::clock::{Reading, Stamp};
use crate::cupti::decode::Outside;
use crate::cupti::intake::{Source, Standing};
use crate::model::event;
use crate::model::ids::RingId;
use crate::model::time::HostNs;
use crate::pipeline::input::{Begin, Ending, Input, Level};
use crate::trace::tracks::Stages;

/// Bytes of entries after which a chunk is full.
const CHUNK: usize = 256 << 10;

/// Turns what a recording reads into the entries of a capture.
pub struct Encoder {
    out: Vec<u8>,
    last: Last,
    told: Told,
}

/// The head of a file.
#[must_use]
pub fn head() -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let mut out = MAGIC.to_vec();
    out.extend(FORMAT.to_le_bytes());
    out.push(version.len() as u8);
    out.extend(version);
    out
}

/// The entry that says why the capture ended before the recording.
#[must_use]
pub(crate) fn cut_short(why: &str) -> Vec<u8> {
    let mut out = vec![tag::CUT_SHORT];
    text(&mut out, why);
    out
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    /// An encoder for a new capture.
    #[must_use]
    pub fn new() -> Encoder {
        Encoder { out: Vec::new(), last: Last::new(), told: Told::default() }
    }

    /// Whether enough entries are waiting for a chunk.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.out.len() >= CHUNK
    }

    /// The entries since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let spare = self.out.capacity();
        std::mem::replace(&mut self.out, Vec::with_capacity(spare.min(CHUNK * 2)))
    }

    /// Writes what the recording begins with, and whether its chunks are compressed. Must come
    /// first.
    pub fn begin(&mut self, begin: &Begin, compress: bool) {
        let Begin {
            tag: mark,
            clocks,
            process,
            stages,
            complaints,
            attributes,
            first_words,
            capture,
            first,
            selection,
        } = begin;
        let out = &mut self.out;
        out.push(tag::BEGIN);
        out.push(u8::from(compress));
        number(out, u64::from(mark.bits()));
        [clocks.boottime.0, clocks.monotonic, clocks.realtime].into_iter().for_each(|time| number(out, time));
        signed(out, i64::from(process.pid));
        text(out, &process.name);
        texts(out, &process.labels);
        optional(out, process.rank.map(u64::from));
        optional(out, process.world_size.map(u64::from));
        out.push(match stages {
            None => 0,
            Some(Stages::Alone) => 1,
            Some(Stages::Beside) => 2,
        });
        texts(out, complaints);
        number(out, attributes.len() as u64);
        for (name, value) in attributes {
            text(out, name);
            text(out, value);
        }
        text(out, first_words);
        out.push(u8::from(capture.is_some()));
        capture.iter().for_each(|name| text(out, name));
        number(out, first.ticks.0);
        number(out, first.host.0);
        number(out, u64::from(first.error_ns));
        let parts = selection.parts();
        number(out, parts.len() as u64);
        for (part, value) in &parts {
            text(out, part);
            text(out, value);
        }
        (self.last.ticks, self.last.host, self.last.record) = (first.ticks.0, first.host.0, first.ticks.0);
    }

    /// Writes an input of the pipeline.
    #[inline]
    pub fn input(&mut self, input: &Input<'_>) {
        match *input {
            Input::Record { ring, words } => self.record(ring, words),
            ref other => self.other(other),
        }
    }

    /// Writes one of CUPTI's buffers. `decode` decodes it with wrappers of `walker` and `outside`,
    /// which record the steps of the walk and the answers.
    pub fn buffer<W: Walker, O: Outside>(
        &mut self,
        now: HostNs,
        bytes: &[u8],
        walker: W,
        outside: &mut O,
        decode: impl FnOnce(Steps<'_, W>, &mut Asked<'_, O>),
    ) {
        let mut steps = Vec::new();
        let mut is_whole = false;
        let mut asked = Asked { outside, told: &mut self.told, lookups: 0, answers: Vec::new() };
        decode(Steps { walker, at: 0, runs: &mut steps, is_whole: &mut is_whole }, &mut asked);
        let answers = asked.answers;
        let out = &mut self.out;
        out.push(tag::BUFFER);
        difference(out, now.0, self.last.host);
        number(out, bytes.len() as u64);
        out.extend(bytes);
        out.push(u8::from(is_whole));
        number(out, steps.len() as u64);
        for (count, step) in steps {
            number(out, count);
            number(out, step);
        }
        number(out, answers.len() as u64);
        for (lookup, key, answer) in answers {
            number(out, lookup);
            match key {
                Key::Text(address) => {
                    out.push(key::TEXT);
                    number(out, address);
                }
                Key::Function(domain, id) => {
                    out.push(key::FUNCTION);
                    number(out, u64::from(domain));
                    number(out, u64::from(id));
                }
                Key::Thread(tid) => {
                    out.push(key::THREAD);
                    signed(out, i64::from(tid));
                }
            }
            text(out, &answer);
        }
    }

    fn record(&mut self, ring: RingId, words: &[u64]) {
        let [head, ticks, rest @ ..] = words else { return };
        let out = &mut self.out;
        let kind = (head & 0xff) as u8;
        out.extend([tag::RECORD, kind, event::length(*head) as u8]);
        number(out, u64::from(ring.0));
        number(out, head >> 16 & 0xffff);
        signed(out, i64::from((head >> 32) as u32 as i32));
        difference(out, *ticks, self.last.record);
        self.last.record = *ticks;
        for (word, before) in rest.iter().zip(self.last.words(kind)) {
            difference(out, *word, *before);
            *before = *word;
        }
    }

    fn other(&mut self, input: &Input<'_>) {
        let out = &mut self.out;
        match *input {
            Input::Record { ring, words } => self.record(ring, words),
            Input::Note { time, name, text: note } => {
                out.push(tag::NOTE);
                difference(out, time.0, self.last.host);
                text(out, name);
                text(out, note);
            }
            Input::Kernels(Source { version, asked, failures }) => {
                out.push(tag::KERNELS);
                number(out, u64::from(version));
                out.push(u8::from(asked.calls) | u8::from(asked.markers) << 1);
                number(out, failures);
            }
            Input::ExternalIds => out.push(tag::EXTERNAL_IDS),
            Input::Pass { pair, window_ns } => {
                out.push(tag::PASS);
                difference(out, pair.ticks.0, self.last.ticks);
                difference(out, pair.host.0, self.last.host);
                number(out, u64::from(pair.error_ns));
                number(out, window_ns);
                (self.last.ticks, self.last.host) = (pair.ticks.0, pair.host.0);
            }
            Input::Reading(Reading { boot_before, wall_before, cupti, wall_after, boot_after }) => {
                out.push(tag::READING);
                let Stamp(stamp) = cupti.unwrap_or(Stamp(self.last.reading[2]));
                out.push(u8::from(cupti.is_some()));
                let now = [boot_before.0, wall_before, stamp, wall_after, boot_after.0];
                now.iter().zip(&self.last.reading).for_each(|(now, before)| difference(out, *now, *before));
                self.last.reading = now;
            }
            Input::Standing(standing) => {
                out.push(tag::STANDING);
                figures(standing).into_iter().for_each(|figure| number(out, figure));
            }
            Input::Due { all } => out.push(if all { tag::DUE_ALL } else { tag::DUE }),
            Input::Draw => out.push(tag::DRAW),
            Input::Advance => out.push(tag::ADVANCE),
            Input::Shares(shares) => {
                out.push(tag::SHARES);
                number(out, shares.len() as u64);
                for share in shares {
                    signed(out, i64::from(share.tid));
                    text(out, &share.name);
                    signed(out, share.percent);
                    number(out, share.doing as u64);
                    number(out, share.processor.map_or(0, |processor| u64::from(processor) + 1));
                }
            }
            Input::CpuWaits(waits) => {
                out.push(tag::CPU_WAITS);
                number(out, waits.len() as u64);
                for wait in waits {
                    signed(out, i64::from(wait.tid));
                    difference(out, wait.since.0, self.last.host);
                    number(out, wait.ns);
                }
            }
            Input::Dropped(total) => {
                out.push(tag::DROPPED);
                number(out, total);
            }
            Input::Level { level, why } => {
                out.push(tag::LEVEL);
                out.push(match level {
                    Level::All => 0,
                    Level::NoSteps => 1,
                    Level::Ends => 2,
                    Level::Hangs => 3,
                });
                text(out, why);
            }
            Input::Flush => out.push(tag::FLUSH),
            Input::End(Ending { dropped, panics, lost_launches }) => {
                out.push(tag::END);
                [dropped, panics, lost_launches].into_iter().for_each(|figure| number(out, figure));
            }
        }
    }
}

/// A standing as numbers, in the order in which they are written.
pub(crate) fn figures(standing: Standing) -> [u64; 11] {
    let Standing {
        dropped,
        discarded_buffers,
        discarded_bytes,
        refused_requests,
        foreign_buffers,
        failed_flushes,
        flush_failure,
        overdue,
        failures,
        fatal,
        last_failure,
    } = standing;
    [
        dropped,
        discarded_buffers,
        discarded_bytes,
        refused_requests,
        foreign_buffers,
        failed_flushes,
        u64::from(flush_failure),
        overdue,
        failures,
        fatal,
        u64::from(last_failure),
    ]
}

/// Records the steps of a walker: how many steps of how many bytes.
pub struct Steps<'s, W> {
    walker: W,
    at: usize,
    runs: &'s mut Vec<(u64, u64)>,
    is_whole: &'s mut bool,
}

impl<W: Walker> Walker for Steps<'_, W> {
    fn next(&mut self, table: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End> {
        let result = self.walker.next(table, buffer, at);
        match &result {
            Ok(next) => {
                // A step back ends the walk; repeating it leads outside the buffer, with the same
                // result.
                let step = next.checked_sub(self.at).unwrap_or(usize::MAX) as u64;
                self.at = *next;
                match self.runs.last_mut() {
                    Some((count, same)) if *same == step => *count += 1,
                    _ => self.runs.push((1, step)),
                }
            }
            Err(end) => *self.is_whole = *end == End::Done,
        }
        result
    }
}

/// Passes questions on, and records each answer that the capture does not have yet.
pub struct Asked<'a, O> {
    outside: &'a mut O,
    told: &'a mut Told,
    lookups: u64,
    answers: Vec<(u64, Key, Arc<str>)>,
}

/// The answers that the capture has, as far as they are remembered.
#[derive(Default)]
struct Told {
    answers: FxHashMap<Key, Arc<str>>,
    bytes: usize,
}

impl<O: Outside> Asked<'_, O> {
    fn note(&mut self, key: Key, answer: Arc<str>) -> Arc<str> {
        // Nearly always the very same text.
        if !self.told.answers.get(&key).is_some_and(|told| Arc::ptr_eq(told, &answer) || *told == answer) {
            let told = &mut *self.told;
            if told.answers.len() >= REMEMBERED || told.bytes + answer.len() > REMEMBERED_BYTES {
                *told = Told::default();
            }
            told.bytes += answer.len();
            self.told.answers.insert(key, Arc::clone(&answer));
            self.answers.push((self.lookups, key, Arc::clone(&answer)));
        }
        self.lookups += 1;
        answer
    }
}

impl<O: Outside> Outside for Asked<'_, O> {
    fn text(&mut self, address: *const c_char) -> Arc<str> {
        let answer = self.outside.text(address);
        self.note(Key::Text(address.addr() as u64), answer)
    }

    fn function(&mut self, domain: u32, id: u32) -> Arc<str> {
        let answer = self.outside.function(domain, id);
        self.note(Key::Function(domain, id), answer)
    }

    fn thread(&mut self, tid: i32) -> Arc<str> {
        let answer = self.outside.thread(tid);
        self.note(Key::Thread(tid), answer)
    }
}

#[inline]
fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Zigzag encoding: small numbers of either sign are short.
#[inline]
fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, (value << 1 ^ value >> 63) as u64);
}

#[inline]
fn difference(out: &mut Vec<u8>, now: u64, before: u64) {
    signed(out, now.wrapping_sub(before) as i64);
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend(text.as_bytes());
}

fn texts(out: &mut Vec<u8>, all: &[String]) {
    number(out, all.len() as u64);
    all.iter().for_each(|one| text(out, one));
}

fn optional(out: &mut Vec<u8>, value: Option<u64>) {
    out.push(u8::from(value.is_some()));
    value.into_iter().for_each(|value| number(out, value));
}
