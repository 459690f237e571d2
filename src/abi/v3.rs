//! Interface v3: NCCL 2.26. Adds kernel channels without a GPU time, and network events.

use std::ffi::{c_char, c_int, c_void};

use super::common::{self, Identity, StateArgsV1};
use super::{Abi, Start, v2, v4};
use crate::model::event;
use crate::model::ids::Handle;

pub(super) enum V3 {}

#[repr(C)]
pub(super) union Body {
    common: common::Body,
    identity: Identity,
    coll: Coll,
    p2p: v2::P2p,
    kernel_ch: KernelCh,
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
    pub(super) n_max_channels: u8,
    pub(super) n_warps: u8,
    pub(super) algo: *const c_char,
    pub(super) proto: *const c_char,
}

/// It has no GPU time.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelCh {
    channel_id: u8,
}

impl Coll {
    /// The same for v4, which has all of these fields.
    #[inline(always)]
    pub(super) fn v4(&self) -> v4::Coll {
        let Coll { seq_number, func, send_buff, recv_buff, count, root, datatype, n_warps, algo, proto, .. } = *self;
        let n_channels = self.n_max_channels;
        v4::Coll { seq_number, func, send_buff, recv_buff, count, root, datatype, n_channels, n_warps, algo, proto }
    }
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

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.coll.v4().event(start.parent) })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.v4().event(start.parent) })
    }

    unsafe fn kernel_ch(body: &Body) -> Option<event::KernelCh> {
        // SAFETY: the trait's promise.
        let channel = unsafe { body.kernel_ch.channel_id };
        Some(event::KernelCh { channel, ..Default::default() })
    }

    unsafe fn identity(body: &Body) -> Option<Identity> {
        // SAFETY: the trait's promise.
        Some(unsafe { body.identity })
    }
}

#[cfg(test)]
super::layout::layout_of!(V3: coll = Identity { name, comm_hash }, coll = Coll {
    seq_number, func, send_buff, recv_buff, count, root, datatype, n_max_channels, n_warps,
    algo, proto,
}, p2p = Identity { name, comm_hash }, p2p = v2::P2p { func, buff, datatype, count, peer }, kernelCh = KernelCh { channel_id });

#[cfg(test)]
mod tests {
    use super::super::made_up_v8::tests::{recorded, rings};
    use super::super::record_start;
    use super::*;
    use crate::model::event::Body as What;
    use crate::model::kinds::bit;

    #[test]
    fn a_communicator_s_name_is_recorded_once_and_again_when_it_changes() {
        let rings = rings();
        // SAFETY: a union of C structures made of integers and raw pointers.
        let mut body: Body = unsafe { std::mem::zeroed() };
        for (name, comm_hash, times) in [(c"data parallel", 7, 3), (c"tensor parallel", 8, 2)] {
            body.identity = Identity { name: name.as_ptr(), comm_hash };
            let start = Start { parent: Handle::NONE, context: Handle(9), rank: 0 };
            // SAFETY: the body of a Coll, with a literal for a name.
            (0..times).for_each(|_| _ = unsafe { record_start::<V3>(bit::COLL, &body, &start) });
        }
        let names = recorded(rings, |record| match record.body {
            What::Text { text, .. } => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        });
        assert_eq!(names, ["data parallel", "tensor parallel"]);
    }
}
