//! Interface v2: NCCL 2.24 and 2.25. Numbers became strings.

use std::ffi::{c_char, c_int, c_void};

use super::common::{Identity, StateArgsV1};
use super::{Abi, Start, v4};
use crate::model::event;
use crate::model::ids::Handle;

pub(super) enum V2 {}

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
    pub(super) func: *const c_char,
    pub(super) send_buff: *const c_void,
    pub(super) recv_buff: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) datatype: *const c_char,
    pub(super) traffic_bytes: usize,
    pub(super) n_channels: u8,
    pub(super) n_warps: u8,
    pub(super) algo: *const c_char,
    pub(super) proto: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    pub(super) identity: Identity,
    pub(super) func: *const c_char,
    pub(super) buff: *mut c_void,
    pub(super) datatype: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

impl Coll {
    /// The same for v4, which has all of these fields but the traffic.
    #[inline(always)]
    pub(super) fn v4(&self) -> v4::Coll {
        let Coll { seq_number, func, send_buff, recv_buff, count, root, datatype, n_channels, n_warps, .. } = *self;
        let Coll { algo, proto, .. } = *self;
        v4::Coll { seq_number, func, send_buff, recv_buff, count, root, datatype, n_channels, n_warps, algo, proto }
    }
}

impl P2p {
    /// The same for v4, which also has a number of channels.
    #[inline(always)]
    pub(super) fn v4(&self) -> v4::P2p {
        let P2p { func, buff, datatype, count, peer, .. } = *self;
        v4::P2p { func, buff, datatype, count, peer, n_channels: 0 }
    }
}

impl Abi for V2 {
    const VERSION: u8 = 2;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV1;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        let (traffic, coll) = unsafe { (body.coll.traffic_bytes as u64, body.coll.v4().event(start.parent)) };
        start.record(&event::Coll { traffic, ..coll })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.v4().event(start.parent) })
    }
}
