//! What a packet leaves out: follows each sequence's delta clock, default track and interned names
//! through a file.

use std::ops::Range;
use std::sync::Arc;

use prost::Message as _;
use rustc_hash::FxHashMap;

use super::proto::perfetto::protos::TrackDescriptor;
use super::proto::perfetto::protos::track_event::Type;
use super::wire::{Field, fields};
use super::{Error, Nccl};
use crate::model::time::HostNs;
use crate::trace::fields::{
    clock_id, clock_snapshot, event_name, interned_data, trace_packet, trace_packet_defaults, track_event,
    track_event_defaults,
};

/// `TrackEvent.terminating_flow_ids`, which we do not write but others do.
pub(crate) const TERMINATING_FLOW_IDS: u32 = 48;

/// Ids of clocks that belong to one sequence.
const PRIVATE_CLOCKS: Range<u64> = 64..128;

/// What a packet says by itself, and where that is in its block: the half of reading that needs no
/// other packet.
#[derive(Clone, Debug)]
pub(super) struct Skim {
    /// Where the packet, or the compressed one that contains it, begins in the file.
    pub(super) at: u64,
    raw: Part,
    sequence: u64,
    timestamp: Option<u64>,
    clock: Option<u64>,
    clears_state: bool,
    /// It says something that later packets of its sequence leave out.
    lasts: bool,
    descriptor: Part,
    event: Option<EventSkim>,
}

#[derive(Clone, Debug, Default)]
struct EventSkim {
    raw: Part,
    kind: u64,
    track: Option<u64>,
    category: Option<u64>,
    name: Option<u64>,
    inline_name: Part,
    args: Part,
    correlation: Option<u64>,
    value: Option<i64>,
}

/// The position of a part of a block; empty if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    at: u32,
    length: u32,
}

impl Part {
    /// The position of `part` in `block`.
    fn of(block: &[u8], part: &[u8]) -> Part {
        let at = (part.as_ptr() as usize).wrapping_sub(block.as_ptr() as usize);
        Part { at: at as u32, length: part.len() as u32 }
    }

    fn get(self, block: &[u8]) -> &[u8] {
        let at = self.at as usize;
        block.get(at..at + self.length as usize).unwrap_or_default()
    }
}

impl Skim {
    /// Reads the packet at this place in its block, which is smaller than 4 GiB. `None` if it is no
    /// message.
    pub(super) fn of(at: u64, block: &[u8], place: Range<usize>) -> Option<Skim> {
        let raw = &block[place];
        let mut skim = Skim {
            at,
            raw: Part::of(block, raw),
            sequence: 0,
            timestamp: None,
            clock: None,
            clears_state: false,
            lasts: false,
            descriptor: Part::default(),
            event: None,
        };
        let mut fields = fields(raw);
        for field in fields.by_ref() {
            match field.number {
                trace_packet::TRUSTED_PACKET_SEQUENCE_ID => skim.sequence = field.uint(),
                trace_packet::SEQUENCE_FLAGS => skim.clears_state = field.uint() & 1 != 0,
                trace_packet::TIMESTAMP => skim.timestamp = Some(field.uint()),
                trace_packet::TIMESTAMP_CLOCK_ID => skim.clock = Some(field.uint()),
                trace_packet::CLOCK_SNAPSHOT | trace_packet::INTERNED_DATA | trace_packet::TRACE_PACKET_DEFAULTS => {
                    skim.lasts = true;
                }
                trace_packet::TRACK_DESCRIPTOR => skim.descriptor = Part::of(block, field.bytes()),
                trace_packet::TRACK_EVENT => skim.event = Some(EventSkim::of(block, field.bytes())),
                _ => {}
            }
        }
        (!fields.is_damaged()).then_some(skim)
    }

    pub(super) fn raw<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        self.raw.get(block)
    }
}

impl EventSkim {
    fn of(block: &[u8], event: &[u8]) -> EventSkim {
        let mut skim = EventSkim { raw: Part::of(block, event), ..EventSkim::default() };
        for field in fields(event) {
            match field.number {
                track_event::TYPE => skim.kind = field.uint(),
                track_event::TRACK_UUID => skim.track = Some(field.uint()),
                // The first one counts.
                track_event::CATEGORY_IIDS => skim.category = skim.category.or(Some(field.uint())),
                track_event::NAME_IID => skim.name = Some(field.uint()),
                track_event::NAME => skim.inline_name = Part::of(block, field.bytes()),
                track_event::NCCL => skim.args = Part::of(block, field.bytes()),
                track_event::CORRELATION_ID => skim.correlation = Some(field.uint()),
                track_event::COUNTER_VALUE => skim.value = Some(field.uint().cast_signed()),
                _ => {}
            }
        }
        skim
    }
}

/// The state of all sequences of a file.
#[derive(Default)]
pub(crate) struct Sequences(FxHashMap<u64, Sequence>);

/// The state of one sequence.
#[derive(Default)]
struct Sequence {
    clocks: Vec<(u64, Clock)>,
    default_clock: Option<u64>,
    default_track: u64,
    names: FxHashMap<u64, Interned>,
    categories: FxHashMap<u64, Interned>,
    /// Entries of other dictionaries.
    others: FxHashMap<(u32, u64), Vec<u8>>,
}

/// An interned name: its entry as written, and its text.
struct Interned {
    raw: Vec<u8>,
    text: Arc<str>,
}

#[derive(Clone, Copy)]
struct Clock {
    /// The last reading.
    time: u64,
    /// What to add to get the trace's clock.
    offset: i64,
    is_delta: bool,
}

impl Clock {
    /// A reading of it on the trace's clock.
    fn in_trace(&self, reading: u64) -> HostNs {
        HostNs(reading.wrapping_add_signed(self.offset))
    }
}

/// A packet and what it means.
pub struct Packet<'a> {
    /// The packet as written.
    pub raw: &'a [u8],
    /// Where it begins in the file, or the compressed one that holds it.
    pub(crate) at: u64,
    /// The sequence that it belongs to.
    pub sequence: u64,
    /// Its time, in ns of the trace's clock.
    pub time: Option<HostNs>,
    /// Its time is given as the distance from the previous packet of its sequence.
    pub(crate) is_delta: bool,
    /// It starts its sequence, or restarts it.
    pub(crate) clears_state: bool,
    /// It sets defaults for the later packets of its sequence.
    pub(crate) has_defaults: bool,
    /// The track that it describes.
    pub(crate) descriptor: Option<&'a [u8]>,
    /// A slice's begin or end, an instant, a counter's value.
    pub event: Option<Event<'a>>,
    state: &'a Sequence,
}

/// A slice's begin or end, an instant, a counter's value.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// Its `track_event::Type`.
    pub(crate) kind: u64,
    /// The uuid of its track.
    pub track: u64,
    /// Its name; empty for an end.
    pub name: &'a str,
    /// Its category; empty if it has none.
    pub category: &'a str,
    /// The number that marks an operation on all ranks.
    pub correlation: Option<u64>,
    /// A counter's value.
    pub(crate) value: Option<i64>,
    shared_name: Option<&'a Arc<str>>,
    args: &'a [u8],
    /// As it stands in its packet.
    pub(crate) raw: &'a [u8],
}

impl Packet<'_> {
    /// Decodes the packet, with everything that it says itself.
    ///
    /// # Errors
    ///
    /// If it is no packet.
    pub fn decode(&self) -> Result<super::TracePacket, prost::DecodeError> {
        super::TracePacket::decode(self.raw)
    }

    /// The track that it describes.
    #[must_use]
    pub fn track_descriptor(&self) -> Option<TrackDescriptor> {
        self.descriptor.and_then(|descriptor| TrackDescriptor::decode(descriptor).ok())
    }

    /// An interned entry of its sequence, as written.
    pub(crate) fn interned(&self, dictionary: u32, iid: u64) -> Option<&[u8]> {
        let name = match dictionary {
            interned_data::EVENT_NAMES => self.state.names.get(&iid),
            interned_data::EVENT_CATEGORIES => self.state.categories.get(&iid),
            _ => return self.state.others.get(&(dictionary, iid)).map(Vec::as_slice),
        };
        Some(&name?.raw)
    }

    /// All interned entries of its sequence except the names of events and categories.
    pub(crate) fn other_interned(&self) -> impl Iterator<Item = (u32, u64)> {
        self.state.others.keys().copied()
    }

    /// The current reading of its sequence's delta clock, as the trace's time.
    pub(crate) fn delta_clock(&self) -> Option<HostNs> {
        let (_, clock) = self.state.clocks.iter().find(|(_, clock)| clock.is_delta)?;
        Some(clock.in_trace(clock.time))
    }
}

impl<'a> Event<'a> {
    /// Its type.
    #[must_use]
    pub fn r#type(&self) -> Type {
        i32::try_from(self.kind).ok().and_then(|kind| Type::try_from(kind).ok()).unwrap_or_default()
    }

    /// Its name, for keeping: all events with that name share one text.
    #[must_use]
    pub fn shared_name(&self) -> Arc<str> {
        self.shared_name.cloned().unwrap_or_else(|| self.name.into())
    }

    /// Our arguments, decoded; all absent if they are damaged.
    #[must_use]
    pub fn nccl(&self) -> Nccl {
        Nccl::decode(self.args).unwrap_or_default()
    }

    /// Our arguments, as written.
    pub(crate) fn args(&self) -> &'a [u8] {
        self.args
    }

    /// One of our arguments, by its field number in `Nccl`.
    pub(crate) fn arg(&self, number: u32) -> Option<Field<'a>> {
        fields(self.args).find(|field| field.number == number)
    }

    /// One of our arguments, as a number.
    pub(crate) fn uint(&self, number: u32) -> Option<u64> {
        self.arg(number).map(|field| field.uint())
    }

    /// One of our arguments, as text.
    pub(crate) fn text(&self, number: u32) -> Option<String> {
        self.arg(number).map(|field| String::from_utf8_lossy(field.bytes()).into_owned())
    }

    /// The arrows that begin, pass or end here.
    pub fn flows(&self) -> impl Iterator<Item = u64> + use<'a> {
        let arrows = |field: &Field<'_>| matches!(field.number, track_event::FLOW_IDS | TERMINATING_FLOW_IDS);
        fields(self.raw).filter(arrows).flat_map(|field| {
            // Fixed-size numbers, packed or not.
            let packed = field.bytes().chunks_exact(8);
            let alone = packed.len() == 0;
            let packed = packed.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
            packed.chain(alone.then(|| field.uint()))
        })
    }
}

impl Sequences {
    /// Takes the next packet of the file.
    ///
    /// # Errors
    ///
    /// If its time is on an unknown clock.
    pub(super) fn take<'a>(&'a mut self, block: &'a [u8], skim: &Skim) -> Result<Packet<'a>, Error> {
        let raw = skim.raw(block);
        let state = self.0.entry(skim.sequence).or_default();
        if skim.clears_state {
            *state = Sequence::default();
        }
        let has_defaults = skim.lasts && state.learn(raw);
        let (mut time, mut is_delta) = (None, false);
        if let Some(timestamp) = skim.timestamp {
            let clock = skim.clock.or(state.default_clock).unwrap_or(clock_id::BOOTTIME);
            let (at, delta) = state.time(clock, timestamp)?;
            (time, is_delta) = (Some(at), delta);
        }
        let descriptor = Some(skim.descriptor.get(block)).filter(|descriptor| !descriptor.is_empty());
        let state = &*state;
        Ok(Packet {
            raw,
            at: skim.at,
            sequence: skim.sequence,
            time,
            is_delta,
            clears_state: skim.clears_state,
            has_defaults,
            descriptor,
            event: skim.event.as_ref().map(|event| state.event(block, event)),
            state,
        })
    }
}

impl Sequence {
    /// Remembers what later packets leave out. Returns whether the packet sets defaults.
    fn learn(&mut self, packet: &[u8]) -> bool {
        let mut has_defaults = false;
        for field in fields(packet) {
            match field.number {
                trace_packet::CLOCK_SNAPSHOT => self.snapshot(field.bytes()),
                trace_packet::INTERNED_DATA => self.intern(field.bytes()),
                trace_packet::TRACE_PACKET_DEFAULTS => {
                    has_defaults = true;
                    self.defaults(field.bytes());
                }
                _ => {}
            }
        }
        has_defaults
    }

    /// Relates the sequence's clocks to the trace's.
    fn snapshot(&mut self, snapshot: &[u8]) {
        let clocks: Vec<_> = fields(snapshot)
            .filter(|field| field.number == clock_snapshot::CLOCKS)
            .map(|clock| {
                let part = |number| fields(clock.bytes()).find(|field| field.number == number);
                let uint = |number| part(number).map_or(0, |field| field.uint());
                let is_delta = uint(clock_snapshot::clock::IS_INCREMENTAL) != 0;
                (uint(clock_snapshot::clock::CLOCK_ID), uint(clock_snapshot::clock::TIMESTAMP), is_delta)
            })
            .collect();
        let Some(&(_, boottime, _)) = clocks.iter().find(|(id, ..)| *id == clock_id::BOOTTIME) else { return };
        for (id, time, is_delta) in clocks {
            let clock = Clock { time, offset: boottime.wrapping_sub(time).cast_signed(), is_delta };
            match self.clocks.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) => *known = clock,
                None => self.clocks.push((id, clock)),
            }
        }
    }

    fn intern(&mut self, data: &[u8]) {
        for entry in fields(data) {
            let part = |number| fields(entry.bytes()).find(|field| field.number == number);
            let Some(iid) = part(event_name::IID).map(|iid| iid.uint()) else { continue };
            let raw = entry.raw.to_vec();
            let names = match entry.number {
                interned_data::EVENT_NAMES => &mut self.names,
                interned_data::EVENT_CATEGORIES => &mut self.categories,
                dictionary => {
                    self.others.insert((dictionary, iid), raw);
                    continue;
                }
            };
            // The entries of both kinds have their text in the same field.
            let text = part(event_name::NAME).map_or(&[][..], |name| name.bytes());
            names.insert(iid, Interned { raw, text: String::from_utf8_lossy(text).into() });
        }
    }

    fn defaults(&mut self, defaults: &[u8]) {
        for field in fields(defaults) {
            match field.number {
                trace_packet_defaults::TIMESTAMP_CLOCK_ID => self.default_clock = Some(field.uint()),
                trace_packet_defaults::TRACK_EVENT_DEFAULTS => {
                    let track = fields(field.bytes()).find(|field| field.number == track_event_defaults::TRACK_UUID);
                    self.default_track = track.map_or(0, |field| field.uint());
                }
                _ => {}
            }
        }
    }

    /// Converts a reading of a clock to the trace's time. Also returns whether the reading was a
    /// distance.
    fn time(&mut self, clock: u64, reading: u64) -> Result<(HostNs, bool), Error> {
        if clock == clock_id::BOOTTIME {
            return Ok((HostNs(reading), false));
        }
        let known = self.clocks.iter_mut().find(|(id, _)| *id == clock && PRIVATE_CLOCKS.contains(id));
        let Some((_, known)) = known else { return Err(Error::Clock(clock)) };
        if known.is_delta {
            known.time = known.time.wrapping_add(reading);
            return Ok((known.in_trace(known.time), true));
        }
        Ok((known.in_trace(reading), false))
    }

    fn event<'a>(&'a self, block: &'a [u8], event: &EventSkim) -> Event<'a> {
        let shared_name = event.name.and_then(|iid| Some(&self.names.get(&iid)?.text));
        let name = match (shared_name, event.name) {
            (Some(name), _) => name,
            (None, Some(_)) => "",
            (None, None) => str::from_utf8(event.inline_name.get(block)).unwrap_or("(not a text)"),
        };
        Event {
            kind: event.kind,
            track: event.track.unwrap_or(self.default_track),
            name,
            shared_name,
            category: event.category.map_or("", |iid| self.categories.get(&iid).map_or("", |it| &it.text)),
            correlation: event.correlation,
            value: event.value,
            args: event.args.get(block),
            raw: event.raw.get(block),
        }
    }
}
