//! A made-up layout of NCCL's structures.

use super::world::Kind;
use crate::library::{Layout, layout};

/// A layout unlike NCCL's: members in another order, with holes.
pub(super) fn made_up(kind: Kind) -> Layout {
    let mut at = Places(0);
    let kernel_args = layout::KernelArgs {
        work_storage_type: at.bytes(1),
        channel_mask: at.bytes(8),
        work_buf: at.bytes(8),
        comm: at.bytes(8),
        work_mask: at.bytes(4),
        size: at.size(),
    };
    let mut at = Places(0);
    let kernel_comm = layout::KernelComm {
        channels: at.bytes(8),
        n_ranks: at.bytes(4),
        abort_flag: at.bytes(8),
        buff_sizes: at.bytes(12),
        rank: at.bytes(4),
        p2p_chunk_size: at.bytes(4),
        work_consumed: at.some(kind != Kind::Rings),
        work_started: at.some(kind != Kind::None),
        work_completed: at.some(kind != Kind::None),
        size: at.size(),
    };
    let mut at = Places(0);
    let channel = layout::Channel {
        tree_down: at.bytes(12),
        tree_up: at.bytes(4),
        ring_user_ranks: at.bytes(8),
        ring_index: at.bytes(4),
        ring_next: at.bytes(4),
        ring_prev: at.bytes(4),
        work_counter: at.some(kind != Kind::None),
        peers: at.bytes(8),
        size: at.size(),
    };
    let mut at = Places(0);
    let conn_info = layout::ConnInfo {
        step: at.bytes(8),
        conn_fifo: at.bytes(8),
        head: at.bytes(8),
        tail: at.bytes(8),
        buffs: at.bytes(24),
        step_size: at.bytes(4),
        size: at.size(),
    };
    let mut at = Places(0);
    let channel_peer =
        layout::ChannelPeer { recv: at.bytes(2 * conn_info.size), send: at.bytes(2 * conn_info.size), size: at.size() };
    let mut at = Places(0);
    let conn_fifo = layout::ConnFifo { bytes: at.bytes(8), mode: at.bytes(4), offset: at.bytes(4), size: at.size() };
    let mut at = Places(0);
    let [func_id, next_extends, work_type, next_jump] = at.bits([13, 1, 2, 14]);
    let work_batch = layout::WorkBatch {
        next_jump,
        next_extends,
        work_type,
        func_id,
        offset_bitset: at.bytes(8),
        offset_base: at.bytes(4),
        size: at.size(),
    };
    let mut at = Places(0);
    let [profiler_enabled, channel_hi, channel_lo, red_op_arg_is_ptr, reg_used, net_reg_used] =
        at.bits([1, 8, 8, 1, 1, 1]);
    let [chunk_grains_hi, chunk_grains_lo, chunk_grains_mid] = at.bits([21, 21, 21]);
    let work_coll = layout::WorkColl {
        channel_lo,
        channel_hi,
        red_op_arg_is_ptr,
        reg_used,
        net_reg_used: Some(net_reg_used),
        profiler_enabled: (kind != Kind::None).then_some(profiler_enabled),
        recvbuff: at.bytes(8),
        red_op_arg: at.bytes(8),
        sendbuff: at.bytes(8),
        root: at.bytes(4),
        count_hi: at.bytes(8),
        count_mid: at.bytes(8),
        count_lo: at.bytes(8),
        chunk_grains_lo,
        chunk_grains_mid,
        chunk_grains_hi,
        size: at.size(),
    };
    let mut at = Places(0);
    let [recv_proto_ll, send_proto_ll, profiler_enabled, send_net_reg] = at.bits([1; 4]);
    let work_p2p = layout::WorkP2p {
        recv_addr: at.bytes(8),
        send_addr: at.bytes(8),
        n_p2p_channels: at.bytes(1),
        channel_base: at.bytes(1),
        recv_bytes: at.bytes(8),
        send_bytes: at.bytes(8),
        recv_rank: at.bytes(4),
        send_rank: at.bytes(4),
        n_recv_channels: at.bytes(1),
        n_send_channels: at.bytes(1),
        recv_chunk_size: at.bytes(1),
        send_chunk_size: at.bytes(1),
        send_proto_ll,
        recv_proto_ll,
        send_net_reg: Some(send_net_reg),
        recv_net_reg: None,
        send_ipc_reg: None,
        recv_ipc_reg: None,
        profiler_enabled: Some(profiler_enabled),
        size: at.size(),
    };
    let mut at = Places(0);
    let work_bcast = layout::WorkBcast {
        bytes: at.bytes(8),
        sendbuff: at.bytes(8),
        ring_depth: at.bytes(4),
        recvbuff: at.bytes(8),
        chunk_size: at.bytes(4),
        size: at.size(),
    };
    let profiler = layout::Profiler { data: 16, size: 1056 };
    let comm = layout::Comm { comm_hash: None, dev_comm: None, size: 0 };
    Layout {
        kernel_args,
        kernel_comm,
        channel,
        channel_peer,
        conn_info,
        conn_fifo,
        work_batch,
        work_coll,
        work_p2p,
        work_bcast: Some(work_bcast),
        profiler: (kind == Kind::Rings).then_some(profiler),
        comm,
    }
}

/// Hands out places in a structure.
struct Places(usize);

impl Places {
    fn bytes(&mut self, bytes: usize) -> usize {
        // A hole before each.
        self.0 = (self.0 + 8).next_multiple_of(bytes.min(8));
        let place = self.0;
        self.0 += bytes;
        place
    }

    fn bits<const N: usize>(&mut self, widths: [u32; N]) -> [layout::Bits; N] {
        let mut offset = self.bytes(16) as u32 * 8 + 3;
        widths.map(|width| {
            let bits = layout::Bits { offset, width };
            offset += width;
            bits
        })
    }

    fn some(&mut self, there: bool) -> Option<usize> {
        there.then(|| self.bytes(8))
    }

    fn size(&self) -> usize {
        (self.0 + 8).next_multiple_of(16)
    }
}
