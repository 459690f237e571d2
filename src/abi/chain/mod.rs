//! Another profiler plugin beside ours. NCCL loads one; `NCCLSCOPE_CHAIN` names a second one, which
//! we load and call as NCCL would.
//!
//! NCCL gets our handles, and [`table`] maps them to the other plugin's. Each plugin gets the
//! events that its own mask asks for, NCCL the union of both masks. An event that only the other
//! plugin asked for has a *spare* handle, with a tag of its own, and is not recorded. The other
//! plugin may have another interface version than NCCL: see [`convert`].
//!
//! We record first and then call the other plugin, so that its time and its failures come after
//! ours. On this path we take no lock, allocate nothing and make no system call.

mod convert;
mod table;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::convert::{Comm, Descriptor};
use self::table::{Name, Table, What};
use super::common::Descr;
use super::{
    Abi, Birth, InitUntold, InitV4, InitV5, Logger, SUCCESS, Start, Status, fence, record_start, record_state,
};
use crate::model::ids::{Handle, ProcessTag};
use crate::model::kinds::{Kinds, asked_by};
use crate::model::state;
use crate::profiler::{self, Answer};
use crate::record::recorder;
use crate::{fault, process, sys};

/// Sets of eight handles, as a power of two: 2^17 events in 2 MiB.
const EVENT_SETS: u32 = 14;
/// The same for calls captured into graphs, and for communicators: 2^14 in 256 KiB.
const KEPT_SETS: u32 = 11;
/// The bits of a handle that number it.
const NUMBER: u64 = (1 << Handle::COUNTER_BITS) - 1;

/// A plugin's table, whose functions have the same types in every version except for `init`.
#[repr(C)]
struct Functions {
    name: *const c_char,
    init: *const c_void,
    start: Option<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> Status>,
    stop: Option<unsafe extern "C" fn(*mut c_void) -> Status>,
    state: Option<unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> Status>,
    finalize: Option<unsafe extern "C" fn(*mut c_void) -> Status>,
}

/// The other plugin.
pub(super) struct Other {
    version: u8,
    init: *const c_void,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> Status,
    stop: unsafe extern "C" fn(*mut c_void) -> Status,
    state: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> Status,
    finalize: unsafe extern "C" fn(*mut c_void) -> Status,
    /// The tag of spare handles, in their high bits.
    spare: u64,
    /// Handles of events. The first to stop is the first to be forgotten.
    events: Table,
    /// Handles of events that remain parents for as long as their graph exists.
    kept: Table,
    /// Contexts, with the names and hashes of their communicators.
    contexts: Table,
    /// The mask that it believes to be NCCL's. It may change it at any time.
    mask: AtomicI32,
    /// Its mask, as last passed to NCCL.
    seen: AtomicI32,
    /// What our recording asked for.
    ours: AtomicU64,
    /// It has NCCL's own mask, since we ask for nothing.
    alone: AtomicBool,
    nccl: NcclMask,
}

/// NCCL's mask, while there are communicators.
struct NcclMask {
    /// Null before the first `init` and after the last `finalize`.
    mask: AtomicPtr<c_int>,
    /// Communicators between `init` and `finalize`.
    live: Mutex<u32>,
}

impl NcclMask {
    const fn new() -> NcclMask {
        NcclMask { mask: AtomicPtr::new(std::ptr::null_mut()), live: Mutex::new(0) }
    }

    fn live(&self) -> MutexGuard<'_, u32> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A communicator begins, whose `init` got this mask.
    fn begin(&self, mask: *mut c_int) {
        let mut live = self.live();
        *live += 1;
        self.mask.store(mask, Ordering::Relaxed);
    }

    /// A communicator ends.
    fn end(&self) {
        let mut live = self.live();
        *live = live.saturating_sub(1);
        if *live == 0 {
            self.mask.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

// SAFETY: functions and atomics, and the address of a function.
unsafe impl Sync for Other {}
// SAFETY: as above.
unsafe impl Send for Other {}

static OTHER: AtomicPtr<Other> = AtomicPtr::new(std::ptr::null_mut());

/// The other plugin, once an `init` has loaded it.
#[inline]
pub(super) fn other() -> Option<&'static Other> {
    // SAFETY: null, or a value that is never freed.
    unsafe { OTHER.load(Ordering::Acquire).as_ref() }
}

/// Loads it with the first `init`, if the settings name one. Says why if it cannot.
fn load<A: Abi>() -> Option<&'static Other> {
    static TRIED: Mutex<bool> = Mutex::new(false);
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    if !std::mem::replace(&mut *tried, true)
        && let Some(path) = profiler::chain()
    {
        match Other::open::<A>(&path) {
            Ok(other) => {
                let text =
                    format!("{} gets NCCL's calls too, through its interface v{}", path.display(), other.version);
                OTHER.store(Box::into_raw(Box::new(other)), Ordering::Release);
                process::stand_beside();
                profiler::note_chain(&text, false);
            }
            Err(reason) => complain(&format!("no other plugin beside ncclscope (NCCLSCOPE_CHAIN): {reason}")),
        }
    }
    drop(tried);
    other()
}

fn complain(text: &str) {
    profiler::note_chain(text, true);
}

/// Calls the other plugin's `init` and `finalize`, and reports how they went.
impl Other {
    fn open<A: Abi>(path: &Path) -> Result<Other, String> {
        let shown = path.display();
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path contains a NUL byte".to_owned())?;
        // SAFETY: a C string. What the library does when it is loaded is its own affair, as with
        // NCCL. It is never closed: its threads may live on.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
        if library.is_null() {
            // SAFETY: null or a C string, valid until this thread calls the loader again.
            let reason = unsafe { libc::dlerror().as_ref().map(|reason| CStr::from_ptr(reason)) };
            let reason = reason.map_or("the loader does not say why".into(), CStr::to_string_lossy);
            return Err(format!("{shown} cannot be loaded: {reason}"));
        }
        // SAFETY: an open library and C strings.
        let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        if !symbol(c"ncclscope_version").is_null() {
            return Err(format!("{shown} is ncclscope itself"));
        }
        let table = |version: u8| {
            let name = CString::new(format!("ncclProfiler_v{version}")).unwrap_or_default();
            // SAFETY: the symbol is a table of NCCL's interface, in a library that stays loaded.
            unsafe { symbol(&name).cast::<Functions>().as_ref() }.map(|table| (version, table))
        };
        // The version that NCCL speaks, or else the newest older one, or else the oldest newer one.
        let (version, table) = (1..=A::VERSION)
            .rev()
            .chain(A::VERSION + 1..=7)
            .find_map(table)
            .ok_or_else(|| format!("{shown} has no profiler table (ncclProfiler_v1 to ncclProfiler_v7)"))?;
        let missing = |function: &str| format!("{shown} has no {function} in its ncclProfiler_v{version}");
        if table.init.is_null() {
            return Err(missing("init"));
        }
        convert::prepare();
        Ok(Other {
            version,
            init: table.init,
            start: table.start.ok_or_else(|| missing("startEvent"))?,
            stop: table.stop.ok_or_else(|| missing("stopEvent"))?,
            state: table.state.ok_or_else(|| missing("recordEventState"))?,
            finalize: table.finalize.ok_or_else(|| missing("finalize"))?,
            spare: spare_tag(),
            events: Table::new(EVENT_SETS, true),
            kept: Table::new(KEPT_SETS, false),
            contexts: Table::new(KEPT_SETS, false),
            mask: AtomicI32::new(0),
            seen: AtomicI32::new(0),
            ours: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            nccl: NcclMask::new(),
        })
    }

    /// # Safety
    ///
    /// As for [`super::init`].
    unsafe fn call_init(&self, context: &mut *mut c_void, mask: *mut c_int, birth: &Birth) -> Status {
        let Birth { hash, name, nodes, ranks, rank, logger } = *birth;
        // Up to v3 NCCL passes none, and a newer plugin calls it without a look.
        let logger = if logger.is_null() { no_log as Logger } else { logger };
        // SAFETY: a table of this version has an `init` of this type; the caller's promise for its
        // arguments.
        unsafe {
            match self.version {
                1..=3 => std::mem::transmute::<*const c_void, InitUntold>(self.init)(context, mask),
                4 => {
                    let init = std::mem::transmute::<*const c_void, InitV4>(self.init);
                    init(context, mask, name, hash, nodes, ranks, rank, logger)
                }
                _ => {
                    let init = std::mem::transmute::<*const c_void, InitV5>(self.init);
                    init(context, hash, mask, name, nodes, ranks, rank, logger)
                }
            }
        }
    }

    /// # Safety
    ///
    /// `context` is its own, and this is the last call with it.
    unsafe fn call_finalize(&self, context: *mut c_void) {
        if !context.is_null() {
            // SAFETY: the caller's promise.
            unsafe { (self.finalize)(context) };
        }
    }

    /// The name of a handle in the tables. `None` if this process did not make it.
    #[inline]
    fn name(&self, handle: Handle) -> Option<Name> {
        match handle {
            Handle::NONE => None,
            _ if self.is_spare(handle) => Some(Name::new(What::Spare, handle.0 & NUMBER)),
            _ if recorder::is_ours(handle) => Some(Name::new(What::Ours, handle.0 & NUMBER)),
            _ => None,
        }
    }

    #[inline]
    fn is_spare(&self, handle: Handle) -> bool {
        handle.0 & !NUMBER == self.spare
    }

    /// A handle for an event that only the other plugin gets.
    fn spare_handle(&self) -> Handle {
        Handle(recorder::unrecorded_handle().0 & NUMBER | self.spare)
    }

    /// Its own handle for a parent: null for one that it does not have or that was forgotten.
    fn parent(&self, parent: *mut c_void) -> *mut c_void {
        let found = self.name(Handle(parent as u64)).and_then(|name| {
            let found = self.events.get(name).or_else(|| self.kept.get(name));
            found.map(|(value, _)| value)
        });
        found.map_or(std::ptr::null_mut(), |value| value as *mut c_void)
    }

    /// Its own context: null for one of another process, as PXN passes them. `None` if its `init`
    /// failed for this communicator.
    fn context(&self, context: *mut c_void) -> Option<*mut c_void> {
        match self.name(Handle(context as u64)) {
            Some(name) => self.contexts.get(name).map(|(value, _)| value as *mut c_void),
            None => Some(std::ptr::null_mut()),
        }
    }

    /// The communicator that descriptors named up to v3.
    fn comm(&self, context: *mut c_void) -> Comm {
        let of = |what| self.contexts.get(Name::new(what, context as u64 & NUMBER)).map_or(0, |(value, _)| value);
        Comm { name: of(What::CommName) as *const c_char, hash: of(What::CommHash) }
    }

    /// Remembers a communicator, under the context that NCCL gets. False if there is no room.
    fn keep(&self, context: Handle, theirs: *mut c_void, birth: &Birth) -> bool {
        let Some(name) = self.name(context) else { return false };
        let number = context.0 & NUMBER;
        let entries = [
            (name, theirs as u64),
            (Name::new(What::CommName, number), birth.name as u64),
            (Name::new(What::CommHash, number), birth.hash),
        ];
        // Its descriptors have name and hash up to v3.
        let entries = entries.iter().take(if self.version <= 3 { 3 } else { 1 });
        let is_kept = entries.copied().all(|(name, value)| self.contexts.put(name, value));
        if !is_kept {
            self.forget(context);
        }
        is_kept
    }

    fn forget(&self, context: Handle) {
        let number = context.0 & NUMBER;
        let names = [Name::new(What::CommName, number), Name::new(What::CommHash, number)];
        self.name(context).into_iter().chain(names).for_each(|name| self.contexts.remove(name));
    }

    /// Whether its own mask asks for such an event.
    #[inline]
    fn wants(&self, bits: u64) -> bool {
        self.alone.load(Ordering::Relaxed) || asked_by(bits) & u64::from(self.mask.load(Ordering::Relaxed) as u32) != 0
    }

    /// Passes changes of the other plugin's mask on to NCCL.
    #[inline]
    fn follow_mask(&self) {
        let mask = self.mask.load(Ordering::Relaxed);
        if mask != self.seen.load(Ordering::Relaxed) && !self.alone.load(Ordering::Relaxed) {
            self.seen.store(mask, Ordering::Relaxed);
            let union = self.ours.load(Ordering::Relaxed) as c_int | mask;
            // SAFETY: null, or NCCL's mask, which exists between `init` and `finalize`, and so
            // during its calls.
            unsafe {
                if let Some(nccl) = self.nccl.mask.load(Ordering::Relaxed).as_mut() {
                    AtomicI32::from_ptr(nccl).store(union, Ordering::Relaxed);
                }
            }
        }
    }

    /// Starts the event for the other plugin, if it asked for it. Returns its handle, which is not
    /// null.
    ///
    /// # Safety
    ///
    /// As for [`super::start_event`].
    unsafe fn start<A: Abi>(
        &self,
        context: *mut c_void,
        descr: &Descr<A::Bits, A::Body>,
        bits: u64,
    ) -> Option<*mut c_void> {
        if !self.wants(bits) {
            return None;
        }
        let theirs = self.context(context)?;
        let body = (&raw const descr.body).cast::<c_void>();
        // SAFETY: the caller's promise.
        let mut made =
            unsafe { Descriptor::new(A::VERSION, self.version, bits, descr.rank, body, || self.comm(context))? };
        let group = match A::VERSION {
            // SAFETY: the caller's promise.
            5.. => unsafe { convert::group(bits, body) },
            _ => std::ptr::null_mut(),
        };
        let is_operation = matches!(bits, crate::model::kinds::bit::COLL | crate::model::kinds::bit::P2P);
        made.parent = match (A::VERSION, self.version) {
            // Up to v4 the parent of an operation is its group. A newer plugin expects a call
            // there, and there is none.
            (5.., ..5) if is_operation => self.parent(group),
            (..5, 5..) if is_operation => std::ptr::null_mut(),
            _ => self.parent(descr.parent),
        };
        if self.version >= 5 && is_operation {
            made.set_group(self.parent(if A::VERSION >= 5 { group } else { descr.parent }));
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: a descriptor of its version, which lives as long as the call.
        unsafe { (self.start)(theirs, &raw mut handle, (&raw const made).cast()) };
        (!handle.is_null()).then_some(handle)
    }

    /// Remembers which handle of the other plugin's belongs to this one.
    ///
    /// # Safety
    ///
    /// `body` is what NCCL filled for an event of type `bits` in version `from`.
    unsafe fn remember(&self, from: u8, bits: u64, body: *const c_void, handle: Handle, theirs: *mut c_void) -> bool {
        let Some(name) = self.name(handle) else { return false };
        // SAFETY: the caller's promise.
        let stays = from >= 5 && unsafe { convert::is_captured(bits, body) };
        stays && self.kept.put(name, theirs as u64) || self.events.put(name, theirs as u64)
    }
}

/// NCCL's log function for a plugin that NCCL gave none. It is called with the arguments of a
/// variadic function, and looks at none of them.
extern "C" fn no_log() {}

/// A tag that no recording of this process has.
fn spare_tag() -> u64 {
    loop {
        let tag = ProcessTag::from_random(sys::random()).base();
        if !recorder::is_ours(Handle(tag)) {
            return tag;
        }
    }
}

/// `init` of the other plugin, after ours. Returns the context that NCCL gets, and what is asked of
/// NCCL altogether.
///
/// # Safety
///
/// As for [`super::init`].
pub(super) unsafe fn init<A: Abi>(mask: *mut c_int, birth: &Birth, ours: Answer) -> Answer {
    let Some(other) = load::<A>() else { return ours };
    fault::at("forward init");
    let alone = ours.kinds == Kinds::NONE;
    other.alone.store(alone, Ordering::Relaxed);
    other.ours.store(ours.kinds.0, Ordering::Relaxed);
    let its_mask = if alone && !mask.is_null() { mask } else { other.mask.as_ptr() };
    // SAFETY: NCCL's mask, or ours; the caller's promise.
    let its_mask_now = || unsafe { AtomicI32::from_ptr(its_mask).load(Ordering::Relaxed) };
    // Its other communicators need what they asked for, whatever becomes of this one.
    let before = if *other.nccl.live() > 0 { its_mask_now() } else { 0 };
    let without = Answer { kinds: ours.kinds | Kinds(u64::from(before as u32)), ..ours };
    let mut theirs = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    let status = unsafe { other.call_init(&mut theirs, its_mask, birth) };
    if status != SUCCESS {
        complain(&format!(
            "the other plugin's init failed with {status} for a communicator; it gets no calls of that communicator"
        ));
        return without;
    }
    let context = if ours.context.is_none() { other.spare_handle() } else { ours.context };
    if !other.keep(context, theirs, birth) {
        complain("the other plugin gets no calls of a communicator: there are too many communicators");
        // SAFETY: its own context, once.
        unsafe { other.call_finalize(theirs) };
        return without;
    }
    other.nccl.begin(mask);
    let wanted = its_mask_now();
    other.seen.store(wanted, Ordering::Relaxed);
    Answer { context, kinds: ours.kinds | Kinds(u64::from(wanted as u32)) }
}

/// `finalize` of both plugins.
pub(super) fn finalize(other: &Other, context: *mut c_void) -> Status {
    sys::without_cancellation(|| {
        let status = fence(|| profiler::comm_finalize(Handle(context as u64)));
        if process::is_child() {
            return status;
        }
        fence(|| {
            fault::at("forward finalize");
            let context = Handle(context as u64);
            let Some(name) = other.name(context) else { return };
            let Some((theirs, _)) = other.contexts.get(name) else { return };
            // SAFETY: its own context, once.
            unsafe { other.call_finalize(theirs as *mut c_void) };
            other.forget(context);
            other.nccl.end();
        })
    })
}

/// `startEvent` of both plugins. Kept apart, like the next two, from the code that runs without a
/// second plugin.
///
/// # Safety
///
/// As for [`super::start_event`].
#[cold]
pub(super) unsafe fn start<A: Abi>(
    other: &Other,
    context: *mut c_void,
    out: &mut *mut c_void,
    descr: *const Descr<A::Bits, A::Body>,
) -> Status {
    fence(|| {
        // SAFETY: the caller's promise; the borrow ends before we return.
        let Some(descr) = (unsafe { descr.as_ref() }) else { return };
        // SAFETY: the caller's promise.
        unsafe { start_both::<A>(other, context, out, descr) };
    })
}

/// # Safety
///
/// As for [`super::start_event`].
unsafe fn start_both<A: Abi>(
    other: &Other,
    context: *mut c_void,
    out: &mut *mut c_void,
    descr: &Descr<A::Bits, A::Body>,
) {
    let bits = descr.bits.into();
    let parent = Handle(descr.parent as u64);
    let is_recorded = recorder::is_on() && asked_by(bits) & other.ours.load(Ordering::Relaxed) != 0;
    let ours = match is_recorded {
        true => {
            // A parent that is not recorded is none, rather than one of another process.
            let parent = if other.is_spare(parent) { Handle::NONE } else { parent };
            let start = Start { parent, context: Handle(context as u64), rank: descr.rank };
            // SAFETY: the caller's promise.
            unsafe { record_start::<A>(bits, &descr.body, &start) }
        }
        false => Handle::NONE,
    };
    // Whatever becomes of the other plugin's event, ours has its end.
    *out = ours.0 as *mut c_void;
    if process::is_child() {
        return;
    }
    fault::at("forward start");
    // SAFETY: the caller's promise.
    let theirs = unsafe { other.start::<A>(context, descr, bits) };
    other.follow_mask();
    let Some(theirs) = theirs else { return };
    let handle = if ours.is_none() { other.spare_handle() } else { ours };
    let body = (&raw const descr.body).cast::<c_void>();
    // SAFETY: the caller's promise.
    if unsafe { other.remember(A::VERSION, bits, body, handle, theirs) } {
        *out = handle.0 as *mut c_void;
        return;
    }
    // It would never hear of the end.
    // SAFETY: its own handle.
    unsafe { (other.stop)(theirs) };
}

/// `stopEvent` of both plugins.
#[cold]
pub(super) fn stop(other: &Other, handle: *mut c_void) -> Status {
    fence(|| {
        let handle = Handle(handle as u64);
        if !other.is_spare(handle) {
            match recorder::is_on() {
                true => recorder::stop(handle),
                false => recorder::stop_unrecorded(handle),
            }
        }
        if process::is_child() {
            return;
        }
        fault::at("forward stop");
        // NCCL stops some handles twice, and the other plugin may have given its own away by then.
        let theirs = other.name(handle).and_then(|name| other.events.stop(name).or_else(|| other.kept.stop(name)));
        if let Some(theirs) = theirs {
            // SAFETY: its own handle, once.
            unsafe { (other.stop)(theirs as *mut c_void) };
        }
        other.follow_mask();
    })
}

/// `recordEventState` of both plugins.
///
/// # Safety
///
/// As for [`super::record_event_state`].
#[cold]
pub(super) unsafe fn state<A: Abi>(other: &Other, handle: Handle, number: c_int, args: *const A::StateArgs) -> Status {
    fence(|| {
        if recorder::is_on() && !other.is_spare(handle) {
            // SAFETY: the caller's promise.
            unsafe { record_state::<A>(handle, number, args) };
        }
        // SAFETY: the caller's promise.
        unsafe { forward_state::<A>(other, handle, number, args) };
    })
}

/// # Safety
///
/// As for [`super::record_event_state`].
unsafe fn forward_state<A: Abi>(other: &Other, handle: Handle, number: c_int, args: *const A::StateArgs) {
    let Some(name) = other.name(handle) else { return };
    fault::at("forward state");
    if process::is_child() || !u16::try_from(number).is_ok_and(|number| convert::has_state(other.version, number)) {
        return;
    }
    // What has stopped has no states.
    let Some((theirs, true)) = other.events.get(name).or_else(|| other.kept.get(name)) else { return };
    let args = args.cast::<c_void>();
    let mut padded = [0_u64; 2];
    let args = match (A::VERSION, other.version) {
        // From 16 bytes to 8, the first member is the same.
        _ if args.is_null() => args,
        (4.., ..4) => {
            // SAFETY: arguments of eight bytes. Only bytes that the state defines have a meaning.
            unsafe { args.cast::<u8>().copy_to_nonoverlapping((&raw mut padded).cast(), 8) };
            // Up to v3 steps had no size.
            if number != c_int::from(state::PROXY_CTRL_APPEND_END) {
                padded = [0; 2];
            }
            (&raw const padded).cast()
        }
        _ => args,
    };
    // SAFETY: its own handle, and arguments of its version that live as long as the call.
    unsafe { (other.state)(theirs as *mut c_void, number, args) };
    other.follow_mask();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_s_mask_is_known_while_there_is_a_communicator() {
        static NCCL: NcclMask = NcclMask::new();
        static MASK: AtomicI32 = AtomicI32::new(0);
        let live_and_die = || {
            for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
                NCCL.begin(MASK.as_ptr());
                assert!(!NCCL.mask.load(Ordering::Relaxed).is_null());
                NCCL.end();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(live_and_die)));
        assert!(NCCL.mask.load(Ordering::Relaxed).is_null());
    }
}
