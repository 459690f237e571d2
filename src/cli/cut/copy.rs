//! Copies what was chosen.

use rustc_hash::{FxHashMap, FxHashSet};
use std::io::Write;
use std::path::Path;

use super::super::read_parts;
use super::choose::{Choice, Fate, Filter};
use crate::cli::reason::Reason;
use crate::model::selection::duration;
use crate::model::time::HostNs;
use crate::trace::fields::{
    clock_id, interned_data, nccl, trace, trace_packet, track_descriptor, track_event, track_event::r#type as kind,
};
use crate::trace::reader::blocks::packed;
use crate::trace::reader::wire::{Field, Value, fields, put_bytes, put_uint};
use crate::trace::reader::{Packet, TERMINATING_FLOW_IDS};

/// How many bytes of packets are compressed together.
const CHUNK: usize = 256 << 10;

/// Copies the chosen part of a trace to `output`, which is open as `file`. Returns its size in
/// bytes.
pub(super) fn copy(
    path: &Path,
    choice: &Choice,
    filter: &Filter,
    output: &Path,
    file: &mut dyn Write,
) -> Result<u64, Reason> {
    let mut copier = Copier {
        choice,
        filter,
        states: FxHashMap::default(),
        said: FxHashSet::default(),
        at: u64::MAX,
        number: 0,
        pending: Vec::new(),
        output,
        file,
        written: 0,
    };
    let passed = |at| choice.passed(at, filter);
    read_parts(path, &passed, |packet| {
        copier.packet(packet);
        if copier.pending.len() >= CHUNK { copier.flush() } else { Ok(()) }
    })?;
    copier.flush()?;
    copier.file.flush().map_err(Reason::write(output))?;
    Ok(copier.written)
}

struct Copier<'a> {
    choice: &'a Choice,
    filter: &'a Filter,
    states: FxHashMap<u64, State>,
    /// Packets that describe tracks and the trace.
    said: FxHashSet<Box<[u8]>>,
    /// The position in the file of what is being copied, and the number of its next event.
    at: u64,
    number: usize,
    pending: Vec<u8>,
    /// The copy's path, and its open file.
    output: &'a Path,
    file: &'a mut dyn Write,
    written: u64,
}

/// A sequence in the copy.
#[derive(Default)]
struct State {
    /// The time of its delta clock.
    clock: HostNs,
    /// Interned entries that it has.
    interned: FxHashSet<(u32, u64)>,
}

impl Copier<'_> {
    fn packet(&mut self, packet: &Packet<'_>) {
        if packet.at != self.at {
            self.at = packet.at;
            self.number = self.choice.first_at(packet.at).unwrap_or(self.number);
        }
        if packet.clears_state || packet.has_defaults {
            let clock = packet.delta_clock().unwrap_or_default();
            self.states.insert(packet.sequence, State { clock, ..State::default() });
        }
        if let Some(event) = &packet.event {
            let time = packet.time.unwrap_or_default();
            let fate = self.choice.fate(self.number, time, self.filter, event);
            self.number += 1;
            match fate {
                Fate::Left => {}
                Fate::Kept => self.write(packet, None),
                Fate::Moved => self.write(packet, Some(time.clamp(self.filter.begin, self.filter.end))),
            }
        } else if packet.has_defaults {
            // In its place, so that clocks do not run backwards between packets.
            if self.choice.sequences.contains(&packet.sequence) {
                self.write(packet, None);
            }
        } else if let Some(time) = packet.time {
            if (self.filter.begin..=self.filter.end).contains(&time) && !self.filter.leaves_out(packet) {
                self.write(packet, None);
            }
        } else if self.is_news(packet) {
            self.write(packet, None);
        }
    }

    /// Whether a packet that describes a track or the trace is wanted. Restarts repeat all of them.
    /// The copy has no restarts: what they say about communicators may be left out.
    fn is_news(&mut self, packet: &Packet<'_>) -> bool {
        let uuid = |descriptor| fields(descriptor).find(|field| field.number == track_descriptor::UUID);
        let track = packet.descriptor.map(|descriptor| uuid(descriptor).map_or(0, |field| field.uint()));
        // The root says how processes are ordered.
        let is_wanted = track.is_none_or(|uuid| uuid == 0 || self.choice.tracks.contains(&uuid));
        let is_restart = || fields(packet.raw).any(|field| field.number == trace_packet::SYNCHRONIZATION_MARKER);
        is_wanted && !is_restart() && self.said.insert(packet.raw.into())
    }

    /// Writes a packet of the file, at another time if one is given.
    fn write(&mut self, packet: &Packet<'_>, at: Option<HostNs>) {
        let state = self.states.entry(packet.sequence).or_default();
        let interned = missing(packet, &mut state.interned);
        let mut out = Vec::new();
        match (at, packet.time) {
            (Some(at), _) => {
                put_uint(&mut out, trace_packet::TIMESTAMP, at.0);
                put_uint(&mut out, trace_packet::TIMESTAMP_CLOCK_ID, clock_id::BOOTTIME);
            }
            (None, Some(time)) if packet.is_delta => {
                put_uint(&mut out, trace_packet::TIMESTAMP, time.since(state.clock));
                state.clock = time;
            }
            (None, _) => {
                let timing = |field: &Field<'_>| {
                    [trace_packet::TIMESTAMP, trace_packet::TIMESTAMP_CLOCK_ID].contains(&field.number)
                };
                fields(packet.raw).filter(timing).for_each(|field| out.extend_from_slice(field.raw));
            }
        }
        if !interned.is_empty() {
            put_bytes(&mut out, trace_packet::INTERNED_DATA, &interned);
        }
        for field in fields(packet.raw) {
            match field.number {
                trace_packet::TIMESTAMP | trace_packet::TIMESTAMP_CLOCK_ID | trace_packet::INTERNED_DATA => {}
                trace_packet::TRACK_EVENT => {
                    let moved = at.zip(packet.time).filter(|(at, time)| at != time);
                    put_bytes(&mut out, field.number, &self.event(field.bytes(), moved));
                }
                _ => out.extend_from_slice(field.raw),
            }
        }
        put_bytes(&mut self.pending, trace::PACKET, &out);
    }

    /// An event without arrows that lead nowhere, and with a remark if it was moved.
    fn event(&self, event: &[u8], moved: Option<(HostNs, HostNs)>) -> Vec<u8> {
        let mut out = Vec::new();
        let is_counter =
            fields(event).any(|field| field.number == track_event::TYPE && field.uint() == kind::TYPE_COUNTER);
        let mut args: &[u8] = &[];
        for field in fields(event) {
            match field.number {
                track_event::FLOW_IDS | TERMINATING_FLOW_IDS if matches!(field.value, Value::Fixed(_)) => {
                    if self.choice.flows.get(&field.uint()).is_some_and(|ends| *ends > 1) {
                        out.extend_from_slice(field.raw);
                    }
                }
                track_event::NCCL if moved.is_some() => args = field.bytes(),
                _ => out.extend_from_slice(field.raw),
            }
        }
        if let Some((at, time)) = moved
            && !is_counter
        {
            put_bytes(&mut out, track_event::NCCL, &with_remark(args, at, time));
        }
        out
    }

    /// Compresses the waiting packets and writes them.
    fn flush(&mut self) -> Result<(), Reason> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = packed(&self.pending).and_then(|packet| {
            self.written += packet.len() as u64;
            self.file.write_all(&packet)
        });
        self.pending.clear();
        written.map_err(Reason::write(self.output))
    }
}

/// The interned entries that a packet needs and its sequence does not have yet. They are added to
/// `has`.
fn missing(packet: &Packet<'_>, has: &mut FxHashSet<(u32, u64)>) -> Vec<u8> {
    let event = fields(packet.raw).find(|field| field.number == trace_packet::TRACK_EVENT);
    let named = fields(event.map_or(&[], |event| event.bytes())).filter_map(|field| match field.number {
        track_event::NAME_IID => Some((interned_data::EVENT_NAMES, field.uint())),
        track_event::CATEGORY_IIDS => Some((interned_data::EVENT_CATEGORIES, field.uint())),
        _ => None,
    });
    let mut missing = Vec::new();
    // For other dictionaries it is not known which event uses an entry, so all of their entries go
    // with the first packet.
    for (dictionary, iid) in named.chain(packet.other_interned()) {
        if has.insert((dictionary, iid)) {
            missing.extend_from_slice(packet.interned(dictionary, iid).unwrap_or_default());
        }
    }
    missing
}

/// Arguments with a remark on where the event was.
fn with_remark(args: &[u8], at: HostNs, time: HostNs) -> Vec<u8> {
    let mut out = Vec::new();
    let mut note = String::new();
    for field in fields(args) {
        match field.number {
            nccl::NOTE => note = String::from_utf8_lossy(field.bytes()).into_owned() + "; ",
            _ => out.extend_from_slice(field.raw),
        }
    }
    let direction = if time < at { "earlier" } else { "later" };
    note.push_str(&format!("it was {} {direction}, outside what ncclscope cut kept", duration(at.0.abs_diff(time.0))));
    put_bytes(&mut out, nccl::NOTE, note.as_bytes());
    out
}
