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
    is_read: bool,
}

impl<R: Read> Blocks<R> {
    fn new(source: R) -> Blocks<R> {
        Blocks { source, at: 0, rest: Vec::new(), is_read: false }
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
        let skipped = io::copy(&mut (&mut self.source).take(needed), &mut io::sink())?;
        if skipped == needed {
            return Err(Error::Packet { at: self.at, reason: format!("it claims {needed} bytes more") });
        }
        self.is_read = true;
        Ok(None)
    }

    fn extent(&self) -> Extent {
        Extent { whole: self.at, unfinished: self.rest.len() as u64 }
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

/// Calls `work` for each block of a file, side by side, and `each` for what it made of them, one after the other in their order.
pub(crate) fn in_order<T: Send, E: From<Error>>(
    source: impl Read + Send,
    work: impl Fn(Block) -> T + Sync,
    mut each: impl FnMut(T) -> Result<(), E>,
) -> Result<Extent, E> {
    let mut blocks = Blocks::new(source);
    let Some(first) = blocks.next()? else { return Ok(blocks.extent()) };
    each(work(first))?;
    // Most files are large or small. A small one is not worth a thread.
    if blocks.is_read {
        while let Some(block) = blocks.next()? {
            each(work(block))?;
        }
        return Ok(blocks.extent());
    }
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS);
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
    source: impl Read + Send,
    mut each: impl FnMut(&[u8], &Skim) -> Result<(), E>,
) -> Result<Extent, E> {
    in_order(
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
    in_order(source, rewrite, |block| write(&block.map_err(Error::Io)?))
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
