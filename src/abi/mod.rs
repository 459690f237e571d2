//! Everything that NCCL can see: seven exported tables over one generic core. What CUDA and the
//! program see is in `c`.
//!
//! Each interface version has a file with its C layouts and nothing else; what all versions share
//! is here. A descriptor becomes a [`crate::model::event`] during the call, and no pointer of
//! NCCL's outlives it. Every call answers success, whatever happens: a profiler must never change
//! what NCCL does.

#![cfg_attr(
    not(test),
    deny(
        clippy::allow_attributes_without_reason,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::integer_division_remainder_used,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable
    )
)]

mod c;
mod chain;
mod common;
mod copies;
#[cfg(test)]
mod layout;
mod library;
#[cfg(test)]
mod made_up_v8;
mod v1;
mod v2;
mod v3;
mod v4;
mod v5;
mod v6;
mod v7;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};

use common::{Descr, Identity, StateArgument};
use library::library;

use crate::cupti;
use crate::model::event::{CommInit, Group, KernelCh, NetPlugin, Network, ProxyCtrl, ProxyOp, ProxyStep, Unknown};
use crate::model::ids::Handle;
use crate::model::kinds::bit;
use crate::model::state;
use crate::record::recorder;
use crate::{fault, profiler};
use crate::{process, sys};

/// `ncclResult_t`; we only ever answer 0, success.
type Status = c_int;
const SUCCESS: Status = 0;

/// NCCL's log function. It is variadic in C and never called here; its address identifies the
/// library that called us.
type Logger = *const c_void;

/// The members of one interface version.
///
/// # Safety
///
/// Every method reads a union by the descriptor's type: the caller promises that NCCL filled that
/// member, and that its strings are null or NUL-terminated, for the length of the call.
trait Abi: 'static {
    /// The interface version.
    const VERSION: u8;
    /// The event type: one byte up to v4, followed by arbitrary bytes, and eight bytes since.
    type Bits: Copy + Into<u64> + 'static;
    /// The union behind the header; what all versions share is read as [`common::Body`].
    type Body: 'static;
    /// The union of the state arguments.
    type StateArgs: StateArgument;

    /// Records the start of a collective.
    unsafe fn coll(body: &Self::Body, start: &Start) -> Handle;

    /// Records the start of a send or receive.
    unsafe fn p2p(body: &Self::Body, start: &Start) -> Handle;

    /// Records an event type that v1 did not have, if this version does.
    unsafe fn newer(_body: &Self::Body, _bits: u64, _start: &Start) -> Option<Handle> {
        None
    }
}

/// What every start has in common.
struct Start {
    parent: Handle,
    context: Handle,
    rank: i32,
}

impl Start {
    #[inline(always)]
    fn record<P: crate::model::event::Payload>(&self, payload: &P) -> Handle {
        recorder::start(self.parent, self.context, self.rank, payload)
    }
}

/// Runs `body` so that no panic unwinds into C, and answers success.
#[inline]
fn fence(body: impl FnOnce()) -> Status {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        recorder::count_panic();
    }
    SUCCESS
}

/// The same for a function that may wait: it says what happened.
fn loud_fence(name: &str, body: impl FnOnce()) -> Status {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        fault::say(format_args!("was caught in {name}"));
    }
    SUCCESS
}

/// `startEvent`, for every interface version.
///
/// # Safety
///
/// `descr` is a descriptor of version `A` and `handle` is writable, both for the length of this
/// call; NCCL's src/plugin/profiler.cc builds the descriptor on its own stack and passes it
/// straight to us.
unsafe extern "C" fn start_event<A: Abi>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *const Descr<A::Bits, A::Body>,
) -> Status {
    // Cleared before anything can go wrong: NCCL does not initialise it, and would stop an old
    // event again.
    // SAFETY: the caller's promise.
    let Some(out) = (unsafe { handle.as_mut() }) else { return SUCCESS };
    *out = std::ptr::null_mut();
    if !recorder::is_on_alone() {
        if let Some(other) = chain::other() {
            // SAFETY: the caller's promise.
            return unsafe { chain::start::<A>(other, context, out, descr) };
        }
        if !recorder::is_on() {
            return match copies::known_table::<A>() {
                // SAFETY: the caller's promise.
                Some(first) => unsafe { (first.start_event)(context, handle, descr) },
                None => SUCCESS,
            };
        }
    }
    fence(|| {
        // SAFETY: the caller's promise; the borrow ends before we return.
        let Some(descr) = (unsafe { descr.as_ref() }) else { return };
        let start = Start { parent: Handle(descr.parent as u64), context: Handle(context as u64), rank: descr.rank };
        fault::at("startEvent");
        // SAFETY: the caller's promise: the type says which member NCCL filled.
        let made = unsafe { record_start::<A>(descr.bits.into(), &descr.body, &start) };
        *out = made.0 as *mut c_void;
    })
}

/// # Safety
///
/// `body` is what NCCL filled for an event of type `bits`.
#[inline(always)]
unsafe fn record_start<A: Abi>(bits: u64, body: &A::Body, start: &Start) -> Handle {
    // SAFETY: for every arm the caller's promise: `bits` names the member that is filled.
    unsafe {
        match bits {
            bit::PROXY_STEP => {
                let step = common::Body::of(body).proxy_step.step;
                apart(body, start, move |_, start| start.record(&ProxyStep { step, ..Default::default() }))
            }
            bit::PROXY_OP => {
                apart(body, start, |body, start| start.record(&ProxyOp::from(common::Body::of(body).proxy_op)))
            }
            bit::PROXY_CTRL => apart(body, start, |_, start| start.record(&ProxyCtrl::default())),
            bit::COLL => apart(body, start, |body, start| {
                note_identity::<A>(body, start);
                A::coll(body, start)
            }),
            bit::P2P => apart(body, start, |body, start| {
                note_identity::<A>(body, start);
                A::p2p(body, start)
            }),
            bit::GROUP => apart(body, start, |_, start| start.record(&Group::default())),
            bit::KERNEL_CH if A::VERSION >= 4 => {
                apart(body, start, |body, start| start.record(&KernelCh::from(common::Body::of(body).kernel_ch)))
            }
            bit::KERNEL_CH if A::VERSION == 3 => apart(body, start, |body, start| {
                let channel = common::Body::of(body).kernel_ch.channel_id;
                start.record(&KernelCh { channel, ..Default::default() })
            }),
            bit::NET_PLUGIN if A::VERSION >= 3 => apart(body, start, |body, start| {
                let net = common::Body::of(body).net_plugin.read();
                recorder::start_net(start.parent, start.context, start.rank, &NetPlugin { net })
            }),
            _ => match A::newer(body, bits, start) {
                Some(handle) => handle,
                None => apart(body, start, move |_, start| start.record(&Unknown { bits })),
            },
        }
    }
}

/// Runs `record` in a function of its own, so that no event pays for the registers of another. A
/// large frame costs more than its instructions: on x86-64, a load from the stack may wait for a
/// store to the ring whose address has the same lower 12 bits.
#[inline(always)]
fn apart<B, T>(body: &B, start: &Start, record: impl FnOnce(&B, &Start) -> T) -> T {
    // What is passed by itself stays in registers.
    #[inline(never)]
    fn spread<B, T>(body: &B, parent: Handle, context: Handle, rank: i32, record: impl FnOnce(&B, &Start) -> T) -> T {
        record(body, &Start { parent, context, rank })
    }
    spread(body, start.parent, start.context, start.rank, record)
}

/// Records a communicator's hash and name when they change. Up to v3 they come with its operations.
///
/// # Safety
///
/// `body` is what NCCL filled for a Coll or P2p.
#[inline]
unsafe fn note_identity<A: Abi>(body: &A::Body, start: &Start) {
    thread_local! {
        static LAST: std::cell::Cell<(Handle, u64)> = const { std::cell::Cell::new((Handle::NONE, 0)) };
    }
    if A::VERSION > 3 {
        return;
    }
    // SAFETY: the caller's promise; up to v3 both begin with it.
    let Identity { name, comm_hash } = unsafe { common::Body::of(body).identity };
    let identity = (start.context, comm_hash);
    if LAST.get() == identity {
        return;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { recorder::name(name) };
    // If there was no room, it is recorded with the next operation.
    if recorder::comm_identity(start.context, comm_hash, name) {
        LAST.set(identity);
    }
}

/// `stopEvent`, for every interface version. NCCL may pass null, a handle it stopped before, or a
/// foreign one.
extern "C" fn stop_event<A: Abi>(handle: *mut c_void) -> Status {
    if handle.is_null() {
        return SUCCESS;
    }
    if !recorder::is_on_alone() {
        if let Some(other) = chain::other() {
            return chain::stop(other, handle);
        }
        if !recorder::is_on() {
            return match copies::known_table::<A>() {
                Some(first) => (first.stop_event)(handle),
                None => fence(|| recorder::stop_unrecorded(Handle(handle as u64))),
            };
        }
    }
    fence(|| {
        fault::at("stopEvent");
        recorder::stop(Handle(handle as u64));
    })
}

/// `recordEventState`, for every interface version.
///
/// # Safety
///
/// `args` is null or points at the state arguments of version `A` for the length of this call.
unsafe extern "C" fn record_event_state<A: Abi>(
    handle: *mut c_void,
    number: c_int,
    args: *const A::StateArgs,
) -> Status {
    if handle.is_null() {
        return SUCCESS;
    }
    if !recorder::is_on_alone() {
        if let Some(other) = chain::other() {
            // SAFETY: the caller's promise.
            return unsafe { chain::state::<A>(other, Handle(handle as u64), number, args) };
        }
        if !recorder::is_on() {
            return match copies::known_table::<A>() {
                // SAFETY: the caller's promise.
                Some(first) => unsafe { (first.record_event_state)(handle, number, args) },
                None => SUCCESS,
            };
        }
    }
    // SAFETY: the caller's promise.
    fence(|| unsafe { record_state::<A>(Handle(handle as u64), number, args) })
}

/// # Safety
///
/// As for [`record_event_state`].
#[inline(always)]
unsafe fn record_state<A: Abi>(handle: Handle, number: c_int, args: *const A::StateArgs) {
    fault::at("recordEventState");
    let number = u16::try_from(number).unwrap_or(u16::MAX);
    // SAFETY: the caller's promise; `read` touches only what this state defines.
    let argument = unsafe { args.as_ref() }.map(|args| unsafe { args.read(number) }).unwrap_or_default();
    if number == state::NET_PLUGIN_UPDATE {
        // The handle of a network event says which payload it has; a handle of another process
        // does not.
        let network = if recorder::is_ours(handle) { Network((handle.0 & 3) as u8) } else { Network::OTHER };
        // SAFETY: for this state the argument is the payload's address, and the handle says which
        // payload.
        let net = unsafe { common::net_payload(network, argument.value as *const c_void) };
        recorder::net_update(handle, &net);
    } else {
        recorder::state(handle, number, argument.value, argument.steps);
    }
}

/// `finalize`, for every interface version.
extern "C" fn finalize<A: Abi>(context: *mut c_void) -> Status {
    if let Some(first) = copies::known_table::<A>() {
        return (first.finalize)(context);
    }
    if let Some(other) = chain::other() {
        return chain::finalize(other, context);
    }
    sys::without_cancellation(|| {
        loud_fence("finalize", || {
            fault::at("finalize");
            profiler::comm_finalize(Handle(context as u64));
        })
    })
}

/// What `init` passes about a communicator; v1 to v3 pass nothing.
struct Birth {
    hash: u64,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
}

impl Birth {
    const UNTOLD: Birth =
        Birth { hash: 0, name: std::ptr::null(), nodes: -1, ranks: -1, rank: -1, logger: std::ptr::null() };
}

/// `init`, for every interface version. It never fails, because NCCL's handling of a failure can
/// crash the job: errors become mask 0 and one message. `theirs` calls the `init` of the copy that
/// records, if that is not this one.
///
/// # Safety
///
/// `context` and `mask` are null or writable; the mask stays so while NCCL is loaded. `birth.name`
/// is null or NUL-terminated; `birth.logger` is null or NCCL's log function.
unsafe fn init<A: Abi, Init: Copy + 'static>(
    context: *mut *mut c_void,
    mask: *mut c_int,
    birth: &Birth,
    theirs: impl FnOnce(&'static Table<A, Init>) -> Status,
) -> Status {
    process::begin();
    sys::without_cancellation(|| {
        if process::is_child() {
            // SAFETY: the caller's promise.
            unsafe { refuse(context, mask) };
            return fence(profiler::refuse_child);
        }
        fault::prepare();
        match copies::table::<A, Init>() {
            Some(first) => theirs(first),
            // SAFETY: the caller's promise.
            None => unsafe { init_here::<A>(context, mask, birth) },
        }
    })
}

/// The answer to an `init` whose communicator is not recorded.
///
/// # Safety
///
/// As for [`init`].
unsafe fn refuse(context: *mut *mut c_void, mask: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(context) = context.as_mut() {
            *context = std::ptr::null_mut();
        }
        if !mask.is_null() {
            AtomicI32::from_ptr(mask).store(0, Ordering::Relaxed);
        }
    }
}

/// # Safety
///
/// As for [`init`].
unsafe fn init_here<A: Abi>(context: *mut *mut c_void, mask: *mut c_int, birth: &Birth) -> Status {
    // SAFETY: the caller's promise.
    if let Some(context) = unsafe { context.as_mut() } {
        *context = std::ptr::null_mut();
    }
    loud_fence("init", || {
        fault::at("init");
        // SAFETY: the caller's promise.
        let library = unsafe { library(birth.logger) };
        let comm = CommInit {
            hash: birth.hash,
            rank: birth.rank,
            ranks: birth.ranks,
            nodes: birth.nodes,
            interface: A::VERSION,
            version: library.version.unwrap_or_default(),
            timer: library.timer,
            // NCCL has already made the communicator's device current on this thread.
            device_plus_one: library.device.or_else(cupti::current_device).map_or(0, |device| device + 1),
            ..CommInit::default()
        };
        let local_ranks =
            u64::try_from(birth.ranks).unwrap_or(0).div_ceil(u64::try_from(birth.nodes).unwrap_or(1).max(1));
        let caller =
            profiler::Caller { interface: A::VERSION, version: library.version, timer: library.timer, local_ranks };
        let answer = profiler::comm_init(&caller, || {
            let named = c::comm_name();
            let name = named.as_ref().map_or(birth.name, |name| name.as_ptr());
            // SAFETY: the caller's promise, or a string that lives to the end of this function.
            // Read only once the recorder is on, so that the text is kept.
            let name = unsafe { recorder::name(name) };
            CommInit { name, ..comm }
        });
        // SAFETY: the caller's promise.
        let answer = unsafe { chain::init::<A>(mask, birth, answer) };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(context) = context.as_mut() {
                *context = answer.context.0 as *mut c_void;
            }
            if !mask.is_null() {
                // Written once: NCCL has one mask for all communicators, and other threads may be
                // reading it now.
                AtomicI32::from_ptr(mask).store(answer.kinds.0 as c_int, Ordering::Relaxed);
            }
        }
    })
}

/// `init` of v1 to v3.
///
/// # Safety
///
/// As for [`init`].
unsafe extern "C" fn init_untold<A: Abi>(context: *mut *mut c_void, mask: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    let theirs = |first: &'static Table<A, InitUntold>| unsafe { (first.init)(context, mask) };
    // SAFETY: the caller's promise.
    unsafe { init(context, mask, &Birth::UNTOLD, theirs) }
}

/// `init` of v4.
///
/// # Safety
///
/// As for [`init`].
unsafe extern "C" fn init_v4<A: Abi>(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> Status {
    // SAFETY: the caller's promise.
    let theirs = |first: &'static Table<A, InitV4>| unsafe {
        (first.init)(context, mask, name, hash, nodes, ranks, rank, logger)
    };
    // SAFETY: the caller's promise.
    unsafe { init(context, mask, &Birth { hash, name, nodes, ranks, rank, logger }, theirs) }
}

/// `init` of v5 and newer, which take the arguments in another order.
///
/// # Safety
///
/// As for [`init`].
unsafe extern "C" fn init_v5<A: Abi>(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> Status {
    // SAFETY: the caller's promise.
    let theirs = |first: &'static Table<A, InitV5>| unsafe {
        (first.init)(context, hash, mask, name, nodes, ranks, rank, logger)
    };
    // SAFETY: the caller's promise.
    unsafe { init(context, mask, &Birth { hash, name, nodes, ranks, rank, logger }, theirs) }
}

/// The exported table: six words in every version; only the signature of `init` differs.
#[repr(C)]
struct Table<A: Abi, Init: Copy> {
    name: *const c_char,
    init: Init,
    start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descr<A::Bits, A::Body>) -> Status,
    stop_event: extern "C" fn(*mut c_void) -> Status,
    record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const A::StateArgs) -> Status,
    finalize: extern "C" fn(*mut c_void) -> Status,
}

// SAFETY: a table is immutable: function addresses and the address of a static string.
unsafe impl<A: Abi, Init: Copy> Sync for Table<A, Init> {}

impl<A: Abi, Init: Copy> Table<A, Init> {
    const fn new(init: Init) -> Self {
        Table {
            name: c"ncclscope".as_ptr(),
            init,
            start_event: start_event::<A>,
            stop_event: stop_event::<A>,
            record_event_state: record_event_state::<A>,
            finalize: finalize::<A>,
        }
    }
}

/// `init` of v1 to v3.
type InitUntold = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> Status;
/// `init` of v4.
type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> Status;
/// `init` of v5 and newer.
type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> Status;

macro_rules! export {
    ($($symbol:ident: $abi:ty, $init:ty = $function:expr;)*) => { $(
        #[doc = concat!("The table NCCL looks up for interface version ", stringify!($abi), ".")]
        #[unsafe(no_mangle)]
        static $symbol: Table<$abi, $init> = Table::new($function);
    )* };
}

export! {
    ncclProfiler_v1: v1::V1, InitUntold = init_untold::<v1::V1>;
    ncclProfiler_v2: v2::V2, InitUntold = init_untold::<v2::V2>;
    ncclProfiler_v3: v3::V3, InitUntold = init_untold::<v3::V3>;
    ncclProfiler_v4: v4::V4, InitV4 = init_v4::<v4::V4>;
    ncclProfiler_v5: v5::V5, InitV5 = init_v5::<v5::V5>;
    ncclProfiler_v6: v6::V6, InitV5 = init_v5::<v6::V6>;
    ncclProfiler_v7: v7::V7, InitV5 = init_v5::<v7::V7>;
}
