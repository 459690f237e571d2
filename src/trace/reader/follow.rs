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
use crate::trace::words::Category;

/// `TrackEvent.terminating_flow_ids`, which we do not write but others do.
pub(crate) const TERMINATING_FLOW_IDS: u32 = 48;

/// Ids of clocks that belong to one sequence.
const PRIVATE_CLOCKS: Range<u64> = 64..128;

/// What a packet says by itself, and where in its block: the half of reading that needs no other
/// packet. There is one for each packet of a block, so it is small: what is optional is in `has`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skim {
    /// Where in its block of the file it begins, or the compressed packet that contains it.
    pub(super) at: u32,
    raw: Part,
    sequence: u32,
    clock: u32,
    timestamp: u64,
    descriptor: Part,
    event: Part,
    kind: u32,
    has: Has,
    track: u64,
    category: u64,
    name: u64,
    args: Part,
    correlation: u64,
    value: i64,
}

/// Which fields a packet has.
#[derive(Clone, Copy, Debug, Default)]
struct Has(u32);

impl Has {
    const TIMESTAMP: Has = Has(1);
    const CLOCK: Has = Has(1 << 1);
    /// It restarts its sequence.
    const CLEARED_STATE: Has = Has(1 << 2);
    /// It says something that later packets of its sequence leave out.
    const STATE: Has = Has(1 << 3);
    const EVENT: Has = Has(1 << 4);
    const TRACK: Has = Has(1 << 5);
    const CATEGORY: Has = Has(1 << 6);
    const NAME: Has = Has(1 << 7);
    /// Its name is in the event itself.
    const INLINE_NAME: Has = Has(1 << 8);
    const CORRELATION: Has = Has(1 << 9);
    const VALUE: Has = Has(1 << 10);
    const FLOWS: Has = Has(1 << 11);
    /// It was compressed.
    const PACKED: Has = Has(1 << 12);
    /// It stands for all that are compressed together, which were not read.
    const PASSED: Has = Has(1 << 13);
    /// It has more than a time, a sequence and an event, or has them in another order.
    const OTHER: Has = Has(1 << 14);

    fn add(&mut self, other: Has) {
        self.0 |= other.0;
    }

    fn all_of(self, other: Has) -> bool {
        self.0 & other.0 == other.0
    }

    /// The value of a field, if it is there.
    fn some<T>(self, field: Has, value: T) -> Option<T> {
        self.all_of(field).then_some(value)
    }
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
    /// For a packet at this place in its block of the file, compressed or not.
    pub(super) fn of(at: u32, is_packed: bool) -> Skim {
        Skim { at, has: if is_packed { Has::PACKED } else { Has::default() }, ..Skim::default() }
    }

    /// Reads the packet at this place in `block`, which is smaller than 4 GiB. Returns whether it is
    /// a message.
    pub(super) fn read(&mut self, block: &[u8], place: Range<usize>) -> bool {
        let raw = &block[place];
        self.raw = Part::of(block, raw);
        let mut fields = fields(raw);
        while !fields.rest().is_empty() {
            let left = fields.rest().len();
            // Nearly all packets have these fields and no others, in this order.
            if let Some(timestamp) = fields.expect_uint(trace_packet::TIMESTAMP) {
                self.timestamp = timestamp;
                self.has.add(Has::TIMESTAMP);
            }
            if let Some(sequence) = fields.expect_uint(trace_packet::TRUSTED_PACKET_SEQUENCE_ID) {
                self.sequence = sequence as u32;
            }
            if let Some(event) = fields.expect_bytes(trace_packet::TRACK_EVENT) {
                self.event(block, event);
            }
            if fields.rest().is_empty() {
                break;
            }
            self.has.add(Has::OTHER);
            if fields.rest().len() < left {
                continue;
            }
            let Some((number, value)) = fields.pair() else { break };
            match number {
                trace_packet::SEQUENCE_FLAGS if value.uint() & 1 != 0 => self.has.add(Has::CLEARED_STATE),
                trace_packet::TIMESTAMP_CLOCK_ID => {
                    self.clock = value.uint() as u32;
                    self.has.add(Has::CLOCK);
                }
                trace_packet::CLOCK_SNAPSHOT | trace_packet::INTERNED_DATA | trace_packet::TRACE_PACKET_DEFAULTS => {
                    self.has.add(Has::STATE);
                }
                trace_packet::TRACK_DESCRIPTOR => self.descriptor = Part::of(block, value.bytes()),
                _ => {}
            }
        }
        !fields.is_damaged()
    }

    #[inline(always)]
    fn event(&mut self, block: &[u8], event: &[u8]) {
        self.event = Part::of(block, event);
        self.has.add(Has::EVENT);
        let mut fields = fields(event);
        while !fields.rest().is_empty() {
            let left = fields.rest().len();
            if let Some(kind) = fields.expect_uint(track_event::TYPE) {
                self.kind = kind as u32;
            }
            if let Some(track) = fields.expect_uint(track_event::TRACK_UUID) {
                self.track = track;
                self.has.add(Has::TRACK);
            }
            if let Some(category) = fields.expect_uint(track_event::CATEGORY_IIDS) {
                // The first one counts.
                if !self.has.all_of(Has::CATEGORY) {
                    self.category = category;
                    self.has.add(Has::CATEGORY);
                }
            }
            if let Some(name) = fields.expect_uint(track_event::NAME_IID) {
                self.name = name;
                self.has.add(Has::NAME);
            }
            if let Some(correlation) = fields.expect_uint(track_event::CORRELATION_ID) {
                self.correlation = correlation;
                self.has.add(Has::CORRELATION);
            }
            while fields.expect_fixed64(track_event::FLOW_IDS).is_some() {
                self.has.add(Has::FLOWS);
            }
            if let Some(args) = fields.expect_bytes(track_event::NCCL) {
                self.args = Part::of(block, args);
            }
            if fields.rest().len() < left {
                continue;
            }
            let Some((number, value)) = fields.pair() else { break };
            match number {
                track_event::NAME => self.has.add(Has::INLINE_NAME),
                track_event::FLOW_IDS | TERMINATING_FLOW_IDS => self.has.add(Has::FLOWS),
                track_event::COUNTER_VALUE => {
                    self.value = value.uint().cast_signed();
                    self.has.add(Has::VALUE);
                }
                _ => {}
            }
        }
    }

    /// Stands for all packets in the compressed packet at this place.
    pub(super) fn passed(at: u32) -> Skim {
        Skim { at, has: Has::PASSED, ..Skim::default() }
    }

    pub(super) fn is_passed(&self) -> bool {
        self.has.all_of(Has::PASSED)
    }

    pub(super) fn raw<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        self.raw.get(block)
    }
}

/// The state of all sequences of a file.
#[derive(Default)]
pub(crate) struct Sequences {
    all: Vec<Sequence>,
    /// Their places, by their ids.
    places: FxHashMap<u32, usize>,
    /// The one of the last packet: most come in runs.
    last: Option<(u32, usize)>,
}

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

/// A slice's begin or end, an instant, a counter's value.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// Its `track_event::Type`.
    pub(crate) kind: u64,
    /// The uuid of its track.
    pub track: u64,
    /// Its name; empty for an end.
    pub name: &'a str,
    /// Its category, if it is one of ours.
    pub category: Option<Category>,
    /// The number that marks an operation on all ranks.
    pub correlation: Option<u64>,
    /// A counter's value.
    pub(crate) value: Option<i64>,
    shared_name: Option<&'a Arc<str>>,
    args: &'a [u8],
    has_flows: bool,
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
    #[inline]
    pub fn track_descriptor(&self) -> Option<TrackDescriptor> {
        self.descriptor.and_then(|descriptor| TrackDescriptor::decode(descriptor).ok())
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

/// Our arguments, decoded; all absent if they are damaged.
pub(crate) fn nccl(args: &[u8]) -> Nccl {
    Nccl::decode(args).unwrap_or_default()
}

/// Several of our arguments as numbers, looked for at once.
#[inline(always)]
pub(crate) fn uints<const N: usize>(args: &[u8], numbers: [u32; N]) -> [Option<u64>; N] {
    let (mut found, mut fields) = ([None; N], fields(args));
    while let Some((number, value)) = fields.pair() {
        if let Some(place) = numbers.iter().position(|wanted| *wanted == number) {
            found[place].get_or_insert(value.uint());
        }
    }
    found
}

/// The numbers among an event's arguments, all decoded at once, for callers that need many.
pub(crate) struct Numbers {
    /// By field number.
    all: [u64; Numbers::MOST],
    is_there: [u64; Numbers::MOST / 64],
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers { all: [0; Numbers::MOST], is_there: [0; Numbers::MOST / 64] }
    }
}

impl Numbers {
    /// More than the highest field number of `Nccl`, and a multiple of 64.
    const MOST: usize = 256;

    /// Replaces what it holds. If a field occurs twice, the first one counts.
    pub(crate) fn decode(&mut self, args: &[u8]) {
        self.is_there = [0; Numbers::MOST / 64];
        let mut fields = fields(args);
        while let Some((number, value)) = fields.pair() {
            let (place, bit) = (number as usize, 1 << (number % 64));
            if place < Numbers::MOST && self.is_there[place / 64] & bit == 0 {
                self.is_there[place / 64] |= bit;
                self.all[place] = value.uint();
            }
        }
    }

    /// The argument of this field number; 0 if it is no number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<u64> {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        (self.is_there[word] & bit != 0).then_some(self.all[number as usize])
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
        nccl(self.args)
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

    /// Several of our arguments as numbers, looked for at once.
    #[inline(always)]
    pub(crate) fn uints<const N: usize>(&self, numbers: [u32; N]) -> [Option<u64>; N] {
        uints(self.args, numbers)
    }

    /// One of our arguments, as text.
    pub(crate) fn text(&self, number: u32) -> Option<String> {
        self.arg(number).map(|field| String::from_utf8_lossy(field.bytes()).into_owned())
    }

    /// The arrows that begin, pass or end here.
    pub fn flows(&self) -> impl Iterator<Item = u64> + use<'a> {
        let arrows = |field: &Field<'_>| matches!(field.number, track_event::FLOW_IDS | TERMINATING_FLOW_IDS);
        fields(if self.has_flows { self.raw } else { &[] }).filter(arrows).flat_map(|field| {
            // Fixed-size numbers, packed or not.
            let packed = field.bytes().chunks_exact(8);
            let alone = packed.len() == 0;
            let packed = packed.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
            packed.chain(alone.then(|| field.uint()))
        })
    }
}

impl Sequences {
    #[inline]
    fn of(&mut self, id: u32) -> &mut Sequence {
        let place = match self.last {
            Some((last, place)) if last == id => place,
            _ => *self.places.entry(id).or_insert(self.all.len()),
        };
        if place == self.all.len() {
            self.all.push(Sequence::default());
        }
        self.last = Some((id, place));
        &mut self.all[place]
    }

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
        let state = self.of(skim.sequence);
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
            is_packed: skim.has.all_of(Has::PACKED),
            is_plain: skim.has.all_of(Has::EVENT) && skim.has.all_of(Has::TIMESTAMP) && !skim.has.all_of(Has::OTHER),
            descriptor,
            event: skim.has.all_of(Has::EVENT).then(|| state.event(block, skim)),
            state,
        })
    }
}

impl Sequences {
    /// Continues after packets that were not read, with the last time on each of their sequences
    /// that count in deltas.
    pub(super) fn pass(&mut self, times: &[(u64, HostNs)]) {
        for (sequence, time) in times {
            let clocks = &mut self.of(*sequence as u32).clocks;
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

    #[inline]
    fn event<'a>(&'a self, block: &'a [u8], skim: &Skim) -> Event<'a> {
        let (args, raw) = (skim.args.get(block), skim.event.get(block));
        let iid = skim.has.some(Has::NAME, skim.name);
        let shared_name = iid.and_then(|iid| Some(&self.names.get(iid)?.text));
        let name = match shared_name {
            Some(name) => name,
            None if iid.is_none() && skim.has.all_of(Has::INLINE_NAME) => {
                let name = fields(raw).filter(|field| field.number == track_event::NAME).last();
                str::from_utf8(name.map_or(&[], |name| name.bytes())).unwrap_or("(not a text)")
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::fields::{nccl, trace};
    use crate::trace::reader::wire::{put_bytes, put_fixed64, put_uint};

    type Parts = Vec<fn(&mut Vec<u8>)>;

    /// What is read of a packet with these parts of its event, and these of its own.
    fn read(event: &Parts, packet: impl Fn(&mut Vec<u8>, &[u8])) -> (bool, String) {
        let (mut parts, mut raw, mut file) = (Vec::new(), Vec::new(), Vec::new());
        event.iter().for_each(|put| put(&mut parts));
        packet(&mut raw, &parts);
        put_bytes(&mut file, trace::PACKET, &raw);
        let mut found = None;
        super::super::read::<Error>(&file[..], |packet| {
            let event = packet.event.unwrap();
            let Event { kind, track, correlation, value, args, .. } = event;
            let flows: Vec<u64> = event.flows().collect();
            let read = (packet.time, packet.sequence, kind, track, event.name, correlation, value, args, flows);
            found = Some((packet.is_plain, format!("{read:?}")));
            Ok(())
        })
        .unwrap();
        found.unwrap()
    }

    #[test]
    fn fields_are_read_in_any_order() {
        let mut event: Parts = vec![
            |out| put_uint(out, track_event::TYPE, 1),
            |out| put_uint(out, track_event::TRACK_UUID, 1 << 40),
            |out| put_bytes(out, track_event::NAME, b"AllReduce"),
            |out| put_uint(out, track_event::CORRELATION_ID, 77),
            |out| put_fixed64(out, track_event::FLOW_IDS, 5),
            |out| put_fixed64(out, track_event::FLOW_IDS, 6),
            |out| put_bytes(out, track_event::NCCL, &[0x08, 7]),
            |out| put_uint(out, track_event::COUNTER_VALUE, 9),
        ];
        let time = |out: &mut Vec<u8>| put_uint(out, trace_packet::TIMESTAMP, 1_000);
        let sequence = |out: &mut Vec<u8>| put_uint(out, trace_packet::TRUSTED_PACKET_SEQUENCE_ID, 300);
        let body = |out: &mut Vec<u8>, event: &[u8]| put_bytes(out, trace_packet::TRACK_EVENT, event);
        let as_written = |out: &mut Vec<u8>, event: &[u8]| {
            time(out);
            sequence(out);
            body(out, event);
        };
        let (is_plain, all) = read(&event, as_written);
        assert!(is_plain && all.contains("AllReduce") && all.contains("Some(77)") && all.contains("[8, 7], [5, 6]"));
        for _ in 0..event.len() {
            event.rotate_left(1);
            let found = read(&event, as_written).1;
            assert!(found == all || found == all.replace("[5, 6]", "[6, 5]"), "{found}");
        }
        let turned = read(&event, |out, event| {
            body(out, event);
            sequence(out);
            time(out);
        });
        let twice = read(&event, |out, event| {
            as_written(out, event);
            time(out);
        });
        let more = read(&event, |out, event| {
            as_written(out, event);
            put_uint(out, 9_999, 1);
        });
        assert_eq!([turned, twice, more], [(false, all.clone()), (false, all.clone()), (false, all)]);
    }

    #[test]
    fn the_first_of_two_numbers_counts() {
        let mut args = Vec::new();
        for (number, value) in [(nccl::SEQ, 3), (nccl::BYTES, 1 << 40), (nccl::SEQ, 4), (5_000, 1)] {
            put_uint(&mut args, number, value);
        }
        put_bytes(&mut args, nccl::NOTE, b"text");
        let mut numbers = Numbers::default();
        numbers.decode(&args);
        let get = [nccl::SEQ, nccl::BYTES, nccl::NOTE, nccl::COMM].map(|number| numbers.get(number));
        assert_eq!(get, [Some(3), Some(1 << 40), Some(0), None]);
        numbers.decode(&[]);
        assert_eq!(numbers.get(nccl::SEQ), None);
    }
}
