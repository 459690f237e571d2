//! What the tests share: buffers as CUPTI would fill them, and numbers that look random but are the
//! same every time.

use cupti_sys::records::Table;

/// Buffers of records, made from the table.
#[derive(Default)]
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    /// Where each record begins, and its kind.
    pub(crate) records: Vec<(usize, u32)>,
}

impl Buffer {
    /// Appends a record of this kind, with nothing in it; returns where it begins.
    pub(crate) fn push(&mut self, table: &Table, kind: u32) -> usize {
        let at = self.bytes.len();
        let size = table.size(kind).expect("a kind of this version");
        self.bytes.resize(at + size, 0);
        self.put(at, kind.to_ne_bytes());
        self.records.push((at, kind));
        at
    }

    /// Overwrites bytes.
    pub(crate) fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&value);
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("less than a usize")
    }

    /// Bytes that look enough like records to lead a walker on: kinds here and there, else
    /// anything.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        let tame = self.below(4);
        while bytes.len() < len {
            let word = match self.below(4) {
                // 65 kinds: all that any release knows, and some that none does.
                choice if choice <= tame => self.next() % 65 + (self.next() << 32),
                _ => self.next(),
            };
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The kinds that this version has.
pub(crate) fn kinds(table: &Table) -> Vec<u32> {
    (0..128).filter(|kind| table.size(*kind).is_some()).collect()
}
