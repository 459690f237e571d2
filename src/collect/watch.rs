//! The processor time of NCCL's threads and our own, read from outside once a second.
//!
//! NCCL's progress threads are known from the events they report. Its service threads report
//! nothing and are found by name, which they have only with `NCCL_SET_THREAD_NAME=1`.

use rustc_hash::FxHashMap;

use crate::model::time::HostNs;
use crate::pipeline::input::Share;
use crate::sys;

/// Time between two readings, and between two searches for threads, in ns.
const PERIOD_NS: u64 = 1_000_000_000;
const SEARCH_NS: u64 = 30 * PERIOD_NS;

/// The watched threads.
#[derive(Debug, Default)]
pub(super) struct Watch {
    read: HostNs,
    searched: Option<HostNs>,
    threads: FxHashMap<i32, Watched>,
}

#[derive(Debug)]
struct Watched {
    name: Box<str>,
    /// When it was last read, and its processor time at that moment, in ns.
    before: Option<(HostNs, u64)>,
}

impl Watched {
    fn new(name: impl Into<Box<str>>) -> Watched {
        Watched { name: name.into(), before: None }
    }
}

impl Watch {
    /// Whether it is time for the next reading.
    pub(super) fn is_due(&self, now: HostNs) -> bool {
        now.since(self.read) >= PERIOD_NS
    }

    /// The processor time of each thread since the last reading. `progress` are NCCL's progress
    /// threads.
    pub(super) fn look(&mut self, now: HostNs, progress: &[i32]) -> Vec<Share> {
        self.read = now;
        if self.searched.is_none_or(|searched| now.since(searched) >= SEARCH_NS) {
            self.searched = Some(now);
            for (tid, name) in sys::threads() {
                if name.starts_with("NCCL ") || name.starts_with("ncclscope") {
                    self.threads.entry(tid).or_insert_with(|| Watched::new(name));
                }
            }
        }
        for &tid in progress {
            self.threads.entry(tid).or_insert_with(|| Watched::new("proxy thread"));
        }
        let mut shares = Vec::new();
        self.threads.retain(|&tid, Watched { name, before }| {
            let Some(used) = sys::thread_cpu_ns(tid) else { return false };
            if let Some((then, had)) = before.replace((now, used)) {
                let percent = (used.saturating_sub(had) * 100 / now.since(then).max(1)) as i64;
                shares.push(Share { tid, name: name.clone(), percent });
            }
            true
        });
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    #[test]
    fn a_busy_thread_is_measured_and_forgotten_when_it_ends() {
        let (tid, stop) = (AtomicI32::new(0), AtomicBool::new(false));
        let second = |n: u64| HostNs(n * PERIOD_NS);
        let mut watch = Watch::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tid.store(sys::thread_id(), Ordering::Release);
                while !stop.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            });
            while tid.load(Ordering::Acquire) == 0 {}
            let tid = tid.load(Ordering::Acquire);
            let used = sys::thread_cpu_ns(tid).unwrap();
            assert_eq!(watch.look(second(10), &[tid]).len(), 0, "nothing is known of the time before");
            assert!(!watch.is_due(HostNs(second(11).0 - 1)) && watch.is_due(second(11)));
            while sys::thread_cpu_ns(tid).unwrap() < used + 100_000_000 {}
            let shares = watch.look(second(11), &[tid]);
            let share = shares.iter().find(|share| share.tid == tid).unwrap();
            assert!(share.percent >= 9, "{share:?}");
            stop.store(true, Ordering::Release);
        });
        let tid = tid.load(Ordering::Acquire);
        // The kernel may need a moment to remove a thread that has ended.
        while sys::thread_cpu_ns(tid).is_some() {}
        assert!(!watch.look(second(12), &[]).iter().any(|share| share.tid == tid));
    }
}
