//! Gives a file's processes other marks. A mark is the 20 random bits of a process's tag. Among a
//! thousand processes two often share one, and their tracks, sequences and arrows would be mixed
//! up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use crate::model::ids::{Handle, ProcessTag};
use crate::trace::fields::{
    gpu_render_stage_event as stage, interned_data, interned_gpu_render_stage_specification as specification,
    interned_graphics_context as context, trace, trace_attributes, trace_packet, trace_packet_defaults,
    track_descriptor, track_event, track_event_defaults,
};
use crate::trace::reader::wire::{fields, put_bytes, put_fixed64, put_uint};
use crate::trace::reader::{self, TERMINATING_FLOW_IDS, blocks};
use crate::trace::stages;
use crate::trace::words::attribute;
use crate::trace::writer::{SEQUENCE_TAG_SHIFT, TRACK_BITS};

/// New marks, by old mark.
pub(super) type Marks = BTreeMap<u64, u64>;

/// The number with its mark replaced; the mark is `shift` bits up.
fn with_mark(number: u64, shift: u32, marks: &Marks) -> u64 {
    let mask = ((1 << ProcessTag::BITS) - 1) << shift;
    match marks.get(&((number & mask) >> shift)) {
        Some(new) => number & !mask | new << shift,
        None => number,
    }
}

/// Copies a trace with other marks into an unnamed file, in the folder of `output`.
pub(super) fn copied(path: &Path, marks: &Marks, output: &Path) -> Result<File, reader::Error> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut copy = tempfile::tempfile_in(folder)?;
    blocks::rewritten(
        File::open(path)?,
        |framed| Some(packets(framed, marks)),
        |bytes| copy.write_all(bytes).map_err(reader::Error::Io),
    )?;
    copy.rewind()?;
    Ok(copy)
}

/// Another reader of the same file, from its beginning. Only one of them may be read at a time.
pub(super) fn again(copy: &File) -> io::Result<File> {
    let mut again = copy.try_clone()?;
    again.rewind()?;
    Ok(again)
}

/// A series of packets, with other marks.
fn packets(framed: &[u8], marks: &Marks) -> Vec<u8> {
    edited(framed, |number, packet, out| match number {
        trace::PACKET => put_bytes(out, number, &self::packet(packet.bytes(), marks)),
        _ => out.extend_from_slice(packet.raw),
    })
}

fn packet(packet: &[u8], marks: &Marks) -> Vec<u8> {
    edited(packet, |number, field, out| match number {
        trace_packet::TRUSTED_PACKET_SEQUENCE_ID => {
            put_uint(out, number, with_mark(field.uint(), SEQUENCE_TAG_SHIFT, marks));
        }
        trace_packet::TRACK_DESCRIPTOR => put_bytes(out, number, &marked(field.bytes(), marks, DESCRIPTOR)),
        trace_packet::TRACK_EVENT => put_bytes(out, number, &event(field.bytes(), marks)),
        trace_packet::TRACE_PACKET_DEFAULTS => {
            let defaults = edited(field.bytes(), |number, field, out| match number {
                trace_packet_defaults::TRACK_EVENT_DEFAULTS => {
                    let uuid = &[(track_event_defaults::TRACK_UUID, TRACK_BITS)];
                    put_bytes(out, number, &marked(field.bytes(), marks, uuid));
                }
                _ => out.extend_from_slice(field.raw),
            });
            put_bytes(out, number, &defaults);
        }
        trace_packet::INTERNED_DATA => {
            let interned = edited(field.bytes(), |number, field, out| match number {
                interned_data::GRAPHICS_CONTEXTS => {
                    put_bytes(out, number, &marked(field.bytes(), marks, &[(context::IID, stages::NUMBER_BITS)]));
                }
                interned_data::GPU_SPECIFICATIONS => {
                    put_bytes(out, number, &marked(field.bytes(), marks, &[(specification::IID, stages::NUMBER_BITS)]));
                }
                _ => out.extend_from_slice(field.raw),
            });
            put_bytes(out, number, &interned);
        }
        trace_packet::GPU_RENDER_STAGE_EVENT => put_bytes(out, number, &marked(field.bytes(), marks, STAGE)),
        trace_packet::TRACE_ATTRIBUTES => put_bytes(out, number, &attributes(field.bytes(), marks)),
        _ => out.extend_from_slice(field.raw),
    })
}

/// Fields with a mark, and where it begins in them.
const DESCRIPTOR: &[(u32, u32)] = &[(track_descriptor::UUID, TRACK_BITS), (track_descriptor::PARENT_UUID, TRACK_BITS)];
const STAGE: &[(u32, u32)] = &[
    (stage::EVENT_ID, stages::EVENT_BITS),
    (stage::CONTEXT, stages::NUMBER_BITS),
    (stage::HW_QUEUE_IID, stages::NUMBER_BITS),
];

/// A message in which these fields have other marks.
fn marked(message: &[u8], marks: &Marks, which: &[(u32, u32)]) -> Vec<u8> {
    edited(message, |number, field, out| match which.iter().find(|(which, _)| *which == number) {
        Some((_, shift)) => put_uint(out, number, with_mark(field.uint(), *shift, marks)),
        None => out.extend_from_slice(field.raw),
    })
}

fn event(event: &[u8], marks: &Marks) -> Vec<u8> {
    edited(event, |number, field, out| match number {
        track_event::TRACK_UUID => put_uint(out, number, with_mark(field.uint(), TRACK_BITS, marks)),
        track_event::FLOW_IDS | TERMINATING_FLOW_IDS => {
            put_fixed64(out, number, with_mark(field.uint(), Handle::COUNTER_BITS, marks));
        }
        _ => out.extend_from_slice(field.raw),
    })
}

/// Events drawn by an earlier merge have a mark, too, which is stated in an attribute.
fn attributes(attributes: &[u8], marks: &Marks) -> Vec<u8> {
    edited(attributes, |number, said, out| {
        let text = |which| fields(said.bytes()).find(|it| it.number == which).map_or(&b""[..], |it| it.bytes());
        let mark = std::str::from_utf8(text(trace_attributes::attribute::STRING_VALUE)).unwrap_or_default();
        match mark.parse() {
            Ok(mark) if text(trace_attributes::attribute::KEY) == attribute::MERGED.as_bytes() => {
                let mut new = Vec::new();
                put_bytes(&mut new, trace_attributes::attribute::KEY, attribute::MERGED.as_bytes());
                let mark = with_mark(mark, 0, marks).to_string();
                put_bytes(&mut new, trace_attributes::attribute::STRING_VALUE, mark.as_bytes());
                put_bytes(out, number, &new);
            }
            _ => out.extend_from_slice(said.raw),
        }
    })
}

/// A message with its fields rewritten by `edit`.
fn edited(message: &[u8], edit: impl Fn(u32, &reader::wire::Field<'_>, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 8);
    fields(message).for_each(|field| edit(field.number, &field, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_with_a_replacement_change() {
        let marks = Marks::from([(0x12345, 0xabcde)]);
        assert_eq!(with_mark(0x12345 << TRACK_BITS | 7, TRACK_BITS, &marks), 0xabcde << TRACK_BITS | 7);
        assert_eq!(with_mark(3 << 28 | 0x12345 << 8 | 9, SEQUENCE_TAG_SHIFT, &marks), 3 << 28 | 0xabcde << 8 | 9);
        assert_eq!(with_mark(0x12346 << TRACK_BITS, TRACK_BITS, &marks), 0x12346 << TRACK_BITS);
        assert_eq!(with_mark(0, TRACK_BITS, &marks), 0, "the root of all tracks");
    }

    #[test]
    fn render_stages_have_the_new_mark() {
        use crate::trace::reader::TracePacket;
        use crate::trace::reader::proto::perfetto::protos::{
            GpuRenderStageEvent, InternedData, InternedGpuRenderStageSpecification, InternedGraphicsContext,
        };
        use prost::Message as _;

        let of = |mark: u64| {
            let number = mark << stages::NUMBER_BITS;
            let kind = |iid| InternedGpuRenderStageSpecification { iid: Some(iid), ..Default::default() };
            TracePacket {
                gpu_render_stage_event: Some(GpuRenderStageEvent {
                    event_id: Some(mark << stages::EVENT_BITS | 5),
                    context: Some(number | 7),
                    hw_queue_iid: Some(number | 2),
                    stage_iid: Some(3),
                    ..Default::default()
                }),
                interned_data: Some(InternedData {
                    graphics_contexts: vec![InternedGraphicsContext { iid: Some(number | 7), ..Default::default() }],
                    gpu_specifications: vec![kind(number | 2), kind(3)],
                    ..Default::default()
                }),
                ..Default::default()
            }
        };
        let new = packet(&of(0x12345).encode_to_vec(), &Marks::from([(0x12345, 0xabcde)]));
        assert_eq!(TracePacket::decode(&new[..]).unwrap(), of(0xabcde));
    }
}
