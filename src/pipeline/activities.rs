//! Holds what CUPTI reported until NCCL's records up to that time have been taken (pure).
//!
//! CUPTI's buffers arrive late and in no order. A kernel finds its operations only when NCCL's
//! records up to its end have been pushed. So it waits here until then, and kernels leave in the
//! order of their ends.

use std::collections::VecDeque;

use crate::model::activity::Activity;
use crate::model::time::HostNs;

/// How many activities may wait: about 3 MiB. Beyond that the oldest leave early.
const WAITING: usize = 20_000;
/// How many more may gather before room is made, for many at once.
const SPARE: usize = 2_000;

/// Activities in the order of their ends.
#[derive(Debug, Default)]
pub struct Activities {
    /// By their ends.
    waiting: VecDeque<(HostNs, Activity)>,
    /// Those that arrived since. CUPTI's buffers contain long ordered runs, which sort quickly.
    fresh: Vec<(HostNs, Activity)>,
    /// How many of the oldest still have to leave to make room.
    excess: usize,
}

impl Activities {
    /// Takes an activity. One without a time does not wait: it is returned.
    #[must_use]
    pub fn push(&mut self, activity: Activity) -> Option<Activity> {
        let end = match &activity {
            Activity::Kernel(kernel) => kernel.span.end,
            Activity::Copy(copy) => copy.span.end,
            Activity::CudaCall(call) => call.span.end,
            Activity::Marker(marker) => marker.time,
            Activity::HostFunction(function) => function.span.end,
            Activity::Overhead(overhead) => overhead.span.end,
            Activity::Device(_)
            | Activity::Context(_)
            | Activity::Stream(_)
            | Activity::ExternalId { .. }
            | Activity::Dropped(_)
            | Activity::Unfinished(_)
            | Activity::Untimed(_)
            | Activity::Implausible => return Some(activity),
        };
        self.fresh.push((end, activity));
        None
    }

    /// Whether one is ready: because there is no room to wait, or because it ended by `until`, if
    /// that is given.
    #[must_use]
    pub fn has_due(&mut self, until: Option<HostNs>) -> bool {
        if self.excess > 0 || self.waiting.len() + self.fresh.len() > WAITING + SPARE {
            return true;
        }
        let Some(until) = until else { return false };
        self.settle();
        self.waiting.front().is_some_and(|(end, _)| *end <= until)
    }

    /// The next one that ended at or before `until`.
    pub fn pop(&mut self, until: HostNs) -> Option<Activity> {
        self.settle();
        let (end, _) = self.waiting.front()?;
        if *end > until {
            return None;
        }
        self.waiting.pop_front().map(|(_, activity)| activity)
    }

    /// The next one that must leave to make room. Call it after every run of pushes, until it
    /// returns `None`.
    pub fn pop_excess(&mut self) -> Option<Activity> {
        if self.excess == 0 {
            if self.waiting.len() + self.fresh.len() <= WAITING + SPARE {
                return None;
            }
            self.settle();
            self.excess = SPARE;
        }
        self.excess -= 1;
        self.waiting.pop_front().map(|(_, activity)| activity)
    }

    /// Sorts in what arrived since. Activities with equal ends keep the order in which they
    /// arrived.
    fn settle(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.fresh.sort_by_key(|(end, _)| *end);
        let in_order = self.waiting.back().is_none_or(|(last, _)| *last <= self.fresh[0].0);
        self.waiting.extend(self.fresh.drain(..));
        if !in_order {
            self.waiting.make_contiguous().sort_by_key(|(end, _)| *end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::activity::{Overhead, Span};

    fn ends(end: u64) -> Activity {
        Activity::Overhead(Overhead {
            span: Span { start: HostNs(0), end: HostNs(end), error_ns: 0 },
            kind: 0,
            tid: None,
        })
    }

    #[test]
    fn activities_leave_in_the_order_of_their_ends_and_not_early() {
        let mut activities = Activities::default();
        for end in [30, 10, 20, 10] {
            assert_eq!(activities.push(ends(end)), None);
        }
        assert_eq!(activities.push(Activity::Dropped(3)), Some(Activity::Dropped(3)));
        let mut left = Vec::new();
        while let Some(activity) = activities.pop(HostNs(20)) {
            left.push(activity);
        }
        assert_eq!(left, [ends(10), ends(10), ends(20)]);
        assert_eq!(activities.pop(HostNs(29)), None);
        assert_eq!(activities.pop(HostNs(30)), Some(ends(30)));
    }

    #[test]
    fn late_activities_are_sorted_in() {
        let mut activities = Activities::default();
        for round in [[50, 70, 90], [10, 60, 80], [20, 30, 95]] {
            for end in round {
                assert_eq!(activities.push(ends(end)), None);
            }
            assert_eq!(activities.pop(HostNs(5)), None);
        }
        let all: Vec<_> = std::iter::from_fn(|| activities.pop(HostNs(90))).collect();
        assert_eq!(all, [10, 20, 30, 50, 60, 70, 80, 90].map(ends));
    }

    #[test]
    fn memory_is_bounded() {
        let mut activities = Activities::default();
        let mut early = 0;
        for end in 0..100_000 {
            assert_eq!(activities.push(ends(end)), None);
            while let Some(activity) = activities.pop_excess() {
                assert_eq!(activity, ends(early), "the oldest goes first");
                early += 1;
            }
            assert!(activities.waiting.len() + activities.fresh.len() <= WAITING + SPARE);
        }
        assert!(early >= 100_000 - (WAITING + SPARE) as u64);
        assert_eq!(activities.pop(HostNs(u64::MAX)), Some(ends(early)));
    }
}
