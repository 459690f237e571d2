//! The driver library as a profiler uses it: opened by its name, queried through `dlsym`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use observe::{Gpu, Machine, Observer};

/// Whether there is a machine. Without one the library is a driver on a machine that has no GPU.
static PRESENT: AtomicBool = AtomicBool::new(false);
static CONTEXT: AtomicUsize = AtomicUsize::new(0);

static MACHINE: Machine = Machine {
    now: never,
    wall,
    devices: two,
    current_context: context,
    correlation: one,
    current_device: one,
    driver_version: version,
    describe,
    function,
};

extern "C" fn never() -> u64 {
    0
}
extern "C" fn wall(at: u64) -> u64 {
    at
}
extern "C" fn one() -> u32 {
    1
}
extern "C" fn two() -> u32 {
    2
}
extern "C" fn version() -> u32 {
    12040
}
extern "C" fn context() -> *mut c_void {
    CONTEXT.load(Ordering::Relaxed) as *mut c_void
}
/// A machine that has one function.
extern "C" fn function(name: *const c_char) -> *const c_void {
    extern "C" fn synchronize() -> u32 {
        719
    }
    // SAFETY: the library passes a C string.
    match unsafe { CStr::from_ptr(name) } == c"cuCtxSynchronize" {
        true => synchronize as *const c_void,
        false => std::ptr::null(),
    }
}

extern "C" fn describe(ordinal: u32, gpu: *mut Gpu) -> bool {
    if ordinal >= 2 {
        return false;
    }
    let mut name = [0; 64];
    for (to, from) in name.iter_mut().zip(b"Emulated GPU") {
        *to = *from as c_char;
    }
    let uuid = [0x40 + ordinal as u8; 16];
    let pci = [0, 0xa0 + ordinal, 0];
    // SAFETY: the library passes a place for one description.
    unsafe { gpu.write(Gpu { name, uuid, pci, compute_capability: [8, 0], memory: 4 << 30, multiprocessors: 108 }) };
    true
}

/// What the emulator's program exports.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_emulator_attach(observer: *const Observer) -> *const Machine {
    assert!(observer.is_null(), "the driver does not observe");
    if PRESENT.load(Ordering::Relaxed) { &raw const MACHINE } else { std::ptr::null() }
}

/// The built library, found under the driver's name once it is open.
fn library() -> *mut c_void {
    let tests = std::env::current_exe().expect("a program has a path");
    let path: PathBuf = tests.with_file_name("libemulated_libcuda.so");
    let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("a path has no zero");
    // SAFETY: a C string, and no code of the library runs when it is opened.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!opened.is_null(), "{path:?} does not open");
    // SAFETY: as above; this finds only libraries that are open already.
    let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert_eq!(found, opened, "the open library is found by the driver's name");
    opened
}

macro_rules! call {
    ($library:expr, $name:literal ($($type:ty = $value:expr),*)) => {{
        // SAFETY: an open library and a C string.
        let address = unsafe { libc::dlsym($library, $name.as_ptr()) };
        assert!(!address.is_null(), "{:?} is missing", $name);
        // SAFETY: CUDA's headers give the function these parameters, and the values match them.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> u32>(address)($($value),*) }
    }};
}

/// One test, because the machine appears and disappears for the whole process.
#[test]
fn a_driver_describes_the_machine_of_its_host_program() {
    let library = library();
    let mut number: c_int = -1;
    assert_eq!(call!(library, c"cuInit"(u32 = 0)), 100, "without a machine there is no device");
    assert_eq!(call!(library, c"cuDeviceGetCount"(*mut c_int = &raw mut number)), 100);
    assert_eq!(call!(library, c"cuDriverGetVersion"(*mut c_int = &raw mut number)), 0);
    assert_eq!(number, 13000);

    PRESENT.store(true, Ordering::Relaxed);
    assert_eq!(call!(library, c"cuInit"(u32 = 1)), 1, "no flag is defined");
    let (injected, folder) = injected();
    assert_eq!(call!(library, c"cuInit"(u32 = 0)), 0);
    assert_eq!(call!(library, c"cuInit"(u32 = 0)), 0);
    assert_eq!(call!(injected, c"calls"()), 1, "it is called at the first call that succeeds, and not again");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert_eq!(call!(library, c"cuDriverGetVersion"(*mut c_int = &raw mut number)), 0);
    assert_eq!(number, 12040);
    assert_eq!(call!(library, c"cuDeviceGetCount"(*mut c_int = &raw mut number)), 0);
    assert_eq!(number, 2);
    assert_eq!(call!(library, c"cuDeviceGet"(*mut c_int = &raw mut number, c_int = 1)), 0);
    assert_eq!(number, 1);
    assert_eq!(call!(library, c"cuDeviceGet"(*mut c_int = &raw mut number, c_int = 2)), 101);

    let mut text = [0x7f as c_char; 64];
    assert_eq!(call!(library, c"cuDeviceGetName"(*mut c_char = text.as_mut_ptr(), c_int = 64, c_int = 0)), 0);
    assert_eq!(string(&text), c"Emulated GPU");
    assert_eq!(call!(library, c"cuDeviceGetName"(*mut c_char = text.as_mut_ptr(), c_int = 5, c_int = 0)), 0);
    assert_eq!(string(&text), c"Emul", "a name that does not fit is cut");
    assert_eq!(call!(library, c"cuDeviceGetPCIBusId"(*mut c_char = text.as_mut_ptr(), c_int = 64, c_int = 1)), 0);
    assert_eq!(string(&text), c"0000:a1:00.0");
    let mut uuid = [0u8; 16];
    assert_eq!(call!(library, c"cuDeviceGetUuid_v2"(*mut [u8; 16] = &raw mut uuid, c_int = 1)), 0);
    assert_eq!(uuid, [0x41; 16]);
    for (attribute, expected) in [(75, 8), (76, 0), (33, 0xa1), (16, 108), (150, 0)] {
        let out = &raw mut number;
        assert_eq!(call!(library, c"cuDeviceGetAttribute"(*mut c_int = out, c_int = attribute, c_int = 1)), 0);
        assert_eq!(number, expected, "attribute {attribute}");
    }
    assert_eq!(call!(library, c"cuDeviceGetAttribute"(*mut c_int = &raw mut number, c_int = 9999, c_int = 1)), 1);

    assert_eq!(call!(library, c"cuCtxSynchronize"()), 719, "the machine's own function is called");
    assert_eq!(call!(library, c"cuMemFree_v2"(u64 = 0)), 801, "it has none of this name");
    assert_eq!(call!(library, c"cuCtxGetDevice"(*mut c_int = &raw mut number)), 201, "no context is current yet");
    CONTEXT.store(0x1000, Ordering::Relaxed);
    assert_eq!(call!(library, c"cuCtxGetDevice"(*mut c_int = &raw mut number)), 0);
    assert_eq!(number, 1);
    let mut current: *mut c_void = std::ptr::null_mut();
    assert_eq!(call!(library, c"cuCtxGetCurrent"(*mut *mut c_void = &raw mut current)), 0);
    assert_eq!(current as usize, 0x1000);

    let mut name: *const c_char = std::ptr::null();
    assert_eq!(call!(library, c"cuGetErrorName"(u32 = 201, *mut *const c_char = &raw mut name)), 0);
    // SAFETY: the library's constant.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_INVALID_CONTEXT");
    assert_eq!(call!(library, c"cuGetErrorName"(u32 = 12345, *mut *const c_char = &raw mut name)), 1);
    assert!(name.is_null());

    let mut function: *const c_void = std::ptr::null();
    let mut status: c_int = -1;
    let found = call!(library, c"cuGetProcAddress_v2"(
        *const c_char = c"cuDeviceGetUuid".as_ptr(), *mut *const c_void = &raw mut function,
        c_int = 12000, u64 = 0, *mut c_int = &raw mut status
    ));
    assert_eq!((found, status, function.is_null()), (0, 0, false));
    let found = call!(library, c"cuGetProcAddress_v2"(
        *const c_char = c"cuNoSuchThing".as_ptr(), *mut *const c_void = &raw mut function,
        c_int = 12000, u64 = 0, *mut c_int = &raw mut status
    ));
    assert_eq!((found, status, function.is_null()), (0, 1, true));
}

/// A library named by `CUDA_INJECTION64_PATH`, which counts the calls of its entry point, and the
/// folder it is in.
fn injected() -> (*mut c_void, PathBuf) {
    let folder = std::env::temp_dir().join(format!("emulated-libcuda-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a temporary folder can be made");
    let (source, path) = (folder.join("injected.c"), folder.join("injected.so"));
    let text = "static int n; int InitializeInjection(void) { n++; return 1; } int calls(void) { return n; }";
    std::fs::write(&source, text).expect("it is ours");
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&source).status();
    assert!(compiled.expect("a C compiler is installed").success());
    // SAFETY: this program has one test, and nothing else reads its environment now.
    unsafe { std::env::set_var("CUDA_INJECTION64_PATH", &path) };
    let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("a path has no zero");
    // SAFETY: a C string, and no code of the library runs when it is opened.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    (library, folder)
}

/// The C string at the beginning of a buffer.
fn string(buffer: &[c_char]) -> &CStr {
    // SAFETY: the library ended it with a zero, and the test's own fill has none.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
}
