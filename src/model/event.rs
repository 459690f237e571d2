//! NCCL's side: every event of the profiler interface, v1 to v7, in one shape.
//!
//! Each event is a plain struct without padding, so that a callback can copy it into a ring word by
//! word and the collector can read it back. A field that an interface version lacks holds the value
//! that its comment names.
//!
//! A record in a ring is a run of 64-bit words:
//!
//! ```text
//! word 0   | kind 8 | length in words 8 | small 16 | wide 32 |
//! word 1   | time, in ticks of the recorder's clock          |
//! then     | what the kind says, see `Body`                  |
//! ```
//!
//! Captures hold these words: a change to the layout of a kind is a new `capture::FORMAT`.

use bytemuck::{Pod, Zeroable};

use super::ids::Handle;
use super::time::{GpuNs, GpuTimer, Ticks};
use super::word::Word;

/// A C `bool`, kept as the byte it came as: any non-zero value is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Flag(pub u8);

impl Flag {
    /// Whether it was set.
    #[must_use]
    pub fn is_set(self) -> bool {
        self.0 != 0
    }
}

macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:literal {
            $( $(#[$field_doc:meta])* $field:ident : $ty:ty, )*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
            #[repr(C, align(8))]
            pub struct $name { $( $(#[$field_doc])* pub $field: $ty, )* }

            impl Payload for $name {
                const KIND: Kind = Kind::$name;
            }
        )*

        /// Which event starts. The numbers are ours and appear in raw captures; they never change
        /// meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $( #[doc = concat!("[`", stringify!($name), "`]")] $name = $kind, )* }

        impl Kind {
            /// Every kind, in the order of its number.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// NCCL's name for it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name)),* }
            }
        }

        /// What starts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // each variant is documented at the struct it holds
        pub enum Event { $( $name($name), )* }

        impl Event {
            /// Its kind.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $( Event::$name(_) => Kind::$name, )* }
            }

            fn decode(kind: u8, words: &[u64]) -> Option<Event> {
                $( if kind == $kind { return payload_from(words).map(Event::$name); } )*
                None
            }
        }
    };
}

/// The fields of one event, as they lie in a ring.
pub trait Payload: Pod {
    /// The event they belong to.
    const KIND: Kind;
}

events! {
    /// A group of operations, or a single operation: from the first call to the end of the
    /// outermost group.
    ///
    /// A hint only: it belongs to the communicator of the first operation, and may stop early in
    /// nested groups.
    GroupApi = 1 {
        /// NCCL's nesting depth: 1 is an operation outside any group of the user's.
        depth: i32,
        /// The first operation's stream is being captured into a graph.
        captured: Flag,
        #[doc(hidden)] _pad: [u8; 3],
    }

    /// The call of a collective, with the arguments the user passed.
    CollApi = 2 {
        /// Elements.
        count: u64,
        /// The user's `cudaStream_t`.
        stream: u64,
        /// The user's tag; 0 before v7.
        user_tag: u64,
        /// Root rank; meaningless for functions without one.
        root: i32,
        /// Function.
        func: Word,
        /// Datatype.
        datatype: Word,
        /// The stream is being captured into a graph.
        captured: Flag,
        #[doc(hidden)] _pad: [u8; 7],
    }

    /// The call of a send or a receive. Only [`P2p`] has the peer.
    P2pApi = 3 {
        /// Elements.
        count: u64,
        /// The user's `cudaStream_t`.
        stream: u64,
        /// The user's tag; 0 before v7.
        user_tag: u64,
        /// `Send` or `Recv`.
        func: Word,
        /// Datatype.
        datatype: Word,
        /// The stream is being captured into a graph.
        captured: Flag,
        #[doc(hidden)] _pad: [u8; 3],
    }

    /// The launch of one kernel (v5 and up); in a capture, its recording into the graph.
    KernelLaunch = 4 {
        /// The `cudaStream_t` it is launched into.
        stream: u64,
    }

    /// The hand-over of one plan: one kernel with all the operations it carries.
    Group = 5 {
        #[doc(hidden)] _pad: u64,
    }

    /// One collective of a plan, while NCCL hands it over on the host. It does not say when the
    /// collective runs.
    Coll = 6 {
        /// The number of this call of the function on this communicator, the same on all ranks.
        seq: u64,
        /// Address of the send buffer.
        send_buffer: u64,
        /// Address of the receive buffer.
        recv_buffer: u64,
        /// Elements; for AllGather and Broadcast bytes, with datatype `ncclInt8`.
        count: u64,
        /// The [`Group`] it is part of (v5 and up; below, its parent).
        group: Handle,
        /// NCCL's estimate of the traffic in bytes; 0 from v3 on.
        traffic: u64,
        /// The user's tag; 0 before v7.
        user_tag: u64,
        /// Root rank.
        root: i32,
        /// NCCL's device reduction number (v1 only, else -1).
        reduction: i32,
        /// Function.
        func: Word,
        /// Datatype.
        datatype: Word,
        /// Algorithm; for a symmetric kernel the suffix of its name.
        algorithm: Word,
        /// Protocol.
        protocol: Word,
        /// The kernel's variant (v7).
        variant: Word,
        /// Channels (v1 to v3: an upper limit); RCCL's 256 arrives as 0.
        channels: u8,
        /// Warps.
        warps: u8,
        /// A symmetric-memory kernel (v7).
        symmetric: Flag,
        /// It uses CollNet (v1 only).
        collnet: Flag,
        /// It uses NVLS (v1 only).
        nvls: Flag,
        #[doc(hidden)] _pad: u8,
    }

    /// One send or receive of a plan, while NCCL hands it over on the host.
    P2p = 7 {
        /// Address of the buffer.
        buffer: u64,
        /// Elements.
        count: u64,
        /// The [`Group`] it is part of (v5 and up; below, its parent).
        group: Handle,
        /// The user's tag; 0 before v7.
        user_tag: u64,
        /// The other rank.
        peer: i32,
        /// `Send` or `Recv`.
        func: Word,
        /// Datatype.
        datatype: Word,
        /// Channels (v4 and up, else 0).
        channels: u8,
        #[doc(hidden)] _pad: [u8; 7],
    }

    /// One operation of the proxy's progress thread: one channel, one peer, one direction.
    ProxyOp = 8 {
        /// The process that queued it. With PXN it may be another process; then context and parent
        /// are foreign.
        pid: i32,
        /// The remote rank.
        peer: i32,
        /// Network transfers expected.
        steps: i32,
        /// Largest transfer in bytes.
        chunk_bytes: i32,
        /// NCCL's channel.
        channel: u8,
        /// It is a send of the NET transport; false for receives and for all other transports.
        send: Flag,
        #[doc(hidden)] _pad: [u8; 6],
    }

    /// One transfer of a proxy operation.
    ProxyStep = 9 {
        /// Its number, counted in whole transfers.
        step: i32,
        #[doc(hidden)] _pad: u32,
    }

    /// What the progress thread is doing; the state says what.
    ProxyCtrl = 10 {
        #[doc(hidden)] _pad: u64,
    }

    /// One channel's part of an operation, as the GPU stamped it.
    KernelCh = 11 {
        /// The GPU's clock at the start; 0 in v3, which has none.
        start: GpuNs,
        /// NCCL's channel.
        channel: u8,
        #[doc(hidden)] _pad: [u8; 7],
    }

    /// An event of the network code below a proxy step.
    NetPlugin = 12 {
        /// What it reported.
        net: Net,
    }

    /// A collective done by copy engines, while the copies are enqueued (v6 and up).
    CeColl = 13 {
        /// Copy-engine sequence number.
        seq: u64,
        /// Address of the send buffer.
        send_buffer: u64,
        /// Address of the receive buffer.
        recv_buffer: u64,
        /// Elements.
        count: u64,
        /// The `cudaStream_t`.
        stream: u64,
        /// The user's tag; 0 before v7.
        user_tag: u64,
        /// Root rank.
        root: i32,
        /// Copies in a batch.
        batch_size: u32,
        /// Batches.
        batches: u32,
        /// The same counter as `seq`.
        ce_seq: u32,
        /// Function.
        func: Word,
        /// Datatype.
        datatype: Word,
        /// `MC` (multicast) or `UC` (unicast).
        sync_strategy: Word,
        /// Synchronised inside a batch.
        intra_batch_sync: Flag,
        #[doc(hidden)] _pad: u8,
    }

    /// The synchronisation of a copy-engine collective.
    CeSync = 14 {
        /// Ranks that take part.
        ranks: i32,
        /// Which of the two synchronisation flags is in use.
        complete: Flag,
        #[doc(hidden)] _pad: [u8; 3],
    }

    /// One batch of copies of a copy-engine collective.
    CeBatch = 15 {
        /// Bytes.
        bytes: u64,
        /// Copies.
        ops: i32,
        /// Synchronised inside the batch.
        intra_sync: Flag,
        #[doc(hidden)] _pad: [u8; 3],
    }

    /// A phase of a symmetric kernel on one channel, as the GPU stamped it (v7).
    KernelPhase = 16 {
        /// The GPU's clock at the start.
        start: GpuNs,
        /// NCCL's name of the phase.
        phase: Word,
        /// Number of the phase.
        phase_id: u8,
        /// NCCL's channel.
        channel: u8,
        #[doc(hidden)] _pad: [u8; 4],
    }

    /// An event type that this build does not know; kept and counted.
    Unknown = 17 {
        /// The type's bit as NCCL sent it.
        bits: u64,
    }
}

/// What a network plugin reported about one event (InfiniBand and socket payloads, version 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Net {
    /// The plugin's identification: the version of the payload in the low 16 bits, the kind of
    /// network in the next 16.
    pub id: i64,
    /// InfiniBand: the work request.
    pub work_request: u64,
    /// Bytes.
    pub length: u64,
    /// InfiniBand: the device; socket: the file descriptor.
    pub device: i32,
    /// InfiniBand: the opcode; socket: the operation.
    pub opcode: i32,
    /// InfiniBand: the queue pair.
    pub queue_pair: i32,
    /// The payload's own type byte.
    pub net_type: u8,
    /// Which payload this is.
    pub network: Network,
    #[doc(hidden)]
    pub _pad: [u8; 2],
}

/// A payload that the callback knows how to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Network(pub u8);

impl Network {
    /// Another network or another version: only `id` is filled.
    pub const OTHER: Network = Network(0);
    /// InfiniBand, version 1.
    pub const INFINIBAND: Network = Network(1);
    /// Socket, version 1.
    pub const SOCKET: Network = Network(2);

    /// The kind of network behind a plugin's `id`.
    #[must_use]
    pub fn from_id(id: i64) -> Network {
        match ((id >> 16) & 0xffff, id & 0xffff) {
            (1, 1) => Self::INFINIBAND,
            (2, 1) => Self::SOCKET,
            _ => Self::OTHER,
        }
    }
}

/// The start of a communicator, as `init` reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct CommInit {
    /// The context that its events carry.
    pub context: Handle,
    /// NCCL's communicator hash, the same on all ranks; 0 in v1 to v3, where [`Body::CommIdentity`]
    /// follows.
    pub hash: u64,
    /// Our rank in it; -1 where `init` does not say (v1 to v3).
    pub rank: i32,
    /// Ranks in it; -1 likewise.
    pub ranks: i32,
    /// Hosts, as NCCL counts them; -1 likewise.
    pub nodes: i32,
    /// The name from its configuration; usually absent.
    pub name: Word,
    /// The interface NCCL chose: 1 to 7.
    pub interface: u8,
    /// What its GPU's timer counts.
    pub timer: GpuTimer,
    /// NCCL's version number, as from `ncclGetVersion`; 0 where it could not be queried (v1 to v3).
    pub version: u32,
    /// Its device's number plus one; 0 if the driver did not say.
    pub device_plus_one: u32,
}

/// One record of a ring, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was recorded.
    pub ticks: Ticks,
    /// What was recorded.
    pub body: Body<'a>,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// `startEvent`.
    Start {
        /// The handle that NCCL got.
        handle: Handle,
        /// The handle that NCCL named as parent.
        parent: Handle,
        /// The communicator's context as NCCL passed it; foreign with PXN.
        context: Handle,
        /// `rank` of the descriptor; only meaningful for Coll, P2p, proxy, network and copy-engine
        /// events.
        rank: i32,
        /// The event.
        event: Event,
    },
    /// `stopEvent`.
    Stop {
        /// The handle that NCCL passed.
        handle: Handle,
    },
    /// `recordEventState`.
    State {
        /// The handle that NCCL passed.
        handle: Handle,
        /// The state's number, see [`super::state`].
        state: u16,
        /// The state argument's 8 bytes; 0 where NCCL passed none or it means nothing.
        argument: u64,
        /// Second argument of v1 to v3 (`proxyOp.steps`); 0 elsewhere.
        steps: i32,
    },
    /// `recordEventState` of a network event.
    NetUpdate {
        /// The handle that NCCL passed.
        handle: Handle,
        /// What the network reported.
        net: Net,
    },
    /// A communicator was initialised.
    CommInit(CommInit),
    /// A communicator's `finalize`.
    CommFinalize {
        /// Its context.
        context: Handle,
    },
    /// Name and hash of a communicator, from a descriptor of v1 to v3.
    CommIdentity {
        /// The communicator's context.
        context: Handle,
        /// NCCL's communicator hash.
        hash: u64,
        /// Its name.
        name: Word,
    },
    /// From here on this ring belongs to this thread.
    Thread {
        /// The kernel's thread id.
        tid: i32,
        /// Its name: up to 15 bytes, padded with NULs.
        name: [u8; 16],
    },
    /// The thread that owned this ring has ended.
    ThreadEnd,
    /// A kernel is being launched on this thread, by NCCL or inside one of NCCL's calls.
    Launch {
        /// CUPTI's correlation id of the launching call.
        correlation: u32,
        /// Whether the kernel's name is one of NCCL's.
        nccl: bool,
        /// The KernelLaunch that is open on this thread, if any: it encloses exactly this launch.
        launch: Handle,
        /// The GroupApi that is open on this thread, if any.
        group: Handle,
    },
    /// A node of a graph was created.
    GraphNode {
        /// CUPTI's id of the node.
        node: u64,
        /// The node that it was cloned from, or 0.
        original: u64,
        /// The KernelLaunch that is open on this thread, if any: it recorded this node. Otherwise
        /// the GroupApi, if NCCL's kernel was launched in one.
        launch: Handle,
    },
    /// An executable graph was launched, or made.
    GraphLaunch {
        /// The graph, as the driver names it. The driver reuses the names of destroyed graphs.
        graph: u64,
        /// CUPTI's id of the launching call; 0 if the graph was made.
        correlation: u32,
    },
    /// An executable graph is changed: its nodes may no longer do what the nodes they were cloned
    /// from did.
    GraphChange {
        /// The graph, as the driver names it.
        graph: u64,
    },
    /// A node of an executable graph does what another graph's node does from now on.
    GraphUpdate {
        /// CUPTI's id of the node.
        node: u64,
        /// That of the node whose work it does; 0 if its parameters were set by hand.
        source: u64,
        /// The executable graph, as the driver names it.
        graph: u64,
    },
    /// The program begins a step, which ends with the next one.
    Step {
        /// The program's number for it.
        number: u64,
    },
    /// The text behind a [`Word`].
    Text {
        /// The number it got.
        word: Word,
        /// Its bytes, at most [`TEXT_BYTES`]; UTF-8 is not promised.
        text: &'a [u8],
    },
}

impl Coll {
    /// The sequence number of a collective that may be any of several.
    pub const UNNUMBERED: u64 = u64::MAX;
}

/// The longest text that is kept, in bytes. NCCL allows longer communicator names; a cut one ends
/// in an ellipsis.
pub const TEXT_BYTES: usize = 128;
/// The longest record, in words.
pub const MAX_WORDS: usize = 24;

/// The record kinds that are not starts. Their numbers follow those of the event kinds.
pub(crate) mod kind {
    pub(crate) const STOP: u8 = 32;
    pub(crate) const STATE: u8 = 33;
    pub(crate) const NET_UPDATE: u8 = 34;
    pub(crate) const COMM_INIT: u8 = 35;
    pub(crate) const COMM_FINALIZE: u8 = 36;
    pub(crate) const COMM_IDENTITY: u8 = 37;
    pub(crate) const THREAD: u8 = 38;
    pub(crate) const TEXT: u8 = 39;
    pub(crate) const THREAD_END: u8 = 40;
    pub(crate) const LAUNCH: u8 = 41;
    pub(crate) const GRAPH_NODE: u8 = 42;
    pub(crate) const GRAPH_LAUNCH: u8 = 43;
    pub(crate) const GRAPH_CHANGE: u8 = 44;
    pub(crate) const STEP: u8 = 45;
    pub(crate) const GRAPH_UPDATE: u8 = 46;
}

/// Word 0 of a record.
#[inline]
pub(crate) fn header(kind: u8, words: usize, small: u16, wide: i32) -> u64 {
    u64::from(kind) | (words as u64) << 8 | u64::from(small) << 16 | u64::from(wide as u32) << 32
}

/// The length in words, as the first word of a record states it.
#[must_use]
pub fn length(header: u64) -> usize {
    (header >> 8 & 0xff) as usize
}

/// Whether the record is a call of NCCL's (start, stop, state) rather than a note of our own.
#[must_use]
pub fn is_call(header: u64) -> bool {
    (header & 0xff) as u8 <= kind::NET_UPDATE
}

impl<'a> Record<'a> {
    /// Decodes the words of one record. `None` if they are not a record of this build; never
    /// panics.
    #[must_use]
    pub fn decode(words: &'a [u64]) -> Option<Record<'a>> {
        let (&header, rest) = words.split_first()?;
        let (&ticks, rest) = rest.split_first()?;
        if length(header) != words.len() {
            return None;
        }
        let small = (header >> 16 & 0xffff) as u16;
        let wide = (header >> 32) as u32 as i32;
        let handle = |index: usize| rest.get(index).copied().map(Handle);
        let body = match (header & 0xff) as u8 {
            kind::STOP => Body::Stop { handle: handle(0)? },
            kind::STATE => Body::State { handle: handle(0)?, state: small, argument: *rest.get(1)?, steps: wide },
            kind::NET_UPDATE => Body::NetUpdate { handle: handle(0)?, net: payload_from(rest.get(1..)?)? },
            kind::COMM_INIT => Body::CommInit(payload_from(rest)?),
            kind::COMM_FINALIZE => Body::CommFinalize { context: handle(0)? },
            kind::COMM_IDENTITY => Body::CommIdentity { context: handle(0)?, hash: *rest.get(1)?, name: Word(small) },
            kind::THREAD => Body::Thread { tid: wide, name: payload_from(rest)? },
            kind::THREAD_END => Body::ThreadEnd,
            kind::LAUNCH => {
                Body::Launch { correlation: wide as u32, nccl: small != 0, launch: handle(0)?, group: handle(1)? }
            }
            kind::GRAPH_NODE => Body::GraphNode { node: *rest.first()?, original: *rest.get(1)?, launch: handle(2)? },
            kind::GRAPH_LAUNCH => Body::GraphLaunch { graph: *rest.first()?, correlation: wide as u32 },
            kind::GRAPH_CHANGE => Body::GraphChange { graph: *rest.first()? },
            kind::GRAPH_UPDATE => {
                Body::GraphUpdate { node: *rest.first()?, source: *rest.get(1)?, graph: *rest.get(2)? }
            }
            kind::STEP => Body::Step { number: *rest.first()? },
            kind::TEXT => {
                Body::Text { word: Word(small), text: bytemuck::cast_slice(rest).get(..usize::try_from(wide).ok()?)? }
            }
            start => Body::Start {
                handle: handle(0)?,
                parent: handle(1)?,
                context: handle(2)?,
                rank: wide,
                event: Event::decode(start, rest.get(3..)?)?,
            },
        };
        Some(Record { ticks: Ticks(ticks), body })
    }
}

fn payload_from<T: Pod>(words: &[u64]) -> Option<T> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    (bytes.len() == size_of::<T>()).then(|| bytemuck::pod_read_unaligned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_expected_sizes() {
        // Whole words, and small where there are many.
        assert_eq!(size_of::<ProxyStep>(), 8);
        assert_eq!(size_of::<ProxyOp>(), 24);
        assert_eq!(size_of::<Coll>(), 80);
        assert_eq!(size_of::<CollApi>(), 40);
        assert_eq!(size_of::<Net>(), 40);
        assert!(size_of::<Coll>().max(size_of::<CeColl>()) / 8 + 5 <= MAX_WORDS);
        const { assert!(TEXT_BYTES / 8 + 2 <= MAX_WORDS) };
    }

    #[test]
    fn arbitrary_words_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut words = [0_u64; MAX_WORDS];
        for round in 0..20_000 {
            for word in &mut words {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *word = state;
            }
            let length = round % (MAX_WORDS + 1);
            if length > 0 {
                // Half of them with a plausible header.
                if round % 2 == 0 {
                    words[0] = header((state % 46) as u8, length, state as u16, (state >> 20) as i32);
                }
                let _ = Record::decode(&words[..length]);
            }
        }
        assert_eq!(Record::decode(&[]), None);
    }
}
