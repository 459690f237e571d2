//! The part of protobuf's wire format that the trace checks need.

/// The fields of a message, one after the other. Ends early, with an error, if the bytes are no
/// message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// A field's value, by its wire type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The bytes are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Malformed;

pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

impl<'a> Fields<'a> {
    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let (value, length) = varint(self.rest)?;
        self.rest = &self.rest[length..];
        Some(value)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }
}

/// The varint at the start of `bytes`, and its length.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some((value, index + 1));
        }
    }
    None
}

/// The varints of a packed field.
pub(super) fn varints(mut packed: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let (value, length) = varint(packed)?;
        packed = &packed[length..];
        Some(value)
    })
}

/// The 8-byte values of a packed field.
pub(super) fn fixed64s(packed: &[u8]) -> impl Iterator<Item = u64> {
    packed.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Builds a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    pub(super) fn varint(mut self, field: u64, value: u64) -> Message {
        self.push(field << 3);
        self.push(value);
        self
    }

    pub(super) fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Message {
        let value = value.as_ref();
        self.push(field << 3 | 2);
        self.push(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    #[cfg(test)]
    pub(super) fn fixed64(mut self, field: u64, value: u64) -> Message {
        self.push(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    #[cfg(test)]
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn push(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_built() {
        let inner = Message::new().varint(1, u64::MAX).varint(2, 127);
        let outer = Message::new().varint(1, 300).bytes(2, &inner).fixed64(3000, 5);
        let read: Result<Vec<_>, _> = fields(outer.as_ref()).collect();
        assert_eq!(
            read,
            Ok(vec![(1, Value::Varint(300)), (2, Value::Bytes(inner.as_ref())), (3000, Value::Fixed64(5)),])
        );
    }

    #[test]
    fn a_cut_message_ends_with_an_error() {
        let whole = Message::new().varint(1, 300).bytes(2, b"abc").into_bytes();
        for length in 1..whole.len() {
            let last = fields(&whole[..length]).last().unwrap();
            // When cut between its fields, a message is whole.
            assert_eq!(last.is_ok(), length == 3, "{length} bytes");
        }
    }

    #[test]
    fn packed_values() {
        assert_eq!(varints(&[1, 0xac, 0x02, 3]).collect::<Vec<_>>(), [1, 300, 3]);
        assert_eq!(fixed64s(&[7, 0, 0, 0, 0, 0, 0, 0]).collect::<Vec<_>>(), [7]);
    }
}
