//! Captures, graphs and their launches.

use super::*;
use crate::cuda::error::check;
use crate::cuda::host::{Event, Stream};
use crate::cuda::runtime::Out;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

fn is_capturing(stream: &Stream) -> bool {
    let mut status = 0;
    let answer = runtime::cudaStreamIsCapturing(stream.handle(), Out::new(&mut status));
    answer == 0 && status != 0
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
    assert!(is_capturing(&origin));
    let of_a = a.clone();
    origin.compute("graph_a", [1; 3], [1; 3], 0, move || _ = of_a.fetch_add(1, Ordering::SeqCst)).unwrap();
    origin.record(&fork).unwrap();
    branch.wait_event(&fork).unwrap();
    assert!(is_capturing(&branch));
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
    assert!(!is_capturing(&origin) && !is_capturing(&branch));
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
    // Not the whole device: that would invalidate what other tests capture.
    first.synchronize().unwrap();
    second.synchronize().unwrap();
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
    assert!(!is_capturing(&branch));

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
