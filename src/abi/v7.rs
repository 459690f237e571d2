//! Interface v7: NCCL 2.31 and newer. Adds user tags, symmetric kernels and kernel phases.

use std::ffi::c_char;
use std::mem::ManuallyDrop;

use super::common::StateArgsV4;
use super::{Abi, Start, apart, bit, v5, v6};
use crate::model::event::{self, Flag};
use crate::model::ids::Handle;
use crate::model::time::GpuNs;
use crate::record::recorder;

pub(super) enum V7 {}

#[repr(C)]
pub(super) union Body {
    /// Everything that did not change.
    v6: ManuallyDrop<v6::Body>,
    coll_api: CollApi,
    p2p_api: P2pApi,
    coll: Coll,
    p2p: P2p,
    ce_coll: CeColl,
    kernel_phase: KernelPhase,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CollApi {
    pub(super) base: v5::CollApi,
    pub(super) user_tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2pApi {
    pub(super) base: v5::P2pApi,
    pub(super) user_tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    pub(super) base: v5::Coll,
    pub(super) kernel_variant: *const c_char,
    pub(super) is_sym_coll: u8,
    pub(super) user_tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    pub(super) base: v5::P2p,
    pub(super) user_tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CeColl {
    pub(super) base: v6::CeColl,
    pub(super) user_tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KernelPhase {
    pub(super) channel_id: u8,
    pub(super) phase_id: u8,
    pub(super) phase_name: *const c_char,
    pub(super) p_timer: u64,
}

impl Abi for V7 {
    const VERSION: u8 = 7;
    type Bits = u64;
    type Body = Body;
    type StateArgs = StateArgsV4;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        unsafe {
            let coll = &body.coll;
            start.record(&event::Coll {
                user_tag: coll.user_tag,
                variant: recorder::rare_word(coll.kernel_variant),
                symmetric: Flag(coll.is_sym_coll),
                ..coll.base.event()
            })
        }
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        unsafe { start.record(&event::P2p { user_tag: body.p2p.user_tag, ..body.p2p.base.event() }) }
    }

    #[inline(always)]
    unsafe fn newer(body: &Body, bits: u64, start: &Start) -> Option<Handle> {
        // SAFETY: the trait's promise, for the member that `bits` names and for its strings, or
        // passed on.
        unsafe {
            Some(match bits {
                bit::COLL_API => apart(body, start, |body, start| {
                    let call = &body.coll_api;
                    start.record(&event::CollApi { user_tag: call.user_tag, ..call.base.event() })
                }),
                bit::P2P_API => apart(body, start, |body, start| {
                    let call = &body.p2p_api;
                    start.record(&event::P2pApi { user_tag: call.user_tag, ..call.base.event() })
                }),
                bit::CE_COLL => apart(body, start, |body, start| {
                    let coll = &body.ce_coll;
                    start.record(&event::CeColl { user_tag: coll.user_tag, ..coll.base.event() })
                }),
                bit::KERNEL_PHASE => apart(body, start, |body, start| {
                    let phase = &body.kernel_phase;
                    start.record(&event::KernelPhase {
                        start: GpuNs(phase.p_timer),
                        phase: recorder::rare_word(phase.phase_name),
                        phase_id: phase.phase_id,
                        channel: phase.channel_id,
                        ..Default::default()
                    })
                }),
                _ => return v6::V6::newer(&body.v6, bits, start),
            })
        }
    }
}
