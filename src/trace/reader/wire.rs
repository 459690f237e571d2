//! Protobuf's wire format, read field by field. What is copied from one trace to another is copied
//! as it is, including fields that this build does not know.

use prost::encoding;

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
        if start.is_empty() {
            return None;
        }
        let Some((number, value)) = self.field() else {
            (self.rest, self.is_damaged) = (&[], true);
            return None;
        };
        Some(Field { number, value, raw: &start[..start.len() - self.rest.len()] })
    }
}

impl<'a> Fields<'a> {
    /// Whether it ended early.
    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged
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

impl<'a> Field<'a> {
    /// Its integer; 0 if it has none.
    pub(crate) fn uint(&self) -> u64 {
        match self.value {
            Value::Varint(number) | Value::Fixed(number) => number,
            Value::Bytes(_) => 0,
        }
    }

    /// Its bytes; empty if it is a number.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self.value {
            Value::Bytes(bytes) => bytes,
            Value::Varint(_) | Value::Fixed(_) => &[],
        }
    }
}

/// Appends a number field.
pub(crate) fn put_uint(out: &mut Vec<u8>, number: u32, value: u64) {
    encoding::uint64::encode(number, &value, out);
}

/// Appends a number of 64 bits in a fixed size.
pub(crate) fn put_fixed64(out: &mut Vec<u8>, number: u32, value: u64) {
    encoding::fixed64::encode(number, &value, out);
}

/// Appends a message, string or bytes field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    encoding::encode_key(number, encoding::WireType::LengthDelimited, out);
    encoding::encode_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_keep_their_bytes() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x19, 1, 0, 0, 0, 0, 0, 0, 0];
        let found: Vec<_> = fields(&message).collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].number, found[0].uint()), (1, 150));
        assert_eq!((found[1].number, found[1].bytes()), (2, &b"hi"[..]));
        assert_eq!((found[2].number, found[2].uint()), (3, 1));
        let again: Vec<u8> = found.iter().flat_map(|field| field.raw).copied().collect();
        assert_eq!(again, message);
    }

    #[test]
    fn bytes_that_are_no_message_end_early() {
        assert_eq!(fields(&[0x12, 0x05, 1]).count(), 0);
        assert_eq!(fields(&[0x08, 1, 0x0b]).count(), 1);
        assert_eq!(fields(&[0x08]).count(), 0);
        for (message, is_damaged) in
            [(&[0x08][..], true), (&[0x08, 1, 0x0b], true), (&[0, 0], true), (&[0x08, 1], false), (&[], false)]
        {
            let mut fields = fields(message);
            fields.by_ref().for_each(drop);
            assert_eq!(fields.is_damaged(), is_damaged, "{message:?}");
        }
    }
}
