//! The built library, loaded as NCCL loads it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::process::{Command, Output};

use emulated_nvml::{ConfComputeState, DeviceHandle, FieldValue, PciInfo, PciInfoExt};

const SUCCESS: c_int = 0;
const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;

/// Set in a process that must run the body of a test.
const INNER: &str = "NVML_TEST_INNER";

/// Runs the test of this name in a process of its own, with this many GPUs. Returns `None` in that
/// process.
fn elsewhere(test: &str, gpus: Option<&str>) -> Option<Output> {
    if std::env::var_os(INNER).is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(INNER, "1").env_remove(emulated_nvml::GPUS);
    if let Some(gpus) = gpus {
        command.env(emulated_nvml::GPUS, gpus);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

struct Nvml {
    handle: *mut c_void,
}

impl Nvml {
    fn load() -> Nvml {
        // Cargo puts it beside this program.
        let path: PathBuf = std::env::current_exe().unwrap().with_file_name("libemulated_nvml.so");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string, and the library has no initialisers.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Nvml { handle }
    }

    fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is missing");
        address
    }
}

/// Calls a function of the library with the given types of arguments.
macro_rules! call {
    ($nvml:expr, $name:literal, $($argument:expr => $type:ty),*) => {{
        // SAFETY: the function of this name takes these types, as NVML documents them, and all
        // pointers are to values of the test.
        unsafe {
            let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(
                $nvml.address($name),
            );
            function($($argument),*)
        }
    }};
}

fn handle(nvml: &Nvml, index: c_uint) -> DeviceHandle {
    let mut handle = std::ptr::null_mut();
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetHandleByIndex", index => c_uint, &raw mut handle => *mut DeviceHandle),
        SUCCESS
    );
    handle
}

fn at(nvml: &Nvml, bus_id: &CStr) -> Result<c_uint, c_int> {
    let mut handle = std::ptr::null_mut();
    let (id, place) = (bus_id.as_ptr(), &raw mut handle);
    let status = call!(nvml, c"nvmlDeviceGetHandleByPciBusId", id => *const c_char, place => *mut DeviceHandle);
    if status != SUCCESS {
        return Err(status);
    }
    let mut index = 0;
    assert_eq!(call!(nvml, c"nvmlDeviceGetIndex", handle => DeviceHandle, &raw mut index => *mut c_uint), SUCCESS);
    Ok(index)
}

#[test]
fn nccl_finds_it_by_its_name() {
    let nvml = Nvml::load();
    // SAFETY: the name is a C string, and no new library is loaded.
    let found = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert_eq!(found, nvml.handle);
}

#[test]
fn every_function_that_nccl_looks_up_exists() {
    // From the strings of libnccl 2.23 to 2.32.
    let names = [
        c"nvmlDeviceGetCount",
        c"nvmlDeviceGetCount_v2",
        c"nvmlDeviceGetCudaComputeCapability",
        c"nvmlDeviceGetCurrPcieLinkGeneration",
        c"nvmlDeviceGetCurrPcieLinkWidth",
        c"nvmlDeviceGetFieldValues",
        c"nvmlDeviceGetGpuFabricInfoV",
        c"nvmlDeviceGetHandleByIndex",
        c"nvmlDeviceGetHandleByPciBusId",
        c"nvmlDeviceGetIndex",
        c"nvmlDeviceGetMemoryErrorCounter",
        c"nvmlDeviceGetName",
        c"nvmlDeviceGetNvLinkCapability",
        c"nvmlDeviceGetNvLinkRemoteDeviceType",
        c"nvmlDeviceGetNvLinkRemotePciInfo",
        c"nvmlDeviceGetNvLinkState",
        c"nvmlDeviceGetP2PStatus",
        c"nvmlDeviceGetPciInfoExt",
        c"nvmlDeviceGetPciInfo_v3",
        c"nvmlDeviceGetPcieLinkMaxSpeed",
        c"nvmlDeviceGetPlatformInfo",
        c"nvmlErrorString",
        c"nvmlInit",
        c"nvmlInit_v2",
        c"nvmlShutdown",
        c"nvmlSystemGetConfComputeSettings",
        c"nvmlSystemGetConfComputeState",
        c"nvmlSystemGetDriverVersion",
    ];
    let nvml = Nvml::load();
    for name in names {
        nvml.address(name);
    }
}

#[test]
fn the_environment_says_how_many_gpus_there_are() {
    if elsewhere("the_environment_says_how_many_gpus_there_are", Some("16")).is_some() {
        return;
    }
    let nvml = Nvml::load();
    let mut count = 0;
    assert_eq!(call!(nvml, c"nvmlDeviceGetCount_v2", &raw mut count => *mut c_uint), UNINITIALIZED);
    assert_eq!(call!(nvml, c"nvmlInit_v2",), SUCCESS);
    assert_eq!(call!(nvml, c"nvmlDeviceGetCount_v2", &raw mut count => *mut c_uint), SUCCESS);
    assert_eq!(count, 16);

    for index in 0..16 {
        let gpu = handle(&nvml, index);
        let mut info = PciInfo::default();
        assert_eq!(
            call!(nvml, c"nvmlDeviceGetPciInfo_v3", gpu => DeviceHandle, &raw mut info => *mut PciInfo),
            SUCCESS
        );
        let id = CStr::from_bytes_until_nul(&info.bus_id).unwrap();
        assert_eq!(id.to_str().unwrap(), format!("0000:a{index:x}:00.0"));
        assert_eq!(info.bus, 0xa0 + index);
        assert_eq!(at(&nvml, id), Ok(index));

        let mut extended = PciInfoExt { version: 7, ..Default::default() };
        assert_eq!(
            call!(nvml, c"nvmlDeviceGetPciInfoExt", gpu => DeviceHandle, &raw mut extended => *mut PciInfoExt),
            SUCCESS
        );
        assert_eq!((extended.version, extended.bus, extended.bus_id), (7, info.bus, info.bus_id));
        assert_eq!((extended.base_class, extended.sub_class), (3, 2));
        assert_eq!((extended.pci_device_id, extended.pci_subsystem_id), (info.pci_device_id, info.pci_subsystem_id));

        let mut capability = [0; 2];
        let [major, minor] = capability.each_mut().map(std::ptr::from_mut);
        assert_eq!(
            call!(nvml, c"nvmlDeviceGetCudaComputeCapability", gpu => DeviceHandle, major => *mut c_int, minor => *mut c_int),
            SUCCESS
        );
        assert_eq!(capability, [8, 0]);
    }
    // Longer domains and upper case name the same bus; others do not exist.
    assert_eq!(at(&nvml, c"00000000:AF:00.0"), Ok(15));
    for nowhere in [c"0000:b0:00.0", c"0000:9f:00.0", c"0001:a0:00.0", c"0000:a0:01.0", c"a0", c""] {
        assert_eq!(at(&nvml, nowhere), Err(NOT_FOUND), "{nowhere:?}");
    }
    assert_eq!(call!(nvml, c"nvmlShutdown",), SUCCESS);
    assert_eq!(call!(nvml, c"nvmlShutdown",), UNINITIALIZED);
}

#[test]
fn missing_features_are_reported_quietly() {
    if elsewhere("missing_features_are_reported_quietly", Some("2")).is_some() {
        return;
    }
    let nvml = Nvml::load();
    assert_eq!(call!(nvml, c"nvmlInit",), SUCCESS);
    let gpu = handle(&nvml, 1);

    // A structure of 36 bytes, as NVML numbers its versions; the bytes after it belong to the
    // caller.
    let mut fabric = [0xffff_ffff_u32; 10];
    fabric[0] = 36 | 2 << 24;
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetGpuFabricInfoV", gpu => DeviceHandle, fabric.as_mut_ptr() => *mut c_uint),
        SUCCESS
    );
    assert_eq!(fabric, [36 | 2 << 24, 0, 0, 0, 0, 0, 0, 0, 0, 0xffff_ffff]);
    fabric[0] = 3;
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetGpuFabricInfoV", gpu => DeviceHandle, fabric.as_mut_ptr() => *mut c_uint),
        INVALID_ARGUMENT
    );

    let mut state = ConfComputeState { environment: 1, feature: 1, tools_mode: 1 };
    assert_eq!(call!(nvml, c"nvmlSystemGetConfComputeState", &raw mut state => *mut ConfComputeState), SUCCESS);
    assert_eq!(state, ConfComputeState::default());

    let mut values = [FieldValue::default(); 3];
    let pointer = values.as_mut_ptr();
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetFieldValues", gpu => DeviceHandle, 2 => c_int, pointer => *mut FieldValue),
        SUCCESS
    );
    assert_eq!(values.map(|value| value.status), [NOT_SUPPORTED, NOT_SUPPORTED, 0]);

    let mut link = 1;
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetNvLinkState", gpu => DeviceHandle, 0 => c_uint, &raw mut link => *mut c_uint),
        SUCCESS
    );
    assert_eq!(link, 0);
    let mut name = [0; 8];
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetName", gpu => DeviceHandle, name.as_mut_ptr() => *mut c_char, 8 => c_uint),
        INSUFFICIENT_SIZE
    );
}

#[test]
fn wrong_arguments_are_refused() {
    if elsewhere("wrong_arguments_are_refused", Some("2")).is_some() {
        return;
    }
    let nvml = Nvml::load();
    assert_eq!(call!(nvml, c"nvmlInit_v2",), SUCCESS);
    let mut handle = std::ptr::null_mut();
    assert_eq!(
        call!(nvml, c"nvmlDeviceGetHandleByIndex", 2 => c_uint, &raw mut handle => *mut DeviceHandle),
        INVALID_ARGUMENT
    );
    let mut index = 0;
    for wrong in [0, 3, usize::MAX] {
        assert_eq!(
            call!(nvml, c"nvmlDeviceGetIndex", wrong as DeviceHandle => DeviceHandle, &raw mut index => *mut c_uint),
            INVALID_ARGUMENT
        );
    }
    let nowhere = std::ptr::null_mut();
    assert_eq!(call!(nvml, c"nvmlDeviceGetCount_v2", nowhere => *mut c_uint), INVALID_ARGUMENT);
}

#[test]
fn without_gpus_it_says_why() {
    for (gpus, text) in [
        (None, "EMULATED_GPUS is not set"),
        (Some("0"), "EMULATED_GPUS is 0"),
        (Some("17"), "EMULATED_GPUS is 17"),
        (Some("two"), "EMULATED_GPUS is \"two\""),
    ] {
        let Some(output) = elsewhere("without_gpus_it_says_why", gpus) else {
            let nvml = Nvml::load();
            assert_eq!(call!(nvml, c"nvmlInit_v2",), DRIVER_NOT_LOADED);
            assert_eq!(call!(nvml, c"nvmlInit_v2",), DRIVER_NOT_LOADED);
            return;
        };
        let stderr = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("emulated NVML")).collect();
        assert_eq!(lines.len(), 1, "{stderr}");
        assert!(lines[0].contains(text), "{stderr}");
    }
}

#[test]
fn structures_have_their_sizes_in_nccl() {
    assert_eq!(size_of::<PciInfo>(), 68);
    assert_eq!(size_of::<PciInfoExt>(), 64);
    assert_eq!(size_of::<FieldValue>(), 40);
    assert_eq!(size_of::<ConfComputeState>(), 12);
}
