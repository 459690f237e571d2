//! NCCL's datatypes and reductions, as scenarios name them.

macro_rules! datatypes {
    ($($type:ident = $size:literal, $word:literal, $name:literal;)*) => {
        /// A datatype of the elements that are communicated, in the order of `ncclDataType_t`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "they are what they are called")]
        pub enum Datatype { $($type,)* }

        impl Datatype {
            /// All that NCCL has; the eight-bit floats from 2.24 on.
            pub const OF_NCCL: [Datatype; 12] = [$(Datatype::$type,)*];

            /// Its name in a scenario.
            pub fn word(self) -> &'static str {
                match self { $(Datatype::$type => $word,)* }
            }

            /// Its name in NCCL.
            pub fn nccl_name(self) -> &'static str {
                match self { $(Datatype::$type => $name,)* }
            }

            /// The bytes of one element.
            pub fn size(self) -> usize {
                match self { $(Datatype::$type => $size,)* }
            }
        }
    };
}

datatypes! {
    I8 = 1, "i8", "ncclInt8";
    U8 = 1, "u8", "ncclUint8";
    I32 = 4, "i32", "ncclInt32";
    U32 = 4, "u32", "ncclUint32";
    I64 = 8, "i64", "ncclInt64";
    U64 = 8, "u64", "ncclUint64";
    F16 = 2, "f16", "ncclFloat16";
    F32 = 4, "f32", "ncclFloat32";
    F64 = 8, "f64", "ncclFloat64";
    Bf16 = 2, "bf16", "ncclBfloat16";
    F8E4m3 = 1, "f8e4m3", "ncclFloat8e4m3";
    F8E5m2 = 1, "f8e5m2", "ncclFloat8e5m2";
}

impl Datatype {
    /// All that jobs use. The eight-bit floats, the last two, need a newer GPU than the emulated
    /// one; they only have a place in NCCL's tables.
    pub const ALL: [Datatype; 10] = *Datatype::OF_NCCL.first_chunk().expect("there are twelve");

    /// Its number in NCCL's `ncclDataType_t`.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Whether it is one of the floating-point types.
    pub fn is_float(self) -> bool {
        self as usize >= Datatype::F16 as usize
    }

    /// Whether it has negative numbers.
    pub fn is_signed(self) -> bool {
        !matches!(self, Datatype::U8 | Datatype::U32 | Datatype::U64)
    }

    /// The unsigned type of the same size, for a signed integer; every other type itself.
    pub fn unsigned(self) -> Datatype {
        match self {
            Self::I8 => Self::U8,
            Self::I32 => Self::U32,
            Self::I64 => Self::U64,
            other => other,
        }
    }
}

/// How elements of several ranks are reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// `sum`
    Sum,
    /// `prod`
    Prod,
    /// `max`
    Max,
    /// `min`
    Min,
    /// `avg`
    Avg,
}

impl Reduction {
    /// All of them, in the order of NCCL's numbers.
    pub const ALL: [Reduction; 5] = [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::Avg];

    /// Its name in a scenario.
    pub fn word(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Prod => "prod",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Avg => "avg",
        }
    }

    /// Its number in NCCL's `ncclRedOp_t`.
    pub fn number(self) -> i32 {
        self as i32
    }
}
