//! Every misbehaviour that `EMULATED_CUPTI` asks for happens.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use emulated_cupti::layout::{self, kind};
use observe::ResourceKind;

use crate::alone::{alone, last_option};
use crate::consumer::{self, Record, correlations, records};
use crate::cupti;
use crate::host::{self, WALL_AHEAD, run};
use crate::library::{Cupti, Handle};

/// Skips an hour for everything that is scheduled.
fn hour(cupti: Cupti) {
    cupti!(cupti, emulated_cupti_hour());
}

#[test]
fn late_records_come_late() {
    alone("late=200ms", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let start = Instant::now();
        run(1);
        while consumer::take().is_empty() {
            cupti.flush(false);
        }
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
        run(1);
        cupti.flush(true);
        let [record] = records(cupti).try_into().expect("a forced flush does not wait");
        assert_ne!(record.get(layout::kernel::END), 0);
    });
}

#[test]
fn reordered_buffers_hold_everything_once() {
    alone("reorder,seed=3", || {
        consumer::supply(|supply| supply.most = 5);
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        run(200);
        cupti.flush(false);
        let mut found = correlations(&records(cupti));
        assert_eq!(found.len(), 200);
        assert!(!found.is_sorted());
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 200);
    });
}

#[test]
fn partly_filled_buffers_count_as_full() {
    alone("partial,seed=3", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        run(200);
        cupti.flush(false);
        let buffers = consumer::take();
        assert!(buffers.len() > 4, "{} buffers", buffers.len());
        let records: Vec<Record> = buffers.iter().flat_map(|buffer| consumer::read(cupti, buffer)).collect();
        assert_eq!(records.len(), 200);
        assert!(correlations(&records).is_sorted());
    });
}

#[test]
fn corrupt_records_are_corrupt_as_asked_for() {
    use layout::kernel as k;
    for word in ["kind", "cut", "short", "long", "times", "names"] {
        alone(&format!("seed=3,corrupt={word}"), || {
            const END: u32 = 12;
            const INVALID_KIND: u32 = 21;
            const DAY_NS: u64 = 86_400_000_000_000;
            let word: String = last_option();
            let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
            run(3);
            cupti.flush(true);
            let [buffer] = consumer::take().try_into().expect("one buffer");
            let bytes = buffer.bytes();
            let (offsets, code) = cupti.walk(bytes);
            let size = match &*word {
                "short" => k::GRAPH_NODE_ID.offset,
                "long" => 216 + 16,
                _ => 216,
            };
            let (seen, expected) = match &*word {
                "kind" => (2, INVALID_KIND),
                "cut" => (2, END),
                _ => (3, END),
            };
            assert_eq!((offsets, code), ((0..seen).map(|number| number * size).collect(), expected));
            assert_eq!(bytes.len(), if word == "cut" { 3 * size - 8 } else { 3 * size });
            let field =
                |field: layout::Field| u64::from_ne_bytes(*bytes[field.offset..].first_chunk().expect("8 bytes"));
            let is_near = [k::START, k::END].map(|time| field(time).abs_diff(cupti.timestamp()) < DAY_NS);
            assert_eq!((field(k::NAME) == 0, is_near), (word == "names", [word != "times"; 2]));
        });
    }
}

#[test]
fn dropped_records_are_counted() {
    alone("drop=10%,seed=3", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        run(1_000);
        cupti.flush(true);
        let (kept, dropped) = (records(cupti).len(), cupti.dropped());
        assert_eq!(kept + dropped, 1_000);
        assert!((50..200).contains(&dropped), "{dropped} of 1000");
    });
}

#[test]
fn times_can_be_missing() {
    alone("zero=10%,seed=3", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        run(1_000);
        cupti.flush(false);
        let times = |record: &Record| (record.get(layout::kernel::START), record.get(layout::kernel::END));
        let zero = records(cupti).iter().filter(|record| times(record) == (0, 0)).count();
        assert!((50..200).contains(&zero), "{zero} of 1000");
    });
}

#[test]
fn times_of_the_gpu_can_be_too_late() {
    alone("skew=5ms", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let start = host::now();
        host::finish_here(host::launch(host::kernel(13)), start, 1_000);
        assert!(cupti.timestamp() <= host::now() + WALL_AHEAD, "no reading of a clock shows it");
        cupti.flush(true);
        let [record] = records(cupti).try_into().expect("one kernel ran");
        assert_eq!(record.get(layout::kernel::START), start + WALL_AHEAD + 5_000_000);
        assert_eq!(record.get(layout::kernel::END), start + WALL_AHEAD + 5_001_000);
    });
}

#[test]
fn kernels_swap_correlation_ids() {
    alone("swap=100%", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let start = host::now();
        let launched: Vec<_> = [13, 13, 14, 13].into_iter().map(|stream| host::launch(host::kernel(stream))).collect();
        for (number, kernel) in (0..).zip(&launched) {
            host::finish_here(*kernel, start + number * 10, 1);
        }
        cupti.flush(true);
        let found: HashMap<u64, u64> = records(cupti)
            .iter()
            .map(|record| (record.get(layout::kernel::START), record.get(layout::kernel::CORRELATION_ID)))
            .collect();
        let swapped = |place: usize| found[&(start + place as u64 * 10 + WALL_AHEAD)];
        let expected = |place: usize| u64::from(launched[place].correlation);
        assert_eq!((swapped(0), swapped(1)), (expected(1), expected(0)));
        // A kernel of another stream, and one that nothing followed.
        assert_eq!((swapped(2), swapped(3)), (expected(2), expected(3)));
    });
}

#[test]
fn callbacks_can_be_withheld() {
    static SEEN: [AtomicI32; 4] = [const { AtomicI32::new(0) }; 4];
    unsafe extern "C" fn see(_: *mut c_void, domain: u32, _: u32, _: *const c_void) {
        SEEN[domain as usize].fetch_add(1, Ordering::Relaxed);
    }
    // Two callbacks for the one launch, and one for the one node, unless they are withheld.
    for (options, expected) in
        [("", (2, 1)), ("withhold", (0, 0)), ("withhold=calls", (0, 1)), ("withhold=objects", (2, 0))]
    {
        let ended = crate::alone::run(options, || {
            let cupti = Cupti::emulated();
            let handle = cupti.subscribe(see, std::ptr::null_mut()).expect("nobody has subscribed");
            cupti.register(consumer::request, consumer::complete);
            assert_eq!(cupti!(cupti, cuptiEnableDomain(u32 = 1, Handle = handle, u32 = 1)), 0);
            assert_eq!(cupti!(cupti, cuptiEnableDomain(u32 = 1, Handle = handle, u32 = 3)), 0);
            cupti.enable(&[kind::CONCURRENT_KERNEL]);
            run(1);
            host::tell(&host::resource(ResourceKind::NodeCreated));
            cupti.flush(true);
            assert_eq!(records(cupti).len(), 1, "records come all the same");
            let seen = |domain: usize| SEEN[domain].load(Ordering::Relaxed);
            eprintln!("callbacks {:?}", (seen(1), seen(3)));
        });
        ended.succeeded(options);
        assert!(ended.stderr.contains(&format!("callbacks {expected:?}")), "{options}: {}", ended.stderr);
    }
}

#[test]
fn some_callbacks_of_calls_can_be_missing() {
    static ENTERED: AtomicI32 = AtomicI32::new(0);
    static LEFT: AtomicI32 = AtomicI32::new(0);
    unsafe extern "C" fn see(_: *mut c_void, _: u32, _: u32, data: *const c_void) {
        // SAFETY: data of a call begins with the side of the call.
        let count = if unsafe { *data.cast::<u32>() } == 0 { &ENTERED } else { &LEFT };
        count.fetch_add(1, Ordering::Relaxed);
    }
    alone("miss=10%,seed=3", || {
        let cupti = Cupti::emulated();
        let handle = cupti.subscribe(see, std::ptr::null_mut()).expect("nobody has subscribed");
        cupti.register(consumer::request, consumer::complete);
        assert_eq!(cupti!(cupti, cuptiEnableDomain(u32 = 1, Handle = handle, u32 = 1)), 0);
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        run(1_000);
        cupti.flush(true);
        assert_eq!(records(cupti).len(), 1_000, "records come all the same");
        let (entered, left) = (ENTERED.load(Ordering::Relaxed), LEFT.load(Ordering::Relaxed));
        assert_eq!(entered, left, "both sides of a call or none");
        assert!((800..950).contains(&entered), "{entered} of 1000");
    });
}

#[test]
fn another_tool_asks_for_the_subscription_later() {
    let ended = crate::alone::run("rival=Kineto@1h", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        hour(cupti);
        run(1);
        cupti.flush(true);
        assert_eq!(records(cupti).len(), 1, "what was asked for goes on");
    });
    ended.succeeded("rival");
    assert!(ended.stderr.contains("Kineto asked to subscribe: 39"), "{}", ended.stderr);
}

#[test]
fn another_tool_takes_a_free_subscription() {
    unsafe extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    alone("rival=Kineto@1h", || {
        let cupti = Cupti::emulated();
        cupti.register(consumer::request, consumer::complete);
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        hour(cupti);
        assert_eq!(cupti.subscribe(nothing, std::ptr::null_mut()), Err(39));
    });
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    // The number of dropped records for each seed, twice.
    let mut counts = Vec::new();
    for seed in [1, 2, 1, 2] {
        let ended = crate::alone::run(&format!("drop=30%,seed={seed}"), || {
            let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
            run(500);
            eprintln!("dropped {}", cupti.dropped());
        });
        ended.succeeded("drop");
        let line = ended.stderr.lines().find(|line| line.starts_with("dropped")).expect("it says so").to_owned();
        counts.push(line);
    }
    assert_eq!(counts[..2], counts[2..]);
    assert_ne!(counts[0], counts[1]);
}

#[test]
fn another_tool_holds_the_subscription_for_a_while() {
    alone("taken=Nsight Systems,taken-for=1h", || {
        unsafe extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
        let cupti = Cupti::emulated();
        assert_eq!(cupti.subscribe(nothing, std::ptr::null_mut()), Err(39));
        hour(cupti);
        assert!(cupti.subscribe(nothing, std::ptr::null_mut()).is_ok());
    });
}

#[test]
fn everything_that_needs_the_driver_can_be_refused() {
    for code in [15, 35, 999] {
        alone(&format!("release=13.1,refuse={code}"), || {
            let code: u32 = last_option();
            let cupti = Cupti::emulated();
            assert_eq!(cupti.version(), 130_101);
            assert!(cupti.timestamp() > WALL_AHEAD || code != 0);
            assert_eq!(cupti!(cupti, cuptiSubscribe(usize = 0, usize = 0, usize = 0)), code);
            assert_eq!(cupti!(cupti, cuptiActivityEnable(u32 = 10)), code);
            assert_eq!(cupti!(cupti, cuptiActivityFlushAll(u32 = 0)), code);
        });
    }
}

#[test]
fn a_shim_for_remote_gpus_supports_nothing() {
    alone("refuse=27", || {
        let cupti = Cupti::emulated();
        let mut number = 0u64;
        assert_eq!(cupti!(cupti, cuptiGetVersion(*mut u64 = &raw mut number)), 27);
        assert_eq!(cupti!(cupti, cuptiGetTimestamp(*mut u64 = &raw mut number)), 27);
        assert_eq!(cupti!(cupti, cuptiSubscribe(usize = 0, usize = 0, usize = 0)), 27);
    });
}

#[test]
fn one_function_can_be_refused() {
    alone("refuse=35@cuptiActivityEnable,refuse=8@cuptiActivityFlushAll", || {
        let cupti = consumer::start(&[]);
        assert_eq!(cupti!(cupti, cuptiActivityEnable(u32 = 10)), 35);
        assert_eq!(cupti!(cupti, cuptiActivityFlushAll(u32 = 0)), 8);
        assert_eq!(cupti!(cupti, cuptiActivityDisable(u32 = 10)), 0);
    });
}

#[test]
fn a_version_can_be_faked() {
    alone("release=13.0,version=130000", || assert_eq!(Cupti::emulated().version(), 130_000));
}

#[test]
fn timestamps_use_the_wall_clock() {
    alone("", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let (before, between, after) = (host::now(), cupti.timestamp(), host::now());
        assert!(before + WALL_AHEAD <= between && between <= after + WALL_AHEAD);
        let start = host::now();
        host::finish(host::launch(host::kernel(13)), start, 1_000);
        cupti.flush(false);
        let [record] = records(cupti).try_into().expect("one kernel ran");
        assert_eq!(record.get(layout::kernel::START), start + WALL_AHEAD);
    });
}

#[test]
fn the_clock_of_timestamps_may_change_midway() {
    alone("clock=ticks@1h", || {
        let cupti = consumer::start(&[kind::CONCURRENT_KERNEL]);
        let first = host::now();
        host::finish(host::launch(host::kernel(13)), first, 1_000);
        cupti.flush(false);
        hour(cupti);
        let second = host::now();
        host::finish(host::launch(host::kernel(13)), second, 1_000);
        cupti.flush(false);
        let starts: Vec<u64> = records(cupti).iter().map(|record| record.get(layout::kernel::START)).collect();
        assert_eq!(starts, [first + WALL_AHEAD, (u128::from(second) * 21 / 10) as u64]);
        assert!(cupti.timestamp() < WALL_AHEAD);
    });
}

#[test]
fn a_registered_clock_is_the_domain_of_everything() {
    extern "C" fn ticks() -> u64 {
        host::now() * 2
    }
    alone("", || {
        let cupti = Cupti::emulated();
        cupti.subscribe_deaf();
        cupti.register(consumer::request, consumer::complete);
        let registered = cupti!(cupti, cuptiActivityRegisterTimestampCallback(extern "C" fn() -> u64 = ticks));
        assert_eq!(registered, 0);
        cupti.enable(&[kind::CONCURRENT_KERNEL, kind::DRIVER]);
        std::thread::sleep(Duration::from_millis(20));
        let (before, between, after) = (ticks(), cupti.timestamp(), ticks());
        assert!(before <= between && between <= after);
        let before = ticks();
        let kernel = host::launch(host::kernel(13));
        let after = ticks();
        let start = host::now();
        host::finish(kernel, start, 1_000);
        cupti.flush(false);
        let records = records(cupti);
        let [kernel, call] = records.as_slice() else { panic!("{records:?}") };
        let error = kernel.get(layout::kernel::START).abs_diff(start * 2);
        assert!(error < 20_000, "the GPU's times are converted, to {error} ticks");
        let (start, end) = (call.get(layout::api::START), call.get(layout::api::END));
        assert!(before <= start && start <= end && end <= after, "{before} {start} {end} {after}");
    });
}

#[test]
fn cupti_reports_failures_of_its_own_and_detaches_itself() {
    static SEEN: Mutex<Vec<(u32, u32, bool)>> = Mutex::new(Vec::new());
    static TEST: AtomicI32 = AtomicI32::new(0);
    unsafe extern "C" fn see(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
        assert_eq!(domain, 6);
        // SAFETY: data of a state begins with the result.
        let result = unsafe { *data.cast::<u32>() };
        // SAFETY: the call cannot fail.
        let is_worker = unsafe { libc::gettid() } != TEST.load(Ordering::Relaxed);
        SEEN.lock().expect("no test panics there").push((id, result, is_worker));
    }
    alone("release=13.1,state=warning@1h,state=fatal@2h", || {
        // SAFETY: the call cannot fail.
        TEST.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        let cupti = Cupti::emulated();
        let handle = cupti.subscribe(see, std::ptr::null_mut()).expect("nobody has subscribed");
        cupti.register(consumer::request, consumer::complete);
        for id in 1..=3 {
            cupti.call_back(handle, 6, id);
        }
        cupti.enable(&[kind::CONCURRENT_KERNEL]);
        run(1);
        hour(cupti);
        assert_eq!(*SEEN.lock().expect("no test panics there"), [(3, 999, true)]);
        hour(cupti);
        assert_eq!(*SEEN.lock().expect("no test panics there"), [(3, 999, true), (1, 999, true)]);
        run(1);
        cupti.flush(true);
        assert_eq!(records(cupti).len(), 1, "what came before is still returned");
        assert!(cupti.subscribe(see, std::ptr::null_mut()).is_ok(), "nobody is subscribed any more");
    });
}

#[test]
fn wrong_words_end_the_process() {
    crate::alone::dies("lat=5ms", "lat=5ms is not a word of EMULATED_CUPTI", || {
        Cupti::emulated();
    });
}

#[test]
fn nobody_may_enable_records_for_no_subscriber() {
    alone("release=13.3", || {
        let cupti = consumer::start(&[]);
        let handle: Handle = std::ptr::null_mut();
        assert_eq!(cupti!(cupti, cuptiActivityEnable_v2(Handle = handle, u32 = 10, usize = 0)), 1);
    });
}
