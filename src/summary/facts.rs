//! The facts of one event of a trace, read from its typed arguments: the same bytes in the process
//! that draws the event and in the file that holds it.

use crate::trace::fields::nccl;
use crate::trace::wire::{Field, fields};
use crate::trace::words::{FINALIZED, GIVEN_UP};

/// The arguments of an event that count here, each in a field of its own, hence more than twenty.
/// An absent text is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    pub(super) comm: u64,
    pub(super) comm_name: &'a [u8],
    pub(super) rank: Option<i32>,
    pub(super) ranks: Option<i32>,
    pub(super) nodes: Option<i32>,
    pub(super) interface: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) device: Option<u64>,
    pub(super) uuid: &'a [u8],
    pub(super) function: Word<'a>,
    pub(super) datatype: Word<'a>,
    pub(super) algorithm: Word<'a>,
    pub(super) protocol: Word<'a>,
    /// Elements; `None` if the event belongs to no operation.
    pub(super) count: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(super) root: Option<i32>,
    pub(crate) peer: Option<i32>,
    pub(super) channels: Option<u64>,
    pub(super) buffers: [u64; 2],
    pub(super) alignment: u64,
    /// The run of its graph, counted from 1.
    pub(crate) replay: Option<u64>,
    pub(crate) queued_ns: Option<u64>,
    /// How long its kernel had run when the proxy began its work.
    pub(super) proxy_wait_ns: Option<u64>,
    pub(super) matched_by: Option<u64>,
    /// Operations of the kernel that carried this one, if there were several.
    pub(super) operations: Option<u64>,
    pub(super) network: Option<u64>,
    pub(super) note: &'a [u8],
    /// The thread that handed an operation over, or that made a call without a track of its own.
    pub(crate) tid: Option<i32>,
    /// The number of a transfer of the proxy; the number of transfers of a proxy's operation.
    pub(crate) step: Option<i32>,
    pub(crate) steps: Option<i32>,
    pub(crate) doubt: &'a [u8],
}

/// One of NCCL's words: a number of the table, or any other text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word<'a> {
    pub(super) number: u16,
    pub(super) text: &'a [u8],
}

impl<'a> Facts<'a> {
    /// Reads an event's arguments. Damaged ones count as absent.
    #[must_use]
    pub fn of(args: &'a [u8]) -> Facts<'a> {
        let mut facts = Facts::default();
        let int = |field: &Field<'_>| Some(field.uint() as i64 as i32);
        let number = |field: &Field<'_>| field.uint() as u16;
        for field in fields(args) {
            match field.number {
                nccl::COMM => facts.comm = field.uint(),
                nccl::COMM_NAME => facts.comm_name = field.bytes(),
                nccl::RANK => facts.rank = int(&field),
                nccl::RANKS => facts.ranks = int(&field),
                nccl::NODES => facts.nodes = int(&field),
                nccl::INTERFACE => facts.interface = Some(field.uint()),
                nccl::NCCL_VERSION => facts.version = Some(field.uint()),
                nccl::DEVICE => facts.device = Some(field.uint()),
                nccl::UUID => facts.uuid = field.bytes(),
                nccl::FUNCTION => facts.function.number = number(&field),
                nccl::FUNCTION_TEXT => facts.function.text = field.bytes(),
                nccl::DATATYPE => facts.datatype.number = number(&field),
                nccl::DATATYPE_TEXT => facts.datatype.text = field.bytes(),
                nccl::ALGORITHM => facts.algorithm.number = number(&field),
                nccl::ALGORITHM_TEXT => facts.algorithm.text = field.bytes(),
                nccl::PROTOCOL => facts.protocol.number = number(&field),
                nccl::PROTOCOL_TEXT => facts.protocol.text = field.bytes(),
                nccl::COUNT => facts.count = Some(field.uint()),
                nccl::BYTES => facts.bytes = Some(field.uint()),
                nccl::ROOT => facts.root = int(&field),
                nccl::PEER => facts.peer = int(&field),
                nccl::CHANNELS => facts.channels = Some(field.uint()),
                nccl::SEND_BUFFER => facts.buffers[0] = field.uint(),
                nccl::RECV_BUFFER => facts.buffers[1] = field.uint(),
                nccl::BUFFER_ALIGNMENT => facts.alignment = field.uint(),
                nccl::REPLAY => facts.replay = Some(field.uint()),
                nccl::QUEUED_NS => facts.queued_ns = Some(field.uint()),
                nccl::PROXY_WAIT_NS => facts.proxy_wait_ns = Some(field.uint()),
                nccl::MATCH => facts.matched_by = Some(field.uint()),
                nccl::OPERATIONS => facts.operations = Some(field.uint()),
                nccl::NET_ID => facts.network = Some(field.uint()),
                nccl::NOTE => facts.note = field.bytes(),
                nccl::TID => facts.tid = int(&field),
                nccl::STEP => facts.step = int(&field),
                nccl::STEPS => facts.steps = int(&field),
                nccl::DOUBT => facts.doubt = field.bytes(),
                _ => {}
            }
        }
        facts
    }

    /// Whether the slice was ended by another's end, because its own was lost or never came.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        [GIVEN_UP, FINALIZED].map(str::as_bytes).contains(&self.doubt)
    }
}
