//! A hand-made communicator, and everything its kernels need.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};

use super::super::function::{Algorithm, Collective, Function, FunctionTable, Protocol};
use super::super::memory::{self, LINE, Place};
use super::super::workers::Workers;
use super::super::{GpuPace, Model, NcclKernels, Pace};
use super::data::{Data, Memory};
use super::made_up::made_up;
use crate::cuda::{Arguments, Kernels, Launch, Ran};
use crate::library::{Layout, layout};
use crate::time::DeviceTimer;
use elements::reduce::Reduction;
use elements::words::Datatype;

/// Bytes of a Simple slot.
const STEP: usize = 4096;
/// Bytes of an LL slot.
const LL_STEP: usize = 1024;
const CHANNELS: usize = 8;

pub(super) fn sum(collective: Collective, protocol: Protocol) -> Function {
    let (reduction, datatype) = (Some(Reduction::Sum), Datatype::F32);
    Function { collective, reduction, datatype, algorithm: Algorithm::Ring, protocol }
}

pub(super) fn copies(collective: Collective, protocol: Protocol) -> Function {
    Function { collective, reduction: None, datatype: Datatype::I8, algorithm: Algorithm::Ring, protocol }
}

/// A send and a receive: address, bytes and peer.
pub(super) struct Exchange {
    pub(super) send: Option<(usize, usize, usize)>,
    pub(super) receive: Option<(usize, usize, usize)>,
    pub(super) parts: u8,
    pub(super) protocol: Protocol,
}

/// A collective.
#[derive(Clone, Copy)]
pub(super) struct Coll {
    pub(super) function: Function,
    pub(super) count: usize,
    pub(super) channels: usize,
    /// The size of chunks.
    pub(super) grains: u64,
    pub(super) root: i32,
    pub(super) argument: u64,
    pub(super) by_address: bool,
    pub(super) profiled: bool,
    pub(super) registered: bool,
    pub(super) send: usize,
    pub(super) receive: usize,
}

impl Coll {
    pub(super) fn new(function: Function, count: usize) -> Coll {
        let grains = match (function.protocol, function.collective) {
            (Protocol::Ll, _) => 32,
            (_, Collective::Broadcast | Collective::Reduce) => 8,
            _ => 32,
        };
        Coll {
            function,
            count,
            channels: 1,
            grains,
            root: 0,
            argument: 0,
            by_address: false,
            profiled: false,
            registered: false,
            send: 0,
            receive: 0,
        }
    }

    pub(super) fn on(self, data: &Data, rank: usize) -> Coll {
        Coll { send: data.send(rank), receive: data.receive(rank), ..self }
    }
}

/// How ranks are connected.
#[derive(Clone, Copy)]
pub(super) enum Via {
    /// Both use the same memory.
    Memory,
    /// A proxy moves data from one side's slots to the other's.
    Proxy { shared: bool, ll: bool },
}

/// The profiler's structures in the release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    None,
    Counters,
    Rings,
}

/// A communicator, and everything its kernels need.
pub(super) struct World {
    pub(super) layout: Layout,
    via: Via,
    pub(super) kernels: NcclKernels,
    ranks: Vec<Rank>,
    links: Vec<Path>,
}

/// The memory of a rank.
pub(super) struct Rank {
    pub(super) comm: Memory,
    channels: Memory,
    abort: Memory,
    pub(super) started: Memory,
    pub(super) completed: Memory,
    pub(super) consumed: Memory,
    /// By channel: the ranks in the ring's order, pointers to the peers, the peers.
    rings: Vec<Memory>,
    pointers: Vec<Memory>,
    peers: Vec<Vec<Memory>>,
}

/// The connection from one rank to another.
struct Path {
    from: Side,
    /// Separate memory when there is a proxy; otherwise `from` is used for both.
    to: Option<Side>,
}

/// One rank's side of it.
struct Side {
    head: Memory,
    tail: Memory,
    ll: Memory,
    simple: Memory,
    fifo: Option<Memory>,
}

impl Side {
    fn new(layout: &Layout, via: Via) -> Side {
        let fifo = match via {
            Via::Memory => None,
            Via::Proxy { shared, .. } => {
                let fifo = Memory::new(8 * layout.conn_fifo.size);
                for slot in 0..8_usize {
                    let entry = slot * layout.conn_fifo.size;
                    fifo.write(entry + layout.conn_fifo.bytes, &(-1_i64).to_ne_bytes());
                    if shared {
                        fifo.write(entry + layout.conn_fifo.mode, &1_i32.to_ne_bytes());
                        fifo.write(entry + layout.conn_fifo.offset, &((slot * 3 % 8 * 2 * STEP) as i32).to_ne_bytes());
                    }
                }
                Some(fifo)
            }
        };
        let (ll, simple) = (Memory::new(8 * LL_STEP), Memory::new(16 * STEP));
        Side { head: Memory::new(8), tail: Memory::new(8), ll, simple, fifo }
    }

    /// Connects one end of a connection.
    fn connect(&self, layout: &Layout, connection: &mut [u8]) {
        let layout = &layout.conn_info;
        put(connection, layout.buffs, &self.ll.address().to_ne_bytes());
        put(connection, layout.buffs + 16, &self.simple.address().to_ne_bytes());
        put(connection, layout.head, &self.head.address().to_ne_bytes());
        put(connection, layout.tail, &self.tail.address().to_ne_bytes());
        put(connection, layout.step_size, &(STEP as i32).to_ne_bytes());
        if let Some(fifo) = &self.fifo {
            put(connection, layout.conn_fifo, &fifo.address().to_ne_bytes());
        }
    }

    /// Where a step's slot is.
    fn slot(&self, layout: &Layout, step: u64, ll: bool) -> Place {
        let slot = (step % 8) as usize;
        let told = self.fifo.as_ref().unwrap().place().at(slot * layout.conn_fifo.size);
        match (ll, told.int(layout.conn_fifo.mode)) {
            (true, _) => self.ll.place().at(slot * LL_STEP),
            (false, 0) => self.simple.place().at(slot * STEP),
            (false, _) => self.simple.place().at(told.int(layout.conn_fifo.offset) as usize),
        }
    }
}

/// Works of a batch, encoded.
pub(super) struct Packed {
    pub(super) kind: u64,
    pub(super) function: u64,
    pub(super) works: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
pub(super) struct BatchHead {
    pub(super) base: usize,
    pub(super) works: u32,
    pub(super) kind: u64,
    pub(super) function: u64,
    pub(super) jump: u64,
    pub(super) extends: bool,
}

impl World {
    pub(super) fn new(ranks: usize, via: Via) -> World {
        World::of(ranks, via, 23007, Kind::Rings)
    }

    pub(super) fn of(ranks: usize, via: Via, release: u32, kind: Kind) -> World {
        let layout = made_up(kind);
        let functions = FunctionTable::invert(release, &FunctionTable::made_up(release)).unwrap();
        let model = Model { layout, release, functions, workers: Workers::default() };
        let timer = |rank| DeviceTimer {
            base: rank as u64 * 1_000_000,
            reference: 0,
            drift_ppm: 20.0,
            granularity_ns: 1000,
            wander_ppm: 0.0,
        };
        let pace = Pace { gpus: (0..ranks).map(|rank| GpuPace::new(timer(rank))).collect() };
        let kernels = NcclKernels { model, pace: Arc::new(pace) };
        let mut world = World { layout, via, kernels, ranks: Vec::new(), links: Vec::new() };
        world.ranks = (0..ranks).map(|rank| world.make_rank(rank, ranks)).collect();
        world.connect();
        world
    }

    fn make_rank(&self, rank: usize, ranks: usize) -> Rank {
        let layout = &self.layout;
        let ring = layout.profiler.map_or(8, |profiler| profiler.size);
        let made = Rank {
            comm: Memory::new(layout.kernel_comm.size),
            channels: Memory::new(CHANNELS * layout.channel.size),
            abort: Memory::new(4),
            started: Memory::new(CHANNELS * ring),
            completed: Memory::new(CHANNELS * ring),
            consumed: Memory::new(CHANNELS * 4),
            rings: (0..CHANNELS).map(|_| Memory::new(4 * ranks)).collect(),
            pointers: (0..CHANNELS).map(|_| Memory::new(8 * ranks)).collect(),
            peers: (0..CHANNELS).map(|_| (0..ranks).map(|_| Memory::new(layout.channel_peer.size)).collect()).collect(),
        };
        let (comm, offsets) = (&made.comm, &layout.kernel_comm);
        comm.write(offsets.rank, &(rank as i32).to_ne_bytes());
        comm.write(offsets.n_ranks, &(ranks as i32).to_ne_bytes());
        for (protocol, bytes) in [8 * LL_STEP, 8 * 1920, 8 * STEP].into_iter().enumerate() {
            comm.write(offsets.buff_sizes + 4 * protocol, &(bytes as i32).to_ne_bytes());
        }
        comm.write(offsets.p2p_chunk_size, &(STEP as i32).to_ne_bytes());
        comm.write(offsets.abort_flag, &made.abort.address().to_ne_bytes());
        comm.write(offsets.channels, &made.channels.address().to_ne_bytes());
        let optional = [
            (offsets.work_consumed, &made.consumed),
            (offsets.work_started, &made.started),
            (offsets.work_completed, &made.completed),
        ];
        for (offset, memory) in optional {
            if let Some(offset) = offset {
                comm.write(offset, &memory.address().to_ne_bytes());
            }
        }
        for channel in 0..CHANNELS {
            let (at, offsets) = (channel * layout.channel.size, &layout.channel);
            let write = |offset: usize, bytes: &[u8]| made.channels.write(at + offset, bytes);
            let of = |index: usize| member(ranks, channel, index) as i32;
            let index = place_in_ring(ranks, channel, rank);
            for back in 0..ranks {
                made.rings[channel].write(4 * back, &of(index + back).to_ne_bytes());
            }
            write(offsets.ring_prev, &of(index + ranks - 1).to_ne_bytes());
            write(offsets.ring_next, &of(index + 1).to_ne_bytes());
            write(offsets.ring_index, &(index as i32).to_ne_bytes());
            write(offsets.ring_user_ranks, &made.rings[channel].address().to_ne_bytes());
            write(offsets.peers, &made.pointers[channel].address().to_ne_bytes());
            write(offsets.tree_up, &(-1_i32).to_ne_bytes());
            for child in 0..3 {
                write(offsets.tree_down + 4 * child, &(-1_i32).to_ne_bytes());
            }
            for peer in 0..ranks {
                made.pointers[channel].write(8 * peer, &made.peers[channel][peer].address().to_ne_bytes());
            }
        }
        made
    }

    /// Connects every rank with every other one, in both directions, on every channel, for
    /// collectives and for sends.
    fn connect(&mut self) {
        let (layout, via) = (self.layout, self.via);
        let size = layout.conn_info.size;
        for channel in 0..CHANNELS {
            for (from, to) in (0..self.ranks.len()).flat_map(|from| (0..self.ranks.len()).map(move |to| (from, to))) {
                for connection in 0..2 {
                    let path = Path {
                        from: Side::new(&layout, via),
                        to: matches!(via, Via::Proxy { .. }).then(|| Side::new(&layout, via)),
                    };
                    let mut info = vec![0; size];
                    path.from.connect(&layout, &mut info);
                    self.ranks[from].peers[channel][to].write(layout.channel_peer.send + connection * size, &info);
                    path.to.as_ref().unwrap_or(&path.from).connect(&layout, &mut info);
                    self.ranks[to].peers[channel][from].write(layout.channel_peer.recv + connection * size, &info);
                    self.links.push(path);
                }
            }
        }
    }

    /// Builds a tree of the ranks from each one's parent.
    pub(super) fn plant(&self, parents: &[i32]) {
        let layout = &self.layout.channel;
        for (rank, &up) in parents.iter().enumerate() {
            let children = (0..parents.len()).filter(|&child| parents[child] == rank as i32);
            for channel in 0..CHANNELS {
                let (at, channels) = (channel * layout.size, &self.ranks[rank].channels);
                channels.write(at + layout.tree_up, &up.to_ne_bytes());
                for (index, child) in children.clone().enumerate() {
                    channels.write(at + layout.tree_down + 4 * index, &(child as i32).to_ne_bytes());
                }
            }
        }
    }

    pub(super) fn rank(&self, rank: usize) -> &Rank {
        &self.ranks[rank]
    }

    pub(super) fn gpu(&self, rank: usize) -> &GpuPace {
        self.kernels.pace.gpu(rank as u32)
    }

    pub(super) fn abort(&self, rank: usize) {
        self.ranks[rank].abort.place().release_int(1);
    }

    /// Runs something for each rank at the same time, with a proxy if there is one.
    pub(super) fn run_all(&self, run: impl Fn(usize) -> Ran + Sync) -> Vec<Ran> {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            self.start_proxy(scope, &ended);
            let kernels: Vec<_> = (0..self.ranks.len())
                .map(|rank| {
                    let run = &run;
                    scope.spawn(move || run(rank))
                })
                .collect();
            let ran = kernels.into_iter().map(|kernel| kernel.join().unwrap()).collect();
            ended.store(true, Ordering::Relaxed);
            ran
        })
    }

    /// Moves sent data, as NCCL's proxy does, until everything has ended.
    fn start_proxy<'s>(&'s self, scope: &'s Scope<'s, '_>, ended: &'s AtomicBool) {
        let Via::Proxy { ll, .. } = self.via else { return };
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for path in &self.links {
                    self.forward(path, ll);
                }
                thread::yield_now();
            }
        });
    }

    /// Moves the next steps of a path, if they are there.
    fn forward(&self, path: &Path, ll: bool) {
        let (from, to) = (&path.from, path.to.as_ref().unwrap());
        let bytes = self.layout.conn_fifo.bytes;
        loop {
            // Both sides count steps alike; `head` is what the proxy has given back.
            let step = from.head.place().acquire();
            let entry = from.fifo.as_ref().unwrap().place().at((step % 8) as usize * self.layout.conn_fifo.size);
            // The size is valid once the step is announced.
            let told = || entry.word(bytes) as i64;
            let there = if ll {
                usize::try_from(told()).is_ok_and(|told| self.lines_there(from, step, told))
            } else {
                from.tail.place().acquire() > step
            };
            let told = told();
            if !there || to.head.place().acquire() + 8 <= step {
                return;
            }
            if told > 0 {
                let (source, target) = (from.slot(&self.layout, step, ll), to.slot(&self.layout, step, ll));
                // The order does not matter, except for LL, where a line's flag never arrives
                // before its data.
                for word in (0..told as usize).step_by(8) {
                    target.at(word).release(source.at(word).acquire());
                }
            }
            entry.set_word(bytes, u64::MAX);
            if !ll {
                to.tail.place().release(step + 1);
            }
            from.head.place().release(step + 1);
        }
    }

    fn lines_there(&self, side: &Side, step: u64, bytes: usize) -> bool {
        let slot = side.slot(&self.layout, step, true);
        (0..bytes).step_by(LINE).all(|line| memory::open_line(slot.at(line), step as u32 + 1).is_some())
    }

    pub(super) fn collective(&self, rank: usize, works: &[Coll]) -> Ran {
        self.launch(rank, &self.collective_arguments(rank, works), works[0].channels as u32)
    }

    pub(super) fn collective_arguments(&self, rank: usize, works: &[Coll]) -> Vec<u8> {
        let channels = works[0].channels;
        self.arguments(rank, (1 << channels) - 1, &[self.pack(works)], &vec![vec![0]; channels])
    }

    pub(super) fn exchanges(&self, rank: usize, exchanges: &[Exchange]) -> Ran {
        let layout = &self.layout.work_p2p;
        let encode = |exchange: &Exchange| {
            let mut work = vec![0; layout.size];
            for offset in [layout.send_rank, layout.recv_rank] {
                put(&mut work, offset, &(-1_i32).to_ne_bytes());
            }
            // 4096 bytes; or 512 with LL, whose lines fill a slot.
            let ll = exchange.protocol == Protocol::Ll;
            let chunk = if ll { 7 << 3 } else { 10 << 3 };
            if let Some((address, bytes, peer)) = exchange.send {
                put(&mut work, layout.send_addr, &address.to_ne_bytes());
                put(&mut work, layout.send_bytes, &bytes.to_ne_bytes());
                put(&mut work, layout.send_rank, &(peer as i32).to_ne_bytes());
                put(&mut work, layout.n_send_channels, &[exchange.parts]);
                put(&mut work, layout.send_chunk_size, &[chunk]);
                put_bits(&mut work, layout.send_proto_ll, ll.into());
            }
            if let Some((address, bytes, peer)) = exchange.receive {
                put(&mut work, layout.recv_addr, &address.to_ne_bytes());
                put(&mut work, layout.recv_bytes, &bytes.to_ne_bytes());
                put(&mut work, layout.recv_rank, &(peer as i32).to_ne_bytes());
                put(&mut work, layout.n_recv_channels, &[exchange.parts]);
                put(&mut work, layout.recv_chunk_size, &[chunk]);
                put_bits(&mut work, layout.recv_proto_ll, ll.into());
            }
            put(&mut work, layout.n_p2p_channels, &[CHANNELS as u8]);
            put(&mut work, layout.channel_base, &[1]);
            work
        };
        let packed = Packed { kind: 0, function: 0, works: exchanges.iter().map(encode).collect() };
        let arguments = self.arguments(rank, (1 << CHANNELS) - 1, &[packed], &vec![vec![0]; CHANNELS]);
        self.launch(rank, &arguments, CHANNELS as u32)
    }

    /// A broadcast by every rank that has data, in two parts on two channels.
    pub(super) fn broadcasts(&self, rank: usize, data: &Data, counts: &[usize], protocol: Protocol) -> Ran {
        let layout = self.layout.work_bcast.as_ref().unwrap();
        let ranks = self.ranks.len();
        let function = self.kernels.model.functions.id(copies(Collective::AllGatherV, protocol));
        let parts = [0, 1].map(|channel| {
            let place = |rank| place_in_ring(ranks, channel, rank);
            let mut roots: Vec<(usize, usize)> =
                (0..ranks).map(|root| ((place(rank) + ranks - place(root)) % ranks, root)).collect();
            roots.sort_unstable();
            let works = roots.into_iter().filter(|&(_, root)| counts[root] > 0).map(|(depth, root)| {
                let half = counts[root] / 2 * 4;
                let (begin, end) = if channel == 0 { (0, half) } else { (half, counts[root] * 4) };
                let chunk = if protocol == Protocol::Ll { LL_STEP / 2 } else { STEP };
                let mut work = vec![0; layout.size];
                put(&mut work, layout.ring_depth, &(depth as i32).to_ne_bytes());
                put(&mut work, layout.chunk_size, &(chunk as i32).to_ne_bytes());
                if depth == 0 {
                    put(&mut work, layout.sendbuff, &(data.send(rank) + begin).to_ne_bytes());
                }
                put(&mut work, layout.recvbuff, &(data.receive(rank) + root * 9000 * 4 + begin).to_ne_bytes());
                put(&mut work, layout.bytes, &(end - begin).to_ne_bytes());
                work
            });
            Packed { kind: 3, function, works: works.collect() }
        });
        self.launch(rank, &self.arguments(rank, 0b11, &parts, &[vec![0], vec![1]]), 2)
    }

    pub(super) fn pack(&self, works: &[Coll]) -> Packed {
        let function = self.kernels.model.functions.id(works[0].function);
        Packed { kind: 1, function, works: works.iter().map(|work| self.encode(work)).collect() }
    }

    pub(super) fn encode(&self, coll: &Coll) -> Vec<u8> {
        let layout = &self.layout.work_coll;
        let mut work = vec![0; layout.size];
        let between = if coll.channels > 1 { coll.count / coll.channels } else { 0 };
        let rest = coll.channels as i64 - 1;
        let low = coll.count - between * rest as usize;
        put_bits(&mut work, layout.channel_lo, 0);
        put_bits(&mut work, layout.channel_hi, rest as u64);
        put_bits(&mut work, layout.red_op_arg_is_ptr, coll.by_address.into());
        put_bits(&mut work, layout.reg_used, coll.registered.into());
        if let Some(bits) = layout.profiler_enabled {
            put_bits(&mut work, bits, coll.profiled.into());
        }
        put(&mut work, layout.root, &coll.root.to_ne_bytes());
        put(&mut work, layout.sendbuff, &coll.send.to_ne_bytes());
        put(&mut work, layout.recvbuff, &coll.receive.to_ne_bytes());
        put(&mut work, layout.count_lo, &low.to_ne_bytes());
        put(&mut work, layout.count_mid, &(if rest > 1 { between } else { 0 }).to_ne_bytes());
        put(&mut work, layout.count_hi, &between.to_ne_bytes());
        for bits in [layout.chunk_grains_lo, layout.chunk_grains_mid, layout.chunk_grains_hi] {
            put_bits(&mut work, bits, coll.grains);
        }
        put(&mut work, layout.red_op_arg, &coll.argument.to_ne_bytes());
        work
    }

    /// The arguments of a kernel: a table of batches, and for each channel of the mask which of
    /// them it plays.
    pub(super) fn arguments(&self, rank: usize, mask: u64, table: &[Packed], channels: &[Vec<usize>]) -> Vec<u8> {
        let turns = channels.iter().map(Vec::len).max().unwrap();
        let mut arguments = self.head(rank, mask, turns * channels.len());
        let bases: Vec<usize> = table
            .iter()
            .map(|packed| {
                let base = arguments.len();
                arguments.extend(packed.works.iter().flatten());
                base
            })
            .collect();
        for (block, batches) in channels.iter().enumerate() {
            for (turn, &index) in batches.iter().enumerate() {
                let last = turn + 1 == batches.len();
                let Packed { kind, function, works } = &table[index];
                let head = BatchHead {
                    base: bases[index],
                    works: works.len() as u32,
                    kind: *kind,
                    function: *function,
                    jump: if last { 0 } else { channels.len() as u64 },
                    extends: false,
                };
                self.batch(&mut arguments, turn * channels.len() + block, head);
            }
        }
        arguments
    }

    /// The head of a kernel's arguments, with room for this many batches.
    pub(super) fn head(&self, rank: usize, mask: u64, batches: usize) -> Vec<u8> {
        let mut arguments = vec![0; self.layout.kernel_args.size + batches * self.layout.work_batch.size];
        put(&mut arguments, self.layout.kernel_args.comm, &self.ranks[rank].comm.address().to_ne_bytes());
        put(&mut arguments, self.layout.kernel_args.channel_mask, &mask.to_ne_bytes());
        arguments
    }

    pub(super) fn batch(&self, arguments: &mut [u8], index: usize, head: BatchHead) {
        let layout = &self.layout.work_batch;
        let batch = &mut arguments[self.layout.kernel_args.size + index * layout.size..][..layout.size];
        put_bits(batch, layout.next_jump, head.jump);
        put_bits(batch, layout.next_extends, head.extends.into());
        put_bits(batch, layout.work_type, head.kind);
        put_bits(batch, layout.func_id, head.function);
        put(batch, layout.offset_base, &(head.base as u32).to_ne_bytes());
        put(batch, layout.offset_bitset, &((1_u64 << head.works) - 1).to_ne_bytes());
    }

    pub(super) fn launch(&self, rank: usize, arguments: &[u8], blocks: u32) -> Ran {
        self.kernels.run(&Launch {
            device: rank as u32,
            symbol: "_Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE".into(),
            grid: [blocks, 1, 1],
            arguments: Arguments::new(arguments),
        })
    }
}

/// The rank at a place of a channel's ring, counted from rank 0. Every second ring runs the other
/// way.
fn member(ranks: usize, channel: usize, place: usize) -> usize {
    let place = place % ranks;
    if channel.is_multiple_of(2) { place } else { (ranks - place) % ranks }
}

/// The place of a rank.
fn place_in_ring(ranks: usize, channel: usize, rank: usize) -> usize {
    member(ranks, channel, rank)
}

pub(super) fn put(structure: &mut [u8], offset: usize, bytes: &[u8]) {
    structure[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn put_bits(structure: &mut [u8], bits: layout::Bits, value: u64) {
    assert!(bits.width == 64 || value < 1 << bits.width);
    for bit in 0..bits.width {
        let (byte, mask) = (((bits.offset + bit) / 8) as usize, 1 << ((bits.offset + bit) % 8));
        structure[byte] = if value >> bit & 1 == 1 { structure[byte] | mask } else { structure[byte] & !mask };
    }
}
