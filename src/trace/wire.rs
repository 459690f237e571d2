//! The part of protobuf's wire format that a writer needs, and reading it field by field.

/// A growing message.
#[derive(Clone, Debug, Default)]
pub struct Buf {
    bytes: Vec<u8>,
}

/// How a field's value is encoded.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

impl Buf {
    /// An empty message.
    #[must_use]
    pub const fn new() -> Buf {
        Buf { bytes: Vec::new() }
    }

    /// The bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Discards what was written and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns what was written. The buffer starts over, with room for as much.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let capacity = self.bytes.capacity();
        std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity))
    }

    /// A bare varint.
    #[inline]
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// An unsigned or boolean field.
    #[inline]
    pub fn uint(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field << 3 | VARINT));
        self.varint(value);
    }

    /// An `int32` or `int64` field: negative values take ten bytes.
    #[inline]
    pub fn int(&mut self, field: u32, value: i64) {
        self.uint(field, value as u64);
    }

    /// A `fixed64` field.
    #[inline]
    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field << 3 | FIXED64));
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A string, bytes or ready-made message field.
    #[inline]
    pub fn bytes_field(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field << 3 | BYTES));
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Whole fields, ready-made.
    pub fn raw(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }

    /// A message field, written by `body`.
    #[inline]
    pub fn message(&mut self, field: u32, body: impl FnOnce(&mut Buf)) {
        self.varint(u64::from(field << 3 | BYTES));
        // Nearly every message is shorter than 128 bytes; a longer one is moved to make room for
        // its length.
        let length_at = self.bytes.len();
        self.bytes.push(0);
        body(self);
        let length = self.bytes.len() - length_at - 1;
        if length < 0x80 {
            self.bytes[length_at] = length as u8;
        } else {
            let mut varint = Buf::new();
            varint.varint(length as u64);
            self.bytes.splice(length_at..=length_at, varint.bytes);
        }
    }
}

/// The fields of a message, in order. Ends early if the bytes are no message.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    is_damaged: bool,
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Field<'a> {
    /// Its number.
    pub(crate) number: u32,
    /// What it holds.
    pub(crate) value: Value<'a>,
    /// The field as written, including its number.
    pub(crate) raw: &'a [u8],
}

/// A field's value, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// Integers, enums and booleans.
    Varint(u64),
    /// Numbers of a fixed size.
    Fixed(u64),
    /// Messages, strings and bytes.
    Bytes(&'a [u8]),
}

/// Takes a number off the front; `None` if there is none.
#[inline(always)]
pub(crate) fn varint(rest: &mut &[u8]) -> Option<u64> {
    match *rest {
        [byte @ ..0x80, after @ ..] => {
            *rest = after;
            Some((*byte).into())
        }
        [low, high @ ..0x80, after @ ..] => {
            *rest = after;
            Some(u64::from(low & 0x7f) | u64::from(*high) << 7)
        }
        _ => long_varint(rest),
    }
}

/// The same for numbers of more than two bytes: up to eight of them are taken together.
#[inline]
fn long_varint(rest: &mut &[u8]) -> Option<u64> {
    let word = rest.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    let ends = !word & 0x8080_8080_8080_8080;
    if ends == 0 {
        return any_varint(rest);
    }
    let bits = ends.trailing_zeros() + 1;
    *rest = &rest[bits as usize / 8..];
    // Seven bits of each byte count: they are moved together by pairs, fours and eights.
    let word = word & u64::MAX >> (u64::BITS - bits);
    let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    Some(word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4)
}

/// The same byte by byte.
fn any_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (place, byte) in rest.iter().take(LONGEST).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            *rest = &rest[place + 1..];
            // The last byte of the longest numbers has room for one bit.
            return (place < LONGEST - 1 || *byte < 2).then_some(number);
        }
    }
    None
}

/// How many bytes a number takes at most.
const LONGEST: usize = 10;

#[inline(always)]
pub(crate) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message, is_damaged: false }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Field<'a>> {
        let start = self.rest;
        let (number, value) = self.pair()?;
        Some(Field { number, value, raw: &start[..start.len() - self.rest.len()] })
    }
}

impl<'a> Fields<'a> {
    /// Whether it ended early.
    #[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only files are damaged"))]
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// The number and the value of the next field; `None` at the end, or if the rest is no message.
    #[inline(always)]
    pub(crate) fn pair(&mut self) -> Option<(u32, Value<'a>)> {
        if self.rest.is_empty() {
            return None;
        }
        let pair = self.field();
        if pair.is_none() {
            (self.rest, self.is_damaged) = (&[], true);
        }
        pair
    }

    #[inline(always)]
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = varint(&mut self.rest)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        // No field has the number 0: these are zeros in the place of a message.
        Some((u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?, value))
    }

    #[inline(always)]
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

/// Fields in the expected order, which is faster than checking each number.
#[cfg(feature = "cli")]
impl<'a> Fields<'a> {
    /// The fields that are left, as written.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The integer of the next field, if it is a varint of this number.
    #[inline(always)]
    pub(crate) fn expect_uint(&mut self, number: u32) -> Option<u64> {
        let mut rest = behind(self.rest, number << 3 | VARINT)?;
        let value = varint(&mut rest)?;
        self.rest = rest;
        Some(value)
    }

    /// The same for a number of 64 bits in a fixed size.
    #[inline(always)]
    pub(crate) fn expect_fixed64(&mut self, number: u32) -> Option<u64> {
        let (value, rest) = behind(self.rest, number << 3 | FIXED64)?.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*value))
    }

    /// The same for bytes.
    #[inline(always)]
    pub(crate) fn expect_bytes(&mut self, number: u32) -> Option<&'a [u8]> {
        let mut rest = behind(self.rest, number << 3 | BYTES)?;
        let length = usize::try_from(varint(&mut rest)?).ok()?;
        let bytes;
        (bytes, self.rest) = rest.split_at_checked(length)?;
        Some(bytes)
    }
}

/// What follows this tag, if the bytes begin with it.
#[cfg(feature = "cli")]
#[inline(always)]
fn behind(bytes: &[u8], tag: u32) -> Option<&[u8]> {
    let byte = |place: u32| (tag >> (7 * place)) as u8;
    match tag {
        ..0x80 => behind_all(bytes, [byte(0)]),
        0x80..0x4000 => behind_all(bytes, [byte(0) | 0x80, byte(1)]),
        _ => behind_all(bytes, [byte(0) | 0x80, byte(1) | 0x80, byte(2)]),
    }
}

#[cfg(feature = "cli")]
#[inline(always)]
fn behind_all<const N: usize>(bytes: &[u8], these: [u8; N]) -> Option<&[u8]> {
    bytes.split_first_chunk().filter(|(first, _)| **first == these).map(|(_, rest)| rest)
}

impl<'a> Value<'a> {
    /// Its integer; 0 if it is none.
    #[inline(always)]
    pub(crate) fn uint(self) -> u64 {
        match self {
            Value::Varint(number) | Value::Fixed(number) => number,
            Value::Bytes(_) => 0,
        }
    }

    /// Its bytes; empty if it is a number.
    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            Value::Varint(_) | Value::Fixed(_) => &[],
        }
    }
}

impl<'a> Field<'a> {
    /// Its integer; 0 if it has none.
    #[inline(always)]
    pub(crate) fn uint(&self) -> u64 {
        self.value.uint()
    }

    /// Its bytes; empty if it is a number.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.value.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_protobuf_s_documentation_are_encoded() {
        let mut buf = Buf::new();
        buf.uint(1, 150);
        assert_eq!(buf.bytes(), [0x08, 0x96, 0x01]);
        buf.clear();
        buf.bytes_field(2, b"testing");
        assert_eq!(buf.bytes(), b"\x12\x07testing");
        buf.clear();
        buf.message(3, |inner| inner.uint(1, 150));
        assert_eq!(buf.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        buf.clear();
        buf.int(1, -2);
        assert_eq!(buf.bytes(), [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    }

    #[test]
    fn a_long_message_gets_a_long_length() {
        for length in [126, 127, 128, 129, 16383, 16384, 40_000] {
            let (mut patched, mut known) = (Buf::new(), Buf::new());
            let body = vec![7_u8; length];
            patched.message(5, |inner| inner.bytes.extend_from_slice(&body));
            known.bytes_field(5, &body);
            assert_eq!(patched.bytes(), known.bytes(), "{length}");
        }
    }

    #[test]
    fn numbers_of_all_lengths_are_read_wherever_they_end() {
        let numbers = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, 0x5555_5555_5555_5555 >> bit, u64::MAX >> bit]);
        for number in numbers {
            let mut buf = Buf::new();
            buf.varint(number);
            let length = buf.len();
            for after in [0, 1, 7, 20] {
                let bytes = [buf.bytes(), &vec![0xa5; after]].concat();
                let mut rest = &bytes[..];
                assert_eq!((varint(&mut rest), rest.len()), (Some(number), after), "{number:#x}");
                let mut cut = &buf.bytes()[..length - 1];
                assert_eq!(varint(&mut cut), None, "{number:#x}");
            }
        }
        // More than 64 bits, and more than ten bytes.
        for last in [2, 0x80] {
            let bytes = [&[0xff; 9][..], &[last, 0, 0]].concat();
            assert_eq!(varint(&mut &bytes[..]), None);
        }
    }

    #[cfg(feature = "cli")]
    #[test]
    fn only_what_is_expected_is_taken() {
        let mut buf = Buf::new();
        buf.uint(8, 150);
        buf.fixed64(47, 7);
        buf.bytes_field(9_900, b"args");
        let mut message = fields(buf.bytes());
        // Another number, and another type.
        assert_eq!((message.expect_uint(9), message.expect_bytes(8), message.expect_fixed64(8)), (None, None, None));
        assert_eq!((message.expect_uint(8), message.expect_uint(47)), (Some(150), None));
        assert_eq!((message.expect_fixed64(47), message.expect_bytes(9_900)), (Some(7), Some(&b"args"[..])));
        assert!(message.rest().is_empty() && message.expect_uint(8).is_none());
        // What is cut off stays, and so is found to be damaged.
        for end in 1..buf.len() {
            let mut message = fields(&buf.bytes()[..end]);
            let _ = (message.expect_uint(8), message.expect_fixed64(47), message.expect_bytes(9_900));
            let is_whole = message.rest().is_empty();
            assert!(message.pair().is_none());
            assert_eq!(message.is_damaged(), !is_whole, "{end} bytes");
            assert_eq!(is_whole, end == 3 || end == 13, "{end} bytes");
        }
    }
}
