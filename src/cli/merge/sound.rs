//! Whether a file is what a recording wrote. Our traces follow stricter rules than Perfetto's
//! format: tracks and sequences are defined before they are used; slices begin before they end. For
//! compressed events, zlib's checksum shows the rest. Others have no checksum, so more rules are
//! checked: fields have the types of the schema and occur once; names are defined before they are
//! used. Hardly any damaged bytes follow all of these rules. A changed value that is still valid is
//! not noticed.

use rustc_hash::FxHashSet;

use crate::model::time::HostNs;
use crate::trace::fields::{interned_data, trace_packet, track_event, track_event::r#type as kind};
use crate::trace::reader::wire::{Field, Value, fields};
use crate::trace::reader::{self, Damage, Event, Numbered, Packet, TERMINATING_FLOW_IDS};
use crate::trace::writer::tag_of_sequence;

/// No file covers more time than this, in ns: 365 days.
const YEAR: u64 = 365 * 86_400 * 1_000_000_000;

/// What is known about a file so far.
#[derive(Default)]
pub(super) struct Sound {
    /// The sequences that have begun.
    sequences: FxHashSet<u64>,
    /// The tracks that were described, and how many slices are open on each.
    tracks: Numbered<u32>,
    /// The first time in it.
    first: Option<HostNs>,
    args: Args,
}

impl Sound {
    /// Takes the next packet of a file.
    ///
    /// # Errors
    ///
    /// If no recording writes such a packet, or not in this place.
    pub(super) fn look(&mut self, packet: &Packet<'_>) -> Result<(), reader::Error> {
        self.packet(packet).map_err(|why| reader::Error::Packet { at: packet.at, damage: Damage::Foreign(why) })
    }

    fn packet(&mut self, packet: &Packet<'_>) -> Result<(), &'static str> {
        if packet.clears_state && !self.sequences.insert(packet.sequence) {
            return Err("its sequence begins a second time");
        }
        if let Some(time) = packet.time
            && time.0.abs_diff(self.first.get_or_insert(time).0) > YEAR
        {
            return Err("its time is a year from the first one of the file");
        }
        let has_checksum = packet.is_packed && packet.event.is_some() && packet.descriptor.is_none();
        let is_event = has_checksum || self.fields(packet)?;
        match &packet.event {
            Some(_) if !packet.has_begun() => Err("its sequence has not begun"),
            Some(event) => self.event(packet, event, has_checksum),
            None if is_event => Err("it says nothing"),
            None => Ok(()),
        }
    }

    /// Takes the fields of a packet. Returns whether it is a plain event.
    fn fields(&mut self, packet: &Packet<'_>) -> Result<bool, &'static str> {
        let (mut seen, mut is_event) = (0_u8, true);
        for field in fields(packet.raw) {
            let (bit, is_right) = match field.number {
                trace_packet::TIMESTAMP => (1, is_varint(&field)),
                trace_packet::TRUSTED_PACKET_SEQUENCE_ID => (2, is_varint(&field)),
                trace_packet::TIMESTAMP_CLOCK_ID => (4, is_varint(&field)),
                trace_packet::TRACK_EVENT => (8, is_bytes(&field)),
                _ => {
                    is_event = false;
                    continue;
                }
            };
            if !is_right {
                return Err("one of its fields is of another type");
            }
            if seen & bit != 0 {
                return Err("one of its fields is there twice");
            }
            seen |= bit;
        }
        // Packets that are not plain events are rare.
        if !is_event {
            let whole = packet.decode().map_err(|_| "it is not a Protobuf message")?;
            if let Some(descriptor) = &whole.track_descriptor {
                self.tracks.entry(descriptor.uuid());
            }
            if let Some(descriptor) = &whole.extension_descriptor {
                self.args = Args::of(descriptor.extension_set()).ok_or("it does not describe our arguments")?;
            }
            if whole.synchronization_marker.is_some() {
                // The sequences of its process begin again.
                let tag = tag_of_sequence(packet.sequence);
                self.sequences.retain(|sequence| tag_of_sequence(*sequence) != tag);
            }
        }
        Ok(is_event)
    }

    fn event(&mut self, packet: &Packet<'_>, event: &Event<'_>, has_checksum: bool) -> Result<(), &'static str> {
        let is_named = has_checksum || self.parts(packet, event)?;
        let open = self.tracks.get_mut(event.track).ok_or("it is on a track that nothing describes")?;
        match event.kind {
            kind::TYPE_SLICE_BEGIN | kind::TYPE_INSTANT if !is_named => return Err("its event has no name"),
            kind::TYPE_SLICE_BEGIN => *open += 1,
            kind::TYPE_SLICE_END => *open = open.checked_sub(1).ok_or("it ends a slice that has not begun")?,
            kind::TYPE_INSTANT | kind::TYPE_COUNTER => {}
            _ => return Err("its event is of no known kind"),
        }
        Ok(())
    }

    /// Takes the fields of an event. Returns whether it has a name.
    fn parts(&self, packet: &Packet<'_>, event: &Event<'_>) -> Result<bool, &'static str> {
        let (mut is_named, mut parts) = (false, fields(event.raw));
        for field in parts.by_ref() {
            let is_right = match field.number {
                track_event::TYPE
                | track_event::TRACK_UUID
                | track_event::CORRELATION_ID
                | track_event::COUNTER_VALUE => is_varint(&field),
                track_event::NAME_IID => {
                    is_named = true;
                    is_varint(&field) && packet.interned(interned_data::EVENT_NAMES, field.uint()).is_some()
                }
                track_event::CATEGORY_IIDS => {
                    is_varint(&field) && packet.interned(interned_data::EVENT_CATEGORIES, field.uint()).is_some()
                }
                track_event::NAME => {
                    is_named = true;
                    is_text(&field)
                }
                track_event::NCCL => is_bytes(&field) && self.args.are_sound(field.bytes()),
                track_event::FLOW_IDS | TERMINATING_FLOW_IDS => !is_varint(&field),
                _ => true,
            };
            if !is_right {
                return Err("a field of its event is of another type, or refers to a name that nothing defines");
            }
        }
        if parts.is_damaged() {
            return Err("its event is not a Protobuf message");
        }
        Ok(is_named)
    }
}

fn is_varint(field: &Field<'_>) -> bool {
    matches!(field.value, Value::Varint(_))
}

fn is_bytes(field: &Field<'_>) -> bool {
    matches!(field.value, Value::Bytes(_))
}

fn is_text(field: &Field<'_>) -> bool {
    is_bytes(field) && str::from_utf8(field.bytes()).is_ok()
}

/// Which of our typed arguments are texts, by number; the others are integers. `None` if the file
/// does not describe an argument with that number.
#[derive(Default)]
struct Args(Vec<Option<bool>>);

impl Args {
    fn are_sound(&self, args: &[u8]) -> bool {
        let mut args = fields(args);
        let are_right = args.by_ref().all(|field| match self.0.get(field.number as usize) {
            Some(Some(true)) => is_text(&field),
            Some(Some(false)) => is_varint(&field),
            _ => true,
        });
        are_right && !args.is_damaged()
    }
}

impl Args {
    /// Read from the descriptor that a trace carries; `None` if that is not a descriptor. The
    /// numbers are those of protobuf's `descriptor.proto`.
    fn of(descriptor: &[u8]) -> Option<Args> {
        const NAME: u32 = 1;
        /// In a file.
        const MESSAGE: u32 = 4;
        const ENUM: u32 = 5;
        /// In a message its fields, in an enum its values.
        const MEMBER: u32 = 2;
        const NUMBER: u32 = 3;
        const TYPE: u32 = 5;
        const STRING: u64 = 9;
        let mut args = Vec::new();
        for file in whole(descriptor)? {
            for part in whole(file.bytes())?.iter().filter(|it| [MESSAGE, ENUM].contains(&it.number)) {
                let parts = whole(part.bytes())?;
                let is_ours = parts.iter().any(|it| it.number == NAME && it.bytes() == b"Nccl");
                for member in parts.iter().filter(|it| it.number == MEMBER) {
                    let member = whole(member.bytes())?;
                    let part = |number| member.iter().find(|it| it.number == number);
                    if !part(NAME)?.bytes().iter().all(u8::is_ascii_graphic) {
                        return None;
                    }
                    if is_ours {
                        let number = usize::from(u16::try_from(part(NUMBER)?.uint()).ok()?);
                        args.resize(args.len().max(number + 1), None);
                        args[number] = Some(part(TYPE)?.uint() == STRING);
                    }
                }
            }
        }
        (!args.is_empty()).then_some(Args(args))
    }
}

/// The fields of a message; `None` if it is not a message.
fn whole(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut parts = fields(message);
    let found = parts.by_ref().collect();
    (!parts.is_damaged()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::fields::{EXTENSION, nccl};

    #[test]
    fn our_arguments_have_the_types_of_the_schema() {
        let args = Args::of(EXTENSION).unwrap();
        let of = |number: u32| args.0[number as usize];
        assert_eq!(
            [nccl::SEQ, nccl::PEER, nccl::FUNCTION, nccl::NOTE, nccl::COMM_NAME].map(of),
            [Some(false), Some(false), Some(false), Some(true), Some(true)]
        );
        assert!(args.are_sound(&[0x08, 7]) && args.are_sound(&[]));
        // A text instead of an integer; half an integer.
        assert!(!args.are_sound(&[0x0a, 1, b'x']) && !args.are_sound(&[0x08]));
        let mut damaged = EXTENSION.to_vec();
        damaged[2_000..2_040].fill(0xff);
        assert!(Args::of(&damaged).is_none() && Args::of(&[]).is_none());
    }
}
