//! Writes records from NCCL's threads: read the clock, copy what was passed, publish, return.

mod words;

use std::cell::{Cell, OnceCell};
use std::ffi::c_char;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::time::Duration;

use self::words::Words;
use super::nodes::Nodes;
use super::ring::{Rings, Writer};
use super::texts::Texts;
use crate::clock::host::now;
use crate::model::event::{CommInit, Kind, Net, Payload, TEXT_BYTES, header, kind};
use crate::model::ids::{Handle, ProcessTag};
use crate::model::word::Word;
use crate::{process, sys};

static RINGS: OnceLock<Rings> = OnceLock::new();
/// The process tag, in the high bits of every handle.
static TAG_BASE: AtomicU64 = AtomicU64::new(0);
/// The counter value at which the next block of handles begins.
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(HANDLE_BLOCK);
/// The numbers of recorded texts.
static TEXTS: Texts = Texts::new();

/// Panics caught in callbacks, each one a bug of ours that the trace reports.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// What is opened around launches if CUPTI offers no callback for them. [`BRACKETS`] says whether
/// it is in use.
static BRACKET: OnceLock<Bracket> = OnceLock::new();
static BRACKETS: AtomicBool = AtomicBool::new(false);

/// Launches and graph nodes dropped for lack of room, and launches whose bracket could not be
/// opened: their kernels will have no owner.
static LOST_LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// How many of them are changes of graphs.
static LOST_CHANGES: AtomicU64 = AtomicU64::new(0);

/// Graph nodes that are NCCL's or clones of them, and the graphs that NCCL captured nodes into: see
/// [`graph_of`].
static NODES: Nodes = Nodes::new();

/// Handles that a thread takes at a time, so that the shared counter is rarely touched.
const HANDLE_BLOCK: u64 = 4096;
/// Calls after which a thread without a ring tries again to get one.
const RETRY_CALLS: u32 = 1024;
/// How long `init` and `finalize` may wait for room, in milliseconds.
const PATIENCE_MS: u32 = 500;

/// A wait for room was in vain, and nobody who may wait has found room since. A recording that has
/// died must not hold up each communicator.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Whether there was room for a record that everything else depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It is recorded.
    Found,
    /// There was none in time.
    WaitedInVain,
    /// There was none, and nobody waited: an earlier wait was in vain.
    KnownToBeNone,
}

/// What a thread needs to record.
struct Local {
    /// A record is being written: see [`Local::enter`].
    busy: AtomicBool,
    writer: OnceCell<Writer<'static>>,
    /// The thread is past its thread-local destructors and has given up its ring.
    gone: Cell<bool>,
    next_handle: Cell<u64>,
    end_of_block: Cell<u64>,
    retry_in: Cell<u32>,
    /// This thread has waited for room in vain, and not found any since.
    in_vain: Cell<bool>,
    /// The open KernelLaunch or CeColl of this thread, and its open GroupApi.
    launch: Cell<Handle>,
    group: Cell<Handle>,
    /// The GroupApi in which one of NCCL's kernels is being launched without a KernelLaunch.
    silent: Cell<Handle>,
    /// A [`Bracket`] is open on this thread.
    bracket: Cell<bool>,
    /// The executable graph that was updated last on this thread, and with which graph.
    update: Cell<(u64, u64)>,
    /// The node that was updated last on this thread, until its parameters are set.
    updated: Cell<u64>,
    words: Words,
}

/// A mark around a launch by which its kernels are recognised. Called on NCCL's threads, while a
/// KernelLaunch is being recorded.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// Opens it for this KernelLaunch. True if it must be closed later.
    pub open: fn(Handle) -> bool,
    /// Closes it.
    pub close: fn(),
}

/// Held while a thread writes a record.
struct Busy<'l>(&'l AtomicBool);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Runs when the thread ends. Separate from [`Local`], whose access must never register a
/// destructor.
struct Exit;

thread_local! {
    static LOCAL: Local = const { Local::new() };
    static EXIT: Exit = const { Exit };
}

/// What this thread needs to record.
#[inline(always)]
fn local<'l>() -> &'l Local {
    // Not `with` around the whole call: the compiler makes that a function of its own, to which
    // everything passes through memory.
    let local = LOCAL.with(std::ptr::from_ref);
    // SAFETY: it has no destructor, so it lives as long as its thread, and no reference to it
    // outlives a call on the thread.
    unsafe { &*local }
}

/// Whether callbacks record. False in a child of the recording process: the threads that drain the
/// rings stayed with the parent.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    process::is_on()
}

/// Whether they do only that: there is no other plugin beside ours.
#[inline(always)]
#[must_use]
pub fn is_on_alone() -> bool {
    process::is_on_alone()
}

/// Counts a panic caught in a callback.
pub fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Panics caught in callbacks so far.
#[must_use]
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Whether the handle was made by this process.
#[inline]
#[must_use]
pub fn is_ours(handle: Handle) -> bool {
    handle.0 >> Handle::COUNTER_BITS == TAG_BASE.load(Ordering::Relaxed) >> Handle::COUNTER_BITS
}

/// Starts recording with `rings`; if an earlier recording of the process made rings, those are used
/// again. `None` in a forked child, or if there are no rings.
pub fn switch_on(rings: impl FnOnce() -> Option<Rings>, tag: ProcessTag) -> Option<&'static Rings> {
    if RINGS.get().is_none() {
        // If two threads make rings at the same time, the loser's are discarded unused.
        if RINGS.set(rings()?).is_ok() {
            TAG_BASE.store(tag.base(), Ordering::Relaxed);
        }
    }
    process::begin();
    process::switch_on().then(|| RINGS.get()).flatten()
}

/// Ends recording; calls already under way may still publish.
pub fn switch_off() {
    process::switch_off();
}

/// Opens this bracket in every KernelLaunch from now on. A process has one: later ones are ignored.
pub fn bracket_launches(bracket: Bracket) {
    let _ = BRACKET.set(bracket);
    BRACKETS.store(true, Ordering::Release);
}

/// Opens no more brackets; open ones are still closed.
pub fn end_brackets() {
    BRACKETS.store(false, Ordering::Relaxed);
}

/// Whether launches are bracketed.
#[inline]
#[must_use]
pub fn has_brackets() -> bool {
    BRACKETS.load(Ordering::Relaxed)
}

/// Closes the bracket of a KernelLaunch that stops after the recording has ended.
pub fn stop_unrecorded(handle: Handle) {
    // A forked child must not close what its parent opened: it may call nothing in CUPTI.
    if BRACKET.get().is_some() && !process::is_child() {
        let _ = LOCAL.try_with(|local| {
            if local.launch.get() == handle {
                local.launch.set(Handle::NONE);
                local.close_bracket();
            }
        });
    }
}

/// The words for some of NCCL's strings. A text that is new is recorded.
///
/// # Safety
///
/// Each text is null, or points at a NUL-terminated string that nobody changes during the call.
#[inline(always)]
pub(crate) unsafe fn words<const N: usize>(texts: [*const c_char; N]) -> [Word; N] {
    // SAFETY: the caller's promise.
    unsafe { local().words.all(texts) }
}

/// The word for a string that is nearly always null, and then costs nothing.
///
/// # Safety
///
/// As for [`words()`].
#[inline(always)]
pub(crate) unsafe fn rare_word(text: *const c_char) -> Word {
    if text.is_null() {
        return Word::ABSENT;
    }
    // SAFETY: the caller's promise.
    let [word] = unsafe { words([text]) };
    word
}

/// Records the name of a communicator for the record that this thread makes next, and returns the
/// word to name it with.
///
/// # Safety
///
/// As for [`words()`].
pub(crate) unsafe fn name(text: *const c_char) -> Word {
    if text.is_null() {
        return Word::ABSENT;
    }
    let note = |text: &[u8]| if note_text(Word::NAME, text) { Word::NAME } else { Word::LOST };
    // SAFETY: the caller's promise.
    unsafe { words::read(text) }.word(note)
}

/// Records the start of an event and returns its handle. The handle is valid even if the record was
/// dropped: later records on it stay linked, and the loss is counted.
#[inline(always)]
pub fn start<P: Payload>(parent: Handle, context: Handle, rank: i32, payload: &P) -> Handle {
    let local = local();
    let Some(_busy) = local.enter() else { return interrupted_start() };
    let handle = local.handle(1);
    match P::KIND {
        Kind::KernelLaunch | Kind::CeColl => local.launch.set(handle),
        Kind::GroupApi => local.group.set(handle),
        _ => {}
    }
    local.push_start(handle, parent, context, rank, payload);
    if P::KIND == Kind::KernelLaunch && has_brackets() {
        local.open_bracket(handle);
    }
    handle
}

/// A new handle with which nothing is recorded.
pub fn unrecorded_handle() -> Handle {
    let local = local();
    match local.enter() {
        Some(_busy) => local.handle(1),
        None => handle_of_no_block(),
    }
}

/// [`start`] for a network event: the two lowest bits of its handle say which payload its updates
/// carry, because the updates do not.
#[inline(always)]
pub fn start_net(parent: Handle, context: Handle, rank: i32, payload: &crate::model::event::NetPlugin) -> Handle {
    let local = local();
    let network = u64::from(payload.net.network.0 & 3);
    let Some(_busy) = local.enter() else { return Handle(interrupted_start().0 | network) };
    let handle = Handle(local.handle(4).0 | network);
    local.push_start(handle, parent, context, rank, payload);
    handle
}

/// Records the stop of an event.
#[inline(always)]
pub fn stop(handle: Handle) {
    let local = local();
    let Some(_busy) = local.enter() else { return count_homeless() };
    if local.launch.get() == handle {
        local.launch.set(Handle::NONE);
        if local.bracket.get() {
            local.close_bracket();
        }
    } else if local.group.get() == handle {
        local.group.set(Handle::NONE);
        local.silent.set(Handle::NONE);
    }
    local.push(kind::STOP, 0, 0, &[handle.0]);
}

/// Records that a kernel is being launched or a copy queued on this thread, if it concerns NCCL: a
/// KernelLaunch or a CeColl is open here, or the kernel is one of NCCL's. `correlation` is CUPTI's
/// id of the launching call. For CUPTI's callback at the start of the call.
#[inline]
pub fn launch(correlation: u32, is_nccl: impl FnOnce() -> bool) {
    if !is_on() {
        return;
    }
    let _ = LOCAL.try_with(|local| {
        let open = local.launch.get();
        let nccl = is_nccl();
        local.silent.set(if nccl && open.is_none() { local.group.get() } else { Handle::NONE });
        if nccl || !open.is_none() {
            local.note_of_launch(kind::LAUNCH, u16::from(nccl), correlation, &[open.0, local.group.get().0]);
        }
    });
}

/// Records a graph node created while a KernelLaunch or a CeColl is open on this thread, or for a
/// kernel of NCCL's that is launched in a GroupApi; other nodes do not concern NCCL.
pub fn graph_node_created(node: u64) {
    if !is_on() {
        return;
    }
    let _ = LOCAL.try_with(|local| {
        let silent = local.silent.replace(Handle::NONE);
        let open = if local.launch.get().is_none() { silent } else { local.launch.get() };
        if open.is_none() {
            return;
        }
        NODES.add(node);
        NODES.add(graph_of(node));
        local.note_of_launch(kind::GRAPH_NODE, 0, 0, &[node, 0, open.0]);
    });
}

/// Records that a node was cloned, on any thread, if the original concerns NCCL; returns whether it
/// does.
pub fn graph_node_cloned(node: u64, original: u64) -> bool {
    if !is_on() || !NODES.contains(original) {
        return false;
    }
    NODES.add(node);
    let _ = LOCAL.try_with(|local| local.note_of_launch(kind::GRAPH_NODE, 0, 0, &[node, original, 0]));
    true
}

/// A clone that concerns NCCL could not be followed, for lack of room.
pub fn graph_node_lost() {
    LOST_LAUNCHES.fetch_add(1, Ordering::Relaxed);
}

/// Records that a node of this executable graph does what `source` does from now on, if either
/// concerns NCCL. Of a graph into which NCCL captured, it records the first node in any case: it
/// shows how the numbers of the graphs' nodes go together, and not all nodes are reported.
pub fn graph_node_updated(node: u64, source: u64, graph: u64) {
    if !is_on() || NODES.is_empty() {
        return;
    }
    let is_nccl = NODES.contains(source);
    let _ = LOCAL.try_with(|local| {
        local.updated.set(node);
        let update = (graph_of(node), graph_of(source));
        let is_first = local.update.replace(update) != update && NODES.contains(graph_of(source));
        if is_nccl || is_first || NODES.contains(node) {
            local.note_of_launch(kind::GRAPH_UPDATE, 0, 0, &[node, source, graph]);
        }
    });
    if is_nccl {
        NODES.add(node);
    }
}

/// The parameters of a node of this executable graph were set. Records it if the node concerns NCCL
/// and no other node says what it does from now on.
pub fn graph_node_set(node: u64, graph: u64) {
    if !is_on() || NODES.is_empty() {
        return;
    }
    let _ = LOCAL.try_with(|local| {
        if local.updated.replace(0) != node && NODES.contains(node) {
            local.note_of_launch(kind::GRAPH_UPDATE, 0, 0, &[node, 0, graph]);
        }
    });
}

/// Records that the call with this correlation id launches an executable graph or, with 0, that the
/// graph was instantiated. Does nothing until a node that concerns NCCL has been seen.
pub fn graph_launch(graph: u64, correlation: u32) {
    if is_on() && !NODES.is_empty() {
        let _ = LOCAL.try_with(|local| local.note_of_launch(kind::GRAPH_LAUNCH, 0, correlation, &[graph]));
    }
}

/// Records that nodes of an executable graph may do something else from now on. Does nothing until
/// a node that concerns NCCL has been seen.
pub fn graph_change(graph: u64) {
    if is_on() && !NODES.is_empty() {
        let _ = LOCAL.try_with(|local| local.note_of_launch(kind::GRAPH_CHANGE, 0, 0, &[graph]));
    }
}

/// Records that the program begins a step, or counts it as dropped. On a thread's first call it may
/// allocate.
pub fn step(number: u64) {
    if !is_on() {
        return;
    }
    let _ = LOCAL.try_with(|local| {
        // Steps are rare: each of them may look for a ring.
        local.retry_in.set(0);
        if !local.note(kind::STEP, 0, 0, &[number]) {
            local.count_drop();
        }
    });
}

/// The graph of a node. No node has this number, so it can be in [`NODES`] as well.
fn graph_of(node: u64) -> u64 {
    node | u64::from(u32::MAX)
}

/// Launches and graph nodes dropped so far for lack of room, and launches without a bracket.
#[must_use]
pub fn lost_launches() -> u64 {
    LOST_LAUNCHES.load(Ordering::Relaxed)
}

/// How many of these are changes of graphs.
#[must_use]
pub fn lost_changes() -> u64 {
    LOST_CHANGES.load(Ordering::Relaxed)
}

/// Records a state of an event.
#[inline(always)]
pub fn state(handle: Handle, state: u16, argument: u64, steps: i32) {
    local().call(kind::STATE, state, steps, &[handle.0, argument]);
}

/// Records the update of a network event.
#[inline]
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
pub fn net_update(handle: Handle, net: &Net) {
    let mut words = [0; 1 + size_of::<Net>() / 8];
    words[0] = handle.0;
    words[1..].copy_from_slice(bytemuck::must_cast_slice(std::slice::from_ref(net)));
    local().call(kind::NET_UPDATE, 0, 0, &words);
}

/// Records the start of a communicator. Returns its new context, and whether there was room.
pub fn comm_init(mut comm: CommInit) -> (Handle, Room) {
    let local = local();
    let Some(_busy) = local.enter() else { return (Handle::NONE, Room::WaitedInVain) };
    comm.context = local.handle(1);
    let words = bytemuck::must_cast_slice(std::slice::from_ref(&comm));
    (comm.context, local.push_patiently(kind::COMM_INIT, words))
}

/// Records the end of a communicator.
pub fn comm_finalize(context: Handle) -> Room {
    let local = local();
    let Some(_busy) = local.enter() else { return Room::WaitedInVain };
    local.push_patiently(kind::COMM_FINALIZE, &[context.0])
}

/// Records name and hash of a communicator whose `init` did not pass them. False if there was no
/// room.
pub fn comm_identity(context: Handle, hash: u64, name: Word) -> bool {
    local().note(kind::COMM_IDENTITY, name.0, 0, &[context.0, hash])
}

/// The word that stands for a text, which is recorded if no thread has recorded it yet.
#[cold]
fn text(text: &[u8]) -> Word {
    let mut has_room = true;
    let word = TEXTS.word(text, |word| {
        has_room = note_text(word, text);
        has_room
    });
    // Without room, the event that it is for is dropped and counted.
    if word == Word::LOST && has_room {
        local().count_drop();
    }
    word
}

/// Records text, cut to [`TEXT_BYTES`], with this word. False if there was no room.
#[expect(
    clippy::indexing_slicing,
    clippy::integer_division_remainder_used,
    reason = "the text is cut to what the words hold, of 8 bytes each"
)]
fn note_text(word: Word, text: &[u8]) -> bool {
    let text = &text[..text.len().min(TEXT_BYTES)];
    let mut words = [0_u64; TEXT_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    local().note(kind::TEXT, word.0, text.len() as i32, &words[..text.len().div_ceil(8)])
}

impl Local {
    /// A thread that has recorded nothing yet.
    const fn new() -> Local {
        Local {
            busy: AtomicBool::new(false),
            writer: OnceCell::new(),
            gone: Cell::new(false),
            next_handle: Cell::new(0),
            end_of_block: Cell::new(0),
            retry_in: Cell::new(0),
            in_vain: Cell::new(false),
            launch: Cell::new(Handle::NONE),
            group: Cell::new(Handle::NONE),
            silent: Cell::new(Handle::NONE),
            bracket: Cell::new(false),
            update: Cell::new((0, 0)),
            updated: Cell::new(0),
            words: Words::new(),
        }
    }

    /// Held while a record is written. `None` if one is already being written: a signal interrupted
    /// it, and the handler made a call like NCCL's. The thread's own state may be half changed
    /// then.
    #[inline(always)]
    fn enter(&self) -> Option<Busy<'_>> {
        if self.busy.load(Ordering::Relaxed) {
            return None;
        }
        self.busy.store(true, Ordering::Relaxed);
        // Only this thread and its signal handlers look at the flag, so program order is enough.
        compiler_fence(Ordering::SeqCst);
        Some(Busy(&self.busy))
    }

    /// Reserves `step` consecutive handles and returns the first, a multiple of `step`.
    #[inline(always)]
    fn handle(&self, step: u64) -> Handle {
        let next = self.next_handle.get().next_multiple_of(step);
        if next >= self.end_of_block.get() {
            return self.handle_from_new_block(step);
        }
        self.next_handle.set(next + step);
        Handle(next)
    }

    #[cold]
    fn handle_from_new_block(&self, step: u64) -> Handle {
        let first = TAG_BASE.load(Ordering::Relaxed) + NEXT_BLOCK.fetch_add(HANDLE_BLOCK, Ordering::Relaxed);
        self.end_of_block.set(first + HANDLE_BLOCK);
        self.next_handle.set(first + step);
        Handle(first)
    }

    /// Opens the bracket of the KernelLaunch with this handle; its stop closes it.
    #[cold]
    fn open_bracket(&self, handle: Handle) {
        // A bracket whose stop never came would give the next launch its id.
        self.close_bracket();
        if let Some(bracket) = BRACKET.get() {
            let open = (bracket.open)(handle);
            self.bracket.set(open);
            if !open {
                LOST_LAUNCHES.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn close_bracket(&self) {
        if self.bracket.replace(false)
            && let Some(bracket) = BRACKET.get()
        {
            (bracket.close)();
        }
    }

    #[inline(always)]
    fn push_start<P: Payload>(&self, handle: Handle, parent: Handle, context: Handle, rank: i32, payload: &P) {
        let words: &[u64] = bytemuck::must_cast_slice(std::slice::from_ref(payload));
        let header = header(P::KIND as u8, 5 + words.len(), 0, rank);
        if !self.write(header, &[handle.0, parent.0, context.0], words) {
            self.count_drop();
        }
    }

    /// Publishes one of NCCL's calls, or counts it as dropped.
    #[inline(always)]
    fn call(&self, kind: u8, small: u16, wide: i32, words: &[u64]) {
        let Some(_busy) = self.enter() else { return count_homeless() };
        self.push(kind, small, wide, words);
    }

    /// [`Local::call`] while [`Busy`] is held.
    #[inline(always)]
    fn push(&self, kind: u8, small: u16, wide: i32, words: &[u64]) {
        if !self.write(header(kind, 2 + words.len(), small, wide), words, &[]) {
            self.count_drop();
        }
    }

    /// Publishes a note of our own. False if there was no room.
    #[inline(never)]
    fn note(&self, kind: u8, small: u16, wide: i32, words: &[u64]) -> bool {
        self.enter().is_some_and(|_busy| self.write(header(kind, 2 + words.len(), small, wide), words, &[]))
    }

    /// The same about a launch, which is counted as lost if there was no room.
    #[inline(always)]
    fn note_of_launch(&self, kind: u8, small: u16, wide: u32, words: &[u64]) {
        if !self.note(kind, small, wide as i32, words) {
            LOST_LAUNCHES.fetch_add(1, Ordering::Relaxed);
            if matches!(kind, kind::GRAPH_UPDATE | kind::GRAPH_CHANGE) {
                LOST_CHANGES.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Publishes a record: its first word, the time, and two runs of words. False if there was no
    /// room.
    #[inline(always)]
    fn write(&self, header: u64, head: &[u64], tail: &[u64]) -> bool {
        // The runs are passed to no function: they would have to lie in memory then.
        if self.writer.get().is_none() {
            self.claim();
        }
        // The clock is read now: a thread's first call has published a record of its own.
        self.writer.get().is_some_and(|writer| writer.push([&[header, now().0], head, tail]))
    }

    /// Counts a record of NCCL's that found no room.
    #[cold]
    #[inline(never)]
    fn count_drop(&self) {
        match self.writer.get() {
            // Once it was left, its ring may be another thread's.
            Some(writer) if !self.gone.get() => writer.count_drop(),
            _ => count_homeless(),
        }
    }

    /// Publishes a record that everything else depends on, or counts it as dropped. In `init` and
    /// `finalize` only: it may wait for the collector to make room, unless a wait was in vain
    /// before.
    fn push_patiently(&self, kind: u8, words: &[u64]) -> Room {
        let is_known = self.in_vain.get() || IN_VAIN.load(Ordering::Relaxed);
        for _ in 0..if is_known { 1 } else { PATIENCE_MS } {
            self.retry_in.set(0);
            if self.write(header(kind, 2 + words.len(), 0, 0), words, &[]) {
                self.in_vain.set(false);
                IN_VAIN.store(false, Ordering::Relaxed);
                return Room::Found;
            }
            if !is_known {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.count_drop();
        if is_known {
            return Room::KnownToBeNone;
        }
        self.in_vain.set(true);
        IN_VAIN.store(true, Ordering::Relaxed);
        Room::WaitedInVain
    }

    /// A thread's first call: claims a ring and records whose it is. The only place where a
    /// callback may make system calls or allocate.
    #[cold]
    #[inline(never)]
    fn claim(&self) {
        let Some(rings) = RINGS.get() else { return };
        let retry_in = self.retry_in.get();
        if self.gone.get() || retry_in > 0 {
            return self.retry_in.set(retry_in.saturating_sub(1));
        }
        let claimed = rings.claim().filter(|writer| {
            let watched = EXIT.try_with(|_| ()).is_ok();
            if !watched {
                // Called from another destructor at the very end of the thread: nothing would
                // release the ring later.
                self.gone.set(true);
                writer.leave();
            }
            watched
        });
        let Some(writer) = claimed else { return self.retry_in.set(RETRY_CALLS) };
        let name: [u64; 2] = bytemuck::must_cast(sys::thread_name());
        writer.push([&[header(kind::THREAD, 4, 0, sys::thread_id()), now().0], &name]);
        let _ = self.writer.set(writer);
    }
}

/// The start of an event in a signal handler that interrupted another record: dropped, but with a
/// handle of its own.
#[cold]
fn interrupted_start() -> Handle {
    count_homeless();
    handle_of_no_block()
}

/// A handle on a thread whose own block is in use: a block for itself.
#[cold]
fn handle_of_no_block() -> Handle {
    Handle(TAG_BASE.load(Ordering::Relaxed) + NEXT_BLOCK.fetch_add(HANDLE_BLOCK, Ordering::Relaxed))
}

/// Counts a call that has no ring to go to: on a thread without one, or interrupting another
/// record.
#[cold]
fn count_homeless() {
    if let Some(rings) = RINGS.get() {
        rings.count_homeless();
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        let _ = LOCAL.try_with(|local| {
            local.gone.set(true);
            if let Some(writer) = local.writer.get()
                && !process::is_child()
            {
                writer.push([&[header(kind::THREAD_END, 2, 0, 0), now().0]]);
                writer.leave();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ring::Reader;

    /// A thread with its ring in these.
    fn thread(rings: &'static Rings) -> Local {
        let local = Local::new();
        let _ = local.writer.set(rings.claim().unwrap());
        local
    }

    #[test]
    fn room_is_waited_for_once_until_there_is_some() {
        let rings: &'static Rings = Box::leak(Box::new(Rings::new(1).unwrap()));
        let (busy, other) = (thread(rings), thread(rings));
        let end = |local: &Local| local.push_patiently(kind::COMM_FINALIZE, &[7]);
        let fill = |local: &Local| while local.write(header(kind::STOP, 3, 0, 0), &[7], &[]) {};
        fill(&busy);
        assert_eq!(end(&busy), Room::WaitedInVain);
        assert_eq!([end(&busy), end(&busy)], [Room::KnownToBeNone; 2]);
        // Another thread's room says nothing about this one's.
        assert_eq!((end(&other), end(&busy)), (Room::Found, Room::KnownToBeNone));
        fill(&other);
        assert_eq!((end(&other), rings.dropped()), (Room::WaitedInVain, 5));
        // A third one does not wait either.
        busy.in_vain.set(false);
        assert_eq!(end(&busy), Room::KnownToBeNone);

        let mut reader = Reader::new(0);
        while reader.peek(rings).is_some() {
            reader.read(rings, &mut [0; crate::model::event::MAX_WORDS]);
        }
        assert_eq!(end(&busy), Room::Found);
        fill(&busy);
        assert_eq!(end(&busy), Room::WaitedInVain);
    }
}
