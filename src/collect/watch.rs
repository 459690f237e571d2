//! The processor time of NCCL's threads and our own, and what they wait in, read from outside once a
//! second.
//!
//! NCCL's progress threads are known from the events they report. Its service threads report
//! nothing. They have names only with `NCCL_SET_THREAD_NAME=1`; without, every thread counts that
//! appeared while a communicator was initialised, which NCCL's proxy threads do. Nobody claims to
//! know which of them is which: they are called by the name that they have and shown with what they
//! wait in.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::doing::Doing;
use crate::model::time::HostNs;
use crate::pipeline::input::Share;
use crate::sys;

/// Time between two readings, and between two searches for threads, in ns.
const PERIOD_NS: u64 = 1_000_000_000;
const SEARCH_NS: u64 = 30 * PERIOD_NS;
/// How long after the begin of a communicator's `init` a thread counts as its own, and how much
/// before, since the kernel tells its start to 10 ms.
const INIT_NS: u64 = 3 * PERIOD_NS;
const TICK_NS: u64 = PERIOD_NS / 50;
/// Threads that are watched because of when they appeared.
const UNNAMED: usize = 32;

/// The watched threads.
#[derive(Debug, Default)]
pub(super) struct Watch {
    read: HostNs,
    searched: Option<HostNs>,
    threads: FxHashMap<i32, Watched>,
    /// The last `init`s of communicators.
    inits: Vec<HostNs>,
    /// Threads that are known to be others, and how many count because of when they appeared.
    others: FxHashSet<i32>,
    unnamed: usize,
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
    /// threads, `inits` the `init`s of communicators since then.
    pub(super) fn look(&mut self, now: HostNs, progress: &[i32], inits: &[HostNs]) -> Vec<Share> {
        self.read = now;
        self.inits.retain(|init| now.since(*init) <= INIT_NS + 2 * PERIOD_NS);
        self.inits.extend(inits);
        if !self.inits.is_empty() || self.searched.is_none_or(|searched| now.since(searched) >= SEARCH_NS) {
            self.searched = Some(now);
            self.search();
        }
        for &tid in progress {
            self.threads.entry(tid).or_insert_with(|| Watched::new("proxy thread"));
        }
        let mut shares = Vec::new();
        self.threads.retain(|&tid, Watched { name, before }| {
            let Some(used) = sys::thread_cpu_ns(tid) else { return false };
            if let Some((then, had)) = before.replace((now, used)) {
                let percent = (used.saturating_sub(had) * 100 / now.since(then).max(1)) as i64;
                let state = sys::thread_state(tid);
                let (doing, processor) = (state.map_or(Doing::Unknown, doing), state.map(|state| state.processor));
                shares.push(Share { tid, name: name.clone(), percent, doing, processor });
            }
            true
        });
        shares
    }

    /// Looks for threads by their names, and by when they appeared.
    fn search(&mut self) {
        let threads = sys::threads();
        if self.others.len() > 2 * threads.len() + UNNAMED {
            self.others.clear();
        }
        for (tid, name) in threads {
            if name.starts_with("NCCL ") || name.starts_with("ncclscope") {
                self.threads.entry(tid).or_insert_with(|| Watched::new("")).name = name.into();
            } else if !self.inits.is_empty()
                && self.unnamed < UNNAMED
                && !self.threads.contains_key(&tid)
                && !self.others.contains(&tid)
            {
                let came_with = |init: &HostNs, started: u64| {
                    (init.0.saturating_sub(TICK_NS)..=init.0 + INIT_NS).contains(&started)
                };
                match sys::thread_state(tid) {
                    Some(state) if self.inits.iter().any(|init| came_with(init, state.started)) => {
                        self.unnamed += 1;
                        self.threads.insert(tid, Watched::new(format!("since init: {name}")));
                    }
                    _ => _ = self.others.insert(tid),
                }
            }
        }
    }
}

/// What a thread does, by the system call that it is in.
fn doing(state: sys::ThreadState) -> Doing {
    #[cfg(target_arch = "x86_64")]
    const POLLS: [libc::c_long; 6] = [
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_select,
        libc::SYS_pselect6,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const POLLS: [libc::c_long; 3] = [libc::SYS_ppoll, libc::SYS_epoll_pwait, libc::SYS_pselect6];
    let Some(call) = state.call else { return Doing::Running };
    match call {
        _ if POLLS.contains(&call) => Doing::Poll,
        libc::SYS_futex => Doing::Futex,
        libc::SYS_recvmsg | libc::SYS_recvfrom | libc::SYS_recvmmsg => Doing::Receive,
        libc::SYS_accept | libc::SYS_accept4 => Doing::Accept,
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Doing::Sleep,
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => Doing::File,
        _ => Doing::Call,
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
            assert_eq!(watch.look(second(10), &[tid], &[]).len(), 0, "nothing is known of the time before");
            assert!(!watch.is_due(HostNs(second(11).0 - 1)) && watch.is_due(second(11)));
            while sys::thread_cpu_ns(tid).unwrap() < used + 100_000_000 {}
            let shares = watch.look(second(11), &[tid], &[]);
            let share = shares.iter().find(|share| share.tid == tid).unwrap();
            assert!(share.percent >= 9, "{share:?}");
            stop.store(true, Ordering::Release);
        });
        let tid = tid.load(Ordering::Acquire);
        // The kernel may need a moment to remove a thread that has ended.
        while sys::thread_cpu_ns(tid).is_some() {}
        assert!(!watch.look(second(12), &[], &[]).iter().any(|share| share.tid == tid));
    }

    #[test]
    fn threads_that_appear_during_an_init_are_shown_with_what_they_wait_in() {
        let (poll, futex) = (AtomicI32::new(0), AtomicI32::new(0));
        let (parked, mut watch) = (std::sync::OnceLock::new(), Watch::default());
        // A communicator that began a second ago, and one that begins now.
        let init = HostNs(sys::boottime_ns());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                poll.store(sys::thread_id(), Ordering::Release);
                while futex.load(Ordering::Acquire) != -1 {
                    // SAFETY: no descriptors; it waits for the time.
                    unsafe { libc::poll(std::ptr::null_mut(), 0, 20) };
                }
            });
            scope.spawn(|| {
                parked.get_or_init(std::thread::current);
                futex.store(sys::thread_id(), Ordering::Release);
                while futex.load(Ordering::Acquire) != -1 {
                    std::thread::park();
                }
            });
            while poll.load(Ordering::Acquire) == 0 || futex.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
            let tids = [&poll, &futex].map(|tid| tid.load(Ordering::Acquire));
            let later = |n: u64| HostNs(init.0 + n);
            assert!(Watch::default().look(later(1), &[], &[]).is_empty());
            watch.look(later(1), &[], &[init]);
            // A busy machine may not have brought them to sleep yet.
            let seen = (2..2_000_u64).find_map(|turn| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let shares = watch.look(later(turn), &[], &[]);
                let of = |tid| shares.iter().find(|share| share.tid == tid).cloned();
                let [one, other] = [of(tids[0])?, of(tids[1])?];
                ((one.doing, other.doing) == (Doing::Poll, Doing::Futex)).then_some([one, other])
            });
            futex.store(-1, Ordering::Release);
            parked.get().unwrap().unpark();
            let seen = seen.expect("both threads are found and waiting");
            assert!(seen.iter().all(|share| share.name.starts_with("since init: ") && share.processor.is_some()));
        });
        // A thread that was there before the init does not count.
        let own = sys::thread_id();
        let late = HostNs(sys::boottime_ns() + 10 * PERIOD_NS);
        let mut watch = Watch::default();
        watch.look(late, &[], &[late]);
        assert!(!watch.look(HostNs(late.0 + 1), &[], &[]).iter().any(|share| share.tid == own));
    }
}
