//! NCCL's vocabulary: functions, datatypes, algorithms, protocols and the like, two bytes each.
//!
//! NCCL sends them as C strings (as numbers in v1). The callback turns a string into a [`Word`]. A
//! string that this table does not contain is recorded once as text, and gets a number from
//! [`Word::FIRST_TEXT`] on.

use bytemuck::{Pod, Zeroable};

/// One of NCCL's words, or a reference to recorded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Word(pub u16);

/// The tables of words that are enums in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Functions.
    Function,
    /// Datatypes.
    DataType,
    /// Algorithms.
    Algorithm,
    /// Protocols.
    Protocol,
}

macro_rules! words {
    ($($name:ident = $text:literal),* $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { Absent, $($name),* }

        #[allow(missing_docs)] // the names are NCCL's own
        impl Word {
            $(pub const $name: Word = Word(Index::$name as u16);)*
        }

        /// The words with a fixed number, each at the index of its number.
        const KNOWN: &[&str] = &["", $($text),*];
    };
}

words! {
    // ncclFunc_t
    ALL_GATHER = "AllGather",
    ALL_REDUCE = "AllReduce",
    ALL_TO_ALL = "AlltoAll",
    BROADCAST = "Broadcast",
    GATHER = "Gather",
    RECV = "Recv",
    REDUCE = "Reduce",
    REDUCE_SCATTER = "ReduceScatter",
    SCATTER = "Scatter",
    SEND_RECV = "SendRecv",
    SEND = "Send",
    PUT_SIGNAL = "PutSignal",
    SIGNAL = "Signal",
    WAIT_SIGNAL = "WaitSignal",
    ALL_GATHER_V = "AllGatherV",
    INVALID = "Invalid",
    // ncclDataType_t; NCCL prints ncclUint8, and types newer than its table, as "Unknown"
    INT8 = "ncclInt8",
    UINT8 = "ncclUint8",
    INT32 = "ncclInt32",
    UINT32 = "ncclUint32",
    INT64 = "ncclInt64",
    UINT64 = "ncclUint64",
    FLOAT16 = "ncclFloat16",
    FLOAT32 = "ncclFloat32",
    FLOAT64 = "ncclFloat64",
    BFLOAT16 = "ncclBfloat16",
    FLOAT8_E4M3 = "ncclFloat8e4m3",
    FLOAT8_E5M2 = "ncclFloat8e5m2",
    UNKNOWN = "Unknown",
    // algorithms
    TREE = "TREE",
    RING = "RING",
    COLLNET_DIRECT = "COLLNET_DIRECT",
    COLLNET_CHAIN = "COLLNET_CHAIN",
    NVLS = "NVLS",
    NVLS_TREE = "NVLS_TREE",
    PAT = "PAT",
    // protocols
    LL = "LL",
    LL128 = "LL128",
    SIMPLE = "SIMPLE",
    // how a copy-engine collective synchronises
    MULTICAST = "MC",
    UNICAST = "UC",
}

impl Word {
    /// NCCL passed a null pointer, or this interface has no such field.
    pub const ABSENT: Word = Word(Index::Absent as u16);
    /// The first number of recorded text.
    pub const FIRST_TEXT: Word = Word(0x100);
    /// The datatype is unknown and the count is in bytes: files of other tools. NCCL has no such
    /// word.
    pub const BYTES: Word = Word(0xff);
    /// The text that the same thread recorded last with this number: a communicator's name. A job
    /// may make any number of communicators, so that names get no numbers of their own.
    pub const NAME: Word = Word(0xfe);
    /// A string that could not be recorded: no room in the ring, or no number left.
    pub const LOST: Word = Word(u16::MAX);

    /// The word with this spelling, if it has a fixed number.
    #[must_use]
    pub fn known(text: &[u8]) -> Option<Word> {
        let index = KNOWN.iter().skip(1).position(|known| known.as_bytes() == text)?;
        Some(Word(index as u16 + 1))
    }

    /// NCCL's spelling; `None` for absent words and for text, which only the reader of recorded
    /// texts knows.
    #[must_use]
    pub fn spelling(self) -> Option<&'static str> {
        KNOWN.get(usize::from(self.0)).copied().filter(|text| !text.is_empty())
    }

    /// The table of NCCL's that contains this word; each is an enum in the trace.
    #[must_use]
    pub fn table(self) -> Option<Table> {
        Some(match self {
            _ if self >= Self::ALL_GATHER && self <= Self::INVALID => Table::Function,
            _ if self >= Self::INT8 && self <= Self::UNKNOWN => Table::DataType,
            _ if self >= Self::TREE && self <= Self::PAT => Table::Algorithm,
            _ if self >= Self::LL && self <= Self::SIMPLE => Table::Protocol,
            _ => return None,
        })
    }

    /// Whether this is text recorded at run time.
    #[must_use]
    pub fn is_text(self) -> bool {
        self >= Self::FIRST_TEXT && self != Self::LOST
    }

    /// The size of an element of this datatype in bytes; `None` if that cannot be known.
    #[must_use]
    pub fn element_bytes(self) -> Option<u64> {
        Some(match self {
            Self::INT8 | Self::UINT8 | Self::FLOAT8_E4M3 | Self::FLOAT8_E5M2 | Self::BYTES => 1,
            Self::FLOAT16 | Self::BFLOAT16 => 2,
            Self::INT32 | Self::UINT32 | Self::FLOAT32 => 4,
            Self::INT64 | Self::UINT64 | Self::FLOAT64 => 8,
            _ => return None,
        })
    }

    /// The short form of a datatype: `f32`, `bf16`.
    #[must_use]
    pub fn short_datatype(self) -> Option<&'static str> {
        Some(match self {
            Self::INT8 => "i8",
            Self::UINT8 => "u8",
            Self::INT32 => "i32",
            Self::UINT32 => "u32",
            Self::INT64 => "i64",
            Self::UINT64 => "u64",
            Self::FLOAT16 => "f16",
            Self::FLOAT32 => "f32",
            Self::FLOAT64 => "f64",
            Self::BFLOAT16 => "bf16",
            Self::FLOAT8_E4M3 => "f8e4m3",
            Self::FLOAT8_E5M2 => "f8e5m2",
            _ => return None,
        })
    }

    /// The word for a `ncclFunc_t` of NCCL 2.23, the only release whose newest interface is v1.
    #[must_use]
    pub fn func_v1(value: u8) -> Word {
        const FUNCS: [Word; 8] = [
            Word::BROADCAST,
            Word::REDUCE,
            Word::ALL_GATHER,
            Word::REDUCE_SCATTER,
            Word::ALL_REDUCE,
            Word::SEND_RECV,
            Word::SEND,
            Word::RECV,
        ];
        FUNCS.get(usize::from(value)).copied().unwrap_or(Word::INVALID)
    }

    /// The word for a `ncclDataType_t`.
    #[must_use]
    pub fn datatype_v1(value: u8) -> Word {
        const TYPES: [Word; 12] = [
            Word::INT8,
            Word::UINT8,
            Word::INT32,
            Word::UINT32,
            Word::INT64,
            Word::UINT64,
            Word::FLOAT16,
            Word::FLOAT32,
            Word::FLOAT64,
            Word::BFLOAT16,
            Word::FLOAT8_E4M3,
            Word::FLOAT8_E5M2,
        ];
        TYPES.get(usize::from(value)).copied().unwrap_or(Word::UNKNOWN)
    }

    /// The word for an algorithm number of NCCL 2.23.
    #[must_use]
    pub fn algorithm_v1(value: u8) -> Word {
        const ALGORITHMS: [Word; 7] =
            [Word::TREE, Word::RING, Word::COLLNET_DIRECT, Word::COLLNET_CHAIN, Word::NVLS, Word::NVLS_TREE, Word::PAT];
        ALGORITHMS.get(usize::from(value)).copied().unwrap_or(Word::UNKNOWN)
    }

    /// The word for a protocol number of NCCL 2.23.
    #[must_use]
    pub fn protocol_v1(value: u8) -> Word {
        const PROTOCOLS: [Word; 3] = [Word::LL, Word::LL128, Word::SIMPLE];
        PROTOCOLS.get(usize::from(value)).copied().unwrap_or(Word::UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_by_its_spelling() {
        for (index, text) in KNOWN.iter().enumerate().skip(1) {
            assert_eq!(Word::known(text.as_bytes()), Some(Word(index as u16)));
            assert_eq!(Word(index as u16).spelling(), Some(*text));
        }
        assert!(KNOWN.len() < usize::from(Word::NAME.0) && Word::NAME < Word::BYTES && Word::BYTES < Word::FIRST_TEXT);
        assert_eq!(Word::known(b""), None);
        assert_eq!(Word::known(b"AllReduces"), None);
        assert_eq!(Word::ABSENT.spelling(), None);
    }
}
