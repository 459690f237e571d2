//! The data that ranks send each other, and the results expected.
//!
//! Every element is a small whole number that follows from the operation, the rank and the
//! element's place. So sums are exact in every type and in every order of adding, and data that
//! arrives at the wrong place, or from the wrong rank or operation, is noticed. The numbers repeat
//! after 4093 elements, which is a prime: no chunk is a multiple of it.

use std::fmt;

use half::{bf16, f16};

use crate::mix;
use crate::words::{Datatype, Reduction};

/// The number of elements after which the numbers repeat.
const PERIOD: usize = 4093;

/// The largest size of an element, in bytes.
const WIDEST: usize = 8;

/// What one rank contributes to one execution of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// The seed of this execution; the same on all ranks.
    pub seed: u64,
    /// The type of its elements.
    pub datatype: Datatype,
    /// How elements of several ranks are reduced, if they are.
    pub reduction: Option<Reduction>,
}

impl Data {
    /// The element of a rank at a place, as a number.
    fn element(&self, rank: u32, place: usize) -> f64 {
        let place = (place % PERIOD) as u64;
        let common = mix(self.seed ^ (place + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        let bits = mix(common ^ u64::from(rank + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        // Half of the numbers are negative if the type has a sign.
        let below = |limit: u64| {
            let number = (bits % limit) as f64;
            if self.datatype.is_signed() { number - (limit / 2) as f64 } else { number }
        };
        match self.reduction {
            // At most four of sixteen ranks have a two, so the product stays small.
            Some(Reduction::Prod) => {
                let size = if (common + u64::from(rank)).is_multiple_of(4) { 2.0 } else { 1.0 };
                if self.datatype.is_signed() && bits % 2 == 1 { -size } else { size }
            }
            Some(Reduction::Avg) => below(8),
            // What keeps a sum over sixteen ranks exact: i8 holds 127, bf16 each number up to 256,
            // f16 up to 2048.
            Some(Reduction::Sum) if self.datatype.size() == 1 || self.datatype == Datatype::Bf16 => below(8),
            Some(Reduction::Sum) if self.datatype == Datatype::F16 => below(128),
            _ if self.datatype.size() <= 2 => below(128),
            _ => below(1 << 16),
        }
    }

    /// The reduced element at a place.
    fn reduced(&self, ranks: u32, place: usize) -> f64 {
        let mut elements = (0..ranks).map(|rank| self.element(rank, place));
        match self.reduction.expect("asked of a reduction") {
            Reduction::Sum => elements.sum(),
            Reduction::Prod => elements.product(),
            Reduction::Max => elements.fold(f64::NEG_INFINITY, f64::max),
            Reduction::Min => elements.fold(f64::INFINITY, f64::min),
            Reduction::Avg => {
                let sum: f64 = elements.by_ref().sum();
                let average = sum / f64::from(ranks);
                // NCCL divides whole numbers as C does.
                if self.datatype.is_float() { average } else { average.trunc() }
            }
        }
    }

    /// How far an average may deviate. NCCL multiplies by 1/n before it adds, which is not exact
    /// for every n.
    fn tolerance(&self, ranks: u32) -> f64 {
        if self.reduction != Some(Reduction::Avg) || !self.datatype.is_float() || ranks.is_power_of_two() {
            return 0.0;
        }
        let epsilon = match self.datatype {
            Datatype::F16 => f64::from(f16::EPSILON),
            Datatype::Bf16 => f64::from(bf16::EPSILON),
            Datatype::F32 => f64::from(f32::EPSILON),
            _ => f64::EPSILON,
        };
        // Each of at most `ranks` additions of numbers up to 4 rounds once, and so does each
        // multiplication.
        4.0 * epsilon * f64::from(ranks)
    }

    /// Fills memory with the elements of a rank.
    pub fn fill(&self, memory: &mut [u8], rank: u32) {
        let pattern = self.pattern(memory.len(), |place| self.element(rank, place));
        for part in memory.chunks_mut(pattern.len().max(1)) {
            part.copy_from_slice(&pattern[..part.len()]);
        }
    }

    /// Compares memory with the elements of a rank from `first` on.
    ///
    /// # Errors
    ///
    /// Describes the first element that differs.
    pub fn check_copy(&self, memory: &[u8], rank: u32, first: usize) -> Result<(), Mismatch> {
        self.compare(memory, 0.0, |place| self.element(rank, first + place))
    }

    /// Compares memory with the reduced elements from `first` on.
    ///
    /// # Errors
    ///
    /// Describes the first element that differs.
    pub fn check_reduced(&self, memory: &[u8], ranks: u32, first: usize) -> Result<(), Mismatch> {
        self.compare(memory, self.tolerance(ranks), |place| self.reduced(ranks, first + place))
    }

    fn compare(&self, memory: &[u8], tolerance: f64, expected: impl Fn(usize) -> f64) -> Result<(), Mismatch> {
        let size = self.datatype.size();
        let pattern = self.pattern(memory.len(), &expected);
        for (index, part) in memory.chunks(pattern.len().max(1)).enumerate() {
            if *part == pattern[..part.len()] {
                continue;
            }
            // Equal values suffice: -0 is 0.
            let elements = part.chunks_exact(size).zip(pattern.chunks_exact(size));
            for (place, (got, expected)) in elements.enumerate() {
                let (got, expected) = (decode(self.datatype, got), decode(self.datatype, expected));
                // This is false for NaN.
                let near = (got - expected).abs() <= tolerance;
                if !near {
                    return Err(Mismatch { element: index * PERIOD + place, got, expected });
                }
            }
        }
        Ok(())
    }

    /// The bytes that repeat, or as many of them as are needed.
    fn pattern(&self, bytes: usize, element: impl Fn(usize) -> f64) -> Vec<u8> {
        let size = self.datatype.size();
        let count = PERIOD.min(bytes / size);
        let mut pattern = Vec::with_capacity(count * size);
        for place in 0..count {
            pattern.extend_from_slice(&encode(self.datatype, element(place))[..size]);
        }
        pattern
    }
}

/// An element with a wrong value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mismatch {
    /// Its place.
    pub element: usize,
    /// What it is.
    pub got: f64,
    /// What it should be.
    pub expected: f64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} is {} and should be {}", self.element, self.got, self.expected)
    }
}

fn encode(datatype: Datatype, value: f64) -> [u8; WIDEST] {
    let mut bytes = [0; WIDEST];
    let mut put = |element: &[u8]| bytes[..element.len()].copy_from_slice(element);
    match datatype {
        Datatype::I8 => put(&(value as i8).to_ne_bytes()),
        Datatype::U8 => put(&(value as u8).to_ne_bytes()),
        Datatype::I32 => put(&(value as i32).to_ne_bytes()),
        Datatype::U32 => put(&(value as u32).to_ne_bytes()),
        Datatype::I64 => put(&(value as i64).to_ne_bytes()),
        Datatype::U64 => put(&(value as u64).to_ne_bytes()),
        Datatype::F16 => put(&f16::from_f64(value).to_ne_bytes()),
        Datatype::F32 => put(&(value as f32).to_ne_bytes()),
        Datatype::F64 => put(&value.to_ne_bytes()),
        Datatype::Bf16 => put(&bf16::from_f64(value).to_ne_bytes()),
        Datatype::F8E4m3 | Datatype::F8E5m2 => unreachable!("no job has {datatype:?}"),
    }
    bytes
}

fn decode(datatype: Datatype, bytes: &[u8]) -> f64 {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.try_into().expect("an element has the size of its type")
    }
    match datatype {
        Datatype::I8 => f64::from(i8::from_ne_bytes(array(bytes))),
        Datatype::U8 => f64::from(u8::from_ne_bytes(array(bytes))),
        Datatype::I32 => f64::from(i32::from_ne_bytes(array(bytes))),
        Datatype::U32 => f64::from(u32::from_ne_bytes(array(bytes))),
        Datatype::I64 => i64::from_ne_bytes(array(bytes)) as f64,
        Datatype::U64 => u64::from_ne_bytes(array(bytes)) as f64,
        Datatype::F16 => f64::from(f16::from_ne_bytes(array(bytes))),
        Datatype::F32 => f64::from(f32::from_ne_bytes(array(bytes))),
        Datatype::F64 => f64::from_ne_bytes(array(bytes)),
        Datatype::Bf16 => f64::from(bf16::from_ne_bytes(array(bytes))),
        Datatype::F8E4m3 | Datatype::F8E5m2 => unreachable!("no job has {datatype:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Data> {
        let reductions = Reduction::ALL.map(Some).into_iter().chain([None]);
        reductions.flat_map(|reduction| Datatype::ALL.map(|datatype| Data { seed: 42, datatype, reduction }))
    }

    /// Adds as a GPU does, in the type itself and in the order of a ring.
    fn reduce_in_type(data: &Data, ranks: u32, place: usize) -> f64 {
        let round = |value: f64| decode(data.datatype, &encode(data.datatype, value)[..data.datatype.size()]);
        let first = place as u32 % ranks;
        let elements = (0..ranks).map(|rank| data.element((first + rank) % ranks, place));
        let whole = !data.datatype.is_float();
        match data.reduction.unwrap() {
            Reduction::Sum => elements.fold(0.0, |sum, element| round(sum + element)),
            Reduction::Prod => elements.fold(1.0, |product, element| round(product * element)),
            Reduction::Max => elements.fold(f64::MIN, f64::max),
            Reduction::Min => elements.fold(f64::MAX, f64::min),
            Reduction::Avg if whole => {
                (elements.fold(0.0, |sum, element| round(sum + element)) / f64::from(ranks)).trunc()
            }
            Reduction::Avg => {
                let by = round(1.0 / f64::from(ranks));
                elements.fold(0.0, |sum, element| round(sum + round(element * by)))
            }
        }
    }

    #[test]
    fn results_are_exact_in_every_type_and_order() {
        for data in all().filter(|data| data.reduction.is_some()) {
            for ranks in 1..=16 {
                for place in 0..500 {
                    let got = reduce_in_type(&data, ranks, place);
                    let encoded = encode(data.datatype, got);
                    let result = data.check_reduced(&encoded[..data.datatype.size()], ranks, place);
                    assert_eq!(result, Ok(()), "{data:?}, {ranks} ranks, place {place}");
                }
            }
        }
    }

    #[test]
    fn filled_data_passes_the_check() {
        for data in all() {
            let size = data.datatype.size();
            let mut memory = vec![0; size * (2 * PERIOD + 17)];
            data.fill(&mut memory, 3);
            assert_eq!(data.check_copy(&memory, 3, 0), Ok(()));
            assert_eq!(data.check_copy(&memory[100 * size..], 3, 100), Ok(()));
            assert_eq!(data.check_copy(&[], 3, 0), Ok(()));
        }
    }

    #[test]
    fn wrong_data_is_noticed() {
        for data in all() {
            let size = data.datatype.size();
            let mut memory = vec![0; size * (2 * PERIOD)];
            data.fill(&mut memory, 3);
            let other = Data { seed: 43, ..data };
            assert!(other.check_copy(&memory, 3, 0).is_err(), "another operation: {data:?}");
            assert!(data.check_copy(&memory, 2, 0).is_err(), "another rank: {data:?}");
            assert!(data.check_copy(&memory, 3, 512).is_err(), "another place: {data:?}");
            memory[(PERIOD + 5) * size..][..size].fill(0xa5);
            let element = data.check_copy(&memory, 3, 0).unwrap_err().element;
            assert_eq!(element, PERIOD + 5, "{data:?}");
        }
    }

    #[test]
    fn averages_of_odd_sizes_are_close_enough() {
        let data = Data { seed: 1, datatype: Datatype::F32, reduction: Some(Reduction::Avg) };
        assert!(data.tolerance(3) > 0.0 && data.tolerance(3) < 1e-5);
        assert_eq!(data.tolerance(4), 0.0);
        assert_eq!(Data { reduction: Some(Reduction::Sum), ..data }.tolerance(3), 0.0);
    }
}
