//! The processor time of NCCL's threads and our own, and what they wait in, read from outside once
//! a second; and for how long NCCL's progress threads wait for a processor, ten times a second.
//!
//! NCCL's progress threads are known from the events they report. Its service threads report
//! nothing, and have names of their own only with `NCCL_SET_THREAD_NAME=1`. Without it, a thread is
//! probably one of them if it appeared while a communicator was initialised, has the name of the
//! thread that did so (as unnamed threads have), and waits in `poll` (seen with 2.28 to 2.32). The
//! threads of CUDA, CUPTI and frameworks have names or wait in something else.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::doing::{CpuWait, Doing};
use crate::model::time::HostNs;
use crate::pipeline::input::Share;
use crate::sys;

/// Time between two readings, and between two searches for threads, in ns.
const PERIOD_NS: u64 = 1_000_000_000;
const SEARCH_NS: u64 = 30 * PERIOD_NS;
/// Time between two looks at how long progress threads wait for a processor, in ns. A transfer that
/// takes long may take that long because of it, so it is known for about as long as a transfer.
const CPU_WAITS_NS: u64 = PERIOD_NS / 10;
/// How long after the begin of a communicator's `init` a new thread counts as its own; and how much
/// before, because the kernel gives start times to 10 ms.
const INIT_NS: u64 = 3 * PERIOD_NS;
const TICK_NS: u64 = PERIOD_NS / 50;
/// The name of a thread that is probably one of NCCL's service threads.
const PROBABLE: &str = "NCCL service, probably";
/// How many of them are watched.
const PROBABLE_THREADS: usize = 32;

/// The `init` of a communicator: when, and the thread's id.
pub(super) type Init = (HostNs, i32);

/// The watched threads.
#[derive(Debug, Default)]
pub(super) struct Watch {
    read: HostNs,
    searched: Option<HostNs>,
    threads: FxHashMap<i32, Watched>,
    /// The last `init`s of communicators, with the names of their threads.
    inits: Vec<(HostNs, String)>,
    /// Threads that are known not to be NCCL's.
    others: FxHashSet<i32>,
    /// When it was last read for how long the progress threads had waited for a processor in all;
    /// and that by thread, in ns.
    waits_read: HostNs,
    waited: FxHashMap<i32, u64>,
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
        // The host's clock may have gone back.
        now < self.read || now.since(self.read) >= PERIOD_NS
    }

    /// The processor time of each thread since the last reading. `progress` are NCCL's progress
    /// threads, `inits` the `init`s of communicators since then.
    pub(super) fn look(&mut self, now: HostNs, progress: &[i32], inits: &[Init]) -> Vec<Share> {
        if now < self.read {
            self.searched = None;
            self.inits.clear();
            self.threads.values_mut().for_each(|watched| watched.before = None);
        }
        self.read = now;
        self.inits.retain(|(init, _)| now.since(*init) <= INIT_NS + 2 * PERIOD_NS);
        // A thread that has ended most likely had the name of the process.
        let name = |tid| sys::name_of_thread(tid).or_else(|| sys::name_of_thread(std::process::id() as i32));
        self.inits.extend(inits.iter().filter_map(|&(at, tid)| Some((at, name(tid)?))));
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

    /// Whether it is time to look at how long progress threads wait for a processor.
    pub(super) fn are_waits_due(&self, now: HostNs) -> bool {
        now < self.waits_read || now.since(self.waits_read) >= CPU_WAITS_NS
    }

    /// For how long each of these progress threads waited for a processor since the last look.
    pub(super) fn cpu_waits(&mut self, now: HostNs, progress: &[i32]) -> Vec<CpuWait> {
        let since = std::mem::replace(&mut self.waits_read, now);
        let before = std::mem::take(&mut self.waited);
        let mut waits = Vec::new();
        for &tid in progress {
            let Some(queued) = sys::thread_queued_ns(tid) else { continue };
            if let Some(had) = before.get(&tid).filter(|_| since < now) {
                waits.push(CpuWait { tid, since, ns: queued.saturating_sub(*had) });
            }
            self.waited.insert(tid, queued);
        }
        waits
    }

    /// Looks for threads by their names, and by when they appeared.
    fn search(&mut self) {
        let threads = sys::threads();
        if self.others.len() > 2 * threads.len() + PROBABLE_THREADS {
            self.others.clear();
        }
        // Those of communicators that have ended are no longer watched.
        let mut probable = self.threads.values().filter(|it| *it.name == *PROBABLE).count();
        for (tid, name) in threads {
            if name.starts_with("NCCL ") || name.starts_with("ncclscope") {
                self.threads.entry(tid).or_insert_with(|| Watched::new("")).name = name.into();
            } else if !self.inits.is_empty()
                && probable < PROBABLE_THREADS
                && !self.threads.contains_key(&tid)
                && !self.others.contains(&tid)
            {
                let came_with = |started: u64| {
                    self.inits.iter().any(|(init, creator)| {
                        let window = init.0.saturating_sub(TICK_NS)..=init.0 + INIT_NS;
                        *creator == name && window.contains(&started)
                    })
                };
                match sys::thread_state(tid) {
                    Some(state) if !came_with(state.started) => _ = self.others.insert(tid),
                    Some(state) if doing(state) == Doing::Poll => {
                        probable += 1;
                        self.threads.insert(tid, Watched::new(PROBABLE));
                    }
                    // It may reach its `poll` by the next search.
                    _ => {}
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

    /// Lets a test's threads end, also when the test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

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
            let _stop = Stop(&stop);
            let tid = tid.load(Ordering::Acquire);
            assert_eq!(watch.look(second(10), &[tid], &[]).len(), 0, "nothing is known of the time before");
            assert!(!watch.is_due(HostNs(second(11).0 - 1)) && watch.is_due(second(11)));
            let used = sys::thread_cpu_ns(tid).unwrap();
            while sys::thread_cpu_ns(tid).unwrap() < used + 100_000_000 {}
            let shares = watch.look(second(11), &[tid], &[]);
            let share = shares.iter().find(|share| share.tid == tid).unwrap();
            assert!(share.percent >= 9, "{share:?}");
            // The host's clock goes back.
            assert!(watch.is_due(second(3)));
            let known = |shares: &[Share]| shares.iter().filter(|share| share.tid == tid).count();
            assert_eq!(known(&watch.look(second(3), &[tid], &[])), 0, "how long it was is not known");
            assert!(!watch.is_due(second(3)));
            assert_eq!(known(&watch.look(second(4), &[tid], &[])), 1);
        });
        let tid = tid.load(Ordering::Acquire);
        // The kernel may need a moment to remove a thread that has ended.
        while sys::thread_cpu_ns(tid).is_some() {}
        assert!(!watch.look(second(12), &[], &[]).iter().any(|share| share.tid == tid));
    }

    #[test]
    fn threads_that_share_a_processor_wait_for_it() {
        let (tids, stop) = ([const { AtomicI32::new(0) }; 2], AtomicBool::new(false));
        let mut watch = Watch::default();
        std::thread::scope(|scope| {
            for tid in &tids {
                let stop = &stop;
                scope.spawn(move || {
                    // SAFETY: all zeros is an empty set; the call gets a set and its size.
                    unsafe {
                        let mut one: libc::cpu_set_t = std::mem::zeroed();
                        libc::sched_getaffinity(0, size_of_val(&one), &raw mut one);
                        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &one));
                        libc::CPU_ZERO(&mut one);
                        libc::CPU_SET(first.unwrap(), &mut one);
                        libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
                    }
                    tid.store(sys::thread_id(), Ordering::Release);
                    while !stop.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                });
            }
            let _stop = Stop(&stop);
            while tids.iter().any(|tid| tid.load(Ordering::Acquire) == 0) {}
            let known = tids.each_ref().map(|tid| tid.load(Ordering::Acquire));
            let begin = HostNs(sys::boottime_ns());
            assert_eq!(watch.cpu_waits(begin, &known), [], "nothing is known of the time before");
            assert!(!watch.are_waits_due(HostNs(begin.0 + CPU_WAITS_NS - 1)));
            assert!(watch.are_waits_due(HostNs(begin.0 + CPU_WAITS_NS)));
            // Each runs for as long as the other waits.
            let ran = |tid| sys::thread_cpu_ns(tid).unwrap();
            let before = known.map(ran);
            while (0..2).any(|at| ran(known[at]) < before[at] + 100_000_000) {}
            let now = HostNs(sys::boottime_ns());
            for (at, wait) in watch.cpu_waits(now, &known).into_iter().enumerate() {
                assert_eq!((wait.tid, wait.since), (known[at], begin));
                assert!((50_000_000..=now.since(begin)).contains(&wait.ns), "{wait:?} of {} ns", now.since(begin));
            }
            assert_eq!(watch.cpu_waits(HostNs(now.0 + 1), &known).len(), 2);
            assert_eq!(watch.cpu_waits(begin, &known), [], "the host's clock went back");
            assert_eq!(watch.cpu_waits(now, &known[1..]).len(), 1);
        });
    }

    /// Starts threads that wait in `poll`, one with a name, and one that waits in a futex, and
    /// looks until `found` says that it is enough.
    fn while_threads_wait(mut look: impl FnMut(u64, [i32; 3]) -> bool) {
        let tids = [const { AtomicI32::new(0) }; 3];
        let stop = AtomicBool::new(false);
        let poll = |tid: &AtomicI32| {
            tid.store(sys::thread_id(), Ordering::Release);
            while !stop.load(Ordering::Acquire) {
                // SAFETY: no descriptors; it waits for the time.
                unsafe { libc::poll(std::ptr::null_mut(), 0, 20) };
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| poll(&tids[0]));
            std::thread::Builder::new().name("other".into()).spawn_scoped(scope, || poll(&tids[1])).unwrap();
            scope.spawn(|| {
                tids[2].store(sys::thread_id(), Ordering::Release);
                while !stop.load(Ordering::Acquire) {
                    std::thread::park_timeout(std::time::Duration::from_millis(20));
                }
            });
            let _stop = Stop(&stop);
            while tids.iter().any(|tid| tid.load(Ordering::Acquire) == 0) {
                std::hint::spin_loop();
            }
            let known = tids.each_ref().map(|tid| tid.load(Ordering::Acquire));
            // A busy machine may not have brought them to sleep yet.
            let found = (2..2_000_u64).any(|turn| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                look(turn, known)
            });
            assert!(found, "the threads have not been found waiting");
        });
    }

    #[test]
    fn a_thread_that_polls_since_an_init_is_probably_nccls() {
        let init = HostNs(sys::boottime_ns());
        let mut watch = Watch::default();
        let mut first = vec![(init, sys::thread_id())];
        while_threads_wait(|turn, [poll, other, futex]| {
            assert!(Watch::default().look(HostNs(init.0 + turn), &[], &[]).is_empty());
            let shares = watch.look(HostNs(init.0 + turn), &[], &std::mem::take(&mut first));
            assert!(!shares.iter().any(|share| [other, futex].contains(&share.tid)), "{shares:?}");
            shares.iter().any(|share| {
                (share.tid, &*share.name, share.doing) == (poll, PROBABLE, Doing::Poll) && share.processor.is_some()
            })
        });
        // A thread that was there before the init does not count.
        let own = sys::thread_id();
        let late = HostNs(sys::boottime_ns() + 10 * PERIOD_NS);
        let mut watch = Watch::default();
        watch.look(late, &[], &[(late, own)]);
        assert!(!watch.look(HostNs(late.0 + 1), &[], &[]).iter().any(|share| share.tid == own));
    }
}
