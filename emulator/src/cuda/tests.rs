//! The machine as its users see it: through [`host`], and through the C functions that libnccl
//! calls.

mod graphs;
mod observer;

use super::error::check;
use super::host::{self, Event, Stream};
use super::runtime::Out;
use super::virtual_memory::Properties;
use super::*;
use crate::truth::Line;
use std::ffi::{CStr, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::Duration;

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

/// Memory that is freed is kept until earlier work is done, on all streams of a device. That is
/// nothing the users of these streams asked for.
#[test]
fn a_stream_that_only_keeps_memory_is_done() {
    struct Slow(Arc<AtomicU32>);
    impl Drop for Slow {
        fn drop(&mut self) {
            wait_until(|| self.0.load(Ordering::SeqCst) == 2);
        }
    }
    ready();
    let stream = Stream::create().unwrap();
    let number = Arc::new(AtomicU32::new(0));
    let of_kernel = number.clone();
    let wait = move || wait_until(|| of_kernel.load(Ordering::SeqCst) != 0);
    stream.compute("until_kept", [1; 3], [1; 3], 0, wait).unwrap();
    device::stream(stream.handle()).unwrap().keep(Arc::new(Slow(number.clone())));
    assert!(!stream.query().unwrap());
    number.store(1, Ordering::SeqCst);
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    number.store(2, Ordering::SeqCst);
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
    let mut elapsed = 0.0;
    let mut measure = || check(runtime::cudaEventElapsedTime(Out::new(&mut elapsed), begin.handle(), end.handle()));
    assert_eq!(measure(), Err(Error::NotReady));
    end.synchronize().unwrap();
    measure().unwrap();
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
    check(runtime::cudaDeviceSynchronize()).unwrap();
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
    assert_eq!(device::current().ordinal, 0);
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
