//! Protobuf's wire format, read field by field. What is copied from one trace to another is copied
//! as it is, including fields that this build does not know.

use prost::encoding;

pub(crate) use crate::trace::wire::{Field, Value, fields, varint};

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
