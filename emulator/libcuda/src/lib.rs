//! `libcuda.so.1` for emulated GPUs, with the functions that a profiler uses.
//!
//! libnccl does not use it: its CUDA functions are patched, and lead to the emulator itself. A
//! profiler does. Without this library it assumes that the process has no driver, and does not use
//! CUPTI; with it, it may ask which GPUs there are. The answers come from the host program through
//! [`observe::ATTACH`]. Without a host program this is a driver on a machine that has no GPU.
//!
//! A program may use the GPUs through it, with the functions in [`forward`]. The driver's other
//! functions are missing.

mod error;
pub mod forward;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use observe::{Gpu, Machine};

use error::CuResult;

/// `CUuuid`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

/// The host program's machine, or why there is none.
fn machine() -> Result<&'static Machine, CuResult> {
    static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(std::ptr::null_mut());
    let mut machine = MACHINE.load(Ordering::Acquire).cast_const();
    if machine.is_null() {
        // SAFETY: the name is a C string, and the default handle searches what the process has
        // loaded.
        let attach = unsafe { libc::dlsym(libc::RTLD_DEFAULT, observe::ATTACH.as_ptr()) };
        if attach.is_null() {
            return Err(error::NO_DEVICE);
        }
        // SAFETY: the host program exports this symbol with this type; a null observer only asks
        // for the machine.
        machine = unsafe { std::mem::transmute::<*mut c_void, observe::Attach>(attach)(std::ptr::null()) };
        MACHINE.store(machine.cast_mut(), Ordering::Release);
    }
    // SAFETY: null or the host program's table, which lives as long as the process.
    unsafe { machine.as_ref() }.ok_or(error::NO_DEVICE)
}

/// The GPU with this ordinal.
fn gpu(device: c_int) -> Result<Gpu, CuResult> {
    let machine = machine()?;
    let ordinal = u32::try_from(device).map_err(|_| error::INVALID_DEVICE)?;
    let mut gpu = std::mem::MaybeUninit::zeroed();
    if (machine.describe)(ordinal, gpu.as_mut_ptr()) {
        // SAFETY: the host program said that it filled this in, and zeroes are a valid value
        // anyway.
        Ok(unsafe { gpu.assume_init() })
    } else {
        Err(error::INVALID_DEVICE)
    }
}

/// Runs a function's body and returns its status for C.
fn answer(body: impl FnOnce() -> Result<(), CuResult>) -> CuResult {
    body().err().unwrap_or(error::SUCCESS)
}

/// An out parameter: null, or writable as CUDA requires.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes an out parameter.
fn put<T>(out: Out<T>, value: T) -> Result<(), CuResult> {
    out.ok_or(error::INVALID_VALUE)?.write(value);
    Ok(())
}

/// Writes a C string into a buffer of `length` bytes, truncated if it does not fit.
///
/// # Safety
///
/// `out` is null or has room for `length` bytes.
unsafe fn put_string(out: *mut c_char, length: c_int, text: &[u8]) -> Result<(), CuResult> {
    let room = usize::try_from(length).unwrap_or(0);
    if out.is_null() || room == 0 {
        return Err(error::INVALID_VALUE);
    }
    let kept = text.len().min(room - 1);
    // SAFETY: the caller promises room for `length` bytes, of which `kept` and one more are
    // written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, kept);
        out.add(kept).write(0);
    }
    Ok(())
}

/// `cuInit`. The first call that succeeds opens the library that `CUDA_INJECTION64_PATH` names, as
/// the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CuResult {
    static INJECTED: OnceLock<()> = OnceLock::new();
    answer(|| {
        if flags != 0 {
            return Err(error::INVALID_VALUE);
        }
        if (machine()?.devices)() == 0 {
            return Err(error::NO_DEVICE);
        }
        INJECTED.get_or_init(inject);
        Ok(())
    })
}

/// Opens the injected library and calls its `InitializeInjection`. Its result is ignored, as the
/// driver does.
fn inject() {
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH") else { return };
    let Ok(path) = std::ffi::CString::new(path.into_encoded_bytes()) else { return };
    // SAFETY: the path is a C string; whoever set the variable wants that library's constructors
    // to run.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return;
    }
    // SAFETY: an open library and a C string.
    let entry = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if !entry.is_null() {
        // SAFETY: CUDA defines the function with this type.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(entry)() };
    }
}

/// `cuDriverGetVersion`, which also answers where there is no GPU.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> CuResult {
    const WITHOUT_MACHINE: u32 = 13000;
    let number = machine().map_or(WITHOUT_MACHINE, |machine| (machine.driver_version)());
    answer(|| put(version, number as c_int))
}

/// `cuDeviceGetCount`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> CuResult {
    answer(|| put(count, (machine()?.devices)() as c_int))
}

/// `cuDeviceGet`. A device's handle is its ordinal.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> CuResult {
    answer(|| {
        gpu(ordinal)?;
        put(device, ordinal)
    })
}

/// `cuDeviceGetName`.
///
/// # Safety
///
/// `name` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> CuResult {
    answer(|| {
        let gpu = gpu(device)?;
        let bytes = gpu.name.map(|byte| byte as u8);
        let text = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
        // SAFETY: the caller's promise.
        unsafe { put_string(name, length, text) }
    })
}

/// `cuDeviceGetUuid`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) -> CuResult {
    answer(|| put(uuid, Uuid(gpu(device)?.uuid)))
}

/// `cuDeviceGetUuid_v2`, which differs only under MIG.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) -> CuResult {
    cuDeviceGetUuid(uuid, device)
}

/// `cuDeviceGetPCIBusId`.
///
/// # Safety
///
/// `id` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> CuResult {
    answer(|| {
        let [domain, bus, slot] = gpu(device)?.pci;
        // SAFETY: the caller's promise.
        unsafe { put_string(id, length, format!("{domain:04x}:{bus:02x}:{slot:02x}.0").as_bytes()) }
    })
}

/// `cuDeviceTotalMem_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> CuResult {
    answer(|| put(bytes, gpu(device)?.memory as usize))
}

/// `cuDeviceGetAttribute`. Attributes that describe hardware which is not emulated are 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> CuResult {
    /// One more than the highest attribute in any release of CUDA 13.
    const ATTRIBUTES: c_int = 160;
    answer(|| {
        let gpu = gpu(device)?;
        if !(1..ATTRIBUTES).contains(&attribute) {
            return Err(error::INVALID_VALUE);
        }
        let number = match attribute {
            1 => 1024,                       // threads per block
            10 => 32,                        // threads per warp
            16 => gpu.multiprocessors,       // multiprocessors
            31 | 40 | 41 => 1,               // concurrent kernels, copy engines, one address space
            33 => gpu.pci[1],                // PCI bus
            34 => gpu.pci[2],                // PCI device
            39 => 2048,                      // threads per multiprocessor
            50 => gpu.pci[0],                // PCI domain
            75 => gpu.compute_capability[0], // compute capability, major
            76 => gpu.compute_capability[1], // and minor
            _ => 0,
        };
        put(value, number as c_int)
    })
}

/// `cuCtxGetCurrent`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<*mut c_void>) -> CuResult {
    answer(|| put(context, (machine()?.current_context)()))
}

/// `cuCtxGetDevice`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> CuResult {
    answer(|| {
        let machine = machine()?;
        if (machine.current_context)().is_null() {
            return Err(error::INVALID_CONTEXT);
        }
        put(device, (machine.current_device)() as c_int)
    })
}

/// `cuGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: CuResult, text: Out<*const c_char>) -> CuResult {
    answer(|| put_known(text, error::describe(code).map(|(_, text)| text)))
}

/// `cuGetErrorName`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: CuResult, name: Out<*const c_char>) -> CuResult {
    answer(|| put_known(name, error::describe(code).map(|(name, _)| name)))
}

/// Writes a constant string, or null and an error if there is none.
fn put_known(out: Out<*const c_char>, text: Option<&'static CStr>) -> Result<(), CuResult> {
    put(out, text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(|_| ()).ok_or(error::INVALID_VALUE)
}

/// `cuGetProcAddress` of CUDA 11.3 to 11.8.
///
/// # Safety
///
/// `symbol` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's promise; the status is not asked for.
    unsafe { cuGetProcAddress_v2(symbol, function, version, flags, None) }
}

/// `cuGetProcAddress_v2`. Returns the newest form of a function in every case: the functions here
/// never changed their arguments.
///
/// # Safety
///
/// `symbol` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: Out<*const c_void>,
    version: c_int,
    _flags: u64,
    status: Out<c_int>,
) -> CuResult {
    const FOUND: c_int = 0;
    const NO_SUCH_SYMBOL: c_int = 1;
    answer(|| {
        if symbol.is_null() || version < 0 {
            return Err(error::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promises a C string.
        let name = unsafe { CStr::from_ptr(symbol) };
        let address: Option<*const c_void> =
            functions().into_iter().find(|(known, _)| *known == name).map(|(_, address)| address.cast());
        put(function, address.unwrap_or(std::ptr::null()))?;
        // If the caller gives a place for the status, an unknown name is no error.
        match status {
            Some(status) => _ = status.write(if address.is_some() { FOUND } else { NO_SUCH_SYMBOL }),
            None if address.is_none() => return Err(error::NOT_FOUND),
            None => {}
        }
        Ok(())
    })
}

/// The functions that `cuGetProcAddress` knows, each under its plain name, which stands for the
/// newest form.
fn functions() -> [(&'static CStr, *const ()); 17] {
    [
        (c"cuInit", cuInit as *const ()),
        (c"cuDriverGetVersion", cuDriverGetVersion as *const ()),
        (c"cuDeviceGetCount", cuDeviceGetCount as *const ()),
        (c"cuDeviceGet", cuDeviceGet as *const ()),
        (c"cuDeviceGetName", cuDeviceGetName as *const ()),
        (c"cuDeviceGetUuid", cuDeviceGetUuid_v2 as *const ()),
        (c"cuDeviceGetUuid_v2", cuDeviceGetUuid_v2 as *const ()),
        (c"cuDeviceGetPCIBusId", cuDeviceGetPCIBusId as *const ()),
        (c"cuDeviceTotalMem", cuDeviceTotalMem_v2 as *const ()),
        (c"cuDeviceTotalMem_v2", cuDeviceTotalMem_v2 as *const ()),
        (c"cuDeviceGetAttribute", cuDeviceGetAttribute as *const ()),
        (c"cuCtxGetCurrent", cuCtxGetCurrent as *const ()),
        (c"cuCtxGetDevice", cuCtxGetDevice as *const ()),
        (c"cuGetErrorString", cuGetErrorString as *const ()),
        (c"cuGetErrorName", cuGetErrorName as *const ()),
        (c"cuGetProcAddress", cuGetProcAddress_v2 as *const ()),
        (c"cuGetProcAddress_v2", cuGetProcAddress_v2 as *const ()),
    ]
}
