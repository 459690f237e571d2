//! Reads traces: the packets of a file, those inside compressed packets included.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::ZlibDecoder;
use prost::Message as _;

use super::fields::clock_id;

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

pub use proto::ncclscope::Nccl;
pub use proto::perfetto::protos::{Trace, TracePacket, TrackEvent};

/// Why a trace cannot be read, or not to its end.
#[derive(Debug)]
pub enum Error {
    /// The first byte is not that of a packet.
    NotATrace,
    /// The file ends inside a packet, which begins at this byte: a process was killed while it wrote, or the
    /// disk was full. All packets before it are good.
    Cut(u64),
    /// A packet cannot be decoded.
    Packet {
        /// Where it begins.
        at: u64,
        /// What the decoder says.
        reason: String,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::NotATrace => write!(f, "this is not a Perfetto trace: it does not begin with a packet"),
            Error::Cut(at) => write!(f, "the trace ends inside the packet at byte {at}; everything before it is good"),
            Error::Packet { at, reason } => write!(f, "the packet at byte {at} cannot be read: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// What the packets of our traces leave unsaid, by sequence: the time that the next one's counts from, the default track, names.
#[derive(Default)]
pub struct Sequences(HashMap<u32, Sequence>);

#[derive(Default)]
struct Sequence {
    last: i64,
    track: u64,
    names: HashMap<u64, Arc<str>>,
    categories: HashMap<u64, Arc<str>>,
}

/// An event, with what its packet left unsaid.
pub struct Event {
    /// When, in ns of the trace's clock.
    pub time: i64,
    /// The uuid of its track.
    pub track: u64,
    /// Its name; empty for an end.
    pub name: Arc<str>,
    /// Its category; empty where it has none.
    pub category: Arc<str>,
    /// All else.
    pub event: TrackEvent,
}

impl Sequences {
    /// Follows the next packet of a trace, and takes its event out of it, if it has one.
    pub fn take(&mut self, packet: &mut TracePacket) -> Option<Event> {
        let sequence = self.0.entry(packet.trusted_packet_sequence_id()).or_default();
        if let Some(snapshot) = &packet.clock_snapshot {
            let delta = snapshot.clocks.iter().find(|clock| u64::from(clock.clock_id()) == clock_id::DELTA);
            sequence.last = delta.map_or(sequence.last, |clock| clock.timestamp() as i64);
        }
        if let Some(defaults) = packet.trace_packet_defaults.as_ref().and_then(|it| it.track_event_defaults.as_ref()) {
            sequence.track = defaults.track_uuid();
        }
        if let Some(interned) = &packet.interned_data {
            sequence.names.extend(interned.event_names.iter().map(|it| (it.iid(), it.name().into())));
            sequence.categories.extend(interned.event_categories.iter().map(|it| (it.iid(), it.name().into())));
        }
        let event = packet.track_event.take()?;
        let time = match packet.timestamp_clock_id {
            Some(_) => packet.timestamp.unwrap_or(0) as i64,
            None => {
                sequence.last = sequence.last.saturating_add(packet.timestamp.unwrap_or(0) as i64);
                sequence.last
            }
        };
        let name = match event.name_iid {
            Some(iid) => sequence.names.get(&iid).cloned().unwrap_or_default(),
            None => event.name().into(),
        };
        let category = event.category_iids.first().and_then(|iid| sequence.categories.get(iid)).cloned();
        let track = event.track_uuid.unwrap_or(sequence.track);
        Some(Event { time, track, name, category: category.unwrap_or_default(), event })
    }
}

/// Calls `each` for every packet of a trace, compressed ones unpacked.
///
/// # Errors
///
/// See [`Error`]. The packets before the fault were handed over.
pub fn packets(bytes: &[u8], mut each: impl FnMut(TracePacket)) -> Result<(), Error> {
    walk(bytes, |at, packet| {
        let bad = |reason: String| Error::Packet { at, reason };
        let packet = TracePacket::decode(packet).map_err(|error| bad(error.to_string()))?;
        let Some(compressed) = &packet.compressed_packets else {
            each(packet);
            return Ok(());
        };
        let mut inner = Vec::new();
        ZlibDecoder::new(&compressed[..]).read_to_end(&mut inner).map_err(|error| bad(error.to_string()))?;
        walk(&inner, |_, packet| {
            each(TracePacket::decode(packet).map_err(|error| bad(error.to_string()))?);
            Ok(())
        })
        .map_err(|error| bad(error.to_string()))
    })
}

/// Bytes of a trace up to the end of its last whole packet: what may be joined with other traces.
#[must_use]
pub fn whole_length(bytes: &[u8]) -> usize {
    match walk(bytes, |_, _| Ok(())) {
        Err(Error::Cut(at) | Error::Packet { at, .. }) => at as usize,
        Err(Error::NotATrace) => 0,
        Ok(()) => bytes.len(),
    }
}

fn walk(bytes: &[u8], mut each: impl FnMut(u64, &[u8]) -> Result<(), Error>) -> Result<(), Error> {
    /// Field 1, length-delimited: `Trace.packet`.
    const PACKET: u8 = 0x0a;
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != PACKET {
            return Err(if at == 0 {
                Error::NotATrace
            } else {
                Error::Packet { at: at as u64, reason: "no packet here".into() }
            });
        }
        let mut rest = &bytes[at + 1..];
        let cut = Error::Cut(at as u64);
        let Ok(length) = prost::encoding::decode_varint(&mut rest) else { return Err(cut) };
        let Some(packet) = usize::try_from(length).ok().and_then(|length| rest.get(..length)) else {
            return Err(cut);
        };
        each(at as u64, packet)?;
        at = bytes.len() - rest.len() + packet.len();
    }
    Ok(())
}
