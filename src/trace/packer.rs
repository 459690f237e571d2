//! Packets in one compressed packet (pure).

use flate2::{Compress, Compression, FlushCompress, Status};

use super::fields::{trace, trace_packet};
use super::wire::Buf;

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

    /// One packet that contains these packets; the packets themselves if they cannot be compressed.
    #[must_use]
    pub fn pack<'p>(&'p mut self, chunk: &'p [u8]) -> &'p [u8] {
        self.zlib.reset();
        self.deflated.clear();
        self.deflated.reserve(deflated_at_most(chunk.len()));
        let status = self.zlib.compress_vec(chunk, &mut self.deflated, FlushCompress::Finish);
        if !matches!(status, Ok(Status::StreamEnd)) {
            return chunk;
        }
        self.packet.clear();
        let deflated = &self.deflated;
        self.packet.message(trace::PACKET, |packet| packet.bytes_field(trace_packet::COMPRESSED_PACKETS, deflated));
        self.packet.bytes()
    }
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
