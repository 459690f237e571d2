//! What CUPTI does and costs in specific situations; each in its own process, without NCCL and
//! without the profiler.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cupti_sys::bindings as sys;

use super::cupti::{IS_QUIET, Ran, Trial, check, with_seen};
use super::{Told, Workload};
use crate::cuda::{Exec, Gpu, Runtime, Stream};

const KERNELS: u32 = sys::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
/// The duration of a minimal kernel, in ns.
const SHORT: u64 = 1_000;

/// What callbacks and records say about each function that launches: `cuLaunchKernel`,
/// `cuLaunchKernelEx`, `cuGraphLaunch`, and the runtime's `cudaGraphLaunch` with the driver's
/// inside it.
pub(super) fn launches(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::subscribe(workload)?;
    trial.enable(KERNELS)?;
    let times = workload.repeats;
    let mut ask = |name: &str, kernels: u32, launch: &dyn Fn() -> Result<(), String>| {
        with_seen(|seen| (seen.launches, seen.calls) = Default::default());
        (0..times).try_for_each(|_| launch())?;
        let ran = trial.records()?.kernels;
        let (launches, calls) = with_seen(|seen| (seen.launches.clone(), seen.calls.clone()));
        let known = ran.iter().filter(|kernel| launches.contains(&kernel.correlation)).count();
        let figures = [
            ("expected", f64::from(times * kernels)),
            ("records", ran.len() as f64),
            ("known", known as f64),
            ("callbacks", launches.len() as f64),
        ];
        told.figures.extend(figures.map(|(what, value)| (format!("{name}_{what}"), value)));
        let calls: Vec<String> = calls.iter().map(|(id, count)| format!("{count} of {id}")).collect();
        told.words.insert(format!("{name}_calls"), calls.join(", "));
        Ok::<_, String>(())
    };
    ask("kernel", 1, &|| trial.gpu.spin(trial.stream, SHORT))?;
    let has_ex = trial.gpu.spin_ex(trial.stream, SHORT)?;
    trial.records()?;
    if has_ex {
        ask("kernel_ex", 1, &|| trial.gpu.spin_ex(trial.stream, SHORT).map(drop))?;
    }
    let exec = graph(&trial.gpu, trial.stream, 2)?;
    trial.records()?;
    ask("graph", 2, &|| exec.launch(trial.stream))?;
    // If the runtime is missing, or needs a newer driver, only this answer is lost.
    let runtime = workload.cudart.as_deref().ok_or_else(|| "no libcudart was found".to_owned()).and_then(Runtime::load);
    let runtime = runtime.and_then(|runtime| runtime.launch(exec, trial.stream).map(|()| runtime));
    trial.records()?;
    if let Ok(runtime) = &runtime {
        ask("runtime_graph", 2, &|| runtime.launch(exec, trial.stream))?;
    }
    let mut absent = |name: &str, why: &str| drop(told.words.insert(name.into(), why.into()));
    if !has_ex {
        absent("kernel_ex", "this driver has no cuLaunchKernelEx");
    }
    if let Err(why) = &runtime {
        absent("runtime_graph", why);
    }
    Ok(())
}

/// A graph of this many kernels, one after the other.
fn graph(gpu: &Gpu, stream: Stream, nodes: u32) -> Result<Exec, String> {
    stream.begin_capture()?;
    (0..nodes).try_for_each(|_| gpu.spin(stream, 0))?;
    stream.end_capture()?.instantiate()
}

/// CUPTI's times of kernels against the GPU's own timer, second by second; optionally with our
/// clock, registered when there is a context.
pub(super) fn clock(workload: &Workload, is_ours: bool, told: &mut Told) -> Result<(), String> {
    const READINGS: usize = 64;
    const PAUSE: Duration = Duration::from_millis(5);
    crate::cuda::start()?;
    let gpu = workload.open_gpu()?;
    let stream = gpu.stream()?;
    let trial = Trial::subscribe_late(workload, gpu, stream)?;
    if is_ours {
        // SAFETY: the function needs nothing and lives as long as the process.
        let result = unsafe { (trial.tap.api.cuptiActivityRegisterTimestampCallback)(Some(boottime)) };
        check("cuptiActivityRegisterTimestampCallback", result)?;
    }
    trial.enable(KERNELS)?;
    let memory = trial.gpu.memory(READINGS * 8)?;
    let mut readings = [0; READINGS];
    // By the launch's correlation id: the timer when the kernel began and ended.
    let mut shown: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut kernels: Vec<Ran> = Vec::new();
    let (began, mut flushed) = (Instant::now(), Instant::now());
    while began.elapsed().as_secs_f64() < workload.seconds {
        trial.gpu.timer_into(stream, memory, &mut readings)?;
        if let Some(launch) = with_seen(|seen| seen.launches.pop()) {
            shown.insert(launch, (readings[0], readings[READINGS - 1]));
        }
        if flushed.elapsed() > Duration::from_secs(1) {
            flushed = Instant::now();
            check("cuptiActivityFlushAll", trial.tap.flush(false))?;
        }
        std::thread::sleep(PAUSE);
    }
    kernels.extend(trial.records()?.kernels);
    kernels.sort_unstable();
    let mut stamp = 0;
    // SAFETY: the number is writable.
    check("cuptiGetTimestamp", unsafe { (trial.tap.api.cuptiGetTimestamp)(&raw mut stamp) })?;
    let (wall, boot) = (clock_of(libc::CLOCK_REALTIME), boottime());
    let seconds = by_second(&kernels, &shown);
    let series = |of: fn(&Second) -> i64| seconds.iter().map(|second| of(second) as f64).collect::<Vec<_>>();
    told.series.insert("begin_least_ns".into(), series(|it| it.begin.0));
    told.series.insert("begin_most_ns".into(), series(|it| it.begin.1));
    told.series.insert("end_least_ns".into(), series(|it| it.end.0));
    told.series.insert("end_most_ns".into(), series(|it| it.end.1));
    let last = kernels.last().map_or(0, |kernel| kernel.end);
    // A time belongs to the clock that it is closest to.
    let nearest = |time: u64| f64::from(u8::from(time.abs_diff(wall) < time.abs_diff(boot)));
    let figures = [
        ("launches", shown.len() as f64),
        ("matched", kernels.iter().filter(|kernel| shown.contains_key(&kernel.correlation)).count() as f64),
        ("kernels_on_wall_clock", nearest(last)),
        ("cupti_on_wall_clock", nearest(stamp)),
    ];
    told.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

extern "C" fn boottime() -> u64 {
    clock_of(libc::CLOCK_BOOTTIME)
}

fn clock_of(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable, and these clocks are there.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// How far CUPTI's times of kernels that began in a second were from the timer's, minus the
/// initial distance: the least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Second {
    begin: (i64, i64),
    end: (i64, i64),
}

fn by_second(kernels: &[Ran], shown: &BTreeMap<u32, (u64, u64)>) -> Vec<Second> {
    let mut seconds: BTreeMap<u64, Second> = BTreeMap::new();
    let mut first: Option<(u64, i64)> = None;
    for kernel in kernels {
        let Some((begin, end)) = shown.get(&kernel.correlation) else { continue };
        let apart = |time: u64, timer: u64| time.wrapping_sub(timer) as i64;
        let (from, base) = *first.get_or_insert((kernel.start, apart(kernel.start, *begin)));
        let begin = apart(kernel.start, *begin).wrapping_sub(base);
        let end = apart(kernel.end, *end).wrapping_sub(base);
        let second = Second { begin: (begin, begin), end: (end, end) };
        let known = seconds.entry(kernel.start.saturating_sub(from) / 1_000_000_000).or_insert(second);
        let widen = |range: &mut (i64, i64), value: i64| *range = (range.0.min(value), range.1.max(value));
        widen(&mut known.begin, begin);
        widen(&mut known.end, end);
    }
    seconds.into_values().collect()
}

/// The duration of a long kernel, in ns.
const LONG: u64 = 2_000_000_000;

/// Subscribing and enabling kernels while one runs: what waits for it, and what is recorded.
pub(super) fn late(workload: &Workload, told: &mut Told) -> Result<(), String> {
    crate::cuda::start()?;
    let gpu = workload.open_gpu()?;
    let stream = gpu.stream()?;
    (0..20).try_for_each(|_| gpu.spin(stream, SHORT))?;
    gpu.synchronize()?;
    let began = Instant::now();
    gpu.spin(stream, LONG)?;
    let mut took = Took { told };
    let trial = took.time("subscribe", || Trial::subscribe_late(workload, gpu, stream))?;
    took.time("enable", || trial.enable(KERNELS))?;
    took.time("launch", || (0..10).try_for_each(|_| trial.gpu.spin(stream, SHORT)))?;
    let asked = began.elapsed();
    trial.gpu.synchronize()?;
    told.figures.insert("asked_ms".into(), milliseconds(asked));
    told.figures.insert("kernel_ms".into(), milliseconds(began.elapsed()));
    told.figures.insert("records".into(), trial.records()?.kernels.len() as f64);
    Ok(())
}

/// Flushing, disabling and unsubscribing while a kernel runs: what waits for it, and what is
/// returned.
pub(super) fn hung(workload: &Workload, told: &mut Told) -> Result<(), String> {
    let trial = Trial::subscribe(workload)?;
    trial.enable(KERNELS)?;
    for _ in 0..10 {
        trial.gpu.spin(trial.stream, SHORT)?;
    }
    trial.gpu.synchronize()?;
    let began = Instant::now();
    trial.gpu.spin(trial.stream, 2 * LONG)?;
    std::thread::sleep(Duration::from_millis(200));
    let mut took = Took { told };
    took.time("flush", || check("cuptiActivityFlushAll", trial.tap.flush(false)))?;
    let came = trial.tap.returned().kernels.len();
    // SAFETY: no pointers.
    took.time("disable", || check("cuptiActivityDisable", unsafe { (trial.tap.api.cuptiActivityDisable)(KERNELS) }))?;
    took.time("force", || check("cuptiActivityFlushAll", trial.tap.flush(true)))?;
    let forced = trial.tap.returned().kernels;
    took.time("unsubscribe", || {
        // SAFETY: the subscription of this process, which is not used any more.
        check("cuptiUnsubscribe", unsafe { (trial.tap.api.cuptiUnsubscribe)(trial.subscriber) })
    })?;
    let asked = began.elapsed();
    trial.gpu.synchronize()?;
    told.figures.insert("asked_ms".into(), milliseconds(asked));
    told.figures.insert("kernel_ms".into(), milliseconds(began.elapsed()));
    told.figures.insert("came".into(), came as f64);
    told.figures.insert("forced".into(), forced.len() as f64);
    told.figures.insert("unfinished".into(), forced.iter().filter(|kernel| kernel.end == 0).count() as f64);
    Ok(())
}

/// How long calls took, in ms.
struct Took<'t> {
    told: &'t mut Told,
}

impl Took<'_> {
    fn time<T>(&mut self, name: &str, call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let began = Instant::now();
        let result = call();
        self.told.figures.insert(format!("{name}_ms"), milliseconds(began.elapsed()));
        result
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The levels of requests to CUPTI, each including the previous ones.
pub(crate) const LEVELS: [&str; 5] =
    ["nothing", "callbacks at launches", "records of kernels", "a flush every second", "records of the driver's calls"];

/// The cost of a launch at a level of requests to CUPTI: alone, and as a node of a graph.
pub(super) fn kinds(workload: &Workload, told: &mut Told) -> Result<(), String> {
    const BATCH: u32 = 500;
    const NODES: u32 = 1000;
    const WARM_UP: u32 = 3;
    IS_QUIET.store(true, Relaxed);
    let level = workload.level;
    let trial = (level > 0).then(|| Trial::subscribe(workload)).transpose()?;
    let gpu = workload.open_gpu()?;
    let stream = gpu.stream()?;
    let kinds = [(2, KERNELS), (4, sys::CUPTI_ACTIVITY_KIND_DRIVER)];
    for (_, kind) in kinds.into_iter().filter(|(from, _)| level >= *from) {
        trial.iter().try_for_each(|trial| trial.enable(kind))?;
    }
    let is_over = AtomicBool::new(false);
    let mut flushes = Vec::new();
    std::thread::scope(|scope| {
        let flusher = trial.as_ref().filter(|_| level >= 3).map(|trial| {
            let (is_over, tap) = (&is_over, trial.tap);
            scope.spawn(move || {
                let mut flushes = Vec::new();
                let mut next = Instant::now() + Duration::from_secs(1);
                while !is_over.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                    if Instant::now() > next {
                        next += Duration::from_secs(1);
                        let began = Instant::now();
                        tap.flush(false);
                        flushes.push(began.elapsed().as_nanos() as f64);
                        drop(tap.returned());
                    }
                }
                flushes
            })
        });
        let result = measure(workload, &gpu, stream, [BATCH, NODES, WARM_UP], told);
        is_over.store(true, Relaxed);
        flushes = flusher.map(|it| it.join().unwrap_or_default()).unwrap_or_default();
        result
    })?;
    told.series.insert("flush_ns".into(), flushes);
    Ok(())
}

fn measure(
    workload: &Workload,
    gpu: &Gpu,
    stream: Stream,
    [batch, nodes, warm_up]: [u32; 3],
    told: &mut Told,
) -> Result<(), String> {
    let exec = graph(gpu, stream, nodes)?;
    for (name, count) in [("eager", batch), ("graph", nodes)] {
        let (mut launch, mut whole) = (Vec::new(), Vec::new());
        for turn in 0..warm_up + workload.repeats {
            let began = Instant::now();
            if name == "graph" {
                exec.launch(stream)?;
            } else {
                (0..count).try_for_each(|_| gpu.spin(stream, 0))?;
            }
            let launched = began.elapsed();
            stream.synchronize()?;
            if turn >= warm_up {
                launch.push(launched.as_nanos() as f64 / f64::from(if name == "graph" { 1 } else { count }));
                whole.push(began.elapsed().as_nanos() as f64 / f64::from(count));
            }
        }
        told.series.insert(format!("{name}_launch_ns"), launch);
        told.series.insert(format!("{name}_whole_ns"), whole);
    }
    Ok(())
}

/// Whether a small pool of CUPTI's own memory spoils the times of many kernels of graphs.
pub(super) fn pool(workload: &Workload, told: &mut Told) -> Result<(), String> {
    const NODES: u32 = 1000;
    const EACH: u32 = 100;
    IS_QUIET.store(true, Relaxed);
    let trial = Trial::subscribe(workload)?;
    let (mut limit, mut size) = (8_usize, size_of::<usize>());
    let set = trial.tap.api.cuptiActivitySetAttribute.ok_or("cuptiActivitySetAttribute is missing")?;
    // SAFETY: value and size match this attribute.
    let result = unsafe {
        let value = (&raw mut limit).cast();
        set(sys::CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, &raw mut size, value)
    };
    if result != sys::CUPTI_SUCCESS {
        told.words.insert("limit".into(), format!("cuptiActivitySetAttribute gave {result}"));
    }
    trial.enable(KERNELS)?;
    let before = trial.gpu.free_memory();
    let exec = graph(&trial.gpu, trial.stream, NODES)?;
    let (mut records, mut zero, mut reversed, mut first) = (0_u64, 0_u64, 0_u64, None);
    let (began, mut done) = (Instant::now(), 0);
    while done < workload.repeats && began.elapsed().as_secs_f64() < workload.seconds {
        let batch = EACH.min(workload.repeats - done);
        for _ in 0..batch {
            exec.launch(trial.stream)?;
            trial.stream.synchronize()?;
        }
        done += batch;
        for kernel in trial.records()?.kernels {
            records += 1;
            let is_zero = kernel.start == 0 || kernel.end == 0;
            zero += u64::from(is_zero);
            reversed += u64::from(!is_zero && kernel.end < kernel.start);
            if is_zero || kernel.end < kernel.start {
                first.get_or_insert(records);
            }
        }
    }
    let figures = [
        ("expected", f64::from(done * NODES)),
        ("records", records as f64),
        ("zero", zero as f64),
        ("reversed", reversed as f64),
    ];
    told.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    told.figures.extend(first.map(|first| ("first_bad".to_owned(), first as f64)));
    if let (Some(before), Some(after)) = (before, trial.gpu.free_memory()) {
        told.figures.insert("memory".into(), before as f64 - after as f64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_cupti_s_conversion_is_seen_in_its_second() {
        const SECOND: u64 = 1_000_000_000;
        // The timer is 7 s behind; from the second second on CUPTI is 4 us later, and all kernels
        // last 20 us.
        let kernel = |at: u64, late: u64, id: u32| {
            let ran = Ran { start: at + late, end: at + late + 20_000, correlation: id, node: 0 };
            (ran, (id, (at - 7 * SECOND + 100, at - 7 * SECOND + 19_900)))
        };
        let all = [kernel(10 * SECOND, 0, 1), kernel(10 * SECOND + 5, 300, 2), kernel(11 * SECOND + 500, 4_000, 3)];
        let kernels: Vec<_> = all.iter().map(|(kernel, _)| *kernel).chain([Ran::default()]).collect();
        let seconds = by_second(&kernels, &all.iter().map(|(_, shown)| *shown).collect());
        assert_eq!(
            seconds,
            [Second { begin: (0, 300), end: (200, 500) }, Second { begin: (4_000, 4_000), end: (4_200, 4_200) }]
        );
    }
}
