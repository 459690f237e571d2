//! From CUPTI's buffer to the kernel's operations: how many kernel records per second one core
//! decodes, sorts and matches, and whether memory grows.
//!
//! ```text
//! cargo bench --bench kernels
//! ```
//!
//! Ten million kernels. One in five is NCCL's, with its launch, its plan and one operation; the
//! others are the application's. Each stage is also measured alone: the baseline is a walk over the
//! same records that reads two fields of each.

use std::ffi::CString;
use std::hint::black_box;
use std::time::Instant;

use cupti_sys::bindings as cupti;
use cupti_sys::records::{End, Field, Table, Value, Walker};
use cupti_sys::table::Kernel as Of;
use ncclscope::correlate::Correlator;
use ncclscope::cupti::clock::{CuptiClock, Reading, Stamp};
use ncclscope::cupti::decode::{Asked, Decoder, Process, Times};
use ncclscope::model::activity::Activity;
use ncclscope::model::event::{self, Body, Event, Record};
use ncclscope::model::ids::{Handle, ProcessTag, RingId};
use ncclscope::model::time::{HostNs, Ticks};
use ncclscope::model::timeline::What;
use ncclscope::pipeline::activities::Activities;
use ncclscope::trace::tracks::{ProcessInfo, Tracks};
use ncclscope::trace::writer::Clocks;

const KERNELS: u64 = 10_000_000;
/// Kernels in a buffer of 512 KiB, and buffers between two flushes.
const IN_A_BUFFER: u64 = 2_000;
const BUFFERS: u64 = 10;
/// One kernel in this many is NCCL's.
const NCCL: u64 = 5;
/// CUPTI of CUDA 13.0.
const VERSION: u32 = 130_001;

/// Steps over records of equal size, as the real walker does.
struct Steps(usize);

impl Walker for Steps {
    fn next(&mut self, _: &Table, buffer: &[u8], at: Option<usize>) -> Result<usize, End> {
        let next = at.map_or(0, |at| at + self.0);
        if next + self.0 <= buffer.len() { Ok(next) } else { Err(End::Done) }
    }
}

/// How far the records are processed.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Decode,
    Order,
    Match,
    Draw,
}

fn main() {
    let names =
        [c"_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE", c"gemm_f16_128x128"];
    let names = names.map(CString::from);
    println!("{KERNELS} kernel records of CUDA 13.0, one in {NCCL} NCCL's, matched by launch bracket\n");
    let size = Table::new(VERSION).size(cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL).expect("a record's size");
    let baseline = walk(&buffer(&names, size, 0));
    report("walk and read two fields (baseline)", baseline);
    for (stage, what) in [
        (Stage::Decode, "decode"),
        (Stage::Order, "decode, order"),
        (Stage::Match, "decode, order, match"),
        (Stage::Draw, "decode, order, match, draw"),
    ] {
        let (seconds, memory) = run(stage, &names, size);
        report(what, seconds);
        let [early, late] = memory;
        println!("{:50} memory {early} MiB after a tenth, {late} MiB at the end", "");
    }
}

fn report(what: &str, seconds: f64) {
    let rate = KERNELS as f64 / seconds / 1e6;
    println!("{what:50} {rate:6.1} million a second, {:4.0} ns each", 1e3 / rate);
}

/// Seconds to step over all kernels and read two fields of each.
fn walk(buffer: &[u8]) -> f64 {
    let table = Table::new(VERSION);
    let size = buffer.len() / IN_A_BUFFER as usize;
    let begin = Instant::now();
    for _ in 0..KERNELS / IN_A_BUFFER {
        for record in &mut table.walk(black_box(buffer), Steps(size)) {
            let view = record.view::<Of>().expect("a kernel");
            black_box((view.get(Of::START), view.get(Of::CORRELATION_ID)));
        }
    }
    begin.elapsed().as_secs_f64()
}

/// Seconds to process all kernels up to a stage, and the memory in MiB after a tenth of them and at
/// the end.
fn run(stage: Stage, names: &[CString; 2], size: usize) -> (f64, [u64; 2]) {
    let tag = ProcessTag::from_random(42);
    let mut correlator = Correlator::new(tag, 1);
    correlator.expect_kernels();
    let info = ProcessInfo { pid: 1, name: "bench".into(), labels: Vec::new(), rank: None, world_size: None };
    let mut tracks = Tracks::new(tag, Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 }, &info);
    let mut clock = CuptiClock::default();
    let mut decoder = Decoder::new(VERSION, Asked::default());
    let mut process = Process::new(None);
    let mut activities = Activities::default();
    let context = Handle(tag.base() + 1);
    let init = event::CommInit { context, hash: 7, ranks: 8, interface: 7, ..Default::default() };
    let ring = RingId(0);
    fn record(time: u64, body: Body<'_>) -> Record<'_> {
        Record { ticks: Ticks(time), body }
    }
    correlator.push(ring, HostNs(1), &record(1, Body::Thread { tid: 1, name: [0; 16] }), &mut |_| {});
    correlator.push(ring, HostNs(1), &record(1, Body::CommInit(init)), &mut |_| {});

    let (mut seconds, mut memory, mut matched) = (0.0, [0; 2], 0_u64);
    for flush in 0..KERNELS / (IN_A_BUFFER * BUFFERS) {
        let first = flush * IN_A_BUFFER * BUFFERS;
        let buffers: Vec<Vec<u8>> =
            (0..BUFFERS).map(|buffer| self::buffer(names, size, first + buffer * IN_A_BUFFER)).collect();
        if stage >= Stage::Match {
            for number in (first..first + IN_A_BUFFER * BUFFERS).filter(|number| number % NCCL == 0) {
                plan(tag, context, number, &mut |time, body| {
                    correlator.push(ring, HostNs(time), &record(time, body), &mut |_| {});
                });
            }
        }
        let now = time_of(first + IN_A_BUFFER * BUFFERS);
        for at in [time_of(first).saturating_sub(1000), now] {
            let (boot_before, boot_after) = (HostNs(at), HostNs(at + 40));
            let cupti = Some(Stamp(at + 20));
            clock.add(&Reading { boot_before, wall_before: at + 10, cupti, wall_after: at + 30, boot_after });
        }

        let begin = Instant::now();
        for buffer in &buffers {
            let times = Times { clock: &clock, now: HostNs(now) };
            let mut sink = |activity: Activity| match stage {
                Stage::Decode => drop(black_box(activity)),
                _ => {
                    drop(activities.push(activity, HostNs(0)));
                    assert!(activities.pop_excess().is_none(), "there is room for a flush");
                }
            };
            // SAFETY: the names in the records are C strings that outlive `outside`.
            let mut outside = unsafe { process.asked() };
            decoder.decode(buffer, Steps(size), &mut outside, times, &mut sink);
        }
        while let Some(activity) = activities.pop(HostNs(u64::MAX)) {
            if stage >= Stage::Match {
                correlator.push_activity(activity, &mut |entry| {
                    matched += u64::from(matches!(entry.what, What::Kernel { .. }));
                    if stage == Stage::Draw {
                        tracks.draw(entry);
                    }
                });
            }
        }
        if stage == Stage::Draw {
            black_box(tracks.take());
        }
        seconds += begin.elapsed().as_secs_f64();
        if first == KERNELS / 10 {
            memory[0] = resident();
        }
    }
    memory[1] = resident();
    assert_eq!(decoder.counts.decoded, KERNELS, "every record is decoded");
    if stage >= Stage::Match {
        assert_eq!(matched, KERNELS, "every kernel comes out");
        assert_eq!(correlator.matches().matched[0], KERNELS / NCCL, "every kernel of NCCL's is matched");
    }
    (seconds, memory)
}

impl PartialOrd for Stage {
    fn partial_cmp(&self, other: &Stage) -> Option<std::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}

/// The launch time of a kernel.
fn time_of(number: u64) -> u64 {
    1_000_000_000_000 + number * 20_000
}

/// A buffer of kernels, starting with number `first`.
fn buffer(names: &[CString; 2], size: usize, first: u64) -> Vec<u8> {
    let mut buffer = vec![0; size * IN_A_BUFFER as usize];
    for (number, record) in (first..).zip(buffer.chunks_mut(size)) {
        fn put<T: Value>(record: &mut [u8], field: Field<Of, T>, value: &[u8]) {
            record[field.offset()..][..value.len()].copy_from_slice(value);
        }
        record[..4].copy_from_slice(&cupti::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL.to_ne_bytes());
        let start = time_of(number) + 5_000;
        put(record, Of::START, &start.to_ne_bytes());
        put(record, Of::END, &(start + 12_000).to_ne_bytes());
        put(record, Of::CORRELATION_ID, &(number as u32 + 1).to_ne_bytes());
        put(record, Of::CONTEXT_ID, &1_u32.to_ne_bytes());
        put(record, Of::STREAM_ID, &(7 + u32::from(number % NCCL == 0)).to_ne_bytes());
        put(record, Of::GRID_X, &24_i32.to_ne_bytes());
        let name = &names[usize::from(number % NCCL != 0)];
        put(record, Of::NAME, &name.as_ptr().expose_provenance().to_ne_bytes());
    }
    buffer
}

/// What NCCL and CUPTI report about a launch.
fn plan(tag: ProcessTag, context: Handle, number: u64, push: &mut dyn FnMut(u64, Body<'_>)) {
    let time = time_of(number);
    let handle = |which: u64| Handle(tag.base() + 10 + number / NCCL * 8 + which);
    let [group_api, call, launch, group, operation] = [0, 1, 2, 3, 4].map(handle);
    let start = |handle, parent, event| Body::Start { handle, parent, context, rank: 0, event };
    push(time, start(group_api, Handle::NONE, Event::GroupApi(event::GroupApi::default())));
    push(time, start(call, group_api, Event::CollApi(event::CollApi::default())));
    push(time, Body::Stop { handle: call });
    push(time, start(launch, group_api, Event::KernelLaunch(event::KernelLaunch::default())));
    push(time, Body::Launch { correlation: number as u32 + 1, nccl: true, launch, group: group_api });
    push(time, Body::Stop { handle: launch });
    push(time, start(group, Handle::NONE, Event::Group(event::Group::default())));
    push(time, start(operation, call, Event::Coll(event::Coll { group, ..Default::default() })));
    push(time, Body::Stop { handle: operation });
    push(time, Body::Stop { handle: group });
    push(time, Body::Stop { handle: group_api });
}

/// Resident memory of this process, in MiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4 / 1024
}
