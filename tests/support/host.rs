//! Loads a profiler plugin and calls it as NCCL does.
//!
//! [`Plugin`] opens the library, finds the table of one interface version and calls through it.
//! Descriptors are raw bytes laid out by [`crate::layout`]. Bytes that the version does not define
//! are [`GARBAGE`], because NCCL leaves them uninitialised. What a version does not have is left
//! out, so that one caller serves all seven.

use crate::layout::{self, CType, Field, HEADER, Kind, State};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Fills every descriptor byte that has no meaning.
pub const GARBAGE: u8 = 0xa5;

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

/// The type of an event: one that NCCL knows, or any number.
#[derive(Clone, Copy, Debug)]
pub enum EventType<'a> {
    /// The name in [`layout::kinds`].
    Named(&'a str),
    /// The value of the field.
    Number(u64),
}

impl<'a> From<&'a str> for EventType<'a> {
    fn from(name: &'a str) -> Self {
        EventType::Named(name)
    }
}

impl From<u64> for EventType<'_> {
    fn from(number: u64) -> Self {
        EventType::Number(number)
    }
}

/// A state: one that NCCL knows, or any number.
#[derive(Clone, Copy, Debug)]
pub enum StateType<'a> {
    /// The name in [`layout::states`].
    Named(&'a str),
    /// The value of the parameter.
    Number(i32),
}

impl<'a> From<&'a str> for StateType<'a> {
    fn from(name: &'a str) -> Self {
        StateType::Named(name)
    }
}

impl From<i32> for StateType<'_> {
    fn from(number: i32) -> Self {
        StateType::Number(number)
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A number, an address or a handle, cut to the size of the field.
    Bits(u64),
    /// A text that has one address per content, like NCCL's own.
    Text(&'a [u8]),
    /// A text with an address of its own.
    Cell(&'a Text),
    /// What a network plugin reports about an event.
    Net(NetEvent),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text.as_bytes())
    }
}

impl From<RawHandle> for Value<'_> {
    fn from(handle: RawHandle) -> Self {
        Value::Bits(handle.0)
    }
}

macro_rules! value_from_number {
    ($($number:ty),*) => {$(
        impl From<$number> for Value<'_> {
            fn from(number: $number) -> Self {
                Value::Bits(number as u64)
            }
        }
    )*};
}

value_from_number!(bool, u8, i32, u32, i64, u64, usize);

/// The argument of a state.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// What NCCL passes when there is nothing to report: null for the states of a GroupApi and, up
    /// to v3, of a ProxyStep; zero otherwise.
    Default,
    /// A null pointer.
    Null,
    /// The state's field. Ignored where NCCL of that version passes null.
    Value(u64),
    /// Both fields of the ProxyOp states that ended with v3.
    Progress {
        /// Bytes so far.
        trans_size: u64,
        /// Steps so far.
        steps: i32,
    },
    /// What a network plugin reports about the event.
    Net(&'a NetEvent),
}

/// What a network plugin reports about an event of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the interface's structures")]
pub enum NetEvent {
    /// A work request on an InfiniBand queue pair.
    Ib { device: i32, wr_id: u64, opcode: i32, qp: i32, length: u64 },
    /// An operation on a socket.
    Socket { fd: i32, op: i32, length: u64 },
}

impl NetEvent {
    /// The `id` that identifies the structure: the kind of network, and the version of its layout.
    pub fn id(&self) -> i64 {
        match self {
            NetEvent::Ib { .. } => (1 << 16) | 1,
            NetEvent::Socket { .. } => (2 << 16) | 1,
        }
    }

    fn payload(&self) -> Box<Payload> {
        let mut payload = Box::new(Payload([GARBAGE; layout::IB_PAYLOAD_SIZE]));
        let (network, fields): (_, &[(&str, u64)]) = match *self {
            NetEvent::Ib { device, wr_id, opcode, qp, length } => (
                "ib",
                &[
                    ("type", 1),
                    ("device", device as u64),
                    ("wr_id", wr_id),
                    ("opcode", opcode as u64),
                    ("qpNum", qp as u64),
                    ("length", length),
                ],
            ),
            NetEvent::Socket { fd, op, length } => {
                ("socket", &[("type", 1), ("fd", fd as u64), ("op", op as u64), ("length", length)])
            }
        };
        for (name, bits) in fields {
            let field = layout::network_payloads().iter().find(|f| f.event == network && f.name == *name);
            write(&mut payload.0, field.expect("a field of the payload"), *bits);
        }
        payload
    }
}

/// Memory that the plugin may read only during one call.
#[derive(Debug)]
#[repr(C, align(8))]
struct Payload([u8; layout::IB_PAYLOAD_SIZE]);

impl Payload {
    fn scribble(&mut self) {
        self.0.fill(GARBAGE);
    }

    fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as usize as u64
    }
}

/// An event descriptor of one version, ready to be sent any number of times.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Descriptor {
    bytes: [u8; layout::MAX_DESCRIPTOR],
    version: u32,
    event: &'static str,
    payload: Option<Box<Payload>>,
}

impl Descriptor {
    /// The address to hand to `startEvent`.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// The bytes that the version defines.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..layout::descriptor_size(self.version)]
    }

    /// The position of one of its fields, if the version has it.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        let find = |event| layout::field(self.version, event, name);
        find(self.event).or_else(|| find(HEADER)).map(Slot)
    }

    /// Writes a field.
    #[inline]
    pub fn set(&mut self, slot: Slot, bits: u64) {
        write(&mut self.bytes, &slot.0, bits);
    }

    /// Writes the parent.
    #[inline]
    pub fn set_parent(&mut self, parent: RawHandle) {
        self.bytes[8..16].copy_from_slice(&parent.0.to_ne_bytes());
    }

    fn of_kind(
        version: u32,
        context: &Context,
        kind: &Kind,
        fields: &[(&str, Value<'_>)],
        parent: RawHandle,
    ) -> Option<Descriptor> {
        if kind.since > version {
            return None;
        }
        for (name, _) in fields {
            assert!(has_field(kind, name), "{} has no field `{name}`", kind.name);
        }
        let given = |name: &str| fields.iter().rfind(|(field, _)| *field == name).map(|(_, value)| *value);
        let mut descriptor = Descriptor {
            bytes: [GARBAGE; layout::MAX_DESCRIPTOR],
            version,
            event: kind.member.unwrap_or(HEADER),
            payload: None,
        };
        if let Some(Value::Net(event)) = given("net") {
            descriptor.payload = Some(event.payload());
        }
        let parent = match given("parentGroup") {
            Some(Value::Bits(group)) if version <= 4 => RawHandle(group),
            _ => parent,
        };
        let text_or_null = |text: &Option<Text>| text.as_ref().map_or(0, |text| text.as_ptr() as u64);
        for field in layout::fields(version) {
            if field.event != descriptor.event && field.event != HEADER {
                continue;
            }
            let bits = match (given(field.name), field.name) {
                (Some(value), _) => bits(field, value),
                (None, "type") => kind.bit,
                (None, "parentObj") => parent.0,
                (None, "rank") if kind.ranked => context.rank as u64,
                (None, "name") => text_or_null(&context.name),
                (None, "commHash") => context.id,
                (None, "pid") => u64::from(std::process::id()),
                (None, "nMaxChannels") => given("nChannels").map_or(0, |value| bits(field, value)),
                (None, "id" | "data") => match (given("net"), &mut descriptor.payload) {
                    (Some(Value::Net(event)), _) if field.name == "id" => event.id() as u64,
                    (_, Some(payload)) => payload.address(),
                    _ => 0,
                },
                (None, _) => 0,
            };
            write(&mut descriptor.bytes, field, bits);
        }
        Some(descriptor)
    }

    fn of_number(version: u32, number: u64, fields: &[(&str, Value<'_>)], parent: RawHandle) -> Option<Descriptor> {
        let mut descriptor =
            Descriptor { bytes: [GARBAGE; layout::MAX_DESCRIPTOR], version, event: HEADER, payload: None };
        for field in layout::fields(version).iter().filter(|field| field.event == HEADER) {
            let given = fields.iter().find(|(name, _)| *name == field.name);
            let bits = match (given, field.name) {
                (Some((_, value)), _) => bits(field, *value),
                (None, "type") if field.size == 1 && number > 0xff => return None,
                (None, "type") => number,
                (None, "parentObj") => parent.0,
                (None, _) => 0,
            };
            write(&mut descriptor.bytes, field, bits);
        }
        Some(descriptor)
    }
}

/// The position of a field in a [`Descriptor`].
#[derive(Clone, Copy, Debug)]
pub struct Slot(Field);

/// A state with its arguments, ready to be sent any number of times.
#[derive(Debug)]
pub struct StateCall {
    args: [u64; 2],
    state: c_int,
    null: bool,
    value: Option<Field>,
    payload: Option<Box<Payload>>,
}

impl StateCall {
    /// Writes the field that belongs to the state, if there is one in this version.
    #[inline]
    pub fn set(&mut self, bits: u64) {
        if let Some(field) = self.value {
            let mut bytes = [GARBAGE; 8];
            write(&mut bytes, &Field { offset: 0, ..field }, bits);
            self.args[0] = u64::from_ne_bytes(bytes);
        }
    }

    fn of_state(version: u32, state: &State, arg: Arg<'_>) -> Option<StateCall> {
        if !state.versions.contains(&version) {
            return None;
        }
        let fields = layout::state_arguments(version);
        let value = state.member.and_then(|member| fields.iter().find(|field| field.event == member));
        let mut call = StateCall {
            args: [u64::from_ne_bytes([GARBAGE; 8]); 2],
            state: state.value,
            null: value.is_none() || matches!(arg, Arg::Null),
            value: value.copied(),
            payload: None,
        };
        match arg {
            Arg::Default | Arg::Null => call.set(0),
            Arg::Value(bits) => call.set(bits),
            Arg::Progress { trans_size, steps } => {
                call.set(trans_size);
                call.set_steps(steps);
            }
            Arg::Net(event) => call.set_payload(event),
        }
        Some(call)
    }

    fn of_number(number: i32, arg: Arg<'_>) -> StateCall {
        let mut call = StateCall {
            args: [u64::from_ne_bytes([GARBAGE; 8]); 2],
            state: number,
            null: matches!(arg, Arg::Default | Arg::Null),
            value: None,
            payload: None,
        };
        match arg {
            Arg::Default | Arg::Null => {}
            Arg::Value(bits) => call.args[0] = bits,
            Arg::Progress { trans_size, steps } => {
                call.args[0] = trans_size;
                call.set_steps(steps);
            }
            Arg::Net(event) => call.set_payload(event),
        }
        call
    }

    fn set_steps(&mut self, steps: i32) {
        let mut bytes = [GARBAGE; 8];
        bytes[..4].copy_from_slice(&steps.to_ne_bytes());
        self.args[1] = u64::from_ne_bytes(bytes);
    }

    fn set_payload(&mut self, event: &NetEvent) {
        let mut payload = event.payload();
        self.args[0] = payload.address();
        self.payload = Some(payload);
    }
}

/// A C string whose content can change at the same address. Its memory is never freed and always
/// ends with a NUL, so a plugin that keeps the address too long reads wrong text and nothing worse.
#[derive(Clone, Debug)]
pub struct Text(&'static [AtomicU8]);

impl Text {
    /// A text at an address that was never used before. It is cut off at a NUL.
    pub fn new(content: &[u8]) -> Text {
        let content = until_nul(content);
        let capacity = content.len().max(64);
        let padding = std::iter::repeat_n(&0, capacity + 1 - content.len());
        Text(Vec::leak(content.iter().chain(padding).map(|byte| AtomicU8::new(*byte)).collect()))
    }

    /// Its address, which stays valid.
    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    /// The largest length of its content.
    pub fn capacity(&self) -> usize {
        self.0.len() - 1
    }

    /// Writes another content to the same address; what does not fit is cut off.
    pub fn overwrite(&self, content: &[u8]) {
        let padding = std::iter::repeat(&0);
        let content = until_nul(content).iter().chain(padding);
        for (place, byte) in self.0[..self.capacity()].iter().zip(content) {
            place.store(*byte, Ordering::Relaxed);
        }
    }
}

/// A C string with this content. Equal contents have the same address, like a constant in NCCL.
pub fn intern(content: &[u8]) -> *const c_char {
    static KNOWN: LazyLock<Mutex<HashMap<Vec<u8>, Text>>> = LazyLock::new(Mutex::default);
    let content = until_nul(content);
    let mut known = lock(&KNOWN);
    match known.get(content) {
        Some(text) => text.as_ptr(),
        None => known.entry(content.to_vec()).or_insert(Text::new(content)).as_ptr(),
    }
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

/// The library whose log function `log` is NCCL's, if the host is to pretend that this library calls
/// the plugin.
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

fn text_at(address: *const c_char) -> String {
    if address.is_null() {
        return String::new();
    }
    // SAFETY: every caller passes the address of a C string, from the plugin or the loader, that
    // lives during this call.
    unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned()
}

/// Whether any version has such a field for a start.
pub(crate) fn has_field(kind: &Kind, name: &str) -> bool {
    let header = matches!(name, "parentObj" | "rank");
    let net = name == "net" && kind.name == "NetPlugin";
    header || net || kind.member.is_some_and(|member| layout::field_names(member).contains(&name))
}

fn bits(field: &Field, value: Value<'_>) -> u64 {
    match (value, field.ctype) {
        (Value::Bits(bits), _) => bits,
        (Value::Text(text), CType::Str) => intern(text) as u64,
        (Value::Cell(text), CType::Str) => text.as_ptr() as u64,
        (Value::Text(text), _) => u64::from(enumerated(field.name, &String::from_utf8_lossy(text))),
        (Value::Cell(text), _) => u64::from(enumerated(field.name, &text_at(text.as_ptr()))),
        (Value::Net(_), _) => 0,
    }
}

/// The value that NCCL's headers give a name, for v1, where functions and the like are numbers. A
/// later name has none, and becomes a number that no name has.
fn enumerated(field: &str, name: &str) -> u8 {
    const FUNCTIONS: &[&str] =
        &["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"];
    // In later versions `ncclUint8` is spelled "Unknown".
    const DATATYPES: &[&str] = &[
        "ncclInt8",
        "Unknown",
        "ncclInt32",
        "ncclUint32",
        "ncclInt64",
        "ncclUint64",
        "ncclFloat16",
        "ncclFloat32",
        "ncclFloat64",
        "ncclBfloat16",
        "ncclFloat8e4m3",
        "ncclFloat8e5m2",
    ];
    const ALGORITHMS: &[&str] = &["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];
    const PROTOCOLS: &[&str] = &["LL", "LL128", "SIMPLE"];
    let names = match field {
        "func" => FUNCTIONS,
        "datatype" => DATATYPES,
        "algo" => ALGORITHMS,
        "proto" => PROTOCOLS,
        _ => &[],
    };
    let name = if name == "ncclUint8" { "Unknown" } else { name };
    names.iter().position(|known| *known == name).map_or(u8::MAX, |position| position as u8)
}

#[inline]
fn write(bytes: &mut [u8], field: &Field, bits: u64) {
    let place = &mut bytes[field.offset..][..field.size];
    match field.size {
        1 => place.copy_from_slice(&(bits as u8).to_ne_bytes()),
        4 => place.copy_from_slice(&(bits as u32).to_ne_bytes()),
        _ => place.copy_from_slice(&bits.to_ne_bytes()),
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_an_address_and_fresh_ones_do_not() {
        assert_eq!(intern(b"AllReduce"), intern(b"AllReduce"));
        assert_ne!(intern(b"AllReduce"), intern(b"AllGather"));
        assert_ne!(Text::new(b"AllReduce").as_ptr(), Text::new(b"AllReduce").as_ptr());
    }

    #[test]
    fn a_text_changes_under_its_address() {
        let text = Text::new(b"AllReduce");
        text.overwrite(b"Send");
        assert_eq!(text_at(text.as_ptr()), "Send");
        text.overwrite(&[b'x'; 1000]);
        assert_eq!(text_at(text.as_ptr()).len(), 64);
    }

    #[test]
    fn undefined_bytes_are_garbage() {
        for version in layout::VERSIONS {
            let kind = layout::kind("ProxyOp").unwrap();
            let context = Context::foreign(RawHandle::NULL);
            let descriptor = Descriptor::of_kind(version, &context, kind, &[], RawHandle(7)).unwrap();
            let mut meant = vec![false; layout::MAX_DESCRIPTOR];
            let ours = |field: &&Field| field.event == HEADER || field.event == "proxyOp";
            for field in layout::fields(version).iter().filter(ours) {
                meant[field.offset..][..field.size].fill(true);
            }
            for (byte, meant) in descriptor.bytes.iter().zip(meant) {
                assert!(meant || *byte == GARBAGE);
            }
            assert_eq!(descriptor.bytes[0], 8);
            assert_eq!(descriptor.bytes[1] == GARBAGE, version <= 4);
        }
    }

    #[test]
    fn the_group_is_the_parent_up_to_v4() {
        for version in layout::VERSIONS {
            let kind = layout::kind("Coll").unwrap();
            let context = Context::foreign(RawHandle::NULL);
            let fields = [("parentGroup", Value::Bits(2))];
            let descriptor = Descriptor::of_kind(version, &context, kind, &fields, RawHandle(1)).unwrap();
            let parent = u64::from_ne_bytes(descriptor.bytes[8..16].try_into().unwrap());
            assert_eq!(parent, if version <= 4 { 2 } else { 1 });
        }
    }

    #[test]
    fn names_become_numbers_in_v1() {
        let kind = layout::kind("Coll").unwrap();
        let context = Context::foreign(RawHandle::NULL);
        let fields = [
            ("func", "AllReduce".into()),
            ("datatype", "ncclBfloat16".into()),
            ("algo", "RING".into()),
            ("proto", "SIMPLE".into()),
            ("nChannels", 16.into()),
        ];
        let descriptor = Descriptor::of_kind(1, &context, kind, &fields, RawHandle::NULL).unwrap();
        let byte = |name| descriptor.bytes[descriptor.slot(name).unwrap().0.offset];
        assert_eq!(["func", "datatype", "algo", "proto", "nMaxChannels"].map(byte), [4, 9, 1, 2, 16]);
        assert_eq!(enumerated("func", "AlltoAll"), u8::MAX);
    }

    #[test]
    fn a_number_that_one_byte_cannot_hold_is_left_out() {
        assert!(Descriptor::of_number(4, 0x100000, &[], RawHandle::NULL).is_none());
        assert!(Descriptor::of_number(5, 0x100000, &[], RawHandle::NULL).is_some());
    }

    #[test]
    fn a_missing_library_is_named() {
        // SAFETY: nothing is loaded, so nothing is promised.
        let error = unsafe { Plugin::load(Path::new("/nowhere/libnone.so"), 7) }.unwrap_err();
        assert!(error.to_string().starts_with("failed to open /nowhere/libnone.so: "), "{error}");
    }
}
