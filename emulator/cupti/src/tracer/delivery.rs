//! Buffers: requested from the caller, filled, returned.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use observe::Machine;

use super::work::catch_up;
use super::{DELIVERY, REQUEST, Share, WORK, ZEROED_BUFFERS, wanting, with, with_share};
use crate::buffers::{Lane, Memory, Returned, Slot, Take};
use crate::layout::kind;
use crate::process::{self, Inside, lock};
use crate::records::{self, Record, overhead};
use crate::release::Release;
use crate::subscriber::Client;
use crate::{calls, clock, corrupt};

/// `CUpti_BuffersCallbackRequestFunc`.
pub(crate) type Request = unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`.
pub(crate) type Complete =
    unsafe extern "C" fn(context: *mut c_void, stream: u32, buffer: *mut u8, size: usize, valid: usize);
/// `CUpti_BuffersCallbackRequestFunc_v2`.
pub(crate) type RequestV2 =
    unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, most: *mut usize, info: *mut RequestInfo);
/// `CUpti_BuffersCallbackCompleteFunc_v2`.
pub(crate) type CompleteV2 = unsafe extern "C" fn(buffer: *mut u8, size: usize, valid: usize, info: *mut CompleteInfo);

/// `CUpti_BufferCallbackRequestInfo`.
#[repr(C)]
#[derive(Debug)]
pub struct RequestInfo {
    /// Its own size.
    pub size: usize,
}

/// `CUpti_BufferCallbackCompleteInfo`. There are no user-defined records, so there are no layouts.
#[repr(C)]
#[derive(Debug)]
pub struct CompleteInfo {
    /// Its own size.
    pub size: usize,
    /// The thread whose records the buffer holds, or 0.
    pub thread: u64,
    /// The layouts of user-defined records, by kind.
    pub layouts: *const c_void,
    /// How many there are.
    pub count: usize,
}

/// The caller's functions for buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BufferCallbacks {
    V1(Request, Complete),
    V2(RequestV2, CompleteV2),
}

/// 0 or 1, or 2 for the release's default.
static PER_THREAD: AtomicU64 = AtomicU64::new(2);

/// Whether each thread has its own buffer, which is the default from 13.0 on.
fn has_buffers_per_thread() -> bool {
    match PER_THREAD.load(Ordering::Relaxed) {
        2 => process::options().release >= Release::V13_0,
        chosen => chosen == 1,
    }
}

/// Chooses whether each thread has its own buffer.
pub(crate) fn set_buffers_per_thread(chosen: bool) {
    PER_THREAD.store(chosen.into(), Ordering::Relaxed);
}

/// Registers a client's functions for buffers; the last registration counts.
pub(crate) fn register(client: Client, callbacks: BufferCallbacks) {
    with_share(client, |share| share.callbacks = Some(callbacks));
}

/// A client's functions for buffers.
pub(crate) fn callbacks(client: Client) -> Option<BufferCallbacks> {
    with_share(client, |share| share.callbacks)
}

/// Writes a record that is complete, for all who want its kind.
pub(crate) fn write(record: Option<Record>) {
    let Some(record) = record else { return };
    for client in wanting(record.kind()) {
        begin(client, Some(&record), true);
    }
}

/// Writes a record that is complete, for one client.
pub(crate) fn write_for(client: Client, record: Option<Record>) {
    begin(client, record.as_ref(), true);
}

/// Writes a record; `None` if it was dropped, or there are no functions to request a buffer with.
pub(super) fn begin(client: Client, record: Option<&Record>, complete: bool) -> Option<Slot> {
    let record = record?;
    let options = process::options();
    if process::happens(options.drop) {
        with_share(client, |share| share.dropped += 1);
        return None;
    }
    let lane = Lane {
        thread: if has_buffers_per_thread() { calls::system_thread_id().into() } else { 0 },
        turn: if options.reorder { (process::random() % 4) as u8 } else { 0 },
    };
    let of_interest = record.kind() != kind::OVERHEAD;
    let append = || with_share(client, |share| share.buffers.append(lane, record.as_bytes(), complete, of_interest));
    let mut slot = append();
    if slot.is_none() {
        let callbacks = with_share(client, |share| share.callbacks)?;
        let _one = lock(&REQUEST);
        // Another thread may have been faster, and a flush may return a new buffer before it holds
        // anything.
        loop {
            slot = append();
            if slot.is_some() || request(client, callbacks, lane).is_none_or(|size| size < record.as_bytes().len()) {
                break;
            }
        }
        if slot.is_none() {
            with_share(client, |share| {
                share.buffers.call_full(lane);
                share.dropped += 1;
            });
        }
    }
    if options.partial && process::happens(1.0 / 16.0) {
        with_share(client, |share| share.buffers.call_full(lane));
    }
    if with(|tracer| tracer.has_full()) {
        WORK.notify_one();
    }
    slot
}

/// Requests a buffer from the caller; its size, or `None` when none came.
fn request(client: Client, callbacks: BufferCallbacks, lane: Lane) -> Option<usize> {
    let machine = process::attached();
    let start = machine.map_or(0, clock::now);
    let memory = callbacks.request();
    if !is_usable(&memory) {
        return None;
    }
    // SAFETY: the caller gave the memory, and it overlaps no buffer that CUPTI has.
    with_share(client, |share| unsafe { share.buffers.give(lane, memory) });
    if let Some(machine) = machine.filter(|_| with_share(client, |share| share.wants(kind::OVERHEAD))) {
        let release = process::options().release;
        let (thread, end) = (calls::thread_id(client), clock::now(machine));
        // The kind came with 12.6. It is not important enough to request a buffer for it.
        if release >= Release::V12_9
            && let Some(record) = records::overhead(release, overhead::BUFFER_REQUEST, thread, start, end)
        {
            with_share(client, |share| share.buffers.append(lane, record.as_bytes(), true, false));
        }
    }
    Some(memory.size)
}

/// Whether CUPTI can use a buffer. A buffer that no correct caller would give is reported.
fn is_usable(memory: &Memory) -> bool {
    /// The first release that does not crash on an empty answer.
    const EMPTY_IS_SAFE: Release = Release::V12_9;
    const ALIGNMENT: usize = 8;
    if memory.address.is_null() {
        if process::options().release < EMPTY_IS_SAFE {
            process::misuse("a buffer request was answered with NULL, on which CUPTI before 12.9 crashes");
        }
        return false;
    }
    if !memory.address.addr().is_multiple_of(ALIGNMENT) {
        process::misuse("a buffer is not aligned to 8 bytes");
    }
    if with(|tracer| tracer.clients.values().any(|share| share.buffers.holds(memory))) {
        process::misuse("a buffer was given that CUPTI still has");
    }
    // SAFETY: the caller gave this many bytes, and nobody else uses them now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.address, memory.size) };
    if !ZEROED_BUFFERS.load(Ordering::Relaxed) {
        bytes.fill(0);
    } else if bytes.iter().any(|byte| *byte != 0) {
        process::misuse("a buffer is not zeroed, although attribute 5 promises it");
    }
    true
}

/// How many of a client's records were dropped since the last call.
pub(crate) fn take_dropped(client: Client) -> u64 {
    with_share(client, |share| std::mem::take(&mut share.dropped))
}

/// Returns buffers to the caller. The result is whether any had more in them than CUPTI's own
/// overhead.
pub(super) fn deliver(take: Take) -> bool {
    let _one = lock(&DELIVERY);
    let take_from = |share: &mut Share| Some((share.callbacks?, share.buffers.take(take)));
    let all: Vec<_> = with(|tracer| tracer.clients.values_mut().filter_map(take_from).collect());
    let of_interest = all.into_iter().map(|(callbacks, returned)| deliver_to(callbacks, returned));
    of_interest.fold(false, |any, one| any | one)
}

fn deliver_to(callbacks: BufferCallbacks, mut returned: Vec<Returned>) -> bool {
    if process::options().reorder {
        for last in (1..returned.len()).rev() {
            returned.swap(last, (process::random() % (last as u64 + 1)) as usize);
        }
    }
    let mut is_of_interest = false;
    for buffer in returned {
        is_of_interest |= buffer.is_of_interest;
        // SAFETY: this many bytes were written, and the memory is CUPTI's until it is returned.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.memory.address, buffer.filled) };
        let valid = corrupt::spoil(bytes, process::options().release);
        callbacks.complete(&buffer.memory, valid, buffer.thread);
    }
    is_of_interest
}

impl BufferCallbacks {
    /// Has the caller give a buffer.
    pub(crate) fn request(&self) -> Memory {
        let mut memory = Memory { address: std::ptr::null_mut(), size: 0, most: 0 };
        let (address, size, most) = (&raw mut memory.address, &raw mut memory.size, &raw mut memory.most);
        process::call_out(Inside::BufferCallback, || match self {
            // SAFETY: the caller's function, with places for its results.
            BufferCallbacks::V1(request, _) => unsafe { request(address, size, most) },
            BufferCallbacks::V2(request, _) => {
                let mut info = RequestInfo { size: size_of::<RequestInfo>() };
                // SAFETY: as above.
                unsafe { request(address, size, most, &raw mut info) }
            }
        });
        memory
    }

    /// Returns a buffer of the caller's, with this many valid bytes, filled for this thread.
    pub(crate) fn complete(&self, memory: &Memory, valid: usize, thread: u64) {
        let Memory { address, size, .. } = *memory;
        process::call_out(Inside::BufferCallback, || match self {
            // Context and stream have had no meaning since CUDA 6.
            // SAFETY: the caller's function and the caller's memory.
            BufferCallbacks::V1(_, complete) => unsafe { complete(std::ptr::null_mut(), 0, address, size, valid) },
            BufferCallbacks::V2(_, complete) => {
                let mut info =
                    CompleteInfo { size: size_of::<CompleteInfo>(), thread, layouts: std::ptr::null(), count: 0 };
                // SAFETY: as above.
                unsafe { complete(address, size, valid, &raw mut info) }
            }
        });
    }
}

/// Returns the buffers whose records are complete, or with `forced` all of them. It succeeds even
/// if nobody has registered functions for buffers, whatever CUPTI's header says (13.0 Update 1 on
/// H100).
pub(crate) fn flush(machine: &Machine, forced: bool) {
    static FLUSHING: AtomicBool = AtomicBool::new(false);
    if FLUSHING.swap(true, Ordering::Relaxed) {
        static SAID: Once = Once::new();
        SAID.call_once(|| eprintln!("emulated CUPTI: two threads flush at once, on which the real one has deadlocked"));
    }
    let start = clock::now(machine);
    catch_up(machine, forced);
    let is_of_interest = deliver(if forced { Take::Everything } else { Take::Complete });
    FLUSHING.store(false, Ordering::Relaxed);
    // Otherwise every flush would leave a record for the next one.
    if is_of_interest && !forced {
        let release = process::options().release;
        for client in wanting(kind::OVERHEAD) {
            let (thread, end) = (calls::thread_id(client), clock::now(machine));
            write_for(client, records::overhead(release, overhead::BUFFER_FLUSH, thread, start, end));
        }
    }
}
