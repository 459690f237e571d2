//! Interface v4: NCCL 2.27. The communicator's identity moved to `init`; kernel channels got a GPU
//! time.

use std::ffi::{c_char, c_int, c_void};

use super::common::StateArgsV4;
use super::{Abi, Start};
use crate::model::event;
use crate::model::ids::Handle;
use crate::record::recorder;

pub(super) enum V4 {}

#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: P2p,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    pub(super) seq_number: u64,
    pub(super) func: *const c_char,
    pub(super) send_buff: *const c_void,
    pub(super) recv_buff: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) datatype: *const c_char,
    pub(super) n_channels: u8,
    pub(super) n_warps: u8,
    pub(super) algo: *const c_char,
    pub(super) proto: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    pub(super) func: *const c_char,
    pub(super) buff: *mut c_void,
    pub(super) datatype: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
    pub(super) n_channels: u8,
}

impl Coll {
    /// The event of these fields; newer interfaces add theirs.
    ///
    /// # Safety
    ///
    /// The strings are null or NUL-terminated.
    #[inline(always)]
    pub(super) unsafe fn event(&self, group: Handle) -> event::Coll {
        // SAFETY: the caller's promise.
        let [func, datatype, algorithm, protocol] =
            unsafe { recorder::words([self.func, self.datatype, self.algo, self.proto]) };
        event::Coll {
            seq: self.seq_number,
            send_buffer: self.send_buff as u64,
            recv_buffer: self.recv_buff as u64,
            count: self.count as u64,
            group,
            root: self.root,
            reduction: -1,
            func,
            datatype,
            algorithm,
            protocol,
            channels: self.n_channels,
            warps: self.n_warps,
            ..Default::default()
        }
    }
}

impl P2p {
    /// The event of these fields; newer interfaces add theirs.
    ///
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
            channels: self.n_channels,
            ..Default::default()
        }
    }
}

impl Abi for V4 {
    const VERSION: u8 = 4;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV4;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.coll.event(start.parent) })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.event(start.parent) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up_v8::tests::{recorded, rings};
    use super::super::record_start;
    use super::*;
    use crate::model::event::{Body as What, Event};
    use crate::model::kinds::bit;

    #[test]
    fn the_channels_of_a_send_are_recorded() {
        let rings = rings();
        // SAFETY: a union of C structures made of integers and raw pointers.
        let mut body: Body = unsafe { std::mem::zeroed() };
        body.p2p.n_channels = 5;
        let start = Start { parent: Handle::NONE, context: Handle(9), rank: 0 };
        // SAFETY: the body of a P2p, whose strings are null.
        let sent = unsafe { record_start::<V4>(bit::P2P, &body, &start) };
        let channels = recorded(rings, |record| match record.body {
            What::Start { handle, event: Event::P2p(p2p), .. } if handle == sent => Some(p2p.channels),
            _ => None,
        });
        assert_eq!(channels, [5]);
    }
}
