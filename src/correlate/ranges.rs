//! Ranges of NVTX, whose begin and end CUPTI reports apart from each other, and which of them were open around a moment.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::bounded::Bounded;
use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;
use crate::model::timeline::{Around, Moment};

/// Ranges that are open at a time; a program that never ends them must not take memory for ever.
const OPEN: usize = 16 << 10;
/// Threads whose past is remembered, and begins and ends of each: the call behind a kernel that ends now may be seconds old, and a program
/// that marks each of its operators makes 20,000 a second. 6 MiB at most.
const THREADS: usize = 16;
const PAST: usize = 8 << 10;
/// Ranges of a thread inside of each other.
const DEPTH: usize = 256;
/// The domain of NCCL's own ranges, which only repeat the call. Source: NCCL, `src/include/nvtx.h`.
const NCCL: &str = "NCCL";

/// The ranges that have begun.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    open: Bounded<u32, Marker>,
    /// Begins without an end, and ends without a begin.
    unpaired: u64,
    /// By the system's number; those of no thread but the process under `None`.
    threads: FxHashMap<Option<i32>, Thread>,
}

/// What a thread was in.
#[derive(Debug, Default)]
struct Thread {
    /// The ranges that are open, outer ones first.
    stack: Vec<Level>,
    /// From when on it was in what, oldest first.
    past: VecDeque<(HostNs, Option<Around>)>,
}

#[derive(Debug)]
struct Level {
    id: u32,
    domain: Option<Arc<str>>,
    around: Around,
}

impl Ranges {
    /// Takes a marker. The answer is what is now known as a whole: a range with its end, or a mark.
    pub(super) fn push(&mut self, marker: &Marker) -> Option<(Marker, Option<HostNs>)> {
        self.follow(marker);
        match marker.edge {
            Edge::Mark => Some((marker.clone(), None)),
            Edge::Begin => {
                let before = self.open.remove(&marker.id);
                let forgotten = self.open.insert(marker.id, marker.clone(), OPEN);
                self.unpaired += u64::from(before.is_some()) + u64::from(forgotten.is_some());
                None
            }
            Edge::End => {
                let begin = self.open.remove(&marker.id);
                self.unpaired += u64::from(begin.is_none());
                begin.map(|begin| {
                    let end = marker.time.max(begin.time);
                    (begin, Some(end))
                })
            }
        }
    }

    /// What the program was in at a moment. To be asked when the markers up to then have been pushed.
    pub(super) fn around(&self, moment: Moment) -> Around {
        let own = self.threads.get(&Some(moment.tid)).and_then(|thread| thread.at(moment.time));
        let step = own.and_then(|around| around.step).or_else(|| self.step_of_all(moment.time));
        Around { range: own.and_then(|around| around.range.clone()), step }
    }

    /// The step that all threads are in that are in one: PyTorch's backward pass has a thread of its own, and the main thread marks the step.
    fn step_of_all(&self, time: HostNs) -> Option<u64> {
        let mut steps = self.threads.values().filter_map(|thread| thread.at(time)?.step);
        let first = steps.next()?;
        steps.all(|step| step == first).then_some(first)
    }

    /// Whether any thread has had a range.
    pub(super) fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Records were lost, and a range's end may be among them: what is open now is not known any more.
    pub(super) fn lost(&mut self) {
        for thread in self.threads.values_mut() {
            let Some(&(now, _)) = thread.past.back() else { continue };
            thread.stack.clear();
            thread.change(now);
        }
    }

    fn follow(&mut self, marker: &Marker) {
        let tid = marker.tid;
        match marker.edge {
            _ if marker.domain.as_deref() == Some(NCCL) => return,
            Edge::Mark => return,
            Edge::Begin if self.threads.len() < THREADS || self.threads.contains_key(&tid) => {
                let thread = self.threads.entry(tid).or_default();
                if thread.stack.len() >= DEPTH {
                    thread.stack.remove(0);
                }
                let outer = thread.stack.last().and_then(|level| level.around.step);
                let around = Around { range: Some(Arc::clone(&marker.name)), step: step(&marker.name).or(outer) };
                thread.stack.push(Level { id: marker.id, domain: marker.domain.clone(), around });
            }
            Edge::Begin => return,
            Edge::End => {
                let Some(thread) = self.threads.get_mut(&tid) else { return };
                let Some(at) = thread.stack.iter().rposition(|level| level.id == marker.id) else { return };
                let Level { domain, .. } = thread.stack.remove(at);
                // Those of a thread nest, in each domain: an inner one that is still there lost its end.
                let is_lost = |level: &mut Level| tid.is_some() && level.domain == domain;
                thread.stack.extract_if(at.., is_lost).for_each(drop);
            }
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.change(marker.time);
        }
    }

    /// Those that have not ended, oldest first.
    pub(super) fn finish(&mut self) -> Vec<Marker> {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        open.sort_by_key(|marker| marker.time);
        self.unpaired += open.len() as u64;
        open
    }

    pub(super) fn unpaired(&self) -> u64 {
        self.unpaired
    }
}

impl Thread {
    fn at(&self, time: HostNs) -> Option<&Around> {
        let next = self.past.partition_point(|(since, _)| *since <= time);
        self.past.get(next.checked_sub(1)?)?.1.as_ref()
    }

    /// From `time` on it is in what is innermost now.
    fn change(&mut self, time: HostNs) {
        // One that comes late cannot change what was said of the time before.
        let time = self.past.back().map_or(time, |(last, _)| time.max(*last));
        self.past.push_back((time, self.stack.last().map(|level| level.around.clone())));
        if self.past.len() > PAST {
            self.past.pop_front();
        }
    }
}

/// The number of a step or an iteration that a range's name ends with: `step 17`, `Iteration: 17`, `ProfilerStep#17`.
fn step(name: &str) -> Option<u64> {
    let words = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = name[words.len()..].parse().ok()?;
    let words = words.to_ascii_lowercase();
    (words.contains("step") || words.contains("iter")).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(id: u32, time: u64, edge: Edge) -> Marker {
        let (name, thread) = (format!("range {id}").into(), "".into());
        Marker { time: HostNs(time), error_ns: 0, id, edge, tid: None, thread, name, domain: None }
    }

    #[test]
    fn begins_and_ends_are_paired_by_their_numbers() {
        let mut ranges = Ranges::default();
        let mut push = |id, time, edge| ranges.push(&marker(id, time, edge)).map(|(begin, end)| (begin.id, end));
        assert_eq!(push(1, 10, Edge::Begin), None);
        assert_eq!(push(2, 20, Edge::Begin), None);
        assert_eq!(push(3, 25, Edge::Mark), Some((3, None)));
        assert_eq!(push(1, 30, Edge::End), Some((1, Some(HostNs(30)))));
        assert_eq!(push(1, 31, Edge::End), None, "ended already");
        assert_eq!(push(4, 40, Edge::Begin), None);
        // With a step of the clock between them.
        assert_eq!(push(4, 39, Edge::End), Some((4, Some(HostNs(40)))));
        assert_eq!(push(5, 15, Edge::Begin), None);
        assert_eq!(ranges.unpaired(), 1);
        let open: Vec<_> = ranges.finish().iter().map(|marker| marker.id).collect();
        assert_eq!((open, ranges.unpaired()), (vec![5, 2], 3));
    }

    #[test]
    fn steps_are_numbers_after_their_words() {
        for (name, number) in [
            ("step 17", Some(17)),
            ("ProfilerStep#3", Some(3)),
            ("Iteration: 0042", Some(42)),
            ("step", None),
            ("17", None),
            ("layer 17", None),
            ("step 17 of 20 done", None),
            ("step 99999999999999999999", None),
        ] {
            assert_eq!(step(name), number, "{name}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut ranges = Ranges::default();
        for id in 0..40_000 {
            ranges.push(&marker(id, u64::from(id), Edge::Begin));
            ranges.push(&Marker { tid: Some(id as i32 % 100), ..marker(id, u64::from(id), Edge::Begin) });
        }
        let all = |count: &dyn Fn(&Thread) -> usize| ranges.threads.values().map(count).max();
        assert_eq!((ranges.threads.len(), all(&|it| it.stack.len())), (THREADS, Some(DEPTH)));
        for id in 0..40_000 {
            let edge = if id % 2 == 0 { Edge::Begin } else { Edge::End };
            ranges.push(&Marker { tid: Some(7), ..marker(id | 1, 50_000 + u64::from(id), edge) });
        }
        assert_eq!(ranges.threads[&Some(7)].past.len(), PAST);
        let mut ranges = Ranges::default();
        for id in 0..40_000 {
            ranges.push(&marker(id, u64::from(id), Edge::Begin));
        }
        assert_eq!(ranges.unpaired(), 40_000 - OPEN as u64);
        assert_eq!((ranges.finish().len(), ranges.unpaired()), (OPEN, 40_000));
    }
}
