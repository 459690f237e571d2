//! The cost of a callback: nanoseconds per call, beyond an empty plugin measured in the same run.
//! Below it, what no recorder can leave out: benches/plain.c reads the clock, stores the
//! arguments, looks at a collective's strings, and does nothing else.
//!
//! ```text
//! cargo bench --bench callback
//! cargo bench --bench callback -- Step      # only calls with that in their name
//! cargo bench --bench callback -- --beside PLUGIN.so --interface 4
//! ```
//!
//! The last one measures another profiler plugin on the same calls, and ours, through that version
//! of the interface. Most plugins have room for a limited number of events, so their figure for a
//! start that is never stopped is that of a refusal. The streams are sequences of NCCL's in which
//! every event stops; `kept` says how many of their starts were given a handle.
//!
//! Calls come in bursts with pauses between them, as NCCL makes them, so that the collector keeps
//! up and the rings have room; the last line says whether anything was dropped nevertheless. The
//! mean is over whole bursts. The percentiles are of single calls, each timed by two readings of
//! the TSC whose own cost is subtracted. They leave out the first call after a pause, when other
//! programs have had the caches: as one call in 512, it would be most of the slowest thousandth.
//! `first` is the median of those. All plugins are loaded with `dlopen` and called through their
//! tables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use ncclscope_tests::flood::{Counts, Kind, Lane, Latency};
use ncclscope_tests::host::{Arg, Comm, Context, Descriptor, NetEvent, Plugin, RawHandle, StateCall, Value};
use ncclscope_tests::play::plugin_path;

/// Calls per burst, and bursts.
const BURST: usize = 512;
const BURSTS: usize = 400;
/// Pause between bursts for the collector, for each calling thread.
const PAUSE: Duration = Duration::from_micros(500);

/// A call to measure, with its arguments.
enum Call {
    Start(Descriptor),
    Stop,
    State(StateCall),
}

/// Times in nanoseconds.
#[derive(Clone, Default)]
struct Measured {
    bursts: Vec<f64>,
    /// Single calls, but for the first of each burst.
    singles: Vec<u32>,
    /// The first calls of bursts.
    firsts: Vec<u32>,
}

fn main() {
    let folder = std::env::temp_dir().join(format!("ncclscope-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var("NCCLSCOPE_OUTPUT", &folder);
        std::env::set_var("NCCLSCOPE_MIN_FREE", "0");
        // The machine may have fewer cores than the bench has threads.
        std::env::set_var("NCCLSCOPE_BUFFER_SIZE", "256M");
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let said = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let interface = said("--interface").map_or(7, |number| number.parse().expect("a version of the interface"));
    let load = |path: &Path| {
        // SAFETY: the libraries export valid tables: one is ours, two are benches/plain.c, and
        // one is a plugin that NCCL would load.
        unsafe { Plugin::load(path, interface) }.expect("a plugin with that version of the interface")
    };
    let empty = load(&compile(&folder, "empty", &[]));
    let least = load(&compile(&folder, "least", &["-DLEAST"]));
    let ours = load(&plugin_path().expect("the release library"));
    let other = said("--beside").map(|path| load(Path::new(path)));
    // As in a job, the first communicator stays: not every plugin survives a new one after the last
    // has gone.
    let _stays = other.as_ref().map(|plugin| plugin.init(&Comm { id: 1, nranks: 2, ..Comm::default() }));

    let (tsc_ghz, timer_ns, disturbance) = calibrate();
    println!("{}", machine());
    println!(
        "one pair of TSC readings: {timer_ns:.1} ns at {tsc_ghz:.3} GHz; bursts of {BURST} calls, {BURSTS} bursts\n\
         nothing at all between two readings: 99.9th percentile {:.0} ns above the median, longest {:.0} ns\n",
        disturbance.0, disturbance.1,
    );
    let wanted = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    for threads in [1, 4] {
        println!("{threads} thread{}: ns a call above an empty plugin", if threads == 1 { "" } else { "s" });
        println!(
            "{:<28} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8}",
            "call", "empty", "mean", "p50", "first", "p99", "p99.9", "max", "in all"
        );
        for (name, make) in calls().into_iter().filter(|(name, _)| name.contains(wanted)) {
            let base = measure(&empty, threads, make, tsc_ghz, timer_ns);
            if base.singles.is_empty() {
                // This version of the interface does not have it.
                continue;
            }
            report(name, &base, &measure(&ours, threads, make, tsc_ghz, timer_ns));
            report("  the least", &base, &measure(&least, threads, make, tsc_ghz, timer_ns));
            if let Some(other) = &other {
                report("  the other plugin", &base, &measure(other, threads, make, tsc_ghz, timer_ns));
            }
        }
        println!(
            "{:<28} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8} {:>6}",
            "stream", "", "", "", "", "", "", "", "", "kept"
        );
        for (name, kind) in STREAMS.into_iter().filter(|(name, _)| name.contains(wanted)) {
            let base = measure_stream(&empty, threads, kind);
            report_stream(name, &base, &measure_stream(&ours, threads, kind));
            report_stream("  the least", &base, &measure_stream(&least, threads, kind));
            if let Some(other) = &other {
                report_stream("  the other plugin", &base, &measure_stream(other, threads, kind));
            }
        }
        println!();
    }
    say_dropped(&ours, &folder);
    let _ = std::fs::remove_dir_all(&folder);
}

type Make = fn(&Plugin, &Context) -> Option<Call>;

fn calls() -> Vec<(&'static str, Make)> {
    macro_rules! start {
        ($kind:literal $(, $field:literal = $value:expr)*) => {
            |plugin, context| {
                let fields: &[(&str, Value<'_>)] = &[$(($field, $value)),*];
                plugin.descriptor(context, $kind, fields, RawHandle::NULL).map(Call::Start)
            }
        };
    }
    macro_rules! state {
        ($state:literal) => {
            |plugin, _| plugin.state_call($state, Arg::Default).map(Call::State)
        };
    }
    vec![
        ("start GroupApi", start!("GroupApi", "groupDepth" = Value::Bits(1))),
        (
            "start CollApi",
            start!(
                "CollApi",
                "func" = "AllReduce".into(),
                "count" = Value::Bits(1 << 22),
                "datatype" = "ncclFloat32".into()
            ),
        ),
        (
            "start P2pApi",
            start!("P2pApi", "func" = "Send".into(), "count" = Value::Bits(1 << 22), "datatype" = "ncclFloat32".into()),
        ),
        ("start KernelLaunch", start!("KernelLaunch", "stream" = Value::Bits(0x7f10))),
        ("start Group", start!("Group")),
        (
            "start Coll",
            start!(
                "Coll",
                "func" = "AllReduce".into(),
                "count" = Value::Bits(1 << 22),
                "datatype" = "ncclFloat32".into(),
                "algo" = "RING".into(),
                "proto" = "SIMPLE".into()
            ),
        ),
        (
            "start P2p",
            start!("P2p", "func" = "Send".into(), "count" = Value::Bits(1 << 22), "datatype" = "ncclFloat32".into()),
        ),
        ("start ProxyOp", start!("ProxyOp", "peer" = Value::Bits(1), "nSteps" = Value::Bits(8))),
        ("start ProxyStep", start!("ProxyStep", "step" = Value::Bits(3))),
        ("start ProxyCtrl", start!("ProxyCtrl")),
        ("start KernelCh", start!("KernelCh", "pTimer" = Value::Bits(123_456_789))),
        (
            "start NetPlugin",
            start!(
                "NetPlugin",
                "net" = Value::Net(NetEvent::Ib { device: 0, wr_id: 7, opcode: 0, qp: 3, length: 1 << 19 })
            ),
        ),
        (
            "start CeColl",
            start!(
                "CeColl",
                "func" = "AllGather".into(),
                "count" = Value::Bits(1 << 22),
                "datatype" = "ncclFloat32".into(),
                "syncStrategy" = "MC".into()
            ),
        ),
        ("start CeSync", start!("CeSync")),
        ("start CeBatch", start!("CeBatch", "totalBytes" = Value::Bits(1 << 22))),
        ("start KernelPhase", start!("KernelPhase", "phaseName" = "compute".into())),
        ("stop", |_, _| Some(Call::Stop)),
        ("state StepSendGpuWait", state!("StepSendGpuWait")),
        ("state StepSendWait", state!("StepSendWait")),
        ("state KernelChStop", state!("KernelChStop")),
    ]
}

fn measure(plugin: &Plugin, threads: usize, make: Make, ghz: f64, timer_ns: f64) -> Measured {
    let barrier = Barrier::new(threads);
    let parts: Vec<Measured> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| measure_thread(plugin, threads as u32, &barrier, make, ghz, timer_ns)))
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("a measuring thread")).collect()
    });
    let mut all = Measured::default();
    for part in parts {
        all.bursts.extend(part.bursts);
        all.singles.extend(part.singles);
        all.firsts.extend(part.firsts);
    }
    all.bursts.sort_by(f64::total_cmp);
    all.singles.sort_unstable();
    all.firsts.sort_unstable();
    all
}

/// NCCL's calls in their order: those of a user's thread for collectives, those of the progress
/// thread for proxy operations, and a mix of both.
const STREAMS: [(&str, Kind); 3] =
    [("stream of collectives", Kind::Coll), ("stream of proxy operations", Kind::Step), ("mixed stream", Kind::Mixed)];

/// What a stream cost: the means of its bursts, and the calls that were timed one by one.
struct Streamed {
    bursts: Vec<f64>,
    singles: Vec<Latency>,
    counts: Counts,
}

fn measure_stream(plugin: &Plugin, threads: usize, kind: Kind) -> Streamed {
    let barrier = Barrier::new(threads);
    let body = || {
        let context = plugin.init(&Comm { id: 7, nranks: 2, ..Comm::default() });
        let (mut plain, mut timed) =
            (Lane::new(kind, false, plugin, &context), Lane::new(kind, true, plugin, &context));
        let mut bursts = Vec::new();
        barrier.wait();
        for _ in 0..BURSTS / 2 {
            let (before, begin) = (plain.counts().calls(), Instant::now());
            plain.send(before + BURST as u64, None);
            let calls = plain.counts().calls() - before;
            bursts.push(begin.elapsed().as_nanos() as f64 / calls as f64);
            std::thread::sleep(PAUSE * threads as u32);
            timed.send(timed.counts().calls() + BURST as u64, None);
            std::thread::sleep(PAUSE * threads as u32);
        }
        plugin.finalize(&context);
        (bursts, timed.latency(), plain.counts(), timed.counts())
    };
    std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads).map(|_| scope.spawn(body)).collect();
        let mut all = Streamed { bursts: Vec::new(), singles: Vec::new(), counts: Counts::default() };
        for thread in spawned {
            let (bursts, singles, plain, timed) = thread.join().expect("a measuring thread");
            all.bursts.extend(bursts);
            all.singles.extend(singles);
            for counts in [plain, timed] {
                all.counts.starts += counts.starts;
                all.counts.stops += counts.stops;
                all.counts.states += counts.states;
                all.counts.null_handles += counts.null_handles;
            }
        }
        all.bursts.sort_by(f64::total_cmp);
        all
    })
}

/// The percentiles are those of the thread that had to wait longest.
fn report_stream(name: &str, base: &Streamed, own: &Streamed) {
    let most = |it: &Streamed, of: fn(&Latency) -> u64| it.singles.iter().map(of).max().unwrap_or_default() as f64;
    let above = |of: fn(&Latency) -> u64| most(own, of) - most(base, of);
    let counts = &own.counts;
    println!(
        "{name:<28} {:>7.1} {:>7.1} {:>7.0} {:>7} {:>7.0} {:>9.0} {:>9.0} {:>8} {:>5.1}%",
        mean(&base.bursts),
        mean(&own.bursts) - mean(&base.bursts),
        above(|it| it.median_ns),
        "",
        above(|it| it.p99_ns),
        above(|it| it.p999_ns),
        most(own, |it| it.max_ns),
        counts.calls(),
        100.0 * (counts.starts - counts.null_handles) as f64 / counts.starts.max(1) as f64,
    );
}

fn measure_thread(plugin: &Plugin, threads: u32, barrier: &Barrier, make: Make, ghz: f64, timer_ns: f64) -> Measured {
    let context = plugin.init(&Comm { id: 7, nranks: 2, ..Comm::default() });
    let Some(mut call) = make(plugin, &context) else { return Measured::default() };
    let group = plugin.start(&context, "Group", &[], RawHandle::NULL);
    let handle = group.handle;
    let mut measured = Measured::default();
    // Written to now: a page fault here would leave the caches cold for the next call.
    let mut times = vec![u32::MAX; BURST * BURSTS / 2];
    let mut rest = times.chunks_exact_mut(BURST);
    barrier.wait();
    for burst in 0..BURSTS {
        if burst % 2 == 0 {
            let begin = Instant::now();
            for _ in 0..BURST {
                make_call(plugin, &context, handle, &mut call);
            }
            measured.bursts.push(begin.elapsed().as_nanos() as f64 / BURST as f64);
        } else {
            for time in rest.next().expect("room for every other burst") {
                let begin = tsc();
                make_call(plugin, &context, handle, &mut call);
                let ticks = tsc() - begin;
                *time = (ticks as f64 / ghz - timer_ns).max(0.0) as u32;
            }
        }
        std::thread::sleep(PAUSE * threads);
    }
    for burst in times.chunks_exact(BURST) {
        measured.firsts.push(burst[0]);
        measured.singles.extend(&burst[1..]);
    }
    plugin.finalize(&context);
    measured
}

#[inline]
fn make_call(plugin: &Plugin, context: &Context, handle: RawHandle, call: &mut Call) {
    match call {
        Call::Start(descriptor) => {
            std::hint::black_box(plugin.start_prepared(context.handle, descriptor));
        }
        Call::Stop => {
            std::hint::black_box(plugin.stop(handle));
        }
        Call::State(state) => {
            std::hint::black_box(plugin.state_prepared(handle, state));
        }
    }
}

fn report(name: &str, base: &Measured, own: &Measured) {
    let at = |times: &[u32], share: f64| f64::from(times[((times.len() - 1) as f64 * share) as usize]);
    let above = |share| at(&own.singles, share) - at(&base.singles, share);
    println!(
        "{name:<28} {:>7.1} {:>7.1} {:>7.0} {:>7.0} {:>7.0} {:>9.0} {:>9.0} {:>8}",
        mean(&base.bursts),
        mean(&own.bursts) - mean(&base.bursts),
        above(0.5),
        at(&own.firsts, 0.5) - at(&base.firsts, 0.5),
        above(0.99),
        above(0.999),
        at(&own.singles, 1.0),
        own.singles.len() + own.firsts.len() + own.bursts.len() * BURST,
    );
}

/// The mean of sorted bursts, without the tenth that the scheduler disturbed most; the percentiles
/// include it.
fn mean(bursts: &[f64]) -> f64 {
    let kept = &bursts[..bursts.len() * 9 / 10];
    kept.iter().sum::<f64>() / kept.len() as f64
}

fn compile(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let library = folder.join(name).with_extension("so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/plain.c");
    let mut cc = Command::new("cc");
    let status = cc.args(["-O2", "-shared", "-fPIC"]).args(options).arg("-o").arg(&library).arg(&source).status();
    assert!(status.is_ok_and(|status| status.success()), "cc could not compile {}", source.display());
    library
}

/// The TSC's rate in GHz, the cost of a pair of readings in ns, and by how much one pair in a
/// thousand, and the worst, takes longer: what the machine itself does to a call.
fn calibrate() -> (f64, f64, (f64, f64)) {
    let (begin, ticks) = (Instant::now(), tsc());
    std::thread::sleep(Duration::from_millis(200));
    let ghz = (tsc() - ticks) as f64 / begin.elapsed().as_nanos() as f64;
    let mut pairs: Vec<u64> = (0..100_001)
        .map(|_| {
            let begin = tsc();
            tsc() - begin
        })
        .collect();
    pairs.sort_unstable();
    let at = |index: usize| pairs[index] as f64 / ghz;
    let median = at(pairs.len() / 2);
    (ghz, median, (at(pairs.len() * 999 / 1000) - median, at(pairs.len() - 1) - median))
}

#[inline]
fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a bench runs where user programs may read the TSC.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// The machine that the figures are from.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

/// Prints what the trace says about dropped calls: the measurement is valid only if there was room
/// for them.
fn say_dropped(plugin: &Plugin, folder: &Path) {
    let context = plugin.init(&Comm { id: 8, nranks: 2, ..Comm::default() });
    plugin.finalize(&context);
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let trace = files.map(|file| file.path()).find(|path| path.extension().is_some_and(|it| it == "perfetto-trace"));
    let bytes = trace.and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    let mut dropped = 0;
    let _ = ncclscope::trace::reader::decoded(&bytes, |packet| {
        let said = packet.track_event.and_then(|event| event.nccl).and_then(|nccl| nccl.dropped);
        dropped = dropped.max(said.unwrap_or_default());
    });
    println!("records dropped while measuring: {dropped}");
}
