//! The load test: realistic sequences of calls from many threads, at full speed or paced.
//!
//! It counts exactly what it sends, so that a trace can be checked for missing records. The
//! sequences are those of NCCL: a collective is called, launched and enqueued on a user's thread; a
//! proxy operation and its steps, up to eight in flight, run on a progress thread.

use crate::host::{Arg, Comm, Context, Descriptor, LoadError, Plugin, RawHandle, Slot, StateCall, Value};
use crate::player;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// A load.
#[derive(Clone, Debug)]
pub struct Flood {
    /// The plugin's library.
    pub plugin: PathBuf,
    /// The interface version to call it through.
    pub interface: u32,
    /// Threads that send at the same time.
    pub threads: u32,
    /// Communicators that the threads share; all are initialised at the same time.
    pub comms: u32,
    /// The total number of calls. Sequences are not cut short, so there may be a few more.
    pub events: u64,
    /// Calls per second in total, if they are paced.
    pub rate: Option<u64>,
    /// What to send.
    pub kind: Kind,
    /// Instead of `events`: this many threads that each send one sequence and end, `threads` of
    /// them at a time.
    pub short_threads: Option<u32>,
    /// Measure every call, at the cost of two clock readings each.
    pub latency: bool,
}

/// What a load consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Proxy operations with their steps.
    Step,
    /// Collectives, from the call to the enqueueing.
    Coll,
    /// Both, alternating.
    Mixed,
}

/// The number of calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `startEvent`.
    pub starts: u64,
    /// `stopEvent`.
    pub stops: u64,
    /// `recordEventState`.
    pub states: u64,
    /// Starts that returned no handle, and so had no stop and no states.
    pub null_handles: u64,
    /// Calls that did not return success.
    pub errors: u64,
}

impl Counts {
    /// All calls.
    pub fn calls(&self) -> u64 {
        self.starts + self.stops + self.states
    }

    fn add(&mut self, other: &Counts) {
        self.starts += other.starts;
        self.stops += other.stops;
        self.states += other.states;
        self.null_handles += other.null_handles;
        self.errors += other.errors;
    }
}

/// What a load did and what it cost.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was sent.
    pub counts: Counts,
    /// The activation mask after the last `init`.
    pub mask: i32,
    /// From the first call to the last, in ns.
    pub wall_ns: u64,
    /// All of the `init` calls, which run at the same time.
    pub init_ns: u64,
    /// All of the `finalize` calls, one after the other.
    pub finalize_ns: u64,
    /// Resident memory just before the plugin is loaded, in KiB.
    pub rss_before_kib: u64,
    /// The largest resident memory in any sample, ten milliseconds apart, in KiB.
    pub rss_peak_kib: u64,
    /// The largest resident memory since the plugin was loaded, as the kernel counts it, in KiB.
    pub rss_high_water_kib: u64,
    /// Resident memory after the last `finalize`, in KiB.
    pub rss_after_kib: u64,
    /// The duration of calls, if it was measured.
    pub latency: Option<Latency>,
}

/// The duration of calls, in ns.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Half of the calls were faster.
    pub median_ns: u64,
    /// One call in a hundred was slower.
    pub p99_ns: u64,
    /// One call in a thousand was slower.
    pub p999_ns: u64,
    /// The slowest.
    pub max_ns: u64,
    /// The cost of the two clock readings, which is included above.
    pub clock_ns: u64,
}

impl Report {
    /// One line of JSON.
    pub fn to_json(&self, flood: &Flood) -> Json {
        let mut json = json!({
            "interface": flood.interface,
            "threads": flood.threads,
            "calls": self.counts.calls(),
            "starts": self.counts.starts,
            "stops": self.counts.stops,
            "states": self.counts.states,
            "null_handles": self.counts.null_handles,
            "errors": self.counts.errors,
            "mask": self.mask,
            "wall_ns": self.wall_ns,
            "calls_per_second": rate(self.counts.calls(), self.wall_ns),
            "init_ns": self.init_ns,
            "finalize_ns": self.finalize_ns,
            "rss_before_kib": self.rss_before_kib,
            "rss_peak_kib": self.rss_peak_kib,
            "rss_high_water_kib": self.rss_high_water_kib,
            "rss_after_kib": self.rss_after_kib,
        });
        if let Some(latency) = &self.latency {
            json["latency"] = json!({
                "median_ns": latency.median_ns,
                "p99_ns": latency.p99_ns,
                "p999_ns": latency.p999_ns,
                "max_ns": latency.max_ns,
                "clock_ns": latency.clock_ns,
            });
        }
        json
    }
}

/// Loads the plugin, sends the load, and ends all communicators.
///
/// # Errors
///
/// If the plugin cannot be loaded.
///
/// # Safety
///
/// See [`Plugin::load`].
pub unsafe fn run(flood: &Flood) -> Result<Report, LoadError> {
    reset_high_water();
    let rss_before_kib = resident();
    // SAFETY: the caller promises what this needs.
    let plugin = unsafe { Plugin::load(&flood.plugin, flood.interface)? };
    let peak = AtomicU64::new(rss_before_kib);
    let over = AtomicBool::new(false);
    let mut report = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(resident(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let report = send(flood, &plugin);
        over.store(true, Ordering::Relaxed);
        report
    });
    report.rss_before_kib = rss_before_kib;
    report.rss_peak_kib = peak.load(Ordering::Relaxed);
    report.rss_high_water_kib = status("VmHWM:");
    report.rss_after_kib = resident();
    Ok(report)
}

fn send(flood: &Flood, plugin: &Plugin) -> Report {
    let start = now();
    let contexts = init_all(plugin, flood.comms.max(1));
    let init_ns = now() - start;
    let threads = flood.threads.max(1);
    let barrier = Barrier::new(threads as usize);
    let lanes = thread::scope(|scope| {
        let lane = |index: u32| {
            let context = &contexts[index as usize % contexts.len()];
            let barrier = &barrier;
            scope.spawn(move || {
                let share = |total: u64| {
                    let (each, rest) = (total / u64::from(threads), total % u64::from(threads));
                    each + u64::from(u64::from(index) < rest)
                };
                barrier.wait();
                let begin = now();
                let (counts, histogram) = match flood.short_threads {
                    Some(count) => short_threads(flood, plugin, context, share(count.into())),
                    None => {
                        let mut lane = Lane::new(flood.kind, flood.latency, plugin, context);
                        lane.send(share(flood.events), flood.rate.map(|rate| share(rate).max(1)));
                        (lane.sender.counts, lane.sender.latency)
                    }
                };
                (begin, now(), counts, histogram)
            })
        };
        let handles: Vec<_> = (0..threads).map(lane).collect();
        handles.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect::<Vec<_>>()
    });
    let mut counts = Counts::default();
    let mut histogram = flood.latency.then(Histogram::new);
    for (_, _, lane, latency) in &lanes {
        counts.add(lane);
        if let (Some(all), Some(one)) = (&mut histogram, latency) {
            all.add(one);
        }
    }
    let begin = lanes.iter().map(|lane| lane.0).min().unwrap_or_default();
    let end = lanes.iter().map(|lane| lane.1).max().unwrap_or_default();
    let start = now();
    for context in &contexts {
        counts.errors += u64::from(plugin.finalize(context) != 0);
    }
    Report {
        counts,
        mask: plugin.mask().load(Ordering::Relaxed),
        wall_ns: end - begin,
        init_ns,
        finalize_ns: now() - start,
        rss_before_kib: 0,
        rss_peak_kib: 0,
        rss_high_water_kib: 0,
        rss_after_kib: 0,
        latency: histogram.map(|histogram| histogram.latency()),
    }
}

/// Every communicator is initialised by its own thread, all at the same time, as in a group.
fn init_all(plugin: &Plugin, count: u32) -> Vec<Context> {
    let barrier = Barrier::new(count as usize);
    let init = |index: u32| {
        barrier.wait();
        let id = 0xf100d + u64::from(index);
        plugin.init(&Comm { id, name: None, nodes: 2, nranks: 16, rank: index as i32 % 16 })
    };
    thread::scope(|scope| {
        let init = &init;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || init(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("init does not panic")).collect()
    })
}

/// Short-lived threads. One is still ending when the next has begun.
fn short_threads(flood: &Flood, plugin: &Plugin, context: &Context, count: u64) -> (Counts, Option<Histogram>) {
    let mut counts = Counts::default();
    let mut histogram = flood.latency.then(Histogram::new);
    let body = || {
        let mut lane = Lane::new(flood.kind, flood.latency, plugin, context);
        lane.send(1, None);
        (lane.sender.counts, lane.sender.latency)
    };
    let mut collect = |thread: ScopedJoinHandle<'_, (Counts, Option<Histogram>)>| {
        let (sent, latency) = thread.join().expect("a short thread does not panic");
        counts.add(&sent);
        if let (Some(all), Some(one)) = (&mut histogram, &latency) {
            all.add(one);
        }
    };
    thread::scope(|scope| {
        let mut previous = None;
        for _ in 0..count {
            if let Some(thread) = previous.replace(scope.spawn(body)) {
                collect(thread);
            }
        }
        previous.into_iter().for_each(collect);
    });
    (counts, histogram)
}

/// One thread's part of a load.
pub struct Lane<'a> {
    sender: Sender<'a>,
    kind: Kind,
    collective: Collective,
    proxies: [Proxy; 2],
    sequences: usize,
}

impl<'a> Lane<'a> {
    /// A load for the calling thread, whose calls are measured if `latency` is wanted.
    pub fn new(kind: Kind, latency: bool, plugin: &'a Plugin, context: &Context) -> Lane<'a> {
        Lane {
            sender: Sender {
                plugin,
                context: context.handle,
                counts: Counts::default(),
                latency: latency.then(Histogram::new),
            },
            kind,
            collective: Collective::new(plugin, context),
            proxies: [Proxy::new(plugin, context, true), Proxy::new(plugin, context, false)],
            sequences: 0,
        }
    }

    /// What was sent so far.
    pub fn counts(&self) -> Counts {
        self.sender.counts
    }

    /// How long the calls took so far, if that is measured.
    pub fn latency(&self) -> Option<Latency> {
        self.sender.latency.as_ref().map(Histogram::latency)
    }

    /// Sends sequences until there were `calls` calls in all, at `rate` calls per second if given.
    pub fn send(&mut self, calls: u64, rate: Option<u64>) {
        const SHORTEST_SLEEP_NS: u64 = 100_000;
        let begin = now();
        while self.sender.counts.calls() < calls {
            self.sequence();
            if let Some(rate) = rate {
                let sent = u128::from(self.sender.counts.calls());
                let due = begin + (sent * 1_000_000_000 / u128::from(rate)) as u64;
                let early = due.saturating_sub(now());
                if early >= SHORTEST_SLEEP_NS {
                    thread::sleep(Duration::from_nanos(early));
                }
            }
        }
    }

    fn sequence(&mut self) {
        let turn = self.sequences;
        self.sequences += 1;
        let collective = match self.kind {
            Kind::Coll => true,
            Kind::Step => false,
            Kind::Mixed => turn.is_multiple_of(3),
        };
        match collective {
            true => self.collective.send(&mut self.sender),
            false => self.proxies[turn % 2].send(&mut self.sender, self.collective.last),
        }
    }
}

/// Makes calls and counts them.
struct Sender<'a> {
    plugin: &'a Plugin,
    context: RawHandle,
    counts: Counts,
    latency: Option<Histogram>,
}

impl Sender<'_> {
    /// Starts an event, if the version has it.
    #[inline]
    fn start(&mut self, descriptor: &mut Option<Descriptor>) -> RawHandle {
        let Some(descriptor) = descriptor else {
            return RawHandle::NULL;
        };
        let plugin = self.plugin;
        let context = self.context;
        let started = self.timed(|| plugin.start_prepared(context, descriptor));
        self.counts.starts += 1;
        self.counts.null_handles += u64::from(started.handle.is_null());
        self.counts.errors += u64::from(started.status != 0);
        started.handle
    }

    /// Records a state, if the version has it and there is an event.
    #[inline]
    fn state(&mut self, handle: RawHandle, call: &mut Option<StateCall>) {
        let Some(call) = call else { return };
        if handle.is_null() {
            return;
        }
        let plugin = self.plugin;
        let status = self.timed(|| plugin.state_prepared(handle, call));
        self.counts.states += 1;
        self.counts.errors += u64::from(status != 0);
    }

    /// Stops an event, if there is one.
    #[inline]
    fn stop(&mut self, handle: RawHandle) {
        if handle.is_null() {
            return;
        }
        let plugin = self.plugin;
        let status = self.timed(|| plugin.stop(handle));
        self.counts.stops += 1;
        self.counts.errors += u64::from(status != 0);
    }

    #[inline]
    fn timed<T>(&mut self, call: impl FnOnce() -> T) -> T {
        match &mut self.latency {
            None => call(),
            Some(histogram) => {
                let before = now();
                let result = call();
                histogram.count(now() - before);
                result
            }
        }
    }
}

/// What a user's thread reports of a collective outside a group.
struct Collective {
    group_api: Option<Descriptor>,
    group_started: Option<StateCall>,
    group_ending: Option<StateCall>,
    coll_api: Option<Descriptor>,
    launch: Option<Descriptor>,
    group: Option<Descriptor>,
    coll: Option<Descriptor>,
    coll_group: Option<Slot>,
    coll_number: Option<Slot>,
    number: u64,
    /// The last Coll event, to which proxy operations belong.
    last: RawHandle,
}

impl Collective {
    fn new(plugin: &Plugin, context: &Context) -> Collective {
        let prepare =
            |kind: &str, fields: &[(&str, Value<'_>)]| plugin.descriptor(context, kind, fields, RawHandle::NULL);
        let stream = ("stream", 0x7000_1000_u64.into());
        let func = ("func", "AllReduce".into());
        let count = ("count", (4_u64 << 20).into());
        let datatype = ("datatype", "ncclBfloat16".into());
        let coll = prepare(
            "Coll",
            &[
                func,
                count,
                datatype,
                ("nChannels", 16.into()),
                ("nWarps", 17.into()),
                ("algo", "RING".into()),
                ("proto", "SIMPLE".into()),
            ],
        );
        let slot = |name| coll.as_ref().and_then(|coll| coll.slot(name));
        Collective {
            group_api: prepare("GroupApi", &[("groupDepth", 1.into())]),
            group_started: plugin.state_call("GroupStartApiStop", Arg::Default),
            group_ending: plugin.state_call("GroupEndApiStart", Arg::Default),
            coll_api: prepare("CollApi", &[func, count, datatype, stream]),
            launch: prepare("KernelLaunch", &[stream]),
            group: prepare("Group", &[]),
            coll_group: slot("parentGroup"),
            coll_number: slot("seqNumber"),
            coll,
            number: 0,
            last: RawHandle::NULL,
        }
    }

    fn send(&mut self, sender: &mut Sender<'_>) {
        let group_api = sender.start(&mut self.group_api);
        sender.state(group_api, &mut self.group_started);
        set_parent(&mut self.coll_api, group_api);
        let coll_api = sender.start(&mut self.coll_api);
        sender.stop(coll_api);
        sender.state(group_api, &mut self.group_ending);
        set_parent(&mut self.launch, group_api);
        let launch = sender.start(&mut self.launch);
        sender.stop(launch);
        let group = sender.start(&mut self.group);
        if let Some(coll) = &mut self.coll {
            // Up to v4 there is no field for the group: the group is the parent.
            match self.coll_group {
                Some(slot) => {
                    coll.set(slot, group.0);
                    coll.set_parent(coll_api);
                }
                None => coll.set_parent(group),
            }
            if let Some(slot) = self.coll_number {
                coll.set(slot, self.number);
            }
        }
        self.number += 1;
        self.last = sender.start(&mut self.coll);
        sender.stop(self.last);
        sender.stop(group);
        sender.stop(group_api);
    }
}

/// What a progress thread reports of a proxy operation.
struct Proxy {
    op: Option<Descriptor>,
    op_states: Vec<Option<StateCall>>,
    step: Option<Descriptor>,
    step_number: Option<Slot>,
    step_states: [Option<StateCall>; 3],
}

impl Proxy {
    const STEPS: u64 = 16;
    const CHUNK: u64 = 512 << 10;
    /// How many steps of an operation are under way at once.
    const IN_FLIGHT: usize = 8;

    fn new(plugin: &Plugin, context: &Context, is_send: bool) -> Proxy {
        let fields = [
            ("channelId", 3.into()),
            ("peer", 1.into()),
            ("nSteps", Proxy::STEPS.into()),
            ("chunkSize", Proxy::CHUNK.into()),
            ("isSend", is_send.into()),
        ];
        let (op_states, step_states) = match is_send {
            true => (
                ["OpInProgress", "OpSendPosted", "OpSendTransmitted", "OpSendDone"],
                ["StepSendGpuWait", "StepSendPeerWait", "StepSendWait"],
            ),
            false => (
                ["OpInProgress", "OpRecvPosted", "OpRecvReceived", "OpRecvDone"],
                ["StepRecvWait", "StepRecvFlushWait", "StepRecvGpuWait"],
            ),
        };
        let op_arg = Arg::Progress { trans_size: Proxy::CHUNK, steps: 1 };
        let step = plugin.descriptor(context, "ProxyStep", &[], RawHandle::NULL);
        Proxy {
            op: plugin.descriptor(context, "ProxyOp", &fields, RawHandle::NULL),
            op_states: op_states.map(|state| plugin.state_call(state, op_arg)).into(),
            step_number: step.as_ref().and_then(|step| step.slot("step")),
            step,
            step_states: step_states.map(|state| plugin.state_call(state, Arg::Value(Proxy::CHUNK))),
        }
    }

    fn send(&mut self, sender: &mut Sender<'_>, parent: RawHandle) {
        set_parent(&mut self.op, parent);
        let op = sender.start(&mut self.op);
        for state in &mut self.op_states {
            sender.state(op, state);
        }
        set_parent(&mut self.step, op);
        let mut in_flight = [RawHandle::NULL; Proxy::IN_FLIGHT];
        for number in 0..Proxy::STEPS {
            if let (Some(step), Some(slot)) = (&mut self.step, self.step_number) {
                step.set(slot, number);
            }
            let place = &mut in_flight[number as usize % Proxy::IN_FLIGHT];
            sender.stop(*place);
            *place = sender.start(&mut self.step);
            for state in &mut self.step_states {
                sender.state(*place, state);
            }
        }
        for step in in_flight {
            sender.stop(step);
        }
        sender.stop(op);
    }
}

/// Counts of times, in buckets a sixteenth of their value wide.
struct Histogram {
    buckets: Box<[u64; 1024]>,
    max: u64,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram { buckets: Box::new([0; 1024]), max: 0 }
    }

    #[inline]
    fn count(&mut self, value: u64) {
        self.buckets[Histogram::bucket(value)] += 1;
        self.max = self.max.max(value);
    }

    fn add(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *bucket += count;
        }
        self.max = self.max.max(other.max);
    }

    fn latency(&self) -> Latency {
        Latency {
            median_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max,
            clock_ns: clock_cost(),
        }
    }

    /// The largest value in the bucket that contains this quantile.
    fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Histogram::last_of(index).min(self.max);
            }
        }
        self.max
    }

    fn bucket(value: u64) -> usize {
        match value {
            0..16 => value as usize,
            _ => {
                let exponent = value.ilog2();
                let part = (value >> (exponent - 4)) & 15;
                (exponent as usize - 3) * 16 + part as usize
            }
        }
    }

    fn last_of(bucket: usize) -> u64 {
        match bucket {
            0..16 => bucket as u64,
            _ => {
                let exponent = bucket / 16 + 3;
                let width = 1 << (exponent - 4);
                (1 << exponent) + (bucket as u64 % 16) * width + (width - 1)
            }
        }
    }
}

fn set_parent(descriptor: &mut Option<Descriptor>, parent: RawHandle) {
    if let Some(descriptor) = descriptor {
        descriptor.set_parent(parent);
    }
}

#[inline]
fn now() -> u64 {
    player::clock(libc::CLOCK_MONOTONIC)
}

/// The smallest cost of two clock readings, in ns.
fn clock_cost() -> u64 {
    let cost = |_| {
        let before = now();
        now() - before
    };
    (0..1000).map(cost).min().unwrap_or_default()
}

fn rate(calls: u64, wall_ns: u64) -> u64 {
    (u128::from(calls) * 1_000_000_000 / u128::from(wall_ns.max(1))) as u64
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    status("VmRSS:")
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Restarts the kernel's high-water mark of resident memory. Where that fails, the mark is merely
/// higher.
fn reset_high_water() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_sixteenth_wide() {
        for value in (0..10_000).chain([1 << 40, u64::from(u32::MAX), 1_234_567_890]) {
            let last = Histogram::last_of(Histogram::bucket(value));
            assert!(last >= value && last - value <= value / 16, "{value} is counted as {last}");
        }
    }

    #[test]
    fn quantiles_follow_the_counts() {
        let mut histogram = Histogram::new();
        (0..1000).for_each(|_| histogram.count(10));
        histogram.count(5000);
        assert_eq!(histogram.quantile(0.5), 10);
        assert_eq!(histogram.quantile(0.9999), 5000);
    }
}
