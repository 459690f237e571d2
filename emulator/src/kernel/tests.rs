//! Kernels of several ranks in one process, on device communicators built by hand with a layout of
//! our own. Ranks are connected by a peer's memory, or by a proxy like NCCL's.

mod data;
mod made_up;
mod world;

use std::thread;
use std::time::Duration;

use self::data::{Data, Memory};
use self::world::{BatchHead, Coll, Exchange, Kind, Packed, Via, World, copies, put, sum};
use super::function::{Algorithm, Collective, Function, Protocol};
use super::*;
use crate::cuda::Arguments;
use crate::truth::Operation;
use elements::reduce::Reduction;
use elements::words::Datatype;

#[test]
fn all_reduce_by_ring() {
    for ranks in [2, 3, 5] {
        for (protocol, grains) in [(Protocol::Simple, 16), (Protocol::Simple, 32), (Protocol::Ll, 32)] {
            for (channels, count) in [(1, 1), (1, 5000), (2, 4099), (3, 40_000)] {
                let world = World::new(ranks, Via::Memory);
                let data = Data::new(ranks, count, count);
                let work = Coll { channels, grains, ..Coll::new(sum(Collective::AllReduce, protocol), count) };
                for ran in world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)])) {
                    assert_eq!(ran.operations.len(), 1);
                    assert!(!ran.aborted);
                }
                data.check(|_, index| data.total(index));
            }
        }
    }
}

#[test]
fn in_place() {
    let world = World::new(3, Via::Memory);
    let data = Data::new(3, 5000, 5000);
    let work = Coll { channels: 2, ..Coll::new(sum(Collective::AllReduce, Protocol::Simple), 5000) };
    let expected: Vec<f32> = (0..5000).map(|index| data.total(index)).collect();
    let in_place = |rank| Coll { receive: data.send(rank), ..work.on(&data, rank) };
    world.run_all(|rank| world.collective(rank, &[in_place(rank)]));
    for rank in 0..3 {
        assert_eq!(data.sent(rank), expected);
    }
}

#[test]
fn all_reduce_by_tree() {
    for protocol in [Protocol::Simple, Protocol::Ll] {
        for parents in [vec![-1, 0], vec![1, -1, 1], vec![-1, 0, 1, 1, 1], vec![-1, 0, 1, 2]] {
            let ranks = parents.len();
            let world = World::new(ranks, Via::Memory);
            world.plant(&parents);
            let data = Data::new(ranks, 60_000, 60_000);
            let function = Function { algorithm: Algorithm::Tree, ..sum(Collective::AllReduce, protocol) };
            let work = Coll {
                channels: 2,
                grains: if protocol == Protocol::Ll { 32 } else { 8 },
                ..Coll::new(function, 60_000)
            };
            let ran = world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
            data.check(|_, index| data.total(index));
            assert_eq!(ran[0].operations[0].algorithm, "TREE");
        }
    }
}

#[test]
fn all_gather() {
    for ranks in [2, 4] {
        for protocol in [Protocol::Simple, Protocol::Ll] {
            let count = 9001;
            let world = World::new(ranks, Via::Memory);
            let data = Data::new(ranks, count, count * ranks);
            let function = copies(Collective::AllGather, protocol);
            let work = Coll { channels: 3, ..Coll::new(function, count * 4) };
            world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
            data.check(|_, index| Data::value(index / count, index % count));
        }
    }
}

#[test]
fn reduce_scatter() {
    for ranks in [2, 4] {
        for protocol in [Protocol::Simple, Protocol::Ll] {
            let count = 9001;
            let world = World::new(ranks, Via::Memory);
            let data = Data::new(ranks, count * ranks, count);
            let work = Coll { channels: 2, ..Coll::new(sum(Collective::ReduceScatter, protocol), count) };
            world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
            data.check(|rank, index| data.total(rank * count + index));
        }
    }
}

#[test]
fn broadcast_and_reduce_with_every_root() {
    for root in 0..3 {
        for protocol in [Protocol::Simple, Protocol::Ll] {
            let world = World::new(3, Via::Memory);
            let data = Data::new(3, 7001, 7001);
            let broadcast = Coll { root, ..Coll::new(copies(Collective::Broadcast, protocol), 7001 * 4) };
            let ran = world.run_all(|rank| world.collective(rank, &[broadcast.on(&data, rank)]));
            data.check(|_, index| Data::value(root as usize, index));
            assert_eq!(ran[1].operations[0].root, root);

            let data = Data::new(3, 7001, 7001);
            let reduce = Coll { root, ..Coll::new(sum(Collective::Reduce, protocol), 7001) };
            world.run_all(|rank| world.collective(rank, &[reduce.on(&data, rank)]));
            data.check(|rank, index| if rank == root as usize { data.total(index) } else { Data::UNTOUCHED });
        }
    }
}

#[test]
fn reductions_use_their_argument() {
    // An average of floats: every rank scales its own elements.
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 3000, 3000);
    let average = Function { reduction: Some(Reduction::PreMulSum), ..sum(Collective::AllReduce, Protocol::Simple) };
    let half = 0.5_f32;
    let work = Coll { argument: half.to_bits().into(), ..Coll::new(average, 3000) };
    world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    data.check(|_, index| data.total(index) / 2.0);

    // The same with the scalar in device memory.
    let data = Data::new(2, 3000, 3000);
    let work = Coll { argument: &raw const half as u64, by_address: true, ..work };
    world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    data.check(|_, index| data.total(index) / 2.0);

    // An average of signed integers, which share the unsigned type's function.
    let world = World::new(3, Via::Memory);
    let data = Data::new(3, 1000, 1000);
    let average = Function {
        reduction: Some(Reduction::SumPostDiv),
        datatype: Datatype::U32,
        ..sum(Collective::ReduceScatter, Protocol::Ll)
    };
    for rank in 0..3 {
        data.fill(rank, |index| f32::from_bits((-7 - index as i32 * (rank as i32 + 1)) as u32));
    }
    let work = Coll { argument: 3 << 1 | 1, ..Coll::new(average, 333) };
    let ran = world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    for rank in 0..3 {
        for (index, value) in data.received(rank)[..333].iter().enumerate() {
            let index = (rank * 333 + index) as i32;
            assert_eq!(value.to_bits() as i32, (-21 - index * 6) / 3);
        }
    }
    assert_eq!(ran[0].operations[0].datatype, "ncclUint32");
}

#[test]
fn sends_and_receives() {
    for (protocol, release) in [(Protocol::Simple, 23007), (Protocol::Ll, 23007), (Protocol::Simple, 22707)] {
        let ranks = 3;
        let world = World::of(ranks, Via::Memory, release, Kind::Rings);
        let count = 20_000;
        let data = Data::new(ranks, count * ranks, count * ranks);
        // All to all, including itself: in round n each rank sends to the one n places further on.
        // The parts of a transfer are spread over the channels from 1 on.
        let ran = world.run_all(|rank| {
            let exchanges = (0..ranks).map(|round| {
                let (to, from) = ((rank + round) % ranks, (rank + ranks - round) % ranks);
                Exchange {
                    send: Some((data.send(rank) + to * count * 4, count * 4, to)),
                    receive: Some((data.receive(rank) + from * count * 4, count * 4, from)),
                    parts: 3,
                    protocol,
                }
            });
            world.exchanges(rank, &exchanges.collect::<Vec<_>>())
        });
        data.check(|rank, index| Data::value(index / count, rank * count + index % count));
        let operations = &ran[1].operations;
        assert_eq!(operations.len(), 6);
        let send = operations.iter().find(|operation| operation.function == "Send" && operation.root == 2).unwrap();
        assert_eq!(send.send, (data.send(1) + 2 * count * 4) as u64);
        assert_eq!((send.receive, send.count, &*send.protocol), (0, 80_000, protocol.name()));
        let receive = operations.iter().find(|operation| operation.function == "Recv" && operation.root == 0).unwrap();
        assert_eq!((receive.receive, receive.count), (data.receive(1) as u64, 80_000));
        if release == 23007 {
            assert_eq!(receive.channels, (1, 3));
        }
    }
}

#[test]
fn empty_sends_and_receives_work() {
    let world = World::new(2, Via::Memory);
    for _ in 0..20 {
        world.run_all(|rank| {
            let (send, receive) = if rank == 0 { (Some((64, 0, 1)), None) } else { (None, Some((64, 0, 0))) };
            world.exchanges(rank, &[Exchange { send, receive, parts: 1, protocol: Protocol::Simple }])
        });
    }
}

#[test]
fn several_broadcasts_at_once() {
    for protocol in [Protocol::Simple, Protocol::Ll] {
        let ranks = 3;
        let world = World::new(ranks, Via::Memory);
        let counts = [9000, 0, 4321];
        let data = Data::new(ranks, 9000, 9000 * ranks);
        let ran = world.run_all(|rank| world.broadcasts(rank, &data, &counts, protocol));
        data.check(|_, index| {
            let (root, index) = (index / 9000, index % 9000);
            if index < counts[root] { Data::value(root, index) } else { Data::UNTOUCHED }
        });
        let operation = |root| Operation {
            function: "AllGatherV".into(),
            send: if root == 2 { data.send(2) as u64 } else { 0 },
            receive: (data.receive(2) + root * 9000 * 4) as u64,
            count: counts[root] as u64 * 4,
            datatype: "ncclInt8".into(),
            root: root as i32,
            algorithm: "RING".into(),
            protocol: protocol.name().into(),
            channels: (0, 1),
        };
        let mut operations = ran[2].operations.clone();
        operations.sort_by_key(|operation| operation.root);
        assert_eq!(operations, [operation(0), operation(2)]);
    }
}

#[test]
fn a_proxy_between_the_ranks() {
    for shared in [false, true] {
        for protocol in [Protocol::Simple, Protocol::Ll] {
            let world = World::new(3, Via::Proxy { shared, ll: protocol == Protocol::Ll });
            let data = Data::new(3, 30_001, 30_001);
            let work = Coll { channels: 2, ..Coll::new(sum(Collective::AllReduce, protocol), 30_001) };
            for _ in 0..3 {
                data.clear();
                world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
                data.check(|_, index| data.total(index));
            }
            let count = 10_000;
            let data = Data::new(3, count, count);
            world.run_all(|rank| {
                let send = Some((data.send(rank), count * 4, (rank + 1) % 3));
                let receive = Some((data.receive(rank), count * 4, (rank + 2) % 3));
                world.exchanges(rank, &[Exchange { send, receive, parts: 2, protocol }])
            });
            data.check(|rank, index| Data::value((rank + 2) % 3, index));
        }
    }
}

#[test]
fn works_of_all_kinds_one_after_the_other() {
    let world = World::new(2, Via::Memory);
    let data: Vec<Data> = (0..6).map(|_| Data::new(2, 5000, 10_000)).collect();
    // After Broadcast, with its chunks of one step, the other works begin at a whole chunk again.
    let sums = sum(Collective::AllReduce, Protocol::Simple);
    for round in 0..5 {
        data.iter().for_each(Data::clear);
        let bytes = 3000 + 512 * round;
        world.run_all(|rank| {
            let coll = |function, count, index: usize| Coll::new(function, count).on(&data[index], rank);
            let batches = [
                vec![coll(sums, 5000, 0), coll(sums, 17, 1)],
                vec![coll(copies(Collective::Broadcast, Protocol::Simple), bytes, 2)],
                vec![coll(copies(Collective::AllGather, Protocol::Simple), 20_000, 3)],
                vec![coll(copies(Collective::Broadcast, Protocol::Ll), 9999, 4)],
                vec![coll(sums, 4000, 5)],
            ];
            let packed: Vec<Packed> = batches.iter().map(|works| world.pack(works)).collect();
            let arguments = world.arguments(rank, 1, &packed, &[(0..packed.len()).collect()]);
            world.launch(rank, &arguments, 1)
        });
        data[0].check_first(5000, |_, index| data[0].total(index));
        data[1].check_first(17, |_, index| data[1].total(index));
        data[2].check_first(bytes / 4, |_, index| Data::value(0, index));
        data[3].check_first(10_000, |_, index| Data::value(index / 5000, index % 5000));
        data[4].check_first(9999 / 4, |_, index| Data::value(0, index));
        data[5].check_first(4000, |_, index| data[5].total(index));
    }
}

#[test]
fn works_may_be_in_the_fifo() {
    let world = World::of(2, Via::Memory, 22605, Kind::Counters);
    let data = Data::new(2, 100, 100);
    let work = Coll::new(sum(Collective::AllReduce, Protocol::Ll), 100);
    for round in 0..4 {
        data.clear();
        world.run_all(|rank| {
            let layout = &world.layout;
            let size = layout.work_coll.size;
            // The second work wraps around to the beginning of the FIFO.
            let bytes = 2 * size.next_power_of_two();
            let fifo = Memory::new(bytes);
            let places = [bytes - size, bytes];
            for place in places {
                fifo.write(place % bytes, &world.encode(&work.on(&data, rank)));
            }
            let mut arguments = world.head(rank, 1, 2);
            put(&mut arguments, layout.kernel_args.work_storage_type, &[1]);
            put(&mut arguments, layout.kernel_args.work_mask, &(bytes as u32 - 1).to_ne_bytes());
            put(&mut arguments, layout.kernel_args.work_buf, &fifo.address().to_ne_bytes());
            let function = world.kernels.model.functions.id(work.function);
            let head = BatchHead { base: places[0], works: 1, kind: 1, function, jump: 1, extends: true };
            world.batch(&mut arguments, 0, head);
            world.batch(&mut arguments, 1, BatchHead { base: places[1], jump: 0, extends: false, ..head });
            let ran = world.launch(rank, &arguments, 1);
            assert_eq!(ran.channels.len(), 2);
            let consumed = world.rank(rank).consumed.place().glance() as usize;
            assert_eq!(consumed, places[1] + size, "round {round}");
            ran
        });
        data.check(|_, index| data.total(index));
    }
}

#[test]
fn the_profiler_gets_rings() {
    for (release, counts_all) in [(22707, true), (23007, true), (23102, false)] {
        let world = World::of(2, Via::Memory, release, Kind::Rings);
        let data = Data::new(2, 1000, 1000);
        let work = Coll::new(sum(Collective::AllReduce, Protocol::Simple), 1000);
        for round in 0..40_u64 {
            let ran = world.run_all(|rank| {
                let wanted = [true, false, true].map(|profiled| Coll { profiled, channels: 2, ..work.on(&data, rank) });
                world.collective(rank, &wanted)
            });
            let numbers = if counts_all { [3 * round + 1, 3 * round + 3] } else { [2 * round + 1, 2 * round + 2] };
            for (rank, ran) in ran.iter().enumerate() {
                assert_eq!(ran.channels.len(), 6);
                for channel in &ran.channels {
                    let expected = [Some(numbers[0]), None, Some(numbers[1])][channel.operation as usize];
                    assert_eq!(channel.counter, expected);
                    assert!(ran.start <= channel.start && channel.start <= channel.end && channel.end <= ran.end);
                    let Some(number) = expected else { continue };
                    let entry = number as usize % 64 * 16 + world.layout.profiler.unwrap().data;
                    let entry = channel.channel as usize * world.layout.profiler.unwrap().size + entry;
                    let rank = world.rank(rank);
                    for (ring, timer) in [(&rank.started, channel.timer_start), (&rank.completed, channel.timer_end)] {
                        assert_eq!(ring.place().word(entry), number);
                        assert_eq!(ring.place().word(entry + 8), timer);
                    }
                }
            }
        }
    }
}

#[test]
fn the_profiler_gets_numbers() {
    let world = World::of(2, Via::Memory, 22605, Kind::Counters);
    let data = Data::new(2, 1000, 1000);
    let work = Coll::new(sum(Collective::AllReduce, Protocol::Simple), 1000);
    let rank = world.rank(0);
    let numbers = || (rank.started.place().word(0), rank.completed.place().word(0));
    let run = |wanted: &[bool]| {
        let ran = world.run_all(|rank| {
            let works = wanted.iter().map(|&profiled| Coll { profiled, ..work.on(&data, rank) });
            world.collective(rank, &works.collect::<Vec<_>>())
        });
        ran[0].channels.iter().map(|channel| channel.counter).collect::<Vec<_>>()
    };
    assert_eq!(run(&[false, false]), [None, None]);
    assert_eq!(numbers(), (0, 0));
    assert_eq!(run(&[true, false]), [Some(3), None]);
    assert_eq!(numbers(), (4, 4));
    assert_eq!(run(&[false]), [None]);
    assert_eq!(numbers(), (4, 4));
    assert_eq!(run(&[true]), [Some(6)]);
    assert_eq!(numbers(), (6, 6));
}

#[test]
fn old_releases_have_no_profiler() {
    let world = World::of(2, Via::Memory, 22304, Kind::None);
    let data = Data::new(2, 1000, 1000);
    let work = Coll { profiled: true, ..Coll::new(sum(Collective::AllReduce, Protocol::Simple), 1000) };
    let ran = world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    data.check(|_, index| data.total(index));
    assert_eq!(ran[0].channels[0].counter, None);
}

#[test]
fn the_truth_names_what_was_played() {
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 2000, 2000);
    let work = Coll { channels: 3, ..Coll::new(sum(Collective::AllReduce, Protocol::Ll), 2000) };
    let ran = world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    let expected = Operation {
        function: "AllReduce".into(),
        send: data.send(1) as u64,
        receive: data.receive(1) as u64,
        count: 2000,
        datatype: "ncclFloat32".into(),
        root: -1,
        algorithm: "RING".into(),
        protocol: "LL".into(),
        channels: (0, 2),
    };
    assert_eq!(ran[1].operations, [expected]);
    assert_eq!(ran[1].device_comm, Some(world.rank(1).comm.address() as u64));
    let mut channels: Vec<u32> = ran[1].channels.iter().map(|channel| channel.channel).collect();
    channels.sort_unstable();
    assert_eq!(channels, [0, 1, 2]);
}

#[test]
fn an_abort_ends_a_kernel_that_waits() {
    for protocol in [Protocol::Simple, Protocol::Ll] {
        let world = World::new(2, Via::Memory);
        let data = Data::new(2, 100_000, 100_000);
        let work = Coll { channels: 2, ..Coll::new(sum(Collective::AllReduce, protocol), 100_000) };
        // The peer never arrives.
        let ran = thread::scope(|scope| {
            let kernel = scope.spawn(|| world.collective(0, &[work.on(&data, 0)]));
            thread::sleep(Duration::from_millis(20));
            assert!(!kernel.is_finished());
            world.abort(0);
            kernel.join().unwrap()
        });
        assert!(ran.aborted);
        assert_eq!(ran.channels.len(), 2);
    }
}

#[test]
fn a_kernel_takes_its_time() {
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 40_000, 40_000);
    let work = Coll::new(sum(Collective::AllReduce, Protocol::Simple), 40_000);
    world.gpu(0).set_bandwidth(0.1);
    world.gpu(0).set_factor(2.0);
    let ran = world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    data.check(|_, index| data.total(index));
    // With two ranks, each moves every element once out and once in. Here the steps overlap: a
    // chunk is sent, the other one is received and sent, and the first is received again, which is
    // three halves of the bytes.
    let least = (40_000.0 * 4.0 * 1.5 / 0.1 * 2.0) as u64;
    assert!(ran[0].end - ran[0].start >= least, "{} ns of {least}", ran[0].end - ran[0].start);
    let channel = &ran[0].channels[0];
    assert!(channel.end - channel.start >= least);
    assert!(channel.timer_end - channel.timer_start >= least - 2 * 1000, "in steps of 1 us");
}

#[test]
fn a_slow_link_delays_what_is_sent() {
    for protocol in [Protocol::Simple, Protocol::Ll] {
        let world = World::new(2, Via::Memory);
        let data = Data::new(2, 10_000, 10_000);
        let link =
            Link { communicator: Some(world.rank(0).comm.address() as u64), peer: 1, bandwidth: 0.01, latency_ns: 0 };
        world.gpu(0).add_link(link);
        let ran = world.run_all(|rank| {
            let (send, receive) = ((data.send(rank), 40_000, 1 - rank), (data.receive(rank), 40_000, 1 - rank));
            let (send, receive) = if rank == 0 { (Some(send), None) } else { (None, Some(receive)) };
            world.exchanges(rank, &[Exchange { send, receive, parts: 1, protocol }])
        });
        assert!(ran[0].end - ran[0].start >= 4_000_000 && ran[1].end - ran[0].start >= 4_000_000);
        data.check_first(0, |_, _| 0.0);
        assert_eq!(data.received(1), data.sent(0));
    }
}

#[test]
fn a_stall_stops_one_kernel() {
    const FOR_NS: u64 = 30_000_000;
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 30_000, 30_000);
    let work = Coll { channels: 2, profiled: true, ..Coll::new(sum(Collective::AllReduce, Protocol::Simple), 30_000) };
    let run = || world.run_all(|rank| world.collective(rank, &[work.on(&data, rank)]));
    world.gpu(1).add_stall(Stall { kernel: 1, step: Some(3), for_ns: FOR_NS });
    world.gpu(1).add_stall(Stall { kernel: 2, step: None, for_ns: FOR_NS });
    let [_, within, before] = std::array::from_fn(|_| run());
    for ran in [&within, &before] {
        data.check(|_, index| data.total(index));
        assert!(ran[1].end - ran[1].start >= FOR_NS);
    }
    assert!(within[1].channels.iter().all(|channel| channel.end - within[1].start >= FOR_NS));
    assert!(before[1].channels.iter().all(|channel| channel.start - before[1].start >= FOR_NS));
    assert_eq!(world.gpu(1).kernels(), 3);
}

#[test]
fn an_abort_ends_an_endless_stall() {
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 3000, 3000);
    let work = Coll::new(sum(Collective::AllReduce, Protocol::Simple), 3000);
    world.gpu(0).add_stall(Stall { kernel: 0, step: Some(1), for_ns: u64::MAX });
    let ran = thread::scope(|scope| {
        let kernels = [0, 1].map(|rank| {
            let (world, data) = (&world, &data);
            scope.spawn(move || world.collective(rank, &[work.on(data, rank)]))
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!kernels[0].is_finished());
        for rank in 0..2 {
            world.abort(rank);
        }
        kernels.map(|kernel| kernel.join().unwrap())
    });
    assert!(ran.iter().all(|ran| ran.aborted));
}

#[test]
fn unplayable_kernels_are_reported() {
    let world = World::new(2, Via::Memory);
    let data = Data::new(2, 100, 100);
    let refused = |works: &[Coll], edit: &dyn Fn(&mut Vec<u8>)| {
        let mut arguments = world.collective_arguments(0, works);
        edit(&mut arguments);
        let arguments = Arguments::new(&arguments);
        // SAFETY: as a kernel would be launched; only read.
        let plan = unsafe { Plan::read(&world.kernels.model, arguments.as_bytes(), works[0].channels as u32) };
        plan.unwrap_err().message("k")
    };
    let plain = Coll { send: data.send(0), ..Coll::new(sum(Collective::AllReduce, Protocol::Simple), 100) };
    for (algorithm, protocol, setting) in [
        (Algorithm::Ring, Protocol::Ll128, "NCCL_PROTO=^LL128"),
        (Algorithm::Nvls, Protocol::Simple, "NCCL_NVLS_ENABLE=0"),
        (Algorithm::CollnetChain, Protocol::Simple, "NCCL_COLLNET_ENABLE=0"),
    ] {
        let function = Function { algorithm, protocol, ..plain.function };
        assert!(refused(&[Coll { function, ..plain }], &|_| ()).contains(setting));
    }
    let pat = Function { algorithm: Algorithm::Pat, ..copies(Collective::AllGather, Protocol::Simple) };
    assert!(refused(&[Coll { function: pat, ..plain }], &|_| ()).contains("NCCL_ALGO=RING,TREE"));
    assert!(refused(&[Coll { registered: true, ..plain }], &|_| ()).contains("NCCL_LOCAL_REGISTER=0"));
    assert!(refused(&[Coll { grains: 0, ..plain }], &|_| ()).contains("have no elements"));
    let head = world.layout.kernel_args.size;
    assert!(refused(&[plain], &|arguments| arguments.truncate(head)).contains("beyond its arguments"));
    assert!(refused(&[plain], &|arguments| arguments.truncate(8)).contains("their head alone"));
    let mask = world.layout.kernel_args.channel_mask;
    assert!(refused(&[plain], &|arguments| put(arguments, mask, &3_u64.to_ne_bytes())).contains("1 blocks"));
}
