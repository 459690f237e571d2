//! Reads traces, however large: the packets of a file in their order, with what earlier ones said for them.
//!
//! ```text
//!   blocks   whole packets of the file, unpacked side by side on all cores
//!   follow   what a packet leaves unsaid: its sequence's clock, default track and names
//!   wire     protobuf's encoding, field by field
//! ```
//!
//! Memory does not grow with the file. An event's arguments are decoded when they are asked for.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use prost::Message as _;

use super::fields::clock_id;

pub(crate) mod blocks;
mod follow;
pub(crate) mod wire;

pub use self::blocks::{Extent, whole_length};
pub use self::follow::{Event, Packet};
pub(crate) use self::follow::{Sequences, TERMINATING_FLOW_IDS};

/// Perfetto's messages and ours, generated from `proto/`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod proto {
    /// Package `perfetto.protos`.
    pub mod perfetto {
        /// The messages.
        pub mod protos {
            include!(concat!(env!("OUT_DIR"), "/perfetto.protos.rs"));
        }
    }
    /// Package `ncclscope`.
    pub mod ncclscope {
        include!(concat!(env!("OUT_DIR"), "/ncclscope.rs"));
    }
}

/// What a clock snapshot says is to be added to the trace's times for those since 1970, ns.
pub(crate) fn to_utc_ns(packet: &TracePacket) -> Option<i64> {
    let clocks = &packet.clock_snapshot.as_ref()?.clocks;
    let reads = |id: u64| Some(clocks.iter().find(|it| u64::from(it.clock_id()) == id)?.timestamp() as i64);
    Some(reads(clock_id::REALTIME)?.saturating_sub(reads(clock_id::BOOTTIME)?))
}

pub use proto::ncclscope::Nccl;
pub use proto::perfetto::protos::{Trace, TracePacket, TrackEvent};

/// Why a trace cannot be read, or not to its end. The packets before the fault were handed over.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Io(io::Error),
    /// The first byte is not that of a packet.
    NotATrace,
    /// A packet cannot be decoded.
    Packet {
        /// Where it begins, or the compressed packet that holds it.
        at: u64,
        /// Why.
        reason: String,
    },
    /// A packet's time is on this clock, which nothing relates to the clock of the trace.
    Clock(u64),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io(error) => write!(f, "{error}"),
            Error::NotATrace => write!(f, "this is not a Perfetto trace: it does not begin with a packet"),
            Error::Packet { at, reason } => write!(f, "the packet at byte {at} cannot be read: {reason}"),
            Error::Clock(clock) => {
                write!(f, "it has times on clock {clock}, which nothing relates to the clock of the trace")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

/// Calls `each` for every packet of a trace, in their order, until it fails.
///
/// # Errors
///
/// See [`Error`]; and what `each` answers.
pub fn read<E: From<Error>>(
    source: impl Read + Send,
    each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    read_on(blocks::cores(), source, each)
}

/// The same with so many threads to unpack; with one, on this thread alone.
pub(crate) fn read_on<E: From<Error>>(
    threads: usize,
    source: impl Read + Send,
    mut each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    let mut sequences = Sequences::default();
    blocks::unpacked(threads, source, |bytes, skim| each(&sequences.take(bytes, skim)?))
}

/// The same for a file.
///
/// # Errors
///
/// See [`read`].
pub fn read_file<E: From<Error>>(path: &Path, each: impl FnMut(&Packet<'_>) -> Result<(), E>) -> Result<Extent, E> {
    read(File::open(path).map_err(Error::Io)?, each)
}

/// Calls `each` for every packet of a trace, all of it decoded.
///
/// # Errors
///
/// See [`Error`].
pub fn decoded(bytes: &[u8], mut each: impl FnMut(TracePacket)) -> Result<Extent, Error> {
    blocks::unpacked(blocks::cores(), bytes, |bytes, skim| {
        let packet = TracePacket::decode(skim.raw(bytes));
        each(packet.map_err(|error| Error::Packet { at: skim.at, reason: error.to_string() })?);
        Ok(())
    })
}
