//! Where a long file can be read from, instead of from its beginning: its last restarts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::blocks::is_whole;
use super::wire::fields;
use super::{Error, read_part};
use crate::trace::fields::{trace, trace_packet};
use crate::trace::writer::{MARKED, MARKER, tag_of_sequence};

/// How much of a file's beginning is read, bytes: more than a chunk of packets takes. What a
/// recording says about itself first is there.
pub(crate) const HEAD: u64 = 256 << 10;
/// How much of its end is searched for restarts: at first, so many times the beginning; and at
/// most, bytes.
const FIRST: u64 = 8;
const MOST: u64 = 32 << 20;

/// The parts of a file that show how a recording began, and what it did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The first bytes.
    head: u64,
    /// Where the last part begins: at the last restart but one, or at an earlier one. What is open
    /// at the end of the file was begun after it.
    tail: u64,
}

impl Ends {
    /// The ends of a file: so many bytes of its beginning, and at least so many of its end. `None`
    /// if it has to be read as a whole: it is short, had something open before there were enough
    /// restarts, or is no recording of one process.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub(crate) fn of(file: &mut File, head: u64, least: u64) -> Result<Option<Ends>, Error> {
        let length = file.metadata()?.len();
        let last = match restart(file, (head, length), 2)? {
            Some((tail, tag)) if length - tail < least => {
                restart(file, (head, length.saturating_sub(least)), 1)?.filter(|earlier| earlier.1 == tag)
            }
            last => last,
        };
        let Some((tail, tag)) = last else { return Ok(None) };
        Ok((first_tag(file, head)? == Some(tag)).then_some(Ends { head, tail }))
    }

    /// Each part: where it begins, and its length at most.
    pub(crate) fn parts(&self) -> [(u64, u64); 2] {
        [(0, self.head), (self.tail, u64::MAX)]
    }

    /// How many bytes that is of a file of this length.
    pub(crate) fn bytes(&self, length: u64) -> u64 {
        self.head + length.saturating_sub(self.tail)
    }
}

/// The last restart in a part of a file, or with a count of 2 the one before it: where it begins,
/// and the tag of its process. `None` if there are too few, or if the last two are of different
/// processes.
fn restart(file: &mut File, (begin, end): (u64, u64), count: usize) -> Result<Option<(u64, u64)>, Error> {
    let mut searched = FIRST * begin;
    loop {
        let from = end.saturating_sub(searched).max(begin);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(end.saturating_sub(from)).read_to_end(&mut bytes)?;
        let found = restarts(&bytes);
        if let Some(last) = found.len().checked_sub(count).map(|at| &found[at..]) {
            let (at, tag) = last[0];
            return Ok(last.iter().all(|it| it.1 == tag).then_some((from + at as u64, tag)));
        }
        if from == begin || searched >= MOST {
            return Ok(None);
        }
        searched *= 4;
    }
}

/// The restarts in the last part of a file: where each begins, and the tag of its process.
fn restarts(end: &[u8]) -> Vec<(usize, u64)> {
    let mut field = MARKED.to_vec();
    field.extend(MARKER);
    let mut found = Vec::new();
    for at in memchr::memmem::find_iter(end, &field).filter_map(|at| at.checked_sub(2)) {
        // The same bytes may be part of a text.
        let packet = fields(&end[at..]).next().filter(|packet| packet.number == trace::PACKET);
        let sequence = packet.and_then(|packet| {
            let its = fields(packet.bytes()).find(|field| field.number == trace_packet::TRUSTED_PACKET_SEQUENCE_ID)?;
            Some(tag_of_sequence(its.uint()))
        });
        found.extend(sequence.filter(|_| is_whole(&end[at..])).map(|tag| (at, tag)));
    }
    found
}

/// The tag of the process that the first packet of a file is of.
fn first_tag(file: &mut File, head: u64) -> Result<Option<u64>, Error> {
    let mut tag = None;
    read_part(1, file, (0, head), |packet| {
        tag.get_or_insert(tag_of_sequence(packet.sequence));
        Ok::<_, Error>(())
    })?;
    Ok(tag)
}
