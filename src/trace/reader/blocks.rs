//! The packets of a trace file, including those inside compressed packets: read in blocks and
//! decompressed in parallel.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Decompress, FlushDecompress, Status};

use super::skim::Skim;
use super::wire::{Value, fields, put_bytes, varint};
use super::{Damage, Error, Passed};
use crate::trace::fields::{trace, trace_packet};

/// The tag of `Trace.packet`, field 1, length-delimited.
const PACKET: u8 = (trace::PACKET << 3 | 2) as u8;
/// The least number of bytes of a file that are processed together.
const BLOCK: usize = 16 << 10;
/// No packet is this large, compressed or not: Perfetto compresses less than 512 KiB at a time.
const TOO_LARGE: u64 = 256 << 20;
/// The most threads that decompress; with more, the thread that takes the packets is the limit.
const THREADS: usize = 8;

/// How much of a file is a valid trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes up to the end of the last whole packet.
    pub whole: u64,
    /// Bytes of an unfinished packet after it: the process was killed while writing, or is still
    /// writing.
    pub unfinished: u64,
}

impl Extent {
    /// A remark about the unfinished packet, if there is one.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        (self.unfinished > 0).then(|| match self.whole {
            0 => {
                "the trace ends inside its first packet: its process was killed before anything was written".to_owned()
            }
            at => format!("the trace ends inside the packet at byte {at}; everything before it is intact"),
        })
    }
}

/// Whole packets of a file, as they are in it.
pub(crate) struct Block {
    /// Where they begin.
    at: u64,
    bytes: Vec<u8>,
}

/// A file in blocks.
struct Blocks<R> {
    source: R,
    /// Where `rest` begins.
    at: u64,
    /// What was read but not returned yet.
    rest: Vec<u8>,
    /// Bytes after `rest` that were discarded.
    skipped: u64,
    is_read: bool,
}

impl<R: Read> Blocks<R> {
    /// `source` begins at this byte of the file.
    fn new(source: R, at: u64) -> Blocks<R> {
        Blocks { source, at, rest: Vec::new(), skipped: 0, is_read: false }
    }

    /// The next block; `None` at the end of the file, or of its readable part.
    fn next(&mut self) -> Result<Option<Block>, Error> {
        let mut whole = 0;
        loop {
            let needed = loop {
                match frame(&self.rest[whole..]) {
                    Frame::Whole { length, .. } => whole += length,
                    Frame::Cut(needed) => break needed,
                    // The packets before it come first.
                    Frame::Wrong if whole > 0 => break 0,
                    Frame::Wrong if self.at == 0 => return Err(Error::NotATrace),
                    Frame::Wrong => return Err(Error::Packet { at: self.at, damage: Damage::NoPacket }),
                }
            };
            if whole >= BLOCK || self.is_read || needed == 0 {
                break;
            }
            if needed > TOO_LARGE {
                return self.skip(whole, needed);
            }
            // Step by step: the length may be wrong, and the file shorter.
            let more = needed.clamp(BLOCK as u64, 1 << 20);
            let got = (&mut self.source).take(more).read_to_end(&mut self.rest)?;
            self.is_read = (got as u64) < more;
        }
        Ok(self.cut_off(whole))
    }

    fn cut_off(&mut self, whole: usize) -> Option<Block> {
        let rest = self.rest.split_off(whole);
        let bytes = std::mem::replace(&mut self.rest, rest);
        let at = self.at;
        self.at += whole as u64;
        (whole > 0).then_some(Block { at, bytes })
    }

    /// A packet of an absurd length is a cut-off end, or a fault.
    fn skip(&mut self, whole: usize, needed: u64) -> Result<Option<Block>, Error> {
        if whole > 0 {
            return Ok(self.cut_off(whole));
        }
        self.skipped = io::copy(&mut (&mut self.source).take(needed), &mut io::sink())?;
        if self.skipped == needed {
            return Err(Error::Packet { at: self.at, damage: Damage::TooLong(needed) });
        }
        self.is_read = true;
        Ok(None)
    }

    fn extent(&self) -> Extent {
        Extent { whole: self.at, unfinished: self.rest.len() as u64 + self.skipped }
    }
}

/// What a run of bytes begins with.
enum Frame {
    /// A whole packet, with the lengths of its header and of all of it.
    Whole { header: usize, length: usize },
    /// A packet or its beginning, with at least this many bytes missing.
    Cut(u64),
    /// No packet.
    Wrong,
}

#[inline]
fn frame(bytes: &[u8]) -> Frame {
    let Some((tag, mut rest)) = bytes.split_first() else { return Frame::Cut(1) };
    if *tag != PACKET {
        return Frame::Wrong;
    }
    let Some(length) = varint(&mut rest) else {
        return if rest.len() < 10 { Frame::Cut(1) } else { Frame::Wrong };
    };
    match length.checked_sub(rest.len() as u64) {
        None | Some(0) => {
            let header = bytes.len() - rest.len();
            Frame::Whole { header, length: header + length as usize }
        }
        Some(missing) => Frame::Cut(missing),
    }
}

/// How many threads may unpack a file if it is the only one being read.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS)
}

/// Works on the blocks of a file on `threads` threads (1: on this one), and calls `each` for the
/// results, one after the other and in order. `work` gets an old result to overwrite, which saves
/// allocating memory again.
fn in_order<T: Default + Send, E: From<Error>>(
    threads: usize,
    (source, from): (impl Read + Send, u64),
    work: impl Fn(&Block, &mut T) + Sync,
    mut each: impl FnMut(&mut T) -> Result<(), E>,
) -> Result<Extent, E> {
    let mut blocks = Blocks::new(source, from);
    let mut made = T::default();
    // Most files are either large or small. A small one is not worth a thread.
    let mut is_first = true;
    while is_first || blocks.is_read || threads < 2 {
        let Some(block) = blocks.next()? else { return Ok(blocks.extent()) };
        work(&block, &mut made);
        each(&mut made)?;
        is_first = false;
    }
    thread::scope(|scope| {
        let (mut to, mut from) = (Vec::new(), Vec::new());
        for _ in 0..threads {
            let (block, blocks) = sync_channel::<Block>(1);
            let (done, result) = sync_channel(1);
            let (used, again) = channel::<T>();
            let work = &work;
            scope.spawn(move || {
                blocks.into_iter().try_for_each(|block| {
                    let mut made = again.try_recv().unwrap_or_default();
                    work(&block, &mut made);
                    done.send(made)
                })
            });
            to.push(block);
            from.push((result, used));
        }
        let read = scope.spawn(move || {
            for to in to.iter().cycle() {
                let Some(block) = blocks.next()? else { break };
                // The receiver is gone if `each` failed.
                if to.send(block).is_err() {
                    break;
                }
            }
            Ok(blocks.extent())
        });
        // The first thread with nothing more got no block, and neither did those after it.
        for (from, used) in from.iter().cycle() {
            let Ok(mut made) = from.recv() else { break };
            each(&mut made)?;
            // At the end, nobody takes it any more.
            let _ = used.send(made);
        }
        drop(from);
        let extent: Result<Extent, Error> = read.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(extent?)
    })
}

/// A block with its compressed packets unpacked.
#[derive(Default)]
struct Unpacked {
    /// Where the block begins in the file.
    at: u64,
    bytes: Bytes,
    packets: Vec<Skim>,
    /// Why it ends early, if it does.
    fault: Option<Error>,
    inflater: Inflater,
}

impl Unpacked {
    /// Replaces what it holds.
    fn take(&mut self, block: &Block, passed: &Passed<'_>) {
        (self.at, self.bytes.used, self.fault) = (block.at, 0, None);
        self.packets.clear();
        let mut at = 0;
        while let Frame::Whole { header, length } = frame(&block.bytes[at..]) {
            let in_file = block.at + at as u64;
            if passed(in_file).is_some() {
                self.packets.push(Skim::passed(at as u32));
            } else if let Err(damage) = self.packet(at as u32, &block.bytes[at..at + length], header) {
                self.fault = Some(Error::Packet { at: in_file, damage });
                break;
            }
            at += length;
        }
    }

    /// Takes a packet with its frame, and its position in the block.
    fn packet(&mut self, in_block: u32, framed: &[u8], header: usize) -> Result<(), Damage> {
        let mut at = self.bytes.used;
        let compressed = compressed(&framed[header..]);
        match compressed {
            None => self.bytes.extend(framed),
            Some(compressed) => self.inflater.inflate(compressed, &mut self.bytes).map_err(Damage::Packed)?,
        }
        let bytes = self.bytes.get();
        while let Frame::Whole { header, length } = frame(&bytes[at..]) {
            self.packets.push(Skim::of(in_block, compressed.is_some()));
            if !self.packets.last_mut().is_some_and(|skim| skim.read(bytes, at + header..at + length)) {
                self.packets.pop();
                return Err(Damage::NoMessage);
            }
            at += length;
        }
        if at < bytes.len() { Err(Damage::CutOff) } else { Ok(()) }
    }
}

/// Calls `each` for every packet of a trace, compressed ones unpacked, with its position in the
/// file and the bytes that contain it. The source begins at a packet, at the given byte of the
/// file.
pub(super) fn unpacked<E: From<Error>>(
    threads: usize,
    source: (impl Read + Send, u64),
    passed: &Passed<'_>,
    mut each: impl FnMut(u64, &[u8], &Skim) -> Result<(), E>,
) -> Result<Extent, E> {
    in_order(
        threads,
        source,
        |block, unpacked: &mut Unpacked| unpacked.take(block, passed),
        |unpacked| {
            let (at, bytes) = (unpacked.at, unpacked.bytes.get());
            unpacked.packets.iter().try_for_each(|packet| each(at + u64::from(packet.at), bytes, packet))?;
            unpacked.fault.take().map_or(Ok(()), |fault| Err(fault.into()))
        },
    )
}

/// Copies a trace. `edit` gets the packets one after the other, each with its frame, and those
/// inside compressed packets too. It returns the bytes that replace a packet, if it changes.
pub(crate) fn rewritten<E: From<Error>>(
    source: impl Read + Send,
    edit: impl Fn(&[u8]) -> Option<Vec<u8>> + Sync,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Extent, E> {
    #[derive(Default)]
    struct Rewritten {
        inner: Bytes,
        inflater: Inflater,
        out: Vec<u8>,
        fault: Option<io::Error>,
    }
    let rewrite = |block: &Block, Rewritten { inner, inflater, out, .. }: &mut Rewritten| -> io::Result<()> {
        let mut at = 0;
        while let Frame::Whole { header, length } = frame(&block.bytes[at..]) {
            let framed = &block.bytes[at..at + length];
            let changed = match compressed(&framed[header..]) {
                None => edit(framed),
                Some(compressed) => {
                    inner.used = 0;
                    inflater.inflate(compressed, inner)?;
                    edit(inner.get()).map(|inner| packed(&inner)).transpose()?
                }
            };
            out.extend_from_slice(changed.as_deref().unwrap_or(framed));
            at += length;
        }
        Ok(())
    };
    let work = |block: &Block, made: &mut Rewritten| {
        made.out.clear();
        made.fault = rewrite(block, made).err();
    };
    in_order(cores(), (source, 0), work, |made| match made.fault.take() {
        Some(fault) => Err(Error::Io(fault).into()),
        None => write(&made.out),
    })
}

/// The length of a trace up to the end of its last whole packet: the part that may be concatenated
/// with other traces.
#[must_use]
pub fn whole_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Frame::Whole { length, .. } = frame(&bytes[at..]) {
        at += length;
    }
    at
}

/// Whether these bytes of a file are packets, apart from an unfinished one at their end.
pub(super) fn is_whole(mut bytes: &[u8]) -> bool {
    loop {
        match frame(bytes) {
            Frame::Whole { length, .. } => bytes = &bytes[length..],
            Frame::Cut(_) => return true,
            Frame::Wrong => return false,
        }
    }
}

/// Packets as one compressed packet of a trace. Perfetto wants less than 512 KiB of them.
pub(crate) fn packed(packets: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(packets)?;
    let (mut inner, mut packet) = (Vec::new(), Vec::new());
    put_bytes(&mut inner, trace_packet::COMPRESSED_PACKETS, &encoder.finish()?);
    put_bytes(&mut packet, trace::PACKET, &inner);
    Ok(packet)
}

fn compressed(packet: &[u8]) -> Option<&[u8]> {
    // It is the only field of its packet.
    let field = fields(packet).next()?;
    match field.value {
        Value::Bytes(bytes) if field.number == trace_packet::COMPRESSED_PACKETS => Some(bytes),
        _ => None,
    }
}

/// Memory that is reused without being cleared.
#[derive(Default)]
struct Bytes {
    all: Vec<u8>,
    used: usize,
}

impl Bytes {
    fn get(&self) -> &[u8] {
        &self.all[..self.used]
    }

    /// Room for at least this many more bytes.
    fn room(&mut self, least: usize) -> &mut [u8] {
        if self.all.len() - self.used < least {
            self.all.resize(self.used + least, 0);
        }
        &mut self.all[self.used..]
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

/// Decompresses, with a state that is made once. In one call if possible, so that zlib needs no
/// window of its own.
struct Inflater(Decompress);

impl Default for Inflater {
    fn default() -> Inflater {
        Inflater(Decompress::new(true))
    }
}

impl Inflater {
    /// Appends the result.
    fn inflate(&mut self, compressed: &[u8], out: &mut Bytes) -> io::Result<()> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        self.0.reset(true);
        let (begin, mut room) = (out.used, 512 << 10);
        loop {
            let (taken, made) = (self.0.total_in() as usize, self.0.total_out() as usize);
            let (rest, space) = (&compressed[taken..], out.room(room));
            let space_length = space.len();
            let Ok(status) = self.0.decompress(rest, space, FlushDecompress::Finish) else {
                return wrong("corrupt deflate stream");
            };
            let got = self.0.total_out() as usize - made;
            out.used += got;
            match status {
                Status::StreamEnd => return Ok(()),
                _ if got < space_length => return wrong("corrupt deflate stream"),
                _ if out.used - begin >= TOO_LARGE as usize => return wrong("it unpacks to more than 256 MiB"),
                _ => room = out.used - begin,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessTag;
    use crate::model::time::HostNs;
    use crate::trace::names::Fixed;
    use crate::trace::reader::wire::put_uint;
    use crate::trace::words::Category;
    use crate::trace::writer::{Clocks, Extra, Form, Place, Writer};

    /// A packet with its number as its time, and this many additional bytes.
    fn packet(number: u64, bytes: usize) -> Vec<u8> {
        let (mut packet, mut framed) = (Vec::new(), Vec::new());
        put_uint(&mut packet, trace_packet::TIMESTAMP, number);
        put_bytes(&mut packet, 9_999, &vec![0x55; bytes]);
        put_bytes(&mut framed, trace::PACKET, &packet);
        framed
    }

    /// A file of many blocks, with compressed and plain packets of all sizes, and their number.
    fn large() -> (Vec<u8>, u64) {
        let (mut file, mut number) = (Vec::new(), 0);
        for chunk in 0..60 {
            let mut packets = Vec::new();
            for at in 0..40 {
                packets.extend(packet(number, (chunk * 997 + at * 131) % 9_000));
                number += 1;
            }
            file.extend(if chunk % 3 == 0 { packed(&packets).unwrap() } else { packets });
        }
        file.extend(packet(number, 3 << 20));
        (file, number + 1)
    }

    /// The numbers of a file's packets, and how reading ended.
    fn numbers(file: &[u8]) -> (Vec<u64>, Result<Extent, Error>) {
        let mut numbers = Vec::new();
        let read = super::super::read(file, |packet| {
            numbers.extend(packet.time.map(|time| time.0));
            Ok(())
        });
        (numbers, read)
    }

    #[test]
    fn packets_come_in_the_order_of_the_file() {
        let (file, count) = large();
        let (numbers, read) = numbers(&file);
        assert_eq!(read.unwrap(), Extent { whole: file.len() as u64, unfinished: 0 });
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn a_large_cut_file_is_read_up_to_its_last_whole_packet() {
        let (file, _) = large();
        for end in (0..file.len()).step_by(file.len() / 23) {
            let (found, read) = numbers(&file[..end]);
            let extent = read.unwrap();
            assert_eq!(extent.whole as usize, whole_length(&file[..end]), "cut at {end}");
            assert_eq!(extent.whole + extent.unfinished, end as u64);
            assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn packets_before_a_fault_in_a_large_file_are_passed_on() {
        let (good, count) = large();
        for fault in [&b"no packet"[..], b"\x0a\x02\x0b\x0b"] {
            let (found, read) = numbers(&[&good[..], fault, &good[..]].concat());
            assert!(matches!(read, Err(Error::Packet { at, .. }) if at == good.len() as u64), "{read:?}");
            assert_eq!(found.len() as u64, count);
        }
    }

    #[test]
    fn after_an_error_no_further_packet_is_passed_on() {
        let (file, _) = large();
        let mut seen = 0;
        let read = super::super::read(&file[..], |_| {
            seen += 1;
            if seen == 1_000 { Err(Error::Clock(7)) } else { Ok(()) }
        });
        assert!(matches!(read, Err(Error::Clock(7))));
        assert_eq!(seen, 1_000);
    }

    #[test]
    fn a_length_beyond_the_file_allocates_nothing() {
        let (good, count) = large();
        // A packet of 2^60 bytes.
        let absurd = [&good[..], b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x10", &[0; 5 << 20]].concat();
        let (found, read) = numbers(&absurd);
        assert_eq!(found.len() as u64, count);
        assert_eq!(read.unwrap(), Extent { whole: good.len() as u64, unfinished: 10 + (5 << 20) });
    }

    #[test]
    fn times_go_on_behind_packets_that_are_passed_over() {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let mut writer = Writer::new(ProcessTag::from_random(7), clocks);
        let track = writer.track(Form::Plain { name: "track" }, Place::default()).unwrap();
        let sequence = writer.sequence(track, HostNs(1_000));
        let mut file = Vec::new();
        for n in 0..300 {
            let time = HostNs(1_000 + n * n);
            writer.instant(sequence, track, time, Category::Api, &Fixed("instant"), &Extra::default());
            if n % 100 == 99 {
                file.extend(packed(&writer.take()).unwrap());
            }
        }
        let read = |passed: &Passed<'_>| {
            let mut times = Vec::new();
            let read = super::super::read_parts::<Error>(&file[..], passed, |packet| {
                times.extend(packet.event.map(|_| (packet.at, packet.sequence, packet.time.unwrap().0)));
                Ok(())
            });
            assert_eq!(read.unwrap().whole as usize, file.len());
            times
        };
        let all = read(&|_| None);
        let (at, sequence, last) = all[199];
        for error in [0, 5] {
            let end = [(sequence, HostNs(last + error))];
            let rest = read(&|it| (it == at).then_some(&end));
            let behind = all[200..].iter().map(|(at, sequence, time)| (*at, *sequence, time + error));
            assert_eq!(rest, all[..100].iter().copied().chain(behind).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_copy_equals_the_file_except_for_edits() {
        let (file, count) = large();
        let rewrite = |edit: fn(&[u8]) -> Option<Vec<u8>>| {
            let mut copy = Vec::new();
            rewritten(&file[..], edit, |bytes| {
                copy.extend_from_slice(bytes);
                Ok::<_, Error>(())
            })
            .unwrap();
            copy
        };
        assert!(rewrite(|_| None) == file);
        let twice = rewrite(|packets| Some([packets, packets].concat()));
        let (mut found, _) = numbers(&twice);
        found.sort_unstable();
        assert_eq!(found, (0..count).flat_map(|number| [number; 2]).collect::<Vec<_>>());
    }
}
