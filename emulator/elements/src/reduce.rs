//! What NCCL's kernels compute: every reduction on every type.

use half::{bf16, f16};

macro_rules! datatypes {
    ($($type:ident = $size:literal, $name:literal;)*) => {
        /// The type of an element, in the order of `ncclDataType_t`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "they are what they are called")]
        pub enum Datatype { $($type,)* }

        impl Datatype {
            /// All of them; NCCL has the eight-bit floats from 2.24 on.
            pub const ALL: &[Datatype] = &[$(Datatype::$type,)*];

            /// Bytes of an element.
            pub fn size(self) -> usize {
                match self { $(Datatype::$type => $size,)* }
            }

            /// Its name, as in `nccl.h`.
            pub fn name(self) -> &'static str {
                match self { $(Datatype::$type => $name,)* }
            }
        }
    };
}

datatypes! {
    I8 = 1, "ncclInt8";
    U8 = 1, "ncclUint8";
    I32 = 4, "ncclInt32";
    U32 = 4, "ncclUint32";
    I64 = 8, "ncclInt64";
    U64 = 8, "ncclUint64";
    F16 = 2, "ncclFloat16";
    F32 = 4, "ncclFloat32";
    F64 = 8, "ncclFloat64";
    Bf16 = 2, "ncclBfloat16";
    F8E4m3 = 1, "ncclFloat8e4m3";
    F8E5m2 = 1, "ncclFloat8e5m2";
}

impl Datatype {
    /// The unsigned type of the same size, for a signed one; every other type itself.
    pub fn unsigned(self) -> Datatype {
        match self {
            Self::I8 => Self::U8,
            Self::I32 => Self::U32,
            Self::I64 => Self::U64,
            other => other,
        }
    }

    fn is_signed(self) -> bool {
        self != self.unsigned()
    }
}

/// How elements are reduced, in the order of `ncclDevRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// `ncclSum`
    Sum,
    /// `ncclProd`
    Prod,
    /// `ncclMin` and `ncclMax`; the argument tells which.
    MinMax,
    /// `ncclAvg` of floats and `ncclRedOpCreatePreMulSum`: each rank's own elements are multiplied
    /// by the argument.
    PreMulSum,
    /// `ncclAvg` of integers: the sum is divided by the argument.
    SumPostDiv,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Reduction; 5] = [Self::Sum, Self::Prod, Self::MinMax, Self::PreMulSum, Self::SumPostDiv];
}

/// A reduction of elements of one type with its argument.
#[derive(Debug, Clone, Copy)]
pub struct Operator {
    datatype: Datatype,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Never reduces.
    Copy,
    Sum,
    Prod,
    /// Of floats.
    Min,
    /// Of floats.
    Max,
    /// The least integer, compared as unsigned after XOR with this mask. The mask turns the order
    /// of signed numbers into that of unsigned ones, and a maximum into a minimum.
    LeastUnder(u64),
    /// The sum over all ranks of their elements times this scalar, given as bits.
    ScaledSum(u64),
    /// The sum, then divided.
    DividedSum {
        divisor: u64,
        signed: bool,
    },
}

impl Operator {
    /// An operator that only copies elements.
    pub fn copy(datatype: Datatype) -> Operator {
        Operator { datatype, kind: Kind::Copy }
    }

    /// The reduction with the argument that the host gave it, in a release (23007 is 2.30.7).
    pub fn new(reduction: Reduction, datatype: Datatype, argument: u64, release: u32) -> Operator {
        use Datatype::{Bf16, F8E4m3, F8E5m2, F16, F32, F64};

        let float = matches!(datatype, F16 | F32 | F64 | Bf16 | F8E4m3 | F8E5m2);
        let kind = match reduction {
            Reduction::Sum => Kind::Sum,
            Reduction::Prod => Kind::Prod,
            Reduction::MinMax if !float => Kind::LeastUnder(argument),
            // For a maximum the host passes a mask of ones, and floats read only its lowest bit.
            Reduction::MinMax if argument & 1 == 0 => Kind::Min,
            Reduction::MinMax => Kind::Max,
            Reduction::PreMulSum => Kind::ScaledSum(argument),
            // From 2.24 on signed and unsigned integers share the function, and the lowest bit
            // tells which.
            Reduction::SumPostDiv if release >= 22400 => {
                Kind::DividedSum { divisor: argument >> 1, signed: argument & 1 == 1 }
            }
            Reduction::SumPostDiv => Kind::DividedSum { divisor: argument, signed: datatype.is_signed() },
        };
        Operator { datatype, kind }
    }

    /// Multiplies a rank's own elements by a scalar, given as bits.
    pub fn scaling(datatype: Datatype, scalar: u64) -> Operator {
        Operator { datatype, kind: Kind::ScaledSum(scalar) }
    }

    /// Bytes of an element.
    pub fn size(&self) -> usize {
        self.datatype.size()
    }

    /// Whether [`Operator::prepare`] does anything.
    pub fn prepares(&self) -> bool {
        matches!(self.kind, Kind::ScaledSum(_))
    }

    /// Whether [`Operator::finish`] does anything.
    pub fn finishes(&self) -> bool {
        matches!(self.kind, Kind::DividedSum { .. })
    }

    /// Prepares a rank's own elements for the reduction, in place.
    ///
    /// # Safety
    ///
    /// `data` is `count` elements of the type, which nobody else uses meanwhile. They need not be
    /// aligned.
    pub unsafe fn prepare(&self, data: *mut u8, count: usize) {
        let Kind::ScaledSum(scalar) = self.kind else { return };
        // SAFETY: the caller's promise is passed on; `map` is called for the type's own elements.
        unsafe {
            match self.datatype {
                Datatype::I8 | Datatype::U8 => map(data, count, |x: u8| x.wrapping_mul(scalar as u8)),
                Datatype::I32 | Datatype::U32 => map(data, count, |x: u32| x.wrapping_mul(scalar as u32)),
                Datatype::I64 | Datatype::U64 => map(data, count, |x: u64| x.wrapping_mul(scalar)),
                Datatype::F32 => {
                    let scalar = f32::from_bits(scalar as u32);
                    map(data, count, |x: f32| x * scalar);
                }
                Datatype::F64 => {
                    let scalar = f64::from_bits(scalar);
                    map(data, count, |x: f64| x * scalar);
                }
                Datatype::F16 => {
                    let scalar = f16::from_bits(scalar as u16).to_f32();
                    map(data, count, |x: u16| f16::from_f32(f16::from_bits(x).to_f32() * scalar).to_bits());
                }
                Datatype::Bf16 => {
                    let scalar = bf16::from_bits(scalar as u16).to_f32();
                    map(data, count, |x: u16| bf16::from_f32(bf16::from_bits(x).to_f32() * scalar).to_bits());
                }
                Datatype::F8E4m3 => {
                    let scalar = E4M3.decode(scalar as u8);
                    map(data, count, |x: u8| E4M3.encode(E4M3.decode(x) * scalar));
                }
                Datatype::F8E5m2 => {
                    let scalar = E5M2.decode(scalar as u8);
                    map(data, count, |x: u8| E5M2.encode(E5M2.decode(x) * scalar));
                }
            }
        }
    }

    /// Reduces elements into others.
    ///
    /// # Safety
    ///
    /// `into` and `with` are `count` elements of the type each, and do not overlap. Nobody writes
    /// to either meanwhile, and nobody else reads `into`. They need not be aligned.
    pub unsafe fn reduce(&self, into: *mut u8, with: *const u8, count: usize) {
        // SAFETY: the caller's promise is passed on; `zip` is called for the type's own elements.
        unsafe {
            match self.kind {
                Kind::Copy => debug_assert!(count == 0, "a function that only copies met two sources"),
                Kind::Sum | Kind::ScaledSum(_) | Kind::DividedSum { .. } => match self.datatype {
                    Datatype::I8 | Datatype::U8 => zip(into, with, count, u8::wrapping_add),
                    Datatype::I32 | Datatype::U32 => zip(into, with, count, u32::wrapping_add),
                    Datatype::I64 | Datatype::U64 => zip(into, with, count, u64::wrapping_add),
                    Datatype::F32 => zip(into, with, count, |a: f32, b: f32| a + b),
                    Datatype::F64 => zip(into, with, count, |a: f64, b: f64| a + b),
                    _ => self.narrow(into, with, count, |a, b| a + b),
                },
                Kind::Prod => match self.datatype {
                    Datatype::I8 | Datatype::U8 => zip(into, with, count, u8::wrapping_mul),
                    Datatype::I32 | Datatype::U32 => zip(into, with, count, u32::wrapping_mul),
                    Datatype::I64 | Datatype::U64 => zip(into, with, count, u64::wrapping_mul),
                    Datatype::F32 => zip(into, with, count, |a: f32, b: f32| a * b),
                    Datatype::F64 => zip(into, with, count, |a: f64, b: f64| a * b),
                    _ => self.narrow(into, with, count, |a, b| a * b),
                },
                Kind::Min => match self.datatype {
                    Datatype::F32 => zip(into, with, count, f32::min),
                    Datatype::F64 => zip(into, with, count, f64::min),
                    _ => self.narrow(into, with, count, f32::min),
                },
                Kind::Max => match self.datatype {
                    Datatype::F32 => zip(into, with, count, f32::max),
                    Datatype::F64 => zip(into, with, count, f64::max),
                    _ => self.narrow(into, with, count, f32::max),
                },
                Kind::LeastUnder(mask) => match self.datatype.size() {
                    1 => zip(into, with, count, |a: u8, b: u8| if a ^ mask as u8 <= b ^ mask as u8 { a } else { b }),
                    4 => {
                        let mask = mask as u32;
                        zip(into, with, count, |a: u32, b: u32| if a ^ mask <= b ^ mask { a } else { b });
                    }
                    _ => zip(into, with, count, |a: u64, b: u64| if a ^ mask <= b ^ mask { a } else { b }),
                },
            }
        }
    }

    /// Reduces floats of 16 and 8 bits. In 32 bits their sums and products are exact enough that
    /// rounding once gives the correctly rounded result.
    ///
    /// # Safety
    ///
    /// As [`Operator::reduce`].
    unsafe fn narrow(&self, into: *mut u8, with: *const u8, count: usize, op: impl Fn(f32, f32) -> f32) {
        // SAFETY: the caller's promise is passed on; `zip` is called for the type's own elements.
        unsafe {
            match self.datatype {
                Datatype::F16 => zip(into, with, count, |a: u16, b: u16| {
                    f16::from_f32(op(f16::from_bits(a).to_f32(), f16::from_bits(b).to_f32())).to_bits()
                }),
                Datatype::Bf16 => zip(into, with, count, |a: u16, b: u16| {
                    bf16::from_f32(op(bf16::from_bits(a).to_f32(), bf16::from_bits(b).to_f32())).to_bits()
                }),
                Datatype::F8E4m3 => {
                    zip(into, with, count, |a: u8, b: u8| E4M3.encode(op(E4M3.decode(a), E4M3.decode(b))));
                }
                Datatype::F8E5m2 => {
                    zip(into, with, count, |a: u8, b: u8| E5M2.encode(op(E5M2.decode(a), E5M2.decode(b))));
                }
                other => unreachable!("{other:?} is not a narrow float"),
            }
        }
    }

    /// Finishes elements that all ranks have contributed to, in place.
    ///
    /// # Safety
    ///
    /// As [`Operator::prepare`].
    pub unsafe fn finish(&self, data: *mut u8, count: usize) {
        let Kind::DividedSum { divisor, signed } = self.kind else { return };
        assert!(divisor != 0, "an average over no ranks");
        // SAFETY: the caller's promise is passed on; `map` is called for the type's own elements.
        unsafe {
            match (self.datatype.size(), signed) {
                (1, false) => map(data, count, |x: u8| (u64::from(x) / divisor) as u8),
                (1, true) => map(data, count, |x: i8| (i64::from(x) / divisor as i64) as i8),
                (4, false) => map(data, count, |x: u32| (u64::from(x) / divisor) as u32),
                (4, true) => map(data, count, |x: i32| (i64::from(x) / divisor as i64) as i32),
                (8, false) => map(data, count, |x: u64| x / divisor),
                (8, true) => map(data, count, |x: i64| x / divisor as i64),
                _ => unreachable!("NCCL divides sums of integers only, not of {:?}", self.datatype),
            }
        }
    }
}

/// Replaces each element.
///
/// # Safety
///
/// `data` is `count` readable and writable elements of a type that is valid with any bits, and
/// nobody else uses them.
unsafe fn map<T: Copy>(data: *mut u8, count: usize, op: impl Fn(T) -> T) {
    let data = data.cast::<T>();
    for index in 0..count {
        // SAFETY: within the elements that the caller promises.
        unsafe { data.add(index).write_unaligned(op(data.add(index).read_unaligned())) };
    }
}

/// Replaces each element by the result of an operation on it and another one.
///
/// # Safety
///
/// As [`map`] for `into`. `with` is as many readable elements, which do not overlap with `into`
/// and which nobody writes to.
unsafe fn zip<T: Copy>(into: *mut u8, with: *const u8, count: usize, op: impl Fn(T, T) -> T) {
    let (into, with) = (into.cast::<T>(), with.cast::<T>());
    for index in 0..count {
        // SAFETY: within the elements that the caller promises.
        unsafe {
            let value = op(into.add(index).read_unaligned(), with.add(index).read_unaligned());
            into.add(index).write_unaligned(value);
        }
    }
}

/// A float of eight bits.
struct Narrow {
    /// Bits of the mantissa.
    mantissa: u32,
    /// The bias of the exponent.
    bias: i32,
    /// The bits of the greatest finite number.
    greatest: u8,
    /// Whether the next bits mean infinity.
    infinite: bool,
}

/// No infinity; NaN is all ones.
const E4M3: Narrow = Narrow { mantissa: 3, bias: 7, greatest: 0x7e, infinite: false };
/// As in IEEE 754.
const E5M2: Narrow = Narrow { mantissa: 2, bias: 15, greatest: 0x7b, infinite: true };

impl Narrow {
    fn decode(&self, bits: u8) -> f32 {
        let magnitude = bits & 0x7f;
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        if magnitude > self.greatest {
            return if self.infinite && magnitude == self.greatest + 1 { sign * f32::INFINITY } else { f32::NAN };
        }
        let exponent = i32::from(magnitude >> self.mantissa);
        let fraction = u32::from(magnitude) & ((1 << self.mantissa) - 1);
        // Below the least exponent the numbers continue in even steps.
        let (fraction, exponent) =
            if exponent == 0 { (fraction, 1) } else { (fraction | 1 << self.mantissa, exponent) };
        sign * fraction as f32 * power_of_two(exponent - self.bias - self.mantissa as i32)
    }

    /// The nearest number, ties to even. Larger values, and infinity, become the greatest number,
    /// as in NCCL's kernels.
    fn encode(&self, value: f32) -> u8 {
        if value.is_nan() {
            return 0x7f;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = value.abs();
        if magnitude >= self.decode(self.greatest) {
            return sign | self.greatest;
        }
        // The exponent of the value, or the least one.
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(1 - self.bias);
        // In units of the last place this is exact and is then rounded; rounding up to the next
        // power of two carries into the exponent correctly.
        let units = (magnitude * power_of_two(self.mantissa as i32 - exponent)).round_ties_even() as u32;
        let bits = (((exponent + self.bias - 1) as u32) << self.mantissa) + units;
        sign | (bits as u8).min(self.greatest)
    }
}

/// 2 to the power of a small number.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: u32 = 23007;

    /// The bytes of elements.
    fn bytes<T: Copy, const N: usize>(values: [T; N]) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<[T; N]>()];
        // SAFETY: as many bytes as the values have.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Checks the result of reducing several ranks' contributions.
    fn check<T: Copy, const N: usize>(
        reduction: Reduction,
        datatype: Datatype,
        argument: u64,
        ranks: &[[T; N]],
        expected: [T; N],
    ) {
        check_in(RELEASE, reduction, datatype, argument, ranks, expected);
    }

    fn check_in<T: Copy, const N: usize>(
        release: u32,
        reduction: Reduction,
        datatype: Datatype,
        argument: u64,
        ranks: &[[T; N]],
        expected: [T; N],
    ) {
        let operator = Operator::new(reduction, datatype, argument, release);
        assert_eq!(operator.size(), size_of::<T>());
        let mut result: Option<Vec<u8>> = None;
        for own in ranks {
            // One byte off alignment.
            let mut own = [vec![0], bytes(*own)].concat();
            // SAFETY: N elements of the type in buffers of our own.
            unsafe {
                operator.prepare(own.as_mut_ptr().add(1), N);
                match &mut result {
                    None => result = Some(own),
                    Some(result) => operator.reduce(result.as_mut_ptr().add(1), own.as_ptr().add(1), N),
                }
            }
        }
        let mut result = result.unwrap();
        // SAFETY: as above.
        unsafe { operator.finish(result.as_mut_ptr().add(1), N) };
        assert_eq!(result[1..], bytes(expected), "{reduction:?} of {datatype:?}");
    }

    #[test]
    fn sums_wrap_around() {
        check(Reduction::Sum, Datatype::U8, 0, &[[200_u8, 1], [100, 2]], [44, 3]);
        check(Reduction::Sum, Datatype::I8, 0, &[[127_i8, -1], [1, -2]], [-128, -3]);
        check(Reduction::Sum, Datatype::U32, 0, &[[u32::MAX], [2]], [1]);
        check(Reduction::Sum, Datatype::I32, 0, &[[-5_i32], [3]], [-2]);
        check(Reduction::Sum, Datatype::U64, 0, &[[u64::MAX], [2]], [1]);
        check(Reduction::Sum, Datatype::I64, 0, &[[i64::MAX], [1]], [i64::MIN]);
    }

    #[test]
    fn floats_are_summed() {
        check(Reduction::Sum, Datatype::F32, 0, &[[0.5_f32, -1.0], [0.25, 1.0], [1.0, 2.0]], [1.75, 2.0]);
        check(Reduction::Sum, Datatype::F64, 0, &[[0.1_f64], [0.2]], [0.1 + 0.2]);
        let (h, b) = (|x| f16::from_f32(x).to_bits(), |x| bf16::from_f32(x).to_bits());
        // 2048 + 1 lies between two halves, and the even one is below.
        check(Reduction::Sum, Datatype::F16, 0, &[[h(1.5), h(2048.0)], [h(2.25), h(1.0)]], [h(3.75), h(2048.0)]);
        check(Reduction::Sum, Datatype::F16, 0, &[[h(65504.0)], [h(65504.0)]], [h(f32::INFINITY)]);
        check(Reduction::Sum, Datatype::Bf16, 0, &[[b(1.0), b(256.0)], [b(2.0), b(1.0)]], [b(3.0), b(256.0)]);
        check(Reduction::Sum, Datatype::F8E4m3, 0, &[[0x38_u8, 0x7e], [0x40, 0x7e]], [0x44, 0x7e]);
        check(Reduction::Sum, Datatype::F8E5m2, 0, &[[0x3c_u8, 0x7b], [0x40, 0x7b]], [0x42, 0x7b]);
    }

    #[test]
    fn products() {
        check(Reduction::Prod, Datatype::U8, 0, &[[20_u8], [20]], [144]);
        check(Reduction::Prod, Datatype::I32, 0, &[[-3_i32], [7]], [-21]);
        check(Reduction::Prod, Datatype::I64, 0, &[[-3_i64], [7]], [-21]);
        check(Reduction::Prod, Datatype::F32, 0, &[[1.5_f32], [-2.0]], [-3.0]);
        check(Reduction::Prod, Datatype::F64, 0, &[[1.5_f64], [-2.0]], [-3.0]);
        check(
            Reduction::Prod,
            Datatype::Bf16,
            0,
            &[[bf16::from_f32(1.5)], [bf16::from_f32(3.0)]],
            [bf16::from_f32(4.5)],
        );
        check(Reduction::Prod, Datatype::F8E5m2, 0, &[[0x7b_u8], [0xbc]], [0xfb]);
    }

    #[test]
    fn least_and_greatest() {
        // As the host builds the argument: the sign bit of a signed type, all bits for a maximum.
        check(Reduction::MinMax, Datatype::U8, 0, &[[200_u8, 3], [100, 4]], [100, 3]);
        check(Reduction::MinMax, Datatype::U8, 0xff, &[[200_u8, 3], [100, 4]], [200, 4]);
        check(Reduction::MinMax, Datatype::U8, 0x80, &[[-5_i8, 3], [100, 4]], [-5, 3]);
        check(Reduction::MinMax, Datatype::U8, 0x7f, &[[-5_i8, 3], [100, 4]], [100, 4]);
        check(Reduction::MinMax, Datatype::U32, 0x8000_0000, &[[-5_i32], [i32::MIN]], [i32::MIN]);
        check(Reduction::MinMax, Datatype::U32, 0x7fff_ffff, &[[-5_i32], [i32::MIN]], [-5]);
        check(Reduction::MinMax, Datatype::U64, 1 << 63, &[[-5_i64], [5]], [-5]);
        check(Reduction::MinMax, Datatype::U64, u64::MAX, &[[5_u64], [u64::MAX]], [u64::MAX]);
        check(Reduction::MinMax, Datatype::F32, 0, &[[-1.0_f32, f32::NAN], [2.0, 3.0]], [-1.0, 3.0]);
        check(Reduction::MinMax, Datatype::F32, 0xffff_ffff, &[[-1.0_f32, 3.0], [2.0, f32::NAN]], [2.0, 3.0]);
        check(Reduction::MinMax, Datatype::F64, u64::MAX, &[[-1.0_f64], [2.0]], [2.0]);
        check(
            Reduction::MinMax,
            Datatype::F16,
            0,
            &[[f16::from_f32(-1.0)], [f16::from_f32(2.0)]],
            [f16::from_f32(-1.0)],
        );
        check(Reduction::MinMax, Datatype::F8E4m3, 0xff, &[[0xb8_u8], [0x40]], [0x40]);
    }

    #[test]
    fn an_average_of_floats_scales_each_ranks_elements() {
        let half = 0.5_f32.to_bits().into();
        check(Reduction::PreMulSum, Datatype::F32, half, &[[3.0_f32, 1.0], [5.0, 2.0]], [4.0, 1.5]);
        check(Reduction::PreMulSum, Datatype::F64, 0.25_f64.to_bits(), &[[4.0_f64], [8.0]], [3.0]);
        let h = |x| f16::from_f32(x).to_bits();
        check(Reduction::PreMulSum, Datatype::F16, h(0.5).into(), &[[h(3.0)], [h(5.0)]], [h(4.0)]);
        let b = |x| bf16::from_f32(x).to_bits();
        check(Reduction::PreMulSum, Datatype::Bf16, b(0.5).into(), &[[b(3.0)], [b(5.0)]], [b(4.0)]);
        check(Reduction::PreMulSum, Datatype::F8E4m3, 0x30, &[[0x44_u8], [0x44]], [0x44]);
        check(Reduction::PreMulSum, Datatype::U32, 3, &[[2_u32], [5]], [21]);
        check(Reduction::PreMulSum, Datatype::I8, (-2_i8 as u8).into(), &[[2_i8], [5]], [-14]);
    }

    #[test]
    fn an_average_of_integers_divides_the_sum() {
        // The divisor, with the lowest bit for a signed type; the table has unsigned types only.
        check(Reduction::SumPostDiv, Datatype::U32, 2 << 1, &[[7_u32, u32::MAX - 1], [4, 1]], [5, u32::MAX / 2]);
        check(Reduction::SumPostDiv, Datatype::U32, 2 << 1 | 1, &[[-7_i32, 9], [-4, 0]], [-5, 4]);
        check(Reduction::SumPostDiv, Datatype::U8, 3 << 1 | 1, &[[-100_i8], [1]], [-33]);
        check(Reduction::SumPostDiv, Datatype::U8, 3 << 1, &[[100_u8], [155]], [85]);
        check(Reduction::SumPostDiv, Datatype::U64, 2 << 1 | 1, &[[i64::MIN], [2]], [i64::MIN / 2 + 1]);
        check(Reduction::SumPostDiv, Datatype::U64, 2 << 1, &[[u64::MAX], [0]], [u64::MAX / 2]);
        // In 2.23 the argument is the divisor, and signed types have their own functions.
        check_in(22304, Reduction::SumPostDiv, Datatype::I32, 2, &[[-7_i32], [-4]], [-5]);
        check_in(22304, Reduction::SumPostDiv, Datatype::U32, 3, &[[u32::MAX], [0]], [u32::MAX / 3]);
    }

    #[test]
    fn eight_bit_floats() {
        for (narrow, bits, value) in [
            (&E4M3, 0x00, 0.0),
            (&E4M3, 0x01, 2_f32.powi(-9)),
            (&E4M3, 0x08, 2_f32.powi(-6)),
            (&E4M3, 0x38, 1.0),
            (&E4M3, 0xb9, -1.125),
            (&E4M3, 0x7e, 448.0),
            (&E5M2, 0x01, 2_f32.powi(-16)),
            (&E5M2, 0x04, 2_f32.powi(-14)),
            (&E5M2, 0x3c, 1.0),
            (&E5M2, 0xbd, -1.25),
            (&E5M2, 0x7b, 57344.0),
            (&E5M2, 0x7c, f32::INFINITY),
            (&E5M2, 0xfc, f32::NEG_INFINITY),
        ] {
            assert_eq!(narrow.decode(bits), value, "{bits:#x}");
        }
        assert!(E4M3.decode(0x7f).is_nan() && E4M3.decode(0xff).is_nan());
        assert!(E5M2.decode(0x7d).is_nan() && E5M2.decode(0x7f).is_nan());
    }

    #[test]
    fn every_eight_bit_float_survives_a_round_trip() {
        for narrow in [&E4M3, &E5M2] {
            for bits in 0..=255 {
                let value = narrow.decode(bits);
                if value.is_finite() {
                    assert_eq!(narrow.encode(value), bits, "{value}");
                }
            }
        }
    }

    #[test]
    fn eight_bit_floats_round_to_the_nearest() {
        for narrow in [&E4M3, &E5M2] {
            for bits in 0..narrow.greatest {
                let (below, above) = (narrow.decode(bits), narrow.decode(bits + 1));
                let middle = (below + above) / 2.0;
                let even = bits + (bits & 1);
                assert_eq!(narrow.encode(middle), even, "{middle}");
                assert_eq!(narrow.encode(middle.next_down()), bits);
                assert_eq!(narrow.encode(middle.next_up()), bits + 1);
                assert_eq!(narrow.encode(-middle), 0x80 | even);
            }
            assert_eq!(narrow.encode(f32::INFINITY), narrow.greatest);
            assert_eq!(narrow.encode(f32::NEG_INFINITY), 0x80 | narrow.greatest);
            assert_eq!(narrow.encode(f32::MAX), narrow.greatest);
            assert_eq!(narrow.encode(f32::NAN), 0x7f);
            assert_eq!(narrow.encode(f32::MIN_POSITIVE), 0);
            assert_eq!(narrow.encode(-0.0), 0x80);
        }
    }
}
