//! Interface v3: NCCL 2.26. Adds kernel channels without a GPU time, and network events.

use super::common::{Identity, StateArgsV1};
use super::{Abi, Start, v2, v4};
use crate::model::ids::Handle;

pub(super) enum V3 {}

#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: v2::P2p,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    pub(super) identity: Identity,
    pub(super) base: v4::Coll,
}

impl Abi for V3 {
    const VERSION: u8 = 3;
    type Bits = u8;
    type Body = Body;
    type StateArgs = StateArgsV1;

    #[inline(always)]
    unsafe fn coll(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.coll.base.event(start.parent) })
    }

    #[inline(always)]
    unsafe fn p2p(body: &Body, start: &Start) -> Handle {
        // SAFETY: the trait's promise, for the member and for its strings.
        start.record(&unsafe { body.p2p.v4().event(start.parent) })
    }
}

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
            body.coll.identity = Identity { name: name.as_ptr(), comm_hash };
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
