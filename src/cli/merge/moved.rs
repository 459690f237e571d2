//! Copies a trace onto another host's clock: all of its times are shifted, and nothing else
//! changes.

use std::io::Read;

use rustc_hash::FxHashMap;

use super::Edits;
use crate::clock::hosts::Offset;
use crate::model::time::HostNs;
use crate::trace::fields::{clock_id, clock_snapshot, trace, trace_attributes, trace_packet};
use crate::trace::reader::wire::{Field, fields, put_bytes, put_uint};
use crate::trace::reader::{self, Packet};
use crate::trace::words::attribute;

/// How many bytes of packets are compressed together.
const CHUNK: usize = 256 << 10;

/// How the times of one host become those of another.
#[derive(Clone)]
pub(super) struct Move {
    /// What is added to them.
    pub(super) offset: Offset,
    /// The host; and in words, how its times were put on the other's clock and how exact that is.
    pub(super) host: String,
    pub(super) how: String,
    /// How far off they may be then, ns.
    pub(super) error_ns: u64,
}

/// Copies a trace with its times shifted; `edits` changes packets that describe tracks. `put` gets
/// many packets at a time. The copy's times belong to the boot `boot`, and it says so.
pub(super) fn copy(
    source: impl Read + Send,
    how: &Move,
    boot: &str,
    edits: &Edits,
    mut put: impl FnMut(Vec<u8>) -> Result<(), reader::Error>,
) -> Result<(), reader::Error> {
    let mut copier = Copier { how, boot, clocks: FxHashMap::default(), packet: Vec::new(), pending: Vec::new() };
    reader::read(source, |packet| {
        if !edits.is_drawn_anew(packet.sequence) {
            copier.packet(packet, edits);
        }
        if copier.pending.len() < CHUNK {
            return Ok(());
        }
        put(std::mem::replace(&mut copier.pending, Vec::with_capacity(CHUNK + CHUNK / 8)))
    })?;
    if copier.pending.is_empty() { Ok(()) } else { put(copier.pending) }
}

struct Copier<'a> {
    how: &'a Move,
    boot: &'a str,
    /// The time of each sequence's delta clock in the copy.
    clocks: FxHashMap<u64, u64>,
    /// The packet that is being written.
    packet: Vec<u8>,
    pending: Vec<u8>,
}

impl Copier<'_> {
    fn packet(&mut self, packet: &Packet<'_>, edits: &Edits) {
        let mut rest = fields(packet.raw);
        // Of nearly all packets, nothing but the time changes.
        if packet.is_plain
            && packet.is_delta
            && let (Some(_), Some(time)) = (rest.expect_uint(trace_packet::TIMESTAMP), packet.time)
        {
            self.packet.clear();
            self.put_delta(packet.sequence, time);
            self.packet.extend_from_slice(rest.rest());
            return put_bytes(&mut self.pending, trace::PACKET, &self.packet);
        }
        let edited = packet.descriptor.and_then(|_| edits.packet(packet.raw));
        let raw = edited.as_deref().unwrap_or(packet.raw);
        self.packet.clear();
        // A packet's own snapshot holds for its own time.
        for field in fields(raw).filter(|field| field.number == trace_packet::CLOCK_SNAPSHOT) {
            let snapshot = self.snapshot(packet.sequence, field.bytes());
            put_bytes(&mut self.packet, field.number, &snapshot);
        }
        if let Some(time) = packet.time {
            if packet.is_delta {
                self.put_delta(packet.sequence, time);
            } else {
                put_uint(&mut self.packet, trace_packet::TIMESTAMP, self.how.offset.moved(time).0);
                put_uint(&mut self.packet, trace_packet::TIMESTAMP_CLOCK_ID, clock_id::BOOTTIME);
            }
        }
        let mut out = std::mem::take(&mut self.packet);
        for field in fields(raw) {
            match field.number {
                trace_packet::TIMESTAMP | trace_packet::TIMESTAMP_CLOCK_ID | trace_packet::CLOCK_SNAPSHOT => {}
                trace_packet::TRACE_ATTRIBUTES => put_bytes(&mut out, field.number, &self.attributes(field.bytes())),
                trace_packet::INTERNED_DATA => match edits.numbers.interned(field.bytes()) {
                    Some(new) => put_bytes(&mut out, field.number, &new),
                    None => out.extend_from_slice(field.raw),
                },
                _ => out.extend_from_slice(field.raw),
            }
        }
        put_bytes(&mut self.pending, trace::PACKET, &out);
        self.packet = out;
    }

    /// Writes a time, shifted, as the distance from the one before it on its sequence.
    fn put_delta(&mut self, sequence: u64, time: HostNs) {
        let time = self.how.offset.moved(time).0;
        let clock = self.clocks.entry(sequence).or_default();
        put_uint(&mut self.packet, trace_packet::TIMESTAMP, time.saturating_sub(*clock));
        *clock = time.max(*clock);
    }

    /// The clocks of a snapshot that the copy has: the trace's and the sequence's own.
    fn snapshot(&mut self, sequence: u64, snapshot: &[u8]) -> Vec<u8> {
        let uint = |clock: &Field<'_>, number| {
            fields(clock.bytes()).find(|field| field.number == number).map_or(0, |field| field.uint())
        };
        let clocks = || fields(snapshot).filter(|field| field.number == clock_snapshot::CLOCKS);
        let id = |clock: &Field<'_>| uint(clock, clock_snapshot::clock::CLOCK_ID);
        let boottime = clocks().find(|clock| id(clock) == clock_id::BOOTTIME);
        let boottime = boottime.map_or(0, |clock| uint(&clock, clock_snapshot::clock::TIMESTAMP));
        let shifted = self.how.offset.moved(HostNs(boottime)).0;
        let mut out = Vec::new();
        for clock in clocks() {
            let is_delta = uint(&clock, clock_snapshot::clock::IS_INCREMENTAL) != 0;
            let time = match id(&clock) {
                clock_id::BOOTTIME => shifted,
                // These belong to the other host's own clock.
                clock_id::MONOTONIC | clock_id::REALTIME => continue,
                _ if is_delta => shifted,
                _ => uint(&clock, clock_snapshot::clock::TIMESTAMP),
            };
            let mut moved = Vec::new();
            put_uint(&mut moved, clock_snapshot::clock::CLOCK_ID, id(&clock));
            put_uint(&mut moved, clock_snapshot::clock::TIMESTAMP, time);
            if is_delta {
                put_uint(&mut moved, clock_snapshot::clock::IS_INCREMENTAL, 1);
                self.clocks.insert(sequence, shifted);
            }
            put_bytes(&mut out, clock_snapshot::CLOCKS, &moved);
        }
        out
    }

    fn attributes(&self, attributes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let say = |out: &mut Vec<u8>, key: &str, value: &str| {
            let mut said = Vec::new();
            put_bytes(&mut said, trace_attributes::attribute::KEY, key.as_bytes());
            put_bytes(&mut said, trace_attributes::attribute::STRING_VALUE, value.as_bytes());
            put_bytes(out, trace_attributes::ATTRIBUTE, &said);
        };
        for said in fields(attributes) {
            let key = fields(said.bytes()).find(|field| field.number == trace_attributes::attribute::KEY);
            if key.is_some_and(|key| key.bytes() == attribute::BOOT.as_bytes()) {
                say(&mut out, attribute::BOOT, self.boot);
                let Move { host, how, error_ns, .. } = self.how;
                say(&mut out, &format!("{}{host}", attribute::HOST_CLOCK), how);
                say(&mut out, &format!("{}{host}", attribute::HOST_CLOCK_ERROR), &error_ns.to_string());
            } else {
                out.extend_from_slice(said.raw);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::cli::merge::members::Members;
    use crate::cli::merge::numbers::Numbers;
    use crate::model::ids::ProcessTag;
    use crate::trace::names::Fixed;
    use crate::trace::reader::TracePacket;
    use crate::trace::reader::proto::perfetto::protos::{
        InternedData, InternedGraphicsContext, ProcessDescriptor, TrackDescriptor,
    };
    use crate::trace::stages;
    use crate::trace::words::Category;
    use crate::trace::writer::{Clocks, Extra, Form, Place, TRACK_BITS, Writer};

    #[test]
    fn render_stages_of_another_host_stay_with_their_process() {
        // Two hosts, each with a process 7; the context belongs to the second one.
        let process = |mark: u64| TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(mark << TRACK_BITS | 1),
                process: Some(ProcessDescriptor {
                    pid: Some(7),
                    process_name: Some(format!("rank {mark}")),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let context =
            InternedGraphicsContext { iid: Some(2 << stages::NUMBER_BITS), pid: Some(7), ..Default::default() };
        let interned = InternedData { graphics_contexts: vec![context], ..Default::default() };
        let stage = TracePacket { timestamp: Some(5), interned_data: Some(interned), ..Default::default() };
        let mut bytes = Vec::new();
        for packet in [process(1), process(2), stage] {
            put_bytes(&mut bytes, trace::PACKET, &packet.encode_to_vec());
        }
        let mut numbers = Numbers::default();
        reader::read::<reader::Error>(&bytes[..], |packet| {
            numbers.look(packet);
            Ok(())
        })
        .unwrap();
        let labels = Members::default().labels();
        let edits = Edits { labels, numbers: numbers.renumbered(), drawn_before: Default::default() };
        let how = Move { offset: Offset::none(), host: String::new(), how: String::new(), error_ns: 0 };
        let mut pids = Vec::new();
        let put = |copied: Vec<u8>| {
            reader::decoded(&copied, |packet| {
                let contexts = packet.interned_data.into_iter().flat_map(|it| it.graphics_contexts);
                pids.extend(packet.track_descriptor.and_then(|it| it.process).map(|it| it.pid()));
                pids.extend(contexts.map(|it| it.pid()));
            })
            .map(drop)
        };
        copy(&bytes[..], &how, "", &edits, put).unwrap();
        assert!(pids.len() == 3 && pids[0] == 7 && pids[1] != 7 && pids[1] == pids[2], "{pids:?}");
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let mut writer = Writer::new(ProcessTag::from_random(7), clocks);
        let track = writer.track(Form::Plain { name: "track" }, Place::default()).unwrap();
        let sequence = writer.sequence(track, HostNs(1_000));
        for time in [1_000, 1_500, 1_400, 90_000] {
            writer.instant(sequence, track, HostNs(time), Category::Api, &Fixed("instant"), &Extra::default());
        }
        let written = writer.take();
        let mut turned = Vec::new();
        for packet in fields(&written) {
            let mut parts: Vec<_> = fields(packet.bytes()).map(|field| field.raw).collect();
            parts.reverse();
            put_bytes(&mut turned, trace::PACKET, &parts.concat());
        }
        let edits = Edits {
            labels: Members::default().labels(),
            numbers: Numbers::default().renumbered(),
            drawn_before: Default::default(),
        };
        let how = Move { offset: Offset::none(), host: String::new(), how: String::new(), error_ns: 0 };
        let copied = |bytes: &[u8]| {
            let (mut copied, mut times) = (Vec::new(), Vec::new());
            copy(bytes, &how, "", &edits, |packets| {
                copied.extend(packets);
                Ok(())
            })
            .unwrap();
            reader::read::<reader::Error>(&copied[..], |packet| {
                times.extend(packet.event.and(packet.time).map(|time| time.0));
                Ok(())
            })
            .unwrap();
            times
        };
        assert_eq!((copied(&written), copied(&turned)), (vec![1_000, 1_500, 1_400, 90_000], copied(&written)));
    }
}
