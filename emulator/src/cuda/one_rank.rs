//! NCCL's kernel for a communicator of one rank: it copies, and scales when the reduction scales.

use super::Error;
use super::names::Name;

/// A launch of `oneRankReduce<FuncPreMulSum<T>>`.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneRank {
    to: usize,
    from: usize,
    elements: usize,
    scalar: u64,
    /// Whether `scalar` is the address of the scalar.
    at_address: bool,
    element: Element,
}

/// The type of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

impl OneRank {
    /// Reads the arguments of a launch; `None` for any other kernel.
    ///
    /// # Safety
    ///
    /// `arguments` are those of the kernel of this name.
    pub(super) unsafe fn new(name: &Name, arguments: *const *const u8) -> Option<Result<OneRank, Error>> {
        let (_, template) = name.split_once("oneRankReduceI13FuncPreMulSumI")?;
        let Some(element) = Element::of_mangled(template) else {
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
        Some(Ok(OneRank { to, from, elements, scalar, at_address, element }))
    }

    /// Does what the kernel does.
    pub(super) fn run(&self) {
        let scalar = if self.at_address { self.load_scalar() } else { self.scalar };
        match self.element {
            Element::I8 | Element::U8 => self.scale::<u8>(|x| x.wrapping_mul(scalar as u8)),
            Element::I32 | Element::U32 => self.scale::<u32>(|x| x.wrapping_mul(scalar as u32)),
            Element::I64 | Element::U64 => self.scale::<u64>(|x| x.wrapping_mul(scalar)),
            Element::F16 => {
                let by = half::f16::from_bits(scalar as u16);
                self.scale::<half::f16>(|x| x * by);
            }
            Element::Bf16 => {
                let by = half::bf16::from_bits(scalar as u16);
                self.scale::<half::bf16>(|x| x * by);
            }
            Element::F32 => {
                let by = f32::from_bits(scalar as u32);
                self.scale::<f32>(|x| x * by);
            }
            Element::F64 => {
                let by = f64::from_bits(scalar);
                self.scale::<f64>(|x| x * by);
            }
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

    fn scale<T: Copy>(&self, by: impl Fn(T) -> T) {
        let (to, from) = (self.to as *mut T, self.from as *const T);
        for index in 0..self.elements {
            // SAFETY: the caller of the collective promised both buffers until the kernel has run.
            unsafe { to.add(index).write_unaligned(by(from.add(index).read_unaligned())) };
        }
    }
}

impl Element {
    /// The type that a mangled name begins with. The kernels for 8-bit floats need a newer GPU
    /// than the emulated one.
    fn of_mangled(text: &str) -> Option<Element> {
        let known = [
            ("6__half", Element::F16),
            ("13__nv_bfloat16", Element::Bf16),
            ("a", Element::I8),
            ("h", Element::U8),
            ("i", Element::I32),
            ("j", Element::U32),
            ("l", Element::I64),
            ("m", Element::U64),
            ("f", Element::F32),
            ("d", Element::F64),
        ];
        known.iter().find(|(mangled, _)| text.starts_with(mangled)).map(|(_, element)| *element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled<T: Copy + Default>(element: Element, from: [T; 3], scalar: u64, at_address: bool) -> [T; 3] {
        let mut to = [T::default(); 3];
        let (from, to_address) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        OneRank { to: to_address, from, elements: 2, scalar, at_address, element }.run();
        to
    }

    #[test]
    fn each_type_is_scaled_and_no_more_elements_than_asked() {
        assert_eq!(scaled(Element::I8, [3_i8, -5, 7], 2, false), [6, -10, 0]);
        assert_eq!(scaled(Element::U32, [3_u32, 5, 7], 4, false), [12, 20, 0]);
        assert_eq!(scaled(Element::I64, [3_i64, -5, 7], (-2_i64) as u64, false), [-6, 10, 0]);
        let half = half::f16::from_f32;
        assert_eq!(scaled(Element::F16, [half(3.0); 3], half(0.5).to_bits().into(), false)[..2], [half(1.5); 2]);
        let scalar = 0.25_f64;
        assert_eq!(scaled(Element::F64, [4.0; 3], (&raw const scalar) as u64, true), [1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_type_is_the_first_in_the_template() {
        assert_eq!(Element::of_mangled("fEEEvPvS3_mmb"), Some(Element::F32));
        assert_eq!(Element::of_mangled("13__nv_bfloat16EEEvPvS4_mmb"), Some(Element::Bf16));
        assert_eq!(Element::of_mangled("13__nv_fp8_e4m3EEEvPvS4_mmb"), None);
    }
}
