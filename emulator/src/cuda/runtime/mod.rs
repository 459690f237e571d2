//! The CUDA runtime as libnccl calls it: the C functions that overwrite its own.
//!
//! Each function has the arguments of the CUDA function that [`table`] names it after. Its caller
//! promises what that function's documentation asks for: pointers for results are null or
//! writable, names are C strings, memory lives as long as queued work needs it. Handles are looked
//! up, so a wrong one gives an error.

mod devices;
mod graphs;
mod kernels;
mod memory;
mod streams;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use super::Error;

pub(super) use self::{devices::*, graphs::*, kernels::*, memory::*, streams::*};

type Handle = *mut c_void;
type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Defines functions under CUDA's names, and lists them. Each call of one is told to the observer.
/// `[unsafe]` marks those that use memory, or call functions, by an address from their caller.
macro_rules! exported {
    ($(
        $(#[$doc:meta])*
        $([$unsafe:tt])? fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(|$origin:ident|)? $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case, reason = "the name is CUDA's")]
            pub(in crate::cuda) $($unsafe)? extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                const NAME: &std::ffi::CStr = $crate::cuda::runtime::c_name(concat!(stringify!($name), "\0"));
                $crate::cuda::observe::call(NAME, |_origin| {
                    $(let $origin = _origin;)?
                    $body
                })
            }
        )*

        /// The functions defined here, by name.
        pub(in crate::cuda) fn functions() -> impl Iterator<Item = $crate::cuda::runtime::Function> {
            [$((stringify!($name), $name as *const std::ffi::c_void)),*].into_iter()
        }
    };
}
pub(super) use exported;

/// A name that ends in a zero byte.
pub(super) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the name ends in its only zero byte"),
    }
}

/// A function's name and address.
pub(super) type Function = (&'static str, *const c_void);

/// The functions by name. `exists` says whether the library has one of that name.
pub(super) fn table(exists: impl Fn(&str) -> bool) -> Vec<Function> {
    macro_rules! named {
        ($($name:literal: $function:expr,)*) => { [$(($name, $function as *const c_void),)*] };
    }
    let defined = devices::functions().chain(graphs::functions()).chain(kernels::functions());
    let mut table: BTreeMap<_, _> = defined.chain(memory::functions()).chain(streams::functions()).collect();
    table.extend(named! {
        "cudaGetDeviceProperties_v2": cudaGetDeviceProperties,
        "cudaGetErrorString": get_error_string,
        "cudaGetLastError": get_last_error,
        "cudaGraphAddDependencies_v2": cudaGraphAddDependencies,
        "cudaGraphLaunch": graph_launch,
        "cudaLaunchKernel": launch_kernel,
        "cudaLaunchKernelExC": launch_kernel_ex,
        "cudaMallocFromPoolAsync": malloc_from_pool_async,
        "cudaMemcpy": memcpy,
        "cudaMemcpyAsync": memcpy_async,
        "cudaMemcpyBatchAsync": memcpy_batch_async_13,
        "cudaMemset": memset,
        "cudaMemsetAsync": memset_async,
        "cudaRuntimeGetVersion": cudaDriverGetVersion,
        "cudaStreamGetCaptureInfo_v2": stream_get_capture_info_without_edges,
        "cudaStreamGetCaptureInfo_v3": cudaStreamGetCaptureInfo,
        "cudaStreamUpdateCaptureDependencies_v2": cudaStreamUpdateCaptureDependencies,
    });
    // CUDA 13 gave the plain names of these functions the arguments of their second versions.
    if exists("cudaGetDeviceProperties_v2") {
        table.extend(named! {
            "cudaGraphAddDependencies": graph_add_dependencies,
            "cudaMemcpyBatchAsync": memcpy_batch_async_12,
            "cudaStreamGetCaptureInfo": stream_get_capture_status,
            "cudaStreamUpdateCaptureDependencies": stream_update_capture_dependencies,
        });
    }
    table.into_iter().collect()
}

/// Where a C caller wants a result: null, or writable for the length of the call.
#[repr(transparent)]
pub(super) struct Out<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T> Out<'a, T> {
    /// A place for a result.
    pub(super) fn new(place: &'a mut T) -> Out<'a, T> {
        Out(place, PhantomData)
    }

    /// For a caller that does not want the result.
    pub(super) fn none() -> Out<'a, T> {
        Out(std::ptr::null_mut(), PhantomData)
    }

    /// The same place for another type of result.
    ///
    /// # Safety
    ///
    /// The caller asked for that type.
    pub(super) unsafe fn cast<U>(self) -> Out<'a, U> {
        Out(self.0.cast(), PhantomData)
    }

    fn is_wanted(&self) -> bool {
        !self.0.is_null()
    }

    /// Writes a result that must be asked for.
    pub(super) fn put(self, value: T) -> Result<(), Error> {
        if !self.is_wanted() {
            return Err(Error::InvalidValue);
        }
        self.put_if_wanted(value);
        Ok(())
    }

    /// Writes a result that the caller may not want.
    pub(super) fn put_if_wanted(self, value: T) {
        if self.is_wanted() {
            // SAFETY: writable, as its maker promises; C callers need not align what they have.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// The elements that C passes as a pointer and a count.
///
/// # Safety
///
/// If the pointer is not null, there are this many elements, for as long as the result is used.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(first, count) }
}
