use super::order::longest_rising;
use super::*;
use crate::time::HostClocks;
use crate::truth::GraphPlace;

const COMM: u64 = 0xc0;

fn process() -> Line {
    Line::Process(Process {
        pid: 1,
        host: 0,
        ranks: vec![0],
        nccl: 23007,
        seed: 1,
        clocks: HostClocks::default(),
        environment: BTreeMap::new(),
    })
}

fn communicator() -> Line {
    Line::Communicator(crate::truth::Communicator {
        name: "world".into(),
        handle: 1,
        hash: Some(COMM),
        device_comm: Some(7),
        rank: 0,
        size: 2,
        world_rank: 0,
        device: 0,
    })
}

/// An AllReduce of 100 us that starts at 1000 us times `number`, like every one of its loop.
fn kernel(number: u32) -> Kernel {
    let start = u64::from(number) * 1_000_000;
    Kernel {
        correlation: number,
        thread: 1,
        called: start - 500_000,
        returned: start - 490_000,
        device: 0,
        context: 1,
        stream: 13,
        stream_handle: 0x13,
        symbol: "_Z17ncclDevKernel_All".into(),
        grid: 2,
        start,
        end: start + 100_000,
        graph: None,
        device_comm: Some(7),
        operations: vec![Operation {
            function: "AllReduce".into(),
            send: 0xa,
            receive: 0xb,
            count: 4,
            datatype: "ncclFloat32".into(),
            root: -1,
            algorithm: "RING".into(),
            protocol: "LL".into(),
            channels: (0, 1),
        }],
        channels: Vec::new(),
        aborted: false,
    }
}

/// What an entirely correct trace says of it.
fn seen(kernel: &Kernel) -> SeenKernel {
    let operation = SeenOperation {
        function: "AllReduce".into(),
        send: Some(0xa),
        receive: Some(0xb),
        bytes: Some(16),
        count: Some(4),
        datatype: Some("ncclFloat32".into()),
        algorithm: Some("RING".into()),
        protocol: Some("LL".into()),
        root: None,
        number: Some(u64::from(kernel.correlation) - 1),
        id: Some(u64::from(kernel.correlation)),
    };
    SeenKernel {
        key: key(kernel),
        device: kernel.device,
        stream: kernel.stream,
        symbol: kernel.symbol.clone(),
        begin: kernel.start as i64,
        end: kernel.end as i64,
        error: 1_000,
        arrows: vec![[kernel.called as i64 - 2_000, kernel.returned as i64 + 2_000]],
        claim: Claim::Operations {
            method: "exact_launch_bracket".into(),
            comm: Some(COMM),
            run: None,
            count: 1,
            shown: vec![operation],
        },
    }
}

fn job(kernels: &[Kernel]) -> (Vec<Line>, Seen) {
    let lines = [process(), communicator()].into_iter().chain(kernels.iter().cloned().map(Line::Kernel)).collect();
    (lines, Seen { kernels: kernels.iter().map(seen).collect(), ..Seen::default() })
}

fn operation(kernel: &mut SeenKernel) -> &mut SeenOperation {
    let Claim::Operations { shown, .. } = &mut kernel.claim else { panic!("it is matched") };
    &mut shown[0]
}

#[test]
fn a_correct_trace_has_no_faults() {
    let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    let verdict = judge(&truth, &seen);
    assert_eq!((verdict.kernels, verdict.all_right()), (3, 3), "{verdict:?}");
    assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
    assert_eq!(verdict.naive, Naive { right: 3, wrong: 0, unmatched: 0 });
}

#[test]
fn kernels_that_differ_only_in_their_number_cannot_be_swapped() {
    let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    let [first, second, _] = &mut seen.kernels[..] else { panic!("three") };
    std::mem::swap(&mut first.claim, &mut second.claim);
    let verdict = judge(&truth, &seen);
    assert_eq!(verdict.all_wrong(), 2, "{verdict:?}");
    assert_eq!(verdict.faults(Demand::NeverWrong), ["2 matched wrongly"]);
}

#[test]
fn every_fact_about_an_operation_counts() {
    let changes: [fn(&mut SeenKernel); 11] = [
        |it| operation(it).count = Some(5),
        |it| operation(it).datatype = Some("ncclFloat16".into()),
        |it| operation(it).algorithm = Some("TREE".into()),
        |it| operation(it).protocol = Some("SIMPLE".into()),
        |it| operation(it).function = "AllGather".into(),
        |it| operation(it).send = Some(0xc),
        |it| operation(it).receive = Some(0xc),
        |it| operation(it).number = Some(9),
        |it| it.claim = Claim::Application,
        |it| {
            let Claim::Operations { comm, .. } = &mut it.claim else { panic!("it is matched") };
            *comm = Some(COMM + 1);
        },
        |it| {
            let Claim::Operations { count, .. } = &mut it.claim else { panic!("it is matched") };
            *count = 2;
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
        change(&mut seen.kernels[1]);
        assert_eq!(judge(&truth, &seen).all_wrong(), 1, "change {number}");
    }
}

#[test]
fn numbers_that_are_all_too_large_are_noticed() {
    let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    for kernel in &mut seen.kernels {
        let number = &mut operation(kernel).number;
        *number = number.map(|number| number + 1);
    }
    assert_eq!(judge(&truth, &seen).all_wrong(), 3);
}

#[test]
fn an_arrow_leads_from_the_launch_of_its_kernel() {
    let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    let mut none = seen.clone();
    none.kernels[1].arrows.clear();
    assert_eq!(judge(&truth, &none).faults(Demand::Whole), ["1 without an arrow from their launch"]);
    let mut other = seen.clone();
    other.kernels[1].arrows = seen.kernels[0].arrows.clone();
    assert_eq!(judge(&truth, &other).faults(Demand::Whole), ["1 arrows from another launch than the kernel's"]);
}

#[test]
fn times_that_are_off_must_be_explained() {
    let (truth, mut seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    for (off, bounds, unexplained) in [
        (1_000, [Some(0), Some(0)], 0),
        (1_001, [Some(0), Some(0)], 1),
        // Unknown bounds.
        (1_001, [None, None], 0),
        (21_000, [Some(-3), Some(20_000)], 0),
        (21_001, [Some(-3), Some(20_000)], 1),
        (-21_000, [Some(-20_000), Some(3)], 0),
        (-21_000, [Some(-19_999), Some(3)], 1),
        // A recording that is certain of an error must state it, and cannot use it to explain
        // times that are right.
        (30_000_000, [Some(29_000_000), Some(31_000_000)], 0),
        (0, [Some(29_000_000), Some(31_000_000)], 0),
    ] {
        seen.cupti_off = bounds;
        (seen.kernels[1].begin, seen.kernels[1].end) = (kernel(2).start as i64 + off, kernel(2).end as i64 + off);
        assert_eq!(judge(&truth, &seen).unexplained, unexplained, "{off} {bounds:?}");
    }
}

#[test]
fn sends_and_receives_are_identified_by_peer_buffer_and_size() {
    let mut send = kernel(1);
    send.operations[0] =
        Operation { function: "Recv".into(), send: 0, receive: 0xb, count: 16, root: 3, ..send.operations[0].clone() };
    let right = SeenOperation {
        function: "Recv".into(),
        send: Some(0xb),
        receive: None,
        bytes: Some(16),
        root: Some(3),
        count: Some(4),
        datatype: Some("ncclFloat32".into()),
        algorithm: None,
        protocol: None,
        number: Some(0),
        id: None,
    };
    let wrong = [
        SeenOperation { root: Some(2), ..right.clone() },
        SeenOperation { send: Some(0xa), ..right.clone() },
        SeenOperation { bytes: Some(12), ..right.clone() },
    ];
    let judge_as = |operation: SeenOperation| {
        let (truth, mut seen) = job(std::slice::from_ref(&send));
        *self::operation(&mut seen.kernels[0]) = operation;
        judge(&truth, &seen).all_wrong()
    };
    assert_eq!(judge_as(right), 0);
    assert_eq!(wrong.map(judge_as), [1, 1, 1]);
}

#[test]
fn errors_must_stay_within_bounds_and_bounds_must_be_useful() {
    let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    let mut late = seen.clone();
    late.kernels[1].begin += 1_001;
    let verdict = judge(&truth, &late);
    assert_eq!(verdict.clock, Clock { worst: 1_001, bound: 1_000, outside: 1, wide: 0 });
    assert_eq!(verdict.faults(Demand::NeverWrong), ["1 outside of the stated error"]);
    let mut vague = seen.clone();
    vague.kernels[1].error = 100_001;
    let verdict = judge(&truth, &vague);
    assert_eq!(verdict.clock, Clock { worst: 0, bound: 100_001, outside: 0, wide: 1 });
    assert_eq!(verdict.faults(Demand::NeverWrong).len(), 1);
    // No real kernel is as short as an emulated one may be.
    let short = Kernel { end: kernel(1).start + 500, ..kernel(1) };
    for (error, wide) in [(3_100, 0), (3_101, 1)] {
        let (truth, mut seen) = job(std::slice::from_ref(&short));
        seen.kernels[0].error = error;
        assert_eq!(judge(&truth, &seen).clock.wide, wide);
    }
}

#[test]
fn missing_unmatched_and_invented_kernels_are_found() {
    let (truth, seen) = job(&[kernel(1), kernel(2), kernel(3)]);
    let mut fewer = seen.clone();
    fewer.kernels.pop();
    assert_eq!(judge(&truth, &fewer).faults(Demand::Whole), ["1 missing in the trace"]);
    fewer.dropped = 1;
    assert_eq!(judge(&truth, &fewer).faults(Demand::WholeButDropped), [""; 0]);
    (fewer.dropped, fewer.discarded) = (0, 1);
    assert_eq!(judge(&truth, &fewer).faults(Demand::WholeButDropped), [""; 0]);
    let said = "1 missing in the trace, which tells of 1 discarded buffers";
    assert_eq!(judge(&truth, &fewer).faults(Demand::Whole), [said]);
    let mut unknown = seen.clone();
    unknown.kernels[0].claim = Claim::Unmatched("its launch was not seen".into());
    assert_eq!(judge(&truth, &unknown).faults(Demand::Whole), ["1 not matched"]);
    assert_eq!(judge(&truth, &unknown).faults(Demand::NeverWrong), [""; 0]);
    let mut more = seen.clone();
    more.kernels.push(seen.kernels[0].clone());
    assert_eq!(judge(&truth, &more).faults(Demand::Whole), ["1 in the trace that never ran"]);
    assert_eq!(judge(&truth, &seen).faults(Demand::Nothing).len(), 1);
    assert_eq!(judge(&truth, &Seen::default()).faults(Demand::Nothing), [""; 0]);
    assert!(!judge(&truth, &Seen::default()).faults(Demand::NeverWrong).is_empty());
    let nothing_ran = judge(&[process()], &Seen::default());
    assert_eq!(nothing_ran.faults(Demand::Whole), [""; 0]);
}

#[test]
fn an_id_stands_for_one_operation_on_all_ranks() {
    let ranks = || [job(&[kernel(1), kernel(2)]), job(&[kernel(1), kernel(2)])];
    assert_eq!(judge_job(&ranks()).torn, 0);
    let mut other = ranks();
    operation(&mut other[1].1.kernels[0]).bytes = Some(32);
    assert_eq!(judge_job(&other).torn, 1);
}

#[test]
fn partly_reported_kernels_are_counted() {
    let mut both = kernel(1);
    both.operations.push(Operation { function: "Broadcast".into(), send: 1, ..both.operations[0].clone() });
    let (truth, mut seen) = job(&[both, kernel(2)]);
    let verdict = judge(&truth, &seen);
    assert_eq!((verdict.all_right(), verdict.part), (2, 1), "{verdict:?}");
    // The reported part must be right.
    operation(&mut seen.kernels[0]).send = Some(9);
    assert_eq!(judge(&truth, &seen).all_wrong(), 1);
}

#[test]
fn unreported_operations_are_not_demanded() {
    let mut broadcast = kernel(1);
    broadcast.operations[0].function = "Broadcast".into();
    let (truth, mut seen) = job(&[broadcast, kernel(2)]);
    seen.kernels[0].claim = Claim::Unmatched("all calls of its group have kernels of their own".into());
    operation(&mut seen.kernels[1]).number = Some(0);
    let verdict = judge(&truth, &seen);
    assert_eq!((verdict.kernels, verdict.untold), (1, (0, 1)));
    assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
}

#[test]
fn order_alone_goes_wrong_at_the_second_run_of_a_graph() {
    // One node runs twice, then a launch outside of graphs follows.
    let replay = |number: u32, replay: u64| Kernel {
        graph: Some(GraphPlace { exec: 1, node: 50, original_node: 5, replay }),
        ..kernel(number)
    };
    let (truth, seen) = job(&[replay(1, 0), replay(2, 1), kernel(3)]);
    let verdict = judge(&truth, &seen);
    assert_eq!(verdict.naive, Naive { right: 1, wrong: 1, unmatched: 1 });
    assert_eq!(verdict.faults(Demand::Whole), [""; 0], "the trace itself is right");
}

#[test]
fn another_run_of_a_graph_is_another_operation() {
    let replay = |number: u32| Kernel {
        graph: Some(GraphPlace { exec: 1, node: 50, original_node: 5, replay: u64::from(number) - 1 }),
        ..kernel(number)
    };
    let (truth, mut seen) = job(&[replay(1), replay(2), replay(3)]);
    for (kernel, says) in seen.kernels.iter_mut().zip([1, 2, 3]) {
        let Claim::Operations { run, .. } = &mut kernel.claim else { panic!("it is matched") };
        *run = Some(says);
    }
    assert_eq!(judge(&truth, &seen).faults(Demand::Whole), [""; 0]);
    // By the number of the run, and by the sequence numbers of the operations.
    let mut other = seen.clone();
    let Claim::Operations { run, .. } = &mut other.kernels[2].claim else { panic!("it is matched") };
    *run = Some(2);
    assert_eq!(judge(&truth, &other).other_run, 1);
    *operation(&mut seen.kernels[2]) = SeenOperation { number: Some(0), ..operation(&mut seen.kernels[2]).clone() };
    let verdict = judge(&truth, &seen);
    assert_eq!((verdict.other_run, verdict.all_wrong()), (1, 0));
    assert_eq!(verdict.faults(Demand::NeverWrong), ["1 matched to another run of their graph"]);
}

#[test]
fn channels_are_identified_by_their_stamps() {
    let mut stamping = kernel(1);
    let (start, end) = (stamping.start + 1_000, stamping.end - 1_000);
    stamping.channels.push(crate::truth::Channel {
        channel: 2,
        operation: 0,
        counter: Some(1),
        start,
        end,
        timer_start: 77,
        timer_end: 99,
    });
    let (truth, mut seen) = job(&[stamping]);
    let right = SeenChannel {
        name: "AllReduce".into(),
        channel: 2,
        timer_start: 77,
        begin: start as i64 + 40,
        end: Some(end as i64 - 50),
        error: 50,
    };
    let mut judge_as = |channel: SeenChannel| {
        seen.channels = vec![channel];
        judge(&truth, &seen)
    };
    let verdict = judge_as(right.clone());
    assert_eq!((verdict.channels, verdict.timer), (1, Clock { worst: 50, bound: 50, outside: 0, wide: 0 }));
    assert_eq!(verdict.faults(Demand::Whole), [""; 0]);
    for wrong in [
        SeenChannel { error: 49, ..right.clone() },
        SeenChannel { begin: right.begin + 11, ..right.clone() },
        SeenChannel { timer_start: 78, ..right.clone() },
        SeenChannel { error: 100_001, ..right.clone() },
    ] {
        assert_eq!(judge_as(wrong.clone()).faults(Demand::NeverWrong).len(), 1, "{wrong:?}");
    }
    // Where no kernel is shown, it may be exactly as uncertain as it states.
    seen.kernels.clear();
    let mut judge_as = |channel: SeenChannel| {
        seen.channels = vec![channel];
        judge(&truth, &seen).timer
    };
    assert_eq!(judge_as(SeenChannel { error: 100_001, ..right.clone() }).wide, 0);
    assert_eq!(judge_as(SeenChannel { error: 49, ..right.clone() }).outside, 1);
}

#[test]
fn the_longest_rising_series_is_found() {
    assert_eq!(longest_rising(&[1, 3, 2, 4], false).iter().filter(|it| **it).count(), 3);
    assert_eq!(longest_rising(&[5, 1, 2, 3], false), [false, true, true, true]);
    assert_eq!(longest_rising(&[1, 1, 2], false).iter().filter(|it| **it).count(), 2);
    assert_eq!(longest_rising(&[1, 1, 2], true), [true, true, true]);
    assert_eq!(longest_rising(&[], true), [false; 0]);
}
