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
        // More than deflate ever adds, which is 5 bytes per block of 16 KiB and a frame.
        self.deflated.reserve(chunk.len() + chunk.len() / 1000 + 64);
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
