//! Reads captures: chunks, and the entries in them (pure except for the file).
//!
//! A capture may come from anywhere, so nothing in it is trusted: every length is checked against
//! the data that is there, every time against what a clock can return, and the correlator's inputs
//! stay within the range of its numbers.

use std::fmt;
use std::io::Read;

use flate2::read::ZlibDecoder;

use super::dictionary::{Answer, Steps};
use super::state::Last;
use super::{FORMAT, Key, MAGIC, MAX_CHUNK, OLDEST, TELLING, key, tag};
use crate::clock::align::Pair;
use crate::cupti::clock::{Reading, Stamp};
use crate::cupti::decode::Asked;
use crate::cupti::intake::{Source, Standing};
use crate::model::doing::{CpuWait, Doing};
use crate::model::event::{self, MAX_WORDS};
use crate::model::ids::{ProcessTag, RingId};
use crate::model::selection::Selection;
use crate::model::time::{HostNs, Ticks};
use crate::pipeline::input::{Begin, Ending, Input, Level, Share};
use crate::trace::packer::deflated_at_most;
use crate::trace::tracks::{ProcessInfo, Stages};
use crate::trace::writer::Clocks;

/// Why a file cannot be read as a capture, or not to its end.
#[derive(Debug)]
pub enum Error {
    /// The operating system's reason.
    Io(std::io::Error),
    /// The file is empty.
    Empty,
    /// It does not begin like a capture.
    Foreign,
    /// It begins like a capture, but its bytes were converted as if they were text.
    Mangled,
    /// Its format is too old to be read.
    Older {
        /// The format.
        format: u32,
        /// The version of the plugin that wrote it.
        version: String,
    },
    /// Its format is newer than the ones known here.
    Newer {
        /// The format.
        format: u32,
        /// The version of the plugin that wrote it.
        version: String,
    },
    /// It ends inside the chunk, or the head, that begins at this byte.
    Cut {
        /// Where the last whole chunk ends, in bytes.
        at: u64,
    },
    /// A chunk has content that no plugin writes.
    Damaged {
        /// Where the chunk begins, in bytes.
        at: u64,
        /// What is wrong with it.
        what: Damage,
    },
}

/// What is wrong with a chunk.
#[derive(Debug)]
pub enum Damage {
    /// Its head gives these lengths, plain and compressed, in bytes; no chunk has such lengths.
    Claims(usize, usize),
    /// Its head gives this length in bytes, and it has another one.
    Length(usize),
    /// It cannot be unpacked.
    Packed(std::io::Error),
    /// An entry in it cannot be read, or is out of place.
    Entry(Fault),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Claims(length, packed) => write!(f, "it claims {length} bytes, {packed} compressed"),
            Damage::Length(length) => write!(f, "it claims {length} bytes but has a different number"),
            Damage::Packed(error) => write!(f, "{error}"),
            Damage::Entry(fault) => write!(f, "{fault}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "failed to read it: {error}"),
            Error::Empty => {
                f.write_str("the file is empty: the process ended before anything was written, or the copy failed")
            }
            Error::Foreign => f.write_str(
                "this is not an ncclscope capture: its first bytes differ. Captures are made with \
                 NCCLSCOPE_CAPTURE=1 and end in .capture; use ncclscope info for a trace",
            ),
            Error::Mangled => f.write_str(
                "the line ends of this capture were converted, as if it were text: copy it again in binary mode",
            ),
            Error::Older { format, version } => write!(
                f,
                "this capture has format {format} and was written by ncclscope {version}; this version reads \
                 formats from {OLDEST} on. Replay it with that version"
            ),
            Error::Newer { format, version } => write!(
                f,
                "this capture has format {format} and was written by ncclscope {version}; this version reads \
                 formats up to {FORMAT}. Replay it with that version or a later one"
            ),
            Error::Cut { at } => write!(
                f,
                "the capture is cut off at byte {at}: the process was killed, or the copy is incomplete. \
                 Everything before that is intact"
            ),
            Error::Damaged { at, what } => write!(
                f,
                "the chunk at byte {at} is damaged: {what}. Everything before it is intact; copy the file again if \
                 the original still exists"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) | Error::Damaged { what: Damage::Packed(error), .. } => Some(error),
            _ => None,
        }
    }
}

/// The chunks of a file, one after the other.
#[derive(Debug)]
pub struct Chunks<R> {
    source: R,
    format: u32,
    /// The version of the plugin that wrote it.
    version: String,
    at: u64,
    entries: Vec<u8>,
}

impl<R: Read> Chunks<R> {
    /// Reads the head.
    ///
    /// # Errors
    ///
    /// What the file is, if it is not a capture that can be read.
    pub fn open(mut source: R) -> Result<Chunks<R>, Error> {
        let mut head = [0; MAGIC.len() + 5];
        let length = fill(&mut source, &mut head)?;
        let known = length.min(MAGIC.len());
        match () {
            () if length == 0 => return Err(Error::Empty),
            () if head[..known.min(TELLING)] != MAGIC[..known.min(TELLING)] => return Err(Error::Foreign),
            () if head[..known] != MAGIC[..known] => return Err(Error::Mangled),
            () if length < head.len() => return Err(Error::Cut { at: 0 }),
            () => {}
        }
        let [.., a, b, c, d, letters] = head;
        let format = u32::from_le_bytes([a, b, c, d]);
        let mut version = vec![0; usize::from(letters)];
        if fill(&mut source, &mut version)? < version.len() {
            return Err(Error::Cut { at: 0 });
        }
        let at = (head.len() + version.len()) as u64;
        let version = String::from_utf8_lossy(&version).into_owned();
        match format {
            OLDEST..=FORMAT => Ok(Chunks { source, format, version, at, entries: Vec::new() }),
            0..OLDEST => Err(Error::Older { format, version }),
            _ => Err(Error::Newer { format, version }),
        }
    }

    /// Its format.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.format
    }

    /// The version of the plugin that wrote it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where the next chunk begins, in bytes.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The entries of the next chunk, and the byte at which it begins; `None` at the end.
    ///
    /// # Errors
    ///
    /// The file is cut or damaged there.
    pub fn next_chunk(&mut self) -> Result<Option<(u64, &[u8])>, Error> {
        let at = self.at;
        let damaged = |what| Error::Damaged { at, what };
        let mut lengths = [0; 8];
        match fill(&mut self.source, &mut lengths)? {
            0 => return Ok(None),
            8 => {}
            _ => return Err(Error::Cut { at }),
        }
        let [length, packed] = [0, 4].map(|from| {
            let bytes = lengths[from..from + 4].try_into().unwrap_or_default();
            u32::from_le_bytes(bytes) as usize
        });
        if length == 0 || length > MAX_CHUNK || packed == 0 || packed > deflated_at_most(length) {
            return Err(damaged(Damage::Claims(length, packed)));
        }
        let mut file = (&mut self.source).take(packed as u64);
        self.entries.clear();
        let unpacked = ZlibDecoder::new(&mut file).take(length as u64 + 1).read_to_end(&mut self.entries);
        // Also read what zlib did not need of it: the file may end before.
        let rest = std::io::copy(&mut file, &mut std::io::sink()).map_err(Error::Io)?;
        if file.limit() > 0 {
            return Err(Error::Cut { at });
        }
        unpacked.map_err(|error| damaged(Damage::Packed(error)))?;
        if self.entries.len() != length || rest > 0 {
            return Err(damaged(Damage::Length(length)));
        }
        self.at += 8 + packed as u64;
        Ok(Some((at, &self.entries)))
    }
}

/// Reads until the buffer is full or the file ends; returns how many bytes.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut length = 0;
    while length < buffer.len() {
        match source.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io(error)),
        }
    }
    Ok(length)
}

/// One entry of a capture.
#[derive(Debug)]
pub enum Entry<'a> {
    /// What the recording begins with, and whether its chunks are compressed.
    Begin(Box<Begin>, bool),
    /// An input of the pipeline.
    Input(Input<'a>),
    /// One of CUPTI's buffers, in which nothing is later than `now`.
    Buffer {
        /// The latest possible time in it.
        now: HostNs,
        /// The buffer.
        bytes: &'a [u8],
        /// The recorded walk through it.
        steps: &'a Steps,
        /// The answers of the process that are new in it.
        answers: &'a [Answer],
    },
    /// The capture ended before the recording, for this reason.
    CutShort(&'a str),
}

/// What is wrong with an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault(pub(super) &'static str);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Decodes the entries of chunks, in the order of the file.
pub struct Decoder {
    format: u32,
    last: Last,
    words: [u64; MAX_WORDS],
    shares: Vec<Share>,
    cpu_waits: Vec<CpuWait>,
    steps: Steps,
    answers: Vec<Answer>,
}

impl Decoder {
    /// A decoder for a file of this format, from its first chunk on.
    #[must_use]
    pub fn new(format: u32) -> Decoder {
        Decoder {
            format,
            last: Last::new(),
            words: [0; MAX_WORDS],
            shares: Vec::new(),
            cpu_waits: Vec::new(),
            steps: Steps::default(),
            answers: Vec::new(),
        }
    }

    /// Takes the next entry off `rest`; `None` at its end.
    ///
    /// # Errors
    ///
    /// What is wrong with the entry. Nothing can be read after it.
    pub fn next<'a, 'c: 'a>(&'a mut self, rest: &mut &'c [u8]) -> Result<Option<Entry<'a>>, Fault> {
        let from = &mut Bytes(rest);
        let Ok(tag) = from.byte() else { return Ok(None) };
        let input = match tag {
            tag::BEGIN => {
                let is_compressed = from.flag()?;
                return Ok(Some(Entry::Begin(Box::new(self.begin(from)?), is_compressed)));
            }
            tag::BUFFER => return self.buffer(from).map(Some),
            tag::CUT_SHORT => return Ok(Some(Entry::CutShort(from.text()?))),
            tag::RECORD => self.record(from)?,
            tag::PASS => self.pass(from)?,
            tag::READING => self.reading(from)?,
            tag::STANDING => Input::Standing(standing(from)?),
            tag::DUE => Input::Due { all: false },
            tag::DUE_ALL => Input::Due { all: true },
            tag::DRAW => Input::Draw,
            tag::ADVANCE => Input::Advance,
            tag::SHARES => self.shares(from)?,
            tag::CPU_WAITS => self.cpu_waits(from)?,
            tag::DROPPED => Input::Dropped(from.number()?),
            tag::LEVEL => {
                let level = match from.byte()? {
                    0 => Level::All,
                    1 => Level::NoSteps,
                    2 => Level::Ends,
                    3 => Level::Hangs,
                    _ => return Err(Fault("a level that does not exist")),
                };
                Input::Level { level, why: from.text()? }
            }
            tag::FLUSH => Input::Flush,
            tag::NOTE => {
                let time = HostNs(time(from.since(self.last.host)?)?);
                Input::Note { time, name: from.text()?, text: from.text()? }
            }
            tag::KERNELS => {
                let (version, asked) = (from.small()?, from.byte()?);
                let asked = Asked { calls: asked & 1 != 0, markers: asked & 2 != 0 };
                Input::Kernels(Source { version, asked, failures: from.number()? })
            }
            tag::EXTERNAL_IDS => Input::ExternalIds,
            tag::END => {
                let (dropped, panics) = (count(from)?, count(from)?);
                Input::End(Ending { dropped, panics, lost_launches: count(from)? })
            }
            _ => return Err(Fault("an entry of unknown kind")),
        };
        Ok(Some(Entry::Input(input)))
    }

    fn begin(&mut self, from: &mut Bytes<'_, '_>) -> Result<Begin, Fault> {
        let tag = from.number()?;
        let mark = ProcessTag::from_bits(tag).ok_or(Fault("an impossible process tag"))?;
        let clocks = Clocks {
            boottime: HostNs(time(from.number()?)?),
            monotonic: time(from.number()?)?,
            realtime: time(from.number()?)?,
        };
        let process = ProcessInfo {
            pid: from.signed_small()?,
            name: from.text()?.into(),
            labels: from.texts()?,
            rank: from.optional()?,
            world_size: from.optional()?,
        };
        let stages = match from.byte()? {
            0 => None,
            1 => Some(Stages::Alone),
            2 => Some(Stages::Beside),
            _ => return Err(Fault("an impossible choice of stages")),
        };
        let complaints = from.texts()?;
        let mut attributes = Vec::new();
        for _ in 0..from.number()? {
            attributes.push((from.text()?.into(), from.text()?.into()));
        }
        let first_words = from.text()?.into();
        let capture = if from.flag()? { Some(from.text()?.into()) } else { None };
        let (ticks, host) = (time(from.number()?)?, time(from.number()?)?);
        let first = Pair { ticks: Ticks(ticks), host: HostNs(host), error_ns: from.small()? };
        (self.last.ticks, self.last.host, self.last.record) = (ticks, host, ticks);
        let mut parts = Vec::new();
        if self.format > 1 {
            for _ in 0..from.number()? {
                parts.push((from.text()?, from.text()?));
            }
        }
        let selection = Selection::from_parts(parts.into_iter()).ok_or(Fault("an impossible selection"))?;
        Ok(Begin { tag: mark, clocks, process, stages, complaints, attributes, first_words, capture, first, selection })
    }

    fn record<'a>(&'a mut self, from: &mut Bytes<'_, '_>) -> Result<Input<'a>, Fault> {
        let (kind, length) = (from.byte()?, usize::from(from.byte()?));
        if !(2..=MAX_WORDS).contains(&length) {
            return Err(Fault("a record of impossible length"));
        }
        let ring = RingId(from.small()?);
        let small = u16::try_from(from.number()?).map_err(|_| Fault("a number that is too large"))?;
        let wide = from.signed_small()?;
        self.last.record = from.since(self.last.record)?;
        let words = &mut self.words[..length];
        words[0] = event::header(kind, length, small, wide);
        words[1] = self.last.record;
        for (word, before) in words[2..].iter_mut().zip(self.last.words(kind)) {
            *before = from.since(*before)?;
            *word = *before;
        }
        Ok(Input::Record { ring, words })
    }

    fn pass(&mut self, from: &mut Bytes<'_, '_>) -> Result<Input<'static>, Fault> {
        /// A clock that runs this much faster than another is impossible, and so is a pass of a
        /// hundred days. A clock may go back: then the next reading is compared with this one.
        const RATE: u64 = 1 << 10;
        const PASS: u64 = 1 << 53;
        let (ticks, host) = (time(from.since(self.last.ticks)?)?, time(from.since(self.last.host)?)?);
        let (ticked, passed) = (ticks.abs_diff(self.last.ticks), host.abs_diff(self.last.host));
        let goes_on = ticks >= self.last.ticks && host >= self.last.host;
        if goes_on && (ticked > PASS || passed > PASS || passed / RATE > ticked || ticked / RATE > passed.max(1000)) {
            return Err(Fault("impossible clock readings"));
        }
        let (error_ns, window_ns) = (from.small()?, from.number()?.min(PASS));
        (self.last.ticks, self.last.host) = (ticks, host);
        Ok(Input::Pass { pair: Pair { ticks: Ticks(ticks), host: HostNs(host), error_ns }, window_ns })
    }

    fn reading(&mut self, from: &mut Bytes<'_, '_>) -> Result<Input<'static>, Fault> {
        let has_stamp = from.flag()?;
        let mut now = [0; 5];
        for (now, before) in now.iter_mut().zip(self.last.reading) {
            *now = from.since(before)?;
        }
        self.last.reading = now;
        let [boot_before, wall_before, stamp, wall_after, boot_after] = now;
        for host in [boot_before, wall_before, wall_after, boot_after] {
            time(host)?;
        }
        Ok(Input::Reading(Reading {
            boot_before: HostNs(boot_before),
            wall_before,
            cupti: has_stamp.then_some(Stamp(stamp)),
            wall_after,
            boot_after: HostNs(boot_after),
        }))
    }

    fn shares<'a>(&'a mut self, from: &mut Bytes<'_, '_>) -> Result<Input<'a>, Fault> {
        self.shares.clear();
        for _ in 0..from.number()? {
            let (tid, name) = (from.signed_small()?, from.text()?.into());
            let percent = from.signed()?;
            let (doing, processor) = match self.format {
                ..3 => (Doing::Unknown, None),
                _ => (Doing::of(from.number()?), from.number()?.checked_sub(1)),
            };
            let processor = processor.and_then(|processor| u32::try_from(processor).ok());
            self.shares.push(Share { tid, name, percent, doing, processor });
        }
        Ok(Input::Shares(&self.shares))
    }

    fn cpu_waits<'a>(&'a mut self, from: &mut Bytes<'_, '_>) -> Result<Input<'a>, Fault> {
        self.cpu_waits.clear();
        for _ in 0..from.number()? {
            let (tid, since) = (from.signed_small()?, HostNs(time(from.since(self.last.host)?)?));
            self.cpu_waits.push(CpuWait { tid, since, ns: from.number()? });
        }
        Ok(Input::CpuWaits(&self.cpu_waits))
    }

    fn buffer<'a, 'c: 'a>(&'a mut self, from: &mut Bytes<'_, 'c>) -> Result<Entry<'a>, Fault> {
        let now = HostNs(time(from.since(self.last.host)?)?);
        let length = from.number()?;
        let bytes = from.take(length)?;
        self.steps.is_whole = from.flag()?;
        self.steps.runs.clear();
        for _ in 0..from.number()? {
            self.steps.runs.push((from.number()?, from.number()?));
        }
        self.answers.clear();
        for _ in 0..from.number()? {
            let lookup = from.number()?;
            let key = match from.byte()? {
                key::TEXT => Key::Text(from.number()?),
                key::FUNCTION => Key::Function(from.small()?, from.small()?),
                key::THREAD => Key::Thread(from.signed_small()?),
                _ => return Err(Fault("an answer to an unknown question")),
            };
            self.answers.push((lookup, key, from.text()?.into()));
        }
        Ok(Entry::Buffer { now, bytes, steps: &self.steps, answers: &self.answers })
    }
}

/// Checks that a clock could return this time, so that what is computed from it stays in range.
fn time(ns: u64) -> Result<u64, Fault> {
    if ns < 1 << 62 { Ok(ns) } else { Err(Fault("an impossible time")) }
}

/// A count, small enough to be added to others.
fn count(from: &mut Bytes<'_, '_>) -> Result<u64, Fault> {
    let count = from.number()?;
    if count < 1 << 56 { Ok(count) } else { Err(Fault("an impossible count")) }
}

fn standing(from: &mut Bytes<'_, '_>) -> Result<Standing, Fault> {
    Ok(Standing {
        dropped: count(from)?,
        discarded_buffers: count(from)?,
        discarded_bytes: count(from)?,
        refused_requests: count(from)?,
        foreign_buffers: count(from)?,
        failed_flushes: count(from)?,
        flush_failure: from.small()?,
        overdue: count(from)?,
        failures: count(from)?,
        fatal: count(from)?,
        last_failure: from.small()?,
    })
}

/// Takes values off the front of a slice.
struct Bytes<'r, 'a>(&'r mut &'a [u8]);

impl<'a> Bytes<'_, 'a> {
    fn byte(&mut self) -> Result<u8, Fault> {
        let (&first, rest) = self.0.split_first().ok_or(Fault("it ends inside an entry"))?;
        *self.0 = rest;
        Ok(first)
    }

    fn flag(&mut self) -> Result<bool, Fault> {
        Ok(self.byte()? != 0)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Fault("a length that reaches beyond the chunk"))?;
        *self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault("an unterminated number"))
    }

    fn small(&mut self) -> Result<u32, Fault> {
        u32::try_from(self.number()?).map_err(|_| Fault("a number that is too large"))
    }

    fn signed(&mut self) -> Result<i64, Fault> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn signed_small(&mut self) -> Result<i32, Fault> {
        i32::try_from(self.signed()?).map_err(|_| Fault("a number that is too large"))
    }

    fn since(&mut self, before: u64) -> Result<u64, Fault> {
        Ok(before.wrapping_add(self.signed()? as u64))
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        let length = self.number()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| Fault("a text that is not UTF-8"))
    }

    fn texts(&mut self) -> Result<Vec<String>, Fault> {
        let mut texts = Vec::new();
        for _ in 0..self.number()? {
            texts.push(self.text()?.into());
        }
        Ok(texts)
    }

    fn optional(&mut self) -> Result<Option<u32>, Fault> {
        if self.flag()? { self.small().map(Some) } else { Ok(None) }
    }
}
