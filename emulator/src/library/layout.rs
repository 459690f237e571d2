//! Where the members of NCCL's structures lie, according to the library's debug information.
//!
//! Nearly every release moves something. Only what the emulation reads or writes is listed, by
//! NCCL's own names. Offsets are in bytes from the start of the structure, and each structure has
//! its `size`. Members that only some releases have are `Option`s. Where a reader depends on a
//! member's size, it is checked here, so a release that changes one is refused instead of misread.

use serde::{Deserialize, Serialize};

use super::Unsuitable;
use super::dwarf::{Debug, Member, Structure};

/// A bit field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// The lowest bit, counted from the lowest bit of the structure's first byte.
    pub offset: u32,
    /// The number of bits.
    pub width: u32,
}

impl Bits {
    /// Reads the field from the structure at `structure`. Only bytes that contain bits of the
    /// field are read.
    ///
    /// # Safety
    ///
    /// `structure` points to a readable structure of the kind whose layout this is.
    pub unsafe fn read(self, structure: *const u8) -> u64 {
        let (first, last) = (self.offset / 8, (self.offset + self.width - 1) / 8);
        let mut value = 0u128;
        for byte in first..=last {
            // SAFETY: the byte holds a bit of the field, so it is part of the structure.
            let bits = unsafe { structure.add(byte as usize).read_volatile() };
            value |= u128::from(bits) << (8 * (byte - first));
        }
        let mask = u128::MAX >> (128 - self.width);
        ((value >> (self.offset % 8)) & mask) as u64
    }
}

/// Declares the structures: each field with the member's path in NCCL's structure and, in
/// brackets, the sizes it may have.
macro_rules! structures {
    ($(
        $(#[$about:meta])*
        $name:ident {
            $( $(#[$field_about:meta])* $field:ident: $place:ty = $path:literal $([$($size:literal),+])? ,)+
        }
    )+) => {
        /// The whole declaration as text. A cached layout is valid only for the same text.
        pub(super) const DECLARATION: &str = stringify!($($name { $($field: $place = $path $([$($size),+])?,)+ })+);

        $(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            /// The structure's size in bytes.
            pub size: usize,
            $( $(#[$field_about])* pub $field: $place, )+
        }

        impl $name {
            fn read(structure: &Structure<'_, '_>) -> Result<Self, Unsuitable> {
                Ok(Self {
                    size: structure.size()?,
                    $( $field: Place::find(structure, $path, &[$($($size),+)?])?, )+
                })
            }
        }
        )+
    };
}

structures! {
    /// `ncclDevKernelArgs`: the head of a kernel's arguments; the batches follow it.
    KernelArgs {
        /// The device communicator.
        comm: usize = "comm" [8],
        /// The channels of this launch; block n plays the n-th set bit.
        channel_mask: usize = "channelMask" [8],
        /// `enum ncclDevWorkStorageType`: 0 in the arguments, 1 in the FIFO, 2 in memory of their
        /// own.
        work_storage_type: usize = "workStorageType" [1],
        /// The size of the FIFO minus one.
        work_mask: usize = "workMask" [4],
        /// The FIFO or the works' own memory.
        work_buf: usize = "workBuf" [8],
    }

    /// The device communicator: `ncclKernelComm`, up to 2.27 `ncclDevComm`.
    KernelComm {
        /// This rank.
        rank: usize = "rank" [4],
        /// Ranks.
        n_ranks: usize = "nRanks" [4],
        /// The sizes of the connections' buffers, by protocol: three `int`.
        buff_sizes: usize = "buffSizes" [12],
        /// The chunk size of sends and receives.
        p2p_chunk_size: usize = "p2pChunkSize" [4],
        /// Points to the flag that ends all kernels.
        abort_flag: usize = "abortFlag" [8],
        /// Points to the channels.
        channels: usize = "channels" [8],
        /// Points to counters that tell the host how much of the work FIFO was read, by channel
        /// (up to 2.26).
        work_consumed: Option<usize> = "workConsumed" [8],
        /// Points to what the profiler reads about works that have begun: a counter for each
        /// channel in 2.26, a [`Profiler`] for each from 2.27 on.
        work_started: Option<usize> = "workStarted" [8],
        /// Points to the same about completed works.
        work_completed: Option<usize> = "workCompleted" [8],
    }

    /// `ncclDevChannel`.
    Channel {
        /// Points to an array of pointers to [`ChannelPeer`], by rank.
        peers: usize = "peers" [8],
        /// The rank before this one in the ring.
        ring_prev: usize = "ring.prev" [4],
        /// The rank after this one in the ring.
        ring_next: usize = "ring.next" [4],
        /// Points to the ranks in the ring's order, this rank first.
        ring_user_ranks: usize = "ring.userRanks" [8],
        /// This rank's place in the ring, counted from rank 0.
        ring_index: usize = "ring.index" [4],
        /// The parent in the tree, or -1.
        tree_up: usize = "tree.up" [4],
        /// The children in the tree, or -1: three `int`.
        tree_down: usize = "tree.down" [12],
        /// Works this channel has played (from 2.26 on).
        work_counter: Option<usize> = "workCounter" [8],
    }

    /// `ncclDevChannelPeer`.
    ChannelPeer {
        /// Two [`ConnInfo`]: one of the collectives, one of sends.
        send: usize = "send",
        /// Two [`ConnInfo`]: one of the collectives, one of receives.
        recv: usize = "recv",
    }

    /// `ncclConnInfo`: one direction of a connection to a peer.
    ConnInfo {
        /// The buffers by protocol: three pointers.
        buffs: usize = "buffs" [24],
        /// Points to the step up to which data is available.
        tail: usize = "tail" [8],
        /// Points to the step up to which buffers are free.
        head: usize = "head" [8],
        /// The size of a Simple step.
        step_size: usize = "stepSize" [4],
        /// Points to eight [`ConnFifo`], or null.
        conn_fifo: usize = "connFifo" [8],
        /// The step that the last kernel ended at.
        step: usize = "step" [8],
    }

    /// `ncclConnFifo`: what the kernel and the proxy tell each other about a step.
    ConnFifo {
        /// How the buffer is found: 0 normal, 1 at `offset`, 2 by pointer.
        mode: usize = "mode" [4],
        /// Where the step's buffer is. Eight bytes from 2.31 on, four before; the lower four are
        /// the value.
        offset: usize = "offset" [4, 8],
        /// Bytes of the step.
        bytes: usize = "size" [8],
    }

    /// `ncclDevWorkBatch`: consecutive works of one function on a channel.
    WorkBatch {
        /// Where the channel's next batch is, in batches from this one; 0 for none.
        next_jump: Bits = "nextJump",
        /// Whether the next batch continues this one.
        next_extends: Bits = "nextExtends",
        /// `enum ncclDevWorkType`: 0 send and receive, 1 collective, 2 registered collective, 3
        /// broadcasts.
        work_type: Bits = "workType",
        /// The function in NCCL's table.
        func_id: Bits = "funcId",
        /// Where the first work is.
        offset_base: usize = "offsetBase" [4],
        /// Which of the works from there on are in the batch.
        offset_bitset: usize = "offsetBitset" [8],
    }

    /// `ncclDevWorkColl`: a collective.
    WorkColl {
        /// Its first channel.
        channel_lo: Bits = "channelLo",
        /// Its last channel.
        channel_hi: Bits = "channelHi",
        /// Whether the reduction's argument is an address.
        red_op_arg_is_ptr: Bits = "redOpArgIsPtr",
        /// Whether the user's buffers are registered.
        reg_used: Bits = "regUsed",
        /// Whether they are registered with the network (from 2.24 on).
        net_reg_used: Option<Bits> = "netRegUsed",
        /// Whether the profiler wants events for it (from 2.26 on).
        profiler_enabled: Option<Bits> = "profilerEnabled",
        /// The root.
        root: usize = "root" [4],
        /// The receive buffer.
        recvbuff: usize = "recvbuff" [8],
        /// The send buffer.
        sendbuff: usize = "sendbuff" [8],
        /// Elements of the first channel.
        count_lo: usize = "cbd.countLo" [8],
        /// Elements of each channel between.
        count_mid: usize = "cbd.countMid" [8],
        /// Elements of the last channel.
        count_hi: usize = "cbd.countHi" [8],
        /// The chunk of the first channel, in grains.
        chunk_grains_lo: Bits = "cbd.chunkGrainsLo",
        /// The chunk of each channel between, in grains.
        chunk_grains_mid: Bits = "cbd.chunkGrainsMid",
        /// The chunk of the last channel, in grains.
        chunk_grains_hi: Bits = "cbd.chunkGrainsHi",
        /// The argument of the reduction.
        red_op_arg: usize = "redOpArg" [8],
    }

    /// `ncclDevWorkP2p`: a send and a receive.
    WorkP2p {
        /// What is sent.
        send_addr: usize = "sendAddr" [8],
        /// Where to receive.
        recv_addr: usize = "recvAddr" [8],
        /// Bytes to send.
        send_bytes: usize = "sendBytes" [8],
        /// Bytes to receive.
        recv_bytes: usize = "recvBytes" [8],
        /// The peer to send to, or -1.
        send_rank: usize = "sendRank" [4],
        /// The peer to receive from, or -1.
        recv_rank: usize = "recvRank" [4],
        /// Channels for sends and receives in the communicator.
        n_p2p_channels: usize = "nP2pChannels" [1],
        /// The first channel.
        channel_base: usize = "channelBase" [1],
        /// Channels of the send.
        n_send_channels: usize = "nSendChannels" [1],
        /// Channels of the receive.
        n_recv_channels: usize = "nRecvChannels" [1],
        /// The send's chunk as an eight-bit float.
        send_chunk_size: usize = "sendChunkSize_u32fp8" [1],
        /// The receive's chunk as an eight-bit float.
        recv_chunk_size: usize = "recvChunkSize_u32fp8" [1],
        /// Whether the send goes by LL.
        send_proto_ll: Bits = "sendProtoLL",
        /// Whether the receive goes by LL.
        recv_proto_ll: Bits = "recvProtoLL",
        /// Whether the send buffer is registered with the network (from 2.24 on; `sendRegistered`
        /// in 2.23).
        send_net_reg: Option<Bits> = "sendNetReg",
        /// Whether the receive buffer is registered with the network (from 2.24 on).
        recv_net_reg: Option<Bits> = "recvNetReg",
        /// Whether the send buffer is registered with the peer.
        send_ipc_reg: Option<Bits> = "sendIpcReg",
        /// Whether the receive buffer is registered with the peer.
        recv_ipc_reg: Option<Bits> = "recvIpcReg",
        /// Whether the profiler wants events for it (from 2.26 on).
        profiler_enabled: Option<Bits> = "profilerEnabled",
    }

    /// `ncclDevWorkBcast`: one of several broadcasts (from 2.29 on).
    WorkBcast {
        /// The distance of this rank from the root.
        ring_depth: usize = "ringDepth" [4],
        /// Bytes of a chunk.
        chunk_size: usize = "chunkSize" [4],
        /// The send buffer, at the root.
        sendbuff: usize = "sendbuff" [8],
        /// The receive buffer.
        recvbuff: usize = "recvbuff" [8],
        /// Bytes.
        bytes: usize = "bytes" [8],
    }

    /// `ncclDevProfiler`: one channel's ring of counters and times (from 2.27 on).
    Profiler {
        /// The ring: pairs of a counter and a time.
        data: usize = "data",
    }

    /// `ncclComm`: the host's communicator, to which `ncclComm_t` points.
    Comm {
        /// The hash, as in the profiler interface.
        comm_hash: Option<usize> = "commHash" [8],
        /// Points to the device communicator, a [`KernelComm`].
        dev_comm: Option<usize> = "devComm" [8],
    }
}

/// Everything the emulation knows about the library's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// `ncclDevKernelArgs`
    pub kernel_args: KernelArgs,
    /// `ncclKernelComm`
    pub kernel_comm: KernelComm,
    /// `ncclDevChannel`
    pub channel: Channel,
    /// `ncclDevChannelPeer`
    pub channel_peer: ChannelPeer,
    /// `ncclConnInfo`
    pub conn_info: ConnInfo,
    /// `ncclConnFifo`
    pub conn_fifo: ConnFifo,
    /// `ncclDevWorkBatch`
    pub work_batch: WorkBatch,
    /// `ncclDevWorkColl`
    pub work_coll: WorkColl,
    /// `ncclDevWorkP2p`
    pub work_p2p: WorkP2p,
    /// `ncclDevWorkBcast`, from 2.29 on.
    pub work_bcast: Option<WorkBcast>,
    /// `ncclDevProfiler`, from 2.27 on.
    pub profiler: Option<Profiler>,
    /// `ncclComm`, the host's
    pub comm: Comm,
}

impl Layout {
    /// Reads the layout from the library's debug information.
    pub(super) fn read(debug: &Debug<'_>) -> Result<Layout, Unsuitable> {
        let [arguments] = debug.structures(["ncclDevKernelArgs"])?;
        let arguments = found(arguments, "ncclDevKernelArgs")?;
        // Its name depends on the release, and from 2.28 on the old name belongs to another
        // structure.
        let comm = arguments.target("comm")?;
        let names = [
            comm.as_str(),
            "ncclDevChannel",
            "ncclDevChannelPeer",
            "ncclConnInfo",
            "ncclConnFifo",
            "ncclDevWorkBatch",
            "ncclDevWorkColl",
            "ncclDevWorkP2p",
            "ncclDevWorkBcast",
            "ncclDevProfiler",
            "ncclComm",
        ];
        let structures = debug.structures(names)?;
        let mut structures = names.into_iter().zip(structures);
        // In the order of the names above.
        let mut next = || structures.next().expect("there is one structure for each name");
        let mut required = || {
            let (name, structure) = next();
            found(structure, name)
        };
        Ok(Layout {
            kernel_args: KernelArgs::read(&arguments)?,
            kernel_comm: KernelComm::read(&required()?)?,
            channel: Channel::read(&required()?)?,
            channel_peer: ChannelPeer::read(&required()?)?,
            conn_info: ConnInfo::read(&required()?)?,
            conn_fifo: ConnFifo::read(&required()?)?,
            work_batch: WorkBatch::read(&required()?)?,
            work_coll: WorkColl::read(&required()?)?,
            work_p2p: WorkP2p::read(&required()?)?,
            work_bcast: next().1.as_ref().map(WorkBcast::read).transpose()?,
            profiler: next().1.as_ref().map(Profiler::read).transpose()?,
            comm: {
                let (name, structure) = next();
                Comm::read(&found(structure, name)?)?
            },
        })
    }
}

fn found<T>(structure: Option<T>, name: &str) -> Result<T, Unsuitable> {
    structure.ok_or_else(|| Unsuitable::MissingStructure { structure: name.to_owned() })
}

/// A field of a layout.
trait Place: Sized {
    /// Finds the member at `path`; `sizes` are its allowed sizes in bytes, or empty for any.
    fn find(structure: &Structure<'_, '_>, path: &str, sizes: &[u64]) -> Result<Self, Unsuitable>;
}

impl Place for usize {
    fn find(structure: &Structure<'_, '_>, path: &str, sizes: &[u64]) -> Result<Self, Unsuitable> {
        match required(structure, path)? {
            Member::Bytes { offset, size } if offset.saturating_add(size) > structure.size()? as u64 => {
                let end = structure.size()?;
                other(structure, path, format!("within {end} bytes"), format!("{size} bytes at {offset}"))
            }
            Member::Bytes { offset, size } if sizes.is_empty() || sizes.contains(&size) => Ok(offset as usize),
            Member::Bytes { size, .. } => {
                let expected: Vec<String> = sizes.iter().map(u64::to_string).collect();
                other(structure, path, format!("{} bytes", expected.join(" or ")), format!("{size} bytes"))
            }
            Member::Bits { width, .. } => other(structure, path, "whole bytes".into(), format!("{width} bits")),
        }
    }
}

impl Place for Bits {
    fn find(structure: &Structure<'_, '_>, path: &str, _sizes: &[u64]) -> Result<Self, Unsuitable> {
        let (offset, width) = match required(structure, path)? {
            Member::Bits { offset, width } => (offset, width),
            // A release may give a field whole bytes of its own.
            Member::Bytes { offset, size } => (offset.saturating_mul(8), size.saturating_mul(8)),
        };
        let end = (structure.size()? as u64).saturating_mul(8).min(u32::MAX.into());
        if (1..=64).contains(&width) && offset.saturating_add(width) <= end {
            Ok(Bits { offset: offset as u32, width: width as u32 })
        } else {
            other(structure, path, format!("1 to 64 bits within {end}"), format!("{width} bits at bit {offset}"))
        }
    }
}

impl<P: Place> Place for Option<P> {
    fn find(structure: &Structure<'_, '_>, path: &str, sizes: &[u64]) -> Result<Self, Unsuitable> {
        match P::find(structure, path, sizes) {
            Ok(place) => Ok(Some(place)),
            Err(Unsuitable::MissingMember { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn required(structure: &Structure<'_, '_>, path: &str) -> Result<Member, Unsuitable> {
    structure
        .member(path)?
        .ok_or_else(|| Unsuitable::MissingMember { structure: structure.name().to_owned(), member: path.to_owned() })
}

fn other<T>(structure: &Structure<'_, '_>, path: &str, expected: String, found: String) -> Result<T, Unsuitable> {
    Err(Unsuitable::OtherMember { structure: structure.name().to_owned(), member: path.to_owned(), expected, found })
}
