//! Reads traces of any size: the packets of a file in order, completed by what earlier packets
//! said.
//!
//! ```text
//!   blocks   whole packets of the file, decompressed in parallel on all cores
//!   skim     what a packet says by itself, and where
//!   follow   what it leaves out: its sequence's clock, default track and names
//!   event    an event and its arguments
//!   ends     where a long file can be read from, instead of from its beginning
//!   wire     protobuf's encoding, field by field
//!   numbered values by number: of sequences, of tracks
//! ```
//!
//! Memory does not grow with the file. An event's arguments are decoded on demand.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use prost::{DecodeError, Message as _};

use super::fields::clock_id;
use super::names;
use crate::model::time::HostNs;

pub(crate) mod blocks;
mod ends;
mod event;
mod follow;
mod numbered;
mod skim;
pub(crate) mod wire;

pub use self::blocks::{Extent, whole_length};
pub(crate) use self::ends::{Ends, HEAD};
pub use self::event::Event;
pub(crate) use self::event::{Numbers, TERMINATING_FLOW_IDS, nccl, uints};
pub use self::follow::Packet;
pub(crate) use self::follow::Sequences;
pub(crate) use self::numbered::Numbered;

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

/// What to add to the trace's times to get ns since 1970, according to a clock snapshot.
pub(crate) fn to_utc_ns(packet: &TracePacket) -> Option<i64> {
    let clocks = &packet.clock_snapshot.as_ref()?.clocks;
    let reads = |id: u64| Some(clocks.iter().find(|it| u64::from(it.clock_id()) == id)?.timestamp() as i64);
    Some(reads(clock_id::REALTIME)?.saturating_sub(reads(clock_id::BOOTTIME)?))
}

impl proto::perfetto::protos::ProcessDescriptor {
    /// The process's id on its host: a merge may have given it another one.
    pub(crate) fn own_pid(&self) -> i32 {
        self.process_labels.iter().find_map(|label| names::told_pid(label)).unwrap_or(self.pid())
    }
}

pub use proto::ncclscope::Nccl;
pub use proto::perfetto::protos::{Trace, TracePacket, TrackEvent};

/// Why a trace cannot be read, or not to its end. The packets before the fault were passed on.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Io(io::Error),
    /// The first byte does not start a packet.
    NotATrace,
    /// A packet cannot be decoded.
    Packet {
        /// Where it begins, or the compressed packet that contains it.
        at: u64,
        /// Why.
        damage: Damage,
    },
    /// A packet's time is on this clock, which nothing relates to the trace's clock.
    Clock(u64),
}

/// What is wrong with a packet.
#[derive(Debug)]
pub enum Damage {
    /// Its first byte is not that of a packet.
    NoPacket,
    /// It claims this many more bytes than the file has, which is more than a packet can have.
    TooLong(u64),
    /// What it holds cannot be unpacked.
    Packed(io::Error),
    /// It is not a Protobuf message.
    NoMessage,
    /// The last of the packets that it holds is cut off.
    CutOff,
    /// It is a Protobuf message, but not a packet.
    Message(DecodeError),
    /// It is a packet, but none that a recording writes; says why.
    Foreign(&'static str),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::NoPacket => f.write_str("no packet begins here"),
            Damage::TooLong(missing) => write!(f, "it claims to have {missing} more bytes"),
            Damage::Packed(error) => write!(f, "{error}"),
            Damage::NoMessage => f.write_str("it is not a message"),
            Damage::CutOff => f.write_str("its content is cut off"),
            Damage::Message(error) => write!(f, "{error}"),
            Damage::Foreign(why) => f.write_str(why),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Io(error) => write!(f, "{error}"),
            Error::NotATrace => write!(f, "this is not a Perfetto trace: it does not begin with a packet"),
            Error::Packet { at, damage } => write!(f, "the packet at byte {at} cannot be read: {damage}"),
            Error::Clock(clock) => {
                write!(f, "it has times on clock {clock}, which nothing relates to the clock of the trace")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) | Error::Packet { damage: Damage::Packed(error), .. } => Some(error),
            Error::Packet { damage: Damage::Message(error), .. } => Some(error),
            Error::Packet { .. } | Error::NotATrace | Error::Clock(_) => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

/// Calls `each` for every packet of a trace, in order, until it fails.
///
/// # Errors
///
/// See [`Error`]; and whatever `each` returns.
pub fn read<E: From<Error>>(
    source: impl Read + Send,
    each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    read_on(blocks::cores(), source, each)
}

/// The same with this many threads to unpack; with one, on this thread alone.
pub(crate) fn read_on<E: From<Error>>(
    threads: usize,
    source: impl Read + Send,
    mut each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    let (mut sequences, none) = (Sequences::default(), |_| None);
    blocks::unpacked(threads, (source, 0), &none, |at, bytes, skim| sequences.take(at, bytes, skim, &mut each))
}

/// The same for at most `most` bytes of a file from `from` on, where its recording begins or was
/// restarted.
pub(crate) fn read_part<E: From<Error>>(
    threads: usize,
    file: &mut File,
    (from, most): (u64, u64),
    mut each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    file.seek(SeekFrom::Start(from)).map_err(Error::Io)?;
    let (mut sequences, none) = (Sequences::default(), |_| None);
    let part = (file.take(most), from);
    blocks::unpacked(threads, part, &none, |at, bytes, skim| sequences.take(at, bytes, skim, &mut each))
}

/// For a compressed packet, by its position in the file: `Some` if it is skipped instead of
/// unpacked, with the last time on each of its sequences that count in deltas. It must contain
/// nothing that later packets leave out.
pub(crate) type Passed<'a> = dyn Fn(u64) -> Option<&'a [(u64, HostNs)]> + Sync + 'a;

/// The same without the packets that are skipped.
pub(crate) fn read_parts<E: From<Error>>(
    source: impl Read + Send,
    passed: &Passed<'_>,
    mut each: impl FnMut(&Packet<'_>) -> Result<(), E>,
) -> Result<Extent, E> {
    let mut sequences = Sequences::default();
    blocks::unpacked(blocks::cores(), (source, 0), passed, |at, bytes, skim| match skim.is_passed() {
        true => {
            sequences.pass(passed(at).unwrap_or_default());
            Ok(())
        }
        false => sequences.take(at, bytes, skim, &mut each),
    })
}

/// The same for a file.
///
/// # Errors
///
/// See [`read`].
pub fn read_file<E: From<Error>>(path: &Path, each: impl FnMut(&Packet<'_>) -> Result<(), E>) -> Result<Extent, E> {
    read(File::open(path).map_err(Error::Io)?, each)
}

/// Calls `each` for every packet of a trace, fully decoded.
///
/// # Errors
///
/// See [`Error`].
pub fn decoded(bytes: &[u8], mut each: impl FnMut(TracePacket)) -> Result<Extent, Error> {
    blocks::unpacked(blocks::cores(), (bytes, 0), &|_| None, |at, bytes, skim| {
        let packet = TracePacket::decode(skim.raw(bytes));
        each(packet.map_err(|error| Error::Packet { at, damage: Damage::Message(error) })?);
        Ok(())
    })
}
