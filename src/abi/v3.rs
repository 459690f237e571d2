//! Interface v3: NCCL 2.26. Adds kernel channels without a time, and network events.

use std::ffi::{c_char, c_int, c_void};

use super::common::{self, StateArgsV1};
use super::words::with_words;
use super::{Abi, Start, bit};
use crate::model::event;
use crate::model::ids::Handle;
use crate::model::word::Word;

pub(super) enum V3 {}

#[repr(C)]
pub(super) union Body {
    common: common::Body,
    coll: Coll,
    p2p: P2p,
    kernel_ch: KernelCh,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Coll {
    name: *const c_char,
    comm_hash: u64,
    seq_number: u64,
    func: *const c_char,
    send_buff: *const c_void,
    recv_buff: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    n_max_channels: u8,
    n_warps: u8,
    algo: *const c_char,
    proto: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct P2p {
    name: *const c_char,
    comm_hash: u64,
    func: *const c_char,
    buff: *mut c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
}

/// Without a time of the GPU.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelCh {
    channel_id: u8,
}

impl Abi for V3 {
    const VERSION: u8 = 3;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV1;

    unsafe fn common(body: &Body) -> &common::Body {
        // SAFETY: the trait's promise.
        unsafe { &body.common }
    }

    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise.
        let coll = unsafe { &body.coll };
        let event = with_words(|words| {
            // SAFETY: the trait's promise.
            let word = |text| unsafe { words.word(text) };
            event::Coll {
                seq: coll.seq_number,
                send_buffer: coll.send_buff as u64,
                recv_buffer: coll.recv_buff as u64,
                count: coll.count as u64,
                group: start.parent,
                root: coll.root,
                reduction: -1,
                func: word(coll.func),
                datatype: word(coll.datatype),
                algorithm: word(coll.algo),
                protocol: word(coll.proto),
                channels: coll.n_max_channels,
                warps: coll.n_warps,
                ..Default::default()
            }
        });
        start.record(&event)
    }

    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise.
        let p2p = unsafe { &body.p2p };
        let event = with_words(|words| {
            // SAFETY: the trait's promise.
            let word = |text| unsafe { words.word(text) };
            event::P2p {
                buffer: p2p.buff as u64,
                count: p2p.count as u64,
                group: start.parent,
                peer: p2p.peer,
                func: word(p2p.func),
                datatype: word(p2p.datatype),
                ..Default::default()
            }
        });
        start.record(&event)
    }

    unsafe fn kernel_ch(body: &Body) -> Option<event::KernelCh> {
        // SAFETY: the trait's promise.
        let channel = unsafe { body.kernel_ch.channel_id };
        Some(event::KernelCh { channel, ..Default::default() })
    }

    unsafe fn newer(_: &Body, _: u64, _: &Start) -> Option<Handle> {
        None
    }

    unsafe fn identity(body: &Body, bits: u64) -> Option<(u64, Word)> {
        // SAFETY: the trait's promise: Coll and P2p begin with the same two fields.
        unsafe {
            let (hash, name) = match bits {
                bit::COLL => (body.coll.comm_hash, body.coll.name),
                _ => (body.p2p.comm_hash, body.p2p.name),
            };
            Some((hash, with_words(|words| words.word(name))))
        }
    }
}

#[cfg(test)]
super::layout::layout_of!(V3: coll = Coll {
    name, comm_hash, seq_number, func, send_buff, recv_buff, count, root, datatype, n_max_channels, n_warps,
    algo, proto,
}, p2p = P2p { name, comm_hash, func, buff, datatype, count, peer }, kernelCh = KernelCh { channel_id });
