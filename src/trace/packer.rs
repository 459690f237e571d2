//! Packets in compressed packets (pure).

use flate2::{Compress, Compression, FlushCompress, Status};

use super::fields::{trace, trace_packet};
use super::wire::{Buf, fields};
use super::writer::marker_length;

/// Wraps packets into one compressed packet. Equal packets make equal bytes.
pub struct Packer {
    zlib: Compress,
    deflated: Vec<u8>,
    packet: Buf,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer::new()
    }
}

/// The most bytes that are compressed together: Perfetto wants less than 512 KiB.
const MOST: usize = 384 << 10;

/// The most bytes that zlib's fastest level makes of this many: it may encode each byte in 9 bits.
#[must_use]
pub const fn deflated_at_most(length: usize) -> usize {
    length + length / 8 + 64
}

impl Packer {
    /// For a new file.
    #[must_use]
    pub fn new() -> Packer {
        // With zlib's header: Perfetto rejects a bare deflate stream.
        Packer { zlib: Compress::new(Compression::fast(), true), deflated: Vec::new(), packet: Buf::new() }
    }

    /// These packets in one packet, or in several if they are many; the packets themselves if they
    /// cannot be compressed. If the first one marks a restart, it stays outside, where it can be
    /// found.
    #[must_use]
    pub fn pack<'p>(&'p mut self, chunk: &'p [u8]) -> &'p [u8] {
        let (marker, mut packets) = chunk.split_at(marker_length(chunk));
        self.packet.clear();
        self.packet.raw(marker);
        while !packets.is_empty() {
            let (some, others) = packets.split_at(together(packets));
            self.zlib.reset();
            self.deflated.clear();
            self.deflated.reserve(deflated_at_most(some.len()));
            let status = self.zlib.compress_vec(some, &mut self.deflated, FlushCompress::Finish);
            if !matches!(status, Ok(Status::StreamEnd)) {
                return chunk;
            }
            let deflated = &self.deflated;
            self.packet.message(trace::PACKET, |packet| packet.bytes_field(trace_packet::COMPRESSED_PACKETS, deflated));
            packets = others;
        }
        self.packet.bytes()
    }
}

/// The length of the first of these packets that may be compressed together.
fn together(packets: &[u8]) -> usize {
    if packets.len() <= MOST {
        return packets.len();
    }
    let mut length = 0;
    for packet in fields(packets) {
        if length > 0 && length + packet.raw.len() > MOST {
            return length;
        }
        length += packet.raw.len();
    }
    packets.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compressed_has_room_too() {
        let mut state = 1_u64;
        // Most of these bytes take 9 bits.
        let chunk: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8 | 0x90
        })
        .take(256 << 10)
        .collect();
        let mut packer = Packer::new();
        let packed = packer.pack(&chunk);
        assert_ne!(packed, chunk, "it found no room");
    }
}
