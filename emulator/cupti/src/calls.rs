//! Calls into CUDA: their callbacks, their records, and the external ids that the caller pushed.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use observe::Call;

use crate::layout::kind;
use crate::names::{self, Function, domain};
use crate::process::{self, lock};
use crate::records::{self, ApiCall};
use crate::subscriber::{Client, PROCESS};
use crate::{clock, result, subscriber, tracer};

/// `CUpti_CallbackData`.
#[repr(C)]
pub(crate) struct CallbackData {
    pub(crate) site: u32,
    pub(crate) function_name: *const c_char,
    pub(crate) function_params: *const c_void,
    pub(crate) function_return_value: *const c_void,
    pub(crate) symbol_name: *const c_char,
    pub(crate) context: *mut c_void,
    pub(crate) context_id: u32,
    pub(crate) correlation_data: *mut u64,
    pub(crate) correlation: u32,
}

/// A call that has begun.
struct Frame {
    correlation: u32,
    id: (u32, u32),
    start: u64,
    /// Whether its callbacks are skipped.
    is_missed: bool,
    /// The caller's word, kept between entry and exit. It is boxed because its address is given
    /// out.
    data: Box<u64>,
}

/// One more than the highest kind of external id.
const EXTERNAL_KINDS: usize = 6;

#[derive(Default)]
struct Thread {
    /// Innermost last.
    frames: Vec<Frame>,
    external: HashMap<Client, [Vec<u64>; EXTERNAL_KINDS]>,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Uses the thread's state; `None` if the thread has torn it down already, which a last call into
/// CUDA at the thread's end may find.
fn with<T>(use_it: impl FnOnce(&mut Thread) -> T) -> Option<T> {
    THREAD.try_with(|thread| use_it(&mut thread.borrow_mut())).ok()
}

/// The correlation id of the innermost call that this thread is in, or 0.
pub(crate) fn current_correlation() -> u32 {
    with(|thread| thread.frames.last().map(|frame| frame.correlation)).flatten().unwrap_or(0)
}

/// Pushes an external id.
///
/// # Errors
///
/// When there is no such kind.
pub(crate) fn push_external(client: Client, kind: u32, id: u64) -> Result<(), u32> {
    with_external(client, kind, |stack| {
        stack.push(id);
        Ok(())
    })
}

/// Pops the external id that was pushed last.
///
/// # Errors
///
/// When there is no such kind, or none was pushed.
pub(crate) fn pop_external(client: Client, kind: u32) -> Result<u64, u32> {
    with_external(client, kind, |stack| stack.pop().ok_or(result::QUEUE_EMPTY))
}

/// Whether there is a kind of external ids with this number.
pub(crate) fn is_external_kind(kind: u32) -> bool {
    (1..EXTERNAL_KINDS).contains(&(kind as usize))
}

fn with_external<T>(client: Client, kind: u32, change: impl FnOnce(&mut Vec<u64>) -> Result<T, u32>) -> Result<T, u32> {
    if !is_external_kind(kind) {
        return Err(result::INVALID_PARAMETER);
    }
    with(|thread| change(&mut thread.external.entry(client).or_default()[kind as usize]))
        .unwrap_or(Err(result::INVALID_OPERATION))
}

/// A call begins or ends on this thread.
pub(crate) fn on_call(call: &Call) {
    // SAFETY: the machine passes a C string.
    let name = unsafe { CStr::from_ptr(call.function) };
    let Some(function) = names::find(name, process::options().release) else {
        wonder(name);
        return;
    };
    if call.exits == 0 { enter(call, function) } else { exit(call, function) }
}

fn enter(call: &Call, function: Function) {
    let start = process::attached().map_or(0, |machine| clock::stamp_call(machine, call.at));
    let id = (function.domain, function.id);
    let mut data = Box::new(0);
    let word = &raw mut *data;
    let is_missed = process::happens(process::options().miss);
    let frame = Frame { correlation: call.correlation, id, start, is_missed, data };
    if with(|thread| thread.frames.push(frame)).is_some() && !is_missed {
        call_back(call, function, word, std::ptr::null());
    }
}

fn exit(call: &Call, function: Function) {
    let id = (function.domain, function.id);
    let matches = |frame: &Frame| frame.correlation == call.correlation && frame.id == id;
    // A call that began before the library was attached has no frame and is not recorded. Frames
    // above it belong to calls whose end was not reported.
    let word = with(|thread| {
        let place = thread.frames.iter().rposition(matches)?;
        thread.frames.truncate(place + 1);
        let frame = &mut thread.frames[place];
        Some((&raw mut *frame.data, frame.is_missed))
    });
    let Some((word, is_missed)) = word.flatten() else { return };
    if !is_missed {
        call_back(call, function, word, (&raw const call.result).cast());
    }
    if let Some(frame) = with(|thread| thread.frames.pop()).flatten() {
        record(call, function, frame.start);
    }
}

/// Makes the callback at a call's beginning or end. The thread's state is not borrowed during it,
/// because it may call back into us.
fn call_back(call: &Call, function: Function, word: *mut u64, return_value: *const c_void) {
    let data = CallbackData {
        site: call.exits,
        function_name: function.name.as_ptr(),
        function_params: call.parameters,
        function_return_value: return_value,
        symbol_name: call.symbol,
        context: call.context,
        context_id: call.context_id,
        correlation_data: word,
        correlation: subscriber::told(call.correlation),
    };
    subscriber::call_back(function.domain, function.id, &data);
}

/// Writes the record of a call, if wanted; and before it one for each kind of external id that is
/// pushed.
fn record(call: &Call, function: Function, start: u64) {
    let record_kind = if function.domain == domain::DRIVER { kind::DRIVER } else { kind::RUNTIME };
    let clients = tracer::wanting_call(record_kind, function.id);
    let Some(machine) = process::attached().filter(|_| !clients.is_empty()) else { return };
    let release = process::options().release;
    let with_ids = tracer::wanting(kind::EXTERNAL_CORRELATION);
    let end = clock::stamp_call(machine, call.at);
    for client in clients {
        let tops = with(|thread| {
            let stacks = thread.external.get(&client).into_iter().flatten().enumerate();
            stacks.filter_map(|(kind, stack)| Some((kind, *stack.last()?))).collect::<Vec<_>>()
        });
        for (external_kind, id) in tops.filter(|_| with_ids.contains(&client)).unwrap_or_default() {
            tracer::write_for(client, records::external(release, external_kind as u32, id, call.correlation));
        }
        let call = ApiCall {
            kind: record_kind,
            id: function.id,
            start,
            end,
            thread: thread_id(client),
            correlation: call.correlation,
            result: call.result,
        };
        tracer::write_for(client, call.record(release));
    }
}

/// The system's id of this thread.
pub(crate) fn system_thread_id() -> u32 {
    thread_local! {
        // SAFETY: the call has no arguments and cannot fail.
        static ID: u32 = unsafe { libc::gettid() } as u32;
    }
    ID.with(|id| *id)
}

static THREAD_ID_TYPE: AtomicU32 = AtomicU32::new(0);
/// The types that subscribers who share have chosen.
static THREAD_ID_TYPES_OF: Mutex<Option<HashMap<Client, u32>>> = Mutex::new(None);

/// The types of thread ids: the value of `pthread_self`, truncated to 32 bits, or the system's id.
pub(crate) const THREAD_ID_TYPES: u32 = 2;

/// The type of the thread ids in a client's records.
pub(crate) fn thread_id_type(client: Client) -> u32 {
    match client {
        PROCESS => THREAD_ID_TYPE.load(Ordering::Relaxed),
        client => lock(&THREAD_ID_TYPES_OF).get_or_insert_default().get(&client).copied().unwrap_or(0),
    }
}

/// Chooses the type of thread ids.
pub(crate) fn set_thread_id_type(client: Client, id_type: u32) {
    match client {
        PROCESS => THREAD_ID_TYPE.store(id_type, Ordering::Relaxed),
        client => _ = lock(&THREAD_ID_TYPES_OF).get_or_insert_default().insert(client, id_type),
    }
}

/// The id of this thread in a client's records.
pub(crate) fn thread_id(client: Client) -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    if thread_id_type(client) == 0 { unsafe { libc::pthread_self() as u32 } } else { system_thread_id() }
}

/// Reports once that a function has no number here: then the emulator has more of CUDA than this
/// library knows.
fn wonder(name: &CStr) {
    static WONDERED: Mutex<Option<HashSet<CString>>> = Mutex::new(None);
    if !names::is_listed(name) && lock(&WONDERED).get_or_insert_default().insert(name.to_owned()) {
        eprintln!("emulated CUPTI: {} is missing in emulator/cupti/src/names.rs", name.to_string_lossy());
    }
}
