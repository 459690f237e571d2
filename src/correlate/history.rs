//! What the program said by NVTX that it was doing, thread by thread.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;
use crate::model::timeline::{Around, Moment};

/// Threads whose past is remembered, and begins and ends of each: the call behind a kernel that ends now may be seconds old, and a program
/// that marks each of its operators makes 20,000 a second. 6 MiB at most.
const THREADS: usize = 16;
const PAST: usize = 8 << 10;
/// Ranges of a thread inside of each other.
const DEPTH: usize = 256;
/// The domain of NCCL's own ranges, which only repeat the call. Source: NCCL, `src/include/nvtx.h`.
const NCCL: &str = "NCCL";

/// What threads were in.
#[derive(Debug)]
pub(crate) struct History {
    /// By the system's number; ranges of no thread but the process are under `None`.
    threads: FxHashMap<Option<i32>, Thread>,
    most_threads: usize,
    most_past: usize,
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

impl Default for History {
    fn default() -> History {
        History { threads: FxHashMap::default(), most_threads: THREADS, most_past: PAST }
    }
}

impl History {
    /// One that forgets nothing.
    #[cfg(any(feature = "cli", test))]
    pub(crate) fn endless() -> History {
        History { most_threads: usize::MAX, most_past: usize::MAX, ..History::default() }
    }

    /// What the program was in at a moment. To be asked when the markers up to then have been pushed.
    pub(crate) fn around(&self, moment: Moment) -> Around {
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
    pub(crate) fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Records were lost, and a range's end may be among them: what is open now is not known any more.
    pub(crate) fn lost(&mut self) {
        for thread in self.threads.values_mut() {
            let Some(&(now, _)) = thread.past.back() else { continue };
            thread.stack.clear();
            thread.change(now, self.most_past);
        }
    }

    /// Takes the next marker, in the order of time.
    pub(crate) fn follow(&mut self, marker: &Marker) {
        let tid = marker.tid;
        match marker.edge {
            _ if marker.domain.as_deref() == Some(NCCL) => return,
            Edge::Mark => return,
            Edge::Begin if self.threads.len() < self.most_threads || self.threads.contains_key(&tid) => {
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
            thread.change(marker.time, self.most_past);
        }
    }
}

impl Thread {
    fn at(&self, time: HostNs) -> Option<&Around> {
        let next = self.past.partition_point(|(since, _)| *since <= time);
        self.past.get(next.checked_sub(1)?)?.1.as_ref()
    }

    /// From `time` on it is in what is innermost now.
    fn change(&mut self, time: HostNs, most: usize) {
        // One that comes late cannot change what was said of the time before.
        let time = self.past.back().map_or(time, |(last, _)| time.max(*last));
        self.past.push_back((time, self.stack.last().map(|level| level.around.clone())));
        if self.past.len() > most {
            self.past.pop_front();
        }
    }
}

/// The number of a step or an iteration that a range's name ends with: `step 17`, `Iteration: 17`, `ProfilerStep#17`. Its word stands right
/// before it: PyTorch's own ranges may end with other numbers, as `Optimizer.step#Adam.step, op_id = 371` does.
fn step(name: &str) -> Option<u64> {
    let words = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = name[words.len()..].parse().ok()?;
    let words = words.trim_end_matches([' ', '#', ':', '=', '_', '-', '(', '[']);
    let lower = words.to_ascii_lowercase();
    // A writer is no iteration.
    let is_iter = lower
        .strip_suffix("iter")
        .is_some_and(|before| !before.ends_with(|last: char| last.is_ascii_lowercase()) || words.ends_with("Iter"));
    (is_iter || lower.ends_with("step") || lower.ends_with("iteration")).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_numbers_after_their_words() {
        for (name, number) in [
            ("step 17", Some(17)),
            ("ProfilerStep#3", Some(3)),
            ("Iteration: 0042", Some(42)),
            ("train_step_5", Some(5)),
            ("iter=5", Some(5)),
            ("train-iter [5", Some(5)),
            ("TrainIter 5", Some(5)),
            ("epoch 2, step 5", Some(5)),
            ("Optimizer.step#Adam.step, op_id = 371", None),
            ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__, op_id = 12", None),
            ("step 17 of 20", None),
            ("step 17/20", None),
            ("step 0.5", None),
            ("iteration 17, microbatch 2", None),
            ("checkpoint writer 3", None),
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
    fn memory_is_bounded_unless_it_may_not_be() {
        let marker = |tid, id: u32, edge| {
            let (name, thread) = (format!("range {id}").into(), "".into());
            Marker { time: HostNs(u64::from(id)), error_ns: 0, id, edge, tid, thread, name, domain: None }
        };
        for (mut history, threads, past) in [(History::default(), THREADS, PAST), (History::endless(), 101, 40_000)] {
            for id in 0..40_000 {
                history.follow(&marker(Some(id as i32 % 100), id, Edge::Begin));
            }
            assert_eq!(history.threads.values().map(|thread| thread.stack.len()).max(), Some(DEPTH));
            for id in 40_000..60_000 {
                history.follow(&marker(None, id, Edge::Begin));
                history.follow(&marker(None, id, Edge::End));
                history.follow(&marker(Some(7), id, Edge::Begin));
                history.follow(&marker(Some(7), id, Edge::End));
            }
            assert_eq!(history.threads.len(), threads);
            assert!(
                history.threads[&Some(7)].past.len() >= past
                    && history.threads.values().all(|it| it.past.len() <= 40_400)
            );
            assert!(past > PAST || history.threads.values().all(|it| it.past.len() <= PAST));
        }
    }
}
