//! Launches of kernels.

use std::ffi::{c_int, c_void};

use super::{Handle, Out, exported, slice};
use crate::cuda::names::Name;
use crate::cuda::observe::{call_of, nested_call};
use crate::cuda::one_rank::OneRank;
use crate::cuda::work::{Body, Kernel};
use crate::cuda::{Error, application, device, driver, machine};

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(in crate::cuda) struct Dimensions {
    x: u32,
    y: u32,
    z: u32,
}

impl From<Dimensions> for [u32; 3] {
    fn from(of: Dimensions) -> [u32; 3] {
        [of.x, of.y, of.z]
    }
}

impl From<[u32; 3]> for Dimensions {
    fn from([x, y, z]: [u32; 3]) -> Dimensions {
        Dimensions { x, y, z }
    }
}

/// `cudaLaunchKernel_v7000_params`.
#[repr(C)]
struct LaunchParameters {
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
}

/// The kernel of a launch through `void* arguments[]` or `void* extra[]`. The former does not give
/// the arguments' sizes, so only the few kernels that are known here by name can be launched that
/// way.
///
/// # Safety
///
/// The arguments are those of the kernel of this name.
pub(in crate::cuda) unsafe fn body(
    name: &Name,
    arguments: *const *const u8,
    extra: *const *const c_void,
) -> Result<Body, Error> {
    if !extra.is_null() {
        // SAFETY: as the caller promises.
        return unsafe { driver::read_extra(extra) }.map(Body::Nccl);
    }
    if arguments.is_null() {
        return Err(Error::InvalidValue);
    }
    // SAFETY: as the caller promises.
    if let Some(kernel) = unsafe { OneRank::new(name, arguments) } {
        return kernel.map(Body::OneRank);
    }
    // SAFETY: as the caller promises.
    if let Some(body) = unsafe { application::kernel(name, arguments) } {
        return Ok(body);
    }
    if name.contains("ncclProgressCounterCaptureGpuTime") {
        // SAFETY: the kernel takes one argument, an address.
        return Ok(Body::Timer(unsafe { (*arguments).cast::<usize>().read() }));
    }
    eprintln!("emulator: kernel {} was launched through an array of arguments and is not emulated", &**name);
    Err(Error::InvalidDeviceFunction)
}

pub(super) unsafe extern "C" fn launch_kernel(
    function: *const c_void,
    grid: Dimensions,
    block: Dimensions,
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
) -> c_int {
    let name = machine().name(function);
    launch(function as usize, &name, grid.into(), block.into(), arguments, shared_memory, stream, || {
        // SAFETY: CUDA's caller promises the arguments of this kernel.
        unsafe { body(&name, arguments, std::ptr::null()) }
    })
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
pub(super) struct LaunchConfig {
    grid: Dimensions,
    block: Dimensions,
    shared_memory: usize,
    stream: Handle,
    attributes: *const driver::LaunchAttribute,
    attribute_count: u32,
}

pub(super) unsafe extern "C" fn launch_kernel_ex(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *const *const u8,
) -> c_int {
    let name = machine().name(function);
    call_of(c"cudaLaunchKernelExC", Some(&name), std::ptr::null(), |origin| {
        // SAFETY: CUDA's caller promises a configuration or null.
        let config = unsafe { config.as_ref() }.ok_or(Error::InvalidValue)?;
        let kernel = Kernel {
            function: function as usize,
            name: name.clone(),
            grid: config.grid.into(),
            block: config.block.into(),
            shared_memory: config.shared_memory as u32,
            // SAFETY: CUDA's caller promises the arguments of this kernel.
            body: unsafe { body(&name, arguments, std::ptr::null())? },
        };
        // SAFETY: CUDA's caller promises this many attributes.
        let event = driver::launch_event(unsafe { slice(config.attributes, config.attribute_count as usize) })?;
        let stream = device::stream(config.stream)?;
        nested_call(c"cuLaunchKernelEx", Some(&name), std::ptr::null(), origin, || {
            driver::submit_kernel(&stream, kernel, event.as_deref(), origin)
        })
    })
}

/// Launches a kernel as `cudaLaunchKernel` does, with the driver's call inside it.
#[expect(clippy::too_many_arguments, reason = "they are the function's own")]
pub(in crate::cuda) fn launch(
    function: usize,
    name: &Name,
    grid: [u32; 3],
    block: [u32; 3],
    arguments: *const *const u8,
    shared_memory: usize,
    stream: Handle,
    body: impl FnOnce() -> Result<Body, Error>,
) -> c_int {
    let parameters = LaunchParameters {
        function: function as *const c_void,
        grid: grid.into(),
        block: block.into(),
        arguments,
        shared_memory,
        stream,
    };
    call_of(c"cudaLaunchKernel", Some(name), (&raw const parameters).cast(), |origin| {
        let shared_memory = shared_memory as u32;
        let kernel = Kernel { function, name: name.clone(), grid, block, shared_memory, body: body()? };
        let parameters = driver::LaunchParameters::new(&kernel, stream, arguments);
        let stream = device::stream(stream)?;
        nested_call(c"cuLaunchKernel", Some(name), (&raw const parameters).cast(), origin, || {
            driver::submit_kernel(&stream, kernel, None, origin)
        })
    })
}

exported! {
    fn cudaGetFuncBySymbol(out: Out<*const c_void>, symbol: *const c_void) {
        // The address by which the host knows a kernel serves as its handle.
        out.put(symbol)
    }

    fn cudaFuncGetAttributes(out: Out<[u64; 6]>, _function: *const c_void) {
        // No static shared memory, no local memory. The structure is longer, but libnccl reads only
        // its beginning.
        out.put([0; 6])
    }

    fn cudaFuncSetAttribute(_function: *const c_void, _attribute: c_int, _value: c_int) {
        Ok(())
    }
}
