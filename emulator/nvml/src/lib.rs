//! NVML for emulated GPUs: a `libnvidia-ml.so.1` with the functions that NCCL looks up.
//!
//! If it is loaded with `RTLD_GLOBAL` before libnccl, NCCL's own `dlopen("libnvidia-ml.so.1")`
//! finds it. It describes as many GPUs as the environment variable [`GPUS`] says, each on its own
//! PCI bus behind PCIe 4.0, without NVLink, NVSwitch fabric or confidential computing. The
//! emulated CUDA describes the same GPUs.
//!
//! Statuses are as in NVML: 0 is success, the others are in [`Status`]. Structures are written
//! with the layout in NCCL's debug information.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable with the number of GPUs, 1 to [`MAX_GPUS`].
pub const GPUS: &str = "EMULATED_GPUS";

/// The environment variable with the compute capability, 80 for 8.0, which is the default.
pub const COMPUTE_CAPABILITY: &str = "EMULATED_COMPUTE_CAPABILITY";

/// The most GPUs of a machine.
pub const MAX_GPUS: u32 = 16;

/// The PCI bus of the first GPU. The others follow.
pub const FIRST_BUS: u32 = 0xa0;

/// The name of every GPU.
pub const NAME: &CStr = c"Emulated GPU";

/// The driver's version.
pub const DRIVER_VERSION: &CStr = c"580.00";

/// The part of `nvmlReturn_t` that is used here.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success = 0,
    /// `nvmlInit` has not been called, or was undone.
    Uninitialized = 1,
    /// An argument is null or out of range.
    InvalidArgument = 2,
    /// The GPU does not support this.
    NotSupported = 3,
    /// There is no such GPU.
    NotFound = 6,
    /// The text does not fit into the caller's buffer.
    InsufficientSize = 7,
    /// There are no GPUs: the environment does not say how many.
    DriverNotLoaded = 9,
}

/// `nvmlDevice_t`: the GPU's number plus one.
pub type DeviceHandle = *mut c_void;

/// `nvmlPciInfo_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PciInfo {
    /// `0000:a0:00.0`
    pub bus_id_legacy: [u8; 16],
    /// The PCI domain.
    pub domain: c_uint,
    /// The bus in it.
    pub bus: c_uint,
    /// The device on it.
    pub device: c_uint,
    /// Device and vendor.
    pub pci_device_id: c_uint,
    /// Subsystem's device and vendor.
    pub pci_subsystem_id: c_uint,
    /// `0000:a0:00.0`
    pub bus_id: [u8; 32],
}

/// `nvmlPciInfoExt_v1_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PciInfoExt {
    /// The caller's version of the structure.
    pub version: c_uint,
    /// The PCI domain.
    pub domain: c_uint,
    /// The bus in it.
    pub bus: c_uint,
    /// The device on it.
    pub device: c_uint,
    /// Device and vendor.
    pub pci_device_id: c_uint,
    /// Subsystem's device and vendor.
    pub pci_subsystem_id: c_uint,
    /// The PCI class: 3, a display controller.
    pub base_class: c_uint,
    /// The PCI subclass: 2, a 3D controller.
    pub sub_class: c_uint,
    /// `0000:a0:00.0`
    pub bus_id: [u8; 32],
}

/// `nvmlFieldValue_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldValue {
    /// The field that is asked for.
    pub field: c_uint,
    /// Which part of the GPU.
    pub scope: c_uint,
    /// When it was read.
    pub timestamp: c_longlong,
    /// How long that took.
    pub latency_us: c_longlong,
    /// The type of the value.
    pub value_type: c_int,
    /// Whether there is a value.
    pub status: c_int,
    /// The value.
    pub value: u64,
}

/// `nvmlConfComputeSystemState_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfComputeState {
    /// None, simulated, or production.
    pub environment: c_uint,
    /// Whether it is on.
    pub feature: c_uint,
    /// Whether tools may inspect the GPU.
    pub tools_mode: c_uint,
}

const DEVICE_ID: c_uint = 0x20b0_10de;
const SUBSYSTEM_ID: c_uint = 0x134f_10de;

/// How often `nvmlInit` was called minus how often `nvmlShutdown` was.
static USERS: AtomicU32 = AtomicU32::new(0);

/// The machine that the environment describes.
#[derive(Debug, Clone, Copy)]
struct Machine {
    gpus: u32,
    compute_capability: u32,
}

/// The machine, or `None` when the environment does not describe one, which is reported once.
fn machine() -> Option<Machine> {
    static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.trim().parse::<u32>().map_err(|_| text));
        let gpus = match number(GPUS) {
            Some(Ok(gpus @ 1..=MAX_GPUS)) => gpus,
            found => {
                let found = match found {
                    None => "is not set".to_owned(),
                    Some(Ok(number)) => format!("is {number}"),
                    Some(Err(text)) => format!("is {text:?}"),
                };
                complain(&format!("{GPUS} {found}; it must say how many GPUs there are, 1 to {MAX_GPUS}"));
                return None;
            }
        };
        let compute_capability = match number(COMPUTE_CAPABILITY) {
            None => 80,
            Some(Ok(capability @ 10..=999)) => capability,
            Some(_) => {
                complain(&format!("{COMPUTE_CAPABILITY} must be a number such as 80, for compute capability 8.0"));
                return None;
            }
        };
        Some(Machine { gpus, compute_capability })
    })
}

fn complain(text: &str) {
    use std::io::Write;
    // If stderr is closed, there is nobody to tell.
    let _ = std::io::stderr().write_all(format!("emulated NVML: {text}\n").as_bytes());
}

/// Runs `body` with the machine, when NVML is initialised.
fn with_machine(body: impl FnOnce(Machine) -> Status) -> c_int {
    let status = match machine() {
        _ if USERS.load(Ordering::Acquire) == 0 => Status::Uninitialized,
        Some(machine) => body(machine),
        None => Status::Uninitialized,
    };
    status as c_int
}

/// Runs `body` with the number of the GPU that `handle` stands for.
fn with_gpu(handle: DeviceHandle, body: impl FnOnce(u32) -> Status) -> c_int {
    with_machine(|machine| match (handle as usize).checked_sub(1) {
        Some(gpu) if gpu < machine.gpus as usize => body(gpu as u32),
        _ => Status::InvalidArgument,
    })
}

/// A result's place: null, or writable as NVML requires.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes a value where the caller wants it.
fn store<T>(place: Out<T>, value: T) -> Status {
    let Some(place) = place else { return Status::InvalidArgument };
    place.write(value);
    Status::Success
}

/// Writes a text where the caller wants it.
///
/// # Safety
///
/// `place` is null or has room for `length` characters.
unsafe fn store_text(place: *mut c_char, length: c_uint, text: &CStr) -> Status {
    let text = text.to_bytes_with_nul();
    if place.is_null() {
        return Status::InvalidArgument;
    }
    if text.len() > length as usize {
        return Status::InsufficientSize;
    }
    // SAFETY: the caller's promise, and the length was compared.
    unsafe { place.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    Status::Success
}

fn bus_id<const N: usize>(gpu: u32) -> [u8; N] {
    let text = format!("0000:{:02x}:00.0", FIRST_BUS + gpu);
    let mut id = [0; N];
    id[..text.len()].copy_from_slice(text.as_bytes());
    id
}

/// The GPU at a bus id: `0000:a0:00.0`, with any number of digits in the domain, in upper or lower
/// case.
fn gpu_at(id: &str) -> Option<u32> {
    let (domain, rest) = id.split_once(':')?;
    let (bus, device) = rest.split_once(':')?;
    let bus = u32::from_str_radix(bus, 16).ok()?;
    if u32::from_str_radix(domain, 16).ok()? != 0 || !(device == "00.0" || device == "00") {
        return None;
    }
    bus.checked_sub(FIRST_BUS)
}

/// `nvmlInit_v2`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    if machine().is_none() {
        return Status::DriverNotLoaded as c_int;
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    Status::Success as c_int
}

/// `nvmlInit`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> c_int {
    nvmlInit_v2()
}

/// `nvmlShutdown`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    match USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1)) {
        Ok(_) => Status::Success as c_int,
        Err(_) => Status::Uninitialized as c_int,
    }
}

/// `nvmlErrorString`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(status: c_int) -> *const c_char {
    const TEXTS: [(Status, &CStr); 7] = [
        (Status::Success, c"success"),
        (Status::Uninitialized, c"NVML was not initialised"),
        (Status::InvalidArgument, c"invalid argument"),
        (Status::NotSupported, c"not supported by an emulated GPU"),
        (Status::NotFound, c"no such GPU"),
        (Status::InsufficientSize, c"the buffer is too small"),
        (Status::DriverNotLoaded, c"the environment describes no emulated GPUs"),
    ];
    let text = TEXTS.iter().find(|(other, _)| *other as c_int == status);
    text.map_or(c"unknown status", |(_, text)| text).as_ptr()
}

/// `nvmlSystemGetDriverVersion`
///
/// # Safety
///
/// `version` is null or has room for `length` characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    with_machine(|_| unsafe { store_text(version, length, DRIVER_VERSION) })
}

/// `nvmlSystemGetConfComputeState`: off.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetConfComputeState(state: Out<ConfComputeState>) -> c_int {
    with_machine(|_| store(state, ConfComputeState::default()))
}

/// `nvmlSystemGetConfComputeSettings`: off.
///
/// # Safety
///
/// `settings` is null or a structure that begins with its version, as NVML defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetConfComputeSettings(settings: *mut c_uint) -> c_int {
    // SAFETY: the caller's promise.
    with_machine(|_| unsafe { clear_versioned(settings) })
}

/// Sets a structure to zero except for its version, which is its first member and has its size in
/// the lower three bytes.
///
/// # Safety
///
/// `structure` is null or such a structure.
unsafe fn clear_versioned(structure: *mut c_uint) -> Status {
    if structure.is_null() {
        return Status::InvalidArgument;
    }
    // SAFETY: every such structure begins with its version.
    let size = unsafe { structure.read() } as usize & 0xff_ffff;
    let Some(rest) = size.checked_sub(size_of::<c_uint>()) else { return Status::InvalidArgument };
    // SAFETY: the version says that this many bytes follow.
    unsafe { structure.add(1).cast::<u8>().write_bytes(0, rest) };
    Status::Success
}

/// `nvmlDeviceGetCount_v2`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> c_int {
    with_machine(|machine| store(count, machine.gpus))
}

/// `nvmlDeviceGetCount`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount(count: Out<c_uint>) -> c_int {
    nvmlDeviceGetCount_v2(count)
}

/// `nvmlDeviceGetHandleByIndex`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, handle: Out<DeviceHandle>) -> c_int {
    with_machine(|machine| {
        if index >= machine.gpus {
            return Status::InvalidArgument;
        }
        store(handle, (index as usize + 1) as DeviceHandle)
    })
}

/// `nvmlDeviceGetHandleByPciBusId`
///
/// # Safety
///
/// `id` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId(id: *const c_char, handle: Out<DeviceHandle>) -> c_int {
    with_machine(|machine| {
        if id.is_null() {
            return Status::InvalidArgument;
        }
        // SAFETY: the caller's promise.
        let id = unsafe { CStr::from_ptr(id) };
        match id.to_str().ok().and_then(gpu_at) {
            Some(gpu) if gpu < machine.gpus => store(handle, (gpu as usize + 1) as DeviceHandle),
            _ => Status::NotFound,
        }
    })
}

/// `nvmlDeviceGetIndex`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(handle: DeviceHandle, index: Out<c_uint>) -> c_int {
    with_gpu(handle, |gpu| store(index, gpu))
}

/// `nvmlDeviceGetName`
///
/// # Safety
///
/// `name` is null or has room for `length` characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(handle: DeviceHandle, name: *mut c_char, length: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    with_gpu(handle, |_| unsafe { store_text(name, length, NAME) })
}

/// `nvmlDeviceGetCudaComputeCapability`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    handle: DeviceHandle,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> c_int {
    with_gpu(handle, |_| {
        let capability = machine().map_or(0, |machine| machine.compute_capability) as c_int;
        match store(major, capability / 10) {
            Status::Success => store(minor, capability % 10),
            refused => refused,
        }
    })
}

/// `nvmlDeviceGetPciInfo_v3`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(handle: DeviceHandle, info: Out<PciInfo>) -> c_int {
    with_gpu(handle, |gpu| {
        let value = PciInfo {
            bus_id_legacy: bus_id(gpu),
            domain: 0,
            bus: FIRST_BUS + gpu,
            device: 0,
            pci_device_id: DEVICE_ID,
            pci_subsystem_id: SUBSYSTEM_ID,
            bus_id: bus_id(gpu),
        };
        store(info, value)
    })
}

/// `nvmlDeviceGetPciInfoExt`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfoExt(handle: DeviceHandle, info: Option<&mut PciInfoExt>) -> c_int {
    with_gpu(handle, |gpu| {
        let Some(info) = info else { return Status::InvalidArgument };
        *info = PciInfoExt {
            version: info.version,
            domain: 0,
            bus: FIRST_BUS + gpu,
            device: 0,
            pci_device_id: DEVICE_ID,
            pci_subsystem_id: SUBSYSTEM_ID,
            base_class: 3,
            sub_class: 2,
            bus_id: bus_id(gpu),
        };
        Status::Success
    })
}

/// `nvmlDeviceGetPcieLinkMaxSpeed`: 16 GT/s.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPcieLinkMaxSpeed(handle: DeviceHandle, speed: Out<c_uint>) -> c_int {
    const GT_16: c_uint = 4;
    with_gpu(handle, |_| store(speed, GT_16))
}

/// `nvmlDeviceGetCurrPcieLinkGeneration`: 4.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(handle: DeviceHandle, generation: Out<c_uint>) -> c_int {
    with_gpu(handle, |_| store(generation, 4))
}

/// `nvmlDeviceGetCurrPcieLinkWidth`: 16 lanes.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(handle: DeviceHandle, width: Out<c_uint>) -> c_int {
    with_gpu(handle, |_| store(width, 16))
}

/// `nvmlDeviceGetP2PStatus`: no obstacles. CUDA decides whether there is peer access.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    handle: DeviceHandle,
    peer: DeviceHandle,
    _capability: c_int,
    status: Out<c_int>,
) -> c_int {
    with_gpu(handle, |_| {
        if with_gpu(peer, |_| store(status, 0)) == Status::Success as c_int {
            Status::Success
        } else {
            Status::InvalidArgument
        }
    })
}

/// `nvmlDeviceGetNvLinkState`: off.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(handle: DeviceHandle, _link: c_uint, active: Out<c_uint>) -> c_int {
    with_gpu(handle, |_| store(active, 0))
}

/// `nvmlDeviceGetNvLinkCapability`: none.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkCapability(
    handle: DeviceHandle,
    _link: c_uint,
    _capability: c_int,
    result: Out<c_uint>,
) -> c_int {
    with_gpu(handle, |_| store(result, 0))
}

/// `nvmlDeviceGetNvLinkRemotePciInfo`: there is nothing at the other end.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo(handle: DeviceHandle, _link: c_uint, _info: *mut PciInfo) -> c_int {
    with_gpu(handle, |_| Status::NotSupported)
}

/// `nvmlDeviceGetNvLinkRemoteDeviceType`: there is nothing at the other end.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    handle: DeviceHandle,
    _link: c_uint,
    _device: *mut c_int,
) -> c_int {
    with_gpu(handle, |_| Status::NotSupported)
}

/// `nvmlDeviceGetGpuFabricInfoV`: zeroes, which mean that the GPU is in no fabric.
///
/// # Safety
///
/// `info` is null or a structure that begins with its version, as NVML defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(handle: DeviceHandle, info: *mut c_uint) -> c_int {
    // SAFETY: the caller's promise.
    with_gpu(handle, |_| unsafe { clear_versioned(info) })
}

/// `nvmlDeviceGetPlatformInfo`: the GPU is in no chassis.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPlatformInfo(handle: DeviceHandle, _info: *mut c_void) -> c_int {
    with_gpu(handle, |_| Status::NotSupported)
}

/// `nvmlDeviceGetFieldValues`: no fields.
///
/// # Safety
///
/// `values` is null or has room for `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    handle: DeviceHandle,
    count: c_int,
    values: *mut FieldValue,
) -> c_int {
    with_gpu(handle, |_| {
        let Ok(count) = usize::try_from(count) else { return Status::InvalidArgument };
        if values.is_null() {
            return Status::InvalidArgument;
        }
        for index in 0..count {
            // SAFETY: the caller's promise.
            unsafe { (*values.add(index)).status = Status::NotSupported as c_int };
        }
        Status::Success
    })
}

/// `nvmlDeviceGetMemoryErrorCounter`: no errors.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    handle: DeviceHandle,
    _error: c_int,
    _counter: c_int,
    _location: c_int,
    count: Out<c_ulonglong>,
) -> c_int {
    with_gpu(handle, |_| store(count, 0))
}
