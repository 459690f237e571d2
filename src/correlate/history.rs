//! What the program marked with NVTX, thread by thread.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::activity::{Edge, Marker};
use crate::model::time::HostNs;
use crate::model::timeline::{Around, Moment};

/// How many threads are remembered, and how many range boundaries of all threads together. The call
/// behind a kernel that ends now may be seconds old, and a program that marks each of its operators
/// makes 20,000 ranges a second, usually on one or two threads. The entries take at most 6 MiB.
const THREADS: usize = 16;
const PAST: usize = 128 << 10;
/// How long before a thread's last boundary its older ones are remembered, in ns. A thread that
/// hangs has no newer ones, so what it was in is not forgotten.
const PAST_NS: u64 = 120_000_000_000;
/// A thread that has been in no range for this long, in ns, makes room for another one.
const IDLE_NS: u64 = 10_000_000_000;
/// Nested ranges of one thread.
const DEPTH: usize = 256;
/// The domain of NCCL's own ranges, which only repeat the call. Source: NCCL, `src/include/nvtx.h`.
const NCCL: &str = "NCCL";

/// The ranges that each thread was in, over time.
#[derive(Debug)]
pub(crate) struct History {
    /// By the system's thread id; ranges of the whole process are under `None`.
    threads: FxHashMap<Option<i32>, Thread>,
    most_threads: usize,
    most_past: usize,
    past_ns: u64,
    /// Entries in the pasts of all threads.
    held: usize,
}

/// The ranges of one thread.
#[derive(Debug, Default)]
struct Thread {
    /// The open ranges, outermost first.
    stack: Vec<Level>,
    /// The innermost range from each time on, oldest first.
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
        History { threads: FxHashMap::default(), most_threads: THREADS, most_past: PAST, past_ns: PAST_NS, held: 0 }
    }
}

impl History {
    /// A history that forgets nothing.
    #[cfg(any(feature = "cli", test))]
    pub(crate) fn endless() -> History {
        History { most_threads: usize::MAX, most_past: usize::MAX, past_ns: u64::MAX, ..History::default() }
    }

    /// The ranges that the program was in at a moment. Call it once all markers up to that moment
    /// have been followed.
    pub(crate) fn around(&self, moment: Moment) -> Around {
        let own = self.threads.get(&Some(moment.tid)).and_then(|thread| thread.at(moment.time));
        let step = own.and_then(|around| around.step).or_else(|| self.step_of_all(moment.time));
        Around { range: own.and_then(|around| around.range.clone()), step }
    }

    /// The step that all threads in a step agree on: PyTorch's backward pass has a thread of its
    /// own, while the main thread marks the step.
    fn step_of_all(&self, time: HostNs) -> Option<u64> {
        let mut steps = self.threads.values().filter_map(|thread| thread.at(time)?.step);
        let first = steps.next()?;
        steps.all(|step| step == first).then_some(first)
    }

    /// Whether any thread has had a range.
    pub(crate) fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Records were lost, possibly including the end of a range: which ranges are open is no longer
    /// known.
    pub(crate) fn lost(&mut self) {
        for thread in self.threads.values_mut() {
            let Some(&(now, _)) = thread.past.back() else { continue };
            thread.stack.clear();
            thread.change(now);
            self.held += 1;
        }
    }

    /// Takes the next marker, in order of time.
    pub(crate) fn follow(&mut self, marker: &Marker) {
        let tid = marker.tid;
        match marker.edge {
            _ if marker.domain.as_deref() == Some(NCCL) => return,
            Edge::Mark => return,
            Edge::Begin if self.threads.contains_key(&tid) || self.has_room(marker.time) => {
                let thread = self.threads.entry(tid).or_default();
                if thread.stack.len() >= DEPTH {
                    thread.stack.remove(0);
                }
                let outer = thread.stack.last().and_then(|level| level.around.step);
                let around = Around { range: Some(Arc::clone(&marker.name)), step: step_of(&marker.name).or(outer) };
                thread.stack.push(Level { id: marker.id, domain: marker.domain.clone(), around });
            }
            Edge::Begin => return,
            Edge::End => {
                let Some(thread) = self.threads.get_mut(&tid) else { return };
                let Some(at) = thread.stack.iter().rposition(|level| level.id == marker.id) else { return };
                let Level { domain, .. } = thread.stack.remove(at);
                // The ranges of a thread nest within each domain: the end of an inner one that is
                // still open was lost.
                let is_lost = |level: &mut Level| tid.is_some() && level.domain == domain;
                thread.stack.extract_if(at.., is_lost).for_each(drop);
            }
        }
        // Forget before adding: a full queue would double.
        self.forget();
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.change(marker.time);
            self.held += 1;
            self.held -= thread.forget_before(HostNs(marker.time.0.saturating_sub(self.past_ns)));
        }
    }

    /// Whether there is room for another thread. If necessary, the thread that has been idle
    /// longest is forgotten.
    fn has_room(&mut self, now: HostNs) -> bool {
        if self.threads.len() < self.most_threads {
            return true;
        }
        let idle = self.threads.iter().filter(|(_, thread)| thread.stack.is_empty());
        let since = idle.filter_map(|(tid, thread)| Some((thread.past.back()?.0, *tid)));
        let Some((_, tid)) = since.min().filter(|(since, _)| now.since(*since) > IDLE_NS) else { return false };
        self.held -= self.threads.remove(&tid).map_or(0, |thread| thread.past.len());
        true
    }

    /// Forgets the oldest entries of the threads with the most entries.
    fn forget(&mut self) {
        while self.held >= self.most_past {
            let Some(longest) = self.threads.values_mut().max_by_key(|thread| thread.past.len()) else { break };
            longest.past.pop_front();
            self.held -= 1;
        }
    }
}

impl Thread {
    fn at(&self, time: HostNs) -> Option<&Around> {
        let next = self.past.partition_point(|(since, _)| *since <= time);
        self.past.get(next.checked_sub(1)?)?.1.as_ref()
    }

    /// Forgets what does not tell about this time or later ones. Returns how many entries that is.
    fn forget_before(&mut self, time: HostNs) -> usize {
        let before = self.past.len();
        while self.past.get(1).is_some_and(|(since, _)| *since <= time) {
            self.past.pop_front();
        }
        before - self.past.len()
    }

    /// From `time` on the thread is in the range that is innermost now.
    fn change(&mut self, time: HostNs) {
        // A late marker does not change what was said about earlier times.
        let time = self.past.back().map_or(time, |(last, _)| time.max(*last));
        self.past.push_back((time, self.stack.last().map(|level| level.around.clone())));
    }
}

/// The number of a step or an iteration at the end of a range's name: `step 17`, `Iteration: 17`,
/// `ProfilerStep#17`. The word must stand right before the number, because PyTorch's own ranges may
/// end with other numbers: `Optimizer.step#Adam.step, op_id = 371`.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let words = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = name[words.len()..].parse().ok()?;
    let words = words.trim_end_matches([' ', '#', ':', '=', '_', '-', '(', '[']);
    let lower = words.to_ascii_lowercase();
    // "writer 3" is not an iteration.
    let is_iter = lower
        .strip_suffix("iter")
        .is_some_and(|before| !before.ends_with(|last: char| last.is_ascii_lowercase()) || words.ends_with("Iter"));
    (is_iter || lower.ends_with("step") || lower.ends_with("iteration")).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_number_after_its_word() {
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
            assert_eq!(step_of(name), number, "{name}");
        }
    }

    fn marker(tid: impl Into<Option<i32>>, id: u32, time: u64, edge: Edge) -> Marker {
        let (name, thread) = (format!("range {id}").into(), "".into());
        Marker { time: HostNs(time), error_ns: 0, id, edge, tid: tid.into(), thread, name, domain: None }
    }

    #[test]
    fn ranges_are_forgotten_by_their_own_thread_s_time() {
        let mut history = History::default();
        let second = |n: u64| n * 1_000_000_000;
        history.follow(&marker(1, 1, second(1), Edge::Begin));
        for n in 0..1_000 {
            history.follow(&marker(2, n, second(n.into()), Edge::Begin));
            history.follow(&marker(2, n, second(n.into()) + 5, Edge::End));
        }
        let at = |tid, time| history.around(Moment { tid, time: HostNs(time) }).range;
        assert_eq!(at(1, second(2)).as_deref(), Some("range 1"), "it may hang there");
        assert_eq!(at(2, second(880)).as_deref(), Some("range 880"));
        assert_eq!(at(2, second(870)), None);
        assert!(history.held < 250 && history.held == history.threads.values().map(|it| it.past.len()).sum::<usize>());
    }

    #[test]
    fn memory_is_bounded_unless_the_history_is_endless() {
        for (mut history, threads, most) in [(History::default(), THREADS, PAST), (History::endless(), 101, usize::MAX)]
        {
            for id in 0..40_000 {
                history.follow(&marker(id as i32 % 100, id, id.into(), Edge::Begin));
            }
            assert_eq!(history.threads.values().map(|thread| thread.stack.len()).max(), Some(DEPTH));
            for id in 40_000..120_000 {
                for tid in [None, Some(7)] {
                    history.follow(&marker(tid, id, id.into(), Edge::Begin));
                    history.follow(&marker(tid, id, id.into(), Edge::End));
                }
            }
            assert_eq!(history.threads.len(), threads);
            let held: usize = history.threads.values().map(|thread| thread.past.len()).sum();
            assert!(held == history.held && held <= most && (held == PAST || most > PAST), "{held}");
            // The thread with the most entries loses the most.
            assert!(history.threads.values().all(|thread| thread.past.len() >= 400));
        }
    }

    #[test]
    fn ranges_of_a_busy_thread_are_remembered_for_seconds() {
        let mut history = History::default();
        // 20,000 ranges a second, for three seconds.
        for id in 0..60_000 {
            let begin = 50_000 * u64::from(id);
            history.follow(&marker(1, id, begin, Edge::Begin));
            history.follow(&marker(1, id, begin + 40_000, Edge::End));
        }
        let around = history.around(Moment { tid: 1, time: HostNs(1_000_000_000) });
        assert_eq!(around.range.as_deref(), Some("range 20000"));
    }

    #[test]
    fn threads_that_come_and_go_make_room_for_others() {
        let mut history = History::default();
        for id in 0..100 {
            let begin = 1_000_000_000 * u64::from(id);
            history.follow(&marker(id as i32, id, begin, Edge::Begin));
            // The first thread stays in its range.
            if id > 0 {
                history.follow(&marker(id as i32, id, begin + 1000, Edge::End));
            }
        }
        let range = |tid, second: u64| {
            history
                .around(Moment { tid, time: HostNs(1_000_000_000 * second + 500) })
                .range
                .as_deref()
                .map(str::to_owned)
        };
        assert_eq!(range(99, 99).as_deref(), Some("range 99"));
        assert_eq!(range(90, 90).as_deref(), Some("range 90"), "its kernel may come still");
        assert_eq!(range(0, 99).as_deref(), Some("range 0"));
        assert_eq!(history.threads.len(), THREADS);
    }
}
