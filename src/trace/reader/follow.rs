//! What a packet leaves out: follows each sequence's delta clock, default track and interned names
//! through a file.

use std::ops::Range;
use std::sync::Arc;

use prost::Message as _;
use rustc_hash::FxHashMap;

use super::Error;
use super::event::Event;
use super::numbered::Numbered;
use super::proto::perfetto::protos::TrackDescriptor;
use super::skim::{Has, Skim};
use super::wire::fields;
use crate::model::time::HostNs;
use crate::trace::fields::{
    clock_id, clock_snapshot, event_name, interned_data, trace_packet, trace_packet_defaults, track_event,
    track_event_defaults,
};
use crate::trace::words::Category;

/// Ids of clocks that belong to one sequence.
const PRIVATE_CLOCKS: Range<u64> = 64..128;

/// The state of all sequences of a file.
#[derive(Default)]
pub(crate) struct Sequences(Numbered<Sequence>);

/// The state of one sequence.
#[derive(Default)]
struct Sequence {
    /// Its first packet was there.
    has_begun: bool,
    clocks: Vec<(u64, Clock)>,
    default_clock: Option<u64>,
    default_track: u64,
    names: Dictionary,
    categories: Dictionary,
    /// Entries of other dictionaries.
    others: FxHashMap<(u32, u64), Vec<u8>>,
}

/// Interned names by their numbers, most of which are small.
#[derive(Default)]
struct Dictionary {
    first: Vec<Option<Interned>>,
    others: FxHashMap<u64, Interned>,
}

impl Dictionary {
    /// How many are found without a search.
    const FIRST: usize = 1 << 12;

    #[inline]
    fn get(&self, iid: u64) -> Option<&Interned> {
        match self.first.get(iid as usize) {
            Some(first) => first.as_ref(),
            None => self.others.get(&iid),
        }
    }

    fn insert(&mut self, iid: u64, name: Interned) {
        let place = iid as usize;
        if place >= Dictionary::FIRST {
            self.others.insert(iid, name);
            return;
        }
        if place >= self.first.len() {
            self.first.resize_with(place + 1, || None);
        }
        self.first[place] = Some(name);
    }
}

/// An interned name: its entry as written, and its text.
struct Interned {
    raw: Vec<u8>,
    text: Arc<str>,
    /// For a category: which one of ours it is.
    category: Option<Category>,
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

    fn reading_at(&self, time: HostNs) -> u64 {
        time.0.wrapping_sub(self.offset as u64)
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
    /// It says something that later packets of its sequence leave out.
    pub(crate) has_state: bool,
    has_attributes: bool,
    /// It was in a compressed packet.
    pub(crate) is_packed: bool,
    /// It begins with its time, and has a sequence and an event, and nothing else.
    pub(crate) is_plain: bool,
    /// The track that it describes.
    pub(crate) descriptor: Option<&'a [u8]>,
    /// A slice's begin or end, an instant, a counter's value.
    pub event: Option<Event<'a>>,
    state: &'a Sequence,
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
    #[inline(always)]
    pub fn track_descriptor(&self) -> Option<TrackDescriptor> {
        let descriptor = self.descriptor?;
        TrackDescriptor::decode(descriptor).ok()
    }

    /// What it says about its process or about the trace, by key.
    #[inline(always)]
    pub(crate) fn attributes(&self) -> Vec<(String, String)> {
        if !self.has_attributes {
            return Vec::new();
        }
        let said = self.decode().unwrap_or_default().trace_attributes.unwrap_or_default().attribute;
        said.iter().map(|it| (it.key().to_owned(), it.string_value().to_owned())).collect()
    }

    /// An interned entry of its sequence, as written.
    pub(crate) fn interned(&self, dictionary: u32, iid: u64) -> Option<&[u8]> {
        let name = match dictionary {
            interned_data::EVENT_NAMES => self.state.names.get(iid),
            interned_data::EVENT_CATEGORIES => self.state.categories.get(iid),
            _ => return self.state.others.get(&(dictionary, iid)).map(Vec::as_slice),
        };
        Some(&name?.raw)
    }

    /// All interned entries of its sequence except the names of events and categories.
    pub(crate) fn other_interned(&self) -> impl Iterator<Item = (u32, u64)> {
        self.state.others.keys().copied()
    }

    /// Whether its sequence has been started.
    pub(crate) fn has_begun(&self) -> bool {
        self.state.has_begun
    }

    /// The current reading of its sequence's delta clock, as the trace's time.
    pub(crate) fn delta_clock(&self) -> Option<HostNs> {
        let (_, clock) = self.state.clocks.iter().find(|(_, clock)| clock.is_delta)?;
        Some(clock.in_trace(clock.time))
    }
}

impl Sequences {
    /// Takes the next packet of the file, and hands it on to `each`: it is too large to be moved.
    ///
    /// # Errors
    ///
    /// If its time is on an unknown clock; and whatever `each` returns.
    pub(super) fn take<E: From<Error>>(
        &mut self,
        at: u64,
        block: &[u8],
        skim: &Skim,
        each: impl FnOnce(&Packet<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let raw = skim.raw(block);
        let state = self.0.entry(skim.sequence.into());
        let clears_state = skim.has.all_of(Has::CLEARED_STATE);
        if clears_state {
            *state = Sequence { has_begun: true, ..Sequence::default() };
        }
        let has_state = skim.has.all_of(Has::STATE);
        let has_defaults = has_state && state.learn(raw);
        let (mut time, mut is_delta) = (None, false);
        if skim.has.all_of(Has::TIMESTAMP) {
            let clock = skim.has.some(Has::CLOCK, skim.clock.into());
            let (at, delta) = state.time(clock, skim.timestamp)?;
            (time, is_delta) = (Some(at), delta);
        }
        let descriptor = Some(skim.descriptor.get(block)).filter(|descriptor| !descriptor.is_empty());
        let state = &*state;
        each(&Packet {
            raw,
            at,
            sequence: skim.sequence.into(),
            time,
            is_delta,
            clears_state,
            has_defaults,
            has_state,
            has_attributes: skim.has.all_of(Has::ATTRIBUTES),
            is_packed: skim.has.all_of(Has::PACKED),
            is_plain: skim.has.all_of(Has::EVENT) && skim.has.all_of(Has::TIMESTAMP) && !skim.has.all_of(Has::OTHER),
            descriptor,
            event: skim.has.all_of(Has::EVENT).then(|| state.event(block, skim)),
            state,
        })
    }

    /// Continues after packets that were not read, with the last time on each of their sequences
    /// that count in deltas.
    pub(super) fn pass(&mut self, times: &[(u64, HostNs)]) {
        for (sequence, time) in times {
            let clocks = &mut self.0.entry(*sequence).clocks;
            let clocks = clocks.iter_mut().filter(|(_, clock)| clock.is_delta);
            clocks.for_each(|(_, clock)| clock.time = clock.reading_at(*time));
        }
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
            let text = String::from_utf8_lossy(part(event_name::NAME).map_or(&[][..], |name| name.bytes()));
            names.insert(iid, Interned { raw, category: Category::of(&text), text: text.into() });
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
    fn time(&mut self, clock: Option<u64>, reading: u64) -> Result<(HostNs, bool), Error> {
        let clock = clock.or(self.default_clock).unwrap_or(clock_id::BOOTTIME);
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

    #[inline(always)]
    fn event<'a>(&'a self, block: &'a [u8], skim: &Skim) -> Event<'a> {
        let (args, raw) = (skim.args.get(block), skim.event.get(block));
        let iid = skim.has.some(Has::NAME, skim.name);
        let shared_name = iid.and_then(|iid| Some(&self.names.get(iid)?.text));
        let name = match shared_name {
            Some(name) => name,
            None if iid.is_none() && skim.has.all_of(Has::INLINE_NAME) => inline_name(raw),
            None => "",
        };
        let category = skim.has.some(Has::CATEGORY, skim.category);
        Event {
            kind: skim.kind.into(),
            track: skim.has.some(Has::TRACK, skim.track).unwrap_or(self.default_track),
            name,
            shared_name,
            category: category.and_then(|iid| self.categories.get(iid)?.category),
            correlation: skim.has.some(Has::CORRELATION, skim.correlation),
            value: skim.has.some(Has::VALUE, skim.value),
            args,
            has_flows: skim.has.all_of(Has::FLOWS),
            raw,
        }
    }
}

/// The name that stands in an event itself.
#[inline(never)]
fn inline_name(event: &[u8]) -> &str {
    let name = fields(event).filter(|field| field.number == track_event::NAME).last();
    str::from_utf8(name.map_or(&[], |name| name.bytes())).unwrap_or("(not a text)")
}
