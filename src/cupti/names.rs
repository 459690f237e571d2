//! Names of kernels: which are NCCL's, and each kept once.

use std::ffi::c_char;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// How NCCL's kernels begin, by release: up to 2.18, from 2.19 on, symmetric ones up to 2.28 and later.
const PREFIXES: [&[u8]; 4] = [b"ncclDevKernel", b"ncclKernel", b"ncclSymkDevKernel", b"ncclSymDevKernel"];
/// A mangled name begins with `_Z`, the length of the name, and the name.
const MANGLED: &[u8] = b"_Z";
/// As much of a name as decides.
const HEAD: usize = 32;

/// Longest name that is kept, in bytes. Templates make names of thousands.
const MAX_NAME: usize = 16 << 10;
/// Names known at a time; a program that compiles kernels while it runs may make more.
const MAX_NAMES: usize = 1 << 16;
/// Addresses of names remembered.
const RECENT: usize = 256;

/// Whether a kernel is one of NCCL's, by its name in the symbol table.
#[inline]
fn is_nccl(name: &[u8]) -> bool {
    let plain = match name.strip_prefix(MANGLED) {
        Some(mangled) => &mangled[mangled.iter().take_while(|byte| byte.is_ascii_digit()).count()..],
        None => name,
    };
    PREFIXES.iter().any(|prefix| plain.starts_with(prefix))
}

/// Whether the kernel with this name is one of NCCL's. Reads no more of it than it takes to know.
///
/// # Safety
///
/// `name` is null or a C string.
#[inline]
pub(super) unsafe fn is_nccl_kernel(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    let mut head = [0_u8; HEAD];
    for (at, byte) in head.iter_mut().enumerate() {
        // SAFETY: all bytes before this one were not the string's end, so this is within it.
        *byte = unsafe { name.cast::<u8>().add(at).read() };
        // Most kernels are not NCCL's, and most of theirs are C++'s.
        if *byte == 0 || (at == 0 && !matches!(*byte, b'_' | b'n')) {
            break;
        }
    }
    is_nccl(&head)
}

/// Names that were seen, each kept once.
pub(super) struct Names {
    known: FxHashSet<Arc<str>>,
    /// The names seen last at some addresses. CUPTI may put another one there, so it is compared.
    recent: Box<[Option<Arc<str>>; RECENT]>,
}

impl Names {
    pub(super) fn new() -> Names {
        Names { known: FxHashSet::default(), recent: Box::new([const { None }; RECENT]) }
    }

    /// The name at an address; `(unknown)` if there is none.
    ///
    /// # Safety
    ///
    /// `name` is null or a C string for the length of this call.
    pub(super) unsafe fn intern(&mut self, name: *const c_char) -> Arc<str> {
        let place = name.addr().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 8);
        let bytes = if name.is_null() {
            b"(unknown)"
        } else {
            // SAFETY: a C string, of which no more is read than up to its end.
            unsafe { std::slice::from_raw_parts(name.cast::<u8>(), libc::strnlen(name, MAX_NAME)) }
        };
        if let Some(recent) = &self.recent[place % RECENT]
            && recent.as_bytes() == bytes
        {
            return Arc::clone(recent);
        }
        let text = String::from_utf8_lossy(bytes);
        let kept = match self.known.get(text.as_ref()) {
            Some(known) => Arc::clone(known),
            None => {
                if self.known.len() == MAX_NAMES {
                    self.known.clear();
                }
                let new: Arc<str> = text.into();
                self.known.insert(Arc::clone(&new));
                new
            }
        };
        self.recent[place % RECENT] = Some(Arc::clone(&kept));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn nccls_kernels_are_known_by_their_names() {
        for (name, nccl) in [
            ("_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", true),
            ("_Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE", true),
            ("ncclDevKernel_SendRecv", true),
            ("_Z31ncclSymkDevKernel_AllGather_LL21ncclSymkDevWorkArgs4K", true),
            ("ncclSymkDevKernel_AllGather_LL", true),
            ("_Z46ncclKernel_AllReduce_RING_LL_Sum_float_Generic", true),
            ("_Z6vecAddPKfS0_Pfi", false),
            ("_ZN2at6native13reduce_kernelILi512ELi1EEEvT1_", false),
            ("ncclDevKerne", false),
            ("nccl", false),
            ("_Z", false),
            ("_Z99", false),
            ("sm90_xmma_gemm_bf16", false),
            ("my_ncclDevKernel", false),
            ("", false),
        ] {
            let c = CString::new(name).unwrap();
            // SAFETY: a C string.
            assert_eq!(unsafe { is_nccl_kernel(c.as_ptr()) }, nccl, "{name}");
            assert_eq!(crate::correlate::is_nccl(name), nccl, "the correlator agrees on {name}");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { is_nccl_kernel(std::ptr::null()) });
    }

    #[test]
    fn a_name_is_kept_once_and_never_mistaken() {
        let mut names = Names::new();
        let mut buffer = *b"first_kernel\0";
        let other = CString::new("first_kernel").unwrap();
        let intern = |names: &mut Names, buffer: &[u8]| {
            // SAFETY: ends in NUL.
            unsafe { names.intern(buffer.as_ptr().cast()) }
        };
        let first = intern(&mut names, &buffer);
        assert_eq!(&*first, "first_kernel");
        assert!(Arc::ptr_eq(&first, &intern(&mut names, &buffer)));
        assert!(Arc::ptr_eq(&first, &intern(&mut names, other.as_bytes_with_nul())));
        // CUPTI freed the string and put another one there.
        buffer[..5].copy_from_slice(b"other");
        assert_eq!(&*intern(&mut names, &buffer), "other_kernel");
        assert_eq!(&*intern(&mut names, b"first\xff\0"), "first\u{fffd}");
        // SAFETY: null is allowed.
        assert_eq!(&*unsafe { names.intern(std::ptr::null()) }, "(unknown)");
    }
}
