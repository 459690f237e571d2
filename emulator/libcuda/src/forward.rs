//! Functions that the machine implements: they are called with the same arguments, by the name
//! under which the driver exports them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::{self, CuResult};
use crate::machine;

type Handle = *mut c_void;
type Pointer = u64;

/// The machine's function of this name.
fn find(name: &CStr) -> Result<*const c_void, CuResult> {
    let found = (machine()?.function)(name.as_ptr());
    if found.is_null() { Err(error::NOT_SUPPORTED) } else { Ok(found) }
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        ///
        /// As CUDA requires.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CuResult {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name of C's has no zero byte"),
            };
            match find(NAME) {
                // SAFETY: the machine's function of this name has the same arguments as CUDA's;
                // the caller promises the rest.
                Ok(function) => unsafe {
                    std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CuResult>(function)(
                        $($argument),*
                    )
                },
                Err(error) => error,
            }
        }
    )*};
}

forward! {
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuEventElapsedTime(milliseconds: *mut f32, earlier: Handle, later: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuGraphDestroy(graph: Handle);
    cuGraphExecDestroy(exec: Handle);
    cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: Handle);
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_memory: c_uint, stream: Handle, arguments: *mut Handle, extra: *mut Handle
    );
    cuLaunchKernelEx(config: Handle, function: Handle, arguments: *mut Handle, extra: *mut Handle);
    cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize);
    cuMemFree_v2(pointer: Pointer);
    cuMemcpyDtoH_v2(to: Handle, from: Pointer, bytes: usize);
    cuMemsetD8Async(at: Pointer, byte: u8, bytes: usize, stream: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
}
