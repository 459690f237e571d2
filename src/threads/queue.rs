//! A queue with a limit from one thread to another. Not a channel of the standard library or of
//! crossbeam: where these wait, they use a thread-local with a destructor.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The end that fills the queue. Dropping it closes the queue.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end that empties the queue. Without it nothing more can be sent.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    limit: usize,
    /// Nothing more will be sent.
    is_closed: bool,
    /// Nobody will take anything any more.
    is_left: bool,
}

/// A queue for at most `limit` items, of which there must be room for one.
#[must_use]
pub(crate) fn new<T>(limit: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { items: VecDeque::with_capacity(limit), limit, is_closed: false, is_left: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Waits for room.
    ///
    /// # Errors
    ///
    /// The item, if nobody will take it.
    pub(crate) fn send(&self, item: T) -> Result<(), T> {
        self.0.add(item, |state| Some(self.0.wait(state)))
    }

    /// Waits for room until the deadline, or not at all if that is over.
    ///
    /// # Errors
    ///
    /// The item, if nobody will take it or there was no room in time.
    pub(crate) fn send_until(&self, item: T, deadline: Instant) -> Result<(), T> {
        self.0.add(item, |state| self.0.wait_until(state, deadline))
    }

    /// Does not wait.
    ///
    /// # Errors
    ///
    /// The item, if nobody will take it or there is no room.
    pub(crate) fn try_send(&self, item: T) -> Result<(), T> {
        self.0.add(item, |_| None)
    }

    /// Closes the queue: what is in it can still be taken. Waits until the receiver is gone, but
    /// not longer than this.
    pub(crate) fn close(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        state.is_closed = true;
        self.0.changed.notify_all();
        while !state.is_left {
            let Some(next) = self.0.wait_until(state, deadline) else { return };
            state = next;
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for an item. `None` once the queue is closed and empty.
    #[must_use]
    pub(crate) fn receive(&self) -> Option<T> {
        self.0.take(|state| Some(self.0.wait(state)))
    }

    /// Waits for the last item that is wanted. `None` if the queue is closed and empty, or if there
    /// was none until the deadline; whoever sends one after that gets it back.
    #[must_use]
    pub(crate) fn last_until(self, deadline: Instant) -> Option<T> {
        self.0.take(|mut state| {
            if Instant::now() < deadline {
                return self.0.wait_until(state, deadline);
            }
            state.is_left = true;
            None
        })
    }
}

impl<T> Shared<T> {
    /// Adds an item. `wait` waits for a change, and gives up with `None`.
    fn add<'l>(
        &'l self,
        item: T,
        mut wait: impl FnMut(MutexGuard<'l, State<T>>) -> Option<MutexGuard<'l, State<T>>>,
    ) -> Result<(), T> {
        let mut state = self.lock();
        while !state.is_left {
            if state.items.len() < state.limit {
                state.items.push_back(item);
                self.changed.notify_all();
                return Ok(());
            }
            let Some(next) = wait(state) else { break };
            state = next;
        }
        Err(item)
    }

    /// Takes an item, in the same way.
    fn take<'l>(
        &'l self,
        mut wait: impl FnMut(MutexGuard<'l, State<T>>) -> Option<MutexGuard<'l, State<T>>>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                self.changed.notify_all();
                return Some(item);
            }
            if state.is_closed {
                return None;
            }
            state = wait(state)?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'l>(&'l self, state: MutexGuard<'l, State<T>>) -> MutexGuard<'l, State<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if the deadline is over.
    fn wait_until<'l>(
        &'l self,
        state: MutexGuard<'l, State<T>>,
        deadline: Instant,
    ) -> Option<MutexGuard<'l, State<T>>> {
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_left = true;
        let unwanted = std::mem::take(&mut state.items);
        drop(state);
        self.0.changed.notify_all();
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn items_arrive_in_order_and_until_the_queue_is_closed() {
        let (sender, receiver) = new(2);
        std::thread::scope(|scope| {
            let received = scope.spawn(move || std::iter::from_fn(|| receiver.receive()).collect::<Vec<_>>());
            (0..100).for_each(|item| sender.send(item).unwrap());
            sender.close(LONG);
            assert_eq!(received.join().unwrap(), Vec::from_iter(0..100));
        });
        assert_eq!(sender.send(100), Err(100), "nobody takes it");
    }

    #[test]
    fn a_full_queue_is_waited_for_as_long_as_asked() {
        let (sender, receiver) = new(1);
        sender.try_send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(2));
        assert_eq!(sender.send_until(2, Instant::now()), Err(2));
        assert_eq!(sender.send_until(2, Instant::now() + SHORT), Err(2));
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send_until(2, Instant::now() + LONG).unwrap());
            assert_eq!([receiver.receive(), receiver.receive()], [Some(1), Some(2)]);
        });
        sender.send(3).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| sender.send(4));
            std::thread::sleep(SHORT);
            drop(receiver);
            assert_eq!(waits.join().unwrap(), Err(4));
        });
    }

    #[test]
    fn what_comes_too_late_goes_back_to_its_sender() {
        let (sender, receiver) = new(1);
        sender.send("in time").unwrap();
        assert_eq!(receiver.last_until(Instant::now()), Some("in time"));
        let (sender, receiver) = new(1);
        assert_eq!(receiver.last_until(Instant::now() + SHORT), None);
        assert_eq!(sender.send("late"), Err("late"));
        let (sender, receiver) = new::<&str>(1);
        drop(sender);
        assert_eq!(receiver.last_until(Instant::now() + LONG), None, "nobody can send any more");
    }

    #[test]
    fn a_receiver_that_stays_is_waited_for_only_as_long_as_asked() {
        let (sender, receiver) = new::<()>(1);
        sender.close(SHORT);
        assert_eq!(receiver.receive(), None);
    }
}
