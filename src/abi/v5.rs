//! Interface v5: NCCL 2.28. The type has 64 bits; the user's calls and the kernel launch became
//! events.

use std::ffi::{c_char, c_int, c_void};

use super::common::StateArgsV4;
use super::{Abi, Start, apart, bit, v4};
use crate::model::event::{self, Flag};
use crate::model::ids::Handle;
use crate::record::recorder;

pub(super) enum V5 {}

#[repr(C)]
pub(super) union Body {
    group_api: GroupApi,
    coll_api: CollApi,
    p2p_api: P2pApi,
    kernel_launch: KernelLaunch,
    coll: Coll,
    p2p: P2p,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GroupApi {
    /// A C `bool`; a byte, because NCCL's adapters can leave any value there.
    pub(super) graph_captured: u8,
    pub(super) group_depth: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CollApi {
    pub(super) func: *const c_char,
    pub(super) count: usize,
    pub(super) datatype: *const c_char,
    pub(super) root: c_int,
    pub(super) stream: *mut c_void,
    pub(super) graph_captured: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2pApi {
    pub(super) func: *const c_char,
    pub(super) count: usize,
    pub(super) datatype: *const c_char,
    pub(super) stream: *mut c_void,
    pub(super) graph_captured: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KernelLaunch {
    pub(super) stream: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    pub(super) base: v4::Coll,
    pub(super) parent_group: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    pub(super) base: v4::P2p,
    pub(super) parent_group: *mut c_void,
}

impl GroupApi {
    #[inline(always)]
    pub(super) fn event(&self) -> event::GroupApi {
        event::GroupApi { depth: self.group_depth, captured: Flag(self.graph_captured), ..Default::default() }
    }
}

impl CollApi {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self) -> event::CollApi {
        // SAFETY: the caller's promise.
        let [func, datatype] = unsafe { recorder::words([self.func, self.datatype]) };
        event::CollApi {
            count: self.count as u64,
            stream: self.stream as u64,
            root: self.root,
            func,
            datatype,
            captured: Flag(self.graph_captured),
            ..Default::default()
        }
    }
}

impl P2pApi {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self) -> event::P2pApi {
        // SAFETY: the caller's promise.
        let [func, datatype] = unsafe { recorder::words([self.func, self.datatype]) };
        event::P2pApi {
            count: self.count as u64,
            stream: self.stream as u64,
            func,
            datatype,
            captured: Flag(self.graph_captured),
            ..Default::default()
        }
    }
}

impl KernelLaunch {
    #[inline(always)]
    pub(super) fn event(&self) -> event::KernelLaunch {
        event::KernelLaunch { stream: self.stream as u64 }
    }
}

impl Coll {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self) -> event::Coll {
        // SAFETY: the caller's promise.
        unsafe { self.base.event(Handle(self.parent_group as u64)) }
    }
}

impl P2p {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self) -> event::P2p {
        // SAFETY: the caller's promise.
        unsafe { self.base.event(Handle(self.parent_group as u64)) }
    }
}

impl Abi for V5 {
    const VERSION: u8 = 5;
    type Bits = u64;
    type Body = Body;
    type StateArgs = StateArgsV4;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.coll.event() })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.event() })
    }

    #[inline(always)]
    unsafe fn newer(body: &Body, bits: u64, start: &Start) -> Option<Handle> {
        // SAFETY: the trait's promise, for the member that `bits` names and for its strings.
        unsafe {
            Some(match bits {
                bit::GROUP_API => apart(body, start, |body, start| start.record(&body.group_api.event())),
                bit::COLL_API => apart(body, start, |body, start| start.record(&body.coll_api.event())),
                bit::P2P_API => apart(body, start, |body, start| start.record(&body.p2p_api.event())),
                bit::KERNEL_LAUNCH => apart(body, start, |body, start| start.record(&body.kernel_launch.event())),
                _ => return None,
            })
        }
    }
}
