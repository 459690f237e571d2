//! Interface v2: NCCL 2.24 and 2.25. Numbers became strings.

use std::ffi::{c_char, c_int, c_void};

use super::common::{self, Identity, StateArgsV1};
use super::{Abi, Start};
use crate::model::event;
use crate::model::ids::Handle;
use crate::model::word::Word;
use crate::record::recorder;

pub(super) enum V2 {}

#[repr(C)]
pub(super) union Body {
    common: common::Body,
    identity: Identity,
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
    pub(super) n_max_channels: u8,
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

impl P2p {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self, group: Handle) -> event::P2p {
        // SAFETY: the caller's promise.
        let [func, datatype] = unsafe { recorder::words([self.func, self.datatype]) };
        event::P2p {
            buffer: self.buff as u64,
            count: self.count as u64,
            group,
            peer: self.peer,
            func,
            datatype,
            ..Default::default()
        }
    }
}

impl Abi for V2 {
    const VERSION: u8 = 2;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV1;

    unsafe fn common(body: &Body) -> &common::Body {
        // SAFETY: the trait's promise.
        unsafe { &body.common }
    }

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise.
        let coll = unsafe { &body.coll };
        // SAFETY: the trait's promise.
        let [func, datatype, algorithm, protocol] =
            unsafe { recorder::words([coll.func, coll.datatype, coll.algo, coll.proto]) };
        let event = event::Coll {
            seq: coll.seq_number,
            send_buffer: coll.send_buff as u64,
            recv_buffer: coll.recv_buff as u64,
            count: coll.count as u64,
            group: start.parent,
            traffic: coll.traffic_bytes as u64,
            root: coll.root,
            reduction: -1,
            func,
            datatype,
            algorithm,
            protocol,
            channels: coll.n_max_channels,
            warps: coll.n_warps,
            ..Default::default()
        };
        start.record(&event)
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.event(start.parent) })
    }

    unsafe fn identity(body: &Body) -> Option<(u64, Word)> {
        // SAFETY: the trait's promise.
        Some(unsafe { body.identity.read() })
    }
}

#[cfg(test)]
super::layout::layout_of!(V2: coll = Identity { name, comm_hash }, coll = Coll {
    seq_number, func, send_buff, recv_buff, count, root, datatype, traffic_bytes, n_max_channels, n_warps,
    algo, proto,
}, p2p = Identity { name, comm_hash }, p2p = P2p { func, buff, datatype, count, peer });
