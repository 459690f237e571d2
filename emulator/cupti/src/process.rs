//! State of the whole process: the options, the host program's machine, and where calls are
//! allowed from.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use observe::{Machine, Observer};

use crate::options::{self, Options};
use crate::{calls, objects, result, subscriber, tracer};

/// The options in `EMULATED_CUPTI`. A wrong word ends the process: a test that misspells one would
/// test nothing.
pub(crate) fn options() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let text = std::env::var(options::VARIABLE).unwrap_or_default();
        Options::parse(&text).unwrap_or_else(|error| {
            eprintln!("emulated CUPTI: {error}");
            std::process::abort();
        })
    })
}

/// Hours that tests have skipped.
static HOURS: AtomicU64 = AtomicU64::new(0);

/// The time since the first call into the library, in ns.
pub(crate) fn elapsed() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    const HOUR: u64 = 3_600_000_000_000;
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64 + HOURS.load(Ordering::SeqCst) * HOUR
}

/// Skips an hour for everything that [`crate::options`] schedules, and returns when what was due
/// has happened. This is not a CUPTI function: it makes tests independent of the machine's speed.
#[unsafe(no_mangle)]
extern "C" fn emulated_cupti_hour() -> i32 {
    HOURS.fetch_add(1, Ordering::SeqCst);
    tracer::wait_for_round();
    0
}

static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Whether functions that hung return now.
pub(crate) fn answers() -> bool {
    ANSWERS.load(Ordering::SeqCst)
}

/// Has functions that hung return, and waits until somebody has left CUPTI after that and nobody
/// has it: whoever was kept waiting may come too late. Not a CUPTI function.
#[unsafe(no_mangle)]
extern "C" fn emulated_cupti_answers() -> i32 {
    let before = subscriber::left();
    ANSWERS.store(true, Ordering::SeqCst);
    while subscriber::left() == before || subscriber::current().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    0
}

/// Returns true in this share of all cases.
pub(crate) fn happens(share: f64) -> bool {
    share > 0.0 && (random() >> 11) as f64 / (1u64 << 53) as f64 <= share
}

/// A random number: splitmix64 from the seed.
pub(crate) fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = STATE.fetch_add(STEP, Ordering::Relaxed).wrapping_add(options().seed.wrapping_mul(STEP));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

static OBSERVER: Observer =
    Observer { call: observe_call, resource: observe_resource, queued: observe_queued, activity: observe_activity };

static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(std::ptr::null_mut());

/// The host program's machine. The first use attaches to it, and existing objects are reported
/// during that.
///
/// # Errors
///
/// What a function of this release that needs the driver returns if there is none.
pub(crate) fn machine() -> Result<&'static Machine, u32> {
    if let Some(machine) = attached() {
        return Ok(machine);
    }
    // SAFETY: the name is a C string, and the default handle searches what the process has loaded.
    let attach = unsafe { libc::dlsym(libc::RTLD_DEFAULT, observe::ATTACH.as_ptr()) };
    let missing = options().release.without_driver();
    if attach.is_null() {
        return Err(missing);
    }
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = lock(&ONE);
    if let Some(machine) = attached() {
        return Ok(machine);
    }
    // SAFETY: the host program exports this symbol with this type; the observer is a static.
    let machine = unsafe { std::mem::transmute::<*mut c_void, observe::Attach>(attach)(&raw const OBSERVER) };
    if machine.is_null() {
        return Err(missing);
    }
    MACHINE.store(machine.cast_mut(), Ordering::Release);
    // SAFETY: the handler is a function of this library, which is never unloaded once it is
    // attached.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
    attached().ok_or(missing)
}

/// The machine, if the library is attached to one.
pub(crate) fn attached() -> Option<&'static Machine> {
    // SAFETY: null or the host program's table, which lives as long as the process.
    unsafe { MACHINE.load(Ordering::Acquire).as_ref() }
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Runs in a forked child, where CUPTI's threads do not exist.
unsafe extern "C" fn child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is a fork of the one that uses CUPTI. The real library hangs there when it
/// is flushed.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Locks a mutex; a panic on another thread leaves no half-changed state that would matter.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Which of the caller's functions this thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// None.
    Nothing,
    /// The callback of a driver or runtime call.
    ApiCallback,
    /// The callback of another domain.
    OtherCallback,
    /// Requesting or completing a buffer.
    BufferCallback,
}

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside::Nothing) };
}

/// Which of the caller's functions this thread is in.
pub(crate) fn inside() -> Inside {
    INSIDE.get()
}

/// Calls one of the caller's functions.
pub(crate) fn call_out<T>(place: Inside, function: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(place);
    let value = function();
    INSIDE.set(before);
    value
}

/// Ends the process after a use that the real CUPTI would crash or hang on.
pub(crate) fn misuse(what: &str) -> ! {
    eprintln!("emulated CUPTI: {what}");
    std::process::abort();
}

/// The error that this function returns next if it is to return each of them once; `None` after the
/// last.
pub(crate) fn next_error(function: &str) -> Option<u32> {
    static GIVEN: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut given = lock(&GIVEN);
    let given = given.entry(function.to_owned()).or_default();
    *given += 1;
    match *given {
        code if code < result::NAMED => Some(code),
        result::NAMED => Some(result::UNKNOWN),
        _ => None,
    }
}

static REFUSED: AtomicI32 = AtomicI32::new(0);

/// A call is refused because of `refuse`.
pub(crate) fn refused() {
    REFUSED.fetch_add(1, Ordering::SeqCst);
}

/// How many calls were refused because of `refuse`. Not a CUPTI function.
#[unsafe(no_mangle)]
extern "C" fn emulated_cupti_refused() -> i32 {
    REFUSED.load(Ordering::SeqCst)
}

/// Whether to ignore a report of the machine; complains about CUDA calls where there must be none.
fn is_deaf() -> bool {
    if inside() == Inside::BufferCallback {
        misuse("a buffer callback called CUDA, which the real one deadlocks on");
    }
    is_forked()
}

unsafe extern "C" fn observe_call(call: *const observe::Call) {
    if !is_deaf() {
        // SAFETY: the machine passes a valid call for the length of this function.
        calls::on_call(unsafe { &*call });
    }
}

unsafe extern "C" fn observe_resource(resource: *const observe::Resource) {
    if !is_deaf() {
        // SAFETY: as above.
        objects::on_resource(unsafe { &*resource });
    }
}

unsafe extern "C" fn observe_queued(activity: *const observe::Activity) {
    if !is_deaf() {
        // SAFETY: as above.
        tracer::on_queued(unsafe { &*activity });
    }
}

unsafe extern "C" fn observe_activity(activity: *const observe::Activity) {
    if !is_forked() {
        // SAFETY: as above.
        tracer::on_activity(unsafe { &*activity });
    }
}
