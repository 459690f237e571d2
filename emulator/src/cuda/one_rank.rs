//! NCCL's kernel for a communicator of one rank: it copies, and scales when the reduction scales.

use super::Error;
use super::names::Name;
use elements::reduce::Operator;
use elements::words::Datatype;

/// A launch of `oneRankReduce<FuncPreMulSum<T>>`.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneRank {
    to: usize,
    from: usize,
    elements: usize,
    scalar: u64,
    /// Whether `scalar` is the address of the scalar.
    at_address: bool,
    datatype: Datatype,
}

impl OneRank {
    /// Reads the arguments of a launch; `None` for any other kernel.
    ///
    /// # Safety
    ///
    /// `arguments` are those of the kernel of this name.
    pub(super) unsafe fn new(name: &Name, arguments: *const *const u8) -> Option<Result<OneRank, Error>> {
        let (_, template) = name.split_once("oneRankReduceI13FuncPreMulSumI")?;
        let Some(datatype) = of_mangled(template) else {
            eprintln!("emulator: {}: one-rank reductions of this type are not emulated", &**name);
            return Some(Err(Error::NotSupported));
        };
        // SAFETY: the kernel's parameters are (void*, void*, size_t, uint64_t, bool), and each
        // pointer points to one.
        let (to, from, elements, scalar, at_address) = unsafe {
            (
                (*arguments).cast::<usize>().read(),
                (*arguments.add(1)).cast::<usize>().read(),
                (*arguments.add(2)).cast::<usize>().read(),
                (*arguments.add(3)).cast::<u64>().read(),
                (*arguments.add(4)).read() != 0,
            )
        };
        Some(Ok(OneRank { to, from, elements, scalar, at_address, datatype }))
    }

    /// Does what the kernel does.
    pub(super) fn run(&self) {
        let scalar = if self.at_address { self.load_scalar() } else { self.scalar };
        let operator = Operator::scaling(self.datatype, scalar);
        let (to, from) = (self.to as *mut u8, self.from as *const u8);
        // SAFETY: the caller of the collective promised both buffers until the kernel has run.
        unsafe {
            to.copy_from(from, self.elements * operator.size());
            operator.prepare(to, self.elements);
        }
    }

    /// The scalar in memory, with as many bytes as its address is aligned to, as NCCL's kernel
    /// reads it.
    fn load_scalar(&self) -> u64 {
        let address = self.scalar as usize;
        // SAFETY: the caller of ncclRedOpCreatePreMulSum promised a scalar there until the kernel
        // has run.
        unsafe {
            match address {
                address if !address.is_multiple_of(2) => u64::from(*(address as *const u8)),
                address if !address.is_multiple_of(4) => u64::from(*(address as *const u16)),
                address if !address.is_multiple_of(8) => u64::from(*(address as *const u32)),
                address => *(address as *const u64),
            }
        }
    }
}

/// The type that a mangled name begins with. The kernels for 8-bit floats need a newer GPU than the
/// emulated one.
fn of_mangled(text: &str) -> Option<Datatype> {
    let known = [
        ("6__half", Datatype::F16),
        ("13__nv_bfloat16", Datatype::Bf16),
        ("a", Datatype::I8),
        ("h", Datatype::U8),
        ("i", Datatype::I32),
        ("j", Datatype::U32),
        ("l", Datatype::I64),
        ("m", Datatype::U64),
        ("f", Datatype::F32),
        ("d", Datatype::F64),
    ];
    known.iter().find(|(mangled, _)| text.starts_with(mangled)).map(|(_, datatype)| *datatype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled<T: Copy + Default>(datatype: Datatype, from: [T; 3], scalar: u64, at_address: bool) -> [T; 3] {
        let mut to = [T::default(); 3];
        let (from, to_address) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        OneRank { to: to_address, from, elements: 2, scalar, at_address, datatype }.run();
        to
    }

    #[test]
    fn each_type_is_scaled_for_just_the_elements_asked_for() {
        assert_eq!(scaled(Datatype::I8, [3_i8, -5, 7], 2, false), [6, -10, 0]);
        assert_eq!(scaled(Datatype::U32, [3_u32, 5, 7], 4, false), [12, 20, 0]);
        assert_eq!(scaled(Datatype::I64, [3_i64, -5, 7], (-2_i64) as u64, false), [-6, 10, 0]);
        let half = half::f16::from_f32;
        assert_eq!(scaled(Datatype::F16, [half(3.0); 3], half(0.5).to_bits().into(), false)[..2], [half(1.5); 2]);
        let scalar = 0.25_f64;
        assert_eq!(scaled(Datatype::F64, [4.0; 3], (&raw const scalar) as u64, true), [1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_type_is_the_first_in_the_template() {
        assert_eq!(of_mangled("fEEEvPvS3_mmb"), Some(Datatype::F32));
        assert_eq!(of_mangled("13__nv_bfloat16EEEvPvS4_mmb"), Some(Datatype::Bf16));
        assert_eq!(of_mangled("13__nv_fp8_e4m3EEEvPvS4_mmb"), None);
    }
}
