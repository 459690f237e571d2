//! Holds what CUPTI reported until NCCL's records up to that time have been taken (pure).
//!
//! CUPTI's buffers arrive late and in no order. A kernel finds its operations only when NCCL's
//! records up to its end have been pushed. So it waits here until it has ended for certain, and
//! kernels leave in the order of their ends.

use std::collections::VecDeque;

use crate::model::activity::{Activity, Span};
use crate::model::time::HostNs;

/// How many activities may wait: about 3 MiB. Beyond that the oldest leave early.
const WAITING: usize = 20_000;
/// How many more may gather before room is made, for many at once.
const SPARE: usize = 2_000;

/// Activities in the order of their ends.
#[derive(Debug, Default)]
pub struct Activities {
    /// By their ends.
    waiting: VecDeque<Waiting>,
    /// Those that arrived since. CUPTI's buffers contain long ordered runs, which sort quickly.
    fresh: Vec<Waiting>,
    /// How many of the oldest still have to leave to make room.
    excess: usize,
}

#[derive(Debug)]
struct Waiting {
    end: HostNs,
    /// When it has ended for certain.
    ended_by: HostNs,
    activity: Activity,
}

impl Activities {
    /// Takes an activity that had ended by `now`. A kernel whose times are impossible may have
    /// ended just then. What is about no point in time does not wait: it is returned.
    #[must_use]
    pub fn push(&mut self, activity: Activity, now: HostNs) -> Option<Activity> {
        let (end, error_ns) = match &activity {
            Activity::Kernel(kernel) => (kernel.span.end, kernel.span.error_ns),
            Activity::Copy(copy) => (copy.span.end, copy.span.error_ns),
            Activity::CudaCall(call) => (call.span.end, call.span.error_ns),
            Activity::Marker(marker) => (marker.time, marker.error_ns),
            Activity::HostFunction(function) => (function.span.end, function.span.error_ns),
            Activity::Overhead(overhead) => (overhead.span.end, overhead.span.error_ns),
            Activity::Untimed(_) => (now, 0),
            Activity::Device(_)
            | Activity::Context(_)
            | Activity::Stream(_)
            | Activity::ExternalId { .. }
            | Activity::Dropped(_)
            | Activity::Unfinished(_)
            | Activity::Implausible => return Some(activity),
        };
        let latest = match error_ns {
            Span::UNKNOWN_ERROR => now,
            error_ns => HostNs(end.0.saturating_add(error_ns.into())),
        };
        self.fresh.push(Waiting { end, ended_by: latest.max(end), activity });
        None
    }

    /// Whether one is ready: because there is no room to wait, or because it ended for certain by
    /// `until`, if that is given.
    #[must_use]
    pub fn has_due(&mut self, until: Option<HostNs>) -> bool {
        if self.excess > 0 || self.waiting.len() + self.fresh.len() > WAITING + SPARE {
            return true;
        }
        let Some(until) = until else { return false };
        self.settle();
        self.waiting.front().is_some_and(|first| first.ended_by <= until)
    }

    /// The next one, if it ended for certain at or before `until`.
    pub fn pop(&mut self, until: HostNs) -> Option<Activity> {
        self.settle();
        if self.waiting.front()?.ended_by > until {
            return None;
        }
        self.waiting.pop_front().map(|first| first.activity)
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
        self.waiting.pop_front().map(|first| first.activity)
    }

    /// Sorts in what arrived since. Activities with equal ends keep the order in which they
    /// arrived.
    fn settle(&mut self) {
        if self.fresh.is_empty() {
            return;
        }
        self.fresh.sort_by_key(|it| it.end);
        let in_order = self.waiting.back().is_none_or(|last| last.end <= self.fresh[0].end);
        self.waiting.extend(self.fresh.drain(..));
        if !in_order {
            self.waiting.make_contiguous().sort_by_key(|it| it.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::activity::{Overhead, Place, Unfinished};

    fn within(end: u64, error_ns: u32) -> Activity {
        Activity::Overhead(Overhead { span: Span { start: HostNs(0), end: HostNs(end), error_ns }, kind: 0, tid: None })
    }

    fn ends(end: u64) -> Activity {
        within(end, 0)
    }

    #[test]
    fn activities_leave_in_the_order_of_their_ends_and_not_early() {
        let mut activities = Activities::default();
        for end in [30, 10, 20, 10] {
            assert_eq!(activities.push(ends(end), HostNs(end)), None);
        }
        assert_eq!(activities.push(Activity::Dropped(3), HostNs(30)), Some(Activity::Dropped(3)));
        let mut left = Vec::new();
        while let Some(activity) = activities.pop(HostNs(20)) {
            left.push(activity);
        }
        assert_eq!(left, [ends(10), ends(10), ends(20)]);
        assert_eq!(activities.pop(HostNs(29)), None);
        assert_eq!(activities.pop(HostNs(30)), Some(ends(30)));
    }

    #[test]
    fn uncertain_ends_are_waited_for_in_the_order_of_the_ends() {
        let mut activities = Activities::default();
        for activity in [within(10, 50), ends(20), within(30, Span::UNKNOWN_ERROR)] {
            assert_eq!(activities.push(activity, HostNs(90)), None);
        }
        let mut at = |until| std::iter::from_fn(|| activities.pop(HostNs(until))).collect::<Vec<_>>();
        assert_eq!(at(59), []);
        assert_eq!(at(60), [within(10, 50), ends(20)]);
        assert_eq!(at(89), []);
        assert_eq!(at(90), [within(30, Span::UNKNOWN_ERROR)]);
    }

    #[test]
    fn a_kernel_without_times_waits_for_what_was_recorded_before_it_arrived() {
        let mut activities = Activities::default();
        let untimed = Activity::Untimed(Unfinished {
            place: Place { device: 0, context: 1, stream: 7 },
            correlation: 1,
            graph_node: 0,
            name: "kernel".into(),
        });
        assert_eq!(activities.push(untimed.clone(), HostNs(90)), None);
        assert_eq!(activities.pop(HostNs(89)), None);
        assert_eq!(activities.pop(HostNs(90)), Some(untimed));
    }

    #[test]
    fn late_activities_are_sorted_in() {
        let mut activities = Activities::default();
        for round in [[50, 70, 90], [10, 60, 80], [20, 30, 95]] {
            for end in round {
                assert_eq!(activities.push(ends(end), HostNs(end)), None);
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
            assert_eq!(activities.push(ends(end), HostNs(end)), None);
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
