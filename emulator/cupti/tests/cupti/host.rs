//! The host program: a machine without a GPU that reports whatever a test wants.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use observe::{Activity, ActivityKind, Call, Gpu, Machine, Observer, Resource, ResourceKind};

/// The wall clock is ahead of true time by this much, in ns.
pub(crate) const WALL_AHEAD: u64 = 1_700_000_000_000_000_000;
/// The one context.
pub(crate) const CONTEXT: usize = 0xc0_0000;
/// Its id.
pub(crate) const CONTEXT_ID: u32 = 1;

static MACHINE: Machine = Machine {
    now: machine_now,
    wall,
    devices,
    current_context,
    correlation,
    current_device: zero,
    driver_version,
    describe,
    function,
};
static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(std::ptr::null_mut());
static ABSENT: AtomicBool = AtomicBool::new(false);
static CORRELATION: AtomicU32 = AtomicU32::new(100);
/// Objects that exist before anybody attaches.
static BEFORE: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// A resource to be reported; its handles are only numbers.
struct Told(Resource);
// SAFETY: nobody reads through its pointers.
unsafe impl Send for Told {}

extern "C" fn machine_now() -> u64 {
    now()
}
extern "C" fn wall(at: u64) -> u64 {
    at + WALL_AHEAD
}
extern "C" fn devices() -> u32 {
    2
}
extern "C" fn zero() -> u32 {
    0
}
extern "C" fn driver_version() -> u32 {
    13000
}
extern "C" fn function(_: *const c_char) -> *const c_void {
    std::ptr::null()
}
extern "C" fn current_context() -> *mut c_void {
    CONTEXT as *mut c_void
}
extern "C" fn correlation() -> u32 {
    CORRELATION.fetch_add(1, Ordering::Relaxed)
}
extern "C" fn describe(ordinal: u32, gpu: *mut Gpu) -> bool {
    let mut name = [0; 64];
    for (to, from) in name.iter_mut().zip(b"Emulated GPU") {
        *to = *from as c_char;
    }
    let uuid = [0x40 + ordinal as u8; 16];
    let pci = [0, 0xa0 + ordinal, 0];
    if ordinal < devices() {
        // SAFETY: the library passes a place for one description.
        unsafe {
            gpu.write(Gpu { name, uuid, pci, compute_capability: [8, 0], memory: 4 << 30, multiprocessors: 108 });
        };
    }
    ordinal < devices()
}

/// What the emulator's program exports.
#[unsafe(no_mangle)]
extern "C" fn ncclscope_emulator_attach(observer: *const Observer) -> *const Machine {
    if ABSENT.load(Ordering::Relaxed) {
        return std::ptr::null();
    }
    OBSERVER.store(observer.cast_mut(), Ordering::Release);
    for told in BEFORE.lock().expect("no test panics there").iter() {
        tell(&told.0);
    }
    &raw const MACHINE
}

/// Removes the machine.
pub(crate) fn leave() {
    ABSENT.store(true, Ordering::Relaxed);
}

/// Adds an object that exists before anybody attaches.
pub(crate) fn exists(resource: Resource) {
    BEFORE.lock().expect("no test panics there").push(Told(resource));
}

fn observer() -> Option<&'static Observer> {
    // SAFETY: null or the library's static.
    unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }
}

/// The true time.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write to, and a clock that exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reports a resource.
pub(crate) fn tell(resource: &Resource) {
    if let Some(observer) = observer() {
        // SAFETY: the library's function, and a resource that lives for the call.
        unsafe { (observer.resource)(resource) };
    }
}

/// A resource of the one context, otherwise empty.
pub(crate) fn resource(kind: ResourceKind) -> Resource {
    Resource::new(kind, 0, CONTEXT as *mut c_void, CONTEXT_ID)
}

/// A stream that is created or destroyed.
pub(crate) fn stream(kind: ResourceKind, handle: usize, id: u32) -> Resource {
    Resource { stream: handle as *mut c_void, stream_id: id, ..resource(kind) }
}

/// Makes a call into CUDA, in which `body` runs with the call's correlation id.
pub(crate) fn call<T>(function: &CStr, symbol: Option<&CStr>, body: impl FnOnce(u32) -> T) -> T {
    call_as(correlation(), function, symbol, body)
}

/// Makes a call with this correlation id.
pub(crate) fn call_as<T>(correlation: u32, function: &CStr, symbol: Option<&CStr>, body: impl FnOnce(u32) -> T) -> T {
    let site = |exits, result| {
        let call = Call {
            function: function.as_ptr(),
            exits,
            correlation,
            context: CONTEXT as *mut c_void,
            context_id: CONTEXT_ID,
            symbol: symbol.map_or(std::ptr::null(), CStr::as_ptr),
            parameters: 0x7000 as *const c_void,
            result,
            at: now(),
        };
        if let Some(observer) = observer() {
            // SAFETY: the library's function, and a `Call` that lives for the call.
            unsafe { (observer.call)(&raw const call) };
        }
    };
    site(0, 0);
    let value = body(correlation);
    site(1, 0);
    value
}

/// Work of the GPU on a stream, otherwise empty.
pub(crate) fn activity(kind: ActivityKind, stream_id: u32) -> Activity {
    Activity::new(kind, 0, CONTEXT_ID, stream_id)
}

/// The name of every kernel.
pub(crate) const KERNEL: &CStr = c"_Z21ncclDevKernel_Genericv";

/// A kernel on a stream.
pub(crate) fn kernel(stream_id: u32) -> Activity {
    let kernel = activity(ActivityKind::Kernel, stream_id);
    Activity { name: KERNEL.as_ptr(), grid: [8, 1, 1], block: [512, 1, 1], shared_memory: 1024, ..kernel }
}

/// Reports that the GPU was given work.
pub(crate) fn queue(activity: &Activity) {
    if let Some(observer) = observer() {
        // SAFETY: the library's function, and an activity that lives for the call.
        unsafe { (observer.queued)(activity) };
    }
}

/// Launches a kernel; returns it with its correlation id.
pub(crate) fn launch(kernel: Activity) -> Activity {
    call(c"cuLaunchKernelEx", Some(KERNEL), |correlation| {
        let kernel = Activity { correlation, ..kernel };
        queue(&kernel);
        kernel
    })
}

/// Reports on a thread of the machine that the GPU has done work, from `start` for `duration` ns.
/// The memory of its name is freed afterwards.
pub(crate) fn finish(activity: Activity, start: u64, duration: u64) {
    // SAFETY: null or a C string that the test has.
    let name = (!activity.name.is_null()).then(|| unsafe { CStr::from_ptr(activity.name) }.to_owned());
    let numbers = Activity { name: std::ptr::null(), ..activity };
    let numbers = Sendable(numbers);
    let machine = std::thread::Builder::new().name("emulated gpu".to_owned()).spawn(move || {
        let Sendable(numbers) = { numbers };
        let name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let done = Activity { name, start, end: start + duration, ..numbers };
        if let Some(observer) = observer() {
            // SAFETY: the library's function, and an activity that lives for the call.
            unsafe { (observer.activity)(&raw const done) };
        }
    });
    machine.expect("a thread can be started").join().expect("the machine does not panic");
}

/// Like [`finish`], on this thread.
pub(crate) fn finish_here(activity: Activity, start: u64, duration: u64) {
    let done = Activity { start, end: start + duration, ..activity };
    if let Some(observer) = observer() {
        // SAFETY: the library's function, and an activity that lives for the call.
        unsafe { (observer.activity)(&raw const done) };
    }
}

/// Runs this many kernels, one after the other.
pub(crate) fn run(kernels: usize) {
    for _ in 0..kernels {
        finish_here(launch(kernel(13)), now(), 1_000);
    }
}

struct Sendable(Activity);
// SAFETY: its pointer is null.
unsafe impl Send for Sendable {}
