//! Every interleaving of one or two writers with the reader, with segments of four words and
//! records of two.

use super::*;
use crate::model::event::header;
use loom::sync::Arc;
use loom::thread;

fn record(n: u64) -> [u64; 2] {
    [header(event::kind::STOP, 2, 0, 0), n]
}

fn drain(rings: &Rings, reader: &mut Reader, into: &mut Vec<u64>) {
    let mut buffer = [0; MAX_WORDS];
    while reader.peek(rings).is_some() {
        into.push(reader.read(rings, &mut buffer)[1]);
    }
}

#[test]
fn loom_a_reader_sees_whole_records_in_order() {
    loom::model(|| {
        let rings = Arc::new(Rings::with_segments(4));
        let theirs = Arc::clone(&rings);
        let thread = thread::spawn(move || {
            let writer = theirs.claim().unwrap();
            let mut kept = 0;
            for n in 1..=5 {
                kept += u64::from(writer.push([&record(n)]));
            }
            writer.leave();
            kept
        });
        let mut reader = Reader::new(0);
        let mut seen = Vec::new();
        drain(&rings, &mut reader, &mut seen);
        let kept = thread.join().unwrap();
        drain(&rings, &mut reader, &mut seen);
        assert_eq!(seen.len() as u64, kept);
        assert!(seen.is_sorted());
        assert!(reader.peek(&rings).is_none());
        assert_eq!(rings.free_percent(), 100);
    });
}

#[test]
fn loom_two_writers_share_a_pool() {
    loom::model(|| {
        let rings = Arc::new(Rings::with_segments(4));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let rings = Arc::clone(&rings);
                thread::spawn(move || {
                    let writer = rings.claim().unwrap();
                    let kept = (1..=3).filter(|&n| writer.push([&record(n)])).count();
                    writer.leave();
                    kept
                })
            })
            .collect();
        let kept: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let mut seen = Vec::new();
        for slot in 0..rings.used_slots() {
            drain(&rings, &mut Reader::new(slot), &mut seen);
        }
        assert_eq!(seen.len(), kept);
        assert_eq!(rings.free_percent(), 100);
    });
}

#[test]
fn loom_a_slot_passes_from_thread_to_thread() {
    loom::model(|| {
        let rings = Arc::new(Rings::with_segments(2));
        let first = rings.claim().unwrap();
        assert!(first.push([&record(1)]));
        first.leave();
        let theirs = Arc::clone(&rings);
        let thread = thread::spawn(move || {
            theirs.claim().is_some_and(|writer| {
                let kept = writer.push([&record(2)]);
                writer.leave();
                kept
            })
        });
        let mut readers = [Reader::new(0), Reader::new(1)];
        let mut seen = Vec::new();
        for reader in &mut readers {
            drain(&rings, reader, &mut seen);
        }
        let kept = thread.join().unwrap();
        for reader in &mut readers {
            drain(&rings, reader, &mut seen);
        }
        assert_eq!(seen.len(), 1 + usize::from(kept));
    });
}
