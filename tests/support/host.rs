//! Loads a profiler plugin and calls it as NCCL does.
//!
//! [`Plugin`] opens the library, finds the table of one interface version and calls through it.
//! Descriptors are raw bytes laid out by [`crate::layout`]. Bytes that the version does not define
//! are [`GARBAGE`], because NCCL leaves them uninitialised. What a version does not have is left
//! out, so that one caller serves all seven.

mod descriptor;
mod text;

pub(crate) use descriptor::has_field;
pub use descriptor::{Arg, Descriptor, EventType, GARBAGE, NetEvent, Slot, StateCall, StateType, Value};
pub use text::{Text, intern};

use crate::layout;
use std::ffi::{CString, c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{LazyLock, Mutex};
use text::{lock, text_at};

/// The out parameter of `startEvent` before the call. If it is still there afterwards, nothing was
/// written.
pub const POISON: RawHandle = RawHandle(0x0bad_c0de_dead_beef);

/// A handle or context as it passes through the interface: a value that only the plugin
/// understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawHandle(pub u64);

impl RawHandle {
    /// No handle.
    pub const NULL: RawHandle = RawHandle(0);

    /// Whether there is no handle.
    pub fn is_null(self) -> bool {
        self == RawHandle::NULL
    }

    /// The handle as the interface's functions take it.
    #[inline]
    pub fn as_ptr(self) -> *mut c_void {
        self.0 as usize as *mut c_void
    }

    #[inline]
    fn from_ptr(pointer: *mut c_void) -> RawHandle {
        RawHandle(pointer as usize as u64)
    }
}

impl fmt::Display for RawHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// `startEvent`: context, where the handle goes, descriptor.
pub type StartEvent = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_void) -> c_int;
/// `stopEvent`: handle.
pub type StopEvent = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `recordEventState`: handle, state, arguments or null.
pub type RecordEventState = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
/// `finalize`: context.
pub type Finalize = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The functions of a plugin's table whose signatures never changed.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// Begins an event.
    pub start_event: StartEvent,
    /// Ends an event.
    pub stop_event: StopEvent,
    /// Reports a state of an event.
    pub record_event_state: RecordEventState,
    /// Ends a communicator.
    pub finalize: Finalize,
}

/// A loaded plugin and one of its tables.
///
/// Dropping it leaves the library loaded, as in a program that never destroys its communicators.
#[derive(Debug)]
pub struct Plugin {
    version: u32,
    path: PathBuf,
    library: NonNull<c_void>,
    name: String,
    init: Init,
    functions: Functions,
    mask: &'static AtomicI32,
}

// SAFETY: the fields are an immutable table of functions, which NCCL too calls from all of its
// threads, and the library's handle, which the dynamic loader lets any thread use.
unsafe impl Send for Plugin {}
// SAFETY: as above; after loading, only the atomic mask changes.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Opens the library and finds the table of this version, as an NCCL would that knows none
    /// newer.
    ///
    /// # Errors
    ///
    /// If the library cannot be opened, lacks the version's symbol, or has a null entry in its
    /// table.
    ///
    /// # Safety
    ///
    /// The library is a profiler plugin: its `ncclProfiler_vN` are tables of that interface. It
    /// takes handles and contexts as values and never dereferences them, unless it is only given
    /// its own. Wherever [`Value::Bits`] is given for a text, it is null or the address of a
    /// permanent C string.
    pub unsafe fn load(path: &Path, version: u32) -> Result<Plugin, LoadError> {
        // SAFETY: the caller's promise is the same.
        unsafe { Plugin::load_with_mask(path, version, Box::leak(Box::default())) }
    }

    /// The same, with a mask that outlives the plugin. NCCL has one mask, which it keeps when it
    /// closes and opens plugins.
    ///
    /// # Errors
    ///
    /// See [`load`](Plugin::load).
    ///
    /// # Safety
    ///
    /// See [`load`](Plugin::load).
    pub unsafe fn load_with_mask(path: &Path, version: u32, mask: &'static AtomicI32) -> Result<Plugin, LoadError> {
        if !layout::VERSIONS.contains(&version) {
            return Err(LoadError::Version(version));
        }
        let library = open(path)?;
        let symbol = format!("ncclProfiler_v{version}");
        let table = match find(library, &symbol) {
            // SAFETY: the caller promises that the symbol is a table; it is data of a library that
            // is loaded now.
            Some(table) => unsafe { table.cast::<Table>().read() },
            None => {
                close(library);
                return Err(LoadError::Symbol { path: path.to_owned(), symbol });
            }
        };
        let entry = |name| LoadError::Entry { symbol: symbol.clone(), name };
        let init = NonNull::new(table.init.cast_mut()).ok_or_else(|| entry("init"))?;
        Ok(Plugin {
            version,
            path: path.to_owned(),
            library,
            name: text_at(table.name),
            // SAFETY: the caller promises a table of this version, whose `init` has this signature.
            init: unsafe { Init::of(version, init) },
            functions: Functions {
                start_event: table.start_event.ok_or_else(|| entry("startEvent"))?,
                stop_event: table.stop_event.ok_or_else(|| entry("stopEvent"))?,
                record_event_state: table.record_event_state.ok_or_else(|| entry("recordEventState"))?,
                finalize: table.finalize.ok_or_else(|| entry("finalize"))?,
            },
            mask,
        })
    }

    /// The interface version of the table in use.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The name in the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The functions themselves, for loops in which even a wrapper would be measurable.
    #[inline]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The activation mask whose address `init` gets.
    pub fn mask(&self) -> &'static AtomicI32 {
        self.mask
    }

    /// Closes the library once, as NCCL does after the last `finalize`.
    pub fn close(&self) {
        close(self.library);
    }

    /// Whether the library is in memory, closed or not.
    pub fn is_mapped(&self) -> bool {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return false;
        };
        // SAFETY: with this flag nothing is loaded; at most a library that is loaded already is
        // counted once more, which the second call takes back.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            !library.is_null() && libc::dlclose(library) == 0
        }
    }

    /// Calls `init` for a communicator.
    pub fn init(&self, comm: &Comm<'_>) -> Context {
        let name = comm.name.map(Text::new);
        let name_ptr = name.as_ref().map_or(std::ptr::null(), Text::as_ptr);
        let mut context = std::ptr::null_mut();
        let mask = self.mask.as_ptr();
        let Comm { id, rank, nranks, nodes, .. } = *comm;
        // SAFETY: `load` was promised a table whose `init` takes these; the out parameter lives in
        // this frame, mask and logger for ever, and so does the name, whose memory is never freed.
        let status = unsafe {
            match self.init {
                Init::Plain(init) => init(&mut context, mask),
                Init::Hash(init) => init(&mut context, mask, name_ptr, id, nodes, nranks, rank, logger()),
                Init::Id(init) => init(&mut context, id, mask, name_ptr, nodes, nranks, rank, logger()),
            }
        };
        Context {
            handle: RawHandle::from_ptr(context),
            id,
            rank,
            name,
            status,
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Starts an event. Fields are named as in C. Fields that the version lacks are left out. If it
    /// lacks the kind, the whole event is left out; the handle is null then, as if the plugin did
    /// not want the event. Three fields are special:
    ///
    /// * `parentGroup` of a Coll or P2p, which is the parent itself up to v4;
    /// * `nChannels` of a Coll, which is called `nMaxChannels` up to v3;
    /// * `net`, a [`Value::Net`], which becomes the `id` and `data` of a NetPlugin event.
    ///
    /// By default a ProxyOp's `pid` is this process, a Coll's or P2p's `name` and `commHash` are
    /// those of the context, and so is the `rank` where NCCL fills it in. All other fields are
    /// zero.
    ///
    /// # Panics
    ///
    /// If there is no such kind, or the kind has no such field in any version.
    pub fn start<'a>(
        &self,
        context: &Context,
        kind: impl Into<EventType<'a>>,
        fields: &[(&str, Value<'_>)],
        parent: RawHandle,
    ) -> Started {
        match self.descriptor(context, kind, fields, parent) {
            Some(mut descriptor) => self.start_prepared(context.handle, &mut descriptor),
            None => Started { handle: RawHandle::NULL, status: 0, sent: false },
        }
    }

    /// The descriptor that [`start`](Plugin::start) would send, if the version has the kind.
    ///
    /// # Panics
    ///
    /// If there is no such kind, or the kind has no such field in any version.
    pub fn descriptor<'a>(
        &self,
        context: &Context,
        kind: impl Into<EventType<'a>>,
        fields: &[(&str, Value<'_>)],
        parent: RawHandle,
    ) -> Option<Descriptor> {
        match kind.into() {
            EventType::Named(name) => {
                let kind = layout::kind(name).unwrap_or_else(|| panic!("there is no event kind `{name}`"));
                Descriptor::of_kind(self.version, context, kind, fields, parent)
            }
            EventType::Number(number) => match layout::kinds().iter().find(|kind| kind.bit == number) {
                Some(kind) if kind.since <= self.version => {
                    Descriptor::of_kind(self.version, context, kind, fields, parent)
                }
                _ => Descriptor::of_number(self.version, number, fields, parent),
            },
        }
    }

    /// Starts the event of a descriptor: one call of the plugin and nothing else, unless it is a
    /// network event, whose payload is overwritten on return.
    #[inline]
    pub fn start_prepared(&self, context: RawHandle, descriptor: &mut Descriptor) -> Started {
        let mut out = POISON.as_ptr();
        // SAFETY: `load` was promised a table of this version; the descriptor has that version's
        // layout and, like the out parameter, outlives the call.
        let status = unsafe { (self.functions.start_event)(context.as_ptr(), &mut out, descriptor.as_mut_ptr()) };
        if let Some(payload) = &mut descriptor.payload {
            payload.scribble();
        }
        Started { handle: RawHandle::from_ptr(out), status, sent: true }
    }

    /// Stops an event. Null is passed on, too.
    #[inline]
    pub fn stop(&self, handle: RawHandle) -> i32 {
        // SAFETY: `load` was promised a `stopEvent` that takes the handle as a value.
        unsafe { (self.functions.stop_event)(handle.as_ptr()) }
    }

    /// Records a state. `None` if the version has no such state, so that nothing was sent.
    ///
    /// # Panics
    ///
    /// If there is no state with this name.
    pub fn state<'a>(&self, handle: RawHandle, state: impl Into<StateType<'a>>, arg: Arg<'_>) -> Option<i32> {
        let mut call = self.state_call(state, arg)?;
        Some(self.state_prepared(handle, &mut call))
    }

    /// The call that [`state`](Plugin::state) would make, if the version has the state.
    ///
    /// # Panics
    ///
    /// If there is no state with this name.
    pub fn state_call<'a>(&self, state: impl Into<StateType<'a>>, arg: Arg<'_>) -> Option<StateCall> {
        match state.into() {
            StateType::Named(name) => {
                let state = layout::state(name).unwrap_or_else(|| panic!("there is no state `{name}`"));
                StateCall::of_state(self.version, state, arg)
            }
            StateType::Number(number) => match layout::states().iter().find(|state| state.value == number) {
                Some(state) if state.versions.contains(&self.version) => StateCall::of_state(self.version, state, arg),
                _ => Some(StateCall::of_number(number, arg)),
            },
        }
    }

    /// Makes a prepared state call on a handle: one call of the plugin and nothing else, unless it
    /// is a network event, whose payload is overwritten on return.
    #[inline]
    pub fn state_prepared(&self, handle: RawHandle, call: &mut StateCall) -> i32 {
        let args = if call.null { std::ptr::null_mut() } else { (&raw mut call.args).cast() };
        // SAFETY: `load` was promised a table of this version; the arguments have that version's
        // layout and outlive the call, and the handle is taken as a value.
        let status = unsafe { (self.functions.record_event_state)(handle.as_ptr(), call.state, args) };
        if let Some(payload) = &mut call.payload {
            payload.scribble();
        }
        status
    }

    /// Calls `finalize`. The communicator's name, if it has one, is overwritten afterwards: its
    /// lifetime is over.
    pub fn finalize(&self, context: &Context) -> i32 {
        // SAFETY: `load` was promised a `finalize` that takes the context as a value.
        let status = unsafe { (self.functions.finalize)(context.handle.as_ptr()) };
        if let Some(name) = &context.name {
            name.overwrite(&vec![b'?'; name.capacity()]);
        }
        status
    }
}

/// What a communicator tells the plugin about itself. The default has one rank and no name.
#[derive(Clone, Copy, Debug)]
pub struct Comm<'a> {
    /// NCCL's hash of the communicator, the same on all its ranks.
    pub id: u64,
    /// Its name, if the user gave one. Bytes after a NUL are cut off.
    pub name: Option<&'a [u8]>,
    /// The number of hosts it spans.
    pub nodes: i32,
    /// The number of its ranks.
    pub nranks: i32,
    /// This rank.
    pub rank: i32,
}

impl Default for Comm<'_> {
    fn default() -> Self {
        Comm { id: 0x5c09_e000, name: None, nodes: 1, nranks: 1, rank: 0 }
    }
}

/// A communicator as the plugin knows it.
#[derive(Clone, Debug)]
pub struct Context {
    /// The plugin's handle for it.
    pub handle: RawHandle,
    /// The communicator's hash.
    pub id: u64,
    /// The rank in the communicator.
    pub rank: i32,
    /// The communicator's name, in the memory that was passed to the plugin.
    pub name: Option<Text>,
    /// What `init` returned.
    pub status: i32,
    /// The activation mask after `init`.
    pub mask: i32,
}

impl Context {
    /// A context that no `init` returned: null, or one from another process.
    pub fn foreign(handle: RawHandle) -> Context {
        Context { handle, id: 0, rank: 0, name: None, status: 0, mask: 0 }
    }
}

/// The result of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The event's handle.
    pub handle: RawHandle,
    /// What the plugin returned.
    pub status: i32,
    /// Whether the plugin was called at all.
    pub sent: bool,
}

/// A message that the plugin sent to NCCL's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// 2 is a warning, 3 information, 5 a trace.
    pub level: i32,
    /// The subsystems it belongs to, as bits.
    pub flags: u64,
    /// The format string as given; its arguments are not filled in.
    pub format: String,
}

/// The messages that plugins of this process logged since the last call.
pub fn take_log() -> Vec<LogLine> {
    std::mem::take(&mut *lock(&LOG))
}

/// Why a plugin could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// There is no such interface version.
    Version(u32),
    /// The library could not be opened.
    Open {
        /// The library.
        path: PathBuf,
        /// The dynamic loader's message.
        reason: String,
    },
    /// The library does not export the version's table.
    Symbol {
        /// The library.
        path: PathBuf,
        /// The missing symbol.
        symbol: String,
    },
    /// An entry of the table is null.
    Entry {
        /// The table.
        symbol: String,
        /// The entry.
        name: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Version(version) => write!(f, "there is no profiler interface v{version}"),
            LoadError::Open { path, reason } => {
                write!(f, "failed to open {}: {reason}", path.display())
            }
            LoadError::Symbol { path, symbol } => {
                write!(f, "{} does not export {symbol}", path.display())
            }
            LoadError::Entry { symbol, name } => write!(f, "{name} is not set in {symbol}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// The table as it is in the library. The arguments of `init` depend on the version.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: *const c_void,
    start_event: Option<StartEvent>,
    stop_event: Option<StopEvent>,
    record_event_state: Option<RecordEventState>,
    finalize: Option<Finalize>,
}

/// NCCL's logger is variadic. The C calling conventions of x86-64 and Arm Linux pass the named
/// arguments of such a call like those of any other, so a function that takes only these works as
/// the callee.
type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char);

type InitPlain = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type InitHash =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> c_int;
type InitId =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> c_int;

/// The three signatures of `init`.
#[derive(Clone, Copy, Debug)]
enum Init {
    /// v1 to v3 know nothing about the communicator.
    Plain(InitPlain),
    /// v4 has the mask before the name, and the hash after it.
    Hash(InitHash),
    /// From v5 on the hash comes before the mask.
    Id(InitId),
}

impl Init {
    /// # Safety
    ///
    /// The address is that of an `init` of this version.
    unsafe fn of(version: u32, address: NonNull<c_void>) -> Init {
        let address = address.as_ptr();
        // SAFETY: the caller promises that the function has the signature of its version.
        unsafe {
            match version {
                1..=3 => Init::Plain(std::mem::transmute::<*mut c_void, InitPlain>(address)),
                4 => Init::Hash(std::mem::transmute::<*mut c_void, InitHash>(address)),
                _ => Init::Id(std::mem::transmute::<*mut c_void, InitId>(address)),
            }
        }
    }
}

/// The library whose log function `log` is NCCL's, if the host is to pretend that this library
/// calls the plugin.
pub const CALLER: &str = "SCRIPTED_HOST_CALLER";

/// NCCL's log function.
fn logger() -> Logger {
    static FOUND: LazyLock<Option<Logger>> = LazyLock::new(|| {
        let library = std::env::var_os(CALLER)?;
        let library = open(Path::new(&library)).unwrap_or_else(|error| panic!("{CALLER}: {error}"));
        let found = find(library, "log").unwrap_or_else(|| panic!("{CALLER} has no function `log`"));
        // SAFETY: the test's own library, whose `log` has this type.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, Logger>(found) })
    });
    FOUND.unwrap_or(log)
}

static LOG: Mutex<Vec<LogLine>> = Mutex::new(Vec::new());

unsafe extern "C" fn log(level: c_int, flags: c_ulong, _origin: *const c_char, _line: c_int, format: *const c_char) {
    lock(&LOG).push(LogLine { level, flags, format: text_at(format) });
}

fn open(path: &Path) -> Result<NonNull<c_void>, LoadError> {
    let failure = |reason| LoadError::Open { path: path.to_owned(), reason };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failure("the path contains a NUL".to_owned()))?;
    // SAFETY: loading runs the library's constructors, which is what `Plugin::load` is for; the
    // error text belongs to this thread until its next call of the loader.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        NonNull::new(library).ok_or_else(|| failure(text_at(libc::dlerror())))
    }
}

fn find(library: NonNull<c_void>, symbol: &str) -> Option<NonNull<c_void>> {
    let symbol = CString::new(symbol).ok()?;
    // SAFETY: the library was opened by `open` and not closed since.
    NonNull::new(unsafe { libc::dlsym(library.as_ptr(), symbol.as_ptr()) })
}

fn close(library: NonNull<c_void>) {
    // SAFETY: the handle came from `open`; the loader refuses one that was closed too often.
    unsafe { libc::dlclose(library.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        // SAFETY: nothing is loaded, so nothing is promised.
        let error = unsafe { Plugin::load(Path::new("/nowhere/libnone.so"), 7) }.unwrap_err();
        assert!(error.to_string().starts_with("failed to open /nowhere/libnone.so: "), "{error}");
    }
}
