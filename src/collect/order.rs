//! Merges sources that are each in time order into one (pure).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::align::Due;
use crate::model::time::Ticks;

/// A queue that is in time order.
pub trait Source {
    /// The time of its oldest item.
    fn peek(&mut self) -> Option<Ticks>;
}

/// Calls `take` for the items of all sources that are due, in time order. `take` must remove the
/// item it is called for.
///
/// A source keeps its other items, and what comes after them: something earlier may still arrive in
/// another source.
pub fn merge<S: Source>(sources: &mut [S], due: Due, mut take: impl FnMut(&mut S)) {
    let mut heads: BinaryHeap<Reverse<(Ticks, usize)>> = sources
        .iter_mut()
        .enumerate()
        .filter_map(|(index, source)| Some(Reverse((source.peek().filter(|time| due.has(*time))?, index))))
        .collect();
    while let Some(Reverse((_, index))) = heads.pop() {
        // As long as this source comes first, it stays out of the heap.
        let limit = heads.peek().map_or(Ticks(u64::MAX), |Reverse((time, _))| *time);
        let source = &mut sources[index];
        take(source);
        while let Some(time) = source.peek() {
            if !due.has(time) {
                break;
            }
            if time > limit {
                heads.push(Reverse((time, index)));
                break;
            }
            take(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct Queue(VecDeque<(u64, &'static str)>);

    impl Source for Queue {
        fn peek(&mut self) -> Option<Ticks> {
            self.0.front().map(|item| Ticks(item.0))
        }
    }

    fn merged(queues: &mut [Queue], until: u64) -> String {
        merged_of(queues, Due { until: Ticks(until), from: None })
    }

    fn merged_of(queues: &mut [Queue], due: Due) -> String {
        let mut out = String::new();
        merge(queues, due, |queue| out.extend(queue.0.pop_front().map(|item| item.1)));
        out
    }

    #[test]
    fn items_come_in_order_up_to_the_limit() {
        //  0: a1 . . d4 e5 . . h8
        //  1: . b2 c3 . . f6 g7 .
        let mut queues = [
            Queue(VecDeque::from([(1, "a"), (4, "d"), (5, "e"), (8, "h")])),
            Queue(VecDeque::from([(2, "b"), (3, "c"), (6, "f"), (7, "g")])),
            Queue(VecDeque::new()),
        ];
        assert_eq!(merged(&mut queues, 5), "abcde");
        assert_eq!(merged(&mut queues, 5), "");
        // An item that arrives late is not lost.
        queues[2].0.push_back((3, "x"));
        assert_eq!(merged(&mut queues, 100), "xfgh");
    }

    #[test]
    fn items_from_before_the_clock_went_back_do_not_wait() {
        let mut queues = [
            Queue(VecDeque::from([(90, "a"), (92, "b"), (2, "x"), (8, "z")])),
            Queue(VecDeque::from([(91, "c"), (3, "y")])),
        ];
        let due = |until, from| Due { until: Ticks(until), from: Some(Ticks(from)) };
        assert_eq!(merged_of(&mut queues, due(0, 80)), "acb");
        queues[1].0.push_back((93, "d"));
        assert_eq!(merged_of(&mut queues, due(5, 80)), "xyd");
        assert_eq!(merged(&mut queues, 9), "z");
    }

    #[test]
    fn equal_times_keep_the_order_of_each_source() {
        let mut queues =
            [Queue(VecDeque::from([(1, "a"), (1, "b"), (2, "c")])), Queue(VecDeque::from([(1, "x"), (2, "y")]))];
        let out = merged(&mut queues, 2);
        let place = |letter| out.find(letter).unwrap();
        assert!(place('a') < place('b') && place('b') < place('c') && place('x') < place('y'));
        assert!(place('b') < place('y') && place('x') < place('c'));
    }
}
