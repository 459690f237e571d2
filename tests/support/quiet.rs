//! The quiet test: a thread that has made one call of each kind makes thousands more, while every
//! system call is forbidden and every allocation counted.
//!
//! The kernel's filter applies to that thread only, so the plugin's own threads continue. The
//! emulated CUPTI makes every callback that the plugin asked for, while each of the events is open.
//! Allocations are counted by `allocations.c`, if that is preloaded.

use crate::gpu;
use crate::host::{Arg, Comm, Context, Descriptor, NetEvent, Plugin, RawHandle, StateCall, Text, Value};
use crate::layout::{self, Kind};
use serde_json::{Value as Json, json};
use std::error::Error;
use std::ffi::{c_int, c_ulong, c_void};
use std::hint::{black_box, spin_loop};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The exit status after a forbidden system call.
pub const BROKEN: i32 = 3;

/// How long all the calls may take.
const LIMIT: Duration = Duration::from_secs(50);
/// Texts that the plugin has never seen, for the calls that count.
const NEW_TEXTS: usize = 200;

/// A quiet test.
#[derive(Clone, Debug)]
pub struct Quiet {
    /// The plugin's library.
    pub plugin: PathBuf,
    /// The interface version to call it through.
    pub interface: u32,
    /// How often every call is made.
    pub rounds: u32,
    /// Skips the first calls, which may be loud.
    pub cold: bool,
    /// Allows system calls, so that a loud thread reaches its end.
    pub loud: bool,
    /// Has the emulated CUPTI make its callbacks as well.
    pub cupti: bool,
    /// A noise that the host itself makes, to see that it is detected.
    pub noise: Option<Noise>,
}

/// What a quiet thread must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// A system call.
    SystemCall,
    /// An allocation.
    Allocation,
}

/// The result of the quiet thread, which cannot report it in any other way.
static DONE: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static CALLBACKS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Makes all the calls, and reports on them. If one makes a system call, the process ends with
/// [`BROKEN`] and names the system call on standard error.
///
/// # Errors
///
/// If the plugin or the emulated CUPTI cannot be loaded, system calls cannot be forbidden, or the
/// calls do not end in time.
///
/// # Safety
///
/// See [`Plugin::load`].
pub unsafe fn run(quiet: &Quiet) -> Result<Json, Box<dyn Error>> {
    if quiet.cupti {
        // SAFETY: the driver's function takes flags.
        unsafe { gpu::call(c"libcuda.so.1", "cuInit")? };
    }
    // SAFETY: the caller promises what this needs.
    let plugin = unsafe { Plugin::load(&quiet.plugin, quiet.interface)? };
    let plugin: &'static Plugin = Box::leak(Box::new(plugin));
    let context = plugin.init(&Comm { nranks: 2, ..Comm::default() });
    let rehearse = match quiet.cupti {
        // SAFETY: the emulated CUPTI's function has this type.
        true => Some(unsafe { std::mem::transmute::<*mut c_void, Rehearse>(gpu::cupti("emulated_cupti_rehearse")?) }),
        false => None,
    };
    let counter = allocation_counter();
    let (failure, failures) = mpsc::channel();
    let (settings, theirs) = (quiet.clone(), context.clone());
    // Even its end would be loud, so it is never joined.
    thread::spawn(move || match make_calls(&settings, plugin, &theirs, rehearse, counter) {
        Ok(()) => loop {
            spin_loop();
        },
        Err(error) => failure.send(error),
    });
    let begin = Instant::now();
    while !DONE.load(Ordering::Acquire) {
        if let Ok(error) = failures.try_recv() {
            return Err(format!("failed to forbid system calls: {error}").into());
        }
        if begin.elapsed() > LIMIT {
            return Err("the calls did not end in time".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let errors = ERRORS.load(Ordering::Relaxed) + u64::from(plugin.finalize(&context) != 0);
    Ok(json!({
        "interface": quiet.interface,
        "calls": CALLS.load(Ordering::Relaxed),
        "callbacks": CALLBACKS.load(Ordering::Relaxed),
        "errors": errors,
        "allocations": counter.map(|_| ALLOCATIONS.load(Ordering::Relaxed)),
    }))
}

fn make_calls(
    quiet: &Quiet,
    plugin: &Plugin,
    context: &Context,
    rehearse: Option<Rehearse>,
    counter: Option<Counter>,
) -> io::Result<()> {
    let mut calls = Calls::new(plugin, context);
    calls.rehearse = rehearse;
    let mut counts = Counts::default();
    if !quiet.cold {
        calls.make(plugin, &mut counts);
    }
    let allocations = || counter.map_or(0, |counter| counter());
    if !quiet.loud {
        forbid_system_calls()?;
    }
    let before = allocations();
    for _ in 0..quiet.rounds {
        calls.make(plugin, &mut counts);
    }
    calls.make_new(plugin, &mut counts);
    match quiet.noise {
        // SAFETY: takes nothing and changes nothing, if it is let through at all.
        Some(Noise::SystemCall) => drop(unsafe { libc::syscall(libc::SYS_getppid) }),
        Some(Noise::Allocation) => drop(black_box(Box::new(0_u64))),
        None => {}
    }
    ALLOCATIONS.store(allocations() - before, Ordering::Relaxed);
    CALLS.store(counts.calls, Ordering::Relaxed);
    CALLBACKS.store(counts.callbacks, Ordering::Relaxed);
    ERRORS.store(counts.errors, Ordering::Relaxed);
    DONE.store(true, Ordering::Release);
    Ok(())
}

/// How many calls were made that the plugin has to record, how many of CUPTI's callbacks, and how
/// many calls failed.
#[derive(Default)]
struct Counts {
    calls: u64,
    callbacks: u64,
    errors: u64,
}

/// Every call that a version has, ready to be made.
struct Calls {
    context: RawHandle,
    events: Vec<Descriptor>,
    states: Vec<StateCall>,
    /// Events that each name a new text.
    new: Vec<Descriptor>,
    /// Makes CUPTI's callbacks.
    rehearse: Option<Rehearse>,
}

impl Calls {
    fn new(plugin: &Plugin, context: &Context) -> Calls {
        let events = layout::kinds().iter().flat_map(|kind| {
            let networks: &[_] = match kind.name {
                "NetPlugin" => &[Some(INFINIBAND), Some(SOCKET)],
                _ => &[None],
            };
            networks.iter().filter_map(|network| {
                let mut fields = fields(kind);
                fields.extend(network.map(|network| ("net", Value::Net(network))));
                plugin.descriptor(context, kind.name, &fields, RawHandle::NULL)
            })
        });
        let states = layout::states().iter().flat_map(|state| {
            let told = match state.name {
                // With any event: the plugin may read a payload, so there must be one.
                "NetUpdate" => Arg::Net(&INFINIBAND),
                _ => Arg::Value(4096),
            };
            [told, Arg::Null].into_iter().filter_map(|arg| plugin.state_call(state.name, arg))
        });
        let new = (0..NEW_TEXTS).filter_map(|number| {
            let text = Text::new(format!("an algorithm that is new, number {number}").as_bytes());
            plugin.descriptor(context, "Coll", &[("algo", Value::Cell(&text))], RawHandle::NULL)
        });
        Calls {
            context: context.handle,
            events: events.collect(),
            states: states.collect(),
            // In v1 it is a number rather than a text.
            new: if plugin.version() > 1 { new.collect() } else { Vec::new() },
            rehearse: None,
        }
    }

    /// Makes CUPTI's callbacks.
    fn rehearse(&self, counts: &mut Counts) {
        if let Some(rehearse) = self.rehearse {
            match u64::try_from(rehearse()) {
                Ok(callbacks) => counts.callbacks += callbacks,
                Err(_) => counts.errors += 1,
            }
        }
    }

    /// Starts every event with the previous one as its parent, records every state on it, and stops
    /// it twice; then does the same without an event.
    fn make(&mut self, plugin: &Plugin, counts: &mut Counts) {
        let mut parent = RawHandle::NULL;
        for place in 0..self.events.len() {
            let event = &mut self.events[place];
            event.set_parent(parent);
            let started = plugin.start_prepared(self.context, event);
            counts.errors += u64::from(started.status != 0 || started.handle.is_null());
            self.rehearse(counts);
            for state in &mut self.states {
                counts.errors += u64::from(plugin.state_prepared(started.handle, state) != 0);
            }
            for _ in 0..2 {
                counts.errors += u64::from(plugin.stop(started.handle) != 0);
            }
            counts.calls += 3 + self.states.len() as u64;
            parent = started.handle;
        }
        for state in &mut self.states {
            counts.errors += u64::from(plugin.state_prepared(RawHandle::NULL, state) != 0);
        }
        counts.errors += u64::from(plugin.stop(RawHandle::NULL) != 0);
        self.rehearse(counts);
    }

    /// Starts the events with new texts.
    fn make_new(&mut self, plugin: &Plugin, counts: &mut Counts) {
        for event in &mut self.new {
            let started = plugin.start_prepared(self.context, event);
            counts.errors += u64::from(started.status != 0 || plugin.stop(started.handle) != 0);
            counts.calls += 2;
        }
    }
}

const INFINIBAND: NetEvent = NetEvent::Ib { device: 1, wr_id: 2, opcode: 3, qp: 4, length: 5 };
const SOCKET: NetEvent = NetEvent::Socket { fd: 1, op: 2, length: 3 };

/// A value for every text that an event has.
fn fields(kind: &Kind) -> Vec<(&'static str, Value<'static>)> {
    let Some(member) = kind.member else { return Vec::new() };
    let names = layout::field_names(member).into_iter().filter(|name| layout::is_text(member, name));
    let value = |name: &str| match name {
        "func" if member.starts_with("p2p") => "Send",
        "func" => "AllReduce",
        "datatype" => "ncclBfloat16",
        "algo" => "RING",
        "proto" => "SIMPLE",
        "syncStrategy" => "MC",
        _ => "a text of some length, unlike NCCL's own",
    };
    names.filter(|name| *name != "name").map(|name| (name, value(name).into())).collect()
}

/// Makes CUPTI's callbacks, and returns how many; negative if there is nobody to call.
type Rehearse = extern "C" fn() -> c_int;

/// The number of allocations and releases that the calling thread has made.
type Counter = extern "C" fn() -> c_ulong;

/// The counter of `allocations.c`, if that is preloaded.
fn allocation_counter() -> Option<Counter> {
    // SAFETY: the name is a C string; a symbol of that name can only be that function.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"ncclscope_test_allocations".as_ptr());
        std::mem::transmute::<*mut c_void, Option<Counter>>(symbol)
    }
}

/// From now on every system call of this thread ends the process, except those needed to report
/// that, and reading the clock, which is a system call where the kernel offers no other way.
fn forbid_system_calls() -> io::Result<()> {
    const ALLOWED: [libc::c_long; 4] =
        [libc::SYS_write, libc::SYS_exit_group, libc::SYS_rt_sigreturn, libc::SYS_clock_gettime];
    // SAFETY: an all-zero value is valid, and the handler and its flag are filled in. The handler
    // makes only calls that are allowed in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = broken as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        check(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()))?;
    }
    // The number of the system call is the first word of the filter's input.
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let instruction = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![instruction(LOAD, 0, 0)];
    for (index, number) in ALLOWED.iter().enumerate() {
        program.push(instruction(EQUAL, (ALLOWED.len() - index) as u8, *number as u32));
    }
    program.push(instruction(RETURN, 0, libc::SECCOMP_RET_TRAP));
    program.push(instruction(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the end of this function.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Prints which system call it was, and ends the process.
extern "C" fn broken(_signal: c_int, info: *const libc::siginfo_t, _context: *mut c_void) {
    /// The offset of the system call's number in `siginfo_t`, with pointers of eight bytes.
    const NUMBER_AT: usize = 24;
    // SAFETY: for this signal the kernel fills in the number.
    let mut number = unsafe { info.cast::<u8>().add(NUMBER_AT).cast::<u32>().read() };
    let mut text = *b"system call          \n";
    let mut at = text.len() - 2;
    loop {
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        at -= 1;
        if number == 0 {
            break;
        }
    }
    // SAFETY: writes the text and ends the process, which is all it does.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        libc::_exit(BROKEN)
    }
}
