//! The packets of a trace file one after the other, however large the file: those inside compressed packets included.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use super::wire::{Value, fields, put_bytes};
use crate::trace::fields::{trace, trace_packet};
use crate::trace::reader;

/// The tag of `Trace.packet`, field 1, length-delimited.
const PACKET: u8 = (trace::PACKET << 3 | 2) as u8;

/// How much of a file is trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes up to the end of the last whole packet.
    pub(super) whole: u64,
    /// Bytes of an unfinished packet behind it: the process was killed while it wrote, or is writing still.
    pub(super) unfinished: u64,
}

/// Calls `each` for every packet of a trace, compressed ones unpacked, in the order of the file.
///
/// An unfinished last packet is left out, and said in the answer.
pub(super) fn packets(path: &Path, mut each: impl FnMut(&[u8]) -> Result<(), String>) -> Result<Extent, String> {
    let failed = |error: io::Error| format!("failed to read {}: {error}", path.display());
    let wrong = |at: u64, what: &str| format!("{}: the packet at byte {at} cannot be read: {what}", path.display());
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut file = BufReader::with_capacity(1 << 18, file);
    let mut at = 0;
    let mut packet = Vec::new();
    let mut inner = Vec::new();
    loop {
        let (length, taken) = match header(&mut file).map_err(failed)? {
            Header::Length(length, taken) => (length, taken),
            Header::End => break,
            Header::Wrong if at == 0 => return Err(format!("{}: {}", path.display(), reader::Error::NotATrace)),
            Header::Wrong => return Err(wrong(at, "no packet begins here")),
        };
        // The length is not to be trusted with memory: the file may be cut, or no trace.
        packet.clear();
        let got = (&mut file).take(length).read_to_end(&mut packet).map_err(failed)?;
        if (got as u64) < length {
            break;
        }
        match compressed(&packet) {
            None => each(&packet)?,
            Some(bytes) => {
                inner.clear();
                let unpacked = ZlibDecoder::new(bytes).read_to_end(&mut inner);
                unpacked.map_err(|error| wrong(at, &error.to_string()))?;
                let mut whole = 0;
                for field in fields(&inner).filter(|field| field.number == trace::PACKET) {
                    whole += field.raw.len();
                    each(field.bytes())?;
                }
                if whole < inner.len() {
                    return Err(wrong(at, "what it holds is cut off"));
                }
            }
        }
        at += taken + length;
    }
    Ok(Extent { whole: at, unfinished: size.saturating_sub(at) })
}

/// The packets in a compressed one; nothing where it is none.
pub(super) fn unpacked(packet: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let Some(bytes) = compressed(packet) else { return Ok(None) };
    let mut inner = Vec::new();
    ZlibDecoder::new(bytes).read_to_end(&mut inner)?;
    Ok(Some(inner))
}

/// Packets as a compressed one of a trace. Perfetto wants less than 512 KiB of them.
pub(super) fn packed(packets: &[u8]) -> io::Result<Vec<u8>> {
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

/// What stands at the front of a packet.
enum Header {
    /// Its length, and how many bytes say so.
    Length(u64, u64),
    /// No packet begins here.
    Wrong,
    /// The file ends here.
    End,
}

fn header(file: &mut impl BufRead) -> io::Result<Header> {
    let mut byte = [0];
    if file.read(&mut byte)? == 0 {
        return Ok(Header::End);
    }
    if byte[0] != PACKET {
        return Ok(Header::Wrong);
    }
    let (mut length, mut taken) = (0, 1);
    for shift in (0..64).step_by(7) {
        if file.read(&mut byte)? == 0 {
            return Ok(Header::End);
        }
        taken += 1;
        length |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Header::Length(length, taken));
        }
    }
    Ok(Header::Wrong)
}
