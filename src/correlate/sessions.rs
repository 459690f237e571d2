//! Which call a correlation id stands for (pure).
//!
//! CUPTI's ids may begin again with 1 after it was given up: they do if another tool calls
//! `cuptiFinalize` meanwhile, as PyTorch 2.11 does with CUPTI of CUDA 13.0, and they do not
//! otherwise. So an id stands for a call only together with the time: all calls up to the time at
//! which CUPTI was given up are of one session, and their kernels began in it.

use std::collections::VecDeque;

use crate::model::time::HostNs;

/// Ends of sessions that are remembered. Records are late by seconds at most, and a session takes
/// milliseconds.
const SESSIONS: usize = 1024;

/// A launching call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    session: u32,
    id: u32,
}

impl Call {
    /// Whether it was made after the other, if one thread made both. Ids wrap around.
    pub(super) fn is_after(self, other: Call) -> bool {
        let later = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        if self.session == other.session { later(self.id, other.id) } else { later(self.session, other.session) }
    }
}

/// The sessions so far.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// When they ended, oldest first.
    ends: VecDeque<HostNs>,
    /// Sessions whose end is no longer remembered.
    forgotten: u32,
}

impl Sessions {
    /// CUPTI had been given up by this time, and was not taken again yet.
    pub(super) fn end(&mut self, time: HostNs) {
        self.ends.push_back(time);
        if self.ends.len() > SESSIONS {
            self.ends.pop_front();
            self.forgotten = self.forgotten.wrapping_add(1);
        }
    }

    /// The call with this correlation id that was made at this time, or whose kernel began then.
    pub(super) fn call(&self, id: u32, time: HostNs) -> Call {
        let ended = self.ends.partition_point(|end| *end < time) as u32;
        Call { session: self.forgotten.wrapping_add(ended), id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_another_session_is_another_call_and_a_later_one() {
        let mut sessions = Sessions::default();
        for session in 1..=3_000 {
            sessions.end(HostNs(10 * session));
        }
        let at = |id, time| sessions.call(id, HostNs(time));
        assert_eq!(at(7, 29_995), at(7, 30_000));
        assert_ne!(at(7, 30_000), at(7, 30_001));
        assert!(at(7, 30_001).is_after(at(9, 30_000)) && !at(9, 30_000).is_after(at(7, 30_001)));
        assert!(at(1, 30_001).is_after(at(u32::MAX, 30_001)));
    }
}
