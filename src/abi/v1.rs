//! Interface v1: NCCL 2.23. Functions, datatypes, algorithms and protocols are numbers.

use std::ffi::{c_int, c_void};

use super::common::{Identity, StateArgsV1};
use super::{Abi, Start};
use crate::model::event::{self, Flag};
use crate::model::ids::Handle;
use crate::model::word::Word;

pub(super) enum V1 {}

#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: P2p,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    pub(super) identity: Identity,
    pub(super) seq_number: u64,
    pub(super) func: u8,
    pub(super) send_buff: *const c_void,
    pub(super) recv_buff: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) datatype: u8,
    pub(super) op: u32,
    pub(super) traffic_bytes: usize,
    pub(super) n_channels: u8,
    pub(super) n_warps: u8,
    pub(super) algo: u8,
    pub(super) proto: u8,
    pub(super) is_collnet: c_int,
    pub(super) is_nvls: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    pub(super) identity: Identity,
    pub(super) func: u8,
    pub(super) buff: *mut c_void,
    pub(super) datatype: u8,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

impl Abi for V1 {
    const VERSION: u8 = 1;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV1;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise.
        let coll = unsafe { &body.coll };
        start.record(&event::Coll {
            seq: coll.seq_number,
            send_buffer: coll.send_buff as u64,
            recv_buffer: coll.recv_buff as u64,
            count: coll.count as u64,
            group: start.parent,
            traffic: coll.traffic_bytes as u64,
            root: coll.root,
            reduction: coll.op as i32,
            func: Word::func_v1(coll.func),
            datatype: Word::datatype_v1(coll.datatype),
            algorithm: Word::algorithm_v1(coll.algo),
            protocol: Word::protocol_v1(coll.proto),
            channels: coll.n_channels,
            warps: coll.n_warps,
            collnet: Flag(u8::from(coll.is_collnet != 0)),
            nvls: Flag(u8::from(coll.is_nvls != 0)),
            ..Default::default()
        })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise.
        let p2p = unsafe { &body.p2p };
        start.record(&event::P2p {
            buffer: p2p.buff as u64,
            count: p2p.count as u64,
            group: start.parent,
            peer: p2p.peer,
            func: Word::func_v1(p2p.func),
            datatype: Word::datatype_v1(p2p.datatype),
            ..Default::default()
        })
    }
}
