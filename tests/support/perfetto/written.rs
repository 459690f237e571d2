//! What the packets of a trace contain, counted without Perfetto.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use flate2::read::ZlibDecoder;

use super::check::Problem;
use super::wire::{Malformed, Value, fields, fixed64s, varints};

/// Perfetto's field numbers.
mod field {
    // Trace
    pub(super) const PACKET: u64 = 1;

    // TracePacket
    pub(super) const SEQUENCE_ID: u64 = 10;
    pub(super) const TRACK_EVENT: u64 = 11;
    pub(super) const SEQUENCE_FLAGS: u64 = 13;
    pub(super) const COMPRESSED_PACKETS: u64 = 50;
    pub(super) const GPU_RENDER_STAGE_EVENT: u64 = 53;
    pub(super) const DEFAULTS: u64 = 59;
    pub(super) const TRACK_DESCRIPTOR: u64 = 60;
    pub(super) const TRACE_ATTRIBUTES: u64 = 126;
    pub(super) const GPU_INFO: u64 = 128;

    // TracePacketDefaults
    pub(super) const TRACK_EVENT_DEFAULTS: u64 = 11;

    // TrackEventDefaults and TrackEvent
    pub(super) const TYPE: u64 = 9;
    pub(super) const TRACK_UUID: u64 = 11;
    pub(super) const EXTRA_COUNTER_VALUES: u64 = 12;
    pub(super) const EXTRA_DOUBLE_COUNTER_VALUES: u64 = 46;
    pub(super) const FLOW_IDS: u64 = 47;
    pub(super) const TERMINATING_FLOW_IDS: u64 = 48;

    // TrackDescriptor
    pub(super) const UUID: u64 = 1;
    pub(super) const NAME: u64 = 2;

    // TraceAttributes, GpuInfo: what is repeated in them
    pub(super) const EACH: u64 = 1;
}

/// `SequenceFlags`: earlier state of this sequence is discarded.
const INCREMENTAL_STATE_CLEARED: u64 = 1;

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Track events, by their type.
    pub(super) begins: u64,
    pub(super) ends: u64,
    pub(super) instants: u64,
    /// Values of counters, including those in other events.
    pub(super) counters: u64,
    pub(super) render_stages: u64,
    pub(super) flows: BTreeMap<u64, Flow>,
    pub(super) tracks: BTreeMap<u64, Track>,
    /// Facts about the whole trace; the last value of a key holds.
    pub(super) attributes: BTreeMap<String, String>,
    /// The GPUs, as the last packet about them lists them.
    pub(super) gpus: Vec<Gpu>,
    /// Bytes that cannot be read.
    pub(super) faults: Vec<Problem>,
    /// The track of events that name none, by sequence.
    default_tracks: HashMap<u64, u64>,
}

/// A GPU as the trace describes it, indexed by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its model.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// Its UUID; empty if it is not given.
    pub uuid: Vec<u8>,
}

/// The uses of one flow id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) events: u64,
    pub(super) terminating: u64,
}

impl Flow {
    /// How many arrows it draws. Every event continues the chain, except the first one of each
    /// chain. A terminating event ends one; if there is any, the last event must be terminating.
    pub(super) fn arrows(self) -> u64 {
        self.events.saturating_sub(self.terminating.max(1))
    }
}

/// One track's share.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) name: String,
    pub(super) begins: u64,
    pub(super) ends: u64,
}

impl Written {
    /// Counts the content of a trace file.
    pub(super) fn read(trace: &[u8]) -> Written {
        let mut written = Written::default();
        written.packets(trace, None);
        written
    }

    /// Reads a run of packets: the file, or the content of the compressed packet at offset
    /// `inside`.
    fn packets(&mut self, bytes: &[u8], inside: Option<usize>) {
        let mut run = fields(bytes);
        loop {
            let here = bytes.len() - run.rest().len();
            match run.next() {
                None => return,
                Some(Ok((field::PACKET, Value::Bytes(packet)))) => {
                    let offset = inside.unwrap_or(here);
                    if self.packet(packet, offset).is_err() {
                        self.faults.push(Problem::Malformed { offset });
                    }
                }
                // Perfetto skips unknown fields, and a later release may write some.
                Some(Ok(_)) => {}
                Some(Err(Malformed)) => {
                    self.faults.push(Problem::Incomplete { offset: inside.unwrap_or(here), bytes: bytes.len() - here });
                    return;
                }
            }
        }
    }

    fn packet(&mut self, packet: &[u8], offset: usize) -> Result<(), Malformed> {
        let mut sequence = 0;
        let mut cleared = false;
        let mut defaults = None;
        let mut event = None;
        for field in fields(packet) {
            match field? {
                (field::SEQUENCE_ID, Value::Varint(id)) => sequence = id,
                (field::SEQUENCE_FLAGS, Value::Varint(flags)) => {
                    cleared = flags & INCREMENTAL_STATE_CLEARED != 0;
                }
                (field::DEFAULTS, Value::Bytes(message)) => defaults = Some(message),
                (field::TRACK_EVENT, Value::Bytes(message)) => event = Some(message),
                (field::TRACK_DESCRIPTOR, Value::Bytes(message)) => self.descriptor(message)?,
                (field::TRACE_ATTRIBUTES, Value::Bytes(message)) => {
                    for mut fact in texts_of(message)? {
                        let value = fact.remove(&3).unwrap_or_default();
                        self.attributes.insert(text(fact.remove(&1)), text(Some(value)));
                    }
                }
                (field::GPU_INFO, Value::Bytes(message)) => {
                    let gpu = |mut it: BTreeMap<u64, Vec<u8>>| Gpu {
                        name: text(it.remove(&1)),
                        vendor: text(it.remove(&2)),
                        uuid: it.remove(&5).unwrap_or_default(),
                    };
                    self.gpus = texts_of(message)?.into_iter().map(gpu).collect();
                }
                (field::GPU_RENDER_STAGE_EVENT, Value::Bytes(_)) => self.render_stages += 1,
                (field::COMPRESSED_PACKETS, Value::Bytes(zlib)) => {
                    let mut inside = Vec::new();
                    let inflated = ZlibDecoder::new(zlib).read_to_end(&mut inside);
                    inflated.map_err(|_| Malformed)?;
                    self.packets(&inside, Some(offset));
                }
                _ => {}
            }
        }
        if cleared {
            self.default_tracks.remove(&sequence);
        }
        if let Some(message) = defaults {
            let track = default_track(message)?;
            self.default_tracks.insert(sequence, track);
        }
        if let Some(message) = event {
            let track = self.default_tracks.get(&sequence).copied();
            self.event(message, track.unwrap_or_default())?;
        }
        Ok(())
    }

    fn descriptor(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut uuid = 0;
        let mut name = String::new();
        for field in fields(message) {
            match field? {
                (field::UUID, Value::Varint(number)) => uuid = number,
                (field::NAME, Value::Bytes(text)) => {
                    name = String::from_utf8_lossy(text).into_owned();
                }
                _ => {}
            }
        }
        self.tracks.entry(uuid).or_default().name = name;
        Ok(())
    }

    fn event(&mut self, message: &[u8], default_track: u64) -> Result<(), Malformed> {
        let mut kind = 0;
        let mut track = default_track;
        for field in fields(message) {
            match field? {
                (field::TYPE, Value::Varint(number)) => kind = number,
                (field::TRACK_UUID, Value::Varint(uuid)) => track = uuid,
                (
                    field::EXTRA_COUNTER_VALUES | field::EXTRA_DOUBLE_COUNTER_VALUES,
                    Value::Varint(_) | Value::Fixed64(_),
                ) => self.counters += 1,
                (field::EXTRA_COUNTER_VALUES, Value::Bytes(packed)) => {
                    self.counters += varints(packed).count() as u64;
                }
                (field::EXTRA_DOUBLE_COUNTER_VALUES, Value::Bytes(packed)) => {
                    self.counters += fixed64s(packed).count() as u64;
                }
                (field::FLOW_IDS, Value::Fixed64(id)) => self.flow(id, false),
                (field::FLOW_IDS, Value::Bytes(packed)) => {
                    fixed64s(packed).for_each(|id| self.flow(id, false));
                }
                (field::TERMINATING_FLOW_IDS, Value::Fixed64(id)) => self.flow(id, true),
                (field::TERMINATING_FLOW_IDS, Value::Bytes(packed)) => {
                    fixed64s(packed).for_each(|id| self.flow(id, true));
                }
                _ => {}
            }
        }
        match kind {
            1 => {
                self.begins += 1;
                self.tracks.entry(track).or_default().begins += 1;
            }
            2 => {
                self.ends += 1;
                self.tracks.entry(track).or_default().ends += 1;
            }
            3 => self.instants += 1,
            4 => self.counters += 1,
            _ => {}
        }
        Ok(())
    }

    fn flow(&mut self, id: u64, terminating: bool) {
        let flow = self.flows.entry(id).or_default();
        flow.events += 1;
        flow.terminating += u64::from(terminating);
    }
}

/// The texts and bytes in each of a message's repeated messages, by field number.
fn texts_of(message: &[u8]) -> Result<Vec<BTreeMap<u64, Vec<u8>>>, Malformed> {
    let mut all = Vec::new();
    for field in fields(message) {
        if let (field::EACH, Value::Bytes(one)) = field? {
            let mut texts = BTreeMap::new();
            for field in fields(one) {
                if let (number, Value::Bytes(bytes)) = field? {
                    texts.insert(number, bytes.to_vec());
                }
            }
            all.push(texts);
        }
    }
    Ok(all)
}

fn text(bytes: Option<Vec<u8>>) -> String {
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

fn default_track(defaults: &[u8]) -> Result<u64, Malformed> {
    let mut track = 0;
    for field in fields(defaults) {
        if let (field::TRACK_EVENT_DEFAULTS, Value::Bytes(message)) = field? {
            for field in fields(message) {
                if let (field::TRACK_UUID, Value::Varint(uuid)) = field? {
                    track = uuid;
                }
            }
        }
    }
    Ok(track)
}
