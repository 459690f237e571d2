//! How many operations of a communicator NCCL has been handed and the GPU has not finished.
//!
//! Kernels are known late, and some never: their record was lost, or nothing says what they carried. An operation whose own end is not
//! known has ended when one that was handed over after it has, because NCCL lets the operations of a communicator run in their order.
//! Where CUPTI is silent, what NCCL's proxy and channels did for an operation may say that it has ended.
//!
//! ```text
//!   A   |--handed over--------- kernel ====|
//!   B        |--handed over-------------------- kernel not known (ends with C at the latest)
//!   C             |--handed over------------------- kernel =====|
//!   D                                 |--handed over-------------------------- hangs
//!       0 1  2    3                   4   3                     1
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::counters::{Counter, Gauge};
use super::writer::Writer;
use crate::model::ids::Handle;
use crate::model::time::HostNs;
use crate::model::timeline::Operation;

/// How long the end of an operation is waited for, ns: CUPTI's records come a second late.
const HOLD_NS: u64 = 1_500_000_000;
/// Operations of one communicator that are followed; of more, the oldest are taken for done.
const OPERATIONS: usize = 4096;
/// Operations that are shown at a time: what is behind them waits for them.
const SHOWN: usize = 8;
/// Operations of which is asked at a time whether NCCL's own reports say that they are done.
const ASKED: usize = 64;

/// The operations of a communicator that are under way.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// In the order of their hand-over.
    operations: VecDeque<UnderWay>,
    /// Made with the first kernel: without any, nothing says when operations end.
    gauge: Option<Gauge>,
    settled: HostNs,
    /// When one was last handed over, or known to end.
    moved: HostNs,
    /// When what was shown has ended.
    ended: Vec<(HostNs, Handle)>,
}

#[derive(Debug)]
struct UnderWay {
    id: Handle,
    begin: HostNs,
    end: Option<HostNs>,
    is_counted: bool,
    /// CUPTI said that its kernel had not ended, and will say no more of it.
    is_unfinished: bool,
    /// It may have ended since, and nobody will say so.
    is_lost: bool,
    /// What it is, while it may have to be shown.
    facts: Option<Arc<Operation>>,
    is_shown: bool,
}

/// An operation that should have ended.
#[derive(Debug)]
pub(super) struct Overdue {
    pub(super) begin: HostNs,
    pub(super) operation: Arc<Operation>,
    /// CUPTI said that its kernel had not ended.
    pub(super) is_unfinished: bool,
}

impl Outstanding {
    /// An operation is handed over; with what it is where it may have to be shown. `most` is this communicator's share of what
    /// all may remember.
    pub(super) fn begin(&mut self, id: Handle, begin: HostNs, facts: Option<&Arc<Operation>>, most: usize) {
        let most = most.clamp(ASKED, OPERATIONS);
        // Without a gauge nobody counts. The first stay: they may hang.
        if self.operations.len() >= most && self.gauge.is_none() {
            self.operations.remove(SHOWN);
        }
        let is_lost = facts.is_none();
        let facts = facts.filter(|_| self.operations.len() < most).cloned();
        self.moved = self.moved.max(begin);
        self.operations.push_back(UnderWay {
            id,
            begin,
            end: None,
            is_counted: false,
            is_unfinished: false,
            is_lost,
            facts,
            is_shown: false,
        });
    }

    /// The place of the first of those that are not known to have ended, and whose end somebody will tell.
    fn first(&self) -> usize {
        let first = self.operations.iter().rposition(|it| it.end.is_some()).map_or(0, |last| last + 1);
        first + self.operations.range(first..).take_while(|it| it.is_lost).count()
    }

    /// When one was last handed over, or known to end.
    pub(super) fn moved(&self) -> HostNs {
        self.moved
    }

    /// Whether one that was handed over by `since`, and might have to be shown, is not known to have ended: not by its own
    /// kernel, not by that of a later one, and not by what `done` says of it.
    pub(super) fn stands(&mut self, since: HostNs, done: impl Fn(Handle) -> Option<HostNs>) -> bool {
        let first = self.first();
        if !self.operations.get(first).is_some_and(|it| it.begin <= since && (it.facts.is_some() || it.is_shown)) {
            return false;
        }
        let asked = self.operations.range(first..).take(ASKED);
        let last = asked.filter_map(|it| Some((it.id, done(it.id)?))).last();
        if let Some((id, end)) = last {
            self.end(id, end);
        }
        self.operations.get(self.first()).is_some_and(|it| it.begin <= since)
    }

    /// CUPTI said that the kernel of an operation had not ended. Whether that was handed over.
    pub(super) fn unfinished(&mut self, id: Handle) -> bool {
        let found = self.operations.iter_mut().find(|operation| operation.id == id);
        found.map(|operation| operation.is_unfinished = true).is_some()
    }

    /// Of those whose kernel had not ended nothing more will be known: they count until a later one has ended.
    pub(super) fn forget_unfinished(&mut self) {
        for operation in self.operations.iter_mut().filter(|operation| operation.is_unfinished) {
            (operation.is_lost, operation.facts) = (true, None);
        }
    }

    /// The first of those that are not known to have ended, if they began before `since` and were not told before.
    pub(super) fn overdue(&mut self, since: HostNs) -> impl Iterator<Item = Overdue> {
        let first = self.first();
        self.operations.range_mut(first..).take(SHOWN).filter(move |it| it.begin <= since).filter_map(|it| {
            let operation = it.facts.take()?;
            it.is_shown = true;
            Some(Overdue { begin: it.begin, operation, is_unfinished: it.is_unfinished })
        })
    }

    /// When those ended that were told to be overdue, each once.
    pub(super) fn take_ended(&mut self) -> Vec<(HostNs, Handle)> {
        std::mem::take(&mut self.ended)
    }

    /// Nothing will be known of those that are under way; answers those of them that were told to be overdue.
    pub(super) fn give_up(&mut self) -> Vec<Handle> {
        let of = |it: &mut UnderWay| {
            (it.facts, it.is_lost) = (None, true);
            std::mem::take(&mut it.is_shown).then_some(it.id)
        };
        self.operations.iter_mut().filter_map(of).collect()
    }

    /// Whether it has a counter.
    pub(super) fn is_drawn(&self) -> bool {
        self.gauge.is_some()
    }

    /// From here on its counter is drawn, what is under way included.
    pub(super) fn draw(&mut self, counter: Option<Counter>) {
        self.gauge = Some(Gauge::new(counter));
    }

    /// The kernel of an operation has ended. Of one that has several, the last counts.
    pub(super) fn end(&mut self, id: Handle, end: HostNs) {
        self.moved = self.moved.max(end);
        if let Some(operation) = self.operations.iter_mut().find(|operation| operation.id == id) {
            operation.end = operation.end.max(Some(end.max(operation.begin)));
            operation.facts = None;
        }
    }

    /// Writes what will not change any more.
    pub(super) fn settle(&mut self, writer: &mut Writer, now: HostNs) {
        let until = HostNs(now.0.saturating_sub(HOLD_NS));
        let few = HOLD_NS / 16;
        if until.since(self.settled) >= few || self.operations.len() >= OPERATIONS {
            self.write(writer, until);
        }
    }

    /// Writes everything: what has not ended has not.
    pub(super) fn flush(&mut self, writer: &mut Writer) {
        self.write(writer, HostNs(u64::MAX));
    }

    fn write(&mut self, writer: &mut Writer, until: HostNs) {
        // Before there is a counter, nothing may count as told.
        if self.gauge.is_none() {
            return;
        }
        let changes = self.changes(until);
        if let Some(gauge) = &mut self.gauge {
            changes.into_iter().for_each(|(time, change)| gauge.add(writer, time, change));
            gauge.flush(writer);
        }
    }

    /// What changed before `until` and was not told yet, in the order of time.
    fn changes(&mut self, until: HostNs) -> Vec<(HostNs, i64)> {
        self.settled = until;
        // Several at a time, because each time all are looked at.
        let full = self.operations.len() >= OPERATIONS;
        let too_many = if full { self.operations.len() - OPERATIONS * 3 / 4 } else { 0 };
        let mut changes = Vec::new();
        // The first end among the operations behind this one.
        let mut overtaken: Option<HostNs> = None;
        for (index, operation) in self.operations.iter_mut().enumerate().rev() {
            if index < too_many {
                operation.end = operation.end.or(overtaken).or(Some(until.max(operation.begin)));
            }
            let own = operation.end.or(overtaken.map(|end| end.max(operation.begin)));
            overtaken = [operation.end, overtaken].into_iter().flatten().min();
            if (operation.begin < until || index < too_many) && !operation.is_counted {
                operation.is_counted = true;
                changes.push((operation.begin, 1));
            }
            if let Some(end) = own.filter(|end| operation.is_counted && (*end < until || index < too_many)) {
                // A mark that it is done: nothing begins at the end of time.
                operation.begin = HostNs(u64::MAX);
                changes.push((end, -1));
                if operation.is_shown {
                    self.ended.push((end, operation.id));
                }
            }
        }
        self.operations.retain(|operation| operation.begin != HostNs(u64::MAX));
        changes.sort_unstable_by_key(|(time, change)| (*time, -change));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Event;
    use crate::model::ids::ProcessTag;
    use crate::trace::writer::Clocks;

    const A: Handle = Handle(1);
    const B: Handle = Handle(2);
    const C: Handle = Handle(3);
    const D: Handle = Handle(4);

    fn operation(id: Handle) -> Arc<Operation> {
        let event = Event::Coll(bytemuck::Zeroable::zeroed());
        Arc::new(Operation { id, since: HostNs(0), asked: None, event, texts: None, p2p_number: 0 })
    }

    /// The number from each time on.
    fn counted(outstanding: &mut Outstanding, until: u64) -> Vec<(u64, i64)> {
        let mut now = 0;
        let changes = outstanding.changes(HostNs(until)).into_iter();
        changes
            .map(|(time, change)| {
                now += change;
                (time.0, now)
            })
            .collect()
    }

    #[test]
    fn what_is_overtaken_has_ended_and_what_hangs_has_not() {
        let mut outstanding = Outstanding::default();
        for (id, begin) in [(A, 10), (B, 20), (C, 30), (D, 50)] {
            outstanding.begin(id, HostNs(begin), None, 0);
        }
        // They come in any order.
        outstanding.end(C, HostNs(80));
        outstanding.end(A, HostNs(60));
        let expected = [(10, 1), (20, 2), (30, 3), (50, 4), (60, 3), (80, 2), (80, 1)];
        assert_eq!(counted(&mut outstanding, u64::MAX), expected);
        assert_eq!(outstanding.operations.len(), 1, "D hangs");
    }

    #[test]
    fn what_is_lost_counts_until_a_later_one_has_ended() {
        let mut outstanding = Outstanding::default();
        for (id, begin) in [(A, 10), (B, 20), (C, 30)] {
            outstanding.begin(id, HostNs(begin), Some(&operation(id)), 0);
        }
        assert!(outstanding.unfinished(A) && outstanding.unfinished(B));
        outstanding.forget_unfinished();
        assert_eq!(outstanding.first(), 2, "what comes behind them is followed");
        assert_eq!(counted(&mut outstanding, 50), [(10, 1), (20, 2), (30, 3)]);
        outstanding.end(C, HostNs(60));
        assert_eq!(outstanding.changes(HostNs(u64::MAX)), [(HostNs(60), -1); 3]);
    }

    #[test]
    fn what_nobody_will_tell_the_end_of_hides_nothing_behind_it() {
        let mut outstanding = Outstanding::default();
        outstanding.begin(A, HostNs(10), Some(&operation(A)), 0);
        // From here on there are no kernels, and then there are again.
        assert_eq!(outstanding.give_up(), []);
        outstanding.begin(B, HostNs(20), None, 0);
        let stands = |outstanding: &mut Outstanding| outstanding.stands(HostNs(100), |_| None);
        assert!(!stands(&mut outstanding));
        outstanding.begin(C, HostNs(30), Some(&operation(C)), 0);
        assert!(stands(&mut outstanding));
        assert!(outstanding.overdue(HostNs(100)).map(|it| it.operation.id).eq([C]));
    }

    #[test]
    fn nothing_is_told_twice_nor_before_its_time() {
        let mut outstanding = Outstanding::default();
        outstanding.begin(A, HostNs(10), None, 0);
        outstanding.begin(B, HostNs(20), None, 0);
        outstanding.end(A, HostNs(40));
        assert_eq!(counted(&mut outstanding, 15), [(10, 1)]);
        assert_eq!(outstanding.changes(HostNs(30)), [(HostNs(20), 1)]);
        assert_eq!(outstanding.changes(HostNs(41)), [(HostNs(40), -1)]);
        outstanding.end(B, HostNs(35));
        assert_eq!(outstanding.changes(HostNs(60)), [(HostNs(35), -1)], "late, and told all the same");
        assert_eq!(outstanding.changes(HostNs(u64::MAX)), []);
    }

    #[test]
    fn what_began_before_the_counter_was_drawn_counts() {
        let clocks = Clocks { boottime: HostNs(0), monotonic: 0, realtime: 0 };
        let mut writer = Writer::new(ProcessTag::from_random(42), clocks);
        let mut outstanding = Outstanding::default();
        outstanding.begin(A, HostNs(10), None, 0);
        outstanding.settle(&mut writer, HostNs(4_000_000_000));
        outstanding.draw(None);
        assert_eq!(outstanding.changes(HostNs(u64::MAX)), [(HostNs(10), 1)]);
    }

    #[test]
    fn an_operation_with_several_kernels_ends_with_the_last() {
        let mut outstanding = Outstanding::default();
        outstanding.begin(A, HostNs(10), None, 0);
        outstanding.end(A, HostNs(60));
        outstanding.end(A, HostNs(40));
        assert_eq!(counted(&mut outstanding, 100), [(10, 1), (60, 0)]);
    }

    #[test]
    fn without_kernels_a_communicator_remembers_no_more_than_its_share() {
        let mut outstanding = Outstanding::default();
        for number in 0..5_000 {
            outstanding.begin(Handle(number + 1), HostNs(number), None, 100);
        }
        assert_eq!(outstanding.operations.len(), 100);
        assert!(outstanding.operations.iter().take(SHOWN).map(|it| it.id.0).eq(1..=SHOWN as u64));
    }

    #[test]
    fn memory_is_bounded() {
        let mut outstanding = Outstanding::default();
        for number in 0..20_000 {
            outstanding.begin(Handle(number + 1), HostNs(number), None, usize::MAX);
        }
        assert_eq!(outstanding.operations.len(), OPERATIONS);
        outstanding.gauge = Some(Gauge::new(None));
        let mut now = 0;
        for number in 20_000..40_000 {
            outstanding.begin(Handle(number + 1), HostNs(number), None, 0);
            if outstanding.operations.len() >= OPERATIONS {
                let changes = outstanding.changes(HostNs(number));
                now += changes.iter().map(|(_, change)| change).sum::<i64>();
                assert!((0..=OPERATIONS as i64).contains(&now), "{now}");
            }
        }
        assert!(outstanding.operations.len() <= OPERATIONS);
    }
}
