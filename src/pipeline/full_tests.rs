//! What is drawn when the file is full.

use std::sync::Arc;

use super::tests::with_kernels;
use super::*;
use crate::clock::align::Pair;
use crate::model::activity::{self, Span};
use crate::model::event::{self, Event};
use crate::model::ids::Handle;
use crate::model::time::Ticks;
use crate::model::timeline::{Comm, Operation, Owner, ThreadId, What};
use crate::model::word::Word;
use crate::trace::reader;
use crate::trace::reader::proto::perfetto::protos::track_event::Type;
use crate::trace::words::Category;

const SECOND: u64 = 1_000_000_000;

/// A second in which an AllReduce with this number is handed over, and its kernel ends, or hangs.
/// Returns what is wanted of CUPTI.
fn all_reduce(pipeline: &mut Pipeline, number: u64, ends: bool) -> Option<Wish> {
    let at = HostNs(number * SECOND);
    let comm = Comm::named(Handle(1), "dp");
    let coll = event::Coll { seq: number, func: Word::ALL_REDUCE, ..event::Coll::default() };
    let (id, event) = (Handle(1_000 + number), Event::Coll(coll));
    let operation = Arc::new(Operation { id, since: at, asked: None, event, texts: None, number: 0 });
    let (thread, call, comm) = (ThreadId(0), Handle::NONE, Some(&comm));
    let handed = What::OperationBegin { id, thread, call, comm, operation: &operation, replay: None, doubt: None };
    let span = Span { start: at, end: HostNs(at.0 + 100), error_ns: 0 };
    let kernel = activity::Kernel::during(span);
    let (_, mut draw) = pipeline.stages();
    draw(&Entry { time: at, what: handed });
    draw(&Entry { time: at, what: What::OperationEnd { id } });
    if ends {
        let owner = Owner::of_one(comm.unwrap(), &operation);
        draw(&Entry { time: span.end, what: What::Kernel { kernel: &kernel, owner } });
    }
    drop(draw);
    second(pipeline, number)
}

/// A second passes.
fn second(pipeline: &mut Pipeline, second: u64) -> Option<Wish> {
    let at = second * SECOND;
    let pair = Pair { ticks: Ticks(at), host: HostNs(at), error_ns: 0 };
    pipeline.take(&Input::Pass { pair, window_ns: 0 });
    pipeline.take(&Input::Shares(&[]));
    pipeline.take_wish()
}

/// What was drawn since the last time, with the seconds and the numbers of operations. `packets`
/// are those of before.
fn drawn(pipeline: &mut Pipeline, packets: &mut Vec<u8>) -> Vec<String> {
    let (mut said, known) = (Vec::new(), packets.len() as u64);
    packets.extend(pipeline.chunk());
    reader::read(&packets[..], |packet| {
        if packet.at < known {
            return Ok(());
        }
        let (Some(event), Some(time)) = (packet.event, packet.time) else { return Ok(()) };
        let kind = match (event.r#type(), event.category) {
            (Type::SliceBegin, Some(category)) => category.name(),
            (Type::Instant, Some(Category::Newest)) => "newest",
            (Type::Instant, Some(Category::Ncclscope)) => event.name,
            (Type::Counter, _) => "counter",
            _ => return Ok(()),
        };
        let number = event.nccl().seq.map_or_else(String::new, |seq| format!(" {seq}"));
        said.push(format!("{kind}{number} at {}", time.0 / SECOND));
        Ok::<_, reader::Error>(())
    })
    .expect("whole packets");
    said
}

#[test]
fn in_a_full_file_hangs_and_signs_of_life_are_still_drawn() {
    let (mut pipeline, mut packets) = (with_kernels(130_101), Vec::new());
    for number in 1..=3 {
        assert_eq!(all_reduce(&mut pipeline, number, true), None);
    }
    pipeline.take(&Input::Level { level: Level::Hangs, why: "the file is full" });
    assert!(drawn(&mut pipeline, &mut packets).contains(&"operation 3 at 3".to_owned()));

    for number in 4..13 {
        assert_eq!(all_reduce(&mut pipeline, number, true), None);
        assert_eq!(drawn(&mut pipeline, &mut packets), [""; 0], "{number}");
    }
    assert_eq!(all_reduce(&mut pipeline, 13, true), None);
    assert_eq!(drawn(&mut pipeline, &mut packets), ["newest 13 at 13", "still following at 13"]);

    assert_eq!(all_reduce(&mut pipeline, 14, false), None);
    assert_eq!([15, 16, 17, 18].map(|at| second(&mut pipeline, at)), [None, None, Some(Wish::Force), None]);
    pipeline.take(&Input::Note { time: HostNs(18 * SECOND), name: remark::FORCED, text: "kernels that had not ended" });
    (19..=23).for_each(|at| _ = second(&mut pipeline, at));
    let said = drawn(&mut pipeline, &mut packets);
    assert_eq!(said, ["CUPTI flushed by force at 18", "not done 14 at 14", "newest 14 at 14", "still following at 23"]);

    // What the file has no room for is added up all the same.
    let metrics = pipeline.tracks.summary().metrics(None);
    let operations = metrics.lines().find(|line| line.starts_with("ncclscope_operations_total{"));
    assert!(operations.is_some_and(|line| line.ends_with(" 14")), "{metrics}");
    pipeline.take(&Input::End(Ending::default()));
    let ended = drawn(&mut pipeline, &mut packets);
    assert!(ended.contains(&"recording ended at 23".to_owned()), "{ended:?}");
}
