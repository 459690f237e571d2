//! Typed arguments: an event's facts as fields, defined in `proto/ncclscope.proto`.

use super::fields::{matched_by, nccl, transport};
use super::wire::Buf;
use crate::model::activity::{Kernel, Place, Span};
use crate::model::event::{self, Event, Network};
use crate::model::time::HostNs;
use crate::model::timeline::{
    Around, Channel, ChannelChecks, Comm, Doubt, Doubts, Matches, Method, Operation, Owner, ProxyOp, Timing,
};
use crate::model::word::{Table, Word};

/// The encoded arguments of one event. Made once and reused for every event.
#[derive(Debug, Default)]
pub struct Args(Buf);

impl Args {
    /// No arguments.
    #[must_use]
    pub const fn new() -> Args {
        Args(Buf::new())
    }

    /// Starts over, without arguments.
    pub fn clear(&mut self) -> &mut Args {
        self.0.clear();
        self
    }

    /// The encoded message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// An unsigned field.
    pub fn uint(&mut self, field: u32, value: u64) -> &mut Args {
        self.0.uint(field, value);
        self
    }

    /// An unsigned field, omitted if it is 0.
    pub fn nonzero(&mut self, field: u32, value: u64) -> &mut Args {
        if value != 0 {
            self.0.uint(field, value);
        }
        self
    }

    /// An unsigned field, omitted if it is not known.
    pub fn known(&mut self, field: u32, value: Option<u64>) -> &mut Args {
        if let Some(value) = value {
            self.0.uint(field, value);
        }
        self
    }

    /// A signed field.
    pub fn long(&mut self, field: u32, value: i64) -> &mut Args {
        self.0.int(field, value);
        self
    }

    /// A signed field of 32 bits.
    pub fn int(&mut self, field: u32, value: i32) -> &mut Args {
        self.0.int(field, i64::from(value));
        self
    }

    /// A flag, omitted if it is not set.
    fn flag(&mut self, field: u32, value: bool) -> &mut Args {
        self.nonzero(field, u64::from(value))
    }

    /// A text field.
    pub fn text(&mut self, field: u32, value: &str) -> &mut Args {
        self.0.bytes_field(field, value.as_bytes());
        self
    }

    /// A text field, omitted if it is not known.
    fn known_text(&mut self, field: u32, value: Option<&str>) -> &mut Args {
        if let Some(value) = value {
            self.text(field, value);
        }
        self
    }

    /// A word as a value of its table's enum, any other word as text; nothing for an absent word.
    fn word(&mut self, table: Table, word: Word, text: Option<&str>) -> &mut Args {
        let (number, spelled) = match table {
            Table::Function => (nccl::FUNCTION, nccl::FUNCTION_TEXT),
            Table::DataType => (nccl::DATATYPE, nccl::DATATYPE_TEXT),
            Table::Algorithm => (nccl::ALGORITHM, nccl::ALGORITHM_TEXT),
            Table::Protocol => (nccl::PROTOCOL, nccl::PROTOCOL_TEXT),
        };
        if word.table() == Some(table) {
            return self.uint(number, u64::from(word.0));
        }
        self.known_text(spelled, word.spelling().or(text))
    }

    /// Why the event may not be what it seems.
    pub fn doubt(&mut self, doubt: Option<Doubt>) -> &mut Args {
        self.known_text(nccl::DOUBT, doubt.map(Doubt::text))
    }

    /// Everything known about an operation.
    pub fn operation(&mut self, operation: &Operation) -> &mut Args {
        match &operation.event {
            Event::Coll(coll) => self.coll(coll),
            Event::P2p(p2p) => self.p2p(p2p),
            Event::CollApi(call) => self
                .nonzero(nccl::STREAM, call.stream)
                .nonzero(nccl::USER_TAG, call.user_tag)
                .root(call.func, call.root)
                .flag(nccl::CAPTURED, call.captured.is_set()),
            Event::P2pApi(call) => self
                .nonzero(nccl::STREAM, call.stream)
                .nonzero(nccl::USER_TAG, call.user_tag)
                .flag(nccl::CAPTURED, call.captured.is_set()),
            Event::CeColl(coll) => self.ce_coll(coll),
            _ => self,
        };
        let texts = operation.texts.as_deref();
        self.known(nccl::BYTES, operation.bytes())
            .known(nccl::COUNT, operation.has_count().then(|| operation.count()))
            .word(Table::Function, operation.func(), texts.and_then(|texts| texts.func.as_deref()))
            .word(Table::DataType, operation.datatype(), texts.and_then(|texts| texts.datatype.as_deref()));
        let (algorithm, protocol, variant, variant_field) = match &operation.event {
            Event::Coll(coll) => (coll.algorithm, coll.protocol, coll.variant, nccl::VARIANT),
            Event::CeColl(coll) => (Word::ABSENT, Word::ABSENT, coll.sync_strategy, nccl::SYNC_STRATEGY),
            _ => (Word::ABSENT, Word::ABSENT, Word::ABSENT, nccl::VARIANT),
        };
        self.word(Table::Algorithm, algorithm, texts.and_then(|texts| texts.algorithm.as_deref()))
            .word(Table::Protocol, protocol, texts.and_then(|texts| texts.protocol.as_deref()))
            .known_text(variant_field, variant.spelling().or(texts.and_then(|texts| texts.variant.as_deref())))
    }

    fn coll(&mut self, coll: &event::Coll) -> &mut Args {
        self.known(nccl::SEQ, (coll.seq != event::Coll::UNNUMBERED).then_some(coll.seq))
            .nonzero(nccl::CHANNELS, u64::from(coll.channels))
            .uint(nccl::WARPS, u64::from(coll.warps))
            .root(coll.func, coll.root)
            .buffers(coll.send_buffer, coll.recv_buffer)
            .nonzero(nccl::USER_TAG, coll.user_tag)
            .nonzero(nccl::TRAFFIC_BYTES, coll.traffic)
            .flag(nccl::SYMMETRIC, coll.symmetric.is_set())
            .flag(nccl::COLLNET, coll.collnet.is_set())
            .flag(nccl::NVLS, coll.nvls.is_set());
        if coll.reduction >= 0 {
            self.int(nccl::REDUCTION, coll.reduction);
        }
        self
    }

    fn p2p(&mut self, p2p: &event::P2p) -> &mut Args {
        self.int(nccl::PEER, p2p.peer)
            .nonzero(nccl::CHANNELS, u64::from(p2p.channels))
            .buffers(p2p.buffer, 0)
            .nonzero(nccl::USER_TAG, p2p.user_tag)
    }

    fn ce_coll(&mut self, coll: &event::CeColl) -> &mut Args {
        self.uint(nccl::SEQ, coll.seq)
            .nonzero(nccl::STREAM, coll.stream)
            .buffers(coll.send_buffer, coll.recv_buffer)
            .nonzero(nccl::USER_TAG, coll.user_tag)
            .root(coll.func, coll.root)
            .nonzero(nccl::BATCH_SIZE, u64::from(coll.batch_size))
            .nonzero(nccl::BATCHES, u64::from(coll.batches))
            .uint(nccl::CE_SEQ, u64::from(coll.ce_seq))
            .flag(nccl::INTRA_BATCH_SYNC, coll.intra_batch_sync.is_set())
    }

    /// Addresses of buffers (0 if there is none), and their alignment.
    fn buffers(&mut self, send: u64, receive: u64) -> &mut Args {
        self.nonzero(nccl::SEND_BUFFER, send)
            .nonzero(nccl::RECV_BUFFER, receive)
            .nonzero(nccl::BUFFER_ALIGNMENT, alignment(send | receive))
    }

    /// The root, only for functions that have one: NCCL fills the field for all.
    fn root(&mut self, func: Word, root: i32) -> &mut Args {
        let rooted = matches!(func, Word::BROADCAST | Word::REDUCE | Word::GATHER | Word::SCATTER) || func.is_text();
        if rooted && root >= 0 { self.int(nccl::ROOT, root) } else { self }
    }

    /// A call on a host thread, besides the operation it asks for.
    pub fn call(&mut self, event: &Event) -> &mut Args {
        match event {
            Event::GroupApi(group) => self.int(nccl::DEPTH, group.depth).flag(nccl::CAPTURED, group.captured.is_set()),
            Event::KernelLaunch(launch) => self.nonzero(nccl::STREAM, launch.stream),
            Event::CeSync(sync) => self.int(nccl::RANKS, sync.ranks).flag(nccl::COMPLETE, sync.complete.is_set()),
            Event::CeBatch(batch) => self
                .int(nccl::COPIES, batch.ops)
                .uint(nccl::BYTES, batch.bytes)
                .flag(nccl::INTRA_BATCH_SYNC, batch.intra_sync.is_set()),
            _ => self,
        }
    }

    /// The end of a group call: when its start returned and when its end was called.
    pub fn group_marks(&mut self, begin: HostNs, marks: [Option<HostNs>; 2]) -> &mut Args {
        for (field, mark) in [nccl::GROUP_START_RETURNED_NS, nccl::GROUP_END_CALLED_NS].into_iter().zip(marks) {
            self.known(field, mark.map(|mark| mark.since(begin)));
        }
        self
    }

    /// A communicator.
    pub fn comm(&mut self, comm: &Comm) -> &mut Args {
        self.known(nccl::DEVICE, comm.device.map(u64::from));
        if comm.hash != 0 {
            self.text(nccl::COMM_HASH, &format!("{:016x}", comm.hash));
        }
        self.nonzero(nccl::COMM, comm.hash)
            .nonzero(nccl::INTERFACE, u64::from(comm.interface))
            .nonzero(nccl::NCCL_VERSION, u64::from(comm.version))
            .known_text(nccl::COMM_NAME, comm.name.as_deref());
        for (field, value) in [(nccl::RANK, comm.rank), (nccl::RANKS, comm.ranks), (nccl::NODES, comm.nodes)] {
            if value >= 0 {
                self.int(field, value);
            }
        }
        self
    }

    /// The communicator that another event belongs to.
    pub fn of_comm(&mut self, comm: Option<&Comm>) -> &mut Args {
        match comm {
            // Process groups of other tools have a name but no hash.
            Some(Comm { hash: 0, name: Some(name), .. }) => self.text(nccl::COMM_NAME, name),
            Some(comm) => self.nonzero(nccl::COMM, comm.hash),
            None => self,
        }
    }

    /// A proxy operation.
    pub fn proxy_op(&mut self, proxy: &ProxyOp<'_>) -> &mut Args {
        let op = &proxy.event;
        self.uint(nccl::CHANNEL, u64::from(op.channel))
            .int(nccl::PEER, op.peer)
            .int(nccl::STEPS, op.steps)
            .int(nccl::CHUNK_BYTES, op.chunk_bytes)
            .nonzero(nccl::APPEND_BATCH, u64::from(proxy.batch))
            .of_comm(proxy.comm)
            .doubt(proxy.doubt);
        if proxy.doubt == Some(Doubt::ParentForeign) {
            self.int(nccl::FOREIGN_PID, op.pid);
        }
        if let Some(operation) = proxy.operation {
            if let Event::Coll(coll) = &operation.event {
                self.uint(nccl::SEQ, coll.seq);
            }
            self.known(nccl::BYTES, operation.bytes());
        }
        self
    }

    /// Its transfers are reported: NCCL reports them only for the network.
    pub fn by_network(&mut self) -> &mut Args {
        self.uint(nccl::TRANSPORT, transport::net)
    }

    /// A kernel channel or a phase, at its start.
    pub fn channel(&mut self, channel: &Channel<'_>, timing: Timing) -> &mut Args {
        self.uint(nccl::CHANNEL, u64::from(channel.channel))
            .nonzero(nccl::GPU_START_NS, channel.start.0)
            .known(nccl::PHASE, channel.phase.map(|(number, _)| u64::from(number)))
            .timing(timing)
    }

    /// How the times of a kernel channel are known.
    pub fn timing(&mut self, timing: Timing) -> &mut Args {
        match timing {
            Timing::Gpu { error_ns, place: None } => self.uint(nccl::TIME_ERROR_NS, u64::from(error_ns)),
            Timing::Gpu { error_ns, place: Some(place) } => self
                .uint(nccl::DEVICE, u64::from(place.device))
                .uint(nccl::STREAM_ID, u64::from(place.stream))
                .uint(nccl::TIME_ERROR_NS, u64::from(error_ns)),
            Timing::Seen(_) => self,
        }
    }

    /// Why a kernel channel may not be what it seems.
    pub fn channel_doubt(&mut self, timing: Timing, unreliable: bool, doubt: Option<Doubt>) -> &mut Args {
        let flaw = match timing {
            Timing::Seen(flaw) => Some(flaw.text()),
            Timing::Gpu { .. } => unreliable.then_some("an earlier sample of this channel was impossible"),
        };
        match doubt {
            Some(_) => self.doubt(doubt).known_text(nccl::NOTE, flaw),
            None => self.known_text(nccl::DOUBT, flaw),
        }
    }

    /// What the network reported.
    pub fn net(&mut self, net: &event::Net) -> &mut Args {
        if net.id != 0 {
            self.uint(nccl::NET_ID, net.id as u64);
        }
        match net.network {
            Network::INFINIBAND => self
                .uint(nccl::NET_TYPE, u64::from(net.net_type))
                .int(nccl::NET_DEVICE, net.device)
                .uint(nccl::NET_WORK_REQUEST, net.work_request)
                .int(nccl::NET_OPCODE, net.opcode)
                .int(nccl::NET_QUEUE_PAIR, net.queue_pair)
                .uint(nccl::NET_LENGTH, net.length),
            Network::SOCKET => self
                .uint(nccl::NET_TYPE, u64::from(net.net_type))
                .int(nccl::NET_DEVICE, net.device)
                .int(nccl::NET_OPCODE, net.opcode)
                .uint(nccl::NET_LENGTH, net.length),
            _ => self,
        }
    }

    /// Where something ran on a GPU, and the error of its times.
    pub fn ran(&mut self, place: Place, span: Span) -> &mut Args {
        self.uint(nccl::DEVICE, u64::from(place.device))
            .nonzero(nccl::CONTEXT, u64::from(place.context))
            .uint(nccl::STREAM_ID, u64::from(place.stream))
            .time_error(span.error_ns)
    }

    /// The error of times, in ns; nothing if it is unknown.
    pub fn time_error(&mut self, error_ns: u32) -> &mut Args {
        if error_ns == Span::UNKNOWN_ERROR { self } else { self.uint(nccl::TIME_ERROR_NS, u64::from(error_ns)) }
    }

    /// How something on the GPU was matched to what it carried.
    pub fn matched_by(&mut self, method: Method) -> &mut Args {
        let number = match method {
            Method::Bracket => matched_by::exact_launch_bracket,
            Method::External => matched_by::exact_external_id,
            Method::GraphNode => matched_by::exact_graph_node,
            Method::GraphReplay => matched_by::inferred_graph_replay,
            Method::ApiBracket => matched_by::inferred_call_bracket,
            Method::ThreadOrder => matched_by::inferred_thread_order,
            Method::DeviceTimer => matched_by::inferred_device_timer,
            Method::CaptureOrder => matched_by::inferred_capture_order,
            Method::Range => matched_by::inferred_range,
            Method::KernelName => matched_by::inferred_kernel_name,
            Method::Contradicted => matched_by::contradicted,
        };
        self.uint(nccl::MATCH, number)
    }

    /// What the program said it was doing when it asked for something.
    pub fn around(&mut self, around: Option<&Around>) -> &mut Args {
        self.known_text(nccl::NVTX_RANGE, around.and_then(|around| around.range.as_deref()))
            .known(nccl::NVTX_STEP, around.and_then(|around| around.step))
    }

    /// A kernel and its owner.
    pub fn kernel(&mut self, kernel: &Kernel, owner: &Owner<'_>) -> &mut Args {
        // For these, 0 means none: a file of another tool does not have them.
        self.text(nccl::KERNEL, &kernel.name)
            .nonzero(nccl::CORRELATION, u64::from(kernel.correlation))
            .nonzero(nccl::GRID, u64::from(kernel.grid[0]))
            .nonzero(nccl::BLOCK, u64::from(kernel.block[0]))
            .nonzero(nccl::GRAPH, u64::from(kernel.graph))
            .nonzero(nccl::GRAPH_NODE, kernel.graph_node)
            .ran(kernel.place, kernel.span);
        match owner {
            Owner::Application => self,
            Owner::Operations { method, comm, operations, replay, untold, .. } => {
                if *untold > 0 {
                    let broadcasts = if *untold == 1 { "a broadcast".into() } else { format!("{untold} broadcasts") };
                    self.text(nccl::DOUBT, &format!("may also carry {broadcasts}: NCCL does not report these"));
                }
                if *method == Method::Contradicted {
                    self.text(
                        nccl::DOUBT,
                        "NCCL's times of what it carried contradict its own: the match or a time is wrong",
                    );
                }
                self.matched_by(*method)
                    .of_comm(*comm)
                    .uint(nccl::OPERATIONS, operations.len() as u64)
                    .nonzero(nccl::REPLAY, replay.unwrap_or_default())
            }
            Owner::Unmatched(reason) => self.uint(nccl::MATCH, matched_by::unmatched).text(nccl::DOUBT, reason.text()),
        }
    }

    /// How the kernels of a recording were matched.
    pub fn matches(&mut self, matches: &Matches, launches_lost: u64) -> &mut Args {
        let Matches {
            matched,
            unmatched,
            application,
            without_kernel,
            implausible,
            unpaired_markers,
            unfinished,
            untimed,
            foreign_ids,
            dropped,
            discarded_buffers,
            discarded,
            mistimed,
            cupti_off: [least, most],
            channels: _,
        } = *matches;
        for (method, count) in Method::ALL.into_iter().zip(matched) {
            if let Some(field) = count_of(method) {
                self.uint(field, count);
            }
        }
        for (field, value) in [
            (nccl::KERNELS_UNMATCHED, unmatched),
            (nccl::KERNELS_APPLICATION, application),
            (nccl::LAUNCHES_WITHOUT_KERNEL, without_kernel),
            (nccl::ACTIVITIES_IMPLAUSIBLE, implausible),
            (nccl::EXTERNAL_IDS_FOREIGN, foreign_ids),
            (nccl::MARKERS_UNPAIRED, unpaired_markers),
            (nccl::KERNELS_UNFINISHED, unfinished),
            (nccl::KERNELS_UNTIMED, untimed),
            (nccl::ACTIVITIES_DROPPED, dropped),
            (nccl::ACTIVITY_BUFFERS_DISCARDED, discarded_buffers),
            (nccl::ACTIVITIES_DISCARDED, discarded),
            (nccl::LAUNCHES_LOST, launches_lost),
            (nccl::KERNELS_MISTIMED, mistimed),
        ] {
            self.uint(field, value);
        }
        for (field, value) in [(nccl::CUPTI_OFF_LEAST_NS, least), (nccl::CUPTI_OFF_MOST_NS, most)] {
            if let Some(value) = value {
                self.long(field, value);
            }
        }
        self
    }

    /// What was found about the kernel channels of a recording.
    pub fn channel_checks(&mut self, channels: &ChannelChecks) -> &mut Args {
        let ChannelChecks {
            inside_kernel,
            without_kernel,
            unmapped,
            implausible,
            unreliable,
            kernels_confirmed,
            contradictions,
        } = *channels;
        for (field, value) in [
            (nccl::CHANNELS_INSIDE_KERNEL, inside_kernel),
            (nccl::CHANNELS_WITHOUT_KERNEL, without_kernel),
            (nccl::CHANNELS_UNMAPPED, unmapped),
            (nccl::CHANNELS_IMPLAUSIBLE, implausible),
            (nccl::CHANNELS_UNRELIABLE, unreliable),
            (nccl::KERNELS_CONFIRMED, kernels_confirmed),
            (nccl::TIMER_CONTRADICTIONS, contradictions),
        ] {
            self.uint(field, value);
        }
        self
    }

    /// What was doubtful in a recording.
    pub fn doubts(&mut self, doubts: &Doubts) -> &mut Args {
        let Doubts {
            double_stops,
            unknown_handles,
            foreign_handles,
            unknown_parents,
            foreign_events,
            evicted_open,
            silent_proxy_ops,
            unknown_types,
            late,
        } = *doubts;
        for (field, value) in [
            (nccl::DOUBLE_STOPS, double_stops),
            (nccl::UNKNOWN_HANDLES, unknown_handles),
            (nccl::FOREIGN_HANDLES, foreign_handles),
            (nccl::UNKNOWN_PARENTS, unknown_parents),
            (nccl::FOREIGN_EVENTS, foreign_events),
            (nccl::EVICTED_OPEN, evicted_open),
            (nccl::SILENT_PROXY_OPS, silent_proxy_ops),
            (nccl::UNKNOWN_TYPES, unknown_types),
            (nccl::LATE, late),
        ] {
            self.uint(field, value);
        }
        self
    }
}

/// The argument that counts the kernels matched by this method; `None` for methods that a recording
/// never uses.
fn count_of(method: Method) -> Option<u32> {
    match method {
        Method::Bracket => Some(nccl::KERNELS_LAUNCH_BRACKET),
        Method::External => Some(nccl::KERNELS_EXTERNAL_ID),
        Method::GraphNode => Some(nccl::KERNELS_GRAPH_NODE),
        Method::GraphReplay => Some(nccl::KERNELS_GRAPH_REPLAY),
        Method::ApiBracket => Some(nccl::KERNELS_CALL_BRACKET),
        Method::ThreadOrder => Some(nccl::KERNELS_THREAD_ORDER),
        Method::DeviceTimer => Some(nccl::KERNELS_DEVICE_TIMER),
        Method::Contradicted => Some(nccl::KERNELS_CONTRADICTED),
        Method::CaptureOrder | Method::Range | Method::KernelName => None,
    }
}

/// The largest power of two, up to 4096, that divides the addresses with these bits; 0 if there are
/// none.
fn alignment(addresses: u64) -> u64 {
    if addresses == 0 { 0 } else { 1 << addresses.trailing_zeros().min(12) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alignment_of_two_buffers_is_the_smaller_one() {
        for (addresses, expected) in [
            ([0x7f00_0000_0000, 0x7f00_0020_0000], 4096),
            ([0x7f00_0000_0100, 0x7f00_0000_0040], 64),
            ([0x7f00_0000_0100, 0x7f00_0000_0101], 1),
            ([0x7f00_0000_0010, 0], 16),
            ([0, 0], 0),
        ] {
            assert_eq!(alignment(addresses[0] | addresses[1]), expected, "{addresses:x?}");
        }
    }
}
