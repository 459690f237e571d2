//! Events: what has happened in a stream up to a point.

use std::sync::{Arc, Condvar, Mutex};

use super::capture::Captured;
use super::threads::lock;
use super::{Error, time};

/// `cudaEventDisableTiming`.
pub(super) const DISABLE_TIMING: u32 = 2;

/// An event. Each recording makes it stand for a new [`Record`]; a wait refers to the one at the
/// time of the call.
pub(super) struct Event {
    state: Mutex<State>,
    timing: bool,
}

#[derive(Default)]
struct State {
    /// The latest record outside of a capture, including those by launched graphs.
    latest: Option<Arc<Record>>,
    /// Set when the event was last recorded in a capture.
    captured: Option<Captured>,
}

/// What an event stands for when it is queried or waited for.
pub(super) enum Meaning {
    /// It was never recorded: nothing to wait for.
    Nothing,
    /// It happens with this.
    Record(Arc<Record>),
    /// It is a point in a capture.
    Captured(Captured),
}

impl Event {
    pub(super) fn new(flags: u32) -> Event {
        Event { state: Mutex::default(), timing: flags & DISABLE_TIMING == 0 }
    }

    /// Begins a record, which the code that executes it completes.
    pub(super) fn record(&self) -> Arc<Record> {
        let record = Arc::new(Record::default());
        *lock(&self.state) = State { latest: Some(record.clone()), captured: None };
        record
    }

    /// Begins a record that a node of a graph completes; leaves the captured point alone.
    pub(super) fn record_by_node(&self) -> Arc<Record> {
        let record = Arc::new(Record::default());
        lock(&self.state).latest = Some(record.clone());
        record
    }

    /// Records a point in a capture.
    pub(super) fn record_captured(&self, captured: Captured) {
        lock(&self.state).captured = Some(captured);
    }

    /// What it stands for now.
    pub(super) fn meaning(&self) -> Meaning {
        let state = lock(&self.state);
        match (&state.captured, &state.latest) {
            (Some(captured), _) => Meaning::Captured(captured.clone()),
            (None, Some(record)) => Meaning::Record(record.clone()),
            (None, None) => Meaning::Nothing,
        }
    }

    /// What it stood for when it was last recorded outside of a capture.
    pub(super) fn latest(&self) -> Option<Arc<Record>> {
        lock(&self.state).latest.clone()
    }

    /// Whether it has happened.
    pub(super) fn query(&self) -> Result<bool, Error> {
        match self.meaning() {
            Meaning::Nothing => Ok(true),
            Meaning::Record(record) => Ok(record.completed().is_some()),
            Meaning::Captured(_) => Err(Error::CapturedEvent),
        }
    }

    /// Waits until it has happened.
    pub(super) fn synchronize(&self) -> Result<(), Error> {
        match self.meaning() {
            Meaning::Nothing => Ok(()),
            Meaning::Record(record) => {
                record.wait();
                Ok(())
            }
            Meaning::Captured(_) => Err(Error::CapturedEvent),
        }
    }

    /// The time since `earlier`, in ns.
    pub(super) fn elapsed(&self, earlier: &Event) -> Result<i64, Error> {
        let at = |event: &Event| match event.meaning() {
            _ if !event.timing => Err(Error::InvalidResourceHandle),
            Meaning::Nothing => Err(Error::InvalidResourceHandle),
            Meaning::Captured(_) => Err(Error::CapturedEvent),
            Meaning::Record(record) => record.completed().ok_or(Error::NotReady),
        };
        Ok(at(self)? as i64 - at(earlier)? as i64)
    }
}

/// Something that happens once.
#[derive(Default)]
pub(super) struct Record {
    /// When, in true ns.
    at: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Record {
    /// It happens now.
    pub(super) fn complete(&self) {
        *lock(&self.at) = Some(time::now());
        self.changed.notify_all();
    }

    /// When it happened.
    pub(super) fn completed(&self) -> Option<u64> {
        *lock(&self.at)
    }

    /// Waits for it.
    pub(super) fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.changed.wait(at).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}
