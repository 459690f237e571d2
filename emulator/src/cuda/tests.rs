//! The machine as its users see it: through [`host`], and through the C functions that libnccl
//! calls.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use ::observe::{Activity, ActivityKind, Call, Observer, Resource, ResourceKind};

use super::error::check;
use super::host::{self, Event, Stream};
use super::runtime::Out;
use super::virtual_memory::Properties;
use super::*;
use crate::truth::Line;

/// A kernel that the tests launch as libnccl does, through a buffer of arguments: it adds one to a
/// number.
const ADD_ONE: usize = 0x1000;
/// A kernel that ends once a number is not 0.
const WAIT: usize = 0x2000;
/// NCCL's kernel for one rank, with floats.
const ONE_RANK: usize = 0x3000;
/// NCCL's kernel that reads the timer.
const TIMER: usize = 0x4000;

fn symbol(function: *const c_void) -> Option<String> {
    let name = match function as usize {
        ADD_ONE => "add_one",
        WAIT => "wait",
        ONE_RANK => "_ZN12_GLOBAL__N_113oneRankReduceI13FuncPreMulSumIfEEEvPvS3_mmb",
        TIMER => "_Z33ncclProgressCounterCaptureGpuTimePm",
        _ => return None,
    };
    Some(name.to_owned())
}

struct TestKernels;

impl Kernels for TestKernels {
    fn run(&self, launch: &Launch) -> Ran {
        let start = time::now();
        assert_eq!(launch.arguments.as_ptr() as usize % 16, 0);
        let address = usize::from_ne_bytes(launch.arguments.as_bytes()[..8].try_into().unwrap());
        // SAFETY: the tests pass the address of a number that they keep.
        let number = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        match &*launch.symbol {
            "add_one" => _ = number.fetch_add(1, Ordering::SeqCst),
            _ => wait_until(|| number.load(Ordering::SeqCst) != 0),
        }
        Ran { start, end: time::now(), device_comm: Some(5), ..Ran::default() }
    }

    fn timer(&self, device: u32) -> u64 {
        4242 + u64::from(device)
    }
}

fn truth_file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| std::env::temp_dir().join(format!("emulated-cuda-{}.jsonl", std::process::id())))
}

/// Makes the machine that all tests share.
fn ready() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        let config = Config {
            devices: 4,
            virtual_memory: true,
            peer_access: true,
            launch_latency_ns: 1000,
            ..Config::default()
        };
        install(config, symbol, Box::new(TestKernels), Arc::new(Truth::create(truth_file()).unwrap()));
    });
    host::set_device(0).unwrap();
}

/// The kernels with these names in the truth.
fn kernels_in_truth(name: &str) -> Vec<truth::Kernel> {
    let lines = truth::read(truth_file()).unwrap();
    let kernel = |line| match line {
        Line::Kernel(kernel) if kernel.symbol == name => Some(kernel),
        _ => None,
    };
    lines.into_iter().filter_map(kernel).collect()
}

fn wait_until(mut met: impl FnMut() -> bool) {
    let patience = std::time::Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(std::time::Instant::now() < patience, "it never happened");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The C functions by name, as a libnccl built with CUDA 13 gets them.
fn c_function<F: Copy>(name: &str) -> F {
    c_function_of(name, false)
}

fn c_function_of<F: Copy>(name: &str, cuda_12: bool) -> F {
    let table = runtime_table(|name| cuda_12 && name == "cudaGetDeviceProperties_v2");
    let (_, address) = table.into_iter().find(|(entry, _)| *entry == name).expect(name);
    assert_eq!(size_of::<F>(), size_of::<*const c_void>());
    // SAFETY: the tests ask for each function with its type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// A driver function, found as libnccl finds it.
fn driver_function<F: Copy>(name: &CStr) -> F {
    type Find = unsafe extern "C" fn(*const i8, *mut *const c_void, u32, u64, *mut c_int) -> c_int;
    let find: Find = c_function("cudaGetDriverEntryPointByVersion");
    let (mut address, mut status) = (std::ptr::null(), -1);
    // SAFETY: the places for the results are writable.
    check(unsafe { find(name.as_ptr(), &raw mut address, 12000, 0, &raw mut status) }).unwrap();
    assert_eq!(status, 0);
    // SAFETY: the tests ask for each function with its type.
    unsafe { std::mem::transmute_copy(&address) }
}

type Handle = *mut c_void;
type LaunchEx = unsafe extern "C" fn(*const LaunchConfig, usize, *const c_void, *const *const c_void) -> c_int;

#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_memory: u32,
    stream: Handle,
    attributes: *const LaunchAttribute,
    count: u32,
}

#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [Handle; 8],
}

/// Launches a kernel as libnccl does; it works on a number.
fn launch_like_nccl(function: usize, number: &AtomicU32, stream: Handle, event: Option<&Event>) {
    let launch: LaunchEx = driver_function(c"cuLaunchKernelEx");
    let buffer = number.as_ptr() as usize;
    let bytes = size_of::<usize>();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
    let [pointer, size, end] = [1, 2, 0].map(std::ptr::without_provenance::<c_void>);
    let extra = [pointer, (&raw const buffer).cast(), size, (&raw const bytes).cast(), end];
    let mut value = [std::ptr::null_mut(); 8];
    value[0] = event.map_or(std::ptr::null_mut(), Event::handle);
    let attribute = LaunchAttribute { id: 12, padding: 0, value };
    let config = LaunchConfig {
        grid: [3, 1, 1],
        block: [64, 1, 1],
        shared_memory: 7,
        stream,
        attributes: &raw const attribute,
        count: event.is_some().into(),
    };
    // SAFETY: configuration and arguments are what the function takes, and the number outlives the
    // kernel.
    check(unsafe { launch(&raw const config, function, std::ptr::null(), extra.as_ptr()) }).unwrap();
}

#[test]
fn a_stream_does_things_in_order() {
    ready();
    let stream = Stream::create().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..50 {
        let seen = seen.clone();
        let work = move || seen.lock().unwrap().push(number);
        if number % 2 == 0 {
            stream.compute("in_order", [1; 3], [1; 3], 0, work).unwrap();
        } else {
            stream.host_work(work).unwrap();
        }
    }
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    assert_eq!(*seen.lock().unwrap(), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_compute_kernel_takes_its_time_and_is_in_the_truth() {
    ready();
    let stream = Stream::create().unwrap();
    let before = time::now();
    stream.compute("lasting", [2, 3, 1], [128, 1, 1], 20_000_000, || {}).unwrap();
    assert!(!stream.query().unwrap());
    stream.synchronize().unwrap();
    let [kernel] = &kernels_in_truth("lasting")[..] else { panic!("one kernel") };
    assert!(kernel.end - kernel.start >= 20_000_000);
    assert!(kernel.called >= before && kernel.returned >= kernel.called);
    assert!(kernel.start >= kernel.called + 1000, "a launch takes a while");
    assert_eq!((kernel.grid, kernel.device, kernel.stream), (6, 0, stream.id()));
    assert_eq!(kernel.stream_handle, stream.handle() as u64);
    assert_eq!(kernel.graph, None);
}

#[test]
fn an_event_orders_two_streams() {
    ready();
    //  first  |- slow -| event
    //  second                  wait |- after -|
    let (first, second, event) = (Stream::create().unwrap(), Stream::create().unwrap(), Event::create().unwrap());
    assert!(event.query().unwrap(), "an event that was never recorded is nothing to wait for");
    let number = Arc::new(AtomicU32::new(0));
    let (of_first, of_second) = (number.clone(), number.clone());
    first.compute("slow", [1; 3], [1; 3], 20_000_000, move || of_first.store(1, Ordering::SeqCst)).unwrap();
    first.record(&event).unwrap();
    assert!(!event.query().unwrap());
    second.wait_event(&event).unwrap();
    // Recording it again does not change what the second stream waits for.
    second.host_work(move || _ = of_second.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst)).unwrap();
    first.record(&event).unwrap();
    second.synchronize().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 2);
}

#[test]
fn events_measure_time_and_outlive_their_handles() {
    ready();
    let (stream, begin, end) = (Stream::create().unwrap(), Event::create().unwrap(), Event::create().unwrap());
    stream.record(&begin).unwrap();
    stream.compute("measured", [1; 3], [1; 3], 20_000_000, || {}).unwrap();
    stream.record(&end).unwrap();
    assert_eq!(end.elapsed_ms(&begin), Err(Error::NotReady));
    end.synchronize().unwrap();
    let elapsed = end.elapsed_ms(&begin).unwrap();
    assert!((20.0..2000.0).contains(&elapsed), "{elapsed} ms");
    let (other, event) = (Stream::create().unwrap(), Event::create().unwrap());
    stream.compute("before", [1; 3], [1; 3], 1_000_000, || {}).unwrap();
    stream.record(&event).unwrap();
    other.wait_event(&event).unwrap();
    drop(event);
    other.synchronize().unwrap();
}

#[test]
fn synchronising_a_device_waits_for_all_its_streams() {
    ready();
    host::set_device(2).unwrap();
    let number = Arc::new(AtomicU32::new(0));
    let streams = [Stream::create().unwrap(), Stream::create().unwrap(), Stream::default()];
    for stream in &streams {
        let number = number.clone();
        stream.compute("any", [1; 3], [1; 3], 2_000_000, move || _ = number.fetch_add(1, Ordering::SeqCst)).unwrap();
    }
    host::synchronize_device().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 3);
    assert_eq!(Stream::default().id(), ::observe::DEFAULT_STREAM_ID);
    assert!(streams[0].id() >= 13 && streams[1].id() != streams[0].id());
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    ready();
    let number = Arc::new(AtomicU32::new(0));
    let stream = Stream::create().unwrap();
    let buffer = host::malloc(4096).unwrap();
    let (address, done) = (buffer.address(), number.clone());
    let go = Arc::new(AtomicU32::new(0));
    let gone = go.clone();
    stream.compute("late", [1; 3], [1; 3], 0, move || wait_until(|| gone.load(Ordering::SeqCst) != 0)).unwrap();
    // SAFETY: freed memory stays until the work queued before is done.
    stream.host_work(move || unsafe { (address as *mut u8).write(1) }).unwrap();
    stream.host_work(move || done.store(1, Ordering::SeqCst)).unwrap();
    drop(buffer);
    let handle = stream.handle();
    drop(stream);
    assert_eq!(check(runtime::cudaStreamQuery(handle)), Err(Error::InvalidResourceHandle));
    go.store(1, Ordering::SeqCst);
    wait_until(|| number.load(Ordering::SeqCst) == 1);
}

#[test]
fn pageable_memory_is_read_and_written_before_a_copy_returns() {
    ready();
    let stream = Stream::create().unwrap();
    let buffer = host::malloc(8).unwrap();
    stream.compute("holds_up", [1; 3], [1; 3], 20_000_000, || {}).unwrap();
    let mut number = 7_u64;
    // SAFETY: the source is read during the call, so it may change after; the buffer outlives the
    // copies.
    unsafe { stream.copy(buffer.as_ptr(), (&raw const number).cast(), 8) }.unwrap();
    number = 8;
    assert!(!stream.query().unwrap());
    let mut back = number;
    // SAFETY: the destination is written before the call returns.
    unsafe { stream.copy((&raw mut back).cast(), buffer.as_ptr(), 8) }.unwrap();
    assert_eq!(back, 7);
    // SAFETY: the buffer outlives the work.
    unsafe { stream.set(buffer.as_ptr(), 0xff, 4) }.unwrap();
    // SAFETY: as above.
    unsafe { stream.copy((&raw mut back).cast(), buffer.as_ptr(), 8) }.unwrap();
    assert_eq!(back, 0xffff_ffff);
}

#[test]
fn memory_is_found_by_any_address_in_it() {
    ready();
    // A table for this test alone, so that no other test's memory can take an address that was
    // freed.
    let memory = memory::Memory::default();
    let any = |_| true;
    let address = memory.allocate(10_000, 2, memory::Kind::Device).unwrap();
    let last = memory.find(address.wrapping_byte_add(9_999)).unwrap();
    assert_eq!((last.start, last.bytes, last.device), (address as usize, 10_000, 2));
    assert!(memory.find(address.wrapping_byte_add(10_000)).is_none());
    assert_eq!(memory.free(address.wrapping_byte_add(1), any), Err(Error::InvalidValue));
    assert_eq!(memory.free(address, |kind| kind == memory::Kind::Host), Err(Error::InvalidValue));
    memory.free(address, any).unwrap();
    assert_eq!(memory.free(address, any), Err(Error::InvalidValue));
    assert!(memory.find(address).is_none());
    let own = [0_u8; 100];
    let own = own.as_ptr().cast_mut().cast();
    memory.register(own, 100, 0).unwrap();
    assert_eq!(memory.register(own, 100, 0), Err(Error::HostMemoryAlreadyRegistered));
    memory.unregister(own).unwrap();
    assert_eq!(memory.unregister(own), Err(Error::HostMemoryNotRegistered));
    assert!(host::malloc(0).unwrap().as_ptr().is_null());
    assert_eq!(host::malloc(1 << 40).unwrap_err(), Error::MemoryAllocation);
    // SAFETY: memory that is not CUDA's is not found.
    assert_eq!(check(unsafe { runtime::cudaFree(64 as *mut c_void) }), Err(Error::InvalidValue));
}

#[test]
fn a_graph_of_two_streams_runs_three_times() {
    ready();
    //  origin  A -- record -------- wait -- D        D adds up what both did
    //  branch          wait -- B -- record
    let (origin, branch) = (Stream::create().unwrap(), Stream::create().unwrap());
    let (fork, join) = (Event::create().unwrap(), Event::create().unwrap());
    let (a, b, sum) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    origin.begin_capture().unwrap();
    assert!(origin.is_capturing());
    let of_a = a.clone();
    origin.compute("graph_a", [1; 3], [1; 3], 0, move || _ = of_a.fetch_add(1, Ordering::SeqCst)).unwrap();
    origin.record(&fork).unwrap();
    branch.wait_event(&fork).unwrap();
    assert!(branch.is_capturing());
    let (of_a, of_b) = (a.clone(), b.clone());
    let work = move || _ = of_b.fetch_add(10 * of_a.load(Ordering::SeqCst), Ordering::SeqCst);
    branch.compute("graph_b", [1; 3], [1; 3], 20_000_000, work).unwrap();
    branch.record(&join).unwrap();
    origin.compute("graph_c", [1; 3], [1; 3], 20_000_000, || {}).unwrap();
    origin.wait_event(&join).unwrap();
    let (of_a, of_b, of_sum) = (a.clone(), b.clone(), sum.clone());
    let work = move || of_sum.store(of_a.load(Ordering::SeqCst) + of_b.load(Ordering::SeqCst), Ordering::SeqCst);
    origin.host_work(work).unwrap();
    let graph = origin.end_capture().unwrap();
    assert!(!origin.is_capturing() && !branch.is_capturing());
    assert_eq!(graph.nodes(), 4);
    assert_eq!(a.load(Ordering::SeqCst), 0, "a capture does nothing");

    let exec = graph.instantiate().unwrap();
    drop(graph);
    for replay in 1..=3 {
        exec.launch(&origin).unwrap();
        origin.synchronize().unwrap();
        let b = (1..=replay).map(|a| 10 * a).sum::<u32>();
        assert_eq!(sum.load(Ordering::SeqCst), replay + b);
    }
    drop(exec);

    let all: Vec<Vec<_>> = ["graph_a", "graph_b", "graph_c"].iter().map(|name| kernels_in_truth(name)).collect();
    let mut nodes = HashMap::new();
    for (replay, ((a, b), c)) in all[0].iter().zip(&all[1]).zip(&all[2]).enumerate() {
        assert!(a.end <= b.start && a.end <= c.start);
        assert!(b.start < c.end && c.start < b.end, "branches run side by side");
        assert_eq!((a.correlation, a.stream), (c.correlation, origin.id()));
        assert_ne!((b.stream, b.stream), (origin.id(), branch.id()));
        for kernel in [a, b, c] {
            let place = kernel.graph.unwrap();
            assert_eq!((place.replay, place.node >> 32), (replay as u64, u64::from(place.exec)));
            assert_ne!(place.original_node, place.node);
            let known = *nodes.entry(&kernel.symbol).or_insert(place.node);
            assert_eq!(known, place.node, "a node is the same in all replays");
        }
    }
    assert_eq!(all[0].len(), 3);
    assert_eq!(all[0].iter().map(|kernel| kernel.correlation).collect::<std::collections::HashSet<_>>().len(), 3);
}

#[test]
fn launches_of_one_graph_do_not_overlap_across_streams() {
    ready();
    let (first, second) = (Stream::create().unwrap(), Stream::create().unwrap());
    first.begin_capture().unwrap();
    first.compute("alone", [1; 3], [1; 3], 500_000, || {}).unwrap();
    let exec = first.end_capture().unwrap().instantiate().unwrap();
    for _ in 0..4 {
        exec.launch(&first).unwrap();
        exec.launch(&second).unwrap();
    }
    host::synchronize_device().unwrap();
    let mut kernels = kernels_in_truth("alone");
    kernels.sort_by_key(|kernel| kernel.start);
    assert_eq!(kernels.len(), 8);
    assert!(kernels.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

#[test]
fn two_kernels_of_a_graph_that_wait_for_each_other_do_not_hang() {
    ready();
    // A kernel waits for a kernel of another branch, as those of two communicators in one process
    // may.
    let (origin, branch, fork, join) =
        (Stream::create().unwrap(), Stream::create().unwrap(), Event::create().unwrap(), Event::create().unwrap());
    let number = AtomicU32::new(0);
    origin.begin_capture().unwrap();
    origin.record(&fork).unwrap();
    branch.wait_event(&fork).unwrap();
    launch_like_nccl(WAIT, &number, origin.handle(), None);
    launch_like_nccl(ADD_ONE, &number, branch.handle(), None);
    branch.record(&join).unwrap();
    origin.wait_event(&join).unwrap();
    let exec = origin.end_capture().unwrap().instantiate().unwrap();
    exec.launch(&origin).unwrap();
    origin.synchronize().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 1);
}

#[test]
fn calls_that_cannot_be_captured_invalidate_the_capture() {
    ready();
    let stream = Stream::create().unwrap();
    stream.begin_capture().unwrap();
    assert_eq!(stream.begin_capture(), Err(Error::IllegalState));
    assert_eq!(stream.synchronize(), Err(Error::StreamCaptureUnsupported));
    assert_eq!(stream.host_work(|| {}), Err(Error::StreamCaptureInvalidated));
    assert_eq!(stream.end_capture().unwrap_err(), Error::StreamCaptureInvalidated);
    assert_eq!(stream.end_capture().unwrap_err(), Error::IllegalState);
    stream.synchronize().unwrap();

    // A branch that is not joined.
    let (branch, event) = (Stream::create().unwrap(), Event::create().unwrap());
    stream.begin_capture().unwrap();
    stream.record(&event).unwrap();
    assert_eq!(event.query(), Err(Error::CapturedEvent));
    branch.wait_event(&event).unwrap();
    branch.compute("unjoined", [1; 3], [1; 3], 0, || {}).unwrap();
    assert_eq!(branch.end_capture().unwrap_err(), Error::StreamCaptureUnmatched);
    assert_eq!(stream.end_capture().unwrap_err(), Error::StreamCaptureUnjoined);
    assert!(!branch.is_capturing());

    // A wait for something outside.
    let outside = Event::create().unwrap();
    branch.record(&outside).unwrap();
    stream.begin_capture().unwrap();
    assert_eq!(stream.wait_event(&outside), Err(Error::StreamCaptureIsolation));
    assert_eq!(stream.end_capture().unwrap_err(), Error::StreamCaptureInvalidated);
    assert_eq!(Stream::default().begin_capture(), Err(Error::StreamCaptureUnsupported));
}

/// What libnccl does around a captured kernel: a stream of its own joins without waiting, waits
/// for an event from outside, and ends with a record that nothing waits for.
#[test]
fn libnccls_own_streams_take_part_in_a_capture() {
    ready();
    let (user, own, live) = (Stream::create().unwrap(), Stream::create().unwrap(), Stream::create().unwrap());
    let (serial, scratch, launched) = (Event::create().unwrap(), Event::create().unwrap(), Event::create().unwrap());
    let number = AtomicU32::new(0);
    live.record(&serial).unwrap();
    user.begin_capture().unwrap();
    user.record(&scratch).unwrap();
    own.wait_event(&scratch).unwrap();
    let update = |stream: &Stream, nodes: &[usize]| {
        let (first, count) = (nodes.as_ptr(), nodes.len());
        // SAFETY: there are as many nodes as it is told.
        check(unsafe {
            runtime::cudaStreamUpdateCaptureDependencies(stream.handle(), first, std::ptr::null(), count, 1)
        })
    };
    update(&own, &[]).unwrap();
    check(runtime::cudaStreamWaitEvent(own.handle(), serial.handle(), 1)).unwrap();
    own.record(&scratch).unwrap();
    user.wait_event(&scratch).unwrap();
    launch_like_nccl(ADD_ONE, &number, user.handle(), Some(&launched));

    // A stream that waits only for the kernel's beginning: its frontier cannot be given without the
    // edges.
    let order = Stream::create().unwrap();
    order.wait_event(&launched).unwrap();
    let info = |stream: &Stream, edges: Out<_>| {
        let (mut status, mut graph, mut nodes, mut count) = (0, std::ptr::null_mut(), std::ptr::null(), 0);
        let (of_status, of_graph, of_nodes) = (Out::new(&mut status), Out::new(&mut graph), Out::new(&mut nodes));
        let (stream, of_count) = (stream.handle(), Out::new(&mut count));
        let id = Out::none();
        check(runtime::cudaStreamGetCaptureInfo(stream, of_status, id, of_graph, of_nodes, edges, of_count))?;
        Ok((status, graph, nodes, count))
    };
    assert_eq!(info(&order, Out::none()), Err(Error::LossyQuery));
    let mut edges = std::ptr::null();
    let (status, .., count) = info(&order, Out::new(&mut edges)).unwrap();
    // SAFETY: the edges stay until the next query.
    let edge: [u8; 8] = unsafe { *edges };
    assert_eq!((status, count, edge[0], edge[2]), (1, 1, 2, 1));
    update(&order, &[]).unwrap();

    user.record(&scratch).unwrap();
    own.wait_event(&scratch).unwrap();
    let (_, graph, nodes, count) = info(&own, Out::new(&mut edges)).unwrap();
    assert_eq!(count, 2, "the wait from outside and the kernel");
    let mut record = std::ptr::null_mut();
    // SAFETY: there are as many nodes as the calls are told.
    unsafe {
        let (place, none) = (Out::new(&mut record), std::ptr::null());
        check(runtime::cudaGraphAddEventRecordNode(place, graph, none, 0, serial.handle())).unwrap();
        let record = record as usize;
        for index in 0..count {
            let (from, to) = (nodes.add(index), &raw const record);
            check(runtime::cudaGraphAddDependencies(graph, from, to, std::ptr::null(), 1)).unwrap();
        }
        update(&own, &[record]).unwrap();
    }
    let graph = user.end_capture().unwrap();
    assert_eq!(graph.nodes(), 3);
    let exec = graph.instantiate().unwrap();
    let before = time::now();
    exec.launch(&user).unwrap();
    // The event stands for the record in the graph, so work outside of the graph waits for the
    // replay.
    live.wait_event(&serial).unwrap();
    live.synchronize().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 1);
    assert!(time::now() > before && serial.query().unwrap());
}

/// NCCL 2.23 and 2.24 build their part of the graph by hand, on CUDA 12.
#[test]
fn a_graph_is_built_by_hand() {
    ready();
    type Add<P> = unsafe extern "C" fn(*mut Handle, Handle, *const Handle, usize, P) -> c_int;
    type Info =
        unsafe extern "C" fn(Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut usize) -> c_int;
    type Update = unsafe extern "C" fn(Handle, *const Handle, usize, u32) -> c_int;
    #[repr(C)]
    struct HostNode {
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    }
    unsafe extern "C" fn add_ten(data: *mut c_void) {
        // SAFETY: the test passes a number.
        unsafe { &*data.cast::<AtomicU32>() }.fetch_add(10, Ordering::SeqCst);
    }
    let info: Info = c_function_of("cudaStreamGetCaptureInfo_v2", true);
    let update: Update = c_function_of("cudaStreamUpdateCaptureDependencies", true);
    let add_host: Add<*const HostNode> = c_function_of("cudaGraphAddHostNode", true);
    let add_wait: Add<Handle> = c_function_of("cudaGraphAddEventWaitNode", true);
    let add_record: Add<Handle> = c_function_of("cudaGraphAddEventRecordNode", true);
    let (stream, event) = (Stream::create().unwrap(), Event::create().unwrap());
    let number = Arc::new(AtomicU32::new(0));
    stream.begin_capture().unwrap();
    let (mut status, mut id, mut graph, mut tip) = (0, 0, std::ptr::null_mut(), std::ptr::null_mut());
    let node = HostNode { function: add_ten, data: Arc::as_ptr(&number).cast_mut().cast() };
    let null: *mut c_void = std::ptr::null_mut();
    // SAFETY: the handles are alive, the places for results writable, and the number outlives the
    // graph.
    unsafe {
        check(info(stream.handle(), &raw mut status, &raw mut id, &raw mut graph, std::ptr::null_mut(), null.cast()))
            .unwrap();
        check(add_wait(&raw mut tip, graph, std::ptr::null(), 0, event.handle())).unwrap();
        check(add_host(&raw mut tip, graph, &raw const tip, 1, &raw const node)).unwrap();
        check(update(stream.handle(), &raw const tip, 1, 1)).unwrap();
        check(add_record(&raw mut tip, graph, &raw const tip, 1, event.handle())).unwrap();
    }
    launch_like_nccl(ADD_ONE, &number, stream.handle(), None);
    let exec = stream.end_capture().unwrap().instantiate().unwrap();
    for _ in 0..2 {
        exec.launch(&stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(number.load(Ordering::SeqCst), 22);
    event.synchronize().unwrap();
}

#[test]
fn a_user_object_is_destroyed_with_the_last_graph_that_holds_it() {
    ready();
    static DESTROYED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn destroy(object: *mut c_void) {
        assert_eq!(object as usize, 77);
        DESTROYED.fetch_add(1, Ordering::SeqCst);
    }
    let stream = Stream::create().unwrap();
    // An event that the graph holds and that stands for a point in its capture keeps nothing
    // alive.
    let event = Event::create().unwrap();
    stream.record(&event).unwrap();
    stream.begin_capture().unwrap();
    check(runtime::cudaStreamWaitEvent(stream.handle(), event.handle(), 1)).unwrap();
    stream.compute("with_object", [1; 3], [1; 3], 20_000_000, || {}).unwrap();
    stream.record(&event).unwrap();
    let graph = stream.end_capture().unwrap();
    let mut object = std::ptr::null_mut();
    let (place, made) = (Out::new(&mut object), 77 as *mut c_void);
    // SAFETY: the object is only counted.
    check(unsafe { runtime::cudaUserObjectCreate(place, made, Some(destroy), 1, 1) }).unwrap();
    let retain = || check(runtime::cudaGraphRetainUserObject(graph.handle(), object, 1, 1));
    retain().unwrap();
    assert_eq!(retain(), Err(Error::InvalidValue), "it was moved");
    let exec = graph.instantiate().unwrap();
    drop(graph);
    exec.launch(&stream).unwrap();
    drop(exec);
    assert_eq!(DESTROYED.load(Ordering::SeqCst), 0, "a launch still runs");
    stream.synchronize().unwrap();
    wait_until(|| DESTROYED.load(Ordering::SeqCst) == 1);
}

#[test]
fn virtual_memory_is_mapped_twice_and_shared() {
    ready();
    const SIZE: usize = 4 << 20;
    // Pinned, a file descriptor to share, on device 3.
    let properties = Properties { kind: 1, handle_types: 1, location_type: 1, location: 3, metadata: 0, flags: [0; 8] };
    let (mut handle, mut imported, mut again, mut descriptor) = (0, 0, 0, -1);
    let (mut first, mut second) = (std::ptr::null_mut(), std::ptr::null_mut());
    check(driver::cuMemCreate(Out::new(&mut handle), SIZE, Some(&properties), 0)).unwrap();
    check(driver::cuMemAddressReserve(Out::new(&mut first), SIZE, 0, 0, 0)).unwrap();
    check(driver::cuMemAddressReserve(Out::new(&mut second), 2 * SIZE, 8 << 20, 0, 0)).unwrap();
    assert_eq!(second as usize % (8 << 20), 0);
    check(driver::cuMemExportToShareableHandle(Out::new(&mut descriptor), handle, 1, 0)).unwrap();
    // SAFETY: what is written to is mapped, and the descriptor is open until it is closed.
    unsafe {
        let half = second.byte_add(SIZE);
        check(driver::cuMemMap(first, SIZE, 0, handle, 0)).unwrap();
        let open = descriptor as usize as *mut c_void;
        check(driver::cuMemImportFromShareableHandle(Out::new(&mut imported), open, 1)).unwrap();
        libc::close(descriptor);
        check(driver::cuMemMap(half, SIZE, 0, imported, 0)).unwrap();
        assert!(driver::cuMemMap(half, 2 * SIZE, 0, imported, 0) != 0, "more than there is");
        first.cast::<u8>().add(12345).write(9);
        assert_eq!(half.cast::<u8>().add(12345).read(), 9);
        assert_eq!(machine().memory.find(first.byte_add(1)).unwrap().device, 3);
        check(driver::cuMemRetainAllocationHandle(Out::new(&mut again), first)).unwrap();
        assert_eq!(again, handle);
        for handle in [handle, again, imported] {
            check(driver::cuMemRelease(handle)).unwrap();
        }
        assert_eq!(check(driver::cuMemRelease(handle)), Err(Error::InvalidValue));
        first.cast::<u8>().write(1);
        check(driver::cuMemUnmap(first, SIZE)).unwrap();
        assert!(machine().memory.find(first).is_none());
        check(driver::cuMemUnmap(half, SIZE)).unwrap();
        check(driver::cuMemAddressFree(first, SIZE)).unwrap();
        check(driver::cuMemAddressFree(second, 2 * SIZE)).unwrap();
    }
}

#[test]
fn memory_is_opened_by_its_handle() {
    ready();
    let buffer = host::malloc(8192).unwrap();
    let (mut handle, mut address) = (std::mem::MaybeUninit::uninit(), std::ptr::null_mut());
    // SAFETY: the handle is written before it is used, and what is written to is mapped.
    unsafe {
        check(runtime::cudaIpcGetMemHandle(Out::new(&mut handle).cast(), buffer.as_ptr())).unwrap();
        check(runtime::cudaIpcOpenMemHandle(Out::new(&mut address), handle.assume_init(), 1)).unwrap();
        address.cast::<u32>().write(5);
        assert_eq!(buffer.as_ptr().cast::<u32>().read(), 5);
        check(runtime::cudaIpcCloseMemHandle(address)).unwrap();
    }
}

#[test]
fn a_stream_waits_for_a_value_in_memory() {
    ready();
    let (waits, writes, buffer) = (Stream::create().unwrap(), Stream::create().unwrap(), host::malloc(8).unwrap());
    let (first, second) = (buffer.address() as usize, buffer.address() as usize + 4);
    // SAFETY: the buffer outlives the work.
    let wait = |at, value, how| check(unsafe { driver::cuStreamWaitValue32(waits.handle(), at, value, how) });
    // SAFETY: as above.
    let write = |by: &Stream, at, value| check(unsafe { driver::cuStreamWriteValue32(by.handle(), at, value, 0) });
    // At least 3, then exactly 4.
    wait(first, 3, 0).unwrap();
    write(&waits, second, 1).unwrap();
    wait(first, 4, 1).unwrap();
    assert!(!waits.query().unwrap());
    write(&writes, first, 5).unwrap();
    // SAFETY: as above.
    wait_until(|| unsafe { AtomicU32::from_ptr(second as *mut u32) }.load(Ordering::SeqCst) == 1);
    assert!(!waits.query().unwrap());
    write(&writes, first, 4).unwrap();
    waits.synchronize().unwrap();
    assert_eq!(wait(first + 1, 4, 1), Err(Error::InvalidValue));
}

#[test]
fn nccls_kernels_for_one_rank_and_for_the_timer_run() {
    ready();
    // A dim3 is passed in registers like a structure of three numbers, not like an array.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Dim3([u32; 3]);
    type LaunchKernel = unsafe extern "C" fn(usize, Dim3, Dim3, *const *const c_void, usize, Handle) -> c_int;
    let launch: LaunchKernel = c_function("cudaLaunchKernel");
    let (stream, buffer) = (Stream::create().unwrap(), host::malloc(64).unwrap());
    let numbers = buffer.as_ptr().cast::<f32>();
    let (to, from) = (buffer.address(), buffer.address() + 32);
    let (count, scalar, at_address) = (5_usize, u64::from(0.5_f32.to_bits()), false);
    let arguments: [*const c_void; 5] = [
        (&raw const to).cast(),
        (&raw const from).cast(),
        (&raw const count).cast(),
        (&raw const scalar).cast(),
        (&raw const at_address).cast(),
    ];
    let timer = buffer.address() + 24;
    let timer_arguments: [*const c_void; 1] = [(&raw const timer).cast()];
    // SAFETY: the buffer outlives the kernels, and the arguments are theirs.
    unsafe {
        for index in 0..8 {
            numbers.add(8 + index).write(index as f32);
        }
        let one = Dim3([1; 3]);
        check(launch(ONE_RANK, one, one, arguments.as_ptr(), 0, stream.handle())).unwrap();
        check(launch(TIMER, one, one, timer_arguments.as_ptr(), 0, stream.handle())).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(std::slice::from_raw_parts(numbers, 5), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!((timer as *const u64).read(), 4242);
        let unknown = launch(0x9999, one, one, arguments.as_ptr(), 0, stream.handle());
        assert_eq!(check(unknown), Err(Error::InvalidDeviceFunction));
    }
}

#[test]
fn devices_are_told_apart() {
    ready();
    let bus: unsafe extern "C" fn(*mut i8, c_int, c_int) -> c_int = c_function("cudaDeviceGetPCIBusId");
    let by_bus: unsafe extern "C" fn(*mut c_int, *const i8) -> c_int = c_function("cudaDeviceGetByPCIBusId");
    let last_error: unsafe extern "C" fn() -> c_int = c_function("cudaGetLastError");
    let text: unsafe extern "C" fn(c_int) -> *const i8 = c_function("cudaGetErrorString");
    let properties: unsafe extern "C" fn(*mut [u8; 1024], c_int) -> c_int = c_function("cudaGetDeviceProperties");
    let (mut id, mut ordinal, mut bytes) = ([0; 16], -1, [0_u8; 1024]);
    // SAFETY: the places for the results are long enough.
    unsafe {
        check(bus(id.as_mut_ptr(), 16, 3)).unwrap();
        assert_eq!(CStr::from_ptr(id.as_ptr()), c"0000:a3:00.0");
        check(by_bus(&raw mut ordinal, id.as_ptr())).unwrap();
        assert_eq!(ordinal, 3);
        assert_eq!(check(by_bus(&raw mut ordinal, c"0000:a4:00.0".as_ptr())), Err(Error::InvalidValue));
        assert_eq!((last_error(), last_error()), (1, 0));
        assert_eq!(CStr::from_ptr(text(700 + 4)), c"peer access is already enabled");
        check(properties(&raw mut bytes, 1)).unwrap();
    }
    assert_eq!(bytes[360..368], [8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host::set_device(4), Err(Error::InvalidDevice));
    assert_eq!(host::device(), 0);
}

/// What the observer was told, and on which thread.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Call { function: String, exits: bool, correlation: u32, symbol: Option<String>, at: u64 },
    Resource { kind: ResourceKind, node: u64, stream: usize, graph: u32 },
    Queued { name: Option<String>, correlation: u32, node: u64 },
    Activity { name: Option<String>, correlation: u32, node: u64, kind: ActivityKind, stream: u32, bytes: u64 },
}

static TOLD: Mutex<Vec<(u32, Told)>> = Mutex::new(Vec::new());

fn told() -> MutexGuard<'static, Vec<(u32, Told)>> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(from: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: null or a C string, during the call.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_str().unwrap().to_owned())
}

unsafe extern "C" fn on_call(call: *const Call) {
    // SAFETY: the machine passes a call.
    let call = unsafe { &*call };
    let (function, symbol) = (text(call.function).unwrap(), text(call.symbol));
    let told_call = Told::Call { function, exits: call.exits != 0, correlation: call.correlation, symbol, at: call.at };
    told().push((threads::id(), told_call));
}

unsafe extern "C" fn on_resource(resource: *const Resource) {
    // SAFETY: the machine passes a resource.
    let of = unsafe { &*resource };
    assert!(of.context_id > 0 && !of.context.is_null());
    let resource = Told::Resource { kind: of.kind, node: of.node_id, stream: of.stream as usize, graph: of.graph_id };
    told().push((threads::id(), resource));
}

unsafe extern "C" fn on_queued(activity: *const Activity) {
    // SAFETY: the machine passes an activity.
    let of = unsafe { &*activity };
    assert_eq!((of.start, of.end), (0, 0));
    told().push((threads::id(), Told::Queued { name: text(of.name), correlation: of.correlation, node: of.node_id }));
}

unsafe extern "C" fn on_activity(activity: *const Activity) {
    // SAFETY: the machine passes an activity.
    let of = unsafe { &*activity };
    assert!(of.start > 0 && of.end >= of.start);
    let activity = Told::Activity {
        name: text(of.name),
        correlation: of.correlation,
        node: of.node_id,
        kind: of.kind,
        stream: of.stream_id,
        bytes: of.bytes,
    };
    told().push((threads::id(), activity));
}

static OBSERVER: Observer = Observer { call: on_call, resource: on_resource, queued: on_queued, activity: on_activity };

impl Told {
    fn is_call(&self, wanted: &str, end: bool) -> bool {
        matches!(self, Told::Call { function, exits, .. } if function == wanted && *exits == end)
    }

    fn is_stream(&self, wanted: ResourceKind, handle: usize) -> bool {
        matches!(self, Told::Resource { kind, stream, .. } if *kind == wanted && *stream == handle)
    }

    fn correlation(&self) -> Option<u32> {
        match self {
            Told::Call { correlation, .. } | Told::Queued { correlation, .. } | Told::Activity { correlation, .. } => {
                Some(*correlation)
            }
            Told::Resource { .. } => None,
        }
    }
}

#[test]
fn an_observer_is_told_everything_in_order() {
    ready();
    // It exists before the observer attaches, so the observer is told of it then.
    let early = Stream::create().unwrap();
    // SAFETY: the observer is a static.
    let table = unsafe { observe::ncclscope_emulator_attach(&raw const OBSERVER).as_ref() }.unwrap();
    let own = threads::id();
    let handle = early.handle() as usize;
    let mine = || told().iter().filter(|(thread, _)| *thread == own).map(|(_, told)| told.clone()).collect::<Vec<_>>();
    assert!(matches!(mine()[0], Told::Resource { kind: ResourceKind::ContextCreated, .. }));
    assert!(mine().iter().any(|told| told.is_stream(ResourceKind::StreamCreated, handle)));
    assert_eq!(((table.devices)(), (table.current_device)()), (4, 0));
    assert!(!(table.current_context)().is_null());
    let mut gpu = std::mem::MaybeUninit::uninit();
    assert!((table.describe)(3, gpu.as_mut_ptr()) && !(table.describe)(4, gpu.as_mut_ptr()));

    // A launch outside of graphs, as libnccl makes it.
    told().clear();
    let number = AtomicU32::new(0);
    launch_like_nccl(ADD_ONE, &number, early.handle(), None);
    early.synchronize().unwrap();
    let calls = mine();
    let launch = calls.iter().position(|told| told.is_call("cuLaunchKernelEx", false));
    let calls = &calls[launch.unwrap()..];
    let Told::Call { exits: false, correlation, symbol: Some(symbol), at: entered, .. } = &calls[0] else { panic!() };
    assert_eq!(symbol, "add_one");
    let queued = Told::Queued { name: Some("add_one".to_owned()), correlation: *correlation, node: 0 };
    assert_eq!(calls[1], queued);
    let Told::Call { function, exits: true, correlation: same, at: left, .. } = &calls[2] else { panic!() };
    assert_eq!((function.as_str(), same), ("cuLaunchKernelEx", correlation));
    assert!(left >= entered);
    let activity = |told: &Told| match told {
        Told::Activity { kind, stream, .. } if told.correlation() == Some(*correlation) => Some((*kind, *stream)),
        _ => None,
    };
    let activities: Vec<_> = told().iter().filter_map(|(_, told)| activity(told)).collect();
    assert_eq!(activities, [(ActivityKind::Kernel, early.id())]);

    // A capture: nodes are reported within the call that makes them, clones before the executable
    // graph.
    told().clear();
    let buffer = host::malloc(256).unwrap();
    early.begin_capture().unwrap();
    launch_like_nccl(ADD_ONE, &number, early.handle(), None);
    // SAFETY: the buffer outlives the graph.
    unsafe { early.set(buffer.as_ptr(), 1, 256) }.unwrap();
    early.host_work(|| {}).unwrap();
    let graph = early.end_capture().unwrap();
    let exec = graph.instantiate().unwrap();
    let resources = |all: &[Told]| -> Vec<(ResourceKind, u64)> {
        let resource = |told: &Told| match told {
            Told::Resource { kind, node, .. } => Some((*kind, *node)),
            _ => None,
        };
        all.iter().filter_map(resource).collect()
    };
    let all = mine();
    let kinds: Vec<_> = resources(&all).iter().map(|(kind, _)| *kind).collect();
    use ResourceKind::*;
    assert_eq!(kinds, [GraphCreated, NodeCreated, NodeCreated, GraphCloned, NodeCloned, NodeCloned, GraphInstantiated]);
    let node = all.iter().position(|told| matches!(told, Told::Resource { kind: NodeCreated, .. })).unwrap();
    assert!(all[node - 1].is_call("cuLaunchKernelEx", false));
    assert!(all[node + 1].is_call("cuLaunchKernelEx", true));
    assert!(!all.iter().any(|told| matches!(told, Told::Queued { .. })), "nothing runs yet");

    // A launch of the graph: the driver's call is within the runtime's, with the same id. Each
    // node is announced, then done.
    told().clear();
    exec.launch(&early).unwrap();
    early.synchronize().unwrap();
    let all = mine();
    let correlation = all[0].correlation();
    assert!(all[0].is_call("cudaGraphLaunch", false) && all[1].is_call("cuGraphLaunch", false));
    assert_eq!(all[1].correlation(), correlation);
    let of_launch = |told: &&Told| told.correlation() == correlation;
    let announced = |told: &Told| if let Told::Queued { node, .. } = told { Some(*node) } else { None };
    let announced: Vec<_> = all.iter().filter(of_launch).filter_map(announced).collect();
    let done = |told: &Told| match told {
        Told::Activity { node, kind, bytes, .. } => Some((*node, *kind, *bytes)),
        _ => None,
    };
    let done: Vec<_> = told().iter().map(|(_, told)| told).filter(of_launch).filter_map(done).collect();
    assert_eq!(announced, done.iter().map(|(node, _, _)| *node).collect::<Vec<_>>());
    assert_eq!((done[0].1, done[1].1, done[1].2), (ActivityKind::Kernel, ActivityKind::Memset, 256));
    assert_eq!(done[0].0 >> 32, done[1].0 >> 32);

    told().clear();
    drop(exec);
    drop(graph);
    let kinds: Vec<_> = resources(&mine()).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        kinds,
        [ExecDestroyed, NodeDestroyed, NodeDestroyed, GraphDestroyed, NodeDestroyed, NodeDestroyed, GraphDestroyed]
    );
    drop(early);
    assert!(mine().iter().any(|told| told.is_stream(StreamDestroyed, handle)));
}

#[test]
fn correlation_ids_are_unique() {
    ready();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                let stream = Stream::create().unwrap();
                for _ in 0..100 {
                    stream.compute("correlated", [1; 3], [1; 3], 0, || {}).unwrap();
                }
                stream.synchronize().unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let kernels = kernels_in_truth("correlated");
    let ids: std::collections::HashSet<u32> = kernels.iter().map(|kernel| kernel.correlation).collect();
    assert_eq!((kernels.len(), ids.len()), (400, 400));
    assert!(kernels.iter().all(|kernel| kernel.returned >= kernel.called && kernel.called > 0));
}

#[test]
fn the_emulators_threads_have_a_name_and_no_signals() {
    ready();
    let (stream, seen) = (Stream::create().unwrap(), Arc::new(AtomicU64::new(0)));
    let sight = seen.clone();
    let work = move || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
        assert_eq!(std::thread::current().name(), Some("emulated gpu"));
        sight.store(u64::from_str_radix(blocked, 16).unwrap(), Ordering::SeqCst);
    };
    stream.host_work(work).unwrap();
    stream.synchronize().unwrap();
    // SIGINT, SIGTERM, SIGUSR1 and SIGCHLD among them.
    let signals = 1 << 1 | 1 << 14 | 1 << 9 | 1 << 16;
    assert_eq!(seen.load(Ordering::SeqCst) & signals, signals);
}
