use super::*;
use crate::model::event::header;

fn record(n: u64) -> [u64; 3] {
    [header(event::kind::STOP, 3, 0, 0), n, n]
}

fn drain(rings: &Rings, reader: &mut Reader) -> Vec<u64> {
    let mut buffer = [0; MAX_WORDS];
    let mut times = Vec::new();
    while reader.peek(rings).is_some() {
        times.push(reader.read(rings, &mut buffer)[1]);
    }
    times
}

#[test]
fn records_come_out_in_order() {
    let rings = Rings::new(1 << 20).unwrap();
    let writer = rings.claim().unwrap();
    let mut reader = Reader::new(writer.slot());
    let mut expected = 0;
    for round in 0..10_u64 {
        for n in 0..5_000 {
            assert!(writer.push([&record(round * 5_000 + n)]));
        }
        for time in drain(&rings, &mut reader) {
            assert_eq!(time, expected);
            expected += 1;
        }
    }
    assert_eq!(expected, 50_000);
}

#[test]
fn the_newest_record_is_found_in_every_segment() {
    let rings = Rings::with_segments(8);
    let writer = rings.claim().unwrap();
    let mut reader = Reader::new(writer.slot());
    let mut buffer = [0; MAX_WORDS];
    assert_eq!(reader.newest(&rings), None);
    for n in 0..2 * SEGMENT_WORDS as u64 / 3 + 5 {
        assert!(writer.push([&record(n)]));
        reader.peek(&rings);
        assert_eq!(reader.newest(&rings), Some(n));
    }
    let unread = 2 * SEGMENT_WORDS / 3 + 4;
    for _ in 0..unread {
        reader.peek(&rings);
        reader.read(&rings, &mut buffer);
        reader.peek(&rings);
        assert_eq!(reader.newest(&rings), Some(unread as u64));
    }
    assert_eq!(drain(&rings, &mut reader).len(), 1);
    assert_eq!(reader.newest(&rings), None, "it has been read");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no fork")]
fn a_child_has_no_copy_of_the_rings() {
    let rings = Rings::with_segments(4);
    let writer = rings.claim().unwrap();
    assert!(writer.push([&record(1)]));
    let has_record = || writer.segment.get().committed.load(Ordering::Relaxed) != 0;
    let mut status = 0;
    // SAFETY: the child reads memory and ends; the parent waits for it.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(has_record()));
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(status == 0 && has_record(), "{status}");
}

#[test]
fn one_thread_cannot_take_the_whole_pool() {
    let rings = Rings::with_segments(8);
    let writer = rings.claim().unwrap();
    let kept = (0..100_000).filter(|&n| writer.push([&record(n)])).count();
    assert_eq!(kept, 4 * (SEGMENT_WORDS / 3), "half of the pool");
    let other = rings.claim().expect("room for another thread");
    assert!(other.push([&record(1)]));
    // Draining makes room again.
    let mut reader = Reader::new(writer.slot());
    assert_eq!(drain(&rings, &mut reader).len(), kept);
    assert!(writer.push([&record(1)]));
}

#[test]
fn a_ring_outlives_its_thread_until_it_is_drained() {
    let rings = Rings::with_segments(4);
    for generation in 0..100 {
        let writer = rings.claim().expect("the slot came back");
        assert!(writer.push([&record(generation)]));
        writer.leave();
        let mut reader = Reader::new(writer.slot());
        assert_eq!(drain(&rings, &mut reader), [generation]);
    }
    assert_eq!(rings.free_percent(), 100);
}

#[test]
fn without_a_free_slot_there_is_no_ring() {
    let rings = Rings::with_segments(4);
    let writers: Vec<_> = (0..4).map(|_| rings.claim().unwrap()).collect();
    assert!(rings.claim().is_none());
    writers[0].leave();
    assert!(rings.claim().is_none(), "not drained yet");
    assert!(Reader::new(writers[0].slot()).peek(&rings).is_none());
    assert!(rings.claim().is_some());
}

#[test]
fn every_record_that_many_threads_lose_is_counted() {
    const EACH: u64 = if cfg!(miri) { 500 } else { 200_000 };
    const THREADS: u64 = 3;
    let rings = &Rings::with_segments(16);
    let writers: Vec<_> = (0..THREADS).map(|_| rings.claim().unwrap()).collect();
    let done = &AtomicU32::new(0);
    let (kept, dropped) = std::thread::scope(|scope| {
        for (thread, writer) in writers.into_iter().enumerate() {
            scope.spawn(move || {
                for n in 0..EACH {
                    if !writer.push([&record((thread as u64) << 32 | n)]) {
                        writer.count_drop();
                    }
                }
                writer.leave();
                done.fetch_add(1, Ordering::Release);
            });
        }
        let mut readers: Vec<_> = (0..THREADS as u32).map(Reader::new).collect();
        let mut kept = 0;
        let mut last = [None; THREADS as usize];
        loop {
            let finished = u64::from(done.load(Ordering::Acquire)) == THREADS;
            for reader in &mut readers {
                for time in drain(rings, reader) {
                    let last = &mut last[(time >> 32) as usize];
                    assert!(last.is_none_or(|last| time > last), "in order");
                    *last = Some(time);
                    kept += 1;
                }
            }
            if finished {
                break (kept, rings.dropped());
            }
        }
    });
    assert_eq!(kept + dropped, THREADS * EACH);
    assert_eq!(rings.free_percent(), 100);
}
