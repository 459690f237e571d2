//! What NCCL's kernels compute: every reduction on every type that jobs use.

use half::{bf16, f16};

use crate::words::Datatype;

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
        let kind = match reduction {
            Reduction::Sum => Kind::Sum,
            Reduction::Prod => Kind::Prod,
            Reduction::MinMax if !datatype.is_float() => Kind::LeastUnder(argument),
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
                other => unreachable!("no emulated GPU has {other:?}"),
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

    /// Reduces floats of 16 bits. In 32 bits their sums and products are exact enough that
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
}
