//! Taking CUPTI, lending it, and giving it back: in which order, and what a refusal leaves.

use super::fake::{HANG, fresh};
use super::*;
use crate::trace::words::remark;

/// The calls by which a CUPTI that is ours is taken again, whatever another tool did.
const AGAIN: [&str; 8] =
    ["flush(0)", "thread ids(1)", "register", "enable(8)", "enable(9)", "enable(37)", "enable(10)", "enable(17)"];

#[test]
fn cupti_gets_our_clock_once_and_then_the_wall_clock() {
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&Options { boottime: true, ..options() }).unwrap();
    assert!(cupti.facts().to_string().ends_with("; its clock is CLOCK_BOOTTIME"), "{}", cupti.facts());
    let begun = calls();
    let at = |wanted: &str| begun.iter().position(|call| call == wanted);
    assert!(at("subscribe") < at("clock") && at("clock") < at("dump(8)"), "{begun:?}");
    reader.drain();
    assert!(cupti.release(Duration::from_secs(10)));
    let ended = calls();
    assert!(ended.ends_with(&["clock".into(), "unsubscribe".into()]), "{ended:?}");
    // The next owner finds the wall clock, and so do we.
    assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
    assert!(!calls().contains(&"clock".to_owned()));
    reader.drain();
    let notes = reader.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].text.contains("wall clock"), "{notes:?}");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn a_clock_that_cupti_refuses_costs_nothing_else() {
    let _one = fresh(28, &[("clock", cupti::CUPTI_ERROR_NOT_COMPATIBLE)]);
    let (cupti, mut reader) = start(&Options { boottime: true, ..options() }).unwrap();
    assert_eq!(cupti.facts().refused, ["a clock of our own: NOT_COMPATIBLE (14)"]);
    reader.drain();
    assert_eq!(reader.take_notes(), []);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls().iter().filter(|call| *call == "clock").count(), 1);
}

#[test]
fn cupti_is_taken_and_given_back_in_the_right_order() {
    let _one = fresh(28, &[]);
    let (cupti, _reader) = start(&Options { copies: true, ..options() }).unwrap();
    assert_eq!(cupti.facts().to_string(), "CUPTI of CUDA 12.9 (version 28) from libcupti.so.13");
    let callbacks = |domain: u32, ids: &[u32]| -> Vec<String> {
        ids.iter().map(|id| format!("callback(1 {domain}/{id})")).collect()
    };
    let launches = [307, 442, 652, 653];
    let graphs = [514, 515, 513, 578, 643, 656, 657, 561, 696, 714, 586, 650, 538, 692];
    let copies = [306, 418, 281, 423, 776, 777, 796, 797];
    let expected = [
        ["version", "subscribe", "thread ids(1)", "register"].map(str::to_owned).to_vec(),
        callbacks(1, &launches),
        callbacks(3, &[13, 14, 20, 18]),
        callbacks(1, &graphs),
        callbacks(1, &copies),
        callbacks(6, &[1, 2, 3]),
        ["dump(8)", "dump(9)", "dump(37)"].map(str::to_owned).to_vec(),
        ["enable(10)", "enable(17)", "enable(1)", "enable(22)", "enable(2)"].map(str::to_owned).to_vec(),
    ];
    assert_eq!(calls(), expected.concat());
    assert_eq!(refused(&options()), Absent::Held);
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(calls(), ["flush(0)"]);
    assert!(cupti.release(Duration::from_secs(10)));
    let disabled = [8, 9, 37, 10, 17, 1, 22, 2].map(|kind| format!("disable({kind})"));
    assert_eq!(calls(), [&disabled[..], &["flush(1)", "thread ids(0)", "unsubscribe"].map(str::to_owned)].concat());
    // Released for good; but it can be taken again.
    assert!(cupti.sync(Duration::ZERO) && cupti.release(Duration::ZERO));
    let (again, _reader) = start(&options()).unwrap();
    assert!(again.release(Duration::from_secs(10)));
}

#[test]
fn cupti_can_be_lent_and_taken_again_repeatedly() {
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&options()).unwrap();
    let first = calls();
    let before = reader.counts().decoded;
    let name = CString::new("kernel").unwrap();
    let mut kernels = 0;
    for _ in 0..3 {
        assert!(cupti.is_held());
        assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Held));
        assert_eq!(calls(), AGAIN, "nobody else has its buffers from here on");
        let wall = sys::realtime_ns();
        fake(|fake| fake.records = kernel(28, 1, wall - 2000, wall - 1000, &name));
        // The last flush returns the kernel, and the next owner finds the settings as they were.
        assert!(cupti.release(Duration::from_secs(10)));
        assert!(!cupti.is_held());
        assert_eq!(fake(|fake| fake.thread_ids), 0);
        let given_back = calls();
        assert_eq!(given_back[given_back.len() - 3..], ["flush(1)", "thread ids(0)", "unsubscribe"]);
        kernels += reader.drain().len();
        // Nothing of ours is done while it is lent.
        assert!(cupti.sync(Duration::ZERO) && cupti.release(Duration::ZERO));
        assert_eq!(calls(), [""; 0]);
        // The other tool may keep it; it can be requested again.
        fake(|fake| fake.answers.insert("subscribe".into(), 39));
        assert_eq!(cupti.acquire(Duration::ZERO), Err(Absent::Taken { owner: None, asked: false }));
        assert_eq!(calls(), ["subscribe"]);
        assert!(!cupti.is_held());
        fake(|fake| fake.answers.clear());
        assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
        let again = calls();
        assert_eq!(again[..], first[1..], "as for the first time, but for the version");
        assert!(cupti.sync(Duration::from_secs(10)));
        assert_eq!(calls(), ["flush(0)"]);
    }
    assert_eq!((kernels, reader.counts().decoded), (3, before + 3), "one reader for all of it");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn cupti_is_not_taken_again_before_it_was_given_up() {
    let _one = fresh(28, &[]);
    let (mut cupti, _reader) = start(&options()).unwrap();
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.release(Duration::from_millis(20)));
    assert!(!cupti.is_held());
    assert_eq!(cupti.acquire(Duration::from_millis(20)), Err(Absent::Leaving));
    HANG.store(false, Ordering::Relaxed);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    let calls = calls();
    let at = |name: &str| calls.iter().rposition(|call| call == name);
    assert!(at("unsubscribe") < at("subscribe"), "{calls:?}");
    assert!(cupti.release(Duration::from_secs(10)));
}

/// What follows from it must not depend on who waits for it, or whether anybody does.
#[test]
fn every_end_of_a_subscription_is_told_once() {
    let told = |reader: &Drained| -> Vec<String> {
        let begin = HostNs(sys::boottime_ns());
        let ends = reader.reader.take_given_up().into_iter().flatten();
        ends.inspect(|it| assert!(it.since <= it.by && it.by <= begin)).map(|it| it.to_string()).collect()
    };
    let _one = fresh(28, &[]);
    let (mut cupti, reader) = start(&options()).unwrap();
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(told(&reader), [""; 0]);
    // Too late for the first caller; the second one finds it done.
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.release(Duration::from_millis(20)));
    assert_eq!(told(&reader), [""; 0]);
    HANG.store(false, Ordering::Relaxed);
    assert!(cupti.release(Duration::from_secs(10)) && cupti.release(Duration::ZERO));
    let ends = told(&reader);
    assert!(ends.len() == 1 && ends[0].starts_with("as requested: what the GPU does"), "{ends:?}");
    // Too late, and taken again; and one that had failed and is taken again.
    assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.release(Duration::from_millis(20)));
    HANG.store(false, Ordering::Relaxed);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    cupti.shared.fatal.fetch_add(1, Ordering::Relaxed);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    let ends = told(&reader);
    assert!(ends.len() == 2 && ends[0].starts_with("as requested"), "{ends:?}");
    assert!(ends[1].starts_with("after it had failed"), "{ends:?}");
    // More than are kept: whether CUPTI is ours stays known.
    for _ in 0..2 * flush::ENDS {
        assert!(cupti.release(Duration::from_secs(10)));
        assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    }
    let last = HostNs(sys::boottime_ns());
    assert!(cupti.release(Duration::from_secs(10)));
    let ends: Vec<_> = reader.reader.take_given_up().into_iter().flatten().collect();
    assert!(ends.len() == flush::ENDS && ends.is_sorted_by_key(|it| it.by) && ends[flush::ENDS - 1].since >= last);
    // The end of the process is no remark.
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    assert!(cupti.end(Duration::from_secs(10)));
    assert_eq!(told(&reader), [""; 0]);
}

#[test]
fn a_cupti_that_fails_while_it_is_taken_has_failed() {
    let _one = fresh(28, &[]);
    fake(|fake| fake.fails_in = Some("enable(10)"));
    let (mut cupti, mut reader) = start(&options()).unwrap();
    assert!(!cupti.is_held());
    reader.drain();
    let (notes, fatal) = (reader.take_notes(), reader.standing().fatal);
    assert!(notes[0].text.contains("INSUFFICIENT_PRIVILEGES (35); there will be no more kernels"), "{notes:?}");
    fake(|fake| fake.fails_in = Some("enable(10)"));
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    assert!(!cupti.is_held());
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    assert!(cupti.is_held());
    reader.drain();
    assert_eq!(reader.standing().fatal, fatal, "the second failure is over");
    let ends: Vec<_> = reader.reader.take_given_up().into_iter().flatten().map(|it| it.to_string()).collect();
    assert!(ends.len() == 2 && ends.iter().all(|it| it.starts_with("after it had failed")), "{ends:?}");
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn optional_parts_may_be_refused() {
    let _one = fresh(130_100, &[("callback(1 1/652)", 1), ("enable(17)", 14), ("dump", 27)]);
    let (cupti, _reader) = start(&options()).unwrap();
    assert_eq!(
        cupti.facts().refused,
        ["launches (callback 652): INVALID_PARAMETER (1)", "kind 17: NOT_COMPATIBLE (14)"]
    );
    assert!(calls().contains(&"enable(8)".to_owned()), "without the dump, at least what is new");
    assert!(cupti.release(Duration::from_secs(10)));
    assert!(!calls().contains(&"disable(17)".to_owned()));
}

#[test]
fn a_refusal_says_why_and_leaves_cupti_as_it_was() {
    let taken = Absent::Taken { owner: Some("Kineto".into()), asked: false };
    assert!(taken.to_string().contains("Kineto has it"));
    for (version, answers, expected, after) in [
        (
            130_000,
            &[("subscribe", 39), ("subscribe_v2", 39)][..],
            taken.clone(),
            &["subscribe", "subscribe_v2(32)"][..],
        ),
        (130_300, &[("subscribe", 39), ("subscribe_v2", 39)], taken, &["subscribe", "subscribe_v2(40)"]),
        (28, &[("subscribe", 39)], Absent::Taken { owner: None, asked: false }, &["subscribe"]),
        (28, &[("subscribe", 15)], Absent::Refused { call: "cuptiSubscribe", code: 15 }, &["subscribe"]),
        (130_000, &[("subscribe", 999)], Absent::Refused { call: "cuptiSubscribe", code: 999 }, &["subscribe"]),
        (28, &[("version", 27)], Absent::Refused { call: "cuptiGetVersion", code: 27 }, &[]),
        (17, &[], Absent::TooOld { path: "libcupti.so.13".into(), function: None, version: Some(17) }, &[]),
        (
            28,
            &[("register", 27)],
            Absent::Refused { call: "cuptiActivityRegisterCallbacks", code: 27 },
            &["subscribe", "thread ids(1)", "register", "thread ids(0)", "unsubscribe"],
        ),
    ] {
        let _one = fresh(version, answers);
        assert_eq!(refused(&options()), expected);
        assert_eq!(calls()[1..], *after, "{expected:?}");
    }
    let _one = fresh(28, &[("enable(10)", 35)]);
    let absent = refused(&options());
    assert_eq!(absent, Absent::Refused { call: "cuptiActivityEnable", code: 35 });
    assert!(absent.to_string().starts_with("cuptiActivityEnable answered INSUFFICIENT_PRIVILEGES (35): the admin"));
    let calls = calls();
    assert_eq!(calls[calls.len() - 5..], ["disable(8)", "disable(9)", "disable(37)", "thread ids(0)", "unsubscribe"]);
    drop(_one);
    let off = Options::new(config::Cupti::Off);
    assert_eq!(crate::cupti::start(&off).err(), Some(Absent::SwitchedOff));
    assert_eq!(crate::cupti::start(&Options::new(config::Cupti::Auto)).err(), Some(Absent::NoDriver));
}

#[test]
fn kernels_are_not_disabled_where_that_deadlocks() {
    let _one = fresh(130_000, &[]);
    let (cupti, _reader) = start(&options()).unwrap();
    calls();
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls(), ["flush(1)", "thread ids(0)", "unsubscribe"]);
}

#[test]
fn a_flush_that_hangs_blocks_nobody() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    calls();
    HANG.store(true, Ordering::Relaxed);
    // They return while the flush hangs.
    assert!(!cupti.sync(Duration::from_millis(50)));
    assert!(!cupti.release(Duration::from_millis(50)));
    reader.drain();
    assert_eq!(reader.take_notes()[0].name, remark::KERNELS_LATE);
    assert_eq!(calls(), ["flush(0)"], "one at a time");
    assert_eq!(refused(&options()), Absent::Held);
    HANG.store(false, Ordering::Relaxed);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(calls().last().unwrap(), "unsubscribe");
}

#[test]
fn a_forced_flush_is_taken_back_unless_it_has_begun() {
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&options()).unwrap();
    calls();
    let seen = |call: &str| {
        while !fake(|fake| fake.calls.iter().any(|it| it == call)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.sync(Duration::from_millis(1)));
    seen("flush(0)");
    reader.reader.force();
    assert!(!reader.reader.leave());
    HANG.store(false, Ordering::Relaxed);
    while !cupti.sync(Duration::from_secs(10)) {}
    assert!(!calls().contains(&"flush(1)".to_owned()));
    assert_eq!(reader.reader.take_forced(), None);

    HANG.store(true, Ordering::Relaxed);
    reader.reader.force();
    seen("flush(1)");
    reader.reader.force();
    assert!(reader.reader.leave());
    HANG.store(false, Ordering::Relaxed);
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(calls(), ["flush(1)", "flush(0)"]);
    // Taking CUPTI again hides no answer.
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(cupti.acquire(Duration::ZERO), Ok(Acquired::Again(None)));
    assert!(reader.reader.leave() && reader.reader.take_forced().is_some());
    assert!(!reader.reader.leave() && reader.reader.take_forced().is_none());
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn a_flush_that_hangs_is_waited_for_once() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.sync(Duration::from_millis(1)));
    // A limit for what hangs, not a measurement.
    let began = Instant::now();
    assert!(!(0..1000).any(|_| cupti.sync(Duration::from_secs(1))));
    assert!(began.elapsed() < Duration::from_secs(100));
    reader.drain();
    assert_eq!(reader.standing().overdue, 1);
    HANG.store(false, Ordering::Relaxed);
    while !cupti.sync(Duration::from_secs(10)) {}
    HANG.store(true, Ordering::Relaxed);
    assert!(!cupti.sync(Duration::from_millis(1)));
    reader.drain();
    assert_eq!(reader.standing().overdue, 2, "it was waited for again");
    HANG.store(false, Ordering::Relaxed);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn cupti_is_flushed_every_period() {
    let _one = fresh(28, &[]);
    let period = Options { flush_period: Duration::from_millis(5), ..options() };
    let begin = Instant::now();
    let (cupti, _reader) = start(&period).unwrap();
    calls();
    while fake(|fake| fake.calls.len()) < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begin.elapsed() >= Duration::from_millis(25), "never before its time");
    assert!(calls().iter().all(|call| call == "flush(0)"));
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn every_reason_is_a_sentence() {
    for (absent, says) in [
        (Absent::SwitchedOff, "NCCLSCOPE_CUPTI=0"),
        (Absent::Forked, "forked"),
        (Absent::NoDriver, "libcuda.so.1"),
        (Absent::NoLibrary { tried: "libcupti.so.13: not mapped".into() }, "NCCLSCOPE_CUPTI=/path"),
        (
            Absent::TooOld { path: "/x".into(), function: Some("cuptiGetGraphNodeId"), version: None },
            "lacks cuptiGetGraphNodeId",
        ),
        (Absent::TooOld { path: "/x".into(), function: None, version: Some(17) }, "its version is 17"),
        (Absent::Broken { path: "/x".into(), driver_starts: false }, "13.3"),
        (Absent::Broken { path: "/x".into(), driver_starts: true }, "ncclscope_acquire"),
        (Absent::Taken { owner: None, asked: false }, "torch.profiler"),
        (Absent::Refused { call: "cuptiSubscribe", code: 27 }, "remote machine"),
        (Absent::Refused { call: "cuptiSubscribe", code: 15 }, "NOT_INITIALIZED (15)"),
        (Absent::Refused { call: "cuptiSubscribe", code: 999 }, "UNKNOWN (999)"),
        (Absent::Refused { call: "cuptiSubscribe", code: 12345 }, "error 12345"),
        (Absent::Leaving, "being released"),
        (Absent::Panic, "internal error"),
        (Absent::NoResources("no thread".into()), "no thread"),
    ] {
        let text = absent.to_string();
        assert!(text.contains(says), "{text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
    }
}
