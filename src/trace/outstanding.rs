//! How many operations of a communicator have been handed over and not finished by the GPU.
//!
//! Kernels are known late, and some never: their record was lost, or nothing says what they
//! carried. An operation whose own end is not known has ended when one that was handed over after
//! it has, because NCCL runs the operations of a communicator in order. Where CUPTI is silent,
//! NCCL's proxy and channels may show that an operation has ended.
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

/// How long to wait for the end of an operation, in ns: CUPTI's records arrive a second late.
const HOLD_NS: u64 = 1_500_000_000;
/// How many operations of one communicator are followed; beyond that the oldest are taken for done.
const OPERATIONS: usize = 4096;
/// How many operations are shown at a time: those behind them wait for them.
const SHOWN: usize = 8;
/// How many operations are checked at a time for being done by NCCL's own reports.
const ASKED: usize = 64;

/// The operations of a communicator that are under way.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// In order of their hand-over.
    operations: VecDeque<UnderWay>,
    /// Made with the first kernel: without kernels, nothing says when operations end.
    gauge: Option<Gauge>,
    settled: HostNs,
    /// When an operation was last handed over, or is known to have ended.
    moved: HostNs,
    /// Behind the place of the operation that ended last.
    next: usize,
    /// When shown operations ended.
    ended: Vec<(HostNs, Handle)>,
}

#[derive(Debug)]
struct UnderWay {
    id: Handle,
    begin: HostNs,
    end: Option<HostNs>,
    is_counted: bool,
    /// CUPTI reported that its kernel had not ended, and will report nothing more about it.
    is_unfinished: bool,
    /// It may have ended since, and nothing will report that.
    is_lost: bool,
    /// The operation, as long as it may have to be shown.
    facts: Option<Arc<Operation>>,
    is_shown: bool,
}

impl UnderWay {
    /// Its end will not be reported. Returns it if it was reported as overdue.
    fn lose(&mut self) -> Option<Handle> {
        (self.facts, self.is_lost) = (None, true);
        std::mem::take(&mut self.is_shown).then_some(self.id)
    }
}

/// An operation that should have ended.
#[derive(Debug)]
pub(super) struct Overdue {
    pub(super) begin: HostNs,
    pub(super) operation: Arc<Operation>,
    /// CUPTI reported that its kernel had not ended.
    pub(super) is_unfinished: bool,
}

impl Outstanding {
    /// An operation is handed over. `facts` are given if it may have to be shown. `most` is this
    /// communicator's share of the operations that are remembered.
    pub(super) fn begin(&mut self, id: Handle, begin: HostNs, facts: Option<&Arc<Operation>>, most: usize) {
        let most = most.clamp(ASKED, OPERATIONS);
        // Without a gauge nothing is counted. The first operations stay: they may hang.
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

    /// The index of the first operation that is not known to have ended, and whose end will be
    /// reported.
    fn first(&self) -> usize {
        let first = self.operations.iter().rposition(|it| it.end.is_some()).map_or(0, |last| last + 1);
        first + self.operations.range(first..).take_while(|it| it.is_lost).count()
    }

    /// When an operation was last handed over, or is known to have ended.
    pub(super) fn moved(&self) -> HostNs {
        self.moved
    }

    /// Whether an operation that was handed over by `since`, and may have to be shown, is not known
    /// to have ended: neither by its own kernel, nor by that of a later one, nor by `done`.
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

    /// CUPTI reported that the kernel of an operation had not ended. Returns whether that operation
    /// had been handed over.
    pub(super) fn unfinished(&mut self, id: Handle) -> bool {
        let found = self.operations.iter_mut().find(|operation| operation.id == id);
        found.map(|operation| operation.is_unfinished = true).is_some()
    }

    /// Nothing more will be known of operations whose kernel had not ended. They count until a
    /// later one has ended. Returns those that were reported as overdue.
    pub(super) fn forget_unfinished(&mut self) -> Vec<Handle> {
        self.operations.iter_mut().filter(|it| it.is_unfinished).filter_map(UnderWay::lose).collect()
    }

    /// The first operations that are not known to have ended, if they began by `since` and were not
    /// reported before.
    pub(super) fn overdue(&mut self, since: HostNs) -> impl Iterator<Item = Overdue> {
        let first = self.first();
        self.operations.range_mut(first..).take(SHOWN).filter(move |it| it.begin <= since).filter_map(|it| {
            let operation = it.facts.take()?;
            it.is_shown = true;
            Some(Overdue { begin: it.begin, operation, is_unfinished: it.is_unfinished })
        })
    }

    /// When the operations reported as overdue ended, each once.
    pub(super) fn take_ended(&mut self) -> Vec<(HostNs, Handle)> {
        std::mem::take(&mut self.ended)
    }

    /// Nothing will be known of the operations under way. Returns those that were reported as
    /// overdue.
    pub(super) fn give_up(&mut self) -> Vec<Handle> {
        self.operations.iter_mut().filter_map(UnderWay::lose).collect()
    }

    /// Whether it has a counter.
    pub(super) fn is_drawn(&self) -> bool {
        self.gauge.is_some()
    }

    /// From here on its counter is drawn, including the operations under way.
    pub(super) fn draw(&mut self, counter: Option<Counter>) {
        self.gauge = Some(Gauge::new(counter));
    }

    /// The kernel of an operation has ended. If the operation has several, the last one counts.
    pub(super) fn end(&mut self, id: Handle, end: HostNs) {
        self.moved = self.moved.max(end);
        // Kernels mostly end in the order of their hand-over.
        let (next, all) = (self.next.min(self.operations.len()), self.operations.len());
        let mut places = (next..all).chain(0..next);
        if let Some(place) = places.find(|place| self.operations[*place].id == id) {
            self.next = place + 1;
            let operation = &mut self.operations[place];
            operation.end = operation.end.max(Some(end.max(operation.begin)));
            operation.facts = None;
        }
    }

    /// Writes what can no longer change.
    pub(super) fn settle(&mut self, writer: &mut Writer, now: HostNs) {
        let until = HostNs(now.0.saturating_sub(HOLD_NS));
        let few = HOLD_NS / 16;
        if until.since(self.settled) >= few || self.operations.len() >= OPERATIONS {
            self.write(writer, until);
        }
    }

    /// Writes everything. What has not ended by now stays open.
    pub(super) fn flush(&mut self, writer: &mut Writer) {
        self.write(writer, HostNs(u64::MAX));
    }

    fn write(&mut self, writer: &mut Writer, until: HostNs) {
        // Before there is a counter, nothing may be marked as counted.
        if self.gauge.is_none() {
            return;
        }
        let changes = self.changes(until);
        if let Some(gauge) = &mut self.gauge {
            changes.into_iter().for_each(|(time, change)| gauge.add(writer, time, change));
            gauge.flush(writer);
        }
    }

    /// What changed before `until` and was not written yet, in order of time.
    fn changes(&mut self, until: HostNs) -> Vec<(HostNs, i64)> {
        self.settled = until;
        // Several at a time, because each pass looks at all of them.
        let full = self.operations.len() >= OPERATIONS;
        let too_many = if full { self.operations.len() - OPERATIONS * 3 / 4 } else { 0 };
        let mut changes = Vec::new();
        // The earliest end among the later operations.
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
                // Marks it as done: nothing begins at the end of time.
                operation.begin = HostNs(u64::MAX);
                changes.push((end, -1));
                if operation.is_shown {
                    self.ended.push((end, operation.id));
                }
            }
        }
        self.operations.retain(|operation| operation.begin != HostNs(u64::MAX));
        self.next = 0;
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
        Arc::new(Operation { id, since: HostNs(0), asked: None, event, texts: None, number: 0 })
    }

    /// The number of operations from each time on.
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
    fn overtaken_operations_have_ended_and_hanging_ones_have_not() {
        let mut outstanding = Outstanding::default();
        for (id, begin) in [(A, 10), (B, 20), (C, 30), (D, 50)] {
            outstanding.begin(id, HostNs(begin), None, 0);
        }
        // Ends arrive in any order.
        outstanding.end(C, HostNs(80));
        outstanding.end(A, HostNs(60));
        let expected = [(10, 1), (20, 2), (30, 3), (50, 4), (60, 3), (80, 2), (80, 1)];
        assert_eq!(counted(&mut outstanding, u64::MAX), expected);
        assert_eq!(outstanding.operations.len(), 1, "D hangs");
    }

    #[test]
    fn a_lost_operation_counts_until_a_later_one_has_ended() {
        let mut outstanding = Outstanding::default();
        for (id, begin) in [(A, 10), (B, 20), (C, 30)] {
            outstanding.begin(id, HostNs(begin), Some(&operation(id)), 0);
        }
        assert!(outstanding.unfinished(A) && outstanding.unfinished(B));
        assert_eq!(outstanding.forget_unfinished(), [], "neither was shown");
        assert_eq!(outstanding.first(), 2, "what comes behind them is followed");
        assert_eq!(counted(&mut outstanding, 50), [(10, 1), (20, 2), (30, 3)]);
        outstanding.end(C, HostNs(60));
        assert_eq!(outstanding.changes(HostNs(u64::MAX)), [(HostNs(60), -1); 3]);
    }

    #[test]
    fn an_operation_without_a_reported_end_hides_no_later_ones() {
        let mut outstanding = Outstanding::default();
        outstanding.begin(A, HostNs(10), Some(&operation(A)), 0);
        // Now there are no kernels for a while.
        assert_eq!(outstanding.give_up(), []);
        outstanding.begin(B, HostNs(20), None, 0);
        let stands = |outstanding: &mut Outstanding| outstanding.stands(HostNs(100), |_| None);
        assert!(!stands(&mut outstanding));
        outstanding.begin(C, HostNs(30), Some(&operation(C)), 0);
        assert!(stands(&mut outstanding));
        assert!(outstanding.overdue(HostNs(100)).map(|it| it.operation.id).eq([C]));
    }

    #[test]
    fn nothing_is_written_twice_or_early() {
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
    fn operations_begun_before_the_counter_count() {
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
