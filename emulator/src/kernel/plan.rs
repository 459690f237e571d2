//! The content of a launch, read from the kernel's arguments: for each block the works of its
//! channel, and for the truth the operations that these works are parts of.
//!
//! ```text
//!  arguments: head | batch 0 | batch 1 | ... | works (or in the FIFO, or in their own memory)
//!                    └ block 0's first; nextJump leads to its next, nextExtends joins the two
//! ```

use std::collections::HashMap;

use super::Model;
use super::function::{Algorithm, Collective, Function, Protocol};
use super::memory::Place;
use super::unplayable::Unplayable;
use crate::truth;
use elements::reduce::Reduction;

/// The content of a launch.
#[derive(Debug)]
pub(super) struct Plan {
    /// The communicator.
    pub(super) comm: Comm,
    /// What each block does.
    pub(super) shares: Vec<Share>,
    /// The operations of all blocks together.
    pub(super) operations: Vec<truth::Operation>,
}

/// The device communicator. A kernel reads everything except the flag when it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comm {
    /// Where it is.
    pub(super) place: Place,
    /// This rank.
    pub(super) rank: i32,
    /// The number of ranks.
    pub(super) ranks: usize,
    /// Bytes of a connection's buffers, by protocol.
    pub(super) buffer_bytes: [usize; 3],
    /// Bytes of a step of a send or receive.
    pub(super) exchange_step_bytes: usize,
    /// The flag that ends all kernels.
    pub(super) abort: Place,
    /// The first channel.
    pub(super) channels: Place,
}

/// What a block does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Its channel.
    pub(super) channel: u32,
    /// Works, one batch after the other.
    pub(super) batches: Vec<Batch>,
}

/// Works that a block begins together, as the profiler sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The works.
    pub(super) works: Works,
    /// How far the work FIFO has been read after this batch, if the host waits for that.
    pub(super) consumed: Option<u32>,
}

/// Works of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Works {
    /// All played at the same time.
    Exchanges(Vec<Exchange>),
    /// Played one after the other.
    Collectives(Function, Vec<Part>),
    /// Played in turn, a chunk of each.
    Broadcasts(Protocol, Vec<Broadcast>),
}

impl Works {
    /// For each of the works, whether the profiler wants events for it.
    pub(super) fn profiled(&self) -> Vec<bool> {
        match self {
            Self::Exchanges(works) => works.iter().map(|work| work.profiled).collect(),
            Self::Collectives(_, works) => works.iter().map(|work| work.profiled).collect(),
            // NCCL has no such bit for them.
            Self::Broadcasts(_, works) => vec![false; works.len()],
        }
    }
}

/// A channel's part of a collective.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The index of its operation.
    pub(super) operation: u32,
    /// Whether the profiler wants events for it.
    pub(super) profiled: bool,
    /// The root.
    pub(super) root: i32,
    /// The address of the send buffer.
    pub(super) send: usize,
    /// The address of the receive buffer.
    pub(super) receive: usize,
    /// Elements of the whole collective.
    pub(super) total: usize,
    /// The first element of the part.
    pub(super) first: usize,
    /// Elements of the part.
    pub(super) count: usize,
    /// Elements of a chunk.
    pub(super) chunk: usize,
    /// The argument of the reduction.
    pub(super) argument: u64,
}

/// A send and a receive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// Whether the profiler wants events for it.
    pub(super) profiled: bool,
    /// The channel's part of the send.
    pub(super) send: Option<Transfer>,
    /// The channel's part of the receive.
    pub(super) receive: Option<Transfer>,
}

/// A channel's part of a send or of a receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The index of its operation.
    pub(super) operation: u32,
    /// The other side.
    pub(super) peer: i32,
    /// Where the data is.
    pub(super) address: usize,
    /// How many bytes.
    pub(super) bytes: usize,
    /// Bytes of a chunk.
    pub(super) chunk: usize,
    /// How it travels.
    pub(super) protocol: Protocol,
}

/// A channel's part of one of several broadcasts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broadcast {
    /// The index of its operation.
    pub(super) operation: u32,
    /// How many ranks the data passes before it reaches this one.
    pub(super) depth: i32,
    /// The address of the send buffer, at the root.
    pub(super) send: usize,
    /// The address of the receive buffer.
    pub(super) receive: usize,
    /// How many bytes.
    pub(super) bytes: usize,
    /// Bytes of a chunk.
    pub(super) chunk: usize,
}

impl Plan {
    /// Reads the arguments of a launch of this many blocks.
    ///
    /// # Safety
    ///
    /// They are the arguments of a kernel of the model's library, aligned to 16 bytes, and
    /// everything they point to may be used until the kernel has ended.
    pub(super) unsafe fn read(model: &Model, arguments: &[u8], blocks: u32) -> Result<Plan, Unplayable> {
        let layout = &model.layout;
        if arguments.len() < layout.kernel_args.size {
            return Err(Unplayable::misread(format!(
                "its arguments have {} bytes, their head alone {}",
                arguments.len(),
                layout.kernel_args.size
            )));
        }
        // SAFETY: the caller's promise. The arguments are not written to.
        let head = unsafe { Place::new(arguments.as_ptr().cast_mut()) };
        let comm = Comm::read(model, head)?;
        let mask = head.word(layout.kernel_args.channel_mask);
        if mask.count_ones() != blocks {
            return Err(Unplayable::misread(format!("it has {blocks} blocks for the channels {mask:#x}")));
        }
        let mut reader = Reader {
            model,
            arguments: head,
            end: arguments.len(),
            comm,
            operations: Vec::new(),
            known: HashMap::new(),
        };
        let mut shares = Vec::with_capacity(blocks as usize);
        for (block, channel) in (0..64).filter(|channel| mask >> channel & 1 == 1).enumerate() {
            shares.push(reader.share(block, channel)?);
        }
        Ok(Plan { comm, shares, operations: reader.operations })
    }
}

impl Comm {
    fn read(model: &Model, head: Place) -> Result<Comm, Unplayable> {
        let layout = &model.layout.kernel_comm;
        let missing = |what: &str| Unplayable::misread(format!("there is no {what}"));
        let place = head.follow(model.layout.kernel_args.comm).ok_or_else(|| missing("communicator"))?;
        let ranks = usize::try_from(place.int(layout.n_ranks)).unwrap_or(0);
        let rank = place.int(layout.rank);
        if ranks == 0 || usize::try_from(rank).map_or(true, |rank| rank >= ranks) {
            return Err(Unplayable::misread(format!("its communicator is of rank {rank} among {ranks}")));
        }
        let buffer = |protocol: usize| place.int(layout.buff_sizes + 4 * protocol) as usize;
        Ok(Comm {
            place,
            rank,
            ranks,
            buffer_bytes: [buffer(0), buffer(1), buffer(2)],
            exchange_step_bytes: place.int(layout.p2p_chunk_size) as usize,
            abort: place.follow(layout.abort_flag).ok_or_else(|| missing("abort flag"))?,
            channels: place.follow(layout.channels).ok_or_else(|| missing("array of channels"))?,
        })
    }
}

/// `enum ncclDevWorkStorageType`
mod storage {
    pub(super) const ARGUMENTS: u8 = 0;
    pub(super) const FIFO: u8 = 1;
}

/// `enum ncclDevWorkType`
mod kind {
    pub(super) const EXCHANGE: u64 = 0;
    pub(super) const COLLECTIVE: u64 = 1;
    pub(super) const REGISTERED: u64 = 2;
    pub(super) const BROADCAST: u64 = 3;
}

/// What identifies the operation that a part belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Whole {
    /// All channels read the same structure, at this address.
    Collective(Place),
    Send(Place),
    Receive(Place),
    /// Each channel has its own structure, but in one kernel a root has only one broadcast.
    Broadcast(i32),
}

struct Reader<'m> {
    model: &'m Model,
    arguments: Place,
    /// The end of the arguments, in bytes.
    end: usize,
    comm: Comm,
    operations: Vec<truth::Operation>,
    known: HashMap<Whole, u32>,
}

impl Reader<'_> {
    fn share(&mut self, block: usize, channel: u32) -> Result<Share, Unplayable> {
        let mut batches = Vec::new();
        let mut next = Some(block);
        while let Some(first) = next {
            let (batch, after) = self.batch(first, channel)?;
            batches.push(batch);
            next = after;
        }
        Ok(Share { channel, batches })
    }

    /// The batch with this index and those that extend it, and the index of the next one.
    fn batch(&mut self, mut index: usize, channel: u32) -> Result<(Batch, Option<usize>), Unplayable> {
        let layout = &self.model.layout;
        let mut places = Vec::new();
        loop {
            let offset = layout.kernel_args.size + index * layout.work_batch.size;
            if offset + layout.work_batch.size > self.end {
                return Err(Unplayable::misread(format!("its batch {index} lies beyond its arguments")));
            }
            let batch = self.arguments.at(offset);
            let kind = batch.bits(layout.work_batch.work_type);
            let size = match kind {
                kind::EXCHANGE => layout.work_p2p.size,
                kind::COLLECTIVE => layout.work_coll.size,
                kind::REGISTERED => return Err(Unplayable::registered()),
                _ => layout.work_bcast.map_or(0, |layout| layout.size),
            };
            let base = batch.int(layout.work_batch.offset_base) as u32 as usize;
            let set = batch.word(layout.work_batch.offset_bitset);
            for bit in (0..64).filter(|bit| set >> bit & 1 == 1) {
                places.push(self.work(base + bit * size, size)?);
            }
            let jump = batch.bits(layout.work_batch.next_jump) as usize;
            if batch.bit(layout.work_batch.next_extends) {
                if jump == 0 {
                    return Err(Unplayable::misread(format!("its batch {index} extends itself")));
                }
                index += jump;
                continue;
            }
            let function = self.model.functions.get(batch.bits(layout.work_batch.func_id));
            let works = self.works(kind, function, &places, channel)?;
            // Up to 2.26 the host waits for these words before it uses the FIFO again.
            let storage = self.arguments.byte(layout.kernel_args.work_storage_type);
            let read = (base + (64 - set.leading_zeros() as usize) * size) as u32;
            let consumed = layout.kernel_comm.work_consumed.filter(|_| storage == storage::FIFO).map(|_| read);
            return Ok((Batch { works, consumed }, (jump != 0).then_some(index + jump)));
        }
    }

    /// The work at this offset.
    fn work(&self, offset: usize, size: usize) -> Result<Place, Unplayable> {
        let layout = &self.model.layout.kernel_args;
        if self.arguments.byte(layout.work_storage_type) == storage::ARGUMENTS {
            if offset + size > self.end {
                return Err(Unplayable::misread(format!("its work at byte {offset} lies beyond its arguments")));
            }
            return Ok(self.arguments.at(offset));
        }
        let mask = self.arguments.int(layout.work_mask) as u32 as usize;
        let buffer = self.arguments.follow(layout.work_buf);
        Ok(buffer.ok_or_else(|| Unplayable::misread("there is no buffer of works"))?.at(offset & mask))
    }

    fn works(
        &mut self,
        kind: u64,
        function: Option<Function>,
        places: &[Place],
        channel: u32,
    ) -> Result<Works, Unplayable> {
        if kind == kind::EXCHANGE {
            let works = places.iter().map(|&work| self.exchange(work, channel));
            return Ok(Works::Exchanges(works.collect::<Result<_, _>>()?));
        }
        let function = function.ok_or_else(|| Unplayable::misread("its function is not in the table"))?;
        playable(function)?;
        let expected = match function.collective {
            Collective::SendRecv => kind::EXCHANGE,
            Collective::AllGatherV => kind::BROADCAST,
            _ => kind::COLLECTIVE,
        };
        if kind != expected {
            return Err(Unplayable::misread(format!(
                "its works of kind {kind} are for {}",
                function.collective.name()
            )));
        }
        if kind == kind::BROADCAST {
            let works = places.iter().map(|&work| self.broadcast(function, work, channel));
            return Ok(Works::Broadcasts(function.protocol, works.collect::<Result<_, _>>()?));
        }
        let works = places.iter().map(|&work| self.part(function, work, channel));
        Ok(Works::Collectives(function, works.collect::<Result<_, _>>()?))
    }

    fn part(&mut self, function: Function, work: Place, channel: u32) -> Result<Part, Unplayable> {
        let layout = &self.model.layout.work_coll;
        if work.bit(layout.reg_used) || layout.net_reg_used.is_some_and(|bit| work.bit(bit)) {
            return Err(Unplayable::registered());
        }
        let (first, last) = (work.bits(layout.channel_lo) as u32, work.bits(layout.channel_hi) as u32);
        if !(first..=last).contains(&channel) {
            return Err(Unplayable::misread(format!("channel {channel} has a work of the channels {first} to {last}")));
        }
        let [low, middle, high] =
            [layout.count_lo, layout.count_mid, layout.count_hi].map(|offset| work.word(offset) as usize);
        let between = (last - first).saturating_sub(1) as usize;
        let element = function.datatype.size();
        let (begin, count, grains) = if channel == first {
            (0, low, layout.chunk_grains_lo)
        } else if channel == last {
            (low + between * middle, high, layout.chunk_grains_hi)
        } else {
            (low + (channel - first - 1) as usize * middle, middle, layout.chunk_grains_mid)
        };
        let chunk = work.bits(grains) as usize * (function.protocol.grain() / element);
        if chunk == 0 && count > 0 {
            return Err(Unplayable::misread(format!("its chunks on channel {channel} have no elements")));
        }
        let total = low + between * middle + high;
        let root = work.int(layout.root);
        let rooted = matches!(function.collective, Collective::Broadcast | Collective::Reduce);
        let (send, receive) = (work.word(layout.sendbuff), work.word(layout.recvbuff));
        let operation = self.operation(Whole::Collective(work), || truth::Operation {
            function: function.collective.name().into(),
            send,
            receive,
            count: total as u64,
            datatype: function.datatype.nccl_name().into(),
            root: if rooted { root } else { -1 },
            algorithm: function.algorithm.name().into(),
            protocol: function.protocol.name().into(),
            channels: (first, last),
        });
        Ok(Part {
            operation,
            profiled: layout.profiler_enabled.is_some_and(|bit| work.bit(bit)),
            root,
            send: send as usize,
            receive: receive as usize,
            total,
            first: begin,
            count,
            chunk,
            argument: self.argument(function, work),
        })
    }

    /// The argument of the reduction, which may be a number in device memory.
    fn argument(&self, function: Function, work: Place) -> u64 {
        let layout = &self.model.layout.work_coll;
        let argument = work.word(layout.red_op_arg);
        let Some(reduction) = function.reduction.filter(|_| work.bit(layout.red_op_arg_is_ptr)) else {
            return argument;
        };
        let bytes = if reduction == Reduction::SumPostDiv { 8 } else { function.datatype.size() };
        let mut value = [0; 8];
        // SAFETY: the user gave the address of a scalar of this type that the device may read
        // until the kernel has ended (`ncclScalarDevice`), and the array has room for it.
        unsafe { std::ptr::copy_nonoverlapping(argument as *const u8, value.as_mut_ptr(), bytes) };
        u64::from_le_bytes(value)
    }

    fn exchange(&mut self, work: Place, channel: u32) -> Result<Exchange, Unplayable> {
        let layout = &self.model.layout.work_p2p;
        let registered = [layout.send_net_reg, layout.recv_net_reg, layout.send_ipc_reg, layout.recv_ipc_reg];
        if registered.into_iter().flatten().any(|bit| work.bit(bit)) {
            return Err(Unplayable::registered());
        }
        let channels = u32::from(work.byte(layout.n_p2p_channels));
        if !channels.is_power_of_two() {
            return Err(Unplayable::misread(format!(
                "sends and receives have {channels} channels, not a power of two"
            )));
        }
        let base = u32::from(work.byte(layout.channel_base));
        let index = part_of_channel(self.model.release, channels, base, channel);
        let send = self.transfer(
            Whole::Send(work),
            work,
            [layout.send_addr, layout.send_bytes, layout.send_rank, layout.n_send_channels, layout.send_chunk_size],
            work.bit(layout.send_proto_ll),
            (channel, index),
        )?;
        let receive = self.transfer(
            Whole::Receive(work),
            work,
            [layout.recv_addr, layout.recv_bytes, layout.recv_rank, layout.n_recv_channels, layout.recv_chunk_size],
            work.bit(layout.recv_proto_ll),
            (channel, index),
        )?;
        let profiled = layout.profiler_enabled.is_some_and(|bit| work.bit(bit));
        Ok(Exchange { profiled, send, receive })
    }

    fn transfer(
        &mut self,
        whole: Whole,
        work: Place,
        [address, bytes, peer, parts, chunk]: [usize; 5],
        ll: bool,
        (channel, index): (u32, u32),
    ) -> Result<Option<Transfer>, Unplayable> {
        let parts = u32::from(work.byte(parts));
        if index >= parts {
            return Ok(None);
        }
        let (address, bytes, peer) = (work.word(address), work.word(bytes) as usize, work.int(peer));
        if usize::try_from(peer).map_or(true, |peer| peer >= self.comm.ranks) {
            return Err(Unplayable::misread(format!("it exchanges with rank {peer} of {}", self.comm.ranks)));
        }
        let chunk = decode_chunk(work.byte(chunk));
        let (begin, end) = bounds(parts, index, bytes);
        if chunk == 0 && end > begin && peer != self.comm.rank {
            return Err(Unplayable::misread("its chunks have no bytes"));
        }
        let protocol = if ll { Protocol::Ll } else { Protocol::Simple };
        let sends = matches!(whole, Whole::Send(_));
        let operation = self.operation(whole, || truth::Operation {
            function: if sends { "Send" } else { "Recv" }.into(),
            send: if sends { address } else { 0 },
            receive: if sends { 0 } else { address },
            count: bytes as u64,
            datatype: "ncclInt8".into(),
            root: peer,
            algorithm: Algorithm::Ring.name().into(),
            protocol: protocol.name().into(),
            channels: (channel, channel),
        });
        self.reaches(operation, channel);
        let address = address as usize + begin;
        Ok(Some(Transfer { operation, peer, address, bytes: end - begin, chunk, protocol }))
    }

    fn broadcast(&mut self, function: Function, work: Place, channel: u32) -> Result<Broadcast, Unplayable> {
        let layout =
            self.model.layout.work_bcast.ok_or_else(|| Unplayable::misread("it has works of no known kind"))?;
        let depth = work.int(layout.ring_depth);
        let chunk = work.int(layout.chunk_size);
        let (send, receive) = (work.word(layout.sendbuff), work.word(layout.recvbuff));
        let bytes = work.word(layout.bytes);
        let ranks = self.comm.ranks as i32;
        if !(0..ranks).contains(&depth) || (chunk <= 0 && bytes > 0) {
            return Err(Unplayable::misread(format!("it broadcasts in chunks of {chunk} bytes at depth {depth}")));
        }
        let ring = Ring::read(self.model, &self.comm, channel)?;
        let root = ring.ranks[((ranks - depth) % ranks) as usize];
        let send = if depth == 0 { send } else { 0 };
        let fresh = self.operations.len() as u32;
        let operation = self.operation(Whole::Broadcast(root), || truth::Operation {
            function: function.collective.name().into(),
            send,
            receive,
            count: 0,
            datatype: function.datatype.nccl_name().into(),
            root,
            algorithm: function.algorithm.name().into(),
            protocol: function.protocol.name().into(),
            channels: (channel, channel),
        });
        self.reaches(operation, channel);
        let whole = &mut self.operations[operation as usize];
        whole.count += bytes;
        if operation != fresh {
            whole.send = whole.send.min(send);
            whole.receive = whole.receive.min(receive);
        }
        Ok(Broadcast {
            operation,
            depth,
            send: send as usize,
            receive: receive as usize,
            bytes: bytes as usize,
            chunk: chunk as usize,
        })
    }

    /// The index of an operation, which is added if it is new.
    fn operation(&mut self, whole: Whole, make: impl FnOnce() -> truth::Operation) -> u32 {
        *self.known.entry(whole).or_insert_with(|| {
            self.operations.push(make());
            self.operations.len() as u32 - 1
        })
    }

    /// Notes that an operation has a part on this channel.
    fn reaches(&mut self, operation: u32, channel: u32) {
        let channels = &mut self.operations[operation as usize].channels;
        *channels = (channels.0.min(channel), channels.1.max(channel));
    }
}

/// Whether a function is among those played here.
fn playable(function: Function) -> Result<(), Unplayable> {
    let tree = function.collective == Collective::AllReduce && function.algorithm == Algorithm::Tree;
    if function.protocol == Protocol::Ll128 || !(tree || function.algorithm == Algorithm::Ring) {
        return Err(Unplayable::function(function));
    }
    Ok(())
}

/// A channel's ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// The rank before this one.
    pub(super) previous: i32,
    /// The rank after this one.
    pub(super) next: i32,
    /// This rank's place, counted from rank 0.
    pub(super) index: usize,
    /// The ranks in its order, this rank first.
    pub(super) ranks: Vec<i32>,
}

impl Ring {
    /// Reads the ring of a channel.
    pub(super) fn read(model: &Model, comm: &Comm, channel: u32) -> Result<Ring, Unplayable> {
        let layout = &model.layout.channel;
        let place = comm.channels.at(channel as usize * layout.size);
        let ranks = place.follow(layout.ring_user_ranks).ok_or_else(|| Unplayable::misread("there is no ring"))?;
        let ring = Ring {
            previous: place.int(layout.ring_prev),
            next: place.int(layout.ring_next),
            index: usize::try_from(place.int(layout.ring_index)).unwrap_or(usize::MAX),
            ranks: (0..comm.ranks).map(|index| ranks.int(4 * index)).collect(),
        };
        let known = |rank: i32| usize::try_from(rank).is_ok_and(|rank| rank < comm.ranks);
        let first = ring.ranks[0] == comm.rank && ring.index < comm.ranks;
        if first && ring.ranks.iter().chain([&ring.previous, &ring.next]).all(|&rank| known(rank)) {
            Ok(ring)
        } else {
            Err(Unplayable::misread(format!("channel {channel} has the ring {ring:?} at rank {}", comm.rank)))
        }
    }
}

/// Which part of a send or receive a channel plays. The host chooses, so this must do the same.
fn part_of_channel(release: u32, channels: u32, base: u32, channel: u32) -> u32 {
    let from_base = channel.wrapping_sub(base) & (channels - 1);
    if release >= 22800 || channels == 1 {
        return from_base;
    }
    // Up to 2.27 neighbouring channels play distant parts.
    from_base.reverse_bits() >> (32 - channels.trailing_zeros())
}

/// Where a part of a send or receive begins and ends. Every part except the last has a multiple of
/// 4 KiB.
fn bounds(parts: u32, index: u32, bytes: usize) -> (usize, usize) {
    let part = bytes.div_ceil(parts as usize).next_multiple_of(4096);
    let index = index as usize;
    ((index * part).min(bytes), ((index + 1) * part).min(bytes))
}

/// Decodes a size in eight bits: an exponent of five bits, and a mantissa of three with an
/// implicit leading bit.
fn decode_chunk(bits: u8) -> usize {
    let (exponent, mantissa) = (bits >> 3, usize::from(bits & 7));
    if exponent == 0 { mantissa } else { (mantissa | 8) << (exponent - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_eight_bits() {
        for (bits, size) in
            [(0, 0), (5, 5), (8, 8), (15, 15), (16, 16), (23, 30), (24, 32), (0x78, 8 << 14), (0x90, 1 << 20)]
        {
            assert_eq!(decode_chunk(bits), size, "{bits:#x}");
        }
    }

    #[test]
    fn parts_cover_everything() {
        assert_eq!([0, 1, 2].map(|index| bounds(3, index, 10_000)), [(0, 4096), (4096, 8192), (8192, 10_000)]);
        assert_eq!([0, 1].map(|index| bounds(2, index, 100)), [(0, 100), (100, 100)]);
        assert_eq!(bounds(1, 0, 0), (0, 0));
    }

    #[test]
    fn each_release_spreads_parts_its_own_way() {
        let parts = |release| (0..8).map(|channel| part_of_channel(release, 8, 2, channel)).collect::<Vec<_>>();
        assert_eq!(parts(22809), [6, 7, 0, 1, 2, 3, 4, 5]);
        assert_eq!(parts(22707), [3, 7, 0, 4, 2, 6, 1, 5]);
        assert_eq!(part_of_channel(22707, 1, 0, 5), 0);
        assert_eq!(part_of_channel(22707, 2, 0, 1), 1);
    }
}
