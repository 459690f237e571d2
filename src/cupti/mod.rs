//! What the GPU did, through CUPTI, which is borrowed: a process has one, with one owner.
//!
//! ```text
//!  threads that launch           CUPTI's worker       "ncclscope flush"        "ncclscope"
//!  launches: callbacks, record
//!  buffers:  request             complete             flush, and readings      decode
//!               ^                   |                 of the clocks              |   ^
//!               |                   v                         |                  v   |
//!               +------------- pool of buffers <----------------------------- Activity
//! ```
//!
//! [`start`] finds the copy of libcupti that the process has, subscribes, and says in one sentence why not if it cannot. The
//! [`Cupti`] that it returns has CUPTI flushed and gives it back; the [`Reader`] is what the collector drains. Nothing in
//! CUPTI is called unless the driver is in the process, and nothing in a forked child.

mod absent;
mod buffers;
mod callbacks;
mod calls;
pub mod clock;
mod contact;
pub mod decode;
mod driver;
mod find;
mod flush;
pub mod intake;
mod names;
mod nvtx;
mod reader;
mod subscription;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cupti_sys::bindings as cupti;
use cupti_sys::records;

pub use self::absent::Absent;
use self::buffers::Pool;
use self::callbacks::Shared;
use self::decode::{Asked, Process};
use self::find::Found;
use self::flush::{Desk, Flusher};
use self::intake::Source;
pub use self::reader::{Reader, Taker};
use self::subscription::Subscription;
use crate::config;
pub use crate::model::activity::GPU_STAMP_ERROR_NS;
use crate::model::time::HostNs;
use crate::releases::{self, FaultId};
use crate::{memory, process, sys};

/// CUPTI of CUDA 12.0, the first whose records we read.
const OLDEST: u32 = 18;
/// The newest that was there when this was written, CUDA 13.5.
const NEWEST: u32 = 130_599;
/// The device of this thread's context, where there is a driver and a context. For `init`: it asks the driver.
#[must_use]
pub fn current_device() -> Option<u32> {
    driver::Driver::mapped()?.current_device()
}

/// That device, and what it calls itself.
pub(crate) fn current_gpu() -> Option<(u32, Option<String>)> {
    let driver = driver::Driver::mapped()?;
    let device = driver.current_device()?;
    Some((device, driver.device_name(device)))
}

/// What is asked of CUPTI.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which copy of libcupti.
    pub library: config::Cupti,
    /// By what launches are to be known.
    pub matching: config::Matching,
    /// Whether copies and memsets are recorded too, for collectives by copy engine.
    pub copies: bool,
    /// Whether calls into the driver and the runtime are recorded, which costs time in each of them.
    pub calls: bool,
    /// Whether ranges of NVTX are recorded.
    pub nvtx: bool,
    /// Whether this thread is in `cuInit`, where the driver cannot be asked about its GPUs.
    pub driver_starts: bool,
    /// Whether its records are to have `CLOCK_BOOTTIME`, which nobody can set, instead of the wall clock.
    pub boottime: bool,
    /// Time between flushes.
    pub flush_period: Duration,
    /// Memory for the buffers lent to CUPTI, in bytes: 2 to 64 of an eighth of a mebibyte each.
    pub pool_bytes: usize,
}

impl Options {
    /// What holds where the settings say nothing else.
    #[must_use]
    pub fn new(library: config::Cupti) -> Options {
        let flush_period = Duration::from_secs(1);
        Options {
            library,
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

/// The subscription that this process holds, with its flushing thread; or held, and may take again.
pub struct Cupti {
    shared: &'static Shared,
    options: Options,
    flusher: Flusher,
    /// How often CUPTI had detached itself when this subscription was made.
    detached: u64,
    facts: Facts,
}

/// CUPTI tells of launches, and gives us no records of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// When it last asked for a buffer, or returned one.
    pub since: HostNs,
    /// Launches since then.
    pub launches: u64,
}

/// What changed about that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has fallen silent.
    Silent(Silence),
    /// It gives us records again, though nobody asked for that.
    Heard,
}

/// What [`Cupti::acquire`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was ours, and its records came.
    Held,
    /// It was ours, but its records did not come, or it was not ours. With what the trace does not say yet.
    Again(Option<Silence>),
}

/// Which CUPTI this is, and what it would not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What `cuptiGetVersion` answers.
    pub version: u32,
    /// Where it is mapped from.
    pub path: String,
    /// What is worth knowing about it.
    pub remarks: Vec<String>,
    /// What it refused that is not needed.
    pub refused: Vec<String>,
    /// Why something that was asked for is not recorded, in a sentence for a person.
    pub objection: Option<String>,
}

/// What was lost, or could not be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Activities that were decoded.
    pub decoded: u64,
    /// Records that CUPTI dropped by its own account.
    pub dropped: u64,
    /// Buffers whose content was lost because the collector had not given one back in time.
    pub discarded_buffers: u64,
    /// Bytes in them; the record of a kernel has 208 to 248.
    pub discarded_bytes: u64,
    /// Requests for a buffer that got none at all.
    pub refused_requests: u64,
    /// Records that cannot be true: no times, an end before the start, or a time of no known clock.
    pub implausible: u64,
    /// Records of kinds that another tool asked for, and external ids of its own.
    pub other_kinds: u64,
    /// Buffers that could not be read to their end.
    pub unreadable: u64,
    /// Buffers that came back and were not ours.
    pub foreign_buffers: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// Failures that CUPTI reported of itself.
    pub failures: u64,
}

/// Something that the trace should say, at the time it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What it is about, in two or three words.
    pub name: &'static str,
    /// The sentence.
    pub text: String,
    /// Whether the person at the terminal should hear it too.
    pub aloud: bool,
}

/// Whether a subscription is under way or there.
static HELD: AtomicBool = AtomicBool::new(false);
/// Whether CUPTI has not come back from what it was asked for.
static SILENT: AtomicBool = AtomicBool::new(false);

/// How long taking CUPTI may take. Where a machine has many GPUs and contexts, it takes a second.
const TAKING: Duration = Duration::from_secs(5);

/// Takes CUPTI, if it can be had.
///
/// The subscription should be kept until the process ends: a second collection in one process is where CUPTI has most of its
/// bugs. After [`Cupti::release`] it can be had again by [`Cupti::acquire`], and the reader goes on.
///
/// # Errors
///
/// Why it cannot be had. CUPTI is as it was then.
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
    // In `cuInit` CUPTI answers the thread that is in it, and no other: that would wait for this one.
    if options.driver_starts {
        return start_with(api, path, remarks, options);
    }
    let options = options.clone();
    in_time(move || start_with(api, path, remarks, &options), |(cupti, _)| _ = cupti.release(TAKING))
}

/// Has something asked of CUPTI by a thread of ours, and waits for it for a limited time. What comes later is undone.
fn in_time<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, Absent> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, Absent> {
    let (sender, answer) = crossbeam_channel::bounded(0);
    let body = move || {
        memory::on_our_thread(|| {
            // Nobody waits any more where it cannot be handed over.
            let Err(late) = sender.send(ask()) else { return };
            if let Ok(taken) = late.0 {
                undo(taken);
            }
            HELD.store(false, Ordering::Release);
            SILENT.store(false, Ordering::Release);
        });
    };
    sys::without_signals(|| std::thread::Builder::new().name("ncclscope cupti".into()).spawn(body))
        .map_err(|error| Absent::NoResources(format!("no thread: {error}")))?;
    answer.recv_timeout(TAKING).unwrap_or_else(|_| {
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
            remarks.push("newer than this ncclscope, which reads what it knows".into());
        }
        let pool = || Pool::new(options.pool_bytes);
        let shared = Shared::get_or_init(api, pool)
            .ok_or_else(|| Absent::NoResources(format!("no memory for {} bytes of buffers", options.pool_bytes)))?;
        let objection = if options.nvtx { nvtx::objection(&path) } else { None };
        let options = &Options { nvtx: options.nvtx && objection.is_none(), ..options.clone() };
        let mut refused = Vec::new();
        let subscription = Subscription::start(shared, version, options, &mut refused)?;
        if subscription.has_our_clock() {
            remarks.push("its clock is CLOCK_BOOTTIME".into());
        }
        if subscription.took_buffers() {
            remarks.push(
                "another tool may have had CUPTI's buffers before: a profile that it is taking now, such as torch.profiler's, \
                 then has no kernels from here on"
                    .into(),
            );
        }
        if options.nvtx {
            nvtx::inject(&path);
        }
        let flusher = flusher(subscription, options, Arc::default())?;
        if !flusher.desk().has_readings() {
            remarks.push("it does not tell the time, which is taken for the wall clock".into());
        }
        let reader = Reader {
            shared,
            desk: Arc::clone(flusher.desk()),
            source: Source {
                version,
                asked: Asked { calls: options.calls, markers: options.nvtx },
                failures: shared.failures.load(Ordering::Relaxed),
            },
            process: Process::new(Some(shared.api.cuptiGetCallbackName)),
            pending: Vec::new(),
            forced: 0,
            has_given_up: false,
        };
        let facts = Facts { version, path, remarks, refused, objection };
        let detached = shared.fatal.load(Ordering::Relaxed);
        // A clock that is registered once more spoils the first kernels after it (pytorch/pytorch#192021): taken again, CUPTI
        // keeps the wall clock.
        let options = Options { boottime: false, ..options.clone() };
        Ok((Cupti { shared, options, flusher, detached, facts }, reader))
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
    /// Which CUPTI this is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether CUPTI is ours now, and has not detached itself after a failure of its own.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let is_attached = self.shared.fatal.load(Ordering::Relaxed) == self.detached;
        !process::is_child() && self.flusher.holds() && is_attached
    }

    /// Has CUPTI return what is complete, without waiting for the GPU, and waits for it at most this long. Not on a
    /// thread that is in a callback of CUPTI's. False when it did not come to an end in time; it goes on then.
    pub fn sync(&self, limit: Duration) -> bool {
        process::is_child() || self.flusher.sync(limit)
    }

    /// Has CUPTI return everything and gives it up, and waits for that at most this long. At the end of the process, or
    /// when another tool is to have CUPTI. What came back can still be drained. False when it did not come to an end in
    /// time; the last kernels may be missing then, and CUPTI is still ours.
    pub fn release(&self, limit: Duration) -> bool {
        if process::is_child() {
            return true;
        }
        let released = self.flusher.release(limit);
        if released {
            HELD.store(false, Ordering::Release);
        }
        released
    }

    /// Takes CUPTI again after it was given up. While it is ours, takes back its buffers and kinds, which another tool may have taken without
    /// a word. Not on a thread that is in a callback of CUPTI's. Where giving it up has not come to an end, waits for that at most this
    /// long; as for a flush that does.
    ///
    /// # Errors
    ///
    /// Why it cannot be had. CUPTI is as it was then.
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
        let detached = self.shared.fatal.load(Ordering::Relaxed);
        let (shared, version, options) = (self.shared, self.facts.version, self.options.clone());
        let desk = Arc::clone(self.flusher.desk());
        let ask = move || {
            let mut refused = Vec::new();
            let subscription = Subscription::start(shared, version, &options, &mut refused)?;
            Ok((flusher(subscription, &options, desk)?, refused))
        };
        match in_time(ask, |(flusher, _)| _ = flusher.release(TAKING)) {
            Ok((flusher, refused)) => {
                self.flusher = flusher;
                self.detached = detached;
                self.facts.refused = refused;
                Ok(Acquired::Again(None))
            }
            Err(absent) => {
                // Until CUPTI has come back, whoever waits for it there holds it.
                if absent != Absent::Silent {
                    HELD.store(false, Ordering::Release);
                }
                Err(absent)
            }
        }
    }
}

impl Facts {
    /// Which one it is, for whoever wonders why another profiler sees no GPU.
    #[must_use]
    pub fn announcement(&self) -> String {
        format!(
            "CUPTI of CUDA {}, so torch.profiler and others see no GPU in this process (NCCLSCOPE_CUPTI=0 leaves CUPTI to them, \
             ncclscope_release lends it)",
            self.release()
        )
    }

    /// Whether it records no kernels any more once it was given up. One release must not be told to stop.
    #[must_use]
    pub fn stops(&self) -> bool {
        releases::cupti_fault(self.version, FaultId::DisableDeadlocks).is_none()
    }

    /// The CUDA release it came with.
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
            "CUPTI has returned nothing of {launches}: another profiler in this process, such as torch.profiler, has probably \
             taken its buffers, which needs no subscription. Kernels from here on are not recorded, and nothing follows from that. \
             ncclscope_acquire takes CUPTI again"
        )
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
        if let Some(objection) = &self.objection {
            write!(f, "; {objection}")?;
        }
        Ok(())
    }
}
