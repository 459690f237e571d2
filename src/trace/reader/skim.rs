//! What a packet says by itself, and where: the half of reading that is done on all cores.

use std::ops::Range;

use super::event::TERMINATING_FLOW_IDS;
use super::wire::fields;
use crate::trace::fields::{trace_packet, track_event};

/// What a packet says by itself, and where in its block: the half of reading that needs no other
/// packet. There is one for each packet of a block, so it is small: what is optional is in `has`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skim {
    /// Where in its block of the file it begins, or the compressed packet that contains it.
    pub(super) at: u32,
    raw: Part,
    pub(super) sequence: u32,
    pub(super) clock: u32,
    pub(super) timestamp: u64,
    pub(super) descriptor: Part,
    pub(super) event: Part,
    pub(super) kind: u32,
    pub(super) has: Has,
    pub(super) track: u64,
    pub(super) category: u64,
    pub(super) name: u64,
    pub(super) args: Part,
    pub(super) correlation: u64,
    pub(super) value: i64,
}

/// Which fields a packet has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Has(u32);

impl Has {
    pub(super) const TIMESTAMP: Has = Has(1);
    pub(super) const CLOCK: Has = Has(1 << 1);
    /// It restarts its sequence.
    pub(super) const CLEARED_STATE: Has = Has(1 << 2);
    /// It says something that later packets of its sequence leave out.
    pub(super) const STATE: Has = Has(1 << 3);
    pub(super) const EVENT: Has = Has(1 << 4);
    pub(super) const TRACK: Has = Has(1 << 5);
    pub(super) const CATEGORY: Has = Has(1 << 6);
    pub(super) const NAME: Has = Has(1 << 7);
    /// Its name is in the event itself.
    pub(super) const INLINE_NAME: Has = Has(1 << 8);
    pub(super) const CORRELATION: Has = Has(1 << 9);
    pub(super) const VALUE: Has = Has(1 << 10);
    pub(super) const FLOWS: Has = Has(1 << 11);
    /// It was compressed.
    pub(super) const PACKED: Has = Has(1 << 12);
    /// It stands for all that are compressed together, which were not read.
    pub(super) const PASSED: Has = Has(1 << 13);
    /// It has more than a time, a sequence and an event, or has them in another order.
    pub(super) const OTHER: Has = Has(1 << 14);
    /// It says something about its process or about the trace.
    pub(super) const ATTRIBUTES: Has = Has(1 << 15);

    fn add(&mut self, other: Has) {
        self.0 |= other.0;
    }

    pub(super) fn all_of(self, other: Has) -> bool {
        self.0 & other.0 == other.0
    }

    /// The value of a field, if it is there.
    pub(super) fn some<T>(self, field: Has, value: T) -> Option<T> {
        self.all_of(field).then_some(value)
    }
}

/// The position of a part of a block; empty if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    at: u32,
    length: u32,
}

impl Part {
    /// The position of `part` in `block`.
    fn of(block: &[u8], part: &[u8]) -> Part {
        let at = (part.as_ptr() as usize).wrapping_sub(block.as_ptr() as usize);
        Part { at: at as u32, length: part.len() as u32 }
    }

    pub(super) fn get(self, block: &[u8]) -> &[u8] {
        let at = self.at as usize;
        block.get(at..at + self.length as usize).unwrap_or_default()
    }
}

impl Skim {
    /// For a packet at this place in its block of the file, compressed or not.
    pub(super) fn of(at: u32, is_packed: bool) -> Skim {
        Skim { at, has: if is_packed { Has::PACKED } else { Has::default() }, ..Skim::default() }
    }

    /// Reads the packet at this place in `block`, which is smaller than 4 GiB. Returns whether it
    /// is a message.
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
                trace_packet::TRACE_ATTRIBUTES => self.has.add(Has::ATTRIBUTES),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::fields::trace;
    use crate::trace::reader::wire::{put_bytes, put_fixed64, put_uint};
    use crate::trace::reader::{Error, Event, read as read_trace};

    type Parts = Vec<fn(&mut Vec<u8>)>;

    /// What is read of a packet with these parts of its event, and these of its own.
    fn read(event: &Parts, packet: impl Fn(&mut Vec<u8>, &[u8])) -> (bool, String) {
        let (mut parts, mut raw, mut file) = (Vec::new(), Vec::new(), Vec::new());
        event.iter().for_each(|put| put(&mut parts));
        packet(&mut raw, &parts);
        put_bytes(&mut file, trace::PACKET, &raw);
        let mut found = None;
        read_trace::<Error>(&file[..], |packet| {
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
}
