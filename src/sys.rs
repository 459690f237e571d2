//! The operating system: safe wrappers for the few calls that the standard library lacks.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use descriptor::Descriptor;

pub mod descriptor;
pub mod folder;
#[cfg(feature = "cli")]
pub mod job;
#[cfg(feature = "cli")]
pub mod libraries;
pub mod output;
pub mod socket;
pub mod stderr;
pub mod thread;

/// `CLOCK_BOOTTIME` in nanoseconds. Calls libc's symbol, never the vDSO directly: a test host may
/// replace it.
#[must_use]
pub fn boottime_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

/// The processor time of this thread, in nanoseconds.
#[must_use]
pub fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; these clocks exist on every Linux that can load us.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether the process may execute RDTSC (`prctl(PR_SET_TSC)` can forbid it).
#[must_use]
pub fn may_read_tsc() -> bool {
    let mut mode: c_int = 0;
    // SAFETY: PR_GET_TSC writes one int.
    let status = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode) };
    status == 0 && mode == libc::PR_TSC_ENABLE
}

/// The calling thread's id in the kernel.
#[must_use]
pub fn thread_id() -> i32 {
    // By number: libc has a function for it only since glibc 2.30.
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// The calling thread's name: at most 15 bytes, then NULs.
#[must_use]
pub fn thread_name() -> [u8; 16] {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, the last a NUL.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

unsafe extern "C" {
    /// libc's environment: pointers to `NAME=value`, ended by a null.
    static environ: AtomicPtr<*mut c_char>;
}

/// Adds a variable to this process's environment. The memory for it is never freed.
///
/// When `setenv` outgrows its array it frees it, in glibc up to 2.40 even while another thread is
/// reading it. This function leaves the old array in place.
pub fn add_variable(name: &str, value: &str) {
    let Ok(variable) = CString::new(format!("{name}={value}")) else { return };
    // SAFETY: libc's own variable, which is never unmapped; other code writes it as a whole word.
    let environment = unsafe { &environ };
    let before = environment.load(Ordering::Acquire);
    let mut variables = Vec::new();
    for index in 0.. {
        // SAFETY: null, or an array of pointers ended by a null; nobody frees it meanwhile, as with
        // any read of a variable.
        let variable = if before.is_null() { ptr::null_mut() } else { unsafe { *before.add(index) } };
        if variable.is_null() {
            break;
        }
        variables.push(variable);
    }
    variables.push(variable.into_raw());
    variables.push(ptr::null_mut());
    environment.store(variables.leak().as_mut_ptr(), Ordering::Release);
}

/// The name of a thread of this process; `None` if there is no thread with this id.
#[must_use]
pub fn name_of_thread(tid: i32) -> Option<String> {
    let name = read_file(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// Reads a whole file, such as those in /proc, by a descriptor out of the program's way.
///
/// # Errors
///
/// The operating system's error.
pub fn read_file(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    Descriptor::open(None, path, libc::O_RDONLY)?.read()
}

/// The names of the environment variables that this process was started with, from the kernel:
/// walking through libc's environment would race with another thread's `setenv`.
#[must_use]
pub fn variable_names() -> Vec<String> {
    let environment = read_file("/proc/self/environ").unwrap_or_default();
    let name = |entry: &[u8]| entry.split(|&byte| byte == b'=').next().map(|it| String::from_utf8_lossy(it).into());
    environment.split(|&byte| byte == 0).filter_map(name).collect()
}

/// The variables of this process's environment, as libc has them now; of long ones the beginning.
///
/// Another thread's `setenv` may free them meanwhile, so they are read through the kernel, which
/// refuses what is not there. Where it does not serve that, they are those that the process was
/// started with.
#[must_use]
pub fn variables() -> Vec<(OsString, OsString)> {
    let Ok(memory) = Descriptor::open(None, "/proc/self/mem", libc::O_RDONLY) else {
        let names = variable_names().into_iter().map(OsString::from);
        return names.filter_map(|name| std::env::var_os(&name).map(|value| (name, value))).collect();
    };
    // SAFETY: libc's own variable, which is never unmapped; other code writes it as a whole word.
    let environment = unsafe { &environ };
    variables_at(&memory, environment.load(Ordering::Acquire).addr())
}

/// The variables of the array at this address, without those that cannot be read.
fn variables_at(memory: &Descriptor, array: usize) -> Vec<(OsString, OsString)> {
    /// Most variables that are looked at, and most bytes of each.
    const MOST: usize = 1 << 16;
    const LENGTH: usize = 1024;
    let pointer = |index: usize| {
        let mut pointer = [0; size_of::<usize>()];
        let length = memory.read_at(&mut pointer, array.checked_add(index * size_of::<usize>())?).ok()?;
        Some(usize::from_ne_bytes(pointer)).filter(|&it| length == size_of::<usize>() && it != 0)
    };
    let variable = |address| {
        let mut text = [0; LENGTH];
        let length = memory.read_at(&mut text, address).ok()?;
        let text = text[..length].split(|&byte| byte == 0).next()?;
        let (name, value) = text.split_at_checked(text.iter().position(|&byte| byte == b'=')?)?;
        Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value.get(1..)?).to_owned()))
    };
    (0..MOST).map_while(pointer).filter_map(variable).collect()
}

/// The threads of this process: kernel ids and names.
#[must_use]
pub fn threads() -> Vec<(i32, String)> {
    let Ok(tasks) = Descriptor::open(None, "/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY) else {
        return Vec::new();
    };
    let described = tasks.names().into_iter().filter_map(|name| {
        let tid = String::from_utf8(name).ok()?.parse().ok()?;
        Some((tid, name_of_thread(tid)?))
    });
    described.collect()
}

/// The processor time of a thread of this process, in ns. `None` if the thread has ended.
#[must_use]
pub fn thread_cpu_ns(tid: i32) -> Option<u64> {
    // The kernel's encoding of a thread's clock, as pthread_getcpuclockid makes it
    // (include/linux/posix-timers_types.h).
    let clock = !tid << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the kernel refuses a clock that does not exist.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// For how long in all a thread of this process has been ready to run without a processor, in ns
/// (`schedstat`: the kernel's Documentation/scheduler/sched-stats.rst). `None` if it has ended, or
/// the kernel does not count it.
#[must_use]
pub fn thread_queued_ns(tid: i32) -> Option<u64> {
    let stat = read_file(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.split_whitespace().map(|field| field.parse::<u64>().ok());
    // The first is the time on a processor, which is never 0 if it is counted.
    fields.next()?.filter(|ran| *ran > 0)?;
    fields.next()?
}

/// What the kernel says about a thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// When it started, in ns of `CLOCK_BOOTTIME`, to the length of a tick of the kernel's (10 ms).
    pub started: u64,
    /// The processor that it ran on last.
    pub processor: u32,
    /// The system call that it waits in; `None` if it runs.
    pub call: Option<i64>,
}

/// The state of a thread of this process. `None` if it has ended, or the kernel does not say.
#[must_use]
pub fn thread_state(tid: i32) -> Option<ThreadState> {
    let stat = read_file(format!("/proc/self/task/{tid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the thread's name in parentheses, which may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(19);
    let started: u64 = fields.next()?.parse().ok()?;
    let processor = fields.nth(16)?.parse().ok()?;
    let call = read_file(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let call = String::from_utf8_lossy(&call);
    // The word "running", or the call's number and its arguments; -1 outside of a call.
    let call = call.split_whitespace().next()?.parse().ok().filter(|call| *call >= 0);
    Some(ThreadState { started: started * (1_000_000_000 / ticks_per_second()?), processor, call })
}

/// The kernel's ticks in a second, in which it gives times of processes.
fn ticks_per_second() -> Option<u64> {
    // SAFETY: no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0)
}

/// The files mapped into this process, each listed once: all loaded libraries are among them.
#[must_use]
pub fn mapped_files() -> Vec<PathBuf> {
    let maps = read_file("/proc/self/maps").unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mut files: Vec<PathBuf> = Vec::new();
    // address, rights, offset, device, inode, path
    for path in maps.lines().filter_map(|line| Some(&line[line.find('/')?..])) {
        if files.last().is_none_or(|last| last.as_os_str() != path) {
            files.push(path.into());
        }
    }
    files.sort_unstable();
    files.dedup();
    files
}

/// Random bits from the kernel; from the clock if the kernel has none to give without waiting.
#[must_use]
pub fn random() -> u64 {
    let mut bits = 0_u64;
    // SAFETY: `bits` has the stated 8 writable bytes.
    let got = unsafe { libc::getrandom((&raw mut bits).cast(), 8, libc::GRND_NONBLOCK) };
    if got == 8 {
        bits
    } else {
        (realtime_ns() ^ u64::from(std::process::id()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Miri has no `madvise`.
const HAS_ADVICE: bool = !cfg!(miri);

/// Zeroed memory straight from the kernel, in huge pages if possible: a callback that walks through
/// megabytes then has no TLB miss every 4 KiB.
#[derive(Debug)]
pub struct Pages {
    address: *mut u8,
    length: usize,
}

// SAFETY: it only owns the mapping; users of the address decide what may be done with the memory.
unsafe impl Send for Pages {}
// SAFETY: as above; its methods only read two fields.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `length` bytes; `None` if there is no such memory, or `length` is 0.
    #[must_use]
    pub fn new(length: usize) -> Option<Pages> {
        // SAFETY: a new private mapping touches nothing that exists. The advice changes no content.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let address =
                libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            if address == libc::MAP_FAILED {
                return None;
            }
            if HAS_ADVICE {
                libc::madvise(address, length, libc::MADV_HUGEPAGE);
            }
            Some(Pages { address: address.cast(), length })
        }
    }

    /// The address of the first page.
    #[inline]
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; borrows of the memory end before their owner is
        // dropped.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// Registers a function to run at a normal exit of the process.
pub fn on_exit(at_exit: extern "C" fn()) {
    // SAFETY: the function lives as long as the process: the library is linked with `-z nodelete`.
    unsafe { libc::atexit(at_exit) };
}

/// Registers a function to run in every forked child.
pub fn on_fork(child: unsafe extern "C" fn()) {
    // SAFETY: the function lives as long as the process: the library is linked with `-z nodelete`.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Makes the kernel zero these pages in every child that gets a copy of this process's memory.
/// Needs Linux 4.14, anonymous memory and page alignment; otherwise it does nothing.
pub fn empty_in_children(first: *mut u8, length: usize) {
    if HAS_ADVICE {
        // SAFETY: the advice concerns copies of the pages; in this process they do not change.
        unsafe { libc::madvise(first.cast(), length, libc::MADV_WIPEONFORK) };
    }
}

/// Reserves memory that is populated page by page on first touch and never unmapped; `None` if the
/// process may have no more.
#[must_use]
pub fn reserve(length: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private mapping touches nothing that exists.
    let place = unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    (place != libc::MAP_FAILED).then_some(place.cast())
}

/// Blocks this thread forever.
pub fn stop_for_ever() -> ! {
    loop {
        // SAFETY: waits for a signal, and threads of ours get none.
        unsafe { libc::pause() };
    }
}

/// Whether an environment variable has this value, ignoring case and surrounding spaces. Allocates
/// nothing.
#[must_use]
pub fn variable_is(name: &CStr, value: &str) -> bool {
    // SAFETY: a C string; nobody frees the result meanwhile, as with any read of a variable.
    let found = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: null, or a C string, as above.
    !found.is_null() && unsafe { CStr::from_ptr(found) }.to_bytes().trim_ascii().eq_ignore_ascii_case(value.as_bytes())
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `body` with the cancellation of this thread postponed until it returns: cancellation
/// unwinds, and nothing here may be unwound through.
pub fn without_cancellation<T>(body: impl FnOnce() -> T) -> T {
    /// The value in pthread.h.
    const DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: the old state is writable, and is restored below.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = body();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}

/// The machine's host name.
#[must_use]
pub fn host_name() -> String {
    host_name_in(&mut [0; HOST_NAME]).to_owned()
}

/// Most bytes of a host name, including a NUL.
pub const HOST_NAME: usize = 65;

/// The machine's host name, without an allocation.
#[must_use]
pub fn host_name_in(name: &mut [u8; HOST_NAME]) -> &str {
    *name = [0; HOST_NAME];
    // SAFETY: the call gets one byte less than the buffer has, so a NUL remains.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), HOST_NAME - 1) };
    CStr::from_bytes_until_nul(name).ok().and_then(|name| name.to_str().ok()).unwrap_or_default()
}

/// The id that the kernel chose at boot. All containers on the kernel share it and
/// `CLOCK_BOOTTIME`.
#[must_use]
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// When the parent of this process started, in seconds since 1970.
#[must_use]
pub fn parent_start() -> Option<u64> {
    start_of(std::os::unix::process::parent_id())
}

/// When a process started, in seconds since 1970.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = read_file(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The second field is the program's name in parentheses, which may contain anything.
    let start: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let kernel = String::from_utf8(read_file("/proc/stat").ok()?).ok()?;
    let boot: u64 = kernel.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + start / ticks_per_second()?)
}

/// A time in seconds since 1970 as `20261120-184500`, in UTC.
#[must_use]
pub fn utc(seconds: u64) -> String {
    let [year, month, day, hour, minute, second] = date(seconds as i64);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// A time in seconds since 1970 as year, month, day, hour, minute and second, in UTC.
#[must_use]
pub fn date(seconds: i64) -> [i32; 6] {
    // SAFETY: both are plain memory; `gmtime_r` fills the second from the first.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&raw const seconds, &raw mut time);
        time
    };
    [time.tm_year + 1900, time.tm_mon + 1, time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_added_to_the_existing_ones() {
        let before = std::env::vars_os().count();
        add_variable("VARIABLE_OF_A_TEST", "one=two");
        assert_eq!(std::env::var("VARIABLE_OF_A_TEST").as_deref(), Ok("one=two"));
        assert_eq!(std::env::vars_os().count(), before + 1);
        // As libc sees it.
        // SAFETY: a C string.
        let value = unsafe { CStr::from_ptr(libc::getenv(c"VARIABLE_OF_A_TEST".as_ptr())) };
        assert_eq!(value, c"one=two");
    }

    #[test]
    fn variables_that_another_thread_frees_are_left_out() {
        let short = std::env::vars_os().filter(|(name, value)| name.len() + value.len() < 1000);
        let (short, found): (Vec<_>, _) = (short.collect(), variables());
        assert!(!short.is_empty() && short.iter().all(|variable| found.contains(variable)), "{short:?}: {found:?}");
        let page = Pages::new(8192).unwrap();
        // SAFETY: the second page is our own, and nobody uses it.
        unsafe { libc::munmap(page.address().add(4096).cast(), 4096) };
        let [freed, end] = [page.address().addr() + 4096, page.address().addr() + 4096 - 2 * size_of::<usize>()];
        // An array that goes on in the freed page, and has one of its variables there.
        let kept = c"KEPT=1".as_ptr().addr();
        // SAFETY: within the first page.
        unsafe { page.address().add(4096 - 2 * size_of::<usize>()).cast::<[usize; 2]>().write([freed, kept]) };
        let memory = Descriptor::open(None, "/proc/self/mem", libc::O_RDONLY).unwrap();
        assert_eq!(variables_at(&memory, end), [("KEPT".into(), "1".into())]);
        assert_eq!(variables_at(&memory, freed), []);
        assert_eq!(variables_at(&memory, 0), []);
        // Its second page may be somebody else's by now.
        std::mem::forget(page);
    }

    #[test]
    fn the_name_of_a_thread_is_read() {
        let named = std::thread::Builder::new().name("a name".into()).spawn(|| name_of_thread(thread_id()));
        assert_eq!(named.unwrap().join().unwrap().as_deref(), Some("a name"));
        assert_eq!(name_of_thread(-1), None);
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(utc(0), "19700101-000000");
        assert_eq!(utc(1_795_200_300), "20261120-184500");
    }

    #[test]
    fn mapped_files_are_listed() {
        let files = mapped_files();
        assert!(files.contains(&std::env::current_exe().unwrap()), "{files:?}");
        assert!(files.iter().any(|path| path.to_string_lossy().contains("libc")), "{files:?}");
    }

    #[test]
    fn the_parent_started_between_boot_and_now() {
        let start = parent_start().expect("a test has a parent");
        assert!(start <= realtime_ns() / 1_000_000_000 + 1);
    }
}
