//! Interface v6: NCCL 2.29 and 2.30. Collectives done by copy engines became events.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use super::common::StateArgsV4;
use super::{Abi, Start, apart, bit, v5};
use crate::model::event::{self, Flag};
use crate::model::ids::Handle;
use crate::record::recorder;

pub(super) enum V6 {}

#[repr(C)]
pub(super) union Body {
    /// Everything that did not change.
    v5: ManuallyDrop<v5::Body>,
    ce_coll: CeColl,
    ce_coll_sync: CeCollSync,
    ce_coll_batch: CeCollBatch,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CeColl {
    pub(super) seq_number: u64,
    pub(super) func: *const c_char,
    pub(super) send_buff: *const c_void,
    pub(super) recv_buff: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) datatype: *const c_char,
    pub(super) sync_strategy: *const c_char,
    pub(super) intra_batch_sync: u8,
    pub(super) batch_size: u32,
    pub(super) num_batches: u32,
    pub(super) ce_seq_num: u32,
    pub(super) stream: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CeCollSync {
    pub(super) is_complete: u8,
    pub(super) n_ranks: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CeCollBatch {
    pub(super) num_ops: c_int,
    pub(super) total_bytes: usize,
    pub(super) use_intra_sync: u8,
}

impl CeColl {
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self) -> event::CeColl {
        // SAFETY: the caller's promise.
        let [func, datatype, sync_strategy] =
            unsafe { recorder::words([self.func, self.datatype, self.sync_strategy]) };
        event::CeColl {
            seq: self.seq_number,
            send_buffer: self.send_buff as u64,
            recv_buffer: self.recv_buff as u64,
            count: self.count as u64,
            stream: self.stream as u64,
            root: self.root,
            batch_size: self.batch_size,
            batches: self.num_batches,
            ce_seq: self.ce_seq_num,
            func,
            datatype,
            sync_strategy,
            intra_batch_sync: Flag(self.intra_batch_sync),
            ..Default::default()
        }
    }
}

impl CeCollSync {
    #[inline(always)]
    pub(super) fn event(&self) -> event::CeSync {
        event::CeSync { ranks: self.n_ranks, complete: Flag(self.is_complete), ..Default::default() }
    }
}

impl CeCollBatch {
    #[inline(always)]
    pub(super) fn event(&self) -> event::CeBatch {
        event::CeBatch {
            bytes: self.total_bytes as u64,
            ops: self.num_ops,
            intra_sync: Flag(self.use_intra_sync),
            ..Default::default()
        }
    }
}

impl Abi for V6 {
    const VERSION: u8 = 6;
    type Bits = u64;
    type Body = Body;
    type StateArgs = StateArgsV4;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, passed on.
        unsafe { v5::V5::coll(&body.v5, start) }
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, passed on.
        unsafe { v5::V5::p2p(&body.v5, start) }
    }

    #[inline(always)]
    unsafe fn newer(body: &Body, bits: u64, start: &Start) -> Option<Handle> {
        // SAFETY: the trait's promise, for the member that `bits` names and for its strings, or
        // passed on.
        unsafe {
            Some(match bits {
                bit::CE_COLL => apart(body, start, |body, start| start.record(&body.ce_coll.event())),
                bit::CE_SYNC => apart(body, start, |body, start| start.record(&body.ce_coll_sync.event())),
                bit::CE_BATCH => apart(body, start, |body, start| start.record(&body.ce_coll_batch.event())),
                _ => return v5::V5::newer(&body.v5, bits, start),
            })
        }
    }
}
