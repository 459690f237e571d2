//! The load test: realistic sequences of calls from many threads, at full speed or paced.
//!
//! It counts exactly what it sends, so that a trace can be checked for missing records. The
//! sequences are those of NCCL: a collective is called, launched and enqueued on a user's thread; a
//! proxy operation and its steps, up to eight in flight, run on a progress thread.

mod lane;

pub use lane::Lane;

use crate::host::{Comm, Context, LoadError, Plugin};
use crate::player;
use hdrhistogram::Histogram;
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
    let mut histogram = flood.latency.then(empty);
    for (_, _, lane, latency) in &lanes {
        counts.add(lane);
        if let (Some(all), Some(one)) = (&mut histogram, latency) {
            all.add(one).expect("they have the same bounds");
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
        latency: histogram.as_ref().map(latency),
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
fn short_threads(flood: &Flood, plugin: &Plugin, context: &Context, count: u64) -> (Counts, Option<Histogram<u64>>) {
    let mut counts = Counts::default();
    let mut histogram = flood.latency.then(empty);
    let body = || {
        let mut lane = Lane::new(flood.kind, flood.latency, plugin, context);
        lane.send(1, None);
        (lane.sender.counts, lane.sender.latency)
    };
    let mut collect = |thread: ScopedJoinHandle<'_, (Counts, Option<Histogram<u64>>)>| {
        let (sent, latency) = thread.join().expect("a short thread does not panic");
        counts.add(&sent);
        if let (Some(all), Some(one)) = (&mut histogram, &latency) {
            all.add(one).expect("they have the same bounds");
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

/// A histogram of times up to an hour; longer ones count as that.
fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 2).expect("the bounds are valid")
}

fn latency(times: &Histogram<u64>) -> Latency {
    Latency {
        median_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        max_ns: times.max(),
        clock_ns: clock_cost(),
    }
}

/// The smallest cost of two clock readings, in ns.
fn clock_cost() -> u64 {
    let cost = |_| {
        let before = now();
        now() - before
    };
    (0..1000).map(cost).min().unwrap_or_default()
}

#[inline]
fn now() -> u64 {
    player::clock(libc::CLOCK_MONOTONIC)
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
