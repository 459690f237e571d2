//! An event, and its arguments, which are decoded on demand.

use std::sync::Arc;

use prost::Message as _;

use super::Nccl;
use super::proto::perfetto::protos::track_event::Type;
use super::wire::{Field, fields};
use crate::trace::fields::track_event;
use crate::trace::words::Category;

/// `TrackEvent.terminating_flow_ids`, which we do not write but others do.
pub(crate) const TERMINATING_FLOW_IDS: u32 = 48;

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
    pub(super) shared_name: Option<&'a Arc<str>>,
    pub(super) args: &'a [u8],
    pub(super) has_flows: bool,
    /// As it stands in its packet.
    pub(crate) raw: &'a [u8],
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::fields::nccl;
    use crate::trace::reader::wire::{put_bytes, put_uint};

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
