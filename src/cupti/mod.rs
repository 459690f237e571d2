//! What the GPU did, through CUPTI, which is borrowed: a process has one CUPTI, with one owner.
//!
//! ```text
//! threads that launch           CUPTI's worker       "ncclscope flush"        "ncclscope"
//! launches: callbacks, record
//! buffers:  request             complete             flush, and readings      decode
//!              ^                   |                 of the clocks              |   ^
//!              |                   v                         |                  v   |
//!              +------------- pool of buffers <----------------------------- Activity
//! ```
//!
//! [`start`] finds the copy of libcupti that the process has, and subscribes; if it cannot, it says
//! why in one sentence. The [`Cupti`] that it returns flushes CUPTI and gives it back; the
//! [`Reader`] is what the collector drains. CUPTI is never called unless the driver is in the
//! process, and never in a forked child.

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

mod absent;
mod buffers;
mod callbacks;
mod calls;
pub mod clock;
mod contact;
pub mod decode;
mod door;
mod driver;
mod find;
mod flush;
mod graphs;
pub mod intake;
mod names;
mod nvtx;
mod reader;
mod share;
mod shared;
mod subscription;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cupti_sys::bindings as cupti;
use cupti_sys::records;

pub use self::absent::Absent;
use self::buffers::Pool;
use self::decode::{Asked, Process};
use self::find::Found;
use self::flush::{Desk, Flusher};
use self::intake::Source;
pub use self::reader::{Reader, Taker};
pub use self::share::Sharing;
use self::shared::Shared;
use self::subscription::Subscription;
use crate::config;
pub use crate::model::activity::GPU_STAMP_ERROR_NS;
use crate::model::time::HostNs;
use crate::releases::{self, FaultId};
use crate::threads::{self, queue};
use crate::{fault, process};

/// CUPTI of CUDA 12.0, the oldest whose records can be read.
const OLDEST: u32 = 18;
/// The newest CUPTI known here, of CUDA 13.5.
const NEWEST: u32 = 130_599;
/// The device of this thread's context, if there is a driver and a context. For `init`: it calls
/// the driver.
#[must_use]
pub fn current_device() -> Option<u32> {
    driver::Driver::mapped()?.current_device()
}

/// The device of this thread's context, and its name.
pub(crate) fn current_gpu() -> Option<(u32, Option<String>)> {
    let driver = driver::Driver::mapped()?;
    let device = driver.current_device()?;
    Some((device, driver.device_name(device)))
}

/// The CUDA version that the driver knows, `13.0`, if the process has a driver.
#[expect(clippy::integer_division_remainder_used, reason = "by a constant")]
pub(crate) fn driver_cuda() -> Option<String> {
    let version = driver::Driver::mapped()?.cuda_version()?;
    Some(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// What is requested from CUPTI.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which copy of libcupti.
    pub library: config::Cupti,
    /// Whether to share it with other tools.
    pub sharing: Sharing,
    /// How launches are recognised.
    pub matching: config::Matching,
    /// Whether to record copies and memsets too, for copy-engine collectives.
    pub copies: bool,
    /// Whether to record calls into the driver and the runtime, which makes each of them slower.
    pub calls: bool,
    /// Whether to record NVTX ranges.
    pub nvtx: bool,
    /// Whether this thread is in `cuInit`, where the driver cannot be asked about its GPUs.
    pub driver_starts: bool,
    /// Whether CUPTI's clock is to be `CLOCK_BOOTTIME`, which nobody can set, instead of the wall
    /// clock.
    pub boottime: bool,
    /// Time between flushes.
    pub flush_period: Duration,
    /// Memory for the buffers lent to CUPTI, in bytes: 2 to 64 buffers of 128 KiB each.
    pub pool_bytes: usize,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new(library: config::Cupti) -> Options {
        let flush_period = Duration::from_secs(1);
        let sharing = if library == config::Cupti::Share { Sharing::IfPossible } else { Sharing::No };
        Options {
            library,
            sharing,
            matching: config::Matching::All,
            copies: false,
            calls: false,
            nvtx: false,
            driver_starts: false,
            boottime: false,
            flush_period,
            pool_bytes: 6 << 20,
        }
    }
}

/// This process's subscription to CUPTI, with its flushing thread. After it is given up, it can be
/// taken again.
pub struct Cupti {
    shared: &'static Shared,
    options: Options,
    flusher: Flusher,
    facts: Facts,
}

/// CUPTI calls back at launches but gives us no records of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The last time it requested or returned a buffer.
    pub since: HostNs,
    /// Launches since then.
    pub launches: u64,
}

/// The beginning or end of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// CUPTI has stopped giving us records.
    Silent(Silence),
    /// CUPTI gives us records again without a call of [`Cupti::acquire`].
    Heard,
}

/// CUPTI was given up, but not because the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// When that began: what the GPU does from here on is not recorded.
    pub since: HostNs,
    /// When it had been given up.
    pub by: HostNs,
    cause: Cause,
    /// CUPTI was shared.
    shares: bool,
    /// It was told to stop recording kernels.
    stops: bool,
}

/// Why CUPTI was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Somebody asked for it.
    Request,
    /// It had detached itself after a failure, and was taken again.
    Failure,
    /// The flushing thread has panicked.
    Panic,
}

/// What [`Cupti::acquire`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// CUPTI was ours and gave us its records: nothing to do.
    Held,
    /// CUPTI was not ours, or it was but gave us no records; it is taken again. Contains the
    /// silence if the trace does not show it yet.
    Again(Option<Silence>),
}

/// The CUPTI in use, and what it refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The result of `cuptiGetVersion`.
    pub version: u32,
    /// The path that it is mapped from.
    pub path: String,
    /// Remarks about it.
    pub remarks: Vec<String>,
    /// Optional parts that it refused.
    pub refused: Vec<String>,
    /// Whether other tools that share it can record beside us.
    pub shares: bool,
    /// Why something requested is not done, as sentences for the user.
    pub objections: Vec<String>,
}

/// A remark for the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its subject, in two or three words.
    pub name: &'static str,
    /// The sentence.
    pub text: String,
    /// Whether to print it to stderr as well.
    pub aloud: bool,
}

/// Whether there is a subscription, or one is being made.
static HELD: AtomicBool = AtomicBool::new(false);
/// Whether a call into CUPTI has not returned in time.
static SILENT: AtomicBool = AtomicBool::new(false);

/// How long taking CUPTI may take. On a machine with many GPUs and contexts it takes a second.
const TAKING: Duration = Duration::from_secs(5);

/// Takes CUPTI, if possible.
///
/// The subscription should be kept until the process ends: most of CUPTI's bugs are in a second
/// collection in one process. After [`Cupti::release`], [`Cupti::acquire`] can take CUPTI again,
/// and the reader goes on.
///
/// # Errors
///
/// Why it cannot be had. CUPTI is then left as it was.
pub fn start(options: &Options) -> Result<(Cupti, Reader), Absent> {
    if options.library == config::Cupti::Off {
        return Err(Absent::SwitchedOff);
    }
    if process::is_child() {
        return Err(Absent::Forked);
    }
    if SILENT.load(Ordering::Acquire) {
        return Err(Absent::Silent);
    }
    let Found { api, path, remarks } = find::find(&options.library, options.driver_starts)?;
    // In `cuInit` CUPTI serves only the thread that is in it; a thread of ours would wait for this
    // one.
    if options.driver_starts {
        return start_with(api, path, remarks, options);
    }
    let options = options.clone();
    in_time(move || start_with(api, path, remarks, &options), |(cupti, _)| _ = cupti.release(TAKING))
}

/// Calls CUPTI on a thread of ours and waits for [`TAKING`] at most. A result that comes later is
/// undone.
fn in_time<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Absent> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, Absent> {
    let (sender, answer) = queue::new(1);
    let body = move || {
        let ask = || {
            fault::at("take");
            ask()
        };
        let answer = catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| {
            fault::say(format_args!("was caught while CUPTI was taken"));
            // What had been taken was given back on the way out.
            HELD.store(false, Ordering::Release);
            Err(Absent::Panic)
        });
        // If it cannot be handed over, nobody waits for it any more.
        let Err(late) = sender.send(answer) else { return };
        if let Ok(taken) = late {
            undo(taken);
        }
        HELD.store(false, Ordering::Release);
        SILENT.store(false, Ordering::Release);
    };
    threads::start(c"ncclscope cupti", body).map_err(|error| Absent::NoResources(format!("no thread: {error}")))?;
    answer.last_until(Instant::now() + TAKING).unwrap_or_else(|| {
        SILENT.store(true, Ordering::Release);
        Err(Absent::Silent)
    })
}

fn start_with(
    api: cupti_sys::Cupti,
    path: String,
    mut remarks: Vec<String>,
    options: &Options,
) -> Result<(Cupti, Reader), Absent> {
    if HELD.swap(true, Ordering::AcqRel) {
        return Err(Absent::Held);
    }
    let attempt = || {
        let mut version = 0;
        // SAFETY: the driver is in the process and the version is writable.
        let code = unsafe { (api.cuptiGetVersion)(&raw mut version) };
        if code != cupti::CUPTI_SUCCESS {
            return Err(Absent::Refused { call: "cuptiGetVersion", code });
        }
        if version < OLDEST {
            return Err(Absent::TooOld { path: path.clone(), function: None, version: Some(version) });
        }
        remarks.extend(releases::cupti_fault(version, FaultId::NoKernels).map(|fault| fault.what.into()));
        if version > NEWEST {
            remarks.push("newer than this ncclscope, which reads only the fields it knows".into());
        }
        let pool = || Pool::new(options.pool_bytes);
        let shared = Shared::get_or_init(api, pool)
            .ok_or_else(|| Absent::NoResources(format!("no memory for {} bytes of buffers", options.pool_bytes)))?;
        let objection = if options.nvtx { nvtx::objection(&path) } else { None };
        let options = &Options { nvtx: options.nvtx && objection.is_none(), ..options.clone() };
        let mut refused = Vec::new();
        // CUPTI may fail at once.
        let failures = shared.failures.load(Ordering::Relaxed);
        let (subscription, unshared) = Subscription::start(shared, version, options, &mut refused)?;
        let shares = subscription.subscriber().shares();
        shared.shares.store(shares, Ordering::Relaxed);
        if shares {
            remarks.push(match subscription.subscriber().beside() {
                Some(first) => format!("shared with {first}, which came first"),
                None => "shared, and we came first".into(),
            });
        }
        if subscription.has_our_clock() {
            remarks.push("its clock is CLOCK_BOOTTIME".into());
        }
        if options.nvtx {
            nvtx::inject(&path);
        }
        let flusher = flusher(subscription, options, Arc::default())?;
        if !flusher.desk().has_readings() {
            remarks.push("it does not answer when asked for its time, which is assumed to be the wall clock".into());
        }
        let reader = Reader {
            shared,
            desk: Arc::clone(flusher.desk()),
            source: Source { version, asked: Asked { calls: options.calls, markers: options.nvtx }, failures },
            process: Process::new(Some(shared.api.cuptiGetCallbackName)),
            pending: Vec::new(),
            forced: 0,
            gives_up: false,
            fatal: 0,
        };
        let unshared = unshared.map(|why| format!("NCCLSCOPE_CUPTI=share: {why}; CUPTI is ours alone"));
        let objections = objection.into_iter().chain(unshared).collect();
        let facts = Facts { version, path, remarks, refused, shares, objections };
        // Registering a clock a second time spoils the first kernels after it
        // (pytorch/pytorch#192021): when taken again, CUPTI keeps the wall clock.
        let sharing = if shares { Sharing::Only } else { Sharing::No };
        let options = Options { boottime: false, sharing, ..options.clone() };
        Ok((Cupti { shared, options, flusher, facts }, reader))
    };
    let result = attempt();
    if result.is_err() {
        HELD.store(false, Ordering::Release);
    }
    result
}

fn flusher(subscription: Subscription, options: &Options, desk: Arc<Desk>) -> Result<Flusher, Absent> {
    Flusher::start(subscription, options.flush_period, desk)
        .map_err(|error| Absent::NoResources(format!("no thread: {error}")))
}

impl Cupti {
    /// The CUPTI in use.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether CUPTI is ours now, and has not detached itself after a failure.
    fn is_held(&self) -> bool {
        !process::is_child() && self.flusher.holds()
    }

    /// Makes CUPTI return what is complete, without waiting for the GPU, and waits at most this
    /// long. False if that was too short; the flush goes on then, and until it ends nobody waits.
    /// Must not be called in a callback
    /// of CUPTI's.
    pub fn sync(&self, limit: Duration) -> bool {
        process::is_child() || self.flusher.sync(limit)
    }

    /// Makes CUPTI return everything and gives it up, and waits at most this long. For another tool
    /// that wants CUPTI. What CUPTI returned can still be
    /// drained. False if the limit was too short; the last kernels may then be missing, and CUPTI
    /// is still ours.
    pub fn release(&self, limit: Duration) -> bool {
        self.give_up(false, limit)
    }

    /// Like [`Cupti::release`], because the process ends: if CUPTI is shared, other tools that
    /// share it get records of kernels that have not ended, too.
    pub fn end(&self, limit: Duration) -> bool {
        self.give_up(true, limit)
    }

    fn give_up(&self, process_ends: bool, limit: Duration) -> bool {
        if process::is_child() {
            return true;
        }
        let released = self.flusher.release(process_ends, limit);
        if released {
            HELD.store(false, Ordering::Release);
        }
        released
    }

    /// Takes CUPTI again after it was given up. If it is still ours, takes back its buffers and
    /// kinds, which another tool may have taken without notice. If giving it up has not finished,
    /// waits for that at most this long; the same limit holds for a flush. Must not be called in a
    /// callback of CUPTI's.
    ///
    /// # Errors
    ///
    /// Why it cannot be had. CUPTI is then left as it was.
    pub fn acquire(&mut self, limit: Duration) -> Result<Acquired, Absent> {
        if process::is_child() {
            return Err(Absent::Forked);
        }
        if self.is_held() {
            let (code, silence) = self.flusher.again(limit).ok_or(Absent::Late)?;
            return match (code, silence) {
                (cupti::CUPTI_SUCCESS, None) => Ok(Acquired::Held),
                (cupti::CUPTI_SUCCESS, Some(silence)) => Ok(Acquired::Again(silence)),
                (code, _) => {
                    Err(Absent::Refused { call: "cuptiActivityRegisterCallbacks or cuptiActivityEnable", code })
                }
            };
        }
        if !self.release(limit) {
            return Err(Absent::Leaving);
        }
        if SILENT.load(Ordering::Acquire) {
            return Err(Absent::Silent);
        }
        if HELD.swap(true, Ordering::AcqRel) {
            return Err(Absent::Held);
        }
        let (shared, version, options) = (self.shared, self.facts.version, self.options.clone());
        let desk = Arc::clone(self.flusher.desk());
        let ask = move || {
            let mut refused = Vec::new();
            let (subscription, _) = Subscription::start(shared, version, &options, &mut refused)?;
            Ok((flusher(subscription, &options, desk)?, refused))
        };
        match in_time(ask, |(flusher, _)| _ = flusher.release(false, TAKING)) {
            Ok((flusher, refused)) => {
                self.flusher = flusher;
                self.facts.refused = refused;
                Ok(Acquired::Again(None))
            }
            Err(absent) => {
                // While a call into CUPTI has not returned, the thread that waits for it holds
                // CUPTI.
                if absent != Absent::Silent {
                    HELD.store(false, Ordering::Release);
                }
                Err(absent)
            }
        }
    }
}

impl Facts {
    /// Which CUPTI this is, for users who wonder why another profiler sees no GPU.
    #[must_use]
    pub fn announcement(&self) -> String {
        if self.shares {
            return format!("CUPTI of CUDA {}, shared with other tools that share it", self.release());
        }
        format!(
            "CUPTI of CUDA {}, so torch.profiler and others see no GPU in this process (NCCLSCOPE_CUPTI=0 leaves CUPTI to them, \
             ncclscope_release lends it)",
            self.release()
        )
    }

    /// The CUDA release that it belongs to.
    #[must_use]
    pub fn release(&self) -> &'static str {
        records::release(self.version).unwrap_or("an unknown release")
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launches = match self.launches {
            1 => "the last launch".to_owned(),
            launches => format!("the last {launches} launches"),
        };
        write!(
            f,
            "CUPTI has returned no record of {launches}: another profiler in this process, such as torch.profiler, \
             has probably registered its own buffers, which needs no subscription. Kernels are not recorded from \
             here on, so missing kernels prove nothing. ncclscope_acquire takes CUPTI again"
        )
    }
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.cause {
            Cause::Request => "as requested: ",
            Cause::Failure => "after it had failed: ",
            Cause::Panic => "after an internal error: ",
        })?;
        let is_flushed = !self.shares && self.cause != Cause::Panic;
        f.write_str(match (self.stops, is_flushed) {
            (true, false) => {
                "what the GPU does from here on is not recorded, and launches have no kernel. Kernels that had not ended \
                 are lost, with those before them that CUPTI had not returned"
            }
            (true, true) => {
                "what the GPU does from here on is not recorded, and launches have no kernel. Kernels that had not ended \
                 are lost, and count as impossible records"
            }
            (false, _) => {
                "launches from here on are not recorded. CUPTI of CUDA 13.0 deadlocks when it is told to stop recording \
                 kernels, so some may still come, without operations. Update 1 does not"
            }
        })
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUPTI of CUDA {} (version {}) from {}", self.release(), self.version, self.path)?;
        for remark in &self.remarks {
            write!(f, "; {remark}")?;
        }
        for refused in &self.refused {
            write!(f, "; refused: {refused}")?;
        }
        for objection in &self.objections {
            write!(f, "; {objection}")?;
        }
        Ok(())
    }
}
