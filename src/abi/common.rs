//! The C layouts that every interface version shares: header, proxy members, network payloads,
//! state arguments.

use std::ffi::{c_char, c_int, c_void};

use crate::model::event::{self, Flag, Net, Network};
use crate::model::state;
use crate::model::time::GpuNs;

/// A descriptor: the header, in which only the width of the type ever changed, and the version's
/// union.
#[repr(C)]
pub(super) struct Descr<B, Body> {
    pub(super) bits: B,
    pub(super) parent: *mut c_void,
    pub(super) rank: c_int,
    pub(super) body: Body,
}

/// The members with the same layout in every version that has them.
#[repr(C)]
pub(super) union Body {
    pub(super) identity: Identity,
    pub(super) proxy_op: ProxyOp,
    pub(super) proxy_step: ProxyStep,
    pub(super) kernel_ch: KernelCh,
    pub(super) net_plugin: NetPlugin,
}

impl Body {
    /// These members of a version's union.
    #[inline(always)]
    pub(super) fn of<B>(body: &B) -> &Body {
        const { assert!(size_of::<B>() >= size_of::<Body>() && align_of::<B>() >= align_of::<Body>()) };
        // SAFETY: it is as long and as aligned, and a union may hold any bytes.
        unsafe { &*std::ptr::from_ref(body).cast() }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyOp {
    pub(super) pid: i32,
    pub(super) channel_id: u8,
    pub(super) peer: c_int,
    pub(super) n_steps: c_int,
    pub(super) chunk_size: c_int,
    pub(super) is_send: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyStep {
    pub(super) step: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct NetPlugin {
    pub(super) id: i64,
    pub(super) data: *mut c_void,
}

/// The first fields of Coll and P2p up to v3: the communicator of the operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Identity {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
}

/// A kernel channel. The time is there since v4.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KernelCh {
    pub(super) channel_id: u8,
    pub(super) p_timer: u64,
}

impl From<ProxyOp> for event::ProxyOp {
    #[inline]
    fn from(op: ProxyOp) -> event::ProxyOp {
        event::ProxyOp {
            pid: op.pid,
            peer: op.peer,
            steps: op.n_steps,
            chunk_bytes: op.chunk_size,
            channel: op.channel_id,
            send: Flag(u8::from(op.is_send != 0)),
            ..Default::default()
        }
    }
}

impl From<KernelCh> for event::KernelCh {
    #[inline]
    fn from(channel: KernelCh) -> event::KernelCh {
        event::KernelCh { start: GpuNs(channel.p_timer), channel: channel.channel_id, ..Default::default() }
    }
}

/// InfiniBand payload, version 1: the type, then a nested structure, which is aligned to 8.
#[repr(C)]
pub(super) struct NetInfiniband {
    pub(super) kind: u8,
    pub(super) qp: QueuePair,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QueuePair {
    pub(super) device: c_int,
    pub(super) wr_id: u64,
    pub(super) opcode: c_int,
    pub(super) qp_num: c_int,
    pub(super) length: usize,
}

/// Socket payload, version 1: the same shape.
#[repr(C)]
pub(super) struct NetSocket {
    pub(super) kind: u8,
    pub(super) sock: Socket,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Socket {
    pub(super) fd: c_int,
    pub(super) op: c_int,
    pub(super) length: usize,
}

impl NetPlugin {
    /// Copies what the network plugin passed.
    ///
    /// # Safety
    ///
    /// `data` is null or points at the payload that `id` names.
    pub(super) unsafe fn read(self) -> Net {
        // SAFETY: the caller's promise.
        let net = unsafe { net_payload(Network::from_id(self.id), self.data) };
        Net { id: self.id, ..net }
    }
}

/// Copies a payload of the network plugin.
///
/// # Safety
///
/// `data` is null or points at a payload of that network, which stays valid during the call.
pub(super) unsafe fn net_payload(network: Network, data: *const c_void) -> Net {
    let network = if data.is_null() { Network::OTHER } else { network };
    let mut net = Net { network, ..Net::default() };
    match network {
        Network::INFINIBAND => {
            // SAFETY: the caller's promise.
            if let Some(payload) = unsafe { data.cast::<NetInfiniband>().as_ref() } {
                net.net_type = payload.kind;
                net.device = payload.qp.device;
                net.work_request = payload.qp.wr_id;
                net.opcode = payload.qp.opcode;
                net.queue_pair = payload.qp.qp_num;
                net.length = payload.qp.length as u64;
            }
        }
        Network::SOCKET => {
            // SAFETY: the caller's promise.
            if let Some(payload) = unsafe { data.cast::<NetSocket>().as_ref() } {
                net.net_type = payload.kind;
                net.device = payload.sock.fd;
                net.opcode = payload.sock.op;
                net.length = payload.sock.length as u64;
            }
        }
        _ => {}
    }
    net
}

/// A state's argument: only the fields that the state defines are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Argument {
    pub(super) value: u64,
    pub(super) steps: i32,
}

/// A version's state arguments.
pub(super) trait StateArgument: 'static {
    /// Reads only what `state` defines: NCCL's adapters leave the rest uninitialised, and
    /// `transSize` belongs to an earlier step in every state but two.
    ///
    /// # Safety
    ///
    /// NCCL passed these arguments with this state.
    unsafe fn read(&self, state: u16) -> Argument;
}

/// The state arguments of v1 to v3.
#[repr(C)]
pub(super) union StateArgsV1 {
    pub(super) proxy_op: ProxyOpState,
    pub(super) appended_proxy_ops: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyOpState {
    pub(super) trans_size: usize,
    pub(super) steps: c_int,
}

impl StateArgument for StateArgsV1 {
    #[inline]
    unsafe fn read(&self, number: u16) -> Argument {
        // SAFETY: the caller's promise; the state says which member is filled.
        unsafe {
            match number {
                state::PROXY_OP_SEND_POSTED..=state::PROXY_OP_RECV_DONE => {
                    Argument { value: self.proxy_op.trans_size as u64, steps: self.proxy_op.steps }
                }
                state::PROXY_CTRL_APPEND_END => Argument { value: u64::from(self.appended_proxy_ops as u32), steps: 0 },
                _ => Argument::default(),
            }
        }
    }
}

/// The state arguments since v4: a union of eight bytes.
#[repr(C)]
pub(super) union StateArgsV4 {
    pub(super) trans_size: usize,
    pub(super) appended_proxy_ops: c_int,
    pub(super) data: *mut c_void,
    pub(super) p_timer: u64,
}

impl StateArgument for StateArgsV4 {
    #[inline]
    unsafe fn read(&self, number: u16) -> Argument {
        // SAFETY: the caller's promise; the state says which member is filled.
        let value = unsafe {
            match number {
                state::PROXY_STEP_SEND_WAIT | state::PROXY_STEP_RECV_FLUSH_WAIT => self.trans_size as u64,
                state::PROXY_CTRL_APPEND_END => u64::from(self.appended_proxy_ops as u32),
                state::NET_PLUGIN_UPDATE => self.data as u64,
                state::KERNEL_CH_STOP | state::KERNEL_PHASE_STOP => self.p_timer,
                _ => 0,
            }
        };
        Argument { value, steps: 0 }
    }
}
