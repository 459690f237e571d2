//! The packets of a trace file, those inside compressed packets included: read in blocks, unpacked side by side.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::write::ZlibEncoder;

use super::Error;
use super::follow::Skim;
use super::wire::{Value, fields, put_bytes, varint};
use crate::trace::fields::{trace, trace_packet};

/// The tag of `Trace.packet`, field 1, length-delimited.
const PACKET: u8 = (trace::PACKET << 3 | 2) as u8;
/// Bytes of a file that are handed on together, at least.
const BLOCK: usize = 64 << 10;
/// A packet is never so large, unpacked or not: Perfetto compresses less than 512 KiB at a time.
const TOO_LARGE: u64 = 256 << 20;
/// Threads that unpack, at most: whoever takes the packets is busy by then.
const THREADS: usize = 8;

/// How much of a file is trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes up to the end of the last whole packet.
    pub whole: u64,
    /// Bytes of an unfinished packet behind it: the process was killed while it wrote, or is writing still.
    pub unfinished: u64,
}

impl Extent {
    /// What there is to say of an unfinished packet.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        let at = self.whole;
        (self.unfinished > 0)
            .then(|| format!("the trace ends inside the packet at byte {at}; everything before it is good"))
    }
}

/// Whole packets of a file, as they stand in it.
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
    /// What was read and is not handed on yet.
    rest: Vec<u8>,
    /// Bytes behind `rest` of which nothing was kept.
    skipped: u64,
    is_read: bool,
}

impl<R: Read> Blocks<R> {
    fn new(source: R) -> Blocks<R> {
        Blocks { source, at: 0, rest: Vec::new(), skipped: 0, is_read: false }
    }

    /// The next block; none at the end of the file, or of what can be read of it.
    fn next(&mut self) -> Result<Option<Block>, Error> {
        let mut whole = 0;
        loop {
            let needed = loop {
                match frame(&self.rest[whole..]) {
                    Frame::Whole { length, .. } => whole += length,
                    Frame::Cut(needed) => break needed,
                    // What is before it comes first.
                    Frame::Wrong if whole > 0 => break 0,
                    Frame::Wrong if self.at == 0 => return Err(Error::NotATrace),
                    Frame::Wrong => {
                        return Err(Error::Packet { at: self.at, reason: "no packet begins here".into() });
                    }
                }
            };
            if whole >= BLOCK || self.is_read || needed == 0 {
                break;
            }
            if needed > TOO_LARGE {
                return self.skip(whole, needed);
            }
            // As it comes: the length may be wrong, and the file shorter.
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

    /// A packet of an absurd length is the end, or a fault.
    fn skip(&mut self, whole: usize, needed: u64) -> Result<Option<Block>, Error> {
        if whole > 0 {
            return Ok(self.cut_off(whole));
        }
        self.skipped = io::copy(&mut (&mut self.source).take(needed), &mut io::sink())?;
        if self.skipped == needed {
            return Err(Error::Packet { at: self.at, reason: format!("it claims {needed} bytes more") });
        }
        self.is_read = true;
        Ok(None)
    }

    fn extent(&self) -> Extent {
        Extent { whole: self.at, unfinished: self.rest.len() as u64 + self.skipped }
    }
}

/// What begins a run of bytes.
enum Frame {
    /// A packet of this length, with the header of its frame.
    Whole { header: usize, length: usize },
    /// A packet, or its beginning, of which so many bytes are missing at least.
    Cut(u64),
    /// No packet.
    Wrong,
}

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

/// Threads that may unpack a file that is read alone.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS)
}

/// Calls `work` for each block of a file on `threads` threads, with 1 on this one, and `each` for what
/// it made of them, one after the other in their order.
fn in_order<T: Send, E: From<Error>>(
    threads: usize,
    source: impl Read + Send,
    work: impl Fn(Block) -> T + Sync,
    mut each: impl FnMut(T) -> Result<(), E>,
) -> Result<Extent, E> {
    let mut blocks = Blocks::new(source);
    let Some(first) = blocks.next()? else { return Ok(blocks.extent()) };
    each(work(first))?;
    // Most files are large or small. A small one is not worth a thread.
    if blocks.is_read || threads < 2 {
        while let Some(block) = blocks.next()? {
            each(work(block))?;
        }
        return Ok(blocks.extent());
    }
    thread::scope(|scope| {
        let (mut to, mut from): (Vec<SyncSender<Block>>, Vec<Receiver<T>>) = Default::default();
        for _ in 0..threads {
            let (block, blocks) = sync_channel(1);
            let (done, result) = sync_channel(1);
            let work = &work;
            scope.spawn(move || blocks.into_iter().map(work).try_for_each(|made| done.send(made)));
            to.push(block);
            from.push(result);
        }
        let read = scope.spawn(move || {
            for to in to.iter().cycle() {
                let Some(block) = blocks.next()? else { break };
                // Nobody listens any more where `each` failed.
                if to.send(block).is_err() {
                    break;
                }
            }
            Ok(blocks.extent())
        });
        // The first that has nothing more got no block, and those after it neither.
        from.iter().cycle().map_while(|from| from.recv().ok()).try_for_each(&mut each)?;
        drop(from);
        let extent: Result<Extent, Error> = read.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(extent?)
    })
}

/// A block with its compressed packets unpacked.
struct Unpacked {
    bytes: Vec<u8>,
    packets: Vec<Skim>,
    /// Why it ends early.
    fault: Option<Error>,
}

impl Unpacked {
    fn of(block: &Block) -> Unpacked {
        let mut unpacked = Unpacked { bytes: Vec::new(), packets: Vec::new(), fault: None };
        let mut at = 0;
        while let Frame::Whole { header, length } = frame(&block.bytes[at..]) {
            let in_file = block.at + at as u64;
            if let Err(reason) = unpacked.packet(in_file, &block.bytes[at..at + length], header) {
                unpacked.fault = Some(Error::Packet { at: in_file, reason });
                break;
            }
            at += length;
        }
        unpacked
    }

    /// Takes a packet with its frame, and where it is in the file.
    fn packet(&mut self, in_file: u64, framed: &[u8], header: usize) -> Result<(), String> {
        let begin = self.bytes.len();
        match compressed(&framed[header..]) {
            None => self.bytes.extend_from_slice(framed),
            Some(compressed) => inflate(compressed, &mut self.bytes).map_err(|error| error.to_string())?,
        }
        let mut at = begin;
        while let Frame::Whole { header, length } = frame(&self.bytes[at..]) {
            let skim = Skim::of(in_file, &self.bytes, at + header..at + length);
            self.packets.push(skim.ok_or("it is no message")?);
            at += length;
        }
        if at < self.bytes.len() { Err("what it holds is cut off".into()) } else { Ok(()) }
    }
}

/// Calls `each` for every packet of a trace, compressed ones unpacked: for the bytes in which it lies, and where.
pub(super) fn unpacked<E: From<Error>>(
    threads: usize,
    source: impl Read + Send,
    mut each: impl FnMut(&[u8], &Skim) -> Result<(), E>,
) -> Result<Extent, E> {
    in_order(
        threads,
        source,
        |block| Unpacked::of(&block),
        |unpacked| {
            unpacked.packets.iter().try_for_each(|packet| each(&unpacked.bytes, packet))?;
            unpacked.fault.map_or(Ok(()), |fault| Err(fault.into()))
        },
    )
}

/// Copies a trace. `edit` gets packets one after the other, each with its frame, and answers what is to be in their place if they change;
/// of compressed packets those that they hold.
pub(crate) fn rewritten<E: From<Error>>(
    source: impl Read + Send,
    edit: impl Fn(&[u8]) -> Option<Vec<u8>> + Sync,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Extent, E> {
    let rewrite = |block: Block| -> io::Result<Vec<u8>> {
        let (mut out, mut inner, mut at) = (Vec::with_capacity(block.bytes.len()), Vec::new(), 0);
        while let Frame::Whole { header, length } = frame(&block.bytes[at..]) {
            let framed = &block.bytes[at..at + length];
            let changed = match compressed(&framed[header..]) {
                None => edit(framed),
                Some(compressed) => {
                    inner.clear();
                    inflate(compressed, &mut inner)?;
                    edit(&inner).map(|inner| packed(&inner)).transpose()?
                }
            };
            out.extend_from_slice(changed.as_deref().unwrap_or(framed));
            at += length;
        }
        Ok(out)
    };
    in_order(cores(), source, rewrite, |block| write(&block.map_err(Error::Io)?))
}

/// Bytes of a trace up to the end of its last whole packet: what may be joined with other traces.
#[must_use]
pub fn whole_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Frame::Whole { length, .. } = frame(&bytes[at..]) {
        at += length;
    }
    at
}

/// Packets as a compressed one of a trace. Perfetto wants less than 512 KiB of them.
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

/// Appends what was compressed.
fn inflate(compressed: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.reserve(512 << 10);
    let got = ZlibDecoder::new(compressed).take(TOO_LARGE).read_to_end(out)?;
    if got as u64 == TOO_LARGE { Err(io::Error::other("it unpacks to more than 256 MiB")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::reader::wire::put_uint;

    /// A packet with its number for a time, and so many bytes beside.
    fn packet(number: u64, bytes: usize) -> Vec<u8> {
        let (mut packet, mut framed) = (Vec::new(), Vec::new());
        put_uint(&mut packet, trace_packet::TIMESTAMP, number);
        put_bytes(&mut packet, 9_999, &vec![0x55; bytes]);
        put_bytes(&mut framed, trace::PACKET, &packet);
        framed
    }

    /// A file of many blocks, with packets of all sizes, compressed and not; and how many there are.
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

    /// The numbers of a file's packets, and how it ended.
    fn numbers(file: &[u8]) -> (Vec<u64>, Result<Extent, Error>) {
        let mut numbers = Vec::new();
        let read = super::super::read(file, |packet| {
            numbers.extend(packet.time);
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
    fn a_large_file_that_is_cut_off_reads_to_its_last_whole_packet() {
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
    fn what_comes_before_a_fault_in_a_large_file_is_handed_over() {
        let (good, count) = large();
        for fault in [&b"no packet"[..], b"\x0a\x02\x0b\x0b"] {
            let (found, read) = numbers(&[&good[..], fault, &good[..]].concat());
            assert!(matches!(read, Err(Error::Packet { at, .. }) if at == good.len() as u64), "{read:?}");
            assert_eq!(found.len() as u64, count);
        }
    }

    #[test]
    fn who_fails_gets_no_further_packet() {
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
    fn a_length_beyond_the_file_takes_no_memory() {
        let (good, count) = large();
        // A packet of 2^60 bytes.
        let absurd = [&good[..], b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x10", &[0; 5 << 20]].concat();
        let (found, read) = numbers(&absurd);
        assert_eq!(found.len() as u64, count);
        assert_eq!(read.unwrap(), Extent { whole: good.len() as u64, unfinished: 10 + (5 << 20) });
    }

    #[test]
    fn a_copy_is_the_file_but_for_what_is_edited() {
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
