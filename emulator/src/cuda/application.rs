//! The CUDA driver as a program calls it, through the emulated `libcuda.so.1`: memory, streams,
//! events, graphs, and kernels of its own.
//!
//! A program's kernel is one of the kernels known here by name, which stand in for the program's
//! code. The same promises are asked of callers as in [`super::runtime`].

use std::ffi::{CStr, c_char, c_int, c_void};

use super::runtime::{self, Out, exported};
use super::work::Body;
use super::{Error, driver, machine};

type Handle = *mut c_void;

/// The function that the driver library exports under this name; null where it is not emulated.
pub(super) extern "C" fn function(name: *const c_char) -> *const c_void {
    // SAFETY: the driver library passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_str().unwrap_or_default();
    let own = functions().find(|(known, _)| *known == name).map(|(_, function)| function);
    let elsewhere = own.or_else(|| driver::function(name)).unwrap_or(std::ptr::null());
    macro_rules! functions {
        ($($name:literal: $function:expr,)*) => {
            match name { $($name => $function as *const c_void,)* _ => elsewhere }
        };
    }
    functions! {
        "cuCtxSynchronize": runtime::cudaDeviceSynchronize,
        "cuDevicePrimaryCtxRelease_v2": driver::cuDevicePrimaryCtxRelease,
        "cuEventCreate": runtime::cudaEventCreateWithFlags,
        "cuEventDestroy_v2": runtime::cudaEventDestroy,
        "cuEventElapsedTime": runtime::cudaEventElapsedTime,
        "cuEventRecord": runtime::cudaEventRecord,
        "cuEventSynchronize": runtime::cudaEventSynchronize,
        "cuGraphDestroy": runtime::cudaGraphDestroy,
        "cuGraphExecDestroy": runtime::cudaGraphExecDestroy,
        "cuGraphExecUpdate_v2": runtime::graph_exec_update,
        "cuGraphInstantiateWithFlags": runtime::graph_instantiate,
        "cuGraphLaunch": runtime::graph_launch,
        "cuMemAlloc_v2": runtime::cudaMalloc,
        "cuMemFree_v2": runtime::cudaFree,
        "cuMemcpyDtoH_v2": copy_to_host,
        "cuMemsetD8Async": set_bytes,
        "cuStreamBeginCapture_v2": runtime::cudaStreamBeginCapture,
        "cuStreamCreate": runtime::cudaStreamCreateWithFlags,
        "cuStreamDestroy_v2": runtime::cudaStreamDestroy,
        "cuStreamEndCapture": runtime::cudaStreamEndCapture,
        "cuStreamSynchronize": runtime::cudaStreamSynchronize,
        "cuStreamWaitEvent": runtime::cudaStreamWaitEvent,
    }
}

/// Runs for a given number of nanoseconds.
const SPIN: &str = "ncclscope_spin";
/// Writes a given number of readings of the GPU's timer to an address.
const READINGS: &str = "ncclscope_globaltimer";

/// What a program's kernel of this name does; `None` for an unknown name.
///
/// # Safety
///
/// The arguments are those of the kernel of this name.
pub(super) unsafe fn kernel(name: &str, arguments: *const *const u8) -> Option<Body> {
    match name {
        SPIN => {
            // SAFETY: the kernel takes one number.
            let duration_ns = unsafe { (*arguments).cast::<u64>().read_unaligned() };
            Some(Body::Compute { duration_ns, work: std::sync::Mutex::new(Box::new(|| {})) })
        }
        READINGS => {
            // SAFETY: the kernel takes an address and a number.
            let (at, count) = unsafe {
                ((*arguments).cast::<usize>().read_unaligned(), (*arguments.add(1)).cast::<u32>().read_unaligned())
            };
            let device = super::device::current().ordinal;
            let work = move || {
                for place in 0..count as usize {
                    let reading = machine().kernels.timer(device);
                    // SAFETY: the kernel was launched with an address that has room for this many
                    // readings.
                    unsafe { (at as *mut u64).add(place).write_volatile(reading) };
                }
            };
            Some(Body::Compute { duration_ns: 0, work: std::sync::Mutex::new(Box::new(work)) })
        }
        _ => None,
    }
}

unsafe extern "C" fn copy_to_host(to: Handle, from: *const c_void, bytes: usize) -> c_int {
    /// `cudaMemcpyDeviceToHost`.
    const TO_HOST: c_int = 2;
    // SAFETY: the caller makes the same promises.
    unsafe { runtime::memcpy(to, from, bytes, TO_HOST) }
}

unsafe extern "C" fn set_bytes(at: Handle, byte: u8, bytes: usize, stream: Handle) -> c_int {
    // SAFETY: the caller makes the same promises.
    unsafe { runtime::memset_async(at, byte.into(), bytes, stream) }
}

exported! {
    fn cuModuleLoadData(out: Out<Handle>, image: *const c_void) {
        // The module does not matter: kernels are known by their names.
        out.put(image.cast_mut())
    }

    fn cuModuleUnload(_module: Handle) {
        Ok(())
    }

    [unsafe] fn cuModuleGetFunction(out: Out<Handle>, _module: Handle, name: *const c_char) {
        // SAFETY: CUDA's caller promises a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
        if ![SPIN, READINGS].contains(&name) {
            return Err(Error::SymbolNotFound);
        }
        let (name, address) = machine().names.of_kernel(name);
        machine().names.of_function(address, || Some(name.to_string()));
        out.put(address as Handle)
    }
}
