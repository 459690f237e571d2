//! Names of kernels: which of them are NCCL's, and one copy of each.

use std::ffi::c_char;
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// The beginning of the names of NCCL's kernels, and how they continue: from 2.19 on, before 2.19,
/// and symmetric kernels.
const NCCL: &[u8] = b"nccl";
const KERNELS: [&[u8]; 4] = [b"DevKernel", b"Kernel", b"SymkDevKernel", b"SymDevKernel"];
/// Most digits of the length in a mangled name: `_Z41ncclDevKernel_...`.
const DIGITS: usize = 5;

/// Longest name kept, in bytes. Templates have names of thousands of bytes.
const MAX_NAME: usize = 16 << 10;
/// Names kept at a time, and their bytes; a program that compiles kernels while it runs may make
/// more.
const MAX_NAMES: usize = 1 << 13;
const MAX_BYTES: usize = 1 << 20;
/// Addresses of names that are remembered.
const RECENT: usize = 256;

/// Whether the kernel with this symbol name is one of NCCL's. Reads no more of the name than
/// necessary: this is called at every launch of the application's.
///
/// # Safety
///
/// `name` is null or a C string.
#[inline]
pub(super) unsafe fn is_nccl_kernel(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: called for a position only after all bytes before it were read, and none was the NUL.
    let byte = |at: usize| unsafe { name.cast::<u8>().add(at).read() };
    // Stops at the first difference, and the NUL is one.
    let goes_on = |at: usize, text: &[u8]| text.iter().enumerate().all(|(n, &expected)| byte(at + n) == expected);
    let mut at = 0;
    if byte(0) == b'_' {
        if byte(1) != b'Z' {
            return false;
        }
        at = 2;
        while at < 2 + DIGITS && byte(at).is_ascii_digit() {
            at += 1;
        }
    }
    goes_on(at, NCCL) && KERNELS.iter().any(|kernel| goes_on(at + NCCL.len(), kernel))
}

/// All names seen, each kept once.
pub(super) struct Names {
    known: FxHashSet<Arc<str>>,
    bytes: usize,
    /// The last name seen at some addresses. CUPTI may put another name there, so the text is
    /// compared.
    recent: Box<[Option<Arc<str>>; RECENT]>,
}

impl Names {
    pub(super) fn new() -> Names {
        Names { known: FxHashSet::default(), bytes: 0, recent: Box::new([const { None }; RECENT]) }
    }

    /// The name at an address; `(unknown)` for null.
    ///
    /// # Safety
    ///
    /// `name` is null or a C string for the length of this call.
    #[expect(
        clippy::indexing_slicing,
        clippy::integer_division_remainder_used,
        reason = "taken modulo the length, a constant"
    )]
    pub(super) unsafe fn intern(&mut self, name: *const c_char) -> Arc<str> {
        let place = name.addr().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 8);
        let bytes = if name.is_null() {
            b"(unknown)"
        } else {
            // SAFETY: a C string; `strnlen` bytes of it are readable.
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
                self.bytes += text.len();
                if self.known.len() == MAX_NAMES || self.bytes > MAX_BYTES {
                    self.known.clear();
                    self.recent.fill(None);
                    self.bytes = text.len();
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
    fn nccls_kernels_are_recognised_by_name() {
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
            ("_Z13my_nccl_thingv", false),
            ("", false),
        ] {
            let c = CString::new(name).unwrap();
            // SAFETY: a C string.
            assert_eq!(unsafe { is_nccl_kernel(c.as_ptr()) }, nccl, "{name}");
            assert_eq!(crate::model::activity::is_nccl(name), nccl, "the model agrees on {name}");
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
            // SAFETY: `buffer` ends in NUL.
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
