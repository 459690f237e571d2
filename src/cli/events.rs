//! What a packet leaves unsaid: a sequence's delta clock, default track and interned names, followed through a file.

use std::collections::HashMap;

use super::wire::{Field, fields};
use crate::trace::fields::{
    clock_id, clock_snapshot, event_name, interned_data, trace_packet, trace_packet_defaults, track_event,
    track_event_defaults,
};

/// `TrackEvent.terminating_flow_ids`, which other writers than ours use.
pub(super) const TERMINATING_FLOW_IDS: u32 = 48;

/// Ids of clocks that belong to one sequence.
const PRIVATE_CLOCKS: std::ops::Range<u64> = 64..128;

/// The state of all sequences of a file.
#[derive(Default)]
pub(super) struct Sequences(HashMap<u64, Sequence>);

/// The state of one.
#[derive(Default)]
pub(super) struct Sequence {
    clocks: HashMap<u64, Clock>,
    default_clock: Option<u64>,
    default_track: u64,
    /// Interned entries by dictionary and number, as they stand.
    interned: HashMap<(u32, u64), Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Clock {
    /// What it read last.
    time: u64,
    /// What is to be added for the trace's clock.
    offset: i64,
    is_delta: bool,
}

/// A packet and what it means.
pub(super) struct Packet<'a> {
    pub(super) raw: &'a [u8],
    pub(super) sequence: u64,
    /// When, in nanoseconds of the trace's clock.
    pub(super) time: Option<u64>,
    /// Its time is the distance from the one before it in its sequence.
    pub(super) is_delta: bool,
    /// It begins its sequence, or begins it anew.
    pub(super) clears_state: bool,
    /// It says what the later packets of its sequence leave out.
    pub(super) has_defaults: bool,
    pub(super) descriptor: Option<&'a [u8]>,
    pub(super) event: Option<Event<'a>>,
}

/// A slice's begin or end, an instant, a counter's value.
#[derive(Clone, Default)]
pub(super) struct Event<'a> {
    pub(super) kind: u64,
    pub(super) track: u64,
    pub(super) category: Option<u64>,
    name: Option<u64>,
    inline_name: Option<&'a [u8]>,
    /// Our arguments, encoded.
    pub(super) args: Option<&'a [u8]>,
    /// What marks an operation on all ranks.
    pub(super) correlation: Option<u64>,
    /// A counter's value.
    pub(super) value: Option<i64>,
    /// Arrows that begin, pass or end here.
    pub(super) flows: Vec<u64>,
}

impl<'a> Event<'a> {
    /// One of our arguments, by its number in `Nccl`.
    pub(super) fn arg(&self, number: u32) -> Option<Field<'a>> {
        fields(self.args?).find(|field| field.number == number)
    }

    /// One of our arguments that is a number.
    pub(super) fn uint(&self, number: u32) -> Option<u64> {
        self.arg(number).map(|field| field.uint())
    }
}

impl Sequences {
    /// Takes the next packet of the file.
    ///
    /// # Errors
    ///
    /// When its time is on a clock of which nothing is known.
    pub(super) fn take<'a>(&mut self, raw: &'a [u8]) -> Result<Packet<'a>, String> {
        let mut packet = Packet {
            raw,
            sequence: 0,
            time: None,
            is_delta: false,
            clears_state: false,
            has_defaults: false,
            descriptor: None,
            event: None,
        };
        let (mut snapshot, mut interned, mut defaults, mut event) = (None, None, None, None);
        let (mut timestamp, mut clock) = (None, None);
        for field in fields(raw) {
            match field.number {
                trace_packet::TRUSTED_PACKET_SEQUENCE_ID => packet.sequence = field.uint(),
                trace_packet::SEQUENCE_FLAGS => packet.clears_state = field.uint() & 1 != 0,
                trace_packet::TIMESTAMP => timestamp = Some(field.uint()),
                trace_packet::TIMESTAMP_CLOCK_ID => clock = Some(field.uint()),
                trace_packet::CLOCK_SNAPSHOT => snapshot = Some(field.bytes()),
                trace_packet::INTERNED_DATA => interned = Some(field.bytes()),
                trace_packet::TRACE_PACKET_DEFAULTS => defaults = Some(field.bytes()),
                trace_packet::TRACK_DESCRIPTOR => packet.descriptor = Some(field.bytes()),
                trace_packet::TRACK_EVENT => event = Some(field.bytes()),
                _ => {}
            }
        }
        let sequence = self.0.entry(packet.sequence).or_default();
        if packet.clears_state {
            *sequence = Sequence::default();
        }
        packet.has_defaults = defaults.is_some();
        snapshot.into_iter().for_each(|snapshot| sequence.snapshot(snapshot));
        interned.into_iter().for_each(|data| sequence.intern(data));
        defaults.into_iter().for_each(|defaults| sequence.defaults(defaults));
        if let Some(timestamp) = timestamp {
            let clock = clock.or(sequence.default_clock).unwrap_or(clock_id::BOOTTIME);
            let (time, is_delta) = sequence.time(clock, timestamp)?;
            (packet.time, packet.is_delta) = (Some(time), is_delta);
        }
        packet.event = event.map(|event| sequence.event(event));
        Ok(packet)
    }

    /// An interned entry as it stands: dictionary and entry.
    pub(super) fn interned(&self, sequence: u64, dictionary: u32, iid: u64) -> Option<&[u8]> {
        self.0.get(&sequence)?.interned.get(&(dictionary, iid)).map(Vec::as_slice)
    }

    /// What the delta clock of a sequence reads, as the trace's time.
    pub(super) fn delta_clock(&self, sequence: u64) -> Option<u64> {
        let clock = self.0.get(&sequence)?.clocks.values().find(|clock| clock.is_delta)?;
        Some(clock.time.wrapping_add_signed(clock.offset))
    }

    /// All interned entries of a sequence but the names of events and of categories.
    pub(super) fn other_interned(&self, sequence: u64) -> impl Iterator<Item = (u32, u64)> {
        let all = self.0.get(&sequence).into_iter().flat_map(|sequence| sequence.interned.keys());
        let common = [interned_data::EVENT_NAMES, interned_data::EVENT_CATEGORIES];
        all.copied().filter(move |(dictionary, _)| !common.contains(dictionary))
    }

    /// An event's category.
    pub(super) fn category(&self, sequence: u64, event: &Event<'_>) -> String {
        event.category.map_or_else(String::new, |iid| self.text(sequence, interned_data::EVENT_CATEGORIES, iid))
    }

    /// An event's name.
    pub(super) fn name(&self, sequence: u64, event: &Event<'_>) -> String {
        match (event.name, event.inline_name) {
            (Some(iid), _) => self.text(sequence, interned_data::EVENT_NAMES, iid),
            (None, Some(name)) => String::from_utf8_lossy(name).into_owned(),
            (None, None) => String::new(),
        }
    }

    fn text(&self, sequence: u64, dictionary: u32, iid: u64) -> String {
        let entry = self.interned(sequence, dictionary, iid).and_then(|raw| fields(raw).next());
        let name = entry.and_then(|entry| fields(entry.bytes()).find(|field| field.number == event_name::NAME));
        name.map_or_else(String::new, |name| String::from_utf8_lossy(name.bytes()).into_owned())
    }
}

impl Sequence {
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
            let offset = boottime.wrapping_sub(time).cast_signed();
            self.clocks.insert(id, Clock { time, offset, is_delta });
        }
    }

    fn intern(&mut self, data: &[u8]) {
        for entry in fields(data) {
            let iid = fields(entry.bytes()).find(|field| field.number == event_name::IID);
            if let Some(iid) = iid {
                self.interned.insert((entry.number, iid.uint()), entry.raw.to_vec());
            }
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

    /// A reading of a clock as the trace's time, and whether it was a distance.
    fn time(&mut self, clock: u64, reading: u64) -> Result<(u64, bool), String> {
        if clock == clock_id::BOOTTIME {
            return Ok((reading, false));
        }
        let known = self.clocks.get_mut(&clock).filter(|_| PRIVATE_CLOCKS.contains(&clock));
        let Some(known) = known else {
            return Err(format!("it has times on clock {clock}, which nothing relates to the clock of the trace"));
        };
        if known.is_delta {
            known.time = known.time.wrapping_add(reading);
            return Ok((known.time.wrapping_add_signed(known.offset), true));
        }
        Ok((reading.wrapping_add_signed(known.offset), false))
    }

    fn event<'a>(&self, event: &'a [u8]) -> Event<'a> {
        let mut found = Event { track: self.default_track, ..Event::default() };
        for field in fields(event) {
            match field.number {
                track_event::TYPE => found.kind = field.uint(),
                track_event::TRACK_UUID => found.track = field.uint(),
                track_event::CATEGORY_IIDS => found.category = Some(field.uint()),
                track_event::NAME_IID => found.name = Some(field.uint()),
                track_event::NAME => found.inline_name = Some(field.bytes()),
                track_event::NCCL => found.args = Some(field.bytes()),
                track_event::CORRELATION_ID => found.correlation = Some(field.uint()),
                track_event::COUNTER_VALUE => found.value = Some(field.uint().cast_signed()),
                track_event::FLOW_IDS | TERMINATING_FLOW_IDS => found.flows.extend(numbers(&field)),
                _ => {}
            }
        }
        found
    }
}

/// The fixed-size numbers of a repeated field, packed or not.
fn numbers(field: &Field<'_>) -> Vec<u64> {
    match field.bytes() {
        [] => vec![field.uint()],
        packed => {
            packed.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
        }
    }
}
