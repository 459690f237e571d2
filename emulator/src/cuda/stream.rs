//! Streams: queues of work, each with a thread that runs it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::capture::Membership;
use super::event::Record;
use super::graph::Replay;
use super::registry::handle;
use super::threads::{self, lock};
use super::work::{Action, Origin, Place};
use super::{Error, device, observe, time};

/// A stream.
pub(super) struct Stream {
    /// Unique in the process.
    pub(super) number: u64,
    /// As CUPTI reports it; a stream of another context may have the same.
    pub(super) id: u32,
    pub(super) device: u32,
    default: bool,
    queue: Mutex<Queue>,
    /// Signals that there is work, or that there will be no more.
    filled: Condvar,
    /// Signals that work was done.
    drained: Condvar,
    /// Its part in a capture; see [`super::capture`].
    pub(super) capture: Mutex<Option<Membership>>,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// How much work was ever queued. What is only kept is no work: no call waits for it.
    queued: u64,
    done: u64,
    /// Whether there is a thread. The first task starts it, since many streams never do anything.
    running: bool,
    destroyed: bool,
}

enum Task {
    Action {
        action: Action,
        place: Place,
        at_start: Option<Arc<Record>>,
    },
    Record(Arc<Record>),
    Wait(Arc<Record>),
    Replay(Box<Replay>, Place),
    /// Keeps an object until this point of the queue, where it is dropped.
    Keep {
        _kept: Arc<dyn Any + Send + Sync>,
    },
}

/// What became of an action.
pub(super) enum Submitted {
    /// It is queued; the number is for [`Stream::wait_for`].
    Queued(u64),
    /// It is a node of a graph.
    Captured,
}

impl Stream {
    pub(super) fn new(device: u32, id: u32, default: bool) -> Stream {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Stream {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            id,
            device,
            default,
            queue: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            capture: Mutex::default(),
        }
    }

    /// Whether it is a device's default stream.
    pub(super) fn is_default(&self) -> bool {
        self.default
    }

    /// Queues an action, or captures it.
    pub(super) fn submit(self: &Arc<Stream>, action: Action, origin: &Origin) -> Result<Submitted, Error> {
        match self.capture_action(action)? {
            Ok(_) => Ok(Submitted::Captured),
            Err(action) => self.queue_action(action, None, origin).map(Submitted::Queued),
        }
    }

    /// Queues an action; `at_start` happens when it begins, if it is a kernel.
    pub(super) fn queue_action(
        self: &Arc<Stream>,
        action: Action,
        at_start: Option<Arc<Record>>,
        origin: &Origin,
    ) -> Result<u64, Error> {
        let place = self.place(origin);
        observe::queued(|| action.describe(&place));
        self.push(Task::Action { action, place, at_start })
    }

    /// Queues the completion of a record.
    pub(super) fn queue_record(self: &Arc<Stream>, record: Arc<Record>) -> Result<(), Error> {
        self.push(Task::Record(record)).map(|_| ())
    }

    /// Queues a wait for a record.
    pub(super) fn queue_wait(self: &Arc<Stream>, record: Arc<Record>) -> Result<(), Error> {
        if record.completed().is_some() {
            return Ok(());
        }
        self.push(Task::Wait(record)).map(|_| ())
    }

    /// Queues a launch of a graph.
    pub(super) fn queue_replay(self: &Arc<Stream>, replay: Replay, place: Place) -> Result<(), Error> {
        self.push(Task::Replay(Box::new(replay), place)).map(|_| ())
    }

    /// Keeps an object until all work queued now is done.
    pub(super) fn keep(&self, kept: Arc<dyn Any + Send + Sync>) {
        let mut queue = lock(&self.queue);
        if queue.queued != queue.done {
            queue.tasks.push_back(Task::Keep { _kept: kept });
        }
    }

    /// Waits until all work queued now is done.
    pub(super) fn drain(&self) {
        let ticket = lock(&self.queue).queued;
        self.wait_for(ticket);
    }

    /// Waits until the action that was queued under this number is done.
    pub(super) fn wait_for(&self, ticket: u64) {
        let mut queue = lock(&self.queue);
        while queue.done < ticket {
            queue = self.drained.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all work queued now is done; fails if the stream is capturing.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        self.not_capturing()?;
        self.drain();
        Ok(())
    }

    /// Whether all queued work is done.
    pub(super) fn query(&self) -> Result<bool, Error> {
        self.not_capturing()?;
        let queue = lock(&self.queue);
        Ok(queue.done == queue.queued)
    }

    /// Ends the stream once its work is done, without waiting for that.
    pub(super) fn destroy(&self) {
        *lock(&self.capture) = None;
        lock(&self.queue).destroyed = true;
        self.filled.notify_all();
    }

    /// The place of work that is queued now.
    pub(super) fn place(self: &Arc<Stream>, origin: &Origin) -> Place {
        let context = device::get(self.device as i32).map_or(0, |device| device.context().id());
        Place {
            device: self.device,
            context,
            stream: self.id,
            stream_handle: if self.default { 0 } else { handle(self) as u64 },
            origin: origin.clone(),
            queued: time::now(),
            graph: None,
        }
    }

    fn push(self: &Arc<Stream>, task: Task) -> Result<u64, Error> {
        let mut queue = lock(&self.queue);
        if !queue.running {
            let stream = self.clone();
            threads::start(move || stream.work())?;
            queue.running = true;
        }
        queue.queued += 1;
        queue.tasks.push_back(task);
        self.filled.notify_one();
        Ok(queue.queued)
    }

    /// The stream's thread.
    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            let Some(task) = queue.tasks.pop_front() else {
                if queue.destroyed {
                    return;
                }
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let is_work = !matches!(task, Task::Keep { .. });
            task.run();
            queue = lock(&self.queue);
            queue.done += u64::from(is_work);
            self.drained.notify_all();
        }
    }
}

impl Task {
    fn run(self) {
        match self {
            Task::Action { action, place, at_start } => action.run(&place, &|| {
                if let Some(record) = &at_start {
                    record.complete();
                }
            }),
            Task::Record(record) => record.complete(),
            Task::Wait(record) => record.wait(),
            Task::Replay(replay, place) => replay.run(place),
            Task::Keep { .. } => {}
        }
    }
}
