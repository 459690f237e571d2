//! NCCL's datatypes and reductions, as scenarios name them.

use crate::reduce;

/// A datatype of the elements that are communicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// `i8`
    Int8,
    /// `u8`
    Uint8,
    /// `i32`
    Int32,
    /// `u32`
    Uint32,
    /// `i64`
    Int64,
    /// `u64`
    Uint64,
    /// `f16`
    Float16,
    /// `f32`
    Float32,
    /// `f64`
    Float64,
    /// `bf16`
    Bfloat16,
}

impl Datatype {
    /// All of them, in the order of NCCL's numbers.
    pub const ALL: [Datatype; 10] = [
        Datatype::Int8,
        Datatype::Uint8,
        Datatype::Int32,
        Datatype::Uint32,
        Datatype::Int64,
        Datatype::Uint64,
        Datatype::Float16,
        Datatype::Float32,
        Datatype::Float64,
        Datatype::Bfloat16,
    ];

    /// Its name in a scenario.
    pub fn word(self) -> &'static str {
        match self {
            Datatype::Int8 => "i8",
            Datatype::Uint8 => "u8",
            Datatype::Int32 => "i32",
            Datatype::Uint32 => "u32",
            Datatype::Int64 => "i64",
            Datatype::Uint64 => "u64",
            Datatype::Float16 => "f16",
            Datatype::Float32 => "f32",
            Datatype::Float64 => "f64",
            Datatype::Bfloat16 => "bf16",
        }
    }

    /// Its name in NCCL.
    pub fn nccl_name(self) -> &'static str {
        self.in_kernels().name()
    }

    /// Its number in NCCL's `ncclDataType_t`.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// The bytes of one element.
    pub fn size(self) -> usize {
        self.in_kernels().size()
    }

    /// The same type, as NCCL's kernels have it.
    fn in_kernels(self) -> reduce::Datatype {
        reduce::Datatype::ALL[self as usize]
    }

    /// Whether it is one of the floating-point types.
    pub fn is_float(self) -> bool {
        matches!(self, Datatype::Float16 | Datatype::Float32 | Datatype::Float64 | Datatype::Bfloat16)
    }

    /// Whether it has negative numbers.
    pub fn is_signed(self) -> bool {
        !matches!(self, Datatype::Uint8 | Datatype::Uint32 | Datatype::Uint64)
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
