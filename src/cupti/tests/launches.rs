//! Launches that CUPTI's callbacks report, and what takes their place where CUPTI refuses callbacks
//! or gives their records to another tool.

use bytemuck::Zeroable;

use super::fake::fresh;
use super::*;
use crate::model::event::{Body, KernelLaunch, MAX_WORDS, Record};
use crate::model::ids::{Handle, ProcessTag};
use crate::record::ring::{self, Rings};

/// Calls the callback as CUPTI does.
fn event<T>(domain: u32, id: u32, data: &T) {
    // SAFETY: the structure that belongs to the domain and the id.
    unsafe { callbacks::on_event(std::ptr::null_mut(), domain, id, std::ptr::from_ref(data).cast()) };
}

fn launch(site: u32, id: u32, correlation: u32, symbol: &CString) {
    let data = cupti::CUpti_CallbackData {
        callbackSite: site,
        functionName: c"cuLaunchKernelEx".as_ptr(),
        functionParams: std::ptr::null(),
        functionReturnValue: std::ptr::null_mut(),
        symbolName: symbol.as_ptr(),
        context: std::ptr::null_mut(),
        contextUid: 1,
        correlationData: std::ptr::null_mut(),
        correlationId: correlation,
    };
    event(1, id, &data);
}

fn node(id: u32, node: usize, original: usize) {
    let mut graph = cupti::CUpti_GraphData {
        graph: std::ptr::null_mut(),
        originalGraph: std::ptr::null_mut(),
        node: std::ptr::without_provenance_mut(node),
        originalNode: std::ptr::without_provenance_mut(original),
        nodeType: 0,
        dependency: std::ptr::null_mut(),
        graphExec: std::ptr::null_mut(),
    };
    let data = cupti::CUpti_ResourceData {
        context: std::ptr::null_mut(),
        resourceHandle: cupti::CUpti_ResourceData__bindgen_ty_1 { stream: std::ptr::null_mut() },
        resourceDescriptor: (&raw mut graph).cast(),
    };
    event(3, id, &data);
}

#[test]
fn launches_and_nodes_are_recorded_on_the_thread_that_makes_them() {
    let _one = fresh(28, &[]);
    let (cupti, mut reader) = start(&options()).unwrap();
    let nccl = CString::new("_Z41ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgs").unwrap();
    let other = CString::new("_Z6vecAddPKfS0_Pfi").unwrap();
    // The recorder stays on, and its rings may be from another test. A thread of its own gets its
    // own ring.
    let rings = recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let (opened, launches, nodes) = std::thread::spawn(move || {
        launch(0, 652, 2, &other);
        launch(0, 652, 3, &nccl);
        // Not recorded: the end of a call, another function, a node outside a launch.
        launch(1, 652, 3, &nccl);
        launch(0, 514, 4, &nccl);
        node(13, 0x100, 0);
        node(20, 0x200, 0x100);
        launch(0, 307, 5, &nccl);
        let opened = start_launch();
        launch(0, 653, 6, &other);
        node(13, 0x300, 0);
        recorder::stop(opened);
        launch(0, 442, 7, &other);
        node(20, 0x400, 0x300);
        event(
            3,
            13,
            &cupti::CUpti_ResourceData {
                context: std::ptr::null_mut(),
                resourceHandle: cupti::CUpti_ResourceData__bindgen_ty_1 { stream: std::ptr::null_mut() },
                resourceDescriptor: std::ptr::null_mut(),
            },
        );
        // SAFETY: the pointer is checked for null first.
        unsafe { callbacks::on_event(std::ptr::null_mut(), 1, 307, std::ptr::null()) };
        let is_ours = |reader: &mut ring::Reader| {
            // A thread's first record names it.
            reader.peek(rings).is_some_and(|(header, _)| (header >> 32) as i32 == sys::thread_id())
        };
        let mut ours = (0..rings.used_slots())
            .map(ring::Reader::new)
            .find_map(|mut reader| is_ours(&mut reader).then_some(reader))
            .unwrap();
        let (mut launches, mut nodes) = (Vec::new(), Vec::new());
        let mut buffer = [0; MAX_WORDS];
        // The few records fit into one segment, so nothing is given back.
        while ours.peek(rings).is_some() {
            match Record::decode(ours.read(rings, &mut buffer)).unwrap().body {
                Body::Launch { correlation, nccl, launch, .. } => launches.push((correlation, nccl, launch)),
                Body::GraphNode { node, original, launch } => nodes.push((node, original, launch)),
                _ => {}
            }
        }
        (opened, launches, nodes)
    })
    .join()
    .unwrap();
    assert_eq!(launches, [(3, true, Handle::NONE), (5, true, Handle::NONE), (6, false, opened)]);
    assert_eq!(nodes, [(0x300, 0, opened), (0x400, 0x300, Handle::NONE)]);

    // CUPTI's own failure is reported once, as CUPTI reported it.
    let notification = cupti::CUpti_StateData__bindgen_ty_1__bindgen_ty_1 { result: 35, message: std::ptr::null() };
    let state = cupti::CUpti_StateData { __bindgen_anon_1: cupti::CUpti_StateData__bindgen_ty_1 { notification } };
    let before = reader.losses().failures;
    event(6, 1, &state);
    reader.drain();
    assert_eq!(reader.losses().failures, before + 1);
    let notes = reader.take_notes();
    assert!(notes[0].text.contains("INSUFFICIENT_PRIVILEGES (35); there will be no more kernels, unless"), "{notes:?}");
    assert_eq!(reader.take_notes(), []);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(recorder::panics(), 0);
}

/// Starts a KernelLaunch on this thread.
fn start_launch() -> Handle {
    recorder::start(Handle::NONE, Handle::NONE, 0, &KernelLaunch::zeroed())
}

#[test]
fn without_launch_callbacks_an_id_is_pushed_around_launches() {
    const REFUSED: [(&str, u32); 4] =
        [("callback(1 1/307)", 14), ("callback(1 1/442)", 14), ("callback(1 1/652)", 14), ("callback(1 1/653)", 14)];
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    // With callbacks, even only one of them, a launch calls nothing.
    for answers in [&[][..], &REFUSED[1..]] {
        let _one = fresh(28, answers);
        let (cupti, _reader) = start(&options()).unwrap();
        assert_eq!(calls().last().unwrap(), "enable(17)");
        recorder::stop(start_launch());
        assert_eq!(calls(), [""; 0]);
        assert!(cupti.release(Duration::from_secs(10)));
    }
    let _one = fresh(28, &REFUSED);
    let (cupti, mut reader) = start(&options()).unwrap();
    assert!(calls().ends_with(&["enable(17)", "enable(39)", "enable(4)"].map(str::to_owned)));
    let (push, pop) = (|launch: Handle| format!("push(5 {})", launch.0), "pop(5)");
    // Once per launch, also if it is stopped twice, on another thread, or never.
    let first = start_launch();
    assert!(recorder::is_ours(first));
    assert_eq!(calls(), [push(first)]);
    recorder::stop(Handle(first.0 + 1));
    assert_eq!(calls(), [""; 0]);
    recorder::stop(first);
    recorder::stop(first);
    assert_eq!(calls(), [pop]);
    let never = start_launch();
    std::thread::spawn(move || recorder::stop(never)).join().unwrap();
    let next = start_launch();
    recorder::stop(next);
    assert_eq!(calls(), [push(never), pop.to_owned(), push(next), pop.to_owned()]);
    // An id that was not pushed is not popped, and is counted.
    let lost = recorder::lost_launches();
    fake(|fake| fake.answers.insert("push".into(), 7));
    let refused = start_launch();
    recorder::stop(refused);
    assert_eq!((calls(), recorder::lost_launches()), (vec![push(refused)], lost + 1));
    fake(|fake| fake.answers.remove("push"));
    // Ids come back as they were pushed; others belong to another tool.
    let id = |kind: u32, id: u64, correlation: u32| {
        type Of = table::ExternalCorrelation;
        let record = Written::new(28, cupti::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
        let record = record.with(Of::EXTERNAL_KIND, &kind.to_ne_bytes()).with(Of::EXTERNAL_ID, &id.to_ne_bytes());
        record.with(Of::CORRELATION_ID, &correlation.to_ne_bytes()).bytes
    };
    let driver = Written::new(28, cupti::CUPTI_ACTIVITY_KIND_DRIVER).bytes;
    let before = reader.losses();
    let records = [id(3, 1, 76), id(5, next.0, 77), driver].concat();
    assert_eq!(reader.flushed(&cupti, records), [Activity::ExternalId { id: next, correlation: 77 }]);
    let losses = reader.losses();
    assert_eq!((losses.other_kinds - before.other_kinds, losses.implausible - before.implausible), (1, 0));
    // Given up during a launch, CUPTI keeps no id; from then on nothing is called.
    let open = start_launch();
    assert!(cupti.release(Duration::from_secs(10)));
    calls();
    recorder::stop(open);
    recorder::stop(start_launch());
    assert_eq!(calls(), [pop]);
    // The same if the recording ends during a launch.
    let (cupti, _reader) = start(&options()).unwrap();
    let open = start_launch();
    calls();
    recorder::stop_unrecorded(Handle(open.0 + 1));
    recorder::stop_unrecorded(open);
    recorder::stop_unrecorded(open);
    assert_eq!(calls(), [pop]);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn kernels_are_recorded_without_callbacks_and_ids() {
    let _one = fresh(28, &[("callback", 14), ("enable(4)", 14)]);
    let (cupti, _reader) = start(&options()).unwrap();
    assert!(cupti.facts().refused.ends_with(&["driver calls: NOT_COMPATIBLE (14)".to_owned()]));
    calls();
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    recorder::stop(start_launch());
    assert_eq!(calls(), [""; 0]);
    assert!(cupti.release(Duration::from_secs(10)));
}

/// A whole launch on this thread, as CUPTI reports it, that succeeds or not.
fn whole_launch(succeeds: bool) {
    let mut result = u32::from(!succeeds);
    for site in [cupti::CUPTI_API_ENTER, cupti::CUPTI_API_EXIT] {
        // SAFETY: a C structure of numbers and pointers.
        let mut data: cupti::CUpti_CallbackData = unsafe { std::mem::zeroed() };
        data.callbackSite = site;
        data.functionReturnValue = (&raw mut result).cast();
        event(1, 652, &data);
    }
}

#[test]
fn a_cupti_that_gives_its_records_to_another_tool_counts_as_silent() {
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let _one = fresh(28, &[]);
    let (mut cupti, mut reader) = start(&options()).unwrap();
    let silent = |change: Option<Change>| match change {
        Some(Change::Silent(silence)) => silence.launches,
        other => panic!("{other:?}"),
    };
    let name = CString::new("kernel").unwrap();
    let record = || {
        let wall = sys::realtime_ns();
        fake(|fake| fake.records = kernel(28, 1, wall - 2000, wall - 1000, &name));
    };
    let force = |cupti: &Cupti, reader: &mut Drained| {
        reader.reader.force();
        assert!(cupti.sync(Duration::from_secs(10)));
        reader.drain();
        reader.reader.take_change()
    };
    // Neither an ordinary flush nor a failed launch proves anything; and if any record came, all is
    // well.
    whole_launch(true);
    assert!(cupti.sync(Duration::from_secs(10)));
    assert_eq!(reader.reader.take_change(), None);
    record();
    assert_eq!(force(&cupti, &mut reader), None);
    whole_launch(false);
    assert_eq!(force(&cupti, &mut reader), None);
    // A launch of which a forced flush returns nothing; reported once, also if it is found again.
    whole_launch(true);
    assert_eq!(silent(force(&cupti, &mut reader)), 1);
    assert_eq!(force(&cupti, &mut reader), None);
    // The records resume by themselves.
    record();
    assert_eq!(force(&cupti, &mut reader), Some(Change::Heard));
    // Records that CUPTI dropped are missing for that reason.
    whole_launch(true);
    fake(|fake| fake.dropped = 1);
    assert_eq!(force(&cupti, &mut reader), None);
    record();
    force(&cupti, &mut reader);
    // More launches than its buffers hold; when taken again it is ours, and the silence was already
    // reported.
    (0..4096).for_each(|_| whole_launch(true));
    assert_eq!(reader.reader.take_change(), None);
    whole_launch(true);
    assert_eq!(silent(reader.reader.take_change()), 4097);
    assert_eq!(cupti.acquire(Duration::from_secs(10)), Ok(Acquired::Again(None)));
    assert_eq!(reader.reader.take_change(), None);
    // Only noticed when it is taken again.
    whole_launch(true);
    calls();
    let again = cupti.acquire(Duration::from_secs(10));
    assert!(matches!(again, Ok(Acquired::Again(Some(Silence { launches: 1, .. })))), "{again:?}");
    assert_eq!(calls()[..2], ["flush(0)", "flush(1)"], "whoever has them gets all that is in them");
    assert_eq!(reader.reader.take_change(), None);
    // And at the end.
    whole_launch(true);
    assert!(cupti.release(Duration::from_secs(10)));
    assert_eq!(silent(reader.reader.take_change()), 1);
}
