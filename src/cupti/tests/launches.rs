//! Launches that CUPTI's callbacks report, and what takes their place where CUPTI refuses callbacks
//! or gives their records to another tool.

use bytemuck::Zeroable;

use super::fake::{event, fresh};
use super::*;
use crate::model::event::{Body, KernelLaunch, MAX_WORDS, Record};
use crate::model::ids::{Handle, ProcessTag};
use crate::record::ring::{self, Rings};

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
    node_in(id, node, original, 0);
}

fn node_in(id: u32, node: usize, original: usize, exec: usize) {
    node_of(id, cupti::CU_GRAPH_NODE_TYPE_KERNEL, node, original, exec);
}

fn node_of(id: u32, kind: cupti::CUgraphNodeType, node: usize, original: usize, exec: usize) {
    let mut graph = cupti::CUpti_GraphData {
        graph: std::ptr::null_mut(),
        originalGraph: std::ptr::null_mut(),
        node: std::ptr::without_provenance_mut(node),
        originalNode: std::ptr::without_provenance_mut(original),
        nodeType: kind,
        dependency: std::ptr::null_mut(),
        graphExec: std::ptr::without_provenance_mut(exec),
    };
    let data = cupti::CUpti_ResourceData {
        context: std::ptr::null_mut(),
        resourceHandle: cupti::CUpti_ResourceData__bindgen_ty_1 { stream: std::ptr::null_mut() },
        resourceDescriptor: (&raw mut graph).cast(),
    };
    event(3, id, &data);
}

/// What this thread has recorded. Its few records fit into one segment, so nothing is given back.
fn own_records(rings: &'static Rings, mut each: impl FnMut(Body<'_>)) {
    // A thread's first record names it.
    let is_ours = |reader: &mut ring::Reader| {
        reader.peek(rings).is_some_and(|(header, _)| (header >> 32) as i32 == sys::thread_id())
    };
    let mut readers = (0..rings.used_slots()).map(ring::Reader::new);
    let mut ours = readers.find_map(|mut reader| is_ours(&mut reader).then_some(reader)).unwrap();
    let mut buffer = [0; MAX_WORDS];
    while ours.peek(rings).is_some() {
        each(Record::decode(ours.read(rings, &mut buffer)).unwrap().body);
    }
}

/// `cuGraphInstantiateWithFlags` begins or ends.
fn instantiation(site: u32) {
    // SAFETY: a C structure of numbers and pointers.
    let mut data: cupti::CUpti_CallbackData = unsafe { std::mem::zeroed() };
    data.callbackSite = site;
    event(1, 643, &data);
}

/// The handle of a node, which is also its number until that changes.
fn numbered(graph: usize, index: usize) -> usize {
    graph << 32 | index
}

#[test]
fn nodes_are_followed_through_child_graphs_and_updates() {
    /// An executable graph.
    const EXEC: usize = 0x9000;
    let [made, updated, set] = [18, 22, 23];
    let [captured, child, clone, taken_in] = [numbered(2, 4), numbered(3, 4), numbered(5, 4), numbered(4, 36)];
    let _one = fresh(130_000, &[]);
    let (cupti, _reader) = start(&options()).unwrap();
    // Changes of single kernels are reported as updates.
    let asked = calls();
    let is_asked = |id: &str| asked.contains(&format!("callback(1 {id})"));
    assert!(
        ["3/14", "3/22", "3/23", "1/561"].into_iter().all(is_asked) && !["1/538", "1/692"].into_iter().any(is_asked)
    );
    let rings = recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let lost = recorder::lost_launches();
    let records = std::thread::spawn(move || {
        let capture = |graph: usize| {
            let open = start_launch();
            node(13, numbered(graph, 4), 0);
            recorder::stop(open);
        };
        // One that fails, and one that succeeds: the numbers are asked for again when all is done.
        capture(2);
        instantiation(cupti::CUPTI_API_ENTER);
        node(20, numbered(7, 4), captured);
        instantiation(cupti::CUPTI_API_EXIT);
        node(20, child, captured);
        instantiation(cupti::CUPTI_API_ENTER);
        node(20, clone, child);
        // One that is gone before the graph is executable: CUPTI is not asked for it again.
        node(20, numbered(9, 4), child);
        node(14, numbered(9, 4), 0);
        let numbers = [(clone as u64, taken_in as u64), (numbered(7, 4) as u64, 1), (numbered(9, 4) as u64, 1)];
        fake(|fake| fake.nodes.extend(numbers));
        node_in(made, 0, 0, EXEC);
        instantiation(cupti::CUPTI_API_EXIT);
        // A node of the application's own, the first of an update with NCCL's; then NCCL's.
        capture(6);
        node_in(updated, numbered(6, 0), numbered(4, 32), EXEC);
        node_in(set, numbered(4, 32), 0, EXEC);
        node_in(updated, numbered(6, 1), numbered(4, 33), EXEC);
        node_in(updated, numbered(6, 4), clone, EXEC);
        node_in(set, clone, 0, EXEC);
        // By hand: NCCL's, and one that is not.
        node_in(set, clone, 0, EXEC);
        node_in(set, numbered(4, 33), 0, EXEC);
        // An update without anything of NCCL's.
        node_in(updated, numbered(8, 1), numbered(4, 33), EXEC);
        let mut records = Vec::new();
        own_records(rings, |body| match body {
            Body::GraphNode { node, original, launch } => records.push((node, original, launch.is_none())),
            Body::GraphUpdate { node, source, graph } => {
                assert_eq!(graph, EXEC as u64);
                records.push((node, source, true));
            }
            Body::GraphChange { .. } => panic!(),
            _ => {}
        });
        records
    });
    let records: Vec<_> = records.join().unwrap().into_iter().map(|(a, b, c)| (a as usize, b as usize, c)).collect();
    let expected = [
        (captured, 0, false),
        (numbered(7, 4), captured, true),
        (child, captured, true),
        (clone, child, true),
        (numbered(9, 4), child, true),
        (taken_in, clone, true),
        (numbered(6, 4), 0, false),
        (numbered(4, 32), numbered(6, 0), true),
        (taken_in, numbered(6, 4), true),
        (taken_in, 0, true),
    ];
    assert_eq!(records, expected);
    assert_eq!(recorder::lost_launches(), lost);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn nodes_beyond_the_room_for_them_are_counted() {
    let _one = fresh(130_000, &[]);
    let (cupti, _reader) = start(&options()).unwrap();
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let lost = std::thread::spawn(|| {
        let open = start_launch();
        node(13, numbered(0x50, 1), 0);
        recorder::stop(open);
        let before = recorder::lost_launches();
        let clones = |graph: usize, count: usize| {
            instantiation(cupti::CUPTI_API_ENTER);
            (1..=count).for_each(|index| node(20, numbered(graph, index), numbered(0x50, 1)));
        };
        clones(0x51, 2048);
        instantiation(cupti::CUPTI_API_EXIT);
        assert_eq!(recorder::lost_launches(), before);
        clones(0x52, 2050);
        let lost = recorder::lost_launches() - before;
        instantiation(cupti::CUPTI_API_EXIT);
        lost
    });
    assert_eq!(lost.join().unwrap(), 2);
    assert!(cupti.release(Duration::from_secs(10)));
}

#[test]
fn an_update_that_fails_leaves_its_graph_unknown() {
    /// `cuGraphExecUpdate`, and `cuGraphNodeSetEnabled`, of which nothing is told.
    const UPDATE: u32 = 561;
    const ENABLE: u32 = 650;
    for (version, expected) in [(130_000, &[2, 3][..]), (28, &[1, 2, 3])] {
        let _one = fresh(version, &[]);
        let (cupti, _reader) = start(&options()).unwrap();
        let rings = recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
        let changed = std::thread::spawn(move || {
            let open = start_launch();
            node(13, numbered(0x60, 1), 0);
            recorder::stop(open);
            for (id, exec, mut result) in [(UPDATE, 1_usize, 0), (UPDATE, 2, 910), (ENABLE, 3, 0)] {
                for site in [cupti::CUPTI_API_ENTER, cupti::CUPTI_API_EXIT] {
                    // SAFETY: a C structure of numbers and pointers.
                    let mut data: cupti::CUpti_CallbackData = unsafe { std::mem::zeroed() };
                    data.callbackSite = site;
                    data.functionParams = (&raw const exec).cast();
                    data.functionReturnValue = (&raw mut result).cast();
                    event(1, id, &data);
                }
            }
            let mut changed = Vec::new();
            own_records(rings, |body| {
                if let Body::GraphChange { graph } = body {
                    changed.push(graph);
                }
            });
            changed
        });
        assert_eq!(changed.join().unwrap(), expected, "{version}");
        assert!(cupti.release(Duration::from_secs(10)));
    }
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
        let (mut launches, mut nodes) = (Vec::new(), Vec::new());
        own_records(rings, |body| match body {
            Body::Launch { correlation, nccl, launch, .. } => launches.push((correlation, nccl, launch)),
            Body::GraphNode { node, original, launch } => nodes.push((node, original, launch)),
            _ => {}
        });
        (opened, launches, nodes)
    })
    .join()
    .unwrap();
    assert_eq!(launches, [(3, true, Handle::NONE), (5, true, Handle::NONE), (6, false, opened)]);
    assert_eq!(nodes, [(0x300, 0, opened), (0x400, 0x300, Handle::NONE)]);

    // CUPTI's own failure is reported once, as CUPTI reported it.
    let notification = cupti::CUpti_StateData__bindgen_ty_1__bindgen_ty_1 { result: 35, message: std::ptr::null() };
    let state = cupti::CUpti_StateData { __bindgen_anon_1: cupti::CUpti_StateData__bindgen_ty_1 { notification } };
    let before = reader.standing().failures;
    event(6, 1, &state);
    reader.drain();
    assert_eq!(reader.standing().failures, before + 1);
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
    let before = reader.counts();
    let records = [id(3, 1, 76), id(5, next.0, 77), driver].concat();
    assert_eq!(reader.flushed(&cupti, records), [Activity::ExternalId { id: next, correlation: 77 }]);
    let losses = reader.counts();
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

/// A graph of copies leaves no record of a kernel, so it proves nothing.
#[test]
fn only_kernels_among_graph_nodes_take_the_place_of_launches() {
    recorder::switch_on(|| Rings::new(1 << 20), ProcessTag::from_random(7)).unwrap();
    let _one = fresh(28, &[]);
    let (cupti, _reader) = start(&options()).unwrap();
    let created = |kind| {
        node_of(13, kind, numbered(0x70, 1), 0, 0);
        cupti.shared.contact.unheard().launches
    };
    (0..2).for_each(|_| whole_launch(true));
    assert_eq!(created(cupti::CU_GRAPH_NODE_TYPE_MEMCPY), 2);
    assert_eq!(created(cupti::CU_GRAPH_NODE_TYPE_KERNEL), 1);
    assert!(cupti.release(Duration::from_secs(10)));
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
