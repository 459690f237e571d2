//! Holds what CUPTI reported until the records of its time have been taken (pure).
//!
//! CUPTI's buffers come late, and in no order. A kernel finds its operations only when NCCL's records up to its end have been
//! pushed, so it waits here for that, and leaves in the order in which kernels ended.

use std::collections::BTreeMap;

use crate::model::activity::Activity;
use crate::model::time::HostNs;

/// Activities that may wait: about 8 MiB of them. Beyond that the oldest go on unordered.
const WAITING: usize = 40_000;

/// Activities in the order of their ends.
#[derive(Debug, Default)]
pub struct Activities {
    waiting: BTreeMap<(HostNs, u64), Activity>,
    count: u64,
}

impl Activities {
    /// Takes one in. What has no time of its own is `Some`: it does not wait.
    #[must_use]
    pub fn push(&mut self, activity: Activity) -> Option<Activity> {
        let end = match &activity {
            Activity::Kernel(kernel) => kernel.span.end,
            Activity::Copy(copy) => copy.span.end,
            Activity::Overhead(overhead) => overhead.span.end,
            Activity::Device(_)
            | Activity::Context(_)
            | Activity::Stream(_)
            | Activity::Dropped(_)
            | Activity::Implausible => return Some(activity),
        };
        self.count += 1;
        self.waiting.insert((end, self.count), activity);
        if self.waiting.len() > WAITING { self.waiting.pop_first().map(|(_, oldest)| oldest) } else { None }
    }

    /// The next one that ended at or before `until`.
    pub fn pop(&mut self, until: HostNs) -> Option<Activity> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= until).then(|| first.remove())
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
    fn they_leave_in_the_order_of_their_ends_and_not_too_early() {
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
    fn memory_is_bounded() {
        let mut activities = Activities::default();
        let early = (0..100_000).filter(|&end| activities.push(ends(end)).is_some()).count();
        assert_eq!(early, 100_000 - WAITING);
        assert_eq!(activities.pop(HostNs(u64::MAX)), Some(ends(early as u64)));
    }
}
