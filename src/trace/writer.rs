//! Perfetto packets: sequences with delta clocks, interned names, tracks, events.
//!
//! A file is a run of packets and nothing else, so writing is appending. Perfetto silently drops or
//! misplaces malformed events. The causes of that are made impossible here or in [`super::tracks`]:
//! sequence ids are never 0, a time before its sequence's last one is written absolute, and an
//! interned name is defined in the packet that first uses it.

use rustc_hash::FxHashMap;

use super::fields::{
    EXTENSION, clock_id, clock_snapshot, counter_descriptor, event_name, extension_descriptor, gpu_info, interned_data,
    process_descriptor, thread_descriptor, trace, trace_attributes, trace_packet, trace_packet_defaults,
    track_descriptor, track_event, track_event_defaults,
};
use super::wire::Buf;
use super::words::Category;
use crate::model::activity::Device;
use crate::model::ids::ProcessTag;
use crate::model::time::HostNs;

/// A track, by its uuid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Track(u64);

impl Track {
    /// A track that another file describes, which this one is merged with.
    #[must_use]
    pub fn elsewhere(uuid: u64) -> Track {
        Track(uuid)
    }
}

/// A packet sequence of this file, with a delta clock, interned names and a default track of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence(u16);

/// The sequence of what is not an event: clocks, tracks, facts about the whole trace.
const ROOT: Sequence = Sequence(0);

/// Uuids and sequence ids contain the process tag, so that concatenated files do not mix. In a
/// track's uuid the tag is above this many bits.
pub const TRACK_BITS: u32 = 16;
/// With the tag's 20 bits an id stays below 2^31. Perfetto v52 takes a larger sequence id for a
/// negative number when it looks up the sequence's clocks, and refuses every snapshot of them.
const SEQUENCE_BITS: u32 = 11;

/// A sequence's id has the process tag above its lowest bits, and the rest of its number above
/// that.
pub const SEQUENCE_TAG_SHIFT: u32 = 8;

/// The most tracks of one file. The viewer becomes slow long before.
const MAX_TRACKS: u32 = (1 << TRACK_BITS) - 1;
/// The most sequences of one file; later tracks share the last one.
const MAX_SEQUENCES: u16 = (1 << SEQUENCE_BITS) - 1;
/// How many names are interned per sequence; later ones are written in full.
const MAX_NAMES: usize = 4096;

/// What marks a place from which on a trace can be read: the same in all of Perfetto's traces.
/// Source: `synchronization_marker` in Perfetto's trace_packet.proto.
pub const MARKER: [u8; 16] =
    [0x82, 0x47, 0x7a, 0x76, 0xb2, 0x8d, 0x42, 0xba, 0x81, 0xdc, 0x33, 0x32, 0x6d, 0x57, 0xa0, 0x79];

/// The field with it, which comes first in its packet.
pub(super) const MARKED: [u8; 3] = {
    let tag = trace_packet::SYNCHRONIZATION_MARKER << 3 | 2;
    [tag as u8 & 0x7f | 0x80, (tag >> 7) as u8, MARKER.len() as u8]
};

/// The length of the packet that marks a restart, if these packets begin with one; otherwise 0.
#[must_use]
pub(super) fn marker_length(packets: &[u8]) -> usize {
    match packets {
        [_, length @ ..0x80, rest @ ..] if rest.starts_with(&MARKED) => usize::from(*length) + 2,
        _ => 0,
    }
}

/// The tag of the process, or of what else it is, whose sequence has this id.
#[must_use]
pub fn tag_of_sequence(id: u64) -> u64 {
    id >> SEQUENCE_TAG_SHIFT & ((1 << ProcessTag::BITS) - 1)
}

/// What was written so far, to compare with what a reader finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Slices begun.
    pub begins: u64,
    /// Slices ended.
    pub ends: u64,
    /// Instants.
    pub instants: u64,
    /// Counter samples.
    pub counters: u64,
}

struct State {
    /// The time of its last packet.
    last: HostNs,
    default_track: Track,
    /// After which restart it was begun, and whether its packets use the trace's own clock.
    restart: u32,
    is_plain: bool,
    names: FxHashMap<u64, u32>,
    categories: u32,
}

/// Writes packets into memory; [`Writer::take`] returns them.
pub struct Writer {
    out: Buf,
    tag: ProcessTag,
    tracks: u32,
    sequences: Vec<State>,
    written: Written,
    /// Events are not written.
    is_mute: bool,
    /// The file is full: by track, how many of its open slices were not written.
    unwritten: Option<FxHashMap<Track, u32>>,
    /// What is written now has room even in a full file.
    is_aloud: bool,
    /// What the root sequence said so far, for restarts.
    root: Vec<u8>,
    /// How often it was restarted, how many bytes were taken since, and how many of those that were
    /// not taken yet only repeat what was said before.
    restarts: u32,
    taken: usize,
    repeated: usize,
}

/// The clocks at one instant, for the snapshot that relates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_BOOTTIME`, the time of the trace.
    pub boottime: HostNs,
    /// `CLOCK_MONOTONIC`, ns; 0 where it is not known.
    pub monotonic: u64,
    /// `CLOCK_REALTIME`, ns since 1970; 0 if it is not known, as in some files of other tools.
    pub realtime: u64,
}

/// The kind of a track.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// A process.
    Process {
        /// Its id.
        pid: i32,
        /// Shown before the id.
        name: &'a str,
        /// Shown beside it.
        labels: &'a [String],
    },
    /// A thread of the process.
    Thread {
        /// The process's id.
        pid: i32,
        /// The thread's id.
        tid: i32,
        /// Its name.
        name: &'a str,
    },
    /// A group of tracks, or a track of slices.
    Plain {
        /// Its name. Siblings with the same name are drawn as one track with lanes.
        name: &'a str,
    },
    /// A counter.
    Counter {
        /// Its name.
        name: &'a str,
        /// The unit of its values.
        unit: Unit,
    },
}

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A unit with a name of our own: `operations`, `B/s`, `%`.
    Named(&'static str),
    /// Bytes.
    Bytes,
}

/// Where a track belongs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// The group it is in.
    pub parent: Option<Track>,
    /// Its place among its siblings, if their parent orders them; for a process, its place in the
    /// file.
    pub rank: Option<u32>,
    /// Its children are ordered by their rank.
    pub orders_children: bool,
    /// It stays separate from siblings with the same name.
    pub separate: bool,
    /// What the track means, shown on request.
    pub description: &'a str,
}

/// The name of an event. Its key stands for the text, which is only made when the key is new.
pub trait Name {
    /// Equal only for equal texts.
    fn key(&self) -> u64;
    /// Appends the text.
    fn write(&self, text: &mut String);
}

/// The optional parts of an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Typed arguments, encoded.
    pub args: &'a [u8],
    /// A number that all slices of one operation share, and with it their colour.
    pub correlation: Option<u64>,
    /// Arrows that begin or end here: each leads from a slice to the next one with its number.
    pub flows: &'a [u64],
}

impl Writer {
    /// A writer for the process with this tag.
    #[must_use]
    pub fn new(tag: ProcessTag, clocks: Clocks) -> Writer {
        let (out, written) = (Buf::new(), Written::default());
        let (is_mute, unwritten, is_aloud) = (false, None, false);
        let mut writer = Writer {
            out,
            tag,
            tracks: 0,
            sequences: Vec::new(),
            written,
            is_mute,
            unwritten,
            is_aloud,
            root: Vec::new(),
            restarts: 0,
            taken: 0,
            repeated: 0,
        };
        writer.first_packets(clocks);
        writer
    }

    /// From here on no events are written. Tracks still are.
    pub(super) fn mute(&mut self) {
        self.is_mute = true;
    }

    /// Whether no events are written.
    pub(super) fn is_mute(&self) -> bool {
        self.is_mute
    }

    /// From here on the file is full: slices that were begun are ended, and the rest is written
    /// only [aloud](Writer::speak). Tracks still are.
    pub(super) fn file_is_full(&mut self) {
        self.unwritten.get_or_insert_default();
    }

    /// Sets whether what is written from here on has room even in a full file. Returns what was set
    /// before.
    pub(super) fn speak(&mut self, aloud: bool) -> bool {
        std::mem::replace(&mut self.is_aloud, aloud)
    }

    fn is_silent(&self) -> bool {
        self.is_mute || self.unwritten.is_some() && !self.is_aloud
    }

    fn first_packets(&mut self, clocks: Clocks) {
        self.sequences.push(self.state(clocks.boottime, Track(0)));
        self.packet(ROOT, |out| {
            out.uint(trace_packet::SEQUENCE_FLAGS, trace_packet::sequence_flags::SEQ_INCREMENTAL_STATE_CLEARED);
            out.message(trace_packet::CLOCK_SNAPSHOT, |out| {
                for (id, time) in [
                    (clock_id::PRIVATE, 0),
                    (clock_id::BOOTTIME, clocks.boottime.0),
                    (clock_id::MONOTONIC, clocks.monotonic),
                    (clock_id::REALTIME, clocks.realtime),
                ] {
                    if matches!(id, clock_id::MONOTONIC | clock_id::REALTIME) && time == 0 {
                        continue;
                    }
                    out.message(clock_snapshot::CLOCKS, |out| {
                        out.uint(clock_snapshot::clock::CLOCK_ID, id);
                        out.uint(clock_snapshot::clock::TIMESTAMP, time);
                    });
                }
            });
        });
        self.packet(ROOT, |out| {
            out.message(trace_packet::EXTENSION_DESCRIPTOR, |out| {
                out.bytes_field(extension_descriptor::EXTENSION_SET, EXTENSION);
            });
        });
        self.packet(ROOT, |out| {
            out.message(trace_packet::TRACK_DESCRIPTOR, |out| {
                // Elsewhere a 0 is omitted, but here it identifies the root.
                out.varint(u64::from(track_descriptor::UUID) << 3);
                out.varint(0);
                out.uint(
                    track_descriptor::PROCESS_ORDERING,
                    track_descriptor::process_ordering::PROCESS_ORDERING_EXPLICIT,
                );
            });
        });
    }

    /// Facts about the whole trace, for the viewer's overview page. In merged files the last value
    /// of a key holds.
    pub fn attributes(&mut self, attributes: &[(&str, &str)]) {
        self.packet(ROOT, |out| {
            out.message(trace_packet::TRACE_ATTRIBUTES, |out| {
                for (key, value) in attributes {
                    out.message(trace_attributes::ATTRIBUTE, |out| {
                        out.bytes_field(trace_attributes::attribute::KEY, key.as_bytes());
                        out.bytes_field(trace_attributes::attribute::STRING_VALUE, value.as_bytes());
                    });
                }
            });
        });
    }

    /// The process's GPUs, indexed by their number.
    pub fn gpus(&mut self, gpus: &[(&str, [u8; 16])]) {
        self.packet(ROOT, |out| {
            out.message(trace_packet::GPU_INFO, |out| {
                for (name, uuid) in gpus {
                    out.message(gpu_info::GPUS, |out| {
                        if !name.is_empty() {
                            out.bytes_field(gpu_info::gpu::NAME, name.as_bytes());
                            let vendor: &[u8] = if name.starts_with("AMD") { b"AMD" } else { b"NVIDIA" };
                            out.bytes_field(gpu_info::gpu::VENDOR, vendor);
                            if *uuid != Device::NO_UUID {
                                out.bytes_field(gpu_info::gpu::UUID, uuid);
                            }
                        }
                    });
                }
            });
        });
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        self.written
    }

    /// The number of bytes waiting to be taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.out.len()
    }

    /// Returns the packets written since the last call: whole packets, in order.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        self.taken += self.out.len() - std::mem::take(&mut self.repeated);
        self.out.take()
    }

    /// How many bytes were taken since the last restart, without those that it repeated.
    pub(super) fn since_restart(&self) -> usize {
        self.taken
    }

    /// How often a restart was written.
    pub(super) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Restarts the trace: from here on it can be read without what comes before, apart from slices
    /// that are open. To be called when everything was [taken](Writer::take).
    ///
    /// Perfetto's own traces have such places, too, marked in the same way.
    pub(super) fn restart(&mut self) {
        (self.restarts, self.taken) = (self.restarts + 1, 0);
        let id = self.sequence_id(ROOT.0);
        self.out.message(trace::PACKET, |out| {
            out.bytes_field(trace_packet::SYNCHRONIZATION_MARKER, &MARKER);
            out.uint(trace_packet::TRUSTED_PACKET_SEQUENCE_ID, id);
        });
        self.out.raw(&self.root);
        self.repeated = self.out.len();
        self.sequences[0].restart = self.restarts;
    }

    /// The number of tracks described so far.
    pub(super) fn tracks(&self) -> u32 {
        self.tracks
    }

    /// Describes a new track. `None` if the file already has as many as it may have.
    pub fn track(&mut self, form: Form<'_>, place: Place<'_>) -> Option<Track> {
        if self.tracks >= MAX_TRACKS {
            return None;
        }
        self.tracks += 1;
        let uuid = u64::from(self.tag.bits()) << TRACK_BITS | u64::from(self.tracks);
        self.packet(ROOT, |out| {
            out.message(trace_packet::TRACK_DESCRIPTOR, |out| {
                out.uint(track_descriptor::UUID, uuid);
                if let Some(Track(parent)) = place.parent {
                    out.uint(track_descriptor::PARENT_UUID, parent);
                }
                form.write(out);
                if place.orders_children {
                    out.uint(track_descriptor::CHILD_ORDERING, track_descriptor::child_tracks_ordering::EXPLICIT);
                }
                if let Some(rank) = place.rank {
                    out.uint(track_descriptor::SIBLING_ORDER_RANK, u64::from(rank));
                }
                if place.separate {
                    out.uint(
                        track_descriptor::SIBLING_MERGE_BEHAVIOR,
                        track_descriptor::sibling_merge_behavior::SIBLING_MERGE_BEHAVIOR_NONE,
                    );
                }
                if !place.description.is_empty() {
                    out.bytes_field(track_descriptor::DESCRIPTION, place.description.as_bytes());
                }
            });
        });
        Some(Track(uuid))
    }

    /// A new sequence whose events lie on `default_track` unless they say otherwise. `base` must
    /// not be later than its first event. Past the limit, returns the last sequence.
    pub fn sequence(&mut self, default_track: Track, base: HostNs) -> Sequence {
        let number = self.sequences.len() as u16;
        if number >= MAX_SEQUENCES {
            return Sequence(MAX_SEQUENCES - 1);
        }
        self.sequences.push(self.state(base, default_track));
        self.begin_sequence(Sequence(number));
        Sequence(number)
    }

    /// A new sequence whose packets use the trace's own clock, in any order. `None` if the file
    /// already has as many as it may have.
    pub(super) fn plain_sequence(&mut self) -> Option<Sequence> {
        let number = self.sequences.len() as u16;
        if number >= MAX_SEQUENCES {
            return None;
        }
        self.sequences.push(State { is_plain: true, ..self.state(HostNs(0), Track(0)) });
        self.begin_sequence(Sequence(number));
        Some(Sequence(number))
    }

    /// Writes the first packet of a sequence: what its other packets leave out.
    fn begin_sequence(&mut self, sequence: Sequence) {
        let State { last, default_track: Track(uuid), is_plain, .. } = self.sequences[usize::from(sequence.0)];
        self.packet(sequence, |out| {
            out.uint(trace_packet::SEQUENCE_FLAGS, trace_packet::sequence_flags::SEQ_INCREMENTAL_STATE_CLEARED);
            if is_plain {
                out.message(trace_packet::TRACE_PACKET_DEFAULTS, |out| {
                    out.uint(trace_packet_defaults::TIMESTAMP_CLOCK_ID, clock_id::BOOTTIME);
                });
                return;
            }
            out.message(trace_packet::CLOCK_SNAPSHOT, |out| {
                out.message(clock_snapshot::CLOCKS, |out| {
                    out.uint(clock_snapshot::clock::CLOCK_ID, clock_id::BOOTTIME);
                    out.uint(clock_snapshot::clock::TIMESTAMP, last.0);
                });
                out.message(clock_snapshot::CLOCKS, |out| {
                    out.uint(clock_snapshot::clock::CLOCK_ID, clock_id::DELTA);
                    out.uint(clock_snapshot::clock::TIMESTAMP, last.0);
                    out.uint(clock_snapshot::clock::IS_INCREMENTAL, 1);
                });
            });
            out.message(trace_packet::TRACE_PACKET_DEFAULTS, |out| {
                out.uint(trace_packet_defaults::TIMESTAMP_CLOCK_ID, clock_id::DELTA);
                out.message(trace_packet_defaults::TRACK_EVENT_DEFAULTS, |out| {
                    out.uint(track_event_defaults::TRACK_UUID, uuid);
                });
            });
        });
    }

    /// Begins a sequence again after a restart, with its next packet.
    #[inline]
    fn continue_sequence(&mut self, sequence: Sequence) {
        let restarts = self.restarts;
        let state = &mut self.sequences[usize::from(sequence.0)];
        if state.restart != restarts {
            state.restart = restarts;
            state.names.clear();
            state.categories = 0;
            self.begin_sequence(sequence);
        }
    }

    /// The state of a new sequence.
    fn state(&self, base: HostNs, default_track: Track) -> State {
        State {
            last: base,
            default_track,
            restart: self.restarts,
            is_plain: false,
            names: FxHashMap::default(),
            categories: 0,
        }
    }

    /// A render stage on a sequence from [`Writer::plain_sequence`]. `body` writes the rest of its
    /// packet.
    pub(super) fn render_stage(&mut self, sequence: Sequence, time: HostNs, body: impl FnOnce(&mut Buf)) {
        if self.is_silent() {
            return;
        }
        self.continue_sequence(sequence);
        self.packet(sequence, |out| {
            out.uint(trace_packet::TIMESTAMP, time.0);
            body(out);
        });
    }

    fn packet(&mut self, sequence: Sequence, body: impl FnOnce(&mut Buf)) {
        let (id, begin) = (self.sequence_id(sequence.0), self.out.len());
        self.out.message(trace::PACKET, |out| {
            out.uint(trace_packet::TRUSTED_PACKET_SEQUENCE_ID, id);
            body(out);
        });
        if sequence == ROOT {
            self.root.extend_from_slice(&self.out.bytes()[begin..]);
        }
    }

    /// Begins a slice.
    pub fn begin(
        &mut self,
        sequence: Sequence,
        on: Track,
        time: HostNs,
        category: Category,
        name: &dyn Name,
        extra: &Extra<'_>,
    ) {
        self.written.begins += 1;
        if self.is_silent() {
            if let Some(unwritten) = &mut self.unwritten {
                *unwritten.entry(on).or_default() += 1;
            }
            return;
        }
        self.event(sequence, on, time, track_event::r#type::TYPE_SLICE_BEGIN, Some((category, name)), extra);
    }

    /// Ends the innermost open slice of a track.
    pub fn end(&mut self, sequence: Sequence, on: Track, time: HostNs, extra: &Extra<'_>) {
        self.written.ends += 1;
        // What is open longest was begun before the file was full.
        if let Some(unwritten) = self.unwritten.as_mut().and_then(|all| all.get_mut(&on)).filter(|count| **count > 0) {
            *unwritten -= 1;
            return;
        }
        self.event(sequence, on, time, track_event::r#type::TYPE_SLICE_END, None, extra);
    }

    /// Marks an instant.
    pub fn instant(
        &mut self,
        sequence: Sequence,
        on: Track,
        time: HostNs,
        category: Category,
        name: &dyn Name,
        extra: &Extra<'_>,
    ) {
        self.written.instants += 1;
        if self.is_silent() {
            return;
        }
        self.event(sequence, on, time, track_event::r#type::TYPE_INSTANT, Some((category, name)), extra);
    }

    /// Sets a counter.
    pub fn counter(&mut self, sequence: Sequence, on: Track, time: HostNs, value: i64) {
        self.written.counters += 1;
        if self.is_silent() {
            return;
        }
        let (timing, head) = self.head(sequence, on, time);
        self.out.message(trace::PACKET, |out| {
            timing.write(out);
            out.message(trace_packet::TRACK_EVENT, |out| {
                out.uint(track_event::TYPE, track_event::r#type::TYPE_COUNTER);
                head.write(out);
                out.int(track_event::COUNTER_VALUE, value);
            });
        });
    }

    fn event(
        &mut self,
        sequence: Sequence,
        on: Track,
        time: HostNs,
        kind: u64,
        named: Option<(Category, &dyn Name)>,
        extra: &Extra<'_>,
    ) {
        if self.is_mute {
            return;
        }
        let (timing, head) = self.head(sequence, on, time);
        let state = &mut self.sequences[usize::from(sequence.0)];
        let named = named.map(|(category, name)| (state.category(category), state.name(name)));
        self.out.message(trace::PACKET, |out| {
            timing.write(out);
            if let Some((category, name)) = &named {
                write_interned(out, category, name);
            }
            out.message(trace_packet::TRACK_EVENT, |out| {
                out.uint(track_event::TYPE, kind);
                head.write(out);
                if let Some((category, name)) = &named {
                    out.uint(track_event::CATEGORY_IIDS, u64::from(category.iid));
                    match name {
                        NameRef::Interned { iid, .. } => out.uint(track_event::NAME_IID, u64::from(*iid)),
                        NameRef::Inline(text) => out.bytes_field(track_event::NAME, text.as_bytes()),
                    }
                }
                if let Some(id) = extra.correlation {
                    out.uint(track_event::CORRELATION_ID, id);
                }
                for id in extra.flows {
                    out.fixed64(track_event::FLOW_IDS, *id);
                }
                if !extra.args.is_empty() {
                    out.bytes_field(track_event::NCCL, extra.args);
                }
            });
        });
    }

    fn head(&mut self, sequence: Sequence, on: Track, time: HostNs) -> (Timing, Head) {
        self.continue_sequence(sequence);
        let id = self.sequence_id(sequence.0);
        let state = &mut self.sequences[usize::from(sequence.0)];
        let timing = if time >= state.last {
            let delta = time.0 - state.last.0;
            state.last = time;
            Timing { id, timestamp: delta, absolute: false }
        } else {
            // Back in time: on a separate clock, which leaves the deltas alone.
            Timing { id, timestamp: time.0, absolute: true }
        };
        (timing, Head { uuid: (state.default_track != on).then_some(on.0) })
    }

    /// The process's tag.
    pub(super) fn tag(&self) -> ProcessTag {
        self.tag
    }

    fn sequence_id(&self, number: u16) -> u64 {
        // The low bits of the number, the tag, then the rest of the number. Every packet has an id;
        // this way the ids of the first 255 sequences, which have most packets, take a byte less.
        // What differs comes first, which compresses better.
        let number = u64::from(number + 1);
        let tag = u64::from(self.tag.bits()) << SEQUENCE_TAG_SHIFT;
        number >> 8 << (SEQUENCE_TAG_SHIFT + ProcessTag::BITS) | tag | number & 0xff
    }
}

struct Timing {
    id: u64,
    timestamp: u64,
    absolute: bool,
}

struct Head {
    uuid: Option<u64>,
}

struct CategoryRef {
    iid: u8,
    new: Option<&'static str>,
}

enum NameRef {
    Interned { iid: u32, new: Option<String> },
    Inline(String),
}

impl Timing {
    fn write(&self, out: &mut Buf) {
        out.uint(trace_packet::TIMESTAMP, self.timestamp);
        out.uint(trace_packet::TRUSTED_PACKET_SEQUENCE_ID, self.id);
        if self.absolute {
            out.uint(trace_packet::TIMESTAMP_CLOCK_ID, clock_id::BOOTTIME);
        }
    }
}

impl Head {
    fn write(&self, out: &mut Buf) {
        if let Some(uuid) = self.uuid {
            out.uint(track_event::TRACK_UUID, uuid);
        }
    }
}

fn write_interned(out: &mut Buf, category: &CategoryRef, name: &NameRef) {
    let new_name = match name {
        NameRef::Interned { iid, new: Some(text) } => Some((*iid, text)),
        _ => None,
    };
    if category.new.is_none() && new_name.is_none() {
        return;
    }
    let entry = |out: &mut Buf, field, iid: u64, text: &str| {
        out.message(field, |out| {
            out.uint(event_name::IID, iid);
            out.bytes_field(event_name::NAME, text.as_bytes());
        });
    };
    out.message(trace_packet::INTERNED_DATA, |out| {
        if let Some(text) = category.new {
            entry(out, interned_data::EVENT_CATEGORIES, u64::from(category.iid), text);
        }
        if let Some((iid, text)) = new_name {
            entry(out, interned_data::EVENT_NAMES, u64::from(iid), text);
        }
    });
}

impl State {
    fn category(&mut self, category: Category) -> CategoryRef {
        let iid = category as u8;
        let known = self.categories & 1 << iid != 0;
        self.categories |= 1 << iid;
        CategoryRef { iid, new: (!known).then(|| category.name()) }
    }

    fn name(&mut self, name: &dyn Name) -> NameRef {
        let next = self.names.len() as u32 + 1;
        let text = || {
            let mut text = String::new();
            name.write(&mut text);
            text
        };
        match self.names.entry(name.key()) {
            std::collections::hash_map::Entry::Occupied(known) => NameRef::Interned { iid: *known.get(), new: None },
            std::collections::hash_map::Entry::Vacant(_) if next as usize > MAX_NAMES => NameRef::Inline(text()),
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(next);
                NameRef::Interned { iid: next, new: Some(text()) }
            }
        }
    }
}

impl Form<'_> {
    fn write(self, out: &mut Buf) {
        match self {
            Form::Process { pid, name, labels } => out.message(track_descriptor::PROCESS, |out| {
                out.int(process_descriptor::PID, i64::from(pid));
                out.bytes_field(process_descriptor::PROCESS_NAME, name.as_bytes());
                for label in labels {
                    out.bytes_field(process_descriptor::PROCESS_LABELS, label.as_bytes());
                }
            }),
            Form::Thread { pid, tid, name } => out.message(track_descriptor::THREAD, |out| {
                out.int(thread_descriptor::PID, i64::from(pid));
                out.int(thread_descriptor::TID, i64::from(tid));
                if !name.is_empty() {
                    out.bytes_field(thread_descriptor::THREAD_NAME, name.as_bytes());
                }
            }),
            Form::Plain { name } => out.bytes_field(track_descriptor::NAME, name.as_bytes()),
            Form::Counter { name, unit } => {
                out.bytes_field(track_descriptor::NAME, name.as_bytes());
                out.message(track_descriptor::COUNTER, |out| match unit {
                    // Perfetto v52 ignores a name beside a unit, even beside `UNIT_COUNT`.
                    Unit::Named(name) => out.bytes_field(counter_descriptor::UNIT_NAME, name.as_bytes()),
                    Unit::Bytes => out.uint(counter_descriptor::UNIT, counter_descriptor::unit::UNIT_SIZE_BYTES),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_sequences_are_unique_and_small_enough_for_every_viewer() {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let mut ids = std::collections::HashSet::new();
        // Tags that differ in one bit, and in all bits.
        for random in [8, 9, (1 << 19) - 8, (1 << 20) - 17] {
            let writer = Writer::new(ProcessTag::from_random(random), clocks);
            for number in 0..MAX_SEQUENCES {
                let id = writer.sequence_id(number);
                assert!(id > 0 && id < 1 << 31 && ids.insert(id), "{random} {number}: {id}");
                assert!(number >= 255 || id < 1 << 28, "{number}: four bytes");
            }
        }
    }
}
